/* The placement solvers on the networks of the DT-FM paper, on these networks with noise on every link,
 * and on 1,000 devices.
 *
 *   cc -O2 -I. bench/bench_place.c -o bench_place -lm -lpthread && ./bench_place
 * Reads build/networks/case1.json .. case5.json (tools/make_networks.py writes them), skips absent ones. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"

static ddp_placement run(const ddp_network *n, ddp_place_solver solver, uint64_t seed, double seconds,
                         long candidates)
{
    ddp_place_options o;
    ddp_placement p;
    ddp_error err;

    memset(&o, 0, sizeof o);
    o.solver = solver;
    o.seed = seed;
    o.time_limit_s = seconds;
    o.max_candidates = candidates;
    if (ddp_place(n, &o, &p, &err) != DDP_OK) {
        fprintf(stderr, "place: %s\n", err.msg);
        exit(1);
    }
    return p;
}

/* Seconds until the cost was within 0.1 % of the final one. */
static double settled(const ddp_placement *p)
{
    int k = p->points - 1;

    while (k > 0 && p->curve[2 * (k - 1) + 1] <= p->cost_s * 1.001) k--;
    return p->curve[2 * k];
}

static const ddp_place_solver others[] = {DDP_PLACE_GENETIC_CODE, DDP_PLACE_GENETIC, DDP_PLACE_KL,
                                          DDP_PLACE_RANDOM};

/* Prints one line: the other solvers after 5,000 candidates, anneal after a second, exact within 4 s (quick:
 * half a second). */
static void line(const char *name, const ddp_network *n, int all, double known, int quick)
{
    ddp_placement p;

    printf("%-14s", name);
    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
        if (!all) {
            printf(" %9s", "");
            continue;
        }
        p = run(n, others[k], 0, 0, 5000);
        printf(" %9.5f", p.cost_s);
        ddp_placement_free(&p);
    }
    p = run(n, DDP_PLACE_ANNEAL, 0, 1, 0);
    printf(" %9.5f %8.4f", p.cost_s, settled(&p));
    ddp_placement_free(&p);
    p = run(n, DDP_PLACE_EXACT, 0, quick ? 0.5 : 4, 0);
    if (p.proven)
        printf("  proven %5.2f s", p.solve_s);
    else
        printf("  %14s", "-");
    ddp_placement_free(&p);
    printf("  %9.5f\n", known);
}

/* The same network with noise: every solver at 5,000 candidates, then all at equal time. */
static void noisy(const char *path, int number, uint64_t seed, int quick)
{
    static const double at[] = {0.05, 0.2, 1};
    ddp_network n;
    ddp_placement p;
    double code = 0;

    if (ddp_network_read(path, "as_in_code", &n, NULL) != DDP_OK) return;
    ddp_network_noise(&n, seed, 0.25, 0.1, NULL);
    for (uint64_t s = 0; s < 3; s++) {
        p = run(&n, DDP_PLACE_GENETIC_CODE, s, 0, 5000);
        code += p.cost_s / 3;
        ddp_placement_free(&p);
    }
    for (size_t t = 0; t < (quick ? 2 : sizeof at / sizeof at[0]); t++) {
        double ours = 0;
        printf("case %d, noise %d %5.2f s ", number, (int)seed, at[t]);
        for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
            p = run(&n, others[k], 0, at[t], 0);
            printf(" %8.4f", p.cost_s);
            ddp_placement_free(&p);
        }
        for (uint64_t s = 0; s < 3; s++) {
            p = run(&n, DDP_PLACE_ANNEAL, s, at[t], 0);
            ours += p.cost_s / 3;
            ddp_placement_free(&p);
        }
        printf(" %8.4f  %5.1f %% below %.4f\n", ours, 100 * (1 - ours / code), code);
    }
    ddp_network_free(&n);
}

static void thousand(void)
{
    ddp_placement p;
    ddp_network n;

    if (ddp_network_read("tests/data/world1000.json", NULL, &n, NULL) != DDP_OK) {
        printf("skipped: no tests/data/world1000.json; run from the project's root\n");
        return;
    }
    ddp_network_noise(&n, 1, 0.25, 0.1, NULL);
    for (int k = 0; k < 5; k++) {
        ddp_place_solver s = k ? others[k - 1] : DDP_PLACE_ANNEAL;
        p = run(&n, s, 0, 10, 0);
        printf("%-14s %10.4f after %5.2f s, %ld candidates; first %.4f after %.2f s\n",
               ddp_place_solver_name(s), p.cost_s, p.solve_s, p.candidates, p.curve[1], p.curve[0]);
        if (!k)
            for (double t = 0.25; t < 11; t *= 2) {
                int m = 0;
                while (m + 1 < p.points && p.curve[2 * (m + 1)] <= t) m++;
                printf("    after %5.2f s %10.4f\n", t, p.curve[2 * m + 1]);
            }
        ddp_placement_free(&p);
    }
    ddp_network_free(&n);
}

int main(int argc, char **argv)
{
    static const double known[2][5] = {{3.43980, 31.63416, 16.08684, 34.80204, 49.21838},
                                       {0.41179, 4.43256, 10.86726, 37.08408, 51.50042}};
    const char *variant[2] = {"as_in_code", NULL};
    char path[512], name[32];
    int quick = 0, skipped = 0, code;
    const cli_option table[] = {
        {"--quick", CLI_FLAG, &quick, "", "shorter searches, and no 1,000 devices"},
    };
    ddp_network n;

    code = cli_parse(argc, argv,
                     "Every solver of ddp_place on the networks of the DT-FM paper, on "
                     "the same with\nnoise, and on 1,000 devices. Run tools/make_networks.py first.",
                     table, 1);
    if (code >= 0) return code;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    printf("seconds of communication per iteration; solvers at 5,000 candidates, anneal at 1 s\n"
           "%-14s %9s %9s %9s %9s %9s %8s %15s %10s\n",
           "network", "gen.-code", "genetic", "kl", "random", "anneal", "settled", "exact", "best known");
    for (int v = 0; v < 2; v++)
        for (int c = 1; c <= 5; c++) {
            snprintf(path, sizeof path, "build/networks/case%d.json", c);
            snprintf(name, sizeof name, "case %d %s", c, v ? "paper" : "code");
            if (ddp_network_read(path, variant[v], &n, NULL) != DDP_OK) {
                printf("%-14s skipped: no %s\n", name, path);
                skipped++;
                continue;
            }
            line(name, &n, !v, known[v][c - 1], quick);
            ddp_network_free(&n);
        }
    printf("\nnoise on every link (lognormal, 0.25 on rates, 0.1 on delays), all at equal time\n"
           "%-23s %9s %8s %8s %8s %8s  below genetic-code at 5,000 candidates (mean of 3 seeds)\n",
           "", "gen.-code", "genetic", "kl", "random", "anneal");
    for (int c = 4; c <= 5; c++) {
        snprintf(path, sizeof path, "build/networks/case%d.json", c);
        noisy(path, c, 1, quick);
    }
    if (skipped) printf("%d of 10 networks skipped; run tools/make_networks.py first\n", skipped);
    if (quick) return 0;
    printf("\n1,000 devices, 25 pipelines of 40 stages\n");
    thousand();
    return 0;
}
