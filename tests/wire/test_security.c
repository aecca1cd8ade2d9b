/* Rendezvous without TLS: addresses beyond this machine, and log lines about unknown callers. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

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
#include "wire/log_lab.h"

static void address_beyond_this_machine_needs_a_key_or_consent(void **state)
{
    meet_rank m[2];
    (void)state;
    meet_prepare(m, 2, -1, "192.0.2.7:29500");
    meet_start(m, 1);
    meet_join(m, 1);
    assert_says(&m[0], DDP_ARG, "192.0.2.7:29500 is not a loopback address");
    assert_says(&m[0], DDP_ARG, "--tls-psk FILE or DREAMDDP_TLS_PSK");
    assert_says(&m[0], DDP_ARG, "--insecure");
}

static void consent_is_logged(void **state)
{
    char text[8000];
    meet_rank m[2];
    (void)state;
    meet_prepare(m, 2, -1, "192.0.2.7:29500"); /* this machine does not have it: rank 0 cannot listen there */
    m[0].how.insecure = 1;
    listen_in(&m[0], text);
    meet_start(m, 1);
    meet_join(m, 1);
    assert_says(&m[0], DDP_NET, "cannot listen on 192.0.2.7:29500");
    assert_non_null(strstr(text, "insecure: connections to 192.0.2.7:29500 are neither encrypted"));
}

static void every_unknown_caller_is_logged(void **state)
{
    static const char *const first[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "", "dream"};
    char addr[DDP__ADDR_TEXT], text[8000], sink[64];
    meet_rank m[2];
    ddp__addr at;
    int fd[4], i, count;
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    listen_in(&m[0], text);
    meet_start(m, 1);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    for (i = 0; i < 4; i++) {
        fd[i] = ddp__tcp_dial(&at, ddp_now() + 60);
        assert_true(fd[i] >= 0);
        assert_int_equal(ddp__stream_send_all(NULL, fd[i], first[i], strlen(first[i]), ddp_now() + 60), 0);
    }
    close(fd[2]);
    for (i = 0; i < 4; i++) { /* rank 0 closes the connection */
        if (i == 2) continue;
        assert_int_equal(ddp__stream_recv_all(NULL, fd[i], sink, sizeof sink, NULL, ddp_now() + 60), -1);
        assert_int_not_equal(errno, ETIMEDOUT);
        close(fd[i]);
    }
    meet_start(m + 1, 1);
    meet_join(m, 2);
    for (i = 0; i < 2; i++) {
        assert_says(&m[i], DDP_OK, "");
        m[i].wire->table->close(m[i].wire);
    }
    assert_non_null(strstr(text, "is not a dreamddp rank"));
    assert_non_null(strstr(text, "uses TLS, but this rank does not"));
    assert_non_null(strstr(text, "disconnected before identifying itself"));
    assert_non_null(strstr(text, "no hello within 5"));
}

#ifndef DDP_USE_OPENSSL
static void key_without_openssl_fails_with_a_remedy(void **state)
{
    ddp__tls_files f;
    ddp__tls *t;
    ddp_error err;
    (void)state;
    memset(&f, 0, sizeof f);
    assert_int_equal(ddp__tls_open(&f, 7, &t, &err), DDP_OK);
    assert_null(t);
    f.psk = "run.key";
    assert_int_equal(ddp__tls_open(&f, 7, &t, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "-DDDP_USE_OPENSSL -lssl -lcrypto"));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_beyond_this_machine_needs_a_key_or_consent),
        cmocka_unit_test(consent_is_logged),
        cmocka_unit_test(every_unknown_caller_is_logged),
#ifndef DDP_USE_OPENSSL
        cmocka_unit_test(key_without_openssl_fails_with_a_remedy),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
