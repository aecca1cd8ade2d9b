/* [pure] Reports of a data set as of a quickstart run: four workers, five strategies.
 * `test_report PATH` writes PATH.html and PATH_trace.json for inspection. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <locale.h>
#include <signal.h>
#include <sys/resource.h>

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "comma_locale.h"
#include "report/report_sample.h"

/* Runs `python3 -c program path`. Returns 1 if it exits with 0. Skips the test if python3 is missing. */
static int python_accepts(const char *program, const char *path)
{
    int code = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execlp("python3", "python3", "-c", program, path, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    if (WEXITSTATUS(code) == 127) SKIP("python3 is not installed");
    return WEXITSTATUS(code) == 0;
}

static void page_is_well_formed_and_self_contained(void **state)
{
    sample *s = (sample *)*state;
    char path[128];
    ddp__text t;

    path_in(s, "r.html", path);
    assert_int_equal(ddp_report_html(&s->data, path, NULL), DDP_OK);
    t = read_whole(path);
    assert_null(strstr(t.data, "<script"));
    assert_null(strstr(t.data, "http"));
    assert_null(strstr(t.data, "url("));
    assert_null(strstr(t.data, "nan"));
    assert_null(strstr(t.data, "inf\""));
    assert_int_equal(count_of(t.data, "<svg"), RUNS + 3);
    assert_int_equal(count_of(t.data, "<svg"), count_of(t.data, "</svg>"));
    assert_non_null(strstr(t.data, "--data &#39;a&lt;b&gt;&amp;c?.txt&#39;"));
    assert_non_null(strstr(t.data, "head &amp; &lt;norm&gt;"));
    assert_non_null(strstr(t.data, "<td>2 (+1)</td>")); /* the layer with an additional average */
    ddp__text_free(&t);
    assert_true(python_accepts("import sys, xml.etree.ElementTree as e\n"
                               "t = e.parse(sys.argv[1]).getroot()\n"
                               "assert t.tag == 'html' and len(list(t.iter('rect'))) > 1000\n"
                               "for r in t.iter('rect'):\n"
                               "    x, w = float(r.get('x')), float(r.get('width'))\n"
                               "    assert 56 <= x and x + w <= 1084.4 and r.find('title') is not None\n",
                               path));
}

/* Two stages: each computes for part of 8 seconds, the first for 3 seconds, the second for 5. */
static void pipeline_step_is_drawn_and_traced(void **state)
{
    static const ddp_pipeline_slot first[] = {{0, -1, {DDP_TASK_FORWARD, 0}, 0, 10, 11},
                                              {0, -1, {DDP_TASK_BACKWARD, 0}, 0, 16, 18},
                                              {0, 1, {DDP_TASK_SEND, 0}, 0, 11, 12}};
    static const ddp_pipeline_slot second[] = {{1, 0, {DDP_TASK_RECEIVE, 0}, 0, 11.5, 12},
                                               {1, -1, {DDP_TASK_FORWARD, 0}, 0, 12, 14},
                                               {1, -1, {DDP_TASK_BACKWARD, 0}, 0, 14, 17}};
    sample *s = (sample *)*state;
    ddp_report_worker worker[2];
    ddp_report_data d;
    ddp_report_run run;
    char path[128];
    ddp__text t;

    memset(worker, 0, sizeof worker);
    memset(&d, 0, sizeof d);
    memset(&run, 0, sizeof run);
    worker[0].slot = first;
    worker[0].slots = 3;
    worker[1].slot = second;
    worker[1].slots = 3;
    run.strategy = "ssgd";
    run.schedule = "1f1b";
    run.stages = 2;
    run.workers = worker;
    run.worker_count = 2;
    d.runs = &run;
    d.run_count = 1;
    path_in(s, "stages.html", path);
    assert_int_equal(ddp_report_html(&d, path, NULL), DDP_OK);
    t = read_whole(path);
    assert_non_null(strstr(t.data, "1f1b, 2 stages, pipeline 0 of 1</tspan>: 8.00 s, bubble 50.0 %"));
    assert_int_equal(count_of(t.data, "<rect"), 1 + 6);
    assert_non_null(strstr(t.data, "stage 1 receives activations, micro-batch 0, 500.00 ms from 1.50 s"));
    assert_null(strstr(t.data, "http"));
    ddp__text_free(&t);
    path_in(s, "stages.json", path);
    assert_int_equal(ddp_report_trace(&d, path, NULL), DDP_OK);
    t = read_whole(path);
    assert_non_null(strstr(t.data, "\"ssgd rank 1, 1f1b pipeline 0 stage 1\""));
    assert_non_null(
        strstr(t.data, "\"name\":\"sends activations 0\",\"args\":{\"micro_batch\":0,\"other_stage\":1}"));
    assert_int_equal(count_of(t.data, "\"ph\":\"X\""), 6);
    assert_int_equal(count_of(t.data, "\"cat\":\"receive\""), 1);
    assert_int_equal(count_of(t.data, "\"cat\":\"stage\""), 4);
    assert_int_equal(count_of(t.data, "\"cat\":\"send\""), 1);
    ddp__text_free(&t);
    assert_true(python_accepts("import sys, json; json.load(open(sys.argv[1]))", path));
}

static void table_shows_the_given_numbers(void **state)
{
    sample *s = (sample *)*state;
    char path[128];
    ddp__text t;
    FILE *f;

    s->run[0].step_ms = 250;
    s->run[1].step_ms = 125;
    s->run[1].predicted_step_ms = 0; /* no prediction */
    s->run[4].step_ms = 100.06;
    s->run[4].predicted_step_ms = 97.25;
    s->run[4].bytes_sent = 12345678;
    s->run[4].hidden_pct = 99.44;
    s->run[4].final_loss = 1.23456;
    s->run[4].time_to_loss_s = (double)NAN;
    path_in(s, "table.txt", path);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(ddp_report_table(&s->data, f, NULL), DDP_OK);
    fclose(f);
    t = read_whole(path);
    assert_non_null(
        strstr(t.data, "strategy  step ms  predicted  vs ssgd  s to loss  MB sent  hidden %  final loss\n"));
    assert_non_null(
        strstr(t.data, "dreamddp    100.1       97.3    2.50x          -     12.3      99.4      1.2346\n"));
    assert_non_null(strstr(t.data, "wfbp        125.0          -    2.00x"));
    assert_int_equal(count_of(t.data, "\n"), RUNS + 1);
    ddp__text_free(&t);
    path_in(s, "r.html", path);
    assert_int_equal(ddp_report_html(&s->data, path, NULL), DDP_OK);
    t = read_whole(path);
    assert_non_null(strstr(
        t.data, "<tr class=\"best\"><td>dreamddp</td><td>100.1</td><td>97.3</td><td>2.50x</td><td>-</td>"
                "<td>12.3</td><td>99.4</td><td>1.2346</td></tr>"));
    ddp__text_free(&t);
}

/* The notes of a run are table rows in their order. Each note has a dashed line in the charts over time
 * and over steps, except notes on stragglers. */
static void notes_are_listed_and_marked_in_charts(void **state)
{
    static const char *const texts[3] = {"rank 1 computes 2.1 x slower", "rank <2> was lost",
                                         "planned again"};
    static const char *const kinds[3] = {"slow", "lost", "replan"};
    sample *s = (sample *)*state;
    ddp_report_note note[60];
    const char *at, *before = NULL;
    char path[128];
    ddp__text t;
    int i;

    path_in(s, "r.html", path);
    assert_int_equal(ddp_report_html(&s->data, path, NULL), DDP_OK);
    t = read_whole(path);
    assert_null(strstr(t.data, "What changed"));
    assert_int_equal(count_of(t.data, "<path class=\"mark\""), 0);
    ddp__text_free(&t);

    for (i = 0; i < 60; i++) {
        note[i].kind = kinds[i % 3];
        note[i].text = texts[i % 3];
        note[i].step = i % 3 + 7;
        note[i].time_s = 0.5 * (i % 3 + 1);
    }
    s->run[4].notes = note;
    s->run[4].note_count = 3;
    s->run[4].slow_ratio = 2.13;
    s->run[4].slowest_rank = 1;
    s->run[4].replans = 1;
    s->run[3].slow_ratio = 1.02;
    assert_int_equal(ddp_report_html(&s->data, path, NULL), DDP_OK);
    t = read_whole(path);
    for (i = 0; i < 3; i++) {
        char row[128];
        snprintf(row, sizeof row, "<tr><td>dreamddp</td><td>%d</td><td>%.1f</td><td>%s</td></tr>", i + 7,
                 0.5 * (i + 1), i == 1 ? "rank &lt;2&gt; was lost" : texts[i]);
        at = strstr(t.data, row);
        if (!at || (before && at < before)) fail_msg("%s", row);
        before = at;
    }
    assert_non_null(strstr(t.data, "dreamddp: rank 1 computes 2.1 x slower than the median, and "
                                   "the others wait for it; the link changed, planned again 1 "
                                   "time."));
    assert_non_null(strstr(t.data, "enp: all ranks compute about equally fast."));
    assert_null(strstr(t.data, "localsgd: "));
    assert_int_equal(count_of(t.data, "<path class=\"mark\""), 4); /* two notes in two charts */
    assert_int_equal(count_of(t.data, "<title>rank &lt;2&gt; was lost</title>"), 2);
    ddp__text_free(&t);
    assert_true(python_accepts("import sys, xml.etree.ElementTree as e; e.parse(sys.argv[1])", path));

    s->run[4].note_count = 60; /* only the newest two dozen are shown */
    assert_int_equal(ddp_report_html(&s->data, path, NULL), DDP_OK);
    t = read_whole(path);
    assert_int_equal(count_of(t.data, "<tr><td>dreamddp</td><td>7</td>"), 8);
    assert_non_null(strstr(t.data, "36 earlier ones are left out"));
    ddp__text_free(&t);
}

/* Without runs or data, the page and the trace are still valid. */
static void empty_report_is_valid(void **state)
{
    sample *s = (sample *)*state;
    ddp_report_data empty;
    ddp_report_run bare;
    char path[128];

    memset(&empty, 0, sizeof empty);
    memset(&bare, 0, sizeof bare);
    path_in(s, "e.html", path);
    assert_int_equal(ddp_report_html(&empty, path, NULL), DDP_OK);
    empty.runs = &bare;
    empty.run_count = 1;
    assert_int_equal(ddp_report_html(&empty, path, NULL), DDP_OK);
    assert_true(python_accepts("import sys, xml.etree.ElementTree as e; e.parse(sys.argv[1])", path));
    path_in(s, "e.json", path);
    assert_int_equal(ddp_report_trace(&empty, path, NULL), DDP_OK);
    assert_true(python_accepts("import sys, json; assert json.load(open(sys.argv[1])) == []", path));
}

/* Every span appears once, on a thread where it overlaps no other span, in a named process. */
static void trace_contains_every_span_once(void **state)
{
    sample *s = (sample *)*state;
    ddp__json *root;
    const ddp__json *e;
    int spans = 0, processes = 0, i, w;
    long given = 0;
    double seconds = 0, traced = 0;
    char path[128];
    ddp_error err;

    for (i = 0; i < RUNS; i++) {
        for (w = 0; w < WORKERS; w++) {
            int k;

            given += s->worker[i][w].count;
            for (k = 0; k < s->worker[i][w].count; k++)
                seconds += s->span[i][w][k].end_s - s->span[i][w][k].begin_s;
        }
    }
    path_in(s, "trace.json", path);
    assert_int_equal(ddp_report_trace(&s->data, path, NULL), DDP_OK);
    root = ddp__json_read(path, &err);
    assert_non_null(root);
    assert_int_equal(root->kind, DDP__JSON_ARRAY);
    for (e = root->first; e; e = e->next) {
        const ddp__json *ph = ddp__json_get(e, "ph"), *args = ddp__json_get(e, "args");

        assert_non_null(ph);
        assert_non_null(args);
        assert_non_null(ddp__json_get(e, "pid"));
        assert_non_null(ddp__json_get(e, "tid"));
        if (ph->string[0] == 'M') {
            processes += !strcmp(ddp__json_get(e, "name")->string, "process_name");
            continue;
        }
        spans++;
        assert_true(ddp__json_get(e, "ts")->number >= 0);
        traced += ddp__json_get(e, "dur")->number * 1e-6;
        assert_non_null(ddp__json_get(e, "cat"));
        assert_non_null(ddp__json_get(args, "bytes"));
        assert_non_null(ddp__json_get(args, "step"));
    }
    assert_int_equal(spans, given);
    assert_true(fabs(traced - seconds) < 1e-5);
    assert_int_equal(processes, RUNS * WORKERS);
    ddp__json_free(root);
    assert_true(python_accepts("import sys, json, collections\n"
                               "rows = collections.defaultdict(list)\n"
                               "for e in json.load(open(sys.argv[1])):\n"
                               "    if e['ph'] == 'X':\n"
                               "        ns = round(e['ts'] * 1000)\n"
                               "        rows[e['tid']].append((ns, ns + round(e['dur'] * 1000)))\n"
                               "for v in rows.values():\n"
                               "    v.sort()\n"
                               "    assert all(a[1] <= b[0] for a, b in zip(v, v[1:]))\n",
                               path));
}

/* A file size limit truncates writes as a full disk does. */
static void full_disk_gives_an_error_and_leaves_no_file(void **state)
{
    sample *s = (sample *)*state;
    struct rlimit old, small;
    char html[128], trace[128], lines[128];
    ddp_error err[3];
    ddp_status got[3];
    ddp_jsonl *j;
    void (*before)(int);
    int i;

    memset(err, 0, sizeof err);
    path_in(s, "f.html", html);
    path_in(s, "f.json", trace);
    path_in(s, "f.jsonl", lines);
    before = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    got[0] = ddp_report_html(&s->data, html, &err[0]);
    got[1] = ddp_report_trace(&s->data, trace, &err[1]);
    j = ddp_jsonl_open(lines, &err[2]);
    for (i = 0; i < 200; i++) {
        ddp_jsonl_event(j, "step");
        ddp_jsonl_string(j, "strategy", "ssgd");
        ddp_jsonl_end(j);
    }
    got[2] = ddp_jsonl_close(j, &err[2]);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, before);
    for (i = 0; i < 3; i++) {
        assert_int_equal(got[i], DDP_IO);
        assert_int_equal(err[i].code, DDP_IO);
        assert_non_null(strstr(err[i].msg, i == 0 ? html : i == 1 ? trace : lines));
        assert_non_null(strstr(err[i].msg, strerror(EFBIG)));
    }
    assert_int_equal(folder_entries(s->folder, 0), 0);
    assert_int_equal(ddp_report_html(&s->data, "/nowhere/at/all.html", &err[0]), DDP_IO);
    assert_non_null(strstr(err[0].msg, "/nowhere/at/all.html"));
    assert_null(ddp_jsonl_open("/nowhere/at/all.jsonl", &err[0]));
    assert_non_null(strstr(err[0].msg, "/nowhere/at/all.jsonl"));
    assert_null(ddp_jsonl_open("", &err[0]));
    assert_int_equal(err[0].code, DDP_ARG);
}

