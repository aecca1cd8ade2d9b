/* Groups of ranks that run collectives of their own, and the order of the ring. */
#include "net/state.h"

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
    if (e->elastic) return next;
    return (uint32_t)group << DDP__GROUP_SHIFT | (next & (((uint32_t)1 << DDP__GROUP_SHIFT) - 1));
}

int ddp__seq_past(const ddp__engine *e, uint32_t seq)
{
    const uint32_t group = e->elastic ? 0 : seq >> DDP__GROUP_SHIFT;
    const uint32_t next = group ? e->group_next[group] : e->next_seq;

    if (e->elastic) return (int32_t)(seq - next) < 0;
    return (int32_t)((seq - next) << (32 - DDP__GROUP_SHIFT)) < 0;
}

ddp_status ddp__group_check(const ddp__engine *e, const ddp__message *m, ddp_error *err)
{
    const int *place;

    if (m->group == 0) return DDP_OK;
    if (m->group < 0 || m->group >= e->groups)
        return ddp__fail(err, DDP_ARG, "group %d does not exist; %d were made", m->group,
                         e->groups - 1);
    place = e->group_place + (size_t)m->group * (size_t)e->world;
    if (m->verb == DDP__SEND || m->verb == DDP__RECV)
        return ddp__fail(err, DDP_ARG, "send and receive name a rank, not group %d", m->group);
    if (place[e->rank] < 0)
        return ddp__fail(err, DDP_ARG, "rank %d is not in group %d", e->rank, m->group);
    if (m->verb == DDP__BROADCAST && place[m->peer] < 0)
        return ddp__fail(err, DDP_ARG, "the root %d of a broadcast is not in group %d", m->peer,
                         m->group);
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
    if (e->elastic)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "groups in an elastic world (min_world): leave one of the two out");
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

size_t ddp__engine_window(const ddp__engine *e)
{
    return (size_t)(e->credits - e->width - (int)DDP__LANES) * e->chunk * sizeof(float);
}

void ddp__ring_arrange(ddp__engine *e)
{
    int n = 0;

    for (int i = 0; i < e->world; i++) {
        const int id = e->order[i];
        e->turn[id] = e->place[id] < 0 ? -1 : n;
        if (e->place[id] >= 0) e->ring[n++] = id;
    }
}

ddp_status ddp__engine_ring(ddp__engine *e, const int *order, size_t ring_bytes, ddp_error *err)
{
    ddp_status status = DDP_OK;

    for (int i = 0; order && i < e->world; i++) {
        int times = 0;
        for (int j = 0; j < e->world; j++) times += order[j] == i;
        if (times != 1)
            return ddp__fail(err, DDP_ARG, "a ring order that names rank %d %d times", i, times);
    }
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted) {
        status = ddp__fail(err, DDP_USAGE,
                           "the ring's order cannot change while %ld messages are in flight",
                           e->submitted - e->first);
    } else {
        for (int i = 0; i < e->world; i++) e->order[i] = order ? order[i] : i;
        ddp__ring_arrange(e);
        e->ring_bytes = ring_bytes && !e->cfg.deterministic && e->world > 2 ? ring_bytes
                                                                          : ddp__ring_bytes(e);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}
