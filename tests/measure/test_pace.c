/* [asan] Stragglers are detected by their compute time, and plans are recomputed when a link changes. */
#include "dreamddp.h"
#include "context/context.h"
#include "measure/timing.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define WORLD  3 /* the usual number of ranks; MOST with sites */
#define MOST   4
#define LAYERS 6

typedef struct pace {
    int site[MOST];     /* site of each rank, or 0 for no sites */
    size_t count;       /* parameters of a layer */
    long steps, until;  /* rank 1 is a straggler until this step */
    double compute_s;   /* per layer, for each of forward and backward */
    int link;           /* the link whose seconds per byte are recorded */
    ddp_stats at[MOST]; /* at step `until`, and at the end */
    ddp_stats end[MOST];
    double before[MOST], after[MOST]; /* seconds per byte of the link: first and last measurement */
    uint64_t plan[MOST], last[MOST];
    ddp_note note[MOST][64];
    int notes[MOST];
    pthread_mutex_t lock;
    char lines[4000]; /* log lines of all ranks */
} pace;

static void note(void *user, ddp_log_level level, const char *line)
{
    pace *p = (pace *)user;
    size_t n;

    (void)level;
    pthread_mutex_lock(&p->lock);
    n = strlen(p->lines);
    snprintf(p->lines + n, sizeof p->lines - n, "%s\n", line);
    pthread_mutex_unlock(&p->lock);
}

static void compute(double seconds) { ddp_sleep_until(ddp_now() + seconds); }

static int worker(ddp_ctx *d, void *user)
{
    static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f"};
    pace *p = (pace *)user;
    float *x = (float *)calloc(2 * LAYERS * p->count, sizeof *x);
    int r = ddp_rank(d), bad = 0, l;

    d->cfg.site = p->site[r]; /* a different site per rank, as with DREAMDDP_SITE */
    for (l = 0; !bad && l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.name = names[l];
        layer.params = x + (size_t)(2 * l) * p->count;
        layer.grads = layer.params + p->count;
        layer.count = p->count;
        bad = ddp_add_layer(d, &layer);
    }
    for (long step = 0; !bad && step < p->steps; step++) {
        double s = p->compute_s * (r == 1 && step < p->until ? 2 : 1);
        for (l = 0; !bad && l < LAYERS; l++) {
            bad = ddp_forward_begin(d, l);
            compute(s);
        }
        for (l = LAYERS - 1; !bad && l >= 0; l--) {
            ddp_backward_begin(d, l);
            compute(s);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        if (step + 1 == p->until) ddp_get_stats(d, &p->at[r]);
        if (step == 8) {
            p->before[r] = ddp__link_is(d, p->link).beta_s;
            p->plan[r] = ddp_plan_get(d) ? ddp_plan_hash(ddp_plan_get(d)) : 0;
        }
    }
    ddp_get_stats(d, &p->end[r]);
    p->notes[r] = ddp_notes(d, p->note[r], 64);
    p->after[r] = ddp__link_is(d, p->link).beta_s;
    p->last[r] = ddp_plan_get(d) ? ddp_plan_hash(ddp_plan_get(d)) : 0;
    if (!bad) bad = ddp_sync_all(d);
    free(x);
    return bad;
}

static void train(pace *p, ddp_config *cfg)
{
    ddp_error err;

    if (!cfg->world) cfg->world = WORLD;
    cfg->no_env = 1;
    cfg->transport = DDP_THREADS;
    cfg->logger.fn = note;
    cfg->logger.user = p;
    cfg->logger.level = DDP_LOG_INFO;
    pthread_mutex_init(&p->lock, NULL);
    if (ddp_simulate(cfg, NULL, worker, p, NULL, &err)) fail_msg("%s", err.msg);
    pthread_mutex_destroy(&p->lock);
}

static int occurrences(const char *text, const char *of)
{
    int n = 0;

    for (; (text = strstr(text, of)) != NULL; text++) n++;
    return n;
}

/* Checks the stragglers that all ranks detected. wrong: a description of the failure, or "". */
static void judge(const pace *p, char *wrong, size_t room)
{
    wrong[0] = 0;
    for (int r = 0; r < WORLD; r++) {
        double own = p->at[r].compute_s / p->at[r].median_compute_s;
        int slow = 0, even = 0;
        if (p->at[r].slowest_rank != 1 || !(p->at[r].slow_ratio > 1.5 && p->at[r].slow_ratio < 2.4))
            snprintf(wrong, room, "rank %d: rank %d is slow by %g", r, p->at[r].slowest_rank,
                     p->at[r].slow_ratio);
        if (r == 1 ? !(own > 1.5) : !(own > 0.7 && own < 1.4)) snprintf(wrong, room, "rank %d: %g", r, own);
        if (!(p->end[r].slow_ratio > 0.99 && p->end[r].slow_ratio < 1.5))
            snprintf(wrong, room, "rank %d: still slow by %g", r, p->end[r].slow_ratio);
        for (int i = 0; i < p->notes[r]; i++) { /* every rank has the notes, not only the one that logs */
            const ddp_note *n = &p->note[r][i];
            double ratio = n->now / n->before;
            if (n->rank != 1) continue;
            if (n->kind == DDP_NOTE_SLOW && n->step < p->until && ratio > 1.25 && ratio < 2.4) slow++;
            if (n->kind == DDP_NOTE_EVEN && n->step > p->until && slow > 0) even++;
        }
        if (slow < 1 || even < 1)
            snprintf(wrong, room, "rank %d: %d notes: %d, %d", r, p->notes[r], slow, even);
    }
    if (occurrences(p->lines, "rank 1 computes ") < 2 || !strstr(p->lines, "x slower than the median (") ||
        !strstr(p->lines, "rank 1 computes as fast as the others again") ||
        strstr(p->lines, "rank 0 computes ") || strstr(p->lines, "rank 2 computes "))
        snprintf(wrong, room, "%s", p->lines);
}

static void straggler_is_reported_until_it_recovers(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_LOCALSGD, DDP_DREAMDDP};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char wrong[4096] = "";
        static pace p;
        ddp_config cfg;
        memset(&p, 0, sizeof p);
        memset(&cfg, 0, sizeof cfg);
        cfg.strategy = strategies[i];
        cfg.period = 2;
        cfg.profile_steps = i == 2 ? 4 : -1; /* with measured and with unmeasured plans */
        p.count = 30;
        p.steps = 48;
        p.until = 24; /* times are exchanged in steps 4, 12, 20, ...; the results arrive two steps later */
        p.compute_s = 0.002;
        train(&p, &cfg);
        judge(&p, wrong, sizeof wrong);
        if (wrong[0]) fail_msg("%s", wrong);
    }
}

