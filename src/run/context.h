/* Inside of a ddp_ctx. */
#pragma once

#include "nn/exact.h"
#include "member/join.h"
#include "profile/timer.h"
#include "profile/trace.h"
#include "plan/partial/partial.h"
#include "run/launch.h"
#include "run/stats.h"
#include "run/collective.h"

/* What the time since the last hook was spent on. */
typedef enum ddp__phase {
    DDP__OUTSIDE,       /* between steps: data loading, reports */
    DDP__IN_FORWARD,    /* after forward_begin(layer) */
    DDP__IN_BACKWARD,   /* after backward_begin(layer) */
    DDP__AFTER_BACKWARD /* after backward_end: the next layer's backward, if no hook says otherwise */
} ddp__phase;

/* Where the accounts of a step stand. */
typedef struct ddp__at {
    ddp__phase phase;
    int layer;    /* of the phase */
    double mark;  /* when the last hook returned */
    double begun; /* the wait or the update that is under way */
} ddp__at;

/* A registered layer. */
typedef struct ddp__unit {
    char *name;
    ddp_block *block;   /* a list */
    ddp_matrix *matrix; /* [matrices] */
    int matrices;
    double flops;
    int group, link;              /* that averages it, 0: all; that its messages take, of a bucket its last
                                   layer's */
    size_t count;                 /* floats that averaging moves, optimizer state left out */
    float *state;                 /* [state_count] of the optimizer */
    size_t state_count, trained;  /* the latter: floats with gradients */
    ddp_piece *average;           /* [averages] what averaging the layer moves */
    ddp_piece *gradient, *trains; /* [gradients] gradients, and what they are of, as the optimizer takes
                                      them */
    ddp_matrix *shape;            /* [gradients] rows 0: no matrix */
    ddp_piece *other;             /* [others] what else averaging moves: buffers, optimizer state */
    ddp_piece *moved;             /* what of `average` or `other` goes this time; NULL: all, every time */
    int averages, gradients, others;
    long ticket, other_ticket;      /* transfers in flight, or -1 */
    float *residual, *base, *delta; /* [trained] int8 blocks: still to be sent, the last average, what is
                                            in flight; NULL without */
    int changing;                   /* delta is in flight, or was */
    int passes;                     /* backward_end calls in this step */
    int skipped;                    /* micro-batches of this step without a gradient (ddp_skip) */
    int left_out;                   /* the last update was: no rank had a gradient */
    long updates;                   /* updates applied so far */
    long forward_step;              /* last step with a forward_begin */
    double divergence;              /* of the last averaging; written by the comm thread while in flight */
    double last_divergence, part_divergence; /* of all parts; of those of them averaged so far */
    int moving, averaged;                    /* parts in flight, and averaged so far */
} ddp__unit;

/* A message that the strategy posted and has not held. */
typedef struct ddp__posted {
    long name;   /* its ticket to the strategy */
    long ticket; /* of the engine, the stager or the devices' network */
    int link, layer, told;
    int in_layer; /* it lies in that layer's own memory */
    int here;     /* parts of it lie in this machine's, which holding waits for */
    long step;
    ddp_piece *sum; /* [from + to] on a device: what comes in those is added to these; to 0: nothing
                               is */
    int from, to;
} ddp__posted;

/* A tensor of the strategy's own (ddp_keep). */
typedef struct ddp__own_state {
    char name[32];
    int layer, equal; /* the latter as ddp_keep has it */
    float *data;
    size_t count;
} ddp__own_state;

/* A state of the program (ddp_add_state). */
typedef struct ddp__program {
    ddp_program_state of;
    char name[32];
    void *bytes; /* that save gave, until release */
    int lent;    /* there are such bytes, which may be NULL */
} ddp__program;

enum { DDP__NOTES = 64 };

/* What a rank tells the others every few periods. */
typedef struct ddp__pace_word {
    double compute_s; /* mean of its steps since the last one, without waits */
    double lr;        /* of this step */
    double present;   /* 1; 0: it is lost */
} ddp__pace_word;

/* The layers of this rank are a part of a model: the sum of squares of the parts before it comes first, and
 * becomes that of all. */
typedef struct ddp__norm_chain {
    ddp_status (*pass)(void *user, int after, double *squares); /* NULL: they are all there is; the context
                                                                   has the error */
    void *user;
} ddp__norm_chain;

