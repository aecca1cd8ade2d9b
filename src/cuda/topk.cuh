/* The k elements of largest magnitude, exactly. Three passes find the digits of the k-th magnitude by
 * counting, and a fourth pass writes the elements that reach it. The second pass also lists the elements that
 * reach the first digit, and later passes read only the list: 2 reads of the array. If the list overflows,
 * the third pass lists the elements that reach two digits (3 reads). If that list overflows too, all passes
 * read the array (4 reads). */
#pragma once

#include "cuda/feedback.cuh"

enum {
    DDP__TOPK_THREADS = 512,
    DDP__TOPK_WARPS = DDP__TOPK_THREADS / 32,
    DDP__TOPK_BLOCKS = 264, /* maximum, not above THREADS, two per multiprocessor of a large GPU */
    DDP__TOPK_EACH = 16,    /* elements per thread at a time */
    DDP__TOPK_TILE = DDP__TOPK_EACH * DDP__TOPK_THREADS,
    DDP__TOPK_DIGIT = 2048 /* number of values of the first digit, which has 11 bits. The others have 10. */
};

/* State at the start of a pass: the known digits of the k-th element. */
typedef struct ddp__topk_step {
    uint32_t prefix;         /* the digits counted so far */
    uint32_t digit;          /* the last of them */
    int listed;              /* 1 if this pass reads the list */
    int make;                /* 1 if this pass writes the list */
    unsigned long long rank; /* rank of the k-th element among the elements with this prefix */
} ddp__topk_step;

/* The range of the array that a block reads or, once there is a list, the range of the list that it wrote. So
 * results stay in the order of the array. */
typedef struct ddp__topk_chunk {
    unsigned long long begin, end;
} ddp__topk_chunk;

/* Device memory of a call. */
typedef struct ddp__topk_room {
    unsigned long long *total; /* [3][DIGIT] number of elements with each digit */
    ddp__topk_step *step;      /* [4] */
    ddp__topk_chunk *chunk;    /* [blocks] */
    uint32_t *part;            /* [2][blocks][DIGIT] number of elements of a chunk that reach each digit.
                                  Passes alternate */
    uint32_t *bits;            /* [most] the list: elements */
    uint64_t *index;           /* and their indexes */
    unsigned long long most, n, k;
    int blocks;
} ddp__topk_room;

/* Sum over the lanes of the warp up to and including this one. */
template <typename T> static inline __device__ T ddp__topk_up_to(T mine)
{
    for (int far = 1; far < 32; far *= 2) {
        const T more = __shfl_up_sync(DDP__ALL_LANES, mine, far);
        if ((int)threadIdx.x % 32 >= far) mine += more;
    }
    return mine;
}

/* Sum over the threads of the block before this one. *all: sum over all threads. */
template <typename T> static inline __device__ T ddp__topk_before(T mine, T *all)
{
    __shared__ T sum[DDP__TOPK_WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const T up = ddp__topk_up_to(mine);
    T before = up - mine;

    if (lane == 31) sum[warp] = up;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < DDP__TOPK_WARPS; w++) {
        if (w < warp) before += sum[w];
        *all += sum[w];
    }
    __syncthreads(); /* sum may be overwritten by the next call */
    return before;
}

/* Chooses the digit of the k-th element from the counts of the previous pass. */
template <int PASS> static inline __device__ ddp__topk_step ddp__topk_choose(const ddp__topk_room &r)
{
    enum { COUNT = PASS > 1 ? DDP__TOPK_DIGIT / 2 : DDP__TOPK_DIGIT, EACH = COUNT / DDP__TOPK_THREADS };
    __shared__ ddp__topk_step next;
    const ddp__topk_step s = PASS > 1 ? r.step[PASS - 1] : ddp__topk_step{0, 0, 0, 0, r.k};
    const int top = COUNT - 1 - (int)threadIdx.x * EACH; /* the first thread has the largest digits */
    const unsigned long long *total = r.total + (PASS - 1) * DDP__TOPK_DIGIT + top;
    unsigned long long mine = 0, before, all;

    for (int i = 0; i < EACH; i++) mine += total[-i];
    before = ddp__topk_before(mine, &all);
    for (int i = 0; i < EACH; i++) {
        const unsigned long long these = total[-i];
        if (before < s.rank && s.rank <= before + these) { /* true in one thread of the block */
            next.digit = (uint32_t)(top - i);
            next.prefix = s.prefix << 10 | next.digit;
            next.rank = s.rank - before;
            next.listed = s.listed | s.make;
            next.make = !next.listed && r.k - next.rank + these <= r.most;
        }
        before += these;
    }
    __syncthreads();
    return next;
}

