/* All data on a device is accessed through the backend table, and results are bit-identical to the CPU.
 * The fake device's memory cannot be accessed in any other way. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#undef DDP__METER_AGREE /* one case compares measured links, so they are measured with the usual number of
                         * transfers */
#undef DDP__PROBE_LAST_S
#include "measure/timing.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "nn/exact.h"
#include "device/fake_device.h"
#include "strategy/strategy_lab.h"

static void equal_to_the_cpu(ddp_strategy strategy, lab_model model, lab_rule rule, int world, float clip,
                             int state)
{
    const ddp_backend b = fake_backend();
    lab cpu, device;
    int r;

    lab_new(&cpu, world, strategy, 3);
    lab_new(&device, world, strategy, 3);
    cpu.model = device.model = model;
    cpu.rule = device.rule = rule;
    cpu.cfg.clip_norm = device.cfg.clip_norm = clip;
    cpu.cfg.average.state = device.cfg.average.state = state;
    device.cfg.backend = &b;
    lab_run(&cpu);
    lab_run(&device);
    assert_true(*cpu.values > 0);
    for (r = 0; r < world; r++) {
        assert_memory_equal(cpu.params[r], device.params[r], *cpu.values * sizeof(float));
        assert_int_equal(cpu.stats[r].divergence > 0, device.stats[r].divergence > 0);
    }
    assert_int_equal(fake.alive, 0);
    lab_free(&cpu);
    lab_free(&device);
}

static void every_strategy_is_bit_identical_to_the_cpu(void **state)
{
    int s;

    (void)state;
    for (s = (int)DDP_SSGD; s <= (int)DDP_DREAMDDP; s++) {
        equal_to_the_cpu((ddp_strategy)s, LAB_GPT, LAB_ADAMW, 3, 0, s % 2);
        equal_to_the_cpu((ddp_strategy)s, LAB_MLP, LAB_MOMENTUM, 2, 0.5f, 0);
    }
    equal_to_the_cpu(DDP_SSGD, LAB_GPT, LAB_SGD, 1, 0.5f, 0);
}

/* ---- graphs alone: convolutions, running statistics, segments, masks ---- */

typedef struct picture {
    float *params, *buffers, loss[4], value, out[20];
    size_t params_count, buffers_count;
} picture;

static ddp_node *picture_model(ddp_graph *g, ddp_node **shown)
{
    ddp_shape s;
    ddp_node *x, *y;

    memset(&s, 0, sizeof s);
    s.dims = 4;
    s.dim[0] = 2;
    s.dim[1] = 3;
    s.dim[2] = s.dim[3] = 6;
    x = ddp_input_shape(g, "pixels", DDP_F32, &s);
    y = ddp_input(g, "labels", DDP_I32, 2, 1);
    ddp_recompute_begin(g);
    ddp_layer_begin(g, "conv");
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 1)));
    x = ddp_dropout(g, ddp_max_pool2d(g, x, 2, 2, 0), 0.3f);
    ddp_layer_end(g);
    ddp_recompute_end(g);
    ddp_layer_begin(g, "head");
    *shown = x = ddp_linear(g, ddp_flatten(g, x), 10);
    x = ddp_cross_entropy(g, x, y);
    ddp_layer_end(g);
    return x;
}

