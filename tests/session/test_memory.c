/* [long, asan, test-all: slow] Counts every byte of memory that a worker needs in addition to local
 * training. A step allocates nothing, all memory is freed, and any allocation may fail. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "context/context.h"
#include "quick_meter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* ---- the counting allocator: bookkeeping through the macros, tensors through ddp_config ---- */

static struct {
    pthread_mutex_t lock;
    size_t live, peak;
    long calls;          /* calls of any kind, including frees */
    long taken, fail_at; /* number of allocations. This one fails (0 for none). */
    int fail_rest;       /* and all later ones */
    int wrong;           /* blocks freed with another size than they had */
} memory = {PTHREAD_MUTEX_INITIALIZER, 0, 0, 0, 0, 0, 0, 0};

enum { HEAD = 64 };

/* Bytes of a block that are filled with a pattern. All, except under ThreadSanitizer, which tracks every
 * byte. */
#ifdef __SANITIZE_THREAD__
#define POISONED ((size_t)4096)
#else
#define POISONED SIZE_MAX
#endif

/* Stored before each block. kind: bookkeeping or tensors. */
typedef struct head {
    size_t bytes;
    int kind;
} head;

static void *take(size_t bytes, int kind)
{
    void *p = NULL;
    int refuse;

    pthread_mutex_lock(&memory.lock);
    memory.calls++;
    memory.taken++;
    refuse = memory.fail_at &&
             (memory.taken == memory.fail_at || (memory.fail_rest && memory.taken > memory.fail_at));
    if (!refuse && posix_memalign(&p, HEAD, HEAD + bytes) == 0) {
        memory.live += bytes;
        if (memory.live > memory.peak) memory.peak = memory.live;
    }
    pthread_mutex_unlock(&memory.lock);
    if (!p) return NULL;
    ((head *)p)->bytes = bytes;
    ((head *)p)->kind = kind;
    memset((char *)p + HEAD, 0xa5, bytes < POISONED ? bytes : POISONED);
    return (char *)p + HEAD;
}

static void give(void *block, size_t bytes, int kind)
{
    head *h = (head *)(void *)((char *)block - HEAD);

    pthread_mutex_lock(&memory.lock);
    memory.calls++;
    memory.live -= h->bytes;
    if (h->kind != kind || (kind && h->bytes != bytes)) memory.wrong++;
    pthread_mutex_unlock(&memory.lock);
    free(h);
}

void heap_free(void *p)
{
    if (p) give(p, 0, 0);
}

void *heap_realloc(void *p, size_t bytes)
{
    void *q = take(bytes, 0);
    size_t old;

    if (!p || !q) return q;
    old = ((head *)(void *)((char *)p - HEAD))->bytes;
    memcpy(q, p, old < bytes ? old : bytes);
    give(p, 0, 0);
    return q;
}

static void *tensor_alloc(void *user, size_t bytes)
{
    (void)user;
    return take(bytes, 1);
}

static void tensor_free(void *user, void *p, size_t bytes)
{
    (void)user;
    give(p, bytes, 1);
}

static long count_calls(size_t *peak)
{
    long n;

    pthread_mutex_lock(&memory.lock);
    n = memory.calls;
    if (peak) *peak = memory.peak;
    pthread_mutex_unlock(&memory.lock);
    return n;
}

static void count_reset(long fail_at, int fail_rest)
{
    memory.live = memory.peak = 0;
    memory.calls = memory.taken = 0;
    memory.fail_at = fail_at;
    memory.fail_rest = fail_rest;
    memory.wrong = 0;
}

static void all_memory_is_freed(void)
{
    if (memory.live || memory.wrong)
        fail_msg("%zu bytes leaked, %d blocks freed with a wrong size", memory.live, memory.wrong);
}

/* ---- training with the counters ---- */

enum { RANKS = 8, LAYERS = 3, COUNT = 700 };

/* Results of the ranks, in memory shared with worker processes. */
typedef struct outcome {
    long calls[RANKS]; /* allocator calls in the counted steps */
    size_t peak[RANKS];
    int bad[RANKS], opened[RANKS];
    size_t params, staging;
} outcome;

