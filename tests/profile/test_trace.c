/* [calm] Interval unions and the hidden share, against hand-worked cases and a grid of unit cells. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#define GRID 64

static ddp_span span(double begin, double end, ddp_span_kind kind)
{
    ddp_span s;

    memset(&s, 0, sizeof s);
    s.begin_s = begin;
    s.end_s = end;
    s.kind = kind;
    return s;
}

static int equal(double a, double b) { return a >= b && a <= b; }

/* compute 0..10 and 12..20; transfers 8..14 and 13..16: union 8..16 = 8 s, of which 10..12 shows */
static void communication_outside_compute_is_what_is_not_hidden(void **state)
{
    ddp_span s[4];

    (void)state;
    s[0] = span(8, 14, DDP_SPAN_COMM);
    s[1] = span(0, 10, DDP_SPAN_FORWARD);
    s[2] = span(13, 16, DDP_SPAN_COMM);
    s[3] = span(12, 20, DDP_SPAN_BACKWARD);
    assert_true(equal(ddp_span_union(s, 4, 1u << DDP_SPAN_COMM), 8));
    assert_true(equal(ddp_span_union(s, 4, DDP_SPAN_COMPUTE), 18));
    assert_true(equal(ddp_span_overlap(s, 4, 1u << DDP_SPAN_COMM, DDP_SPAN_COMPUTE), 6));
    assert_true(equal(ddp_hidden_share(s, 4), 0.75));
}

static void filling_and_waiting_do_not_count(void **state)
{
    ddp_span s[5];

    (void)state;
    s[0] = span(0, 4, DDP_SPAN_UPDATE);
    s[1] = span(2, 6, DDP_SPAN_COMM);      /* half hidden */
    s[2] = span(6, 30, DDP_SPAN_FILL);     /* no part of the communication */
    s[3] = span(4, 30, DDP_SPAN_WAIT);     /* no part of the compute */
    s[4] = span(0, 30, DDP_SPAN_PEER_WAIT);
    assert_true(equal(ddp_hidden_share(s, 5), 0.5));
}

static void no_communication_is_hidden_and_unfinished_spans_are_nothing(void **state)
{
    ddp_span s[3];

    (void)state;
    assert_true(equal(ddp_hidden_share(NULL, 0), 1));
    assert_true(equal(ddp_span_union(NULL, 0, ~0u), 0));
    s[0] = span(0, 4, DDP_SPAN_FORWARD);
    s[1] = span(5, -1, DDP_SPAN_COMM);
    s[2] = span(5, 5, DDP_SPAN_COMM);
    assert_true(equal(ddp_hidden_share(s, 3), 1));
    s[1] = span(5, 6, DDP_SPAN_COMM);
    assert_true(equal(ddp_hidden_share(s, 3), 0));
    assert_string_equal(ddp_span_kind_name(DDP_SPAN_PEER_WAIT), "peer wait");
}

/* Integer intervals cover whole cells of a grid: counting cells shares no code with the unions. */
static void unions_equal_a_count_of_grid_cells(void **state)
{
    ddp_rng r = ddp_rng_seed(7, 0);
    ddp_span s[24];
    long round;

    (void)state;
    for (round = 0; round < 20000; round++) {
        unsigned char cell[GRID];
        int n = (int)ddp_rng_below(&r, 25), i, c, comm = 0, compute = 0, both = 0, all = 0;

        memset(cell, 0, sizeof cell);
        for (i = 0; i < n; i++) {
            int begin = (int)ddp_rng_below(&r, GRID), length = (int)ddp_rng_below(&r, 12);
            int end = begin + length < GRID ? begin + length : GRID;

            s[i] = span(begin, end, (ddp_span_kind)ddp_rng_below(&r, DDP_SPAN_KINDS));
            for (c = begin; c < end; c++) cell[c] = (unsigned char)(cell[c] | 1u << s[i].kind);
        }
        for (c = 0; c < GRID; c++) {
            int is_comm = (cell[c] & 1u << DDP_SPAN_COMM) != 0,
                is_compute = (cell[c] & DDP_SPAN_COMPUTE) != 0;

            comm += is_comm;
            compute += is_compute;
            both += is_comm && is_compute;
            all += cell[c] != 0;
        }
        assert_true(equal(ddp_span_union(s, n, 1u << DDP_SPAN_COMM), comm));
        assert_true(equal(ddp_span_union(s, n, DDP_SPAN_COMPUTE), compute));
        assert_true(equal(ddp_span_union(s, n, ~0u), all));
        assert_true(equal(ddp_span_overlap(s, n, 1u << DDP_SPAN_COMM, DDP_SPAN_COMPUTE), both));
        assert_true(equal(ddp_span_overlap(s, n, DDP_SPAN_COMPUTE, 1u << DDP_SPAN_COMM), both));
        assert_true(fabs(ddp_hidden_share(s, n) - (comm ? 1 - (double)(comm - both) / comm : 1)) <
                    1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_outside_compute_is_what_is_not_hidden),
        cmocka_unit_test(filling_and_waiting_do_not_count),
        cmocka_unit_test(no_communication_is_hidden_and_unfinished_spans_are_nothing),
        cmocka_unit_test(unions_equal_a_count_of_grid_cells),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
