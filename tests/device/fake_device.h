/* A device in this machine's memory. Its addresses are shifted to unmapped memory, so that access without
 * the backend table crashes at once. Its operators are the CPU's. Work is done when it is queued; hold
 * waits at once. */
#ifndef TESTS_FAKE_DEVICE_H
#define TESTS_FAKE_DEVICE_H

#include <float.h>
#include <limits.h>

#include "compress/codec.h"

#define FAKE_AWAY ((uintptr_t)1 << 62)

enum { FAKE_MIRRORS = 64, FAKE_SLOTS = 65536 };

typedef struct fake_mirror {
    float *master, *copy; /* host addresses */
    size_t count;
} fake_mirror;

typedef struct fake_device {
    pthread_mutex_t lock;
    pthread_cond_t raised;
    unsigned flag[FAKE_SLOTS];
    double mark[FAKE_SLOTS];
    fake_mirror mirror[FAKE_MIRRORS];
    int mirrors;
    double squares;
    size_t used;      /* in bytes */
    ddp__pool *rooms; /* work memory of its operators */
    long work, updates;
    long recorded, received; /* messages. received is atomic */
    ddp_error error;
    const float *early_from;
    float early;
    ddp_backend_peers peers;
    struct fake_net *net; /* NULL: not joined */
} fake_device;

/* The network of the devices that joined under one name in this process. A message reduces the arrays of
 * all ranks when the last rank has called. */
typedef struct fake_net {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int name, joined, left, here;
    long done;               /* completed messages */
    float *const *arrays[8]; /* [rank] */
    long averages, sums, spreads;
    size_t floats; /* averaged or summed, per rank */
} fake_net;

/* Settings and counters of all fake devices of a process. */
typedef struct fake_wishes {
    size_t limit;    /* memory of a device, in bytes */
    long fail_at;    /* number of the work item that fails, or 0 for none */
    int no_slots;    /* the stager has no memory */
    int full;        /* 1: record waits until the messages before have been received, for at most 5 s */
    int stuck;       /* atomic. 1: that time has passed */
    double float_s;  /* duration of a message of the devices' network, in seconds per float */
    fake_net net[8]; /* all networks that were joined since the last test */
    int nets;
    long follows, splits;
    long alive; /* arrays and devices not yet freed; atomic */
} fake_wishes;

static fake_wishes fake;

static void *fake_away(void *p) { return p ? (void *)((uintptr_t)p + FAKE_AWAY) : NULL; }

static void *fake_here(const void *p)
{
    if (!p) return NULL;
    assert_true((uintptr_t)p >= FAKE_AWAY);
    return (void *)((uintptr_t)p - FAKE_AWAY);
}

/* Counts one more work item. */
static void fake_work(fake_device *f)
{
    f->work++;
    if (fake.fail_at && f->work == fake.fail_at && !f->error.code) {
        f->error.code = DDP_FAILED;
        snprintf(f->error.msg, sizeof f->error.msg, "the fake device failed at work %ld", f->work);
    }
}

/* Updates the copies whose masters overlap the n bytes at `at`, which have changed. */
static void fake_refresh(fake_device *f, const void *at, size_t n)
{
    const char *from = (const char *)at, *to = from + n;
    int i;

    for (i = 0; i < f->mirrors; i++) {
        fake_mirror *m = &f->mirror[i];
        if (m->master && from < (char *)(m->master + m->count) && to > (char *)m->master)
            memcpy(m->copy, m->master, m->count * sizeof(float));
    }
}

static ddp_status fake_open(const ddp_backend *b, int rank, void *stream, void **self, ddp_error *err)
{
    fake_device *f = (fake_device *)calloc(1, sizeof *f);

    (void)b;
    (void)rank;
    (void)stream;
    (void)err;
    assert_non_null(f);
    f->rooms = ddp__pool_open(1);
    assert_true(f->rooms && ddp__pool_rooms(f->rooms));
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->raised, NULL);
    __atomic_add_fetch(&fake.alive, 1, __ATOMIC_SEQ_CST);
    *self = f;
    return DDP_OK;
}

