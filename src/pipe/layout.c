/* Reads a layout (the rank and the operators of each stage) from the output of `plan place` and `plan
 * fence`. */
#include "pipe/executor.h"
#include "plan/oplist_graph.h"

/* ---- files of plans ---- */

/* Returns the plan with the lowest cost among the JSON lines of a file, the first plan if costs are equal.
 * Returns NULL and fills *err on failure. */
static ddp__json *ddp__stages_plan(const char *path, const char *cost, const char *what, ddp_error *err)
{
    ddp__text text = DDP__ZEROS;
    ddp__json *best = NULL;
    ddp_status s = ddp__file_read(path, &text, err);
    int line = 1;

    for (size_t at = 0; s == DDP_OK && at < text.size; line++) {
        const char *from = text.data + at, *end = (const char *)memchr(from, '\n', text.size - at);
        const size_t n = end ? (size_t)(end - from) : text.size - at;
        const ddp__json *own, *least;
        ddp__json *plan, *worse;
        char name[300];

        at += n + 1;
        if (strspn(from, " \t\r") >= n) continue;
        snprintf(name, sizeof name, "%.250s, plan %d", path, line);
        plan = ddp__json_parse(name, from, n, err);
        own = ddp__json_get(plan, cost);
        least = ddp__json_get(best, cost);
        if (!plan)
            s = err->code;
        else if (!own || own->kind != DDP__JSON_NUMBER)
            s = ddp__fail(err, DDP_FORMAT,
                          "%s has no number \"%s\"; it must be an output file of `%s --json FILE`", name,
                          cost, what);
        worse = s == DDP_OK && (!least || own->number < least->number) ? best : plan;
        if (worse != plan) best = plan;
        ddp__json_free(worse);
    }
    ddp__text_free(&text);
    if (s == DDP_OK && best) return best;
    ddp__json_free(best);
    if (s == DDP_OK)
        ddp__fail(err, DDP_FORMAT, "%s is empty; it must be an output file of `%s --json FILE`", path, what);
    return NULL;
}

/* An integer from 0 to most, or -1 if it is not such an integer. */
static int ddp__stages_index(const ddp__json *v, int most)
{
    if (!v || v->kind != DDP__JSON_NUMBER || !(v->number >= 0 && v->number <= most) ||
        v->number != floor(v->number))
        return -1;
    return (int)v->number;
}

/* ---- placements ---- */

/* Reads the rank of each stage from the placement, where rank = device. */
static ddp_status ddp__stages_assign(const char *path, const ddp__json *plan, int world, ddp_pipe_layout *l,
                                     ddp_error *err)
{
    const ddp__json *assign = ddp__json_get(plan, "assign"), *row, *v;
    int *used, at = 0; /* used: [devices], after the list */

    if (!assign || assign->kind != DDP__JSON_ARRAY || !assign->first ||
        assign->first->kind != DDP__JSON_ARRAY)
        return ddp__fail(
            err, DDP_FORMAT,
            "%s has no list \"assign\" of pipelines; it must be an output file of `plan place --json FILE`",
            path);
    if (assign->count * assign->first->count != world)
        return ddp__fail(err, DDP_ARG,
                         "%s places %ld pipelines of %ld stages on %ld devices, but the run has %d workers; "
                         "start as many workers, or make a placement for them",
                         path, assign->count, assign->first->count, assign->count * assign->first->count,
                         world);
    l->pipelines = (int)assign->count;
    l->stages = (int)assign->first->count;
    l->rank_of = (int *)ddp__calloc(2 * (size_t)world, sizeof *l->rank_of);
    if (!l->rank_of) return ddp__fail(err, DDP_MEMORY, "out of memory for a placement of %d devices", world);
    used = l->rank_of + world;
    for (row = assign->first; row; row = row->next) {
        if (row->kind != DDP__JSON_ARRAY || row->count != l->stages)
            return ddp__fail(
                err, DDP_FORMAT,
                "%s: pipeline %d and pipeline 0 have different numbers of stages; pipeline 0 has %d", path,
                at / l->stages, l->stages);
        for (v = row->first; v; v = v->next) {
            const int device = ddp__stages_index(v, world - 1);
            if (device < 0 || used[device]++)
                return ddp__fail(err, DDP_ARG,
                                 "%s: stage %d of pipeline %d has an invalid or duplicate device; each of "
                                 "0..%d must appear "
                                 "once",
                                 path, at % l->stages, at / l->stages, world - 1);
            l->rank_of[at++] = device;
        }
    }
    return DDP_OK;
}

