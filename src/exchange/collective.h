/* Declares plain collectives over all ranks, over groups, or hierarchical. Also queries of links, and
 * measurements of the links between all ranks. */
#pragma once

#include "comm/message.h"
#include "profile/profile.h"

typedef struct ddp_ctx ddp_ctx;

/* Plain collectives over all ranks that compute, usable without layers or hooks. They work in place, in host
 * memory, and block until the result is complete on this rank. All ranks call them in the same order, never
 * between the first hook of a step and its ddp_step_end. A lost worker (min_world) is left out. */

/* ddp_all_reduce - replaces x by scale x (sum over ranks).
 *
 *   x      [n] floats in host memory
 *   scale  factor of the sum. 1 leaves the sum unchanged.
 *
 * Collective. All ranks receive bit-identical values. Returns 0 or the context's first error. Errors: DDP_ARG
 * for NULL or scale 0 or DDP_USAGE for a worker that joined before the end of its first step. Communication
 * may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale);

/* ddp_all_mean - replaces x[0..n-1] by the mean over the live workers. x is in host memory. Collective. All
 * ranks receive bit-identical values. Returns 0 or the context's first error. Errors: DDP_ARG for NULL or
 * DDP_USAGE for a worker that joined before the end of its first step. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_mean(ddp_ctx *d, float *x, size_t n);

/* ddp_broadcast - replaces x[0..n-1] by the values of rank root, or of the lowest live rank if root is not
 * live. x is in host memory. Collective, with the same n and root. Returns 0 or the context's first error.
 * Errors: DDP_ARG for NULL or a rank that does not exist or DDP_USAGE for a worker that joined before the end
 * of its first step. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or
 * DDP_ABORTED. */
DDP_API int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root);

/* ddp_all_gather - collects one block of n floats from each rank. x has (ddp_world - ddp_servers) x n floats
 * in host memory: block r becomes the block of rank r, or 0 if r is not live. Before the call each rank has
 * its own block there. Collective. Returns 0 or the context's first error. Errors: DDP_ARG for NULL or
 * DDP_USAGE for a worker that joined before the end of its first step. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_gather(ddp_ctx *d, float *x, size_t n);

/* ddp_reduce_scatter - replaces this rank's block of x by scale x (sum over ranks). x has (ddp_world -
 * ddp_servers) x n floats in host memory. The other blocks do not change. Followed by ddp_all_gather it is
 * bit-identical to a direct all-reduce. Collective. Returns 0 or the context's first error. Errors: DDP_ARG
 * for NULL or scale 0 or DDP_UNSUPPORTED in an elastic world. Communication may also fail with DDP_PEER_LOST,
 * DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale);

/* ddp_barrier - returns once all ranks have called it. Collective. Returns 0 or the context's first error.
 * Errors: DDP_MEMORY or DDP_USAGE for a worker that joined before the end of its first step. Communication
 * may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_barrier(ddp_ctx *d);

/* ddp_send - sends x[0..n-1], floats in host memory, to rank `to`. The n-th send of a pair of ranks matches
 * the n-th ddp_recv there. Blocks until x may change. Not collective: only the two ranks take part. Returns 0
 * or the context's first error. Errors: DDP_ARG for NULL, this rank, or a rank that does not exist.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_send(ddp_ctx *d, float *x, size_t n, int to);

/* ddp_recv - receives x[0..n-1], floats in host memory, from rank `from`. The n-th ddp_recv of a pair of
 * ranks matches the n-th ddp_send there, with the same n. Not collective: only the two ranks take part.
 * Returns 0 or the context's first error. Errors: DDP_ARG for NULL, this rank, or a rank that does not exist.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_recv(ddp_ctx *d, float *x, size_t n, int from);

/* ddp_exchange - runs any message and waits for its result: of a group, over the second link, of bytes, from
 * one array to another, and all-reduces as bfloat16 or int8 blocks, in contexts opened with that wire.
 * Quantisation residuals are dropped. *m is copied. Its memory is borrowed during the call. The fields
 * `after` and `overlap` have no effect. Collective over the ranks of the message. Returns 0 or the context's
 * first error. Errors: DDP_ARG for a field of the message; DDP_NUMERIC for a value that is not finite, if it
 * is coded; DDP_UNSUPPORTED for a reduce-scatter in an elastic world. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_exchange(ddp_ctx *d, const ddp_message *m);

/* Operation of ddp_all_reduce_float, ddp_all_reduce_double and ddp_all_reduce_int64 on the values of the
 * ranks. */
