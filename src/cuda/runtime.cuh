/* State of one GPU: its streams and handles, its first error, and how to launch kernels on it. */
#pragma once

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/public.cuh"
#include "ops/ops.h"

typedef __nv_bfloat16 ddp__bf16;

/* A GPU entry of the operator table. It uses the shape rule of the CPU operator of the same name. c->pool of
 * its calls is the ddp__cuda *. */
typedef struct ddp__cuda_entry {
    const char *name;
    void (*forward)(const ddp_op_call *c);
    void (*backward)(const ddp_op_call *c); /* NULL means that the operator has no gradient */
    /* bytes of dev->scratch that forward or backward uses, or NULL */
    size_t (*scratch)(const ddp_op_spec *spec, int half);
} ddp__cuda_entry;

enum {
    DDP__CUDA_OPS = 64,       /* capacity of the table of a device */
    DDP__CUDA_HOLDS = 256,    /* holds that may be open */
    DDP__CUDA_ITEMS = 512,    /* items that may follow an open hold. A stream accepts about 1,000 */
    DDP__CUDA_KERNELS = 1024, /* size of the table of launched kernels */
    DDP__CUDA_SAID = 1024     /* characters of log lines before the logger is known */
};

/* A wait for a flag that was queued on a stream. It is open until the flag is at least turn. */
typedef struct ddp__cuda_open_hold {
    const unsigned *flag;
    unsigned turn;
    long items; /* number of items that were queued before it */
} ddp__cuda_open_hold;

/* Forms of kernels, as bits of ddp__cuda.forms. A PLAIN bit selects the portable form of a specialised kernel
 * (check.cuh). */
enum {
    DDP__PLAIN_ATTENTION = 1, /* attention without tensor cores */
    DDP__PLAIN_CONV = 2,      /* convolutions without tensor cores */
    DDP__PLAIN_HEAD = 4,      /* linear_cross_entropy with one kernel for the loss and one for its gradient */
    DDP__PLAIN_GELU = 8,      /* gelu after its product, not in it */
    DDP__PLAIN_GELU_GRAD = 16, /* the same for its gradient */
    DDP__PLAIN_SUMS = 32,      /* the same for the bias gradient */
    DDP__PLAIN_BLOCKS = 64,    /* int8 and int4 blocks from the host */
    DDP__PLAIN = 127,          /* all of these */
    DDP__TALL_CONV = 128       /* tall tiles in convolutions of any size */
};

typedef struct ddp__cuda {
    int device;
    int half;                              /* 1 if activations are bfloat16 */
    int tf32;                              /* 1 if products may round their inputs to TF32 */
    decltype(&cuTensorMapEncodeTiled) map; /* for attention with Hopper's wgmma and copy engine (flash.cuh),
                                            * or NULL if not used */
    int *late, *late_there;                /* pinned: set to 1 by a kernel to which the copy engine did not
                                            * deliver a tile in time, and its device address */
    unsigned forms;                        /* of kernels */
    cudaStream_t stream;                   /* for computing */
    int own_stream;
    cublasLtHandle_t blas_lt;
    void *workspace; /* of blas_lt */
    size_t workspace_bytes;
    void *products; /* plans of matrix products (blas.cuh) */
    void (*products_free)(struct ddp__cuda *dev);
    int rejected;  /* number of fused products that cuBLASLt rejected when they ran */
    void *scratch; /* shared by all operators on stream */
    size_t scratch_bytes;
    cudaDeviceProp props;
    pthread_mutex_t lock;     /* guards error, which several threads may set */
    int failed;               /* 1 if error is set. Read it with ddp__atomic_load. */
    ddp_error error;          /* the first error */
    ddp_op op[DDP__CUDA_OPS]; /* the table, with the CPU's shape rules */
    const ddp__cuda_entry *entry[DDP__CUDA_OPS];
    int ops;
    struct ddp__cuda_lists *lists; /* queued calls (ops.cuh). NULL means that calls run at once. */
    /* What ddp__cuda_before needs. Only the context's thread uses it. */
    ddp__cuda_open_hold
        hold[DDP__CUDA_HOLDS]; /* hold_first..hold_next-1 may be open; i is in hold[i % capacity] */
    long hold_first, hold_next;
    long items;                            /* queued so far */
    const void *kernel[DDP__CUDA_KERNELS]; /* a hash table of the kernels launched so far */
    int kernels;
    int capturing; /* atomic. 1: the context's thread records a graph */
    pthread_t captures;
    int capture_failed;
    int no_env; /* 1: environment variables of the library are ignored */
    int stuck; /* 1: a kernel of the self-check did not end. Calls that may wait for it are no longer made. */
    int (*lost)(void *of); /* 1 if a peer is lost and all flags are raised. NULL means that no peer can be. */
    void *lost_of;
    const ddp_logger *log; /* NULL until the context passes it. `said` then keeps the lines. */
    char said[DDP__CUDA_SAID];
} ddp__cuda;

