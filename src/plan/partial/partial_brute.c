/* The reference for DreamDDP's planner: simulates the definitions of plan/partial/partial.h event by
 * event, for every contiguous partition (empty sets allowed). Deliberately shares no arithmetic with the
 * solvers. */
#include "plan/arrays.h"
#include "plan/partial/partial_brute.h"

#define DDP__BRUTE_PARTITIONS 5e7

/* Transfers run in backward order on one first-in-first-out link. */
static double ddp__brute_timeline(const ddp_profile *p, const unsigned char *member)
{
    double now = 0, link = 0, done = 0;
    for (int l = p->layers - 1; l >= 0; l--) {
        now += p->backward_s[l];
        if (!member[l] || p->comm_s[l] <= 0) continue;
        if (link < now) link = now;
        link += p->comm_s[l] + p->gap_s;
        done = link + p->alpha_s;
    }
    return done > now ? done : now;
}

static double ddp__brute_sum(const ddp_profile *p, const unsigned char *member)
{
    double now = 0, start = -1, sum = 0, done;
    for (int l = p->layers - 1; l >= 0; l--) {
        now += p->backward_s[l];
        if (!member[l]) continue;
        if (start < 0) start = now;
        if (p->comm_s[l] > 0) sum += p->comm_s[l] + p->gap_s;
    }
    if (sum <= 0) return now;
    done = start + sum + p->alpha_s;
    return done > now ? done : now;
}

/* The link always serves the waiting layer nearest to the input, and interrupts any other. Layers become
 * ready from the output side, so the waiting layers form a stack. left and done: [L]. */
static double ddp__brute_window(const ddp_profile *p, const unsigned char *member, int *stack, double *left,
                                double *done)
{
    double now = 0, room, end, forward = 0;
    int l, k, depth = 0;
    for (l = p->layers; l >= 0; l--) {
        room = l > 0 ? p->backward_s[l - 1] : DBL_MAX; /* until the next layer is ready */
        if (l < p->layers && member[l] && p->comm_s[l] > 0) {
            left[l] = p->comm_s[l] + p->gap_s;
            stack[depth++] = l;
        }
        end = now + room;
        while (depth > 0 && now + left[stack[depth - 1]] <= end) {
            k = stack[--depth];
            now += left[k];
            done[k] = now;
        }
        if (depth > 0) left[stack[depth - 1]] -= end - now;
        if (l > 0) now = end;
    }
    now = 0;
    for (l = 0; l < p->layers; l++) now += p->backward_s[l];
    for (l = 0; l < p->layers; l++) {
        if (member[l] && p->comm_s[l] > 0 && now < done[l] + p->alpha_s) now = done[l] + p->alpha_s;
        if (p->forward_s) now += p->forward_s[l];
        if (p->forward_s) forward += p->forward_s[l];
    }
    return now - forward;
}

ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member, double *out_s,
                           ddp_error *err)
{
    size_t L = (size_t)p->layers;
    ddp__scratch room = {NULL, 0};
    double *time = ddp__doubles(&room, 2 * L);
    int *stack = ddp__ints(&room, L);

    DDP__TRY(ddp__scratch_check(&room, p->layers, "layers", err));
    if (cost == DDP_COST_TIMELINE)
        *out_s = ddp__brute_timeline(p, member);
    else if (cost == DDP_COST_SUM)
        *out_s = ddp__brute_sum(p, member);
    else
        *out_s = ddp__brute_window(p, member, stack, time, time + L);
    ddp__scratch_free(&room);
    return DDP_OK;
}

typedef struct ddp__brute_state {
    int layers, period, *cut, *best_cut;
    const double *cost; /* [(L+1) x (L+1)] cost of each set [a, b) in backward order */
    double best, deadline;
    long seen;
    int late;
} ddp__brute_state;

static void ddp__brute_sets(ddp__brute_state *s, int h, int l, double sum)
{
    const double *row = s->cost + (size_t)l * (size_t)(s->layers + 1);
    s->cut[h] = l;
    if (h == s->period - 1) {
        if (++s->seen % 65536 == 0 && ddp_now() > s->deadline) s->late = 1;
        sum += row[s->layers];
        if (!(sum < s->best)) return;
        s->best = sum;
        s->cut[s->period] = s->layers;
        memcpy(s->best_cut, s->cut, ((size_t)s->period + 1) * sizeof(int));
        return;
    }
    for (int b = s->layers; b >= l && !s->late; b--) ddp__brute_sets(s, h + 1, b, sum + row[b]);
}

ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s, int *cut,
                      ddp_error *err)
{
    ddp__brute_state s = DDP__ZEROS;
    size_t L = (size_t)p->layers, row = L + 1;
    ddp__scratch room = {NULL, 0};
    double *table, partitions = 1;
    unsigned char *member;
    int a, b, i, sets = period < p->layers ? period : p->layers; /* further sets would be empty */
    ddp_status status = DDP_OK;

    for (i = 1; i < sets && partitions <= DDP__BRUTE_PARTITIONS; i++)
        partitions *= (double)(p->layers + i) / i;
    if (partitions > DDP__BRUTE_PARTITIONS || p->layers > 2000)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "brute force over %d layers and period %d is too much (limits: %.0e "
                         "partitions, 2000 layers); use solver optimal, which finds the same optimum",
                         p->layers, period, DDP__BRUTE_PARTITIONS);
    table = ddp__doubles(&room, row * row);
    member = (unsigned char *)ddp__scratch_take(&room, L, 1);
    s.cut = ddp__ints(&room, (size_t)sets + 1);
    DDP__TRY(ddp__scratch_check(&room, p->layers, "layers", err));
    for (a = 0; a <= p->layers && status == DDP_OK; a++) {
        memset(member, 0, L);
        for (b = a; b <= p->layers && status == DDP_OK; b++) {
            if (b > a) member[p->layers - b] = 1;
            status = ddp__brute_step(p, cost, member, &table[(size_t)a * row + (size_t)b], err);
        }
    }
    if (status == DDP_OK) {
        s.layers = p->layers;
        s.period = sets;
        s.best_cut = cut;
        s.cost = table;
        s.best = DBL_MAX;
        s.deadline = ddp_now() + (time_limit_s > 0 ? time_limit_s : 60);
        ddp__brute_sets(&s, 0, 0, 0);
        for (i = sets + 1; i <= period; i++) cut[i] = p->layers;
    }
    ddp__scratch_free(&room);
    return status;
}
