/* [test-all: compiles the GPU companion] Nothing waits for ever after a stream that waits for a message. The
 * cases first show that they fail on the stand-in without the library's protection. On a real GPU this file
 * tests nothing, because the failures would end the process. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern "C" {
#include <cmocka.h>
}

#include "cuda/blas.cuh"
#include "cuda/families.h"
#include "graph/graph_internal.h"
#include "nn/exact.h"
#include "strategy/strategy_lab.h"

#if defined(DDP_CUDA_ON_CPU)

/* ---- work behind a stream that waits ---- */

enum { SIDE = 8 };

/* A device whose stream waits for a flag. Another thread raises it after a copy on another stream, as the
 * stager does. */
typedef struct waiting {
    ddp__cuda *dev;
    cudaStream_t other;
    unsigned *flag;
    float *there, *here; /* [3 SIDE^2] device memory, and [1] pinned */
} waiting;

static __global__ void add_one(float *x) { *x += 1; }

static __global__ void add_two(float *x) { *x += 2; }

static void listed(const ddp_op_call *c)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    DDP__RUN(add_one, 1, 1, (float *)c->out);
}

static void listed_often(const ddp_op_call *c)
{
    for (int i = 0; i < 20; i++) listed(c);
}

static void list_of(waiting *w, void (*op)(const ddp_op_call *))
{
    ddp_op_call c;

    memset(&c, 0, sizeof c);
    c.pool = w->dev;
    c.out = w->there;
    ddp__cuda_add(op, NULL, &c, NULL);
    ddp__cuda_run_due(w->dev);
}

static void list_runs(waiting *w) { list_of(w, listed); }

static void product_runs(waiting *w, long rows)
{
    float *x = w->there;
    const ddp__cuda_product q =
        ddp__cuda_product_of(rows, SIDE, SIDE, x, 0, x + SIDE * SIDE, 0, x + 2 * SIDE * SIDE, 0);
    (void)ddp__cuda_multiply(w->dev, &q);
}

