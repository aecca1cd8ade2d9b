/* Servers of layers: who serves which, what is pushed and pulled, and a server's own book. Inside of
 * server*.c. */
#pragma once

#include "plan/osp/served.h"
#include "strategy/strategy.h"

/* In front of what is pushed: 16 words, then a bit for each layer of the model that the push is about. */
typedef enum ddp__push_kind { DDP__PUSHES, DDP__SAVES, DDP__LEAVES } ddp__push_kind;

typedef struct ddp__push_head {
    int64_t samples;
    int32_t kind;
    float rate, loss, epoch;
    float compute_s, bytes_per_s; /* that the worker measured; 0 = not */
    float unused[8];
} ddp__push_head;

/* In front of an answer: 16 words, then (osp) the importance of each layer of this server, in double. */
typedef struct ddp__answer_head {
    int32_t staleness;                         /* of the push before */
    int32_t workers;                           /* that pushed, where all wait for all */
    float loss, epoch, compute_s, bytes_per_s; /* over all workers */
    float unused[10];
} ddp__answer_head;

enum { DDP__HEAD_WORDS = 16 };
DDP_STATIC_ASSERT(sizeof(ddp__push_head) == 4 * DDP__HEAD_WORDS, "a head of 16 words");
DDP_STATIC_ASSERT(sizeof(ddp__answer_head) == 4 * DDP__HEAD_WORDS, "a head of 16 words");

/* From a worker to one server: its layers, and the two messages that are under way at most. */
typedef struct ddp__line {
    int rank;               /* that serves */
    int *layer, layers;     /* rising */
    size_t count;           /* floats that it serves */
    float *out, *in;        /* heads, with what follows them */
    ddp_piece *push, *pull; /* the lists of the two messages, heads first, which are in this machine's
                                      memory */
    int pushes, pulls;
    long push_ticket, pull_ticket; /* -1: none */
    int pushed, asked, leaves;     /* own share: what the worker wants of the thread beside it; atomic, */
    int answered;                  /* and what that has done, */
    const float *answer;           /* which stays until the next push */
} ddp__line;

/* What a server knows of one worker. */
typedef enum ddp__client_state {
    DDP__CLIENT_FREE,    /* its next word is not asked for yet */
    DDP__CLIENT_HEARS,   /* a push, a pull or a word is awaited */
    DDP__CLIENT_PUSHED,  /* a push is here, not applied */
    DDP__CLIENT_DONE,    /* applied; its pull is asked for next */
    DDP__CLIENT_WAITS,   /* a pull is awaited */
    DDP__CLIENT_ASKED,   /* wants its answer */
    DDP__CLIENT_ANSWERS, /* which is on its way */
    DDP__CLIENT_SAVES,
    DDP__CLIENT_LEFT,
    DDP__CLIENT_LOST /* in an elastic world; what it has pushed whole counts */
} ddp__client_state;

typedef struct ddp__client {
    ddp__client_state state;
    long ticket;
    ddp_received got;
    float *in, *ask, *head; /* what is pushed; a word; the head of its answer */
    int owes;               /* it has pushed since its last answer */
    int staleness;          /* of that push */
} ddp__client;

/* What this rank serves. */
typedef struct ddp__store {
    const ddp__line *share;
    float *params, *sum;     /* [share->count] */
    size_t *at;              /* [share->layers] where a layer begins */
    float **state;           /* [share->layers] of the optimizer, NULL: none */
    int64_t *version;        /* [share->layers] updates of a layer */
    int64_t *clock, *pulled; /* [workers] pushes of each; pushes of all at its last pull */
    int64_t *pushes;         /* of all */
    double *importance;      /* [share->layers] osp */
    ddp__client *client;     /* [workers] */
    long *ticket;            /* [workers] that are waited for */
    ddp__answer_head told;   /* means over the workers */
    size_t sum_count;
} ddp__store;

typedef struct ddp__servers {
    ddp_serving rule;        /* one update of the mean of all, in rank order; or of each push */
    int ahead;               /* iterations that a worker may be ahead of the slowest; -1 = any number */
    int returns_mean;        /* osp: an answer is the mean gradient, not parameters */
    int pushes_params;       /* asp, the paper's: what is pushed are parameters */
    int workers, lines, own; /* own: the line of this rank's own share; -1: it serves none beside a
                                       worker */
    int set_words;           /* of a push's bits */
    size_t model;            /* floats with gradients */
    size_t *floats;          /* [layers] of them */
    size_t *late_at;         /* osp: [layers] where a layer begins in the memory of those that are
                                      late */
    int *line_of;            /* [layers] */
    ddp__line *line;         /* [lines] */
    ddp__store *store;       /* NULL: this rank serves nothing */
    ddp_piece *buffer;       /* [buffers] running statistics */
    int buffers;
    float word;                   /* what all meet with */
    float compute_s, bytes_per_s; /* osp: told with each push */
    void *forecast;               /* [ddp_served_room] and [2][lines] doubles, for ddp__served_predict */
    double computed_s;            /* of all steps so far */
    long steps;
    int explained; /* the error names the layers of the lost server */
    double stale_sum;
    long stale_count;
} ddp__servers;

/* server_line.c: start declares everything (rule, ahead and so on are set before); the rest is what events
 * are made of. set: a bit for each layer, NULL: all. */
DDP_LIB int ddp__servers_start(ddp_ctx *d, ddp__servers *s);
DDP_LIB int ddp__servers_tell(ddp_ctx *d, void *self, int leaves);
DDP_LIB int ddp__servers_wait(ddp_ctx *d, void *self);
DDP_LIB void ddp__servers_failed(ddp_ctx *d, void *self);
/* One line: a push of its layers in set from the memory of late ones (NULL: of their gradients), a pull into
 * it (NULL: into their parameters), and its end. */
DDP_LIB int ddp__line_push(ddp_ctx *d, ddp__servers *s, ddp__line *k, const unsigned char *set,
                           float *memory);
DDP_LIB int ddp__line_pull(ddp_ctx *d, ddp__servers *s, ddp__line *k, const unsigned char *set,
                           float *memory);
DDP_LIB int ddp__line_pulled(ddp_ctx *d, ddp__servers *s, ddp__line *k);
DDP_LIB int ddp__line_is_here(ddp_ctx *d, ddp__servers *s, const ddp__line *k); /* pulled would not wait */
/* All lines, from their begin to their end; pushes: 0 = only a pull. */
DDP_LIB int ddp__servers_exchange(ddp_ctx *d, ddp__servers *s, const unsigned char *set, int pushes);
/* Returns when all workers have come here; average_buffers: and their buffers have become the mean. */
DDP_LIB int ddp__servers_meet(ddp_ctx *d, ddp__servers *s);
DDP_LIB int ddp__servers_average_buffers(ddp_ctx *d, ddp__servers *s);
/* At the end of a step that computed so long, whose layers in `late` travel behind it (NULL: none): now and
 * then sets the predicted step of the statistics. */
DDP_LIB int ddp__served_predict(ddp_ctx *d, ddp__servers *s, double computed_s, const unsigned char *late);

/* server_desk.c: what serve does. turn: all that can be done now; 1 = something was, < 0 = it failed. */
DDP_LIB int ddp__store_open(ddp_ctx *d, ddp__servers *s, const ddp__line *share);
DDP_LIB int ddp__store_turn(ddp_ctx *d, ddp__servers *s);
DDP_LIB int ddp__servers_serve(ddp_ctx *d, void *self);

static inline int ddp__in_set(const unsigned char *set, int layer)
{
    return !set || (set[layer / 8] >> layer % 8 & 1);
}
