/* Opens a pipeline: the cut, process groups, states, edges and inputs. */
#include "exchange/collective.h"
#include "pipe/executor.h"
#include "session/session.h"

/* ---- the cut ---- */

/* 1 if a stage may start at node i without splitting a layer. */
static int ddp__cut_may_begin(const ddp_graph *g, int i)
{
    const ddp_node *n = g->node[i];
    int first = -1;
    int last;

    return n->op && (!ddp__layer_range(g, n->layer, &first, &last) || first == i);
}

ddp_status ddp_pipe_cut(const ddp_graph *g, int stages, int *stage_of, ddp_error *err)
{
    double all = 0, done = 0;
    int stage = 0, begun = 0, left = 0;

    if (!g || !stage_of || stages < 1)
        return ddp__fail(
            err, DDP_ARG,
            "ddp_pipe_cut: the graph and the list must not be NULL, and stages must be at least 1");
    for (int i = 0; i < ddp__count(g->node); i++) {
        all += g->node[i]->spec.flops;
        left += ddp__cut_may_begin(g, i);
    }
    if (left < stages)
        return ddp__fail(err, DDP_ARG, "%d stages for a model with %d layers; use fewer stages", stages,
                         left);
    for (int i = 0; i < ddp__count(g->node); i++) {
        const int may = ddp__cut_may_begin(g, i);
        /* the layer would stay in this stage up to its half */
        const double ahead = done + g->node[i]->spec.flops / 2;
        if (may && begun && stage + 1 < stages &&
            (ahead >= all * (stage + 1) / stages || left < stages - stage)) {
            stage++;
            begun = 0;
        }
        begun |= may;
        left -= may;
        stage_of[i] = stage;
        done += g->node[i]->spec.flops;
    }
    return DDP_OK;
}

/* Checks that all ranks have the same settings before they exchange data. Images are sent in their memory
 * layout, so that must be the same too. */
static ddp_status ddp__pipe_same(ddp_pipe *p, const int *stage_of)
{
    const ddp_backend *b = ddp__backend_of(p->d);
    uint64_t h = ddp__hash(DDP__HASH_START + (uint64_t)p->schedule, p->rank_of,
                           (size_t)ddp_world(p->d) * sizeof *p->rank_of);
    int images = 0, bad;

    for (int i = 0; i < ddp__count(p->g->node); i++) {
        const ddp_node *n = p->g->node[i];
        if (n->op) h = ddp__hash(h, &stage_of[i], sizeof *stage_of);
        images += n->op && n->spec.out.dims == 4 && ddp__stage_after(p->g, n, n->stage) >= 0;
    }
    bad = ddp_same(p->d, "hash of the pipeline stages", (int64_t)(h >> 33));
    if (!bad) bad = ddp_same(p->d, "ahead", p->ahead);
    if (!bad) bad = ddp_same(p->d, "coding of edges", (int64_t)p->edge.coding);
    if (!bad) bad = ddp_same(p->d, "edge ratio x 1000", (int64_t)(p->edge.ratio * 1000));
    if (!bad) bad = ddp_same(p->d, "edge factor x 1000", (int64_t)(p->edge.factor * 1000));
    if (!bad) bad = ddp_same(p->d, "edge feedback (0: no, 1: yes)", p->edge.feedback);
    if (bad || !images) return (ddp_status)bad;
    return (ddp_status)ddp_same(
        p->d, b && b->channels_last ? "images between GPU stages" : "images between CPU stages", images);
}

static ddp_status ddp__pipe_cut_graph(ddp_pipe *p, const ddp_pipe_config *c, ddp_error *err)
{
    int *stage_of = (int *)ddp__calloc((size_t)ddp__count(p->g->node), sizeof *stage_of);
    ddp_status s =
        stage_of ? DDP_OK
                 : ddp__fail(err, DDP_MEMORY, "out of memory for a cut of %d nodes", ddp__count(p->g->node));

    if (s == DDP_OK && c->stage_of)
        memcpy(stage_of, c->stage_of, (size_t)ddp__count(p->g->node) * sizeof *stage_of);
    else if (s == DDP_OK)
        s = ddp_pipe_cut(p->g, p->stages, stage_of, err);
    p->g->halves = p->schedule == DDP_PIPELINE_ZB;
    if (s == DDP_OK && p->edge.coding == DDP_EDGE_BOTTLENECK)
        s = ddp__bottlenecks_add(p->g, p->edge.ratio, &stage_of, err);
    if (s == DDP_OK && (ddp_graph_cut(p->g, stage_of, p->stages, p->stage) || ddp_graph_build(p->g)))
        s = ddp__fail(err, ddp_graph_error(p->g)->code, "%s", ddp_graph_error(p->g)->msg);
    if (s == DDP_OK) s = ddp__pipe_same(p, stage_of);
    if (stage_of) DDP_FREE(stage_of);
    return s;
}

