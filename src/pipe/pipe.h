/* Pipeline training: each process holds one stage of a model, and micro-batches pass through all stages. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "pipe/schedule.h"

/* ---- the format of activations and gradients between stages ---- */

/* Codings of messages between stages. */
typedef enum ddp_edge_coding {
    DDP_EDGE_F32,        /* float32, unchanged */
    DDP_EDGE_BF16,       /* rounded to bfloat16: half the bytes */
    DDP_EDGE_INT8,       /* blocks of 64 values with a scale each (compress/compress.h): 0.27 of the bytes */
    DDP_EDGE_TOPK,       /* the n / ratio values of each array with the largest magnitudes, with 32-bit
                            indexes, which takes 2 / ratio of the bytes. The receiver sets the other values to
                            0. */
    DDP_EDGE_ADATOPK,    /* topk with a ratio for each link, by its time (ddp_adatopk): factor x ratio on the
                            slowest link */
    DDP_EDGE_BOTTLENECK, /* float32 of a narrower model, which has a ddp_bottleneck of width / ratio at each
                            cut */
    DDP_EDGE_AQ          /* activations: the per-sample delta since the sample was last sent, in `ratio` bits;
                            both stages store the activations of each sample. The first time a sample is sent
                            as float32. Gradients: int8. AQ-SGD, Wang et al. 2022, arXiv:2206.01299 */
} ddp_edge_coding;

/* The format of messages between stages. All-zero: float32. An array that a coding would not shrink is sent
 * as float32. */
typedef struct ddp_edge_wire {
    ddp_edge_coding coding; /* (default: f32) */
    double ratio;           /* R, at least 1, for topk, adatopk and bottleneck. Bits, 2, 3 or 4, for aq. */
    double factor;          /* adatopk: factor of Eq. 7 of FusionLLM (default: 3, as in the paper) */
    int feedback;           /* 1: error feedback for int8, topk and adatopk. The residual of a message is
                               added to the next message of that edge and direction, of any micro-batch.
                               Stores one float per value sent. Evaluations neither use nor change the
                               residual (default: 0) */
} ddp_edge_wire;

/* ddp_edge_wire_parse - parses the format of an edge: "f32", "bf16", "int8", "topk:R", "adatopk:R",
 * "adatopk:R:FACTOR", "bottleneck:R" or "aq:BITS". out->feedback does not change. *out is untouched on error.
 * Pure and safe from any thread. Errors: DDP_ARG, which names the invalid part. */
DDP_API ddp_status ddp_edge_wire_parse(const char *text, ddp_edge_wire *out, ddp_error *err);

/* ddp_edge_coding_name - returns the name of an edge coding, "f32" to "aq", or NULL for an invalid value. A
 * constant string. Pure and safe from any thread. */
DDP_API const char *ddp_edge_coding_name(ddp_edge_coding coding);

/* ---- a pipeline ---- */

/* The layout of a world of stages x replicas ranks. The replicas of a stage are a group, which averages by
 * the context's strategy. */
typedef struct ddp_pipe_config {
    ddp_pipeline schedule; /* (default: 1f1b) */
    int stages;            /* number of stages, which divides ddp_world */
    const int *stage_of;   /* [ddp_node_count] stage of each operator, as for ddp_graph_cut (default: NULL,
                              about equal FLOPs per stage) */
    const int *rank_of;    /* [replicas x stages] rank of stage s of pipeline r, at r x stages + s, each rank
                              once (default: NULL, that number itself, the order of DT-FM). Replicas are
                              summed in the order of their ranks */
    int ahead;             /* extra forwards, as in ddp_pipeline_shape (default: 0) */
    ddp_edge_wire edge;    /* format of messages between stages (default: float32) */
    long samples;          /* edge wire aq: number of training samples */
    int batch;             /* edge wire aq: samples of a micro-batch. The first dimension of a message is a
                              multiple of it. The rows of a sample are consecutive. */
} ddp_pipe_config;

typedef struct ddp_pipe ddp_pipe; /* a pipeline, as seen by one of its ranks */

