/* Addresses of a rendezvous: IPv6, files, interfaces. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "wire/meet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "wire/meet_check.h"

#include <netinet/in.h>

static void publish(const char *path, const char *addr, uint64_t run_id)
{
    char line[160];
    int n = snprintf(line, sizeof line, "%s %" PRIu64 "\n", addr, run_id);

    assert_int_equal(ddp__file_write(path, line, (size_t)n, NULL), DDP_OK);
}

static void ranks_connect_over_ipv6(void **state)
{
    meet_rank m[4];
    char addr[DDP__ADDR_TEXT], spec[DDP__ADDR_TEXT + 8];
    ddp__addr at;
    int fd = -1, count, a, b;
    (void)state;

    assert_int_equal(ddp__addr_parse("[::1]:0", &at, 1, &count, NULL), DDP_OK);
    if (ddp__tcp_listen(&at, &fd, &at, NULL) != DDP_OK) SKIP("this machine has no IPv6");
    snprintf(spec, sizeof spec, "tcp://%s", ddp__addr_text(&at, addr));
    close(fd);
    meet_prepare(m, 4, -1, spec);
    m[3].how.relay_all = 1;
    meet_start(m, 4);
    meet_join(m, 4);
    for (a = 0; a < 4; a++) {
        assert_says(&m[a], DDP_OK, "");
        for (b = 0; b < 4; b++)
            if (a != b) assert_non_null(strstr(m[a].wire->names[b], "[::1]:"));
    }
    assert_pairs_are_right(m, 4);
    assert_all_met(m, 4);
}

/* ---- file:// ---- */

static char folder[64], path[96], spec[112];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/dreamddp-meet-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/run", folder);
    snprintf(spec, sizeof spec, "file://%s", path);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails if a file is left in it */
}

static int exists(const char *name) { return access(name, F_OK) == 0; }

static void file_contains_the_address_of_rank_0(void **state)
{
    meet_rank m[3];
    int named;
    (void)state;

    for (named = 0; named < 2; named++) { /* with a run id, and without */
        meet_prepare(m, 3, -1, spec);
        m[0].how.wire.self.run_id = m[1].how.wire.self.run_id = m[2].how.wire.self.run_id = named ? 41 : 0;
        m[0].pause = 0.4;
        meet_start(m, 3);
        meet_join(m, 3);
        assert_says(&m[0], DDP_OK, "");
        assert_pairs_are_right(m, 3);
        assert_all_met(m, 3);
        assert_false(exists(path));
    }
}

/* The file has the documented content, and rank 0 removes it when it fails. */
static void file_contains_address_and_run(void **state)
{
    meet_rank m[2];
    char addr[DDP__MEETFILE_TEXT];
    ddp__addr at;
    uint64_t run = 0;
    double end = ddp_now() + 60;
    int count;
    (void)state;

    meet_prepare(m, 2, -1, spec);
    m[0].how.wire.self.run_id = 12345678901234567890u;
    m[0].how.timeout_s = 1.5;
    meet_start(m, 1);
    while (!ddp__meetfile_read(path, addr, &run) && ddp_now() < end) ddp__sleep_until(ddp_now() + 0.01);
    assert_true(run == 12345678901234567890u);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    assert_true(ddp__addr_is_loopback(&at));
    assert_true(ddp__addr_port(&at) > 0);
    meet_join(m, 1);
    assert_says(&m[0], DDP_TIMEOUT, "rank 1 of 2 has not connected");
    assert_false(exists(path));
}

/* Files of killed runs: of another run, of this run, with a port that another program uses now. */
static void stale_files_are_ignored(void **state)
{
    meet_rank m[2], other[2];
    char addr[DDP__ADDR_TEXT], taken[DDP__ADDR_TEXT];
    int listener = meet_listen(taken), i;
    (void)state;

    meet_unused(addr);
    for (i = 0; i < 4; i++) {
        const char *what = i < 2 ? addr : taken;
        meet_prepare(m, 2, -1, spec);
        publish(path, what, i == 0 ? 6 : i == 3 ? 1234 : 7);
        if (i == 3) m[0].how.wire.self.run_id = m[1].how.wire.self.run_id = 0;
        if (i >= 2) { /* another run uses the port now */
            meet_prepare(other, 2, i == 2 ? listener : meet_listen(taken), taken);
            if (i == 3) publish(path, taken, 1234);
            other[0].how.wire.self.run_id = 99;
            other[0].how.timeout_s = 2;
            meet_start(other, 1);
        }
        m[0].pause = 0.6;
        meet_start(m, 2);
        meet_join(m, 2);
        assert_all_met(m, 2);
        assert_false(exists(path));
        if (i >= 2) meet_join(other, 1);
    }
}

