/* Model of the search for the next epoch of an elastic world (src/member/epoch.c), with one operation in flight.
 * Workers crash and a link is cut; spin tries every order of all messages.
 *
 *   spin -a -DN=3 epoch.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan
 *
 * N: number of workers. CRASHES: how many of them crash (DIES: only that one). CUTS: number of cut links
 * (ISOLATE: 0-1 and 0-2). COMES: worker 1 starts a search although no worker is lost, as for a joining worker.
 * LEAVES: number of workers that close their context. BROADCAST: the operation needs only its root, so a
 * worker may complete it before the others know of the epoch.
 *
 * Seeded faults: HASTY (a worker votes for workers that have reported but do not know of every loss), TWICE (a
 * worker votes again in the same round), BELOW (it begins an epoch older than its last promise), FORGET (it
 * forgets its votes), ANEW (results are not forwarded), DEAF (a goodbye that arrives in a search is ignored).
 *
 * Checked properties: there is one decision per ballot. In the end all workers that neither crashed nor gave
 * up are in one epoch and have one result, and the members of that epoch that completed it have equal results.
 * A worker with a quorum does not give up. No worker waits forever, or for a worker that leaves.
 *
 * A worker's report is read in its state at that moment, or later after it has changed, or never if the link is
 * cut or the sender is known to be lost: streams are in order, so a later report replaces an earlier one.
 * Time limits pass only when nothing else can happen. */
#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifdef DIES
#define VICTIM(x) ((x) == DIES)
#else
#define VICTIM(x) 1
#endif
#ifndef COMES
#define COMES 0
#endif
#ifndef LEAVES          /* workers that close their context when no other worker needs a result from them */
#define LEAVES 0
#endif
#ifdef ISOLATE          /* only worker 0 loses links, those with 1 and 2 */
#define CUTTABLE(x, y) ((x) == 0 && (y) < 3)
#else
#define CUTTABLE(x, y) 1
#endif
#define ALL ((1 << N) - 1)
#define ROUNDS 12

#define RUN 0
#define SEARCH 1
#define GONE 2      /* crashed, gave up or was excluded */
#define LEFT 3      /* closed in order: it reads nothing more, but its messages are still in flight */

c_decl {
    static int bits(int m) { int n = 0; for (; m; m &= m - 1) n++; return n; }
    static int lowest(int m) { int i = 0; while (i < 7 && !(m >> i & 1)) i++; return i; }
    /* edge: N rows of N bits */
    static int survivors(int live, const unsigned char *edge, int n)
    {
        for (;;) {
            int worst = -1, most = 0, r;
            for (r = 0; r < n; r++) {
                int k;
                if (!(live >> r & 1)) continue;
                k = bits(edge[r] & live);
                if (k > 0 && k >= most) { most = k; worst = r; }
            }
            if (worst < 0) return live;
            live &= ~(1 << worst);
        }
    }
    /* pairs of up to 4 workers that have lost each other, in 6 bits */
    static int pairs(const unsigned char *edge, int n)
    {
        int a, b, out = 0, at = 0;
        for (b = 1; b < n; b++)
            for (a = 0; a < b; a++, at++) out |= (edge[a] >> b & 1) << at;
        return out;
    }
    static int majority(int set, int of, int left)
    {
        of &= ~left;
        if (bits(of) == 2) return set >> lowest(of) & 1;
        return 2 * bits(set & of) > bits(of);
    }
}

typedef Word {
    byte mode;
    byte ballot, live;          /* of the epoch it is in */
    byte base, baseLive;        /* newest epoch it knows of */
    byte round, vote, seen;
    byte edge[N];
    byte attempt[16];           /* round of the last vote for that set, 0: none */
    byte spoke;                 /* workers that have reported in this search */
    byte left;                  /* workers that announced that they leave */
    byte ready;                 /* 1: it decides */
    byte result;                /* 0: not complete; else which computation it is from */
    byte heardRound[N], heardVote[N], heardResult[N];
    short heardEdges[N];        /* the lost pairs and the base that were read last: has anything changed? */
};

