/* Collectives over some of the ranks, in two levels, and over the measured ring. */
#ifndef DDP_RUN_GROUP_H
#define DDP_RUN_GROUP_H

#include "run/probe.h"

/* How the ranks lie in sites, as this rank sees it. */
typedef struct ddp_sites {
    int inside;  /* group of the ranks of this rank's site */
    int across;  /* equal sites: group of those with this rank's place in each site; else leaders */
    int equal;   /* all sites have the same number of ranks */
    int members; /* ranks of this site */
    int place;   /* of this rank among them */
    int leader;  /* lowest rank of this site */
} ddp_sites;

/* What ddp_ring_tune chose. */
typedef struct ddp_ring_choice {
    double least_rate; /* bytes per second of the ring's slowest hop */
    double from_bytes; /* all-reduces from here on go round the ring; INFINITY = none */
} ddp_ring_choice;

/* ddp_group - numbers a group of n distinct ranks in rising order, from 1 (0 is the world). All
 * ranks make all groups in the same order, those included that they are not in; at most 63. Then
 * the members exchange messages of that group (ddp_exchange; blocks count through the members, peer
 * is a rank of the world), and layers may belong to it. Ranks in several groups must order their
 * operations without a circle. Errors: DDP_ARG, DDP_UNSUPPORTED (an elastic world). */
DDP_API int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group);

/* ddp_sites_open - makes the groups of a world whose rank r lies in site site_of[r] (any numbers;
 * [world], the same on all ranks). Collective.
 * ddp_sites_all_reduce - the all-reduce in two levels, for sites that are fast inside and slow
 * between: a site's ranks sum their blocks among each other, those of one place in all sites sum
 * theirs over the slow links, and each site gathers. Between sites each rank thus sends 2 (S - 1) / S
 * n / k values (S sites of k ranks), not 2 (n_ranks - 1) / n_ranks n. Sites of unlike size sum to
 * their lowest ranks, which then spread the result. Same bits on all ranks, not those of a direct
 * sum in rank order. Collective. */
DDP_API int ddp_sites_open(ddp_ctx *d, const int *site_of, ddp_sites *out);
DDP_API int ddp_sites_all_reduce(ddp_ctx *d, const ddp_sites *s, float *x, size_t n, float scale);

/* ddp_ring_tune - orders the ring by what was measured (ddp_plan_ring) and chooses from which size
 * on it is faster than direct: direct takes 2 a + d M with d of the slowest pair or of the slowest
 * access link and a tenth for incast, the ring 2 (n - 1) a + 2 (n - 1) / n M / (slowest hop). r is
 * that of ddp_probe, the same on all ranks; nothing may be in flight. Collective in effect: call it
 * on all ranks. A deterministic context keeps direct sums. out may be NULL. */
DDP_API int ddp_ring_tune(ddp_ctx *d, const ddp_probe_result *r, ddp_ring_choice *out);

#endif /* DDP_RUN_GROUP_H */
