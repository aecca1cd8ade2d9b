/* dreamddp.h 0.1.0 - train neural networks over slow links. MIT licence (at the end).
 *
 * DO THIS in one C or C++ file of your program, before any libc header:
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp.h"
 * and #include "dreamddp.h" alone wherever else you need it. Build with -lm -lpthread. The
 * implementation needs stb_ds.h (Debian: libstb-dev). Linux; C11 or C++17; gcc, clang or nvcc.
 *
 * EXAMPLE. A training loop of your own, and what is added to it (without error checks):
 *     ddp_config cfg = {0};                     // dreamddp, world from the environment
 *     ddp_ctx *d = ddp_open(&cfg, &err);
 *     for (l = 0; l < L; l++) ddp_add_layer(d, &layer[l]);
 *     opt = ddp_sgd(0.05f, 0.9f);               // the library decides when to update
 *     ddp_set_optimizer(d, &opt);
 *     while (step++ < steps) {
 *         for (l = 0; l < L; l++)      { ddp_forward_begin(d, l); my_forward(l); }
 *         for (l = L - 1; l >= 0; l--) { my_backward(l); ddp_backward_end(d, l); }
 *         if (ddp_step_end(d)) break;           // the first error since the last step
 *     }
 *     ddp_sync_all(d);                          // every rank leaves with equal parameters
 *     ddp_close(d);
 *
 * CONTENTS. Each part begins with "==== begin PATH ==== [TAG]"; search for the tag.
 *     [base]    status and errors, allocator hook, clock, random numbers, logger
 *     [graph]   layers; models as static graphs of operators, forward and backward
 *     [ops]     the operators' kernels            [nn]      optimizers, schedules, models
 *     [data]    token streams, images             [io]      JSON, safetensors, weights
 *     [net]     transports, shaped links, the comm worker
 *     [profile] layer costs, the link model       [plan]    what to send when, what to run where
 *     [compress] Top-K, messages, AdaTopK         [sync]    the context and its hooks
 *     [report]  tables, JSON lines, traces, HTML
 *
 * OPTIONS. Macros, defined before the #include; none changes a public struct or signature.
 *     DREAMDDP_IMPLEMENTATION            in exactly one file (or in each, with DDP_STATIC)
 *     DDP_STATIC                         a private copy of the library inside this file
 *     DDP_API                            your own linkage of the public functions
 *     DREAMDDP_NO_STB_DS_IMPLEMENTATION  another file of the program instantiates stb_ds; with
 *                                        DDP_STATIC in several files, define it in all but one
 *     DDP_USE_MPI                        the mpi transport; compile with mpicc
 *     DDP_REALLOC, DDP_FREE              bookkeeping memory (tensors: ddp_config.allocator)
 *     DDP_USE_OPENSSL                    TLS over TCP: OpenSSL 3 or later, -lssl -lcrypto
 *     DDP_ASSERT                         checks for bugs of this library, never for your mistakes
 * At run time ddp_config has one comment per field; DREAMDDP_ variables fill what it leaves zero.
 *
 * CONVENTIONS. Zero means default, all-zero structs are valid. Times are seconds (double), sizes
 * are bytes or counts of floats as the name says, numbers are float32. Layer 0 is next to the
 * input; matrices are row-major. "Borrowed until" and "freed by" say who owns what; freeing NULL
 * is fine. Nothing is allocated inside a training step.
 *
 * ERRORS. A ddp_status code for the program and one sentence in a ddp_error for the person, with
 * the offending value and the remedy. The first error of a context stays: every later call
 * returns it and does nothing. The library never prints (except through the logger), never
 * exits, installs no signal handlers.
 *
 * THREADS. No mutable data at file scope: contexts are independent. One context belongs to one
 * thread; what may be called from others says so. Each context with peers runs one comm thread.
 *
 * SYMBOLS of the DreamDDP paper (arXiv:2502.11058) and the names here:
 *     H  period    L  layers    t_FP t_BP  forward_s backward_s    t_COMM  comm_s
 *     Gamma  divergence    a partition of the layers over H steps  ddp_plan.step_of
 */
#ifndef DREAMDDP_H
#define DREAMDDP_H

