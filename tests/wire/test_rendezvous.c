/* [long] Rendezvous that succeed, rendezvous that must fail, and their errors. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "wire/meet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "wire/log_lab.h"
#include "wire/meet_check.h"

static void every_pair_is_connected_to_the_right_rank(void **state)
{
    meet_rank m[MEET_MAX];
    char addr[DDP__ADDR_TEXT];
    int world;
    (void)state;
    for (world = 1; world <= MEET_MAX; world++) {
        meet_prepare(m, world, meet_listen(addr), addr);
        meet_start(m, world);
        meet_join(m, world);
        assert_says(&m[0], DDP_OK, "");
        assert_pairs_are_right(m, world);
        assert_all_met(m, world);
    }
}

static void ranks_may_connect_late_or_before_rank_0(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT], spec[DDP__ADDR_TEXT + 8];
    (void)state;
    meet_unused(addr); /* a free port, on which rank 0 listens itself */
    snprintf(spec, sizeof spec, "tcp://%s", addr);
    meet_prepare(m, 3, -1, spec);
    m[0].pause = 0.3;
    m[2].pause = 0.8;
    meet_start(m, 3);
    meet_join(m, 3);
    assert_all_met(m, 3);
}

/* ---- unknown callers ---- */

static void unknown_callers_are_refused_and_the_run_continues(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT], sink[128];
    ddp__addr at;
    int fd[20], count, i, listener = meet_listen(addr);
    double end;
    (void)state;

    meet_prepare(m, 3, listener, addr);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    /* 8 stay: one speaks HTTP, two send an incomplete hello, five are silent */
    for (i = 0; i < 20; i++) {
        fd[i] = ddp__tcp_dial(&at, ddp_now() + 60);
        assert_true(fd[i] >= 0);
        if (i == 0)
            assert_int_equal(
                ddp__stream_send_all(NULL, fd[i], "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, ddp_now() + 1), 0);
        if (i == 1)
            assert_int_equal(ddp__stream_send_all(NULL, fd[i], "dream", 5, ddp_now() + 1),
                             0); /* and nothing more */
        if (i == 2) assert_int_equal(ddp__stream_send_all(NULL, fd[i], "x", 1, ddp_now() + 1), 0);
        if (i >= 8) { /* closed at once */
            close(fd[i]);
            fd[i] = -1;
        }
    }
    meet_start(m, 3);
    end = ddp_now() + 60;
    assert_int_equal(ddp__stream_recv_all(NULL, fd[0], sink, sizeof sink, NULL, end), -1);
    assert_int_not_equal(errno, ETIMEDOUT);
    assert_int_equal(ddp__stream_recv_all(NULL, fd[2], sink, sizeof sink, NULL, end), -1);
    assert_int_not_equal(errno, ETIMEDOUT);
    meet_join(m, 3);
    for (i = 0; i < 20; i++)
        if (fd[i] >= 0) close(fd[i]);
    assert_all_met(m, 3);
}

/* Two hundred silent callers, fewer than there are slots. */
static void silent_callers_do_not_delay_a_rendezvous(void **state)
{
    enum { SILENT = 200 };
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT];
    ddp__addr at;
    int fd[SILENT], count, i, listener = meet_listen(addr);
    (void)state;

    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    for (i = 0; i < SILENT; i++) fd[i] = ddp__tcp_dial_begin(&at);
    meet_prepare(m, 2, listener, addr);
    meet_start(m, 2);
    meet_join(m, 2);
    assert_all_met(m, 2); /* within its time-out: waiting 5 s for each of them would take minutes */
    for (i = 0; i < SILENT; i++)
        if (fd[i] >= 0) close(fd[i]);
}

/* ---- more unknown callers than slots ---- */

enum { DESCRIPTORS = 128, STRANGERS = 200 }; /* half of the descriptors are slots: STRANGERS fill them */

