/* Writing a safetensors file array by array, for arrays that do not exist in memory as a whole. */
#ifndef DDP_IO_SAFETENSORS_CORE_H
#define DDP_IO_SAFETENSORS_CORE_H

#include "base/text.h"
#include "io/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins PATH with its header; then exactly the bytes of all arrays must follow, in order, by
 * ddp__file_put, and ddp__file_end. */
DDP_LIB ddp_status ddp__safetensors_begin(ddp__file *f, const char *path, int count,
                                          const ddp_safetensor *tensors, const char *const *notes,
                                          ddp_error *err);

/* "[3, 4]" into text, for error sentences. */
DDP_LIB const char *ddp__safetensors_shape(const ddp_safetensor *t, char *text, size_t room);

#ifdef __cplusplus
}
#endif

#endif /* DDP_IO_SAFETENSORS_CORE_H */
