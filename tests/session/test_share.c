/* ddp_share: a program replaces its parameters between two steps, and every strategy continues with rank
 * 0's values. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { WORLD = 2, LAYERS = 4, VALUES = 150, PERIOD = 4 };

typedef struct program {
    float w[LAYERS][VALUES], g[LAYERS][VALUES];
    float rate;
} program;

static float value_of(int layer, int i, int salt)
{
    return (float)((layer * 31 + i * 7 + salt * 13) % 101 - 50) / 64.0f;
}

static void fill(program *p, int salt)
{
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < VALUES; i++) p->w[l][i] = value_of(l, i, salt);
}

/* One step with an update by the program. Gradients differ between ranks. */
static int step(ddp_ctx *d, program *p)
{
    for (int l = LAYERS - 1; l >= 0; l--) {
        for (int i = 0; i < VALUES; i++) p->g[l][i] = value_of(l, i, 3 + ddp_rank(d));
        if (ddp_backward_end(d, l)) return 1;
    }
    if (ddp_step_end(d)) return 1;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < VALUES; i++) p->w[l][i] -= p->rate * p->g[l][i];
    return 0;
}

static int is_filled(const program *p, int salt)
{
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < VALUES; i++)
            if (p->w[l][i] != value_of(l, i, salt)) return 0;
    return 1;
}

static int replace_and_train(ddp_ctx *d, void *user)
{
    const ddp_optimizer own = ddp_own_update();
    const int rank = ddp_rank(d);
    program *p = (program *)calloc(1, sizeof *p);
    char name[32];
    int bad = 0;

    (void)user;
    fill(p, rank);
    p->rate = 0.01f;
    for (int l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "layer %d", l);
        bad |= ddp_add_block(d, name, p->w[l], p->g[l], VALUES);
    }
    bad |= ddp_set_optimizer(d, &own) || !is_filled(p, 0);
    for (int s = 0; s < 3 * PERIOD - 1 && !bad; s++) bad = step(d, p); /* averages may be in flight */
    fill(p, 7 + rank);
    bad = bad || ddp_share(d) || !is_filled(p, 7);
    /* with learning rate 0 the parameters stay, whatever anchor, momentum or average was left */
    p->rate = 0;
    for (int s = 0; s < 4 * PERIOD && !bad; s++) bad = step(d, p) || !is_filled(p, 7);
    bad = bad || ddp_sync_all(d) || !is_filled(p, 7);
    free(p);
    return bad;
}

static void train(ddp_strategy strategy, ddp_overlap overlap, ddp_wire wire)
{
    ddp_config c = DDP__ZEROS;
    ddp_error err = DDP__ZEROS;

    c.strategy = strategy;
    c.outer.overlap = overlap;
    c.wire = wire;
    c.world = WORLD;
    c.period = PERIOD;
    c.transport = DDP_THREADS;
    c.deterministic = 1;
    if (overlap == DDP_OVERLAP_EAGER && wire == DDP_WIRE_F32) c.outer.compensation = 0.5;
    if (ddp_launch(&c, replace_and_train, NULL, &err))
        fail_msg("%s, overlap %d, wire %s: %s", ddp_strategy_name(strategy), (int)overlap,
                 ddp_wire_name(wire), err.msg);
}

static void every_strategy_continues_from_the_shared_parameters(void **state)
{
    static const ddp_strategy all[] = {DDP_SSGD, DDP_WFBP,     DDP_USBYTE, DDP_LOCALSGD,
                                       DDP_ENP,  DDP_DREAMDDP, DDP_DILOCO, DDP_SPARSELOCO};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) train(all[i], DDP_OVERLAP_NONE, DDP_WIRE_DEFAULT);
}

static void delayed_and_quantised_averages_do_not_change_shared_parameters(void **state)
{
    static const ddp_wire wire[] = {DDP_WIRE_F32, DDP_WIRE_INT8, DDP_WIRE_INT4};

    (void)state;
    for (int o = DDP_OVERLAP_NONE; o <= DDP_OVERLAP_EAGER; o++)
        for (size_t w = 0; w < sizeof wire / sizeof *wire; w++) train(DDP_DILOCO, (ddp_overlap)o, wire[w]);
    for (int o = DDP_OVERLAP_NONE; o <= DDP_OVERLAP_EAGER; o++)
        train(DDP_SPARSELOCO, (ddp_overlap)o, DDP_WIRE_DEFAULT);
    train(DDP_LOCALSGD, DDP_OVERLAP_NONE, DDP_WIRE_INT8);
    train(DDP_DREAMDDP, DDP_OVERLAP_NONE, DDP_WIRE_INT8);
}

static int share_in_a_step(ddp_ctx *d, void *user)
{
    const ddp_optimizer own = ddp_own_update();
    float w[2][8] = {{0}}, g[2][8] = {{0}};
    int bad;

    (void)user;
    bad = ddp_add_block(d, "a", w[0], g[0], 8) || ddp_add_block(d, "b", w[1], g[1], 8) ||
          ddp_set_optimizer(d, &own);
    bad = bad || ddp_backward_end(d, 1);
    return bad || ddp_share(d) != DDP_USAGE; /* the error is also in the context, and so in ddp_launch */
}

static void share_within_a_step_fails(void **state)
{
    ddp_config c = DDP__ZEROS;
    ddp_error err = DDP__ZEROS;

    (void)state;
    c.world = 1;
    assert_int_equal(ddp_launch(&c, share_in_a_step, NULL, &err), DDP_USAGE);
    if (!strstr(err.msg, "ddp_share was called in the middle of a step")) fail_msg("%s", err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_continues_from_the_shared_parameters),
        cmocka_unit_test(delayed_and_quantised_averages_do_not_change_shared_parameters),
        cmocka_unit_test(share_within_a_step_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
