/* What one node trains of a job: an optimizer for each operator, and what another node needs to take an
 * operator over. */
#ifndef EXAMPLES_BROKER_JOB_PART_H
#define EXAMPLES_BROKER_JOB_PART_H

#include "job.h"

/* An operator here. */
typedef struct job_seat {
    float *params; /* of its own, in one piece; NULL: none */
    size_t count;
    ddp_optimizer rule;
    float *state; /* the context's, where the first update has found it */
    float *taken; /* state to go on from, until then; NULL: zero */
} job_seat;

typedef struct job_part {
    ddp_graph *g;
    job_seat *seat;    /* [nodes] */
    int nodes, states; /* states: floats for each parameter, of the rule that needs most */
    long first;
} job_part;

static int job_rule_make(const job_rule *own, const job_rule *all, ddp_optimizer *out)
{
    const job_rule *r = own->name[0] ? own : all;
    const float lr = (float)(own->lr > 0 ? own->lr : all->lr), m = (float)r->momentum,
                decay = (float)r->weight_decay;

    if (!strcmp(r->name, "sgd"))
        *out = ddp_sgd_decay(lr, m, decay);
    else if (!strcmp(r->name, "nesterov"))
        *out = ddp_nesterov(lr, m, decay);
    else if (!strcmp(r->name, "adam"))
        *out = ddp_adam(lr, 0.9f, 0.999f, 1e-8f, decay);
    else if (!strcmp(r->name, "adamw"))
        *out = ddp_adamw(lr, 0.9f, 0.999f, 1e-8f, decay);
    else
        return 0;
    return lr > 0;
}

/* Part of a layer's parameters is one operator's: the rule is elementwise, so each has its own, with its own
 * state behind what those before it have. */
static void job_part_update(const ddp_optimizer *self, const ddp_update *u)
{
    const job_part *p = (const job_part *)self->user;

    for (int i = 0; i < p->nodes; i++) {
        job_seat *s = &p->seat[i];
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
        free(s->taken);
        s->taken = NULL;
        s->state = own.state;
        s->rule.update(&s->rule, &own);
    }
}

/* The operators' optimizers and where their parameters lie. */
static ddp_status job_seats_fill(job_part *p, const job *j, ddp_error *err)
{
    for (int i = 0; i < p->nodes; i++) {
        const ddp_node *n = p->g->node[i];
        const int own = n->tied >= 0; /* the first array of its own */
        job_seat *s = &p->seat[i];
        if (n->spec.params && !job_rule_make(&j->op[i].rule, &j->rule, &s->rule))
            return ddp__fail(
                err, DDP_ARG,
                "operator %s: optimizer \"%s\" with rate %g: choose sgd, nesterov, adam or adamw, "
                "and a rate above 0",
                j->op[i].name, j->op[i].rule.name[0] ? j->op[i].rule.name : j->rule.name,
                j->op[i].rule.lr > 0 ? j->op[i].rule.lr : j->rule.lr);
        if (s->rule.state_per_param > p->states) p->states = s->rule.state_per_param;
        if (n->here != (int)DDP__HERE_OWN || n->spec.params <= own) continue;
        s->params = n->param[own];
        s->count = ddp__arrays_count(n->spec.param, own, n->spec.params);
    }
    return DDP_OK;
}

/* Behind ddp_close. */
static void job_close(job_part *p)
{
    if (!p) return;
    for (int i = 0; p->seat && i < p->nodes; i++) free(p->seat[i].taken);
    free(p->seat);
    free(p);
}

