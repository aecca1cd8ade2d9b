/* A flat arrangement with all sums of its cost, and random moves on it. */
#pragma once

#include "plan/place/place_core.h"

/* The state of one walk on the flat form at[stage][pipeline], where every hop is within one pipeline. The
 * true cost is a maximum of maxima and flat almost everywhere. So a walk minimises the smooth cost
 *     max_j DP_j + lam sum_j DP_j + nu (sum over devices of their averaging)
 *         + sum over hops (max_i w + mu sum_i w)
 * and the best arrangement is chosen by the true cost, top + hops. */
typedef struct ddp__moves {
    ddp__place *p;
    int N, D, S;
    int unit;          /* all costs here are in units of 2^unit seconds */
    float *dp, *pp;    /* [N x N] as in p, shared by all walks of a search */
    double *table;     /* [DDP__MOVES_TABLE] accepted cost increase, in units of heat, shared */
    int *stage;        /* [N] stage of each position, shared */
    int *at;           /* [N] the arrangement */
    float *edge;       /* [N] at position j D + i: pp between stages j and j+1 of pipeline i */
    double *most;      /* [S] the largest edge of each hop */
    double *next;      /* [S] the second largest, equal to it if two are */
    double *sum;       /* [S] the sum of the edges of each hop */
    double *toward;    /* [S x N] sum of dp between a device and the devices of a stage */
    double *data;      /* [S] DP_j */
    int *worst;        /* [S] the device that averages for DP_j */
    double top, all;   /* maximum and sum of data */
    double loads;      /* half of the sum over devices of their averaging: that of all pairs */
    double hops, sums; /* sum of most, sum of sum */
    double lam, mu, nu, heat;
    int *best;                      /* [N] the best arrangement since ddp__moves_run began, by true cost */
    double best_cost;               /* its true cost */
    int *spare;                     /* [D] */
    struct ddp__moves_trial *trial; /* what the current move changes */
} ddp__moves;

#define DDP__MOVES_TABLE 1024

/* Allocates a walk and the shared tables. Returns 0 if memory is exhausted (recorded in p->room). */
DDP_LIB int ddp__moves_open(ddp__moves *s, ddp__place *p);
/* Allocates a walk that shares the tables of another. Returns 0 if memory is exhausted. */
DDP_LIB int ddp__moves_share(ddp__moves *s, const ddp__moves *from);
/* Computes all sums from s->at. */
DDP_LIB void ddp__moves_rebuild(ddp__moves *s);
/* The smooth cost. */
DDP_LIB double ddp__moves_cost(const ddp__moves *s);
/* Tries one random move at s->heat. Returns 1 if it stays. There are at least two stages: one stage is solved
 * by enumeration. */
DDP_LIB int ddp__moves_try(ddp__moves *s);
/* Tries many moves. s->best and s->best_cost receive the best arrangement of them by true cost. */
DDP_LIB void ddp__moves_run(ddp__moves *s, long moves);