/* Logs a line as a warning. Only the context's thread. */
static DDP__UNUSED void ddp__cuda_say(ddp__cuda *dev, const char *fmt, ...)
{
    const size_t used = strlen(dev->said);
    char line[DDP_ERROR_TEXT];
    va_list args;

    va_start(args, fmt);
    (void)ddp__format_list(line, sizeof line, fmt, args);
    va_end(args);
    if (dev->log)
        ddp__log(dev->log, DDP_LOG_WARN, "%s", line);
    else if (used + strlen(line) + 2 <= sizeof dev->said)
        (void)snprintf(dev->said + used, sizeof dev->said - used, "%s\n", line);
}

/* Passes the logger of the context, and logs the lines so far. */
static DDP__UNUSED void ddp__cuda_log(ddp__cuda *dev, const ddp_logger *log)
{
    const char *at = dev->said;

    dev->log = log;
    for (size_t n; *at; at += n + 1) {
        n = strcspn(at, "\n");
        ddp__log(log, DDP_LOG_WARN, "%.*s", (int)n, at);
    }
    dev->said[0] = 0;
}

/* Records a failure in the format of ddp__fail. The first one is kept. Any thread. */
#define ddp__cuda_fail(dev, code, ...)                 \
    do {                                               \
        ddp_error ddp__e;                              \
        (void)ddp__fail(&ddp__e, (code), __VA_ARGS__); \
        ddp__cuda_keep((dev), &ddp__e);                \
    } while (0)

/* A failure while a graph is recorded is a failure of the recording only: its work then runs directly. */
static DDP__UNUSED void ddp__cuda_keep(ddp__cuda *dev, const ddp_error *e)
{
    if (ddp__atomic_load(&dev->capturing) && pthread_equal(dev->captures, pthread_self())) {
        dev->capture_failed = 1;
        return;
    }
    pthread_mutex_lock(&dev->lock);
    if (!dev->failed) {
        dev->error = *e;
        ddp__atomic_store(&dev->failed, 1);
    }
    pthread_mutex_unlock(&dev->lock);
}

/* The device's first error as a status. Fills err (may be NULL). Any thread. */
static DDP__UNUSED ddp_status ddp__cuda_status(ddp__cuda *dev, ddp_error *err)
{
    ddp_status code = DDP_OK;

    if (!ddp__atomic_load(&dev->failed) && dev->late && ddp__atomic_load(dev->late))
        ddp__cuda_fail(dev, DDP_FAILED,
                       "GPU %d: the copy engine did not load a tile for attention in time, and results are "
                       "incomplete; set DREAMDDP_CUDA_HOPPER=0, which selects attention without it",
                       dev->device);
    if (!ddp__atomic_load(&dev->failed)) return DDP_OK;
    pthread_mutex_lock(&dev->lock);
    code = dev->error.code;
    if (err) *err = dev->error;
    pthread_mutex_unlock(&dev->lock);
    return code;
}