#include "base/config.h"
#include "base/status.h"
#include "base/alloc.h"
#include "base/backend.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/log.h"
#include "graph/layer.h"
#include "graph/op.h"
#include "graph/graph.h"
#include "nn/models.h"
#include "nn/optimizer.h"
#include "nn/schedule.h"
#include "data/hash.h"
#include "data/tokens.h"
#include "data/images.h"
#include "io/safetensors.h"
#include "io/weights.h"
#include "net/netspec.h"
#include "profile/profile.h"
#include "profile/network.h"
#include "profile/oplist.h"
#include "profile/linkfit.h"
#include "profile/trace.h"
#include "plan/partial.h"
#include "plan/timeline.h"
#include "plan/knapsack.h"
#include "plan/deft.h"
#include "plan/preserver.h"
#include "plan/osp.h"
#include "plan/matching.h"
#include "plan/tour.h"
#include "plan/ring_order.h"
#include "plan/place.h"
#include "plan/louvain.h"
#include "plan/workload.h"
#include "plan/fence.h"
#include "plan/oplist_graph.h"
#include "compress/topk.h"
#include "compress/wire.h"
#include "compress/quantise.h"
#include "compress/adatopk.h"
#include "compress/feedback.h"
#include "compress/estimate.h"
#include "sync/session.h"
#include "sync/notes.h"
#include "sync/checkpoint.h"
#include "sync/probe.h"
#include "sync/group.h"
#include "report/data.h"
#include "report/progress.h"
#include "report/jsonl.h"
#include "report/events.h"
#include "report/postmortem.h"
#include "report/perfetto.h"
#include "report/html.h"

#endif /* DREAMDDP_H */

#ifdef DREAMDDP_IMPLEMENTATION
#ifndef DDP__IMPLEMENTED
#define DDP__IMPLEMENTED

