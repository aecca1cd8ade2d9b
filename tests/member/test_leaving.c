/* Workers that close their context while the death of another is being noticed: the others continue, or fail
 * in time with the reason. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "member/elastic.h"

#include "member/elastic_lab.h"
#include "wire/beside.h"

static lab_world lab;

typedef struct departure {
    int world, dies, leaves;
    double leaves_after; /* in seconds: after the death, which all notice at once; < 0: before it, and the
                          * others notice it 0.1 s later */
    unsigned ends;       /* workers that may not continue: of two that have not left, the higher */
} departure;

static int gathered;
static float came[LAB_MAX]; /* result of the last operation */

static ddp_status mean_of_ranks(net_rank *me, float *out)
{
    float x[200];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = x;
    piece.count = 200;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.mean = 1;
    for (int i = 0; i < 200; i++) x[i] = (float)(1 << me->rank);
    s = net_do(me, &m);
    *out = x[0];
    return s;
}

static void die_leave_or_go_on(net_rank *me, void *user)
{
    const departure *c = (const departure *)user;
    double at;

    net_ok(me, mean_of_ranks(me, &came[me->rank]));
    ddp__sleep_until(ddp_now() + 0.25); /* all know that all have completed it */
    ddp__atomic_add(&gathered, 1);
    while (ddp__atomic_load(&gathered) < c->world) ddp__sleep_until(ddp_now() + 0.001);
    at = ddp_now() + 0.1;
    if (me->rank == c->dies) {
        ddp__sleep_until(at);
        lab.wire[me->rank].engine = me->engine;
        lab_die(&lab.wire[me->rank]);
        return;
    }
    if (me->rank == c->leaves) {
        ddp__sleep_until(at + c->leaves_after);
        return;
    }
    ddp__sleep_until(at + 0.05);
    if (c->ends >> me->rank & 1) {
        if (mean_of_ranks(me, &came[me->rank]) != DDP_PEER_LOST)
            net_fail(me, "it continued, \"%.200s\"", me->err.msg);
    } else {
        net_ok(me, mean_of_ranks(me, &came[me->rank]));
    }
}

enum { DEPARTURES = 5, TIMES = 6 };

static const char *one_departure(int number)
{
    static const departure cases[DEPARTURES] = {
        {3, 2, 1, 0, 0}, {3, 1, 2, 0, 0}, {3, 0, 1, 0, 4}, {4, 3, 1, 0, 0}, {4, 1, 0, 0, 0}};
    static const double after[TIMES] = {-0.08, -0.05, 0.1, -0.02, 0.3, 0.02};
    static char text[800];
    const int i = number / TIMES, k = number % TIMES;
    departure c = cases[i];
    net_setup set;
    unsigned left = ((1u << c.world) - 1) & ~(1u << c.dies | 1u << c.leaves);
    const char *failure;
    float sum = 0;

    if (i > 0 && k % 2 == 0) return "";
    c.leaves_after = after[k] > 0 ? lab_patience(c.ends ? 0.3 : after[k]) : after[k];
    if (after[k] > 0) c.ends = 0; /* both had time to begin an epoch without the dead rank */
    net_defaults(&set, c.world);
    log_to(&set);
    set.tcp = 1;
    set.cfg.min_world = 1;
    set.delay_s = 0.1;
    set.cfg.peer_timeout_s = lab_patience(2);
    gathered = 0;
    text[0] = 0;
    failure = lab_try(&lab, &set, die_leave_or_go_on, &c);
    if (failure[0])
        snprintf(text, sizeof text, "rank %d dies, rank %d leaves %g s later: %s", c.dies, c.leaves,
                 c.leaves_after, failure);
    for (int r = 0; r < c.world; r++)
        if (left >> r & 1) sum += (float)(1 << r);
    for (int r = 0; r < c.world; r++)
        if (!text[0] && (left & ~c.ends & (1u << r)) && came[r] != sum * (1.0f / (float)ddp__bit_count(left)))
            snprintf(text, sizeof text, "rank %d dies, rank %d leaves %g s later: rank %d has %g", c.dies,
                     c.leaves, c.leaves_after, r, (double)came[r]);
    return text;
}

static void workers_leave_while_a_death_is_noticed(void **state)
{
    (void)state;
    run_beside(DEPARTURES * TIMES, one_departure);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_leave_while_a_death_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