/* A device that two ranks use in turns. */
typedef struct shared {
    double free_at; /* when the device is free again */
    double seconds, predicted;
} shared;

static void use(shared *x)
{
    const double now = ddp_now();

    x->free_at = (x->free_at > now ? x->free_at : now) + x->seconds;
    ddp_sleep_until(x->free_at);
}

/* In its first step, rank 1 takes as long as all timed steps of rank 0. */
static int shares(ddp_ctx *d, void *user)
{
    shared *x = (shared *)user;
    float w[2] = {0, 0}, g[2] = {0, 0};
    ddp_stats stats;
    int bad = 0;

    for (int l = 0; !bad && l < 2; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = &w[l];
        layer.grads = &g[l];
        layer.count = 1;
        bad = ddp_add_layer(d, &layer);
    }
    for (long step = 0; !bad && step < 8; step++) {
        for (int l = 0; !bad && l < 2; l++) {
            bad = ddp_forward_begin(d, l);
            if (step == 0 && ddp_rank(d)) ddp_sleep_until(ddp_now() + 0.2);
            use(x);
        }
        for (int l = 1; !bad && l >= 0; l--) {
            ddp_backward_begin(d, l);
            use(x);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    ddp_get_stats(d, &stats);
    if (ddp_rank(d) == 0) x->predicted = stats.predicted_step_s;
    return bad ? bad : ddp_sync_all(d);
}

/* A step has four turns per rank, so two ranks need eight. */
static void prediction_includes_sharing_of_a_device(void **state)
{
    shared x;
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&x, 0, sizeof x);
    memset(&cfg, 0, sizeof cfg);
    x.seconds = 0.005;
    cfg.world = 2;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    cfg.strategy = DDP_LOCALSGD;
    cfg.period = 50;
    cfg.profile_steps = 6;
    if (ddp_simulate(&cfg, NULL, shares, &x, NULL, &err)) fail_msg("%s", err.msg);
    if (!(x.predicted > 1.5 * 4 * x.seconds))
        fail_msg("a step is predicted as %g s; one rank alone takes %g s", x.predicted, 4 * x.seconds);
}

/* Writes a file. name ends in XXXXXX and `more` further characters. */
static void write_file(char *name, int more, const char *text)
{
    int fd = mkstemps(name, more);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (long)strlen(text));
    close(fd);
}

