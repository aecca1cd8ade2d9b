/* Simulates the baselines: S-SGD, WFBP, MG-WFBP, ASC-WFBP, ByteScheduler and US-Byte. */
#include "plan/arrays.h"
#include "plan/link_clock.h"
#include "plan/names.h"
#include "plan/timeline/partition.h"
#include "plan/timeline/timeline.h"
#include "plan/times.h"

static const char *const ddp__schemes[] = {"ssgd",          "wfbp",   "mgwfbp", "ascwfbp",
                                           "bytescheduler", "usbyte", "deft",   NULL};

DDP__NAMES(ddp_scheme, ddp__schemes, 0, "scheme")

void ddp_timeline_free(ddp_timeline *t)
{
    if (!t) return;
    DDP_FREE(t->parts);
    DDP_FREE(t->priority);
    DDP_FREE(t->interval);
    memset(t, 0, sizeof *t);
}

enum { DDP__BL_MOST_PARTS = 1000000 };

/* One message: rows first..last of the profile as one operation. */
typedef struct ddp__bl_group {
    int first, last;
    double ready; /* the end of the backward of row first, from the start of backward */
    double c;     /* seconds on the link, startup included */
} ddp__bl_group;

/* A checked profile with its sums. Times are in seconds from the start of backward. */
typedef struct ddp__bl_model {
    const ddp_profile *p;
    const ddp_timeline_options *o;
    int groups;           /* number of messages */
    ddp__bl_group *group; /* [groups] in backward order: the output side first */
    int *parts;           /* [groups] number of equal parts of each */
    double *size;         /* [groups] size of one part, in partitions: at most 1 */
    double *arrive;       /* [rows] time at which the gradient of a row has arrived and its forward may
                             begin */
    int *priority;        /* [groups] 0 = first */
    double alpha;         /* startup included in every group's c */
    double most_params;   /* most parameters in a part, used if partition_s is 0 */
    double forward, backward, bound;
    ddp_interval *log; /* link operations in order of their start, or NULL if not recorded */
    int logged;
    ddp__scratch room;
} ddp__bl_model;

static ddp_status ddp__bl_check(const ddp_timeline_options *o, ddp_error *err)
{
    DDP__TRY(ddp__check_finite(o->credit, 0, err, "credit is %g", o->credit));
    DDP__TRY(ddp__check_finite(o->bucket_bytes, 0, err, "bucket_bytes is %g", o->bucket_bytes));
    DDP__TRY(
        ddp__check_finite(o->first_bucket_bytes, 0, err, "first_bucket_bytes is %g", o->first_bucket_bytes));
    if (o->operations < 0)
        return ddp__fail(err, DDP_ARG, "operations is %ld; it must be at least 1, or 0 for 4", o->operations);
    if (o->scheme == DDP_SCHEME_DEFT)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "scheme deft has no timeline of one iteration; use ddp_plan_delayed");
    if ((int)o->scheme < 0 || o->scheme > DDP_SCHEME_DEFT)
        return ddp__fail(err, DDP_ARG, "scheme %d is unknown; use ssgd to usbyte", (int)o->scheme);
    return DDP_OK;
}

static ddp_status ddp__bl_open(ddp__bl_model *m, const ddp_profile *p, const ddp_timeline_options *o,
                               ddp_error *err)
{
    int cut = o->scheme == DDP_SCHEME_BYTESCHEDULER || o->scheme == DDP_SCHEME_USBYTE;
    size_t n = (size_t)p->layers;
    double comm = 0;

    m->most_params = cut && !(o->partition_s > 0) && o->partition_params == 0 ? 6.5e6 : o->partition_params;
    DDP__TRY(ddp__check_partition(p, o->alpha_s, o->partition_s, m->most_params, cut, err));
    m->p = p;
    m->o = o;
    m->alpha = o->alpha_s + ddp__startup(p);
    m->group = (ddp__bl_group *)ddp__scratch_take(&m->room, n, sizeof *m->group);
    m->parts = ddp__ints(&m->room, n);
    m->size = ddp__doubles(&m->room, n);
    m->arrive = ddp__doubles(&m->room, n);
    m->priority = ddp__ints(&m->room, n);
    DDP__TRY(ddp__scratch_check(&m->room, p->layers, "buckets", err));
    for (int l = p->layers - 1; l >= 0; l--) {
        ddp__bl_group *g = &m->group[m->groups];
        if (p->forward_s) m->forward += p->forward_s[l];
        m->backward += p->backward_s[l];
        if (!(p->comm_s[l] > 0)) continue;
        g->first = g->last = l;
        g->ready = m->backward;
        g->c = p->comm_s[l] + ddp__startup(p);
        comm += g->c;
        m->priority[m->groups] = m->groups;
        m->parts[m->groups++] = 1;
    }
    m->bound = p->backward_s[p->layers - 1] + comm;
    return ddp__check_sum(m->forward + m->backward + comm, DBL_MAX / 2, err);
}

