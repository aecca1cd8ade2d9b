/* The protocol between a broker and its nodes, with a peer that sends arbitrary bytes. */
#ifndef IO_USE_CHANNEL_H
#define IO_USE_CHANNEL_H

static volatile int cli_interrupted; /* for examples/common/cli.h: no signal arrives */
#include "../../examples/common/channel.h"
#include "../../examples/broker/nodes.h"
#include "use.h"

enum { CHANNEL_OPS = 3, CHANNEL_MOST = 64 }; /* operators of a job; bytes of its largest array */

/* A received message has a length that its reader accepts. */
static void channel_heed(const channel *c, channel_state *state)
{
    size_t least, most;

    fuzz_expect(channel_limits(c, (uint32_t)c->word, &least, &most));
    fuzz_expect(c->bytes >= least && c->bytes <= most && c->data[c->bytes] == 0);
    if (c->word == WORD_START) {
        channel_start start;
        if (channel_start_of(c, 9, &start))
            fuzz_expect(start.rank < start.world && strlen(start.addr) < sizeof start.addr &&
                        start.first <= 9);
    }
    if (c->word == WORD_STATE && channel_keep(c, state, CHANNEL_OPS))
        fuzz_expect(state[((const channel_part *)(const void *)c->data)->op].floats <=
                    CHANNEL_MOST / sizeof(float));
    if (c->word == WORD_FAIL) {
        channel_failure f;
        channel_failure_of(c, &f);
        fuzz_expect(f.code > 0 && f.code < (int)DDP_STATUS_COUNT && strlen(f.text) < sizeof f.text);
    }
}

/* First byte: 0: read as a node; else read as the broker. */
static void fuzz_channel(const uint8_t *p, size_t n)
{
    static nodes list; /* static because it is large */
    channel_state *state = (channel_state *)calloc(CHANNEL_OPS, sizeof *state);
    connection *peer = &list.peer[0];
    ddp_error err;
    int fd[2], from = 0;

    fuzz_expect(state && n <= 4096);
    memset(&list, 0, sizeof list);
    list.listens = -1;
    fuzz_expect(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
    if (n > 1) fuzz_expect(send(fd[1], p + 1, n - 1, MSG_NOSIGNAL) == (ssize_t)(n - 1));
    close(fd[1]);
    fuzz_expect(ddp__fd_prepare(fd[0]) == 0);
    peer->c.fd = fd[0];
    peer->c.most = CHANNEL_MOST;
    peer->c.peer = !n || p[0] % 2 == 0 ? CHANNEL_BROKER : CHANNEL_NODE;
    peer->state = CONNECTION_NODE;
    list.count = list.wanted = 1;
    if (!n || p[0] % 2 == 0) {
        while (channel_receive(&peer->c)) channel_heed(&peer->c, state);
    } else {
        channel_word w;
        while ((w = next_word(&list, &from, ddp_now() + 60)) != WORD_LOST) {
            fuzz_expect(w && from == 0);
            channel_heed(&peer->c, state);
            memset(&err, 0, sizeof err);
            if (w == WORD_FAIL) fuzz_expect(node_failed(&list, 0, &err) != DDP_OK);
        }
    }
    channel_forget(state, CHANNEL_OPS);
    channel_close(&peer->c);
}

#endif /* IO_USE_CHANNEL_H */
