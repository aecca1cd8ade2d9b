/* [test-all: compiles the GPU companion] Averages by NCCL: ranks are threads, each with its own device. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/nccl.cuh"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

enum { MOST_RANKS = 4, SLOTS = 4, LARGE = 3001 };

/* Shared state of the ranks of a test. */
typedef struct meeting {
    pthread_mutex_t m;
    pthread_cond_t c;
    int world, said, same_device, parts;
    unsigned char bytes[2][256];
    int there[2], at[2];
    double timeout_s;
    const char *fault; /* set by the first rank that found one */
    char text[500];
} meeting;

typedef struct rank_of {
    meeting *all;
    int rank, part;
    void (*body)(struct rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n);
    ddp_status joined;
    ddp_error err;
} rank_of;

#define EXPECT(r, condition) ((condition) ? (void)0 : expected((r), #condition, __LINE__))

static void expected(rank_of *r, const char *condition, int line)
{
    pthread_mutex_lock(&r->all->m);
    if (!r->all->fault) {
        r->all->fault = condition;
        snprintf(r->all->text, sizeof r->all->text, "rank %d, line %d: %s (%s)", r->rank, line, condition,
                 r->err.msg);
    }
    pthread_mutex_unlock(&r->all->m);
}

/* Rank 0 of a group sends, the others receive. */
static ddp_status share(void *user, void *bytes, size_t count, ddp_error *err)
{
    rank_of *r = (rank_of *)user;
    meeting *a = r->all;

    (void)err;
    pthread_mutex_lock(&a->m);
    if (r->rank % (a->world / a->parts) == 0) {
        memcpy(a->bytes[r->part], bytes, count);
        a->there[r->part] = 1;
        pthread_cond_broadcast(&a->c);
    }
    while (!a->there[r->part]) pthread_cond_wait(&a->c, &a->m);
    memcpy(bytes, a->bytes[r->part], count);
    pthread_mutex_unlock(&a->m);
    return DDP_OK;
}

/* Barrier for all ranks of the test. */
static void together(rank_of *r)
{
    meeting *a = r->all;
    int round;

    pthread_mutex_lock(&a->m);
    round = a->at[1];
    if (++a->at[0] == a->world) {
        a->at[0] = 0;
        a->at[1]++;
        pthread_cond_broadcast(&a->c);
    }
    while (a->at[1] == round) pthread_cond_wait(&a->c, &a->m);
    pthread_mutex_unlock(&a->m);
}

static void *run_rank(void *user)
{
    rank_of *r = (rank_of *)user;
    meeting *a = r->all;
    const int size = a->world / a->parts;
    ddp_backend_peers p;
    ddp__cuda *dev;
    ddp__cuda_nccl *n;

    dev = ddp__cuda_open(a->same_device ? 0 : r->rank, DDP_CUDA_F32, NULL, &r->err);
    EXPECT(r, dev);
    if (!dev) return NULL;
    memset(&p, 0, sizeof p);
    p.rank = r->rank % size;
    p.world = size;
    p.join_timeout_s = p.op_timeout_s = a->timeout_s;
    p.share = share;
    p.user = r;
    n = ddp__nccl_join(dev, &p, SLOTS, &r->err);
    r->joined = n ? DDP_OK : r->err.code;
    if (r->body)
        r->body(r, dev, n);
    else
        ddp__nccl_leave(n, 0);
    ddp__cuda_close(dev);
    return NULL;
}

static void run_parts(int world, int parts, int same_device, double timeout_s, rank_of *ranks,
                      void (*body)(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n))
{
    pthread_t thread[MOST_RANKS];
    meeting all;
    int i, devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < (same_device ? 1 : world)) skip();
    memset(&all, 0, sizeof all);
    pthread_mutex_init(&all.m, NULL);
    pthread_cond_init(&all.c, NULL);
    all.world = world;
    all.parts = parts;
    all.same_device = same_device;
    all.timeout_s = timeout_s;
    for (i = 0; i < world; i++) {
        memset(&ranks[i], 0, sizeof ranks[i]);
        ranks[i].all = &all;
        ranks[i].rank = i;
        ranks[i].part = i / (world / parts);
        ranks[i].body = body;
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (i = 0; i < world; i++) pthread_join(thread[i], NULL);
    pthread_cond_destroy(&all.c);
    pthread_mutex_destroy(&all.m);
    if (all.fault) fail_msg("%s", all.text);
#if defined(DDP_CUDA_ON_CPU)
    if (cuda_on_cpu::alive())
        fail_msg("%ld allocations, streams or events were not freed", cuda_on_cpu::alive());
#endif
}

static __global__ void add_to_all(float *x, long n, float by)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) x[i] += by;
}

static float value(int rank, long i) { return (float)((rank + 1) * 8 + i % 7); }

