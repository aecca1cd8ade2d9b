/* Checkpoints: saving and loading the state of a run. */
#pragma once

#include "session/session.h"

/* A checkpoint is a folder step-000000000120 with one file per rank, rank-0000.safetensors (parameters,
 * buffers, optimizer state, states of ddp_add_state, counts of updates, step, learning rate, the number that
 * dropout masks depend on, the plan, ddp_taken, its identity), and manifest.json (step, world, strategy,
 * period, optimizer, layers, a hash of the operators and one of every file, a checksum of all this), which
 * the lowest live rank writes when all files are there: a folder without it is no checkpoint. Every file is
 * written under another name, flushed and renamed; a step that is saved once more leaves the files of the
 * save before alone until the new manifest is there. Where ranks do not see one file system, each machine
 * gets the manifest beside its ranks' files, and every rank has to be started where its file is. Where the
 * data go on follows from ddp_taken. In an elastic world those who are lost have no file; when the run is
 * started again with as many ranks, they take that of another rank, as a newcomer would
 * (docs/elastic-join.md).
 *
 * ddp_checkpoint_save - writes one into folder (made if it is not there), then removes all but the
 * newest keep of those in it (0 = keeps all), half ones before them too. Finishes what is in
 * flight and averages nothing. What another run has saved in folder is neither replaced nor removed:
 * that is an error unless this run has loaded it, or ddp_config.debug.overwrite is set.
 * ddp_checkpoint_load - after ddp_set_optimizer, before the first step: takes the newest of folder. ddp_step
 * then says where to go on, and *world (may be NULL) of how many ranks it is. With the same layers,
 * optimizer, world, strategy and period every rank goes on from its own file, bit for bit as if the run had
 * not stopped (a plan that was measured stays and no longer follows the link; one that was not yet made is
 * made as many steps later). With another world, strategy or period only a synchronised checkpoint is taken,
 * one whose ranks hold equal bits, buffers aside: always under ssgd and wfbp, else after an averaging of all
 * layers, momentum included. Buffers (running statistics) then come from the rank of the same number, counted
 * around. The graphs must have the same operators and arguments, but for the batch and dropout. Every rank
 * verifies its files before any rank changes a parameter (docs/files.md). Of a pipeline (ddp_pipe_open) ranks
 * are its stages, and a worker is a pipeline. A checkpoint of one cut goes on with any other, one worker's
 * with stages and back, by the layers' names: parameters, buffers, optimizer state and what a strategy keeps
 * of each parameter; with as many pipelines, the same strategy and period also where they hold unlike values.
 * Plans are made anew. What a strategy keeps otherwise follows a layer that is whole before and after, or is
 * refused unless it is all zero. For that every rank has to see all files of its pipeline; else its own is
 * enough. Both are collective, between steps, and return 0 or the context's first error. */
DDP_API int ddp_checkpoint_save(ddp_ctx *d, const char *folder, int keep);
DDP_API int ddp_checkpoint_load(ddp_ctx *d, const char *folder, int *world);