/* Remedy for an error, to append to its message, or "" without a remedy. */
static inline const char *ddp__cuda_remedy(cudaError_t e)
{
    switch ((int)e) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
        return "; choose another device or train on the CPU";
    case cudaErrorInsufficientDriver:
        return "; install a newer driver, or compile with an older CUDA toolkit";
    case cudaErrorMemoryAllocation:
        return "; use a smaller batch, bfloat16 or recomputation";
    case cudaErrorInitializationError:
        return "; fork worker processes before the first CUDA call";
    case cudaErrorNoKernelImageForDevice:
        return "; compile for this GPU: nvcc -gencode arch=compute_80,code=sm_80 "
               "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90";
    case cudaErrorLaunchTimeout:
        return "; it drives a display, whose watchdog ends long kernels: use a GPU without one";
    default:
        return "";
    }
}

/* Records the failure of a runtime call. Returns 1 if it failed. */
static DDP__UNUSED int ddp__cuda_note(ddp__cuda *dev, cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return 0;
    ddp__cuda_fail(dev, e == cudaErrorMemoryAllocation ? DDP_MEMORY : DDP_FAILED, "GPU %d: %.*s: %s%s",
                   dev->device, (int)strcspn(call, "("), call, cudaGetErrorString(e), ddp__cuda_remedy(e));
    return 1;
}

/* DDP__CUDA(dev, cudaX(...)): makes the call and records its failure with the text of the call. Returns 1 if
 * it failed. */
#define DDP__CUDA(dev, call) ddp__cuda_note((dev), (call), #call)

/* Passes on the result of cudaEventQuery or cudaStreamQuery. "Not ready" also becomes CUDA's last error. This
 * clears it, because the next launch would report it. */
static DDP__UNUSED cudaError_t ddp__cuda_asked(cudaError_t e)
{
    if (e == cudaErrorNotReady) (void)cudaGetLastError();
    return e;
}

static DDP__UNUSED int ddp__blas_note(ddp__cuda *dev, cublasStatus_t s, const char *call)
{
    if (s == CUBLAS_STATUS_SUCCESS) return 0;
    ddp__cuda_fail(dev, s == CUBLAS_STATUS_ALLOC_FAILED ? DDP_MEMORY : DDP_FAILED, "GPU %d: %.*s: %s",
                   dev->device, (int)strcspn(call, "("), call, cublasGetStatusString(s));
    return 1;
}

/* The same for cuBLAS and cuBLASLt. */
#define DDP__BLAS(dev, call) ddp__blas_note((dev), (call), #call)

/* Looks up a function of the driver at run time, so that programs need not link with the driver. NULL means
 * that the driver has none. */
static DDP__UNUSED void *ddp__cuda_driver(const char *name)
{
    void *found = NULL;
#if CUDART_VERSION >= 12050
    cudaDriverEntryPointQueryResult is;
    const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &is);
#else
    const cudaError_t e = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault);
#endif
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaSuccess ? found : NULL;
}

/* Creates n events. Returns NULL if out of memory. A failure of the device is recorded. */
static DDP__UNUSED cudaEvent_t *ddp__cuda_events(ddp__cuda *dev, int n, unsigned flags)
{
    cudaEvent_t *list = (cudaEvent_t *)ddp__calloc((size_t)n, sizeof *list);
    for (int i = 0; list && i < n; i++)
        if (DDP__CUDA(dev, cudaEventCreateWithFlags(&list[i], flags))) break;
    return list;
}

/* NULL is allowed. */
static DDP__UNUSED void ddp__cuda_events_free(cudaEvent_t *list, int n)
{
    for (int i = 0; list && i < n; i++)
        if (list[i]) (void)cudaEventDestroy(list[i]);
    if (list) DDP_FREE(list);
}

