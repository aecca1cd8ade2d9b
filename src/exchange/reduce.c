/* Implements all-reduces of doubles and 64-bit integers, maxima and minima, and collectives of bytes of any
 * number. The engine sums floats only, so each rank gathers the arrays of all ranks, one piece of limited
 * size at a time, and combines them. */
#include "context/context.h"
#include "exchange/exchange.h"
#include "exchange/collective.h"
#include "exchange/post.h"

#define DDP__REDUCE_BYTES ((size_t)4 << 20)  /* bytes of all ranks' blocks of one piece */
#ifndef DDP__MESSAGE_BYTES                   /* the test of the pieces sets a smaller one */
#define DDP__MESSAGE_BYTES ((size_t)1 << 30) /* bytes of one message. A frame counts to 2^32. */
#endif

/* Header of each rank's block. All zeros: the rank is lost. */
typedef struct ddp__reduce_head {
    unsigned char there, type, op, zeros[5]; /* as long as a value, so that doubles are aligned */
} ddp__reduce_head;

typedef struct ddp__operand {
    const char *call;
    size_t size;
    void (*add)(void *own, const void *x, size_t n);
    void (*extreme)(void *own, const void *x, size_t n, int max);
} ddp__operand;

/* ---- arithmetic ---- */

static void ddp__float_extreme(void *own, const void *x, size_t n, int max)
{
    float *a = (float *)own;
    const float *b = (const float *)x;

    for (size_t i = 0; i < n; i++) {
        if (ddp__is_nan((double)a[i])) continue;
        if (ddp__is_nan((double)b[i]) || (max ? b[i] > a[i] : b[i] < a[i])) a[i] = b[i];
    }
}

static void ddp__double_add(void *own, const void *x, size_t n)
{
    double *a = (double *)own;
    const double *b = (const double *)x;

    for (size_t i = 0; i < n; i++) a[i] += b[i];
}

static void ddp__double_extreme(void *own, const void *x, size_t n, int max)
{
    double *a = (double *)own;
    const double *b = (const double *)x;

    for (size_t i = 0; i < n; i++) {
        if (ddp__is_nan(a[i])) continue;
        if (ddp__is_nan(b[i]) || (max ? b[i] > a[i] : b[i] < a[i])) a[i] = b[i];
    }
}

/* Adds as unsigned integers, because the overflow of a signed sum is undefined. */
static void ddp__int64_add(void *own, const void *x, size_t n)
{
    uint64_t *a = (uint64_t *)own;
    const uint64_t *b = (const uint64_t *)x;

    for (size_t i = 0; i < n; i++) a[i] += b[i];
}

static void ddp__int64_extreme(void *own, const void *x, size_t n, int max)
{
    int64_t *a = (int64_t *)own;
    const int64_t *b = (const int64_t *)x;

    for (size_t i = 0; i < n; i++)
        if (max ? b[i] > a[i] : b[i] < a[i]) a[i] = b[i];
}

enum { DDP__FLOAT, DDP__DOUBLE, DDP__INT64, DDP__OPERANDS };

static const ddp__operand ddp__operands[DDP__OPERANDS] = {
    {"ddp_all_reduce_float", sizeof(float), NULL, ddp__float_extreme},
    {"ddp_all_reduce_double", sizeof(double), ddp__double_add, ddp__double_extreme},
    {"ddp_all_reduce_int64", sizeof(int64_t), ddp__int64_add, ddp__int64_extreme}};
static const char *const ddp__reductions[] = {"DDP_SUM", "DDP_MEAN", "DDP_MAX", "DDP_MIN"};

/* ---- all-reduces ---- */

