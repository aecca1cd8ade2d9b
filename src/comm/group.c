/* Who takes part in an operation, who owns which of its values, and the order of the ring. */
#include "comm/state.h"

ddp__members ddp__team_of(const ddp__engine *e, const ddp__op *op)
{
    const size_t at = (size_t)op->m.group * (size_t)e->world;
    ddp__members team;

    team.members = op->m.group ? e->group_members[op->m.group] : e->members;
    team.member = op->m.group ? e->group_member + at : e->member;
    team.place = op->m.group ? e->group_place + at : e->place;
    return team;
}

uint32_t ddp__seq(const ddp__engine *e, int group, uint32_t next)
{
    if (e->membership) return next;
    return (uint32_t)group << DDP__GROUP_SHIFT | (next & (((uint32_t)1 << DDP__GROUP_SHIFT) - 1));
}

int ddp__seq_past(const ddp__engine *e, uint32_t seq)
{
    const uint32_t group = e->membership ? 0 : seq >> DDP__GROUP_SHIFT;
    const uint32_t next = group ? e->group_next[group] : e->next_seq;

    if (e->membership) return (int32_t)(seq - next) < 0;
    return (int32_t)((seq - next) << (32 - DDP__GROUP_SHIFT)) < 0;
}

/* ---- values ---- */

int ddp__sums(const ddp__op *op)
{
    return op->m.verb == DDP_ALL_REDUCE || op->m.verb == DDP_REDUCE_SCATTER;
}

int ddp__root(const ddp__engine *e, const ddp__op *op)
{
    return ddp__team_of(e, op).place[op->m.peer] >= 0 ? op->m.peer : e->member[0];
}

void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    const ddp__members team = ddp__team_of(e, op);
    /* in the world's all-gather the blocks of the lost are there, and 0 */
    int all = op->m.verb == DDP_ALL_GATHER && op->m.group == 0;
    size_t parts = (size_t)(all ? e->world : team.members), j;

    *from = *to = 0;
    if (team.place[of] < 0) return;
    j = (size_t)(all ? of : team.place[of]);
    *from = op->n / parts * j + op->n % parts * j / parts;
    *to = op->n / parts * (j + 1) + op->n % parts * (j + 1) / parts;
    if (op->m.coding != DDP_AS_INT8) return;
    *from -= *from % DDP__CODING_BLOCK; /* no block is cut */
    if (*to < op->n) *to -= *to % DDP__CODING_BLOCK;
}

int ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    size_t from, to;
    int i = 0;
    const ddp__members team = ddp__team_of(e, op);

    do ddp__segment(e, op, team.member[i], &from, &to);
    while (offset >= to && i + 1 < team.members && ++i);
    return team.member[i];
}

/* ---- groups ---- */

ddp_status ddp__group_check(const ddp__engine *e, const ddp_message *m, ddp_error *err)
{
    const int *place;

    if (m->group == 0) return DDP_OK;
    if (m->group < 0 || m->group >= e->groups)
        return ddp__fail(err, DDP_ARG, "group %d does not exist; %d were made", m->group, e->groups - 1);
    place = e->group_place + (size_t)m->group * (size_t)e->world;
    if (m->verb >= DDP_SEND && m->verb != DDP_REDUCE_SCATTER)
        return ddp__fail(err, DDP_ARG, "%s names a rank, not group %d", ddp__verb_name((int)m->verb), m->group);
    if (place[e->rank] < 0)
        return ddp__fail(err, DDP_ARG, "rank %d is not in group %d", e->rank, m->group);
    if (m->verb == DDP_BROADCAST && place[m->peer] < 0)
        return ddp__fail(err, DDP_ARG, "the root %d of a broadcast is not in group %d", m->peer, m->group);
    return DDP_OK;
}

ddp_status ddp__engine_group(ddp__engine *e, const int *ranks, int n, int *group, ddp_error *err)
{
    ddp_status status = DDP_OK;
    int *member, *place;

    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= e->world || (i > 0 && ranks[i] <= ranks[i - 1]))
            return ddp__fail(err, DDP_ARG,
                             "a group of rank %d at place %d: ranks rise from 0 to %d at most",
                             ranks[i], i, e->world - 1);
    if (n < 1) return ddp__fail(err, DDP_ARG, "a group of %d ranks: at least one is needed", n);
    if (e->membership)
        return ddp__fail(err, DDP_UNSUPPORTED, "groups in an elastic world (min_world): leave one of the two out");
    pthread_mutex_lock(&e->lock);
    if (e->groups == DDP__GROUPS) {
        status = ddp__fail(err, DDP_ARG, "more than %d groups", DDP__GROUPS - 1);
    } else {
        member = e->group_member + (size_t)e->groups * (size_t)e->world;
        place = e->group_place + (size_t)e->groups * (size_t)e->world;
        for (int r = 0; r < e->world; r++) place[r] = -1;
        for (int i = 0; i < n; i++) {
            member[i] = ranks[i];
            place[ranks[i]] = i;
        }
        e->group_members[e->groups] = n;
        *group = e->groups++;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

int ddp__engine_group_size(const ddp__engine *e, int group)
{
    if (group == 0) return e->world;
    return group > 0 && group < e->groups ? e->group_members[group] : 1;
}

const int *ddp__engine_group_ranks(const ddp__engine *e, int group)
{
    if (group <= 0 || group >= e->groups) return NULL;
    return e->group_member + (size_t)group * (size_t)e->world;
}

void ddp__members_set(ddp__engine *e, uint64_t live)
{
    int n = 0;

    e->members = 0;
    for (int r = 0; r < e->world; r++) {
        int in = e->world > 64 || (live >> r & 1);
        e->place[r] = in ? e->members : -1;
        if (in) e->member[e->members++] = r;
    }
    for (int i = 0; i < e->world; i++) {
        const int id = e->order[i];
        e->turn[id] = e->place[id] < 0 ? -1 : n;
        if (e->place[id] >= 0) e->ring[n++] = id;
    }
}
