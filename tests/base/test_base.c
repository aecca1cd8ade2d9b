/* The module base: status, memory, clock, threads, random numbers, log, files. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* ---- status ---- */

static void every_status_has_a_text_and_an_exit_code(void **state)
{
    int i, j;

    (void)state;
    for (i = 0; i < (int)DDP_STATUS_COUNT; i++) {
        assert_true(strlen(ddp_status_text((ddp_status)i)) > 1);
        for (j = 0; j < i; j++)
            assert_string_not_equal(ddp_status_text((ddp_status)i), ddp_status_text((ddp_status)j));
    }
    assert_string_equal(ddp_status_text(DDP_STATUS_COUNT), "unknown status");
    assert_int_equal(ddp_status_exit_code(DDP_OK), 0);
    assert_int_equal(ddp_status_exit_code(DDP_FAILED), 1);
    assert_int_equal(ddp_status_exit_code(DDP_ARG), 2);
    assert_int_equal(ddp_status_exit_code(DDP_PEER_LOST), 3);
    assert_int_equal(ddp_status_exit_code(DDP_TIMEOUT), 3);
    assert_int_equal(ddp_status_exit_code(DDP_ABORTED), 130);
}

static void error_message_is_stored_without_overrun(void **state)
{
    struct {
        ddp_error err;
        char after;
    } box;
    char name[2 * DDP_ERROR_TEXT];

    (void)state;
    memset(&box, 0, sizeof box);
    box.after = 'x';
    assert_int_equal(ddp__fail(&box.err, DDP_NET, "cannot reach %s:%d", "host", 7), DDP_NET);
    assert_int_equal(box.err.code, DDP_NET);
    assert_string_equal(box.err.msg, "cannot reach host:7");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    ddp__fail(&box.err, DDP_IO, "%s", name);
    assert_int_equal(strlen(box.err.msg), DDP_ERROR_TEXT - 1);
    assert_int_equal(box.after, 'x');
    assert_int_equal(ddp__fail(NULL, DDP_ARG, "no receiver"), DDP_ARG);
    ddp__fail(&box.err, DDP_NET, "rank 1: %s", "\x1b[2Jgone\r\n\x7f \xc3\xa9"); /* a peer may send such text
                                                                                 * */
    assert_string_equal(box.err.msg, "rank 1: ?[2Jgone??? \xc3\xa9");
}

/* ---- random numbers ---- */

static void splitmix64_matches_its_published_numbers(void **state)
{
    /* the first outputs of the reference implementation for state 1234567 */
    static const uint64_t want[5] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                     UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                     UINT64_C(16408922859458223821)};
    ddp_rng r;
    int i;

    (void)state;
    r.state = 1234567;
    for (i = 0; i < 5; i++) assert_true(ddp_rng_u64(&r) == want[i]);
}

static void random_streams_are_equal_on_every_platform(void **state)
{
    /* computed with integers of unlimited size by another program */
    static const struct {
        uint64_t seed, stream, u64[2];
        int below10[8];
        double uniform, normal;
    } want[4] = {{0,
                  0,
                  {UINT64_C(0xc893448629a0e4c9), UINT64_C(0xa89dbb1cf3759f05)},
                  {7, 5, 0, 7, 9, 6, 7, 5},
                  0x1.b34af4d1a7e92p-2,
                  0x1.08fd5013aef80p-5},
                 {1,
                  0,
                  {UINT64_C(0x692868b9ccae78f8), UINT64_C(0xb4f9a31373d4be86)},
                  {9, 4, 1, 6, 4, 4, 2, 2},
                  0x1.4eae5a385bc93p-1,
                  0x1.010b863f02230p-1},
                 {0,
                  1,
                  {UINT64_C(0xb77edbf94cf4acc3), UINT64_C(0xc7c57d5487075c7e)},
                  {5, 2, 8, 8, 2, 3, 8, 7},
                  0x1.c5a91b52382d0p-2,
                  -0x1.7ee0789e55a98p-1},
                 {42,
                  7,
                  {UINT64_C(0xdf8387fece413829), UINT64_C(0xc231a491a380fdb0)},
                  {1, 0, 2, 8, 8, 7, 2, 4},
                  0x1.928020a3a2f5cp-2,
                  0x1.1f866107a2bc0p-4}};
    int k, i;

    (void)state;
    for (k = 0; k < 4; k++) {
        ddp_rng r = ddp_rng_seed(want[k].seed, want[k].stream);
        for (i = 0; i < 2; i++) assert_true(ddp_rng_u64(&r) == want[k].u64[i]);
        for (i = 0; i < 8; i++) assert_int_equal(ddp_rng_below(&r, 10), want[k].below10[i]);
        assert_true(ddp_rng_uniform(&r) == want[k].uniform);
        assert_true(ddp_rng_normal(&r) == want[k].normal);
    }
}