Word w[N];
byte cut[N];                    /* bit j of cut[i] */
byte comes = COMES, crashes = CRASHES, cuts = CUTS, leaves = LEAVES, crashed, departed, hasCut;
byte decided[ROUNDS];           /* live set of each ballot */
byte handed[ROUNDS];            /* the forwarded result, 0: its workers compute it */
byte took[ROUNDS];              /* workers that have contributed in that epoch */
byte set, a, b, i, j, k, ok, may, lost;
bool news;

/* set = the workers that could continue, as far as w[j] knows */
inline survive() {
    c_code { now.set = survivors(now.w[now.j].baseLive & ~now.w[now.j].left, now.w[now.j].edge, N); }
}

/* ok = the set may continue, as far as w[j] knows */
inline mayGoOn() {
    c_code {
        int m, left = now.w[now.j].left;
        now.ok = majority(now.set, now.w[now.j].baseLive, left);
#ifndef FORGET
        for (m = 1; m < 16; m++)
            if (now.w[now.j].attempt[m] > now.w[now.j].base && !majority(now.set, m, left)) now.ok = 0;
#endif
    }
}

/* Whether worker j decides now: all workers of its set have voted for it, and the set may continue. */
inline weigh() {
    c_code {
        struct Word *x = &now.w[now.j];
        int r, m;
        x->ready = x->mode == SEARCH && x->vote && lowest(x->vote) == now.j &&
                   majority(x->vote, x->baseLive, x->left);
        for (r = 0; r < N; r++)
            if (r != now.j && (x->vote >> r & 1) &&
                (x->heardRound[r] != x->round || x->heardVote[r] != x->vote))
                x->ready = 0;
#ifndef FORGET
        for (m = 1; m < 16; m++)
            if (x->attempt[m] > x->base && !majority(x->vote, m, x->left)) x->ready = 0;
#endif
    }
}

/* Worker j evaluates its state again. */
inline think() {
    c_code {
        struct Word *x = &now.w[now.j];
        int round, all;
        if (x->mode == RUN) { x->mode = SEARCH; x->vote = 0; }
        now.set = survivors(x->baseLive & ~x->left, x->edge, N);
        round = x->round > x->base ? x->round : x->base + 1;
#ifndef TWICE
        if (x->vote && x->vote != now.set && round == x->round) round++;
#else
        if (x->vote && x->vote != now.set) x->vote = 0;
#endif
        if (x->seen > round) round = x->seen;
        if (round != x->round) { x->round = x->seen = round; x->vote = 0; }
        all = (now.set & ~(x->spoke | 1 << now.j)) == 0;
#ifndef HASTY
        {
            int r;
            for (r = 0; r < N; r++)
                if (r != now.j && (now.set >> r & 1) &&
                    (pairs(x->edge, N) & ~x->heardEdges[r] & 63))
                    all = 0;
        }
#endif
        if (!x->vote && (now.set >> now.j & 1) && all) {
            x->vote = now.set;
            x->attempt[now.set] = round;
        }
    }
    weigh();
    assert(w[j].round < ROUNDS);
}

/* Worker j begins epoch k. */
inline begin() {
    c_code {
        struct Word *x = &now.w[now.j];
        int r, lostNow = x->edge[now.j] & now.decided[now.k];
        x->mode = RUN;
        x->ballot = x->base = x->round = now.k;
        x->live = x->baseLive = now.decided[now.k];
        if (x->seen < now.k) x->seen = now.k;
        x->vote = x->spoke = 0;
        x->left &= x->live;
        memset(x->edge, 0, N);
        memset(x->attempt, 0, 16);
        memset(x->heardRound, 0, N);
        memset(x->heardVote, 0, N);
        memset(x->heardResult, 0, N);
        memset(x->heardEdges, 0, sizeof x->heardEdges);
        for (r = 0; r < N; r++)
            if (lostNow >> r & 1) { x->edge[now.j] |= 1 << r; x->edge[r] |= 1 << now.j; }
        now.took[now.k] |= 1 << now.j;
        now.news = lostNow != 0;
    }
    if
    :: news -> think()
    :: else -> w[j].ready = 0
    fi
}

#if N > 3
#define digest(x) ((x.edge[0] >> 1 & 1) | (x.edge[0] >> 2 & 1) << 1 | (x.edge[1] >> 2 & 1) << 2 |  \
                   (x.edge[0] >> 3 & 1) << 3 | (x.edge[1] >> 3 & 1) << 4 |                         \
                   (x.edge[2] >> 3 & 1) << 5 | x.base << 6)
