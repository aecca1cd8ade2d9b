/* Registers the states of the program (ddp_add_state), and passes them to checkpoints and joining workers. */
#include "context/context.h"
#include "session/part.h"
#include "session/keep.h"
#include "session/session.h"

/* A state of the program (ddp_add_state). */
typedef struct ddp__program {
    ddp_program_state of;
    char name[32];
    void *bytes; /* bytes from save, until release */
    int lent;    /* 1 if save has returned bytes, which may be NULL */
    void *kept;  /* of a joining worker: bytes of the clone until it enters, else NULL */
    size_t kept_bytes;
} ddp__program;

DDP_STATIC_ASSERT((int)DDP__PROGRAMS == (int)DDP_PROGRAM_STATES,
                  "a joining worker gets all states of ddp_add_state");
DDP_STATIC_ASSERT(sizeof DDP__PROGRAM - 1 + sizeof((ddp__program *)0)->name <= sizeof((ddp__tensor *)0)->name,
                  "a file has room for the name of a state");

/* Checks a name, which becomes part of a list with commas and of a file. */
static int ddp__program_name_fits(const char *name)
{
    const size_t n = name ? strlen(name) : 0;

    for (size_t i = 0; i < n; i++)
        if (name[i] < ' ' || name[i] > '~' || strchr(",\"\\", name[i])) return 0;
    return n > 0 && n < sizeof((ddp__program *)0)->name;
}

int ddp_add_state(ddp_ctx *d, const ddp_program_state *s)
{
    ddp__program *p;

    DDP__ENTER(d);
    if (!s || !ddp__program_name_fits(s->name))
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_add_state: the name '%.40s' is not one to %d printable ASCII characters without "
            "comma, quote and backslash",
            s && s->name ? s->name : "", (int)sizeof((ddp__program *)0)->name - 1);
    if (!s->save != !s->load)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_add_state: '%s' has %s and no %s: set both functions, or neither if the program "
            "has no state",
            s->name, s->save ? "save" : "load", s->save ? "load" : "save");
    if (ddp__started(d))
        return ddp__ctx_failf(
            d, DDP_USAGE,
            "ddp_add_state: '%s' is too late, training has begun: register it before ddp_set_optimizer",
            s->name);
    for (int i = 0; i < d->session->programs; i++)
        if (!strcmp(d->session->program[i].name, s->name))
            return ddp__ctx_failf(d, DDP_ARG,
                                  "ddp_add_state: '%s' is registered already: choose another name", s->name);
    if (d->session->programs == DDP_PROGRAM_STATES)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_add_state: '%s' is one too many, at most %d states are possible: save several "
            "in one",
            s->name, (int)DDP_PROGRAM_STATES);
    if (!d->session->program)
        d->session->program = (ddp__program *)ddp__scratch_take(ddp__lists_of(d), DDP_PROGRAM_STATES,
                                                                sizeof *d->session->program);
    if (!d->session->program)
        return ddp__ctx_failf(d, DDP_MEMORY, "ddp_add_state: out of memory for '%s'", s->name);
    p = &d->session->program[d->session->programs++];
    snprintf(p->name, sizeof p->name, "%s", s->name);
    p->of = *s;
    p->of.name = p->name;
    return 0;
}

void ddp__program_names(const ddp_ctx *d, char *out)
{
    int n = 0;

    out[0] = 0;
    for (int i = 0; i < d->session->programs; i++) { /* no name has a quotation mark */
        const ddp__program *p = &d->session->program[i];
        n += snprintf(out + n, (size_t)(DDP__PROGRAM_NAMES - n), p->of.early ? "%searly \"%s\"" : "%s%s",
                      i ? ", " : "", p->name);
    }
}

/* ---- the calls ---- */

/* Evaluates the return of a function of the program: it may have called the context, which is an error, or
 * have failed with a reason. */
static ddp_status ddp__program_over(ddp_ctx *d, const ddp__program *p, int code, ddp_error *why,
                                    ddp_error *err)
{
    const char *call = ddp__program_runs(d, NULL);

    if (ddp__error(d)->code) {
        if (err != ddp__error(d)) *err = *ddp__error(d);
        return err->code;
    }
    if (!code) return DDP_OK;
    why->msg[sizeof why->msg - 1] = 0;
    return ddp__fail(err, DDP_FAILED,
                     "rank %d: the %s function of the state '%s' (ddp_add_state) returned %d%s%.300s",
                     ddp_rank(d), call, p->name, code, why->msg[0] ? ": " : "", why->msg);
}

