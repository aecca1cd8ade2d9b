/* Stages on a device whose memory only the backend can access: bit-identical to unpipelined workers on it.
 * Also pipelines with stages on a device and on the CPU. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn/exact.h"
#include "pipe/device_lab.h"
#include "device/fake_device.h"

static void stages_on_a_device_are_bit_identical_to_workers_on_it(void **state)
{
    const ddp_backend b = fake_backend();

    (void)state;
    piped_all(&b);
    assert_int_equal(fake.alive, 0);
    assert_int_equal(fake_nets().averages, 0);
}

/* The gradient of a tied weight is in flight during the whole step. */
static void a_step_with_many_messages_completes(void **state)
{
    const ddp_backend b = fake_backend();
    piped j;

    (void)state;
    piped_new(&j, PIPED_GPT, DDP_SSGD, 60);
    piped_compare(&j, &b, 2, 1);
    assert_int_equal(fake.alive, 0);
}

/* ---- some ranks on a device, others on the CPU ---- */

typedef struct member {
    piped *j;
    ddp_config cfg;
    ddp_error err;
    int bad;
    pthread_t thread;
} member;

static void *join_in(void *user)
{
    member *m = (member *)user;
    ddp_ctx *d = ddp_open(&m->cfg, &m->err);

    m->bad = d ? piped_worker(d, m->j) : (int)m->err.code;
    if (d && m->bad) m->err = *ddp_last_error(d);
    if (d) ddp_close(d);
    return NULL;
}

/* The fake device uses the CPU's operators, so the results are bit-identical. */
static void a_device_and_a_cpu_can_share_a_pipeline(void **state)
{
    const ddp_backend b = fake_backend();

    (void)state;
    for (int k = 0; k < 4; k++) {
        piped j, whole;
        member m[4];
        char where[64];
        /* an address that no other process uses */
        snprintf(where, sizeof where, "127.%d.%d.%d:29500", 64 + k, (int)getpid() / 254 % 256,
                 1 + (int)getpid() % 254);
        piped_new(&j, k % 2 ? PIPED_RESIDUAL : PIPED_GPT, k < 2 ? DDP_SSGD : DDP_LOCALSGD, 4);
        j.cfg.clip_norm = k < 2 ? 0.3f : 0;
        whole = j;
        piped_run(&whole, 2);
        j.stages = 2;
        j.schedule = k % 2 ? DDP_PIPELINE_ZB : DDP_PIPELINE_1F1B;
        memset(m, 0, sizeof m);
        for (int r = 0; r < 4; r++) {
            m[r].j = &j;
            m[r].cfg = j.cfg;
            m[r].cfg.transport = DDP_TCP;
            m[r].cfg.world = 4;
            m[r].cfg.rank = r;
            m[r].cfg.addr = where;
            m[r].cfg.backend = r == 1 + k % 2 || (r == 2 && k == 0) ? &b : NULL;
            assert_int_equal(pthread_create(&m[r].thread, NULL, join_in, &m[r]), 0);
        }
        for (int r = 0; r < 4; r++) pthread_join(m[r].thread, NULL);
        for (int r = 0; r < 4; r++) {
            if (m[r].bad) fail_msg("rank %d: %s", r, m[r].err.msg);
            assert_true(j.hash[r] == whole.hash[r / 2]);
            assert_memory_equal(&j.loss[r], &whole.loss[r / 2], sizeof(float));
        }
        assert_int_equal(fake.alive, 0);
    }
}

/* An error of one rank's device ends all ranks. */
static void a_device_that_fails_ends_the_pipeline(void **state)
{
    const ddp_backend b = fake_backend();
    ddp_error err;
    piped j;

    (void)state;
    piped_new(&j, PIPED_GPT, DDP_SSGD, 4);
    j.cfg.backend = &b;
    j.cfg.world = 2;
    j.stages = 2;
    fake.fail_at = 150;
    assert_int_not_equal(ddp_launch(&j.cfg, piped_worker, &j, &err), DDP_OK);
    assert_true(strstr(err.msg, "the fake device failed") || strstr(err.msg, "rank"));
    fake.fail_at = 0;
    assert_int_equal(fake.alive, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_on_a_device_are_bit_identical_to_workers_on_it),
        cmocka_unit_test(a_step_with_many_messages_completes),
        cmocka_unit_test(a_device_and_a_cpu_can_share_a_pipeline),
        cmocka_unit_test(a_device_that_fails_ends_the_pipeline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