#else
#define digest(x) ((x.edge[0] >> 1 & 1) | (x.edge[0] >> 2 & 1) << 1 | (x.edge[1] >> 2 & 1) << 2 |  \
                   x.base << 6)
#endif
#define linked(x, y) (!(cut[x] & (1 << y)) && !(w[y].edge[y] & (1 << x)))

/* The report of i reaches j. */
inline hear() {
    c_code {
        struct Word *x = &now.w[now.j], *y = &now.w[now.i];
        int r, m;
        x->spoke |= 1 << now.i;
        x->heardRound[now.i] = y->round;
        x->heardVote[now.i] = y->vote;
        x->heardResult[now.i] = y->result;
        x->heardEdges[now.i] = (short)(pairs(y->edge, N) | y->base << 6);
        if (y->base > x->base) {
            x->base = y->base;
            x->baseLive = y->baseLive;
        }
        for (m = 1; m < 16; m++) if (y->attempt[m] > x->attempt[m]) x->attempt[m] = y->attempt[m];
        for (m = 1; m < 16; m++) if (x->attempt[m] <= x->base) x->attempt[m] = 0;
        for (r = 0; r < N; r++) x->edge[r] |= y->edge[r];
        x->left |= y->left & x->baseLive;
        if (y->round > x->seen) x->seen = y->round;
    }
    if
    :: !(w[j].baseLive & (1 << j)) -> w[j].mode = GONE
    :: else -> think()
    fi
}

inline decide() {
    k = w[j].round;
    assert(decided[k] == 0 || decided[k] == w[j].vote); /* one decision per ballot */
    decided[k] = w[j].vote;
    handed[k] = w[j].result;
#ifndef ANEW
    c_code {
        struct Word *x = &now.w[now.j];
        int r;
        for (r = N - 1; r >= 0; r--)
            if (r != now.j && (x->vote >> r & 1) && x->heardResult[r])
                now.handed[now.k] = x->heardResult[r];
    }
#endif
    begin()
}

#define complete(x)                                                                              \
    (w[x].mode == RUN && w[x].result == 0 && handed[w[x].ballot] == 0 && contributed(x))
#ifdef BROADCAST
#define contributed(x) (took[w[x].ballot] & (w[x].live & -w[x].live))
#else
#define contributed(x) ((took[w[x].ballot] & w[x].live) == w[x].live)
#endif
/* a worker of the epoch has the result and can forward it */
#define given(x, y)                                                                              \
    (w[x].mode == RUN && w[x].result == 0 && handed[w[x].ballot] && w[y].mode == RUN &&            \
     w[y].ballot == w[x].ballot && w[y].result == handed[w[x].ballot] && linked(y, x))

/* all others of its epoch have the result, as far as a worker knows before it leaves */
#define unneeded(x) (w[x].result && needy(x, 0) && needy(x, 1) && needy(x, 2) && needy(x, N - 1))
#define needy(x, y) (x == y || !(w[x].live & (1 << y)) || w[y].result)
#define reads(x) (w[x].mode < GONE)
/* The goodbye of X reaches Y. */
#ifdef DEAF
#define hears_of(Y) w[Y].left = w[Y].left
#else
#define hears_of(Y) if :: w[Y].mode == SEARCH -> j = Y; think() :: else fi
#endif

/* Actions of worker X. */
#define WORKER(X)                                                                                \
    :: atomic { crashes > 0 && VICTIM(X) && reads(X) -> crashes--; crashed++; w[X].mode = GONE }  \
    :: atomic { leaves > 0 && reads(X) && unneeded(X) -> leaves--; departed++; w[X].mode = LEFT }  \
    :: atomic { complete(X) -> w[X].result = 1 + w[X].ballot }                                     \
    :: atomic { w[X].mode == SEARCH && w[X].ready -> j = X; decide() }

