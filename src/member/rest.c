/* Receives the arrays that a joining worker gets after its entry: a thread reads them from one member after
 * another into a buffer, and the training thread stores each array when it is needed. */
#include "comm/frame.h"
#include "member/elastic.h"
#include "member/rest.h"

typedef struct ddp__rest_array {
    ddp__tensor of;
    size_t from, bytes; /* in the buffer */
    int stored;
} ddp__rest_array;

struct ddp__rest {
    ddp__joiner j; /* for its requests. j.have and j.number: as in the requests */
    ddp__tls *tls;
    const ddp__host *host;
    ddp__rest_array *array; /* [arrays] in the order in which they arrive */
    int arrays, left;       /* left: not stored yet */
    unsigned char *buffer;
    size_t bytes;
    pthread_t thread;
    int running;
    int stop; /* atomic */
    /* shared, under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t have;
    int failed; /* 1: no member sends them */
};

/* ---- the thread ---- */

/* Reads pieces until the end or a failure. Returns 1 if at least one arrived. */
static int ddp__rest_read(ddp__rest *r, int fd)
{
    int moved = 0;

    while (r->j.have < r->bytes && !ddp__atomic_load(&r->stop)) {
        unsigned char head[DDP__REST_HEAD], *to = r->buffer + r->j.have;
        const double until = ddp_now() + r->j.c.peer_timeout_s;
        const size_t n = ddp__rest_piece(r->bytes, r->j.have);
        while (!ddp__stream_wait(r->tls, fd, ddp_now() + 0.1))
            if (ddp__atomic_load(&r->stop) || ddp_now() >= until) return moved;
        if (ddp__stream_recv_all(r->tls, fd, head, sizeof head, NULL, until) < 0 ||
            ddp__stream_recv_all(r->tls, fd, to, n, NULL, until) < 0)
            return moved;
        if (ddp__crc32c(0, to, n) != (uint32_t)ddp__hello_get(head, 4)) {
            ddp__log(&r->j.c.log, DDP_LOG_WARN,
                     "rank %d: the state that rank %d sends was damaged in transit", r->j.place.id,
                     r->j.donor);
            return moved;
        }
        pthread_mutex_lock(&r->lock);
        r->have = r->j.have += n;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        moved = 1;
    }
    return moved;
}

/* Requests the rest from the current donor. Returns 1 if bytes arrived. */
static int ddp__rest_request(ddp__rest *r)
{
    unsigned char b[DDP__JOIN_CLONE];
    char why[DDP__JOIN_TEXT] = "";
    int moved = 0;
    const int fd = ddp__joiner_request(&r->j, &r->j.place.address[r->j.donor], DDP__JOIN_REST, -1, b,
                                       sizeof b, ddp_now() + (double)DDP__REST_REPLY_S, why);

    if (fd < 0) return 0;
    if (ddp__hello_get(b, 8) == r->j.number && ddp__hello_get(b + 8, 8) == r->bytes &&
        ddp__hello_get(b + 16, 8) == r->j.have)
        moved = ddp__rest_read(r, fd);
    ddp__stream_close(r->tls, fd);
    return moved;
}

