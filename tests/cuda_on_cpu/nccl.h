/* A stand-in for the part of NCCL that this project calls. Ranks are threads of one process. An operation is
 * a job on its stream that waits for the same operation of the other ranks, and sums are computed in rank
 * order. A non-blocking communicator returns ncclInProgress where NCCL may. It queues the operations of a
 * group only when its state is queried, so that a caller that does not query it fails.
 */
#ifndef CUDA_ON_CPU_NCCL_H
#define CUDA_ON_CPU_NCCL_H

#include <climits>
#include <string>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define NCCL_MAJOR                        2
#define NCCL_MINOR                        28
#define NCCL_PATCH                        9
#define NCCL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define NCCL_VERSION_CODE                 22809
#define NCCL_UNIQUE_ID_BYTES              128
#define NCCL_CONFIG_UNDEF_INT             INT_MIN

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress
} ncclResult_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg } ncclRedOp_t;
typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclBfloat16 = 9
} ncclDataType_t;
typedef struct {
    int blocking;
    const char *commName;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER        \
    {                                  \
        NCCL_CONFIG_UNDEF_INT, nullptr \
    }

namespace cuda_on_cpu
{

enum nccl_kind { ALL_REDUCE, BROADCAST, ALL_GATHER };

struct nccl_op {
    nccl_kind kind;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t how;
    int root;
    cudaStream_t stream;
};

/* State that the ranks of a communicator share. */
struct nccl_clique {
    std::mutex m;
    std::condition_variable c;
    int n = 0, joined = 0, gone = 0;
    std::vector<int> device;                      /* -1: not connected yet */
    std::map<uint64_t, std::vector<nccl_op>> ops; /* by number: the operation of each rank */
    std::map<uint64_t, int> came, left;
    bool lost = false; /* 1 if a rank has aborted */
};

} // namespace cuda_on_cpu

struct ncclComm {
    std::shared_ptr<cuda_on_cpu::nccl_clique> q;
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
    int rank = 0, device = 0, pending_asked = 0;
    int parting = 0; /* 1: finalized; 2: its state was queried until that was done */
    bool blocking = true;
    uint64_t next = 0;
    std::vector<cuda_on_cpu::nccl_op> pending; /* operations of a group that are not queued yet */
};
typedef ncclComm *ncclComm_t;

namespace cuda_on_cpu
{

inline size_t nccl_bytes(ncclDataType_t t)
{
    return t == ncclFloat32 || t == ncclInt32 ? 4 : t == ncclBfloat16 ? 2 : 1;
}

inline float nccl_get(const void *p, size_t i, ncclDataType_t t)
{
    return t == ncclFloat32 ? ((const float *)p)[i] : (float)((const __nv_bfloat16 *)p)[i];
}

inline void nccl_compute(const std::vector<nccl_op> &all, const nccl_op &mine, std::vector<char> &out)
{
    const size_t bytes = mine.count * nccl_bytes(mine.type);

    if (mine.kind == BROADCAST) {
        out.assign((const char *)all[(size_t)mine.root].from,
                   (const char *)all[(size_t)mine.root].from + bytes);
        return;
    }
    if (mine.kind == ALL_GATHER) {
        for (const nccl_op &o : all)
            out.insert(out.end(), (const char *)o.from, (const char *)o.from + bytes);
        return;
    }
    out.resize(bytes);
    for (size_t i = 0; i < mine.count; i++) {
        float sum = nccl_get(all[0].from, i, mine.type);
        for (size_t r = 1; r < all.size(); r++) {
            const float v = nccl_get(all[r].from, i, mine.type);
            sum = mine.how == ncclMax ? (v > sum ? v : sum) : sum + v;
        }
        if (mine.how == ncclAvg) sum /= (float)all.size();
        if (mine.type == ncclFloat32)
            memcpy(&out[i * 4], &sum, 4);
        else {
            const __nv_bfloat16 h(sum);
            memcpy(&out[i * 2], &h, 2);
        }
    }
}

/* Runs one operation on its stream: waits for the other ranks, and stores the result when all have read their
 * input. */
inline void nccl_run(std::shared_ptr<nccl_clique> q, std::shared_ptr<std::atomic<bool>> aborted, int rank,
                     uint64_t number, nccl_op op)
{
    std::unique_lock<std::mutex> hold(q->m);
    std::vector<char> out;

    q->ops[number].resize((size_t)q->n);
    q->ops[number][(size_t)rank] = op;
    q->came[number]++;
    q->c.notify_all();
    q->c.wait(hold, [&] { return *aborted || q->came[number] == q->n; });
    if (*aborted) return;
    for (const nccl_op &o : q->ops[number])
        if (o.kind != op.kind || o.count != op.count || o.type != op.type)
            fault("NCCL: ranks disagree about operation %ld: %zu elements here, %zu there", (long)number,
                  op.count, o.count);
    nccl_compute(q->ops[number], op, out);
    q->left[number]++;
    q->c.notify_all();
    q->c.wait(hold, [&] { return *aborted || q->left[number] == q->n; });
    if (!*aborted && !the_world().broken && !out.empty()) memcpy(op.to, out.data(), out.size());
}

inline void nccl_queue(ncclComm_t comm)
{
    for (const nccl_op &op : comm->pending) {
        auto q = comm->q;
        auto aborted = comm->aborted;
        const int rank = comm->rank;
        const uint64_t number = comm->next++;
        give(op.stream, [=] { nccl_run(q, aborted, rank, number, op); });
    }
    comm->pending.clear();
}

/* State of a communicator. The caller holds the lock of the clique. */
inline ncclResult_t nccl_state(ncclComm_t comm)
{
    nccl_clique &q = *comm->q;

    for (size_t a = 0; a < q.device.size(); a++)
        for (size_t b = 0; b < a; b++)
            if (q.device[a] >= 0 && q.device[a] == q.device[b]) return ncclInvalidUsage;
    if (q.lost) return ncclRemoteError;
    return q.joined < q.n ? ncclInProgress : ncclSuccess;
}

inline ncclComm_t nccl_member(std::shared_ptr<nccl_clique> q, int n, int rank, const ncclConfig_t *config)
{
    ncclComm_t comm = new ncclComm;

    comm->q = q;
    comm->rank = rank;
    comm->device = current_device();
    comm->blocking = !config || config->blocking != 0;
    std::lock_guard<std::mutex> hold(q->m);
    q->n = n;
    q->device.resize((size_t)n, -1);
    q->device[(size_t)rank] = comm->device;
    q->joined++;
    q->c.notify_all();
    return comm;
}

inline ncclResult_t nccl_wait_start(ncclComm_t comm)
{
    if (!comm->blocking) return ncclInProgress;
    std::unique_lock<std::mutex> hold(comm->q->m);
    comm->q->c.wait(hold, [&] { return nccl_state(comm) != ncclInProgress; });
    return nccl_state(comm);
}

inline std::map<int, std::shared_ptr<nccl_clique>> &nccl_ids()
{
    static auto *ids = new std::map<int, std::shared_ptr<nccl_clique>>;
    return *ids;
}

/* Depth of ncclGroupStart, and the communicators with operations in the group. */
struct nccl_group {
    int depth = 0;
    std::vector<ncclComm_t> comms;
};
inline nccl_group &nccl_now()
{
    static thread_local nccl_group g;
    return g;
}

inline ncclResult_t nccl_submit(ncclComm_t comm, nccl_op op)
{
    nccl_group &g = nccl_now();

    if (!comm || *comm->aborted) return ncclInvalidArgument;
    {
        std::lock_guard<std::mutex> hold(comm->q->m);
        const ncclResult_t s = nccl_state(comm);
        if (s == ncclInProgress) return ncclInvalidUsage; /* used before it was ready */
        if (s != ncclSuccess) return s;
    }
    comm->pending.push_back(op);
    if (g.depth) {
        g.comms.push_back(comm);
        return comm->blocking ? ncclSuccess : ncclInProgress;
    }
    if (comm->blocking)
        nccl_queue(comm);
    else
        comm->pending_asked = 0;
    return comm->blocking ? ncclSuccess : ncclInProgress;
}

} // namespace cuda_on_cpu

inline const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
    return text[r];
}
inline const char *ncclGetLastError(ncclComm_t) { return ""; }
inline ncclResult_t ncclGetVersion(int *v)
{
    *v = NCCL_VERSION_CODE;
    return ncclSuccess;
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<int> last{0};
    const int number = ++last;

    memset(id, 0, sizeof *id);
    memcpy(id->internal, &number, sizeof number);
    std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
    cuda_on_cpu::nccl_ids()[number] = std::make_shared<cuda_on_cpu::nccl_clique>();
    return ncclSuccess;
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
    std::shared_ptr<cuda_on_cpu::nccl_clique> q;
    int number;

    *comm = nullptr;
    memcpy(&number, id.internal, sizeof number);
    {
        std::lock_guard<std::mutex> hold(cuda_on_cpu::the_world().m);
        auto at = cuda_on_cpu::nccl_ids().find(number);
        if (at == cuda_on_cpu::nccl_ids().end() || rank < 0 || rank >= n) return ncclInvalidArgument;
        q = at->second;
    }
    *comm = cuda_on_cpu::nccl_member(q, n, rank, config);
    return cuda_on_cpu::nccl_wait_start(*comm);
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    {
        std::lock_guard<std::mutex> hold(comm->q->m);
        *state = cuda_on_cpu::nccl_state(comm);
    }
    if (*state == ncclSuccess && !comm->pending.empty()) {
        if (!comm->pending_asked++)
            *state = ncclInProgress;
        else
            cuda_on_cpu::nccl_queue(comm);
    }
    if (comm->parting == 1) {
        *state = ncclInProgress;
        comm->parting = 2;
    }
    return ncclSuccess;
}
/* Without a complete ncclCommFinalize, NCCL waits for the peers on this machine. */
inline ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm->blocking && comm->parting < 2)
        cuda_on_cpu::fault("ncclCommDestroy: rank %d did not wait for the end of ncclCommFinalize",
                           comm->rank);
    delete comm;
    return ncclSuccess;
}
inline ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    comm->parting = 1;
    return comm->blocking ? ncclSuccess : ncclInProgress;
}
inline ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    {
        std::lock_guard<std::mutex> hold(comm->q->m);
        *comm->aborted = true;
        comm->q->lost = true;
        comm->q->c.notify_all();
    }
    delete comm;
    return ncclSuccess;
}
inline ncclResult_t ncclCommCount(ncclComm_t comm, int *n)
{
    *n = comm->q->n;
    return ncclSuccess;
}
inline ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

