/* [pure] Profiles as CSV, and the link model. */
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

/* All tests share one directory, removed at the end. */
static char dir[64], path[128];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ddp_profile_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/p.csv", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    remove(path);
    return rmdir(dir);
}

static void put(const char *text)
{
    ddp_error err;

    if (ddp__file_write(path, text, strlen(text), &err) != DDP_OK) fail_msg("%s", err.msg);
}

static ddp_profile read_text(const char *text, const ddp_link *link)
{
    ddp_profile p;
    ddp_error err;

    put(text);
    if (ddp_profile_read(path, link, &p, &err) != DDP_OK) fail_msg("%s", err.msg);
    return p;
}

static void refused(const char *text, const char *why)
{
    ddp_profile p;
    ddp_error err;

    put(text);
    memset(&p, 42, sizeof p);
    assert_int_equal(ddp_profile_read(path, NULL, &p, &err), DDP_FORMAT);
    assert_int_equal(p.layers, 0x2a2a2a2a); /* the output is unchanged */
    if (!strstr(err.msg, why)) fail_msg("'%s' does not contain '%s'", err.msg, why);
    if (!strstr(err.msg, "p.csv")) fail_msg("'%s' does not name the file", err.msg);
}

static void equals(double a, double b)
{
    if (!(a >= b && a <= b)) fail_msg("%.17g is not %.17g", a, b);
}

static void near_to(double a, double b, double relative)
{
    if (!(fabs(a - b) <= relative * fabs(b))) fail_msg("%.17g is not about %.17g", a, b);
}

static void rows_are_read_in_forward_order(void **state)
{
    ddp_profile p =
        read_text("layer,params,forward_s,backward_s,comm_s\nembed,100,0.5,1,2\nhead,7,,3e-1,4\n", NULL);

    (void)state;
    assert_int_equal(p.layers, 2);
    assert_string_equal(p.name[0], "embed");
    equals(p.params[0], 100);
    equals(p.forward_s[0], 0.5);
    equals(p.forward_s[1], 0);
    equals(p.backward_s[1], 0.3);
    equals(p.comm_s[1], 4);
    equals(p.alpha_s, 0);
    ddp_profile_free(&p);
    ddp_profile_free(&p); /* all zeros is valid */
}

static void columns_may_be_mixed_quoted_and_end_in_crlf(void **state)
{
    ddp_profile p = read_text("\xef\xbb\xbf"
                              "comm_s,note, backward_s ,\"layer\",params\r\n"
                              "4,x, 2 ,\"a, \"\"b\"\" \",5\r\n\r\n1,\"y,z\",3,\"\",6",
                              NULL);

    (void)state;
    assert_int_equal(p.layers, 2);
    assert_string_equal(p.name[0], "a, \"b\" ");
    assert_string_equal(p.name[1], "");
    equals(p.comm_s[0], 4);
    equals(p.backward_s[0], 2);
    equals(p.params[1], 6);
    equals(p.forward_s[0], 0);
    ddp_profile_free(&p);
}

/* Old Macintosh programs end lines with CR. */
static void lines_may_end_in_cr_only(void **state)
{
    ddp_profile p = read_text("\xef\xbb\xbflayer,params,backward_s,comm_s\ra,5,2,4\r\rb,6,3,1\r", NULL);

    (void)state;
    assert_int_equal(p.layers, 2);
    assert_string_equal(p.name[1], "b");
    equals(p.params[0], 5);
    equals(p.comm_s[1], 1);
    ddp_profile_free(&p);
    refused("layer,params,backward_s,comm_s\ra,5,2,4\rb,x,3,1\r", "line 3: params is 'x'");
}

