/* What one node trains of a job: an optimizer for each operator, and what another node needs to take an operator over. */
#include "graph/graph_internal.h"
#include "pipe/job.h"

/* An operator here. */
typedef struct ddp__seat {
    float        *params; /* of its own, in one piece; NULL: none */
    size_t        count;
    ddp_optimizer rule;
    float        *state;  /* the context's, where the first update has found it */
    float        *taken;  /* state to go on from, until then; NULL: zero */
} ddp__seat;

struct ddp_job_part {
    ddp_graph *g;
    ddp__seat *seat;   /* [nodes] */
    int        nodes, states; /* states: floats for each parameter, of the rule that needs most */
    long       first;
};

static int ddp__rule_make(const ddp_job_rule *own, const ddp_job_rule *job, ddp_optimizer *out)
{
    const ddp_job_rule *r = own->name[0] ? own : job;
    const float lr = (float)(own->lr > 0 ? own->lr : job->lr), m = (float)r->momentum, decay = (float)r->weight_decay;

    if (!strcmp(r->name, "sgd")) *out = ddp_sgd_decay(lr, m, decay);
    else if (!strcmp(r->name, "nesterov")) *out = ddp_nesterov(lr, m, decay);
    else if (!strcmp(r->name, "adam")) *out = ddp_adam(lr, 0.9f, 0.999f, 1e-8f, decay);
    else if (!strcmp(r->name, "adamw")) *out = ddp_adamw(lr, 0.9f, 0.999f, 1e-8f, decay);
    else return 0;
    return lr > 0;
}

/* Part of a layer's parameters is one operator's: the rule is elementwise, so each has its own, with its own state behind
 * what those before it have. */
static void ddp__part_update(const ddp_optimizer *self, const ddp_update *u)
{
    const ddp_job_part *p = (const ddp_job_part *)self->user;

    for (int i = 0; i < p->nodes; i++) {
        ddp__seat *s = &p->seat[i];
        ddp_update own = *u;
        size_t at;
        if (!s->params || s->params < u->params || s->params >= u->params + u->count) continue;
        at = (size_t)(s->params - u->params);
        own.params = s->params;
        own.grads = u->grads + at;
        own.state = u->state ? u->state + (size_t)p->states * at : NULL;
        own.count = s->count;
        own.step = u->step + p->first;
        own.lr = s->rule.lr;
        if (s->taken && own.state) memcpy(own.state, s->taken, (size_t)p->states * s->count * sizeof(float));
        if (s->taken) DDP_FREE(s->taken);
        s->taken = NULL;
        s->state = own.state;
        s->rule.update(&s->rule, &own);
    }
}

/* The operators' optimizers and where their parameters lie. */
static ddp_status ddp__seats_fill(ddp_job_part *p, const ddp_job *j, ddp_error *err)
{
    for (int i = 0; i < p->nodes; i++) {
        const ddp_node *n = p->g->node[i];
        const int own = n->tied >= 0; /* the first array of its own */
        ddp__seat *s = &p->seat[i];
        if (n->spec.params && !ddp__rule_make(&j->op[i].rule, &j->rule, &s->rule))
            return ddp__fail(err, DDP_ARG, "operator %s: optimizer \"%s\" with rate %g: choose sgd, nesterov, adam or adamw, "
                             "and a rate above 0", j->op[i].name, j->op[i].rule.name[0] ? j->op[i].rule.name : j->rule.name,
                             j->op[i].rule.lr > 0 ? j->op[i].rule.lr : j->rule.lr);
        if (s->rule.state_per_param > p->states) p->states = s->rule.state_per_param;
        if (n->here != (int)DDP__HERE_OWN || n->spec.params <= own) continue;
        s->params = n->param[own];
        s->count = ddp__arrays_count(n->spec.param, own, n->spec.params);
    }
    return DDP_OK;
}

ddp_job_part *ddp_job_open(const ddp_job *j, ddp_graph *g, long first, ddp_error *err)
{
    ddp_job_part *p = NULL;

    if (!j || !g || !g->built || g->nodes != j->ops || ddp__graph_backend(g)) {
        ddp__fail(err, DDP_ARG, "ddp_job_open: a graph that was built of this job, on the CPU, is needed");
        return NULL;
    }
    p = (ddp_job_part *)ddp__calloc(1, sizeof *p);
    if (p) p->seat = (ddp__seat *)ddp__calloc((size_t)g->nodes, sizeof *p->seat);
    if (p && p->seat) {
        p->g = g;
        p->nodes = g->nodes;
        p->first = first;
        g->state->pass = (uint64_t)first * (uint64_t)j->micro_batches;
        if (ddp__seats_fill(p, j, err) == DDP_OK) return p;
    } else {
        ddp__fail(err, DDP_MEMORY, "out of memory for the optimizers of %d operators", g->nodes);
    }
    ddp_job_close(p);
    return NULL;
}

void ddp_job_close(ddp_job_part *p)
{
    if (!p) return;
    for (int i = 0; p->seat && i < p->nodes; i++)
        if (p->seat[i].taken) DDP_FREE(p->seat[i].taken);
    if (p->seat) DDP_FREE(p->seat);
    DDP_FREE(p);
}

ddp_optimizer ddp_job_optimizer(ddp_job_part *p)
{
    ddp_optimizer o;

    memset(&o, 0, sizeof o);
    o.name = "of each operator";
    o.state_per_param = p->states;
    o.update = ddp__part_update;
    o.lr = 1;
    o.user = p;
    return o;
}

size_t ddp_job_floats(const ddp_job_part *p, int op, int bare)
{
    const ddp_node *n = p && op >= 0 && op < p->nodes ? p->g->node[op] : NULL;

    if (!n || n->here != (int)DDP__HERE_OWN) return 0;
    return p->seat[op].count * (size_t)(bare ? 1 : 1 + p->states) + ddp__arrays_count(n->spec.buffer, 0, n->spec.buffers);
}

int ddp_job_get(ddp_job_part *p, int op, int bare, float *out)
{
    const size_t all = ddp_job_floats(p, op, bare), own = ddp_job_floats(p, op, 1);
    const ddp__seat *s;

    if (!all || !out) return (int)DDP_ARG;
    s = &p->seat[op];
    if (s->count) memcpy(out, s->params, s->count * sizeof *out);
    if (own > s->count) memcpy(out + s->count, p->g->node[op]->buffer[0], (own - s->count) * sizeof *out);
    if (all > own && !s->state) return (int)DDP_USAGE;
    if (all > own) memcpy(out + own, s->state, (all - own) * sizeof *out);
    return 0;
}

int ddp_job_put(ddp_job_part *p, int op, const float *from, size_t floats)
{
    const size_t all = ddp_job_floats(p, op, 0), bare = ddp_job_floats(p, op, 1);
    ddp__seat *s;

    if (!all || !from || (floats != all && floats != bare)) return (int)DDP_ARG;
    s = &p->seat[op];
    if (s->count) memcpy(s->params, from, s->count * sizeof *from);
    if (bare > s->count) memcpy(p->g->node[op]->buffer[0], from + s->count, (bare - s->count) * sizeof *from);
    if (floats == bare) return 0;
    s->taken = (float *)ddp__calloc(all - bare, sizeof *from);
    if (!s->taken) return (int)DDP_MEMORY;
    memcpy(s->taken, from + bare, (all - bare) * sizeof *from);
    return 0;
}
