/* The output of plan choose about the choice of strategy auto. */
#ifndef EXAMPLES_PLAN_CHOOSE_AUTO_H
#define EXAMPLES_PLAN_CHOOSE_AUTO_H

#include "common.h"

/* Writes a number, or null for a loss that is never reached. */
static void choose_auto_number(FILE *f, const char *name, double value)
{
    if (value < DBL_MAX)
        fprintf(f, "\"%s\": %.6g, ", name, value);
    else
        fprintf(f, "\"%s\": null, ", name);
}

static void choose_auto_row(FILE *f, const ddp_choice_row *r)
{
    char options[64];

    (void)ddp_candidate_options(&r->candidate, options, sizeof options);
    fprintf(f, "\"strategy\": \"%s\", \"options\": \"%s\", \"step_ms\": %.6g, \"bytes_per_step\": %.6g, ",
            r->candidate.strategy, options, 1e3 * r->step_s, r->sent_bytes);
    fprintf(f, "\"loss_pct\": %.4g, ", 100 * r->penalty);
    choose_auto_number(f, "steps", r->steps);
    choose_auto_number(f, "seconds", r->seconds);
    fprintf(f, "\"within_budget\": %d", r->allowed);
}

/* Writes the member "auto" of the last line. all: 1 to add all candidates. */
static void choose_auto(FILE *f, const ddp_choice *c, int all)
{
    int i;

    fputs("\"auto\": {", f);
    choose_auto_row(f, &c->row[c->chosen]);
    fprintf(f, ", \"ssgd_seconds\": %.6g, \"because\": \"%s\", \"runner_up\": ", c->ssgd_s, c->reason);
    if (c->runner_up >= 0) {
        fputc('{', f);
        choose_auto_row(f, &c->row[c->runner_up]);
        fputc('}', f);
    } else {
        fputs("null", f);
    }
    if (all) fputs(", \"candidates\": [", f);
    for (i = 0; all && i < c->count; i++) {
        fputs(i ? ", {" : "{", f);
        choose_auto_row(f, &c->row[i]);
        fputc('}', f);
    }
    fputs(all ? "]}" : "}", f);
}

static void choose_auto_cell(FILE *f, double value)
{
    if (value < DBL_MAX)
        fprintf(f, "%11.4g", value);
    else
        fprintf(f, "%11s", "-");
}

/* Prints the choice, its reason and the candidates within the budget, the fastest first. */
static void choose_auto_text(FILE *f, const ddp_choice *c)
{
    const ddp_choice_row *best = &c->row[c->chosen];
    char options[64];
    int i;

    (void)ddp_candidate_options(&best->candidate, options, sizeof options);
    fprintf(f, "\nauto --strategy %s %s\n%s\n", best->candidate.strategy, options, c->reason);
    fprintf(f, "\n%-15s%-34s%11s%11s%11s%11s\n", "auto", "options", "step ms", "loss %", "steps", "seconds");
    for (i = 0; i < c->count && c->row[i].allowed; i++) {
        const ddp_choice_row *r = &c->row[i];
        (void)ddp_candidate_options(&r->candidate, options, sizeof options);
        fprintf(f, "%-15s%-34s%11.4g%11.3g", r->candidate.strategy, options, 1e3 * r->step_s,
                100 * r->penalty);
        choose_auto_cell(f, r->steps);
        choose_auto_cell(f, r->seconds);
        fputc('\n', f);
    }
}

#endif /* EXAMPLES_PLAN_CHOOSE_AUTO_H */
