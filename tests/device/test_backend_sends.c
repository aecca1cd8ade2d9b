/* Other messages from a device than all-reduces of floats: to servers, and in few bits. Results are
 * bit-identical to the CPU. The fake device's memory can only be accessed through the backend table. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "nn/exact.h"
#include "device/fake_device.h"
#include "strategy/strategy_lab.h"

static ddp_backend backend, plain, refuses; /* plain: quantises on the host */

/* One training on the CPU and one on a device. */
typedef struct both {
    lab run[2];
} both;

static ddp_config *both_new(both *x, int world, ddp_strategy strategy, lab_model model, lab_rule rule)
{
    lab_new(&x->run[0], world, strategy, 3);
    x->run[0].model = model;
    x->run[0].rule = rule;
    return &x->run[0].cfg;
}

/* A device whose self-check failed. */
static int fake_refuses(void *self)
{
    (void)self;
    return 0;
}

/* Compares the parameters of all workers bit for bit. */
static void both_run(both *x, const char *what)
{
    lab *cpu = &x->run[0], *device = &x->run[1], empty;
    const int blocks = cpu->cfg.wire == DDP_WIRE_INT8 || cpu->cfg.wire == DDP_WIRE_INT4;
    const int servers = cpu->cfg.server.count > 0 ? cpu->cfg.server.count : 0;
    int own, r;

    lab_new(&empty, cpu->cfg.world, cpu->cfg.strategy, 3);
    *device = *cpu;
    device->params = empty.params;
    device->values = empty.values;
    device->stats = empty.stats;
    device->step_of = empty.step_of;
    lab_run(cpu);
    for (own = 0; own <= 2 * blocks; own++) { /* 1 and 2: the host quantises */
        fake.splits = 0;
        memset(device->params, 0, LAB_RANKS * sizeof *device->params);
        device->cfg.backend = own == 0 ? &backend : own == 1 ? &plain : &refuses;
        lab_run(device);
        if (cpu->cfg.transport == DDP_THREADS) assert_int_equal(fake.splits > 0, blocks && !own);
        assert_true(*cpu->values > 0 && *cpu->values == *device->values);
        for (r = 0; r < cpu->cfg.world - servers; r++) {
            if (memcmp(cpu->params[r], device->params[r], *cpu->values * sizeof(float)))
                fail_msg("%s, %s, model %d, rule %d, rank %d%s: other parameters",
                         ddp_strategy_name(cpu->cfg.strategy), what, (int)cpu->model, (int)cpu->rule, r,
                         own ? ", quantised on the host" : "");
            assert_true(cpu->stats[r].deferred_pct == device->stats[r].deferred_pct);
        }
        assert_int_equal(fake.alive, 0);
        assert_int_equal(fake_nets().averages, 0);
    }
    lab_free(cpu);
    lab_free(device);
}

/* ---- servers ---- */

static void servers_are_bit_identical_to_the_cpu(void **state)
{
    static const int servers[] = {1, 2, DDP_SERVERS_COLOCATED};
    int s, k;
    both x;

    (void)state;
    for (s = (int)DDP_BSP; s <= (int)DDP_OSP; s++)
        for (k = 0; k < 3; k++) {
            const int apart = k < 2 ? servers[k] : 0;
            ddp_config *c = both_new(&x, 3 + apart, (ddp_strategy)s, k ? LAB_MLP : LAB_GPT,
                                     k == 1 ? LAB_MOMENTUM : LAB_ADAMW);
            c->server.count = servers[k];
            c->server.staleness = k;
            c->osp.defer = 0.6;
            x.run[0].rates = 1;
            both_run(&x, k < 2 ? "dedicated servers" : "co-located");
        }
}

static void osp_is_bit_identical_to_the_cpu_with_every_setting(void **state)
{
    static const ddp_lgp lgp[] = {DDP_LGP_ON, DDP_LGP_EMA, DDP_LGP_OFF};
    int k, paper, apart;
    both x;

    (void)state;
    for (k = 0; k < 3; k++)
        for (paper = 0; paper < 2; paper++)
            for (apart = 0; apart < 2; apart++) {
                ddp_config *c = both_new(&x, 2 + apart, DDP_OSP, k == 1 ? LAB_MLP : LAB_GPT, (lab_rule)k);
                c->server.count = apart ? 1 : DDP_SERVERS_COLOCATED;
                c->osp.defer = 0.7;
                c->osp.lgp = lgp[k];
                c->plan.paper = paper;
                both_run(&x, paper ? "paper" : "ours");
            }
}

