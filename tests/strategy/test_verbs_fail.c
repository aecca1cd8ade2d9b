/* [long, asan, test-all: slow] Any call of a strategy may fail. For n = 1, 2, ... the n-th verb of one rank,
 * or the n-th allocation of its strategy, fails, until a run ends before call n. Every run ends with that
 * error, no rank hangs, and no memory leaks. The strategies are compiled here, with verbs that count. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "context/context.h" /* d->cfg.site */
#include "quick_meter.h"

/* The calls of rank `victim` so far. Those whose failure can still be reported; and the call that fails, 0:
 * none. A server thread continues to call verbs after its last control message to the worker. Only its calls
 * before the end of the last step count as reportable. */
static long calls, calls_heard, fails_at;
static int server_beside;
static int victim;

static int its_turn(const ddp_ctx *d)
{
    return d && ddp_rank(d) == victim && ddp__atomic_add(&calls, 1) + 1 == fails_at;
}

static int broken(ddp_ctx *d) { return its_turn(d) ? ddp_complain(d, DDP_FAILED, "the verb is broken") : 0; }

static int broken_there(ddp_ctx *d)
{
    return its_turn(d) ? ddp_server_fail(d, DDP_FAILED, "the verb is broken") : 0;
}

#define VERB(verb, test, params, args)           \
    static DDP__UNUSED int counted_##verb params \
    {                                            \
        const int bad = test(d);                 \
        return bad ? bad : (ddp_##verb)args;     \
    }
VERB(post, broken, (ddp_ctx * d, const ddp_message *m, long *ticket), (d, m, ticket))
VERB(hold, broken, (ddp_ctx * d, long ticket, int layer), (d, ticket, layer))
VERB(hold_input, broken, (ddp_ctx * d, long ticket), (d, ticket))
VERB(average, broken, (ddp_ctx * d, int layer, int priority, int filler), (d, layer, priority, filler))
VERB(average_parts, broken, (ddp_ctx * d, int layer, const unsigned char *takes, int priority, int filler),
     (d, layer, takes, priority, filler))
VERB(average_hold, broken, (ddp_ctx * d, int layer), (d, layer))
VERB(average_exact, broken, (ddp_ctx * d, int layer), (d, layer))
VERB(update_layer, broken, (ddp_ctx * d, int layer, const float *from), (d, layer, from))
VERB(update_late, broken, (ddp_ctx * d, int layer, const float *from, float rate), (d, layer, from, rate))
VERB(update_copy, broken,
     (ddp_ctx * d, int layer, float *params, float *state, const float *from, float rate),
     (d, layer, params, state, from, rate))
VERB(clip, broken, (ddp_ctx * d), (d))
VERB(axpy, broken, (ddp_ctx * d, float *y, const float *x, size_t n, float a), (d, y, x, n, a))
VERB(copy, broken, (ddp_ctx * d, float *y, const float *x, size_t n), (d, y, x, n))
VERB(scale, broken, (ddp_ctx * d, float *x, size_t n, float a), (d, x, n, a))
VERB(set, broken, (ddp_ctx * d, float *x, size_t n, float a), (d, x, n, a))
VERB(norm2, broken, (ddp_ctx * d, const float *x, size_t n, double *out), (d, x, n, out))
VERB(download, broken, (ddp_ctx * d, float *y, const float *x, size_t n), (d, y, x, n))
VERB(upload, broken, (ddp_ctx * d, float *y, const float *x, size_t n), (d, y, x, n))
VERB(late_apply, broken,
     (ddp_ctx * d, float *target, float *late, const float *own, size_t n, ddp_late rule, float f),
     (d, target, late, own, n, rule, f))
VERB(server_post, broken_there, (ddp_ctx * d, const ddp_message *m, long *ticket), (d, m, ticket))
VERB(server_wait, broken_there, (ddp_ctx * d, const long *tickets, int n), (d, tickets, n))

static float *counted_keep(ddp_ctx *d, int layer, const char *name, size_t n, int equal)
{
    return broken(d) ? NULL : (ddp_keep)(d, layer, name, n, equal);
}

/* Calls without a context count for the worker of this thread. Other threads (servers, makers of messages)
 * cannot be attributed, so all their calls count. */
static __thread const ddp_ctx *hook;

static int somebodys_turn(void) { return hook ? its_turn(hook) : ddp__atomic_add(&calls, 1) + 1 == fails_at; }

static void *counted_calloc(size_t n, size_t size)
{
    return somebodys_turn() ? NULL : (ddp__calloc)(n, size);
}

static ddp_blob counted_blob(size_t size)
{
    ddp_blob none;

    memset(&none, 0, sizeof none);
    return somebodys_turn() ? none : (ddp_blob_new)(size);
}

static ddp_status broken_sum(ddp_error *err) { return ddp__fail(err, DDP_NUMERIC, "the verb is broken"); }

#define SUM(name, params, args)                                       \
    static DDP__UNUSED ddp_status counted_##name params               \
    {                                                                 \
        return somebodys_turn() ? broken_sum(err) : (ddp_##name)args; \
    }
SUM(sparse_add, (const void *message, size_t bytes, int keep, float *x, size_t n, ddp_error *err),
    (message, bytes, keep, x, n, err))
SUM(osp_importance,
    (const float *gradient, const float *parameter, size_t n, int mean, double *out, ddp_error *err),
    (gradient, parameter, n, mean, out, err))
SUM(_osp_split,
    (ddp__osp * s, const double *importance, const double *bytes, double budget, ddp_osp_rule rule,
     unsigned char *gib, double *deferred, ddp_error *err),
    (s, importance, bytes, budget, rule, gib, deferred, err))
SUM(plan_new, (int layers, int period, ddp_plan *out, ddp_error *err), (layers, period, out, err))
SUM(osp_umax,
    (double bytes_per_s, double loss_rate, double compute_s, int workers, double model_bytes, int paper,
     double *out, ddp_error *err),
    (bytes_per_s, loss_rate, compute_s, workers, model_bytes, paper, out, err))
SUM(served_step, (const ddp_served *served, void *work, double *out, ddp_error *err),
    (served, work, out, err))

#define ddp_post           counted_post
#define ddp_hold           counted_hold
#define ddp_hold_input     counted_hold_input
#define ddp_average        counted_average
#define ddp_average_parts  counted_average_parts
#define ddp_average_hold   counted_average_hold
#define ddp_average_exact  counted_average_exact
#define ddp_update_layer   counted_update_layer
#define ddp_update_late    counted_update_late
#define ddp_update_copy    counted_update_copy
#define ddp_clip           counted_clip
#define ddp_axpy           counted_axpy
#define ddp_copy           counted_copy
#define ddp_scale          counted_scale
#define ddp_set            counted_set
#define ddp_norm2          counted_norm2
#define ddp_download       counted_download
#define ddp_upload         counted_upload
#define ddp_late_apply     counted_late_apply
#define ddp_server_post    counted_server_post
#define ddp_server_wait    counted_server_wait
#define ddp_keep           counted_keep
#define ddp__calloc        counted_calloc
#define ddp_blob_new       counted_blob
#define ddp_sparse_add     counted_sparse_add
#define ddp_osp_importance counted_osp_importance
#define ddp_osp_umax       counted_osp_umax
#define ddp__osp_split     counted__osp_split
#define ddp_plan_new       counted_plan_new
#define ddp_served_step    counted_served_step
#include "strategy/layers.c"
#include "strategy/gradient.c"
#include "strategy/gradient_plan.c"
#include "strategy/delayed.c"
#include "strategy/delayed_plan.c"
#include "strategy/local.c"
#include "strategy/outer.c"
#include "strategy/outer_late.c"
#include "strategy/outer_sparse.c"
#include "strategy/server_desk.c"
#include "strategy/server_line.c"
#include "strategy/server_osp.c"
#include "strategy/server_rules.c"
#include "strategy/table.c"
#undef ddp_set

/* Times that force deft to merge; and the same without forward times. */
static char profile[2][64];

static int write_profiles(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *forward = i ? "" : "1";
        FILE *f;
        snprintf(profile[i], sizeof profile[i], "build/verbs_fail_%ld_%d.csv", (long)getpid(), i);
        f = fopen(profile[i], "w");
        if (!f) return -1;
        fprintf(f,
                "layer,params,forward_s,backward_s,comm_s\nfirst,6,%s,2,4\none,1,%s,2,1\nfrozen,0,%s,2,0\n"
                "two,305,%s,2,12\nlast,7,%s,2,3\n",
                forward, forward, forward, forward, forward);
        fclose(f);
    }
    return 0;
}

static int remove_profiles(void **state)
{
    (void)state;
    return remove(profile[0]) || remove(profile[1]) ? -1 : 0;
}

/* "field value; field value"; PROFILE and NO_FORWARD are the files above */
static void set_fields(ddp_config *c, const char *text)
{
    static char copy[256]; /* c's strings point into it */
    char *rest = copy, *field;
    ddp_error err;

    snprintf(copy, sizeof copy, "%s", text);
    while ((field = rest) && *field) {
        char *value = strchr(field, ' ');
        rest = strchr(field, ';');
        if (rest) *rest++ = 0;
        assert_non_null(value);
        *value++ = 0;
        if (!strcmp(value, "PROFILE")) value = profile[0];
        if (!strcmp(value, "NO_FORWARD")) value = profile[1];
        if (ddp_config_set(c, field, value, &err)) fail_msg("%s", err.msg);
        if (rest) rest++;
    }
}

/* A model of five layers: one with buffers, one of a single value, one frozen, one of several arrays, one
 * plain. */
enum { LAYERS = 5, STEPS = 9 };

static int no_hooks; /* 1: does not call the hooks before a layer's forward and backward */
static int in_sites; /* four ranks, two in each site */

static int train(ddp_ctx *d)
{
    static const struct {
        const char *layer;
        int at, count, trained;
    } block[] = {{"first", 0, 6, 1}, {"first", 6, 2, 0},  {"one", 8, 1, 1},   {"frozen", 9, 4, 0},
                 {"two", 13, 5, 1},  {"two", 18, 300, 1}, {"last", 318, 7, 1}};
    const ddp_optimizer o = ddp_sgd(0.05f, 0.9f);
    float w[330], g[330];
    int bad = 0;

    memset(g, 0, sizeof g);
    for (int i = 0; i < 330; i++) w[i] = (float)(i % 11) * 0.1f;
    for (size_t i = 0; i < sizeof block / sizeof *block && !bad; i++)
        bad = ddp_add_block(d, block[i].layer, w + block[i].at, block[i].trained ? g + block[i].at : NULL,
                            (size_t)block[i].count);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && ddp_rank(d) >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    for (int step = 0; step < STEPS && !bad; step++) {
        ddp_step_info told;
        memset(&told, 0, sizeof told);
        told.samples = 4;
        told.loss = 2.0 / (1 + step);
        told.epoch = step * 0.5;
        for (int l = 0; l < LAYERS && !bad && !no_hooks; l++) bad = ddp_forward_begin(d, l);
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
            if (!no_hooks) bad = ddp_backward_begin(d, l);
            for (size_t i = 0; i < sizeof block / sizeof *block; i++)
                for (int k = block[i].at; k < block[i].at + block[i].count; k++)
                    if (!bad && block[i].trained && !strcmp(block[i].layer, ddp_name_of(d, l)))
                        g[k] += 0.3f * w[k] + 0.01f * (float)((ddp_rank(d) + 1) * (k % 7) + step);
            if (!bad) bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_report(d, &told);
        if (step == STEPS - 1 && ddp_rank(d) == victim) calls_heard = ddp__atomic_load(&calls);
        if (!bad) bad = ddp_step_end(d);
        if (!bad && step == STEPS / 2) bad = ddp_wait(d);
        if (!bad && step == STEPS / 2 + 1) bad = ddp_sync_all(d);
    }
    if (!bad) bad = ddp_wait(d);
    return bad ? bad : ddp_sync_all(d);
}

static int worker(ddp_ctx *d, void *user)
{
    int bad;

    (void)user;
    hook = d;
    if (in_sites) d->cfg.site = 1 + ddp_rank(d) / 2; /* one context per rank, as DREAMDDP_SITE sets it */
    bad = train(d);
    if (ddp_rank(d) == victim && !server_beside) calls_heard = ddp__atomic_load(&calls);
    return bad;
}

/* Returns the fields after an optional mark; *is: 1 = the mark is there. */
static const char *marked(const char *fields, const char *mark, int *is)
{
    *is = !strncmp(fields, mark, strlen(mark));
    return *is ? fields + strlen(mark) : fields;
}

static void make_run(ddp_config *c, const char *fields)
{
    memset(c, 0, sizeof *c);
    fields = marked(marked(fields, "no hooks; ", &no_hooks), "in sites; ", &in_sites);
    c->world = in_sites ? 4 : 2;
    c->period = 3;
    c->transport = DDP_THREADS;
    c->deterministic = 1;
    c->no_env = 1;
    c->timeout.peer_s = 60;
    set_fields(c, fields);
    if (c->server.count > 0) c->world += c->server.count;
}

/* The next call to fail: each third of the first and of the last calls (SWEEP=whole in the environment:
 * each), and some between in long runs. */
static long next_call(long n, long all)
{
    const char *sweep = getenv("SWEEP");
    const long step = sweep && !strcmp(sweep, "whole") ? 1 : SAMPLED(3) > 3 ? SAMPLED(3) : 3;

    return n + step * (n < 30 || n > all - 30 ? 1 : 1 + all / 50);
}

/* first: 0, 1 or 2, so that runs of the same strategy fail in different calls. */
static void every_verb_of(const char *fields, int rank, int first)
{
    long all = 1;

    for (long n = 0; n <= all; n = n ? next_call(n, all) : 1 + first) {
        ddp_error err;
        ddp_config c;
        int bad;
        make_run(&c, fields);
        if (rank >= c.world) return;
        victim = rank;
        calls = calls_heard = 0;
        server_beside = strstr(fields, "colocated") != NULL;
        fails_at = n; /* 0: counts all calls */
        bad = ddp_launch(&c, worker, NULL, &err);
        if (n == 0) {
            if (bad) fail_msg("%s: %s", fields, err.msg);
            all = calls;
        } else if (bad || calls_heard >= n) {
            if (!bad) fail_msg("%s: call %ld of rank %d failed and no error was reported", fields, n, rank);
            if (!strstr(err.msg, "the verb is broken") && !strstr(err.msg, "memory"))
                fail_msg("%s: call %ld of rank %d failed: '%s'", fields, n, rank, err.msg);
        }
    }
}

static void a_verb_that_fails_ends_the_run_with_its_error(void **state)
{
    static const char *const all[] = {
        "strategy ssgd; clip_norm 1",
        "strategy wfbp; bucket_bytes 16",
        "strategy wfbp; clip_norm 1; wire int8",
        "strategy ascwfbp; bucket_bytes 16",
        "strategy mgwfbp",
        "strategy bytescheduler; partition_bytes 256",
        "strategy usbyte; clip_norm 1; profile_path NO_FORWARD",
        "strategy deft; profile_path PROFILE",
        "strategy deft; profile_path PROFILE; merge_sum 1; net2 1gbit,0ms",
        "strategy deft; profile_path PROFILE; paper 1; partition_bytes 256",
        "strategy deft; profile_path PROFILE; update_frequency 0.9; wire int8",
        "strategy deft; deterministic 0; profile_steps 5; merge_sum 1; net 100mbit,0.2ms",
        "strategy deft; deterministic 0; profile_steps 4; net2 1gbit,0ms",
        "strategy deft; net 10mbit,1ms",
        "strategy localsgd; average_state 1",
        "strategy localsgd; clip_norm 1",
        "strategy localsgd; clip_norm 1; average_first 1",
        "strategy enp; average_state 1",
        "strategy enp; split_params 100",
        "strategy dreamddp; clip_norm 1",
        "strategy dreamddp; paper 1",
        "strategy dreamddp; cost sum; solver optimal",
        "strategy dreamddp; average_first 1; profile_path PROFILE; fill exact",
        "strategy diloco",
        "strategy diloco; wire int4; outer_momentum 0.5",
        "strategy diloco; outer_lr 1; outer_momentum 0",
        "strategy diloco; average_state 1; clip_norm 1",
        "strategy diloco; overlap stream; profile_path PROFILE",
        "strategy diloco; overlap stream; profile_path NO_FORWARD",
        "strategy diloco; overlap stream; fragments 2; landing 1; wire int8; clip_norm 1",
        "strategy diloco; overlap stream; fragments 2; landing 2; outer_lr 1; outer_momentum 0",
        "strategy diloco; overlap stream; average_state 1",
        "strategy diloco; overlap stream; deterministic 0; profile_steps 4; net 100mbit,0.2ms",
        "no hooks; strategy diloco; overlap stream; fragments 2; landing 1; average_state 1",
        "strategy diloco; overlap eager; clip_norm 1",
        "strategy diloco; overlap eager; average_state 1",
        "strategy diloco; overlap eager; compensation 0.5; wire e3m0",
        "strategy sparseloco",
        "in sites; strategy sparseloco",
        "strategy sparseloco; overlap stream; fragments 2; landing 1",
        "strategy sparseloco; overlap eager; topk_fraction 0.5",
        "strategy bsp; servers 1",
        "strategy bsp; servers colocated",
        "strategy asp; servers 1",
        "strategy asp; servers 1; paper 1",
        "strategy ssp; servers 2; staleness 1",
        "strategy r2sp; servers colocated",
        "strategy osp; servers 1; net 10mbit,0.1ms",
        "strategy osp; servers 1; defer 0.5",
        "strategy osp; servers colocated; defer 0.5; correct eager; lgp ema; paper 1",
        "strategy osp; servers 2; defer 0.7; lgp off",
        "strategy osp; servers 1; defer 0.5; paper 1; lgp on",
        "strategy osp; servers 1; defer 0.5; correct eager; deterministic 0",
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i += ALONE(4))
        for (int rank = 0; rank < 3; rank += strstr(all[i], "servers") ? 1 : 3) {
            if (getenv("CASE") && !strstr(all[i], getenv("CASE"))) continue;
            every_verb_of(all[i], rank, (int)(i + (size_t)rank) % 3);
        }
}

/* ---- plans of another rank ---- */

/* The change that the run below makes to a plan's bytes: a word, or the bytes removed. */
static long word;
static int32_t value;
static size_t missing;
static ddp_strategy_ops plain;

static void spoil(ddp_blob *b)
{
    if (missing > 24)
        b->size = missing - 25; /* bytes left */
    else
        b->size -= missing < b->size ? missing : b->size;
    if (word >= 0 && 4 * ((size_t)word + 1) <= b->size) memcpy(b->bytes + 4 * word, &value, sizeof value);
}

static int spoilt_make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    const int bad = plain.plan_make(d, self, p, measured, out);

    if (!bad) spoil(out);
    return bad;
}

