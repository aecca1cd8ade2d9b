/* Records notes about changes during a run, and compares the compute times of the ranks, without waits. A
 * straggler makes all other ranks wait, so wall-clock times cannot identify it. The ranks exchange their
 * times every few periods at low priority, together with the learning rate, because ranks with different
 * schedules differ in no other setting. */
#include "context/clock.h"
#include "context/context.h"
#include "measure/measure.h"
#include "exchange/post.h"
#include "measure/pace.h"

void ddp__note_add(ddp_ctx *d, ddp_note_kind kind, int rank, double before, double now)
{
    const ddp_note n = {kind, ddp_step(d), ddp_now(), rank, ddp_workers(d), before, now};

    d->measure->note[d->measure->notes++ % DDP__NOTES] = n;
}

int ddp__note_members(ddp_ctx *d)
{
    uint64_t live, changed;

    if (!ddp__cfg(d)->elastic.min_world) return 0;
    live = ddp__live(d);
    changed = d->measure->noted_live ? live ^ d->measure->noted_live : 0;
    for (int r = 0; changed && r < ddp_world(d); r++)
        if (changed >> r & 1) ddp__note_add(d, live >> r & 1 ? DDP_NOTE_JOINED : DDP_NOTE_LOST, r, 0, 0);
    d->measure->noted_live = live;
    return changed != 0;
}

int ddp_notes(const ddp_ctx *d, ddp_note *out, int room)
{
    long n = !d || !out ? 0 : d->measure->notes < (long)DDP__NOTES ? d->measure->notes : (long)DDP__NOTES;

    if (n > room) n = room > 0 ? room : 0;
    for (long from = 0; from < n; from++)
        out[from] = d->measure->note[(d->measure->notes - n + from) % DDP__NOTES];
    return (int)n;
}

const char *ddp_note_name(ddp_note_kind kind)
{
    static const char *const names[] = {"slow", "even", "replan", "lost", "joined"};

    return kind >= DDP_NOTE_SLOW && kind <= DDP_NOTE_JOINED ? names[kind] : "?";
}

void ddp_note_text(const ddp_note *n, char *out, size_t room)
{
    double part = n->before > 0 ? n->now / n->before - 1 : 0;

    if (room == 0) return;
    out[0] = 0;
    switch (n->kind) {
    case DDP_NOTE_SLOW:
        ddp__format(out, room, "rank %d computes %.1f x slower than the median (%.1f ms against %.1f ms)",
                    n->rank, part + 1, 1e3 * n->now, 1e3 * n->before);
        break;
    case DDP_NOTE_EVEN:
        ddp__format(out, room, "rank %d computes as fast as the others again (%.1f ms)", n->rank,
                    1e3 * n->now);
        break;
    case DDP_NOTE_REPLAN:
        ddp__format(out, room,
                    "averaging a layer takes %.1f ms, %.0f %% %s than planned for: planned "
                    "again",
                    1e3 * n->now, 100 * fabs(part), part < 0 ? "less" : "longer");
        break;
    case DDP_NOTE_LOST:
    case DDP_NOTE_JOINED:
        snprintf(out, room, "rank %d %s, %d worker%s", n->rank,
                 n->kind == DDP_NOTE_LOST ? "was lost" : "joined", n->workers, n->workers == 1 ? "" : "s");
        break;
    }
}

/* ---- compute times of the ranks ---- */

enum { DDP__PACE_PERIODS = 4 };
static const double ddp__pace_slow = 1.25;  /* ratio from which on a straggler is reported */
static const double ddp__pace_floor = 1e-3; /* minimum difference in seconds: the operating system may take
                                               as much */

/* Returns the median compute time. Of two ranks it is the faster one's, so that the other is compared with
 * it. A lost rank has no time. */
static double ddp__pace_median(ddp_ctx *d)
{
    double *sorted = d->measure->pace_sorted;
    int n = 0;

    for (int r = 0; r < ddp__team_size(d); r++)
        if (d->measure->pace[r].compute_s > 0) sorted[n++] = d->measure->pace[r].compute_s;
    qsort(sorted, (size_t)n, sizeof *sorted, ddp__rising);
    return n ? sorted[(n - 1) / 2] : 0;
}

/* Logs the newest note. All ranks have it, and one of them logs it. */
static void ddp__pace_log(ddp_ctx *d, ddp_log_level level)
{
    char text[DDP_ERROR_TEXT];
    ddp_note note;

    if (!ddp__leads(d) || !ddp_notes(d, &note, 1)) return;
    ddp_note_text(&note, text, sizeof text);
    ddp__log(ddp__log_of(d), level, "step %ld: %s", ddp_step(d), text);
}

/* Adds a note and a log line when a rank becomes a straggler, changes by a fifth, or is no longer a
 * straggler and still in the run. */
