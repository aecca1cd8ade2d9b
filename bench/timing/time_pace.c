/* Slow ranks and slower links on the real clock. Measures durations: run it alone on an idle machine. The
 * assertions on the virtual clock are in tests/measure/test_pace.c. */
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

#define WORLD  3 /* MOST with sites */
#define MOST   4
#define LAYERS 6

typedef struct pace {
    int site[MOST];     /* of each rank, or 0 for no hierarchical all-reduce */
    size_t count;       /* parameters of a layer */
    long steps, until;  /* rank 1 is slow until that step */
    double compute_s;   /* of a layer, forward and backward each */
    int link;           /* the link whose seconds per byte are recorded */
    ddp_stats at[MOST]; /* after `until` steps, */
    ddp_stats end[MOST];
    double before[MOST], after[MOST]; /* seconds per byte of the link: first measured, last */
    uint64_t plan[MOST], last[MOST];
    ddp_note note[MOST][64];
    int notes[MOST];
    pthread_mutex_t lock;
    char lines[4000]; /* of all ranks */
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

/* Sleeps, and subtracts the lateness of earlier wake-ups: on a busy machine it is milliseconds, which would
 * hide the straggler. */
static void compute(double seconds, double *late)
{
    double begin = ddp_now(), rest = seconds - *late;
    struct timespec pause;

    pause.tv_sec = 0;
    pause.tv_nsec = (long)(1e9 * rest);
    if (rest > 0) nanosleep(&pause, NULL);
    *late += ddp_now() - begin - seconds;
}

static int worker(ddp_ctx *d, void *user)
{
    static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f"};
    pace *p = (pace *)user;
    float *x = (float *)calloc(2 * LAYERS * p->count, sizeof *x);
    double late = 0;
    int r = ddp_rank(d), bad = 0, l;

    d->cfg.site = p->site[r]; /* each rank has its own value, as with DREAMDDP_SITE */
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
            compute(s, &late);
        }
        for (l = LAYERS - 1; !bad && l >= 0; l--) {
            ddp_backward_begin(d, l);
            compute(s, &late);
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
    if (ddp_launch(cfg, worker, p, &err)) fail_msg("%s", err.msg);
    pthread_mutex_destroy(&p->lock);
}

static int occurrences(const char *text, const char *of)
{
    int n = 0;

    for (; (text = strstr(text, of)) != NULL; text++) n++;
    return n;
}

/* Returns the first error in the findings of all ranks, or "" for none. */
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
        for (int i = 0; i < p->notes[r]; i++) { /* every rank has the note, not only the one that logs */
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

static void the_slow_rank_is_named_until_it_is_slow_no_more(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_LOCALSGD, DDP_DREAMDDP};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char wrong[4096] = "";
        for (int attempt = 0; attempt < 4; attempt++) { /* slower on a busy machine */
            static pace p;
            ddp_config cfg;
            memset(&p, 0, sizeof p);
            memset(&cfg, 0, sizeof cfg);
            cfg.strategy = strategies[i];
            cfg.period = 2;
            cfg.profile_steps = i == 2 ? 4 : -1; /* with measured and with unmeasured plans */
            p.count = 30;
            p.steps = 48;
            p.until = 24; /* exchanges: steps 4, 12, 20, ...; their results two steps later */
            p.compute_s = 0.002 * (1 << attempt);
            train(&p, &cfg);
            judge(&p, wrong, sizeof wrong);
            if (!wrong[0]) break;
        }
        if (wrong[0]) fail_msg("%s", wrong);
    }
}

/* A device that two ranks use in turn, for that time each. */
typedef struct shared {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    long asked, served;
    double seconds, predicted;
} shared;

static void use(shared *x)
{
    struct timespec pause;
    long turn;

    pause.tv_sec = 0;
    pause.tv_nsec = (long)(1e9 * x->seconds);
    pthread_mutex_lock(&x->lock);
    turn = x->asked++;
    while (x->served != turn) pthread_cond_wait(&x->freed, &x->lock);
    pthread_mutex_unlock(&x->lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&x->lock);
    x->served++;
    pthread_cond_broadcast(&x->freed);
    pthread_mutex_unlock(&x->lock);
}

/* Rank 1's first step takes as long as all timed steps of rank 0. */
static int shares(ddp_ctx *d, void *user)
{
    shared *x = (shared *)user;
    float w[2] = {0, 0}, g[2] = {0, 0};
    struct timespec warm;
    ddp_stats stats;
    int bad = 0;

    warm.tv_sec = 0;
    warm.tv_nsec = 200000000;
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
            if (step == 0 && ddp_rank(d)) nanosleep(&warm, NULL);
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

/* A step with four turns takes as long as eight turns. */
static void ranks_that_share_a_device_are_timed_sharing_it(void **state)
{
    shared x;
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&x, 0, sizeof x);
    memset(&cfg, 0, sizeof cfg);
    pthread_mutex_init(&x.lock, NULL);
    pthread_cond_init(&x.freed, NULL);
    x.seconds = 0.005;
    cfg.world = 2;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    cfg.strategy = DDP_LOCALSGD;
    cfg.period = 50;
    cfg.profile_steps = 6;
    if (ddp_launch(&cfg, shares, &x, &err)) fail_msg("%s", err.msg);
    if (!(x.predicted > 1.5 * 4 * x.seconds))
        fail_msg("a step of %g s, of %g s alone", x.predicted, 4 * x.seconds);
    pthread_cond_destroy(&x.freed);
    pthread_mutex_destroy(&x.lock);
}

