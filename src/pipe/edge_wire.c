/* The arrays of an edge, and the encoding of compressed edges. */
#include "comm/state.h"
#include "compress/codec.h"
#include "pipe/executor.h"

/* ---- settings ---- */

static const char *const ddp__edge_names[] = {"f32",     "bf16",       "int8", "topk",
                                              "adatopk", "bottleneck", "aq",   NULL};

/* Returns 1 for a number of bits that aq supports. */
static int ddp__is_bits(double x) { return x >= 2 && x <= 4 && x == floor(x); }

ddp_status ddp_edge_wire_parse(const char *text, ddp_edge_wire *out, ddp_error *err)
{
    ddp_edge_wire w = {DDP_EDGE_F32, 0, 0, 0};
    char name[80], *ratio, *factor;
    int i = 0, bad;

    if (!out) return ddp__fail(err, DDP_ARG, "ddp_edge_wire_parse: out is NULL");
    bad = snprintf(name, sizeof name, "%s", text ? text : "") >= (int)sizeof name;
    ratio = strchr(name, ':');
    if (ratio) *ratio++ = '\0';
    factor = ratio ? strchr(ratio, ':') : NULL;
    if (factor) *factor++ = '\0';
    while (ddp__edge_names[i] && strcmp(ddp__edge_names[i], name)) i++;
    w.coding = (ddp_edge_coding)i;
    bad |= !ddp__edge_names[i] || (i >= (int)DDP_EDGE_TOPK) != (ratio != NULL) ||
           (factor && i != (int)DDP_EDGE_ADATOPK) ||
           (ratio && *ratio && !ddp__parse_double(ratio, &w.ratio)) ||
           (factor && *factor && !ddp__parse_double(factor, &w.factor));
    if (bad)
        return ddp__fail(err, DDP_ARG,
                         "unknown edge wire '%.60s'; choose f32, bf16, int8, topk:R, adatopk:R, "
                         "adatopk:R:FACTOR, bottleneck:R or aq:BITS",
                         text ? text : "");
    if (i == (int)DDP_EDGE_AQ && !ddp__is_bits(w.ratio))
        return ddp__fail(err, DDP_ARG, "edge wire '%.60s': aq needs 2, 3 or 4 bits", text);
    if (i >= (int)DDP_EDGE_TOPK && !ddp__within(w.ratio, 1, 1e9))
        return ddp__fail(err, DDP_ARG,
                         "edge wire '%.60s': the ratio must be from 1 (sends all values) to 1e9; 100 sends a "
                         "hundredth",
                         text);
    if (factor && *factor && !(w.factor > 0 && w.factor <= 1e6))
        return ddp__fail(err, DDP_ARG,
                         "edge wire '%.60s': the factor must be above 0 and at most 1e6; the paper uses 3",
                         text);
    w.feedback = out->feedback;
    *out = w;
    return DDP_OK;
}

const char *ddp_edge_coding_name(ddp_edge_coding coding)
{
    return coding >= DDP_EDGE_F32 && coding <= DDP_EDGE_AQ ? ddp__edge_names[coding] : NULL;
}

static ddp_status ddp__edge_check(const ddp_edge_wire *w, ddp_error *err)
{
    if (w->coding < DDP_EDGE_F32 || w->coding > DDP_EDGE_AQ)
        return ddp__fail(err, DDP_ARG, "unknown edge wire %d; use a value of ddp_edge_coding",
                         (int)w->coding);
    if (w->coding == DDP_EDGE_AQ && !ddp__is_bits(w->ratio))
        return ddp__fail(err, DDP_ARG, "edge wire aq with %g bits: use 2, 3 or 4", w->ratio);
    if (w->coding >= DDP_EDGE_TOPK && !ddp__within(w->ratio, 1, 1e9))
        return ddp__fail(err, DDP_ARG,
                         "edge wire %s with ratio %g: the ratio must be from 1 (sends all values) to 1e9",
                         ddp__edge_names[w->coding], w->ratio);
    if (w->feedback && (w->coding < DDP_EDGE_INT8 || w->coding > DDP_EDGE_ADATOPK))
        return ddp__fail(err, DDP_ARG,
                         "edge wire %s does not support error feedback; use int8, topk or adatopk, or "
                         "set feedback to 0",
                         ddp__edge_names[w->coding]);
    return DDP_OK;
}

/* ---- the arrays of a message ---- */

