/* Profiles of a model: construction, splitting of layers, and CSV. */
#include "base/core.h"
#include "profile/csv.h"
#include "profile/profile.h"

ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err)
{
    ddp_profile p = DDP__ZEROS;
    size_t L = (size_t)layers;
    if (layers < 1)
        return ddp__fail(err, DDP_ARG, "a profile of %d layers is impossible; it needs at least 1", layers);
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

static ddp_status ddp__profile_check_one(const ddp_profile *p, int l, const char *what, double v,
                                         ddp_error *err)
{
    const char *name = p->name && p->name[l] ? p->name[l] : "unnamed";
    return ddp__check_finite(v, 0, err, "layer %d (%s): %s is %g", l, name, what, v);
}

ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err)
{
    if (!p || p->layers < 1)
        return ddp__fail(err, DDP_ARG, "the profile has %d layers; it needs at least 1", p ? p->layers : 0);
    if (!p->backward_s || !p->comm_s)
        return ddp__fail(err, DDP_ARG, "the profile has no %s; it is needed for every layer",
                         p->backward_s ? "comm_s" : "backward_s");
    DDP__TRY(ddp__check_finite(p->alpha_s, 0, err, "alpha_s is %g", p->alpha_s));
    DDP__TRY(ddp__check_finite(p->gap_s, 0, err, "gap_s is %g", p->gap_s));
    DDP__TRY(ddp__check_finite(p->between_s, 0, err, "between_s is %g", p->between_s));
    for (int l = 0; l < p->layers; l++) {
        if (p->params) DDP__TRY(ddp__profile_check_one(p, l, "params", p->params[l], err));
        if (p->forward_s) DDP__TRY(ddp__profile_check_one(p, l, "forward_s", p->forward_s[l], err));
        DDP__TRY(ddp__profile_check_one(p, l, "backward_s", p->backward_s[l], err));
        DDP__TRY(ddp__profile_check_one(p, l, "comm_s", p->comm_s[l], err));
    }
    return DDP_OK;
}

/* ---- splitting of layers ---- */

static ddp_status ddp__split_check(const ddp_profile *p, double most, double alpha, double *rows,
                                   ddp_error *err)
{
    DDP__TRY(ddp_profile_check(p, err));
    if (!p->params)
        return ddp__fail(err, DDP_ARG, "the profile has no params, so its layers cannot be split");
    if (!ddp__within(most, 1, DBL_MAX))
        return ddp__fail(err, DDP_ARG, "a part of %g parameters is impossible; it needs at least 1", most);
    *rows = 0;
    for (int l = 0; l < p->layers; l++) {
        if (!(alpha >= 0) || (p->comm_s[l] > 0 && alpha > p->comm_s[l]))
            return ddp__fail(err, DDP_ARG,
                             "the startup is %g s; it must be 0 to %g s, the comm_s of layer %d", alpha,
                             p->comm_s[l], l);
        *rows += p->params[l] > most ? ceil(p->params[l] / most) : 1;
    }
    if (*rows <= 1e6) return DDP_OK;
    return ddp__fail(err, DDP_ARG,
                     "parts of %g parameters make %.0f rows of %d layers; at most 1000000 can be planned",
                     most, *rows, p->layers);
}

/* Writes part j of k of layer l as row i. Returns 0 if memory is exhausted. */
static int ddp__split_row(const ddp_profile *p, int l, int j, int k, double alpha, ddp_profile *q, int i)
{
    const char *name = p->name && p->name[l] ? p->name[l] : NULL;
    const double n = p->params[l], share = floor(n * (j + 1) / k) - floor(n * j / k), comm = p->comm_s[l];
    char text[160];

    q->params[i] = k > 1 ? share : n;
    q->comm_s[i] = k > 1 && comm > 0 ? alpha + (comm - alpha) * (share / n) : comm;
    if (j == k - 1) {
        q->backward_s[i] = p->backward_s[l];
        q->forward_s[i] = p->forward_s ? p->forward_s[l] : 0;
    }
    if (k > 1 && name)
        snprintf(text, sizeof text, "%.120s [%d/%d]", name, j + 1, k);
    else if (k > 1)
        snprintf(text, sizeof text, "layer %d [%d/%d]", l, j + 1, k);
    if (k == 1 && !name) return 1;
    q->name[i] = ddp__strdup(k > 1 ? text : name);
    return q->name[i] != NULL;
}

