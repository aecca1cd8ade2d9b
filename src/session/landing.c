/* Moves the steps in which averages of layers are needed, for strategies whose averages span several
 * steps. Half a period after a plan was made or moved, the ranks exchange how late averages arrived. They
 * read the result when it has arrived, at most a period later. Every rank then moves the plan by the
 * largest value of all ranks. */
#include "context/context.h"
#include "exchange/events.h"
#include "exchange/post.h"
#include "measure/arrivals.h"
#include "measure/measure.h"
#include "plan/partial/partial.h"
#include "session/part.h"
#include "session/planning.h"

/* If the measured time of a period differs by at most this share from the time that its transfers occupy
 * the link by the profile, the link limits the step time. Averages that are needed later do not shorten
 * the period. */
static const double ddp__link_full = 0.05;

/* Units of a wait in the exchange: parts of a step, for each step. Waits of ranks count as equal if they
 * differ by at most EQUAL, and as none below LEAST. */
enum { DDP__WAIT_PARTS = 4096, DDP__WAIT_EQUAL = 50, DDP__WAIT_LEAST = 20 };

/* In an elastic world a joining worker does not know the exchanges and the counts of earlier periods, which
 * decide about a move, so nothing is moved. */
static int ddp__landing_moves(const ddp_ctx *d)
{
    return ddp__ops(d)->plan_adapt && ddp__engine_of(d, 0) && !ddp__has_nccl(d) &&
           !ddp__cfg(d)->elastic.min_world && !ddp__cfg(d)->elastic.join;
}

ddp_status ddp__landing_open(ddp_ctx *d, ddp_error *err)
{
    ddp__scratch *lists = ddp__lists_of(d);
    const size_t L = (size_t)ddp__layers(d);

    d->session->landing.ticket = -1;
    if (!ddp__landing_moves(d)) return DDP_OK;
    d->session->landing.word =
        (signed char *)ddp__scratch_take(lists, (size_t)ddp__team_size(d), L + sizeof(int16_t));
    d->session->landing.late = ddp__ints(lists, L);
    d->session->landing.moved = ddp__ints(lists, L);
    if (!ddp__scratch_failed(lists)) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory for the arrivals of %d layers", ddp__layers(d));
}

/* Returns the compute time of a step by the profile. *link_s receives the time that a period's transfers
 * occupy the link. */
static double ddp__landing_times(const ddp_ctx *d, double *link_s)
{
    const ddp_profile *p = &d->session->profile;
    double step = p->between_s;

    *link_s = 0;
    for (int l = 0; l < p->layers; l++) {
        step += (p->forward_s ? p->forward_s[l] : 0) + p->backward_s[l];
        *link_s += p->comm_s[l] > 0 ? p->comm_s[l] + p->gap_s : 0;
    }
    return step;
}

/* Returns the steps after which the exchange has arrived on every rank: all messages of a period may be ahead
 * of it, and the delay is doubled. pass_s: one forward and backward pass, which all ranks have from the same
 * profile. The time of the other micro-batches depends on the rank's own updates, and the ranks would choose
 * different steps. */
static long ddp__landing_takes(const ddp_ctx *d, double pass_s, double link_s)
{
    const long period = ddp__cfg(d)->period;
    const double steps = pass_s > 0 ? ceil((link_s + 2 * d->session->profile.alpha_s) / pass_s) + 1 : 1;

    return steps < (double)period ? (long)steps : period;
}

static int ddp__landing_link_full(const ddp_ctx *d, double steps, double link_s)
{
    const double took_s = ddp_now() - d->session->landing.asked,
                 busy_s = link_s * steps / ddp__cfg(d)->period;

    return fabs(took_s - busy_s) <= ddp__link_full * took_s;
}

/* Each rank sends, for each layer, how late its average arrived, and how long the rank waited. */
static ddp_status ddp__landing_ask(ddp_ctx *d, ddp_error *err)
{
    ddp__landing *g = &d->session->landing;
    const size_t L = (size_t)ddp__layers(d), each = L + sizeof(int16_t),
                 all = (size_t)ddp__team_size(d) * each;
    const double steps = (double)(ddp_step(d) - g->asked_step);
    signed char *own = g->word + (size_t)ddp__team_place(d) * each;
    double link_s, waited_s, step_s = ddp__landing_times(d, &link_s);
    int16_t waited;
    ddp_piece p;
    ddp_message m = ddp__own_word(d, &p, DDP_ALL_GATHER, ddp__team_group(d), g->word, all);

    memset(g->word, (int)DDP_ARRIVAL_UNKNOWN, all); /* a lost rank sends no message */
    waited_s = ddp__arrivals_take(d, step_s, own);
    waited = (int16_t)(step_s > 0 ? fmin(waited_s / steps / step_s * (double)DDP__WAIT_PARTS, INT16_MAX) : 0);
    memcpy(own + L, &waited, sizeof waited);
    if (ddp__landing_link_full(d, steps, link_s)) memset(own, (int)DDP_ARRIVAL_UNKNOWN, L);
    g->asked = ddp_now();
    g->asked_step = ddp_step(d);
    g->due = ddp_step(d) + ddp__landing_takes(d, step_s - d->session->profile.between_s, link_s);
    m.priority = 0;
    return ddp__post(d, &m, 0, &g->ticket, err);
}

