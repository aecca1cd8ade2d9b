/* Implements the read access of other modules to a context. */
#include "context/context.h"

const ddp_config *ddp__cfg(const ddp_ctx *d) { return &d->cfg; }
const ddp__strategies *ddp__strategies_of(const ddp_ctx *d) { return d->list; }
const ddp_strategy_ops *ddp__ops(const ddp_ctx *d) { return &d->ops; }
void *ddp__self(const ddp_ctx *d) { return d->self; }
ddp_error *ddp__error(ddp_ctx *d) { return &d->host.error; }
const ddp_logger *ddp__log_of(const ddp_ctx *d) { return &d->host.log; }
ddp__host *ddp__host_of(ddp_ctx *d) { return &d->host; }
const ddp__host *ddp__host_seen(const ddp_ctx *d) { return &d->host; }
const ddp_allocator *ddp__allocator_of(const ddp_ctx *d) { return &d->host.allocator; }
ddp__pool *ddp__pool_of(const ddp_ctx *d) { return d->host.pool; }
const ddp_backend *ddp__backend_of(const ddp_ctx *d) { return d->host.backend; }
void *ddp__device_of(const ddp_ctx *d) { return d->host.device; }
ddp__scratch *ddp__lists_of(ddp_ctx *d) { return &d->lists; }
ddp_stats *ddp__stats(ddp_ctx *d) { return &d->stats; }
ddp__engine *ddp__second_of(const ddp_ctx *d) { return d->second; }
const ddp__links *ddp__links_of(const ddp_ctx *d, int link) { return &d->links[link]; }
int ddp__is_on_paper(const ddp_ctx *d) { return d->host.paper != NULL; }
int ddp__layers(const ddp_ctx *d) { return d->layers; }
int ddp__started(const ddp_ctx *d) { return d->started; }
const ddp_optimizer *ddp__optimizer(const ddp_ctx *d) { return &d->optimizer; }
float ddp__lr(const ddp_ctx *d) { return d->lr; }
int ddp__team_group(const ddp_ctx *d) { return d->team; }
int ddp__team_size(const ddp_ctx *d) { return d->team_size; }
int ddp__team_place(const ddp_ctx *d) { return d->team_place; }
int ddp__team_root(const ddp_ctx *d) { return d->team_root; }
int ddp__met(const ddp_ctx *d) { return d->met; }
ddp__joining ddp__joining_of(const ddp_ctx *d) { return d->joining; }
