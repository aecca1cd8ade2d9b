/* OP-Fence: the baselines, the search over device orders, and the resulting plan. */
#include "plan/fence/fence.h"
#include "plan/fence/fence_cut.h"
#include "plan/fence/fence_order.h"
#include "plan/names.h"
#include "plan/order.h"

enum { DDP__FENCE_ROUNDS = 8, DDP__FENCE_ALL = 7 };
#define DDP__FENCE_ORDERS 3e8 /* step limit for trying every order of up to FENCE_ALL devices */
#define DDP__FENCE_STEPS  2e8 /* step limit for improving a plan: about a second */
#define DDP__FENCE_SIZE   1e9 /* limit on the elementary steps of one bound */

static const char *const ddp__fence_solvers[] = {"fence", "fence", "equal_ops", "equal_flops", NULL};

DDP__NAMES(ddp_fence_solver, ddp__fence_solvers, 1, "solver")

void ddp_fence_plan_free(ddp_fence_plan *plan)
{
    if (!plan) return;
    DDP_FREE(plan->segment);
    DDP_FREE(plan->order);
    DDP_FREE(plan->cluster);
    DDP_FREE(plan->device_of);
    ddp_workload_free(&plan->work);
    memset(plan, 0, sizeof *plan);
}

typedef struct ddp__fence_job {
    ddp__fence_tape tape;
    const ddp_fence_options *o;
    ddp__fence_cut cut;
    int *order, *trial; /* [N] order of the current cut (the plan's), and an order on trial */
    int *device_of;     /* [ops] device of each operator in the plan */
    int *edge;          /* [ops + 1] first operator of each module, reused as scratch at the end */
    ddp_workload sums;  /* C_p, R_p, memory */
    double steps;       /* elementary steps spent on improving the order */
} ddp__fence_job;

/* Assigns operators to devices by a cut along an order. */
static void ddp__fence_assign(const ddp__fence_tape *t, const ddp__fence_cut *cut, const int *order,
                              int *device_of)
{
    for (int k = 0; k < t->graph.net->devices; k++)
        for (int i = cut->first[k]; i < cut->end[k]; i++) device_of[i] = order[k];
    for (int i = 0; i < t->n; i++) /* a home is never input data, so its own device is final */
        if (t->home[i] != i) device_of[i] = device_of[t->home[i]];
}

/* The first device whose memory limit the job's sums exceed, or -1. */
static int ddp__fence_overfull(const ddp__fence_job *job)
{
    const ddp_network *net = job->tape.graph.net;
    for (int d = 0; net->memory_bytes && !job->o->no_memory && d < net->devices; d++)
        if (job->sums.memory_bytes[d] > net->memory_bytes[d]) return d;
    return -1;
}

/* T_pipe of the current cut along job->trial, or infinity if it exceeds the memory of a device. */
static double ddp__fence_try(ddp__fence_job *job)
{
    ddp__fence_assign(&job->tape, &job->cut, job->trial, job->device_of);
    ddp__workload_sum(&job->tape.graph, job->device_of, &job->sums);
    return ddp__fence_overfull(job) < 0 ? job->sums.pipeline_s : DBL_MAX;
}

static double ddp__fence_price(void *user)
{
    ddp__fence_job *job = (ddp__fence_job *)user;
    job->steps += job->tape.graph.net->devices + job->tape.n;
    return job->steps > DDP__FENCE_STEPS ? DBL_MAX : ddp__fence_try(job);
}

/* Cuts along job->trial. Retains that order and cut if they are better than the current ones. */
static ddp_status ddp__fence_recut(ddp__fence_job *job, ddp_error *err)
{
    const double before = job->cut.pipeline_s;
    DDP__TRY(
        ddp__fence_cut_best(&job->tape, job->trial, job->o->allow_idle, job->o->no_memory, &job->cut, err));
    if (job->cut.pipeline_s < before)
        memcpy(job->order, job->trial, (size_t)job->tape.graph.net->devices * sizeof(int));
    return DDP_OK;
}

