/* Tables of measured losses: checks, and reading CSV. */
#include "base/core.h"
#include "comm/frame.h"
#include "profile/csv.h"
#include "profile/losses.h"

enum {
    DDP__LOSS_STRATEGY,
    DDP__LOSS_OVERLAP,
    DDP__LOSS_PERIOD,
    DDP__LOSS_WORKERS,
    DDP__LOSS_WIRE,
    DDP__LOSS_STEPS,
    DDP__LOSS_LOSS,
    DDP__LOSS_COLUMNS
};
static const char *const ddp__loss_columns[] = {"strategy", "overlap", "period", "workers",
                                                "wire",     "steps",   "loss"};
static const int ddp__loss_needed[] = {1, 0, 0, 1, 0, 1, 1};

/* ---- checks ---- */

static int ddp__loss_is_ssgd(const ddp_loss_point *x) { return !strcmp(x->strategy, "ssgd"); }

static int ddp__loss_has_base(const ddp_loss_table *t, const ddp_loss_point *x)
{
    for (int i = 0; i < t->count; i++) {
        const ddp_loss_point *y = &t->point[i];
        if (ddp__loss_is_ssgd(y) && y->workers == x->workers && y->steps >= x->steps && y->steps <= x->steps)
            return 1;
    }
    return 0;
}

static ddp_status ddp__loss_point_check(const ddp_loss_table *t, int i, ddp_error *err)
{
    const ddp_loss_point *x = &t->point[i];

    if (!memchr(x->strategy, 0, sizeof x->strategy) || !*x->strategy)
        return ddp__fail(err, DDP_ARG, "loss point %d: the strategy has no name of at most %d letters", i + 1,
                         (int)sizeof x->strategy - 1);
    if (x->period < 0 || x->workers < 1 || (int)x->coding < 0 || (int)x->coding > (int)DDP_AS_E3M0)
        return ddp__fail(
            err, DDP_ARG,
            "loss point %d (%s): period %d, %d workers, format %d: at least 0, at least 1, and a "
            "constant from DDP_AS_FLOAT to DDP_AS_E3M0 are needed",
            i + 1, x->strategy, x->period, x->workers, (int)x->coding);
    DDP__TRY(
        ddp__check_finite(x->steps, 1, err, "loss point %d (%s): steps is %g", i + 1, x->strategy, x->steps));
    DDP__TRY(
        ddp__check_finite(x->loss, 1, err, "loss point %d (%s): loss is %g", i + 1, x->strategy, x->loss));
    if (ddp__loss_is_ssgd(x) && (x->coding != DDP_AS_FLOAT || x->period || x->stream))
        return ddp__fail(
            err, DDP_ARG,
            "loss point %d: ssgd has a period, an overlap or a wire format; leave them out, because "
            "losses are compared with it",
            i + 1);
    if (ddp__loss_has_base(t, x)) return DDP_OK;
    return ddp__fail(
        err, DDP_ARG,
        "loss point %d (%s): no point of ssgd has %d workers and %g steps; add one, because losses "
        "are compared with it",
        i + 1, x->strategy, x->workers, x->steps);
}

ddp_status ddp_loss_table_check(const ddp_loss_table *t, ddp_error *err)
{
    double least = DBL_MAX, most = 0;

    if (!t || t->count < 0 || (t->count > 0 && !t->point))
        return ddp__fail(err, DDP_ARG, "the loss table has no points");
    for (int i = 0; i < t->count; i++) {
        DDP__TRY(ddp__loss_point_check(t, i, err));
        if (!ddp__loss_is_ssgd(&t->point[i])) continue;
        least = fmin(least, t->point[i].steps);
        most = fmax(most, t->point[i].steps);
    }
    if (least < most) return DDP_OK;
    return ddp__fail(
        err, DDP_ARG,
        "the loss table has no two points of ssgd with different numbers of steps; add one, because "
        "they convert loss to steps");
}

/* ---- CSV ---- */

