/* Plain collectives over all ranks, over groups, or in two levels; links, live ranks, and measurements of the
 * links between all ranks. */
#pragma once

#include "comm/message.h"
#include "profile/profile.h"

typedef struct ddp_ctx ddp_ctx;

/* Plain collectives of floats over all ranks that compute, usable without layers or hooks. In place, in host
 * memory; n counts floats. All ranks call them in the same order, never between the first hook and
 * ddp_step_end of a step. Each returns 0 or the context's first error.
 *   ddp_all_reduce  x[n] becomes scale x (sum over ranks)
 *   ddp_all_mean    x[n] becomes the mean over the live workers
 *   ddp_broadcast   x[n] becomes the values of rank root, or of the lowest live rank if root is not live
 *   ddp_all_gather  x[world x n]: the r-th block becomes the block of rank r, or 0 if r is not live
 *   ddp_reduce_scatter  x[world x n]: the rank-th block becomes scale x (sum over ranks), the others stay.
 *                   Followed by ddp_all_gather it is bit-identical to a direct all-reduce. Elastic worlds
 *                   return DDP_UNSUPPORTED
 *   ddp_exchange    any message: of a group, over the second link, of bytes, from one array to another, and
 *                   all-reduces as bfloat16 or int8 blocks, in contexts opened with that wire. Quantisation
 *                   residuals are dropped; a value that is not finite is DDP_NUMERIC. Without fields `after`
 *                   and `overlap` */
DDP_API int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_all_mean(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root);
DDP_API int ddp_all_gather(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_barrier(ddp_ctx *d);
DDP_API int ddp_send(ddp_ctx *d, float *x, size_t n, int to);
DDP_API int ddp_recv(ddp_ctx *d, float *x, size_t n, int from);
DDP_API int ddp_exchange(ddp_ctx *d, const ddp_message *m);

/* How ddp_all_reduce_float and its like combine the values of the ranks. */
typedef enum ddp_reduction {
    DDP_SUM,
    DDP_MEAN, /* the sum divided by the number of ranks that took part */
    DDP_MAX,  /* NaN if any rank has NaN */
    DDP_MIN   /* the same */
} ddp_reduction;

/* ddp_all_reduce_float - x[n] becomes the sum, mean, maximum or minimum over all ranks that compute.
 *
 *   x  n values in host memory, also where layers are on a device; combined in place
 *
 * Collective: all ranks call it with the same n and op, in the same order among their collectives, and never
 * between the first hook of a step and its ddp_step_end. All ranks receive bit-identical values. With one
 * worker x stays as it is. A lost worker (min_world) is left out. DDP_SUM equals ddp_all_reduce with scale 1,
 * DDP_MEAN equals ddp_all_mean.
 *
 * Returns 0 or the context's first error: DDP_ARG for an op that does not exist or if x is NULL, DDP_MEMORY,
 * DDP_MISMATCH if the ranks call with different types, n or op. */
DDP_API int ddp_all_reduce_float(ddp_ctx *d, float *x, size_t n, ddp_reduction op);

/* ddp_all_reduce_double - the same for doubles, summed as doubles in rank order.
 *
 * Each rank receives the values of all others, (world - 1) x n, in pieces of at most 4 MiB that the call
 * allocates; so do maxima and minima of floats. ddp_all_reduce receives about 2 n floats: use it for large
 * arrays. A worker that is lost during the call is in the pieces that it has sent, and a mean divides each
 * value by the ranks that sent it. */
DDP_API int ddp_all_reduce_double(ddp_ctx *d, double *x, size_t n, ddp_reduction op);

/* ddp_all_reduce_int64 - the same for 64-bit integers. Sums are exact; a sum out of range wraps modulo 2^64.
 * DDP_MEAN is DDP_ARG. */
DDP_API int ddp_all_reduce_int64(ddp_ctx *d, int64_t *x, size_t n, ddp_reduction op);

/* ddp_broadcast_bytes - x[n] becomes the bytes of rank root, or of the lowest live rank if root is lost
 * (min_world). Collective as ddp_all_reduce_float; host memory. More than 2^30 bytes travel in several
 * messages: if root is lost between two of them, the other rank sends the rest. Errors: DDP_ARG, DDP_MEMORY,
 * DDP_MISMATCH if the ranks differ in n. */
DDP_API int ddp_broadcast_bytes(ddp_ctx *d, void *x, size_t n, int root);

/* ddp_all_gather_bytes - x[(ddp_world - ddp_servers) x n]: the n bytes of rank r become the r-th block on all
 * ranks. Before the call each rank has its own block there. Blocks of ranks that are not live (min_world)
 * become 0. Collective as ddp_all_reduce_float; host memory. Errors: as ddp_broadcast_bytes. */
DDP_API int ddp_all_gather_bytes(ddp_ctx *d, void *x, size_t n);

/* A second link, opened beside the first where net2 or addr2 is set: its own connections, comm thread and
 * measurements; operations on the two do not wait for one another. ddp_exchange takes either link (0 or 1);
 * the others are link 0's.
 *   ddp_links           how many this context has: 0 with one worker, 1 or 2; with nccl the
 *                       devices' network is the first
 *   ddp_measure_links   times averages on each link alone. Collective, between steps
 *   ddp_get_link_stats  0, or DDP_ARG for a link that does not exist; *out is zero then */
typedef struct ddp_link_stats {
    int64_t bytes_sent; /* headers included */
    int64_t operations;
    double busy_s;         /* union of its operations */
    ddp_link link;         /* as measured, else nominal; 0 before */
    double gap_s;          /* how long a message occupies it beside its bytes (ddp_profile); 0 before
                               planning */
    double mu;             /* beta of this link over that of link 0; 0 = unknown */
    const char *algorithm; /* of its last all-reduce: "direct", "ring" or "none" */
} ddp_link_stats;
DDP_API int ddp_measure_links(ddp_ctx *d);
DDP_API int ddp_get_link_stats(ddp_ctx *d, int link, ddp_link_stats *out);

struct ddp_network;

/* From one rank to another. */
typedef struct ddp_pair {
    double ping_s;        /* half the shortest round trip, seconds */
    double ping_median_s; /* half the median one */
    ddp_link link;        /* one way: n bytes arrive after alpha_s + beta_s n; least squares */
    double rate;          /* bytes per second of the largest transfer, latency left out */
    double offset_s;      /* wall clock of the receiver minus that of the sender, measured on the
                               shortest round trip: right to within half of it */
    int relayed;          /* 1: what they send each other goes through rank 0 */
} ddp_pair;

/* The same on every rank; freed by ddp_probe_free. */
typedef struct ddp_probe_result {
    int world;
    ddp_pair *pair;   /* [world x world], row = sender; the diagonal is 0 */
    ddp_link *host;   /* [world] least squares over all that the rank sent */
    char (*name)[64]; /* [world] host name */
    double seconds;   /* the probing took */
} ddp_probe_result;

/* ddp_probe - measures every pair in both directions: world - 1 rounds (world, where it is odd) of disjoint
 * pairs that work at the same time; 20 pings (8 where they take more than 3 s), then 64 KiB and what fits
 * 0.25 s, at most 1 MiB, each three times and, where a busy machine or other traffic disturbs it, again until
 * the two fastest agree to 3 % (16 times or 3 s at most). Collective, under the rules of the plain
 * collectives. Returns 0 or the context's first error; DDP_USAGE with one worker. */
DDP_API int ddp_probe(ddp_ctx *d, ddp_probe_result *out);
DDP_API void ddp_probe_free(ddp_probe_result *r);

/* ddp_probe_network - the same as delays and rates of a network, for ddp_network_write and the
 * planners; freed by ddp_network_free. Errors: DDP_ARG, DDP_MEMORY. */
DDP_API ddp_status ddp_probe_network(const ddp_probe_result *r, struct ddp_network *out, ddp_error *err);

/* How the ranks lie in sites, as this rank sees it. */
typedef struct ddp_sites {
    int inside;  /* group of the ranks of this rank's site; */
    int gather;  /* the same, or one more of them, whose messages may wait for those across */
    int across;  /* equal sites: group of those with this rank's place in each site; else leaders */
    int equal;   /* all sites have the same number of ranks */
    int sites;   /* how many there are */
    int members; /* ranks of this site */
    int place;   /* of this rank among them */
    int leader;  /* lowest rank of this site */
} ddp_sites;

/* What ddp_ring_tune chose. */
typedef struct ddp_ring_choice {
    double least_rate; /* bytes per second of the ring's slowest hop */
    double from_bytes; /* all-reduces from here on go round the ring; DBL_MAX = none */
} ddp_ring_choice;

/* ddp_group - numbers a group of n distinct ranks in rising order, from 1 (0 is the world). All ranks make
 * all groups in the same order, those included that they are not in; at most 63. Then the members exchange
 * messages of that group (ddp_exchange; blocks count through the members, peer is a rank of the world), and
 * layers may belong to it. Ranks in several groups must order their operations without a circle. Errors:
 * DDP_ARG, DDP_UNSUPPORTED (an elastic world). */
DDP_API int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group);