static void picture_train(const ddp_backend *b, const char *load, const char *save, picture *p)
{
    ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
    ddp_node *shown, *loss;
    ddp_rng r = ddp_rng_seed(5, 5);
    ddp_config cfg;
    ddp_error err;
    ddp_graph *g;
    ddp_ctx *d;
    float *pixels;
    int step, i;

    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    cfg.backend = b;
    cfg.seed = 3;
    d = ddp_open(&cfg, &err);
    assert_non_null(d);
    g = ddp_graph_new(d);
    loss = picture_model(g, &shown);
    assert_int_equal(ddp_graph_build(g), 0);
    if (load) assert_int_equal(ddp_weights_load(g, load, &err), 0);
    assert_int_equal(ddp_set_optimizer(d, &o), 0);
    pixels = (float *)ddp_data(g, "pixels");
    for (step = 0; step < 4; step++) {
        for (i = 0; i < 216; i++) pixels[i] = (float)ddp_rng_normal(&r);
        ((int32_t *)ddp_data(g, "labels"))[0] = step;
        assert_int_equal(ddp_forward(g), 0);
        assert_int_equal(ddp_backward(g, loss), 0);
        p->loss[step] = ddp_value(g, loss);
        assert_int_equal(ddp_step_end(d), 0);
    }
    assert_int_equal(ddp_evaluate(g), 0);
    memcpy(p->out, ddp_output(g, shown), sizeof p->out);
    p->value = ddp_value(g, loss);
    assert_true(isnan(ddp_value(g, shown)));
    p->params = ddp_layer_params(g, 0, &p->params_count);
    p->buffers = ddp_layer_buffers(g, 0, &p->buffers_count);
    for (i = 0; i < 2; i++) {
        float **from = i ? &p->buffers : &p->params;
        const size_t n = i ? p->buffers_count : p->params_count;
        float *copy = (float *)calloc(n, sizeof *copy);
        assert_int_equal(ddp_graph_read(g, copy, *from, n), 0);
        *from = copy;
    }
    if (save) assert_int_equal(ddp_weights_save(g, save, &err), 0);
    ddp_close(d);
    assert_int_equal(fake.alive, 0);
}

static void picture_compare(picture *a, picture *b)
{
    assert_int_equal(a->params_count, b->params_count);
    assert_memory_equal(a->params, b->params, a->params_count * sizeof(float));
    assert_memory_equal(a->buffers, b->buffers, a->buffers_count * sizeof(float));
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->out, b->out, sizeof a->out);
    assert_memory_equal(&a->value, &b->value, sizeof a->value);
    free(a->params);
    free(a->buffers);
    free(b->params);
    free(b->buffers);
}

static void image_graph_is_bit_identical_to_the_cpu(void **state)
{
    const ddp_backend fakes = fake_backend();
    picture cpu, device;

    (void)state;
    picture_train(NULL, NULL, NULL, &cpu);
    picture_train(&fakes, NULL, NULL, &device);
    picture_compare(&cpu, &device);
}

/* ---- steps in which no rank has a gradient ---- */

enum { STILL = 400 };