static void empty_times_are_computed_from_the_link(void **state)
{
    ddp_link link;
    ddp_profile p;

    (void)state;
    link.alpha_s = 0.25;
    link.beta_s = 1e-3;
    p = read_text("layer,params,backward_s\na,10,1\nb,0,1\n", &link);
    equals(p.comm_s[0], 1e-3 * 4 * 10);
    equals(p.comm_s[1], 0);
    equals(p.alpha_s, 0.25);
    ddp_profile_free(&p);
    /* one worker alone measures no transfers */
    p = read_text("layer,params,backward_s,comm_s\na,10,1,0\nb,20,1,0\nc,0,1,0\n", &link);
    equals(p.comm_s[0], 1e-3 * 4 * 10);
    equals(p.comm_s[1], 1e-3 * 4 * 20);
    equals(p.comm_s[2], 0);
    equals(p.alpha_s, 0.25);
    ddp_profile_free(&p);
    p = read_text("layer,params,backward_s,comm_s\na,10,1,0\nb,20,1,0\n", NULL);
    equals(p.comm_s[0], 0);
    equals(p.comm_s[1], 0);
    ddp_profile_free(&p);
    p = read_text("layer,params,backward_s,comm_s\na,10,1,0\nb,20,1,5\n", &link);
    equals(p.comm_s[0], 0); /* measured with others: it sends nothing */
    ddp_profile_free(&p);
    p = read_text("layer,params,backward_s,comm_s\na,10,1,5\n", &link);
    equals(p.comm_s[0], 5);
    equals(p.alpha_s, 0); /* measured times already include the delay */
    ddp_profile_free(&p);
    p = read_text("layer,params,backward_s,comm_s\na,10,1,5\nb,20,1,\nc,0,1,\n", &link);
    equals(p.comm_s[0], 5); /* next to it, rows computed from the link include the delay */
    equals(p.comm_s[1], 1e-3 * 4 * 20 + 0.25);
    equals(p.comm_s[2], 0);
    equals(p.alpha_s, 0);
    ddp_profile_free(&p);
    refused("layer,params,backward_s,comm_s\na,10,1,\n", "line 2: comm_s is empty");
}

static void invalid_files_fail_with_line_and_column(void **state)
{
    (void)state;
    refused("", "is empty");
    refused("x", "column layer is missing");
    refused("layer,params,comm_s\na,1,2\n", "column backward_s is missing");
    refused("layer,params,backward_s,comm_s\n", "header but no layer");
    refused("layer,params,backward_s,comm_s", "header but no layer");
    refused("layer,params,backward_s,comm_s\n\n\n", "header but no layer");
    refused("layer,params,backward_s,backward_s\na,1,2,3\n", "column backward_s appears twice");
    refused("layer,params,backward_s,comm_s\na,1,2,3\nb,1,nan,3\n",
            "line 3: backward_s is 'nan'; a finite number");
    refused("layer,params,backward_s,comm_s\na,1,inf,3\n", "line 2: backward_s is 'inf'; a finite number");
    refused("layer,params,backward_s,comm_s\na,1,2,-3\n", "line 2: comm_s is -3; it must not be negative");
    refused("layer,params,backward_s,comm_s\na,1,2 s,3\n", "line 2: backward_s is '2 s'");
    refused("layer,params,backward_s,comm_s\na,1,,3\n", "line 2: backward_s is empty");
    refused("layer,params,backward_s,comm_s\na,1,2\n",
            "line 2: column comm_s is missing; the line has only 3 fields");
    refused("layer,params,backward_s,comm_s\n\"a,1,2,3\n", "line 2: a quote is not closed");
    refused("layer,params,backward_s,comm_s\n\"a\"b,1,2,3\n",
            "line 2: a quote is not closed or is followed by text");
}

static void binary_and_missing_files_fail_with_the_name(void **state)
{
    ddp_profile p;
    ddp_error err;

    (void)state;
    assert_int_equal(ddp__file_write(path, "layer\0x", 7, &err), DDP_OK);
    assert_int_equal(ddp_profile_read(path, NULL, &p, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "zero byte at offset 5"));
    assert_int_equal(ddp_profile_read("/nonexistent/p.csv", NULL, &p, &err), DDP_IO);
    assert_non_null(strstr(err.msg, "/nonexistent/p.csv"));
}

