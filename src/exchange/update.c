/* Implements arithmetic on the memory of layers, the check for NaN and infinity, and optimizer updates. They
 * run on the caller's thread, or in the order of the device's work. */
#include "context/clock.h"
#include "exchange/exchange.h"
#include "context/context.h"
#include "exchange/events.h"
#include "exchange/update.h"
#include "exchange/verbs.h"

/* No fused multiply-add, so that replicas on different processors stay equal. */
void ddp__axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a)
{
    size_t i = 0;

    if (ddp__on_paper(ddp__host_of(d), y) || ddp__on_paper(ddp__host_of(d), x)) return;
    if (ddp__backend_of(d)) {
        ddp__backend_of(d)->axpy(ddp__device_of(d), y, x, n, a);
        return;
    }
    for (; i + 4 <= n; i += 4)
        ddp__f4_store(y + i, ddp__f4_load(y + i) + ddp__f4_mul(ddp__f4_all(a), ddp__f4_load(x + i)));
    for (; i < n; i++) {
        float product = a * x[i];
        DDP__ROUNDED(product);
        y[i] += product;
    }
}

void ddp__scale_there(ddp_ctx *d, float *x, size_t n, float a)
{
    if (ddp__on_paper(ddp__host_of(d), x)) return;
    if (ddp__backend_of(d))
        ddp__backend_of(d)->scale(ddp__device_of(d), x, n, a);
    else
        ddp__scale(x, n, a);
}

ddp__walk ddp__walk_of(const ddp_piece *from, int from_count, const ddp_piece *to, int to_count)
{
    const ddp__walk w = {from, to, from_count, to_count, 0, 0};

    return w;
}

size_t ddp__walk_next(ddp__walk *w, float **from, float **to)
{
    size_t n;

    while (w->from_count && w->from_at == w->from->count) {
        w->from++;
        w->from_count--;
        w->from_at = 0;
    }
    while (w->to_count && w->to_at == w->to->count) {
        w->to++;
        w->to_count--;
        w->to_at = 0;
    }
    if (!w->from_count || !w->to_count) return 0;
    n = w->from->count - w->from_at;
    if (n > w->to->count - w->to_at) n = w->to->count - w->to_at;
    *from = w->from->data + w->from_at;
    *to = w->to->data + w->to_at;
    w->from_at += n;
    w->to_at += n;
    return n;
}

/* With one worker a sum is its own input. */
ddp_status ddp__post_alone(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err)
{
    const float scale = m->mean || m->scale == 0 ? 1 : m->scale;
    ddp__walk w =
        ddp__walk_of(m->from, m->from_count, m->to ? m->to : m->from, m->to ? m->to_count : m->from_count);
    float *x, *y;
    size_t n;

    if (m->verb > DDP_REDUCE_SCATTER)
        return ddp__fail(err, DDP_USAGE, "%s needs at least two workers", ddp__verb_name((int)m->verb));
    if (m->verb != DDP_ALL_REDUCE && m->verb != DDP_REDUCE_SCATTER) return DDP_OK;
    while ((n = ddp__walk_next(&w, &x, &y)) > 0) {
        if (m->add) {
            ddp__axpy(d, y, x, n, scale);
            continue;
        }
        if (x != y && there)
            ddp__host_copy(ddp__host_of(d), y, x, n * sizeof *y);
        else if (x != y)
            memcpy(y, x, n * sizeof *y);
        if (scale != 1 && there)
            ddp__scale_there(d, y, n, scale);
        else if (scale != 1)
            ddp__scale(y, n, scale);
    }
    return DDP_OK;
}

/* ---- missing gradients: -0.0, detected by its bits, also if a compiler may treat it as 0 ---- */

static const uint32_t ddp__no_gradient_bits = 0x80000000u;

int ddp_no_gradient(const float *x, size_t n)
{
    uint32_t bits = ddp__no_gradient_bits;
    size_t i;

    for (i = 0; i < n && bits == ddp__no_gradient_bits; i++) memcpy(&bits, x + i, sizeof bits);
    return n > 0 && bits == ddp__no_gradient_bits;
}

void ddp__floats_none(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) memcpy(x + i, &ddp__no_gradient_bits, sizeof *x);
}

void ddp__gradients_none(ddp_ctx *d, const ddp__unit *u)
{
    float none;

    ddp__floats_none(&none, 1);
    for (int k = 0; k < u->gradients; k++) {
        float *x = u->gradient[k].data;
        if (!x || ddp__on_paper(ddp__host_of(d), x)) continue;
        if (ddp__backend_of(d))
            ddp__backend_of(d)->fill(ddp__device_of(d), x, u->gradient[k].count, none);
        else
            ddp__floats_none(x, u->gradient[k].count);
    }
}