static void fake_close(void *self)
{
    fake_device *f = (fake_device *)self;

    pthread_cond_destroy(&f->raised);
    pthread_mutex_destroy(&f->lock);
    ddp__pool_close(f->rooms);
    __atomic_sub_fetch(&fake.alive, 1, __ATOMIC_SEQ_CST);
    free(f);
}

static ddp_status fake_check(void *self, ddp_error *err)
{
    fake_device *f = (fake_device *)self;

    if (f->error.code && err) *err = f->error;
    return f->error.code;
}

static void *fake_alloc(void *self, size_t bytes)
{
    fake_device *f = (fake_device *)self;

    if (fake.limit && f->used + bytes > fake.limit) return NULL;
    f->used += bytes;
    __atomic_add_fetch(&fake.alive, 1, __ATOMIC_SEQ_CST);
    return fake_away(calloc(1, bytes));
}

static void fake_release(void *self, void *at, size_t bytes)
{
    ((fake_device *)self)->used -= bytes;
    __atomic_sub_fetch(&fake.alive, 1, __ATOMIC_SEQ_CST);
    free(fake_here(at));
}

static void *fake_pin(void *self, size_t bytes)
{
    (void)self;
    __atomic_add_fetch(&fake.alive, 1, __ATOMIC_SEQ_CST);
    return calloc(1, bytes);
}

static void fake_unpin(void *self, void *at, size_t bytes)
{
    (void)self;
    (void)bytes;
    __atomic_sub_fetch(&fake.alive, 1, __ATOMIC_SEQ_CST);
    free(at);
}

static void fake_memory(void *self, double *total, double *unused)
{
    *total = fake.limit ? (double)fake.limit : 1e12;
    *unused = *total - (double)((fake_device *)self)->used;
}

static int fake_element_bytes(void *self)
{
    (void)self;
    return 4;
}

static void *fake_mirror_of(void *self, float *params, size_t count)
{
    fake_device *f = (fake_device *)self;
    fake_mirror *m = &f->mirror[f->mirrors++];

    assert_true(f->mirrors <= FAKE_MIRRORS);
    m->master = (float *)fake_here(params);
    m->copy = (float *)malloc(count * sizeof(float));
    m->count = count;
    memset(m->copy, 0xff, count * sizeof(float));
    return fake_away(m->copy);
}

static void fake_forget(void *self, float *params)
{
    fake_device *f = (fake_device *)self;
    int i;

    for (i = 0; i < f->mirrors; i++)
        if (f->mirror[i].master == (float *)fake_here(params)) {
            free(f->mirror[i].copy);
            f->mirror[i].master = NULL;
        }
}

static void fake_upload(void *self, void *to, const void *from, size_t bytes)
{
    assert_true((uintptr_t)from < FAKE_AWAY);
    fake_work((fake_device *)self);
    memcpy(fake_here(to), from, bytes);
    fake_refresh((fake_device *)self, fake_here(to), bytes);
}

static ddp_status fake_download(void *self, void *to, const void *from, size_t bytes, ddp_error *err)
{
    assert_true((uintptr_t)to < FAKE_AWAY);
    memcpy(to, fake_here(from), bytes);
    return fake_check(self, err);
}

static void fake_early(void *self, const float *from)
{
    ((fake_device *)self)->early_from = from;
    ((fake_device *)self)->early = *(const float *)fake_here(from);
}

static int fake_early_value(void *self, const float *from, float *value)
{
    *value = ((fake_device *)self)->early;
    return ((fake_device *)self)->early_from == from;
}

static void fake_copy(void *self, void *to, const void *from, size_t bytes)
{
    memcpy(fake_here(to), fake_here(from), bytes);
    fake_refresh((fake_device *)self, fake_here(to), bytes);
}

static void fake_zero(void *self, void *at, size_t bytes)
{
    (void)self;
    memset(fake_here(at), 0, bytes);
}

static void fake_upload_elements(void *self, void *to, const float *from, const ddp_shape *shape)
{
    fake_upload(self, to, from, (size_t)ddp_shape_count(shape) * sizeof *from);
}

static ddp_status fake_download_elements(void *self, float *to, const void *from, const ddp_shape *shape,
                                         ddp_error *err)
{
    return fake_download(self, to, from, (size_t)ddp_shape_count(shape) * sizeof *to, err);
}

