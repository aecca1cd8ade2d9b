/* Reduce-scatter: equals the sums of a plain loop; followed by all-gather it is bit-identical to an
 * all-reduce. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comm/net_world.h"

static void scatter_then_gather(net_rank *me, void *user)
{
    const size_t n = *(const size_t *)user, all = n * (size_t)me->world;
    float *data = (float *)calloc(all + 1, sizeof *data), *whole = (float *)calloc(all + 1, 4);
    ddp_piece piece;
    ddp_message m;

    for (size_t i = 0; i < all; i++) data[i] = whole[i] = net_value(me->rank, i, 3);
    piece.data = data;
    piece.count = all;
    net_message(&m, DDP_REDUCE_SCATTER, &piece, 1);
    m.scale = 1.0f / 3;
    net_ok(me, net_do(me, &m));
    for (size_t i = 0; i < all; i++) {
        float sum = net_value(0, i, 3);
        for (int r = 1; r < me->world; r++) sum += net_value(r, i, 3);
        sum = i / n == (size_t)me->rank ? sum * m.scale : whole[i];
        if (memcmp(&sum, &data[i], sizeof sum))
            net_fail(me, "world %d n %lu value %lu: %g, not %g", me->world, (unsigned long)n,
                     (unsigned long)i, (double)data[i], (double)sum);
    }
    m.verb = DDP_ALL_GATHER;
    net_ok(me, net_do(me, &m));
    m.verb = DDP_ALL_REDUCE;
    piece.data = whole;
    net_ok(me, net_do(me, &m));
    if (memcmp(data, whole, all * sizeof *data)) net_fail(me, "not bit-identical to an all-reduce");
    free(data);
    free(whole);
}

static void reduce_scatter_and_all_gather_equal_an_all_reduce(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 1000, 40001};
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 2; world <= 5; world++)
            for (int s = 0; s < 5; s++) {
                net_setup set;
                size_t n = sizes[s];
                net_defaults(&set, world);
                set.tcp = tcp;
                if (n == 1000) set.cfg.chunk_bytes = 64;
                if (s == 4 && world == 3) set.rate = 1e8;
                net_run(&set, scatter_then_gather, &n);
            }
}

/* Several at once with different priorities, between all-reduces. */
static void scatter_many(net_rank *me, void *user)
{
    enum { MESSAGES = 40, N = 1500 };
    size_t all = (size_t)N * (size_t)me->world;
    float *data = (float *)calloc(MESSAGES * all, sizeof *data);
    long ticket[MESSAGES];
    ddp_piece piece;
    ddp_message m;

    (void)user;
    for (int i = 0; i < MESSAGES; i++) {
        piece.data = data + (size_t)i * all;
        piece.count = all;
        for (size_t k = 0; k < all; k++) piece.data[k] = (float)(me->rank + i);
        net_message(&m, i % 3 ? DDP_REDUCE_SCATTER : DDP_ALL_REDUCE, &piece, 1);
        m.priority = i * 5 % 7;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[i], &me->err));
    }
    for (int i = 0; i < MESSAGES; i++) {
        float sum = (float)(me->world * i + me->world * (me->world - 1) / 2);
        net_ok(me, ddp__engine_wait(me->engine, ticket[i], &me->err));
        for (size_t k = 0; k < all; k++)
            if (data[(size_t)i * all + k] !=
                (i % 3 == 0 || k / N == (size_t)me->rank ? sum : (float)(me->rank + i)))
                net_fail(me, "message %d value %lu", i, (unsigned long)k);
    }
    free(data);
}

static void reduce_scatters_overlap(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        net_setup set;
        net_defaults(&set, 2 + kind);
        set.tcp = kind % 2;
        set.cfg.chunk_bytes = 1024;
        if (kind / 2) set.rate = 5e7;
        net_run(&set, scatter_many, NULL);
    }
}

static int scatter_call(ddp_ctx *d, void *user)
{
    float x[12];
    int bad;

    (void)user;
    for (int i = 0; i < 12; i++) x[i] = (float)(i * (ddp_rank(d) + 1));
    bad = ddp_reduce_scatter(d, x, 4, 0.5f);
    for (int i = 0; i < 12 && !bad; i++)
        if (x[i] != (float)i * (i / 4 == ddp_rank(d) ? 3.0f : (float)(ddp_rank(d) + 1))) bad = 99;
    return bad;
}

static void reduce_scatter_is_a_public_call(void **state)
{
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *alone;
    float x[2] = {3, 4};
    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    alone = ddp_open(&cfg, &err);
    assert_int_equal(ddp_reduce_scatter(alone, x, 2, 0.5f), 0);
    assert_true(x[0] == 1.5f && x[1] == 2);
    assert_int_not_equal(ddp_reduce_scatter(alone, NULL, 2, 1), 0);
    ddp_close(alone);
    cfg.world = 3;
    cfg.transport = DDP_THREADS;
    if (ddp_launch(&cfg, scatter_call, NULL, &err)) fail_msg("%s", err.msg);
}

static ddp__links far_links[3];

static void far_from_two(ddp__engine_config *cfg, int rank) { cfg->links = &far_links[rank]; }

