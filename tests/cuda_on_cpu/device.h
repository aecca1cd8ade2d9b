/* Devices, memory, streams and events. A stream is a thread with a queue, so work that no event or wait
 * orders is not ordered here either. Device memory is memory of this machine, filled with NaN. */
#ifndef CUDA_ON_CPU_DEVICE_H
#define CUDA_ON_CPU_DEVICE_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unistd.h>

#include "faults.h"
#include "fibre.h"

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorUnknown = 999
};

namespace cuda_on_cpu
{

struct event_state {
    std::mutex m;
    std::condition_variable c;
    uint64_t asked = 0, done = 0;
    double at = 0;
};

/* A queue of the hardware, which several streams may share. Work of all its streams starts in the order in
 * which it was given, and only after the work before it has ended. */
struct hardware_queue {
    std::mutex m;
    std::condition_variable c;
    uint64_t given = 0, done = 0;
};

struct queue {
    std::mutex m;
    std::condition_variable work, idle;
    std::deque<std::function<void()>> todo;
    std::shared_ptr<std::deque<std::function<void()>>> captured; /* not NULL: work is added here */
    uint64_t given = 0, done = 0;
    bool stop = false;
    int device = 0;
    bool blocking = true;        /* 1: ordered with the stream NULL */
    std::atomic<int> drained{0}; /* number of threads that wait for all streams, including this one */
    std::thread worker;
    std::shared_ptr<hardware_queue> hardware; /* NULL: one of its own */
};

} // namespace cuda_on_cpu

struct CUstream_st {
    cuda_on_cpu::queue q;
};
struct CUevent_st {
    std::shared_ptr<cuda_on_cpu::event_state> s;
    bool timed;
    int device;
};
typedef CUstream_st *cudaStream_t;
typedef CUevent_st *cudaEvent_t;
struct CUgraph_st {
    std::shared_ptr<std::deque<std::function<void()>>> jobs;
};
typedef CUgraph_st *cudaGraph_t;
struct CUgraphExec_st {
    CUgraph_st graph;
};
typedef CUgraphExec_st *cudaGraphExec_t;