static ddp_status ddp__fence_nothing_fits(const ddp__fence_job *job, int every, ddp_error *err)
{
    const ddp__fence_tape *t = &job->tape;
    const ddp_network *net = t->graph.net;
    double room = 0, largest = 0, biggest = 0;
    for (int d = 0; d < net->devices; d++) {
        room += net->memory_bytes[d];
        if (net->memory_bytes[d] > largest) largest = net->memory_bytes[d];
    }
    for (int i = 0; i < t->n; i++)
        if (t->memory[i + 1] - t->memory[i] > biggest) biggest = t->memory[i + 1] - t->memory[i];
    return ddp__fail(err, DDP_FAILED,
                     "no cut fits into memory, %s: the operators need %.4g GB (the largest %.4g GB) plus "
                     "received data, the devices have %.4g GB (the largest %.4g GB); fewer micro-batches or "
                     "a smaller state_factor need less",
                     every ? "in every order of the devices"
                           : "in any order of "
                             "the devices tried",
                     t->memory[t->n] / 1e9, biggest / 1e9, room / 1e9, largest / 1e9);
}

/* Advances to the next order of the devices in lexicographic order. Returns 0 after the last. */
static int ddp__fence_next_order(int *order, int N)
{
    int i = N - 2, k = N - 1;
    while (i >= 0 && order[i] > order[i + 1]) i--;
    if (i < 0) return 0;
    while (order[k] < order[i]) k--;
    ddp__swap(order, i, k);
    ddp__reverse(order, i + 1, N - 1);
    return 1;
}

static ddp_status ddp__fence_solve_order(ddp__fence_job *job, ddp_error *err)
{
    const int N = job->tape.graph.net->devices;
    int found = 0, every = 0;
    double before, pipeline;
    memcpy(job->trial, job->order, (size_t)N * sizeof(int));
    DDP__TRY(ddp__fence_recut(job, err));
    ddp__reverse(job->trial, 0, N - 1);
    DDP__TRY(ddp__fence_recut(job, err));
    ddp__shuffle(job->trial, N, NULL);
    DDP__TRY(ddp__fence_recut(job, err));
    if (!(job->cut.pipeline_s < DBL_MAX)) { /* no order fits, so choose the order by memory */
        memcpy(job->trial, job->order, (size_t)N * sizeof(int));
        DDP__TRY(ddp__fence_fit_order(&job->tape, job->o->allow_idle, job->trial, &found, &every, err));
        if (found) DDP__TRY(ddp__fence_recut(job, err));
        if (!(job->cut.pipeline_s < DBL_MAX)) return ddp__fence_nothing_fits(job, every, err);
    }
    for (int round = 0; round < DDP__FENCE_ROUNDS; round++) {
        memcpy(job->trial, job->order, (size_t)N * sizeof(int));
        before = job->cut.pipeline_s;
        pipeline = ddp__fence_try(job);
        if (!ddp__improve(job->trial, N, 1, ddp__fence_price, job, &pipeline)) break; /* with the cut fixed */
        DDP__TRY(ddp__fence_recut(job, err));
        if (!(job->cut.pipeline_s < before)) break;
    }
    if (N > DDP__FENCE_ALL) return DDP_OK;
    ddp__shuffle(job->trial, N, NULL); /* every order of a few devices, up to the step limit */
    do DDP__TRY(ddp__fence_recut(job, err));
    while (job->cut.work < DDP__FENCE_ORDERS && ddp__fence_next_order(job->trial, N));
    return DDP_OK;
}

/* ---- baselines: consecutive whole modules per device, devices in index order ---- */

/* edge[m] = the first operator of module m, edge[modules] = n. Returns the number of modules. */
static int ddp__fence_modules(const ddp_oplist *list, int *edge)
{
    int i, m = 0;
    for (i = 0; i < list->count; i++)
        if (i == 0 || list->op[i].module <= 0 || list->op[i].module != list->op[i - 1].module) edge[m++] = i;
    edge[m] = list->count;
    return m;
}

/* equal_ops: modules / devices for each device. The first devices get the remainder. equal_flops: cut k is
 * the one nearest to k/N of the FLOPs that leaves every device at least one module. */
