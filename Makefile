# make               builds every program of examples/ and bench/ into build/
# make quickstart    compares five strategies over a slow link, in a minute and a half
# make test          the tests, in at most five minutes;  MODULE=wire: the tests of tests/wire;  NAME=corrupt_frame: by name
# make test-all      every test, in at most 18 minutes;  make sanitize: the tests with ASan and UBSan, and with TSan
# make testing       measures the tests for docs/results/testing.md: coverage, sweeps, mutations, a storm;  ONLY=coverage,..
# make mutants, make storm, make soak   mutation testing, a run with many faults, hours of faults: tools/tests.mk
# make fuzz          fuzzes the readers of files and of the network with libFuzzer (clang) for FUZZ=60 seconds
# make bench         all measurements of docs/results/benchmarks.md;  BENCH=--quick: short runs
# make claims        compares every claim of the five papers with this library, in docs/results/claims/index.md;  ONLY=deft-fig10-vgg19,..: some
# make header        writes dreamddp.h from src/, and the Python binding;  make check-header: checks that both are up to date, and all names
# make check-abi     checks that programs linked with the last version of the library still work
# make house         checks the order of modules and files of src/ and accesses to other modules; prints sizes by module
# make cuda          compiles and links the GPU companion with nvcc for sm_80 and sm_90a, prints registers and spills, checks machine code
# make gpu-check     on a machine with a GPU: all GPU tests, training compared with the CPU, bench/gpu.py
# make gallery       runs every example and writes docs/gallery.md;  ONLY=name: one entry
# make split         build/dreamddp.h and build/dreamddp.c;  make lib: build/lib/libdreamddp.a and .so
# make install       installs the header and the libraries; PREFIX=/usr/local DESTDIR=
# pip install ./python   the Python package (docs/tutorials/pytorch.md);  make wheel: its manylinux wheel and sdist into build/wheel
# Each target installs its own dependencies. More targets: tools/tests.mk, tools/cuda.mk, tools/install.mk.
CC      ?= cc
CFLAGS  ?= -O2
PREFIX  ?= /usr/local
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
export CC
ifeq ($(origin CXX)$(shell command -v g++),default)
CXX := clang++
export CXX
endif
export DDP_DATA ?= data

WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wconversion
# A thread has 128 KiB of stack with musl and 512 KiB on macOS, so no function of the library or the programs may use more than
# 16 KiB. Frames are larger with a sanitizer.
FRAMES    = $(if $(findstring -fsanitize,$(SANITIZE) $(CFLAGS)),,-Wframe-larger-than=16384)
export CPPFLAGS
STB      := -isystem build/include   # tools/deps.sh downloads stb_ds.h to this folder
LIBS     := -lm -lpthread
COMPILE   = $(CC) -std=c11 $(CPPFLAGS) $(STB) $(CFLAGS)

# Checked once: with OpenSSL 3 the tests and the programs that open connections have TLS.
OPENSSL   = $(eval OPENSSL := $(shell printf '\043include <openssl/ssl.h>\nint main(void) { return OPENSSL_VERSION_MAJOR < 3 || !SSL_CTX_new; }\n' | \
            $(CC) $(CPPFLAGS) -x c - -lssl -lcrypto -o /dev/null 2>/dev/null && echo yes))$(OPENSSL)
TLS       = $(if $(OPENSSL),-DDDP_USE_OPENSSL)
TLS_LIBS  = $(if $(TLS),-lssl -lcrypto)

built_of  = $(patsubst %.c,build/%,$(notdir $(1)))
EXAMPLES := $(call built_of,$(wildcard examples/*.c examples/*/*.c))
BENCHES  := $(call built_of,$(wildcard bench/bench_*.c))
SOURCES  := $(shell find src -name '*.[ch]')

.DELETE_ON_ERROR:
.PHONY: all deps deps-header deps-test deps-test-all FORCE quickstart bench claims gallery cli-pages header check-header check-abi check-separate check-compile house clean

all: $(EXAMPLES) build/vectors $(BENCHES)