namespace cuda_on_cpu
{

struct block_of_memory {
    size_t bytes;
    int device; /* -1: pinned memory of the host */
};

/* The step at which a capture fails. */
enum capture_failure { CAPTURE_WORKS, CAPTURE_BEGINS, CAPTURE_CALLS, CAPTURE_ENDS, CAPTURE_BECOMES_A_GRAPH };

/* What cuStreamWaitValue32 does. */
enum wait_fault { WAITS_WORK, WAITS_FAIL, WAITS_RETURN /* the stream does not wait */ };

/* State of the process. Not freed at exit: threads of streams may still use it. */
struct world {
    std::mutex m;
    std::map<void *, block_of_memory> memory;
    std::map<CUstream_st *, int> streams;
    std::map<int, size_t> used;
    size_t limit = (size_t)1 << 32;                /* bytes per device */
    long pinned = 1L << 40;                        /* remaining number of pinned allocations */
    size_t shared = MOST_SHARED;                   /* bytes per block */
    std::set<std::pair<int, const void *>> loaded; /* kernels loaded on each device */
    std::recursive_mutex loading[8];               /* one per device */
    int devices = 8;
    int driver = 0; /* CUDA version of the driver, 0 for the version of this stand-in, or NO_DRIVER */
    int events = 0;
    int graphs = 0;
    std::atomic<long> replays{0}; /* number of graph launches */
    std::atomic<int> broken{0};   /* a sticky cudaError_t */
    std::atomic<int> user{0};     /* the process that made the first call */
    std::atomic<long> launches{0};
    bool blocking = false; /* 1 if a launch returns when its work is done */
    bool waits = true;     /* 1 if the driver has cuStreamWaitValue32 */
    wait_fault waiting = WAITS_WORK;
    int major = 9, minor = 0; /* compute capability of the devices */
    bool maps = true;         /* 1 if it has cuTensorMapEncodeTiled */
    uint64_t depth = 1000;    /* items that a stream may have pending. The next one waits */
    double patience = 300; /* seconds after which such a wait, or one for all work of a device, is a fault */
    int queues = 0;        /* hardware queues for the streams of one device and priority. 0: no two streams
                            * share one */
    bool apart = true;     /* 1 if streams of different priority never share a queue */
    std::map<std::pair<int, int>, int> created; /* streams created so far, by device and priority */
    std::map<std::tuple<int, int, int>, std::shared_ptr<hardware_queue>> shared_queues;
    capture_failure capture = CAPTURE_WORKS;
    char why[400];
};

inline world &the_world()
{
    static world *w = [] {
        world *x = new world;
        const char *n = getenv("CUDA_ON_CPU_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
        const char *blocking = getenv("CUDA_LAUNCH_BLOCKING"), *waits = getenv("CUDA_ON_CPU_WAITS");
        if (n) x->devices = atoi(n);
        if (visible && !*visible) x->devices = 0;
        x->blocking = blocking && atoi(blocking);
        x->waits = !waits || atoi(waits);
        x->why[0] = 0;
        return x;
    }();
    return *w;
}

inline int &current_device()
{
    static thread_local int d = 0;
    return d;
}

inline cudaError_t &last_error()
{
    static thread_local cudaError_t e = cudaSuccess;
    return e;
}

inline cudaError_t note(cudaError_t e)
{
    if (e != cudaSuccess) last_error() = e;
    return e;
}

inline void fault(const char *fmt, ...)
{
    world &w = the_world();
    va_list args;

    std::lock_guard<std::mutex> hold(w.m);
    if (w.broken) return;
    va_start(args, fmt);
    vsnprintf(w.why, sizeof w.why, fmt, args);
    va_end(args);
    fprintf(stderr, "cuda_on_cpu: %s\n", w.why);
    w.broken = cudaErrorLaunchFailure;
}

/* The stream that this thread captures. */
inline CUstream_st *&capturing()
{
    static thread_local CUstream_st *s = nullptr;
    return s;
}

/* Checks calls that a capture would reject, or record with another meaning. Returns 1 during a capture. */
inline int captures(const char *call)
{
    if (capturing()) fault("%s while the thread captures a stream", call);
    return capturing() != nullptr;
}

/* 1 if tests let captures fail at this step. It is an error of the call, not of the device. */
inline int capture_fails(capture_failure at)
{
    if (the_world().capture != at) return 0;
    note(cudaErrorStreamCaptureInvalidated);
    return 1;
}

/* The first check of every call. Other calls wait while a kernel is being loaded. */
inline cudaError_t ready()
{
    world &w = the_world();
    int none = 0;

    std::lock_guard<std::recursive_mutex> turn(w.loading[current_device() % 8]);
    if (w.devices < 1) return note(cudaErrorNoDevice);
    if (!w.user.compare_exchange_strong(none, (int)getpid()) && none != (int)getpid())
        return note(cudaErrorInitializationError); /* in a child of a process that used CUDA */
    return note((cudaError_t)w.broken.load());
}

inline double seconds()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void work(CUstream_st *s)
{
    queue &q = s->q;

    current_device() = q.device;
    for (;;) {
        std::function<void()> job;
        {
            std::unique_lock<std::mutex> hold(q.m);
            q.work.wait(hold, [&] { return q.stop || !q.todo.empty(); });
            if (q.todo.empty()) return;
            job = std::move(q.todo.front());
            q.todo.pop_front();
        }
        job();
        job = nullptr;
        std::lock_guard<std::mutex> hold(q.m);
        q.done++;
        q.idle.notify_all();
    }
}

/* Returns 0 after a time-out of `most` seconds. */
inline int drain(CUstream_st *s, double most = 1e6)
{
    if (captures("a stream is waited for")) return 1;
    std::unique_lock<std::mutex> hold(s->q.m);
    const uint64_t until = s->q.given;

    return s->q.idle.wait_for(hold, std::chrono::duration<double>(most), [&] { return s->q.done >= until; });
}

/* Waits for all streams of a device; legacy: only for those that the stream NULL waits for. Returns 0 after a
 * time-out of `most` seconds. */
inline int drain_device(int device, bool legacy, double most = 1e6)
{
    int all = 1;
    std::vector<CUstream_st *> list;
    {
        std::lock_guard<std::mutex> hold(the_world().m);
        for (auto &s : the_world().streams)
            if (s.second == device && (!legacy || s.first->q.blocking)) {
                s.first->q.drained++;
                list.push_back(s.first);
            }
    }
    for (CUstream_st *s : list) {
        all &= drain(s, most);
        s->q.drained--;
    }
    return all;
}

/* If the stream has too many items pending, waits until one has ended. The calls of other threads wait
 * meanwhile, because a driver may hold a lock. */
inline void wait_for_space(CUstream_st *s)
{
    world &w = the_world();
    {
        std::lock_guard<std::mutex> hold(s->q.m);
        if (s->q.captured || s->q.given - s->q.done < w.depth) return;
    }
    std::lock_guard<std::recursive_mutex> turn(w.loading[s->q.device % 8]);
    bool space;
    {
        std::unique_lock<std::mutex> hold(s->q.m);
        space = s->q.idle.wait_for(hold, std::chrono::duration<double>(w.patience),
                                   [&] { return s->q.given - s->q.done < w.depth; });
    }
    if (!space)
        fault("a stream has %llu items pending, and none ends while another one waits for space",
              (unsigned long long)w.depth);
}

/* Runs a job of a stream when the work before it in its hardware queue has ended. */
inline std::function<void()> in_turn(std::shared_ptr<hardware_queue> h, std::function<void()> job)
{
    std::lock_guard<std::mutex> hold(h->m);
    const uint64_t ticket = h->given++;

    return [=] {
        {
            std::unique_lock<std::mutex> wait(h->m);
            h->c.wait(wait, [&] { return h->done == ticket; });
        }
        job();
        std::lock_guard<std::mutex> end(h->m);
        h->done++;
        h->c.notify_all();
    };
}

inline void give(CUstream_st *s, std::function<void()> job)
{
    if (!s) {
        drain_device(current_device(), true);
        job();
        return;
    }
    wait_for_space(s);
    std::lock_guard<std::mutex> hold(s->q.m);
    if (s->q.captured) {
        if (s != capturing()) {
            fprintf(stderr, "cuda_on_cpu: work of another thread becomes part of a graph\n");
            abort();
        }
        s->q.captured->push_back(std::move(job));
        return;
    }
    if (s->q.hardware) job = in_turn(s->q.hardware, std::move(job));
    s->q.todo.push_back(std::move(job));
    s->q.given++;
    s->q.work.notify_one();
}

/* ---- controls for tests of failures, which a real device does not have ---- */

inline void set_devices(int n) { the_world().devices = n; }
enum { NO_DRIVER = -1 };
inline void set_driver(int version) { the_world().driver = version; }
inline void set_memory(size_t bytes) { the_world().limit = bytes; }
inline void set_pinned(long pieces) { the_world().pinned = pieces; }
inline void set_shared(size_t bytes) { the_world().shared = bytes; }
inline void set_blocking(bool yes) { the_world().blocking = yes; }
inline void set_waits(bool yes) { the_world().waits = yes; }
inline void set_wait_fault(wait_fault f) { the_world().waiting = f; }
inline void set_capability(int major, int minor)
{
    the_world().major = major;
    the_world().minor = minor;
}
inline void set_maps(bool yes) { the_world().maps = yes; }
inline void set_depth(uint64_t items, double patience)
{
    the_world().depth = items;
    the_world().patience = patience;
}
/* For streams that are created from now on. */
inline void set_queues(int n, bool apart)
{
    the_world().queues = n;
    the_world().apart = apart;
    the_world().created.clear();
}
inline void set_capture(capture_failure at) { the_world().capture = at; }
inline void unload()
{
    std::lock_guard<std::mutex> hold(the_world().m);
    the_world().loaded.clear();
}
inline const char *why() { return the_world().why; }
inline long launches() { return the_world().launches; }
inline void mend()
{
    the_world().broken = 0;
    the_world().why[0] = 0;
    last_error() = cudaSuccess;
}
inline long replays() { return the_world().replays; }
/* Number of allocations, streams, events and graphs that are not freed. */
inline long alive()
{
    std::lock_guard<std::mutex> hold(the_world().m);
    return (long)(the_world().memory.size() + the_world().streams.size()) + the_world().events +
           the_world().graphs;
}

/* ---- kinds of memory ---- */

enum place { PAGEABLE, PINNED, ON_DEVICE };

inline place place_of(const void *p)
{
    world &w = the_world();

    std::lock_guard<std::mutex> hold(w.m);
    auto at = w.memory.upper_bound((void *)p);
    if (at == w.memory.begin()) return PAGEABLE;
    --at;
    if ((const char *)p > (const char *)at->first + at->second.bytes) return PAGEABLE;
    return at->second.device < 0 ? PINNED : ON_DEVICE;
}

/* Checks that an array argument of a kernel is in memory that the GPU can access. A pointer to its end is
 * allowed. */
template <class T> inline int reached(T) { return 1; }
template <class T> inline int reached(T *p) { return !p || place_of((const void *)p) != PAGEABLE; }

/* ---- launching ---- */

/* Does what may wait for all work of the device and block the calls of other threads. Work that waits for
 * those calls then never ends. */
inline void synchronise(const char *what)
{
    const int device = current_device();

    std::lock_guard<std::recursive_mutex> turn(the_world().loading[device % 8]);
    if (!drain_device(device, false, the_world().patience))
        fault("%s, behind work that does not end meanwhile", what);
}

/* Loads a kernel, or an algorithm of a library, at its first launch, which may synchronise. */
inline void load(const char *kernel, const void *fn)
{
    world &w = the_world();
    char what[200];
    {
        std::lock_guard<std::mutex> hold(w.m);
        if (!w.loaded.insert({current_device(), fn}).second) return;
    }
    if (captures(kernel)) return; /* a capture would load it */
    snprintf(what, sizeof what, "%s is loaded at its first launch", kernel);
    synchronise(what);
}

/* The end of a launch: with CUDA_LAUNCH_BLOCKING it waits for its work. */
inline void launched(CUstream_st *s)
{
    if (s && the_world().blocking && !capturing()) drain(s);
}

/* NULL arrives as an integer. */
template <class P, class A> inline P argument(A a)
{
    if constexpr (std::is_pointer<P>::value && std::is_integral<A>::value)
        return nullptr;
    else
        return static_cast<P>(a);
}

/* Returns 1 if an injected fault takes the place of a launch. */
inline int fails(const char *kernel, unsigned threads, cudaStream_t stream)
{
    const fate f = injected().launch ? injected().launch(kernel, threads) : fate::RUNS;

    if (f == fate::REJECTED) note(cudaErrorInvalidConfiguration);
    if (f == fate::BROKEN) {
        fault("%s fails", kernel);
        (void)ready();
    }
    if (f == fate::STUCK)
        give(stream, [] {
            while (injected().stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
    return f != fate::RUNS;
}

/* Queues a grid in which every thread calls `thread`, if the launch is possible. Not a template: a program
 * has hundreds of kernels. reached: all arrays among the arguments are accessible to devices. */
inline void launch_grid(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                        const void *fn, bool reached, std::function<void()> thread)
{
    const size_t threads = (size_t)block.x * block.y * block.z;

    if (ready() != cudaSuccess || fails(kernel, (unsigned)threads, stream)) return;
    if (capturing() && capture_fails(CAPTURE_CALLS)) return;
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || grid.x > 2147483647u ||
        threads < 1 || threads > MOST_THREADS || block.z > 64 || shared > the_world().shared) {
        fprintf(stderr,
                "cuda_on_cpu: %s: a grid of %u x %u x %u blocks of %u x %u x %u threads with %zu "
                "bytes of shared memory cannot be launched\n",
                kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        note(cudaErrorInvalidConfiguration);
        return;
    }
    if (stream && stream->q.device != current_device()) {
        fprintf(stderr, "cuda_on_cpu: %s: the stream is one of device %d, device %d is current\n", kernel,
                stream->q.device, current_device());
        note(cudaErrorInvalidResourceHandle);
        return;
    }
    if (!reached) {
        fault("%s has an array argument that no device can access", kernel);
        return;
    }
    load(kernel, fn);
    the_world().launches++;
    give(stream, [=]() mutable {
        if (the_world().broken) return;
        run_grid(
            kernel, grid, block, shared, [](void *user) { (*(std::function<void()> *)user)(); }, &thread);
    });
    launched(stream);
}

template <class... P, class... A>
inline void launch(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   void (*fn)(P...), A... args)
{
    launch_grid(kernel, grid, block, shared, stream, (const void *)fn, (reached(args) && ...),
                [=] { fn(argument<P>(args)...); });
}

} // namespace cuda_on_cpu

#endif /* CUDA_ON_CPU_DEVICE_H */