static int still(ddp_ctx *d, void *user)
{
    float(*seen)[STILL] = (float(*)[STILL])user;
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    ddp_graph *g = ddp_graph_new(d);
    ddp_mlp_config c;
    ddp_node *loss;
    size_t n;
    int bad;

    memset(&c, 0, sizeof c);
    c.batch = 3;
    c.inputs = 5;
    c.hidden[0] = 7;
    c.classes = 3;
    loss = ddp_mlp(g, &c, NULL);
    bad = ddp_graph_build(g) || ddp_set_optimizer(d, &o);
    for (int step = 0; step < 6 && !bad; step++) {
        for (int i = 0; i < 15; i++)
            ((float *)ddp_data(g, "inputs"))[i] = (float)((i + step + ddp_rank(d)) % 5);
        for (int i = 0; i < 3; i++) ((int32_t *)ddp_data(g, "labels"))[i] = (i + step) % 3;
        bad = ddp_forward(g);
        for (int l = ddp_layer_count(g) - 1; step >= 3 && l >= 0 && !bad; l--) bad = ddp_skip(d, l);
        if (step < 3 && !bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
        if (!bad && step % 3 == 2) bad = ddp_sync_all(d);
        if (!bad && step % 3 == 2 && ddp_rank(d) == 0) {
            const float *first = ddp_layer_params(g, 0, &n);
            bad = ddp_graph_read(g, seen[step / 3], first, n < STILL ? n : (size_t)STILL);
        }
    }
    return bad;
}

static void layers_without_a_gradient_do_not_change(void **state)
{
    static const ddp_strategy some[] = {DDP_WFBP, DDP_BYTESCHEDULER, DDP_DEFT,
                                        DDP_BSP,  DDP_DILOCO,        DDP_LOCALSGD};
    const ddp_backend b = fake_backend();
    ddp_config c;
    ddp_error err;

    (void)state;
    for (int s = 0; s < 6; s++) {
        float seen[2][STILL];
        memset(seen, 0, sizeof seen);
        memset(&c, 0, sizeof c);
        c.world = 2;
        c.period = 3;
        c.strategy = some[s];
        c.backend = &b;
        c.no_env = c.deterministic = 1;
        c.transport = DDP_THREADS;
        if (ddp_strategy_traits(some[s]) & DDP_NEEDS_SERVERS) c.server.count = DDP_SERVERS_COLOCATED;
        if (ddp_launch(&c, still, seen, &err)) fail_msg("%s: %s", ddp_strategy_name(some[s]), err.msg);
        if (memcmp(seen[0], seen[1], sizeof seen[0]))
            fail_msg("%s: skipped layers moved", ddp_strategy_name(some[s]));
        assert_true(seen[0][0] != 0);
    }
}

static void weights_are_saved_from_and_loaded_to_a_device(void **state)
{
    const ddp_backend fakes = fake_backend();
    char one[] = "/tmp/backend_weights_XXXXXX";
    picture cpu, device;

    (void)state;
    close(mkstemp(one));
    picture_train(&fakes, NULL, one, &device);
    free(device.params);
    free(device.buffers);
    picture_train(NULL, one, NULL, &cpu);
    picture_train(&fakes, one, NULL, &device);
    picture_compare(&cpu, &device);
    remove(one);
}

/* ---- checkpoints ---- */

typedef struct journey {
    const char *save, *load;
    int steps;
    float params[LAB_VALUES];
} journey;

static int journey_run(ddp_ctx *d, void *user)
{
    journey *j = (journey *)user;
    ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
    ddp_graph *g = ddp_graph_new(d);
    ddp_mlp_config c;
    ddp_node *loss;
    size_t at = 0, n;
    int bad, l;

    memset(&c, 0, sizeof c);
    c.batch = 3;
    c.inputs = 5;
    c.hidden[0] = 7;
    c.hidden[1] = 9;
    c.classes = 3;
    loss = ddp_mlp(g, &c, NULL);
    bad = ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && j->load) bad = ddp_checkpoint_load(d, j->load, NULL);
    while (!bad && ddp_step(d) < j->steps) {
        float *in = (float *)ddp_data(g, "inputs");
        int i;
        for (i = 0; i < 15; i++) in[i] = (float)((ddp_step(d) * 7 + i * ddp_rank(d)) % 5) - 2;
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad && j->save) bad = ddp_checkpoint_save(d, j->save, 1);
    if (!bad) bad = ddp_wait(d);
    for (l = 0; !bad && !ddp_rank(d) && l < ddp_layer_count(g); l++, at += n) {
        const float *p = ddp_layer_params(g, l, &n);
        bad = ddp_graph_read(g, j->params + at, p, n);
    }
    return bad;
}

static void journey_go(const ddp_backend *b, journey *j)
{
    ddp_config cfg;
    ddp_error err;

    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    cfg.world = 2;
    cfg.transport = DDP_THREADS;
    cfg.backend = b;
    cfg.period = 3;
    cfg.deterministic = cfg.debug.overwrite = 1;
    if (ddp_launch(&cfg, journey_run, j, &err)) fail_msg("%s", err.msg);
    assert_int_equal(fake.alive, 0);
}

