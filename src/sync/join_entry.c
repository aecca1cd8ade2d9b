/* The first operations of an epoch with a newcomer: it learns the step, the learning rate, the
 * profile and the plan, and what all hold alike: parameters and state under ssgd and wfbp, what
 * changes are counted from where strategies average as int8 blocks. */
#include "base/platform.h"
#include "base/clock.h"
#include "sync/device.h"
#include "sync/join.h"

enum { DDP__E_VALID, DDP__E_LR, DDP__E_MEASURED, DDP__E_PLAN, DDP__E_STEP,
       DDP__E_TAKEN = DDP__E_STEP + DDP__WORDS, DDP__E_SIZE = DDP__E_TAKEN + DDP__WORDS };

static ddp_status ddp__entry_broadcast(ddp_ctx *d, float *x, size_t n, int from, ddp_error *err)
{
    ddp__piece p;

    p.data = x;
    p.count = n;
    return n ? ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, from, err) : DDP_OK;
}

/* What each member says of the run; the lowest that is one gives the rest. */
static ddp_status ddp__entry_words(ddp_ctx *d, int newcomer, float *word, int *from, ddp_error *err)
{
    float *all = (float *)ddp__calloc((size_t)d->world * DDP__E_SIZE, sizeof *all);
    float *own = all ? all + (size_t)d->rank * DDP__E_SIZE : NULL;
    ddp__piece p;
    ddp_status s;
    int r = 0;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory for an entry");
    if (d->rank != newcomer) {
        own[DDP__E_VALID] = 1;
        own[DDP__E_LR] = d->lr;
        own[DDP__E_MEASURED] = (float)d->measured;
        own[DDP__E_PLAN] = (float)(d->plan.layers ? d->plan.period : 0);
        ddp__pack64(own + DDP__E_STEP, (uint64_t)d->step);
        ddp__pack64(own + DDP__E_TAKEN, (uint64_t)d->taken);
    }
    p.data = all;
    p.count = (size_t)d->world * DDP__E_SIZE;
    s = ddp__blocking(d, DDP__ALL_GATHER, &p, 1, 1, 0, err);
    while (r + 1 < d->world && all[(size_t)r * DDP__E_SIZE] == 0.0f) r++;
    memcpy(word, all + (size_t)r * DDP__E_SIZE, DDP__E_SIZE * sizeof *word);
    *from = r;
    DDP_FREE(all);
    if (s == DDP_OK && word[DDP__E_VALID] == 0.0f)
        s = ddp__fail(err, DDP_PEER_LOST, "all members were lost while rank %d joined", newcomer);
    return s;
}

/* step_of and fill of the plan in force. */
static ddp_status ddp__entry_plan(ddp_ctx *d, int period, int from, ddp_error *err)
{
    size_t L = (size_t)d->layers, n = L + L * (size_t)period, i;
    float *x;
    ddp_status s;

    if (!period) return DDP_OK;
    if (d->plan.layers && d->plan.period != period) ddp_plan_free(&d->plan);
    if (!d->plan.layers) DDP__TRY(ddp_plan_new(d->layers, period, &d->plan, err));
    x = (float *)ddp__calloc(n, sizeof *x);
    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory for the plan of %d layers", d->layers);
    for (i = 0; i < L; i++) x[i] = (float)d->plan.step_of[i];
    for (; i < n; i++) x[i] = (float)d->plan.fill[i - L];
    s = ddp__entry_broadcast(d, x, n, from, err);
    for (i = 0; i < L; i++) d->plan.step_of[i] = (int)x[i];
    for (; i < n; i++) d->plan.fill[i - L] = (unsigned char)x[i];
    DDP_FREE(x);
    return s;
}

