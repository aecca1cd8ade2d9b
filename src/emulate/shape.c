/* Computes when bytes leave an emulated link and when they count as received. All functions are pure
 * arithmetic on the caller's times, so that rates are exact even if a thread wakes up late. */
#include "emulate/links.h"

/* Returns the rate at a time. *next receives the index of the first change after it. */
static double ddp__link_rate(const ddp__link *l, double at, int *next)
{
    double rate = l->rate;
    int i = 0;

    while (i < l->turns && l->zero + l->turn[i].at <= at) rate = l->turn[i++].rate;
    *next = i;
    return rate;
}

double ddp__link_pass(const ddp__link *l, double start, double bytes)
{
    int next;
    double rate = ddp__link_rate(l, start, &next);

    for (; next < l->turns; rate = l->turn[next++].rate) {
        double until = l->zero + l->turn[next].at, done = rate > 0 ? start + bytes / rate : start;
        if (rate >= 0 && done <= until) return done;
        if (rate > 0) bytes -= rate * (until - start);
        start = until;
    }
    return rate > 0 ? start + bytes / rate : start;
}

int ddp__link_stalled(const ddp__link *l, double at)
{
    int next;

    return l->turns > 0 && ddp__link_rate(l, at, &next) < 0;
}

double ddp__link_turns(const ddp__link *l, double at)
{
    int next;

    (void)ddp__link_rate(l, at, &next);
    return next < l->turns ? l->zero + l->turn[next].at : -1;
}

double ddp__link_send(ddp__link *l, ddp__path *to, double ready, size_t bytes)
{
    double start = ready > l->up_free ? ready : l->up_free, leaves;

    if (to->free > start) start = to->free;
    leaves = l->up_free = ddp__link_pass(l, start, (double)bytes);
    to->free = to->rate > 0 ? start + (double)bytes / to->rate : start;
    if (to->free > leaves) leaves = to->free;
    if (l->one_at_a_time) l->up_free = leaves;
    return leaves;
}

double ddp__path_receive(ddp__path *from, double left)
{
    double there = left + from->delay_s;

    if (from->jitter_s > 0) there += from->jitter_s * ddp_rng_uniform(&from->rng);
    if (there > from->last) from->last = there;
    return from->last;
}

double ddp__link_due(const ddp__link *l, double arrival, size_t bytes)
{
    /* The sender has already serialised the frame: the last byte of an uncontended frame arrives at
     * `arrival`, so that its first byte entered this downlink bytes/rate earlier. */
    double done = ddp__link_pass(l, arrival, 0), behind = ddp__link_pass(l, l->down_free, (double)bytes);

    return behind > done ? behind : done;
}

double ddp__link_receive(ddp__link *l, double arrival, size_t bytes)
{
    return l->down_free = ddp__link_due(l, arrival, bytes);
}

double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes)
{
    double done = ddp__link_pass(l, arrival, 0), taken = ddp__link_pass(l, done, (double)bytes) - done;

    if (l->down_free > done - taken) l->down_free += taken;
    return done;
}

size_t ddp__link_chunk(double rate)
{
    double bytes = rate > 0 ? rate * 0.001 : (double)DDP__CHUNK_MAX;
    if (bytes < 4.0 * 1024) bytes = 4.0 * 1024;
    if (bytes > (double)DDP__CHUNK_MAX) bytes = (double)DDP__CHUNK_MAX;
    return (size_t)bytes / 64 * 64;
}
