/* [pure] AdaTopK and the uniform rule: ratios and message sizes computed by hand. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static void slowest_link_sends_1_over_r_and_compressed_links_take_equal_time(void **state)
{
    const double link_s[5] = {20, 10, 2, 0.05, 0};
    const size_t count[5] = {3000000, 3000000, 3000000, 3000000, 3000000};
    ddp_link_compression c[5];
    ddp_adatopk_options o;
    int i;

    (void)state;
    memset(&o, 0, sizeof o);
    o.ratio = 100;
    o.packing = DDP_PACK_I64;
    assert_int_equal(ddp_adatopk(link_s, count, 5, &o, c, NULL), DDP_OK);
    assert_true(c[0].ratio == 300 && c[1].ratio == 150 && fabs(c[2].ratio - 30) < 1e-9);
    assert_true(c[0].keep == 10000 && c[1].keep == 20000);
    assert_true(c[0].bytes == 24 + 120000 && !c[0].dense);
    for (i = 0; i < 3; i++) assert_true(fabs(c[i].link_s - 0.2) < 1e-6); /* max R / r */
    /* r_3 = 0.75 -> 1: dense; r_4 = 0 -> 1 */
    assert_true(c[3].ratio == 1 && c[3].dense && c[3].keep == 3000000 && c[3].link_s == 0.05);
    assert_true(c[4].dense && c[4].link_s == 0 && c[4].bytes == 24 + 12000000);
    o.factor = 1; /* with factor 1 in Eq. 7, three times as many bytes are sent */
    assert_int_equal(ddp_adatopk(link_s, count, 5, &o, c, NULL), DDP_OK);
    assert_true(c[0].ratio == 100 && c[0].keep == 30000 && fabs(c[0].link_s - 0.6) < 1e-6);
    o.factor = 2; /* indices of 4 bytes */
    o.packing = DDP_PACK_I32;
    assert_int_equal(ddp_adatopk(link_s, count, 5, &o, c, NULL), DDP_OK);
    assert_true(c[0].bytes == 24 + 120000 && fabs(c[0].link_s - 0.2) < 1e-6);
}

static void message_that_would_grow_is_sent_dense(void **state)
{
    const double link_s[4] = {100, 99, 101.0 / 3, 100.0 / 3};
    const size_t count[4] = {30000, 30000, 30000, 30000};
    ddp_link_compression c[4];
    ddp_adatopk_options o;
    int i;

    (void)state;
    memset(&o, 0, sizeof o);
    o.packing = DDP_PACK_I64;
    o.ratio = 1; /* ratios 3, 2.97, 1.01, 1: a compressed message would not be smaller than the dense one */
    assert_int_equal(ddp_adatopk(link_s, count, 4, &o, c, NULL), DDP_OK);
    for (i = 0; i < 4; i++) assert_true(c[i].dense && c[i].bytes == 24 + 120000 && c[i].link_s == link_s[i]);
    o.ratio = 1.02;
    assert_int_equal(ddp_adatopk(link_s, count, 4, &o, c, NULL), DDP_OK);
    assert_true(!c[0].dense && !c[1].dense && c[2].dense);
    o.packing = DDP_PACK_I32;
    assert_int_equal(ddp_adatopk(link_s, count, 4, &o, c, NULL), DDP_OK);
    assert_true(!c[0].dense && c[2].dense);
}

static void uniform_rule_at_ratio_100_is_33_times_smaller(void **state)
{
    const double link_s[2] = {7, 1};
    const size_t count[2] = {1000000, 150};
    ddp_link_compression c[2];
    ddp_adatopk_options o;

    (void)state;
    memset(&o, 0, sizeof o);
    o.ratio = 100;
    o.packing = DDP_PACK_I64;
    o.uniform = 1;
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, c, NULL), DDP_OK);
    assert_true(c[0].keep == 10000 && c[1].keep == 2 && c[1].ratio == 100);
    assert_true(fabs(link_s[0] / c[0].link_s - 100.0 / 3) < 1e-9);
    o.factor = -7; /* unused, so not checked */
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, c, NULL), DDP_OK);
    assert_true(c[0].keep == 10000 && c[1].keep == 2 && c[0].ratio == 100 && c[1].ratio == 100);
    o.factor = 1e308;
    o.ratio = 1e308;
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, c, NULL), DDP_OK);
    assert_true(c[0].keep == 1 && c[1].ratio == 1e308);
    assert_true(ddp_keep_count(300, 100) == 3 && ddp_keep_count(301, 100) == 4);
    assert_true(ddp_keep_count(5, 1e300) == 1 && ddp_keep_count(5, 0.5) == 5);
    assert_true(ddp_keep_count(5, NAN) == 5 && ddp_keep_count(0, 100) == 0);
}

