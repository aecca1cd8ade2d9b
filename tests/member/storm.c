/* A process of a run, for bench/storm.py, which injects faults, and for soak.py --day. It has one or more
 * ranks, each a thread with its own context, that train a small network on points of a curved surface.
 *
 *   storm [ranks=1] [step_ms=0] [last=N] [note=1] [lr=0.05] [folder=F save=N] FIELD=VALUE...
 *
 * FIELD=VALUE sets a field of ddp_config; rank is the rank of the first thread. The process reads commands
 * from standard input, one per line:
 *   last N        all ranks stop after N steps
 *   cut N SEED    breaks N connections of this process, chosen by SEED, or 0 for all
 *   slow RANK MS  the rank computes nothing for MS milliseconds
 * It writes events to standard output, one per line, with times of CLOCK_MONOTONIC:
 *   in RANK STEP TIME LOSS      begins its first step; LOSS over the same points on all ranks
 *   step RANK STEPS TIME WORKERS LOSS AVERAGED KIB
 *   lost RANK STEPS TIME WHO, joined ...
 *   saved RANK STEPS TIME
 *   end RANK STEPS TIME LOSS HASH
 *   error RANK STEPS TIME CODE TEXT */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { RANKS = 8, LAYERS = 8, BATCH = 16, POINTS = 256, WIDE = 32, FDS = 1024 };
static const int width[LAYERS + 1] = {2, WIDE, WIDE, WIDE, WIDE, WIDE, WIDE, WIDE, 1};

typedef struct network {
    float *w[LAYERS], *g[LAYERS]; /* weights, then biases; gradients */
    float a[LAYERS + 1][BATCH][WIDE], d[LAYERS + 1][BATCH][WIDE];
} network;

static ddp_config cfg;
static int ranks = 1, step_ms, note = 1, save_every;
static const char *folder;
static float lr = 0.05f;
static long last = 1L << 40;            /* atomic */
static int slow_ms[DDP__ELASTIC_WORLD]; /* atomic */

static size_t count_of(int l) { return (size_t)((width[l] + 1) * width[l + 1]); }

static long kib_resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long all, pages = 0;

    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* ---- the network ---- */

static void points(network *n, ddp_rng *r)
{
    for (int i = 0; i < 2 * BATCH; i++) n->a[0][i / 2][i % 2] = (float)(2 * ddp_rng_uniform(r) - 1);
}

static double forward(network *n)
{
    double sum = 0;

    for (int l = 0; l < LAYERS; l++)
        for (int b = 0; b < BATCH; b++)
            for (int o = 0; o < width[l + 1]; o++) {
                float s = n->w[l][width[l] * width[l + 1] + o];
                for (int i = 0; i < width[l]; i++) s += n->w[l][o * width[l] + i] * n->a[l][b][i];
                n->a[l + 1][b][o] = l + 1 < LAYERS ? tanhf(s) : s;
            }
    for (int b = 0; b < BATCH; b++) {
        const float e = n->a[LAYERS][b][0] - sinf(3 * n->a[0][b][0]) * cosf(2 * n->a[0][b][1]);
        sum += (double)e * (double)e / (double)BATCH;
        n->d[LAYERS][b][0] = 2 * e / (float)BATCH;
    }
    return sum;
}

static void backward_layer(network *n, int l)
{
    memset(n->d[l], 0, sizeof n->d[l]);
    for (int b = 0; b < BATCH; b++)
        for (int o = 0; o < width[l + 1]; o++) {
            const float y = n->a[l + 1][b][o], t = n->d[l + 1][b][o] * (l + 1 < LAYERS ? 1 - y * y : 1);
            n->g[l][width[l] * width[l + 1] + o] += t;
            for (int i = 0; i < width[l]; i++) n->g[l][o * width[l] + i] += t * n->a[l][b][i];
            for (int i = 0; i < width[l]; i++) n->d[l][b][i] += t * n->w[l][o * width[l] + i];
        }
}

static double loss_of_all(network *n)
{
    ddp_rng r = ddp_rng_seed(99, 0);
    double sum = 0;

    for (int i = 0; i < POINTS / BATCH; i++) {
        points(n, &r);
        sum += forward(n);
    }
    return sum / (POINTS / BATCH);
}

/* ---- a rank ---- */