static void checkpoint_moves_between_device_and_cpu(void **state)
{
    const ddp_backend fakes = fake_backend();
    static journey whole, first, second;
    char folder[] = "/tmp/backend_checkpoint_XXXXXX", command[80];

    (void)state;
    assert_non_null(mkdtemp(folder));
    whole.steps = second.steps = 8;
    first.steps = 4;
    first.save = second.load = folder;
    journey_go(NULL, &whole);
    journey_go(&fakes, &first);
    journey_go(NULL, &second);
    assert_memory_equal(whole.params, second.params, sizeof whole.params);
    journey_go(NULL, &first);
    memset(second.params, 0, sizeof second.params);
    journey_go(&fakes, &second);
    assert_memory_equal(whole.params, second.params, sizeof whole.params);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- failures ---- */

static const char *sentence_of(ddp_config *cfg, lab_model model)
{
    static char text[DDP_ERROR_TEXT];
    ddp_error err;
    lab x;

    lab_new(&x, 2, DDP_DREAMDDP, 3);
    x.cfg.backend = cfg->backend;
    x.cfg.elastic.min_world = cfg->elastic.min_world;
    x.cfg.device.nccl = cfg->device.nccl;
    x.cfg.site = cfg->site;
    x.cfg.network.net2 = cfg->network.net2;
    x.cfg.device.cuda_stream = cfg->device.cuda_stream;
    x.model = model;
    memset(&err, 0, sizeof err);
    assert_int_not_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), 0);
    snprintf(text, sizeof text, "%s", err.msg);
    lab_free(&x);
    assert_int_equal(fake.alive, 0);
    return text;
}

static void unsupported_settings_fail_with_an_error(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_backend lone = fake_backend();
    ddp_config cfg;

    (void)state;
    lone.join = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.device.nccl = 1;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "nccl"));
    cfg.backend = &lone;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "nccl"));
    cfg.backend = &b;
    cfg.device.nccl = 3;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "nccl 3"));
    cfg.device.nccl = 2;
    cfg.site = 4;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "set nccl to 1"));
    cfg.site = 0;
    cfg.network.net2 = "1Gbit";
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "set nccl to 2"));
    cfg.network.net2 = NULL;
    cfg.device.nccl = 1;
    cfg.elastic.min_world = 1;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "elastic"));
    cfg.elastic.min_world = cfg.device.nccl = 0;
    cfg.backend = NULL;
    cfg.device.cuda_stream = &cfg;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "cuda_stream"));
}

static int builds_llama(ddp_ctx *d, void *user)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_llama2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 11;
    c.context = 5;
    c.layers = 1;
    c.heads = 2;
    c.dim = 8;
    c.batch = 2;
    (void)ddp_llama2(g, &c, NULL);
    assert_int_equal(ddp_graph_build(g), DDP_UNSUPPORTED);
    snprintf((char *)user, DDP_ERROR_TEXT, "%s", ddp_graph_error(g)->msg);
    return 0;
}

static void missing_memory_and_kernels_are_named(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_config cfg;
    char text[DDP_ERROR_TEXT] = "";
    const char *why;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.backend = &b;
    cfg.no_env = 1;
    assert_int_equal(ddp_launch(&cfg, builds_llama, text, NULL), 0);
    assert_non_null(strstr(text, "rms_norm"));
    assert_non_null(strstr(text, "no kernel for the fake backend"));
    /* too little memory for the memory plan, and for a later allocation */
    for (fake.limit = 1000; fake.limit < 12000; fake.limit += 5000) {
        ddp_config one = cfg;
        ddp_graph *g;
        ddp_gpt2_config c;
        ddp_ctx *d = ddp_open(&one, NULL);

        memset(&c, 0, sizeof c);
        c.vocabulary = 11;
        c.context = 5;
        c.layers = 1;
        c.heads = 3;
        c.dim = 9;
        c.batch = 2;
        g = ddp_graph_new(d);
        (void)ddp_gpt2(g, &c, NULL);
        assert_int_equal(ddp_graph_build(g), DDP_MEMORY);
        why = ddp_graph_error(g)->msg;
        assert_non_null(strstr(why, "the graph needs"));
        assert_non_null(strstr(why, "the device has"));
        ddp_close(d);
        assert_int_equal(fake.alive, 0);
    }
    fake.limit = 0;
    fake.no_slots = 1;
    assert_non_null(strstr(sentence_of(&cfg, LAB_MLP), "pinned"));
    fake.no_slots = 0;
}

