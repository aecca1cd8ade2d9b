/* Messages between two simulated workers, and the data of messages in real memory. */
#include "sim/port.h"

int ddp__is_paper(const ddp__world *w, const void *at)
{
    return w->paper && (const unsigned char *)at >= w->paper &&
           (const unsigned char *)at < w->paper + w->paper_bytes;
}

ddp__scrap *ddp__scraps_cut(ddp__world *w, const ddp__op *op)
{
    ddp__scrap *list = NULL;

    for (int i = 0; i < op->from.count; i++) {
        const ddp__strip *s = &op->from.strip[i];
        ddp__scrap *x = ddp__is_paper(w, s->data)
                            ? NULL
                            : (ddp__scrap *)ddp__world_new(w, 1, sizeof *x + s->count * op->unit);
        if (!x) continue;
        x->at = s->start;
        x->count = s->count;
        memcpy(x + 1, s->data, s->count * op->unit);
        x->next = list;
        list = x;
    }
    return list;
}

void ddp__scraps_paste(const ddp__scrap *s, const ddp__op *op)
{
    for (; s; s = s->next)
        if (s->at + s->count <= op->n)
            ddp__memory_copy(op, &op->to, s->at, s->count, (void *)(uintptr_t)(s + 1), 1);
}

void ddp__scraps_free(ddp__scrap *s)
{
    while (s) {
        ddp__scrap *next = s->next;
        DDP_FREE(s);
        s = next;
    }
}

/* ---- point-to-point messages ---- */

static int ddp__mail_fits(const ddp__op *op, const ddp__mail *m)
{
    return ddp__paired_lane(op) == m->lane && (op->m.peer == DDP_ANY || op->m.peer == m->from->base.rank);
}

void ddp__mail_free(ddp__mail *m)
{
    if (m->before)
        m->before->later = m->later;
    else
        m->from->world->mails = m->later;
    if (m->later) m->later->before = m->before;
    ddp__scraps_free(m->scrap);
    DDP_FREE(m);
}

static void ddp__mail_open(ddp__port *p, ddp__op *op, ddp__mail *m)
{
    ddp_received *r = op->m.received;

    op->m.peer = op->span.peer = m->from->base.rank;
    if (op->m.verb == DDP_SERVE) op->m.layer = op->span.layer = m->layer;
    if (r) {
        r->verb = op->m.verb != DDP_SERVE ? DDP_SEND : m->verb == DDP__ASK ? DDP_PULL : DDP_PUSH;
        r->peer = m->from->base.rank;
        r->layer = op->m.verb == DDP_SERVE ? m->layer : op->m.layer;
        r->count = m->n;
    }
    ddp__scraps_paste(m->scrap, op);
    ddp__op_moves(p->e, op, p->world->now);
    ddp__op_over(p, op);
    ddp__mail_free(m);
}

void ddp__mail_match(ddp__port *p)
{
    for (int i = 0; i < ddp__count(p->want); i++) {
        ddp__mail **m = &p->mail, *before = NULL, *found;
        while (*m && !ddp__mail_fits(p->want[i], *m)) {
            before = *m;
            m = &(*m)->next;
        }
        if (!*m) continue;
        found = *m;
        *m = found->next;
        if (p->last == found) p->last = before;
        {
            ddp__op *op = p->want[i];
            stbds_arrdel(p->want, (size_t)i);
            ddp__mail_open(p, op, found);
        }
        i = -1;
    }
}

static void ddp__mail_got(ddp__world *w, void *what, int i, int j)
{
    ddp__mail *m = (ddp__mail *)what;
    ddp__port *to = m->to;

    (void)i;
    (void)j;
    if (++m->got < m->parts) return;
    if (to->dead || !to->e) {
        ddp__mail_free(m);
        return;
    }
    m->next = NULL;
    if (to->mail)
        to->last->next = m;
    else
        to->mail = m;
    to->last = m;
    ddp__mail_match(to);
    w->look(to);
}

static void ddp__mail_arrives(ddp__world *w, void *what, int i, int j)
{
    ddp__mail *m = (ddp__mail *)what;
    ddp__engine *e = m->to->e;
    double done = w->now;

    if (e && e->links.path)
        done = ddp__link_receive(&e->links.own, w->now, (size_t)llround(m->bytes / m->parts));
    if (e) ddp__atomic_add(&e->bytes_received, (int64_t)llround(m->bytes / m->parts));
    ddp__world_at(w, done, ddp__mail_got, m, i, j);
}

static void ddp__mail_left(ddp__world *w, const ddp__job *job)
{
    ddp__mail *m = job->mail;
    ddp__port *p = m->from;
    ddp__links *l = m->to->e ? &m->to->e->links : NULL;
    ddp__op *op = m->op;
    const int whole = ++m->left == m->parts;

    ddp__world_at(w, l && l->path ? ddp__path_receive(&l->path[p->base.rank], w->now) : w->now,
                  ddp__mail_arrives, m, 0, 0);
    if (!whole) return;
    p->unsent--;
    m->op = NULL;
    ddp__op_over(p, op);
    w->look(p);
}

void ddp__mail_post(ddp__port *p, ddp__op *op)
{
    ddp__world *w = p->world;
    ddp__mail *m = (ddp__mail *)ddp__world_new(w, 1, sizeof *m);
    const int link = p == w->port[0][p->seat->rank] ? 0 : 1;
    const double scale = ddp__scale_of(w, &op->m), values = scale * (double)op->n;
    ddp__job job = DDP__ZEROS;

    if (!m) return;
    m->from = p;
    m->to = w->port[link] && op->m.peer < w->seats ? w->port[link][op->m.peer] : NULL;
    if (!m->to) {
        ddp_error err;
        DDP_FREE(m);
        (void)ddp__fail(&err, DDP_UNSUPPORTED,
                        "a message between rank %d and rank %d, but one simulated worker represents both: "
                        "simulate each rank (ddp_simulation.fold 0)",
                        p->base.rank, op->m.peer);
        w->fails(w, &err);
        return;
    }
    m->later = w->mails;
    if (m->later) m->later->before = m;
    w->mails = m;
    m->op = op;
    m->verb = op->m.verb;
    m->lane = ddp__paired_lane(op);
    m->layer = op->m.layer;
    m->n = op->n;
    m->parts = (int)fmin(DDP__CUTS, ddp__frames_of(p, values, op->unit));
    job.payload =
        op->unit == 1 ? values : (double)ddp__frame_payload((int)op->m.coding, (size_t)llround(values));
    m->bytes = job.payload + ddp__frames_of(p, values, op->unit) * DDP__FRAME_BYTES;
    job.priority = op->m.priority;
    job.ticket = op->ticket;
    job.bytes = m->bytes / m->parts;
    job.payload /= m->parts;
    job.mail = m;
    job.left = ddp__mail_left;
    m->scrap = ddp__scraps_cut(w, op);
    p->unsent++;
    for (job.part = 0; job.part < m->parts; job.part++) ddp__job_add(p, &job);
    ddp__port_send(p);
}
