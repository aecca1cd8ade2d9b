/* Convolutions of 3 x 3 taps by Winograd's algorithm F(2x2, 3x3) (Lavin and Gray, arXiv:1509.09308). A tile
 * of 2 x 2 results needs 16 products per pair of channels instead of 36:
 *     y = A' [(G w G') * (B' x B)] A      x: 4 x 4 values, w: 3 x 3 taps, *: element by element
 * The sum over planes makes 16 matrix products. The gradient of the weights is the transpose of the same
 * formula: the sum over tiles of G' [(A y A') * (B' x B)] G. The transforms add, subtract and halve, so the
 * rounding error is about twice that of a plain product. */
#include "ops/ops.h"

/* All transforms work on channels, which are contiguous in working memory: rows of planes are transposed into
 * lines of channels, one line per pixel. A strip is a row of tiles, or a part of one. A chunk of strips is
 * multiplied at a time. */
enum {
    DDP__WINOGRAD_ROWS = 64,   /* rows of W in a block */
    DDP__WINOGRAD_PLANES = 64, /* planes in a block */
    DDP__WINOGRAD_TILES = 32,  /* tiles of a chunk: four register tiles */
    DDP__WINOGRAD_COLS = 2 * DDP__WINOGRAD_TILES + 2,
    DDP__WINOGRAD_LEAST = 16 /* planes, and rows of W, for which the transforms pay off */
};

/* Working memory of a thread. Element e of 0..15 is the position in a transformed tile. */
typedef struct ddp__winograd_room {
    /* weights by panel of nr rows of W, e, plane, row. Over weights: sums by e, row of W, plane */
    float u[16 * DDP__WINOGRAD_ROWS * DDP__WINOGRAD_PLANES] DDP__ALIGNED;
    /* images by e, tile, plane */
    float v[16 * DDP__WINOGRAD_TILES * DDP__WINOGRAD_PLANES] DDP__ALIGNED;
    /* results by e, tile, row of W */
    float m[16 * DDP__WINOGRAD_TILES * DDP__WINOGRAD_ROWS] DDP__ALIGNED;
    /* four rows of pixels. Row r of an image is at r modulo 4 */
    float x[4 * DDP__WINOGRAD_COLS * DDP__WINOGRAD_PLANES] DDP__ALIGNED;
    /* two rows of pixels */
    float y[4 * DDP__WINOGRAD_TILES * DDP__WINOGRAD_ROWS] DDP__ALIGNED;
    float part[2 * DDP__WINOGRAD_TILES * DDP__WINOGRAD_ROWS] DDP__ALIGNED;
} ddp__winograd_room;
DDP__ROOM_FITS(ddp__winograd_room);

typedef struct ddp__winograd_plan {
    const ddp__conv_product *g;
    const ddp__kernels *kernels;
    long down, across; /* tiles of an image */
    long parts, part;  /* strips of a row of tiles, and tiles of a strip */
    long each, strips; /* strips of a chunk, and in all */
    long tiles;        /* room for tiles in a chunk */
    long rows, span;   /* rows of W in a block, and chunks or planes in a block */
    long row_blocks, spans;
    long chunks;
} ddp__winograd_plan;

/* Tiles col..col+n-1 of row `row` of an image. */
typedef struct ddp__winograd_strip {
    long image, row, col, n;
} ddp__winograd_strip;

int ddp__winograd_fits(const ddp__conv_product *g)
{
    const ddp__conv_view *v = &g->view;
    const long rows = (v->rows + 1) / 2 * 2, cols = (v->cols + 1) / 2 * 2;

    return v->kh == 3 && v->kw == 3 && v->step == 1 && g->y_col == 1 &&
           ((g->w_kw == 1 && g->w_kh == 3) || (g->w_kw == -1 && g->w_kh == -3)) &&
           v->planes >= DDP__WINOGRAD_LEAST && g->m >= DDP__WINOGRAD_LEAST &&
           2 * rows * cols <= 3 * v->rows * v->cols;
}

