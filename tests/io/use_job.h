/* The description of a job: its graph is cut over nodes, described to each node, and trained if it is
 * small. */
#ifndef IO_USE_JOB_H
#define IO_USE_JOB_H

#include "../../examples/broker/job_json.h"
#include "../../examples/broker/job_part.h"
#include "use.h"

/* Every message that a node sends is received by another node. */
static void job_crosses(const job *j)
{
    long sent = 0, received = 0;

    for (int node = 0; node < j->nodes; node++) {
        job_message m[64];
        const int n = job_messages(j, node, m, 64);
        for (int i = 0; i < n && i < 64; i++) {
            fuzz_expect(m[i].from != m[i].to && (m[i].from == node || m[i].to == node));
            fuzz_expect(m[i].from >= 0 && m[i].from < j->nodes && m[i].to >= 0 && m[i].to < j->nodes);
            if (n > 64) continue;
            sent += m[i].from == node;
            received += m[i].to == node;
        }
        if (n > 64) return;
    }
    fuzz_expect(sent == received);
}

/* A written description reads back as the same job. */
static void job_described(const job *j, int node)
{
    char *text = job_text(j, node), *again;
    ddp_error err;
    job k;

    fuzz_expect(text && job_read("described", text, strlen(text), &k, &err) == DDP_OK);
    fuzz_expect(k.ops == j->ops && k.node == node && k.loss == j->loss && k.nodes == j->nodes);
    for (int i = 0; i < k.ops; i++)
        k.op[i].requires_grad = j->op[i].requires_grad; /* depends on the cut, which the description omits */
    again = job_text(&k, node);
    fuzz_expect(again && !strcmp(text, again));
    job_text_free(again);
    job_text_free(text);
    job_free(&k);
}

/* The cut that OP-Fence computes for three heterogeneous devices, written and read back. */
static void job_fenced(const ddp_graph *g)
{
    char path[FUZZ_PATH];
    ddp_fence_options o;
    ddp_fence_plan plan;
    ddp_pipe_layout l;
    ddp__text t = {NULL, 0, 0, 0, 0};
    ddp_network net;
    ddp_oplist list;
    ddp_error err;
    double speed[3] = {1e9, 2e9, 4e9};

    if (!fuzz_taken(ddp_graph_oplist(g, &list, &err), &err)) return;
    fuzz_expect(ddp_network_new(3, &net, &err) == DDP_OK);
    net.speed = speed;
    for (int i = 0; i < 9; i++) {
        net.delay_s[i] = 1e-3;
        net.rate[i] = 1e8 * (1 + i % 2);
    }
    memset(&o, 0, sizeof o);
    if (list.count <= 24 && fuzz_taken(ddp_fence(&list, &net, &o, &plan, &err), &err)) {
        ddp__text_addf(&t, "{\"pipeline_s\": 1, \"segments\": [");
        for (int i = 0; i < plan.segments; i++)
            ddp__text_addf(&t, "%s{\"device\": %d, \"first\": %d, \"end\": %d}", i ? ", " : "",
                           plan.segment[i].device, plan.segment[i].first, plan.segment[i].end);
        ddp__text_addf(&t, "]}\n");
        fuzz_write(path, "cut.json", t.data, t.size);
        ddp__text_free(&t);
        if (fuzz_taken(ddp_pipe_layout_read(NULL, path, g, 3, &l, &err), &err)) {
            fuzz_expect(l.stages == 3 && l.pipelines == 1);
            for (int i = 0; i < ddp__count(g->node); i++)
                fuzz_expect(l.stage_of[i] >= 0 && l.stage_of[i] < l.stages);
            ddp_pipe_layout_free(&l);
        }
        ddp_fence_plan_free(&plan);
    }
    net.speed = NULL;
    ddp_network_free(&net);
    ddp_oplist_free(&list);
}

/* Number of values that the graph would allocate, including workspace. */
static double job_size(const ddp_graph *g)
{
    double n = 0;

    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_op_spec *s = &g->node[i]->spec;
        n += (double)ddp_shape_count(&s->out) + (double)s->saved + s->flops / 100 + s->backward_flops / 100;
        for (int k = 0; k < s->params; k++) n += (double)ddp_shape_count(&s->param[k].shape);
        for (int k = 0; k < s->buffers; k++) n += (double)ddp_shape_count(&s->buffer[k].shape);
    }
    return n;
}