/* Connects from `host` and sends `words`. Returns -1 if no process listens any more. */
static int stranger(const char *host, const ddp__addr *to, const char *words)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ddp__addr own;
    int count;

    assert_int_equal(ddp__addr_parse(host, &own, 1, &count, NULL), DDP_OK);
    own.in.sin_port = 0;
    assert_int_equal(bind(fd, (struct sockaddr *)&own.sa, own.size), 0);
    if (connect(fd, (const struct sockaddr *)&to->sa, to->size)) {
        close(fd);
        return -1;
    }
    if (words[0]) (void)send(fd, words, strlen(words), MSG_NOSIGNAL);
    return fd;
}

typedef struct crowd {
    const char *host, *words, *late; /* late: host of the callers that connect every 50 ms until the ranks are
                                      * connected */
    double pause;                    /* delay of rank 1 */
    double least, most;              /* seconds after which a caller of `host` must be dropped */
} crowd;

/* Returns 1 if a log line reports that a caller of the crowd was dropped in time. */
static int drops_in_time(const char *log, const crowd *c)
{
    char begin[40];

    snprintf(begin, sizeof begin, "dropped %s:", c->host);
    for (const char *line = strstr(log, begin); line; line = strstr(line + 1, begin)) {
        const char *why = strstr(line, "no hello within ");
        const double s = why ? strtod(why + strlen("no hello within "), NULL) : -1;
        if (s >= c->least && s < c->most) return 1;
    }
    return 0;
}

/* Two ranks connect in a process with few descriptors, among the crowd. log: of rank 0, shared memory. */
static void meet_in_a_crowd(const crowd *c, char *log)
{
    int fd[2 * STRANGERS], count = 0, code = -1;
    char addr[DDP__ADDR_TEXT];
    const int listener = meet_listen(addr);
    ddp__addr at;
    pid_t pid;

    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    for (count = 0; count < STRANGERS; count++) {
        fd[count] = stranger(c->host, &at, c->words);
        assert_true(fd[count] >= 0);
    }
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit l = {DESCRIPTORS, DESCRIPTORS};
        meet_rank m[2];
        while (count-- > 0) close(fd[count]);
        setrlimit(RLIMIT_NOFILE, &l);
        meet_prepare(m, 2, listener, addr);
        listen_in(&m[0], log);
        m[1].pause = c->pause;
        meet_start(m, 2);
        meet_join(m, 2);
        for (int r = 0; r < 2; r++)
            if (m[r].status) fprintf(stderr, "rank %d: %s\n", r, m[r].err.msg);
        _exit(m[0].status || m[1].status);
    }
    close(listener);
    while (waitpid(pid, &code, WNOHANG) == 0) {
        const int late = c->late && count < 2 * STRANGERS ? stranger(c->late, &at, "") : -1;
        if (late >= 0) fd[count++] = late;
        ddp__sleep_until(ddp_now() + 0.05);
    }
    while (count-- > 0) close(fd[count]);
    assert_int_equal(code, 0);
}

/* All slots are taken. A process that gets no processor time for a second drops callers later: then the case
 * is repeated. */