/* Records an operation of a group on lane 0. Returns NULL without a log. */
static ddp_interval *ddp__bl_note(ddp__bl_model *m, int group, int part, int parts, double begin, double end)
{
    const ddp__bl_group *g = &m->group[group];
    const ddp_interval x = {DDP_INTERVAL_LINK, g->first, g->last, part, parts, 0, begin, end};
    if (!m->log) return NULL;
    m->log[m->logged] = x;
    return &m->log[m->logged++];
}

/* The end of the forward pass that begins at the end of backward, where row i starts no earlier than
 * m->arrive[i]. Records the intervals if `at` is not NULL. */
static double ddp__bl_forward(const ddp__bl_model *m, ddp_interval *at)
{
    double begin, end = m->backward;
    for (int l = 0; l < m->p->layers; l++) {
        begin = end < m->arrive[l] ? m->arrive[l] : end;
        end = begin + (m->p->forward_s ? m->p->forward_s[l] : 0);
        const ddp_interval x = {DDP_INTERVAL_FORWARD, l, l, 0, 1, 0, begin, end};
        if (at) at[l] = x;
    }
    return end;
}

/* ---- fusion: which rows travel as one message ---- */

/* Row `next` (nearer to the input) joins g: one startup for both, ready at the later of the two times. */
static void ddp__bl_join(ddp__bl_group *g, const ddp__bl_group *next, double alpha)
{
    g->first = next->first;
    g->ready = next->ready;
    g->c += next->c - alpha;
}

static ddp_status ddp__bl_buckets(ddp__bl_model *m, ddp_error *err)
{
    double limit = m->o->first_bucket_bytes > 0 ? m->o->first_bucket_bytes : 1048576, bytes = 0;
    int kept = 0, open = 0, sized = !m->groups;
    for (int i = 0; i < m->groups && m->p->params; i++)
        if (m->p->params[m->group[i].first] > 0) sized = 1;
    if (!sized)
        return ddp__fail(err, DDP_ARG,
                         "no row that sends has params, so bucket_bytes %g cannot be applied; give "
                         "params or bucket_bytes 0 (rows are buckets)",
                         m->o->bucket_bytes);
    for (int i = 0; i < m->groups; i++) {
        bytes += 4 * m->p->params[m->group[i].first];
        if (open)
            ddp__bl_join(&m->group[kept - 1], &m->group[i], m->alpha);
        else
            m->group[kept++] = m->group[i];
        open = bytes < limit;
        if (!open) {
            bytes = 0;
            limit = m->o->bucket_bytes;
        }
    }
    m->groups = kept;
    return DDP_OK;
}

/* Walks from the output side. start is the time at which the top group would begin under WFBP. A join only
 * changes later groups, so one pass suffices. */
static void ddp__bl_merge(ddp__bl_model *m)
{
    ddp__bl_group *top = m->group, *next;
    double start = m->groups ? top->ready : 0;
    for (int i = 1; i < m->groups; i++) {
        next = &m->group[i];
        if (next->ready < start + top->c && (start > next->ready || next->ready - start < m->alpha)) {
            ddp__bl_join(top, next, m->alpha);
        } else {
            start += top->c;
            *++top = *next;
        }
        if (start < top->ready) start = top->ready;
    }
    if (m->groups) m->groups = (int)(top - m->group) + 1;
}

/* ---- links that serve in backward order: one message at a time, or several that share the link ---- */

