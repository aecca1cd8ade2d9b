/* The data set of the report tests, as of a quickstart run: four workers, five strategies. Each
 * test gets it with a separate folder. Include after cmocka.h. */
#ifndef DDP_TESTS_REPORT_SAMPLE_H
#define DDP_TESTS_REPORT_SAMPLE_H

#include <dirent.h>

enum { RUNS = 5, WORKERS = 4, LAYERS = 8, PERIOD = 5, STEPS = 120, SPANS = 600 };

static const char *const strategy_name[RUNS] = {"ssgd", "wfbp", "localsgd", "enp", "dreamddp"};

/* A whole report and its memory. */
typedef struct sample {
    ddp_report_data data;
    ddp_report_run run[RUNS];
    ddp_report_layer layer[LAYERS];
    ddp_report_worker worker[RUNS][WORKERS];
    ddp_report_step step[RUNS][STEPS];
    double divergence[LAYERS];
    int step_of[2][LAYERS];
    unsigned char fill[PERIOD * LAYERS];
    ddp_span span[RUNS][WORKERS][SPANS];
    char folder[64];
} sample;

/* The clock of a worker while its spans are generated. */
typedef struct maker {
    ddp_span *span;
    int count;
    double now, link; /* when computation resumes; when the link is free */
    long step;
} maker;

static void make_span(maker *m, ddp_span_kind kind, int layer, double begin, double end, double bytes)
{
    ddp_span *s;

    if (!(end > begin)) return;
    assert_true(m->count < SPANS);
    s = &m->span[m->count++];
    memset(s, 0, sizeof *s);
    s->begin_s = begin;
    s->end_s = end;
    s->kind = kind;
    s->layer = layer;
    s->step = m->step;
    s->bytes = (int64_t)bytes;
}

static void compute(maker *m, ddp_span_kind kind, int layer, double seconds)
{
    make_span(m, kind, layer, m->now, m->now + seconds, 0);
    m->now += seconds;
}

static void wait_until(maker *m, double when)
{
    make_span(m, DDP_SPAN_WAIT, -1, m->now, when, 0);
    if (when > m->now) m->now = when;
}

/* Queues a layer's transfer after earlier ones. The next transfer overlaps its last tenth. */
static double transfer(maker *m, const ddp_report_layer *layer, int index, int filler)
{
    double begin = m->link > m->now ? m->link : m->now, end = begin + layer->comm_s;

    make_span(m, filler ? DDP_SPAN_FILL : DDP_SPAN_COMM, index, begin, end, layer->params * 6);
    m->link = begin + 0.9 * layer->comm_s;
    return end;
}

static void make_spans(sample *s, int run, int w, ddp_rng *r)
{
    double whole[LAYERS], last = 0;
    maker m;
    int h, l, i;

    memset(whole, 0, sizeof whole);
    memset(&m, 0, sizeof m);
    m.span = s->span[run][w];
    m.now = m.link = 1000 + 100 * run + 0.0005 * w;
    for (h = 0; h < PERIOD; h++) {
        double speed = 0.95 + 0.1 * ddp_rng_uniform(r);

        m.step = 40 + h;
        for (l = 0; l < LAYERS; l++) {
            wait_until(&m, whole[l]);
            compute(&m, DDP_SPAN_FORWARD, l, s->layer[l].backward_s * 0.5 * speed);
        }
        for (l = LAYERS - 1; l >= 0; l--) {
            compute(&m, DDP_SPAN_BACKWARD, l, s->layer[l].backward_s * speed);
            if (run >= 2) compute(&m, DDP_SPAN_UPDATE, l, 0.0004);
            if (run == 1) last = transfer(&m, &s->layer[l], l, 0);
            if (run >= 3 && s->step_of[run - 3][l] == h) whole[l] = transfer(&m, &s->layer[l], l, 0);
            if (run == 4 && s->fill[h * LAYERS + l]) whole[l] = transfer(&m, &s->layer[l], l, 1);
        }
        if (run == 0 || (run == 2 && h == PERIOD - 1))
            for (l = 0; l < LAYERS; l++) last = transfer(&m, &s->layer[l], l, 0);
        if (run < 3 && w == 2 && last > m.now) make_span(&m, DDP_SPAN_PEER_WAIT, -1, last, last + 0.004, 0);
        if (run < 3) wait_until(&m, last);
        if (run == 3) /* all transfers are complete at the end of the step */
            for (i = 0; i < LAYERS; i++) wait_until(&m, whole[i]);
        if (run < 2)
            for (l = 0; l < LAYERS; l++) compute(&m, DDP_SPAN_UPDATE, l, 0.0004);
    }
    s->worker[run][w].spans = m.span;
    s->worker[run][w].count = m.count;
    if (w == 0) {
        s->run[run].window_begin_s = 1000 + 100 * run;
        s->run[run].window_end_s = m.now;
        s->run[run].step_ms = (m.now - s->run[run].window_begin_s) * 1e3 / (int)PERIOD;
        s->run[run].hidden_pct = 12.5 * run;
    }
}