/* Any 32-bit word of a plan may be wrong, and its end may be missing. The plan is then followed if it is
 * still valid, else it fails with an error. */
static void an_invalid_plan_is_an_error(void **state)
{
    static const char *const all[] = {
        "strategy dreamddp", "strategy mgwfbp", "strategy bytescheduler; partition_bytes 256",
        "strategy deft; profile_path PROFILE", "strategy diloco; overlap stream"};
    static const int32_t values[] = {-1, 0, 1, 7, 70000, 1 << 30, INT32_MAX, INT32_MIN};

    (void)state;
    fails_at = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int refused = 0, words = 0;
        for (long n = 0; n < 8 * 60; n += SAMPLED(3) * ALONE(3)) {
            ddp_strategy_ops ops;
            ddp_error err;
            ddp_config c;
            make_run(&c, all[i]);
            assert_true(ddp__strategy_fill(c.strategy, &plain));
            if (plain.settle) assert_int_equal(plain.settle(&plain, &c, &err), DDP_OK);
            ops = plain;
            ops.settle = NULL;
            ops.name = "spoilt";
            ops.plan_make = spoilt_make;
            c.own_strategy = &ops;
            word = n / 8 - 4;
            value = values[n % 8];
            missing = n < 32 ? (size_t)n + 1 : 0;
            words++;
            if (ddp_launch(&c, worker, NULL, &err) == DDP_OK) continue;
            refused++;
            if (strncmp(err.msg, "rank ", 5))
                fail_msg("%s: word %ld is %ld: '%s'", all[i], word, (long)value, err.msg);
        }
        print_message("    %s: %d of %d refused\n", all[i], refused, words);
        assert_true(refused > words / 8);
    }
}

