/* Registers the layers: checks them, lists their arrays, and allocates the state of the optimizer. */
#include "context/context.h"

/* ---- arrays in two layers: identical arrays are a tied weight, any other overlap is an error ---- */

typedef struct ddp__array {
    const float *from, *to;
    int layer, block, gradients;
} ddp__array;

static int ddp__array_order(const void *a, const void *b)
{
    const ddp__array *x = (const ddp__array *)a, *y = (const ddp__array *)b;

    if (x->from != y->from) return (uintptr_t)x->from < (uintptr_t)y->from ? -1 : 1;
    if (x->gradients != y->gradients) return x->gradients - y->gradients;
    return x->layer != y->layer ? x->layer - y->layer : x->block - y->block;
}

/* Lists all arrays of all layers, sorted by address. Returns their number. */
static int ddp__arrays(const ddp_ctx *d, ddp__array *out)
{
    int n = 0;

    for (int l = 0; l < d->layers; l++)
        for (int b = 0; b < ddp__count(d->unit[l].block); b++) {
            const ddp_block *k = &d->unit[l].block[b];
            const ddp__array params = {k->params, k->params + k->count, l, b, 0},
                             grads = {k->grads, k->grads + k->count, l, b, 1};
            out[n++] = params;
            if (k->grads) out[n++] = grads;
        }
    qsort(out, (size_t)n, sizeof *out, ddp__array_order);
    return n;
}

/* Assigns a tied weight to the layer that is first in the forward pass and last in the backward pass. */
static void ddp__arrays_tie(ddp_ctx *d, const ddp__array *x, int n)
{
    for (int i = 1, kept = 0; i < n; i++) {
        const ddp_block *a = &d->unit[x[kept].layer].block[x[kept].block];
        ddp_block *b = &d->unit[x[i].layer].block[x[i].block];
        if (!x[i].gradients && a != b && a->params == b->params && a->grads == b->grads &&
            a->count == b->count && a->kind == b->kind)
            b->count = 0;
        else
            kept = i;
    }
    for (int l = 0; l < d->layers; l++) {
        ddp__unit *u = &d->unit[l];
        int left = 0;
        for (int b = 0; b < ddp__count(u->block); b++)
            if (u->block[b].count) u->block[left++] = u->block[b];
        stbds_arrsetlen(u->block, left);
    }
}

static ddp_status ddp__spans_settle(ddp_ctx *d, ddp_error *err)
{
    const ddp__array *far; /* the array with the highest end so far */
    ddp__array *all;
    int n = 0;

    for (int l = 0; l < d->layers; l++) n += 2 * ddp__count(d->unit[l].block);
    all = (ddp__array *)ddp__calloc((size_t)n + 1, sizeof *all);
    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory for the arrays of %d layers", d->layers);
    ddp__arrays_tie(d, all, ddp__arrays(d, all));
    n = ddp__arrays(d, all);
    err->code = DDP_OK;
    for (int i = 1, k = 0; i < n; i++) {
        const ddp__array *x = &all[i];
        far = &all[k];
        if (x->from < far->to) {
            ddp__fail(
                err, DDP_ARG,
                "%s of layer %d (%s) and %s of layer %d (%s) overlap by %zu bytes: register each value once; "
                "a weight that two layers share must have the same params, grads and count in both",
                far->gradients ? "gradients" : "parameters", far->layer, d->unit[far->layer].name,
                x->gradients ? "gradients" : "parameters", x->layer, d->unit[x->layer].name,
                (size_t)((x->to < far->to ? x->to : far->to) - x->from) * sizeof(float));
            break;
        }
        if (x->to > far->to) k = i;
    }
    DDP_FREE(all);
    return err->code;
}

/* ---- memory of the layers ---- */

int ddp__block_is_frozen(const ddp_block *b) { return b->kind == DDP_PARAMS && !b->grads; }

/* Returns the first matrix of a block at or after `at`. Returns NULL if there is none, or if the rule treats
 * all arrays the same. */
static const ddp_matrix *ddp__next_matrix(const ddp_ctx *d, const ddp__unit *u, const ddp_block *k, size_t at)
{
    const ddp_matrix *next = NULL, *x = u->matrix;

    for (; d->optimizer.matrix_state && x < u->matrix + u->matrices; x++)
        if (x->params >= k->params + at && x->params < k->params + k->count &&
            (!next || x->params < next->params))
            next = x;
    return next;
}