/* A table that is read, with the position of each column in the header, or -1. */
typedef struct ddp__loss_reader {
    const char *path;
    int line; /* counted from 1 */
    int where[DDP__LOSS_COLUMNS];
    ddp_loss_point *point; /* an stb_ds array */
    int *at;               /* an stb_ds array: the line of each point */
} ddp__loss_reader;

static ddp_status ddp__loss_header(ddp__loss_reader *r, char *line, ddp_error *err)
{
    for (int c = 0; c < DDP__LOSS_COLUMNS; c++) r->where[c] = -1;
    for (int n = 0; line; n++) {
        const char *field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT, "%s, line 1: a quote in the header is not closed", r->path);
        for (int c = 0; c < DDP__LOSS_COLUMNS; c++) {
            if (strcmp(field, ddp__loss_columns[c])) continue;
            if (r->where[c] >= 0)
                return ddp__fail(err, DDP_FORMAT, "%s, line 1: column %s appears twice; keep one", r->path,
                                 field);
            r->where[c] = n;
        }
    }
    for (int c = 0; c < DDP__LOSS_COLUMNS; c++)
        if (r->where[c] < 0 && ddp__loss_needed[c])
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line 1: column %s is missing; the header is "
                             "strategy,overlap,period,workers,wire,steps,loss",
                             r->path, ddp__loss_columns[c]);
    return DDP_OK;
}

/* Parses a number of one column. whole: 1 for a whole number. An empty field is 0 if the column may be
 * missing. */
static ddp_status ddp__loss_number(const ddp__loss_reader *r, int c, const char *s, double least, int whole,
                                   double *out, ddp_error *err)
{
    *out = 0;
    if (!*s && !ddp__loss_needed[c]) return DDP_OK;
    if (ddp__parse_double(s, out) && *out >= least && *out <= 1e9 && (!whole || *out <= floor(*out)))
        return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is '%.40s'; a %s from %g to 1e9 is needed", r->path,
                     r->line, ddp__loss_columns[c], s, whole ? "whole number" : "number", least);
}

/* The number format of that name, or -1. */
static int ddp__loss_coding(const char *wire)
{
    for (int coding = 0; coding <= (int)DDP_AS_E3M0; coding++)
        if (!strcmp(ddp__coding_wire((ddp_coding)coding), wire)) return coding;
    return -1;
}

static ddp_status ddp__loss_words(const ddp__loss_reader *r, const char *const *value, ddp_loss_point *x,
                                  ddp_error *err)
{
    const char *strategy = value[DDP__LOSS_STRATEGY], *overlap = value[DDP__LOSS_OVERLAP],
               *wire = value[DDP__LOSS_WIRE];
    int coding;

    if (!*strategy || strlen(strategy) >= sizeof x->strategy)
        return ddp__fail(err, DDP_FORMAT,
                         "%s, line %d: strategy is '%.40s'; a name such as dreamddp is needed", r->path,
                         r->line, strategy);
    memcpy(x->strategy, strategy, strlen(strategy) + 1);
    x->stream = !strcmp(overlap, "stream");
    if (*overlap && !x->stream && strcmp(overlap, "none"))
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: overlap is '%.40s'; use none or stream", r->path,
                         r->line, overlap);
    coding = *wire ? ddp__loss_coding(wire) : (int)DDP_AS_FLOAT;
    if (coding < 0)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: wire is '%.40s'; use f32, bf16, int8, int4 or e3m0",
                         r->path, r->line, wire);
    x->coding = (ddp_coding)coding;
    return DDP_OK;
}

