/* A stand-in for the part of the CUDA runtime that this project calls. A C++17 compiler compiles the kernels
 * and the code around them with it, and they run on any machine. The text is original; names and semantics
 * are those of the CUDA Runtime API. Only DDP__LAUNCH launches kernels. */
#ifndef CUDA_ON_CPU_RUNTIME_H
#define CUDA_ON_CPU_RUNTIME_H

#include <tuple>

#include "cuda.h"
#include "device.h"
#include "intrinsics.h"

#define CUDART_VERSION 13000

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
typedef void (*cudaHostFn_t)(void *user);

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, maxThreadsPerBlock, warpSize, pciBusID, pciDeviceID, pciDomainID,
        l2CacheSize, memoryBusWidth;
};

inline const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInitializationError:
        return "initialization error";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
        return "no kernel image is available for execution on the device";
    case cudaErrorLaunchTimeout:
        return "the launch timed out and was terminated";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    case cudaErrorNotSupported:
        return "operation not supported";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    default:
        return "unknown error";
    }
}

inline cudaError_t cudaGetLastError()
{
    const cudaError_t e = cuda_on_cpu::last_error();

    cuda_on_cpu::last_error() = cudaSuccess;
    return cuda_on_cpu::the_world().broken ? cuda_on_cpu::ready() : e;
}
inline cudaError_t cudaPeekAtLastError() { return cuda_on_cpu::last_error(); }

/* ---- devices ---- */

inline cudaError_t cudaDriverGetVersion(int *v)
{
    const int driver = cuda_on_cpu::the_world().driver;

    *v = driver < 0 ? 0 : driver ? driver : CUDART_VERSION; /* 0: no driver is installed */
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int *n)
{
    int driver;

    *n = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver < CUDART_VERSION)
        return cuda_on_cpu::note(cudaErrorInsufficientDriver);
    *n = cuda_on_cpu::the_world().devices;
    return *n < 1 ? cuda_on_cpu::note(cudaErrorNoDevice) : cudaSuccess;
}
inline cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= cuda_on_cpu::the_world().devices) return cuda_on_cpu::note(cudaErrorInvalidDevice);
    cuda_on_cpu::current_device() = d;
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaGetDevice(int *d)
{
    *d = cuda_on_cpu::current_device();
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    if (device < 0 || device >= cuda_on_cpu::the_world().devices)
        return cuda_on_cpu::note(cudaErrorInvalidDevice);
    snprintf(p->name, sizeof p->name, "stand-in %d", device);
    p->totalGlobalMem = cuda_on_cpu::the_world().limit;
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = cuda_on_cpu::the_world().shared;
    p->major = cuda_on_cpu::the_world().major;
    p->minor = cuda_on_cpu::the_world().minor;
    p->multiProcessorCount = 4;
    p->maxThreadsPerBlock = cuda_on_cpu::MOST_THREADS;
    p->warpSize = 32;
    p->pciBusID = device;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int device)
{
    if (device < 0 || device >= cuda_on_cpu::the_world().devices)
        return cuda_on_cpu::note(cudaErrorInvalidDevice);
    *value = a == cudaDevAttrMultiProcessorCount      ? 4
             : a == cudaDevAttrComputeCapabilityMajor ? cuda_on_cpu::the_world().major
             : a == cudaDevAttrComputeCapabilityMinor ? cuda_on_cpu::the_world().minor
                                                      : (int)cuda_on_cpu::MOST_SHARED;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize()
{
    cuda_on_cpu::drain_device(cuda_on_cpu::current_device(), false);
    return cuda_on_cpu::ready();
}
template <class F> inline cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int value)
{
    return value <= cuda_on_cpu::MOST_SHARED ? cuda_on_cpu::ready()
                                             : cuda_on_cpu::note(cudaErrorInvalidValue);
}
template <class F> inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, F, int, size_t)
{
    *n = 2;
    return cudaSuccess;
}

/* ---- memory ---- */

