/* Ranks over sockets that the test connects (transport sockets). Include after dreamddp.h. */
#ifndef GIVEN_LAB_H
#define GIVEN_LAB_H

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GIVEN_MAX = 4 };

/* fd[a][b]: rank a's end of its connection to rank b; fd[a][a] is -1. */
typedef struct given_pairs {
    int world;
    int fd[GIVEN_MAX][GIVEN_MAX];
} given_pairs;

/* Creates a socket pair for each pair of ranks. buffer: size of each socket's buffers, or 0 for the system's
 * default. */
static DDP__UNUSED void given_connect(given_pairs *p, int world, int buffer)
{
    int end[2];

    memset(p->fd, -1, sizeof p->fd);
    p->world = world;
    for (int a = 0; a < world; a++)
        for (int b = 0; b < a; b++) {
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, end)) return;
            for (int i = 0; i < 2 && buffer; i++)
                setsockopt(end[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
            p->fd[a][b] = end[0];
            p->fd[b][a] = end[1];
        }
}

/* Closes the descriptors of that rank, or (other 1) of all others; -1: of all ranks. */
static DDP__UNUSED void given_close(given_pairs *p, int rank, int other)
{
    for (int a = 0; a < p->world; a++)
        for (int b = 0; b < p->world; b++) {
            if ((rank >= 0 && (a == rank) == other) || p->fd[a][b] < 0)
                continue; /* other threads write the
                                                                                     other rows */
            close(p->fd[a][b]);
            p->fd[a][b] = -1;
        }
}

typedef struct given_thread {
    const ddp_config *cfg;
    given_pairs *pairs;
    int rank;
    int (*fn)(ddp_ctx *, void *);
    void *user;
    ddp_error err;
    pthread_t thread;
} given_thread;

static void *given_run(void *arg)
{
    given_thread *t = (given_thread *)arg;
    ddp_config cfg = *t->cfg;
    ddp_ctx *d;
    int bad;

    cfg.transport = DDP_SOCKETS;
    cfg.rank = t->rank;
    cfg.sockets = t->pairs->fd[t->rank];
    d = ddp_open(&cfg, &t->err);
    given_close(t->pairs, t->rank, 0); /* the library uses its duplicates */
    if (!d) return NULL;
    bad = t->fn(d, t->user);
    t->err = *ddp_last_error(d);
    if (bad && !t->err.code) t->err.code = DDP_FAILED;
    ddp_close(d);
    return NULL;
}

/* Like ddp_launch: runs fn for each rank of cfg->world, as threads. Returns the first error, in *err. */
static DDP__UNUSED int given_launch(const ddp_config *cfg, int buffer, int (*fn)(ddp_ctx *, void *),
                                    void *user, ddp_error *err)
{
    given_thread t[GIVEN_MAX];
    given_pairs pairs;

    memset(t, 0, sizeof t);
    memset(err, 0, sizeof *err);
    given_connect(&pairs, cfg->world, buffer);
    for (int r = 0; r < cfg->world; r++) {
        t[r].cfg = cfg;
        t[r].pairs = &pairs;
        t[r].rank = r;
        t[r].fn = fn;
        t[r].user = user;
        pthread_create(&t[r].thread, NULL, given_run, &t[r]);
    }
    for (int r = 0; r < cfg->world; r++) {
        pthread_join(t[r].thread, NULL);
        if (t[r].err.code && (!err->code || err->code == DDP_ABORTED || err->code == DDP_PEER_LOST))
            *err = t[r].err;
    }
    return (int)err->code;
}

#endif /* GIVEN_LAB_H */
