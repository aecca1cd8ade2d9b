/* Many messages of every kind with random sizes, priorities and submission times. */
#ifndef NET_STRESS_H
#define NET_STRESS_H

#include "comm/net_world.h"

/* Whether an all-reduce of n floats uses the ring, if ring_bytes is set. */
static DDP__UNUSED int net_rings(const net_setup *set, size_t n)
{
    return !set->cfg.deterministic && set->world > 2 && set->cfg.ring_bytes &&
           n * sizeof(float) >= set->cfg.ring_bytes;
}

/* The rank that finishes the sum of value k. */
static DDP__UNUSED int net_segment_of(size_t k, size_t n, int world)
{
    size_t w = (size_t)world, j = 0;
    while (k >= n / w * (j + 1) + n % w * (j + 1) / w) j++;
    return (int)j;
}

static DDP__UNUSED int cut_pieces(ddp_piece *pieces, int want, float *data, size_t n)
{
    size_t at = 0;
    for (int i = 0; i < want; i++) {
        size_t end = i + 1 == want ? n : n * (size_t)(i + 1) / (size_t)want - (size_t)(i % 3 == 1 && n > 100);
        pieces[i].data = data + at + (size_t)i; /* one float of space between pieces */
        pieces[i].count = end - at;
        at = end;
    }
    return want;
}

enum { STRESS_MESSAGES = INSTANCES(200) + 30, STRESS_FLOATS = 6000 };

typedef struct stress_plan {
    ddp_verb verb;
    size_t n;
    int peer, priority, pieces;
} stress_plan;

static void make_stress(stress_plan *plan, int world, uint64_t seed)
{
    static const ddp_verb verbs[] = {DDP_ALL_REDUCE, DDP_BROADCAST, DDP_ALL_GATHER, DDP_SEND};
    ddp_rng rng = ddp_rng_seed(seed, 1);
    for (int i = 0; i < STRESS_MESSAGES; i++) {
        stress_plan *p = &plan[i];
        p->verb = ddp_rng_below(&rng, 4) < 2 ? DDP_ALL_REDUCE : verbs[ddp_rng_below(&rng, 4)];
        p->n = ddp_rng_below(&rng, 8) == 0 ? ddp_rng_below(&rng, 4) : ddp_rng_below(&rng, STRESS_FLOATS);
        if (p->verb == DDP_ALL_GATHER) p->n = p->n / (size_t)world * (size_t)world;
        p->peer = (int)ddp_rng_below(&rng, (uint64_t)world);
        p->priority = (int)ddp_rng_below(&rng, 5);
        p->pieces = 1 + (int)ddp_rng_below(&rng, 5);
    }
}

/* Values of rank `rank` in message i before it, and after. For DDP_SEND, rank p->peer sends to the next rank.
 * */
static float stress_before(int rank, int i, size_t k) { return net_value(rank, k, (unsigned)i + 10); }

static float stress_after(const net_rank *me, const stress_plan *p, int i, size_t k)
{
    int world = me->world, rank = me->rank, first = 0;
    float sum;
    switch (p->verb) {
    case DDP_ALL_REDUCE:
        if (net_rings(me->set, p->n)) first = net_segment_of(k, p->n, world) + 1;
        sum = stress_before(first % world, i, k);
        for (int r = 1; r < world; r++) sum += stress_before((first + r) % world, i, k);
        return sum * 0.5f;
    case DDP_BROADCAST:
        return stress_before(p->peer, i, k);
    case DDP_ALL_GATHER:
        return stress_before((int)(k / (p->n / (size_t)world)), i, k);
    default:
        return stress_before(rank == (p->peer + 1) % world ? p->peer : rank, i, k);
    }
}

static void stress(net_rank *me, void *user)
{
    stress_plan *plan = (stress_plan *)calloc(STRESS_MESSAGES, sizeof *plan);
    float *data = (float *)calloc((size_t)STRESS_MESSAGES * (STRESS_FLOATS + 8), sizeof *data);
    long tickets[STRESS_MESSAGES];
    ddp_rng rng = ddp_rng_seed(*(uint64_t *)user, 100 + (uint64_t)me->rank);

    make_stress(plan, me->world, *(uint64_t *)user);
    for (int i = 0; i < STRESS_MESSAGES; i++) {
        const stress_plan *p = &plan[i];
        ddp_piece pieces[5];
        ddp_message m;
        size_t k = 0;
        cut_pieces(pieces, p->pieces, data + (size_t)i * (STRESS_FLOATS + 8), p->n);
        for (int q = 0; q < p->pieces; q++)
            for (size_t j = 0; j < pieces[q].count; j++) pieces[q].data[j] = stress_before(me->rank, i, k++);
        net_message(&m, p->verb, pieces, p->pieces);
        m.scale = 0.5f;
        m.peer = p->peer;
        m.priority = p->priority;
        m.layer = i % 4;
        tickets[i] = -1;
        if (p->verb >= DDP_SEND) {
            int to = (p->peer + 1) % me->world;
            if (me->rank != p->peer && me->rank != to) continue;
            m.verb = me->rank == p->peer ? DDP_SEND : DDP_RECEIVE;
            m.peer = me->rank == p->peer ? to : p->peer;
        }
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[i], &me->err));
        if (ddp_rng_below(&rng, 6) == 0)
            ddp__sleep_until(ddp_now() + 0.0003 * (double)ddp_rng_below(&rng, 6));
        if (i > 8 && ddp_rng_below(&rng, 10) == 0)
            net_ok(me, ddp__engine_wait(me->engine, tickets[i - 8], &me->err));
    }
    for (int i = 0; i < STRESS_MESSAGES; i++) {
        ddp_piece pieces[5];
        size_t k = 0;
        if (tickets[i] >= 0) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
        cut_pieces(pieces, plan[i].pieces, data + (size_t)i * (STRESS_FLOATS + 8), plan[i].n);
        for (int q = 0; q < plan[i].pieces; q++)
            for (size_t j = 0; j < pieces[q].count; j++, k++) {
                float want = stress_after(me, &plan[i], i, k);
                if (memcmp(&want, &pieces[q].data[j], sizeof want))
                    net_fail(me, "message %d (verb %d) value %lu: %g, not %g", i, (int)plan[i].verb,
                             (unsigned long)k, (double)pieces[q].data[j], (double)want);
            }
    }
    free(plan);
    free(data);
}

#endif /* NET_STRESS_H */
