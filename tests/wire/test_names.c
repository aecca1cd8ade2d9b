/* The name of rank 0 may appear in the name service after the ranks have started. The test has its own
 * resolver. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netdb.h>
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
#include "wire/meet_check.h"

#define NAME "trainer-0.trainer"

/* Look-ups of NAME, possibly from several threads: the first `failing` fail with `failure`. */
static int lookups, failing, failure;
static double lookup_s; /* duration of each look-up */

static int test_resolver(const char *host, const char *port, const struct addrinfo *hints,
                         struct addrinfo **list)
{
    if (strcmp(host, NAME)) return getaddrinfo(host, port, hints, list);
    ddp__sleep_until(ddp_now() + lookup_s);
    if (ddp__atomic_add(&lookups, 1) < failing) return failure;
    return getaddrinfo("127.0.0.1", port, hints, list);
}

/* The library uses the resolver of the test. */
#define getaddrinfo test_resolver
#include "wire/socket.c"
#undef getaddrinfo

static void resolver_fails(int times, int with, double takes)
{
    lookups = 0;
    failing = times;
    failure = with;
    lookup_s = takes;
}

/* Writes NAME with the port of an address. */
static void spec_of(const char *addr, char *spec)
{
    snprintf(spec, DDP__ADDR_TEXT, NAME "%s", strrchr(addr, ':'));
}

/* Rank 1 uses the name, rank 0 a listening socket. */
static void rank_retries_a_name_that_appears_later(void **state)
{
    static const int reason[] = {EAI_NONAME, EAI_AGAIN};
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT], spec[DDP__ADDR_TEXT];
    (void)state;

    for (int k = 0; k < 2; k++) {
        meet_prepare(m, 2, meet_listen(addr), addr);
        spec_of(addr, spec);
        m[1].how.addr = spec;
        resolver_fails(5, reason[k], 0);
        meet_start(m, 2);
        meet_join(m, 2);
        assert_says(&m[0], DDP_OK, "");
        assert_says(&m[1], DDP_OK, "");
        assert_int_equal(lookups, 6);
        assert_all_met(m, 2);
    }
}

/* All ranks get the same --addr, and the name of a pod appears for the pod itself as late as for the others.
 * */
static void rank_0_listens_on_its_name_when_it_appears(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT], spec[DDP__ADDR_TEXT];
    (void)state;

    meet_unused(addr);
    spec_of(addr, spec);
    meet_prepare(m, 2, -1, spec);
    resolver_fails(9, EAI_NONAME, 0);
    meet_start(m, 2);
    meet_join(m, 2);
    assert_all_met(m, 2);
}

/* One of two addresses resolves: the joining worker does not wait for the other. */
static void joining_worker_retries_a_name_that_appears_later(void **state)
{
    char addr[DDP__ADDR_TEXT], spec[2 * DDP__ADDR_TEXT + 1];
    ddp__join_config c;
    ddp__joiner *j;
    ddp_error err;
    (void)state;

    meet_unused(addr);
    memset(&c, 0, sizeof c);
    c.connect_timeout_s = 1;
    spec_of(addr, spec);
    c.addr = spec;
    resolver_fails(1 << 30, EAI_NONAME, 0);
    assert_int_equal(ddp__joiner_open(&c, &j, &err), DDP_TIMEOUT);
    assert_true(lookups > 1);
    assert_non_null(strstr(err.msg, "cannot resolve '" NAME "'"));
    assert_non_null(strstr(err.msg, gai_strerror(EAI_NONAME)));
    ddp__joiner_close(j);

    snprintf(spec + strlen(spec), sizeof addr + 1, ",%s", addr);
    resolver_fails(3, EAI_NONAME, 0);
    assert_int_equal(ddp__joiner_open(&c, &j, &err), DDP_TIMEOUT); /* no worker listens there */
    assert_int_equal(j->addresses, 2);
    assert_int_equal(lookups, 4);
    ddp__joiner_close(j);
}

/* Closes every connection that it accepts, as a member that serves another joining worker does. */
typedef struct busy_member {
    int listener, accepted;
    int stop; /* atomic */
    pthread_t thread;
} busy_member;

static void *refuse_all(void *arg)
{
    busy_member *b = (busy_member *)arg;

    while (!ddp__atomic_load(&b->stop)) {
        int fd;
        if (!ddp__fd_wait(b->listener, POLLIN, ddp_now() + 0.05)) continue;
        fd = ddp__tcp_accept(b->listener, NULL);
        if (fd < 0) continue;
        b->accepted++;
        close(fd);
    }
    return NULL;
}

