/* plan speed: fits the fraction of its peak that a device reaches to measured operators. */
#ifndef EXAMPLES_PLAN_SPEED_H
#define EXAMPLES_PLAN_SPEED_H

#include "common.h"

typedef struct speed_samples {
    double *flops, *seconds;
    int n;
} speed_samples;

/* Reads the next line without its end, which is LF, CRLF or CR. Returns 0 at the end of the file. */
static int speed_line(FILE *f, char *text, size_t room)
{
    size_t n = 0;
    int c, next;

    while ((c = getc(f)) != EOF && c != '\n' && c != '\r' && n + 1 < room) text[n++] = (char)c;
    text[n] = 0;
    if (c == '\r' && (next = getc(f)) != '\n' && next != EOF) ungetc(next, f);
    return n > 0 || c != EOF;
}

/* Reads the samples of a CSV file with lines `flops,seconds` and an optional header line. Returns 1, or 0
 * after printing an error. */
static int speed_read(const char *path, speed_samples *s)
{
    FILE *f = fopen(path, "r");
    char text[256], *end;
    int line = 0, room = 0, good = f != NULL;

    memset(s, 0, sizeof *s);
    if (!f) fprintf(stderr, "plan speed: cannot open %s: %s\n", path, strerror(errno));
    while (good && speed_line(f, text, sizeof text)) {
        const char *from =
            text + (line == 0 && !strncmp(text, "\xef\xbb\xbf", 3) ? 3 : 0); /* a byte order mark */
        double flops = strtod(from, &end), seconds = PLAN_NOT_GIVEN;
        if (end != from && *end == ',') seconds = strtod(end + 1, &end);
        end += strspn(end, " \t");
        if (++line == 1 && !plan_given(seconds) && strchr(text, ',')) continue;
        if (!plan_given(seconds) || *end) {
            fprintf(stderr, "plan speed: %s, line %d: '%.60s' is not flops,seconds\n", path, line, text);
            good = 0;
        } else if (s->n == room) {
            room = 2 * room + 64;
            s->flops = (double *)realloc(s->flops, (size_t)room * sizeof *s->flops);
            s->seconds = (double *)realloc(s->seconds, (size_t)room * sizeof *s->seconds);
            if (!s->flops || !s->seconds) {
                fprintf(stderr, "plan speed: no memory for %d samples\n", room);
                good = 0;
            }
        }
        if (good) {
            s->flops[s->n] = flops;
            s->seconds[s->n++] = seconds;
        }
    }
    if (f) fclose(f);
    return good;
}

static void speed_json(FILE *f, const speed_samples *s, double peak, double lambda, int event)
{
    char t[2][32];

    fprintf(f, "{%s\"lambda\": %s, \"tflops\": %s, \"samples\": %d}\n", event ? "\"event\": \"plan\", " : "",
            plan_exact(lambda, t[0], sizeof t[0]), plan_exact(lambda * peak, t[1], sizeof t[1]), s->n);
}

static int speed_print(const speed_samples *s, double peak, double lambda, const char *json)
{
    plan_output out;

    if (!plan_output_open(&out, "plan speed")) return 1;
    speed_json(out.line, s, peak, lambda, 0);
    speed_json(out.json, s, peak, lambda, 1);
    return plan_output_close(&out, "plan speed", DDP_OK, json, NULL);
}

static int plan_speed(int argc, char **argv)
{
    static const char about[] =
        "Fits lambda, the fraction of its peak that a device reaches, to measured operators (least\n"
        "squares). Also prints \"tflops\" = lambda x peak, for the network file of `plan fence`.";
    const char *samples = NULL, *json = NULL;
    double peak = PLAN_NOT_GIVEN, lambda;
    const cli_option table[] = {
        {"--samples", CLI_TEXT, &samples, "S.csv", "lines of flops,seconds, one for each operator"},
        {"--peak-tflops", CLI_REAL, &peak, "X", "peak rate of the device"},
        {"--json", CLI_TEXT, &json, "FILE", "file for the JSON line, which is also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    ddp_status status;
    speed_samples s;
    ddp_error err;

    if (code >= 0) return code;
    if (!samples) return plan_usage("plan speed", "%s is needed", "--samples S.csv");
    if (!plan_given(peak)) return plan_usage("plan speed", "%s is needed, above 0", "--peak-tflops X");
    if (!(peak > 0)) return plan_refuse("plan speed", "--peak-tflops", peak, "above 0");
    code = speed_read(samples, &s) ? 0 : 1;
    if (code == 0) {
        status = ddp_speed_fit(s.flops, s.seconds, s.n, peak * 1e12, &lambda, &err);
        if (status != DDP_OK) fprintf(stderr, "plan speed: %s: %s\n", samples, err.msg);
        code = status == DDP_OK ? speed_print(&s, peak, lambda, json) : ddp_status_exit_code(status);
    }
    free(s.flops);
    free(s.seconds);
    return code;
}

#endif /* EXAMPLES_PLAN_SPEED_H */
