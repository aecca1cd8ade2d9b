/* Reads plans from files: the JSON object that `plan partial` prints. */
#include "context/context.h"
#include "session/part.h"
#include "plan/partial/partial.h"
#include "session/planning.h"

/* Adds the layers of one list to a step of the plan. assign 1: the layers are averaged in that step. With 0
 * they are extra averages that fill idle time in it. */
static ddp_status ddp__plan_list(const char *path, const ddp__json *list, int step, int layers, int assign,
                                 ddp_plan *plan, ddp_error *err)
{
    const ddp__json *v;

    for (v = list->first; v; v = v->next) {
        int l = v->kind == DDP__JSON_NUMBER && fabs(v->number) < layers ? (int)v->number : -1;
        if (l < 0 || l >= layers || (double)l != v->number)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: the model has layers 0 to %d; the sets name another", path,
                             v->line, layers - 1);
        if (!assign) {
            plan->fill[(size_t)step * (size_t)layers + (size_t)l] = 1;
            continue;
        }
        if (plan->step_of[l] >= 0)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: layer %d is in two sets; each is averaged once per period", path,
                             v->line, l);
        plan->step_of[l] = step;
    }
    return DDP_OK;
}

static ddp_status ddp__plan_parse(const char *path, const ddp__json *root, int layers, ddp_plan *plan,
                                  ddp_error *err)
{
    const ddp__json *sets = NULL, *fill = ddp__json_get(root, "fill"), *v, *name;
    int h = 0;

    DDP__TRY(ddp__json_need(path, root, "sets", DDP__JSON_ARRAY, &sets, err));
    if (sets->count < 1)
        return ddp__fail(err, DDP_FORMAT, "%s: sets is empty; one list per step of the period is needed",
                         path);
    DDP__TRY(ddp_plan_new(layers, (int)sets->count, plan, err));
    for (int l = 0; l < layers; l++) plan->step_of[l] = -1;
    for (v = sets->first; v; v = v->next) DDP__TRY(ddp__plan_list(path, v, h++, layers, 1, plan, err));
    for (int l = 0; l < layers; l++)
        if (plan->step_of[l] < 0)
            return ddp__fail(err, DDP_FORMAT, "%s: layer %d is in no set; each is averaged once per period",
                             path, l);
    if (fill && fill->kind == DDP__JSON_ARRAY && fill->count == sets->count)
        for (h = 0, v = fill->first; v; v = v->next)
            DDP__TRY(ddp__plan_list(path, v, h++, layers, 0, plan, err));
    name = ddp__json_get(root, "solver");
    if (name && name->kind == DDP__JSON_STRING) (void)ddp_solver_named(name->string, &plan->solver, NULL);
    name = ddp__json_get(root, "cost");
    if (name && name->kind == DDP__JSON_STRING) (void)ddp_cost_named(name->string, &plan->cost, NULL);
    return DDP_OK;
}

/* Returns the number of layers of a plan: its member `layers`, else the highest number in its sets plus 1.
 * Returns 0 if the plan has neither. */
static double ddp__plan_count(const ddp__json *root)
{
    const ddp__json *layers = ddp__json_get(root, "layers"), *sets = ddp__json_get(root, "sets"), *set, *v;
    double most = -1;

    if (layers && layers->kind == DDP__JSON_NUMBER) return layers->number;
    for (set = sets && sets->kind == DDP__JSON_ARRAY ? sets->first : NULL; set; set = set->next)
        for (v = set->first; v; v = v->next)
            if (v->kind == DDP__JSON_NUMBER && v->number > most) most = v->number;
    return most + 1;
}

ddp_status ddp_plan_read(const char *path, int layers, ddp_plan *out, ddp_error *err)
{
    ddp__json *root = ddp__json_read(path, err);
    ddp_plan plan = DDP__ZEROS;
    double count;
    ddp_status s = DDP_OK;

    if (!root) return err ? err->code : DDP_FORMAT;
    count = ddp__plan_count(root);
    if (count > 0 && count != (double)layers)
        s = ddp__fail(err, DDP_MISMATCH,
                      "%s is a plan for %.10g layers, the model has %d: plan with a profile of this model",
                      path, count, layers);
    if (s == DDP_OK) s = ddp__plan_parse(path, root, layers, &plan, err);
    ddp__json_free(root);
    if (s != DDP_OK) {
        ddp_plan_free(&plan);
        return s;
    }
    *out = plan;
    return DDP_OK;
}

