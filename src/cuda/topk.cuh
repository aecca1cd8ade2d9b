/* The k largest by magnitude, exactly: a radix search for the k-th, on the array and then on the
 * few elements that can still be among them. Blocks own contiguous chunks and count theirs, so that
 * what is collected lies in the order of the array and ties are kept from the front. */
#ifndef DDP_CUDA_TOPK_CUH
#define DDP_CUDA_TOPK_CUH

#include "cuda/feedback.cuh"

enum {
    DDP__TOPK_THREADS = 512,
    DDP__TOPK_BLOCKS = 528, /* at most; four to a multiprocessor of a large GPU */
    DDP__TOPK_CHUNK = 4096, /* elements of a block at least */
    DDP__TOPK_DIGIT = 2048, /* values of the first digit, which has 11 bits; the others have 10 */
    DDP__TOPK_STEPS = 6     /* three digits on the array, two on the list, and the start */
};

/* How far the search is. An element is above, equal to or below the prefix in its first digits. */
typedef struct ddp__topk_step {
    uint32_t           prefix;
    int                digits; /* that are known */
    int                ready;  /* 1: the list is made next */
    int                unused;
    unsigned long long rank;   /* the k-th is so many-th of those equal to the prefix */
    unsigned long long listed; /* elements of the list */
} ddp__topk_step;

/* Device memory of a call. */
typedef struct ddp__topk_room {
    ddp__topk_step     *step;  /* [DDP__TOPK_STEPS] */
    unsigned long long *total; /* [DDP__TOPK_STEPS][DDP__TOPK_DIGIT] how often each digit is */
    uint32_t           *part;  /* [blocks][DDP__TOPK_DIGIT] the same of one chunk */
    unsigned long long *above, *equal; /* [blocks] elements of a chunk */
    uint64_t           *index; /* [most] the list: places */
    uint32_t           *bits;  /* and the elements themselves */
    unsigned long long  most, n, k;
    int                 blocks;
} ddp__topk_room;

static inline __device__ int ddp__topk_shift(int digit) { return digit == 0 ? 20 : digit == 1 ? 10 : 0; }

/* What is searched: the array, or the list that was made of it. */
typedef struct ddp__topk_part {
    const uint32_t    *bits;
    const uint64_t    *index; /* NULL: an element's own place */
    unsigned long long begin, end;
} ddp__topk_part;

static inline __device__ ddp__topk_part ddp__topk_part_of(const ddp__topk_room &r, const float *x,
                                                          const ddp__topk_step &s)
{
    const unsigned long long n = x ? r.n : s.listed;
    const unsigned long long chunk = ((n + (unsigned)r.blocks - 1) / (unsigned)r.blocks + 3) / 4 * 4;
    ddp__topk_part p;

    p.bits = x ? (const uint32_t *)(const void *)x : r.bits;
    p.index = x ? NULL : r.index;
    p.begin = chunk * blockIdx.x < n ? chunk * blockIdx.x : n;
    p.end = p.begin + chunk < n ? p.begin + chunk : n;
    return p;
}

/* Up to four elements from a place on; those at the end or past it are 0. */
static inline __device__ void ddp__topk_four(const ddp__topk_part &p, unsigned long long at, int wide, uint32_t *four)
{
    if (wide && at + 4 <= p.end) {
        const ddp__vec<uint32_t> v = ddp__vec_load(p.bits + at);
        for (int e = 0; e < 4; e++) four[e] = v.v[e];
        return;
    }
    for (int e = 0; e < 4; e++) four[e] = at + (unsigned)e < p.end ? p.bits[at + (unsigned)e] : 0;
}

/* The sums over the block of two counts of its chunk. In thread 0. */
static inline __device__ void ddp__topk_sum(unsigned *a, unsigned *b)
{
    __shared__ unsigned sum[2][DDP__TOPK_THREADS / 32];
    const int t = (int)threadIdx.x;

    *a = __reduce_add_sync(0xffffffffu, *a);
    *b = __reduce_add_sync(0xffffffffu, *b);
    if (t % 32 == 0) sum[0][t / 32] = *a, sum[1][t / 32] = *b;
    __syncthreads();
    for (int w = 1; t == 0 && w < DDP__TOPK_THREADS / 32; w++) *a += sum[0][w], *b += sum[1][w];
}

