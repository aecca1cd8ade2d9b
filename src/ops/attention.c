/* Causal multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1). x (B, T, (heads + 2 kv_heads)
 * d) contains queries, keys and values. For each query head:
 *     out[t] = sum over s <= t of p[t][s] v[s], p[t] = softmax over s <= t of q[t].k[s] / sqrt(d).
 * Arguments: heads, kv_heads (default: heads). With fewer key/value heads, each serves heads / kv_heads
 * consecutive query heads (Ainslie et al. 2023, arXiv:2305.13245). The float kernels process tiles of up to
 * 64 x 256 scores, only left of the diagonal, and store at most two tiles (online softmax as in
 * FlashAttention, arXiv:2205.14135, Algorithm 1). Forward saves the maximum of the scaled scores and 1 / sum
 * per row and head. Backward recomputes p from them, and reads out. */
#include "ops/ops.h"

enum {
    DDP__ATTENTION_PART = 256,   /* queries per forward work item, and maximum keys of a tile */
    DDP__ATTENTION_PACK = 16384, /* floats of a packed tile of keys */
    DDP__ATTENTION_HEAD = 512,   /* widest head */
    /* floats of a tile of queries, and of scores: a quarter of the keys, and a last panel of them */
    DDP__ATTENTION_TILE = DDP__ATTENTION_PACK / 4 + DDP__GEMM_MR * DDP__ATTENTION_HEAD + DDP__GEMM_NR,
    DDP__ATTENTION_SCORE = (DDP__ATTENTION_PART / 4 + DDP__GEMM_MR) * DDP__ATTENTION_PART
};

static ddp_status ddp__attention_shape(ddp_op_spec *s, ddp_error *err)
{
    ddp__heads z;

    DDP__TRY(ddp__op_heads(s, "attention", &z, err));
    if (z.d > DDP__ATTENTION_HEAD)
        return ddp__fail(err, DDP_ARG,
                         "attention: a head is %d wide, it may be at most %d; more heads are narrower", z.d,
                         (int)DDP__ATTENTION_HEAD);
    s->out = s->in[0];
    s->out.dim[2] = z.width;
    s->saved = (size_t)(2 * z.b * z.heads * z.t);
    /* two products over half of T x T */
    s->flops = 2.0 * (double)ddp_shape_count(&s->out) * (double)(s->out.dim[1] + 1);
    s->backward_flops = 2.5 * s->flops; /* five products */
    return DDP_OK;
}

/* ---- float kernels: tiles of queries times tiles of keys, both packed for the register tile. The keys
 * of a head are packed once for all queries of a part that see them and for all heads that share them.
 * Register tiles that are fully masked are skipped. ---- */

typedef struct ddp__attention_tile {
    const ddp__kernels *kn;
    long keys, queries; /* of a tile. Each fits its packed array */
} ddp__attention_tile;

/* Working memory of a forward thread: the packed keys and values of a tile, and the arrays of its
 * queries. */
typedef struct ddp__attention_forward_room {
    float k_pack[DDP__ATTENTION_PACK] DDP__ALIGNED, v_pack[DDP__ATTENTION_PACK] DDP__ALIGNED;
    float q_pack[DDP__ATTENTION_TILE], score[DDP__ATTENTION_SCORE],
        p_pack[DDP__GEMM_MR * DDP__ATTENTION_PART];
} ddp__attention_forward_room;
DDP__ROOM_FITS(ddp__attention_forward_room);

/* Working memory of a backward thread: a tile of keys, transposed and as rows, and the arrays of a tile
 * of queries. */
typedef struct ddp__attention_backward_room {
    float k[DDP__ATTENTION_PACK] DDP__ALIGNED, v[DDP__ATTENTION_PACK] DDP__ALIGNED;
    float k_rows[DDP__ATTENTION_PACK] DDP__ALIGNED;
    float q_pack[DDP__ATTENTION_TILE] DDP__ALIGNED, dout_pack[DDP__ATTENTION_TILE] DDP__ALIGNED;
    float p[DDP__ATTENTION_SCORE], d[DDP__ATTENTION_SCORE], pack[DDP__GEMM_MR * DDP__ATTENTION_PART];
} ddp__attention_backward_room;
DDP__ROOM_FITS(ddp__attention_backward_room);

static ddp__attention_tile ddp__attention_tiles(const ddp_op_call *call, const ddp__heads *z)
{
    const long width = (z->d + DDP__GEMM_NR - 1) / DDP__GEMM_NR * DDP__GEMM_NR;
    ddp__attention_tile t;

    t.kn = ddp__kernels_of(call);
    t.keys = DDP__ATTENTION_PART;
    while (t.keys * width > DDP__ATTENTION_PACK) t.keys /= 2;
    t.queries = t.keys / 4;
    return t;
}