typedef struct trial {
    ddp_config cfg;
    long inputs, width, classes; /* of a perceptron, or 0 for hand-written layers */
    int muon;                    /* else AdamW */
    int layers_of_last;          /* hand-written: number of layers on the last rank */
    int steady_after, steps;     /* allocator calls are counted between these steps, or 0 if not counted */
    int stages;                  /* of a GPT with tied weights in a pipeline, or 0 for no pipeline */
    ddp_pipeline schedule;
    pthread_barrier_t meet; /* for the ranks of the threads transport */
    outcome *out;
} trial;

/* Overlap and wire of the outer strategies' parameter deltas. */
static ddp_overlap way;
static ddp_wire wire;
static int sites; /* 1: ranks 0 and 1 form a site, rank 2 another; 0: no sites */

static void trial_new(trial *t, ddp_strategy strategy, int world)
{
    memset(t, 0, sizeof *t);
    t->cfg.world = world;
    t->cfg.strategy = strategy;
    t->cfg.transport = DDP_THREADS;
    t->cfg.period = 2;
    t->cfg.no_env = 1;
    t->cfg.timeout.peer_s = 60; /* for sanitizers on a busy machine */
    if (strategy >= DDP_BSP && strategy <= DDP_OSP) t->cfg.server.count = DDP_SERVERS_COLOCATED;
    t->cfg.server.staleness = 1;
    t->cfg.osp.defer = 0.5;
    t->cfg.profile_steps = 3;
    t->cfg.outer.overlap = way;
    if (way == DDP_OVERLAP_EAGER) t->cfg.outer.momentum = 0.9; /* eager has no momentum by default */
    t->cfg.wire = wire;
    t->cfg.allocator.alloc = tensor_alloc;
    t->cfg.allocator.free = tensor_free;
    t->layers_of_last = LAYERS;
    t->steps = 6;
    t->out = (outcome *)mmap(NULL, sizeof *t->out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true((void *)t->out != MAP_FAILED);
}

static void trial_free(trial *t) { munmap(t->out, sizeof *t->out); }

/* Waits for all ranks. With processes each rank counts separately. */
static void meet(trial *t, const ddp_ctx *d)
{
    if (t->steady_after && ddp_world(d) > 1 && t->cfg.transport == DDP_THREADS)
        pthread_barrier_wait(&t->meet);
}

static int one_step(ddp_ctx *d, ddp_graph *g, ddp_node *loss, int layers)
{
    ddp_step_info info;
    ddp_stats stats;
    int l, bad = 0;

    memset(&info, 0, sizeof info);
    if (g) {
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        info.loss = bad ? 0 : (double)ddp_value(g, loss);
    } else {
        for (l = 0; !bad && l < layers; l++) bad = ddp_forward_begin(d, l);
        for (l = layers - 1; !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
    }
    if (!bad) bad = ddp_report(d, &info);
    if (!bad) bad = ddp_step_end(d);
    ddp_get_stats(d, &stats);
    return bad;
}

static float arrays[RANKS][2][LAYERS + 1][COUNT];

static int add_layers(ddp_ctx *d, int layers)
{
    int l, bad = 0;

    for (l = 0; !bad && l < layers; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = arrays[ddp_rank(d)][0][l];
        layer.grads = arrays[ddp_rank(d)][1][l];
        layer.count = COUNT;
        bad = ddp_add_layer(d, &layer);
    }
    return bad;
}

static ddp_graph *build(ddp_ctx *d, const trial *t, ddp_node **loss, int *bad)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_mlp_config c;

    memset(&c, 0, sizeof c);
    c.batch = 2;
    c.inputs = t->inputs;
    c.hidden[0] = c.hidden[1] = t->width;
    c.classes = t->classes;
    *loss = ddp_mlp(g, &c, NULL);
    *bad = ddp_graph_build(g);
    return g;
}

static ddp_pipe *build_stages(ddp_ctx *d, const trial *t)
{
    ddp_pipe_config p;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss;
    ddp_gpt2_config c;

    memset(&p, 0, sizeof p);
    p.schedule = t->schedule;
    p.stages = t->stages;
    memset(&c, 0, sizeof c);
    c.vocabulary = 7;
    c.context = 4;
    c.layers = 2;
    c.heads = 2;
    c.dim = 4;
    c.batch = 2;
    c.recompute = t->cfg.strategy == DDP_WFBP;
    loss = ddp_gpt2(g, &c, NULL);
    return ddp_pipe_open(d, g, loss, &p);
}

/* Labels and tokens stay 0. */
static int piped_step(ddp_ctx *d, ddp_pipe *p)
{
    int bad = ddp_pipe_step(p);

    if (!bad) bad = ddp_step_end(d);
    if (!bad && isnan(ddp_pipe_loss(p))) bad = (int)ddp_last_error(d)->code;
    return bad;
}

static int train(ddp_ctx *d, void *user)
{
    trial *t = (trial *)user;
    ddp_pipe *p = NULL;
    ddp_pipe_stats stats;
    ddp_optimizer o =
        t->muon ? ddp_muon(0.001f, 0.02f, 0.95f, 0.01f) : ddp_adamw(0.001f, 0.9f, 0.999f, 1e-8f, 0.01f);
    int rank = ddp_rank(d), layers = rank == ddp_world(d) - 1 ? t->layers_of_last : LAYERS, step, bad = 0;
    ddp_graph *g = NULL;
    ddp_node *loss = NULL;

    t->out->opened[rank] = 1;
    if (sites) d->cfg.site = 1 + rank / 2; /* a different site per rank, as with DREAMDDP_SITE */
    if (t->stages) {
        p = build_stages(d, t);
        bad = p ? 0 : (int)ddp_last_error(d)->code;
    } else if (t->inputs)
        g = build(d, t, &loss, &bad);
    else
        bad = add_layers(d, layers);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && rank >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    if (!bad && p) bad = ddp_pipe_get_stats(p, &stats);
    for (step = 0; step < t->steps; step++) {
        if (t->steady_after && step == t->steady_after) {
            meet(t, d);
            t->out->calls[rank] = count_calls(NULL);
            meet(t, d);
        }
        if (!bad) bad = p ? piped_step(d, p) : one_step(d, g, loss, layers);
    }
    meet(t, d);
    t->out->calls[rank] = count_calls(NULL) - t->out->calls[rank];
    meet(t, d);
    if (!bad) bad = ddp_sync_all(d);
    ddp_pipe_close(p);
    t->out->bad[rank] = bad;
    (void)count_calls(&t->out->peak[rank]);
    if (rank == 0 && g) t->out->params = ddp_param_count(g);
    if (rank == 0 && d->engine) {
        ddp__net_stats net;
        ddp__engine_stats(d->engine, &net);
        t->out->staging = net.staging_bytes;
    }
    return bad;
}

static int trial_run(trial *t, ddp_error *err)
{
    int s;

    pthread_barrier_init(&t->meet, NULL, (unsigned)t->cfg.world);
    s = ddp_launch(&t->cfg, train, t, err);
    pthread_barrier_destroy(&t->meet);
    return s;
}

static const ddp_strategy all_strategies[] = {
    DDP_SSGD,    DDP_WFBP,          DDP_LOCALSGD, DDP_ENP,    DDP_DREAMDDP,   DDP_MGWFBP,
    DDP_ASCWFBP, DDP_BYTESCHEDULER, DDP_USBYTE,   DDP_DILOCO, DDP_SPARSELOCO, DDP_DEFT,
    DDP_BSP,     DDP_ASP,           DDP_SSP,      DDP_R2SP,   DDP_OSP};
enum { ALL = sizeof all_strategies / sizeof all_strategies[0] };

/* ---- tests ---- */

#ifdef __SANITIZE_THREAD__ /* the additional memory does not depend on the width, but the run time does */
enum { WIDTH = 128, MOST_WORKERS = 4 };
#else
enum { WIDTH = 256, MOST_WORKERS = 8 };
#endif

/* Peak memory of one worker in bytes. With threads, an equal share of the shared hub is included. */
static size_t peak_of(ddp_strategy strategy, int world, ddp_transport transport, size_t *staging,
                      size_t *params)
{
    trial t;
    ddp_error err;
    size_t peak = 0;
    int r;

    trial_new(&t, strategy, world);
    t.cfg.transport = transport;
    t.inputs = 512;
    t.width = WIDTH;
    t.classes = 512;
    t.cfg.profile_steps = 2;
    t.steps = 3;
    count_reset(0, 0);
    if (trial_run(&t, &err)) fail_msg("%s", err.msg);
    all_memory_is_freed();
    if (transport == DDP_TCP)
        for (r = 0; r < world; r++) peak = t.out->peak[r] > peak ? t.out->peak[r] : peak;
    else
        peak = memory.peak / (size_t)world;
    *staging = t.out->staging;
    *params = t.out->params;
    trial_free(&t);
    return peak;
}

static void worker_needs_1_mib_and_4_chunks_per_peer(void **state)
{
    static const ddp_strategy strategies[] = {DDP_DREAMDDP, DDP_LOCALSGD, DDP_WFBP};
    const size_t chunk = (size_t)256 << 10;
    size_t alone, staging, params, most = 0;
    int s, world, tcp;

    (void)state;
    for (s = 0; s < 3; s++) {
        alone = peak_of(strategies[s], 1, DDP_THREADS, &staging, &params);
        print_message("%s, 1 worker, %zu parameters: %.1f MiB\n", ddp_strategy_name(strategies[s]), params,
                      (double)alone / 1048576);
        assert_true(alone > 4 * params * sizeof(float)); /* parameters, gradients, two moments */
        for (tcp = 0; tcp < (strategies[s] == DDP_DREAMDDP ? 2 : 1); tcp++)
            for (world = strategies[s] == DDP_DREAMDDP ? 2 : 4;
                 world <= (strategies[s] == DDP_DREAMDDP ? MOST_WORKERS : 4); world += world == 4 ? 4 : 1) {
                size_t allowed = ((size_t)1 << 20) + (size_t)(world - 1) * 4 * chunk;
                if (tcp)
                    allowed += (size_t)(world - 1) << 22; /* the resend buffer: 4 MiB per peer, of which
                                                           * only the used part is touched */
                size_t more =
                    peak_of(strategies[s], world, tcp ? DDP_TCP : DDP_THREADS, &staging, &params) - alone;
                print_message("%s, %d workers, %s: %zu KiB more, %zu allowed; engine %zu\n",
                              ddp_strategy_name(strategies[s]), world, tcp ? "tcp" : "threads", more >> 10,
                              allowed >> 10, staging >> 10);
                if (more > allowed + most) most = more - allowed;
            }
    }
    if (most) fail_msg("%zu bytes too many", most);
}

static void deft_needs_two_more_gradient_copies_than_wfbp(void **state)
{
    size_t staging, params, wfbp, deft, copies;

    (void)state;
    wfbp = peak_of(DDP_WFBP, 3, DDP_THREADS, &staging, &params);
    deft = peak_of(DDP_DEFT, 3, DDP_THREADS, &staging, &params);
    copies = 2 * params * sizeof(float);
    print_message("deft: %zu KiB more than wfbp, two copies are %zu\n", (deft - wfbp) >> 10, copies >> 10);
    assert_true(deft >= wfbp + copies);
    assert_true(deft <= wfbp + copies + ((size_t)256 << 10));
}

/* For its deferred layers, a worker of osp stores the previous parameters, its own gradients and their
 * mean. All other state is on the servers. */
static void deferred_layers_need_three_times_their_bytes(void **state)
{
    size_t peak[2][2], params = 0;

    (void)state;
    for (int k = 0; k < 2; k++) {
        trial t;
        ddp_error err;
        trial_new(&t, DDP_OSP, 3);
        t.cfg.transport = DDP_TCP;
        t.cfg.server.count = 1;
        t.cfg.osp.defer = k ? 0.5 : (double)DDP_DEFER_NONE;
        t.inputs = 512;
        t.width = WIDTH;
        t.classes = 512;
        count_reset(0, 0);
        if (trial_run(&t, &err)) fail_msg("%s", err.msg);
        all_memory_is_freed();
        for (int r = 0; r < 2; r++) peak[k][r] = t.out->peak[r];
        params = t.out->params;
        trial_free(&t);
    }
    for (int r = 0; r < 2; r++) {
        const size_t more = peak[1][r] - peak[0][r], late = params / 2 * sizeof(float);
        print_message("rank %d: %zu KiB more for %zu KiB of deferred layers\n", r, more >> 10, late >> 10);
        assert_true(more > 2 * late && more <= 3 * late + ((size_t)64 << 10));
    }
}

/* Floats per parameter in addition to local SGD. */
static void outer_strategies_need_the_documented_memory(void **state)
{
    /* the anchor and a quarter of the momentum; one copy in flight; one own copy */
    static const double more[] = {0, 1.25, 2.25, 3.25};
    size_t staging, params, base;

    (void)state;
    way = DDP_OVERLAP_NONE;
    base = peak_of(DDP_LOCALSGD, 4, DDP_THREADS, &staging, &params);
    for (int w = (int)DDP_OVERLAP_NONE; w <= (int)DDP_OVERLAP_EAGER; w++) {
        double floats;
        way = (ddp_overlap)w;
        floats = ((double)peak_of(DDP_DILOCO, 4, DDP_THREADS, &staging, &params) - (double)base) /
                 sizeof(float) / (double)params;
        print_message("overlap %d: %.3f floats per parameter, %.2f documented\n", w, floats, more[w]);
        if (!(fabs(floats - more[w]) < 0.01)) fail_msg("%.3f floats, not %.2f", floats, more[w]);
    }
    way = DDP_OVERLAP_DEFAULT;
}

static void outer_step_allocates_nothing(void **state)
{
    (void)state;
    for (int w = (int)DDP_OVERLAP_NONE; w <= (int)DDP_OVERLAP_EAGER; w++)
        for (int k = 0; k < 6; k++) {
            static const ddp_wire wires[] = {DDP_WIRE_F32,  DDP_WIRE_INT8, DDP_WIRE_E3M0,
                                             DDP_WIRE_TOPK, DDP_WIRE_TOPK, DDP_WIRE_INT4};
            trial t;
            ddp_error err;
            way = (ddp_overlap)w;
            wire = wires[k];
            sites = k / 4;
            trial_new(&t, DDP_DILOCO, 3);
            t.cfg.transport = k % 2 ? DDP_TCP : DDP_THREADS;
            t.cfg.period = 5;
            t.inputs = 12;
            t.width = 9;
            t.classes = 3;
            t.steady_after = 6;
            t.steps = 15;
            count_reset(0, 0);
            if (trial_run(&t, &err)) fail_msg("%s", err.msg);
            for (int r = 0; r < 3; r++)
                if (t.out->calls[r])
                    fail_msg("overlap %d, wire %d: %ld allocations", w, (int)wire, t.out->calls[r]);
            all_memory_is_freed();
            trial_free(&t);
        }
    way = DDP_OVERLAP_DEFAULT;
    wire = DDP_WIRE_DEFAULT;
    sites = 0;
}

static void step_with_an_adopted_plan_allocates_nothing(void **state)
{
    int s, world, graph, transport, r, n = 0;

    (void)state;
    for (transport = (int)DDP_THREADS; transport <= (int)DDP_TCP; transport++)
        for (s = 0; s < ALL; s++)
            for (world = 1; world <= 3; world += 2)
                for (graph = 0; graph < 2; graph++) {
                    trial t;
                    ddp_error err;
                    if (n++ % SAMPLED(3)) continue;
                    trial_new(&t, all_strategies[s], world);
                    t.cfg.transport = (ddp_transport)transport;
                    t.cfg.period = 8; /* steps 8 and 16 may end with a new plan */
                    t.cfg.plan.fill = DDP_FILL_EXACT;
                    if (all_strategies[s] == DDP_DREAMDDP) t.cfg.average.split_params = 50;
                    t.cfg.average.state_period[0] = 2;
                    t.cfg.clip_norm = s == 3 ? 1.0f : 0;
                    if (graph) {
                        t.inputs = 12;
                        t.width = 9;
                        t.classes = 3;
                        t.muon = s % 2 && !t.cfg.server.count;
                    }
                    t.steady_after = 8;
                    t.steps = 15;
                    count_reset(0, 0);
                    if (trial_run(&t, &err)) fail_msg("%s", err.msg);
                    for (r = 0; r < world; r++)
                        if (t.out->calls[r])
                            fail_msg("%s, %d workers: %ld calls of the allocator in 7 steps",
                                     ddp_strategy_name(all_strategies[s]), world, t.out->calls[r]);
                    all_memory_is_freed();
                    trial_free(&t);
                }
}

static void step_of_a_pipeline_allocates_nothing(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_DREAMDDP};

    (void)state;
    for (int k = 0; k < 9; k++) {
        trial t;
        ddp_error err;
        trial_new(&t, strategies[k % 3], 4);
        t.stages = 2;
        t.schedule = (ddp_pipeline)(DDP_PIPELINE_GPIPE + k / 3);
        t.cfg.micro_batches = 3;
        t.cfg.transport = k % 2 ? DDP_TCP : DDP_THREADS;
        t.cfg.period = 8;
        t.cfg.debug.trace_spans = k % 2 ? 0 : 1000;
        t.cfg.clip_norm = k % 3 ? 0 : 1.0f;
        t.steady_after = 6;
        t.steps = 15;
        count_reset(0, 0);
        if (trial_run(&t, &err)) fail_msg("%s", err.msg);
        for (int r = 0; r < 4; r++)
            if (t.out->calls[r])
                fail_msg("%s, %s: %ld calls of the allocator in 9 steps", ddp_pipeline_name(t.schedule),
                         ddp_strategy_name(t.cfg.strategy), t.out->calls[r]);
        all_memory_is_freed();
        trial_free(&t);
    }
}

