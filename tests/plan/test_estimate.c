/* [pure] A pipeline's iteration with compressed messages, compared with sums by hand. */
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

/* Three operators of 2e12 FLOP in a row, each on a device of 1e12 FLOP/s. 4e8 bytes are sent over a link of
 * 1e8 bytes/s and 1 s delay (4 + 1 s), then 4e6 bytes over an equal link (0.04 + 1 s). */
typedef struct chain {
    ddp_oplist_entry op[3];
    int arg[3], device_of[3];
    ddp_oplist list;
    ddp_network net;
    ddp_workload_options work;
    ddp_workload dense;
} chain;

static void chain_open(chain *c, int forward_only)
{
    static const double bytes[3] = {4e8, 4e6, 4};
    ddp_error err;
    int i;

    memset(c, 0, sizeof *c);
    for (i = 0; i < 3; i++) {
        c->arg[i] = i - 1;
        c->device_of[i] = i;
        c->op[i].args = &c->arg[i];
        c->op[i].arg_count = i > 0;
        c->op[i].flops = 2e12;
        c->op[i].output_bytes = bytes[i];
        c->op[i].param_bytes = 4;
    }
    c->list.op = c->op;
    c->list.count = 3;
    assert_int_equal(ddp_network_new(3, &c->net, NULL), DDP_OK);
    c->net.speed = (double *)ddp__calloc(3, sizeof(double));
    assert_non_null(c->net.speed);
    for (i = 0; i < 3; i++) c->net.speed[i] = 1e12;
    for (i = 0; i < 9; i++) {
        c->net.rate[i] = i % 4 ? 1e8 : 0;
        c->net.delay_s[i] = i % 4 ? 1 : 0;
    }
    c->work.microbatches = 5;
    c->work.samples = 40;
    c->work.forward_only = forward_only;
    if (ddp_workload_estimate(&c->list, &c->net, c->device_of, &c->work, &c->dense, &err) != DDP_OK)
        fail_msg("%s", err.msg);
}

static void chain_close(chain *c)
{
    ddp_workload_free(&c->dense);
    ddp_network_free(&c->net);
}

static ddp_workload compress(const chain *c, double ratio, double factor, int uniform)
{
    ddp_adatopk_options o;
    ddp_workload w;
    ddp_error err;

    memset(&o, 0, sizeof o);
    o.ratio = ratio;
    o.factor = factor;
    o.uniform = uniform;
    o.packing = DDP_PACK_I64;
    if (ddp_workload_compress(&c->dense, &c->net, &c->work, &o, &w, &err) != DDP_OK) fail_msg("%s", err.msg);
    return w;
}

static void near(double x, double want)
{
    if (!(fabs(x - want) <= 1e-12 * fabs(want))) fail_msg("%.15g is not %.15g", x, want);
}

static void the_slow_link_is_shortened_and_the_fast_one_left_alone(void **state)
{
    const double sent = 1 + 4 * (12.0 * 333334 / 4e8); /* k = 1e8 / 300, 12 bytes each */
    ddp_workload w;
    chain c;

    (void)state;
    chain_open(&c, 1);
    near(c.dense.latency_s, 6 + 5 + 1.04);
    near(c.dense.pipeline_s, 12.04 + 4 * 5);
    w = compress(&c, 100, 0, 0);
    near(w.receive_s[1], sent);
    assert_true(w.receive_s[2] == c.dense.receive_s[2]); /* r = 3: 12 bytes for 3 floats, so dense */
    near(w.latency_s, 6 + sent + 1.04);
    near(w.pipeline_s, 6 + sent + 1.04 + 4 * 2); /* computing takes longest now */
    near(w.throughput, 40 / w.pipeline_s);
    assert_true(w.message[1].bytes == 4e6 && w.message[0].bytes < 4.1e6);
    near(c.dense.receive_s[1], 5); /* the original is unchanged */
    ddp_workload_free(&w);
    chain_close(&c);
}