/* The measured profile and link, bit for bit: 64 bits travel as four floats. */
static ddp_status ddp__entry_profile(ddp_ctx *d, int from, int newcomer, ddp_error *err)
{
    size_t L = (size_t)d->layers, n = 2 * L + 2, i;
    double *x = (double *)ddp__calloc(n, sizeof *x);
    float *words = (float *)ddp__calloc(n * DDP__WORDS, sizeof *words);
    ddp_status s = DDP_OK;

    if (!x || !words) s = ddp__fail(err, DDP_MEMORY, "out of memory for a profile");
    if (s == DDP_OK && d->rank == newcomer) s = ddp__profile_blank(d, err);
    if (s == DDP_OK) {
        memcpy(x, d->profile.forward_s, L * sizeof *x);
        memcpy(x + L, d->profile.backward_s, L * sizeof *x);
        x[2 * L] = d->link.alpha_s;
        x[2 * L + 1] = d->link.beta_s;
        for (i = 0; i < n; i++) {
            uint64_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            ddp__pack64(words + i * DDP__WORDS, bits);
        }
        s = ddp__entry_broadcast(d, words, n * DDP__WORDS, from, err);
    }
    if (s == DDP_OK) {
        for (i = 0; i < n; i++) {
            uint64_t bits = ddp__unpack64(words + i * DDP__WORDS);
            memcpy(&x[i], &bits, sizeof bits);
        }
        memcpy(d->profile.forward_s, x, L * sizeof *x);
        memcpy(d->profile.backward_s, x + L, L * sizeof *x);
        d->link.alpha_s = x[2 * L];
        d->link.beta_s = x[2 * L + 1];
    }
    if (x) DDP_FREE(x);
    if (words) DDP_FREE(words);
    return s;
}

/* Synchronous strategies: a clone of some steps ago would never meet the others again. */
static ddp_status ddp__entry_values(ddp_ctx *d, int from, ddp_error *err)
{
    int l, b;

    for (l = 0; l < d->layers; l++) {
        ddp__unit *u = &d->unit[l];
        float words[DDP__WORDS];
        for (b = 0; b < u->blocks; b++)
            DDP__TRY(ddp__layer_blocking(d, 0, DDP__BROADCAST, u->block[b].params, u->block[b].count,
                                         1, from, err));
        if (u->state_count)
            DDP__TRY(ddp__layer_blocking(d, 0, DDP__BROADCAST, u->state, u->state_count, 1, from,
                                         err));
        ddp__pack64(words, (uint64_t)u->updates);
        DDP__TRY(ddp__entry_broadcast(d, words, DDP__WORDS, from, err));
        u->updates = (long)ddp__unpack64(words);
    }
    ddp__log(&d->host.log, DDP_LOG_INFO,
             "rank %d: step %ld: parameters and optimizer state are those of rank %d", d->rank,
             d->step, from);
    return DDP_OK;
}

/* The layers' last averages, which were others when the clone was taken. */
static ddp_status ddp__entry_bases(ddp_ctx *d, int from, ddp_error *err)
{
    int l;

    for (l = 0; l < d->layers; l++)
        if (d->unit[l].base)
            DDP__TRY(ddp__entry_broadcast(d, d->unit[l].base, d->unit[l].trained, from, err));
    return DDP_OK;
}

ddp_status ddp__join_entry(ddp_ctx *d, int newcomer, ddp_error *err)
{
    float word[DDP__E_SIZE];
    int from = 0, measured;

    DDP__TRY(ddp__entry_words(d, newcomer, word, &from, err));
    measured = word[DDP__E_MEASURED] != 0.0f;
    if (d->rank == newcomer) {
        d->step = (long)ddp__unpack64(word + DDP__E_STEP);
        d->taken = (int64_t)ddp__unpack64(word + DDP__E_TAKEN);
        d->lr = word[DDP__E_LR];
        d->measured = measured;
        d->plan_final = 1;
        d->drift_ticket = -1;
    }
    DDP__TRY(ddp__entry_plan(d, (int)word[DDP__E_PLAN], from, err));
    if (d->strategy->id == DDP_SSGD || d->strategy->id == DDP_WFBP)
        DDP__TRY(ddp__entry_values(d, from, err));
    DDP__TRY(ddp__entry_bases(d, from, err));
    if (!measured) return DDP_OK;
    DDP__TRY(ddp__entry_profile(d, from, newcomer, err));
    return d->strategy->partial ? ddp__plan_again(d, err) : DDP_OK;
}
