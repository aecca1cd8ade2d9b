# Tests: src/ itself, so that debuggers and sanitizers name its files.
#   make test    make sanitize    make soak    make fuzz
#
# The first line of a test says its class:
#   [pure]     pure functions: no threads, nothing for TSan to see, no times that another test would change
#   [calm]     threads, or programs, and no times: what runs beside them changes nothing
#   [patient]  waits by the clock with time to spare: TSan runs JOBS of them at a time, whose workers take many times
#              as long, so that twice as many run at a time without it
#   [strict]   strict about times: nothing else runs beside it in plain builds
#   [timed]    a script whose workers wait for one another, some of them by the clock: one other runs beside it
class     = $(basename $(shell awk 'FNR > 2 { nextfile } /\[$(1)\]/ { print substr(FILENAME, 7) }' $(wildcard tests/*/test_*.$(2))))
TESTS    := $(patsubst tests/%.c,%,$(wildcard tests/*/test_*.c))
SCRIPTS  := $(wildcard tests/*/test_*.sh tests/*/test_*.py)
PURE     := $(call class,pure,c)
CALM     := $(call class,calm,c)
STRICT   := $(call class,strict,c)
PATIENT   = $(filter-out $(PURE) $(CALM) $(STRICT),$(TESTS))
ALONE     = $(PATIENT) $(STRICT)
WAITING   = $(shell expr 2 \* $(JOBS))
# These see what a user sees: the generated header, and the shared library (under a sanitizer, the archive).
API_TESTS := $(filter api/%,$(TESTS))
scripts   = $(shell awk 'FNR > 2 { nextfile } /\[$(1)\]/ { print FILENAME }' $(SCRIPTS))
TIMED    := $(call scripts,timed)
ALONE_TOO := $(call scripts,strict)
# Those that take the longest begin first, so that no core is idle at the end.
longest   = $(filter $(addprefix %/,test_refusals test_join test_ring test_elastic test_memory test_place test_recompute \
            test_elastic_training.py test_mpi.py test_presets.py test_python.py test_packages.py test_cuda_mutations.py),$(1))
ordered   = $(call longest,$(1)) $(filter-out $(call longest,$(1)),$(1))

.PHONY: test sanitize soak fuzz tests-plain tests-asan tests-tsan tests-cuda

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
COMPANIONS := $(patsubst tests/%.c,%,$(wildcard tests/*/torch_*.c tests/*/igraph_*.c))
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
$(addprefix build/$(1)/,$(filter-out $(API_TESTS),$(TESTS)) $(COMPANIONS)): build/$(1)/%: tests/%.c build/$(1)/dreamddp.a build/headers/dreamddp.h
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -Itests $$< build/$(1)/dreamddp.a -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
$(addprefix build/$(1)/,$(API_TESTS)): build/$(1)/%: tests/%.c dreamddp.h $(if $(filter plain,$(1)),build/lib/libdreamddp.so,build/$(1)/dreamddp.a)
	@mkdir -p $$(@D)
	$$(COMPILE) -D_GNU_SOURCE $$(DEBUG) $$(WARN) $$(SANITIZE) -I. $$(filter-out dreamddp.h,$$^) -Wl,-rpath,$$(CURDIR)/build/lib -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
endef
$(foreach flavour,plain asan tsan,$(eval $(call TEST_RULES,$(flavour))))
-include $(wildcard build/*/*.d build/*/*/*.d build/*/src/*/*.d)

tests-plain tests-asan tests-tsan tests-cuda: | deps-test
tests-plain: $(addprefix build/plain/,$(TESTS) $(COMPANIONS))
tests-asan:  $(addprefix build/asan/,$(TESTS))
tests-tsan:  $(addprefix build/tsan/,$(filter-out $(PURE),$(TESTS)))

CUDA_CHECK = command -v $(NVCC) >/dev/null || { echo nvcc is not here; exit 77; }; $(MAKE) --no-print-directory -s NVCC_DIR=build/nvcc90 NVCC_ARCHS="$(NVCC_TEST)" NVCC_HOST=-O0 cuda-programs

# A check or program that does not build is counted as failed by tools/run_tests.py, which ends with the
# totals: N passed, N failed, N skipped. Scripts run the examples.
test: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) lib $(EXAMPLES) build/vectors build/bench_allreduce tests-cuda tests-plain
	@tools/run_tests.py --timeout 600 check-separate=tests/header/separate.sh check-compile=tests/header/compile.sh \
	    --jobs $(JOBS) cuda-programs='$(CUDA_CHECK)' $(call ordered,$(filter-out $(TIMED) $(ALONE_TOO),$(SCRIPTS)) \
	        $(addprefix build/plain/,$(PURE) $(CALM)) $(addprefix build/cuda/,$(CUDA_TESTS))) \
	        check-header='$(CHECK_HEADER)' check-abi='tools/abi.py' house='tools/house.py --check' \
	    --jobs $(WAITING) $(call ordered,$(addprefix build/plain/,$(PATIENT))) \
	    --jobs 2 $(call ordered,$(TIMED)) --jobs 1 $(addprefix build/plain/,$(STRICT)) $(ALONE_TOO)

# Huge pages for the shadow halve what the kernel does for each process that a test starts.
sanitize: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) tests-asan tests-tsan
	@TSAN_OPTIONS="halt_on_error=1 no_huge_pages_for_shadow=0 $(TSAN_OPTIONS)" tools/run_tests.py --timeout 600 \
	    --jobs $(JOBS) $(call ordered,$(addprefix build/asan/,$(PURE) $(CALM))) \
	    --jobs $(WAITING) $(call ordered,$(addprefix build/asan/,$(PATIENT))) \
	    --jobs $(JOBS) $(call ordered,$(addprefix build/asan/,$(STRICT)) $(addprefix build/tsan/,$(CALM) $(ALONE)))

# Random kills, stalls, drops and joins for MINUTES=10, or until there were EVENTS; FLAVOUR=asan or tsan.
SOAK_IN = build/$(or $(FLAVOUR),plain)
soak: deps-test
	@$(MAKE) --no-print-directory -s $(addprefix $(SOAK_IN)/,member/test_elastic member/test_admit wire/test_resume member/test_join)
	@TSAN_OPTIONS="halt_on_error=1 $(TSAN_OPTIONS)" tests/member/soak.py $(SOAK_IN) --minutes $(or $(MINUTES),10) \
	    $(if $(EVENTS),--events $(EVENTS)) $(if $(SEED),--seed $(SEED))

# What it finds lies in build/fuzz and build/fuzz_wire as crash-*; tests/io/corpus and tests/io/corpus_net are what
# `make test` replays.
build/fuzz_%: tests/io/fuzz_%.c $(SOURCES) | deps-test build
	clang -std=c11 $(CPPFLAGS) $(STB) -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Isrc $< -o $@ $(LIBS)
fuzz: build/fuzz_readers build/fuzz_net
	@mkdir -p build/fuzz build/fuzz_wire
	cd build/fuzz && ../fuzz_readers -max_total_time=$(or $(FUZZ),60) -max_len=8192 -print_final_stats=1 . ../../tests/io/corpus
	cd build/fuzz_wire && ../fuzz_net -max_total_time=$(or $(FUZZ),60) -max_len=600 -print_final_stats=1 . ../../tests/io/corpus_net