static void all_memory_is_freed_after_errors(void **state)
{
    ddp_config cfg;
    ddp_error err;
    trial t;
    int s;

    (void)state;
    for (s = 0; s < ALL; s++) {
        trial_new(&t, all_strategies[s], 3);
        t.layers_of_last = LAYERS + 1;
        count_reset(0, 0);
        assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
        all_memory_is_freed();
        trial_free(&t);
    }
    trial_new(&t, DDP_DREAMDDP, 2);
    t.cfg.profile_path = "no/such/profile.csv";
    count_reset(0, 0);
    assert_int_not_equal(trial_run(&t, &err), DDP_OK);
    all_memory_is_freed();
    trial_free(&t);
    memset(&cfg, 0, sizeof cfg);
    cfg.net = "fast";
    cfg.run_id = "a private string";
    count_reset(0, 0);
    assert_null(ddp_open(&cfg, &err));
    all_memory_is_freed();
    cfg.net = NULL;
    cfg.world = 2;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS; /* valid only with ddp_launch */
    assert_null(ddp_open(&cfg, &err));
    all_memory_is_freed();
}

static int exhausted_stages; /* of exhaust, or 0 for no pipeline */

/* Lets every third allocation fail, until a run needs fewer allocations. With SWEEP=whole in the
 * environment, every allocation. The first one depends on the strategy. */
