/* Measures the network between workers, or compares the dumps of a stuck run.
 *
 *   cc -O2 -I. examples/netcheck/netcheck.c -o netcheck -lm -lpthread
 *   ./netcheck --workers 4 --net 100mbit,20ms            (this machine)
 *   ./netcheck --workers 2 --rank 0 --addr 10.0.0.1:29500 --insecure      (on each machine)
 *   torchrun --no-python --nproc-per-node 2 ./netcheck   (or mpirun, srun: any launcher)
 *   ./netcheck --merge dump.0.jsonl dump.1.jsonl
 *
 * A table of latencies, rates, alpha + beta per pair and per host, and clock offsets. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../common/cli.h"
#include "../common/connect.h"
#include "../common/watcher.h"
#include "merge.h"

typedef struct netcheck {
    const char *json, *network, *net, *tflops, *require;
    double dp_bytes, pp_bytes;  /* 0 if unknown */
    double least_mbit, most_ms; /* of require, or 0 for any */
    int alone;                  /* the run has one worker */
} netcheck;

enum { CELL_PING, CELL_MEDIAN, CELL_RATE, CELL_ALPHA, CELL_CLOCK };

static double netcheck_cell(const ddp_pair *p, int what)
{
    switch (what) {
    case CELL_PING:
        return 1e3 * p->ping_s;
    case CELL_MEDIAN:
        return 1e3 * p->ping_median_s;
    case CELL_RATE:
        return p->link.beta_s > 0 ? 8e-6 / p->link.beta_s : 8e-6 * p->rate;
    case CELL_ALPHA:
        return 1e3 * p->link.alpha_s;
    default:
        return 1e3 * p->offset_s;
    }
}

static void netcheck_matrix(const ddp_probe_result *r, const char *title, int what)
{
    int i, k;

    printf("\n%s\n%8s", title, "");
    for (k = 0; k < r->world; k++) printf(" %10d", k);
    for (i = 0; i < r->world; i++) {
        printf("\n%8d", i);
        for (k = 0; k < r->world; k++)
            if (i == k)
                printf(" %10s", "-");
            else
                printf(" %10.4g", netcheck_cell(&r->pair[i * r->world + k], what));
    }
    printf("\n");
}

static void netcheck_table(const ddp_probe_result *r, const float *gflops)
{
    int i;

    int relayed = 0, k;

    for (i = 0; i < r->world; i++)
        for (k = i + 1; k < r->world; k++) {
            if (!r->pair[i * r->world + k].relayed) continue;
            printf("%s%d-%d", relayed++ ? ", " : "relayed through worker 0: ", i, k);
        }
    if (relayed) printf("\n");
    printf("%d workers, every one reaches every other%s; probed in %.1f s\n", r->world,
           relayed ? ", those pairs through worker 0" : "", r->seconds);
    netcheck_matrix(r, "latency, smallest of the pings, ms one way", CELL_PING);
    netcheck_matrix(r, "latency, median, ms one way", CELL_MEDIAN);
    netcheck_matrix(r, "bandwidth, Mbit/s, row sends to column", CELL_RATE);
    netcheck_matrix(r, "alpha, ms: an empty message, row sends to column", CELL_ALPHA);
    netcheck_matrix(r, "clock of the column minus clock of the row, ms", CELL_CLOCK);
    printf("\n%8s  %-24s %10s %14s %12s %12s\n", "worker", "host", "alpha ms", "beta ns/byte", "Mbit/s",
           "CPU GFLOP/s");
    for (i = 0; i < r->world; i++)
        printf("%8d  %-24.24s %10.4g %14.5g %12.5g %12.4g\n", i, r->name[i], 1e3 * r->host[i].alpha_s,
               1e9 * r->host[i].beta_s, r->host[i].beta_s > 0 ? 8e-6 / r->host[i].beta_s : 0,
               (double)gflops[i]);
}

/* Finds the worst pair in one of the matrices. */
static int netcheck_worst(const ddp_probe_result *r, int what, int least)
{
    int worst = -1;

    for (int at = 0; at < r->world * r->world; at++) {
        const double x = netcheck_cell(&r->pair[at], what),
                     y = worst < 0 ? 0 : netcheck_cell(&r->pair[worst], what);
        if (at / r->world != at % r->world && (worst < 0 || (least ? x < y : x > y))) worst = at;
    }
    return worst;
}

