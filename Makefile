# make               every program of examples/ and bench/ into build/
# make quickstart    the main job: five strategies over a slow link, two minutes
# make test          all checks and tests;  make sanitize: the tests under ASan+UBSan and TSan
# make fuzz          readers of files, of the network under libFuzzer (clang) for FUZZ=60 seconds
# make bench         all measurements of docs/benchmarks.md;  BENCH=--quick: a taste of them
# make header        dreamddp.h from src/;  make check-header: is it fresh, are its names right
# make cuda          the GPU companion with nvcc, for sm_80 and sm_90: compiles and links all, prints registers and spills
# make gpu-check     on a machine with a GPU: all tests there, training against the CPU, bench/gpu.py
# make install       PREFIX=/usr/local DESTDIR=
CC      ?= cc
CFLAGS  ?= -O2
PREFIX  ?= /usr/local
JOBS    ?= 2
export CC
export DDP_DATA ?= data

WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wconversion
export CPPFLAGS
STB      := -isystem build/include   # where tools/deps.sh puts a fetched stb_ds.h
LIBS     := -lm -lpthread
COMPILE   = $(CC) -std=c11 $(CPPFLAGS) $(STB) $(CFLAGS)

# OpenSSL 3, asked for once: found, it gives TLS to the tests and to the programs that open connections.
OPENSSL   = $(eval OPENSSL := $(shell printf '\043include <openssl/ssl.h>\nint main(void) { return OPENSSL_VERSION_MAJOR < 3 || !SSL_CTX_new; }\n' | \
            $(CC) $(CPPFLAGS) -x c - -lssl -lcrypto -o /dev/null 2>/dev/null && echo yes))$(OPENSSL)
TLS       = $(if $(OPENSSL),-DDDP_USE_OPENSSL)
TLS_LIBS  = $(if $(OPENSSL),-lssl -lcrypto)