/* ddp_pipe_open - cuts and builds the graph, and registers the layers of this rank's stage. Do not call
 * ddp_graph_build on the graph. ddp_config.micro_batches is the number of micro-batches of a step.
 *
 *   loss  scalar node of g
 *   c     stages, cut, schedule and edges, copied
 *
 * All ranks call it with the same model and configuration. Returns NULL on failure, with the context's error.
 * The caller frees the pipeline with ddp_pipe_close, before ddp_close. Collective. Errors: DDP_ARG for the
 * graph, the loss or a field of c; DDP_UNSUPPORTED for servers, a device with 16-bit elements, or an edge
 * that the run cannot use; DDP_MEMORY; DDP_MISMATCH if the ranks differ; DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED from communication; an error of the graph. */
DDP_API ddp_pipe *ddp_pipe_open(ddp_ctx *d, ddp_graph *g, ddp_node *loss, const ddp_pipe_config *c);

/* ddp_pipe_close - frees a pipeline. NULL is allowed. Its layers belong to the context, which ddp_close
 * closes afterwards. */
DDP_API void ddp_pipe_close(ddp_pipe *p);

/* ddp_pipe_input - returns the array of a named input of micro-batch m, 0..micro_batches-1, which the program
 * fills before each step (float or int32_t, in host memory), or NULL if this stage does not read it. All
 * ranks of a pipeline fill in the same samples. Borrowed until ddp_pipe_close. */
DDP_API void *ddp_pipe_input(ddp_pipe *p, int m, const char *name);

/* ddp_pipe_samples - names the samples of micro-batch m of the next step, for edge wire aq. Does nothing for
 * other edges. id: [batch] from 0 to samples - 1, in the order in which they are filled in. Call it before
 * each step, for each micro-batch, with the same values on all ranks of the pipeline. Local. Returns 0 or the
 * context's first error. Errors: DDP_ARG for m, NULL or an id out of range. */
DDP_API int ddp_pipe_samples(ddp_pipe *p, int m, const long *id);

/* ddp_pipe_step - runs forward and backward of all micro-batches. Call ddp_step_end afterwards. The result is
 * bit-identical to an unpipelined run with one worker per pipeline and the same micro-batches. Collective.
 * Returns 0 or the context's first error. Errors: DDP_ARG for NULL; DDP_USAGE if edge wire aq lacks sample
 * ids; DDP_NUMERIC for a value that is not finite on a coded edge; DDP_FORMAT for a damaged message;
 * DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may
 * also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_pipe_step(ddp_pipe *p);

/* ddp_pipe_evaluate - runs the forward passes of the first n micro-batches with dropout off, as ddp_evaluate
 * does. Call ddp_wait before it. Collective. Returns 0 or the context's first error. Errors: DDP_ARG for n;
 * DDP_NUMERIC for a value that is not finite on a coded edge; DDP_FORMAT for a damaged message; DDP_MISMATCH,
 * DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may also fail
 * with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_pipe_evaluate(ddp_pipe *p, int n);

/* ddp_pipe_loss - returns the mean loss over the micro-batches of the last step or evaluation, on all ranks
 * of the pipeline, or NAN after an error (ddp_last_error). Collective over the ranks of the pipeline. */
DDP_API float ddp_pipe_loss(ddp_pipe *p);

/* ddp_pipe_output - returns the array of a node, in host memory, in the micro-batch that was evaluated last,
 * on the stage that computes it, or NULL on other stages. Valid until the next step or evaluation. If the
 * node's only user works in place (dropout, add), the array has that user's output. NULL also if a
 * ddp_recompute_begin segment dropped the output. Local. */
DDP_API const float *ddp_pipe_output(ddp_pipe *p, const ddp_node *n);

/* ddp_pipe_hash - computes a hash of all parameters of the pipeline, layer by layer, in *hash. It is the hash
 * that the whole model has on one worker. All ranks of the pipeline call it after ddp_sync_all. Collective.
 * Returns 0 or the context's first error. Errors: DDP_ARG for NULL, DDP_MEMORY, or DDP_FAILED from the
 * device. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or
 * DDP_ABORTED. */