/* Not needed on a device: its kernels start sums at +0, which never gives -0.0. */
void ddp__gradients_some(ddp_ctx *d, const ddp__unit *u)
{
    float *first = u->gradients ? u->gradient[0].data : NULL;

    if (first && !ddp__backend_of(d) && !ddp__on_paper(ddp__host_of(d), first) && ddp_no_gradient(first, 1))
        *first = 0;
}

/* Returns 1 if an update has no gradient. from: the averaged gradient, or NULL for the layer's own. On a
 * device the update kernel checks an averaged gradient. For its own gradient there, and for gradients that
 * the program keeps, the rank has recorded whether the layer was skipped. */
static int ddp__nothing_to_update(const ddp_ctx *d, int layer, const float *from)
{
    const ddp__unit *u = ddp__unit_of(d, layer);

    if (ddp__backend_of(d))
        return d->exchange->sending[layer].skipped && ddp__ops(d)->averages != DDP_AVERAGES_GRADIENTS &&
               !(ddp__ops(d)->traits & DDP_NEEDS_SERVERS);
    if (!u->gradients || ddp__on_paper(ddp__host_seen(d), u->gradient[0].data)) return 0;
    if (from) return ddp_no_gradient(from, u->trained);
    for (int i = 0; i < u->gradients; i++) {
        const float *x = u->gradient[i].data;
        if (x ? !ddp_no_gradient(x, u->gradient[i].count) : !d->exchange->sending[layer].skipped) return 0;
    }
    return 1;
}

void ddp__update_memory(ddp_ctx *d, int layer, float *params, const float *grads, float *state, long step,
                        float rate, int there)
{
    const ddp__unit *u = ddp__unit_of(d, layer);

    if (ddp__on_paper(ddp__host_of(d), params) || ddp__on_paper(ddp__host_of(d), grads)) return;
    if (!(there && ddp__backend_of(d)) && ddp_no_gradient(grads, u->trained)) return;
    for (int i = 0; i < u->gradients; i++) {
        const size_t n = u->gradient[i].count;
        const ddp_update call = {layer, params, grads, state, n, step, rate, NULL, 0, 0, NULL};
        if (there && ddp__backend_of(d))
            ddp__backend_of(d)->update(ddp__device_of(d), ddp__optimizer(d), &call, 0);
        else
            ddp__optimizer(d)->update(ddp__optimizer(d), &call);
        if (state) state += (size_t)ddp__optimizer(d)->state_per_param * n;
        params += n;
        grads += n;
    }
}

void ddp_update_apart(ddp_ctx *d, int layer, float *params, const float *grads, float *state, long step,
                      float rate)
{
    ddp__update_memory(d, layer, params, grads, state, step, rate, 0);
}

void ddp__update_layer(ddp_ctx *d, int layer, const float *from, float rate)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    float *state = u->state;

    y->left_out = ddp__nothing_to_update(d, layer, from);
    if (y->left_out) {
        for (int i = 0; i < u->gradients; i++)
            if (u->gradient[i].data)
                ddp__host_zero(ddp__host_of(d), u->gradient[i].data, u->gradient[i].count * sizeof(float));
        return;
    }
    if (!ddp__optimizer(d)->update) { /* own update of the program: the gradients must be in its arrays */
        for (int i = 0; from && i < u->gradients; from += u->gradient[i++].count)
            ddp__host_copy(ddp__host_of(d), u->gradient[i].data, from, u->gradient[i].count * sizeof *from);
        y->updates++;
        return;
    }
    ddp__clock_note(d, DDP__M_BEGIN, layer, DDP__OUTSIDE);
    for (int i = 0; i < u->gradients && !ddp__on_paper(ddp__host_of(d), u->trains[i].data); i++) {
        const size_t n = u->gradient[i].count;
        float *grads = u->gradient[i].data;
        const ddp_update call = {layer,
                                 u->trains[i].data,
                                 from ? from : grads,
                                 state,
                                 n,
                                 y->updates,
                                 rate,
                                 NULL,
                                 u->shape[i].rows,
                                 u->shape[i].columns,
                                 &d->exchange->muon};
        if (state) state += n * (size_t)ddp__piece_state(d, u, i);
        if (from) from += n;
        if (ddp__backend_of(d)) {
            ddp__backend_of(d)->update(ddp__device_of(d), ddp__optimizer(d), &call, !from);
            continue;
        }
        ddp__optimizer(d)->update(ddp__optimizer(d), &call);
        if (!from) memset(grads, 0, n * sizeof *grads);
    }
    y->updates++;
    ddp__clock_note(d, DDP__M_UPDATED, layer, DDP__OUTSIDE);
}

