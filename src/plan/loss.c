/* The loss that a strategy costs, from measured runs: power laws between them, and the curve of ssgd that
 * converts loss to steps. */
#include "base/core.h"
#include "plan/loss.h"
#include "plan/loss_table.h"

static const double ddp__penalty_least = 1e-4;

const ddp_loss_table *ddp_loss_built_in(void)
{
    static const ddp_loss_table table = {(int)(sizeof ddp__loss_points / sizeof ddp__loss_points[0]),
                                         ddp__loss_points};

    return &table;
}

/* ---- points ---- */

static int ddp__equals(double a, double b) { return a >= b && a <= b; }

static int ddp__same_strategy(const ddp_loss_point *a, const ddp_loss_point *b)
{
    return !strcmp(a->strategy, b->strategy) && a->stream == b->stream;
}

/* The three axes along which penalties are power laws. */
enum { DDP__BY_PERIOD, DDP__BY_STEPS, DDP__BY_WORKERS, DDP__AXES };

static double ddp__axis(const ddp_loss_point *x, int axis)
{
    if (axis == DDP__BY_PERIOD) return x->period;
    return axis == DDP__BY_STEPS ? x->steps : x->workers;
}

/* Returns 1 if two points are equal on all axes but one. */
static int ddp__differ_only(const ddp_loss_point *a, const ddp_loss_point *b, int axis)
{
    if (!ddp__same_strategy(a, b) || a->coding != b->coding) return 0;
    for (int k = 0; k < DDP__AXES; k++)
        if (k != axis && !ddp__equals(ddp__axis(a, k), ddp__axis(b, k))) return 0;
    return 1;
}

/* The mean loss of the points with the strategy and the settings of x. */
static double ddp__loss_at(const ddp_loss_table *t, const ddp_loss_point *x, const char *strategy)
{
    const int base = strcmp(strategy, x->strategy) != 0;
    double sum = 0;
    int n = 0;

    for (int i = 0; i < t->count; i++) {
        const ddp_loss_point *y = &t->point[i];
        if (strcmp(y->strategy, strategy) || y->workers != x->workers || !ddp__equals(y->steps, x->steps))
            continue;
        if (!base && (y->stream != x->stream || y->period != x->period || y->coding != x->coding)) continue;
        sum += y->loss;
        n++;
    }
    return sum / n;
}

/* ---- the curve of ssgd ---- */

/* Sums of least squares. */
typedef struct ddp__line_fit {
    double n, x, y, xx, xy, yy;
} ddp__line_fit;

static void ddp__line_fit_add(ddp__line_fit *f, double x, double y)
{
    f->n++;
    f->x += x;
    f->y += y;
    f->xx += x * x;
    f->xy += x * y;
    f->yy += y * y;
}

static double ddp__line_slope(const ddp__line_fit *f)
{
    return (f->n * f->xy - f->x * f->y) / (f->n * f->xx - f->x * f->x);
}

/* The squared distances from the line, per point. */
static double ddp__line_error(const ddp__line_fit *f)
{
    const double b = ddp__line_slope(f), a = (f->y - b * f->x) / f->n;

    return (f->yy - a * f->y - b * f->xy) / f->n;
}

/* Returns 1 if point i is of ssgd with these workers, and the first one with its number of steps. */
static int ddp__ssgd_first(const ddp_loss_table *t, int i, int workers)
{
    const ddp_loss_point *x = &t->point[i];

    if (strcmp(x->strategy, "ssgd") || x->workers != workers) return 0;
    for (int j = 0; j < i; j++) {
        const ddp_loss_point *y = &t->point[j];
        if (!strcmp(y->strategy, "ssgd") && y->workers == workers && ddp__equals(y->steps, x->steps))
            return 0;
    }
    return 1;
}

/* The number of workers with which ssgd has the most different numbers of steps. *sizes receives their
 * number. */
static int ddp__ssgd_workers(const ddp_loss_table *t, int *sizes)
{
    int best = 0;

    *sizes = 0;
    for (int i = 0; i < t->count; i++) {
        int n = 0;
        for (int j = 0; j < t->count; j++) n += ddp__ssgd_first(t, j, t->point[i].workers);
        if (n > *sizes) best = t->point[i].workers;
        if (n > *sizes) *sizes = n;
    }
    return best;
}

