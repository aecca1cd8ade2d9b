#include "base/core.h"
#include "plan/place_core.h"

/* Descent on the two-level cost, for networks where annealing single edges hardly moves: a device at the slowest edge
 * of a random hop's best matching changes places with any device of another stage, the up to four hops this touches are
 * matched again, and what is not worse stays. Every factor is a power of two, so that no compiler changes the walk. */

typedef struct ddp__descent {
    ddp__place *p;
    int *at;            /* [N] */
    int *mate, *fresh;  /* [S x D] of each hop; [4 x D] of those on trial */
    double *hop, *data; /* [S] value of each matching; averaging of each stage */
    double top, all;    /* the largest of data; the sum of hop */
} ddp__descent;

/* Matches the stages h and h + 1. */
static double ddp__descent_match(ddp__descent *s, int h, int *mate)
{
    ddp__place *p = s->p;
    size_t D = (size_t)p->D, a, b;
    const int *here = s->at + (size_t)h * D, *there = here + D;

    for (a = 0; a < D; a++) {
        const double *row = p->pp + (size_t)here[a] * (size_t)p->N;
        for (b = 0; b < D; b++) p->weight[a * D + b] = row[there[b]];
    }
    return ddp__matching_solve(&p->matching, p->weight, mate);
}

static double ddp__descent_data(const ddp__descent *s, int j)
{
    const ddp__place *p = s->p;
    const int *stage = s->at + (size_t)j * (size_t)p->D;
    double most = 0, sum;
    int a, b;

    for (a = 0; a < p->D; a++) {
        const double *row = p->dp + (size_t)stage[a] * (size_t)p->N;
        for (b = 0, sum = 0; b < p->D; b++) sum += row[stage[b]];
        if (sum > most) most = sum;
    }
    return most;
}

static void ddp__descent_swap(ddp__descent *s, int x, int z)
{
    int t = s->at[x];

    s->at[x] = s->at[z];
    s->at[z] = t;
}

/* An end of the slowest edge of a random hop. */
static int ddp__descent_slowest(ddp__descent *s)
{
    ddp__place *p = s->p;
    int D = p->D, j = (int)ddp_rng_below(&p->rng, (uint64_t)p->S - 1), a;
    const int *mate = s->mate + j * D;

    for (a = 0; a + 1 < D; a++)
        if (p->pp[(size_t)s->at[j * D + a] * (size_t)p->N + (size_t)s->at[(j + 1) * D + mate[a]]] >= s->hop[j]) break;
    return ddp_rng_below(&p->rng, 2) ? j * D + a : (j + 1) * D + mate[a];
}

/* One exchange; 1 = it stays. */
static int ddp__descent_move(ddp__descent *s)
{
    ddp__place *p = s->p;
    int D = p->D, x = ddp__descent_slowest(s), z = (int)ddp_rng_below(&p->rng, (uint64_t)p->N);
    int j = x / D, k = z / D, near[4], hops = 0, h, m;
    double slack = 0x1p-11 * p->cost, now[4], change = 0, dj, dk, top;

    if (j == k) return 0;
    ddp__descent_swap(s, x, z);
    dj = ddp__descent_data(s, j);
    dk = ddp__descent_data(s, k);
    top = dj > dk ? dj : dk;
    for (m = 0; m < p->S; m++)
        if (m != j && m != k && s->data[m] > top) top = s->data[m];
    change = top - s->top;
    for (m = 0; m < 4 && change <= slack; m++) { /* rarely does a later hop make up for more */
        h = (m < 2 ? j : k) - 1 + m % 2;
        if (h < 0 || h + 1 >= p->S || (m > 1 && (h == j - 1 || h == j))) continue;
        near[hops] = h;
        now[hops] = ddp__descent_match(s, h, s->fresh + hops * D);
        change += now[hops] - s->hop[h];
        hops++;
    }
    if (change > 0) {
        ddp__descent_swap(s, x, z);
        return 0;
    }
    for (m = 0; m < hops; m++) {
        s->all += now[m] - s->hop[near[m]];
        s->hop[near[m]] = now[m];
        memcpy(s->mate + near[m] * D, s->fresh + m * D, (size_t)D * sizeof(int));
    }
    s->data[j] = dj;
    s->data[k] = dk;
    s->top = top;
    return 1;
}

/* Lays the pipelines along the matchings into p->line and offers them. */
static void ddp__descent_offer(ddp__descent *s)
{
    ddp__place *p = s->p;

    for (int i = 0; i < p->D; i++)
        for (int j = 0, member = i; j < p->S; j++) {
            p->line[j * p->D + i] = s->at[j * p->D + member];
            if (j + 1 < p->S) member = s->mate[j * p->D + member];
        }
    ddp__place_offer(p, p->line, ddp__place_flat(p, p->line, NULL, NULL));
}

/* A re-matching takes about as long as 4 D moves of annealing, and counts as many candidates. */
void ddp__place_descend(ddp__place *p)
{
    size_t N = (size_t)p->N, S = (size_t)p->S, D = (size_t)p->D;
    int *room = (int *)ddp__calloc(2 * N + 4 * D, sizeof(int)), j;
    double *sums = (double *)ddp__calloc(2 * S, sizeof(double));
    long weight = 4 * (long)p->D;
    ddp__descent s;

    memset(&s, 0, sizeof s);
    s.p = p;
    if (room && sums) {
        s.at = room;
        s.mate = room + N;
        s.fresh = s.mate + N;
        s.hop = sums;
        s.data = sums + S;
        memcpy(s.at, p->best, N * sizeof(int));
        for (j = 0; j < p->S; j++) {
            s.data[j] = ddp__descent_data(&s, j);
            if (s.data[j] > s.top) s.top = s.data[j];
            if (j + 1 == p->S) continue;
            s.hop[j] = ddp__descent_match(&s, j, s.mate + (size_t)j * D);
            s.all += s.hop[j];
        }
        while (p->limit - p->candidates >= weight && ddp__place_next(p)) {
            p->candidates += weight - 1;
            if (ddp__descent_move(&s) && s.top + s.all < p->cost - 0x1p-13 * p->cost) ddp__descent_offer(&s);
        }
        ddp__descent_offer(&s);
        ddp__place_offer(p, p->line, ddp__place_evaluate(p, s.at));
    } else {
        p->failed = p->stop = 1;
    }
    DDP_FREE(room);
    DDP_FREE(sums);
}
