/* Opens and closes an engine, and allocates its memory. */
#include "comm/state.h"

/* Lists all algorithms in order of preference. */
static void ddp__ways_fill(const ddp__algorithm *ways[DDP__WAYS])
{
    ways[0] = ddp__sites_way();
    ways[1] = ddp__ring_way();
    ways[2] = ddp__direct_way(1);
    ways[3] = ddp__share_way();
    ways[4] = ddp__direct_way(0);
    ways[5] = ddp__spread_way();
    ways[6] = ddp__plain_way();
}

const char *ddp__algorithm_name(char letter)
{
    const ddp__algorithm *ways[DDP__WAYS];

    ddp__ways_fill(ways);
    for (int i = 0; i < DDP__WAYS; i++)
        if (ways[i]->letter == letter) return ways[i]->name;
    return "none";
}

/* Reserves space for an array in the one block that holds all memory. */
static void *ddp__carve(unsigned char *block, size_t *used, size_t count, size_t size)
{
    void *p = block ? block + *used : NULL;
    *used += (count * size + 63) / 64 * 64;
    return p;
}

/* Assigns all arrays within block, or only measures the size if block is NULL. */
static size_t ddp__engine_layout(ddp__engine *e, unsigned char *block)
{
    size_t used = 0, world = (size_t)e->world, queue = (size_t)e->cfg.queue;
    const size_t frames = e->wire->carrier ? 0 : world; /* peers that send bytes */
    size_t slots = (size_t)e->slots * world, stride = (e->chunk * sizeof(float) + 63) / 64 * 64;
    int **const ids[] = {&e->ring,       &e->turn,      &e->order,    &e->site,
                         &e->site_place, &e->site_part, &e->site_side};

    (void)ddp__carve(block, &used, 1, sizeof *e);
    e->ops = (ddp__op *)ddp__carve(block, &used, queue, sizeof *e->ops);
    e->strips = (ddp__strip *)ddp__carve(block, &used, (size_t)e->strip_room, sizeof *e->strips);
    e->peers = (ddp__peer *)ddp__carve(block, &used, frames, sizeof *e->peers);
    e->rows = (ddp__exchange *)ddp__carve(block, &used, (size_t)(DDP__WINDOW + 2 * e->lanes) * frames,
                                          sizeof *e->rows);
    e->slot = (ddp__slot *)ddp__carve(block, &used, slots, sizeof *e->slot);
    e->control = (ddp__control *)ddp__carve(block, &used, (size_t)e->control_room, sizeof *e->control);
    e->spans = (ddp__op_span *)ddp__carve(block, &used, (size_t)e->span_room, sizeof *e->spans);
    e->want_send = (unsigned char *)ddp__carve(block, &used, world, 1);
    e->want_recv = (unsigned char *)ddp__carve(block, &used, world, 1);
    if (e->membership) e->sink = (unsigned char *)ddp__carve(block, &used, e->chunk, sizeof(float));
    e->terms = (const float **)ddp__carve(block, &used, world, sizeof *e->terms);
    if (e->cfg.coding) e->rounded = (float *)ddp__carve(block, &used, e->chunk, sizeof(float));
    if (ddp__in_blocks((int)e->cfg.coding)) {
        e->recoded = (uint16_t *)ddp__carve(block, &used, e->chunk, sizeof(uint16_t));
        e->exact = (float *)ddp__carve(block, &used, e->chunk, sizeof(float));
    }
    e->member = (int *)ddp__carve(block, &used, world * (size_t)e->group_room, sizeof *e->member);
    e->place = (int *)ddp__carve(block, &used, world * (size_t)e->group_room, sizeof *e->place);
    for (int i = 0; i < 7; i++) *ids[i] = (int *)ddp__carve(block, &used, world, sizeof **ids[i]);
    e->called = (char(*)[48])ddp__carve(block, &used, world, sizeof *e->called);
    for (int r = 0; r < (int)frames; r++) {
        void *coded = NULL;
        if (r == e->rank) continue;
        if (e->cfg.coding) coded = ddp__carve(block, &used, e->chunk, sizeof(uint16_t));
        if (block) e->peers[r].coded = (uint16_t *)coded;
        for (int i = 0; i < e->slots; i++) {
            void *data = ddp__carve(block, &used, 1, stride);
            ddp__slot *s = block ? &e->slot[r * e->slots + i] : NULL;
            if (!s) continue;
            s->data = (float *)data;
            s->peer = r;
            s->next = i + 1 < e->slots ? r * e->slots + i + 1 : -1;
        }
        if (block) e->peers[r].free_slot = r * e->slots;
    }
    return used;
}

