/* Posts and holds the averages of a layer, with error feedback.
 *
 * The quantisation residual of DDP_WIRE_INT8 and the later wires is added to the next message (Seide et al.
 * 2014, Karimireddy et al. 2019): by the sender here, and for the result by its owner in the engine. For
 * parameters the message is their delta since the last average, which all ranks store: eight bits are too few
 * for a weight, but enough for its delta. */
#include "comm/frame.h"
#include "exchange/exchange.h"
#include "context/context.h"
#include "exchange/average.h"
#include "exchange/compared.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "exchange/transport.h"
#include "exchange/update.h"
#include "exchange/verbs.h"

/* ---- arrays of a layer's average ---- */

/* Returns 1 if array k of the optimizer state is averaged in this period. It is averaged at the end of every
 * state_period-th period. The period follows from the step alone, so that checkpoints and joining workers
 * need no counter. */
static int ddp__state_due(const ddp_ctx *d, int k)
{
    const ddp_plan *plan = ddp__ops(d)->plan_view ? ddp__ops(d)->plan_view(ddp__self(d)) : NULL;

    return (ddp_step(d) / (plan ? plan->period : ddp__cfg(d)->period) + 1) %
               ddp__cfg(d)->average.state_period[k > 0] ==
           0;
}

const ddp_piece *ddp__average_takes(const ddp_ctx *d, int layer, const ddp_piece *list, int *count)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    float *state = u->state;
    int n = 0;

    if (!y->moved || !ddp__cfg(d)->average.state || (ddp__state_due(d, 0) && ddp__state_due(d, 1)))
        return list;
    for (int i = 0; i < *count; i++)
        if (list[i].data != u->state) y->moved[n++] = list[i];
    for (int i = 0; i < u->gradients; i++)
        for (int k = 0; k < ddp__piece_state(d, u, i); k++, state += u->gradient[i].count) {
            if (!ddp__state_due(d, k)) continue;
            y->moved[n].data = state;
            y->moved[n++].count = u->gradient[i].count;
        }
    *count = n;
    return y->moved;
}

/* Lists values from..to-1 of the parameters with gradients, and their state if it is averaged now. */
static int ddp__average_range(const ddp_ctx *d, int layer, size_t from, size_t to, int n)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp_piece *moved = d->exchange->sending[layer].moved;
    float *state = u->state;
    size_t at = 0;

    for (int i = 0; i < u->gradients; at += u->trains[i++].count) {
        const size_t all = u->trains[i].count, begin = from > at ? from - at : 0,
                     end = to < at + all ? to - at : all;
        const int here = begin < all && to > at;
        if (here) {
            moved[n].data = u->trains[i].data + begin;
            moved[n++].count = end - begin;
        }
        for (int k = 0; k < ddp__piece_state(d, u, i); k++, state += all) {
            if (!here || !ddp__cfg(d)->average.state || !ddp__state_due(d, k)) continue;
            moved[n].data = state + begin;
            moved[n++].count = end - begin;
        }
    }
    return n;
}

/* Restricts a message to some parts of the layer. */
static void ddp__average_cut(ddp_ctx *d, int layer, const unsigned char *takes, ddp_message *m)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    const size_t parts = (size_t)ddp__parts_for(d, u->trained);
    int n = 0;

    for (size_t j = 0; j < parts; j++)
        if (takes[j])
            n = ddp__average_range(d, layer, u->trained * j / parts, u->trained * (j + 1) / parts, n);
    for (int i = 0; takes[parts - 1] && i < u->others; i++)
        if (u->other[i].data != u->state) y->moved[n++] = u->other[i];
    m->from = y->moved;
    m->from_count = n;
}

/* ---- memory ---- */

ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err)
{
    const ddp_coding coding = ddp__wire_coding(ddp__cfg(d)->wire);
    const ddp_backend *b = ddp__backend_of(d);
    const int there = b && b->split && (!b->splits || b->splits(ddp__device_of(d))) &&
                      (coding == DDP_AS_INT8 || coding == DDP_AS_INT4);
    size_t count = 0;
    float *next, *base;

    if (!ddp__in_blocks((int)coding) || !(ddp__engine_of(d, 0) || ddp__joining_of(d) == DDP__JOINS))
        return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) count += ddp__unit_of(d, l)->trained;
    if (!count) return DDP_OK;
    d->exchange->coded_count = count;
    d->exchange->coded = (float *)ddp__alloc(ddp__allocator_of(d), count * sizeof(float));
    d->exchange->bases_count = ddp__ops(d)->averages == DDP_AVERAGES_PARAMETERS ? 2 * count : 0;
    d->exchange->bases = (float *)ddp__host_alloc(ddp__host_of(d), d->exchange->bases_count * sizeof(float));
    if (there)
        d->exchange->coded_there = (float *)ddp__host_alloc(ddp__host_of(d), 2 * count * sizeof(float));
    if (!d->exchange->coded || (d->exchange->bases_count && !d->exchange->bases) ||
        (there && !d->exchange->coded_there))
        return ddp__fail(err, DDP_MEMORY, "out of memory for %zu bytes of residuals of %s",
                         (count + d->exchange->bases_count) * sizeof(float), ddp__coding_name((int)coding));
    memset(d->exchange->coded, 0, d->exchange->coded_count * sizeof(float));
    next = d->exchange->coded;
    base = d->exchange->bases;
    for (int l = ddp__layers(d) - 1; l >= 0; l--) { /* in the order in which a message of several layers
                                                       has their gradients */
        const ddp__unit *u = ddp__unit_of(d, l);
        ddp__sending *y = &d->exchange->sending[l];
        y->residual = next;
        if (base) {
            y->base = base;
            y->delta = base + count;
            base += u->trained;
        }
        next += u->trained;
    }
    return DDP_OK;
}

