/* [long, asan] Checkpoints: a resumed run ends bit-identical to an uninterrupted one. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { RANKS = 4, IMAGES = 3, PIXELS = 3 * 6 * 6 };

/* A part of a run: [load] steps first..last-1 [save], on every rank. */
typedef struct leg {
    const char *folder;
    int load, keep;
    long last, save_every;               /* 0: only at the end */
    int save, layers, sync_all, drained; /* drained: ddp_sync_all before it saves */
    int momentum;                        /* 2: Muon, 1: SGD with momentum, 0: AdamW, -1: plain SGD */
    int vision;                          /* a residual block with batch norms instead of a GPT-2 */
    int apart;                           /* ranks 0, 1 and 2, 3 have separate disks; 2: the disks are
                                          * exchanged */
    long width, heads;                   /* of the model, 0: 6 and 2 */
    uint64_t data;                       /* other values, other data */
    uint64_t hash[RANKS];                /* of parameters and buffers after the last step */
    int from;                            /* world of the checkpoint that was loaded */
    long first;
    int64_t taken; /* micro-batches after the last step */
} leg;

static ddp_node *gpt2(ddp_graph *g, const leg *x)
{
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 13;
    c.context = 5;
    c.layers = x->layers;
    c.batch = 2;
    c.heads = x->heads ? x->heads : 2;
    c.dim = x->width ? x->width : 6;
    c.dropout = 0.2f;
    return ddp_gpt2(g, &c, NULL);
}

static ddp_node *convolution(ddp_graph *g, ddp_node *x, const char *name, long channels)
{
    ddp_layer_begin(g, name);
    x = ddp_batch_norm2d(g, ddp_conv2d(g, x, channels, 3, 1, 1, 1, 0));
    ddp_layer_end(g);
    return x;
}

/* A small model with the structure of ddp_resnet. */
static ddp_node *residual(ddp_graph *g)
{
    ddp_shape s = {4, {IMAGES, 3, 6, 6}};
    ddp_node *x = ddp_input_shape(g, "inputs", DDP_F32, &s), *y,
             *labels = ddp_input(g, "labels", DDP_I32, IMAGES, 1);

    x = ddp_relu(g, convolution(g, x, "conv1", 4));
    y = convolution(g, ddp_relu(g, convolution(g, x, "layer1.0.conv1", 4)), "layer1.0.conv2", 4);
    x = ddp_relu(g, ddp_add(g, y, x));
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_global_avg_pool2d(g, x), 5), labels);
    ddp_layer_end(g);
    return x;
}

static void fill(ddp_graph *g, const leg *x, ddp_rng r)
{
    int32_t *labels = (int32_t *)ddp_data(g, "labels");
    int i;

    if (x->vision) {
        float *in = (float *)ddp_data(g, "inputs");
        for (i = 0; i < IMAGES * PIXELS; i++) in[i] = (float)ddp_rng_normal(&r) + 1;
        for (i = 0; i < IMAGES; i++) labels[i] = (int32_t)ddp_rng_below(&r, 5);
        return;
    }
    for (i = 0; i < 10; i++) {
        ((int32_t *)ddp_data(g, "tokens"))[i] = (int32_t)ddp_rng_below(&r, 13);
        labels[i] = (int32_t)ddp_rng_below(&r, 13);
    }
}

static uint64_t hash_of(ddp_graph *g)
{
    uint64_t h = 0;
    size_t n;
    int i;

    for (i = 0; i < ddp_layer_count(g); i++) {
        const float *p = ddp_layer_params(g, i, &n);
        h = ddp_hash_floats(h, p, n);
        p = ddp_layer_buffers(g, i, &n);
        h = ddp_hash_floats(h, p, n);
    }
    return h;
}

