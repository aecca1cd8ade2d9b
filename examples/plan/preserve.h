/* plan preserve: applies DeFT's Preserver to a sequence of batch sizes, or to the plan of a profile. */
#ifndef EXAMPLES_PLAN_PRESERVE_H
#define EXAMPLES_PLAN_PRESERVE_H

#include "common.h"
#include "deft.h"

/* Parses "1,1,2" into *out, which the caller frees, and returns the number of values. Returns 0 after
 * printing an error if a value is not a whole number. */
static int preserve_sequence(const char *text, int **out)
{
    size_t n = 0, room = strlen(text) + 1;
    const char *at = text;
    char *end;
    long k;

    *out = (int *)calloc(room, sizeof **out);
    if (!*out) return 0;
    for (;; at = end + 1) {
        errno = 0;
        k = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || errno || k < 1 || k > 1000000) {
            fprintf(stderr,
                    "plan preserve: --k: '%.40s' does not begin with a whole number from 1 "
                    "to 1000000; numbers are separated by commas\n",
                    at);
            free(*out);
            *out = NULL;
            return 0;
        }
        (*out)[n++] = (int)k;
        if (!*end) return (int)n;
    }
}

static void preserve_json(FILE *f, const ddp_preserved *r, int event)
{
    char t[3][32];

    fprintf(f, "{%s\"expected_base\": %s, \"expected_plan\": %s, \"ratio\": %s, \"accepted\": %s}\n",
            event ? "\"event\": \"plan\", " : "", plan_exact(r->expected_base, t[0], sizeof t[0]),
            plan_exact(r->expected_plan, t[1], sizeof t[1]), plan_exact(r->ratio, t[2], sizeof t[2]),
            r->accepted ? "true" : "false");
}

/* Prints the accepted plan, or the plan with the best ratio if none was accepted. */
static void preserve_plan_json(FILE *f, const ddp_delayed_plan *p, const ddp_preserved *r, int event)
{
    char t[4][32];
    int i;

    fprintf(f,
            "{%s\"accepted\": %s, \"ratio\": %s, \"retries\": %d, \"capacity\": %s, \"iteration_s\": %s, "
            "\"update_frequency\": %s, \"k\": [",
            event ? "\"event\": \"plan\", " : "", r->accepted ? "true" : "false",
            plan_exact(r->ratio, t[0], sizeof t[0]), r->retries,
            plan_exact(p->capacity_scale, t[1], sizeof t[1]), plan_exact(p->iteration_s, t[2], sizeof t[2]),
            plan_exact(p->update_frequency, t[3], sizeof t[3]));
    for (i = 0; i < p->updates; i++) fprintf(f, "%s%d", i ? ", " : "", p->k[i]);
    fprintf(f, "]}\n");
}

static ddp_status preserve_solve(const char *path, plan_deft_request *r, const ddp_preserver *m,
                                 plan_output *out, ddp_error *err)
{
    ddp_delayed_options o;
    ddp_delayed_plan plan;
    ddp_preserved verdict;
    ddp_profile p;
    ddp_status status = ddp_profile_read(path, NULL, &p, err);

    if (status != DDP_OK) return status;
    deft_default_partition(&p, r);
    status = deft_options(r, &o, err);
    if (status == DDP_OK) status = ddp_preserver_plan(&p, &o, m, &plan, &verdict, err);
    if (status == DDP_OK) {
        preserve_plan_json(out->line, &plan, &verdict, 0);
        preserve_plan_json(out->json, &plan, &verdict, 1);
        ddp_delayed_plan_free(&plan);
    }
    ddp_profile_free(&p);
    return status;
}

/* Plans the profile with a growing knapsack capacity until the Preserver accepts the plan. */
static int preserve_profile(const char *path, plan_deft_request *r, const ddp_preserver *m, const char *json)
{
    plan_output out;
    ddp_status status;
    ddp_error err;

    if (!plan_output_open(&out, "plan preserve")) return 1;
    status = preserve_solve(path, r, m, &out, &err);
    if (status != DDP_OK) fprintf(stderr, "plan preserve: %s\n", err.msg);
    return plan_output_close(&out, "plan preserve", status, json, NULL);
}

static int preserve_print(const ddp_preserved *r, const char *json)
{
    plan_output out;

    if (!plan_output_open(&out, "plan preserve")) return 1;
    preserve_json(out.line, r, 0);
    preserve_json(out.json, r, 1);
    return plan_output_close(&out, "plan preserve", DDP_OK, json, NULL);
}