static void ddp__winograd_start(ddp__winograd_plan *plan, const ddp_op_call *call, const ddp__conv_product *g)
{
    const ddp__conv_view *v = &g->view;

    memset(plan, 0, sizeof *plan);
    plan->g = g;
    plan->kernels = ddp__kernels_of(call);
    plan->tiles = DDP__WINOGRAD_TILES / plan->kernels->mr * plan->kernels->mr;
    plan->down = ddp__parts(v->rows, 2);
    plan->across = ddp__parts(v->cols, 2);
    plan->parts = ddp__parts(plan->across, plan->tiles);
    plan->part = ddp__parts(plan->across, plan->parts);
    plan->each = plan->parts > 1 ? 1 : plan->tiles / plan->across;
    plan->strips = v->images * plan->down * plan->parts;
    plan->chunks = ddp__parts(plan->strips, plan->each);
}

static ddp__winograd_strip ddp__winograd_strip_of(const ddp__winograd_plan *plan, long s)
{
    const long row = s / plan->parts, col = s % plan->parts * plan->part;
    ddp__winograd_strip t;

    t.image = row / plan->down;
    t.row = row % plan->down;
    t.col = col;
    t.n = ddp__min_long(plan->part, plan->across - col);
    return t;
}

/* ---- transforms of a strip ---- */

/* Sets a line of pixels first..first+n-1 of row `row` of an image's planes, with zeros outside. */
static void ddp__winograd_pixels(const ddp__winograd_plan *plan, float *to, const float *x, const long *at,
                                 long planes, long row, long first, long n)
{
    const ddp__conv_view *v = &plan->g->view;
    const long inside = row >= 0 && row < v->h;
    const long lo = inside ? ddp__min_long(n, first < 0 ? -first : 0) : n;
    const long hi = inside && first + n > v->w ? v->w - first : n;

    memset(to, 0, (size_t)(lo * DDP__WINOGRAD_PLANES) * sizeof *to);
    if (hi > lo)
        plan->kernels->turn(to + lo * DDP__WINOGRAD_PLANES, DDP__WINOGRAD_PLANES, x + row * v->w + first + lo,
                            at, planes, hi - lo);
    for (long i = hi > lo ? hi : lo; i < n; i++)
        memset(to + i * DDP__WINOGRAD_PLANES, 0, DDP__WINOGRAD_PLANES * sizeof *to);
}

/* Transforms the images of strip s into tiles t.. of room->v. x: the first plane of the first image.
 * follows: the room has the rows of the strip before. */
static void ddp__winograd_images(const ddp__winograd_plan *plan, ddp__winograd_room *room, const float *x,
                                 long planes, long s, long t, int follows)
{
    enum { LINE = DDP__WINOGRAD_PLANES, ROW = DDP__WINOGRAD_COLS * DDP__WINOGRAD_PLANES };
    const ddp__conv_view *v = &plan->g->view;
    const ddp__winograd_strip strip = ddp__winograd_strip_of(plan, s);
    const float *row[4], *lines[16];
    long at[DDP__WINOGRAD_PLANES];

    for (long p = 0; p < planes; p++) at[p] = p * v->h * v->w;
    for (long a = 0; a < 4; a++) {
        float *to = room->x + (2 * strip.row + a) % 4 * ROW;
        row[a] = to;
        if (a < 2 && follows && plan->parts == 1 && strip.row > 0) continue;
        ddp__winograd_pixels(plan, to, x + strip.image * v->image, at, planes, v->top + 2 * strip.row + a,
                             v->left + 2 * strip.col, 2 * strip.n + 2);
    }
    for (long j = 0; j < strip.n; j++) {
        for (int e = 0; e < 16; e++) lines[e] = row[e / 4] + (2 * j + e % 4) * LINE;
        plan->kernels->winograd_input(room->v + (t + j) * LINE, plan->tiles * LINE, lines, planes);
    }
}

/* Lines of the 2 x 2 pixels of tile j. */
static void ddp__winograd_square(ddp__winograd_room *room, long j, float **lines)
{
    for (int e = 0; e < 4; e++)
        lines[e] = room->y + (e / 2 * 2 * DDP__WINOGRAD_TILES + 2 * j + e % 2) * DDP__WINOGRAD_ROWS;
}

/* Transforms the results of tiles t.. and stores them as strip s of y, which begins at the block's first row
 * of W. */
