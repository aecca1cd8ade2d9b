/* Internal state of a simulated world: scheduling, events, and messages in flight. One mutex guards all of
 * it. One worker runs at a time, and the network advances only while no worker runs. */
#pragma once

#include "comm/state.h"

typedef struct ddp__world ddp__world;
typedef struct ddp__port ddp__port;

typedef enum ddp__player_state {
    DDP__PLAYER_READY,
    DDP__PLAYER_RUNS,
    DDP__PLAYER_WAITS,
    DDP__PLAYER_DEAD,
    DDP__PLAYER_OVER
} ddp__player_state;

/* A worker's thread. */
typedef struct ddp__player {
    ddp__world *world;
    int rank;
    double now;
    ddp__player_state state;
    ddp__port *at;            /* the link on which it waits for a message. NULL means that it waits for a
                               * time. */
    struct ddp__player *next; /* list of workers that can run */
    pthread_t thread;
    pthread_cond_t turn;
    ddp_error error;
} ddp__player;

/* A timed event, where i and j are arguments of fn. Events with the same time run in the order in which they
 * were added. */
typedef struct ddp__event {
    double at;
    uint64_t order;
    void (*fn)(ddp__world *w, void *what, int i, int j);
    void *what;
    int i, j;
} ddp__event;

struct ddp__world {
    pthread_mutex_t lock;
    double now;        /* time of the network */
    ddp__player *seat; /* [seats] */
    int seats, size;   /* size is the number of ranks. If seats < size, the last seat represents all other
                          ranks */
    ddp__player *first, *last; /* workers that can run, in order */
    ddp__event *event;         /* a list: a heap of pending events */
    uint64_t orders;
    ddp__port **port[2];                  /* [seats] of each link, NULL if not open or closed */
    struct ddp__away *aways;              /* parts that are being sent */
    struct ddp__mail *mails;              /* all messages that are not received */
    struct ddp__carried *carried, *voids; /* collectives in flight, restarted collectives */
    uint64_t live;                        /* as in ddp__epoch_info */
    int min_world;
    const unsigned char *paper;
    size_t paper_bytes;
    double scale;
    int alike; /* 1 if all links always take the same time */
    int64_t events;
    ddp_error error; /* the error that ended the world */
    /* Set by port.c. look starts operations of a port, fails sets the error of every engine, and stuck
     * reports a deadlock. */
    void (*look)(ddp__port *p);
    void (*fails)(ddp__world *w, const ddp_error *why);
    void (*stuck)(ddp__world *w);
};

/* ---- world.c ---- */
/* zeroed. NULL means that the world has failed. */
DDP_LIB void *ddp__world_new(ddp__world *w, size_t count, size_t size);
/* Reserves one more element of a list. 0 means that out of memory, the world has failed. */
#define ddp__world_reserve(w, list) ddp__world_has(w, ddp__reserve(list, stbds_arrlenu(list) + 1))
DDP_LIB int ddp__world_has(ddp__world *w, int has);

/* ---- clock.c ---- */
DDP_LIB void ddp__world_at(ddp__world *w, double at, void (*fn)(ddp__world *, void *, int, int), void *what,
                           int i, int j);
/* wakes a waiting worker at the network's time */
DDP_LIB void ddp__seat_ready(ddp__world *w, ddp__player *s);
/* The caller holds the lock. Waits for a message at the port `at`. NULL means that until the network reaches
 * the worker's time. */
DDP_LIB void ddp__seat_wait(ddp__player *s, ddp__port *at);
/* The worker has returned. */
DDP_LIB void ddp__seat_end(ddp__player *s);
DDP_LIB void ddp__seat_begin(ddp__player *s); /* first call on its thread: waits for its turn */
DDP_LIB void ddp__world_begin(ddp__world *w);

/* ---- port.c ---- */
DDP_LIB ddp_status ddp__port_attach(void *user, int link, int rank, ddp__wire **out, ddp_error *err);
DDP_LIB void ddp__port_rules(ddp__world *w);                  /* sets look, fails and stuck */
DDP_LIB int ddp__port_is_dead(const ddp__world *w, int rank); /* 1 if the script has killed it */
DDP_LIB void ddp__carried_free(ddp__world *w);