static void make_run(sample *s, int run, ddp_rng *r)
{
    ddp_report_run *d = &s->run[run];
    double total = 0;
    int i, l, w;

    d->strategy = strategy_name[run];
    d->predicted_step_ms = d->predicted_hidden_pct = (double)NAN;
    d->workers = s->worker[run];
    d->worker_count = WORKERS;
    for (w = 0; w < WORKERS; w++) make_spans(s, run, w, r);
    for (l = 0; l < LAYERS; l++) total += s->layer[l].params * 6;
    for (i = 0; i < STEPS; i++) {
        ddp_report_step *p = &s->step[run][i];

        p->time_s = (i + 1) * d->step_ms / 1e3;
        p->loss = 1.9 + 3.2 * exp(-i / 22.0) + 0.12 * ddp_rng_normal(r) + (run > 1 ? 0.02 : 0);
        p->bytes = (int64_t)(total * (i + 1) / (run > 1 ? PERIOD : 1));
        p->divergence =
            run < 2 ? 0
            : run == 2 && i % PERIOD < PERIOD - 1
                ? (double)NAN
                : 2e-4 * exp(-i / 40.0) * (1 + 0.3 * ddp_rng_uniform(r)) / (run == 2 ? 1 : 3.0 + run);
    }
    d->steps = s->step[run];
    d->step_count = STEPS;
    d->bytes_sent = s->step[run][STEPS - 1].bytes;
    d->time_to_loss_s = 75 * d->step_ms / 1e3;
    d->final_loss = s->step[run][STEPS - 1].loss;
    d->param_hash = "00ff12ab34cd56ef";
    if (run < 3) return;
    d->period = PERIOD;
    d->step_of = s->step_of[run - 3];
    d->layer_divergence = s->divergence;
    d->predicted_step_ms = d->step_ms * 0.98;
    d->predicted_hidden_pct = d->hidden_pct + 1;
    if (run == 4) d->fill = s->fill;
}

static sample *make_sample(void)
{
    static const char *const name[LAYERS] = {"embedding", "block 0", "block 1", "block 2",
                                             "block 3",   "block 4", "block 5", "head & <norm>"};
    static const int scatter[LAYERS] = {0, 3, 1, 4, 2, 3, 0, 2};
    sample *s = (sample *)calloc(1, sizeof *s);
    ddp_rng r = ddp_rng_seed(3, 0);
    int l, i;

    assert_non_null(s);
    for (l = 0; l < LAYERS; l++) {
        s->layer[l].name = name[l];
        s->layer[l].params = l == 0 ? 98304 : l == LAYERS - 1 ? 33024 : 198272 + 1000 * l;
        s->layer[l].backward_s = l == 0 ? 0.002 : 0.009 + 0.001 * l;
        s->layer[l].comm_s = s->layer[l].params * 2.6e-7;
        s->divergence[l] = 1e-5 * (l + 1);
        s->step_of[0][l] = (LAYERS - 1 - l) * PERIOD / LAYERS;
        s->step_of[1][l] = scatter[l];
    }
    s->fill[1 * LAYERS + 7] = 1;
    for (i = 0; i < RUNS; i++) make_run(s, i, &r);
    s->data.title = "quickstart: a small GPT over a slow link";
    s->data.command = "build/quickstart --net \"100mbit,20ms\" --data 'a<b>&c\xff.txt'";
    s->data.version = DDP_VERSION_STRING;
    s->data.host = "2 cores, Linux x86_64";
    s->data.net = "100 Mbit/s each way, 20 ms";
    s->data.model = "gpt2, 6 layers, 1.4 M parameters";
    s->data.seed = 1337;
    s->data.workers = WORKERS;
    s->data.target_loss = 2.1;
    s->data.layers = s->layer;
    s->data.layer_count = LAYERS;
    s->data.runs = s->run;
    s->data.run_count = RUNS;
    memcpy(s->folder, "/tmp/ddp_report_XXXXXX", 23);
    assert_non_null(mkdtemp(s->folder));
    return s;
}

static int in_folder(void **state)
{
    *state = make_sample();
    return 0;
}

/* Returns the number of entries of the folder. unlink_them: also removes them. */
static int folder_entries(const char *folder, int unlink_them)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.') continue;
        n++;
        if (unlink_them) unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
    return n;
}

static int folder_gone(void **state)
{
    sample *s = (sample *)*state;

    folder_entries(s->folder, 1);
    rmdir(s->folder);
    free(s);
    return 0;
}

static void path_in(const sample *s, const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", s->folder, name);
}

static ddp__text read_whole(const char *path)
{
    ddp__text t;

    memset(&t, 0, sizeof t);
    assert_int_equal(ddp__file_read(path, &t, NULL), DDP_OK);
    return t;
}

static int count_of(const char *text, const char *what)
{
    int n = 0;

    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) n++;
    return n;
}

#endif /* DDP_TESTS_REPORT_SAMPLE_H */