static void ddp__winograd_store(const ddp__winograd_plan *plan, ddp__winograd_room *room, float *y, long rows,
                                long s, long t, int add)
{
    const ddp__conv_product *g = plan->g;
    const ddp__winograd_strip strip = ddp__winograd_strip_of(plan, s);
    const long n = ddp__min_long(2 * strip.n, g->view.cols - 2 * strip.col);
    float *lines[4];
    long at[2 * DDP__WINOGRAD_TILES];

    for (long j = 0; j < strip.n; j++) {
        ddp__winograd_square(room, j, lines);
        plan->kernels->winograd_output(lines, room->m + (t + j) * DDP__WINOGRAD_ROWS,
                                       plan->tiles * DDP__WINOGRAD_ROWS, rows);
    }
    for (long i = 0; i < n; i++) at[i] = i * DDP__WINOGRAD_ROWS;
    y += strip.image * g->y_image + 2 * strip.row * g->y_row + 2 * strip.col;
    for (long a = 0; a < 2 && 2 * strip.row + a < g->view.rows; a++, y += g->y_row) {
        const float *from = room->y + a * 2 * DDP__WINOGRAD_TILES * DDP__WINOGRAD_ROWS;
        if (!add) {
            plan->kernels->turn(y, g->y_plane, from, at, n, rows);
            continue;
        }
        plan->kernels->turn(room->part, n, from, at, n, rows);
        for (long i = 0; i < rows; i++)
            plan->kernels->affine(y + i * g->y_plane, room->part + i * n, NULL, n, 1, 0, 0, 1);
    }
}

/* Transforms strip s of y into tiles t.. of room->m. */
static void ddp__winograd_load(const ddp__winograd_plan *plan, ddp__winograd_room *room, const float *y,
                               long rows, long s, long t)
{
    const ddp__conv_product *g = plan->g;
    const ddp__winograd_strip strip = ddp__winograd_strip_of(plan, s);
    const long n = ddp__min_long(2 * strip.n, g->view.cols - 2 * strip.col);
    const float *square[4];
    float *lines[4];
    long at[DDP__WINOGRAD_ROWS];

    for (long i = 0; i < rows; i++) at[i] = i * g->y_plane;
    y += strip.image * g->y_image + 2 * strip.row * g->y_row + 2 * strip.col;
    for (long a = 0; a < 2; a++) {
        float *to = room->y + a * 2 * DDP__WINOGRAD_TILES * DDP__WINOGRAD_ROWS;
        const long inside = 2 * strip.row + a < g->view.rows ? n : 0;
        if (inside) plan->kernels->turn(to, DDP__WINOGRAD_ROWS, y + a * g->y_row, at, rows, n);
        memset(to + inside * DDP__WINOGRAD_ROWS, 0,
               (size_t)((2 * strip.n - inside) * DDP__WINOGRAD_ROWS) * sizeof *to);
    }
    for (long j = 0; j < strip.n; j++) {
        ddp__winograd_square(room, j, lines);
        for (int e = 0; e < 4; e++) square[e] = lines[e];
        plan->kernels->winograd_output_grad(room->m + (t + j) * DDP__WINOGRAD_ROWS,
                                            plan->tiles * DDP__WINOGRAD_ROWS, square, rows);
    }
}

/* ---- product over images ---- */

/* Transforms rows i0..i0+rows-1 of W for some planes into room->u. w: its first plane. */
static void ddp__winograd_weights(const ddp__winograd_plan *plan, ddp__winograd_room *room, const float *w,
                                  long rows, long planes)
{
    const ddp__conv_product *g = plan->g;
    const long nr = plan->kernels->nr;
    const int back = g->w_kw < 0;
    long at[DDP__GEMM_NR];

    for (long i = 0; i < nr; i++) at[i] = i * g->w_row;
    for (long i = 0; i < rows; i += nr) {
        float *u = room->u + i * 16 * DDP__WINOGRAD_PLANES;
        const long n = ddp__min_long(nr, rows - i);
        if (n < nr) memset(room->part, 0, (size_t)(9 * nr) * sizeof *room->part);
        for (long p = 0; p < planes; p++, u += nr) {
            const float *from = w + i * g->w_row + p * g->w_plane;
            if (back)
                plan->kernels->turn(room->part + 8 * nr, -nr, from - 8, at, n, 9);
            else
                plan->kernels->turn(room->part, nr, from, at, n, 9);
            plan->kernels->winograd_weight(u, DDP__WINOGRAD_PLANES * nr, room->part, nr, nr);
        }
    }
}

