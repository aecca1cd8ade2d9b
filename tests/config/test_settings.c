/* [pure] The table of settings (src/config/settings.c): every field by name and by its variable, what is
 * refused, what is the default. docs/settings.md is made here too: it is compared, and with REWRITE=1 in the
 * environment written. */
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

#include "context/context.h"
#include "session/launch.h"
#include "member/join.h"
#include "strategy/strategy.h"

/* Fields that are the program's own pointers. */
static const char *const pointers[] = {"own_strategy", "sockets",   "cancel", "backend",
                                       "cuda_stream",  "allocator", "logger"};

/* A value of each field, and one that it cannot have; NULL: any text will do. */
static const struct {
    const char *field, *good, *bad;
} values[] = {{"strategy", "wfbp", "sgd"},
              {"period", "7", "0"},
              {"transport", "mpi", "pigeon"},
              {"rank", "2", "-1"},
              {"world", "4", "70000"},
              {"addr", "10.0.0.1:5", NULL},
              {"run_id", "red", NULL},
              {"socket_ifname", "^lo", NULL},
              {"net", "100mbit,20ms", NULL},
              {"net_script", "bad_day.txt", NULL},
              {"net2", "1gbit", NULL},
              {"addr2", "h:1", NULL},
              {"wire", "bf16", "bf17"},
              {"topk_fraction", "0.125", "1.5"},
              {"site", "3", "many"},
              {"threads", "8", "1025"},
              {"kernels", "base", "sse"},
              {"seed", "4294967296", "-1"},
              {"micro_batches", "4", "2.5"},
              {"clip_norm", "0.5", "-1"},
              {"average_first", "1", "yes"},
              {"average_state", "1", "2"},
              {"state_period", "3,6", "3,"},
              {"split_params", "1000", "-1"},
              {"algorithm", "direct", "star"},
              {"deterministic", "1", "no"},
              {"paper", "1", "10"},
              {"solver", "dfs", "magic"},
              {"cost", "sum", "none"},
              {"fill", "eq12", "eq13"},
              {"profile_steps", "12", "few"},
              {"profile_path", "p.csv", NULL},
              {"plan_path", "p.json", NULL},
              {"bucket_bytes", "5000000000", "25MB"},
              {"partition_bytes", "1000", "255"},
              {"credit", "2.5", "0"},
              {"merge_sum", "1", "on"},
              {"no_barrier", "1", "off"},
              {"update_frequency", "0.5", "1.01"},
              {"preserve", "0.02", "nan"},
              {"servers", "colocated", "all"},
              {"staleness", "3", "-3"},
              {"push_scale", "0.25", "inf"},
              {"defer", "0.5", "1.5"},
              {"lgp", "ema", "mean"},
              {"correct", "eager", "late"},
              {"split", "knapsack", "jump"},
              {"outer_lr", "0.7", "0"},
              {"outer_momentum", "0.9", "1"},
              {"overlap", "stream", "never"},
              {"mixture", "0.25", "1"},
              {"fragments", "2", "-1"},
              {"landing", "1", "-1"},
              {"compensation", "0.04", "x"},
              {"connect_timeout_s", "1.5", "0"},
              {"join_timeout_s", "60", "soon"},
              {"peer_timeout_s", "3", "-3"},
              {"op_timeout_s", "100", ""},
              {"dump_path", "post", NULL},
              {"overwrite", "1", "true"},
              {"min_world", "2", "-1"},
              {"max_world", "8", "65"},
              {"join", "1", "7"},
              {"elastic_bytes", "1048576", "1e6"},
              {"insecure", "1", "!"},
              {"tls_psk", "k", NULL},
              {"tls_ca", "a", NULL},
              {"tls_cert", "c", NULL},
              {"tls_key", "y", NULL},
              {"no_checksum", "1", "01"},
              {"no_finite_check", "1", "2"},
              {"check_writes", "1", "x"},
              {"trace_spans", "100", "-1"},
              {"nccl", "2", "3"},
              {"no_env", "1", "x"}};
