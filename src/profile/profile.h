/* What planners read of a model: the link, measured costs by layer, operators. */
#pragma once

#include "base/status.h"

/* ---- the link model alpha + beta x bytes from measured transfers ---- */

/* Averaging n bytes over all ranks: occupies the link for beta_s * n, ends alpha_s later. */
typedef struct ddp_link {
    double alpha_s;
    double beta_s;
} ddp_link;

/* A model that follows the link: least squares over transfers that fade by half every `half_life` of them.
 * All-zero until ddp_linkfit_start. */
typedef struct ddp_linkfit {
    ddp_link link;          /* the current estimate */
    double half_life;       /* in transfers */
    double n, x, y, xx, xy; /* faded, weighted sums of 1, bytes, seconds, products */
} ddp_linkfit;

/* ddp_link_fit - alpha, beta >= 0 from n transfers on an otherwise idle link (seconds from start to
 * completion). Interference only delays, so only the fastest transfer of each size counts; squares of
 * relative errors are minimised, so that short transfers decide alpha. One size alone gives alpha 0. *out is
 * untouched on error. Errors: DDP_ARG (no sample; negative or not finite; nothing longer than 0 bytes),
 * DDP_MEMORY. */
DDP_API ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out,
                                ddp_error *err);

/* ddp_linkfit_start - begin with link as if it had been seen in `half_life` transfers between 0 and
 * typical_bytes. ddp_linkfit_add - one real transfer; what is not finite or not positive is ignored. Neither
 * allocates. */
DDP_API void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes, double half_life);
DDP_API void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds);

/* ddp_link_drift - how much longer the n messages take now than then, relative: 0.25 = a quarter longer, -0.5
 * = half; 0 if they took no time then. Re-plan when it leaves +-0.2. */
DDP_API double ddp_link_drift(ddp_link then, ddp_link now, const double *bytes, int n);

/* ---- measured costs of one model on one cluster ---- */

/* Layer 0 is next to the input; forward visits 0..layers-1, backward layers-1 down to 0: once, in one
 * micro-batch. All times in seconds. Arrays are borrowed by planners and owned by ddp_profile_free when they
 * came from ddp_profile_read. NULL stands for zeros where it says so. */
typedef struct ddp_profile {
    int layers;         /* L, at least 1 */
    char **name;        /* [L] or NULL */
    double *params;     /* [L] parameters (a count), or NULL */
    double *forward_s;  /* [L] or NULL */
    double *backward_s; /* [L] backward plus local update */
    double *comm_s;     /* [L] how long averaging the layer over all ranks occupies the link */
    double alpha_s;     /* what each message arrives after its occupancy ends; 0 = in comm_s */
    double gap_s;       /* how long each message occupies the link beside comm_s; 0 = in comm_s */
    double between_s;   /* computing between forward and backward: a step's other micro-batches. What
                              * must arrive before the layer's forward cannot use it; what may land a step
                              * later can */
} ddp_profile;

/* ddp_profile_read - a profile from CSV: header `layer,params,forward_s,backward_s,comm_s` (columns in any
 * order, further ones ignored), one row per layer in forward order.
 * forward_s may be missing or empty (= 0); comm_s may be missing or empty, then comm_s[l] = link->beta_s x 4
 * x params and alpha_s = link->alpha_s (link NULL: an error that says so); beside rows with a measured
 * comm_s, which contains its startup, these contain link->alpha_s too, and alpha_s is 0.
 * A .gz is read through gzip. *out is untouched on error, else freed by ddp_profile_free.
 * Errors: DDP_IO, DDP_FORMAT (names line, column and value), DDP_MEMORY. */
DDP_API ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out, ddp_error *err);

/* ddp_profile_write - the same CSV, written to a temporary name and renamed. */
DDP_API ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err);

/* ddp_profile_new - L layers of zeros with all arrays allocated (name entries NULL). ddp_profile_free - frees
 * what ddp_profile_new and ddp_profile_read made; all-zero is fine. ddp_profile_check - DDP_OK if every cost
 * is finite and >= 0 and L >= 1; the error names the layer. */
