# Tests of src/ itself, so that debuggers and sanitizers report its files.
#   make test                  the main tests, in five minutes; needs a C and a C++ compiler, stb_ds, cmocka and python3
#   make test MODULE=wire      the tests of tests/wire;  NAME=corrupt_frame: those whose name contains it
#   make test-all              every test: those of `make test` and those that are slow or need more packages
#   make sanitize              the tests with AddressSanitizer and UBSan, and with ThreadSanitizer
#   make soak    make fuzz     make coverage
# The first line of a test chooses its suite: tools/run_tests.py explains the words in brackets.
TESTS     := $(patsubst tests/%.c,%,$(wildcard tests/*/test_*.c))
# These tests compile with the generated header, as user programs do.
API_TESTS := $(filter api/%,$(TESTS))

.PHONY: test test-all sanitize coverage testing same-output-list mutants storm soak fuzz timing

# Each file of src/ is compiled once per flavour and stored in an archive. A test includes the headers; a test of private
# functions includes their file of src/, and a test that counts allocations has its own tests/heap.h. The linker takes the
# remaining symbols from the archive. The flavour `tls` is `plain` with OpenSSL, and shares all objects that do not use it.
TEST_COMPILE = $(CC) -std=c11 $(CPPFLAGS) $(STB) -O1 $(DEBUG) $(WARN) $(SANITIZE) $(TEST_TLS) -DDDP_SEPARATE \
               -include tests/heap.h -Ibuild/headers -Isrc -MMD -MP -MF $@.d -MT $@
TEST_LINK    = $(CC) $(SANITIZE) $(filter %.o %.a,$^) -o $@ $(TEST_TLS_LIBS) $(LIBS) -lcmocka
DEBUG = -g1
build/plain/%: TEST_TLS =
build/plain/%: TEST_TLS_LIBS =
TEST_TLS      = $(TLS)
TEST_TLS_LIBS = $(TLS_LIBS)
build/asan/%: SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all
build/tsan/%: SANITIZE = -fsanitize=thread
build/o2/%: SANITIZE = -O2
build/cov/%: SANITIZE = --coverage -O0 -fprofile-update=atomic -Wl,--wrap=_exit
UNITS      := $(patsubst src/%.c,%.o,$(filter %.c,$(SOURCES)))
TLS_UNITS  := wire/tls.o wire/tls_keys.o
# programs that scripts compare with PyTorch and igraph, and a worker of the storm
COMPANIONS := $(patsubst tests/%.c,%,$(wildcard tests/*/torch_*.c tests/*/igraph_*.c) tests/member/storm.c)
# Tests that assert durations: they run one at a time, on a quiet machine, by `make timing`.
TIMINGS    := $(patsubst bench/%.c,%,$(wildcard bench/timing/time_*.c))
build/headers/dreamddp.h: src/dreamddp.h $(wildcard src/*/*.h src/*/*/*.h)
	@mkdir -p $(@D)
	{ sed '/^#include ".*\.c"$$/d' $<; echo '#ifdef DREAMDDP_IMPLEMENTATION'; \
	    printf '#include "%s"\n' $(patsubst src/%,%,$(wildcard src/*/*.h src/*/*/*.h)); echo '#endif'; } > $@
define TEST_RULES
# tests/header/test_alone.py reads the warnings.
$(addprefix build/$(1)/src/,$(UNITS)): build/$(1)/src/%.o: src/%.c build/cc.flags
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -Wmissing-prototypes $$(FRAMES) -c $$< -o $$@ 2>$$@.warnings; code=$$$$?; cat $$@.warnings >&2; exit $$$$code
build/$(1)/src/heap.o build/$(1)/src/exit.o build/$(1)/src/select.o: build/$(1)/src/%.o: tests/%.c
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -c $$< -o $$@
build/$(1)/dreamddp.a: $(if $(filter tls,$(1)),$(addprefix build/plain/src/,$(filter-out $(TLS_UNITS),$(UNITS)) heap.o) \
        $(addprefix build/tls/src/,$(TLS_UNITS)),$(addprefix build/$(1)/src/,$(UNITS) heap.o $(if $(filter cov,$(1)),exit.o)))
	@rm -f $$@
	$(AR) rcs $$@ $$^
$(patsubst %,build/$(1)/%.o,$(filter-out $(API_TESTS),$(TESTS)) $(COMPANIONS)): build/$(1)/%.o: tests/%.c build/headers/dreamddp.h build/cc.flags
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -Itests -c $$< -o $$@
$(patsubst %,build/$(1)/%.o,$(TIMINGS)): build/$(1)/%.o: bench/%.c build/headers/dreamddp.h
	@mkdir -p $$(@D)
	$$(TEST_COMPILE) -Itests -c $$< -o $$@
$(addprefix build/$(1)/,$(filter-out $(API_TESTS),$(TESTS)) $(COMPANIONS) $(TIMINGS)): build/$(1)/%: build/$(1)/%.o build/$(1)/src/select.o build/$(1)/dreamddp.a
	$$(TEST_LINK)
$(patsubst %,build/$(1)/%.o,$(API_TESTS)): build/$(1)/%.o: tests/%.c dreamddp.h build/cc.flags
	@mkdir -p $$(@D)
	$$(COMPILE) -D_GNU_SOURCE $$(DEBUG) $$(WARN) $$(SANITIZE) -I. -c $$< -o $$@
$(addprefix build/$(1)/,$(API_TESTS)): build/$(1)/%: build/$(1)/%.o build/$(1)/src/select.o build/$(1)/dreamddp.a
	$$(TEST_LINK)
endef
$(foreach flavour,plain tls asan tsan cov o2,$(eval $(call TEST_RULES,$(flavour))))
# Recompiled when OpenSSL is installed or removed.
$(foreach f,tls asan tsan cov o2,$(patsubst %,build/$(f)/src/%,$(TLS_UNITS)) $(patsubst %,build/$(f)/%.o,member/test_join_tls member/test_join_flood \
    wire/test_resume_tls wire/test_security_tls config/test_compatibility)): build/tls.flags
.SECONDARY:
-include $(wildcard build/*/*.d build/*/*/*.d build/*/src/*/*.d build/*/src/*/*/*.d)

# Some systems have variables of these names (WSL sets NAME), so only the command line counts.
given     = $(if $(filter command line,$(origin $(1))),$(if $($(1)),--$(2)='$(subst ','\'',$($(1)))'))
RUN_TESTS = tools/run_tests.py $(call given,MODULE,module) $(call given,NAME,name) $(call given,NAMES,names)
test: deps-test
	@$(RUN_TESTS) $(call given,JOBS,jobs) --suite test
test-all: deps-test-all
	@$(RUN_TESTS) $(call given,JOBS,jobs) --suite test-all

# Huge pages for the shadow memory halve the kernel time for each process that a test starts. Clearing the shadow of a block
# of a few MiB (less than a thread's stack) instead of mapping a new one saves up to half of the remaining time.
sanitize: deps-test-all
	@TSAN_OPTIONS="halt_on_error=1 no_huge_pages_for_shadow=0 clear_shadow_mmap_threshold=6291456 $(TSAN_OPTIONS)" $(RUN_TESTS) --suite sanitize --jobs $(shell expr 2 \* $(JOBS))

# Durations, rates and ratios of times, one program at a time: part of `make bench`.
timing: deps-test
	@$(MAKE) --no-print-directory -s -k -j$(JOBS) $(addprefix build/plain/,$(TIMINGS)) $(addprefix build/,train_gpt netcheck plan bench_allreduce)
	@tools/run_tests.py --jobs 1 $(call given,NAMES,names) $(addprefix build/plain/,$(TIMINGS)) $(wildcard bench/timing/time_*.py bench/timing/time_*.sh)

# Lines and branches of src/ that the tests in C reach: those of `make test`, then all of them, by module.
# tools/coverage.py --missing plan lists the lines that no test reaches.
coverage: deps-test-all
	@find build/cov -name '*.gcda' -delete 2>/dev/null || true
	-@$(RUN_TESTS) --suite coverage --part test
	@tools/coverage.py --title "make test" --without wire/tls.c,wire/mpi.c --json build/coverage_test.json
	-@$(RUN_TESTS) --suite coverage --part rest
	@tools/coverage.py --title "make test-all" --json build/coverage.json

# Writes docs/results/testing.md; takes two hours. same-output runs the tests without threads, except those that print times.
testing: deps-test-all
	@tests/testing.py $(if $(ONLY),--only $(ONLY))
same-output-list:
	@awk 'FNR > 1 { nextfile } /\[[^]]*pure/ { print substr(FILENAME, 7) }' tests/*/test_*.c | grep -v ^sweep/ | sed 's/\.c$$//'

# Random kills, stalls, drops and joins for MINUTES=10, or until EVENTS=1000000 have occurred; STATE=FILE resumes an interrupted
# run; FLAVOUR=asan or tsan. DAY=dreamddp: runs the steps of a day and watches the memory; DAY=all: with every strategy.
SOAK_IN = build/$(or $(FLAVOUR),plain)
soak: deps-test-all
	@$(MAKE) --no-print-directory -s $(addprefix $(SOAK_IN)/,member/test_elastic member/test_admit wire/test_resume member/test_join member/test_entry \
	    member/test_every_strategy member/storm)
	@TSAN_OPTIONS="halt_on_error=1 $(TSAN_OPTIONS)" tests/member/soak.py $(SOAK_IN) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(EVENTS),--events $(EVENTS)) $(if $(SEED),--seed $(SEED)) $(if $(STATE),--state $(STATE)) $(if $(DAY),--day --strategy $(DAY))

# 32 workers and 62 faults in half an hour;  STORM=--quick
storm: deps-test
	@$(MAKE) --no-print-directory -s build/plain/member/storm
	@bench/storm.py $(STORM)

# Mutation testing of the pure-compute modules: MODULE=io selects one, N=200 a sample of conditions.
mutants: build/plain/dreamddp.a build/headers/dreamddp.h | deps-test
	@tests/mutate.py --jobs $(JOBS) $(if $(MODULE),--modules $(MODULE)) $(if $(N),--sample $(N)) --check

# Findings of fuzz_NAME are in build/found_NAME as crash-*; `make test` replays tests/io/corpus*. The library is compiled
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
	    name=$${f%:*}; corpus="$(CURDIR)/tests/io/corpus_$$name"; [ -d "$$corpus" ] || corpus="$(CURDIR)/tests/io/corpus"; \
	    mkdir -p build/found_$$name; echo "== fuzz_$$name"; \
	    (cd build/found_$$name && ../fuzz_$$name -max_total_time=$(or $(FUZZ),60) -max_len=$${f#*:} -timeout=60 \
	        -print_final_stats=1 . "$$corpus"); \
	done
