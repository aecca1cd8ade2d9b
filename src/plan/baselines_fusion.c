#include "base/platform.h"
#include "base/fail.h"
#include "plan/baselines.h"

/* Which rows travel as one message. */

/* Row `next` (nearer to the input) joins g: one startup for both, ready with the later. */
static void ddp__bl_join(ddp__bl_group *g, const ddp__bl_group *next, double alpha)
{
    g->first = next->first;
    g->ready = next->ready;
    g->c += next->c - alpha;
}

ddp_status ddp__bl_buckets(ddp__bl_model *m, ddp_error *err)
{
    double limit = m->o->first_bucket_bytes > 0 ? m->o->first_bucket_bytes : 1048576, bytes = 0;
    int i, row, kept = 0, open = 0;

    if (m->groups && !m->sized)
        return ddp__fail(err, DDP_ARG,
                         "no row that sends has params, so bucket_bytes %g cannot be applied; "
                         "give params or bucket_bytes 0 (rows are buckets)",
                         m->o->bucket_bytes);
    for (i = 0; i < m->groups; i++) {
        row = m->group[i].first;
        if (open) ddp__bl_join(&m->group[kept - 1], &m->group[i], m->alpha);
        else m->group[kept++] = m->group[i];
        bytes += 4 * m->p->params[row];
        open = bytes < limit;
        if (!open) bytes = 0, limit = m->o->bucket_bytes;
    }
    m->groups = kept;
    return DDP_OK;
}

/* Walking from the output side, start is when the group on top would begin under WFBP; joining
 * changes only what comes after it, so that one pass is enough. */
void ddp__bl_merge(ddp__bl_model *m)
{
    ddp__bl_group *top = m->group, *next;
    double start = m->groups ? top->ready : 0;
    int i;

    for (i = 1; i < m->groups; i++) {
        next = &m->group[i];
        if (next->ready < start + top->c &&
            (start > next->ready || next->ready - start < m->alpha)) {
            ddp__bl_join(top, next, m->alpha);
        } else {
            start += top->c;
            *++top = *next;
        }
        if (start < top->ready) start = top->ready;
    }
    if (m->groups) m->groups = (int)(top - m->group) + 1;
}