/* g: built of j. first: the step at which training goes on. NULL: *err. Freed by job_close. */
static job_part *job_open(const job *j, ddp_graph *g, long first, ddp_error *err)
{
    job_part *p = NULL;

    if (!j || !g || !g->built || ddp__count(g->node) != j->ops || ddp__graph_backend(g)) {
        ddp__fail(err, DDP_ARG, "job_open: a graph that was built of this job, on the CPU, is needed");
        return NULL;
    }
    p = (job_part *)calloc(1, sizeof *p);
    if (p) p->seat = (job_seat *)calloc((size_t)ddp__count(g->node), sizeof *p->seat);
    if (p && p->seat) {
        p->g = g;
        p->nodes = ddp__count(g->node);
        p->first = first;
        g->state->pass = (uint64_t)first * (uint64_t)j->micro_batches;
        if (job_seats_fill(p, j, err) == DDP_OK) return p;
    } else {
        ddp__fail(err, DDP_MEMORY, "out of memory for the optimizers of %d operators", ddp__count(g->node));
    }
    job_close(p);
    return NULL;
}

/* For ddp_set_optimizer; its rate is 1. */
static inline ddp_optimizer job_optimizer(job_part *p)
{
    ddp_optimizer o;

    memset(&o, 0, sizeof o);
    o.name = "of each operator";
    o.state_per_param = p->states;
    o.update = job_part_update;
    o.lr = 1;
    o.user = p;
    return o;
}

enum { JOB_STATES = 4 }; /* values that a rule has for each parameter, at most; adam: 2 */

/* The largest array of a job that a node and a broker exchange, in bytes: an operator with its state, or an
 * input. */
static inline size_t job_largest(const job *j, const ddp_graph *g)
{
    size_t most = 0;

    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_op_spec *s = &g->node[i]->spec;
        const size_t own = ddp__arrays_count(s->param, 0, s->params) * (1 + (size_t)JOB_STATES) +
                           ddp__arrays_count(s->buffer, 0, s->buffers);
        const size_t input = j->op[i].type == JOB_PLACEHOLDER ? (size_t)ddp_shape_count(&s->out) : 0;
        if (own > most) most = own;
        if (input > most) most = input;
    }
    return sizeof(float) * most;
}

/* Of operator `op` here: parameters, buffers and the state of its optimizer; 0: none here. Without state
 * (`bare`) it is what a file of weights holds. */
static size_t job_floats(const job_part *p, int op, int bare)
{
    const ddp_node *n = p && op >= 0 && op < p->nodes ? p->g->node[op] : NULL;

    if (!n || n->here != (int)DDP__HERE_OWN) return 0;
    return p->seat[op].count * (size_t)(bare ? 1 : 1 + p->states) +
           ddp__arrays_count(n->spec.buffer, 0, n->spec.buffers);
}

/* They, [job_floats]: between steps, after the first one. Returns 0 or a ddp_status. */
static int job_get(job_part *p, int op, int bare, float *out)
{
    const size_t all = job_floats(p, op, bare), own = job_floats(p, op, 1);
    const job_seat *s;

    if (!all || !out) return (int)DDP_ARG;
    s = &p->seat[op];
    if (s->count) memcpy(out, s->params, s->count * sizeof *out);
    if (own > s->count) memcpy(out + s->count, p->g->node[op]->buffer[0], (own - s->count) * sizeof *out);
    if (all > own && !s->state) return (int)DDP_USAGE;
    if (all > own) memcpy(out + own, s->state, (all - own) * sizeof *out);
    return 0;
}

/* Before the first step, of floats or of bare ones. Returns 0 or a ddp_status. */
static int job_put(job_part *p, int op, const float *from, size_t floats)
{
    const size_t all = job_floats(p, op, 0), bare = job_floats(p, op, 1);
    job_seat *s;

    if (!all || !from || (floats != all && floats != bare)) return (int)DDP_ARG;
    s = &p->seat[op];
    if (s->count) memcpy(s->params, from, s->count * sizeof *from);
    if (bare > s->count) memcpy(p->g->node[op]->buffer[0], from + s->count, (bare - s->count) * sizeof *from);
    if (floats == bare) return 0;
    s->taken = (float *)calloc(all - bare, sizeof *from);
    if (!s->taken) return (int)DDP_MEMORY;
    memcpy(s->taken, from + bare, (all - bare) * sizeof *from);
    return 0;
}

#endif /* EXAMPLES_BROKER_JOB_PART_H */