namespace cuda_on_cpu
{
inline cudaError_t take(void **p, size_t bytes, int device)
{
    world &w = the_world();
    const cudaError_t e = ready();

    *p = nullptr;
    if (e != cudaSuccess || captures("memory is allocated")) return e;
    if (device >= 0) synchronise("device memory is allocated"); /* a driver may wait for all work */
    std::lock_guard<std::mutex> hold(w.m);
    if (device < 0 ? w.pinned-- < 1 : w.used[device] + bytes > w.limit)
        return note(cudaErrorMemoryAllocation);
    if (posix_memalign(p, 256, bytes ? bytes : 1)) return note(cudaErrorMemoryAllocation);
    memset(*p, 0xff, bytes < POISONED ? bytes : POISONED);
    w.memory[*p] = {bytes, device};
    if (device >= 0) w.used[device] += bytes;
    return cudaSuccess;
}
inline cudaError_t drop(void *p, bool pinned)
{
    world &w = the_world();
    int device;

    if (!p) return cudaSuccess;
    {
        std::lock_guard<std::mutex> hold(w.m);
        auto at = w.memory.find(p);
        if (at == w.memory.end() || (at->second.device < 0) != pinned) return note(cudaErrorInvalidValue);
        device = at->second.device;
    }
    if (device < 0)
        drain_device(current_device(), false);
    else
        synchronise("device memory is freed");
    std::lock_guard<std::mutex> hold(w.m);
    if (device >= 0) w.used[device] -= w.memory[p].bytes;
    w.memory.erase(p);
    free(p);
    return (cudaError_t)w.broken.load();
}
} // namespace cuda_on_cpu

template <class T> inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cuda_on_cpu::take((void **)p, bytes, cuda_on_cpu::current_device());
}
template <class T> inline cudaError_t cudaMallocHost(T **p, size_t bytes)
{
    return cuda_on_cpu::take((void **)p, bytes, -1);
}
template <class T> inline cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned)
{
    return cuda_on_cpu::take((void **)p, bytes, -1);
}
template <class T> inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned)
{
    *device = (T *)host;
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaFree(void *p) { return cuda_on_cpu::drop(p, false); }
inline cudaError_t cudaFreeHost(void *p) { return cuda_on_cpu::drop(p, true); }
inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    cuda_on_cpu::world &w = cuda_on_cpu::the_world();

    std::lock_guard<std::mutex> hold(w.m);
    *total = w.limit;
    *available = w.limit - w.used[cuda_on_cpu::current_device()];
    return (cudaError_t)w.broken.load();
}

/* Unpinned host memory is read before the call returns, and written after all earlier work of the stream. */
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k,
                                   cudaStream_t s = nullptr)
{
    using namespace cuda_on_cpu;
    const bool here = place_of(to) != ON_DEVICE, there = place_of(from) == ON_DEVICE;

    if ((here && (k == cudaMemcpyHostToDevice || k == cudaMemcpyDeviceToDevice)) ||
        (there && k == cudaMemcpyHostToDevice) || (!here && k == cudaMemcpyDeviceToHost) ||
        (!there && (k == cudaMemcpyDeviceToHost || k == cudaMemcpyDeviceToDevice)))
        return note(cudaErrorInvalidValue);
    if (place_of(from) == PAGEABLE) {
        auto copy = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + n);
        give(s, [=] { memcpy(to, copy->data(), n); });
    } else {
        give(s, [=] { memmove(to, from, n); });
    }
    if (place_of(to) == PAGEABLE && s) drain(s);
    return ready();
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind k)
{
    return cudaMemcpyAsync(to, from, n, k, nullptr);
}
inline cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n,
                                       cudaStream_t s = nullptr)
{
    return cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, s);
}
inline cudaError_t cudaMemcpy2DAsync(void *to, size_t to_row, const void *from, size_t from_row, size_t width,
                                     size_t rows, cudaMemcpyKind, cudaStream_t s = nullptr)
{
    cuda_on_cpu::give(s, [=] {
        for (size_t r = 0; r < rows; r++)
            memmove((char *)to + r * to_row, (const char *)from + r * from_row, width);
    });
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s = nullptr)
{
    cuda_on_cpu::give(s, [=] { memset(p, byte, n); });
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaMemset(void *p, int byte, size_t n) { return cudaMemsetAsync(p, byte, n, nullptr); }

/* ---- streams ---- */

namespace cuda_on_cpu
{
/* The hardware queue of a new stream. NULL: one of its own. Call it with the_world().m. */
inline std::shared_ptr<hardware_queue> queue_for(int device, int priority)
{
    world &w = the_world();
    const int kind = w.apart ? priority : 0;

    if (w.queues < 1) return nullptr;
    std::shared_ptr<hardware_queue> &h =
        w.shared_queues[std::make_tuple(device, kind, w.created[{device, kind}]++ % w.queues)];
    if (!h) h = std::make_shared<hardware_queue>();
    return h;
}
} // namespace cuda_on_cpu

inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
    const cudaError_t e = cuda_on_cpu::ready();

    *s = nullptr;
    if (e != cudaSuccess) return e;
    *s = new CUstream_st;
    (*s)->q.device = cuda_on_cpu::current_device();
    (*s)->q.blocking = !(flags & cudaStreamNonBlocking);
    std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
    (*s)->q.hardware = cuda_on_cpu::queue_for((*s)->q.device, priority);
    (*s)->q.worker = std::thread(cuda_on_cpu::work, *s);
    cuda_on_cpu::the_world().streams[*s] = (*s)->q.device;
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    return cudaStreamCreateWithPriority(s, flags, 0);
}
inline cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    if (!s) return cuda_on_cpu::note(cudaErrorInvalidResourceHandle);
    {
        std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
        if (!cuda_on_cpu::the_world().streams.erase(s))
            return cuda_on_cpu::note(cudaErrorInvalidResourceHandle);
    }
    {
        std::lock_guard<std::mutex> hold(s->q.m);
        s->q.stop = true;
        s->q.work.notify_one();
    }
    s->q.worker.join();
    while (s->q.drained) std::this_thread::yield(); /* another thread waits for all streams */
    delete s;
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s)
        cuda_on_cpu::drain(s);
    else
        cuda_on_cpu::drain_device(cuda_on_cpu::current_device(), true);
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaStreamQuery(cudaStream_t s)
{
    const cudaError_t e = cuda_on_cpu::ready();

    if (!s || cuda_on_cpu::captures("a stream is queried")) return e;
    std::lock_guard<std::mutex> hold(s->q.m);
    return s->q.done < s->q.given ? cuda_on_cpu::note(cudaErrorNotReady) : e;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *user)
{
    cuda_on_cpu::give(s, [=] { fn(user); });
    return cuda_on_cpu::ready();
}

