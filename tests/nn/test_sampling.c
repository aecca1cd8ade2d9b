/* [asan] Sampling text from a trained model: examples/common/sampling.h. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "../examples/common/sampling.h"

static sampling options(long length, long top_k, double temperature)
{
    sampling s;

    memset(&s, 0, sizeof s);
    s.length = length;
    s.top_k = top_k;
    s.temperature = temperature;
    s.seed = 9;
    return s;
}

/* 40,000 draws of five tokens. The counts must be within five deviations of the softmax. */
static void draws_follow_the_softmax_of_the_top_k(void **unused)
{
    static const float x[5] = {0.5f, -1.0f, 2.0f, 1.0f, 1.0f};
    static const long top_k[4] = {0, 5, 3, 2}; /* top 2 includes the third token, which equals the second */
    int c, i, k;

    (void)unused;
    for (c = 0; c < 4; c++) {
        const sampling s = options(1, top_k[c], 0.7);
        ddp_rng r = ddp_rng_seed(1, (uint64_t)c);
        long count[5] = {0, 0, 0, 0, 0};
        double p[5], sum = 0;
        float best[5];
        const float low = c < 2 ? -2.0f : 1.0f;

        for (k = 0; k < 5; k++) sum += p[k] = x[k] >= low ? exp((double)x[k] / 0.7) : 0;
        for (i = 0; i < 40000; i++) count[sampling_draw(x, 5, &s, &r, best)]++;
        for (k = 0; k < 5; k++) {
            const double want = 40000 * p[k] / sum, room = 5 * sqrt(want) + 0.5;
            if (!(fabs((double)count[k] - want) < room))
                fail_msg("top %ld: token %d drawn %ld times, expected %g", top_k[c], k, count[k], want);
        }
    }
}

static void temperature_zero_and_top_1_draw_the_maximum(void **unused)
{
    static const float x[4] = {-3.0f, 7.0f, 7.5f, -INFINITY};
    ddp_rng r = ddp_rng_seed(1, 0);
    float best[4];
    sampling s;
    int i;

    (void)unused;
    for (i = 0; i < 50; i++) {
        s = options(1, i % 5, 0);
        assert_int_equal(sampling_draw(x, 4, &s, &r, best), 2);
        s = options(1, 1, 3);
        assert_int_equal(sampling_draw(x, 4, &s, &r, best), 2);
    }
}

/* A model of one word, trained until it repeats the word. */
enum { CONTEXT = 16, LETTERS = 8 };
static const int word[LETTERS] = {3, 1, 4, 1, 5, 2, 6, 0};

static ddp_node *add_model(ddp_graph *g, int llama, long batch, long context, ddp_node **logits)
{
    ddp_llama2_config l;
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    memset(&l, 0, sizeof l);
    c.vocabulary = l.vocabulary = 7;
    c.context = l.context = context;
    c.batch = l.batch = batch;
    c.layers = l.layers = 1;
    c.heads = l.heads = 2;
    c.dim = l.dim = 32;
    c.deviation = l.deviation = 0.15f;
    return llama ? ddp_llama2(g, &l, logits) : ddp_gpt2(g, &c, logits);
}

static void model_of_one_word_repeats_it_beyond_its_context(void **unused)
{
    int llama, i, k;

    (void)unused;
    for (llama = 0; llama < 2; llama++) {
        ddp_optimizer adam = ddp_adamw(1e-2f, 0.9f, 0.999f, 1e-8f, 0);
        sampling s = options(60, 40, 0.3);
        int32_t out[60], again[60], *tokens, *labels;
        ddp_graph *g, *one;
        ddp_node *loss, *logits;
        ddp_config cfg;
        ddp_ctx *d;
        float value = 9;

        memset(&cfg, 0, sizeof cfg);
        cfg.strategy = DDP_SSGD;
        d = ddp_open(&cfg, NULL);
        assert_non_null(d);
        g = ddp_graph_new(d);
        loss = add_model(g, llama, 4, CONTEXT, NULL);
        assert_int_equal(ddp_graph_build(g), 0);
        assert_int_equal(ddp_set_optimizer(d, &adam), 0);
        tokens = (int32_t *)ddp_data(g, "tokens");
        labels = (int32_t *)ddp_data(g, "labels");
        for (k = 0; k < 400 && value > 0.03f; k++) {
            for (i = 0; i < 4 * CONTEXT; i++) {
                const int at = i % CONTEXT + i / CONTEXT * 3 + k;
                tokens[i] = word[at % LETTERS];
                labels[i] = word[(at + 1) % LETTERS];
            }
            assert_int_equal(ddp_forward(g), 0);
            assert_int_equal(ddp_backward(g, loss), 0);
            value = ddp_value(g, loss);
            assert_int_equal(ddp_step_end(d), 0);
        }
        s.first = 3;
        for (k = 0; k < 2; k++) {
            one = ddp_graph_new(NULL);
            add_model(one, llama, 1, k ? CONTEXT : 10, &logits);
            assert_int_equal(sampling_run(g, one, logits, &s, k ? again : out), 0);
            ddp_graph_free(one);
            for (i = 0; i < 60; i++)
                if ((k ? again : out)[i] != word[(i + 1) % LETTERS])
                    fail_msg("letter %d is wrong (llama %d, window %d)", i, llama, k);
        }
        ddp_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax_of_the_top_k),
        cmocka_unit_test(temperature_zero_and_top_1_draw_the_maximum),
        cmocka_unit_test(model_of_one_word_repeats_it_beyond_its_context),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