/* Offset of a thread's elements in a tile: groups of four, 128 apart. */
static inline __device__ unsigned ddp__topk_place(int i)
{
    return threadIdx.x / 32 * (32 * DDP__TOPK_EACH) + threadIdx.x % 32 * 4 + (unsigned)(i / 4 * 128 + i % 4);
}

/* Loads the thread's elements of the tile at `at`. Returns a bit mask of the elements before the end. The
 * others are 0. */
static inline __device__ unsigned ddp__topk_load(const uint32_t *from, unsigned long long at,
                                                 unsigned long long end, int wide, uint32_t *x)
{
    const unsigned left = at < end ? (unsigned)min(end - at, (unsigned long long)DDP__TOPK_TILE) : 0;
    unsigned there = 0;

    from += at;
    if (wide && left == DDP__TOPK_TILE) {
        DDP__UNROLL for (int i = 0; i < DDP__TOPK_EACH; i += 4)
        {
            const ddp__vec<uint32_t> four = ddp__vec_load(from + ddp__topk_place(i));
            DDP__UNROLL for (int e = 0; e < 4; e++) x[i + e] = four.v[e];
        }
        return 0xffff;
    }
    DDP__UNROLL for (int i = 0; i < DDP__TOPK_EACH; i++)
    {
        const unsigned is = ddp__topk_place(i) < left;
        x[i] = is ? from[ddp__topk_place(i)] : 0;
        there |= is << i;
    }
    return there;
}

/* Counts the tile's elements in mask. *before: for each of this thread's groups of four, 16 bits with the
 * number of elements before it. Returns the number of elements in the tile. One barrier: the caller must
 * alternate `sum` between calls. */
static inline __device__ unsigned ddp__topk_rank(unsigned mask, unsigned long long *before, unsigned *sum)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    unsigned own = 0, up, row, count;

    /* 8 bits for each: four elements per lane make 128 per warp */
    DDP__UNROLL for (int j = 0; j < 4; j++) own |= (unsigned)__popc(mask >> 4 * j & 15) << 8 * j;
    up = ddp__topk_up_to(own);
    row = __shfl_sync(DDP__ALL_LANES, up, 31);
    up -= own;
    if (lane == 0) sum[warp] = (row & 255) + (row >> 8 & 255) + (row >> 16 & 255) + (row >> 24);
    __syncthreads();
    count = lane < DDP__TOPK_WARPS ? sum[lane] : 0;
    own = __reduce_add_sync(DDP__ALL_LANES, lane < warp ? count : 0);
    *before = 0;
    DDP__UNROLL for (int j = 0; j < 4; j++)
    {
        *before |= (unsigned long long)(own + (up >> 8 * j & 255)) << 16 * j;
        own += row >> 8 * j & 255;
    }
    return __reduce_add_sync(DDP__ALL_LANES, count);
}

/* Returns the number in *before for the first element in left, and increments it. */
static inline __device__ unsigned ddp__topk_next(unsigned long long *before, unsigned left)
{
    const int at = (__ffs((int)left) - 1) / 4 * 16;
    const unsigned is = (unsigned)(*before >> at) & 0xffff;
    *before += 1ull << at;
    return is;
}

/* Ends a counting pass: stores for each digit how many elements of the chunk reach it, and adds the counts
 * over all chunks. reach is the number of elements of the chunk that reach the prefix. */
template <int COUNT>
static inline __device__ void ddp__topk_counted(const ddp__topk_room &r, int pass, const unsigned *bins,
                                                unsigned reach)
{
    enum { EACH = COUNT / DDP__TOPK_THREADS };
    const int first = (int)threadIdx.x * EACH;
    unsigned long long *total = r.total + pass * DDP__TOPK_DIGIT;
    uint32_t *part = r.part + ((size_t)(pass % 2) * (unsigned)r.blocks + blockIdx.x) * DDP__TOPK_DIGIT;
    unsigned mine = 0, below, all;

    __syncthreads();
    for (int b = first; b < first + EACH; b++) mine += bins[b];
    below = ddp__topk_before(mine, &all);
    for (int b = first; b < first + EACH; b++) {
        part[b] = reach - below;
        below += bins[b];
        if (bins[b]) atomicAdd(&total[b], (unsigned long long)bins[b]);
    }
    if (COUNT < DDP__TOPK_DIGIT && first == 0) part[COUNT] = reach - all; /* the elements above the prefix */
}

/* Pass 0 counts the first digit of all elements. It runs backwards, so that the next pass finds the last
 * elements that it read in the cache. */