/* The layers of this rank are a part of a model, of which there are several copies. */
typedef struct ddp__cut_span {
    int unit, buffers;      /* a layer here; 1: its buffers, 0: its parameters */
    size_t from, at, count; /* in the whole layer; here */
} ddp__cut_span;

typedef struct ddp__cut {
    int copies, copy;
    int stages, stage; /* that one copy is cut into; this rank's */
    int group;         /* of the ranks of its copy; 0 where stages is 1 */
    const char **name; /* [layers] of the model */
    int layers;
    int *whole;          /* [units] the number of each in the model, rising */
    int units;           /* layers of the model that are here */
    ddp__cut_span *span; /* [spans] */
    int spans;
    float *residual; /* [residuals] what its edges have cut off (ddp_edge_wire.feedback), in this
                                machine's memory */
    size_t residuals;
} ddp__cut;

/* What planning needs of a layer of the whole model, which may be on several stages. Counts are of floats. */
typedef struct ddp__layer_cost {
    double flops;
    double count, trained, others; /* ddp__unit's count and trained; what else an average moves, optimizer
                                      state included */
    double holders;                /* stages that have some of the trained */
} ddp__layer_cost;

struct ddp_ctx {
    ddp__host host;       /* first: src/graph reads the context as a host */
    ddp_config cfg;       /* resolved; strings owned by the context */
    int rank, world, met; /* id, how many ids there are, and how many from the start */
    ddp__links links[2];  /* of cfg.net and cfg.net_script, and of cfg.net2; no paths: they are not
                                    set */
    ddp_strategy_ops ops;
    void *self;          /* the strategy's memory */
    const char *event;   /* that the strategy is in; NULL = none */
    const char *call;    /* the program's last call: "ddp_step_end" */
    int said_where;      /* the error says in which call and step this rank was */
    ddp__posted *posted; /* [posted_room] */
    int posted_count, posted_room;
    long posted_next;
    ddp__own_state *kept;         /* a list */
    ddp__engine *engine, *second; /* NULL with one worker; of link 1, NULL without */
    ddp_link link[2];             /* measured */
    double gap_s[2];              /* of either: see ddp_profile; 0 where nothing was measured */
    ddp__norm_chain norm;         /* for clip_norm */
    const ddp__cut *cut;          /* NULL: each rank has the whole model; borrowed */
    ddp__layer_cost *model;       /* [cut->layers] where all stages follow one plan; NULL: each rank plans its
                                    own layers */
    int edge_messages;            /* of a pipeline, which may be under way at a time, and their bytes */
    size_t edge_bytes;
    struct ddp__keeper *keeper; /* of a pipeline that others go on without; NULL */
    ddp__tls *tls;              /* NULL = plain */
    struct ddp__join *join;     /* serves newcomers; NULL where none can come */
    long join_ticket;           /* the coordinator's word on newcomers on the way, or -1 */
    int32_t join_word;          /* id to admit, or -1 */
    struct ddp__joiner *joiner; /* this worker is one, not yet in; else NULL */
    int admission_due;          /* a period is over: the next hook of a layer lets joining workers in */
    int entered;                /* this worker has joined and not called a hook of a layer yet */
    uint64_t saves_as;          /* run identity in its checkpoints; 0: none yet */

    ddp__unit *unit;        /* [layers], grows until the session starts */
    int layers;             /* of the list unit */
    int computing;          /* group of the ranks that compute, where others serve; 0 = all, or (elastic)
                                    those who did not ddp__engine_retire */
    struct ddp__desk *desk; /* of a rank that serves; NULL */
    ddp_step_info info;     /* what was reported of this step, and the last loss */
    ddp_optimizer optimizer;
    float lr;
    ddp__muon_desk muon; /* of the largest matrix, muon_count floats */
    size_t muon_count;
    int team;                             /* group of the ranks that this one plans with; 0 = all ranks; */
    int team_size, team_place, team_root; /* their number, this rank's place, the first */
    const ddp_sites *levels;              /* averages go in two; NULL: in one */
    ddp_sites sites;                      /* which they are */
    int mixed, started;                   /* layers belong to unlike groups; they are frozen */
    int aborts, aborted; /* atomic; ddp_abort with one worker: how often, and abort_text is there */
    char abort_text[DDP_ERROR_TEXT];
    int engine_held;     /* atomic: a thread uses `engine`, which must not close meanwhile */
    int dumping, dumped; /* somebody writes a dump, atomic; cfg.dump_path was written, or could not
                                     be */

