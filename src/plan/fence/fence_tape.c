/* OP-Fence: the operator list as a tape, the live results of each cut, and a lower bound on the rest of a
 * cut. */
#include "plan/arrays.h"
#include "plan/fence/fence_tape.h"

/* The last user of result i, or -1 without users. */
static int ddp__fence_last_user(const ddp__workload_graph *g, int i)
{
    return g->from[i + 1] > g->from[i] ? g->users[g->from[i + 1] - 1] : -1;
}

/* Lists the live results of each cut: result i is live from after its home to its last user. t->from holds
 * where the list of each cut begins. */
static void ddp__fence_tape_live(ddp__fence_tape *t)
{
    const ddp__workload_graph *g = &t->graph;
    int *count = t->oldest; /* [n + 1] scratch, until oldest is computed */

    for (int i = 0; i < t->n; i++) {
        int last = ddp__fence_last_user(g, i);
        for (int a = t->home[i] + 1, user = g->from[i]; a <= last; a++) {
            ddp__fence_live *live = t->live + t->from[a];
            int at = count[a]++;
            while (g->users[user] < a) user++;
            for (; at > 0 && live[at - 1].next > g->users[user]; at--) live[at] = live[at - 1];
            live[at].op = i;
            live[at].next = g->users[user];
        }
    }
    for (int a = 0; a <= t->n; a++) {
        t->oldest[a] = t->n;
        for (int i = t->from[a]; i < t->from[a + 1]; i++)
            if (t->home[t->live[i].op] < t->oldest[a]) t->oldest[a] = t->home[t->live[i].op];
    }
}

ddp_status ddp__fence_tape_open(const ddp_oplist *list, const ddp_network *net, const ddp_workload_options *o,
                                ddp__fence_tape *t, ddp_error *err)
{
    const ddp__workload_graph *g = &t->graph;
    ddp__scratch *room = &t->graph.room;
    double total = 0;
    size_t n;

    memset(t, 0, sizeof *t);
    DDP__TRY(ddp__workload_graph_open(list, net, o, &t->graph, err));
    t->n = list->count;
    t->width = 1;
    n = (size_t)t->n;
    t->home = ddp__ints(room, n);
    t->flops = ddp__doubles(room, n + 1);
    t->memory = ddp__doubles(room, n + 1);
    t->from = ddp__ints(room, n + 2);
    t->oldest = ddp__ints(room, n + 1);
    DDP__TRY(ddp__scratch_check(room, t->n, "operators", err));
    for (int i = 0; i < t->n; i++) {
        const ddp_oplist_entry *e = &g->list->op[i];
        int data = e->arg_count == 0 && !(e->param_bytes > 0) && !(e->flops > 0),
            last = ddp__fence_last_user(g, i);
        t->home[i] = data && last >= 0 ? g->users[g->from[i]] : i;
        t->flops[i + 1] += g->compute * e->flops;
        t->memory[t->home[i] + 1] += g->state_factor * e->param_bytes + g->kept * e->output_bytes;
        if (last <= t->home[i]) continue;
        t->from[t->home[i] + 2]++; /* difference array of the live count, summed later */
        t->from[last + 2]--;
        total += last - t->home[i];
    }
    if (total > INT_MAX / 2)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "too many results live across the cuts of %d operators; merge operators", t->n);
    for (int i = 0, live = 0; i < t->n; i++) {
        t->flops[i + 1] += t->flops[i];
        t->memory[i + 1] += t->memory[i];
        live += t->from[i + 2];
        t->from[i + 2] = t->from[i + 1] + live;
        if (live > t->width) t->width = live;
    }
    t->live = (ddp__fence_live *)ddp__scratch_take(room, (size_t)total, sizeof *t->live);
    DDP__TRY(ddp__scratch_check(room, t->n, "operators", err));
    ddp__fence_tape_live(t);
    return DDP_OK;
}

ddp_status ddp__fence_typical_bytes(const ddp__fence_tape *t, double *out, ddp_error *err)
{
    double *bytes = (double *)ddp__calloc((size_t)t->n, sizeof *bytes);
    if (!bytes) return ddp__fail(err, DDP_MEMORY, "no memory to cut %d operators", t->n);
    for (int a = 1; a < t->n; a++)
        for (int i = t->from[a]; i < t->from[a + 1]; i++)
            bytes[a - 1] += t->graph.list->op[t->live[i].op].output_bytes;
    qsort(bytes, (size_t)(t->n - 1), sizeof *bytes, ddp__rising);
    *out = t->n > 1 ? bytes[(t->n - 1) / 2] : 0;
    DDP_FREE(bytes);
    return DDP_OK;
}

/* A lower bound on the cost of the rest of a cut. If every result is used no later than at the next
 * position, the bound is the exact least latency. (Under the cap, this ignores the sum that one device
 * receives from several.) It is also exact if only one result at a time is used further on, because its
 * age is known. For other results, the bound assumes the cheapest position. */

