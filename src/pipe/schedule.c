/* Orders of micro-batches: gpipe, 1f1b, and zero-bubble (ZB-H1). */
#include "base/core.h"
#include "pipe/schedule.h"

static const char *const ddp__pipelines[] = {"1f1b", "gpipe", "1f1b", "zb"};

const char *ddp_pipeline_name(ddp_pipeline p)
{
    return (int)p >= 0 && (int)p <= (int)DDP_PIPELINE_ZB ? ddp__pipelines[p] : "unknown";
}

ddp_status ddp_pipeline_named(const char *name, ddp_pipeline *out, ddp_error *err)
{
    for (int i = 1; name && i <= (int)DDP_PIPELINE_ZB; i++) {
        if (strcmp(ddp__pipelines[i], name)) continue;
        *out = (ddp_pipeline)i;
        return DDP_OK;
    }
    return ddp__fail(err, DDP_ARG, "unknown pipeline schedule '%.40s'; use gpipe, 1f1b or zb",
                     name ? name : "");
}

/* The number of micro-batches of each kind of task that a stage has done. Each kind runs in their order. */
typedef struct ddp__stage_done {
    int forwards, inputs, weights;
} ddp__stage_done;

/* The stage's task in this time unit. -1 means that it waits. A forward, an input gradient or a weight
 * gradient takes one unit. before, after: the passes that the neighbours have done. Runs forwards until the
 * pipeline is full, then alternates a forward and an input gradient. backward_last is 1 if the last of the
 * two was an input gradient. Runs a weight gradient if nothing else can run, or instead of a forward if
 * `most` micro-batches are stored, the limit of 1f1b's first stage. */
static int ddp__zb_next(const ddp__stage_done *s, int backward_last, const ddp__stage_done *before,
                        const ddp__stage_done *after, int most, int full, int micro_batches)
{
    const int left = s->forwards < micro_batches, held = s->forwards - s->weights;
    const int forward = left && held < most && (!before || before->forwards > s->forwards);
    const int input = s->inputs < s->forwards && (!after || after->inputs > s->inputs);

    if (forward && (s->forwards < full || backward_last)) return (int)DDP_TASK_FORWARD;
    if (backward_last && left && held == most && s->weights < s->inputs) return (int)DDP_TASK_WEIGHT_GRADIENT;
    if (input) return (int)DDP_TASK_INPUT_GRADIENT;
    if (forward) return (int)DDP_TASK_FORWARD;
    return s->weights < s->inputs ? (int)DDP_TASK_WEIGHT_GRADIENT : -1;
}

static int ddp__zb_run(ddp__stage_done *s, int kind)
{
    if (kind == (int)DDP_TASK_FORWARD) return s->forwards++;
    return kind == (int)DDP_TASK_INPUT_GRADIENT ? s->inputs++ : s->weights++;
}

enum { DDP__STAGES_MOST = 1024 };

static int ddp__least(int a, int b) { return a < b ? a : b; }

/* Simulates all stages in time units. In each unit a stage sees the tasks that its neighbours did before
 * it. */
static int ddp__zb_tasks(const ddp_pipeline_shape *p, int stage, ddp_task *out)
{
    ddp__stage_done done[DDP__STAGES_MOST], before = DDP__ZEROS, own;
    unsigned char backward_last[DDP__STAGES_MOST];
    const int stages = p->stages, M = p->micro_batches, ahead = ddp__least(p->ahead, M);
    int n = 0;

    memset(done, 0, (size_t)stages * sizeof *done);
    memset(backward_last, 1, (size_t)stages);
    while (done[stage].weights < M) {
        for (int s = 0; s < stages; s++, before = own) { /* before: passes done by the previous stage */
            const int kind = ddp__zb_next(&done[s], backward_last[s], s > 0 ? &before : NULL,
                                          s + 1 < stages ? &done[s + 1] : NULL, ddp__least(stages + ahead, M),
                                          ddp__least(stages - s + ahead, M), M);
            int which;
            own = done[s];
            if (kind < 0) continue;
            if (kind != (int)DDP_TASK_WEIGHT_GRADIENT)
                backward_last[s] = kind == (int)DDP_TASK_INPUT_GRADIENT;
            which = ddp__zb_run(&done[s], kind);
            if (s != stage) continue;
            out[n].kind = (ddp_task_kind)kind;
            out[n++].micro_batch = which;
        }
    }
    return n;
}

/* `first` + 1 forwards, then alternates one backward and one forward, then the remaining backwards. */
static int ddp__turns(int first, int micro_batches, ddp_task *out)
{
    int forwards = 0, backwards = 0, n = 0;

    while (backwards < micro_batches) {
        const int forward = forwards < micro_batches && forwards <= backwards + first;
        out[n].kind = forward ? DDP_TASK_FORWARD : DDP_TASK_BACKWARD;
        out[n++].micro_batch = forward ? forwards++ : backwards++;
    }
    return n;
}

int ddp_pipeline_held(const ddp_pipeline_shape *p, int stage)
{
    if ((int)p->schedule < 0 || (int)p->schedule > (int)DDP_PIPELINE_ZB || p->stages < 1 ||
        p->stages > (int)DDP__STAGES_MOST || stage < 0 || stage >= p->stages || p->micro_batches < 1 ||
        p->ahead < 0)
        return 0;
    if (p->schedule == DDP_PIPELINE_GPIPE) return p->micro_batches;
    return ddp__least(p->stages - (p->schedule == DDP_PIPELINE_ZB ? 0 : stage) +
                          ddp__least(p->ahead, p->micro_batches),
                      p->micro_batches);
}

int ddp_pipeline_tasks(const ddp_pipeline_shape *p, int stage, ddp_task *out)
{
    const int held = ddp_pipeline_held(p, stage);

    if (!held) return 0;
    if (p->schedule == DDP_PIPELINE_ZB) return ddp__zb_tasks(p, stage, out);
    return ddp__turns(held - 1, p->micro_batches, out);
}