static void a_full_acceptor_drops(const crowd *c)
{
    char *log = (char *)mmap(NULL, 8000, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int found = 0;

    assert_true(log != (char *)MAP_FAILED);
    for (int i = 0; i < 5 && !found; i++) {
        meet_in_a_crowd(c, log);
        found = drops_in_time(log, c);
    }
    if (!found)
        fail_msg("no caller of %s was dropped after %g to %g s:\n%s", c->host, c->least, c->most, log);
    munmap(log, 8000);
}

/* A silent caller may stay for 2 s while there are free slots. */
static void full_admission_drops_the_oldest_silent_caller_at_once(void **state)
{
    const crowd silent = {"127.0.0.2", "", NULL, 0, 0, 1.9};

    (void)state;
    a_full_acceptor_drops(&silent);
}

/* A caller that has started its hello may stay for 5 s while there are free slots. */
static void full_admission_drops_a_slow_caller_after_one_second(void **state)
{
    const crowd slow = {"127.0.0.2", "dream", "127.0.0.2", 2.5, 1, 2};

    (void)state;
    a_full_acceptor_drops(&slow);
}

static void full_admission_drops_a_caller_of_the_busiest_address_at_once(void **state)
{
    const crowd greedy = {"127.0.0.2", "dream", "127.0.0.3", 0, 0, 0.95};

    (void)state;
    a_full_acceptor_drops(&greedy);
}

/* Sends one frame to rank 0 as rank `rank`. Returns the refusal. */
static int flipped = -1; /* a bit of the next hello to flip */

static ddp__hello answer_to_hello(const char *addr, uint32_t version, uint64_t run, uint32_t rank,
                                  uint32_t world)
{
    ddp__hello self, reply;
    ddp__addr at;
    unsigned char b[DDP__HELLO_BYTES];
    int fd, count;

    memset(&self, 0, sizeof self);
    memset(&reply, 0, sizeof reply);
    self.version = version;
    self.run_id = run;
    self.rank = rank;
    self.world = world;
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    fd = ddp__tcp_dial(&at, ddp_now() + 60);
    assert_true(fd >= 0);
    ddp__hello_pack(&self, DDP__HELLO, DDP__WELCOME, 0, b);
    if (flipped >= 0) b[flipped / 8] = (unsigned char)(b[flipped / 8] ^ 1u << flipped % 8);
    assert_int_equal(ddp__stream_send_all(NULL, fd, b, sizeof b, ddp_now() + 60), 0);
    assert_int_equal(ddp__stream_recv_all(NULL, fd, b, sizeof b, NULL, ddp_now() + 60), 0);
    assert_true(ddp__hello_parse(b, &reply));
    close(fd);
    return reply;
}

static void invalid_hellos_are_refused_with_the_reason(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT];
    ddp__hello h;
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    meet_start(m, 1);
    h = answer_to_hello(addr, DDP__PROTOCOL + 1, 7, 1, 2);
    assert_int_equal(h.kind, DDP__REFUSED);
    assert_int_equal(h.reason, DDP__REFUSE_VERSION);
    h = answer_to_hello(addr, DDP__PROTOCOL, 8, 1, 2);
    assert_int_equal(h.reason, DDP__REFUSE_RUN);
    assert_int_equal(h.run_id, 7);
    h = answer_to_hello(addr, DDP__PROTOCOL, 7, 1, 3);
    assert_int_equal(h.reason, DDP__REFUSE_WORLD);
    assert_int_equal(h.world, 2);
    assert_int_equal(answer_to_hello(addr, DDP__PROTOCOL, 7, 0, 2).reason, DDP__REFUSE_RANK);
    assert_int_equal(answer_to_hello(addr, DDP__PROTOCOL, 7, 2, 2).reason, DDP__REFUSE_RANK);
    assert_int_equal(answer_to_hello(addr, DDP__PROTOCOL, 7, 0xffffffffu, 2).reason, DDP__REFUSE_RANK);
    for (flipped = 64; flipped < 8 * DDP__HELLO_BYTES; flipped += 37)
        assert_int_equal(answer_to_hello(addr, DDP__PROTOCOL, 7, 1, 2).reason, DDP__REFUSE_DAMAGED);
    flipped = -1;
    meet_start(m + 1, 1);
    meet_join(m, 2);
    assert_all_met(m, 2); /* none of them ended the run */
}

static void flipped_bit_in_a_hello_is_reported_as_corruption(void **state)
{
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello self, other;
    char text[300];

    (void)state;
    memset(&self, 0, sizeof self);
    self.version = DDP__PROTOCOL;
    self.run_id = 7;
    self.world = 2;
    self.rank = 1;
    ddp__hello_pack(&self, DDP__HELLO, DDP__WELCOME, 0, b);
    self.rank = 0;
    assert_true(ddp__hello_parse(b, &other));
    assert_int_equal(ddp__hello_check(&self, &other), DDP__WELCOME);
    for (int bit = 64; bit < 8 * DDP__HELLO_BYTES; bit++) {
        b[bit / 8] = (unsigned char)(b[bit / 8] ^ 1u << bit % 8);
        assert_true(ddp__hello_parse(b, &other));
        assert_int_equal(ddp__hello_check(&self, &other), DDP__REFUSE_DAMAGED);
        b[bit / 8] = (unsigned char)(b[bit / 8] ^ 1u << bit % 8);
    }
    ddp__hello_dispute(&self, DDP__REFUSE_DAMAGED, &other, "1.2.3.4:5", text, sizeof text);
    assert_non_null(strstr(text, "the first message of 1.2.3.4:5 has a wrong checksum"));
}