static void exhaust(ddp_strategy strategy, int world, int graph, int rest)
{
    const char *sweep = getenv("SWEEP");
    const int whole = sweep && !strcmp(sweep, "whole"), sampled = exhausted_stages ? SAMPLED(21) : SAMPLED(7);
    const int step = whole ? 1 : sampled > 3 ? sampled : 3; /* odd, so that both modes are tried */
    long k;

    for (k = whole ? 1 : 1 + (int)strategy % 3;; k += step) {
        trial t;
        ddp_error err;
        int code, r;

        trial_new(&t, strategy, world);
        if (strategy == DDP_DREAMDDP) t.cfg.average.split_params = 50;
        t.cfg.run_id = "exhausted";
        t.cfg.deterministic = (int)(k % 2);
        if (graph) {
            t.inputs = 5;
            t.width = 4;
            t.classes = 3;
        }
        t.stages = exhausted_stages;
        t.schedule = DDP_PIPELINE_ZB;
        if (t.stages) {
            t.cfg.micro_batches = 3;
            t.cfg.debug.trace_spans = 100;
        }
        memset(&err, 0, sizeof err);
        count_reset(k, rest);
        code = trial_run(&t, &err);
        all_memory_is_freed();
        if (memory.taken < k) {
            if (code) fail_msg("%s", err.msg);
            trial_free(&t);
            if (k > 20 && k % 2 == 0) return; /* both modes have succeeded */
            continue;
        }
        /* a rank that lost its peer may report first */
        if (code != DDP_MEMORY && !(world > 1 && code == DDP_PEER_LOST))
            fail_msg("%s, %d workers, allocation %ld fails: status %d \"%s\"", ddp_strategy_name(strategy),
                     world, k, code, err.msg);
        assert_true(strlen(err.msg) > 10);
        for (r = 0; r < world; r++)
            if (t.out->opened[r] && !t.out->bad[r])
                fail_msg("%s, %d workers, allocation %ld fails: rank %d returned no error",
                         ddp_strategy_name(strategy), world, k, r);
        trial_free(&t);
    }
}