/* Queues x = value(rank). Ranks reach their averages at different times. */
static float *filled(rank_of *r, long n)
{
    float *x = NULL, *host = (float *)malloc((size_t)n * sizeof *host);
    long i;

    for (i = 0; host && i < n; i++) host[i] = value(r->rank, i);
    EXPECT(r, cudaMalloc(&x, (size_t)n * sizeof *x) == cudaSuccess);
    EXPECT(r, host && cudaMemcpy(x, host, (size_t)n * sizeof *x, cudaMemcpyHostToDevice) == cudaSuccess);
    free(host);
    return x;
}

static void expect_all(rank_of *r, ddp__cuda *dev, const float *x, long n, float (*want)(long i), float more)
{
    float *host = (float *)malloc((size_t)n * sizeof *host);
    long i, wrong = 0;

    EXPECT(r, !DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)));
    EXPECT(r, host && cudaMemcpy(host, x, (size_t)n * sizeof *x, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (i = 0; host && i < n; i++) wrong += host[i] != want(i) + more;
    if (wrong) {
        (void)ddp__fail(&r->err, DDP_FAILED, "%ld of %ld elements are wrong; the first is %g", wrong, n,
                        (double)host[0]);
        EXPECT(r, !wrong);
    }
    free(host);
}

static float mean_of_three(long i) { return (float)(16 + i % 7); }
static float mean_of_two(long i) { return (float)(12 + i % 7); }
static float mean_of_four(long i) { return (float)(20 + i % 7); }

/* Two slots in flight. Work queued before is averaged; work after finish reads the mean. */
static void average_twice(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n)
{
    static const size_t counts[] = {LARGE, 5};
    float *a = filled(r, LARGE), *b = filled(r, 5), *c = filled(r, 64), *arrays[2];
    const size_t small = 64;
    int i;

    EXPECT(r, n);
    if (n) {
        arrays[0] = a;
        arrays[1] = b;
        for (i = 0; i < 101; i++) /* long enough that work that does not wait would overtake it */
            DDP__LAUNCH(add_to_all, 12, 256, 0, dev->stream, a, LARGE, i % 2 ? -1.0f : 1.0f);
        EXPECT(r, !ddp__nccl_queue(n, 0, DDP__NCCL_MEAN, arrays, counts, 2, &r->err));
        EXPECT(r, !ddp__nccl_queue(n, 1, DDP__NCCL_MEAN, &c, &small, 1, &r->err));
        ddp__nccl_finish(n, 0);
        DDP__LAUNCH(add_to_all, 12, 256, 0, dev->stream, a, LARGE, 2.0f);
        ddp__nccl_finish(n, 1);
        expect_all(r, dev, a, LARGE, mean_of_three, 3);
        expect_all(r, dev, b, 5, mean_of_three, 0);
        expect_all(r, dev, c, 64, mean_of_three, 0);
        EXPECT(r, !ddp__nccl_poll(n, &r->err));
        EXPECT(r, ddp__nccl_ended(n, 0) && ddp__nccl_ended(n, 1));
    }
    (void)cudaFree(a);
    (void)cudaFree(b);
    (void)cudaFree(c);
    ddp__nccl_leave(n, 0);
}

static void arrays_become_their_mean(void **state)
{
    rank_of ranks[MOST_RANKS];

    (void)state;
    run_parts(3, 1, 0, 30, ranks, average_twice);
}

static void two_ranks_on_one_device_are_rejected(void **state)
{
    rank_of ranks[MOST_RANKS];
    int i;

    (void)state;
    run_parts(2, 1, 1, 30, ranks, NULL);
    for (i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].joined, DDP_ARG);
        assert_non_null(strstr(ranks[i].err.msg, "the GPU is in use"));
    }
}

static double lost_after; /* in seconds */

/* Rank 1 fails while the others wait for it, or before they do. */
static void lose_one(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n)
{
    const size_t count = 64;
    float *x = filled(r, 64);
    ddp_status s = DDP_OK;
    const double until = ddp_now() + 60;

    (void)dev;
    EXPECT(r, n);
    together(r);
    if (n && r->rank == 1) {
        ddp__sleep_until(ddp_now() + lost_after);
        ddp__nccl_leave(n, 1);
        n = NULL;
    } else if (n) {
        s = ddp__nccl_queue(n, 0, DDP__NCCL_MEAN, &x, &count, 1, &r->err);
        while (!s && ddp_now() < until) {
            s = ddp__nccl_poll(n, &r->err);
            ddp__sleep_until(ddp_now() + 1e-3);
        }
        EXPECT(r, s == DDP_PEER_LOST && strstr(r->err.msg, "lost a peer"));
    }
    ddp__nccl_leave(n, 0);
    (void)cudaFree(x); /* it waits for kernels that use the array */
}

static void lost_peer_returns_a_clear_error(void **state)
{
    rank_of ranks[MOST_RANKS];

    (void)state;
    for (lost_after = 0; lost_after < 0.3; lost_after += 0.2) run_parts(3, 1, 0, 60, ranks, lose_one);
}

