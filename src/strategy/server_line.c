/* The worker side of parameter servers: assignment of layers, pushes, pulls, control messages. */
#include "context/stats.h"
#include "exchange/collective.h"
#include "session/session.h"
#include "strategy/server.h"

/* ---- assignment of layers to servers ---- */

/* Assigns the largest layer first, each to the server with the fewest floats so far. */
static void ddp__layers_spread(ddp_ctx *d, ddp__servers *s)
{
    const int layers = ddp_layers(d);

    for (int l = 0; l < layers; l++) s->line_of[l] = -1;
    for (int n = 0; n < layers; n++) {
        int large = -1, light = 0;
        for (int l = 0; l < layers; l++)
            if (s->line_of[l] < 0 && (large < 0 || s->floats[l] > s->floats[large])) large = l;
        for (int k = 1; k < s->lines; k++)
            if (s->line[k].count < s->line[light].count) light = k;
        s->line_of[large] = light;
        s->line[light].count += s->floats[large];
        s->line[light].layers++;
    }
}

static int ddp__line_open(ddp_ctx *d, ddp__servers *s, int index)
{
    ddp__line *k = &s->line[index];
    const size_t out = DDP__HEAD_WORDS + (size_t)s->set_words, in = DDP__HEAD_WORDS + 2 * (size_t)k->layers;
    int n, pieces = 1, at = 0;

    k->push_ticket = k->pull_ticket = -1;
    k->layer = (int *)ddp__lists(d, (size_t)k->layers, sizeof *k->layer);
    if (!k->layer) return DDP_MEMORY;
    for (int l = 0; l < ddp_layers(d); l++) {
        if (s->line_of[l] != index) continue;
        k->layer[at++] = l;
        (void)ddp_gradients_of(d, l, &n);
        pieces += n;
    }
    k->out = (float *)ddp__lists(d, out + in, sizeof *k->out);
    k->push = (ddp_piece *)ddp__lists(d, (size_t)pieces, 2 * sizeof *k->push);
    if (!k->out || !k->push) return DDP_MEMORY;
    k->in = k->out + out;
    k->pull = k->push + pieces;
    k->push[0].data = k->out;
    k->push[0].count = out;
    k->pull[0].data = k->in;
    k->pull[0].count = s->returns_mean ? in : (size_t)DDP__HEAD_WORDS;
    return 0;
}

/* Lists the arrays that are averaged but have no gradients. */
static int ddp__buffers_list(ddp_ctx *d, ddp__servers *s)
{
    int all = 0, n, trained;
    size_t size;

    for (int l = 0; l < ddp_layers(d); l++) {
        (void)ddp_parameters_of(d, l, &n);
        all += n;
    }
    s->buffer = (ddp_piece *)ddp__lists(d, (size_t)all, sizeof *s->buffer);
    if (!s->buffer) return DDP_MEMORY;
    for (int l = 0; l < ddp_layers(d); l++) {
        const ddp_piece *p = ddp_parameters_of(d, l, &n), *t = ddp_trained_of(d, l, &trained);
        for (int i = 0; i < n; i++) {
            int k = 0;
            while (k < trained && t[k].data != p[i].data) k++;
            if (k == trained && p[i].data != ddp_state_of(d, l, &size)) s->buffer[s->buffers++] = p[i];
        }
    }
    return 0;
}

/* Allocates memory for predictions, if the link is described. */
static int ddp__forecast_open(ddp_ctx *d, ddp__servers *s)
{
    double delay;

    if (ddp_rank(d) >= s->workers || !(ddp_described_rate(d, &delay) > 0)) return 0;
    s->forecast =
        ddp__lists(d, 1, ddp_served_room(s->workers, s->lines) + 2 * (size_t)s->lines * sizeof(double));
    return s->forecast ? 0 : DDP_MEMORY;
}

int ddp__servers_start(ddp_ctx *d, ddp__servers *s)
{
    const int apart = ddp_servers(d), layers = ddp_layers(d), rank = ddp_rank(d);

    s->workers = ddp_world(d) - apart;
    s->lines = apart ? apart : s->workers;
    s->set_words = (layers + 31) / 32;
    s->own = apart ? -1 : rank;
    s->floats = (size_t *)ddp__lists(d, (size_t)layers, sizeof *s->floats);
    s->line_of = (int *)ddp__lists(d, (size_t)layers, sizeof *s->line_of);
    s->line = (ddp__line *)ddp__lists(d, (size_t)s->lines, sizeof *s->line);
    if (!s->floats || !s->line_of || !s->line) return DDP_MEMORY;
    for (int l = 0; l < layers; l++) {
        s->floats[l] = ddp__gradient_count(d, l);
        s->model += s->floats[l];
    }
    ddp__layers_spread(d, s);
    for (int k = 0; k < s->lines; k++) {
        s->line[k].rank = apart ? s->workers + k : k;
        DDP__DO(ddp__line_open(d, s, k));
    }
    DDP__DO(ddp__buffers_list(d, s));
    DDP__DO(ddp__forecast_open(d, s));
    if (!apart) return ddp__store_open(d, s, &s->line[rank]);
    return rank < s->workers ? 0 : ddp__store_open(d, s, &s->line[rank - s->workers]);
}