static waiting opened(void)
{
    ddp_error err;
    waiting w;

    memset(&w, 0, sizeof w);
    w.dev = ddp__cuda_open(0, DDP_CUDA_F32, NULL, &err);
    if (!w.dev) fail_msg("%s", err.msg);
    w.dev->lists = (ddp__cuda_lists *)calloc(1, sizeof *w.dev->lists);
    assert_int_equal(cudaStreamCreateWithFlags(&w.other, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMallocHost(&w.flag, sizeof *w.flag), cudaSuccess);
    assert_int_equal(cudaMallocHost(&w.here, sizeof *w.here), cudaSuccess);
    assert_int_equal(cudaMalloc(&w.there, 3 * SIDE * SIDE * sizeof *w.there), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(w.there, 0, 3 * SIDE * SIDE * sizeof *w.there, w.dev->stream),
                     cudaSuccess);
    *w.flag = 0;
    {
        ddp__cuda *dev = w.dev;
        DDP__RUN(add_one, 1, 1, w.there);
    }
    list_runs(&w);
    product_runs(&w, SIDE);
    assert_int_equal(cudaStreamSynchronize(w.dev->stream), cudaSuccess);
    return w;
}

static void closed(waiting *w)
{
    cuda_on_cpu::mend();
    ddp__cuda_replays_drop(w->dev);
    free(w->dev->lists);
    (void)cudaFree(w->there);
    (void)cudaFreeHost(w->here);
    (void)cudaFreeHost(w->flag);
    (void)cudaStreamDestroy(w->other);
    ddp__cuda_close(w->dev);
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

static void *copies_and_raises(void *arg)
{
    waiting *w = (waiting *)arg;

    ddp__sleep_until(ddp_now() + 0.05);
    (void)cudaMemcpyAsync(w->here, w->there, sizeof *w->here, cudaMemcpyDeviceToHost, w->other);
    (void)cudaStreamSynchronize(w->other);
    ddp__atomic_store(w->flag, 1);
    return NULL;
}

static void many_launches(waiting *w)
{
    ddp__cuda *dev = w->dev;
    for (int i = 0; i < 1100; i++) DDP__RUN(add_one, 1, 1, w->there);
}

/* 60 operators, and 1,200 kernels. */
static void many_nodes(waiting *w)
{
    for (int i = 0; i < 60; i++) list_of(w, listed_often);
}

static void new_kernel(waiting *w)
{
    ddp__cuda *dev = w->dev;
    DDP__RUN(add_two, 1, 1, w->there);
}

static void new_product(waiting *w) { product_runs(w, SIDE - 1); }

static void new_graph(waiting *w)
{
    const long before = cuda_on_cpu::replays();

    list_runs(w);
    if (!cuda_on_cpu::the_world().broken) assert_int_equal(cuda_on_cpu::replays() - before, 1);
}

/* Runs the work behind a wait. known 1: the library knows of the wait. */
static void behind_a_wait(void (*work)(waiting *w), int known, const char *fault)
{
    waiting w = opened();
    pthread_t thread;
    ddp_error err;

    cuda_on_cpu::unload();
    many_launches(&w);
    product_runs(&w, SIDE);
    for (int i = 0; i < 2; i++) list_of(&w, listed_often);
    assert_int_equal(cudaStreamSynchronize(w.dev->stream), cudaSuccess);
    cuda_on_cpu::set_depth(1000, 1);
    assert_int_equal(cuda_on_cpu::wait_value(w.dev->stream, (uintptr_t)w.flag, 1, 0), 0);
    if (known) ddp__cuda_held(w.dev, w.flag, 1);
    assert_int_equal(pthread_create(&thread, NULL, copies_and_raises, &w), 0);
    work(&w);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)cudaStreamSynchronize(w.dev->stream);
    if (fault)
        assert_non_null(strstr(cuda_on_cpu::why(), fault));
    else if (ddp__cuda_status(w.dev, &err))
        fail_msg("%s", err.msg);
    else
        assert_string_equal(cuda_on_cpu::why(), "");
    cuda_on_cpu::set_depth(1000, 300);
    closed(&w);
}

static void full_stream_does_not_block_the_message(void **state)
{
    (void)state;
    behind_a_wait(many_launches, 0, "1000 items pending, and none ends");
    behind_a_wait(many_launches, 1, NULL);
}

static void nodes_of_graphs_fill_the_stream(void **state)
{
    (void)state;
    behind_a_wait(many_nodes, 0, "1000 items pending, and none ends");
    behind_a_wait(many_nodes, 1, NULL);
}

static void nothing_is_loaded_behind_a_wait(void **state)
{
    (void)state;
    behind_a_wait(new_kernel, 0, "add_two is loaded at its first launch, behind work");
    behind_a_wait(new_kernel, 1, NULL);
    behind_a_wait(new_product, 0,
                  "an algorithm of cublasLtMatmul is loaded at its first launch, behind work");
    behind_a_wait(new_product, 1, NULL);
}

static void no_graph_is_made_behind_a_wait(void **state)
{
    (void)state;
    behind_a_wait(new_graph, 0, "a graph is instantiated, behind work");
    behind_a_wait(new_graph, 1, NULL);
}

/* The list of waits is full when the next one is queued: the host waits for those before it. */
static void many_waits_are_remembered(void **state)
{
    waiting w = opened();
    pthread_t thread;

    (void)state;
    for (int i = 0; i < DDP__CUDA_HOLDS; i++) ddp__cuda_held(w.dev, w.flag, 1);
    assert_int_equal(w.dev->hold_next - w.dev->hold_first, DDP__CUDA_HOLDS);
    assert_int_equal(pthread_create(&thread, NULL, copies_and_raises, &w), 0);
    ddp__cuda_held(w.dev, w.flag, 2);
    assert_int_equal(ddp__atomic_load(w.flag), 1);
    assert_int_equal(w.dev->hold_next - w.dev->hold_first, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    closed(&w);
}

/* ---- training ---- */

/* The lines of the log that concern GPUs. Several ranks write it. */
typedef struct kept {
    pthread_mutex_t lock;
    int lines;
    char last[300];
} kept;

static kept said = {PTHREAD_MUTEX_INITIALIZER, 0, ""};

static void keeps(void *user, ddp_log_level level, const char *line)
{
    kept *k = (kept *)user;

    if (level > DDP_LOG_WARN || strncmp(line, "GPU", 3)) return;
    pthread_mutex_lock(&k->lock);
    k->lines++;
    snprintf(k->last, sizeof k->last, "%s", line);
    pthread_mutex_unlock(&k->lock);
}

static int no_env; /* ddp_config.no_env of the ranks */

/* Trains two ranks, on one device if `device` is 0, and on one each if it is -1. Returns the status. waits:
 * the value of DREAMDDP_CUDA_WAITS. */
static ddp_status trained(lab *x, const char *waits, int device, ddp_cuda_numbers numbers, double op_s,
                          ddp_error *err)
{
    const ddp_backend b = ddp_cuda(numbers, device);
    ddp_status s;

    cuda_on_cpu::mend();
    lab_new(x, 2, DDP_DREAMDDP, 3);
    x->model = LAB_GPT;
    x->rule = LAB_MOMENTUM;
    x->cfg.backend = &b;
    x->cfg.no_env = no_env;
    x->cfg.logger.fn = keeps;
    x->cfg.logger.user = &said;
    x->cfg.logger.level = DDP_LOG_WARN;
    x->cfg.timeout.op_s = op_s;
    said.lines = 0;
    said.last[0] = 0;
    setenv("DREAMDDP_CUDA_WAITS", waits, 1);
    s = (ddp_status)ddp_launch(&x->cfg, lab_worker, x, err);
    unsetenv("DREAMDDP_CUDA_WAITS");
    x->cfg.backend = NULL;
    return s;
}

/* The run succeeds, has the parameters of one in which the host waits, and each rank logs `lines` lines that
 * end with `last`. */
static void trains(const char *waits, int device, ddp_cuda_numbers numbers, int lines, const char *last)
{
    ddp_error err;
    lab x, host;

    if (trained(&x, waits, device, numbers, 60, &err)) fail_msg("%s", err.msg);
    if (said.lines != 2 * lines || !strstr(said.last, last))
        fail_msg("%d lines, the last is \"%s\" instead of \"%s\"", said.lines, said.last, last);
    if (trained(&host, "0", -1, numbers, 60, &err)) fail_msg("%s", err.msg);
    assert_true(*x.values > 100);
    for (int r = 0; r < 2; r++)
        assert_memory_equal(x.params[r], host.params[r], *host.values * sizeof(float));
    lab_free(&x);
    lab_free(&host);
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

static void times_out(const char *waits, int device)
{
    ddp_error err;
    lab x;

    assert_int_not_equal(trained(&x, waits, device, DDP_CUDA_F32, 2, &err), DDP_OK);
    lab_free(&x);
    cuda_on_cpu::mend();
}

static void stream_waits_if_the_driver_can(void **state)
{
    (void)state;
    trains("auto", -1, DDP_CUDA_F32, 0, "");
    trains("1", -1, DDP_CUDA_F32, 0, "");
    trains("0", -1, DDP_CUDA_F32, 1, "DREAMDDP_CUDA_WAITS is 0");
}

static void no_env_ignores_the_variable(void **state)
{
    (void)state;
    no_env = 1;
    trains("0", -1, DDP_CUDA_F32, 0, "");
    no_env = 0;
}

/* The library does not know what the program launches behind a wait. */
static void stream_of_the_program_does_not_wait(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    const ddp_logger log = {keeps, &said, DDP_LOG_WARN};
    cudaStream_t stream;
    ddp_error err;
    void *self;

    (void)state;
    said.lines = 0;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(b.open(&b, 0, stream, &self, &err), DDP_OK);
    assert_int_equal(b.slots(self, 2), 1);
    b.attach(self, &log, 60); /* also logs what was said before */
    assert_int_equal(said.lines, 1);
    assert_non_null(strstr(said.last, "the stream is the program's"));
    b.close(self);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

static void driver_without_stream_waits_or_tensor_maps(void **state)
{
    (void)state;
    cuda_on_cpu::set_waits(false);
    trains("auto", -1, DDP_CUDA_F32, 1, "the driver has no cuStreamWaitValue32");
    cuda_on_cpu::set_waits(true);
    cuda_on_cpu::set_maps(false);
    trains("auto", -1, DDP_CUDA_BF16, 0, "");
    cuda_on_cpu::set_maps(true);
}

static void driver_whose_stream_waits_fail(void **state)
{
    (void)state;
    cuda_on_cpu::set_wait_fault(cuda_on_cpu::WAITS_FAIL);
    trains("auto", -1, DDP_CUDA_F32, 1, "cuStreamWaitValue32 fails");
    trains("1", -1, DDP_CUDA_F32, 1, "cuStreamWaitValue32 failed with driver error 801");
    cuda_on_cpu::set_wait_fault(cuda_on_cpu::WAITS_RETURN);
    cuda_on_cpu::set_blocking(true); /* so that the kernel behind the wait has run when the test looks */
    trains("auto", -1, DDP_CUDA_F32, 1, "a stream does not wait");
    cuda_on_cpu::set_blocking(false);
    cuda_on_cpu::set_wait_fault(cuda_on_cpu::WAITS_WORK);
}

/* A hardware queue that all streams of a device share: the message cannot be copied while one of them waits.
 * With queues apart for each priority, it can. */
static void streams_that_share_a_hardware_queue(void **state)
{
    (void)state;
    cuda_on_cpu::set_queues(1, false);
    times_out("1", -1);
    cuda_on_cpu::set_queues(1, false);
    trains("auto", -1, DDP_CUDA_F32, 1, "other work stops while a stream waits");
    cuda_on_cpu::set_queues(1, true);
    trains("auto", -1, DDP_CUDA_F32, 0, "");
    cuda_on_cpu::set_queues(0, true);
}

static void launches_that_block(void **state)
{
    (void)state;
    cuda_on_cpu::set_blocking(true);
    trains("auto", -1, DDP_CUDA_F32, 1, "other work stops while a stream waits");
    trains("1", -1, DDP_CUDA_F32, 0,
           ""); /* the thread that raises the flag needs no lock of the blocked one */
    cuda_on_cpu::set_blocking(false);
}

static void two_contexts_on_one_device(void **state)
{
    (void)state;
    trains("1", 0, DDP_CUDA_F32, 1, "another context of this process uses the GPU");
    cuda_on_cpu::set_depth(40, 30); /* fewer items than those of a step */
    trains("auto", 0, DDP_CUDA_F32, 1, "another context of this process uses the GPU");
    cuda_on_cpu::set_depth(1000, 300);
}

static void capture_that_fails_runs_directly(void **state)
{
    static const cuda_on_cpu::capture_failure at[] = {cuda_on_cpu::CAPTURE_BEGINS, cuda_on_cpu::CAPTURE_CALLS,
                                                      cuda_on_cpu::CAPTURE_ENDS,
                                                      cuda_on_cpu::CAPTURE_BECOMES_A_GRAPH};

    (void)state;
    for (int i = 0; i < 4; i++) {
        const long before = cuda_on_cpu::replays();
        ddp_error err;
        lab x, graphs;
        cuda_on_cpu::set_capture(at[i]);
        if (trained(&x, "auto", -1, DDP_CUDA_F32, 60, &err)) fail_msg("%d: %s", i, err.msg);
        cuda_on_cpu::set_capture(cuda_on_cpu::CAPTURE_WORKS);
        assert_int_equal(cuda_on_cpu::replays(), before);
        assert_int_equal(said.lines, 2);
        assert_non_null(strstr(said.last, "operators run without CUDA graphs"));
        if (trained(&graphs, "auto", -1, DDP_CUDA_F32, 60, &err)) fail_msg("%s", err.msg);
        assert_true(cuda_on_cpu::replays() > before);
        assert_memory_equal(x.params[0], graphs.params[0], *graphs.values * sizeof(float));
        lab_free(&x);
        lab_free(&graphs);
    }
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

/* An open context whose stream waits for turn 1 of slot 0. */
typedef struct holder {
    ddp_backend b;
    void *self;
    float *there, *here; /* [1] device memory, and pinned */
} holder;

static holder holding(double op_s)
{
    const ddp_logger log = {keeps, &said, DDP_LOG_WARN};
    ddp_error err;
    holder h;

    memset(&h, 0, sizeof h);
    h.b = ddp_cuda(DDP_CUDA_F32, 0);
    if (h.b.open(&h.b, 0, NULL, &h.self, &err)) fail_msg("%s", err.msg);
    h.b.attach(h.self, &log, op_s);
    assert_int_equal(h.b.slots(h.self, 2), 1);
    h.there = (float *)h.b.alloc(h.self, sizeof *h.there);
    assert_int_equal(cudaMallocHost(&h.here, sizeof *h.here), cudaSuccess);
    assert_int_equal(h.b.wait(h.self, &err), DDP_OK);
    cuda_on_cpu::unload();
    cuda_on_cpu::set_depth(1000, 1);
    h.b.hold(h.self, 0, 1);
    return h;
}

static void let_go(holder *h)
{
    if (h->there) h->b.release(h->self, h->there, sizeof *h->there);
    h->b.close(h->self);
    (void)cudaFreeHost(h->here);
    cuda_on_cpu::set_depth(1000, 300);
    cuda_on_cpu::mend();
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

static void *gives_and_raises(void *arg)
{
    holder *h = (holder *)arg;
    ddp_error err;

    ddp__sleep_until(ddp_now() + 0.05);
    (void)h->b.give(h->self, h->there, h->here, sizeof *h->here, &err);
    h->b.raise(h->self, 0, 1);
    return NULL;
}

/* A context in bfloat16 launches a kernel when it opens, which is loaded then. */
static void second_context_behind_a_wait(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_BF16, 0);
    holder h = holding(60);
    void *second = NULL;
    pthread_t thread;
    ddp_error err;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, gives_and_raises, &h), 0);
    if (b.open(&b, 0, NULL, &second, &err)) fail_msg("%s", err.msg);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(cuda_on_cpu::why(), "");
    b.close(second);
    let_go(&h);
}

/* The call that raises the flag waits for a lock that the allocation holds. */
static void memory_is_not_allocated_or_freed_behind_a_wait(void **state)
{
    (void)state;
    for (int frees = 0; frees < 2; frees++) {
        holder h = holding(60);
        void *more = NULL;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, gives_and_raises, &h), 0);
        if (frees) {
            h.b.release(h.self, h.there, sizeof *h.there);
            h.there = NULL;
        } else {
            more = h.b.alloc(h.self, 100);
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_string_equal(cuda_on_cpu::why(), "");
        if (more) h.b.release(h.self, more, 100);
        let_go(&h);
    }
}

static void second_context_times_out_behind_a_wait(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_BF16, 0);
    holder h = holding(0.2);
    void *second = NULL;
    ddp_error err;

    (void)state;
    assert_int_equal(b.open(&b, 0, NULL, &second, &err), DDP_TIMEOUT);
    assert_non_null(strstr(err.msg, "another context of this process has waited 0.2 s for a message"));
    h.b.raise(h.self, 0, 1);
    if (b.open(&b, 0, NULL, &second, &err)) fail_msg("%s", err.msg);
    b.close(second);
    let_go(&h);
}

/* Any amount of memory: a run ends, with an error or without. */
static void too_little_memory_is_an_error(void **state)
{
    ddp_error err;
    int failed = 0, ran = 0;
    lab x;

    (void)state;
    for (size_t mib = 31; mib < 36; mib++)
        for (long pinned = 0; pinned < 12; pinned += 4) {
            cuda_on_cpu::set_memory(mib << 20);
            cuda_on_cpu::set_pinned(pinned ? 1L << 40 : 2);
            if (trained(&x, "auto", -1, DDP_CUDA_F32, 60, &err) == DDP_OK) {
                ran++;
            } else {
                failed++;
                if (err.code != DDP_MEMORY) fail_msg("%d: %s", (int)err.code, err.msg);
            }
            lab_free(&x);
            cuda_on_cpu::mend();
            assert_int_equal(cuda_on_cpu::alive(), 0);
        }
    cuda_on_cpu::set_memory((size_t)1 << 32);
    cuda_on_cpu::set_pinned(1L << 40);
    assert_true(failed > 0 && ran > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_stream_does_not_block_the_message),
        cmocka_unit_test(nodes_of_graphs_fill_the_stream),
        cmocka_unit_test(nothing_is_loaded_behind_a_wait),
        cmocka_unit_test(no_graph_is_made_behind_a_wait),
        cmocka_unit_test(many_waits_are_remembered),
        cmocka_unit_test(stream_waits_if_the_driver_can),
        cmocka_unit_test(no_env_ignores_the_variable),
        cmocka_unit_test(stream_of_the_program_does_not_wait),
        cmocka_unit_test(driver_without_stream_waits_or_tensor_maps),
        cmocka_unit_test(driver_whose_stream_waits_fail),
        cmocka_unit_test(streams_that_share_a_hardware_queue),
        cmocka_unit_test(launches_that_block),
        cmocka_unit_test(two_contexts_on_one_device),
        cmocka_unit_test(memory_is_not_allocated_or_freed_behind_a_wait),
        cmocka_unit_test(second_context_behind_a_wait),
        cmocka_unit_test(second_context_times_out_behind_a_wait),
        cmocka_unit_test(capture_that_fails_runs_directly),
        cmocka_unit_test(too_little_memory_is_an_error),
    };

    (void)alarm(240); /* a hang is a failure */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("the stand-in is not used in this build\n");
    return 77;
}

#endif
