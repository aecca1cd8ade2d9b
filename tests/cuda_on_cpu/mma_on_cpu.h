/* The tensor-core instructions of src/cuda/mma.cuh with the element layouts of the PTX manual. Copies to
 * shared memory complete when they are waited for, not before. A matrix whose rows share a bank of shared
 * memory is a fault; on a GPU it would only be slow. */
#ifndef CUDA_ON_CPU_MMA_H
#define CUDA_ON_CPU_MMA_H

#include <cuda.h>
#include <cuda_bf16.h>
#include <deque>
#include <map>
#include <vector>

namespace cuda_on_cpu
{

struct mma_call {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

struct matrix_call {
    uint32_t *r;
    const char *row; /* 16 bytes */
    int turned;
};

template <typename T> inline T *call_of(const fibre &f)
{
    T *p;

    memcpy(&p, f.put, sizeof p);
    return p;
}

inline float half_of(uint32_t pair, int high)
{
    return (float)__ushort_as_bfloat16((unsigned short)(high ? pair >> 16 : pair & 0xffff));
}

/* Row-major indices of every fragment, then three plain loops. */
inline void rule_mma(fibre *lane, unsigned)
{
    float a[16][16], b[16][8];

    for (int l = 0; l < 32; l++) {
        const mma_call *m = call_of<mma_call>(lane[l]);
        const int g = l / 4, t = l % 4;
        for (int e = 0; e < 2; e++) {
            a[g][2 * t + e] = half_of(m->a[0], e);
            a[g + 8][2 * t + e] = half_of(m->a[1], e);
            a[g][2 * t + 8 + e] = half_of(m->a[2], e);
            a[g + 8][2 * t + 8 + e] = half_of(m->a[3], e);
            b[2 * t + e][g] = half_of(m->b[0], e);
            b[2 * t + 8 + e][g] = half_of(m->b[1], e);
        }
    }
    for (int l = 0; l < 32; l++) {
        float *c = call_of<mma_call>(lane[l])->c;
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, col = l % 4 * 2 + i % 2;
            float sum = c[i];
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][col];
            c[i] = sum;
        }
    }
}

/* The instruction does not read the last 13 bits of a float. */
inline float tf32_of(uint32_t bits)
{
    float x;

    bits &= ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

inline void rule_mma_tf32(fibre *lane, unsigned)
{
    float a[16][8], b[8][8];

    for (int l = 0; l < 32; l++) {
        const mma_call *m = call_of<mma_call>(lane[l]);
        const int g = l / 4, t = l % 4;
        for (int i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = tf32_of(m->a[i]);
        for (int i = 0; i < 2; i++) b[t + i * 4][g] = tf32_of(m->b[i]);
    }
    for (int l = 0; l < 32; l++) {
        float *c = call_of<mma_call>(lane[l])->c;
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 8; k++) c[i] += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
    }
}

inline void rule_matrices(fibre *lane, unsigned)
{
    unsigned banks = 0;

    for (int l = 0; l < 32; l++) {
        const matrix_call *m = call_of<matrix_call>(lane[l]);
        check_aligned(m->row, 16);
        banks = (l % 8 ? banks : 0) | 1u << ((uintptr_t)m->row / 16 % 8);
        if (l % 8 == 7 && banks != 0xff)
            fault("%s: rows of a matrix that ldmatrix reads share a bank", running().kernel);
        for (int i = 0; i < 4; i++) {
            uint16_t bits[2];
            for (int e = 0; e < 2; e++) {
                const int row = m->turned ? l % 4 * 2 + e : l / 4;
                const int col = m->turned ? l / 4 : l % 4 * 2 + e;
                memcpy(&bits[e], call_of<matrix_call>(lane[8 * i + row])->row + 2 * col, 2);
            }
            m->r[i] = bits[0] | (uint32_t)bits[1] << 16;
        }
    }
}

template <typename T> inline void meet_with(T *call, const char *what, warp_rule rule, int line)
{
    memcpy(me().put, &call, sizeof call);
    warp_meet(what, 0xffffffffu, rule, "mma_on_cpu.h", line);
}

struct copy16 {
    void *to;
    const void *from;
    int present;
};

/* Copies of each thread of the running block: of the open group, and of the committed groups. */
struct copies {
    std::vector<copy16> open;
    std::deque<std::vector<copy16>> committed;
};

inline std::vector<copies> &all_copies()
{
    static thread_local std::vector<copies> all(MOST_THREADS);
    return all;
}

inline copies &my_copies() { return all_copies()[(size_t)running().now]; }

/* A product of a group of four warps, computed when it is waited for. a: registers of a lane, or a matrix in
 * shared memory. */
struct group_call {
    float (*c)[4];
    uint32_t a[4];
    uint64_t left, b;
    int turned, add;
};

inline std::vector<group_call> &group_calls(int thread)
{
    static thread_local std::vector<std::vector<group_call>> all(MOST_THREADS);
    return all[(size_t)thread];
}

/* Element i of row `row` of the matrix in shared memory that the descriptor describes: rows of 128 bytes,
 * eight per stride, with 16-byte pieces permuted by the low bits of the row's address. */
inline float group_element(uint64_t descriptor, int row, int i)
{
    const block_run &r = running();
    size_t at = ((descriptor & 0x3fff) << 4) + (size_t)(row / 8) * ((descriptor >> 32 & 0x3fff) << 4);
    uint16_t bits;

    at += (size_t)(row % 8 * 128 + 2 * i);
    at ^= (at >> 7 & 7) << 4;
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) || at + 2 > r.shared_bytes) {
        fault("%s: descriptor %#llx: the layout of the matrix in shared memory is not valid for wgmma",
              r.kernel, (unsigned long long)descriptor);
        return NAN;
    }
    memcpy(&bits, r.shared + at, sizeof bits);
    return half_of(bits, 0);
}