/* The window is 2..9. 0..4 is clipped to 2..4 (row 0), 3..6 needs row 1, 4..12 is clipped to 4..9 and uses
 * row 0, 6..7 uses row 1. 9..10 and the span of another kind are omitted. */
static void lanes_are_clipped_to_the_window_and_never_overlap(void **state)
{
    const double begin[6] = {4, 9, 0, 6, 3, 5}, end[6] = {12, 10, 4, 7, 6, 8};
    const double want_begin[4] = {2, 3, 4, 6}, want_end[4] = {4, 6, 9, 7};
    const int want_row[4] = {0, 1, 0, 1};
    ddp_report_worker w;
    ddp_span span[6];
    ddp__lane lane;
    ddp__text t;
    int i;

    (void)state;
    memset(&t, 0, sizeof t);
    memset(span, 0, sizeof span);
    for (i = 0; i < 6; i++) {
        span[i].begin_s = begin[i];
        span[i].end_s = end[i];
        span[i].kind = i == 5 ? DDP_SPAN_WAIT : DDP_SPAN_COMM;
    }
    w.spans = span;
    w.count = 6;
    ddp__lane_make(&t, &w, DDP__LANE_COMM, 2, 9, &lane);
    assert_false(t.failed);
    assert_int_equal(lane.count, 4);
    assert_int_equal(lane.rows, 2);
    for (i = 0; i < 4; i++) {
        assert_true(fabs(lane.items[i].span.begin_s - want_begin[i]) <= 0);
        assert_true(fabs(lane.items[i].span.end_s - want_end[i]) <= 0);
        assert_int_equal(lane.items[i].row, want_row[i]);
    }
    DDP_FREE(lane.items);
}

