/* Blocking calls in which the calling thread drives the engine, next to messages of other threads. */
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

enum { CALLS = 300, VALUES = 700, BATCHES = 50 };

static const ddp__wire_table *real[8];
static ddp__wire_table counting[8];
static pthread_t caller[8];
static int sends[8]; /* sends by the caller itself */

static long count_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    if (pthread_equal(pthread_self(), caller[w->rank])) sends[w->rank]++;
    return real[w->rank]->send(w, peer, iov, count);
}

static void count_sends(ddp__engine_config *cfg, int rank)
{
    real[rank] = cfg->wire->table;
    counting[rank] = *real[rank];
    counting[rank].send = count_send;
    cfg->wire->table = &counting[rank];
    caller[rank] = pthread_self(); /* the rank's thread opens the engine */
    sends[rank] = 0;
}

static void prepare(net_setup *s, int world, int tcp)
{
    net_defaults(s, world);
    s->tcp = tcp;
    s->tune = count_sends;
}

static void sum_once(net_rank *me, int call)
{
    float data[VALUES];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    for (size_t i = 0; i < VALUES; i++) data[i] = net_value(me->rank, i, (unsigned)call);
    piece.data = data;
    piece.count = VALUES;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    s = ddp__engine_run(me->engine, &m, &me->err);
    net_ok(me, s);
    for (size_t i = 0; s == DDP_OK && i < VALUES; i++) {
        float want = net_value(0, i, (unsigned)call);
        for (int r = 1; r < me->world; r++) want += net_value(r, i, (unsigned)call);
        if (data[i] != want) net_fail(me, "call %d: value %d is wrong", call, (int)i);
    }
}

/* If other programs keep the processors busy, calls are not consecutive: repeats until the callers drive a
 * whole batch. */
static void many_sums(net_rank *me, void *user)
{
    float willing = 0;

    (void)user;
    for (int batch = 0; batch < BATCHES && willing < (float)me->world && !me->err.code; batch++) {
        ddp_piece piece;
        ddp_message m;
        sends[me->rank] = 0;
        for (int call = 0; call < CALLS; call++) sum_once(me, call);
        willing = sends[me->rank] >= CALLS / 4;
        piece.data = &willing;
        piece.count = 1;
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        net_ok(me, ddp__engine_run(me->engine, &m, &me->err));
    }
    if (willing < (float)me->world)
        net_fail(me, "%g of %d callers sent often enough; this one %d times in %d calls", (double)willing,
                 me->world, sends[me->rank], CALLS);
}

static void caller_drives_consecutive_calls(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 2; world <= 3; world++) {
            net_setup set;
            prepare(&set, world, tcp);
            net_run(&set, many_sums, NULL);
        }
}

/* Neighbours exchange values while the sums continue. */
static void *exchange(void *arg)
{
    net_rank other = *(net_rank *)arg;
    net_rank *me = &other;

    for (int call = 0; call < CALLS; call++) {
        float out = (float)(1000 * me->rank + call), in = -1;
        ddp_piece give, take;
        ddp_message m;
        long ticket = 0;
        int from = (me->rank + me->world - 1) % me->world;
        give.data = &out;
        take.data = &in;
        give.count = take.count = 1;
        net_message(&m, DDP_SEND, &give, 1);
        m.peer = (me->rank + 1) % me->world;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
        net_message(&m, DDP_RECEIVE, &take, 1);
        m.peer = from;
        net_ok(me, call % 2 ? net_do(me, &m) : ddp__engine_run(me->engine, &m, &me->err));
        net_ok(me, ddp__engine_wait(me->engine, ticket, &me->err));
        if (in != (float)(1000 * from + call)) net_fail(me, "exchange %d got %g", call, (double)in);
    }
    if (me->failure[0]) memcpy(((net_rank *)arg)->failure, me->failure, sizeof me->failure);
    return NULL;
}

static void sums_beside_exchanges(net_rank *me, void *user)
{
    net_rank mine = *me; /* two threads record failures */
    pthread_t thread;

    (void)user;
    if (pthread_create(&thread, NULL, exchange, &mine)) {
        net_fail(me, "no thread");
        return;
    }
    for (int call = 0; call < CALLS; call++) sum_once(me, call);
    pthread_join(thread, NULL);
    if (mine.failure[0]) net_fail(me, "%.250s", mine.failure);
}

static void other_threads_use_the_engine_at_the_same_time(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 2; world <= 4; world++) {
            net_setup set;
            prepare(&set, world, tcp);
            net_run(&set, sums_beside_exchanges, NULL);
        }
}

/* The last rank fails while the others are in a call. */
static void fail_in_the_midst(net_rank *me, void *user)
{
    float x = 1;
    ddp_piece piece;
    ddp_message m;

    (void)user;
    for (int call = 0; call < 20; call++) sum_once(me, call);
    if (me->rank == me->world - 1) {
        ddp__sleep_until(ddp_now() + 0.02);
        ddp__engine_abort(me->engine, DDP_ABORTED, "enough");
        return;
    }
    piece.data = &x;
    piece.count = 1;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    if (ddp__engine_run(me->engine, &m, &me->err) != DDP_ABORTED || !strstr(me->err.msg, "enough"))
        net_fail(me, "not an abort: %.200s", me->err.msg);
    if (ddp__engine_run(me->engine, &m, &me->err) != DDP_ABORTED) net_fail(me, "the call continued");
}

static void abort_ends_a_call_in_progress(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_setup set;
        prepare(&set, 3, tcp);
        net_run(&set, fail_in_the_midst, NULL);
    }
}

/* A caller that drove the engine for longer than the comm thread parks returns it: no rank is lost while all
 * are idle. */
enum { IDLE_TIMEOUT_S = 2 };

static void idle_after_a_long_call(net_rank *me, void *user)
{
    (void)user;
    for (int call = 0; call < 3; call++) sum_once(me, call);
    if (me->rank == 1) ddp__sleep_until(ddp_now() + 0.05);
    sum_once(me, 3);
    ddp__sleep_until(ddp_now() + 3 * IDLE_TIMEOUT_S);
    sum_once(me, 4);
}

static void idle_ranks_survive_three_time_outs(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 3);
    set.tcp = NET_TCP; /* threads of one process do not time out, and over emulated links no caller drives */
    set.cfg.peer_timeout_s = IDLE_TIMEOUT_S;
    net_run(&set, idle_after_a_long_call, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caller_drives_consecutive_calls),
        cmocka_unit_test(other_threads_use_the_engine_at_the_same_time),
        cmocka_unit_test(abort_ends_a_call_in_progress),
        cmocka_unit_test(idle_ranks_survive_three_time_outs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
