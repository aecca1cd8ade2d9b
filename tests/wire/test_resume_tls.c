/* [test-all: needs OpenSSL] Links of a run with TLS break and reconnect: streams are complete to the byte,
 * through a relay and through rank 0, and silent callers do not delay a reconnection. */
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
#include "wire/relayed_lab.h"
#include "wire/resume_lab.h"
#include "wire/tls_lab.h"

static void tls_streams_are_complete_after_breaks(void **state)
{
    ddp__tls *tls[4];
    (void)state;
    talk_keys(tls, 4);
    talk_over_breaks(16, 40000, 50, tls);
    for (int k = 0; k < 4; k++) ddp__tls_free(tls[k]);
}

static void relayed_tls_pairs_reconnect(void **state)
{
    ddp__tls *tls[RANKS];
    (void)state;
    talk_keys(tls, RANKS);
    talk_over_cuts(tls, 20);
    for (int k = 0; k < RANKS; k++) ddp__tls_free(tls[k]);
}

static void idle_callers_do_not_delay_a_reconnection(void **state)
{
    (void)state;
    (void)seconds_past_idle_callers();
}

/* A joining worker whose certificate has no name of a rank: its link reconnects with the name with which it
 * joined. */
static void joining_worker_reconnects_by_its_name(void **state)
{
    static relay r;
    ddp__tls *tls[2];
    ddp__wire *w[2];
    unsigned char all[2] = {1, 1}, c = 0;
    double end;
    int k;

    assert_int_equal(lab_begin(state), 0);
    tls[0] = lab_open(NULL, "ca", "rank-0", 7);
    tls[1] = lab_open(NULL, "ca", "join-5", 7);
    relay_begin(&r, 19);
    relayed_world(&r, w, 2, 4, 0, tls);
    w[1]->table->cut(w[1], 0);
    end = ddp_now() + 60;
    do {
        for (k = 0; k < 2; k++) {
            w[k]->table->wait(w[k], NULL, all, ddp_now() + 0.01);
            if (w[k]->table->recv(w[k], !k, &c, 1) < 0) fail_msg("rank %d lost its peer", k);
        }
    } while (!((ddp__resume_wire *)(void *)w[0])->returns && ddp_now() < end);
    assert_int_equal(((ddp__resume_wire *)(void *)w[0])->returns, 1);
    for (k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
    for (k = 0; k < 2; k++) ddp__tls_free(tls[k]);
    lab_end(state);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tls_streams_are_complete_after_breaks),
        cmocka_unit_test(relayed_tls_pairs_reconnect),
        cmocka_unit_test(idle_callers_do_not_delay_a_reconnection),
        cmocka_unit_test(joining_worker_reconnects_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