/* Gets the state of each operator on this node, and puts it back before the first step. */
static void job_moved(const job *j, job_part *part, int stepped)
{
    for (int i = 0; i < j->ops; i++) {
        const size_t n = job_floats(part, i, !stepped);
        float *x = (float *)calloc(n + 1, sizeof *x);
        fuzz_expect(x && (!n || job_get(part, i, !stepped, x) == 0));
        fuzz_expect(!n || stepped || job_put(part, i, x, n) == 0);
        free(x);
    }
}

static void job_step(const job *j, ddp_ctx *d, ddp_graph *g, ddp_pipe *pipe, job_part *part)
{
    const ddp_optimizer rule = job_optimizer(part);

    if (!model_taken(d, ddp_set_optimizer(d, &rule))) return;
    job_moved(j, part, 0);
    for (int m = 0; m < j->micro_batches; m++)
        for (int i = 0; i < ddp__count(g->node); i++) {
            const ddp_node *in = g->node[i];
            void *to = in->op ? NULL : ddp_pipe_input(pipe, m, in->name);
            if (to) memset(to, 0, (size_t)ddp_shape_count(&in->spec.out) * sizeof(float));
        }
    if (!model_taken(d, ddp_pipe_step(pipe)) || !model_taken(d, ddp_step_end(d))) return;
    (void)ddp_pipe_loss(pipe);
    job_moved(j, part, 1);
}

/* Trains on one node, from the description. */
static void job_trained(job *j)
{
    int *stage_of = (int *)calloc((size_t)j->ops, sizeof *stage_of);
    ddp_pipe_config p;
    ddp_config c;
    ddp_error err;
    ddp_ctx *d;
    ddp_graph *g;
    ddp_node *loss = NULL;
    ddp_pipe *pipe = NULL;
    job_part *part = NULL;

    fuzz_expect(stage_of && job_cut(j, stage_of, 1, &err) == DDP_OK);
    j->node = 0;
    memset(&c, 0, sizeof c);
    memset(&p, 0, sizeof p);
    c.world = c.no_env = c.deterministic = 1;
    c.strategy = DDP_SSGD;
    c.micro_batches = j->micro_batches;
    d = ddp_open(&c, &err);
    fuzz_expect(d != NULL);
    g = ddp_graph_new(d);
    p.stages = 1;
    p.stage_of = stage_of;
    p.schedule = j->schedule;
    p.edge = j->edge;
    if (fuzz_taken(job_build(j, g, &loss, &err), &err)) {
        pipe = ddp_pipe_open(d, g, loss, &p);
        if (!pipe)
            fuzz_refused(ddp_last_error(d)->code, ddp_last_error(d));
        else
            part = job_open(j, g, 0, &err);
        if (pipe && !part) fuzz_refused(err.code, &err);
    }
    if (part) job_step(j, d, g, pipe, part);
    ddp_pipe_close(pipe);
    ddp_close(d);
    job_close(part);
    free(stage_of);
}

static void job_used(job *j, int nodes)
{
    int *stage_of = (int *)calloc((size_t)j->ops, sizeof *stage_of);
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss = NULL;
    ddp_error err;

    fuzz_expect(stage_of && g);
    if (fuzz_taken(job_build(j, g, &loss, &err), &err)) {
        fuzz_expect(loss && ddp_node_count(g) == j->ops);
        if (fuzz_taken(ddp_pipe_cut(g, nodes, stage_of, &err), &err)) {
            fuzz_expect(job_cut(j, stage_of, nodes, &err) == DDP_OK);
            for (int i = 0; i < j->ops; i++)
                for (int k = 0; k < j->op[i].arg_count; k++)
                    fuzz_expect(j->op[j->op[i].args[k]].type == JOB_PLACEHOLDER ||
                                j->op[j->op[i].args[k]].node <= j->op[i].node);
            job_stages(j, stage_of);
            job_crosses(j);
            for (int node = 0; node < nodes; node++) job_described(j, node);
        }
        job_fenced(g);
        if (job_size(g) < 1e5 && j->micro_batches <= 3) job_trained(j);
    }
    ddp_graph_free(g);
    free(stage_of);
}

/* A byte with the number of nodes, then the JSON. */
static void fuzz_job(const uint8_t *p, size_t n)
{
    ddp_error err;
    job j;

    if (n < 1 || !fuzz_taken(job_read("job", (const char *)p + 1, n - 1, &j, &err), &err)) return;
    if (j.ops <= 64) {
        job_described(&j, j.node);
        job_used(&j, 1 + p[0] % 4);
    }
    job_free(&j);
}

#endif /* IO_USE_JOB_H */