/* ---- settings of one overlap mode with another ---- */

static void settings_of_another_overlap_mode_are_an_error(void **state)
{
    static const struct {
        const char *fields, *says;
    } all[] = {
        {"strategy diloco; mixture 0.5", "mixture, fragments and landing need overlap stream"},
        {"strategy diloco; fragments 2", "mixture, fragments and landing need overlap stream"},
        {"strategy diloco; overlap eager; landing 1", "mixture, fragments and landing need overlap stream"},
        {"strategy diloco; overlap stream; landing 1", "landing 1 needs fragments"},
        {"strategy diloco; compensation 0.5",
         "compensation 0.5 needs overlap eager, which applies deltas late"}};

    (void)state;
    fails_at = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ddp_error err;
        ddp_config c;
        make_run(&c, all[i].fields);
        assert_int_equal(ddp_launch(&c, worker, NULL, &err), DDP_ARG);
        if (!strstr(err.msg, all[i].says)) fail_msg("%s: '%s'", all[i].fields, err.msg);
    }
}

static void an_unknown_name_has_no_strategy(void **state)
{
    (void)state;
    assert_string_equal(ddp_strategy_name((ddp_strategy)99), "unknown");
    assert_int_equal(ddp_strategy_traits((ddp_strategy)99), 0);
    assert_int_equal(ddp_strategy_named("dream"), DDP_STRATEGY_DEFAULT);
    assert_int_equal(ddp_strategy_named(NULL), DDP_STRATEGY_DEFAULT);
    assert_int_equal(ddp_strategy_named("osp"), DDP_OSP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verb_that_fails_ends_the_run_with_its_error),
        cmocka_unit_test(an_invalid_plan_is_an_error),
        cmocka_unit_test(settings_of_another_overlap_mode_are_an_error),
        cmocka_unit_test(an_unknown_name_has_no_strategy),
    };
    return cmocka_run_group_tests(tests, write_profiles, remove_profiles);
}