static __global__ void __launch_bounds__(DDP__TOPK_THREADS, 2)
    ddp__k_topk_first(ddp__topk_room r, const float *x, ddp_cuda_verdict *v)
{
    __shared__ unsigned bins[DDP__TOPK_DIGIT];
    const uint32_t *const from = (const uint32_t *)(const void *)x;
    const unsigned long long tile = DDP__TOPK_TILE, most = ((r.n - 1) / tile / (unsigned)r.blocks + 1) * tile;
    const unsigned long long begin = min(most * blockIdx.x, r.n), end = min(begin + most, r.n);
    const int wide = ddp__aligned(x);
    unsigned left = (unsigned)((end - begin + tile - 1) / tile);
    uint32_t ahead[DDP__TOPK_EACH], largest = 0;

    if (v->what) return;
    for (int b = (int)threadIdx.x; b < DDP__TOPK_DIGIT; b += DDP__TOPK_THREADS) bins[b] = 0;
    if (threadIdx.x == 0) {
        bins[0] -= left * (unsigned)tile - (unsigned)(end - begin); /* cancels the zeros that are counted past
                                                                     * the end */
        r.chunk[blockIdx.x] = {begin, end};
    }
    __syncthreads();
    if (left) (void)ddp__topk_load(from, begin + (left - 1) * tile, end, wide, ahead);
    while (left--) {
        const unsigned long long at = begin + left * tile;
        uint32_t e[DDP__TOPK_EACH];

        DDP__UNROLL for (int i = 0; i < DDP__TOPK_EACH; i++) e[i] = ahead[i];
        if (left) (void)ddp__topk_load(from, at - tile, end, wide, ahead); /* loads the next tile meanwhile */
        DDP__UNROLL for (int i = 0; i < DDP__TOPK_EACH; i++)
        {
            atomicAdd(&bins[e[i] >> 20 & (DDP__TOPK_DIGIT - 1)], 1u);
            largest = max(largest, e[i] & DDP__MAGNITUDE);
        }
    }
    if (__syncthreads_or(largest > DDP__INFINITE))
        for (unsigned long long place = begin + threadIdx.x; place < end; place += DDP__TOPK_THREADS)
            if ((from[place] & DDP__MAGNITUDE) > DDP__INFINITE) ddp__verdict_note(v, DDP__SAYS_NAN, place);
    ddp__topk_counted<DDP__TOPK_DIGIT>(r, 0, bins, (unsigned)(end - begin));
}

/* Passes 1 and 2 count the next digit of the elements with the prefix, and one of them writes the list of all
 * elements that reach it. Pass 3 writes the elements above the k-th and, from the front, as many elements
 * equal to it as its rank. */
template <int PASS>
static __global__ void __launch_bounds__(DDP__TOPK_THREADS, 2)
    ddp__k_topk(ddp__topk_room r, const float *x, uint64_t *index, float *value, ddp_cuda_verdict *v)
{
    enum { COUNT = DDP__TOPK_DIGIT / 2, KNOWN = 30 - 10 * PASS, SHIFT = PASS < 2 ? 10 : 0 };
    __shared__ unsigned bins[COUNT], sum[2][2][DDP__TOPK_WARPS];
    const int t = (int)threadIdx.x, block = (int)blockIdx.x;
    unsigned long long out, above, equal = 0;
    uint32_t m[DDP__TOPK_EACH];

    if (PASS == 1 ? ddp__verdict_end(v, ddp__verdict_values{x, NULL}) : v->pending != 0) return;
    for (int b = t; b < COUNT; b += DDP__TOPK_THREADS) bins[b] = 0;
    const ddp__topk_step s = ddp__topk_choose<PASS>(r);
    const ddp__topk_chunk c = r.chunk[block];
    /* number of elements that reach the prefix, in this chunk and in the chunks before it */
    const uint32_t *const part = r.part + (PASS + 1) % 2 * (size_t)r.blocks * DDP__TOPK_DIGIT + s.digit;
    const unsigned reach = part[(size_t)block * DDP__TOPK_DIGIT];
    (void)ddp__topk_before(t < block ? part[(size_t)t * DDP__TOPK_DIGIT] : 0ull, &out);
    if (PASS == 3) {
        (void)ddp__topk_before(t < block ? part[(size_t)t * DDP__TOPK_DIGIT + 1] : 0ull, &above);
        equal = out - above;
        out = above + (equal < s.rank ? equal : s.rank);
    }
    if (t == 0 && block == 0) r.step[PASS] = s;
    if (t == 0 && s.make) r.chunk[block] = {out, out + reach};

    const uint32_t *const from = s.listed ? r.bits : (const uint32_t *)(const void *)x,
                          floor = s.prefix << KNOWN;
    const int wide = ddp__aligned(from + c.begin);
    unsigned there = ddp__topk_load(from, c.begin, c.end, wide, m), turn = 0;
    for (unsigned long long at = c.begin; at < c.end; at += DDP__TOPK_TILE, turn ^= 1) {
        unsigned take = 0, same = 0, found = 0;
        unsigned long long before = 0;

        DDP__UNROLL for (int i = 0; i < DDP__TOPK_EACH; i++)
        {
            take |= (unsigned)((m[i] & DDP__MAGNITUDE) >= floor) << i;
            if (PASS == 3) same |= (unsigned)((m[i] & DDP__MAGNITUDE) == floor) << i;
        }
        take &= there;
        same &= there;
        there = ddp__topk_load(from, at + DDP__TOPK_TILE, c.end, wide, m); /* loads the next tile meanwhile */
        if (PASS == 3) {                                                   /* drops the ties after the rank */
            found = ddp__topk_rank(same, &before, sum[turn][0]);
            for (unsigned left = same; left; left &= left - 1)
                if (equal + ddp__topk_next(&before, left) >= s.rank) take &= ~(left & (0u - left));
            equal += found;
        }
        if (PASS == 3 || s.make) found = ddp__topk_rank(take, &before, sum[turn][1]);
        for (unsigned left = take; left; left &= left - 1) {
            const unsigned long long place = at + ddp__topk_place(__ffs((int)left) - 1);
            const unsigned long long to = out + ddp__topk_next(&before, left);
            const uint32_t bits = from[place]; /* a second load, but of few elements, from the cache */
            if (PASS == 3) {
                index[to] = s.listed ? r.index[place] : place;
                if (value) value[to] = __uint_as_float(bits);
                continue;
            }
            if (s.make) {
                r.index[to] = place;
                r.bits[to] = bits;
            }
            if ((bits & DDP__MAGNITUDE) >> KNOWN == s.prefix)
                atomicAdd(&bins[bits >> SHIFT & (COUNT - 1)], 1u);
        }
        out += found;
    }
    if (PASS < 3) ddp__topk_counted<COUNT>(r, PASS, bins, reach);
}