/* Whether step has anything to do for the digit, of the array (x) or the list. */
static inline __device__ int ddp__topk_wanted(const ddp__topk_room &r, const ddp__topk_step &s,
                                              const float *x, int digit)
{
    return s.digits == digit && (x ? !s.ready : s.listed > r.k);
}

/* Counts the next digit of the elements equal to the prefix, and the elements above it. Two counts
 * of each bin, for lanes in turn: most magnitudes fall into few bins. */
static __global__ void ddp__k_topk_count(ddp__topk_room r, const float *x, int step, int digit, ddp_cuda_verdict *v)
{
    __shared__ unsigned bins[2][DDP__TOPK_DIGIT];
    const ddp__topk_step s = r.step[step];
    const ddp__topk_part p = ddp__topk_part_of(r, x, s);
    const int t = (int)threadIdx.x, shift = ddp__topk_shift(digit);
    const int count = digit ? DDP__TOPK_DIGIT / 2 : (int)DDP__TOPK_DIGIT;
    const int wide = ddp__aligned(p.bits);
    const uint32_t mask = (uint32_t)count - 1;
    unsigned above = 0, nothing = 0;

    if (v->what || !ddp__topk_wanted(r, s, x, digit)) return;
    for (int b = t; b < DDP__TOPK_DIGIT; b += DDP__TOPK_THREADS) bins[0][b] = bins[1][b] = 0;
    __syncthreads();
    for (unsigned long long at = p.begin + 4 * (unsigned)t; at < p.end; at += 4 * DDP__TOPK_THREADS) {
        uint32_t four[4];
        ddp__topk_four(p, at, wide, four);
        for (int e = 0; e < 4 && at + (unsigned)e < p.end; e++) {
            const uint32_t m = four[e] & DDP__MAGNITUDE, known = digit ? m >> ddp__topk_shift(digit - 1) : 0;
            if (known == s.prefix) atomicAdd(&bins[t & 1][m >> shift & mask], 1u);
            above += known > s.prefix;
            if (m > DDP__INFINITE) ddp__verdict_note(v, DDP__SAYS_NAN, at + (unsigned)e);
        }
    }
    __syncthreads();
    for (int b = t; b < count; b += DDP__TOPK_THREADS) {
        const unsigned sum = bins[0][b] + bins[1][b];
        r.part[(size_t)blockIdx.x * DDP__TOPK_DIGIT + (unsigned)b] = sum;
        if (sum) atomicAdd(&r.total[step * DDP__TOPK_DIGIT + b], (unsigned long long)sum);
    }
    ddp__topk_sum(&above, &nothing);
    if (t == 0) r.above[blockIdx.x] = above;
}

/* Finds the digit of the k-th, the next step, and what each chunk has above it and equal to it. */
static __global__ void ddp__k_topk_choose(ddp__topk_room r, const float *x, int step, int digit,
                                          const ddp_cuda_verdict *v)
{
    enum { EACH = DDP__TOPK_DIGIT / DDP__TOPK_THREADS };
    __shared__ unsigned long long behind[DDP__TOPK_THREADS], rank, equals;
    __shared__ int bin;
    const ddp__topk_step s = r.step[step];
    const unsigned long long *total = r.total + step * DDP__TOPK_DIGIT;
    const uint32_t *part = r.part + (size_t)blockIdx.x * DDP__TOPK_DIGIT;
    const int t = (int)threadIdx.x, count = digit ? DDP__TOPK_DIGIT / 2 : (int)DDP__TOPK_DIGIT;
    unsigned long long mine = 0, before;
    unsigned above = 0, equal = 0;

    if (v->what) return;
    if (!ddp__topk_wanted(r, s, x, digit)) {
        if (blockIdx.x == 0 && t == 0) r.step[step + 1] = s;
        return;
    }
    for (int i = 0; i < EACH; i++) mine += t * EACH + i < count ? total[t * EACH + i] : 0;
    behind[t] = mine;
    __syncthreads();
    for (int far = 1; far < DDP__TOPK_THREADS; far *= 2) { /* sums from here to the last bin */
        const unsigned long long more = t + far < DDP__TOPK_THREADS ? behind[t + far] : 0;
        __syncthreads();
        behind[t] += more;
        __syncthreads();
    }
    before = behind[t] - mine;
    if (before < s.rank && s.rank <= behind[t]) {
        int b = t * EACH + EACH - 1;
        for (; b >= count || before + total[b] < s.rank; b--) before += b < count ? total[b] : 0;
        bin = b;
        rank = s.rank - before;
        equals = total[b];
    }
    __syncthreads();
    for (int b = t; b < count; b += DDP__TOPK_THREADS) {
        if (b > bin) above += part[b];
        if (b == bin) equal += part[b];
    }
    ddp__topk_sum(&above, &equal);
    if (t) return;
    r.above[blockIdx.x] += above;
    r.equal[blockIdx.x] = equal;
    if (blockIdx.x) return;
    ddp__topk_step next = s;
    next.prefix = digit ? s.prefix << 10 | (uint32_t)bin : (uint32_t)bin;
    next.digits = digit + 1;
    next.rank = rank;
    if (x) {
        next.listed = next.digits == 3 ? r.k : r.k - rank + equals;
        next.ready = next.listed <= r.most;
    }
    r.step[step + 1] = next;
}