/* ---- process groups ---- */

/* Checks that each rank appears once, and finds this rank's stage and pipeline. */
static ddp_status ddp__pipe_layout(ddp_pipe *p, const int *rank_of, ddp_error *err)
{
    const int world = ddp_world(p->d);
    int *at; /* occurrences of each rank, after the list */

    p->rank_of = ddp__ints(&p->room, 2 * (size_t)world);
    if (!p->rank_of) return ddp__fail(err, DDP_MEMORY, "out of memory for the layout of %d ranks", world);
    at = p->rank_of + world;
    for (int i = 0; i < world; i++) {
        const int r = rank_of ? rank_of[i] : i;
        if (r < 0 || r >= world || at[r]++)
            return ddp__fail(
                err, DDP_ARG,
                "the layout puts rank %d at stage %d of pipeline %d: each of the %d ranks must appear "
                "once",
                r, i % p->stages, i / p->stages, world);
        p->rank_of[i] = r;
        if (r == ddp_rank(p->d)) {
            p->stage = i % p->stages;
            p->number = i / p->stages;
        }
    }
    ddp__pipe_names(p);
    return DDP_OK;
}

/* Makes the groups of each stage, then of each pipeline, with ascending ranks. Collective. */
static ddp_status ddp__pipe_groups(ddp_pipe *p, ddp_error *err)
{
    const int world = ddp_world(p->d), S = p->stages;
    int *place = (int *)ddp__calloc(2 * (size_t)world, sizeof *place), *ranks, bad = 0;

    if (!place) return ddp__fail(err, DDP_MEMORY, "out of memory for the groups of %d ranks", world);
    ranks = place + world;
    for (int i = 0; i < world; i++) place[p->rank_of[i]] = i;
    for (int k = 0; S > 1 && k < S + world / S && !bad; k++) {
        int n = 0, group = 0;
        for (int r = 0; r < world; r++)
            if (k == (k < S ? place[r] % S : S + place[r] / S)) ranks[n++] = r;
        bad = ddp_group(p->d, ranks, n, &group);
        if (k == p->stage) p->g->group = group;
        if (k == S + p->number) p->team = group;
    }
    DDP_FREE(place);
    return (ddp_status)bad;
}

/* ---- lists ---- */

/* Returns 0 if out of memory. */
static int ddp__pipe_inputs_open(ddp_pipe *p)
{
    const size_t M = (size_t)p->micro_batches;

    p->input = ddp__ints(&p->room, (size_t)ddp__count(p->g->node));
    for (int i = 0; p->input && i < ddp__count(p->g->node); i++)
        if (!p->g->node[i]->op && p->g->node[i]->here == (int)DDP__HERE_OWN) p->input[p->inputs++] = i;
    p->feed = (char **)ddp__scratch_take(&p->room, (size_t)p->inputs * M + 1, sizeof *p->feed);
    for (size_t i = 0; !ddp__scratch_failed(&p->room) && i < (size_t)p->inputs * M; i++) {
        const ddp_node *n = p->g->node[p->input[i / M]];
        p->feed[i] = (char *)ddp__scratch_take(&p->room, (size_t)ddp_shape_count(&n->spec.out), 4);
    }
    return !ddp__scratch_failed(&p->room);
}

/* Size of the memory for all micro-batches, followed by the memory of one pass. */
static size_t ddp__pipe_arena(const ddp_pipe *p)
{
    return (size_t)p->held * ddp__state_bytes(p->g, DDP__ARENA_HELD) +
           ddp__state_bytes(p->g, DDP__ARENA_PASS);
}

