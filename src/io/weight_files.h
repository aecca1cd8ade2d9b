/* The safetensors files with the weights of a model: one file, or the shards that an index or a folder
 * lists. */
#pragma once

#include "base/core.h"
#include "io/safetensors.h"

#ifndef DDP_NO_MODELS
typedef struct ddp__weight_file {
    char *path;
    ddp_safetensors *f;
} ddp__weight_file;

/* The opened files. All-zero means none. */
typedef struct ddp__weight_files {
    ddp__weight_file *list; /* a growing array (base/array.h) */
} ddp__weight_files;

/* Opens the files that path names: a safetensors file; NAME.safetensors.index.json, whose weight_map
 * lists shards in the same folder; or a folder with such an index or, without an index, with
 * *.safetensors files. Errors: a shard that is missing, unreadable, or lacks a tensor that the index
 * assigns to it; a folder without weights. Call ddp__weight_files_close also after an error. */
DDP_LIB ddp_status ddp__weight_files_open(ddp__weight_files *files, const char *path, ddp_error *err);
DDP_LIB void ddp__weight_files_close(ddp__weight_files *files);
#endif
