/* Collectives of a simulated world. A message is divided into parts. A part is sent over its worker's uplink,
 * highest priority first. After the delay it passes the downlinks of its receivers, which can then send the
 * parts of the next phase. A collective is a few such phases, the same as the frames of the engine
 * (src/comm). Workers that do the same at the same time are interchangeable, so all messages of one worker in
 * a phase form one job. */
#include "sim/port.h"

static void ddp__carried_left(ddp__world *w, const ddp__job *job);

static void ddp__carried_job(ddp__carried *c, int member, int phase, int part)
{
    const ddp__op *op = c->op[member];
    const ddp__job job = {op->m.priority,        phase, part, member,           op->ticket, c->out[phase % 4],
                          c->payload[phase % 4], c,     NULL, ddp__carried_left};

    ddp__job_add(c->port[member], &job);
}

void ddp__carried_drop(ddp__carried *c)
{
    if (c->before)
        c->before->next = c->next;
    else
        c->world->carried = c->next;
    if (c->next) c->next->before = c->before;
    ddp__scraps_free(c->scrap);
    DDP_FREE(c);
}

static void ddp__carried_less(ddp__carried *c, int member)
{
    ddp__port *p = c->port[member];

    if (--c->left[member] > 0 || !c->op[member]) return;
    ddp__op_over(p, c->op[member]);
    c->op[member] = NULL;
    c->world->look(p);
    ddp__port_send(p);
    if (++c->over == c->here) ddp__carried_drop(c);
}

/* A part has passed a member's downlink: it is received (last phase), or the member can send the next
 * phase. */
static void ddp__part_got(ddp__world *w, void *what, int member, int at)
{
    ddp__carried *c = (ddp__carried *)what;
    const int phase = at / c->parts, part = at % c->parts;

    if (c->void_) return;
    ddp__op_moves(c->port[member]->e, c->op[member], w->now);
    if (phase + 1 == c->phases) {
        ddp__carried_less(c, member);
        return;
    }
    ddp__carried_job(c, member, phase + 1, part);
    ddp__port_send(c->port[member]);
}

static void ddp__part_arrives(ddp__world *w, void *what, int member, int at)
{
    ddp__carried *c = (ddp__carried *)what;
    ddp__engine *e = c->port[member]->e;
    const double bytes = c->in[at / c->parts % 4];
    double done = w->now;

    if (c->void_) return;
    if (e->links.path) done = ddp__link_receive(&e->links.own, w->now, (size_t)llround(bytes));
    ddp__atomic_add(&e->bytes_received, (int64_t)llround(bytes));
    if (done > w->now)
        ddp__world_at(w, done, ddp__part_got, c, member, at);
    else
        ddp__part_got(w, c, member, at);
}

static int ddp__cell_of(const ddp__carried *c, int member, int phase)
{
    const int *cell = c->cell[phase == 1 || phase == 2];

    return cell ? cell[member] : 0;
}

/* Time at which parts sent by a cell's members (or by `from` alone) arrive at a member. last: the two latest
 * send times, if all links are equal. NULL means that they differ. */
static double ddp__part_reaches(ddp__carried *c, int member, int at, int from, const double last[2])
{
    ddp__links *l = &c->port[member]->e->links;
    const double *leave = c->leave + (size_t)at * (size_t)c->here;
    /* represents the workers that are not simulated */
    const int stands = c->here < c->members && member == c->here - 1;
    double latest = 0;

    if (!l->path) return c->world->now;
    if (last) return (leave[member] == last[0] && !stands ? last[1] : last[0]) + l->path[member == 0].delay_s;
    if (from >= 0) return ddp__path_receive(&l->path[c->port[from]->base.rank], leave[from]);
    for (int i = 0; i < c->here; i++)
        if (i != member && ddp__cell_of(c, i, at / c->parts) == ddp__cell_of(c, member, at / c->parts))
            latest = fmax(latest, ddp__path_receive(&l->path[c->port[i]->base.rank], leave[i]));
    return latest;
}

/* All members of a cell have sent a part. */
static void ddp__cell_sent(ddp__carried *c, int cell, int phase, int at)
{
    const double *leave = c->leave + (size_t)at * (size_t)c->here;
    double last[2] = {0, 0};

    for (int i = 0; i < c->here; i++) {
        if (ddp__cell_of(c, i, phase) != cell) continue;
        last[1] = fmax(last[1], fmin(last[0], leave[i]));
        last[0] = fmax(last[0], leave[i]);
    }
    for (int i = 0; i < c->here; i++)
        if (ddp__cell_of(c, i, phase) == cell)
            ddp__world_at(c->world, ddp__part_reaches(c, i, at, -1, c->world->alike ? last : NULL),
                          ddp__part_arrives, c, i, at);
}