static int run_leg(ddp_ctx *d, void *user)
{
    leg *x = (leg *)user;
    char folder[100];
    ddp_graph *g = ddp_graph_new(d);
    ddp_optimizer o = x->momentum > 1   ? ddp_muon(0.003f, 0.02f, 0.95f, 0.01f)
                      : x->momentum > 0 ? ddp_sgd(0.05f, 0.9f)
                      : x->momentum < 0 ? ddp_sgd(0.05f, 0)
                                        : ddp_adamw(0.003f, 0.9f, 0.999f, 1e-8f, 0.01f);
    ddp_node *loss = x->vision ? residual(g) : gpt2(g, x);
    int bad = ddp_graph_build(g), from = 0;

    snprintf(folder, sizeof folder, "%s", x->folder ? x->folder : "");
    if (x->apart) snprintf(folder, sizeof folder, "%s/%d", x->folder, (ddp_rank(d) / 2 + x->apart - 1) % 2);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && x->load) bad = ddp_checkpoint_load(d, folder, &from);
    if (bad) return bad;
    if (ddp_rank(d) >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    if (ddp_rank(d) == 0) {
        x->from = from;
        x->first = ddp_step(d);
    }
    while (!bad && ddp_step(d) < x->last) {
        fill(g, x, ddp_rng_seed(7 + x->data, (uint64_t)(ddp_step(d) * 100 + ddp_rank(d))));
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
        if (!bad && x->drained && ddp_step(d) == x->last) bad = ddp_sync_all(d);
        if (!bad && x->save &&
            (ddp_step(d) == x->last || (x->save_every && ddp_step(d) % x->save_every == 0)))
            bad = ddp_checkpoint_save(d, folder, x->keep);
    }
    if (!bad) bad = x->sync_all ? ddp_sync_all(d) : ddp_wait(d);
    x->hash[ddp_rank(d)] = hash_of(g);
    if (ddp_rank(d) == 0) x->taken = ddp_taken(d);
    return bad;
}

static ddp_config world_of(int world, ddp_strategy s, int period)
{
    ddp_config c;

    memset(&c, 0, sizeof c);
    c.world = world;
    c.strategy = s;
    c.period = period;
    c.transport = DDP_THREADS;
    c.deterministic = 1;
    c.no_env = 1;
    c.seed = 5;
    c.profile_steps = 4;
    c.timeout.peer_s = 60; /* sanitizers on a busy machine */
    if (s >= DDP_BSP && s <= DDP_OSP) c.server.count = DDP_SERVERS_COLOCATED;
    if (s == DDP_OSP) c.osp.defer = 0.6;
    c.server.staleness = 2;
    return c;
}