static size_t ddp__pipe_bytes(const ddp_pipe *p, int states)
{
    return (size_t)states * ddp__state_bytes(p->g, DDP__ARENA_OWN) + ddp__pipe_arena(p);
}

size_t ddp_pipe_bytes(const ddp_pipe *p)
{
    return p ? ddp__pipe_bytes(p, p->states) + (size_t)p->samples.bytes : 0;
}

/* Returns 0 if out of memory. There is one state more than micro-batches in flight, to receive the next one.
 * As in ddp_graph_build, a size that cannot fit is an error. The graph counts the parameters so far. */
static int ddp__states_open(ddp_pipe *p)
{
    const ddp_pipeline_shape shape = ddp__pipe_shape(p);
    const int most = p->held < p->micro_batches ? p->held + 1 : p->held;
    const int here = !ddp__backend_of(p->d) && !ddp__allocator_of(p->d)->alloc;

    if (here && !ddp__graph_may_take(p->g, (double)ddp__pipe_bytes(p, most))) return 0;
    p->task = (ddp_task *)ddp__scratch_take(&p->room, 3 * (size_t)p->micro_batches, sizeof *p->task);
    p->state = (ddp_state **)ddp__scratch_take(&p->room, (size_t)most, sizeof(ddp_state *));
    if (ddp__scratch_failed(&p->room)) return 0;
    p->tasks = ddp_pipeline_tasks(&shape, p->stage, p->task);
    for (; p->states < most; p->states++) {
        p->state[p->states] = ddp_state_new(p->g);
        if (!p->state[p->states]) return 0;
    }
    p->arena = (char *)ddp__host_alloc(ddp__host_of(p->d), ddp__pipe_arena(p));
    return p->arena || !ddp__pipe_arena(p);
}

/* ---- opening and closing ---- */

static ddp_status ddp__pipe_check(const ddp_ctx *d, const ddp_graph *g, const ddp_node *loss,
                                  const ddp_pipe_config *c, ddp_error *err)
{
    if (!g)
        return ddp__fail(err, DDP_MEMORY, "ddp_pipe_open: g is NULL because ddp_graph_new was out of memory");
    if (g->error.code) return ddp__fail(err, g->error.code, "%s", g->error.msg);
    if (!c || c->stages < 1) return ddp__fail(err, DDP_ARG, "ddp_pipe_open: stages must be at least 1");
    if (g->host != ddp__host_seen(d))
        return ddp__fail(err, DDP_ARG, "ddp_pipe_open: the graph belongs to another context");
    if (!loss || loss->graph != g || !loss->op || ddp_shape_count(&loss->spec.out) != 1 ||
        !loss->has_gradient)
        return ddp__fail(err, DDP_ARG,
                         "ddp_pipe_open: the loss is not a scalar of this graph that depends on parameters");
    if (ddp_servers(d))
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "a pipeline cannot use servers (servers %d); "
                         "choose a strategy without servers",
                         ddp_servers(d));
    if (g->element != sizeof(float) && c->stages > 1)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "%d stages on a device with %zu bytes per element; pipelines send "
                         "float32 between stages: choose float32",
                         c->stages, g->element);
    for (int i = 0; d->keeper && c->rank_of && i < ddp_world(d); i++)
        if (c->rank_of[i] != i)
            return ddp__fail(err, DDP_UNSUPPORTED,
                             "the layout has rank %d at place %d, but ddp_launch_pipelines needs the "
                             "ranks in ascending order; remove rank_of",
                             c->rank_of[i], i);
    if (ddp_world(d) % c->stages)
        return ddp__fail(
            err, DDP_ARG,
            "%d stages with %d ranks: the number of ranks must be a multiple of %d, the same number for "
            "each stage",
            c->stages, ddp_world(d), c->stages);
    return DDP_OK;
}

/* Sets the staging memory of a device. Messages of edges are sent and received while a micro-batch is in
 * flight, messages of tied weights at any time of a step. */
