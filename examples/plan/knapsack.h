/* plan knapsack: selects the transfers that fit one or two links. */
#ifndef EXAMPLES_PLAN_KNAPSACK_H
#define EXAMPLES_PLAN_KNAPSACK_H

#include "common.h"

typedef struct knapsack_arguments {
    const char *items, *capacity, *ready, *solver, *json;
    double deadline, mu;
    long links;
} knapsack_arguments;

/* Parses "1,2.5,3" into *out, which the caller frees, and returns the number of values. Returns 0 after an
 * error that names the part that is not a number. */
static int knapsack_numbers(const char *program, const char *option, const char *text, double **out)
{
    size_t room = strlen(text) + 1;
    char *copy = (char *)malloc(room), *at = copy, *comma;
    int n = 0;

    *out = (double *)calloc(room, sizeof **out);
    if (!copy || !*out) {
        fprintf(stderr, "%s: no memory for %s\n", program, option);
        free(copy);
        free(*out);
        *out = NULL;
        return 0;
    }
    memcpy(copy, text, room);
    for (; at; at = comma) {
        comma = strchr(at, ',');
        if (comma) *comma++ = 0;
        if (cli_number(at, &(*out)[n])) {
            n++;
            continue;
        }
        fprintf(stderr, "%s: %s: '%.40s' is not a number; numbers are separated by commas\n", program, option,
                at);
        free(*out);
        *out = NULL;
        n = 0;
        break;
    }
    free(copy);
    return n;
}

static void knapsack_json(FILE *f, const knapsack_arguments *a, const int *assign, int n, double value,
                          double seconds, int event)
{
    char t[32];
    int i;

    fprintf(f, "{%s\"solver\": \"%s\", \"value\": %s, \"assign\": [", event ? "\"event\": \"plan\", " : "",
            a->solver, plan_exact(value, t, sizeof t));
    for (i = 0; i < n; i++) fprintf(f, "%s%d", i ? ", " : "", assign[i]);
    fprintf(f, "], \"solve_ms\": %.6f}\n", seconds * 1e3);
}

static int knapsack_run(const knapsack_arguments *a, const ddp_knapsack_problem *p,
                        ddp_knapsack_solver solver)
{
    int *assign = (int *)calloc((size_t)p->items, sizeof *assign), code = 1;
    double value = 0, start = ddp_now();
    ddp_status status;
    ddp_error err;
    plan_output out;

    if (!assign) {
        fprintf(stderr, "plan knapsack: no memory for %d items\n", p->items);
    } else if (plan_output_open(&out, "plan knapsack")) {
        status = ddp_knapsack(p, solver, assign, &value, &err);
        start = ddp_now() - start;
        if (status == DDP_OK) {
            knapsack_json(out.line, a, assign, p->items, value, start, 0);
            knapsack_json(out.json, a, assign, p->items, value, start, 1);
        } else {
            fprintf(stderr, "plan knapsack: %s\n", err.msg);
        }
        code = plan_output_close(&out, "plan knapsack", status, a->json, NULL);
    }
    free(assign);
    return code;
}

/* Checks that the options give either capacities, or release times and a deadline. Returns -1, or the exit
 * code. */
static int knapsack_form(const knapsack_arguments *a)
{
    if (!a->items) return plan_usage("plan knapsack", "%s is needed", "--items c1,c2,..");
    if (!a->capacity && !plan_given(a->deadline))
        return plan_usage("plan knapsack", "%s is needed", "--capacity A[,B] or --deadline D");
    if (a->capacity && (a->ready || plan_given(a->deadline) || plan_given(a->mu) || a->links >= 0))
        return plan_usage("plan knapsack", "--capacity cannot be combined with %s",
                          "--ready, --deadline, --mu, --links");
    if (a->capacity) return -1;
    if (a->links == 0 || a->links > 2)
        return plan_refuse("plan knapsack", "--links", (double)a->links, "1 or 2");
    if (a->links == 2 && !plan_given(a->mu))
        return plan_usage("plan knapsack", "--links 2 needs %s", "--mu X");
    if (plan_given(a->mu) && a->mu < 1)
        return plan_refuse("plan knapsack", "--mu", a->mu,
                           "at least 1: time on the slow link divided by time on the fast link");
    return -1;
}

static int knapsack_solve(const knapsack_arguments *a, ddp_knapsack_solver solver)
{
    ddp_knapsack_problem p;
    double *item = NULL, *ready = NULL, *room = NULL;
    int code = 2, n = 0, m = 0;

    memset(&p, 0, sizeof p);
    p.links = a->links == 2 || (a->links < 0 && plan_given(a->mu)) ? 2 : 1;
    p.deadline_s[0] = p.deadline_s[1] = a->deadline;
    p.slowdown[1] = plan_given(a->mu) ? a->mu : 1;
    n = knapsack_numbers("plan knapsack", "--items", a->items, &item);
    if (n && a->ready) m = knapsack_numbers("plan knapsack", "--ready", a->ready, &ready);
    if (n && a->capacity) m = knapsack_numbers("plan knapsack", "--capacity", a->capacity, &room);
    if (n == 0 || ((a->ready || a->capacity) && m == 0)) {
        code = 2;
    } else if (a->capacity && m > 2) {
        code = plan_usage("plan knapsack", "%s takes one number per link, 1 or 2", "--capacity");
    } else if (a->ready && m != n) {
        code = plan_usage("plan knapsack", "%s needs one number per item", "--ready");
    } else {
        p.items = n;
        p.item_s = item;
        p.ready_s = ready;
        if (room) {
            p.links = m;
            p.deadline_s[0] = room[0];
            p.deadline_s[1] = m == 2 ? room[1] : 0;
        }
        code = knapsack_run(a, &p, solver);
    }
    free(item);
    free(ready);
    free(room);
    return code;
}

static int plan_knapsack(int argc, char **argv)
{
    static const char about[] =
        "Selects the items that fill one or two links best. With --capacity A[,B], items and capacities\n"
        "are times on the fast link. With --deadline D, item i starts at its --ready time or later,\n"
        "takes c_i on link 0 and --mu times c_i on link 1, and ends by D.";
    knapsack_arguments a = {NULL, NULL, NULL, "exact", NULL, PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, -1};
    const cli_option table[] = {
        {"--items", CLI_TEXT, &a.items, "C1,C2,..", "times of the items on the fast link"},
        {"--capacity", CLI_TEXT, &a.capacity, "A[,B]", "capacity of each link"},
        {"--ready", CLI_TEXT, &a.ready, "R1,R2,..", "earliest start of each item (default: 0)"},
        {"--deadline", CLI_REAL, &a.deadline, "D", "latest end of all items"},
        {"--mu", CLI_REAL, &a.mu, "X", "time on link 1 divided by time on link 0, at least 1"},
        {"--links", CLI_COUNT, &a.links, "1|2", "number of links (default: 2 with --mu, else 1)"},
        {"--solver", CLI_TEXT, &a.solver, "NAME", "exact or greedy (default: exact)"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON line, which is also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    ddp_knapsack_solver solver;
    ddp_error err;

    if (code >= 0) return code;
    code = knapsack_form(&a);
    if (code >= 0) return code;
    if (ddp_knapsack_solver_named(a.solver, &solver, &err) != DDP_OK)
        return plan_usage("plan knapsack", "%s", err.msg);
    return knapsack_solve(&a, solver);
}

#endif /* EXAMPLES_PLAN_KNAPSACK_H */