/* Writes the elements that are above the prefix, and those equal to it: all of them while digits are missing, else as
 * many as its rank; in their order. From the array into the list, or from the list (x NULL) into index and value. */
static __global__ void ddp__k_topk_collect(ddp__topk_room r, const float *x, int step,
                                           uint64_t *index, float *value, const ddp_cuda_verdict *v)
{
    enum { WARPS = DDP__TOPK_THREADS / 32 };
    __shared__ unsigned sum[WARPS];
    __shared__ unsigned long long before[2];
    const ddp__topk_step s = r.step[step];
    const ddp__topk_part p = ddp__topk_part_of(r, x, s);
    const int t = (int)threadIdx.x, lane = t % 32, all = !x && s.listed == r.k;
    const int shift = s.digits ? ddp__topk_shift(s.digits - 1) : 31, wide = ddp__aligned(p.bits);
    const unsigned long long room = s.digits == 3 ? s.rank : ~0ull; /* for equals */
    unsigned long long above = 0, equal = 0;
    uint32_t next[4];

    if (v->what) return;
    if (t < 32) { /* what the chunks before have */
        for (unsigned b = (unsigned)t; !all && b < blockIdx.x; b += 32) above += r.above[b], equal += r.equal[b];
        for (int half = 16; half; half /= 2) {
            above += __shfl_xor_sync(DDP__ALL_LANES, above, half);
            equal += __shfl_xor_sync(DDP__ALL_LANES, equal, half);
        }
        if (t == 0) before[0] = all ? p.begin : above, before[1] = equal;
    }
    __syncthreads();
    above = before[0];
    equal = before[1];
    ddp__topk_four(p, p.begin + 4 * (unsigned)t, wide, next);
    for (unsigned long long at = p.begin; at < p.end; at += 4 * DDP__TOPK_THREADS) {
        const unsigned long long mine = at + 4 * (unsigned)t;
        unsigned is_above = 0, is_equal = 0, a, q, total = 0;
        uint32_t four[4];

        for (int e = 0; e < 4; e++) {
            const uint32_t known = (next[e] & DDP__MAGNITUDE) >> shift;
            const unsigned real = mine + (unsigned)e < p.end;
            four[e] = next[e];
            is_above |= (real & (all || known > s.prefix)) << e;
            is_equal |= (real & (!all && known == s.prefix)) << e;
        }
        ddp__topk_four(p, mine + 4 * DDP__TOPK_THREADS, wide, next); /* in flight meanwhile */
        if (!__syncthreads_or((int)(is_above | is_equal))) continue;
        /* both counts in one number: a tile has 2048 elements */
        const unsigned own = (unsigned)__popc(is_above) | (unsigned)__popc(is_equal) << 16;
        a = own;
        for (int far = 1; far < 32; far *= 2) {
            const unsigned more = __shfl_up_sync(0xffffffffu, a, far);
            if (lane >= far) a += more;
        }
        if (lane == 31) sum[t / 32] = a;
        a -= own;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            if (w < t / 32) a += sum[w];
            total += sum[w];
        }
        q = a >> 16;
        a &= 0xffff;
        for (int e = 0; e < 4; e++) {
            const unsigned long long equals = equal + q, from = mine + (unsigned)e;
            const unsigned long long to = above + a + (equals < room ? equals : room);
            const unsigned up = is_above >> e & 1, same = is_equal >> e & 1;
            if (up || (same && equals < room)) {
                if (x) {
                    r.index[to] = from;
                    r.bits[to] = four[e];
                } else {
                    index[to] = p.index[from];
                    if (value) value[to] = __uint_as_float(four[e]);
                }
            }
            a += up;
            q += same;
        }
        above += total & 0xffff;
        equal += total >> 16;
        /* the sums are read until here; a thread writes them again behind the next barrier */
    }
}

