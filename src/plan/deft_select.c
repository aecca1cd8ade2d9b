#include "base/core.h"
#include "plan/deft_core.h"
#include "plan/knapsack_core.h"

/* One stage's choice of parts: Knap and SelectNew of the plan (stated in plan/deft.h). */

/* Lists the parts left of buckets 0..last, output side first, into item; returns their number. */
static int ddp__deft_list(ddp__deft *d, const int *left, int last, double offset)
{
    int i, j, n = 0;

    for (i = last; i >= 0; i--)
        for (j = 0; j < left[i]; j++) {
            d->item[n] = d->part_s[i];
            d->item_ready[n] = offset + d->ready[i];
            d->bucket[n++] = i;
        }
    return n;
}

/* Fills the links from start[l] to room with the n listed parts; adds up what goes where. */
static ddp_status ddp__deft_fill(ddp__deft *d, int n, const double *ready, const double *start, double room, int *on,
                                 double *sum, int *sent, ddp_error *err)
{
    ddp_knapsack_problem p;

    memset(on, 0, 2 * (size_t)d->buckets * sizeof *on);
    *sum = 0;
    *sent = 0;
    if (n == 0 || !(room > 0)) return DDP_OK;
    memset(&p, 0, sizeof p);
    p.items = n;
    p.item_s = d->item;
    p.ready_s = ready;
    p.links = d->links;
    for (int l = 0; l < d->links; l++) {
        p.start_s[l] = start[l];
        p.deadline_s[l] = room;
        p.slowdown[l] = l ? d->mu : 1;
    }
    DDP__TRY(ddp__knapsack_within(&p, d->solver, d->most, d->assign, sum, err));
    for (int i = 0; i < n; i++)
        if (d->assign[i] >= 0) {
            on[d->assign[i] * d->buckets + d->bucket[i]]++;
            ++*sent;
        }
    return DDP_OK;
}

ddp_status ddp__deft_old(ddp__deft *d, const int *left, double room, int *on, int *all, ddp_error *err)
{
    static const double now[2] = {0, 0};
    int n = ddp__deft_list(d, left, d->buckets - 1, 0), sent = 0;
    double sum = 0;

    DDP__TRY(ddp__deft_fill(d, n, NULL, now, room, on, &sum, &sent, err));
    *all = sent == n;
    return DDP_OK;
}

/* Algorithm 1: level j knows only that nothing can start before bucket j is ready, and forgets that the buckets nearer
 * to the input are ready later still. Equal sums keep the shorter list. */
static ddp_status ddp__deft_levels(ddp__deft *d, const int *left, const double *busy, double offset, double room,
                                   int *on, ddp_error *err)
{
    int *best = d->count + 2 * d->buckets, j, l, n, sent;
    double start[2], sum, most = 0;

    memset(best, 0, 2 * (size_t)d->buckets * sizeof *best);
    for (j = 0; j < d->buckets; j++) {
        n = ddp__deft_list(d, left, j, offset);
        for (l = 0; l < 2; l++) start[l] = busy[l] > offset + d->ready[j] ? busy[l] : offset + d->ready[j];
        DDP__TRY(ddp__deft_fill(d, n, NULL, start, room, on, &sum, &sent, err));
        if (!(sum > most)) continue;
        most = sum;
        memcpy(best, on, 2 * (size_t)d->buckets * sizeof *best);
    }
    memcpy(on, best, 2 * (size_t)d->buckets * sizeof *best);
    return DDP_OK;
}

ddp_status ddp__deft_new(ddp__deft *d, const int *left, const double *busy, double offset, double room, int *on,
                         ddp_error *err)
{
    double sum = 0;
    int sent, n;

    if (d->select == DDP_SELECT_PAPER) return ddp__deft_levels(d, left, busy, offset, room, on, err);
    n = ddp__deft_list(d, left, d->buckets - 1, offset);
    return ddp__deft_fill(d, n, d->item_ready, busy, room, on, &sum, &sent, err);
}