static void ddp__winograd_multiply(const ddp__winograd_plan *plan, ddp__winograd_room *room, long rows,
                                   long planes, long tiles)
{
    const ddp__kernels *kn = plan->kernels;

    for (long i = 0; i < rows; i += kn->nr) {
        for (long e = 0; e < 16; e++) {
            const float *v = room->v + e * plan->tiles * DDP__WINOGRAD_PLANES;
            const float *u = room->u + (i * 16 + e * kn->nr) * DDP__WINOGRAD_PLANES;
            float *m = room->m + e * plan->tiles * DDP__WINOGRAD_ROWS + i;
            for (long t = 0; t < tiles; t += kn->mr)
                kn->gemm_at(planes, v + t * DDP__WINOGRAD_PLANES, DDP__WINOGRAD_PLANES, 1, u, kn->nr,
                            m + t * DDP__WINOGRAD_ROWS, DDP__WINOGRAD_ROWS, NULL, 0);
        }
    }
}

/* Computes rows i0..i1-1 of y in the tiles of chunks c0..c1-1. */
static void ddp__winograd_block(const ddp__winograd_plan *plan, ddp__winograd_room *room, long group, long i0,
                                long i1, long c0, long c1)
{
    const ddp__conv_product *g = plan->g;
    const ddp__conv_view *v = &g->view;
    const long last = ddp__min_long(plan->strips, c1 * plan->each), rows = i1 - i0;
    float *y = g->y + (group * g->m + i0) * g->y_plane;

    for (long p = 0; p < v->planes; p += DDP__WINOGRAD_PLANES) {
        const long planes = ddp__min_long(DDP__WINOGRAD_PLANES, v->planes - p), first = c0 * plan->each;
        const float *x = v->x + (group * v->planes + p) * v->h * v->w;
        ddp__winograd_weights(plan, room, g->w + group * g->w_group + i0 * g->w_row + p * g->w_plane, rows,
                              planes);
        for (long s = first, end; s < last; s = end) {
            long tiles = 0, t = 0;
            end = ddp__min_long(s + plan->each, last);
            for (long i = s; i < end; i++) {
                ddp__winograd_images(plan, room, x, planes, i, tiles, i > first);
                tiles += ddp__winograd_strip_of(plan, i).n;
            }
            ddp__winograd_multiply(plan, room, rows, planes, tiles);
            for (long i = s; i < end; i++) {
                ddp__winograd_store(plan, room, y, rows, i, t, g->add || p);
                t += ddp__winograd_strip_of(plan, i).n;
            }
        }
    }
}

static void ddp__winograd_blocks(void *user, void *room, long first, long last)
{
    const ddp__winograd_plan *plan = (const ddp__winograd_plan *)user;

    for (long b = first; b < last; b++) {
        const long i = b % plan->row_blocks * plan->rows, c = b / plan->row_blocks % plan->spans * plan->span;
        ddp__winograd_block(plan, (ddp__winograd_room *)room, b / plan->row_blocks / plan->spans, i,
                            ddp__min_long(i + plan->rows, plan->g->m), c,
                            ddp__min_long(c + plan->span, plan->chunks));
    }
}

void ddp__winograd_over_images(const ddp_op_call *call, const ddp__conv_product *g)
{
    const long threads = ddp__pool_threads((const ddp__pool *)call->pool),
               wanted = threads > 1 ? 3 * threads : 1;
    ddp__winograd_plan plan;

    ddp__winograd_start(&plan, call, g);
    plan.row_blocks = ddp__parts(g->m, DDP__WINOGRAD_ROWS);
    plan.rows = ddp__parts(ddp__parts(g->m, plan.row_blocks), plan.kernels->nr) * plan.kernels->nr;
    plan.row_blocks = ddp__parts(g->m, plan.rows);
    plan.spans = ddp__min_long(plan.chunks, ddp__parts(wanted, g->groups * plan.row_blocks));
    plan.span = ddp__parts(plan.chunks, plan.spans);
    plan.spans = ddp__parts(plan.chunks, plan.span);
    ddp__op_rooms(call, g->groups * plan.row_blocks * plan.spans, 1, ddp__winograd_blocks, &plan);
}

/* ---- product over weights ---- */

