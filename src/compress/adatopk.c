/* How much each link of a pipeline compresses. */
#include "base/core.h"
#include "compress/codec.h"
#include "compress/topk.h"

size_t ddp_keep_count(size_t n, double ratio)
{
    double k;

    if (!(ratio > 1) || n < 1) return n;
    k = ceil((double)n / ratio);
    if (k >= (double)n) return n;
    return k < 1 ? 1 : (size_t)k;
}

static ddp_status ddp__adatopk_check(const double *link_s, const size_t *count, int links,
                                     const ddp_adatopk_options *o, ddp_error *err)
{
    int i;

    if (links < 1) return ddp__fail(err, DDP_ARG, "ddp_adatopk: %d links; at least 1 is needed", links);
    if (!(o->ratio >= 1) || !(o->ratio <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "compression ratio %g; it must be finite and at least 1 "
                         "(100 = a hundredth is sent)", o->ratio);
    if (!o->uniform && (!(o->factor >= 0) || !(o->factor <= DBL_MAX)))
        return ddp__fail(err, DDP_ARG, "factor %g of Eq. 7 must be finite and above 0; 0 is the paper's 3", o->factor);
    if (!o->uniform && !(o->ratio <= DBL_MAX / (o->factor > 0 ? o->factor : 3)))
        return ddp__fail(err, DDP_ARG, "factor %g times ratio %g is too large; 1 of %g elements is "
                         "the least that can be kept", o->factor, o->ratio, (double)DDP__PACK_MOST);
    if (o->packing != DDP_PACK_DEFAULT && o->packing != DDP_PACK_I64 &&
        o->packing != DDP_PACK_I32 && o->packing != DDP_PACK_DELTA)
        return ddp__fail(err, DDP_ARG, "packing %d (%s) keeps no indexes; use i64, i32 or delta",
                         (int)o->packing, ddp_packing_name(o->packing));
    for (i = 0; i < links; i++) {
        if (!(link_s[i] >= 0) || !(link_s[i] <= DBL_MAX))
            return ddp__fail(err, DDP_NUMERIC, "link %d takes %g s; times must be finite and >= 0", i, link_s[i]);
        if (!ddp_pack_bound(DDP_PACK_DENSE, count[i], count[i]))
            return ddp__fail(err, DDP_ARG, "link %d carries %zu floats; 1 to %zu make a message",
                             i, count[i], DDP__PACK_MOST);
    }
    return DDP_OK;
}

ddp_status ddp_adatopk(const double *link_s, const size_t *count, int links,
                       const ddp_adatopk_options *o, ddp_link_compression *out, ddp_error *err)
{
    double slowest = 0, factor;
    ddp_packing packing;
    int i;

    if (!link_s || !count || !o || !out) return ddp__fail(err, DDP_ARG, "ddp_adatopk: link_s, count, o or out is NULL");
    DDP__TRY(ddp__adatopk_check(link_s, count, links, o, err));
    factor = o->factor > 0 ? o->factor : 3;
    packing = o->packing == DDP_PACK_DEFAULT ? DDP_PACK_DELTA : o->packing;
    for (i = 0; i < links; i++)
        if (link_s[i] > slowest) slowest = link_s[i];
    for (i = 0; i < links; i++) {
        ddp_link_compression *c = out + i;
        size_t dense = ddp_pack_bound(DDP_PACK_DENSE, count[i], count[i]);

        /* the fraction first: the slowest link's is exactly 1 */
        c->ratio = o->ratio;
        if (!o->uniform) c->ratio = slowest > 0 ? factor * o->ratio * (link_s[i] / slowest) : 1;
        if (!(c->ratio > 1)) c->ratio = 1;
        c->keep = ddp_keep_count(count[i], c->ratio);
        c->bytes = ddp_pack_bound(packing, count[i], c->keep);
        /* 0: an array too long for the packing */
        c->dense = !c->bytes || c->bytes >= dense;
        if (c->dense) {
            c->keep = count[i];
            c->bytes = dense;
        }
        c->link_s = link_s[i] * ((double)(c->bytes - DDP_PACK_HEAD) / (double)(dense - DDP_PACK_HEAD));
    }
    return DDP_OK;
}
