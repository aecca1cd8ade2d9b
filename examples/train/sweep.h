/* A sweep of simulated runs: one run for each value of an option and each strategy. Writes a table and a
 * chart of the results. */
#ifndef EXAMPLES_TRAIN_SWEEP_H
#define EXAMPLES_TRAIN_SWEEP_H

enum { SWEEP_VALUES = 200, SWEEP_STRATEGIES = 32, SWEEP_TEXT = 64 };

typedef struct sweep_point {
    double step_ms, utilisation, hidden, mb, wall_s;
    int ran;
} sweep_point;

typedef struct sweep {
    char option[40], value[SWEEP_VALUES][SWEEP_TEXT];
    const char *strategy[SWEEP_STRATEGIES];
    int values, strategies;
    sweep_point *point; /* [strategies x values] */
} sweep;

/* Parses "workers=2,4,8". Returns 0 after printing an error. */
static int sweep_read(sweep *s, const char *text)
{
    const char *equal = text ? strchr(text, '=') : NULL, *at;
    const char by = text && strchr(text, ';') ? ';' : ',';
    long all = 1;

    if (!text) {
        s->values = 1;
        return 1;
    }
    for (at = equal; at && *at; at++) all += *at == by;
    if (!equal || equal == text || (size_t)(equal - text) > sizeof s->option - 3 || all > SWEEP_VALUES) {
        fprintf(
            stderr,
            "simulate: --sweep %.60s%s has %ld values; write KEY=A,B,.. with at most %d values, each is a "
            "run\n",
            text, strlen(text) > 60 ? "..." : "", equal ? all : 0, (int)SWEEP_VALUES);
        return 0;
    }
    snprintf(s->option, sizeof s->option, "--%.*s", (int)(equal - text), text);
    for (at = equal + 1; *at; at += *at == by) {
        size_t n = 0;
        while (at[n] && at[n] != by) n++;
        if (n >= SWEEP_TEXT) n = SWEEP_TEXT - 1;
        memcpy(s->value[s->values], at, n);
        s->value[s->values++][n] = 0;
        while (*at && *at != by) at++;
    }
    return 1;
}

/* Parses --strategy: "all", one name, or several names separated by commas. */
static void sweep_strategies(sweep *s, const char *name)
{
    static char list[600];

    snprintf(list, sizeof list, "%s", name ? name : "");
    if (!name || strcmp(name, "all")) {
        for (char *at = list; at && s->strategies < SWEEP_STRATEGIES; s->strategies++) {
            char *comma = strchr(at, ',');
            if (comma) *comma++ = 0;
            s->strategy[s->strategies] = name ? at : NULL;
            at = comma;
        }
        return;
    }
    for (int i = 0; ddp_strategy_number(i) != DDP_STRATEGY_DEFAULT && i < SWEEP_STRATEGIES; i++)
        s->strategy[s->strategies++] = ddp_strategy_name(ddp_strategy_number(i));
}

static void sweep_keep(const simulate *x, sweep_point *p)
{
    const training_result *r = x->p.t.result;

    p->ran = 1;
    p->step_ms = 1e3 * r->step_s;
    p->utilisation = 100 * x->compute_s / r->step_s;
    p->hidden = r->hidden_pct;
    p->mb = r->steps > 1 ? 1e-6 * simulate_bytes(r) : 0;
    p->wall_s = x->wall_s;
}

static const char *sweep_name(const sweep *s, int i)
{
    return s->strategy[i] ? s->strategy[i] : ddp_strategy_name(ddp_strategy_number(0));
}

/* Writes a temporary file and renames it. Returns the exit code. */
static int sweep_save(const sweep *s, const char *path, void (*write)(const sweep *s, FILE *f))
{
    char name[1100];
    FILE *f;

    snprintf(name, sizeof name, "%.1000s.tmp.%ld", path, (long)getpid());
    f = fopen(name, "w");
    if (f) write(s, f);
    if (f && !(ferror(f) | fclose(f)) && !rename(name, path)) return 0;
    fprintf(stderr, "simulate: cannot write %s: %s\n", path, strerror(errno));
    remove(name);
    return 1;
}

static void sweep_csv(const sweep *s, FILE *f)
{
    fprintf(f, "strategy,%s,step_ms,utilisation_pct,hidden_pct,mb_per_step,wall_s\n",
            s->option[0] ? s->option + 2 : "value");
    for (int i = 0; i < s->strategies; i++)
        for (int v = 0; v < s->values; v++) {
            const sweep_point *p = &s->point[i * s->values + v];
            if (p->ran)
                fprintf(f, "%s,\"%s\",%.6g,%.6g,%.6g,%.6g,%.4g\n", sweep_name(s, i), s->value[v], p->step_ms,
                        p->utilisation, p->hidden, p->mb, p->wall_s);
        }
}

/* ---- chart: utilisation by value, one curve per strategy ---- */

enum {
    SWEEP_WIDE = 960,
    SWEEP_HIGH = 470,
    SWEEP_LEFT = 70,
    SWEEP_RIGHT = 60,
    SWEEP_TOP = 50,
    SWEEP_BOTTOM = 70,
    SWEEP_PLACES = 8 /* candidate positions of a label between two values */
};