/* Checks the slowest and the most distant pair against --require. Rank 0 prints the result. */
static int netcheck_met(const netcheck *n, const ddp_probe_result *r, int rank)
{
    const int slow = netcheck_worst(r, CELL_RATE, 1), far = netcheck_worst(r, CELL_MEDIAN, 0);
    const double mbit = netcheck_cell(&r->pair[slow], CELL_RATE),
                 ms = netcheck_cell(&r->pair[far], CELL_MEDIAN);
    const int fast = mbit >= n->least_mbit, near = n->most_ms <= 0 || ms <= n->most_ms;

    if (rank == 0)
        printf("\nrequired %s: %s\n  slowest pair   %d to %d  %.4g Mbit/s%s\n  farthest pair  %d to %d  %.4g "
               "ms%s\n",
               n->require, fast && near ? "met" : "not met", slow / r->world, slow % r->world, mbit,
               fast ? "" : "  too slow", far / r->world, far % r->world, ms, near ? "" : "  too far");
    return fast && near;
}

static void netcheck_json_matrix(ddp_jsonl *j, const ddp_probe_result *r, const char *key, int what)
{
    int i, k;

    ddp_jsonl_array(j, key);
    for (i = 0; i < r->world; i++) {
        ddp_jsonl_array(j, NULL);
        for (k = 0; k < r->world; k++)
            ddp_jsonl_number(j, NULL, i == k ? NAN : netcheck_cell(&r->pair[i * r->world + k], what));
        ddp_jsonl_up(j);
    }
    ddp_jsonl_up(j);
}

static ddp_status netcheck_json(const netcheck *n, const ddp_probe_result *r, const float *gflops, int met,
                                ddp_error *err)
{
    ddp_jsonl *j = ddp_jsonl_open(n->json, err);
    int i, k;

    if (!j) return err->code;
    ddp_jsonl_event(j, NULL);
    ddp_jsonl_string(j, "event", "netcheck");
    ddp_jsonl_integer(j, "workers", r->world);
    ddp_jsonl_string(j, "net", n->net);
    ddp_jsonl_number(j, "seconds", r->seconds);
    if (n->require) {
        ddp_jsonl_string(j, "required", n->require);
        ddp_jsonl_integer(j, "met", met);
    }
    ddp_jsonl_array(j, "relayed");
    for (i = 0; i < r->world; i++)
        for (k = i + 1; k < r->world; k++) {
            if (!r->pair[i * r->world + k].relayed) continue;
            ddp_jsonl_array(j, NULL);
            ddp_jsonl_integer(j, NULL, i);
            ddp_jsonl_integer(j, NULL, k);
            ddp_jsonl_up(j);
        }
    ddp_jsonl_up(j);
    netcheck_json_matrix(j, r, "latency_ms", CELL_PING);
    netcheck_json_matrix(j, r, "latency_median_ms", CELL_MEDIAN);
    netcheck_json_matrix(j, r, "bandwidth_mbit", CELL_RATE);
    netcheck_json_matrix(j, r, "alpha_ms", CELL_ALPHA);
    netcheck_json_matrix(j, r, "clock_offset_ms", CELL_CLOCK);
    ddp_jsonl_array(j, "hosts");
    for (i = 0; i < r->world; i++) {
        ddp_jsonl_object(j, NULL);
        ddp_jsonl_string(j, "name", r->name[i]);
        ddp_jsonl_number(j, "alpha_ms", 1e3 * r->host[i].alpha_s);
        ddp_jsonl_number(j, "beta_ns_per_byte", 1e9 * r->host[i].beta_s);
        ddp_jsonl_number(j, "cpu_gflops", (double)gflops[i]);
        ddp_jsonl_up(j);
    }
    ddp_jsonl_up(j);
    ddp_jsonl_end(j);
    return ddp_jsonl_close(j, err);
}

/* Measures matrix products on one thread of this CPU, in 10^9 operations per second. 0 means that it cannot
 * be measured. */