/* Whether the step that has just ended averaged parameters. */
static int averaged(const ddp_ctx *d)
{
    const ddp_plan *p = ddp_plan_get(d);
    const ddp_strategy s = cfg.strategy ? cfg.strategy : DDP_DREAMDDP;
    const long step = ddp_step(d) - 1;
    int n = 0;

    if (s == DDP_LOCALSGD || s == DDP_DILOCO || s == DDP_SPARSELOCO)
        return (step + 1) % (cfg.period ? cfg.period : 5) == 0;
    if (!p) return 1;
    for (int l = 0; l < p->layers; l++) n += p->step_of[l] == step % p->period;
    return n > 0;
}

/* Prints the workers that were lost or joined since the last call. */
static void say_notes(const ddp_ctx *d, double *heard)
{
    ddp_note n[64];
    const int count = ddp_notes(d, n, 64);

    for (int i = 0; i < count; i++) {
        if (n[i].time_s <= *heard || (n[i].kind != DDP_NOTE_LOST && n[i].kind != DDP_NOTE_JOINED)) continue;
        printf("%s %d %ld %.4f %d\n", ddp_note_name(n[i].kind), ddp_rank(d), n[i].step, n[i].time_s,
               n[i].rank);
    }
    if (count) *heard = n[count - 1].time_s;
}

/* The forward pass takes a third of the step, and the backward passes of all layers take equal parts of the
 * rest. */
static int step_once(ddp_ctx *d, network *n, double *loss)
{
    const int hooks = (ddp_strategy_traits(cfg.strategy) & DDP_NEEDS_FORWARD) != 0;
    const double begin = ddp_now() + 1e-3 * ddp__atomic_swap(&slow_ms[ddp_rank(d)], 0),
                 third = step_ms / 3000.0;
    ddp_rng r = ddp_rng_seed((uint64_t)(1 + ddp_rank(d)), (uint64_t)ddp_step(d));

    for (int l = 0; hooks && l < LAYERS; l++)
        if (ddp_forward_begin(d, l)) return 1;
    points(n, &r);
    *loss = forward(n);
    ddp_sleep_until(begin + third);
    for (int l = LAYERS - 1; l >= 0; l--) {
        backward_layer(n, l);
        ddp_sleep_until(begin + third * (1 + 2.0 * (LAYERS - l) / (double)LAYERS));
        if (ddp_backward_end(d, l)) return 1;
    }
    return ddp_step_end(d);
}

