/* The baselines that send by priority: ByteScheduler's parts and US-Byte's unequal operations. */
#include "base/core.h"
#include "plan/internal.h"

/* ---- partition, ByteScheduler; a group is one row here ---- */

ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err)
{
    const int most = DDP__BL_MOST_PARTS;
    double longest = m->o->partition_s, total = 0, whole, k;

    for (int i = 0; i < m->groups; i++) {
        if (longest > 0) whole = (m->group[i].c - m->alpha) / (longest - m->alpha);
        else whole = m->p->params[m->group[i].first] / m->most_params;
        k = ceil(whole - 1e-9); /* 3 x 0.1 s is three parts of 0.1 s, however it was rounded */
        if (k < 1) k = 1;
        total += k;
        if (!(total <= most))
            return ddp__fail(err, DDP_ARG,
                             "the partition cuts buckets %d to %d into %g parts; more than %d cannot be planned, raise "
                             "it",
                             m->group[i].first, m->group[0].first, total, most);
        m->parts[i] = (int)k;
        m->size[i] = whole / k < 1 ? whole / k : 1;
    }
    return DDP_OK;
}

/* A part that was committed to the link and has not arrived. */
typedef struct ddp__bl_sent {
    int    group, last;
    double end;
} ddp__bl_sent;

/* Groups become ready from the output side, so the best by row among those that wait is always the newest: the queue is
 * a stack of groups, each with the parts it still has to send. */
ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    double limit = m->o->credit > 0 ? m->o->credit : 1, out = 0, now, link = 0;
    int *stack, *left, depth = 0, arrived = 0, total = 0, head = 0, tail = 0, i;
    ddp__bl_sent *sent;

    for (i = 0; i < m->groups; i++) total += m->parts[i];
    sent = (ddp__bl_sent *)ddp__scratch_take(&m->room, (size_t)total, sizeof *sent);
    stack = ddp__ints(&m->room, (size_t)m->groups);
    left = ddp__ints(&m->room, (size_t)m->groups);
    if (m->room.failed) return ddp__fail(err, DDP_MEMORY, "no memory for %d parts", total);
    while (head < total) {
        now = arrived < m->groups ? m->group[arrived].ready : INFINITY;
        if (head < tail && sent[head].end < now) now = sent[head].end;
        for (; arrived < m->groups && m->group[arrived].ready <= now; arrived++) {
            stack[depth++] = arrived;
            left[arrived] = m->parts[arrived];
        }
        for (; head < tail && sent[head].end <= now; head++) {
            if (sent[head].last) m->arrive[m->group[sent[head].group].first] = sent[head].end;
            out = head + 1 == tail ? 0 : out - m->size[sent[head].group];
        }
        /* credit is what is left of the limit; a rounding error is none */
        while (depth && limit - out > 1e-9 * limit) {
            int g = stack[depth - 1], part = m->parts[g] - left[g];
            double begin = ddp__link_take(&link, now, m->alpha);
            link += (m->group[g].c - m->alpha) / m->parts[g];
            ddp__bl_note(log, &m->group[g], part, 1, begin, link);
            out += m->size[g];
            sent[tail].group = g;
            sent[tail].end = link;
            sent[tail++].last = --left[g] == 0;
            if (left[g] == 0) depth--;
        }
    }
    return DDP_OK;
}

/* ---- US-Byte: operations of unequal size fill the gaps between ready gradients. The parts of a group are its blocks.
 * ---- */

typedef struct ddp__bl_us {
    ddp__bl_model *m;
    int           *priority; /* [groups] 0 = first */
    int           *left;     /* [groups] blocks still to send */
    int           *waiting;  /* ready groups with blocks left, the best one last */
    double        *first;    /* [groups] begin of a group's first operation */
    int64_t        visits;   /* groups simulated so far */
} ddp__bl_us;

static double ddp__bl_blocks(const ddp__bl_model *m, int g, int k)
{
    return k * ((m->group[g].c - m->alpha) / m->parts[g]);
}

/* Blocks of g that the gap until the next ready gradient asks for; the last may overrun it. */
static int ddp__bl_fill(const ddp__bl_us *u, int g, double gap, double startup)
{
    double one = ddp__bl_blocks(u->m, g, 1), k;

    if (startup + ddp__bl_blocks(u->m, g, u->left[g]) <= gap) return u->left[g];
    if (gap <= startup) return 1;
    k = ceil((gap - startup) / one);
    return k < u->left[g] ? (int)k : u->left[g];
}

