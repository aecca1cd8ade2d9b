/* Writes the spans of all workers as a Chrome trace. */
#include "io/json.h"
#include "report/page.h"

/* The trace being written. */
typedef struct ddp__perfetto {
    ddp__text text;
    const ddp_report_data *data;
    double origin; /* ddp_now() of the run's ts = 0 */
    long pid, next_tid;
} ddp__perfetto;

/* The separator before an event. */
static const char *ddp__perfetto_comma(const ddp__perfetto *p) { return p->text.size ? "," : "["; }

/* Writes the name of a process or thread, and its position among the others. */
static void ddp__perfetto_name(ddp__perfetto *p, const char *what, long tid, const char *name, long index)
{
    ddp__text_addf(&p->text,
                   "%s\n{\"ph\":\"M\",\"name\":\"%s_name\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"name\":",
                   ddp__perfetto_comma(p), what, p->pid, tid);
    ddp__json_string(&p->text, name);
    ddp__text_addf(&p->text,
                   "}},\n{\"ph\":\"M\",\"name\":\"%s_sort_index\",\"pid\":%ld,\"tid\":%ld,\"args\":"
                   "{\"sort_index\":%ld}}",
                   what, p->pid, tid, index);
}

/* Writes one span of a thread, up to the args. Times are in whole nanoseconds, so that equal begins and
 * ends stay equal. */
static void ddp__perfetto_event(ddp__perfetto *p, long tid, const char *kind, double begin_s, double end_s,
                                const char *name)
{
    const long long begin = llround((begin_s - p->origin) * 1e9),
                    took = llround((end_s - p->origin) * 1e9) - begin;

    ddp__text_addf(&p->text,
                   "%s\n{\"ph\":\"X\",\"pid\":%ld,\"tid\":%ld,\"cat\":\"%s\",\"ts\":%lld.%03lld,\"dur\":"
                   "%lld.%03lld,\"name\":",
                   ddp__perfetto_comma(p), p->pid, tid, kind, begin / 1000, begin % 1000, took / 1000,
                   took % 1000);
    ddp__json_string(&p->text, name);
}

/* Writes one lane of a worker, as one thread per row. */
static void ddp__perfetto_lane(ddp__perfetto *p, const ddp_report_worker *w, unsigned kinds, const char *name)
{
    char numbered[40];
    ddp__lane lane;

    ddp__lane_make(&p->text, w, kinds, -DBL_MAX, DBL_MAX, &lane);
    for (int row = 0; row < lane.rows; row++) {
        snprintf(numbered, sizeof numbered, row ? "%s %d" : "%s", name, row + 1);
        ddp__perfetto_name(p, "thread", p->next_tid + row, numbered, p->next_tid + row);
    }
    for (int i = 0; i < lane.count; i++) {
        const ddp_span *s = &lane.items[i].span;
        const char *kind = ddp_span_kind_name(s->kind);
        const char *layer =
            s->layer >= 0 && s->layer < p->data->layer_count ? p->data->layers[s->layer].name : NULL;
        ddp__perfetto_event(p, p->next_tid + lane.items[i].row, kind, s->begin_s, s->end_s,
                            layer ? layer : kind);
        ddp__text_addf(&p->text,
                       ",\"args\":{\"kind\":\"%s\",\"step\":%ld,\"layer\":%d,\"bytes\":%" PRId64 "}}", kind,
                       s->step, s->layer, s->bytes);
    }
    p->next_tid += lane.rows;
    DDP_FREE(lane.items);
}

/* Writes one step of a stage: received messages, compute, sent messages. */
static void ddp__perfetto_stage(ddp__perfetto *p, const ddp_report_worker *w)
{
    static const char *const name[3] = {"receive", "stage", "send"};
    char text[60];

    for (int lane = 0; lane < 3 && w->slots; lane++)
        ddp__perfetto_name(p, "thread", p->next_tid + lane, name[lane], p->next_tid + lane);
    for (int i = 0; i < w->slots; i++) {
        const ddp_pipeline_slot *s = &w->slot[i];
        const int lane = s->boundary < 0 ? 1 : s->task.kind == DDP_TASK_SEND ? 2 : 0;
        snprintf(text, sizeof text, "%s %d", ddp__slot_text(s), s->task.micro_batch);
        ddp__perfetto_event(p, p->next_tid + lane, name[lane], s->begin_s, s->end_s, text);
        ddp__text_addf(&p->text, ",\"args\":{\"micro_batch\":%d", s->task.micro_batch);
        if (s->boundary >= 0) ddp__text_addf(&p->text, ",\"other_stage\":%d", s->boundary);
        ddp__text_addf(&p->text, "}}");
    }
    p->next_tid += w->slots ? 3 : 0;
}

ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err)
{
    long stride = 1000;
    ddp__perfetto p = DDP__ZEROS;
    char name[120];
    double end;

    p.data = d;
    p.next_tid = 1;
    for (int i = 0; i < d->run_count; i++)
        if (d->runs[i].worker_count > stride) stride = d->runs[i].worker_count;
    for (int i = 0; i < d->run_count; i++) {
        const ddp_report_run *r = &d->runs[i];
        ddp__run_all(r, &p.origin, &end);
        for (int w = 0; w < r->worker_count; w++) {
            p.pid = 1 + w + stride * i;
            snprintf(name, sizeof name, "%.60s rank %d", r->strategy ? r->strategy : "run", w);
            if (r->schedule && r->workers[w].slots)
                snprintf(name + strlen(name), sizeof name - strlen(name), ", %.20s pipeline %d stage %d",
                         r->schedule, r->workers[w].pipeline, r->workers[w].slot->stage);
            ddp__perfetto_name(&p, "process", 0, name, p.pid);
            ddp__perfetto_lane(&p, &r->workers[w], DDP__LANE_COMPUTE, "compute");
            ddp__perfetto_lane(&p, &r->workers[w], DDP__LANE_COMM, "communication");
            if (r->schedule) ddp__perfetto_stage(&p, &r->workers[w]);
        }
    }
    ddp__text_addf(&p.text, "%s\n]\n", p.text.size ? "" : "[");
    return ddp__text_write(&p.text, path, err);
}