/* ---- on the host ---- */

/* Divides the scratch into arrays. Returns its size in bytes, or 0 on overflow of size_t. */
static size_t ddp__topk_cut_room(size_t n, size_t k, void *scratch, ddp__topk_room *r)
{
    const size_t tiles = (n - 1) / DDP__TOPK_TILE + 1, extra = 65536;
    const size_t blocks = tiles < DDP__TOPK_BLOCKS ? tiles : (size_t)DDP__TOPK_BLOCKS;
    const size_t wish = k > (n - 1) / 2 || n - 2 * k < extra ? n : 2 * k + extra, most = wish / 4 * 4 + 4;
    const size_t fixed = 3 * DDP__TOPK_DIGIT * sizeof *r->total + 4 * sizeof *r->step +
                         blocks * (sizeof *r->chunk + 2 * DDP__TOPK_DIGIT * sizeof *r->part);

    if (most > (SIZE_MAX - fixed) / 12) return 0;
    memset(r, 0, sizeof *r);
    r->n = n;
    r->k = k;
    r->most = most;
    r->blocks = (int)blocks;
    if (scratch) { /* the sizes of all but the last are multiples of 16 bytes */
        r->total = (unsigned long long *)scratch;
        r->chunk = (ddp__topk_chunk *)(void *)(r->total + 3 * DDP__TOPK_DIGIT);
        r->part = (uint32_t *)(void *)(r->chunk + blocks);
        r->bits = r->part + 2 * blocks * DDP__TOPK_DIGIT;
        r->index = (uint64_t *)(void *)(r->bits + most);
        r->step = (ddp__topk_step *)(void *)(r->index + most);
    }
    return fixed + most * 12;
}

size_t ddp_cuda_topk_scratch(size_t n, size_t k)
{
    ddp__topk_room r;
    return k < 1 || k > n ? 0 : ddp__topk_cut_room(n, k, NULL, &r);
}

ddp_status ddp_cuda_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes,
                         uint64_t *index, float *value, ddp_cuda_verdict *verdict, void *stream,
                         ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    ddp__topk_room r;

    DDP__TRY(ddp__select_check("ddp_cuda_topk", x, n, k, scratch, scratch_bytes, ddp_cuda_topk_scratch(n, k),
                               index, err));
    if (!verdict || (uintptr_t)scratch % 16)
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_topk: verdict is NULL, or scratch is not aligned to 16 bytes");
    (void)ddp__topk_cut_room(n, k, scratch, &r);
    (void)cudaMemsetAsync(r.total, 0, 3 * DDP__TOPK_DIGIT * sizeof *r.total, dev->stream);
    DDP__RUN(ddp__k_topk_first, r.blocks, DDP__TOPK_THREADS, r, x, verdict);
    DDP__RUN(ddp__k_topk<1>, r.blocks, DDP__TOPK_THREADS, r, x, index, value, verdict);
    DDP__RUN(ddp__k_topk<2>, r.blocks, DDP__TOPK_THREADS, r, x, index, value, verdict);
    DDP__RUN(ddp__k_topk<3>, r.blocks, DDP__TOPK_THREADS, r, x, index, value, verdict);
    return ddp__cuda_queued(dev, err);
}