static void fake_axpy(void *self, float *y, const float *x, size_t count, float s)
{
    float *at = (float *)fake_here(y);
    const float *from = (const float *)fake_here(x);
    size_t i;

    fake_work((fake_device *)self);
    for (i = 0; i < count; i++) {
        volatile float product = s * from[i];
        at[i] += product;
    }
    fake_refresh((fake_device *)self, at, count * sizeof *at);
}

static ddp_status fake_norm2(void *self, const float *x, size_t count, double *out, ddp_error *err)
{
    (void)self;
    (void)err;
    *out = ddp__sum_squares((const float *)fake_here(x), count);
    return DDP_OK;
}

static void fake_scale(void *self, float *x, size_t count, float s)
{
    fake_work((fake_device *)self);
    ddp__scale((float *)fake_here(x), count, s);
    fake_refresh((fake_device *)self, fake_here(x), count * sizeof *x);
}

static void fake_fill(void *self, float *x, size_t count, float s)
{
    float *at = (float *)fake_here(x);
    size_t i;

    (void)self;
    for (i = 0; i < count; i++) at[i] = s;
}

static void fake_compensate(void *self, float *x, const float *now, const float *then, size_t count, float s)
{
    fake_work((fake_device *)self);
    ddp__late_compensate((float *)fake_here(x), (const float *)fake_here(now), (const float *)fake_here(then),
                         count, s);
    fake_refresh((fake_device *)self, fake_here(x), count * sizeof *x);
}

/* Splits values as blocks.c does, for backends that leave it to blocks.c. */
static void fake_split(void *self, int bits, float *x, void *out, size_t count)
{
    const ddp_packing packing = bits == 8 ? DDP_PACK_INT8 : DDP_PACK_INT4;
    float *at = (float *)fake_here(x), *said = (float *)calloc(count, sizeof *said);
    unsigned char *codes = (unsigned char *)fake_here(out);
    const size_t blocks = (count + 63) / 64;
    size_t i;

    fake_work((fake_device *)self);
    __atomic_add_fetch(&fake.splits, 1, __ATOMIC_SEQ_CST);
    for (i = 0; i < count && fabsf(at[i]) <= FLT_MAX;) i++;
    if (i < count) {
        memcpy(codes + 4 * (i / 64), &at[i], 4);
        free(said);
        return;
    }
    ddp__quantised_fill(packing, at, count, codes);
    for (i = 0; i < count; i++) { /* values with a denormal scale have code 0 */
        float scale;
        memcpy(&scale, codes + 4 * (i / 64), 4);
        if (scale < FLT_MIN && bits == 8)
            codes[4 * blocks + i] = 0;
        else if (scale < FLT_MIN)
            codes[4 * blocks + i / 2] = 0x88;
    }
    for (i = 0; i < blocks; i++) {
        float scale;
        memcpy(&scale, codes + 4 * i, 4);
        if (scale < FLT_MIN) memset(codes + 4 * i, 0, 4);
    }
    ddp__quantised_apply(packing, codes, DDP__UNPACK_STORE, said, count);
    for (i = 0; i < count; i++) at[i] -= said[i];
    free(said);
}

static void fake_update(void *self, const ddp_optimizer *o, const ddp_update *u, int zero)
{
    fake_device *f = (fake_device *)self;
    ddp_update here = *u;

    fake_work(f);
    f->updates++;
    here.params = (float *)fake_here(u->params);
    here.grads = (const float *)fake_here(u->grads);
    here.state = (float *)fake_here(u->state);
    if (ddp_no_gradient(here.grads, u->count)) return;
    o->update(o, &here);
    if (zero) memset(fake_here(u->grads), 0, u->count * sizeof(float));
    fake_refresh(f, here.params, u->count * sizeof(float));
}

static void fake_clip_add(void *self, const float *x, size_t count, int first)
{
    fake_device *f = (fake_device *)self;

    if (first) f->squares = 0;
    f->squares += ddp__sum_squares((const float *)fake_here(x), count);
}

static void fake_clip_scale(void *self, float *x, size_t count, float limit)
{
    const double norm = sqrt(((fake_device *)self)->squares);

    if (norm + 1e-6 <= (double)limit) return;
    ddp__scale((float *)fake_here(x), count, (float)((double)limit / (norm + 1e-6)));
}