/* ---- one server ---- */

/* Lists the head, then the line's layers in `set`: from `memory`, or the pieces that `of` returns. */
static int ddp__line_list(ddp_ctx *d, ddp__servers *s, const ddp__line *k, const unsigned char *set,
                          float *memory, const ddp_piece *(*of)(const ddp_ctx *, int, int *), ddp_piece *list)
{
    int count = 1, n;

    for (int i = 0; i < k->layers; i++) {
        const int l = k->layer[i];
        const ddp_piece *p = of(d, l, &n);
        if (!ddp__in_set(set, l) || s->floats[l] == 0) continue;
        if (memory) {
            list[count].data = memory + s->late_at[l];
            list[count++].count = s->floats[l];
        }
        for (int j = 0; j < n && !memory; j++) list[count++] = p[j];
    }
    return count;
}

/* Copies a push of the own share into the server's buffer in this process. */
static int ddp__own_push(ddp_ctx *d, ddp__servers *s, ddp__line *k)
{
    float *to = s->store->client[s->own].in;

    memcpy(to, k->out, k->push[0].count * sizeof *to);
    to += k->push[0].count;
    for (int i = 1; i < k->pushes; to += k->push[i++].count)
        DDP__DO(ddp_download(d, to, k->push[i].data, k->push[i].count));
    ddp_server_set(d, &k->pushed, 1);
    ddp_server_wake(d);
    return 0;
}

/* Waits for the answer of the own share and copies it. With one worker there is no server thread, so this
 * thread does its work. */
static int ddp__own_pulled(ddp_ctx *d, ddp__servers *s, ddp__line *k)
{
    const float *from;

    while (s->workers == 1 && !ddp__atomic_load(&k->answered))
        if (ddp__store_turn(d, s) <= 0)
            return ddp_complain(d, DDP_FAILED, "the server in this process makes no progress; this is a bug");
    DDP__DO(ddp_server_await(d, &k->answered));
    memcpy(k->in, s->store->client[s->own].head, k->pull[0].count * sizeof *k->in);
    from = k->answer;
    for (int i = 1; i < k->pulls; from += k->pull[i++].count)
        DDP__DO(ddp_upload(d, k->pull[i].data, from, k->pull[i].count));
    return 0;
}

/* If the lost rank was a server, adds its layers to the error. */
void ddp__servers_failed(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;
    const int lost = ddp_servers(d) ? ddp_lost_rank(d) : -1;

    if (lost < 0 || s->explained) return;
    for (int k = 0; s->line && k < s->lines; k++) {
        const ddp__line *line = &s->line[k];
        char text[160];
        int n;
        if (line->rank != lost) continue;
        n = snprintf(text, sizeof text, "; it served %d layer%s: ", line->layers,
                     line->layers == 1 ? "" : "s");
        for (int i = 0; i < line->layers && n < (int)sizeof text; i++)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", i ? ", " : "",
                          ddp_name_of(d, line->layer[i]));
        if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
        ddp_explain(d, text);
        s->explained = 1;
        return;
    }
}

static int ddp__line_post(ddp_ctx *d, ddp__line *k, ddp_verb verb, ddp_piece *list, int n, long *ticket)
{
    ddp_message m;

    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.from = list;
    m.from_count = n;
    m.here = 1;
    m.peer = k->rank;
    m.step = ddp_step(d);
    m.layer = DDP_ALL_LAYERS;
    return ddp_post(d, &m, ticket);
}

int ddp__line_push(ddp_ctx *d, ddp__servers *s, ddp__line *k, const unsigned char *set, float *memory)
{
    const ddp_step_info *info = ddp_reported(d);
    ddp__push_head head;

    memset(&head, 0, sizeof head);
    head.kind = DDP__PUSHES;
    head.samples = info->samples;
    head.rate = ddp_rate(d);
    head.loss = (float)info->loss;
    head.epoch = (float)info->epoch;
    head.compute_s = s->compute_s;
    head.bytes_per_s = s->bytes_per_s;
    memcpy(k->out, &head, sizeof head);
    if (set)
        memcpy(k->out + DDP__HEAD_WORDS, set, 4 * (size_t)s->set_words);
    else
        memset(k->out + DDP__HEAD_WORDS, 0xff, 4 * (size_t)s->set_words);
    k->pushes =
        ddp__line_list(d, s, k, set, memory, s->pushes_params ? ddp_trained_of : ddp_gradients_of, k->push);
    if (s->own >= 0 && k == s->line + s->own) return ddp__own_push(d, s, k);
    return ddp__line_post(d, k, DDP_PUSH, k->push, k->pushes, &k->push_ticket);
}

