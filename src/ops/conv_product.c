/* The matrix products of a convolution, with the windows packed directly from the images. */
#include "ops/ops.h"

/* As in linear.c, a block of one operand is packed once into L2, and strips of the other one at a time
 * into L1. Strips are cut from a slab: a zero-padded copy of the image region for a chunk of positions,
 * so that packing needs no edge cases. The columns of a slab are sorted by their index modulo the step,
 * so that neighbouring positions are also neighbours in the slab. Rows and columns between windows are
 * left out. */
enum {
    DDP__CONV_MC = 528,  /* with one thread, half as many with several. A multiple of every mr */
    DDP__CONV_KC = 216,  /* 24 planes of 3 x 3 taps */
    DDP__CONV_NC = 576,  /* over weights: columns of W in a block */
    DDP__CONV_PC = 1024, /* over images: positions of a chunk */
    DDP__CONV_SLAB = 40960,
    DDP__CONV_RESULT = 262144 /* over images: floats of the result in a block */
};

/* Working memory of a thread. The last three arrays are for the product over weights: offsets in a slab. */
typedef struct ddp__conv_room {
    float b_pack[DDP__GEMM_NR * DDP__CONV_KC] DDP__ALIGNED;
    float a_pack[DDP__CONV_MC * DDP__CONV_KC], slab[DDP__CONV_SLAB];
    long from[DDP__CONV_NC], at[DDP__CONV_KC], runs[DDP__CONV_KC];
} ddp__conv_room;
DDP__ROOM_FITS(ddp__conv_room);

/* How a view is split into chunks. A chunk is rows_each whole rows of positions, of one image or of
 * several. If rows are long, it is a piece of a row, which has `parts` pieces. */
typedef struct ddp__conv_plan {
    const ddp__conv_product *g;
    const ddp__kernels *kernels;
    int direct;                  /* 1 if all taps are inside the images, and no slab is needed */
    long rows_each, parts, part; /* part: positions of a row in a chunk */
    long chunks;
    void (*block)(const struct ddp__conv_plan *plan, ddp__conv_room *room, long group, long i0, long i1,
                  long first, long last);
    long all;                /* number of chunks, or of columns of W */
    long down, across;       /* slab rows between positions, number of column remainders */
    long pitch, plane, slab; /* floats of a row, a plane and all of the slab */
    long rows, row_blocks;   /* rows of W in a block, number of such blocks */
    long span, spans;        /* part of `all` in a block, number of such parts */
} ddp__conv_plan;

/* Maximum floats of a slab plane for rows_each rows of `part` positions. */
static long ddp__conv_plane(ddp__conv_plan *plan, long rows_each, long part)
{
    const ddp__conv_view *v = &plan->g->view;
    const long images = ddp__min_long(v->images, (rows_each + v->rows - 2) / v->rows + 1);

    plan->pitch = plan->across * (part + (v->kw - 1) / plan->across);
    plan->plane = (rows_each * plan->down + images * (v->kh - plan->down)) * plan->pitch;
    return plan->plane;
}

/* Starts a plan: chunks of at most `positions` positions, whose slab has `planes` planes. */
static void ddp__conv_chunks(ddp__conv_plan *plan, const ddp_op_call *call, const ddp__conv_product *g,
                             long positions, long planes)
{
    const ddp__conv_view *v = &g->view;
    const long total = v->images * v->rows;

    memset(plan, 0, sizeof *plan);
    plan->g = g;
    plan->kernels = ddp__kernels_of(call);
    plan->direct = v->step == 1 && v->top >= 0 && v->left >= 0 && v->top + v->rows - 1 + v->kh <= v->h &&
                   v->left + v->cols - 1 + v->kw <= v->w;
    plan->down = ddp__min_long(v->step, v->kh);
    plan->across = ddp__min_long(v->step, v->kw);
    plan->part = ddp__min_long(v->cols, positions);
    plan->rows_each = ddp__min_long(total, positions / plan->part);
    if (plan->part < v->cols) plan->rows_each = 1;
    while (!plan->direct && planes * ddp__conv_plane(plan, plan->rows_each, plan->part) > DDP__CONV_SLAB &&
           plan->rows_each * plan->part > 1) {
        if (plan->rows_each > 1)
            plan->rows_each = (plan->rows_each + 1) / 2;
        else
            plan->part = (plan->part + 1) / 2;
    }
    if (plan->direct) {
        plan->pitch = v->w;
        plan->plane = v->h * v->w;
    }
    plan->slab = plan->direct ? 0 : planes * plan->plane;
    plan->parts = ddp__parts(v->cols, plan->part);
    plan->chunks = plan->parts > 1 ? total * plan->parts : ddp__parts(total, plan->rows_each);
}

