/* Command lines of the programs: one table gives parsing, --help and the messages for mistakes. */
#ifndef EXAMPLES_CLI_H
#define EXAMPLES_CLI_H

#include <ctype.h>
#include <signal.h>

#include "nearest.h"

/* CLI_SETTING: a field of the ddp_config at out. The option is named after the field's variable: --outer-lr
 * is DREAMDDP_OUTER_LR. The library's table has its range, its default and its help.
 * CLI_GROUP: a heading of --help. The rows below it belong to it, except settings. */
typedef enum cli_kind { CLI_FLAG, CLI_COUNT, CLI_REAL, CLI_TEXT, CLI_SETTING, CLI_GROUP } cli_kind;

typedef struct cli_option {
    const char *name; /* "--steps", or the title of a group */
    cli_kind kind;
    void *out;         /* int *, long *, double *, const char **, ddp_config * */
    const char *value; /* "N", shown in --help. "" makes a setting a flag */
    const char *help;
} cli_option;

enum { CLI_MOST = 192, CLI_LARGEST = 2000000000 }; /* rows of a table, the largest whole number */

/* Wraps a long text. Continuation lines start in the column of the text. */
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

/* out->variable is NULL if the option is not named after a variable. */
static void cli_setting(const char *option, ddp_setting *out)
{
    int i = 0;

    while (ddp_config_describe(NULL, i, out) && !(out->variable && cli_same(option, out->variable))) i++;
}

/* The title of the group of a setting: its chapter of the configuration. */
static const char *cli_chapter(const char *chapter)
{
    static const char *const titles[][2] = {
        {"core", "Strategy"},   {"average", "Average"}, {"plan", "Plan"},         {"gradient", "Gradient"},
        {"deft", "DeFT"},       {"server", "Server"},   {"osp", "OSP"},           {"outer", "Outer"},
        {"timeout", "Timeout"}, {"elastic", "Elastic"}, {"security", "Security"}, {"network", "Network"},
        {"device", "Device"},   {"debug", "Debug"},     {"choice", "Choice"}};

    for (size_t i = 0; chapter && i < sizeof titles / sizeof titles[0]; i++)
        if (!strcmp(titles[i][0], chapter)) return titles[i][1];
    return "Strategy";
}

/* Returns the row of an option, or count. */
static int cli_find(const cli_option *table, int count, const char *name, size_t n)
{
    int k = 0;

    while (k < count && (table[k].kind == CLI_GROUP || strncmp(table[k].name, name, n) || table[k].name[n]))
        k++;
    return k;
}

/* Prints the settings for which the program has no option. */
static void cli_variables(const cli_option *table, int count)
{
    ddp_setting setting;
    char text[2000] = "Settings without an option:";
    int i, k;

    for (i = 0; ddp_config_describe(NULL, i, &setting); i++) {
        for (k = 0; setting.variable && k < count;) {
            if (table[k].kind != CLI_GROUP && cli_same(table[k].name, setting.variable)) break;
            k++;
        }
        if (setting.variable && k == count)
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s", setting.variable + 9);
    }
    printf("\nA setting is also an environment variable: --period is DREAMDDP_PERIOD "
           "(docs/reference/settings.md).\nAn "
           "option overrides the variable of the same setting.\n"
           "  %-27s ",
           "DREAMDDP_...");
    cli_wrap(text);
}

static void cli_help_row(const cli_option *o)
{
    ddp_setting setting;
    char text[700];

    printf("  %s %-*s ", o->name, 26 - (int)strlen(o->name), o->value);
    if (o->kind == CLI_SETTING) {
        cli_setting(o->name, &setting);
        if (!strcmp(setting.values, "text"))
            snprintf(text, sizeof text, "%s [%s]", setting.help, setting.preset);
        else if (!*o->value)
            snprintf(text, sizeof text, "%s", setting.help);
        else
            snprintf(text, sizeof text, "%s; %s [%s]", setting.help, setting.values, setting.preset);
    }
    cli_wrap(o->kind == CLI_SETTING ? text : o->help);
}

/* Returns the index of a title in titles, and appends it if it is new. */
static int cli_title(const char **titles, int *count, const char *title)
{
    int i = 0;

    while (i < *count && strcmp(titles[i], title)) i++;
    if (i == *count) titles[(*count)++] = title;
    return i;
}

