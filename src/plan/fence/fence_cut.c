/* OP-Fence: finds the cut of the tape with the least pipeline time along one order of the devices. */
#include "plan/arrays.h"
#include "plan/fence/fence_cut.h"
#include "plan/queue.h"

/* Finds the cut of least T_pipe = latency + (n_b - 1) worst, with worst = max(C_p, R_p) (Eq. 3).
 *
 * For a given cap on worst, a best-first search finds the least latency below the cap. A label is the
 * beginning of a cut: the number of operators placed, the last position used, and the position of each live
 * result. It also has the receive time of each such position so far, because later segments add their
 * gradients to it. Of two labels with equal positions, a label is dropped unless its latency or any of these
 * times is smaller.
 *
 * The caps: after a solution with latency f and worst t, a better solution has a worst below t. No
 * solution with worst in [lo, t) has a latency below f, so f + (n_b - 1) lo is a lower bound for them.
 * Halving [lo, t) therefore soon leaves no candidates. */

enum { DDP__FENCE_LABELS = 200000 }; /* per cap */
#define DDP__FENCE_WORK  6e8         /* limit on the elementary steps of a plan, a few seconds */
#define DDP__FENCE_ROUND 1e-12

typedef struct ddp__fence_label {
    double latency, rest; /* latency so far, lower bound on the rest */
    double worst;         /* max of C and R so far */
    int at, position;     /* operators placed, position used last */
    int parent;
    int older; /* previous label with the same (at, position) */
} ddp__fence_label;

/* The position of a live result. */
typedef struct ddp__fence_at {
    int position;
    double load; /* receive time of that position so far */
} ddp__fence_at;

typedef struct ddp__fence_search {
    ddp__fence_line line;
    double turns, cap, limit; /* limit: latencies of at least this value are useless */
    ddp__fence_label *label;  /* a list, with room for one more: the slot of the successor on trial */
    ddp__fence_at *lies;      /* [labels, width] the live results at the label's cut */
    int most;
    ddp__due *heap; /* a list: least lower bound first, then most operators placed, then oldest */
    int *newest;    /* [positions, n+1] newest label of that (position, at), or -1 */
    double *trial;  /* [width] loads of the label being expanded */
    double work;
    int full;    /* 1 = the search for some cap ran out of labels and is incomplete */
    int gave_up; /* 1 = out of steps: some cap was not tried, or not completely */
    int goal;    /* label of the solution, or -1 */
} ddp__fence_search;

/* Makes room for one more label. */
static int ddp__fence_room(ddp__fence_search *s)
{
    const int count = ddp__count(s->label);
    const size_t wanted = (size_t)count + 1;

    s->full |= count >= s->most;
    if (count >= s->most) return 0;
    if (!ddp__reserve(s->label, wanted) || !ddp__reserve(s->lies, wanted * (size_t)s->line.tape->width) ||
        !ddp__reserve(s->heap, wanted))
        ddp__scratch_fail(&s->line.room);
    return !ddp__scratch_failed(&s->line.room);
}

static void ddp__fence_push(ddp__fence_search *s, int label)
{
    const ddp__fence_label *l = &s->label[label];
    ddp__due_add(s->heap, ddp__count(s->heap), l->latency + l->rest,
                 (int64_t)(s->line.tape->n - l->at) << 32 | label);
    stbds_arrsetlen(s->heap, stbds_arrlen(s->heap) + 1);
}

/* Returns 1 if an older label with the same cut and position makes label x useless. */
static int ddp__fence_dominated(ddp__fence_search *s, int x)
{
    const ddp__fence_tape *t = s->line.tape;
    const ddp__fence_label *l = &s->label[x];
    const ddp__fence_at *own = s->lies + (size_t)x * (size_t)t->width, *old;
    int count = t->from[l->at + 1] - t->from[l->at], y, i;

    for (y = l->older; y >= 0; y = s->label[y].older) {
        s->work += 4; /* counts as 4: a cache miss */
        if (s->label[y].latency > l->latency) continue;
        old = s->lies + (size_t)y * (size_t)t->width;
        for (i = 0; i < count; i++)
            if (old[i].position != own[i].position || (s->cap < DBL_MAX && old[i].load > own[i].load)) break;
        s->work += i;
        if (i == count) return 1;
    }
    return 0;
}