/* The line of the logarithms of the losses above the floor. */
static ddp__line_fit ddp__ssgd_line(const ddp_loss_table *t, int workers, double floor)
{
    ddp__line_fit f = DDP__ZEROS;

    for (int i = 0; i < t->count; i++)
        if (ddp__ssgd_first(t, i, workers))
            ddp__line_fit_add(&f, log(t->point[i].steps), log(ddp__loss_at(t, &t->point[i], "ssgd") - floor));
    return f;
}

/* A curve that is convex in the logarithms has a floor. It is searched on a grid, because the error has one
 * minimum and the fit needs no more digits. */
enum { DDP__FLOORS = 200 };

static ddp_status ddp__ssgd_curve(ddp_loss_fit *f, ddp_error *err)
{
    const ddp_loss_table *t = f->table;
    double least = DBL_MAX, best = DBL_MAX;
    int sizes;
    const int workers = ddp__ssgd_workers(t, &sizes);

    if (sizes < 2)
        return ddp__fail(
            err, DDP_ARG,
            "the loss table has ssgd with only one number of steps for each number of workers; add "
            "a run with another number of steps");
    for (int i = 0; i < t->count; i++)
        if (ddp__ssgd_first(t, i, workers)) least = fmin(least, ddp__loss_at(t, &t->point[i], "ssgd"));
    for (int k = 0; k < (sizes > 2 ? (int)DDP__FLOORS : 1); k++) {
        const double floor = least * k / (double)DDP__FLOORS;
        const ddp__line_fit line = ddp__ssgd_line(t, workers, floor);
        /* errors of the loss itself: a distance of logarithms above the floor counts less near the floor */
        const double error = ddp__line_error(&line) * (1 - floor / least) * (1 - floor / least);
        if (k && error >= best) continue;
        best = error;
        f->floor = floor;
        f->decay = -ddp__line_slope(&line);
        f->scale = exp((line.y + f->decay * line.x) / line.n);
    }
    if (f->decay > 0) return DDP_OK;
    return ddp__fail(
        err, DDP_ARG,
        "the loss of ssgd in the table does not decrease with the steps; check its rows of ssgd");
}

double ddp_loss_of_ssgd(const ddp_loss_fit *f, double steps)
{
    return f->floor + f->scale * pow(steps, -f->decay);
}

/* ---- the fit ---- */

/* The common slope along an axis, or `none` without points that differ only there. */
static double ddp__loss_exponent(const ddp_loss_fit *f, int axis, double none)
{
    const ddp_loss_table *t = f->table;
    double xx = 0, xy = 0;

    for (int i = 0; i < t->count; i++) {
        if (!strcmp(t->point[i].strategy, "ssgd")) continue;
        for (int j = 0; j < i; j++) {
            double dx;
            if (!ddp__differ_only(&t->point[i], &t->point[j], axis)) continue;
            if (!(ddp__axis(&t->point[i], axis) > 0) || !(ddp__axis(&t->point[j], axis) > 0)) continue;
            dx = log(ddp__axis(&t->point[i], axis) / ddp__axis(&t->point[j], axis));
            xx += dx * dx;
            xy += dx * log(f->penalty[i] / f->penalty[j]);
        }
    }
    return xx > 0 ? xy / xx : none;
}

static void ddp__loss_measure(ddp_loss_fit *f)
{
    const ddp_loss_table *t = f->table;

    f->least_steps = DBL_MAX;
    f->least_workers = INT_MAX;
    for (int i = 0; i < t->count; i++) {
        const ddp_loss_point *x = &t->point[i];
        const double over = ddp__loss_at(t, x, x->strategy) / ddp__loss_at(t, x, "ssgd") - 1;
        f->penalty[i] = fmax(over, ddp__penalty_least);
        f->least_steps = fmin(f->least_steps, x->steps);
        f->most_steps = fmax(f->most_steps, x->steps);
        if (x->workers < f->least_workers) f->least_workers = x->workers;
        if (x->workers > f->most_workers) f->most_workers = x->workers;
    }
    f->by_period = fmax(0, ddp__loss_exponent(f, DDP__BY_PERIOD, 0.5));
    f->by_steps = ddp__loss_exponent(f, DDP__BY_STEPS, 0);
    f->by_workers = ddp__loss_exponent(f, DDP__BY_WORKERS, 0);
}

