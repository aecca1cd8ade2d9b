/* A sweep runs scenarios with the n-th allocation failing, the n-th system call failing, or the n-th call
 * interrupted. Included after dreamddp.h, by tests that define DREAMDDP_IMPLEMENTATION or link the
 * library. */
#ifndef TESTS_SWEEP_SWEEP_H
#define TESTS_SWEEP_SWEEP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include <math.h>
#include <time.h>

#include "sweep/calls.h"

#define BLANK(x) memset(&(x), 0, sizeof(x))

static char folder[] = "/tmp/dreamddp-sweep-XXXXXX";

static const char *file_named(const char *name)
{
    static __thread char path[4][96];
    static __thread int at;
    char *p = path[at++ % 4];

    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

/* Adds bytes to the hash of a run's result. All successful runs must have the same hash. */
static uint64_t mixed(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *b = (const unsigned char *)data;

    for (size_t i = 0; i < bytes; i++) h = (h ^ b[i]) * 1099511628211u;
    return h;
}

static uint64_t mixed_file(uint64_t h, const char *path)
{
    const int kind = faults->kind;
    char buf[512];
    FILE *f;
    size_t n;

    faults->kind = NO_CALLS; /* calls of the test itself do not fail */
    f = fopen(path, "rb");
    while (f && (n = fread(buf, 1, sizeof buf, f)) > 0) h = mixed(h, buf, n);
    if (f) fclose(f);
    faults->kind = kind;
    return f ? h : h ^ 1;
}

/* Settings of a single worker. */
static void alone(ddp_config *c)
{
    memset(c, 0, sizeof *c);
    c->world = 1;
    c->no_env = 1;
    c->debug.overwrite = 1;
    c->profile_steps = 2;
    c->debug.trace_spans = 50;
    c->allocator.alloc = tensor_alloc;
    c->allocator.free = tensor_free;
}

/* ---- a sweep ---- */

typedef struct scenario {
    const char *name;
    ddp_status (*run)(uint64_t *h, ddp_error *err);
    int stride[3];      /* only every stride-th allocation, call or interruption is tried; SWEEP=whole
                         * tries 24 times as many */
    int heals;          /* a failed call may be retried: links reconnect */
    int (*after)(void); /* checked after every run. May be NULL. */
} scenario;

static int files_open(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Hash of all files in the folder, independent of their order. Every run must leave the bytes that the
 * first run wrote. */
static uint64_t files_whole(const char *of, const char *where)
{
    DIR *d = opendir(folder);
    uint64_t all = 0;
    struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        if (strstr(e->d_name, ".tmp")) fail_msg("%s: %s leaves %s", of, where, e->d_name);
        if (strchr(e->d_name, '.') > e->d_name && strcmp(e->d_name, "dump.json")) /* contains times */
            all ^= mixed_file(mixed(1, e->d_name, strlen(e->d_name)), file_named(e->d_name));
    }
    closedir(d);
    return all;
}

static void one_sentence(const char *of, const char *where, long n, const ddp_error *err)
{
    if (err->code == DDP_OK || strlen(err->msg) < 10 || strchr(err->msg, '\n'))
        fail_msg("%s, %s %ld fails: %d '%s'", of, where, n, err->code, err->msg);
}

/* Runs the scenario with call n of the kind failing. Returns 1 if the run reached that call. */
static int one(const scenario *s, int kind, long n, int rest, uint64_t *well)
{
    static const char *const what[] = {"", "allocation", "call", "interruption"};
    const int before = files_open();
    const long live = blocks;
    ddp_error err = {DDP_OK, ""};
    uint64_t h = 14695981039346656037u;
    static uint64_t written;
    uint64_t files;
    ddp_status code;
    long hits;

    faults->fail_at = n;
    faults->rest = rest;
    faults->hits = 0;
    taken = 0;
    faults->kind = kind;
    code = s->run(&h, &err);
    faults->kind = NO_CALLS;
    hits = faults->hits;
    if (code) one_sentence(s->name, what[kind], n, &err);
    if (!hits && n && code) fail_msg("%s: no call failed, but the run did: %d '%s'", s->name, code, err.msg);
    if (hits && !code && kind == MEMORY && !s->heals)
        fail_msg("%s: allocation %ld failed without an error", s->name, n);
    if (hits && code && kind == INTERRUPTS)
        fail_msg("%s fails after an interrupted %s: %d '%s'", s->name, faults->last, code, err.msg);
    if (!code && *well && h != *well)
        fail_msg("%s: the result differs after %s %ld (%s) failed", s->name, what[kind], n, faults->last);
    if (!code) *well = h;
    if (blocks != live)
        fail_msg("%s, %s %ld (%s) fails: %ld blocks leak", s->name, what[kind], n, faults->last,
                 blocks - live);
    if (files_open() != before)
        fail_msg("%s, %s %ld (%s) fails: files stay open", s->name, what[kind], n, faults->last);
    files = files_whole(s->name, what[kind]);
    if (!n) written = files;
    if (files != written)
        fail_msg("%s, %s %ld (%s) fails: a file changed", s->name, what[kind], n, faults->last);
    if (s->after && !s->after()) fail_msg("%s, %s %ld (%s) failed", s->name, what[kind], n, faults->last);
    return hits > 0;
}

static int whole(void) { return getenv("SWEEP") && !strcmp(getenv("SWEEP"), "whole"); }

static const scenario *scenarios; /* of the test program */
static size_t scenario_count;

static void sweep_of(int kind)
{
    for (size_t i = 0; i < scenario_count; i++) {
        const scenario *s = &scenarios[i];
        const int stride = whole() ? (s->stride[kind - 1] + 23) / 24 : s->stride[kind - 1];
        const double begin = ddp_now();
        uint64_t well = 0;
        long n, runs = 0;

        if (getenv("SCENARIO") && strcmp(getenv("SCENARIO"), s->name)) continue;
        one(s, kind, 0, 0, &well);
        for (int rest = 0; rest < (kind == INTERRUPTS ? 1 : 2); rest++)
            for (n = 1 + rest * (stride / 2); one(s, kind, n, rest, &well); n += stride) runs++;
        print_message("%s: %ld runs, up to number %ld, %.1f s\n", s->name, runs, n - 1, ddp_now() - begin);
    }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    sweep_of(MEMORY);
}

static void any_call_may_fail(void **state)
{
    (void)state;
    sweep_of(SYSTEM);
}

static void any_call_may_be_interrupted(void **state)
{
    (void)state;
    sweep_of(INTERRUPTS);
}

/* Runs the scenarios. Returns the exit code of the program. */
static int swept(const scenario *list, size_t count)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(any_call_may_be_interrupted),
    };
    char command[64];
    int bad;

    scenarios = list;
    scenario_count = count;
    if (!mkdtemp(folder)) return 1;
    faults = (sweep *)mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if ((void *)faults == MAP_FAILED) return 1;
    bad = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) ? 1 : bad;
}

#endif /* TESTS_SWEEP_SWEEP_H */
