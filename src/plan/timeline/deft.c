/* DeFT's planner: options, tensor partition, and the search over capacities. */
#include "plan/arrays.h"
#include "plan/names.h"
#include "plan/timeline/deft_internal.h"
#include "plan/timeline/partition.h"
#include "plan/times.h"

/* With more parts than this, or than two per bucket, a coarser partition rule is used. */
#define DDP__DEFT_PARTS 512
#define DDP__DEFT_TRIES 40

static ddp_status ddp__deft_check(const ddp_profile *p, const ddp_delayed_options *o, ddp_error *err)
{
    if (!o) return ddp__fail(err, DDP_ARG, "ddp_plan_delayed: options is NULL");
    DDP__TRY(ddp_profile_check(p, err));
    if (o->links < 0 || o->links > 2)
        return ddp__fail(err, DDP_ARG, "links is %d; DeFT uses 1 or 2", o->links);
    if (o->links == 2 ? !ddp__within(o->mu, 1, DBL_MAX) : !ddp__zero_or_within(o->mu, 1, DBL_MAX))
        return ddp__fail(err, DDP_ARG,
                         "mu is %g; it is the time on the slow link over that on the fast one, finite "
                         "and at least 1",
                         o->mu);
    DDP__TRY(ddp__check_partition(p, o->alpha_s, o->partition_s, o->partition_params, 1, err));
    if (!ddp__zero_or_within(o->capacity_scale, 1, 1e6))
        return ddp__fail(err, DDP_ARG, "capacity_scale is %g; it must be from 1 to 1e6", o->capacity_scale);
    if (!ddp__zero_or_within(o->target_frequency, 0, 1))
        return ddp__fail(err, DDP_ARG,
                         "target_frequency is %g; it must be above 0 and at most 1 (updates per "
                         "iteration)",
                         o->target_frequency);
    if (o->select != DDP_SELECT_DEFAULT && o->select != DDP_SELECT_RELEASE && o->select != DDP_SELECT_PAPER)
        return ddp__fail(err, DDP_ARG, "selection %d is unknown; use release or paper", (int)o->select);
    if (o->solver != DDP_KNAPSACK_DEFAULT && o->solver != DDP_KNAPSACK_EXACT &&
        o->solver != DDP_KNAPSACK_GREEDY)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use exact or greedy", (int)o->solver);
    return DDP_OK;
}

/* The number of equal parts of at most `limit` seconds for a bucket of c seconds. limit is longer than a
 * startup. */
static double ddp__deft_cut(double c, double alpha, double limit)
{
    return c <= limit ? 1 : ceil((c - alpha) / (limit - alpha) * (1 - 1e-14));
}

/* joined: rule 2. A part contains as many blocks of the partition as rule 3 allows. */
static double ddp__deft_parts(const ddp_profile *p, const ddp_delayed_options *o, double limit, int joined,
                              int bucket)
{
    double c = p->comm_s[bucket] + ddp__startup(p), alpha = o->alpha_s + ddp__startup(p), k;
    if (!(p->comm_s[bucket] > 0)) return 0;
    k = ddp__deft_cut(c, alpha, limit);
    if (joined) return k;
    if (o->partition_params > 0) k = fmax(k, ceil(p->params[bucket] / o->partition_params));
    if (o->partition_s > 0) k = fmax(k, ddp__deft_cut(c, alpha, o->partition_s));
    return k;
}

/* The longest part that the way allows. *longest is the length of the longer stage. A stage without
 * compute is left out. */
static double ddp__deft_limit(const ddp__deft *d, double *longest)
{
    double f = d->forward, b = d->backward, s;
    if (d->way.coarse || !(f > 0 && b > 0)) f = b = f + b;
    *longest = f > b ? f : b;
    s = d->way.rule < 2 ? (f < b ? f : b) : *longest;
    return d->way.rule % 2 ? s : s / d->mu;
}

static ddp_status ddp__deft_partition(const ddp_profile *p, const ddp_delayed_options *o, ddp__deft *d,
                                      ddp_error *err)
{
    int most = 2 * p->layers > DDP__DEFT_PARTS ? 2 * p->layers : DDP__DEFT_PARTS;
    double longest, limit = ddp__deft_limit(d, &longest), alpha = d->alpha, n = 0, ready = 0, k, c;
    double shortest = DBL_MAX;
    if (limit <= alpha)
        return ddp__fail(err, DDP_ARG,
                         "forward %g s and backward %g s are not longer than the startup of a transfer, %g "
                         "s; no communication can be hidden",
                         d->forward, d->backward, alpha);
    for (int i = p->layers - 1; i >= 0; i--) {
        ready += p->backward_s[i];
        d->ready[i] = ready;
        k = ddp__deft_parts(p, o, limit, d->way.joined, i);
        if (!(k > 0)) continue;
        n += k;
        if (n > most)
            return ddp__fail(err, DDP_ARG,
                             "the buckets would be cut into more than %d parts; use a larger partition, "
                             "or check that times are in seconds",
                             most);
        c = p->comm_s[i] + ddp__startup(p);
        d->parts_of[i] = (int)k;
        d->part_s[i] = k > 1 ? alpha + (c - alpha) / k : c;
        d->parts += (int)k;
        if (d->part_s[i] < shortest) shortest = d->part_s[i];
    }
    if (shortest * d->mu > longest * d->scale * (1 + 1e-12))
        d->links = 1; /* the slow link cannot carry any of them */
    return DDP_OK;
}

