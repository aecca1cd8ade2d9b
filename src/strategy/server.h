/* Parameter servers: the assignment of layers to servers, push and pull, and server state. Internal to
 * server*.c. */
#pragma once

#include "plan/osp/served.h"
#include "strategy/strategy.h"

/* The head of a push: 16 words, then one bit per layer of the model: 1 = the push contains it. */
typedef enum ddp__push_kind { DDP__PUSHES, DDP__SAVES, DDP__LEAVES } ddp__push_kind;

typedef struct ddp__push_head {
    int64_t samples;
    int32_t kind;
    float rate, loss, epoch;
    float compute_s, bytes_per_s; /* measured by the worker, or 0 if not measured */
    float unused[8];
} ddp__push_head;

/* The head of an answer: 16 words, then (osp) the importance of each layer of this server, as double. */
typedef struct ddp__answer_head {
    int32_t staleness;                         /* of the worker's last push */
    int32_t workers;                           /* number of workers that pushed, with rule TOGETHER */
    float loss, epoch, compute_s, bytes_per_s; /* over all workers */
    float unused[10];
} ddp__answer_head;

enum { DDP__HEAD_WORDS = 16 };
DDP_STATIC_ASSERT(sizeof(ddp__push_head) == 4 * DDP__HEAD_WORDS, "a head of 16 words");
DDP_STATIC_ASSERT(sizeof(ddp__answer_head) == 4 * DDP__HEAD_WORDS, "a head of 16 words");

/* A worker's connection to one server: the server's layers, and the two messages that can be in flight. */
typedef struct ddp__line {
    int rank;               /* of the server */
    int *layer, layers;     /* in ascending order */
    size_t count;           /* floats served */
    float *out, *in;        /* heads, followed by the set or the importances */
    ddp_piece *push, *pull; /* lists of the two messages, heads first. The heads are in host memory. */
    int pushes, pulls;
    long push_ticket, pull_ticket; /* -1: none */
    int pushed, asked, leaves;     /* own share: requests of the worker to its server thread (atomic) */
    int answered;                  /* own share: 1 = the thread answered (atomic) */
    const float *answer;           /* own share: the answer, valid until the next push */
} ddp__line;

/* The state of one worker, as seen by a server. */
typedef enum ddp__client_state {
    DDP__CLIENT_FREE,    /* no receive is posted */
    DDP__CLIENT_HEARS,   /* waits for a push, a pull or a control message */
    DDP__CLIENT_PUSHED,  /* a push arrived and is not applied */
    DDP__CLIENT_DONE,    /* the push is applied. The receive of its pull is posted next. */
    DDP__CLIENT_WAITS,   /* waits for a pull */
    DDP__CLIENT_ASKED,   /* a pull arrived. The answer is not sent. */
    DDP__CLIENT_ANSWERS, /* the answer is being sent */
    DDP__CLIENT_SAVES,
    DDP__CLIENT_LEFT,
    DDP__CLIENT_LOST /* elastic world. The server counts the complete pushes of the worker. */
} ddp__client_state;

typedef struct ddp__client {
    ddp__client_state state;
    long ticket;
    ddp_received got;
    float *in, *ask, *head; /* buffers for the push, the pull or control message, and the head of the
                               answer */
    int owes;               /* 1 if it has pushed since its last answer */
    int staleness;          /* of its last push */
} ddp__client;

/* The share of the model that this rank serves. */
typedef struct ddp__store {
    const ddp__line *share;
    float *params, *sum;     /* [share->count] */
    size_t *at;              /* [share->layers] offset of the layer in params */
    float **state;           /* [share->layers] optimizer state, or NULL */
    int64_t *version;        /* [share->layers] number of updates */
    int64_t *clock, *pulled; /* [workers] pushes of each, and the number of all pushes at its last pull */
    int64_t *pushes;         /* number of all pushes */
    double *importance;      /* [share->layers] for osp */
    ddp__client *client;     /* [workers] */
    long *ticket;            /* [workers] tickets to wait for */
    ddp__answer_head told;   /* means over the workers */
    size_t sum_count;
} ddp__store;