/* Divides a block as the optimizer takes it: its matrices, and the values around them. */
static void ddp__unit_trains(const ddp_ctx *d, ddp__unit *u, const ddp_block *k)
{
    size_t at = 0, n;

    for (; at < k->count; at += n) {
        const ddp_matrix *x = ddp__next_matrix(d, u, k, at);
        n = (x ? (size_t)(x->params - k->params) : k->count) - at;
        if (n == 0) {
            u->shape[u->gradients] = *x;
            n = x->rows * x->columns;
        }
        u->trains[u->gradients].data = k->params + at;
        u->gradient[u->gradients].data = k->grads ? k->grads + at : NULL;
        u->trains[u->gradients].count = u->gradient[u->gradients].count = n;
        u->state_count += n * (size_t)ddp__piece_state(d, u, u->gradients++);
    }
    u->trained += k->count;
}

/* Allocates the lists, and another list if averaging does not always transfer the whole layer. */
static ddp_status ddp__unit_lists(ddp_ctx *d, ddp__unit *u, ddp_error *err)
{
    const size_t room = (size_t)(ddp__count(u->block) + 2 * u->matrices + 1);

    u->shape = (ddp_matrix *)ddp__scratch_take(&d->lists, room, sizeof *u->shape);
    u->gradient = (ddp_piece *)ddp__scratch_take(&d->lists, 4 * room, sizeof *u->gradient);
    if (ddp__scratch_failed(&d->lists))
        return ddp__fail(err, DDP_MEMORY, "%s%s: out of memory", ddp__layer_prefix(u->name), u->name);
    u->trains = u->gradient + room;
    u->average = u->trains + room;
    u->other = u->average + room;
    for (int b = 0; b < ddp__count(u->block); b++) {
        const ddp_block *k = &u->block[b];
        const ddp_piece values = {{k->params}, k->count};
        if (ddp__block_is_frozen(k)) continue; /* equal on all ranks from the start */
        u->average[u->averages++] = values;
        u->count += k->count;
        if (k->kind != DDP_BUFFERS)
            ddp__unit_trains(d, u, k);
        else
            u->other[u->others++] = values;
    }
    return DDP_OK;
}

static ddp_status ddp__unit_state(ddp_ctx *d, ddp__unit *u, ddp_error *err)
{
    if (u->state_count == 0) return DDP_OK;
    u->state = (float *)ddp__host_alloc(&d->host, u->state_count * sizeof(float));
    if (!u->state)
        return ddp__fail(err, DDP_MEMORY, "%s%s: out of memory for %zu bytes of optimizer state",
                         ddp__layer_prefix(u->name), u->name, u->state_count * sizeof(float));
    if (d->cfg.average.state) {
        const ddp_piece state = {{u->state}, u->state_count};
        u->average[u->averages++] = u->other[u->others++] = state;
    }
    return DDP_OK;
}

static void ddp__unit_free(ddp_ctx *d, ddp__unit *u)
{
    if (u->name) DDP_FREE(u->name);
    ddp__array_free(u->block);
    ddp__host_release(&d->host, u->state, u->state_count * sizeof(float));
}

static ddp_status ddp__check_block(const ddp_ctx *d, const char *name, const ddp_block *b, ddp_error *err)
{
    if (b->count == 0)
        return ddp__fail(err, DDP_ARG, "layer %d (%s): a block of 0 values; remove it", d->layers, name);
    if (!b->params)
        return ddp__fail(err, DDP_ARG, "layer %d (%s): params is NULL for a block of %zu values", d->layers,
                         name, b->count);
    if (b->kind == DDP_BUFFERS && b->grads)
        return ddp__fail(err, DDP_ARG, "layer %d (%s): a block of buffers has no gradients; leave grads NULL",
                         d->layers, name);
    if (b->kind == DDP_OWN_PARAMS && b->grads)
        return ddp__fail(err, DDP_ARG,
                         "layer %d (%s): the program keeps the gradients of a block of DDP_OWN_PARAMS; leave "
                         "grads NULL",
                         d->layers, name);
    return DDP_OK;
}

