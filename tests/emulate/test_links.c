/* Topologies and scripts: parsing, errors, and the timing of real engines over these links. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "emulate/links_lab.h"
#include "wire/beside.h"

/* ---- scripts ---- */

static void script_lines_are_parsed_into_incidents(void **state)
{
    const char *text = "# a bad day\n"
                       "\n"
                       "t=3.0 stall 2 for 1.5\n"
                       "t=5\tdrop  1-3   # cut\r\n"
                       "t=8 kill 2\n"
                       "t=10 slow 0 to 10mbit\n"
                       "t=0 slow 3 to none";
    ddp__incidents s;
    (void)state;
    memset(&s, 0, sizeof s);
    assert_int_equal(ddp__script_read(write_file("script", text), 4, &s, NULL), DDP_OK);
    assert_int_equal(ddp__count(s.list), 5);
    assert_true(s.list[0].kind == DDP__STALL && s.list[0].at == 3 && s.list[0].a == 2 &&
                s.list[0].seconds == 1.5);
    assert_true(s.list[1].kind == DDP__DROP && s.list[1].at == 5 && s.list[1].a == 1 && s.list[1].b == 3);
    assert_true(s.list[2].kind == DDP__KILL && s.list[2].at == 8 && s.list[2].a == 2);
    assert_true(s.list[3].kind == DDP__SLOW && s.list[3].at == 10 && s.list[3].a == 0 &&
                s.list[3].rate == 1.25e6);
    assert_true(s.list[4].kind == DDP__SLOW && s.list[4].a == 3 && s.list[4].rate == 0);
    ddp__incidents_free(&s);
}

static void script_with_crlf_or_bom_is_read(void **state)
{
    static const char *const text[] = {"\xef\xbb\xbft=8 kill 2\r\nt=9 kill 1\r\n", "t=8 kill 2\rt=9 kill 1\r",
                                       "t=8 kill 2\r\rt=9 kill 1"};
    static const int line[] = {3, 3, 4};
    char wrong[80], where[40];
    ddp__incidents s;
    ddp_error err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        memset(&s, 0, sizeof s);
        assert_int_equal(ddp__script_read(write_file("script", text[i]), 4, &s, NULL), DDP_OK);
        assert_int_equal(ddp__count(s.list), 2);
        assert_int_equal(s.list[1].a, 1);
        ddp__incidents_free(&s);
        snprintf(wrong, sizeof wrong, "%s%swrong", text[i], i == 2 ? "\r" : "");
        snprintf(where, sizeof where, "line %d: 'wrong'", line[i]);
        assert_int_equal(ddp__script_read(write_file("script", wrong), 4, &s, &err), DDP_FORMAT);
        if (!strstr(err.msg, where)) fail_msg("%s instead of %s", err.msg, where);
        ddp__incidents_free(&s);
    }
}

