/* [pure] The table of settings (src/config/settings.c): each field by its name and by its variable, errors,
 * defaults. The test compares docs/reference/settings.md with the table, or writes the page with REWRITE=1 in
 * the environment. */
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

/* Fields that are pointers of the program. */
static const char *const pointers[] = {"own_strategy",       "sockets",   "cancel", "backend",
                                       "device.cuda_stream", "allocator", "logger"};

/* A valid and an invalid value of each field. NULL means that every text is valid. */
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
              {"choice_steps", "400", "0"},
              {"loss_budget", "0.1", "1.5"},
              {"loss_table", "losses.csv", NULL},
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

static int is_pointer(const char *member)
{
    for (size_t k = 0; k < sizeof pointers / sizeof *pointers; k++)
        if (!strcmp(member, pointers[k])) return 1;
    return 0;
}

/* Copies the names before the semicolon of a declaration to names. Returns their number. */
static int declared(char *line, char (*names)[64])
{
    char *end = strchr(line, ';');
    int count = 0;

    if (!end || line[strspn(line, " ")] == '/' || line[strspn(line, " ")] == '*') return 0;
    *end = 0;
    for (char *name = strtok(line, ","); name; name = strtok(NULL, ",")) {
        const size_t n = strcspn(name, "[");
        size_t at = n;
        while (at > 0 && (isalnum((unsigned char)name[at - 1]) || name[at - 1] == '_')) at--;
        snprintf(names[count++], 64, "%.*s", (int)(n - at), name + at);
    }
    return count;
}

static int has_row(const char *member)
{
    ddp_setting s;

    for (int i = 0; ddp_config_describe(NULL, i, &s); i++)
        if (s.member && !strcmp(s.member, member)) return 1;
    return 0;
}

static void every_member_of_ddp_config_has_a_row(void **state)
{
    FILE *f = fopen("src/config/config.h", "r");
    char line[200], names[32][64], member[80];
    int fields = 0, inside = 0, nested = 0, count = 0;

    (void)state;
    if (!f) fail_msg("src/config/config.h not found: run this test in the repository");
    while (fgets(line, sizeof line, f)) {
        inside |= !strcmp(line, "struct ddp_config {\n");
        if (!inside) continue;
        if (!strcmp(line, "};\n")) break;
        if (!strcmp(line, "    struct {\n")) {
            nested = 1;
            count = 0;
        } else if (nested && !strncmp(line, "    } ", 6)) {
            line[strcspn(line, ";")] = 0;
            for (int k = 0; k < count; k++) {
                snprintf(member, sizeof member, "%.12s.%.60s", line + 6, names[k]);
                fields += !is_pointer(member);
                if (!is_pointer(member) && !has_row(member)) fail_msg("%s of ddp_config has no row", member);
            }
            nested = 0;
        } else if (nested && strspn(line, " ") == 8) {
            count += declared(line, names + count);
        } else if (!nested && strspn(line, " ") == 4) {
            count = declared(line, names);
            for (int k = 0; k < count; k++) {
                fields += !is_pointer(names[k]);
                if (!is_pointer(names[k]) && !has_row(names[k]))
                    fail_msg("%s of ddp_config has no row", names[k]);
            }
        }
    }
    fclose(f);
    assert_int_equal(fields, VALUES);
}