static int ddp__cell_size(const ddp__carried *c, int cell, int phase)
{
    int n = 0;

    if (!c->cell[0]) return c->here;
    for (int i = 0; i < c->here; i++) n += ddp__cell_of(c, i, phase) == cell;
    return n;
}

/* A member has sent a part. It arrives at the next member (ring), at all members (root), or at its cell once
 * all of the cell have sent theirs. */
static void ddp__carried_left(ddp__world *w, const ddp__job *job)
{
    ddp__carried *c = job->carried;
    const int member = job->member, phase = job->phase, part = job->part;
    const int at = phase * c->parts + part, cell = ddp__cell_of(c, member, phase);
    int *gone = c->in_turn || c->void_ ? NULL : &c->gone[(size_t)at * (size_t)c->here + (size_t)cell];

    if (c->void_) return;
    if (!c->in_turn) c->leave[(size_t)at * (size_t)c->here + (size_t)member] = w->now;
    if (c->in_turn) {
        const int next = (member + 1) % c->here;
        ddp__links *l = &c->port[next]->e->links;
        ddp__world_at(w, l->path ? ddp__path_receive(&l->path[c->port[member]->base.rank], w->now) : w->now,
                      ddp__part_arrives, c, next, at);
    } else if (c->root >= 0) {
        *gone = 1;
        for (int i = 0; i < c->here; i++)
            if (i != member && c->port[i])
                ddp__world_at(w, ddp__part_reaches(c, i, at, member, NULL), ddp__part_arrives, c, i, at);
    } else if (++*gone == ddp__cell_size(c, cell, phase)) {
        ddp__cell_sent(c, cell, phase, at);
    }
    ddp__carried_less(c, member);
}

/* Sites: sizes of the cells of a member. *uneven is 1 if sites differ in size, so one rank of each site sends
 * between sites. */
static void ddp__carried_cells(ddp__carried *c, const ddp__engine *e)
{
    for (int i = 0; i < c->here; i++) {
        int place = 0;
        c->cell[0][i] = c->cell[1][i] = i;
        for (int k = i - 1; k >= 0; k--)
            if (e->site[e->member[k]] == e->site[e->member[i]]) {
                c->cell[0][i] = k;
                place++;
            }
        for (int k = i - 1; k >= 0; k--) {
            int other = 0;
            for (int j = 0; j < k; j++) other += e->site[e->member[j]] == e->site[e->member[k]];
            if (other == place) c->cell[1][i] = k;
        }
    }
}

static void ddp__carried_phase(ddp__carried *c, const ddp__port *p, int phase, const ddp__op *op,
                               double values, int peers, int coding)
{
    const double scale = ddp__scale_of(c->world, &op->m), per = scale * values / peers; /* to one peer */
    const double payload =
        coding == (int)DDP__AS_BYTES ? per : (double)ddp__frame_payload(coding, (size_t)llround(per));

    c->payload[phase] = peers * payload / c->parts;
    c->out[phase] =
        c->payload[phase] + peers * ddp__frames_of(p, per, op->unit) * DDP__FRAME_BYTES / c->parts;
    c->in[phase] = c->out[phase];
}

/* The simulated worker that represents a member: the last one represents all that are not simulated. */
static int ddp__standing_in(const ddp__carried *c, int member)
{
    return member < c->here ? member : c->here - 1;
}

/* The bytes that each member sends and receives, by the algorithm of the operation. */
static void ddp__carried_shape(ddp__carried *c, const ddp__port *p, const ddp__op *op)
{
    const double n = (double)op->n, M = c->members, crossing = op->m.coding;
    const int peers = c->members - 1, coding = (int)op->m.coding;
    const double scale = ddp__scale_of(c->world, &op->m);
    double part = n;

    c->phases = 1;
    c->root = -1;
    if (op->m.verb == DDP_BROADCAST)
        c->root = ddp__standing_in(c, ddp__team_of(p->e, op).place[ddp__root(p->e, op)]);
    else if (op->way->whole)
        part = n;
    else
        part = n / M;
    if (op->m.verb == DDP_ALL_REDUCE && !op->way->whole) c->phases = 2;
    if (op->way == ddp__ring_way()) {
        c->in_turn = c->together = 1;
        c->phases = 2 * peers;
    }
    c->parts = (int)fmin(DDP__CUTS, ddp__frames_of(p, scale * part, op->unit));
    if (op->way == ddp__sites_way()) {
        const double size = ddp__cell_size(c, c->cell[0][0], 0), sites = ddp__cell_size(c, c->cell[1][0], 1);
        c->together = 1;
        c->phases = 4;
        for (int i = 0; i < 4; i++) {
            const int across = i == 1 || i == 2, others = (int)(across ? sites : size) - 1;
            if (others > 0)
                ddp__carried_phase(c, p, i, op, (across ? n / size / sites : n / size) * others, others,
                                   across ? (int)crossing : 0);
        }
        return;
    }
    for (int i = 0; i < 4; i++) {
        const int once = c->in_turn || op->way == ddp__spread_way(); /* the values leave a member once */
        ddp__carried_phase(c, p, i, op, once ? part : part * peers, c->in_turn ? 1 : peers, coding);
        if (c->root >= 0 && !once) c->in[i] /= peers;
    }
}

