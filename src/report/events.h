/* The events that every program writes, with the member names that tests and users rely on. */
#ifndef DDP_REPORT_EVENTS_H
#define DDP_REPORT_EVENTS_H

#include "report/data.h"
#include "report/jsonl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each writes one line; j may be NULL. Unknown figures become null.
 *   run      title, command, version, seed, host, workers, net, model
 *   profile  layers: list of {layer, params, backward_s, comm_s}
 *   plan     strategy, period, sets (layer indexes per step of the period), step_of, predicted_*;
 *            nothing is written for a run without a plan
 *   step     strategy, step, loss, step_ms, wait_ms, bytes, divergence (left out if NAN)
 *   note     strategy, step, time_s, kind, text: one line for each of r->notes
 *   result   strategy, workers, step_ms, hidden_pct, bytes_sent, final_loss, time_to_loss_s,
 *            param_hash, slowest_rank and slow_ratio where they are known, replans
 *   error    status (text), exit_code, message */
DDP_API void ddp_jsonl_run(ddp_jsonl *j, const ddp_report_data *d);
DDP_API void ddp_jsonl_profile(ddp_jsonl *j, const ddp_report_data *d);
DDP_API void ddp_jsonl_plan(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r);
DDP_API void ddp_jsonl_step(ddp_jsonl *j, const char *strategy, long step, double loss,
                            double step_ms, double wait_ms, int64_t bytes, double divergence);
DDP_API void ddp_jsonl_notes(ddp_jsonl *j, const ddp_report_run *r);
DDP_API void ddp_jsonl_result(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r);
DDP_API void ddp_jsonl_error(ddp_jsonl *j, const ddp_error *error);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_EVENTS_H */