EXAMPLES := $(patsubst examples/%.c,build/%,$(wildcard examples/*.c))
BENCHES  := $(patsubst bench/%.c,build/%,$(wildcard bench/bench_*.c))
TESTS    := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))
SCRIPTS  := $(wildcard tests/test_*.sh tests/test_*.py)
SOURCES  := $(shell find src -name '*.[ch]')
# Tests of pure functions: no threads, nothing for TSan to see, no times that another test would change.
PURE := $(addprefix test_,adatopk compress corpus data deft env estimate fence image_ops images json jsonl knapsack louvain matching netspec \
        network osp_plan place place_search plan planned_models preserver profile report ring_order safetensors timeline topk tour weights workload)

# Tests with threads and no times: what runs beside them changes nothing.
CALM := $(addprefix test_,backend checkpoint corpus_net dump graph group half image_training int8 lanes layer_groups levels memory models ops optim \
        recompute reduce_scatter sampling strategies theorem trace)

# Tests that are strict about times: nothing else runs beside them in plain builds. The others have time to spare, as the
# sanitizers show, under which two run at a time; so they do in plain builds, beside one another and behind what computes.
STRICT  := $(addprefix test_,deadlines links ring second shape)
PATIENT  = $(filter-out $(PURE) $(CALM) $(STRICT),$(TESTS))
ALONE    = $(PATIENT) $(STRICT)

# Scripts whose workers wait for one another, some of them by the clock.
TIMED := tests/test_programs.py tests/test_cuda_programs.py tests/test_train_gpt.py tests/test_elastic_training.py tests/test_netcheck.py tests/test_emulation.sh \
         tests/test_netns.py tests/test_launchers.py tests/test_torchrun.py \
         tests/test_mpi.py tests/test_srun.py

.DELETE_ON_ERROR:
.PHONY: soak all deps deps-test header check-header check-separate check-compile test sanitize \
        tests-plain tests-asan tests-tsan tests-cuda quickstart bench fuzz install uninstall clean cuda cuda-programs gpu-check

all: $(EXAMPLES) $(BENCHES)

deps:
	@tools/deps.sh build
deps-test:
	@tools/deps.sh test

# ---- programs: the generated header, nothing else, but MPI and OpenSSL where they are ----
# The library is compiled once for all of them, as its header with DREAMDDP_IMPLEMENTATION; a program then sees
# the declarations and what platform.h includes. One command that compiles both, as the programs' first comments
# say, does as well; those of WHOLE, which use private functions, are built so.
WHOLE := plan bench_ops bench_topk
APART  = -D_GNU_SOURCE -DDDP__IMPLEMENTED -include src/base/platform.h -Isrc
build/dreamddp.o: dreamddp.h build/mpi.flags | deps
	$(COMPILE) $(WARN) $(TLS) -DDREAMDDP_IMPLEMENTATION $$(sed 's/ -[lLW][^ ]*//g' build/mpi.flags) -x c -c $< -o $@
$(addprefix build/,$(WHOLE)): APART =
$(addprefix build/,$(WHOLE)): LIBRARY =
LIBRARY = build/dreamddp.o
build/%: examples/%.c build/dreamddp.o $(wildcard examples/*.h)
	$(COMPILE) $(WARN) $(APART) -I. $(TLS) $< $(LIBRARY) -o $@ $$(cat build/mpi.flags) $(LIBS) $(TLS_LIBS)
build/%: bench/%.c build/dreamddp.o $(wildcard bench/*.h examples/*.h)
	$(COMPILE) $(WARN) $(APART) -I. -Iexamples $(TLS) $< $(LIBRARY) -o $@ $$(cat build/mpi.flags) $(LIBS) $(TLS_LIBS)

# What mpicc adds for --transport mpi, empty where it cannot be linked with. A program that is not
# asked for that transport never initialises MPI and needs no mpirun.
build/mpi.flags: | build
	@printf '#include <mpi.h>\nint main(void) { return MPI_Finalize(); }\n' >$@.c; : >$@; \
	flags="$$(mpicc -show 2>/dev/null | sed 's/^[^ ]* *//; s/ -I/ -isystem /g; s/^-I/-isystem /')"; \
	[ -z "$$flags" ] || ! $(CC) $$flags $@.c $$flags -o $@.try 2>/dev/null || echo "-DDDP_USE_MPI $$flags" >$@; \
	rm -f $@.c $@.try

# the yardstick of bench/transport.py, not ours: MPI_Allreduce itself
build/mpi_allreduce: bench/mpi_allreduce.c | build
	mpicc -O2 $(WARN) $< -o $@

# beside OpenBLAS where it can be linked with
build/bench_sgemm: bench/bench_sgemm.c dreamddp.h examples/cli.h | deps build
	@blas=; echo '#include <cblas.h>' >$@.c; echo 'int main(void) { return 0; }' >>$@.c; \
	$(CC) $@.c -lopenblas -o $@.try 2>/dev/null && blas="-DDDP_USE_CBLAS -lopenblas"; rm -f $@.c $@.try; \
	set -x; $(COMPILE) $(WARN) -I. -Iexamples $< -o $@ $$blas $(LIBS)

quickstart: build/quickstart
	build/quickstart

# docs/benchmarks.md; 12 minutes on a quiet machine, two with BENCH=--quick
bench: all
	@for b in $(BENCHES); do echo "== $$b"; $$b $(BENCH) || exit 1; done
	@for b in bench/planners.py bench/transport.py bench/topk.py bench/sgemm.py bench/torch_gpt.py bench/torch_vision.py bench/overlap.py bench/emulation.py bench/churn.py; do echo "== $$b"; python3 $$b $(BENCH) || [ $$? = 77 ] || exit 1; done

# ---- the header ----
header:
	@tools/amalgamate.py
CHECK_HEADER := tools/amalgamate.py --check && tools/check_names.py
check-header: | deps
	@$(CHECK_HEADER)
check-separate: | deps
	@tests/header/separate.sh
check-compile: | deps-test
	@tests/header/compile.sh

# ---- tests: src/ itself, so that debuggers and sanitizers name its files ----
# Each file of src/ is compiled once per flavour, alone, and kept in an archive. A test sees the
# headers; one that looks into a file of src/ includes that file, and one that counts allocations has
# its own tests/heap.h. The linker takes from the archive what the test does not have.
TEST_COMPILE = $(CC) -std=c11 $(CPPFLAGS) $(STB) -O1 $(DEBUG) $(WARN) $(SANITIZE) $(TLS) -DDDP_SEPARATE \
               -include tests/heap.h -Ibuild/headers -Isrc -MMD -MP -MF $@.d -MT $@
DEBUG = -g
build/asan/%: DEBUG = -g1 # lines for the reports; more takes a tenth longer
build/tsan/%: DEBUG = -g1
build/asan/%: SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all
build/tsan/%: SANITIZE = -fsanitize=thread
UNITS      := $(patsubst src/%.c,%.o,$(filter %.c,$(SOURCES)))
# what the scripts that compare with PyTorch and igraph run
COMPANIONS := $(patsubst tests/%.c,%,$(wildcard tests/torch_*.c tests/igraph_*.c))
build/headers/dreamddp.h: src/dreamddp.h
	@mkdir -p $(@D)
	sed '/^#include ".*\.c"$$/d' $< > $@
define TEST_RULES
build/$(1)/src/%.o: src/%.c
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -c $$< -o $$@
build/$(1)/src/heap.o: tests/heap.c
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -c $$< -o $$@
build/$(1)/dreamddp.a: $(addprefix build/$(1)/src/,$(UNITS) heap.o)
	@rm -f $$@
	$(AR) rcs $$@ $$^
$(addprefix build/$(1)/,$(TESTS) $(COMPANIONS)): build/$(1)/%: tests/%.c build/$(1)/dreamddp.a build/headers/dreamddp.h
	$$(TEST_COMPILE) -Itests $$< build/$(1)/dreamddp.a -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
endef
$(foreach flavour,plain asan tsan,$(eval $(call TEST_RULES,$(flavour))))

# ---- the GPU companion ----
# On any machine: the text of its kernels compiled as C++17 against the stand-in of tests/cuda_on_cpu.
CUDA_TESTS   := $(if $(shell command -v $(firstword $(CXX))),$(patsubst tests/%.cu,%,$(wildcard tests/test_cuda_*.cu)))
CUDA_COMPILE  = $(CXX) -std=c++17 $(CPPFLAGS) $(STB) -O1 -ffp-contract=off $(DEBUG) $(WARN) $(SANITIZE) -DDDP_CUDA_ON_CPU -DDDP_SEPARATE \
                -include tests/heap.h -isystem tests/cuda_on_cpu -Ibuild/headers -Isrc -Itests -MMD -MP -MF $@.d -MT $@
build/headers/dreamddp_cuda.cuh: src/dreamddp_cuda.cuh
	@mkdir -p $(@D)
	cp $< $@
define CUDA_RULES
$(addprefix build/$(1)/,$(CUDA_TESTS)): build/$(1)/%: tests/%.cu build/plain/dreamddp.a build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh \
        $(wildcard tests/cuda_on_cpu/*.h tests/cuda_on_cpu/*/*.h)
	@mkdir -p $$(@D)
	$$(CUDA_COMPILE) -x c++ $$< -x none build/plain/dreamddp.a -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
endef
# The trainers on the stand-in, run whole by tests/test_cuda_programs.py: the kernels are compiled once.
build/cuda/companion.o: tests/header/cuda.cu build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh
	@mkdir -p $(@D)
	$(CUDA_COMPILE) -Dmain=ddp__unused_main -c -x c++ $< -o $@
CUDA_TRAINERS := build/cuda/train_gpt build/cuda/train_image
$(CUDA_TRAINERS): build/cuda/%: examples/%.c build/cuda/companion.o build/plain/dreamddp.a $(wildcard examples/*.h)
	$(CUDA_COMPILE) -DDDP__CUDA_IMPLEMENTED -x c++ $< -x none build/cuda/companion.o build/plain/dreamddp.a -o $@ $(LIBS) $(TLS_LIBS)
# private: the archive beside them stays plain
build/cuda-asan/%: private SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all
$(foreach flavour,cuda cuda-asan,$(eval $(call CUDA_RULES,$(flavour))))

# With nvcc: `make cuda` compiles and links everything and prints what each kernel takes; it runs nothing. The whole
# companion is compiled once, for both architectures, and programs are linked with it; a GPU program by one command, as
# their first comments say, takes the same text. `make cuda-programs` leaves the
# tests out; it is a part of `make test` where nvcc is, for one architecture. -Wshadow is for g++ alone: a header of CUDA declares the name half.
NVCC         ?= nvcc
NVCC_DIR     ?= build/nvcc
NVCC_ARCHS   ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
NVCC_TEST    ?= -gencode arch=compute_90,code=sm_90
NVCC_WARN    ?= -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror
NVCC_COMPILE  = $(NVCC) -std=c++17 --threads 2 $(STB) $(NVCC_WARN) -MMD -MP -MF $@.d -MT $@
NVCC_PROGRAM  = $(NVCC_COMPILE) $(NVCC_TEST) -DDDP__IMPLEMENTED -DDDP__CUDA_IMPLEMENTED -include src/base/platform.h -I. -Isrc -Iexamples
NVCC_LIBS     = -lcublas -lcublasLt -lnccl -lpthread
CUDA_PROGRAMS = $(addprefix $(NVCC_DIR)/,$(notdir $(basename $(shell grep -ls dreamddp_cuda.cuh examples/*.c examples/*.cu bench/*.cu))))
$(NVCC_DIR):
	@mkdir -p $@
$(NVCC_DIR)/kernels.o: tests/header/cuda.cu dreamddp_cuda.cuh dreamddp.h | $(NVCC_DIR)
	$(NVCC_COMPILE) $(NVCC_ARCHS) -O2 -Xptxas -v -Dmain=ddp__unused_main -I. -c $< -o $@ >$(@:.o=.txt) 2>&1 || { cat $(@:.o=.txt); exit 1; }
$(NVCC_DIR)/%: examples/%.c $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) -x cu $< -Xlinker $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(NVCC_DIR)/%: examples/%.cu $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) $< $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(NVCC_DIR)/%: bench/%.cu $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) $< $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(addprefix $(NVCC_DIR)/,$(CUDA_TESTS)): $(NVCC_DIR)/%: tests/%.cu build/plain/dreamddp.a build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh | $(NVCC_DIR)
	$(NVCC_COMPILE) $(NVCC_TEST) -DDDP_SEPARATE -include tests/heap.h -Ibuild/headers -Isrc -Itests $< build/plain/dreamddp.a -o $@ $(NVCC_LIBS) $(LIBS) $(TLS_LIBS) -lcmocka
# With a GPU: GPU_CHECK="--small --sanitize --no-bench" or any of them. Without one it says so.
gpu-check:
	@tools/gpu_check.py $(GPU_CHECK) || [ $$? = 77 ]
cuda-programs: $(NVCC_DIR)/kernels.o $(CUDA_PROGRAMS)
	@tools/ptxas.py $(NVCC_DIR)/kernels.txt
cuda: cuda-programs $(addprefix $(NVCC_DIR)/,$(CUDA_TESTS))
	@echo "make cuda: all kernels, $(words $(CUDA_PROGRAMS)) programs and $(words $(CUDA_TESTS)) tests compile and link"
-include $(wildcard build/*/*.d build/*/src/*.d build/*/src/*/*.d)

build:
	@mkdir -p $@

tests-plain: $(addprefix build/plain/,$(TESTS) $(COMPANIONS))
tests-cuda:  $(addprefix build/cuda/,$(CUDA_TESTS)) $(CUDA_TRAINERS)
tests-asan:  $(addprefix build/asan/,$(TESTS))
tests-tsan:  $(addprefix build/tsan/,$(filter-out $(PURE),$(TESTS)))

CUDA_CHECK = command -v $(NVCC) >/dev/null || { echo nvcc is not here; exit 77; }; $(MAKE) --no-print-directory -s NVCC_DIR=build/nvcc90 NVCC_ARCHS="$(NVCC_TEST)" cuda-programs

# A check or program that does not build is counted as failed by tests/run, which ends with the
# totals: N passed, N failed, N skipped. Scripts run the examples.
test: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) $(EXAMPLES) build/bench_allreduce tests-cuda tests-plain
	@tests/run --timeout 300 check-separate=tests/header/separate.sh check-compile=tests/header/compile.sh \
	    --jobs $(JOBS) check-header='$(CHECK_HEADER)' cuda-programs='$(CUDA_CHECK)' $(addprefix build/plain/,$(PURE) $(CALM)) \
	    $(addprefix build/cuda/,$(CUDA_TESTS)) $(filter-out $(TIMED),$(SCRIPTS)) $(addprefix build/plain/,$(PATIENT)) \
	    --jobs 1 $(addprefix build/plain/,$(STRICT)) $(TIMED)

sanitize: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) tests-asan tests-tsan
	@TSAN_OPTIONS="halt_on_error=1 $(TSAN_OPTIONS)" tests/run --timeout 300 \
	    --jobs $(JOBS) $(addprefix build/asan/,$(PURE) $(CALM) $(ALONE)) $(addprefix build/tsan/,$(CALM) $(ALONE))

# Random kills, stalls, drops and joins for MINUTES=10, or until there were EVENTS; FLAVOUR=asan or tsan.
SOAK = $(addprefix build/$(or $(FLAVOUR),plain)/,test_elastic test_admit test_resume test_join)
soak: deps-test
	@$(MAKE) --no-print-directory -s $(SOAK)
	@TSAN_OPTIONS="halt_on_error=1 $(TSAN_OPTIONS)" tests/soak.py $(dir $(firstword $(SOAK))) --minutes $(or $(MINUTES),10) \
	    $(if $(EVENTS),--events $(EVENTS)) $(if $(SEED),--seed $(SEED))

# What it finds lies in build/fuzz and build/fuzz_wire as crash-*; tests/corpus and tests/corpus_net are what
# `make test` replays.
build/fuzz_%: tests/fuzz_%.c $(SOURCES) | build
	clang -std=c11 $(CPPFLAGS) $(STB) -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Isrc $< -o $@ $(LIBS)
fuzz: build/fuzz_readers build/fuzz_net
	@mkdir -p build/fuzz build/fuzz_wire
	cd build/fuzz && ../fuzz_readers -max_total_time=$(or $(FUZZ),60) -max_len=8192 -print_final_stats=1 . ../../tests/corpus
	cd build/fuzz_wire && ../fuzz_net -max_total_time=$(or $(FUZZ),60) -max_len=600 -print_final_stats=1 . ../../tests/corpus_net

# ---- installation: one header and its pkg-config file ----
INSTALLED = $(DESTDIR)$(PREFIX)/include/dreamddp.h $(DESTDIR)$(PREFIX)/share/pkgconfig/dreamddp.pc
VERSION   = $(shell sed -n 's/^\#define DDP_VERSION_STRING "\(.*\)"/\1/p' dreamddp.h)
install:
	install -d $(dir $(INSTALLED))
	install -m 644 dreamddp.h $(firstword $(INSTALLED))
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' dreamddp.pc.in > $(lastword $(INSTALLED))
	chmod 644 $(lastword $(INSTALLED))
uninstall:
	rm -f $(INSTALLED)

clean:
	rm -rf build