/* ---- the data of messages in real memory ---- */

/* Calls the owner's rule for a part of a sum. */
static void ddp__carried_owner(const ddp__carried *c, int member, size_t at, size_t count, float *sum)
{
    const ddp__op *op = c->op[member];
    size_t from, to;

    if (!op->m.owner) return;
    ddp__segment(c->port[member]->e, op, c->port[member]->base.rank, &from, &to);
    if (from < at) from = at;
    if (to > at + count) to = at + count;
    if (from < to) op->m.owner->rule(op->m.owner->user, from, sum + (from - at), to - from);
}

/* Sums the values from `at` on over all members with real memory. The result is for all members. */
static void ddp__carried_values(ddp__carried *c, size_t at, size_t count, float *sum)
{
    ddp__op *first = c->op[0];
    const ddp_message *m = &first->m;
    const float scale = m->mean ? 1.0f / (float)c->members : m->scale;
    const ddp__op *op;

    for (int i = 0; i < c->members; i++) {
        float *own = sum + (i ? count : 0);
        op = c->op[ddp__standing_in(c, i)];
        ddp__memory_copy(op, &op->from, at, count, own, 0);
        for (size_t k = 0; i && k < count; k++) sum[k] += own[k];
    }
    for (size_t k = 0; scale != 1 && k < count; k++) sum[k] *= scale;
    for (int i = 0; i < c->here; i++) ddp__carried_owner(c, i, at, count, sum);
    for (int i = 0; i < c->here; i++) ddp__memory_store(c->op[i], at, sum, count, NULL);
}

/* The blocks of an all-gather in real memory. In the all-gather of all ranks, block r belongs to rank r, also
 * if other ranks are lost. */
static void ddp__carried_blocks(ddp__carried *c, void *block)
{
    const ddp__op *first = c->op[0];
    const ddp__engine *e = c->port[0]->e;
    const ddp__members team = ddp__team_of(e, first);

    for (int from = 0; from < c->members; from++) {
        const int one = ddp__standing_in(c, from);
        size_t at, end, own, own_end, n;
        ddp__segment(e, first, team.member[from], &at, &end);
        ddp__segment(e, first, team.member[one], &own, &own_end);
        n = end - at < own_end - own ? end - at : own_end - own;
        ddp__memory_copy(c->op[one], &c->op[one]->from, own, n, block, 0);
        for (int i = 0; i < c->here; i++) ddp__memory_copy(c->op[i], &c->op[i]->to, at, n, block, 1);
    }
}

static void ddp__carried_move(ddp__carried *c)
{
    const ddp__op *first = c->op[0];
    const int gathers = c->root < 0 && first->m.verb == DDP_ALL_GATHER,
              reduces = c->root < 0 && first->m.verb == DDP_ALL_REDUCE;
    void *room;

    for (int i = 0; (gathers || reduces) && i < first->from.count; i++) {
        const ddp__strip *s = &first->from.strip[i];
        if (ddp__is_paper(c->world, s->data)) continue;
        room = ddp__world_new(c->world, 2 * (gathers ? first->n / (size_t)c->members : s->count) + 2,
                              first->unit);
        if (room && gathers)
            ddp__carried_blocks(c, room);
        else if (room)
            ddp__carried_values(c, s->start, s->count, (float *)room);
        if (room) DDP_FREE(room);
        if (gathers) return;
    }
}

/* ---- members ---- */

static ddp__carried *ddp__carried_new(ddp__port *p, const ddp__op *op)
{
    const ddp__members team = ddp__team_of(p->e, op);
    const int here = team.members < p->world->seats ? team.members : p->world->seats,
              ring = op->way == ddp__ring_way();
    const size_t steps = ring ? 1 : 4 * DDP__CUTS, h = (size_t)here;
    ddp__carried *c =
        (ddp__carried *)ddp__world_new(p->world, 1,
                                       sizeof *c + steps * h * (sizeof(double) + sizeof(int)) +
                                           h * (sizeof *c->op + sizeof *c->port + 3 * sizeof(int)));

    if (!c) return NULL;
    c->leave = (double *)(void *)(c + 1);
    c->op = (ddp__op **)(void *)(c->leave + steps * h);
    c->port = (ddp__port **)(void *)(c->op + h);
    c->left = (int *)(void *)(c->port + h);
    c->gone = c->left + h;
    c->world = p->world;
    c->group = op->m.group;
    c->seq = op->seq;
    c->members = team.members;
    c->here = here;
    if (op->way == ddp__sites_way()) {
        c->cell[0] = c->gone + steps * h;
        c->cell[1] = c->cell[0] + h;
        ddp__carried_cells(c, p->e);
    }
    ddp__carried_shape(c, p, op);
    c->next = p->world->carried;
    if (c->next) c->next->before = c;
    p->world->carried = c;
    return c;
}

