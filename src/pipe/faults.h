/* Pipelines that go on where one of them has lost a rank. */
#ifndef DDP_PIPE_FAULTS_H
#define DDP_PIPE_FAULTS_H

#include "pipe/pipe.h"
#include "run/config.h"

/* ddp_launch_pipelines - as ddp_launch, for a world of stages x replicas ranks that may lose some. fn is called again, in a
 *   world of the pipelines that are whole, which take the micro-batches of the others over: a step has as many as before.
 *   What they have in memory goes on from the last step that all of them had begun, where fn calls ddp_pipe_resume. The
 *   other ranks of a pipeline that has lost one leave, and return 0. A rank whose fn returns DDP_ABORTED while its context
 *   has no error leaves as if it were lost.
 *
 *   cfg           micro_batches of a pipeline while none is lost: what all have together divides over as few as go on
 *   min_replicas  fewer pipelines end the run: DDP_PEER_LOST (exit code 3) says who was lost. fn is called once more for
 *                 those that are whole, if there is one, to save what they have (ddp_pipe_ends)
 *
 * Beside the training's connections the ranks have others, an elastic world (docs/elastic.md) that says who lives: it takes
 * a majority. Errors: DDP_ARG; as ddp_launch. */
DDP_API int ddp_launch_pipelines(const ddp_config *cfg, int stages, int min_replicas, int (*fn)(ddp_ctx *, void *),
                                 void *user, ddp_error *err);

/* ddp_pipe_resume - behind ddp_set_optimizer, before the first step: ddp_step is that to go on from. Nothing happens in a
 *   first world, or outside of ddp_launch_pipelines.
 * ddp_pipe_ends - 1: too few pipelines are left: fn saves what it wants to, behind ddp_pipe_resume, and returns.
 * ddp_pipe_micro_batches - of a step, in this world. */
DDP_API int ddp_pipe_resume(ddp_pipe *p);
DDP_API int ddp_pipe_ends(const ddp_pipe *p);
DDP_API int ddp_pipe_micro_batches(const ddp_pipe *p);

#endif /* DDP_PIPE_FAULTS_H */
