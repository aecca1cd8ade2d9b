/* Edge wire aq: both ends of an edge store each sample as it was last sent, and only its delta is sent, in a
 * few bits (AQ-SGD: Wang et al. 2022, Fine-tuning language models over slow networks using activation
 * compression with guarantees, arXiv:2206.01299). */
#include "compress/codec.h"
#include "pipe/executor.h"

/* ---- deltas: blocks of 64 values. A block has its largest magnitude s, then levels q of `bits` bits, lowest
 * bits first. A level is the value s (2 q / (2^bits - 1) - 1), evenly spaced from -s to s, without 0 ---- */

size_t ddp__change_bytes(int bits, size_t n)
{
    return 4 * ((n + DDP_QUANTISE_BLOCK - 1) / DDP_QUANTISE_BLOCK) +
           (n * (size_t)bits + 7) / 8; /* 64 fill whole bytes */
}

/* Encodes n finite values as the nearest level. Halves round up. */
void ddp__changes_code(const float *x, size_t n, int bits, unsigned char *out)
{
    const double half = (double)((1 << bits) - 1) / 2;

    for (size_t len; n; x += len, n -= len) {
        uint32_t waiting = 0;
        float most = 0;
        int held = 0;
        len = n < DDP_QUANTISE_BLOCK ? n : DDP_QUANTISE_BLOCK;
        for (size_t k = 0; k < len; k++) most = fmaxf(most, fabsf(x[k]));
        ddp__codec_put32(out, ddp__codec_bits(most));
        out += 4;
        for (size_t k = 0; k < len; k++) {
            const long q = most > 0 ? lround(((double)x[k] / (double)most + 1) * half) : 0;
            waiting |= (uint32_t)q << held;
            held += bits;
            if (held < 8) continue;
            *out++ = (unsigned char)waiting;
            waiting >>= 8;
            held -= 8;
        }
        if (held) *out++ = (unsigned char)waiting;
    }
}

ddp_status ddp__changes_add(const unsigned char *in, size_t n, int bits, float *last, ddp_error *err)
{
    for (size_t len; n; last += len, n -= len) {
        const float scale = ddp__codec_float(ddp__codec_get32(in));
        const uint32_t top = (1u << bits) - 1;
        uint32_t waiting = 0;
        int held = 0;
        if (!ddp__within((double)scale, 0, FLT_MAX))
            return ddp__fail(err, DDP_FORMAT,
                             "a block of deltas has the scale %g; it must be finite and at least 0",
                             (double)scale);
        len = n < DDP_QUANTISE_BLOCK ? n : DDP_QUANTISE_BLOCK;
        in += 4;
        for (size_t k = 0; k < len; k++, held -= bits, waiting >>= bits) {
            if (held < bits) {
                waiting |= (uint32_t)*in++ << held;
                held += 8;
            }
            last[k] += (float)((double)scale * (2.0 * (double)(waiting & top) / (double)top - 1));
        }
    }
    return DDP_OK;
}

/* ---- messages: array by array, and in each array sample by sample ---- */

/* 1 if the sample is sent as float32. Evaluations do not use stored samples. */
static int ddp__sample_is_whole(const ddp_pipe *p, int m, int i)
{
    return !p->trains || p->samples.fresh[m * p->samples.batch + i];
}

size_t ddp__samples_size(const ddp_pipe *p, const ddp__flow *l, int m)
{
    const size_t batch = (size_t)p->samples.batch;
    size_t whole = 0;

    for (int i = 0; i < p->samples.batch; i++) whole += (size_t)ddp__sample_is_whole(p, m, i);
    return whole * l->values * sizeof(float) + (batch - whole) * (l->bytes / batch);
}

ddp_status ddp__samples_cross(ddp_pipe *p, const ddp__flow *l, int m, int sends, float *x, size_t n,
                              size_t at, unsigned char **message, ddp_error *err)
{
    const size_t batch = (size_t)p->samples.batch, part = n / batch, bytes = part * sizeof *x;
    const int bits = (int)p->edge.ratio;
    float *change = p->select.value;

    for (int i = 0; i < p->samples.batch; i++, x += part) {
        float *last = l->last + (size_t)p->samples.id[m * p->samples.batch + i] * l->values + at / batch;
        size_t bad;
        if (ddp__sample_is_whole(p, m, i)) {
            if (sends)
                memcpy(*message, x, bytes);
            else
                memcpy(x, *message, bytes);
            if (p->trains) memcpy(last, x, bytes);
            *message += bytes;
            continue;
        }
        for (size_t k = 0; sends && k < part; k++) change[k] = x[k] - last[k];
        bad = sends ? ddp__first_from(change, part, DDP__INFINITE) : part;
        if (bad < part)
            return ddp__fail(err, DDP_NUMERIC,
                             "the delta of value %zu of a sample, from %g to %g, is not finite", bad,
                             (double)last[bad], (double)x[bad]);
        if (sends) ddp__changes_code(change, part, bits, *message);
        DDP__TRY(ddp__changes_add(*message, part, bits, last, err));
        if (!sends) memcpy(x, last, bytes);
        *message += ddp__change_bytes(bits, part);
    }
    return DDP_OK;
}