static void ticks_are_nice_numbers(void **state)
{
    const double range[6] = {1, 0.97, 130, 7, 0.0042, 60000}, want[6] = {0.2, 0.2, 50, 2, 0.001, 10000};
    int i, decimals;

    (void)state;
    for (i = 0; i < 6; i++) assert_true(fabs(ddp__tick_step(range[i], 6, &decimals) / want[i] - 1) < 1e-9);
    ddp__tick_step(0.0042, 6, &decimals);
    assert_int_equal(decimals, 3);
    assert_true(ddp__tick_step(0, 6, &decimals) > 0);
}

static void write_reports(sample *s, const char *name, ddp__text *all)
{
    char path[128];
    ddp__text t;
    FILE *f;

    memset(all, 0, sizeof *all);
    path_in(s, name, path);
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0) assert_int_equal(ddp_report_html(&s->data, path, NULL), DDP_OK);
        if (kind == 1) assert_int_equal(ddp_report_trace(&s->data, path, NULL), DDP_OK);
        if (kind == 2) {
            f = fopen(path, "w");
            assert_non_null(f);
            assert_int_equal(ddp_report_table(&s->data, f, NULL), DDP_OK);
            fclose(f);
        }
        t = read_whole(path);
        ddp__text_add(all, t.data, t.size);
        ddp__text_free(&t);
    }
}

