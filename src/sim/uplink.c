/* The uplink of a simulated worker: sends the parts of its messages one after the other, highest priority
 * first. */
#include "sim/port.h"

double ddp__scale_of(const ddp__world *w, const ddp_message *m)
{
    return m->layer == DDP__BARRIER || (m->bytes && m->layer < 0) ? 1 : w->scale;
}

double ddp__frames_of(const ddp__port *p, double values, size_t unit)
{
    return fmax(1, ceil(values * (double)unit / ((double)p->e->chunk * sizeof(float))));
}

static int ddp__job_before(const ddp__job *a, const ddp__job *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->ticket != b->ticket) return a->ticket < b->ticket;
    if (a->phase == b->phase) return a->part < b->part;
    /* the direct algorithm sends contributions before results, as ddp__direct_next does */
    return a->carried->phases == 2 && !a->carried->in_turn ? a->phase < b->phase : a->phase > b->phase;
}

static ddp__job ddp__job_take(ddp__port *p)
{
    const ddp__job first = p->job[0], last = stbds_arrpop(p->job);
    const int jobs = ddp__count(p->job);
    int k = 0, child;

    for (; (child = 2 * k + 1) < jobs; k = child) {
        if (child + 1 < jobs && ddp__job_before(&p->job[child + 1], &p->job[child])) child++;
        if (!ddp__job_before(&p->job[child], &last)) break;
        p->job[k] = p->job[child];
    }
    if (jobs) p->job[k] = last;
    return first;
}

/* When a job is sent: over the link to each receiver if links differ, else at once. */
static double ddp__job_leaves(ddp__port *p, const ddp__job *job)
{
    const ddp__carried *c = job->carried;
    ddp__links *l = &p->e->links;
    const double now = p->world->now;
    double leaves = now, each;
    int to = 0;

    if (!l->path) return now;
    if (!l->by_pair || !c) {
        ddp__path any = {0, 0, 0, 0, 0, {0}};
        return ddp__link_send(&l->own, c ? &any : &l->path[job->mail->to->base.rank], now,
                              (size_t)llround(job->bytes));
    }
    for (int i = 0; i < c->here; i++) to += i != job->member;
    each = job->bytes / (c->in_turn ? 1 : to);
    for (int i = 1; i <= (c->in_turn ? 1 : to); i++) {
        const int other = ddp__team_of(p->e, c->op[job->member]).member[(job->member + i) % c->here];
        leaves = fmax(leaves, ddp__link_send(&l->own, &l->path[other], now, (size_t)llround(each)));
    }
    return leaves;
}

static void ddp__away_end(ddp__world *w, ddp__away *f)
{
    if (f->before)
        f->before->next = f->next;
    else
        w->aways = f->next;
    if (f->next) f->next->before = f->before;
    DDP_FREE(f);
}

void ddp__aways_free(ddp__world *w)
{
    while (w->aways) ddp__away_end(w, w->aways);
}

static void ddp__job_left(ddp__world *w, void *what, int i, int j)
{
    const ddp__job job = ((ddp__away *)what)->job;

    (void)i;
    (void)j;
    ddp__away_end(w, (ddp__away *)what);
    job.left(w, &job);
}

static void ddp__uplink_free(ddp__world *w, void *what, int i, int j);

void ddp__port_send(ddp__port *p)
{
    ddp__world *w = p->world;
    double leaves, frees;
    ddp__away *f;
    const ddp__job *gone;
    ddp__op *op;

    if (p->sends || !ddp__count(p->job) || p->dead || !p->e || w->error.code) return;
    f = (ddp__away *)ddp__world_new(w, 1, sizeof *f);
    if (!f) return;
    f->job = ddp__job_take(p);
    f->next = w->aways;
    if (f->next) f->next->before = f;
    w->aways = f;
    gone = &f->job;
    op = gone->carried ? gone->carried->op[gone->member] : gone->mail->op;
    ddp__op_moves(p->e, op, w->now);
    leaves = ddp__job_leaves(p, gone);
    frees = p->e->links.path ? fmin(leaves, fmax(w->now, p->e->links.own.up_free)) : w->now;
    ddp__atomic_add(&p->e->bytes_sent, (int64_t)llround(gone->bytes));
    ddp__count_sent(p->e, op, (int)op->m.coding, (int64_t)llround(gone->payload));
    p->sends = 1;
    ddp__world_at(w, frees, ddp__uplink_free, p, 0, 0);
    ddp__world_at(w, leaves, ddp__job_left, f, 0, 0);
}

static void ddp__uplink_free(ddp__world *w, void *what, int i, int j)
{
    ddp__port *p = (ddp__port *)what;

    (void)w;
    (void)i;
    (void)j;
    p->sends = 0;
    ddp__port_send(p);
}

void ddp__job_add(ddp__port *p, const ddp__job *job)
{
    int k = ddp__count(p->job);

    if (!ddp__world_reserve(p->world, p->job)) return;
    stbds_arrsetlen(p->job, k + 1);
    for (; k > 0 && ddp__job_before(job, &p->job[(k - 1) / 2]); k = (k - 1) / 2)
        p->job[k] = p->job[(k - 1) / 2];
    p->job[k] = *job;
}

void ddp__op_over(ddp__port *p, ddp__op *op)
{
    ddp__engine *e = p->e;

    op->way = ddp__plain_way();
    op->m.divergence = NULL;
    op->left = 0;
    op->released = 1;
    op->last_move = p->world->now;
    ddp__op_advance(e, op, 0);
    ddp__publish(e);
    if (p->seat->at == p) ddp__seat_ready(p->world, p->seat);
}
