/* [pure] Networks as JSON: groups and full matrices, variants, and the errors of invalid files. */
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
    strcpy(dir, "/tmp/ddp_network_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/net.json", dir);
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

static ddp_network read_text(const char *text, const char *variant)
{
    ddp_network n;
    ddp_error err;

    put(text);
    if (ddp_network_read(path, variant, &n, &err) != DDP_OK) fail_msg("%s", err.msg);
    return n;
}

static void refused(const char *text, const char *variant, ddp_status code, const char *why)
{
    ddp_network n;
    ddp_error err;

    put(text);
    memset(&n, 42, sizeof n);
    assert_int_equal(ddp_network_read(path, variant, &n, &err), code);
    assert_int_equal(n.devices, 0x2a2a2a2a); /* the output is unchanged */
    if (!strstr(err.msg, why)) fail_msg("'%s' does not contain '%s'", err.msg, why);
    assert_int_equal(ddp_network_read(path, variant, &n, NULL), code);
}

static const char groups[] =
    "{\"N\": 4, \"D_dp\": 2, \"D_pp\": 2, \"c_pp_bytes\": 1000, \"c_dp_bytes\": 500,\n"
    "\"groups\": [\"a\", \"b\"], \"devices_per_group\": [3, 1],\n"
    "\"delay_ms\": [[1, 20], [30, 0]], \"bandwidth_gbps\": [[8, 0.8], [0.4, 0]],\n"
    "\"tflops\": [10, 20], \"memory_gb\": [1, 2, 3, 4],\n"
    "\"slow\": {\"c_pp_bytes\": 7, \"bandwidth_gbps\": [[4, 0.2], [0.1, 1]]}}";

static void groups_become_devices(void **state)
{
    ddp_network n = read_text(groups, NULL);

    (void)state;
    assert_int_equal(n.devices, 4);
    assert_int_equal(n.pipelines, 2);
    assert_int_equal(n.stages, 2);
    assert_true(n.pp_bytes == 1000 && n.dp_bytes == 500);
    assert_int_equal(n.groups, 2);
    assert_string_equal(n.group_name[1], "b");
    assert_int_equal(n.group[2], 0);
    assert_int_equal(n.group[3], 1);
    assert_float_equal(n.delay_s[0 * 4 + 1], 0.001, 1e-15);
    assert_float_equal(n.delay_s[0 * 4 + 3], 0.020, 1e-15);
    assert_float_equal(n.delay_s[3 * 4 + 0], 0.030, 1e-15);
    assert_true(n.delay_s[5] == 0 && n.rate[5] == 0);
    assert_float_equal(n.rate[0 * 4 + 2], 1e9, 1e-3);
    assert_float_equal(n.rate[2 * 4 + 3], 1e8, 1e-3);
    assert_float_equal(n.rate[3 * 4 + 2], 0.5e8, 1e-3);
    assert_float_equal(n.speed[3], 20e12, 1);
    assert_float_equal(n.memory_bytes[2], 3e9, 1);
    ddp_network_free(&n);
    assert_int_equal(n.devices, 0);
    ddp_network_free(&n);
    ddp_network_free(NULL);
}

static void variant_replaces_members(void **state)
{
    ddp_network n = read_text(groups, "slow");

    (void)state;
    assert_true(n.pp_bytes == 7 && n.dp_bytes == 500);
    assert_float_equal(n.rate[1], 0.5e9, 1e-3);
    assert_float_equal(n.delay_s[1], 0.001, 1e-15);
    ddp_network_free(&n);
    n = read_text(groups, "");
    assert_true(n.pp_bytes == 1000);
    ddp_network_free(&n);
}

static void full_matrices_need_no_groups(void **state)
{
    ddp_network n = read_text("{\"delay_ms\": [[null, 1, 2], [3, -9, 4], [5, 6, 0]],\n"
                              "\"bandwidth_gbps\": [[0, 1, 2], [3, 0, 4], [5, 6, null]]}",
                              NULL);

    (void)state;
    assert_int_equal(n.devices, 3);
    assert_int_equal(n.pipelines, 0);
    assert_null(n.group);
    assert_null(n.speed);
    assert_float_equal(n.delay_s[2 * 3 + 1], 0.006, 1e-15);
    assert_float_equal(n.rate[1 * 3 + 2], 5e8, 1e-3);
    assert_true(n.delay_s[4] == 0 && n.rate[8] == 0);
    ddp_network_free(&n);
}