static __global__ void ddp__k_topk_begin(ddp__topk_room r) { r.step[0] = {0, 0, 0, 0, r.k, 0}; }

/* ---- on the host ---- */

static int ddp__topk_blocks_of(size_t n)
{
    const size_t wish = n / DDP__TOPK_CHUNK + 1;
    return wish < DDP__TOPK_BLOCKS ? (int)wish : (int)DDP__TOPK_BLOCKS;
}

/* Cuts the scratch into arrays; returns its bytes, 0 where they do not fit a size_t. */
static size_t ddp__topk_cut_room(size_t n, size_t k, void *scratch, ddp__topk_room *r)
{
    const size_t blocks = (size_t)ddp__topk_blocks_of(n), extra = 65536;
    const size_t wish = k > (n - 1) / 2 || n - 2 * k < extra ? n : 2 * k + extra, most = wish / 4 * 4 + 4;
    const size_t fixed = DDP__TOPK_STEPS * sizeof(ddp__topk_step) +
                         8 * (DDP__TOPK_STEPS * DDP__TOPK_DIGIT + 2 * blocks) + 4 * blocks * DDP__TOPK_DIGIT;
    unsigned char *at = (unsigned char *)scratch;

    if (most > (SIZE_MAX - fixed) / 12) return 0;
    memset(r, 0, sizeof *r);
    r->n = n;
    r->k = k;
    r->most = most;
    r->blocks = (int)blocks;
    if (scratch) {
        r->step = (ddp__topk_step *)(void *)at;
        at += DDP__TOPK_STEPS * sizeof *r->step;
        r->total = (unsigned long long *)(void *)at;
        r->above = r->total + DDP__TOPK_STEPS * DDP__TOPK_DIGIT;
        r->equal = r->above + blocks;
        r->part = (uint32_t *)(void *)(r->equal + blocks);
        r->bits = r->part + blocks * DDP__TOPK_DIGIT; /* a multiple of 16 bytes, as all before */
        r->index = (uint64_t *)(void *)(r->bits + most);
    }
    return fixed + most * 12;
}

size_t ddp_cuda_topk_scratch(size_t n, size_t k)
{
    ddp__topk_room r;
    return k < 1 || k > n ? 0 : ddp__topk_cut_room(n, k, NULL, &r);
}

ddp_status ddp_cuda_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes, uint64_t *index,
                         float *value, ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const ddp__verdict_values values = {x, NULL};
    const int threads = DDP__TOPK_THREADS;
    const float *const list = NULL;
    ddp__topk_room r;
    int step = 0;

    DDP__TRY(ddp__select_check("ddp_cuda_topk", x, n, k, scratch, scratch_bytes,
                               ddp_cuda_topk_scratch(n, k), index, err));
    if (!verdict || (uintptr_t)scratch % 16)
        return ddp__fail(err, DDP_ARG, "ddp_cuda_topk: the verdict is NULL, or the scratch is not aligned to 16");
    (void)ddp__topk_cut_room(n, k, scratch, &r);
    (void)cudaMemsetAsync(r.total, 0, DDP__TOPK_STEPS * DDP__TOPK_DIGIT * sizeof *r.total, dev->stream);
    DDP__RUN(ddp__k_topk_begin, 1, 1, r);
    for (int digit = 0; digit < 3; digit++, step++) {
        DDP__RUN(ddp__k_topk_count, r.blocks, threads, r, x, step, digit, verdict);
        if (digit == 0) DDP__RUN((ddp__k_verdict<ddp__verdict_values>), 1, 1, verdict, values);
        DDP__RUN(ddp__k_topk_choose, r.blocks, threads, r, x, step, digit, verdict);
    }
    DDP__RUN(ddp__k_topk_collect, r.blocks, threads, r, x, step, index, value, verdict);
    for (int digit = 1; digit < 3; digit++, step++) {
        DDP__RUN(ddp__k_topk_count, r.blocks, threads, r, list, step, digit, verdict);
        DDP__RUN(ddp__k_topk_choose, r.blocks, threads, r, list, step, digit, verdict);
    }
    DDP__RUN(ddp__k_topk_collect, r.blocks, threads, r, list, step, index, value, verdict);
    return ddp__cuda_queued(dev, err);
}

#endif /* DDP_CUDA_TOPK_CUH */