static void servers_work_over_tcp_and_with_one_worker(void **state)
{
    both x;
    ddp_config *c;

    (void)state;
    c = both_new(&x, 3, DDP_ASP, LAB_MLP, LAB_ADAMW);
    c->server.count = 1;
    c->plan.paper = 1;
    c->transport = DDP_TCP;
    both_run(&x, "tcp");
    c = both_new(&x, 2, DDP_BSP, LAB_MLP, LAB_ADAMW);
    c->server.count = 1;
    both_run(&x, "one worker and a server");
    c = both_new(&x, 1, DDP_OSP, LAB_MLP, LAB_ADAMW);
    c->server.count = DDP_SERVERS_COLOCATED;
    c->osp.defer = 0.6;
    both_run(&x, "one worker with a colocated server");
}

/* ---- quantised messages ---- */

static const ddp_wire wires[] = {DDP_WIRE_F32,  DDP_WIRE_BF16, DDP_WIRE_INT8,
                                 DDP_WIRE_INT4, DDP_WIRE_E3M0, DDP_WIRE_TOPK};
static const char *const wire_names[] = {"f32", "bf16", "int8", "int4", "e3m0", "topk"};

static void parameter_deltas_in_every_coding_are_bit_identical_to_the_cpu(void **state)
{
    static const ddp_overlap overlaps[] = {DDP_OVERLAP_NONE, DDP_OVERLAP_STREAM, DDP_OVERLAP_EAGER};
    int w, k;
    both x;

    (void)state;
    for (w = 0; w < 6; w++)
        for (k = 0; k < 3; k++) {
            ddp_config *c = both_new(&x, 2 + w % 2, k == 1 && w == 5 ? DDP_SPARSELOCO : DDP_DILOCO,
                                     k % 2 ? LAB_MLP : LAB_GPT, (lab_rule)k);
            c->wire = wires[w];
            c->outer.overlap = overlaps[k];
            both_run(&x, wire_names[w]);
            c = both_new(&x, 3, DDP_DILOCO, LAB_MLP, LAB_ADAMW); /* every rank stores the whole momentum */
            c->wire = wires[w];
            c->outer.overlap = overlaps[k];
            c->transport = DDP_TCP;
            c->elastic.min_world = 2;
            both_run(&x, "elastic");
        }
    both_new(&x, 3, DDP_DILOCO, LAB_GPT, LAB_ADAMW);
    x.run[0].cfg.outer.overlap = DDP_OVERLAP_EAGER;
    x.run[0].cfg.outer.compensation = 0.5;
    both_run(&x, "compensated");
}

static void int8_averages_are_bit_identical_to_the_cpu(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD,          DDP_WFBP,     DDP_LOCALSGD,
                                              DDP_ENP,           DDP_DREAMDDP, DDP_MGWFBP,
                                              DDP_BYTESCHEDULER, DDP_USBYTE,   DDP_DEFT};
    size_t s;
    both x;

    (void)state;
    for (s = 0; s < sizeof strategies / sizeof strategies[0]; s++) {
        ddp_config *c =
            both_new(&x, 2 + (int)(s % 2), strategies[s], s % 2 ? LAB_GPT : LAB_MLP, (lab_rule)(s % 4));
        c->wire = DDP_WIRE_INT8;
        c->average.state = s % 2 == 0;
        both_run(&x, "int8");
    }
}

/* Sends the gradients of all layers in one message in one step, and in one message per layer in the next,
 * so that a rank's segments change. */
