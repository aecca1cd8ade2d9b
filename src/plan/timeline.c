#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "base/text.h"
#include "plan/baselines.h"

static const char *const ddp__scheme_names[] = {
    "ssgd", "wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte", "deft"};

enum { DDP__SCHEMES = DDP_SCHEME_DEFT + 1 };

const char *ddp_scheme_name(ddp_scheme scheme)
{
    int v = (int)scheme;

    return v >= 0 && v < DDP__SCHEMES ? ddp__scheme_names[v] : "unknown";
}

ddp_status ddp_scheme_named(const char *name, ddp_scheme *out, ddp_error *err)
{
    ddp__text list;
    int i;

    if (!out) return ddp__fail(err, DDP_ARG, "ddp_scheme_named: out is NULL");
    for (i = 0; i < DDP__SCHEMES; i++)
        if (name && !strcmp(name, ddp__scheme_names[i])) {
            *out = (ddp_scheme)i;
            return DDP_OK;
        }
    memset(&list, 0, sizeof list);
    for (i = 0; i < DDP__SCHEMES; i++)
        ddp__text_addf(&list, "%s%s", i ? (i == DDP__SCHEMES - 1 ? " or " : ", ") : "",
                       ddp__scheme_names[i]);
    ddp__fail(err, DDP_ARG, "scheme '%s' is unknown; use %s", name ? name : "",
              list.data ? list.data : "another");
    ddp__text_free(&list);
    return DDP_ARG;
}

void ddp_timeline_free(ddp_timeline *t)
{
    if (!t) return;
    DDP_FREE(t->parts);
    DDP_FREE(t->priority);
    DDP_FREE(t->interval);
    memset(t, 0, sizeof *t);
}

/* ---- options and profile ---- */

