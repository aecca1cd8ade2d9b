#include "base/core.h"
#include "plan/estimate.h"

static void *ddp__estimate_copy(const void *from, size_t n)
{
    void *to = ddp__calloc(n, 1);

    return to && n ? memcpy(to, from, n) : to;
}

static double ddp__estimate_delay(const ddp_network *net, const ddp_workload_message *m)
{
    return net->delay_s[(size_t)m->from * (size_t)net->devices + (size_t)m->to];
}

/* link_s: R_p of each message's receiver. */
static void ddp__estimate_links(const ddp_workload *w, const ddp_network *net, double *link_s, size_t *count)
{
    double *received = w->receive_s;

    for (int d = 0; d < w->devices; d++) received[d] = 0;
    for (int i = 0; i < w->messages; i++)
        received[w->message[i].to] += fmax(0, w->message[i].seconds - ddp__estimate_delay(net, &w->message[i]));
    for (int i = 0; i < w->messages; i++) {
        link_s[i] = received[w->message[i].to];
        count[i] = (size_t)ceil(w->message[i].bytes / 4);
        if (count[i] < 1) count[i] = 1;
    }
}

static void ddp__estimate_shorten(ddp_workload *w, const ddp_network *net, const ddp_link_compression *sent,
                                  const double *link_s)
{
    double worst = 0, delay;

    for (int d = 0; d < w->devices; d++) w->receive_s[d] = 0;
    for (int i = 0; i < w->messages; i++) {
        ddp_workload_message *m = &w->message[i];
        if (!sent[i].dense && link_s[i] > 0) {
            delay = ddp__estimate_delay(net, m);
            m->seconds = delay + fmax(0, m->seconds - delay) * (sent[i].link_s / link_s[i]);
            m->bytes = (double)sent[i].bytes;
        }
        w->receive_s[m->to] += m->seconds;
    }
    w->latency_s = 0;
    for (int d = 0; d < w->devices; d++) {
        w->latency_s += w->compute_s[d] + w->receive_s[d];
        worst = fmax(worst, fmax(w->compute_s[d], w->receive_s[d]));
    }
    w->pipeline_s = worst; /* of one more micro-batch */
}

ddp_status ddp_workload_compress(const ddp_workload *w, const ddp_network *net, const ddp_workload_options *work,
                                 const ddp_adatopk_options *o, ddp_workload *out, ddp_error *err)
{
    const int turns = work->microbatches > 1 ? work->microbatches - 1 : 0;
    size_t messages = (size_t)w->messages, bytes = (size_t)w->devices * sizeof(double);
    ddp_link_compression *sent;
    double *link_s;
    size_t *count;
    ddp_workload v = *w;
    ddp_status status;

    if (net->devices != w->devices)
        return ddp__fail(err, DDP_ARG, "the estimate is of %d devices, the network has %d", w->devices, net->devices);
    v.compute_s = (double *)ddp__estimate_copy(w->compute_s, bytes);
    v.receive_s = (double *)ddp__estimate_copy(w->receive_s, bytes);
    v.memory_bytes = (double *)ddp__estimate_copy(w->memory_bytes, bytes);
    v.message = (ddp_workload_message *)ddp__estimate_copy(w->message, messages * sizeof *v.message);
    sent = (ddp_link_compression *)ddp__calloc(messages, sizeof *sent);
    link_s = (double *)ddp__calloc(messages, sizeof *link_s);
    count = (size_t *)ddp__calloc(messages, sizeof *count);
    if (!v.compute_s || !v.receive_s || !v.memory_bytes || !v.message || !sent || !link_s || !count) {
        status = ddp__fail(err, DDP_MEMORY, "no memory for %d messages", w->messages);
    } else {
        ddp__estimate_links(&v, net, link_s, count);
        status = messages ? ddp_adatopk(link_s, count, w->messages, o, sent, err) : DDP_OK;
    }
    if (status == DDP_OK) {
        ddp__estimate_shorten(&v, net, sent, link_s);
        v.pipeline_s = v.latency_s + turns * v.pipeline_s;
        v.throughput = (work->samples > 0 ? work->samples : turns + 1) / v.pipeline_s;
        *out = v;
    } else {
        ddp_workload_free(&v);
    }
    DDP_FREE(sent);
    DDP_FREE(link_s);
    DDP_FREE(count);
    return status;
}
