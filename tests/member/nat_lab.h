/* Workers behind NAT on one machine: other processes can connect only to the open ports. Include after
 * dreamddp.h and cmocka.h, instead of the library's wire/socket.c. */
#ifndef NAT_LAB_H
#define NAT_LAB_H

#include "member/join_lab.h"

enum { OPEN_PORTS = 8 };

typedef struct nat {
    int open[OPEN_PORTS]; /* atomic, 0: none */
    int refused;          /* atomic: connections that the NAT refused */
    long returns;         /* atomic: reconnected links */
} nat;

static nat *nats; /* shared memory, or NULL for no NAT */

static int nat_connect(int fd, const struct sockaddr *to, socklen_t size)
{
    struct sockaddr_in in;

    if (!nats) return connect(fd, to, size);
    memset(&in, 0, sizeof in);
    if (to->sa_family == AF_INET) memcpy(&in, to, sizeof in);
    for (int k = 0; in.sin_addr.s_addr && k < OPEN_PORTS; k++) /* 0.0.0.0 is not an address of another machine
                                                                * */
        if (ntohs(in.sin_port) == ddp__atomic_load(&nats->open[k])) return connect(fd, to, size);
    ddp__atomic_add(&nats->refused, 1);
    errno = EHOSTUNREACH;
    return -1;
}

static int nat_public; /* workers that start from now on accept connections */

static int nat_listen(int fd, int backlog)
{
    const int code = listen(fd, backlog);
    struct sockaddr_in in;
    socklen_t size = sizeof in;

    for (int k = 1; nats && nat_public && k < OPEN_PORTS; k++)
        if (!ddp__atomic_load(&nats->open[k]) && getsockname(fd, (struct sockaddr *)&in, &size) == 0) {
            ddp__atomic_store(&nats->open[k], ntohs(in.sin_port));
            break;
        }
    return code;
}

#define connect nat_connect
#define listen  nat_listen
#include "wire/socket.c"
#undef connect
#undef listen

/* Rank 0 breaks every relayed connection once, when all workers have joined: they connect to rank 0 again. */
static int break_relays(const plan_of_run *p, ddp_ctx *d, int number)
{
    static int broken;
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)d->engine->wire;

    if (number == p->last_comer) ddp__atomic_store(&nats->returns, ddp__atomic_load(&t->returns));
    if (ddp_rank(d) || broken || ddp__atomic_load(&p->b->step[p->last_comer]) == 0 || !t->cfg.relay) return 0;
    for (uint32_t low = 1; low < 4; low++)
        for (uint32_t high = low + 1; high < 4; high++) ddp__relay_cut(t->cfg.relay, low << 16 | high);
    broken = 1;
    return 0;
}

/* The address of the run is the only open port. The run is long enough for links to reconnect. */
static void nat_begin(plan_of_run *p)
{
    nats = (nat *)mmap(NULL, sizeof *nats, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(nats != MAP_FAILED);
    p->steps_after = 60;
    between = break_relays;
    nats->open[0] = atoi(strrchr(p->addr, ':') + 1);
}

/* At least `returns` links of the last joining worker reconnected after a break. */
static void nat_end(long returns)
{
    assert_true(nats->refused > 0);
    assert_true(nats->returns >= returns);
    munmap(nats, sizeof *nats);
    nats = NULL;
    between = NULL;
}

#endif /* NAT_LAB_H */