typedef enum ddp_reduction {
    DDP_SUM,  /* the sum over the ranks */
    DDP_MEAN, /* the sum divided by the number of ranks that took part */
    DDP_MAX,  /* NaN if any rank has NaN */
    DDP_MIN   /* the same */
} ddp_reduction;

/* ddp_all_reduce_float - replaces x[0..n-1] by the sum, mean, maximum or minimum over all ranks that compute.
 *
 *   x  n values in host memory, also if layers are on a device. Combined in place.
 *
 * Collective: all ranks call it with the same n and op, in the same order among their collectives, and never
 * between the first hook of a step and its ddp_step_end. All ranks receive bit-identical values. With one
 * worker x does not change. A lost worker (min_world) is left out. DDP_SUM equals ddp_all_reduce with scale
 * 1, DDP_MEAN equals ddp_all_mean.
 *
 * Returns 0 or the context's first error. Errors: DDP_ARG for an op that does not exist or if x is NULL;
 * DDP_MEMORY; DDP_MISMATCH if the ranks call with different types, n or op. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_reduce_float(ddp_ctx *d, float *x, size_t n, ddp_reduction op);

/* ddp_all_reduce_double - replaces x[0..n-1], doubles in host memory, by the sum, mean, maximum or minimum
 * over all ranks that compute. Values are summed as doubles in rank order. Collective, with the same n and
 * op.
 *
 * Each rank receives the values of all others, (world - 1) x n, in pieces of at most 4 MiB that the call
 * allocates. ddp_all_reduce_float does the same for DDP_MAX and DDP_MIN. ddp_all_reduce receives about 2 n
 * floats, so use it for large arrays. If a worker is lost during the call, the pieces that it has sent count,
 * and a mean divides each value by the number of ranks that sent it.
 *
 * Returns 0 or the context's first error. Errors: DDP_ARG for an op that does not exist or if x is NULL;
 * DDP_MEMORY; DDP_MISMATCH if the ranks call with different types, n or op. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_reduce_double(ddp_ctx *d, double *x, size_t n, ddp_reduction op);

/* ddp_all_reduce_int64 - replaces x[0..n-1], 64-bit integers in host memory, by the sum, maximum or minimum
 * over all ranks that compute. Sums are exact, but a sum out of range wraps modulo 2^64. Collective, with the
 * same n and op. Returns 0 or the context's first error. Errors: DDP_ARG for DDP_MEAN, an op that does not
 * exist, or if x is NULL; DDP_MEMORY; DDP_MISMATCH if the ranks call with different types, n or op.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_reduce_int64(ddp_ctx *d, int64_t *x, size_t n, ddp_reduction op);

/* ddp_broadcast_bytes - replaces x[0..n-1] by the bytes of rank root, or of the lowest live rank if root is
 * lost (min_world). x is in host memory. More than 2^30 bytes are sent in several messages. If root is lost
 * between two of them, the other rank sends the rest. Collective, with the same n and root. Returns 0 or the
 * context's first error. Errors: DDP_ARG for NULL or a rank that does not exist, DDP_MEMORY, or DDP_MISMATCH
 * if the ranks differ in n. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_broadcast_bytes(ddp_ctx *d, void *x, size_t n, int root);

/* ddp_all_gather_bytes - collects n bytes from each rank. x has (ddp_world - ddp_servers) x n bytes in host
 * memory: block r becomes the block of rank r on all ranks, or 0 if r is not live (min_world). Before the
 * call each rank has its own block there. Collective, with the same n. Returns 0 or the context's first
 * error. Errors: DDP_ARG for NULL, DDP_MEMORY, or DDP_MISMATCH if the ranks differ in n. Communication may
 * also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_all_gather_bytes(ddp_ctx *d, void *x, size_t n);

/* Statistics of a link. A second link exists if net2 or addr2 is set, or nccl is 2. It has its own
 * connections, comm thread and measurements, and operations on one link do not wait for the other.
 * ddp_exchange takes either link (0 or 1). All other collectives use link 0. ddp_links (context/reading.h)
 * returns the number of links. */