/* ---- operators ---- */

static void fake_run(const ddp_op_call *given, const char *name, int backward)
{
    const ddp_op *op = ddp__builtin_op(name);
    fake_device *f = (fake_device *)given->pool;
    ddp_op_call c = *given;
    int i, k;

    fake_work(f);
    for (i = 0; i < DDP_OP_INPUTS; i++) {
        c.in[i] = fake_here(c.in[i]);
        c.grad_in[i] = fake_here(c.grad_in[i]);
    }
    for (i = 0; i < DDP_OP_PARAMS; i++) {
        c.param[i] = fake_here(c.param[i]);
        for (k = 0; c.param[i] && k < f->mirrors; k++)
            assert_false(f->mirror[k].master && (const float *)c.param[i] >= f->mirror[k].master &&
                         (const float *)c.param[i] < f->mirror[k].master + f->mirror[k].count);
        c.grad_param[i] = fake_here(c.grad_param[i]);
    }
    for (i = 0; i < DDP_OP_BUFFERS; i++) c.buffer[i] = fake_here(c.buffer[i]);
    c.out = fake_here(c.out);
    c.saved = fake_here(c.saved);
    c.grad_out = fake_here(c.grad_out);
    c.pool = f->rooms;
    if (backward)
        op->backward(&c);
    else
        op->forward(&c);
}

#define FAKE_OPS(X) \
    X(linear)       \
    X(linear_tied)  \
    X(embedding)    \
    X(position)     \
    X(layer_norm)   \
    X(attention)    \
    X(gelu) X(relu) X(add) X(dropout) X(cross_entropy) X(conv2d) X(batch_norm2d) X(flatten) X(max_pool2d)

#define FAKE_OP(name)                                                                  \
    static void fake_##name##_forward(const ddp_op_call *c) { fake_run(c, #name, 0); } \
    static void fake_##name##_backward(const ddp_op_call *c) { fake_run(c, #name, 1); }
FAKE_OPS(FAKE_OP)