static void invalid_script_line_is_reported_with_its_part(void **state)
{
    static const char *const wrong[][2] = {
        {"stall 2 for 1", "'stall' is not a time"},
        {"t= stall 2 for 1", "'t=' is not a time"},
        {"t=-1 stall 2 for 1", "'t=-1' is not a time"},
        {"t=1e3 stall 2 for 1", "'t=1e3' is not a time"},
        {"t=1s stall 2 for 1", "'t=1s' is not a time"},
        {"t=nan stall 2 for 1", "'t=nan' is not a time"},
        {"t=1", "'' is not stall"},
        {"t=1 pause 2", "'pause' is not stall"},
        {"t=1 stall", "'' is not a worker"},
        {"t=1 stall x for 1", "'x' is not a worker"},
        {"t=1 stall -1 for 1", "'-1' is not a worker"},
        {"t=1 stall 1.5 for 1", "'1.5' is not a worker"},
        {"t=1 stall 4 for 1", "worker 4 does not exist"},
        {"t=1 stall 2 to 1", "'to' is not 'for'"},
        {"t=1 stall 2", "'' is not 'for'"},
        {"t=1 stall 2 for", "'' is not a number of seconds"},
        {"t=1 stall 2 for 0", "'0' is not a number of seconds"},
        {"t=1 stall 2 for 1s", "'1s' is not a number of seconds"},
        {"t=1 stall 2 for 9999999999999999999999", "'9999999999999999999999' is not a number of seconds"},
        {"t=1 slow 2 to 999999999999999999999gbit", "'999999999999999999999gbit' is not a rate"},
        {"t=1 stall 2 for 1 2", "'2' is not expected here"},
        {"t=1 drop 1", "'1' is not a pair"},
        {"t=1 drop 1-", "'1-' is not a worker"},
        {"t=1 drop 1-1", "'1-1' is not a pair of two"},
        {"t=1 drop 1-4", "worker 4 does not exist"},
        {"t=1 drop 1-2 now", "'now' is not expected here"},
        {"t=1 kill 2 now", "'now' is not expected here"},
        {"t=1 slow 2 to", "'' is not a rate"},
        {"t=1 slow 2 to 10", "'10' is not a rate"},
        {"t=1 slow 2 to 10mbit 3 4 5 6", "'3' is not expected here"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[128], line[160];
        ddp__incidents s;
        ddp_error err;
        ddp_status status;
        memset(&s, 0, sizeof s);
        memset(&err, 0, sizeof err);
        snprintf(text, sizeof text, "t=1 kill 0\n%s\n", wrong[i][0]);
        status = ddp__script_read(write_file("wrong", text), 4, &s, &err);
        snprintf(line, sizeof line, "wrong, line 2: %s", wrong[i][1]);
        if ((status != DDP_FORMAT && status != DDP_ARG) || !strstr(err.msg, line))
            fail_msg("%s: status %d, %s", wrong[i][0], (int)status, err.msg);
        ddp__incidents_free(&s);
    }
}

static void worker_gets_its_rate_changes_and_actions(void **state)
{
    const char *text = "t=4 slow 1 to 8kbit\n"
                       "t=1 stall 1 for 2\n"
                       "t=2 stall 1 for 3\n"
                       "t=2 slow 1 to 16kbit\n"
                       "t=9 drop 1-0\n"
                       "t=7 kill 1\n"
                       "t=3 slow 0 to 80bit\n";
    const double at[] = {1, 2, 2, 3, 4, 5}, rate[] = {-1, -1, -1, -1, -1, 1000};
    ddp__incidents s;
    ddp__links l;
    (void)state;
    memset(&s, 0, sizeof s);
    memset(&l, 0, sizeof l);
    l.own.rate = l.slowest = 5000;
    assert_int_equal(ddp__script_read(write_file("turns", text), 2, &s, NULL), DDP_OK);
    assert_int_equal(ddp__script_apply(&s, 1, &l, NULL), DDP_OK);
    assert_int_equal(l.own.turns, 6);
    for (int i = 0; i < 6; i++) assert_true(l.own.turn[i].at == at[i] && l.own.turn[i].rate == rate[i]);
    assert_true(l.slowest == 10); /* the rate of worker 0: chunks have the same size on all workers */
    assert_int_equal(l.acts, 2);
    assert_true(l.act[0].at == 7 && l.act[0].peer == -1 && l.act[1].at == 9 && l.act[1].peer == 0);
    ddp__links_free(&l);
    ddp__incidents_free(&s);
}

/* ---- topologies ---- */

static const char *const groups_text =
    "{\"groups\": [\"east\", \"west\"], \"devices_per_group\": [2, 2],\n"
    " \"delay_ms\": [[1, 20], [30, 2]], \"bandwidth_gbps\": [[1, 0.1], [0.2, 1]],\n"
    " \"jitter_ms\": [[0, 4], [0, 0]], \"host_gbps\": [0.5, 0.05],\n"
    " \"events\": [\"t=1 stall 1 for 2\",\n  \"t=3 drop 0-1\"]}\n";

static ddp_status open_links(const char *net, int rank, int world, ddp__links *l, ddp_error *err)
{
    ddp_config c;

    memset(&c, 0, sizeof c);
    memset(err, 0, sizeof *err);
    c.transport = DDP_TCP;
    c.rank = rank;
    c.world = world;
    c.net = net;
    return ddp__links_open(&c, 0, l, err);
}

static int near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void topology_sets_rate_and_delay_per_pair(void **state)
{
    char net[160];
    ddp__links l;
    ddp_error err;
    (void)state;
    snprintf(net, sizeof net, "%s@0,3,1", write_file("wan.json", groups_text));
    assert_int_equal(open_links(net, 1, 3, &l, &err), DDP_OK); /* device 3, in the west */
    assert_true(near(l.path[0].rate, 0.2e9 / 8) && near(l.path[2].rate, 0.2e9 / 8));
    assert_true(near(l.path[0].delay_s, 0.02) && near(l.path[0].jitter_s, 0.004));
    assert_true(near(l.own.rate, 0.05e9 / 8) && near(l.slowest, 0.05e9 / 8));
    assert_true(near(l.farthest, 0.03) && l.by_pair);
    assert_true(near(l.flight, 0.05e9 / 8 * 0.024));
    assert_int_equal(l.own.turns, 2);
    assert_true(l.own.turn[0].rate == -1 && near(l.own.turn[1].rate, 0.05e9 / 8));
    assert_int_equal(l.acts, 0); /* worker 0 breaks the connection */
    ddp__links_free(&l);
    snprintf(net, sizeof net, "%s", write_file("wan.json", groups_text));
    assert_int_equal(open_links(net, 0, 2, &l, &err), DDP_OK); /* both in the east */
    assert_true(near(l.path[1].rate, 1e9 / 8) && near(l.path[1].delay_s, 0.001));
    assert_true(near(l.slowest, 0.5e9 / 8) && near(l.plan_rate, 0.5e9 / 8));
    assert_true(l.acts == 1 && l.act[0].peer == 1);
    ddp__links_free(&l);
}

static void a_variant_and_one_at_a_time_are_read(void **state)
{
    static const char text[] =
        "{\"devices_per_group\": [2, 2], \"delay_ms\": [[1, 20], [30, 2]], \"bandwidth_gbps\": [[1, 0.1], "
        "[0.2, 1]],\n"
        " \"as_in_code\": {\"delay_ms\": [[1, 40], [30, 2]], \"one_at_a_time\": true}}\n";
    char net[160];
    ddp__links l;
    ddp_error err;
    (void)state;
    snprintf(net, sizeof net, "%s@1,2", write_file("wan.json", text));
    assert_int_equal(open_links(net, 1, 2, &l, &err), DDP_OK);
    assert_true(near(l.path[0].delay_s, 0.02) && !l.own.one_at_a_time);
    ddp__links_free(&l);
    snprintf(net, sizeof net, "%s:as_in_code@1,2", write_file("wan.json", text));
    assert_int_equal(open_links(net, 1, 2, &l, &err), DDP_OK);
    assert_true(near(l.path[0].delay_s, 0.04) && near(l.path[0].rate, 0.2e9 / 8) && l.own.one_at_a_time);
    ddp__links_free(&l);
    snprintf(net, sizeof net, "%s:as_in_code", write_file("wan.json", text));
    assert_int_equal(open_links(net, 3, 4, &l, &err), DDP_OK);
    assert_true(near(l.path[0].delay_s, 0.04) && near(l.plan_rate, 0.1e9 / 8));
    ddp__links_free(&l);
    {
        char command[400];
        snprintf(command, sizeof command, "gzip -kf %s", write_file("wan.json", text));
        assert_int_equal(system(command), 0);
    }
    snprintf(net, sizeof net, "%s.gz:as_in_code@1,2", write_file("wan.json", text));
    assert_int_equal(open_links(net, 1, 2, &l, &err), DDP_OK);
    assert_true(near(l.path[0].delay_s, 0.04));
    ddp__links_free(&l);
    snprintf(net, sizeof net, "%s:as_in_paper", write_file("wan.json", text));
    assert_int_equal(open_links(net, 0, 2, &l, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "has no variant 'as_in_paper'; it has: as_in_code"));
}

static void invalid_topology_fails_with_a_clear_error(void **state)
{
    static const char *const lists[][2] = {
        {"", "has 4 devices for 5 workers: start at most 4"},
        {"@0,1,2", "lists 3 devices for 5 workers"},
        {"@0,1,2,3,9", "'9' is not one of its devices, 0 to 3"},
        {"@0,1,2,3,x", "'x' is not one of its devices"},
        {"@0,1,2,3,", "'' is not one of its devices"},
        {"@0,1,2,3,1", "device 1 is used by workers 1 and 4"},
    };
    static const char *const files[][2] = {
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1, 1], [1, 0, 1], [1, 1, 0]]}",
         "\"delay_ms\" has 2 rows"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 0], [1, 0]]}", "carries 0 bytes/s"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], "
         "\"one_at_a_time\": 1}",
         "\"one_at_a_time\" must be true or false"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], "
         "\"jitter_ms\": [[0, -1], [1, 0]]}",
         "the jitter from device 0 to device 1 is -0.001 s"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], "
         "\"host_gbps\": [1, 0]}",
         "the access link of device 1 carries 0"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]],\n"
         "\"events\": [\n\"t=1 stall 7 for 1\"]}",
         "line 3: worker 7 does not exist"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], \"events\": 3}",
         "\"events\" must be a list of strings"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], \"events\": [3]}",
         "\"events\" must contain only strings"},
        {"{\"delay_ms\": [[0, 1e300], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]]}",
         "from worker 0 to worker 1 has 1 gbit/s, 1e+297 s and 0 s of jitter"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1e-300], [1, 0]]}",
         "from worker 0 to worker 1 has 1e-300 gbit/s"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1e290, 0]]}",
         "from worker 1 to worker 0 has 1e+290 gbit/s"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], "
         "\"jitter_ms\": [[0, 1e300], [1, 0]]}",
         "1e+297 s of jitter"},
        {"{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]], \"host_gbps\": [1, 1e280]}",
         "worker 1 has host_gbps 1e+280"},
        {"[1, 2]", "is not a JSON object"},
    };
    char net[160];
    ddp__links l;
    ddp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        snprintf(net, sizeof net, "%s%s", write_file("wan.json", groups_text), lists[i][0]);
        if (open_links(net, 0, 5, &l, &err) == DDP_OK || !strstr(err.msg, lists[i][1]))
            fail_msg("%s: %s", lists[i][0], err.msg);
        assert_null(l.path);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (open_links(write_file("bad.json", files[i][0]), 0, 2, &l, &err) == DDP_OK ||
            !strstr(err.msg, files[i][1]))
            fail_msg("%s: %s", files[i][0], err.msg);
        assert_null(l.path);
    }
    snprintf(net, sizeof net, "%s/none.json", folder);
    assert_int_equal(open_links(net, 0, 2, &l, &err), DDP_IO);
}