typedef struct ddp_link_stats {
    int64_t bytes_sent;    /* headers included */
    int64_t operations;    /* number of operations on the link */
    double busy_s;         /* time in which at least one operation of the link was in flight */
    ddp_link link;         /* measured cost, else nominal cost, or 0 if there is neither */
    double gap_s;          /* per-message overhead in seconds (ddp_profile), or 0 if not measured */
    double mu;             /* beta of this link / beta of link 0, or 0 if unknown */
    const char *algorithm; /* algorithm of the last all-reduce: "full", "direct", "ring" or "nccl", or "none"
                              if there was none */
} ddp_link_stats;

/* ddp_measure_links - times averages on each link, one link at a time, for about three seconds, and stores
 * the measured alpha and beta of each link. On a link that is not emulated it also chooses the all-reduce
 * algorithm of large messages. Collective, between steps. Returns 0 or the context's first error. Errors:
 * DDP_USAGE for a worker that joined before the end of its first step; DDP_MISMATCH, DDP_UNSUPPORTED,
 * DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session (with nccl). Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_measure_links(ddp_ctx *d);

/* ddp_get_link_stats - stores the statistics of link 0 or 1 in *out, which is zero on error. Local. Returns 0
 * or a ddp_status. Errors: DDP_ARG for a link that does not exist or DDP_USAGE in a forked process. */
DDP_API int ddp_get_link_stats(ddp_ctx *d, int link, ddp_link_stats *out);

struct ddp_network;

/* Measurements of one direction, from one rank to another. */
typedef struct ddp_pair {
    double ping_s;        /* half the shortest round trip, seconds */
    double ping_median_s; /* half the median round trip */
    ddp_link link;        /* one way, by least squares: n bytes arrive after alpha_s + beta_s n seconds */
    double rate;          /* sustained bytes per second: the second half of the longest transfer */
    double offset_s;      /* wall clock of the receiver minus wall clock of the sender, in seconds,
                             measured on the shortest round trip. The error is at most half of that round
                             trip. */
    int relayed;          /* 1 if their messages are relayed by rank 0 */
} ddp_pair;

/* Result of ddp_probe, equal on every rank. Free it with ddp_probe_free. */
typedef struct ddp_probe_result {
    int world;        /* number of ranks */
    ddp_pair *pair;   /* [world x world], row = sender. The diagonal is 0. */
    ddp_link *host;   /* [world] least-squares fit over all transfers of the rank */
    char (*name)[64]; /* [world] host name */
    double seconds;   /* duration of the measurement */
} ddp_probe_result;

/* ddp_probe - measures every pair of ranks in both directions, in world - 1 rounds (world rounds if world
 * is odd) of disjoint pairs that work at the same time. Each pair sends 20 pings (8 if they take more than
 * 3 s), then transfers of 8 KiB to 4 MiB, until one takes 0.25 s. The second half of the longest transfer
 * gives the rate, because a token bucket lets the first bytes pass faster. That transfer runs three times.
 * If a busy machine or other traffic disturbs it, it is repeated until the two fastest agree to 3 %, at
 * most 16 times or for 3 s. The caller frees *out with ddp_probe_free. Collective, between steps. Returns 0
 * or the context's first error. Errors: DDP_ARG for NULL, DDP_USAGE with one worker, DDP_UNSUPPORTED if a
 * worker is missing, or DDP_MEMORY. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_probe(ddp_ctx *d, ddp_probe_result *out);

/* ddp_probe_free - frees the arrays of a result and sets it to zero. An all-zero result is allowed. Local. */
DDP_API void ddp_probe_free(ddp_probe_result *r);

/* ddp_probe_network - converts a measurement to delays (seconds) and rates (bytes/s) of a network, for
 * ddp_network_write and the planners. The caller frees *out with ddp_network_free. Pure and safe from any
 * thread. Errors: DDP_ARG for NULL or fewer than two ranks or DDP_MEMORY. */
