/* Chooses OSP's late layers at every step of a run, without allocation. */
#pragma once

#include "base/core.h"
#include "plan/osp/osp.h"

/* The working memory of ddp_osp_rank, reused by every step of a run. Open returns NULL if memory is
 * exhausted. Close accepts NULL. */
typedef struct ddp__osp ddp__osp;
DDP_LIB ddp__osp *ddp__osp_open(int layers, ddp_osp_rule rule);
DDP_LIB void ddp__osp_close(ddp__osp *s);
DDP_LIB ddp_status ddp__osp_split(ddp__osp *s, const double *importance, const double *bytes, double budget,
                                  ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err);
