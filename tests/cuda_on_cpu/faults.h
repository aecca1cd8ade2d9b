/* Faults that a test injects: wrong results of an instruction or of a product, and launches that fail, do
 * nothing or do not end. */
#ifndef CUDA_ON_CPU_FAULTS_H
#define CUDA_ON_CPU_FAULTS_H

#include <atomic>
#include <functional>

namespace cuda_on_cpu
{
enum { WRONG_WGMMA = 1, WRONG_MMA = 2, WRONG_WMMA = 4 };
enum class fate {
    RUNS,
    SKIPPED,  /* the kernel does nothing */
    REJECTED, /* the launch fails, and later launches run */
    BROKEN,   /* the launch fails, and so does every later call */
    STUCK     /* the kernel runs until injected().stuck is 0 */
};

struct faults {
    std::atomic<int> wrong{0};                                        /* instructions with wrong results */
    std::atomic<unsigned> epilogue{0};                                /* of cuBLASLt, with wrong results */
    std::atomic<int> stuck{0};                                        /* 1 while stuck kernels run */
    std::function<fate(const char *kernel, unsigned threads)> launch; /* empty: all kernels run */
};

inline faults &injected()
{
    static faults *f = new faults;
    return *f;
}

/* What a wrong instruction adds to one of its results. */
inline float wrong(int which) { return injected().wrong & which ? 0.5f : 0.0f; }
} // namespace cuda_on_cpu

#endif /* CUDA_ON_CPU_FAULTS_H */