static void reports_are_byte_identical_in_every_locale(void **state)
{
    sample *s = (sample *)*state;
    ddp__text comma, point;

    if (!comma_locale()) SKIP("no locale has a decimal comma");
    write_reports(s, "comma", &comma);
    setlocale(LC_ALL, "C");
    write_reports(s, "point", &point);
    assert_int_equal(comma.size, point.size);
    assert_memory_equal(comma.data, point.data, point.size);
    ddp__text_free(&comma);
    ddp__text_free(&point);
}

static void fixed_numbers_ignore_the_locale(void **state)
{
    ddp__text t;

    (void)state;
    if (!comma_locale()) SKIP("no locale has a decimal comma");
    memset(&t, 0, sizeof t);
    ddp__add_fixed(&t, -0.004, 2);
    ddp__text_addf(&t, " ");
    ddp__add_fixed(&t, 12.345678, 3);
    ddp__text_addf(&t, " ");
    ddp__add_page(&t, "@4", -100.5);
    ddp__text_addf(&t, " ");
    ddp__add_page(&t, "@2", 100.0);
    ddp__text_addf(&t, " ");
    ddp__add_fixed(&t, (double)INFINITY, 2);
    setlocale(LC_ALL, "C");
    assert_string_equal(t.data, "0.00 12.346 -100.5 100 -");
    ddp__text_free(&t);
}