typedef struct ddp__servers {
    /* TOGETHER: one update with the mean of all pushes, in rank order. Otherwise one update per push. */
    ddp_serving rule;
    int ahead;               /* steps that a worker may be ahead of the slowest, or -1 for no limit */
    int returns_mean;        /* osp: 1 = an answer is the mean gradient, not the parameters */
    int pushes_params;       /* asp as in the paper: 1 = a push contains parameters */
    int workers, lines, own; /* own: index of this rank's own share. -1 means that servers are separate
                              * ranks. */
    int set_words;           /* words of a push's bit set */
    size_t model;            /* floats with gradients */
    size_t *floats;          /* [layers] floats with gradients */
    size_t *late_at;         /* osp: [layers] offset of the layer in the memory for deferred layers */
    int *line_of;            /* [layers] */
    ddp__line *line;         /* [lines] */
    ddp__store *store;       /* NULL means that this rank is no server */
    ddp_piece *buffer;       /* [buffers] running statistics */
    int buffers;
    float word;                   /* the value that a barrier averages */
    float compute_s, bytes_per_s; /* osp: sent with each push */
    void *forecast;               /* [ddp_served_room] and [2][lines] doubles, for ddp__served_predict */
    double computed_s;            /* sum of the computing time of all steps */
    long steps;
    int explained; /* 1 if the error already names the layers of the lost server */
    double stale_sum;
    long stale_count;
} ddp__servers;

/* server_line.c
 * ddp__servers_start allocates and assigns everything, except that rule, ahead, returns_mean and
 * pushes_params are set before. The other functions implement the events. set: one bit per layer, or NULL for
 * all layers. */
DDP_LIB int ddp__servers_start(ddp_ctx *d, ddp__servers *s);
DDP_LIB int ddp__servers_tell(ddp_ctx *d, void *self, int leaves);
DDP_LIB int ddp__servers_wait(ddp_ctx *d, void *self);
DDP_LIB void ddp__servers_failed(ddp_ctx *d, void *self);
/* Pushes the layers of one server that are in `set`: from `memory` (deferred layers), or from their gradients
 * if NULL. */
DDP_LIB int ddp__line_push(ddp_ctx *d, ddp__servers *s, ddp__line *k, const unsigned char *set,
                           float *memory);
/* Pulls the same layers into `memory`, or into their parameters if NULL. */
DDP_LIB int ddp__line_pull(ddp_ctx *d, ddp__servers *s, ddp__line *k, const unsigned char *set,
                           float *memory);
/* Waits for the pull. */
DDP_LIB int ddp__line_pulled(ddp_ctx *d, ddp__servers *s, ddp__line *k);
/* 1 if ddp__line_pulled would not block */
DDP_LIB int ddp__line_is_here(ddp_ctx *d, ddp__servers *s, const ddp__line *k);
/* Pushes to all servers (if `pushes`), pulls from all, and waits. */
DDP_LIB int ddp__servers_exchange(ddp_ctx *d, ddp__servers *s, const unsigned char *set, int pushes);
/* A barrier of all workers. */
DDP_LIB int ddp__servers_meet(ddp_ctx *d, ddp__servers *s);
/* The same, which also averages the workers' buffers. */
DDP_LIB int ddp__servers_average_buffers(ddp_ctx *d, ddp__servers *s);
/* Predicts the step time for the statistics, in some steps only. Called at the end of a step that computed
 * for computed_s. late: layers whose transfer overlaps the next step, or NULL. */
DDP_LIB int ddp__served_predict(ddp_ctx *d, ddp__servers *s, double computed_s, const unsigned char *late);

/* server_desk.c: the server loop. ddp__store_turn does all work that is possible now. Returns 1 if it did
 * some, < 0 if it failed. */
DDP_LIB int ddp__store_open(ddp_ctx *d, ddp__servers *s, const ddp__line *share);
DDP_LIB int ddp__store_turn(ddp_ctx *d, ddp__servers *s);
DDP_LIB int ddp__servers_serve(ddp_ctx *d, void *self);

static inline int ddp__in_set(const unsigned char *set, int layer)
{
    return !set || (set[layer / 8] >> layer % 8 & 1);
}
