/* dreamddp_cuda.cuh 0.3.0 - dreamddp on NVIDIA GPUs. MIT licence (at the end of dreamddp.h).
 *
 * USAGE. In one .cu file of your program (or one .c file compiled with nvcc -x cu), write:
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp_cuda.cuh"
 * The file includes dreamddp.h. Build with nvcc, C++17, for compute capability 8.0 or later:
 *     nvcc -O3 -std=c++17 -arch=sm_90a x.cu -lcublas -lcublasLt -lnccl -lpthread
 * -arch=sm_90a is for an H100 or H200, where -arch=native would omit the wgmma kernels. For other GPUs use
 * -arch=native.
 *
 * EXAMPLE. The settings of a context on GPU 0 with bfloat16 arithmetic. All else is as in dreamddp.h:
 *     ddp_backend gpu = ddp_cuda(DDP_CUDA_BF16, 0);
 *     ddp_config cfg = {0};
 *     cfg.backend = &gpu;
 *     ddp_ctx *d = ddp_open(&cfg, &err);
 *
 * A GPU context runs the same graphs, hooks, plans and strategies as a CPU context, and every call of
 * dreamddp.h keeps its meaning. Programs that run on the CPU only do not need this file.
 *
 * CONVENTIONS. As in dreamddp.h. The library owns the device memory of a context. It queues kernels on one
 * stream and copies of messages on two others; NCCL has its own. A hook returns before its work on the
 * device is done, but waits for a message if the device cannot. Results do not depend on the order in which
 * blocks run: the kernels use no floating-point atomics.
 *
 * ERRORS. The next hook returns a failure of the device, with a message.
 */
#ifndef DREAMDDP_CUDA_CUH
#define DREAMDDP_CUDA_CUH

#if !defined(__CUDACC__) && !defined(DDP_CUDA_ON_CPU)
#error "dreamddp_cuda.cuh: compile this file with nvcc (a .c file: nvcc -x cu)"
#endif

#if defined(DREAMDDP_IMPLEMENTATION) && defined(DDP_NO_MODELS)
#error "dreamddp_cuda.cuh: it computes graphs and their operators: do not define DDP_NO_MODELS"
#endif

#include "dreamddp.h"

/* ==== cuda/public.cuh ==== [cuda] */
/* The public functions of the GPU companion: ddp_cuda, the backend of a context on a GPU, and compression of
 * arrays in device memory. */

/* Number mode of the GPU. Master weights, gradients of parameters, optimizer state and sums are float32 in
 * every mode. */
typedef enum ddp_cuda_numbers {
    DDP_CUDA_F32,  /* float32 throughout */
    DDP_CUDA_TF32, /* float32, matrix products with TF32 inputs */
    DDP_CUDA_BF16  /* activations, their gradients and copies of the weights in bfloat16 */
} ddp_cuda_numbers;

/* ddp_cuda - returns the backend of contexts on a GPU. ddp_config.backend points to it, until ddp_close.
 *
 *   numbers  number format of the computation
 *   device   number of the GPU in CUDA's order, or -1 if the ranks of a machine share its GPUs
 *
 * The program's own stream goes into ddp_config.device.cuda_stream. ddp_open reports errors of the device.
 * Pure and safe from any thread. */
DDP_API ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device);

/* ---- compression of arrays in device memory, bit-identical to compress/compress.h ---- */

/* The first fault that calls with this verdict found in the data. It is in device memory and starts as zeros.
 * Only the library uses its fields. */
typedef struct ddp_cuda_verdict {
    unsigned long long pending, at, number;
    float value[2];
    int what, unused;
} ddp_cuda_verdict;

/* All functions below, except ddp_cuda_verdict_read and ddp_cuda_topk_scratch, queue work on `stream` (a
 * cudaStream_t, NULL = the default stream of the current device) and return at once. Arrays of floats are
 * float32 in device memory, aligned to 4 bytes. They are borrowed until the work is done, and do not overlap.
 * Faults of the arguments are returned. Faults of the data, such as a NaN or a damaged message, are found
 * later, on the device, and stored in `verdict` (not NULL). That call and all later calls with the same
 * verdict then leave their outputs unchanged. No call waits for the device. Several calls of one step can
 * share a verdict. Safe from any thread, with one verdict and scratch on one stream at a time. */

/* ddp_cuda_verdict_read - waits for stream and returns what the verdict contains: DDP_OK, or the code and the
 * message that the function of the same name without cuda_ gives on the CPU. Safe from any thread. Errors:
 * DDP_NUMERIC for a NaN, an infinity or a sum that is not finite; DDP_FORMAT for a damaged message; DDP_ARG
 * for an index out of range or a NULL verdict; DDP_FAILED from CUDA. */
DDP_API ddp_status ddp_cuda_verdict_read(const ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_topk - selects the k elements of x[0..n-1] with the largest magnitudes, exactly: the same indexes
 * as ddp_topk for any ties, ascending, and their values.
 *
 *   x        [n] device memory
 *   k        1..n, from ddp_keep_count or ddp_adatopk for FusionLLM's AdaTopK
 *   scratch  ddp_cuda_topk_scratch(n, k) bytes of device memory, aligned to 16
 *   index    [k] device memory, receives the positions
 *   value    [k] device memory, receives the values. May be NULL.
 *
 * Method: a histogram of the first 11 bits of all magnitudes gives a threshold, and a second read collects
 * the elements above it. The rest of the work is done on these elements. If too many elements reach the
 * threshold (many in one eighth of a binade, or ties), 21 or all 31 bits are counted first: at most 4 reads
 * of the array. Source: FusionLLM (arXiv:2410.12707) section 5.1. Errors: DDP_ARG, DDP_FAILED if a kernel
 * cannot be launched, or the verdict for a NaN. */
DDP_API ddp_status ddp_cuda_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes,
                                 uint64_t *index, float *value, ddp_cuda_verdict *verdict, void *stream,
                                 ddp_error *err);

/* ddp_cuda_topk_scratch - returns the size, in bytes, of the scratch memory that ddp_cuda_topk needs: about
 * 24 k + 5 MB, or 0 if k is not in 1..n. Pure and safe from any thread. */
DDP_API size_t ddp_cuda_topk_scratch(size_t n, size_t k);

/* ddp_cuda_feedback_add - adds the gradient to the residual: residual[0..n-1] += gradient[0..n-1], both in
 * device memory. Errors: DDP_ARG for NULL, DDP_FAILED if a kernel cannot be launched, or the verdict for a
 * value or a sum that is not finite. */
DDP_API ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n,
                                         ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_feedback_keep - sets residual[index[0..k-1]], the elements that were sent, to 0. residual [n] and
 * index [k] are in device memory. index is from ddp_cuda_topk. Errors: DDP_ARG for NULL, DDP_FAILED if a
 * kernel cannot be launched, or the verdict for an index out of range. */
DDP_API ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                          ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_pack_quantised - writes x[0..n-1] as a message with packing int8 or int4, the same bytes as
 * ddp_pack_quantised.
 *
 *   out    `capacity` bytes of device memory, aligned to 4
 *   bytes  receives the size of the message, at once
 *
 * Errors: DDP_ARG, DDP_FAILED if a kernel cannot be launched, or the verdict for a NaN or an infinity. */
DDP_API ddp_status ddp_cuda_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                           size_t capacity, size_t *bytes, ddp_cuda_verdict *verdict,
                                           void *stream, ddp_error *err);

/* ddp_cuda_unpack_store - decodes a message of packing int8 or int4 into x[0..n-1]. message: `bytes` bytes of
 * device memory, aligned to 4. Errors: DDP_ARG, also for a length that does not fit n; DDP_FAILED if a kernel
 * cannot be launched; the verdict for a damaged message. */
DDP_API ddp_status ddp_cuda_unpack_store(ddp_packing packing, const void *message, size_t bytes, float *x,
                                         size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_unpack_add - adds the decoded values of a message of packing int8 or int4 to x[0..n-1]. message:
 * `bytes` bytes of device memory, aligned to 4. Errors: DDP_ARG, also for a length that does not fit n;
 * DDP_FAILED if a kernel cannot be launched; the verdict for a damaged message or a sum that is not
 * finite. */
DDP_API ddp_status ddp_cuda_unpack_add(ddp_packing packing, const void *message, size_t bytes, float *x,
                                       size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_feedback_subtract - subtracts the decoded values of a message of packing int8 or int4 from
 * residual[0..n-1]. message: `bytes` bytes of device memory, aligned to 4. Errors: DDP_ARG, also for a length
 * that does not fit n; DDP_FAILED if a kernel cannot be launched; the verdict for a damaged message or a
 * difference that is not finite. */
DDP_API ddp_status ddp_cuda_feedback_subtract(ddp_packing packing, const void *message, size_t bytes,
                                              float *residual, size_t n, ddp_cuda_verdict *verdict,
                                              void *stream, ddp_error *err);

#endif /* DREAMDDP_CUDA_CUH */

#ifdef DREAMDDP_IMPLEMENTATION
#ifndef DDP__CUDA_IMPLEMENTED
#define DDP__CUDA_IMPLEMENTED

/* ==== cuda/runtime.cuh ==== [cuda] */
/* State of one GPU: its streams and handles, its first error, and how to launch kernels on it. */

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

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

/* ==== cuda/ops.cuh ==== [cuda] */
/* The operators of a GPU: how their calls run, and their table. Consecutive calls without other work between
 * them form a list. From the second time that a list occurs, it runs as a CUDA graph with one launch. Waits
 * of a stream for messages are between lists. */

/* ---- lists of calls ---- */

enum { DDP__CUDA_DUE = 64, DDP__CUDA_REPLAYS = 256 };

/* A call of one operator, or of both operators of a pair. */
typedef struct ddp__cuda_due {
    void (*one)(const ddp_op_call *c); /* NULL: `both` is set */
    void (*both)(const ddp_op_call *first, const ddp_op_call *second);
    ddp_op_call first, second;
} ddp__cuda_due;

typedef struct ddp__cuda_replay {
    ddp__cuda_due *due; /* [count] */
    int count;
    cudaGraphExec_t graph; /* NULL means that the list has occurred once */
    size_t nodes;          /* of the graph */
} ddp__cuda_replay;

typedef struct ddp__cuda_lists {
    ddp__cuda_due due[DDP__CUDA_DUE]; /* called, not launched yet */
    ddp__cuda_replay replay[DDP__CUDA_REPLAYS];
    int count, replays;
    int direct; /* 1: a list could not be recorded, so no other list is */
} ddp__cuda_lists;

/* Drops the graphs. Called when memory that calls may point to, or dev->scratch, is freed. Kernels have no
 * other dependency outside the bytes of a list. */
static DDP__UNUSED void ddp__cuda_replays_drop(ddp__cuda *dev)
{
    while (dev->lists && dev->lists->replays > 0) {
        const ddp__cuda_replay *p = &dev->lists->replay[--dev->lists->replays];
        if (p->graph) (void)cudaGraphExecDestroy(p->graph);
        DDP_FREE(p->due);
    }
}

static inline void ddp__cuda_run(const ddp__cuda_due *list, int count)
{
    for (int i = 0; i < count; i++) {
        if (list[i].one)
            list[i].one(&list[i].first);
        else
            list[i].both(&list[i].first, &list[i].second);
    }
}

/* Finds the entry of the list. On its first occurrence, adds an entry and returns NULL. */
static inline ddp__cuda_replay *ddp__cuda_replay_of(ddp__cuda_lists *x, int count)
{
    const size_t bytes = (size_t)count * sizeof *x->due;
    ddp__cuda_replay *p = x->replay;

    for (; p < x->replay + x->replays; p++)
        if (p->count == count && !memcmp(p->due, x->due, bytes)) return p;
    if (x->replays == DDP__CUDA_REPLAYS) return NULL;
    p->due = (ddp__cuda_due *)ddp__calloc(1, bytes);
    if (!p->due) return NULL;
    memcpy(p->due, x->due, bytes);
    p->count = count;
    p->graph = NULL;
    x->replays++;
    return NULL;
}

/* Records the work of the list. Returns the first error. *graph is NULL after one. */
static inline cudaError_t ddp__cuda_record_list(ddp__cuda *dev, const ddp__cuda_due *list, int count,
                                                cudaGraph_t *graph)
{
    cudaError_t e = cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal);

    *graph = NULL;
    if (e != cudaSuccess) return e;
    dev->capture_failed = 0;
    dev->captures = pthread_self();
    ddp__atomic_store(&dev->capturing, 1);
    ddp__cuda_run(list, count);
    ddp__atomic_store(&dev->capturing, 0);
    e = cudaStreamEndCapture(dev->stream, graph);
    if (e != cudaSuccess || !dev->capture_failed) return e;
    (void)cudaGraphDestroy(*graph);
    *graph = NULL;
    return cudaErrorUnknown;
}

/* Gives p its graph. Without one the list runs directly: if memory is short, until there is more of it; after
 * another error, all new lists run directly for the rest of the run. */
static inline void ddp__cuda_capture(ddp__cuda *dev, ddp__cuda_replay *p)
{
    cudaGraph_t graph = NULL;
    cudaError_t e;

    ddp__cuda_before(dev, 1);
    e = ddp__cuda_record_list(dev, p->due, p->count, &graph);
    if (e == cudaSuccess) e = cudaGraphGetNodes(graph, NULL, &p->nodes);
    if (e == cudaSuccess) e = cudaGraphInstantiateWithFlags(&p->graph, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    if (e == cudaSuccess) return;
    (void)cudaGetLastError();
    p->graph = NULL;
    if (e == cudaErrorMemoryAllocation) return;
    dev->lists->direct = 1;
    ddp__cuda_say(dev, "GPU %d: operators run without CUDA graphs, because a graph could not be made: %s",
                  dev->device, cudaGetErrorString(e));
}

/* Call it before queueing any other work on dev->stream. */
static DDP__UNUSED void ddp__cuda_run_due(ddp__cuda *dev)
{
    ddp__cuda_lists *x = dev->lists;
    const int count = x ? x->count : 0;
    ddp__cuda_replay *p;

    if (!count) return;
    x->count = 0;
    p = ddp__cuda_replay_of(x, count);
    if (p && !p->graph && !x->direct) ddp__cuda_capture(dev, p);
    if (p && p->graph) {
        dev->items += (long)p->nodes; /* a graph may take a place in the stream for each of its nodes */
        ddp__cuda_before(dev, 0);
        (void)DDP__CUDA(dev, cudaGraphLaunch(p->graph, dev->stream));
        return;
    }
    ddp__cuda_run(x->due, count);
}

/* second may be NULL. No operator that is queued here reads `random`. */
static inline void ddp__cuda_add(void (*one)(const ddp_op_call *),
                                 void (*both)(const ddp_op_call *, const ddp_op_call *),
                                 const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda *dev = (ddp__cuda *)first->pool;
    ddp__cuda_due now, *d = &now;

    if (dev->lists && dev->lists->count == DDP__CUDA_DUE) ddp__cuda_run_due(dev);
    if (dev->lists) d = &dev->lists->due[dev->lists->count++];
    memset(d, 0, sizeof *d);
    d->one = one;
    d->both = both;
    memcpy(&d->first, first, sizeof *first);
    if (second) memcpy(&d->second, second, sizeof *second);
    d->first.random = d->second.random = 0;
    if (d == &now) ddp__cuda_run(d, 1);
}

/* F as an entry of the table: an operator, a pair, or an operator that draws new random numbers each time. */
template <void (*F)(const ddp_op_call *)> static void ddp__cuda_later(const ddp_op_call *c)
{
    ddp__cuda_add(F, NULL, c, NULL);
}
template <void (*F)(const ddp_op_call *, const ddp_op_call *)>
static void ddp__cuda_later_both(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda_add(NULL, F, first, second);
}
template <void (*F)(const ddp_op_call *)> static void ddp__cuda_apart(const ddp_op_call *c)
{
    ddp__cuda_run_due((ddp__cuda *)c->pool);
    F(c);
}

/* ---- the table of operators ---- */

/* Adds the entries of a family of operators. */
template <int N> static void ddp__cuda_add_ops(ddp__cuda *dev, const ddp__cuda_entry (&list)[N])
{
    for (int i = 0; i < N; i++) {
        const ddp_op *cpu = ddp__builtin_op(list[i].name);
        ddp_op *op = &dev->op[dev->ops];
        DDP_ASSERT(cpu && dev->ops < DDP__CUDA_OPS);
        memset(op, 0, sizeof *op);
        op->name = cpu->name;
        op->shape = cpu->shape;
        op->forward = list[i].forward;
        op->backward = list[i].backward;
        dev->entry[dev->ops++] = &list[i];
    }
}

/* Chooses between two instances of a template over the array type, by the number mode of the device. */
template <void (*Single)(ddp__cuda *, const ddp_op_call *), void (*Half)(ddp__cuda *, const ddp_op_call *)>
static void ddp__cuda_typed(const ddp_op_call *c)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    if (dev->half)
        Half(dev, c);
    else
        Single(dev, c);
}
typedef void (*ddp__cuda_both)(ddp__cuda *dev, const ddp_op_call *first, const ddp_op_call *second);
template <ddp__cuda_both Single, ddp__cuda_both Half>
static void ddp__cuda_typed_both(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda *dev = (ddp__cuda *)second->pool;
    (dev->half ? Half : Single)(dev, first, second);
}
#define DDP__TYPED(f) ddp__cuda_typed<f<float>, f<ddp__bf16>>

/* Entries of the table with f_forward and f_backward. PLAIN: functions. ENTRY: templates over the array type.
 * */
#define DDP__LATER(...) ddp__cuda_later<__VA_ARGS__>
#define DDP__PLAIN(name, f, scratch)                                     \
    {                                                                    \
        name, DDP__LATER(f##_forward), DDP__LATER(f##_backward), scratch \
    }
#define DDP__ENTRY(name, f, scratch)                                                             \
    {                                                                                            \
        name, DDP__LATER(DDP__TYPED(f##_forward)), DDP__LATER(DDP__TYPED(f##_backward)), scratch \
    }

/* DDP__FAMILY(name, entries...) defines the function name(dev), which adds the entries to the table of a
 * device. */
#define DDP__FAMILY(name, ...)                              \
    static DDP__UNUSED void name(ddp__cuda *dev)            \
    {                                                       \
        static const ddp__cuda_entry ops[] = {__VA_ARGS__}; \
        ddp__cuda_add_ops(dev, ops);                        \
    }

/* The device's operator of that name, or NULL. Borrowed until ddp__cuda_close. */
static DDP__UNUSED const ddp_op *ddp__cuda_op(const ddp__cuda *dev, const char *name)
{
    for (int i = 0; i < dev->ops; i++)
        if (strcmp(dev->op[i].name, name) == 0) return &dev->op[i];
    return NULL;
}

/* Bytes of dev->scratch that a node needs. op is a result of ddp__cuda_op. Returns (size_t)-1 if the operator
 * would access rows of an array of four dimensions, which are not contiguous in channels-last order. The
 * operators named here support images, or work element by element. */
static DDP__UNUSED size_t ddp__cuda_scratch(const ddp__cuda *dev, const ddp_op *op, const void *spec)
{
    static const char *const fine[] = {
        "conv2d",  "batch_norm2d", "max_pool2d", "avg_pool2d", "global_avg_pool2d",
        "flatten", "gelu",         "relu",       "add",        "dropout"};
    const ddp_op_spec *s = (const ddp_op_spec *)spec;
    const ddp__cuda_entry *e = dev->entry[op - dev->op];
    int rows = s->out.dims == 4;

    for (int i = 0; i < s->inputs; i++) rows |= s->in[i].dims == 4 && s->in_type[i] == DDP_F32;
    for (const char *name : fine) rows &= strcmp(name, op->name) != 0;
    return rows ? (size_t)-1 : e->scratch ? e->scratch(s, dev->half) : 0;
}

/* ==== cuda/rows.cuh ==== [cuda] */
/* Helpers of several kernels: 16-byte loads and stores, conversion between bfloat16 and float, pieces of a
 * row, sums over a warp and a block, and sums of the columns of many rows. */

/* 4 floats, 8 bfloat16 or W elements. */
template <typename T, int W = 16 / sizeof(T)> struct __align__(sizeof(T[W])) ddp__vec
{
    static const int width = W;
    T v[W];
};

__device__ static __forceinline__ float ddp__to_float(float x) { return x; }
__device__ static __forceinline__ float ddp__to_float(ddp__bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ static __forceinline__ T ddp__from_float(float x);
template <> __device__ __forceinline__ float ddp__from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ ddp__bf16 ddp__from_float<ddp__bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* p must be aligned to the vector's bytes. */
template <typename T, int W = ddp__vec<T>::width>
__device__ static __forceinline__ ddp__vec<T, W> ddp__vec_load(const T *p)
{
#if defined(DDP_CUDA_ON_CPU)
    ddp__vec<T, W> r;

    cuda_on_cpu::check_aligned(p, sizeof r);
    memcpy((void *)&r, (const void *)p, sizeof r);
    return r;
#else
    return *reinterpret_cast<const ddp__vec<T, W> *>(p);
#endif
}

template <typename T, int W>
__device__ static __forceinline__ void ddp__vec_store(T *p, const ddp__vec<T, W> &r)
{
#if defined(DDP_CUDA_ON_CPU)
    cuda_on_cpu::check_aligned(p, sizeof r);
    memcpy((void *)p, (const void *)&r, sizeof r);
#else
    *reinterpret_cast<ddp__vec<T, W> *>(p) = r;
#endif
}

/* 1 if all pointers are aligned to 16 bytes, where NULL counts as aligned. On host and device. */
__host__ __device__ static __forceinline__ int ddp__aligned(const void *a, const void *b = NULL,
                                                            const void *c = NULL, const void *d = NULL)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

#define DDP__ALL_LANES 0xffffffffu

/* Use it before a loop whose counter indexes local arrays, so that the arrays stay in registers. _4: keeps
 * the loads of four iterations in flight. */
#if defined(__CUDACC__)
#define DDP__UNROLL   _Pragma("unroll")
#define DDP__UNROLL_4 _Pragma("unroll 4")
#else
#define DDP__UNROLL
#define DDP__UNROLL_4
#endif

/* Loads the elements of row p from index at on as floats, at most 16 bytes of them, with zeros past n. wide
 * means that the row is aligned to 16 bytes, its length is a multiple of 16 bytes, and at is a multiple of
 * the piece. */
template <typename T>
__device__ static __forceinline__ void ddp__piece_load(float *v, const T *p, long at, long n, int wide)
{
    const int width = ddp__vec<T>::width;

    if (wide) {
        const ddp__vec<T> r = ddp__vec_load(p + at);
        DDP__UNROLL for (int i = 0; i < width; i++) v[i] = ddp__to_float(r.v[i]);
    } else {
        DDP__UNROLL for (int i = 0; i < width; i++) v[i] = at + i < n ? ddp__to_float(p[at + i]) : 0.0f;
    }
}

/* The reverse: stores a piece. With add, adds it to memory. */
template <typename T>
__device__ static __forceinline__ void ddp__piece_store(T *p, const float *v, long at, long n, int wide,
                                                        int add)
{
    const int width = ddp__vec<T>::width;
    float old[width];

    DDP__UNROLL for (int i = 0; i < width; i++) old[i] = 0;
    if (add) ddp__piece_load(old, p, at, n, wide);
    if (wide) {
        ddp__vec<T> r;
        DDP__UNROLL for (int i = 0; i < width; i++) r.v[i] = ddp__from_float<T>(add ? v[i] + old[i] : v[i]);
        ddp__vec_store(p + at, r);
    } else {
        DDP__UNROLL for (int i = 0; i < width; i++) if (at + i < n) p[at + i] =
            ddp__from_float<T>(add ? v[i] + old[i] : v[i]);
    }
}

/* A piece as in memory: it takes 4 registers, where bfloat16 as floats would take 8. */
typedef ddp__vec<uint32_t> ddp__raw;

/* The piece as floats. Hides from the compiler that repeated calls give equal floats, which it would
 * otherwise keep in registers. */
template <typename T> __device__ static __forceinline__ void ddp__raw_floats(float *v, ddp__raw &r)
{
    DDP__UNROLL for (int i = 0; i < 4; i++) asm volatile("" : "+r"(r.v[i]));
    DDP__UNROLL for (int i = 0; i < ddp__vec<T>::width; i++) v[i] =
        __uint_as_float(sizeof(T) == 4 ? r.v[i]
                        : i % 2        ? r.v[i / 2] & 0xffff0000u
                                       : r.v[i / 2] << 16);
}

/* The raw piece of floats that T represents exactly. */
template <typename T> __device__ static __forceinline__ ddp__raw ddp__raw_of(const float *v)
{
    ddp__raw r = ddp__raw();
    DDP__UNROLL for (int i = 0; i < ddp__vec<T>::width; i++) r.v[i * sizeof(T) / 4] |=
        __float_as_uint(v[i]) >> (sizeof(T) == 4 || i % 2 ? 0 : 16);
    return r;
}

/* Loads a lane's part of a wide row, every 32nd piece, with zeros past n. The values are used later, so that
 * all loads are in flight together. */
template <typename T, int N>
__device__ static __forceinline__ void ddp__row_load(ddp__raw (&r)[N], const T *p, long n)
{
    DDP__UNROLL for (int k = 0; k < N; k++)
    {
        const long at = (k * 32 + threadIdx.x % 32) * ddp__vec<T>::width;
        r[k] = at < n ? ddp__vec_load((const uint32_t *)(const void *)(p + at)) : ddp__raw();
    }
}

/* Number of 16-byte pieces in n elements. */
template <typename T> __host__ __device__ static __forceinline__ long ddp__pieces(long n)
{
    return (n + ddp__vec<T>::width - 1) / ddp__vec<T>::width;
}

/* 1 if rows of n elements at these addresses can be read 16 bytes at a time. */
template <typename T>
static inline int ddp__wide(long n, const void *a, const void *b = NULL, const void *c = NULL,
                            const void *d = NULL)
{
    return n % ddp__vec<T>::width == 0 && ddp__aligned(a, b, c, d);
}

/* Sum over `lanes` lanes of a warp, a power of 2. All lanes get bit-identical results. */
template <typename T> __device__ static __forceinline__ T ddp__warp_sum(T v, int lanes = 32)
{
    DDP__UNROLL for (int step = lanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(DDP__ALL_LANES, v, step);
    return v;
}

/* Sum over a block of THREADS threads, a power of 2, in a fixed tree. shared has one N per thread, and N
 * defines +=. */
template <int THREADS, typename N>
__device__ static __forceinline__ N ddp__block_sum(const N &mine, N *shared)
{
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int k = THREADS / 2; k > 0; k /= 2) {
        if ((int)threadIdx.x < k) shared[threadIdx.x] += shared[threadIdx.x + (unsigned)k];
        __syncthreads();
    }
    return shared[0];
}

/* ---- column sums of a gradient ----
 * Two passes: blocks sum parts of the rows, then the parts are added in order. The division into parts
 * depends only on the number of rows, so results are bit-identical on all devices. */

enum {
    DDP__COLUMN_PARTS = 256, /* maximum number of parts */
    DDP__COLUMN_WARPS = 8,
    DDP__COLUMN_ROWS = 16 /* minimum number of rows per part */
};

/* Terms of the sums. PLAIN: dy. NORM: dy h and dy, with h = (x - mean) rstd. RMS: dy h, with h = x rstd. */
enum { DDP__COLUMN_PLAIN, DDP__COLUMN_NORM, DDP__COLUMN_RMS };

static inline long ddp__column_part(long rows)
{
    const long part = ddp__blocks(rows, DDP__COLUMN_PARTS);
    return part < DDP__COLUMN_ROWS ? (long)DDP__COLUMN_ROWS
                                   : ddp__blocks(part, DDP__COLUMN_WARPS) * DDP__COLUMN_WARPS;
}

static inline long ddp__column_parts(long rows) { return ddp__blocks(rows, ddp__column_part(rows)); }

/* Bytes of scratch for `sums` column sums of n columns. */
static inline size_t ddp__column_scratch(long rows, long n, int sums)
{
    return (size_t)(ddp__column_parts(rows) * n * sums) * sizeof(float);
}

/* Adds sum[j] over the warps of a block, in order, and stores it in to[at + j]. */
template <int N>
__device__ static __forceinline__ void ddp__column_join(float (*shared)[32 * N], const float *sum, float *to,
                                                        long at, long n)
{
    for (int j = 0; j < N; j++) shared[threadIdx.x / 32][threadIdx.x % 32 * N + j] = sum[j];
    __syncthreads();
    for (int j = (int)threadIdx.x; j < 32 * N && at + j < n; j += (int)blockDim.x) {
        float all = shared[0][j];
        for (int w = 1; w < DDP__COLUMN_WARPS; w++) all += shared[w][j];
        to[at + j] = all;
    }
    __syncthreads();
}

/* Block (x, y): columns from 32 x pieces on, part y of the rows. Each lane has a piece of the columns, and
 * the warps take turns at the rows. part: (sums, parts, n). */
template <typename T, int KIND>
static __global__ void __launch_bounds__(32 * DDP__COLUMN_WARPS)
    ddp__k_columns(float *part, const T *dy, const T *x, const float *stat, long rows, long n, long height,
                   int wide)
{
    const int width = ddp__vec<T>::width, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long at = (long)blockIdx.x * 32 * width, first = blockIdx.y * height;
    const long last = first + height < rows ? first + height : rows;
    __shared__ float shared[DDP__COLUMN_WARPS][32 * width];
    float sum[width], scaled[width], d[width], v[width];

    for (int i = 0; i < width; i++) sum[i] = scaled[i] = 0;
    if (at + lane * width < n)
        for (long r = first + warp; r < last; r += DDP__COLUMN_WARPS) {
            ddp__piece_load(d, dy + r * n, at + lane * width, n, wide);
            if (KIND != DDP__COLUMN_PLAIN) ddp__piece_load(v, x + r * n, at + lane * width, n, wide);
            for (int i = 0; i < width; i++) {
                if (KIND == DDP__COLUMN_NORM) scaled[i] += d[i] * ((v[i] - stat[2 * r]) * stat[2 * r + 1]);
                if (KIND == DDP__COLUMN_RMS) scaled[i] += d[i] * (v[i] * stat[r]);
                sum[i] += d[i];
            }
        }
    part += blockIdx.y * n;
    if (KIND != DDP__COLUMN_PLAIN) ddp__column_join<width>(shared, scaled, part, at, n);
    if (KIND == DDP__COLUMN_NORM) part += gridDim.y * n;
    if (KIND != DDP__COLUMN_RMS) ddp__column_join<width>(shared, sum, part, at, n);
}

/* grad[j] += the parts of column j, 32 columns per block. Each of eight warps adds every eighth part. Row 1
 * of the blocks does the same for next, whose parts follow. */
static __global__ void ddp__k_columns_add(float *grad, float *next, const float *part, long n, long parts)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long j = (long)blockIdx.x * 32 + lane;
    __shared__ float shared[DDP__COLUMN_WARPS][32];
    float sum = 0;

    if (blockIdx.y) {
        grad = next;
        part += parts * n;
    }
    if (j < n)
        for (long p = warp; p < parts; p += DDP__COLUMN_WARPS) sum += part[p * n + j];
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp || j >= n || !grad) return;
    for (int w = 1; w < DDP__COLUMN_WARPS; w++) sum += shared[w][lane];
    grad[j] += sum;
}

/* The second pass, for one or two sums, or NULL if not wanted. */
static inline void ddp__cuda_columns_add(ddp__cuda *dev, void *grad, void *next, const float *part, long n,
                                         long parts)
{
    if (grad || next)
        DDP__RUN(ddp__k_columns_add, dim3((unsigned)ddp__blocks(n, 32), next ? 2 : 1), 32 * DDP__COLUMN_WARPS,
                 (float *)grad, (float *)next, part, n, parts);
}

/* Both passes, over dev->scratch. plain receives the sums of dy, scaled receives the sums of dy h. */
template <typename T, int KIND>
static inline void ddp__cuda_columns(ddp__cuda *dev, void *scaled, void *plain, const void *dy, const void *x,
                                     const void *stat, long rows, long n)
{
    const long height = ddp__column_part(rows), parts = ddp__column_parts(rows);
    const dim3 blocks((unsigned)ddp__blocks(ddp__pieces<T>(n), 32), (unsigned)parts);
    float *part = (float *)dev->scratch;

    DDP__RUN((ddp__k_columns<T, KIND>), blocks, 32 * DDP__COLUMN_WARPS, part, (const T *)dy, (const T *)x,
             (const float *)stat, rows, n, height, ddp__wide<T>(n, dy, x));
    ddp__cuda_columns_add(dev, KIND == DDP__COLUMN_PLAIN ? plain : scaled,
                          KIND == DDP__COLUMN_NORM ? plain : NULL, part, n, parts);
}

/* ==== cuda/feedback.cuh ==== [cuda] */
/* How the compression calls queue their kernels and record invalid data in the verdict, and error feedback on
 * device arrays. */

/* In the order in which they are reported if there are several. */
enum {
    DDP__SAYS_NOTHING,
    DDP__SAYS_NAN,
    DDP__SAYS_NO_LEVEL,
    DDP__SAYS_INDEX,
    DDP__SAYS_HEAD,
    DDP__SAYS_HALF,
    DDP__SAYS_LOW,
    DDP__SAYS_SCALE,
    DDP__SAYS_SUM,
    DDP__SAYS_DIFFERENCE
};

/* The launches of one call: the members of a device that DDP__RUN needs. */
typedef struct ddp__cuda_queue {
    cudaStream_t stream;
    ddp_error error;
} ddp__cuda_queue;

static DDP__UNUSED ddp__cuda_queue ddp__cuda_queue_on(void *stream) { return {(cudaStream_t)stream, {}}; }

/* No hold precedes these launches. */
static inline void ddp__cuda_launches(ddp__cuda_queue *, cudaStream_t, const void *) {}

static inline void ddp__cuda_launched(ddp__cuda_queue *dev, const char *kernel)
{
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess && dev->error.code == DDP_OK)
        (void)ddp__fail(&dev->error, DDP_FAILED, "cannot launch the kernel %s: %s", kernel,
                        cudaGetErrorString(e));
}

static DDP__UNUSED ddp_status ddp__cuda_queued(const ddp__cuda_queue *dev, ddp_error *err)
{
    if (dev->error.code != DDP_OK && err) *err = dev->error;
    return dev->error.code;
}

/* Records an invalid element. If there are several, the kind that is reported first remains, at its lowest
 * index. */
static inline __device__ void ddp__verdict_note(ddp_cuda_verdict *v, int what, size_t at)
{
    atomicMax(&v->pending, ~((unsigned long long)what << 56 | (unsigned long long)at));
}

/* Ends a check of the data in a later kernel. Turns a recorded element into the verdict, whose values f(v)
 * fills in. Returns 1 if there was one. */
template <typename F> __device__ int ddp__verdict_end(ddp_cuda_verdict *v, F f)
{
    const unsigned long long found = v->pending;
    if (found && blockIdx.x == 0 && threadIdx.x == 0 && !v->what) {
        v->at = ~found & 0xffffffffffffffull;
        v->what = (int)(~found >> 56);
        f(v);
    }
    return found != 0;
}

template <typename F> __global__ void ddp__k_verdict(ddp_cuda_verdict *v, F f)
{
    (void)ddp__verdict_end(v, f);
}

/* Reads the values at the index from one or two arrays (0 if NULL). */
struct ddp__verdict_values {
    const float *a, *b;

    __device__ void operator()(ddp_cuda_verdict *v) const
    {
        v->value[0] = a ? a[v->at] : 0;
        v->value[1] = b ? b[v->at] : 0;
    }
};

ddp_status ddp_cuda_verdict_read(const ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp_cuda_verdict v;
    cudaError_t e;
    double a, b;

    if (!verdict) return ddp__fail(err, DDP_ARG, "ddp_cuda_verdict_read: verdict is NULL");
    e = cudaMemcpyAsync(&v, verdict, sizeof v, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)stream);
    if (e != cudaSuccess)
        return ddp__fail(err, DDP_FAILED, "ddp_cuda_verdict_read: %s", cudaGetErrorString(e));
    a = (double)v.value[0];
    b = (double)v.value[1];
    switch (v.what) {
    case DDP__SAYS_NOTHING:
        return DDP_OK;
    case DDP__SAYS_NAN:
        return ddp__found_nan(v.at, err);
    case DDP__SAYS_NO_LEVEL:
        return ddp__fail(err, DDP_NUMERIC, "x[%llu] = %g has no level; only finite numbers can be quantised",
                         v.at, a);
    case DDP__SAYS_INDEX:
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_feedback_keep: index[%llu] = %llu is not below "
                         "the number of elements",
                         v.at, v.number);
    case DDP__SAYS_HEAD:
        return ddp__fail(err, DDP_FORMAT, "the header does not match the packing and %llu elements",
                         v.number);
    case DDP__SAYS_HALF:
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 8");
    case DDP__SAYS_LOW:
        return ddp__fail(err, DDP_FORMAT, "element %llu has the level %g; levels begin at %g", v.at, a,
                         a + 1);
    case DDP__SAYS_SCALE:
        return ddp__fail(err, DDP_FORMAT, "the scale of block %llu is %g; it must be finite and >= 0", v.at,
                         a);
    default:
        return ddp__fail(err, DDP_NUMERIC,
                         "x[%llu] = %g %s %g would not be a finite number; a gradient has diverged: "
                         "leave this step out",
                         v.at, a, v.what == DDP__SAYS_DIFFERENCE ? "-" : "+", b);
    }
}

/* ---- error feedback ---- */

enum { DDP__FEEDBACK_THREADS = 256, DDP__FEEDBACK_BLOCKS = 2112 };

/* Number of blocks for n elements, whose threads loop with a stride. */
static unsigned ddp__feedback_blocks(size_t n)
{
    const size_t wish = (n + DDP__FEEDBACK_THREADS - 1) / DDP__FEEDBACK_THREADS;
    return wish < DDP__FEEDBACK_BLOCKS ? (unsigned)wish : (unsigned)DDP__FEEDBACK_BLOCKS;
}

#define DDP__STRIDE(kernel, n, ...) \
    DDP__RUN(kernel, ddp__feedback_blocks(n), DDP__FEEDBACK_THREADS, __VA_ARGS__)

static inline __device__ size_t ddp__thread_first() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }
static inline __device__ size_t ddp__thread_step() { return (size_t)gridDim.x * blockDim.x; }

/* ADD 0 checks the sums. ADD 1 writes them, from the end, where the gradient is still in the cache. wide:
 * both arrays are aligned to 16 bytes. */
template <int ADD>
static __global__ void ddp__k_feedback(float *residual, const float *gradient, size_t n, int wide,
                                       ddp_cuda_verdict *v)
{
    float g[4];

    if (ADD ? ddp__verdict_end(v, ddp__verdict_values{residual, gradient}) : v->what) return;
    for (size_t i = ddp__thread_first(), fours = (n + 3) / 4; i < fours; i += ddp__thread_step()) {
        const size_t at = 4 * (ADD ? fours - 1 - i : i);
        ddp__piece_load(g, gradient, (long)at, (long)n, wide && at + 4 <= n);
        if (ADD) ddp__piece_store(residual, g, (long)at, (long)n, wide && at + 4 <= n, 1);
        DDP__UNROLL for (unsigned e = 0; !ADD && e < 4; e++) if (ddp__magnitude(g[e]) >= DDP__HUGE &&
                                                                 ddp__sum_spoils(residual[at + e], g[e]))
            ddp__verdict_note(v, DDP__SAYS_SUM, at + e);
    }
}

static __global__ void ddp__k_feedback_places(const uint64_t *index, size_t k, size_t n, ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < k; i += ddp__thread_step())
        if (index[i] >= n) ddp__verdict_note(v, DDP__SAYS_INDEX, i);
}

struct ddp__verdict_index {
    const uint64_t *index;

    __device__ void operator()(ddp_cuda_verdict *v) const { v->number = index[v->at]; }
};

static __global__ void ddp__k_feedback_keep(float *residual, const uint64_t *index, size_t k,
                                            ddp_cuda_verdict *v)
{
    if (ddp__verdict_end(v, ddp__verdict_index{index})) return;
    for (size_t i = ddp__thread_first(); i < k; i += ddp__thread_step()) residual[index[i]] = 0;
}

ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n, ddp_cuda_verdict *verdict,
                                 void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const int wide = ddp__aligned(residual, gradient);

    if (!residual || !gradient || !verdict)
        return ddp__fail(err, DDP_ARG, "ddp_cuda_feedback_add: residual, gradient or verdict is NULL");
    if (!n) return DDP_OK;
    DDP__STRIDE(ddp__k_feedback<0>, (n + 3) / 4, residual, gradient, n, wide, verdict);
    DDP__STRIDE(ddp__k_feedback<1>, (n + 3) / 4, residual, gradient, n, wide, verdict);
    return ddp__cuda_queued(dev, err);
}

ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                  ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;

    if (!residual || !index || !verdict)
        return ddp__fail(err, DDP_ARG, "ddp_cuda_feedback_keep: residual, index or verdict is NULL");
    if (!k) return DDP_OK;
    DDP__STRIDE(ddp__k_feedback_places, k, index, k, n, verdict);
    DDP__STRIDE(ddp__k_feedback_keep, k, residual, index, k, verdict);
    return ddp__cuda_queued(dev, err);
}

/* ==== cuda/topk.cuh ==== [cuda] */
/* The k elements of largest magnitude, exactly. Three passes find the digits of the k-th magnitude by
 * counting, and a fourth pass writes the elements that reach it. The second pass also lists the elements that
 * reach the first digit, and later passes read only the list: 2 reads of the array. If the list overflows,
 * the third pass lists the elements that reach two digits (3 reads). If that list overflows too, all passes
 * read the array (4 reads). */

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

/* ==== cuda/elementwise.cuh ==== [cuda] */
/* gelu, relu, add, swiglu and dropout: one pass over memory, 16 bytes at a time. */

enum { DDP__MAP_THREADS = 256 };

/* y = f(a) or f(a, b), where b is a second input or a gradient. Backward computes d = or d +=. */
struct ddp__map_gelu {
    __device__ float operator()(float x, float) const
    {
        const float u = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1 + tanhf(u));
    }
};
struct ddp__map_gelu_grad {
    __device__ float operator()(float x, float dy) const
    {
        const float k = 0.79788456080286535588f, t = tanhf(k * (x + 0.044715f * x * x * x));
        return dy * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * 0.044715f * x * x));
    }
};
/* NaN stays NaN. The gradient at 0 is 0. */
struct ddp__map_relu {
    __device__ float operator()(float x, float) const { return x < 0 ? 0 : x; }
};
struct ddp__map_relu_grad {
    __device__ float operator()(float x, float dy) const { return x > 0 ? dy : 0; }
};
struct ddp__map_add {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct ddp__map_copy {
    __device__ float operator()(float a, float) const { return a; }
};
struct ddp__map_scaled {
    const float *by; /* in device memory */
    __device__ float operator()(float a, float) const { return a * *by; }
};

/* out[i] = (add ? out[i] : 0) + f(a[i], b[i]). b NULL reads as 0. out may be a or b. wide: all arrays are
 * aligned to 16 bytes. */
template <typename T, typename F>
static __global__ void ddp__k_map(T *out, const T *a, const T *b, long n, int add, int wide, F f)
{
    const int width = ddp__vec<T>::width;
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    float x[width], y[width];

    if (i >= n) return;
    wide = wide && i + width <= n;
    ddp__piece_load(x, a, i, n, wide);
    if (b) ddp__piece_load(y, b, i, n, wide);
    for (int k = 0; k < width; k++) x[k] = f(x[k], b ? y[k] : 0);
    ddp__piece_store(out, x, i, n, wide, add);
}

template <typename T, typename F>
static inline void ddp__cuda_map_as(ddp__cuda *dev, void *out, const void *a, const void *b, long n, int add,
                                    F f)
{
    DDP__EACH((ddp__k_map<T, F>), ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)out, (const T *)a, (const T *)b,
              n, add, ddp__aligned(out, a, b), f);
}

/* Applies the map to n elements of the type that arrays of this shape have on the device. */
template <typename F>
static inline void ddp__cuda_map(const ddp_op_call *c, void *out, const void *a, const void *b, int add, F f)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    const long n = ddp_shape_count(&c->spec->out);
    if (ddp__cuda_half(dev, &c->spec->out))
        ddp__cuda_map_as<ddp__bf16>(dev, out, a, b, n, add, f);
    else
        ddp__cuda_map_as<float>(dev, out, a, b, n, add, f);
}

/* Forward of an operator with one input. */
template <typename F> static void ddp__cuda_map_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], NULL, 0, F());
}

template <typename F> static void ddp__cuda_map_backward(const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_map(c, c->grad_in[0], c->in[0], c->grad_out, c->add_in[0], F());
}

/* The gradient of input k equals the gradient of the output. */
static DDP__UNUSED void ddp__cuda_copy_grad(const ddp_op_call *c, int k)
{
    if (c->grad_in[k] && (c->add_in[k] || c->grad_in[k] != c->grad_out))
        ddp__cuda_map(c, c->grad_in[k], c->grad_out, NULL, c->add_in[k], ddp__map_copy());
}

static DDP__UNUSED void ddp__cuda_add_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], c->in[1], 0, ddp__map_add());
}

/* One input after the other: they may be the same array, and then the second adds to the first. */
static DDP__UNUSED void ddp__cuda_add_backward(const ddp_op_call *c)
{
    ddp__cuda_copy_grad(c, 0);
    ddp__cuda_copy_grad(c, 1);
}

DDP__FAMILY(ddp__cuda_elementwise_ops,
            {"gelu", DDP__LATER(ddp__cuda_map_forward<ddp__map_gelu>),
             DDP__LATER(ddp__cuda_map_backward<ddp__map_gelu_grad>), NULL},
            {"relu", DDP__LATER(ddp__cuda_map_forward<ddp__map_relu>),
             DDP__LATER(ddp__cuda_map_backward<ddp__map_relu_grad>), NULL},
            DDP__PLAIN("add", ddp__cuda_add, NULL))

/* ---- swiglu: y = silu(a) b, where a and b are the halves of each row of one input, or two inputs ---- */

/* Consecutive rows of a and of b are row elements apart. */
template <typename T>
static __global__ void ddp__k_swiglu(T *out, const T *a, const T *b, long rows, long n, long row, int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = ddp__pieces<T>(n), i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long r = i / pieces, at = i % pieces * width;
    float x[width], y[width];

    if (r >= rows) return;
    ddp__piece_load(x, a + r * row, at, n, wide);
    ddp__piece_load(y, b + r * row, at, n, wide);
    for (int k = 0; k < width; k++) x[k] = x[k] / (1 + expf(-x[k])) * y[k];
    ddp__piece_store(out + r * n, x, at, n, wide, 0);
}

/* da = dy b (s + a s (1 - s)), db = dy a s. da may be a, db may be b, and each may be NULL. */
template <typename T>
static __global__ void ddp__k_swiglu_grad(T *da, T *db, const T *a, const T *b, const T *dy, long rows,
                                          long n, long row, int add_a, int add_b, int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = ddp__pieces<T>(n), i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long r = i / pieces, at = i % pieces * width;
    float x[width], y[width], d[width];

    if (r >= rows) return;
    ddp__piece_load(x, a + r * row, at, n, wide);
    ddp__piece_load(y, b + r * row, at, n, wide);
    ddp__piece_load(d, dy + r * n, at, n, wide);
    for (int k = 0; k < width; k++) {
        const float s = 1 / (1 + expf(-x[k])), silu = x[k] * s;
        x[k] = d[k] * y[k] * (s + silu * (1 - s));
        d[k] *= silu;
    }
    if (da) ddp__piece_store(da + r * row, x, at, n, wide, add_a);
    if (db) ddp__piece_store(db + r * row, d, at, n, wide, add_b);
}

/* Positions of the two factors in arrays given per input. NULL stays NULL. */
template <typename T>
static inline void ddp__cuda_swiglu_factors(const ddp_op_spec *s, const void *first, const void *second,
                                            const T **a, const T **b)
{
    *a = (const T *)first;
    *b = s->inputs > 1 ? (const T *)second : first ? (const T *)first + s->out.dim[s->out.dims - 1] : NULL;
}

template <typename T> static void ddp__cuda_swiglu_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const T *a, *b;
    ddp__cuda_swiglu_factors(c->spec, c->in[0], c->in[1], &a, &b);
    DDP__EACH((ddp__k_swiglu<T>), rows * ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)c->out, a, b, rows, n,
              c->spec->inputs > 1 ? n : 2 * n, ddp__wide<T>(n, c->out, a, b));
}

template <typename T> static void ddp__cuda_swiglu_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const T *a, *b, *da, *db;

    ddp__cuda_swiglu_factors(c->spec, c->in[0], c->in[1], &a, &b);
    ddp__cuda_swiglu_factors(c->spec, c->grad_in[0], c->grad_in[1], &da, &db);
    if (!da && !db) return;
    DDP__EACH((ddp__k_swiglu_grad<T>), rows * ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)da, (T *)db, a, b,
              (const T *)c->grad_out, rows, n, c->spec->inputs > 1 ? n : 2 * n, c->add_in[0],
              c->add_in[c->spec->inputs > 1], ddp__wide<T>(n, a, b, da, db) && ddp__aligned(c->grad_out));
}

/* ---- dropout: bit-identical to the CPU's mask, generated again wherever it is needed. Channels-last images
 * use the index that an element has on the CPU ---- */

/* The random bits of elements i and i + 1 (i even) of the stream: the low and the high half. */
__device__ static __forceinline__ uint64_t ddp__dropout_draw(uint64_t stream, long i)
{
    const uint64_t draw = (uint64_t)(i % DDP__OP_GRAIN / 2 + 1);
    return ddp__mix64(stream + draw * DDP__RNG_STEP);
}

/* out = or += in / (1 - p) for kept elements. out may be in. If bound is 0, all elements are kept. */
template <typename T>
static __global__ void ddp__k_dropout(T *out, const T *in, long n, uint64_t mixed_seed, uint32_t bound,
                                      float scale, int add, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    const uint64_t stream = ddp__rng_stream(mixed_seed, (uint64_t)(at / DDP__OP_GRAIN));
    float v[width];

    if (at >= n) return;
    wide = wide && at + width <= n;
    ddp__piece_load(v, in, at, n, wide);
    for (int k = 0; k < width; k += 2) { /* a piece does not cross a block of random bits */
        const uint64_t bits = bound ? ddp__dropout_draw(stream, at + k) : 0;
        v[k] = (uint32_t)bits >= bound ? v[k] * scale : 0;
        v[k + 1] = (uint32_t)(bits >> 32) >= bound ? v[k + 1] * scale : 0;
    }
    ddp__piece_store(out, v, at, n, wide, add);
}

template <typename T>
static void ddp__cuda_dropout_run(ddp__cuda *dev, const ddp_op_call *c, void *out, const void *in, int add)
{
    const long n = ddp_shape_count(&c->spec->out);
    const double p = c->training ? c->spec->arg[0] : 0;
    if (p == 0 && !add && out == in) return;
    DDP__EACH((ddp__k_dropout<T>), ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)out, (const T *)in, n,
              ddp__mix64(c->random + DDP__RNG_STEP), (uint32_t)(p * 4294967296.0), (float)(1 / (1 - p)), add,
              ddp__aligned(out, in));
}

template <typename T> static void ddp__cuda_dropout_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_dropout_run<T>(dev, c, c->out, c->in[0], 0);
}

template <typename T> static void ddp__cuda_dropout_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_dropout_run<T>(dev, c, c->grad_in[0], c->grad_out, c->add_in[0]);
}

/* ==== cuda/batch_norm.cuh ==== [cuda] */
/* Batch norm with the semantics of ops/batch_norm.c: the same shape rule, saved statistics (mean and rstd per
 * channel) and running averages. A following relu is fused: forward writes one more array, and backward needs
 * no extra pass for it. Images are channels-last: each pixel is a row of channels. The pixels are divided
 * into parts that depend only on the shape. A block sums one part of some channels, and the parts of a
 * channel are added in a fixed order, in double. */

enum {
    DDP__CHANNEL_THREADS = 256,
    DDP__CHANNEL_PART = 4096,   /* minimum number of elements per block */
    DDP__CHANNEL_COLUMNS = 128, /* target number of channels per block */
    DDP__CHANNEL_BLOCKS = 528,  /* target number of blocks for kernels that sum */
    DDP__CHANNEL_MAPS = 2112    /* target number of blocks for other kernels */
};

typedef struct ddp__channels {
    long pixels, channels; /* pixels of all images */
    long parts, part;      /* number of parts, pixels per part (the last part may be shorter) */
} ddp__channels;

/* Sums of dy and dy (x - mean), or of d and d d, where d is x minus the first pixel of the part. */
struct ddp__channel_sum {
    double sum, product;

    __device__ void operator+=(const ddp__channel_sum &b)
    {
        sum += b.sum;
        product += b.product;
    }
};

static ddp__channels ddp__channels_of(const ddp_shape *s, long blocks = DDP__CHANNEL_BLOCKS)
{
    ddp__channels c = {s->dim[0] * s->dim[2] * s->dim[3], s->dim[1], 0, 0};
    const long columns = c.channels < DDP__CHANNEL_COLUMNS ? c.channels : (long)DDP__CHANNEL_COLUMNS;
    const long least = ddp__blocks(DDP__CHANNEL_PART, columns);

    c.part = ddp__blocks(c.pixels, ddp__blocks(blocks, ddp__blocks(c.channels, columns)));
    if (c.part < least) c.part = least;
    c.parts = ddp__blocks(c.pixels, c.part);
    return c;
}

/* Number of threads next to each other in a row of a block, each with `wide` channels. */
__host__ __device__ static __forceinline__ int ddp__channel_lanes(long channels, int wide)
{
    int lanes = 1;
    while (lanes < 32 && (long)lanes * wide < channels) lanes *= 2;
    return lanes;
}

/* Walks a block over part blockIdx.y. The threads of a block form rows of lanes. A lane owns `wide` channels,
 * starting at `channel`, and the rows take turns at the pixels. at is the index of the current element. The
 * walk has ended when left <= 0. */
struct ddp__channel_walk {
    long pixel, at, left, step, hop;
    int lanes, channel;

    __device__ ddp__channel_walk(const ddp__channels &c, int wide)
    {
        const long end = (blockIdx.y + 1) * c.part;

        lanes = ddp__channel_lanes(c.channels, wide);
        channel = ((int)blockIdx.x * lanes + (int)threadIdx.x % lanes) * wide;
        pixel = blockIdx.y * c.part + (int)threadIdx.x / lanes;
        at = pixel * c.channels + channel;
        left = channel < c.channels ? (end < c.pixels ? end : c.pixels) - pixel : 0;
        step = DDP__CHANNEL_THREADS / lanes;
        hop = step * c.channels;
    }
    __device__ void next()
    {
        left -= step;
        pixel += step;
        at += hop;
    }
};

/* Loads N elements at p as floats, 16 bytes at a time. W is the number of channels per lane, or 1 if the
 * array is not aligned for 16-byte loads. */
template <int W, int N, typename T>
__device__ static __forceinline__ void ddp__channel_load(float (&v)[N], const T *p)
{
    const int width = W > 1 ? ddp__vec<T>::width : 1;

    DDP__UNROLL for (int i = 0; i < N; i += width)
    {
        const ddp__vec<T, width> r = ddp__vec_load<T, width>(p + i);
        DDP__UNROLL for (int k = 0; k < width; k++) v[i + k] = ddp__to_float(r.v[k]);
    }
}

/* Adds, for each lane, the values of all rows of the block in a fixed tree. Row 0 returns the sum. shared has
 * one N per thread, and N defines +=. */
template <typename N> __device__ static __forceinline__ N ddp__rows_sum(const N &mine, N *shared, int lanes)
{
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int k = DDP__CHANNEL_THREADS / 2; k >= lanes; k /= 2) {
        if ((int)threadIdx.x < k) shared[threadIdx.x] += shared[threadIdx.x + (unsigned)k];
        __syncthreads();
    }
    return shared[threadIdx.x];
}

/* Batch norm for the channels of a lane: y = x factor + offset, rounded to T. scale is NULL if no relu
 * follows. */
template <typename T, int W> struct ddp__batch_line {
    float mean[W], factor[W], offset[W];
    int relu;

    __device__ ddp__batch_line(const float *stat, const T *scale, const T *shift,
                               const ddp__channel_walk &walk)
        : mean(), factor(), offset(), relu(scale != NULL)
    {
        float both[2 * W];

        if (!stat || walk.left <= 0) return;
        ddp__channel_load<W>(both, stat + 2 * walk.channel);
        if (relu)
            ddp__channel_load<W>(factor, scale + walk.channel),
                ddp__channel_load<W>(offset, shift + walk.channel);
        DDP__UNROLL for (int e = 0; e < W; e++)
        {
            mean[e] = both[2 * e];
            factor[e] *= both[2 * e + 1];
            offset[e] -= mean[e] * factor[e];
        }
    }
    __device__ float of(float x, int e) const
    {
        return ddp__to_float(ddp__from_float<T>(x * factor[e] + offset[e]));
    }

    /* dy, or 0 where the relu blocks the gradient of x. No branch, so that the compiler can move loads across
     * it. */
    __device__ float back(float dy, float x, int e) const { return (relu & !(of(x, e) > 0)) ? 0 : dy; }
};

/* Sums one part of each channel. stat: mean and rstd per channel. scale, shift: of the batch norm that a relu
 * follows, else NULL. If stat is NULL, dy is x, summed as differences from a nearby value, so that a mean far
 * from 0 loses no digits. */
template <typename T, int W>
__global__ void ddp__k_channel_sums(ddp__channel_sum *part, const T *dy, const T *x, const float *stat,
                                    const T *scale, const T *shift, ddp__channels c)
{
    __shared__ ddp__channel_sum shared[DDP__CHANNEL_THREADS];
    ddp__channel_walk walk(c, W);
    ddp__batch_line<T, W> line(stat, scale, shift, walk);
    const T *first = x + blockIdx.y * c.part * c.channels + walk.channel;
    float low[W] = {0}, sum[W] = {0}, product[W] = {0}, d[W], v[W];

    if (!stat && walk.left > 0) ddp__channel_load<W>(low, first), ddp__channel_load<W>(line.mean, first);
    DDP__UNROLL_4 for (long n = (walk.left + walk.step - 1) / walk.step; n > 0; n--, walk.next())
    {
        ddp__channel_load<W>(d, dy + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++) v[e] = d[e];
        if (stat) ddp__channel_load<W>(v, x + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++)
        {
            d[e] = line.back(d[e], v[e], e) - low[e];
            sum[e] += d[e];
            product[e] += d[e] * (v[e] - line.mean[e]);
        }
    }
    DDP__UNROLL for (int e = 0; e < W; e++)
    {
        const ddp__channel_sum mine = {(double)sum[e], (double)product[e]},
                               all = ddp__rows_sum(mine, shared, walk.lanes);
        if ((int)threadIdx.x < walk.lanes && walk.channel < c.channels)
            part[(walk.channel + e) * c.parts + blockIdx.y] = all;
    }
}

/* Adds the parts of a channel, with one warp. With x, the parts are differences from their first pixel. If x
 * is NULL, they are plain sums. */
template <typename T>
__device__ static __forceinline__ ddp__channel_sum ddp__channel_total(const ddp__channel_sum *part,
                                                                      const T *x, const ddp__channels &c,
                                                                      long channel)
{
    const double at = x ? (double)ddp__to_float(x[channel]) : 0;
    ddp__channel_sum all = {0, 0};

    for (long p = threadIdx.x; p < c.parts; p += 32) {
        const ddp__channel_sum s = part[channel * c.parts + p];
        const long first = p * c.part, n = p + 1 < c.parts ? c.part : c.pixels - first;
        const double count = (double)n, off = x ? ddp__to_float(x[first * c.channels + channel]) - at : 0;
        all += ddp__channel_sum{s.sum + off * count, s.product + off * (2 * s.sum + off * count)};
    }
    return ddp__channel_sum{ddp__warp_sum(all.sum), ddp__warp_sum(all.product)};
}

/* Computes each channel's statistics from its parts, one warp per channel. With training 0, reads the running
 * statistics. */
template <typename T>
__global__ void ddp__k_batch_norm_statistics(float *stat, float *running_mean, float *running_var,
                                             const ddp__channel_sum *part, const T *x, ddp__channels c,
                                             int training)
{
    const long i = blockIdx.x;
    const double n = (double)c.pixels;
    ddp__channel_sum all = {0, 0};
    double mean, var;

    if (training) all = ddp__channel_total(part, x, c, i);
    if (threadIdx.x) return;
    mean = (double)running_mean[i];
    var = (double)running_var[i];
    if (training) {
        mean = (double)ddp__to_float(x[i]) + all.sum / n;
        var = (all.product - all.sum * all.sum / n) / n;
        if (var < 0) var = 0;
        running_mean[i] += (float)(DDP__BATCH_NORM_MOVE * (mean - (double)running_mean[i]));
        running_var[i] +=
            (float)(DDP__BATCH_NORM_MOVE * (var * (n > 1 ? n / (n - 1) : 1) - (double)running_var[i]));
    }
    stat[2 * i] = (float)mean;
    stat[2 * i + 1] = (float)(1 / sqrt(var + DDP__NORM_EPS));
}

/* Gradients of scale and shift (NULL if not wanted). slope (3, channels): factor of dy, factor of x, and
 * constant term of dx. */
template <typename T>
__global__ void ddp__k_batch_norm_slopes(float *slope, float *dscale, float *dshift,
                                         const ddp__channel_sum *part, const float *stat, const T *scale,
                                         ddp__channels c)
{
    const long i = blockIdx.x;
    const ddp__channel_sum all = ddp__channel_total(part, (const T *)NULL, c, i);
    const double count = (double)c.pixels, mean = (double)stat[2 * i], rstd = (double)stat[2 * i + 1];
    const double factor = (double)ddp__to_float(scale[i]) * rstd,
                 of_x = -factor * rstd * rstd * all.product / count;

    if (threadIdx.x) return;
    if (dscale) dscale[i] += (float)(all.product * rstd);
    if (dshift) dshift[i] += (float)all.sum;
    slope[i] = (float)factor;
    slope[c.channels + i] = (float)of_x;
    slope[2 * c.channels + i] = (float)(-factor * all.sum / count - of_x * mean);
}

/* Writes y of each channel. z, unless NULL, receives relu(y). */
template <typename T, int W>
__global__ void ddp__k_batch_norm_apply(T *y, T *z, const T *x, const float *stat, const T *scale,
                                        const T *shift, ddp__channels c)
{
    ddp__channel_walk walk(c, W);
    const ddp__batch_line<T, W> line(stat, scale, shift, walk);
    float v[W];

    for (; walk.left > 0; walk.next()) {
        ddp__channel_load<W>(v, x + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++) v[e] = line.of(v[e], e);
        ddp__piece_store(y + walk.at, v, 0, W, W > 1, 0);
        DDP__UNROLL for (int e = 0; e < W; e++) v[e] = ddp__map_relu()(v[e], 0);
        if (z) ddp__piece_store(z + walk.at, v, 0, W, W > 1, 0);
    }
}

template <typename T, int W>
__global__ void ddp__k_batch_norm_grad(T *dx, const T *dy, const T *x, const float *slope, int add,
                                       const float *stat, const T *scale, const T *shift, ddp__channels c)
{
    ddp__channel_walk walk(c, W);
    const ddp__batch_line<T, W> line(stat, scale, shift, walk);
    float s[3][W], d[W], v[W];

    DDP__UNROLL for (int k = 0; k < 3 && walk.left > 0; k++)
        ddp__channel_load<W>(s[k], slope + k * c.channels + walk.channel);
    for (; walk.left > 0; walk.next()) {
        ddp__channel_load<W>(d, dy + walk.at);
        ddp__channel_load<W>(v, x + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++) d[e] =
            line.back(d[e], v[e], e) * s[0][e] + v[e] * s[1][e] + s[2][e];
        ddp__piece_store(dx + walk.at, d, 0, W, W > 1, add);
    }
}

/* ---- on the host ---- */

static size_t ddp__cuda_batch_norm_scratch(const ddp_op_spec *s, int)
{
    const ddp__channels c = ddp__channels_of(&s->in[0]);
    return (size_t)(c.channels * c.parts) * sizeof(ddp__channel_sum) + 3 * (size_t)c.channels * sizeof(float);
}

/* Launches kernel<T, W>(args..., c) over the parts of all channels of c. With wide 1, reads pixels 16 bytes
 * at a time. */
#define DDP__WALK(kernel, wide, c, ...)                                                                    \
    do {                                                                                                   \
        const int ddp__w = (wide) ? ddp__vec<T>::width : 1;                                                \
        const long ddp__columns = (long)ddp__channel_lanes((c).channels, ddp__w) * ddp__w;                 \
        const dim3 ddp__grid((unsigned)ddp__blocks((c).channels, ddp__columns), (unsigned)(c).parts);      \
        DDP__RUN(((wide) ? kernel<T, ddp__vec<T>::width> : kernel<T, 1>), ddp__grid, DDP__CHANNEL_THREADS, \
                 __VA_ARGS__, c);                                                                          \
    } while (0)

/* relu: the fused relu, or NULL. */
template <typename T>
static void ddp__cuda_batch_forward(ddp__cuda *dev, const ddp_op_call *call, const ddp_op_call *relu)
{
    const ddp_shape *s = &call->spec->in[0];
    const ddp__channels c = ddp__channels_of(s), map = ddp__channels_of(s, DDP__CHANNEL_MAPS);
    const T *x = (const T *)call->in[0], *scale = (const T *)call->param[0],
            *shift = (const T *)call->param[1], *no = NULL;
    T *y = (T *)call->out, *z = relu ? (T *)relu->out : NULL;
    float *stat = (float *)call->saved, *no_stat = NULL;
    ddp__channel_sum *part = (ddp__channel_sum *)dev->scratch;
    const int wide = ddp__wide<T>(c.channels, x, y, z, stat) && ddp__aligned(scale, shift);

    if (call->training) DDP__WALK(ddp__k_channel_sums, wide, c, part, x, x, no_stat, no, no);
    DDP__RUN((ddp__k_batch_norm_statistics<T>), (unsigned)c.channels, 32, stat, (float *)call->buffer[0],
             (float *)call->buffer[1], part, x, c, call->training);
    DDP__WALK(ddp__k_batch_norm_apply, wide, map, y, z, x, stat, scale, shift);
}

template <typename T>
static void ddp__cuda_batch_backward(ddp__cuda *dev, const ddp_op_call *call, const ddp_op_call *relu)
{
    const ddp_shape *s = &call->spec->in[0];
    const ddp__channels c = ddp__channels_of(s), map = ddp__channels_of(s, DDP__CHANNEL_MAPS);
    const T *x = (const T *)call->in[0], *dy = (const T *)(relu ? relu->grad_out : call->grad_out);
    const T *scale = (const T *)call->param[0], *shift = (const T *)call->param[1],
            *gate = relu ? scale : NULL;
    const float *stat = (const float *)call->saved;
    T *dx = (T *)call->grad_in[0];
    ddp__channel_sum *part = (ddp__channel_sum *)dev->scratch;
    float *slope = (float *)(part + c.channels * c.parts);
    const int wide = ddp__wide<T>(c.channels, x, dy, dx, stat) && ddp__aligned(scale, shift);

    DDP__WALK(ddp__k_channel_sums, wide, c, part, dy, x, stat, gate, shift);
    DDP__RUN((ddp__k_batch_norm_slopes<T>), (unsigned)c.channels, 32, slope, (float *)call->grad_param[0],
             (float *)call->grad_param[1], part, stat, scale, c);
    if (dx)
        DDP__WALK(ddp__k_batch_norm_grad, wide, map, dx, dy, x, slope, call->add_in[0], stat, gate, shift);
}

template <typename T> static void ddp__cuda_batch_norm_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_batch_forward<T>(dev, c, NULL);
}

template <typename T> static void ddp__cuda_batch_norm_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_batch_backward<T>(dev, c, NULL);
}

/* Runs the relu and the norm separately if another operator also reads the norm's output: its gradient is
 * already in the relu's grad_in[0]. */
static void ddp__cuda_batch_relu_backward(const ddp_op_call *norm, const ddp_op_call *relu)
{
    ddp__cuda *dev = (ddp__cuda *)norm->pool;
    if (relu->add_in[0]) ddp__cuda_map_backward<ddp__map_relu_grad>(relu), relu = NULL;
    (dev->half ? ddp__cuda_batch_backward<ddp__bf16> : ddp__cuda_batch_backward<float>)(dev, norm, relu);
}

static inline const ddp_op_pair *ddp__cuda_batch_pair(const char *first, const char *second)
{
    static const ddp_op_pair relu = {
        ddp__cuda_later_both<
            ddp__cuda_typed_both<ddp__cuda_batch_forward<float>, ddp__cuda_batch_forward<ddp__bf16>>>,
        ddp__cuda_later_both<ddp__cuda_batch_relu_backward>, NULL};
    return strcmp(first, "batch_norm2d") == 0 && strcmp(second, "relu") == 0 ? &relu : NULL;
}

DDP__FAMILY(ddp__cuda_batch_norm_ops,
            DDP__ENTRY("batch_norm2d", ddp__cuda_batch_norm, ddp__cuda_batch_norm_scratch))

/* ==== cuda/pool.cuh ==== [cuda] */
/* Pooling and flatten on the GPU, with the semantics of ops/pool.c, for channels-last images. One thread
 * computes each output and, in backward, each input, window by window. A thread has W channels, read 16 bytes
 * at a time. */

enum { DDP__POOL_THREADS = 256 };

/* A thread's first element in images of rows x cols: image, position and channel. */
struct ddp__pool_spot {
    long o, image;
    int row, col, channel;

    __device__ ddp__pool_spot(int rows, int cols, int channels, int wide)
    {
        const long at = (long)blockIdx.x * blockDim.x + threadIdx.x, pieces = channels / wide,
                   pixel = at / pieces;

        o = at * wide;
        channel = (int)(at - pixel * pieces) * wide;
        image = pixel / ((long)rows * cols);
        row = (int)(pixel - image * rows * cols) / cols;
        col = (int)(pixel - image * rows * cols) % cols;
    }
};

/* MAX: the first of equal elements is the maximum, and NaN counts as the maximum. place receives its position
 * in the window. Otherwise the sum times part. */
template <typename T, int MAX, int W>
__global__ void ddp__k_pool(T *y, float *place, const T *x, ddp__pool_size z, float part, int channels)
{
    const ddp__pool_spot s(z.rows, z.cols, channels, W);
    const int top = s.row * z.stride - z.padding, left = s.col * z.stride - z.padding;
    int r0, r1, c0, c1;
    float best[W], at[W], v[W];

    if (s.image * channels >= z.planes) return;
    x += s.image * z.h * z.w * channels + s.channel;
    ddp__pool_span(&z, s.row, z.h, &r0, &r1);
    ddp__pool_span(&z, s.col, z.w, &c0, &c1);
    DDP__UNROLL for (int e = 0; e < W; e++)
    {
        best[e] = MAX ? -INFINITY : 0;
        at[e] = (float)((r0 - top) * z.kernel + c0 - left);
    }
    for (int r = r0; r < r1; r++)
        for (int c = c0; c < c1; c++) {
            ddp__channel_load<W>(v, x + ((long)r * z.w + c) * channels);
            DDP__UNROLL for (int e = 0; e < W; e++)
            {
                if (MAX && (v[e] <= best[e] || isnan(best[e]))) continue;
                best[e] = MAX ? v[e] : best[e] + v[e];
                at[e] = (float)((r - top) * z.kernel + c - left);
            }
        }
    DDP__UNROLL for (int e = 0; e < W && !MAX; e++) best[e] *= part;
    ddp__piece_store(y + s.o, best, 0, W, W > 1, 0);
    DDP__UNROLL for (int e = 0; e < W && MAX; e += ddp__vec<float>::width)
        ddp__piece_store(place + s.o, at + e, e, W, W > 1, 0);
}

/* The first and the last of `count` windows that contain element i of a side. */
static inline __device__ void ddp__window_range(const ddp__pool_size &z, int i, int count, int *first,
                                                int *last)
{
    const int at = i + z.padding;
    *first = at < z.kernel ? 0 : (at - z.kernel) / z.stride + 1;
    *last = at / z.stride < count ? at / z.stride : count - 1;
}

/* MAX: adds the gradients of the windows whose maximum is this element. Otherwise adds `part` of the gradient
 * of each window that contains it. */
template <typename T, int MAX, int W>
__global__ void ddp__k_pool_grad(T *dx, const T *dy, const float *place, int add, ddp__pool_size z,
                                 float part, int channels)
{
    const ddp__pool_spot s(z.h, z.w, channels, W);
    int i0, i1, j0, j1;
    float sum[W] = {0}, d[W], at[W];

    if (s.image * channels >= z.planes) return;
    ddp__window_range(z, s.row, z.rows, &i0, &i1);
    ddp__window_range(z, s.col, z.cols, &j0, &j1);
    if (add) ddp__channel_load<W>(sum, dx + s.o);
    for (int i = i0; i <= i1; i++)
        for (int j = j0; j <= j1; j++) {
            const int mine = (s.row - i * z.stride + z.padding) * z.kernel + s.col - j * z.stride + z.padding;
            const long o = ((s.image * z.rows + i) * z.cols + j) * channels + s.channel;
            ddp__channel_load<W>(d, dy + o);
            if (MAX) ddp__channel_load<W>(at, place + o);
            DDP__UNROLL for (int e = 0; e < W; e++) if (!MAX) sum[e] += d[e] * part;
            else if ((int)at[e] == mine) sum[e] += d[e];
        }
    ddp__piece_store(dx + s.o, sum, 0, W, W > 1, 0);
}

/* Transposes each image of `in` from rows x cols to cols x rows. */
template <typename T>
__global__ void ddp__k_flatten(T *out, const T *in, int add, long count, long rows, long cols)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, line = i / rows;

    if (i >= count) return;
    const float v = ddp__to_float(in[(line / cols * rows + i % rows) * cols + line % cols]);
    out[i] = ddp__from_float<T>(add ? ddp__to_float(out[i]) + v : v);
}

/* ---- on the host ---- */

/* The mean of a channel is one window over the whole image. part: weight of an element in the mean of a
 * window. */
static ddp__pool_size ddp__cuda_pool_sizes(const ddp_op_spec *s, float *part)
{
    const int all = s->out.dims == 2;
    ddp__pool_size z = ddp__pool_sizes(s);

    if (all) {
        z.rows = z.cols = z.stride = 1;
        z.padding = 0;
        z.kernel = z.h > z.w ? z.h : z.w;
    }
    *part = 1 / (all ? (float)z.h * (float)z.w : (float)z.kernel * (float)z.kernel);
    return z;
}

template <typename T, int MAX> static void ddp__cuda_pool_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const int channels = (int)c->spec->in[0].dim[1],
              wide = ddp__wide<T>(channels, c->out, c->in[0], c->saved);
    float part;
    const ddp__pool_size z = ddp__cuda_pool_sizes(c->spec, &part);

    DDP__EACH((wide ? ddp__k_pool<T, MAX, ddp__vec<T>::width> : ddp__k_pool<T, MAX, 1>),
              ddp_shape_count(&c->spec->out) / (wide ? ddp__vec<T>::width : 1), DDP__POOL_THREADS,
              (T *)c->out, (float *)c->saved, (const T *)c->in[0], z, part, channels);
}

template <typename T, int MAX> static void ddp__cuda_pool_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const int channels = (int)c->spec->in[0].dim[1],
              wide = ddp__wide<T>(channels, c->grad_in[0], c->grad_out, c->saved);
    float part;
    const ddp__pool_size z = ddp__cuda_pool_sizes(c->spec, &part);

    if (c->grad_in[0])
        DDP__EACH((wide ? ddp__k_pool_grad<T, MAX, ddp__vec<T>::width> : ddp__k_pool_grad<T, MAX, 1>),
                  ddp_shape_count(&c->spec->in[0]) / (wide ? ddp__vec<T>::width : 1), DDP__POOL_THREADS,
                  (T *)c->grad_in[0], (const T *)c->grad_out, (const float *)c->saved, c->add_in[0], z, part,
                  channels);
}

/* Flattened rows store an image channel by channel. Arrays that are not images keep their order. */
template <typename T, int BACK> static void ddp__cuda_flatten(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->in[0];
    const long n = ddp_shape_count(s), plane = s->dims == 4 ? s->dim[2] * s->dim[3] : 1,
               channels = n / s->dim[0] / plane;
    const void *from = BACK ? c->grad_out : c->in[0];
    void *to = BACK ? c->grad_in[0] : c->out;
    const int add = BACK && c->add_in[0];

    if (!to || (to == from && !add)) return;
    if (plane == 1)
        ddp__cuda_map(c, to, from, NULL, add, ddp__map_copy());
    else
        DDP__EACH((ddp__k_flatten<T>), n, DDP__POOL_THREADS, (T *)to, (const T *)from, add, n,
                  BACK ? channels : plane, BACK ? plane : channels);
}

#define DDP__POOL(f, K) DDP__LATER(ddp__cuda_typed<f<float, K>, f<ddp__bf16, K>>)

DDP__FAMILY(ddp__cuda_pool_ops,
            {"max_pool2d", DDP__POOL(ddp__cuda_pool_forward, 1), DDP__POOL(ddp__cuda_pool_backward, 1), NULL},
            {"avg_pool2d", DDP__POOL(ddp__cuda_pool_forward, 0), DDP__POOL(ddp__cuda_pool_backward, 0), NULL},
            {"global_avg_pool2d", DDP__POOL(ddp__cuda_pool_forward, 0), DDP__POOL(ddp__cuda_pool_backward, 0),
             NULL},
            {"flatten", DDP__POOL(ddp__cuda_flatten, 0), DDP__POOL(ddp__cuda_flatten, 1), NULL})

/* ==== cuda/mma.cuh ==== [cuda] */
/* The tensor-core instructions of flash attention, one function each, copies to shared memory, and tiles and
 * products built from them. Elements are bfloat16, or floats that a product rounds to TF32. The stand-in in
 * tests/cuda_on_cpu computes the documented result of each instruction lane by lane, so that the same kernels
 * run on the CPU. */

enum { DDP__FETCHED = 64 }; /* rows and columns that the copy engine loads at a time */
#define DDP__FETCHED_BYTES (DDP__FETCHED * DDP__FETCHED * 2) /* that the barrier expects of one load */

#if defined(DDP_CUDA_ON_CPU)
#include <mma_on_cpu.h>
#else

/* c (16 x 8 floats) += a (16 x K) b (K x 8). With g = lane / 4 and t = lane % 4, a lane holds c[g][2t],
 * c[g][2t + 1], c[g + 8][2t], c[g + 8][2t + 1]. For bfloat16 (K = 16, two per register), it holds a[g][2t..],
 * a[g + 8][2t..], a[g][2t + 8..], a[g + 8][2t + 8..] and b[2t..][g], b[2t + 8..][g]. For floats (K = 8), it
 * holds a[g][t], a[g + 8][t], a[g][t + 4], a[g + 8][t + 4] and b[t][g], b[t + 4][g]. */
template <typename T>
__device__ static __forceinline__ void ddp__mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1);
template <>
__device__ __forceinline__ void ddp__mma<ddp__bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                    uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void ddp__mma<float>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    const uint32_t half = 0x1000; /* half a unit in the last place that the instruction reads: the instruction
                                   * truncates, adding this rounds */
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0] + half), "r"(a[1] + half), "r"(a[2] + half), "r"(a[3] + half), "r"(b0 + half),
          "r"(b1 + half));
}

/* Loads four matrices of eight rows of 16 bytes from shared memory (ldmatrix). Lane l gives the address of
 * row l % 8 of matrix l / 8, and receives bytes 4 (l % 4) to 4 (l % 4) + 3 of row l / 4 of each matrix. */
template <typename T> __device__ static __forceinline__ void ddp__matrices(uint32_t (&r)[4], const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same, transposed, for bfloat16: lane l receives elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4).
 * */
__device__ static __forceinline__ void ddp__matrices_turned(uint32_t (&r)[4], const ddp__bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Starts to copy 16 bytes to shared memory. Writes zeros if present is 0. */
template <typename T>
__device__ static __forceinline__ void ddp__copy16(T *shared, const T *from, int present)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(from), "r"(present ? 16 : 0)
        : "memory");
}

/* commit closes a group of this thread's copies since the last call. wait waits until at most N groups are
 * unfinished. */
__device__ static __forceinline__ void ddp__copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int N = 0> __device__ static __forceinline__ void ddp__copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Hopper's wgmma: a group of four warps multiplies together. Available if compiled for sm_90a. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DDP__WGMMA          1
#define DDP__GROUP_ASM(...) asm volatile(__VA_ARGS__)
#else
#define DDP__WGMMA          0
#define DDP__GROUP_ASM(...) (void)0
#endif
#define DDP__GROUP_FOUR(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define DDP__GROUP_EIGHT(c)                                                                     \
    DDP__GROUP_FOUR(c[0]), DDP__GROUP_FOUR(c[1]), DDP__GROUP_FOUR(c[2]), DDP__GROUP_FOUR(c[3]), \
        DDP__GROUP_FOUR(c[4]), DDP__GROUP_FOUR(c[5]), DDP__GROUP_FOUR(c[6]), DDP__GROUP_FOUR(c[7])
#define DDP__GROUP_SUMS                                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, "                                                                                            \
    "%24, %25, %26, %27, %28, %29, %30, %31}"

/* c = a b, or c += a b if add is not 0. c: 64 x 64 floats of a group, of which warp w has rows 16 w to 16 w +
 * 15, in ddp__mma's layout. a: 64 x 16 in registers, in ddp__mma's layout. b: 16 x 64, a part of a row-major
 * tile in shared memory, from ddp__group_piece. Call it between ddp__group_begin and ddp__group_end, which
 * waits for c. Compute a in the loop iteration that uses it: ptxas 13.0 overwrites the registers of a factor
 * that is loaded in the first iteration and used in all. Such a factor stays in shared memory. */
__device__ static __forceinline__ void ddp__group_mma(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b,
                                                      int add)
{
    DDP__GROUP_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %37, "
                   "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DDP__GROUP_SUMS
                   ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                   : DDP__GROUP_EIGHT(c)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* c = a b^T, or c += a b^T if add is not 0. a, b: 64 x 16 parts of row-major tiles in shared memory. */
__device__ static __forceinline__ void ddp__group_mma(float (&c)[8][4], uint64_t a, uint64_t b, int add)
{
    DDP__GROUP_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %34, "
                   "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DDP__GROUP_SUMS
                   ", %32, %33, p, 1, 1, 0, 0;\n}\n"
                   : DDP__GROUP_EIGHT(c)
                   : "l"(a), "l"(b), "r"(add));
}

/* Makes written registers visible to wgmma. */
__device__ static __forceinline__ void ddp__group_begin(void)
{
    DDP__GROUP_ASM("wgmma.fence.sync.aligned;\n" ::: "memory");
}

/* c is complete after this call, and a register of the left factor is in use until then. The compiler
 * tracks neither, so this call states them. */
__device__ static __forceinline__ void ddp__group_end(float (&c)[8][4])
{
    DDP__GROUP_ASM("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    DDP__UNROLL for (int i = 0; i < 8; i++) DDP__GROUP_ASM("" : DDP__GROUP_FOUR(c[i])::"memory");
}

__device__ static __forceinline__ void ddp__group_keep(uint32_t (&a)[4])
{
    DDP__GROUP_ASM("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

/* The copy engine (TMA) loads pieces of arrays into shared memory. One thread issues the copies. An mbarrier
 * counts the expected bytes. A phase of the barrier ends when the bytes have arrived and the thread has
 * announced all of them. */
__device__ static __forceinline__ void ddp__arrivals_open(uint64_t *bar)
{
    DDP__GROUP_ASM("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.proxy.async.shared::cta;\n" ::"r"(
                       (uint32_t)__cvta_generic_to_shared(bar))
                   : "memory");
}

/* Starts to load a tile: 64 columns of a head and 64 rows of a sequence, from row on, with zeros outside the
 * array. */
__device__ static __forceinline__ void ddp__fetch(uint64_t *bar, ddp__bf16 *tile, const CUtensorMap *map,
                                                  int head, int row, int sequence)
{
    DDP__GROUP_ASM("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %6;\n"
                   "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%1], "
                   "[%2, {%7, %3, %4, %5}], [%0];\n" ::"r"((uint32_t)__cvta_generic_to_shared(bar)),
                   "r"((uint32_t)__cvta_generic_to_shared(tile)), "l"(map), "r"(head), "r"(row),
                   "r"(sequence), "n"(DDP__FETCHED_BYTES), "r"(0)
                   : "memory");
}

__device__ static __forceinline__ void ddp__arrivals_sent(uint64_t *bar)
{
    DDP__GROUP_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"((uint32_t)__cvta_generic_to_shared(bar))
                   : "memory");
}

/* Returns 1 if the phase of this parity has ended: 0 for the first phase, then 1 and 0 in turn. Waits a short
 * time for it, which the hardware chooses. */
__device__ static __forceinline__ int ddp__arrivals_try(uint64_t *bar, int parity)
{
    int ended = 1;
    DDP__GROUP_ASM("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                   "selp.s32 %0, 1, 0, p;\n}\n"
                   : "=r"(ended)
                   : "r"((uint32_t)__cvta_generic_to_shared(bar)), "r"(parity)
                   : "memory");
    return ended;
}

/* Time in nanoseconds, of a clock that all multiprocessors share. */
__device__ static __forceinline__ uint64_t ddp__nanoseconds(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now));
    return now;
}

/* 2^x to 2 units in the last place, or 0 below 2^-126. */
__device__ static __forceinline__ float ddp__exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Packs two bfloat16 into a register, the first in the low half. The other function stores two elements to
 * shared memory. */
__device__ static __forceinline__ uint32_t ddp__pack_pair(float first, float second)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

__device__ static __forceinline__ void ddp__put_pair(ddp__bf16 *to, float first, float second)
{
    *reinterpret_cast<uint32_t *>(to) = ddp__pack_pair(first, second);
}

__device__ static __forceinline__ void ddp__put_pair(float *to, float first, float second)
{
    *reinterpret_cast<float2 *>(to) = make_float2(first, second);
}

#endif

/* Index of an element in a tile with rows of D elements in shared memory. The 16-byte pieces of a row are
 * permuted by the row number (swizzle), so that the same piece of eight rows is in eight different banks. */
template <int D, typename T>
__device__ static __forceinline__ T *ddp__tile_at(const T *tile, int row, int piece)
{
    return const_cast<T *>(tile) + row * D + ((piece ^ (row & 7)) * ddp__vec<T>::width);
}

enum {
    DDP__ARRIVALS = 16,   /* bytes of shared memory, after the tiles */
    DDP__ARRIVALS_S = 10, /* the longest wait for a load, in seconds */
    DDP__ARRIVALS_ASK_NS = 100000
};

/* Waits until the phase of this parity ends. Returns 1 if it does not end in DDP__ARRIVALS_S, and sets *late,
 * which is in pinned memory of the host. If *late is set, waits end after DDP__ARRIVALS_ASK_NS. */
__device__ static __forceinline__ int ddp__arrivals_late(uint64_t *bar, int parity, volatile int *late)
{
    uint64_t begin, passed;

    if (ddp__arrivals_try(bar, parity)) return 0;
    begin = ddp__nanoseconds();
    while (!ddp__arrivals_try(bar, parity)) {
        passed = ddp__nanoseconds() - begin;
        if (passed < DDP__ARRIVALS_ASK_NS)
            continue; /* reading memory of the host would delay a normal wait */
        if (*late || passed > DDP__ARRIVALS_S * (uint64_t)1000000000) {
            *late = 1;
            return 1;
        }
    }
    return 0;
}

/* Loads to two buffers of shared memory that are used in turn, one at a time. GROUP: loads by the copy
 * engine. */
template <int GROUP> struct ddp__arrivals {
    uint64_t *bar; /* one per buffer */
    int *late;     /* of ddp__arrivals_late */
    int waited;

    __device__ __forceinline__ ddp__arrivals(uint64_t *shared, int *flag) : bar(shared), late(flag), waited(0)
    {
        if (!GROUP) return;
        if (threadIdx.x == 0) {
            ddp__arrivals_open(bar);
            ddp__arrivals_open(bar + 1);
        }
        __syncthreads(); /* make the initialised barriers visible to all threads */
    }
    /* The barrier of the next load. */
    __device__ __forceinline__ uint64_t *next(void) const { return bar + waited % 2; }
    __device__ __forceinline__ void sent(void) const
    {
        if (!GROUP)
            ddp__copy_commit();
        else if (threadIdx.x == 0)
            ddp__arrivals_sent(next());
    }
    /* Waits for the load and for all threads of the block, which then have stopped using the other buffer.
     * Returns 1 in all threads if the load is late: the block must end, because its barriers have no defined
     * state. */
    __device__ __forceinline__ int wait(void)
    {
        int is_late = 0;

        if (GROUP)
            is_late = ddp__arrivals_late(next(), waited / 2 % 2, late);
        else
            ddp__copy_wait();
        waited++;
        if (GROUP) return __syncthreads_or(is_late);
        __syncthreads();
        return 0;
    }
};

/* An array of sequences. A sequence is count rows, and a row is heads of d columns. Kernels load tiles: rows
 * of one head. */
template <typename T> struct ddp__tiles {
    CUtensorMap map; /* for the copy engine */
    int *late;       /* of ddp__arrivals_late */
    const T *base;
    int heads, count, d;

    /* Starts to copy ROWS rows from row first on, with zeros outside the array. second, unless NULL, receives
     * the same rows of the head `beyond` heads later. All THREADS threads of the block must call it. */
    template <int D, int ROWS, int THREADS, int GROUP>
    __device__ __forceinline__ void load(const ddp__arrivals<GROUP> &due, T *tile, T *second, int beyond,
                                         int sequence, int head, int first) const
    {
        if constexpr (GROUP) {
            uint64_t *bar = due.next();
            for (int i = 0; threadIdx.x == 0 && i < ROWS; i += DDP__FETCHED) {
                ddp__fetch(bar, tile + i * D, &map, head, first + i, sequence);
                if (second) ddp__fetch(bar, second + i * D, &map, head + beyond, first + i, sequence);
            }
        } else {
            const int width = ddp__vec<T>::width, pieces = D / width;
            const int row = (int)threadIdx.x / pieces, piece = (int)threadIdx.x % pieces;
            const long ld = (long)heads * d;
            const T *from = base + sequence * count * ld + head * d,
                    *at = from + (first + row) * ld + piece * width;

            DDP__UNROLL for (int i = 0; i < ROWS; i += THREADS / pieces, at += THREADS / pieces * ld)
            {
                const int present = first + row + i < count && piece * width < d;

                ddp__copy16(ddp__tile_at<D>(tile, row + i, piece), present ? at : from, present);
                if (second)
                    ddp__copy16(ddp__tile_at<D>(second, row + i, piece), present ? at + beyond * d : from,
                                present);
            }
        }
    }
};

/* c = 0: 16 x 8 floats in each c[r][n]. */
template <int MR, int N> __device__ static __forceinline__ void ddp__tile_zero(float (&c)[MR][N][4])
{
    DDP__UNROLL for (int r = 0; r < MR; r++) DDP__UNROLL for (int n = 0; n < N; n++)
        DDP__UNROLL for (int i = 0; i < 4; i++) c[r][n][i] = 0;
}

/* Rows of a tile as the left factor of products: 16 MR rows, from `rows` on. HOLD keeps them in registers.
 * */
template <typename T, int D, int MR, int HOLD> struct ddp__tile_rows {
    static const int steps = D / (2 * ddp__vec<T>::width);
    const T *rows;
    uint32_t kept[HOLD ? steps : 1][MR][4];

    __device__ __forceinline__ void load(uint32_t (&a)[MR][4], int step) const
    {
        const int lane = (int)threadIdx.x % 32;

        DDP__UNROLL for (int r = 0; r < MR; r++)
            ddp__matrices(a[r], ddp__tile_at<D>(rows, r * 16 + lane % 16, 2 * step + lane / 16));
    }
    __device__ __forceinline__ void keep(void)
    {
        DDP__UNROLL for (int step = 0; HOLD && step < steps; step++) load(kept[HOLD ? step : 0], step);
    }
    __device__ __forceinline__ void get(uint32_t (&a)[MR][4], int step) const
    {
        if (!HOLD) load(a, step);
        DDP__UNROLL for (int r = 0; HOLD && r < MR; r++) DDP__UNROLL for (int i = 0; i < 4; i++) a[r][i] =
            kept[HOLD ? step : 0][r][i];
    }
};

/* The wgmma descriptor of a matrix that begins at piece `at` (of 16 bytes) of a tile with rows of 128 bytes.
 * Eight rows take 1,024 bytes, to which the tile is aligned. The permutation of ddp__tile_at equals the
 * 128-byte swizzle of wgmma. */
__device__ static __forceinline__ uint64_t ddp__group_piece(const ddp__bf16 *tile, int at)
{
    const uint64_t begin = ((uint32_t)__cvta_generic_to_shared(tile) >> 4) + (uint32_t)at;
    return (begin & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* c (16 MR x N) = a (16 MR x D) b^T, where b (N x D) is a tile. GROUP: four warps compute it together, with
 * MR 1, and N and D 64. */
template <int GROUP, int N, typename T, int D, int MR, int HOLD>
__device__ static __forceinline__ void ddp__tile_scores(float (&c)[MR][N / 8][4],
                                                        const ddp__tile_rows<T, D, MR, HOLD> &a, const T *b)
{
    const int lane = (int)threadIdx.x % 32;

    if constexpr (GROUP) {
        static_assert(!HOLD, "wgmma reads a from shared memory");
        const T *mine = a.rows - (int)threadIdx.x / 32 % 4 * 16 * D; /* the group's rows */
        ddp__group_begin();
        DDP__UNROLL for (int step = 0; step < 4; step++)
            ddp__group_mma(c[0], ddp__group_piece(mine, 2 * step), ddp__group_piece(b, 2 * step), step > 0);
        ddp__group_end(c[0]);
    } else {
        ddp__tile_zero(c);
        DDP__UNROLL for (int step = 0; step < a.steps; step++)
        {
            uint32_t left[MR][4];
            a.get(left, step);
            DDP__UNROLL for (int n = 0; n < N / 16; n++)
            {
                uint32_t f[4];
                ddp__matrices(f,
                              ddp__tile_at<D>(b, n * 16 + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
                DDP__UNROLL for (int r = 0; r < MR; r++)
                {
                    ddp__mma<T>(c[r][2 * n], left[r], f[0], f[1]);
                    ddp__mma<T>(c[r][2 * n + 1], left[r], f[2], f[3]);
                }
            }
        }
    }
}

/* Packs a lane's part of 16 columns of one product: it is exactly the lane's part of the left factor of the
 * next. */
__device__ static __forceinline__ void ddp__pack_left(uint32_t (&a)[4], const float (&p)[4],
                                                      const float (&q)[4])
{
    a[0] = ddp__pack_pair(p[0], p[1]);
    a[1] = ddp__pack_pair(p[2], p[3]);
    a[2] = ddp__pack_pair(q[0], q[1]);
    a[3] = ddp__pack_pair(q[2], q[3]);
}

/* c (16 MR x D) += p (16 MR x N) b, where b (N x D) is a tile, and p has the layout that ddp__tile_scores
 * writes. */
template <int GROUP, int D, int MR, int N>
__device__ static __forceinline__ void ddp__tile_add(float (&c)[MR][D / 8][4], const float (&p)[MR][N / 8][4],
                                                     const ddp__bf16 *b)
{
    const int lane = (int)threadIdx.x % 32;

    if constexpr (GROUP) {
        uint32_t a[4][4];
        DDP__UNROLL for (int step = 0; step < 4; step++)
            ddp__pack_left(a[step], p[0][2 * step], p[0][2 * step + 1]);
        ddp__group_begin();
        DDP__UNROLL for (int step = 0; step < 4; step++)
            ddp__group_mma(c[0], a[step], ddp__group_piece(b, 128 * step), 1);
        ddp__group_end(c[0]);
        DDP__UNROLL for (int i = 0; i < 4; i++) ddp__group_keep(a[i]);
    } else {
        DDP__UNROLL for (int step = 0; step < N / 16; step++)
        {
            uint32_t a[MR][4];
            DDP__UNROLL for (int r = 0; r < MR; r++) ddp__pack_left(a[r], p[r][2 * step], p[r][2 * step + 1]);
            DDP__UNROLL for (int n = 0; n < D / 16; n++)
            {
                uint32_t f[4];
                ddp__matrices_turned(
                    f, ddp__tile_at<D>(b, step * 16 + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
                DDP__UNROLL for (int r = 0; r < MR; r++)
                {
                    ddp__mma<ddp__bf16>(c[r][2 * n], a[r], f[0], f[1]);
                    ddp__mma<ddp__bf16>(c[r][2 * n + 1], a[r], f[2], f[3]);
                }
            }
        }
    }
}

/* The same for floats. A product may add over K in any order: slots t and t + 4 of a step read rows 2t and 2t
 * + 1. */
template <int GROUP, int D, int MR, int N>
__device__ static __forceinline__ void ddp__tile_add(float (&c)[MR][D / 8][4], const float (&p)[MR][N / 8][4],
                                                     const float *b)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

    DDP__UNROLL for (int step = 0; step < N / 8; step++) DDP__UNROLL for (int n = 0; n < D / 8; n++)
    {
        const uint32_t b0 = __float_as_uint(ddp__tile_at<D>(b, step * 8 + 2 * t, 2 * n + g / 4)[g % 4]);
        const uint32_t b1 = __float_as_uint(ddp__tile_at<D>(b, step * 8 + 2 * t + 1, 2 * n + g / 4)[g % 4]);
        DDP__UNROLL for (int r = 0; r < MR; r++)
        {
            const float *q = p[r][step];
            const uint32_t a[4] = {__float_as_uint(q[0]), __float_as_uint(q[2]), __float_as_uint(q[1]),
                                   __float_as_uint(q[3])};
            ddp__mma<float>(c[r][n], a, b0, b1);
        }
    }
}

/* to = or += c by, for d columns of the rows from first on that are below count. tile: 16 MR rows of shared
 * memory for this warp alone, which convert c to 16 bytes per lane. */
template <int D, int MR, typename T>
__device__ static __forceinline__ void ddp__tile_store(T *to, long ld, int first, int count, int d, int add,
                                                       const float (&c)[MR][D / 8][4], float by, T *tile)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, width = ddp__vec<T>::width;

    __syncwarp();
    DDP__UNROLL for (int r = 0; r < MR; r++) DDP__UNROLL for (int n = 0; n < D / 8; n++)
        DDP__UNROLL for (int h = 0; h < 2; h++)
    {
        const int col = 8 * n + 2 * t;
        ddp__put_pair(ddp__tile_at<D>(tile, 16 * r + g + 8 * h, col / width) + col % width,
                      c[r][n][2 * h] * by, c[r][n][2 * h + 1] * by);
    }
    __syncwarp();
    for (int i = lane; i < 16 * MR * D / width; i += 32) {
        const int row = i / (D / width), piece = i % (D / width);
        float v[width];

        if (first + row >= count || piece * width >= d) continue;
        ddp__piece_load(v, ddp__tile_at<D>(tile, row, piece), 0, width, 1);
        ddp__piece_store(to + (first + row) * ld, v, piece * width, d, 1, add);
    }
}

/* ==== cuda/flash.cuh ==== [cuda] */
/* attention on tensor cores, in bfloat16 and TF32, for heads up to 128 wide (FlashAttention-2,
 * arXiv:2307.08691, without its atomics). A warp owns 16 MR rows: rows of queries in forward and for dq, rows
 * of keys for dk and dv, where it computes the transposed scores. Each softmax weight and its gradient is
 * therefore computed in the registers where the next product reads it. No weight passes through shared
 * memory, and no two warps add to the same sum. The next tile of the other operand is loaded while the
 * current one is used. GROUP: a group of four warps multiplies with Hopper's wgmma, in bfloat16 for heads up
 * to 64 wide, and the copy engine (TMA) loads the tiles. Everything else is the same. */

enum { DDP__FLASH_WARPS = 4, DDP__FLASH_THREADS = 32 * DDP__FLASH_WARPS };

#define DDP__LOG2E 1.44269504088896340736f

/* Forward for one tile of keys, from key first on. s: scores of the warp's rows, from row from on, which
 * become weights. acc and sum (one part per lane) are rescaled and updated. */
template <int D, int MR, int N>
__device__ static __forceinline__ void ddp__flash_softmax(float (&s)[MR][N / 8][4], float (&max)[MR][2],
                                                          float (&sum)[MR][2], float (&acc)[MR][D / 8][4],
                                                          int from, int first, float scale)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

    DDP__UNROLL for (int r = 0; r < MR; r++) DDP__UNROLL for (int h = 0; h < 2; h++)
    {
        const int row = from + 16 * r + g + 8 * h;
        float top = max[r][h], shrink;
        if (first + N - 1 > from + 16 * r)
            DDP__UNROLL for (int n = 0; n < N / 8; n++)
                DDP__UNROLL for (int i = 0; i < 2; i++) if (first + 8 * n + 2 * t + i > row)
                    s[r][n][2 * h + i] = -INFINITY;
        DDP__UNROLL for (int n = 0; n < N / 8; n++) top =
            fmaxf(top, fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(DDP__ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(DDP__ALL_LANES, top, 2));
        shrink = ddp__exp2((max[r][h] - top) * scale);
        max[r][h] = top;
        sum[r][h] *= shrink;
        DDP__UNROLL for (int n = 0; n < D / 8; n++)
        {
            acc[r][n][2 * h] *= shrink;
            acc[r][n][2 * h + 1] *= shrink;
        }
        top *= scale;
        DDP__UNROLL for (int n = 0; n < N / 8; n++) DDP__UNROLL for (int i = 0; i < 2; i++)
        {
            s[r][n][2 * h + i] = ddp__exp2(s[r][n][2 * h + i] * scale - top);
            sum[r][h] += s[r][n][2 * h + i];
        }
    }
}

/* Block: a tile of 16 MR queries per warp of one head, against tiles of N keys. With HOLD, the queries stay
 * in registers. The second launch bound is the number of blocks whose registers fit a multiprocessor. */
template <typename T, int D, int MR, int N, int HOLD, int THREADS, int GROUP>
static __global__ void __launch_bounds__(THREADS, 2)
    ddp__k_flash(T *out, float *stat, const __grid_constant__ ddp__tiles<T> in, ddp__heads z)
{
    if (GROUP && !DDP__WGMMA) return;
    const int rows = MR * THREADS / 2, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = (int)z.t, tiles = (count + rows - 1) / rows;
    const long head = (int)blockIdx.x / tiles;
    const int start = (tiles - 1 - (int)blockIdx.x % tiles) * rows; /* start the longest sums first */
    const int from = start + 16 * MR * warp, end = start + rows < count ? start + rows : count;
    const int sequence = (int)(head / z.heads), query = (int)(head % z.heads),
              key = (int)(z.heads + query / z.group);
    DDP__SHARED(T, q);
    T *kv = q + rows * D; /* two buffers of keys and values */
    ddp__arrivals<GROUP> due((uint64_t *)(kv + 4 * N * D), in.late);
    ddp__tile_rows<T, D, MR, HOLD> left;
    float max[MR][2], sum[MR][2], acc[MR][D / 8][4], s[MR][N / 8][4];
    int first, r, h, n, now = 0;

    ddp__tile_zero(acc);
    DDP__UNROLL for (r = 0; r < MR; r++)
    {
        max[r][0] = max[r][1] = -INFINITY;
        sum[r][0] = sum[r][1] = 0;
    }
    left.rows = q + 16 * MR * warp * D;
    in.template load<D, MR * THREADS / 2, THREADS>(due, q, NULL, 0, sequence, query, start);
    in.template load<D, N, THREADS>(due, kv, kv + N * D, (int)z.kv_heads, sequence, key, 0);
    due.sent();
    for (first = 0; first < end; first += N, now ^= 1) {
        const T *k = kv + now * 2 * N * D;
        if (due.wait()) return;
        if (first == 0) left.keep();
        if (first + N < end) {
            T *next = kv + (now ^ 1) * 2 * N * D;
            in.template load<D, N, THREADS>(due, next, next + N * D, (int)z.kv_heads, sequence, key,
                                            first + N);
            due.sent();
        }
        if (first > (GROUP ? from | 63 : from + 16 * MR - 1))
            continue; /* no query of this warp or group sees these keys */
        ddp__tile_scores<GROUP, N>(s, left, k);
        ddp__flash_softmax<D, MR, N>(s, max, sum, acc, from, first, z.scale * DDP__LOG2E);
        ddp__tile_add<GROUP, D, MR, N>(acc, s, k + N * D);
    }
    DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (h = 0; h < 2; h++)
    {
        const int row = from + 16 * r + lane / 4 + 8 * h;
        float inverse = sum[r][h];
        inverse += __shfl_xor_sync(DDP__ALL_LANES, inverse, 1);
        inverse += __shfl_xor_sync(DDP__ALL_LANES, inverse, 2);
        inverse = 1 / inverse;
        DDP__UNROLL for (n = 0; n < D / 8; n++)
        {
            acc[r][n][2 * h] *= inverse;
            acc[r][n][2 * h + 1] *= inverse;
        }
        if (lane % 4 || row >= count) continue;
        stat[2 * (head * z.t + row)] = max[r][h] * z.scale;
        stat[2 * (head * z.t + row) + 1] = inverse;
    }
    if (GROUP) __syncthreads(); /* other warps may still read the queries by wgmma */
    ddp__tile_store<D, MR>(out + ddp__heads_out(&z, head), z.width, from, count, z.d, 0, acc, 1.0f,
                           q + 16 * MR * warp * D);
}

/* p = 2^(scale s - log2_sum), the softmax weight of a score s. */
__device__ static __forceinline__ float ddp__flash_log_sum(const float *stat, int row, int count)
{
    return row < count ? stat[2 * row] * DDP__LOG2E - log2f(stat[2 * row + 1]) : 0.0f;
}

/* Block: dq of a tile of 16 MR queries per warp of one head. With HOLD, queries and dout stay in
 * registers. */
template <typename T, int D, int MR, int N, int HOLD, int GROUP>
static __global__ void __launch_bounds__(DDP__FLASH_THREADS, (D * MR) <= 64 ? 3 : 2)
    ddp__k_flash_dq(T *grad, const __grid_constant__ ddp__tiles<T> in,
                    const __grid_constant__ ddp__tiles<T> dout, const float *stat, const float *mean,
                    ddp__heads z, int add)
{
    if (GROUP && !DDP__WGMMA) return;
    const int rows = 16 * MR * DDP__FLASH_WARPS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = (int)z.t, tiles = (count + rows - 1) / rows;
    const long head = (int)blockIdx.x / tiles;
    const int start = (tiles - 1 - (int)blockIdx.x % tiles) * rows;
    const int from = start + 16 * MR * warp, end = start + rows < count ? start + rows : count;
    const float scale = z.scale * DDP__LOG2E;
    const int sequence = (int)(head / z.heads), query = (int)(head % z.heads),
              key = (int)(z.heads + query / z.group);
    DDP__SHARED(T, q);
    T *o = q + rows * D, *kv = o + rows * D;
    ddp__arrivals<GROUP> due((uint64_t *)(kv + 4 * N * D), in.late);
    ddp__tile_rows<T, D, MR, HOLD> left, right;
    float log_sum[MR][2], centre[MR][2], acc[MR][D / 8][4], s[MR][N / 8][4], dp[MR][N / 8][4];
    int first, r, h, n, i, now = 0;

    DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (h = 0; h < 2; h++)
    {
        const int row = from + 16 * r + lane / 4 + 8 * h;
        log_sum[r][h] = ddp__flash_log_sum(stat + 2 * head * z.t, row, count);
        centre[r][h] = row < count ? mean[head * z.t + row] : 0.0f;
    }
    ddp__tile_zero(acc);
    left.rows = q + 16 * MR * warp * D;
    right.rows = o + 16 * MR * warp * D;
    in.template load<D, 16 * MR * DDP__FLASH_WARPS, DDP__FLASH_THREADS>(due, q, NULL, 0, sequence, query,
                                                                        start);
    dout.template load<D, 16 * MR * DDP__FLASH_WARPS, DDP__FLASH_THREADS>(due, o, NULL, 0, sequence, query,
                                                                          start);
    in.template load<D, N, DDP__FLASH_THREADS>(due, kv, kv + N * D, (int)z.kv_heads, sequence, key, 0);
    due.sent();
    for (first = 0; first < end; first += N, now ^= 1) {
        const T *k = kv + now * 2 * N * D;
        if (due.wait()) return;
        if (first == 0) {
            left.keep();
            right.keep();
        }
        if (first + N < end) {
            T *next = kv + (now ^ 1) * 2 * N * D;
            in.template load<D, N, DDP__FLASH_THREADS>(due, next, next + N * D, (int)z.kv_heads, sequence,
                                                       key, first + N);
            due.sent();
        }
        if (!GROUP && first > from + 16 * MR - 1) continue;
        ddp__tile_scores<GROUP, N>(s, left, k);
        ddp__tile_scores<GROUP, N>(dp, right, k + N * D);
        if (first + N - 1 > from)
            DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (n = 0; n < N / 8; n++)
                DDP__UNROLL for (i = 0; i < 4; i++) if (first + 8 * n + lane % 4 * 2 + i % 2 >
                                                        from + 16 * r + lane / 4 + i / 2 * 8) s[r][n][i] =
                    -INFINITY;
        DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (n = 0; n < N / 8; n++)
            DDP__UNROLL for (i = 0; i < 4; i++) s[r][n][i] =
                ddp__exp2(s[r][n][i] * scale - log_sum[r][i / 2]) * (dp[r][n][i] - centre[r][i / 2]);
        ddp__tile_add<GROUP, D, MR, N>(acc, s, k);
    }
    if (GROUP) __syncthreads(); /* other warps may still read the queries and dout by wgmma */
    ddp__tile_store<D, MR>(grad + ddp__heads_q(&z, head), z.row, from, count, z.d, add, acc, z.scale,
                           q + 16 * MR * warp * D);
}

/* Loads a tile of N queries and dout of one head, and the statistics of their weights, into a buffer in
 * shared memory. */
template <int D, int N, int GROUP, typename T>
__device__ static __forceinline__ void ddp__flash_queries(ddp__arrivals<GROUP> &due, T *to, float *sums,
                                                          const ddp__tiles<T> &in, const ddp__tiles<T> &dout,
                                                          const float *stat, const float *mean, int sequence,
                                                          int head, int from)
{
    in.template load<D, N, DDP__FLASH_THREADS>(due, to, NULL, 0, sequence, head, from);
    dout.template load<D, N, DDP__FLASH_THREADS>(due, to + N * D, NULL, 0, sequence, head, from);
    due.sent();
    if (threadIdx.x < N) {
        const int row = from + (int)threadIdx.x, count = dout.count;
        const long first = ((long)sequence * dout.heads + head) * count;
        sums[threadIdx.x] = ddp__flash_log_sum(stat + 2 * first, row, count);
        sums[N + threadIdx.x] = row < count ? mean[first + row] : 0.0f;
    }
}

/* Block: dk and dv of a tile of 16 MR keys per warp of one head of keys, over the queries of all heads that
 * share it, in tiles of N. With HOLD, keys and values stay in registers. */
template <typename T, int D, int MR, int N, int HOLD, int GROUP>
static __global__ void __launch_bounds__(DDP__FLASH_THREADS, (D * MR) <= 64 ? 3 : 2)
    ddp__k_flash_dkv(T *grad, const __grid_constant__ ddp__tiles<T> in,
                     const __grid_constant__ ddp__tiles<T> dout, const float *stat, const float *mean,
                     ddp__heads z, int add)
{
    if (GROUP && !DDP__WGMMA) return;
    const int rows = 16 * MR * DDP__FLASH_WARPS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = (int)z.t, tiles = (count + rows - 1) / rows;
    const long kv_head = (int)blockIdx.x / tiles;
    const int start = (int)blockIdx.x % tiles * rows, first = start + 16 * MR * warp;
    const int sequence = (int)(kv_head / z.kv_heads), key = (int)(kv_head % z.kv_heads),
              query = (int)(key * z.group), end = query + (int)z.group; /* heads of queries */
    const int begin = start / N * N; /* no query before it sees these keys */
    const float scale = z.scale * DDP__LOG2E;
    DDP__SHARED(T, k);
    T *v = k + rows * D, *qo = v + rows * D;
    float *sums = (float *)(qo + 4 * N * D); /* log_sum and mean of both buffers */
    ddp__arrivals<GROUP> due((uint64_t *)(sums + 4 * N), in.late);
    ddp__tile_rows<T, D, MR, HOLD> left, right;
    float dk[MR][D / 8][4], dv[MR][D / 8][4], s[MR][N / 8][4], dp[MR][N / 8][4];
    int head = query, from = begin, r, n, e, now = 0;

    ddp__tile_zero(dk);
    ddp__tile_zero(dv);
    left.rows = k + 16 * MR * warp * D;
    right.rows = v + 16 * MR * warp * D;
    in.template load<D, 16 * MR * DDP__FLASH_WARPS, DDP__FLASH_THREADS>(due, k, v, (int)z.kv_heads, sequence,
                                                                        (int)z.heads + key, start);
    ddp__flash_queries<D, N>(due, qo, sums, in, dout, stat, mean, sequence, head, from);
    while (head < end) {
        const T *q = qo + now * 2 * N * D;
        const float *log_sum = sums + now * 2 * N, *centre = log_sum + N;
        const int mine = from;
        if (due.wait()) return;
        if (head == query && from == begin) {
            left.keep();
            right.keep();
        }
        now ^= 1;
        from += N;
        if (from >= count) {
            from = begin;
            head++;
        }
        if (head < end)
            ddp__flash_queries<D, N>(due, qo + now * 2 * N * D, sums + now * 2 * N, in, dout, stat, mean,
                                     sequence, head, from);
        if (!GROUP && first > mine + N - 1) continue; /* no query of this tile sees a key of this warp */
        ddp__tile_scores<GROUP, N>(s, left, q);
        ddp__tile_scores<GROUP, N>(dp, right, q + N * D);
        if (first + 16 * MR - 1 > mine)
            DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (n = 0; n < N / 8; n++)
                DDP__UNROLL for (e = 0; e < 4; e++) if (first + 16 * r + lane / 4 + e / 2 * 8 >
                                                        mine + 8 * n + lane % 4 * 2 + e % 2) s[r][n][e] =
                    -INFINITY;
        DDP__UNROLL for (n = 0; n < N / 8; n++)
        {
            const float2 l = *(const float2 *)(log_sum + 8 * n + lane % 4 * 2);
            const float2 m = *(const float2 *)(centre + 8 * n + lane % 4 * 2);
            DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (e = 0; e < 4; e++)
            {
                s[r][n][e] = ddp__exp2(s[r][n][e] * scale - (e % 2 ? l.y : l.x));
                dp[r][n][e] = s[r][n][e] * (dp[r][n][e] - (e % 2 ? m.y : m.x));
            }
        }
        ddp__tile_add<GROUP, D, MR, N>(dv, s, q + N * D);
        ddp__tile_add<GROUP, D, MR, N>(dk, dp, q);
    }
    if (GROUP) __syncthreads(); /* other warps may still read the keys and values by wgmma */
    grad += ddp__heads_k(&z, kv_head);
    ddp__tile_store<D, MR>(grad, z.row, first, count, z.d, add, dk, z.scale, k + 16 * MR * warp * D);
    ddp__tile_store<D, MR>(grad + z.kv_heads * z.d, z.row, first, count, z.d, add, dv, 1.0f,
                           v + 16 * MR * warp * D);
}

/* 1 if the tensor-core kernels support these arrays: multiples of 16 bytes, heads up to 128 wide, bfloat16 or
 * TF32. */
static inline int ddp__flash_fits(const ddp__cuda *dev, const ddp__heads *z, const void *in, const void *out,
                                  const void *dout, const void *grad)
{
    return (dev->half || dev->tf32) && !(dev->forms & DDP__PLAIN_ATTENTION) &&
           z->d % (dev->half ? 8 : 4) == 0 && z->d <= 128 && ddp__aligned(in, out, dout, grad);
}

/* The tiles of an array with that number of heads per row. Also encodes the map for the copy engine if it is
 * used. */
template <typename T>
static ddp__tiles<T> ddp__tiles_of(ddp__cuda *dev, const void *array, long heads, const ddp__heads *z)
{
    const cuuint64_t row = (cuuint64_t)(heads * z->d) * sizeof(T),
                     dim[4] = {(cuuint64_t)z->d, (cuuint64_t)heads, (cuuint64_t)z->t, (cuuint64_t)z->b};
    const cuuint64_t apart[3] = {(cuuint64_t)z->d * sizeof(T), row, row * (cuuint64_t)z->t};
    const cuuint32_t box[4] = {DDP__FETCHED, 1, DDP__FETCHED, 1}, each[4] = {1, 1, 1, 1};
    ddp__tiles<T> s = {};
    int e = 0;

    s.late = dev->late_there;
    s.base = (const T *)array;
    s.heads = (int)heads;
    s.count = (int)z->t;
    s.d = z->d;
    if (dev->map)
        e = dev->map(&s.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(array), dim, apart, box,
                     each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e)
        ddp__cuda_fail(dev, DDP_FAILED,
                       "GPU %d: cuTensorMapEncodeTiled failed with driver error %d; set "
                       "DREAMDDP_CUDA_HOPPER=0, which selects attention without it",
                       dev->device, e);
    return s;
}

template <typename T, int D, int MR, int N, int HOLD, int THREADS, int GROUP>
static void ddp__cuda_flash_forward_of(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const long rows = MR * THREADS / 2;
    DDP__LAUNCH((ddp__k_flash<T, D, MR, N, HOLD, THREADS, GROUP>),
                (unsigned)(ddp__blocks(z->t, rows) * z->b * z->heads), THREADS,
                (rows + 4 * N) * D * (long)sizeof(T) + DDP__ARRIVALS, dev->stream, (T *)c->out,
                (float *)c->saved, ddp__tiles_of<T>(dev, c->in[0], z->heads + 2 * z->kv_heads, z), *z);
}

/* Tiles have N queries for dk and dv, and NK keys for dq. */
template <typename T, int D, int MR, int N, int NK, int GROUP>
static void ddp__cuda_flash_backward_of(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const long rows = 16 * MR * DDP__FLASH_WARPS, row = D * (long)sizeof(T);
    const float *stat = (const float *)c->saved, *mean = (const float *)dev->scratch;
    const ddp__tiles<T> in = ddp__tiles_of<T>(dev, c->in[0], z->heads + 2 * z->kv_heads, z);
    const ddp__tiles<T> dout = ddp__tiles_of<T>(dev, c->grad_out, z->heads, z);

    DDP__LAUNCH((ddp__k_flash_dkv<T, D, MR, N, 0, GROUP>),
                (unsigned)(ddp__blocks(z->t, rows) * z->b * z->kv_heads), DDP__FLASH_THREADS,
                (2 * rows + 4 * N) * row + 4 * N * (long)sizeof(float) + DDP__ARRIVALS, dev->stream,
                (T *)c->grad_in[0], in, dout, stat, mean, *z, c->add_in[0]);
    DDP__LAUNCH((ddp__k_flash_dq<T, D, MR, NK, 0, GROUP>),
                (unsigned)(ddp__blocks(z->t, rows) * z->b * z->heads), DDP__FLASH_THREADS,
                (2 * rows + 4 * NK) * row + DDP__ARRIVALS, dev->stream, (T *)c->grad_in[0], in, dout, stat,
                mean, *z, c->add_in[0]);
}

/* Floats use smaller tiles: they need twice the shared memory, and a block may have only 99 KiB on some GPUs.
 * */
static void ddp__cuda_flash_forward(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const int threads = DDP__FLASH_THREADS;

    if (z->d <= 64 && dev->map)
        ddp__cuda_flash_forward_of<ddp__bf16, 64, 1, 64, 0, 2 * threads, 1>(dev, c, z);
    else if (z->d <= 64 && dev->half)
        ddp__cuda_flash_forward_of<ddp__bf16, 64, 2, 64, 0, threads, 0>(dev, c, z);
    else if (z->d <= 64)
        ddp__cuda_flash_forward_of<float, 64, 2, 32, 0, threads, 0>(dev, c, z);
    else if (dev->half)
        ddp__cuda_flash_forward_of<ddp__bf16, 128, 1, 64, 1, threads, 0>(dev, c, z);
    else
        ddp__cuda_flash_forward_of<float, 128, 1, 32, 0, threads, 0>(dev, c, z);
}

/* dev->scratch holds the means of dp. */
static void ddp__cuda_flash_backward(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    if (z->d <= 64 && dev->map)
        ddp__cuda_flash_backward_of<ddp__bf16, 64, 1, 64, 64, 1>(dev, c, z);
    else if (z->d <= 64 && dev->half)
        ddp__cuda_flash_backward_of<ddp__bf16, 64, 1, 64, 64, 0>(dev, c, z);
    else if (z->d <= 64)
        ddp__cuda_flash_backward_of<float, 64, 2, 16, 32, 0>(dev, c, z);
    else if (dev->half)
        ddp__cuda_flash_backward_of<ddp__bf16, 128, 1, 32, 32, 0>(dev, c, z);
    else
        ddp__cuda_flash_backward_of<float, 128, 1, 16, 16, 0>(dev, c, z);
}

/* Sets *yes to 1 if the program was compiled with wgmma. */
static __global__ void ddp__k_groups(int *yes) { *yes = DDP__WGMMA; }

/* 1 if attention uses wgmma. This needs a GPU that supports it, a program compiled for sm_90a, and
 * bfloat16. */
static inline void ddp__cuda_flash_open(ddp__cuda *dev)
{
    int yes = 0;

    if (!dev->half || dev->props.major != 9) return;
    DDP__RUN(ddp__k_groups, 1, 1, (int *)dev->workspace);
    (void)DDP__CUDA(dev, cudaStreamSynchronize(dev->stream));
    (void)DDP__CUDA(dev, cudaMemcpy(&yes, dev->workspace, sizeof yes, cudaMemcpyDeviceToHost));
    if (!yes || DDP__CUDA(dev, cudaHostAlloc((void **)&dev->late, sizeof *dev->late, cudaHostAllocMapped)))
        return;
    *dev->late = 0;
    if (!DDP__CUDA(dev, cudaHostGetDevicePointer((void **)&dev->late_there, dev->late, 0)))
        dev->map = (decltype(dev->map))ddp__cuda_driver("cuTensorMapEncodeTiled");
}

/* ==== cuda/attention.cuh ==== [cuda] */
/* attention without tensor cores: float32 arithmetic on tiles of 16 R queries and keys, for every number type
 * and heads up to 512 wide. This file also chooses between these kernels and the tensor-core kernels of
 * flash.cuh, which are tested against these. Forward saves the same two values per row and head as the CPU:
 * the maximum of the scaled scores, and 1 / sum. Backward takes two passes, one over queries and one over
 * keys and values, so that no two blocks add to the same sum. */

enum { DDP__ATTEND_THREADS = 256, DDP__ATTEND_SIDE = 16 };

/* Row length in shared memory for rows of d floats. Threads that read the same 16-byte piece of different
 * rows access different banks. */
__host__ __device__ static __forceinline__ int ddp__attend_row(int d) { return (d + 3) / 4 * 4 + 4; }

/* Loads up to R x 16 rows, starting at row first, into shared memory. Rows past count and columns past d are
 * zeros. */
template <typename T, int R>
__device__ static void ddp__attend_load(float *tile, const T *from, long ld, long first, long count, int d)
{
    const int x = (int)threadIdx.x % DDP__ATTEND_SIDE, y = (int)threadIdx.x / DDP__ATTEND_SIDE;
    for (int r = y; r < DDP__ATTEND_SIDE * R; r += DDP__ATTEND_SIDE)
        for (int c = x; c < (d + 3) / 4 * 4; c += DDP__ATTEND_SIDE)
            tile[r * ddp__attend_row(d) + c] =
                first + r < count && c < d ? ddp__to_float(from[(first + r) * ld + c]) : 0.0f;
}

/* s[i][j] = dot product of row y + 16 i of a and row x + 16 j of b. */
template <int R>
__device__ static void ddp__attend_scores(float (&s)[R][R], const float *a, const float *b, int d)
{
    const int x = (int)threadIdx.x % DDP__ATTEND_SIDE, y = (int)threadIdx.x / DDP__ATTEND_SIDE;
    const int ld = ddp__attend_row(d);
    ddp__vec<float> va[R], vb[R];

    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) s[i][j] = 0;
    for (int p = 0; p < d; p += 4) {
        for (int i = 0; i < R; i++) {
            va[i] = ddp__vec_load(a + (y + DDP__ATTEND_SIDE * i) * ld + p);
            vb[i] = ddp__vec_load(b + (x + DDP__ATTEND_SIDE * i) * ld + p);
        }
        for (int i = 0; i < R; i++)
            for (int j = 0; j < R; j++)
                for (int k = 0; k < 4; k++) s[i][j] += va[i].v[k] * vb[j].v[k];
    }
}

/* Maximum over the 16 threads of a row. */
__device__ static __forceinline__ float ddp__attend_max(float v)
{
    for (int step = DDP__ATTEND_SIDE / 2; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(DDP__ALL_LANES, v, step));
    return v;
}

/* One block per (tile of queries, head). C: columns per thread, with 16 C >= d. */
template <typename T, int R, int C>
static __global__ void __launch_bounds__(DDP__ATTEND_THREADS)
    ddp__k_attend(T *out, float *stat, const T *in, ddp__heads z)
{
    const int side = DDP__ATTEND_SIDE, tile = side * R, ld = ddp__attend_row(z.d);
    const int x = (int)threadIdx.x % side, y = (int)threadIdx.x / side;
    const long tiles = (z.t + tile - 1) / tile, head = blockIdx.x / tiles;
    const long from = (tiles - 1 - blockIdx.x % tiles) * tile; /* start the longest sums first */
    const T *keys = in + ddp__heads_k(&z, head / z.group);
    DDP__SHARED(float, shared);
    float *q = shared, *kv = q + tile * ld, *p = kv + tile * ld;
    float max[R], sum[R], acc[R][C], s[R][R];

    for (int i = 0; i < R; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
        for (int c = 0; c < C; c++) acc[i][c] = 0;
    }
    ddp__attend_load<T, R>(q, in + ddp__heads_q(&z, head), z.row, from, z.t, z.d);
    for (long first = 0; first <= from; first += tile) {
        __syncthreads();
        ddp__attend_load<T, R>(kv, keys, z.row, first, z.t, z.d);
        __syncthreads();
        ddp__attend_scores<R>(s, q, kv, z.d);
        __syncthreads();
        ddp__attend_load<T, R>(kv, keys + z.kv_heads * z.d, z.row, first, z.t, z.d);
        for (int i = 0; i < R; i++) {
            const long t = from + y + side * i;
            float top = max[i], shrink;
            for (int j = 0; j < R; j++) {
                s[i][j] = first + x + side * j <= t ? s[i][j] * z.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = ddp__attend_max(top);
            shrink = expf(max[i] - top);
            max[i] = top;
            sum[i] *= shrink;
            for (int c = 0; c < C; c++) acc[i][c] *= shrink;
            for (int j = 0; j < R; j++) {
                const float e = expf(s[i][j] - top);
                sum[i] += e;
                p[(y + side * i) * (tile + 1) + x + side * j] = e;
            }
        }
        __syncthreads();
        for (int k = 0; k < tile; k++)
            for (int c = 0; c < C; c++)
                for (int i = 0; i < R && x + side * c < z.d; i++)
                    acc[i][c] += p[(y + side * i) * (tile + 1) + k] * kv[k * ld + x + side * c];
    }
    for (int i = 0; i < R; i++) {
        const long t = from + y + side * i;
        const float inverse = 1 / ddp__warp_sum(sum[i], DDP__ATTEND_SIDE);
        if (t >= z.t) continue;
        for (int c = 0; c < C && x + side * c < z.d; c++)
            out[ddp__heads_out(&z, head) + t * z.width + x + side * c] =
                ddp__from_float<T>(acc[i][c] * inverse);
        if (x) continue;
        stat[2 * (head * z.t + t)] = max[i];
        stat[2 * (head * z.t + t) + 1] = inverse;
    }
}

/* Computes p and d = p (dp - mean) scale for the tile of queries at from and the tile of keys at first, and
 * stores them as rows in shared memory. All threads of the block must call it. */
template <int R>
__device__ static void ddp__attend_grads(float *p, float *d, const float *q, const float *k, const float *v,
                                         const float *dout, const float *stat, const float *mean,
                                         const ddp__heads *z, long from, long first)
{
    const int side = DDP__ATTEND_SIDE, tile = side * R, x = (int)threadIdx.x % side,
              y = (int)threadIdx.x / side;
    float s[R][R], dp[R][R];

    ddp__attend_scores<R>(s, q, k, z->d);
    ddp__attend_scores<R>(dp, dout, v, z->d);
    for (int i = 0; i < R; i++) {
        const long t = from + y + side * i;
        for (int j = 0; j < R; j++) {
            const int at = (y + side * i) * (tile + 1) + x + side * j;
            const int seen = t < z->t && first + x + side * j <= t;
            const float e = seen ? expf(s[i][j] * z->scale - stat[2 * t]) * stat[2 * t + 1] : 0;
            p[at] = e;
            d[at] = seen ? e * (dp[i][j] - mean[t]) * z->scale : 0;
        }
    }
}

/* With KEYS 0, computes dq, one block per (tile of queries, head). With KEYS 1, computes dk and dv over the
 * queries of all heads that share the head of keys, one block per (tile of keys, head of keys). */
template <typename T, int R, int C, int KEYS>
static __global__ void __launch_bounds__(DDP__ATTEND_THREADS)
    ddp__k_attend_grad(T *grad, const T *in, const T *dout, const float *stat, const float *mean,
                       ddp__heads z, int add)
{
    const int side = DDP__ATTEND_SIDE, tile = side * R, ld = ddp__attend_row(z.d);
    const int x = (int)threadIdx.x % side, y = (int)threadIdx.x / side;
    const long tiles = (z.t + tile - 1) / tile, block = blockIdx.x / tiles, values = z.kv_heads * z.d;
    const long mine =
        (KEYS ? blockIdx.x % tiles : tiles - 1 - blockIdx.x % tiles) * tile; /* start the longest sums first
                                                                              * */
    const long shared_head = KEYS ? block : block / z.group, at = ddp__heads_k(&z, shared_head);
    DDP__SHARED(float, shared);
    float *q = shared, *o = q + tile * ld, *k = o + tile * ld, *v = k + tile * ld;
    float *p = v + tile * ld, *d = p + tile * (tile + 1);
    float one[R][C], two[R][C]; /* dk and dv for KEYS 1, dq and unused for KEYS 0 */

    for (int i = 0; i < R; i++)
        for (int c = 0; c < C; c++) one[i][c] = two[i][c] = 0;
    ddp__attend_load<T, R>(KEYS ? k : q, in + (KEYS ? at : ddp__heads_q(&z, block)), z.row, mine, z.t, z.d);
    if (KEYS)
        ddp__attend_load<T, R>(v, in + at + values, z.row, mine, z.t, z.d);
    else
        ddp__attend_load<T, R>(o, dout + ddp__heads_out(&z, block), z.width, mine, z.t, z.d);
    for (long turn = 0; turn < (KEYS ? z.group : 1); turn++)
        for (long other = KEYS ? mine : 0; KEYS ? other < z.t : other <= mine; other += tile) {
            const long from = KEYS ? other : mine, first = KEYS ? mine : other; /* first query, first key */
            const long head = KEYS ? shared_head * z.group + turn : block;
            __syncthreads();
            ddp__attend_load<T, R>(KEYS ? q : k, in + (KEYS ? ddp__heads_q(&z, head) : at), z.row, other, z.t,
                                   z.d);
            if (KEYS)
                ddp__attend_load<T, R>(o, dout + ddp__heads_out(&z, head), z.width, other, z.t, z.d);
            else
                ddp__attend_load<T, R>(v, in + at + values, z.row, other, z.t, z.d);
            __syncthreads();
            ddp__attend_grads<R>(p, d, q, k, v, o, stat + 2 * head * z.t, mean + head * z.t, &z, from, first);
            __syncthreads();
            for (int n = 0; n < tile; n++)
                for (int c = 0; c < C; c++)
                    for (int i = 0; i < R && x + side * c < z.d; i++) {
                        const int key = n * (tile + 1) + y + side * i,
                                  query = (y + side * i) * (tile + 1) + n;
                        one[i][c] += d[KEYS ? key : query] * (KEYS ? q : k)[n * ld + x + side * c];
                        if (KEYS) two[i][c] += p[key] * o[n * ld + x + side * c];
                    }
        }
    for (int i = 0; i < R; i++) {
        const long t = mine + y + side * i;
        for (int c = 0; c < C && t < z.t && x + side * c < z.d; c++) {
            T *g = grad + (KEYS ? at : ddp__heads_q(&z, block)) + t * z.row + x + side * c;
            *g = ddp__from_float<T>(one[i][c] + (add ? ddp__to_float(*g) : 0));
            if (!KEYS) continue;
            g += values;
            *g = ddp__from_float<T>(two[i][c] + (add ? ddp__to_float(*g) : 0));
        }
    }
}

/* mean[head t + row] = out . dout for one row of one head, which is the mean of dp weighted by p. Uses lanes
 * threads per row, a power of 2 up to 32. */
template <typename T>
static __global__ void ddp__k_attend_mean(float *mean, const T *out, const T *dout, ddp__heads z, int lanes,
                                          int wide)
{
    const int width = ddp__vec<T>::width, lane = (int)threadIdx.x % lanes;
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) / lanes, row = i / z.heads,
               head = i % z.heads;
    const long at = row * z.width + head * z.d;
    float a[width], b[width], sum = 0;

    for (int j = lane * width; row < z.b * z.t && j < z.d; j += lanes * width) {
        ddp__piece_load(a, out + at, j, z.d, wide);
        ddp__piece_load(b, dout + at, j, z.d, wide);
        for (int k = 0; k < width; k++) sum += a[k] * b[k];
    }
    sum = ddp__warp_sum(sum, lanes);
    if (lane == 0 && row < z.b * z.t) mean[((row / z.t) * z.heads + head) * z.t + row % z.t] = sum;
}

template <typename T, int R, int C>
static void ddp__cuda_attend(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const long tile = DDP__ATTEND_SIDE * R;
    DDP__LAUNCH((ddp__k_attend<T, R, C>), (unsigned)(ddp__blocks(z->t, tile) * z->b * z->heads),
                DDP__ATTEND_THREADS,
                (2 * tile * ddp__attend_row(z->d) + tile * (tile + 1)) * (long)sizeof(float), dev->stream,
                (T *)c->out, (float *)c->saved, (const T *)c->in[0], *z);
}

/* Bytes of shared memory that a block of the backward kernel needs. */
static inline long ddp__attend_grad_bytes(int r, int d)
{
    const long tile = DDP__ATTEND_SIDE * r;
    return (4 * tile * ddp__attend_row(d) + 2 * tile * (tile + 1)) * (long)sizeof(float);
}

template <typename T, int R, int C, int KEYS>
static void ddp__cuda_attend_grad_of(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    DDP__LAUNCH((ddp__k_attend_grad<T, R, C, KEYS>),
                (unsigned)(ddp__blocks(z->t, DDP__ATTEND_SIDE * R) * z->b * (KEYS ? z->kv_heads : z->heads)),
                DDP__ATTEND_THREADS, ddp__attend_grad_bytes(R, z->d), dev->stream, (T *)c->grad_in[0],
                (const T *)c->in[0], (const T *)c->grad_out, (const float *)c->saved,
                (const float *)dev->scratch, *z, c->add_in[0]);
}

template <typename T, int R, int C>
static void ddp__cuda_attend_grad(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    ddp__cuda_attend_grad_of<T, R, C, 0>(dev, c, z);
    ddp__cuda_attend_grad_of<T, R, C, 1>(dev, c, z);
}

/* R and C for heads up to 64 wide. float32 has no other kernels, so it uses larger tiles. */
#define DDP__ATTEND_SMALL_R(T) (sizeof(T) == 4 ? 4 : 2)
#define DDP__ATTEND_SMALL(T)   DDP__ATTEND_SMALL_R(T), sizeof(T) == 4 ? 4 : 8

template <typename T> static void ddp__cuda_attention_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__heads z = ddp__heads_of(c->spec);

    if (ddp__flash_fits(dev, &z, c->in[0], c->out, NULL, NULL))
        ddp__cuda_flash_forward(dev, c, &z);
    else if (z.d <= 64)
        ddp__cuda_attend<T, DDP__ATTEND_SMALL(T)>(dev, c, &z);
    else if (z.d <= 128)
        ddp__cuda_attend<T, 2, 8>(dev, c, &z);
    else
        ddp__cuda_attend<T, 1, 32>(dev, c, &z);
}

template <typename T> static void ddp__cuda_attention_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__heads z = ddp__heads_of(c->spec);
    int lanes = 1;

    if (!c->grad_in[0]) return;
    while (lanes < 32 && lanes * ddp__vec<T>::width < z.d) lanes *= 2;
    DDP__EACH((ddp__k_attend_mean<T>), z.b * z.t * z.heads * lanes, DDP__ATTEND_THREADS,
              (float *)dev->scratch, (const T *)c->out, (const T *)c->grad_out, z, lanes,
              ddp__wide<T>(z.d, c->out, c->grad_out));
    if (ddp__flash_fits(dev, &z, c->in[0], c->out, c->grad_out, c->grad_in[0]))
        ddp__cuda_flash_backward(dev, c, &z);
    else if (z.d <= 64 && ddp__attend_grad_bytes(DDP__ATTEND_SMALL_R(T), z.d) <=
                              (long)dev->props.sharedMemPerBlockOptin) /* some GPUs have less */
        ddp__cuda_attend_grad<T, DDP__ATTEND_SMALL(T)>(dev, c, &z);
    else if (z.d <= 128)
        ddp__cuda_attend_grad<T, 2, 8>(dev, c, &z);
    else
        ddp__cuda_attend_grad<T, 1, 32>(dev, c, &z);
}

static size_t ddp__cuda_attention_scratch(const ddp_op_spec *s, int)
{
    const ddp__heads z = ddp__heads_of(s);
    return (size_t)(z.b * z.t * z.heads) * sizeof(float);
}

/* ==== cuda/check.cuh ==== [cuda] */
/* Comparing two forms of an operator on a small problem, for the self-check of a device (self_check.cuh) and
 * for `make gpu-check`. The launches are on a separate stream, and a failure does not reach the device. */

#define DDP__CHECK_LIMIT  1e-2 /* accepted difference, relative to the largest value of an array */
#define DDP__CHECK_WAIT_S 15.0 /* accepted time of one problem: another process may use the device, too */

enum {
    DDP__CHECK_BYTES = 4 << 20,   /* device memory of a self-check */
    DDP__CHECK_SCRATCH = 1 << 20, /* of it, for dev->scratch */
    DDP__CHECK_MOST = 1 << 16     /* elements of its largest array */
};

/* The result of the check of one form of a kernel. */
typedef struct ddp__finding {
    double worst;     /* the largest difference, or NaN */
    const char *what; /* its array */
    int exact;        /* 1: the array must be bit-identical to the CPU's. worst is 0 or 1. */
    ddp_error error;  /* of a launch, or the time-out */
} ddp__finding;

typedef struct ddp__check {
    ddp__cuda *dev;
    ddp__cuda *probe; /* a copy of dev with its own stream, memory, product plans, forms and first error */
    char *memory;     /* [bytes] of the device */
    size_t bytes, used;
    float *host[2]; /* [most] */
    long most;
    ddp_rng rng;
    double wait_s;
    int late;         /* 1 if a kernel did not end in time. Nothing is launched or freed any more. */
    char passed[400]; /* the differences of the forms in use */
} ddp__check;

/* ---- opening ---- */

/* Returns 0 if memory is short. */
static int ddp__check_open(ddp__check *c, ddp__cuda *dev, double wait_s, size_t bytes, long most)
{
    ddp__cuda *p = (ddp__cuda *)ddp__calloc(1, sizeof *p);

    memset(c, 0, sizeof *c);
    c->dev = dev;
    c->probe = p;
    c->wait_s = wait_s;
    c->bytes = bytes;
    c->most = most;
    c->rng = ddp_rng_seed(1, 1);
    for (float *&x : c->host) x = (float *)ddp__calloc((size_t)most, sizeof *x);
    if (!p || !c->host[0] || !c->host[1]) return 0;
    memcpy(p, dev, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->own_stream = 0;
    p->lists = NULL; /* calls run at once */
    p->products = NULL;
    p->products_free = NULL;
    p->stream = NULL;
    if (cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc((void **)&c->memory, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    p->scratch = c->memory;
    p->scratch_bytes = DDP__CHECK_SCRATCH;
    return 1;
}

/* If a kernel has not ended, its stream and its memory are not freed: freeing would wait for it. */
static void ddp__check_close(ddp__check *c)
{
    ddp__cuda *p = c->probe;

    for (float *x : c->host)
        if (x) DDP_FREE(x);
    if (!p) return;
    if (c->memory && !c->late) (void)cudaFree(c->memory);
    if (p->products_free) p->products_free(p);
    if (p->stream && !c->late) (void)cudaStreamDestroy(p->stream);
    pthread_mutex_destroy(&p->lock);
    DDP_FREE(p);
}

/* ---- memory, copies, waiting ---- */

static void *ddp__check_take(ddp__check *c, size_t bytes)
{
    char *at = c->memory + c->used;

    c->used += (bytes + 255) / 256 * 256;
    DDP_ASSERT(c->used <= c->bytes);
    (void)DDP__CUDA(c->probe, cudaMemsetAsync(at, 0, bytes, c->probe->stream));
    return at;
}

/* Waits for the launched work, at most wait_s. Moves a failure into f. Returns 1 if the work succeeded. */
static int ddp__check_wait(ddp__check *c, ddp__finding *f)
{
    const double until = ddp_now() + c->wait_s;
    cudaError_t e;

    while ((e = ddp__cuda_asked(cudaStreamQuery(c->probe->stream))) == cudaErrorNotReady) {
        if (ddp_now() > until) {
            c->late = 1;
            (void)ddp__fail(&f->error, DDP_TIMEOUT, "no result after %g s", c->wait_s);
            return 0;
        }
        ddp__sleep_until(ddp_now() + 1e-5);
    }
    (void)DDP__CUDA(c->probe, e);
    if (ddp__cuda_status(c->probe, f->error.code ? NULL : &f->error) == DDP_OK) return 1;
    c->probe->failed = 0;
    if (c->probe->late) ddp__atomic_store(c->probe->late, 0);
    return 0;
}

/* A new array of n values in -1 to 1, bfloat16 if half is 1. */
static void *ddp__check_values(ddp__check *c, long n, int half)
{
    void *to = ddp__check_take(c, (size_t)n * (half ? 2 : 4));
    float *x = c->host[0];

    DDP_ASSERT(n <= c->most);
    for (long i = 0; i < n; i++) x[i] = (float)(2 * ddp_rng_uniform(&c->rng) - 1);
    for (long i = 0; half && i < n; i++) ((ddp__bf16 *)x)[i] = __float2bfloat16_rn(x[i]);
    (void)DDP__CUDA(c->probe, cudaMemcpyAsync(to, x, (size_t)n * (half ? 2 : 4), cudaMemcpyHostToDevice,
                                              c->probe->stream));
    (void)DDP__CUDA(c->probe, cudaStreamSynchronize(c->probe->stream)); /* host is used again */
    return to;
}

/* Copies an array to c->host[to]. */
static int ddp__check_read(ddp__check *c, ddp__finding *f, int to, const void *from, size_t bytes)
{
    DDP_ASSERT(bytes <= (size_t)c->most * sizeof(float));
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(c->host[to], from, bytes, cudaMemcpyDeviceToHost, c->probe->stream));
    return ddp__check_wait(c, f);
}

/* Element i of an array in host memory. */
static double ddp__check_value(const float *array, long i, int half)
{
    uint32_t bits;
    float x;

    if (!half) return array[i];
    bits = (uint32_t)((const uint16_t *)(const void *)array)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Compares columns from to to - 1 of the rows of row elements of two arrays: the result of the checked form,
 * and the correct one. */
static void ddp__check_compare(ddp__check *c, ddp__finding *f, const char *what, const void *is,
                               const void *right, long n, int half, long row, long from, long to)
{
    const size_t bytes = (size_t)n * (half ? 2 : 4);
    double most = 0, worst = 0;

    if (f->error.code || !is || !right) return;
    if (!ddp__check_read(c, f, 0, is, bytes) || !ddp__check_read(c, f, 1, right, bytes)) return;
    for (long i = 0; i < n; i++) {
        const double a = ddp__check_value(c->host[0], i, half), b = ddp__check_value(c->host[1], i, half);
        const double apart = a < b ? b - a : a - b, size = b < 0 ? -b : b;
        if (i % row < from || i % row >= to) continue;
        if (!(apart <= worst) && worst == worst) worst = apart; /* NaN stays */
        if (size > most) most = size;
    }
    worst /= most > 0 ? most : 1;
    if (f->what && worst <= f->worst) return;
    f->worst = worst;
    f->what = what;
}

/* ---- operators ---- */

/* Resets the memory for the next case. */
static void ddp__check_new(ddp__check *c) { c->used = DDP__CHECK_SCRATCH; }

/* Fills a call of the operator of that name: new inputs, parameters and gradient of the output. Inputs that
 * are set stay. spec has inputs and arguments. */
static const ddp_op *ddp__check_call(ddp__check *c, const char *name, ddp_op_spec *spec, ddp_op_call *call)
{
    ddp__cuda *p = c->probe;
    const ddp_op *op = ddp__cuda_op(p, name);
    ddp_error err = DDP__ZEROS;

    if (c->late) return NULL; /* a copy to the device would wait for the kernel */
    if (!op || op->shape(spec, &err)) {
        ddp__cuda_fail(p, DDP_FAILED, "%s: %s", name, op ? err.msg : "no such operator");
        return NULL;
    }
    DDP_ASSERT(ddp__cuda_scratch(p, op, spec) <= DDP__CHECK_SCRATCH);
    call->spec = spec;
    call->pool = p;
    call->training = 1;
    for (int i = 0; i < spec->inputs; i++)
        if (!call->in[i]) call->in[i] = ddp__check_values(c, ddp_shape_count(&spec->in[i]), p->half);
    for (int i = 0; i < spec->params; i++)
        call->param[i] = ddp__check_values(c, ddp_shape_count(&spec->param[i].shape), p->half);
    if (!call->grad_out)
        call->grad_out = ddp__check_values(c, ddp_shape_count(&spec->out), ddp__cuda_half(p, &spec->out));
    return op;
}

/* New arrays for the results of a call. */
static void ddp__check_results(ddp__check *c, ddp_op_call *call)
{
    const ddp_op_spec *s = call->spec;
    const size_t size = c->probe->half ? 2 : 4;

    call->out = ddp__check_take(c, (size_t)ddp_shape_count(&s->out) * (s->out.dims ? size : 4));
    if (s->saved) call->saved = ddp__check_take(c, s->saved * 4);
    for (int i = 0; i < s->inputs; i++)
        if (s->in_type[i] == DDP_F32)
            call->grad_in[i] = ddp__check_take(c, (size_t)ddp_shape_count(&s->in[i]) * size);
    for (int i = 0; i < s->params; i++)
        call->grad_param[i] = ddp__check_take(c, (size_t)ddp_shape_count(&s->param[i].shape) * 4);
}

/* Runs forward and backward with these forms. */
static int ddp__check_run(ddp__check *c, ddp__finding *f, const ddp_op *op, ddp_op_call *call, unsigned forms)
{
    if (c->late || f->error.code) return 0;
    c->probe->forms = forms;
    ddp__check_results(c, call);
    op->forward(call);
    if (!ddp__check_wait(c, f)) return 0;
    op->backward(call);
    return ddp__check_wait(c, f);
}

/* ---- attention ---- */

/* Runs one problem on tensor cores, with wgmma if hopper is 1 and with mma if it is 0, and without them. Each
 * form has its own call, so that a failure that ends all work on the device has one possible cause. */
static void ddp__check_heads(ddp__check *c, ddp__finding *f, int hopper, long tokens, long heads, long d)
{
    ddp_op_spec spec = DDP__ZEROS;
    ddp_op_call call = DDP__ZEROS, right;
    const ddp_op *op;
    const long kv = heads > 1 ? heads / 2 : 1, q = heads * d, row = q + 2 * kv * d;
    const int half = c->dev->half;

    ddp__check_new(c);
    spec.inputs = 1;
    spec.in[0] = {3, {1, tokens, row}};
    spec.arg[0] = (double)heads;
    spec.arg[1] = (double)kv;
    op = ddp__check_call(c, "attention", &spec, &call);
    right = call;
    c->probe->map = NULL;
    if (!op || !ddp__check_run(c, f, op, &right, DDP__PLAIN_ATTENTION)) return;
    c->probe->map = hopper ? c->dev->map : NULL;
    if (!ddp__check_run(c, f, op, &call, 0)) return;
    ddp__check_compare(c, f, "the output", call.out, right.out, tokens * q, half, q, 0, q);
    ddp__check_compare(c, f, "the maxima", call.saved, right.saved, 2 * heads * tokens, 0, 2, 0, 1);
    ddp__check_compare(c, f, "the sums", call.saved, right.saved, 2 * heads * tokens, 0, 2, 1, 2);
    ddp__check_compare(c, f, "dq", call.grad_in[0], right.grad_in[0], tokens * row, half, row, 0, q);
    ddp__check_compare(c, f, "dk", call.grad_in[0], right.grad_in[0], tokens * row, half, row, q, q + kv * d);
    ddp__check_compare(c, f, "dv", call.grad_in[0], right.grad_in[0], tokens * row, half, row, q + kv * d,
                       row);
}

/* ==== cuda/conv_product.cuh ==== [cuda] */
/* The two matrix products of a convolution (ops/conv_product.c has them for the CPU). One operand is the
 * im2col matrix of an image batch. It never exists in memory: each block gathers the tiles that it needs.
 * Images are channels-last, so that the input of one position at one tap is a row of channels, read 16 bytes
 * at a time. */

#include <mma.h>

/* ---- multiplying two tiles in shared memory, with plain multiply-adds (float32, the reference for the
 * others) or on tensor cores (bf16 or TF32)
 *
 * A block multiplies a tile of BM rows of A by a tile of 128 columns of B, both `depth` deep, with 8 warps.
 * Each warp computes BM / 2 rows and 32 columns. Tiles are loaded in pieces of 16 bytes: consecutive k of one
 * row or column or, with Slow, consecutive rows or columns at one k. Each row in memory has 16 bytes of
 * padding, so that the lanes of a load access different banks. ---- */

enum { DDP__CONV_THREADS = 256, DDP__CONV_COLUMNS = 128, DDP__CONV_SHOWN = 36, DDP__CONV_STAGES = 4 };

template <typename T, int BM, bool Slow> struct ddp__conv_layout {
    typedef T tile; /* element type, in the tensors and in shared memory */
    enum {
        tall = BM,
        depth = 64 / (int)sizeof(tile),
        pad = 16 / (int)sizeof(tile),
        a_row = (Slow ? BM : (int)depth) + pad,
        b_row = (Slow ? (int)DDP__CONV_COLUMNS : (int)depth) + pad,
        a_size = (Slow ? (int)depth : BM) * a_row,
        b_size = (Slow ? (int)depth : (int)DDP__CONV_COLUMNS) * b_row,
        size = a_size + b_size,
        bytes = DDP__CONV_STAGES * size * (int)sizeof(tile)
    };

    static __device__ int a_at(int m, int k) { return Slow ? k * a_row + m : m * a_row + k; }
    static __device__ int b_at(int n, int k) { return a_size + (Slow ? k * b_row + n : n * b_row + k); }
};

/* ---- plain ---- */

template <typename T, int BM, bool Slow> struct ddp__conv_scalar : ddp__conv_layout<T, BM, Slow> {
    typedef ddp__conv_layout<T, BM, Slow> at;
    enum { width = ddp__vec<T>::width };
    float sum[BM / 2];

    __device__ void clear()
    {
        for (int i = 0; i < BM / 2; i++) sum[i] = 0;
    }

    /* m, n: first row and column of the warp. */
    __device__ void multiply(const T *p, int m, int n, int lane)
    {
        for (int k = 0; k < at::depth && Slow; k++) {
            const float x = ddp__to_float(p[at::b_at(n + lane, k)]);
            DDP__UNROLL for (int i = 0; i < BM / 2; i++) sum[i] += ddp__to_float(p[at::a_at(m + i, k)]) * x;
        }
        for (int k = 0; k < at::depth && !Slow; k += width) {
            const ddp__vec<T> x = ddp__vec_load(p + at::b_at(n + lane, k));
            DDP__UNROLL for (int i = 0; i < BM / 2; i++)
            {
                const ddp__vec<T> a = ddp__vec_load(p + at::a_at(m + i, k));
                for (int e = 0; e < width; e++) sum[i] += ddp__to_float(a.v[e]) * ddp__to_float(x.v[e]);
            }
        }
    }

    /* Copies 16 rows of the warp's sums, from row 16 i, into a buffer of 16 rows of DDP__CONV_SHOWN floats.
     * */
    __device__ void show(float *room, int lane, int i) const
    {
        DDP__UNROLL for (int r = 0; r < 16; r++) room[r * DDP__CONV_SHOWN + lane] = sum[16 * i + r];
    }
};

template <int BM, bool Slow> using ddp__conv_plain = ddp__conv_scalar<float, (BM), (Slow)>;
template <int BM, bool Slow> using ddp__conv_plain_bf16 = ddp__conv_scalar<ddp__bf16, (BM), (Slow)>;

/* ---- tensor cores ---- */

/* One of the two number formats: type of a tile element, depth of the instruction, and rounding of a
 * fragment. */
struct ddp__mma_bf16 {
    typedef ddp__bf16 tile, element;
    enum { k = 16 };
    template <typename F> static __device__ void round(F &) {}
};

struct ddp__mma_tf32 {
    typedef float tile;
    typedef nvcuda::wmma::precision::tf32 element;
    enum { k = 8 };
    template <typename F> static __device__ void round(F &f)
    {
        DDP__UNROLL for (int i = 0; i < f.num_elements; i++) f.x[i] = nvcuda::wmma::__float_to_tf32(f.x[i]);
    }
};

template <typename N, int BM, bool Slow> struct ddp__conv_mma : ddp__conv_layout<typename N::tile, BM, Slow> {
    typedef ddp__conv_layout<typename N::tile, BM, Slow> at;
    typedef typename std::conditional<Slow, nvcuda::wmma::col_major, nvcuda::wmma::row_major>::type a_layout;
    typedef typename std::conditional<Slow, nvcuda::wmma::row_major, nvcuda::wmma::col_major>::type b_layout;
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, N::k, float> sum[BM / 32][2];

    __device__ void clear()
    {
        for (int i = 0; i < BM / 32; i++)
            for (int j = 0; j < 2; j++) nvcuda::wmma::fill_fragment(sum[i][j], 0.0f);
    }

    __device__ void multiply(const typename N::tile *p, int m, int n, int)
    {
        using namespace nvcuda::wmma;

        DDP__UNROLL for (int k = 0; k < at::depth; k += N::k)
        {
            fragment<matrix_b, 16, 16, N::k, typename N::element, b_layout> right[2];
            fragment<matrix_a, 16, 16, N::k, typename N::element, a_layout> left;
            for (int j = 0; j < 2; j++) {
                load_matrix_sync(right[j], p + at::b_at(n + 16 * j, k), (unsigned)at::b_row);
                N::round(right[j]);
            }
            DDP__UNROLL for (int i = 0; i < BM / 32; i++)
            {
                load_matrix_sync(left, p + at::a_at(m + 16 * i, k), (unsigned)at::a_row);
                N::round(left);
                for (int j = 0; j < 2; j++) mma_sync(sum[i][j], left, right[j], sum[i][j]);
            }
        }
    }

    __device__ void show(float *room, int, int i) const
    {
        for (int j = 0; j < 2; j++)
            nvcuda::wmma::store_matrix_sync(room + 16 * j, sum[i][j], (unsigned)DDP__CONV_SHOWN,
                                            nvcuda::wmma::mem_row_major);
    }
};

template <int BM, bool Slow> using ddp__conv_bf16 = ddp__conv_mma<ddp__mma_bf16, (BM), (Slow)>;
template <int BM, bool Slow> using ddp__conv_tf32 = ddp__conv_mma<ddp__mma_tf32, (BM), (Slow)>;

/* Multiplies tiles 0 to count - 1. load(tile, to) starts to load a tile into a stage of shared memory,
 * several tiles ahead, by asynchronous copies or into registers. put(to) then stores the tile from the
 * registers. */
template <typename M, typename Load, typename Put>
__device__ static __forceinline__ void ddp__conv_multiply(M &product, typename M::tile *store, long count,
                                                          int m, int n, Load load, Put put)
{
    const int ahead = DDP__CONV_STAGES - 1;

    product.clear();
    for (long i = -ahead; i < count; i++) {
        typename M::tile *next = store + (i + ahead) % DDP__CONV_STAGES * M::size;
        if (i >= 0) {
            ddp__copy_wait<DDP__CONV_STAGES - 2>();
            __syncthreads(); /* tile i is complete, and no warp reads the tile before it any more */
        }
        if (i + ahead < count) load(i + ahead, next);
        if (i >= 0) product.multiply(store + i % DDP__CONV_STAGES * M::size, m, n, (int)threadIdx.x % 32);
        if (i + ahead < count) put(next);
        ddp__copy_commit();
    }
    __syncthreads();
}

/* Calls put(row, column, sum) for each of the warp's sums, through the warp's own buffer. With Down,
 * neighbouring lanes get neighbouring rows, otherwise neighbouring columns. */
template <bool Down, typename M, typename Put>
__device__ static __forceinline__ void ddp__conv_each(const M &product, float *room, Put put)
{
    const int lane = (int)threadIdx.x % 32;

    DDP__UNROLL for (int i = 0; i < M::tall / 32; i++)
    {
        product.show(room, lane, i);
        __syncwarp();
        for (int e = 0; e < 16; e++) {
            const int r = Down ? lane % 16 : e, c = Down ? 2 * e + lane / 16 : lane;
            put(16 * i + r, c, room[r * DDP__CONV_SHOWN + c]);
        }
        __syncwarp();
    }
}

/* ---- operands ---- */

/* Images of `channels` seen through a window of kh x kw taps at rows x cols positions of each image, and the
 * other operand. Tap (a, b) at position (r, c) reads element (top + r step + a, left + c step + b) of the h x
 * w image, or 0 outside the image. Group g reads `planes` channels, from channel g planes. Image i begins at
 * x + i*image. */
typedef struct ddp__cuda_conv {
    const void *x;
    long image;
    int channels, planes, h, w, rows, cols, step, top, left, kh, kw;
    int m, groups; /* rows of the other matrix per group */
    long pixels;   /* number of positions: images x rows x cols */
    void *y;       /* strides of an element (i, r, c): y_image, y_row, y_col. The channels are contiguous. */
    long y_image, y_row, y_col;
    const void *bias;   /* [groups x m], or NULL */
    int add;            /* 1 to add to y */
    const void *weight; /* packed: m_pad rows of k_pad for each group */
    int m_pad, k_pad;
    const struct ddp__conv_reach *taps; /* [k_pad] */
} ddp__cuda_conv;

/* Offset of the element that column k of the packed weights multiplies, relative to the first element of the
 * position. */
typedef struct ddp__conv_reach {
    long at;
    int a, b; /* row and column in the window. a = DDP__CONV_NOWHERE means no element */
} ddp__conv_reach;

enum { DDP__CONV_NOWHERE = 1 << 29 }; /* a row far below all images */

static inline __device__ ddp__conv_reach ddp__conv_reach_of(const ddp__cuda_conv &v, int k)
{
    const int tap = k / v.planes, a = tap / v.kw, b = tap % v.kw;
    return {((long)a * v.w + b) * v.channels + k % v.planes, a < v.kh ? a : (int)DDP__CONV_NOWHERE, b};
}

/* A position: the start of its window in the first channel of the image, and its element of y. For positions
 * past the last, the window is outside all images. */
typedef struct ddp__conv_place {
    long x, y;
    int row, col;
} ddp__conv_place;

static inline __device__ ddp__conv_place ddp__conv_position(const ddp__cuda_conv &v, long pixel)
{
    ddp__conv_place p;
    const long plane = (long)v.rows * v.cols;
    const long image = v.pixels <= INT32_MAX ? (long)((unsigned)pixel / (unsigned)plane)
                                             : pixel / plane; /* a 64-bit division takes four times as long */
    const int rest = (int)(pixel - image * plane);
    const int r = rest / v.cols, c = rest - r * v.cols, real = pixel < v.pixels;

    p.row = real ? v.top + r * v.step : -2 * (int)DDP__CONV_NOWHERE;
    p.col = v.left + c * v.step;
    p.x = image * v.image + ((long)p.row * v.w + p.col) * v.channels;
    p.y = real ? image * v.y_image + r * v.y_row + c * v.y_col : -1;
    return p;
}

/* 1 if the element of the image at that tap exists. */
static inline __device__ int ddp__conv_sees(const ddp__cuda_conv &v, const ddp__conv_place &p, int a, int b)
{
    return (unsigned)(p.row + a) < (unsigned)v.h && (unsigned)(p.col + b) < (unsigned)v.w;
}

/* How to pack weights for the product: column (a kw + b) planes + p of row i of each group is w[g*group +
 * i*row + p*plane + a*kh_step + b*kw_step]. The remaining columns are zeros. */
typedef struct ddp__conv_pack {
    const void *w;
    long group, row, plane, kh_step, kw_step;
} ddp__conv_pack;

template <typename M>
__global__ void ddp__k_conv_pack(typename M::tile *out, ddp__conv_reach *taps, ddp__cuda_conv v,
                                 ddp__conv_pack s)
{
    const long n = (long)v.groups * v.m_pad * v.k_pad, step = (long)gridDim.x * blockDim.x;
    const typename M::tile *w = (const typename M::tile *)s.w;

    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int k = (int)(i % v.k_pad), m = (int)(i / v.k_pad % v.m_pad);
        const long g = i / v.k_pad / v.m_pad;
        const ddp__conv_reach tap = ddp__conv_reach_of(v, k);

        out[i] =
            tap.a < v.kh && m < v.m
                ? w[g * s.group + m * s.row + k % v.planes * s.plane + tap.a * s.kh_step + tap.b * s.kw_step]
                : ddp__from_float<typename M::tile>(0);
        if (i < v.k_pad) taps[k] = tap;
    }
}

/* ---- over images: y(position, i) = sum over (a, b, p) of weight(i, a, b, p) x(position, a, b, p)
 *
 * Grid: x: row tiles x position tiles, row tiles first, so that neighbouring blocks read the same positions,
 * and y: groups. Whole means that planes is a multiple of the depth, so that each tile has one tap, and
 * channels can be read 16 bytes at a time. ---- */

template <typename M, bool Whole>
__global__ void __launch_bounds__(DDP__CONV_THREADS, 2) ddp__k_conv_images(ddp__cuda_conv v)
{
    typedef typename M::tile tile;
    enum { A = M::tall / 64, B = DDP__CONV_COLUMNS / 64, W = 16 / sizeof(tile) };
    DDP__SHARED(tile, store);
    __shared__ long to[DDP__CONV_COLUMNS];
    const int t = (int)threadIdx.x, warp = t / 32, line = t / 4, part = t % 4 * (int)W;
    const int tiles = (v.m + M::tall - 1) / M::tall, top = (int)(blockIdx.x % (unsigned)tiles) * M::tall;
    const int warp_m = warp / 4 * M::tall / 2, warp_n = warp % 4 * 32, group = (int)blockIdx.y;
    const long first = (long)(blockIdx.x / (unsigned)tiles) * DDP__CONV_COLUMNS;
    const tile *x = (const tile *)v.x + (long)group * v.planes;
    const tile *w = (const tile *)v.weight + ((long)group * v.m_pad + top + line) * v.k_pad + part;
    ddp__vec<tile> right[B];
    ddp__conv_place from[B];
    int a = 0, b = 0, p = 0; /* of the next tile, if Whole */
    M product;

    for (int i = 0; i < B; i++) {
        from[i] = ddp__conv_position(v, first + line + 64 * i);
        if (part == 0) to[line + 64 * i] = from[i].y;
    }
    const auto load = [&](long n, tile *at) {
        const int k = (int)n * M::depth;
        for (int i = 0; i < A; i++)
            ddp__copy16(at + M::a_at(line + 64 * i, part), w + (long)(64 * i) * v.k_pad + k, 1);
        DDP__UNROLL for (int i = 0; i < B && Whole; i++)
        {
            const int in = ddp__conv_sees(v, from[i], a, b);
            ddp__copy16(at + M::b_at(line + 64 * i, part),
                        in ? x + from[i].x + ((long)a * v.w + b) * v.channels + p + part : w, in);
        }
        DDP__UNROLL for (int i = 0; i < B && !Whole; i++) DDP__UNROLL for (int e = 0; e < (int)W; e++)
        {
            const ddp__conv_reach tap = v.taps[k + part + e];
            right[i].v[e] =
                ddp__conv_sees(v, from[i], tap.a, tap.b) ? x[from[i].x + tap.at] : ddp__from_float<tile>(0);
        }
        if (Whole && (p += M::depth) == v.planes) {
            p = 0;
            if (++b == v.kw) {
                b = 0;
                a++;
            }
        }
    };
    const auto put = [&](tile *at) {
        for (int i = 0; i < B && !Whole; i++) ddp__vec_store(at + M::b_at(line + 64 * i, part), right[i]);
    };

    ddp__conv_multiply(product, store, v.k_pad / M::depth, warp_m, warp_n, load, put);
    ddp__conv_each<true>(product, (float *)(void *)store + warp * 16 * DDP__CONV_SHOWN,
                         [&](int i, int j, float sum) {
                             const int row = top + warp_m + i, channel = group * v.m + row;
                             tile *y = (tile *)v.y + to[warp_n + j] + channel;
                             if (row >= v.m || to[warp_n + j] < 0) return;
                             if (v.bias) sum += ddp__to_float(((const tile *)v.bias)[channel]);
                             if (v.add) sum += ddp__to_float(*y);
                             *y = ddp__from_float<tile>(sum);
                         });
}

/* ---- over weights: grad(i, column) = sum over positions of y(position, i) x(position, column)
 *
 * A column is (a, b, p). Here y is read only, and its positions are contiguous. Wide means that the rows of y
 * and the channels of a tap can be read 16 bytes at a time. Grid: x: row tiles x column tiles, y: parts of
 * the positions, `part` positions each, and z: groups. Part s writes to out + s*groups*m*columns. A single
 * part adds to out. In both, weights are stored in the order (p, a, b). ---- */

template <typename M, bool Wide>
__global__ void __launch_bounds__(DDP__CONV_THREADS, 2)
    ddp__k_conv_weights(ddp__cuda_conv v, float *out, long part)
{
    typedef typename M::tile tile;
    enum { W = 16 / sizeof(tile), V = M::tall / 64, C = DDP__CONV_COLUMNS / 64 };
    enum { Across_a = M::tall / (int)W, Across_b = DDP__CONV_COLUMNS / (int)W };
    DDP__SHARED(tile, store);
    __shared__ ddp__conv_reach taps[DDP__CONV_COLUMNS];
    const int t = (int)threadIdx.x, warp = t / 32;
    const int tiles = (v.m + M::tall - 1) / M::tall, columns = v.planes * v.kh * v.kw,
              y_channels = v.groups * v.m;
    const int top = (int)(blockIdx.x % (unsigned)tiles) * M::tall;
    const int left = (int)(blockIdx.x / (unsigned)tiles) * DDP__CONV_COLUMNS;
    const int warp_m = warp / 4 * M::tall / 2, warp_n = warp % 4 * 32, group = (int)blockIdx.z;
    const long begin = (long)blockIdx.y * part, end = begin + part < v.pixels ? begin + part : v.pixels;
    const int row = t % Across_a * (int)W, column = t % Across_b * (int)W; /* of the pieces of this thread */
    const tile *x = (const tile *)v.x + (long)group * v.planes;
    const tile *y = (const tile *)v.y + (long)group * v.m + top + row;
    ddp__vec<tile> rows[V], cols[C];
    M product;

    for (int j = t; j < DDP__CONV_COLUMNS; j += DDP__CONV_THREADS) taps[j] = ddp__conv_reach_of(v, left + j);
    __syncthreads();

    const auto load = [&](long n, tile *to) {
        for (int i = 0; i < V; i++) {
            const int k = t / Across_a + i * (DDP__CONV_THREADS / Across_a);
            const long pixel = begin + n * M::depth + k;
            const int left_m = pixel < end ? v.m - top - row : 0; /* number of rows from this one on */
            const tile *at = y + pixel * y_channels;
            if (Wide) ddp__copy16(to + M::a_at(row, k), left_m > 0 ? at : (const tile *)v.y, left_m > 0);
            for (int e = 0; e < (int)W && !Wide; e++)
                rows[i].v[e] = e < left_m ? at[e] : ddp__from_float<tile>(0);
        }
        for (int i = 0; i < C; i++) {
            const int k = t / Across_b + i * (DDP__CONV_THREADS / Across_b);
            const long pixel = begin + n * M::depth + k;
            const ddp__conv_place from = ddp__conv_position(v, pixel < end ? pixel : v.pixels);
            const ddp__conv_reach *tap = taps + column;
            const int in = ddp__conv_sees(v, from, tap->a, tap->b);
            if (Wide) ddp__copy16(to + M::b_at(column, k), in ? x + from.x + tap->at : x, in);
            for (int e = 0; e < (int)W && !Wide; e++, tap++)
                cols[i].v[e] =
                    ddp__conv_sees(v, from, tap->a, tap->b) ? x[from.x + tap->at] : ddp__from_float<tile>(0);
        }
    };
    const auto put = [&](tile *to) {
        for (int i = 0; i < V && !Wide; i++)
            ddp__vec_store(to + M::a_at(row, t / Across_a + i * (DDP__CONV_THREADS / Across_a)), rows[i]);
        for (int i = 0; i < C && !Wide; i++)
            ddp__vec_store(to + M::b_at(column, t / Across_b + i * (DDP__CONV_THREADS / Across_b)), cols[i]);
    };

    ddp__conv_multiply(product, store, (end - begin + M::depth - 1) / M::depth, warp_m, warp_n, load, put);
    out += (long)blockIdx.y * v.groups * v.m * columns;
    ddp__conv_each<false>(
        product, (float *)(void *)store + warp * 16 * DDP__CONV_SHOWN, [&](int i, int j, float sum) {
            const int k = left + warp_n + j, m = top + warp_m + i;
            const long at = (((long)group * v.m + m) * v.planes + k % v.planes) * v.kh * v.kw + k / v.planes;
            if (m >= v.m || k >= columns) return;
            out[at] = gridDim.y == 1 ? out[at] + sum : sum;
        });
}

/* grad[i] += part 0 + part 1 + ... */
static __global__ void ddp__k_conv_add_parts(float *grad, const float *out, long n, int parts)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i >= n) return;
    for (int s = 0; s < parts; s++) sum += out[s * n + i];
    grad[i] += sum;
}

/* Adds the parts in dev->scratch to grad. */
static void ddp__conv_add_parts(ddp__cuda *dev, void *grad, long n, long parts)
{
    DDP__EACH(ddp__k_conv_add_parts, n, 256, (float *)grad, (const float *)dev->scratch, n, (int)parts);
}

/* ==== cuda/blas.cuh ==== [cuda] */
/* Matrix products through cuBLASLt. Sums are float32 in every mode. The descriptors and the algorithm of a
 * product are cached per shape: only the first step runs the heuristic of cuBLASLt. */

/* c (m x n) = or += op(a) op(b), row-major. op(a) is m x k and op(b) is k x n. turned means that the array is
 * stored transposed (a as k x m, b as n x k). With count > 1, consecutive matrices are *_step elements
 * apart. */
typedef struct ddp__cuda_product_shape {
    long m, n, k, count, a_step, b_step, c_step;
    int a_turned, b_turned;
    int half, half_out; /* type of a and b, and of c: 1 is bfloat16 */
} ddp__cuda_product_shape;

typedef struct ddp__cuda_product {
    ddp__cuda_product_shape shape;
    const void *a, *b;
    void *c;
    int add;
    const void *bias; /* n elements of c's type, added to every row, or NULL */
    int gelu;         /* 1: c = gelu(product + bias), which needs a bias and add 0. -1: c = product *
                       * gelu'(before), which needs add 0. Not every version of the library supports it for
                       * every type and shape */
    void *before;     /* with gelu: the input of gelu, in rows of a multiple of 16 bytes, or NULL if not
                       * wanted */
    void *sums;       /* receives the sums of the rows of op(a), m elements of c's type. NULL if not wanted.
                         Must be NULL with bias or count > 1. As rarely supported as gelu */
} ddp__cuda_product;

/* Cache key of a product. The alignment of the pointers is part of the key: fast algorithms need 16 bytes,
 * and the choice of an algorithm may depend on the alignment of `before`. */
typedef struct ddp__cuda_product_key {
    ddp__cuda_product_shape shape;
    int epilogue, a_align, b_align, c_align, d_align; /* d: alignment of c, and of bias or sums */
    int before_align;
} ddp__cuda_product_key;

enum { DDP__CUDA_ALGORITHMS = 4 }; /* that a product may try */

typedef struct ddp__cuda_product_plan {
    ddp__cuda_product_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t algorithm[DDP__CUDA_ALGORITHMS]; /* the fastest one first */
    int algorithms, at; /* `at` is in use. The library has rejected those before it. */
    int ran;            /* 1 if it has run, so it is loaded */
    int none;           /* 1 if the library does not support this product with gelu or sums */
    struct ddp__cuda_product_plan *next;
} ddp__cuda_product_plan;

static int ddp__cuda_alignment(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    int n = 256;
    while (at % (uintptr_t)n) n /= 2;
    return n;
}

static ddp__cuda_product_key ddp__cuda_product_key_of(const ddp__cuda_product *p)
{
    const int vector = ddp__cuda_alignment(p->sums ? p->sums : p->bias);
    ddp__cuda_product_key k;

    memset(&k, 0, sizeof k); /* keys are compared as bytes, padding included */
    memcpy(&k.shape, &p->shape, sizeof k.shape);
    k.epilogue = p->gelu < 0            ? CUBLASLT_EPILOGUE_DGELU
                 : p->gelu && p->before ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                 : p->gelu              ? CUBLASLT_EPILOGUE_GELU_BIAS
                 : p->sums              ? CUBLASLT_EPILOGUE_BGRADB
                 : p->bias              ? CUBLASLT_EPILOGUE_BIAS
                                        : CUBLASLT_EPILOGUE_DEFAULT;
    k.a_align = ddp__cuda_alignment(p->a);
    k.b_align = ddp__cuda_alignment(p->b);
    k.c_align = k.d_align = ddp__cuda_alignment(p->c);
    if (vector < k.d_align) k.d_align = vector;
    k.before_align = ddp__cuda_alignment(p->before);
    return k;
}

/* Describes a product of one pair of matrices. half: the type of a, b and c, until the caller changes
 * shape.half_out. */
static ddp__cuda_product ddp__cuda_product_of(long m, long n, long k, const void *a, int a_turned,
                                              const void *b, int b_turned, void *c, int half)
{
    const ddp__cuda_product_shape s = {m, n, k, 1, 0, 0, 0, a_turned, b_turned, half, half};
    return {s, a, b, c, 0, NULL, 0, NULL, NULL};
}

/* Return 1 after a failure, as DDP__BLAS does. */
static int ddp__cuda_layout(ddp__cuda *dev, cublasLtMatrixLayout_t *l, int narrow, long rows, long cols,
                            long count, long step)
{
    const int32_t batch = (int32_t)count;
    const int64_t offset = step;

    if (DDP__BLAS(dev, cublasLtMatrixLayoutCreate(l, narrow ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)rows,
                                                  (uint64_t)cols, rows)))
        return 1;
    return count > 1 &&
           (DDP__BLAS(dev, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                            sizeof batch)) ||
            DDP__BLAS(dev, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                            &offset, sizeof offset)));
}

static int ddp__cuda_describe(ddp__cuda *dev, ddp__cuda_product_plan *p, cublasLtMatmulDescAttributes_t what,
                              const void *value, size_t bytes)
{
    return DDP__BLAS(dev, cublasLtMatmulDescSetAttribute(p->product, what, value, bytes));
}

/* cuBLASLt is column-major, so it computes c^T = op(b)^T op(a)^T, which has the same memory layout. Its A is
 * our b, and sums over the rows of op(a) are sums over k of its B. */
static int ddp__cuda_product_describe(ddp__cuda *dev, ddp__cuda_product_plan *p)
{
    const ddp__cuda_product_shape *s = &p->key.shape;
    const int32_t ta = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, tb = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = (uint32_t)p->key.epilogue;
    const int64_t before_row = s->n;

    return DDP__BLAS(dev, cublasLtMatmulDescCreate(&p->product,
                                                   dev->tf32 && !s->half ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                         : CUBLAS_COMPUTE_32F,
                                                   CUDA_R_32F)) ||
           ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta) ||
           ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb) ||
           ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
           ((epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU) &&
            ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &before_row,
                               sizeof before_row)) ||
           ddp__cuda_layout(dev, &p->a, s->half, s->b_turned ? s->k : s->n, s->b_turned ? s->n : s->k,
                            s->count, s->b_step) ||
           ddp__cuda_layout(dev, &p->b, s->half, s->a_turned ? s->m : s->k, s->a_turned ? s->k : s->m,
                            s->count, s->a_step) ||
           ddp__cuda_layout(dev, &p->c, s->half_out, s->n, s->m, s->count, s->c_step);
}

/* Sets the pointers to bias, sums and the input of gelu for this call. The heuristic also reads them. */
static int ddp__cuda_product_point(ddp__cuda *dev, ddp__cuda_product_plan *p, const ddp__cuda_product *q)
{
    const void *vector = q->sums ? q->sums : q->bias;
    return (vector &&
            ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector)) ||
           (q->before && ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &q->before,
                                            sizeof q->before));
}

static int ddp__cuda_prefer(ddp__cuda *dev, cublasLtMatmulPreference_t pref,
                            cublasLtMatmulPreferenceAttributes_t what, int number)
{
    const uint32_t value = (uint32_t)number;
    return DDP__BLAS(dev, cublasLtMatmulPreferenceSetAttribute(pref, what, &value, sizeof value));
}

/* 1 if the product can be computed in another way. */
static int ddp__cuda_product_is_fused(const ddp__cuda_product_plan *p)
{
    return p->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->key.epilogue != CUBLASLT_EPILOGUE_BIAS;
}

static int ddp__cuda_product_choose(ddp__cuda *dev, ddp__cuda_product_plan *p)
{
    const ddp__cuda_product_key *k = &p->key;
    const ddp__cuda_product_shape *s = &k->shape;
    cublasLtMatmulPreference_t pref = NULL;
    const size_t workspace = dev->workspace_bytes;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    int failed;

    failed =
        DDP__BLAS(dev, cublasLtMatmulPreferenceCreate(&pref)) ||
        DDP__BLAS(dev, cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                            &workspace, sizeof workspace)) ||
        /* partial sums of a split k are added as floats too, not as bfloat16 */
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                         CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->b_align) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->a_align) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->c_align) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->d_align);
    if (!failed)
        status = cublasLtMatmulAlgoGetHeuristic(dev->blas_lt, p->product, p->a, p->b, p->c, p->c, pref,
                                                DDP__CUDA_ALGORITHMS, p->algorithm, &p->algorithms);
    if (pref) (void)cublasLtMatmulPreferenceDestroy(pref);
    p->none = !failed && (status != CUBLAS_STATUS_SUCCESS || p->algorithms < 1);
    if (p->none && !ddp__cuda_product_is_fused(p)) {
        failed = 1;
        ddp__cuda_fail(dev, DDP_UNSUPPORTED,
                       "GPU %d: cuBLASLt has no algorithm for %ld x %ld by %ld x %ld in %s; use sizes that "
                       "are multiples of 8",
                       dev->device, s->m, s->k, s->k, s->n, s->half ? "bfloat16" : "float32");
    }
    return failed;
}

static void ddp__cuda_product_drop(ddp__cuda_product_plan *p)
{
    if (p->a) (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) (void)cublasLtMatrixLayoutDestroy(p->c);
    if (p->product) (void)cublasLtMatmulDescDestroy(p->product);
    DDP_FREE(p);
}

/* ddp__cuda_close calls it through a pointer in the device. */
static void ddp__cuda_products_free(ddp__cuda *dev)
{
    ddp__cuda_product_plan *p = (ddp__cuda_product_plan *)dev->products, *next;
    for (; p; p = next) {
        next = p->next;
        ddp__cuda_product_drop(p);
    }
    dev->products = NULL;
}

static ddp__cuda_product_plan *ddp__cuda_product_plan_of(ddp__cuda *dev, const ddp__cuda_product *q)
{
    const ddp__cuda_product_key key = ddp__cuda_product_key_of(q);
    ddp__cuda_product_plan *p, *other;
    float waves; /* of an algorithm, on this device */

    for (p = (ddp__cuda_product_plan *)dev->products; p; p = p->next)
        if (!memcmp(&p->key, &key, sizeof key)) return p;
    p = (ddp__cuda_product_plan *)ddp__calloc(1, sizeof *p);
    if (!p) {
        ddp__cuda_fail(dev, DDP_MEMORY, "out of memory for the plan of a matrix product");
        return NULL;
    }
    memcpy(&p->key, &key, sizeof key);
    if (ddp__cuda_product_describe(dev, p) || ddp__cuda_product_point(dev, p, q) ||
        ddp__cuda_product_choose(dev, p)) {
        ddp__cuda_product_drop(p);
        return NULL;
    }
    if (q->sums) { /* no fused sums if they rule out split-k, the algorithm that fills the device when k is
                    * long */
        ddp__cuda_product plain = *q;
        plain.sums = NULL;
        other = ddp__cuda_product_plan_of(dev, &plain);
        waves = other ? other->algorithm->wavesCount : 0;
        p->none |= p->algorithm->wavesCount < 0.75f * (waves < 1 ? waves : 1);
    }
    p->next = (ddp__cuda_product_plan *)dev->products;
    dev->products = p;
    dev->products_free = ddp__cuda_products_free;
    return p;
}

/* The bit of dev->forms that excludes this product, or 0. */
static inline unsigned ddp__cuda_epilogue_bit(const ddp__cuda_product *q)
{
    return q->gelu > 0 ? DDP__PLAIN_GELU : q->gelu < 0 ? DDP__PLAIN_GELU_GRAD : q->sums ? DDP__PLAIN_SUMS : 0;
}

/* Queues the product with the algorithm in use. */
static cublasStatus_t ddp__cuda_product_queue(ddp__cuda *dev, const ddp__cuda_product_plan *p,
                                              const ddp__cuda_product *q)
{
    const float one = 1, add = q->add ? 1.0f : 0.0f;
    const cublasLtMatmulHeuristicResult_t *a = &p->algorithm[p->at];

    ddp__cuda_before(dev, !p->ran);
    return cublasLtMatmul(dev->blas_lt, p->product, &one, q->b, p->a, q->a, p->b, &add, q->c, p->c, q->c,
                          p->c, &a->algo, dev->workspace, a->workspaceSize, dev->stream);
}

/* Queues the product on the device's stream. A failure is recorded in the device, and later calls do not
 * compute. Returns 0 without queueing anything if the library does not support the product with gelu or
 * sums. It may reject an algorithm that it has proposed: a product without gelu and sums then tries the next
 * one. */
static DDP__UNUSED int ddp__cuda_multiply(ddp__cuda *dev, const ddp__cuda_product *q)
{
    ddp__cuda_product_plan *p;
    cublasStatus_t s;

    if (ddp__atomic_load(&dev->failed)) return 1;
    if (dev->forms & ddp__cuda_epilogue_bit(q)) return 0;
    p = ddp__cuda_product_plan_of(dev, q);
    if (p && p->none) return 0;
    if (!p || ddp__cuda_product_point(dev, p, q)) return 1;
    s = ddp__cuda_product_queue(dev, p, q);
    while (s != CUBLAS_STATUS_SUCCESS && !ddp__cuda_product_is_fused(p) && p->at + 1 < p->algorithms) {
        (void)cudaGetLastError();
        p->at++;
        s = ddp__cuda_product_queue(dev, p, q);
    }
    p->ran = s == CUBLAS_STATUS_SUCCESS;
    if (p->ran) return 1;
    if (!ddp__cuda_product_is_fused(p)) return ddp__blas_note(dev, s, "cublasLtMatmul");
    (void)cudaGetLastError();
    p->none = 1;
    if (dev->rejected++ == 0)
        ddp__cuda_say(
            dev,
            "GPU %d: cuBLASLt rejected its own algorithm for a product of %ld x %ld by %ld x %ld with "
            "epilogue %d (%s); such products run unfused",
            dev->device, q->shape.m, q->shape.k, q->shape.k, q->shape.n, p->key.epilogue,
            cublasGetStatusString(s));
    return 0;
}

/* ==== cuda/linear.cuh ==== [cuda] */
/* linear, linear_no_bias, linear_tied and 1 x 1 convolutions: products of cuBLASLt. */

/* Elements of a row, or channels of a pixel of an image. */
static long ddp__linear_row(const ddp_shape *s) { return s->dim[s->dims == 4 ? 1 : s->dims - 1]; }

/* x (m, k), weight (n, k), y (m, n). */
static ddp__cuda_product ddp__cuda_linear_product(const ddp_op_call *c)
{
    const long n = ddp__linear_row(&c->spec->out), k = ddp__linear_row(&c->spec->in[0]);
    ddp__cuda_product p = ddp__cuda_product_of(ddp_shape_count(&c->spec->out) / n, n, k, c->in[0], 0,
                                               c->param[0], 1, c->out, ((ddp__cuda *)c->pool)->half);
    p.bias = c->param[1];
    return p;
}

static void ddp__cuda_linear_forward(const ddp_op_call *c)
{
    const ddp__cuda_product p = ddp__cuda_linear_product(c);
    (void)ddp__cuda_multiply((ddp__cuda *)c->pool, &p);
}

/* dW += dy^T x in float32. db += column sums of dy, computed by the product of dW if cuBLASLt supports it. dx
 * = or += dy W. */
static void ddp__cuda_linear_backward(const ddp_op_call *c)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    ddp__cuda_product p = ddp__cuda_linear_product(c);
    const long m = p.shape.m, n = p.shape.n, k = p.shape.k;
    int summed = 0;

    if (c->grad_param[0]) {
        p = ddp__cuda_product_of(n, k, m, c->grad_out, 1, c->in[0], 0, c->grad_param[0], dev->half);
        p.shape.half_out = 0;
        p.add = 1;
        p.sums = c->grad_param[1] ? dev->scratch : NULL;
        summed = p.sums && ddp__cuda_multiply(dev, &p);
        p.sums = NULL;
        if (!summed) (void)ddp__cuda_multiply(dev, &p);
    }
    if (summed)
        ddp__cuda_columns_add(dev, c->grad_param[1], NULL, (const float *)dev->scratch, n, 1);
    else if (c->grad_param[1] && dev->half)
        ddp__cuda_columns<ddp__bf16, DDP__COLUMN_PLAIN>(dev, NULL, c->grad_param[1], c->grad_out, NULL, NULL,
                                                        m, n);
    else if (c->grad_param[1])
        ddp__cuda_columns<float, DDP__COLUMN_PLAIN>(dev, NULL, c->grad_param[1], c->grad_out, NULL, NULL, m,
                                                    n);
    if (!c->grad_in[0]) return;
    p = ddp__cuda_product_of(m, k, n, c->grad_out, 0, c->param[0], 0, c->grad_in[0], dev->half);
    p.add = c->add_in[0];
    p.before = (void *)c->inner;
    p.gelu = c->inner ? -1 : 0;
    if ((!c->inner || k % 8 == 0) && ddp__cuda_multiply(dev, &p)) return;
    p.gelu = 0;
    p.before = NULL;
    (void)ddp__cuda_multiply(dev, &p);
    if (dev->half)
        ddp__cuda_map_as<ddp__bf16>(dev, p.c, c->inner, p.c, m * k, 0, ddp__map_gelu_grad());
    else
        ddp__cuda_map_as<float>(dev, p.c, c->inner, p.c, m * k, 0, ddp__map_gelu_grad());
}

static size_t ddp__cuda_linear_scratch(const ddp_op_spec *s, int)
{
    const long n = ddp__linear_row(&s->out);
    return ddp__column_scratch(ddp_shape_count(&s->out) / n, n, 1);
}

/* ==== cuda/conv.cuh ==== [cuda] */
/* Convolution on the GPU, with the semantics of ops/conv.c. Most shapes use a product of conv_product.cuh,
 * and 1x1 windows use a product of cuBLASLt. Groups with one input channel use direct loops over windows
 * instead. Images are channels-last. */

/* ---- groups with one input channel and one or more output channels: three direct loops over windows ---- */

enum { DDP__DEPTHWISE_THREADS = 256 };

static int ddp__cuda_depthwise(const ddp__cuda_conv &v) { return v.planes == 1 && v.groups > 1; }

/* Weights: [groups x m][kh][kw]. One thread per output. */
template <typename T> __global__ void ddp__k_depthwise_forward(ddp__cuda_conv v, const T *w)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, channels = (long)v.groups * v.m,
               channel = i % channels;
    const ddp__conv_place from = ddp__conv_position(v, i / channels);
    float sum = 0;

    if (i >= v.pixels * channels) return;
    w += channel * v.kh * v.kw;
    for (int a = 0; a < v.kh; a++)
        for (int b = 0; b < v.kw; b++)
            if (ddp__conv_sees(v, from, a, b))
                sum += ddp__to_float(w[a * v.kw + b]) *
                       ddp__to_float(
                           ((const T *)v.x)[from.x + ((long)a * v.w + b) * v.channels + channel / v.m]);
    if (v.bias) sum += ddp__to_float(((const T *)v.bias)[channel]);
    ((T *)v.y)[i] = ddp__from_float<T>(sum);
}

/* dx at one row and column: the sum over all windows that contain it. One thread per input. y is dy. */
template <typename T> __global__ void ddp__k_depthwise_input(ddp__cuda_conv v, T *dx, const T *w, int add)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, at = i / v.groups, group = i % v.groups;
    const long plane = (long)v.h * v.w, out = (long)v.rows * v.cols, channels = (long)v.groups * v.m;
    const int r = (int)(at % plane) / v.w - v.top, c = (int)(at % plane) % v.w - v.left;
    const T *y = (const T *)v.y + at / plane * out * channels + group * v.m;
    float sum = 0;

    if (i >= v.pixels / out * plane * v.groups) return;
    w += group * v.m * v.kh * v.kw;
    for (int o = 0; o < v.m; o++, y++, w += v.kh * v.kw)
        for (int a = r % v.step; a < v.kh && a <= r; a += v.step) {
            const int row = (r - a) / v.step;
            if (row >= v.rows) continue;
            for (int b = c % v.step; b < v.kw && b <= c; b += v.step) {
                const int col = (c - b) / v.step;
                if (col >= v.cols) continue;
                sum +=
                    ddp__to_float(w[a * v.kw + b]) * ddp__to_float(y[((long)row * v.cols + col) * channels]);
            }
        }
    if (add) sum += ddp__to_float(dx[i]);
    dx[i] = ddp__from_float<T>(sum);
}

/* part[part][(output channel, tap)]: each block computes the sums of its channels tap by tap over one part of
 * the outputs. c describes the channels. */
template <typename T> __global__ void ddp__k_depthwise_weights(ddp__cuda_conv v, float *part, ddp__channels c)
{
    __shared__ double all[DDP__CHANNEL_THREADS];
    const int taps = v.kh * v.kw;
    const T *x = (const T *)v.x, *y = (const T *)v.y;

    for (int tap = 0; tap < taps; tap++) {
        const int a = tap / v.kw, b = tap % v.kw;
        ddp__channel_walk walk(c, 1);
        float mine = 0;

        for (; walk.left > 0; walk.next()) {
            const ddp__conv_place from = ddp__conv_position(v, walk.pixel);
            if (ddp__conv_sees(v, from, a, b))
                mine += ddp__to_float(y[walk.at]) *
                        ddp__to_float(x[from.x + ((long)a * v.w + b) * v.channels + walk.channel / v.m]);
        }
        const double sum = ddp__rows_sum((double)mine, all, walk.lanes);
        if ((int)threadIdx.x < walk.lanes && walk.channel < c.channels)
            part[(blockIdx.y * c.channels + walk.channel) * taps + tap] = (float)sum;
    }
}

template <typename T>
static void ddp__cuda_depthwise_forward(ddp__cuda *dev, const ddp_op_call *call, const ddp__cuda_conv &v)
{
    DDP__EACH((ddp__k_depthwise_forward<T>), v.pixels * v.groups * v.m, DDP__DEPTHWISE_THREADS, v,
              (const T *)call->param[0]);
}

template <typename T>
static void ddp__cuda_depthwise_backward(ddp__cuda *dev, const ddp_op_call *call, const ddp__cuda_conv &v)
{
    const ddp__channels c = ddp__channels_of(&call->spec->out);
    const long weights = ddp_shape_count(&call->spec->param[0].shape);
    float *part = (float *)dev->scratch;

    if (call->grad_param[0]) {
        DDP__RUN(
            (ddp__k_depthwise_weights<T>),
            dim3((unsigned)ddp__blocks(c.channels, ddp__channel_lanes(c.channels, 1)), (unsigned)c.parts),
            DDP__CHANNEL_THREADS, v, part, c);
        ddp__conv_add_parts(dev, call->grad_param[0], weights, c.parts);
    }
    if (call->grad_in[0])
        DDP__EACH((ddp__k_depthwise_input<T>), ddp_shape_count(&call->spec->in[0]), DDP__DEPTHWISE_THREADS, v,
                  (T *)call->grad_in[0], (const T *)call->param[0], call->add_in[0]);
}

/* ---- products ---- */

enum {
    DDP__CONV_BUSY = 264, /* blocks that fill a large GPU twice */
    DDP__CONV_PART = 512  /* minimum number of positions that a block sums for the gradient of a weight */
};

/* Converts the product to the integer types of the kernels and to channels-last strides. The caller sets the
 * arrays and the packed weights. */
static ddp__cuda_conv ddp__cuda_conv_of(const ddp__conv_product &g)
{
    const ddp__conv_view &w = g.view;
    const long y_channels = g.m * g.groups;
    ddp__cuda_conv v = DDP__ZEROS;

    v.image = w.image;
    v.channels = (int)(w.planes * g.groups);
    v.planes = (int)w.planes;
    v.h = (int)w.h;
    v.w = (int)w.w;
    v.rows = (int)w.rows;
    v.cols = (int)w.cols;
    v.step = (int)w.step;
    v.top = (int)w.top;
    v.left = (int)w.left;
    v.kh = (int)w.kh;
    v.kw = (int)w.kw;
    v.m = (int)g.m;
    v.groups = (int)g.groups;
    v.pixels = w.images * w.rows * w.cols;
    v.y_image = g.y_image;
    v.y_row = g.y_row * y_channels;
    v.y_col = g.y_col * y_channels;
    v.add = g.add;
    return v;
}

/* 1 if the window is one element and the stride skips no element, so the convolution is a linear operator on
 * each position. cuBLASLt is slower for other sizes, or does not support them. */
static int ddp__cuda_conv_point(const ddp_op_spec *s)
{
    return s->arg[1] == 1 && s->arg[2] == 1 && s->arg[3] == 0 && s->arg[4] == 1 && s->in[0].dim[1] % 8 == 0 &&
           s->out.dim[1] % 8 == 0;
}

/* Uses tall tiles if they fill the GPU. The sums are the same for both tile heights. */
static int ddp__conv_tall(int m, long columns, int groups)
{
    return m > 64 &&
           ddp__blocks(m, 128) * ddp__blocks(columns, DDP__CONV_COLUMNS) * groups >= DDP__CONV_BUSY / 2;
}

/* Pads the packed weights to whole tiles of that depth. */
static void ddp__conv_pad(ddp__cuda_conv *v, int depth)
{
    v->m_pad = (v->m + 127) / 128 * 128;
    v->k_pad = (int)ddp__blocks((long)v->planes * v->kh * v->kw, depth) * depth;
}

static size_t ddp__larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t ddp__conv_packed_bytes(ddp__cuda_conv v, int half)
{
    ddp__conv_pad(&v, half ? 32 : 16);
    return (size_t)v.groups * (size_t)v.m_pad * (size_t)v.k_pad * (half ? 2 : 4) +
           (size_t)v.k_pad * sizeof(ddp__conv_reach);
}

/* Number of parts of the positions in the gradient of the weights. It depends only on the shape, so that the
 * sums are the same on every GPU. */
static int ddp__conv_splits(const ddp__cuda_conv &v)
{
    const long tiles =
        ddp__blocks(v.m, 128) * v.groups * ddp__blocks((long)v.planes * v.kh * v.kw, DDP__CONV_COLUMNS);
    const long most = ddp__blocks(v.pixels, DDP__CONV_PART), wish = ddp__blocks(DDP__CONV_BUSY, tiles);
    return (int)(wish < most ? wish : most);
}

static size_t ddp__cuda_conv_scratch(const ddp_op_spec *s, int half)
{
    const ddp__channels c = ddp__channels_of(&s->out);
    ddp__conv_product g;
    ddp__cuda_conv v;
    const size_t weights = (size_t)ddp_shape_count(&s->param[0].shape) * sizeof(float);
    size_t most = ddp__cuda_linear_scratch(s, half); /* includes the bias */

    ddp__conv_product_of(s, &g);
    v = ddp__cuda_conv_of(g);
    if (ddp__cuda_conv_point(s)) return most;
    if (ddp__cuda_depthwise(v)) return ddp__larger(most, weights * (size_t)c.parts);
    most = ddp__larger(most, weights * (size_t)ddp__conv_splits(v));
    most = ddp__larger(most, ddp__conv_packed_bytes(v, half));
    v.m = v.planes; /* gradient of the input. With a stride, one phase at a time */
    v.planes = (int)(s->out.dim[1] / v.groups);
    return ddp__larger(most, ddp__conv_packed_bytes(v, half));
}

/* ---- launches, for each kind of product ---- */

template <typename M> static void ddp__conv_run_images(ddp__cuda *dev, const ddp__cuda_conv &v)
{
    const dim3 grid((unsigned)(ddp__blocks(v.m, M::tall) * ddp__blocks(v.pixels, DDP__CONV_COLUMNS)),
                    (unsigned)v.groups);

    if (v.planes % M::depth || !ddp__aligned(v.x))
        DDP__LAUNCH((ddp__k_conv_images<M, false>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v);
    else
        DDP__LAUNCH((ddp__k_conv_images<M, true>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v);
}

/* The product g, converted to v, with the weights at w. */
template <template <int, bool> class M>
static void ddp__conv_images(ddp__cuda *dev, ddp__cuda_conv v, const ddp__conv_product &g, const void *w)
{
    typedef M<64, false> Short;
    const ddp__conv_pack s = {w, g.w_group, g.w_row, g.w_plane, g.w_kh, g.w_kw};
    typename Short::tile *packed = (typename Short::tile *)dev->scratch;
    ddp__conv_reach *taps;
    long n;

    ddp__conv_pad(&v, Short::depth);
    n = (long)v.groups * v.m_pad * v.k_pad;
    taps = (ddp__conv_reach *)(void *)(packed + n);
    v.weight = packed;
    v.taps = taps;
    n = ddp__blocks(n, 256);
    DDP__RUN((ddp__k_conv_pack<Short>), (unsigned)(n < 4096 ? n : 4096), 256, packed, taps, v, s);
    if (dev->forms & DDP__TALL_CONV || ddp__conv_tall(v.m, v.pixels, v.groups))
        ddp__conv_run_images<M<128, false>>(dev, v);
    else
        ddp__conv_run_images<Short>(dev, v);
}

template <typename M> static void ddp__conv_run_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    const int columns = v.planes * v.kh * v.kw, parts = ddp__conv_splits(v),
              width = ddp__vec<typename M::tile>::width;
    const dim3 grid((unsigned)(ddp__blocks(v.m, M::tall) * ddp__blocks(columns, DDP__CONV_COLUMNS)),
                    (unsigned)parts, (unsigned)v.groups);
    const long part = ddp__blocks(v.pixels, (long)parts * M::depth) * M::depth;
    float *to = parts > 1 ? (float *)dev->scratch : grad;

    if (v.m % width || v.planes % width || !ddp__aligned(v.x, v.y))
        DDP__LAUNCH((ddp__k_conv_weights<M, false>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v, to,
                    part);
    else
        DDP__LAUNCH((ddp__k_conv_weights<M, true>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v, to,
                    part);
    if (parts > 1) ddp__conv_add_parts(dev, grad, (long)v.groups * v.m * columns, parts);
}

template <template <int, bool> class M>
static void ddp__conv_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    if (v.m > 64)
        ddp__conv_run_weights<M<128, true>>(dev, v, grad);
    else
        ddp__conv_run_weights<M<64, true>>(dev, v, grad);
}

/* Calls f(dev, args...) with the product type for the number mode and the form of the device. */
#define DDP__CONV_RUN(f, dev, ...)                                                                        \
    ((dev)->forms & DDP__PLAIN_CONV                                                                       \
         ? (dev)->half ? f<ddp__conv_plain_bf16>(dev, __VA_ARGS__) : f<ddp__conv_plain>(dev, __VA_ARGS__) \
     : (dev)->half ? f<ddp__conv_bf16>(dev, __VA_ARGS__)                                                  \
     : (dev)->tf32 ? f<ddp__conv_tf32>(dev, __VA_ARGS__)                                                  \
                   : f<ddp__conv_plain>(dev, __VA_ARGS__))

/* ---- the operator ---- */

template <typename T> static void ddp__cuda_conv_forward(ddp__cuda *dev, const ddp_op_call *call)
{
    ddp__conv_product g;
    ddp__cuda_conv v;

    if (ddp__cuda_conv_point(call->spec)) {
        ddp__cuda_linear_forward(call);
        return;
    }
    ddp__conv_product_of(call->spec, &g);
    v = ddp__cuda_conv_of(g);
    v.x = call->in[0];
    v.y = call->out;
    v.bias = call->param[1];
    if (ddp__cuda_depthwise(v))
        ddp__cuda_depthwise_forward<T>(dev, call, v);
    else
        DDP__CONV_RUN(ddp__conv_images, dev, v, g, call->param[0]);
}

static void ddp__cuda_conv_input_grad(ddp__cuda *dev, const ddp_op_call *call,
                                      const ddp__conv_product &forward)
{
    const ddp__conv_view &in = forward.view;
    const long bytes = dev->half ? 2 : 4, channels = in.planes * forward.groups;
    ddp__conv_product g;
    ddp__cuda_conv v;
    long w, y;

    if (in.kh < in.step && !call->add_in[0]) /* no window contains some of the elements */
        (void)DDP__CUDA(dev,
                        cudaMemsetAsync(call->grad_in[0], 0,
                                        (size_t)(ddp_shape_count(&call->spec->in[0]) * bytes), dev->stream));
    for (long r = 0; r < in.step && r < in.h; r++)
        for (long c = 0; c < in.step && c < in.w; c++) {
            if (!ddp__conv_input_phase(&forward, r, c, &g, &w, &y)) continue;
            g.add = call->add_in[0];
            v = ddp__cuda_conv_of(g);
            v.x = call->grad_out;
            v.y = (unsigned char *)call->grad_in[0] + y * channels * bytes;
            DDP__CONV_RUN(ddp__conv_images, dev, v, g, (const unsigned char *)call->param[0] + w * bytes);
        }
}

template <typename T> static void ddp__cuda_conv_backward(ddp__cuda *dev, const ddp_op_call *call)
{
    ddp__conv_product g;
    ddp__cuda_conv v;

    if (ddp__cuda_conv_point(call->spec)) {
        ddp__cuda_linear_backward(call);
        return;
    }
    ddp__conv_product_of(call->spec, &g);
    v = ddp__cuda_conv_of(g);
    v.x = call->in[0];
    v.y = (void *)call->grad_out;
    if (call->grad_param[1])
        ddp__cuda_columns<T, DDP__COLUMN_PLAIN>(dev, NULL, call->grad_param[1], call->grad_out, NULL, NULL,
                                                v.pixels, (long)v.groups * v.m);
    if (ddp__cuda_depthwise(v)) {
        ddp__cuda_depthwise_backward<T>(dev, call, v);
        return;
    }
    if (call->grad_param[0]) DDP__CONV_RUN(ddp__conv_weights, dev, v, (float *)call->grad_param[0]);
    if (call->grad_in[0]) ddp__cuda_conv_input_grad(dev, call, g);
}

DDP__FAMILY(ddp__cuda_conv_ops, DDP__ENTRY("conv2d", ddp__cuda_conv, ddp__cuda_conv_scratch))

/* ==== cuda/embedding.cuh ==== [cuda] */
/* embedding, position and rope: operators that depend on tokens and their positions. The gradient of the
 * token table needs no atomics. A radix sort orders the rows by token, and rows with the same token keep
 * their order. Each block adds one segment of the sorted rows. A token that spans several segments gets their
 * sums in order. */

enum {
    DDP__EMBEDDING_THREADS = 128,
    DDP__EMBEDDING_DIGITS = 256, /* a digit of a token is 8 bits */
    DDP__EMBEDDING_TILE = 1024,  /* rows that a block sorts */
    DDP__EMBEDDING_SEGMENT = 64,
    DDP__POSITION_THREADS = 256
};

/* A token outside 0..v-1 gives a row of NAN. */
template <typename T>
static __global__ void ddp__k_embedding(T *out, const int *token, const T *table, long rows, long v, long n,
                                        int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = ddp__pieces<T>(n), i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long row = i / pieces, at = i % pieces * width;
    float x[width];

    if (row >= rows) return;
    if (token[row] >= 0 && token[row] < v)
        ddp__piece_load(x, table + token[row] * n, at, n, wide);
    else
        for (int k = 0; k < width; k++) x[k] = NAN;
    ddp__piece_store(out + row * n, x, at, n, wide, 0);
}

/* ---- the sort, from the lowest digit of the tokens to the highest. A block has a tile of rows, and its
 * thread d handles the rows whose digit is d, in order. The order of the blocks therefore has no effect.
 * ---- */

struct ddp__embedding_tile {
    unsigned char digit[DDP__EMBEDDING_TILE];
    int row[DDP__EMBEDDING_TILE];

    /* Loads the tile and returns its number of rows. from: the rows in the order of the lower digits. NULL
     * means that this is the first digit. Tokens outside 0..v-1 sort as v. All threads of the block must
     * call it. */
    __device__ int load(const int *from, const int *token, long rows, long v, int shift)
    {
        const long first = (long)blockIdx.x * DDP__EMBEDDING_TILE, left = rows - first;
        const int count = left < DDP__EMBEDDING_TILE ? (int)left : (int)DDP__EMBEDDING_TILE;

        for (int i = (int)threadIdx.x; i < count; i += DDP__EMBEDDING_DIGITS) {
            const int mine = from ? from[first + i] : (int)first + i;
            const long key = token[mine] >= 0 && token[mine] < v ? token[mine] : v;
            row[i] = mine;
            digit[i] = (unsigned char)(key >> shift);
        }
        __syncthreads();
        return count;
    }
};

/* count[block][d]: the number of rows of the block's tile with digit d. */
static __global__ void __launch_bounds__(DDP__EMBEDDING_DIGITS)
    ddp__k_embedding_count(int *count, const int *from, const int *token, long rows, long v, int shift)
{
    __shared__ ddp__embedding_tile tile;
    const int n = tile.load(from, token, rows, v, shift);
    int sum = 0;

    for (int i = 0; i < n; i++) sum += tile.digit[i] == threadIdx.x;
    count[blockIdx.x * DDP__EMBEDDING_DIGITS + threadIdx.x] = sum;
}

/* to: the rows in the order of this digit and the lower ones. */
static __global__ void __launch_bounds__(DDP__EMBEDDING_DIGITS)
    ddp__k_embedding_order(int *to, const int *count, const int *from, const int *token, long rows, long v,
                           int shift)
{
    __shared__ ddp__embedding_tile tile;
    __shared__ int total[DDP__EMBEDDING_DIGITS];
    int all = 0, place = 0, n;

    DDP__UNROLL_4 for (unsigned b = 0; b < gridDim.x; b++)
    {
        const int these = count[b * DDP__EMBEDDING_DIGITS + threadIdx.x];
        all += these;
        if (b < blockIdx.x) place += these; /* rows of earlier tiles come first */
    }
    total[threadIdx.x] = all;
    n = tile.load(from, token, rows, v, shift); /* also makes total visible */
    for (unsigned d = 0; d < threadIdx.x; d++) place += total[d];
    for (int i = 0; i < n; i++)
        if (tile.digit[i] == threadIdx.x) to[place++] = tile.row[i];
}

/* One block per (segment of places, columns): adds the rows of each of its tokens, in order. If a token is
 * only in this segment, the sum is added to the table. If the token continues from the previous segment, the
 * sum goes to part[2 segment]. If it continues into the next segment, the sum goes to part[2 segment + 1]. */
template <typename T>
static __global__ void __launch_bounds__(DDP__EMBEDDING_THREADS)
    ddp__k_embedding_grad(float *table, float *part, const T *dy, const int *token, const int *order,
                          long rows, long v, long n, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.y * DDP__EMBEDDING_THREADS + threadIdx.x) * width,
               first = (long)blockIdx.x * DDP__EMBEDDING_SEGMENT;
    const long last = first + DDP__EMBEDDING_SEGMENT < rows ? first + DDP__EMBEDDING_SEGMENT : rows;
    float sum[width], x[width];

    if (at >= n) return;
    for (long p = first; p < last;) {
        const int mine = token[order[p]], before = p == first && p > 0 && token[order[p - 1]] == mine;
        for (int k = 0; k < width; k++) sum[k] = 0;
        DDP__UNROLL_4 for (; p < last && token[order[p]] == mine; p++)
        {
            ddp__piece_load(x, dy + order[p] * n, at, n, wide);
            for (int k = 0; k < width; k++) sum[k] += x[k];
        }
        if (mine < 0 || mine >= v) continue;
        const int apart = before || (p == last && p < rows && token[order[p]] == mine);
        float *to = apart ? part + (2 * (long)blockIdx.x + !before) * n : table + mine * n;
        for (int k = 0; k < width; k++)
            if (at + k < n) to[at + k] = apart ? sum[k] : to[at + k] + sum[k];
    }
}

/* One block per (segment, columns): for a token that begins in this segment and continues in the next ones,
 * adds the sums of all its segments to the table, in order. */
static __global__ void ddp__k_embedding_join(float *table, const float *part, const int *token,
                                             const int *order, long rows, long v, long n)
{
    const long at = (long)blockIdx.y * DDP__EMBEDDING_THREADS + threadIdx.x,
               first = (long)blockIdx.x * DDP__EMBEDDING_SEGMENT;
    const long next = first + DDP__EMBEDDING_SEGMENT;
    const int mine = next < rows ? token[order[next]] : -1;
    float sum;

    if (at >= n || mine < 0 || mine >= v || token[order[next - 1]] != mine) return;
    if (first > 0 && token[order[first]] == mine && token[order[first - 1]] == mine)
        return; /* the token begins in an earlier segment */
    sum = part[(2 * (long)blockIdx.x + 1) * n + at];
    for (long s = blockIdx.x + 1;
         s * DDP__EMBEDDING_SEGMENT < rows && token[order[s * DDP__EMBEDDING_SEGMENT]] == mine; s++)
        sum += part[2 * s * n + at];
    table[mine * n + at] += sum;
}

template <typename T> static void ddp__cuda_embedding_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const long rows = ddp_shape_rows(&c->spec->out);
    const long v = c->spec->param[0].shape.dim[0], n = c->spec->param[0].shape.dim[1];
    DDP__EACH((ddp__k_embedding<T>), rows * ddp__pieces<T>(n), DDP__EMBEDDING_THREADS, (T *)c->out,
              (const int *)c->in[0], (const T *)c->param[0], rows, v, n,
              ddp__wide<T>(n, c->out, c->param[0]));
}

/* order[0..rows-1]: the rows, sorted by token. spare: [rows]. count: [tiles of rows][digits]. */
static void ddp__cuda_embedding_order(ddp__cuda *dev, int *order, int *spare, int *count, const int *token,
                                      long rows, long v)
{
    const unsigned tiles = (unsigned)ddp__blocks(rows, DDP__EMBEDDING_TILE);
    const int *from = NULL;
    int digits = 1;

    while (v >> 8 * digits) digits++;
    for (int i = 0; i < digits; i++) {
        int *to = (digits - i) % 2 ? order : spare; /* the last digit's result is in order */
        DDP__RUN(ddp__k_embedding_count, tiles, DDP__EMBEDDING_DIGITS, count, from, token, rows, v, 8 * i);
        DDP__RUN(ddp__k_embedding_order, tiles, DDP__EMBEDDING_DIGITS, to, count, from, token, rows, v,
                 8 * i);
        from = to;
    }
}

template <typename T> static void ddp__cuda_embedding_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const long rows = ddp_shape_rows(&c->spec->out);
    const long v = c->spec->param[0].shape.dim[0], n = c->spec->param[0].shape.dim[1];
    const unsigned segments = (unsigned)ddp__blocks(rows, DDP__EMBEDDING_SEGMENT);
    const dim3 blocks(segments, (unsigned)ddp__blocks(ddp__pieces<T>(n), DDP__EMBEDDING_THREADS));
    const dim3 joins(segments, (unsigned)ddp__blocks(n, DDP__EMBEDDING_THREADS));
    int *order = (int *)dev->scratch, *spare = order + rows, *count = spare + rows;
    float *part = (float *)(count + ddp__blocks(rows, DDP__EMBEDDING_TILE) * DDP__EMBEDDING_DIGITS);

    if (!c->grad_param[0]) return;
    ddp__cuda_embedding_order(dev, order, spare, count, (const int *)c->in[0], rows, v);
    DDP__RUN((ddp__k_embedding_grad<T>), blocks, DDP__EMBEDDING_THREADS, (float *)c->grad_param[0], part,
             (const T *)c->grad_out, (const int *)c->in[0], order, rows, v, n, ddp__wide<T>(n, c->grad_out));
    DDP__RUN(ddp__k_embedding_join, joins, DDP__EMBEDDING_THREADS, (float *)c->grad_param[0], part,
             (const int *)c->in[0], order, rows, v, n);
}

static size_t ddp__cuda_embedding_scratch(const ddp_op_spec *s, int)
{
    const size_t rows = (size_t)ddp_shape_rows(&s->out),
                 segments = (rows + DDP__EMBEDDING_SEGMENT - 1) / DDP__EMBEDDING_SEGMENT,
                 tiles = (size_t)ddp__blocks((long)rows, DDP__EMBEDDING_TILE);
    return (2 * rows + tiles * DDP__EMBEDDING_DIGITS) * sizeof(int) +
           2 * segments * (size_t)s->param[0].shape.dim[1] * sizeof(float);
}

/* ---- position: each thread owns a piece of the n elements of a sequence and adds the sequences in order
 * ---- */

template <typename T>
static __global__ void ddp__k_position(T *out, const T *in, const T *table, long batch, long n, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width, b = blockIdx.y;
    float x[width], y[width];

    if (at >= n || b >= batch) return;
    ddp__piece_load(y, table, at, n, wide);
    ddp__piece_load(x, in + b * n, at, n, wide);
    for (int k = 0; k < width; k++) x[k] += y[k];
    ddp__piece_store(out + b * n, x, at, n, wide, 0);
}

/* table and dx may be NULL, and dx may be dy. */
template <typename T>
static __global__ void ddp__k_position_grad(float *table, T *dx, const T *dy, long batch, long n, int add,
                                            int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    float sum[width], d[width];

    if (at >= n) return;
    for (int k = 0; k < width; k++) sum[k] = 0;
    DDP__UNROLL_4 for (long b = 0; b < batch; b++)
    {
        ddp__piece_load(d, dy + b * n, at, n, wide);
        for (int k = 0; k < width; k++) sum[k] += d[k];
        if (dx && (add || dx != dy)) ddp__piece_store(dx + b * n, d, at, n, wide, add);
    }
    for (int k = 0; table && k < width; k++)
        if (at + k < n) table[at + k] += sum[k];
}

template <typename T> static void ddp__cuda_position_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const dim3 blocks((unsigned)ddp__blocks(ddp__pieces<T>(n), DDP__POSITION_THREADS), (unsigned)s->dim[0]);
    DDP__RUN((ddp__k_position<T>), blocks, DDP__POSITION_THREADS, (T *)c->out, (const T *)c->in[0],
             (const T *)c->param[0], s->dim[0], n, ddp__wide<T>(n, c->out, c->in[0], c->param[0]));
}

template <typename T> static void ddp__cuda_position_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long n = s->dim[1] * s->dim[2];
    DDP__EACH((ddp__k_position_grad<T>), ddp__pieces<T>(n), DDP__POSITION_THREADS, (float *)c->grad_param[0],
              (T *)c->grad_in[0], (const T *)c->grad_out, s->dim[0], n, c->add_in[0],
              ddp__wide<T>(n, c->grad_in[0], c->grad_out));
}

/* ---- rope: a block computes the angles of a position once, in double as on the CPU, and uses them for
 * several sequences and all heads ---- */

enum { DDP__ROPE_THREADS = 256, DDP__ROPE_BATCH = 8 };

/* One block per (position, group of sequences). to = or += from, rotated by direction times the angles.
 * Columns from `turned` on are copied. to may be from. */
template <typename T>
static __global__ void __launch_bounds__(DDP__ROPE_THREADS)
    ddp__k_rope(T *to, const T *from, long batch, long time, long row, long turned, int d, double theta,
                int direction, int add, int wide)
{
    const int step = wide ? ddp__vec<T>::width : 1;
    const long t = blockIdx.x, first = (long)blockIdx.y * DDP__ROPE_BATCH;
    const long last = first + DDP__ROPE_BATCH < batch ? first + DDP__ROPE_BATCH : batch;
    const int half = d / 2;
    __shared__ float cosine[DDP__ROPE_PAIRS], sine[DDP__ROPE_PAIRS];
    float u[ddp__vec<T>::width], v[ddp__vec<T>::width];

    for (int i = (int)threadIdx.x; i < half; i += DDP__ROPE_THREADS) {
        const double angle = direction * (double)t * pow(theta, -2.0 * (double)i / (double)d);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    __syncthreads();
    for (long b = first; b < last; b++) {
        const T *x = from + (b * time + t) * row;
        T *y = to + (b * time + t) * row;
        for (long p = (long)threadIdx.x * step; p < turned / 2; p += DDP__ROPE_THREADS * step) {
            const int k = (int)(p % half);
            const long at = p / half * d + k;
            ddp__piece_load(u, x, at, at + step, wide);
            ddp__piece_load(v, x, at + half, at + half + step, wide);
            for (int i = 0; i < step; i++) {
                const float c = cosine[k + i], s = sine[k + i], old = u[i];
                u[i] = old * c - v[i] * s;
                v[i] = v[i] * c + old * s;
            }
            ddp__piece_store(y, u, at, at + step, wide, add);
            ddp__piece_store(y, v, at + half, at + half + step, wide, add);
        }
        for (long p = turned + (long)threadIdx.x * step; p < row && (add || y != x);
             p += DDP__ROPE_THREADS * step) {
            ddp__piece_load(u, x, p, p + step, wide);
            ddp__piece_store(y, u, p, p + step, wide, add);
        }
    }
}

template <typename T>
static void ddp__cuda_rope_turn(ddp__cuda *dev, const ddp_op_spec *s, void *to, const void *from,
                                int direction, int add)
{
    const ddp__heads z = ddp__heads_of(s);
    const dim3 blocks((unsigned)z.t, (unsigned)ddp__blocks(z.b, DDP__ROPE_BATCH));
    DDP__RUN((ddp__k_rope<T>), blocks, DDP__ROPE_THREADS, (T *)to, (const T *)from, z.b, z.t, z.row,
             z.row - z.kv_heads * z.d, z.d, s->arg[2] > 0 ? s->arg[2] : 10000.0, direction, add,
             ddp__wide<T>(z.d / 2, to, from));
}

template <typename T> static void ddp__cuda_rope_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_rope_turn<T>(dev, c->spec, c->out, c->in[0], 1, 0);
}

template <typename T> static void ddp__cuda_rope_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_rope_turn<T>(dev, c->spec, c->grad_in[0], c->grad_out, -1, c->add_in[0]);
}

/* ==== cuda/loss.cuh ==== [cuda] */
/* cross_entropy: one block per row reads the logits once in forward and once in backward, where the gradient
 * may overwrite them. Probabilities are never stored. linear_cross_entropy: one kernel does both, and the
 * second read comes from the cache. */

enum {
    DDP__LOSS_THREADS = 256,
    DDP__HEAD_THREADS = 1024, /* more threads per row, so fewer rows at a time: the rows stay in the cache
                               * between the two reads */
    DDP__LOSS_SUM_THREADS = 1024,
    DDP__LOSS_PIECES = 4 /* loads in flight per thread */
};

/* Merges (max, sum of e^(x - max)) of two sets. Symmetric, so all lanes get bit-identical results. */
__device__ static __forceinline__ void ddp__loss_join(float *max, float *sum, float other_max,
                                                      float other_sum)
{
    const float top = fmaxf(*max, other_max);
    /* an empty set has max -inf, for which expf(*max - top) would be NAN */
    *sum = (*max == top ? *sum : *sum * expf(*max - top)) +
           (other_max == top ? other_sum : other_sum * expf(other_max - top));
    *max = top;
}

/* One block. dx = or += (softmax(x) - [j == mine]) by, from max and sum of the row. dx may be x. */
template <typename T, int THREADS>
__device__ static __forceinline__ void ddp__loss_row_grad(T *dx, const T *x, int mine, float max, float sum,
                                                          float by, long n, int add, int wide)
{
    const int width = ddp__vec<T>::width;
    float factor = by / sum, v[width];

    if (mine == -1)
        factor = 0;
    else if (mine < 0 || mine >= n)
        factor = NAN;
    if (mine == -1 && add) return;
    for (long j = (long)threadIdx.x * width; j < n; j += THREADS * width) {
        ddp__piece_load(v, x, j, n, wide);
        for (int i = 0; i < width; i++) {
            /* a row without a label may hold any values. Its gradient is 0. */
            v[i] = mine == -1 ? 0 : __expf(v[i] - max) * factor;
            if (j + i == mine) v[i] -= by;
        }
        ddp__piece_store(dx, v, j, n, wide, add);
    }
}

/* stat: receives max and sum of a row, or NULL. loss: receives the loss of a row: 0 if the label is -1, NAN
 * if it is out of range. by: the gradient of the row's loss, or NULL. If given, the gradient of the logits
 * overwrites the logits. */
template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    ddp__k_loss(float *stat, double *loss, T *logits, const int *label, const float *by, long n, int wide)
{
    const int width = ddp__vec<T>::width, pieces = DDP__LOSS_PIECES, mine = label[blockIdx.x];
    const long row = blockIdx.x;
    T *x = logits + row * n;
    __shared__ float shared[2][THREADS / 32];
    float v[pieces][width], max = -INFINITY, sum = 0;

    for (long j = (long)threadIdx.x * width; j < n; j += pieces * THREADS * width) {
        float top = max;
        DDP__UNROLL for (int p = 0; p < pieces; p++)
        {
            const long at = j + p * THREADS * width;
            ddp__piece_load(v[p], x, at, n, wide && at < n);
            DDP__UNROLL for (int i = 0; i < width; i++)
            {
                if (at + i >= n) v[p][i] = -INFINITY;
                top = fmaxf(top, v[p][i]);
            }
        }
        if (top != max) sum *= __expf(max - top);
        max = top;
        DDP__UNROLL for (int p = 0; p < pieces; p++)
            DDP__UNROLL for (int i = 0; i < width; i++) if (v[p][i] != -INFINITY) sum +=
            __expf(v[p][i] - max);
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other_max = __shfl_xor_sync(DDP__ALL_LANES, max, step);
        const float other_sum = __shfl_xor_sync(DDP__ALL_LANES, sum, step);
        ddp__loss_join(&max, &sum, other_max, other_sum);
    }
    if (threadIdx.x % 32 == 0) {
        shared[0][threadIdx.x / 32] = max;
        shared[1][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x && !by) return;
    max = shared[0][0];
    sum = shared[1][0];
    for (int i = 1; i < THREADS / 32; i++) ddp__loss_join(&max, &sum, shared[0][i], shared[1][i]);
    if (threadIdx.x == 0) {
        if (stat) {
            stat[2 * row] = max;
            stat[2 * row + 1] = sum;
        }
        loss[row] = mine == -1              ? 0
                    : mine < 0 || mine >= n ? (double)NAN
                                            : log((double)sum) + (double)max - (double)ddp__to_float(x[mine]);
    }
    if (!by) return;
    __syncthreads();
    ddp__loss_row_grad<T, THREADS>(x, x, mine, max, sum, *by, n, 0, wide);
}

/* One block. With losses, out = their mean over the labels that are not -1. Without losses, out = *grad /
 * number of those labels. grad NULL means 1. */
static __global__ void __launch_bounds__(DDP__LOSS_SUM_THREADS)
    ddp__k_loss_mean(float *out, const double *loss, const int *label, const float *grad, long rows)
{
    __shared__ double sums[DDP__LOSS_SUM_THREADS];
    __shared__ long counts[DDP__LOSS_SUM_THREADS];
    const int t = (int)threadIdx.x;
    double sum = 0;
    long count = 0;

    for (long r = t; r < rows; r += DDP__LOSS_SUM_THREADS) {
        if (loss) sum += loss[r];
        count += label[r] != -1;
    }
    sums[t] = sum;
    counts[t] = count;
    for (int step = DDP__LOSS_SUM_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (t < step) {
            sums[t] += sums[t + step];
            counts[t] += counts[t + step];
        }
    }
    if (t) return;
    count = counts[0] ? counts[0] : 1;
    *out = loss ? (float)(sums[0] / (double)count) : (grad ? *grad : 1.0f) / (float)count;
}

template <typename T>
static __global__ void __launch_bounds__(DDP__LOSS_THREADS)
    ddp__k_loss_grad(T *grad, const T *logits, const int *label, const float *stat, const float *g, long n,
                     int add, int wide)
{
    const long row = blockIdx.x;

    ddp__loss_row_grad<T, DDP__LOSS_THREADS>(grad + row * n, logits + row * n, label[row], stat[2 * row],
                                             stat[2 * row + 1], *g, n, add, wide);
}

template <typename T> static void ddp__cuda_loss_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    double *loss = (double *)dev->scratch;

    DDP__RUN((ddp__k_loss<T, DDP__LOSS_THREADS>), (unsigned)rows, DDP__LOSS_THREADS, (float *)c->saved, loss,
             (T *)c->in[0], (const int *)c->in[1], (const float *)NULL, n, ddp__wide<T>(n, c->in[0]));
    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, (float *)c->out, loss, (const int *)c->in[1],
             (const float *)NULL, rows);
}

template <typename T> static void ddp__cuda_loss_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    float *g = (float *)dev->scratch;

    if (!c->grad_in[0]) return;
    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, g, (const double *)NULL, (const int *)c->in[1],
             (const float *)c->grad_out, rows);
    DDP__RUN((ddp__k_loss_grad<T>), (unsigned)rows, DDP__LOSS_THREADS, (T *)c->grad_in[0],
             (const T *)c->in[0], (const int *)c->in[1], (const float *)c->saved, g, n, c->add_in[0],
             ddp__wide<T>(n, c->grad_in[0], c->in[0]));
}

static size_t ddp__cuda_loss_scratch(const ddp_op_spec *s, int)
{
    return (size_t)ddp_shape_rows(&s->in[0]) * sizeof(double);
}

/* ==== cuda/norm.cuh ==== [cuda] */
/* layer_norm and rms_norm, with or without a residual sum before them: one warp per row. Sums over a row and
 * over a column have a fixed order. */

enum {
    DDP__NORM_ROWS = 8,  /* warps per block in forward */
    DDP__NORM_PIECES = 4 /* maximum number of pieces of a row that a lane keeps */
};

/* PIECES > 0: rows are wide, and each lane keeps that many pieces of the row in registers, so the row is read
 * once. PIECES 0 supports any row, and each pass reads it again. Both use the same order of sums. */
#define DDP__NORM_EACH /* piece p kept, which begins at element j */ \
    DDP__UNROLL for (long p = 0, j = lane * width; PIECES ? p < PIECES : j<n; p += PIECES> 0, j += 32 * width)

template <int PIECES, typename T>
__device__ static __forceinline__ void ddp__norm_take(float *v, ddp__raw &kept, const T *row, long j, long n,
                                                      int wide)
{
    if (PIECES)
        ddp__raw_floats<T>(v, kept);
    else
        ddp__piece_load(v, row, j, n, wide);
}

/* plus: normalises in + plus and stores that sum in sum_out, which may be `in`. If plus is NULL, normalises
 * in. */
template <typename T, int RMS, int PIECES>
static __global__ void __launch_bounds__(32 * DDP__NORM_ROWS)
    ddp__k_norm(T *out, const T *in, const T *plus, T *sum_out, const T *scale, const T *shift, float *stat,
                long rows, long n, float eps, int wide)
{
    const int width = ddp__vec<T>::width, lane = (int)threadIdx.x % 32;
    const long row = (long)blockIdx.x * DDP__NORM_ROWS + threadIdx.x / 32;
    const T *x = in + row * n;
    ddp__raw kept[PIECES ? PIECES : 1], more[PIECES ? PIECES : 1], last[PIECES ? PIECES : 1];
    float v[width], a[width], b[width], sum = 0, mean = 0, rstd;

    if (row >= rows) return;
    if (PIECES) {
        ddp__row_load(kept, x, n);
        wide = 1;
    }
    if (PIECES && plus) ddp__row_load(more, plus + row * n, n);
    DDP__NORM_EACH
    {
        ddp__norm_take<PIECES>(v, kept[p], x, j, n, wide);
        if (plus) {
            ddp__norm_take<PIECES>(a, more[p], plus + row * n, j, n, wide);
            for (int i = 0; i < width; i++) v[i] = ddp__to_float(ddp__from_float<T>(v[i] + a[i]));
            kept[p] = ddp__raw_of<T>(v);
            if (j < n) ddp__piece_store(sum_out + row * n, v, j, n, wide, 0);
        }
        for (int i = 0; i < width; i++) sum += v[i];
    }
    if (plus) x = sum_out + row * n;
    if (!RMS) mean = ddp__warp_sum(sum) / (float)n;
    sum = 0;
    DDP__NORM_EACH
    {
        ddp__norm_take<PIECES>(v, kept[p], x, j, n, wide);
        for (int i = 0; i < width; i++)
            if (j + i < n) sum += (v[i] - mean) * (v[i] - mean);
    }
    rstd = 1 / sqrtf(ddp__warp_sum(sum) / (float)n + eps);
    if (PIECES) ddp__row_load(more, scale, n);
    if (PIECES && !RMS) ddp__row_load(last, shift, n);
    DDP__NORM_EACH
    {
        ddp__norm_take<PIECES>(v, kept[p], x, j, n, wide);
        ddp__norm_take<PIECES>(a, more[p], scale, j, n, wide);
        if (!RMS) ddp__norm_take<PIECES>(b, last[p], shift, j, n, wide);
        for (int i = 0; i < width; i++) v[i] = (v[i] - mean) * rstd * a[i] + (RMS ? 0 : b[i]);
        if (j < n) ddp__piece_store(out + row * n, v, j, n, wide, 0);
    }
    if (lane) return;
    if (RMS) {
        stat[row] = rstd;
    } else {
        stat[2 * row] = mean;
        stat[2 * row + 1] = rstd;
    }
}

/* Destination of the gradient of a norm's input: old (0 if NULL) is added to it, and each array of `at` that
 * is not NULL receives the result. With add, the result is added to the array. */
template <typename T> struct ddp__norm_to {
    const T *old;
    T *at[2];
    int add[2];
};

/* h = (x - mean) rstd, d = dy scale: dx = rstd (d - mean(d) - h mean(d h)). For RMS, mean is 0, and the term
 * mean(d) is absent. Block b computes part b of the rows. With PIECES, part receives the block's sums of dy h
 * and of dy in the layout of ddp__k_columns. There are at most 256 blocks. Two blocks fit a multiprocessor,
 * unless the sums alone take 64 registers. */
template <typename T, int RMS, int PIECES>
static __global__ void __launch_bounds__(32 * DDP__COLUMN_WARPS,
                                         (PIECES * ddp__vec<T>::width << !RMS) < 64 ? 2 : 1)
    ddp__k_norm_grad(ddp__norm_to<T> to, const T *in, const T *scale, const T *grad, const float *stat,
                     float *part, long rows, long n, long height, int wide)
{
    const int width = ddp__vec<T>::width, held = PIECES ? PIECES : 1;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long last = (blockIdx.x + 1) * height < rows ? (blockIdx.x + 1) * height : rows;
    __shared__ float shared[DDP__COLUMN_WARPS][32 * width];
    ddp__raw xs[held], ds[held], as[held], old[held];
    float scaled[held][width], plain[held][width], x[width], d[width], a[width];

    for (int p = 0; p < held; p++)
        for (int i = 0; i < width; i++) scaled[p][i] = plain[p][i] = 0;
    if (PIECES) {
        ddp__row_load(as, scale, n);
        wide = 1;
    }
    for (long row = blockIdx.x * height + warp; row < last; row += DDP__COLUMN_WARPS) {
        const T *xr = in + row * n, *dr = grad + row * n;
        const float mean = RMS ? 0 : stat[2 * row], rstd = RMS ? stat[row] : stat[2 * row + 1];
        float mean_d = 0, mean_dh = 0;
        if (PIECES) {
            ddp__row_load(xs, xr, n);
            ddp__row_load(ds, dr, n);
        }
        DDP__NORM_EACH
        {
            ddp__norm_take<PIECES>(x, xs[p], xr, j, n, wide);
            ddp__norm_take<PIECES>(d, ds[p], dr, j, n, wide);
            ddp__norm_take<PIECES>(a, as[p], scale, j, n, wide);
            for (int i = 0; i < width; i++) {
                const float h = (x[i] - mean) * rstd;
                mean_d += d[i] * a[i];
                mean_dh += d[i] * a[i] * h;
                if (PIECES) {
                    scaled[p][i] += d[i] * h;
                    plain[p][i] += d[i];
                }
            }
        }
        mean_d = RMS ? 0 : ddp__warp_sum(mean_d) / (float)n;
        mean_dh = ddp__warp_sum(mean_dh) / (float)n;
        if (PIECES && to.old) ddp__row_load(old, to.old + row * n, n);
        DDP__NORM_EACH
        {
            if (j >= n) continue;
            ddp__norm_take<PIECES>(x, xs[p], xr, j, n, wide);
            ddp__norm_take<PIECES>(d, ds[p], dr, j, n, wide);
            ddp__norm_take<PIECES>(a, as[p], scale, j, n, wide);
            for (int i = 0; i < width; i++)
                x[i] = rstd * (d[i] * a[i] - mean_d - (x[i] - mean) * rstd * mean_dh);
            if (to.old) ddp__norm_take<PIECES>(a, old[p], to.old + row * n, j, n, wide);
            for (int i = 0; i < width; i++) /* rounded to T */
                x[i] = ddp__to_float(ddp__from_float<T>(to.old ? x[i] + a[i] : x[i]));
            DDP__UNROLL for (int i = 0; i < 2; i++) if (to.at[i])
                ddp__piece_store(to.at[i] + row * n, x, j, n, wide, to.add[i]);
        }
    }
    if (PIECES) {
        part += blockIdx.x * n;
        DDP__UNROLL for (int p = 0; p < held; p++)
            ddp__column_join<width>(shared, scaled[p], part, p * 32L * width, n);
        part += gridDim.x * n;
        DDP__UNROLL for (int p = 0; p < held && !RMS; p++)
            ddp__column_join<width>(shared, plain[p], part, p * 32L * width, n);
    }
}

/* The instances of kernel k by PIECES, and the choice for rows of n elements. */
#define DDP__NORM_VERSIONS(k)                                                               \
    {                                                                                       \
        k<T, RMS, 0>, k<T, RMS, 1>, k<T, RMS, 2>, k<T, RMS, 3>, k<T, RMS, DDP__NORM_PIECES> \
    }
template <typename T> static long ddp__norm_pieces(long n, int wide)
{
    const long pieces = ddp__blocks(n, 32 * ddp__vec<T>::width);
    return wide && pieces <= DDP__NORM_PIECES ? pieces : 0;
}

/* sum: the addition that writes the input. NULL means that it has already run. */
template <typename T, int RMS>
static void ddp__cuda_norm_forward(ddp__cuda *dev, const ddp_op_call *sum, const ddp_op_call *c)
{
    static decltype(&ddp__k_norm<T, RMS, 0>) const norm[] = DDP__NORM_VERSIONS(ddp__k_norm);
    const void *in = sum ? sum->in[0] : c->in[0], *plus = sum ? sum->in[1] : NULL;
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const double eps = RMS && c->spec->arg[0] > 0 ? c->spec->arg[0] : DDP__NORM_EPS;
    const int wide = ddp__wide<T>(n, c->out, in, plus, c->in[0]) && ddp__aligned(c->param[0], c->param[1]);

    DDP__EACH(norm[ddp__norm_pieces<T>(n, wide)], 32 * rows, 32 * DDP__NORM_ROWS, (T *)c->out, (const T *)in,
              (const T *)plus, (T *)(void *)c->in[0], (const T *)c->param[0], (const T *)c->param[1],
              (float *)c->saved, rows, n, (float)eps, wide);
}

template <typename T, int RMS>
static void ddp__cuda_norm_backward(ddp__cuda *dev, const ddp_op_call *sum, const ddp_op_call *c)
{
    static decltype(&ddp__k_norm_grad<T, RMS, 0>) const norm_grad[] = DDP__NORM_VERSIONS(ddp__k_norm_grad);
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const long height = ddp__column_part(rows), parts = ddp__column_parts(rows);
    const int params = c->grad_param[0] || c->grad_param[1];
    float *part = (float *)dev->scratch;
    ddp__norm_to<T> to;
    int wide = ddp__wide<T>(n, c->grad_in[0], c->in[0], c->param[0], c->grad_out);
    long pieces;

    memset(&to, 0, sizeof to);
    to.old = c->add_in[0] ? (const T *)c->grad_in[0] : NULL;
    to.at[0] = (T *)c->grad_in[0];
    for (int k = 0; sum && k < 2; k++) {
        to.at[k] = (T *)sum->grad_in[k];
        to.add[k] = sum->add_in[k];
        wide = wide && ddp__aligned(to.at[k]);
    }
    pieces = params && c->grad_in[0] ? ddp__norm_pieces<T>(n, wide) : 0;
    if (params && !pieces)
        ddp__cuda_columns<T, RMS ? DDP__COLUMN_RMS : DDP__COLUMN_NORM>(
            dev, c->grad_param[0], c->grad_param[1], c->grad_out, c->in[0], c->saved, rows, n);
    if (c->grad_in[0])
        DDP__RUN(norm_grad[pieces], (unsigned)parts, 32 * DDP__COLUMN_WARPS, to, (const T *)c->in[0],
                 (const T *)c->param[0], (const T *)c->grad_out, (const float *)c->saved, part, rows, n,
                 height, wide);
    if (pieces) ddp__cuda_columns_add(dev, c->grad_param[0], c->grad_param[1], part, n, parts);
}

/* The norm alone. With the addition before it, the two run as a pair. */
template <ddp__cuda_both Single, ddp__cuda_both Half> static void ddp__cuda_norm_alone(const ddp_op_call *c)
{
    ddp__cuda_typed_both<Single, Half>(NULL, c);
}
#define DDP__NORMS(later, as, RMS)                                                         \
    later<as<ddp__cuda_norm_forward<float, RMS>, ddp__cuda_norm_forward<ddp__bf16, RMS>>>, \
        later<as<ddp__cuda_norm_backward<float, RMS>, ddp__cuda_norm_backward<ddp__bf16, RMS>>>

static size_t ddp__cuda_norm_scratch(const ddp_op_spec *s, int)
{
    return ddp__column_scratch(ddp_shape_rows(&s->in[0]), s->in[0].dim[s->in[0].dims - 1], 2);
}

/* ==== cuda/text.cuh ==== [cuda] */
/* The operators of text models, and the pairs of them that run as one kernel. */

/* ---- linear, with or without a gelu after it ---- */

/* The product writes its gelu and, for the backward pass, itself. Rows of the input of gelu must be multiples
 * of 16 bytes. */
static void ddp__cuda_linear_gelu_forward(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda_product p = ddp__cuda_linear_product(first);

    p.gelu = 1;
    p.before = first->out;
    p.c = second->out;
    if (p.shape.n % 8 == 0 && ddp__cuda_multiply((ddp__cuda *)first->pool, &p)) return;
    ddp__cuda_linear_forward(first);
    ddp__cuda_map_forward<ddp__map_gelu>(second);
}

static void ddp__cuda_linear_gelu_backward(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp_op_call c = *first;

    if (second->through)
        c.grad_out = second->grad_out;
    else
        ddp__cuda_map_backward<ddp__map_gelu_grad>(second);
    ddp__cuda_linear_backward(&c);
}

/* ---- linear_cross_entropy. A chunk has twice as many rows if elements have half the bytes ---- */

/* The loss of a chunk and, unless by is NULL, the gradient of its logits, by the kernels of cross_entropy.
 * h.stat has room for h.chunk rows. */
template <typename T>
static void ddp__cuda_head_loss(ddp__cuda *dev, const ddp__head &h, long rows, double *loss, const int *label,
                                const float *by)
{
    const int wide = ddp__wide<T>(h.n, h.logits);
    T *logits = (T *)h.logits;

    DDP__RUN((ddp__k_loss<T, DDP__LOSS_THREADS>), (unsigned)rows, DDP__LOSS_THREADS, h.stat, loss, logits,
             label, (const float *)NULL, h.n, wide);
    if (by)
        DDP__RUN((ddp__k_loss_grad<T>), (unsigned)rows, DDP__LOSS_THREADS, logits, logits, label, h.stat, by,
                 h.n, 0, wide);
}

template <typename T> static void ddp__cuda_head_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__head h = ddp__head_of(c);
    const int fused = !(dev->forms & DDP__PLAIN_HEAD);
    const long chunk = fused ? h.chunk * (long)(sizeof(float) / sizeof(T)) : h.chunk;
    const int *label = (const int *)c->in[1];
    double *loss = (double *)dev->scratch;
    float *by = (float *)(loss + h.rows);
    const int wide = ddp__wide<T>(h.n, h.logits);

    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, by, (const double *)NULL, label, (const float *)NULL,
             h.rows);
    for (long r = 0; r < h.rows; r += chunk) {
        const long rows = ddp__min_long(chunk, h.rows - r);
        const T *x = (const T *)c->in[0] + r * h.k;
        ddp__cuda_product p = ddp__cuda_product_of(rows, h.n, h.k, x, 0, c->param[0], 1, h.logits, dev->half);
        (void)ddp__cuda_multiply(dev, &p);
        if (fused)
            DDP__RUN((ddp__k_loss<T, DDP__HEAD_THREADS>), (unsigned)rows, DDP__HEAD_THREADS, (float *)NULL,
                     loss + r, (T *)h.logits, label + r, c->training ? by : (const float *)NULL, h.n, wide);
        else
            ddp__cuda_head_loss<T>(dev, h, rows, loss + r, label + r, c->training ? by : NULL);
        if (!c->training) continue;
        p = ddp__cuda_product_of(h.n, h.k, rows, h.logits, 1, x, 0, h.dw, dev->half);
        p.shape.half_out = 0;
        p.add = r > 0;
        (void)ddp__cuda_multiply(dev, &p);
        p = ddp__cuda_product_of(rows, h.k, h.n, h.logits, 0, c->param[0], 0, (T *)h.dx + r * h.k, dev->half);
        (void)ddp__cuda_multiply(dev, &p);
    }
    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, (float *)c->out, loss, label, (const float *)NULL,
             h.rows);
}

template <typename T> static void ddp__cuda_head_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__head h = ddp__head_of(c);
    const ddp__map_scaled scaled = {(const float *)c->grad_out};

    if (c->grad_in[0])
        ddp__cuda_map_as<T>(dev, c->grad_in[0], h.dx, NULL, h.rows * h.k, c->add_in[0], scaled);
    if (c->grad_param[0]) ddp__cuda_map_as<float>(dev, c->grad_param[0], h.dw, NULL, h.n * h.k, 1, scaled);
}

static size_t ddp__cuda_head_scratch(const ddp_op_spec *s, int)
{
    return (size_t)(ddp_shape_rows(&s->in[0]) + 1) * sizeof(double);
}

/* ---- the operators ---- */

DDP__FAMILY(ddp__cuda_text_ops, DDP__PLAIN("linear", ddp__cuda_linear, ddp__cuda_linear_scratch),
            DDP__PLAIN("linear_no_bias", ddp__cuda_linear, NULL),
            DDP__PLAIN("linear_tied", ddp__cuda_linear, NULL),
            DDP__ENTRY("embedding", ddp__cuda_embedding, ddp__cuda_embedding_scratch),
            DDP__ENTRY("position", ddp__cuda_position, NULL),
            {"layer_norm", DDP__NORMS(ddp__cuda_later, ddp__cuda_norm_alone, 0), ddp__cuda_norm_scratch},
            {"rms_norm", DDP__NORMS(ddp__cuda_later, ddp__cuda_norm_alone, 1), ddp__cuda_norm_scratch},
            DDP__ENTRY("attention", ddp__cuda_attention, ddp__cuda_attention_scratch),
            DDP__ENTRY("rope", ddp__cuda_rope, NULL), DDP__ENTRY("swiglu", ddp__cuda_swiglu, NULL),
            {"dropout", ddp__cuda_apart<DDP__TYPED(ddp__cuda_dropout_forward)>,
             ddp__cuda_apart<DDP__TYPED(ddp__cuda_dropout_backward)>, NULL},
            DDP__ENTRY("cross_entropy", ddp__cuda_loss, ddp__cuda_loss_scratch),
            DDP__ENTRY("linear_cross_entropy", ddp__cuda_head, ddp__cuda_head_scratch))

/* Pairs: the residual sum and the norm that reads it, and from compute capability 9.0 on a product and its
 * gelu. Older GPUs are not expected to gain from the second pair (not measured). */
static DDP__UNUSED const ddp_op_pair *ddp__cuda_pair_of(const ddp__cuda *dev, const char *first,
                                                        const char *second)
{
    static const ddp_op_pair layer_norm = {DDP__NORMS(ddp__cuda_later_both, ddp__cuda_typed_both, 0), NULL},
                             rms_norm = {DDP__NORMS(ddp__cuda_later_both, ddp__cuda_typed_both, 1), NULL},
                             gelu = {ddp__cuda_later_both<ddp__cuda_linear_gelu_forward>,
                                     ddp__cuda_later_both<ddp__cuda_linear_gelu_backward>, "linear"};

    if (strcmp(first, "linear") == 0 && strcmp(second, "gelu") == 0)
        return dev->props.major >= 9 ? &gelu : NULL;
    if (strcmp(first, "add") != 0) return NULL;
    if (strcmp(second, "layer_norm") == 0) return &layer_norm;
    return strcmp(second, "rms_norm") == 0 ? &rms_norm : NULL;
}

/* ==== cuda/quantise.cuh ==== [cuda] */
/* Block quantisation on the GPU, byte-identical to compress/quantise.c. 16 lanes share a block of 64
 * elements, four each. */

enum { DDP__PACK_LANES = DDP_QUANTISE_BLOCK / 4 };

/* A message in device memory. */
typedef struct ddp__quantised {
    unsigned char *head;
    float *scale; /* [blocks] */
    unsigned char *level;
    size_t n, blocks;
    int levels, wide; /* levels is 127 or 7, wide is 1 for one byte per level */
    unsigned char want[DDP_PACK_HEAD];
} ddp__quantised;

static ddp__quantised ddp__quantised_of(ddp_packing packing, void *message, size_t n)
{
    ddp__quantised q;

    q.n = n;
    q.blocks = n / DDP_QUANTISE_BLOCK + (n % DDP_QUANTISE_BLOCK != 0);
    q.head = (unsigned char *)message;
    q.scale = (float *)(void *)(q.head + DDP_PACK_HEAD);
    q.level = (unsigned char *)(q.scale + q.blocks);
    q.wide = packing == DDP_PACK_INT8;
    q.levels = q.wide ? 127 : 7;
    ddp__pack_head(q.want, packing, n, n);
    return q;
}

static __global__ void ddp__k_quantise_check(const float *x, size_t n, ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < n; i += ddp__thread_step())
        if (ddp__magnitude(x[i]) >= DDP__INFINITE) ddp__verdict_note(v, DDP__SAYS_NO_LEVEL, i);
}

/* The largest magnitude of a block. Each lane passes its four elements. All lanes of a warp must call it. */
static inline __device__ uint32_t ddp__quantise_most(const float *e)
{
    uint32_t most = 0;

    for (int i = 0; i < 4; i++)
        if (ddp__magnitude(e[i]) > most) most = ddp__magnitude(e[i]);
    for (int i = DDP__PACK_LANES / 2; i; i /= 2) {
        const uint32_t other = __shfl_xor_sync(DDP__ALL_LANES, most, i);
        if (other > most) most = other;
    }
    return most;
}

/* Stores the levels of four elements from index at on, or of fewer at the end of the array. */
static inline __device__ void ddp__quantise_put(const ddp__quantised &q, const int *level, size_t at)
{
    uint32_t word = 0;
    int i;

    if (q.wide && at + 4 <= q.n) {
        for (i = 0; i < 4; i++) word |= ((uint32_t)level[i] & 255) << 8 * i;
        *(uint32_t *)(void *)(q.level + at) = word;
    } else if (q.wide) {
        for (i = 0; i < 4 && at + (size_t)i < q.n; i++) q.level[at + (size_t)i] = (unsigned char)level[i];
    } else {
        for (i = 0; i < 4 && at + (size_t)i < q.n; i += 2)
            q.level[(at + (size_t)i) / 2] = (unsigned char)(level[i] + 8 + ((level[i + 1] + 8) << 4));
    }
}

/* With SPLIT, as in the split of blocks.c, writes only the payload, and x keeps the residual. A block with a
 * denormal scale is sent as zeros. If values are not finite, their magnitude becomes the scale, which the
 * receiver rejects. Otherwise writes the whole message. The verdict has already checked the values. */
template <int SPLIT> __global__ void ddp__k_quantise(ddp__quantised q, float *x, const ddp_cuda_verdict *v)
{
    const size_t lane = threadIdx.x % DDP__PACK_LANES, step = ddp__thread_step() / DDP__PACK_LANES;
    const int aligned = ddp__aligned(x);
    size_t b = ddp__thread_first() / DDP__PACK_LANES;

    if (!SPLIT && v->what) return;
    if (!SPLIT && ddp__thread_first() < DDP_PACK_HEAD)
        q.head[ddp__thread_first()] = q.want[ddp__thread_first()];
    /* all lanes of a warp stay in the loop together, for the shuffles */
    for (; b / 2 * 2 < q.blocks; b += step) {
        const size_t at = b * DDP_QUANTISE_BLOCK + 4 * lane;
        float e[4], scale;
        double inverse;
        uint32_t most;
        int level[4];

        ddp__piece_load(e, x, (long)at, (long)q.n, aligned && at + 4 <= q.n);
        most = ddp__quantise_most(e);
        scale = __uint_as_float(most);
        if (b >= q.blocks) continue;
        if (!SPLIT || most < DDP__INFINITE) scale = ddp__quantise_scale_of(scale, (double)q.levels);
        if (SPLIT && scale < FLT_MIN) scale = 0;
        inverse = scale > 0 && (!SPLIT || most < DDP__INFINITE) ? 1 / (double)scale : 0;
        for (int i = 0; i < 4; i++) level[i] = inverse > 0 ? ddp__quantise_level_of(e[i], inverse) : 0;
        if (lane == 0) q.scale[b] = scale;
        ddp__quantise_put(q, level, at);
        for (int i = 0; SPLIT && i < 4 && at + (size_t)i < q.n; i++)
            x[at + (size_t)i] = __fsub_rn(e[i], __fmul_rn((float)level[i], scale));
    }
}

/* ---- receiving ---- */

static __global__ void ddp__k_quantised_check(ddp__quantised q, const float *x, ddp__unpack how,
                                              ddp_cuda_verdict *v)
{
    const float levels = (float)q.levels, huge = __uint_as_float(DDP__HUGE);
    const size_t first = ddp__thread_first();

    if (v->what) return;
    if (first < DDP_PACK_HEAD && q.head[first] != q.want[first]) ddp__verdict_note(v, DDP__SAYS_HEAD, first);
    if (first == 0 && !q.wide && q.n % 2 && q.level[q.n / 2] >> 4 != 8)
        ddp__verdict_note(v, DDP__SAYS_HALF, q.n);
    for (size_t i = first; i < q.n; i += ddp__thread_step()) {
        const float scale = q.scale[i / DDP_QUANTISE_BLOCK];
        const int level = ddp__quantised_level(q.wide, q.level, i);

        if (level < -q.levels) ddp__verdict_note(v, DDP__SAYS_LOW, i);
        if (!(scale >= 0) || !(scale * levels <= FLT_MAX)) {
            ddp__verdict_note(v, DDP__SAYS_SCALE, i / DDP_QUANTISE_BLOCK);
        } else if (how != DDP__UNPACK_STORE && scale * levels >= huge) {
            const float value = __fmul_rn((float)level, scale);
            if (ddp__sum_spoils(x[i], how == DDP__UNPACK_SUBTRACT ? -value : value))
                ddp__verdict_note(v, how == DDP__UNPACK_SUBTRACT ? DDP__SAYS_DIFFERENCE : DDP__SAYS_SUM, i);
        }
    }
}

struct ddp__verdict_quantised {
    ddp__quantised q;
    const float *x;

    __device__ void operator()(ddp_cuda_verdict *v) const
    {
        if (v->what == DDP__SAYS_HEAD) v->number = q.n;
        if (v->what == DDP__SAYS_SCALE) v->value[0] = q.scale[v->at];
        if (v->what == DDP__SAYS_LOW) v->value[0] = (float)ddp__quantised_level(q.wide, q.level, v->at);
        if (v->what < DDP__SAYS_SUM) return;
        v->value[0] = x[v->at];
        v->value[1] =
            (float)ddp__quantised_level(q.wide, q.level, v->at) * q.scale[v->at / DDP_QUANTISE_BLOCK];
    }
};

/* Product and sum are rounded separately, as on the CPU. */
static __global__ void ddp__k_quantised_apply(ddp__quantised q, float *x, ddp__unpack how,
                                              const ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < q.n; i += ddp__thread_step()) {
        const float scale = q.scale[i / DDP_QUANTISE_BLOCK];
        const float value = __fmul_rn((float)ddp__quantised_level(q.wide, q.level, i),
                                      how == DDP__UNPACK_SUBTRACT ? -scale : scale);
        x[i] = how == DDP__UNPACK_STORE ? value : __fadd_rn(x[i], value);
    }
}

/* ---- on the host ---- */

/* Checks packing, pointers and size. *need: bytes of the message. */
static ddp_status ddp__quantised_arguments(const char *who, ddp_packing packing, const void *x, size_t n,
                                           const void *message, const ddp_cuda_verdict *verdict, size_t *need,
                                           ddp_error *err)
{
    if (packing != DDP_PACK_INT8 && packing != DDP_PACK_INT4)
        return ddp__fail(err, DDP_ARG, "%s: packing %d (%s) does not quantise; use int8 or int4", who,
                         (int)packing, ddp_packing_name(packing));
    if (!x || !verdict) return ddp__fail(err, DDP_ARG, "%s: x or verdict is NULL", who);
    *need = ddp_pack_bound(packing, n, n);
    if (!*need)
        return ddp__fail(err, DDP_ARG, "%s: n = %zu; 1 to %zu elements make a message", who, n,
                         DDP__PACK_MOST);
    if (!message || (uintptr_t)message % 4)
        return ddp__fail(err, DDP_ARG, "%s: the message must not be NULL and must be aligned to 4", who);
    return DDP_OK;
}

ddp_status ddp_cuda_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out, size_t capacity,
                                   size_t *bytes, ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const ddp__verdict_values values = {x, NULL};
    ddp__quantised q;
    size_t need;

    if (!bytes) return ddp__fail(err, DDP_ARG, "ddp_cuda_pack_quantised: bytes is NULL");
    DDP__TRY(ddp__quantised_arguments("ddp_cuda_pack_quantised", packing, x, n, out, verdict, &need, err));
    DDP__TRY(ddp__pack_room(out, capacity, need, err));
    q = ddp__quantised_of(packing, out, n);
    DDP__STRIDE(ddp__k_quantise_check, n, x, n, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_values>), 1, 1, verdict, values);
    DDP__STRIDE(ddp__k_quantise<0>, q.blocks * DDP__PACK_LANES, q, (float *)(uintptr_t)x, verdict);
    *bytes = need;
    return ddp__cuda_queued(dev, err);
}

static ddp_status ddp__cuda_unpack(const char *who, ddp_packing packing, const void *message, size_t bytes,
                                   ddp__unpack how, float *x, size_t n, ddp_cuda_verdict *verdict,
                                   void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    ddp__verdict_quantised values;
    size_t need;

    DDP__TRY(ddp__quantised_arguments(who, packing, x, n, message, verdict, &need, err));
    if (bytes != need)
        return ddp__fail(err, DDP_ARG, "%s: the message has %zu bytes, one of %zu elements has %zu", who,
                         bytes, n, need);
    values.x = x;
    values.q = ddp__quantised_of(packing, (void *)message, n);
    DDP__STRIDE(ddp__k_quantised_check, n, values.q, x, how, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_quantised>), 1, 1, verdict, values);
    DDP__STRIDE(ddp__k_quantised_apply, n, values.q, x, how, verdict);
    return ddp__cuda_queued(dev, err);
}

ddp_status ddp_cuda_unpack_store(ddp_packing packing, const void *message, size_t bytes, float *x, size_t n,
                                 ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    return ddp__cuda_unpack("ddp_cuda_unpack_store", packing, message, bytes, DDP__UNPACK_STORE, x, n,
                            verdict, stream, err);
}

ddp_status ddp_cuda_unpack_add(ddp_packing packing, const void *message, size_t bytes, float *x, size_t n,
                               ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    return ddp__cuda_unpack("ddp_cuda_unpack_add", packing, message, bytes, DDP__UNPACK_ADD, x, n, verdict,
                            stream, err);
}

ddp_status ddp_cuda_feedback_subtract(ddp_packing packing, const void *message, size_t bytes, float *residual,
                                      size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    return ddp__cuda_unpack("ddp_cuda_feedback_subtract", packing, message, bytes, DDP__UNPACK_SUBTRACT,
                            residual, n, verdict, stream, err);
}

/* ==== cuda/nccl.cuh ==== [cuda] */
/* Averaging between GPUs by NCCL: in place, on its own stream next to the computing stream.
 *
 * The host queues work and never waits for a peer inside a step. The hooks call ddp__nccl_poll, which returns
 * an error if a peer is lost: an error of NCCL, or an average that exceeds the time-out. The caller then uses
 * ddp__nccl_leave(n, 1) to abort the operations in flight, which also block all later work. */

#include <nccl.h>

/* What an operation does with its arrays. */
typedef enum ddp__nccl_verb { DDP__NCCL_MEAN, DDP__NCCL_SUM, DDP__NCCL_SPREAD } ddp__nccl_verb;

typedef struct ddp__cuda_nccl {
    ddp__cuda *dev;
    ncclComm_t comm; /* NULL with one rank, or if aborted */
    ddp_backend_peers peers;
    ddp_error why; /* the reason of the abort, with code 0 if not aborted */
    cudaStream_t stream;
    cudaEvent_t *ready; /* [slots] the arrays of this slot are final */
    cudaEvent_t *done;  /* [slots] the arrays are averages */
    double *since;      /* [slots] ddp_now() when the average was queued, or 0 if not in flight */
    int slots;
} ddp__cuda_nccl;

/* Converts an NCCL result to a status. ncclInProgress is no error. An error that a peer caused is
 * DDP_PEER_LOST. */
static DDP__UNUSED ddp_status ddp__nccl_failed(ddp__cuda_nccl *n, ncclResult_t r, const char *what,
                                               ddp_error *err)
{
    if (r == ncclSuccess || r == ncclInProgress) return DDP_OK;
    if (r == ncclInvalidUsage && !strcmp(what, "ncclCommInitRankConfig"))
        return ddp__fail(err, DDP_ARG,
                         "NCCL rejects rank %d on GPU %d: the GPU is in use, by another rank or another "
                         "program; give each rank a separate GPU, or use the transport tcp",
                         n->peers.rank, n->dev->device);
    if (r == ncclRemoteError || r == ncclSystemError)
        return ddp__fail(err, DDP_PEER_LOST, "%s: rank %d of %d lost a peer: %s", what, n->peers.rank,
                         n->peers.world, ncclGetErrorString(r));
    return ddp__fail(err, DDP_FAILED, "%s failed on rank %d of %d (GPU %d): %s", what, n->peers.rank,
                     n->peers.world, n->dev->device, ncclGetErrorString(r));
}

/* Waits until the communicator has accepted the queued work, for at most join_timeout_s. Stops early if a
 * peer is known to be lost. */
static DDP__UNUSED ddp_status ddp__nccl_settle(ddp__cuda_nccl *n, const char *what, ddp_error *err)
{
    const double until = ddp_now() + n->peers.join_timeout_s;
    ncclResult_t state = ncclInProgress;

    for (;;) {
        const ncclResult_t r = ncclCommGetAsyncError(n->comm, &state);
        if (r != ncclSuccess) state = r;
        if (state != ncclInProgress) return ddp__nccl_failed(n, state, what, err);
        if (ddp_now() > until)
            return ddp__fail(err, DDP_TIMEOUT,
                             "%s: some of the %d ranks did not connect within %g s; start all ranks, or "
                             "raise the connect time-out",
                             what, n->peers.world, n->peers.join_timeout_s);
        if (n->peers.watch) DDP__TRY(n->peers.watch(n->peers.user, 0, err));
        ddp__sleep_until(ddp_now() + 5e-5);
    }
}

/* Aborts the operations in flight without waiting for a peer, so that the stream continues. All later
 * operations on n return `why`. */
static DDP__UNUSED void ddp__nccl_give_up(ddp__cuda_nccl *n, const ddp_error *why)
{
    if (n->comm) (void)ncclCommAbort(n->comm);
    n->comm = NULL;
    n->why = *why;
}

/* The reason of the abort, or DDP_OK. */
static DDP__UNUSED ddp_status ddp__nccl_why(const ddp__cuda_nccl *n, ddp_error *err)
{
    if (n->why.code && err) *err = n->why;
    return n->why.code;
}

/* 1 if the slot has no average in flight. */
static DDP__UNUSED int ddp__nccl_ended(ddp__cuda_nccl *n, int slot)
{
    if (n->since[slot] <= 0) return 1;
    if (ddp__cuda_asked(cudaEventQuery(n->done[slot])) == cudaErrorNotReady) return 0;
    n->since[slot] = 0;
    return 1;
}

/* Returns the first failure of a peer, without waiting: a failure that another part of the program has seen,
 * an error of NCCL, or an operation older than the time-out. */
static DDP__UNUSED ddp_status ddp__nccl_poll(ddp__cuda_nccl *n, ddp_error *err)
{
    ncclResult_t state = ncclSuccess;
    double oldest = 0;

    DDP__TRY(ddp__nccl_why(n, err));
    for (int i = 0; i < n->slots; i++)
        if (!ddp__nccl_ended(n, i) && (oldest <= 0 || n->since[i] < oldest)) oldest = n->since[i];
    if (n->peers.watch) DDP__TRY(n->peers.watch(n->peers.user, oldest, err));
    if (!n->comm) return DDP_OK;
    DDP__TRY(ddp__nccl_failed(n, ncclCommGetAsyncError(n->comm, &state), "ncclCommGetAsyncError", err));
    DDP__TRY(ddp__nccl_failed(n, state, "averaging over NCCL", err));
    if (oldest > 0 && ddp_now() - oldest > n->peers.op_timeout_s)
        return ddp__fail(
            err, DDP_TIMEOUT,
            "averaging over NCCL: rank %d of %d waited %.1f s for its peers; a peer has stopped or is slow; "
            "if it is slow, raise DREAMDDP_OP_TIMEOUT (now %g s)",
            n->peers.rank, n->peers.world, ddp_now() - oldest, n->peers.op_timeout_s);
    return DDP_OK;
}

/* Waits for the operations in flight and ends the communicator with the peers. Returns 0 if a peer is lost.
 * */
static DDP__UNUSED int ddp__nccl_part(ddp__cuda_nccl *n)
{
    ddp_error why;

    while (ddp__cuda_asked(cudaStreamQuery(n->stream)) == cudaErrorNotReady) {
        if (ddp__nccl_poll(n, &why)) return 0;
        ddp__sleep_until(ddp_now() + 2e-5);
    }
    return !ddp__nccl_failed(n, ncclCommFinalize(n->comm), "ncclCommFinalize", &why) &&
           !ddp__nccl_settle(n, "ncclCommFinalize", &why);
}

/* Frees n, which may be NULL. If on_error is 1, first aborts the operations in flight. */
static DDP__UNUSED void ddp__nccl_leave(ddp__cuda_nccl *n, int on_error)
{
    if (!n) return;
    (void)cudaSetDevice(n->dev->device);
    if (n->comm && !on_error && ddp__nccl_part(n))
        (void)ncclCommDestroy(n->comm);
    else if (n->comm)
        (void)ncclCommAbort(n->comm);
    if (n->stream) (void)cudaStreamSynchronize(n->stream);
    ddp__cuda_events_free(n->ready, n->slots);
    ddp__cuda_events_free(n->done, n->slots);
    if (n->stream) (void)cudaStreamDestroy(n->stream);
    DDP_FREE(n->since);
    DDP_FREE(n);
}

static DDP__UNUSED ddp_status ddp__nccl_slots(ddp__cuda_nccl *n, int slots, ddp_error *err)
{
    ddp__cuda *dev = n->dev;
    int least = 0, greatest = 0;

    n->slots = slots;
    n->ready = ddp__cuda_events(dev, slots, cudaEventDisableTiming);
    n->done = ddp__cuda_events(dev, slots, cudaEventDisableTiming);
    n->since = (double *)ddp__calloc((size_t)slots, sizeof *n->since);
    if (!n->ready || !n->done || !n->since)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the events of %d messages", slots);
    (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
    (void)DDP__CUDA(dev, cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest));
    return ddp__cuda_status(dev, err);
}

/* Connects to the other ranks (collective). slots is the maximum number of averages in flight. Returns NULL
 * and sets err on failure. Freed by ddp__nccl_leave. */
static DDP__UNUSED ddp__cuda_nccl *ddp__nccl_join(ddp__cuda *dev, const ddp_backend_peers *p, int slots,
                                                  ddp_error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ddp__cuda_nccl *n = (ddp__cuda_nccl *)ddp__calloc(1, sizeof *n);
    ncclUniqueId id = DDP__ZEROS;
    ncclResult_t r;

    if (!n) {
        (void)ddp__fail(err, DDP_MEMORY, "out of memory for the state of NCCL");
        return NULL;
    }
    n->dev = dev;
    n->peers = *p;
    if (DDP__CUDA(dev, cudaSetDevice(dev->device))) {
        (void)ddp__cuda_status(dev, err);
        goto failed;
    }
    if (ddp__nccl_slots(n, slots, err)) goto failed;
    if (n->peers.world < 2) return n;
    if (n->peers.rank == 0 && ddp__nccl_failed(n, ncclGetUniqueId(&id), "ncclGetUniqueId", err)) goto failed;
    if (p->share(p->user, &id, sizeof id, err)) goto failed;
    config.blocking = 0;
    r = ncclCommInitRankConfig(&n->comm, n->peers.world, id, n->peers.rank, &config);
    if (ddp__nccl_failed(n, r, "ncclCommInitRankConfig", err)) goto failed;
    if (ddp__nccl_settle(n, "ncclCommInitRankConfig", err)) goto failed;
    return n;
failed:
    ddp__nccl_leave(n, 1);
    return NULL;
}

/* Queues one array, in place. */
static DDP__UNUSED ncclResult_t ddp__nccl_array(ddp__cuda_nccl *n, ddp__nccl_verb verb, float *x,
                                                size_t count)
{
    if (verb == DDP__NCCL_SPREAD) return ncclBroadcast(x, x, count, ncclFloat32, 0, n->comm, n->stream);
    return ncclAllReduce(x, x, count, ncclFloat32, verb == DDP__NCCL_SUM ? ncclSum : ncclAvg, n->comm,
                         n->stream);
}

/* Queues an operation that starts when the work queued so far is done. ddp__nccl_finish makes the computing
 * stream wait for it. The arrays become their mean or sum over the ranks, or the arrays of rank 0. */
static DDP__UNUSED ddp_status ddp__nccl_queue(ddp__cuda_nccl *n, int slot, ddp__nccl_verb verb,
                                              float *const *arrays, const size_t *counts, int arrays_count,
                                              ddp_error *err)
{
    ddp__cuda *dev = n->dev;
    ncclResult_t r = ncclSuccess, end = ncclSuccess;

    DDP__TRY(ddp__nccl_why(n, err));
    if (DDP__CUDA(dev, cudaEventRecord(n->ready[slot], dev->stream)) ||
        DDP__CUDA(dev, cudaStreamWaitEvent(n->stream, n->ready[slot], 0)))
        return ddp__cuda_status(dev, err);
    if (n->comm) {
        (void)ncclGroupStart();
        for (int i = 0; i < arrays_count && (r == ncclSuccess || r == ncclInProgress); i++)
            if (counts[i]) r = ddp__nccl_array(n, verb, arrays[i], counts[i]);
        end = ncclGroupEnd();
        DDP__TRY(ddp__nccl_failed(n, r, "ncclAllReduce", err));
        DDP__TRY(ddp__nccl_failed(n, end, "ncclGroupEnd", err));
        /* before NCCL has queued its kernels, the event would complete at once */
        DDP__TRY(ddp__nccl_settle(n, "ncclAllReduce", err));
    }
    n->since[slot] = ddp_now();
    return DDP__CUDA(dev, cudaEventRecord(n->done[slot], n->stream)) ? ddp__cuda_status(dev, err) : DDP_OK;
}

/* Makes later work on the computing stream wait for the slot's operation. Does not block the host. */
static DDP__UNUSED void ddp__nccl_finish(ddp__cuda_nccl *n, int slot)
{
    if (n->since[slot] > 0) (void)DDP__CUDA(n->dev, cudaStreamWaitEvent(n->dev->stream, n->done[slot], 0));
}

/* ==== cuda/self.cuh ==== [cuda] */
/* State of a context on a GPU in addition to the device: copies of its parameters, timing marks of its work,
 * and the functions for messages over the host that src/device/stager.c calls. */

#include <nvtx3/nvToolsExt.h>

enum {
    DDP__UPLOAD_PARTS = 4,       /* uploads that may be in flight */
    DDP__UPLOAD_BYTES = 4 << 20, /* size of each */
    DDP__CLIP_PARTS = 1024       /* number of partial sums of squares */
};

/* Type of the driver function cuStreamWaitValue32. */
typedef int (*ddp__cuda_waits)(cudaStream_t stream, unsigned long long there, unsigned turn, unsigned how);

/* A bfloat16 copy of a layer's parameters, which operators read instead of the parameters. */
typedef struct ddp__cuda_mirror {
    float *master;
    ddp__bf16 *copy;
    size_t count;
    struct ddp__cuda_mirror *next;
} ddp__cuda_mirror;

typedef struct ddp__cuda_self {
    ddp__cuda *dev;
    ddp__cuda_mirror *mirror;
    /* uploads pass through pinned memory, in parts */
    char *ring;
    cudaEvent_t *ring_free; /* [DDP__UPLOAD_PARTS] */
    int ring_next;
    float *early; /* pinned: a copy of *early_from, complete after early_done */
    const float *early_from;
    cudaEvent_t early_done;
    double *squares; /* [DDP__CLIP_PARTS], then their sum */
    /* messages over the host */
    cudaStream_t out, in;  /* streams to the host, and from it */
    cudaEvent_t *ready;    /* [slots] the arrays of this slot are final */
    unsigned *flag;        /* [slots] pinned: the highest turn that may continue */
    unsigned *flag_there;  /* the device address of flag */
    ddp__cuda_waits waits; /* NULL means that the calling thread waits */
    unsigned *turn;        /* [slots] atomic: the highest turn for which a stream waits */
    int slots;
    double copy_s;               /* seconds after which a copy of a message has failed */
    struct ddp__cuda_self *next; /* the list of contexts whose streams may wait */
    ddp__cuda_nccl *nccl;
    /* timing */
    cudaEvent_t *mark; /* [marks], then one more: the start */
    int marks;
    int base;      /* the mark that was read last */
    double base_s; /* ddp_now() at that mark */
    int ranged;    /* 1 if an NVTX range is open */
} ddp__cuda_self;

/* Converts the first argument of a table function: to the state that open returned, or to its device or
 * network. */
struct ddp__cuda_given {
    void *self;

    operator ddp__cuda_self *() const { return (ddp__cuda_self *)self; }
    operator ddp__cuda *() const { return ((ddp__cuda_self *)self)->dev; }
    operator ddp__cuda_nccl *() const { return ((ddp__cuda_self *)self)->nccl; }
};

/* DDP__GIVEN(f): adapts f, whose first argument is one of these types, to the table. DDP__ORDERED(f): also
 * launches the queued operators first, and is for the context's thread only. */
template <auto F> struct ddp__cuda_entry_of;
template <typename R, typename S, typename... A, R (*F)(S, A...)> struct ddp__cuda_entry_of<F> {
    static R call(void *self, A... a) { return F(ddp__cuda_given{self}, a...); }
    static R ordered(void *self, A... a)
    {
        ddp__cuda_run_due(ddp__cuda_given{self});
        ddp__cuda_before(ddp__cuda_given{self}, 0);
        return call(self, a...);
    }
};
#define DDP__GIVEN(f)   ddp__cuda_entry_of<f>::call
#define DDP__ORDERED(f) ddp__cuda_entry_of<f>::ordered

/* ---- timing ---- */

/* Relates the device's clock to the host's. The last event is recorded and waited for, and the host reads its
 * clock just before. It retries if the two are more than 0.2 ms apart, because the thread was delayed. A time
 * of the device must never be later than the host's time of the same moment. */
static int ddp__cuda_marks(ddp__cuda_self *c, int marks)
{
    ddp__cuda *dev = c->dev;

    c->base = c->marks = marks;
    c->mark = ddp__cuda_events(dev, marks + 1, cudaEventDefault);
    if (!c->mark || ddp__cuda_status(dev, NULL) || DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)))
        return 0;
    for (int tries = 0; tries == 0 || (tries < 16 && ddp_now() - c->base_s > 2e-4); tries++) {
        c->base_s = ddp_now();
        if (DDP__CUDA(dev, cudaEventRecord(c->mark[marks], dev->stream)) ||
            DDP__CUDA(dev, cudaEventSynchronize(c->mark[marks])))
            return 0;
    }
    return 1;
}

static void ddp__cuda_mark(ddp__cuda_self *c, int mark)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->mark[mark], c->dev->stream));
}

/* Measures from mark to mark: milliseconds in a float are exact only over short intervals. */
static double ddp__cuda_marked(ddp__cuda_self *c, int mark)
{
    const cudaError_t e = ddp__cuda_asked(cudaEventQuery(c->mark[mark]));
    float ms = 0;

    if (e == cudaErrorNotReady) return -1;
    if (DDP__CUDA(c->dev, e) || DDP__CUDA(c->dev, cudaEventElapsedTime(&ms, c->mark[c->base], c->mark[mark])))
        return c->base_s;
    c->base = mark;
    c->base_s += 1e-3 * (double)ms;
    return c->base_s;
}

static void ddp__cuda_range(ddp__cuda_self *c, const char *name)
{
    if (c->ranged) (void)nvtxRangePop();
    c->ranged = name != NULL;
    if (name) (void)nvtxRangePushA(name);
}

/* ---- copies in bfloat16 ---- */

static __global__ void ddp__k_mirror(ddp__bf16 *out, const float *in, long n)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16_rn(in[i]);
}

/* The bfloat16 copy of the floats at p, or NULL. *left: number of elements of the copy from there on. */
static DDP__UNUSED ddp__bf16 *ddp__cuda_copy_of(const ddp__cuda_self *c, const float *p, size_t *left)
{
    for (const ddp__cuda_mirror *m = c->mirror; m; m = m->next) {
        if (p < m->master || p >= m->master + m->count) continue;
        *left = m->count - (size_t)(p - m->master);
        return m->copy + (p - m->master);
    }
    return NULL;
}

/* Updates the copy of the floats at p, which have changed, on a stream. */
static DDP__UNUSED void ddp__cuda_refresh(const ddp__cuda_self *c, const void *p, size_t bytes,
                                          cudaStream_t stream)
{
    ddp__cuda *dev = c->dev;
    const float *from = (const float *)p;
    size_t left = 0, n = bytes / sizeof *from;
    ddp__bf16 *copy = ddp__cuda_copy_of(c, from, &left);

    if (!copy || !n) return;
    if (n > left) n = left;
    DDP__LAUNCH(ddp__k_mirror, (unsigned)ddp__blocks((long)n, 256), 256, 0, stream, copy, from, (long)n);
}

/* ---- messages over the host: copies have their own streams, and the computing stream waits for a number in
 * pinned memory, which the stager raises when it has copied the result back ---- */

enum { DDP__CUDA_GEQ = 0 }; /* compares the signed difference with 0 */

/* Raises the flag of a probe that did not end in time. */
typedef struct ddp__cuda_rescue {
    unsigned *flag;
    int done, late; /* atomic */
} ddp__cuda_rescue;

static void *ddp__cuda_rescues(void *arg)
{
    ddp__cuda_rescue *r = (ddp__cuda_rescue *)arg;
    const double until = ddp_now() + 2;

    while (!ddp__atomic_load(&r->done) && ddp_now() < until) ddp__sleep_until(ddp_now() + 1e-4);
    if (ddp__atomic_load(&r->done)) return NULL;
    ddp__atomic_store(&r->late, 1);
    ddp__atomic_store(r->flag, 1);
    return NULL;
}

/* Queues a wait of `held` and a kernel after it, and then what the stager queues meanwhile. Returns the
 * reason why the device cannot do this, or NULL. */
static const char *ddp__cuda_held_back(ddp__cuda_self *c, cudaStream_t held, const ddp__cuda_rescue *r)
{
    ddp__cuda *dev = c->dev;

    if (c->waits(held, (uintptr_t)c->flag_there, 1, DDP__CUDA_GEQ)) return "cuStreamWaitValue32 fails";
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, held, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    if (DDP__CUDA(dev,
                  cudaMemcpyAsync(c->early, c->squares, sizeof *c->early, cudaMemcpyDeviceToHost, c->out)) ||
        DDP__CUDA(dev, cudaStreamSynchronize(c->out)) ||
        DDP__CUDA(dev,
                  cudaMemcpyAsync(c->squares, c->early, sizeof *c->early, cudaMemcpyHostToDevice, c->in)))
        return NULL; /* the device has failed */
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, c->in, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    (void)DDP__CUDA(dev, cudaStreamSynchronize(c->in));
    if (ddp__atomic_load(&r->late)) return "other work stops while a stream waits";
    return ddp__cuda_asked(cudaStreamQuery(held)) == cudaErrorNotReady ? NULL : "a stream does not wait";
}

/* Tests whether copies and a kernel of the stager's streams run while `held` waits. Without this, the stager
 * could not raise the flag. Returns NULL if they do, or the reason. Another thread ends the wait after
 * 2 s. */
static const char *ddp__cuda_probe(ddp__cuda_self *c, cudaStream_t held)
{
    ddp__cuda_rescue r = {c->flag, 0, 0};
    pthread_t thread;
    const char *why;

    if (pthread_create(&thread, NULL, ddp__cuda_rescues, &r))
        return "no thread for its test could be started";
    why = ddp__cuda_held_back(c, held, &r);
    ddp__atomic_store(&r.done, 1);
    ddp__atomic_store(c->flag, 1);
    (void)pthread_join(thread, NULL);
    (void)DDP__CUDA(c->dev, cudaStreamSynchronize(held));
    ddp__atomic_store(c->flag, 0);
    return why;
}

/* ---- several contexts of a process on one device ----
 *
 * With two, the call of one may wait for a stream of the other, which waits for a message of the first. So
 * their streams do not wait, and a context opens when the streams of the others no longer do. */

/* Number of contexts on each device, or on devices whose numbers differ by a multiple of 64. The counts and
 * ddp__cuda_self.turn are sequentially consistent: a stream that starts to wait sees the new context, or the
 * new context sees the wait. */
static int ddp__cuda_contexts[64];
static pthread_mutex_t ddp__cuda_list_lock = PTHREAD_MUTEX_INITIALIZER;
static ddp__cuda_self *ddp__cuda_list; /* guarded by the lock */

static DDP__UNUSED int ddp__cuda_count_context(int device, int more)
{
    const int room = (int)(sizeof ddp__cuda_contexts / sizeof *ddp__cuda_contexts);
    return __atomic_add_fetch(&ddp__cuda_contexts[device % room], more, __ATOMIC_SEQ_CST);
}

static DDP__UNUSED int ddp__cuda_is_alone(const ddp__cuda *dev)
{
    return ddp__cuda_count_context(dev->device, 0) < 2;
}

static void ddp__cuda_list_add(ddp__cuda_self *c)
{
    pthread_mutex_lock(&ddp__cuda_list_lock);
    c->next = ddp__cuda_list;
    ddp__cuda_list = c;
    pthread_mutex_unlock(&ddp__cuda_list_lock);
}

/* c need not be in the list. */
static DDP__UNUSED void ddp__cuda_list_drop(ddp__cuda_self *c)
{
    ddp__cuda_self **link = &ddp__cuda_list;

    pthread_mutex_lock(&ddp__cuda_list_lock);
    while (*link && *link != c) link = &(*link)->next;
    if (*link) *link = c->next;
    pthread_mutex_unlock(&ddp__cuda_list_lock);
}

/* Number of waits of streams on the device. *most_s: the longest time-out of their contexts. */
static int ddp__cuda_open_holds(int device, double *most_s)
{
    int n = 0;

    *most_s = 0;
    pthread_mutex_lock(&ddp__cuda_list_lock);
    for (const ddp__cuda_self *c = ddp__cuda_list; c; c = c->next)
        for (int i = 0; c->dev->device == device && i < c->slots; i++) {
            if (ddp__atomic_load(&c->flag[i]) >= __atomic_load_n(&c->turn[i], __ATOMIC_SEQ_CST)) continue;
            if (*most_s < c->copy_s) *most_s = c->copy_s;
            n++;
        }
    pthread_mutex_unlock(&ddp__cuda_list_lock);
    return n;
}

/* Waits until no stream of the device waits for a message. Call it when the new context is counted, before
 * its first call that may wait for the device. */
static DDP__UNUSED ddp_status ddp__cuda_await_holds(int device, ddp_error *err)
{
    const double begin = ddp_now();
    double most_s;

    while (ddp__cuda_open_holds(device, &most_s)) {
        if (ddp_now() - begin > most_s)
            return ddp__fail(err, DDP_TIMEOUT,
                             "GPU %d: a stream of another context of this process has waited %g s for a "
                             "message, and a new context would block it; open all contexts before the first "
                             "step, or set DREAMDDP_CUDA_WAITS=0",
                             device, most_s);
        ddp__sleep_until(ddp_now() + 1e-4);
    }
    return DDP_OK;
}

static const char ddp__cuda_not_alone[] = "another context of this process uses the GPU";

/* The calling thread waits from now on. */
static void ddp__cuda_waits_not(ddp__cuda_self *c, const char *why)
{
    c->waits = NULL;
    ddp__cuda_say(
        c->dev,
        "GPU %d: the calling thread waits for messages in place of the stream, which overlaps less: %s",
        c->dev->device, why);
}

/* DREAMDDP_CUDA_WAITS: auto tests whether a stream can wait, 1 assumes that it can, 0 makes the calling
 * thread wait. With auto it also waits if the program has its own stream, because ddp__cuda_before does not
 * see its launches. prepare has run before. */
static void ddp__cuda_waits_open(ddp__cuda_self *c)
{
    const char *set = c->dev->no_env ? NULL : ddp__env_get("DREAMDDP_CUDA_WAITS"), *why = NULL;

    c->waits = (ddp__cuda_waits)ddp__cuda_driver("cuStreamWaitValue32");
    if (set && !strcmp(set, "0"))
        why = "DREAMDDP_CUDA_WAITS is 0";
    else if (!c->waits)
        why = "the driver has no cuStreamWaitValue32";
    else if (!ddp__cuda_is_alone(c->dev))
        why = ddp__cuda_not_alone;
    else if (set && !strcmp(set, "1"))
        why = NULL;
    else if (!c->dev->own_stream)
        why = "the stream is the program's";
    else
        why = ddp__cuda_probe(c, c->dev->stream);
    if (why) ddp__cuda_waits_not(c, why);
}

/* All later work on stream waits until the flag of slot is at least turn. If streams cannot wait, the calling
 * thread does, which overlaps less but gives the same order. */
static DDP__UNUSED void ddp__cuda_hold_on(ddp__cuda_self *c, cudaStream_t stream, int slot, unsigned turn)
{
    char why[80];
    int e;

    if (c->waits) __atomic_store_n(&c->turn[slot], turn, __ATOMIC_SEQ_CST);
    if (c->waits && !ddp__cuda_is_alone(c->dev)) ddp__cuda_waits_not(c, ddp__cuda_not_alone);
    if (c->waits) {
        e = c->waits(stream, (uintptr_t)(c->flag_there + slot), turn, DDP__CUDA_GEQ);
        if (!e) {
            ddp__cuda_held(c->dev, &c->flag[slot], turn);
            return;
        }
        (void)snprintf(why, sizeof why, "cuStreamWaitValue32 failed with driver error %d", e);
        ddp__cuda_waits_not(c, why);
    }
    ddp__cuda_wait_raised(c->dev, &c->flag[slot], turn);
}

/* The stager's streams have a high priority, so that they do not share a hardware queue with the computing
 * stream. */
static int ddp__cuda_slots(ddp__cuda_self *c, int slots)
{
    ddp__cuda *dev = c->dev;
    const size_t n = (size_t)slots;
    int least = 0, greatest = 0;

    c->slots = slots;
    c->ready = ddp__cuda_events(dev, slots, cudaEventDisableTiming | cudaEventBlockingSync);
    c->turn = (unsigned *)ddp__calloc(n, sizeof *c->turn);
    if (!c->ready || !c->turn) return 0;
    if (cudaHostAlloc((void **)&c->flag, n * sizeof *c->flag, cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    memset(c->flag, 0, n * sizeof *c->flag);
    if (DDP__CUDA(dev, cudaHostGetDevicePointer((void **)&c->flag_there, c->flag, 0)) ||
        DDP__CUDA(dev, cudaDeviceGetStreamPriorityRange(&least, &greatest)) ||
        DDP__CUDA(dev, cudaStreamCreateWithPriority(&c->out, cudaStreamNonBlocking, greatest)) ||
        DDP__CUDA(dev, cudaStreamCreateWithPriority(&c->in, cudaStreamNonBlocking, greatest)))
        return 0;
    /* load this kernel now: a kernel that is loaded at its first launch may wait for a stream that waits for
     * a flag */
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, c->in, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    ddp__cuda_waits_open(c);
    ddp__cuda_list_add(c);
    return ddp__cuda_status(dev, NULL) == DDP_OK;
}

static void ddp__cuda_raise_all(ddp__cuda_self *c)
{
    for (int i = 0; c->flag && i < c->slots; i++) ddp__atomic_store(&c->flag[i], (unsigned)INT_MAX);
}

/* Polls NCCL for a lost peer, while the host waits. If there is one, aborts the messages in flight between
 * devices, so that the wait ends. Returns the error. */
static ddp_status ddp__cuda_ask(ddp__cuda_self *c, ddp_error *err)
{
    ddp_error why;

    if (!c->nccl || ddp__nccl_poll(c->nccl, &why) == DDP_OK) return DDP_OK;
    ddp__cuda_raise_all(c);
    ddp__nccl_give_up(c->nccl, &why);
    if (err) *err = why;
    return why.code;
}

static int ddp__cuda_lost(void *self) { return ddp__cuda_ask((ddp__cuda_self *)self, NULL) != DDP_OK; }

/* Waits for event (NULL for all queued work). If a peer is lost, the wait ends. */
static ddp_status ddp__cuda_await(ddp__cuda_self *c, cudaEvent_t event, ddp_error *err)
{
    ddp__cuda *dev = c->dev;
    ddp_status s = DDP_OK;

    while (c->nccl && s == DDP_OK &&
           ddp__cuda_asked(event ? cudaEventQuery(event) : cudaStreamQuery(dev->stream)) ==
               cudaErrorNotReady) {
        s = ddp__cuda_ask(c, err);
        if (s == DDP_OK) ddp__sleep_until(ddp_now() + 2e-5);
    }
    (void)(event ? DDP__CUDA(dev, cudaEventSynchronize(event))
                 : DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)));
    return s ? s : ddp__cuda_status(dev, err);
}

static void ddp__cuda_record(ddp__cuda_self *c, int slot)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->dev->stream));
}

/* Waits for the copy of a message. It waits only for the copy engine, unless a stream that waits for a
 * message keeps it from starting. */
static void ddp__cuda_copied(ddp__cuda_self *c, cudaStream_t stream)
{
    const double until = ddp_now() + c->copy_s;
    cudaError_t e;

    for (double pause = 2e-5; (e = ddp__cuda_asked(cudaStreamQuery(stream))) == cudaErrorNotReady;
         pause = pause < 1e-4 ? 1.5 * pause : pause) {
        if (ddp_now() > until) {
            ddp__cuda_fail(
                c->dev, DDP_TIMEOUT,
                "GPU %d: the copy of a message did not end within %g s: other work of the GPU blocks it; set "
                "DREAMDDP_CUDA_WAITS=0, or CUDA_DEVICE_MAX_CONNECTIONS=32 if ranks are threads",
                c->dev->device, c->copy_s);
            return;
        }
        ddp__sleep_until(ddp_now() + pause);
    }
    (void)DDP__CUDA(c->dev, e);
}

static ddp_status ddp__cuda_fetch(ddp__cuda_self *c, int slot, void *to, const void *from, size_t bytes,
                                  ddp_error *err)
{
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaEventSynchronize(c->ready[slot])) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->out)))
        ddp__cuda_copied(c, c->out);
    return ddp__cuda_status(dev, err);
}

static ddp_status ddp__cuda_give(ddp__cuda_self *c, void *to, const void *from, size_t bytes, ddp_error *err)
{
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->in))) {
        ddp__cuda_refresh(c, to, bytes, c->in);
        ddp__cuda_copied(c, c->in);
    }
    return ddp__cuda_status(dev, err);
}

static void ddp__cuda_raise(ddp__cuda_self *c, int slot, unsigned turn)
{
    if (ddp__atomic_load(&c->flag[slot]) < turn) ddp__atomic_store(&c->flag[slot], turn);
}

static void ddp__cuda_hold(ddp__cuda_self *c, int slot, unsigned turn)
{
    ddp__cuda_hold_on(c, c->dev->stream, slot, turn);
}

/* ==== cuda/update.cuh ==== [cuda] */
/* Arithmetic on parameters and gradients: updates, scaling, the global norm. An update is one pass over
 * parameter, gradient and state. It also zeroes the gradient if the layer owns it, and writes the bfloat16
 * copy. Each product and each sum is rounded separately, as on the CPU (nn/optimizer.c), so that replicas on
 * different processors stay bit-identical. */

enum { DDP__UPDATE_THREADS = 256 };

/* One element of each rule, with the state s0 and s1. */
template <int MOMENTUM, int NESTEROV> struct ddp__rule_sgd {
    static const int states = MOMENTUM;
    float momentum, decay, lr;

    __device__ float operator()(float w, float g, float *s0, float *) const
    {
        float d = __fadd_rn(g, __fmul_rn(decay, w));

        if (MOMENTUM) {
            *s0 = __fadd_rn(__fmul_rn(momentum, *s0), d);
            d = NESTEROV ? __fadd_rn(d, __fmul_rn(momentum, *s0)) : *s0;
        }
        return __fsub_rn(w, __fmul_rn(lr, d));
    }
};
struct ddp__rule_adam {
    static const int states = 2;
    ddp__adam_step k;

    __device__ float operator()(float w, float g, float *s0, float *s1) const
    {
        const float d = __fadd_rn(g, __fmul_rn(w, k.l2));
        const float mean = __fadd_rn(__fmul_rn(*s0, k.beta1), __fmul_rn(k.gain1, d));
        const float square = __fadd_rn(__fmul_rn(*s1, k.beta2), __fmul_rn(__fmul_rn(k.gain2, d), d));
        const float root = __fmul_rn(__fsqrt_rn(square), k.root);

        *s0 = mean;
        *s1 = square;
        return __fadd_rn(__fmul_rn(w, k.shrink), __fdiv_rn(__fmul_rn(k.step, mean), __fadd_rn(root, k.eps)));
    }
};

static __device__ inline int ddp__is_no_gradient(float x) { return __float_as_uint(x) == 0x80000000u; }

/* zero sets g to 0. wide means that all float arrays are aligned to 16 bytes. copy may be NULL. A missing
 * gradient stays -0.0, because other threads test for it. */
template <typename R>
static __global__ void ddp__k_update(float *w, float *g, float *s0, float *s1, ddp__bf16 *copy, long n,
                                     int zero, int wide, R rule)
{
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    float vw[4], vg[4], v0[4], v1[4];

    if (i >= n || (ddp__is_no_gradient(g[0]) && ddp__is_no_gradient(g[n - 1]))) return;
    wide = wide && i + 4 <= n;
    ddp__piece_load(vw, w, i, n, wide);
    ddp__piece_load(vg, g, i, n, wide);
    ddp__piece_load(v0, R::states > 0 ? s0 : w, i, n, wide);
    ddp__piece_load(v1, R::states > 1 ? s1 : w, i, n, wide);
    for (int k = 0; k < 4; k++) {
        vw[k] = rule(vw[k], vg[k], &v0[k], &v1[k]);
        vg[k] = 0;
    }
    ddp__piece_store(w, vw, i, n, wide, 0);
    if (zero) ddp__piece_store(g, vg, i, n, wide, 0);
    if (R::states > 0) ddp__piece_store(s0, v0, i, n, wide, 0);
    if (R::states > 1) ddp__piece_store(s1, v1, i, n, wide, 0);
    for (int k = 0; copy && k < 4 && i + k < n; k++) copy[i + k] = __float2bfloat16_rn(vw[k]);
}

/* x[i] = f(x[i], i), for the arithmetic functions of the table. */
template <typename F> static __global__ void ddp__k_each(float *x, long n, F f)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = f(x[i], i);
}

struct ddp__each_axpy {
    const float *x;
    float s;

    __device__ float operator()(float y, long i) const { return __fadd_rn(y, __fmul_rn(s, x[i])); }
};
struct ddp__each_scale {
    float s;

    __device__ float operator()(float x, long) const { return __fmul_rn(x, s); }
};
struct ddp__each_fill {
    float s;

    __device__ float operator()(float, long) const { return s; }
};
struct ddp__each_compensate {
    const float *now, *then;
    float s;

    __device__ float operator()(float x, long i) const
    {
        return __fadd_rn(x, __fmul_rn(__fmul_rn(__fmul_rn(x, x), __fsub_rn(now[i], then[i])), s));
    }
};

/* ---- the global norm: fixed parts, fixed trees, sums in double ---- */

static __global__ void ddp__k_squares(double *part, const float *x, long n)
{
    __shared__ double shared[DDP__UPDATE_THREADS];
    const long step = (long)gridDim.x * DDP__UPDATE_THREADS;
    double sum = 0;
    long i;

    for (i = (long)blockIdx.x * DDP__UPDATE_THREADS + threadIdx.x; i < n; i += step)
        sum += (double)x[i] * (double)x[i];
    sum = ddp__block_sum<DDP__UPDATE_THREADS>(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void ddp__k_squares_sum(double *total, const double *part, int parts, int first)
{
    __shared__ double shared[DDP__UPDATE_THREADS];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < parts; i += DDP__UPDATE_THREADS) sum += part[i];
    sum = ddp__block_sum<DDP__UPDATE_THREADS>(sum, shared);
    if (threadIdx.x == 0) *total = first ? sum : *total + sum;
}

static __global__ void ddp__k_clip(float *x, long n, const double *total, float limit)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const double norm = sqrt(*total) + 1e-6;
    if (i >= n || norm <= (double)limit) return;
    x[i] = __fmul_rn(x[i], (float)((double)limit / norm));
}

/* ---- the table's entries ---- */

template <typename R>
static inline void ddp__cuda_rule(ddp__cuda_self *c, const ddp_update *u, int zero, const R &rule)
{
    ddp__cuda *dev = c->dev;
    float *g = (float *)(uintptr_t)u->grads, *s0 = R::states > 0 ? u->state : NULL;
    float *s1 = R::states > 1 ? u->state + u->count : NULL;
    size_t left = 0;
    ddp__bf16 *copy = ddp__cuda_copy_of(c, u->params, &left);

    DDP__EACH((ddp__k_update<R>), ddp__pieces<float>((long)u->count), DDP__UPDATE_THREADS, u->params, g, s0,
              s1, copy, (long)u->count, zero, ddp__aligned(u->params, g, s0, s1), rule);
}

static void ddp__cuda_update(ddp__cuda_self *c, const ddp_optimizer *o, const ddp_update *u, int zero)
{
    const ddp__rule_sgd<0, 0> sgd = {o->hyper[0], o->hyper[1], u->lr};
    const ddp__rule_sgd<1, 0> momentum = {o->hyper[0], o->hyper[1], u->lr};
    const ddp__rule_sgd<1, 1> nesterov = {o->hyper[0], o->hyper[1], u->lr};
    ddp__rule_adam adam;
    ddp_update own = *u;

    switch (ddp__optimizer_rule(o)) {
    case DDP__RULE_SGD:
        if (o->state_per_param && o->hyper[2] > 0)
            ddp__cuda_rule(c, u, zero, nesterov);
        else if (o->state_per_param)
            ddp__cuda_rule(c, u, zero, momentum);
        else
            ddp__cuda_rule(c, u, zero, sgd);
        return;
    case DDP__RULE_ADAM:
        ddp__adam_factors(o, u, &adam.k);
        ddp__cuda_rule(c, u, zero, adam);
        return;
    case DDP__RULE_USER:
        own.stream = c->dev->stream;
        o->update(o, &own);
        if (zero)
            (void)DDP__CUDA(c->dev, cudaMemsetAsync((void *)(uintptr_t)u->grads, 0, u->count * sizeof(float),
                                                    c->dev->stream));
        ddp__cuda_refresh(c, u->params, u->count * sizeof(float), c->dev->stream);
        return;
    }
}

template <typename F> static void ddp__cuda_each(ddp__cuda_self *c, float *x, size_t n, const F &f)
{
    ddp__cuda *dev = c->dev;
    DDP__EACH((ddp__k_each<F>), (long)n, DDP__UPDATE_THREADS, x, (long)n, f);
    ddp__cuda_refresh(c, x, n * sizeof *x, dev->stream);
}

static void ddp__cuda_axpy(ddp__cuda_self *c, float *y, const float *x, size_t n, float s)
{
    ddp__cuda_each(c, y, n, ddp__each_axpy{x, s});
}

static void ddp__cuda_scale(ddp__cuda_self *c, float *x, size_t n, float s)
{
    ddp__cuda_each(c, x, n, ddp__each_scale{s});
}

static void ddp__cuda_fill(ddp__cuda_self *c, float *x, size_t n, float s)
{
    ddp__cuda_each(c, x, n, ddp__each_fill{s});
}

static void ddp__cuda_compensate(ddp__cuda_self *c, float *x, const float *now, const float *then, size_t n,
                                 float s)
{
    ddp__cuda_each(c, x, n, ddp__each_compensate{now, then, s});
}

static ddp__quantised ddp__payload_of(int bits, void *out, size_t n)
{
    ddp__quantised q = ddp__quantised_of(bits == 8 ? DDP_PACK_INT8 : DDP_PACK_INT4, out, n);
    q.scale = (float *)out;
    q.level = (unsigned char *)(q.scale + q.blocks);
    return q;
}

static void ddp__cuda_split(ddp__cuda *dev, int bits, float *x, void *out, size_t n)
{
    const ddp__quantised q = ddp__payload_of(bits, out, n);
    if (n) DDP__STRIDE(ddp__k_quantise<1>, q.blocks * DDP__PACK_LANES, q, x, (const ddp_cuda_verdict *)NULL);
}

/* Loads the kernels that strategies launch after a message: a kernel that is loaded at its first launch may
 * wait for a stream that waits for a flag. */
static void ddp__cuda_load_arithmetic(ddp__cuda_self *c)
{
    ddp__cuda *dev = c->dev;
    float *none = NULL;
    ddp__cuda_axpy(c, none, none, 0, 0);
    ddp__cuda_scale(c, none, 0, 0);
    ddp__cuda_fill(c, none, 0, 0);
    ddp__cuda_compensate(c, none, none, none, 0, 0);
    DDP__RUN(ddp__k_quantise<1>, 1, 32, ddp__payload_of(8, none, 0), none, (const ddp_cuda_verdict *)NULL);
}

static void ddp__cuda_clip_add(ddp__cuda_self *c, const float *x, size_t n, int first)
{
    ddp__cuda *dev = c->dev;
    long parts = ddp__blocks((long)n, 4 * DDP__UPDATE_THREADS); /* the order of the sum depends only on n */
    if (parts > DDP__CLIP_PARTS) parts = DDP__CLIP_PARTS;
    DDP__RUN(ddp__k_squares, (unsigned)parts, DDP__UPDATE_THREADS, c->squares, x, (long)n);
    DDP__RUN(ddp__k_squares_sum, 1, DDP__UPDATE_THREADS, c->squares + DDP__CLIP_PARTS, c->squares, (int)parts,
             first);
}

static void ddp__cuda_clip_scale(ddp__cuda_self *c, float *x, size_t n, float limit)
{
    ddp__cuda *dev = c->dev;
    DDP__EACH(ddp__k_clip, (long)n, DDP__UPDATE_THREADS, x, (long)n, c->squares + DDP__CLIP_PARTS, limit);
}

/* ==== cuda/self_check.cuh ==== [cuda] */
/* The self-check of a device, before training uses it. Each specialised kernel runs on a small problem, and
 * so does its portable form. If the results differ or a launch fails, the device uses the portable form, and
 * one line of the log gives the figures. A kernel that does not end in time is an error. Compression is
 * compared with the CPU, byte by byte. */

/* The value of DREAMDDP_CUDA_HOPPER if it is not set. */
#ifndef DDP__CUDA_HOPPER
#define DDP__CUDA_HOPPER "auto"
#endif

enum { DDP__CHECK_KEPT = 20000 }; /* elements from which Top-K selects, three tiles */

/* The value of DREAMDDP_CUDA_HOPPER that omits a form which ends all work on the device. */
#define DDP__CHECK_WGMMA "attention with wgmma"
static const char *ddp__check_remedy(const char *name)
{
    return strcmp(name, DDP__CHECK_WGMMA) == 0 ? "0" : "portable";
}

/* Closes the check of one form. Returns 1 if the device may use it. name: the kernels, instead: the form that
 * is used if they failed. */
static int ddp__check_passes(ddp__check *c, ddp__finding *f, const char *name, const char *instead)
{
    ddp__cuda *dev = c->dev;
    const size_t used = strlen(c->passed);
    cudaError_t e;

    if (!f->error.code) {
        if (c->late) return 0;       /* an earlier kernel did not end */
        (void)ddp__check_wait(c, f); /* a failure before the first launch */
    }
    if (!f->error.code && f->what && f->worst <= DDP__CHECK_LIMIT) {
        ddp__format(c->passed + used, sizeof c->passed - used, "%s%s %.2g", used ? ", " : "", name, f->worst);
        return 1;
    }
    if (f->error.code)
        ddp__log(dev->log, DDP_LOG_WARN, "GPU %d: self-check: %s failed: %s; %s", dev->device, name,
                 f->error.msg, c->late ? "the device cannot be used any more" : instead);
    else if (f->exact)
        ddp__log(dev->log, DDP_LOG_WARN, "GPU %d: self-check: %s: %s is not bit-identical to the CPU's; %s",
                 dev->device, name, f->what, instead);
    else
        ddp__log(dev->log, DDP_LOG_WARN,
                 "GPU %d: self-check: %s: %s differs from the portable form by %.3g of its largest value "
                 "(limit: %g); %s",
                 dev->device, name, f->what ? f->what : "no array", f->worst, DDP__CHECK_LIMIT, instead);
    if (c->late) return 0;
    e = cudaStreamSynchronize(dev->stream); /* some failures end all work of the process on the device */
    (void)cudaGetLastError();
    if (e != cudaSuccess)
        ddp__cuda_fail(dev, DDP_FAILED,
                       "GPU %d: the self-check of %s failed, and the device cannot be used any more: %s; set "
                       "DREAMDDP_CUDA_HOPPER=%s and start the program again",
                       dev->device, name, cudaGetErrorString(e), ddp__check_remedy(name));
    return 0;
}

/* Compares all results but the saved arrays. */
static void ddp__check_both(ddp__check *c, ddp__finding *f, const ddp_op_call *is, const ddp_op_call *right)
{
    const ddp_op_spec *s = is->spec;
    const long out = ddp_shape_count(&s->out), in = ddp_shape_count(&s->in[0]);

    ddp__check_compare(c, f, "the output", is->out, right->out, out, ddp__cuda_half(c->dev, &s->out), out, 0,
                       out);
    ddp__check_compare(c, f, "the gradient of the input", is->grad_in[0], right->grad_in[0], in, c->dev->half,
                       in, 0, in);
    for (int i = 0; i < s->params; i++) {
        const long n = ddp_shape_count(&s->param[i].shape);
        ddp__check_compare(c, f, i ? "the gradient of the bias" : "the gradient of the weights",
                           is->grad_param[i], right->grad_param[i], n, 0, n, 0, n);
    }
}

/* ---- attention ---- */

static void ddp__check_attention(ddp__check *c)
{
    ddp__cuda *dev = c->dev;
    ddp__finding mma = DDP__ZEROS, wgmma = DDP__ZEROS;

    if (!dev->half && !dev->tf32) return;
    ddp__check_heads(c, &mma, 0, 192, 2, 64); /* three tiles of keys */
    ddp__check_heads(c, &mma, 0, 192, 2, 56);
    ddp__check_heads(c, &mma, 0, 160, 1, 128); /* a separate instance, for heads of 65 to 128 columns */
    if (!ddp__check_passes(c, &mma, "attention with mma", "attention runs without tensor cores"))
        dev->forms |= DDP__PLAIN_ATTENTION;
    if (!dev->map || c->late || ddp__atomic_load(&dev->failed)) return;
    ddp__check_heads(c, &wgmma, 1, 192, 2, 64);
    ddp__check_heads(c, &wgmma, 1, 192, 2, 56);
    if (!ddp__check_passes(c, &wgmma, DDP__CHECK_WGMMA, "attention does not use it")) dev->map = NULL;
}

/* ---- convolution ---- */

static void ddp__check_window(ddp__check *c, ddp__finding *f, long planes, long channels, long step)
{
    ddp_op_spec spec = DDP__ZEROS;
    ddp_op_call call = DDP__ZEROS, right;
    const ddp_op *op;

    ddp__check_new(c);
    spec.inputs = 1;
    spec.in[0] = {4, {1, planes, 9, 9}};
    spec.arg[0] = (double)channels;
    spec.arg[1] = 3;
    spec.arg[2] = (double)step;
    spec.arg[3] = 1;
    spec.arg[4] = 1;
    op = ddp__check_call(c, "conv2d", &spec, &call);
    right = call;
    if (!op || !ddp__check_run(c, f, op, &right, DDP__PLAIN_CONV)) return;
    if (ddp__check_run(c, f, op, &call, 0)) ddp__check_both(c, f, &call, &right);
    if (ddp__check_run(c, f, op, &call, DDP__TALL_CONV)) ddp__check_both(c, f, &call, &right);
}

/* Whole taps at a time, and single elements; both heights of the tiles of weights. */
static void ddp__check_conv(ddp__check *c)
{
    ddp__finding f = DDP__ZEROS;

    if (!c->dev->half && !c->dev->tf32) return;
    ddp__check_window(c, &f, 32, 72, 1);
    ddp__check_window(c, &f, 12, 40, 2);
    if (!ddp__check_passes(c, &f, "convolution with tensor cores", "convolutions run without them"))
        c->dev->forms |= DDP__PLAIN_CONV;
}

/* ---- products of cuBLASLt with more than a bias ---- */

enum { DDP__CHECK_ROWS = 96, DDP__CHECK_COLUMNS = 64 };

/* A product with one epilogue: the bit of its form, a linear layer and the gelu after it. */
typedef struct ddp__check_product {
    unsigned bit;
    ddp_op_spec linear, gelu;
    ddp_op_call first, second;
} ddp__check_product;

static int ddp__check_product_run(ddp__check *c, ddp__finding *f, const ddp__check_product *p, unsigned forms,
                                  ddp_op_call *first, ddp_op_call *second)
{
    *first = p->first;
    *second = p->second;
    if (c->late || f->error.code) return 0;
    c->probe->forms = forms;
    ddp__check_results(c, first);
    ddp__check_results(c, second);
    second->in[0] = first->out;
    if (p->bit == DDP__PLAIN_GELU) {
        ddp__cuda_linear_gelu_forward(first, second);
        return ddp__check_wait(c, f);
    }
    if (p->bit == DDP__PLAIN_SUMS) {
        first->grad_in[0] = NULL;
    } else {
        first->inner = first->in[0];
        first->grad_param[0] = first->grad_param[1] = NULL;
    }
    ddp__cuda_linear_backward(first);
    return ddp__check_wait(c, f);
}

static void ddp__check_epilogue(ddp__check *c, unsigned bit, const char *name)
{
    const long n = DDP__CHECK_COLUMNS, all = DDP__CHECK_ROWS * n;
    const int half = c->dev->half;
    ddp__check_product p = DDP__ZEROS;
    ddp__finding f = DDP__ZEROS;
    ddp_op_call is[2], right[2];

    ddp__check_new(c);
    p.bit = bit;
    p.linear.inputs = p.gelu.inputs = 1;
    p.linear.in[0] = p.gelu.in[0] = {2, {DDP__CHECK_ROWS, n}};
    p.linear.arg[0] = (double)n;
    if (ddp__check_call(c, "linear", &p.linear, &p.first) && ddp__check_call(c, "gelu", &p.gelu, &p.second) &&
        ddp__check_product_run(c, &f, &p, bit, &right[0], &right[1]) &&
        ddp__check_product_run(c, &f, &p, 0, &is[0], &is[1])) {
        ddp__check_compare(c, &f, "the product", is[0].out, right[0].out, all, half, n, 0, n);
        ddp__check_compare(c, &f, "the output of gelu", is[1].out, right[1].out, all, half, n, 0, n);
        ddp__check_compare(c, &f, "the gradient of the input", is[0].grad_in[0], right[0].grad_in[0], all,
                           half, n, 0, n);
        ddp__check_compare(c, &f, "the gradient of the bias", is[0].grad_param[1], right[0].grad_param[1], n,
                           0, n, 0, n);
    }
    if (!ddp__check_passes(c, &f, name, "it runs as a kernel after the product")) c->dev->forms |= bit;
}

static void ddp__check_epilogues(ddp__check *c)
{
    if (ddp__cuda_pair_of(c->dev, "linear", "gelu")) {
        ddp__check_epilogue(c, DDP__PLAIN_GELU, "gelu in a product");
        ddp__check_epilogue(c, DDP__PLAIN_GELU_GRAD, "the gradient of gelu in a product");
    }
    ddp__check_epilogue(c, DDP__PLAIN_SUMS, "a bias gradient in a product");
}

/* ---- the head in chunks ---- */

/* Compares linear_cross_entropy with linear_no_bias and cross_entropy on all rows at once. There are two
 * chunks or more. */
static void ddp__check_head(ddp__check *c)
{
    const long rows = 600, n = DDP__CHECK_COLUMNS, k = 16;
    ddp_op_spec head = DDP__ZEROS, product = DDP__ZEROS, loss = DDP__ZEROS;
    ddp_op_call call = DDP__ZEROS, first = DDP__ZEROS, second = DDP__ZEROS, right;
    const ddp_op *op, *linear, *cross;
    const float one = 1;
    ddp__finding f = DDP__ZEROS;
    int label[600];
    void *labels, *by;

    ddp__check_new(c);
    for (long i = 0; i < rows; i++) label[i] = i % 9 ? (int)ddp_rng_below(&c->rng, (uint64_t)n) : -1;
    labels = ddp__check_take(c, sizeof label);
    by = ddp__check_take(c, sizeof one);
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(labels, label, sizeof label, cudaMemcpyHostToDevice, c->probe->stream));
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(by, &one, sizeof one, cudaMemcpyHostToDevice, c->probe->stream));
    head.inputs = loss.inputs = 2;
    product.inputs = 1;
    head.in[0] = product.in[0] = {2, {rows, k}};
    loss.in[0] = {2, {rows, n}};
    head.in[1] = loss.in[1] = {1, {rows}};
    head.in_type[1] = loss.in_type[1] = DDP_I32;
    head.arg[0] = product.arg[0] = (double)n;
    call.in[1] = second.in[1] = labels;
    call.grad_out = second.grad_out = by;
    op = ddp__check_call(c, "linear_cross_entropy", &head, &call);
    linear = ddp__check_call(c, "linear_no_bias", &product, &first);
    second.in[0] = first.grad_out; /* until the product has an output */
    cross = ddp__check_call(c, "cross_entropy", &loss, &second);
    if (op && linear && cross && ddp__check_run(c, &f, op, &call, 0)) {
        right = call;
        first.in[0] = call.in[0];
        first.param[0] = call.param[0];
        ddp__check_results(c, &first);
        ddp__check_results(c, &second);
        linear->forward(&first);
        second.in[0] = first.out;
        cross->forward(&second);
        if (ddp__check_wait(c, &f)) cross->backward(&second);
        first.grad_out = second.grad_in[0];
        if (ddp__check_wait(c, &f)) linear->backward(&first);
        right.out = second.out;
        right.grad_in[0] = first.grad_in[0];
        right.grad_param[0] = first.grad_param[0];
        if (ddp__check_wait(c, &f)) ddp__check_both(c, &f, &call, &right);
    }
    if (!ddp__check_passes(c, &f, "the head in chunks", "loss and gradient are separate kernels"))
        c->dev->forms |= DDP__PLAIN_HEAD;
}

/* ---- compression, compared with the CPU ---- */

static void ddp__check_unequal(ddp__finding *f, const char *what, const void *is, const void *right,
                               size_t bytes)
{
    if (f->error.code || f->worst > 0) return;
    f->what = what;
    f->exact = 1;
    f->worst = memcmp(is, right, bytes) ? 1 : 0;
}

/* Blocks of int8 and int4, and the residual. The last block is not full. */
static void ddp__check_blocks(ddp__check *c)
{
    enum { N = 1000, MOST = 2 * N };
    unsigned char right[MOST], *is = (unsigned char *)c->host[1];
    float from[N];
    ddp__finding f = DDP__ZEROS;

    for (int bits = 8; bits >= 4; bits -= 4) {
        const ddp_packing packing = bits == 8 ? DDP_PACK_INT8 : DDP_PACK_INT4;
        float *x, *rest = c->host[0];
        size_t bytes = 0;
        void *out;

        ddp__check_new(c);
        x = (float *)ddp__check_values(c, N, 0);
        memcpy(from, rest, sizeof from);
        out = ddp__check_take(c, MOST);
        if (c->late || ddp_pack_quantised(packing, from, N, right, MOST, &bytes, &f.error)) break;
        ddp__cuda_split(c->probe, bits, x, out, N);
        bytes -= DDP_PACK_HEAD;
        if (!ddp__check_wait(c, &f) || !ddp__check_read(c, &f, 1, out, bytes)) break;
        ddp__check_unequal(&f, "a message", is, right + DDP_PACK_HEAD, bytes);
        if (ddp_unpack_store(right, bytes + DDP_PACK_HEAD, c->host[1], N, &f.error)) break;
        for (int i = 0; i < N; i++) from[i] -= c->host[1][i];
        if (!ddp__check_read(c, &f, 0, x, sizeof from)) break;
        ddp__check_unequal(&f, "the residual", rest, from, sizeof from);
    }
    if (!ddp__check_passes(c, &f, "int8 and int4 blocks", "the host makes them"))
        c->dev->forms |= DDP__PLAIN_BLOCKS;
}

/* Top-K with ties. Contexts do not use it. The program calls it with a stream, so the log names the function
 * of the CPU. */
static void ddp__check_topk(ddp__check *c)
{
    enum { N = DDP__CHECK_KEPT, K = 300 };
    const size_t room = ddp_cuda_topk_scratch(N, K), here = ddp_topk_scratch(N, K);
    void *scratch = ddp__calloc(here, 1), *there, *verdict;
    uint64_t right[K], *index;
    ddp__finding f = DDP__ZEROS;
    float *x;

    ddp__check_new(c);
    x = (float *)ddp__check_values(c, N, 0);
    for (int i = 0; i < N; i++) c->host[0][i] = (float)(int)(c->host[0][i] * 1000);
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(x, c->host[0], N * sizeof *x, cudaMemcpyHostToDevice, c->probe->stream));
    there = ddp__check_take(c, room);
    verdict = ddp__check_take(c, sizeof(ddp_cuda_verdict));
    index = (uint64_t *)ddp__check_take(c, sizeof right);
    if (!scratch)
        (void)ddp__fail(&f.error, DDP_MEMORY, "out of memory for Top-K of the CPU");
    else if (!c->late && !ddp_topk(c->host[0], N, K, scratch, here, right, NULL, &f.error) &&
             !ddp_cuda_topk(x, N, K, there, room, index, NULL, (ddp_cuda_verdict *)verdict, c->probe->stream,
                            &f.error) &&
             ddp__check_wait(c, &f) && ddp__check_read(c, &f, 1, index, sizeof right))
        ddp__check_unequal(&f, "an index", c->host[1], right, sizeof right);
    (void)ddp__check_passes(c, &f, "ddp_cuda_topk", "use ddp_topk, on the host");
    if (scratch) DDP_FREE(scratch);
}

/* ---- all of it ---- */

/* Checks all families of kernels that this number mode uses. */
static ddp_status ddp__cuda_self_check(ddp__cuda *dev, double wait_s, ddp_error *err)
{
    static void (*const families[])(ddp__check *) = {ddp__check_attention, ddp__check_conv,
                                                     ddp__check_epilogues, ddp__check_head,
                                                     ddp__check_blocks,    ddp__check_topk};
    const double begin = ddp_now();
    ddp__check c;

    if (ddp__check_open(&c, dev, wait_s, DDP__CHECK_BYTES, DDP__CHECK_MOST)) {
        for (auto family : families)
            if (!c.late && !ddp__atomic_load(&dev->failed)) family(&c);
    } else {
        ddp__log(dev->log, DDP_LOG_WARN,
                 "GPU %d: self-check: out of memory (%d bytes); the portable kernels are used", dev->device,
                 DDP__CHECK_BYTES);
    }
    if (!c.memory) { /* what was not checked is not used */
        dev->map = NULL;
        dev->forms |= DDP__PLAIN;
    }
    if (c.late) { /* every release of memory would wait for the kernel, so no training is possible */
        dev->stuck = 1;
        ddp__cuda_fail(
            dev, DDP_TIMEOUT,
            "GPU %d: a kernel of the self-check did not end within %g s, and the process cannot use "
            "the device any more; set DREAMDDP_CUDA_HOPPER=portable and start the program again",
            dev->device, wait_s);
    }
    ddp__log(dev->log, DDP_LOG_INFO, "GPU %d: self-check: %.1f ms; largest differences: %s", dev->device,
             1e3 * (ddp_now() - begin), c.passed[0] ? c.passed : "none");
    ddp__check_close(&c);
    return ddp__cuda_status(dev, err);
}

/* Chooses the forms of the kernels. DREAMDDP_CUDA_HOPPER: auto checks all, 0 checks all but wgmma, which is
 * not used, 1 uses all without a check, portable uses none of them, also without a check. */
static ddp_status ddp__cuda_prepare(ddp__cuda *dev, int no_env, ddp_error *err)
{
    const char *how = no_env ? NULL : getenv("DREAMDDP_CUDA_HOPPER"); /* config/settings.c checks it */

    dev->no_env = no_env;
    if (!how || !*how) how = DDP__CUDA_HOPPER;
    if (strcmp(how, "1") == 0) return ddp__cuda_status(dev, err);
    if (strcmp(how, "auto") != 0) dev->map = NULL;
    if (strcmp(how, "portable") != 0) return ddp__cuda_self_check(dev, DDP__CHECK_WAIT_S, err);
    dev->forms |= DDP__PLAIN;
    return ddp__cuda_status(dev, err);
}

/* 1 if the device makes int8 and int4 blocks. */
static int ddp__cuda_splits(ddp__cuda *dev) { return !(dev->forms & DDP__PLAIN_BLOCKS); }

/* ==== cuda/backend.cuh ==== [cuda] */
/* The backend table of a GPU (base/backend.h): opening, memory, copies and averages. The other files of this
 * directory define the remaining functions of the table. */

/* ---- opening ---- */

/* Waits for queued work and frees what the context has on the device. */
static void ddp__cuda_backend_free(ddp__cuda_self *c)
{
    (void)cudaSetDevice(c->dev->device);
    ddp__cuda_raise_all(c);
    (void)cudaStreamSynchronize(c->dev->stream);
    ddp__cuda_replays_drop(c->dev);
    ddp__cuda_events_free(c->mark, c->marks + 1);
    ddp__cuda_events_free(c->ready, c->slots);
    if (c->flag) (void)cudaFreeHost(c->flag);
    if (c->out) (void)cudaStreamDestroy(c->out);
    if (c->in) (void)cudaStreamDestroy(c->in);
    ddp__cuda_events_free(c->ring_free, DDP__UPLOAD_PARTS);
    if (c->ring) (void)cudaFreeHost(c->ring);
    if (c->early) (void)cudaFreeHost(c->early);
    if (c->early_done) (void)cudaEventDestroy(c->early_done);
    if (c->squares) (void)cudaFree(c->squares);
}

static void ddp__cuda_backend_close(ddp__cuda_self *c)
{
    if (!c) return;
    if (c->dev) {
        const int device = c->dev->device;
        ddp__cuda_list_drop(c);
        if (!c->dev->stuck) ddp__cuda_backend_free(c);
        if (c->turn) DDP_FREE(c->turn);
        if (c->dev->lists) DDP_FREE(c->dev->lists);
        if (c->ranged) (void)nvtxRangePop();
        ddp__cuda_close(c->dev);
        (void)ddp__cuda_count_context(device, -1); /* now another context's stream may wait */
    }
    while (c->mirror) {
        ddp__cuda_mirror *m = c->mirror;
        c->mirror = m->next;
        DDP_FREE(m);
    }
    DDP_FREE(c);
}

static ddp_status ddp__cuda_backend_open(const ddp_backend *b, int local_rank, void *stream, void **self,
                                         ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)ddp__calloc(1, sizeof *c);
    int device = b->device, n = 0;
    ddp__cuda *dev;

    if (!c) return ddp__fail(err, DDP_MEMORY, "out of memory for the state of the GPU");
    if (device < 0) { /* the ranks on one machine share its GPUs */
        device = cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? local_rank % n : 0;
        (void)cudaGetLastError();
    }
    (void)ddp__cuda_count_context(device, 1);
    if (ddp__cuda_await_holds(device, err) == DDP_OK)
        c->dev = ddp__cuda_open(device, (ddp_cuda_numbers)b->numbers, stream, err);
    dev = c->dev;
    if (!dev) {
        (void)ddp__cuda_count_context(device, -1);
        DDP_FREE(c);
        return err->code;
    }
    ddp__cuda_elementwise_ops(dev);
    ddp__cuda_text_ops(dev);
    ddp__cuda_conv_ops(dev);
    ddp__cuda_batch_norm_ops(dev);
    ddp__cuda_pool_ops(dev);
    ddp__cuda_flash_open(dev);
    if (dev->own_stream)
        dev->lists =
            (ddp__cuda_lists *)ddp__calloc(1, sizeof *dev->lists); /* with the default mode, another thread's
                                                                    * call could break a capture */
    if (!DDP__CUDA(dev, cudaMallocHost((void **)&c->ring, DDP__UPLOAD_PARTS * DDP__UPLOAD_BYTES)))
        (void)DDP__CUDA(dev, cudaMalloc((void **)&c->squares, (DDP__CLIP_PARTS + 1) * sizeof *c->squares));
    if (!dev->failed) c->ring_free = ddp__cuda_events(dev, DDP__UPLOAD_PARTS, cudaEventDisableTiming);
    if (c->ring_free && !DDP__CUDA(dev, cudaMallocHost((void **)&c->early, sizeof *c->early)))
        (void)DDP__CUDA(dev, cudaEventCreateWithFlags(&c->early_done, cudaEventDisableTiming));
    if (!dev->failed && !c->ring_free)
        ddp__cuda_fail(dev, DDP_MEMORY, "out of memory for the state of the GPU");
    ddp__cuda_load_arithmetic(c);
    c->copy_s = DBL_MAX;
    dev->lost = ddp__cuda_lost;
    dev->lost_of = c;
    if (ddp__cuda_status(dev, err)) {
        ddp__cuda_backend_close(c);
        return err->code;
    }
    *self = c;
    return DDP_OK;
}

static void ddp__cuda_attach(ddp__cuda_self *c, const ddp_logger *log, double op_timeout_s)
{
    c->copy_s = op_timeout_s < 60 ? op_timeout_s : 60;
    ddp__cuda_log(c->dev, log);
}

static ddp_status ddp__cuda_wait(ddp__cuda_self *c, ddp_error *err) { return ddp__cuda_await(c, NULL, err); }

/* ---- memory ---- */

/* Running out of memory is not recorded as a failure of the device: the caller reports what the memory was
 * for. */
static void *ddp__cuda_alloc(ddp__cuda *dev, size_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaSetDevice(dev->device);

    ddp__cuda_before(dev, 1);
    if (e == cudaSuccess) e = cudaMalloc(&p, bytes);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        if (e != cudaErrorMemoryAllocation) (void)DDP__CUDA(dev, e);
        return NULL;
    }
    (void)DDP__CUDA(dev, cudaMemsetAsync(p, 0, bytes, dev->stream));
    return p;
}

static void ddp__cuda_release(ddp__cuda *dev, void *at, size_t)
{
    (void)cudaSetDevice(dev->device);
    ddp__cuda_before(dev, 1);
    (void)cudaFree(at); /* waits for the device */
    ddp__cuda_replays_drop(dev);
}

static void *ddp__cuda_pin(void *, size_t bytes)
{
    void *p = NULL;

    if (cudaMallocHost(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void ddp__cuda_unpin(void *, void *at, size_t) { (void)cudaFreeHost(at); }

static void ddp__cuda_memory(ddp__cuda *dev, double *total, double *unused)
{
    size_t all = 0, left = 0;
    (void)DDP__CUDA(dev, cudaMemGetInfo(&left, &all));
    *total = (double)all;
    *unused = (double)left;
}

static int ddp__cuda_element_bytes(ddp__cuda *dev) { return dev->half ? 2 : 4; }

static void *ddp__cuda_mirror_new(ddp__cuda_self *c, float *params, size_t count)
{
    ddp__cuda_mirror *m;

    if (!c->dev->half) return params;
    m = (ddp__cuda_mirror *)ddp__calloc(1, sizeof *m);
    if (m) m->copy = (ddp__bf16 *)ddp__cuda_alloc(c->dev, count * sizeof *m->copy);
    if (!m || !m->copy) {
        if (m) DDP_FREE(m);
        return NULL;
    }
    m->master = params;
    m->count = count;
    m->next = c->mirror;
    c->mirror = m;
    return m->copy;
}

static void ddp__cuda_forget(ddp__cuda_self *c, float *params)
{
    ddp__cuda_mirror **link = &c->mirror, *m;

    while (*link && (*link)->master != params) link = &(*link)->next;
    m = *link;
    if (!m) return;
    *link = m->next;
    ddp__cuda_release(c->dev, m->copy, 0);
    DDP_FREE(m);
}

/* ---- copies ---- */

static uint16_t ddp__bf16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Sends bytes through the pinned ring, part by part. fill(part, at, n) writes the n bytes at offset at. */
template <typename F> static void ddp__cuda_send(ddp__cuda_self *c, void *to, size_t bytes, F fill)
{
    ddp__cuda *dev = c->dev;
    size_t at = 0, n;

    for (; at < bytes; at += n) {
        const int part = c->ring_next;
        char *from = c->ring + (size_t)part * DDP__UPLOAD_BYTES;
        n = bytes - at < (size_t)DDP__UPLOAD_BYTES ? bytes - at : (size_t)DDP__UPLOAD_BYTES;
        (void)ddp__cuda_await(c, c->ring_free[part], NULL); /* wait until the part's last upload has ended.
                                                               poll reports an error again */
        fill(from, at, n);
        (void)DDP__CUDA(dev, cudaMemcpyAsync((char *)to + at, from, n, cudaMemcpyHostToDevice, dev->stream));
        (void)DDP__CUDA(dev, cudaEventRecord(c->ring_free[part], dev->stream));
        c->ring_next = (part + 1) % DDP__UPLOAD_PARTS;
    }
}

static void ddp__cuda_upload(ddp__cuda_self *c, void *to, const void *from, size_t bytes)
{
    ddp__cuda_send(c, to, bytes,
                   [=](void *part, size_t at, size_t n) { memcpy(part, (const char *)from + at, n); });
    ddp__cuda_refresh(c, to, bytes, c->dev->stream);
}

/* Calls f(i, k) for elements at to end - 1 of the device's array. For channels-last images, k is the index of
 * element i on the host. The loop visits 64 pixels at a time for each channel, so that they stay in the
 * cache. `at` and `end` may lie inside a pixel. */
template <typename F> static inline void ddp__cuda_places(const ddp_shape *s, long at, long end, F f)
{
    const long channels = s->dims == 4 ? s->dim[1] : 1, plane = s->dims == 4 ? s->dim[2] * s->dim[3] : end;

    while (at < end) {
        const long first = at % channels, pixel = at / channels % plane,
                   image = at / channels / plane * channels;
        const long left = (end - at) / channels, last = ddp__min_long(channels, first + end - at);
        const long pixels =
            first || !left ? 1 : ddp__min_long(ddp__min_long(left, plane - pixel), channels > 1 ? 64 : left);
        for (long p = first; p < last; p++)
            for (long q = 0; q < pixels; q++)
                f(at - first + q * channels + p, (image + p) * plane + pixel + q);
        at += (pixels - 1) * channels + last - first;
    }
}

static void ddp__cuda_upload_elements(ddp__cuda_self *c, void *to, const float *from, const ddp_shape *s)
{
    const int half = ddp__cuda_half(c->dev, s);
    const size_t size = half ? sizeof(uint16_t) : sizeof *from, bytes = (size_t)ddp_shape_count(s) * size;

    if (!half && s->dims < 4)
        ddp__cuda_upload(c, to, from, bytes);
    else
        ddp__cuda_send(c, to, bytes, [=](void *part, size_t at, size_t n) {
            const long first = (long)(at / size);
            ddp__cuda_places(s, first, first + (long)(n / size), [=](long i, long k) {
                if (half)
                    ((uint16_t *)part)[i - first] = ddp__bf16_bits(from[k]);
                else
                    ((float *)part)[i - first] = from[k];
            });
        });
}

static ddp_status ddp__cuda_download(ddp__cuda_self *c, void *to, const void *from, size_t bytes,
                                     ddp_error *err)
{
    ddp__cuda *dev = c->dev;
    /* a copy to unpinned memory waits for all earlier work, even if a peer is lost */
    DDP__TRY(ddp__cuda_wait(c, err));
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, dev->stream));
    return ddp__cuda_wait(c, err);
}

static ddp_status ddp__cuda_norm2(ddp__cuda_self *c, const float *x, size_t n, double *out, ddp_error *err)
{
    *out = 0;
    if (n == 0) return DDP_OK;
    ddp__cuda_clip_add(c, x, n, 1);
    return ddp__cuda_download(c, out, c->squares + DDP__CLIP_PARTS, sizeof *out, err);
}

static ddp_status ddp__cuda_download_elements(ddp__cuda_self *c, float *to, const void *from,
                                              const ddp_shape *s, ddp_error *err)
{
    const int half = ddp__cuda_half(c->dev, s), plain = !half && s->dims < 4;
    const size_t count = (size_t)ddp_shape_count(s), size = half ? sizeof(uint16_t) : sizeof *to;
    void *raw = plain ? to : ddp__calloc(count, size);
    ddp_status status;

    if (!raw) return ddp__fail(err, DDP_MEMORY, "out of memory for %zu values of the GPU", count);
    status = ddp__cuda_download(c, raw, from, count * size, err);
    if (plain) return status;
    ddp__cuda_places(s, 0, (long)count, [=](long i, long k) {
        const uint32_t u = half ? (uint32_t)((uint16_t *)raw)[i] << 16 : ((uint32_t *)raw)[i];
        memcpy(&to[k], &u, sizeof u);
    });
    DDP_FREE(raw);
    return status;
}

static void ddp__cuda_early(ddp__cuda_self *c, const float *from)
{
    ddp__cuda *dev = c->dev;
    c->early_from = from;
    if (!DDP__CUDA(dev, cudaMemcpyAsync(c->early, from, sizeof *from, cudaMemcpyDeviceToHost, dev->stream)))
        (void)DDP__CUDA(dev, cudaEventRecord(c->early_done, dev->stream));
}

static int ddp__cuda_early_value(ddp__cuda_self *c, const float *from, float *value)
{
    if (c->early_from != from) return 0;
    *value = ddp__cuda_await(c, c->early_done, NULL) == DDP_OK ? *c->early : (float)ddp__unknown();
    return 1;
}

static void ddp__cuda_copy(ddp__cuda_self *c, void *to, const void *from, size_t bytes)
{
    ddp__cuda *dev = c->dev;
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, dev->stream));
    ddp__cuda_refresh(c, to, bytes, dev->stream);
}

static void ddp__cuda_zero(ddp__cuda *dev, void *at, size_t bytes)
{
    (void)DDP__CUDA(dev, cudaMemsetAsync(at, 0, bytes, dev->stream));
}

/* ---- operators ---- */

static int ddp__cuda_reserve(ddp__cuda *dev, size_t bytes)
{
    const size_t had = dev->scratch_bytes;
    const ddp_status s = ddp__cuda_want_scratch(dev, bytes, NULL);

    if (dev->scratch_bytes != had) ddp__cuda_replays_drop(dev);
    return s == DDP_OK;
}

static void *ddp__cuda_compute(ddp__cuda *dev) { return dev; }

/* ---- from device to device ---- */

static ddp_status ddp__cuda_join(ddp__cuda_self *c, const ddp_backend_peers *p, ddp_error *err)
{
    const char *why;

    c->nccl = ddp__nccl_join(c->dev, p, c->slots, err);
    if (!c->nccl) return err->code;
    why = c->waits ? ddp__cuda_probe(c, c->nccl->stream) : NULL;
    if (why) ddp__cuda_waits_not(c, why);
    if (ddp__cuda_status(c->dev, err) == DDP_OK) return DDP_OK;
    ddp__nccl_leave(c->nccl, 1);
    c->nccl = NULL;
    return err->code;
}

/* Refreshes the bfloat16 copies of arrays that are final. */
static ddp_status ddp__cuda_final(ddp__cuda_self *c, int slot, float *const *arrays, const size_t *counts,
                                  int arrays_count, ddp_error *err)
{
    if (!c->mirror) return DDP_OK;
    for (int i = 0; i < arrays_count; i++)
        ddp__cuda_refresh(c, arrays[i], counts[i] * sizeof(float), c->nccl->stream);
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->nccl->done[slot], c->nccl->stream));
    return ddp__cuda_status(c->dev, err);
}

static ddp_status ddp__cuda_average(ddp__cuda_self *c, int slot, float *const *arrays, const size_t *counts,
                                    int arrays_count, int sum, ddp_error *err)
{
    DDP__TRY(ddp__nccl_queue(c->nccl, slot, sum ? DDP__NCCL_SUM : DDP__NCCL_MEAN, arrays, counts,
                             arrays_count, err));
    return sum ? DDP_OK : ddp__cuda_final(c, slot, arrays, counts, arrays_count, err);
}

static void ddp__cuda_follow(ddp__cuda_self *c, int slot)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->nccl->stream));
}

static ddp_status ddp__cuda_spread(ddp__cuda_self *c, int slot, int held, unsigned turn, float *const *arrays,
                                   const size_t *counts, int arrays_count, ddp_error *err)
{
    if (turn) ddp__cuda_hold_on(c, c->nccl->stream, held, turn);
    DDP__TRY(ddp__nccl_queue(c->nccl, slot, DDP__NCCL_SPREAD, arrays, counts, arrays_count, err));
    return ddp__cuda_final(c, slot, arrays, counts, arrays_count, err);
}

static void ddp__cuda_leave(ddp__cuda_self *c, int on_error)
{
    ddp__nccl_leave(c->nccl, on_error);
    c->nccl = NULL;
}

/* ---- the table ---- */

static const ddp_op_pair *ddp__cuda_pair(const ddp__cuda *dev, const char *first, const char *second)
{
    const ddp_op_pair *p = ddp__cuda_batch_pair(first, second);
    return p ? p : ddp__cuda_pair_of(dev, first, second);
}

#define DDP__OF(name) b.name = DDP__ORDERED(ddp__cuda_##name)
ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device)
{
    ddp_backend b = DDP__ZEROS;

    b.name = "cuda";
    b.device = device;
    b.numbers = (int)numbers;
    b.channels_last = 1;
    b.open = ddp__cuda_backend_open;
    b.close = DDP__GIVEN(ddp__cuda_backend_close);
    b.attach = DDP__GIVEN(ddp__cuda_attach);
    DDP__OF(wait);
    b.check = DDP__GIVEN(ddp__cuda_status);
    DDP__OF(alloc);
    DDP__OF(release);
    DDP__OF(memory);
    DDP__OF(element_bytes);
    DDP__OF(forget);
    b.pin = ddp__cuda_pin;
    b.unpin = ddp__cuda_unpin;
    b.mirror = DDP__ORDERED(ddp__cuda_mirror_new);
    DDP__OF(upload);
    DDP__OF(upload_elements);
    DDP__OF(download);
    DDP__OF(download_elements);
    DDP__OF(early);
    DDP__OF(early_value);
    DDP__OF(copy);
    DDP__OF(zero);
    DDP__OF(axpy);
    DDP__OF(norm2);
    DDP__OF(scale);
    DDP__OF(fill);
    DDP__OF(update);
    DDP__OF(compensate);
    DDP__OF(split);
    DDP__OF(clip_add);
    DDP__OF(clip_scale);
    DDP__OF(op);
    DDP__OF(pair);
    DDP__OF(scratch);
    DDP__OF(reserve);
    b.compute = DDP__GIVEN(ddp__cuda_compute); /* runs while calls are being queued */
    DDP__OF(slots);
    DDP__OF(record);
    DDP__OF(hold);
    b.fetch = DDP__GIVEN(ddp__cuda_fetch);
    b.give = DDP__GIVEN(ddp__cuda_give); /* called by other threads */
    b.raise = DDP__GIVEN(ddp__cuda_raise);
    b.raise_all = DDP__GIVEN(ddp__cuda_raise_all);
    DDP__OF(join);
    DDP__OF(leave);
    DDP__OF(average);
    DDP__OF(spread);
    DDP__OF(follow);
    b.poll = DDP__GIVEN(ddp__nccl_poll);
    b.finish = DDP__ORDERED(ddp__nccl_finish);
    DDP__OF(marks);
    DDP__OF(mark);
    DDP__OF(marked);
    DDP__OF(range);
    DDP__OF(prepare);
    DDP__OF(splits);
    return b;
}
#undef DDP__OF

#endif /* DDP__CUDA_IMPLEMENTED */
#endif /* DREAMDDP_IMPLEMENTATION */