static void failure_in_a_step_ends_all_ranks(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_config cfg;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.backend = &b;
    for (fake.fail_at = 60; fake.fail_at < 260; fake.fail_at += 37)
        assert_non_null(strstr(sentence_of(&cfg, LAB_GPT), "the fake device failed"));
    fake.fail_at = 0;
}

/* The device accepts more work only when it has received the messages before. Its stager must not need a lock
 * that the call holds. */
static void full_device_still_receives_messages(void **state)
{
    (void)state;
    fake.full = 1;
    equal_to_the_cpu(DDP_DREAMDDP, LAB_MLP, LAB_MOMENTUM, 2, 0, 0);
    equal_to_the_cpu(DDP_WFBP, LAB_MLP, LAB_MOMENTUM, 2, 0, 0);
    fake.full = 0;
    assert_int_equal(fake.stuck, 0);
}

static int leaves_early(ddp_ctx *d, void *user)
{
    lab x = *(lab *)user;

    if (ddp_rank(d) == 1) x.steps = 4; /* and closes its context while others wait for it */
    return lab_graph(d, &x);
}

static void lost_peer_is_an_error_without_a_hang(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_error err;
    lab x;

    (void)state;
    lab_new(&x, 2, DDP_LOCALSGD, 3);
    x.cfg.transport = DDP_TCP;
    x.cfg.backend = &b;
    x.model = LAB_MLP;
    x.no_sync_all = 1;
    assert_int_not_equal(ddp_launch(&x.cfg, leaves_early, &x, &err), 0);
    assert_non_null(strstr(err.msg, "rank"));
    lab_free(&x);
}

/* ---- elastic worlds ---- */

