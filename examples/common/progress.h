/* A progress line on a FILE. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

enum { PROGRESS_LINE = 256 };

/* State of a progress line. Fill it through progress_start. One thread at a time. */
typedef struct progress {
    FILE *out;         /* borrowed, or NULL for silent */
    const char *label; /* borrowed: strategy or run name */
    long total;        /* steps */
    double every_s;    /* seconds between two lines: 0.1 on a terminal, else 10 */
    int terminal, colour;
    double start_s, shown_s, step_s; /* step_s: moving mean of the time between steps */
    double last_s;
    double tokens_per_s;
    int width; /* length of the line on the terminal */
} progress;

/* progress_start - begins a line `label step 12/100 loss 2.345 81.2 ms 6.3k tok/s ETA 7s`. On a terminal it
 * is redrawn in place at most ten times a second, in bold unless NO_COLOR is set or TERM is dumb. Otherwise a
 * plain line is printed at most every 10 s (every_s changes this) and after the last step.
 *
 * progress_step - call it after step `done` (1..total). loss NAN: unknown. tokens: tokens or images of this
 * step over all workers, 0: not shown. Does not allocate.
 *
 * progress_says - on a terminal, shows after the line why the next step takes longer, until then.
 *
 * progress_end - ends the line, so that later output starts on a new one. */
static void progress_start(progress *p, FILE *out, const char *label, long total)
{
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");

    memset(p, 0, sizeof *p);
    p->out = out;
    p->label = label ? label : "";
    p->total = total;
    p->terminal = out && isatty(fileno(out));
    p->colour = p->terminal && !(plain && *plain) && !(term && !strcmp(term, "dumb"));
    p->every_s = p->terminal ? 0.1 : 10;
    p->start_s = p->shown_s = p->last_s = ddp_now();
}

static void progress_line(const progress *p, long done, double loss, char line[PROGRESS_LINE])
{
    const double tokens = p->tokens_per_s, ms = p->step_s * 1e3, left = (double)(p->total - done) * p->step_s;
    const int thousands = tokens >= 1e4, digits = snprintf(NULL, 0, "%ld", p->total);
    const long s = left < 3e8 ? lround(left) : 0;
    size_t n =
        (size_t)snprintf(line, PROGRESS_LINE, "%-11.30sstep %*ld/%ld", p->label, digits, done, p->total);

    if (loss >= -DBL_MAX && loss <= DBL_MAX)
        n += (size_t)snprintf(line + n, PROGRESS_LINE - n, "  loss %#.4g", loss);
    n += (size_t)snprintf(line + n, PROGRESS_LINE - n, "  %.*f ms/step", ms < 10 ? 2 : 1, ms);
    if (tokens > 0)
        n += (size_t)snprintf(line + n, PROGRESS_LINE - n, thousands ? "  %.1fk tok/s" : "  %.0f tok/s",
                              thousands ? tokens / 1e3 : tokens);
    if (done >= p->total) return;
    if (!(left < 3e8))
        snprintf(line + n, PROGRESS_LINE - n, "  ETA ?");
    else if (s < 60)
        snprintf(line + n, PROGRESS_LINE - n, "  ETA %lds", s);
    else if (s < 3600)
        snprintf(line + n, PROGRESS_LINE - n, "  ETA %ldm%02lds", s / 60, s % 60);
    else
        snprintf(line + n, PROGRESS_LINE - n, "  ETA %ldh%02ldm", s / 3600, s / 60 % 60);
}

static void progress_step(progress *p, long done, double loss, double tokens)
{
    char line[PROGRESS_LINE];
    double now = ddp_now(), took = now - p->last_s, keep;
    int n;

    if (!p->out) return;
    /* the mean forgets with a horizon of about 20 steps, and starts as a plain mean */
    keep = done < 20 ? 1 - 1 / (double)(done > 0 ? done : 1) : 0.95;
    p->step_s = keep * p->step_s + (1 - keep) * took;
    p->last_s = now;
    p->tokens_per_s = tokens > 0 && p->step_s > 0 ? tokens / p->step_s : 0;
    if (done < p->total && now - p->shown_s < p->every_s) return;
    p->shown_s = now;
    progress_line(p, done, loss, line);
    n = (int)strlen(line);
    if (p->terminal)
        fprintf(p->out, "\r%s%s%s%*s", p->colour ? "\033[1m" : "", line, p->colour ? "\033[0m" : "",
                p->width > n ? p->width - n : 0, "");
    else
        fprintf(p->out, "%s\n", line);
    p->width = n;
    fflush(p->out);
}

static inline void progress_says(progress *p, const char *why)
{
    if (!p->out || !p->terminal) return;
    fprintf(p->out, "  %s", why);
    fflush(p->out);
    p->width += 2 + (int)strlen(why);
}

static void progress_end(progress *p)
{
    if (p->out && p->terminal && p->width) fprintf(p->out, "\n");
    p->width = 0;
}

#endif /* EXAMPLES_PROGRESS_H */