typedef struct follower {
    pace p;
    ddp_config cfg;
} follower;

/* Trains over links of which one becomes slower after the first plan. */
static void follow_train(follower *f)
{
    f->cfg.period = 3;
    f->p.count = 15000;
    f->p.steps = 90;
    f->p.until = -1;
    f->p.compute_s = 0.006;
    train(&f->p, &f->cfg);
}

/* Checks the plans. wrong: a description of the failure, or "". */
static void follow_judge(const pace *p, int world, char *wrong, size_t room)
{
    for (int r = 0; r < world && !wrong[0]; r++) {
        long told = 0;
        if (p->end[r].replans < 1 || !(p->after[r] > 1.2 * p->before[r]))
            snprintf(wrong, room, "rank %d: %ld plans, %g then %g s per byte: %s", r, p->end[r].replans,
                     p->before[r], p->after[r], p->lines);
        for (int i = 0; i < p->notes[r]; i++) {
            const ddp_note *n = &p->note[r][i];
            char sentence[128];
            if (n->kind != DDP_NOTE_REPLAN) continue;
            told++;
            ddp_note_text(n, sentence, sizeof sentence);
            if (!(n->now > 1.2 * n->before || n->now < 0.8 * n->before) || n->workers != world ||
                !strstr(sentence, n->now > n->before ? "% longer than" : "% less than"))
                fail_msg("%g then %g s: %s", n->before, n->now, sentence);
        }
        if (told != p->end[r].replans) fail_msg("%ld notes of %ld plans", told, p->end[r].replans);
        assert_true(p->last[r] == p->last[0] && p->plan[r] == p->plan[0]);
    }
    if (!wrong[0] && (!strstr(p->lines, "planning again") ||
                      (p->link && !strstr(p->lines, "averaging a layer over the second link now takes"))))
        snprintf(wrong, room, "%s", p->lines);
}

static char script[32], network[2][32]; /* files of the current runs, or "" */

/* make: prepares the runs. */
static void follow(follower *f, int runs, void (*make)(follower *f))
{
    static char wrong[4096];

    memset(f, 0, (size_t)runs * sizeof *f);
    make(f);
    for (int i = 0; i < runs; i++) follow_train(&f[i]);
    for (int i = 0; i < 3; i++) {
        char *name = i < 2 ? network[i] : script;
        if (name[0]) unlink(name);
        name[0] = 0;
    }
    wrong[0] = 0;
    for (int i = 0; i < runs; i++) {
        follow_judge(&f[i].p, f[i].cfg.world, wrong, sizeof wrong);
        if (wrong[0]) fail_msg("%s", wrong);
    }
}

/* A lost straggler does not recover. */
static void straggler_that_is_lost_is_not_reported_as_recovered(void **state)
{
    static pace p;
    ddp_config cfg;
    int slow = 0, lost = 0;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&cfg, 0, sizeof cfg);
    snprintf(script, sizeof script, "/tmp/test_pace.XXXXXX");
    write_file(script, 0, "t=0.5 kill 1\n");
    cfg.strategy = DDP_SSGD;
    cfg.period = 2;
    cfg.profile_steps = -1;
    cfg.elastic.min_world = 2;
    cfg.network.net_script = script;
    p.count = 30;
    p.steps = p.until = 40; /* it is reported in step 6. Step 14 compares the times of the others. */
    p.compute_s = 0.002;
    train(&p, &cfg);
    unlink(script);
    script[0] = 0;
    for (int i = 0; i < p.notes[0]; i++) {
        slow += p.note[0][i].kind == DDP_NOTE_SLOW && p.note[0][i].rank == 1;
        lost += p.note[0][i].kind == DDP_NOTE_LOST && p.note[0][i].rank == 1;
        assert_true(p.note[0][i].kind != DDP_NOTE_EVEN);
    }
    if (slow != 1 || lost != 1 || strstr(p.lines, "as fast as the others again"))
        fail_msg("%d and %d notes: %s", slow, lost, p.lines);
}

