/* Converts between the values of an option and their names. */
#pragma once

#include "base/core.h"

/* The name of a value, or "unknown" for a value without a name. `names` is indexed by value and ends with
 * NULL. */
DDP_LIB const char *ddp__name_of(const char *const *names, int value);
/* Writes the value with the given name to *out, an enum. The first `first` entries of `names` are not
 * accepted. Errors: DDP_ARG with "WHAT 'name' is unknown; use a, b or c". */
DDP_LIB ddp_status ddp__named(const char *const *names, int first, const char *what, const char *name,
                              void *out, ddp_error *err);

/* Defines the public functions X_name and X_named of the enum X. */
#define DDP__NAMES(X, names, first, what)                                     \
    const char *X##_name(X value) { return ddp__name_of(names, (int)value); } \
    ddp_status X##_named(const char *name, X *out, ddp_error *err)            \
    {                                                                         \
        return ddp__named(names, first, what, name, out, err);                \
    }