static void ddp__bl_fifo(ddp__bl_model *m, double from)
{
    m->arrive[0] = from;
    for (int i = 0; i < m->groups; i++) {
        double begin = ddp__link_take(&m->arrive[0], m->group[i].ready, m->group[i].c);
        ddp__bl_note(m, i, 0, 1, begin, m->arrive[0]);
    }
}

/* An operation in flight, or no operation if note is NULL. It needs no bandwidth before `starts`. From then
 * on, it ends when the service that each such operation has received reaches `target`. */
typedef struct ddp__bl_flight {
    ddp_interval *note;
    int served;
    double starts, target; /* target: the work of the operation, until its service begins */
} ddp__bl_flight;

static ddp_status ddp__bl_shared(ddp__bl_model *m, ddp_error *err)
{
    const long most = m->o->operations ? m->o->operations : 4;
    const int lanes = most < m->groups ? (int)most : m->groups;
    const double startup = m->alpha - m->p->gap_s; /* a gap is lost bandwidth */
    ddp__bl_flight *lane = (ddp__bl_flight *)ddp__scratch_take(&m->room, (size_t)lanes, sizeof *lane), *x;
    double now = 0, service = 0, when, t;
    int i = 0, serving = 0, next, idle, launch;

    if (!lane) return ddp__fail(err, DDP_MEMORY, "no memory for %d operations at once", lanes);
    for (;;) {
        when = DBL_MAX; /* time of the next change: the end of a startup or of an operation */
        next = idle = -1;
        for (int k = lanes - 1; k >= 0; k--) {
            x = &lane[k];
            t = x->served ? now + (x->target - service) * serving : x->starts;
            if (!x->note)
                idle = k;
            else if (t <= when) {
                when = t;
                next = k;
            }
        }
        launch = i < m->groups && idle >= 0 && m->group[i].ready <= when;
        if (!launch && next < 0) break;
        x = &lane[launch ? idle : next];
        if (launch) when = fmax(m->group[i].ready, now);
        /* set to exactly the target at its end, so that rounding leaves no operation with a remainder */
        if (!launch && x->served)
            service = x->target;
        else if (serving)
            service += (when - now) / serving;
        now = when;
        if (launch) {
            x->served = 0;
            x->starts = now + startup;
            x->target = m->group[i].c - startup;
            x->note = ddp__bl_note(m, i++, 0, 1, now, now);
            x->note->lane = idle;
        } else if (!x->served) {
            x->served = 1;
            x->target += service;
            serving++;
        } else {
            x->note->end_s = now;
            x->note = NULL;
            serving--;
        }
    }
    m->arrive[0] = now;
    return DDP_OK;
}

/* ---- partition, ByteScheduler. Here a group is one row, whose forward waits only for its own parts ---- */

static ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err)
{
    const int most = DDP__BL_MOST_PARTS;
    double longest = m->o->partition_s, total = 0, whole, k;
    for (int i = 0; i < m->groups; i++) {
        if (longest > 0)
            whole = (m->group[i].c - m->alpha) / (longest - m->alpha);
        else
            whole = m->p->params[m->group[i].first] / m->most_params;
        k = ceil(whole - 1e-9); /* 3 x 0.1 s gives three parts of 0.1 s, in spite of rounding */
        if (k < 1) k = 1;
        total += k;
        if (!ddp__finite(total) || total > most)
            return ddp__fail(err, DDP_ARG,
                             "the partition cuts buckets %d to %d into %g parts; more than %d cannot be "
                             "planned, raise it",
                             m->group[i].first, m->group[0].first, total, most);
        m->parts[i] = (int)k;
        m->size[i] = whole / k < 1 ? whole / k : 1;
    }
    return DDP_OK;
}

/* A part that has been committed to the link and has not arrived. */
typedef struct ddp__bl_sent {
    int group, last;
    double end;
} ddp__bl_sent;

/* Groups become ready from the output side, so the waiting group with the highest priority is always the
 * newest one. The queue is therefore a stack of groups, each with the number of parts that it still has to
 * send. */
static ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp_error *err)
{
    double limit = m->o->credit > 0 ? m->o->credit : 1, out = 0, now, link = 0;
    int *stack, *left, depth = 0, arrived = 0, total = 0, head = 0, tail = 0, i;
    ddp__bl_sent *sent;

    for (i = 0; i < m->groups; i++) total += m->parts[i];
    sent = (ddp__bl_sent *)ddp__scratch_take(&m->room, (size_t)total, sizeof *sent);
    stack = ddp__ints(&m->room, (size_t)m->groups);
    left = ddp__ints(&m->room, (size_t)m->groups);
    DDP__TRY(ddp__scratch_check(&m->room, total, "parts", err));
    while (head < total) {
        now = arrived < m->groups ? m->group[arrived].ready : DBL_MAX;
        if (head < tail && sent[head].end < now) now = sent[head].end;
        for (; arrived < m->groups && m->group[arrived].ready <= now; arrived++) {
            stack[depth++] = arrived;
            left[arrived] = m->parts[arrived];
        }
        for (; head < tail && sent[head].end <= now; head++) {
            if (sent[head].last) m->arrive[m->group[sent[head].group].first] = sent[head].end;
            out = head + 1 == tail ? 0 : out - m->size[sent[head].group];
        }
        /* credit is the unused part of the limit. A rounding error is not credit. */
        while (depth && limit - out > 1e-9 * limit) {
            int g = stack[depth - 1], part = m->parts[g] - left[g];
            double begin = ddp__link_take(&link, now, m->alpha);
            link += (m->group[g].c - m->alpha) / m->parts[g];
            ddp__bl_note(m, g, part, 1, begin, link);
            out += m->size[g];
            sent[tail].group = g;
            sent[tail].end = link;
            sent[tail++].last = --left[g] == 0;
            if (left[g] == 0) depth--;
        }
    }
    return DDP_OK;
}

/* ---- US-Byte: operations of unequal size fill the gaps between ready gradients. Blocks are parts ---- */

typedef struct ddp__bl_us {
    ddp__bl_model *m;
    int *left;      /* [groups] blocks still to send */
    int *waiting;   /* ready groups with blocks left, the highest priority last */
    double *first;  /* [groups] start of a group's first operation */
    int64_t visits; /* groups simulated so far */
} ddp__bl_us;

static double ddp__bl_blocks(const ddp__bl_model *m, int g, int k)
{
    return k * ((m->group[g].c - m->alpha) / m->parts[g]);
}

/* The number of blocks of g that fill the gap until the next ready gradient. The last one may overrun it. */
static int ddp__bl_fill(const ddp__bl_us *u, int g, double gap, double startup)
{
    double one = ddp__bl_blocks(u->m, g, 1), k;
    if (startup + ddp__bl_blocks(u->m, g, u->left[g]) <= gap) return u->left[g];
    if (gap <= startup) return 1;
    k = ceil((gap - startup) / one);
    return k < u->left[g] ? (int)k : u->left[g];
}

/* Sends k blocks at time t, as part of the previous operation (`more`) or as a new one. Returns the end. */
static double ddp__bl_send(ddp__bl_us *u, int g, int k, double t, int more)
{
    ddp__bl_model *m = u->m;
    double end = t + (more ? 0 : m->alpha) + ddp__bl_blocks(m, g, k);
    int done = m->parts[g] - u->left[g];
    if (done == 0) u->first[g] = t;
    if (m->log && more) {
        m->log[m->logged - 1].parts += k;
        m->log[m->logged - 1].end_s = end;
    } else {
        ddp__bl_note(m, g, done, k, t, end);
    }
    u->left[g] -= k;
    if (u->left[g] == 0) m->arrive[m->group[g].first] = end;
    return end;
}

/* Simulates one iteration under m->priority. Returns its length. */
static double ddp__bl_us_run(ddp__bl_us *u)
{
    ddp__bl_model *m = u->m;
    double t = 0, next;
    int i, g, w, k, waits = 0, arrived = 0, before = -1;
    u->visits += m->groups;
    for (i = 0; i < m->groups; i++) u->left[i] = m->parts[i];
    while (t < m->backward) {
        for (; arrived < m->groups && m->group[arrived].ready <= t; arrived++) {
            for (w = waits++; w > 0 && m->priority[u->waiting[w - 1]] < m->priority[arrived]; w--)
                u->waiting[w] = u->waiting[w - 1];
            u->waiting[w] = arrived;
        }
        next = arrived < m->groups ? m->group[arrived].ready : m->backward;
        if (!waits) {
            t = next;
            before = -1;
            continue;
        }
        g = u->waiting[waits - 1];
        k = ddp__bl_fill(u, g, next - t, g == before ? 0 : m->alpha);
        t = ddp__bl_send(u, g, k, t, g == before);
        if (u->left[g] == 0) waits--;
        before = g;
    }
    for (i = m->groups - 1; i >= 0; i--)
        if (u->left[i]) t = ddp__bl_send(u, i, u->left[i], t, 0);
    return ddp__bl_forward(m, NULL);
}