/* The time-out of a resolver that does not answer would delay every attempt at the working address. */
static void unresolved_name_is_not_looked_up_while_a_member_answers(void **state)
{
    char addr[DDP__ADDR_TEXT], spec[2 * DDP__ADDR_TEXT + 1];
    ddp__join_config c;
    busy_member b;
    ddp__joiner *j;
    ddp_error err;
    (void)state;

    memset(&c, 0, sizeof c);
    memset(&b, 0, sizeof b);
    b.listener = meet_listen(addr);
    assert_int_equal(pthread_create(&b.thread, NULL, refuse_all, &b), 0);
    c.connect_timeout_s = 2;
    snprintf(spec, sizeof spec, NAME ":29500,%s", addr);
    c.addr = spec;
    resolver_fails(1 << 30, EAI_AGAIN, 0);
    assert_int_equal(ddp__joiner_open(&c, &j, &err), DDP_TIMEOUT);
    ddp__joiner_close(j);
    ddp__atomic_store(&b.stop, 1);
    pthread_join(b.thread, NULL);
    close(b.listener);
    assert_true(b.accepted > 1);
    assert_int_equal(lookups, 1);
}

/* Look-ups that block for seconds are not stops of the process, which would extend the time-out. */
static void slow_lookups_count_towards_the_time_out(void **state)
{
    meet_rank m[2];
    (void)state;

    meet_prepare(m, 2, -1, NAME ":29500");
    m[1].how.timeout_s = 4;
    resolver_fails(1 << 30, EAI_AGAIN, 2.5);
    pthread_create(&m[1].thread, NULL, meet_run, &m[1]);
    pthread_join(m[1].thread, NULL);
    assert_says(&m[1], DDP_TIMEOUT, "cannot resolve '" NAME "' of address '" NAME ":29500'");
    assert_non_null(
        strstr(m[1].err.msg, "after retries for 4 s; check the name, or raise DREAMDDP_CONNECT_TIMEOUT"));
    assert_non_null(strstr(m[1].err.msg, gai_strerror(EAI_AGAIN)));
    assert_true(lookups <= 2);
}

static void cancel_ends_the_retries(void **state)
{
    meet_rank m[2];
    int cancel = 0;
    (void)state;

    meet_prepare(m, 2, -1, NAME ":29500");
    m[1].how.cancel = &cancel;
    resolver_fails(1 << 30, EAI_NONAME, 0);
    pthread_create(&m[1].thread, NULL, meet_run, &m[1]);
    while (ddp__atomic_load(&lookups) < 2) ddp__sleep_until(ddp_now() + 0.002);
    ddp__atomic_store(&cancel, 1);
    pthread_join(m[1].thread, NULL);
    assert_int_equal(m[1].status, DDP_ABORTED);
}

/* No name service ever has these names: a rank does not retry them. */
static void invalid_name_fails_at_once(void **state)
{
    static const char *const spec[] = {"10.0.0.300:29500",
                                       "no name:29500",
                                       "a..b:29500",
                                       "-a.example:29500",
                                       "[fe80::zz]:29500",
                                       ("1234567890123456789012345678901234567890123456789012345678"
                                        "901234567890.example:29500")};
    meet_rank m[2];
    (void)state;

    for (size_t k = 0; k < sizeof spec / sizeof spec[0]; k++) {
        meet_prepare(m, 2, -1, spec[k]);
        for (int r = 0; r < 2; r++) m[r].how.timeout_s = 600; /* the test's time-out ends a retry */
        meet_start(m, 2);
        meet_join(m, 2);
        for (int r = 0; r < 2; r++) assert_says(&m[r], DDP_ARG, "is neither an IP address nor a host name");
    }
}

/* A name is retried, but rank 0 cannot listen on an address of another machine. */
static void rank_0_fails_at_once_on_an_address_of_another_machine(void **state)
{
    meet_rank m[2];
    (void)state;

    meet_prepare(m, 2, -1, "192.0.2.7:29500"); /* reserved for documentation */
    m[0].how.insecure = 1;
    m[0].how.timeout_s = 600;
    pthread_create(&m[0].thread, NULL, meet_run, &m[0]);
    pthread_join(m[0].thread, NULL);
    assert_says(&m[0], DDP_NET, "cannot listen on 192.0.2.7:29500");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_retries_a_name_that_appears_later),
        cmocka_unit_test(rank_0_listens_on_its_name_when_it_appears),
        cmocka_unit_test(joining_worker_retries_a_name_that_appears_later),
        cmocka_unit_test(unresolved_name_is_not_looked_up_while_a_member_answers),
        cmocka_unit_test(slow_lookups_count_towards_the_time_out),
        cmocka_unit_test(cancel_ends_the_retries),
        cmocka_unit_test(invalid_name_fails_at_once),
        cmocka_unit_test(rank_0_fails_at_once_on_an_address_of_another_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