/* Writes the successor of `parent` that ends position q at cut b into the slot after the labels. */
static void ddp__fence_write(ddp__fence_search *s, int parent, int q, int b, double latency, double rest,
                             double worst, double received)
{
    const ddp__fence_tape *t = s->line.tape;
    size_t width = (size_t)t->width, x = stbds_arrlenu(s->label), p = (size_t)parent;
    const ddp__fence_live *now = t->live + t->from[b], *was = t->live + t->from[s->label[p].at];
    const ddp__fence_label l = {latency, rest, worst, b, q, parent, -1};
    int count = t->from[b + 1] - t->from[b], a = s->label[p].at, i, j;

    s->label[x] = l;
    s->lies[x * width].load = 0; /* at the end no result is live */
    for (i = 0; i < count; i++) {
        ddp__fence_at *at = &s->lies[x * width + (size_t)i];
        at->position = q;
        at->load = received;
        if (t->home[now[i].op] >= a) continue;
        for (j = 0; was[j].op != now[i].op; j++) {
        }
        s->work += j;
        at->position = s->lies[p * width + (size_t)j].position;
        at->load = s->trial[j];
    }
}

/* Turns the slot into a label, unless it is useless. */
static void ddp__fence_keep(ddp__fence_search *s)
{
    const int x = ddp__count(s->label);
    ddp__fence_label *l = &s->label[x];
    size_t cell = (size_t)l->position * (size_t)(s->line.tape->n + 1) + (size_t)l->at;
    l->older = s->newest[cell];
    if (ddp__fence_dominated(s, x)) return;
    s->newest[cell] = x;
    stbds_arrsetlen(s->label, x + 1);
    ddp__fence_push(s, x);
}

/* The age of operator `home`: how many segments before the segment that begins at the end of label p it
 * is. */
static int ddp__fence_age(const ddp__fence_search *s, int p, int home)
{
    int age = 0;
    for (; age + 1 < s->line.ages && home < s->label[p].at; age++) p = s->label[p].parent;
    return age;
}

/* Adds the successors of label p whose segment is at position q. greedy: leaves only the most promising of
 * all successors in the slot after the labels. *top is its bound. Returns 0 if there is no room. */
static int ddp__fence_segment_at(ddp__fence_search *s, int p, int q, int greedy, double *top)
{
    const ddp__fence_line *line = &s->line;
    const ddp__fence_tape *t = line->tape;
    size_t P = (size_t)line->positions, width = (size_t)t->width;
    const ddp__fence_label from = s->label[p];
    const ddp__fence_live *live = t->live + t->from[from.at];
    const double *bound = line->bound + (size_t)(q + 1) * (size_t)(t->n + 1);
    int count = t->from[from.at + 1] - t->from[from.at], a = from.at, b, i = 0, j, age = 0, home = -1;
    double received = 0, kept = 0, latency = from.latency, worst = from.worst, rest, bytes, c, back;

    for (j = 0; j < count; j++) s->trial[j] = s->lies[(size_t)p * width + (size_t)j].load;
    for (b = a + 1; b <= t->n; b++) {
        for (; i < count && live[i].next < b; i++) {
            int place = s->lies[(size_t)p * width + (size_t)i].position;
            bytes = t->graph.list->op[live[i].op].output_bytes;
            c = ddp__fence_takes(line->hop, place, q, line->positions, bytes);
            received += c;
            latency += c;
            kept += t->graph.kept * bytes;
            if (!t->graph.gradient[live[i].op]) continue;
            s->work += count;
            back = ddp__fence_takes(line->hop, q, place, line->positions, bytes);
            latency += back;
            for (j = 0; j < count; j++) {
                if (s->lies[(size_t)p * width + (size_t)j].position != place) continue;
                s->trial[j] += back;
                if (s->trial[j] > worst) worst = s->trial[j];
            }
        }
        c = (t->flops[b] - t->flops[a]) * line->pace[q];
        if (received > worst) worst = received;
        if (!(c < s->cap) || !(worst < s->cap)) break;
        s->work++;
        if (t->memory[b] - t->memory[a] + kept > line->limit[q]) break;
        if (t->oldest[b] != home) {
            home = t->oldest[b];
            age = ddp__fence_age(s, p, home);
        }
        rest = bound[(size_t)age * (P + 1) * (size_t)(t->n + 1) + (size_t)b];
        if (!(latency + c + rest < s->limit)) continue;
        if (greedy && !(latency + c + rest < *top)) continue;
        if (!ddp__fence_room(s)) return 0;
        s->work += 4 * (t->from[b + 1] - t->from[b]);
        ddp__fence_write(s, p, q, b, latency + c, rest, c > worst ? c : worst, received);
        if (greedy)
            *top = latency + c + rest;
        else
            ddp__fence_keep(s);
    }
    return 1;
}

