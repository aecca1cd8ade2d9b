/* The environment: the rank, world and address that DREAMDDP_ variables or a launcher set. */
#include "config/settings.h"
#include "wire/socket.h"

/* Variables of a launcher. NULL means that it has none. */
typedef struct ddp__launcher {
    const char *name, *rank, *world, *local_rank, *local_world;
} ddp__launcher;

static const ddp__launcher ddp__launchers[] = {
    {"DREAMDDP_RANK", "DREAMDDP_RANK", "DREAMDDP_WORLD_SIZE", "DREAMDDP_LOCAL_RANK", NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIx", "PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL}};
enum {
    DDP__LAUNCHED_OWN,
    DDP__LAUNCHED_TORCH,
    DDP__LAUNCHED_OMPI,
    DDP__LAUNCHED_MPICH,
    DDP__LAUNCHED_PMIX,
    DDP__LAUNCHED_SLURM,
    DDP__LAUNCHERS
};
enum { DDP__JOB_TEXT = 128 }; /* maximum length of a launcher's name for its run */

static ddp_status ddp__env_int(const char *name, int least, int most, int *out, ddp_error *err)
{
    const char *text = ddp__env_get(name);
    long v;

    if (!text) return DDP_OK;
    if (!ddp__parse_long(text, &v) || v < least || v > most)
        return ddp__fail(err, DDP_ARG, "%s='%.60s' is not a whole number from %d to %d", name, text, least,
                         most);
    *out = (int)v;
    return DDP_OK;
}

/* The first host of "rack[1-2]n[01-03,07],gpu5" is rack1n01. Returns 0 if the text does not have that form.
 * */
static int ddp__first_host(const char *list, char *out, size_t room)
{
    size_t n = 0, digits;

    while (*list && *list != ',') {
        if (n + 1 >= room) return 0;
        if (*list != '[') {
            out[n++] = *list++;
            continue;
        }
        list++;
        digits = strspn(list, "0123456789"); /* copied as text: leading zeros belong to the name */
        if (!digits || n + digits >= room) return 0;
        memcpy(out + n, list, digits);
        n += digits;
        list = strchr(list, ']');
        if (!list) return 0;
        list++;
    }
    out[n] = 0;
    return n > 0;
}

/* torch.distributed, or torchrun's agent for it, listens on MASTER_PORT. */
static ddp_status ddp__torch_addr(ddp__env *env, ddp_error *err)
{
    const char *host = ddp__env_get("MASTER_ADDR");
    int port = 0, local = 0;

    if (!host || !ddp__env_get("MASTER_PORT"))
        return ddp__fail(err, DDP_ARG,
                         "RANK and WORLD_SIZE are set but %s is not: set it, or DREAMDDP_ADDR=HOST:PORT",
                         host ? "MASTER_PORT" : "MASTER_ADDR");
    DDP__TRY(ddp__env_int("MASTER_PORT", 1, 65535, &port, err));
    if (port == 65535)
        return ddp__fail(err, DDP_ARG,
                         "MASTER_PORT=65535: rank 0 listens at MASTER_PORT + 1, which is not a valid port; "
                         "set DREAMDDP_ADDR=HOST:PORT, or a smaller MASTER_PORT");
    port++;
    env->note = "rank 0 listens at MASTER_PORT + 1; torch.distributed uses MASTER_PORT";
    /* c10d rendezvous of torchrun sets this machine's host name. If all ranks run here, loopback works too
     * and is not reachable from outside */
    DDP__TRY(ddp__env_int("LOCAL_WORLD_SIZE", 1, INT_MAX, &local, err));
    if (local == env->world) host = "127.0.0.1";
    snprintf(env->addr, sizeof env->addr, strchr(host, ':') ? "[%.280s]:%d" : "%.280s:%d", host, port);
    return DDP_OK;
}

/* Identifies the process that MPICH's mpirun started on this machine for all its ranks here. Hydra passes
 * each rank one end of a socket pair, and the system reports the process that created the pair. Other process
 * managers pass an address. */
static void ddp__mpich_job(char *out, size_t room)
{
    const char *port = ddp__env_get("PMI_PORT"), *fd = ddp__env_get("PMI_FD");
    long number;

    if (port) snprintf(out, room, "%.100s", port);
#ifdef SO_PEERCRED
    if (!port && fd && ddp__parse_long(fd, &number) && number >= 0 && number <= INT_MAX) {
        int maker[3] = {0, 0, 0}; /* struct ucred: process, user, group */
        socklen_t size = sizeof maker;
        if (getsockopt((int)number, SOL_SOCKET, SO_PEERCRED, maker, &size) == 0 && maker[0] > 0)
            snprintf(out, room, "hydra %d", maker[0]);
    }
#else
    (void)fd;
    (void)number;
#endif
}