/* Rank 2 exits between two steps, with no message in flight. The other ranks continue without it. */
static int dies_in_the_middle(ddp_ctx *d, void *user)
{
    lab *x = (lab *)user;
    ddp_optimizer o = lab_optimizer(x->rule);
    ddp_graph *g = ddp_graph_new(d);
    ddp_mlp_config c;
    ddp_node *loss;
    size_t at = 0, n;
    int bad, i, l;

    memset(&c, 0, sizeof c);
    c.batch = 3;
    c.inputs = 5;
    c.hidden[0] = 7;
    c.hidden[1] = 9;
    c.classes = 3;
    loss = ddp_mlp(g, &c, NULL);
    bad = ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    while (!bad && ddp_step(d) < x->steps) {
        float *in = (float *)ddp_data(g, "inputs");
        if (ddp_step(d) == 4) bad = ddp_wait(d);
        if (!bad && ddp_step(d) == 4) bad = ddp_barrier(d);
        if (ddp_step(d) == 4 && ddp_rank(d) == 2) _exit(0);
        for (i = 0; i < 15; i++) in[i] = (float)((ddp_step(d) * 7 + i * (1 + ddp_rank(d))) % 5) - 2;
        if (!bad) bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = ddp_workers(d) != 2;
    for (l = 0; !bad && l < ddp_layer_count(g); l++, at += n) {
        const float *p = ddp_layer_params(g, l, &n);
        bad = ddp_graph_read(g, x->params[ddp_rank(d)] + at, p, n);
    }
    if (ddp_rank(d) == 0) *x->values = at;
    return bad;
}

static void devices_continue_without_a_lost_rank(void **state)
{
    const ddp_backend b = fake_backend();
    int s;

    (void)state;
    for (s = (int)DDP_SSGD; s <= (int)DDP_DREAMDDP; s++) {
        ddp_error err;
        lab cpu, device;
        lab *run[2];
        int k;
        run[0] = &cpu;
        run[1] = &device;
        for (k = 0; k < 2; k++) {
            lab_new(run[k], 3, (ddp_strategy)s, 3);
            run[k]->rule = LAB_ADAMW;
            run[k]->cfg.transport = DDP_TCP;
            run[k]->cfg.elastic.min_world = 2;
            run[k]->cfg.backend = k ? &b : NULL;
            if (ddp_launch(&run[k]->cfg, dies_in_the_middle, run[k], &err))
                fail_msg("%s, %s: %s", ddp_strategy_name((ddp_strategy)s), k ? "device" : "CPU", err.msg);
            assert_true(*run[k]->values > 100);
            assert_memory_equal(run[k]->params[0], run[k]->params[1], *run[k]->values * sizeof(float));
        }
        assert_memory_equal(cpu.params[0], device.params[0], *cpu.values * sizeof(float));
        lab_free(&cpu);
        lab_free(&device);
    }
}

/* ---- network between devices ---- */

/* Sets the site of each rank, because ddp_launch has one setting for all. */
static int in_its_site(ddp_ctx *d, void *user)
{
    lab *x = (lab *)user;

    d->cfg.site = ddp_rank(d) < x->cfg.site ? 1 : 2;
    return x->model == LAB_TINY || x->model == LAB_ODD ? lab_hand(d, x) : lab_graph(d, x);
}

static void networks_give_the_cpus_bits(ddp_strategy strategy, lab_model model, lab_rule rule, int world,
                                        int nccl, int first_site, fake_net *did)
{
    const ddp_backend b = fake_backend();
    ddp_error err;
    lab cpu, device;
    int r;

    lab_new(&cpu, world, strategy, 3);
    lab_new(&device, world, strategy, 3);
    cpu.model = device.model = model;
    cpu.rule = device.rule = rule;
    cpu.cfg.site = device.cfg.site = first_site;
    device.cfg.backend = &b;
    device.cfg.device.nccl = nccl;
    cpu.cfg.debug.trace_spans = device.cfg.debug.trace_spans = 0;
    if (ddp_launch(&cpu.cfg, in_its_site, &cpu, &err)) fail_msg("%s", err.msg);
    if (ddp_launch(&device.cfg, in_its_site, &device, &err)) fail_msg("%s", err.msg);
    for (r = 0; r < world; r++)
        assert_memory_equal(cpu.params[r], device.params[r], *cpu.values * sizeof(float));
    assert_int_equal(fake.alive, 0);
    *did = fake_nets();
    lab_free(&cpu);
    lab_free(&device);
}

static void device_network_is_bit_identical_to_the_cpu(void **state)
{
    fake_net did;
    int s;

    (void)state;
    for (s = (int)DDP_SSGD; s <= (int)DDP_DREAMDDP; s++) {
        networks_give_the_cpus_bits((ddp_strategy)s, LAB_GPT, LAB_ADAMW, 3, 1, 0, &did);
        assert_int_equal(did.joined, 1);
        assert_true(did.averages > 3 && did.sums == 0 && did.spreads == 0);
    }
}

/* The hierarchical all-reduce runs two of its three sums on the devices, for any size of sites. Also with
 * one rank per site, and with one site. */
static void hierarchical_all_reduce_is_bit_identical_to_the_cpu(void **state)
{
    fake_net did;
    long follows;
    int s;

    (void)state;
    for (s = (int)DDP_SSGD; s <= (int)DDP_DREAMDDP; s++) {
        fake.follows = 0;
        networks_give_the_cpus_bits((ddp_strategy)s, LAB_GPT, LAB_ADAMW, 4, 1, 2, &did);
        follows = fake.follows;
        assert_int_equal(did.joined, 2);
        assert_true(did.averages == 0 && did.sums > 6 && did.spreads == did.sums);
        assert_int_equal(follows, did.sums); /* messages of the first rank of each site */
        networks_give_the_cpus_bits((ddp_strategy)s, LAB_MLP, LAB_MOMENTUM, 3, 1, 2, &did);
        assert_int_equal(did.joined, 2);
        assert_true(did.sums > 6);
    }
    networks_give_the_cpus_bits(DDP_DREAMDDP, LAB_GPT, LAB_SGD, 2, 1, 1, &did);
    assert_int_equal(did.joined, 2);
    networks_give_the_cpus_bits(DDP_DREAMDDP, LAB_GPT, LAB_SGD, 3, 1, 3, &did);
    assert_true(did.joined == 1 && did.averages > 0 && did.sums == 0);
}

typedef struct both_links {
    lab lab;
    ddp_link_stats stats[2];
    int links, layers, over_the_second;
} both_links;

static int over_both(ddp_ctx *d, void *user)
{
    both_links *x = (both_links *)user;
    int bad = lab_graph(d, &x->lab), k;

    if (ddp_rank(d)) return bad;
    x->links = ddp_links(d);
    x->layers = d->layers;
    for (k = x->over_the_second = 0; k < d->layers; k++) x->over_the_second += d->unit[k].link;
    for (k = 0; !bad && k < 2; k++) bad = ddp_get_link_stats(d, k, &x->stats[k]);
    return bad;
}

/* All layers are sent at the end of a period, so both links are used whatever times are measured. */
static void both_links_are_bit_identical_to_the_cpu(void **state)
{
    const ddp_backend b = fake_backend();
    both_links device;
    ddp_error err;
    fake_net did;
    lab cpu;

    (void)state;
    lab_new(&cpu, 2, DDP_LOCALSGD, 3);
    memset(&device, 0, sizeof device);
    lab_new(&device.lab, 2, DDP_LOCALSGD, 3);
    cpu.model = device.lab.model = LAB_GPT;
    lab_run(&cpu);
    device.lab.cfg.backend = &b;
    device.lab.cfg.device.nccl = 2;
    device.lab.cfg.net = "4mbit,1ms"; /* so slow that the load of the machine hardly matters */
    device.lab.cfg.deterministic = 0; /* the links are measured */
    device.lab.cfg.profile_steps = 2;
    fake.float_s = 1e-5;
    if (ddp_launch(&device.lab.cfg, over_both, &device, &err)) fail_msg("%s", err.msg);
    fake.float_s = 0;
    did = fake_nets();
    assert_int_equal(device.links, 2);
    assert_true(did.averages > 0 && device.stats[0].operations > 0);
    assert_in_range(device.over_the_second, 1, device.layers - 1);
    assert_memory_equal(cpu.params[0], device.lab.params[0], *cpu.values * sizeof(float));
    assert_string_equal(device.stats[0].algorithm, "nccl");
    assert_true(device.stats[0].link.beta_s > 0 && device.stats[1].link.beta_s > 0);
    assert_true(device.stats[1].mu > 0);
    printf("mu %.2f, %d of %d layers over the transport\n", device.stats[1].mu, device.over_the_second,
           device.layers);
    lab_free(&cpu);
    lab_free(&device.lab);
}

static void rank_lost_during_an_average_is_an_error_without_a_hang(void **state)
{
    const ddp_backend b = fake_backend();
    int site;

    (void)state;
    for (site = 0; site < 2; site++) {
        ddp_error err;
        lab x;
        lab_new(&x, 2, DDP_LOCALSGD, 3);
        x.cfg.backend = &b;
        x.cfg.device.nccl = 1;
        x.cfg.site = site; /* both ranks in one site, or without sites */
        x.cfg.timeout.peer_s = 3;
        x.model = LAB_MLP;
        x.no_sync_all = 1;
        assert_int_not_equal(ddp_launch(&x.cfg, leaves_early, &x, &err), 0);
        assert_non_null(strstr(err.msg, "rank"));
        (void)fake_nets();
        lab_free(&x);
    }
}

static void muon_with_a_backend_fails(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_error err;
    lab x;

    (void)state;
    lab_new(&x, 1, DDP_SSGD, 3);
    x.model = LAB_MLP;
    x.rule = LAB_MUON;
    x.cfg.backend = &b;
    assert_int_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "optimizer muon does not support a backend"));
    lab_free(&x);
}