static ddp_status ddp__bl_check(const ddp_timeline_options *o, ddp_error *err)
{
    const char *name[] = {"alpha_s", "partition_params", "partition_s", "credit", "bucket_bytes",
                          "first_bucket_bytes"};
    double value[6];
    int i;

    value[0] = o->alpha_s;
    value[1] = o->partition_params;
    value[2] = o->partition_s;
    value[3] = o->credit;
    value[4] = o->bucket_bytes;
    value[5] = o->first_bucket_bytes;
    for (i = 0; i < 6; i++)
        if (!(value[i] >= 0 && value[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "%s is %g; it must be finite and at least 0", name[i],
                             value[i]);
    if (o->operations < 0)
        return ddp__fail(err, DDP_ARG, "operations is %ld; at least 1 must fly, 0 means 4",
                         o->operations);
    if (o->partition_params > 0 && o->partition_s > 0)
        return ddp__fail(err, DDP_ARG,
                         "a partition of %g parameters and of %g s was given; give one of them",
                         o->partition_params, o->partition_s);
    if (o->scheme == DDP_SCHEME_DEFT)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "scheme deft has no timeline of one iteration; use ddp_plan_delayed");
    if ((int)o->scheme < 0 || (int)o->scheme >= DDP__SCHEMES)
        return ddp__fail(err, DDP_ARG, "scheme %d is unknown; use ssgd to usbyte", (int)o->scheme);
    return DDP_OK;
}

static void ddp__bl_close(ddp__bl_model *m)
{
    DDP_FREE(m->group);
    DDP_FREE(m->parts);
    DDP_FREE(m->size);
    DDP_FREE(m->arrive);
    DDP_FREE(m->priority);
}

static ddp_status ddp__bl_open(ddp__bl_model *m, const ddp_profile *p,
                               const ddp_timeline_options *o, ddp_error *err)
{
    size_t n = (size_t)p->layers;
    double comm = 0;
    int l;

    m->p = p;
    m->o = o;
    m->rows = p->layers;
    m->alpha = o->alpha_s + p->alpha_s;
    m->group = (ddp__bl_group *)ddp__calloc(n, sizeof *m->group);
    m->parts = (int *)ddp__calloc(n, sizeof *m->parts);
    m->size = (double *)ddp__calloc(n, sizeof *m->size);
    m->arrive = (double *)ddp__calloc(n, sizeof *m->arrive);
    m->priority = (int *)ddp__calloc(n, sizeof *m->priority);
    if (!m->group || !m->parts || !m->size || !m->arrive || !m->priority)
        return ddp__fail(err, DDP_MEMORY, "no memory for a timeline of %d buckets", p->layers);
    for (l = p->layers - 1; l >= 0; l--) {
        ddp__bl_group *g = &m->group[m->groups];
        if (p->forward_s) m->forward += p->forward_s[l];
        m->backward += p->backward_s[l];
        if (!(p->comm_s[l] > 0)) continue;
        if (p->comm_s[l] < o->alpha_s)
            return ddp__fail(err, DDP_ARG,
                             "bucket %d (%s): comm_s is %g s, shorter than the startup alpha_s of "
                             "%g s that it contains; lower alpha_s",
                             l, p->name && p->name[l] ? p->name[l] : "unnamed", p->comm_s[l],
                             o->alpha_s);
        g->first = g->last = l;
        g->ready = m->backward;
        g->c = p->comm_s[l] + p->alpha_s;
        comm += g->c;
        if (p->params && p->params[l] > 0) m->sized = 1;
        m->parts[m->groups++] = 1;
    }
    for (l = 0; l < m->groups; l++) m->priority[l] = l;
    m->bound = p->backward_s[p->layers - 1] + comm;
    if (!(m->forward + m->backward + comm <= DBL_MAX / 2))
        return ddp__fail(err, DDP_NUMERIC,
                         "the times of the profile add up to more than a double holds; "
                         "times are in seconds");
    return DDP_OK;
}

/* ---- one iteration ---- */

ddp_interval *ddp__bl_note(ddp__bl_log *log, const ddp__bl_group *g, int part, int parts,
                           double begin, double end)
{
    ddp_interval *x;

    if (!log) return NULL;
    x = &log->at[log->count++];
    x->kind = DDP_INTERVAL_LINK;
    x->bucket = g->first;
    x->last = g->last;
    x->part = part;
    x->parts = parts;
    x->lane = 0;
    x->begin_s = begin;
    x->end_s = end;
    return x;
}

double ddp__bl_forward_end(const ddp__bl_model *m)
{
    double t = m->backward;
    int l;

    for (l = 0; l < m->rows; l++) {
        if (t < m->arrive[l]) t = m->arrive[l];
        if (m->p->forward_s) t += m->p->forward_s[l];
    }
    return t;
}

/* Startups that are merged or overlap can be saved: all but one of the messages as given. */
static void ddp__bl_save_startups(ddp__bl_model *m)
{
    if (m->groups > 1) m->bound -= (m->groups - 1) * m->alpha;
}

/* Everything that is decided before anything is sent: who is merged, cut, or goes first. */
static ddp_status ddp__bl_shape(ddp__bl_model *m, ddp_error *err)
{
    ddp_scheme s = m->o->scheme;
    int i;

    switch (s) {
    case DDP_SCHEME_MGWFBP:
        ddp__bl_save_startups(m);
        ddp__bl_merge(m);
        break;
    case DDP_SCHEME_WFBP:
    case DDP_SCHEME_ASCWFBP:
        if (s == DDP_SCHEME_ASCWFBP || m->o->bucket_bytes > 0) ddp__bl_save_startups(m);
        if (m->o->bucket_bytes > 0) return ddp__bl_buckets(m, err);
        break;
    case DDP_SCHEME_BYTESCHEDULER:
    case DDP_SCHEME_USBYTE:
        for (i = 0; i < m->groups; i++) m->priority[i] = m->groups - 1 - i;
        return ddp__bl_cut(m, err);
    case DDP_SCHEME_SSGD:
    case DDP_SCHEME_DEFT:
        break;
    }
    return DDP_OK;
}

static ddp_status ddp__bl_send_all(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    switch (m->o->scheme) {
    case DDP_SCHEME_ASCWFBP:
        return ddp__bl_shared(m, m->o->operations ? m->o->operations : 4, log, err);
    case DDP_SCHEME_BYTESCHEDULER:
        return ddp__bl_bytescheduler(m, log, err);
    case DDP_SCHEME_USBYTE:
        return ddp__bl_usbyte(m, log, err);
    case DDP_SCHEME_SSGD:
    case DDP_SCHEME_WFBP:
    case DDP_SCHEME_MGWFBP:
    case DDP_SCHEME_DEFT:
        break;
    }
    ddp__bl_fifo(m, m->o->scheme == DDP_SCHEME_SSGD ? m->backward : 0, log);
    return DDP_OK;
}

/* Backward and forward of every row, at the first 2 x rows places of the log. */
static void ddp__bl_compute(const ddp__bl_model *m, ddp_interval *at)
{
    double t = 0, f;
    int l;

    for (l = m->rows - 1; l >= 0; l--, at++) {
        at->kind = DDP_INTERVAL_BACKWARD;
        at->bucket = at->last = l;
        at->parts = 1;
        at->begin_s = t;
        t += m->p->backward_s[l];
        at->end_s = t;
    }
    for (l = 0; l < m->rows; l++, at++) {
        f = m->p->forward_s ? m->p->forward_s[l] : 0;
        if (t < m->arrive[l]) t = m->arrive[l];
        at->kind = DDP_INTERVAL_FORWARD;
        at->bucket = at->last = l;
        at->parts = 1;
        at->begin_s = t;
        t += f;
        at->end_s = t;
    }
}

static ddp_status ddp__bl_run(ddp__bl_model *m, ddp_timeline *t, ddp_error *err)
{
    size_t n = (size_t)m->rows, room = 2 * n;
    ddp__bl_log log;
    int i, l;

    DDP__TRY(ddp__bl_shape(m, err));
    for (i = 0; i < m->groups; i++) room += (size_t)m->parts[i];
    t->parts = (int *)ddp__calloc(n, sizeof *t->parts);
    t->priority = (int *)ddp__calloc(n, sizeof *t->priority);
    t->interval = (ddp_interval *)ddp__calloc(room, sizeof *t->interval);
    if (!t->parts || !t->priority || !t->interval)
        return ddp__fail(err, DDP_MEMORY, "no memory for a timeline of %zu intervals", room);
    log.at = t->interval;
    log.count = 2 * m->rows;
    DDP__TRY(ddp__bl_send_all(m, &log, err));
    ddp__bl_compute(m, t->interval);
    for (i = 0; i < m->groups; i++)
        for (l = m->group[i].first; l <= m->group[i].last; l++) {
            t->parts[l] = m->p->comm_s[l] > 0 ? m->parts[i] : 0;
            t->priority[l] = m->priority[i];
        }
    t->scheme = m->o->scheme;
    t->buckets = m->rows;
    t->intervals = log.count;
    t->iteration_s = ddp__bl_forward_end(m);
    t->lower_bound_s = m->forward + m->backward;
    if (t->lower_bound_s < m->bound) t->lower_bound_s = m->bound;
    /* sums in another order: a bound that is attained must not exceed the iteration by an ulp */
    if (t->lower_bound_s > t->iteration_s && t->lower_bound_s < t->iteration_s * (1 + 1e-12))
        t->lower_bound_s = t->iteration_s;
    return DDP_OK;
}

ddp_status ddp_plan_timeline(const ddp_profile *p, const ddp_timeline_options *o,
                             ddp_timeline *out, ddp_error *err)
{
    ddp__bl_model m;
    ddp_timeline t;
    ddp_status status;

    if (!o || !out)
        return ddp__fail(err, DDP_ARG,
                         "ddp_plan_timeline needs options and a place for the result");
    DDP__TRY(ddp_profile_check(p, err));
    DDP__TRY(ddp__bl_check(o, err));
    memset(&m, 0, sizeof m);
    memset(&t, 0, sizeof t);
    status = ddp__bl_open(&m, p, o, err);
    if (status == DDP_OK) status = ddp__bl_run(&m, &t, err);
    ddp__bl_close(&m);
    if (status == DDP_OK) *out = t;
    else ddp_timeline_free(&t);
    return status;
}