int ddp__hop_list(ddp_pipe *p, const ddp__hop *e, int m, int gradients)
{
    const int later = e->stage > p->stage ? e->stage : p->stage;
    ddp_state *s = ddp__pipe_state(p, m);
    int n = 0;

    for (int i = 0; i < e->nodes; i++) {
        const ddp_node *x = p->g->node[e->node[i]];
        const int parts = gradients ? x->parts : 0;
        for (int k = 0; (!gradients || x->has_gradient) && k < (parts ? parts : 1); k++) {
            if (parts && ddp__part_stage(x, k) < later) continue;
            p->piece[n].data = (float *)(parts       ? ddp__part_at(s, x, k)
                                         : gradients ? ddp_state_gradient(s, x)
                                                     : ddp_state_data(s, x));
            p->shape[n] = &x->spec.out;
            p->piece[n++].count = (size_t)ddp_shape_count(&x->spec.out);
        }
    }
    return n;
}

/* ---- opening ---- */

/* Bytes of an encoded array of n values. */
static size_t ddp__part_bytes(const ddp_pipe *p, const ddp__flow *l, size_t n)
{
    switch (l->coding) {
    case DDP_EDGE_AQ:
        return (size_t)p->samples.batch * ddp__change_bytes((int)p->edge.ratio, n / (size_t)p->samples.batch);
    case DDP_EDGE_BF16:
        return 2 * n;
    case DDP_EDGE_INT8:
        return ddp_pack_bound(DDP_PACK_INT8, n, n);
    case DDP_EDGE_TOPK:
    case DDP_EDGE_ADATOPK:
        return ddp_pack_bound(DDP_PACK_I32, n, ddp_keep_count(n, l->ratio));
    default:
        return n * sizeof(float);
    }
}

/* Computes the sizes of a flow and allocates its messages. Returns 0 if out of memory. */
static int ddp__flow_open(ddp_pipe *p, ddp__hop *e, int gradients, int sends)
{
    ddp__flow *l = &e->flow[gradients];
    ddp__select *w = &p->select;
    const int pieces = ddp__hop_list(p, e, 0, gradients), aq = l->coding == DDP_EDGE_AQ;
    const int selects = l->coding == DDP_EDGE_TOPK || l->coding == DDP_EDGE_ADATOPK;
    size_t values = 0;
    int fits = 1;

    for (int i = 0; i < pieces; i++) {
        const size_t part = ddp__part_bytes(p, l, p->piece[i].count);
        l->bytes += part;
        values += p->piece[i].count;
        fits &= part != 0;
    }
    l->residual = p->cut.residuals;
    if (sends && p->edge.feedback)
        /* allocated for uncompressed links too, so that checkpoints are the same */
        p->cut.residuals += values;
    if (!fits || l->bytes >= values * sizeof(float)) {
        l->bytes = values * sizeof(float);
        return 1;
    }
    for (int i = 0; i < pieces; i++) {
        const size_t n = p->piece[i].count, k = aq ? n : ddp_keep_count(n, l->ratio);
        if (n > w->values) w->values = n;
        if (sends && (selects || aq) && k > w->keeps) w->keeps = k;
        if (sends && selects && ddp_topk_scratch(n, k) > w->scratch_bytes)
            w->scratch_bytes = ddp_topk_scratch(n, k);
    }
    l->room = aq ? values * sizeof(float) : l->bytes;
    if (aq && !ddp__samples_keep(p, l, values)) return 0;
    l->wire = (unsigned char *)ddp__scratch_take(&p->room, (size_t)p->states, l->room);
    return l->wire != NULL;
}

/* Opens the flows. Activations come from earlier stages, gradients from later stages. Returns 0 if out of
 * memory. */
static int ddp__hops_open(ddp_pipe *p, const double *ratio)
{
    for (int i = 0; i < p->hops[1] + p->hops[0]; i++)
        for (int gradients = 0; gradients < 2; gradients++) {
            const int side = i < p->hops[1], sends = side == gradients;
            ddp__hop *e = side ? &p->hop[1][i] : &p->hop[0][i - p->hops[1]];
            const int from = sends ? p->stage : e->stage, to = sends ? e->stage : p->stage;
            e->flow[gradients].coding =
                gradients && p->edge.coding == DDP_EDGE_AQ ? DDP_EDGE_INT8 : p->edge.coding;
            e->flow[gradients].ratio = ratio ? ratio[from * p->stages + to] : p->edge.ratio;
            if (!ddp__flow_open(p, e, gradients, sends)) return 0;
        }
    return 1;
}