/* Groups are printed in the order of their first mention in the table. Empty groups are not printed. */
static void cli_help(const char *program, const char *about, const cli_option *table, int count)
{
    const char *titles[CLI_MOST + 1];
    int group[CLI_MOST], groups = 0, current = 0, rows = 0, i, g;
    ddp_setting setting;

    if (count > CLI_MOST) count = CLI_MOST;
    for (i = 0; i < count; i++) {
        group[i] = -1;
        if (table[i].kind == CLI_GROUP) {
            current = cli_title(titles, &groups, table[i].name);
        } else if (cli_find(table, i, table[i].name, strlen(table[i].name)) == i) {
            if (!groups) current = cli_title(titles, &groups, "Options");
            group[i] = current;
            if (table[i].kind != CLI_SETTING) continue;
            cli_setting(table[i].name, &setting);
            group[i] = cli_title(titles, &groups, cli_chapter(setting.chapter));
        } /* else the program's own option replaces a shared one */
    }
    printf("usage: %s [options]\n%s\n", program, about);
    for (g = 0; g < groups; g++) {
        for (i = rows = 0; i < count; i++) {
            if (group[i] != g) continue;
            if (!rows++) printf("\n%s:\n", titles[g]);
            cli_help_row(&table[i]);
        }
    }
    if (groups != 1) printf("\nHelp:\n");
    printf("  --version                   print the version of the library\n"
           "  --help                      print this text\n");
    if (cli_find(table, count, "--strategy", 10) < count) cli_variables(table, count);
    printf("\nAn option and its value are two words or one: --option VALUE or --option=VALUE.\n"
           "exit codes: 0 ok, 1 failure, 2 usage, 3 a peer was lost, 130 interrupted (SIGINT, SIGTERM)\n");
}

static int cli_unknown(const char *program, const char *word, size_t n, const cli_option *table, int count)
{
    nearest_name found;
    char given[64];
    int i;

    snprintf(given, sizeof given, "%.*s", (int)(n < 60 ? n : 60), word);
    found = nearest_begin(given);
    for (i = 0; i < count; i++)
        if (table[i].kind != CLI_GROUP) nearest_consider(&found, given, table[i].name);
    nearest_consider(&found, given, "--version");
    nearest_consider(&found, given, "--help");
    fprintf(stderr, "%s: %s %s; %s%s%s--help lists all\n", program,
            *word == '-' ? "unknown option" : "unexpected argument", given, found.name ? "did you mean " : "",
            found.name ? found.name : "", found.name ? "? " : "");
    return 2;
}

/* strtod also reads hexadecimal numbers, "inf" and "nan". *end: the end of the number. */
static int cli_begins_number(const char *s, double *out, const char **end)
{
    char *stop = NULL;

    if (!s || !strchr("+-.0123456789", *s) || s[strspn(s, "+-.0")] == 'x' || s[strspn(s, "+-.0")] == 'X')
        return 0;
    *out = strtod(s, &stop);
    *end = stop;
    return stop > s && *out >= -DBL_MAX && *out <= DBL_MAX;
}

static int cli_number(const char *s, double *out)
{
    const char *end;

    return cli_begins_number(s, out, &end) && !*end;
}

static int cli_whole(const char *s, long *out)
{
    if (!*s || s[strspn(s, "0123456789")] || strlen(s) > 10) return 0;
    *out = strtol(s, NULL, 10);
    return *out <= CLI_LARGEST;
}

/* "0,01" -> "0.01", "5.0" -> "5". 0 means that the text is something else. */
static int cli_repair(const char *text, char *out, size_t room)
{
    const char *comma = strchr(text, ',');
    double v;

    if (!comma && cli_number(text, &v) && fabs(v) <= (double)CLI_LARGEST && v == (double)(long)v)
        return snprintf(out, room, "%ld", (long)v) > 0;
    if (!comma || strlen(text) >= room) return 0;
    snprintf(out, room, "%s", text);
    out[comma - text] = '.';
    return cli_number(out, &v);
}

static int cli_wrong_number(const char *program, const cli_option *o, const char *text)
{
    const char *end = "";
    char kind[48] = "number", fixed[64];
    double v;

    if (o->kind == CLI_COUNT) snprintf(kind, sizeof kind, "whole number from 0 to %d", (int)CLI_LARGEST);
    fprintf(stderr, "%s: %s %s is not a %s", program, o->name, text, kind);
    if (cli_repair(text, fixed, sizeof fixed) &&
        (o->kind != CLI_COUNT || !fixed[strspn(fixed, "0123456789")]))
        fprintf(stderr, "; write %s %s\n", o->name, fixed);
    else if (cli_begins_number(text, &v, &end) && *end)
        fprintf(stderr, ": remove \"%s\"; %s %s: %s\n", end, o->name, o->value, o->help);
    else
        fprintf(stderr, "; %s %s: %s\n", o->name, o->value, o->help);
    return 0;
}

static int cli_store_setting(const char *program, const cli_option *o, const char *value)
{
    ddp_config trial = *(const ddp_config *)o->out;
    ddp_setting setting;
    ddp_error err;
    char fixed[64];

    cli_setting(o->name, &setting);
    if (ddp_config_set((ddp_config *)o->out, setting.field, value, &err) == DDP_OK) return 1;
    if (cli_repair(value, fixed, sizeof fixed) &&
        ddp_config_set(&trial, setting.field, fixed, NULL) == DDP_OK)
        fprintf(stderr, "%s: %s %s is not a %s; write %s %s\n", program, o->name, value,
                strchr(fixed, '.') ? "number" : "whole number", o->name, fixed);
    else
        fprintf(stderr, "%s: %s %s\n", program, o->name,
                err.msg + strlen(setting.field) + 1); /* the text after "outer_lr=" */
    return 0;
}

