/* Saving the weights of a model of which other processes have a part. */
#ifndef DDP_IO_WEIGHTS_H
#define DDP_IO_WEIGHTS_H

#include "graph/graph_internal.h"
#include "io/json.h"

/* Array by array, in the order of the file: n values that this process has (data) and does not write go to who writes;
 * or (data NULL) those of `stage` are put into f. */
typedef ddp_status (*ddp__weights_pass)(void *user, int stage, const float *data, size_t n, ddp__file *f,
                                        ddp_error *err);

/* As ddp_weights_save; writes: 1 of the process that writes the file. */
DDP_LIB ddp_status ddp__weights_save(const ddp_graph *g, const char *path, ddp__weights_pass pass, void *user,
                                     int writes, ddp_error *err);

#endif /* DDP_IO_WEIGHTS_H */
