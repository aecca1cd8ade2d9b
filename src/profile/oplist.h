/* A model as a list of operators: what the planners that cut a model over devices read. */
#ifndef DDP_PROFILE_OPLIST_H
#define DDP_PROFILE_OPLIST_H

#include "base/status.h"

/* One operator, for one micro-batch. A leaf (no args) without parameters gets no gradient; one without FLOPs either is
 * input data, which ddp_fence reads where its first user runs. */
typedef struct ddp_oplist_entry {
    char  *name;         /* or NULL */
    int   *args;         /* [arg_count] indexes of the producers, each below the operator's own */
    int    arg_count;
    double flops;        /* forward */
    double output_bytes; /* of its result */
    double param_bytes;  /* of its parameters */
    int    module;       /* neighbours of the same number > 0 are one module of the model, such as
                            a layer; 0 = a module of its own */
} ddp_oplist_entry;

/* Operators in topological order. Owned by ddp_oplist_free when it came from ddp_oplist_new or ddp_oplist_read;
 * borrowed by planners. */
typedef struct ddp_oplist {
    int               count;
    ddp_oplist_entry *op; /* [count] */
} ddp_oplist;

/* ddp_oplist_new - count operators, all-zero: no name, no args, no cost.
 * ddp_oplist_set - fills operator i; name (NULL = none) and args [arg_count] are copied, what was there is freed; its
 * module stays, which callers set themselves. Nothing changes on error. Errors: DDP_ARG (no such operator; an argument
 * that does not precede it), DDP_MEMORY.
 * ddp_oplist_free - all-zero is fine. */
DDP_API ddp_status ddp_oplist_new(int count, ddp_oplist *out, ddp_error *err);
DDP_API ddp_status ddp_oplist_set(ddp_oplist *list, int i, const char *name, const int *args, int arg_count,
                                  double flops, double output_bytes, double param_bytes, ddp_error *err);
DDP_API void       ddp_oplist_free(ddp_oplist *list);

/* ddp_oplist_check - DDP_OK if there is an operator, every argument precedes its user, and every cost is finite and >=
 * 0; the error names operator and value. */
DDP_API ddp_status ddp_oplist_check(const ddp_oplist *list, ddp_error *err);

/* ddp_oplist_read - from JSON: a list of {"name", "args", "flops", "output_bytes", "param_bytes"} in topological order;
 * args are names. param_bytes may be missing (0), and so may "module", a name: neighbours that share it are one module.
 * Further members are ignored. *out is untouched on error, else freed by ddp_oplist_free.
 * Errors: DDP_IO, DDP_FORMAT (names file, place and value), DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_read(const char *path, ddp_oplist *out, ddp_error *err);

#endif /* DDP_PROFILE_OPLIST_H */