static void one_worker_survives_any_allocation_that_fails(void **state)
{
    int s;

    (void)state;
    for (s = 0; s < ALL; s += ALONE(5)) {
        exhaust(all_strategies[s], 1, 0, 0);
        exhaust(all_strategies[s], 1, 1, 0);
        exhaust(all_strategies[s], 1, s % 2, 1);
    }
}

static void several_workers_survive_any_allocation_that_fails(void **state)
{
    (void)state;
    exhaust(DDP_DREAMDDP, 2, 0, 0);
    exhaust(DDP_WFBP, 2, 1, 0);
    exhaust(DDP_DEFT, 2, 0, 0);
    exhaust(DDP_OSP, 2, 1, 0);
    wire = DDP_WIRE_E3M0;
    way = DDP_OVERLAP_STREAM;
    exhaust(DDP_DILOCO, 2, 1, 0);
    wire = DDP_WIRE_TOPK;
    way = DDP_OVERLAP_EAGER;
    exhaust(DDP_DILOCO, 2, 1, 0);
    way = DDP_OVERLAP_NONE;
    sites = 1;
    exhaust(DDP_DILOCO, 3, 0, 0);
    wire = DDP_WIRE_DEFAULT;
    way = DDP_OVERLAP_DEFAULT;
    sites = 0;
}

static void stages_survive_any_allocation_that_fails(void **state)
{
    (void)state;
    for (exhausted_stages = 1; exhausted_stages <= 2; exhausted_stages++)
        exhaust(DDP_SSGD, exhausted_stages, 0, 0);
    exhausted_stages = 2;
    exhaust(DDP_WFBP, 2, 0, 1);
    exhausted_stages = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_needs_1_mib_and_4_chunks_per_peer),
        cmocka_unit_test(deft_needs_two_more_gradient_copies_than_wfbp),
        cmocka_unit_test(deferred_layers_need_three_times_their_bytes),
        cmocka_unit_test(step_with_an_adopted_plan_allocates_nothing),
        cmocka_unit_test(step_of_a_pipeline_allocates_nothing),
        cmocka_unit_test(outer_strategies_need_the_documented_memory),
        cmocka_unit_test(outer_step_allocates_nothing),
        cmocka_unit_test(all_memory_is_freed_after_errors),
        cmocka_unit_test(one_worker_survives_any_allocation_that_fails),
        cmocka_unit_test(several_workers_survive_any_allocation_that_fails),
        cmocka_unit_test(stages_survive_any_allocation_that_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
