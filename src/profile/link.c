/* The link model: fits alpha and beta to transfers, and measures their drift. */
#include "base/core.h"
#include "profile/profile.h"

/* Minimises sum w (alpha + beta x - y)^2 over alpha, beta >= 0, from the moments. The function is convex,
 * so if its unconstrained minimum is outside, the constrained one is on the boundary that was crossed. */
static ddp_link ddp__link_solve(const ddp_linkfit *f)
{
    ddp_link link = {0, f->xx > 0 ? f->xy / f->xx : 0};
    double det = f->n * f->xx - f->x * f->x, alpha, beta;
    if (!(det > 1e-12 * f->n * f->xx)) return link;
    beta = (f->n * f->xy - f->x * f->y) / det;
    alpha = (f->y * f->xx - f->x * f->xy) / det;
    if (beta < 0) {
        link.alpha_s = f->y / f->n;
        link.beta_s = 0;
    } else if (alpha > 0) {
        link.alpha_s = alpha;
        link.beta_s = beta;
    }
    return link;
}

static void ddp__linkfit_weigh(ddp_linkfit *f, double bytes, double seconds, double w)
{
    f->n += w;
    f->x += w * bytes;
    f->y += w * seconds;
    f->xx += w * bytes * bytes;
    f->xy += w * bytes * seconds;
}

typedef struct ddp__link_sample {
    double bytes, seconds;
} ddp__link_sample;

static int ddp__link_sample_order(const void *a, const void *b)
{
    const ddp__link_sample *p = (const ddp__link_sample *)a, *q = (const ddp__link_sample *)b;
    if (p->bytes != q->bytes) return p->bytes < q->bytes ? -1 : 1;
    return (p->seconds > q->seconds) - (p->seconds < q->seconds);
}

ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out, ddp_error *err)
{
    ddp__link_sample *s;
    ddp_linkfit f = DDP__ZEROS;
    double w;
    if (n < 1)
        return ddp__fail(err, DDP_ARG, "a link cannot be fitted to %d transfers; measure at least 1", n);
    for (int i = 0; i < n; i++)
        if (!ddp__within(bytes[i], 0, DBL_MAX) || !ddp__within(seconds[i], 0, DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "transfer %d of %g bytes took %g s; both must be finite and at least 0", i,
                             bytes[i], seconds[i]);
    s = (ddp__link_sample *)ddp__calloc((size_t)n, sizeof *s);
    if (!s) return ddp__fail(err, DDP_MEMORY, "no memory to fit %d transfers", n);
    for (int i = 0; i < n; i++) {
        s[i].bytes = bytes[i];
        s[i].seconds = seconds[i];
    }
    qsort(s, (size_t)n, sizeof *s, ddp__link_sample_order);
    for (int i = 0; i < n; i++) {
        if (i > 0 && !(s[i].bytes > s[i - 1].bytes)) continue; /* slower transfer of the same size */
        w = s[i].seconds > 1e-9 ? s[i].seconds : 1e-9;
        ddp__linkfit_weigh(&f, s[i].bytes, s[i].seconds, 1 / (w * w));
    }
    DDP_FREE(s);
    if (!(f.xx > 0))
        return ddp__fail(err, DDP_ARG, "all %d transfers had 0 bytes; the rate needs longer ones", n);
    *out = ddp__link_solve(&f);
    return DDP_OK;
}

void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes, double half_life)
{
    memset(f, 0, sizeof *f);
    f->link = link;
    f->half_life = half_life > 1 ? half_life : 1;
    for (int i = 0; i < 3; i++) { /* the prior: a transfer of zero, half and typical size */
        double bytes = typical_bytes * i / 2, seconds = link.alpha_s + link.beta_s * bytes;
        double w = f->half_life / 3 / (seconds * seconds);
        if (ddp__finite(seconds) && seconds > 0) ddp__linkfit_weigh(f, bytes, seconds, w);
    }
}

void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds)
{
    double fade = pow(0.5, 1 / f->half_life);
    if (!ddp__finite(bytes) || !ddp__finite(seconds) || bytes <= 0 || seconds <= 0) return;
    f->n *= fade;
    f->x *= fade;
    f->y *= fade;
    f->xx *= fade;
    f->xy *= fade;
    ddp__linkfit_weigh(f, bytes, seconds, 1 / (seconds * seconds));
    f->link = ddp__link_solve(f);
}

double ddp_link_drift(ddp_link then, ddp_link now, const double *bytes, int n)
{
    double was = 0, is = 0;
    for (int i = 0; i < n; i++) {
        was += then.alpha_s + then.beta_s * bytes[i];
        is += now.alpha_s + now.beta_s * bytes[i];
    }
    return was > 0 ? is / was - 1 : 0;
}