static int cli_store(const char *program, const cli_option *o, const char *value)
{
    double v;
    long n;

    if (o->kind == CLI_SETTING) return cli_store_setting(program, o, value);
    if (o->kind == CLI_TEXT) {
        *(const char **)o->out = value;
    } else if (o->kind == CLI_COUNT) {
        if (!cli_whole(value, &n)) return cli_wrong_number(program, o, value);
        *(long *)o->out = n;
    } else {
        if (!cli_number(value, &v)) return cli_wrong_number(program, o, value);
        *(double *)o->out = v;
    }
    return 1;
}

/* The library fills fields that are zero from the environment, so an option with the value 0 overrides its
 * variable here. Ranks and addresses are exempt: launchers set them together, and the programs compare
 * them. */
static void cli_override_variable(const char *option)
{
    ddp_setting setting;

    cli_setting(option, &setting);
    if (setting.field && strcmp(setting.field, "rank") && strcmp(setting.field, "addr"))
        (void)unsetenv(setting.variable);
}

/* Returns the value of an option, or NULL after a message. *i: the argument of the option. The value follows
 * '=' in it, or is the next argument. */
static const char *cli_value(const char *program, int argc, char **argv, int *i, const cli_option *table,
                             int count, const cli_option *o)
{
    const char *equal = strchr(argv[*i], '='), *value = equal ? equal + 1 : NULL;

    if (!equal && *i + 1 < argc) {
        value = argv[++*i];
        if (cli_find(table, count, value, strlen(value)) < count) {
            fprintf(stderr, "%s: %s needs a value, but the option %s follows; write %s %s\n", program,
                    o->name, value, o->name, o->value);
            return NULL;
        }
    }
    if (value && *value) return value;
    fprintf(stderr, "%s: %s needs a value%s: write %s %s\n", program, o->name,
            value ? ", but it is empty" : "", o->name, o->value);
    return NULL;
}

static int cli_no_value(const char *program, const char *word, size_t n)
{
    fprintf(stderr, "%s: %.*s takes no value; write %.*s without %s\n", program, (int)n, word, (int)n, word,
            word + n);
    return 2;
}

/* Fills the table's variables. Returns -1 to continue, else the program's exit code. */
static inline int cli_parse(int argc, char **argv, const char *about, const cli_option *table, int count)
{
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    int i, k;

    for (i = 1; i < argc; i++) {
        const char *word = argv[i], *value = "1";
        const size_t n = strcspn(word, "=");
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            cli_help(program, about, table, count);
            return 0;
        }
        if (!strcmp(word, "--version")) {
            printf("%s of dreamddp %s\n", program, DDP_VERSION_STRING);
            return 0;
        }
        if (!strncmp(word, "--help=", 7) || !strncmp(word, "--version=", 10))
            return cli_no_value(program, word, n);
        k = cli_find(table, count, word, n);
        if (k == count) return cli_unknown(program, word, n, table, count);
        if (table[k].kind != CLI_FLAG && *table[k].value) {
            value = cli_value(program, argc, argv, &i, table, count, &table[k]);
            if (!value) return 2;
        } else if (word[n]) {
            return cli_no_value(program, word, n);
        }
        if (table[k].kind == CLI_FLAG)
            *(int *)table[k].out = 1;
        else if (!cli_store(program, &table[k], value))
            return 2;
        cli_override_variable(table[k].name);
    }
    return -1;
}

typedef struct cli_range {
    const char *option;
    double value, least, most; /* least DBL_MIN means above 0, and most 0 means no limit */
} cli_range;

/* Writes a message about the first value outside its range. Returns 0 if all are in range. */
static inline int cli_out_of_range(const cli_range *r, size_t count, char *out, size_t room)
{
    size_t i, n;

    for (i = 0; i < count && r[i].value >= r[i].least && !(r[i].most > 0 && r[i].value > r[i].most);) i++;
    if (i == count) return 0;
    n = (size_t)snprintf(out, room, "%s %.10g: choose a number ", r[i].option, r[i].value);
    if (n >= room) return 1;
    if (r[i].most > 0)
        snprintf(out + n, room - n, "from %.10g to %.10g", r[i].least, r[i].most);
    else if (r[i].least > 0 && r[i].least < 1e-300)
        snprintf(out + n, room - n, "above 0");
    else
        snprintf(out + n, room - n, "of at least %.10g", r[i].least);
    return 1;
}

/* The command line as one string, for reports, truncated to room bytes. */
static inline void cli_command(int argc, char **argv, char *out, size_t room)
{
    size_t at = 0;
    int i;

    out[0] = 0;
    for (i = 0; i < argc && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%s", i ? " " : "", argv[i]);
}

/* Ctrl-C and SIGTERM: set by the handler, read between steps and by ddp_launch. Both end a run, but in an
 * elastic world SIGTERM ends only the worker that receives it. */
enum { CLI_CTRL_C = 1, CLI_TERMINATED };
static volatile int cli_interrupted;

static void cli_on_signal(int number)
{
    if (number != SIGTERM || !cli_interrupted)
        cli_interrupted = number == SIGTERM ? CLI_TERMINATED : CLI_CTRL_C;
}

/* A closed pipe and a file that is too large become errors of write(2) and do not kill the program. */
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
