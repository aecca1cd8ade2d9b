/* Predicts the iteration time of synchronous training under six published ways to send gradients: the
 * baselines for every other planner here. */
#pragma once

#include "profile/profile.h"

/* Schemes that ddp_plan_timeline simulates. */
typedef enum ddp_scheme {
    DDP_SCHEME_SSGD,          /* all transfers after the whole backward */
    DDP_SCHEME_WFBP,          /* each bucket as soon as its backward ends (PyTorch DDP) */
    DDP_SCHEME_MGWFBP,        /* WFBP with buckets merged if that saves startups */
    DDP_SCHEME_ASCWFBP,       /* WFBP with several operations in flight */
    DDP_SCHEME_BYTESCHEDULER, /* parts by priority. The layer next to the input comes first. */
    DDP_SCHEME_USBYTE,        /* operations of unequal size, priorities found by search */
    DDP_SCHEME_DEFT           /* not computed here, see ddp_plan_delayed */
} ddp_scheme;

/* All-zero selects the defaults. */
typedef struct ddp_timeline_options {
    ddp_scheme scheme;         /* (default: ssgd) */
    double alpha_s;            /* startup included in every comm_s, in seconds (default: 0) */
    double partition_params;   /* bytescheduler, usbyte: most parameters in a part */
    double partition_s;        /* or the longest part on the link in seconds, startup included (default: 6.5e6
                                  parameters, if neither is given) */
    double credit;             /* bytescheduler: credit, in partitions (default: 1) */
    long operations;           /* ascwfbp: K, the most operations in flight (default: 4) */
    double bucket_bytes;       /* wfbp, ascwfbp: rows are tensors, joined until a bucket has this many
                                  bytes (DDP: 26214400). 0 = rows are buckets. */
    double first_bucket_bytes; /* the limit of the first bucket, in bytes (default: 1 MiB) */
} ddp_timeline_options;

/* Kinds of activities: compute, or a transfer on the link. */
typedef enum ddp_interval_kind {
    DDP_INTERVAL_BACKWARD,
    DDP_INTERVAL_FORWARD,
    DDP_INTERVAL_LINK
} ddp_interval_kind;

/* One activity from begin_s to end_s, in seconds after the start of backward. */
typedef struct ddp_interval {
    ddp_interval_kind kind; /* compute or transfer */
    int bucket, last;       /* rows bucket..last of the profile. If last > bucket, the rows are merged. */
    int part, parts;        /* link: parts part .. part+parts-1 of the bucket, otherwise 0, 1 */
    int lane;               /* link: lane 0.. of an operation, if several are in flight */
    double begin_s, end_s;  /* seconds */
} ddp_interval;

/* One iteration in the steady state: backward, then the forward that waits for its gradients. The caller
 * of ddp_plan_timeline owns it and frees it with ddp_timeline_free. */
typedef struct ddp_timeline {
    ddp_scheme scheme;      /* scheme that was simulated */
    int buckets;            /* rows of the profile */
    double iteration_s;     /* seconds of an iteration */
    double lower_bound_s;   /* see ddp_plan_timeline */
    int *parts;             /* [buckets] parts of each: 1 if it is never cut, 0 if it sends nothing */
    int *priority;          /* [buckets] 0 = served first among the ready buckets */
    int intervals;          /* number of intervals */
    ddp_interval *interval; /* [intervals] backward, forward, then the link, each sorted by begin_s */
} ddp_timeline;