/* A second process of a rank connects while the ranks train. */
static void late_caller_gets_the_error_that_the_run_has_started(void **state)
{
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello self, other;
    char text[300];

    (void)state;
    memset(&self, 0, sizeof self);
    self.version = DDP__PROTOCOL;
    self.world = 2 | DDP__HELLO_RESUMES;
    self.rank = 1;
    ddp__hello_pack(&self, DDP__HELLO, DDP__WELCOME, 0, b);
    assert_true(ddp__hello_parse(b, &other));
    self.rank = 0;
    self.world = 2;
    self.begun = 1;
    assert_int_equal(ddp__hello_check(&self, &other), DDP__REFUSE_BEGUN);
    ddp__hello_dispute(&self, DDP__REFUSE_BEGUN, &other, "1.2.3.4:5", text, sizeof text);
    assert_non_null(strstr(text, "has rank 1, but the run has started"));
    self.rank = 1;
    ddp__hello_pack(&self, DDP__RESUME, DDP__WELCOME, 0, b);
    self.rank = 0;
    assert_true(ddp__hello_parse(b, &other));
    assert_int_equal(ddp__hello_check(&self, &other), DDP__WELCOME);
}

static void mismatch_error_has_both_values_on_both_sides(void **state)
{
    struct {
        uint64_t run;
        int world, resume;
        const char *worker, *root;
    } cases[3];
    char addr[DDP__ADDR_TEXT];
    meet_rank m[2];
    int i;
    (void)state;

    cases[0].run = 8;
    cases[0].world = 2;
    cases[0].worker = "belongs to run 7, but rank 1 to run 8";
    cases[0].root = "belongs to run 8, but rank 0 to run 7";
    cases[1].run = 7;
    cases[1].world = 4;
    cases[1].worker = "expects 2 ranks, but rank 1 expects 4";
    cases[1].root = "expects 4 ranks, but rank 0 expects 2";
    cases[0].resume = cases[1].resume = 0;
    cases[2].run = 7;
    cases[2].world = 2;
    cases[2].resume = 1;
    cases[2].worker = "reconnection of links is enabled on rank 1, but not on rank 0 at ";
    cases[2].root = ", but not on rank 0: set the same DREAMDDP_RESUME and --min-world";
    for (i = 0; i < 3; i++) {
        meet_prepare(m, 2, meet_listen(addr), addr);
        m[0].how.timeout_s = 1;
        m[1].how.resume = cases[i].resume;
        m[1].how.wire.self.run_id = cases[i].run;
        m[1].how.world = cases[i].world;
        meet_start(m, 2);
        meet_join(m, 2);
        assert_says(&m[1], DDP_MISMATCH, cases[i].worker);
        assert_says(&m[1], DDP_MISMATCH, addr);
        assert_says(&m[0], DDP_TIMEOUT, "rank 1 of 2 has not connected to 127.0.0.1:");
        assert_says(&m[0], DDP_TIMEOUT, cases[i].root);
    }
}

static void worker_of_an_older_run_is_refused_at_once(void **state)
{
    meet_rank m[4];
    char addr[DDP__ADDR_TEXT];
    (void)state;

    meet_prepare(m, 3, meet_listen(addr), addr);
    m[3] = m[1]; /* connects first, and belongs to another run */
    m[3].how.wire.self.run_id = ddp__run_id("blue");
    m[3].how.wire.self.run_name = "blue";
    m[1].pause = m[2].pause = 0.5;
    meet_start(m, 4);
    meet_join(m + 3, 1);
    assert_says(&m[3], DDP_MISMATCH, "belongs to run 7, but rank 1 to run ");
    assert_says(&m[3], DDP_MISMATCH, "('blue'): another run uses this port, or DREAMDDP_RUN_ID");
    meet_join(m, 3);
    assert_all_met(m, 3);
}

