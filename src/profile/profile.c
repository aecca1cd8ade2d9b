/* Profiles of a model as CSV, and the link model. */
#include "base/core.h"
#include "profile/profile.h"

ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err)
{
    ddp_profile p;
    size_t L = (size_t)layers;
    if (layers < 1) return ddp__fail(err, DDP_ARG, "a profile of %d layers is impossible; it needs at least 1", layers);
    memset(&p, 0, sizeof p);
    p.layers = layers;
    p.name = (char **)ddp__calloc(L, sizeof *p.name);
    p.params = (double *)ddp__calloc(L, sizeof(double));
    p.forward_s = (double *)ddp__calloc(L, sizeof(double));
    p.backward_s = (double *)ddp__calloc(L, sizeof(double));
    p.comm_s = (double *)ddp__calloc(L, sizeof(double));
    if (!p.name || !p.params || !p.forward_s || !p.backward_s || !p.comm_s) {
        ddp_profile_free(&p);
        return ddp__fail(err, DDP_MEMORY, "no memory for a profile of %d layers", layers);
    }
    *out = p;
    return DDP_OK;
}

void ddp_profile_free(ddp_profile *p)
{
    if (!p) return;
    for (int l = 0; p->name && l < p->layers; l++) DDP_FREE(p->name[l]);
    DDP_FREE(p->name);
    DDP_FREE(p->params);
    DDP_FREE(p->forward_s);
    DDP_FREE(p->backward_s);
    DDP_FREE(p->comm_s);
    memset(p, 0, sizeof *p);
}

static ddp_status ddp__profile_check_one(const ddp_profile *p, int l, const char *what, double v, ddp_error *err)
{
    const char *name = p->name && p->name[l] ? p->name[l] : "unnamed";
    if (v >= 0 && v <= DBL_MAX) return DDP_OK;
    return ddp__fail(err, DDP_ARG, "layer %d (%s): %s is %g; it must be finite and at least 0", l, name, what, v);
}

ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err)
{
    if (!p || p->layers < 1)
        return ddp__fail(err, DDP_ARG, "the profile has %d layers; it needs at least 1", p ? p->layers : 0);
    if (!p->backward_s || !p->comm_s)
        return ddp__fail(err, DDP_ARG, "the profile has no %s; it is needed for every layer",
                         p->backward_s ? "comm_s" : "backward_s");
    if (!(p->alpha_s >= 0 && p->alpha_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "alpha_s is %g; it must be finite and at least 0", p->alpha_s);
    for (int l = 0; l < p->layers; l++) {
        if (p->params) DDP__TRY(ddp__profile_check_one(p, l, "params", p->params[l], err));
        if (p->forward_s) DDP__TRY(ddp__profile_check_one(p, l, "forward_s", p->forward_s[l], err));
        DDP__TRY(ddp__profile_check_one(p, l, "backward_s", p->backward_s[l], err));
        DDP__TRY(ddp__profile_check_one(p, l, "comm_s", p->comm_s[l], err));
    }
    return DDP_OK;
}

enum { DDP__COL_LAYER, DDP__COL_PARAMS, DDP__COL_FORWARD, DDP__COL_BACKWARD, DDP__COL_COMM, DDP__COLS };
static const char *const ddp__columns[] = {"layer", "params", "forward_s", "backward_s", "comm_s"};

/* Takes the next field of a NUL-terminated line apart, in place: surrounding blanks go, "..." is unquoted, "" inside
 * becomes ". *at moves on, to NULL after the last field. NULL = bad quotes. */
static char *ddp__csv_field(char **at)
{
    char *s = *at + strspn(*at, " \t"), *end, *to;
    if (*s != '"') {
        end = s + strcspn(s, ",");
        *at = *end ? end + 1 : NULL;
        while (end > s && (end[-1] == ' ' || end[-1] == '\t')) end--;
        *end = 0;
        return s;
    }
    for (to = s, end = s + 1; *end && (*end != '"' || end[1] == '"'); *to++ = *end++)
        if (*end == '"') end++;
    if (!*end) return NULL;
    end += 1 + strspn(end + 1, " \t");
    if (*end && *end != ',') return NULL;
    *at = *end ? end + 1 : NULL;
    *to = 0;
    return s;
}

/* Splits off the next line, without its line end; NULL at the end of the text. */
static char *ddp__csv_line(char **at)
{
    char *s = *at, *end;
    if (!*s) return NULL;
    end = s + strcspn(s, "\n");
    *at = *end ? end + 1 : end;
    *end = 0;
    if (end > s && end[-1] == '\r') end[-1] = 0;
    return s;
}

/* where[c] = position of column c in the header, -1 = absent. */
static ddp_status ddp__csv_header(const char *path, char *line, int *where, ddp_error *err)
{
    for (int c = 0; c < DDP__COLS; c++) where[c] = -1;
    for (int n = 0; line; n++) {
        char *field = ddp__csv_field(&line);
        if (!field) return ddp__fail(err, DDP_FORMAT, "%s, line 1: a quote in the header is not closed", path);
        for (int c = 0; c < DDP__COLS; c++) {
            if (strcmp(field, ddp__columns[c])) continue;
            if (where[c] >= 0)
                return ddp__fail(err, DDP_FORMAT, "%s, line 1: column %s appears twice; keep one", path, field);
            where[c] = n;
        }
    }
    for (int c = 0; c < DDP__COLS; c++)
        if (where[c] < 0 && c != DDP__COL_FORWARD && c != DDP__COL_COMM)
            return ddp__fail(err, DDP_FORMAT, "%s, line 1: column %s is missing; the header is "
                             "layer,params,forward_s,backward_s,comm_s", path, ddp__columns[c]);
    return DDP_OK;
}

static ddp_status ddp__csv_number(const char *path, int line, int column, const char *s, double *out, ddp_error *err)
{
    if (!*s)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is empty; a number is needed", path, line,
                         ddp__columns[column]);
    if (!ddp__parse_double(s, out))
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is '%.40s'; a finite number is needed", path, line,
                         ddp__columns[column], s);
    if (*out < 0)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is %s; it must not be negative", path, line,
                         ddp__columns[column], s);
    return DDP_OK;
}