/* Messages from X to Y. */
#define PAIR(X, Y)                                                                               \
    :: atomic { reads(Y) && linked(X, Y) && w[X].round > w[Y].base &&                     \
                w[X].round > w[X].ballot &&                                                        \
                (w[Y].heardRound[X] != w[X].round || w[Y].heardVote[X] != w[X].vote ||             \
                 w[Y].heardEdges[X] != digest(w[X])) -> i = X; j = Y; hear() }                     \
    :: atomic { reads(Y) && linked(X, Y) && w[X].ballot > w[Y].ballot &&                  \
                w[X].ballot >= FLOOR(Y) && w[X].ballot >= w[Y].base ->                             \
                j = Y; k = w[X].ballot;                                                            \
                if :: (decided[k] & (1 << Y)) -> begin() :: else -> w[Y].mode = GONE fi }          \
    :: atomic { w[X].mode == LEFT && reads(Y) && linked(X, Y) && (w[Y].live & (1 << X)) &&          \
                !(w[Y].left & (1 << X)) -> w[Y].left = w[Y].left | (1 << X); hears_of(Y) }         \
    :: atomic { reads(Y) && (w[Y].live & (1 << X)) && !(w[Y].left & (1 << X)) &&                   \
                !(w[Y].edge[Y] & (1 << X)) &&                                                      \
                (w[X].mode == GONE || (cut[X] & (1 << Y))) ->                                      \
                w[Y].edge[Y] = w[Y].edge[Y] | (1 << X);                                            \
                w[Y].edge[X] = w[Y].edge[X] | (1 << Y); j = Y; think() }                           \
    :: atomic { given(X, Y) -> w[X].result = handed[w[X].ballot] }
#ifdef BELOW
#define FLOOR(Y) 0
#else
#define FLOOR(Y) w[Y].round
#endif

#define CUT(X, Y)                                                                                \
    :: atomic { cuts > 0 && CUTTABLE(X, Y) -> cuts--; hasCut = 1; cut[X] = cut[X] | (1 << Y);                        \
                cut[Y] = cut[Y] | (1 << X) }

init {
    atomic {
        for (i : 0 .. N - 1) { w[i].live = ALL; w[i].baseLive = ALL }
        decided[0] = ALL;
        took[0] = ALL;
    }
again:
    do
    WORKER(0) WORKER(1) WORKER(2)
    :: atomic { comes > 0 && w[1].mode == RUN -> comes--; j = 1; think() }
    PAIR(0, 1) PAIR(1, 0) PAIR(0, 2) PAIR(2, 0) PAIR(1, 2) PAIR(2, 1)
    CUT(0, 1) CUT(0, 2) CUT(1, 2)
#if N > 3
    WORKER(3)
    PAIR(0, 3) PAIR(3, 0) PAIR(1, 3) PAIR(3, 1) PAIR(2, 3) PAIR(3, 2)
    CUT(0, 3) CUT(1, 3) CUT(2, 3)
#endif
    :: atomic { crashes + cuts + comes + leaves > 0 ->
                crashes = 0; cuts = 0; comes = 0; leaves = 0 } /* nothing more happens to them */
    :: else -> break
    od;
    /* time limits: a worker without a quorum, or outside of the set, gives up */
    atomic {
        lost = 0;
        for (a : 0 .. N - 1) {
            if
            :: w[a].mode == SEARCH && !lost ->
                j = a;
                survive();
                mayGoOn();
                if
                :: !ok || !(set & (1 << a)) -> w[a].mode = GONE; lost = 1
                :: else
                fi
            :: else
            fi
        }
    }
    if
    :: lost -> goto again
    :: else
    fi;
    atomic {
        k = 255;
        b = 0;
        for (a : 0 .. N - 1) {
            if
            :: reads(a) ->
                assert(w[a].mode == RUN);               /* nothing waits forever */
                assert(w[a].result != 0);
                assert(k == 255 || w[k].ballot == w[a].ballot);
                assert(k == 255 || w[k].result == w[a].result);
                k = a;
                b++
            :: else
            fi
        }
        /* one worker crashed: all others continue if they are a quorum */
        assert(hasCut || crashed != 1 || N - departed == 2 || b == N - 1 - departed);
        assert(hasCut || crashed != 0 || b == N - departed);
        i = 0; j = 0; a = 0; b = 0; k = 0; set = 0; ok = 0; may = 0
    }
}
