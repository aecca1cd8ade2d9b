/* A training step over stages: each process holds one stage of a model, micro-batches pass through all. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "pipe/schedule.h"

/* ---- how activations and gradients cross between stages ---- */

typedef enum ddp_edge_coding {
    DDP_EDGE_F32,        /* as they are: no bit changes */
    DDP_EDGE_BF16,       /* rounded to bfloat16, half the bytes */
    DDP_EDGE_INT8,       /* blocks of 64 values with a scale each (compress/compress.h), 0.27 of the bytes */
    DDP_EDGE_TOPK,       /* of each array the n / ratio values that are largest by magnitude, with indexes of
                           32 bits, so 2 / ratio of the bytes; elsewhere the receiver has zeros */
    DDP_EDGE_ADATOPK,    /* the same with a ratio for each link, by its time (ddp_adatopk): factor x ratio on
                           the slowest */
    DDP_EDGE_BOTTLENECK, /* float32 of a narrower model: a ddp_bottleneck is put where the cut is, of width /
                            ratio */
    DDP_EDGE_AQ          /* of each sample what its activations changed by since it crossed last, in 2 to 4
                            bits (ratio): both ends keep them. It crosses for the first time as float32;
                            gradients as int8. AQ-SGD, Wang et al. 2022, arXiv:2206.01299 */
} ddp_edge_coding;

/* Zero is float32. An array that would be no smaller travels as it is. */
typedef struct ddp_edge_wire {
    ddp_edge_coding coding;
    double ratio;  /* R of topk, adatopk and bottleneck, at least 1; bits of aq: 2, 3 or 4 */
    double factor; /* of adatopk, Eq. 7 of FusionLLM; 0 = 3, the paper's */
    int feedback;  /* 1: what int8, topk or adatopk cut off is added to the next message of that
                                 edge and direction, of whatever micro-batch; one float for each value that
                                 crosses. Evaluations neither use nor change it. 0: it is lost */
} ddp_edge_wire;

/* ddp_edge_wire_parse - "f32", "bf16", "int8", "topk:R", "adatopk:R", "adatopk:R:FACTOR", "bottleneck:R" or
 * "aq:BITS"; feedback stays as it is. DDP_ARG names what is wrong, *out untouched.
 * ddp_edge_coding_name - "f32" to "aq"; NULL: no such coding. */
DDP_API ddp_status ddp_edge_wire_parse(const char *text, ddp_edge_wire *out, ddp_error *err);
DDP_API const char *ddp_edge_coding_name(ddp_edge_coding coding);

/* ---- a pipeline ---- */

/* stages x replicas ranks. The replicas of a stage are a group that averages by the context's strategy. */
typedef struct ddp_pipe_config {
    ddp_pipeline schedule; /* 0 = 1f1b */
    int stages;            /* divides ddp_world */
    const int *stage_of;   /* [ddp_node_count] of each operator, as for ddp_graph_cut; NULL: about as many
                              FLOPs for each */
    const int *rank_of;    /* [replicas x stages] who runs stage s of pipeline r, at r x stages + s: each rank
                              once; NULL: that number itself (DT-FM's order). Replicas are summed in the order
                              of their ranks. */
    int ahead;             /* of ddp_pipeline_shape; 0 = the schedule's own */
    ddp_edge_wire edge;    /* what crosses from stage to stage; zero: float32 */
    long samples;          /* edge wire aq: how many there are to train on, and how many a micro-batch has;
                              the first */
    int batch;             /* dimension of what crosses is a multiple of batch, its parts those of one sample
                              after the other */
} ddp_pipe_config;

typedef struct ddp_pipe ddp_pipe;

