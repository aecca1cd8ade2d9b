/* Placement by annealing from many starts, and for large networks by descent on the two-level cost. */
#include "plan/order.h"
#include "plan/place/place_moves.h"
#include "plan/place/place_solvers.h"

/* Descent on the two-level cost, for networks where annealing single edges makes hardly any progress. A
 * move takes a device at the slowest edge of a random hop's best matching and exchanges it with any device
 * of another stage. Up to four hops change and are matched again, and the move stays if the cost is not
 * worse. Every factor is a power of two, so that the search is the same with every compiler. */

typedef struct ddp__descent {
    ddp__place *p;
    int *at;            /* [N] */
    int *mate, *fresh;  /* [S x D] matching of each hop, [4 x D] of the hops on trial */
    double *hop, *data; /* [S] value of each matching, averaging time of each stage */
    double top, all;    /* the largest of data, the sum of hop */
} ddp__descent;

/* Returns a device at an end of the slowest edge of a random hop. */
static int ddp__descent_slowest(ddp__descent *s)
{
    ddp__place *p = s->p;
    int D = p->D, j = (int)ddp_rng_below(&p->rng, (uint64_t)p->S - 1), a;
    const int *mate = s->mate + j * D;
    for (a = 0; a + 1 < D; a++)
        if (p->pp[(size_t)s->at[j * D + a] * (size_t)p->N + (size_t)s->at[(j + 1) * D + mate[a]]] >=
            s->hop[j])
            break;
    return ddp_rng_below(&p->rng, 2) ? j * D + a : (j + 1) * D + mate[a];
}

