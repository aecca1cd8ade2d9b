/* Makes one plan for a model that is cut into stages. Each stage takes the rows of its own layers. All
 * replicas then average each layer in the step in which workers without a pipeline average it.
 *
 * In contrast, each stage computes its own measured plan: the averages of a stage overlap with its
 * own backward pass, over its own link. A plan for the backward pass of one worker would assign all layers of
 * a stage to few steps. */
#include "context/context.h"
#include "session/part.h"
#include "exchange/events.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "plan/partial/partial.h"
#include "session/planning.h"

/* ---- figures of the layers of other stages ---- */

/* Stores this stage's part of each layer in own [layers]. */
static void ddp__stages_fill(const ddp_ctx *d, ddp__layer_cost *own)
{
    for (int l = 0; l < ddp__layers(d); l++) {
        const ddp__unit *u = ddp__unit_of(d, l);
        ddp__layer_cost *c = &own[d->session->cut->whole[l]];
        c->flops = u->flops;
        c->count = (double)u->count;
        c->trained = (double)u->trained;
        c->others = (double)ddp__layer_others(d, l);
        c->holders = u->trained > 0;
    }
}

/* Rejects split_params for a layer on several stages: a stage divides the values that it has, which does not
 * give the parts of the whole layer. */
static ddp_status ddp__stages_parts(const ddp_ctx *d, ddp_error *err)
{
    for (int k = 0; k < d->session->cut->layers; k++) {
        const ddp__layer_cost *c = &d->session->model[k];
        if (c->holders > 1 && ddp__parts_for(d, (size_t)c->trained) > 1)
            return ddp__fail(err, DDP_UNSUPPORTED,
                             "%s%s is on %.0f stages, and split_params %d makes %d parts of it: cut the "
                             "model between layers, or leave split_params 0",
                             ddp__layer_prefix(d->session->cut->name[k]), d->session->cut->name[k],
                             c->holders, ddp__cfg(d)->average.split_params,
                             ddp__parts_for(d, (size_t)c->trained));
    }
    return DDP_OK;
}

ddp_status ddp__stages_open(ddp_ctx *d, ddp_error *err)
{
    const ddp__cut *const cut = d->session->cut;
    const size_t L = cut ? (size_t)cut->layers : 0, row = L * sizeof(ddp__layer_cost);
    const int *ranks;
    ddp__layer_cost *all;
    ddp_status s;
    int place = 0;

    if (!cut || !cut->group || !d->session->plan_final || !ddp__ops(d)->plan_whole ||
        !ddp__ops(d)->plan_adopt)
        return DDP_OK;
    if (ddp__layers(d) != cut->units)
        return ddp__fail(err, DDP_USAGE,
                         "%d layers on stage %d, %d of them of its graph: strategy %s plans for the graph's "
                         "layers: add no others with ddp_add_layer",
                         ddp__layers(d), cut->stage, cut->units, ddp__ops(d)->name);
    d->session->model = (ddp__layer_cost *)ddp__scratch_take(ddp__lists_of(d), L, sizeof *d->session->model);
    all = (ddp__layer_cost *)ddp__calloc((size_t)cut->stages, row);
    if (!d->session->model || !all) {
        if (all) DDP_FREE(all);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the plan of %d layers", cut->layers);
    }
    ranks = ddp__engine_group_ranks(ddp__engine_of(d, 0), cut->group);
    while (ranks[place] != ddp_rank(d)) place++;
    ddp__stages_fill(d, all + (size_t)place * L);
    s = ddp__gather_words(d, cut->group, all, row, err);
    for (size_t i = 0; s == DDP_OK && i < (size_t)cut->stages * L; i++) {
        ddp__layer_cost *c = &d->session->model[i % L];
        c->flops += all[i].flops;
        c->count += all[i].count;
        c->trained += all[i].trained;
        c->others += all[i].others;
        c->holders += all[i].holders;
    }
    DDP_FREE(all);
    return s == DDP_OK ? ddp__stages_parts(d, err) : s;
}

/* ---- rows of the whole model's plan ---- */

int ddp__stages_rows(const ddp_ctx *d)
{
    int rows = 0;

    if (!d->session->model) return ddp__plan_rows(d);
    for (int k = 0; k < d->session->cut->layers; k++)
        rows += ddp__parts_for(d, (size_t)d->session->model[k].trained);
    return rows;
}

void ddp__stages_name(const ddp_ctx *d, int row, char *out, size_t room)
{
    int k = 0, parts;

    for (;; k++, row -= parts) {
        parts =
            d->session->model ? ddp__parts_for(d, (size_t)d->session->model[k].trained) : ddp_parts_of(d, k);
        if (row < parts) break;
    }
    snprintf(out, room, "%.120s", d->session->model ? d->session->cut->name[k] : ddp__unit_of(d, k)->name);
    if (parts > 1) ddp__format(out + strlen(out), room - strlen(out), " [%d/%d]", row + 1, parts);
}

ddp_status ddp__stages_take(const ddp_ctx *d, const ddp_plan *whole, ddp_plan *own, ddp_error *err)
{
    int row = 0, l = 0, parts;

    DDP__TRY(ddp_plan_new(ddp__plan_rows(d), whole->period, own, err));
    own->solver = whole->solver;
    own->cost = whole->cost;
    for (int k = 0, from = 0; k < d->session->cut->layers; k++, from += parts) {
        parts = ddp__parts_for(d, (size_t)d->session->model[k].trained);
        if (l == ddp__layers(d) || d->session->cut->whole[l] != k) continue; /* layer of another stage */
        /* The last part includes the buffers. It is the only part of a stage that has only buffers. */
        for (int i = parts - ddp_parts_of(d, l); i < parts; i++, row++) {
            own->step_of[row] = whole->step_of[from + i];
            for (int h = 0; whole->fill && h < whole->period; h++)
                own->fill[(size_t)h * (size_t)own->layers + (size_t)row] =
                    whole->fill[(size_t)h * (size_t)whole->layers + (size_t)(from + i)];
        }
        l++;
    }
    return DDP_OK;
}

ddp_status ddp__stages_make(ddp_ctx *d, const ddp_profile *model, ddp_plan *out, ddp_error *err)
{
    ddp_profile p = *model;
    ddp_status s;

    p.params = (double *)ddp__calloc((size_t)p.layers, sizeof *p.params);
    if (!p.params) return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", p.layers);
    for (int k = 0; k < p.layers; k++) p.params[k] = d->session->model[k].trained;
    s = DDP__EVENT(d, plan_whole, (d, ddp__self(d), &p, out));
    DDP_FREE(p.params);
    return s;
}

ddp_status ddp__stages_profile(const ddp_ctx *d, const ddp_profile *model, ddp_profile *own, ddp_error *err)
{
    DDP__TRY(ddp_profile_new(ddp__layers(d), own, err));
    own->alpha_s = model->alpha_s;
    own->gap_s = model->gap_s;
    for (int l = 0; l < ddp__layers(d); l++) {
        const int k = d->session->cut->whole[l];
        own->params[l] = model->params ? model->params[k] : (double)ddp__unit_of(d, l)->count;
        own->forward_s[l] = model->forward_s ? model->forward_s[k] : 0;
        own->backward_s[l] = model->backward_s[k];
        own->comm_s[l] = model->comm_s[k];
        own->name[l] = ddp__strdup(model->name && model->name[k] ? model->name[k] : ddp__unit_of(d, l)->name);
        if (own->name[l]) continue;
        ddp_profile_free(own);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", ddp__layers(d));
    }
    return DDP_OK;
}
