/* Inside of a simulated world: whose turn it is, what happens when, and what is under way. One mutex guards
 * all of it, and one worker runs at a time; the network moves only while none does. */
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
    ddp__port *at;            /* where it waits for a message; NULL: for its time */
    struct ddp__player *next; /* of those that are ready */
    pthread_t thread;
    pthread_cond_t turn;
    ddp_error error;
} ddp__player;

/* What happens at a time, to something; i and j are its own matter. Of two at once the one that was foreseen
 * first. */
typedef struct ddp__event {
    double at;
    uint64_t order;
    void (*fn)(ddp__world *w, void *what, int i, int j);
    void *what;
    int i, j;
} ddp__event;

struct ddp__world {
    pthread_mutex_t lock;
    double now;                /* of the network */
    ddp__player *seat;         /* [seats] */
    int seats, size;           /* size: ranks; seats < size: the last one stands for all that are not
                                     there */
    ddp__player *first, *last; /* ready, in order */
    ddp__event *event;         /* a list: a heap of the events that are due */
    uint64_t orders;
    ddp__port **port[2];                  /* [seats] of each link; NULL: not open, or closed */
    struct ddp__away *aways;              /* parts that are on their way out */
    struct ddp__mail *mails;              /* all that were not received */
    struct ddp__carried *carried, *voids; /* collectives under way; those that are not any more */
    uint64_t live;                        /* as in ddp__epoch_info */
    int min_world;
    const unsigned char *paper;
    size_t paper_bytes;
    double scale;
    int alike; /* all ways take the same time, always */
    int64_t events;
    ddp_error error; /* what ended it */
    /* Files above these: what may begin at a port; every engine has this error; nobody can go on. */
    void (*look)(ddp__port *p);
    void (*fails)(ddp__world *w, const ddp_error *why);
    void (*stuck)(ddp__world *w);
};

/* ---- world.c ---- */
DDP_LIB void *ddp__world_new(ddp__world *w, size_t count, size_t size); /* zeroed; NULL: the world has
                                                                           failed */
/* Makes room for another element of a list; 0: out of memory, the world has failed. */
#define ddp__world_reserve(w, list) ddp__world_has(w, ddp__reserve(list, stbds_arrlenu(list) + 1))
DDP_LIB int ddp__world_has(ddp__world *w, int has);

/* ---- clock.c ---- */
DDP_LIB void ddp__world_at(ddp__world *w, double at, void (*fn)(ddp__world *, void *, int, int), void *what,
                           int i, int j);
DDP_LIB void ddp__seat_ready(ddp__world *w, ddp__player *s); /* what it waits for may be there: at the
                                                                network's time */
/* Under the lock. turn: waits for something at `at` (NULL: until the network has come to its time). end:
 * never again. */
DDP_LIB void ddp__seat_wait(ddp__player *s, ddp__port *at);
DDP_LIB void ddp__seat_end(ddp__player *s);
DDP_LIB void ddp__seat_begin(ddp__player *s); /* first on its thread: waits for its turn */
DDP_LIB void ddp__world_begin(ddp__world *w);

/* ---- port.c ---- */
DDP_LIB ddp_status ddp__port_attach(void *user, int link, int rank, ddp__wire **out, ddp_error *err);
DDP_LIB void ddp__port_rules(ddp__world *w);                  /* sets look, fails and stuck */
DDP_LIB int ddp__port_is_dead(const ddp__world *w, int rank); /* the script has killed it */
DDP_LIB void ddp__carried_free(ddp__world *w);