double ddp__fence_takes(const ddp__fence_hop *hop, int from, int to, int positions, double bytes)
{
    hop += (size_t)from * (size_t)positions + (size_t)to;
    return hop->delay + hop->slope * bytes;
}

/* A lower bound on the receive time of each position. If no position may be empty, every segment but the
 * first begins at some cut and receives the inputs of its first operator. */
static void ddp__fence_line_least(ddp__fence_line *line)
{
    const ddp__fence_tape *t = line->tape;
    double bytes = DBL_MAX, own;
    int a, i, k;

    for (a = 1; a < t->n; a++) {
        for (own = -1, i = t->from[a]; i < t->from[a + 1] && t->live[i].next == a; i++)
            own = fmax(own, 0) + t->graph.list->op[t->live[i].op].output_bytes;
        bytes = fmin(bytes, own);
    }
    for (k = 1; k < line->positions && !line->idle && bytes >= 0; k++)
        line->least[k] = ddp__fence_takes(line->to, k - 1, k, line->positions, bytes);
}

static void ddp__fence_least(ddp__fence_hop *to, ddp__fence_hop x, const ddp__fence_hop *before)
{
    to->delay = before ? fmin(before->delay, x.delay) : x.delay;
    to->slope = before ? fmin(before->slope, x.slope) : x.slope;
}

ddp_status ddp__fence_line_open(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                ddp__fence_line *line, ddp_error *err)
{
    const ddp_network *net = t->graph.net;
    size_t P = (size_t)net->devices, n = (size_t)t->n, i, j, at, link;

    memset(line, 0, sizeof *line);
    line->tape = t;
    line->positions = net->devices;
    line->idle = idle;
    line->ages = idle ? 2 : DDP__FENCE_AGES;
    line->pace = ddp__doubles(&line->room, P);
    line->limit = ddp__doubles(&line->room, P);
    line->least = ddp__doubles(&line->room, P);
    line->hop = (ddp__fence_hop *)ddp__scratch_take(&line->room, 3 * P * P, sizeof *line->hop);
    line->to = line->hop + P * P;
    line->of = line->to + P * P;
    line->bound = ddp__doubles(&line->room, DDP__FENCE_AGES * (P + 1) * (n + 1));
    line->ahead = ddp__doubles(&line->room, 2 * DDP__FENCE_AGES * (n + 1));
    line->part = ddp__doubles(&line->room, (size_t)t->width + 1);
    DDP__TRY(ddp__scratch_check(&line->room, t->n, "operators", err));
    for (i = 0; i < P; i++) {
        line->pace[i] = 1 / net->speed[order[i]];
        line->limit[i] = net->memory_bytes && !no_memory ? net->memory_bytes[order[i]] : DBL_MAX;
        for (j = 0; j < P; j++) {
            if (i == j) continue;
            link = (size_t)order[i] * P + (size_t)order[j];
            line->hop[i * P + j].delay = net->delay_s[link];
            line->hop[i * P + j].slope = 1 / net->rate[link];
        }
    }
    for (i = 0; i < P; i++)
        for (j = i + 1; j < P; j++) {
            at = i * P + j;
            ddp__fence_least(&line->to[at], line->hop[at], i ? &line->to[at - P] : NULL);
            ddp__fence_least(&line->of[at], line->hop[j * P + i], i ? &line->of[at - P] : NULL);
        }
    ddp__fence_line_least(line);
    return DDP_OK;
}

/* Seconds to send result u from position j to q, plus its gradient back. */
static double ddp__fence_pair(const ddp__fence_line *line, int j, int q, int u)
{
    double bytes = line->tape->graph.list->op[u].output_bytes;
    double seconds = ddp__fence_takes(line->hop, j, q, line->positions, bytes);
    if (line->tape->graph.gradient[u]) seconds += ddp__fence_takes(line->hop, q, j, line->positions, bytes);
    return seconds;
}

/* The least such time for a result at position k or before, where k ends at a cut `back` operators after
 * the result. */
static double ddp__fence_pair_least(const ddp__fence_line *line, int k, int q, int u, int back)
{
    double bytes = line->tape->graph.list->op[u].output_bytes, seconds = DBL_MAX;
    if (line->idle) {
        seconds = ddp__fence_takes(line->to, k, q, line->positions, bytes);
        if (line->tape->graph.gradient[u])
            seconds += ddp__fence_takes(line->of, k, q, line->positions, bytes);
        return seconds;
    }
    /* no position is empty, so the result is at most `back` positions before k */
    for (int j = k > back ? k - back : 0; j <= k; j++)
        seconds = fmin(seconds, ddp__fence_pair(line, j, q, u));
    return seconds;
}

/* part[i] = least rest if a segment on q begins at cut a, where the oldest live result has that age, and
 * uses exactly the first i live results. It includes the compute of the segment. Returns the number of parts.
 * `last` is the furthest cut that the cap and the memory allow. */