static void every_row_is_described(void **state)
{
    ddp_config c;
    ddp_setting s;
    int rows = 0;

    (void)state;
    memset(&c, 0, sizeof c);
    for (int i = 0; ddp_config_describe(&c, i, &s); i++) {
        int k = 0;
        const char *dot;
        if (!s.field) {
            assert_true(!s.member && !*s.chapter && !*s.flag && s.variable);
            continue;
        }
        rows++;
        while (k < VALUES && strcmp(values[k].field, s.field)) k++;
        if (k == VALUES) fail_msg("this test has no value for %s", s.field);
        assert_string_equal(s.value, "");
        assert_true(*s.help && s.preset && *s.values);
        dot = strchr(s.member, '.');
        if (dot) {
            assert_int_equal(strncmp(s.member, s.chapter, (size_t)(dot - s.member)), 0);
            assert_int_equal(strlen(s.chapter), dot - s.member);
        } else {
            assert_string_equal(s.chapter, "core");
        }
        if (s.variable) {
            assert_int_equal(strncmp(s.flag, "--", 2), 0);
            assert_null(strpbrk(s.flag, "_ABCDEFGHIJKLMNOPQRSTUVWXYZ"));
        } else {
            assert_string_equal(s.field, "no_env");
        }
    }
    assert_int_equal(rows, VALUES);
    assert_true(setting(NULL, "outer_momentum", &s) >= 0);
    assert_string_equal(s.member, "outer.momentum");
    assert_string_equal(s.chapter, "outer");
    assert_string_equal(s.variable, "DREAMDDP_OUTER_MOMENTUM");
    assert_string_equal(s.flag, "--outer-momentum");
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

static void an_invalid_value_fails_with_the_name_the_value_and_the_choices(void **state)
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
        if (!strstr(err.msg, ": choose ") || !strstr(err.msg, s.values))
            fail_msg("'%s': no choices", err.msg);
        if (!strstr(err.msg, s.preset)) fail_msg("'%s': no default", err.msg);
    }
}