/* The packing affects the message size, but not which elements are sent. */
static void adatopk_packs_with_delta_by_default(void **state)
{
    const double link_s[2] = {20, 10};
    const size_t count[2] = {3000000, 3000000};
    ddp_link_compression c[2], same[2];
    ddp_adatopk_options o;

    (void)state;
    memset(&o, 0, sizeof o);
    o.ratio = 100;
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, c, NULL), DDP_OK);
    assert_true(c[0].keep == 10000 && c[1].keep == 20000);
    assert_true(c[0].bytes == ddp_pack_bound(DDP_PACK_DEFAULT, 3000000, 10000));
    assert_true(fabs(c[0].link_s - 0.1) < 1e-3); /* half of the paper's link time */
    o.packing = DDP_PACK_DELTA;
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, same, NULL), DDP_OK);
    assert_true(same[0].bytes == c[0].bytes && same[1].link_s == c[1].link_s);
    o.factor = 1.5;
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, c, NULL), DDP_OK);
    assert_true(fabs(c[0].link_s - 0.2) < 1e-3 && fabs(c[1].link_s - 0.2) < 3e-2);
}

static void array_too_long_for_i32_is_sent_dense(void **state)
{
    const double link_s[2] = {1, 1};
    size_t count[2];
    ddp_link_compression c[2];
    ddp_adatopk_options o;

    (void)state;
    count[0] = (size_t)1 << 32;
    count[1] = count[0] + 1;
    memset(&o, 0, sizeof o);
    o.ratio = 100;
    o.packing = DDP_PACK_I32;
    assert_int_equal(ddp_adatopk(link_s, count, 2, &o, c, NULL), DDP_OK);
    assert_true(!c[0].dense && c[0].keep == 14316558 && c[0].bytes == 24 + 8 * c[0].keep);
    assert_true(c[1].dense && c[1].keep == count[1] && c[1].bytes == 24 + 4 * count[1]);
    assert_true(c[1].link_s == 1);
}

/* An invalid packing. C++ rejects a plain cast. */
static ddp_packing packing_of(int number)
{
    ddp_packing p;

    memcpy(&p, &number, sizeof p);
    return p;
}

static void invalid_links_and_options_are_named(void **state)
{
    double link_s[3] = {1, 2, 3};
    size_t count[3] = {5, 5, 5};
    ddp_link_compression c[3];
    ddp_adatopk_options o;
    ddp_error err;

    (void)state;
    memset(&o, 0, sizeof o);
    memset(c, 0, sizeof c);
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "ratio 0"));
    o.ratio = INFINITY;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    o.ratio = 10;
    o.factor = -1;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    o.factor = INFINITY;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "factor inf of Eq. 7 must be finite"));
    o.factor = o.ratio = 1e308; /* the product is infinite */
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "factor 1e+308 times ratio 1e+308"));
    o.factor = 0; /* 3 */
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    o.ratio = 10;
    o.packing = DDP_PACK_INT8;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    o.packing = packing_of(99);
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "packing 99 (unknown)"));
    o.packing = DDP_PACK_DEFAULT;
    assert_int_equal(ddp_adatopk(link_s, count, 0, &o, c, &err), DDP_ARG);
    link_s[2] = -1;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "link 2 takes -1 s"));
    link_s[2] = NAN;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_NUMERIC);
    link_s[2] = INFINITY;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "link 2 takes inf s"));
    link_s[2] = 3;
    count[1] = 0;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "link 1"));
    assert_true(c[0].bytes == 0);
    link_s[0] = link_s[1] = link_s[2] = 0; /* all R are 0: compression gains nothing */
    count[1] = 5;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, c, NULL), DDP_OK);
    assert_true(c[0].ratio == 1 && c[2].dense && c[2].link_s == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slowest_link_sends_1_over_r_and_compressed_links_take_equal_time),
        cmocka_unit_test(message_that_would_grow_is_sent_dense),
        cmocka_unit_test(uniform_rule_at_ratio_100_is_33_times_smaller),
        cmocka_unit_test(adatopk_packs_with_delta_by_default),
        cmocka_unit_test(array_too_long_for_i32_is_sent_dense),
        cmocka_unit_test(invalid_links_and_options_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
