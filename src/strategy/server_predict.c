/* What a step takes with servers, by the link that ddp_config.net describes and the computing so far. */
#include "plan/served.h"
#include "run/collective.h"
#include "run/stats.h"
#include "strategy/server.h"

/* In steps 4, 8, 16 and so on: computing is a mean then. */
int ddp__served_predict(ddp_ctx *d, ddp__servers *s, double computed_s, const uint32_t *late)
{
    static const ddp_serving rule[] = {DDP_SERVING_TOGETHER, DDP_SERVING_EACH, DDP_SERVING_IN_TURN};
    ddp_stats *stats = ddp_stats_of(d);
    double *bytes = (double *)s->forecast, comm;
    ddp_served x;
    ddp_error err;

    s->computed_s += s->steps++ ? computed_s : 0; /* the first one warms up */
    if (!s->forecast || s->steps < 4 || (s->steps & (s->steps - 1))) return 0;
    memset(&x, 0, sizeof x);
    x.rule = rule[s->rule];
    x.ahead = s->ahead;
    x.workers = s->own >= 0 ? s->workers : ddp_workers(d);
    x.servers = s->lines;
    x.colocated = s->own >= 0;
    x.bytes = bytes;
    x.compute_s = s->computed_s / (double)(s->steps - 1);
    x.bytes_per_s = ddp_described_rate(d, &x.delay_s);
    memset(bytes, 0, 2 * (size_t)s->lines * sizeof *bytes);
    for (int l = 0; l < ddp_layers(d); l++) {
        const double n = (double)(s->floats[l] * sizeof(float));
        bytes[s->line_of[l]] += n;
        if (!late || !ddp__in_set(late, l)) continue;
        bytes[s->lines + s->line_of[l]] += n;
        x.late = bytes + s->lines;
    }
    if (ddp_served_step(&x, bytes + 2 * s->lines, &stats->predicted_step_s, &err))
        return ddp_complain(d, err.code, "%s", err.msg);
    comm = 2 * ((double)(s->model * sizeof(float)) / x.bytes_per_s + x.delay_s);
    stats->predicted_hidden_pct = 100 * (1 - (stats->predicted_step_s - x.compute_s) / comm);
    if (stats->predicted_hidden_pct < 0) stats->predicted_hidden_pct = 0;
    return 0;
}