DDP_API int ddp_pipe_hash(ddp_pipe *p, uint64_t *hash);

/* ddp_pipe_bytes - returns the bytes of this stage's activations and their gradients. The sum has three
 * terms: the arrays that a micro-batch retains from its forward to its backward, ddp_pipeline_held times, the
 * messages to and from other stages, once more than that, and the extra memory of one pass. With a backend
 * this memory is on the device. Edge wire aq adds the stored activations of the samples, in host memory.
 * Local. */
DDP_API size_t ddp_pipe_bytes(const ddp_pipe *p);

/* Measured and predicted times of a pipeline's steps: means over all steps but the first. On a device, whose
 * tasks end after the calls return, the times are NAN. */
typedef struct ddp_pipe_stats {
    long steps;        /* number of steps in the means */
    double step_s;     /* seconds of ddp_pipe_step on the slowest stage */
    double bubble_pct; /* share of that time in which a stage does not compute, mean over the stages, in % */
    double boundary_bytes; /* bytes of activations and gradients that a step sends between stages, coded (aq:
                                of samples that were sent before), without headers and tied weights */
    double predicted_step_s; /* prediction of ddp_pipeline_time from the measured tasks of each stage and the
                                links of ddp_config.net (not set: links take no time), plus the exposed time
                                of averages by the strategy's plan, if it has one */
} ddp_pipe_stats;

/* ddp_pipe_get_stats - computes the statistics of a pipeline in *out. All ranks of the pipeline call it,
 * between steps, and get the same numbers except for `steps`. Collective. Returns 0 or the context's first
 * error. Errors: DDP_ARG for NULL or DDP_MEMORY. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT,
 * DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_pipe_get_stats(ddp_pipe *p, ddp_pipe_stats *out);

/* ddp_pipe_lanes - copies up to `room` slots: the computations and messages of this stage in the last step,
 * in any order. Times are in seconds of ddp_now(). boundary is the other stage, or -1. Returns the number
 * copied. Recorded only if ddp_config.debug.trace_spans is set, and only on the CPU. Local. */
DDP_API int ddp_pipe_lanes(const ddp_pipe *p, ddp_pipeline_slot *out, int room);

/* ddp_pipe_export - writes the weights file of the whole model, bit-identical to ddp_weights_save of one
 * worker. Rank 0 writes it, completely or not at all, from the values that the stages of its pipeline send,
 * and never stores more than a part of one of their arrays. ddp_weights_load after ddp_pipe_open reads, on
 * each rank, the arrays of its stage. All ranks call it, after ddp_sync_all or ddp_wait. Collective. Returns
 * 0 or the context's first error. Errors: DDP_ARG for NULL or an empty path; DDP_IO for the file, on all
 * ranks of the pipeline; DDP_MEMORY. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_pipe_export(ddp_pipe *p, const char *path);

/* ddp_pipe_stage - returns the stage of this rank, 0..stages-1. Local. */
DDP_API int ddp_pipe_stage(const ddp_pipe *p);

/* ddp_pipe_number - returns the number of the pipeline that this rank belongs to, 0..replicas-1. Local. */
DDP_API int ddp_pipe_number(const ddp_pipe *p);

/* ddp_pipe_cut - computes the default cut: consecutive stages of about equal FLOPs. A layer is not divided.
 * stage_of: [ddp_node_count] receives the stage of each operator. Pure and safe from any thread. Errors:
 * DDP_ARG for NULL, or if fewer layers with operators exist than stages. */
DDP_API ddp_status ddp_pipe_cut(const ddp_graph *g, int stages, int *stage_of, ddp_error *err);

/* Placement and cut from planners, for ddp_pipe_config. */
typedef struct ddp_pipe_layout {
    int stages, pipelines; /* 0 if neither file was given */
    int *rank_of;          /* [pipelines x stages] as in ddp_pipe_config, or NULL */
    int *stage_of;         /* [ddp_node_count] as in ddp_pipe_config, or NULL without a cut */
} ddp_pipe_layout;