static void ddp__member_begins(ddp__carried *c, int member)
{
    const int sends = c->root < 0 || c->root == member, gets = c->root < 0 || c->root != member;

    c->left[member] = c->parts * ((sends ? c->phases : 0) + gets);
    for (int i = 0; sends && i < c->parts; i++) ddp__carried_job(c, member, 0, i);
}

/* Returns 1 if the member posted another message than the others. */
static int ddp__carried_differs(const ddp__carried *c, int member)
{
    const ddp__op *first = NULL, *op = c->op[member];
    char a[128], b[128];
    ddp_error err;
    int i;

    for (i = 0; i < c->here && (!c->op[i] || i == member); i++) {
    }
    first = i < c->here ? c->op[i] : op;
    if (first->m.verb == op->m.verb && first->n == op->n && first->m.layer == op->m.layer &&
        first->unit == op->unit)
        return 0;
    (void)ddp__fail(&err, DDP_MISMATCH,
                    "rank %d has %s of %zu values but rank %d has %s of %zu: every rank must post the "
                    "same messages in the same order",
                    c->port[i]->base.rank, ddp__op_text(c->port[i]->e, first, a, sizeof a), first->n,
                    c->port[member]->base.rank, ddp__op_text(c->port[member]->e, op, b, sizeof b), op->n);
    c->world->fails(c->world, &err);
    return 1;
}

void ddp__carried_join(ddp__port *p, ddp__op *op)
{
    ddp__carried *c = p->world->carried;
    const int place = ddp__team_of(p->e, op).place[p->base.rank];
    const double now = p->world->now;

    while (c && !(c->group == op->m.group && c->seq == op->seq && c->port[place] == NULL)) c = c->next;
    if (!c) c = ddp__carried_new(p, op);
    if (!c) return;
    c->op[place] = op;
    c->port[place] = p;
    if (ddp__carried_differs(c, place)) return;
    c->joined++;
    if (!c->together) ddp__member_begins(c, place);
    if (place == c->root) c->scrap = ddp__scraps_cut(c->world, op);
    for (int i = 0; c->scrap && i < c->here; i++)
        if (i != c->root && c->op[i] && (place == c->root || place == i))
            ddp__scraps_paste(c->scrap, c->op[i]);
    /* parts that arrived before the member posted */
    for (int at = 0; c->root >= 0 && place != c->root && at < c->parts; at++)
        if (c->gone[(size_t)at * (size_t)c->here])
            ddp__world_at(c->world, ddp__part_reaches(c, place, at, c->root, NULL), ddp__part_arrives, c,
                          place, at);
    if (c->joined == c->here) {
        ddp__carried_move(c);
        for (int i = 0; i < c->here; i++) {
            ddp__op *own = c->op[i];
            /* it waited for other members until now, except while its own first part was sent. From now on
             * it waits for links. */
            if (own && now > own->active_at) {
                own->peer_wait +=
                    now - fmax(own->active_at, own->span.begin >= 0 ? own->last_move : own->active_at);
            }
            if (c->together) ddp__member_begins(c, i);
            ddp__port_send(c->port[i]);
        }
    } else
        ddp__port_send(p);
}

void ddp__carried_again(ddp__world *w)
{
    ddp__carried *c = w->carried;

    w->carried = NULL;
    while (c) {
        ddp__carried *next = c->next;
        c->void_ = 1;
        c->next = w->voids;
        w->voids = c;
        for (int i = 0; i < c->here; i++) {
            ddp__port *p = c->port[i];
            const int jobs = p ? ddp__count(p->job) : 0;
            int kept = 0;
            for (int k = 0; k < jobs; k++)
                if (p->job[k].carried != c) p->job[kept++] = p->job[k];
            if (kept < jobs) { /* restores the heap */
                stbds_arrsetlen(p->job, 0);
                for (int k = 0; k < kept; k++) {
                    const ddp__job job = p->job[k];
                    ddp__job_add(p, &job);
                }
            }
        }
        for (int i = 0; i < c->here; i++)
            if (c->op[i] && !c->port[i]->dead && c->over)
                ddp__op_over(c->port[i], c->op[i]);
            else if (c->op[i] && !c->port[i]->dead)
                ddp__carried_join(c->port[i], c->op[i]);
        c = next;
    }
}