static void an_error_tells_a_range_from_a_word(void **state)
{
    static const struct {
        const char *field, *value, *msg;
    } cases[] = {
        {"period", "0", "period=0 is out of range: choose 1 to 1000000 steps (default: 5)"},
        {"period", "99999999999999999999",
         "period=99999999999999999999 is out of range: choose 1 to 1000000 steps (default: 5)"},
        {"period", "five", "period=five is not a whole number: choose 1 to 1000000 steps (default: 5)"},
        {"period", "2.5", "period=2.5 is not a whole number: choose 1 to 1000000 steps (default: 5)"},
        {"period", "-", "period=- is not a whole number: choose 1 to 1000000 steps (default: 5)"},
        {"seed", "-1", "seed=-1 is out of range: choose 0 or more (default: 0)"},
        {"peer_timeout_s", "soon",
         "peer_timeout_s=soon is not a number: choose a number above 0, in seconds (default: 30; min_world: "
         "10)"},
        {"peer_timeout_s", "-3",
         "peer_timeout_s=-3 is out of range: choose a number above 0, in seconds (default: 30; min_world: "
         "10)"},
        {"clip_norm", "0,5", "clip_norm=0,5 has a decimal comma: write 0.5"},
        {"outer_lr", "-0,7", "outer_lr=-0,7 has a decimal comma: write -0.7"},
        {"defer", "0,25", "defer=0,25 has a decimal comma: write 0.25"},
        {"wire", "topk:0,01", "wire=topk:0,01 has a decimal comma: write topk:0.01"},
        {"clip_norm", "1,000,000",
         "clip_norm=1,000,000 is not a number: choose a number from 0 (default: none)"},
        {"clip_norm", "1e39", "clip_norm=1e39 is above 3.4e38: choose a number from 0 (default: none)"},
        {"clip_norm", "1e-50", "clip_norm=1e-50 is too small: choose a number from 0 (default: none)"},
        {"staleness", "3000000000",
         "staleness=3000000000 is above 2147483647: choose 0 or more steps (default: 0)"},
        {"seed", "18446744073709551615",
         "seed=18446744073709551615 is above 9223372036854775807: choose 0 or more (default: 0)"},
        {"min_world", "-2",
         "min_world=-2 is out of range: choose 0 or more (default: a lost worker is an error)"},
        {"paper", "yes", "paper=yes is invalid: choose 1 or 0 (default: 0)"},
        {"wire", "bf17",
         "wire=bf17 is unknown: choose f32, bf16, int8, int4, e3m0 or topk:FRACTION (default: f32)"},
        {"servers", "all", "servers=all is invalid: choose a number of ranks, or colocated (default: none)"},
        {"state_period", "3;4",
         "state_period=3;4 is invalid: choose 1 to 1000000 periods each, or 0,0 (default: 1,1 with "
         "average_state)"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddp_config c;
        ddp_error err;
        memset(&c, 0, sizeof c);
        assert_int_equal(ddp_config_set(&c, cases[i].field, cases[i].value, &err), DDP_ARG);
        assert_string_equal(err.msg, cases[i].msg);
    }
}

static void zeros_that_are_values_and_fractions_are_kept(void **state)
{
    ddp_config c;
    ddp_setting s;
    ddp_error err;

    (void)state;
    memset(&c, 0, sizeof c);
    assert_int_equal(ddp_config_set(&c, "state_period", "3,6", NULL), DDP_OK);
    assert_int_equal(ddp_config_set(&c, "state_period", "0,0", NULL), DDP_OK);
    assert_true(c.average.state_period[0] == 0 && c.average.state_period[1] == 0);
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
    assert_non_null(strstr(err.msg, "period=5.0 is not a whole number: choose 1 to 1000000 steps"));
    assert_int_equal(ddp_config_set(&c, "wire", "topk:2", &err), DDP_ARG);
    assert_string_equal(
        err.msg,
        "wire=topk:2 is unknown: choose f32, bf16, int8, int4, e3m0 or topk:FRACTION (default: f32)");
    assert_int_equal(ddp_config_set(&c, "state_period", "4", NULL), DDP_OK);
    assert_true(c.average.state_period[0] == 4 && c.average.state_period[1] == 4);
}

static void an_unknown_name_fails_with_the_nearest_one(void **state)
{
    ddp_config c;
    ddp_error err;

    (void)state;
    memset(&c, 0, sizeof c);
    assert_int_equal(ddp_config_set(&c, "perod", "5", &err), DDP_ARG);
    assert_string_equal(err.msg, "unknown setting perod=5: did you mean period?");
    assert_int_equal(ddp_config_set(&c, "backend", "cuda", &err), DDP_ARG);
    assert_string_equal(err.msg,
                        "unknown setting backend=cuda: docs/reference/settings.md lists all settings");
    assert_int_equal(ddp_config_set(&c, "server.count", "2", &err), DDP_ARG); /* a member of the C struct */
    assert_string_equal(err.msg, "unknown setting server.count=2: did you mean servers?");
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

/* One variable at a time fills a field that is zero, with the same value as ddp_config_set. An invalid value
 * fails. */
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
        if (!strcmp(s.field, "rank") || !strcmp(s.field, "world") || !strcmp(s.field, "addr") ||
            !strcmp(s.field, "run_id"))
            continue; /* tested in variables_of_the_launcher_fill_their_fields */
        memset(&c, 0, sizeof c);
        setenv(s.variable, values[i].good, 1);
        if (ddp__env_settings(ddp__built_in(), &c, &err)) fail_msg("%s", err.msg);
        (void)setting(&c, values[i].field, &t);
        assert_string_equal(t.value, values[i].good);
        memset(&other, 0, sizeof other);
        assert_int_equal(ddp_config_set(&other, values[i].field,
                                        !strcmp(s.values, "text") ? getenv(s.variable) : values[i].good,
                                        NULL),
                         DDP_OK);
        assert_memory_equal(&c, &other, sizeof c);
        set = c;
        setenv(s.variable, values[i].bad ? values[i].bad : "another", 1);
        assert_int_equal(ddp__env_settings(ddp__built_in(), &set, &err), DDP_OK);
        assert_memory_equal(&set, &c, sizeof c);
        if (values[i].bad && *values[i].bad) {
            char begins[80];
            memset(&other, 0, sizeof other);
            assert_int_equal(ddp__env_settings(ddp__built_in(), &other, &err), DDP_ARG);
            snprintf(begins, sizeof begins, "%.50s=%.20s", s.variable, values[i].bad);
            assert_int_equal(strncmp(err.msg, begins, strlen(begins)), 0);
            assert_non_null(strstr(err.msg, ": choose "));
        }
        setenv(s.variable, "", 1);
        memset(&other, 0, sizeof other);
        assert_int_equal(ddp__env_settings(ddp__built_in(), &other, &err), DDP_OK);
        assert_int_equal(setting(&other, values[i].field, &t) >= 0 ? t.value[0] : 1, 0);
        unsetenv(s.variable);
    }
}