ddp_status ddp_profile_split(const ddp_profile *p, double most_params, double alpha_s, ddp_profile *out,
                             int **layer_of, ddp_error *err)
{
    ddp_profile q;
    double rows = 0;
    int *of, i = 0, good = 1;

    DDP__TRY(ddp__split_check(p, most_params, alpha_s, &rows, err));
    DDP__TRY(ddp_profile_new((int)rows, &q, err));
    of = (int *)ddp__calloc((size_t)rows, sizeof *of);
    for (int l = 0; of && good && l < p->layers; l++) {
        const int k = p->params[l] > most_params ? (int)ceil(p->params[l] / most_params) : 1;
        for (int j = 0; j < k && good; j++, i++) {
            of[i] = l;
            good = ddp__split_row(p, l, j, k, alpha_s, &q, i);
        }
    }
    if (!of || !good) {
        ddp_profile_free(&q);
        DDP_FREE(of);
        return ddp__fail(err, DDP_MEMORY, "no memory for a profile of %.0f rows", rows);
    }
    q.alpha_s = p->alpha_s;
    q.gap_s = p->gap_s;
    q.between_s = p->between_s;
    *out = q;
    if (layer_of)
        *layer_of = of;
    else
        DDP_FREE(of);
    return DDP_OK;
}

/* ---- CSV ---- */

enum { DDP__COL_LAYER, DDP__COL_PARAMS, DDP__COL_FORWARD, DDP__COL_BACKWARD, DDP__COL_COMM, DDP__COLS };
static const char *const ddp__columns[] = {"layer", "params", "forward_s", "backward_s", "comm_s"};

/* where[c] = position of column c in the header, or -1 if it is missing. */
static ddp_status ddp__csv_header(const char *path, char *line, int *where, ddp_error *err)
{
    for (int c = 0; c < DDP__COLS; c++) where[c] = -1;
    for (int n = 0; line; n++) {
        char *field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT, "%s, line 1: a quote in the header is not closed", path);
        for (int c = 0; c < DDP__COLS; c++) {
            if (strcmp(field, ddp__columns[c])) continue;
            if (where[c] >= 0)
                return ddp__fail(err, DDP_FORMAT, "%s, line 1: column %s appears twice; keep one", path,
                                 field);
            where[c] = n;
        }
    }
    for (int c = 0; c < DDP__COLS; c++)
        if (where[c] < 0 && c != DDP__COL_FORWARD && c != DDP__COL_COMM)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line 1: column %s is missing; the header is "
                             "layer,params,forward_s,backward_s,comm_s",
                             path, ddp__columns[c]);
    return DDP_OK;
}

static ddp_status ddp__csv_number(const char *path, int line, int column, const char *s, double *out,
                                  ddp_error *err)
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

/* Computes the comm_s of row l from the link. It stays negative until all rows are read. */
static void ddp__csv_from_link(ddp_profile *p, int l, const ddp_link *link)
{
    p->comm_s[l] = -link->beta_s * 4 * p->params[l];
    p->alpha_s = link->alpha_s;
}

/* Parses row l of p from one line of the file. */
static ddp_status ddp__csv_row(const char *path, int number, char *line, const int *where,
                               const ddp_link *link, ddp_profile *p, int l, ddp_error *err)
{
    const char *value[DDP__COLS];
    int n;

    for (int c = 0; c < DDP__COLS; c++) value[c] = NULL;
    for (n = 0; line; n++) {
        char *field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: a quote is not closed or is followed by text",
                             path, number);
        for (int c = 0; c < DDP__COLS; c++)
            if (where[c] == n) value[c] = field;
    }
    for (int c = 0; c < DDP__COLS; c++)
        if (where[c] >= 0 && !value[c])
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: column %s is missing; the line has only %d fields", path, number,
                             ddp__columns[c], n);
    p->name[l] = ddp__strdup(value[DDP__COL_LAYER]);
    if (!p->name[l]) return ddp__fail(err, DDP_MEMORY, "no memory for the profile %s", path);
    DDP__TRY(ddp__csv_number(path, number, DDP__COL_PARAMS, value[DDP__COL_PARAMS], &p->params[l], err));
    DDP__TRY(
        ddp__csv_number(path, number, DDP__COL_BACKWARD, value[DDP__COL_BACKWARD], &p->backward_s[l], err));
    if (value[DDP__COL_FORWARD] && *value[DDP__COL_FORWARD])
        DDP__TRY(
            ddp__csv_number(path, number, DDP__COL_FORWARD, value[DDP__COL_FORWARD], &p->forward_s[l], err));
    if (value[DDP__COL_COMM] && *value[DDP__COL_COMM])
        return ddp__csv_number(path, number, DDP__COL_COMM, value[DDP__COL_COMM], &p->comm_s[l], err);
    if (p->params[l] > 0) {
        if (!link)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: comm_s is empty; measure it or give the network (--net "
                             "RATE,DELAY)",
                             path, number);
        ddp__csv_from_link(p, l, link);
    }
    return DDP_OK;
}