static void written_profile_reads_back(void **state)
{
    ddp_rng r = ddp_rng_seed(3, 0);
    ddp_profile p, q;
    ddp_error err;
    int l;

    (void)state;
    assert_int_equal(ddp_profile_new(50, &p, &err), DDP_OK);
    for (l = 0; l < 50; l++) {
        p.params[l] = (double)ddp_rng_below(&r, 1000000000);
        p.forward_s[l] = ddp_rng_uniform(&r);
        p.backward_s[l] = ddp_rng_uniform(&r) * 1e-9;
        p.comm_s[l] = ddp_rng_uniform(&r) * 1e9;
    }
    p.name[3] = ddp__strdup("h.0, \"attn\"");
    p.name[4] = ddp__strdup("two\nlines");
    assert_int_equal(ddp_profile_write(&p, path, &err), DDP_OK);
    assert_int_equal(ddp_profile_read(path, NULL, &q, &err), DDP_OK);
    assert_int_equal(q.layers, 50);
    for (l = 0; l < 50; l++) {
        equals(q.params[l], p.params[l]);
        equals(q.forward_s[l], p.forward_s[l]);
        equals(q.backward_s[l], p.backward_s[l]);
        equals(q.comm_s[l], p.comm_s[l]);
    }
    assert_string_equal(q.name[3], "h.0, \"attn\"");
    assert_string_equal(q.name[4], "two lines");
    assert_string_equal(q.name[5], "layer 5");
    ddp_profile_free(&q);
    p.comm_s[7] = NAN;
    assert_int_equal(ddp_profile_write(&p, path, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "layer 7"));
    assert_int_equal(ddp_profile_new(0, &q, &err), DDP_ARG);
    ddp_profile_free(&p);
}

static void gzip_is_read(void **state)
{
    char command[400], zipped[160];
    ddp_profile p;
    ddp_error err;

    (void)state;
    put("layer,params,backward_s,comm_s\na,1,2,3\n");
    snprintf(zipped, sizeof zipped, "%s.gz", path);
    snprintf(command, sizeof command, "gzip -c %s > %s", path, zipped);
    if (system(command) != 0) SKIP("gzip is not installed");
    if (ddp_profile_read(zipped, NULL, &p, &err) != DDP_OK) fail_msg("%s", err.msg);
    equals(p.comm_s[0], 3);
    ddp_profile_free(&p);
    assert_int_equal(ddp__file_write(zipped, "no gzip", 7, &err), DDP_OK);
    assert_int_not_equal(ddp_profile_read(zipped, NULL, &p, &err), DDP_OK);
    remove(zipped);
}

static void link_is_fitted_to_the_fastest_transfers(void **state)
{
    /* alpha 3 ms, beta 1 us per byte; each size three times, two of them delayed by up to 3 x */
    double bytes[30], seconds[30];
    ddp_rng r = ddp_rng_seed(4, 0);
    ddp_link link;
    ddp_error err;
    int i;

    (void)state;
    for (i = 0; i < 30; i++) {
        bytes[i] = pow(4, i / 3);
        seconds[i] = (3e-3 + 1e-6 * bytes[i]) * (i % 3 == 1 ? 1 : 1 + 2 * ddp_rng_uniform(&r));
    }
    assert_int_equal(ddp_link_fit(bytes, seconds, 30, &link, &err), DDP_OK);
    near_to(link.alpha_s, 3e-3, 1e-9);
    near_to(link.beta_s, 1e-6, 1e-9);
    assert_int_equal(ddp_link_fit(bytes + 28, seconds + 28, 1, &link, &err), DDP_OK);
    equals(link.alpha_s, 0);
    near_to(link.beta_s, seconds[28] / bytes[28], 1e-12);
}

