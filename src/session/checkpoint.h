/* Saves the state of a run as a checkpoint, and loads it.
 *
 * A checkpoint is a folder step-000000000120 with one file per rank, rank-0000.safetensors, and
 * manifest.json.
 *   rank-NNNN.safetensors  parameters, buffers, optimizer state, the states of ddp_add_state, numbers of
 *                          updates, step, learning rate, the numbers that determine the dropout masks, the
 *                          plan, ddp_taken, and the identity of the checkpoint
 *   manifest.json          step, world, strategy, period, optimizer, layers, a hash of the operators, a hash
 *                          of every file, and a checksum of these. The lowest live rank writes it when all
 *                          files exist. A folder without it is not a checkpoint
 *
 * Every file is written under a temporary name, flushed and renamed. If the same step is saved again, the
 * files of the previous save remain until the new manifest exists. If the ranks do not share a file system,
 * each machine gets a copy of the manifest next to the files of its ranks, and every rank must be restarted
 * on the machine that has its file. ddp_taken determines where the data resume. In an elastic world a lost
 * rank has no file. If the run is restarted with the same number of ranks, such a rank takes the file of
 * another rank, as a joining worker does (docs/howto/wan-elastic.md). */
#pragma once

#include "session/session.h"

/* ddp_checkpoint_save - writes a checkpoint into folder, and creates the folder if it does not exist.
 *
 *   folder  the same on all ranks. With servers at most 999 characters.
 *   keep    number of newest checkpoints that remain in folder. Older and incomplete ones are removed. 0
 *           keeps all.
 *
 * Completes all messages in flight, without an average. Checkpoints of another run in folder are neither
 * replaced nor removed: the call fails unless this run has loaded one of them or ddp_config.debug.overwrite
 * is set. Collective, between steps.
 *
 * Returns 0 or the context's first error. Errors: DDP_ARG for folder or keep, or another run's checkpoints;
 * DDP_USAGE within a step; DDP_IO for the files; DDP_FAILED from save (ddp_add_state); DDP_MEMORY;
 * DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may
 * also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_checkpoint_save(ddp_ctx *d, const char *folder, int keep);

/* ddp_checkpoint_load - loads the newest checkpoint in folder. Call it after ddp_set_optimizer and before the
 * first step. Afterwards ddp_step returns the step from which to resume.
 *
 *   folder  folder given to ddp_checkpoint_save
 *   world   receives the number of ranks of the checkpoint. May be NULL.
 *
 * With the same layers, optimizer, world, strategy and period, every rank resumes from its own file, and the
 * result is bit-identical to an uninterrupted run. A measured plan is retained and no longer follows the
 * link. If the checkpoint has no plan, it is computed after as many profile steps as in a new run.
 *
 * With another world, strategy or period the checkpoint must be synchronised: all ranks have bit-identical
 * values, except for buffers. That is always true under ssgd and wfbp, otherwise after an average of all
 * layers, momentum included. Each rank then takes the buffers (running statistics) of rank r modulo the
 * checkpoint's world.
 *
 * The graphs must have the same operators and arguments, except for the batch and dropout. Every rank
 * verifies its files before any rank changes a parameter (docs/reference/files.md).
 *
 * In a pipeline (ddp_pipe_open) the ranks of one copy are its stages, and the copy counts as one worker. A
 * checkpoint of one cut can be loaded with any other cut, also from one worker to stages and back. Layers are
 * matched by name: parameters, buffers, optimizer state and the strategy's values for each parameter. With
 * the same number of pipelines, strategy and period this also works if the pipelines have different values.
 * Plans are recomputed. Other strategy state follows a layer that is not divided before or after. A divided
 * layer is an error unless that state is all zero. For another cut every rank must be able to read all files
 * of its pipeline. Otherwise, its own file is enough.
 *
 * Collective, between steps. Returns 0 or the context's first error. Errors: DDP_ARG for folder; DDP_USAGE
 * after the first step; DDP_IO for a file that is missing or cannot be read; DDP_FORMAT for a damaged one;
 * DDP_MISMATCH for a checkpoint of another model or run; DDP_FAILED from load (ddp_add_state); DDP_MEMORY;
 * DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may
 * also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_checkpoint_load(ddp_ctx *d, const char *folder, int *world);