static void random_numbers_have_their_ranges_and_moments(void **state)
{
    ddp_rng r = ddp_rng_seed(3, 1);
    double sum = 0, squares = 0;
    int i, seen[7], n = 100000;

    (void)state;
    memset(seen, 0, sizeof seen);
    for (i = 0; i < n; i++) {
        double u = ddp_rng_uniform(&r), z = ddp_rng_normal(&r);
        assert_true(u >= 0 && u < 1);
        sum += z;
        squares += z * z;
        seen[ddp_rng_below(&r, 7)]++;
    }
    assert_true(fabs(sum / n) < 0.015 && fabs(squares / n - 1) < 0.02);
    for (i = 0; i < 7; i++) assert_true(abs(seen[i] - n / 7) < 600); /* five standard deviations */
    assert_int_equal(ddp_rng_below(&r, 1), 0);
}

/* ---- clock ---- */

static void on_alarm(int signal_number) { (void)signal_number; }

static void signals_do_not_shorten_a_sleep(void **state)
{
    struct itimerval every;
    struct sigaction act;
    double begin = ddp_now(), last = begin;
    int i;

    (void)state;
    for (i = 0; i < 1000; i++) {
        double now = ddp_now();
        assert_true(now >= last);
        last = now;
    }
    ddp__sleep_until(begin - 1); /* the past: returns */
    memset(&act, 0, sizeof act);
    act.sa_handler = on_alarm;
    sigaction(SIGALRM, &act, NULL);
    memset(&every, 0, sizeof every);
    every.it_value.tv_usec = every.it_interval.tv_usec = 3000;
    setitimer(ITIMER_REAL, &every, NULL);
    begin = ddp_now();
    ddp__sleep_until(begin + 0.05);
    assert_true(ddp_now() >= begin + 0.05);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void timed_wait_ends_at_its_time_out(void **state)
{
    pthread_mutex_t m;
    pthread_cond_t c;
    double until = ddp_now() + 0.03;
    int why = 0;

    (void)state;
    pthread_mutex_init(&m, NULL);
    assert_int_equal(ddp__cond_init(&c), 0);
    pthread_mutex_lock(&m);
    while (why == 0) why = ddp__cond_wait_until(&c, &m, until);
    pthread_mutex_unlock(&m);
    assert_int_equal(why, ETIMEDOUT);
    assert_true(ddp_now() >= until);
    pthread_cond_destroy(&c);
    pthread_mutex_destroy(&m);
}

/* ---- threads ---- */

typedef struct loop_record {
    int visits[1000];
    long block_end[1000]; /* indexed by the first item of each block */
} loop_record;

static void record_block(void *user, long first, long last)
{
    loop_record *r = (loop_record *)user;
    long i;

    for (i = first; i < last; i++) r->visits[i]++;
    r->block_end[first] = last;
}

static void every_item_runs_once_for_any_thread_count(void **state)
{
    static const long items[6] = {0, 1, 7, 64, 999, 1000}, grains[4] = {0, 1, 13, 2000};
    int threads, i, k;
    long item;

    (void)state;
    for (threads = 0; threads <= 5; threads++) {
        ddp__pool *pool = threads ? ddp__pool_open(threads) : NULL;
        assert_int_equal(ddp__pool_threads(pool), threads ? threads : 1);
        for (i = 0; i < 6; i++) {
            for (k = 0; k < 4; k++) {
                loop_record r;
                long grain = grains[k] < 1 ? 1 : grains[k];
                memset(&r, 0, sizeof r);
                ddp__pool_run(pool, items[i], grains[k], record_block, &r);
                for (item = 0; item < 1000; item++) {
                    long end = item + grain < items[i] ? item + grain : items[i];
                    int starts = item < items[i] && item % grain == 0;
                    assert_int_equal(r.visits[item], item < items[i]);
                    assert_int_equal(r.block_end[item], starts ? end : 0);
                }
            }
        }
        ddp__pool_close(pool);
    }
}

static void many_short_jobs_run_without_a_race(void **state)
{
    ddp__pool *pool = ddp__pool_open(4);
    loop_record r;
    int job;

    (void)state;
    assert_non_null(pool);
    memset(&r, 0, sizeof r);
    for (job = 0; job < 3000; job++) ddp__pool_run(pool, 5 + job % 3, 1, record_block, &r);
    ddp__pool_close(pool);
    for (job = 0; job < 5; job++) assert_int_equal(r.visits[job], 3000);
    assert_int_equal(r.visits[6], 1000);
}

#ifdef __GLIBC__
typedef struct deep_job {
    int inside; /* atomic: both threads have started */
} deep_job;

/* Uses 500 KiB of stack, as blocks of matrix products do. */
static void go_deep(void *user, long first, long last)
{
    deep_job *job = (deep_job *)user;
    volatile char block[500 << 10];

    (void)last;
    ddp__atomic_add(&job->inside, 1);
    while (ddp__atomic_load(&job->inside) < 2) ddp__sleep_until(ddp_now() + 0.001);
    for (size_t i = 0; i < sizeof block; i += 1024) block[i] = (char)first;
}

/* As with musl, whose threads have 128 KiB of stack. */
static void pool_threads_have_enough_stack(void **state)
{
    deep_job job = {0};
    pthread_attr_t usual, small;
    ddp__pool *pool;

    (void)state;
    assert_int_equal(pthread_getattr_default_np(&usual), 0);
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, (size_t)128 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    pool = ddp__pool_open(2);
    assert_int_equal(pthread_setattr_default_np(&usual), 0);
    assert_non_null(pool);
    ddp__pool_run(pool, 2, 1, go_deep, &job);
    assert_int_equal(job.inside, 2);
    ddp__pool_close(pool);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&usual);
}
#endif

