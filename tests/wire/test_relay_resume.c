/* [patient] Pairs that rank 0 relays, and that come back whenever their connection breaks, at either end. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
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
#include "wire/meet.h"
#include "comm/net_world.h"
#include "wire/talk.h"

enum { RANKS = 4 };

/* All pairs without rank 0 are relayed. */
static void meet_relayed(meet_rank *m, int world, ddp__tls **tls)
{
    char addr[DDP__ADDR_TEXT];
    int listener = meet_listen(addr), r;

    meet_prepare(m, world, listener, addr);
    for (r = 0; r < world; r++) {
        m[r].how.relay_all = 1;
        m[r].how.resume = 1;
        m[r].how.wire.replay_bytes = 50000;
        m[r].how.wire.tls = tls ? tls[r] : NULL;
    }
    meet_start(m, world);
    meet_join(m, world);
    for (r = 0; r < world; r++)
        if (m[r].status) fail_msg("rank %d: %s", r, m[r].err.msg);
}

static void talk_over_cuts(ddp__tls **tls, int least)
{
    static meet_rank m[RANKS];
    talker t[RANKS];
    int left = RANKS, cuts = 0, k;
    long returns = 0;

    meet_relayed(m, RANKS, tls);
    memset(t, 0, sizeof t);
    for (k = 0; k < RANKS; k++) {
        t[k].w = m[k].wire;
        t[k].seed = 5;
        t[k].left = &left;
        t[k].cuts = 12;
        pthread_create(&t[k].thread, NULL, talk, &t[k]);
    }
    for (k = 0; k < RANKS; k++) pthread_join(t[k].thread, NULL);
    for (k = 0; k < RANKS; k++) {
        const ddp__resume_wire *s = (const ddp__resume_wire *)(const void *)m[k].wire;
        returns += s->returns;
        cuts += t[k].cut;
        assert_int_equal(t[k].bad, 0);
        assert_true(s->bytes_again > 0);
    }
    print_message("%d cuts, links came back %ld times\n", cuts, returns / 2);
    assert_true(returns / 2 >= least);
    for (k = RANKS - 1; k >= 0; k--) m[k].wire->table->close(m[k].wire);
}

static void relayed_pairs_come_back(void **state)
{
    (void)state;
    talk_over_cuts(NULL, 20);
}

static void relayed_pairs_of_tls_come_back(void **state)
{
    ddp__tls *tls[RANKS];
    (void)state;
    talk_keys(tls, RANKS);
    talk_over_cuts(tls, 20);
    for (int k = 0; k < RANKS; k++) ddp__tls_free(tls[k]);
}

/* Who relays is gone: the pair is lost at once, not after the time-out. */
static void without_rank_0_they_are_lost(void **state)
{
    static meet_rank m[3];
    unsigned char want[3] = {0, 0, 1};
    double begin;
    char c;
    long n;
    (void)state;
    meet_relayed(m, 3, NULL);
    m[0].wire->table->close(m[0].wire);
    begin = ddp_now();
    while ((n = m[1].wire->table->recv(m[1].wire, 2, &c, 1)) == 0 && ddp_now() < begin + 10)
        m[1].wire->table->wait(m[1].wire, NULL, want, ddp_now() + 0.1);
    assert_int_equal(n, -1);
    assert_true(ddp_now() < begin + 10); /* peer_timeout_s is 20 */
    for (int k = 1; k < 3; k++) m[k].wire->table->close(m[k].wire);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relayed_pairs_come_back),
        cmocka_unit_test(relayed_pairs_of_tls_come_back),
        cmocka_unit_test(without_rank_0_they_are_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