inline ncclResult_t ncclGroupStart()
{
    cuda_on_cpu::nccl_now().depth++;
    return ncclSuccess;
}
inline ncclResult_t ncclGroupEnd()
{
    cuda_on_cpu::nccl_group &g = cuda_on_cpu::nccl_now();
    ncclResult_t r = ncclSuccess;

    if (--g.depth) return ncclSuccess;
    for (ncclComm_t comm : g.comms) {
        if (comm->blocking)
            cuda_on_cpu::nccl_queue(comm);
        else {
            comm->pending_asked = 0;
            r = ncclInProgress;
        }
    }
    g.comms.clear();
    return r;
}
inline ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t how,
                                  ncclComm_t comm, cudaStream_t s)
{
    return cuda_on_cpu::nccl_submit(comm, {cuda_on_cpu::ALL_REDUCE, from, to, n, t, how, 0, s});
}
inline ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root,
                                  ncclComm_t comm, cudaStream_t s)
{
    return cuda_on_cpu::nccl_submit(comm, {cuda_on_cpu::BROADCAST, from, to, n, t, ncclSum, root, s});
}
inline ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t comm,
                                  cudaStream_t s)
{
    return cuda_on_cpu::nccl_submit(comm, {cuda_on_cpu::ALL_GATHER, from, to, n, t, ncclSum, 0, s});
}

#endif /* CUDA_ON_CPU_NCCL_H */