/* Packs panels of `width` rows of src (rows x k), each transposed: panel[p*width + i] = row i, column p. */
static void ddp__attention_turn(const ddp__kernels *kn, float *dst, long width, const float *src, long ld,
                                long rows, long k)
{
    long at[DDP__GEMM_NR], i;

    for (i = 0; i < width; i++) at[i] = i * ld;
    for (; rows > 0; rows -= width, src += width * ld, dst += width * k) {
        if (rows < width) memset(dst, 0, (size_t)(width * k) * sizeof *dst);
        kn->turn(dst, width, src, at, ddp__min_long(rows, width), k);
    }
}

/* Packs panels of `width` columns of src (k x cols): panel[p*width + i] = row p, column i. */
static void ddp__attention_pick(const ddp__kernels *kn, float *dst, long width, const float *src, long ld,
                                long k, long cols)
{
    long at[DDP__ATTENTION_PART], p;

    for (p = 0; p < k; p++) at[p] = p * ld;
    for (; cols > 0; cols -= width, src += width, dst += width * k) {
        if (cols < width) memset(dst, 0, (size_t)(width * k) * sizeof *dst);
        kn->gather(dst, width, src, at, k, ddp__min_long(cols, width));
    }
}

/* rows x cols elements of c = or += one panel a times the panels of b, which are stride floats apart, with
 * rows <= mr. */
static void ddp__attention_row(const ddp__kernels *kn, long k, const float *a, const float *b, long stride,
                               float *c, long ldc, long rows, long cols, int add)
{
    float part[DDP__GEMM_MR * DDP__GEMM_NR];

    for (long j = 0; j < cols; j += kn->nr, b += stride) {
        const long n = ddp__min_long(kn->nr, cols - j);
        if (rows == kn->mr && n == kn->nr) {
            kn->gemm(k, a, b, c + j, c + j + n / 2, ldc, add);
            continue;
        }
        kn->gemm(k, a, b, part, part + kn->nr / 2, kn->nr, 0);
        for (long i = 0; i < rows; i++) kn->affine(c + i * ldc + j, part + i * kn->nr, NULL, n, 1, 0, 0, add);
    }
}

/* The number of the n keys from s on that the panel of queries at i sees, in a tile that starts at query
 * `from`. Scores are in rows of t->keys floats. */
static long ddp__attention_seen(const ddp__attention_tile *t, long from, long i, long s, long n)
{
    return ddp__min_long(n, from + i + t->kn->mr - s);
}

static void ddp__attention_scores(const ddp__attention_tile *t, float *score, const float *q, const float *k,
                                  long d, long from, long rows, long s, long n)
{
    const long mr = t->kn->mr;

    for (long i = 0; i < rows; i += mr)
        ddp__attention_row(t->kn, d, q + i * d, k, t->kn->nr * d, score + i * t->keys, t->keys, mr,
                           (ddp__attention_seen(t, from, i, s, n) + t->kn->nr - 1) / t->kn->nr * t->kn->nr,
                           0);
}

/* Exponentials of a row of new scores. Unless fresh, the row of out so far uses an earlier maximum. */
static void ddp__attention_exp(const ddp__kernels *kn, const ddp__heads *z, float *row, long seen, int fresh,
                               float *stat, float *out)
{
    float max = kn->max(row, seen) * z->scale;

    if (!fresh && stat[0] >= max) {
        max = stat[0];
    } else if (!fresh) { /* a new maximum: rescale the sums so far */
        const float shrink = expf(stat[0] - max);
        stat[1] *= shrink;
        kn->affine(out, out, NULL, z->d, shrink, 0, 0, 0);
    }
    stat[0] = max;
    stat[1] = kn->softmax(row, row, seen, z->scale, max, 1, 0) + (fresh ? 0 : stat[1]);
}