DDP_API ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err);
DDP_API void ddp_profile_free(ddp_profile *p);
DDP_API ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err);

/* ddp_profile_split - the same model with every layer of more than most_params parameters in equal parts.
 *
 *   most_params  of a part, at least 1; a layer of n has ceil(n / most_params) parts
 *   alpha_s      startup contained in every comm_s, which each part pays again: alpha + (comm - alpha) x its
 *                share
 *   out          a row for each part, in the order of the layers; freed by ddp_profile_free, untouched on
 *                error
 *   layer_of     receives the layer of each row, an array of out->layers for DDP_FREE; NULL is fine
 *
 * The parts of a layer are ready together, when its backward ends, and its forward waits for all of them: the
 * last row of a layer carries its forward and backward time, the others none. Names of parts are "NAME
 * [2/5]". A plan for such a profile averages a layer's parts in steps of their own; each parameter still once
 * a period. Errors: DDP_ARG (names the value; more than a million rows), DDP_MEMORY. */
DDP_API ddp_status ddp_profile_split(const ddp_profile *p, double most_params, double alpha_s,
                                     ddp_profile *out, int **layer_of, ddp_error *err);

/* ---- a model as a list of operators: what the planners that cut a model over devices read ---- */

/* One operator, for one micro-batch. A leaf (no args) without parameters gets no gradient; one without FLOPs
 * either is input data, which ddp_fence reads where its first user runs. */
typedef struct ddp_oplist_entry {
    char *name; /* or NULL */
    int *args;  /* [arg_count] indexes of the producers, each below the operator's own */
    int arg_count;
    double flops;        /* forward */
    double output_bytes; /* of its result */
    double param_bytes;  /* of its parameters */
    int module;          /* neighbours of one number > 0 are one module, such as a layer; 0 = a module of its
                            own */
} ddp_oplist_entry;

/* Operators in topological order. What ddp_oplist_new or _read made is ddp_oplist_free's; borrowed by
 * planners. */
typedef struct ddp_oplist {
    int count;
    ddp_oplist_entry *op; /* [count] */
} ddp_oplist;

/* ddp_oplist_new - count operators, all-zero: no name, no args, no cost.
 * ddp_oplist_set - fills operator i; name (NULL = none) and args [arg_count] are copied, what was there is
 * freed; its module stays, which callers set themselves. Nothing changes on error. Errors: DDP_ARG (no such
 * operator; an argument that does not precede it), DDP_MEMORY.
 * ddp_oplist_free - all-zero is fine. */
DDP_API ddp_status ddp_oplist_new(int count, ddp_oplist *out, ddp_error *err);
DDP_API ddp_status ddp_oplist_set(ddp_oplist *list, int i, const char *name, const int *args, int arg_count,
                                  double flops, double output_bytes, double param_bytes, ddp_error *err);
DDP_API void ddp_oplist_free(ddp_oplist *list);

/* ddp_oplist_check - DDP_OK if there is an operator, every argument precedes its user, and every cost is
 * finite and >= 0; the error names operator and value. */
DDP_API ddp_status ddp_oplist_check(const ddp_oplist *list, ddp_error *err);

/* ddp_oplist_read - from JSON: a list of {"name", "args", "flops", "output_bytes", "param_bytes"} in
 * topological order; args are names. param_bytes may be missing (0), and so may "module", a name: neighbours
 * that share it are one module. Further members are ignored. *out is untouched on error, else freed by
 * ddp_oplist_free. Errors: DDP_IO, DDP_FORMAT (names file, place and value), DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_read(const char *path, ddp_oplist *out, ddp_error *err);

/* ddp_oplist_write - the same, which reads back as the same list; the file appears whole or not at all.
 * Errors: DDP_ARG (ddp_oplist_check; an operator without a name of its own), DDP_IO, DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_write(const ddp_oplist *list, const char *path, ddp_error *err);