/* ddp_sites_open - makes the groups of a world whose rank r lies in site site_of[r] (any numbers;
 * [world], the same on all ranks). Collective.
 * ddp_sites_all_reduce - the all-reduce in two levels, for sites that are fast inside and slow between: a
 * site's ranks sum their blocks among each other, those of one place in all sites sum theirs over the slow
 * links, and each site gathers. Between sites each rank thus sends 2 (S - 1) / S n / k values (S sites of k
 * ranks), not 2 (n_ranks - 1) / n_ranks n. Sites of unlike size sum to their lowest ranks, which then spread
 * the result. Same bits on all ranks, not those of a direct sum in rank order. Collective. */
DDP_API int ddp_sites_open(ddp_ctx *d, const int *site_of, ddp_sites *out);
DDP_API int ddp_sites_all_reduce(ddp_ctx *d, const ddp_sites *s, float *x, size_t n, float scale);

/* ddp_ring_tune - orders the ring by what was measured (ddp_plan_ring) and chooses from which size on it is
 * faster than direct: direct takes 2 a + d M with d of the slowest pair or of the slowest access link and a
 * tenth for incast, the ring 2 (n - 1) a + 2 (n - 1) / n M / (slowest hop). r is that of ddp_probe, the same
 * on all ranks; nothing may be in flight. Collective in effect: call it on all ranks. A deterministic context
 * keeps direct sums. out may be NULL. */
DDP_API int ddp_ring_tune(ddp_ctx *d, const ddp_probe_result *r, ddp_ring_choice *out);