static float netcheck_gflops(void)
{
    enum { ROWS = 256, WIDTH = 512 };
    const double flops = 2.0 * (double)(ROWS * WIDTH * WIDTH);
    ddp_graph *g = ddp_graph_new(NULL);
    double best = 0, begin;
    int i, bad;

    ddp_layer_begin(g, "product");
    ddp_linear(g, ddp_input(g, "x", DDP_F32, ROWS, WIDTH), WIDTH);
    ddp_layer_end(g);
    bad = ddp_graph_build(g);
    for (i = 0; i < 6 && !bad; i++) {
        begin = ddp_now();
        bad = ddp_evaluate(g);
        if (i && flops / (ddp_now() - begin) > best)
            best = flops / (ddp_now() - begin); /* the first one
                                                                                            warms up */
    }
    ddp_graph_free(g);
    return bad ? 0 : (float)(best * 1e-9);
}

/* Returns the value of a device in "X,X,..", TFLOP/s. The last value also applies to all later devices. -1
 * means that a value is not a number above 0. */
static double netcheck_tflops(const char *list, int device)
{
    double own = 0;
    int i = 0;

    while (list) {
        char *end;
        const double x = strtod(list, &end);
        if (end == list || (*end && *end != ',') || !(x > 0 && x <= 1e9)) return -1;
        if (i++ <= device) own = x;
        list = *end ? end + 1 : NULL;
    }
    return own;
}

static ddp_status netcheck_network(const netcheck *n, const ddp_probe_result *r, const float *gflops,
                                   ddp_error *err)
{
    ddp_network net;
    ddp_status s = ddp_probe_network(r, &net, err);
    int i, known = 1;

    if (s != DDP_OK) return s;
    net.dp_bytes = n->dp_bytes;
    net.pp_bytes = n->pp_bytes;
    for (i = 0; i < r->world; i++) known &= n->tflops || gflops[i] > 0;
    net.speed = known ? (double *)calloc((size_t)r->world, sizeof *net.speed) : NULL;
    for (i = 0; net.speed && i < r->world; i++)
        net.speed[i] = n->tflops ? 1e12 * netcheck_tflops(n->tflops, i) : 1e9 * (double)gflops[i];
    s = ddp_network_write(&net, n->network, err);
    ddp_network_free(&net);
    return s;
}

static int netcheck_worker(ddp_ctx *d, void *user)
{
    netcheck *n = (netcheck *)user;
    float *gflops;
    ddp_probe_result r;
    ddp_error err;
    watcher w;
    int bad, met = 1;

    n->alone = ddp_world(d) < 2;
    if (n->alone) return DDP_USAGE;
    gflops = (float *)calloc((size_t)ddp_world(d), sizeof *gflops);
    if (!gflops) return DDP_MEMORY;
    memset(&r, 0, sizeof r);
    watcher_start(&w, d, NULL, 0);
    bad = ddp_probe(d, &r);
    if (!bad) gflops[ddp_rank(d)] = netcheck_gflops();
    if (!bad) bad = ddp_all_gather(d, gflops, 1);
    watcher_stop(&w);
    memset(&err, 0, sizeof err);
    if (!bad && ddp_rank(d) == 0) netcheck_table(&r, gflops);
    if (!bad && n->require) met = netcheck_met(n, &r, ddp_rank(d));
    if (!bad && ddp_rank(d) == 0) {
        if (n->json) bad = (int)netcheck_json(n, &r, gflops, met, &err);
        if (!bad && n->network) bad = (int)netcheck_network(n, &r, gflops, &err);
        if (bad) fprintf(stderr, "netcheck: %s\n", err.msg);
    }
    ddp_probe_free(&r);
    free(gflops);
    return bad ? bad : met ? 0 : DDP_FAILED;
}

static int netcheck_merge(int argc, char **argv)
{
    ddp_error err;
    ddp_status s;

    if (argc < 1) {
        fprintf(stderr, "netcheck: --merge needs the dumps of the ranks: --merge dump.*.jsonl\n");
        return 2;
    }
    s = dumps_merge((const char *const *)argv, argc, stdout, &err);
    if (s != DDP_OK) fprintf(stderr, "netcheck: %s\n", err.msg);
    return ddp_status_exit_code(s);
}

