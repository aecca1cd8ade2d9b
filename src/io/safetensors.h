/* Safetensors files (github.com/huggingface/safetensors), named arrays behind a JSON header; and
 * the weights of a model in one, under the names that other libraries use. */
#pragma once

#include "graph/graph.h"

#define DDP_SAFETENSORS_DIMS 8

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

/* One array of a file, row-major, little endian. */
typedef struct ddp_safetensor {
    const char *name;
    ddp_safetensors_type type;
    int dims; /* 0 = a scalar */
    int64_t dim[DDP_SAFETENSORS_DIMS];
    uint64_t offset; /* bytes from the first array; ignored in writing */
    uint64_t bytes;  /* ignored in writing */
} ddp_safetensor;

/* A file that was opened and wholly checked; its arrays are read on demand. */
typedef struct ddp_safetensors ddp_safetensors;

/* ddp_safetensors_open - opens a file and checks all of its header: JSON, types, shapes, no array
 * beyond the end, none over another, no gap, no name twice. Headers of up to 8 MiB. No array is
 * read. NULL and *err on failure, which names file, array and value.
 * ddp_safetensors_from_bytes - the same for a file in memory, borrowed until the close; name is
 * for errors. An open file belongs to one thread. */
DDP_API ddp_safetensors *ddp_safetensors_open(const char *path, ddp_error *err);
DDP_API ddp_safetensors *ddp_safetensors_from_bytes(const char *name, const void *bytes, size_t n,
                                                    ddp_error *err);
DDP_API void ddp_safetensors_close(ddp_safetensors *s);

/* ddp_safetensors_count - arrays; ddp_safetensors_at - number 0 <= index < count, in the order of
 * their offsets; ddp_safetensors_find - by name, NULL if there is none.
 * ddp_safetensors_note - an entry of the header's __metadata__, NULL if there is none. All borrowed until the
 * close. */
DDP_API int ddp_safetensors_count(const ddp_safetensors *s);
DDP_API const ddp_safetensor *ddp_safetensors_at(const ddp_safetensors *s, int index);
DDP_API const ddp_safetensor *ddp_safetensors_find(const ddp_safetensors *s, const char *name);
DDP_API const char *ddp_safetensors_note(const ddp_safetensors *s, const char *key);

/* ddp_safetensors_elements - product of the dimensions.
 * ddp_safetensors_floats - elements first .. first + count - 1 of a float array (F32, F64, F16, BF16) into
 * out[count], converted to float. ddp_safetensors_bytes - the same elements of any array as they stand. F32
 * goes from the file to out without a copy in between. Errors: another type, a range outside the array
 * (DDP_ARG), the disk (DDP_IO). */
DDP_API uint64_t ddp_safetensors_elements(const ddp_safetensor *t);
DDP_API ddp_status ddp_safetensors_floats(ddp_safetensors *s, const ddp_safetensor *t, uint64_t first,
                                          size_t count, float *out, ddp_error *err);
DDP_API ddp_status ddp_safetensors_bytes(ddp_safetensors *s, const ddp_safetensor *t, uint64_t first,
                                         size_t count, void *out, ddp_error *err);

/* ddp_safetensors_write - a file of count arrays; data[i] points at array i. notes: pairs of key and text,
 * ended by NULL; NULL = none. PATH is the old file or the whole new one, never between: written under another
 * name, flushed, renamed. The arrays begin at a multiple of 8 bytes and follow each other without gaps.
 * Errors: a name twice, an impossible shape, a header of more than 8 MiB, the disk. */
DDP_API ddp_status ddp_safetensors_write(const char *path, int count, const ddp_safetensor *tensors,
                                         const void *const *data, const char *const *notes, ddp_error *err);

/* "F32"; bytes of one element. */
DDP_API const char *ddp_safetensors_type_name(ddp_safetensors_type type);
DDP_API size_t ddp_safetensors_type_bytes(ddp_safetensors_type type);

/* ---- weights of a model ---- */

/* A path names a safetensors file; an index (model.safetensors.index.json), whose shards are in its own
 * folder; or a folder with such an index or, without one, with *.safetensors files that together have all
 * tensors. Names in the files:
 *   ddp_gpt2    of the transformers library: wte.weight, wpe.weight, h.0.ln_1.weight,
 *               h.0.attn.c_attn.weight, ..., ln_f.bias. Matrices of linear layers lie transposed,
 *               as its Conv1D keeps them. Attention masks (h.0.attn.bias) and a lm_head.weight equal to
 *               wte.weight are passed over
 *   ddp_llama2  read: of the transformers library: model.embed_tokens.weight,
 *               model.layers.0.self_attn.q_proj.weight, ..., lm_head.weight. Its queries, keys and
 *               values become one matrix, its gate and up another; rotary angles pair the same
 *               columns. Written: as any other
 *   ddp_resnet, ddp_vgg    of torchvision: conv1.weight, bn1.running_mean, layer1.0.conv1.weight,
 *               layer2.0.downsample.0.weight, fc.bias; features.0.weight, classifier.6.bias.
 *               num_batches_tracked beside running statistics is passed over. Other sizes than
 *               224 give the first linear layer of VGG other columns than torchvision's, whose
 *               pooling before it always makes 7 x 7
 *   any other   LAYER.weight, or LAYER.OPERATOR.weight where a layer has several operators with
 *               parameters, LAYER.OPERATOR.1.weight for the second of a kind
 * The prefixes "module.", "_orig_mod.", "transformer." and "model." of a name are skipped, in any order.
 *
 * ddp_weights_load - after ddp_graph_build: every parameter and buffer from the file; F32, F64, F16 or BF16.
 * All is checked before the first is changed: a tensor that is missing, not of this model, of another shape
 * or no float is an error (DDP_FORMAT) that names file and tensor; a shard that cannot be read is DDP_IO.
 * Only a disk that fails half way through (DDP_IO) leaves a mixture.
 * With a context, load before ddp_set_optimizer and on rank 0 alone, if you like: the session starts from
 * rank 0's. Of a model in stages (ddp_graph_cut) each process loads: it compares all names and reads its own
 * stage's tensors. ddp_weights_save - writes them as F32, whole or not at all, __metadata__ {"format": "pt"}.
 * Of a model in stages ddp_pipe_export does. */
DDP_API ddp_status ddp_weights_load(ddp_graph *g, const char *path, ddp_error *err);
DDP_API ddp_status ddp_weights_save(const ddp_graph *g, const char *path, ddp_error *err);

/* ddp_weights_describe - name and shape, as in the file, of array number index >= 0 of a model,
 * built or not. Returns 0 behind the last. */
DDP_API int ddp_weights_describe(const ddp_graph *g, int index, char *name, size_t room, ddp_shape *shape);