/* Sets the range of positions first..last-1 of chunk t, counted over all images. */
static void ddp__conv_chunk(const ddp__conv_plan *plan, long t, long *first, long *last)
{
    const ddp__conv_view *v = &plan->g->view;
    const long row = plan->parts > 1 ? t / plan->parts : t * plan->rows_each;
    const long at = plan->parts > 1 ? t % plan->parts * plan->part : 0;

    *first = row * v->cols + at;
    *last = plan->parts > 1 ? row * v->cols + ddp__min_long(v->cols, at + plan->part)
                            : ddp__min_long(v->images * v->rows, row + plan->rows_each) * v->cols;
}

/* Offset of position q in the slab of the chunk that begins at first (or in the images). *run: number of
 * contiguous positions from there. */
static long ddp__conv_at(const ddp__conv_plan *plan, long first, long q, long *run)
{
    const ddp__conv_view *v = &plan->g->view;
    const long row = q / v->cols, col = q % v->cols, image = row / v->rows, r = row % v->rows;
    const long row0 = first / v->cols, image0 = row0 / v->rows, r0 = row0 % v->rows;
    long line;

    *run = v->cols - col;
    if (plan->direct) return image * v->image + (v->top + r) * v->w + v->left + col;
    if (image == image0)
        line = (r - r0) * plan->down;
    else
        line = (v->rows - 1 - r0) * plan->down + v->kh + r * plan->down +
               (image - image0 - 1) * ((v->rows - 1) * plan->down + v->kh);
    return line * plan->pitch + col - (plan->parts > 1 ? first % v->cols : 0);
}

/* Offset of tap (a, b) of plane p from a position. */
static long ddp__conv_tap(const ddp__conv_plan *plan, long p, long a, long b)
{
    if (plan->direct) return p * plan->plane + a * plan->pitch + b;
    return p * plan->plane + a * plan->pitch + b % plan->across * (plan->pitch / plan->across) +
           b / plan->across;
}

/* Elements lo..hi-1 of a line: every step-th element of a row of x from column first on, with zeros
 * outside. */
typedef struct ddp__conv_line {
    long first, lo, hi;
} ddp__conv_line;

static ddp__conv_line ddp__conv_clip(long first, long w, long step, long n)
{
    ddp__conv_line l;

    l.first = first;
    l.lo = ddp__min_long(n, first < 0 ? ddp__parts(-first, step) : 0);
    l.hi = ddp__min_long(n, first < w ? ddp__parts(w - first, step) : 0);
    if (l.hi < l.lo) l.hi = l.lo;
    return l;
}

/* Fills the slab for positions first..last-1 from planes p0..p1-1 (x: start of a group). If a chunk has
 * whole rows, the zeros around the lines are already set. */
