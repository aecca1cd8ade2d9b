/* Command lines of the programs: one table gives parsing, --help and the sentences for mistakes. */
#ifndef EXAMPLES_CLI_H
#define EXAMPLES_CLI_H

#include <ctype.h>
#include <signal.h>

/* CLI_SETTING: a field of the ddp_config at out, which is called as its variable: --outer-lr,
 * DREAMDDP_OUTER_LR. The library's table says what it may be, and its help. */
typedef enum cli_kind { CLI_FLAG, CLI_COUNT, CLI_REAL, CLI_TEXT, CLI_SETTING } cli_kind;

typedef struct cli_option {
    const char *name; /* "--steps" */
    cli_kind kind;
    void *out;         /* int *, long *, double *, const char **, ddp_config * */
    const char *value; /* "N", shown in --help; "" of a setting: it is a flag */
    const char *help;
} cli_option;

/* A long text goes on in the column in which it began. */
static void cli_wrap(const char *text)
{
    enum { COLUMN = 30, WIDTH = 88 };
    const char *end;

    for (; strlen(text) > WIDTH; text = end + 1) {
        for (end = text + WIDTH; end > text && *end != ' ';) end--;
        if (end == text) break;
        printf("%.*s\n%*s", (int)(end - text), text, COLUMN, "");
    }
    printf("%s\n", text);
}

/* --outer-lr is DREAMDDP_OUTER_LR. */
static int cli_same(const char *option, const char *variable)
{
    const char *a = option + 2, *b = variable + 9;

    for (; *a || *b; a++, b++) {
        while (*a == '-') a++;
        while (*b == '_') b++;
        if (toupper((unsigned char)*a) != *b || !*b) break;
    }
    return !*a && !*b;
}

static void cli_setting(const char *option, ddp_setting *out)
{
    int i = 0;

    while (ddp_config_describe(NULL, i, out) && !(out->variable && cli_same(option, out->variable))) i++;
}

/* The settings that a program has no option for. */
static void cli_variables(const cli_option *table, int count)
{
    ddp_setting setting;
    char text[2000] = "of what has no option:";
    int i, k;

    for (i = 0; ddp_config_describe(NULL, i, &setting); i++) {
        for (k = 0; setting.variable && k < count && !cli_same(table[k].name, setting.variable);) k++;
        if (setting.variable && k == count)
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s", setting.variable + 9);
    }
    printf("\nvariables (docs/settings.md) say what no option does: DREAMDDP_PERIOD what --period would, and "
           "so on\n"
           "  %-27s ",
           "DREAMDDP_...");
    cli_wrap(text);
}

static void cli_help(const char *program, const char *about, const cli_option *table, int count)
{
    ddp_setting setting;
    char text[700];
    int i;

    memset(&setting, 0, sizeof setting);
    printf("usage: %s [options]\n%s\n\noptions:\n", program, about);
    for (i = 0; i < count; i++) {
        printf("  %s %-*s ", table[i].name, 26 - (int)strlen(table[i].name), table[i].value);
        if (table[i].kind == CLI_SETTING) {
            cli_setting(table[i].name, &setting);
            if (!strcmp(setting.values, "text"))
                snprintf(text, sizeof text, "%s [%s]", setting.help, setting.preset);
            else if (!*table[i].value)
                snprintf(text, sizeof text, "%s", setting.help);
            else
                snprintf(text, sizeof text, "%s; %s [%s]", setting.help, setting.values, setting.preset);
        }
        cli_wrap(table[i].kind == CLI_SETTING ? text : table[i].help);
    }
    printf("  --version                   the library's version\n"
           "  --help                      this text\n");
    if (setting.field) cli_variables(table, count);
    printf("\nexit codes: 0 ok, 1 failure, 2 usage, 3 a peer was lost, 130 interrupted (SIGINT, "
           "SIGTERM)\n");
}

/* The known option that shares most leading characters with a mistyped one, at least half of its
 * name; NULL where none does. */