/* Writes a file with a text. name ends in XXXXXX and a suffix of that length. */
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
    int later;
} follower;

/* Trains over links of which one becomes slower after the first plan. On a busy machine it becomes slower
 * `later` times as late. */
static void *follow_train(void *user)
{
    follower *f = (follower *)user;

    f->cfg.period = 3;
    f->p.count = 15000;
    f->p.steps = 90 * f->later;
    f->p.until = -1;
    f->p.compute_s = 0.006;
    train(&f->p, &f->cfg);
    return NULL;
}

/* Returns the error, or "" for none. */
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

static char script[32], network[2][32]; /* files of the next runs, or "" */

/* Two runs at once, which mostly wait. Retries with more time on a busy machine. make: fills them. */
static void follow(follower *f, int runs, void (*make)(follower *f))
{
    static char wrong[4096];

    for (int later = 1; later <= 8; later *= 2) {
        pthread_t first;
        memset(f, 0, (size_t)runs * sizeof *f);
        for (int i = 0; i < runs; i++) f[i].later = later;
        make(f);
        if (runs > 1) assert_int_equal(pthread_create(&first, NULL, follow_train, &f[1]), 0);
        (void)follow_train(&f[0]);
        if (runs > 1) assert_int_equal(pthread_join(first, NULL), 0);
        for (int i = 0; i < 3; i++) {
            char *name = i < 2 ? network[i] : script;
            if (name[0]) unlink(name);
            name[0] = 0;
        }
        wrong[0] = 0;
        for (int i = 0; i < runs && !wrong[0]; i++)
            follow_judge(&f[i].p, f[i].cfg.world, wrong, sizeof wrong);
        if (!wrong[0]) return;
    }
    fail_msg("%s", wrong);
}

static void make_slower(follower *f)
{
    char text[64];

    snprintf(script, sizeof script, "/tmp/test_pace.XXXXXX");
    snprintf(text, sizeof text, "t=%g slow 0 to 10mbit\n", 1.5 * f->later);
    write_file(script, 0, text);
    f->cfg.world = WORLD;
    f->cfg.strategy = DDP_DREAMDDP;
    f->cfg.net = "40mbit,1ms";
    f->cfg.network.net_script = script;
}

/* Rank 0's access link falls from 40 to 10 Mbit/s during the training. */
static void the_plan_follows_a_link_that_becomes_slower(void **state)
{
    static follower f;

    (void)state;
    follow(&f, 1, make_slower);
}

static void make_second(follower *f)
{
    static const ddp_strategy strategies[] = {DDP_DEFT, DDP_DREAMDDP};
    char text[256];

    snprintf(network[0], sizeof network[0], "/tmp/test_pace_XXXXXX.json");
    snprintf(text, sizeof text,
             "{\"groups\": [\"A\"], \"devices_per_group\": [3], \"delay_ms\": [[1]],"
             " \"bandwidth_gbps\": [[10]], \"host_gbps\": [0.04],"
             " \"events\": [\"t=%d slow 0 to 10mbit\"]}",
             4 * f->later);
    write_file(network[0], 5, text);
    for (int i = 0; i < 2; i++) {
        f[i].p.link = 1;
        f[i].cfg.world = WORLD;
        f[i].cfg.strategy = strategies[i];
        f[i].cfg.deft.update_frequency = i ? 0 : 0.5;
        f[i].cfg.net = "40mbit,1ms";
        f[i].cfg.network.net2 = network[0];
    }
}

/* The second of two links becomes slower. deft's plan assigns messages to links; dreamddp balances them. */
static void the_plan_follows_the_second_link(void **state)
{
    static follower f[2];

    (void)state;
    follow(f, 2, make_second);
}

static void make_sites(follower *f)
{
    char text[256];

    snprintf(script, sizeof script, "/tmp/test_pace.XXXXXX");
    snprintf(text, sizeof text, "t=%g slow 0 to 30mbit\n", 1.5 * f->later);
    write_file(script, 0, text);
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

/* Two sites, 800 Mbit/s inside and 40 between; then 30 for rank 0 to every rank. */
static void the_plan_follows_the_link_between_sites(void **state)
{
    static follower f[2];

    (void)state;
    follow(f, 2, make_sites);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slow_rank_is_named_until_it_is_slow_no_more),
        cmocka_unit_test(ranks_that_share_a_device_are_timed_sharing_it),
        cmocka_unit_test(the_plan_follows_a_link_that_becomes_slower),
        cmocka_unit_test(the_plan_follows_the_second_link),
        cmocka_unit_test(the_plan_follows_the_link_between_sites),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
