/* dreamddp.h 0.3.0 - distributed training of neural networks over slow links. MIT licence (at the end).
 *
 * USAGE. In one C or C++ file of your program, before any libc header, write:
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp.h"
 * In all other files, write only #include "dreamddp.h". Link with -lm -lpthread. The implementation needs
 * stb_ds.h (Debian: libstb-dev). Requires Linux, C11 or C++17, and gcc, clang or nvcc.
 *
 * EXAMPLE. Your own training loop with the library calls added (error checks omitted):
 *     ddp_config cfg = {0};                     // strategy dreamddp; world from the environment
 *     ddp_ctx *d = ddp_open(&cfg, &err);
 *     for (l = 0; l < L; l++) ddp_add_layer(d, &layer[l]);
 *     opt = ddp_sgd(0.05f, 0.9f);               // the library decides when to apply it
 *     ddp_set_optimizer(d, &opt);
 *     while (step++ < steps) {
 *         for (l = 0; l < L; l++)      { ddp_forward_begin(d, l); my_forward(l); }
 *         for (l = L - 1; l >= 0; l--) { my_backward(l); ddp_backward_end(d, l); }
 *         if (ddp_step_end(d)) break;           // the first error of the context
 *     }
 *     ddp_sync_all(d);                          // now all ranks have equal parameters
 *     ddp_close(d);
 *
 * CONTENTS. Each part begins with "==== PATH ==== [TAG]".
 *     session/session.h     the calls of a training loop: open, layers, hooks, close
 *     config/config.h       settings and their defaults
 *     graph/layer.h         layers; nn/optimizer.h: optimizers
 *     config/strategy.h     how to write a strategy; exchange/verbs.h: the calls that it may use
 *     context/stats.h       statistics; session/checkpoint.h: checkpoints; exchange/collective.h: collectives
 *     [profile] [plan]      costs of layers and links; planners for communication and placement
 *     [pipe]                pipelines: schedules of micro-batches and their step time
 *     [compress]            Top-K, quantised messages, AdaTopK and error feedback on plain arrays
 *     [graph] [nn]          models as static graphs of operators, forward and backward
 *     [data] [io]           token streams, images, safetensors files, weights of other libraries
 *     [report]              table, JSON lines, Perfetto trace and HTML reports
 *     base/backend.h        the functions that a device backend implements (see dreamddp_cuda.cuh)
 *
 * OPTIONS. Macros to define before the #include. None changes a public struct or signature.
 *     DREAMDDP_IMPLEMENTATION            in exactly one file (or in each, with DDP_STATIC)
 *     DDP_STATIC                         a private copy of the library inside this file
 *     DDP_API                            replaces the linkage of the public functions
 *     DREAMDDP_NO_STB_DS_IMPLEMENTATION  another file of the program instantiates stb_ds. With
 *                                        DDP_STATIC in several files, define it in all but one
 *     DDP_USE_MPI                        adds the mpi transport. Compile with mpicc
 *     DDP_USE_OPENSSL                    adds TLS over TCP. Needs OpenSSL 3 or later, -lssl -lcrypto
 *     DDP_REALLOC, DDP_FREE              allocation for bookkeeping (for tensors, see ddp_config.allocator)
 *     DDP_ASSERT                         assertion for bugs of this library, never for mistakes of the caller
 * Macros that leave out unused parts of the implementation. Define them with DREAMDDP_IMPLEMENTATION:
 *     DDP_NO_PLANNERS                    planners, and the features that need them (strategies, ddp_probe,
 *                                        Top-K, packings), except the planners of partial averaging
 *     DDP_NO_MODELS                      graphs, operators, models, schedules, data, weights
 *     DDP_NO_SIMULATOR                   ddp_simulate
 *     DDP_NO_REPORTS                     everything under [report]
 *
 * CONVENTIONS. Zero means the default, and all-zero structs are valid. Times are in seconds (double).
 * Sizes are bytes or numbers of floats, as the name says. Numbers are float32. Layer 0 is the layer next
 * to the input. Matrices are row-major. "Borrowed until" and "freed by" state the ownership of memory.
 * Freeing NULL is allowed. A training step does not allocate.
 *
 * ERRORS. A function returns a ddp_status code for the program and fills a ddp_error with a message for the
 * user, which names the offending value and the remedy. The comment of each function lists its codes.
 *   - The first error of a context is sticky: every later call returns it and does nothing.
 *   - A call with a context also returns DDP_ARG if the context is NULL, and DDP_USAGE in a process that
 *     was forked from the one that opened it. Hooks and collectives return DDP_USAGE in an event of a
 *     strategy and in a function of ddp_add_state.
 *   - A call that communicates also returns the code of the rank that failed first.
 * The library never prints (except through the logger), never exits and installs no signal handlers. One
 * exception: if the mpi transport initialised MPI, it prints its error and calls MPI_Abort after a failure
 * (docs/howto/launch.md).
 *
 * THREADS. There is no mutable data at file scope, so contexts are independent. One thread at a time may call
 * functions of a context, and of a graph, pipeline or state that belongs to it. The thread may change between
 * calls. Other threads may call the functions whose comment says "any thread", such as ddp_abort and
 * ddp_dump, at the same time. "Safe from any thread" means that concurrent calls are allowed, also on one
 * object. Any other object, such as a graph without a context, may be used by one thread at a time. A context
 * with peers runs one comm thread per link, which calls only the callbacks that say so.
 *
 * RANKS. "Collective": all ranks that the comment names make the call, in the same order. "Local": the call
 * neither sends a message nor waits for one.
 */