static void make_slower(follower *f)
{
    snprintf(script, sizeof script, "/tmp/test_pace.XXXXXX");
    write_file(script, 0, "t=1.5 slow 0 to 10mbit\n");
    f->cfg.world = WORLD;
    f->cfg.strategy = DDP_DREAMDDP;
    f->cfg.net = "40mbit,1ms";
    f->cfg.network.net_script = script;
}

/* The rate of rank 0's link falls from 40 to 10 Mbit/s during training. */
static void plan_is_recomputed_when_a_link_becomes_slower(void **state)
{
    static follower f;

    (void)state;
    follow(&f, 1, make_slower);
}

static void make_second(follower *f)
{
    static const ddp_strategy strategies[] = {DDP_DEFT, DDP_DREAMDDP};
    snprintf(network[0], sizeof network[0], "/tmp/test_pace_XXXXXX.json");
    write_file(network[0], 5,
               "{\"groups\": [\"A\"], \"devices_per_group\": [3], \"delay_ms\": [[1]],"
               " \"bandwidth_gbps\": [[10]], \"host_gbps\": [0.04],"
               " \"events\": [\"t=4 slow 0 to 10mbit\"]}");
    for (int i = 0; i < 2; i++) {
        f[i].p.link = 1;
        f[i].cfg.world = WORLD;
        f[i].cfg.strategy = strategies[i];
        f[i].cfg.deft.update_frequency = i ? 0 : 0.5;
        f[i].cfg.net = "40mbit,1ms";
        f[i].cfg.network.net2 = network[0];
    }
}

/* The second of two links becomes slower, the first does not. In deft the plan chooses the link of each
 * message, in dreamddp the balance of the links does. */
static void plan_is_recomputed_when_the_second_link_becomes_slower(void **state)
{
    static follower f[2];

    (void)state;
    follow(f, 2, make_second);
}

static void make_sites(follower *f)
{
    char text[256];

    snprintf(script, sizeof script, "/tmp/test_pace.XXXXXX");
    write_file(script, 0, "t=1.5 slow 0 to 30mbit\n");
    for (int unlike = 0; unlike < 2; unlike++) {
        snprintf(network[unlike], sizeof network[unlike], "/tmp/test_pace_XXXXXX.json");
        snprintf(text, sizeof text,
                 "{\"groups\": [\"A\", \"B\"], \"devices_per_group\": [2, %d],"
                 " \"delay_ms\": [[0.1, 1], [1, 0.1]], \"bandwidth_gbps\": [[0.8, 0.04], [0.04, 0.8]],"
                 " \"host_gbps\": [0.8, 0.8]}",
                 2 - unlike);
        write_file(network[unlike], 5, text);
        f[unlike].cfg.world = 4 - unlike;
        f[unlike].cfg.strategy = DDP_DREAMDDP;
        f[unlike].cfg.net = network[unlike];
        f[unlike].cfg.network.net_script = script;
        for (int r = 0; r < 4 - unlike; r++) f[unlike].p.site[r] = 1 + r / 2;
    }
}

/* Two sites with 800 Mbit/s inside and 40 Mbit/s between them. Then rank 0's link falls to 30 Mbit/s. */
static void plan_is_recomputed_when_the_link_between_sites_becomes_slower(void **state)
{
    static follower f[2];

    (void)state;
    follow(f, 2, make_sites);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(straggler_is_reported_until_it_recovers),
        cmocka_unit_test(straggler_that_is_lost_is_not_reported_as_recovered),
        cmocka_unit_test(prediction_includes_sharing_of_a_device),
        cmocka_unit_test(plan_is_recomputed_when_a_link_becomes_slower),
        cmocka_unit_test(plan_is_recomputed_when_the_second_link_becomes_slower),
        cmocka_unit_test(plan_is_recomputed_when_the_link_between_sites_becomes_slower),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
