/* [test-all: needs OpenSSL] A worker joins a run among 500 unknown clients, and no member is lost, with and
 * without TLS. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "member/join_lab.h"
#include "member/flood_lab.h"
#ifdef DDP_USE_OPENSSL
#include "wire/tls_lab.h"
#endif

static const double most = INSTANCES(8) == 8 ? 3 : 12; /* in seconds: from the start of a worker to its first
                                                        * step */

/* Seconds until a fourth worker has joined three workers that clients of all kinds flood, with the
 * configuration of *how. */
static double entry(const plan_of_run *how)
{
    int all[4] = {0, 1, 2, 3}, count;
    plan_of_run p, joining;
    double begin, took;
    pid_t pid[4], flood;
    ddp__addr at;

    run_begin(&p, DDP_LOCALSGD, 3, 3000);
    p.max_world = 4;
    p.psk = how->psk;
    p.folder = how->folder;
    for (int k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    for (int k = 0; k < 3; k++) until_step(&p, k, 8);
    assert_int_equal(ddp__addr_parse(p.addr, &at, 1, &count, NULL), DDP_OK);
    flood = flood_start(&at, FLOOD_KINDS, 0, NULL);
    ddp__sleep_until(ddp_now() + 0.5);
    joining = p;
    joining.cert = how->cert;
    begin = ddp_now();
    pid[3] = start(&joining, 3, 1);
    until_step(&p, 3, 1);
    took = ddp_now() - begin;
    for (int k = 0; k < 4; k++) wait_for(pid[k]);
    flood_stop(flood);
    all_well(&p, all, 4);
    munmap(p.b, sizeof *p.b);
    return took;
}

/* At most three attempts: other programs may use the processors. */
static void enters(const plan_of_run *how)
{
    double took = entry(how);

    for (int k = 0; k < 2 && took > most; k++) took = fmin(took, entry(how));
    print_message("the worker joined after %.2f s\n", took);
    assert_true(took <= most);
}

static void a_worker_joins_within_3_s_among_500_unknown_clients(void **state)
{
    plan_of_run how;

    (void)state;
    memset(&how, 0, sizeof how);
    enters(&how);
}

#ifdef DDP_USE_OPENSSL
static void a_worker_with_a_key_joins_within_3_s_among_500_unknown_clients(void **state)
{
    plan_of_run how;
    char key[64];

    memset(&how, 0, sizeof how);
    assert_int_equal(lab_begin(state), 0);
    how.psk = lab_path(key, "run.key");
    enters(&how);
    assert_int_equal(lab_end(state), 0);
}

static void a_worker_with_a_certificate_joins_within_3_s_among_500_unknown_clients(void **state)
{
    plan_of_run how;

    memset(&how, 0, sizeof how);
    assert_int_equal(lab_begin(state), 0);
    how.folder = lab_folder;
    how.cert = "join-5";
    enters(&how);
    assert_int_equal(lab_end(state), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_joins_within_3_s_among_500_unknown_clients),
#ifdef DDP_USE_OPENSSL
        cmocka_unit_test(a_worker_with_a_key_joins_within_3_s_among_500_unknown_clients),
        cmocka_unit_test(a_worker_with_a_certificate_joins_within_3_s_among_500_unknown_clients),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