/* ---- memory ---- */

typedef struct counting {
    size_t live, calls;
    int refuse;
} counting;

static void *count_alloc(void *user, size_t bytes)
{
    counting *c = (counting *)user;
    void *p = NULL;

    c->calls++;
    if (c->refuse || posix_memalign(&p, 64, bytes)) return NULL;
    memset(p, 0xa5, bytes); /* a hook need not zero memory */
    c->live += bytes;
    return p;
}

static void count_free(void *user, void *ptr, size_t bytes)
{
    assert_non_null(ptr);
    ((counting *)user)->live -= bytes;
    free(ptr);
}

static void allocator_hook_gets_every_allocation_and_blocks_are_zeroed(void **state)
{
    static const size_t sizes[4] = {1, 63, 4097, ((size_t)4 << 20) + 5};
    counting c;
    ddp_allocator hook;
    const ddp_allocator *which[2];
    int i, w;

    (void)state;
    memset(&c, 0, sizeof c);
    hook.alloc = count_alloc;
    hook.free = count_free;
    hook.user = &c;
    which[0] = &hook;
    which[1] = NULL;
    for (w = 0; w < 2; w++) {
        for (i = 0; i < 4; i++) {
            unsigned char *p = (unsigned char *)ddp__alloc(which[w], sizes[i]);
            size_t k;
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 64, 0);
            for (k = 0; k < sizes[i]; k++)
                if (p[k]) fail_msg("byte %zu of %zu is not zero", k, sizes[i]);
            assert_int_equal(c.live, w == 0 ? sizes[i] : 0);
            ddp__release(which[w], p, sizes[i]);
        }
    }
    assert_int_equal(c.calls, 4);
    assert_int_equal(c.live, 0);
    assert_null(ddp__alloc(&hook, 0));
    ddp__release(&hook, NULL, 8);
    c.refuse = 1;
    assert_null(ddp__alloc(&hook, 8));
}

