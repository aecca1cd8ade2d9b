/* Solve times of the partial planner on random profiles, whose communication takes as long as the backward
 * passes of the period.
 *
 *   cc -O2 -I. bench/bench_plan.c -o bench_plan -lm -lpthread && ./bench_plan */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"

/* The fastest of several rounds, in milliseconds. A round averages more runs if runs are short. */
static double measure(const ddp_profile *p, const ddp_plan_options *o, double *exposed)
{
    double best = INFINITY, total = 0;

    for (int n = 0; n < 200 && (n < 1 || total < 0.3); n++) {
        ddp_plan plan;
        ddp_error err;
        double start = ddp_now(), s;
        if (ddp_plan_partial(p, o, &plan, &err) != DDP_OK) {
            fprintf(stderr, "plan: %s\n", err.msg);
            exit(1);
        }
        s = ddp_now() - start;
        if (s < best) best = s;
        total += s;
        *exposed = plan.exposed_s;
        ddp_plan_free(&plan);
    }
    return best * 1e3;
}

int main(int argc, char **argv)
{
    static const int layers[] = {30, 125, 300, 1000, 4000};
    static const struct {
        const char *name;
        ddp_solver solver;
        ddp_cost cost;
        int most; /* layers */
    } rows[] = {{"optimal timeline (search)", DDP_SOLVER_OPTIMAL, DDP_COST_TIMELINE, 4000},
                {"optimal window (search)", DDP_SOLVER_OPTIMAL, DDP_COST_WINDOW, 4000},
                {"optimal sum (programme)", DDP_SOLVER_OPTIMAL, DDP_COST_SUM, 4000},
                {"dfs timeline", DDP_SOLVER_DFS, DDP_COST_TIMELINE, 4000},
                {"scatter window", DDP_SOLVER_SCATTER, DDP_COST_WINDOW, 1000}};

    int quick = 0, code;
    const cli_option table[] = {{"--quick", CLI_FLAG, &quick, "", "at most 300 layers"}};

    code = cli_parse(argc, argv, "Solve times of the partial planner on random profiles.", table, 1);
    if (code >= 0) return code;
    printf("%-28s %8s %4s %12s %14s\n", "solver", "layers", "H", "ms", "exposed/(H T)");
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        for (size_t i = 0; i < sizeof layers / sizeof layers[0] && layers[i] <= (quick ? 300 : rows[k].most);
             i++) {
            ddp_rng r = ddp_rng_seed(1, (uint64_t)layers[i]);
            ddp_plan_options o;
            ddp_profile p;
            ddp_error err;
            double exposed = 0, t = 0, ms;
            if (ddp_profile_new(layers[i], &p, &err) != DDP_OK) return 1;
            for (int l = 0; l < p.layers; l++) {
                p.backward_s[l] = 1e-3 * ddp_rng_uniform(&r);
                p.forward_s[l] = 0.5 * p.backward_s[l];
                p.comm_s[l] = 1e-2 * ddp_rng_uniform(&r);
                t += p.backward_s[l];
            }
            memset(&o, 0, sizeof o);
            o.period = 10;
            o.solver = rows[k].solver;
            o.cost = rows[k].cost;
            ms = measure(&p, &o, &exposed);
            printf("%-28s %8d %4d %12.4f %14.4f\n", rows[k].name, layers[i], o.period, ms,
                   exposed / (o.period * t));
            ddp_profile_free(&p);
        }
    return 0;
}
