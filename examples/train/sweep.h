/* Many simulated runs: for each value of an option, and each strategy; their table and their picture. */
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

/* "workers=2,4,8" */
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
        fprintf(stderr,
                "simulate: --sweep %.60s%s has %ld values: write KEY=A,B,.. with at most %d, each of which "
                "is a run\n",
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

/* "all", one, or several with commas between them. */
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
    p->mb = r->steps > 1
                ? 1e-6 * (double)(r->step[r->steps - 1].bytes - r->step[0].bytes) / (double)(r->steps - 1)
                : 0;
    p->wall_s = x->wall_s;
}

static const char *sweep_name(const sweep *s, int i)
{
    return s->strategy[i] ? s->strategy[i] : ddp_strategy_name(ddp_strategy_number(0));
}

/* To a temporary name first. */
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

/* ---- the picture: utilisation against the values, a curve for each strategy ---- */

enum {
    SWEEP_WIDE = 960,
    SWEEP_HIGH = 460,
    SWEEP_LEFT = 60,
    SWEEP_RIGHT = 170,
    SWEEP_TOP = 30,
    SWEEP_BOTTOM = 60
};

static double sweep_x(const sweep *s, int v)
{
    const int room = SWEEP_WIDE - SWEEP_LEFT - SWEEP_RIGHT;

    return (double)SWEEP_LEFT + (s->values > 1 ? (double)room * v / (s->values - 1) : room / 2.0);
}

static double sweep_y(double pct)
{
    return (double)SWEEP_TOP + (double)(SWEEP_HIGH - SWEEP_TOP - SWEEP_BOTTOM) * (1 - pct / 100);
}

static const char *const sweep_colour[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};

static double sweep_last(const sweep *s, int i)
{
    return s->point[i * s->values + s->values - 1].utilisation;
}

/* Names at the right end, from the lowest curve up, so far apart that they can be read. */
static void sweep_labels(const sweep *s, FILE *f)
{
    double free_y = SWEEP_HIGH - SWEEP_BOTTOM + 4;
    int named[SWEEP_STRATEGIES] = {0};

    for (int done = 0; done < s->strategies; done++) {
        int least = -1;
        for (int i = 0; i < s->strategies; i++)
            if (!named[i] && (least < 0 || sweep_last(s, i) < sweep_last(s, least))) least = i;
        named[least] = 1;
        if (!s->point[least * s->values + s->values - 1].ran) continue;
        free_y = fmin(free_y, sweep_y(sweep_last(s, least)) + 4);
        fprintf(f, "<text x=\"%d\" y=\"%.0f\" fill=\"%s\">%s</text>\n", SWEEP_WIDE - SWEEP_RIGHT + 46, free_y,
                sweep_colour[least % 6], sweep_name(s, least));
        free_y -= 13;
    }
}

static void sweep_svg(const sweep *s, FILE *f)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"#fff\"/>\n",
            SWEEP_WIDE, SWEEP_HIGH, SWEEP_WIDE, SWEEP_HIGH);
    for (int pct = 0; pct <= 100; pct += 20)
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" "
                "y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                SWEEP_LEFT, SWEEP_WIDE - SWEEP_RIGHT, sweep_y(pct), sweep_y(pct), SWEEP_LEFT - 6,
                sweep_y(pct) + 4, pct);
    for (int v = 0; v < s->values; v++)
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", sweep_x(s, v),
                SWEEP_HIGH - 36, s->value[v]);
    fprintf(f,
            "<text x=\"%d\" y=\"%d\">%s</text><text x=\"8\" y=\"18\">share of the time that is "
            "computing</text>\n",
            SWEEP_LEFT, SWEEP_HIGH - 12, s->option[0] ? s->option + 2 : "");
    for (int i = 0; i < s->strategies; i++) {
        int began = 0;
        fprintf(f, "<path fill=\"none\" stroke-width=\"2\" stroke=\"%s\"%s d=\"", sweep_colour[i % 6],
                i < 6    ? ""
                : i < 12 ? " stroke-dasharray=\"8 3\""
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

/* The exit code of the worst run; each prints its object when it is over. */
static int sweep_main(int argc, char **argv, simulate *x)
{
    const char *csv = x->csv, *svg = x->svg;
    static sweep s;
    int code = 0, done = 0, all;

    if (!sweep_read(&s, x->sweep)) return 2;
    sweep_strategies(&s, x->p.strategy);
    all = s.strategies * s.values;
    code = simulate_read(argc, argv, s.strategy[0], s.option[0] ? s.option : NULL, s.value[0], x);
    if (code >= 0) return code; /* said once, not for each run */
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