/* The launcher's name for its run, equal on all ranks, or "" if it sets none. out[DDP__JOB_TEXT]. */
static ddp_status ddp__launcher_job(const ddp__env *env, int which, char *out, ddp_error *err)
{
    const char *id = NULL, *job = ddp__env_get("SLURM_JOB_ID"), *step = ddp__env_get("SLURM_STEP_ID");
    int local = 0;

    *out = 0;
    if (which == DDP__LAUNCHED_TORCH) id = ddp__env_get("TORCHELASTIC_RUN_ID");
    if (which == DDP__LAUNCHED_OMPI) { /* differs for each mpirun */
        id = ddp__env_get("PMIX_NAMESPACE");
        if (!id) id = ddp__env_get("OMPI_MCA_ess_base_jobid");
    }
    if (id)
        snprintf(out, DDP__JOB_TEXT, "%.127s", id);
    else if (job && step && which >= DDP__LAUNCHED_MPICH) /* two steps of a job are two runs */
        snprintf(out, DDP__JOB_TEXT, "%.60s.%.60s", job, step);
    if (*out || which != DDP__LAUNCHED_MPICH) return DDP_OK;
    DDP__TRY(ddp__env_int(ddp__launchers[which].local_world, 1, INT_MAX, &local, err));
    if (local == env->world) ddp__mpich_job(out, DDP__JOB_TEXT); /* each machine has a different process */
    return DDP_OK;
}

/* Concurrent runs on one machine need different ports, so the port is derived from the name of the run. It is
 * below the ports that systems use for outgoing connections. */
static int ddp__launcher_port(const char *job)
{
    enum { FIRST = 20000, COUNT = 12000 };

    if (!*job) return DDP__DEFAULT_PORT;
    return FIRST + (int)(ddp__hash(DDP__HASH_START, job, strlen(job)) % COUNT);
}

/* Inside a job step: the step's first host, else the host on which srun was called. */
static ddp_status ddp__slurm_addr(ddp__env *env, int port, ddp_error *err)
{
    char host[256];
    const char *list = ddp__env_get("SLURM_STEP_NODELIST"), *ip = ddp__env_get("SLURM_LAUNCH_NODE_IPADDR");
    int nodes = 0;

    DDP__TRY(ddp__env_int("SLURM_STEP_NUM_NODES", 1, INT_MAX, &nodes, err));
    if (nodes == 1)
        snprintf(env->addr, sizeof env->addr, "127.0.0.1:%d", port);
    else if (list && ddp__first_host(list, host, sizeof host))
        snprintf(env->addr, sizeof env->addr, "%s:%d", host, port);
    else if (ip)
        snprintf(env->addr, sizeof env->addr, strchr(ip, ':') ? "[%.280s]:%d" : "%.280s:%d", ip, port);
    return DDP_OK;
}

/* Sets the address of rank 0, as far as the launcher provides it. */
static ddp_status ddp__launcher_addr(ddp__env *env, int which, const char *job, ddp_error *err)
{
    const int port = ddp__launcher_port(job);
    int local = 0, step = ddp__env_get("SLURM_STEP_ID") != NULL;

    if (which == DDP__LAUNCHED_TORCH) return env->world > 1 ? ddp__torch_addr(env, err) : DDP_OK;
    if (which == DDP__LAUNCHED_SLURM || which == DDP__LAUNCHED_PMIX) return ddp__slurm_addr(env, port, err);
    DDP__TRY(ddp__env_int(ddp__launchers[which].local_world, 1, INT_MAX, &local, err));
    if (which == DDP__LAUNCHED_OWN || local == env->world)
        snprintf(env->addr, sizeof env->addr, "127.0.0.1:%d", port);
    else if (which == DDP__LAUNCHED_MPICH && step) /* srun --mpi=pmi2 */
        return ddp__slurm_addr(env, port, err);
    return DDP_OK;
}

/* Slurm's variables identify this process only inside a job step. In a batch script without srun, every
 * process would be rank 0. */