/* Cuts the buckets into parts and checks that the links can carry them. The caller frees d->room in every
 * case. */
static ddp_status ddp__deft_open(ddp__deft_search *s, ddp__deft_way way, ddp__deft *d, ddp_error *err)
{
    const ddp_profile *p = s->p;
    const ddp_delayed_options *o = s->o;
    size_t N = (size_t)p->layers;
    double sum = 0;

    memset(d, 0, sizeof *d);
    d->buckets = p->layers;
    d->links = o->links == 2 ? 2 : 1;
    d->mu = d->links == 2 ? o->mu : 1;
    d->select = o->select;
    d->solver = o->solver;
    d->most = (size_t)1 << (o->solver == DDP_KNAPSACK_EXACT ? 20 : 11);
    d->way = way;
    d->work = &s->work;
    d->alpha = o->alpha_s + ddp__startup(p);
    d->scale = o->capacity_scale > 0 ? o->capacity_scale : 1;
    d->forward = p->between_s;
    for (int i = 0; i < p->layers; i++) {
        d->backward += p->backward_s[i];
        d->forward += p->forward_s ? p->forward_s[i] : 0;
        sum += p->comm_s[i] + ddp__startup(p) + o->alpha_s;
    }
    DDP__TRY(ddp__check_sum((d->forward + d->backward + sum) * d->scale * d->mu, DBL_MAX / 4, err));
    if (!(d->forward + d->backward > 0))
        return ddp__fail(err, DDP_ARG,
                         "forward and backward take 0 s in all; no communication can be hidden");
    d->ready = ddp__doubles(&d->room, N);
    d->part_s = ddp__doubles(&d->room, N);
    d->parts_of = ddp__ints(&d->room, N);
    DDP__TRY(ddp__scratch_check(&d->room, p->layers, "buckets", err));
    DDP__TRY(ddp__deft_partition(p, o, d, err));
    d->item = ddp__doubles(&d->room, (size_t)d->parts);
    d->item_ready = ddp__doubles(&d->room, (size_t)d->parts);
    d->bucket = ddp__ints(&d->room, (size_t)d->parts);
    d->assign = ddp__ints(&d->room, (size_t)d->parts);
    d->on = ddp__ints(&d->room, 4 * N);
    return ddp__scratch_check(&d->room, d->parts, "parts", err);
}

/* Returns 1 if x is better than y. With a target frequency, the shorter iteration is better, then more
 * updates. Without a target frequency, less time per update is better. Equal plans are not better. */
static int ddp__deft_better(double target, const ddp_delayed_plan *x, const ddp_delayed_plan *y)
{
    double a = x->iteration_s, b = y->iteration_s;
    if (!(target > 0)) {
        a /= x->update_frequency;
        b /= y->update_frequency;
    }
    if (a < b * (1 - 1e-9)) return 1;
    return target > 0 && a <= b * (1 + 1e-9) && x->update_frequency > y->update_frequency;
}

/* Retains the better of *best and *next in *best (ties: *best) and frees the other. */
static void ddp__deft_keep(double target, ddp_delayed_plan *next, ddp_delayed_plan *best)
{
    ddp_delayed_plan swap = *next;
    if (next->update_frequency >= target * (1 - 1e-12) &&
        (best->period == 0 || ddp__deft_better(target, next, best))) {
        *next = *best;
        *best = swap;
    }
    ddp_delayed_plan_free(next);
}

/* With a target: bisects the capacity between one that reaches the frequency and one that does not. The
 * frequency need not be monotonic in the capacity, so the best of all tries is used. Some try reaches it,
 * because 2^39 times the capacity holds all parts. */
static ddp_status ddp__deft_solve(ddp__deft *d, double target, ddp_delayed_plan *out, ddp_error *err)
{
    const double scale = d->scale;
    double low = scale, high = 0;
    ddp_delayed_plan best, next;
    ddp_status status = DDP_OK;

    if (!(target > 0)) return ddp__deft_cycle(d, out, err);
    memset(&best, 0, sizeof best);
    for (int tries = 0; tries < DDP__DEFT_TRIES && !(high > 0 && high - low <= 1e-6 * high); tries++) {
        if (best.period && ddp__deft_spent(*d->work)) break;
        if (tries > 0) d->scale = high > 0 ? 0.5 * (low + high) : 2 * d->scale;
        status = ddp__deft_cycle(d, &next, err);
        if (status != DDP_OK) break;
        if (next.update_frequency >= target * (1 - 1e-12))
            high = d->scale;
        else
            low = d->scale;
        ddp__deft_keep(target, &next, &best);
    }
    if (status == DDP_OK)
        *out = best;
    else
        ddp_delayed_plan_free(&best);
    d->scale = scale;
    return status;
}

