/* [test-all: compiles the GPU companion] The self-check of a device: it passes on a healthy device, and after
 * a wrong result, a failed launch or an allocation that fails, the device uses the portable kernels, which
 * match the CPU. A kernel that does not end is an error. Only the CUDA emulation can inject these faults. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#ifdef DDP_CUDA_ON_CPU
#include <mma_on_cpu.h>
#endif
#include <unistd.h>

#include "cuda/families.h"

#include "cuda/cuda_check.h"

/* The lines of the log. */
typedef struct lines {
    ddp_logger log;
    char text[8000];
} lines;

static void hear(void *user, ddp_log_level level, const char *line)
{
    lines *h = (lines *)user;
    const size_t used = strlen(h->text);

    snprintf(h->text + used, sizeof h->text - used, "%s%s\n", level <= DDP_LOG_WARN ? "WARN " : "", line);
}

static void listen(lines *h)
{
    memset(h, 0, sizeof *h);
    h->log.fn = hear;
    h->log.user = h;
    h->log.level = DDP_LOG_INFO;
}

static void says(const lines *h, const char *words)
{
    if (!strstr(h->text, words)) fail_msg("the log lacks \"%s\":\n%s", words, h->text);
}

static int warnings(const lines *h)
{
    int n = 0;

    for (const char *at = h->text; (at = strstr(at, "WARN ")) != NULL; at++) n++;
    return n;
}

typedef struct opened {
    ddp_backend b;
    void *self;
    ddp__cuda *dev;
    lines heard;
    ddp_status status;
    ddp_error err;
} opened;

/* Opens a device and checks it. Skips the test without a GPU. */
static void checked(opened *o, ddp_cuda_numbers numbers, double wait_s)
{
    int n = 0;

    memset(o, 0, sizeof *o);
    listen(&o->heard);
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) skip();
    o->b = ddp_cuda(numbers, 0);
    if (o->b.open(&o->b, 0, NULL, &o->self, &o->err)) fail_msg("%s", o->err.msg);
    o->dev = cuda_device_of(o->self);
    o->status = cuda_self_check(o->self, &o->heard.log, wait_s, &o->err);
}

/* All forms agree on a working device. On a GPU, this prints the time and the differences. */
static void working_device_uses_the_specialised_kernels(void **state)
{
    opened o;

    (void)state;
    for (int numbers = 0; numbers < 3; numbers++) {
        checked(&o, (ddp_cuda_numbers)numbers, 60);
        print_message("%s", o.heard.text);
        assert_int_equal(o.status, DDP_OK);
        assert_int_equal(o.dev->forms, 0);
        assert_int_equal(warnings(&o.heard), 0);
        says(&o.heard, "largest differences: ");
        o.b.close(o.self);
    }
}

/* The portable forms of all operators that have one. */
static void portable_forms_match_the_cpu(void **state)
{
    static cuda_family *const families[] = {cuda_text_ops, cuda_conv_ops, cuda_text_ops};
    cuda_case of[3];

    (void)state;
    of[0] = cuda_case_of("attention", 1, 70, 32);
    of[0].arg[0] = 2;
    of[0].arg[1] = 1;
    of[0].in[0].dim[2] = 4 * 16;
    of[1] = cuda_case_of("conv2d", 2, 8, 7, 7);
    of[1].arg[0] = 5;
    of[1].arg[1] = 3;
    of[1].arg[2] = 2;
    of[1].arg[3] = 1;
    of[1].arg[4] = of[1].arg[5] = 1;
    of[2] = cuda_case_of("linear_cross_entropy", 600, 16);
    of[2].inputs = 2;
    of[2].in[1].dims = 1;
    of[2].in[1].dim[0] = 600;
    of[2].type[1] = DDP_I32;
    of[2].arg[0] = 24;
    of[2].low = -1;
    of[2].high = 23;
    for (int i = 0; i < 3; i++)
        for (int numbers = 0; numbers < 3; numbers += 2) {
            ddp__cuda *dev = cuda_device((ddp_cuda_numbers)numbers, families[i]);
            dev->forms = DDP__PLAIN;
            of[i].within = 1e-4;
            of[i].within_half = 0.015;
            cuda_check_run(dev, &of[i], 1);
            ddp__cuda_close(dev);
        }
}

#ifdef DDP_CUDA_ON_CPU
using cuda_on_cpu::fate;