/* Requests the rest from the members in turn. Fails if no byte has arrived for peer_timeout_s. */
static void *ddp__rest_main(void *arg)
{
    ddp__rest *r = (ddp__rest *)arg;
    double moved_at = ddp_now();
    uint64_t left = 0;

    while (r->j.have < r->bytes && !ddp__atomic_load(&r->stop) &&
           ddp_now() < moved_at + r->j.c.peer_timeout_s) {
        if (!left) {
            left = r->j.place.live;
            ddp__sleep_until(ddp_now() + 0.05);
        }
        for (r->j.donor = DDP__JOIN_WORLD - 1; r->j.donor > 0 && !(left >> r->j.donor & 1);) r->j.donor--;
        if (r->j.place.address[r->j.donor].size && ddp__rest_request(r))
            moved_at = ddp_now();
        else
            left &= ~ddp__bit(r->j.donor);
    }
    pthread_mutex_lock(&r->lock);
    r->failed = r->j.have < r->bytes;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- the training thread ---- */

static ddp_status ddp__rest_lists(ddp__rest *r, const ddp__worker *s, ddp_error *err)
{
    int *order = (int *)ddp__calloc((size_t)s->tensors + 1, sizeof *order);
    const int arrays = order ? ddp__worker_rest_list(s, order) : 0;

    r->array = (ddp__rest_array *)ddp__calloc((size_t)arrays + 1, sizeof *r->array);
    for (int i = 0; r->array && order && i < arrays; i++) {
        r->array[i].of = s->tensor[order[i]];
        r->array[i].from = r->bytes;
        r->array[i].bytes = r->array[i].of.count * ddp_safetensors_type_bytes(r->array[i].of.type);
        r->bytes += r->array[i].bytes;
    }
    r->arrays = r->left = arrays;
    r->buffer = (unsigned char *)DDP_REALLOC(NULL, r->bytes + 1);
    if (order) DDP_FREE(order);
    if (order && r->array && r->buffer) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory for %zu bytes of the state of the run", r->bytes);
}

ddp_status ddp__rest_open(const ddp__join_config *c, const ddp__join_place *place, ddp__tls *tls,
                          const ddp__worker *s, ddp__rest **out, ddp_error *err)
{
    ddp__rest *r = (ddp__rest *)ddp__calloc(1, sizeof *r);
    const int locks = r && !pthread_mutex_init(&r->lock, NULL);
    ddp_status code = DDP_OK;

    *out = NULL;
    if (!locks || ddp__cond_init(&r->changed)) {
        if (locks) pthread_mutex_destroy(&r->lock);
        if (r) DDP_FREE(r);
        ddp__tls_free(tls);
        return ddp__fail(err, DDP_MEMORY, "out of memory for joining a run");
    }
    r->j.c = *c;
    r->j.c.tls = r->tls = tls;
    r->j.place = *place;
    r->j.fd = -1;
    r->j.number = s->rest;
    r->j.stop = &r->stop;
    r->host = s->host;
    code = ddp__rest_lists(r, s, err);
    if (code == DDP_OK && r->arrays) {
        r->running = pthread_create(&r->thread, NULL, ddp__rest_main, r) == 0;
        if (!r->running) code = ddp__fail(err, DDP_FAILED, "cannot start a thread that receives the state");
    }
    if (code == DDP_OK && r->arrays)
        *out = r;
    else
        ddp__rest_close(r);
    return code;
}

void ddp__rest_close(ddp__rest *r)
{
    if (!r) return;
    ddp__atomic_store(&r->stop, 1);
    if (r->running) pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    ddp__tls_free(r->tls);
    if (r->array) DDP_FREE(r->array);
    if (r->buffer) DDP_FREE(r->buffer);
    DDP_FREE(r);
}

/* Waits until the bytes before `end` are in the buffer. */
static ddp_status ddp__rest_await(ddp__rest *r, ddp__engine *engine, size_t end, ddp_error *err)
{
    ddp_status s = DDP_OK;
    size_t have = 0;
    int failed = 0;

    while (s == DDP_OK && have < end && !failed) {
        pthread_mutex_lock(&r->lock);
        if (r->have < end && !r->failed) (void)ddp__cond_wait_until(&r->changed, &r->lock, ddp_now() + 0.1);
        have = r->have;
        failed = r->failed;
        pthread_mutex_unlock(&r->lock);
        if (have < end && engine) s = ddp__engine_error(engine, err);
    }
    if (s != DDP_OK || have >= end) return s;
    return ddp__fail(err, DDP_PEER_LOST,
                     "no member has sent the state of the run for %.3g s (%zu of %zu bytes have arrived): "
                     "restart this worker to join again",
                     r->j.c.peer_timeout_s, have, r->bytes);
}

ddp_status ddp__rest_take(ddp__rest *r, ddp__engine *engine, int l, int *over, ddp_error *err)
{
    for (int i = 0; i < r->arrays; i++) {
        ddp__rest_array *a = &r->array[i];
        if (a->stored || (l == DDP__REST_NOW ? a->of.flags & DDP__WORKER_LATER : l >= 0 && a->of.l != l))
            continue;
        DDP__TRY(ddp__rest_await(r, engine, a->from + a->bytes, err));
        if (a->of.flags & DDP__WORKER_THERE)
            ddp__host_upload(r->host, a->of.data, r->buffer + a->from, a->bytes);
        else if (a->bytes)
            memcpy(a->of.data, r->buffer + a->from, a->bytes);
        a->stored = 1;
        r->left--;
    }
    *over = r->left == 0;
    return DDP_OK;
}