/* Devices 0 and 1 receive 4 s each (1: 4.04), and both messages to device 1 have the same ratio. */
static void messages_of_a_receiver_share_its_ratio(void **state)
{
    ddp_workload w;
    chain c;
    int i, seen = 0;

    (void)state;
    chain_open(&c, 0);
    w = compress(&c, 100, 0, 0);
    for (i = 0; i < w.messages; i++) {
        const ddp_workload_message *m = &w.message[i];
        const double r = m->to == 1 ? 300 : m->to == 0 ? 300 * 4 / 4.04 : 300 * 0.04 / 4.04;
        const double n = c.dense.message[i].bytes / 4;
        if (r > 3) {
            near(m->seconds, 1 + (c.dense.message[i].seconds - 1) * 3 * ceil(n / r) / n);
            seen++;
        } else
            assert_true(m->seconds == c.dense.message[i].seconds);
    }
    assert_int_equal(seen, 3);
    near(w.receive_s[1], w.message[0].seconds + w.message[3].seconds);
    ddp_workload_free(&w);
    chain_close(&c);
}

static void the_uniform_rule_takes_every_link(void **state)
{
    ddp_workload w;
    chain c;

    (void)state;
    chain_open(&c, 1);
    w = compress(&c, 100, 0, 1);
    near(w.receive_s[1], 1 + 4 * 0.03);
    near(w.receive_s[2], 1 + 0.04 * 0.03);
    ddp_workload_free(&w);
    chain_close(&c);
}

/* Only its delay remains; there is no data to compress. */
static void an_empty_message_costs_what_it_did(void **state)
{
    ddp_workload w;
    chain c;

    (void)state;
    chain_open(&c, 1);
    ddp_workload_free(&c.dense);
    c.op[1].output_bytes = 0;
    assert_int_equal(ddp_workload_estimate(&c.list, &c.net, c.device_of, &c.work, &c.dense, NULL), DDP_OK);
    w = compress(&c, 100, 0, 1);
    assert_int_equal(w.messages, 2);
    assert_true(w.message[1].seconds == 1 && w.message[1].bytes == 0);
    near(w.receive_s[1], 1 + 4 * 0.03);
    assert_true(w.receive_s[2] == 1);
    ddp_workload_free(&w);
    chain_close(&c);
}

static void ratio_1_changes_no_bit(void **state)
{
    ddp_workload w;
    chain c;

    (void)state;
    chain_open(&c, 0);
    w = compress(&c, 1, 1, 0);
    assert_memory_equal(w.receive_s, c.dense.receive_s, 3 * sizeof(double));
    assert_true(w.pipeline_s == c.dense.pipeline_s && w.throughput == c.dense.throughput);
    ddp_workload_free(&w);
    chain_close(&c);
}

static void one_device_has_nothing_to_compress(void **state)
{
    ddp_workload w;
    chain c;

    (void)state;
    chain_open(&c, 1);
    ddp_workload_free(&c.dense);
    memset(c.device_of, 0, sizeof c.device_of);
    assert_int_equal(ddp_workload_estimate(&c.list, &c.net, c.device_of, &c.work, &c.dense, NULL), DDP_OK);
    w = compress(&c, 100, 0, 0);
    assert_int_equal(w.messages, 0);
    near(w.pipeline_s, 5 * 6);
    ddp_workload_free(&w);
    chain_close(&c);
}

static void bad_input_is_named(void **state)
{
    ddp_adatopk_options o;
    ddp_network other;
    ddp_workload w;
    ddp_error err;
    chain c;

    (void)state;
    chain_open(&c, 1);
    memset(&o, 0, sizeof o);
    memset(&w, 42, sizeof w);
    o.ratio = 0.5;
    assert_int_equal(ddp_workload_compress(&c.dense, &c.net, &c.work, &o, &w, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0.5"));
    assert_int_equal(w.devices, 0x2a2a2a2a);
    assert_int_equal(ddp_network_new(2, &other, NULL), DDP_OK);
    o.ratio = 2;
    assert_int_equal(ddp_workload_compress(&c.dense, &other, &c.work, &o, &w, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the estimate is of 3 devices, the network has 2"));
    ddp_network_free(&other);
    chain_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slow_link_is_shortened_and_the_fast_one_left_alone),
        cmocka_unit_test(messages_of_a_receiver_share_its_ratio),
        cmocka_unit_test(the_uniform_rule_takes_every_link),
        cmocka_unit_test(an_empty_message_costs_what_it_did),
        cmocka_unit_test(ratio_1_changes_no_bit),
        cmocka_unit_test(one_device_has_nothing_to_compress),
        cmocka_unit_test(bad_input_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