/* ---- functions of the driver: waits of a stream for memory, tensor maps ---- */

enum { cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };

namespace cuda_on_cpu
{
inline int wait_value(cudaStream_t s, unsigned long long there, unsigned value, unsigned how)
{
    const volatile unsigned *at = (const volatile unsigned *)there;

    if (captures("a stream waits for memory")) return 0;
    if (how != 0 || place_of((const void *)at) == PAGEABLE) return 1;
    if (the_world().waiting == WAITS_FAIL) return 801;
    if (the_world().waiting == WAITS_RETURN) return 0;
    give(s, [=] {
        while ((int)(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) < 0)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    return 0;
}
} // namespace cuda_on_cpu

inline cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned,
                                                    unsigned long long, cudaDriverEntryPointQueryResult *is)
{
    const cuda_on_cpu::world &w = cuda_on_cpu::the_world();

    *found = w.waits && !strcmp(name, "cuStreamWaitValue32")     ? (void *)cuda_on_cpu::wait_value
             : w.maps && !strcmp(name, "cuTensorMapEncodeTiled") ? (void *)cuTensorMapEncodeTiled
                                                                 : nullptr;
    *is = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cuda_on_cpu::ready();
}

/* ---- events ---- */

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = nullptr;
    if (cuda_on_cpu::ready() != cudaSuccess) return cuda_on_cpu::ready();
    *e = new CUevent_st{std::make_shared<cuda_on_cpu::event_state>(), !(flags & cudaEventDisableTiming),
                        cuda_on_cpu::current_device()};
    std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
    cuda_on_cpu::the_world().events++;
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    if (!e) return cuda_on_cpu::note(cudaErrorInvalidResourceHandle);
    delete e;
    std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
    cuda_on_cpu::the_world().events--;
    return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr)
{
    std::shared_ptr<cuda_on_cpu::event_state> state = e->s;
    uint64_t ticket;

    if (cuda_on_cpu::captures("an event is recorded")) return cuda_on_cpu::ready();
    if (e->device != (s ? s->q.device : cuda_on_cpu::current_device()))
        return cuda_on_cpu::note(cudaErrorInvalidResourceHandle);
    {
        std::lock_guard<std::mutex> hold(state->m);
        ticket = ++state->asked;
    }
    cuda_on_cpu::give(s, [=] {
        std::lock_guard<std::mutex> hold(state->m);
        state->at = cuda_on_cpu::seconds();
        if (state->done < ticket) state->done = ticket;
        state->c.notify_all();
    });
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned = 0)
{
    std::shared_ptr<cuda_on_cpu::event_state> state = e->s;
    uint64_t ticket;

    if (cuda_on_cpu::captures("a stream waits for an event")) return cuda_on_cpu::ready();
    {
        std::lock_guard<std::mutex> hold(state->m);
        ticket = state->asked;
    }
    cuda_on_cpu::give(s, [=] {
        std::unique_lock<std::mutex> hold(state->m);
        state->c.wait(hold, [&] { return state->done >= ticket; });
    });
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaEventQuery(cudaEvent_t e)
{
    const cudaError_t now = cuda_on_cpu::ready();

    std::lock_guard<std::mutex> hold(e->s->m);
    return e->s->done < e->s->asked ? cuda_on_cpu::note(cudaErrorNotReady) : now;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    {
        std::unique_lock<std::mutex> hold(e->s->m);
        const uint64_t ticket = e->s->asked;
        e->s->c.wait(hold, [&] { return e->s->done >= ticket; });
    }
    return cuda_on_cpu::ready();
}
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    if (!a->timed || !b->timed) return cuda_on_cpu::note(cudaErrorInvalidResourceHandle);
    if (cudaEventQuery(a) == cudaErrorNotReady || cudaEventQuery(b) == cudaErrorNotReady)
        return cudaErrorNotReady;
    *ms = (float)((b->s->at - a->s->at) * 1e3);
    return cuda_on_cpu::ready();
}