/* Adds all successors of label p or, if greedy, the most promising one. Returns 0 if there is no room for
 * one, or if greedy finds none. */
static int ddp__fence_expand(ddp__fence_search *s, int p, int greedy)
{
    int at = s->label[p].at, q = s->label[p].position + 1;
    double top = DBL_MAX;
    if (at == s->line.tape->n) return 0;
    for (; q < s->line.positions; q++) {
        if (!ddp__fence_segment_at(s, p, q, greedy, &top)) return 0;
        if (!s->line.idle) break;
    }
    return !greedy || top < DBL_MAX;
}

static int ddp__fence_root(ddp__fence_search *s)
{
    stbds_arrsetlen(s->label, 0);
    stbds_arrsetlen(s->heap, 0);
    s->goal = -1;
    if (!ddp__fence_room(s)) return 0;
    memset(&s->label[0], 0, sizeof s->label[0]);
    s->label[0].position = s->label[0].parent = s->label[0].older = -1;
    s->label[0].rest = s->line.bound[0];
    stbds_arrsetlen(s->label, 1);
    return s->label[0].rest < s->limit;
}

static void ddp__fence_store(const ddp__fence_search *s, ddp__fence_cut *cut, double pipeline_s)
{
    for (int k = 0; k < s->line.positions; k++) cut->first[k] = cut->end[k] = 0;
    for (int x = s->goal; s->label[x].parent >= 0; x = s->label[x].parent) {
        cut->first[s->label[x].position] = s->label[s->label[x].parent].at;
        cut->end[s->label[x].position] = s->label[x].at;
    }
    cut->pipeline_s = pipeline_s;
}

/* Finds the least latency with worst below cap, if it is below limit. First it follows the bound greedily,
 * which often gives the answer and always shortens the search. Returns 1 if there is a solution, with its
 * latency and worst. Stores the solution in cut if its T_pipe is less. */
static int ddp__fence_solve(ddp__fence_search *s, double cap, double limit, ddp__fence_cut *cut,
                            double *latency, double *worst)
{
    size_t cells = (size_t)s->line.positions * (size_t)(s->line.tape->n + 1), i;
    double pipeline;
    int x, turn, found = 0, room;

    s->cap = cap;
    s->limit = limit;
    ddp__fence_bound(&s->line, cap, &s->work);
    for (turn = 0; turn < 2; turn++) {
        if (!ddp__fence_root(s)) break;
        if (turn == 0) {
            for (x = 0; ddp__fence_expand(s, x, 1); stbds_arrsetlen(s->label, x + 1))
                x = ddp__count(s->label);
            if (s->label[x].at == s->line.tape->n) s->goal = x;
        } else {
            for (i = 0; i < cells; i++) s->newest[i] = -1;
            ddp__fence_push(s, 0);
            for (room = 1; room && ddp__count(s->heap) && s->goal < 0;) {
                if (s->work > DDP__FENCE_WORK) {
                    s->gave_up = 1;
                    break;
                }
                x = (int)(ddp__due_take(s->heap, ddp__count(s->heap)).i & INT32_MAX);
                stbds_arrsetlen(s->heap, stbds_arrlen(s->heap) - 1);
                if (s->label[x].at == s->line.tape->n)
                    s->goal = x;
                else
                    room = ddp__fence_expand(s, x, 0);
            }
        }
        if (s->goal < 0) continue;
        found = 1;
        *latency = s->label[s->goal].latency;
        *worst = s->label[s->goal].worst;
        pipeline = *latency + s->turns * *worst;
        if (pipeline < cut->pipeline_s * (1 - DDP__FENCE_ROUND)) ddp__fence_store(s, cut, pipeline);
        s->limit = *latency * (1 - DDP__FENCE_ROUND);
    }
    return found;
}

