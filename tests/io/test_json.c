/* [pure] The JSON reader: accepted texts, rejected texts, and the position in its errors. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comma_locale.h"

static size_t asked; /* size of the largest allocation */

void *heap_realloc(void *p, size_t bytes)
{
    asked = bytes > asked ? bytes : asked;
    return realloc(p, bytes);
}

void heap_free(void *p) { free(p); }

static ddp__json *parse(const char *text)
{
    ddp_error err;
    ddp__json *v;

    memset(&err, 0, sizeof err);
    v = ddp__json_parse("t", text, strlen(text), &err);
    if (!v) fail_msg("%s: %s", text, err.msg);
    return v;
}

static void tree_keeps_order_kinds_and_positions(void **unused)
{
    ddp__json *v = parse(" {\"a\": [1, -2.5e3, \"x\"],\n  \"b\": {\"c\": null}, \"d\": true, \"e\":false}\n");
    const ddp__json *a = ddp__json_get(v, "a"), *c = ddp__json_get(ddp__json_get(v, "b"), "c");

    (void)unused;
    assert_int_equal(v->kind, DDP__JSON_OBJECT);
    assert_int_equal(v->count, 4);
    assert_int_equal(a->kind, DDP__JSON_ARRAY);
    assert_int_equal(a->count, 3);
    assert_true(a->first->number == 1.0 && a->first->next->number == -2500.0);
    assert_string_equal(a->first->next->next->string, "x");
    assert_null(a->first->next->next->next);
    assert_null(a->first->key);
    assert_int_equal(c->kind, DDP__JSON_NULL);
    assert_int_equal(c->line, 2);
    assert_int_equal(c->column, 14);
    assert_int_equal(ddp__json_get(v, "d")->kind, DDP__JSON_TRUE);
    assert_int_equal(ddp__json_get(v, "e")->kind, DDP__JSON_FALSE);
    assert_null(ddp__json_get(v, "f"));
    assert_null(ddp__json_get(a, "f"));
    assert_null(ddp__json_get(NULL, "f"));
    ddp__json_free(v);
    ddp__json_free(NULL);
}

static void strings_are_decoded_to_utf8(void **unused)
{
    ddp__json *v = parse("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\", "
                         "\"\xc3\xa9\xf0\x9f\x98\x80\", \"\", \"\xe0\xa0\x80\xe2\x82\xac\"]");

    (void)unused;
    assert_string_equal(v->first->string, "\"\\/\b\f\n\r\t");
    assert_string_equal(v->first->next->string, "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_string_equal(v->first->next->next->string, "\xc3\xa9\xf0\x9f\x98\x80");
    assert_string_equal(v->first->next->next->next->string, "");
    assert_string_equal(v->first->next->next->next->next->string, "\xe0\xa0\x80\xe2\x82\xac");
    ddp__json_free(v);
}

/* A text that is one string needs memory for its length and for one value, whatever characters it
 * contains. */
static void memory_is_proportional_to_the_values(void **unused)
{
    char text[10001];

    (void)unused;
    memset(text, 'a', sizeof text);
    text[0] = text[9999] = '"';
    text[10000] = 0;
    asked = 0;
    ddp__json_free(parse(text));
    assert_true(asked >= 10000 && asked < 10000 + 2 * sizeof(ddp__json));
}

static void any_value_is_a_valid_file(void **unused)
{
    static const char *const text[] = {"0",
                                       "-0",
                                       "1.5",
                                       "1E+2",
                                       "\"s\"",
                                       "null",
                                       "[]",
                                       "{}",
                                       "[[[]]]",
                                       "\t[ ]\r\n",
                                       "{\"\":0}",
                                       "1e-400",
                                       "123456789012345678901234567890",
                                       "\xef\xbb\xbf{}\r\n"};
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof text / sizeof *text; i++) ddp__json_free(parse(text[i]));
}

