/* What the subcommands of the planner share. */
#ifndef EXAMPLES_PLAN_COMMON_H
#define EXAMPLES_PLAN_COMMON_H

/* 0.000123 -> "123 us" */
static const char *plan_time(double s, char *out, size_t room)
{
    if (s >= 1) snprintf(out, room, "%.3g s", s);
    else if (s >= 1e-3) snprintf(out, room, "%.3g ms", s * 1e3);
    else snprintf(out, room, "%.3g us", s * 1e6);
    return out;
}

static void plan_xml(FILE *f, const char *s)
{
    for (; s && *s; s++) {
        if (*s == '<') fputs("&lt;", f);
        else if (*s == '&') fputs("&amp;", f);
        else if (*s == '"') fputs("&quot;", f);
        else if ((unsigned char)*s >= 32) fputc(*s, f);
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

/* A whole file or none: written beside its name, then renamed. Returns the exit code. */
static int plan_save(const char *path, const char *text, size_t n)
{
    ddp_error err;

    if (ddp__file_write(path, text, n, &err) == DDP_OK) return 0;
    fprintf(stderr, "plan: %s\n", err.msg);
    return 1;
}

#endif /* EXAMPLES_PLAN_COMMON_H */