static int turns_step_end(ddp_ctx *d, void *self, int forward)
{
    const int layers = ddp_layers(d), apart = (int)(ddp_step(d) % 2);
    ddp_piece list[LAB_LAYERS * 4];
    long ticket[LAB_LAYERS];
    int l, n, i, count = 0, sent = 0, bad = 0;

    (void)self;
    (void)forward;
    for (l = layers - 1; l >= 0 && !bad; l--) {
        const ddp_piece *p = ddp_gradients_of(d, l, &n);
        for (i = 0; i < n; i++) list[count++] = p[i];
        if (l == 0 || apart) {
            ddp_message m;
            memset(&m, 0, sizeof m);
            m.verb = DDP_ALL_REDUCE;
            m.from = list;
            m.from_count = count;
            m.mean = 1;
            m.layer = apart ? l : DDP_ALL_LAYERS;
            m.step = ddp_step(d);
            m.coding = ddp_coding_of(d);
            m.residual = ddp_residual_of(d, apart ? l : layers - 1);
            bad = ddp_post(d, &m, &ticket[sent++]);
            count = 0;
        }
    }
    for (i = 0; i < sent && !bad; i++) bad = ddp_hold(d, ticket[i], DDP_NO_LAYER);
    for (l = layers - 1; l >= 0 && !bad; l--) bad = ddp_update_layer(d, l, NULL);
    return bad;
}

static void messages_of_changing_lengths_are_bit_identical_to_the_cpu(void **state)
{
    ddp_strategy_ops ops;
    ddp_config *c;
    both x;

    (void)state;
    memset(&ops, 0, sizeof ops);
    ops.name = "turns";
    ops.averages = DDP_AVERAGES_GRADIENTS;
    ops.traits = DDP_WITH_ALL;
    ops.step_end = turns_step_end;
    c = both_new(&x, 3, DDP_STRATEGY_DEFAULT, LAB_GPT, LAB_MOMENTUM);
    c->own_strategy = &ops;
    c->wire = DDP_WIRE_INT8;
    both_run(&x, "turns");
}

/* ---- checkpoints ---- */

typedef struct journey {
    ddp_config cfg;
    const char *save, *load;
    int steps, bad_step; /* bad_step: step whose input contains a NaN, or 0 for none */
    float (*params)[LAB_VALUES];
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
    if (!bad && lab_serves(d)) return ddp_serve(d);
    while (!bad && ddp_step(d) < j->steps) {
        float *in = (float *)ddp_data(g, "inputs");
        int i;
        for (i = 0; i < 15; i++) in[i] = (float)((ddp_step(d) * 7 + i * (1 + ddp_rank(d))) % 5) - 2;
        if (j->bad_step && ddp_step(d) == j->bad_step) in[3] = NAN;
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad && j->save) bad = ddp_checkpoint_save(d, j->save, 1);
    if (!bad) bad = ddp_wait(d);
    for (l = 0; !bad && l < ddp_layer_count(g); l++, at += n) {
        const float *p = ddp_layer_params(g, l, &n);
        bad = ddp_graph_read(g, j->params[ddp_rank(d)] + at, p, n);
    }
    return bad;
}

static void journey_go(journey *j, const ddp_backend *b, const char *save, const char *load, int steps,
                       float (*params)[LAB_VALUES])
{
    ddp_error err;

    j->cfg.backend = b;
    j->save = save;
    j->load = load;
    j->steps = steps;
    j->params = params;
    memset(params, 0, LAB_RANKS * sizeof *params);
    if (ddp_launch(&j->cfg, journey_run, j, &err))
        fail_msg("%s: %s", ddp_strategy_name(j->cfg.strategy), err.msg);
    assert_int_equal(fake.alive, 0);
}