#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/text.h"
#include "base/array.h"
#include "base/status.c"
#include "base/memory.c"
#include "base/clock.c"
#include "base/thread.c"
#include "base/rng.c"
#include "base/log.c"
#include "base/text.c"
#include "base/sha256.h"
#include "base/sha256.c"
#include "base/array.c"
#include "graph/host.h"
#include "graph/host.c"
#include "graph/builtin.h"
#include "graph/op.c"
#include "graph/graph_internal.h"
#include "graph/recompute.c"
#include "graph/arena.c"
#include "graph/graph.c"
#include "graph/builders.c"
#include "graph/state.c"
#include "graph/build.c"
#include "graph/exec.c"
#include "ops/ops.h"
#include "ops/kernels.h"
#include "ops/matmul.h"
#include "ops/kernels.c"
#include "ops/matmul.c"
#include "ops/linear.c"
#include "ops/embedding.c"
#include "ops/norm.c"
#include "ops/rms_norm.c"
#include "ops/attention.c"
#include "ops/rope.c"
#include "ops/activation.c"
#include "ops/swiglu.c"
#include "ops/dropout.c"
#include "ops/loss.c"
#include "ops/conv_product.h"
#include "ops/conv_product.c"
#include "ops/conv_depthwise.h"
#include "ops/conv_depthwise.c"
#include "ops/conv.c"
#include "ops/batch_norm.c"
#include "ops/pool.c"
#include "ops/table.c"
#include "nn/exact.h"
#include "nn/clip.h"
#include "nn/optimizer.c"
#include "nn/clip.c"
#include "nn/schedule.c"
#include "nn/gpt2.c"
#include "nn/llama2.c"
#include "nn/mlp.c"
#include "nn/resnet.c"
#include "nn/vgg.c"
#include "data/hash.c"
#include "data/deal.h"
#include "data/deal.c"
#include "data/tokens.c"
#include "data/images.c"
#include "io/json.h"
#include "io/json.c"
#include "io/safetensors_core.h"
#include "io/safetensors.c"
#include "io/weights.c"
#include "net/wire.h"
#include "net/wire_threads.h"
#include "net/socket.h"
#include "net/hello.h"
#include "net/stream.h"
#include "net/tls.h"
#include "net/tls_session.h"
#include "net/relay.h"
#include "net/wire_tcp.h"
#include "net/wire_mpi.h"
#include "net/replay.h"
#include "net/door.h"
#include "net/wire_resume.h"
#include "net/resume_state.h"
#include "net/rendezvous.h"
#include "net/iface.h"
#include "net/meetfile.h"
#include "net/meeting.h"
#include "net/env.h"
#include "net/spawn.h"
#include "net/wire_threads.c"
#include "net/socket.c"
#include "net/hello.c"
#include "net/stream.c"
#include "net/tls.c"
#include "net/tls_keys.c"
#include "net/wire_tcp.c"
#include "net/replay.c"
#include "net/door.c"
#include "net/wire_resume.c"
#include "net/resume_link.c"
#include "net/resume_relay.c"
#include "net/resume_join.c"
#include "net/relay.c"
#include "net/iface.c"
#include "net/meetfile.c"
#include "net/meeting.c"
#include "net/guests.c"
#include "net/mesh.c"
#include "net/wishes.c"
#include "net/wire_mpi.c"
#include "net/rendezvous.c"
#include "net/env.c"
#include "net/spawn.c"
#include "net/frame.h"
#include "net/reduce.h"
#include "net/shape.h"
#include "net/links.h"
#include "net/engine.h"
#include "net/oplog.h"
#include "net/share.h"
#include "net/state.h"
#include "net/frame.c"
#include "net/reduce.c"
#include "net/shape.c"
#include "net/netspec.c"
#include "net/script.c"
#include "net/group.c"
#include "net/progress.c"
#include "net/schedule.c"
#include "net/coding.c"
#include "net/ring.c"
#include "net/full.c"
#include "net/share.c"
#include "net/collect.c"
#include "net/transfer.c"
#include "net/emulate.c"
#include "net/guard.c"
#include "net/waits.c"
#include "net/liveness.c"
#include "net/oplog.c"
#include "net/spans.c"
#include "net/shadow.c"
#include "net/epoch.c"
#include "net/epoch_frames.c"
#include "net/resume.c"
#include "net/drive.c"
#include "net/wait_any.c"
#include "net/engine.c"
#include "profile/profile.c"
#include "profile/linkfit.c"
#include "profile/timer.h"
#include "profile/timer.c"
#include "profile/trace.c"
#include "profile/network.c"
#include "profile/oplist.c"
#include "plan/partial_core.h"
#include "plan/partial_cost.c"
#include "plan/partial_search.c"
#include "plan/partial_programme.c"
#include "plan/partial_scatter.c"
#include "plan/partial_brute.c"
#include "plan/partial_fill.c"
#include "plan/partial.c"
#include "plan/baselines.h"
#include "plan/baselines_fusion.c"
#include "plan/baselines_link.c"
#include "plan/baselines_priority.c"
#include "plan/baselines_usbyte.c"
#include "plan/timeline.c"
#include "plan/knapsack_core.h"
#include "plan/knapsack_exact.c"
#include "plan/knapsack.c"
#include "plan/deft_core.h"
#include "plan/deft_select.c"
#include "plan/deft_cycle.c"
#include "plan/deft.c"
#include "plan/preserver.c"
#include "plan/osp.c"
#include "plan/place_core.h"
#include "plan/matching.c"
#include "plan/tour.c"
#include "plan/ring_order.c"
#include "plan/place_cyclic.c"
#include "plan/place_genetic.c"
#include "plan/place_starts.c"
#include "plan/place_descent.c"
#include "plan/place_anneal.c"
#include "plan/place_exact.c"
#include "plan/place.c"
#include "plan/louvain.c"
#include "plan/workload_core.h"
#include "plan/workload.c"
#include "plan/fence_core.h"
#include "plan/fence_tape.c"
#include "plan/fence_order.c"
#include "plan/fence_bound.c"
#include "plan/fence_cut.c"
#include "plan/fence_fit.c"
#include "plan/fence.c"
#include "plan/oplist_graph.c"
#include "compress/codec.h"
#include "compress/topk.c"
#include "compress/randomk.c"
#include "compress/wire.c"
#include "compress/quantise.c"
#include "compress/adatopk.c"
#include "compress/feedback.c"
#include "compress/estimate.c"
#include "sync/context.h"
#include "sync/device.h"
#include "sync/stage.h"
#include "sync/shard.h"
#include "sync/join.h"
#include "sync/stage.c"
#include "sync/device.c"
#include "sync/direct.c"
#include "sync/device_clock.c"
#include "sync/account.c"
#include "sync/update.c"
#include "sync/team.c"
#include "sync/levels.c"
#include "sync/balance.c"
#include "sync/coded.c"
#include "sync/averaging.c"
#include "sync/gradient.c"
#include "sync/links.c"
#include "sync/config.c"
#include "sync/collective.c"
#include "sync/second.c"
#include "sync/start.c"
#include "sync/planning.c"
#include "sync/drift.c"
#include "sync/pace.c"
#include "sync/notes.c"
#include "sync/planfile.c"
#include "sync/dump.c"
#include "sync/probe.c"
#include "sync/group.c"
#include "sync/hooks.c"
#include "sync/session.c"
#include "sync/launch.c"
#include "sync/join.c"
#include "sync/join_serve.c"
#include "sync/join_entry.c"
#include "sync/joiner.c"
#include "sync/shard.c"
#include "sync/checkpoint_files.h"
#include "sync/checkpoint_files.c"
#include "sync/checkpoint.c"
#include "sync/checkpoint_load.c"
#include "report/summary.h"
#include "report/lanes.h"
#include "report/svg.h"
#include "report/changes.h"
#include "report/swimlanes.h"
#include "report/summary.c"
#include "report/progress.c"
#include "report/jsonl.c"
#include "report/events.c"
#include "report/postmortem.c"
#include "report/lanes.c"
#include "report/perfetto.c"
#include "report/svg.c"
#include "report/changes.c"
#include "report/swimlanes.c"
#include "report/html.c"

#endif /* DDP__IMPLEMENTED */
#endif /* DREAMDDP_IMPLEMENTATION */

/*
 * MIT License
 *
 * Copyright (c) 2026 dreamddp contributors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