/* A limit for profiles far larger than any model, the same on every machine: a few seconds. */
enum { DDP__BL_MOST_VISITS = 100000000 };

/* Searches from the output side: could a group have been sent completely if it had gone before the groups
 * that became ready in the meantime? */
static void ddp__bl_us_search(ddp__bl_us *u)
{
    ddp__bl_model *m = u->m;
    double best = ddp__bl_us_run(u), tau, t;
    int g = 0, i, to, own;
    while (g < m->groups - 1 && u->visits < DDP__BL_MOST_VISITS) {
        tau = u->first[g] + m->group[g].c;
        for (to = g; to < m->groups - 1 && m->group[to + 1].ready < tau; to++) {
        }
        if (to > g) {
            own = m->priority[g]; /* g takes the place of `to`, which moves back by one with those in
                                     between */
            m->priority[g] = m->priority[to];
            for (i = g + 1; i <= to; i++) m->priority[i]++;
            t = ddp__bl_us_run(u);
            if (t < best * (1 - 1e-12)) { /* more than a rounding error */
                best = t;
                g = to + 1;
                continue;
            }
            for (i = g + 1; i <= to; i++) m->priority[i]--;
            m->priority[g] = own;
            ddp__bl_us_run(u); /* restores u->first */
        }
        g++;
    }
}

static ddp_status ddp__bl_usbyte(ddp__bl_model *m, ddp_error *err)
{
    ddp_interval *log = m->log;
    size_t n = (size_t)m->groups;
    ddp__bl_us u;
    u.m = m;
    u.visits = 0;
    u.left = ddp__ints(&m->room, n);
    u.waiting = ddp__ints(&m->room, n);
    u.first = ddp__doubles(&m->room, n);
    DDP__TRY(ddp__scratch_check(&m->room, m->groups, "buckets", err));
    m->log = NULL;
    ddp__bl_us_search(&u);
    m->log = log;
    ddp__bl_us_run(&u);
    return DDP_OK;
}

/* Decides everything that does not depend on time: which rows are merged or cut, and their priorities. */
static ddp_status ddp__bl_shape(ddp__bl_model *m, ddp_error *err)
{
    ddp_scheme s = m->o->scheme;
    int joins = m->o->bucket_bytes > 0 && (s == DDP_SCHEME_WFBP || s == DDP_SCHEME_ASCWFBP);
    /* merged or overlapping startups can be saved: all but one of the messages as given */
    if ((joins || s == DDP_SCHEME_MGWFBP || s == DDP_SCHEME_ASCWFBP) && m->groups > 1)
        m->bound -= (m->groups - 1) * m->alpha;
    if (joins) return ddp__bl_buckets(m, err);
    if (s == DDP_SCHEME_MGWFBP) ddp__bl_merge(m);
    if (s != DDP_SCHEME_BYTESCHEDULER && s != DDP_SCHEME_USBYTE) return DDP_OK;
    for (int i = 0; i < m->groups; i++) m->priority[i] = m->groups - 1 - i;
    return ddp__bl_cut(m, err);
}

