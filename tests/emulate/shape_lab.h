/* Measures transfers over shaped links. Include after dreamddp.h and cmocka.h; includes sources of wires. */
#ifndef SHAPE_LAB_H
#define SHAPE_LAB_H

#include "comm/net_world.h"

typedef struct transfer {
    ddp_verb verb;
    size_t n;     /* number of floats */
    int messages; /* submitted together, n floats each */
    int world;
    double rate, delay_s, predicted;
    double bound; /* traffic over rate, plus one delay: the lower bound */
    double begin[8], end[8];
    int to_zero; /* every rank except 0 sends to rank 0 */
    int to_one;  /* first, all ranks send to one rank, which must not change the timing */
    int drowsy;  /* comm threads wake up 3 ms late from every sleep */
} transfer;

static void time_transfer(net_rank *me, void *user)
{
    transfer *t = (transfer *)user;
    float *data = (float *)calloc(t->n * (size_t)t->messages + 64, sizeof *data);
    float token[8];
    ddp_piece piece;
    ddp_message m;
    ddp__op_span span[16];
    long tickets[16];
    int count = 0;

    memset(token, 0, sizeof token);
    piece.data = token;
    piece.count = t->to_one ? 1 : 8;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m)); /* a barrier, then all ranks start together */
    net_ok(me, net_do(me, &m));
    ddp__sleep_until(ddp_now() + 0.02);
    t->begin[me->rank] = ddp_now();
    for (int i = 0; i < t->messages; i++) {
        piece.data = data + (size_t)i * t->n;
        piece.count = t->n;
        net_message(&m, t->verb, &piece, 1);
        if (t->to_zero) {
            m.verb = me->rank == 0 ? DDP_RECEIVE : DDP_SEND;
            m.peer = me->rank == 0 ? i + 1 : 0;
            if (me->rank != 0 && me->rank != i + 1) continue;
        }
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[count++], &me->err));
    }
    for (int i = 0; i < count; i++) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    /* when the last byte was due: the model does not depend on when this machine woke the threads */
    t->end[me->rank] = t->begin[me->rank];
    count = ddp__engine_spans(me->engine, t->begin[me->rank], ddp_now(), span, 16);
    for (int i = 0; i < count; i++)
        if (span[i].due > t->end[me->rank]) t->end[me->rank] = span[i].due;
    free(data);
}

static const ddp__wire_table *awake_table;

static void wait_too_long(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                          double until)
{
    awake_table->wait(w, want_send, want_recv, until);
    ddp__sleep_until(ddp_now() + 0.003);
}

static void make_drowsy(ddp__engine_config *cfg, int rank)
{
    static ddp__wire_table tables[8];

    tables[rank] = *cfg->wire->table;
    tables[rank].wait = wait_too_long;
    cfg->wire->table = &tables[rank];
}

/* Runs the transfer over threads or TCP. Returns its duration in seconds, which must not be below the bound.
 * */
static double run_transfer(transfer *t, int tcp)
{
    double begin, end;
    net_setup set;

    net_defaults(&set, t->world);
    set.tcp = tcp;
    set.cfg.peer_timeout_s = set.cfg.op_timeout_s = 100; /* reached only after a failure */
    set.rate = t->rate;
    set.delay_s = t->delay_s;
    if (t->drowsy) {
        awake_table = tcp ? &ddp__tcp_table : &ddp__threads_table;
        set.tune = make_drowsy;
    }
    net_run(&set, time_transfer, t);
    begin = t->begin[0];
    end = t->end[0];
    for (int r = 1; r < t->world; r++) {
        if (t->begin[r] < begin) begin = t->begin[r];
        if (t->end[r] > end) end = t->end[r];
    }
    if (end - begin < t->bound)
        fail_msg("took %.4f s; nothing can be faster than %.4f s", end - begin, t->bound);
    return end - begin;
}

/* An all-reduce between world ranks. Each rank sends and receives 2 (world - 1) / world of the bytes, and
 * results may follow contributions without a pause. */
static DDP__UNUSED transfer all_reduce_of(int world, int messages, size_t n, double rate, double delay_s)
{
    transfer t;
    memset(&t, 0, sizeof t);
    t.verb = DDP_ALL_REDUCE;
    t.world = world;
    t.messages = messages;
    t.n = n;
    t.rate = rate;
    t.delay_s = delay_s;
    t.predicted = messages * (2.0 * (world - 1) / world * (double)(n * 4) / rate) + 2 * delay_s;
    t.bound = t.predicted - delay_s;
    return t;
}

#endif /* SHAPE_LAB_H */
