/* The inputs of the planners: a link model, the measured costs of each layer, and lists of operators. */
#pragma once

#include "base/status.h"

/* ---- the link model alpha + beta x bytes, fitted to measured transfers ---- */

/* The cost of averaging n bytes over all ranks: it occupies the link for beta_s * n seconds and ends
 * alpha_s later. */
typedef struct ddp_link {
    double alpha_s; /* latency, in seconds */
    double beta_s;  /* seconds per byte */
} ddp_link;

/* ddp_link_average - computes the link model of an average by the direct algorithm. Averaging b bytes over P
 * workers moves 2 (P - 1) / P x b over each uplink, in each direction, and takes two delays.
 *
 *   rate     bytes per second of each worker's uplink, in each direction, above 0
 *   delay_s  one-way delay of a link, in seconds
 *   workers  P, at least 1
 *
 * Pure and safe from any thread. */
DDP_API ddp_link ddp_link_average(double rate, double delay_s, int workers);

/* A link model that is updated with each transfer: least squares in which the weight of a transfer halves
 * every `half_life` transfers. All-zero until ddp_linkfit_start. */
typedef struct ddp_linkfit {
    ddp_link link;          /* the current estimate */
    double half_life;       /* in transfers */
    double n, x, y, xx, xy; /* decayed, weighted sums of 1, bytes, seconds, and their products */
} ddp_linkfit;

/* ddp_link_fit - fits alpha and beta, both >= 0, to n transfers on an otherwise idle link.
 *
 *   bytes    [n] size of each transfer
 *   seconds  [n] time from the start to the completion of each transfer
 *   out      receives the fit. Unchanged on error.
 *
 * Interference only adds delay, so only the fastest transfer of each size counts. The fit minimises the
 * squares of relative errors, so that short transfers determine alpha. With a single size alpha is 0. Pure
 * and safe from any thread. Errors: DDP_ARG (no sample; a value is negative or not finite; no transfer is
 * longer than 0 bytes), DDP_MEMORY. */
DDP_API ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out,
                                ddp_error *err);

/* ddp_linkfit_start - starts a fit from `link`, as if it had been observed in `half_life` transfers between 0
 * and typical_bytes bytes. Does not allocate. */
DDP_API void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes, double half_life);

/* ddp_linkfit_add - adds one measured transfer. Ignores values that are not finite or not positive. Does
 * not allocate. */
DDP_API void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds);

/* ddp_link_drift - returns the relative change of the time of n messages from `then` to `now`: 0.25 = a
 * quarter longer, -0.5 = half as long, or 0 if they took no time then. Re-plan if the result leaves
 * -0.2..0.2. */
DDP_API double ddp_link_drift(ddp_link then, ddp_link now, const double *bytes, int n);

/* ---- measured costs of one model on one cluster ---- */

/* A profile: the costs of one forward and backward pass of one micro-batch, all times in seconds. Layer 0
 * is next to the input; forward visits layers 0..layers-1, backward layers-1 down to 0. A profile from
 * ddp_profile_read or ddp_profile_new is freed with ddp_profile_free. Planners borrow the arrays. Where NULL
 * is allowed for times or counts, it means zeros. */
typedef struct ddp_profile {
    int layers;         /* L, at least 1 */
    char **name;        /* [L] or NULL */
    double *params;     /* [L] number of parameters, or NULL */
    double *forward_s;  /* [L] or NULL */
    double *backward_s; /* [L] backward and local update */
    double *comm_s;     /* [L] time for which averaging the layer over all ranks occupies the link */
    double alpha_s;     /* time from the end of a message's occupancy to its arrival, or 0 = included in
                           comm_s */
    double gap_s;       /* time for which each message occupies the link in addition to comm_s, or 0 =
                           included in comm_s */
    double between_s;   /* compute between forward and backward: the other micro-batches of a step. A
                           transfer that must end before the layer's forward cannot overlap with it, but a
                           transfer that may end a step later can */
} ddp_profile;

/* ddp_profile_read - reads a profile from CSV. The header is `layer,params,forward_s,backward_s,comm_s`, in
 * any order. Further columns are ignored. There is one row per layer, in forward order.
 *
 *   forward_s  may be missing or empty (= 0)
 *   comm_s     may be missing or empty. Then comm_s[l] = link->beta_s x 4 x params and alpha_s =
 *              link->alpha_s. If other rows have a measured comm_s, which includes its startup, the computed
 *              rows include link->alpha_s too, and alpha_s is 0. A comm_s of 0 in every row, as one worker
 *              alone measures it, counts as missing if there is a link
 *   link       used if a comm_s is missing. If it is NULL and a comm_s is empty, the call fails.
 *   out        untouched on error. Otherwise, the caller frees it with ddp_profile_free.
 *
 * A .gz file is read through gzip. Errors: DDP_IO, DDP_FORMAT (names the line, column and value), DDP_ARG (a
 * cost is negative or not finite), DDP_MEMORY. */
DDP_API ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out, ddp_error *err);

/* ddp_profile_write - writes a profile as the CSV that ddp_profile_read reads. The file is written completely
 * or not at all. Errors: DDP_ARG for an empty path, DDP_IO, DDP_MEMORY. */
