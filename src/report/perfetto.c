/* The spans of all workers as a Chrome trace. */
#include "base/platform.h"
#include "base/text.h"
#include "io/json.h"
#include "report/page.h"

/* The file being made: a comma stands before every event but the first. */
typedef struct ddp__perfetto {
    ddp__text              text;
    const ddp_report_data *data;
    double                 origin; /* ddp_now() of the run's ts = 0 */
    long                   pid, next_tid;
    int                    any;
} ddp__perfetto;

static void ddp__perfetto_begin(ddp__perfetto *p)
{
    ddp__text_addf(&p->text, "%s\n", p->any ? "," : "[");
    p->any = 1;
}

static void ddp__perfetto_name(ddp__perfetto *p, const char *what, long tid, const char *name)
{
    ddp__perfetto_begin(p);
    ddp__text_addf(
        &p->text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"name\":", what,
        p->pid, tid);
    ddp__json_string(&p->text, name);
    ddp__text_addf(&p->text, "}}");
}

static void ddp__perfetto_sort(ddp__perfetto *p, const char *what, long tid, long index)
{
    ddp__perfetto_begin(p);
    ddp__text_addf(
        &p->text,
        "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"sort_index\":%ld}}",
        what, p->pid, tid, index);
}

/* Whole nanoseconds as microseconds, so that ends and begins that are equal stay equal. */
static void ddp__perfetto_us(ddp__text *t, long long ns)
{
    ddp__text_addf(t, "%lld.%03lld", ns / 1000, ns % 1000);
}

static void ddp__perfetto_span(ddp__perfetto *p, const ddp_span *s, long tid)
{
    long long begin = llround((s->begin_s - p->origin) * 1e9), end = llround((s->end_s - p->origin) * 1e9);
    const char *name = ddp_span_kind_name(s->kind);

    ddp__perfetto_begin(p);
    ddp__text_addf(&p->text, "{\"ph\":\"X\",\"pid\":%ld,\"tid\":%ld,\"cat\":\"%s\",\"ts\":", p->pid, tid, name);
    ddp__perfetto_us(&p->text, begin);
    ddp__text_addf(&p->text, ",\"dur\":");
    ddp__perfetto_us(&p->text, end - begin);
    ddp__text_addf(&p->text, ",\"name\":");
    if (s->layer >= 0 && s->layer < p->data->layer_count && p->data->layers[s->layer].name)
        ddp__json_string(&p->text, p->data->layers[s->layer].name);
    else
        ddp__json_string(&p->text, name);
    ddp__text_addf(&p->text,
                   ",\"args\":{\"kind\":\"%s\",\"step\":%ld,\"layer\":%d,\"bytes\":%" PRId64 "}}",
                   name, s->step, s->layer, s->bytes);
}

/* One lane of a worker, as many threads as it has rows. 0 when memory is short. */
static int ddp__perfetto_lane(ddp__perfetto *p, const ddp_report_worker *w, unsigned kinds, const char *name)
{
    char numbered[40];
    ddp__lane lane;
    int i, row;

    if (!ddp__lane_make(w, kinds, -DBL_MAX, DBL_MAX, &lane)) return 0;
    for (row = 0; row < lane.rows; row++) {
        snprintf(numbered, sizeof numbered, row ? "%s %d" : "%s", name, row + 1);
        ddp__perfetto_name(p, "thread_name", p->next_tid + row, numbered);
        ddp__perfetto_sort(p, "thread_sort_index", p->next_tid + row, p->next_tid + row);
    }
    for (i = 0; i < lane.count; i++)
        ddp__perfetto_span(p, &lane.items[i].span, p->next_tid + lane.items[i].row);
    p->next_tid += lane.rows;
    ddp__lane_free(&lane);
    return 1;
}

/* Earliest span of the run: what its clock is counted from. */
static double ddp__perfetto_origin(const ddp_report_run *r)
{
    ddp_report_run whole = *r;
    double begin, end;

    whole.window_begin_s = whole.window_end_s = 0;
    ddp__run_window(&whole, &begin, &end);
    return begin;
}

ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err)
{
    long stride = 1000;
    ddp__perfetto p;
    ddp_status status;
    char name[120];
    int i, w, ok = 1;

    memset(&p, 0, sizeof p);
    p.data = d;
    p.next_tid = 1;
    for (i = 0; i < d->run_count; i++)
        if (d->runs[i].worker_count > stride) stride = d->runs[i].worker_count;
    for (i = 0; i < d->run_count; i++) {
        const ddp_report_run *r = &d->runs[i];

        p.origin = ddp__perfetto_origin(r);
        for (w = 0; w < r->worker_count && ok; w++) {
            p.pid = 1 + w + stride * i;
            snprintf(name, sizeof name, "%.80s rank %d", r->strategy ? r->strategy : "run", w);
            ddp__perfetto_name(&p, "process_name", 0, name);
            ddp__perfetto_sort(&p, "process_sort_index", 0, p.pid);
            ok = ddp__perfetto_lane(&p, &r->workers[w], DDP__LANE_COMPUTE, "compute") &&
                 ddp__perfetto_lane(&p, &r->workers[w], DDP__LANE_COMM, "communication");
        }
    }
    ddp__text_addf(&p.text, "%s\n]\n", p.any ? "" : "[");
    if (!ok || p.text.failed)
        status = ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory while it was built", path);
    else
        status = ddp__file_write(path, p.text.data, p.text.size, err);
    ddp__text_free(&p.text);
    return status;
}