/* Computes the chunk size and the number of staging slots. */
static void ddp__dimension(ddp__engine *e)
{
    size_t bytes = e->cfg.chunk_bytes ? e->cfg.chunk_bytes : ddp__link_chunk(e->links.slowest);
    size_t unit = ddp__in_blocks((int)e->cfg.coding) ? DDP__CODING_BLOCK * sizeof(float) : 64;
    size_t most = e->cfg.max_count < SIZE_MAX / 8 ? e->cfg.max_count * sizeof(float) : 0, slots, all;
    double away, cap;

    if (most > 0 && bytes > most) bytes = most;
    if (bytes > DDP__CHUNK_MAX) bytes = DDP__CHUNK_MAX;
    bytes = bytes < unit ? unit : bytes / unit * unit;
    all = most > 0 && most / bytes < DDP__SLOTS_MAX / 4 ? 4 * (most / bytes + 1) : (size_t)DDP__SLOTS_MAX;
    slots = (DDP__STAGING_BYTES - e->wire->pair_bytes) / bytes;
    if (slots > all) slots = all;
    /* With small chunks an operation is short compared with its latency, so more are in flight. The number
     * depends on the chunk size alone: it is the same with threads and TCP. */
    e->width = bytes <= DDP__CHUNK_SMALL ? DDP__WINDOW : 4;
    /* one per operation in flight, the ring's bubble, the lanes of send/recv, results */
    e->lanes = e->cfg.serves ? (int)DDP__LANES : 2;
    if (slots < (size_t)(e->width + e->lanes + 2)) slots = (size_t)(e->width + e->lanes + 2);
    e->chunk = bytes / sizeof(float);
    e->credits = (int)slots - 1;
    e->extra = e->control_room = 1;
    /* more: bytes in flight until a credit returns, at 1 Gbit/s if the rate is unknown. At most 16 MiB per
     * peer and 32 MiB in total. */
    away = e->shaped ? 2 * e->links.flight : 1.25e8 * e->wire->round_trip / (e->world - 1);
    cap = (double)(16 * DDP__STAGING_BYTES) * fmin(1, 2.0 / (e->world - 1));
    e->more = (int)fmax(0, fmin(fmin(away, cap) / (double)bytes, (double)all - 1 - e->credits));
    e->few = e->shaped || fabs(e->wire->round_trip) > 0 ? (int)DDP__SLOTS_MAX : (int)DDP__FEW;
    if (e->shaped) {
        e->extra +=
            (int)fmin(e->links.flight / (double)bytes + 5, (double)(8 * DDP__STAGING_BYTES) / (double)bytes);
        e->control_room = 64 + 4 * e->world * (e->credits + 1 + e->more);
    }
    e->slots = e->credits + e->more + e->extra;
    if (e->wire->carrier) {
        e->slots = 0;
        e->control_room = 1;
    }
    e->ring_bytes = ddp__ring_bytes(e);
    e->full_bytes = ddp__full_bytes(e);
    e->share_bytes = ddp__share_bytes(e);
    e->strip_room = DDP__STRIPS_MIN;
    e->span_room = DDP__SPANS;
    e->group_room = DDP__GROUPS;
    if (!e->wire->carrier || e->world <= DDP__LARGE_WORLD) return;
    e->strip_room /= 4; /* one of very many engines in this process */
    e->span_room /= 8;
    e->group_room = 2;
}

static ddp_status ddp__engine_check(const ddp__engine_config *cfg, ddp_error *err)
{
    if (cfg->world < 2 || cfg->rank < 0 || cfg->rank >= cfg->world)
        return ddp__fail(err, DDP_ARG,
                         "rank %d of world %d cannot have an engine; the world needs at least 2 ranks",
                         cfg->rank, cfg->world);
    if (!cfg->wire) return ddp__fail(err, DDP_ARG, "an engine for %d ranks needs a wire", cfg->world);
    for (int i = 0; cfg->links && i < cfg->links->acts; i++)
        if (cfg->links->act[i].peer >= 0 && !cfg->wire->table->cut)
            return ddp__fail(err, DDP_UNSUPPORTED,
                             "this transport cannot drop a connection, as the script wants at "
                             "t=%g: choose tcp or threads",
                             cfg->links->act[i].at);
    if (ddp__in_blocks((int)cfg->coding) && !cfg->coder)
        return ddp__fail(err, DDP_ARG, "%s need a coder", ddp__coding_name((int)cfg->coding));
    if (cfg->check_writes && cfg->max_count == 0)
        return ddp__fail(err, DDP_ARG, "check_writes needs max_count, the floats of the largest message");
    return DDP_OK;
}

/* Starts the comm thread and waits until the wire has begun. */
static ddp_status ddp__engine_thread(ddp__engine *e, ddp_error *err)
{
    if (e->wire->carrier) {
        e->wire->carrier->opened(e->wire, e);
        return DDP_OK;
    }
    if (pthread_create(&e->thread, NULL, ddp__engine_main, e) != 0)
        return ddp__fail(err, DDP_MEMORY,
                         "cannot start the comm thread: the system has no free thread, or no address space "
                         "for its stack (ulimit -u, ulimit -v)");
    pthread_mutex_lock(&e->lock);
    while (!e->begun_wire) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    if (!e->wire->begin || e->error.code == DDP_OK) return DDP_OK;
    pthread_join(e->thread, NULL);
    if (err) *err = e->error;
    return e->error.code;
}