/* Returns the wait of a rank of the team, negative if it is lost. */
static int ddp__landing_waited(const ddp_ctx *d, int r)
{
    const size_t L = (size_t)ddp__layers(d);
    int16_t waited;

    memcpy(&waited, d->session->landing.word + (size_t)r * (L + sizeof waited) + L, sizeof waited);
    return waited;
}

/* Sets late[] to the largest lateness of the ranks that wait least, because only their waits make all steps
 * longer: other ranks also wait for them. Returns their wait. */
static int ddp__landing_late(const ddp_ctx *d, int *late)
{
    const int L = ddp__layers(d), ranks = ddp__team_size(d);
    int least = INT16_MAX;

    for (int r = 0; r < ranks; r++)
        if (ddp__landing_waited(d, r) >= 0 && ddp__landing_waited(d, r) < least)
            least = ddp__landing_waited(d, r);
    for (int l = 0; l < L; l++) {
        int all = (int)DDP_ARRIVAL_UNKNOWN;
        late[l] = all;
        for (int r = 0; r < ranks; r++) {
            const int x = d->session->landing.word[r * (L + (int)sizeof(int16_t)) + l],
                      waited = ddp__landing_waited(d, r);
            all = x > all ? x : all;
            if (waited >= 0 && waited <= least + DDP__WAIT_EQUAL && x > late[l]) late[l] = x;
        }
        if (late[l] < 0) late[l] = all < 0 ? all : 0;
    }
    return least;
}

/* Returns 1 if layers that are late may be needed later: the ranks wait, and the last move made their waits
 * shorter. Otherwise the link limits the step time, and no layer is needed later until there is another
 * plan. */
static int ddp__landing_helps(ddp_ctx *d, int least)
{
    ddp__landing *g = &d->session->landing;

    if (g->moved_later && least >= g->least - g->least / 32) g->futile = 1;
    g->moved_later = 0;
    g->least = least;
    return least >= DDP__WAIT_LEAST && !g->futile;
}

/* "step 40: 3 of 26 layers are applied later, by up to 2 steps: their averages arrived late" */
static void ddp__landing_tell(ddp_ctx *d, int layers, int most)
{
    if (!ddp__leads(d)) return;
    ddp__log(ddp__log_of(d), DDP_LOG_INFO, "step %ld: %d of %d layers are applied %s, by up to %d step%s%s",
             ddp_step(d), layers, ddp__layers(d), most > 0 ? "later" : "earlier", abs(most),
             abs(most) == 1 ? "" : "s", most > 0 ? ": their averages arrived late" : "");
}

static ddp_status ddp__landing_read(ddp_ctx *d)
{
    const int L = ddp__layers(d);
    ddp__landing *g = &d->session->landing;
    int layers[2] = {0, 0}, most[2] = {0, 0};
    const int helps = ddp__landing_helps(d, ddp__landing_late(d, g->late));

    for (int l = 0; l < L; l++) {
        g->moved[l] = 0;
        if (g->late[l] > 0 && !helps) g->late[l] = 0;
    }
    DDP__TRY(DDP__EVENT(d, plan_adapt, (d, ddp__self(d), g->late, &d->session->plan, g->moved)));
    for (int l = 0; l < L; l++) {
        const int earlier = g->moved[l] < 0;
        if (!g->moved[l]) continue;
        ddp__arrivals_restart(d, l);
        layers[earlier]++;
        if (abs(g->moved[l]) > abs(most[earlier])) most[earlier] = g->moved[l];
    }
    g->moved_later = layers[0] > 0;
    for (int k = 0; k < 2; k++)
        if (layers[k]) ddp__landing_tell(d, layers[k], most[k]);
    ddp__stats(d)->landing_moves += layers[0] + layers[1] > 0;
    return DDP_OK;
}

/* Completes the exchange in flight. */
static ddp_status ddp__landing_wait(ddp_ctx *d, ddp_error *err)
{
    const long ticket = d->session->landing.ticket;

    d->session->landing.ticket = -1;
    return ticket < 0 ? DDP_OK : ddp__post_wait(d, 0, ticket, err);
}

/* Half a period, so that a layer that is late is needed later within two periods. */
static long ddp__landing_every(const ddp_ctx *d) { return (ddp__cfg(d)->period + 1) / 2; }

ddp_status ddp__landing_step(ddp_ctx *d, ddp_error *err)
{
    ddp__landing *g = &d->session->landing;

    if (!ddp__landing_moves(d) || !ddp__follows(d)) return DDP_OK;
    ddp__arrivals_step(d);
    if (g->plans != d->session->plans) { /* a message in flight is about another plan */
        DDP__TRY(ddp__landing_wait(d, err));
        g->plans = d->session->plans;
        g->due = ddp_step(d) + ddp__landing_every(d);
        g->asked = ddp_now();
        g->asked_step = ddp_step(d);
        g->moved_later = g->futile = 0;
    }
    if (ddp_step(d) < g->due) return DDP_OK;
    if (g->ticket < 0) return ddp__landing_ask(d, err);
    DDP__TRY(ddp__landing_wait(d, err));
    g->due = ddp_step(d) + ddp__landing_every(d);
    return ddp__landing_read(d);
}