/* ddp_pipe_layout_read - reads what planners have decided, from the JSON lines of `plan place` (placement)
 * and of `plan fence` (cut). Either may be NULL. If a file has several plans, the one with the least cost
 * (cost_s, pipeline_s) is used, and the first of equal ones.
 *
 *   placement  rank = device, for each stage of each pipeline
 *   cut        the operators of a device are a stage. Stages are in the order in which data flow. Without a
 *              placement rank r is the r-th device that has operators, and so on in further pipelines
 *   g          the model, built or not, used for a cut only
 *   world      number of ranks
 *   out        untouched on error. Otherwise, the caller frees it with ddp_pipe_layout_free.
 *
 * Errors: DDP_IO; DDP_FORMAT (no such plan); DDP_ARG (a placement for another number of ranks, a device
 * twice; a cut of another model, an operator that is missing or listed twice, stages that form a cycle;
 * different numbers of stages); DDP_MEMORY. */
DDP_API ddp_status ddp_pipe_layout_read(const char *placement, const char *cut, const ddp_graph *g, int world,
                                        ddp_pipe_layout *out, ddp_error *err);

/* ddp_pipe_layout_free - frees the arrays of a layout. Accepts an all-zero one. */
DDP_API void ddp_pipe_layout_free(ddp_pipe_layout *l);

/* ---- pipelines that continue after one of them has lost a rank ---- */

/* ddp_launch_pipelines - runs fn once per rank, as ddp_launch does, for a world of stages x replicas ranks
 * that may lose some. After a loss, fn is called again in a world of the complete pipelines. They take over
 * the micro-batches of the others, so a step has as many as before. Training resumes, in memory, from the
 * last step that all of them had begun, when fn calls ddp_pipe_resume. The other ranks of an incomplete
 * pipeline leave, and return 0. A rank whose fn returns DDP_ABORTED while its context has no error leaves
 * like a lost one.
 *
 *   cfg           micro_batches is that of a pipeline while no pipeline is lost. The total must be divisible
 *                 by every smaller number of pipelines.
 *   min_replicas  with fewer complete pipelines the run ends with DDP_PEER_LOST, which names the lost rank.
 *                 fn is called once more for the complete ones, if there are any, to save their state
 *                 (ddp_pipe_ends)
 *   fn, user      function of a rank: gets an open context, returns 0 or a ddp_status
 *
 * The ranks have separate connections for an elastic world (docs/explanation/elastic-protocol.md), which
 * determines the live ranks and needs a quorum.
 *
 * Returns 0 or the first failure, with its message in *err. Errors: DDP_ARG for the numbers or a setting;
 * DDP_PEER_LOST for too few pipelines; DDP_NET, DDP_TIMEOUT, DDP_MISMATCH or DDP_ABORTED from communication;
 * DDP_UNSUPPORTED, DDP_USAGE, DDP_IO or DDP_FORMAT for settings; DDP_MEMORY; DDP_FAILED if a rank cannot be
 * started; the code that fn returned. */
DDP_API int ddp_launch_pipelines(const ddp_config *cfg, int stages, int min_replicas,
                                 int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_pipe_resume - restores the state of the last step that all ranks had begun, after a loss in
 * ddp_launch_pipelines. ddp_step then returns the step to resume from. Call it after ddp_set_optimizer,
 * before the first step. Does nothing in the first world, and outside of ddp_launch_pipelines. Collective.
 * Returns 0 or the context's first error. Errors: DDP_ARG for NULL; DDP_USAGE after the first step;
 * DDP_MEMORY; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_pipe_resume(ddp_pipe *p);

/* ddp_pipe_ends - returns 1 if too few pipelines remain (min_replicas), else 0. fn then saves what it needs
 * after ddp_pipe_resume, and returns. Local. */
DDP_API int ddp_pipe_ends(const ddp_pipe *p);

/* ddp_pipe_micro_batches - returns the number of micro-batches of a step of this pipeline, in this world.
 * Local. */
DDP_API int ddp_pipe_micro_batches(const ddp_pipe *p);