static const char *cli_nearest(const char *given, const cli_option *table, int count)
{
    const char *best = NULL;
    size_t most = strlen(given) / 2;
    int i;

    for (i = 0; i < count; i++) {
        size_t n = 0;
        while (given[n] && given[n] == table[i].name[n]) n++;
        if (n > most) {
            most = n;
            best = table[i].name;
        }
    }
    return best;
}

static int cli_number(const char *s, double *out)
{
    char *end;

    if (!s || !*s) return 0;
    *out = strtod(s, &end);
    return !*end && *out >= -DBL_MAX && *out <= DBL_MAX;
}

static int cli_store(const char *program, const cli_option *o, const char *value)
{
    ddp_setting setting;
    ddp_error err;
    double v;

    if (o->kind == CLI_SETTING) {
        cli_setting(o->name, &setting);
        if (ddp_config_set((ddp_config *)o->out, setting.field, value, &err) == DDP_OK) return 1;
        fprintf(stderr, "%s: %s %s\n", program, o->name,
                err.msg + strlen(setting.field) + 1); /* behind "outer_lr=" */
        return 0;
    }
    if (o->kind == CLI_TEXT) {
        *(const char **)o->out = value;
        return 1;
    }
    if (!cli_number(value, &v) || (o->kind == CLI_COUNT && (v < 0 || v > 2e9 || v != (double)(long)v))) {
        fprintf(stderr, "%s: %s %s is not a %s; it means: %s\n", program, o->name, value,
                o->kind == CLI_COUNT ? "whole number from 0 to 2e9" : "number", o->help);
        return 0;
    }
    if (o->kind == CLI_COUNT)
        *(long *)o->out = (long)v;
    else
        *(double *)o->out = v;
    return 1;
}

/* Fills the table's variables. Returns -1 to go on, else the program's exit code. */
static inline int cli_parse(int argc, char **argv, const char *about, const cli_option *table, int count)
{
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    int i, k;

    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            cli_help(program, about, table, count);
            return 0;
        }
        if (!strcmp(argv[i], "--version")) {
            printf("%s of dreamddp %s\n", program, DDP_VERSION_STRING);
            return 0;
        }
        for (k = 0; k < count && strcmp(argv[i], table[k].name); k++) {
        }
        if (k == count) {
            const char *nearest = cli_nearest(argv[i], table, count);
            fprintf(stderr, "%s: unknown option %s; %s%s%s--help lists them all\n", program, argv[i],
                    nearest ? "did you mean " : "", nearest ? nearest : "", nearest ? "? " : "");
            return 2;
        }
        if (table[k].kind == CLI_FLAG) {
            *(int *)table[k].out = 1;
            continue;
        }
        if (table[k].kind == CLI_SETTING && !*table[k].value) {
            (void)cli_store(program, &table[k], "1");
            continue;
        }
        if (++i == argc) {
            fprintf(stderr, "%s: %s needs a value: %s %s\n", program, table[k].name, table[k].name,
                    table[k].value);
            return 2;
        }
        if (!cli_store(program, &table[k], argv[i])) return 2;
    }
    return -1;
}

/* The whole command line in one string, for reports; cut where there is no more room. */
static inline void cli_command(int argc, char **argv, char *out, size_t room)
{
    size_t at = 0;
    int i;

    out[0] = 0;
    for (i = 0; i < argc && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%s", i ? " " : "", argv[i]);
}

/* Ctrl-C and SIGTERM: set by the handler, looked at between steps and by ddp_launch. Both end a
 * run, but SIGTERM a worker of an elastic world alone. */
enum { CLI_CTRL_C = 1, CLI_TERMINATED };
static volatile int cli_interrupted;

static void cli_on_signal(int number)
{
    if (number != SIGTERM || !cli_interrupted)
        cli_interrupted = number == SIGTERM ? CLI_TERMINATED : CLI_CTRL_C;
}

/* Also makes a closed pipe and a file that is too large errors of write(2): a sentence, not a
 * killed program. */
static inline void cli_catch_interrupt(void)
{
    struct sigaction a;

    memset(&a, 0, sizeof a);
    a.sa_handler = cli_on_signal;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
    sigaction(SIGXFSZ, &a, NULL);
}

#endif /* EXAMPLES_CLI_H */
