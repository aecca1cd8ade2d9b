/* [asan] Post-mortem dumps: the dump of a rank, and the merged dumps of a run. */
#include "dreamddp.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/core.h"
#include "io/json.h"
#include "../../examples/netcheck/merge.h"

static char folder[64], many_path[100], stuck_path[100];

static const char *in_folder(const char *name)
{
    static char path[200];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static char *contents(const char *name)
{
    ddp__text t;
    ddp_error err;

    memset(&t, 0, sizeof t);
    if (ddp__file_read(in_folder(name), &t, &err)) fail_msg("%s", err.msg);
    return t.data;
}

static const ddp__json *need(const ddp__json *v, const char *key)
{
    const ddp__json *m = ddp__json_get(v, key);

    if (!m) fail_msg("no %s", key);
    return m;
}

static char *merged(const char *const *names, int count, ddp_status expected)
{
    char paths[4][200];
    const char *list[4];
    char *text = NULL;
    size_t n = 0;
    ddp_error err;
    FILE *out = open_memstream(&text, &n);

    memset(&err, 0, sizeof err);
    for (int i = 0; i < count; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
        list[i] = paths[i];
    }
    if (dumps_merge(list, count, out, &err) != expected) fail_msg("status %d: %s", (int)err.code, err.msg);
    fclose(out);
    if (expected == DDP_OK) return text;
    free(text);
    return strdup(err.msg);
}

static void says(char *text, const char *what)
{
    if (!strstr(text, what)) fail_msg("\"%s\" is not in:\n%s", what, text);
}

static int launch(int (*fn)(ddp_ctx *, void *), const char *dump_path, ddp_error *err)
{
    ddp_config cfg;

    memset(&cfg, 0, sizeof cfg);
    cfg.world = 3;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    cfg.strategy = DDP_SSGD;
    cfg.run_id = "dump test";
    cfg.debug.dump_path = dump_path;
    cfg.timeout.op_s = 2.5; /* a busy machine may delay a rank for a second */
    cfg.timeout.peer_s = 30;
    return ddp_launch(&cfg, fn, NULL, err);
}

/* ---- one rank ---- */

static int many(ddp_ctx *d, void *user)
{
    float x[30];
    int bad = 0;

    (void)user;
    memset(x, 0, sizeof x);
    for (int i = 0; !bad && i < 2100; i++) bad = ddp_all_reduce(d, x, 10, 1);
    if (!bad && ddp_rank(d) == 0) bad = ddp_send(d, x, 7, 1);
    if (!bad && ddp_rank(d) == 1) bad = ddp_recv(d, x, 7, 0);
    if (!bad) bad = ddp_barrier(d);
    if (!bad) bad = (int)ddp_dump(d, many_path, NULL);
    return bad ? bad : ddp_barrier(d);
}

static void newest_two_thousand_operations_are_kept_in_order(void **state)
{
    static const char *const all[] = {"many.0.jsonl", "many.1.jsonl", "many.2.jsonl"};
    ddp_error err;
    char *text, *line, *next;
    int lines = 0;
    double last = 0;

    (void)state;
    if (launch(many, NULL, &err)) fail_msg("%s", err.msg);
    text = contents("many.0.jsonl");
    for (line = text; *line; line = next + 1, lines++) {
        ddp__json *v;
        next = strchr(line, '\n');
        assert_non_null(next); /* only whole lines are written */
        v = ddp__json_parse("dump", line, (size_t)(next - line), &err);
        if (!v) fail_msg("%s", err.msg);
        if (lines == 0) {
            assert_string_equal(need(v, "event")->string, "dump");
            assert_string_equal(need(v, "version")->string, DDP_VERSION_STRING);
            assert_string_equal(need(v, "run_id")->string, "dump test");
            assert_int_equal((int)need(v, "world")->number, 3);
            assert_int_equal((int)need(v, "pid")->number, (int)getpid());
            assert_true(need(v, "time")->number > 1.6e9);
            assert_true(need(v, "host")->string[0] != 0);
            assert_int_equal((int)need(v, "operations")->number, 2000);
            assert_int_equal((int)need(v, "dropped")->number, 102); /* of 2,102 */
            assert_int_equal((int)need(v, "peers")->count, 2);
        } else {
            assert_true(need(v, "submitted")->number >= last);
            assert_true(need(v, "end")->number >= need(v, "begin")->number);
            assert_string_equal(need(v, "state")->string, "done");
            last = need(v, "submitted")->number;
        }
        if (lines == 1) {
            assert_string_equal(need(v, "verb")->string, "all-reduce");
            assert_int_equal((int)need(v, "sequence")->number, 102);
            assert_int_equal((int)need(v, "bytes")->number, 40);
            assert_string_equal(need(v, "algorithm")->string, "full");
        }
        if (lines == 1999) {
            assert_string_equal(need(v, "verb")->string, "send");
            assert_int_equal((int)need(v, "peer")->number, 1);
            assert_int_equal((int)need(v, "sent")->number, 28);
        }
        if (lines == 2000) assert_string_equal(need(v, "layer")->string, "barrier");
        ddp__json_free(v);
    }
    assert_int_equal(lines, 2001);
    DDP_FREE(text);
    text = merged(all, 3, DDP_OK);
    says(text, "no operation is unfinished");
    free(text);
}

/* ---- a stuck run ---- */

static void *dump_soon(void *arg)
{
    struct timespec pause = {1, 500000000};

    nanosleep(&pause, NULL);
    assert_int_equal(ddp_dump((ddp_ctx *)arg, stuck_path, NULL), DDP_OK);
    return NULL;
}

/* Rank 2 closes after one step. The other ranks wait in the second all-reduce, and write a dump. */
static int stuck(ddp_ctx *d, void *user)
{
    float x[300];
    pthread_t thread;
    int bad;

    (void)user;
    memset(x, 0, sizeof x);
    bad = ddp_all_reduce(d, x, 300, 1);
    pthread_create(&thread, NULL, dump_soon, d);
    if (ddp_rank(d) == 2) {
        struct timespec pause = {3, 100000000};
        nanosleep(&pause, NULL);
    }
    if (!bad) bad = ddp_barrier(d);
    pthread_join(thread, NULL);
    return bad;
}

static void dumps_of_a_stuck_run_name_the_missing_rank(void **state)
{
    static const char *const all[] = {"stuck.1.jsonl", "stuck.2.jsonl", "stuck.0.jsonl"};
    ddp_error err;
    char *text;

    (void)state;
    assert_int_equal(launch(stuck, in_folder("failed.%r.jsonl"), &err), DDP_TIMEOUT);
    says(err.msg, "a barrier");
    says(err.msg, "; the last operations are in ");
    says(err.msg, "/failed.");
    text = contents("stuck.0.jsonl");
    says(text, "\"error\":null");
    says(text, "\"state\":\"active\",\"missing\":[2]}");
    DDP_FREE(text);
    text = contents("failed.0.jsonl");
    says(text, "\"error\":{\"code\":8,\"text\":\"");
    DDP_FREE(text);
    text = merged(all, 3, DDP_OK);
    says(text, "rank 2 never submitted a barrier (step 0), operation 1; ranks 0, 1 wait in it\n");
    says(text, "the last operation of rank 2 is number 0, all-reduce of a plain buffer (step 0), "
               "finished\n");
    free(text);
    /* rank 1's dump only: uses the last messages that it received from the other ranks */
    text = merged(all, 1, DDP_OK);
    says(text, "ranks 0, 2 of 3 left no dump");
    says(text, "rank 2 never submitted a barrier");
    says(text, "rank 2 left no dump; its last message to the others stated that it had begun 1 op");
    free(text);
}

/* ---- dumps written by the test ---- */

static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define HEAD(rank, error) \
    "{\"event\":\"dump\",\"rank\":" rank ",\"world\":2,\"run_id\":\"r\",\"error\":" error "}\n"
#define REDUCE(sequence, layer, bytes, state)                                                     \
    "{\"event\":\"operation\",\"sequence\":" sequence ",\"verb\":\"all-reduce\",\"layer\":" layer \
    ",\"step\":3,\"bytes\":" bytes ",\"left\":8,\"state\":\"" state "\"}\n"

static void merge_reports_differing_operations_stalls_and_pairs(void **state)
{
    static const char *const both[] = {"a", "b"};
    char *text;

    (void)state;
    put("a", HEAD("0", "{\"text\":\"it broke\"}") REDUCE("4", "\"x\"", "16", "done")
                 REDUCE("5", "\"y\"", "16", "active"));
    put("b", HEAD("1", "{\"text\":\"it broke (reported by rank 0)\"}") REDUCE("4", "\"x\"", "16", "done")
                 REDUCE("5", "\"z\"", "24", "active"));
    text = merged(both, 2, DDP_OK);
    says(text, "rank 0 failed: it broke\n");
    assert_null(strstr(text, "rank 1 failed"));
    says(text, "the ranks differ at operation 5: rank 0 submitted all-reduce of layer y (step 3, 16 "
               "bytes), rank 1 all-reduce of layer z (step 3, 24 bytes)\n");
    free(text);

    put("b", HEAD("1", "null") REDUCE("4", "\"x\"", "16", "done") REDUCE("5", "\"y\"", "16", "queued"));
    text = merged(both, 2, DDP_OK);
    says(text, "ranks 0, 1 did not finish all-reduce of layer y (step 3), operation 5");
    says(text, "rank 1 still had to send or receive 8 bytes\n");
    free(text);

    put("a", HEAD("0", "null") "{\"event\":\"operation\",\"sequence\":2,\"verb\":\"receive\","
                               "\"peer\":1,\"layer\":null,\"bytes\":8,\"state\":\"active\"}\n");
    put("b", HEAD("1", "null") "{\"event\":\"operation\",\"sequence\":1,\"verb\":\"send\","
                               "\"peer\":0,\"layer\":null,\"bytes\":8,\"state\":\"done\"}\n");
    text = merged(both, 2, DDP_OK);
    says(text, "rank 0 waits in a receive from rank 1 (number 2 of that pair), which rank 1 never "
               "submitted\n");
    free(text);
}

static void invalid_dumps_fail_with_an_error(void **state)
{
    static const char *const both[] = {"a", "b"}, *const twice[] = {"a", "a"}, *const gone[] = {"nowhere"};
    char *text;

    (void)state;
    put("a", HEAD("0", "null"));
    put("b", "{\"event\":\"dump\",\"rank\":1,\"world\":2,\"run_id\":\"other\"}\n");
    text = merged(both, 2, DDP_MISMATCH);
    says(text, "of run 'other'");
    free(text);
    text = merged(twice, 2, DDP_MISMATCH);
    says(text, "second dump of rank 0");
    free(text);
    put("b", "{\"event\":\"dump\",\"rank\":9,\"world\":2,\"run_id\":\"r\"}\n");
    free(merged(both, 2, DDP_FORMAT));
    put("b", "{\"event\":\"step\"}\n");
    free(merged(both, 2, DDP_FORMAT));
    put("b", HEAD("1", "null") "{\"event\":\"oper");
    text = merged(both, 2, DDP_FORMAT);
    says(text, "b:2");
    free(text);
    put("b", "");
    free(merged(both, 2, DDP_FORMAT));
    text = merged(gone, 1, DDP_IO);
    says(text, "nowhere");
    free(text);
}

static void unwritable_file_fails_only_the_dump_call(void **state)
{
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    d = ddp_open(&cfg, NULL);
    assert_int_equal(ddp_dump(d, in_folder("no/such/file"), &err), DDP_IO);
    assert_int_equal(ddp_dump(d, "", &err), DDP_ARG);
    assert_int_equal(ddp_dump(NULL, "x", &err), DDP_ARG);
    assert_int_equal(ddp_last_error(d)->code, DDP_OK);
    assert_int_equal(ddp_dump(d, in_folder("alone"), &err), DDP_OK);
    ddp_close(d);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_dump.XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(many_path, sizeof many_path, "%s/many.%%r.jsonl", folder);
    snprintf(stuck_path, sizeof stuck_path, "%s/stuck.%%r.jsonl", folder);
    return 0;
}

static int remove_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newest_two_thousand_operations_are_kept_in_order),
        cmocka_unit_test(dumps_of_a_stuck_run_name_the_missing_rank),
        cmocka_unit_test(merge_reports_differing_operations_stalls_and_pairs),
        cmocka_unit_test(invalid_dumps_fail_with_an_error),
        cmocka_unit_test(unwritable_file_fails_only_the_dump_call),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