static void ddp__pipe_room(ddp_pipe *p)
{
    size_t bytes = ((size_t)p->states + 1) * ddp__state_bytes(p->g, DDP__ARENA_OWN);

    for (int i = 0; i < p->guests + p->hosts; i++) {
        const ddp__guest *u = i < p->guests ? &p->guest[i] : &p->host[i - p->guests];
        bytes += 2 * (size_t)ddp_shape_count(&p->g->node[u->node]->spec.param[0].shape) * sizeof(float);
    }
    ddp__edges_set(p->d, 2 * p->micro_batches * (p->hops[0] + p->hops[1]) + 2 * (p->guests + p->hosts),
                   bytes);
}

static ddp_status ddp__pipe_open(ddp_pipe *p, const ddp_pipe_config *c, ddp_error *err)
{
    ddp_pipeline_shape shape;

    p->schedule = c->schedule;
    p->ahead = c->ahead;
    p->stages = c->stages;
    p->edge = c->edge;
    p->samples.count = c->samples;
    p->samples.batch = c->batch;
    p->micro_batches = ddp__cfg(p->d)->micro_batches;
    DDP__TRY(ddp__pipe_layout(p, c->rank_of, err));
    if (p->stages > 1) ddp__pipe_clips(p);
    p->evaluated = -1;
    shape = ddp__pipe_shape(p);
    p->held = ddp_pipeline_held(&shape, p->stage);
    if (!p->held)
        return ddp__fail(
            err, DDP_ARG,
            "ddp_pipe_open: invalid schedule %d with %d stages (at most 1024) and %d ahead (at least 0)",
            (int)p->schedule, p->stages, p->ahead);
    DDP__TRY(ddp__pipe_groups(p, err));
    DDP__TRY(ddp__pipe_cut_graph(p, c, err));
    if (!ddp__shares_open(p))
        return ddp__fail(err, DDP_MEMORY, "out of memory for a list of %d layers", ddp__count(p->g->layer));
    if (ddp__edges_open(p) && ddp__tied_open(p) && ddp__pipe_inputs_open(p) && ddp__lanes_open(p) &&
        ddp__states_open(p)) {
        ddp__pipe_room(p);
        if (!ddp__backend_of(p->d)) ddp__graph_takes(p->g, (double)ddp_pipe_bytes(p));
        return ddp__wires_open(p, err);
    }
    return ddp__fail(
        err, DDP_MEMORY,
        "out of memory for the activations of stage %d: %d micro-batches of %zu bytes are "
        "stored at a time; use smaller ones, more stages, 1f1b with fewer ahead, or recompute the "
        "blocks (--recompute of a trainer)",
        p->stage, p->held, ddp__state_bytes(p->g, DDP__ARENA_HELD));
}

ddp_pipe *ddp_pipe_open(ddp_ctx *d, ddp_graph *g, ddp_node *loss, const ddp_pipe_config *c)
{
    ddp_pipe *p = NULL;
    ddp_status s;

    if (!d || ddp__host_check(ddp__host_of(d), ddp__error(d)) || ddp__error(d)->code) return NULL;
    s = ddp__pipe_check(d, g, loss, c, ddp__error(d));
    if (s == DDP_OK) p = (ddp_pipe *)ddp__calloc(1, sizeof *p);
    if (s == DDP_OK && !p) s = ddp__fail(ddp__error(d), DDP_MEMORY, "out of memory for a pipeline");
    if (s == DDP_OK) {
        p->d = d;
        p->g = g;
        p->loss = loss;
        s = ddp__pipe_open(p, c, ddp__error(d));
    }
    if (s == DDP_OK) return p;
    ddp__ctx_fail(d, ddp__error(d));
    ddp_pipe_close(p);
    return NULL;
}

void ddp_pipe_close(ddp_pipe *p)
{
    const ddp__norm_chain none = DDP__ZEROS;

    if (!p) return;
    ddp__norm_chain_set(p->d, &none);
    if (ddp__cut_of(p->d) == &p->cut) ddp__cut_set(p->d, NULL);
    p->g->fetch_uses = NULL;
    for (int i = 0; i < p->states; i++) ddp_state_free(p->state[i]);
    ddp__host_release(ddp__host_of(p->d), p->arena, ddp__pipe_arena(p));
    ddp__scratch_free(&p->room);
    DDP_FREE(p);
}