/* 1 if arrays of this shape are bfloat16 on this device. Scalars (dims 0, such as a loss) are always
 * float32. */
static DDP__UNUSED int ddp__cuda_half(const ddp__cuda *dev, const ddp_shape *s)
{
    return dev->half && s->dims > 0;
}

/* Waits for queued work and frees everything that ddp__cuda_open created. Behind a stuck kernel it frees only
 * memory of the host that is not pinned: the other calls may wait for the kernel. */
static DDP__UNUSED void ddp__cuda_close(ddp__cuda *dev)
{
    if (!dev) return;
    if (!dev->stuck) {
        (void)cudaSetDevice(dev->device);
        if (dev->stream) (void)cudaStreamSynchronize(dev->stream);
        (void)cudaFree(dev->scratch);
        (void)cudaFree(dev->workspace);
        if (dev->late) (void)cudaFreeHost(dev->late);
        if (dev->products_free) dev->products_free(dev);
        if (dev->blas_lt) (void)cublasLtDestroy(dev->blas_lt);
        if (dev->own_stream) (void)cudaStreamDestroy(dev->stream);
    }
    pthread_mutex_destroy(&dev->lock);
    DDP_FREE(dev);
}

static inline ddp_status ddp__cuda_find(int device, ddp_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0, driver = 0, runtime = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);

    (void)cudaGetLastError();
    if (e == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        if (driver > 0)
            return ddp__fail(err, DDP_UNSUPPORTED,
                             "the CUDA driver supports CUDA %d.%d, but this program was compiled for %d.%d; "
                             "install a newer driver or train on the CPU",
                             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "no CUDA driver is installed; install one or train on the CPU");
    }
    if (e != cudaSuccess || n < 1)
        return ddp__fail(err, DDP_FAILED, "no CUDA device found (%s%s); train on the CPU",
                         e == cudaSuccess ? "the device count is 0" : cudaGetErrorString(e),
                         visible && !*visible ? "; CUDA_VISIBLE_DEVICES is empty" : "");
    if (device < 0 || device >= n)
        return ddp__fail(err, DDP_ARG, "GPU %d does not exist: this machine has GPUs 0 to %d", device, n - 1);
    return DDP_OK;
}

/* Opens a device: streams, handles, workspace. stream is the program's cudaStream_t, borrowed. NULL: the
 * function creates one. Returns NULL and sets err on failure. Freed by ddp__cuda_close. */
static DDP__UNUSED ddp__cuda *ddp__cuda_open(int device, ddp_cuda_numbers numbers, void *stream,
                                             ddp_error *err)
{
    ddp__cuda *dev;

    if (ddp__cuda_find(device, err)) return NULL;
    dev = (ddp__cuda *)ddp__calloc(1, sizeof *dev);
    if (!dev) {
        (void)ddp__fail(err, DDP_MEMORY, "out of memory for the state of GPU %d", device);
        return NULL;
    }
    pthread_mutex_init(&dev->lock, NULL);
    dev->device = device;
    dev->half = numbers == DDP_CUDA_BF16;
    dev->tf32 = numbers == DDP_CUDA_TF32;
    dev->stream = (cudaStream_t)stream;
    dev->own_stream = !stream;
    if (DDP__CUDA(dev, cudaSetDevice(device)) || DDP__CUDA(dev, cudaGetDeviceProperties(&dev->props, device)))
        goto failed;
    if (dev->props.major < 8) {
        ddp__cuda_fail(dev, DDP_UNSUPPORTED,
                       "GPU %d (%s) has compute capability %d.%d; 8.0 or later is needed, which has bfloat16",
                       device, dev->props.name, dev->props.major, dev->props.minor);
        goto failed;
    }
    if (dev->own_stream && DDP__CUDA(dev, cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking))) {
        dev->own_stream = 0;
        goto failed;
    }
    dev->workspace_bytes = dev->props.major >= 9 ? (size_t)32 << 20 : (size_t)8 << 20;
    if (DDP__CUDA(dev, cudaMalloc(&dev->workspace, dev->workspace_bytes)) ||
        DDP__BLAS(dev, cublasLtCreate(&dev->blas_lt)))
        goto failed;
    return dev;