/* Writes the sample report for inspection. */
static int show(const char *path)
{
    sample *s = make_sample();
    ddp_error err;
    char name[512];
    int bad;

    snprintf(name, sizeof name, "%s.html", path);
    bad = ddp_report_html(&s->data, name, &err) != DDP_OK;
    snprintf(name, sizeof name, "%s_trace.json", path);
    if (!bad) bad = ddp_report_trace(&s->data, name, &err) != DDP_OK;
    if (!bad) bad = ddp_report_table(&s->data, stdout, &err) != DDP_OK;
    if (bad) fprintf(stderr, "%s\n", err.msg);
    rmdir(s->folder);
    free(s);
    return bad;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(page_is_well_formed_and_self_contained, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(pipeline_step_is_drawn_and_traced, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(table_shows_the_given_numbers, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(notes_are_listed_and_marked_in_charts, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(empty_report_is_valid, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(trace_contains_every_span_once, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(full_disk_gives_an_error_and_leaves_no_file, in_folder, folder_gone),
        cmocka_unit_test(lanes_are_clipped_to_the_window_and_never_overlap),
        cmocka_unit_test(ticks_are_nice_numbers),
        cmocka_unit_test_setup_teardown(reports_are_byte_identical_in_every_locale, in_folder, folder_gone),
        cmocka_unit_test(fixed_numbers_ignore_the_locale),
    };

    if (argc > 1) return show(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