static void calloc_rejects_sizes_that_overflow(void **state)
{
    char *text = ddp__strdup("layer 0");
    void *none = ddp__calloc(0, 8);
    volatile size_t huge = SIZE_MAX / 2;

    (void)state;
    assert_string_equal(text, "layer 0");
    assert_non_null(none);
    assert_null(ddp__calloc(huge, 3));
    DDP_FREE(none);
    DDP_FREE(text);
}

/* ---- log ---- */

typedef struct caught {
    int lines;
    ddp_log_level level;
    char text[600];
} caught;

static void catch_line(void *user, ddp_log_level level, const char *line)
{
    caught *c = (caught *)user;

    c->lines++;
    c->level = level;
    snprintf(c->text, sizeof c->text, "%s", line);
}

static void explicit_log_level_overrides_the_environment(void **state)
{
    ddp_logger none, log;
    caught c;

    (void)state;
    memset(&none, 0, sizeof none);
    unsetenv("DREAMDDP_LOG");
    log = ddp__log_resolve(&none, 0);
    assert_true(log.fn == NULL && log.level == DDP_LOG_WARN);

    setenv("DREAMDDP_LOG", "debug", 1);
    log = ddp__log_resolve(&none, 0);
    assert_true(log.fn != NULL && log.level == DDP_LOG_DEBUG);
    log = ddp__log_resolve(&none, 1); /* no_env */
    assert_true(log.fn == NULL && log.level == DDP_LOG_WARN);

    memset(&c, 0, sizeof c);
    none.fn = catch_line;
    none.user = &c;
    none.level = DDP_LOG_ERROR;
    log = ddp__log_resolve(&none, 0);
    assert_true(log.fn == catch_line && log.level == DDP_LOG_ERROR);
    unsetenv("DREAMDDP_LOG");
}

static void only_lines_up_to_the_level_reach_the_logger(void **state)
{
    static const char *const names[] = {"off", "error", "warn", "info", "debug"};
    char name[600];
    int level, line;

    (void)state;
    for (level = DDP_LOG_OFF; level <= DDP_LOG_DEBUG; level++) {
        ddp_logger log;
        caught c;
        memset(&c, 0, sizeof c);
        log.fn = catch_line;
        log.user = &c;
        log.level = ddp__log_level_named(names[level - DDP_LOG_OFF]);
        assert_int_equal(log.level, level);
        for (line = DDP_LOG_ERROR; line <= DDP_LOG_DEBUG; line++)
            ddp__log(&log, (ddp_log_level)line, "line %d", line);
        assert_int_equal(c.lines, level - DDP_LOG_OFF);
        if (c.lines) assert_int_equal(c.level, level);
        memset(name, 'n', sizeof name - 1);
        name[sizeof name - 1] = 0;
        ddp__log(&log, DDP_LOG_ERROR, "%s", name); /* truncated without an overrun */
        assert_true(strlen(c.text) < 512);
    }
    assert_int_equal(ddp__log_level_named("loud"), DDP_LOG_DEFAULT);
    ddp__log(NULL, DDP_LOG_ERROR, "no receiver");
}

/* ---- text and files ---- */

static char dir[] = "/tmp/ddp_base_XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir); /* fails, and the test with it, if a file is left */
}

static const char *in_dir(char *path, const char *name)
{
    snprintf(path, 100, "%s/%s", dir, name);
    return path;
}

static void text_grows_and_is_terminated(void **state)
{
    ddp__text t;
    int i;

    (void)state;
    memset(&t, 0, sizeof t);
    for (i = 0; i < 5000; i++) ddp__text_addf(&t, "%d,", i % 10);
    ddp__text_add(&t, "a\0b", 3);
    assert_int_equal(t.failed, 0);
    assert_int_equal(t.size, 10003);
    assert_memory_equal(t.data + 9996, "8,9,a\0b", 8);
    ddp__text_add(&t, NULL, SIZE_MAX - 5); /* an overflowing size is recorded, not written */
    ddp__text_add(&t, "more", 4);
    assert_int_equal(t.failed, 1);
    assert_int_equal(t.size, 10003);
    ddp__text_free(&t);
    assert_null(t.data);
}