deps:
	@tools/deps.sh build
deps-header:
	@tools/deps.sh header
deps-test:
	@tools/deps.sh test
deps-test-all:
	@tools/deps.sh test-all

# ---- programs: they need only the generated header, and MPI and OpenSSL if installed ----
# The library is compiled once for all of them, as its header with DREAMDDP_IMPLEMENTATION; a program then sees
# the declarations and the includes of platform.h. The command in the first comment of a program, which compiles both, also
# works. The programs of WHOLE, which measure private functions, are built that way. The programs of INSIDE call some
# private functions (the JSON reader), so the object exports these too.
WHOLE  := bench_ops bench_topk
INSIDE := $(addprefix build/,broker compnode netcheck)
APART  = -D_GNU_SOURCE -DDDP__IMPLEMENTED -include src/base/platform.h -Isrc
build/dreamddp.o: dreamddp.h build/mpi.flags build/tls.flags | deps
	$(COMPILE) $(WARN) $(FRAMES) $(TLS) -DDDP_LIB= -DDREAMDDP_IMPLEMENTATION $$(sed 's/ -[lLW][^ ]*//g' build/mpi.flags) -x c -c $< -o $@
$(addprefix build/,$(WHOLE)): APART =
$(addprefix build/,$(WHOLE)): LIBRARY =
LIBRARY = build/dreamddp.o
$(INSIDE): APART = -DDDP_SEPARATE -Ibuild/headers -Isrc
$(INSIDE): build/headers/dreamddp.h
PROGRAM_HEADERS := $(wildcard examples/*/*.h bench/*.h)
$(foreach c,$(wildcard examples/*.c examples/*/*.c bench/bench_*.c),$(eval $(call built_of,$(c)): $(c)))
$(filter-out build/bench_sgemm,$(EXAMPLES) $(BENCHES)): build/dreamddp.o $(PROGRAM_HEADERS)
	$(COMPILE) $(WARN) $(FRAMES) $(APART) -I. $(TLS) $(filter %.c,$^) $(LIBRARY) -o $@ $$(cat build/mpi.flags) $(LIBS) $(TLS_LIBS)

# The programs of `make test`, in build/test: linked with the objects of the tests, without MPI and OpenSSL.
TEST_PROGRAMS := $(patsubst build/%,build/test/%,$(EXAMPLES)) build/test/bench_allreduce
$(foreach c,$(wildcard examples/*.c examples/*/*.c) bench/bench_allreduce.c,$(eval build/test/$(notdir $(basename $(c))): $(c)))
$(patsubst build/%,build/test/%,$(INSIDE)): APART = -DDDP_SEPARATE -Ibuild/headers -Isrc
$(TEST_PROGRAMS): build/plain/dreamddp.a $(PROGRAM_HEADERS) build/headers/dreamddp.h
	@mkdir -p $(@D)
	$(COMPILE) -O0 $(WARN) $(FRAMES) $(APART) -I. $(filter %.c,$^) build/plain/dreamddp.a -o $@ $(LIBS)
build/test/vectors: examples/vectors.cpp build/plain/dreamddp.a
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(CPPFLAGS) $(STB) -O0 $(WARN) $(APART) -I. $(filter %.cpp %.a,$^) -o $@ $(LIBS)

build/vectors: examples/vectors.cpp build/dreamddp.o dreamddp.h
	$(CXX) -std=c++17 $(CPPFLAGS) $(STB) $(CFLAGS) $(WARN) $(APART) -I. $(filter %.cpp %.o,$^) -o $@ $$(cat build/mpi.flags) $(LIBS) $(TLS_LIBS)