/* The products of one warp, which has 16 rows. */
inline void group_multiply(int warp)
{
    const std::vector<group_call> &first = group_calls(32 * warp);

    for (size_t n = 0; n < first.size(); n++) {
        float a[16][16], b[16][64];
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 64; j++)
                b[k][j] = first[n].turned ? group_element(first[n].b, k, j) : group_element(first[n].b, j, k);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 8; i++) {
                const group_call &call = group_calls(32 * warp + l)[n];
                const int row = l / 4 + i / 2 % 2 * 8, k = l % 4 * 2 + i % 2 + i / 4 * 8;
                a[row][k] = call.left ? group_element(call.left, warp % 4 * 16 + row, k)
                                      : half_of(call.a[i / 2], i % 2);
            }
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 32; i++) {
                const group_call &call = group_calls(32 * warp + l)[n];
                float &c = call.c[i / 4][i % 4];
                float sum = call.add ? c : 0;
                for (int k = 0; k < 16; k++)
                    sum += a[l / 4 + i / 2 % 2 * 8][k] * b[k][i / 4 * 8 + l % 4 * 2 + i % 2];
                c = sum;
            }
    }
}

/* Barrier of the 128 threads of a group. The last thread computes the requested products. */
inline void group_meet(const char *what, int line)
{
    block_run &r = running();
    const int base = r.now / 128 * 128;

    for (int i = base; i < base + 128; i++) {
        const fibre *f = i < r.threads ? &r.fibre_of[(size_t)i] : nullptr;
        if (i == r.now || (f && f->state == AT_WARP && f->what == what)) continue;
        wait_here(r, me(), AT_WARP, what, "mma_on_cpu.h", line);
        return;
    }
    for (int i = base; i < base + 128; i++)
        if (group_calls(i).size() != group_calls(base).size())
            fault("%s: the threads of a group request different products", r.kernel);
    for (int i = 0; i < 4; i++) group_multiply(base / 32 + i);
    for (int i = base; i < base + 128; i++) {
        group_calls(i).clear();
        r.fibre_of[(size_t)i].state = READY;
    }
}

/* A request to the copy engine. It is done at once, or when a thread waits for it, so that an early or late
 * access to the data changes the results. */
struct fetch {
    char *tile;
    const CUtensorMap *map;
    int at[4];
};

struct arrivals {
    uint64_t id;
    int asking;      /* phases to be completed, 1 or 0 */
    unsigned rounds; /* completed phases */
    std::vector<fetch> late;
    bool lost;     /* 1 if a request is never done */
    long owed = 0; /* announced bytes minus loaded bytes. The phase ends only at 0. */
};

/* Number of requests before one that is lost. Negative: none is. */
inline std::atomic<int> &requests_until_loss()
{
    static std::atomic<int> n{-1};

    return n;
}