/* Row l of p from one line of the file. */
static ddp_status ddp__csv_row(const char *path, int number, char *line, const int *where, const ddp_link *link,
                               ddp_profile *p, int l, ddp_error *err)
{
    const char *value[DDP__COLS];
    int n;

    for (int c = 0; c < DDP__COLS; c++) value[c] = NULL;
    for (n = 0; line; n++) {
        char *field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: a quote is not closed or has text behind it", path, number);
        for (int c = 0; c < DDP__COLS; c++)
            if (where[c] == n) value[c] = field;
    }
    for (int c = 0; c < DDP__COLS; c++)
        if (where[c] >= 0 && !value[c])
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: column %s is missing; the line has only %d fields", path,
                             number, ddp__columns[c], n);
    p->name[l] = ddp__strdup(value[DDP__COL_LAYER]);
    if (!p->name[l]) return ddp__fail(err, DDP_MEMORY, "no memory for the profile %s", path);
    DDP__TRY(ddp__csv_number(path, number, DDP__COL_PARAMS, value[DDP__COL_PARAMS], &p->params[l], err));
    DDP__TRY(ddp__csv_number(path, number, DDP__COL_BACKWARD, value[DDP__COL_BACKWARD], &p->backward_s[l], err));
    if (value[DDP__COL_FORWARD] && *value[DDP__COL_FORWARD])
        DDP__TRY(ddp__csv_number(path, number, DDP__COL_FORWARD, value[DDP__COL_FORWARD], &p->forward_s[l], err));
    if (value[DDP__COL_COMM] && *value[DDP__COL_COMM])
        return ddp__csv_number(path, number, DDP__COL_COMM, value[DDP__COL_COMM], &p->comm_s[l], err);
    if (p->params[l] > 0) {
        if (!link)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: comm_s is empty; measure it or give the network (--net "
                             "RATE,DELAY)", path, number);
        p->comm_s[l] = link->beta_s * 4 * p->params[l];
        p->alpha_s = link->alpha_s;
    }
    return DDP_OK;
}

static ddp_status ddp__csv_profile(const char *path, char *text, size_t size, const ddp_link *link, ddp_profile *out,
                                   ddp_error *err)
{
    int where[DDP__COLS], number = 1, rows = 0, l = 0;
    char *line;
    const char *s;
    ddp_status status;

    if (size == 0)
        return ddp__fail(err, DDP_FORMAT, "%s is empty; a profile begins with layer,params,forward_s,backward_s,comm_s",
                         path);
    if (strlen(text) != size)
        return ddp__fail(err, DDP_FORMAT, "%s is not text: it has a zero byte at offset %zu", path, strlen(text));
    if (size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3;
    for (s = text; (s = strchr(s, '\n')) != NULL; s++)
        if (rows++ == INT_MAX - 2) return ddp__fail(err, DDP_FORMAT, "%s has too many lines for a profile", path);
    line = ddp__csv_line(&text);
    if (!line)
        return ddp__fail(err, DDP_FORMAT, "%s is empty; a profile begins with layer,params,forward_s,backward_s,comm_s",
                         path);
    DDP__TRY(ddp__csv_header(path, line, where, err));
    DDP__TRY(ddp_profile_new(rows + 1, out, err)); /* lines after the header, or a few more */
    while ((line = ddp__csv_line(&text)) != NULL) {
        number++;
        if (!line[strspn(line, " \t")]) continue;
        status = ddp__csv_row(path, number, line, where, link, out, l, err);
        l++;
        if (status != DDP_OK) return status;
    }
    if (l == 0) return ddp__fail(err, DDP_FORMAT, "%s has a header but no layer; it needs one row per layer", path);
    out->layers = l;
    return DDP_OK;
}

ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out, ddp_error *err)
{
    ddp__text text = {NULL, 0, 0, 0};
    ddp_profile p;
    ddp_status status;
    memset(&p, 0, sizeof p);
    status = ddp__file_read(path, &text, err);
    if (status == DDP_OK) status = ddp__csv_profile(path, text.data, text.size, link, &p, err);
    if (status == DDP_OK) status = ddp_profile_check(&p, err);
    ddp__text_free(&text);
    if (status == DDP_OK) *out = p;
    else ddp_profile_free(&p);
    return status;
}