/* ddp_pipe_open - cuts and builds the graph (which ddp_graph_build has not seen) and registers the layers of
 * this rank's
 *   stage; ddp_config.micro_batches is how many a step has. All ranks call it with the same model and
 *   configuration. NULL: ddp_last_error(d). Freed by ddp_pipe_close, before ddp_close.
 * ddp_pipe_input - where micro-batch m (0..micro_batches-1) of a named input is filled before a step, float
 * or int32_t; NULL:
 *   this stage does not read it. Each rank of a pipeline fills the same samples.
 * ddp_pipe_samples - edge wire aq: the samples of micro-batch m of the next step, id [batch] from 0 to
 * samples - 1, in the
 *   order in which they are filled. Before each step, for each micro-batch, on all ranks alike. Without aq it
 *   does nothing.
 * ddp_pipe_step - forward and backward of all micro-batches; ddp_step_end follows, as in any loop. The bits
 * are those of
 *   as many unpipelined workers as there are pipelines, each with that many micro-batches.
 * ddp_pipe_evaluate - the forwards of the first n micro-batches, as ddp_evaluate runs them: after ddp_wait.
 * ddp_pipe_loss - the mean loss over the micro-batches of the last step or evaluation, on all ranks of the
 * pipeline: they
 *   all call it. NAN after an error.
 * Calls return 0 or a ddp_status; the context has the error. */
DDP_API ddp_pipe *ddp_pipe_open(ddp_ctx *d, ddp_graph *g, ddp_node *loss, const ddp_pipe_config *c);
DDP_API void ddp_pipe_close(ddp_pipe *p);
DDP_API void *ddp_pipe_input(ddp_pipe *p, int m, const char *name);
DDP_API int ddp_pipe_samples(ddp_pipe *p, int m, const long *id);
DDP_API int ddp_pipe_step(ddp_pipe *p);
DDP_API int ddp_pipe_evaluate(ddp_pipe *p, int n);
DDP_API float ddp_pipe_loss(ddp_pipe *p);

/* ddp_pipe_output - the array of a node in the micro-batch that was evaluated last, on the stage that
 * computes it, else
 *   NULL; valid until the next step or evaluation. On the host. A node whose only user works in place
 *   (dropout, add) shows that user's output; NULL also for what a segment of ddp_recompute_begin dropped. */
DDP_API const float *ddp_pipe_output(ddp_pipe *p, const ddp_node *n);

/* ddp_pipe_hash - of all parameters of the pipeline, layer by layer: that of the model on one worker. All
 * ranks of the
 *   pipeline call it after ddp_sync_all. */
DDP_API int ddp_pipe_hash(ddp_pipe *p, uint64_t *hash);

/* ddp_pipe_bytes - memory of this stage's activations and their gradients: what each micro-batch holds from
 * its forward to
 *   its backward, as many times as ddp_pipeline_held says; what crosses to and from other stages, once more
 *   than that; what one pass needs beside them, once. On the device where the context has one. And what edge
 *   wire aq keeps of the samples, in this machine's memory. */
DDP_API size_t ddp_pipe_bytes(const ddp_pipe *p);

/* What a step of this pipeline took and should have taken, means over all steps but the first. On a device,
 * whose tasks are over later than the calls return, the times are NAN. */
typedef struct ddp_pipe_stats {
    long steps;              /* that are counted */
    double step_s;           /* ddp_pipe_step, on the stage that takes longest */
    double bubble_pct;       /* of that, how long a stage does not compute, mean over the stages */
    double boundary_bytes;   /* activations and gradients that cross between stages in a step, as they travel
                                (aq: of samples that have crossed before), without headers and tied weights */
    double predicted_step_s; /* by ddp_pipeline_time, from each stage's measured tasks and the links of
                                ddp_config.net (none: they cost nothing), and what averaging adds by the
                                strategy's plan, if it has one */
} ddp_pipe_stats;

/* ddp_pipe_get_stats - all ranks of the pipeline call it, between steps; all get the same numbers but for
 * `steps`. ddp_pipe_lanes - what this stage computed, sent and received in the last step, in any order,
 * ddp_now() seconds, boundary
 *   the other stage; returns how many were copied. Recorded where ddp_config.debug.trace_spans is set, on the
 *   CPU. */
DDP_API int ddp_pipe_get_stats(ddp_pipe *p, ddp_pipe_stats *out);
DDP_API int ddp_pipe_lanes(const ddp_pipe *p, ddp_pipeline_slot *out, int room);

/* ddp_pipe_export - the weights file of the whole model, the bytes of one worker's ddp_weights_save: rank 0
 * writes it, whole or not at all, from what the stages of its pipeline send, and never holds more than a part
 * of an array of theirs. All ranks call it, after ddp_sync_all or ddp_wait. ddp_weights_load after
 * ddp_pipe_open, on each rank, reads what its stage has; ddp_checkpoint_save and ddp_checkpoint_load work as
 * ever, before ddp_pipe_close. */