inline void fetch_now(const fetch &f)
{
    const CUtensorMap &m = *f.map;

    for (unsigned row = 0; row < m.box[2]; row++)
        for (unsigned col = 0; col < m.box[0]; col++) {
            const int at[4] = {f.at[0] + (int)col, f.at[1], f.at[2] + (int)row, f.at[3]};
            size_t to = row * 128 + 2 * col, from = 0;
            uint16_t bits = 0;
            bool inside = true;
            for (int i = 0; i < 4; i++) {
                inside &= at[i] >= 0 && (cuuint64_t)at[i] < m.dim[i];
                from += (size_t)at[i] * m.apart[i];
            }
            if (inside) memcpy(&bits, m.base + from, sizeof bits);
            to ^= (to >> 7 & 7) << 4;
            memcpy(f.tile + to, &bits, sizeof bits);
        }
}

/* Barriers of the running block. A barrier whose memory another block has used since is not one. */
inline std::map<const void *, arrivals> &all_arrivals()
{
    static thread_local std::map<const void *, arrivals> all;
    return all;
}

inline arrivals *arrivals_at(const uint64_t *bar)
{
    arrivals &a = all_arrivals()[bar];

    if (*bar == a.id) return &a;
    fault("%s: thread %d uses an mbarrier that is not initialised", running().kernel, running().now);
    running().stopped = 1;
    wait_here(running(), me(), AT_WARP, "a barrier", "mma_on_cpu.h", __LINE__);
    return nullptr;
}

const char ARRIVALS[] = "mbarrier.try_wait";

} // namespace cuda_on_cpu

#define DDP__WGMMA 1

inline void ddp__arrivals_open(uint64_t *bar)
{
    static thread_local uint64_t ids = 0;

    cuda_on_cpu::check_aligned(bar, 8);
    cuda_on_cpu::all_arrivals()[bar] = { *bar = ++ids, 1, 0, {}, false};
}

#ifdef DDP__FETCHED_BYTES /* not in a test that includes this file for its faults only */
inline void ddp__fetch(uint64_t *bar, __nv_bfloat16 *tile, const CUtensorMap *map, int head, int row,
                       int sequence)
{
    cuda_on_cpu::block_run &r = cuda_on_cpu::running();
    const cuda_on_cpu::fetch f = {(char *)tile, map, {0, head, row, sequence}};
    const size_t at = (size_t)((unsigned char *)tile - r.shared), bytes = 128u * map->box[2];

    if (map->made != cuda_on_cpu::TENSOR_MAP || map->box[1] != 1 || map->box[3] != 1 || at % 1024 ||
        at + bytes > r.shared_bytes || bytes != sizeof *tile * map->box[0] * map->box[2])
        return cuda_on_cpu::fault("%s: the copy engine cannot load this tile to this address", r.kernel);
    if (cuda_on_cpu::requests_until_loss() >= 0 && cuda_on_cpu::requests_until_loss()-- == 0) {
        cuda_on_cpu::arrivals_at(bar)->lost = true;
        return;
    }
    cuda_on_cpu::arrivals_at(bar)->owed += (long)DDP__FETCHED_BYTES - (long)bytes;
    if ((r.phase + at / 1024) % 2)
        cuda_on_cpu::fetch_now(f);
    else
        cuda_on_cpu::arrivals_at(bar)->late.push_back(f);
}

#endif

inline void ddp__arrivals_sent(uint64_t *bar)
{
    cuda_on_cpu::block_run &r = cuda_on_cpu::running();

    if (!cuda_on_cpu::arrivals_at(bar)->asking--)
        cuda_on_cpu::fault("%s: a phase of an mbarrier is closed before the previous one is complete",
                           r.kernel);
    for (cuda_on_cpu::fibre &f : r.fibre_of)
        if (f.state == cuda_on_cpu::AT_WARP && f.what == cuda_on_cpu::ARRIVALS) f.state = cuda_on_cpu::READY;
}

inline int ddp__arrivals_try(uint64_t *bar, int parity)
{
    for (;;) {
        cuda_on_cpu::arrivals *a = cuda_on_cpu::arrivals_at(bar);

        if ((int)(a->rounds % 2) != parity) return 1;
        if (a->asking) {
            cuda_on_cpu::wait_here(cuda_on_cpu::running(), cuda_on_cpu::me(), cuda_on_cpu::AT_WARP,
                                   cuda_on_cpu::ARRIVALS, "mma_on_cpu.h", __LINE__);
            continue;
        }
        if (a->lost || a->owed) return 0;
        for (const cuda_on_cpu::fetch &f : a->late) cuda_on_cpu::fetch_now(f);
        a->late.clear();
        a->asking = 1;
        a->rounds++;
    }
}

