/* The part of a job that one node trains: an optimizer for each operator, and the state that another node
 * needs to take an operator over. */
#ifndef EXAMPLES_BROKER_JOB_PART_H
#define EXAMPLES_BROKER_JOB_PART_H

#include "job.h"

/* An operator on this node. */
typedef struct job_seat {
    float *params; /* its parameters, contiguous, or NULL without parameters */
    size_t count;
    ddp_optimizer rule;
    float *state; /* optimizer state of the context, set by the first update */
    float *taken; /* initial state until the first update, or NULL for zero */
} job_seat;

typedef struct job_part {
    ddp_graph *g;
    job_seat *seat;    /* [nodes] */
    int nodes, states; /* states: floats per parameter of the rule that needs the most */
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

/* A layer can contain several operators. The rules are elementwise, so each operator applies its own rule to
 * its range of the parameters, and its state follows the state of the operators before it. */
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

/* Finds the optimizer of each operator and the position of its parameters. */
static ddp_status job_seats_fill(job_part *p, const job *j, ddp_error *err)
{
    for (int i = 0; i < p->nodes; i++) {
        const ddp_node *n = p->g->node[i];
        const int own = n->tied >= 0; /* the operator's first own array */
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

/* Call it after ddp_close. */
static void job_close(job_part *p)
{
    if (!p) return;
    for (int i = 0; p->seat && i < p->nodes; i++) free(p->seat[i].taken);
    free(p->seat);
    free(p);
}

/* g: built from j. first: the step at which training resumes. Returns NULL and fills *err on failure. Free it
 * with job_close. */
static job_part *job_open(const job *j, ddp_graph *g, long first, ddp_error *err)
{
    job_part *p = NULL;

    if (!j || !g || !g->built || ddp__count(g->node) != j->ops || ddp__graph_backend(g)) {
        ddp__fail(err, DDP_ARG, "job_open: a graph built from this job, on the CPU, is needed");
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

/* The optimizer for ddp_set_optimizer. Its rate is 1. */
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

enum { JOB_STATES = 4 }; /* maximum number of state values per parameter. adam has 2 */

/* Returns the size in bytes of the largest array that a node and a broker exchange: an operator with its
 * state, or an input. */
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

/* Returns the number of floats of operator `op` on this node (parameters, buffers and optimizer state), or 0
 * if it is not on this node. Without state (`bare`), this is the content of a file of weights. */
static size_t job_floats(const job_part *p, int op, int bare)
{
    const ddp_node *n = p && op >= 0 && op < p->nodes ? p->g->node[op] : NULL;

    if (!n || n->here != (int)DDP__HERE_OWN) return 0;
    return p->seat[op].count * (size_t)(bare ? 1 : 1 + p->states) +
           ddp__arrays_count(n->spec.buffer, 0, n->spec.buffers);
}

/* Copies them to [job_floats]. Call it between steps, after the first one. Returns 0 or a ddp_status. */
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

/* Sets them, with or without state. Call it before the first step. Returns 0 or a ddp_status. */
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