DDP_API ddp_status ddp_probe_network(const ddp_probe_result *r, struct ddp_network *out, ddp_error *err);

/* The sites of the ranks, from the view of this rank. */
typedef struct ddp_sites {
    int inside;  /* group of the ranks of this rank's site */
    int gather;  /* the same group, or another group of the same ranks, whose messages may wait for those
                    between sites */
    int across;  /* with equal sites the group of the ranks that have the place of this rank in their site,
                    otherwise the group of the site leaders */
    int equal;   /* all sites have the same number of ranks */
    int sites;   /* number of sites */
    int members; /* number of ranks in this site */
    int place;   /* index of this rank among them */
    int leader;  /* lowest rank of this site */
} ddp_sites;

/* Result of ddp_ring_tune. */
typedef struct ddp_ring_choice {
    double least_rate; /* bytes per second of the ring's slowest hop */
    double from_bytes; /* all-reduces of at least this many bytes use the ring, or DBL_MAX if none does */
} ddp_ring_choice;

/* ddp_group - makes a group of ranks, whose members can exchange messages among themselves (ddp_exchange) and
 * own layers.
 *
 *   ranks  [n] distinct ranks in increasing order, copied
 *   group  receives the number of the group, from 1. 0 is the world.
 *
 * All ranks make all groups in the same order, including groups that they are not in. At most 63 groups.
 * Blocks of a message are numbered by member, but peer is a rank of the world. Ranks in several groups must
 * order their operations without a cycle. Local, and no message is sent. Returns 0 or the context's first
 * error. Errors: DDP_ARG for the ranks or too many groups or DDP_UNSUPPORTED in an elastic world. */
DDP_API int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group);

/* ddp_sites_open - makes the groups of a world in which rank r is in site site_of[r].
 *
 *   site_of  [world] any numbers, equal on all ranks
 *   out      receives the sites, from the view of this rank
 *
 * All ranks call it, but no message is sent. Returns 0 or the context's first error. Errors: DDP_ARG for NULL
 * or too many groups, DDP_UNSUPPORTED in an elastic world, or DDP_MEMORY. */
DDP_API int ddp_sites_open(ddp_ctx *d, const int *site_of, ddp_sites *out);

/* ddp_sites_all_reduce - replaces x[0..n-1] by scale x (sum over ranks) with a hierarchical all-reduce, for
 * sites that are fast inside and slow between. The ranks of a site reduce-scatter, the ranks with the same
 * place in all sites all-reduce their blocks over the slow links, and each site all-gathers. Each rank thus
 * sends 2 (S - 1) / S n / k values between sites (S sites of k ranks) instead of 2 (n_ranks - 1) / n_ranks n.
 * Sites of different sizes reduce to their lowest ranks, which broadcast the result afterwards. The result is
 * bit-identical on all ranks, but not to a direct sum in rank order. x is in host memory. Collective. Returns
 * 0 or the context's first error. Errors: DDP_ARG for NULL or sites that are not from ddp_sites_open.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_sites_all_reduce(ddp_ctx *d, const ddp_sites *s, float *x, size_t n, float scale);

/* ddp_ring_tune - orders the ring by the measurements (ddp_plan_ring), and chooses the size from which on it
 * is faster than direct.
 *
 *   r    result of ddp_probe, equal on all ranks
 *   out  receives the choice. May be NULL.
 *
 * For M bytes, direct takes 2 a + d M, with d of the slowest pair or of the slowest access link, plus a tenth
 * for incast. The ring takes 2 (n - 1) a + 2 (n - 1) / n M / (slowest hop). No message may be in flight. A
 * deterministic context continues to use direct sums. All ranks call it, but no message is sent. Returns 0 or
 * the context's first error. Errors: DDP_ARG for NULL or a measurement of another world, DDP_USAGE with a
 * message in flight, or DDP_MEMORY. */
DDP_API int ddp_ring_tune(ddp_ctx *d, const ddp_probe_result *r, ddp_ring_choice *out);
