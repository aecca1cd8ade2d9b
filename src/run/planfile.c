/* Plans from files: the JSON object that `plan partial` prints. */
#include "base/platform.h"
#include "io/json.h"
#include "run/context.h"

/* Marks the layers of one list; want_step also assigns them. */
static ddp_status ddp__plan_list(const char *path, const ddp__json *list, int step, int layers,
                                 int assign, ddp_plan *plan, ddp_error *err)
{
    const ddp__json *v;

    for (v = list->first; v; v = v->next) {
        int l = v->kind == DDP__JSON_NUMBER ? (int)v->number : -1;
        if (l < 0 || l >= layers || (double)l != v->number)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: the model has layers 0 to %d; the sets name another",
                             path, v->line, layers - 1);
        if (!assign) {
            plan->fill[(size_t)step * (size_t)layers + (size_t)l] = 1;
            continue;
        }
        if (plan->step_of[l] >= 0)
            return ddp__fail(
                err, DDP_FORMAT,
                "%s, line %d: layer %d is in two sets; each is averaged once per period", path,
                v->line, l);
        plan->step_of[l] = step;
    }
    return DDP_OK;
}

static ddp_status ddp__plan_parse(const char *path, const ddp__json *root, int layers,
                                  ddp_plan *plan, ddp_error *err)
{
    const ddp__json *sets = NULL, *fill = ddp__json_get(root, "fill"), *v, *name;
    int l, h = 0;

    DDP__TRY(ddp__json_need(path, root, "sets", DDP__JSON_ARRAY, &sets, err));
    if (sets->count < 1)
        return ddp__fail(err, DDP_FORMAT,
                         "%s: sets is empty; one list per step of the period is needed", path);
    DDP__TRY(ddp_plan_new(layers, (int)sets->count, plan, err));
    for (l = 0; l < layers; l++) plan->step_of[l] = -1;
    for (v = sets->first; v; v = v->next)
        DDP__TRY(ddp__plan_list(path, v, h++, layers, 1, plan, err));
    for (l = 0; l < layers; l++)
        if (plan->step_of[l] < 0)
            return ddp__fail(err, DDP_FORMAT,
                             "%s: layer %d is in no set; each is averaged once per period", path,
                             l);
    if (fill && fill->kind == DDP__JSON_ARRAY && fill->count == sets->count)
        for (h = 0, v = fill->first; v; v = v->next)
            DDP__TRY(ddp__plan_list(path, v, h++, layers, 0, plan, err));
    name = ddp__json_get(root, "solver");
    if (name && name->kind == DDP__JSON_STRING)
        (void)ddp_solver_named(name->string, &plan->solver, NULL);
    name = ddp__json_get(root, "cost");
    if (name && name->kind == DDP__JSON_STRING)
        (void)ddp_cost_named(name->string, &plan->cost, NULL);
    return DDP_OK;
}

ddp_status ddp_plan_read(const char *path, int layers, ddp_plan *out, ddp_error *err)
{
    ddp__json *root = ddp__json_read(path, err);
    ddp_plan plan;
    ddp_status s;

    if (!root) return err ? err->code : DDP_FORMAT;
    memset(&plan, 0, sizeof plan);
    s = ddp__plan_parse(path, root, layers, &plan, err);
    ddp__json_free(root);
    if (s != DDP_OK) {
        ddp_plan_free(&plan);
        return s;
    }
    *out = plan;
    return DDP_OK;
}