static void ddp__fence_equal(ddp__fence_job *job, int modules)
{
    const double *flops = job->tape.flops;
    const int *edge = job->edge, N = job->tape.graph.net->devices;
    for (int k = 0, at = 0; k < N; k++) {
        const double aim = flops[job->tape.n] * (k + 1) / N;
        job->cut.first[k] = edge[at++];
        if (job->o->solver == DDP_FENCE_EQUAL_OPS)
            at += modules / N + (k < modules % N) - 1;
        else if (k == N - 1)
            at = modules;
        else
            while (at < modules - (N - 1 - k) &&
                   fabs(flops[edge[at + 1]] - aim) <= fabs(flops[edge[at]] - aim))
                at++;
        job->cut.end[k] = edge[at];
    }
}

static ddp_status ddp__fence_baseline(ddp__fence_job *job, ddp_error *err)
{
    const ddp_network *net = job->tape.graph.net;
    const char *name = ddp_fence_solver_name(job->o->solver);
    int N = net->devices, modules = ddp__fence_modules(job->tape.graph.list, job->edge), k;
    if (modules < N)
        return ddp__fail(err, DDP_FAILED,
                         "%s: %d modules cannot give each of %d devices one; solver fence cuts "
                         "between operators",
                         name, modules, N);
    ddp__fence_equal(job, modules);
    for (k = 0; k < N; k++) job->order[k] = job->trial[k] = k;
    job->cut.pipeline_s = ddp__fence_try(job);
    k = ddp__fence_overfull(job);
    if (k < 0) return DDP_OK;
    return ddp__fail(err, DDP_FAILED,
                     "%s: device %d needs %.4g GB but has %.4g GB; solver fence takes memory into account",
                     name, k, job->sums.memory_bytes[k] / 1e9, net->memory_bytes[k] / 1e9);
}

static int ddp__fence_root_of(int *parent, int i)
{
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}

/* Returns 1 if the operators of each cluster are connected by args among themselves. This holds if the
 * number of connected parts equals the number of clusters in use. */
static int ddp__fence_connected(const ddp_oplist *list, const ddp_fence_plan *plan, int *parent, int *used)
{
    int parts = 0;
    for (int c = 0; c < plan->clusters; c++) used[c] = 0;
    for (int i = 0; i < list->count; i++) {
        int own = plan->cluster[plan->device_of[i]];
        parts += 1 - !used[own]++;
        parent[i] = i;
        for (int k = 0; k < list->op[i].arg_count; k++) {
            int root = ddp__fence_root_of(parent, list->op[i].args[k]);
            if (plan->cluster[plan->device_of[root]] != own || root == ddp__fence_root_of(parent, i))
                continue;
            parent[root] = ddp__fence_root_of(parent, i);
            parts--;
        }
    }
    return parts == 0;
}

static ddp_status ddp__fence_report(ddp__fence_job *job, ddp_fence_plan *plan, ddp_error *err)
{
    const ddp_oplist *list = job->tape.graph.list;
    int N = plan->devices, k;
    for (k = 0; k < N; k++)
        if (job->cut.end[k] > job->cut.first[k]) {
            ddp_fence_segment *s = &plan->segment[plan->segments++];
            s->device = job->order[k];
            s->first = job->cut.first[k];
            s->end = job->cut.end[k];
        }
    ddp__fence_assign(&job->tape, &job->cut, job->order, job->device_of);
    plan->proven = job->cut.proven;
    plan->connected = ddp__fence_connected(list, plan, job->edge, job->trial);
    return ddp_workload_estimate(list, job->tape.graph.net, plan->device_of, &job->o->work, &plan->work, err);
}

static ddp_status ddp__fence_run(ddp__fence_job *job, ddp_fence_plan *plan, ddp_error *err)
{
    const ddp_fence_options *o = job->o;
    const ddp_network *net = job->tape.graph.net;
    int fence = o->solver == DDP_FENCE_DEFAULT || o->solver == DDP_FENCE_CUT;
    double bytes = o->message_bytes;

    if (bytes <= 0) DDP__TRY(ddp__fence_typical_bytes(&job->tape, &bytes, err));
    if (!(bytes >= 1)) bytes = 1;
    plan->message_bytes = bytes;
    DDP__TRY(ddp__fence_order(net, bytes, job->tape.graph.backward, o->resolution > 0 ? o->resolution : 1,
                              plan->cluster, &plan->clusters, fence ? job->order : NULL, err));
    if (fence)
        DDP__TRY(ddp__fence_solve_order(job, err));
    else
        DDP__TRY(ddp__fence_baseline(job, err));
    return ddp__fence_report(job, plan, err);
}

