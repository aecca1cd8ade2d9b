/* The events of the programs' JSON lines. */
#ifndef EXAMPLES_EVENTS_H
#define EXAMPLES_EVENTS_H

/* Each function writes a line. j may be NULL. Unknown figures become null.
 *   run      title, command, version, seed, host, workers, net, model
 *   profile  layers: list of {layer, params, backward_s, comm_s}
 *   plan     strategy, period, sets (layer indexes per step of the period), step_of, predicted_*;
 *            nothing is written for a run without a plan
 *   step     strategy, step, loss, step_ms, wait_ms, bytes, divergence (left out if NAN)
 *   note     strategy, step, time_s, kind, text: one line for each of r->notes
 *   result   strategy, workers, step_ms, hidden_pct, bytes_sent, final_loss, time_to_loss_s,
 *            param_hash, slowest_rank and slow_ratio where they are known, replans
 *   error    status (text), exit_code, message */
static inline void event_run(ddp_jsonl *j, const ddp_report_data *d)
{
    ddp_jsonl_event(j, "run");
    ddp_jsonl_string(j, "title", d->title);
    ddp_jsonl_string(j, "command", d->command);
    ddp_jsonl_string(j, "version", d->version);
    ddp_jsonl_integer(j, "seed", (int64_t)d->seed);
    ddp_jsonl_string(j, "host", d->host);
    ddp_jsonl_integer(j, "workers", d->workers);
    ddp_jsonl_string(j, "net", d->net);
    ddp_jsonl_string(j, "model", d->model);
    ddp_jsonl_end(j);
}

static inline void event_profile(ddp_jsonl *j, const ddp_report_data *d)
{
    ddp_jsonl_event(j, "profile");
    ddp_jsonl_array(j, "layers");
    for (int l = 0; l < d->layer_count; l++) {
        ddp_jsonl_object(j, NULL);
        ddp_jsonl_string(j, "layer", d->layers[l].name);
        ddp_jsonl_number(j, "params", d->layers[l].params);
        ddp_jsonl_number(j, "backward_s", d->layers[l].backward_s);
        ddp_jsonl_number(j, "comm_s", d->layers[l].comm_s);
        ddp_jsonl_up(j);
    }
    ddp_jsonl_end(j);
}

static inline void event_plan(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r)
{
    if (!r->step_of || r->period < 1) return;
    ddp_jsonl_event(j, "plan");
    ddp_jsonl_string(j, "strategy", r->strategy);
    ddp_jsonl_integer(j, "period", r->period);
    ddp_jsonl_array(j, "sets");
    for (int h = 0; h < r->period; h++) {
        ddp_jsonl_array(j, NULL);
        for (int l = 0; l < d->layer_count; l++)
            if (r->step_of[l] == h) ddp_jsonl_integer(j, NULL, l);
        ddp_jsonl_up(j);
    }
    ddp_jsonl_up(j);
    ddp_jsonl_integers(j, "step_of", r->step_of, d->layer_count);
    ddp_jsonl_number(j, "predicted_step_ms", r->predicted_step_ms);
    ddp_jsonl_number(j, "predicted_hidden_pct", r->predicted_hidden_pct);
    ddp_jsonl_end(j);
}

static inline void event_step(ddp_jsonl *j, const char *strategy, long step, double loss, double step_ms,
                              double wait_ms, int64_t bytes, double divergence)
{
    ddp_jsonl_event(j, "step");
    ddp_jsonl_string(j, "strategy", strategy);
    ddp_jsonl_integer(j, "step", step);
    ddp_jsonl_number(j, "loss", loss);
    ddp_jsonl_number(j, "step_ms", step_ms);
    ddp_jsonl_number(j, "wait_ms", wait_ms);
    ddp_jsonl_integer(j, "bytes", bytes);
    if (divergence >= 0) ddp_jsonl_number(j, "divergence", divergence);
    ddp_jsonl_end(j);
}

static inline void event_notes(ddp_jsonl *j, const ddp_report_run *r)
{
    for (int i = 0; i < r->note_count; i++) {
        ddp_jsonl_event(j, "note");
        ddp_jsonl_string(j, "strategy", r->strategy);
        ddp_jsonl_integer(j, "step", r->notes[i].step);
        ddp_jsonl_number(j, "time_s", r->notes[i].time_s);
        ddp_jsonl_string(j, "kind", r->notes[i].kind);
        ddp_jsonl_string(j, "text", r->notes[i].text);
        ddp_jsonl_end(j);
    }
}

static inline void event_result(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r)
{
    ddp_jsonl_event(j, "result");
    ddp_jsonl_string(j, "strategy", r->strategy);
    ddp_jsonl_integer(j, "workers", d->workers);
    ddp_jsonl_number(j, "step_ms", r->step_ms);
    ddp_jsonl_number(j, "hidden_pct", r->hidden_pct);
    if (r->bytes_sent < 0)
        ddp_jsonl_number(j, "bytes_sent", (double)NAN);
    else
        ddp_jsonl_integer(j, "bytes_sent", r->bytes_sent);
    ddp_jsonl_number(j, "final_loss", r->final_loss);
    ddp_jsonl_number(j, "time_to_loss_s", r->time_to_loss_s);
    ddp_jsonl_string(j, "param_hash", r->param_hash);
    if (r->slow_ratio > 0) {
        ddp_jsonl_integer(j, "slowest_rank", r->slowest_rank);
        ddp_jsonl_number(j, "slow_ratio", r->slow_ratio);
    }
    ddp_jsonl_integer(j, "replans", r->replans);
    ddp_jsonl_end(j);
}

static inline void event_error(ddp_jsonl *j, const ddp_error *error)
{
    ddp_jsonl_event(j, "error");
    ddp_jsonl_string(j, "status", ddp_status_text(error->code));
    ddp_jsonl_integer(j, "exit_code", ddp_status_exit_code(error->code));
    ddp_jsonl_string(j, "message", error->msg);
    ddp_jsonl_end(j);
}

#endif /* EXAMPLES_EVENTS_H */
