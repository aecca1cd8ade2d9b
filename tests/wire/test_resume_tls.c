/* [test-all: needs OpenSSL] Links of a run that uses TLS break and come back: streams stay whole to the
 * byte, through a relay and through rank 0, and callers that send nothing do not keep a link away. */
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

static void streams_of_tls_stay_whole_over_breaks(void **state)
{
    ddp__tls *tls[4];
    (void)state;
    talk_keys(tls, 4);
    talk_over_breaks(16, 40000, 50, tls);
    for (int k = 0; k < 4; k++) ddp__tls_free(tls[k]);
}

static void relayed_pairs_of_tls_come_back(void **state)
{
    ddp__tls *tls[RANKS];
    (void)state;
    talk_keys(tls, RANKS);
    talk_over_cuts(tls, 20);
    for (int k = 0; k < RANKS; k++) ddp__tls_free(tls[k]);
}

static void idle_callers_do_not_keep_a_link_away(void **state)
{
    (void)state;
    (void)seconds_past_idle_callers();
}

/* A newcomer whose certificate names no rank: its link comes back by the name with which it came. */
static void a_newcomer_comes_back_by_its_name(void **state)
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
        cmocka_unit_test(streams_of_tls_stay_whole_over_breaks),
        cmocka_unit_test(relayed_pairs_of_tls_come_back),
        cmocka_unit_test(idle_callers_do_not_keep_a_link_away),
        cmocka_unit_test(a_newcomer_comes_back_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
