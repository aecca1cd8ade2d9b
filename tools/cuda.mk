# The GPU companion: on any machine with a CUDA emulation, with nvcc, and on a GPU.
#   make tests-cuda    make cuda    make gpu-check
#   make lib-cuda      build/lib/libdreamddp_cuda.so: the library with the GPU companion, for Python
.PHONY: cuda cuda-programs cuda-programs-checked gpu-check lib-cuda

# On any machine: its kernels are compiled as C++17 with the CUDA emulation of tests/cuda_on_cpu. -Wno-psabi: g++
# prints a note on its ABI for kernel arguments aligned to 128 bytes.
CUDA_TESTS   := $(if $(shell command -v $(firstword $(CXX))),$(patsubst tests/%.cu,%,$(wildcard tests/cuda/test_cuda_*.cu)))
# -g1: sanitizer reports need function names and lines.
CUDA_LEVEL    = -O1 -g1
# The self-check takes seconds on the emulation. tests/cuda/test_cuda_check.cu runs it.
CUDA_CHECK    = '-DDDP__CUDA_HOPPER="1"'
CUDA_COMPILE  = $(CXX) -std=c++17 $(CPPFLAGS) $(STB) $(CUDA_LEVEL) -ffp-contract=off $(WARN) -Wno-psabi $(SANITIZE) -DDDP_CUDA_ON_CPU -DDDP_SEPARATE $(CUDA_CHECK) \
                -include tests/heap.h -isystem tests/cuda_on_cpu -Ibuild/headers -Isrc -Itests -MMD -MP -MF $@.d -MT $@
build/headers/dreamddp_cuda.cuh: src/dreamddp_cuda.cuh
	@mkdir -p $(@D)
	cp $< $@
# The companion is compiled once and linked to these tests. The other tests have separate kernels, or call
# templates that are private to one file of src/cuda. They compile the files that they include.
CUDA_LINKED  := $(addprefix cuda/test_cuda_,backend check conv elementwise images pipe sends text text_edges waits)
CUDA_HEADERS := build/headers/dreamddp.h build/headers/dreamddp_cuda.cuh
CUDA_STANDIN := $(wildcard tests/cuda_on_cpu/*.h tests/cuda_on_cpu/*/*.h)
CUDA_APART    = $(if $(filter $*,$(CUDA_LINKED)),-DDDP__CUDA_IMPLEMENTED)
define CUDA_RULES
build/$(1)/companion.o: tests/cuda/companion.cu $(CUDA_HEADERS) $(CUDA_STANDIN)
	@mkdir -p $$(@D)
	$$(CUDA_COMPILE) $$(CUDA_PARTS) -c -x c++ $$< -o $$@
$(addprefix build/$(1)/,$(CUDA_TESTS:=.o) cuda/gpu_probe.o): build/$(1)/%.o: tests/%.cu $(CUDA_HEADERS) $(CUDA_STANDIN)
	@mkdir -p $$(@D)
	$$(CUDA_COMPILE) $$(CUDA_APART) -c -x c++ $$< -o $$@
$(addprefix build/$(1)/,$(CUDA_TESTS) cuda/gpu_probe): build/$(1)/%: build/$(1)/%.o build/plain/src/select.o build/plain/dreamddp.a
	$$(CXX) $$(SANITIZE) $$(filter %.o,$$^) build/plain/dreamddp.a -o $$@ $$(LIBS) $$(TLS_LIBS) -lcmocka
$(addprefix build/$(1)/,$(CUDA_LINKED)): build/$(1)/companion.o
endef
# The trainers with the CUDA emulation, which tests/cuda/test_cuda_programs.py runs.
CUDA_TRAINERS := build/cuda/train_gpt build/cuda/train_image
$(CUDA_TRAINERS): build/cuda/%: examples/train/%.c build/cuda/companion.o build/plain/dreamddp.a $(PROGRAM_HEADERS)
	$(CUDA_COMPILE) -DDDP__CUDA_IMPLEMENTED -x c++ $< -x none build/cuda/companion.o build/plain/dreamddp.a -o $@ $(LIBS) $(TLS_LIBS)
# private: the archive that they link is compiled without sanitizers
build/cuda-asan/%: private SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all
# cuda-part builds only test_cuda_elementwise, for `make test`. Its companion contains only the elementwise kernels.
build/cuda-part/%: private CUDA_LEVEL = -O0
build/cuda-part/companion.o: private CUDA_PARTS = -DCUDA_PART -DCUDA_ELEMENTWISE
$(foreach flavour,cuda cuda-asan cuda-part,$(eval $(call CUDA_RULES,$(flavour))))
tests-cuda: $(addprefix build/cuda/,$(CUDA_TESTS) cuda/gpu_probe) $(CUDA_TRAINERS)

