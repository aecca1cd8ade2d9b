/* [pure] Parsing the text of an emulated link, and errors for invalid texts. */
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

static void links_are_read_in_decimal_units(void **state)
{
    static const struct {
        const char *spec;
        double rate, delay;
    } cases[] = {
        {"100mbit,20ms", 12.5e6, 0.02},
        {"1gbit", 125e6, 0},
        {"50kbit,0.5s", 6250, 0.5},
        {"8bit,7us", 1, 7e-6},
        {"0", 0, 0},
        {"none", 0, 0},
        {"none,3ms", 0, 0.003},
        {"0,0s", 0, 0},
        {"2.5gbit,0.25ms", 312.5e6, 0.00025},
        {"100mbit,20ms,5ms", 12.5e6, 0.0225},
        {"none,0ms,2us", 0, 1e-6},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double rate = -1, delay = -1;
        assert_int_equal(ddp_net_parse(cases[i].spec, &rate, &delay, NULL), DDP_OK);
        assert_true(fabs(rate - cases[i].rate) <= 1e-12 * cases[i].rate);
        assert_true(fabs(delay - cases[i].delay) <= 1e-12 * cases[i].delay);
    }
}

static void invalid_spec_fails_with_the_part_and_an_example(void **state)
{
    static const char *const cases[][2] = {
        {"fast", "the rate 'fast'"},
        {"100", "the rate '100'"},
        {"-5mbit", "the rate '-5mbit'"},
        {"1mbit,", "the delay ''"},
        {"nan", "the rate 'nan'"},
        {"nanmbit", "the rate 'nanmbit'"},
        {"", "the rate ''"},
        {",20ms", "the rate ''"},
        {"1mbit,20", "the delay '20'"},
        {"1mbit,-1ms", "the delay '-1ms'"},
        {"1mbit,20ms,3", "the jitter '3'"},
        {"1mbit,20ms,", "the jitter ''"},
        {"1mbit,20ms,1ms,1ms", "the jitter '1ms,1ms'"},
        {"1mbit,,1ms", "the delay ''"},
        {"1e3mbit", "the rate '1e3mbit'"},
        {"0x10mbit", "the rate"},
        {" 1mbit", "the rate ' 1mbit'"},
        {"1mbit ,2ms", "the rate '1mbit '"},
        {"1 mbit", "the rate"},
        {"1..5mbit", "the rate"},
        {".mbit", "the rate"},
        {"0mbit", "the rate '0mbit'"},
        {"infmbit", "the rate"},
        {"1Mbit", "the rate"},
        {"1mbit,2h", "the delay '2h'"},
        {"1mbit,9999s", "the delay '9999s'"},
        {"99999999999999999999999999999999999999999999mbit", "the rate"},
        {"9999999999999999999999999999gbit", "the rate '9999999999999999999999999999gbit'"},
        {"1000001gbit", "the rate '1000001gbit'"},
        {"0.000001bit", "the rate '0.000001bit'"},
        {"1mbit,1ms,9999999999999999999999999999s", "the jitter '9999999999999999999999999999s'"},
        {"nets/wan.json", "looks like a file"},
        {"wan.json", "RATE,DELAY"},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double rate = -1, delay = -1;
        ddp_error err;
        memset(&err, 0, sizeof err);
        if (ddp_net_parse(cases[i][0], &rate, &delay, &err) != DDP_ARG || !strstr(err.msg, cases[i][1]) ||
            !strstr(err.msg, "100mbit,20ms") || rate != -1 || delay != -1)
            fail_msg("'%s' gave '%s'", cases[i][0], err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_read_in_decimal_units),
        cmocka_unit_test(invalid_spec_fails_with_the_part_and_an_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
