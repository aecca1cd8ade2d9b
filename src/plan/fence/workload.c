/* FusionLLM's workload estimator: the costs of an assignment, the same with compressed messages, and the
 * speed of a device. */
#include "compress/compress.h"
#include "plan/arrays.h"
#include "plan/fence/workload_internal.h"

static ddp_status ddp__workload_options_check(const ddp_network *net, const ddp_workload_options *o,
                                              ddp_error *err)
{
    size_t at;
    DDP__TRY(ddp_network_check(net, err));
    if (o->microbatches < 0 || o->microbatches > 1000000000)
        return ddp__fail(err, DDP_ARG, "%d micro-batches are impossible; 1 to 1e9 are", o->microbatches);
    if (!ddp__within(o->samples, 0, 1e100))
        return ddp__fail(err, DDP_ARG, "%g samples per iteration are impossible; 0 = one per micro-batch",
                         o->samples);
    if (!ddp__within(o->state_factor, 0, 1e6))
        return ddp__fail(err, DDP_ARG, "state_factor is %g; it must be from 0 (= default) to 1e6",
                         o->state_factor);
    if (!net->speed)
        return ddp__fail(err, DDP_ARG,
                         "the network has no speeds; set \"tflops\" of every device or group to its "
                         "achieved speed, not its peak");
    for (int d = 0; d < net->devices; d++) { /* so that no quotient overflows */
        if (!ddp__within(net->speed[d], 1e-100, 1e100))
            return ddp__fail(err, DDP_ARG,
                             "the speed of device %d is %g FLOP/s; it must be from 1e-100 to 1e100", d,
                             net->speed[d]);
        for (int to = 0; to < net->devices; to++) {
            at = (size_t)d * (size_t)net->devices + (size_t)to;
            if (to != d && (net->rate[at] < 1e-100 || net->delay_s[at] > 1e100))
                return ddp__fail(err, DDP_ARG,
                                 "the link from device %d to device %d (%g s, %g bytes/s) is beyond "
                                 "1e100 s, or 1e100 s per byte",
                                 d, to, net->delay_s[at], net->rate[at]);
        }
    }
    return DDP_OK;
}

/* Lists the distinct users of each result in ascending order. from [ops + 2] must be all-zero. */
static void ddp__workload_users(ddp__workload_graph *g)
{
    const ddp_oplist *list = g->list;
    int i, k, u, turn;
    for (turn = 0; turn < 2; turn++) { /* turn 0 counts, turn 1 places: from[u + 1] moves from the start to
                                          the end */
        for (i = 0; i < list->count; i++) g->seen[i] = -1;
        for (i = 0; i < list->count; i++)
            for (k = 0; k < list->op[i].arg_count; k++) {
                u = list->op[i].args[k];
                if (g->seen[u] == i) continue;
                g->seen[u] = i;
                if (turn)
                    g->users[g->from[u + 1]++] = i;
                else
                    g->from[u + 2]++;
            }
        for (i = 0; !turn && i < list->count; i++) g->from[i + 2] += g->from[i + 1];
    }
}

ddp_status ddp__workload_graph_open(const ddp_oplist *list, const ddp_network *net,
                                    const ddp_workload_options *o, ddp__workload_graph *g, ddp_error *err)
{
    size_t edges = 0;
    int i, n;
    memset(g, 0, sizeof *g);
    DDP__TRY(ddp_oplist_check(list, err));
    DDP__TRY(ddp__workload_options_check(net, o, err));
    n = list->count;
    for (i = 0; i < n; i++) edges += (size_t)list->op[i].arg_count;
    if (edges > INT_MAX)
        return ddp__fail(err, DDP_UNSUPPORTED, "%zu args are too many; at most %d", edges, INT_MAX);
    g->list = list;
    g->net = net;
    g->turns = o->microbatches > 1 ? o->microbatches - 1 : 0;
    g->samples = o->samples > 0 ? o->samples : g->turns + 1;
    g->backward = !o->forward_only;
    g->compute = g->backward ? 3 : 1;
    g->kept = g->backward ? g->turns + 1 : 1;
    g->state_factor = o->state_factor > 0 ? o->state_factor : g->backward ? 4 : 1;
    g->users = ddp__ints(&g->room, edges);
    g->from = ddp__ints(&g->room, (size_t)n + 2);
    g->gradient = (unsigned char *)ddp__scratch_take(&g->room, (size_t)n, 1);
    g->seen = ddp__ints(&g->room, (size_t)(n > net->devices ? n : net->devices));
    DDP__TRY(ddp__scratch_check(&g->room, n, "operators", err));
    ddp__workload_users(g);
    for (i = 0; i < n; i++)
        g->gradient[i] =
            (unsigned char)(g->backward && (list->op[i].arg_count > 0 || list->op[i].param_bytes > 0));
    return DDP_OK;
}

double ddp__workload_transfer(const ddp_network *net, int from, int to, double bytes)
{
    size_t at = (size_t)from * (size_t)net->devices + (size_t)to;
    return net->delay_s[at] + bytes / net->rate[at];
}