/* ---- user-defined training loops and update rules, and times measured on a device ---- */

static void own_rule(const ddp_optimizer *self, const ddp_update *u)
{
    size_t i;

    __atomic_add_fetch((long *)self->user, 1, __ATOMIC_RELAXED);
    for (i = 0; i < u->count; i++) u->params[i] -= u->lr * u->grads[i] + u->state[i];
}

static int own_loop(ddp_ctx *d, void *user)
{
    float *w = (float *)fake_away(calloc(12, sizeof *w)), *g = (float *)fake_away(calloc(12, sizeof *g));
    ddp_optimizer o;
    ddp_layer layer;
    ddp_span span[400];
    ddp_stats stats;
    int l, step, n, kinds = 0, bad = 0;

    memset(&o, 0, sizeof o);
    o.name = "own";
    o.state_per_param = 1;
    o.update = own_rule;
    o.lr = 0.5f;
    o.user = user;
    memset(&layer, 0, sizeof layer);
    for (l = 0; l < 3; l++) {
        layer.params = w + 4 * l;
        layer.grads = g + 4 * l;
        layer.count = 4;
        bad |= ddp_add_layer(d, &layer);
    }
    bad |= ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < 9; step++) {
        for (l = 0; l < 3; l++) bad |= ddp_forward_begin(d, l);
        for (l = 2; l >= 0; l--) {
            int i;
            bad |= ddp_backward_begin(d, l);
            for (i = 0; i < 4; i++) ((float *)fake_here(g))[4 * l + i] = 1;
            bad |= ddp_backward_end(d, l);
        }
        bad |= ddp_step_end(d);
    }
    bad |= ddp_sync_all(d);
    if (!bad) {
        assert_true(((float *)fake_here(w))[7] == -4.5f);
        assert_true(((float *)fake_here(g))[7] == 0.0f);
        n = ddp_trace_copy(d, span, 400);
        while (n-- > 0) kinds |= 1 << (int)span[n].kind;
        assert_int_equal(kinds & 7, 1 << (int)DDP_SPAN_FORWARD | 1 << (int)DDP_SPAN_BACKWARD |
                                        1 << (int)DDP_SPAN_UPDATE);
        ddp_get_stats(d, &stats);
        /* the plan is adopted after 4 steps: steps 5 to 8, or with a period of 2 steps 6 and 7 */
        assert_int_equal(stats.counted_steps, ddp_world(d) == 1 ? 4 : 2);
        assert_true(stats.step_s > 0);
        assert_non_null(ddp_profile_get(d));
        assert_true(ddp_profile_get(d)->backward_s[1] > 0);
    }
    free(fake_here(w));
    free(fake_here(g));
    return bad;
}