static int ddp__engine_locks(ddp__engine *e)
{
    if (ddp__cond_init(&e->changed)) return 0;
    if (ddp__cond_init(&e->park)) {
        pthread_cond_destroy(&e->changed);
        return 0;
    }
    pthread_mutex_init(&e->lock, NULL); /* cannot fail */
    return 1;
}

static void ddp__engine_free(ddp__engine *e)
{
    ddp_allocator allocator = e->cfg.allocator;

    ddp__guard_close(e);
    if (e->membership) e->membership->close(e);
    ddp__strips_close(e);
    pthread_cond_destroy(&e->park);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    ddp__release(&allocator, e, e->block_bytes);
}

ddp_status ddp__engine_open(const ddp__engine_config *cfg, ddp__engine **out, ddp_error *err)
{
    ddp__engine plan, *e;
    unsigned char *block;
    ddp_status status = DDP_OK;

    *out = NULL;
    DDP__TRY(ddp__engine_check(cfg, err));
    memset(&plan, 0, sizeof plan);
    plan.cfg = *cfg;
    plan.membership = cfg->wire->carrier ? NULL : cfg->membership;
    plan.wire = cfg->wire;
    plan.rank = cfg->rank;
    plan.world = cfg->world;
    if (cfg->links) plan.links = *cfg->links;
    plan.paced = plan.links.slowest > 0 || plan.links.own.turns > 0;
    plan.shaped = plan.paced || plan.links.farthest > 0;
    if (plan.cfg.queue < 1 || (cfg->wire->carrier && cfg->world > DDP__LARGE_WORLD)) plan.cfg.queue = 64;
    if (!(plan.cfg.note_s > 0)) plan.cfg.note_s = 5;
    plan.checks = !cfg->no_checksum && !cfg->wire->intact;
    ddp__ways_fill(plan.ways);
    plan.due.first = plan.due.last = -1;
    ddp__dimension(&plan);
    plan.block_bytes = ddp__engine_layout(&plan, NULL);
    block = (unsigned char *)ddp__alloc(&cfg->allocator, plan.block_bytes);
    if (!block)
        return ddp__fail(err, DDP_MEMORY, "out of memory: the network engine needs %lu bytes",
                         (unsigned long)plan.block_bytes);
    (void)ddp__engine_layout(&plan, block);
    e = (ddp__engine *)(void *)block;
    *e = plan;
    if (!ddp__engine_locks(e)) {
        ddp__release(&cfg->allocator, block, plan.block_bytes);
        return ddp__fail(err, DDP_MEMORY, "cannot create the engine's lock: the system has no free lock");
    }
    e->links.own.zero = ddp_now();
    e->stats.staging_bytes = e->block_bytes;
    e->fault_about = -1;
    for (int r = 0; r < e->world; r++) {
        e->order[r] = r;
        if (cfg->wire->carrier) continue;
        e->peers[r].in_slot = e->peers[r].pending.first = e->peers[r].pending.last = -1;
        if (r == e->rank) e->peers[r].free_slot = -1;
    }
    e->groups = 1;
    e->blocks = e->world;
    e->epoch.workers = e->world;
    e->epoch.live = e->world >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << e->world) - 1;
    ddp__members_set(e, e->epoch.live);
    if (e->membership && (status = e->membership->open(e, err)) != DDP_OK)
        e->membership = NULL; /* it made no allocation */
    if (status == DDP_OK && cfg->check_writes) status = ddp__engine_guard(e, cfg->max_count, err);
    if (status == DDP_OK) status = ddp__engine_thread(e, err);
    if (status == DDP_OK)
        *out = e;
    else
        ddp__engine_free(e);
    return status;
}

void ddp__engine_code(ddp__engine *e, ddp_coding coding)
{
    pthread_mutex_lock(&e->lock);
    e->cfg.coding = coding;
    pthread_mutex_unlock(&e->lock);
}

int ddp__engine_width(const ddp__engine *e) { return e->width; }
size_t ddp__engine_chunk(const ddp__engine *e) { return e->chunk * sizeof(float); }

int ddp__engine_relayed(const ddp__engine *e, int peer) { return ddp__wire_relay(e->wire, peer) >= 0; }

void ddp__engine_disown(const ddp__engine *e)
{
    if (e && e->wire->disown) e->wire->disown(e->wire);
}

void ddp__engine_close(ddp__engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->stop = 1;
    ddp__notify(e);
    pthread_mutex_unlock(&e->lock);
    if (!e->wire->carrier) pthread_join(e->thread, NULL);
    e->wire->table->close(e->wire);
    ddp__engine_free(e);
}