/* Checks that matrix i is within one block and overlaps no other matrix. */
static ddp_status ddp__check_matrix(const ddp_ctx *d, const ddp__unit *u, int i, ddp_error *err)
{
    const ddp_matrix *x = &u->matrix[i];
    const size_t most = (size_t)-1 / sizeof(float),
                 count = x->rows && x->columns <= most / x->rows ? x->rows * x->columns : 0;
    int b = 0, k = 0;

    while (b < ddp__count(u->block) &&
           !(u->block[b].kind == DDP_PARAMS && x->params >= u->block[b].params &&
             count <= u->block[b].count &&
             (size_t)(x->params - u->block[b].params) <= u->block[b].count - count))
        b++;
    while (k < i && (x->params >= u->matrix[k].params + u->matrix[k].rows * u->matrix[k].columns ||
                     x->params + count <= u->matrix[k].params))
        k++;
    if (count && b < ddp__count(u->block) && k == i) return DDP_OK;
    return ddp__fail(err, DDP_ARG, "layer %d (%s): matrix %d of %zu rows and %zu columns %s", d->layers,
                     u->name, i, x->rows, x->columns,
                     count && b < ddp__count(u->block)
                         ? "overlaps another one; remove one of them"
                         : "is not inside one block of parameters; set its first value, rows and columns");
}

static ddp_status ddp__unit_fill(ddp_ctx *d, ddp__unit *u, const ddp_layer *layer, ddp_error *err)
{
    int own = layer->params || layer->count;
    char number[32];

    snprintf(number, sizeof number, "layer %d", d->layers);
    u->name = ddp__strdup(layer->name ? layer->name : number);
    u->matrix = (ddp_matrix *)ddp__scratch_take(&d->lists, (size_t)layer->matrix_count, sizeof *u->matrix);
    if (!u->name || !u->matrix || !ddp__reserve(u->block, layer->block_count + own))
        return ddp__fail(err, DDP_MEMORY, "out of memory registering layer %d", d->layers);
    if (own) {
        const ddp_block first = {layer->params, layer->grads, layer->count, DDP_PARAMS};
        stbds_arrput(u->block, first);
    }
    for (int i = 0; i < layer->block_count; i++) stbds_arrput(u->block, layer->blocks[i]);
    u->flops = layer->flops;
    u->group = layer->group;
    for (int i = 0; i < ddp__count(u->block); i++) DDP__TRY(ddp__check_block(d, u->name, &u->block[i], err));
    for (int i = 0; i < layer->matrix_count; i++) {
        u->matrix[u->matrices++] = layer->matrices[i];
        DDP__TRY(ddp__check_matrix(d, u, i, err));
    }
    return DDP_OK;
}

const ddp__unit *ddp__unit_of(const ddp_ctx *d, int l) { return &d->unit[l]; }

ddp_status ddp__unit_add(ddp_ctx *d, const ddp_layer *layer, ddp_error *err)
{
    ddp__unit u = DDP__ZEROS;

    if (!ddp__reserve(d->unit, d->layers + 1))
        return ddp__fail(err, DDP_MEMORY, "out of memory registering layer %d", d->layers);
    if (ddp__unit_fill(d, &u, layer, err)) {
        ddp__unit_free(d, &u);
        return err->code;
    }
    stbds_arrput(d->unit, u);
    d->layers++;
    return DDP_OK;
}

int ddp__unit_add_block(ddp_ctx *d, int l, const ddp_block *block)
{
    ddp__unit *u = &d->unit[l];

    if (!ddp__reserve(u->block, ddp__count(u->block) + 1)) return 0;
    stbds_arrput(u->block, *block);
    return 1;
}

int ddp__unit_named(const ddp_ctx *d, const char *name)
{
    for (int l = 0; l < d->layers; l++)
        if (!strcmp(d->unit[l].name, name)) return l;
    return -1;
}

ddp_status ddp__units_describe(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__spans_settle(d, err));
    for (int l = 0; l < d->layers; l++) DDP__TRY(ddp__unit_lists(d, &d->unit[l], err));
    return DDP_OK;
}

ddp_status ddp__units_state(ddp_ctx *d, ddp_error *err)
{
    for (int l = 0; l < d->layers; l++) DDP__TRY(ddp__unit_state(d, &d->unit[l], err));
    return DDP_OK;
}

void ddp__unit_link_set(ddp_ctx *d, int l, int link) { d->unit[l].link = link; }

void ddp__units_free(ddp_ctx *d)
{
    for (int l = 0; l < d->layers; l++) ddp__unit_free(d, &d->unit[l]);
    ddp__array_free(d->unit);
}
