/* Makes the parameters bit-identical on all ranks: at the start those of rank 0, later the mean. Only arrays
 * whose hashes differ are sent. */
#include "context/context.h"
#include "exchange/compared.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "measure/measure.h"
#include "session/part.h"
#include "session/start.h"

typedef ddp_status (*ddp__blocks_fn)(ddp_ctx *d, int group, const ddp_piece *list, int pieces,
                                     ddp_error *err);

/* Limits of a message of several blocks. A message costs at least one delay, but an elastic world stores it
 * until it is complete. */
enum { DDP__BLOCKS_PIECES = 256, DDP__BLOCKS_VALUES = 1 << 22 };

/* Lists all blocks of all layers, each with its piece. Returns their number. */
static int ddp__blocks_list(ddp_ctx *d, ddp__compared *of, ddp_piece *piece)
{
    int n = 0;

    for (int l = 0; l < ddp__layers(d); l++) {
        const ddp__unit *u = ddp__unit_of(d, l);
        for (int b = 0; b < ddp__count(u->block); b++, n++) {
            piece[n].data = u->block[b].params;
            piece[n].count = u->block[b].count;
            of[n].list = &piece[n];
            of[n].pieces = 1;
            of[n].group = u->group;
        }
    }
    return n;
}

/* Calls fn for the blocks that differ between ranks, several of one group at a time, or one if single is
 * 1. list: [count] */
static ddp_status ddp__blocks_run(ddp_ctx *d, const ddp__compared *of, int count, int single, ddp_piece *list,
                                  ddp__blocks_fn fn, ddp_error *err)
{
    size_t values = 0;
    int n = 0, group = 0;

    for (int i = 0; i < count; i++) {
        if (!of[i].differs) continue;
        if (n && (single || n == DDP__BLOCKS_PIECES || of[i].group != group ||
                  values + of[i].list->count > DDP__BLOCKS_VALUES)) {
            DDP__TRY(fn(d, group, list, n, err));
            values = 0;
            n = 0;
        }
        group = of[i].group;
        values += of[i].list->count;
        list[n++] = *of[i].list;
    }
    return n ? fn(d, group, list, n, err) : DDP_OK;
}

static ddp_status ddp__blocks_differing(ddp_ctx *d, ddp__blocks_fn fn, ddp_error *err)
{
    ddp__compared *of;
    ddp_piece *piece;
    int count = 0, single = 0;
    ddp_status s = DDP_OK;

    if (!ddp__engine_of(d, 0) || ddp__team_size(d) < 2) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) count += ddp__count(ddp__unit_of(d, l)->block);
    of = (ddp__compared *)ddp__calloc((size_t)count + 1, sizeof *of);
    piece = (ddp_piece *)ddp__calloc(2 * (size_t)count + 1, sizeof *piece);
    if (!of || !piece) s = ddp__fail(err, DDP_MEMORY, "out of memory comparing %d arrays", count);
    if (s == DDP_OK) s = ddp__compare_arrays(d, of, ddp__blocks_list(d, of, piece), &single, err);
    if (s == DDP_OK) s = ddp__blocks_run(d, of, count, single, piece + count, fn, err);
    if (of) DDP_FREE(of);
    if (piece) DDP_FREE(piece);
    return s;
}

/* ---- at the start ---- */

static ddp_status ddp__blocks_share(ddp_ctx *d, int group, const ddp_piece *list, int pieces, ddp_error *err)
{
    ddp_message m = ddp__message(d, DDP_BROADCAST, list, pieces, DDP__ALL_VALUES);

    m.group = group;
    m.peer = ddp__group_root(d, group);
    m.priority = ddp__layers(d);
    return ddp__run(d, &m, 1, err);
}

ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err)
{
    return ddp__blocks_differing(d, ddp__blocks_share, err);
}

/* ---- later ---- */

static ddp_status ddp__blocks_average(ddp_ctx *d, int group, const ddp_piece *list, int pieces,
                                      ddp_error *err)
{
    ddp_message m = ddp__message(d, DDP_ALL_REDUCE, list, pieces, DDP__ALL_VALUES);

    m.mean = 1;
    m.group = group ? group : ddp__computing(d);
    return ddp__run(d, &m, 1, err);
}

ddp_status ddp__replicas_settle(ddp_ctx *d, ddp_error *err)
{
    return ddp__blocks_differing(d, ddp__blocks_average, err);
}