/* One worker alone measures a comm_s of 0 for every layer. Such a profile has no measured transfers. */
static void ddp__csv_alone(ddp_profile *p, const ddp_link *link)
{
    for (int l = 0; l < p->layers; l++)
        if (p->comm_s[l] > 0 || p->comm_s[l] < 0) return;
    for (int l = 0; link && l < p->layers; l++)
        if (p->params[l] > 0) ddp__csv_from_link(p, l, link);
}

/* A profile has one alpha. If some rows are measured, and so include their startup, the computed rows get
 * alpha as a part of their comm_s. */
static void ddp__csv_alpha(ddp_profile *p)
{
    int measured = 0;

    for (int l = 0; l < p->layers; l++) measured |= p->comm_s[l] > 0;
    for (int l = 0; l < p->layers; l++)
        if (p->comm_s[l] < 0) p->comm_s[l] = -p->comm_s[l] + (measured ? p->alpha_s : 0);
    if (measured) p->alpha_s = 0;
}

static ddp_status ddp__csv_profile(const char *path, char *text, size_t size, const ddp_link *link,
                                   ddp_profile *out, ddp_error *err)
{
    int where[DDP__COLS], number = 1, rows = 0, l = 0;
    char none[1] = "", *line;
    const char *s;

    if (size == 0) text = none;
    if (strlen(text) != size)
        return ddp__fail(err, DDP_FORMAT, "%s is not text: it has a zero byte at offset %zu", path,
                         strlen(text));
    text += ddp__bom_bytes(text, size);
    for (s = text; (s = strpbrk(s, "\r\n")) != NULL; s++)
        if (rows++ == INT_MAX - 2)
            return ddp__fail(err, DDP_FORMAT, "%s has too many lines for a profile", path);
    line = ddp__csv_line(&text);
    if (!line)
        return ddp__fail(err, DDP_FORMAT,
                         "%s is empty; a profile begins with layer,params,forward_s,backward_s,comm_s", path);
    DDP__TRY(ddp__csv_header(path, line, where, err));
    DDP__TRY(ddp_profile_new(rows + 1, out, err)); /* number of lines after the header, or a few more */
    while ((line = ddp__csv_line(&text)) != NULL) {
        number++;
        if (!line[strspn(line, " \t")]) continue;
        DDP__TRY(ddp__csv_row(path, number, line, where, link, out, l++, err));
    }
    if (l == 0)
        return ddp__fail(err, DDP_FORMAT, "%s has a header but no layer; it needs one row per layer", path);
    out->layers = l;
    ddp__csv_alone(out, link);
    ddp__csv_alpha(out);
    return DDP_OK;
}

ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out, ddp_error *err)
{
    ddp__text text = DDP__ZEROS;
    ddp_profile p = DDP__ZEROS;
    ddp_status status;
    status = ddp__file_read(path, &text, err);
    if (status == DDP_OK) status = ddp__csv_profile(path, text.data, text.size, link, &p, err);
    if (status == DDP_OK) status = ddp_profile_check(&p, err);
    ddp__text_free(&text);
    if (status == DDP_OK)
        *out = p;
    else
        ddp_profile_free(&p);
    return status;
}

static void ddp__csv_name(ddp__text *t, const char *name)
{
    int quote =
        !*name || strpbrk(name, ",\"") || strchr(" \t", *name) || strchr(" \t", name[strlen(name) - 1]);
    if (quote) ddp__text_add(t, "\"", 1);
    for (; *name; name++) {
        if (*name == '"') ddp__text_add(t, "\"", 1);
        ddp__text_add(t, *name == '\n' ? " " : name, 1);
    }
    if (quote) ddp__text_add(t, "\"", 1);
}

ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    DDP__TRY(ddp_profile_check(p, err));
    ddp__text_addf(&t, "layer,params,forward_s,backward_s,comm_s\n");
    for (int l = 0; l < p->layers; l++) {
        if (p->name && p->name[l])
            ddp__csv_name(&t, p->name[l]);
        else
            ddp__text_addf(&t, "layer %d", l);
        ddp__text_addf(&t, ",%.17g,", p->params ? p->params[l] : 0);
        if (p->forward_s) ddp__text_addf(&t, "%.17g", p->forward_s[l]);
        ddp__text_addf(&t, ",%.17g,%.17g\n", p->backward_s[l], p->comm_s[l]);
    }
    return ddp__text_write(&t, path, err);
}