static void the_networks_of_the_papers_can_be_emulated(void **state)
{
    const char *data = getenv("DDP_DATA");
    char net[300];
    ddp__links l;
    ddp_error err;
    (void)state;
    snprintf(net, sizeof net, "%s/networks/case4.json", data ? data : "data");
    if (access(net, R_OK)) SKIP("no networks under $DDP_DATA");
    strcat(net, "@0,16,32,48");
    assert_int_equal(open_links(net, 0, 4, &l, &err), DDP_OK);
    assert_true(near(l.path[1].rate, 1.15e9 / 8) && near(l.path[1].delay_s, 0.067));
    assert_true(near(l.path[3].rate, 1.12e9 / 8) && near(l.path[3].delay_s, 0.011));
    assert_true(near(l.slowest, 1.02e9 / 8) && near(l.farthest, 0.067));
    ddp__links_free(&l);
}

/* ---- engines ---- */

static const char *one_of_pairs(int i)
{
    timing t;

    run_pairs(i / 2, i % 2, &t);
    return t.took[1] < t.took[2] ? "" : "the slow rank had its part first";
}

/* Neither path waits for the other, even behind a shared access link. */
static void pairs_transfer_at_their_own_rates_in_parallel(void **state)
{
    (void)state;
    run_beside(4, one_of_pairs);
}

