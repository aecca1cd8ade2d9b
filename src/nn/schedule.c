#include "base/platform.h"
#include "nn/exact.h"
#include "nn/schedule.h"

double ddp_lr_at(const ddp_lr_schedule *s, long step)
{
    const double pi = 3.14159265358979323846;
    double done, swing;
    long after;

    if (step < 0) step = 0;
    if (step < s->warmup) return s->base * (double)(step + 1) / (double)s->warmup;
    after = step - (s->warmup > 0 ? s->warmup : 0);
    switch (s->kind) {
    case DDP_LR_COSINE:
        if (step >= s->total) return s->base * s->min_ratio;
        done = (double)after / (double)(s->total - (step - after));
        swing = ddp__product((1 - s->min_ratio) / 2, 1 + cos(pi * done));
        return s->base * (s->min_ratio + swing);
    case DDP_LR_STEP:
        return s->step_size > 0 ? s->base * ddp__power(s->gamma, after / s->step_size) : s->base;
    case DDP_LR_CONSTANT: break;
    }
    return s->base;
}

int ddp_schedule_named(const char *name, ddp_schedule_kind *out)
{
    static const char *const names[] = {"constant", "cosine", "step"};
    int k;

    for (k = 0; k < 3; k++)
        if (name && !strcmp(name, names[k])) {
            *out = (ddp_schedule_kind)k;
            return 1;
        }
    return 0;
}