/* Allocates muon's workspace, and rejects what muon does not support. */
ddp_status ddp__muon_open(ddp_ctx *d, int elsewhere, ddp_error *err)
{
    int matrices = 0;

    if (!ddp__is_muon(ddp__optimizer(d))) return DDP_OK;
    if (ddp__backend_of(d))
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "optimizer muon does not support a backend, because it multiplies matrices on the "
                         "CPU: train there, or choose adamw");
    if (ddp__ops(d)->traits & DDP_NEEDS_SERVERS)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "optimizer muon does not support strategy %s, because a server does not update "
                         "matrix by matrix: choose adamw, or a strategy without servers",
                         ddp__ops(d)->name);
    for (int l = 0; l < ddp__layers(d); l++)
        for (int i = 0; i < ddp__unit_of(d, l)->gradients; i++) {
            const ddp_matrix *x = &ddp__unit_of(d, l)->shape[i];
            const size_t room = ddp__muon_room(x->rows, x->columns);
            matrices += x->rows > 0;
            if (room > d->exchange->muon_count) d->exchange->muon_count = room;
        }
    if (!matrices && elsewhere) return DDP_OK; /* another stage has the matrices */
    if (!matrices)
        return ddp__fail(err, DDP_USAGE,
                         "optimizer muon: none of %d layers has a matrix to train: give them in "
                         "ddp_layer.matrices, or choose adamw",
                         ddp__layers(d));
    d->exchange->muon.pool = ddp__pool_of(d);
    d->exchange->muon.at = (float *)ddp__alloc(ddp__allocator_of(d), d->exchange->muon_count * sizeof(float));
    return d->exchange->muon.at
               ? DDP_OK
               : ddp__fail(err, DDP_MEMORY, "out of memory for the %zu bytes that muon works in",
                           d->exchange->muon_count * sizeof(float));
}

/* ---- values that are not finite ---- */

typedef struct ddp__finite_scan {
    const float *x;
    size_t n;
    int found; /* atomic */
} ddp__finite_scan;

enum { DDP__FINITE_BLOCK = 1 << 16 }; /* floats that a thread checks at a time */

static void ddp__finite_some(void *user, long first, long last)
{
    ddp__finite_scan *s = (ddp__finite_scan *)user;
    const size_t from = (size_t)first * DDP__FINITE_BLOCK, to = (size_t)last * DDP__FINITE_BLOCK;
    const size_t n = (to < s->n ? to : s->n) - from;

    if (ddp__first_not_finite(s->x + from, n) < n) ddp__atomic_store(&s->found, 1);
}

ddp_status ddp__finite_gradient(ddp_ctx *d, int layer, ddp_error *err)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    char what[200];

    if (ddp__cfg(d)->debug.no_finite_check || ddp__backend_of(d) || y->skipped) return DDP_OK;
    for (int i = 0; i < u->gradients; i++) {
        ddp__finite_scan s = {u->gradient[i].data, u->gradient[i].count, 0};
        size_t at;
        if (!s.x || ddp__on_paper(ddp__host_of(d), s.x)) continue;
        ddp__pool_run(ddp__pool_of(d), (long)((s.n + DDP__FINITE_BLOCK - 1) / DDP__FINITE_BLOCK), 1,
                      ddp__finite_some, &s);
        if (!s.found) continue;
        at = ddp__first_not_finite(s.x, s.n);
        ddp__format(what, sizeof what,
                    "step %ld: the gradient of %s%.80s is %g on rank %d (value %zu of %zu)", ddp_step(d),
                    ddp__layer_prefix(u->name), u->name, (double)s.x[at], ddp_rank(d), at, s.n);
        if (ddp__optimizer(d)->update)
            return ddp__fail(err, DDP_NUMERIC,
                             "%s: lower the learning rate, warm it up or clip gradients; "
                             "no_finite_check = 1 switches this check off",
                             what);
        if (ddp__stats(d)->not_finite++ == 0)
            ddp__log(ddp__log_of(d), DDP_LOG_WARN,
                     "%s; the program has its own update, so the run continues and ddp_stats.not_finite "
                     "counts the gradient",
                     what);
        return DDP_OK;
    }
    return DDP_OK;
}

/* Clips on the device. The norm stays there if no other rank needs it. */
static void ddp__clip_there(ddp_ctx *d)
{
    const ddp_backend *b = ddp__backend_of(d);
    int first = 1;

    for (int l = 0; l < ddp__layers(d); l++)
        for (int i = 0; i < ddp__unit_of(d, l)->gradients; i++, first = 0)
            b->clip_add(ddp__device_of(d), ddp__unit_of(d, l)->gradient[i].data,
                        ddp__unit_of(d, l)->gradient[i].count, first);
    for (int l = 0; l < ddp__layers(d); l++)
        for (int i = 0; i < ddp__unit_of(d, l)->gradients; i++)
            b->clip_scale(ddp__device_of(d), ddp__unit_of(d, l)->gradient[i].data,
                          ddp__unit_of(d, l)->gradient[i].count, ddp__cfg(d)->clip_norm);
}