#ifndef DREAMDDP_H
#define DREAMDDP_H

#include "base/status.h"
#include "session/session.h"
#include "config/config.h"
#include "config/names.h"
#include "context/reading.h"
#include "graph/layer.h"
#include "nn/optimizer.h"

#include "comm/message.h"
#include "config/strategy.h"
#include "exchange/verbs.h"

#include "profile/profile.h"
#include "context/stats.h"
#include "profile/trace.h"
#include "session/checkpoint.h"
#include "exchange/collective.h"

#include "emulate/netspec.h"
#include "profile/network.h"
#include "profile/losses.h"

#include "plan/oplist_graph.h"
#include "plan/tour.h"
#include "plan/partial/partial.h"
#include "plan/timeline/timeline.h"
#include "plan/timeline/knapsack.h"
#include "plan/timeline/deft.h"
#include "plan/timeline/preserver.h"
#include "plan/osp/osp.h"
#include "plan/osp/served.h"
#include "plan/place/place.h"
#include "plan/fence/louvain.h"
#include "plan/fence/workload.h"
#include "plan/fence/fence.h"
#include "plan/predict.h"
#include "plan/loss.h"
#include "plan/choose.h"
#include "pipe/schedule.h"

#include "compress/compress.h"
#include "base/tools.h"
#include "graph/graph.h"
#include "pipe/pipe.h"
#include "sim/sim.h"
#include "nn/models.h"
#include "data/data.h"

#include "io/safetensors.h"

#include "report/report.h"

#include "base/backend.h"

#endif /* DREAMDDP_H */

#ifdef DREAMDDP_IMPLEMENTATION
#ifndef DDP__IMPLEMENTED
#define DDP__IMPLEMENTED

