/* Ranks whose connections are relayed by rank 0, and cut. Include after dreamddp.h and cmocka.h. */
#ifndef RELAYED_LAB_H
#define RELAYED_LAB_H

#include "comm/net_world.h"
#include "wire/meet.h"
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
    print_message("%d cuts, %ld reconnections\n", cuts, returns / 2);
    assert_true(returns / 2 >= least);
    for (k = RANKS - 1; k >= 0; k--) m[k].wire->table->close(m[k].wire);
}

#endif /* RELAYED_LAB_H */