/* ---- the plan of a run ---- */

/* Reports a plan with another number of rows: it is for another model, or for one stage only. */
static ddp_status ddp__plan_counts(const ddp_ctx *d, const ddp__json *root, ddp_error *err)
{
    const int rows = ddp__stages_rows(d),
              layers = d->session->model ? d->session->cut->layers : ddp__layers(d);
    const double count = ddp__plan_count(root);
    char parts[80] = "";

    if (!(count > 0) || count == (double)rows) return DDP_OK;
    if (rows != layers)
        snprintf(parts, sizeof parts, " in %d parts of at most %d parameters", rows,
                 ddp__cfg(d)->average.split_params);
    if (!d->session->model)
        return ddp__fail(err, DDP_MISMATCH,
                         "%.200s is a plan for %.10g layers, the model has %d%s: plan with a profile of "
                         "this model",
                         ddp__cfg(d)->plan_path, count, layers, parts);
    return ddp__fail(err, DDP_MISMATCH,
                     "%.160s is a plan for %.10g layers, the model has %d%s, of which stage %d has %d: "
                     "with stages the plan is for the whole model: plan with a profile of all its layers",
                     ddp__cfg(d)->plan_path, count, layers, parts, d->session->cut->stage, ddp__layers(d));
}

/* Checks that the layer names in the plan, if any, are the names of the model's layers. */
static ddp_status ddp__plan_names(const ddp_ctx *d, const ddp__json *root, ddp_error *err)
{
    const ddp__json *names = ddp__json_get(root, "names"), *v;
    const int rows = ddp__stages_rows(d);
    char name[160];
    int row = 0;

    if (!names || names->kind != DDP__JSON_ARRAY) return DDP_OK;
    for (v = names->first; v && row < rows; v = v->next, row++) {
        if (v->kind != DDP__JSON_STRING || !*v->string) continue;
        ddp__stages_name(d, row, name, sizeof name);
        if (*name && strcmp(name, v->string))
            return ddp__fail(err, DDP_MISMATCH,
                             "%.160s, line %d: layer %d of the plan is \"%.80s\", of the model \"%.80s\": "
                             "plan with a profile of this model",
                             ddp__cfg(d)->plan_path, v->line, row, v->string, name);
    }
    return DDP_OK;
}

ddp_status ddp__plan_open(const ddp_ctx *d, ddp_plan *out, ddp_error *err)
{
    ddp__json *root = ddp__json_read(ddp__cfg(d)->plan_path, err);
    ddp_plan plan = DDP__ZEROS;
    ddp_status s;

    if (!root) return err->code;
    s = ddp__plan_counts(d, root, err);
    if (s == DDP_OK) s = ddp__plan_names(d, root, err);
    if (s == DDP_OK) s = ddp__plan_parse(ddp__cfg(d)->plan_path, root, ddp__stages_rows(d), &plan, err);
    ddp__json_free(root);
    if (s == DDP_OK && plan.period != ddp__cfg(d)->period)
        s = ddp__fail(err, DDP_MISMATCH,
                      "the plan %s is for period %d, this run has period %d: set the period to %d",
                      ddp__cfg(d)->plan_path, plan.period, ddp__cfg(d)->period, plan.period);
    if (s == DDP_OK)
        *out = plan;
    else
        ddp_plan_free(&plan);
    return s;
}

ddp_status ddp__plan_fits_stages(const ddp_ctx *d, ddp_error *err)
{
    ddp_plan plan;

    if (!d->session->model || !ddp__cfg(d)->plan_path) return DDP_OK;
    DDP__TRY(ddp__plan_open(d, &plan, err));
    ddp_plan_free(&plan);
    return DDP_OK;
}