static void scatter_and_leave(net_rank *me, void *user)
{
    float x[3] = {1, 2, 3};
    ddp_piece piece;
    ddp_message m;

    (void)user;
    piece.data = x;
    piece.count = 3;
    net_message(&m, DDP_REDUCE_SCATTER, &piece, 1);
    net_ok(me, net_do(me, &m));
    if (x[me->rank] != 3 * (float)(me->rank + 1)) net_fail(me, "%g", (double)x[me->rank]);
}

/* Rank 2's data for rank 1 take long: rank 0 is done earlier, and may leave. */
static void finished_rank_may_leave_a_reduce_scatter(void **state)
{
    ddp__netspec none;
    ddp_error err;
    (void)state;
    memset(&none, 0, sizeof none);
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_setup set;
        for (int r = 0; r < 3; r++) {
            assert_int_equal(ddp__links_alike(&none, r, 3, 0, &far_links[r], &err), DDP_OK);
            far_links[r].farthest = 0.2;
        }
        far_links[1].path[2].delay_s = 0.2;
        net_defaults(&set, 3);
        set.tcp = tcp;
        set.tune = far_from_two;
        net_run(&set, scatter_and_leave, NULL);
        for (int r = 0; r < 3; r++) ddp__links_free(&far_links[r]);
    }
}

/* ---- the direct all-reduce is DT-FM's sharded exchange ---- */

enum { SHARDED = 5, LONG = 60007 };

static const ddp__wire_table *plain_wire[SHARDED];
static ddp__wire_table tapped[SHARDED];

/* Values that a rank has sent to a peer: before the sum, and after it. */
static struct {
    size_t part[2], result[2];
    int others;
} went[SHARDED][SHARDED]; /* first value, and number of values */

static long tap(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__frame f;
    const long took = plain_wire[w->rank]->send(w, peer, iov, count);

    if (took > 0 && iov[0].iov_len == DDP__FRAME_BYTES &&
        ddp__frame_decode((const unsigned char *)iov[0].iov_base, &f)) {
        size_t *at = f.type == DDP__FRAME_PART ? went[w->rank][peer].part : went[w->rank][peer].result;
        if (f.type != DDP__FRAME_PART && f.type != DDP__FRAME_RESULT) {
            went[w->rank][peer].others += f.length > 0;
            return took;
        }
        if (!at[1]) at[0] = f.offset;
        if (at[0] + at[1] != f.offset) went[w->rank][peer].others++; /* a value twice, or out of order */
        at[1] += ddp__frame_values(&f);
    }
    return took;
}

static void tap_wire(ddp__engine_config *cfg, int rank)
{
    plain_wire[rank] = cfg->wire->table;
    tapped[rank] = *cfg->wire->table;
    tapped[rank].send = tap;
    cfg->wire->table = &tapped[rank];
}

static void reduce_in_a_group(net_rank *me, void *user)
{
    static const int ranks[] = {0, 2, 3};
    float *data = (float *)calloc(LONG, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    int group = 0, in = 0;

    if (user) net_ok(me, ddp__engine_group(me->engine, ranks, 3, &group, &me->err));
    for (int i = 0; i < 3; i++) in |= ranks[i] == me->rank;
    piece.data = data;
    piece.count = LONG;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.group = group;
    if (in || !user) net_ok(me, net_do(me, &m));
    free(data);
}

/* Shard i of n. */
static size_t shard(size_t n, size_t i) { return LONG / n * i + LONG % n * i / n; }

/* Each member sends every other member its shard, and each owner sends its summed shard to all. Nothing else
 * is sent. */
static void direct_all_reduce_sends_each_shard_to_and_from_its_owner(void **state)
{
    static const int place[2][SHARDED] = {{0, 1, 2, 3, 4}, {0, -1, 1, 2, -1}};

    (void)state;
    for (int grouped = 0; grouped < 2; grouped++) {
        const size_t members = grouped ? 3 : SHARDED;
        int any = 1;
        net_setup set;
        net_defaults(&set, SHARDED);
        set.cfg.chunk_bytes = 4096; /* several chunks per shard */
        set.tune = tap_wire;
        memset(went, 0, sizeof went);
        net_run(&set, reduce_in_a_group, grouped ? &any : NULL);
        for (int a = 0; a < SHARDED; a++)
            for (int b = 0; b < SHARDED; b++) {
                const int i = place[grouped][a], j = place[grouped][b];
                assert_int_equal(went[a][b].others, 0);
                if (a == b || i < 0 || j < 0) {
                    assert_int_equal(went[a][b].part[1] + went[a][b].result[1], 0);
                    continue;
                }
                assert_int_equal(went[a][b].part[0], shard(members, (size_t)j));
                assert_int_equal(went[a][b].part[1],
                                 shard(members, (size_t)j + 1) - shard(members, (size_t)j));
                assert_int_equal(went[a][b].result[0], shard(members, (size_t)i));
                assert_int_equal(went[a][b].result[1],
                                 shard(members, (size_t)i + 1) - shard(members, (size_t)i));
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatter_and_all_gather_equal_an_all_reduce),
        cmocka_unit_test(reduce_scatters_overlap),
        cmocka_unit_test(finished_rank_may_leave_a_reduce_scatter),
        cmocka_unit_test(reduce_scatter_is_a_public_call),
        cmocka_unit_test(direct_all_reduce_sends_each_shard_to_and_from_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