static void duplicate_rank_is_refused(void **state)
{
    meet_rank m[4];
    char addr[DDP__ADDR_TEXT];
    (void)state;

    meet_prepare(m, 3, meet_listen(addr), addr);
    m[3] = m[1]; /* a second rank 1 */
    m[3].pause = 0.5;
    meet_start(m, 2);
    meet_start(m + 3, 1);
    meet_join(m + 3, 1); /* while ranks 0 and 1 wait for rank 2 */
    meet_start(m + 2, 1);
    meet_join(m, 3);
    assert_says(&m[3], DDP_MISMATCH, "is already connected to a rank 1: give each process a different rank");
    assert_all_met(m, 3);
}

static void restarted_rank_may_connect_again(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT];
    (void)state;

    meet_prepare(m, 3, meet_listen(addr), addr);
    m[2].pause = 0.5;
    meet_start(m, 1);
    assert_int_equal(answer_to_hello(addr, DDP__PROTOCOL, 7, 1, 3).kind, DDP__HELLO); /* and disconnects */
    meet_start(m + 1, 2);
    meet_join(m, 3);
    assert_all_met(m, 3);
}

/* ---- failures ---- */

static void missing_ranks_are_named_on_every_rank(void **state)
{
    meet_rank m[4];
    char addr[DDP__ADDR_TEXT];
    (void)state;

    meet_prepare(m, 4, meet_listen(addr), addr);
    m[0].how.timeout_s = 1.5;
    meet_start(m, 2);
    meet_join(m, 2);
    assert_says(&m[0], DDP_TIMEOUT, "after 1.5 s ranks 2, 3 of 4 have not connected to 127.0.0.1:");
    assert_says(&m[1], DDP_TIMEOUT, "timed out: only 2 of 4 ranks had connected");
}

static void worker_reports_that_rank_0_does_not_answer(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT];
    (void)state;

    meet_unused(addr);
    meet_prepare(m, 2, -1, addr);
    m[1].how.timeout_s = 0.3;
    meet_start(m + 1, 1);
    meet_join(m + 1, 1);
    assert_says(&m[1], DDP_TIMEOUT, "did not answer within 0.3");
    assert_says(&m[1], DDP_TIMEOUT, "Connection refused");
    assert_says(&m[1], DDP_TIMEOUT, addr);
}

static void worker_detects_a_program_that_is_not_rank_0(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT];
    int listener = meet_listen(addr), fd;
    (void)state;

    meet_prepare(m, 2, -1, addr);
    m[1].how.timeout_s = 0.4; /* it accepts and stays silent */
    meet_start(m + 1, 1);
    meet_join(m + 1, 1);
    assert_says(&m[1], DDP_TIMEOUT, "is connected but has not answered");
    fd = ddp__tcp_accept(listener, NULL);
    if (fd >= 0) close(fd);
    m[1].how.timeout_s = 10;
    meet_start(m + 1, 1);
    while ((fd = ddp__tcp_accept(listener, NULL)) < 0) ddp__sleep_until(ddp_now() + 0.01);
    assert_int_equal(ddp__stream_send_all(
                         NULL, fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nServer: nobody\r\n\r\n",
                         64, ddp_now() + 1),
                     0);
    meet_join(m + 1, 1);
    assert_says(&m[1], DDP_NET, "does not answer as a dreamddp rank");
    close(fd);
    close(listener);
}

static void port_in_use_fails_with_a_remedy(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT], part[200];
    int listener = meet_listen(addr);
    (void)state;

    meet_prepare(m, 2, -1, addr);
    meet_start(m, 1);
    meet_join(m, 1);
    snprintf(part, sizeof part,
             "cannot listen on %s: Address already in use; another run may hold it: choose another "
             "port with --addr or DREAMDDP_ADDR",
             addr);
    assert_says(&m[0], DDP_NET, part);
    close(listener);
}

static void rank_lost_during_the_rendezvous_ends_it_for_all(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT];
    (void)state;

    meet_prepare(m, 3, meet_listen(addr), addr);
    m[1].how.timeout_s = 1; /* rank 1 times out while rank 2 is still missing */
    m[2].pause = 2;
    meet_start(m, 3);
    meet_join(m, 3);
    assert_says(&m[1], DDP_TIMEOUT, "still waits for other ranks");
    assert_int_equal(m[0].status, DDP_PEER_LOST);
    assert_says(&m[0], DDP_PEER_LOST, "rank 1 disconnected");
    assert_says(&m[2], DDP_PEER_LOST, "rank 1 disconnected during the rendezvous");
}

