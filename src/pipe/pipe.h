/* A training step over stages: each process holds one stage of a model, micro-batches pass through all. */
#ifndef DDP_PIPE_PIPE_H
#define DDP_PIPE_PIPE_H

#include "graph/graph.h"
#include "pipe/edge_wire.h"
#include "pipe/schedule.h"

/* stages x replicas ranks. The replicas of a stage are a group that averages by the context's strategy. */
typedef struct ddp_pipe_config {
    ddp_pipeline schedule; /* 0 = 1f1b */
    int          stages;   /* divides ddp_world */
    const int   *stage_of; /* [ddp_node_count] of each operator, as for ddp_graph_cut; NULL: about as many FLOPs for each */
    const int   *rank_of;  /* [replicas x stages] who runs stage s of pipeline r, at r x stages + s: each rank once; NULL:
                              that number itself (DT-FM's order). Replicas are summed in the order of their ranks. */
    int          ahead;    /* of ddp_pipeline_shape; 0 = the schedule's own */
    ddp_edge_wire edge;    /* what crosses from stage to stage; zero: float32 */
} ddp_pipe_config;

typedef struct ddp_pipe ddp_pipe;

/* ddp_pipe_open - cuts and builds the graph (which ddp_graph_build has not seen) and registers the layers of this rank's
 *   stage; ddp_config.micro_batches is how many a step has. All ranks call it with the same model and configuration.
 *   NULL: ddp_last_error(d). Freed by ddp_pipe_close, before ddp_close.
 * ddp_pipe_input - where micro-batch m (0..micro_batches-1) of a named input is filled before a step, float or int32_t; NULL:
 *   this stage does not read it. Each rank of a pipeline fills the same samples.
 * ddp_pipe_step - forward and backward of all micro-batches; ddp_step_end follows, as in any loop. The bits are those of
 *   as many unpipelined workers as there are pipelines, each with that many micro-batches.
 * ddp_pipe_evaluate - the forwards of the first n micro-batches, as ddp_evaluate runs them: after ddp_wait.
 * ddp_pipe_loss - the mean loss over the micro-batches of the last step or evaluation, on all ranks of the pipeline: they
 *   all call it. NAN after an error.
 * Calls return 0 or a ddp_status; the context has the error. */
DDP_API ddp_pipe *ddp_pipe_open(ddp_ctx *d, ddp_graph *g, ddp_node *loss, const ddp_pipe_config *c);
DDP_API void      ddp_pipe_close(ddp_pipe *p);
DDP_API void     *ddp_pipe_input(ddp_pipe *p, int m, const char *name);
DDP_API int       ddp_pipe_step(ddp_pipe *p);
DDP_API int       ddp_pipe_evaluate(ddp_pipe *p, int n);
DDP_API float     ddp_pipe_loss(ddp_pipe *p);

/* ddp_pipe_output - the array of a node in the micro-batch that was evaluated last, on the stage that computes it, else
 *   NULL; valid until the next step or evaluation. On the host. A node whose only user works in place (dropout, add)
 *   shows that user's output; NULL also for what a segment of ddp_recompute_begin dropped. */
DDP_API const float *ddp_pipe_output(ddp_pipe *p, const ddp_node *n);

/* ddp_pipe_hash - of all parameters of the pipeline, layer by layer: that of the model on one worker. All ranks of the
 *   pipeline call it after ddp_sync_all. */
DDP_API int ddp_pipe_hash(ddp_pipe *p, uint64_t *hash);

/* ddp_pipe_bytes - memory of this stage's activations and their gradients: what each micro-batch holds from its forward to
 *   its backward, as many times as ddp_pipeline_held says; what crosses to and from other stages, once more than that;
 *   what one pass needs beside them, once. On the device where the context has one. */
DDP_API size_t ddp_pipe_bytes(const ddp_pipe *p);

/* What a step of this pipeline took and should have taken, means over all steps but the first. On a device, whose tasks
 * are over later than the calls return, the times are NAN. */