/* Sends k blocks from time t, `more` of the operation before or a new one; returns the end. */
static double ddp__bl_send(ddp__bl_us *u, int g, int k, double t, int more, ddp__bl_log *log)
{
    ddp__bl_model *m = u->m;
    double end = t + (more ? 0 : m->alpha) + ddp__bl_blocks(m, g, k);
    int done = m->parts[g] - u->left[g];

    if (done == 0) u->first[g] = t;
    if (log && more) {
        log->at[log->count - 1].parts += k;
        log->at[log->count - 1].end_s = end;
    } else {
        ddp__bl_note(log, &m->group[g], done, k, t, end);
    }
    u->left[g] -= k;
    if (u->left[g] == 0) m->arrive[m->group[g].first] = end;
    return end;
}

/* One iteration under u->priority; its length. */
static double ddp__bl_us_run(ddp__bl_us *u, ddp__bl_log *log)
{
    ddp__bl_model *m = u->m;
    double t = 0, next;
    int i, g, w, k, waits = 0, arrived = 0, before = -1;

    u->visits += m->groups;
    for (i = 0; i < m->groups; i++) u->left[i] = m->parts[i];
    while (t < m->backward) {
        for (; arrived < m->groups && m->group[arrived].ready <= t; arrived++) {
            for (w = waits++; w > 0 && u->priority[u->waiting[w - 1]] < u->priority[arrived]; w--)
                u->waiting[w] = u->waiting[w - 1];
            u->waiting[w] = arrived;
        }
        next = arrived < m->groups ? m->group[arrived].ready : m->backward;
        if (!waits) {
            t = next;
            before = -1;
            continue;
        }
        g = u->waiting[waits - 1];
        k = ddp__bl_fill(u, g, next - t, g == before ? 0 : m->alpha);
        t = ddp__bl_send(u, g, k, t, g == before, log);
        if (u->left[g] == 0) waits--;
        before = g;
    }
    for (i = m->groups - 1; i >= 0; i--)
        if (u->left[i]) t = ddp__bl_send(u, i, u->left[i], t, 0, log);
    return ddp__bl_forward_end(m);
}

/* Gives group g the priority of group `to`, which and those between step back by one. While the search has not come to
 * them, groups nearer to the input still have their own places. */
static void ddp__bl_promote(int *priority, int g, int to)
{
    int i, best = priority[to];

    for (i = to; i > g; i--) priority[i]++;
    priority[g] = best;
}

static void ddp__bl_demote(int *priority, int g, int to)
{
    int i, own = priority[g + 1];

    for (i = g + 1; i <= to; i++) priority[i]--;
    priority[g] = own;
}

/* Bounds the search for lists far beyond any model, the same on every machine: seconds. */
enum { DDP__BL_MOST_VISITS = 100000000 };

/* From the output side: could a group have been sent whole, had it gone before those that became ready meanwhile? */
static void ddp__bl_us_search(ddp__bl_us *u)
{
    ddp__bl_model *m = u->m;
    double best = ddp__bl_us_run(u, NULL), tau, t;
    int g = 0, to;

    while (g < m->groups - 1 && u->visits < DDP__BL_MOST_VISITS) {
        tau = u->first[g] + m->group[g].c;
        for (to = g; to < m->groups - 1 && m->group[to + 1].ready < tau; to++) {
        }
        if (to > g) {
            ddp__bl_promote(u->priority, g, to);
            t = ddp__bl_us_run(u, NULL);
            if (t < best * (1 - 1e-12)) { /* more than rounding */
                best = t;
                g = to + 1;
                continue;
            }
            ddp__bl_demote(u->priority, g, to);
            ddp__bl_us_run(u, NULL); /* restores u->first */
        }
        g++;
    }
}

ddp_status ddp__bl_usbyte(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    size_t n = (size_t)m->groups;
    ddp__bl_us u;

    u.m = m;
    u.visits = 0;
    u.priority = m->priority;
    u.left = ddp__ints(&m->room, n);
    u.waiting = ddp__ints(&m->room, n);
    u.first = ddp__doubles(&m->room, n);
    if (m->room.failed) return ddp__fail(err, DDP_MEMORY, "no memory for %d buckets", m->groups);
    ddp__bl_us_search(&u);
    ddp__bl_us_run(&u, log);
    return DDP_OK;
}