static void ddp__conv_fill(const ddp__conv_plan *plan, float *slab, const float *x, long p0, long p1,
                           long first, long last)
{
    const ddp__conv_view *v = &plan->g->view;
    const long h = v->h, w = v->w, step = v->step, down = plan->down, across = plan->across,
               width = plan->pitch / across;
    const long row0 = first / v->cols, row1 = (last - 1) / v->cols + 1;
    const long left = v->left + (plan->parts > 1 ? first % v->cols : 0) * step;
    ddp__conv_line lines[DDP__CONV_KERNEL];
    long at[(int)DDP__CONV_PC + (int)DDP__CONV_KERNEL], p, row, n, i, j, y, kind, all;

    if (plan->parts > 1) memset(slab, 0, (size_t)plan->slab * sizeof *slab);
    for (kind = 0; kind < across; kind++) lines[kind] = ddp__conv_clip(left + kind, w, step, width);
    for (i = 0; step == 1 && i < row1 - row0 + v->kh; i++) at[i] = i * w;
    for (row = row0; row < row1; row += n) { /* one image at a time */
        const float *image = x + row / v->rows * v->image;
        const long y0 = v->top + row % v->rows * step;
        n = ddp__min_long(v->rows - row % v->rows, row1 - row);
        for (p = p0; p < p1; p++) {
            const float *src = image + p * h * w;
            float *dst = slab + (p - p0) * plan->plane;
            for (i = 0, y = y0; i < (n - 1) * down + v->kh; i += all, y += all, dst += all * plan->pitch) {
                all = 1;
                if (down < step && i && i % down == 0) y += step - down;
                if (y < 0 || y >= h) {
                    memset(dst, 0, (size_t)plan->pitch * sizeof *dst);
                    continue;
                }
                if (step == 1) {
                    all = ddp__min_long(n - 1 + v->kh - i, h - y);
                    plan->kernels->gather(dst + lines->lo, plan->pitch,
                                          src + y * w + lines->first + lines->lo, at, all,
                                          lines->hi - lines->lo);
                }
                for (kind = 0; step > 1 && kind < across; kind++)
                    for (j = lines[kind].lo; j < lines[kind].hi; j++)
                        dst[kind * width + j] = src[y * w + lines[kind].first + j * step];
                if (p + 1 < p1) ddp__ahead(src + (h + y) * w, all * w);
            }
        }
        slab += ((n - 1) * down + v->kh) * plan->pitch;
    }
}

/* ---- product over images ---- */

/* Packs rows i0..i1-1 of W, k columns from column p on. from[] receives the position of each column in a
 * row. */
static void ddp__conv_pack_w(const ddp__conv_plan *plan, float *pack, const float *w, long i0, long i1,
                             long p, long k)
{
    const ddp__conv_product *g = plan->g;
    const long taps = g->view.kh * g->view.kw, mr = plan->kernels->mr;
    const int whole = g->w_kw == 1 && g->w_kh == g->view.kw && g->w_plane == taps;
    const int back = g->w_kw == -1 && g->w_kh == -g->view.kw && p % taps == 0 && k % taps == 0;
    long from[DDP__CONV_KC], at[DDP__GEMM_MR], i, j, q;

    for (q = 0; q < k; q++)
        from[q] = (p + q) / taps * g->w_plane + (p + q) % taps / g->view.kw * g->w_kh +
                  (p + q) % g->view.kw * g->w_kw;
    for (j = 0; j < mr; j++) at[j] = j * g->w_row;
    for (i = i0; i < i1; i += mr, pack += mr * k) {
        const long rows = ddp__min_long(mr, i1 - i);
        const float *src = w + i * g->w_row;
        if (rows < mr) memset(pack, 0, (size_t)(mr * k) * sizeof *pack);
        if (whole) {
            plan->kernels->turn(pack, mr, src + p, at, rows, k);
        } else if (g->w_row == 1) {
            plan->kernels->gather(pack, mr, src, from, k, rows);
        } else if (back) { /* taps of a plane in reverse order */
            for (q = 0; q < k; q += taps)
                plan->kernels->turn(pack + (q + taps - 1) * mr, -mr, src + (from[q] - taps + 1), at, rows,
                                    taps);
        } else {
            for (q = 0; q < k; q++)
                for (j = 0; j < rows; j++) pack[q * mr + j] = src[from[q] + at[j]];
        }
    }
}