/* Counts a message of operator op that device `to` receives, and records it if there is room. */
static void ddp__workload_receive(const ddp__workload_graph *g, ddp_workload *w, int op, int user, int from,
                                  int to, int gradient)
{
    double bytes = g->list->op[op].output_bytes, seconds = ddp__workload_transfer(g->net, from, to, bytes);
    const ddp_workload_message m = {op, user, from, to, gradient, bytes, seconds};
    w->receive_s[to] += seconds;
    if (w->message) w->message[w->messages] = m;
    w->messages++;
}

/* Computes T_lat and T_pipe from the compute and receive times of the devices. */
static void ddp__workload_total(ddp_workload *w, double turns)
{
    double worst = 0;
    w->latency_s = 0;
    for (int d = 0; d < w->devices; d++) {
        w->latency_s += w->compute_s[d] + w->receive_s[d];
        worst = fmax(worst, fmax(w->compute_s[d], w->receive_s[d]));
    }
    w->pipeline_s = w->latency_s + turns * worst;
}

void ddp__workload_sum(ddp__workload_graph *g, const int *device_of, ddp_workload *w)
{
    int d, there;
    w->devices = g->net->devices;
    w->messages = 0;
    for (d = 0; d < w->devices; d++) {
        w->compute_s[d] = w->receive_s[d] = w->memory_bytes[d] = 0;
        g->seen[d] = -1;
    }
    for (int i = 0; i < g->list->count; i++) {
        const ddp_oplist_entry *e = &g->list->op[i];
        d = device_of[i];
        w->compute_s[d] += e->flops;
        w->memory_bytes[d] += g->state_factor * e->param_bytes + g->kept * e->output_bytes;
        for (int k = g->from[i]; k < g->from[i + 1]; k++) {
            there = device_of[g->users[k]];
            if (there == d || g->seen[there] == i) continue;
            g->seen[there] = i;
            w->memory_bytes[there] += g->kept * e->output_bytes;
            ddp__workload_receive(g, w, i, g->users[k], d, there, 0);
            if (g->gradient[i]) ddp__workload_receive(g, w, i, g->users[k], there, d, 1);
        }
    }
    for (d = 0; d < w->devices; d++) w->compute_s[d] *= g->compute / g->net->speed[d];
    ddp__workload_total(w, g->turns);
}

void ddp_workload_free(ddp_workload *w)
{
    if (!w) return;
    DDP_FREE(w->compute_s);
    DDP_FREE(w->receive_s);
    DDP_FREE(w->memory_bytes);
    DDP_FREE(w->message);
    memset(w, 0, sizeof *w);
}

static ddp_status ddp__workload_fill(ddp__workload_graph *g, const int *device_of, ddp_workload *w,
                                     ddp_error *err)
{
    size_t N = (size_t)g->net->devices;
    for (int i = 0; i < g->list->count; i++)
        if (device_of[i] < 0 || device_of[i] >= g->net->devices)
            return ddp__fail(err, DDP_ARG, "operator %d is assigned to device %d; devices run from 0 to %d",
                             i, device_of[i], g->net->devices - 1);
    w->devices = g->net->devices;
    w->compute_s = (double *)ddp__calloc(N, sizeof(double));
    w->receive_s = (double *)ddp__calloc(N, sizeof(double));
    w->memory_bytes = (double *)ddp__calloc(N, sizeof(double));
    if (!w->compute_s || !w->receive_s || !w->memory_bytes)
        return ddp__fail(err, DDP_MEMORY, "no memory to estimate %d devices", w->devices);
    ddp__workload_sum(g, device_of, w);
    w->message = (ddp_workload_message *)ddp__calloc((size_t)w->messages, sizeof *w->message);
    if (!w->message) return ddp__fail(err, DDP_MEMORY, "no memory for a list of %d messages", w->messages);
    ddp__workload_sum(g, device_of, w);
    if (!(w->pipeline_s > 0 && ddp__finite(w->pipeline_s)))
        return ddp__fail(err, DDP_NUMERIC,
                         "an iteration takes %g s; the operators need FLOPs or bytes, and sums that "
                         "a double holds",
                         w->pipeline_s);
    w->throughput = g->samples / w->pipeline_s;
    return DDP_OK;
}

ddp_status ddp_workload_estimate(const ddp_oplist *list, const ddp_network *net, const int *device_of,
                                 const ddp_workload_options *o, ddp_workload *out, ddp_error *err)
{
    ddp__workload_graph g;
    ddp_workload w = DDP__ZEROS;
    ddp_status status;
    if (!device_of || !o || !out)
        return ddp__fail(err, DDP_ARG, "ddp_workload_estimate: device_of, options and out must not be NULL");
    status = ddp__workload_graph_open(list, net, o, &g, err);
    if (status == DDP_OK) status = ddp__workload_fill(&g, device_of, &w, err);
    ddp__scratch_free(&g.room);
    if (status == DDP_OK)
        *out = w;
    else
        ddp_workload_free(&w);
    return status;
}