DDP_API int ddp_pipe_export(ddp_pipe *p, const char *path);

/* Where this rank stands. */
DDP_API int ddp_pipe_stage(const ddp_pipe *p);
DDP_API int ddp_pipe_number(const ddp_pipe *p); /* of its pipeline: 0..replicas-1 */

/* ddp_pipe_cut - a cut into consecutive stages of about as many FLOPs, as NULL for stage_of makes it:
 * stage_of [ddp_node_count]. A layer is not parted. DDP_ARG where there are fewer layers with operators than
 * stages. */
DDP_API ddp_status ddp_pipe_cut(const ddp_graph *g, int stages, int *stage_of, ddp_error *err);

/* What planners have decided, for ddp_pipe_config. */
typedef struct ddp_pipe_layout {
    int stages, pipelines; /* 0 where neither file was given */
    int *rank_of;          /* [pipelines x stages] as in ddp_pipe_config, or NULL */
    int *stage_of;         /* [ddp_node_count], or NULL without a cut */
} ddp_pipe_layout;

/* ddp_pipe_layout_read - from the JSON lines of `plan place` (placement) and of `plan fence` (cut), either
 * NULL. Of several
 *   plans in a file the one that costs least counts (cost_s, pipeline_s), of equals the first.
 *     placement  rank = device, of each stage of each pipeline
 *     cut        the operators of a device are a stage, stages in the order in which data flow. Without a
 *                placement rank r is the r-th of the devices that have operators, and so on in further
 *                pipelines
 *     g          the model, built or not; read for a cut only
 *   *out is untouched on error, else freed by ddp_pipe_layout_free. Errors: DDP_IO, DDP_FORMAT (no such
 *   plan), DDP_ARG (a placement for another number of ranks, a device twice; a cut of another model, an
 *   operator that is left out or stands twice, stages that form a cycle; unlike numbers of stages),
 *   DDP_MEMORY. */
DDP_API ddp_status ddp_pipe_layout_read(const char *placement, const char *cut, const ddp_graph *g, int world,
                                        ddp_pipe_layout *out, ddp_error *err);
DDP_API void ddp_pipe_layout_free(ddp_pipe_layout *l); /* all-zero is fine */

/* ---- pipelines that go on where one of them has lost a rank ---- */

/* ddp_launch_pipelines - as ddp_launch, for a world of stages x replicas ranks that may lose some. fn is
 * called again, in a
 *   world of the pipelines that are whole, which take the micro-batches of the others over: a step has as
 *   many as before. What they have in memory goes on from the last step that all of them had begun, where fn
 *   calls ddp_pipe_resume. The other ranks of a pipeline that has lost one leave, and return 0. A rank whose
 *   fn returns DDP_ABORTED while its context has no error leaves as if it were lost.
 *
 *   cfg           micro_batches of a pipeline while none is lost: what all have together divides over as few
 *                 as go on
 *   min_replicas  fewer pipelines end the run: DDP_PEER_LOST (exit code 3) says who was lost. fn is called
 *                 once more for those that are whole, if there is one, to save what they have (ddp_pipe_ends)
 *
 * Beside the training's connections the ranks have others, an elastic world
 * (docs/explanation/elastic-protocol.md) that says who
 * lives: it takes a majority. Errors: DDP_ARG; as ddp_launch. */
DDP_API int ddp_launch_pipelines(const ddp_config *cfg, int stages, int min_replicas,
                                 int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_pipe_resume - behind ddp_set_optimizer, before the first step: ddp_step is that to go on from. Nothing
 * happens in a
 *   first world, or outside of ddp_launch_pipelines.
 * ddp_pipe_ends - 1: too few pipelines are left: fn saves what it wants to, behind ddp_pipe_resume, and
 * returns. ddp_pipe_micro_batches - of a step, in this world. */
DDP_API int ddp_pipe_resume(ddp_pipe *p);
DDP_API int ddp_pipe_ends(const ddp_pipe *p);
DDP_API int ddp_pipe_micro_batches(const ddp_pipe *p);
