/* Reads and writes safetensors files (github.com/huggingface/safetensors: named arrays after a JSON
 * header), and loads and saves the weights of a model under the names that other libraries use. */
#pragma once

#include "graph/graph.h"

#define DDP_SAFETENSORS_DIMS 8

/* Element types of a file. */
typedef enum ddp_safetensors_type {
    DDP_ST_F32,
    DDP_ST_F64,
    DDP_ST_F16,
    DDP_ST_BF16,
    DDP_ST_I64,
    DDP_ST_I32,
    DDP_ST_I16,
    DDP_ST_I8,
    DDP_ST_U8,
    DDP_ST_BOOL
} ddp_safetensors_type;

/* One array of a file, row-major and little-endian. */
typedef struct ddp_safetensor {
    const char *name;                  /* unique in a file */
    ddp_safetensors_type type;         /* type of the elements */
    int dims;                          /* number of dimensions, or 0 for a scalar */
    int64_t dim[DDP_SAFETENSORS_DIMS]; /* length of each dimension */
    uint64_t offset;                   /* in bytes from the first array, ignored when writing */
    uint64_t bytes;                    /* ignored when writing */
} ddp_safetensor;

/* An opened file with a validated header. Its arrays are read on demand. */
typedef struct ddp_safetensors ddp_safetensors;

/* ddp_safetensors_open - opens a file and validates its header: JSON, types and shapes. No array may be
 * outside the file, overlap another or leave a gap. Names must be unique. Headers may have up to 8 MiB. Reads
 * no array. One thread at a time may use an open file. Returns NULL on failure. The caller closes the file
 * with ddp_safetensors_close. Errors: DDP_IO if the file cannot be read; DDP_FORMAT, which names file, array
 * and value; DDP_ARG for NULL; DDP_MEMORY. */
DDP_API ddp_safetensors *ddp_safetensors_open(const char *path, ddp_error *err);

/* ddp_safetensors_from_bytes - opens a file in memory, n bytes that are borrowed until ddp_safetensors_close,
 * and validates its header. name appears in errors. Returns NULL on failure. Errors: DDP_FORMAT, which names
 * array and value; DDP_ARG for NULL; DDP_MEMORY. */
DDP_API ddp_safetensors *ddp_safetensors_from_bytes(const char *name, const void *bytes, size_t n,
                                                    ddp_error *err);

/* ddp_safetensors_close - closes a file and frees its header. NULL is allowed. */
DDP_API void ddp_safetensors_close(ddp_safetensors *s);

/* ddp_safetensors_count - returns the number of arrays of the file. */
DDP_API int ddp_safetensors_count(const ddp_safetensors *s);

/* ddp_safetensors_at - returns array 0 <= index < count, in the order of offsets. Borrowed until the file is
 * closed. */
DDP_API const ddp_safetensor *ddp_safetensors_at(const ddp_safetensors *s, int index);

/* ddp_safetensors_find - returns an array by its name, or NULL if there is none. Borrowed until the file is
 * closed. */
DDP_API const ddp_safetensor *ddp_safetensors_find(const ddp_safetensors *s, const char *name);

/* ddp_safetensors_note - returns the text of an entry of the header's __metadata__, or NULL if there is none.
 * Borrowed until the file is closed. */
DDP_API const char *ddp_safetensors_note(const ddp_safetensors *s, const char *key);

/* ddp_safetensors_elements - returns the product of the dimensions of an array, or 1 for a scalar. Pure and
 * safe from any thread. */
DDP_API uint64_t ddp_safetensors_elements(const ddp_safetensor *t);

/* ddp_safetensors_floats - reads elements first .. first + count - 1 of a float array (F32, F64, F16, BF16)
 * into out[count], converted to float. F32 is read directly into out, without a temporary copy. Errors:
 * DDP_FORMAT for another type, DDP_ARG for a range outside the array, or DDP_IO for a disk error. */
DDP_API ddp_status ddp_safetensors_floats(ddp_safetensors *s, const ddp_safetensor *t, uint64_t first,
                                          size_t count, float *out, ddp_error *err);

/* ddp_safetensors_bytes - reads elements first .. first + count - 1 of an array of any type into out,
 * unconverted: count x ddp_safetensors_type_bytes bytes. Errors: DDP_ARG for a range outside the array or
 * DDP_IO for a disk error. */
DDP_API ddp_status ddp_safetensors_bytes(ddp_safetensors *s, const ddp_safetensor *t, uint64_t first,
                                         size_t count, void *out, ddp_error *err);