enum { VALUES = sizeof values / sizeof *values };

static int setting(const ddp_config *c, const char *field, ddp_setting *out)
{
    int i = 0;

    while (ddp_config_describe(c, i, out) && (!out->field || strcmp(out->field, field))) i++;
    return out->field && !strcmp(out->field, field) ? i : -1;
}

static int forget(void **state)
{
    ddp_setting s;

    (void)state;
    for (int i = 0; ddp_config_describe(NULL, i, &s); i++)
        if (s.variable) unsetenv(s.variable);
    return 0;
}

/* The values above are of all rows, and rows of all fields that the header declares. */
static void every_field_has_a_row(void **state)
{
    ddp_config c;
    ddp_setting s;
    FILE *f = fopen("src/config/config.h", "r");
    char line[200];
    int rows = 0, fields = 0, inside = 0;

    (void)state;
    memset(&c, 0, sizeof c);
    for (int i = 0; ddp_config_describe(&c, i, &s); i++) {
        int k = 0;
        if (!s.field) continue;
        rows++;
        while (k < VALUES && strcmp(values[k].field, s.field)) k++;
        if (k == VALUES) fail_msg("no value of %s is tried here", s.field);
        assert_string_equal(s.value, "");
        assert_true(*s.help && s.preset && *s.values);
        if (!s.variable) assert_string_equal(s.field, "no_env");
    }
    assert_int_equal(rows, VALUES);
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) { /* and the declaration: names in front of a semicolon */
        char *end = strchr(line, ';'), *comment = strstr(line, "/*");
        inside |= !strcmp(line, "struct ddp_config {\n");
        if (inside && !strcmp(line, "};\n")) break;
        if (!inside || !end || (comment && comment < end) || strspn(line, " ") != 4) continue;
        *end = 0;
        for (char *name = strtok(line, ","); name; name = strtok(NULL, ",")) {
            char word[64];
            size_t n = strcspn(name, "["), at;
            int known = 0;
            for (at = n; at > 0 && (isalnum((unsigned char)name[at - 1]) || name[at - 1] == '_'); at--) {
            }
            snprintf(word, sizeof word, "%.*s", (int)(n - at), name + at);
            for (size_t k = 0; k < sizeof pointers / sizeof *pointers; k++)
                known |= !strcmp(word, pointers[k]);
            fields += !known;
            if (!known && setting(NULL, word, &s) < 0) fail_msg("%s of ddp_config has no row", word);
        }
    }
    fclose(f);
    assert_int_equal(fields, VALUES);
}

static void every_field_round_trips(void **state)
{
    (void)state;
    for (int i = 0; i < VALUES; i++) {
        const char *field = values[i].field;
        ddp_config c, zero;
        ddp_setting s;
        ddp_error err;
        memset(&c, 0, sizeof c);
        memset(&zero, 0, sizeof zero);
        memset(&err, 0, sizeof err);
        if (ddp_config_set(&c, field, values[i].good, &err)) fail_msg("%s", err.msg);
        assert_true(setting(&c, field, &s) >= 0);
        if (strcmp(s.value, values[i].good)) fail_msg("%s is '%s', not '%s'", field, s.value, values[i].good);
        assert_true(memcmp(&c, &zero, sizeof c) != 0);
        assert_int_equal(ddp_config_set(&c, field, "", NULL), DDP_OK);
        assert_memory_equal(&c, &zero, sizeof c);
    }
}