/* ---- names ---- */

int ddp_pipe_samples(ddp_pipe *p, int m, const long *id)
{
    ddp__samples *s;

    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    s = &p->samples;
    if (!s->id) return 0;
    if (!id || m < 0 || m >= p->micro_batches)
        return ddp__ctx_failf(p->d, DDP_ARG,
                              "ddp_pipe_samples: micro-batch %d must be in 0..%d, and id must not be NULL", m,
                              p->micro_batches - 1);
    for (int i = 0; i < s->batch; i++) {
        if (id[i] < 0 || id[i] >= s->count)
            return ddp__ctx_failf(
                p->d, DDP_ARG,
                "ddp_pipe_samples: sample %ld in micro-batch %d must be in 0..%ld; see samples "
                "in ddp_pipe_config",
                id[i], m, s->count - 1);
        s->id[m * s->batch + i] = id[i];
        s->fresh[m * s->batch + i] = DDP__NAMED;
    }
    return 0;
}

ddp_status ddp__samples_begin(ddp_pipe *p)
{
    ddp__samples *s = &p->samples;
    const int all = p->micro_batches * s->batch;

    if (!s->id) return DDP_OK;
    for (int i = 0; i < all; i++)
        if (s->fresh[i] != DDP__NAMED)
            return ddp__fail(ddp__error(p->d), DDP_USAGE,
                             "edge wire aq: the samples of micro-batch %d are unknown; call "
                             "ddp_pipe_samples for each micro-batch before every step",
                             i / s->batch);
    if (ddp_step(p->d) > 0 && !p->lanes.steps && !p->lanes.warm)
        ddp__log(ddp__log_of(p->d), DDP_LOG_INFO,
                 "stage %d: edge wire aq restarts at step %ld: each sample is sent as float32 "
                 "once more",
                 p->stage, ddp_step(p->d));
    for (int i = 0; i < all; i++) {
        s->fresh[i] = (char)!s->seen[s->id[i]];
        s->seen[s->id[i]] = 1;
    }
    return DDP_OK;
}

/* ---- opening ---- */

/* Returns 0 if the size exceeds the available memory. */
static int ddp__samples_take(ddp_pipe *p, double bytes)
{
    p->samples.bytes += bytes;
    return ddp__graph_may_take(p->g, p->samples.bytes);
}

int ddp__samples_keep(ddp_pipe *p, ddp__flow *l, size_t values)
{
    l->values = values / (size_t)p->samples.batch;
    if (!ddp__samples_take(p, 4.0 * (double)p->samples.count * (double)l->values)) return 0;
    l->last = (float *)ddp__scratch_take(&p->room, (size_t)p->samples.count * l->values, sizeof *l->last);
    return l->last != NULL;
}

ddp_status ddp__samples_open(ddp_pipe *p, ddp_error *err)
{
    ddp__samples *s = &p->samples;
    size_t names;

    if (p->d->keeper)
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "edge wire aq:%g does not work with ddp_launch_pipelines, because the stored samples of a "
            "lost rank are lost; choose int8, or run without min_replicas",
            p->edge.ratio);
    if (s->count < 1 || s->batch < 1)
        return ddp__fail(err, DDP_ARG,
                         "edge wire aq:%g with %ld samples, %d per micro-batch: set samples and batch in "
                         "ddp_pipe_config, and name the samples with ddp_pipe_samples",
                         p->edge.ratio, s->count, s->batch);
    for (int i = 0; i < ddp__count(p->g->node); i++) {
        const ddp_node *n = p->g->node[i];
        if ((n->from >= 0 || n->to >= 0) && (!n->spec.out.dims || n->spec.out.dim[0] % s->batch))
            return ddp__fail(
                err, DDP_ARG,
                "edge wire aq:%g: the first dimension of operator %.60s (node %d), %ld, is not a multiple "
                "of the %d samples of a micro-batch; cut elsewhere, or choose int8",
                p->edge.ratio, n->op->name, i, n->spec.out.dims ? n->spec.out.dim[0] : 0L, s->batch);
    }
    names = (size_t)p->micro_batches * (size_t)s->batch;
    if (ddp__samples_take(p, (double)s->count)) {
        s->id = (long *)ddp__scratch_take(&p->room, names, sizeof *s->id);
        s->seen = (char *)ddp__scratch_take(&p->room, (size_t)s->count + names, 1);
    }
    if (!s->id || !s->seen) return ddp__samples_memory(p, err);
    s->fresh = s->seen + s->count;
    return DDP_OK;
}

ddp_status ddp__samples_memory(const ddp_pipe *p, ddp_error *err)
{
    return ddp__fail(
        err, DDP_MEMORY,
        "out of memory for edge wire aq:%g, which stores the activations of %ld samples at the edges "
        "of stage %d, %.0f bytes or more; train on fewer samples, or choose int8",
        p->edge.ratio, p->samples.count, p->stage, p->samples.bytes);
}