static void fit_is_never_negative(void **state)
{
    const double bytes[3] = {100, 200, 300}, falling[3] = {3, 2, 1}, steep[3] = {1, 5, 9}, zero[1] = {0},
                 bad[1] = {NAN};
    ddp_link link;
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_link_fit(bytes, falling, 3, &link, &err), DDP_OK);
    equals(link.beta_s, 0);
    assert_true(link.alpha_s >= 1 && link.alpha_s <= 3);
    assert_int_equal(ddp_link_fit(bytes, steep, 3, &link, &err), DDP_OK);
    equals(link.alpha_s, 0);
    assert_true(link.beta_s >= 0.01 && link.beta_s <= 0.03);
    assert_int_equal(ddp_link_fit(bytes, steep, 0, &link, &err), DDP_ARG);
    assert_int_equal(ddp_link_fit(zero, steep, 1, &link, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0 bytes"));
    assert_int_equal(ddp_link_fit(bad, steep, 1, &link, &err), DDP_ARG);
}

static void transfers_refine_the_model_and_reveal_drift(void **state)
{
    ddp_linkfit f;
    ddp_link was;
    const double sizes[2] = {1e6, 3e6};
    int i;

    (void)state;
    was.alpha_s = 1e-3;
    was.beta_s = 1e-8;
    ddp_linkfit_start(&f, was, 3e6, 8);
    near_to(f.link.alpha_s, was.alpha_s, 1e-9);
    near_to(f.link.beta_s, was.beta_s, 1e-9);
    for (i = 0; i < 50; i++) ddp_linkfit_add(&f, 1e6 * (i % 3 + 1), 1e-3 + 1e-8 * 1e6 * (i % 3 + 1));
    near_to(ddp_link_drift(was, f.link, sizes, 2) + 1, 1, 1e-6);
    ddp_linkfit_add(&f, 1e6, NAN); /* ignored */
    ddp_linkfit_add(&f, 0, 1);
    near_to(f.link.beta_s, was.beta_s, 1e-6);
    for (i = 0; i < 100; i++) ddp_linkfit_add(&f, 1e6 * (i % 3 + 1), 1e-3 + 2e-8 * 1e6 * (i % 3 + 1));
    near_to(f.link.beta_s, 2e-8, 0.01); /* half the rate */
    assert_true(ddp_link_drift(was, f.link, sizes, 2) > 0.9);
    memset(&was, 0, sizeof was);
    equals(ddp_link_drift(was, f.link, sizes, 2), 0);
}

static void layer_in_parts_has_the_same_total_cost(void **state)
{
    double params[3] = {4, 10, 0}, forward[3] = {1, 2, 3}, backward[3] = {4, 5, 6}, comm[3] = {2, 8, 1};
    char head[] = "head", *name[3] = {NULL, head, NULL};
    static const double part[5] = {4, 3, 3, 4, 0}, took[5] = {2, 3.1, 3.1, 3.8, 1};
    static const int of[5] = {0, 1, 1, 1, 2};
    ddp_profile p, q;
    ddp_error err;
    int *layer_of, i;

    (void)state;
    memset(&p, 0, sizeof p);
    p.layers = 3;
    p.name = name;
    p.params = params;
    p.forward_s = forward;
    p.backward_s = backward;
    p.comm_s = comm;
    p.alpha_s = 0.25;
    assert_int_equal(ddp_profile_split(&p, 4, 1, &q, &layer_of, &err), DDP_OK);
    /* 10 parameters in parts of 3, 3 and 4. One second of each 8 is the start-up. */
    assert_int_equal(q.layers, 5);
    equals(q.alpha_s, 0.25);
    for (i = 0; i < 5; i++) {
        assert_int_equal(layer_of[i], of[i]);
        equals(q.params[i], part[i]);
        near_to(q.comm_s[i], took[i], 1e-15);
        /* parts are ready together and needed together */
        equals(q.forward_s[i], i == 4 || of[i + 1] > of[i] ? forward[of[i]] : 0);
        equals(q.backward_s[i], i == 4 || of[i + 1] > of[i] ? backward[of[i]] : 0);
    }
    assert_null(q.name[0]);
    assert_string_equal(q.name[1], "head [1/3]");
    assert_string_equal(q.name[3], "head [3/3]");
    ddp_profile_free(&q);
    DDP_FREE(layer_of);
    assert_int_equal(ddp_profile_split(&p, 0.5, 0, &q, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a part of 0.5 parameters is impossible"));
    assert_int_equal(ddp_profile_split(&p, NAN, 0, &q, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_profile_split(&p, 4, 1.5, &q, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the startup is 1.5 s; it must be 0 to 1 s, the comm_s of layer 2"));
    params[1] = 1e9;
    assert_int_equal(ddp_profile_split(&p, 4, 1, &q, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "at most 1000000 can be planned"));
    p.params = NULL;
    assert_int_equal(ddp_profile_split(&p, 4, 1, &q, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the profile has no params"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_in_parts_has_the_same_total_cost),
        cmocka_unit_test(rows_are_read_in_forward_order),
        cmocka_unit_test(columns_may_be_mixed_quoted_and_end_in_crlf),
        cmocka_unit_test(lines_may_end_in_cr_only),
        cmocka_unit_test(empty_times_are_computed_from_the_link),
        cmocka_unit_test(invalid_files_fail_with_line_and_column),
        cmocka_unit_test(binary_and_missing_files_fail_with_the_name),
        cmocka_unit_test(written_profile_reads_back),
        cmocka_unit_test(gzip_is_read),
        cmocka_unit_test(link_is_fitted_to_the_fastest_transfers),
        cmocka_unit_test(fit_is_never_negative),
        cmocka_unit_test(transfers_refine_the_model_and_reveal_drift),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