    long step;
    int64_t taken;     /* micro-batches of all ranks together */
    int hooks_forward; /* every layer had its forward_begin in the last whole step */
    ddp__at at;

    float *coded, *bases; /* int8 blocks: residuals of all layers, here, and where they are, bases and
                                    deltas; NULL */
    size_t coded_count, bases_count;
    float *coded_there; /* where a device makes its blocks itself: [coded_count] residuals, and
                                    [coded_count] what was cut off of results, to be added to them; NULL */

    ddp_blob plan;       /* in force; no bytes = none */
    ddp_profile profile; /* profile.layers 0 = none yet */
    ddp__timer timer;
    ddp_linkfit fit[2]; /* follows each link while training */
    double mean_layer_bytes;
    int plan_steps;    /* of a period of what the strategy sends */
    long drift_ticket; /* the first rank's word on planning again, or -1 */
    struct {
        int again;
        ddp_link link[2];
    } drift_word;
    double compute_this_step, compute_sum_s; /* of this rank, waits left out */
    long compute_steps;
    ddp__pace_word *pace;      /* [world] */
    double *pace_sorted;       /* [world] room for their times */
    long pace_ticket;          /* the exchange of these, or -1 */
    double pace_told;          /* the ratio that was logged last; 0 = nobody is slow */
    int pace_place;            /* in the team, of whom that was */
    ddp_note note[DDP__NOTES]; /* ring */
    long notes;                /* ever */
    uint64_t noted_live;       /* the workers at the last look; 0 = none yet */
    long timed_from;           /* the first step of those that are timed for the plan */
    int measured, plan_final;  /* it came from clocks: it follows the link; no measured one will
                                          replace it */

    ddp_span *span, *merge;   /* [spans] ring of compute and waits; [merge_room] scratch of the hidden
                                    share */
    ddp__op_span *op_scratch; /* [op_room] for statistics and traces */
    int spans, op_room, merge_room;
    long span_count; /* spans ever recorded */

    struct ddp__stager *stager; /* of a device's messages; NULL = they are here */
    struct ddp__clock *clock;   /* of a device's times; NULL = hooks are punctual */
    int loaded, joined;         /* a step has run on the device: its kernels are there; it has a network of
                                    its own */
    struct ddp__nccl *nccl;     /* what is sent over that */

    ddp__same same[DDP_SAME];  /* ddp_same */
    ddp__same usual[DDP_SAME]; /* ddp_usually_same */
    int sames, usuals;
    ddp__program program[DDP_PROGRAM_STATES]; /* ddp_add_state */
    int programs;
    const char *in_program; /* "save" or "load": such a function of the program runs; NULL = none */
    char unlike[400];       /* ddp_unlike */
    ddp_stats stats;
    double step_begin, wait_this_step, sum_step_s, sum_wait_s; /* the first: end of the previous step */
    ddp__scratch lists;                                        /* all of fixed length */
};

/* First line of every hook: a forked child's error, the sticky error; events of strategies and functions of
 * ddp_add_state do not call hooks. */
#define DDP__ENTER(d)                                                                        \
    do {                                                                                     \
        if (!(d)) return DDP_ARG;                                                            \
        if (ddp__host_check(&(d)->host, &(d)->host.error)) return (int)(d)->host.error.code; \
        if ((d)->host.error.code) return (int)(d)->host.error.code;                          \
        if ((d)->event || (d)->in_program) return ddp__hook_in_event(d);                     \
        (d)->call = __func__;                                                                \
    } while (0)
DDP_LIB int ddp__hook_in_event(ddp_ctx *d);

/* ---- context.c: what it knows of itself ---- */

/* Makes err the context's sticky error (the first one stays) and tells the other ranks. */
DDP_LIB int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err);
DDP_LIB int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
/* Live workers; whether this rank is the lowest of them, which does what is done once; whether it is
 * the first of those who share its layers. */
DDP_LIB uint64_t ddp__live(const ddp_ctx *d);
DDP_LIB int ddp__is_first(const ddp_ctx *d);
DDP_LIB int ddp__leads(const ddp_ctx *d);
DDP_LIB int ddp__two_links(const ddp_config *c);
DDP_LIB ddp__engine *ddp__engine_of(const ddp_ctx *d, int link);
/* First check of the program's collectives: fails on a joining worker that has not begun a step, of which the
 * members expect none. Only this worker ends. */