failed:
    (void)ddp__cuda_status(dev, err);
    ddp__cuda_close(dev);
    return NULL;
}

/* Makes dev->scratch hold at least bytes. Waits for the device, so call it when a graph is built, never in a
 * step. */
static DDP__UNUSED ddp_status ddp__cuda_want_scratch(ddp__cuda *dev, size_t bytes, ddp_error *err)
{
    size_t unused = 0, total = 0;

    if (bytes <= dev->scratch_bytes) return ddp__cuda_status(dev, err);
    (void)DDP__CUDA(dev, cudaSetDevice(dev->device));
    (void)DDP__CUDA(dev, cudaFree(dev->scratch));
    dev->scratch = NULL;
    dev->scratch_bytes = 0;
    if (cudaMalloc(&dev->scratch, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&unused, &total);
        return ddp__fail(err, DDP_MEMORY,
                         "GPU %d: the operators need %zu bytes of scratch memory, but only %zu of %zu are "
                         "free; use a smaller batch",
                         dev->device, bytes, unused, total);
    }
    dev->scratch_bytes = bytes;
    return ddp__cuda_status(dev, err);
}

/* ---- streams that wait for a flag ----
 *
 * Work behind such a wait must not keep the host from the calls that raise the flag. Two things could: a
 * stream accepts about 1,000 items and then blocks the call that queues another one, and a call that does
 * something for the first time (loads a kernel or an algorithm, instantiates a graph) may wait for all work
 * of the device. A driver may hold a lock meanwhile, for which the calls of other threads wait. */

/* Waits on the host until the flag is at least turn. A failure ends the wait: it raises all flags, or no
 * result matters any longer. */
static DDP__UNUSED void ddp__cuda_wait_raised(ddp__cuda *dev, const unsigned *flag, unsigned turn)
{
    while (ddp__atomic_load(flag) < turn && !ddp__atomic_load(&dev->failed)) {
        if (dev->lost && dev->lost(dev->lost_of)) return;
        ddp__sleep_until(ddp_now() + 2e-5);
    }
}

/* Call it before queueing an item on dev->stream, from the context's thread. fresh 1: the call may wait for
 * the device. Waits on the host for open holds if it must. */
static DDP__UNUSED void ddp__cuda_before(ddp__cuda *dev, int fresh)
{
    if (ddp__atomic_load(&dev->capturing)) return;
    dev->items++;
    for (; dev->hold_first < dev->hold_next; dev->hold_first++) {
        const ddp__cuda_open_hold *h = &dev->hold[dev->hold_first % DDP__CUDA_HOLDS];
        if (ddp__atomic_load(h->flag) >= h->turn) continue;
        if (!fresh && dev->items - h->items <= DDP__CUDA_ITEMS) return;
        ddp__cuda_wait_raised(dev, h->flag, h->turn);
    }
}

/* Records a wait that was queued on a stream. */
static DDP__UNUSED void ddp__cuda_held(ddp__cuda *dev, const unsigned *flag, unsigned turn)
{
    const ddp__cuda_open_hold h = {flag, turn, dev->items};

    if (dev->hold_next - dev->hold_first == DDP__CUDA_HOLDS) ddp__cuda_before(dev, 1);
    dev->hold[dev->hold_next++ % DDP__CUDA_HOLDS] = h;
}