/* Adds the sums of room->u to the rows of W. */
static void ddp__winograd_add(const ddp__winograd_plan *plan, ddp__winograd_room *room, float *w, long rows,
                              long planes)
{
    float *taps = room->part, *turned = room->part + 9 * DDP__WINOGRAD_PLANES;
    long at[9];

    for (long t = 0; t < 9; t++) at[t] = t * DDP__WINOGRAD_PLANES;
    for (long i = 0; i < rows; i++) {
        plan->kernels->winograd_weight_grad(taps, DDP__WINOGRAD_PLANES, room->u + i * DDP__WINOGRAD_PLANES,
                                            DDP__WINOGRAD_ROWS * DDP__WINOGRAD_PLANES, planes);
        plan->kernels->turn(turned, 9, taps, at, 9, planes);
        plan->kernels->affine(w + i * plan->g->w_row, turned, NULL, 9 * planes, 1, 0, 0, 1);
    }
}

/* Adds the products of the tiles in room->m and room->v to the sums in room->u. */
static void ddp__winograd_sum(const ddp__winograd_plan *plan, ddp__winograd_room *room, long rows,
                              long planes, long tiles)
{
    const ddp__kernels *kn = plan->kernels;

    for (long e = 0; e < 16; e++) {
        const float *v = room->v + e * plan->tiles * DDP__WINOGRAD_PLANES;
        const float *m = room->m + e * plan->tiles * DDP__WINOGRAD_ROWS;
        float *u = room->u + e * DDP__WINOGRAD_ROWS * DDP__WINOGRAD_PLANES;
        for (long p = 0; p < planes; p += kn->nr)
            for (long i = 0; i < rows; i += kn->mr)
                kn->gemm_at(tiles, m + i, 1, DDP__WINOGRAD_ROWS, v + p, DDP__WINOGRAD_PLANES,
                            u + i * DDP__WINOGRAD_PLANES + p, DDP__WINOGRAD_PLANES, NULL, 1);
    }
}

/* Computes rows i0..i1-1 of W for planes p0..p1-1. */
static void ddp__winograd_grad_block(const ddp__winograd_plan *plan, ddp__winograd_room *room, long group,
                                     long i0, long i1, long p0, long p1)
{
    const ddp__conv_product *g = plan->g;
    const ddp__conv_view *v = &g->view;
    const float *x = v->x + (group * v->planes + p0) * v->h * v->w,
                *y = g->y + (group * g->m + i0) * g->y_plane;

    memset(room->u, 0, sizeof room->u);
    for (long s = 0, end; s < plan->strips; s = end) {
        long tiles = 0;
        end = ddp__min_long(s + plan->each, plan->strips);
        for (long i = s; i < end; i++) {
            ddp__winograd_images(plan, room, x, p1 - p0, i, tiles, i > 0);
            ddp__winograd_load(plan, room, y, i1 - i0, i, tiles);
            tiles += ddp__winograd_strip_of(plan, i).n;
        }
        ddp__winograd_sum(plan, room, i1 - i0, p1 - p0, tiles);
    }
    ddp__winograd_add(plan, room, g->w + group * g->w_group + i0 * g->w_row + p0 * g->w_plane, i1 - i0,
                      p1 - p0);
}

static void ddp__winograd_grad_blocks(void *user, void *room, long first, long last)
{
    const ddp__winograd_plan *plan = (const ddp__winograd_plan *)user;

    for (long b = first; b < last; b++) {
        const long i = b % plan->row_blocks * plan->rows, p = b / plan->row_blocks % plan->spans * plan->span;
        ddp__winograd_grad_block(plan, (ddp__winograd_room *)room, b / plan->row_blocks / plan->spans, i,
                                 ddp__min_long(i + plan->rows, plan->g->m), p,
                                 ddp__min_long(p + plan->span, plan->g->view.planes));
    }
}

void ddp__winograd_over_weights(const ddp_op_call *call, const ddp__conv_product *g)
{
    const long threads = ddp__pool_threads((const ddp__pool *)call->pool);
    ddp__winograd_plan plan;
    long mr;

    ddp__winograd_start(&plan, call, g);
    mr = plan.kernels->mr;
    plan.span = DDP__WINOGRAD_PLANES;
    plan.spans = ddp__parts(g->view.planes, plan.span);
    plan.rows = ddp__min_long(DDP__WINOGRAD_ROWS / mr, ddp__parts(g->m, mr)) * mr;
    while (g->groups * plan.spans * ddp__parts(g->m, plan.rows) < threads && plan.rows > 2 * mr)
        plan.rows = ddp__parts(plan.rows / 2, mr) * mr;
    plan.row_blocks = ddp__parts(g->m, plan.rows);
    ddp__op_rooms(call, g->groups * plan.row_blocks * plan.spans, 1, ddp__winograd_grad_blocks, &plan);
}
