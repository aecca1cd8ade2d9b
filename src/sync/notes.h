/* What changed while a run went on: who is slow, when the plan followed the link, who came and went. */
#ifndef DDP_SYNC_NOTES_H
#define DDP_SYNC_NOTES_H

#include "sync/session.h"

typedef enum ddp_note_kind {
    DDP_NOTE_SLOW,   /* rank computes `now` seconds a step, the median rank `before` */
    DDP_NOTE_EVEN,   /* the rank that was slow is slow no more */
    DDP_NOTE_REPLAN, /* the link drifted: averaging a mean layer took `before` seconds when the plan
                        was made and takes `now`; a new plan was made */
    DDP_NOTE_LOST,   /* rank is no longer a worker */
    DDP_NOTE_JOINED  /* rank is a worker again */
} ddp_note_kind;

typedef struct ddp_note {
    ddp_note_kind kind;
    long   step;        /* so many steps were done */
    double time_s;      /* ddp_now() */
    int    rank;        /* -1 where it is about no rank */
    int    workers;     /* live, from then on */
    double before, now; /* seconds; 0 where the kind has none */
} ddp_note;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_notes - the notes of this context, the newest `room` of the last 64, oldest first; returns
 * how many were copied. Slow ranks are noted as they are logged: from 1.25 times the median on, and
 * again when that changes by a fifth. On the context's thread, between hooks.
 *
 * ddp_note_name - "slow", "even", "replan", "lost" or "joined"; "?" for what is none.
 * ddp_note_text - the note as one sentence without a full stop, cut where out has no more room. */
DDP_API int         ddp_notes(const ddp_ctx *d, ddp_note *out, int room);
DDP_API const char *ddp_note_name(ddp_note_kind kind);
DDP_API void        ddp_note_text(const ddp_note *note, char *out, size_t room);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_NOTES_H */