/* Another program uses the port now, and sends nothing to its clients. */
static void file_with_the_address_of_a_silent_program_is_read_again(void **state)
{
    meet_rank m[2];
    char taken[DDP__ADDR_TEXT];
    int listener = meet_listen(taken), fixed;
    (void)state;

    for (fixed = 0; fixed < 2; fixed++) { /* with a separate run id, or that of the killed run */
        meet_prepare(m, 2, -1, spec);
        m[0].how.wire.self.run_id = m[1].how.wire.self.run_id = fixed ? 7 : 0;
        publish(path, taken, 7);
        m[0].pause = 0.6;
        meet_start(m, 2);
        meet_join(m, 2);
        assert_all_met(m, 2);
    }
    close(listener);
}

static void time_out_for_a_file_names_the_file(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT], part[300];
    (void)state;

    meet_prepare(m, 2, -1, spec);
    m[1].how.timeout_s = 0.3;
    meet_start(m + 1, 1);
    meet_join(m + 1, 1);
    snprintf(part, sizeof part, "rank 0 did not answer within 0.3 s: rank 0 has not yet written %s", path);
    assert_says(&m[1], DDP_TIMEOUT, part);

    meet_unused(addr);
    publish(path, addr, 6);
    meet_start(m + 1, 1);
    meet_join(m + 1, 1);
    assert_says(&m[1], DDP_TIMEOUT, "is stale: it belongs to run 6, but rank 1 to run 7");

    publish(path, addr, 7);
    meet_start(m + 1, 1);
    meet_join(m + 1, 1);
    snprintf(part, sizeof part, "names %s: Connection refused", addr);
    assert_says(&m[1], DDP_TIMEOUT, part);

    publish(path, "192.0.2.7:29500", 7);
    meet_start(m + 1, 1);
    meet_join(m + 1, 1);
    assert_says(&m[1], DDP_ARG, "192.0.2.7:29500 is not a loopback address");
    assert_true(exists(path)); /* only rank 0 removes it */
    unlink(path);

    meet_prepare(m, 2, -1, "file:///nowhere/at/all");
    meet_start(m, 1);
    meet_join(m, 1);
    assert_says(&m[0], DDP_IO, "/nowhere/at/all");
}

static void other_files_are_not_accepted(void **state)
{
    static const char *const cases[] = {"",
                                        "127.0.0.1:5",
                                        "127.0.0.1:5\n",
                                        "127.0.0.1:5 7",
                                        "127.0.0.1:5 -7\n",
                                        " 7\n",
                                        "127.0.0.1:5 7 8\n",
                                        "127.0.0.1:5 99999999999999999999999\n",
                                        "127.0.0.1:5 seven\n"};
    char addr[DDP__MEETFILE_TEXT], line[400];
    uint64_t run;
    size_t i;
    (void)state;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(ddp__file_write(path, cases[i], strlen(cases[i]), NULL), DDP_OK);
        if (ddp__meetfile_read(path, addr, &run)) fail_msg("case %zu was accepted", i);
    }
    memset(line, 'a', sizeof line);
    memcpy(line + 390, " 7\n", 3);
    assert_int_equal(ddp__file_write(path, line, 393, NULL), DDP_OK);
    assert_false(ddp__meetfile_read(path, addr, &run));
    assert_false(ddp__meetfile_read(folder, addr, &run));
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* opening it must not wait for a writer */
    assert_false(ddp__meetfile_read(path, addr, &run));
    unlink(path);
    publish(path, "h:1", 3);
    assert_int_equal(ddp__meetfile_says(path, "h:1", 4), 0);
    assert_int_equal(ddp__meetfile_says(path, "h:2", 3), 0);
    assert_true(exists(path));
    assert_int_equal(ddp__meetfile_says(path, "h:1", 3), 1);
    unlink(path);
    assert_int_equal(ddp__meetfile_says(path, "h:1", 3), -1);
    assert_false(exists(path));
    assert_true(ddp__fresh_number() != ddp__fresh_number());
}

/* ---- interfaces ---- */