typedef struct ddp_pipe_stats {
    long   steps;            /* that are counted */
    double step_s;           /* ddp_pipe_step, on the stage that takes longest */
    double bubble_pct;       /* of that, how long a stage does not compute, mean over the stages */
    double boundary_bytes;   /* activations and gradients that cross between stages in a step, as they travel, without
                                headers and tied weights */
    double predicted_step_s; /* by ddp_pipeline_time, from each stage's measured tasks and the links of ddp_config.net (none:
                                they cost nothing), and what averaging adds by the strategy's plan, if it has one */
} ddp_pipe_stats;

/* ddp_pipe_get_stats - all ranks of the pipeline call it, between steps; all get the same numbers but for `steps`.
 * ddp_pipe_lanes - what this stage computed, sent and received in the last step, in any order, ddp_now() seconds, boundary
 *   the other stage; returns how many were copied. Recorded where ddp_config.trace_spans is set, on the CPU. */
DDP_API int ddp_pipe_get_stats(ddp_pipe *p, ddp_pipe_stats *out);
DDP_API int ddp_pipe_lanes(const ddp_pipe *p, ddp_pipeline_slot *out, int room);

/* ddp_pipe_export - the weights file of the whole model, the bytes of one worker's ddp_weights_save: rank 0 writes it,
 * whole or not at all, from what the stages of its pipeline send, and never holds more than a part of an array of
 * theirs. All ranks call it, after ddp_sync_all or ddp_wait. ddp_weights_load after ddp_pipe_open, on each rank, reads
 * what its stage has; ddp_checkpoint_save and ddp_checkpoint_load work as ever, before ddp_pipe_close. */
DDP_API int ddp_pipe_export(ddp_pipe *p, const char *path);

/* Where this rank stands. */
DDP_API int ddp_pipe_stage(const ddp_pipe *p);
DDP_API int ddp_pipe_number(const ddp_pipe *p); /* of its pipeline: 0..replicas-1 */

/* ddp_pipe_cut - a cut into consecutive stages of about as many FLOPs, as NULL for stage_of makes it: stage_of
 * [ddp_node_count]. A layer is not parted. DDP_ARG where there are fewer layers with operators than stages. */
DDP_API ddp_status ddp_pipe_cut(const ddp_graph *g, int stages, int *stage_of, ddp_error *err);

/* What planners have decided, for ddp_pipe_config. */
typedef struct ddp_pipe_layout {
    int  stages, pipelines; /* 0 where neither file was given */
    int *rank_of;           /* [pipelines x stages] as in ddp_pipe_config, or NULL */
    int *stage_of;          /* [ddp_node_count], or NULL without a cut */
} ddp_pipe_layout;

/* ddp_pipe_layout_read - from the JSON lines of `plan place` (placement) and of `plan fence` (cut), either NULL. Of several
 *   plans in a file the one that costs least counts (cost_s, pipeline_s), of equals the first.
 *     placement  rank = device, of each stage of each pipeline
 *     cut        the operators of a device are a stage, stages in the order in which data flow. Without a placement rank r
 *                is the r-th of the devices that have operators, and so on in further pipelines
 *     g          the model, built or not; read for a cut only
 *   *out is untouched on error, else freed by ddp_pipe_layout_free. Errors: DDP_IO, DDP_FORMAT (no such plan), DDP_ARG (a
 *   placement for another number of ranks, a device twice; a cut of another model, an operator that is left out or stands
 *   twice, stages that form a cycle; unlike numbers of stages), DDP_MEMORY. */
DDP_API ddp_status ddp_pipe_layout_read(const char *placement, const char *cut, const ddp_graph *g, int world,
                                        ddp_pipe_layout *out, ddp_error *err);
DDP_API void       ddp_pipe_layout_free(ddp_pipe_layout *l); /* all-zero is fine */

#endif /* DDP_PIPE_PIPE_H */
