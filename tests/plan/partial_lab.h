/* Profiles and plans of the partial planner. MOST, the limit of layers, is defined by the file that includes
 * this one. */
#ifndef TESTS_PARTIAL_LAB_H
#define TESTS_PARTIAL_LAB_H

/* A profile that contains its arrays. */
typedef struct instance {
    ddp_profile p;
    double f[MOST], b[MOST], c[MOST];
} instance;

static void instance_init(instance *x, int layers)
{
    memset(x, 0, sizeof *x);
    x->p.layers = layers;
    x->p.forward_s = x->f;
    x->p.backward_s = x->b;
    x->p.comm_s = x->c;
}

static ddp_plan solve_within(double time_limit_s, const ddp_profile *p, ddp_solver solver, ddp_cost cost,
                             int period, ddp_fill fill)
{
    ddp_plan_options o;
    ddp_plan plan;
    ddp_error err;

    memset(&o, 0, sizeof o);
    o.period = period;
    o.solver = solver;
    o.cost = cost;
    o.fill = fill;
    o.time_limit_s = time_limit_s;
    err.msg[0] = 0;
    if (ddp_plan_partial(p, &o, &plan, &err) != DDP_OK) fail_msg("%s", err.msg);
    return plan;
}

static ddp_plan solve(const ddp_profile *p, ddp_solver solver, ddp_cost cost, int period, ddp_fill fill)
{
    return solve_within(0, p, solver, cost, period, fill);
}

#endif