# With nvcc: `make cuda` compiles and links everything, prints the resources of each kernel, and checks the machine code
# with tools/check_sass.py. It runs nothing. The whole companion is compiled once and linked to the programs. The commands
# in the first comments of GPU programs compile the same source. `make cuda-programs` excludes the tests. `make test-all`
# runs cuda-programs-checked for one architecture with NVCC_HOST=-O0, which gives the same GPU code in two thirds of the
# time. -Wshadow is only for g++, because a CUDA header declares the name half.
# The library has machine code for compute capability 8.x and 9.0, and PTX, which the driver of a later GPU compiles. The
# PTX is for compute_90, because PTX for compute_90a runs on 9.0 only. It has no wgmma.
NVCC         ?= nvcc
NVCC_DIR     ?= build/nvcc
NVCC_ARCHS   ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90
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
	@rm -rf $(NVCC_DIR)/code && mkdir $(NVCC_DIR)/code
	$(NVCC_COMPILE) $(NVCC_ARCHS) $(NVCC_HOST) -Xptxas -v --keep --keep-dir $(NVCC_DIR)/code -Dmain=ddp__unused_main -I. -c $< -o $@ \
	    >$(@:.o=.txt) 2>&1 || { cat $(@:.o=.txt); exit 1; }
	@find $(NVCC_DIR)/code -type f ! -name '*.cubin' ! -name '*.ptx' -delete
$(NVCC_DIR)/%: examples/train/%.c $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) -x cu $< -Xlinker $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(NVCC_DIR)/%: examples/%.cu $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) $< $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
$(NVCC_DIR)/%: bench/%.cu $(NVCC_DIR)/kernels.o
	$(NVCC_PROGRAM) $< $(NVCC_DIR)/kernels.o -o $@ $(NVCC_LIBS)
NVCC_TESTS    = $(NVCC_COMPILE) $(NVCC_TEST) -DDDP_SEPARATE -include tests/heap.h -Ibuild/headers -Isrc -Itests
$(NVCC_DIR)/companion.o: tests/cuda/companion.cu $(CUDA_HEADERS) | deps-test $(NVCC_DIR)
	$(NVCC_TESTS) -c $< -o $@
$(addprefix $(NVCC_DIR)/,$(CUDA_TESTS) cuda/gpu_probe): $(NVCC_DIR)/%: tests/%.cu build/plain/dreamddp.a $(CUDA_HEADERS) | deps-test
	@mkdir -p $(@D)
	$(NVCC_TESTS) $(CUDA_APART) $< $(filter %.o,$^) build/plain/dreamddp.a -o $@ $(NVCC_LIBS) $(LIBS) $(TLS_LIBS) -lcmocka
$(addprefix $(NVCC_DIR)/,$(CUDA_LINKED)): $(NVCC_DIR)/companion.o
build/lib/libdreamddp_cuda.so: dreamddp_cuda.cuh dreamddp.h | deps
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 --threads 2 $(STB) $(NVCC_ARCHS) $(NVCC_HOST) -DDREAMDDP_IMPLEMENTATION -Xcompiler -fPIC,-fvisibility=hidden \
	    '-DDDP_API=extern "C" __attribute__((visibility("default")))' -shared -x cu $< -o $@ $(NVCC_LIBS)
lib-cuda: build/lib/libdreamddp_cuda.so
# With a GPU: GPU_CHECK="--small --sanitize --no-bench" or any of these options. Without a GPU it is skipped.
gpu-check:
	-@tools/deps.sh build
	@tools/gpu_check.py $(GPU_CHECK) || [ $$? = 77 ]
cuda-programs: $(NVCC_DIR)/kernels.o $(CUDA_PROGRAMS) | deps-header
	@tools/ptxas.py $(NVCC_DIR)/kernels.txt
	@tools/check_sass.py --install --log $(NVCC_DIR)/kernels.txt $(NVCC_DIR)/code/*.cubin || [ $$? = 77 ]
cuda-programs-checked:
	@command -v $(firstword $(NVCC)) >/dev/null || { echo "skipped: cuda-programs: $(firstword $(NVCC)) is not installed"; exit 77; }
	@$(MAKE) --no-print-directory -s NVCC_DIR=build/nvcc90 NVCC_ARCHS="$(NVCC_TEST)" NVCC_HOST=-O0 cuda-programs
cuda: deps-test
	@command -v $(firstword $(NVCC)) >/dev/null || { echo "make cuda: $(firstword $(NVCC)) is not installed: install the CUDA toolkit, or set NVCC" >&2; exit 1; }
	@$(MAKE) --no-print-directory cuda-programs $(addprefix $(NVCC_DIR)/,$(CUDA_TESTS) cuda/gpu_probe)
	@echo "make cuda: all kernels, $(words $(CUDA_PROGRAMS)) programs and $(words $(CUDA_TESTS)) tests compile and link"