static void invalid_addresses_fail_with_a_clear_error(void **state)
{
    static const char *const cases[][2] = {
        {"", "names no host"},
        {":29500", "names no host"},
        {"tcp://", "names no host"},
        {"127.0.0.1:port", "the port 'port' is not a number"},
        {"127.0.0.1:70000", "'70000' is not a number"},
        {"127.0.0.1:-1", "the port '-1'"},
        {"127.0.0.1:", "the port ''"},
        {"127.0.0.1:0", "with port 0 the other ranks"},
        {"file://", "names no file"},
        {"::1:29500", "write an IPv6 address in brackets"},
        {"[::1]x:5", "names no host"},
        {"192.0.2.7:29500", "is not a loopback address"},
        {"0.0.0.0:29500", "DREAMDDP_INSECURE=1"},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        meet_rank m[2];
        meet_prepare(m, 2, -1, cases[i][0]);
        meet_start(m, 1);
        meet_join(m, 1);
        assert_says(&m[0], DDP_ARG, cases[i][1]);
    }
}

static void ranks_out_of_range_are_rejected(void **state)
{
    meet_rank m[2];
    (void)state;
    meet_prepare(m, 2, -1, "127.0.0.1:29500");
    m[0].how.wire.rank = 2;
    m[1].how.world = 0;
    meet_start(m, 2);
    meet_join(m, 2);
    assert_says(&m[0], DDP_ARG, "rank 2 of 2 ranks");
    assert_says(&m[1], DDP_ARG, "rank 1 of 0 ranks");
}

static void address_is_parsed_in_all_forms(void **state)
{
    ddp__addr a[4];
    char text[DDP__ADDR_TEXT];
    int count;
    (void)state;
    assert_int_equal(ddp__addr_parse("127.0.0.1", a, 4, &count, NULL), DDP_OK);
    assert_string_equal(ddp__addr_text(&a[0], text), "127.0.0.1:29500");
    assert_int_equal(ddp__addr_parse("tcp://127.0.0.9:1", a, 4, &count, NULL), DDP_OK);
    assert_string_equal(ddp__addr_text(&a[0], text), "127.0.0.9:1");
    assert_true(ddp__addr_is_loopback(&a[0]));
    assert_int_equal(ddp__addr_parse("[::1]:70", a, 4, &count, NULL), DDP_OK);
    assert_string_equal(ddp__addr_text(&a[0], text), "[::1]:70");
    assert_true(ddp__addr_is_loopback(&a[0]));
    assert_int_equal(ddp__addr_parse("10.1.2.3:70", a, 4, &count, NULL), DDP_OK);
    assert_false(ddp__addr_is_loopback(&a[0]));
}

static void keep_line(void *user, ddp_log_level level, const char *line)
{
    if (level == DDP_LOG_WARN) snprintf((char *)user, 300, "%s", line);
}

static void long_waits_are_logged_with_the_missing_ranks(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT], line[300] = "";
    (void)state;
    meet_prepare(m, 3, meet_listen(addr), addr);
    m[0].how.timeout_s = 6.5;
    m[0].how.wire.log.fn = keep_line;
    m[0].how.wire.log.user = line;
    m[0].how.wire.log.level = DDP_LOG_WARN;
    meet_start(m, 2);
    meet_join(m, 2);
    assert_string_equal(line, "rank 0 has waited 5 s for rank 2 of 3");
}