/* Processes one tile of queries of one head against n keys from s on. */
static void ddp__attention_queries(const ddp_op_call *call, const ddp__attention_tile *t,
                                   ddp__attention_forward_room *room, long head, long from, long rows, long s,
                                   long n)
{
    const ddp__heads z = ddp__heads_of(call->spec);
    const ddp__kernels *kn = t->kn;
    const float *q = (const float *)call->in[0] + ddp__heads_q(&z, head) + from * z.row;
    float *out = (float *)call->out + ddp__heads_out(&z, head) + from * z.width;
    float *stat = (float *)call->saved + (head * z.t + from) * 2;
    float *score = room->score, *p_pack = room->p_pack;

    ddp__attention_turn(kn, room->q_pack, kn->mr, q, z.row, rows, z.d);
    ddp__attention_scores(t, score, room->q_pack, room->k_pack, z.d, from, rows, s, n);
    for (long i = 0; i < rows; i += kn->mr) {
        const long whole = ddp__min_long(kn->mr, rows - i), keys = ddp__attention_seen(t, from, i, s, n);
        for (long r = i; r < i + whole; r++) {
            float *row = score + r * t->keys;
            const long seen = ddp__min_long(n, from + r + 1 - s);
            ddp__attention_exp(kn, &z, row, seen, s == 0, stat + 2 * r, out + r * z.width);
            for (long j = seen; j < keys; j++) row[j] = 0;
        }
        ddp__attention_turn(kn, p_pack, kn->mr, score + i * t->keys, t->keys, whole, keys);
        ddp__attention_row(kn, keys, p_pack, room->v_pack, kn->nr * n, out + i * z.width, z.width, whole, z.d,
                           s > 0);
    }
}

/* Processes queries lo..hi-1 of all heads that share the keys of this head. */
static void ddp__attention_part(const ddp_op_call *call, ddp__attention_forward_room *room, long head,
                                long lo, long hi)
{
    const ddp__heads z = ddp__heads_of(call->spec);
    const ddp__attention_tile t = ddp__attention_tiles(call, &z);
    const float *k = (const float *)call->in[0] + ddp__heads_k(&z, head / z.group);

    for (long s = 0; s < hi; s += t.keys) {
        const long n = ddp__min_long(t.keys, hi - s);
        ddp__attention_turn(t.kn, room->k_pack, t.kn->nr, k + s * z.row, z.row, n, z.d);
        ddp__attention_pick(t.kn, room->v_pack, t.kn->nr, k + z.kv_heads * z.d + s * z.row, z.row, n, z.d);
        for (long h = head; h < head + z.group; h++)
            for (long from = lo > s ? lo : s; from < hi; from += t.queries)
                ddp__attention_queries(call, &t, room, h, from, ddp__min_long(t.queries, hi - from), s, n);
    }
    for (long h = head; h < head + z.group; h++)
        for (long i = lo; i < hi; i++) {
            float *stat = (float *)call->saved + (h * z.t + i) * 2;
            float *out = (float *)call->out + ddp__heads_out(&z, h) + i * z.width;
            stat[1] = 1 / stat[1];
            t.kn->affine(out, out, NULL, z.d, stat[1], 0, 0, 0);
        }
}

/* Work items are (batch, key head, part). The last parts have the most work and run first. */
static void ddp__attention_parts(void *user, void *room, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__heads z = ddp__heads_of(call->spec);
    const long heads = z.b * z.kv_heads;

    for (long i = first; i < last; i++) {
        const long lo = (ddp__parts(z.t, DDP__ATTENTION_PART) - 1 - i / heads) * DDP__ATTENTION_PART;
        ddp__attention_part(call, (ddp__attention_forward_room *)room, i % heads * z.group, lo,
                            ddp__min_long(z.t, lo + DDP__ATTENTION_PART));
    }
}

static void ddp__attention_forward(const ddp_op_call *call)
{
    const ddp__heads z = ddp__heads_of(call->spec);

    ddp__op_rooms(call, z.b * z.kv_heads * ddp__parts(z.t, DDP__ATTENTION_PART), 1, ddp__attention_parts,
                  (void *)call);
}

static void ddp__attention_clear(float *x, long rows, long ld, long d)
{
    for (; rows > 0; rows--, x += ld) memset(x, 0, (size_t)d * sizeof *x);
}

/* Accumulates the gradients between one tile of queries of one head and one tile of n keys from s on.
 * With p and d = dscore: dq += d k, dv += p^T dout, dk += d^T q. */
