/* [asan] The setting `kernels`: each instruction set of this processor gives different bits, and the same
 * bits in every run. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "base/core.h"

#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { SETS = 3 };
static const ddp_kernels sets[SETS] = {DDP_KERNELS_BASE, DDP_KERNELS_AVX2, DDP_KERNELS_AVX512};
static const char *const names[SETS] = {"base", "avx2", "avx512"};

static const char text[] =
    "Two households, both alike in dignity, in fair Verona, where we lay our scene, from ancient grudge "
    "break to new mutiny, where civil blood makes civil hands unclean.";

/* Hash of the parameters after several steps of a small model with most operators. */
static uint64_t trained(ddp_ctx *d, int llama)
{
    ddp_tokens *t = ddp_tokens_from_bytes("text", text, sizeof text - 1, NULL);
    const ddp_optimizer adam = ddp_adamw(0.01f, 0.9f, 0.95f, 1e-8f, 0.01f);
    ddp_graph *g = ddp_graph_new(d);
    ddp_token_range range;
    ddp_gpt2_config c;
    ddp_llama2_config l;
    ddp_node *loss;
    uint64_t h = 0;

    assert_non_null(t);
    assert_int_equal(ddp_tokens_split(t, 0, 16, &range, NULL, NULL), DDP_OK);
    memset(&c, 0, sizeof c);
    memset(&l, 0, sizeof l);
    c.vocabulary = l.vocabulary = ddp_tokens_vocabulary(t);
    c.context = l.context = 16;
    c.batch = l.batch = 4;
    c.layers = l.layers = 2;
    c.heads = l.heads = 2;
    c.dim = l.dim = 32;
    loss = llama ? ddp_llama2(g, &l, NULL) : ddp_gpt2(g, &c, NULL);
    assert_int_equal(ddp_graph_build(g), 0);
    assert_int_equal(ddp_set_optimizer(d, &adam), 0);
    for (long step = 0; step < 5; step++) {
        ddp_tokens_batch(&range, 7, step, 0, 1, 4, (int32_t *)ddp_data(g, "tokens"),
                         (int32_t *)ddp_data(g, "labels"));
        assert_int_equal(ddp_forward(g), 0);
        assert_int_equal(ddp_backward(g, loss), 0);
        assert_int_equal(ddp_step_end(d), 0);
    }
    assert_int_equal(ddp_sync_all(d), 0);
    for (int k = 0; k < ddp_layer_count(g); k++) {
        size_t n;
        const float *p = ddp_layer_params(g, k, &n);
        h = ddp_hash_floats(h, p, n);
    }
    ddp_tokens_close(t);
    return h;
}

static uint64_t run(ddp_kernels kernels, int threads, int env, int llama)
{
    ddp_error err;
    ddp_config c;
    ddp_ctx *d;
    uint64_t h;

    memset(&c, 0, sizeof c);
    c.strategy = DDP_SSGD;
    c.kernels = kernels;
    c.threads = threads;
    c.no_env = !env;
    c.deterministic = 1;
    d = ddp_open(&c, &err);
    if (!d) fail_msg("%s", err.msg);
    h = trained(d, llama);
    ddp_close(d);
    return h;
}

static void instruction_sets_are_bit_identical_in_every_run(void **unused)
{
    (void)unused;
    for (int llama = 0; llama < 2; llama++) {
        uint64_t hash[SETS] = {0, 0, 0}, fastest = 0;
        for (int i = 0; i < SETS; i++) {
            if (!ddp__cpu_runs((int)sets[i])) {
                printf("skipped: this processor has no %s\n", names[i]);
                continue;
            }
            fastest = hash[i] = run(sets[i], 1, 0, llama);
            assert_true(run(sets[i], 3, 0, llama) == hash[i]);
            for (int k = 0; k < i; k++)
                assert_true(hash[k] != hash[i]); /* otherwise the setting had no
                                                                          * effect */
        }
        assert_true(run(DDP_KERNELS_DEFAULT, 1, 0, llama) == fastest);
    }
}

static void environment_selects_the_instruction_set(void **unused)
{
    const uint64_t base = run(DDP_KERNELS_BASE, 1, 0, 0);

    (void)unused;
    assert_int_equal(setenv("DREAMDDP_KERNELS", "base", 1), 0);
    assert_true(run(DDP_KERNELS_DEFAULT, 1, 1, 0) == base);
    assert_true(run(DDP_KERNELS_DEFAULT, 1, 0, 0) == run(DDP_KERNELS_DEFAULT, 1, 0, 0)); /* no_env ignores the
                                                                                          * variable */
    assert_int_equal(setenv("DREAMDDP_KERNELS", "auto", 1), 0);
    assert_true(run(DDP_KERNELS_DEFAULT, 1, 1, 0) == run(DDP_KERNELS_DEFAULT, 1, 0, 0));
    unsetenv("DREAMDDP_KERNELS");
}

static void unsupported_instruction_set_is_an_error(void **unused)
{
    const int unknown = 9;
    ddp_error err;
    ddp_config c;

    (void)unused;
    for (int i = 0; i < SETS; i++) {
        if (ddp__cpu_runs((int)sets[i])) continue;
        memset(&c, 0, sizeof c);
        c.kernels = sets[i];
        c.no_env = 1;
        assert_null(ddp_open(&c, &err));
        assert_int_equal(err.code, DDP_ARG);
        assert_non_null(strstr(err.msg, names[i]));
        assert_non_null(strstr(err.msg, "this processor supports only base"));
    }
    memset(&c, 0, sizeof c);
    memcpy(&c.kernels, &unknown, sizeof unknown);
    c.no_env = 1;
    assert_null(ddp_open(&c, &err));
    assert_int_equal(err.code, DDP_ARG);
    assert_non_null(strstr(err.msg, "kernels"));
    assert_int_equal(setenv("DREAMDDP_KERNELS", "sse9", 1), 0);
    memset(&c, 0, sizeof c);
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "DREAMDDP_KERNELS"));
    unsetenv("DREAMDDP_KERNELS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instruction_sets_are_bit_identical_in_every_run),
        cmocka_unit_test(environment_selects_the_instruction_set),
        cmocka_unit_test(unsupported_instruction_set_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