/* Computes the register tiles for rows of y at positions q..q+n-1. */
static void ddp__conv_tiles(const ddp__conv_plan *plan, long k, const float *a, const float *b, float *y,
                            long rows, long q, long n, int add)
{
    const ddp__conv_product *g = plan->g;
    const ddp__conv_view *v = &g->view;
    const ddp__kernels *kn = plan->kernels;
    const int whole = g->y_col == 1 && g->y_row == v->cols; /* planes of y are contiguous */
    const long run = whole ? v->rows * v->cols : v->cols, half = kn->nr / 2;
    const int fits = whole && n == kn->nr && q % run + half <= run && (q + half) % run + half <= run;
    float *left = fits ? y + q / run * g->y_image + q % run : NULL;
    float *right = fits ? y + (q + half) / run * g->y_image + (q + half) % run : NULL;
    float part[DDP__GEMM_MR * DDP__GEMM_NR];
    long at[DDP__GEMM_NR], runs[DDP__GEMM_NR], t, i, j, e;

    for (j = 0; j < n; j += runs[j]) {
        const long p = q + j, row = p / v->cols;
        runs[j] = ddp__min_long(run - p % run, n - j);
        at[j] = whole ? p / run * g->y_image + p % run
                      : row / v->rows * g->y_image + row % v->rows * g->y_row + p % v->cols * g->y_col;
    }
    for (t = 0; t < rows; t += kn->mr) {
        const long m = ddp__min_long(kn->mr, rows - t);
        float *first = y + t * g->y_plane;
        if (fits && m == kn->mr) {
            kn->gemm(k, a + t * k, b, left + t * g->y_plane, right + t * g->y_plane, g->y_plane, add);
            continue;
        }
        for (j = 0; !fits && j < n; j += runs[j])
            for (i = 0; i < m; i++) ddp__ahead(first + i * g->y_plane + at[j], runs[j] * g->y_col);
        kn->gemm(k, a + t * k, b, part, part + half, kn->nr, 0);
        for (j = 0; j < n; j += runs[j]) {
            for (i = 0; i < m; i++) {
                float *to = first + i * g->y_plane + at[j];
                const float *from = part + i * kn->nr + j;
                if (g->y_col == 1)
                    kn->affine(to, from, NULL, runs[j], 1, 0, 0, add);
                else if (add)
                    for (e = 0; e < runs[j]; e++) to[e * g->y_col] += from[e];
                else
                    for (e = 0; e < runs[j]; e++) to[e * g->y_col] = from[e];
            }
        }
    }
}

/* Computes rows i0..i1-1 of y at the positions of chunks t0..t1-1. */
static void ddp__conv_block(const ddp__conv_plan *plan, ddp__conv_room *room, long group, long i0, long i1,
                            long t0, long t1)
{
    const ddp__conv_product *g = plan->g;
    const ddp__conv_view *v = &g->view;
    const ddp__kernels *kn = plan->kernels;
    const long taps = v->kh * v->kw, total = v->planes * taps;
    const long each = taps <= DDP__CONV_KC ? DDP__CONV_KC / taps * taps : (long)DDP__CONV_KC;
    const float *x = v->x + group * v->planes * v->h * v->w;
    float *y = g->y + group * g->m * g->y_plane;
    float *a_pack = room->a_pack, *b_pack = room->b_pack, *slab = room->slab;
    long *from = room->from, p, t, q, j, n, run, first, last;

    memset(slab, 0, (size_t)plan->slab * sizeof *slab);
    for (p = 0; p < total; p += each) {
        const long k = ddp__min_long(each, total - p), p0 = p / taps;
        ddp__conv_pack_w(plan, a_pack, g->w + group * g->w_group, i0, i1, p, k);
        for (q = 0; q < k; q++)
            from[q] = ddp__conv_tap(plan, (p + q) / taps - p0, (p + q) % taps / v->kw, (p + q) % v->kw);
        for (t = t0; t < t1; t++) {
            const float *source = plan->direct ? x + p0 * plan->plane : slab;
            ddp__conv_chunk(plan, t, &first, &last);
            if (!plan->direct) ddp__conv_fill(plan, slab, x, p0, (p + k - 1) / taps + 1, first, last);
            for (q = first; q < last; q += n) {
                n = ddp__min_long(kn->nr, last - q);
                if (n < kn->nr) memset(b_pack, 0, sizeof room->b_pack);
                for (j = 0; j < n; j += run) {
                    const long at = ddp__conv_at(plan, first, q + j, &run);
                    run = ddp__min_long(run, n - j);
                    kn->gather(b_pack + j, kn->nr, source + at, from, k, run);
                }
                ddp__conv_tiles(plan, k, a_pack, b_pack, y + i0 * g->y_plane, i1 - i0, q, n, g->add || p);
            }
        }
    }
}