/* ---- cuts ---- */

/* Checks that the cut belongs to this model. */
static ddp_status ddp__stages_same(const char *path, const ddp__json *plan, const ddp_oplist *list,
                                   ddp_error *err)
{
    const ddp__json *operators = ddp__json_get(plan, "operators"),
                    *bytes = ddp__json_get(plan, "param_bytes");
    double own = 0;

    for (int i = 0; i < list->count; i++) own += list->op[i].param_bytes;
    if (operators && operators->number != (double)list->count)
        return ddp__fail(err, DDP_ARG,
                         "%s cuts %g operators, but this model has %d; make a cut of this model", path,
                         operators->number, list->count);
    if (bytes && bytes->number > 0 && bytes->number != own)
        return ddp__fail(
            err, DDP_ARG,
            "%s cuts a model with %.0f bytes of parameters, but this one has %.0f; make a cut of "
            "this model",
            path, bytes->number, own);
    return DDP_OK;
}

/* Reads the device of each operator, device_of [list->count]. Each operator must appear once. */
static ddp_status ddp__stages_segments(const char *path, const ddp__json *plan, const ddp_oplist *list,
                                       int *device_of, ddp_error *err)
{
    const ddp__json *segments = ddp__json_get(plan, "segments");

    if (!segments || segments->kind != DDP__JSON_ARRAY)
        return ddp__fail(err, DDP_FORMAT,
                         "%s has no list \"segments\"; it must be an output file of `plan fence --json FILE`",
                         path);
    for (int i = 0; i < list->count; i++) device_of[i] = -1;
    for (const ddp__json *v = segments->first; v; v = v->next) {
        const int device = ddp__stages_index(ddp__json_get(v, "device"), 1000000);
        const int first = ddp__stages_index(ddp__json_get(v, "first"), list->count);
        const int end = ddp__stages_index(ddp__json_get(v, "end"), list->count);
        if (device < 0 || first < 0 || end <= first)
            return ddp__fail(err, DDP_ARG,
                             "%s, column %d: a segment needs a device >= 0 and operators from \"first\" to "
                             "before \"end\", "
                             "out of %d",
                             path, v->column, list->count);
        for (int i = first; i < end; i++) {
            if (device_of[i] >= 0)
                return ddp__fail(
                    err, DDP_ARG,
                    "%s puts operator %d (%.100s) on device %d and on device %d; each must appear once", path,
                    i, list->op[i].name, device_of[i], device);
            device_of[i] = device;
        }
    }
    for (int i = 0; i < list->count; i++)
        if (device_of[i] < 0)
            return ddp__fail(err, DDP_ARG, "%s has no device for operator %d (%.100s); each must appear once",
                             path, i, list->op[i].name);
    return DDP_OK;
}

/* 1 if an operator of the device uses the output of another device that has no stage yet. *other is that
 * device. */
static int ddp__stages_waits(const ddp_oplist *list, const int *device_of, const int *stage, int device,
                             int *other)
{
    for (int i = 0; i < list->count; i++)
        for (int k = 0; device_of[i] == device && k < list->op[i].arg_count; k++) {
            const int a = list->op[i].args[k];
            if (device_of[a] == device || stage[a] >= 0) continue;
            *other = device_of[a];
            return 1;
        }
    return 0;
}

/* Numbers the devices as stages in the order of the data flow. stage [list->count] of each operator, device
 * [stages]. */
static ddp_status ddp__stages_order(const char *path, const ddp_oplist *list, const int *device_of,
                                    int *stage, int *device, int *stages, ddp_error *err)
{
    int left = list->count;

    for (int i = 0; i < list->count; i++) stage[i] = -1;
    for (*stages = 0; left; ++*stages) {
        int next = -1, other = -1, blocked = -1;
        for (int i = 0; i < list->count && next < 0; i++) {
            if (stage[i] >= 0) continue;
            if (!ddp__stages_waits(list, device_of, stage, device_of[i], &other))
                next = device_of[i];
            else if (blocked < 0)
                blocked = device_of[i];
        }
        if (next < 0)
            return ddp__fail(err, DDP_ARG,
                             "%s has a cycle: data flow from device %d to device %d and back; stages must "
                             "not form a cycle",
                             path, blocked, other);
        device[*stages] = next;
        for (int i = 0; i < list->count; i++)
            if (device_of[i] == next) {
                stage[i] = *stages;
                left--;
            }
    }
    return DDP_OK;
}

/* Without a placement, the ranks of a pipeline are numbered in the order of the devices that have
 * operators. */