DDP_LIB ddp_status ddp__is_in_step(ddp_ctx *d, const char *call);
/* engine_slot.c: other threads dump and abort while a joining worker opens and closes its engine. Between
 * hold and release `engine` does not change; set waits for the release. */
DDP_LIB void ddp__engine_hold(ddp_ctx *d);
DDP_LIB void ddp__engine_release(ddp_ctx *d);
DDP_LIB void ddp__engine_set(ddp_ctx *d, ddp__engine *e);
/* context.c: sizes, ranks and hashes that other files need */
DDP_LIB int ddp__has_engine(const ddp_ctx *d);       /* 0: one worker, or a forked child, where nothing may
                                                           lock it */
DDP_LIB int ddp__team_rank(const ddp_ctx *d, int i); /* number i of its team */
DDP_LIB int ddp__group_root(const ddp_ctx *d, int group); /* the first rank of a group */
DDP_LIB ddp_coding ddp__wire_coding(ddp_wire wire);
/* Floats of state of a parameter of trains[i]; array k of it lies k counts behind the first. */
DDP_LIB int ddp__piece_state(const ddp_ctx *d, const ddp__unit *u, int i);
DDP_LIB int ddp__plan_rows(const ddp_ctx *d);                 /* parts of all layers */
DDP_LIB int ddp__parts_for(const ddp_ctx *d, size_t trained); /* of a layer with `trained` floats
                                                                          that have gradients */
DDP_LIB size_t ddp__layer_bytes(const ddp_ctx *d, int layer); /* that averaging it moves */
/* Bytes of a layer's average over a group: floats with gradients, and others. */
DDP_LIB size_t ddp__average_bytes(const ddp_ctx *d, int group, size_t trained, size_t others);
DDP_LIB size_t ddp__layer_others(const ddp_ctx *d, int layer);
/* Fingerprints of layers and optimizer, and of the operators. */
DDP_LIB uint64_t ddp__unit_hash(const ddp__unit *u);
DDP_LIB uint64_t ddp__layout_hash(const ddp_ctx *d);
DDP_LIB uint64_t ddp__model_hash(const ddp_ctx *d);
DDP_LIB uint64_t ddp__dropout_hash(const ddp_ctx *d); /* where dropout is in the graphs, and how much */
DDP_LIB double ddp__dropout(const ddp_ctx *d);        /* its largest probability in the graphs; 0: there is
                                                            none */
/* settings.c. Settings that all ranks must have the same, as numbers; joined: those that a newcomer must have
 * too. Returns how many, at most DDP__SETTINGS, or DDP__JOIN_SETTINGS. */
enum { DDP__SETTINGS = 96 };
DDP_LIB int ddp__settings(const ddp_ctx *d, int joined, ddp__setting *out);
/* One value of a setting for a message: the name of a choice, or up to `digits` digits. */
DDP_LIB void ddp__setting_text(const ddp__setting *s, double value, int digits, char *out, size_t room);

/* ---- links.c, connect.c: the others ---- */

/* What cfg.net and cfg.net_script, or (link 1) cfg.net2, say about this rank; *out stays empty where none is
 * set. Freed by ddp__links_free. */
DDP_LIB ddp_status ddp__links_open(const ddp_config *given, int link, ddp__links *out, ddp_error *err);
DDP_LIB ddp_status ddp__session_tls(ddp_ctx *d, ddp_error *err); /* d->tls, where the configuration says so */
/* The wire of the first link, or of another that meets at addr. */
DDP_LIB ddp_status ddp__connect(ddp_ctx *d, ddp__hub *hub, const char *addr, int listen_fd, ddp__wire **wire,
                                ddp_error *err);
/* The engine over a wire, which is its own from here on. */
DDP_LIB ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links, int joining,
                                     uint64_t live, ddp__engine **out, ddp_error *err);
/* The second link, if the configuration has one: a wire and an engine of its own, so that its operations
 * wait for none of the first (DeFT, section 3). They meet where the first link says. */
DDP_LIB ddp_status ddp__open_second(ddp_ctx *d, ddp__hub *hub, ddp_error *err);

/* compare.c: DDP_MISMATCH names the first difference between the ranks. Collective. */
DDP_LIB ddp_status ddp__agree(ddp_ctx *d, ddp_error *err);
/* start.c: freezes the layers: comparison, memory, rank 0's parameters. Idempotent. */
DDP_LIB ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err);
/* context.c: pieces of a layer's longest message: an average of all its parts, with each array of optimizer
 * state as a part. */