/* Searches the solutions with worst in [lo, hi). Each of them has a latency of at least `least`. */
static void ddp__fence_halve(ddp__fence_search *s, double lo, double hi, double least, ddp__fence_cut *cut)
{
    double latency = 0, worst = 0, middle, best = cut->pipeline_s * (1 - DDP__FENCE_ROUND);
    if (ddp__scratch_failed(&s->line.room) || !(least + s->turns * lo < best)) return;
    /* even then, the first cap of an order follows its bound greedily */
    if (s->work > DDP__FENCE_WORK && hi < DBL_MAX) s->gave_up = 1;
    if (s->gave_up || !ddp__fence_solve(s, hi, best - s->turns * lo, cut, &latency, &worst)) return;
    middle = lo + 0.5 * (worst - lo);
    if (!(s->turns > 0) || !(middle > lo && middle < worst)) return;
    ddp__fence_halve(s, lo, middle, latency, cut);
    ddp__fence_halve(s, middle, worst, latency, cut);
}

/* A lower bound on worst for every assignment: all devices share the work equally, and each operator runs
 * on the fastest. */
static double ddp__fence_floor(const ddp__fence_line *line)
{
    const ddp__fence_tape *t = line->tape;
    double speed = 0, fastest = 0, most = 0;
    for (int k = 0; k < line->positions; k++) {
        speed += 1 / line->pace[k];
        if (1 / line->pace[k] > fastest) fastest = 1 / line->pace[k];
    }
    for (int i = 0; i < t->n; i++)
        if (t->flops[i + 1] - t->flops[i] > most) most = t->flops[i + 1] - t->flops[i];
    most = fmax(most / fastest, t->flops[t->n] / speed);
    return most * (1 - DDP__FENCE_ROUND);
}

ddp_status ddp__fence_cut_best(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                               ddp__fence_cut *cut, ddp_error *err)
{
    double before = cut->pipeline_s;
    ddp__fence_search s = DDP__ZEROS;
    ddp_status status;

    status = ddp__fence_line_open(t, order, idle, no_memory, &s.line, err);
    s.turns = t->graph.turns;
    s.work = cut->work;
    s.most = DDP__FENCE_LABELS / (1 + t->width / 100) + 2 * s.line.positions;
    s.newest = ddp__ints(&s.line.room, (size_t)s.line.positions * ((size_t)t->n + 1));
    s.trial = ddp__doubles(&s.line.room, (size_t)t->width);
    if (!ddp__scratch_failed(&s.line.room)) ddp__fence_halve(&s, ddp__fence_floor(&s.line), DBL_MAX, 0, cut);
    if (ddp__scratch_failed(&s.line.room))
        status = ddp__fail(err, DDP_MEMORY, "no memory to cut %d operators over %d devices", t->n,
                           s.line.positions);
    else if (!(cut->pipeline_s < DBL_MAX) && (s.full || s.gave_up))
        status = ddp__fail(err, DDP_UNSUPPORTED,
                           "no cut of %d operators over %d devices was found within the search's "
                           "limits; merge operators",
                           t->n, s.line.positions);
    if (cut->pipeline_s < before) cut->proven = !s.full && !s.gave_up;
    cut->work = s.work;
    ddp__array_free(s.label);
    ddp__array_free(s.lies);
    ddp__array_free(s.heap);
    ddp__scratch_free(&s.line.room);
    return status;
}
