# make               every program of examples/ and bench/ into build/
# make quickstart    the main job: five strategies over a slow link, two minutes
# make test          all checks and tests;  make sanitize: the tests under ASan+UBSan and TSan
# make fuzz          readers of files under libFuzzer (clang) for FUZZ=60 seconds
# make bench         all measurements of docs/benchmarks.md;  BENCH=--quick: a taste of them
# make header        dreamddp.h from src/;  make check-header: is it fresh, are its names right
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

EXAMPLES := $(patsubst examples/%.c,build/%,$(wildcard examples/*.c))
BENCHES  := $(patsubst bench/%.c,build/%,$(wildcard bench/*.c))
TESTS    := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))
SCRIPTS  := $(wildcard tests/test_*.sh tests/test_*.py)
SOURCES  := $(shell find src -name '*.[ch]')
# Tests of pure functions: no threads, nothing for TSan to see, no times that another test would change.
PURE := $(addprefix test_,adatopk compress corpus data deft env estimate fence image_ops images json jsonl knapsack louvain matching netspec \
        network osp_plan place place_search plan planned_models preserver profile report safetensors timeline topk tour weights workload)

# Scripts whose workers wait for one another, some of them by the clock.
TIMED := tests/test_programs.py tests/test_train_gpt.py

.DELETE_ON_ERROR:
.PHONY: all deps deps-test header check-header check-separate check-compile test sanitize \
        tests-plain tests-asan tests-tsan quickstart bench fuzz install uninstall clean

all: $(EXAMPLES) $(BENCHES)

deps:
	@tools/deps.sh build
deps-test:
	@tools/deps.sh test

# ---- programs: the generated header, nothing else ----
build/%: examples/%.c dreamddp.h $(wildcard examples/*.h) | deps build
	$(COMPILE) $(WARN) -I. $< -o $@ $(LIBS)
build/%: bench/%.c dreamddp.h $(wildcard bench/*.h examples/*.h) | deps build
	$(COMPILE) $(WARN) -I. -Iexamples $< -o $@ $(LIBS)

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
	@for b in bench/planners.py bench/allreduce.py bench/topk.py bench/sgemm.py bench/torch_gpt.py bench/torch_vision.py bench/overlap.py; do echo "== $$b"; python3 $$b $(BENCH) || [ $$? = 77 ] || exit 1; done

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
TEST_COMPILE = $(CC) -std=c11 $(CPPFLAGS) $(STB) -O1 $(DEBUG) $(WARN) $(SANITIZE) -DDDP_SEPARATE \
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
	$$(TEST_COMPILE) -Itests $$< build/$(1)/dreamddp.a -o $$@ $$(LIBS) -lcmocka
endef
$(foreach flavour,plain asan tsan,$(eval $(call TEST_RULES,$(flavour))))
-include $(wildcard build/*/*.d build/*/src/*.d build/*/src/*/*.d)

build:
	@mkdir -p $@

tests-plain: $(addprefix build/plain/,$(TESTS) $(COMPANIONS))
tests-asan:  $(addprefix build/asan/,$(TESTS))
tests-tsan:  $(addprefix build/tsan/,$(filter-out $(PURE),$(TESTS)))

# A check or program that does not build is counted as failed by tests/run, which ends with the
# totals: N passed, N failed, N skipped. Scripts run the examples.
test: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) tests-plain $(EXAMPLES)
	@tests/run check-separate=tests/header/separate.sh check-compile=tests/header/compile.sh \
	    --jobs $(JOBS) check-header='$(CHECK_HEADER)' $(addprefix build/plain/,$(PURE)) $(filter-out $(TIMED),$(SCRIPTS)) \
	    --jobs 1 $(addprefix build/plain/,$(filter-out $(PURE),$(TESTS))) $(TIMED)

sanitize: deps-test
	-@$(MAKE) --no-print-directory -s -k -j$(JOBS) tests-asan tests-tsan
	@TSAN_OPTIONS="halt_on_error=1 $(TSAN_OPTIONS)" tests/run --timeout 300 \
	    --jobs $(JOBS) $(addprefix build/asan/,$(PURE)) \
	    --jobs 1 $(addprefix build/asan/,$(filter-out $(PURE),$(TESTS))) $(addprefix build/tsan/,$(filter-out $(PURE),$(TESTS)))

# What it finds lies in build/fuzz as crash-*; tests/corpus is what `make test` replays.
build/fuzz_readers: tests/fuzz_readers.c $(SOURCES) | build
	clang -std=c11 $(CPPFLAGS) $(STB) -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Isrc $< -o $@ $(LIBS)
fuzz: build/fuzz_readers
	@mkdir -p build/fuzz
	cd build/fuzz && ../fuzz_readers -max_total_time=$(or $(FUZZ),60) -max_len=8192 -print_final_stats=1 . ../../tests/corpus

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
