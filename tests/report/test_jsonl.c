/* [pure] JSON lines and the progress line, which programs write during a run. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

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
#include "report/report_sample.h"
#include "../../examples/common/events.h"
#include "../../examples/common/progress.h"

static void json_lines_are_complete_and_numbers_round_trip(void **state)
{
    sample *s = (sample *)*state;
    const double odd[4] = {0.1, 1.0 / 3, (double)NAN, -1e300};
    char path[128], *line, *next;
    ddp_jsonl *j;
    ddp__text t;
    int lines = 0, notes = 0, i;
    ddp_report_note note[2];
    ddp_error err;

    path_in(s, "r.jsonl", path);
    j = ddp_jsonl_open(path, &err);
    assert_non_null(j);
    event_run(j, &s->data);
    event_profile(j, &s->data);
    for (i = 0; i < RUNS; i++) event_plan(j, &s->data, &s->run[i]);
    event_step(j, "ssgd", 1, 2.5, 10, 1, 4096, (double)NAN);
    memset(note, 0, sizeof note);
    note[0].kind = "lost";
    note[0].text = "rank 2 was lost, 3 workers";
    note[0].step = 12;
    note[0].time_s = 1.5;
    note[1].kind = "replan";
    note[1].text = "planned again";
    note[1].step = 13;
    s->run[4].notes = note;
    s->run[4].note_count = 2;
    event_notes(j, &s->run[3]);
    event_notes(j, &s->run[4]);
    s->run[4].slow_ratio = 1.5;
    s->run[4].slowest_rank = 3;
    s->run[4].replans = 2;
    event_result(j, &s->data, &s->run[4]);
    memset(&err, 0, sizeof err);
    err.code = DDP_PEER_LOST;
    snprintf(err.msg, sizeof err.msg, "rank 3 \"went\" away\n"); /* characters that JSON must escape */
    event_error(j, &err);
    ddp_jsonl_event(j, "odd");
    ddp_jsonl_array(j, "values");
    for (i = 0; i < 4; i++) ddp_jsonl_number(j, NULL, odd[i]);
    ddp_jsonl_up(j);
    ddp_jsonl_integer(j, "large", INT64_MIN);
    ddp_jsonl_string(j, "none", NULL);
    ddp_jsonl_object(j, "open"); /* ddp_jsonl_end closes it */
    ddp_jsonl_end(j);
    assert_int_equal(access(path, F_OK), -1); /* the file does not exist before close */
    assert_int_equal(ddp_jsonl_close(j, &err), DDP_OK);
    assert_int_equal(folder_entries(s->folder, 0), 1);

    t = read_whole(path);
    assert_int_equal(t.data[t.size - 1], '\n');
    for (line = t.data; *line; line = next) {
        ddp__json *v;
        const ddp__json *event;

        next = strchr(line, '\n');
        assert_non_null(next);
        *next++ = 0;
        v = ddp__json_parse("line", line, strlen(line), &err);
        assert_non_null(v);
        event = ddp__json_get(v, "event");
        assert_non_null(event);
        if (!strcmp(event->string, "odd")) {
            const ddp__json *x = ddp__json_get(v, "values")->first;

            assert_memory_equal(&x->number, &odd[0], sizeof odd[0]);
            assert_memory_equal(&x->next->number, &odd[1], sizeof odd[1]);
            assert_int_equal(x->next->next->kind, DDP__JSON_NULL);
            assert_memory_equal(&x->next->next->next->number, &odd[3], sizeof odd[3]);
            assert_non_null(strstr(line, "\"large\":-9223372036854775808,\"none\":null,\"open\":{}}"));
        }
        if (!strcmp(event->string, "note")) {
            if (notes++)
                assert_non_null(strstr(line, "\"step\":13"));
            else
                assert_string_equal(line, "{\"event\":\"note\",\"strategy\":\"dreamddp\",\"step\":12,"
                                          "\"time_s\":1.5,\"kind\":\"lost\",\"text\":"
                                          "\"rank 2 was lost, 3 workers\"}");
        }
        if (!strcmp(event->string, "result"))
            assert_non_null(strstr(line, "\"slowest_rank\":3,\"slow_ratio\":1.5,\"replans\":2}"));
        if (!strcmp(event->string, "plan")) {
            const ddp__json *set;
            long layers = 0;

            assert_int_equal(ddp__json_get(v, "sets")->count, PERIOD);
            for (set = ddp__json_get(v, "sets")->first; set; set = set->next) layers += set->count;
            assert_int_equal(layers, LAYERS);
        }
        if (!strcmp(event->string, "error")) {
            assert_string_equal(ddp__json_get(v, "message")->string, "rank 3 \"went\" away\n");
            assert_int_equal((int)ddp__json_get(v, "exit_code")->number, 3);
        }
        if (!strcmp(event->string, "result"))
            assert_true((int64_t)ddp__json_get(v, "bytes_sent")->number == s->run[4].bytes_sent);
        ddp__json_free(v);
        lines++;
    }
    assert_int_equal(lines, 10); /* run, profile, two plans, step, two notes, result, error, odd */
    ddp__text_free(&t);
}