/* Tries one exchange. Returns 1 if it stays. */
static int ddp__descent_move(ddp__descent *s)
{
    ddp__place *p = s->p;
    int D = p->D, x = ddp__descent_slowest(s), z = (int)ddp_rng_below(&p->rng, (uint64_t)p->N);
    int j = x / D, k = z / D, near[4], hops = 0, h, m;
    double slack = 0x1p-11 * p->cost, now[4], change = 0, dj, dk, top;

    if (j == k) return 0;
    ddp__swap(s->at, x, z);
    dj = ddp__place_averaging(p, s->at, j);
    dk = ddp__place_averaging(p, s->at, k);
    top = dj > dk ? dj : dk;
    for (m = 0; m < p->S; m++)
        if (m != j && m != k && s->data[m] > top) top = s->data[m];
    change = top - s->top;
    for (m = 0; m < 4 && change <= slack; m++) { /* a later hop rarely makes up for more */
        h = (m < 2 ? j : k) - 1 + m % 2;
        if (h < 0 || h + 1 >= p->S || (m > 1 && (h == j - 1 || h == j))) continue;
        near[hops] = h;
        now[hops] = ddp__place_match(p, s->at + h * D, s->at + (h + 1) * D, s->fresh + hops * D);
        change += now[hops] - s->hop[h];
        hops++;
    }
    if (change > 0) {
        ddp__swap(s->at, x, z);
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

/* Writes the pipelines along the matchings to p->line and offers them as the best. */
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

/* Runs the descent. A re-matching takes about as long as 4 D moves of annealing and counts as 4 D
 * candidates. The stages are ordered exactly after 1, 2, 4, 8, ... moves, so that a longer search has the
 * results of the shorter ones. */
static void ddp__place_descend(ddp__place *p)
{
    size_t N = (size_t)p->N, S = (size_t)p->S, D = (size_t)p->D;
    const long weight = 4 * (long)p->D;
    long moves = 0;
    ddp__descent s = DDP__ZEROS;
    s.p = p;
    s.at = ddp__ints(&p->room, N);
    s.mate = ddp__ints(&p->room, N);
    s.fresh = ddp__ints(&p->room, 4 * D);
    s.hop = ddp__doubles(&p->room, S);
    s.data = ddp__doubles(&p->room, S);
    if (ddp__scratch_failed(&p->room)) return;
    memcpy(s.at, p->best, N * sizeof(int));
    for (int j = 0; j < p->S; j++) {
        s.data[j] = ddp__place_averaging(p, s.at, j);
        if (s.data[j] > s.top) s.top = s.data[j];
        if (j + 1 == p->S) continue;
        s.hop[j] =
            ddp__place_match(p, s.at + (size_t)j * D, s.at + (size_t)(j + 1) * D, s.mate + (size_t)j * D);
        s.all += s.hop[j];
    }
    while (p->limit - p->candidates >= weight && ddp__place_next(p)) {
        p->candidates += weight - 1;
        if (ddp__descent_move(&s) && s.top + s.all < p->cost - 0x1p-13 * p->cost) ddp__descent_offer(&s);
        moves++;
        if ((moves & (moves - 1)) == 0) ddp__place_offer(p, p->line, ddp__place_evaluate(p, s.at, p->cost));
    }
    ddp__descent_offer(&s);
}

/* Annealing with restarts. Long runs are hardly better than short ones: a run that has cooled to the level
 * where clusters form keeps its clusters. So the search consists of rounds of one length, and retains the
 * best of all:
 *   start   from an arrangement that follows the clusters of the network
 *   fresh   from a random arrangement, hot enough to forget it
 *   warm    from the best so far, hot enough to break up some of its clusters. Takes the place of every
 *           second fresh round once the rounds have their full length
 *   reheat  from the best so far, at a heat that keeps most of its clusters
 *   KL      turns of the genetic search with KL's gain, while its result is near the best
 * The first rounds are short, so that a short search has a result too. No round depends on a limit: a search
 * that ends later continues the shorter one with the same seed, and is never worse. A limit ends the search
 * after a whole chunk of moves. A better arrangement is matched and ordered exactly when it is found.
 *
 * A round cools with the whole smoothing of the maxima first, then with a quarter and a sixteenth of it,
 * each part from the best of the last one by true cost. Smoothing leads over plateaus, but the true cost
 * has another optimum. */

enum { DDP__ANNEAL_CHUNK = 512, DDP__ANNEAL_STARTS = 4 };
#define DDP__ANNEAL_COLD  0x1.8p-10 /* below this share of the cost, walks stay where they are */
#define DDP__ANNEAL_LARGE 256       /* with more devices, no budget suffices to change the structure */

/* Offers the result of a chunk: an arrangement better than the best, or at the end of a part the best of
 * that part, matched and ordered. Returns 0 if the search is late. The chunk then counts as not done, so the
 * result is that of a search with as many candidates. */
static int ddp__anneal_commit(ddp__moves *s, const int *found, int end, long chunk)
{
    ddp__place *p = s->p;
    const int better = ldexp(s->best_cost, s->unit) < p->cost - 0x1p-13 * p->cost;
    const int *at = end ? found : s->best;
    double cost = DBL_MAX;
    if (end || (better && p->N <= DDP__ANNEAL_LARGE)) {
        cost = ddp__place_evaluate(p, at, DBL_MAX);
        if (!(cost < DBL_MAX)) return 0;
        at = p->line;
    } else if (better) {
        cost = ddp__place_flat(p, at, NULL, NULL);
    }
    p->candidates += chunk;
    ddp__place_offer(p, at, cost);
    return 1;
}

/* Cools from a share `hot` of the best cost to `cold` within a number of moves, starting from s->at. Then
 * s->at is the best arrangement on the way by true cost, matched and ordered. found [N] is scratch. Returns 0
 * if the search is over. */
static int ddp__anneal_cool(ddp__moves *s, double hot, double cold, long moves, int *found)
{
    static const double ratio = 0x1.ea4afa2a490dap-1; /* 2^(-1/16) */
    ddp__place *p = s->p;
    const size_t bytes = (size_t)s->N * sizeof(int);
    double least = DBL_MAX;
    int levels = 0, level = 0;

    for (double h = hot; h > cold; h *= ratio) levels++;
    s->heat = hot * ldexp(p->cost, -s->unit);
    ddp__moves_rebuild(s);
    for (long done = 0, chunk; done < moves; done += chunk) {
        chunk = moves - done < DDP__ANNEAL_CHUNK ? moves - done : (long)DDP__ANNEAL_CHUNK;
        if (chunk > p->limit - p->candidates || p->stop || ddp__scratch_failed(&p->room)) return 0;
        for (; level < (int)((double)done / (double)moves * levels); level++) s->heat *= ratio;
        ddp__moves_run(s, chunk);
        if (s->best_cost < least) {
            least = s->best_cost;
            memcpy(found, s->best, bytes);
        }
        if (!ddp__anneal_commit(s, found, done + chunk == moves, chunk)) return 0;
        if (p->limit_s < DBL_MAX || p->o->progress) ddp__place_clock(p);
    }
    memcpy(s->at, p->line, bytes);
    return 1;
}

static void ddp__anneal_smooth(ddp__moves *s, double part)
{
    s->lam = 0x1p-4 * part;
    s->mu = s->nu = 0x1p-3 * part;
}

/* One round from s->at. Returns 0 if the search is over. */
static int ddp__anneal_round(ddp__moves *s, double hot, long moves, int *found)
{
    const double warm = 2 * DDP__ANNEAL_COLD;
    for (int part = 0; part < 3; part++) {
        ddp__anneal_smooth(s, part == 0 ? 1 : part == 1 ? 0x1p-2 : 0x1p-4);
        if (!ddp__anneal_cool(s, part ? warm : hot, DDP__ANNEAL_COLD, part ? moves / 8 : moves * 3 / 4,
                              found))
            return 0;
    }
    return 1;
}

/* Exchanges the random numbers of the search. */
static void ddp__anneal_take(ddp__place *p, ddp_rng *own)
{
    const ddp_rng rng = p->rng;
    p->rng = *own;
    *own = rng;
}

static void ddp__anneal_rounds(ddp__moves *s, int *kept, int starts, int *found)
{
    static const double heat[2] = {0x1.68p-8, 0x1.ecp-8}; /* 0.0055 and 0.0075 of the cost */
    ddp__place *p = s->p;
    const size_t bytes = (size_t)p->N * sizeof(int);
    const long most = 98304 * (long)p->N;
    long moves = most >> 9;
    ddp__place_genetic_walk *kl;
    ddp_rng own = ddp_rng_seed(p->o->seed, 0); /* the random numbers of DDP_PLACE_KL with this seed */
    int more, warm = 0;

    for (int k = 0; k < starts; k++) {
        memcpy(s->at, kept + (size_t)k * (size_t)p->N, bytes);
        if (!ddp__anneal_round(s, 0x1p-7, moves, found)) return;
    }
    ddp__anneal_take(p, &own);
    kl = ddp__place_genetic_open(p, DDP_PLACE_KL, 1);
    ddp__anneal_take(p, &own);
    for (; kl; moves = moves < most ? 2 * moves : most) {
        ddp__anneal_take(p, &own);
        more = ddp__place_genetic_turn(p, kl, 2 * moves);
        ddp__anneal_take(p, &own);
        if (!more) return;
        warm = moves == most && !warm;
        if (warm)
            memcpy(s->at, p->best, bytes);
        else
            ddp__shuffle(s->at, p->N, &p->rng);
        if (!ddp__anneal_round(s, warm ? 0x1.68p-7 : 0x1p-5, moves, found)) return;
        for (int k = 0; k < 2; k++) {
            memcpy(s->at, p->best, bytes);
            if (!ddp__anneal_round(s, heat[k], moves / 2, found)) return;
        }
    }
}

/* With more than LARGE devices, annealing refines the best start at a heat that suits the smaller share of
 * one device in the cost, and descent continues. */
static void ddp__anneal_large(ddp__moves *s, int *found)
{
    ddp__place *p = s->p;
    const double share = 64.0 * 64 / p->N / p->N;
    memcpy(s->at, p->best, (size_t)p->N * sizeof(int));
    s->mu = 0x1p-5;
    if (!ddp__anneal_cool(s, 0.004 * share, 5e-4 * share, 128 * (long)p->N, found)) return;
    ddp__place_descend(p);
}

void ddp__place_anneal(ddp__place *p)
{
    double cost[DDP__ANNEAL_STARTS];
    int *kept = ddp__ints(&p->room, DDP__ANNEAL_STARTS * (size_t)p->N),
        *found = ddp__ints(&p->room, (size_t)p->N);
    int starts;
    ddp__moves s;

    if (!ddp__moves_open(&s, p)) return;
    p->rng = ddp_rng_seed(p->o->seed, 1);
    starts = ddp__place_starts(p, DDP__ANNEAL_STARTS, kept, cost);
    if (p->N > DDP__ANNEAL_LARGE)
        ddp__anneal_large(&s, found);
    else
        ddp__anneal_rounds(&s, kept, starts, found);
}