static void groups_may_name_full_matrices(void **state)
{
    ddp_network n = read_text("{\"devices_per_group\": [1, 2],\n"
                              "\"delay_ms\": [[0, 1, 2], [1, 0, 4], [2, 4, 0]],\n"
                              "\"bandwidth_gbps\": [[0, 1], [1, 2]]}",
                              NULL);

    (void)state;
    assert_int_equal(n.devices, 3);
    assert_null(n.group_name);
    assert_float_equal(n.delay_s[1 * 3 + 2], 0.004, 1e-15);
    assert_float_equal(n.rate[1 * 3 + 2], 2.5e8, 1e-3);
    ddp_network_free(&n);
}

static void invalid_networks_fail_with_the_fault(void **state)
{
    (void)state;
    refused("[1]", NULL, DDP_FORMAT, "is not a JSON object");
    refused("{", NULL, DDP_FORMAT, "net.json, line 1");
    refused(groups, "fast", DDP_ARG, "has no variant 'fast'; it has: slow");
    refused(groups, "N", DDP_ARG, "has no variant 'N'");
    refused("{\"delay_ms\": [[0]]}", NULL, DDP_FORMAT, "\"bandwidth_gbps\" is missing");
    refused("{\"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT, "\"delay_ms\" is missing");
    refused("{\"bandwidth_gbps\": []}", NULL, DDP_FORMAT, "must have 1 to");
    refused("{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1]]}", NULL, DDP_FORMAT,
            "\"bandwidth_gbps\" is not square: row 1 has 1 numbers, not 2");
    refused("{\"delay_ms\": [[0, 1]], \"bandwidth_gbps\": [[0, 1], [1, 0]]}", NULL, DDP_FORMAT,
            "\"delay_ms\" has 1 rows; it needs 2, one per device");
    refused("{\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 0], [1, 0]]}", NULL, DDP_ARG,
            "from device 0 to device 1 carries 0 bytes/s; every pair must be connected");
    refused("{\"delay_ms\": [[0, 1], [-1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]]}", NULL, DDP_ARG,
            "delay from device 1 to device 0 is -0.001 s");
    refused("{\"delay_ms\": [[0, \"x\"], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]]}", NULL, DDP_FORMAT,
            "line 1, column 19: \"delay_ms\" must hold numbers");
    refused("{\"N\": 3, \"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]]}", NULL, DDP_ARG,
            "N is 3, but the matrices are of 2 devices");
    refused("{\"N\": 2.5, \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT,
            "\"N\" must be a whole number");
    refused("{\"D_dp\": 2, \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT,
            "\"c_dp_bytes\" is missing");
    refused("{\"D_dp\": 2, \"D_pp\": 2, \"c_dp_bytes\": 1, \"c_pp_bytes\": 1,"
            "\"delay_ms\": [[0, 1], [1, 0]], \"bandwidth_gbps\": [[0, 1], [1, 0]]}",
            NULL, DDP_ARG, "2 devices are not D_dp x D_pp = 2 x 2 = 4");
    refused("{\"c_dp_bytes\": -1, \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT,
            "\"c_dp_bytes\" must not be negative");
    refused("{\"devices_per_group\": [0], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT,
            "whole numbers of at least 1");
    refused("{\"devices_per_group\": [1e9], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL,
            DDP_FORMAT, "adds up to 1000000000 devices");
    refused("{\"devices_per_group\": [], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT,
            "adds up to 0 devices");
    refused("{\"devices_per_group\": [1], \"groups\": [\"a\", \"b\"], \"delay_ms\": [[0]],"
            "\"bandwidth_gbps\": [[0]]}",
            NULL, DDP_FORMAT, "\"groups\" must name each group");
    refused("{\"devices_per_group\": [1], \"groups\": [3], \"delay_ms\": [[0]],"
            "\"bandwidth_gbps\": [[0]]}",
            NULL, DDP_FORMAT, "names in quotes");
    refused("{\"devices_per_group\": [2, 1], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL,
            DDP_FORMAT, "has 1 rows; it needs 2, one per group");
    refused("{\"devices_per_group\": [2], \"delay_ms\": [[null]], \"bandwidth_gbps\": [[1]]}", NULL,
            DDP_FORMAT, "must hold numbers");
    refused("{\"tflops\": [1, 2], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_FORMAT,
            "\"tflops\" has 2 numbers; it needs one per device");
    refused("{\"tflops\": [0], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_ARG,
            "speed of device 0 is 0");
    refused("{\"memory_gb\": [-1], \"delay_ms\": [[0]], \"bandwidth_gbps\": [[0]]}", NULL, DDP_ARG,
            "memory of device 0 is -1e+09");
}