static void written_file_reads_back_equal(void **state)
{
    char path[100];
    ddp_error err;
    ddp__text t;

    (void)state;
    memset(&t, 0, sizeof t);
    in_dir(path, "file");
    assert_int_equal(ddp__file_write(path, "old", 3, &err), DDP_OK);
    assert_int_equal(ddp__file_write(path, "new\0text", 8, &err), DDP_OK);
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_OK);
    assert_int_equal(t.size, 8);
    assert_memory_equal(t.data, "new\0text", 9);
    ddp__text_free(&t);
    assert_int_equal(ddp__file_write(path, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_OK);
    assert_int_equal(t.size, 0);
    ddp__text_free(&t);
    assert_int_equal(remove(path), 0);
}

static void full_disk_keeps_the_old_file_and_leaves_no_temporary(void **state)
{
    static char big[1 << 20];
    struct rlimit old, small;
    char path[100];
    ddp_error err;
    ddp__text t;

    (void)state;
    memset(&t, 0, sizeof t);
    in_dir(path, "report");
    assert_int_equal(ddp__file_write(path, "old", 3, &err), DDP_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 65536;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(ddp__file_write(path, big, sizeof big, &err), DDP_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, strerror(EFBIG)));
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_OK);
    assert_string_equal(t.data, "old");
    ddp__text_free(&t);
    assert_int_equal(remove(path), 0); /* remove_dir finds a temporary file that is left */
}

static void device_is_written_and_never_replaced(void **state)
{
    struct stat st;
    char path[100];
    ddp_error err;

    (void)state;
    if (stat("/dev/full", &st)) SKIP("there is no /dev/full");
    in_dir(path, "device"); /* through links: a failing test that runs as root must not delete a device of the
                             * machine */
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(ddp__file_write(path, "gone", 4, &err), DDP_OK);
    assert_true(!lstat(path, &st) && S_ISLNK(st.st_mode));
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_int_equal(ddp__file_write(path, "text", 4, &err), DDP_IO);
    assert_non_null(strstr(err.msg, strerror(ENOSPC)));
    assert_true(!lstat(path, &st) && S_ISLNK(st.st_mode));
    assert_int_equal(remove(path), 0);
}

static void make_socket(const char *path)
{
    struct sockaddr_un at;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    close(fd);
}

static void unreadable_files_are_named(void **state)
{
    char path[100];
    ddp_error err;
    ddp__text t;

    (void)state;
    memset(&t, 0, sizeof t);
    in_dir(path, "absent");
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_IO);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(ddp__file_read(dir, &t, &err), DDP_IO);
    assert_non_null(strstr(err.msg, "directory"));
    in_dir(path, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* opening it would wait for a writer */
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_IO);
    alarm(0);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "it is a pipe, a file is needed"));
    remove(path);
    in_dir(path, "socket");
    make_socket(path);
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_IO);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "it is a socket, a file is needed"));
    remove(path);
    in_dir(path, "absent/file");
    assert_int_equal(ddp__file_write(path, "x", 1, &err), DDP_IO);
    assert_non_null(strstr(err.msg, path));
    ddp__text_free(&t);
}

static void gzip_file_with_any_name_is_read(void **state)
{
    char path[100], command[300];
    ddp_error err;
    ddp__text t;

    (void)state;
    if (system("gzip --version > /dev/null 2>&1")) SKIP("gzip is not installed");
    memset(&t, 0, sizeof t);
    in_dir(path, "a b; $(touch x) .gz"); /* a file name, never a command */
    snprintf(command, sizeof command, "printf 'hello\\n' | gzip -c > '%s'", path);
    assert_int_equal(system(command), 0);
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_OK);
    assert_string_equal(t.data, "hello\n");
    ddp__text_free(&t);
    assert_int_equal(ddp__file_write(path, "not gzip", 8, &err), DDP_OK);
    assert_int_equal(ddp__file_read(path, &t, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "gzip"));
    ddp__text_free(&t);
    assert_int_equal(remove(path), 0);
}

