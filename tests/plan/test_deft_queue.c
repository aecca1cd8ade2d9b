/* [pure, long, test-all: slow] DeFT's plans compared with plain queues, which send the next part wherever it
 * fits, without knapsacks. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { MOST = 12, PARTS = 800, WARMUP = 300, PLAYED = 1200 };

typedef struct instance {
    ddp_profile p;
    ddp_delayed_options o;
    double f[MOST], b[MOST], c[MOST], T_f, T_b;
} instance;

static double up_to(ddp_rng *r, double most) { return most * ddp_rng_uniform(r); }

/* Buckets whose startup may be as long as the longer stage. */
static void instance_random(instance *x, ddp_rng *r, int n)
{
    double longer;
    int i;

    memset(x, 0, sizeof *x);
    x->p.layers = 1 + (int)ddp_rng_below(r, 8);
    x->p.forward_s = x->f;
    x->p.backward_s = x->b;
    x->p.comm_s = x->c;
    for (i = 0; i < x->p.layers; i++) {
        x->T_f += x->f[i] = up_to(r, 0.5);
        x->T_b += x->b[i] = up_to(r, n % 5 == 4 ? 0.1 : 1);
        x->c[i] = up_to(r, n % 3 == 0 ? 1 : n % 3 == 1 ? 0.3 : 3);
    }
    longer = x->T_f > x->T_b ? x->T_f : x->T_b;
    x->o.links = n % 2 + 1;
    x->o.mu = 1 + up_to(r, 2);
    x->o.alpha_s = n % 4 == 3 ? 0 : up_to(r, longer * (n % 4 == 2 ? 0.3 : 1));
    if (n % 4 == 1) x->o.partition_s = x->o.alpha_s + up_to(r, longer - x->o.alpha_s) + 0.01;
    for (i = 0; i < x->p.layers; i++)
        if (x->c[i] < x->o.alpha_s) x->c[i] = x->o.alpha_s;
}

/* Parts in the order in which backward makes them. */
typedef struct queue {
    int parts, links;
    double size[PARTS], ready[PARTS];
    char sent[PARTS];
} queue;

/* Splits into parts of at most `limit`, and of the partition, or 0 for impossible. */
static int queue_cut(queue *q, const instance *x, double limit, int partition)
{
    double alpha = x->o.alpha_s, ready = 0, longest = limit;
    int i, j, k;

    q->parts = 0;
    q->links = x->o.links;
    if (partition && x->o.partition_s > 0 && x->o.partition_s < longest) longest = x->o.partition_s;
    for (i = x->p.layers - 1; i >= 0; i--) {
        ready += x->b[i];
        if (x->c[i] > longest && longest <= alpha) return 0;
        k = x->c[i] > longest ? (int)ceil((x->c[i] - alpha) / (longest - alpha) * (1 - 1e-14)) : 1;
        if (k > 400 || q->parts + k > PARTS) return 0;
        for (j = 0; j < k; j++) {
            q->ready[q->parts] = ready;
            q->size[q->parts++] = alpha + (x->c[i] - alpha) / k;
        }
    }
    return 1;
}

/* One stage: sends each part over the first link on which it arrives in time. Returns the number of parts
 * sent. */
static int queue_send(queue *q, double *busy, double room, double mu, int fresh, int slow_first)
{
    int j, l, link, n = 0;

    for (j = 0; j < q->parts; j++)
        for (l = 0; l < q->links && !q->sent[j]; l++) {
            double begin, end;
            link = slow_first ? q->links - 1 - l : l;
            begin = fresh && q->ready[j] > busy[link] ? q->ready[j] : busy[link];
            end = begin + q->size[j] * (link ? mu : 1);
            if (end > room * (1 + 1e-12)) continue;
            busy[link] = end;
            q->sent[j] = 1;
            n++;
        }
    return n;
}

/* Updates per iteration. */
static double queue_frequency(queue *q, const instance *x, int slow_first)
{
    int t, left = 0, open = 0, updates = 0;

    memset(q->sent, 1, sizeof q->sent);
    for (t = 0; t < WARMUP + PLAYED; t++) {
        double forward[2] = {0, 0}, backward[2] = {0, 0};
        if (t == WARMUP) updates = 0;
        left -= queue_send(q, forward, x->T_f, x->o.mu, 0, slow_first);
        left -= queue_send(q, backward, x->T_b, x->o.mu, 0, slow_first);
        if (left) continue; /* this gradient is merged into the next one that opens */
        updates += open;
        memset(q->sent, 0, sizeof q->sent);
        left = q->parts - queue_send(q, backward, x->T_b, x->o.mu, 1, slow_first);
        open = left > 0;
        updates += !open;
    }
    return (double)updates / (double)PLAYED;
}

