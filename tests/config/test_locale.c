/* [pure] Numbers are read and written with a decimal point in a program whose locale has a decimal comma. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "comma_locale.h"
#include "context/context.h"

static int has_comma;

static int in_the_locale(void **state)
{
    char text[8];

    (void)state;
    has_comma = comma_locale();
    if (!has_comma) return 0;
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
    return 0;
}

static void settings_accept_a_point_and_reject_a_comma(void **state)
{
    ddp_config c = DDP__ZEROS;
    ddp_error err = DDP__ZEROS;
    ddp_setting row;
    int i = 0;

    (void)state;
    if (!has_comma) SKIP("no locale has a decimal comma");
    assert_int_equal(ddp_config_set(&c, "clip_norm", "0.5", &err), DDP_OK);
    assert_true(c.clip_norm > 0.49f && c.clip_norm < 0.51f);
    assert_int_equal(ddp_config_set(&c, "outer_lr", "0,7", &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0,7"));
    while (ddp_config_describe(&c, i, &row) && strcmp(row.field, "clip_norm")) i++;
    assert_string_equal(row.value, "0.5");
}

static void variables_accept_a_point(void **state)
{
    ddp_config c = DDP__ZEROS;
    ddp_error err = DDP__ZEROS;
    ddp_ctx *d;

    (void)state;
    if (!has_comma) SKIP("no locale has a decimal comma");
    c.transport = DDP_THREADS;
    c.world = 1;
    setenv("DREAMDDP_CLIP_NORM", "0.25", 1);
    setenv("DREAMDDP_PEER_TIMEOUT", "2.5", 1);
    d = ddp_open(&c, &err);
    unsetenv("DREAMDDP_CLIP_NORM");
    unsetenv("DREAMDDP_PEER_TIMEOUT");
    if (!d) fail_msg("%s", err.msg);
    assert_true(d->cfg.clip_norm > 0.24f && d->cfg.clip_norm < 0.26f);
    assert_true(d->cfg.timeout.peer_s > 2.4 && d->cfg.timeout.peer_s < 2.6);
    ddp_close(d);
}

static void network_specs_accept_a_point(void **state)
{
    double rate = 0, delay = 0;
    ddp_error err = DDP__ZEROS;

    (void)state;
    if (!has_comma) SKIP("no locale has a decimal comma");
    assert_int_equal(ddp_net_parse("2.5mbit,1.5ms", &rate, &delay, &err), DDP_OK);
    assert_true(fabs(rate - 312500) < 1 && fabs(delay - 0.0015) < 1e-9);
    assert_int_equal(ddp_net_parse("2.5mbit,x", &rate, &delay, &err), DDP_ARG);
}

static void written_profile_reads_back_equal(void **state)
{
    static double backward[] = {0.01, 0.0125}, comm[] = {0.02, 1e-3};
    char path[] = "/tmp/ddp_profile_XXXXXX";
    int fd;
    ddp_profile p = DDP__ZEROS, q;
    ddp_error err = DDP__ZEROS;

    (void)state;
    if (!has_comma) SKIP("no locale has a decimal comma");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    p.layers = 2;
    p.backward_s = backward;
    p.comm_s = comm;
    assert_int_equal(ddp_profile_write(&p, path, &err), DDP_OK);
    if (ddp_profile_read(path, NULL, &q, &err)) fail_msg("%s", err.msg);
    remove(path);
    assert_memory_equal(q.backward_s, backward, sizeof backward);
    assert_memory_equal(q.comm_s, comm, sizeof comm);
    ddp_profile_free(&q);
}

static void errors_and_log_lines_have_a_point(void **state)
{
    ddp_error err = DDP__ZEROS;
    char text[16];

    (void)state;
    if (!has_comma) SKIP("no locale has a decimal comma");
    (void)ddp__fail(&err, DDP_ARG, "after %g s", 1.5);
    assert_string_equal(err.msg, "after 1.5 s");
    assert_int_equal(ddp__format(text, sizeof text, "%.2f", -0.25), 5);
    assert_string_equal(text, "-0.25");
}

/* The library does not change the locale of the program or of the thread. */
static void the_locale_of_the_program_is_unchanged(void **state)
{
    char text[8];

    (void)state;
    if (!has_comma) SKIP("no locale has a decimal comma");
    assert_true(ddp__number("0.5", NULL) > 0.4);
    ddp__format(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0.5");
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_accept_a_point_and_reject_a_comma),
        cmocka_unit_test(variables_accept_a_point),
        cmocka_unit_test(network_specs_accept_a_point),
        cmocka_unit_test(written_profile_reads_back_equal),
        cmocka_unit_test(errors_and_log_lines_have_a_point),
        cmocka_unit_test(the_locale_of_the_program_is_unchanged),
    };

    return cmocka_run_group_tests(tests, in_the_locale, NULL);
}