DDP_LIB size_t ddp__unit_pieces(const ddp_ctx *d, const ddp__unit *u);
/* Makes room in the engines for a message of all layers, such as a push to a server. No message is in
 * flight. */
DDP_LIB ddp_status ddp__session_pieces(ddp_ctx *d, ddp_error *err);

/* ---- state.c, program.c, join.c: what checkpoints and newcomers hold ---- */

/* With the values of now; to be freed by ddp__worker_free also after an error. apply: the small values become
 * the context's (arrays were written where they are); keep_plan 0: another world plans for itself. follow:
 * the times that the run's plan came from, for a newcomer: it goes on following the link. */
DDP_LIB ddp_status ddp__worker_list(ddp_ctx *d, ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__worker_apply(ddp_ctx *d, const ddp__worker *s, int keep_plan, ddp_error *err);
DDP_LIB ddp_status ddp__worker_follow(ddp_ctx *d, const ddp__worker *s, ddp_error *err);

/* program.c: states of the program. names: [DDP__PROGRAM_NAMES] of all, with commas. list: adds those that
 * have bytes to a list, without bytes; save: with those of now, which release gives back; load: gives the
 * program what was found. */
DDP_LIB void ddp__program_names(const ddp_ctx *d, char *out);
DDP_LIB ddp_status ddp__programs_list(ddp_ctx *d, ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__programs_save(ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__programs_load(ddp_ctx *d, const ddp__worker *s, ddp_error *err);
DDP_LIB void ddp__programs_release(ddp_ctx *d);

/* join.c, for members: serves newcomers from now on; the wire is one that resumes. */
DDP_LIB ddp_status ddp__admission_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err);
DDP_LIB void ddp__admission_ready(ddp_ctx *d); /* engine and layers are there */
/* Before the first step of a period: clones, words, entries. Collective. */
DDP_LIB ddp_status ddp__admission_step(ddp_ctx *d, ddp_error *err);

/* Newcomers: finds the run and an id in it, sets rank and world; takes a clone and enters. */
DDP_LIB ddp_status ddp__arrival_open(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__arrival_enter(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__arrival_close(ddp_ctx *d);

/* ---- serve.c: what serves, and the ranks that compute ---- */

/* open: once all ranks are there; team: once they have compared themselves; desk: once the strategy has
 * started, and before the engine closes. computes: refuses a hook on a rank that only serves. */
DDP_LIB ddp_status ddp__computing_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__computing_team(ddp_ctx *d);
DDP_LIB ddp_status ddp__desk_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__desk_close(ddp_ctx *d);
DDP_LIB ddp_status ddp__computes(ddp_ctx *d, const char *hook);
/* What serve ended with: its own complaint, or that of the engine. save.c, on a server: saves as the workers'
 * word says, which comes first. */
DDP_LIB int ddp__is_server(const ddp_ctx *d);
/* The rank by which words of all go (ddp__gather_by): the first server of an elastic world; 0: by
 * collectives. */
DDP_LIB int ddp__hub_of(const ddp_ctx *d);
DDP_LIB ddp_status ddp__serve_status(ddp_ctx *d, int code, ddp_error *err);
DDP_LIB ddp_status ddp__checkpoint_told(ddp_ctx *d, ddp_error *err);

/* ---- post.c, collective.c: which way a message goes, and messages that are waited for ---- */

/* Posts a message: to the engine of its link, in two levels (sites.c), over the stager, or from device
 * to device (device.c). there: its memory is that of layers, else this process's own. All messages of a
 * context go this way, or wait for those that did (flush): one order on all ranks. */
DDP_LIB ddp_status ddp__post(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err);
/* The same straight to the engine: its memory is here, and nothing is under way over a device. */
DDP_LIB ddp_status ddp__post_here(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* Later work on the layers waits for it: the device, or where there is none, and in the first step,
 * the caller: kernels are loaded when they are launched first, and loading may wait for all that the
 * device has to do, also for work that is held. */
DDP_LIB ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err);
/* The same of its input alone, and the caller waits. */
DDP_LIB ddp_status ddp__post_hold_input(ddp_ctx *d, int link, long ticket, ddp_error *err);
/* The caller waits for it, which is in nobody's account. */
DDP_LIB ddp_status ddp__post_wait(ddp_ctx *d, int link, long ticket, ddp_error *err);
DDP_LIB int ddp__post_is_done(ddp_ctx *d, int link, long ticket);

/* All that was posted over a device is in the engine, in order. */
DDP_LIB ddp_status ddp__post_flush(ddp_ctx *d, ddp_error *err);
/* What is looked at before an engine has checked a message: verb, lists, link. who: begins the sentence. */
DDP_LIB ddp_status ddp__message_looks(const ddp_ctx *d, const char *who, const ddp_message *m,
                                      ddp_error *err);
/* Posted and waited for, in one level; with one worker only the scale is applied. */
DDP_LIB ddp_status ddp__run(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err);

/* A collective or a message of the program: checked, posted and waited for. name: begins the sentence of an
 * error. Returns 0, or the context's first error. */
DDP_LIB int ddp__plain(ddp_ctx *d, const char *name, const ddp_message *m);

/* A message of this step, over link 0, that counts as filler. The library's own words, as bytes: a message of
 * them, in *p, that travels unhurried; those of a group's first rank (or the lowest that lives) reach all;
 * each member's own, size bytes, in its place. */
DDP_LIB ddp_message ddp__message(const ddp_ctx *d, ddp_verb verb, const ddp_piece *list, int n, int layer);
DDP_LIB ddp_message ddp__own_word(const ddp_ctx *d, ddp_piece *p, ddp_verb verb, int group, void *bytes,
                                  size_t size);
DDP_LIB ddp_status ddp__tell(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err);
DDP_LIB ddp_status ddp__all_come(ddp_ctx *d, int group, ddp_error *err); /* all of a group have come as far as
                                                                            this rank */
DDP_LIB ddp_status ddp__gather_words(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err);

/* ---- sites.c: averages in two levels ---- */

/* site: [world] of each rank, 0: it is lost. Collective, a no-op where this rank has none. again: in an
 * elastic world, with a newcomer; nothing is in flight. */
DDP_LIB ddp_status ddp__levels_open(ddp_ctx *d, const int *site, ddp_error *err);
DDP_LIB ddp_status ddp__levels_again(ddp_ctx *d, ddp_error *err);
/* Submits a mean over all ranks in two levels, one operation. Divergence is not measured. takes: whether it
 * goes so. */
DDP_LIB int ddp__levels_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__levels_submit(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* The part of a mean that crosses sites, on the first rank of each. */
DDP_LIB void ddp__levels_across(const ddp_ctx *d, const ddp_message *m, ddp_message *part);

/* planning.c: with two links, each message goes over the one that should finish it first. The team
 * agrees on its first rank's choice; p are its times, NULL: nominal ones. Nothing may be in flight. */
DDP_LIB ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err);

/* ---- verbs.c: the strategy ---- */

/* Runs an event that the strategy has; a ddp_status. */
#define DDP__EVENT(d, what, args) \
    ((d)->ops.what ? ((d)->event = #what, ddp__event_over((d), (d)->ops.what args)) : DDP_OK)
DDP_LIB ddp_status ddp__event_over(ddp_ctx *d, int code);
/* First line of every verb. */
#define DDP__VERB(verb) DDP__DO(ddp__verb_enter(d, verb))
DDP_LIB ddp_status ddp__verb_enter(ddp_ctx *d, const char *verb);
DDP_LIB ddp_status ddp__posted_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__posted_close(ddp_ctx *d);
/* Tells the strategy what has arrived. */
DDP_LIB ddp_status ddp__posted_look(ddp_ctx *d);
/* Errors: something is still posted (in_layers: in the memory of layers); in that of this layer, since
 * an earlier step. */
DDP_LIB ddp_status ddp__posted_none(ddp_ctx *d, int in_layers, const char *when);
DDP_LIB ddp_status ddp__posted_of_layer(ddp_ctx *d, int layer);
/* Finishes what is in flight; and what the strategy put off. */
DDP_LIB ddp_status ddp__strategy_wait(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__strategy_drain(ddp_ctx *d, ddp_error *err);
DDP_LIB int ddp__last_pass(const ddp_ctx *d, int layer);

/* average.c: a layer's average */
DDP_LIB ddp_status ddp__average_layer(ddp_ctx *d, int layer, const unsigned char *takes, int priority,
                                      int filler, ddp_error *err);
DDP_LIB ddp_status ddp__average_hold(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err);
/* The pieces that this period's average of a layer takes of a whole list of *count, which becomes their
 * number: the arrays of optimizer state that state_period leaves out are not among them. Valid until the next
 * call for that layer. */
DDP_LIB const ddp_piece *ddp__average_takes(const ddp_ctx *d, int layer, const ddp_piece *list, int *count);
DDP_LIB ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err);
/* Of blocks nothing is left to be sent; base: all parameters are equal on all ranks. */
DDP_LIB void ddp__coded_start(ddp_ctx *d, int base);
/* blocks.c. Whether what a message sums is rounded to blocks before it is sent; rounds it, in place, with
 * what was cut off before. The values are in this machine's memory. Any thread. */
DDP_LIB const ddp__coder *ddp__blocks_coder(void);
DDP_LIB int ddp__coded_rounds(const ddp_message *m);
DDP_LIB ddp_status ddp__coded_round(const ddp_ctx *d, const ddp_message *m, ddp_error *err);
/* The same on a device that can: queues it; its blocks go to out, ddp__coded_bytes there. Then, on the
 * stager's threads: m's values here become what `codes`, copied from there, say; and what was cut off of the
 * result goes there. fold: what is kept of both is in the residuals. */
DDP_LIB int ddp__coded_goes_there(const ddp_ctx *d, const ddp_message *m);
DDP_LIB void ddp__coded_there(ddp_ctx *d, const ddp_message *m, void *out);
DDP_LIB size_t ddp__coded_bytes(const ddp_message *m, size_t n);
DDP_LIB ddp_status ddp__coded_read(const ddp_ctx *d, const ddp_message *m, const unsigned char *codes,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__coded_rest(const ddp_ctx *d, const ddp_message *m, size_t n, ddp_error *err);
DDP_LIB void ddp__coded_fold(ddp_ctx *d);

/* replicas.c: every array that is not the same on all ranks of its layer becomes their mean. Collective;
 * nothing is in flight. */
DDP_LIB ddp_status ddp__replicas_settle(ddp_ctx *d, ddp_error *err);

/* update.c: arithmetic where layers are, or here. Next: the values that the lists at hand have side by
 * side, 0: no more. An update's gradients, NULL: the layer's own, which are zeroed. */
typedef struct ddp__walk {
    const ddp_piece *from, *to;
    int from_count, to_count;
    size_t from_at, to_at;
} ddp__walk;
DDP_LIB ddp__walk ddp__walk_of(const ddp_piece *from, int from_count, const ddp_piece *to, int to_count);
DDP_LIB size_t ddp__walk_next(ddp__walk *w, float **from, float **to);
DDP_LIB void ddp__axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a);
/* A message with one worker: its scale is applied. */
DDP_LIB ddp_status ddp__post_alone(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err);
DDP_LIB void ddp__scale_there(ddp_ctx *d, float *x, size_t n, float a);
DDP_LIB void ddp__update_layer(ddp_ctx *d, int layer, const float *from);
/* floats_none marks values as the gradient of a skipped layer (ddp_no_gradient). gradients_none does so for a
 * layer, and gradients_some changes its computed gradient if it could be taken for one. */
DDP_LIB void ddp__floats_none(float *x, size_t n);
DDP_LIB void ddp__gradients_none(ddp_ctx *d, ddp__unit *u);
DDP_LIB void ddp__gradients_some(ddp_ctx *d, ddp__unit *u);
/* ddp_update_apart, or there: ddp_update_copy. */
DDP_LIB void ddp__update_memory(ddp_ctx *d, int layer, float *params, const float *grads, float *state,
                                long step, float rate, int there);
DDP_LIB ddp_status ddp__clip_gradients(ddp_ctx *d, ddp_error *err);
/* Before a layer's gradient reaches other ranks. Not on a device, whose gradients cannot be read without
 * waiting. */
DDP_LIB ddp_status ddp__finite_gradient(ddp_ctx *d, int layer, ddp_error *err);

/* ---- profile -> plan ---- */

/* timing.c: names and sizes of the layers, no times; times without clocks: 10 GFLOP/s, the link as
 * configured; as measured, agreed on by the team; what transfers take, from d->link[0]. */
DDP_LIB ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p);
DDP_LIB void ddp__profile_between(const ddp_ctx *d, ddp_profile *p);
DDP_LIB ddp_status ddp__profile_measured(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void ddp__profile_link(ddp_ctx *d, ddp_profile *p);
DDP_LIB double ddp__nominal_flops(double flops, double count); /* of a layer's forward; flops 0:
                                                                      unknown */
/* A profile of all layers of a model that is cut into stages, without clocks. */
DDP_LIB ddp_status ddp__profile_model(ddp_ctx *d, ddp_profile *p, ddp_error *err);

/* stages.c: one plan for a model that is cut into stages.
 *   open   at the start of the session: gathers what the plan needs of all layers, where the strategy can
 *          plan for the whole model and the plan comes from a file or without clocks. Collective; a no-op
 *          elsewhere
 *   rows   rows of the plan that this rank reads or makes: of the whole model, or of its own layers
 *   name   of a row, for messages
 *   take   this stage's rows of a plan of the whole model. *own is freed by the caller
 *   make   the strategy's plan of the whole model. *out is freed by the caller
 *   profile  this stage's rows of a profile of the whole model. *own is freed by the caller */
DDP_LIB ddp_status ddp__stages_open(ddp_ctx *d, ddp_error *err);
DDP_LIB int ddp__stages_rows(const ddp_ctx *d);
DDP_LIB void ddp__stages_name(const ddp_ctx *d, int row, char *out, size_t room);
DDP_LIB ddp_status ddp__stages_take(const ddp_ctx *d, const ddp_plan *whole, ddp_plan *own, ddp_error *err);
DDP_LIB ddp_status ddp__stages_make(ddp_ctx *d, const ddp_profile *model, ddp_plan *out, ddp_error *err);
DDP_LIB ddp_status ddp__stages_profile(const ddp_ctx *d, const ddp_profile *model, ddp_profile *own,
                                       ddp_error *err);

/* timing.c, probe.c: the link as configured; transfers of one size after the other, each repeated until it is
 * settled */
DDP_LIB ddp_link ddp__link_nominal(const ddp_ctx *d, int link);
typedef struct ddp__meter {
    double bytes[64], seconds[64];
    int n, first; /* those from `first` on are of one size */
    double begun; /* of that size; 0: not yet */
} ddp__meter;
/* 1: the two fastest of this size agree, or it took long enough, and another begins. */
DDP_LIB int ddp__meter_add(ddp__meter *m, double bytes, double seconds, double *fastest);
/* Times averages over one link, of at most so many times as many floats; all ranks get the first one's
 * fit. */
enum { DDP__PROBE_FLOATS = 1024, DDP__PROBE_MOST = 1024 };
DDP_LIB ddp_status ddp__probe_link(ddp_ctx *d, int link, ddp_link *out, ddp_error *err);

/* plan_file.c: ddp_config.plan_path, for ddp__stages_rows rows and the period of this run; freed by the
 * caller. */
DDP_LIB ddp_status ddp__plan_open(const ddp_ctx *d, ddp_plan *out, ddp_error *err);
/* With one plan for all stages: a file that does not fit ends all stages before the first step. */
DDP_LIB ddp_status ddp__plan_fits_stages(const ddp_ctx *d, ddp_error *err);

/* planning.c: before the first gradient is given to the strategy; after the profile steps; the same
 * layers over another link */
DDP_LIB ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err);
/* The plan of the first rank of the team, made or handed in as *plan and freed here, becomes everyone's; p:
 * for its figures, or NULL. */
DDP_LIB ddp_status ddp__plan_set(ddp_ctx *d, ddp_blob *plan, const ddp_profile *p, ddp_error *err);
/* The strategy takes this plan, which is its own kind's; p: times, or NULL. */
DDP_LIB ddp_status ddp__plan_take(ddp_ctx *d, const ddp_blob *plan, const ddp_profile *p, ddp_error *err);

/* planning.c: after each step, whether to plan again. account.c: follows the link from here on. */
DDP_LIB ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__drift_start(ddp_ctx *d);

/* ---- what is told ---- */

/* dump.c: writes cfg.dump_path, and into the context's error where that is. */
DDP_LIB double ddp__wall(void); /* seconds since 1970 */
DDP_LIB void ddp__dump_failure(ddp_ctx *d);

/* pace.c: at the end of every step */
DDP_LIB ddp_status ddp__pace_step(ddp_ctx *d, ddp_error *err);

/* What changed; members are looked at after every step: 1 if they have changed */
DDP_LIB void ddp__note_add(ddp_ctx *d, ddp_note_kind kind, int rank, double before, double now);
DDP_LIB int ddp__note_members(ddp_ctx *d);

/* account.c */
DDP_LIB void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end);
DDP_LIB void ddp__account_reset(ddp_ctx *d);
