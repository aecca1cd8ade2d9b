/* Update rules of SGD, Adam and AdamW, clipping by the global norm, and learning-rate schedules. */
#include "nn/exact.h"

/* Rounds a float argument to the decimal that was meant: with the exact value of 0.999f, 1 - beta would
 * be off by 1e-5. */
static double ddp__decimal(float x) { return floor(ddp__product((double)x, 1e7) + 0.5) / 1e7; }

/* Runs `run`, which takes multiples of 8 values, over all values. The last ones are padded with zeros. first
 * and second are the state arrays, or NULL. */
static void ddp__update_padded(void (*run)(const void *k, float *w, const float *g, float *m, float *v,
                                           size_t count),
                               const void *k, const ddp_update *u, float *first, float *second)
{
    const size_t rest = u->count % 8, whole = u->count - rest;
    float *const at[3] = {u->params, first, second};
    float end[3][8] = {{0}, {0}, {0}}, g[8] = {0};

    run(k, u->params, u->grads, first, second, whole);
    if (!rest) return;
    memcpy(g, u->grads + whole, rest * sizeof *g);
    for (int i = 0; i < 3; i++)
        if (at[i]) memcpy(end[i], at[i] + whole, rest * sizeof *g);
    run(k, end[0], g, first ? end[1] : NULL, second ? end[2] : NULL, 8);
    for (int i = 0; i < 3; i++)
        if (at[i]) memcpy(at[i] + whole, end[i], rest * sizeof *g);
}

/* ---- SGD: hyper = momentum, weight decay, 1 for Nesterov momentum ---- */

typedef struct ddp__sgd_step {
    ddp__f4 momentum, decay, lr;
    int nesterov;
} ddp__sgd_step;

/* v is NULL without momentum. */
static inline void ddp__sgd4(const ddp__sgd_step *k, float *w, const float *g, float *v)
{
    ddp__f4 weight = ddp__f4_load(w), d = ddp__f4_load(g) + ddp__f4_mul(k->decay, weight), m;

    if (v) {
        m = ddp__f4_mul(k->momentum, ddp__f4_load(v)) + d;
        ddp__f4_store(v, m);
        d = k->nesterov ? d + ddp__f4_mul(k->momentum, m) : m;
    }
    ddp__f4_store(w, weight - ddp__f4_mul(k->lr, d));
}

static void ddp__sgd_some(const void *step, float *w, const float *g, float *m, float *unused, size_t count)
{
    const ddp__sgd_step *k = (const ddp__sgd_step *)step;

    (void)unused;
    if (m)
        for (size_t i = 0; i < count; i += 4) ddp__sgd4(k, w + i, g + i, m + i);
    else
        for (size_t i = 0; i < count; i += 4) ddp__sgd4(k, w + i, g + i, NULL);
}

static void ddp__sgd_update(const ddp_optimizer *self, const ddp_update *u)
{
    const ddp__sgd_step k = {ddp__f4_all(self->hyper[0]), ddp__f4_all(self->hyper[1]), ddp__f4_all(u->lr),
                             self->hyper[2] > 0};

    ddp__update_padded(ddp__sgd_some, &k, u, self->state_per_param ? u->state : NULL, NULL);
}

/* ---- Adam and AdamW: hyper = beta1, beta2, eps, weight decay. state = first moment, second moment ---- */

/* count is a multiple of the vector length. Wider vectors round identically. The loop is limited by memory
 * bandwidth. */