static void interface_lists_use_the_syntax_of_nccl(void **state)
{
    static const struct {
        const char *list, *name;
        int match;
    } cases[] = {
        {"eth", "eth0", 1},         {"eth", "eth", 1},         {"eth", "et", 0},
        {"eth", "veth0", 0},        {"eth,ib", "ib1", 1},      {"eth,ib", "lo", 0},
        {"=eth0", "eth0", 1},       {"=eth0", "eth01", 0},     {"=eth0,ib0", "ib0", 1},
        {"^lo,docker", "lo", 0},    {"^lo,docker", "eth0", 1}, {"^lo,docker", "docker0", 0},
        {"^=docker", "docker0", 1}, {"^=docker", "docker", 0}, {"", "eth0", 0},
        {",eth", "lo", 0},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (ddp__iface_matches(cases[i].list, cases[i].name) != cases[i].match)
            fail_msg("'%s' and '%s'", cases[i].list, cases[i].name);
}

static void interface_is_selected_or_all_are_listed(void **state)
{
    ddp__addr a, far;
    ddp_error err;
    char name[DDP__IFACE_TEXT], text[DDP__ADDR_TEXT];
    int count;
    (void)state;

    assert_int_equal(ddp__iface_pick("=lo", AF_INET, &a, NULL), DDP_OK);
    assert_string_equal(ddp__iface_name(&a, name), "lo");
    assert_string_equal(ddp__addr_text(&a, text), "127.0.0.1:0");
    assert_string_equal(name, "lo");
    memset(&err, 0, sizeof err);
    assert_int_equal(ddp__iface_pick("nosuch,=l", AF_INET, &a, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "DREAMDDP_SOCKET_IFNAME=nosuch,=l matches no interface that is up"));
    assert_non_null(strstr(err.msg, "lo (127.0.0.1)"));
    assert_int_equal(ddp__addr_parse("127.0.0.1:77", &far, 1, &count, NULL), DDP_OK);
    assert_int_equal(ddp__iface_toward(&far, &a), 0);
    assert_string_equal(ddp__addr_text(&a, text), "127.0.0.1:0");
    ddp__iface_default(&a);
    assert_true(ddp__iface_name(&a, name)[0] != 0);
}

static void rank_0_with_a_file_listens_on_the_chosen_interface(void **state)
{
    meet_rank m[2];
    (void)state;

    meet_prepare(m, 2, -1, spec);
    m[0].how.ifname = "nosuch";
    meet_start(m, 1);
    meet_join(m, 1);
    assert_says(&m[0], DDP_ARG, "DREAMDDP_SOCKET_IFNAME=nosuch matches no interface");
    m[0].how.ifname = "lo";
    m[1].how.ifname = "nosuch"; /* on one machine the interface does not matter */
    meet_start(m, 2);
    meet_join(m, 2);
    assert_all_met(m, 2);
}

/* Links that reconnect need a listening socket that stays open; after a failure there is none. */
static void listening_socket_stays_open(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT];
    ddp__addr at;
    int r, fd, count;
    (void)state;

    meet_prepare(m, 3, meet_listen(addr), addr);
    for (r = 0; r < 3; r++) m[r].how.resume = 1;
    meet_start(m, 3);
    meet_join(m, 3);
    for (r = 0; r < 3; r++) {
        if (m[r].status) fail_msg("%s", m[r].err.msg);
        assert_int_equal(ddp__wire_tcp_where(m[r].wire, r, &at), 1);
        fd = ddp__tcp_dial(&at, ddp_now() + 5);
        assert_true(fd >= 0);
        close(fd);
    }
    assert_all_met(m, 3);
    meet_prepare(m, 2, meet_listen(addr), addr);
    m[0].how.resume = 1;
    m[0].how.timeout_s = 0.1;
    meet_start(m, 1);
    meet_join(m, 1);
    assert_says(&m[0], DDP_TIMEOUT, "rank 1");
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    assert_int_equal(ddp__tcp_dial(&at, ddp_now() + 5), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_connect_over_ipv6),
        cmocka_unit_test(file_contains_the_address_of_rank_0),
        cmocka_unit_test(file_contains_address_and_run),
        cmocka_unit_test(stale_files_are_ignored),
        cmocka_unit_test(file_with_the_address_of_a_silent_program_is_read_again),
        cmocka_unit_test(time_out_for_a_file_names_the_file),
        cmocka_unit_test(other_files_are_not_accepted),
        cmocka_unit_test(interface_lists_use_the_syntax_of_nccl),
        cmocka_unit_test(interface_is_selected_or_all_are_listed),
        cmocka_unit_test(rank_0_with_a_file_listens_on_the_chosen_interface),
        cmocka_unit_test(listening_socket_stays_open),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