/* Returns 1 if no other way had this partition. Different stages or links make it a different problem. */
static int ddp__deft_new_cut(ddp__deft_search *s, const ddp__deft *d)
{
    uint64_t h = ddp__hash(DDP__HASH_START, d->parts_of, (size_t)d->buckets * sizeof *d->parts_of);
    h = ddp__hash(h, &d->links, sizeof d->links);
    h = ddp__hash(h, &d->way.no_barrier, sizeof d->way.no_barrier);
    for (int i = 0; i < s->ways; i++)
        if (s->seen[i] == h) return 0;
    s->seen[s->ways++] = h;
    return 1;
}

/* Tries greedy, the plain queue and the exact knapsack by default, because no method is best in every
 * period. */
static ddp_status ddp__deft_choices(ddp__deft_search *s, ddp__deft *d, ddp_error *err)
{
    int all = s->o->solver == DDP_KNAPSACK_DEFAULT && (d->links == 2 || d->alpha > 0), done = 0;
    ddp_status status = DDP_OK;
    ddp_delayed_plan next;
    for (int i = all ? 0 : 2; i < 3 && status != DDP_MEMORY; i++) {
        if (done && s->o->select == DDP_SELECT_PAPER) break;
        d->solver = all && i < 2 ? DDP_KNAPSACK_GREEDY : s->o->solver;
        d->queue = i == 1;
        status = ddp__deft_solve(d, s->o->target_frequency, &next, err);
        if (status != DDP_OK) continue;
        ddp__deft_keep(s->o->target_frequency, &next, &s->best);
        done = 1;
    }
    return done && status != DDP_MEMORY ? DDP_OK : status;
}

ddp_status ddp__deft_variant(ddp__deft_search *s, ddp__deft_way way, ddp_error *err)
{
    ddp__deft d;
    ddp_status status = ddp__deft_open(s, way, &d, err);
    if (status == DDP_OK && ddp__deft_new_cut(s, &d)) status = ddp__deft_choices(s, &d, err);
    ddp__scratch_free(&d.room);
    return status;
}

/* No plan has less time per update than one with an update in every iteration and no iteration longer than
 * its compute. */
static int ddp__deft_ideal(const ddp_delayed_plan *p)
{
    return p->period && p->updates == p->period && p->iteration_s <= p->forward_s + p->backward_s;
}

/* Tries the rules from the finest parts on. Startups make fine parts expensive, and two links pack some
 * coarse parts better, so in these cases every rule is tried. Otherwise the first rule that does not give
 * too many parts is used. */
static ddp_status ddp__deft_rules(ddp__deft_search *s, ddp__deft_way way, ddp_error *err)
{
    int all = s->o->alpha_s + ddp__startup(s->p) > 0 || s->o->links == 2;
    ddp_status status = DDP_OK;
    for (way.rule = 0; way.rule < DDP__DEFT_RULES && !ddp__deft_ideal(&s->best); way.rule++) {
        if (s->best.period && ddp__deft_spent(s->work)) break;
        status = ddp__deft_variant(s, way, err);
        if (status == DDP_MEMORY || (!all && status != DDP_ARG)) break;
    }
    return status != DDP_MEMORY && s->best.period ? DDP_OK : status;
}

ddp_status ddp_plan_delayed(const ddp_profile *buckets, const ddp_delayed_options *o, ddp_delayed_plan *out,
                            ddp_error *err)
{
    ddp_status status = DDP_OK;
    ddp__deft_search s = DDP__ZEROS;
    ddp__deft_way way = DDP__ZEROS;
    ddp_error local; /* the error of a try, ignored if another try succeeds */
    int may_join;
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_plan_delayed: out is NULL");
    DDP__TRY(ddp__deft_check(buckets, o, err));
    s.p = buckets;
    s.o = o;
    /* without a startup or a partition, fewer parts cannot save anything */
    may_join = o->alpha_s + ddp__startup(buckets) > 0 && (o->partition_s > 0 || o->partition_params > 0);
    for (int i = 0; i < 6 && status == DDP_OK; i++) { /* the first must succeed, the others are optional */
        way.joined = i % 2;
        way.no_barrier = i >= 2;
        way.coarse = i >= 4;
        if ((way.joined && !may_join) || (way.no_barrier && !o->no_barrier)) continue;
        status = ddp__deft_rules(&s, way, &local);
    }
    if (status == DDP_OK) {
        s.best.limited = ddp__deft_spent(s.work);
        *out = s.best;
    } else {
        ddp_delayed_plan_free(&s.best);
        if (err) *err = local;
    }
    return status;
}

static const char *const ddp__selects[] = {"release", "release", "paper", NULL};

DDP__NAMES(ddp_delayed_select, ddp__selects, 1, "selection")