static const ddp_op *fake_op(void *self, const char *name)
{
#define FAKE_ENTRY(name) {#name, NULL, fake_##name##_forward, fake_##name##_backward},
    static const ddp_op ops[] = {FAKE_OPS(FAKE_ENTRY)};
    size_t i;

    (void)self;
    for (i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (!strcmp(ops[i].name, name)) return &ops[i];
    return NULL;
}

static size_t fake_scratch(void *self, const ddp_op *op, const void *spec)
{
    (void)self;
    (void)op;
    (void)spec;
    return 100;
}

static int fake_reserve(void *self, size_t bytes)
{
    (void)self;
    return bytes == 100;
}

static void *fake_compute(void *self) { return self; }

/* ---- messages and times ---- */

static int fake_slots(void *self, int slots)
{
    (void)self;
    return slots <= FAKE_SLOTS && !fake.no_slots;
}

/* As a device does whose queue is full. */
static void fake_wait_for_space(fake_device *f)
{
    const double until = ddp_now() + 5;
    const long before = f->recorded++;

    while (!ddp__atomic_load(&fake.stuck) && ddp__atomic_load(&f->received) < before) {
        if (ddp_now() > until) ddp__atomic_store(&fake.stuck, 1);
        ddp__sleep_until(ddp_now() + 1e-4);
    }
}

static void fake_record(void *self, int slot)
{
    (void)slot;
    if (fake.full) fake_wait_for_space((fake_device *)self);
    fake_work((fake_device *)self);
}

static ddp_status fake_fetch(void *self, int slot, void *to, const void *from, size_t bytes, ddp_error *err)
{
    (void)self;
    (void)slot;
    (void)err;
    memcpy(to, fake_here(from), bytes);
    return DDP_OK;
}

static ddp_status fake_give(void *self, void *to, const void *from, size_t bytes, ddp_error *err)
{
    (void)err;
    memcpy(fake_here(to), from, bytes);
    fake_refresh((fake_device *)self, fake_here(to), bytes);
    return DDP_OK;
}

static void fake_raise(void *self, int slot, unsigned turn)
{
    fake_device *f = (fake_device *)self;

    pthread_mutex_lock(&f->lock);
    if (f->flag[slot] < turn) {
        f->flag[slot] = turn;
        ddp__atomic_store(&f->received, f->received + 1);
    }
    pthread_cond_broadcast(&f->raised);
    pthread_mutex_unlock(&f->lock);
}

static void fake_raise_all(void *self)
{
    int i;

    for (i = 0; i < FAKE_SLOTS; i++) fake_raise(self, i, UINT_MAX);
}

static void fake_hold(void *self, int slot, unsigned turn)
{
    fake_device *f = (fake_device *)self;

    pthread_mutex_lock(&f->lock);
    while (f->flag[slot] < turn) pthread_cond_wait(&f->raised, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

static pthread_mutex_t fake_nets_lock = PTHREAD_MUTEX_INITIALIZER;

static ddp_status fake_join(void *self, const ddp_backend_peers *p, ddp_error *err)
{
    fake_device *f = (fake_device *)self;
    unsigned char name = 0;
    int i;

    pthread_mutex_lock(&fake_nets_lock);
    if (p->rank == 0) name = (unsigned char)++fake.nets;
    pthread_mutex_unlock(&fake_nets_lock);
    if (p->share(p->user, &name, 1, err)) return err->code;
    pthread_mutex_lock(&fake_nets_lock);
    f->net = &fake.net[name - 1];
    if (!f->net->name) {
        memset(f->net, 0, sizeof *f->net);
        f->net->name = name;
        pthread_mutex_init(&f->net->lock, NULL);
        pthread_cond_init(&f->net->changed, NULL);
    }
    i = ++f->net->joined;
    pthread_mutex_unlock(&fake_nets_lock);
    assert_true(i <= p->world && p->world <= 8);
    f->peers = *p;
    return DDP_OK;
}

/* Combines element by element in rank order, times scale. spread: copies rank 0's values. */
static void fake_combine(fake_net *n, int world, int spread, float scale, const size_t *counts, int arrays)
{
    int a, r;
    size_t i;

    for (a = 0; a < arrays; a++)
        for (i = 0; i < counts[a]; i++) {
            float v = ((float *)fake_here(n->arrays[0][a]))[i];
            for (r = 1; r < world && !spread; r++) v += ((float *)fake_here(n->arrays[r][a]))[i];
            for (r = 0; r < world; r++) ((float *)fake_here(n->arrays[r][a]))[i] = spread ? v : v * scale;
        }
}

static ddp_status fake_message(fake_device *f, int spread, int sum, float *const *arrays,
                               const size_t *counts, int arrays_count, ddp_error *err)
{
    fake_net *n = f->net;
    const double since = ddp_now();
    ddp_status s = DDP_OK;
    size_t floats = 0;
    long number;
    int i;

    for (i = 0; i < arrays_count; i++) floats += counts[i];
    pthread_mutex_lock(&n->lock);
    number = n->done;
    n->arrays[f->peers.rank] = arrays;
    if (++n->here == f->peers.world) {
        ddp__sleep_until(ddp_now() + fake.float_s * (double)floats);
        fake_combine(n, f->peers.world, spread, sum ? 1 : 1 / (float)f->peers.world, counts, arrays_count);
        *(spread ? &n->spreads : sum ? &n->sums : &n->averages) += 1;
        n->floats += spread ? 0 : floats;
        n->here = 0;
        n->done++;
        pthread_cond_broadcast(&n->changed);
    }
    while (n->done == number && s == DDP_OK) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 1000000;
        if (soon.tv_nsec >= 1000000000) {
            soon.tv_nsec -= 1000000000;
            soon.tv_sec++;
        }
        pthread_cond_timedwait(&n->changed, &n->lock, &soon);
        if (n->done == number) s = f->peers.watch(f->peers.user, since, err);
    }
    pthread_mutex_unlock(&n->lock);
    for (i = 0; i < arrays_count; i++) fake_refresh(f, fake_here(arrays[i]), counts[i] * sizeof(float));
    return s;
}

static ddp_status fake_average(void *self, int slot, float *const *arrays, const size_t *counts,
                               int arrays_count, int sum, ddp_error *err)
{
    (void)slot;
    return fake_message((fake_device *)self, 0, sum, arrays, counts, arrays_count, err);
}

static void fake_follow(void *self, int slot)
{
    (void)slot;
    assert_non_null(((fake_device *)self)->net);
    __atomic_add_fetch(&fake.follows, 1, __ATOMIC_SEQ_CST);
}

static ddp_status fake_spread(void *self, int slot, int held, unsigned turn, float *const *arrays,
                              const size_t *counts, int arrays_count, ddp_error *err)
{
    (void)slot;
    if (turn) fake_hold(self, held, turn);
    return fake_message((fake_device *)self, 1, 0, arrays, counts, arrays_count, err);
}

static void fake_finish(void *self, int slot)
{
    (void)self;
    (void)slot;
}

static ddp_status fake_poll(void *self, ddp_error *err)
{
    fake_device *f = (fake_device *)self;

    return f->peers.watch(f->peers.user, 0, err);
}

static void fake_leave(void *self, int on_error)
{
    fake_device *f = (fake_device *)self;

    (void)on_error;
    pthread_mutex_lock(&fake_nets_lock);
    f->net->left++;
    pthread_mutex_unlock(&fake_nets_lock);
    f->net = NULL;
}

/* Returns the counters of all networks since the last call. */
static fake_net fake_nets(void)
{
    fake_net all;
    int i;

    memset(&all, 0, sizeof all);
    for (i = 0; i < fake.nets; i++) {
        fake_net *n = &fake.net[i];
        assert_int_equal(n->joined, n->left);
        all.averages += n->averages;
        all.sums += n->sums;
        all.spreads += n->spreads;
        all.floats += n->floats;
        pthread_cond_destroy(&n->changed);
        pthread_mutex_destroy(&n->lock);
        n->name = 0;
    }
    all.joined = fake.nets;
    fake.nets = 0;
    return all;
}

static int fake_marks(void *self, int marks)
{
    (void)self;
    return marks <= FAKE_SLOTS;
}

static void fake_mark(void *self, int mark) { ((fake_device *)self)->mark[mark] = ddp_now(); }

static double fake_marked(void *self, int mark) { return ((fake_device *)self)->mark[mark]; }

static void fake_range(void *self, const char *name)
{
    (void)self;
    (void)name;
}

static ddp_backend fake_backend(void)
{
    ddp_backend b;

    memset(&b, 0, sizeof b);
    b.name = "fake";
    b.open = fake_open;
    b.close = fake_close;
    b.wait = fake_check;
    b.check = fake_check;
    b.alloc = fake_alloc;
    b.release = fake_release;
    b.pin = fake_pin;
    b.unpin = fake_unpin;
    b.memory = fake_memory;
    b.element_bytes = fake_element_bytes;
    b.mirror = fake_mirror_of;
    b.forget = fake_forget;
    b.upload = fake_upload;
    b.download = fake_download;
    b.copy = fake_copy;
    b.zero = fake_zero;
    b.early = fake_early;
    b.early_value = fake_early_value;
    b.upload_elements = fake_upload_elements;
    b.download_elements = fake_download_elements;
    b.axpy = fake_axpy;
    b.norm2 = fake_norm2;
    b.scale = fake_scale;
    b.fill = fake_fill;
    b.update = fake_update;
    b.compensate = fake_compensate;
    b.split = fake_split;
    b.clip_add = fake_clip_add;
    b.clip_scale = fake_clip_scale;
    b.op = fake_op;
    b.scratch = fake_scratch;
    b.reserve = fake_reserve;
    b.compute = fake_compute;
    b.slots = fake_slots;
    b.record = fake_record;
    b.fetch = fake_fetch;
    b.give = fake_give;
    b.raise = fake_raise;
    b.hold = fake_hold;
    b.raise_all = fake_raise_all;
    b.join = fake_join;
    b.average = fake_average;
    b.follow = fake_follow;
    b.spread = fake_spread;
    b.finish = fake_finish;
    b.poll = fake_poll;
    b.leave = fake_leave;
    b.marks = fake_marks;
    b.mark = fake_mark;
    b.marked = fake_marked;
    b.range = fake_range;
    return b;
}

#endif /* TESTS_FAKE_DEVICE_H */
