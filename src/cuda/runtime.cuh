/* One GPU as a context sees it: its streams, its handles, its first error. */
#ifndef DDP_CUDA_RUNTIME_CUH
#define DDP_CUDA_RUNTIME_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "base/platform.h"
#include "base/fail.h"
#include "base/thread.h"
#include "cuda/options.cuh"
#include "graph/op.h"

typedef __nv_bfloat16 ddp__bf16;

/* A GPU entry of the operator table. Its shape rule is the CPU operator's of that name. c->pool of
 * its calls is the ddp__cuda *. */
typedef struct ddp__cuda_entry {
    const char *name;
    void (*forward)(const ddp_op_call *c);
    void (*backward)(const ddp_op_call *c); /* NULL: no gradient flows through */
    /* bytes of dev->scratch that forward or backward uses; NULL: none */
    size_t (*scratch)(const ddp_op_spec *spec, int half);
} ddp__cuda_entry;

enum { DDP__CUDA_OPS = 64 }; /* room in a device's table */

typedef struct ddp__cuda {
    int              device;
    int              half;          /* 1: activations are bfloat16 */
    int              tf32;          /* 1: products may round their inputs to TF32 */
    cudaStream_t     stream;        /* computing */
    int              own_stream;
    cublasLtHandle_t blas_lt;
    void            *workspace;     /* of blas_lt */
    size_t           workspace_bytes;
    void            *products;      /* plans of matrix products, of blas.cuh */
    void           (*products_free)(struct ddp__cuda *dev);
    void            *scratch;       /* shared by all operators on stream */
    size_t           scratch_bytes;
    cudaDeviceProp   props;
    pthread_mutex_t  lock;          /* guards error, which several threads may set */
    int              failed;        /* 1: error is set; read with ddp__atomic_load */
    ddp_error        error;         /* the first one stays */
    ddp_op           op[DDP__CUDA_OPS]; /* the table, with the CPU's shape rules */
    const ddp__cuda_entry *entry[DDP__CUDA_OPS];
    int              ops;
} ddp__cuda;

/* Notes a failure, as ddp__fail does; the first one stays. Any thread. */
#define ddp__cuda_fail(dev, code, ...)                      \
    do {                                                    \
        ddp_error ddp__e;                                   \
        (void)ddp__fail(&ddp__e, (code), __VA_ARGS__);      \
        ddp__cuda_keep((dev), &ddp__e);                     \
    } while (0)

static DDP__UNUSED void ddp__cuda_keep(ddp__cuda *dev, const ddp_error *e)
{
    pthread_mutex_lock(&dev->lock);
    if (!dev->failed) {
        dev->error = *e;
        ddp__atomic_store(&dev->failed, 1);
    }
    pthread_mutex_unlock(&dev->lock);
}

/* The device's first error so far as a status; fills err (may be NULL). Any thread. */
static DDP__UNUSED ddp_status ddp__cuda_status(ddp__cuda *dev, ddp_error *err)
{
    ddp_status code = DDP_OK;

    if (!ddp__atomic_load(&dev->failed)) return DDP_OK;
    pthread_mutex_lock(&dev->lock);
    code = dev->error.code;
    if (err) *err = dev->error;
    pthread_mutex_unlock(&dev->lock);
    return code;
}

/* What to do about an error, after its sentence; "" where there is nothing to advise. */
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
        return "; compile for this GPU: nvcc -arch=native";
    case cudaErrorLaunchTimeout: /* of a kernel that holds for a slow link */
        return "; it drives a display, whose watchdog ends long kernels: use a GPU without one";
    default:
        return "";
    }
}

/* Notes the failure of a runtime call; 1 if it failed. */
static DDP__UNUSED int ddp__cuda_note(ddp__cuda *dev, cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return 0;
    ddp__cuda_fail(dev, e == cudaErrorMemoryAllocation ? DDP_MEMORY : DDP_FAILED,
                   "GPU %d: %.*s: %s%s", dev->device, (int)strcspn(call, "("), call,
                   cudaGetErrorString(e), ddp__cuda_remedy(e));
    return 1;
}

/* DDP__CUDA(dev, cudaX(...)): the same of a call as written; its value is 1 after a failure. */
#define DDP__CUDA(dev, call) ddp__cuda_note((dev), (call), #call)

/* What cudaEventQuery or cudaStreamQuery said. They also keep "not ready" as the last error, which
 * the next launch would take for its own. */
static DDP__UNUSED cudaError_t ddp__cuda_asked(cudaError_t e)
{
    if (e == cudaErrorNotReady) (void)cudaGetLastError();
    return e;
}