static void trailing_text_is_not_a_number(void **state)
{
    static const char *const bad_double[] = {"", " 1", "1 ", "1x", "nan", "inf", "-inf", "1e999", "--1"};
    static const char *const bad_long[] = {"", " 1", "1 ", "1.0", "0x", "99999999999999999999"};
    double d = 5;
    long n = 5;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof bad_double / sizeof *bad_double; i++)
        assert_false(ddp__parse_double(bad_double[i], &d));
    for (i = 0; i < sizeof bad_long / sizeof *bad_long; i++) assert_false(ddp__parse_long(bad_long[i], &n));
    assert_false(ddp__parse_double(NULL, &d) || ddp__parse_long(NULL, &n));
    assert_true(d == 5 && n == 5); /* unchanged */
    assert_true(ddp__parse_double("-2.5e3", &d) && d == -2500);
    assert_true(ddp__parse_long("-17", &n) && n == -17);
}

static void hash_equals_fnv_1a_and_chains(void **state)
{
    /* published test vectors of 64-bit FNV-1a */
    (void)state;
    assert_true(ddp__hash(DDP__HASH_START, "", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(ddp__hash(DDP__HASH_START, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(ddp__hash(DDP__HASH_START, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    assert_true(ddp__hash(ddp__hash(DDP__HASH_START, "foo", 3), "bar", 3) == UINT64_C(0x85944171f73967e8));
}

static void digest_equals_murmur3_for_pieces_of_any_length(void **state)
{
    /* MurmurHash3_x64_128 with seed 0, as its reference implementation prints it */
    static const char *const text[3] = {"", "hello", "The quick brown fox jumps over the lazy dog"};
    static const char *const digest[3] = {"00000000000000000000000000000000",
                                          "cbd8a7b341bd9b025b1e906a48ae1d19",
                                          "e34bbc7bbc071b6c7a433ca9c49a9347"};
    unsigned char data[100];
    char out[DDP__DIGEST_TEXT];

    (void)state;
    for (int i = 0; i < 3; i++) {
        ddp__digest_text(ddp__digest_of(text[i], strlen(text[i])), out);
        assert_string_equal(out, digest[i]);
    }
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    for (size_t n = 0; n <= sizeof data; n++)
        for (size_t piece = 1; piece <= 40; piece += 3) {
            ddp__digester d;
            memset(&d, 0, sizeof d);
            for (size_t at = 0; at < n; at += piece)
                ddp__digest_add(&d, data + at, n - at < piece ? n - at : piece);
            assert_true(ddp__digest_equal(ddp__digest_end(&d), ddp__digest_of(data, n)));
        }
    for (int bit = 0; bit < (int)(8 * sizeof data); bit++) {
        const ddp__digest before = ddp__digest_of(data, sizeof data);
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1 << bit % 8);
        assert_false(ddp__digest_equal(before, ddp__digest_of(data, sizeof data)));
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text_and_an_exit_code),
        cmocka_unit_test(error_message_is_stored_without_overrun),
        cmocka_unit_test(splitmix64_matches_its_published_numbers),
        cmocka_unit_test(random_streams_are_equal_on_every_platform),
        cmocka_unit_test(random_numbers_have_their_ranges_and_moments),
        cmocka_unit_test(signals_do_not_shorten_a_sleep),
        cmocka_unit_test(timed_wait_ends_at_its_time_out),
        cmocka_unit_test(every_item_runs_once_for_any_thread_count),
        cmocka_unit_test(many_short_jobs_run_without_a_race),
#ifdef __GLIBC__
        cmocka_unit_test(pool_threads_have_enough_stack),
#endif
        cmocka_unit_test(allocator_hook_gets_every_allocation_and_blocks_are_zeroed),
        cmocka_unit_test(calloc_rejects_sizes_that_overflow),
        cmocka_unit_test(explicit_log_level_overrides_the_environment),
        cmocka_unit_test(only_lines_up_to_the_level_reach_the_logger),
        cmocka_unit_test(text_grows_and_is_terminated),
        cmocka_unit_test(written_file_reads_back_equal),
        cmocka_unit_test(full_disk_keeps_the_old_file_and_leaves_no_temporary),
        cmocka_unit_test(device_is_written_and_never_replaced),
        cmocka_unit_test(unreadable_files_are_named),
        cmocka_unit_test(gzip_file_with_any_name_is_read),
        cmocka_unit_test(trailing_text_is_not_a_number),
        cmocka_unit_test(digest_equals_murmur3_for_pieces_of_any_length),
        cmocka_unit_test(hash_equals_fnv_1a_and_chains)};

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