static int no_faults(void **state)
{
    (void)state;
    cuda_on_cpu::injected().wrong = 0;
    cuda_on_cpu::injected().epilogue = 0;
    cuda_on_cpu::injected().launch = nullptr;
    return 0;
}

/* Kernels whose name contains these words end as f says. */
static void inject(const char *words, fate f)
{
    cuda_on_cpu::injected().launch = [=](const char *kernel, unsigned) {
        return strstr(kernel, words) ? f : fate::RUNS;
    };
}

/* Closes the device, whose log has one warning with these words, and which leaks nothing. */
static void shut(opened *o, const char *one, const char *two)
{
    assert_int_equal(o->status, DDP_OK);
    says(&o->heard, one);
    says(&o->heard, two);
    assert_int_equal(warnings(&o->heard), 1);
    o->b.close(o->self);
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

static void wrong_wgmma_selects_portable_attention(void **state)
{
    opened o;

    (void)state;
    cuda_on_cpu::injected().wrong = cuda_on_cpu::WRONG_WGMMA;
    checked(&o, DDP_CUDA_BF16, 60);
    assert_null(o.dev->map);
    assert_int_equal(o.dev->forms, 0);
    shut(&o, "GPU 0: self-check: attention with wgmma: ", "of its largest value (limit: 0.01)");
}

static void wrong_mma_selects_attention_without_tensor_cores(void **state)
{
    opened o;

    (void)state;
    cuda_on_cpu::injected().wrong = cuda_on_cpu::WRONG_MMA;
    checked(&o, DDP_CUDA_TF32, 60);
    assert_int_equal(o.dev->forms, DDP__PLAIN_ATTENTION);
    shut(&o, "attention with mma: ", "differs from the portable form");
}

static void wrong_wmma_selects_plain_convolutions(void **state)
{
    opened o;

    (void)state;
    cuda_on_cpu::injected().wrong = cuda_on_cpu::WRONG_WMMA;
    checked(&o, DDP_CUDA_TF32, 60);
    assert_int_equal(o.dev->forms, DDP__PLAIN_CONV);
    shut(&o, "convolution with tensor cores: ", "convolutions run without them");
}

static void wrong_epilogue_runs_after_its_product(void **state)
{
    static const struct {
        unsigned epilogue, bit;
        const char *words;
    } of[] = {{CUBLASLT_EPILOGUE_GELU_AUX_BIAS, DDP__PLAIN_GELU, "gelu in a product: the output of gelu"},
              {CUBLASLT_EPILOGUE_DGELU, DDP__PLAIN_GELU_GRAD, "the gradient of gelu in a product: "},
              {CUBLASLT_EPILOGUE_BGRADB, DDP__PLAIN_SUMS, "a bias gradient in a product: "}};
    opened o;

    (void)state;
    for (int i = 0; i < 3; i++) {
        cuda_on_cpu::injected().epilogue = of[i].epilogue;
        checked(&o, DDP_CUDA_F32, 60);
        assert_int_equal(o.dev->forms, of[i].bit);
        shut(&o, of[i].words, "it runs as a kernel after the product");
    }
}

static void wrong_head_uses_two_kernels(void **state)
{
    opened o;

    (void)state;
    inject("HEAD_THREADS", fate::SKIPPED);
    checked(&o, DDP_CUDA_F32, 60);
    assert_int_equal(o.dev->forms, DDP__PLAIN_HEAD);
    shut(&o, "the head in chunks: ", "loss and gradient are separate kernels");
}

static void wrong_blocks_are_made_on_the_host(void **state)
{
    opened o;

    (void)state;
    inject("k_quantise<1>", fate::SKIPPED);
    checked(&o, DDP_CUDA_F32, 60);
    assert_int_equal(o.dev->forms, DDP__PLAIN_BLOCKS);
    assert_int_equal(o.b.splits(o.self), 0);
    shut(&o, "int8 and int4 blocks: a message is not bit-identical to the CPU's", "the host makes them");
}

static void wrong_topk_is_reported(void **state)
{
    opened o;

    (void)state;
    inject("k_topk<3>", fate::SKIPPED);
    checked(&o, DDP_CUDA_F32, 60);
    assert_int_equal(o.dev->forms, 0);
    shut(&o, "ddp_cuda_topk: an index is not bit-identical to the CPU's", "use ddp_topk, on the host");
}

/* The forward kernel with wgmma has 256 threads, the one with mma 128. */
static void failed_launch_selects_the_portable_kernel(void **state)
{
    opened o;

    (void)state;
    cuda_on_cpu::injected().launch = [](const char *kernel, unsigned threads) {
        return strstr(kernel, "k_flash<") && threads == 256 ? fate::REJECTED : fate::RUNS;
    };
    checked(&o, DDP_CUDA_BF16, 60);
    assert_null(o.dev->map);
    assert_int_equal(o.dev->forms, 0);
    shut(&o, "attention with wgmma failed: ", "invalid configuration argument");
    inject("k_conv_images", fate::REJECTED);
    checked(&o, DDP_CUDA_TF32, 60);
    assert_int_equal(o.dev->forms, DDP__PLAIN_CONV);
    shut(&o, "convolution with tensor cores failed: ", "invalid configuration argument");
}

/* Such a failure ends all work of the process on the device. The forward kernel with wgmma has 256 threads,
 * the one with mma 128. */
static void broken_device_returns_an_error_with_a_remedy(void **state)
{
    static const struct {
        unsigned threads;
        const char *form, *remedy;
    } of[] = {{128, "attention with mma failed: ", "set DREAMDDP_CUDA_HOPPER=portable and start"},
              {256, "attention with wgmma failed: ", "set DREAMDDP_CUDA_HOPPER=0 and start"}};
    opened o;

    (void)state;
    for (int i = 0; i < 2; i++) {
        cuda_on_cpu::injected().launch = [&](const char *kernel, unsigned threads) {
            return strstr(kernel, "k_flash<") && threads == of[i].threads ? fate::BROKEN : fate::RUNS;
        };
        checked(&o, DDP_CUDA_BF16, 60);
        assert_int_equal(o.status, DDP_FAILED);
        if (!strstr(o.err.msg, of[i].remedy)) fail_msg("%s", o.err.msg);
        says(&o.heard, of[i].form);
        assert_int_equal(warnings(&o.heard), 1);
        o.b.close(o.self);
        cuda_on_cpu::mend();
    }
}

/* The close, too, must not wait for the kernel. Its memory and streams remain, so this is the last test. */
static void kernel_that_does_not_end_is_an_error(void **state)
{
    opened o;

    (void)state;
    (void)alarm(120); /* a hang is a failure */
    cuda_on_cpu::injected().stuck = 1;
    inject("k_flash", fate::STUCK);
    checked(&o, DDP_CUDA_BF16, 5);
    assert_int_equal(o.status, DDP_TIMEOUT);
    if (!strstr(o.err.msg, "did not end within 5 s") ||
        !strstr(o.err.msg, "set DREAMDDP_CUDA_HOPPER=portable"))
        fail_msg("%s", o.err.msg);
    says(&o.heard, "no result after 5 s");
    assert_int_equal(warnings(&o.heard), 1);
    o.b.close(o.self);
    assert_int_equal(cuda_on_cpu::injected().stuck, 1);
    cuda_on_cpu::injected().stuck = 0;
}

/* The error of the probe must not remain in the context. */
static void lost_tile_selects_portable_kernels(void **state)
{
    opened o;
    ddp_error err;

    (void)state;
    cuda_on_cpu::requests_until_loss() = 0;
    checked(&o, DDP_CUDA_BF16, 60);
    cuda_on_cpu::requests_until_loss() = -1;
    assert_int_equal(o.status, DDP_OK);
    assert_null(o.dev->map);
    says(&o.heard, "the copy engine did not load a tile");
    assert_int_equal(ddp__cuda_status(o.dev, &err), DDP_OK);
    o.b.close(o.self);
}

static void missing_memory_selects_portable_kernels(void **state)
{
    opened o;

    (void)state;
    cuda_on_cpu::set_memory((size_t)33 << 20); /* the workspace of the products takes 32 MiB */
    checked(&o, DDP_CUDA_BF16, 60);
    cuda_on_cpu::set_memory((size_t)1 << 32);
    assert_null(o.dev->map);
    assert_int_equal(o.dev->forms, DDP__PLAIN);
    shut(&o, "self-check: out of memory (4194304 bytes)", "the portable kernels are used");
}

/* An A100 has mma, and neither wgmma nor a gradient of gelu in a product. */
static void older_devices(void **state)
{
    ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    ddp_error err;
    void *self;
    opened o;

    (void)state;
    cuda_on_cpu::set_capability(8, 0);
    checked(&o, DDP_CUDA_BF16, 60);
    assert_int_equal(o.status, DDP_OK);
    assert_null(o.dev->map);
    assert_int_equal(o.dev->forms, 0);
    assert_int_equal(warnings(&o.heard), 0);
    says(&o.heard, "attention with mma ");
    assert_null(strstr(o.heard.text, "wgmma"));
    o.b.close(o.self);
    cuda_on_cpu::set_capability(7, 5);
    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_UNSUPPORTED);
    assert_string_equal(
        err.msg, "GPU 0 (stand-in 0) has compute capability 7.5; 8.0 or later is needed, which has bfloat16");
    cuda_on_cpu::set_capability(9, 0);
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

/* What ddp_open gives with this value of the variable. */
static ddp_ctx *with_variable(const char *value, int no_env, lines *h, ddp_error *err)
{
    ddp_backend b = ddp_cuda(DDP_CUDA_BF16, 0);
    ddp_config cfg = DDP__ZEROS;
    ddp_ctx *d;

    setenv("DREAMDDP_CUDA_HOPPER", value, 1);
    listen(h);
    cfg.backend = &b;
    cfg.logger = h->log;
    cfg.no_env = no_env;
    d = ddp_open(&cfg, err);
    unsetenv("DREAMDDP_CUDA_HOPPER");
    return d;
}

/* The build of the emulation sets the default to 1 (tools/cuda.mk). */
static void variable_overrides_the_self_check(void **state)
{
    static const struct {
        const char *value;
        int no_env, wgmma;
        unsigned forms;
        const char *checks;
    } of[] = {{"1", 0, 1, 0, NULL},
              {"0", 0, 0, DDP__PLAIN_CONV, "self-check: convolution with tensor cores: "},
              {"portable", 0, 0, DDP__PLAIN, NULL},
              {"auto", 0, 0, DDP__PLAIN_CONV, "self-check: attention with wgmma: "},
              {"auto", 1, 1, 0, NULL}};
    lines h;
    ddp_error err;
    ddp_ctx *d;

    (void)state;
    cuda_on_cpu::injected().wrong = cuda_on_cpu::WRONG_WGMMA | cuda_on_cpu::WRONG_WMMA;
    for (int i = 0; i < 5; i++) {
        d = with_variable(of[i].value, of[i].no_env, &h, &err);
        if (!d) fail_msg("%s", err.msg);
        assert_int_equal(cuda_device_of(ddp__device_of(d))->map != NULL, of[i].wgmma);
        assert_int_equal(cuda_device_of(ddp__device_of(d))->forms, of[i].forms);
        if (of[i].checks)
            says(&h, of[i].checks);
        else
            assert_null(strstr(h.text, "self-check"));
        ddp_close(d);
    }
    assert_null(with_variable("2", 0, &h, &err));
    assert_int_equal(err.code, DDP_ARG);
    assert_string_equal(err.msg,
                        "DREAMDDP_CUDA_HOPPER=2 is invalid: choose auto, 0, 1 or portable (default: auto)");
    assert_int_equal(cuda_on_cpu::alive(), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(working_device_uses_the_specialised_kernels),
        cmocka_unit_test(portable_forms_match_the_cpu),
#ifdef DDP_CUDA_ON_CPU
        cmocka_unit_test_teardown(wrong_wgmma_selects_portable_attention, no_faults),
        cmocka_unit_test_teardown(wrong_mma_selects_attention_without_tensor_cores, no_faults),
        cmocka_unit_test_teardown(wrong_wmma_selects_plain_convolutions, no_faults),
        cmocka_unit_test_teardown(wrong_epilogue_runs_after_its_product, no_faults),
        cmocka_unit_test_teardown(wrong_head_uses_two_kernels, no_faults),
        cmocka_unit_test_teardown(wrong_blocks_are_made_on_the_host, no_faults),
        cmocka_unit_test_teardown(wrong_topk_is_reported, no_faults),
        cmocka_unit_test_teardown(failed_launch_selects_the_portable_kernel, no_faults),
        cmocka_unit_test_teardown(broken_device_returns_an_error_with_a_remedy, no_faults),
        cmocka_unit_test(older_devices),
        cmocka_unit_test_teardown(lost_tile_selects_portable_kernels, no_faults),
        cmocka_unit_test_teardown(missing_memory_selects_portable_kernels, no_faults),
        cmocka_unit_test_teardown(variable_overrides_the_self_check, no_faults),
        cmocka_unit_test_teardown(kernel_that_does_not_end_is_an_error, no_faults),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
