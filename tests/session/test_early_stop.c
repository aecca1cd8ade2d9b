/* [asan] Early stopping as docs/howto/embed.md shows it: all ranks leave the loop after the same step,
 * with equal parameters. */
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

enum { WORLD = 3, N = 8, STEPS = 400, EVERY = 10 };

typedef struct run {
    ddp_config cfg;
    int rank_0_decides;
    int stopped[WORLD];
    float w[WORLD][N];
} run;

static int should_stop(ddp_ctx *d, float loss, float *best, int *worse)
{
    if (ddp_all_mean(d, &loss, 1)) return 1; /* the error is in the context */
    if (loss < *best) {
        *best = loss;
        *worse = 0;
    } else
        ++*worse;
    return *worse == 3;
}

/* The mean over the ranks is lowest after step 109. The loss of rank 0 rises from step 39, and the loss of
 * rank 2 always falls. */
static float validation_loss(int rank, int step)
{
    const float turn = rank == 0 ? 40 : rank == 1 ? 110 : 1e6f, at = (float)(step + 1);

    return at < turn ? -at : rank == 0 ? at - 2 * turn : 3 * (at - turn) - turn;
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    float *w = x->w[rank], g[N], best = 1e30f;
    ddp_optimizer sgd = ddp_sgd(0.01f, 0);
    int bad = ddp_add_block(d, "all", w, g, N), worse = 0, step;

    memset(g, 0, sizeof g);
    if (!bad) bad = ddp_set_optimizer(d, &sgd);
    for (step = 0; step < STEPS && !bad; step++) {
        for (int i = 0; i < N; i++) g[i] = w[i] - (float)(i + rank);
        bad = ddp_backward_end(d, 0);
        if (bad || ddp_step_end(d)) break;
        if (x->rank_0_decides) {
            float stop = rank == 0 && step == 57;
            if (ddp_broadcast(d, &stop, 1, 0) || stop > 0) break;
        } else if ((step + 1) % EVERY == 0 && should_stop(d, validation_loss(rank, step), &best, &worse)) {
            break;
        }
    }
    x->stopped[rank] = step;
    return ddp_sync_all(d);
}

static void all_ranks_stop_after_the_same_step(void **state)
{
    static const ddp_strategy some[] = {DDP_SSGD, DDP_DREAMDDP, DDP_DILOCO};
    static run x;
    ddp_error err;

    (void)state;
    for (int i = 0; i < 6; i++) {
        memset(&x, 0, sizeof x);
        x.rank_0_decides = i % 2;
        x.cfg.world = WORLD;
        x.cfg.strategy = some[i / 2];
        x.cfg.period = 4;
        x.cfg.deterministic = x.cfg.no_env = 1;
        x.cfg.transport = DDP_THREADS;
        if (ddp_launch(&x.cfg, train, &x, &err)) fail_msg("%s", err.msg);
        for (int r = 0; r < WORLD; r++) {
            /* the evaluations after steps 119, 129 and 139 are worse than the one after step 109 */
            assert_int_equal(x.stopped[r], x.rank_0_decides ? 57 : 139);
            assert_memory_equal(x.w[r], x.w[0], sizeof x.w[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_stop_after_the_same_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