static void ddp__csv_name(ddp__text *t, const char *name)
{
    int quote = strpbrk(name, ",\"") || *name == ' ' || *name == '\t';
    if (quote) ddp__text_add(t, "\"", 1);
    for (; *name; name++) {
        if (*name == '"') ddp__text_add(t, "\"", 1);
        ddp__text_add(t, *name == '\n' || *name == '\r' ? " " : name, 1);
    }
    if (quote) ddp__text_add(t, "\"", 1);
}

ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err)
{
    ddp__text t = {NULL, 0, 0, 0};
    DDP__TRY(ddp_profile_check(p, err));
    ddp__text_addf(&t, "layer,params,forward_s,backward_s,comm_s\n");
    for (int l = 0; l < p->layers; l++) {
        if (p->name && p->name[l]) ddp__csv_name(&t, p->name[l]);
        else ddp__text_addf(&t, "layer %d", l);
        ddp__text_addf(&t, ",%.17g,", p->params ? p->params[l] : 0);
        if (p->forward_s) ddp__text_addf(&t, "%.17g", p->forward_s[l]);
        ddp__text_addf(&t, ",%.17g,%.17g\n", p->backward_s[l], p->comm_s[l]);
    }
    return ddp__text_write(&t, path, err);
}

/* ---- the link ---- */

/* The minimum over alpha, beta >= 0 of sum w (alpha + beta x - y)^2 from its moments; where the free optimum is
 * outside, the minimum of a convex function lies on the edge it crossed. */
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

typedef struct ddp__link_sample { double bytes, seconds; } ddp__link_sample;

static int ddp__link_sample_order(const void *a, const void *b)
{
    const ddp__link_sample *p = (const ddp__link_sample *)a, *q = (const ddp__link_sample *)b;
    if (p->bytes != q->bytes) return p->bytes < q->bytes ? -1 : 1;
    return (p->seconds > q->seconds) - (p->seconds < q->seconds);
}

ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out, ddp_error *err)
{
    ddp__link_sample *s;
    ddp_linkfit f;
    double w;
    if (n < 1) return ddp__fail(err, DDP_ARG, "a link cannot be fitted to %d transfers; measure at least 1", n);
    for (int i = 0; i < n; i++)
        if (!(bytes[i] >= 0 && bytes[i] <= DBL_MAX && seconds[i] >= 0 && seconds[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "transfer %d of %g bytes took %g s; both must be finite and at least 0", i,
                             bytes[i], seconds[i]);
    s = (ddp__link_sample *)ddp__calloc((size_t)n, sizeof *s);
    if (!s) return ddp__fail(err, DDP_MEMORY, "no memory to fit %d transfers", n);
    for (int i = 0; i < n; i++) {
        s[i].bytes = bytes[i];
        s[i].seconds = seconds[i];
    }
    qsort(s, (size_t)n, sizeof *s, ddp__link_sample_order);
    memset(&f, 0, sizeof f);
    for (int i = 0; i < n; i++) {
        if (i > 0 && !(s[i].bytes > s[i - 1].bytes)) continue; /* slower, of the same size */
        w = s[i].seconds > 1e-9 ? s[i].seconds : 1e-9;
        ddp__linkfit_weigh(&f, s[i].bytes, s[i].seconds, 1 / (w * w));
    }
    DDP_FREE(s);
    if (!(f.xx > 0)) return ddp__fail(err, DDP_ARG, "all %d transfers had 0 bytes; the rate needs longer ones", n);
    *out = ddp__link_solve(&f);
    return DDP_OK;
}

void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes, double half_life)
{
    memset(f, 0, sizeof *f);
    f->link = link;
    f->half_life = half_life > 1 ? half_life : 1;
    for (int i = 0; i < 3; i++) { /* the prior: an empty, a half and a full message */
        double bytes = typical_bytes * i / 2, seconds = link.alpha_s + link.beta_s * bytes;
        double w = f->half_life / 3 / (seconds * seconds);
        if (seconds > 0 && seconds <= DBL_MAX) ddp__linkfit_weigh(f, bytes, seconds, w);
    }
}

void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds)
{
    double fade = pow(0.5, 1 / f->half_life);
    if (!(bytes > 0 && bytes <= DBL_MAX && seconds > 0 && seconds <= DBL_MAX)) return;
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