int ddp__line_pull(ddp_ctx *d, ddp__servers *s, ddp__line *k, const unsigned char *set, float *memory)
{
    k->pulls =
        ddp__line_list(d, s, k, set, memory, s->returns_mean ? ddp_gradients_of : ddp_trained_of, k->pull);
    if (s->own < 0 || k != s->line + s->own)
        return ddp__line_post(d, k, DDP_PULL, k->pull, k->pulls, &k->pull_ticket);
    ddp_server_set(d, &k->answered, 0);
    ddp_server_set(d, &k->asked, 1);
    ddp_server_wake(d);
    k->pull_ticket = 0;
    return 0;
}

int ddp__line_pulled(ddp_ctx *d, ddp__servers *s, ddp__line *k)
{
    if (s->own < 0 || k != s->line + s->own) return ddp__hold_once(d, &k->pull_ticket, DDP_NO_LAYER);
    if (k->pull_ticket < 0) return 0;
    k->pull_ticket = -1;
    return ddp__own_pulled(d, s, k);
}

int ddp__line_is_here(ddp_ctx *d, ddp__servers *s, const ddp__line *k)
{
    if (k->pull_ticket < 0) return 1;
    return s->own >= 0 && k == s->line + s->own ? ddp__atomic_load(&k->answered)
                                                : ddp_is_done(d, k->pull_ticket);
}

/* ---- all servers ---- */

/* Pulls from each server directly after the push, so that it can answer while this worker pushes to the
 * others. */
int ddp__servers_exchange(ddp_ctx *d, ddp__servers *s, const unsigned char *set, int pushes)
{
    for (int k = 0; k < s->lines; k++) {
        if (pushes) DDP__DO(ddp__line_push(d, s, &s->line[k], set, NULL));
        DDP__DO(ddp__line_pull(d, s, &s->line[k], set, NULL));
    }
    for (int k = 0; k < s->lines; k++) DDP__DO(ddp__hold_once(d, &s->line[k].push_ticket, DDP_NO_LAYER));
    for (int k = 0; k < s->lines; k++) DDP__DO(ddp__line_pulled(d, s, &s->line[k]));
    return 0;
}

static int ddp__servers_mean(ddp_ctx *d, const ddp_piece *list, int n, int here)
{
    ddp_message m = ddp__mean_message(d, DDP_NO_LAYER, list, n);
    long ticket;

    m.here = (char)here;
    DDP__DO(ddp_post(d, &m, &ticket));
    return ddp_hold(d, ticket, DDP_NO_LAYER);
}

int ddp__servers_meet(ddp_ctx *d, ddp__servers *s)
{
    const ddp_piece word = {{&s->word}, 1};

    return ddp__servers_mean(d, &word, 1, 1);
}

int ddp__servers_average_buffers(ddp_ctx *d, ddp__servers *s)
{
    return s->buffers ? ddp__servers_mean(d, s->buffer, s->buffers, 0) : ddp__servers_meet(d, s);
}

int ddp__servers_wait(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;

    for (int k = 0; k < s->lines; k++) {
        DDP__DO(ddp__hold_once(d, &s->line[k].push_ticket, DDP_NO_LAYER));
        DDP__DO(ddp__line_pulled(d, s, &s->line[k]));
    }
    return 0;
}

int ddp__servers_tell(ddp_ctx *d, void *self, int leaves)
{
    ddp__servers *s = (ddp__servers *)self;

    DDP__DO(ddp__servers_wait(d, self));
    for (int k = 0; k < s->lines; k++) {
        ddp__line *line = &s->line[k];
        ddp__push_head head;
        if (k == s->own) {
            ddp__atomic_store(&line->leaves, 1);
            ddp_server_wake(d);
            continue;
        }
        memset(&head, 0, sizeof head);
        head.kind = leaves ? DDP__LEAVES : DDP__SAVES;
        memcpy(line->out, &head, sizeof head);
        DDP__DO(ddp__line_post(d, line, DDP_PUSH, line->push, 1, &line->push_ticket));
        DDP__DO(ddp__hold_once(d, &line->push_ticket, DDP_NO_LAYER));
    }
    return 0;
}

/* ---- prediction of the step time, from the link described in ddp_config.net and the measured computing time
 * ---- */

/* Predicts in steps 4, 8, 16 and so on, when the computing time is a mean. With more than 64 workers only
 * rank 0 predicts. */
int ddp__served_predict(ddp_ctx *d, ddp__servers *s, double computed_s, const unsigned char *late)
{
    ddp_stats *stats = ddp_stats_of(d);
    double *bytes = (double *)s->forecast, comm;
    ddp_served x;
    ddp_error err;

    s->computed_s += s->steps++ ? computed_s : 0; /* the first step warms up */
    if (!s->forecast || s->steps < 4 || (s->steps & (s->steps - 1))) return 0;
    if (s->workers > 64 && ddp_rank(d) > 0) return 0;
    memset(&x, 0, sizeof x);
    x.rule = s->rule;
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
        return ddp__plan_failed(d, &err);
    comm = 2 * ((double)(s->model * sizeof(float)) / x.bytes_per_s + x.delay_s);
    stats->predicted_hidden_pct = 100 * (1 - (stats->predicted_step_s - x.compute_s) / comm);
    if (stats->predicted_hidden_pct < 0) stats->predicted_hidden_pct = 0;
    return 0;
}
