/* Plans with a profile, a network, a link and its script, and writes and rereads them if there is a
 * writer. */
#ifndef IO_USE_PLANS_H
#define IO_USE_PLANS_H

#include "use.h"

/* ---- a profile: planners ---- */

static int fuzz_same_text(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static void profile_written(const ddp_profile *p, ddp_error *err)
{
    char path[FUZZ_PATH];
    ddp_profile q;

    fuzz_path(path, "again.csv");
    fuzz_expect(ddp_profile_write(p, path, err) == DDP_OK && ddp_profile_read(path, NULL, &q, err) == DDP_OK);
    fuzz_expect(q.layers == p->layers);
    for (int l = 0; l < p->layers; l++)
        fuzz_expect(fuzz_same_text(q.name[l], p->name[l]) && q.params[l] == p->params[l] &&
                    q.comm_s[l] == p->comm_s[l] && q.forward_s[l] == p->forward_s[l] &&
                    q.backward_s[l] == p->backward_s[l]);
    ddp_profile_free(&q);
}

static void profile_partial(const ddp_profile *p, const uint8_t *how, ddp_error *err)
{
    ddp_plan_options o;
    ddp_plan plan;
    int *landing = (int *)calloc((size_t)p->layers, sizeof *landing);
    double sum = 0, t = 0, objective;

    memset(&o, 0, sizeof o);
    o.period = 1 + how[0] % 6;
    o.solver = (ddp_solver)(how[0] / 6 % 6);
    o.cost = (ddp_cost)(how[1] % 4);
    o.fill = (ddp_fill)(how[1] / 4 % 3);
    o.time_limit_s = 0.02;
    if (p->layers > 12 && (o.solver == DDP_SOLVER_DFS || o.solver == DDP_SOLVER_BRUTE))
        o.solver = DDP_SOLVER_OPTIMAL;
    if (!landing || !fuzz_taken(ddp_plan_partial(p, &o, &plan, err), err)) {
        free(landing);
        return;
    }
    fuzz_expect(plan.layers == p->layers && plan.period == o.period);
    for (int l = 0; l < plan.layers; l++) fuzz_expect(plan.step_of[l] >= 0 && plan.step_of[l] < plan.period);
    fuzz_seconds(plan.objective_s);
    fuzz_seconds(plan.exposed_s);
    fuzz_expect(plan.lower_bound_s <= plan.objective_s * (1 + 1e-9));
    objective = plan.objective_s;
    for (int h = 0; h < plan.period; h++, sum += t)
        fuzz_expect(ddp_plan_step_time(p, plan.step_of, h, plan.cost, &t, err) == DDP_OK && t >= 0);
    fuzz_expect(fuzz_near(sum, objective));
    fuzz_expect(ddp_plan_evaluate(p, plan.cost, &plan, err) == DDP_OK &&
                fuzz_near(plan.objective_s, objective));
    if (fuzz_taken(ddp_plan_landing(p, &plan, landing, &t, err), err)) {
        fuzz_seconds(t);
        for (int l = 0; l < plan.layers; l++)
            fuzz_expect(landing[l] >= 0 && landing[l] <= (o.period > 1 ? o.period - 1 : 0));
    }
    ddp_plan_free(&plan);
    free(landing);
}

/* Every bucket is sent whole, however it is split or merged. */
static void profile_timeline(const ddp_profile *p, const uint8_t *how, ddp_error *err)
{
    ddp_timeline_options o;
    ddp_timeline t;
    double each = 0, all = 0;

    memset(&o, 0, sizeof o);
    o.scheme = (ddp_scheme)(how[2] % 6);
    o.operations = how[2] / 6 % 5;
    if (!fuzz_taken(ddp_plan_timeline(p, &o, &t, err), err)) return;
    fuzz_seconds(t.iteration_s);
    fuzz_expect(t.lower_bound_s <= t.iteration_s * (1 + 1e-9));
    for (int b = 0; b < t.buckets; b++) {
        int left = t.parts[b];
        for (int i = 0; i < t.intervals; i++) {
            const ddp_interval *v = &t.interval[i];
            fuzz_expect(v->bucket >= 0 && v->bucket <= v->last && v->last < t.buckets &&
                        v->begin_s <= v->end_s);
            if (v->kind == DDP_INTERVAL_LINK && b >= v->bucket && b <= v->last && t.parts[b])
                left -= v->last > v->bucket ? 1 : v->parts;
        }
        fuzz_expect(left == 0);
    }
    if (fuzz_taken(ddp_timeline_exposed(p, &t, 0.01, &each, &all, err), err)) {
        fuzz_seconds(each);
        fuzz_seconds(all);
    }
    ddp_timeline_free(&t);
}

/* The transfers that fit into a backward pass, starting when each gradient is ready. */
static void profile_knapsack(const ddp_profile *p, const uint8_t *how, ddp_error *err)
{
    ddp_knapsack_problem k;
    double item[16], ready[16], at = 0, value = 0, sent = 0, load[2] = {0, 0};
    int assign[16];

    memset(&k, 0, sizeof k);
    for (int l = p->layers - 1; l >= 0; l--) {
        at += p->backward_s[l];
        if (p->comm_s[l] <= 0 || k.items == 16) continue;
        item[k.items] = p->comm_s[l];
        ready[k.items++] = how[3] & 2 ? at : 0;
    }
    k.item_s = item;
    k.ready_s = ready;
    k.links = 1 + (how[3] & 1);
    k.deadline_s[0] = k.deadline_s[1] = at;
    k.slowdown[1] = 1.65;
    if (!k.items ||
        !fuzz_taken(ddp_knapsack(&k, (ddp_knapsack_solver)(how[3] / 4 % 3), assign, &value, err), err))
        return;
    for (int i = 0; i < k.items; i++) {
        fuzz_expect(assign[i] >= -1 && assign[i] < k.links);
        if (assign[i] < 0) continue;
        sent += item[i];
        load[assign[i]] += item[i] * (assign[i] ? k.slowdown[1] : 1);
    }
    fuzz_expect(fuzz_near(sent, value) && load[0] <= at * (1 + 1e-9) && load[1] <= at * (1 + 1e-9));
}

static void profile_delayed(const ddp_profile *p, const uint8_t *how, ddp_error *err)
{
    ddp_delayed_options o;
    ddp_delayed_plan plan;
    int merged = 0;

    memset(&o, 0, sizeof o);
    o.links = 1 + (how[3] & 1);
    o.mu = 1.65;
    o.select = (ddp_delayed_select)(how[3] / 4 % 3);
    o.no_barrier = how[3] >> 1 & 1;
    if (p->layers > 12 || !fuzz_taken(ddp_plan_delayed(p, &o, &plan, err), err)) return;
    for (int i = 0; i < plan.sends; i++) {
        const ddp_delayed_send *s = &plan.send[i];
        fuzz_expect(s->bucket >= 0 && s->bucket < plan.buckets && s->part >= 0 &&
                    s->part < plan.parts_of[s->bucket]);
        fuzz_expect(s->iteration >= 0 && s->iteration < plan.warmup + plan.period && s->link >= 0 &&
                    s->link < plan.links);
        fuzz_seconds(s->begin_s);
        fuzz_expect(s->begin_s <= s->end_s && s->end_s <= DBL_MAX);
    }
    for (int i = 0; i < plan.updates; i++) merged += plan.k[i];
    fuzz_expect(merged == plan.period && plan.updates > 0);
    fuzz_seconds(plan.iteration_s);
    fuzz_expect(plan.lower_bound_s <= plan.iteration_s * (1 + 1e-9));
    ddp_delayed_plan_free(&plan);
}

/* The layers that OSP may defer stay within the budget. */
static void profile_osp(const ddp_profile *p, const uint8_t *how, ddp_error *err)
{
    unsigned char *gib = (unsigned char *)calloc((size_t)p->layers / 8 + 1, 1);
    double budget = 0, late = 0, sum = 0;

    for (int l = 0; l < p->layers; l++) budget += p->params[l] * 0.5;
    if (gib && budget <= DBL_MAX &&
        fuzz_taken(ddp_osp_rank(p->layers, p->backward_s, p->params, budget, (ddp_osp_rule)(how[2] / 30 % 4),
                                gib, &late, err),
                   err)) {
        for (int l = 0; l < p->layers; l++) sum += gib[l / 8] >> l % 8 & 1 ? 0 : p->params[l];
        fuzz_expect(fuzz_near(sum, late) && late <= budget * (1 + 1e-9));
    }
    free(gib);
}

/* Four bytes of options, then the CSV. */
static void fuzz_profile(const uint8_t *p, size_t n)
{
    const ddp_link link = {1e-3, 1e-9};
    char path[FUZZ_PATH];
    ddp_profile profile;
    ddp_error err;

    if (n < 4) return;
    fuzz_write(path, "profile.csv", p + 4, n - 4);
    if (!fuzz_taken(ddp_profile_read(path, p[2] & 1 ? &link : NULL, &profile, &err), &err)) return;
    fuzz_expect(ddp_profile_check(&profile, &err) == DDP_OK);
    profile_written(&profile, &err);
    if (profile.layers <= 64) {
        profile_partial(&profile, p, &err);
        profile_timeline(&profile, p, &err);
        profile_knapsack(&profile, p, &err);
        profile_delayed(&profile, p, &err);
        profile_osp(&profile, p, &err);
    }
    ddp_profile_free(&profile);
}

/* ---- a network: placement of operators, and links ---- */

/* Files store milliseconds and gigabits, so the last bit of a value may differ after reading. */
static void network_written(const ddp_network *net, ddp_error *err)
{
    const int N = net->devices;
    char path[FUZZ_PATH];
    ddp_network m;

    fuzz_path(path, "again.json");
    fuzz_expect(ddp_network_write(net, path, err) == DDP_OK &&
                ddp_network_read(path, NULL, &m, err) == DDP_OK);
    fuzz_expect(m.devices == N && m.pipelines == net->pipelines && m.stages == net->stages &&
                m.dp_bytes == net->dp_bytes && m.pp_bytes == net->pp_bytes && !m.speed == !net->speed &&
                !m.memory_bytes == !net->memory_bytes);
    for (int i = 0; i < N * N; i++)
        fuzz_expect(i / N == i % N ||
                    (fuzz_near(m.delay_s[i], net->delay_s[i]) && fuzz_near(m.rate[i], net->rate[i])));
    for (int i = 0; i < N; i++)
        fuzz_expect((!m.speed || fuzz_near(m.speed[i], net->speed[i])) &&
                    (!m.memory_bytes || fuzz_near(m.memory_bytes[i], net->memory_bytes[i])));
    ddp_network_free(&m);
}

static void network_place(const ddp_network *net, const uint8_t *how, ddp_error *err)
{
    ddp_place_options o;
    ddp_placement place;
    double cost = 0;
    unsigned seen = 0;

    memset(&o, 0, sizeof o);
    o.solver = (ddp_place_solver)(how[0] % 7);
    o.max_candidates = 40;
    o.seed = how[0];
    if (!net->pipelines && !net->stages) {
        o.pipelines = 1;
        o.stages = net->devices;
    }
    if (!fuzz_taken(ddp_place(net, &o, &place, err), err)) return;
    fuzz_seconds(place.cost_s);
    fuzz_expect(place.pipelines * place.stages == net->devices &&
                fuzz_near(place.cost_s, place.datap_s + place.pipelinep_s));
    for (int i = 0; i < net->devices; i++) seen |= 1u << place.assign[i];
    fuzz_expect(seen == (1u << net->devices) - 1);
    fuzz_expect(ddp_place_cost(net, place.pipelines, place.stages, place.assign, &cost, NULL, NULL, err) ==
                    DDP_OK &&
                fuzz_near(cost, place.cost_s));
    ddp_placement_free(&place);
}

static void network_orders(const ddp_network *net, ddp_error *err)
{
    int order[12], community[12], communities = 0, N = net->devices;
    unsigned seen = 0;
    double least = 0;

    if (fuzz_taken(ddp_plan_ring(N, net->rate, net->delay_s, order, &least, err), err)) {
        for (int i = 0; i < N; i++) seen |= 1u << order[i];
        fuzz_expect(seen == (1u << N) - 1 && order[0] == 0 && least >= 0);
    }
    if (fuzz_taken(ddp_louvain(N, net->rate, 1, community, &communities, NULL, err), err))
        for (int i = 0; i < N; i++) fuzz_expect(community[i] >= 0 && community[i] < communities);
}

/* A chain of operators over the devices, with one segment per device. */
static void network_fence(const ddp_network *net, const uint8_t *how, ddp_error *err)
{
    ddp_fence_options o;
    ddp_fence_plan plan;
    ddp_oplist list;
    int next = 0;

    if (!net->speed || ddp_oplist_new(14, &list, err)) return;
    for (int i = 0; i < list.count; i++) {
        const int before = i - 1;
        fuzz_expect(ddp_oplist_set(&list, i, "op", &before, i > 0, 1e9 * (1 + i % 3), 4e5, 4e6, err) ==
                    DDP_OK);
    }
    memset(&o, 0, sizeof o);
    o.solver = (ddp_fence_solver)(how[0] / 7 % 4);
    o.allow_idle = how[0] >> 7;
    if (fuzz_taken(ddp_fence(&list, net, &o, &plan, err), err)) {
        for (int i = 0; i < plan.segments; i++) {
            fuzz_expect(plan.segment[i].first == next && plan.segment[i].end > next);
            next = plan.segment[i].end;
        }
        fuzz_expect(next == list.count);
        fuzz_seconds(plan.work.pipeline_s);
        ddp_fence_plan_free(&plan);
    }
    ddp_oplist_free(&list);
}

/* Frames over the links that a rank emulates: no frame departs too early, and all arrive. */
static void links_used(ddp__links *l, int rank, int world)
{
    double ready = 0;

    if (!l->path) return;
    for (int i = 0; i < 8; i++) {
        ddp__path *peer = &l->path[(rank + 1) % world];
        const size_t bytes = (size_t)100 << 2 * i;
        const double left = ddp__link_send(&l->own, peer, ready, bytes),
                     arrival = ddp__path_receive(peer, left);
        const double due = ddp__link_due(&l->own, arrival, bytes),
                     got = ddp__link_receive(&l->own, arrival, bytes);
        fuzz_expect(left >= ready && arrival >= left && due >= arrival && got >= arrival && got <= DBL_MAX);
        ready = left;
    }
    for (int i = 1; i < l->acts; i++) fuzz_expect(l->act[i].at >= l->act[i - 1].at);
}

/* net, net_script: borrowed. */
static void links_opened(const char *net, const char *script, int rank, int world)
{
    ddp_config c;
    ddp__links l;
    ddp_error err;

    memset(&c, 0, sizeof c);
    c.net = net;
    c.network.net_script = script;
    c.rank = rank;
    c.world = world;
    c.transport = DDP_TCP;
    if (!fuzz_taken(ddp__links_open(&c, 0, &l, &err), &err)) return;
    links_used(&l, rank, world);
    ddp__links_free(&l);
}

/* A byte of options, then the JSON. */
static void fuzz_network(const uint8_t *p, size_t n)
{
    char path[FUZZ_PATH];
    ddp_network net;
    ddp_error err;

    if (n < 1) return;
    fuzz_write(path, "net.json", p + 1, n - 1);
    if (!fuzz_taken(ddp_network_read(path, NULL, &net, &err), &err)) return;
    fuzz_expect(ddp_network_check(&net, &err) == DDP_OK);
    if (net.devices <= 12) {
        network_written(&net, &err);
        network_place(&net, p, &err);
        network_orders(&net, &err);
        network_fence(&net, p, &err);
        links_opened(path, NULL, p[0] % net.devices, net.devices);
        fuzz_expect(ddp_network_noise(&net, p[0], 0.1, 0.1, &err) == DDP_OK);
    }
    ddp_network_free(&net);
}

/* A line with a link specification, then the script of incidents. */
static void fuzz_links(const uint8_t *p, size_t n)
{
    char *text = fuzz_string(p, n), *end = text + strcspn(text, "\n"), path[FUZZ_PATH];
    double rate = 0, delay = 0;
    ddp_error err;

    if (*end) *end++ = 0;
    fuzz_write(path, "script", end, strlen(end));
    if (fuzz_taken(ddp_net_parse(text, &rate, &delay, &err), &err)) {
        fuzz_seconds(rate);
        fuzz_seconds(delay);
        for (int r = 0; r < 3; r++) links_opened(text, path, r, 3);
    }
    free(text);
}

#endif /* IO_USE_PLANS_H */