static int plan_preserve(int argc, char **argv)
{
    static const char about[] =
        "Checks whether merging iterations into one update harms convergence. Compares the expected\n"
        "loss after the updates of --k with the loss after as many iterations without merging, in the\n"
        "random walk of DeFT's Preserver. With --profile, plans with DeFT and multiplies the capacity\n"
        "of its knapsacks by 1.1 until the check accepts the plan.";
    ddp_preserver m;
    double eta = PLAN_NOT_GIVEN, mu = PLAN_NOT_GIVEN, sigma = PLAN_NOT_GIVEN, batch = PLAN_NOT_GIVEN,
           start = PLAN_NOT_GIVEN;
    double target = 0, tolerance = PLAN_NOT_GIVEN;
    int sum = 0, one_sided = 0, rotations = 0, *k = NULL, n;
    const char *sequence = NULL, *profile = NULL, *json = NULL;
    plan_deft_request request;
    const cli_option table[] = {
        {"Model of the loss", CLI_GROUP, NULL, NULL, NULL},
        {"--eta", CLI_REAL, &eta, "X", "learning rate"},
        {"--mu", CLI_REAL, &mu, "X", "mean progress: squared norm of the gradient"},
        {"--sigma", CLI_REAL, &sigma, "X", "standard deviation of the progress of one sample"},
        {"--batch", CLI_REAL, &batch, "B", "samples in an update without merging"},
        {"--start", CLI_REAL, &start, "S", "current loss"},
        {"--target", CLI_REAL, &target, "S*", "lowest possible loss (default: 0)"},
        {"Updates", CLI_GROUP, NULL, NULL, NULL},
        {"--k", CLI_TEXT, &sequence, "1,1,2", "number of iterations merged into each update"},
        {"--profile", CLI_TEXT, &profile, "P.csv",
         "in place of --k: profile to plan, as with `plan timeline --scheme deft`"},
        {"--link-mu", CLI_REAL, &request.mu, "X",
         "with --profile: plan two links; time on the slow link divided by time on the fast link"},
        {"--alpha", CLI_REAL, &request.alpha_s, "S",
         "with --profile: start-up time included in every comm_s, in seconds"},
        {"--partition", CLI_REAL, &request.partition_params, "PARAMS",
         "with --profile: parameters per part (default: 6.5e6)"},
        {"--partition-s", CLI_REAL, &request.partition_s, "SECONDS",
         "with --profile, in place of --partition: link time per part in seconds"},
        {"--no-barrier", CLI_FLAG, &request.no_barrier, "",
         "with --profile: plan transfers that overlap both forward and backward passes"},
        {"Check", CLI_GROUP, NULL, NULL, NULL},
        {"--tolerance", CLI_REAL, &tolerance, "E",
         "largest accepted difference of the ratio from 1 (default: 0.01)"},
        {"--sum", CLI_FLAG, &sum, "", "use the sum of merged gradients, not their mean"},
        {"--one-sided", CLI_FLAG, &one_sided, "", "accept every ratio above 1"},
        {"--rotations", CLI_FLAG, &rotations, "", "use the worst rotation of --k"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--json", CLI_TEXT, &json, "FILE", "file for the JSON line, which is also printed"},
    };
    int code;
    ddp_preserved r;
    ddp_status status;
    ddp_error err;

    memset(&request, 0, sizeof request);
    request.mu = request.partition_params = request.partition_s = PLAN_NOT_GIVEN;
    code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    if (code >= 0) return code;
    if (!plan_given(eta)) return plan_usage("plan preserve", "%s is needed", "--eta X");
    if (!plan_given(mu)) return plan_usage("plan preserve", "%s is needed", "--mu X");
    if (!plan_given(sigma)) return plan_usage("plan preserve", "%s is needed", "--sigma X");
    if (!plan_given(batch)) return plan_usage("plan preserve", "%s is needed", "--batch B");
    if (!plan_given(start)) return plan_usage("plan preserve", "%s is needed", "--start S");
    if (!sequence == !profile)
        return plan_usage("plan preserve", "either --k 1,1,2 or %s is needed", "--profile P.csv");
    if (!profile && (plan_given(request.mu) || request.alpha_s != 0 || plan_given(request.partition_params) ||
                     plan_given(request.partition_s) || request.no_barrier))
        return plan_usage("plan preserve", "%s needs --profile P.csv",
                          "--link-mu, --alpha, --partition, --partition-s or --no-barrier");
    if (plan_given(request.partition_params) && request.partition_params <= 0)
        return plan_refuse("plan preserve", "--partition", request.partition_params,
                           "more than 0; leave it out for 6.5e6");
    if (plan_given(request.partition_s) && request.partition_s <= 0)
        return plan_refuse("plan preserve", "--partition-s", request.partition_s,
                           "more than 0; leave it out for --partition");
    if (plan_given(request.mu) && request.mu < 1)
        return plan_refuse("plan preserve", "--link-mu", request.mu, "at least 1; leave it out for one link");
    request.links = plan_given(request.mu) ? 2 : 1;
    if (!plan_given(request.mu)) request.mu = 0;
    if (!plan_given(request.partition_params)) request.partition_params = 0;
    if (!plan_given(request.partition_s)) request.partition_s = 0;
    n = sequence ? preserve_sequence(sequence, &k) : 1;
    if (n == 0) return 2;
    memset(&m, 0, sizeof m);
    m.eta = eta;
    m.mu = mu;
    m.sigma = sigma;
    m.batch = batch;
    m.start = start;
    m.target = target;
    /* 0 in ddp_preserver means the default, but --tolerance 0 allows for rounding only */
    m.tolerance = tolerance == 0 ? DBL_MIN : plan_given(tolerance) ? tolerance : 0;
    m.sum = sum;
    m.one_sided = one_sided;
    m.rotations = rotations;
    if (profile) return preserve_profile(profile, &request, &m, json);
    status = ddp_preserver_test(&m, k, n, &r, &err);
    free(k);
    if (status != DDP_OK) {
        fprintf(stderr, "plan preserve: %s\n", err.msg);
        return ddp_status_exit_code(status);
    }
    return preserve_print(&r, json);
}

#endif /* EXAMPLES_PLAN_PRESERVE_H */