/* A checkpoint moves from the device to the CPU, and from there to the device. */
static void journey_both_ways(ddp_strategy strategy, ddp_wire wire, ddp_overlap overlap, int servers)
{
    static float whole[LAB_RANKS][LAB_VALUES], half[LAB_RANKS][LAB_VALUES];
    char folder[] = "/tmp/backend_sends_XXXXXX", command[80];
    journey j;

    assert_non_null(mkdtemp(folder));
    memset(&j, 0, sizeof j);
    j.cfg.no_env = 1;
    j.cfg.world = 3;
    j.cfg.transport = DDP_THREADS;
    j.cfg.period = 3;
    j.cfg.deterministic = j.cfg.debug.overwrite = 1;
    j.cfg.strategy = strategy;
    j.cfg.wire = wire;
    j.cfg.outer.overlap = overlap;
    j.cfg.server.count = servers;
    j.cfg.osp.defer = 0.6;
    journey_go(&j, NULL, NULL, NULL, 9, whole);
    assert_true(whole[0][0] != 0 && whole[1][0] != 0);
    journey_go(&j, &backend, folder, NULL, 5, half);
    assert_memory_not_equal(whole, half, sizeof whole);
    journey_go(&j, NULL, NULL, folder, 9, half);
    assert_memory_equal(whole, half, sizeof whole);
    journey_go(&j, NULL, folder, NULL, 5, half);
    journey_go(&j, &backend, NULL, folder, 9, half);
    assert_memory_equal(whole, half, sizeof whole);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void checkpoints_move_between_device_and_cpu(void **state)
{
    (void)state;
    journey_both_ways(DDP_BSP, DDP_WIRE_DEFAULT, DDP_OVERLAP_NONE, 1);
    journey_both_ways(DDP_R2SP, DDP_WIRE_DEFAULT, DDP_OVERLAP_NONE, 1);
    journey_both_ways(DDP_OSP, DDP_WIRE_DEFAULT, DDP_OVERLAP_NONE, 1);
    journey_both_ways(DDP_OSP, DDP_WIRE_DEFAULT, DDP_OVERLAP_NONE, DDP_SERVERS_COLOCATED);
    journey_both_ways(DDP_DILOCO, DDP_WIRE_F32, DDP_OVERLAP_NONE, 0);
    journey_both_ways(DDP_DILOCO, DDP_WIRE_INT4, DDP_OVERLAP_EAGER, 0);
    journey_both_ways(DDP_SPARSELOCO, DDP_WIRE_TOPK, DDP_OVERLAP_STREAM, 0);
    journey_both_ways(DDP_DREAMDDP, DDP_WIRE_INT8, DDP_OVERLAP_NONE, 0);
}

/* ---- unsupported settings ---- */

static void unsupported_settings_fail_with_an_error(void **state)
{
    ddp_error err;
    lab x;

    (void)state;
    lab_new(&x, 2, DDP_DILOCO, 3);
    x.model = LAB_MLP;
    x.cfg.backend = &backend;
    x.cfg.device.nccl = 1;
    x.cfg.wire = DDP_WIRE_INT4;
    assert_int_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "NCCL averages float32 only"));
    x.cfg.wire = DDP_WIRE_DEFAULT;
    x.cfg.strategy = DDP_ASP;
    x.cfg.server.count = 1;
    assert_int_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "messages to servers use the transport"));
    lab_free(&x);
}

/* A value that the wire cannot encode ends the run with the layer's name. The device detects it. */
static void unencodable_value_fails_with_the_layer_name(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DILOCO, DDP_SPARSELOCO};
    static float params[LAB_RANKS][LAB_VALUES];
    ddp_error err;
    journey j;
    int k;

    (void)state;
    for (k = 0; k < 5; k++) {
        const char *wire = k < 3 ? " as int8" : k < 4 ? " as int4" : "cannot encode the parameter delta: x[";
        memset(&j, 0, sizeof j);
        j.cfg.no_env = 1;
        j.cfg.world = 2;
        j.cfg.transport = DDP_THREADS;
        j.cfg.period = 2;
        j.cfg.strategy = strategies[k];
        j.cfg.backend = &backend;
        j.cfg.wire = k < 3 ? DDP_WIRE_INT8 : k < 4 ? DDP_WIRE_INT4 : DDP_WIRE_TOPK;
        j.params = params;
        j.steps = 9;
        j.bad_step = 3;
        assert_int_equal(ddp_launch(&j.cfg, journey_run, &j, &err), DDP_NUMERIC);
        if (!strstr(err.msg, wire) || !strstr(err.msg, "step 3")) fail_msg("%d: %s", k, err.msg);
        assert_int_equal(fake.alive, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_are_bit_identical_to_the_cpu),
        cmocka_unit_test(osp_is_bit_identical_to_the_cpu_with_every_setting),
        cmocka_unit_test(servers_work_over_tcp_and_with_one_worker),
        cmocka_unit_test(parameter_deltas_in_every_coding_are_bit_identical_to_the_cpu),
        cmocka_unit_test(int8_averages_are_bit_identical_to_the_cpu),
        cmocka_unit_test(messages_of_changing_lengths_are_bit_identical_to_the_cpu),
        cmocka_unit_test(checkpoints_move_between_device_and_cpu),
        cmocka_unit_test(unsupported_settings_fail_with_an_error),
        cmocka_unit_test(unencodable_value_fails_with_the_layer_name),
    };

    backend = plain = fake_backend();
    plain.split = NULL;
    refuses = fake_backend();
    refuses.splits = fake_refuses;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
