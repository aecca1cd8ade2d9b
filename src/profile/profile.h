/* Measured costs of one model on one cluster: what planners read. */
#ifndef DDP_PROFILE_PROFILE_H
#define DDP_PROFILE_PROFILE_H

#include "profile/linkfit.h"

/* Layer 0 is next to the input; forward visits 0..layers-1, backward layers-1 down to 0.
 * All times in seconds. Arrays are borrowed by planners and owned by ddp_profile_free when they came from
 * ddp_profile_read. NULL stands for zeros where it says so. */
typedef struct ddp_profile {
    int          layers;     /* L, at least 1 */
    char       **name;       /* [L] or NULL */
    double      *params;     /* [L] parameters (a count), or NULL */
    double      *forward_s;  /* [L] or NULL */
    double      *backward_s; /* [L] backward plus local update */
    double      *comm_s;     /* [L] how long averaging the layer over all ranks occupies the link */
    double       alpha_s;    /* what each message arrives after its occupancy ends; 0 = in comm_s */
} ddp_profile;

/* ddp_profile_read - a profile from CSV: header `layer,params,forward_s,backward_s,comm_s` (columns in any order,
 * further ones ignored), one row per layer in forward order.
 * forward_s may be missing or empty (= 0); comm_s may be missing or empty, then comm_s[l] = link->beta_s x 4 x params
 * and alpha_s = link->alpha_s (link NULL: an error that says so).
 * A .gz is read through gzip. *out is untouched on error, else freed by ddp_profile_free.
 * Errors: DDP_IO, DDP_FORMAT (names line, column and value), DDP_MEMORY. */
DDP_API ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out, ddp_error *err);

/* ddp_profile_write - the same CSV, written to a temporary name and renamed. */
DDP_API ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err);

/* ddp_profile_new - L layers of zeros with all arrays allocated (name entries NULL). ddp_profile_free - frees what
 * ddp_profile_new and ddp_profile_read made; all-zero is fine. ddp_profile_check - DDP_OK if every cost is finite and
 * >= 0 and L >= 1; the error names the layer. */
DDP_API ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err);
DDP_API void       ddp_profile_free(ddp_profile *p);
DDP_API ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err);

#endif /* DDP_PROFILE_PROFILE_H */
