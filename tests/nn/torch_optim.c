/* Runs one built-in update rule and prints initial values, gradients, parameters and state of each step,
 * one line each, for test_torch_optim.py and test_same_bits.sh.
 *   torch_optim sgd|nesterov|adam|adamw|muon LR HYPER0 HYPER1 EPS DECAY STEPS COUNT [ROWS] */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

static void print_line(const char *what, const float *x, size_t n)
{
    size_t i;

    printf("%s", what);
    for (i = 0; i < n; i++) printf(" %.9g", (double)x[i]);
    printf("\n");
}

/* rows 0: the block is not a matrix. */
static void run(const ddp_optimizer *rule, long steps, size_t n, size_t rows)
{
    size_t states = (size_t)(rows ? rule->matrix_state : rule->state_per_param), i;
    ddp__muon_desk desk;
    float *params = (float *)ddp__calloc(n, 4), *grads = (float *)ddp__calloc(n, 4);
    float *state = (float *)ddp__calloc(states * n, 4);
    ddp_rng r = ddp_rng_seed(5, 0);
    ddp_update u;

    if (!params || !grads || !state) exit(1);
    for (i = 0; i < n; i++) params[i] = (float)ddp_rng_normal(&r);
    print_line("start", params, n);
    memset(&u, 0, sizeof u);
    u.params = params;
    u.grads = grads;
    u.state = state;
    u.count = n;
    u.lr = rule->lr;
    u.rows = rows;
    u.columns = rows ? n / rows : 0;
    u.desk = &desk;
    desk.at = (float *)ddp__calloc(ddp__muon_room(u.rows, u.columns) + 1, 4);
    desk.pool = NULL;
    if (!desk.at) exit(1);
    for (u.step = 0; u.step < steps; u.step++) {
        for (i = 0; i < n; i++) grads[i] = (float)(ddp_rng_normal(&r) * (i % 7 ? 1 : 1e-3));
        print_line("grads", grads, n);
        rule->update(rule, &u);
        print_line("params", params, n);
        for (i = 0; i < states; i++) print_line(i ? "state1" : "state0", state + i * n, n);
    }
    DDP_FREE(params);
    DDP_FREE(grads);
    DDP_FREE(state);
    DDP_FREE(desk.at);
}

int main(int argc, char **argv)
{
    double a[8];
    ddp_optimizer rule;
    int k;

    if (argc != 9 && argc != 10) return 2;
    a[7] = 0;
    for (k = 0; k < argc - 2; k++)
        if (!ddp__parse_double(argv[k + 2], a + k)) return 2;
    if (!strcmp(argv[1], "sgd"))
        rule = ddp_sgd_decay((float)a[0], (float)a[1], (float)a[4]);
    else if (!strcmp(argv[1], "nesterov"))
        rule = ddp_nesterov((float)a[0], (float)a[1], (float)a[4]);
    else if (!strcmp(argv[1], "adam"))
        rule = ddp_adam((float)a[0], (float)a[1], (float)a[2], (float)a[3], (float)a[4]);
    else if (!strcmp(argv[1], "adamw"))
        rule = ddp_adamw((float)a[0], (float)a[1], (float)a[2], (float)a[3], (float)a[4]);
    else if (!strcmp(argv[1], "muon"))
        rule = ddp_muon((float)a[0], (float)a[0], (float)a[1], (float)a[4]);
    else
        return 2;
    run(&rule, (long)a[5], (size_t)a[6], (size_t)a[7]);
    return 0;
}