static void stream_gets_one_object_and_null_is_ignored(void **state)
{
    sample *s = (sample *)*state;
    char path[128];
    ddp_jsonl *j;
    ddp__text t;
    FILE *f;

    path_in(s, "out.txt", path);
    f = fopen(path, "w");
    assert_non_null(f);
    j = ddp_jsonl_stream(f, NULL);
    ddp_jsonl_event(j, NULL);
    ddp_jsonl_number(j, "final_loss", 0.25);
    ddp_jsonl_integer(j, "steps", 30);
    ddp_jsonl_end(j);
    assert_int_equal(ddp_jsonl_close(j, NULL), DDP_OK);
    fclose(f);
    t = read_whole(path);
    assert_string_equal(t.data, "{\"final_loss\":0.25,\"steps\":30}\n");
    ddp__text_free(&t);
    event_run(NULL, &s->data);
    ddp_jsonl_integers(NULL, "x", NULL, 0);
    assert_int_equal(ddp_jsonl_close(NULL, NULL), DDP_OK);
    ddp_jsonl_abandon(NULL);
}

/* Renaming over a pipe or a device would replace it, so anything except a regular file is opened and
 * written. */
static void pipes_and_devices_are_written_in_place(void **state)
{
    sample *s = (sample *)*state;
    char path[128], got[64];
    struct stat st;
    ddp_jsonl *j;
    ssize_t n;
    int fd;

    path_in(s, "pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    j = ddp_jsonl_open(path, NULL);
    assert_non_null(j);
    ddp_jsonl_event(j, "run");
    ddp_jsonl_end(j);
    n = read(fd, got, sizeof got - 1);
    assert_true(n > 0);
    got[n] = 0;
    assert_string_equal(got, "{\"event\":\"run\"}\n");
    assert_int_equal(ddp_jsonl_close(j, NULL), DDP_OK);
    close(fd);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(folder_entries(s->folder, 0), 1);
}

static void abandoned_lines_leave_the_old_file(void **state)
{
    sample *s = (sample *)*state;
    char path[128];
    ddp_jsonl *j;
    ddp__text t;

    path_in(s, "a.jsonl", path);
    assert_int_equal(ddp__file_write(path, "old\n", 4, NULL), DDP_OK);
    j = ddp_jsonl_open(path, NULL);
    event_run(j, &s->data);
    ddp_jsonl_abandon(j);
    t = read_whole(path);
    assert_string_equal(t.data, "old\n");
    ddp__text_free(&t);
    assert_int_equal(folder_entries(s->folder, 0), 1);
}

static void progress_without_a_terminal_is_plain_lines(void **state)
{
    sample *s = (sample *)*state;
    progress p;
    char path[128];
    ddp__text t;
    FILE *f;
    int i;

    path_in(s, "p.txt", path);
    f = fopen(path, "w");
    assert_non_null(f);
    progress_start(&p, f, "dreamddp", 100);
    assert_int_equal(p.terminal, 0);
    p.every_s = 1e9;
    for (i = 1; i <= 100; i++) progress_step(&p, i, 3 - 0.01 * i, 512);
    progress_end(&p);
    p.every_s = 0;
    progress_step(&p, 7, (double)NAN, 0);
    fclose(f);
    t = read_whole(path);
    assert_int_equal(count_of(t.data, "\n"), 2);
    assert_null(strchr(t.data, '\r'));
    assert_null(strchr(t.data, '\033'));
    assert_non_null(strstr(t.data, "dreamddp   step 100/100  loss 2"));
    assert_non_null(strstr(t.data, " tok/s\n"));
    assert_non_null(strstr(t.data, "dreamddp   step   7/100  "));
    assert_non_null(strstr(t.data, "  ETA "));
    ddp__text_free(&t);
    progress_start(&p, NULL, NULL, 3);
    progress_step(&p, 1, 1, 1);
    progress_end(&p);
}

static void progress_on_a_terminal_redraws_one_line(void **state)
{
    sample *s = (sample *)*state;
    progress p;
    char path[128];
    const char *second;
    ddp__text t;
    FILE *f;

    path_in(s, "p.txt", path);
    f = fopen(path, "w");
    assert_non_null(f);
    progress_start(&p, f, "ssgd", 2);
    p.terminal = 1; /* treats f as a terminal. NO_COLOR keeps colour off. */
    p.every_s = 0;
    progress_step(&p, 1, 3, 0);
    progress_step(&p, 2, (double)NAN, 0);
    progress_end(&p);
    fclose(f);
    t = read_whole(path);
    second = strchr(t.data + 1, '\r');
    assert_int_equal(t.data[0], '\r');
    assert_non_null(second);
    assert_int_equal(count_of(t.data, "\n"), 1);
    assert_null(strchr(t.data, '\033'));
    assert_true(strlen(second) - 1 >= (size_t)(second - t.data)); /* blanks overwrite the longer line */
    ddp__text_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(json_lines_are_complete_and_numbers_round_trip, in_folder,
                                        folder_gone),
        cmocka_unit_test_setup_teardown(stream_gets_one_object_and_null_is_ignored, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(pipes_and_devices_are_written_in_place, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(abandoned_lines_leave_the_old_file, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(progress_without_a_terminal_is_plain_lines, in_folder, folder_gone),
        cmocka_unit_test_setup_teardown(progress_on_a_terminal_redraws_one_line, in_folder, folder_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