static void ddp__conv_blocks(void *user, void *room, long first, long last)
{
    const ddp__conv_plan *plan = (const ddp__conv_plan *)user;

    for (long t = first; t < last; t++) {
        const long i = t % plan->row_blocks * plan->rows, c = t / plan->row_blocks % plan->spans * plan->span;
        plan->block(plan, (ddp__conv_room *)room, t / plan->row_blocks / plan->spans, i,
                    ddp__min_long(i + plan->rows, plan->g->m), c, ddp__min_long(c + plan->span, plan->all));
    }
}

static long ddp__conv_most_rows(const ddp_op_call *call)
{
    return ddp__pool_threads((const ddp__pool *)call->pool) > 1 ? DDP__CONV_MC / 2 : DDP__CONV_MC;
}

/* Runs the plan in blocks: whole register tiles of limited height, times spans of at most `span`
 * (multiples of least) of plan->all. Several threads get more and smaller blocks. */
static void ddp__conv_run(ddp__conv_plan *plan, const ddp_op_call *call, long span, long least)
{
    const ddp__conv_product *g = plan->g;
    const int threads = ddp__pool_threads((const ddp__pool *)call->pool);
    const long mr = plan->kernels->mr, wanted = threads > 1 ? 3L * threads : 1, all = plan->all;
    const long parts = ddp__parts(g->m, ddp__conv_most_rows(call));

    plan->rows = ddp__parts(ddp__parts(g->m, parts), mr) * mr;
    plan->row_blocks = ddp__parts(g->m, plan->rows);
    plan->spans = ddp__parts(all, span);
    while (g->groups * plan->row_blocks * plan->spans < wanted && plan->spans * least < all) plan->spans++;
    plan->span = ddp__parts(ddp__parts(all, plan->spans), least) * least;
    plan->spans = ddp__parts(all, plan->span);
    ddp__op_rooms(call, g->groups * plan->row_blocks * plan->spans, 1, ddp__conv_blocks, plan);
}

void ddp__conv_over_images(const ddp_op_call *call, const ddp__conv_product *g)
{
    const long taps = g->view.kh * g->view.kw, planes = taps <= DDP__CONV_KC ? DDP__CONV_KC / taps : 2;
    ddp__conv_plan plan;
    long span;

    ddp__conv_chunks(&plan, call, g, DDP__CONV_PC, ddp__min_long(planes, g->view.planes));
    plan.block = ddp__conv_block;
    plan.all = plan.chunks;
    span = DDP__CONV_RESULT / (ddp__min_long(g->m, ddp__conv_most_rows(call)) * plan.rows_each * plan.part);
    ddp__conv_run(&plan, call, span > 1 ? span : 1, 1);
}

/* ---- product over weights ---- */

/* Packs rows i0..i1-1 of y at k positions from first on, padded with zeros to a full register tile. */
static void ddp__conv_pack_y(const ddp__conv_plan *plan, float *pack, const float *y, long i0, long i1,
                             long first, long k)
{
    const ddp__conv_product *g = plan->g;
    const long mr = plan->kernels->mr, image = g->view.rows * g->view.cols;
    long at[DDP__GEMM_MR], i, j, q, n;

    for (i = 0; i < mr; i++) at[i] = i * g->y_plane;
    for (i = i0; i < i1; i += mr, pack += mr * k) {
        const long rows = ddp__min_long(mr, i1 - i);
        if (rows < mr) memset(pack, 0, (size_t)(mr * k) * sizeof *pack);
        for (q = 0; q < k; q += n) {
            const float *src = y + i * g->y_plane + (first + q) / image * g->y_image + (first + q) % image;
            n = ddp__min_long(image - (first + q) % image, k - q);
            for (j = mr; j < 2 * mr && i + j < i1; j++) ddp__ahead(src + j * g->y_plane, n);
            plan->kernels->gather(pack + q, k, src, at, rows, n);
        }
    }
}