/* Runs in a separate process with a soft limit of `soft` descriptors and a hard limit of `hard`. */
static int meets_with(rlim_t soft, rlim_t hard, int world, const char *words)
{
    meet_rank m[MEET_MAX];
    char addr[DDP__ADDR_TEXT];
    struct rlimit l;
    int listener, code = 0, r;
    pid_t pid = fork();

    if (pid) {
        waitpid(pid, &code, 0);
        return WIFEXITED(code) ? WEXITSTATUS(code) : 99;
    }
    l.rlim_cur = soft;
    l.rlim_max = hard;
    setrlimit(RLIMIT_NOFILE, &l);
    listener = meet_listen(addr);
    if (words) {
        meet_prepare(m, 1, listener, addr);
        m[0].how.world = world;
        meet_start(m, 1);
        meet_join(m, 1);
        if (m[0].status != DDP_NET || !strstr(m[0].err.msg, words)) {
            fprintf(stderr, "status %d: %s\n", (int)m[0].status, m[0].err.msg);
            _exit(1);
        }
        _exit(0);
    }
    meet_prepare(m, world, listener, addr);
    meet_start(m, world);
    meet_join(m, world);
    for (r = 0; r < world; r++) {
        if (m[r].status) fprintf(stderr, "%s\n", m[r].err.msg);
        if (m[r].status) _exit(2);
        m[r].wire->table->close(m[r].wire);
    }
    _exit(0);
}

/* The soft limit is raised. If that is not enough, an error says at once what is needed. */
static void descriptor_limit_is_raised_or_named_in_the_error(void **state)
{
    (void)state;
    assert_int_equal(meets_with(24, 400, 5, NULL), 0);
    assert_int_equal(meets_with(24, 24, 40, "raise the limit with ulimit -n"), 0);
}

/* A listener with a full queue answers no SYN: connecting takes until its time limit. */
static void connecting_worker_is_cancelled(void **state)
{
    static meet_rank m[2];
    char addr[DDP__ADDR_TEXT];
    int listener = meet_listen(addr), filler[4], cancel = 0, count, k;
    double begin;
    ddp__addr at;
    (void)state;
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    for (k = 0; k < 4; k++) filler[k] = ddp__tcp_dial_begin(&at);
    meet_prepare(m, 2, -1, addr);
    m[1].how.cancel = &cancel;
    begin = ddp_now();
    pthread_create(&m[1].thread, NULL, meet_run, &m[1]);
    ddp__sleep_until(begin + 0.3);
    ddp__atomic_store(&cancel, 1);
    pthread_join(m[1].thread, NULL);
    assert_int_equal(m[1].status, DDP_ABORTED);
    assert_true(ddp_now() < begin + 2.8); /* of the 3 s of an attempt */
    for (k = 0; k < 4; k++) close(filler[k]);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_is_connected_to_the_right_rank),
        cmocka_unit_test(ranks_may_connect_late_or_before_rank_0),
        cmocka_unit_test(unknown_callers_are_refused_and_the_run_continues),
        cmocka_unit_test(silent_callers_do_not_delay_a_rendezvous),
        cmocka_unit_test(full_admission_drops_the_oldest_silent_caller_at_once),
        cmocka_unit_test(full_admission_drops_a_slow_caller_after_one_second),
        cmocka_unit_test(full_admission_drops_a_caller_of_the_busiest_address_at_once),
        cmocka_unit_test(descriptor_limit_is_raised_or_named_in_the_error),
        cmocka_unit_test(invalid_hellos_are_refused_with_the_reason),
        cmocka_unit_test(flipped_bit_in_a_hello_is_reported_as_corruption),
        cmocka_unit_test(late_caller_gets_the_error_that_the_run_has_started),
        cmocka_unit_test(mismatch_error_has_both_values_on_both_sides),
        cmocka_unit_test(worker_of_an_older_run_is_refused_at_once),
        cmocka_unit_test(duplicate_rank_is_refused),
        cmocka_unit_test(restarted_rank_may_connect_again),
        cmocka_unit_test(missing_ranks_are_named_on_every_rank),
        cmocka_unit_test(worker_reports_that_rank_0_does_not_answer),
        cmocka_unit_test(worker_detects_a_program_that_is_not_rank_0),
        cmocka_unit_test(port_in_use_fails_with_a_remedy),
        cmocka_unit_test(rank_lost_during_the_rendezvous_ends_it_for_all),
        cmocka_unit_test(invalid_addresses_fail_with_a_clear_error),
        cmocka_unit_test(ranks_out_of_range_are_rejected),
        cmocka_unit_test(address_is_parsed_in_all_forms),
        cmocka_unit_test(long_waits_are_logged_with_the_missing_ranks),
        cmocka_unit_test(connecting_worker_is_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