static void ddp__coded_base(ddp_ctx *d, int layer)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    float *base = y->base;

    for (int k = 0; base && k < u->gradients; base += u->trains[k++].count)
        ddp__host_copy(ddp__host_of(d), base, u->trains[k].data, u->trains[k].count * sizeof *base);
}

void ddp__coded_start(ddp_ctx *d, int base)
{
    if (d->exchange->coded_there)
        ddp__host_zero(ddp__host_of(d), d->exchange->coded_there,
                       2 * d->exchange->coded_count * sizeof(float));
    for (int l = 0; d->exchange->coded && l < ddp__layers(d); l++) {
        if (ddp__unit_of(d, l)->trained)
            memset(d->exchange->sending[l].residual, 0, ddp__unit_of(d, l)->trained * sizeof(float));
        if (base) ddp__coded_base(d, l);
    }
}

/* ---- parameter deltas in blocks ---- */

/* Computes the parameter delta of a layer since its base, rounded to blocks with the residual, or (later 1)
 * as floats, if the sender between sites or the device rounds it. */
static ddp_status ddp__coded_delta(ddp_ctx *d, int layer, int later, ddp_error *err)
{
    const ddp_coding coding = ddp__wire_coding(ddp__cfg(d)->wire);
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    float *to = later ? y->delta : y->residual;
    const float *base = y->base;
    ddp_error why;

    for (int k = 0; k < u->gradients && ddp__backend_of(d); k++) {
        const ddp_piece *p = &u->trains[k];
        ddp__host_copy(ddp__host_of(d), to, p->data, p->count * sizeof *to);
        ddp__axpy(d, to, base, p->count, -1);
        to += p->count;
        base += p->count;
    }
    if (ddp__backend_of(d)) return DDP_OK;
    if (later) memset(to, 0, u->trained * sizeof *to);
    for (int k = 0; k < u->gradients; k++)
        for (size_t i = 0; i < u->trains[k].count; i++) *to++ += u->trains[k].data[i] - *base++;
    if (later || !ddp_split(coding, y->residual, y->delta, u->trained, &why)) return DDP_OK;
    return ddp__fail(err, why.code,
                     "step %ld: cannot encode the parameter delta of %s%s as %s: %.200s; lower the learning "
                     "rate, warm it up or clip gradients",
                     ddp_step(d), ddp__layer_prefix(u->name), u->name, ddp__coding_name((int)coding),
                     why.msg);
}

static ddp_status ddp__coded_average(ddp_ctx *d, int layer, ddp_message *m, ddp_error *err)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    const ddp_piece delta = {{y->delta}, u->trained};

    m->from_count = u->others;
    m->from = ddp__average_takes(d, layer, u->other, &m->from_count);
    if (m->from_count) {
        m->coding = DDP_AS_FLOAT;
        DDP__TRY(ddp__post(d, m, 1, &y->other_ticket, err));
    }
    if (!u->trained) return DDP_OK;
    m->from = &delta;
    m->from_count = 1;
    m->coding = ddp__wire_coding(ddp__cfg(d)->wire);
    DDP__TRY(ddp__coded_delta(d, layer, d->exchange->over || ddp__levels_takes(d, m), err));
    m->residual = y->residual;
    m->divergence = &y->divergence;
    DDP__TRY(ddp__post(d, m, 1, &y->ticket, err));
    y->changing = 1;
    return DDP_OK;
}

static void ddp__coded_arrived(ddp_ctx *d, int layer)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    const float *base = y->base, *delta = y->delta;

    for (int k = 0; y->changing && k < u->gradients; k++) {
        const ddp_piece *p = &u->trains[k];
        ddp__host_copy(ddp__host_of(d), p->data, base, p->count * sizeof *base);
        ddp__axpy(d, p->data, delta, p->count, 1);
        base += p->count;
        delta += p->count;
    }
    y->changing = 0;
    ddp__coded_base(d, layer);
}