/* ddp__worker.lend */
static ddp_status ddp__program_lend(const ddp__worker *s, ddp__tensor *t, ddp_error *err)
{
    ddp_ctx *d = (ddp_ctx *)s->owner;
    ddp__program *p = &d->session->program[t->l];
    ddp_error why = {DDP_OK, ""};
    void *bytes = NULL;
    size_t size = 0;

    ddp__program_runs(d, "save");
    DDP__TRY(ddp__program_over(d, p, p->of.save(p->of.user, &bytes, &size, &why), &why, err));
    p->bytes = bytes;
    p->lent = 1;
    if (size && !bytes)
        return ddp__fail(err, DDP_ARG, "rank %d: the save function of the state '%s' gave NULL for %zu bytes",
                         ddp_rank(d), p->name, size);
    if (!(t->flags & DDP__WORKER_LENT)) DDP_FREE(t->data);
    t->flags |= DDP__WORKER_LENT;
    t->data = bytes;
    t->count = size;
    return DDP_OK;
}

/* ---- program states in the state of a worker ---- */

ddp_status ddp__programs_list(ddp_ctx *d, ddp__worker *s, int only, ddp_error *err)
{
    /* equal optimizers on all workers need the bytes of the step in which a worker enters */
    const int early = ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS ? 0 : DDP__WORKER_EARLY;
    char name[sizeof((ddp__tensor *)0)->name];

    s->lend = ddp__program_lend;
    for (int i = 0; i < d->session->programs; i++) {
        const ddp__program *p = &d->session->program[i];
        const int flags = p->of.early ? early : 0;
        if (!p->of.save || (flags & only) != only) continue;
        snprintf(name, sizeof name, DDP__PROGRAM "%s", p->name);
        if (!ddp__worker_small(s, name, DDP_ST_U8, 0, 0,
                               DDP__WORKER_OWN | DDP__WORKER_BLOB | DDP__WORKER_PROGRAM | flags))
            return ddp__fail(err, DDP_MEMORY, "out of memory for the state '%s'", p->name);
        s->tensor[s->tensors - 1].l = i;
    }
    return DDP_OK;
}

ddp_status ddp__programs_save(ddp__worker *s, ddp_error *err)
{
    for (int i = 0; i < s->tensors; i++)
        if (s->tensor[i].flags & DDP__WORKER_PROGRAM) DDP__TRY(ddp__program_lend(s, &s->tensor[i], err));
    return DDP_OK;
}

ddp_status ddp__programs_load(ddp_ctx *d, const ddp__worker *s, ddp_error *err)
{
    for (int i = 0; i < s->tensors; i++) {
        const ddp__tensor *t = &s->tensor[i];
        const ddp__program *p;
        ddp_error why = {DDP_OK, ""};
        if (!(t->flags & DDP__WORKER_PROGRAM) || !(t->flags & DDP__WORKER_FOUND)) continue;
        p = &d->session->program[t->l];
        ddp__program_runs(d, "load");
        DDP__TRY(ddp__program_over(d, p, p->of.load(p->of.user, t->data, t->count, &why), &why, err));
    }
    return DDP_OK;
}

void ddp__programs_release(ddp_ctx *d)
{
    for (int i = 0; i < d->session->programs; i++) {
        ddp__program *p = &d->session->program[i];
        if (p->lent && p->of.release) p->of.release(p->of.user, p->bytes);
        p->lent = 0;
        p->bytes = NULL;
    }
}

void ddp__programs_keep(ddp_ctx *d, ddp__worker *s)
{
    ddp__programs_drop(d);
    for (int i = 0; i < s->tensors; i++) {
        ddp__tensor *t = &s->tensor[i];
        if (!(t->flags & DDP__WORKER_PROGRAM)) continue;
        d->session->program[t->l].kept = t->data;
        d->session->program[t->l].kept_bytes = t->count;
        t->data = NULL;
        t->count = 0;
    }
}

void ddp__programs_take(ddp_ctx *d, ddp__worker *s)
{
    for (int i = 0; i < s->tensors; i++) {
        ddp__tensor *t = &s->tensor[i];
        ddp__program *p = t->flags & DDP__WORKER_PROGRAM ? &d->session->program[t->l] : NULL;
        if (!p || !p->kept) continue;
        DDP_FREE(t->data);
        t->data = p->kept;
        t->count = p->kept_bytes;
        t->flags |= DDP__WORKER_FOUND;
        p->kept = NULL;
    }
}

void ddp__programs_drop(ddp_ctx *d)
{
    for (int i = 0; i < d->session->programs; i++) {
        if (d->session->program[i].kept) DDP_FREE(d->session->program[i].kept);
        d->session->program[i].kept = NULL;
    }
}