#define DDP__ADAM_SET(S, BYTES, SQRT, ATTR)                                                               \
    typedef float ddp__adam_vec_##S __attribute__((vector_size(BYTES)));                                  \
    typedef float ddp__adam_mem_##S __attribute__((vector_size(BYTES), aligned(4), may_alias));           \
                                                                                                          \
    static ATTR void ddp__adam_##S(const ddp__adam_step *k, float *w, const float *g, float *m, float *v, \
                                   size_t count)                                                          \
    {                                                                                                     \
        const ddp__adam_vec_##S zero = {0}, beta1 = k->beta1 - zero, gain1 = k->gain1 - zero;             \
        const ddp__adam_vec_##S beta2 = k->beta2 - zero, gain2 = k->gain2 - zero, l2 = k->l2 - zero;      \
        const ddp__adam_vec_##S shrink = k->shrink - zero, root = k->root - zero, eps = k->eps - zero;    \
        const ddp__adam_vec_##S step = k->step - zero;                                                    \
        for (size_t i = 0; i < count; i += (BYTES) / 4) {                                                 \
            ddp__adam_vec_##S weight = *(const ddp__adam_mem_##S *)(w + i);                               \
            ddp__adam_vec_##S mean = *(const ddp__adam_mem_##S *)(m + i) * beta1;                         \
            ddp__adam_vec_##S square = *(const ddp__adam_mem_##S *)(v + i) * beta2;                       \
            ddp__adam_vec_##S d = weight * l2, x;                                                         \
            DDP__ROUNDED(mean);                                                                           \
            DDP__ROUNDED(square);                                                                         \
            DDP__ROUNDED(d);                                                                              \
            d = *(const ddp__adam_mem_##S *)(g + i) + d;                                                  \
            x = gain1 * d;                                                                                \
            DDP__ROUNDED(x);                                                                              \
            mean = mean + x;                                                                              \
            x = gain2 * d;                                                                                \
            DDP__ROUNDED(x);                                                                              \
            x = x * d;                                                                                    \
            DDP__ROUNDED(x);                                                                              \
            square = square + x;                                                                          \
            *(ddp__adam_mem_##S *)(m + i) = mean;                                                         \
            *(ddp__adam_mem_##S *)(v + i) = square;                                                       \
            SQRT(x, square);                                                                              \
            x = x * root;                                                                                 \
            DDP__ROUNDED(x);                                                                              \
            weight = weight * shrink;                                                                     \
            mean = step * mean;                                                                           \
            DDP__ROUNDED(weight);                                                                         \
            DDP__ROUNDED(mean);                                                                           \
            *(ddp__adam_mem_##S *)(w + i) = weight + mean / (x + eps);                                    \
        }                                                                                                 \
    }

#define DDP__SQRT_BASE(to, from) to = ddp__f4_sqrt(from)
DDP__ADAM_SET(base, 16, DDP__SQRT_BASE, )
#if defined(__x86_64__)
#define DDP__SQRT_AVX(to, from) __asm__("vsqrtps %1, %0" : "=x"(to) : "x"(from))
DDP__ADAM_SET(avx, 32, DDP__SQRT_AVX, __attribute__((target("avx"))))
#endif

static void ddp__adam_some(const void *step, float *w, const float *g, float *m, float *v, size_t count)
{
    const ddp__adam_step *k = (const ddp__adam_step *)step;

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx")) {
        ddp__adam_avx(k, w, g, m, v, count);
        return;
    }
#endif
    ddp__adam_base(k, w, g, m, v, count);
}

static void ddp__adamw_update(const ddp_optimizer *self, const ddp_update *u);

/* Computes the factors in double and rounds them once, as PyTorch does. */
void ddp__adam_factors(const ddp_optimizer *self, const ddp_update *u, ddp__adam_step *k)
{
    double beta1 = ddp__decimal(self->hyper[0]), beta2 = ddp__decimal(self->hyper[1]);
    double left1 = ddp__power(beta1, u->step + 1), left2 = ddp__power(beta2, u->step + 1);

    k->beta1 = (float)beta1;
    k->gain1 = (float)(1 - beta1);
    k->beta2 = (float)beta2;
    k->gain2 = (float)(1 - beta2);
    k->l2 = 0;
    k->shrink = 1;
    k->root = (float)(1 / sqrt(1 - left2));
    k->eps = self->hyper[2];
    k->step = (float)(-(double)u->lr / (1 - left1));
    if (self->update == ddp__adamw_update)
        k->shrink = (float)(1 - ddp__product((double)u->lr, (double)self->hyper[3]));
    else
        k->l2 = self->hyper[3];
}

static void ddp__adam_update(const ddp_optimizer *self, const ddp_update *u)
{
    ddp__adam_step k;

    ddp__adam_factors(self, u, &k);
    ddp__update_padded(ddp__adam_some, &k, u, u->state, u->state + u->count);
}

static void ddp__adamw_update(const ddp_optimizer *self, const ddp_update *u)
{
    ddp__adam_update(self, u); /* only the factors differ */
}

ddp__rule ddp__optimizer_rule(const ddp_optimizer *o)
{
    if (o->update == ddp__sgd_update) return DDP__RULE_SGD;
    return o->update == ddp__adam_update || o->update == ddp__adamw_update ? DDP__RULE_ADAM : DDP__RULE_USER;
}

/* ---- public constructors ---- */

ddp_optimizer ddp_own_update(void)
{
    const ddp_optimizer o = {"own update", 0, NULL, 0, {0, 0, 0, 0, 0, 0}, NULL, 0};

    return o;
}

ddp_optimizer ddp_own_update_first(void)
{
    ddp_optimizer o = ddp_own_update();

    o.hyper[0] = 1;
    return o;
}

int ddp__updates_first(const ddp_optimizer *o) { return !o->update && o->hyper[0] > 0; }

ddp_optimizer ddp_sgd(float lr, float momentum) { return ddp_sgd_decay(lr, momentum, 0); }

ddp_optimizer ddp_sgd_decay(float lr, float momentum, float weight_decay)
{
    const ddp_optimizer o = {"sgd", momentum > 0 || momentum < 0,         ddp__sgd_update,
                             lr,    {momentum, weight_decay, 0, 0, 0, 0}, NULL,
                             0};

    return o;
}

ddp_optimizer ddp_nesterov(float lr, float momentum, float weight_decay)
{
    ddp_optimizer o = ddp_sgd_decay(lr, momentum, weight_decay);

    o.name = "nesterov";
    o.hyper[2] = 1;
    return o;
}

ddp_optimizer ddp_adam(float lr, float beta1, float beta2, float eps, float weight_decay)
{
    const ddp_optimizer o = {"adam", 2, ddp__adam_update, lr, {beta1, beta2, eps, weight_decay, 0, 0},
                             NULL,   0};

    return o;
}

ddp_optimizer ddp_adamw(float lr, float beta1, float beta2, float eps, float weight_decay)
{
    ddp_optimizer o = ddp_adam(lr, beta1, beta2, eps, weight_decay);

    o.name = "adamw";
    o.update = ddp__adamw_update;
    return o;
}

/* ---- clipping ---- */

/* Lane k adds elements k, k + 8, k + 16 and so on. At the end the lanes are added in pairs. */
double ddp__sum_squares(const float *x, size_t n)
{
    typedef double pair __attribute__((vector_size(16)));
    pair a = {0, 0}, b = {0, 0}, c = {0, 0}, d = {0, 0};
    double lane[8];
    size_t i, k;

    for (i = 0; i + 8 <= n; i += 8) {
        pair p = {(double)x[i + 0], (double)x[i + 1]}, q = {(double)x[i + 2], (double)x[i + 3]};
        pair r = {(double)x[i + 4], (double)x[i + 5]}, s = {(double)x[i + 6], (double)x[i + 7]};
        a += p * p;
        b += q * q;
        c += r * r;
        d += s * s;
    }
    memcpy(lane + 0, &a, sizeof a);
    memcpy(lane + 2, &b, sizeof b);
    memcpy(lane + 4, &c, sizeof c);
    memcpy(lane + 6, &d, sizeof d);
    for (k = 0; i + k < n; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

enum { DDP__FINITE_RUN = 1024 };

size_t ddp__first_not_finite(const float *x, size_t n)
{
    typedef int32_t word __attribute__((vector_size(16)));
    const int32_t ones = 0x7f800000; /* an exponent of all ones: NaN or infinity */
    const word exponent = {ones, ones, ones, ones};

    for (size_t from = 0; from < n; from += DDP__FINITE_RUN) {
        const size_t run = n - from < DDP__FINITE_RUN ? n - from : (size_t)DDP__FINITE_RUN;
        word a, b, c, d, bad = {0, 0, 0, 0};
        int32_t one;
        size_t i;
        for (i = 0; i + 16 <= run; i += 16) {
            memcpy(&a, x + from + i, sizeof a);
            memcpy(&b, x + from + i + 4, sizeof b);
            memcpy(&c, x + from + i + 8, sizeof c);
            memcpy(&d, x + from + i + 12, sizeof d);
            bad |= ((a & exponent) == exponent) | ((b & exponent) == exponent) |
                   ((c & exponent) == exponent) | ((d & exponent) == exponent);
        }
        if (bad[0] | bad[1] | bad[2] | bad[3]) i = 0;
        for (; i < run; i++) {
            memcpy(&one, x + from + i, sizeof one);
            if ((one & ones) == ones) return from + i;
        }
    }
    return n;
}

float ddp__clip_factor(double sum_squares, double max_norm)
{
    double factor = max_norm / (sqrt(sum_squares) + 1e-6);

    return factor > 1 ? 1 : (float)factor;
}

/* ---- learning rate ---- */

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
    case DDP_LR_CONSTANT:
        break;
    }
    return s->base;
}

int ddp_schedule_named(const char *name, ddp_schedule_kind *out)
{
    static const char *const names[] = {"constant", "cosine", "step"};
    int k;

    for (k = 0; k < 3 && !(name && !strcmp(name, names[k])); k++) {
    }
    if (k < 3) *out = (ddp_schedule_kind)k;
    return k < 3;
}