static void remove_folder(const char *folder)
{
    char command[100];

    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static leg leg_of(const char *folder, long last)
{
    leg x;

    memset(&x, 0, sizeof x);
    x.folder = folder;
    x.last = last;
    x.layers = 1;
    return x;
}

static void go(const ddp_config *c, leg *x)
{
    ddp_error err;

    memset(&err, 0, sizeof err);
    if (ddp_launch(c, run_leg, x, &err)) fail_msg("%s", err.msg);
}

static void refused(const ddp_config *c, leg *x, ddp_status code, const char *part)
{
    ddp_error err;

    memset(&err, 0, sizeof err);
    assert_int_equal(ddp_launch(c, run_leg, x, &err), code);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

/* 11 steps in one run, and in two runs split after `cut` steps. */
static void same_bits_at(const ddp_config *at, int momentum, int vision, long cut)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
    const ddp_config c = *at;
    const int world = c.world;
    leg whole = leg_of(NULL, 11), first = leg_of(folder, cut), second = leg_of(folder, 11);
    int r;

    assert_non_null(mkdtemp(folder));
    whole.momentum = first.momentum = second.momentum = momentum;
    whole.vision = first.vision = second.vision = vision;
    first.save = second.load = 1;
    go(&c, &whole);
    go(&c, &first);
    go(&c, &second);
    assert_int_equal(second.first, cut);
    assert_int_equal(second.from, world);
    for (r = 0; r < world; r++)
        if (second.hash[r] != whole.hash[r])
            fail_msg("%s, overlap %d, wire %d, %d ranks, cut at %ld: rank %d differs",
                     ddp_strategy_name(c.strategy), (int)c.outer.overlap, (int)c.wire, world, cut, r);
    remove_folder(folder);
}

static void same_bits(ddp_strategy s, int world, int momentum, int vision, long cut)
{
    const ddp_config c = world_of(world, s, 3);

    same_bits_at(&c, momentum, vision, cut);
}

static void resumed_run_is_bit_identical(void **unused)
{
    static const ddp_strategy all[] = {
        DDP_SSGD,    DDP_WFBP,          DDP_LOCALSGD, DDP_ENP,    DDP_DREAMDDP,   DDP_MGWFBP,
        DDP_ASCWFBP, DDP_BYTESCHEDULER, DDP_USBYTE,   DDP_DILOCO, DDP_SPARSELOCO, DDP_DEFT,
        DDP_BSP,     DDP_ASP,           DDP_SSP,      DDP_R2SP,   DDP_OSP};
    int s, world;

    (void)unused;
    for (s = 0; s < (int)(sizeof all / sizeof all[0]); s++)
        for (world = ALONE(4); world <= 4; world += 3) {
            if (!(ddp_strategy_traits(all[s]) & DDP_NEEDS_SERVERS)) same_bits(all[s], world, 2, 0, 4);
            same_bits(all[s], world, s % 2, 0, 5); /* in the middle of a period */
            same_bits(all[s], world, 1 - s % 2, 0, 6);
            same_bits(all[s], world, s % 2, 1, 4); /* with separate running statistics on each rank */
        }
    same_bits(DDP_DREAMDDP, 2, 0, 0, 1); /* the computed plan exists from the first step */
}

/* The servers' shares are saved and loaded with the workers' files. */
static void run_with_servers_resumes_bit_identical(void **unused)
{
    int s, i;

    (void)unused;
    for (s = (int)DDP_BSP; s <= (int)DDP_OSP; s++) {
        ddp_config c = world_of(3 + s % 2, (ddp_strategy)s, 3);
        c.server.count = 1 + s % 2;
        same_bits_at(&c, s % 2, 0, 5);
        same_bits_at(&c, 1 - s % 2, s % 2, 2);
    }
    for (i = 0; i < 4; i++) { /* late deltas are in the file */
        ddp_config c = world_of(2, DDP_OSP, 3);
        c.osp.lgp = (ddp_lgp)i;
        c.plan.paper = i == 0;
        same_bits_at(&c, 0, 0, 7);
    }
}

/* Anchors, momentum, residuals of codings, late deltas and the step in which they are applied. */
static void run_with_late_deltas_resumes_bit_identical(void **unused)
{
    static const ddp_wire wires[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8, DDP_WIRE_E3M0,
                                     DDP_WIRE_TOPK};

    (void)unused;
    for (int overlap = (int)DDP_OVERLAP_NONE; overlap <= (int)DDP_OVERLAP_EAGER; overlap++)
        for (int w = 0; w < 5; w++)
            for (long cut = 1; cut <= 9; cut += (1 + (w > 0)) * SAMPLED(3)) {
                ddp_config c = world_of(cut % 2 ? 3 : 2, DDP_DILOCO, 4);
                c.outer.overlap = (ddp_overlap)overlap;
                c.wire = wires[w];
                c.elastic.min_world = (int)(cut / 2 % 2);
                if (overlap == (int)DDP_OVERLAP_EAGER && cut % 2) c.outer.compensation = 0.5;
                if (overlap == (int)DDP_OVERLAP_STREAM && w % 2) {
                    c.outer.fragments = 3;
                    c.outer.landing = 2;
                }
                if (overlap == (int)DDP_OVERLAP_STREAM) c.net = "50mbit,1ms";
                same_bits_at(&c, w % 2, 0, cut);
            }
}

static void run_with_clipping_and_averaged_state_resumes(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
    ddp_config c = world_of(3, DDP_DREAMDDP, 4);
    leg whole = leg_of(NULL, 10), first = leg_of(folder, 7), second = leg_of(folder, 10);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    c.clip_norm = 0.5f;
    c.average.state = 1;
    first.save = second.load = 1;
    go(&c, &whole);
    go(&c, &first);
    go(&c, &second);
    assert_memory_equal(whole.hash, second.hash, sizeof whole.hash);
    remove_folder(folder);
}

/* Layers in parts: the step determines which parts were averaged and which are due. */
static void run_with_layer_parts_resumes(void **unused)
{
    (void)unused;
    for (long cut = 1; cut <= 8; cut++) {
        ddp_config c = world_of(3, DDP_DREAMDDP, 4);
        c.average.split_params = 20;
        c.average.state = (int)cut % 2;
        same_bits_at(&c, (int)cut % 3, cut % 4 == 0, cut);
    }
}

/* Split in each of the first twelve steps: the step determines the period in which the state is averaged. */
static void run_with_state_periods_resumes(void **unused)
{
    ddp_config c = world_of(3, DDP_DREAMDDP, 3);
    leg whole = leg_of(NULL, 16);

    (void)unused;
    c.average.state_period[0] = 2;
    c.average.state_period[1] = 3;
    go(&c, &whole);
    for (long cut = 1; cut < 12; cut += 2) {
        char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
        leg first = leg_of(folder, cut), second = leg_of(folder, 16);
        assert_non_null(mkdtemp(folder));
        first.save = second.load = 1;
        go(&c, &first);
        go(&c, &second);
        assert_memory_equal(whole.hash, second.hash, sizeof whole.hash);
        remove_folder(folder);
    }
}

static void only_a_synchronised_checkpoint_loads_in_another_world(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
    ddp_config two = world_of(2, DDP_SSGD, 3), four = world_of(4, DDP_LOCALSGD, 3), one;
    leg a = leg_of(folder, 4), b = leg_of(folder, 6);
    int r;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.save = b.load = 1;
    go(&two, &a);
    b.sync_all = 1;
    go(&four, &b);
    assert_int_equal(b.from, 2);
    assert_int_equal(b.first, 4);
    assert_true(b.taken == 4 * 2 + 2 * 4); /* four steps of two workers, two of four */
    for (r = 1; r < 4; r++) assert_true(b.hash[r] == b.hash[0]);
    one = world_of(1, DDP_WFBP, 3); /* no step to train: the saved parameters */
    b.last = 4;
    go(&one, &b);
    assert_true(b.hash[0] == a.hash[0]);
    remove_folder(folder);

    /* AdamW has separate state on each rank. Plain SGD has none, so after an average all values are equal */
    go(&four, &a);
    refused(&two, &b, DDP_MISMATCH, "4 workers with strategy localsgd and period 3, without synchronisation");
    refused(&one, &b, DDP_MISMATCH, "not with 1 workers, strategy wfbp");
    four.period = 2;
    refused(&four, &b, DDP_MISMATCH, "not with 4 workers, strategy localsgd and period 2");
    a.momentum = b.momentum = -1;
    remove_folder(folder);
    four.period = 4;
    go(&four, &a);
    b.last = 6;
    go(&two, &b);
    remove_folder(folder);
}

/* Under ssgd each rank has separate running statistics, which does not prevent another world size. */
static void buffers_load_in_another_world_by_rank(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
    ddp_config two = world_of(2, DDP_SSGD, 3), four = world_of(4, DDP_WFBP, 3),
               local = world_of(2, DDP_LOCALSGD, 3);
    leg a = leg_of(folder, 4), b = leg_of(folder, 4);
    int r;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.vision = b.vision = a.save = b.load = 1;
    go(&two, &a);
    assert_true(a.hash[0] != a.hash[1]);
    go(&four, &b); /* no step to train */
    for (r = 0; r < 4; r++) assert_true(b.hash[r] == a.hash[r % 2]);
    remove_folder(folder);
    go(&local, &a); /* in the middle of a period parameters differ too */
    refused(&four, &b, DDP_MISMATCH,
            "2 workers with strategy localsgd and period 3, without synchronisation");
    remove_folder(folder);
}

/* Gradients that deft has deferred belong to one rank until they are drained. */
static void deferred_gradients_block_another_world(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
    ddp_config two = world_of(2, DDP_DEFT, 3), four = world_of(4, DDP_DEFT, 3);
    leg a = leg_of(folder, 4), b = leg_of(folder, 6);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.save = b.load = 1;
    go(&two, &a);
    refused(&four, &b, DDP_MISMATCH, "2 workers with strategy deft and period 3, without synchronisation");
    remove_folder(folder);
    a.drained = 1;
    go(&two, &a);
    b.sync_all = 1;
    go(&four, &b);
    assert_int_equal(b.from, 2);
    assert_int_equal(b.first, 4);
    for (int r = 1; r < 4; r++) assert_true(b.hash[r] == b.hash[0]);
    remove_folder(folder);
}

static void change_byte(const char *folder, const char *file, long from_end)
{
    char path[200];
    FILE *f;
    int c;

    snprintf(path, sizeof path, "%s/step-%012d/%s", folder, 4, file);
    f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -from_end, SEEK_END);
    c = fgetc(f);
    fseek(f, -from_end, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

static void mismatched_checkpoint_is_rejected(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", path[100];
    ddp_config c = world_of(2, DDP_DREAMDDP, 3);
    leg a = leg_of(folder, 4), b = leg_of(folder, 6);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    b.load = 1;
    refused(&c, &b, DDP_IO, "has no complete checkpoint");
    a.save = 1;
    go(&c, &a);
    b.layers = 2;
    refused(&c, &b, DDP_MISMATCH, "to a model with 4 layers, but this model has 6");
    b.layers = 1;
    b.width = 8;
    refused(&c, &b, DDP_MISMATCH, "layer embed has 108 parameters in ");
    refused(&c, &b, DDP_MISMATCH,
            " and 144 here: resume with the same model (vocabulary, width, sequence length)");
    b.width = 0;
    b.heads = 3;
    refused(&c, &b, DDP_MISMATCH, "sizes or arguments (for example vocabulary, heads or sequence length)");
    b.heads = 0;
    b.vision = 1;
    refused(&c, &b, DDP_MISMATCH, "another model: its layer 0 is \"embed\", but here it is \"conv1\"");
    b.vision = 0;
    b.momentum = 1;
    refused(&c, &b, DDP_MISMATCH, "optimizer adamw, but this run uses sgd");
    b.momentum = 0;
    change_byte(folder, "rank-0001.safetensors", 9);
    refused(&c, &b, DDP_FORMAT, "rank-0001.safetensors: its hash is");
    change_byte(folder, "rank-0001.safetensors", 9);
    go(&c, &b);
    snprintf(path, sizeof path, "%s/step-%012d/rank-0001.safetensors", folder, 4);
    assert_int_equal(truncate(path, 900), 0);
    refused(&c, &b, DDP_FORMAT, "rank-0001.safetensors");
    remove(path);
    refused(&c, &b, DDP_IO, "rank-0001.safetensors: No such file");
    assert_int_equal(symlink("rank-0001.safetensors", path), 0); /* the file exists, but cannot be read */
    refused(&c, &b, DDP_IO, "rank-0001.safetensors: Too many levels of symbolic links");
    remove(path);
    snprintf(path, sizeof path, "%s/step-%012d/manifest.json", folder, 4);
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    refused(&c, &b, DDP_FORMAT, "manifest.json has 1099511627776 bytes, but a manifest has at most 67108864");
    remove(path);
    refused(&c, &b, DDP_IO, "has no complete checkpoint");
    remove_folder(folder);
    refused(&c, &b, DDP_IO, "cannot read");
    a.folder = "/proc/no/such";
    refused(&c, &a, DDP_IO, "cannot create the folder");
}

/* If the manifest of a step cannot be read, no older step is loaded instead. */
static void unreadable_manifest_is_an_error(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", path[100];
    ddp_config c = world_of(2, DDP_WFBP, 3);
    leg a = leg_of(folder, 4), b = leg_of(folder, 8);
    int code;
    pid_t child;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.save = 1;
    go(&c, &a);
    b.load = b.save = 1;
    go(&c, &b);
    snprintf(path, sizeof path, "%s/step-%012d/manifest.json", folder, 8);
    assert_int_equal(chmod(folder, 0755) | chmod(path, 0), 0);
    child = fork(); /* root can read everything */
    if (!child) {
        if (geteuid() == 0 && (setgid(65534) || setuid(65534))) _exit(2);
        b.save = 0;
        b.last = 10;
        refused(&c, &b, DDP_IO, "manifest.json: Permission denied");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    remove_folder(folder);
}

static int there(const char *folder, int step)
{
    char path[100];

    snprintf(path, sizeof path, "%s/step-%012d", folder, step);
    return access(path, F_OK) == 0;
}

static void newest_checkpoints_are_retained(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX";
    ddp_config c = world_of(2, DDP_WFBP, 3);
    leg a = leg_of(folder, 9);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.save = 1;
    a.save_every = 2;
    a.keep = 2;
    go(&c, &a);
    assert_true(!there(folder, 2) && !there(folder, 6) && there(folder, 8) && there(folder, 9));
    a.keep = 0;
    a.load = 1;
    a.last = 13;
    go(&c, &a);
    assert_true(there(folder, 8) && there(folder, 9));
    assert_true(there(folder, 10) && there(folder, 12) && there(folder, 13));
    remove_folder(folder);
}

/* A run that did not resume from the checkpoints in its folder neither replaces nor removes them. */
static void checkpoints_of_another_run_are_not_replaced(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", look[100];
    ddp_config c = world_of(2, DDP_WFBP, 3);
    leg a = leg_of(folder, 8), b = leg_of(folder, 8), other;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.save = 1;
    a.save_every = 4;
    b.load = 1;
    other = a;
    other.data = 1;
    other.keep = 1;
    go(&c, &a);
    refused(&c, &other, DDP_ARG, "has a checkpoint of another run (step 4): resume from it");
    other.last = 3; /* there is no step with the same number */
    refused(&c, &other, DDP_ARG, "has a checkpoint of another run (step 8): resume from it");
    go(&c, &b);
    assert_memory_equal(b.hash, a.hash, sizeof a.hash);
    snprintf(look, sizeof look, "test $(ls %s/step-%012d | wc -l) = 3", folder, 8);
    assert_int_equal(system(look), 0);
    a.load = 1;
    a.last = 12; /* a resumed run is the same run */
    go(&c, &a);
    assert_true(there(folder, 4) && there(folder, 8) && there(folder, 12));
    c.debug.overwrite = 1;
    go(&c, &other);
    assert_true(there(folder, 3));
    assert_true(!there(folder, 4) && !there(folder, 8) && !there(folder, 12));
    go(&c, &b);
    assert_int_equal(b.first, 3); /* not a step 12 that this run never saved */
    remove_folder(folder);
}

/* Machines without a shared disk: each has the manifest and the files of its ranks. */
static void ranks_with_separate_disks_resume(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", elsewhere[] = "/tmp/ddp_checkpoint_XXXXXX", path[200];
    ddp_config c = world_of(4, DDP_DREAMDDP, 3), two = world_of(2, DDP_LOCALSGD, 3);
    leg whole = leg_of(NULL, 11), first = leg_of(folder, 5), second = leg_of(folder, 11),
        other = leg_of(NULL, 3);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    /* a killed save of the same step left a file of rank 0 on the other machine */
    snprintf(path, sizeof path, "cd %s/1 && mkdir step-%012d && touch step-%012d/rank-0000.safetensors",
             folder, 5, 5);
    assert_int_equal(system(path), 0);
    first.apart = second.apart = 1;
    first.save = second.load = other.save = 1;
    first.save_every = 3;
    first.keep = 2;
    go(&c, &whole);
    go(&c, &first);
    for (int i = 0; i < 2; i++) { /* steps 3 and 5 on both machines, two files and the manifest */
        snprintf(path, sizeof path,
                 "cd %s/%d && test $(ls | wc -l) = 2 && "
                 "test $(ls step-%012d | wc -l) = 3",
                 folder, i, 5);
        assert_int_equal(system(path), 0);
    }
    go(&c, &second);
    assert_int_equal(second.first, 5);
    assert_memory_equal(second.hash, whole.hash, sizeof whole.hash);
    second.apart = 2;
    refused(&c, &second, DDP_IO, "start each rank on the machine with its file");
    second.apart = 1;
    /* the last save was completed on one machine only */
    snprintf(path, sizeof path, "%s/1/step-%012d/manifest.json", folder, 5);
    assert_int_equal(remove(path), 0);
    go(&c, &second);
    assert_int_equal(second.first, 3);
    assert_memory_equal(second.hash, whole.hash, sizeof whole.hash);
    /* a checkpoint of another run with the same step on one machine */
    other.folder = elsewhere;
    assert_non_null(mkdtemp(elsewhere));
    go(&c, &other);
    snprintf(path, sizeof path, "cp %s/step-%012d/* %s/1/step-%012d && rm -r %s", elsewhere, 3, folder, 3,
             elsewhere);
    assert_int_equal(system(path), 0);
    refused(&c, &second, DDP_MISMATCH, "have checkpoints of different runs");
    snprintf(path, sizeof path, "%s/1/step-%012d/manifest.json", folder, 3);
    assert_int_equal(remove(path), 0);
    refused(&c, &second, DDP_IO, " has ");
    remove_folder(folder);

    /* a synchronised checkpoint, and a smaller world in which each rank finds some rank's file */
    assert_non_null(mkdtemp(strcpy(folder, "/tmp/ddp_checkpoint_XXXXXX")));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    c = world_of(4, DDP_SSGD, 3);
    first.keep = 0;
    go(&c, &first);
    second.last = 6;
    go(&two, &second);
    assert_int_equal(second.from, 4);
    second.apart = 2; /* the other disk has ranks 2 and 3 */
    go(&two, &second);
    remove_folder(folder);
}

/* The remains of a killed run are ignored, and removed with the older checkpoints. */
static void incomplete_checkpoint_is_ignored(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", path[200];
    ddp_config c = world_of(2, DDP_WFBP, 3);
    leg a = leg_of(folder, 4), b = leg_of(folder, 4);
    FILE *f;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.save = b.load = 1;
    go(&c, &a);
    snprintf(path, sizeof path, "cd %s && cp -r step-%012d step-%012d && rm step-%012d/*.json", folder, 4, 7,
             7);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/step-%012d/manifest.json.tmp.123", folder, 7);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("{", f);
    fclose(f);
    go(&c, &b);
    assert_int_equal(b.first, 4);
    assert_memory_equal(b.hash, a.hash, sizeof a.hash);
    a.last = 9;
    a.keep = 1;
    c.debug.overwrite = 1;
    go(&c, &a);
    assert_true(there(folder, 9) && !there(folder, 7) && !there(folder, 4));
    remove_folder(folder);
}

/* The files exist, but the manifest cannot be written: the previous checkpoint loads. */
static void failed_save_leaves_the_previous_checkpoint(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", path[200];
    ddp_config c = world_of(2, DDP_DREAMDDP, 3);
    leg a = leg_of(folder, 4), b = leg_of(folder, 4), other;

    (void)unused;
    c.debug.overwrite = 1;
    assert_non_null(mkdtemp(folder));
    a.save = b.load = 1;
    other = a;
    other.data = 1;
    go(&c, &a);
    snprintf(path, sizeof path, "%s/step-%012d/manifest.json.tmp.%ld", folder, 4, (long)getpid());
    assert_int_equal(mkdir(path, 0700), 0);
    refused(&c, &other, DDP_IO, "cannot write");
    assert_memory_not_equal(a.hash, other.hash, sizeof a.hash);
    go(&c, &b);
    assert_memory_equal(b.hash, a.hash, sizeof a.hash);
    assert_int_equal(rmdir(path), 0);
    go(&c, &other); /* replaces the incomplete checkpoint */
    go(&c, &b);
    assert_memory_equal(b.hash, other.hash, sizeof a.hash);
    go(&c, &a); /* and back: the two names of a file alternate */
    go(&c, &b);
    assert_memory_equal(b.hash, a.hash, sizeof a.hash);
    snprintf(path, sizeof path, "test $(ls %s/step-%012d | wc -l) = 3", folder, 4);
    assert_int_equal(system(path), 0); /* two files and the manifest */
    remove_folder(folder);
}

/* Saves one step again and again, of two trainings in turn, until it is killed. */
static void save_for_ever(const ddp_config *c, const leg *x)
{
    leg again = *x;
    ddp_error err;

    for (;; again.data = 1 - again.data)
        if (ddp_launch(c, run_leg, &again, &err)) _exit(1);
}

/* Waits until that process writes a rank's file, at most 20 s. */
static void wait_for_save(const char *folder, int step, pid_t writer)
{
    char path[2][200];
    int i;

    for (i = 0; i < 2; i++)
        snprintf(path[i], sizeof path[i], "%s/step-%012d/rank-0000%s.safetensors.tmp.%ld", folder, step,
                 i ? "-again" : "", (long)writer);
    for (i = 0; i < 200000 && access(path[0], F_OK) && access(path[1], F_OK); i++) usleep(100);
}

/* A run that is killed at any moment of a save leaves a complete checkpoint of one of the trainings. */
static void kill_during_a_save_leaves_a_complete_checkpoint(void **unused)
{
    char folder[] = "/tmp/ddp_checkpoint_XXXXXX", look[200];
    ddp_config c = world_of(2, DDP_DREAMDDP, 3);
    leg a = leg_of(folder, 3), other, b;
    unsigned i, half = 0;
    int code;

    (void)unused;
    c.debug.overwrite = 1;
    assert_non_null(mkdtemp(folder));
    a.width = 48; /* files of 700 KB: most kills happen during a save */
    a.save = 1;
    b = other = a;
    b.save = 0;
    b.load = 1;
    other.data = 1;
    go(&c, &other);
    go(&c, &a);
    assert_memory_not_equal(a.hash, other.hash, sizeof a.hash);
    snprintf(look, sizeof look, "ls %s/step-%012d | grep -q tmp", folder, 3);
    for (i = 0; i < 8; i++) {
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) save_for_ever(&c, &a);
        wait_for_save(folder, 3, child);
        usleep(400 * i);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_true(WIFSIGNALED(code)); /* every save before the kill succeeded */
        half += !system(look);
        b.first = 0;
        go(&c, &b);
        assert_int_equal(b.first, 3);
        if (memcmp(b.hash, a.hash, sizeof a.hash)) /* both ranks have the same training */
            assert_memory_equal(b.hash, other.hash, sizeof a.hash);
    }
    assert_true(half > 0);
    print_message("%u of 8 kills left half a file\n", half);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_run_is_bit_identical),
        cmocka_unit_test(run_with_servers_resumes_bit_identical),
        cmocka_unit_test(run_with_late_deltas_resumes_bit_identical),
        cmocka_unit_test(run_with_clipping_and_averaged_state_resumes),
        cmocka_unit_test(run_with_layer_parts_resumes),
        cmocka_unit_test(run_with_state_periods_resumes),
        cmocka_unit_test(only_a_synchronised_checkpoint_loads_in_another_world),
        cmocka_unit_test(deferred_gradients_block_another_world),
        cmocka_unit_test(buffers_load_in_another_world_by_rank),
        cmocka_unit_test(mismatched_checkpoint_is_rejected),
        cmocka_unit_test(unreadable_manifest_is_an_error),
        cmocka_unit_test(newest_checkpoints_are_retained),
        cmocka_unit_test(checkpoints_of_another_run_are_not_replaced),
        cmocka_unit_test(ranks_with_separate_disks_resume),
        cmocka_unit_test(incomplete_checkpoint_is_ignored),
        cmocka_unit_test(failed_save_leaves_the_previous_checkpoint),
        cmocka_unit_test(kill_during_a_save_leaves_a_complete_checkpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