static DDP__UNUSED int ddp__blas_note(ddp__cuda *dev, cublasStatus_t s, const char *call)
{
    if (s == CUBLAS_STATUS_SUCCESS) return 0;
    ddp__cuda_fail(dev, s == CUBLAS_STATUS_ALLOC_FAILED ? DDP_MEMORY : DDP_FAILED,
                   "GPU %d: %.*s: %s", dev->device, (int)strcspn(call, "("), call,
                   cublasGetStatusString(s));
    return 1;
}

/* The same of cuBLAS and cuBLASLt. */
#define DDP__BLAS(dev, call) ddp__blas_note((dev), (call), #call)

/* 1: arrays of this shape are bfloat16 on this device; a scalar (dims 0: a loss) never is. */
static DDP__UNUSED int ddp__cuda_half(const ddp__cuda *dev, const ddp_shape *s)
{
    return dev->half && s->dims > 0;
}

/* Frees everything that ddp__cuda_open made; waits for what runs. */
static DDP__UNUSED void ddp__cuda_close(ddp__cuda *dev)
{
    if (!dev) return;
    (void)cudaSetDevice(dev->device);
    if (dev->stream) (void)cudaStreamSynchronize(dev->stream);
    (void)cudaFree(dev->scratch);
    (void)cudaFree(dev->workspace);
    if (dev->products_free) dev->products_free(dev);
    if (dev->blas_lt) (void)cublasLtDestroy(dev->blas_lt);
    if (dev->own_stream) (void)cudaStreamDestroy(dev->stream);
    pthread_mutex_destroy(&dev->lock);
    DDP_FREE(dev);
}

static inline ddp_status ddp__cuda_find(const ddp_cuda_options *o, ddp_error *err)
{
    int n = 0, driver = 0, runtime = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);

    (void)cudaGetLastError();
    if (e == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        if (driver > 0)
            return ddp__fail(err, DDP_UNSUPPORTED,
                             "the CUDA driver here supports CUDA %d.%d and this program "
                             "was compiled for %d.%d; install a newer driver or train on the CPU",
                             driver / 1000, driver % 1000 / 10, runtime / 1000,
                             runtime % 1000 / 10);
    }
    if (e != cudaSuccess || n < 1)
        return ddp__fail(err, DDP_FAILED, "no CUDA device was found here (%s); train on the CPU",
                         e == cudaSuccess ? "the count is 0" : cudaGetErrorString(e));
    if (o->device < 0 || o->device >= n)
        return ddp__fail(err, DDP_ARG, "GPU %d does not exist: this machine has GPUs 0 to %d",
                         o->device, n - 1);
    return DDP_OK;
}

/* Opens a device: streams, handles, workspace. NULL and a sentence on failure. Options NULL = all
 * zero. Freed by ddp__cuda_close. */
static DDP__UNUSED ddp__cuda *ddp__cuda_open(const ddp_cuda_options *given, ddp_error *err)
{
    ddp_cuda_options o;
    ddp__cuda *dev;

    memset(&o, 0, sizeof o);
    if (given) o = *given;
    if (ddp__cuda_find(&o, err)) return NULL;
    dev = (ddp__cuda *)DDP_REALLOC(NULL, sizeof *dev);
    if (!dev) {
        (void)ddp__fail(err, DDP_MEMORY, "no memory for the state of GPU %d", o.device);
        return NULL;
    }
    memset(dev, 0, sizeof *dev);
    pthread_mutex_init(&dev->lock, NULL);
    dev->device = o.device;
    dev->half = o.numbers == DDP_CUDA_BF16;
    dev->tf32 = o.numbers == DDP_CUDA_TF32;
    dev->stream = (cudaStream_t)o.stream;
    dev->own_stream = !o.stream;
    if (DDP__CUDA(dev, cudaSetDevice(o.device)) ||
        DDP__CUDA(dev, cudaGetDeviceProperties(&dev->props, o.device)))
        goto failed;
    if (dev->props.major < 8) {
        ddp__cuda_fail(dev, DDP_UNSUPPORTED,
                       "GPU %d (%s) has compute capability %d.%d; 8.0 or later is needed", o.device,
                       dev->props.name, dev->props.major, dev->props.minor);
        goto failed;
    }
    if (dev->own_stream &&
        DDP__CUDA(dev, cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking))) {
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

/* Makes dev->scratch hold at least bytes. At graph build, never in a step: waits for the device. */
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
                         "GPU %d: the operators need %zu bytes of scratch memory and %zu of %zu "
                         "are free; use a smaller batch",
                         dev->device, bytes, unused, total);
    }
    dev->scratch_bytes = bytes;
    return ddp__cuda_status(dev, err);
}

#endif /* DDP_CUDA_RUNTIME_CUH */
