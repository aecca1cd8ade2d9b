/* [test-all: needs OpenSSL] Workers that join a run with TLS: certificates determine which worker may join as
 * which rank, and a run without TLS rejects a worker with a key. */
#ifndef DDP_USE_OPENSSL
#include <stdio.h>

int main(void)
{
    puts("skipped: built without OpenSSL");
    return 77;
}
#else
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "member/nat_lab.h"
#include "wire/tls_lab.h"

static void comes_in_vain(const plan_of_run *run, const char *cert, const char *what)
{
    plan_of_run p = *run;

    p.cert = cert;
    waits_in_vain(p, 7, what);
    assert_int_equal(p.b->done[0] | p.b->done[2], 0);
}

/* Ranks 1 and 3 of four are lost. A worker whose certificate has no name of a rank or joining worker gets no
 * information, and delays no other worker. A rank's certificate gives that rank. */
static void certificate_determines_which_rank_may_join(void **state)
{
    static const int dies[2] = {1, 3};
    plan_of_run p;
    pid_t pid[6];
    int all[4] = {0, 2, 4, 5}, k;

    assert_int_equal(lab_begin(state), 0);
    lab_certificate("rank-3", "rank-3", NULL, "ca", 24);
    lab_certificate("rank-9", "rank-9", NULL, "ca", 24);
    run_begin(&p, DDP_LOCALSGD, 4, 3000);
    p.folder = lab_folder;
    p.last_comer = 5;
    for (k = 0; k < 4; k++) pid[k] = start(&p, k, 0);
    for (k = 0; k < 2; k++) {
        until_step(&p, 0, ddp__atomic_load(&p.b->step[0]) + 8);
        kill(pid[dies[k]], SIGKILL);
        wait_for(pid[dies[k]]);
    }
    until_step(&p, 0, ddp__atomic_load(&p.b->step[0]) + 8);
    comes_in_vain(&p, "host", "accepts only certificates with a name rank-R or join-NAME");
    comes_in_vain(&p, "rank-2",
                  "certificate of this worker allows only rank 2, which is not free in the run of 4");
    comes_in_vain(&p, "rank-9", "certificate of this worker allows only rank 9");
    p.cert = "rank-3";
    pid[4] = start(&p, 4, 1);
    until_step(&p, 4, 1);
    p.cert = "join-5";
    pid[5] = start(&p, 5, 1);
    for (k = 0; k < 6; k++)
        if (k != 1 && k != 3) wait_for(pid[k]);
    all_well(&p, all, 4);
    assert_int_equal(p.b->rank[4], 3); /* although 1 is free */
    assert_int_equal(p.b->rank[5], 1);
    munmap(p.b, sizeof *p.b);
    lab_end(state);
}

/* The relay, rank 0, sees only bytes that the two ends have encrypted for each other. */
static void worker_behind_nat_joins_with_a_certificate(void **state)
{
    static const int all[3] = {0, 1, 2};
    plan_of_run p;
    pid_t pid[3];

    assert_int_equal(lab_begin(state), 0);
    run_begin(&p, DDP_LOCALSGD, 2, 1000);
    nat_begin(&p);
    p.folder = lab_folder;
    p.max_world = 3;
    p.last_comer = 2;
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 8);
    p.cert = "join-5";
    pid[2] = start(&p, 2, 1);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    nat_end(1);
    munmap(p.b, sizeof *p.b);
    lab_end(state);
}

static void run_without_tls_rejects_a_worker_with_a_key(void **state)
{
    char key[] = "/tmp/test_join_XXXXXX";
    plan_of_run p, joining;
    pid_t pid[3];
    int fd = mkstemp(key);
    (void)state;

    assert_true(fd >= 0 && write(fd, "0123456789abcdef0123456789abcdef", 32) == 32);
    close(fd);
    run_loses_one(&p, pid, 0);
    joining = p;
    joining.last_comer = -1;
    joining.psk = key;
    refused(&joining, "does not support TLS 1.3: give every rank --tls-psk or certificates, or none");
    survivors_end(&p, pid);
    unlink(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(certificate_determines_which_rank_may_join),
        cmocka_unit_test(worker_behind_nat_joins_with_a_certificate),
        cmocka_unit_test(run_without_tls_rejects_a_worker_with_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