static ddp_status ddp__stages_ranks(const int *device, int stages, int world, ddp_pipe_layout *l,
                                    ddp_error *err)
{
    l->stages = stages;
    l->pipelines = world / stages;
    l->rank_of = (int *)ddp__calloc((size_t)world, sizeof *l->rank_of);
    if (!l->rank_of) return ddp__fail(err, DDP_MEMORY, "out of memory for the layout of %d ranks", world);
    for (int i = 0; i < l->pipelines * stages; i++) {
        l->rank_of[i] = i - i % stages;
        for (int k = 0; k < stages; k++) l->rank_of[i] += device[k] < device[i % stages];
    }
    return DDP_OK;
}

static ddp_status ddp__stages_cut(const char *path, const ddp__json *plan, const ddp_graph *g,
                                  const ddp_oplist *list, int world, ddp_pipe_layout *l, ddp_error *err)
{
    int *device_of = (int *)ddp__calloc(3 * (size_t)list->count, sizeof *device_of), stages = 0, at = 0;
    int *stage = device_of ? device_of + list->count : NULL, *device = device_of ? stage + list->count : NULL;
    ddp_status s = device_of
                       ? DDP_OK
                       : ddp__fail(err, DDP_MEMORY, "out of memory for a cut of %d operators", list->count);

    if (s == DDP_OK) s = ddp__stages_same(path, plan, list, err);
    if (s == DDP_OK) s = ddp__stages_segments(path, plan, list, device_of, err);
    if (s == DDP_OK) s = ddp__stages_order(path, list, device_of, stage, device, &stages, err);
    if (s == DDP_OK && l->rank_of && l->stages != stages)
        s = ddp__fail(err, DDP_ARG,
                      "%s cuts the model into %d stages, but the placement has %d; make one for the other",
                      path, stages, l->stages);
    if (s == DDP_OK && world % stages)
        s = ddp__fail(err, DDP_ARG,
                      "%s cuts the model into %d stages, but the run has %d workers; start a multiple of %d",
                      path, stages, world, stages);
    if (s == DDP_OK && !l->rank_of) s = ddp__stages_ranks(device, stages, world, l, err);
    if (s == DDP_OK && !(l->stage_of = (int *)ddp__calloc((size_t)ddp__count(g->node), sizeof *l->stage_of)))
        s = ddp__fail(err, DDP_MEMORY, "out of memory for a cut of %d nodes", ddp__count(g->node));
    for (int i = 0; s == DDP_OK && i < ddp__count(g->node); i++)
        l->stage_of[i] = g->node[i]->op ? stage[at++] : 0;
    if (device_of) DDP_FREE(device_of);
    return s;
}

/* ---- both ---- */

static ddp_status ddp__stages_read(const char *placement, const char *cut, const ddp_graph *g, int world,
                                   ddp_pipe_layout *l, ddp_error *err)
{
    ddp_status s = DDP_OK;
    ddp__json *plan;
    ddp_oplist list;

    if (placement) {
        plan = ddp__stages_plan(placement, "cost_s", "plan place", err);
        s = plan ? ddp__stages_assign(placement, plan, world, l, err) : err->code;
        ddp__json_free(plan);
    }
    if (s || !cut) return s;
    DDP__TRY(ddp_graph_oplist(g, &list, err));
    plan = ddp__stages_plan(cut, "pipeline_s", "plan fence", err);
    s = plan ? ddp__stages_cut(cut, plan, g, &list, world, l, err) : err->code;
    ddp__json_free(plan);
    ddp_oplist_free(&list);
    return s;
}

ddp_status ddp_pipe_layout_read(const char *placement, const char *cut, const ddp_graph *g, int world,
                                ddp_pipe_layout *out, ddp_error *err)
{
    ddp_pipe_layout l = DDP__ZEROS;
    ddp_error own;
    ddp_status s;

    if (!err) err = &own;
    if (!out || world < 1 || (cut && !g))
        return ddp__fail(
            err, DDP_ARG,
            "ddp_pipe_layout_read: out must not be NULL, world must be at least 1, and a cut needs a graph");
    s = ddp__stages_read(placement, cut, g, world, &l, err);
    if (s == DDP_OK)
        *out = l;
    else
        ddp_pipe_layout_free(&l);
    return s;
}

void ddp_pipe_layout_free(ddp_pipe_layout *l)
{
    if (!l) return;
    if (l->rank_of) DDP_FREE(l->rank_of);
    if (l->stage_of) DDP_FREE(l->stage_of);
    memset(l, 0, sizeof *l);
}