/* 1 MB at 20 Mbit/s between two ranks takes 0.4 s. */
static void stall_delays_a_transfer_by_its_length(void **state)
{
    timing t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.n = 250000;
    for (int tcp = 0; tcp < 2; tcp++) {
        (void)run_script(2, tcp, "20mbit,1ms", "t=0.1 stall 1 for 0.5\n", &t, 20);
        assert_true(t.whole > 0.9);
    }
    (void)run_script(2, 1, NULL, "t=0 stall 0 for 0.3\n", &t, 20); /* no rates */
    assert_true(t.whole > 0.3);
}

/* The stall would end after a minute, and the all-reduce would succeed. */
static void stall_beyond_the_time_out_loses_the_peer_on_both_sides(void **state)
{
    timing t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.n = 250000;
    t.want = DDP_PEER_LOST;
    t.text = "was lost"; /* the rank that notices first closes its connection */
    for (int tcp = 0; tcp < 2; tcp++) {
        (void)run_script(2, tcp, "20mbit,1ms", "t=0.1 stall 1 for 60\n", &t, 0.5);
        assert_true(t.whole >= 0.5);
    }
}

static void slowed_link_takes_longer_from_then_on(void **state)
{
    timing t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.n = 250000;
    /* half at 20 Mbit/s, half at 10 Mbit/s */
    assert_true(run_script(2, 1, "20mbit", "t=0.2 slow 0 to 10mbit\n", &t, 20) > 0.58);
}