/* ddp_plan_timeline - simulates one steady iteration of a scheme with discrete events.
 *
 * The rows of the profile are buckets (or tensors, see bucket_bytes). Row 0 is next to the input. There is
 * one link, first in, first out. An operation in flight is never interrupted. c_i is comm_s[i] with startup:
 * o->alpha_s is included in comm_s, while p->alpha_s and p->gap_s are added to it. All of them occupy the
 * link. (In a measured profile comm_s is all occupancy and alpha is 0.) Below, alpha is the sum of these
 * startups. A row with comm_s 0 sends nothing. T_f, T_b and T_c are sums over the rows. ready_i is the end of
 * the backward of row i.
 *
 *   ssgd           T_f + T_b + T_c
 *   wfbp           e_i = max(e_{i+1}, ready_i) + c_i; max(T_b, e_0) + T_f. Transfers start strictly in row
 *                  order. With bucket_bytes, rows are joined as in DDP: from the output side, closing a
 *                  bucket when its size reaches the limit. A row is never split (4 bytes per parameter).
 *                  Joined rows pay one startup.
 *   mgwfbp         row l joins row l-1 if ready_{l-1} comes before the end of l and either l would have to
 *                  wait anyway or waiting costs less than alpha (MG-WFBP's repository)
 *   ascwfbp        starts in row order, with at most K operations in flight. Each operation first spends
 *                  alpha without using bandwidth (a gap uses it), then all share the link equally. K = 1 or
 *                  alpha = 0 is WFBP. It is never slower than WFBP. The original also chooses a fusion, but
 *                  here the groups are given.
 *   bytescheduler  cuts every row into k equal parts of at most one partition, queued by (row, part). A part
 *                  is committed to the link while credit > 0. The forward of a row waits only for its own
 *                  parts. The repository's credit is 4 partitions, but 1 follows the priorities best.
 *   usbyte         blocks as the parts of bytescheduler. Until backward ends, the ready row of highest
 *                  priority sends one operation of as many blocks as fill the time to the next ready row.
 *                  Then the remainders are sent by row, one operation each. Priorities are searched
 *                  greedily, from the output side, and are never worse than the order by row.
 *
 * Parts: a row with work w = c_i - alpha and partition S is cut into ceil(w / (S - alpha)) equal parts, or
 * into ceil(params / partition_params). A part costs alpha + w / k. A row with params 0 is one part. If no
 * row has params, only partition_s can be used.
 *
 * At the end of forward the link is idle in every scheme, so the first iteration is already steady.
 *
 * lower_bound_s = max(T_f + T_b, b_last + T_c). If startups are merged (mgwfbp, or wfbp with bucket_bytes)
 * or overlap (ascwfbp), T_c counts only one startup: with all of them, as in the literature, the bound would
 * not hold.
 *
 * Source: S-SGD and WFBP as in MG-WFBP (arXiv:1811.11141), ByteScheduler (SOSP'19), US-Byte (TPDS 2023) and
 * the authors' repositories; ASC-WFBP (INFOCOM 2021) by our definition above. Cost: O(rows + parts), for
 * ascwfbp O(rows K), for usbyte about O(rows^2). The search of usbyte stops after 1e8 simulated rows
 * (profiles of more than 7,000 rows) and returns the best order found. *out is overwritten, not freed.
 * Unchanged on error. Pure and safe from any thread. Errors: DDP_ARG (names the value), DDP_NUMERIC,
 * DDP_MEMORY, DDP_UNSUPPORTED for deft. */
DDP_API ddp_status ddp_plan_timeline(const ddp_profile *p, const ddp_timeline_options *o, ddp_timeline *out,
                                     ddp_error *err);

/* ddp_timeline_free - frees the arrays of a timeline. Accepts an all-zero one. */
DDP_API void ddp_timeline_free(ddp_timeline *t);

/* ddp_timeline_exposed - computes the step time of t beyond its compute if messages have a latency: a
 * message occupies the link for its interval and arrives latency_s later.
 *
 *   p        the profile from which t was planned
 *   *each_s  receives the seconds if the forward of a layer waits only for its own gradient
 *   *all_s   receives the seconds if every forward waits for all gradients
 *
 * Outputs are untouched on error. Errors: DDP_ARG (another number of rows, a latency below 0), DDP_MEMORY. */
DDP_API ddp_status ddp_timeline_exposed(const ddp_profile *p, const ddp_timeline *t, double latency_s,
                                        double *each_s, double *all_s, ddp_error *err);

/* ddp_scheme_name - returns the name of a scheme as used by the programs: ssgd, wfbp, mgwfbp, ascwfbp,
 * bytescheduler, usbyte or deft, and "unknown" for an invalid value. A constant string. Pure and safe from
 * any thread. */
DDP_API const char *ddp_scheme_name(ddp_scheme scheme);

/* ddp_scheme_named - finds the scheme with the given name. Pure and safe from any thread. Errors: DDP_ARG,
 * with a list of the valid names. */
DDP_API ddp_status ddp_scheme_named(const char *name, ddp_scheme *out, ddp_error *err);