/* ---- averages ---- */

ddp_status ddp__average_layer(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler,
                              int exact, ddp_error *err)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    const int parts = ddp__parts_for(d, u->trained);
    ddp_coding coding = exact ? DDP_AS_FLOAT : ddp__wire_coding(ddp__cfg(d)->wire);
    ddp_message m = ddp__message(d, DDP_ALL_REDUCE, u->average, u->averages, layer);

    if (!ddp__engine_of(d, 0) || u->count == 0) return DDP_OK;
    /* for strategies that send deltas in blocks, this average is one of parameters */
    if (ddp__ops(d)->averages == DDP_AVERAGES_CHANGES && coding > DDP_AS_BFLOAT) coding = DDP_AS_FLOAT;
    for (int j = y->moving = 0; j < parts; j++) y->moving += !takes || takes[j];
    m.mean = 1;
    m.group = u->group ? u->group : d->exchange->computing;
    m.priority = priority;
    m.filler = filler;
    m.link = u->link;
    if (coding > DDP_AS_BFLOAT) return ddp__coded_average(d, layer, &m, err);
    m.coding = coding;
    if (y->moving < parts)
        ddp__average_cut(d, layer, takes, &m);
    else if (!exact)
        m.from = ddp__average_takes(d, layer, u->average, &m.from_count);
    m.divergence = &y->divergence;
    return ddp__post(d, &m, 1, &y->ticket, err);
}

static ddp_status ddp__layer_hold(ddp_ctx *d, long ticket, int layer, ddp_error *err)
{
    const int link = ddp__unit_of(d, layer)->link;

    if (!d->exchange->over && ddp__post_is_done(d, link, ticket)) return ddp__post_wait(d, link, ticket, err);
    return ddp__post_hold(d, link, ticket, layer, err);
}

ddp_status ddp__average_hold(ddp_ctx *d, int layer, ddp_error *err)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__sending *y = &d->exchange->sending[layer];
    ddp_status s = DDP_OK;

    if (y->ticket == -1 && y->other_ticket == -1) return DDP_OK;
    if (y->other_ticket != -1) s = ddp__layer_hold(d, y->other_ticket, layer, err);
    if (s == DDP_OK && y->ticket != -1) s = ddp__layer_hold(d, y->ticket, layer, err);
    y->ticket = y->other_ticket = -1;
    y->part_divergence +=
        d->exchange->over ? d->exchange->over->divergence(d, &y->divergence) : y->divergence;
    y->averaged += y->moving;
    if (y->averaged >= ddp__parts_for(d, u->trained)) {
        y->last_divergence = y->part_divergence;
        y->part_divergence = 0;
        y->averaged = 0;
    }
    if (s == DDP_OK && y->base) ddp__coded_arrived(d, layer);
    return s;
}

ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err)
{
    DDP__TRY(ddp__average_layer(d, layer, NULL, 0, 1, 1, err));
    return ddp__average_hold(d, layer, err);
}

/* Marks the layers whose averaged arrays differ between ranks. */
static ddp_status ddp__layers_compare(ddp_ctx *d, ddp__compared *of, ddp_error *err)
{
    int single;

    for (int l = 0; l < ddp__layers(d); l++) {
        of[l].list = ddp__unit_of(d, l)->average;
        of[l].pieces = ddp__unit_of(d, l)->averages;
        of[l].group = ddp__unit_of(d, l)->group;
    }
    return ddp__compare_arrays(d, of, ddp__layers(d), &single, err);
}

ddp_status ddp__average_differing(ddp_ctx *d)
{
    ddp_error *err = ddp__error(d);
    ddp__compared *of;
    ddp_status s;

    if (!ddp__engine_of(d, 0)) return DDP_OK;
    if (ddp__team_size(d) < 2) {
        for (int l = ddp__layers(d) - 1; l >= 0; l--)
            if (d->exchange->sending[l].base) ddp__coded_base(d, l);
        return DDP_OK;
    }
    of = (ddp__compared *)ddp__calloc((size_t)ddp__layers(d) + 1, sizeof *of);
    if (!of) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d layers", ddp__layers(d));
    s = ddp__layers_compare(d, of, err);
    for (int l = 0; ddp__is_on_paper(d) && l < ddp__layers(d); l++) of[l].differs = 1; /* unknown */
    for (int l = ddp__layers(d) - 1; s == DDP_OK && l >= 0; l--) {
        if (of[l].differs)
            s = ddp__average_exact(d, l, err);
        else if (d->exchange->sending[l].base)
            ddp__coded_base(d, l);
    }
    DDP_FREE(of);
    return s;
}