static int train(ddp_ctx *d, network *n)
{
    const int rank = ddp_rank(d);
    ddp_optimizer o = ddp_sgd(lr, 0.9f);
    double heard = 0, loss = 0;
    uint64_t hash = 0;

    for (int l = 0; l < LAYERS; l++) {
        ddp_rng r = ddp_rng_seed(1, (uint64_t)l);
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.count = count_of(l);
        layer.params = n->w[l] = (float *)calloc(layer.count, sizeof(float));
        layer.grads = n->g[l] = (float *)calloc(layer.count, sizeof(float));
        if (!n->w[l] || !n->g[l]) return DDP_MEMORY;
        for (size_t i = 0; i < layer.count; i++) n->w[l][i] = (float)(ddp_rng_normal(&r) / sqrt(width[l]));
        if (ddp_add_layer(d, &layer)) return 1;
    }
    if (ddp_set_optimizer(d, &o)) return 1;
    if (ddp_servers(d) && rank >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    printf("in %d %ld %.4f %.6f\n", rank, ddp_step(d), ddp_now(), loss_of_all(n));
    while (ddp_step(d) < ddp__atomic_load(&last)) {
        if (step_once(d, n, &loss)) return 1;
        say_notes(d, &heard);
        if (ddp_step(d) % note == 0)
            printf("step %d %ld %.4f %d %.6f %d %ld\n", rank, ddp_step(d), ddp_now(), ddp_workers(d), loss,
                   averaged(d), kib_resident());
        if (!save_every || ddp_step(d) % save_every) continue;
        if (ddp_checkpoint_save(d, folder, 2)) return 1;
        printf("saved %d %ld %.4f\n", rank, ddp_step(d), ddp_now());
    }
    if (ddp_sync_all(d)) return 1;
    for (int l = 0; l < LAYERS; l++) hash = ddp_hash_floats(hash, n->w[l], count_of(l));
    printf("end %d %ld %.4f %.6f %016" PRIx64 "\n", rank, ddp_step(d), ddp_now(), loss_of_all(n), hash);
    return 0;
}

static void *rank_main(void *arg)
{
    ddp_config c = cfg;
    ddp_error err;
    network *n = (network *)calloc(1, sizeof *n);
    ddp_ctx *d = NULL;
    long code = 0;

    memset(&err, 0, sizeof err);
    c.rank += (int)(intptr_t)arg;
    if (n) d = ddp_open(&c, &err);
    if (!d || train(d, n)) {
        if (d) err = *ddp_last_error(d);
        code = err.code;
        printf("error %d %ld %.4f %d %s\n", d ? ddp_rank(d) : -1, d ? ddp_step(d) : -1L, ddp_now(), err.code,
               err.msg);
    }
    ddp_close(d);
    for (int l = 0; n && l < LAYERS; l++) {
        free(n->w[l]);
        free(n->g[l]);
    }
    free(n);
    return (void *)(intptr_t)code;
}

/* ---- orders ---- */

static int connected(int fd)
{
    struct sockaddr_in at;
    socklen_t size = sizeof at;

    return !getpeername(fd, (struct sockaddr *)&at, &size) && at.sin_family == AF_INET;
}

/* Breaks connections as a router that forgets them: both ends see the end in the middle of a frame. */
static void cut(int many, uint64_t seed)
{
    ddp_rng r = ddp_rng_seed(seed, 0);
    int fds[FDS], n = 0;

    for (int fd = 3; fd < FDS; fd++)
        if (connected(fd)) fds[n++] = fd;
    if (many == 0 || many > n) many = n;
    for (int i = 0; i < many; i++) {
        const int k = i + (int)ddp_rng_below(&r, (uint64_t)(n - i)), fd = fds[k];
        fds[k] = fds[i];
        shutdown(fd, SHUT_RDWR);
    }
}

static void *follow_orders(void *arg)
{
    char line[100];

    while (fgets(line, sizeof line, stdin)) {
        unsigned long seed;
        long n;
        int rank;
        if (sscanf(line, "last %ld", &n) == 1) ddp__atomic_store(&last, n);
        if (sscanf(line, "cut %ld %lu", &n, &seed) == 2) cut((int)n, seed);
        if (sscanf(line, "slow %d %ld", &rank, &n) == 2 && rank >= 0 && rank < DDP__ELASTIC_WORLD)
            ddp__atomic_store(&slow_ms[rank], (int)n);
    }
    return arg;
}

/* Returns 1 if name is a setting of this program. */
static int own_setting(const char *name, const char *value)
{
    if (!strcmp(name, "ranks"))
        ranks = atoi(value);
    else if (!strcmp(name, "step_ms"))
        step_ms = atoi(value);
    else if (!strcmp(name, "last"))
        last = atol(value);
    else if (!strcmp(name, "note"))
        note = atoi(value);
    else if (!strcmp(name, "lr"))
        lr = (float)atof(value);
    else if (!strcmp(name, "save"))
        save_every = atoi(value);
    else if (!strcmp(name, "folder"))
        folder = value;
    else
        return 0;
    return 1;
}

int main(int argc, char **argv)
{
    pthread_t thread[RANKS], orders;
    ddp_error err;
    void *code;
    int worst = 0;

    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) return fprintf(stderr, "storm: %s: NAME=VALUE is needed\n", argv[i]), 2;
        *value++ = 0;
        if (!own_setting(argv[i], value) && ddp_config_set(&cfg, argv[i], value, &err))
            return fprintf(stderr, "storm: %s\n", err.msg), 2;
    }
    if (ranks < 1 || ranks > RANKS || note < 1 || (save_every && !folder))
        return fprintf(stderr, "storm: 1 to %d ranks, note of at least 1 step, save with a folder\n",
                       (int)RANKS),
               2;
    setvbuf(stdout, NULL, _IOLBF, 1 << 16); /* a line is written completely, or not at all if this process is
                                             * killed */
    if (pthread_create(&orders, NULL, follow_orders, NULL)) return 1;
    for (int i = 0; i < ranks; i++)
        if (pthread_create(&thread[i], NULL, rank_main, (void *)(intptr_t)i)) return 1;
    for (int i = 0; i < ranks; i++) {
        pthread_join(thread[i], &code);
        if ((intptr_t)code > worst) worst = (int)(intptr_t)code;
    }
    return ddp_status_exit_code((ddp_status)worst);
}