static int ddp__reduce_differs(ddp_ctx *d, const ddp__reduce_head *own, const ddp__reduce_head *other,
                               int rank)
{
    const int known = other->type < DDP__OPERANDS && other->op <= DDP_MIN;

    return ddp__ctx_failf(d, DDP_MISMATCH,
                          "rank %d calls %s with %s, rank %d %s with %s: make the same call on all "
                          "ranks",
                          ddp_rank(d), ddp__operands[own->type].call, ddp__reductions[own->op], rank,
                          known ? ddp__operands[other->type].call : "another collective",
                          known ? ddp__reductions[other->op] : "other data");
}

/* Combines the blocks into out[n], in rank order. */
static int ddp__reduce_blocks(ddp_ctx *d, const unsigned char *all, int blocks, const ddp__reduce_head *own,
                              void *out, size_t n)
{
    const ddp__operand *kind = &ddp__operands[own->type];
    const int sums = own->op == DDP_SUM || own->op == DDP_MEAN;
    const size_t block = sizeof *own + n * kind->size;
    double *mean = (double *)out;
    int took = 0;

    for (int r = 0; r < blocks; r++) {
        const unsigned char *at = all + block * (size_t)r, *values = at + sizeof *own;
        ddp__reduce_head head;
        memcpy(&head, at, sizeof head);
        if (!head.there) continue;
        if (memcmp(&head, own, sizeof head)) return ddp__reduce_differs(d, own, &head, r);
        if (!took++)
            memcpy(out, values, n * kind->size);
        else if (sums)
            kind->add(out, values, n);
        else
            kind->extreme(out, values, n, own->op == DDP_MAX);
    }
    for (size_t i = 0; own->op == DDP_MEAN && i < n; i++) mean[i] /= took;
    return 0;
}

/* All-reduces x by gathering: each rank sends every piece of x, after a header, to all ranks. */
static int ddp__reduce_gathered(ddp_ctx *d, int type, void *x, size_t n, ddp_reduction op)
{
    const ddp__operand *kind = &ddp__operands[type];
    const int blocks = ddp_world(d) - ddp_servers(d);
    const size_t most = (DDP__REDUCE_BYTES / (size_t)blocks - sizeof(ddp__reduce_head)) / kind->size;
    ddp__reduce_head head = DDP__ZEROS;
    unsigned char *all;
    int s = 0;

    all = (unsigned char *)ddp__calloc((size_t)blocks, sizeof head + (n < most ? n : most) * kind->size);
    if (!all)
        return ddp__ctx_failf(d, DDP_MEMORY, "%s: out of memory for a piece of the arrays of %d ranks",
                              kind->call, blocks);
    head.there = 1;
    head.type = (unsigned char)type;
    head.op = (unsigned char)op;
    for (size_t at = 0, here; !s && (at < n || at == 0); at += here ? here : 1) {
        unsigned char *part = (unsigned char *)x + at * kind->size;
        ddp_message m;
        ddp_piece p;
        here = n - at < most ? n - at : most;
        p.bytes = all;
        p.count = (size_t)blocks * (sizeof head + here * kind->size);
        if (ddp_rank(d) < blocks) {
            unsigned char *own = all + (size_t)ddp_rank(d) * (sizeof head + here * kind->size);
            memcpy(own, &head, sizeof head);
            if (here) memcpy(own + sizeof head, part, here * kind->size);
        }
        m = ddp__message(d, DDP_ALL_GATHER, &p, 1, DDP_NO_LAYER);
        m.bytes = 1;
        m.group = d->exchange->computing;
        s = ddp__plain(d, kind->call, &m);
        if (!s) s = ddp__reduce_blocks(d, all, blocks, &head, part, here);
    }
    DDP_FREE(all);
    return s;
}