static void a_bad_value_is_told_with_the_field_what_it_may_be_and_its_default(void **state)
{
    (void)state;
    for (int i = 0; i < VALUES; i++) {
        const char *field = values[i].field, *bad = values[i].bad;
        char begins[80];
        ddp_config c, was;
        ddp_setting s;
        ddp_error err;
        if (!bad || !*bad) continue;
        memset(&c, 0, sizeof c);
        was = c;
        assert_int_equal(ddp_config_set(&c, field, bad, &err), DDP_ARG);
        assert_memory_equal(&c, &was, sizeof c);
        snprintf(begins, sizeof begins, "%s=%s", field, bad);
        assert_true(setting(NULL, field, &s) >= 0);
        if (strncmp(err.msg, begins, strlen(begins))) fail_msg("'%s' does not name %s", err.msg, begins);
        if (!strstr(err.msg, s.values) && !strstr(err.msg, "is neither 1 nor 0"))
            fail_msg("'%s': no values", err.msg);
        if (strstr(err.msg, "(default: ") && !strstr(err.msg, s.help))
            fail_msg("'%s': what is it for?", err.msg);
    }
}

static void zeros_that_are_values_and_fractions_are_kept(void **state)
{
    ddp_config c;
    ddp_setting s;
    ddp_error err;

    (void)state;
    memset(&c, 0, sizeof c);
    assert_int_equal(ddp_config_set(&c, "outer_momentum", "0", NULL), DDP_OK);
    assert_true(c.outer.momentum == DDP_NO_MOMENTUM);
    assert_int_equal(ddp_config_set(&c, "mixture", "0", NULL), DDP_OK);
    assert_true(c.outer.mixture == DDP_OVERWRITE);
    assert_int_equal(ddp_config_set(&c, "profile_steps", "0", NULL), DDP_OK);
    assert_true(c.profile_steps < 0);
    assert_int_equal(ddp_config_set(&c, "defer", "0", NULL), DDP_OK);
    assert_true(c.osp.defer == (double)DDP_DEFER_NONE);
    assert_true(setting(&c, "defer", &s) >= 0 && !strcmp(s.value, "0"));
    assert_int_equal(ddp_config_set(&c, "defer", "auto", NULL), DDP_OK);
    assert_true(c.osp.defer == 0);
    assert_int_equal(ddp_config_set(&c, "servers", "2", NULL), DDP_OK);
    assert_int_equal(c.server.count, 2);
    assert_int_equal(ddp_config_set(&c, "wire", "topk:0.25", NULL), DDP_OK);
    assert_true(c.wire == DDP_WIRE_TOPK && c.topk_fraction == 0.25);
    assert_int_equal(ddp_config_set(&c, "topk_fraction", "1/64", NULL), DDP_OK);
    assert_true(c.topk_fraction == 1.0 / 64);
    assert_int_equal(ddp_config_set(&c, "wire", "topk:1/4", NULL), DDP_OK);
    assert_true(c.topk_fraction == 0.25);
    assert_int_equal(ddp_config_set(&c, "topk_fraction", "1/0", &err), DDP_ARG);
    assert_int_equal(ddp_config_set(&c, "topk_fraction", "1/", &err), DDP_ARG);
    assert_int_equal(ddp_config_set(&c, "topk_fraction", "/2", &err), DDP_ARG);
    assert_int_equal(ddp_config_set(&c, "period", "5.0", &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "period=5.0: a whole number, 1 to 1000000 steps"));
    assert_int_equal(ddp_config_set(&c, "wire", "topk:2", &err), DDP_ARG);
    assert_string_equal(err.msg,
                        "wire=topk:2 is unknown: choose f32, bf16, int8, int4, e3m0 or topk:FRACTION");
    assert_int_equal(ddp_config_set(&c, "state_period", "4", NULL), DDP_OK);
    assert_true(c.average.state_period[0] == 4 && c.average.state_period[1] == 4);
    assert_int_equal(ddp_config_set(&c, "period", "-3", &err), DDP_ARG);
    assert_string_equal(
        err.msg, "period=-3: 1 to 1000000 steps; H, in which each layer is averaged once (default: 5)");
}

