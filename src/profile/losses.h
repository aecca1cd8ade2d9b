/* Measured losses of strategies: the input of the choice of a strategy (plan/loss.h). */
#pragma once

#include "base/status.h"
#include "comm/message.h"

/* One training run: the loss after `steps` steps. Several points of one setting, such as seeds, are
 * averaged. */
typedef struct ddp_loss_point {
    char strategy[16]; /* name of the strategy */
    int stream;        /* 1: diloco with overlap "stream" */
    int period;        /* H in steps, or 0 for a strategy without a period */
    int workers;       /* number of workers, at least 1 */
    ddp_coding coding; /* number format on the wire, DDP_AS_FLOAT to DDP_AS_E3M0 */
    double steps;      /* steps of the run, above 0. Schedules end there */
    double loss;       /* loss at the end, above 0 */
} ddp_loss_point;

/* A table of measured losses. A table from ddp_loss_table_read is freed with ddp_loss_table_free. Planners
 * borrow it. */
typedef struct ddp_loss_table {
    int count;                   /* number of points */
    const ddp_loss_point *point; /* [count] */
} ddp_loss_table;

/* ddp_loss_table_read - reads a table from CSV. The header has `strategy`, `workers`, `steps` and `loss`, and
 * may have `overlap` (none or stream), `period` and `wire` (f32, bf16, int8, int4 or e3m0), in any order.
 * Empty fields mean none, 0 and f32. Further columns are ignored. Every row is one training run of the same
 * model on the same data. tools/loss_table.py makes such a file from the results of bench/loss_cost.py.
 *
 *   out  untouched on error. Otherwise, the caller frees it with ddp_loss_table_free.
 *
 * Errors: DDP_IO, DDP_FORMAT (names the line, column and value, or the point that ddp_loss_table_check
 * rejects), DDP_MEMORY. */
DDP_API ddp_status ddp_loss_table_read(const char *path, ddp_loss_table *out, ddp_error *err);

/* ddp_loss_table_free - frees the points of a table from ddp_loss_table_read. Accepts an all-zero one. */
DDP_API void ddp_loss_table_free(ddp_loss_table *t);

/* ddp_loss_table_check - checks that all values are in range, that the points of ssgd have at least two
 * different numbers of steps, and that each other point has a point of ssgd with the same workers and steps.
 * Pure and safe from any thread. Errors: DDP_ARG, which names the point, counted from 1. */
DDP_API ddp_status ddp_loss_table_check(const ddp_loss_table *t, ddp_error *err);