static void network_in_memory_is_checked(void **state)
{
    ddp_network n;
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_network_new(0, &n, &err), DDP_ARG);
    assert_int_equal(ddp_network_new(1 << 20, &n, &err), DDP_ARG);
    assert_int_equal(ddp_network_new(2, &n, &err), DDP_OK);
    assert_int_equal(ddp_network_check(&n, &err), DDP_ARG); /* all rates are 0 */
    n.rate[1] = n.rate[2] = 1;
    assert_int_equal(ddp_network_check(&n, &err), DDP_OK);
    n.rate[1] = INFINITY;
    assert_int_equal(ddp_network_check(&n, &err), DDP_ARG);
    n.rate[1] = 1;
    n.delay_s[2] = NAN;
    assert_int_equal(ddp_network_check(&n, &err), DDP_ARG);
    n.delay_s[2] = 0;
    n.pp_bytes = INFINITY;
    assert_int_equal(ddp_network_check(&n, &err), DDP_ARG);
    n.pp_bytes = 0;
    n.pipelines = -1;
    assert_int_equal(ddp_network_check(&n, &err), DDP_ARG);
    assert_int_equal(ddp_network_check(NULL, &err), DDP_ARG);
    ddp_network_free(&n);
    memset(&n, 0, sizeof n);
    assert_int_equal(ddp_network_check(&n, NULL), DDP_ARG);
    assert_int_equal(ddp_network_read("absent.json", NULL, &n, &err), DDP_IO);
}

/* Noise is one factor per pair, the same in both directions, with the given deviation. Another seed gives
 * other factors. */
static void noise_is_one_factor_per_pair(void **state)
{
    enum { N = 200 };
    const double sigma[2] = {0.25, 0.1};
    double sum[2] = {0, 0}, square[2] = {0, 0}, pairs = N * (N - 1) / 2.0;
    ddp_network n, other;
    ddp_error err;
    int i, j, k;

    (void)state;
    assert_int_equal(ddp_network_new(N, &n, NULL), DDP_OK);
    assert_int_equal(ddp_network_new(N, &other, NULL), DDP_OK);
    for (i = 0; i < N * N; i++) {
        n.rate[i] = other.rate[i] = 1e8 + i;
        n.delay_s[i] = other.delay_s[i] = 1e-3 * (1 + i);
    }
    assert_int_equal(ddp_network_noise(&n, 1, -0.1, 0, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "noise of sigma -0.1 on rates"));
    assert_int_equal(ddp_network_noise(&n, 1, 0, NAN, NULL), DDP_ARG);
    assert_int_equal(ddp_network_noise(&n, 1, 5, 0, NULL), DDP_ARG);
    assert_int_equal(ddp_network_noise(NULL, 1, 0, 0, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the network or one of its matrices is NULL"));
    assert_int_equal(ddp_network_noise(&n, 1, 0, 0, NULL), DDP_OK);
    assert_memory_equal(n.rate, other.rate, N * N * sizeof *n.rate);
    assert_int_equal(ddp_network_noise(&n, 1, sigma[0], sigma[1], NULL), DDP_OK);
    assert_int_equal(ddp_network_noise(&other, 2, sigma[0], sigma[1], NULL), DDP_OK);
    assert_true(n.rate[1] != other.rate[1] && n.delay_s[1] != other.delay_s[1]);
    for (i = 0; i < N; i++) {
        assert_true(n.rate[i * N + i] == 1e8 + i * N + i);
        for (j = i + 1; j < N; j++) {
            double there[2], back[2];
            there[0] = log(n.rate[i * N + j] / (1e8 + i * N + j));
            back[0] = log(n.rate[j * N + i] / (1e8 + j * N + i));
            there[1] = log(n.delay_s[i * N + j] / (1e-3 * (1 + i * N + j)));
            back[1] = log(n.delay_s[j * N + i] / (1e-3 * (1 + j * N + i)));
            for (k = 0; k < 2; k++) {
                if (!(fabs(there[k] - back[k]) < 1e-12)) fail_msg("%d, %d: the directions differ", i, j);
                sum[k] += there[k];
                square[k] += there[k] * there[k];
            }
        }
    }
    for (k = 0; k < 2; k++) { /* 19,900 pairs: the mean is within 4 standard errors */
        if (!(fabs(sum[k] / pairs) < 4 * sigma[k] / sqrt(pairs))) fail_msg("mean %g", sum[k] / pairs);
        if (!(fabs(sqrt(square[k] / pairs) / sigma[k] - 1) < 0.02))
            fail_msg("deviation %g", sqrt(square[k] / pairs));
    }
    ddp_network_free(&n);
    ddp_network_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_become_devices),
        cmocka_unit_test(variant_replaces_members),
        cmocka_unit_test(full_matrices_need_no_groups),
        cmocka_unit_test(groups_may_name_full_matrices),
        cmocka_unit_test(invalid_networks_fail_with_the_fault),
        cmocka_unit_test(network_in_memory_is_checked),
        cmocka_unit_test(noise_is_one_factor_per_pair),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