static void a_field_that_is_not_there_is_told_with_the_one_that_was_meant(void **state)
{
    ddp_config c;
    ddp_error err;

    (void)state;
    memset(&c, 0, sizeof c);
    assert_int_equal(ddp_config_set(&c, "perod", "5", &err), DDP_ARG);
    assert_string_equal(err.msg, "no setting is called perod: did you mean period?");
    assert_int_equal(ddp_config_set(&c, "backend", "cuda", &err), DDP_ARG);
    assert_string_equal(err.msg, "no setting is called backend: docs/settings.md lists them");
    assert_int_equal(ddp_config_set(&c, "period", NULL, &err), DDP_ARG);
    assert_int_equal(ddp_config_set(NULL, "period", "5", &err), DDP_ARG);
    assert_int_equal(ddp_config_set(&c, NULL, "5", NULL), DDP_ARG);
}

static ddp_status resolve(const ddp_config *given, ddp_config *out, ddp_error *err)
{
    ddp_strategy_ops ops;

    memset(err, 0, sizeof *err);
    return ddp__config_resolve(given, ddp__built_in(), out, &ops, err);
}

/* One variable at a time: it fills what is zero, and says which one is wrong; who set the field is not
 * overridden. */
static void every_variable_fills_its_field(void **state)
{
    (void)state;
    for (int i = 0; i < VALUES; i++) {
        ddp_config c, set, other;
        ddp_setting s, t;
        ddp_error err;
        assert_true(setting(NULL, values[i].field, &s) >= 0);
        if (!s.variable) continue;
        assert_int_equal(strncmp(s.variable, "DREAMDDP_", 9), 0);
        memset(&c, 0, sizeof c);
        if (strcmp(s.variable, "DREAMDDP_RANK") && strcmp(s.variable, "DREAMDDP_WORLD_SIZE") &&
            strcmp(s.variable, "DREAMDDP_ADDR") &&
            strcmp(s.variable, "DREAMDDP_RUN_ID")) { /* the launchers' */
            setenv(s.variable, values[i].good, 1);
            if (ddp__env_settings(ddp__built_in(), &c, &err)) fail_msg("%s", err.msg);
            (void)setting(&c, values[i].field, &t);
            if (strcmp(t.value, values[i].good))
                fail_msg("%s: '%s', not '%s'", s.variable, t.value, values[i].good);
            set = c;
            setenv(s.variable, values[i].bad ? values[i].bad : "another", 1);
            assert_int_equal(ddp__env_settings(ddp__built_in(), &set, &err), DDP_OK);
            assert_memory_equal(&set, &c, sizeof c);
            if (values[i].bad && *values[i].bad) {
                memset(&other, 0, sizeof other);
                assert_int_equal(ddp__env_settings(ddp__built_in(), &other, &err), DDP_ARG);
                assert_int_equal(strncmp(err.msg, s.variable, strlen(s.variable)), 0);
            }
            setenv(s.variable, "", 1);
            memset(&other, 0, sizeof other);
            assert_int_equal(ddp__env_settings(ddp__built_in(), &other, &err), DDP_OK);
            assert_int_equal(setting(&other, values[i].field, &t) >= 0 ? t.value[0] : 1, 0);
        }
        unsetenv(s.variable);
    }
}

static void keys_of_the_environment_do_not_mix_with_those_of_the_program(void **state)
{
    ddp_config c;
    ddp_error err;

    (void)state;
    memset(&c, 0, sizeof c);
    c.security.psk = "mine";
    setenv("DREAMDDP_TLS_CA", "theirs", 1);
    assert_int_equal(ddp__env_settings(ddp__built_in(), &c, &err), DDP_OK);
    assert_null(c.security.ca);
    c.security.psk = NULL;
    assert_int_equal(ddp__env_settings(ddp__built_in(), &c, &err), DDP_OK);
    assert_string_equal(c.security.ca, "theirs");
    unsetenv("DREAMDDP_TLS_CA");
}

