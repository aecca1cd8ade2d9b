/* A strict, small JSON reader (RFC 8259) for plan and topology files, and what writes JSON: two
 * helpers, and safetensors files, which begin with it. */
#pragma once

#include "base/core.h"
#include "io/safetensors.h"

typedef enum ddp__json_kind {
    DDP__JSON_NULL,
    DDP__JSON_FALSE,
    DDP__JSON_TRUE,
    DDP__JSON_NUMBER,
    DDP__JSON_STRING,
    DDP__JSON_ARRAY,
    DDP__JSON_OBJECT
} ddp__json_kind;

/* A value. Children of arrays and objects hang in a list, in the order of the file:
 *     for (v = a->first; v; v = v->next) ... */
typedef struct ddp__json {
    ddp__json_kind kind;
    int line, column;   /* of its first character, from 1, for later complaints */
    long count;         /* children */
    const char *key;    /* of a member of an object, else NULL */
    const char *string; /* UTF-8 */
    double number;
    struct ddp__json *first, *next;
} ddp__json;

/* Parses n bytes; name stands in error sentences ("net.json, line 3, column 7: ..."). The tree
 * is one allocation, freed by ddp__json_free(root), and keeps no pointer to text.
 * Columns count bytes. Strict: refuses duplicate keys, NUL in strings, invalid UTF-8, numbers
 * beyond double, more than 64 nested values and anything after the value. NULL and *err on failure. */
DDP_LIB ddp__json *ddp__json_parse(const char *name, const char *text, size_t n, ddp_error *err);
DDP_LIB ddp__json *ddp__json_read(const char *path, ddp_error *err);
DDP_LIB void ddp__json_free(ddp__json *root);

/* The member of an object; NULL if it has none of that name, or is no object, or is NULL. */
DDP_LIB const ddp__json *ddp__json_get(const ddp__json *object, const char *key);

/* The same, but a member that is missing or of another kind is an error that names file, place,
 * key and kind; *out is untouched then. */
DDP_LIB ddp_status ddp__json_need(const char *name, const ddp__json *object, const char *key,
                                  ddp__json_kind kind, const ddp__json **out, ddp_error *err);

/* Bytes of the UTF-8 character at p, left of which can be read: 1 to 4, or 0 if it is not one
 * (overlong forms, surrogates and values above U+10FFFF are not one). */
DDP_LIB int ddp__utf8_length(const unsigned char *p, size_t left);

/* Appends s in quotes, escaped; bytes that are no UTF-8 become U+FFFD. NULL gives null. */
DDP_LIB void ddp__json_string(ddp__text *t, const char *s);
/* Appends the shortest of %.15g, %.16g, %.17g that reads back as x; null if x is not finite. */
DDP_LIB void ddp__json_number(ddp__text *t, double x);

/* What stands before the arrays of a safetensors file, its length included; path is for errors. */
DDP_LIB ddp_status ddp__safetensors_head(const char *path, int count, const ddp_safetensor *tensors,
                                         const char *const *notes, ddp__text *text, ddp_error *err);
/* Writing a safetensors file array by array, for arrays that do not exist in memory as a whole: begins PATH
 * with its header; then exactly the bytes of all arrays must follow, in order, by ddp__file_put, and
 * ddp__file_end. */
DDP_LIB ddp_status ddp__safetensors_begin(ddp__file *f, const char *path, int count,
                                          const ddp_safetensor *tensors, const char *const *notes,
                                          ddp_error *err);

#ifndef DDP_NO_MODELS
/* Saving the weights of a model of which other processes have a part. Array by array, in the order of the
 * file: n values that this process has (data) and does not write go to who writes; or (data NULL) those of
 * `stage` are put into f. */
typedef ddp_status (*ddp__weights_pass)(void *user, int stage, const float *data, size_t n, ddp__file *f,
                                        ddp_error *err);
/* As ddp_weights_save, where no pass is an error if others have a part; writes: 1 of the process that
 * does. */
DDP_LIB ddp_status ddp__weights_save(const ddp_graph *g, const char *path, ddp__weights_pass pass, void *user,
                                     int writes, ddp_error *err);
#endif