DDP_API ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err);

/* ddp_profile_new - creates a profile of L layers with all arrays allocated and zero (name entries NULL).
 * *out is untouched on error. Otherwise, the caller frees it with ddp_profile_free. Errors: DDP_ARG for L
 * below 1, DDP_MEMORY. */
DDP_API ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err);

/* ddp_profile_free - frees the arrays of a profile from ddp_profile_new or ddp_profile_read. Accepts an
 * all-zero one. */
DDP_API void ddp_profile_free(ddp_profile *p);

/* ddp_profile_check - checks that every cost is finite and >= 0 and that L >= 1. Pure and safe from any
 * thread. Errors: DDP_ARG, which names the layer and the value. */
DDP_API ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err);

/* ddp_profile_split - splits every layer of more than most_params parameters into equal parts.
 *
 *   most_params  most parameters in a part, at least 1. A layer of n parameters has ceil(n / most_params)
 *                parts.
 *   alpha_s      startup included in every comm_s, in seconds. Each part pays it: alpha + (comm - alpha) x
 *                its share
 *   out          receives a row for each part, in the order of the layers. Unchanged on error. Otherwise, the
 *                caller frees it with ddp_profile_free.
 *   layer_of     receives an array of out->layers with the layer of each row. Free it with DDP_FREE. May be
 *                NULL
 *
 * The parts of a layer become ready together, when its backward ends, and its forward waits for all of them.
 * So the last row of a layer carries its forward and backward time, and the other rows have none. Names of
 * parts are "NAME [2/5]". A plan for such a profile may average the parts of a layer in different steps. Each
 * parameter is still averaged once per period. Errors: DDP_ARG (names the value; more than a million rows),
 * DDP_MEMORY. */
DDP_API ddp_status ddp_profile_split(const ddp_profile *p, double most_params, double alpha_s,
                                     ddp_profile *out, int **layer_of, ddp_error *err);

/* ---- a model as a list of operators: the input of planners that split a model over devices ---- */

/* One operator, with the costs of one micro-batch. A leaf (no args) without parameters gets no gradient. A
 * leaf that also has no FLOPs is input data, which ddp_fence reads on the device of its first user. */
typedef struct ddp_oplist_entry {
    char *name;          /* or NULL */
    int *args;           /* [arg_count] indices of the producers, each below the operator's own index */
    int arg_count;       /* number of args */
    double flops;        /* of the forward pass */
    double output_bytes; /* size of its result */
    double param_bytes;  /* size of its parameters */
    int module;          /* neighbours with the same number > 0 form one module, such as a layer. 0 = the
                            operator is a separate module. */
} ddp_oplist_entry;

/* Operators in topological order. A list from ddp_oplist_new or ddp_oplist_read is freed with
 * ddp_oplist_free. Planners borrow it. */
typedef struct ddp_oplist {
    int count;            /* number of operators */
    ddp_oplist_entry *op; /* [count] */
} ddp_oplist;

/* ddp_oplist_new - creates a list of `count` all-zero operators: no name, no args, no cost. The caller frees
 * it with ddp_oplist_free. Errors: DDP_ARG for count below 1, DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_new(int count, ddp_oplist *out, ddp_error *err);

/* ddp_oplist_set - fills operator i. name (NULL = none) and args [arg_count] are copied. The previous ones
 * are freed. `module` does not change. The caller sets it directly. On error nothing changes. Errors: DDP_ARG
 * (no such operator; an argument that does not precede it), DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_set(ddp_oplist *list, int i, const char *name, const int *args, int arg_count,
                                  double flops, double output_bytes, double param_bytes, ddp_error *err);

/* ddp_oplist_free - frees a list of operators with their names and args. Accepts an all-zero one. */
DDP_API void ddp_oplist_free(ddp_oplist *list);

/* ddp_oplist_check - checks that there is an operator, that every argument precedes its user, and that every
 * cost is finite and >= 0. Pure and safe from any thread. Errors: DDP_ARG, which names the operator and the
 * value; DDP_NUMERIC if the costs add up to more than 1e200. */
DDP_API ddp_status ddp_oplist_check(const ddp_oplist *list, ddp_error *err);

/* ddp_oplist_read - reads a list from JSON: an array of {"name", "args", "flops", "output_bytes",
 * "param_bytes"} in topological order. args are names. param_bytes may be missing (0). "module", a name, may
 * be missing. Neighbours with the same name form one module. Other members are ignored. *out is untouched on
 * error. Otherwise, the caller frees it with ddp_oplist_free. Errors: DDP_IO, DDP_FORMAT (names the file,
 * place and value), DDP_ARG for a cost, DDP_NUMERIC for costs that add up to more than 1e200, DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_read(const char *path, ddp_oplist *out, ddp_error *err);

/* ddp_oplist_write - writes a list in the format that ddp_oplist_read reads back unchanged. The file is
 * written completely or not at all. Errors: DDP_ARG (a cost or an argument out of range; an operator without
 * a unique name), DDP_NUMERIC for costs that add up to more than 1e200, DDP_IO, DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_write(const ddp_oplist *list, const char *path, ddp_error *err);