static void variables_of_the_launcher_fill_their_fields(void **state)
{
    static const char *const names[] = {"rank", "world", "addr", "run_id"};
    static const char *const good[] = {"2", "4", "10.0.0.1:5", "red"};
    ddp_config zero, given, c, other;
    ddp_setting s, t;
    ddp_error err;

    (void)state;
    memset(&zero, 0, sizeof zero);
    memset(&given, 0, sizeof given);
    for (int i = 0; i < 4; i++) {
        assert_true(setting(NULL, names[i], &s) >= 0);
        setenv(s.variable, good[i], 1);
        assert_int_equal(ddp_config_set(&given, names[i], good[i], NULL), DDP_OK);
    }
    assert_int_equal(resolve(&zero, &c, &err), DDP_OK);
    forget(NULL);
    assert_int_equal(resolve(&given, &other, &err), DDP_OK);
    for (int i = 0; ddp_config_describe(&c, i, &s); i++) {
        assert_int_equal(ddp_config_describe(&other, i, &t), 1);
        if (strcmp(s.value, t.value)) fail_msg("%s: '%s', not '%s'", s.field, s.value, t.value);
    }
    for (int i = 0; i < 4; i++) {
        (void)setting(&c, names[i], &s);
        assert_string_equal(s.value, good[i]);
    }
    ddp__config_free(&c);
    ddp__config_free(&other);
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

/* docs/results/accuracy.md has the measured losses behind these values. */
static void outer_momentum_depends_on_overlap_and_period(void **state)
{
    static const struct {
        ddp_strategy strategy;
        ddp_overlap overlap;
        int period;
        double momentum;
    } row[] = {{DDP_DILOCO, DDP_OVERLAP_NONE, 0, 0.5},
               {DDP_DILOCO, DDP_OVERLAP_NONE, 50, 0.5},
               {DDP_DILOCO, DDP_OVERLAP_NONE, 51, 0.9},
               {DDP_DILOCO, DDP_OVERLAP_STREAM, 0, 0.5},
               {DDP_DILOCO, DDP_OVERLAP_STREAM, 5, 0.5},
               {DDP_DILOCO, DDP_OVERLAP_STREAM, 6, 0.9},
               {DDP_DILOCO, DDP_OVERLAP_EAGER, 5, DDP_NO_MOMENTUM},
               {DDP_SPARSELOCO, DDP_OVERLAP_NONE, 5, DDP_NO_MOMENTUM}};

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ddp_config given, c;
        ddp_error err;
        memset(&given, 0, sizeof given);
        given.strategy = row[i].strategy;
        given.outer.overlap = row[i].overlap;
        given.period = row[i].period;
        if (resolve(&given, &c, &err)) fail_msg("%s", err.msg);
        if (c.outer.momentum != row[i].momentum)
            fail_msg("row %d: momentum %g instead of %g", (int)i, c.outer.momentum, row[i].momentum);
        ddp__config_free(&c);
        given.outer.momentum = 0.25;
        assert_int_equal(resolve(&given, &c, &err), DDP_OK);
        assert_true(c.outer.momentum == 0.25);
        ddp__config_free(&c);
    }
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
    REFUSED(period, 1000001, "period 1000001 is out of range: choose 1 to 1000000 steps (default: 5)");
    REFUSED(threads, -2, "threads -2 is out of range: choose 1 to 1024 (default: 1)");
    REFUSED(timeout.peer_s, (double)INFINITY, "peer_timeout_s inf is out of range: choose a number above 0");
    REFUSED(clip_norm, (float)INFINITY, "clip_norm inf is out of range: choose a number from 0");
    REFUSED(clip_norm, -1.5f, "clip_norm -1.5 is out of range: choose a number from 0 (default: none)");
    REFUSED(outer.lr, (double)NAN,
            "outer_lr nan is out of range: choose a number above 0, at most 1e+06 (default: ");
    REFUSED(outer.momentum, 1,
            "outer_momentum 1 is out of range: choose a number from 0, below 1 (default: ");
    REFUSED(outer.momentum, -0.5, "outer_momentum -0.5 is out of range: ");
    REFUSED(osp.defer, 2,
            "defer 2 is out of range: choose auto, or a share of the model from 0 to 1 (default: auto)");
    REFUSED(server.count, -2,
            "servers -2 is out of range: choose a number of ranks, or colocated (default: ");
    REFUSED(gradient.partition_bytes, 255,
            "partition_bytes 255 is out of range: choose 256 or more bytes (default: ");
    REFUSED(timeout.peer_s, -1,
            "peer_timeout_s -1 is out of range: choose a number above 0, in seconds (default: ");
    REFUSED(transport, (ddp_transport)5,
            "transport 5 is unknown: choose tcp, threads, mpi or sockets (default: tcp)");
    REFUSED(outer.overlap, (ddp_overlap)-1,
            "overlap -1 is unknown: choose none, stream or eager (default: none)");
    REFUSED(osp.lgp, (ddp_lgp)4, "lgp 4 is unknown: choose on, off or ema (default: on)");
    REFUSED(device.nccl, 3, "nccl 3 is out of range: choose 0 to 2 (default: 0)");
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

/* ---- docs/reference/settings.md ---- */

static void put(char *page, size_t room, const char *fmt, ...)
{
    const size_t n = strlen(page);
    va_list args;

    va_start(args, fmt);
    assert_true(vsnprintf(page + n, room - n, fmt, args) < (int)(room - n));
    va_end(args);
}

/* "`timeout`: time-outs, in seconds" */
static const char *chapter_title(const char *chapter)
{
    static const char *const titles[][2] = {{"core", "Core settings"},
                                            {"average", "`average`: averages of parameters"},
                                            {"plan", "`plan`: the plan of partial averaging"},
                                            {"gradient", "`gradient`: messages of gradients"},
                                            {"choice", "`choice`: the choice of strategy auto"},
                                            {"deft", "`deft`: delayed, merged gradients"},
                                            {"server", "`server`: parameter servers"},
                                            {"osp", "`osp`: late layers of osp"},
                                            {"outer", "`outer`: the outer optimizer"},
                                            {"timeout", "`timeout`: time-outs"},
                                            {"elastic", "`elastic`: worlds that lose and admit workers"},
                                            {"security", "`security`: encryption and integrity"},
                                            {"network", "`network`: interfaces, second link, faults"},
                                            {"device", "`device`: GPUs"},
                                            {"debug", "`debug`: checks, traces and dumps"}};

    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        if (!strcmp(titles[i][0], chapter)) return titles[i][1];
    fail_msg("chapter %s has no title", chapter);
    return "";
}

static void settings_page_matches_the_table(void **state)
{
    static char page[32768], there[32768];
    static const char head[] =
        "# Settings\n\n"
        "Use this page to look up a setting: its field of `ddp_config`, its name, its variable, its values "
        "and its\n"
        "default.\n\n"
        "| set it by | example |\n|---|---|\n"
        "| the C struct | `cfg.outer.lr = 0.5;` |\n"
        "| the name | `ddp_config_set(&cfg, \"outer_lr\", \"0.5\", &err)` |\n"
        "| Python | `dreamddp.init(outer_lr=0.5)` |\n"
        "| the environment | `DREAMDDP_OUTER_LR=0.5` |\n"
        "| the flag of a program | `build/train_gpt --outer-lr 0.5`; `--help` lists the flags of a program "
        "|\n\n"
        "* Zero in the struct means the default. A variable sets a field that the program left at zero, so "
        "an explicit 0 is\n"
        "  the same as unset.\n"
        "* An empty variable is unset. `no_env` = 1 ignores all variables. An unknown `DREAMDDP_` variable "
        "is an error.\n"
        "* Numbers have a decimal point in every locale.\n"
        "* The program must not free a text before `ddp_open` returns.\n"
        "* A setting with \"yes\" in the column \"same\" must have the same value on all ranks.\n"
        "* `ddp_config_describe` returns these rows.\n"
        "* The pointers `own_strategy`, `sockets`, `cancel`, `backend`, `device.cuda_stream`, `allocator` "
        "and `logger`\n"
        "  have no name. Set them in the struct.\n\n"
        "This page is generated from src/config/settings.c:\n\n"
        "```console\n$ make build/plain/config/test_settings && REWRITE=1 "
        "build/plain/config/test_settings\n```\n";
    const char *path = "docs/reference/settings.md";
    char chapter[16] = "";
    ddp_setting s;
    FILE *f;
    size_t n;

    (void)state;
    put(page, sizeof page, "%s", head);
    for (int i = 0; ddp_config_describe(NULL, i, &s); i++) {
        if (!s.field) break;
        if (strcmp(chapter, s.chapter)) {
            snprintf(chapter, sizeof chapter, "%s", s.chapter);
            put(page, sizeof page, "\n## %s\n\n", chapter_title(chapter));
            put(page, sizeof page,
                "| field of `ddp_config` | name | variable | meaning | values | default | same "
                "|\n|---|---|---|---|---|---|---|\n");
        }
        put(page, sizeof page, "| `%s` | `%s` | %s%s%s | %s | %s | %s | %s |\n", s.member, s.field,
            s.variable ? "`" : "", s.variable ? s.variable : "", s.variable ? "`" : "", s.help, s.values,
            s.preset, s.same ? "yes" : "");
    }
    put(page, sizeof page, "\n## Variables without a field\n\n| variable | meaning |\n|---|---|\n");
    for (int i = 0; ddp_config_describe(NULL, i, &s); i++)
        if (!s.field) put(page, sizeof page, "| `%s` | %s |\n", s.variable, s.help);
    if (getenv("REWRITE")) {
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(page, f);
        assert_int_equal(fclose(f), 0);
    }
    f = fopen(path, "r");
    if (!f) fail_msg("%s not found: run this test in the repository, with REWRITE=1", path);
    n = fread(there, 1, sizeof there - 1, f);
    fclose(f);
    there[n] = 0;
    if (strcmp(there, page)) fail_msg("%s differs from the table: run this test with REWRITE=1", path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_of_ddp_config_has_a_row),
        cmocka_unit_test(every_row_is_described),
        cmocka_unit_test(every_field_round_trips),
        cmocka_unit_test(an_invalid_value_fails_with_the_name_the_value_and_the_choices),
        cmocka_unit_test(an_error_tells_a_range_from_a_word),
        cmocka_unit_test(zeros_that_are_values_and_fractions_are_kept),
        cmocka_unit_test(an_unknown_name_fails_with_the_nearest_one),
        cmocka_unit_test(every_variable_fills_its_field),
        cmocka_unit_test(variables_of_the_launcher_fill_their_fields),
        cmocka_unit_test(keys_of_the_environment_do_not_mix_with_those_of_the_program),
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(outer_momentum_depends_on_overlap_and_period),
        cmocka_unit_test(ranges_hold_for_fields_that_a_program_sets),
        cmocka_unit_test(what_ranks_compare_has_room),
        cmocka_unit_test(settings_page_matches_the_table)};

    return cmocka_run_group_tests(tests, forget, NULL);
}