static ddp_status ddp__bl_run(ddp__bl_model *m, ddp_timeline *t, ddp_error *err)
{
    const ddp_scheme s = m->o->scheme;
    size_t n = (size_t)m->p->layers, room = 2 * n;
    double end = 0;

    DDP__TRY(ddp__bl_shape(m, err));
    for (int i = 0; i < m->groups; i++) room += (size_t)m->parts[i];
    t->parts = (int *)ddp__calloc(n, sizeof *t->parts);
    t->priority = (int *)ddp__calloc(n, sizeof *t->priority);
    t->interval = (ddp_interval *)ddp__calloc(room, sizeof *t->interval);
    if (!t->parts || !t->priority || !t->interval)
        return ddp__fail(err, DDP_MEMORY, "no memory for a timeline of %zu intervals", room);
    for (int l = m->p->layers - 1; l >= 0; l--) {
        const ddp_interval x = {DDP_INTERVAL_BACKWARD, l, l, 0, 1, 0, end, end + m->p->backward_s[l]};
        t->interval[m->logged++] = x;
        end = x.end_s;
    }
    m->log = t->interval;
    m->logged = 2 * m->p->layers;
    if (s == DDP_SCHEME_ASCWFBP)
        DDP__TRY(ddp__bl_shared(m, err));
    else if (s == DDP_SCHEME_BYTESCHEDULER)
        DDP__TRY(ddp__bl_bytescheduler(m, err));
    else if (s == DDP_SCHEME_USBYTE)
        DDP__TRY(ddp__bl_usbyte(m, err));
    else
        ddp__bl_fifo(m, s == DDP_SCHEME_SSGD ? m->backward : 0);
    t->iteration_s = ddp__bl_forward(m, t->interval + n);
    for (int i = 0; i < m->groups; i++)
        for (int l = m->group[i].first; l <= m->group[i].last; l++) {
            t->parts[l] = m->p->comm_s[l] > 0 ? m->parts[i] : 0;
            t->priority[l] = m->priority[i];
        }
    t->scheme = s;
    t->buckets = m->p->layers;
    t->intervals = m->logged;
    t->lower_bound_s = fmax(m->forward + m->backward, m->bound);
    /* the sums are added in a different order: an attained bound must not exceed the iteration by an ulp */
    if (t->lower_bound_s > t->iteration_s && t->lower_bound_s < t->iteration_s * (1 + 1e-12))
        t->lower_bound_s = t->iteration_s;
    return DDP_OK;
}

ddp_status ddp_plan_timeline(const ddp_profile *p, const ddp_timeline_options *o, ddp_timeline *out,
                             ddp_error *err)
{
    ddp__bl_model m = DDP__ZEROS;
    ddp_timeline t = DDP__ZEROS;
    ddp_status status;
    if (!o || !out) return ddp__fail(err, DDP_ARG, "ddp_plan_timeline: options and out must not be NULL");
    DDP__TRY(ddp_profile_check(p, err));
    DDP__TRY(ddp__bl_check(o, err));
    status = ddp__bl_open(&m, p, o, err);
    if (status == DDP_OK) status = ddp__bl_run(&m, &t, err);
    ddp__scratch_free(&m.room);
    if (status == DDP_OK)
        *out = t;
    else
        ddp_timeline_free(&t);
    return status;
}

ddp_status ddp_timeline_exposed(const ddp_profile *p, const ddp_timeline *t, double latency_s, double *each_s,
                                double *all_s, ddp_error *err)
{
    double backward = 0, forward = 0, last = 0, end, *arrive;

    DDP__TRY(ddp_profile_check(p, err));
    if (!t || t->buckets != p->layers || !each_s || !all_s)
        return ddp__fail(err, DDP_ARG,
                         "the timeline has %d rows, but the profile has %d; use the profile of the timeline",
                         t ? t->buckets : 0, p->layers);
    if (!ddp__within(latency_s, 0, DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the latency is %g s; it must be at least 0", latency_s);
    arrive = (double *)ddp__calloc((size_t)p->layers, sizeof *arrive);
    if (!arrive) return ddp__fail(err, DDP_MEMORY, "out of memory for %d layers", p->layers);
    for (int i = 0; i < t->intervals; i++) {
        const ddp_interval *x = &t->interval[i];
        for (int l = x->bucket; l <= x->last && x->kind == DDP_INTERVAL_LINK; l++)
            if (x->end_s + latency_s > arrive[l]) arrive[l] = x->end_s + latency_s;
    }
    for (int l = 0; l < p->layers; l++) {
        backward += p->backward_s[l];
        forward += p->forward_s ? p->forward_s[l] : 0;
        if (arrive[l] > last) last = arrive[l];
    }
    end = backward;
    for (int l = 0; l < p->layers; l++)
        end = (arrive[l] > end ? arrive[l] : end) + (p->forward_s ? p->forward_s[l] : 0);
    *each_s = end - backward - forward;
    *all_s = last > backward ? last - backward : 0;
    DDP_FREE(arrive);
    return DDP_OK;
}
