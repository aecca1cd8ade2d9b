#include "base/platform.h"
#include "net/shape.h"

double ddp__link_send(ddp__link *l, double ready, size_t bytes)
{
    double start = ready > l->up_free ? ready : l->up_free;
    l->up_free = start + (l->rate > 0 ? (double)bytes / l->rate : 0);
    return l->up_free;
}

double ddp__link_due(const ddp__link *l, double arrival, size_t bytes)
{
    double done = arrival + l->delay_s;
    if (l->rate > 0) {
        /* The sender's serialisation has passed already: the last byte of an uncontended frame
         * is here at arrival + delay, so its first one entered our downlink bytes/rate before. */
        double behind = l->down_free + (double)bytes / l->rate;
        if (behind > done) done = behind;
    }
    return done;
}

double ddp__link_receive(ddp__link *l, double arrival, size_t bytes)
{
    double done = ddp__link_due(l, arrival, bytes);
    l->down_free = done;
    return done;
}

double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes)
{
    if (l->rate > 0) {
        double done = arrival + l->delay_s;
        if (l->down_free > done - (double)bytes / l->rate) l->down_free += (double)bytes / l->rate;
    }
    return arrival + l->delay_s;
}

size_t ddp__link_chunk(double rate)
{
    double bytes = rate > 0 ? rate * 0.001 : 128.0 * 1024;
    if (bytes < 4.0 * 1024) bytes = 4.0 * 1024;
    if (bytes > 128.0 * 1024) bytes = 128.0 * 1024;
    return (size_t)bytes / 64 * 64;
}