static void ddp__attention_tile_grad(const ddp_op_call *call, const ddp__attention_tile *t,
                                     ddp__attention_backward_room *room, long s, long n, long head, long from,
                                     long rows)
{
    const ddp__heads z = ddp__heads_of(call->spec);
    const ddp__kernels *kn = t->kn;
    const long ld = z.row, mr = kn->mr, kv = z.kv_heads * z.d;
    const long q_at = ddp__heads_q(&z, head) + from * ld, k_at = ddp__heads_k(&z, head / z.group) + s * ld;
    const long out_at = ddp__heads_out(&z, head) + from * z.width;
    const float *q = (const float *)call->in[0] + q_at, *out = (const float *)call->out + out_at;
    const float *dout = (const float *)call->grad_out + out_at;
    const float *stat = (const float *)call->saved + (head * z.t + from) * 2;
    float *dq = (float *)call->grad_in[0] + q_at, *dk = (float *)call->grad_in[0] + k_at;
    float *p = room->p, *d = room->d, *q_pack = room->q_pack, *dout_pack = room->dout_pack,
          *pack = room->pack;

    ddp__attention_turn(kn, q_pack, mr, q, ld, rows, z.d);
    ddp__attention_scores(t, p, q_pack, room->k, z.d, from, rows, s, n);
    ddp__attention_turn(kn, dout_pack, mr, dout, z.width, rows, z.d);
    ddp__attention_scores(t, d, dout_pack, room->v, z.d, from, rows, s, n);
    for (long i = 0; i < rows; i += mr) {
        const long whole = ddp__min_long(mr, rows - i), wide = ddp__attention_seen(t, from, i, s, n);
        for (long r = i; r < i + whole; r++) {
            float *pr = p + r * t->keys, *dr = d + r * t->keys;
            const long seen = ddp__min_long(n, from + r + 1 - s);
            kn->softmax(pr, pr, seen, z.scale, stat[2 * r], stat[2 * r + 1], 0);
            kn->softmax_grad(dr, pr, seen, kn->dot(out + r * z.width, dout + r * z.width, z.d), z.scale);
            for (long j = seen; j < ddp__min_long(n, seen + mr); j++) pr[j] = dr[j] = 0;
        }
        ddp__attention_turn(kn, pack, mr, d + i * t->keys, t->keys, whole, wide);
        ddp__attention_row(kn, wide, pack, room->k_rows, kn->nr * n, dq + i * ld, ld, whole, z.d, 1);
    }
    ddp__attention_pick(kn, q_pack, kn->nr, q, ld, rows, z.d);
    ddp__attention_pick(kn, dout_pack, kn->nr, dout, z.width, rows, z.d);
    for (long j = 0; j < n && s + j < from + rows; j += mr) {
        const long cols = ddp__min_long(mr, n - j), skip = s + j > from ? s + j - from : 0;
        ddp__attention_pick(kn, pack, mr, p + skip * t->keys + j, t->keys, rows - skip, cols);
        ddp__attention_row(kn, rows - skip, pack, dout_pack + skip * kn->nr, kn->nr * rows, dk + kv + j * ld,
                           ld, cols, z.d, 1);
        ddp__attention_pick(kn, pack, mr, d + skip * t->keys + j, t->keys, rows - skip, cols);
        ddp__attention_row(kn, rows - skip, pack, q_pack + skip * kn->nr, kn->nr * rows, dk + j * ld, ld,
                           cols, z.d, 1);
    }
}

/* Work items are (batch, key head). The query heads that share it add to its gradients one after the
 * other, so no sum is split over threads. */
static void ddp__attention_groups(void *user, void *room, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__heads z = ddp__heads_of(call->spec);
    const ddp__attention_tile t = ddp__attention_tiles(call, &z);
    float *grad = (float *)call->grad_in[0];
    ddp__attention_backward_room *own = (ddp__attention_backward_room *)room;

    for (long i = first; i < last; i++) {
        const long head = i * z.group, k_at = ddp__heads_k(&z, i);
        const float *k = (const float *)call->in[0] + k_at, *v = k + z.kv_heads * z.d;
        if (!call->add_in[0]) {
            ddp__attention_clear(grad + ddp__heads_q(&z, head), z.t, z.row, z.group * z.d);
            ddp__attention_clear(grad + k_at, z.t, z.row, z.d);
            ddp__attention_clear(grad + k_at + z.kv_heads * z.d, z.t, z.row, z.d);
        }
        for (long s = 0; s < z.t; s += t.keys) {
            const long n = ddp__min_long(t.keys, z.t - s);
            ddp__attention_turn(t.kn, own->k, t.kn->nr, k + s * z.row, z.row, n, z.d);
            ddp__attention_turn(t.kn, own->v, t.kn->nr, v + s * z.row, z.row, n, z.d);
            ddp__attention_pick(t.kn, own->k_rows, t.kn->nr, k + s * z.row, z.row, n, z.d);
            for (long h = head; h < head + z.group; h++)
                for (long from = s; from < z.t; from += t.queries)
                    ddp__attention_tile_grad(call, &t, own, s, n, h, from,
                                             ddp__min_long(t.queries, z.t - from));
        }
    }
}

static void ddp__attention_backward(const ddp_op_call *call)
{
    const ddp__heads z = ddp__heads_of(call->spec);

    if (call->grad_in[0]) ddp__op_rooms(call, z.b * z.kv_heads, 1, ddp__attention_groups, (void *)call);
}

DDP__OPS(ddp__attention_ops,
         {"attention", ddp__attention_shape, ddp__attention_forward, ddp__attention_backward})