/* Checks the arguments before any message. */
static int ddp__reduce_check(ddp_ctx *d, int type, const void *x, size_t n, ddp_reduction op)
{
    const char *call = ddp__operands[type].call;

    if ((int)op < (int)DDP_SUM || op > DDP_MIN)
        return ddp__ctx_failf(d, DDP_ARG,
                              "%s: reduction %d does not exist; use DDP_SUM, DDP_MEAN, DDP_MAX or DDP_MIN",
                              call, (int)op);
    if (!x && n) return ddp__ctx_failf(d, DDP_ARG, "%s: the array is NULL", call);
    if (type == DDP__INT64 && op == DDP_MEAN)
        return ddp__ctx_failf(d, DDP_ARG,
                              "%s: a mean of integers is no integer; copy them to doubles for "
                              "ddp_all_reduce_double",
                              call);
    return 0;
}

int ddp_all_reduce_float(ddp_ctx *d, float *x, size_t n, ddp_reduction op)
{
    const ddp_piece p = {{x}, n};
    ddp_message m;

    DDP__ENTER(d);
    if (ddp__reduce_check(d, DDP__FLOAT, x, n, op)) return (int)ddp__error(d)->code;
    if (!ddp__engine_of(d, 0)) return 0;
    if (op == DDP_MAX || op == DDP_MIN) return ddp__reduce_gathered(d, DDP__FLOAT, x, n, op);
    m = ddp__message(d, DDP_ALL_REDUCE, &p, 1, DDP_NO_LAYER);
    m.group = d->exchange->computing;
    m.mean = op == DDP_MEAN;
    return ddp__plain(d, "ddp_all_reduce_float", &m);
}

int ddp_all_reduce_double(ddp_ctx *d, double *x, size_t n, ddp_reduction op)
{
    DDP__ENTER(d);
    if (ddp__reduce_check(d, DDP__DOUBLE, x, n, op)) return (int)ddp__error(d)->code;
    return ddp__engine_of(d, 0) ? ddp__reduce_gathered(d, DDP__DOUBLE, x, n, op) : 0;
}

int ddp_all_reduce_int64(ddp_ctx *d, int64_t *x, size_t n, ddp_reduction op)
{
    DDP__ENTER(d);
    if (ddp__reduce_check(d, DDP__INT64, x, n, op)) return (int)ddp__error(d)->code;
    return ddp__engine_of(d, 0) ? ddp__reduce_gathered(d, DDP__INT64, x, n, op) : 0;
}

/* ---- bytes ---- */

/* Transfers x, which has `blocks` blocks of n bytes each, one after the other. A message contains the next
 * bytes of every block. */
static int ddp__bytes_of(ddp_ctx *d, const char *name, ddp_verb verb, void *x, size_t n, int blocks, int root)
{
    const size_t most = DDP__MESSAGE_BYTES / (size_t)blocks;
    ddp_piece *list = (ddp_piece *)ddp__calloc((size_t)blocks, sizeof *list);
    int s = 0;

    if (!list)
        return ddp__ctx_failf(d, DDP_MEMORY, "%s: out of memory for a list of %d blocks", name, blocks);
    for (size_t at = 0, here; !s && (at < n || at == 0); at += here ? here : 1) {
        ddp_message m = ddp__message(d, verb, list, blocks, DDP_NO_LAYER);
        here = n - at < most ? n - at : most;
        for (int r = 0; r < blocks; r++) {
            list[r].bytes = x ? (unsigned char *)x + n * (size_t)r + at : NULL;
            list[r].count = here;
        }
        m.bytes = 1;
        m.group = d->exchange->computing;
        m.peer = root;
        s = ddp__plain(d, name, &m);
    }
    DDP_FREE(list);
    return s;
}

int ddp_broadcast_bytes(ddp_ctx *d, void *x, size_t n, int root)
{
    DDP__ENTER(d);
    return ddp__bytes_of(d, "ddp_broadcast_bytes", DDP_BROADCAST, x, n, 1, root);
}

int ddp_all_gather_bytes(ddp_ctx *d, void *x, size_t n)
{
    DDP__ENTER(d);
    return ddp__bytes_of(d, "ddp_all_gather_bytes", DDP_ALL_GATHER, x, n, ddp_world(d) - ddp_servers(d), 0);
}
