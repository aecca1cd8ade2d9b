/* How long an iteration of synchronous training takes under six published ways to send gradients: the
 * baselines that every other planner here is compared with. */
#pragma once

#include "profile/profile.h"

typedef enum ddp_scheme {
    DDP_SCHEME_SSGD,          /* everything after the whole backward */
    DDP_SCHEME_WFBP,          /* each bucket when its backward ends (PyTorch DDP) */
    DDP_SCHEME_MGWFBP,        /* WFBP with buckets merged where that saves startups */
    DDP_SCHEME_ASCWFBP,       /* WFBP with several operations at once */
    DDP_SCHEME_BYTESCHEDULER, /* parts by priority, next to the input first */
    DDP_SCHEME_USBYTE,        /* unequal operations, searched priorities */
    DDP_SCHEME_DEFT           /* not computed here: see ddp_plan_delayed */
} ddp_scheme;

/* All-zero is the default of everything. */
typedef struct ddp_timeline_options {
    ddp_scheme scheme;
    double alpha_s;            /* startup contained in every comm_s, seconds; 0 = none */
    double partition_params;   /* bytescheduler, usbyte: most parameters in a part */
    double partition_s;        /* or longest part on the link, startup included; neither given = 6.5e6
                                      parameters */
    double credit;             /* bytescheduler: in partitions; 0 = 1 */
    long operations;           /* ascwfbp: at most this many at once, K; 0 = 4 */
    double bucket_bytes;       /* wfbp, ascwfbp: rows are tensors, joined until a bucket has
                                    * this many bytes (DDP: 26214400); 0 = rows are buckets */
    double first_bucket_bytes; /* the same for the first bucket; 0 = 1 MiB */
} ddp_timeline_options;

typedef enum ddp_interval_kind {
    DDP_INTERVAL_BACKWARD,
    DDP_INTERVAL_FORWARD,
    DDP_INTERVAL_LINK
} ddp_interval_kind;

/* What is busy from begin_s to end_s; 0 is the start of backward. */
typedef struct ddp_interval {
    ddp_interval_kind kind;
    int bucket, last; /* rows bucket..last of the profile; last > bucket: merged */
    int part, parts;  /* link: parts part .. part+parts-1 of the bucket, else 0, 1 */
    int lane;         /* link: 0.. for operations at once */
    double begin_s, end_s;
} ddp_interval;

/* One steady iteration: backward, then the forward that waits for its gradients.
 * Owned by the caller of ddp_plan_timeline; ddp_timeline_free. */
typedef struct ddp_timeline {
    ddp_scheme scheme;
    int buckets; /* rows of the profile */
    double iteration_s;
    double lower_bound_s; /* see below */
    int *parts;           /* [buckets] parts of each (1 where it is never cut, 0: no comm) */
    int *priority;        /* [buckets] 0 = served first among those that are ready */
    int intervals;
    ddp_interval *interval; /* [intervals] backward, forward, then the link, each by begin */
} ddp_timeline;

/* ddp_plan_timeline - one steady iteration of a scheme, by discrete events.
 *
 * Rows of the profile are buckets (or tensors, see bucket_bytes); row 0 is next to the input. One link, first
 * in first out, an operation in flight is never interrupted. Let c_i be comm_s[i] with startup: o->alpha_s is
 * part of comm_s, p->alpha_s and p->gap_s come on top of it, and all keep the link busy (a measured comm_s is
 * all occupancy, alpha 0). Below, alpha is their sum. A row with comm_s 0 sends nothing. T_f, T_b, T_c are
 * sums over the rows, ready_i is the end of backward of row i.
 *
 *   ssgd           T_f + T_b + T_c
 *   wfbp           e_i = max(e_{i+1}, ready_i) + c_i; max(T_b, e_0) + T_f. Launched strictly by row. With
 *                  bucket_bytes, rows are joined as DDP does: from the output side, closed when the size
 *                  reaches the limit; a row is never split (4 bytes a parameter); joined rows pay one
 *                  startup.
 *   mgwfbp         row l joins row l-1 if ready_{l-1} comes before the end of l and either l would have to
 *                  wait anyway or waiting costs less than alpha (MG-WFBP's repository)
 *   ascwfbp        launched by row, at most K in flight; each first spends alpha without using bandwidth (a
 *                  gap uses it), then all share the link equally. K = 1 or alpha = 0 is WFBP; it is never
 *                  slower. The original also chooses a fusion; here groups are given.
 *   bytescheduler  every row in k equal parts of at most a partition, queue by (row, part); a part is
 *                  committed to the link while credit > 0. A row's forward waits for its parts only. The
 *                  repository's credit is 4 partitions; 1 keeps priority best.
 *   usbyte         blocks as bytescheduler's parts. Until backward ends, the best ready row sends as many
 *                  blocks as fill the time to the next ready row in one operation; then the remainders by
 *                  row, one operation each. Priorities are searched greedily, from the output side, and are
 *                  never worse than the order by row.
 *
 * Parts: a row with work w = c_i - alpha and partition S is cut into ceil(w / (S - alpha)) equal parts, or
 * ceil(params / partition_params); a part costs alpha + w / k. A row with params 0 is one part; where no row
 * has params, only partition_s can be used.
 *
 * At the end of forward the link is idle in all of them, so the first iteration is the steady one.
 *
 * lower_bound_s = max(T_f + T_b, b_last + T_c). Where startups are merged (mgwfbp, or wfbp with bucket_bytes)
 * or overlap (ascwfbp), T_c counts one startup only: with all of them, as in the literature, the bound would
 * not hold.
 *
 * Source: S-SGD and WFBP as in MG-WFBP (arXiv:1811.11141), ByteScheduler (SOSP'19), US-Byte (TPDS 2023) and
 * the authors' repositories; ASC-WFBP (INFOCOM 2021) by our definition above. Cost: O(rows + parts); ascwfbp
 * O(rows K); usbyte O(rows^2) or so, its search stops after 1e8 simulated rows (lists of more than 7,000),
 * with the best found. *out is overwritten, not freed; untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (names the value), DDP_NUMERIC, DDP_MEMORY, DDP_UNSUPPORTED for deft. */
DDP_API ddp_status ddp_plan_timeline(const ddp_profile *p, const ddp_timeline_options *o, ddp_timeline *out,
                                     ddp_error *err);
DDP_API void ddp_timeline_free(ddp_timeline *t); /* all-zero is fine */

/* ddp_timeline_exposed - what t's step takes beyond its computing where a message occupies the link for its
 * interval and arrives latency_s later. *each_s: a layer's forward waits for its own gradient alone; *all_s:
 * every forward waits for all gradients. p is what t was planned from. Outputs are untouched on error.
 * Errors: DDP_ARG (another number of rows, a latency below 0), DDP_MEMORY. */
DDP_API ddp_status ddp_timeline_exposed(const ddp_profile *p, const ddp_timeline *t, double latency_s,
                                        double *each_s, double *all_s, ddp_error *err);

/* Names as the programs spell them (ssgd wfbp mgwfbp ascwfbp bytescheduler usbyte deft); a bad value gives
 * "unknown". The inverse fails with DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_scheme_name(ddp_scheme scheme);
DDP_API ddp_status ddp_scheme_named(const char *name, ddp_scheme *out, ddp_error *err);