static int ddp__fence_parts(ddp__fence_line *line, int q, int a, int age, int last, double *work)
{
    const ddp__fence_tape *t = line->tape;
    const ddp__fence_live *live = t->live + t->from[a];
    int older = age + 1 < line->ages ? age + 1 : age;
    const double *fresh = line->ahead, *same = fresh + (size_t)older * ((size_t)t->n + 1);
    const double *other = same + DDP__FENCE_AGES * ((size_t)t->n + 1);
    int count = t->from[a + 1] - t->from[a], i, b = a + 1, end;
    double least, rest;

    for (i = 0; i <= count && b <= last; i++) {
        end = i < count && live[i].next < last ? live[i].next : last;
        least = DBL_MAX;
        *work += end - b + 1;
        for (; b <= end; b++) {
            rest = a <= t->oldest[b] ? fresh[b] : t->oldest[b] == t->oldest[a] ? same[b] : other[b];
            least = rest < least ? rest : least;
        }
        line->part[i] = least - t->flops[a] * line->pace[q];
    }
    return i;
}

/* The least rest from (k, cut a) if the next segment is on q. */
static double ddp__fence_step(const ddp__fence_line *line, double cap, int k, int q, int a, int age,
                              int parts, double *work)
{
    const ddp__fence_tape *t = line->tape;
    const ddp__fence_live *live = t->live + t->from[a];
    double best = DBL_MAX, sum = 0, there = 0, back = line->least[k], bytes;
    int i, u, home;

    for (i = 0; i < parts; i++) {
        if (sum + line->part[i] < best) best = sum + line->part[i];
        if (i + 1 == parts) break;
        u = live[i].op;
        home = t->home[u];
        *work += 4 + (line->idle || age == 0 || home >= a - 1 ? 0 : 4 * (k < a ? k : a));
        if (age > 0 && home == t->oldest[a]) {
            sum += age > k                ? DBL_MAX
                   : age < line->ages - 1 ? ddp__fence_pair(line, k - age, q, u)
                                          : ddp__fence_pair_least(line, k - age, q, u, a - 1 - home - age);
        } else if (age > 0 && home < a - 1) {
            sum += ddp__fence_pair_least(line, k, q, u, a - 1 - home);
        } else {
            bytes = t->graph.list->op[u].output_bytes;
            there += ddp__fence_takes(line->hop, k, q, line->positions, bytes);
            if (t->graph.gradient[u]) back += ddp__fence_takes(line->hop, q, k, line->positions, bytes);
            if (!(there < cap) || !(back < cap)) break;
            sum += ddp__fence_pair(line, k, q, u);
        }
    }
    return best;
}

/* ahead[age, b] = the rest from (q, cut b) plus the compute up to b at q's pace. The second half holds its
 * minimum over the ages from 1 to that age. */
static void ddp__fence_look_ahead(ddp__fence_line *line, int q)
{
    const ddp__fence_tape *t = line->tape;
    size_t row = (size_t)t->n + 1, b;
    for (int age = 0; age < line->ages; age++) {
        const double *bound =
            line->bound + row * ((size_t)age * ((size_t)line->positions + 1) + (size_t)q + 1);
        double *ahead = line->ahead + row * (size_t)age, *least = ahead + row * DDP__FENCE_AGES;
        for (b = 0; b < row; b++) {
            ahead[b] = t->flops[b] * line->pace[q] + bound[b];
            least[b] = age > 1 && (least - row)[b] < ahead[b] ? (least - row)[b] : ahead[b];
        }
    }
}

void ddp__fence_bound(ddp__fence_line *line, double cap, double *work)
{
    const ddp__fence_tape *t = line->tape;
    int n = t->n, P = line->positions, q, k, a, age, last, parts;
    size_t row = (size_t)n + 1, whole = row * ((size_t)P + 1), at;
    double rest;

    for (at = 0; at < DDP__FENCE_AGES * whole; at++) line->bound[at] = DBL_MAX;
    for (q = line->idle ? 0 : P - 1; q < P; q++) line->bound[row * ((size_t)q + 1) + (size_t)n] = 0;
    for (q = P - 1; q >= 0; q--) {
        ddp__fence_look_ahead(line, q);
        for (a = last = 0; a < n; a++) {
            if (last < a) last = a;
            while (last < n && (t->flops[last + 1] - t->flops[a]) * line->pace[q] < cap &&
                   t->memory[last + 1] - t->memory[a] <= line->limit[q])
                last++;
            /* every segment has an operator. If no result is live, the oldest is n and only age 0 exists. */
            for (age = 0; age < line->ages && (age == 0 || age <= a - 1 - t->oldest[a]); age++) {
                parts = ddp__fence_parts(line, q, a, age, last, work);
                if (a == 0) {
                    if ((line->idle || q == 0) && parts && line->part[0] < line->bound[0])
                        line->bound[0] = line->part[0];
                    continue;
                }
                for (k = line->idle ? 0 : q > 0 ? q - 1 : 0; k < q; k++) {
                    at = whole * (size_t)age + row * (size_t)(k + 1) + (size_t)a;
                    rest = ddp__fence_step(line, cap, k, q, a, age, parts, work);
                    if (rest < line->bound[at]) line->bound[at] = rest;
                    *work += 4;
                }
            }
        }
    }
}