ddp_status ddp_loss_fit_new(const ddp_loss_table *table, ddp_loss_fit *out, ddp_error *err)
{
    ddp_loss_fit f = DDP__ZEROS;
    ddp_status s;

    f.table = table ? table : ddp_loss_built_in();
    DDP__TRY(ddp_loss_table_check(f.table, err));
    f.penalty = (double *)ddp__calloc((size_t)f.table->count, sizeof *f.penalty);
    if (!f.penalty) return ddp__fail(err, DDP_MEMORY, "no memory to fit %d losses", f.table->count);
    ddp__loss_measure(&f);
    s = ddp__ssgd_curve(&f, err);
    if (s == DDP_OK)
        *out = f;
    else
        DDP_FREE(f.penalty);
    return s;
}

void ddp_loss_fit_free(ddp_loss_fit *f)
{
    if (!f) return;
    DDP_FREE(f->penalty);
    memset(f, 0, sizeof *f);
}

/* ---- the penalty ---- */

/* Measured values on both sides of x: the nearest one below or equal, and the nearest one above or equal. */
typedef struct ddp__bracket {
    double below_x, below_y, above_x, above_y;
    int below, above; /* 1 if found */
} ddp__bracket;

static void ddp__bracket_add(ddp__bracket *b, double x, double at, double y)
{
    if (at <= x && (!b->below || at > b->below_x)) {
        b->below = 1;
        b->below_x = at;
        b->below_y = y;
    }
    if (at >= x && (!b->above || at < b->above_x)) {
        b->above = 1;
        b->above_x = at;
        b->above_y = y;
    }
}

/* The power law through both sides, or with the exponent from the only side. Returns 0 without a side. */
static double ddp__bracket_value(const ddp__bracket *b, double x, double exponent)
{
    if (b->below && b->below_x >= x) return b->below_y;
    if (b->below && b->above)
        return b->below_y * pow(b->above_y / b->below_y, log(x / b->below_x) / log(b->above_x / b->below_x));
    if (b->below) return b->below_y * pow(x / b->below_x, exponent);
    return b->above ? b->above_y * pow(x / b->above_x, exponent) : 0;
}

/* Returns 1 if point i is one of the asked strategy in float32, and of the same period and steps none is
 * nearer in workers. */
static int ddp__loss_usable(const ddp_loss_table *t, const ddp_loss_point *like, int i)
{
    const ddp_loss_point *x = &t->point[i];
    const double far = fabs(log((double)x->workers / like->workers));

    if (!ddp__same_strategy(x, like) || x->coding != DDP_AS_FLOAT || !x->period != !like->period) return 0;
    for (int j = 0; j < t->count; j++) {
        const ddp_loss_point *y = &t->point[j];
        if (ddp__differ_only(x, y, DDP__BY_WORKERS) && fabs(log((double)y->workers / like->workers)) < far)
            return 0;
    }
    return 1;
}

/* The penalty after a measured number of steps, or 0 if the strategy has no point there. */
static double ddp__penalty_after(const ddp_loss_fit *f, const ddp_loss_point *like, double steps)
{
    ddp__bracket b = DDP__ZEROS;

    for (int i = 0; i < f->table->count; i++) {
        const ddp_loss_point *x = &f->table->point[i];
        if (!ddp__equals(x->steps, steps) || !ddp__loss_usable(f->table, like, i)) continue;
        ddp__bracket_add(&b, like->period, x->period,
                         f->penalty[i] * pow((double)like->workers / x->workers, f->by_workers));
    }
    return ddp__bracket_value(&b, like->period, f->by_period);
}

/* The penalty in float32, or 0 without a point of the strategy. */
static double ddp__penalty_float(const ddp_loss_fit *f, const ddp_loss_point *like)
{
    ddp__bracket b = DDP__ZEROS;

    for (int i = 0; i < f->table->count; i++) {
        const double steps = f->table->point[i].steps;
        double penalty;
        if (!ddp__same_strategy(&f->table->point[i], like)) continue;
        penalty = ddp__penalty_after(f, like, steps);
        if (penalty > 0) ddp__bracket_add(&b, like->steps, steps, penalty);
    }
    return ddp__bracket_value(&b, like->steps, f->by_steps);
}

/* The mean penalty that a format adds, from points that differ only in the format. Returns 0 if neither it
 * nor a coarser one was measured. */
