#include "base/platform.h"
#include "nn/exact.h"
#include "nn/optimizer.h"

/* "0.999f" means 0.999: taken as it stands, 1 - beta would be off by 1e-5. */
static double ddp__decimal(float x) { return floor(ddp__product((double)x, 1e7) + 0.5) / 1e7; }

/* ---- SGD: hyper = momentum, weight decay ---- */

typedef struct ddp__sgd_step {
    ddp__f4 momentum, decay, lr;
} ddp__sgd_step;

/* v may be NULL: no momentum. */
static inline void ddp__sgd4(const ddp__sgd_step *k, float *w, const float *g, float *v)
{
    ddp__f4 weight = ddp__f4_load(w);
    ddp__f4 d = ddp__f4_load(g) + ddp__f4_mul(k->decay, weight);

    if (v) {
        d = ddp__f4_mul(k->momentum, ddp__f4_load(v)) + d;
        ddp__f4_store(v, d);
    }
    ddp__f4_store(w, weight - ddp__f4_mul(k->lr, d));
}

static void ddp__sgd_update(const ddp_optimizer *self, const ddp_update *u)
{
    size_t i, rest = u->count % 4, whole = u->count - rest;
    float w[4] = {0, 0, 0, 0}, g[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
    float *state = self->state_per_param ? u->state : NULL;
    ddp__sgd_step k;

    k.momentum = ddp__f4_all(self->hyper[0]);
    k.decay = ddp__f4_all(self->hyper[1]);
    k.lr = ddp__f4_all(u->lr);
    if (state)
        for (i = 0; i < whole; i += 4) ddp__sgd4(&k, u->params + i, u->grads + i, state + i);
    else
        for (i = 0; i < whole; i += 4) ddp__sgd4(&k, u->params + i, u->grads + i, NULL);
    if (!rest) return;
    memcpy(w, u->params + whole, rest * sizeof *w);
    memcpy(g, u->grads + whole, rest * sizeof *g);
    if (state) memcpy(v, state + whole, rest * sizeof *v);
    ddp__sgd4(&k, w, g, state ? v : NULL);
    memcpy(u->params + whole, w, rest * sizeof *w);
    if (state) memcpy(state + whole, v, rest * sizeof *v);
}

/* ---- Adam and AdamW: hyper = beta1, beta2, eps, weight decay; state = mean, then square ---- */

typedef struct ddp__adam_step {
    ddp__f4 beta1, gain1, beta2, gain2; /* gain = 1 - beta */
    ddp__f4 l2;                         /* of Adam: added to the gradient */
    ddp__f4 shrink;                     /* of AdamW: 1 - lr decay */
    ddp__f4 root, eps, step;            /* 1 / sqrt(1 - beta2^t), eps, -lr / (1 - beta1^t) */
} ddp__adam_step;

static inline void ddp__adam4(const ddp__adam_step *k, float *w, const float *g, float *m, float *v)
{
    ddp__f4 weight = ddp__f4_load(w);
    ddp__f4 d = ddp__f4_load(g) + ddp__f4_mul(k->l2, weight);
    ddp__f4 mean = ddp__f4_mul(k->beta1, ddp__f4_load(m)) + ddp__f4_mul(k->gain1, d);
    ddp__f4 square = ddp__f4_mul(k->beta2, ddp__f4_load(v)) +
                     ddp__f4_mul(ddp__f4_mul(k->gain2, d), d);
    ddp__f4 denominator = ddp__f4_mul(ddp__f4_sqrt(square), k->root) + k->eps;

    ddp__f4_store(m, mean);
    ddp__f4_store(v, square);
    ddp__f4_store(w, ddp__f4_mul(weight, k->shrink) + ddp__f4_mul(k->step, mean) / denominator);
}

static void ddp__adam_run(const ddp_update *u, const ddp__adam_step *step)
{
    size_t i, rest = u->count % 4, whole = u->count - rest;
    float w[4] = {0, 0, 0, 0}, g[4] = {0, 0, 0, 0}, m[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
    float *mean = u->state, *square = u->state + u->count;
    ddp__adam_step k = *step; /* a copy the stores below cannot alias */

    for (i = 0; i < whole; i += 4)
        ddp__adam4(&k, u->params + i, u->grads + i, mean + i, square + i);
    if (!rest) return;
    memcpy(w, u->params + whole, rest * sizeof *w);
    memcpy(g, u->grads + whole, rest * sizeof *g);
    memcpy(m, mean + whole, rest * sizeof *m);
    memcpy(v, square + whole, rest * sizeof *v);
    ddp__adam4(&k, w, g, m, v);
    memcpy(u->params + whole, w, rest * sizeof *w);
    memcpy(mean + whole, m, rest * sizeof *m);
    memcpy(square + whole, v, rest * sizeof *v);
}

/* The factors are made in double and then rounded once, as PyTorch does. */
static void ddp__adam_factors(const ddp_optimizer *self, const ddp_update *u, ddp__adam_step *k)
{
    double beta1 = ddp__decimal(self->hyper[0]), beta2 = ddp__decimal(self->hyper[1]);
    double left1 = ddp__power(beta1, u->step + 1), left2 = ddp__power(beta2, u->step + 1);

    k->beta1 = ddp__f4_all((float)beta1);
    k->gain1 = ddp__f4_all((float)(1 - beta1));
    k->beta2 = ddp__f4_all((float)beta2);
    k->gain2 = ddp__f4_all((float)(1 - beta2));
    k->l2 = ddp__f4_all(0);
    k->shrink = ddp__f4_all(1);
    k->root = ddp__f4_all((float)(1 / sqrt(1 - left2)));
    k->eps = ddp__f4_all(self->hyper[2]);
    k->step = ddp__f4_all((float)(-(double)u->lr / (1 - left1)));
}

static void ddp__adam_update(const ddp_optimizer *self, const ddp_update *u)
{
    ddp__adam_step k;

    ddp__adam_factors(self, u, &k);
    k.l2 = ddp__f4_all(self->hyper[3]);
    ddp__adam_run(u, &k);
}

static void ddp__adamw_update(const ddp_optimizer *self, const ddp_update *u)
{
    ddp__adam_step k;

    ddp__adam_factors(self, u, &k);
    k.shrink = ddp__f4_all((float)(1 - ddp__product((double)u->lr, (double)self->hyper[3])));
    ddp__adam_run(u, &k);
}

/* ---- the public makers ---- */

ddp_optimizer ddp_sgd(float lr, float momentum) { return ddp_sgd_decay(lr, momentum, 0); }

ddp_optimizer ddp_sgd_decay(float lr, float momentum, float weight_decay)
{
    ddp_optimizer o;

    memset(&o, 0, sizeof o);
    o.name = "sgd";
    o.state_per_param = momentum > 0 || momentum < 0;
    o.update = ddp__sgd_update;
    o.lr = lr;
    o.hyper[0] = momentum;
    o.hyper[1] = weight_decay;
    return o;
}

ddp_optimizer ddp_adam(float lr, float beta1, float beta2, float eps, float weight_decay)
{
    ddp_optimizer o;

    memset(&o, 0, sizeof o);
    o.name = "adam";
    o.state_per_param = 2;
    o.update = ddp__adam_update;
    o.lr = lr;
    o.hyper[0] = beta1;
    o.hyper[1] = beta2;
    o.hyper[2] = eps;
    o.hyper[3] = weight_decay;
    return o;
}

ddp_optimizer ddp_adamw(float lr, float beta1, float beta2, float eps, float weight_decay)
{
    ddp_optimizer o = ddp_adam(lr, beta1, beta2, eps, weight_decay);

    o.name = "adamw";
    o.update = ddp__adamw_update;
    return o;
}