static void defaults_are_those_of_the_table(void **state)
{
    ddp_config zero, c;
    ddp_error err;

    (void)state;
    memset(&zero, 0, sizeof zero);
    assert_int_equal(resolve(&zero, &c, &err), DDP_OK);
    assert_true(c.transport == DDP_TCP && c.strategy == DDP_DREAMDDP && c.outer.overlap == DDP_OVERLAP_NONE);
    assert_true(c.wire == DDP_WIRE_DEFAULT && c.plan.solver == DDP_SOLVER_DEFAULT);
    assert_true(c.period == 5 && c.world == 1 && c.threads == 1 && c.micro_batches == 1 &&
                c.profile_steps == 6);
    assert_true(c.gradient.bucket_bytes == (size_t)25 << 20 && c.gradient.partition_bytes == 26000000 &&
                c.gradient.credit == 1);
    assert_true(c.deft.preserve == 0.01 && c.timeout.connect_s == 30 && c.timeout.join_s == 30 &&
                c.timeout.peer_s == 30);
    assert_true(c.timeout.op_s == 1800 && c.average.state_period[0] == 0 && c.no_env == 0);
    ddp__config_free(&c);
    zero.elastic.min_world = 1;
    assert_int_equal(resolve(&zero, &c, &err), DDP_OK);
    assert_true(c.timeout.peer_s == 10);
    ddp__config_free(&c);
}

static void ranges_hold_for_fields_that_a_program_sets(void **state)
{
    ddp_config c, out;
    ddp_error err;

    (void)state;
#define REFUSED(field, value, words)                                                            \
    do {                                                                                        \
        memset(&c, 0, sizeof c);                                                                \
        c.field = value;                                                                        \
        assert_int_equal(resolve(&c, &out, &err), DDP_ARG);                                     \
        if (strncmp(err.msg, words, strlen(words))) fail_msg("'%s', not '%s'", err.msg, words); \
    } while (0)
    REFUSED(period, 1000001,
            "period 1000001: 1 to 1000000 steps; H, in which each layer is averaged once (default: 5)");
    REFUSED(threads, -2, "threads -2: 1 to 1024; operator threads of this worker (default: 1)");
    REFUSED(clip_norm, -1.5f, "clip_norm -1.5: a number from 0; ");
    REFUSED(outer.lr, (double)NAN, "outer_lr nan: a number above 0, at most 1e+06; ");
    REFUSED(outer.momentum, 1, "outer_momentum 1: a number from 0, below 1; ");
    REFUSED(outer.momentum, -0.5, "outer_momentum -0.5: ");
    REFUSED(osp.defer, 2, "defer 2: auto, or a share of the model from 0 to 1; ");
    REFUSED(server.count, -2, "servers -2: a number of ranks that serve, or colocated; ");
    REFUSED(gradient.partition_bytes, 255, "partition_bytes 255: 256 or more bytes; ");
    REFUSED(transport, (ddp_transport)5, "transport 5 is unknown: choose tcp, threads, mpi or sockets");
    REFUSED(outer.overlap, (ddp_overlap)-1, "overlap -1 is unknown: choose none, stream or eager");
    REFUSED(osp.lgp, (ddp_lgp)4, "lgp 4 is unknown: choose on, off or ema");
    REFUSED(device.nccl, 3, "nccl 3: 0 to 2; ");
#undef REFUSED
}

static void what_ranks_compare_has_room(void **state)
{
    ddp__setting list[DDP__SETTINGS];
    ddp_config c;
    ddp_ctx *d;
    int joined, all;

    (void)state;
    memset(&c, 0, sizeof c);
    d = ddp_open(&c, NULL);
    assert_non_null(d);
    joined = ddp__settings(d, 1, list);
    assert_true(joined <= (int)DDP__JOIN_SETTINGS);
    assert_string_equal(list[0].name, "topk_fraction");
    all = ddp__settings(d, 0, list);
    assert_true(all > joined && all <= (int)DDP__SETTINGS);
    assert_string_equal(list[0].name, "profile_path (0: none, else a hash of the file)");
    assert_string_equal(list[2].name, "period");
    assert_true(list[2].value == 5);
    ddp_close(d);
}

