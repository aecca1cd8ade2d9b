# Tests: src/ itself, so that debuggers and sanitizers name its files.
#   make test    make sanitize    make soak    make fuzz    make coverage
#
# The first line of a test says its class:
#   [pure]     pure functions: no threads, nothing for TSan to see, no times that another test would change
#   [calm]     threads, or programs, and no times: what runs beside them changes nothing. Both take what the others
#              leave of the processors
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
# Beside the others, by their leave: one more than there are processors, as some of them wait.
BESIDE    = $(shell expr 1 + $(JOBS))
# These see what a user sees: the generated header, and the shared library (under a sanitizer, the archive).
API_TESTS := $(filter api/%,$(TESTS))
scripts   = $(shell awk 'FNR > 2 { nextfile } /\[$(1)\]/ { print FILENAME }' $(SCRIPTS))
TIMED    := $(call scripts,timed)
ALONE_TOO := $(call scripts,strict)
# Those that take the longest begin first, so that no core is idle at the end.
longest   = $(filter $(addprefix %/,test_refusals test_join test_sweep test_ring test_elastic test_memory test_place test_recompute \
            test_elastic_training.py test_mpi.py test_presets.py test_python.py test_packages.py test_cuda_mutations.py),$(1))
ordered   = $(call longest,$(1)) $(filter-out $(call longest,$(1)),$(1))

.PHONY: test sanitize coverage testing same-output-list mutants storm soak fuzz tests-plain tests-asan tests-tsan tests-cov tests-cuda

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
build/o2/%: SANITIZE = -O2
build/cov/%: SANITIZE = --coverage -O0 -fprofile-update=atomic -Wl,--wrap=_exit
UNITS      := $(patsubst src/%.c,%.o,$(filter %.c,$(SOURCES)))
# what the scripts that compare with PyTorch and igraph run, and a worker of the storm
COMPANIONS := $(patsubst tests/%.c,%,$(wildcard tests/*/torch_*.c tests/*/igraph_*.c) tests/member/storm.c)
build/headers/dreamddp.h: src/dreamddp.h $(wildcard src/*/*.h)
	@mkdir -p $(@D)
	{ sed '/^#include ".*\.c"$$/d' $<; echo '#ifdef DREAMDDP_IMPLEMENTATION'; \
	    printf '#include "%s"\n' $(patsubst src/%,%,$(wildcard src/*/*.h)); echo '#endif'; } > $@
define TEST_RULES
build/$(1)/src/%.o: src/%.c
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -c $$< -o $$@
build/$(1)/src/heap.o build/$(1)/src/exit.o: build/$(1)/src/%.o: tests/%.c
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -c $$< -o $$@
build/$(1)/dreamddp.a: $(addprefix build/$(1)/src/,$(UNITS) heap.o $(if $(filter cov,$(1)),exit.o))
	@rm -f $$@
	$(AR) rcs $$@ $$^
$(addprefix build/$(1)/,$(filter-out $(API_TESTS),$(TESTS)) $(COMPANIONS)): build/$(1)/%: tests/%.c build/$(1)/dreamddp.a build/headers/dreamddp.h
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -Itests $$< build/$(1)/dreamddp.a -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
$(addprefix build/$(1)/,$(API_TESTS)): build/$(1)/%: tests/%.c dreamddp.h $(if $(filter plain,$(1)),build/lib/libdreamddp.so,build/$(1)/dreamddp.a)
	@mkdir -p $$(@D)
	$$(COMPILE) -D_GNU_SOURCE $$(DEBUG) $$(WARN) $$(SANITIZE) -I. $$(filter-out dreamddp.h,$$^) -Wl,-rpath,$$(CURDIR)/build/lib -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
