/* Compares arrays across ranks by their 128-bit hashes. */
#include "context/context.h"
#include "exchange/compared.h"
#include "exchange/post.h"

enum { DDP__HASHED_FLOATS = 1 << 16 }; /* floats copied from a device at a time */

/* The lowest bits of a hash. It is never 0, because 0 marks a lost rank. SMALL: the rank has space for one
 * array per message. */
enum { DDP__HASH_IS_THERE = 1, DDP__HASH_SMALL = 2 };

/* Buffers of a device, and elastic_bytes, have space for one array. */
static int ddp__sends_single(const ddp_ctx *d) { return ddp__backend_of(d) || ddp__cfg(d)->elastic.bytes; }

/* Hashes an array. room: [DDP__HASHED_FLOATS] if the layers
 * are on a device, else NULL. */
static ddp_status ddp__compared_hash(ddp_ctx *d, const ddp__compared *of, float *room, ddp__digest *out,
                                     ddp_error *err)
{
    ddp__digester h = DDP__ZEROS;

    for (int i = 0; i < of->pieces; i++)
        for (size_t at = 0, n; at < of->list[i].count; at += n) {
            const float *x = of->list[i].data + at;
            n = of->list[i].count - at;
            if (room && n > DDP__HASHED_FLOATS) n = DDP__HASHED_FLOATS;
            if (room) DDP__TRY(ddp__host_download(ddp__host_of(d), room, x, n * sizeof *room, err));
            ddp__digest_add(&h, room ? room : x, n * sizeof *x);
        }
    *out = ddp__digest_end(&h);
    out->word[0] &= ~(uint64_t)DDP__HASH_SMALL;
    out->word[0] |= (uint64_t)DDP__HASH_IS_THERE | (ddp__sends_single(d) ? (uint64_t)DDP__HASH_SMALL : 0);
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
static int ddp__hashes_differ(const ddp_ctx *d, const ddp__digest *all, size_t each, size_t at, int group)
{
    const uint64_t mine = all[(size_t)ddp__team_place(d) * each + at].word[0] & (uint64_t)DDP__HASH_SMALL;
    const ddp__digest own = all[(size_t)ddp__team_place(d) * each + at];

    for (int i = 0; i < ddp__team_size(d); i++) {
        ddp__digest other = all[(size_t)i * each + at];
        if (other.word[0]) other.word[0] = (other.word[0] & ~(uint64_t)DDP__HASH_SMALL) | mine;
        if (other.word[0] && !ddp__digest_equal(other, own) && ddp__in_group(d, group, ddp__team_rank(d, i)))
            return 1;
    }
    return 0;
}

ddp_status ddp__compare_arrays(ddp_ctx *d, ddp__compared *of, int count, int *single, ddp_error *err)
{
    const size_t each = (size_t)count;
    ddp__digest *all;
    float *room = NULL;
    ddp_status s = DDP_OK;

    for (int i = 0; i < count; i++) of[i].differs = 0;
    *single = ddp__sends_single(d);
    if (!ddp__engine_of(d, 0) || ddp__is_on_paper(d) || ddp__team_size(d) < 2 || !count) return DDP_OK;
    all = (ddp__digest *)ddp__calloc((size_t)ddp__team_size(d) * each, sizeof *all);
    if (ddp__backend_of(d)) room = (float *)ddp__calloc(DDP__HASHED_FLOATS, sizeof *room);
    if (!all || (ddp__backend_of(d) && !room))
        s = ddp__fail(err, DDP_MEMORY, "out of memory comparing %d arrays of %d ranks", count,
                      ddp__team_size(d));
    for (int i = 0; s == DDP_OK && i < count; i++)
        s = ddp__compared_hash(d, &of[i], room, &all[(size_t)ddp__team_place(d) * each + (size_t)i], err);
    if (s == DDP_OK) s = ddp__gather_words(d, ddp__team_group(d), all, each * sizeof *all, err);
    for (int i = 0; s == DDP_OK && i < count; i++)
        of[i].differs = ddp__hashes_differ(d, all, each, (size_t)i, of[i].group);
    for (int i = 0; s == DDP_OK && i < ddp__team_size(d); i++)
        *single |= (all[(size_t)i * each].word[0] & (uint64_t)DDP__HASH_SMALL) != 0;
    if (all) DDP_FREE(all);
    if (room) DDP_FREE(room);
    return s;
}