static int ddp__penalty_coding(const ddp_loss_fit *f, const ddp_loss_point *like, double *out)
{
    const ddp_loss_table *t = f->table;

    *out = 0;
    if (like->coding == DDP_AS_FLOAT) return 1;
    for (int coding = (int)like->coding; coding <= (int)DDP_AS_E3M0; coding++) {
        double sum = 0;
        int n = 0;
        for (int i = 0; i < t->count; i++)
            for (int j = 0; j < t->count && ddp__same_strategy(&t->point[i], like); j++) {
                ddp_loss_point plain = t->point[i];
                if ((int)plain.coding != coding) continue;
                plain.coding = DDP_AS_FLOAT;
                if (!ddp__differ_only(&plain, &t->point[j], DDP__AXES)) continue;
                sum += f->penalty[i] - f->penalty[j];
                n++;
            }
        *out = n ? fmax(0, sum / n) : 0;
        if (n) return 1;
    }
    return 0;
}

static ddp_status ddp__loss_asked(const ddp_loss_fit *f, const ddp_candidate *c, int workers, double steps,
                                  ddp_loss_point *like, ddp_error *err)
{
    const int least = f->least_workers, most = f->most_workers;

    if (workers < 1 || !ddp__within(steps, 1e-9, 1e18))
        return ddp__fail(err, DDP_ARG,
                         "a loss of %d workers after %g steps is impossible; both must be above 0", workers,
                         steps);
    memset(like, 0, sizeof *like);
    if (strlen(c->strategy) >= sizeof like->strategy)
        return ddp__fail(err, DDP_UNSUPPORTED, "the loss table has no point of %.60s", c->strategy);
    memcpy(like->strategy, c->strategy, strlen(c->strategy) + 1);
    like->stream = c->stream;
    like->period = c->period;
    like->coding = c->coding;
    like->workers = workers < least ? least : workers > most ? most : workers;
    like->steps = fmin(fmax(steps, f->least_steps), f->most_steps);
    return DDP_OK;
}

ddp_status ddp_loss_penalty(const ddp_loss_fit *f, const ddp_candidate *c, int workers, double steps,
                            double *out, ddp_error *err)
{
    ddp_result_kind kind;
    ddp_loss_point like;
    double penalty, more;

    DDP__TRY(ddp_result_of(c->strategy, &kind, err));
    DDP__TRY(ddp__loss_asked(f, c, workers, steps, &like, err));
    if (kind == DDP_RESULT_EXACT && c->coding == DDP_AS_FLOAT) {
        *out = 0;
        return DDP_OK;
    }
    penalty = ddp__penalty_float(f, &like);
    if (!(penalty > 0) || !ddp__penalty_coding(f, &like, &more))
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "the loss table has no point of %s%s%s; add measured runs of it to a table of your own",
            c->strategy, c->stream ? " with overlap stream" : "",
            penalty > 0 ? " with this wire format or a coarser one" : "");
    *out = penalty + more;
    return DDP_OK;
}

/* ---- steps ---- */

/* Sets *over to the loss after `steps` steps, divided by the wanted loss. */
static ddp_status ddp__loss_over(const ddp_loss_fit *f, const ddp_candidate *c, int workers, double steps,
                                 double wanted, double *over, ddp_error *err)
{
    double penalty;

    DDP__TRY(ddp_loss_penalty(f, c, workers, steps, &penalty, err));
    *over = (1 + penalty) * ddp_loss_of_ssgd(f, steps) / wanted;
    return DDP_OK;
}

ddp_status ddp_loss_steps(const ddp_loss_fit *f, const ddp_candidate *c, int workers, double steps,
                          double *out, ddp_error *err)
{
    const double wanted = ddp_loss_of_ssgd(f, steps), growth = 1.05;
    double over, low = steps, high = steps;

    DDP__TRY(ddp__loss_over(f, c, workers, steps, wanted, &over, err));
    while (over > 1 &&
           high <= 1000 * steps) { /* a penalty that grows with the steps may have several roots */
        low = high;
        high *= growth;
        DDP__TRY(ddp__loss_over(f, c, workers, high, wanted, &over, err));
    }
    if (over > 1) {
        *out = DBL_MAX;
        return DDP_OK;
    }
    while (high > low * (1 + 1e-9)) {
        const double middle = sqrt(low * high);
        DDP__TRY(ddp__loss_over(f, c, workers, middle, wanted, &over, err));
        if (over > 1)
            low = middle;
        else
            high = middle;
    }
    *out = high;
    return DDP_OK;
}