endef
$(foreach flavour,plain asan tsan cov o2,$(eval $(call TEST_RULES,$(flavour))))
-include $(wildcard build/*/*.d build/*/*/*.d build/*/src/*/*.d)

tests-plain tests-asan tests-tsan tests-cov tests-cuda: | deps-test
tests-plain: $(addprefix build/plain/,$(TESTS) $(COMPANIONS))
tests-asan:  $(addprefix build/asan/,$(TESTS))
tests-tsan:  $(addprefix build/tsan/,$(filter-out $(PURE),$(TESTS)))
tests-cov:   $(addprefix build/cov/,$(TESTS))

CUDA_CHECK = command -v $(NVCC) >/dev/null || { echo nvcc is not here; exit 77; }; $(MAKE) --no-print-directory -s NVCC_DIR=build/nvcc90 NVCC_ARCHS="$(NVCC_TEST)" NVCC_HOST=-O0 cuda-programs

# A check or program that does not build is counted as failed by tools/run_tests.py, which ends with the
# totals: N passed, N failed, N skipped. Scripts run the examples.
test: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) lib $(EXAMPLES) build/vectors build/bench_allreduce tests-cuda tests-plain
	@tools/run_tests.py --timeout 600 --idle $(BESIDE) check-compile=tests/header/compile.sh check-separate=tests/header/separate.sh \
	    cuda-programs='$(CUDA_CHECK)' $(call ordered,$(filter-out $(TIMED) $(ALONE_TOO),$(SCRIPTS)) \
	        $(addprefix build/plain/,$(PURE) $(CALM)) $(addprefix build/cuda/,$(CUDA_TESTS))) \
	        check-header='$(CHECK_HEADER)' check-abi='tools/abi.py' house='tools/house.py --check' \
	    --jobs $(WAITING) $(call ordered,$(addprefix build/plain/,$(PATIENT))) \
	    --jobs 2 $(call ordered,$(TIMED)) --jobs 1 $(addprefix build/plain/,$(STRICT)) $(ALONE_TOO)

# Huge pages for the shadow halve what the kernel does for each process that a test starts. To clear the shadow of a block
# of some MiB, less than a thread's stack, where a new one would be mapped, takes up to half of the rest.
sanitize: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) tests-asan tests-tsan
	@TSAN_OPTIONS="halt_on_error=1 no_huge_pages_for_shadow=0 clear_shadow_mmap_threshold=6291456 $(TSAN_OPTIONS)" tools/run_tests.py --timeout 600 \
	    --idle $(BESIDE) $(call ordered,$(addprefix build/tsan/,$(CALM)) $(addprefix build/asan/,$(PURE) $(CALM))) \
	    --jobs $(WAITING) $(call ordered,$(addprefix build/asan/,$(PATIENT))) \
	    --jobs $(JOBS) $(call ordered,$(addprefix build/asan/,$(STRICT)) $(addprefix build/tsan/,$(ALONE)))

# Lines and branches of src/ that the tests of C reach, by room: tools/coverage.py --missing plan names the others.
coverage: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) tests-cov
	@find build/cov -name '*.gcda' -delete
	-@tools/run_tests.py --timeout 900 --idle $(JOBS) $(call ordered,$(addprefix build/cov/,$(PURE) $(CALM))) \
	    --jobs $(WAITING) $(call ordered,$(addprefix build/cov/,$(PATIENT))) --jobs 1 $(addprefix build/cov/,$(STRICT)) \
	    | tee build/cov/output
	@tools/coverage.py --json build/coverage.json

# What ONLY names here is a stage; to a program of tests it is the name of one of its functions.
unexport ONLY

# docs/testing.md; two hours for all of it. Of same-output: the tests without threads, but those that tell times.
testing: deps-test
	@tests/testing.py $(if $(ONLY),--only $(ONLY))
same-output-list:
	@echo $(filter-out sweep/%,$(PURE))

# Random kills, stalls, drops and joins for MINUTES=10, or until there were EVENTS=1000000, which STATE=FILE lets go on where it
# was; FLAVOUR=asan or tsan. DAY=dreamddp: the steps of a day under a watch of memory; DAY=all: of every strategy.
SOAK_IN = build/$(or $(FLAVOUR),plain)
soak: deps-test
	@$(MAKE) --no-print-directory -s $(addprefix $(SOAK_IN)/,member/test_elastic member/test_admit wire/test_resume member/test_join \
	    member/test_every_strategy member/storm)
	@TSAN_OPTIONS="halt_on_error=1 $(TSAN_OPTIONS)" tests/member/soak.py $(SOAK_IN) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(EVENTS),--events $(EVENTS)) $(if $(SEED),--seed $(SEED)) $(if $(STATE),--state $(STATE)) $(if $(DAY),--day --strategy $(DAY))

# 32 workers and 62 faults in half an hour;  STORM=--quick
storm: deps-test
	@$(MAKE) --no-print-directory -s build/plain/member/storm
	@bench/storm.py $(STORM)

# Conditions of the rooms that only compute, negated one at a time: ROOM=io, N=200 of them.
mutants: build/plain/dreamddp.a build/headers/dreamddp.h | deps-test
	@tests/mutate.py --jobs $(JOBS) $(if $(ROOM),--rooms $(ROOM)) $(if $(N),--sample $(N)) --check

# What it finds of fuzz_NAME lies in build/found_NAME as crash-*; `make test` replays tests/io/corpus*. The library is compiled
# once for all of them. packaging/oss-fuzz builds the same.
FUZZERS = readers net use frames
FUZZ_COMPILE = clang -std=c11 $(CPPFLAGS) $(STB) -O1 -g -fno-sanitize-recover=all -DDDP_SEPARATE
FUZZ_HEADERS = build/headers/dreamddp.h $(wildcard tests/io/*.h) $(PROGRAM_HEADERS)
build/fuzz_library.o: src/dreamddp.h $(SOURCES) | deps-test build
	$(FUZZ_COMPILE) -fsanitize=fuzzer-no-link,address,undefined -Isrc -DDREAMDDP_IMPLEMENTATION -x c -c $< -o $@
$(FUZZERS:%=build/fuzz_%): build/fuzz_%: tests/io/fuzz_%.c build/fuzz_library.o $(FUZZ_HEADERS)
	$(FUZZ_COMPILE) -fsanitize=fuzzer,address,undefined -Ibuild/headers -Isrc $< build/fuzz_library.o -o $@ $(LIBS)
fuzz: $(FUZZERS:%=build/fuzz_%)
	@set -e; for f in readers:8192 net:600 use:4096 frames:300; do \
	    name=$${f%:*}; corpus=$(CURDIR)/tests/io/corpus_$$name; [ -d $$corpus ] || corpus=$(CURDIR)/tests/io/corpus; \
	    mkdir -p build/found_$$name; echo "== fuzz_$$name"; \
	    (cd build/found_$$name && ../fuzz_$$name -max_total_time=$(or $(FUZZ),60) -max_len=$${f#*:} -timeout=60 \
	        -print_final_stats=1 . $$corpus); \
	done
