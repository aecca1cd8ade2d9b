#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/baselines.h"

/* Partition and ByteScheduler. A group is one row here. */

ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err)
{
    const int most = DDP__BL_MOST_PARTS;
    const ddp_timeline_options *o = m->o;
    double params = o->partition_params > 0 ? o->partition_params : 6.5e6, total = 0, whole, k;
    int i;

    if (o->partition_s > 0 && !(o->partition_s > m->alpha))
        return ddp__fail(err, DDP_ARG,
                         "a partition of %g s is not longer than the startup of %g s; raise it",
                         o->partition_s, m->alpha);
    if (m->groups && !m->sized && !(o->partition_s > 0))
        return ddp__fail(err, DDP_ARG,
                         "no bucket that sends has params, so none can be cut by %g parameters; "
                         "give the partition in seconds (partition_s)",
                         params);
    for (i = 0; i < m->groups; i++) {
        if (o->partition_s > 0) whole = (m->group[i].c - m->alpha) / (o->partition_s - m->alpha);
        else whole = m->p->params[m->group[i].first] / params;
        k = ceil(whole - 1e-9); /* 3 x 0.1 s is three parts of 0.1 s, however it was rounded */
        if (k < 1) k = 1;
        total += k;
        if (!(total <= most))
            return ddp__fail(err, DDP_ARG,
                             "the partition cuts buckets %d to %d into %g parts; more than %d "
                             "cannot be planned, raise it",
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

/* Groups become ready from the output side, so the best by row among those that wait is always
 * the newest: the queue is a stack of groups, each with the parts it still has to send. */
ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    double limit = m->o->credit > 0 ? m->o->credit : 1, out = 0, now, link = 0;
    int *stack, *left, depth = 0, arrived = 0, total = 0, head = 0, tail = 0, i;
    ddp__bl_sent *sent;

    for (i = 0; i < m->groups; i++) total += m->parts[i];
    sent = (ddp__bl_sent *)ddp__calloc((size_t)total, sizeof *sent);
    stack = (int *)ddp__calloc(2 * (size_t)m->groups, sizeof *stack);
    if (!sent || !stack) {
        DDP_FREE(sent);
        DDP_FREE(stack);
        return ddp__fail(err, DDP_MEMORY, "no memory for %d parts", total);
    }
    left = stack + m->groups;
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
            double begin = link > now ? link : now;
            link = begin + m->alpha + (m->group[g].c - m->alpha) / m->parts[g];
            ddp__bl_note(log, &m->group[g], part, 1, begin, link);
            out += m->size[g];
            sent[tail].group = g;
            sent[tail].end = link;
            sent[tail++].last = --left[g] == 0;
            if (left[g] == 0) depth--;
        }
    }
    DDP_FREE(sent);
    DDP_FREE(stack);
    return DDP_OK;
}
