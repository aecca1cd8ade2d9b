/* The layer timer: samples, their medians, and the names of span kinds. */
#include "base/core.h"
#include "profile/timer.h"
#include "profile/trace.h"

void ddp__timer_open(ddp__timer *t, int layers, int steps, ddp__scratch *lists)
{
    t->layers = layers;
    t->room = steps;
    t->sample =
        (float *)ddp__scratch_take(lists, (size_t)layers * (size_t)steps * DDP__T_KINDS, sizeof *t->sample);
}

double ddp__timer_whole(const ddp__timer *t) { return t->whole; }

static float *ddp__timer_cell(const ddp__timer *t, int step, ddp__timer_kind kind, int layer)
{
    return t->sample + ((size_t)step * DDP__T_KINDS + (size_t)kind) * (size_t)t->layers + layer;
}

void ddp__timer_add(ddp__timer *t, ddp__timer_kind kind, int layer, double seconds)
{
    if (t->steps < t->room) *ddp__timer_cell(t, t->steps, kind, layer) += (float)seconds;
}

void ddp__timer_add_whole(ddp__timer *t, double seconds)
{
    /* the first step is warm-up */
    if (t->steps >= 1 && t->steps < t->room) t->whole += seconds / (t->room > 1 ? t->room - 1 : 1);
}

void ddp__timer_step(ddp__timer *t)
{
    if (t->steps < t->room) t->steps++;
}

/* Seconds of a layer in a step, or of all layers together for layer -1. */
static double ddp__timer_value(const ddp__timer *t, int step, ddp__timer_kind kind, int layer)
{
    double sum = 0;
    if (layer >= 0) return (double)*ddp__timer_cell(t, step, kind, layer);
    for (int l = 0; l < t->layers; l++) sum += (double)*ddp__timer_cell(t, step, kind, l);
    return sum;
}

double ddp__timer_median(const ddp__timer *t, ddp__timer_kind kind, int layer)
{
    int first = t->steps > 1 ? 1 : 0, n = t->steps - first, i, j;
    /* the median without a scratch array: the sample with as many smaller as larger ones. room is small */
    for (i = 0; i < n; i++) {
        double x = ddp__timer_value(t, first + i, kind, layer);
        int below = 0, equal = 0;
        for (j = 0; j < n; j++) {
            double y = ddp__timer_value(t, first + j, kind, layer);
            below += y < x;
            equal += y <= x && y >= x;
        }
        if (below <= (n - 1) / 2 && below + equal > (n - 1) / 2) return x;
    }
    return 0;
}

const char *ddp_span_kind_name(ddp_span_kind kind)
{
    static const char *const name[] = {"forward", "backward", "update", "wait", "comm", "fill", "peer wait"};
    return (unsigned)kind < DDP_SPAN_KINDS ? name[kind] : "?";
}
