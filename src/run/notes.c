/* What changed while a run went on, for those who look. */
#include "base/platform.h"
#include "base/tools.h"
#include "run/context.h"

void ddp__note_add(ddp_ctx *d, ddp_note_kind kind, int rank, double before, double now)
{
    ddp_note *n = &d->note[d->notes++ % DDP__NOTES];

    n->kind = kind;
    n->step = d->step;
    n->time_s = ddp_now();
    n->rank = rank;
    n->workers = ddp_workers(d);
    n->before = before;
    n->now = now;
}

int ddp__note_members(ddp_ctx *d)
{
    uint64_t live, changed;
    int r;

    if (!d->cfg.min_world) return 0;
    live = ddp__live(d);
    changed = d->noted_live ? live ^ d->noted_live : 0;
    for (r = 0; changed && r < d->world; r++)
        if (changed >> r & 1) ddp__note_add(d, live >> r & 1 ? DDP_NOTE_JOINED : DDP_NOTE_LOST, r, 0, 0);
    d->noted_live = live;
    return changed != 0;
}

int ddp_notes(const ddp_ctx *d, ddp_note *out, int room)
{
    long from, n;

    if (!d || !out || room < 1) return 0;
    n = d->notes < (long)DDP__NOTES ? d->notes : (long)DDP__NOTES;
    if (n > room) n = room;
    for (from = 0; from < n; from++) out[from] = d->note[(d->notes - n + from) % DDP__NOTES];
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
        snprintf(out, room, "rank %d computes %.1f x slower than the median (%.1f ms against %.1f ms)",
                 n->rank, part + 1, 1e3 * n->now, 1e3 * n->before);
        break;
    case DDP_NOTE_EVEN:
        snprintf(out, room, "rank %d computes as fast as the others again (%.1f ms)", n->rank, 1e3 * n->now);
        break;
    case DDP_NOTE_REPLAN:
        snprintf(out, room, "averaging a layer takes %.1f ms, %.0f %% %s than planned for: planned "
                 "again", 1e3 * n->now, 100 * fabs(part), part < 0 ? "less" : "longer");
        break;
    case DDP_NOTE_LOST:
    case DDP_NOTE_JOINED:
        snprintf(out, room, "rank %d %s, %d worker%s", n->rank, n->kind == DDP_NOTE_LOST ? "was lost" : "joined",
                 n->workers, n->workers == 1 ? "" : "s");
        break;
    }
}