ddp_status ddp__wires_open(ddp_pipe *p, ddp_error *err)
{
    ddp__select *w = &p->select;
    double *ratio = NULL;
    ddp_status s = ddp__edge_check(&p->edge, err);
    int fits;

    if (s == DDP_OK && p->edge.coding == DDP_EDGE_ADATOPK && p->stages > 1) {
        ratio = (double *)ddp__calloc((size_t)p->stages * (size_t)p->stages, sizeof *ratio);
        s = ratio ? ddp__edge_ratios(p, ratio, err)
                  : ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d stages", p->stages);
    }
    if (s == DDP_OK && p->edge.coding == DDP_EDGE_AQ && p->stages > 1) s = ddp__samples_open(p, err);
    fits = s || ddp__hops_open(p, ratio);
    DDP_FREE(ratio);
    if (s) return s;
    w->scratch = ddp__scratch_take(&p->room, w->scratch_bytes, 1);
    w->index = (uint64_t *)ddp__scratch_take(&p->room, p->edge.coding == DDP_EDGE_AQ ? 0 : w->keeps,
                                             sizeof *w->index);
    w->value = (float *)ddp__scratch_take(&p->room, w->keeps, sizeof *w->value);
    if (w->values && ddp__backend_of(p->d))
        w->here = (float *)ddp__scratch_take(&p->room, w->values, sizeof *w->here);
    if (p->cut.residuals)
        p->cut.residual = (float *)ddp__scratch_take(&p->room, p->cut.residuals, sizeof(float));
    fits = fits && !ddp__scratch_failed(&p->room);
    if (p->samples.bytes > 0 && !fits) return ddp__samples_memory(p, err);
    ddp__graph_takes(p->g, p->samples.bytes);
    if (fits) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY,
                     "out of memory for the messages of stage %d, %d at a time; use 1f1b or smaller "
                     "micro-batches",
                     p->stage, p->states);
}

/* ---- arrays and messages ---- */

/* Encodes one array into `bytes` bytes. residual is for error feedback, or NULL. */
static ddp_status ddp__part_pack(ddp_pipe *p, const ddp__flow *l, const float *x, size_t n, float *residual,
                                 unsigned char *out, size_t bytes, ddp_error *err)
{
    ddp__select *w = &p->select;
    const size_t k = ddp_keep_count(n, l->ratio);
    size_t used;

    if (residual) DDP__TRY(ddp_feedback_add(residual, x, n, err));
    if (residual) x = residual;
    if (l->coding == DDP_EDGE_BF16) {
        ddp__bfloat_halve((uint16_t *)(void *)out, x, n);
        return DDP_OK;
    }
    if (l->coding == DDP_EDGE_INT8) {
        DDP__TRY(ddp_pack_quantised(DDP_PACK_INT8, x, n, out, bytes, &used, err));
        return residual ? ddp_feedback_subtract(out, used, residual, n, err) : DDP_OK;
    }
    DDP__TRY(ddp_topk(x, n, k, w->scratch, w->scratch_bytes, w->index, w->value, err));
    DDP__TRY(ddp_pack_sparse(DDP_PACK_I32, n, k, w->index, w->value, out, bytes, &used, err));
    return residual ? ddp_feedback_keep(residual, n, w->index, k, err) : DDP_OK;
}

static ddp_status ddp__part_unpack(const ddp__flow *l, const unsigned char *in, size_t bytes, float *x,
                                   size_t n, ddp_error *err)
{
    if (l->coding != DDP_EDGE_BF16) return ddp_unpack_store(in, bytes, x, n, err);
    ddp__bfloat_widen(x, (const uint16_t *)(const void *)in, n);
    return DDP_OK;
}

ddp_status ddp__flow_code(ddp_pipe *p, ddp__hop *e, int m, int gradients, int sends)
{
    const ddp_backend *b = ddp__backend_of(p->d);
    void *device = ddp__device_of(p->d);
    const ddp__flow *l = &e->flow[gradients];
    const int pieces = ddp__hop_list(p, e, m, gradients);
    unsigned char *message = l->wire + (size_t)(m % p->states) * l->room;
    float *residual = p->trains && p->cut.residual ? p->cut.residual + l->residual : NULL;
    ddp_error why = DDP__ZEROS;
    size_t at = 0;

    for (int i = 0; i < pieces; i++) {
        const size_t n = p->piece[i].count, bytes = ddp__part_bytes(p, l, n);
        float *own = p->piece[i].data, *x = p->select.here ? p->select.here : own;
        if (sends && x != own) DDP__TRY(b->download_elements(device, x, own, p->shape[i], ddp__error(p->d)));
        if (l->last ? ddp__samples_cross(p, l, m, sends, x, n, at, &message, &why)
            : sends ? ddp__part_pack(p, l, x, n, residual ? residual + at : NULL, message, bytes, &why)
                    : ddp__part_unpack(l, message, bytes, x, n, &why))
            return ddp__fail(ddp__error(p->d), why.code,
                             "stage %d cannot %s %s of micro-batch %d (peer: stage %d): "
                             "%.300s",
                             p->stage, sends ? "send" : "read", gradients ? "gradients" : "activations", m,
                             e->stage, why.msg);
        if (!sends && x != own) b->upload_elements(device, own, x, p->shape[i]);
        at += n;
        if (!l->last) message += bytes;
    }
    return DDP_OK;
}
