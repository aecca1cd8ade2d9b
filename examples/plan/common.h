/* Functions that the subcommands of the planner share. */
#ifndef EXAMPLES_PLAN_COMMON_H
#define EXAMPLES_PLAN_COMMON_H

#include "../common/cli.h"

/* The value of an option that was not given. It is not NaN, because -ffast-math removes the comparisons that
 * detect NaN. */
#define PLAN_NOT_GIVEN (-DBL_MAX)

static inline int plan_given(double x) { return x > PLAN_NOT_GIVEN; }

/* Formats a time: 0.000123 -> "123 us". */
static const char *plan_time(double s, char *out, size_t room)
{
    if (s >= 1)
        snprintf(out, room, "%.3g s", s);
    else if (s >= 1e-3)
        snprintf(out, room, "%.3g ms", s * 1e3);
    else
        snprintf(out, room, "%.3g us", s * 1e6);
    return out;
}

static void plan_xml(FILE *f, const char *s)
{
    for (; s && *s; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '"')
            fputs("&quot;", f);
        else if ((unsigned char)*s >= 32)
            fputc(*s, f);
    }
}

/* The shortest decimal number that reads back as v. */
static const char *plan_exact(double v, char *out, size_t room)
{
    int digits = 15;

    do snprintf(out, room, "%.*g", digits, v);
    while (digits++ < 17 && strtod(out, NULL) != v);
    return out;
}

/* Writes a temporary file and renames it, so an incomplete file never appears. Writes to a device or pipe
 * directly. Returns the exit code. */
static int plan_save(const char *path, const char *text, size_t n)
{
    size_t room = strlen(path) + 32;
    char *beside = (char *)malloc(room);
    struct stat st;
    int direct = !stat(path, &st) && !S_ISREG(st.st_mode), why = beside ? 0 : ENOMEM;
    FILE *f = NULL;

    if (beside) {
        snprintf(beside, room, direct ? "%s" : "%s.tmp.%ld", path, (long)getpid());
        f = fopen(beside, "wb");
        if (!f || fwrite(text, 1, n, f) != n) why = errno;
        if (f && fclose(f) && !why) why = errno;
        if (!direct && !why && rename(beside, path)) why = errno;
        if (!direct && why && f) remove(beside);
    }
    free(beside);
    if (why) fprintf(stderr, "plan: cannot write %s: %s\n", path, strerror(why));
    return why != 0;
}

/* The text for standard output, --json and --svg, buffered until all of it is complete. */
typedef struct plan_output {
    FILE *line, *json, *svg;
    char *text[3];
    size_t size[3];
} plan_output;

/* Returns 1, or 0 after printing an error. */
static int plan_output_open(plan_output *o, const char *program)
{
    memset(o, 0, sizeof *o);
    o->line = open_memstream(&o->text[0], &o->size[0]);
    o->json = open_memstream(&o->text[1], &o->size[1]);
    o->svg = open_memstream(&o->text[2], &o->size[2]);
    if (o->line && o->json && o->svg) return 1;
    fprintf(stderr, "%s: no memory for the result: %s\n", program, strerror(errno));
    if (o->line) fclose(o->line);
    if (o->json) fclose(o->json);
    if (o->svg) fclose(o->svg);
    free(o->text[0]);
    free(o->text[1]);
    free(o->text[2]);
    return 0;
}

/* Writes the files (NULL for none), then prints the lines. After a failure it writes nothing. Returns the
 * exit code. */
static int plan_output_close(plan_output *o, const char *program, ddp_status status, const char *json,
                             const char *svg)
{
    int bad = fclose(o->line), code = 0;

    bad |= fclose(o->json);
    bad |= fclose(o->svg);
    if (status != DDP_OK) {
        code = ddp_status_exit_code(status);
    } else {
        if (json) code = plan_save(json, o->text[1], o->size[1]);
        if (code == 0 && svg) code = plan_save(svg, o->text[2], o->size[2]);
    }
    if (status == DDP_OK && code == 0 &&
        (bad || fwrite(o->text[0], 1, o->size[0], stdout) != o->size[0] || fflush(stdout))) {
        fprintf(stderr, "%s: cannot write the result: %s\n", program, strerror(errno));
        code = 1;
    }
    free(o->text[0]);
    free(o->text[1]);
    free(o->text[2]);
    return code;
}

/* Prints an error in the command line. Returns the exit code. */
static int plan_usage(const char *program, const char *fmt, const char *what)
{
    fprintf(stderr, "%s: ", program);
    fprintf(stderr, fmt, what);
    fprintf(stderr, "; --help lists the options\n");
    return 2;
}

/* Prints an option that is out of range, with its value and its range. Returns the exit code. */
static int plan_refuse(const char *program, const char *option, double value, const char *remedy)
{
    fprintf(stderr, "%s: %s is %.15g, but must be %s; --help lists the options\n", program, option, value,
            remedy);
    return 2;
}

/* Checks a required option, a whole number. A value below 0 means that it was not given. Returns -1, or the
 * exit code. */
static int plan_count(const char *program, const char *option, const char *letter, long value, long least,
                      long most)
{
    char range[64];

    if (value >= least && value <= most) return -1;
    snprintf(range, sizeof range, "from %ld to %ld", least, most);
    if (value >= 0) return plan_refuse(program, option, (double)value, range);
    fprintf(stderr, "%s: %s %s is needed, %s; --help lists the options\n", program, option, letter, range);
    return 2;
}

#endif /* EXAMPLES_PLAN_COMMON_H */