/* ---- docs/settings.md ---- */

static void put(char *page, size_t room, const char *fmt, ...)
{
    const size_t n = strlen(page);
    va_list args;

    va_start(args, fmt);
    assert_true(vsnprintf(page + n, room - n, fmt, args) < (int)(room - n));
    va_end(args);
}

static void the_page_says_the_same(void **state)
{
    static char page[32768], there[32768];
    const char *path = "docs/settings.md";
    ddp_setting s;
    FILE *f;
    size_t n;

    (void)state;
    put(page, sizeof page,
        "# Settings\n\n"
        "Each row is a field of `ddp_config` and the variable that fills it where the program leaves it "
        "zero\n"
        "(an empty variable counts as unset; `no_env` = 1 reads none; a misspelt one is an error). Numbers "
        "have a decimal\n"
        "point in every locale, here and in the files that the library reads and writes. By name, from a "
        "file or a command\n"
        "line of your own:\n\n"
        "```c\nif (ddp_config_set(&cfg, \"period\", \"10\", &err)) fprintf(stderr, \"%%s\\n\", "
        "err.msg);\n```\n\n"
        "A text is borrowed until `ddp_open`. `ddp_config_describe` gives these rows to a program. The last "
        "column says what\n"
        "all ranks must have the same. Pointers (`own_strategy`, `backend`, `allocator`, ..) are set in the "
        "program alone.\n"
        "This page is made from the library's own table, src/config/settings.c, by "
        "tests/config/test_settings.c:\n\n"
        "```\n$ make build/plain/config/test_settings && REWRITE=1 build/plain/config/test_settings\n```\n\n"
        "| field | variable | what | values | default | same |\n|---|---|---|---|---|---|\n");
    for (int i = 0; ddp_config_describe(NULL, i, &s); i++) {
        if (!s.field) break;
        put(page, sizeof page, "| `%s` | %s%s%s | %s | %s | %s | %s |\n", s.field, s.variable ? "`" : "",
            s.variable ? s.variable : "", s.variable ? "`" : "", s.help, s.values, s.preset,
            s.same ? "yes" : "");
    }
    put(page, sizeof page, "\nVariables that are no field:\n\n| variable | what |\n|---|---|\n");
    for (int i = 0; ddp_config_describe(NULL, i, &s); i++)
        if (!s.field) put(page, sizeof page, "| `%s` | %s |\n", s.variable, s.help);
    if (getenv("REWRITE")) {
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(page, f);
        assert_int_equal(fclose(f), 0);
    }
    f = fopen(path, "r");
    if (!f) fail_msg("no %s; run this in the repository, with REWRITE=1", path);
    n = fread(there, 1, sizeof there - 1, f);
    fclose(f);
    there[n] = 0;
    if (strcmp(there, page)) fail_msg("%s is not what the table says; run this with REWRITE=1", path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_has_a_row),
        cmocka_unit_test(every_field_round_trips),
        cmocka_unit_test(a_bad_value_is_told_with_the_field_what_it_may_be_and_its_default),
        cmocka_unit_test(zeros_that_are_values_and_fractions_are_kept),
        cmocka_unit_test(a_field_that_is_not_there_is_told_with_the_one_that_was_meant),
        cmocka_unit_test(every_variable_fills_its_field),
        cmocka_unit_test(keys_of_the_environment_do_not_mix_with_those_of_the_program),
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(ranges_hold_for_fields_that_a_program_sets),
        cmocka_unit_test(what_ranks_compare_has_room),
        cmocka_unit_test(the_page_says_the_same)};

    return cmocka_run_group_tests(tests, forget, NULL);
}