int main(int argc, char **argv)
{
    const char *merge = NULL;
    int code, count;
    connection meet;
    netcheck n;
    ddp_config cfg;
    const cli_option own[] = {
        {"Measurement", CLI_GROUP, NULL, NULL, NULL},
        {"--workers", CLI_COUNT, &meet.workers, "N", "number of workers [as many as a launcher started]"},
        {"--require", CLI_TEXT, &n.require, "RATE,DELAY",
         "required of every pair, such as 200mbit,80ms; exit code 1 if a pair is slower"},
        {"--json", CLI_TEXT, &n.json, "FILE", "file for the results as one JSON object"},
        {"--merge", CLI_TEXT, &merge, "FILES...",
         "compare the dump files of a failed run and print where its ranks differ; first argument, no "
         "others"},
        {"Network file", CLI_GROUP, NULL, NULL, NULL},
        {"--write-network", CLI_TEXT, &n.network, "FILE",
         "file for N, delays, rates and speeds, input of `plan place`, `plan fence` and --net"},
        {"--dp-bytes", CLI_REAL, &n.dp_bytes, "B",
         "c_dp_bytes of that file: bytes that the replicas of a stage average per iteration"},
        {"--pp-bytes", CLI_REAL, &n.pp_bytes, "B",
         "c_pp_bytes of that file: bytes that a pipeline sends over one hop"},
        {"--tflops", CLI_TEXT, &n.tflops, "X,X,..",
         "speeds of the devices in that file; the last applies to the others [one CPU thread's]"},
    };
    cli_range ranges[] = {{"--dp-bytes", 0, 0, 0}, {"--pp-bytes", 0, 0, 0}};
    cli_option table[sizeof own / sizeof own[0] + CONNECT_OPTIONS];
    ddp_error err;

    memset(&n, 0, sizeof n);
    memset(&cfg, 0, sizeof cfg);
    if (argc > 1 && !strcmp(argv[1], "--merge")) return netcheck_merge(argc - 2, argv + 2);
    if (argc > 1 && !strncmp(argv[1], "--merge=", 8)) {
        argv[1] += 8;
        return netcheck_merge(argc - 1, argv + 1);
    }
    count = (int)(sizeof own / sizeof own[0]);
    memcpy(table, own, sizeof own);
    count += connect_options(&meet, &cfg, table + count);
    code = cli_parse(argc, argv, "Measures the links between workers.", table, count);
    if (code >= 0) return code;
    if (merge) {
        fprintf(stderr, "netcheck: --merge must be the first argument, followed only by files\n");
        return 2;
    }
    if ((n.dp_bytes != 0 || n.pp_bytes != 0 || n.tflops) && !n.network) {
        fprintf(stderr, "netcheck: --dp-bytes, --pp-bytes and --tflops belong to --write-network FILE\n");
        return 2;
    }
    ranges[0].value = n.dp_bytes;
    ranges[1].value = n.pp_bytes;
    if (cli_out_of_range(ranges, 2, err.msg, sizeof err.msg)) {
        fprintf(stderr, "netcheck: %s\n", err.msg);
        return 2;
    }
    if (n.tflops && netcheck_tflops(n.tflops, 0) < 0) {
        fprintf(stderr, "netcheck: --tflops %s: numbers above 0 with commas, 10^12 operations per second\n",
                n.tflops);
        return 2;
    }
    if (n.require && ddp_net_parse(n.require, &n.least_mbit, &n.most_ms, &err) != DDP_OK) {
        fprintf(stderr, "netcheck: --require: %s\n", err.msg);
        return 2;
    }
    n.least_mbit *= 8e-6;
    n.most_ms *= 1e3;
    code = connect_configure("netcheck", &meet, &cfg);
    if (code) return code;
    n.net = cfg.net;
    cli_catch_interrupt();
    watcher_catch();
    memset(&err, 0, sizeof err);
    code = ddp_launch(&cfg, netcheck_worker, &n, &err);
    if (cli_interrupted) return 130;
    if (n.alone) {
        fprintf(stderr, "netcheck: one worker has no links to measure; use --workers N, from 2 to 256, or a "
                        "launcher\n");
        return 2;
    }
    if (code && !strstr(err.msg, "without an error of the context"))
        fprintf(stderr, "netcheck: %s\n", err.msg);
    return ddp_status_exit_code((ddp_status)code);
}