# The flags of mpicc for --transport mpi; empty if MPI cannot be linked. A program that does not use this transport never
# initialises MPI and needs no mpirun.
build/mpi.flags: FORCE | build
	@printf '#include <mpi.h>\nint main(void) { return MPI_Finalize(); }\n' >$@.c; : >$@.new; \
	flags="$$(mpicc -show 2>/dev/null | sed 's/^[^ ]* *//; s/ -I/ -isystem /g; s/^-I/-isystem /')"; \
	[ -z "$$flags" ] || ! $(CC) $$flags $@.c $$flags -o $@.try 2>/dev/null || echo "-DDDP_USE_MPI $$flags" >$@.new; \
	cmp -s $@.new $@ || cp $@.new $@; rm -f $@.c $@.try $@.new

# Rewritten only if OpenSSL is installed or removed, or the compiler changes. Files that depend on them are then recompiled.
build/tls.flags: FORCE | build
	@echo "$(TLS)" | cmp -s - $@ || echo "$(TLS)" >$@
build/cc.flags: FORCE | build
	@echo "$(CC) $(CPPFLAGS)" | cmp -s - $@ || echo "$(CC) $(CPPFLAGS)" >$@
FORCE:

# the reference of bench/transport.py: plain MPI_Allreduce
build/mpi_allreduce: bench/mpi_allreduce.c | deps-test-all build
	mpicc -O2 $(WARN) $< -o $@

# compares with OpenBLAS if it can be linked
build/bench_sgemm: dreamddp.h $(PROGRAM_HEADERS) | deps build
	@blas=; echo '#include <cblas.h>' >$@.c; echo 'int main(void) { return 0; }' >>$@.c; \
	$(CC) $@.c -lopenblas -o $@.try 2>/dev/null && blas="-DDDP_USE_CBLAS -lopenblas"; rm -f $@.c $@.try; \
	set -x; $(COMPILE) $(WARN) -I. $(filter %.c,$^) -o $@ $$blas $(LIBS)

quickstart: build/quickstart
	build/quickstart

# Takes half an hour on a quiet machine, six minutes with BENCH=--quick.
bench: deps-test-all all timing
	@for b in $(BENCHES); do echo "== $$b"; $$b $(BENCH) || exit 1; done
	@for b in bench/planners.py bench/transport.py bench/topk.py bench/sgemm.py bench/torch_gpt.py bench/torch_vision.py bench/overlap.py bench/schedules.py bench/deft.py bench/servers.py bench/served.py bench/slow_links.py bench/stream_grid.py bench/accuracy.py bench/convergence.py bench/emulation.py bench/churn.py bench/placement.py bench/pipeline.py bench/fence.py bench/python_ddp.py bench/simulate.py bench/choice.py bench/predict.py bench/place.py bench/peers.py; do echo "== $$b"; python3 $$b $(BENCH) || [ $$? = 77 ] || exit 1; done

# Writes docs/results/claims/index.md from bench/claims_cases.py; takes forty minutes on a quiet machine. Cases build the tests
# that they run.
CLAIMS = $(addprefix build/,plan train_gpt train_image quickstart broker compnode bench_topk) $(filter build/simulate,$(EXAMPLES))
claims: deps-test-all $(CLAIMS)
	@bench/claims.py $(if $(ONLY),--only $(ONLY))

# Writes docs/gallery.md and its pictures; builds the programs that it runs.
gallery: deps-header
	@tools/gallery.py $(ONLY)

# docs/reference/cli from --help
CLI = $(addprefix build/,train_gpt train_image simulate quickstart plan netcheck ddprun broker compnode)
cli-pages: $(CLI)
	@tools/cli_pages.py

# ---- the header ----
header: | deps-header
	@tools/amalgamate.py
	@tools/python_binding.py
CHECK_HEADER := tools/amalgamate.py --check && tools/check_names.py && tools/check_docs.py && tools/python_binding.py --check
check-header: | deps deps-header
	@$(CHECK_HEADER)
check-abi: lib
	@tools/abi.py
check-separate: | deps
	@tests/header/separate.sh
check-compile: | deps-test-all
	@tests/header/compile.sh
house: | deps-header
	@tools/house.py

build:
	@mkdir -p $@
clean:
	rm -rf build

include tools/tests.mk tools/cuda.mk tools/docs.mk tools/install.mk