/* Computes rows i0..i1-1 by columns j0..j1-1 of W. */
static void ddp__conv_grad_block(const ddp__conv_plan *plan, ddp__conv_room *room, long group, long i0,
                                 long i1, long j0, long j1)
{
    const ddp__conv_product *g = plan->g;
    const ddp__conv_view *v = &g->view;
    const ddp__kernels *kn = plan->kernels;
    const long taps = v->kh * v->kw, p0 = j0 / taps;
    const float *x = v->x + group * v->planes * v->h * v->w, *y = g->y + group * g->m * g->y_plane;
    float *w = g->w + group * g->w_group;
    float *a_pack = room->a_pack, *b_pack = room->b_pack, *slab = room->slab,
          part[DDP__GEMM_MR * DDP__GEMM_NR];
    long *from = room->from, *at = room->at, *runs = room->runs, t, q, i, j, k, e, f, n, first, last;

    memset(slab, 0, (size_t)plan->slab * sizeof *slab);
    for (j = j0; j < j1; j++) from[j - j0] = ddp__conv_tap(plan, j / taps - p0, j % taps / v->kw, j % v->kw);
    for (t = 0; t < plan->chunks; t++) {
        const float *source = plan->direct ? x + p0 * plan->plane : slab;
        ddp__conv_chunk(plan, t, &first, &last);
        k = last - first;
        ddp__conv_pack_y(plan, a_pack, y, i0, i1, first, k);
        if (!plan->direct) ddp__conv_fill(plan, slab, x, p0, (j1 - 1) / taps + 1, first, last);
        for (q = first; q < last; q += runs[q - first]) {
            at[q - first] = ddp__conv_at(plan, first, q, &n);
            runs[q - first] = ddp__min_long(n, last - q);
        }
        for (j = j0; j < j1; j += n) {
            n = ddp__min_long(kn->nr, j1 - j);
            if (n < kn->nr) memset(b_pack, 0, sizeof room->b_pack);
            for (q = 0; q < k; q += runs[q])
                kn->turn(b_pack + q * kn->nr, kn->nr, source + at[q], from + (j - j0), n, runs[q]);
            for (i = i0; i < i1; i += kn->mr) {
                float *to = w + i * g->w_row + j;
                const float *a = a_pack + (i - i0) * k;
                if (n == kn->nr && i + kn->mr <= i1) {
                    kn->gemm_at(k, a, k, 1, b_pack, kn->nr, to, g->w_row, NULL, 1);
                    continue;
                }
                kn->gemm_at(k, a, k, 1, b_pack, kn->nr, part, kn->nr, NULL, 0);
                for (e = 0; e < ddp__min_long(kn->mr, i1 - i); e++)
                    for (f = 0; f < n; f++) to[e * g->w_row + f] += part[e * kn->nr + f];
            }
        }
    }
}

/* The chunks do not depend on the number of threads, because they determine the order of sums: they are
 * sized for the widest span. */
void ddp__conv_over_weights(const ddp_op_call *call, const ddp__conv_product *g)
{
    const ddp__conv_view *v = &g->view;
    const long taps = v->kh * v->kw;
    ddp__conv_plan plan;

    ddp__conv_chunks(&plan, call, g, DDP__CONV_KC, ddp__min_long(DDP__CONV_NC / taps + 2, v->planes));
    plan.block = ddp__conv_grad_block;
    plan.all = v->planes * taps;
    ddp__conv_run(&plan, call, DDP__CONV_NC, plan.kernels->nr);
}