static void dropped_connection_is_detected_by_both_ends(void **state)
{
    timing t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.n = 250000;
    t.want = DDP_PEER_LOST;
    t.text = "connection closed by peer";
    for (int tcp = 0; tcp < 2; tcp++) {
        (void)run_script(2, tcp, "20mbit,1ms", "t=0.1 drop 1-0\n", &t, 20);
        assert_true(t.whole >= 0.1);
    }
}

static void jitter_adds_delay_and_results_are_bit_identical(void **state)
{
    timing t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.n = 30000;
    for (int tcp = 0; tcp < 2; tcp++)
        assert_true(run_script(3, tcp, "none,10ms,20ms", NULL, &t, 20) > 0.02); /* two delays at least */
}

/* Must fail with DDP_PEER_LOST long before the last step. */
static int train_until_killed(ddp_ctx *d, void *user)
{
    float x[8];
    int bad = 0;

    (void)user;
    memset(x, 0, sizeof x);
    for (double end = ddp_now() + 120; !bad && ddp_now() < end;) bad = ddp_all_reduce(d, x, 8, 1);
    return bad;
}

static void killed_worker_is_a_lost_peer(void **state)
{
    ddp_config c;
    ddp_error err;
    int bad;
    (void)state;
    memset(&c, 0, sizeof c);
    c.no_env = 1;
    c.world = 3;
    c.transport = DDP_THREADS;
    c.network.net_script = write_file("kill", "t=0.3 kill 1\n");
    assert_int_equal(ddp_launch(&c, train_until_killed, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "kills worker 1 at t=0.3"));
    c.transport = DDP_TCP;
    bad = ddp_launch(&c, train_until_killed, NULL, &err);
    if (bad != (int)DDP_PEER_LOST || !strstr(err.msg, "1")) fail_msg("%d, %s", bad, err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(script_lines_are_parsed_into_incidents),
        cmocka_unit_test(script_with_crlf_or_bom_is_read),
        cmocka_unit_test(invalid_script_line_is_reported_with_its_part),
        cmocka_unit_test(worker_gets_its_rate_changes_and_actions),
        cmocka_unit_test(topology_sets_rate_and_delay_per_pair),
        cmocka_unit_test(a_variant_and_one_at_a_time_are_read),
        cmocka_unit_test(invalid_topology_fails_with_a_clear_error),
        cmocka_unit_test(the_networks_of_the_papers_can_be_emulated),
        cmocka_unit_test(pairs_transfer_at_their_own_rates_in_parallel),
        cmocka_unit_test(stall_delays_a_transfer_by_its_length),
        cmocka_unit_test(stall_beyond_the_time_out_loses_the_peer_on_both_sides),
        cmocka_unit_test(slowed_link_takes_longer_from_then_on),
        cmocka_unit_test(dropped_connection_is_detected_by_both_ends),
        cmocka_unit_test(jitter_adds_delay_and_results_are_bit_identical),
        cmocka_unit_test(killed_worker_is_a_lost_peer),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