static void refused(const char *text, size_t n, const char *part)
{
    ddp_error err;
    char *exact = (char *)ddp__calloc(n, 1); /* so that ASan detects a read past the end */

    assert_non_null(exact);
    if (n) memcpy(exact, text, n);
    memset(&err, 0, sizeof err);
    if (ddp__json_parse("net.json", exact, n, &err)) fail_msg("taken: %s", text);
    assert_int_equal(err.code, DDP_FORMAT);
    if (!strstr(err.msg, part) || strncmp(err.msg, "net.json, line ", 15))
        fail_msg("%s: the message is %s, not %s", text, err.msg, part);
    DDP_FREE(exact);
}

static void other_encodings_are_named_in_the_error(void **unused)
{
    (void)unused;
    refused("\xff\xfe{\0}\0", 6, "line 1, column 1: the file is UTF-16 text: save it as UTF-8");
    refused("\xfe\xff\0{\0}", 6, "line 1, column 1: the file is UTF-16 text: save it as UTF-8");
    refused("\xef\xbb\xbf[1,]", 7, "line 1, column 4: ");
    refused("\xef\xbb", 2, "line 1, column 1");
}

static void syntax_errors_report_line_and_column(void **unused)
{
    static const char *const bad[][2] = {
        {"", "line 1, column 1: the text ends"},
        {" \n ", "line 2, column 2: the text ends"},
        {"{\n\"a\": 1,\n  \"a\": 2}", "line 3, column 8: \"a\" is given twice"},
        {"{\"\\u0061\":1,\"a\":2}", "column 17: \"a\" is given twice"},
        {"{\"a\":1,\"a\":2,\"b\":3,\"b\":4}", "column 12: \"a\" is given twice"}, /* the first error is
                                                                                   * reported */
        {"[1, 2", "column 6: a comma or ]"},
        {"[1 2]", "column 4: a comma or ]"},
        {"[1,]", "column 4: a value is needed"},
        {"[,1]", "column 2: a value"},
        {"[1]]", "column 4: something follows"},
        {"1 2", "column 3: something follows"},
        {"{\"a\" 1}", "column 6: a colon"},
        {"{\"a\":1,}", "column 8: a member's name"},
        {"{a:1}", "column 2: a member's name"},
        {"{\"a\":1]", "column 7: a comma or }"},
        {"{", "column 2: a member's name"},
        {"[", "column 2: the text ends"},
        {"{\"a\":", "column 6: the text ends"},
        {"{\"a", "column 2: a string without"},
        {"nul", "a value is needed"},
        {"True", "a value is needed"},
        {"nulll", "column 5: something"},
        {"NaN", "a value is needed"},
        {"Infinity", "a value is needed"},
        {"-Infinity", "not a JSON number"},
        {"01", "not a JSON number"},
        {"-", "not a JSON number"},
        {"+1", "a value is needed"},
        {".5", "a value is needed"},
        {"5.", "not a JSON number"},
        {"1e", "not a JSON number"},
        {"1e+", "not a JSON number"},
        {"0x10", "column 2: something"},
        {"1e400", "beyond the range"},
        {"-1e400", "beyond the range"},
        {"\"a\nb\"", "line 1, column 3: a control character"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\", "ends inside an escape"},
        {"\"\\u12\"", "four hexadecimal"},
        {"\"\\u12g4\"", "four hexadecimal"},
        {"\"\\ud800\"", "surrogate"},
        {"\"\\ud800\\u0041\"", "surrogate"},
        {"\"\\ude00\"", "surrogate"},
        {"\"\\u0000\"", "\\u0000"},
        {"\"\xff\"", "not UTF-8"},
        {"\"\xc0\xaf\"", "not UTF-8"},
        {"\"\xe0\x9f\xbf\"", "not UTF-8"}, /* overlong encoding */
        {"\"\xf0\x8f\xbf\xbf\"", "not UTF-8"},
        {"\"\xed\xa0\x80\"", "not UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "not UTF-8"},
        {"\"\xe2\x82", "not UTF-8"},
        {"// no\n1", "a value is needed"},
        {"'a'", "a value is needed"},
    };
    size_t i;
    char deep[200], digits[400];
    ddp__json *v;

    (void)unused;
    for (i = 0; i < sizeof bad / sizeof *bad; i++) refused(bad[i][0], strlen(bad[i][0]), bad[i][1]);
    refused("1\0", 2, "something follows");
    refused("\"a\0b\"", 5, "control character");
    refused("\"\\\0\"", 4, "unknown escape");
    memset(deep, '[', 65);
    refused(deep, 65, "more than 64");
    memset(deep + 64, ']', 64);
    ddp__json_free(ddp__json_parse("t", deep, 128, NULL));
    memset(digits, '0', sizeof digits);
    memcpy(digits, "0.5", 3);
    v = ddp__json_parse("t", digits, 399, NULL);
    assert_true(v && v->number == 0.5);
    ddp__json_free(v);
    refused(digits, 400, "column 1: a number of more than 399 characters");
}

static void missing_members_give_a_one_line_error(void **unused)
{
    ddp__json *v = parse("{\"N\":\n \"8\", \"x\": 2}");
    const ddp__json *out = NULL;
    ddp_error err;

    (void)unused;
    assert_int_equal(ddp__json_need("n.json", v, "x", DDP__JSON_NUMBER, &out, &err), DDP_OK);
    assert_true(out->number == 2.0);
    assert_int_equal(ddp__json_need("n.json", v, "N", DDP__JSON_NUMBER, &out, &err), DDP_FORMAT);
    assert_string_equal(err.msg, "n.json, line 2, column 2: \"N\" is a string; it must be a number");
    assert_int_equal(ddp__json_need("n.json", v, "M", DDP__JSON_ARRAY, &out, &err), DDP_FORMAT);
    assert_string_equal(err.msg, "n.json, line 1, column 1: \"M\" is missing; it must be an array");
    assert_true(out->number == 2.0); /* unchanged */
    ddp__json_free(v);
}

static void written_strings_read_back(void **unused)
{
    ddp__text t;
    ddp__json *v;

    (void)unused;
    memset(&t, 0, sizeof t);
    ddp__text_add(&t, "[", 1);
    ddp__json_string(&t, "q\" b\\ n\n \x01 \xc3\xa9");
    ddp__text_add(&t, ",", 1);
    ddp__json_string(&t, "bad \xff\xc3 end\xe2\x82");
    ddp__text_add(&t, ",", 1);
    ddp__json_string(&t, NULL);
    ddp__text_add(&t, "]", 1);
    v = parse(t.data);
    assert_string_equal(v->first->string, "q\" b\\ n\n \x01 \xc3\xa9");
    assert_string_equal(v->first->next->string, "bad \xef\xbf\xbd\xef\xbf\xbd end\xef\xbf\xbd\xef\xbf\xbd");
    assert_int_equal(v->first->next->next->kind, DDP__JSON_NULL);
    ddp__json_free(v);
    ddp__text_free(&t);
}

static void number_is(double x, const char *want)
{
    ddp__text t;

    memset(&t, 0, sizeof t);
    ddp__json_number(&t, x);
    assert_string_equal(t.data, want);
    ddp__text_free(&t);
}

static void written_numbers_are_short_and_exact(void **unused)
{
    ddp_rng r = ddp_rng_seed(3, 3);
    ddp__text t;
    ddp__json *v;
    uint64_t bits;
    double x;
    int i;

    (void)unused;
    number_is(0.1, "0.1");
    number_is(1e100, "1e+100");
    number_is(-3, "-3");
    number_is(1.0 / 3, "0.3333333333333333");
    number_is(0.1 + 0.2, "0.30000000000000004");
    number_is(NAN, "null");
    number_is(HUGE_VAL, "null");
    number_is(-HUGE_VAL, "null");
    memset(&t, 0, sizeof t);
    for (i = 0; i < 20000; i++) {
        bits = ddp_rng_u64(&r);
        memcpy(&x, &bits, sizeof x);
        if (!(x >= -DBL_MAX && x <= DBL_MAX)) continue;
        t.size = 0;
        ddp__json_number(&t, x);
        v = ddp__json_parse("t", t.data, t.size, NULL);
        assert_non_null(v);
        assert_memory_equal(&v->number, &x, sizeof x);
        ddp__json_free(v);
    }
    ddp__text_free(&t);
}

static void decimal_comma_locale_does_not_change_numbers(void **unused)
{
    ddp__json *v;

    (void)unused;
    if (!comma_locale()) SKIP("no locale has a decimal comma");
    assert_string_equal(localeconv()->decimal_point, ",");
    v = parse("-1.5e-3");
    assert_true(v->number == -0.0015);
    ddp__json_free(v);
    refused("1,5", 3, "column 2: something follows");
    number_is(1.5, "1.5");
    number_is(-2.5e-30, "-2.5e-30");
    setlocale(LC_NUMERIC, "C");
}

/* Random damage to a valid file gives an error or a tree, without a crash or a read out of bounds. */
static void damaged_files_give_an_error_or_a_tree(void **unused)
{
    static const char good[] =
        "{\"N\": 4, \"delay_ms\": [[0, 1.5e1], [-2, 3]], \"s\": "
        "\"a\\n\\u00e9\\ud83d\\ude00\xc3\xa9\","
        "\n\"t\": [true, false, null, {}, []], \"deep\": [[[[{\"x\": {\"y\": 0.25}}]]]]}";
    static const char spice[] = "{}[]\",:\\u0123e-+. \n\xc3\xff\x80tfn";
    ddp_rng r = ddp_rng_seed(1, 1);
    size_t n, k;
    ddp_error err;
    ddp__json *v;
    char *text;
    int i, taken = 0;

    (void)unused;
    for (i = 0; i < 20000; i++) {
        n = 1 + (size_t)ddp_rng_below(&r, sizeof good - 1);
        if (i % 2) n = sizeof good - 1;
        text = (char *)ddp__calloc(n, 1);
        assert_non_null(text);
        memcpy(text, good, n);
        for (k = (size_t)ddp_rng_below(&r, 4); k > 0; k--)
            text[ddp_rng_below(&r, n)] = spice[ddp_rng_below(&r, sizeof spice)];
        memset(&err, 0, sizeof err);
        v = ddp__json_parse("t", text, n, &err);
        if (v)
            taken++;
        else
            assert_true(err.code == DDP_FORMAT && err.msg[0]);
        ddp__json_free(v);
        DDP_FREE(text);
    }
    assert_true(taken > 1000 && taken < 19000);
}

static void empty_file_fails_with_its_name(void **unused)
{
    char path[] = "/tmp/ddp_json_XXXXXX", want[80];
    const int file = mkstemp(path);
    ddp_error err;

    (void)unused;
    assert_true(file >= 0);
    close(file);
    snprintf(want, sizeof want, "%s, line 1, column 1: the text ends where a value is needed", path);
    assert_null(ddp__json_read(path, &err));
    remove(path);
    assert_int_equal(err.code, DDP_FORMAT);
    assert_string_equal(err.msg, want);
}

static void networks_of_the_papers_load(void **unused)
{
    const char *dir = getenv("DDP_DATA");
    char path[600];
    ddp_error err;
    ddp__json *v;

    (void)unused;
    snprintf(path, sizeof path, "%s/networks/case1.json", dir ? dir : "data");
    if (access(path, R_OK)) SKIP("no network files in $DDP_DATA");
    v = ddp__json_read(path, &err);
    assert_non_null(v);
    assert_int_equal(v->kind, DDP__JSON_OBJECT);
    ddp__json_free(v);
    assert_null(ddp__json_read("/no/such.json", &err));
    assert_int_equal(err.code, DDP_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_keeps_order_kinds_and_positions),
        cmocka_unit_test(strings_are_decoded_to_utf8),
        cmocka_unit_test(memory_is_proportional_to_the_values),
        cmocka_unit_test(any_value_is_a_valid_file),
        cmocka_unit_test(other_encodings_are_named_in_the_error),
        cmocka_unit_test(syntax_errors_report_line_and_column),
        cmocka_unit_test(missing_members_give_a_one_line_error),
        cmocka_unit_test(written_strings_read_back),
        cmocka_unit_test(written_numbers_are_short_and_exact),
        cmocka_unit_test(decimal_comma_locale_does_not_change_numbers),
        cmocka_unit_test(damaged_files_give_an_error_or_a_tree),
        cmocka_unit_test(empty_file_fails_with_its_name),
        cmocka_unit_test(networks_of_the_papers_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
