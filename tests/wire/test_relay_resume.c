/* Pairs that rank 0 relays reconnect after every break at either end. */
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
#include "wire/relayed_lab.h"

static void relayed_pairs_reconnect(void **state)
{
    (void)state;
    talk_over_cuts(NULL, 20);
}

/* Serves both ends until the link of ranks 1 and 2 has reconnected `returns` times. */
static void until_back(meet_rank *m, long returns)
{
    const unsigned char want[3] = {1, 1, 1};
    const double end = ddp_now() + 60;
    char c;

    while (((ddp__resume_wire *)(void *)m[1].wire)->returns < returns ||
           ((ddp__resume_wire *)(void *)m[2].wire)->returns < returns) {
        assert_true(ddp_now() < end);
        for (int k = 1; k < 3; k++) {
            if (m[k].wire->table->recv(m[k].wire, 3 - k, &c, 1) < 0) fail_msg("rank %d has lost its peer", k);
            m[k].wire->table->wait(m[k].wire, NULL, want, ddp_now() + 0.01);
        }
    }
}

/* The relaying process has ended: the lower rank, which had not tried that before, dials the other from now
 * on. */
static void pair_without_its_relay_connects_directly(void **state)
{
    static meet_rank m[3];
    const unsigned char want[3] = {1, 1, 1};
    const double end = ddp_now() + 60;
    struct iovec iov;
    char c = 0, sent = 7;
    (void)state;

    meet_relayed(m, 3, NULL);
    assert_non_null(strstr(m[1].wire->names[2], "via rank 0 at "));
    assert_int_equal(ddp__wire_relay(m[1].wire, 2), 0);
    assert_int_equal(ddp__wire_relay(m[1].wire, 0), -1);
    m[0].wire->table->close(m[0].wire);
    iov.iov_base = &sent;
    iov.iov_len = 1;
    until_back(m, 1);
    for (int k = 1; k < 3; k++) { /* whichever end notices the break */
        m[k].wire->table->cut(m[k].wire, 3 - k);
        until_back(m, 1 + k);
    }
    assert_int_equal(m[2].wire->table->send(m[2].wire, 1, &iov, 1), 1);
    while (m[1].wire->table->recv(m[1].wire, 2, &c, 1) == 0 && ddp_now() < end)
        m[1].wire->table->wait(m[1].wire, NULL, want, ddp_now() + 0.01);
    assert_int_equal(c, 7);
    for (int k = 1; k < 3; k++) assert_null(strstr(m[k].wire->names[3 - k], "via"));
    for (int k = 1; k < 3; k++) assert_int_equal(ddp__wire_relay(m[k].wire, 3 - k), -1);
    for (int k = 1; k < 3; k++) m[k].wire->table->close(m[k].wire);
}

/* Rank 1, the lower one, cannot reach rank 2, which dials it once their relay is gone. The NAT in front of
 * rank 2 refuses connections: when the direct link breaks, rank 1 must not declare rank 2 lost. */
static void rank_waits_for_a_peer_that_it_cannot_reach(void **state)
{
    static meet_rank m[3];
    const unsigned char want[3] = {1, 1, 1};
    ddp__resume_wire *low, *high;
    char nat[DDP__ADDR_TEXT], c;
    int count;
    double end;
    (void)state;

    meet_relayed(m, 3, NULL);
    low = (ddp__resume_wire *)(void *)m[1].wire;
    high = (ddp__resume_wire *)(void *)m[2].wire;
    low->way[2].seeks = 0; /* as if rank 1 had joined a run with rank 2 as a member */
    high->way[1].seeks = 1;
    meet_unused(nat);
    assert_int_equal(ddp__addr_parse(nat, &low->way[2].where, 1, &count, NULL), DDP_OK);
    m[0].wire->table->close(m[0].wire);
    until_back(m, 1);
    assert_null(strstr(m[1].wire->names[2], "via"));
    for (int k = 1; k < 3; k++) {
        m[k].wire->table->cut(m[k].wire, 3 - k);
        end = ddp_now() + 0.6; /* rank 2 is slow: rank 1 has time for refused connections */
        while (ddp_now() < end) {
            if (m[1].wire->table->recv(m[1].wire, 2, &c, 1) < 0)
                fail_msg("rank 1 declares rank 2 lost: %s", strerror(errno));
            m[1].wire->table->wait(m[1].wire, NULL, want, ddp_now() + 0.01);
        }
        until_back(m, 1 + k);
    }
    for (int k = 1; k < 3; k++) m[k].wire->table->close(m[k].wire);
}

/* A process that was stopped for longer than a call to a joining worker may take continues the call. */
static void call_outlasts_a_stop_of_the_process(void **state)
{
    static meet_rank m[3];
    ddp__resume_wire *t;
    ddp__way *p;
    double now;
    int ends[2];
    (void)state;

    meet_relayed(m, 3, NULL);
    t = (ddp__resume_wire *)(void *)m[1].wire;
    p = &t->way[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); /* the relay, which does not answer yet */
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    p->call_fd = ends[0];
    p->call_state = DDP__LINK_ASKING;
    p->call_via = 0;
    t->away++;
    now = ddp_now();
    p->call_since = now - 60; /* the process was stopped just after it had begun */
    t->base.table->stopped(&t->base, 60, now);
    (void)ddp__call_tick(t, p, now);
    assert_int_equal(p->call_state, DDP__LINK_ASKING);
    p->call_since = now - 60;
    (void)ddp__call_tick(t, p, now);
    assert_int_equal(p->call_state, DDP__LINK_NONE);
    close(ends[1]);
    for (int k = 2; k >= 0; k--) m[k].wire->table->close(m[k].wire);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relayed_pairs_reconnect),
        cmocka_unit_test(pair_without_its_relay_connects_directly),
        cmocka_unit_test(rank_waits_for_a_peer_that_it_cannot_reach),
        cmocka_unit_test(call_outlasts_a_stop_of_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