/* 1 if the device has not launched the kernel before. */
static DDP__UNUSED int ddp__cuda_is_new(ddp__cuda *dev, const void *kernel)
{
    size_t at = (size_t)((uint64_t)(uintptr_t)kernel * 0x9e3779b97f4a7c15u >> 32) % DDP__CUDA_KERNELS;

    for (; dev->kernel[at]; at = (at + 1) % DDP__CUDA_KERNELS)
        if (dev->kernel[at] == kernel) return 0;
    if (dev->kernels == DDP__CUDA_KERNELS - 1) return 1;
    dev->kernels++;
    dev->kernel[at] = kernel;
    return 1;
}

/* Call it before each launch. Only dev->stream has work that follows a hold. */
static inline void ddp__cuda_launches(ddp__cuda *dev, cudaStream_t stream, const void *kernel)
{
    if (stream == dev->stream && !ddp__atomic_load(&dev->capturing))
        ddp__cuda_before(dev, ddp__cuda_is_new(dev, kernel));
}

template <typename F> static inline const void *ddp__cuda_address(F *kernel) { return (const void *)kernel; }

/* ---- launches, for nvcc and for the stand-in of tests/cuda_on_cpu ---- */

/* DDP__LAUNCH(kernel, blocks, threads, shared_bytes, stream, args...)
 * DDP__RUN(kernel, blocks, threads, args...): on dev->stream, without shared_bytes
 * DDP__EACH(kernel, n, threads, args...): one thread per item, for n items, in blocks of threads
 *
 * A variable `ddp__cuda *dev` must be in scope: it records the first failed launch with the kernel's name.
 * Write a kernel with template arguments in parentheses: (ddp__k_gelu<float>). blocks and threads are numbers
 * or dim3.
 *
 * DDP__SHARED(type, name) declares name as a pointer to the launch's shared_bytes. */
#if defined(DDP_CUDA_ON_CPU)
#define DDP__START(kernel, blocks, threads, bytes, stream, ...) \
    cuda_on_cpu::launch(#kernel, dim3(blocks), dim3(threads), bytes, stream, kernel, __VA_ARGS__)
#define DDP__SHARED(type, name) type *name = (type *)cuda_on_cpu::dynamic_shared()
#else
/* CUDA requires a call for more than 48 KiB of shared memory. If it fails, the launch fails too and reports
 * the error. */
template <typename F> static inline void ddp__cuda_allow_shared(F kernel, size_t bytes)
{
    if (bytes > 48 * 1024)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#define DDP__START(kernel, blocks, threads, bytes, stream, ...) \
    (ddp__cuda_allow_shared(kernel, bytes), kernel<<<(blocks), (threads), bytes, stream>>>(__VA_ARGS__))
#define DDP__SHARED(type, name)                                          \
    extern __shared__ __align__(1024) unsigned char ddp__shared_bytes[]; \
    type *name = reinterpret_cast<type *>(ddp__shared_bytes)
#endif
#define DDP__LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                     \
    do {                                                                                    \
        ddp__cuda_launches(dev, (stream), ddp__cuda_address(kernel));                       \
        DDP__START(kernel, blocks, threads, (size_t)(shared_bytes), (stream), __VA_ARGS__); \
        ddp__cuda_launched(dev, #kernel);                                                   \
    } while (0)
#define DDP__RUN(kernel, blocks, threads, ...) \
    DDP__LAUNCH(kernel, blocks, threads, 0, dev->stream, __VA_ARGS__)
#define DDP__EACH(kernel, n, threads, ...) \
    DDP__RUN(kernel, (unsigned)ddp__blocks(n, threads), threads, __VA_ARGS__)

/* Records the error of the launch before it, if any. */
static inline void ddp__cuda_launched(ddp__cuda *dev, const char *kernel)
{
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        ddp__cuda_fail(dev, DDP_FAILED, "GPU %d: the kernel %s, or work before it, failed: %s%s", dev->device,
                       kernel, cudaGetErrorString(e), ddp__cuda_remedy(e));
}

/* Number of blocks for n items with per_block each, at least 1. */
static inline long ddp__blocks(long n, long per_block) { return n < 1 ? 1 : (n + per_block - 1) / per_block; }
