/* Groups of ranks: who averages a layer, and who plans together. */
#include "run/context.h"

int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group)
{
    DDP__ENTER(d);
    if (!ranks || !group) return ddp__ctx_failf(d, DDP_ARG, "ddp_group: the list or the result is NULL");
    if ((d->cfg.min_world > 0 || d->cfg.join) && ddp__goes_check(&d->cfg, &d->ops, 1, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
    if (!d->engine) { /* alone: every group is the world */
        if (n != 1 || ranks[0] != 0)
            return ddp__ctx_failf(d, DDP_ARG, "ddp_group: a group of %d ranks in a world of 1", n);
        *group = 0;
        return 0;
    }
    if (ddp__engine_group(d->engine, ranks, n, group, &d->host.error) ||
        (d->second && ddp__engine_group(d->second, ranks, n, group, &d->host.error)))
        return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

/* ---- teams ---- */

ddp_status ddp__team_find(ddp_ctx *d, ddp_error *err)
{
    ddp_config checked = d->cfg;
    int i, groups = 0;

    d->team = d->unit[0].group;
    for (int l = 0; l < d->layers; l++) {
        const int group = d->unit[l].group, *ranks = d->engine ? ddp__engine_group_ranks(d->engine, group) : NULL;
        int n = ranks ? ddp__engine_group_size(d->engine, group) : 0;
        for (i = 0; i < n && ranks[i] != d->rank; i++) {}
        if (group && (i == n || !ranks))
            return ddp__fail(err, DDP_ARG, "layer %d (%s) belongs to group %d, which rank %d is not in: make the group "
                             "with ddp_group, and leave the layer to its ranks", l, d->unit[l].name, group, d->rank);
        if (group) groups = 1;
        if (group != d->unit[0].group) d->mixed = 1;
    }
    if (d->norm.before) checked.clip_norm = 0; /* which a pipeline knows */
    DDP__TRY(ddp__goes_check(&checked, &d->ops, groups, err));
    if (d->mixed) d->team = 0;
    d->team_size = d->team ? ddp__engine_group_size(d->engine, d->team) : d->world;
    d->team_root = ddp__group_root(d, d->team);
    d->team_place = d->rank;
    for (i = 0; i < d->team_size; i++)
        if (ddp__team_rank(d, i) == d->rank) d->team_place = i;
    return DDP_OK;
}

ddp_status ddp__team_agree(ddp_ctx *d, const int *teams, ddp_error *err)
{
    for (int i = 0; i < d->team_size; i++) {
        const int r = ddp__team_rank(d, i), team = teams[r];
        if (team < 0 || team == d->team) continue;
        return ddp__fail(err, DDP_MISMATCH, "all layers of rank %d belong to group %d, those of rank %d to %s: where "
                         "one rank has layers of all ranks or of several groups, every rank must register the same "
                         "layers", team ? r : d->rank, team ? team : d->team, team ? d->rank : r, d->mixed ||
                         !team ? "none or to several" : "another");
    }
    return DDP_OK;
}

ddp_status ddp__team_layers(ddp_ctx *d, ddp_error *err)
{
    const size_t L = (size_t)d->layers;
    int32_t *all = (int32_t *)ddp__calloc((size_t)d->world * L, sizeof *all);
    ddp_status s;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d layers", d->layers);
    for (int l = 0; l < d->layers; l++) all[(size_t)d->rank * L + (size_t)l] = d->unit[l].group;
    s = ddp__gather_words(d, 0, all, L * sizeof *all, err);
    for (int l = 0; s == DDP_OK && l < d->layers; l++) {
        const int group = d->unit[l].group, *ranks = ddp__engine_group_ranks(d->engine, group);
        int n = ranks ? ddp__engine_group_size(d->engine, group) : d->world;
        for (int i = 0; i < n; i++) {
            const int r = ranks ? ranks[i] : i, other = (int)all[(size_t)r * L + (size_t)l];
            if (other == group) continue;
            s = ddp__fail(err, DDP_MISMATCH, "layer %d (%s) belongs to group %d on rank %d and to group %d on rank %d: "
                          "all ranks of a group must register it with the same group (0 = all ranks)", l,
                          d->unit[l].name, group, d->rank, other, r);
            break;
        }
    }
    DDP_FREE(all);
    return s;
}
