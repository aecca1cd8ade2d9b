/* Makes the parameters bit-identical on all ranks. They differ if the program changed some or skipped its own
 * update: a strategy does not average arrays that it assumes to be equal. */
#include "context/context.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "measure/measure.h"
#include "session/part.h"
#include "session/start.h"

enum { DDP__HASHED_FLOATS = 1 << 16 }; /* floats copied from a device at a time */

/* Hashes a block. The hash is never 0, because 0 marks a lost rank. room: [DDP__HASHED_FLOATS] if the layers
 * are on a device, else NULL. */
static ddp_status ddp__block_hash(ddp_ctx *d, const ddp_block *k, float *room, uint64_t *out, ddp_error *err)
{
    uint64_t hash = DDP__HASH_START;

    for (size_t at = 0, n; at < k->count; at += n) {
        const float *x = k->params + at;
        n = k->count - at < DDP__HASHED_FLOATS ? k->count - at : (size_t)DDP__HASHED_FLOATS;
        if (room) DDP__TRY(ddp__host_download(ddp__host_of(d), room, x, n * sizeof *room, err));
        hash = ddp_hash_floats(hash, room ? room : x, n);
    }
    *out = hash | 1;
    return DDP_OK;
}

static ddp_status ddp__hashes_fill(ddp_ctx *d, float *room, uint64_t *hash, ddp_error *err)
{
    for (int l = 0; l < ddp__layers(d); l++)
        for (int b = 0; b < ddp__count(ddp__unit_of(d, l)->block); b++)
            DDP__TRY(ddp__block_hash(d, &ddp__unit_of(d, l)->block[b], room, hash++, err));
    return DDP_OK;
}

static int ddp__in_group(const ddp_ctx *d, int group, int rank)
{
    const int *ranks = ddp__engine_group_ranks(ddp__engine_of(d, 0), group);

    for (int i = 0; ranks && i < ddp__engine_group_size(ddp__engine_of(d, 0), group); i++)
        if (ranks[i] == rank) return 1;
    return !ranks;
}

/* Returns 1 if hash number `at` of any rank in this group differs from this rank's. */
static int ddp__hashes_differ(const ddp_ctx *d, const uint64_t *all, size_t each, size_t at, int group)
{
    const uint64_t own = all[(size_t)ddp__team_place(d) * each + at];

    for (int i = 0; i < ddp__team_size(d); i++) {
        const uint64_t other = all[(size_t)i * each + at];
        if (other && other != own && ddp__in_group(d, group, ddp__team_rank(d, i))) return 1;
    }
    return 0;
}

static ddp_status ddp__block_average(ddp_ctx *d, const ddp__unit *u, const ddp_block *k, ddp_error *err)
{
    const ddp_piece p = {{k->params}, k->count};
    ddp_message m = ddp__message(d, DDP_ALL_REDUCE, &p, 1, DDP__ALL_VALUES);

    m.mean = 1;
    m.group = u->group ? u->group : ddp__computing(d);
    return ddp__run(d, &m, 1, err);
}

static ddp_status ddp__replicas_compare(ddp_ctx *d, uint64_t *all, size_t each, ddp_error *err)
{
    size_t at = 0;

    DDP__TRY(ddp__gather_words(d, ddp__team_group(d), all, each * sizeof *all, err));
    for (int l = 0; l < ddp__layers(d); l++)
        for (int b = 0; b < ddp__count(ddp__unit_of(d, l)->block); b++, at++)
            if (ddp__hashes_differ(d, all, each, at, ddp__unit_of(d, l)->group))
                DDP__TRY(ddp__block_average(d, ddp__unit_of(d, l), &ddp__unit_of(d, l)->block[b], err));
    return DDP_OK;
}

ddp_status ddp__replicas_settle(ddp_ctx *d, ddp_error *err)
{
    uint64_t *all;
    float *room = NULL;
    size_t each = 0;
    ddp_status s;

    if (!ddp__engine_of(d, 0) || ddp__is_on_paper(d) || ddp__team_size(d) < 2) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) each += (size_t)ddp__count(ddp__unit_of(d, l)->block);
    all = (uint64_t *)ddp__calloc((size_t)ddp__team_size(d) * each + 1, sizeof *all);
    if (ddp__backend_of(d)) room = (float *)ddp__calloc(DDP__HASHED_FLOATS, sizeof *room);
    if (!all || (ddp__backend_of(d) && !room))
        s = ddp__fail(err, DDP_MEMORY, "out of memory comparing %zu arrays of %d ranks", each,
                      ddp__team_size(d));
    else
        s = ddp__hashes_fill(d, room, all + (size_t)ddp__team_place(d) * each, err);
    if (s == DDP_OK) s = ddp__replicas_compare(d, all, each, err);
    if (all) DDP_FREE(all);
    if (room) DDP_FREE(room);
    return s;
}