static ddp_status ddp__slurm_applies(ddp__env *env, int *applies, ddp_error *err)
{
    int tasks = 1;

    *applies = ddp__env_get("SLURM_STEP_ID") && ddp__env_get("SLURM_PROCID");
    if (*applies) return DDP_OK;
    DDP__TRY(ddp__env_int("SLURM_NTASKS", 1, INT_MAX, &tasks, err));
    if (tasks > 1 && ddp__env_get("SLURM_JOB_ID"))
        env->note = "this Slurm job has several tasks, but this process was started by the batch "
                    "script, not by srun: it trains alone; start it with srun";
    return DDP_OK;
}

/* Takes rank and world from the first launcher that has set any of its variables. */
static ddp_status ddp__env_launcher(ddp__env *env, int *which, ddp_error *err)
{
    int applies;

    for (int i = 0; i < DDP__LAUNCHERS; i++) {
        const ddp__launcher *l = &ddp__launchers[i];
        const char *world = l->world;
        if (i == DDP__LAUNCHED_PMIX || i == DDP__LAUNCHED_SLURM) {
            if (i == DDP__LAUNCHED_PMIX)
                applies = ddp__env_get(l->rank) != NULL;
            else
                DDP__TRY(ddp__slurm_applies(env, &applies, err));
            if (!applies) continue; /* SLURM_NTASKS alone does not count as half set */
            if (ddp__env_get("SLURM_STEP_NUM_TASKS")) world = "SLURM_STEP_NUM_TASKS";
        }
        if (!ddp__env_get(l->rank) && !ddp__env_get(world)) continue;
        if (!ddp__env_get(l->rank) || !ddp__env_get(world))
            return ddp__fail(err, DDP_ARG, "%s is set but %s is not: set both or neither%s",
                             ddp__env_get(l->rank) ? l->rank : world, ddp__env_get(l->rank) ? world : l->rank,
                             i == DDP__LAUNCHED_PMIX ? ", or DREAMDDP_RANK and DREAMDDP_WORLD_SIZE" : "");
        DDP__TRY(ddp__env_int(world, 1, 4096, &env->world, err));
        DDP__TRY(ddp__env_int(l->rank, 0, env->world - 1, &env->rank, err));
        env->local_rank = env->rank;
        if (i == DDP__LAUNCHED_MPICH && ddp__env_get("SLURM_STEP_ID"))
            DDP__TRY(ddp__env_int("SLURM_LOCALID", 0, 4095, &env->local_rank, err));
        DDP__TRY(ddp__env_int(l->local_rank, 0, 4095, &env->local_rank, err));
        env->launcher = l->name;
        *which = i;
        return DDP_OK;
    }
    return DDP_OK;
}

uint64_t ddp__run_id(const char *text)
{
    size_t n = text ? strlen(text) : 0;

    if (!n) return 0;
    if (n < 20 && strspn(text, "0123456789") == n) return strtoull(text, NULL, 10);
    return ddp__hash(DDP__HASH_START, text, n);
}

ddp_status ddp__env_read(ddp__env *out, ddp_error *err)
{
    ddp__env env = DDP__ZEROS;
    const char *addr = ddp__env_get("DREAMDDP_ADDR"), *id = ddp__env_get("DREAMDDP_RUN_ID"),
               *log = ddp__env_get("DREAMDDP_LOG");
    char job[DDP__JOB_TEXT] = "";
    int which = -1;

    env.world = 1;
    DDP__TRY(ddp__env_check_names(err));
    if (log && ddp__log_level_named(log) == DDP_LOG_DEFAULT)
        return ddp__fail(err, DDP_ARG, "DREAMDDP_LOG=%.40s: off, error, warn, info or debug", log);
    DDP__TRY(ddp__env_launcher(&env, &which, err));
    DDP__TRY(ddp__launcher_job(&env, which, job, err));
    if (addr) {
        if (strlen(addr) >= sizeof env.addr)
            return ddp__fail(err, DDP_ARG, "DREAMDDP_ADDR='%.60s...' is too long: write HOST:PORT", addr);
        snprintf(env.addr, sizeof env.addr, "%s", addr);
    } else if (which >= 0) {
        DDP__TRY(ddp__launcher_addr(&env, which, job, err));
    }
    snprintf(env.run_id, sizeof env.run_id, "%.127s", id ? id : job);
    *out = env;
    return DDP_OK;
}

ddp_status ddp_launched(const char **launcher, int *rank, int *world, ddp_error *err)
{
    ddp__env env;

    *launcher = NULL;
    *rank = *world = 0;
    DDP__TRY(ddp__env_read(&env, err));
    if (!env.launcher) return DDP_OK;
    *launcher = env.launcher;
    *rank = env.rank;
    *world = env.world;
    return DDP_OK;
}