static double sweep_x(const sweep *s, double v)
{
    const int room = SWEEP_WIDE - SWEEP_LEFT - SWEEP_RIGHT;

    return (double)SWEEP_LEFT + (s->values > 1 ? (double)room * v / (s->values - 1) : room / 2.0);
}

static double sweep_y(double pct)
{
    return (double)SWEEP_TOP + (double)(SWEEP_HIGH - SWEEP_TOP - SWEEP_BOTTOM) * (1 - pct / 100);
}

static double sweep_at(const sweep *s, int i, int place)
{
    const int v = place / SWEEP_PLACES, next = v + 1 < s->values ? v + 1 : v;
    const sweep_point *p = &s->point[i * s->values];
    const double part = (double)(place % SWEEP_PLACES) / (double)SWEEP_PLACES;

    return sweep_y(p[v].utilisation + part * (p[next].utilisation - p[v].utilisation));
}

static int sweep_all_ran(const sweep *s, int i)
{
    int ran = 1;

    for (int v = 0; v < s->values; v++) ran = ran && s->point[i * s->values + v].ran;
    return ran;
}

/* Returns 1 if two curves cannot be distinguished in the chart. */
static int sweep_same(const sweep *s, int a, int b)
{
    double far = 0;

    for (int v = 0; v < s->values; v++)
        far = fmax(far, fabs(sweep_at(s, a, v * SWEEP_PLACES) - sweep_at(s, b, v * SWEEP_PLACES)));
    return far < 2;
}

/* Each of the first 12 strategies has a different colour. Further strategies have dashes. */
static const char *const sweep_colour[] = {"#0072b2", "#d55e00", "#009e73", "#7f3fbf", "#b08a00", "#56b4e9",
                                           "#333333", "#cc79a7", "#8c564b", "#d62728", "#6b8e23", "#1f2f8f"};

/* Returns the vertical distance of curve i from the nearest other curve, at most 60. */
static double sweep_apart(const sweep *s, int i, int place)
{
    double apart = 60;

    for (int k = 0; k < s->strategies; k++)
        if (k != i && sweep_all_ran(s, k) && !sweep_same(s, i, k))
            apart = fmin(apart, fabs(sweep_at(s, k, place) - sweep_at(s, i, place)));
    return apart;
}

/* Counts the points of curves that a label of curve `own` at (x, y) would cover. A point of another curve
 * counts three times. */
static int sweep_covered(const sweep *s, int own, double x, double y, double wide)
{
    const int places = (s->values - 1) * SWEEP_PLACES;
    int covered = 0;

    for (int k = 0; k < s->strategies; k++)
        for (int q = 0; q <= places && sweep_all_ran(s, k); q++)
            if (fabs(sweep_x(s, (double)q / (double)SWEEP_PLACES) - x) < wide / 2 + 4 &&
                fabs(sweep_at(s, k, q) - (y - 4)) < 8)
                covered += k == own || sweep_same(s, k, own) ? 1 : 3;
    return covered;
}

/* Writes the name of a curve, and the names of the curves that coincide with it. The label is placed where
 * the curve is far from the others, and covers neither a curve nor an earlier label. */
static void sweep_label(const sweep *s, FILE *f, int i, double *box, int boxes)
{
    const int places = (s->values - 1) * SWEEP_PLACES;
    char text[200];
    double best = -1e9, wide, x = 0, y = 0;

    snprintf(text, sizeof text, "%s", sweep_name(s, i));
    for (int k = i + 1; k < s->strategies; k++)
        if (sweep_all_ran(s, k) && sweep_same(s, i, k)) {
            const size_t n = strlen(text);
            snprintf(text + n, sizeof text - n, ", %s", sweep_name(s, k));
        }
    wide = 7.4 * (double)strlen(text);
    for (int place = 0; place <= places; place++)
        for (int way = 0; way < 6; way++) { /* above, below, or to one side of the curve */
            const double aside = way < 2 ? 0 : way % 2 ? -wide / 2 - 8 : wide / 2 + 8;
            const double at_x = fmin(fmax(sweep_x(s, (double)place / (double)SWEEP_PLACES) + aside,
                                          (double)SWEEP_LEFT + wide / 2 + 3),
                                     (double)SWEEP_WIDE - wide / 2 - 3);
            const double at_y = sweep_at(s, i, place) + (way == 0 ? -7 : way == 1 ? 16 : way < 4 ? 0 : 8);
            const double apart = sweep_apart(s, i, place);
            double score = fmin(3 * apart, 60 + apart / 2) - 8 * sweep_covered(s, i, at_x, at_y, wide);
            for (int k = 0; k < boxes; k++)
                if (fabs(box[3 * k] - at_x) < (box[3 * k + 2] + wide) / 2 + 6 &&
                    fabs(box[3 * k + 1] - at_y) < 15)
                    score -= 200;
            if (at_y < SWEEP_TOP - 4 || at_y > SWEEP_HIGH - SWEEP_BOTTOM - 2) score -= 200;
            if (score <= best) continue;
            best = score;
            x = at_x;
            y = at_y;
        }
    box[3 * boxes] = x;
    box[3 * boxes + 1] = y;
    box[3 * boxes + 2] = wide;
    fprintf(
        f,
        "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\" font-weight=\"bold\" fill=\"%s\" stroke=\"#fff\" "
        "stroke-width=\"3\" paint-order=\"stroke\">%s</text>\n",
        x, y, sweep_colour[i % 12], text);
}