static void user_loop_is_timed_by_the_device(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_config cfg;
    ddp_error err;
    long calls = 0;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    cfg.backend = &b;
    cfg.profile_steps = 4;
    cfg.debug.trace_spans = 400;
    if (ddp_launch(&cfg, own_loop, &calls, &err)) fail_msg("%s", err.msg);
    assert_int_equal(calls, 27);
    cfg.world = 2;
    cfg.transport = DDP_THREADS;
    cfg.period = 2;
    if (ddp_launch(&cfg, own_loop, &calls, &err)) fail_msg("%s", err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_is_bit_identical_to_the_cpu),
        cmocka_unit_test(image_graph_is_bit_identical_to_the_cpu),
        cmocka_unit_test(layers_without_a_gradient_do_not_change),
        cmocka_unit_test(weights_are_saved_from_and_loaded_to_a_device),
        cmocka_unit_test(checkpoint_moves_between_device_and_cpu),
        cmocka_unit_test(unsupported_settings_fail_with_an_error),
        cmocka_unit_test(missing_memory_and_kernels_are_named),
        cmocka_unit_test(failure_in_a_step_ends_all_ranks),
        cmocka_unit_test(full_device_still_receives_messages),
        cmocka_unit_test(lost_peer_is_an_error_without_a_hang),
        cmocka_unit_test(devices_continue_without_a_lost_rank),
        cmocka_unit_test(device_network_is_bit_identical_to_the_cpu),
        cmocka_unit_test(hierarchical_all_reduce_is_bit_identical_to_the_cpu),
        cmocka_unit_test(both_links_are_bit_identical_to_the_cpu),
        cmocka_unit_test(rank_lost_during_an_average_is_an_error_without_a_hang),
        cmocka_unit_test(muon_with_a_backend_fails),
        cmocka_unit_test(user_loop_is_timed_by_the_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
