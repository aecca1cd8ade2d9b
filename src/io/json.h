/* A small, strict JSON reader (RFC 8259) for plan and topology files, and writers of JSON values and
 * safetensors files. */
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

/* A JSON value. The children of an array or object are a list, in the order of the file:
 *     for (v = a->first; v; v = v->next) ... */
typedef struct ddp__json {
    ddp__json_kind kind;
    int line, column;   /* position of its first character, from 1, for error messages */
    long count;         /* number of children */
    const char *key;    /* for a member of an object; otherwise NULL */
    const char *string; /* UTF-8 */
    double number;
    struct ddp__json *first, *next;
} ddp__json;

/* Parses n bytes of JSON. name appears in error messages ("net.json, line 3, column 7: ..."). Columns count
 * bytes. Strict: fails on duplicate keys, NUL in strings, invalid UTF-8, numbers beyond double, more than 64
 * nesting levels, and trailing text. Returns NULL and fills *err on failure. The tree is one allocation,
 * freed by ddp__json_free(root), and has no pointers into text. */
DDP_LIB ddp__json *ddp__json_parse(const char *name, const char *text, size_t n, ddp_error *err);
DDP_LIB ddp__json *ddp__json_read(const char *path, ddp_error *err);
DDP_LIB void ddp__json_free(ddp__json *root);

/* The member of an object by name, or NULL if it has none, or if object is NULL or not an object. */
DDP_LIB const ddp__json *ddp__json_get(const ddp__json *object, const char *key);

/* The same, but a missing member or one of another kind is an error. The message names file, position, key
 * and kind. *out is then unchanged. */
DDP_LIB ddp_status ddp__json_need(const char *name, const ddp__json *object, const char *key,
                                  ddp__json_kind kind, const ddp__json **out, ddp_error *err);

/* Length of the UTF-8 character at p, with `left` readable bytes: 1 to 4, or 0 if it is invalid (overlong
 * forms, surrogates, values above U+10FFFF). */
DDP_LIB int ddp__utf8_length(const unsigned char *p, size_t left);

/* Appends s in quotes, escaped. Invalid UTF-8 bytes become U+FFFD. s NULL appends null. */
DDP_LIB void ddp__json_string(ddp__text *t, const char *s);
/* Appends the shortest of %.15g, %.16g and %.17g that reads back as x, or null if x is not finite. */
DDP_LIB void ddp__json_number(ddp__text *t, double x);

/* Builds the part of a safetensors file before the arrays, including its length field. path is for
 * errors. */
DDP_LIB ddp_status ddp__safetensors_head(const char *path, int count, const ddp_safetensor *tensors,
                                         const char *const *notes, ddp__text *text, ddp_error *err);
/* Starts writing a safetensors file array by array, for arrays that do not fit in memory together. Writes
 * the header to f. The caller then appends exactly the bytes of all arrays, in order, with ddp__file_put,
 * and calls ddp__file_end. */
DDP_LIB ddp_status ddp__safetensors_begin(ddp__file *f, const char *path, int count,
                                          const ddp_safetensor *tensors, const char *const *notes,
                                          ddp_error *err);

#ifndef DDP_NO_MODELS
/* Callback to save a model whose weights are spread over processes. It is called for each array, in file
 * order. data not NULL: send these n values of this process to the writing process. data NULL: append the
 * values of `stage` to f. */
typedef ddp_status (*ddp__weights_pass)(void *user, int stage, const float *data, size_t n, ddp__file *f,
                                        ddp_error *err);
/* ddp_weights_save for such a model. pass NULL is an error if other processes have a part. writes: 1 in
 * the writing process. */
DDP_LIB ddp_status ddp__weights_save(const ddp_graph *g, const char *path, ddp__weights_pass pass, void *user,
                                     int writes, ddp_error *err);
#endif