static void ddp__pace_tell(ddp_ctx *d, int slowest, double median_s)
{
    double ratio = ddp__stats(d)->slow_ratio, told = d->measure->pace_told;

    if (ratio < ddp__pace_slow || d->measure->pace[slowest].compute_s - median_s < ddp__pace_floor) {
        d->measure->pace_told = 0;
        /* a straggler that was lost is noted as lost */
        if (!(told > 0) || !(d->measure->pace[d->measure->pace_place].present > 0)) return;
        ddp__note_add(d, DDP_NOTE_EVEN, ddp__team_rank(d, d->measure->pace_place), median_s,
                      d->measure->pace[d->measure->pace_place].compute_s);
        ddp__pace_log(d, DDP_LOG_INFO);
        return;
    }
    if (told > 0 && slowest == d->measure->pace_place && fabs(ratio / told - 1) < 0.2) return;
    d->measure->pace_told = ratio;
    d->measure->pace_place = slowest;
    ddp__note_add(d, DDP_NOTE_SLOW, ddp__stats(d)->slowest_rank, median_s,
                  d->measure->pace[slowest].compute_s);
    ddp__pace_log(d, DDP_LOG_WARN);
}

static void ddp__pace_judge(ddp_ctx *d)
{
    double median = ddp__pace_median(d);
    int slowest = 0;

    for (int r = 1; r < ddp__team_size(d); r++)
        if (d->measure->pace[r].compute_s > d->measure->pace[slowest].compute_s) slowest = r;
    if (!(median > 0)) return;
    ddp__stats(d)->slowest_rank = ddp__team_rank(d, slowest);
    ddp__stats(d)->slow_ratio = d->measure->pace[slowest].compute_s / median;
    ddp__stats(d)->median_compute_s = median;
    ddp__pace_tell(d, slowest, median);
}

/* Compares the learning rates of one step. A lost rank has no learning rate. */
static ddp_status ddp__pace_rates(const ddp_ctx *d, ddp_error *err)
{
    const ddp__pace_word *first = d->measure->pace;

    for (int r = 0; r < ddp__team_size(d); r++) {
        const ddp__pace_word *w = &d->measure->pace[r];
        if (!(w->present > 0)) continue;
        if (!(first->present > 0)) first = w;
        if (w->lr < first->lr || w->lr > first->lr)
            return ddp__fail(err, DDP_MISMATCH,
                             "step %ld: rank %d has learning rate %.9g, rank %d has %.9g: start every rank "
                             "with the same schedule, warm-up and number of steps",
                             ddp_step(d) - ddp__cfg(d)->period - 1, ddp__team_rank(d, r), w->lr,
                             ddp__team_rank(d, (int)(first - d->measure->pace)), first->lr);
    }
    return DDP_OK;
}

static ddp_status ddp__pace_send(ddp_ctx *d, ddp_error *err)
{
    ddp_piece p;
    const ddp_message m = ddp__own_word(d, &p, DDP_ALL_GATHER, ddp__team_group(d), d->measure->pace,
                                        (size_t)ddp__team_size(d) * sizeof *d->measure->pace);
    const ddp__pace_word own = {d->measure->compute_sum_s / (double)d->measure->compute_steps,
                                (double)ddp__lr(d), 1};

    memset(d->measure->pace, 0,
           (size_t)ddp__team_size(d) * sizeof *d->measure->pace); /* a rank lost since the last exchange sends
                                                                     no message */
    ddp__stats(d)->compute_s = own.compute_s;
    d->measure->pace[ddp__team_place(d)] = own;
    d->measure->compute_sum_s = 0;
    d->measure->compute_steps = 0;
    return ddp__post(d, &m, 0, &d->measure->pace_ticket, err);
}

/* Posts the exchange in the middle of DDP__PACE_PERIODS periods, and waits for it a period later. By then
 * every rank has passed an average that was posted after it. */
ddp_status ddp__pace_step(ddp_ctx *d, ddp_error *err)
{
    long period = ddp__cfg(d)->period, at = ddp_step(d) % (period * DDP__PACE_PERIODS);

    d->measure->compute_sum_s += ddp__clock_take_computed(d);
    d->measure->compute_steps++;
    if (!ddp__engine_of(d, 0) || (ddp__ops(d)->traits & DDP_OUT_OF_STEP)) {
        ddp__stats(d)->compute_s = d->measure->compute_sum_s / (double)d->measure->compute_steps;
        return DDP_OK;
    }
    if (at == 2 * period && d->measure->pace_ticket < 0) return ddp__pace_send(d, err);
    if (at != 3 * period || d->measure->pace_ticket < 0) return DDP_OK;
    DDP__TRY(ddp__post_wait(d, 0, d->measure->pace_ticket, err));
    d->measure->pace_ticket = -1;
    ddp__pace_judge(d);
    return ddp__pace_rates(d, err);
}

ddp_status ddp__pace_wait(ddp_ctx *d, ddp_error *err)
{
    const long ticket = d->measure->pace_ticket;

    d->measure->pace_ticket = -1;
    return ticket < 0 ? DDP_OK : ddp__post_wait(d, 0, ticket, err);
}