/* A silent peer: the operation times out, and leaving does not wait for it. */
static void wait_for_nobody(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n)
{
    const size_t count = 64;
    float *x = filled(r, 64);
    ddp_status s = DDP_OK;

    (void)dev;
    EXPECT(r, n);
    if (n && r->rank == 0) {
        EXPECT(r, !ddp__nccl_queue(n, 2, DDP__NCCL_MEAN, &x, &count, 1, &r->err));
        ddp__nccl_finish(n, 2);
        while (!s) {
            s = ddp__nccl_poll(n, &r->err);
            ddp__sleep_until(ddp_now() + 1e-3);
        }
        EXPECT(r, s == DDP_TIMEOUT && strstr(r->err.msg, " s for its peers"));
    }
    ddp__nccl_leave(n, r->rank == 0);
    (void)cudaFree(x);
    together(r);
}

static void silent_peer_ends_the_wait_after_the_time_out(void **state)
{
    rank_of ranks[MOST_RANKS];

    (void)state;
    run_parts(2, 1, 0, 0.5, ranks, wait_for_nobody);
}

/* Leaving without an error while an average is in flight also times out. */
static void leave_nobody(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n)
{
    const size_t count = 64;
    float *x = filled(r, 64);

    (void)dev;
    EXPECT(r, n);
    if (n && r->rank == 0) EXPECT(r, !ddp__nccl_queue(n, 2, DDP__NCCL_MEAN, &x, &count, 1, &r->err));
    if (r->rank) together(r);
    ddp__nccl_leave(n, 0);
    if (!r->rank) together(r);
    (void)cudaFree(x);
}

static void leaving_a_silent_peer_ends_after_the_time_out(void **state)
{
    rank_of ranks[MOST_RANKS];

    (void)state;
    run_parts(2, 1, 0, 0.5, ranks, leave_nobody);
}

/* Two sites of two ranks: mean inside each site, mean of the leaders by other means, broadcast inside each
 * site. */
static void two_levels(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n)
{
    const size_t count = LARGE;
    float *x = filled(r, LARGE);
    float *host = (float *)malloc(LARGE * sizeof *host);
    long i;

    EXPECT(r, n && host);
    EXPECT(r, !ddp__nccl_queue(n, 0, DDP__NCCL_MEAN, &x, &count, 1, &r->err));
    ddp__nccl_finish(n, 0);
    if (n->peers.rank == 0) {
        EXPECT(r, !DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)));
        EXPECT(r, cudaMemcpy(host, x, LARGE * sizeof *x, cudaMemcpyDeviceToHost) == cudaSuccess);
        for (i = 0; i < LARGE; i++)
            host[i] = r->part ? host[i] - 8 : host[i] + 8; /* the mean of both sites
                                                                                    * */
        EXPECT(r, cudaMemcpyAsync(x, host, LARGE * sizeof *x, cudaMemcpyHostToDevice, dev->stream) ==
                      cudaSuccess);
    }
    EXPECT(r, !ddp__nccl_queue(n, 1, DDP__NCCL_SPREAD, &x, &count, 1, &r->err));
    ddp__nccl_finish(n, 1);
    expect_all(r, dev, x, LARGE, mean_of_four, 0);
    free(host);
    (void)cudaFree(x);
    ddp__nccl_leave(n, 0);
}

static void hierarchical_mean_equals_the_mean_of_all(void **state)
{
    rank_of ranks[MOST_RANKS];

    (void)state;
    run_parts(4, 2, 0, 30, ranks, two_levels);
}

static void alone(rank_of *r, ddp__cuda *dev, ddp__cuda_nccl *n)
{
    const size_t count = 64;
    float *x = filled(r, 64);

    EXPECT(r, n && !ddp__nccl_queue(n, 0, DDP__NCCL_MEAN, &x, &count, 1, &r->err));
    ddp__nccl_finish(n, 0);
    expect_all(r, dev, x, 64, mean_of_two, -4);
    EXPECT(r, !ddp__nccl_poll(n, &r->err));
    (void)cudaFree(x);
    ddp__nccl_leave(n, 0);
}

static void single_rank_averages_without_peers(void **state)
{
    rank_of ranks[MOST_RANKS];

    (void)state;
    run_parts(1, 1, 0, 30, ranks, alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_become_their_mean),
        cmocka_unit_test(two_ranks_on_one_device_are_rejected),
        cmocka_unit_test(lost_peer_returns_a_clear_error),
        cmocka_unit_test(silent_peer_ends_the_wait_after_the_time_out),
        cmocka_unit_test(leaving_a_silent_peer_ends_after_the_time_out),
        cmocka_unit_test(hierarchical_mean_equals_the_mean_of_all),
        cmocka_unit_test(single_rank_averages_without_peers),
    };

    alarm(40); /* ends a deadlock between ranks */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