static double queue_best(const instance *x)
{
    static queue q;
    double shorter = x->T_f < x->T_b ? x->T_f : x->T_b, longer = x->T_f + x->T_b - shorter, best = 0, is;
    const double limit[4] = {shorter / x->o.mu, shorter, longer / x->o.mu, longer};
    int i, way;

    for (i = x->o.links == 2 ? 0 : 1; i < 4; i++) {
        if (x->o.links == 1 && i == 2) continue;
        for (way = 0; way < 4; way++) {
            if (!queue_cut(&q, x, limit[i], way / 2)) continue;
            is = queue_frequency(&q, x, way % 2);
            if (is > best) best = is;
        }
    }
    return best;
}

/* The paper's longest part fits the shorter stage. If the startup is nearly as long, buckets that fit the
 * longer stage as a whole would become many parts that are mostly startup. */
static void plans_are_no_worse_than_queues(void **state)
{
    ddp_rng r = ddp_rng_seed(61, 0);
    int n, more = 0, refused = 0;

    (void)state;
    for (n = 0; n < INSTANCES(1200); n++) {
        ddp_delayed_plan plan;
        ddp_error err;
        instance x;
        double plain;
        instance_random(&x, &r, n);
        if (ddp_plan_delayed(&x.p, &x.o, &plan, &err) != DDP_OK) {
            if (!strstr(err.msg, "more than 512 parts")) fail_msg("instance %d: %s", n, err.msg);
            refused++;
            continue;
        }
        plain = queue_best(&x);
        if (plan.update_frequency < plain - 2.0 / (double)PLAYED)
            fail_msg("instance %d: %d buckets, %d links, startup %g s, T_f %g s, T_b %g s: the plan has %g "
                     "updates "
                     "per iteration, a queue %g",
                     n, x.p.layers, x.o.links, x.o.alpha_s, x.T_f, x.T_b, plan.update_frequency, plain);
        more += plan.update_frequency > plain + 2.0 / (double)PLAYED;
        ddp_delayed_plan_free(&plan);
    }
    print_message("more updates than any queue: %d of %d\n", more, INSTANCES(1200));
    assert_true(refused <= INSTANCES(5)); /* partitions hardly longer than the startup */
}

/* One bucket of 0.6 s, half of it startup. Forward takes 0.31 s; backward takes 1 s and can send the bucket
 * whole. */
static void a_startup_as_long_as_forward_cuts_nothing(void **state)
{
    double f = 0.31, b = 1, c = 0.6;
    ddp_delayed_plan plan;
    ddp_delayed_options o;
    ddp_profile p;
    ddp_error err;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.layers = 1;
    p.forward_s = &f;
    p.backward_s = &b;
    p.comm_s = &c;
    o.alpha_s = 0.3;
    assert_int_equal(ddp_plan_delayed(&p, &o, &plan, &err), DDP_OK);
    assert_int_equal(plan.parts, 1); /* not 30 parts of 0.31 s, the time of forward */
    assert_true(plan.update_frequency >= 1);
    ddp_delayed_plan_free(&plan);
}

/* 11 buckets, a target and no barrier: tens of tries, each with many knapsacks. The search is limited by
 * count and not by time, so every machine has the same plan. */
static void a_long_search_ends_and_says_so(void **state)
{
    ddp_delayed_plan a, b;
    ddp_error err;
    instance x;
    ddp_rng r = ddp_rng_seed(4, 0);
    double start = ddp_now();
    int n, limited = 0;

    (void)state;
    for (n = 0; n < 2; n++) {
        int i;
        do instance_random(&x, &r, 5);
        while (x.p.layers < 7);
        x.o.partition_s = 0.1;
        x.o.alpha_s = 0.02;
        x.o.target_frequency = 0.93;
        x.o.no_barrier = 1;
        assert_int_equal(ddp_plan_delayed(&x.p, &x.o, &a, &err), DDP_OK);
        assert_int_equal(ddp_plan_delayed(&x.p, &x.o, &b, &err), DDP_OK);
        assert_true(a.update_frequency >= 0.93);
        assert_int_equal(a.limited, b.limited);
        assert_int_equal(a.sends, b.sends);
        for (i = 0; i < a.sends; i++) assert_memory_equal(&a.send[i], &b.send[i], sizeof a.send[i]);
        limited += a.limited;
        ddp_delayed_plan_free(&a);
        ddp_delayed_plan_free(&b);
    }
    print_message("%d of 2 searches ended early, %.2f s a plan\n", limited, (ddp_now() - start) / 4);
    assert_true(limited > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_no_worse_than_queues),
        cmocka_unit_test(a_startup_as_long_as_forward_cuts_nothing),
        cmocka_unit_test(a_long_search_ends_and_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