static ddp_status ddp__loss_row(ddp__loss_reader *r, char *line, ddp_error *err)
{
    const char *value[DDP__LOSS_COLUMNS];
    ddp_loss_point x = DDP__ZEROS;
    double period, workers;
    int n;

    for (int c = 0; c < DDP__LOSS_COLUMNS; c++) value[c] = r->where[c] < 0 ? "" : NULL;
    for (n = 0; line; n++) {
        const char *field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: a quote is not closed or is followed by text",
                             r->path, r->line);
        for (int c = 0; c < DDP__LOSS_COLUMNS; c++)
            if (r->where[c] == n) value[c] = field;
    }
    for (int c = 0; c < DDP__LOSS_COLUMNS; c++)
        if (!value[c])
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: column %s is missing; the line has only %d fields", r->path,
                             r->line, ddp__loss_columns[c], n);
    DDP__TRY(ddp__loss_words(r, value, &x, err));
    DDP__TRY(ddp__loss_number(r, DDP__LOSS_PERIOD, value[DDP__LOSS_PERIOD], 0, 1, &period, err));
    DDP__TRY(ddp__loss_number(r, DDP__LOSS_WORKERS, value[DDP__LOSS_WORKERS], 1, 1, &workers, err));
    DDP__TRY(ddp__loss_number(r, DDP__LOSS_STEPS, value[DDP__LOSS_STEPS], 1, 1, &x.steps, err));
    DDP__TRY(ddp__loss_number(r, DDP__LOSS_LOSS, value[DDP__LOSS_LOSS], 1e-9, 0, &x.loss, err));
    x.period = (int)period;
    x.workers = (int)workers;
    if (!ddp__reserve(r->point, ddp__count(r->point) + 1) || !ddp__reserve(r->at, ddp__count(r->at) + 1))
        return ddp__fail(err, DDP_MEMORY, "no memory for the loss table %s", r->path);
    stbds_arrput(r->point, x);
    stbds_arrput(r->at, r->line);
    return DDP_OK;
}

/* The check of the table, with the line of a faulty point. */
static ddp_status ddp__loss_read_check(const ddp__loss_reader *r, ddp_error *err)
{
    const ddp_loss_table t = {ddp__count(r->point), r->point};
    ddp_error why;

    for (int i = 0; i < t.count; i++)
        if (ddp__loss_point_check(&t, i, &why) != DDP_OK)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s", r->path, r->at[i], why.msg);
    if (ddp_loss_table_check(&t, &why) == DDP_OK) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%s: %s", r->path, why.msg);
}

static ddp_status ddp__loss_text(ddp__loss_reader *r, char *text, size_t size, ddp_error *err)
{
    char *line;

    if (!size) return ddp__fail(err, DDP_FORMAT, "%s is empty; a loss table begins with its header", r->path);
    if (strlen(text) != size)
        return ddp__fail(err, DDP_FORMAT, "%s is not text: it has a zero byte at offset %zu", r->path,
                         strlen(text));
    text += ddp__bom_bytes(text, size);
    for (r->line = 1; (line = ddp__csv_line(&text)) != NULL; r->line++) {
        if (r->line == 1)
            DDP__TRY(ddp__loss_header(r, line, err));
        else if (line[strspn(line, " \t")])
            DDP__TRY(ddp__loss_row(r, line, err));
    }
    return ddp__loss_read_check(r, err);
}

ddp_status ddp_loss_table_read(const char *path, ddp_loss_table *out, ddp_error *err)
{
    ddp__loss_reader r = DDP__ZEROS;
    ddp__text text = DDP__ZEROS;
    ddp_loss_point *copy = NULL;
    ddp_status s = ddp__file_read(path, &text, err);

    r.path = path;
    if (s == DDP_OK) s = ddp__loss_text(&r, text.data, text.size, err);
    ddp__text_free(&text);
    if (s == DDP_OK) {
        copy = (ddp_loss_point *)ddp__calloc((size_t)ddp__count(r.point), sizeof *copy);
        if (!copy) s = ddp__fail(err, DDP_MEMORY, "no memory for the loss table %s", path);
    }
    if (s == DDP_OK) {
        memcpy(copy, r.point, (size_t)ddp__count(r.point) * sizeof *copy);
        out->count = ddp__count(r.point);
        out->point = copy;
    }
    ddp__array_free(r.point);
    ddp__array_free(r.at);
    return s;
}

void ddp_loss_table_free(ddp_loss_table *t)
{
    if (!t) return;
    DDP_FREE((void *)t->point);
    memset(t, 0, sizeof *t);
}