/* A second passes between two calls, which only a thread makes whose load is lost. */
inline uint64_t ddp__nanoseconds(void)
{
    static thread_local uint64_t now = 0;

    return now += 1000000000;
}

inline size_t __cvta_generic_to_shared(const void *p)
{
    return (size_t)((const unsigned char *)p - cuda_on_cpu::running().shared);
}

inline void ddp__group_mma(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    cuda_on_cpu::group_calls(cuda_on_cpu::running().now)
        .push_back({c, {a[0], a[1], a[2], a[3]}, 0, b, 1, add});
}

inline void ddp__group_mma(float (&c)[8][4], uint64_t a, uint64_t b, int add)
{
    cuda_on_cpu::group_calls(cuda_on_cpu::running().now).push_back({c, {}, a, b, 0, add});
}

inline void ddp__group_begin(void) {}

inline void ddp__group_keep(uint32_t (&)[4]) {}

inline void ddp__group_end(float (&c)[8][4])
{
    static const char what[] = "wgmma";

    cuda_on_cpu::group_meet(what, __LINE__);
    c[0][0] += cuda_on_cpu::wrong(cuda_on_cpu::WRONG_WGMMA);
}

template <typename T> inline void ddp__mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
inline void ddp__mma<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    cuda_on_cpu::mma_call m = {c, a, {b0, b1}};

    cuda_on_cpu::meet_with(&m, "mma", cuda_on_cpu::rule_mma, __LINE__);
    c[0] += cuda_on_cpu::wrong(cuda_on_cpu::WRONG_MMA);
}

/* Rounds its input, ties away from zero, as the function of mma.cuh does. */
template <> inline void ddp__mma<float>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t half = 0x1000, rounded[4] = {a[0] + half, a[1] + half, a[2] + half, a[3] + half};
    cuda_on_cpu::mma_call m = {c, rounded, {b0 + half, b1 + half}};

    cuda_on_cpu::meet_with(&m, "mma", cuda_on_cpu::rule_mma_tf32, __LINE__);
    c[0] += cuda_on_cpu::wrong(cuda_on_cpu::WRONG_MMA);
}

template <typename T> inline void ddp__matrices(uint32_t (&r)[4], const T *row)
{
    cuda_on_cpu::matrix_call m = {r, (const char *)row, 0};

    cuda_on_cpu::meet_with(&m, "ldmatrix", cuda_on_cpu::rule_matrices, __LINE__);
}

inline void ddp__matrices_turned(uint32_t (&r)[4], const __nv_bfloat16 *row)
{
    cuda_on_cpu::matrix_call m = {r, (const char *)row, 1};

    cuda_on_cpu::meet_with(&m, "ldmatrix.trans", cuda_on_cpu::rule_matrices, __LINE__);
}

template <typename T> inline void ddp__copy16(T *shared, const T *from, int present)
{
    cuda_on_cpu::check_aligned(shared, 16);
    cuda_on_cpu::check_aligned(from, 16);
    cuda_on_cpu::my_copies().open.push_back({shared, from, present});
}

inline void ddp__copy_commit(void)
{
    cuda_on_cpu::copies &c = cuda_on_cpu::my_copies();

    c.committed.push_back(std::move(c.open));
    c.open.clear();
}

template <int N = 0> inline void ddp__copy_wait(void)
{
    for (auto &groups = cuda_on_cpu::my_copies().committed; groups.size() > N; groups.pop_front())
        for (const cuda_on_cpu::copy16 &k : groups.front()) {
            if (k.present)
                memcpy(k.to, k.from, 16);
            else
                memset(k.to, 0, 16);
        }
}

inline float ddp__exp2(float x) { return exp2f(x); }

inline uint32_t ddp__pack_pair(float first, float second)
{
    return (uint32_t)__nv_bfloat16(first).bits | (uint32_t)__nv_bfloat16(second).bits << 16;
}

template <typename T> inline void ddp__put_pair(T *to, float first, float second)
{
    cuda_on_cpu::check_aligned(to, 2 * sizeof(T));
    to[0] = T(first);
    to[1] = T(second);
}

#endif /* CUDA_ON_CPU_MMA_H */