/* ddp_safetensors_write - writes a file of arrays. It is written under another name, flushed and renamed, so
 * the replacement is atomic. The arrays start at a multiple of 8 bytes and have no gaps.
 *
 *   tensors  [count] names, types and shapes
 *   data     [count] data[i] points at array i
 *   notes    pairs of key and text, ended by NULL, or NULL for no notes
 *
 * Errors: DDP_ARG for a duplicate name, an invalid shape, or a header of more than 8 MiB; DDP_IO for a disk
 * error; DDP_MEMORY. */
DDP_API ddp_status ddp_safetensors_write(const char *path, int count, const ddp_safetensor *tensors,
                                         const void *const *data, const char *const *notes, ddp_error *err);

/* ddp_safetensors_type_name - returns the text of a type, such as "F32". A constant string. Pure and safe
 * from any thread. */
DDP_API const char *ddp_safetensors_type_name(ddp_safetensors_type type);

/* ddp_safetensors_type_bytes - returns the size of one element of a type in bytes. Pure and safe from any
 * thread. */
DDP_API size_t ddp_safetensors_type_bytes(ddp_safetensors_type type);

/* ---- weights of a model ---- */

/* ddp_weights_load - loads every parameter and buffer of a model from F32, F64, F16 or BF16 tensors. Call it
 * after ddp_graph_build.
 *
 * path names a safetensors file, or an index (model.safetensors.index.json) whose shards are in the same
 * folder, or a folder. A folder has such an index, or else *.safetensors files that together have all
 * tensors. Names in the files:
 *   ddp_gpt2             of the transformers library: wte.weight, wpe.weight, h.0.ln_1.weight,
 *                        h.0.attn.c_attn.weight, ..., ln_f.bias. Matrices of linear layers are transposed,
 *                        as in its Conv1D. Attention masks (h.0.attn.bias) and a lm_head.weight equal to
 *                        wte.weight are ignored
 *   ddp_llama2           read: of the transformers library: model.embed_tokens.weight,
 *                        model.layers.0.self_attn.q_proj.weight, ..., lm_head.weight. Its queries, keys and
 *                        values become one matrix, its gate and up weights another. Rotary angles pair the
 *                        same columns. Written: as any other model
 *   ddp_resnet, ddp_vgg  of torchvision: conv1.weight, bn1.running_mean, layer1.0.conv1.weight,
 *                        layer2.0.downsample.0.weight, fc.bias; features.0.weight, classifier.6.bias.
 *                        num_batches_tracked is ignored. For image sizes other than 224, the first linear
 *                        layer of VGG has a different number of columns than torchvision's, whose pooling
 *                        always produces 7 x 7
 *   any other            LAYER.weight, or LAYER.OPERATOR.weight if a layer has several operators with
 *                        parameters; LAYER.OPERATOR.1.weight for the second operator of a kind
 * The prefixes "module.", "_orig_mod.", "transformer." and "model." of a name are skipped, in any order.
 *
 * All tensors are checked before the model is changed. Only a disk error while reading values leaves a partly
 * loaded model. With a context, load before ddp_set_optimizer. Loading on rank 0 is enough, because the
 * session starts from rank 0's values. For a model in stages (ddp_graph_cut), each process calls it, checks
 * all names and reads the tensors of its own stage. Local.
 *
 * Errors: DDP_FORMAT for a tensor that is missing, unknown, of another shape or not float (the message names
 * file and tensor); DDP_IO for a file that cannot be read; DDP_USAGE before ddp_graph_build; DDP_ARG for
 * NULL; DDP_MEMORY. */
DDP_API ddp_status ddp_weights_load(ddp_graph *g, const char *path, ddp_error *err);

/* ddp_weights_save - writes the weights as F32 with __metadata__ {"format": "pt"}, under the names that
 * ddp_weights_load reads. The file is written completely or not at all. For a model in stages use
 * ddp_pipe_export. With a backend it waits for copies from the device. Errors: DDP_USAGE before
 * ddp_graph_build, or for a stage of a pipeline; DDP_ARG for NULL or names that are not unique; DDP_IO;
 * DDP_MEMORY; DDP_FAILED from the device. */
DDP_API ddp_status ddp_weights_save(const ddp_graph *g, const char *path, ddp_error *err);

/* ddp_weights_describe - stores name and shape, as in the file, of array number index >= 0 of a model, built
 * or not. The name is truncated to `room` bytes. Returns 1, or 0 past the last array. */
DDP_API int ddp_weights_describe(const ddp_graph *g, int index, char *name, size_t room, ddp_shape *shape);