ddp_status ddp__clip_gradients(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = ddp__backend_of(d);
    double squares = 0;
    float factor;

    if (b && !d->exchange->norm.pass) {
        ddp__clip_there(d);
        return DDP_OK;
    }
    if (d->exchange->norm.pass) DDP__TRY(d->exchange->norm.pass(d->exchange->norm.user, 0, &squares));
    for (int l = 0; l < ddp__layers(d); l++)
        for (int i = 0; i < ddp__unit_of(d, l)->gradients; i++) {
            const ddp_piece *g = &ddp__unit_of(d, l)->gradient[i];
            double more = 0;
            if (ddp__on_paper(ddp__host_of(d), g->data)) continue;
            if (b)
                DDP__TRY(b->norm2(ddp__device_of(d), g->data, g->count, &more, err));
            else
                more = ddp__sum_squares(g->data, g->count);
            squares += more;
        }
    if (d->exchange->norm.pass) DDP__TRY(d->exchange->norm.pass(d->exchange->norm.user, 1, &squares));
    factor = ddp__clip_factor(squares, (double)ddp__cfg(d)->clip_norm);
    if (factor == 1) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++)
        for (int i = 0; i < ddp__unit_of(d, l)->gradients; i++)
            ddp__scale_there(d, ddp__unit_of(d, l)->gradient[i].data, ddp__unit_of(d, l)->gradient[i].count,
                             factor);
    return DDP_OK;
}

/* ---- arithmetic for strategies ---- */

int ddp_axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a)
{
    DDP__VERB("ddp_axpy");
    ddp__axpy(d, y, x, n, a);
    return 0;
}

int ddp_copy(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__VERB("ddp_copy");
    ddp__host_copy(ddp__host_of(d), y, x, n * sizeof *y);
    return 0;
}

int ddp_scale(ddp_ctx *d, float *x, size_t n, float a)
{
    DDP__VERB("ddp_scale");
    ddp__scale_there(d, x, n, a);
    return 0;
}

int ddp_set(ddp_ctx *d, float *x, size_t n, float a)
{
    DDP__VERB("ddp_set");
    if (ddp__on_paper(ddp__host_of(d), x)) return 0;
    if (ddp__backend_of(d))
        ddp__backend_of(d)->fill(ddp__device_of(d), x, n, a);
    else
        for (size_t i = 0; i < n; i++) x[i] = a;
    return 0;
}

int ddp_norm2(ddp_ctx *d, const float *x, size_t n, double *out)
{
    DDP__VERB("ddp_norm2");
    *out = 0;
    if (ddp__on_paper(ddp__host_of(d), x)) return 0;
    if (ddp__backend_of(d))
        return (int)ddp__backend_of(d)->norm2(ddp__device_of(d), x, n, out, ddp__error(d));
    *out = ddp__sum_squares(x, n);
    return 0;
}

int ddp_download(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__VERB("ddp_download");
    return (int)ddp__host_download(ddp__host_of(d), y, x, n * sizeof *y, ddp__error(d));
}

int ddp_upload(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__VERB("ddp_upload");
    ddp__host_upload(ddp__host_of(d), y, x, n * sizeof *y);
    return 0;
}

int ddp_late_apply(ddp_ctx *d, float *target, float *late, const float *own, size_t n, ddp_late rule, float f)
{
    DDP__VERB("ddp_late_apply");
    switch (rule) {
    case DDP_LATE_MIX:
        if (f == 0)
            ddp__host_copy(ddp__host_of(d), target, late, n * sizeof *target);
        else {
            ddp__scale_there(d, target, n, f);
            ddp__axpy(d, target, late, n, 1 - f);
        }
        return 0;
    case DDP_LATE_OWN:
        ddp__host_copy(ddp__host_of(d), target, late, n * sizeof *target);
        ddp__axpy(d, target, own, n, -f);
        return 0;
    case DDP_LATE_COMPENSATE:
        if (ddp__on_paper(ddp__host_of(d), late)) return 0;
        if (ddp__backend_of(d))
            ddp__backend_of(d)->compensate(ddp__device_of(d), late, target, own, n, f);
        else
            ddp__late_compensate(late, target, own, n, f);
        return 0;
    }
    return ddp_complain(d, DDP_ARG, "ddp_late_apply: rule %d does not exist", (int)rule);
}
