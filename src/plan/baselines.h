/* Shared by the baselines: one profile reduced to what travels, and the log of one iteration. */
#ifndef DDP_PLAN_BASELINES_H
#define DDP_PLAN_BASELINES_H

#include "plan/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One message: rows first..last of the profile as one operation. */
typedef struct ddp__bl_group {
    int    first, last;
    double ready; /* the end of backward of row first, from the start of backward */
    double c;     /* on the link, startup included */
} ddp__bl_group;

/* A profile checked and summed up. Times in seconds from the start of backward. */
typedef struct ddp__bl_model {
    const ddp_profile          *p;
    const ddp_timeline_options *o;
    int            rows, groups; /* groups: what is sent */
    ddp__bl_group *group;        /* [groups] in order of backward: the output side first */
    int           *parts;        /* [groups] equal parts of each */
    double        *size;         /* [groups] of one part, in partitions: at most 1 */
    double        *arrive;       /* [rows] when a row's forward may begin for its gradient's sake */
    int           *priority;     /* [groups] 0 = first */
    double         alpha;        /* startup contained in every group's c */
    double         forward, backward;
    double         bound;
    int            sized; /* some group has params */
} ddp__bl_model;

/* Link operations as they begin; room for all is reserved ahead. NULL where nobody looks. */
typedef struct ddp__bl_log {
    ddp_interval *at;
    int           count;
} ddp__bl_log;

/* Notes an operation on lane 0; NULL without a log. */
DDP_LIB ddp_interval *ddp__bl_note(ddp__bl_log *log, const ddp__bl_group *g, int part, int parts,
                                   double begin, double end);

/* Fusion. m->group holds one group per sending row; these join some of them in place.
 * buckets: DDP's rule, needs params. merge: MG-WFBP's rule. */
DDP_LIB ddp_status ddp__bl_buckets(ddp__bl_model *m, ddp_error *err);
DDP_LIB void       ddp__bl_merge(ddp__bl_model *m);

/* The link, filling m->arrive. fifo: one operation at a time in the order of groups, none before
 * `from`. shared: up to `most` at once by processor sharing. Forward waits for all of them. */
DDP_LIB void       ddp__bl_fifo(ddp__bl_model *m, double from, ddp__bl_log *log);
DDP_LIB ddp_status ddp__bl_shared(ddp__bl_model *m, long most, ddp__bl_log *log, ddp_error *err);

/* Cuts every group into parts as the options say; at most DDP__BL_MOST_PARTS in all. */
enum { DDP__BL_MOST_PARTS = 1000000 };
DDP_LIB ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err);

/* Priority schemes, after ddp__bl_cut; a row's forward waits for its own parts only. */
DDP_LIB ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err);
DDP_LIB ddp_status ddp__bl_usbyte(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err);

/* The end of the forward pass that begins when backward has ended, row i not before
 * m->arrive[i]. */
DDP_LIB double ddp__bl_forward_end(const ddp__bl_model *m);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_BASELINES_H */