#include "base/array.c"
#include "base/number.c"
#include "base/core.c"
#include "base/thread.c"
#include "base/text.c"
#include "base/filetype.c"
#include "graph/host.h"
#ifndef DDP_NO_MODELS
#include "graph/graph.c"
#include "graph/arena.c"
#include "graph/exec.c"
#include "graph/build.c"
#include "graph/cut.c"
#include "ops/kernels.c"
#include "ops/ops.c"
#include "ops/conv_product.c"
#include "ops/conv_winograd.c"
#include "ops/linear.c"
#include "ops/embedding.c"
#include "ops/norm.c"
#include "ops/attention.c"
#include "ops/elementwise.c"
#include "ops/loss.c"
#include "ops/conv.c"
#include "ops/pool.c"
#include "ops/builtin.c"
#endif
#include "nn/optimizer.c"
#include "nn/muon.c"
#ifndef DDP_NO_MODELS
#include "nn/models.c"
#include "data/tokens.c"
#include "data/images.c"
#endif
#include "io/json.c"
#include "io/safetensors.c"
#ifndef DDP_NO_MODELS
#include "io/weight_files.c"
#include "io/weights.c"
#endif
#include "compress/quantise.c"
#ifndef DDP_NO_PLANNERS
#include "compress/packing.c"
#include "compress/topk.c"
#include "compress/sparse.c"
#endif
#include "wire/threads.c"
#include "wire/socket.c"
#include "wire/stream.c"
#include "wire/hello.c"
#include "wire/tls.c"
#include "wire/tls_keys.c"
#include "wire/acceptor.c"
#include "wire/relay.c"
#include "wire/replay.c"
#include "wire/callback.c"
#include "wire/reconnect_link.c"
#include "wire/reconnect.c"
#include "wire/given.c"
#include "wire/mesh.c"
#include "wire/meeting.c"
#include "wire/mpi.c"
#include "wire/rendezvous.c"
#include "emulate/shape.c"
#include "emulate/links.c"
#include "comm/checksum.c"
#include "comm/frame.c"
#include "comm/operation.c"
#include "comm/memory.c"
#include "comm/staging.c"
#include "comm/liveness.c"
#include "comm/record.c"
#include "comm/ring.c"
#include "comm/direct.c"
#include "comm/spread.c"
#include "comm/sites.c"
#include "comm/share.c"
#include "comm/delay.c"
#include "comm/receive.c"
#include "comm/activate.c"
#include "comm/send.c"
#include "comm/thread.c"
#include "comm/engine.c"
#include "comm/submit.c"
#include "member/shadow.c"
#include "member/renew.c"
#include "member/epoch.c"
#include "member/elastic.c"
#include "member/state.c"
#include "member/entry.c"
#include "member/reshard.c"
#include "member/manifest.c"
#include "member/checkpoint.c"
#include "member/join.c"
#include "member/joiner.c"
#include "member/rest.c"
#include "profile/csv.c"
#include "profile/average.c"
#include "profile/losses.c"
#include "profile/profile.c"
#include "profile/link.c"
#include "profile/timer.c"
#include "profile/network.c"
#ifndef DDP_NO_PLANNERS
#include "profile/oplist.c"
#endif
#include "plan/names.c"
#include "plan/times.c"
#include "plan/arrays.c"
#include "plan/queue.c"
#include "plan/link_clock.c"
#include "plan/partial/partial_search.c"
#include "plan/partial/partial_brute.c"
#include "plan/partial/partial.c"
#include "plan/partial/landing.c"
#include "plan/partial/exposed.c"
#include "plan/partial/stream.c"
#include "plan/osp/served.c"
#ifndef DDP_NO_PLANNERS
#include "plan/order.c"
#include "plan/tour.c"
#ifndef DDP_NO_MODELS
#include "plan/oplist_graph.c"
#endif
#include "plan/timeline/partition.c"
#include "plan/timeline/timeline.c"
#include "plan/timeline/knapsack_exact.c"
#include "plan/timeline/knapsack.c"
#include "plan/timeline/deft_cycle.c"
#include "plan/timeline/deft.c"
#include "plan/timeline/preserver.c"
#include "plan/osp/osp.c"
#include "plan/place/matching.c"
#include "plan/place/place_core.c"
#include "plan/place/place_genetic.c"
#include "plan/place/place_moves.c"
#include "plan/place/place_anneal.c"
#include "plan/place/place_exact.c"
#include "plan/place/place.c"
#include "plan/fence/louvain.c"
#include "plan/fence/workload.c"
#include "plan/fence/fence_tape.c"
#include "plan/fence/fence_order.c"
#include "plan/fence/fence_cut.c"
#include "plan/fence/fence.c"
#include "plan/predict.c"
#include "plan/loss_table.h"
#include "plan/loss.c"
#include "plan/choose.c"
#endif
#include "config/compatibility.c"
#include "config/links.c"
#include "config/knob.c"
#include "config/settings.c"
#include "config/env.c"
#include "config/config.c"
#include "context/facts.c"
#include "context/engine_slot.c"
#include "context/dump.c"
#include "context/context.c"
#include "context/open.c"
#include "context/layers.c"
#include "context/clock.c"
#include "exchange/part.c"
#include "exchange/events.c"
#include "exchange/update.c"
#include "exchange/collective.c"
#include "exchange/reduce.c"
#include "exchange/sites.c"
#include "exchange/post.c"
#include "exchange/blocks.c"
#include "exchange/compared.c"
#include "exchange/average.c"
#include "exchange/verbs.c"
#include "device/stager.c"
#include "device/device.c"
#include "measure/arrivals.c"
#include "measure/lines.c"
#include "measure/part.c"
#include "measure/account.c"
#include "measure/link_probe.c"
#include "measure/timing.c"
#include "measure/pace.c"
#ifndef DDP_NO_PLANNERS
#include "measure/probe.c"
#endif
#include "session/part.c"
#include "session/connect.c"
#include "session/serve.c"
#include "session/stages.c"
#include "session/plan_file.c"
#include "session/planning.c"
#include "session/landing.c"
#include "session/state.c"
#include "session/program.c"
#include "session/replicas.c"
#include "session/compare.c"
#include "session/join.c"
#include "session/start.c"
#include "session/chosen.c"
#include "session/save.c"
#include "session/hooks.c"
#include "session/session.c"
#include "session/launch.c"
#include "strategy/layers.c"
#include "strategy/gradient.c"
#include "strategy/local.c"
#include "strategy/server_desk.c"
#include "strategy/server_line.c"
#include "strategy/server_rules.c"
#include "strategy/outer.h"
#ifndef DDP_NO_PLANNERS
#include "strategy/gradient_plan.c"
#include "strategy/auto.c"
#include "strategy/delayed_plan.c"
#include "strategy/delayed.c"
#include "strategy/server_osp.c"
#include "strategy/outer_sparse.c"
#endif
#include "strategy/outer.c"
#include "strategy/outer_late.c"
#include "strategy/table.c"
#ifndef DDP_NO_PLANNERS
#include "pipe/schedule.c"
#include "pipe/play.c"
#ifndef DDP_NO_MODELS
#include "pipe/lanes.c"
#include "pipe/samples.c"
#include "pipe/edge_ratio.c"
#include "pipe/edge_wire.c"
#include "pipe/edge.c"
#include "pipe/tied.c"
#include "pipe/word.c"
#include "pipe/faults.c"
#include "pipe/pipe.c"
#include "pipe/bottleneck.c"
#include "pipe/layout.c"
#include "pipe/shares.c"
#include "pipe/open.c"
#include "pipe/survive.c"
#endif
#endif
#ifndef DDP_NO_SIMULATOR
#include "sim/world.c"
#include "sim/clock.c"
#include "sim/uplink.c"
#include "sim/mail.c"
#include "sim/collective.c"
#include "sim/port.c"
#include "sim/simulate.c"
#endif
#ifndef DDP_NO_REPORTS
#include "report/page.c"
#include "report/stages.c"
#include "report/table.c"
#include "report/jsonl.c"
#include "report/perfetto.c"
#include "report/html.c"
#endif

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