static ddp_status ddp__fence_arguments(const ddp_oplist *list, const ddp_network *net,
                                       const ddp_fence_options *o, ddp_error *err)
{
    double n = list->count, N = net->devices;
    if (o->solver < DDP_FENCE_DEFAULT || o->solver > DDP_FENCE_EQUAL_FLOPS)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use fence, equal_ops or equal_flops",
                         (int)o->solver);
    if (!ddp__within(o->message_bytes, 0, 1e100))
        return ddp__fail(err, DDP_ARG, "message_bytes is %g; it must be finite and at least 0",
                         o->message_bytes);
    if (!ddp__within(o->resolution, 0, 1e100))
        return ddp__fail(err, DDP_ARG, "resolution is %g; it must be above 0, or 0 for 1", o->resolution);
    if (0.5 * N * n * n + (o->allow_idle ? 4 * N * N * n : 0) > DDP__FENCE_SIZE || N * N > 1e8)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "%d operators over %d devices%s are too many to cut; merge operators%s", list->count,
                         net->devices, o->allow_idle ? ", some idle," : "",
                         o->allow_idle ? " or leave idle devices out" : "");
    if (list->count < net->devices && (!o->allow_idle || o->solver > DDP_FENCE_CUT))
        return ddp__fail(err, DDP_ARG,
                         "%d operators cannot give each of %d devices one; allow idle devices with "
                         "solver fence",
                         list->count, net->devices);
    return DDP_OK;
}

ddp_status ddp_fence(const ddp_oplist *list, const ddp_network *net, const ddp_fence_options *o,
                     ddp_fence_plan *out, ddp_error *err)
{
    ddp__fence_job job;
    ddp_fence_plan plan = DDP__ZEROS;
    ddp__scratch *room = &job.tape.graph.room;
    ddp_status status;

    if (!o || !out) return ddp__fail(err, DDP_ARG, "ddp_fence: options and out must not be NULL");
    memset(&job, 0, sizeof job);
    job.o = o;
    job.cut.pipeline_s = DBL_MAX;
    status = ddp__fence_tape_open(list, net, &o->work, &job.tape, err);
    if (status == DDP_OK) {
        size_t N = (size_t)net->devices, n = (size_t)list->count;
        job.cut.first = ddp__ints(room, N);
        job.cut.end = ddp__ints(room, N);
        job.trial = ddp__ints(room, N);
        job.edge = ddp__ints(room, n + 1);
        job.sums.compute_s = ddp__doubles(room, N);
        job.sums.receive_s = ddp__doubles(room, N);
        job.sums.memory_bytes = ddp__doubles(room, N);
        plan.solver = o->solver == DDP_FENCE_DEFAULT ? DDP_FENCE_CUT : o->solver;
        plan.devices = net->devices;
        plan.ops = list->count;
        plan.segment = (ddp_fence_segment *)ddp__calloc(N, sizeof *plan.segment);
        plan.order = job.order = (int *)ddp__calloc(N, sizeof(int));
        plan.cluster = (int *)ddp__calloc(N, sizeof(int));
        plan.device_of = job.device_of = (int *)ddp__calloc(n, sizeof(int));
        if (ddp__scratch_failed(room) || !plan.segment || !plan.order || !plan.cluster || !plan.device_of)
            status = ddp__fail(err, DDP_MEMORY, "no memory to plan %d operators", list->count);
    }
    if (status == DDP_OK) status = ddp__fence_arguments(list, net, o, err);
    if (status == DDP_OK) status = ddp__fence_run(&job, &plan, err);
    ddp__scratch_free(room);
    if (status == DDP_OK)
        *out = plan;
    else
        ddp_fence_plan_free(&plan);
    return status;
}
