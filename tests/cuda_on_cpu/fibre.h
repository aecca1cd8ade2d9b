/* Runs the threads of a block as fibres on one thread of this machine. A fibre runs until a barrier or a warp
 * operation that other fibres have not reached. A thread without such operations needs no separate stack.
 * The order of the threads changes from phase to phase, so that a missing barrier changes results.
 *
 * Errors that hang a GPU or give undefined values are faults here: one line on stderr, and every later call
 * returns an error. */
#ifndef CUDA_ON_CPU_FIBRE_H
#define CUDA_ON_CPU_FIBRE_H

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "types.h"

inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
inline const int warpSize = 32;

namespace cuda_on_cpu
{

void fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

enum { POISONED = 4 << 20, STACK_BYTES = 128 * 1024, MOST_THREADS = 1024, MOST_SHARED = 227 * 1024 };

/* ---- switching ---- */

#if defined(__x86_64__)
typedef void *fibre_context;
__attribute__((naked, noinline)) inline void fibre_swap(fibre_context *, fibre_context *)
{
    __asm__("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
            "movq %rsp, (%rdi)\n\tmovq (%rsi), %rsp\n\t"
            "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}
inline void fibre_make(fibre_context *c, char *stack, void (*entry)())
{
    void **top = (void **)(stack + STACK_BYTES) - 8;

    memset(top, 0, 8 * sizeof *top); /* six registers, the entry point, no caller */
    top[6] = (void *)entry;
    *c = (void *)top;
}
#else
typedef ucontext_t fibre_context;
inline void fibre_swap(fibre_context *from, fibre_context *to) { swapcontext(from, to); }
inline void fibre_make(fibre_context *c, char *stack, void (*entry)())
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = STACK_BYTES;
    c->uc_link = nullptr;
    makecontext(c, entry, 0);
}
#endif

enum fibre_state { FRESH, READY, AT_BARRIER, AT_WARP, DONE };

struct fibre {
    fibre_context context;
    char *stack;
    fibre_state state;
    const char *what, *file; /* name and place of the operation that it waits in */
    int line;
    unsigned mask; /* AT_WARP: the lanes that it waits for */
    uint64_t put[2], got[2];
    int from; /* the lane whose value it reads */
};

/* A warp operation on the values of its lanes; writes `got` of each lane. */
typedef void (*warp_rule)(fibre *lane, unsigned mask);

struct block_run {
    std::vector<fibre> fibre_of;
    std::vector<char *> stacks; /* free stacks, reused by later blocks */
    fibre_context scheduler;
    int threads, now, waiting, done, stopped;
    void (*body)(void *);
    void *user;
    unsigned char *shared;
    size_t shared_bytes;
    int count_in, count_out; /* for __syncthreads_count */
    uint64_t phase;
    const char *kernel;
    const void *outer; /* for AddressSanitizer: the stack of the scheduler */
    size_t outer_bytes;
    ~block_run()
    {
        for (char *s : stacks) munmap(s, STACK_BYTES);
        free(shared);
    }
};

inline block_run &running()
{
    static thread_local block_run r{};
    return r;
}

inline void enter_fibre(block_run &r, fibre &f)
{
#if defined(__SANITIZE_ADDRESS__)
    void *kept;
    __sanitizer_start_switch_fiber(&kept, f.stack, STACK_BYTES);
    fibre_swap(&r.scheduler, &f.context);
    __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#else
    fibre_swap(&r.scheduler, &f.context);
#endif
}

inline void leave_fibre(block_run &r, fibre &f)
{
#if defined(__SANITIZE_ADDRESS__)
    void *kept;
    __sanitizer_start_switch_fiber(f.state == DONE ? nullptr : &kept, r.outer, r.outer_bytes);
    fibre_swap(&f.context, &r.scheduler);
    __sanitizer_finish_switch_fiber(kept, &r.outer, &r.outer_bytes);
#else
    fibre_swap(&f.context, &r.scheduler);
#endif
}

inline void fibre_entry()
{
    block_run &r = running();

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &r.outer, &r.outer_bytes);
#endif
    r.body(r.user);
    r.fibre_of[(size_t)r.now].state = DONE;
    leave_fibre(r, r.fibre_of[(size_t)r.now]);
    abort(); /* a thread that has ended is never resumed */
}

inline void resume(block_run &r, int t)
{
    fibre &f = r.fibre_of[(size_t)t];
    const unsigned x = blockDim.x, y = blockDim.y, u = (unsigned)t;

    threadIdx = {u % x, u / x % y, u / (x * y)};
    r.now = t;
    if (f.state == FRESH) {
        if (r.stacks.empty()) {
            void *s = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (s == MAP_FAILED) abort();
            r.stacks.push_back((char *)s);
        }
        f.stack = r.stacks.back();
        r.stacks.pop_back();
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(f.stack, STACK_BYTES); /* a fibre ends without returning */
#endif
        fibre_make(&f.context, f.stack, fibre_entry);
    }
    f.state = READY;
    enter_fibre(r, f);
    if (f.state == DONE) {
        r.stacks.push_back(f.stack);
        f.stack = nullptr;
        r.done++;
    }
}

/* ---- barriers and warp operations, called on a fibre ---- */

inline void wait_here(block_run &r, fibre &f, fibre_state state, const char *what, const char *file, int line)
{
    f.state = state;
    f.what = what;
    f.file = file;
    f.line = line;
    leave_fibre(r, f);
}

/* __syncthreads and its counting forms. Returns the number of threads whose `yes` is not 0. */
inline int barrier(int yes, const char *file, int line)
{
    block_run &r = running();

    r.count_in += yes != 0;
    r.waiting++;
    wait_here(r, r.fibre_of[(size_t)r.now], AT_BARRIER, "__syncthreads", file, line);
    return r.count_out;
}

inline void warp_meet(const char *what, unsigned mask, warp_rule rule, const char *file, int line)
{
    block_run &r = running();
    const int base = r.now / 32 * 32, lane = r.now % 32;
    fibre *warp = &r.fibre_of[(size_t)base], &f = warp[lane];
    int i;

    if (!(mask >> lane & 1)) {
        fault("%s: thread %d calls %s (%s:%d) with a mask of lanes %#x that excludes its own lane", r.kernel,
              r.now, what, file, line, mask);
        r.stopped = 1;
        wait_here(r, f, AT_WARP, what, file, line);
    }
    f.mask = mask;
    for (i = 0; i < 32; i++) {
        if (i == lane || !(mask >> i & 1)) continue;
        if (base + i >= r.threads || warp[i].state != AT_WARP || warp[i].mask != mask ||
            warp[i].line != line || strcmp(warp[i].file, file) != 0 || strcmp(warp[i].what, what) != 0)
            break;
    }
    if (i < 32) {
        wait_here(r, f, AT_WARP, what, file, line);
        return;
    }
    rule(warp, mask);
    for (i = 0; i < 32; i++)
        if (i != lane && mask >> i & 1) warp[i].state = READY;
}

/* ---- a block ---- */

inline void explain_stuck(block_run &r)
{
    const fibre *first = nullptr;

    for (const fibre &f : r.fibre_of)
        if (f.state == AT_BARRIER || f.state == AT_WARP) {
            if (!first)
                first = &f;
            else if (f.line != first->line || f.what != first->what) {
                fault("%s: thread %ld waits in %s (%s:%d) while thread %ld waits in %s (%s:%d)", r.kernel,
                      (long)(first - &r.fibre_of[0]), first->what, first->file, first->line,
                      (long)(&f - &r.fibre_of[0]), f.what, f.file, f.line);
                return;
            }
        }
    if (first)
        fault("%s: thread %ld waits in %s (%s:%d) for threads that have ended or do not reach it (%d of %d "
              "have ended)",
              r.kernel, (long)(first - &r.fibre_of[0]), first->what, first->file, first->line, r.done,
              r.threads);
}

/* If all threads wait at the same barrier, resumes them; otherwise returns 0. */
inline int open_barrier(block_run &r)
{
    const fibre *first = &r.fibre_of[0];

    if (r.waiting < r.threads) return 0;
    for (const fibre &f : r.fibre_of)
        if (f.line != first->line || strcmp(f.file, first->file) != 0) return 0;
    for (fibre &f : r.fibre_of) f.state = READY;
    r.waiting = 0;
    r.count_out = r.count_in;
    r.count_in = 0;
    return 1;
}

/* Runs one block. Returns 1, or 0 after a fault. */
inline int run_block(block_run &r)
{
    const int n = r.threads;
    int i;

    for (fibre &f : r.fibre_of) f.state = FRESH;
    r.waiting = r.done = r.stopped = r.count_in = r.count_out = 0;
    if (r.shared_bytes) memset(r.shared, 0xff, r.shared_bytes); /* bytes of a NaN */
    while (r.done < n && !r.stopped) {
        uint64_t h = ++r.phase * 0x9e3779b97f4a7c15ULL;
        int moved = 0, start = (int)((h >> 33) % (uint64_t)n), back = (int)(h >> 32 & 1);
        for (i = 0; i < n && !r.stopped; i++) {
            const int t = ((back ? n - 1 - i : i) + start) % n;
            if (r.fibre_of[(size_t)t].state != FRESH && r.fibre_of[(size_t)t].state != READY) continue;
            resume(r, t);
            moved = 1;
        }
        if (!moved && !open_barrier(r)) {
            explain_stuck(r);
            r.stopped = 1;
        }
    }
    for (fibre &f : r.fibre_of)
        if (f.stack) {
            r.stacks.push_back(f.stack);
            f.stack = nullptr;
        }
    return !r.stopped;
}

/* Runs a whole grid on the calling thread. */
inline void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void *),
                     void *user)
{
    block_run &r = running();
    uint3 at;

    r.kernel = kernel;
    r.body = body;
    r.user = user;
    r.threads = (int)(block.x * block.y * block.z);
    r.fibre_of.resize((size_t)r.threads);
    if (shared_bytes > r.shared_bytes || !r.shared) {
        free(r.shared);
        if (posix_memalign((void **)&r.shared, 128, shared_bytes ? shared_bytes : 128)) abort();
    }
    r.shared_bytes = shared_bytes;
    blockDim = block;
    gridDim = grid;
    for (at.z = 0; at.z < grid.z; at.z++)
        for (at.y = 0; at.y < grid.y; at.y++)
            for (at.x = 0; at.x < grid.x; at.x++) {
                blockIdx = at;
                if (!run_block(r)) return;
            }
}

inline void *dynamic_shared() { return running().shared; }

} // namespace cuda_on_cpu

#endif /* CUDA_ON_CPU_FIBRE_H */
