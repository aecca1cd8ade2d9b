# The GPU companion: on any machine beside a stand-in for CUDA, with nvcc, and on a GPU.
#   make tests-cuda    make cuda    make gpu-check
#   make lib-cuda      build/lib/libdreamddp_cuda.so: the library and its companion, for Python
.PHONY: cuda cuda-programs gpu-check lib-cuda

# On any machine: the text of its kernels compiled as C++17 against the stand-in of tests/cuda_on_cpu. -Wno-psabi: g++ tells
# of old compilers where a map of the copy engine, aligned to 128 bytes, is a kernel's argument.
CUDA_TESTS   := $(if $(shell command -v $(firstword $(CXX))),$(patsubst tests/%.cu,%,$(wildcard tests/cuda/test_cuda_*.cu)))
CUDA_COMPILE  = $(CXX) -std=c++17 $(CPPFLAGS) $(STB) -O1 -ffp-contract=off $(DEBUG) $(WARN) -Wno-psabi $(SANITIZE) -DDDP_CUDA_ON_CPU -DDDP_SEPARATE \
                -include tests/heap.h -isystem tests/cuda_on_cpu -Ibuild/headers -Isrc -Itests -MMD -MP -MF $@.d -MT $@
build/headers/dreamddp_cuda.cuh: src/dreamddp_cuda.cuh
	@mkdir -p $(@D)
	cp $< $@
# What needs no more of the companion than its API is linked with it.
CUDA_LINKED  := $(addprefix build/cuda/cuda/test_cuda_,pipe sends)
$(CUDA_LINKED): build/cuda/companion.o
$(CUDA_LINKED): private COMPANION = -DDDP__CUDA_IMPLEMENTED -x none build/cuda/companion.o
define CUDA_RULES
$(addprefix build/$(1)/,$(CUDA_TESTS)): build/$(1)/%: tests/%.cu build/plain/dreamddp.a build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh \
        $(wildcard tests/cuda_on_cpu/*.h tests/cuda_on_cpu/*/*.h)
	@mkdir -p $$(@D)
	$$(CUDA_COMPILE) $$(COMPANION) -x c++ $$< -x none build/plain/dreamddp.a -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
endef
# The trainers on the stand-in, run whole by tests/cuda/test_cuda_programs.py: the kernels are compiled once.
build/cuda/companion.o: tests/header/cuda.cu build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh
	@mkdir -p $(@D)
	$(CUDA_COMPILE) -Dmain=ddp__unused_main -c -x c++ $< -o $@
CUDA_TRAINERS := build/cuda/train_gpt build/cuda/train_image
$(CUDA_TRAINERS): build/cuda/%: examples/train/%.c build/cuda/companion.o build/plain/dreamddp.a $(PROGRAM_HEADERS)
	$(CUDA_COMPILE) -DDDP__CUDA_IMPLEMENTED -x c++ $< -x none build/cuda/companion.o build/plain/dreamddp.a -o $@ $(LIBS) $(TLS_LIBS)
# private: the archive beside them stays plain
build/cuda-asan/%: private SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all
$(foreach flavour,cuda cuda-asan,$(eval $(call CUDA_RULES,$(flavour))))
tests-cuda: $(addprefix build/cuda/,$(CUDA_TESTS)) $(CUDA_TRAINERS)

# With nvcc: `make cuda` compiles and links everything and prints what each kernel takes; it runs nothing. The whole
# companion is compiled once, for both architectures, and programs are linked with it; a GPU program by one command, as
# their first comments say, takes the same text. `make cuda-programs` leaves the tests out; it is a part of `make test`
# where nvcc is, for one architecture and with NVCC_HOST=-O0, which is the same on the GPU and takes a third less time.
# -Wshadow is for g++ alone: a header of CUDA declares the name half.
NVCC         ?= nvcc
NVCC_DIR     ?= build/nvcc
NVCC_ARCHS   ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a
NVCC_TEST    ?= -gencode arch=compute_90a,code=sm_90a
NVCC_HOST    ?= -O2
NVCC_WARN    ?= -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror
NVCC_COMPILE  = $(NVCC) -std=c++17 --threads 2 $(STB) $(NVCC_WARN) -MMD -MP -MF $@.d -MT $@
NVCC_PROGRAM  = $(NVCC_COMPILE) $(NVCC_TEST) -DDDP__IMPLEMENTED -DDDP__CUDA_IMPLEMENTED -include src/base/platform.h -Isrc -I.
NVCC_LIBS     = -lcublas -lcublasLt -lnccl -lpthread
CUDA_PROGRAMS = $(addprefix $(NVCC_DIR)/,$(notdir $(basename $(shell grep -ls dreamddp_cuda.cuh examples/*.cu examples/*/*.c bench/*.cu))))
$(NVCC_DIR):
	@mkdir -p $@
$(NVCC_DIR)/kernels.o: tests/header/cuda.cu dreamddp_cuda.cuh dreamddp.h | deps $(NVCC_DIR)
	$(NVCC_COMPILE) $(NVCC_ARCHS) $(NVCC_HOST) -Xptxas -v -Dmain=ddp__unused_main -I. -c $< -o $@ >$(@:.o=.txt) 2>&1 || { cat $(@:.o=.txt); exit 1; }
$(NVCC_DIR)/%: examples/train/%.c $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) -x cu $< -Xlinker $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(NVCC_DIR)/%: examples/%.cu $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) $< $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(NVCC_DIR)/%: bench/%.cu $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) $< $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(addprefix $(NVCC_DIR)/,$(CUDA_TESTS)): $(NVCC_DIR)/%: tests/%.cu build/plain/dreamddp.a build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh | deps-test
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $(NVCC_TEST) -DDDP_SEPARATE -include tests/heap.h -Ibuild/headers -Isrc -Itests $< build/plain/dreamddp.a -o $@ $(NVCC_LIBS) $(LIBS) $(TLS_LIBS) -lcmocka
build/lib/libdreamddp_cuda.so: dreamddp_cuda.cuh dreamddp.h | deps
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 --threads 2 $(STB) $(NVCC_ARCHS) $(NVCC_HOST) -DDREAMDDP_IMPLEMENTATION -Xcompiler -fPIC,-fvisibility=hidden \
	    '-DDDP_API=extern "C" __attribute__((visibility("default")))' -shared -x cu $< -o $@ $(NVCC_LIBS)
lib-cuda: build/lib/libdreamddp_cuda.so
# With a GPU: GPU_CHECK="--small --sanitize --no-bench" or any of them. Without one it says so.
gpu-check:
	-@tools/deps.sh build
	@tools/gpu_check.py $(GPU_CHECK) || [ $$? = 77 ]
cuda-programs: $(NVCC_DIR)/kernels.o $(CUDA_PROGRAMS) | deps-header
	@tools/ptxas.py $(NVCC_DIR)/kernels.txt
cuda: deps-test
	@command -v $(firstword $(NVCC)) >/dev/null || { echo "make cuda: $(firstword $(NVCC)) is not here: install the CUDA toolkit, or set NVCC" >&2; exit 1; }
	@$(MAKE) --no-print-directory cuda-programs $(addprefix $(NVCC_DIR)/,$(CUDA_TESTS))
	@echo "make cuda: all kernels, $(words $(CUDA_PROGRAMS)) programs and $(words $(CUDA_TESTS)) tests compile and link"