ddp_status ddp_speed_fit(const double *flops, const double *seconds, int n, double peak, double *lambda,
                         ddp_error *err)
{
    double xx = 0, xy = 0, x, value;
    if (n < 1 || !flops || !seconds || !lambda)
        return ddp__fail(err, DDP_ARG, "%d measured operators are too few to fit a speed; 1 or more", n);
    if (!(peak > 0 && peak <= 1e100))
        return ddp__fail(err, DDP_ARG, "the peak is %g FLOP/s; it must be positive", peak);
    for (int i = 0; i < n; i++) {
        if (!ddp__within(flops[i], 0, 1e100) || !ddp__within(seconds[i], 0, 1e100))
            return ddp__fail(err, DDP_ARG, "sample %d (%g FLOPs in %g s) must be finite and at least 0", i,
                             flops[i], seconds[i]);
        x = flops[i] / peak;
        xx += x * x;
        xy += x * seconds[i];
    }
    value = xx / xy;
    if (!(value > 0 && ddp__finite(value)))
        return ddp__fail(err, DDP_ARG, "%d samples without FLOPs or without time fit no speed", n);
    *lambda = value;
    return DDP_OK;
}

/* Seconds for which a message occupies the link, without its delay. */
static double ddp__estimate_busy(const ddp_network *net, const ddp_workload_message *m)
{
    return fmax(0, m->seconds - ddp__workload_transfer(net, m->from, m->to, 0));
}

/* Sets link_s to R_p of each message's receiver, without delays. */
static void ddp__estimate_links(const ddp_workload *w, const ddp_network *net, double *link_s, size_t *count)
{
    double *received = w->receive_s;
    for (int d = 0; d < w->devices; d++) received[d] = 0;
    for (int i = 0; i < w->messages; i++)
        received[w->message[i].to] += ddp__estimate_busy(net, &w->message[i]);
    for (int i = 0; i < w->messages; i++) {
        link_s[i] = received[w->message[i].to];
        count[i] = (size_t)ceil(w->message[i].bytes / 4);
        if (count[i] < 1) count[i] = 1;
    }
}

static void ddp__estimate_shorten(ddp_workload *w, const ddp_network *net, const ddp_link_compression *sent,
                                  const double *link_s)
{
    for (int d = 0; d < w->devices; d++) w->receive_s[d] = 0;
    for (int i = 0; i < w->messages; i++) {
        ddp_workload_message *m = &w->message[i];
        if (!sent[i].dense && link_s[i] > 0) {
            m->seconds = ddp__workload_transfer(net, m->from, m->to, 0) +
                         ddp__estimate_busy(net, m) * (sent[i].link_s / link_s[i]);
            m->bytes = (double)sent[i].bytes;
        }
        w->receive_s[m->to] += m->seconds;
    }
}

ddp_status ddp_workload_compress(const ddp_workload *w, const ddp_network *net,
                                 const ddp_workload_options *work, const ddp_adatopk_options *o,
                                 ddp_workload *out, ddp_error *err)
{
    const int turns = work->microbatches > 1 ? work->microbatches - 1 : 0;
    size_t messages = (size_t)w->messages, devices = (size_t)w->devices;
    ddp_link_compression *sent;
    double *link_s;
    size_t *count;
    ddp__scratch room = {NULL, 0};
    ddp_workload v = *w;
    ddp_status status;

    if (net->devices != w->devices)
        return ddp__fail(err, DDP_ARG, "the estimate is of %d devices, the network has %d", w->devices,
                         net->devices);
    v.compute_s = (double *)ddp__copy(w->compute_s, devices, sizeof(double));
    v.receive_s = (double *)ddp__copy(w->receive_s, devices, sizeof(double));
    v.memory_bytes = (double *)ddp__copy(w->memory_bytes, devices, sizeof(double));
    v.message = (ddp_workload_message *)ddp__copy(w->message, messages, sizeof *v.message);
    sent = (ddp_link_compression *)ddp__scratch_take(&room, messages, sizeof *sent);
    link_s = ddp__doubles(&room, messages);
    count = (size_t *)ddp__scratch_take(&room, messages, sizeof *count);
    if (!v.compute_s || !v.receive_s || !v.memory_bytes || !v.message || ddp__scratch_failed(&room)) {
        status = ddp__fail(err, DDP_MEMORY, "no memory for %d messages", w->messages);
    } else {
        ddp__estimate_links(&v, net, link_s, count);
        status = messages ? ddp_adatopk(link_s, count, w->messages, o, sent, err) : DDP_OK;
    }
    if (status == DDP_OK) {
        ddp__estimate_shorten(&v, net, sent, link_s);
        ddp__workload_total(&v, turns);
        v.throughput = (work->samples > 0 ? work->samples : turns + 1) / v.pipeline_s;
        *out = v;
    } else {
        ddp_workload_free(&v);
    }
    ddp__scratch_free(&room);
    return status;
}