/* ---- graphs: jobs of a stream that are recorded and launched again ---- */

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};

inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    if (!s || mode != cudaStreamCaptureModeThreadLocal || cuda_on_cpu::captures("a capture begins"))
        return cuda_on_cpu::note(cudaErrorInvalidValue);
    if (cuda_on_cpu::capture_fails(cuda_on_cpu::CAPTURE_BEGINS)) return cuda_on_cpu::last_error();
    if (cuda_on_cpu::ready() != cudaSuccess) return cuda_on_cpu::ready();
    std::lock_guard<std::mutex> hold(s->q.m);
    s->q.captured = std::make_shared<std::deque<std::function<void()>>>();
    cuda_on_cpu::capturing() = s;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    *g = nullptr;
    if (cuda_on_cpu::capturing() != s) return cuda_on_cpu::note(cudaErrorInvalidValue);
    cuda_on_cpu::capturing() = nullptr;
    std::shared_ptr<std::deque<std::function<void()>>> jobs;
    {
        std::lock_guard<std::mutex> hold(s->q.m);
        jobs = std::move(s->q.captured);
        s->q.captured = nullptr;
    }
    if (cuda_on_cpu::the_world().broken) return cuda_on_cpu::ready();
    if (cuda_on_cpu::capture_fails(cuda_on_cpu::CAPTURE_CALLS) ||
        cuda_on_cpu::capture_fails(cuda_on_cpu::CAPTURE_ENDS))
        return cuda_on_cpu::last_error();
    *g = new CUgraph_st{jobs};
    std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
    cuda_on_cpu::the_world().graphs++;
    return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long)
{
    cuda_on_cpu::world &w = cuda_on_cpu::the_world();

    *e = nullptr;
    if (w.broken) return cuda_on_cpu::ready();
    if (cuda_on_cpu::capture_fails(cuda_on_cpu::CAPTURE_BECOMES_A_GRAPH)) return cuda_on_cpu::last_error();
    cuda_on_cpu::synchronise("a graph is instantiated");
    std::lock_guard<std::mutex> hold(w.m);
    if (w.used[cuda_on_cpu::current_device()] + 65536 > w.limit)
        return cuda_on_cpu::note(cudaErrorMemoryAllocation);
    *e = new CUgraphExec_st{*g};
    w.graphs++;
    return cudaSuccess;
}
/* Only counts the nodes: list must be NULL. */
inline cudaError_t cudaGraphGetNodes(cudaGraph_t g, void *list, size_t *n)
{
    *n = g->jobs->size();
    return list ? cuda_on_cpu::note(cudaErrorInvalidValue) : cuda_on_cpu::ready();
}
/* Each node takes a place in the stream. */
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    auto jobs = e->graph.jobs;

    if (cuda_on_cpu::captures("a graph is launched")) return cuda_on_cpu::ready();
    cuda_on_cpu::the_world().replays++;
    for (auto &job : *jobs) cuda_on_cpu::give(s, job);
    cuda_on_cpu::launched(s);
    return cuda_on_cpu::ready();
}
namespace cuda_on_cpu
{
template <class G> inline cudaError_t drop_graph(G *g)
{
    delete g;
    std::lock_guard<std::mutex> hold(the_world().m);
    the_world().graphs--;
    return cudaSuccess;
}
} // namespace cuda_on_cpu
inline cudaError_t cudaGraphDestroy(cudaGraph_t g) { return cuda_on_cpu::drop_graph(g); }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { return cuda_on_cpu::drop_graph(e); }

#endif /* CUDA_ON_CPU_RUNTIME_H */
