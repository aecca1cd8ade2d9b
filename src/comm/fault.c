/* What ends an engine before its time, and the words for its operations. */
#include "comm/state.h"

const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room)
{
    const char *name = layer >= 0 && e->cfg.layer_name ? e->cfg.layer_name(e->cfg.user, layer) : NULL;

    if (name && name[0]) snprintf(buf, room, "layer %s", name);
    else if (layer >= 0) snprintf(buf, room, "layer %d", layer);
    else snprintf(buf, room, layer == DDP_ALL_LAYERS ? "all layers"
                             : layer == DDP__BARRIER ? "a barrier"
                             : layer == DDP__OWN_WORD ? "the library's own data"
                                                       : "a plain buffer");
    return buf;
}

const char *ddp__verb_name(int verb)
{
    static const char *const text[] = {"all-reduce", "broadcast", "all-gather", "reduce-scatter",
                                       "send",       "push",      "answer",     "request",
                                       "receive",    "serve",     "pull"};
    return verb >= 0 && verb <= (int)DDP_PULL ? text[verb] : "unknown operation";
}

const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    char layer[64], peer[32];

    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    peer[0] = '\0';
    if (op->p2p)
        snprintf(peer, sizeof peer, op->m.verb < DDP_RECEIVE ? " to rank %d" : " from rank %d", op->m.peer);
    snprintf(buf, room, "%s%s of %s (step %ld)", ddp__verb_name((int)op->m.verb), peer, layer, op->m.step);
    return buf;
}

void ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...)
{
    va_list args;

    if (e->fault.code != DDP_OK) return;
    va_start(args, fmt);
    vsnprintf(e->fault.msg, sizeof e->fault.msg, fmt, args);
    va_end(args);
    e->fault.code = code;
    e->fault_origin = e->rank;
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK) e->error = e->fault;
    else e->fault = e->error;
    pthread_mutex_unlock(&e->lock);
}

void ddp__notify(ddp__engine *e)
{
    int sleeping = e->sleeping;

    e->sleeping = 0;
    pthread_cond_broadcast(&e->changed);
    if (e->parked && !e->driven) pthread_cond_signal(&e->park);
    if (sleeping) e->wire->table->wake(e->wire);
}