/* Returns 1 if an earlier curve coincides with curve i. The chart then has one label for both. */
static int sweep_repeated(const sweep *s, int i)
{
    int repeated = 0;

    for (int k = 0; k < i && sweep_all_ran(s, i); k++)
        repeated = repeated || (sweep_all_ran(s, k) && sweep_same(s, k, i));
    return repeated;
}

static void sweep_labels(const sweep *s, FILE *f)
{
    double box[3 * SWEEP_STRATEGIES];
    int boxes = 0;

    for (int i = 0; i < s->strategies; i++)
        if (sweep_all_ran(s, i) && !sweep_repeated(s, i)) sweep_label(s, f, i, box, boxes++);
}

static void sweep_svg(const sweep *s, FILE *f)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"100%%\" "
            "height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"8\" y=\"22\" font-size=\"15\" font-weight=\"bold\">Share of a step that workers spend "
            "computing</text>\n",
            SWEEP_WIDE, SWEEP_HIGH, SWEEP_WIDE, SWEEP_HIGH);
    for (int pct = 0; pct <= 100; pct += 20)
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" "
                "y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                SWEEP_LEFT, SWEEP_WIDE - SWEEP_RIGHT, sweep_y(pct), sweep_y(pct), SWEEP_LEFT - 6,
                sweep_y(pct) + 4, pct);
    for (int v = 0; v < s->values; v++)
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#ddd\"/>"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                sweep_x(s, v), sweep_x(s, v), SWEEP_TOP, SWEEP_HIGH - SWEEP_BOTTOM, sweep_x(s, v),
                SWEEP_HIGH - 46, s->value[v]);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
            (SWEEP_LEFT + SWEEP_WIDE - SWEEP_RIGHT) / 2, SWEEP_HIGH - 18,
            !strcmp(s->option, "--net")       ? "link of each worker: rate, delay in one direction (--net)"
            : !strcmp(s->option, "--workers") ? "number of workers (--workers)"
                                              : s->option);
    for (int i = s->strategies - 1; i >= 0; i--) { /* the first of coinciding curves is on top */
        int began = 0;
        fprintf(f, "<path fill=\"none\" stroke-width=\"2\" stroke=\"%s\"%s d=\"", sweep_colour[i % 12],
                i < 12   ? ""
                : i < 24 ? " stroke-dasharray=\"8 3\""
                         : " stroke-dasharray=\"3 3\"");
        for (int v = 0; v < s->values; v++) {
            const sweep_point *p = &s->point[i * s->values + v];
            if (p->ran)
                fprintf(f, "%s%.1f %.1f", began++ ? "L" : "M", sweep_x(s, v), sweep_y(p->utilisation));
        }
        fprintf(f, "\"/>\n");
    }
    sweep_labels(s, f);
    fprintf(f, "</svg>\n");
}

/* Runs the sweep. Each run prints its JSON object when it ends. Returns the exit code of the last run that
 * failed, or 0. */
static int sweep_main(int argc, char **argv, simulate *x)
{
    const char *csv = x->csv, *svg = x->svg;
    static sweep s;
    int code = 0, done = 0, all;

    if (!sweep_read(&s, x->sweep)) return 2;
    sweep_strategies(&s, x->p.strategy);
    all = s.strategies * s.values;
    code = simulate_read(argc, argv, s.strategy[0], s.option[0] ? s.option : NULL, s.value[0], x);
    if (code >= 0) return code; /* an error in the options is printed once, not for each run */
    code = 0;
    s.point = (sweep_point *)calloc((size_t)all, sizeof *s.point);
    if (!s.point) return 1;
    for (int v = 0; v < s.values && !cli_interrupted; v++)
        for (int i = 0; i < s.strategies && !cli_interrupted; i++) {
            const int own =
                simulate_run(argc, argv, s.strategy[i], s.option[0] ? s.option : NULL, s.value[v], x);
            fflush(stdout);
            if (own)
                code = own;
            else
                sweep_keep(x, &s.point[i * s.values + v]);
            if (++done < all && isatty(STDERR_FILENO)) fprintf(stderr, "\r%d of %d runs ", done, all);
        }
    if (all > 1 && isatty(STDERR_FILENO)) fprintf(stderr, "\r%-20s\r", "");
    if (csv && !cli_interrupted && sweep_save(&s, csv, sweep_csv)) code = 1;
    if (svg && !cli_interrupted && sweep_save(&s, svg, sweep_svg)) code = 1;
    free(s.point);
    return code;
}

#endif /* EXAMPLES_TRAIN_SWEEP_H */
