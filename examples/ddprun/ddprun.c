/* Starts the workers of a program that uses the library, on this machine or on others, and stops all of them
 * when one fails.
 *
 *   cc -O2 examples/ddprun/ddprun.c -o ddprun
 *   ./ddprun -n 4 --net 100mbit,20ms --strategy dreamddp ./program its arguments
 *
 * Includes no header of the library. The workers receive their ranks in the DREAMDDP_ variables of
 * docs/howto/launch.md and in the variables of torchrun. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/nearest.h"

enum {
    MOST = 1024,
    LINE = 8192,
    HOSTS = 1024,
    SETS = 64,
    WORDS = 64,
    CHUNK = 512,
    PORT = 29500,
    LAST_PORT = 65535
};

static const char *const help =
    "usage: ddprun -n N [options] [--] PROGRAM [ARGUMENTS]\n"
    "Starts N workers of PROGRAM, sets the DREAMDDP_ variables of each and those of torchrun (RANK, "
    "WORLD_SIZE, LOCAL_RANK,\n"
    "LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), prefixes their output with [rank], forwards signals, "
    "and ends all\n"
    "workers when one fails. Rank 0 reads the standard input.\n\n"
    "Workers:\n"
    "  -n N               number of workers [with --hosts: all slots]\n"
    "  --min-world N      smallest number of workers with which the run continues when others fail\n"
    "                     (DREAMDDP_MIN_WORLD)\n\n"
    "Settings:\n"
    "  --net SPEC         emulated link of each worker: 100mbit,20ms, or a topology FILE.json "
    "(DREAMDDP_NET)\n"
    "  --strategy NAME    ssgd, wfbp, localsgd, enp, dreamddp, diloco.. (DREAMDDP_STRATEGY)\n"
    "  --period H         steps in which each layer is averaged once (DREAMDDP_PERIOD)\n"
    "  --set NAME=VALUE   variable of all workers, such as DREAMDDP_WIRE=int8 or OMP_NUM_THREADS=2; may be "
    "repeated\n\n"
    "Hosts:\n"
    "  --hosts FILE       file with one host per line: [USER@]HOST [slots=N]; starts the workers there with "
    "ssh, in the\n"
    "                     current folder; rank 0 runs on the first host\n"
    "  --port P           with --hosts: port of rank 0 [29500]\n"
    "  --ssh COMMAND      command to run in place of ssh, with options, such as \"ssh -F config\" [ssh]\n\n"
    "Output:\n"
    "  --no-prefix        print the output of the workers without their ranks\n"
    "  --quiet            print no summary, and no warning if no worker uses the library\n"
    "  --help             print this text\n\n"
    "Write an option and its value as two words or as one: --port 29600 or --port=29600. The values of "
    "DREAMDDP_ADDR,\n"
    "DREAMDDP_RUN_ID, MASTER_ADDR and MASTER_PORT in --set or in the environment have priority over "
    "ddprun's.\n\n"
    "exit codes: 0 if all workers succeed, or with --min-world the N or more that remain;\n"
    "else the code of the first worker that fails (128 + its signal); 2 usage error;\n"
    "126 PROGRAM cannot be executed; 127 PROGRAM is not found\n";

/* Options with a value, named as in the help, then options without one. */
static const char *const known[][2] = {{"-n", "N"},           {"--net", "SPEC"},       {"--strategy", "NAME"},
                                       {"--period", "H"},     {"--set", "NAME=VALUE"}, {"--min-world", "N"},
                                       {"--hosts", "FILE"},   {"--port", "P"},         {"--ssh", "COMMAND"},
                                       {"--no-prefix", NULL}, {"--quiet", NULL},       {"--help", NULL}};
enum { OPTIONS = sizeof known / sizeof known[0] };

/* The script that ssh runs on a host: sh -c REMOTE ddprun FOLDER COMMAND... It needs only a POSIX shell. sshd
 * gives each command its own process group, so a signal to group 0 reaches the worker and its child
 * processes.
 *
 * The standard input is a channel from ddprun, with one command per line:
 *     INT, TERM, ...   send this signal to the group
 *     =TEXT            write TEXT, in the form of printf %b, to the input of the worker
 *     .                end the input of the worker
 * When the channel ends, because ddprun or the connection has ended, the group receives SIGTERM, and SIGKILL
 * 5 s later.
 *
 * The script is a pipeline of three parts. The first part reads the channel. The second part writes the
 * worker's input. Only this part blocks while the worker does not read. The third part runs the worker and
 * returns its exit status.
 *
 * The script writes RECEIVED to the standard error before it starts the worker, and again after it has
 * written a line of input. ddprun sends signals after the first RECEIVED, and one line of input after each.
 * All parts survive the signals that they forward. A signal before the worker has started ends the third part
 * with 143 (b is empty, or $? is still 143). */
#define RECEIVED "\001ddprun\n"
static const char *const remote =
    "cd \"$1\" || exit 127; shift; exec 3<&0 4>&2 2>/dev/null; trap : HUP INT TERM USR1 USR2; "
    "{ trap \"\" HUP INT TERM USR1 USR2 PIPE; sh -c \"echo \\$PPID\"; "
    "while read -r l <&3; do case $l in =* | .) printf \"%s\\n\" \"$l\";; *) kill -s \"$l\" 0;; esac; done; "
    "kill -s TERM 0; for l in 1 2 3 4 5; do sleep 1; done; kill -s KILL 0; } | "
    "{ trap \"\" HUP INT TERM USR1 USR2; read -r c; echo \"$c\"; "
    "while read -r l && [ \"$l\" != . ]; do printf %b \"${l#=}\"; printf \"\\001ddprun\\n\" >&4; done; } | "
    "{ finish() { trap \"\" HUP INT TERM USR1 USR2; kill -s KILL \"$c\"; [ \"$b\" ] && exit \"$1\"; exit "
    "143; }; "
    "trap \"finish \\$?\" HUP INT TERM USR1 USR2; read -r c; b=1$(printf \"\\001ddprun\\n\" >&4; exit 143); "
    "(exec \"$@\" 2>&4 3<&- 4>&-); finish $?; }";

typedef struct host {
    char *target;  /* [USER@]HOST for ssh */
    char *address; /* HOST, an IPv6 address in brackets */
    int slots;
} host;

typedef struct stream { /* output of a worker, printed in complete lines */
    int from, to;       /* from is -1 if the stream is closed */
    size_t held;
    char line[LINE];
} stream;

typedef struct worker {
    pid_t pid;      /* process of the worker, or of ssh. 0 means that it has ended. */
    const host *at; /* NULL for this machine */
    stream out[2];
    int input;    /* pipe to the worker of this machine, or to REMOTE, or -1 for none, or closed */
    int ready;    /* 1 if the next input may be sent. On a host, RECEIVED has arrived. */
    int started;  /* 1 if signals reach the worker */
    int early;    /* signal to send when the worker has started, or 0 */
    int ended_by; /* last signal sent to end the worker, or 0 */
    int reported; /* 1 if the worker has logged the bytes that it sent */
} worker;

static worker *workers;
static int n, prefix = 1, quiet, left, min_world, hosts, port = PORT;
static const char *sets[SETS + 8];
static char *ssh[WORDS + 8] = {(char *)(size_t) "ssh"};
static int set_count, ssh_words = 1;
static int lost; /* workers that failed in a run that continued without them */
static host host_list[HOSTS];
static char summary[LINE];
static double megabytes;  /* sum of the megabytes that the workers have logged as sent */
static char input[CHUNK]; /* read from the standard input, not yet written to rank 0 */
static size_t input_size;
static double cut_at; /* time to kill the ssh processes that are still running after a SIGKILL, 0 if not
                         set */

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGINT, "INT"},   {SIGTERM, "TERM"}, {SIGHUP, "HUP"},
               {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGKILL, "KILL"}};
enum { FORWARDED = 5 }; /* number of forwarded signals, from the first one on */
static volatile sig_atomic_t caught[FORWARDED], interrupts;

static int complain(int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "ddprun: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    return code;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *format(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) exit(complain(1, "out of memory"));
    va_end(ap);
    return text;
}

/* ---- command line ---- */

static int number(const char *option, const char *s, long least, long most, int *out)
{
    char *end;
    const long v = s ? strtol(s, &end, 10) : 0;

    if (!s || !*s || *end || v < least || v > most)
        return complain(0, "%s %s is not a whole number from %ld to %ld", option, s ? s : "", least, most);
    *out = (int)v;
    return 1;
}

static int set(const char *text)
{
    const char *eq = strchr(text, '=');

    if (!eq || eq == text) return complain(0, "--set %s: write NAME=VALUE", text);
    if (!strncmp(text, "DREAMDDP_RANK=", 14) || !strncmp(text, "DREAMDDP_WORLD_SIZE=", 20) ||
        !strncmp(text, "RANK=", 5) || !strncmp(text, "WORLD_SIZE=", 11))
        return complain(
            0, "--set %s: ddprun sets this variable for each worker; use -n for the number of workers", text);
    if (set_count == SETS) return complain(0, "--set %s: at most %d variables", text, SETS);
    sets[set_count++] = text;
    return 1;
}

/* Returns the value of a variable from --set, or NULL. */
static const char *given(const char *name)
{
    const size_t length = strlen(name);
    const char *value = NULL;

    for (int i = 0; i < set_count; i++)
        if (!strncmp(sets[i], name, length) && sets[i][length] == '=') value = sets[i] + length + 1;
    return value;
}

/* Returns the value of a variable in the workers, from --set or the environment. NULL if it is missing or
 * empty. */
static const char *value_of(const char *name)
{
    const char *value = given(name);

    if (!value) value = getenv(name);
    return value && *value ? value : NULL;
}

/* Splits the command of --ssh at spaces. Quotes and backslashes work as in a shell. */
static int split_ssh(const char *text)
{
    char *to = (char *)malloc(strlen(text) + 1), quote = 0;
    const char *all = text;

    if (!to) return complain(0, "out of memory");
    ssh_words = 0;
    for (;;) {
        text += strspn(text, " \t\n");
        if (!*text) break;
        if (ssh_words == WORDS) return complain(0, "--ssh %s: at most %d words", all, WORDS);
        ssh[ssh_words++] = to;
        for (; *text && (quote || !strchr(" \t\n", *text)); text++) {
            if (*text == quote)
                quote = 0;
            else if (!quote && (*text == '"' || *text == '\''))
                quote = *text;
            else if (*text == '\\' && quote != '\'' && text[1])
                *to++ = *++text;
            else
                *to++ = *text;
        }
        *to++ = 0;
    }
    if (quote) return complain(0, "--ssh %s: the quote %c is not closed", all, quote);
    return ssh_words > 0 || complain(0, "--ssh: a command is needed, such as \"ssh -F config\"");
}

static int slots_of(const char *where, const char *word, const char *digits, int *slots)
{
    char *end;
    const long v = strtol(digits, &end, 10);

    if (*digits < '0' || *digits > '9' || *end || v < 1 || v > MOST)
        return complain(
            0, "%s: %s: the number of workers must be a whole number from 1 to %d, as in: node1 slots=4",
            where, word, MOST);
    if (*slots)
        return complain(0, "%s: %s: this host already has %d slots; write the number once", where, word,
                        *slots);
    *slots = (int)v;
    return 1;
}

/* Parses the first word of a line: [USER@]HOST[:N], [USER@][ADDRESS][:N], or an IPv6 ADDRESS without
 * brackets. Returns 0 after printing an error. */
static int host_name(const char *where, char *word, host *h)
{
    char *name = strrchr(word, '@'), *count = NULL, *scope, *all = format("%s", word);
    struct in6_addr six;
    int is_six, valid = 1;

    name = name ? name + 1 : word;
    is_six = *name == '[';
    if (is_six) {
        char *close = strchr(name, ']');
        if (!close || (close[1] && close[1] != ':'))
            return complain(0, "%s: %s: write an IPv6 address as [ADDRESS] or [ADDRESS]:SLOTS", where, all);
        *close = 0;
        if (close[1]) count = close + 2;
        memmove(name, name + 1, strlen(name)); /* ssh expects no brackets */
    } else if (strchr(name, ':') != strrchr(name, ':')) {
        is_six = 1;
    } else if ((count = strchr(name, ':')) != NULL) {
        *count++ = 0;
    }
    if (is_six) {
        scope = strchr(name, '%');
        if (scope) *scope = 0;
        valid = inet_pton(AF_INET6, name, &six);
        if (scope) *scope = '%';
    }
    if (!valid)
        return complain(0, "%s: %s is not an IPv6 address; write [ADDRESS]:SLOTS or HOST:SLOTS", where, all);
    if (!*name || *name == '-' || *word == '-' || name == word + 1)
        return complain(0, "%s: %s names no host; write [USER@]HOST [slots=N]", where, all);
    h->target = format("%s", word);
    h->address = format(is_six ? "[%s]" : "%s", name);
    free(all);
    return !count || slots_of(where, format("%s", count), count, &h->slots);
}

/* Parses a line of the hosts file. Ignores blank lines and comments. Returns 0 after printing an error. */
static int read_host(const char *where, char *line)
{
    static const char spaces[] = " \t\r\n\f\v";
    char *rest = NULL, *word;
    host h = {NULL, NULL, 0};
    int most = 0;

    line[strcspn(line, "#")] = 0;
    word = strtok_r(line, spaces, &rest);
    if (!word) return 1;
    if (hosts == HOSTS) return complain(0, "%s: at most %d hosts are possible", where, HOSTS);
    if (!host_name(where, word, &h)) return 0;
    while ((word = strtok_r(NULL, spaces, &rest)) != NULL) {
        if (!strncmp(word, "slots=", 6)) {
            if (!slots_of(where, word, word + 6, &h.slots)) return 0;
        } else if (!strncmp(word, "max_slots=", 10) || !strncmp(word, "max-slots=", 10)) { /* Open MPI */
            if (!slots_of(where, word, word + 10, &most)) return 0;
        } else {
            return complain(0, "%s: %s is unknown; write [USER@]HOST [slots=N]", where, word);
        }
    }
    if (!h.slots) h.slots = 1;
    if (most && most < h.slots)
        return complain(0, "%s: slots=%d is more than max_slots=%d", where, h.slots, most);
    host_list[hosts++] = h;
    return 1;
}

static int read_hosts(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    int ok = 1;

    if (!f) return complain(0, "--hosts %s: %s", path, strerror(errno));
    for (int at = 1; ok && getline(&line, &room, f) >= 0; at++) {
        char *where = format("--hosts %s: line %d", path, at);
        const int mark = at == 1 && !strncmp(line, "\xef\xbb\xbf", 3) ? 3 : 0; /* byte order mark */
        ok = read_host(where, line + mark);
        free(where);
    }
    free(line);
    if (ferror(f)) ok = complain(0, "--hosts %s: %s", path, strerror(errno)); /* for example, a directory */
    fclose(f);
    return ok &&
           (hosts || complain(0, "--hosts %s names no host; write lines of [USER@]HOST [slots=N]", path));
}

/* Returns the row of an option, or OPTIONS after printing an error. */
static int option_of(const char *word, size_t length)
{
    char *name = format("%.*s", (int)length, word);
    nearest_name found = nearest_begin(name);
    int k = 0;

    while (k < OPTIONS && strcmp(known[k][0], name)) k++;
    if (k == OPTIONS) {
        for (int i = 0; i < OPTIONS; i++) nearest_consider(&found, name, known[i][0]);
        complain(0, "unknown option %s; %s%s%s--help lists all", name, found.name ? "did you mean " : "",
                 found.name ? found.name : "", found.name ? "? " : "");
    }
    free(name);
    return k;
}

/* Stores the value of an option. Returns 0 after printing an error. */
static int take(const char *o, const char *value)
{
    if (!strcmp(o, "-n")) return number(o, value, 1, MOST, &n);
    if (!strcmp(o, "--net")) return set(format("DREAMDDP_NET=%s", value));
    if (!strcmp(o, "--strategy")) return set(format("DREAMDDP_STRATEGY=%s", value));
    if (!strcmp(o, "--period")) {
        int period;
        return number(o, value, 1, 1000000, &period) && set(format("DREAMDDP_PERIOD=%s", value));
    }
    if (!strcmp(o, "--set")) return set(value);
    if (!strcmp(o, "--min-world"))
        return number(o, value, 1, MOST, &min_world) && set(format("DREAMDDP_MIN_WORLD=%s", value));
    if (!strcmp(o, "--hosts")) return read_hosts(value);
    if (!strcmp(o, "--port")) return number(o, value, 1, LAST_PORT, &port);
    return split_ssh(value);
}

/* Parses the options up to the program. Returns the index of the program in argv, or -1 - the exit code. */
static int parse(int argc, char **argv)
{
    const char *for_hosts = NULL; /* --port or --ssh, if given */
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        const size_t length = strcspn(argv[i], "=");
        const char *o, *value = argv[i][length] ? argv[i] + length + 1 : NULL;
        const int k = strcmp(argv[i], "-h") ? option_of(argv[i], length) : OPTIONS - 1;
        if (k == OPTIONS) return -3;
        o = known[k][0];
        if (!known[k][1] && value)
            return complain(-3, "%s takes no value; write %s without =%s", o, o, value);
        if (!strcmp(o, "--help")) return printf("%s", help), -1;
        if (!strcmp(o, "--no-prefix")) prefix = 0;
        if (!strcmp(o, "--quiet")) quiet = 1;
        if (!known[k][1]) continue;
        if (!value && i + 1 < argc) value = argv[++i];
        if (!value || !*value)
            return complain(-3, "%s needs a value%s: write %s %s", o, value ? ", but it is empty" : "", o,
                            known[k][1]);
        if (!take(o, value)) return -3;
        if (!strcmp(o, "--port") || !strcmp(o, "--ssh")) for_hosts = o;
    }
    if (for_hosts && !hosts)
        return complain(-3, "%s needs --hosts FILE; workers on one machine need no %s", for_hosts,
                        for_hosts + 2);
    return i;
}

/* ---- start of a worker ---- */

/* Checks, before any worker starts, that the program can be executed on this machine. Returns 0, or the exit
 * code. */
static int program_is_there(const char *program)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];

    if (strchr(program, '/'))
        return !access(program, X_OK)
                   ? 0
                   : complain(errno == EACCES ? 126 : 127, "%s: %s", program, strerror(errno));
    for (path = path ? path : "/usr/bin:/bin"; *path; path += *path == ':') {
        const size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        if (!access(file, X_OK)) return 0;
        path += length;
    }
    return complain(127, "%s: not found in PATH; write ./%s for a program in this folder", program, program);
}

/* Appends text as one word of a shell: sh, and also csh and fish, in which \\ and ! are special inside
 * quotes. */
static char *quoted(char *all, const char *text)
{
    size_t at = all ? strlen(all) : 0;

    all = (char *)realloc(all, at + 5 * strlen(text) + 8);
    if (!all) exit(complain(1, "out of memory"));
    all[at++] = ' ';
    all[at++] = '\'';
    for (; *text; text++) {
        if (strchr("'\\!", *text)) {
            memcpy(all + at, "'\\", 2);
            all[at + 2] = *text;
            all[at + 3] = '\'';
            at += 4;
        } else {
            all[at++] = *text;
        }
    }
    strcpy(all + at, "'");
    return all;
}

extern char **environ;

/* Returns the command line for ssh: exec sh -c REMOTE ddprun FOLDER env NAME=VALUE... PROGRAM ARGUMENTS, with
 * the variables of the worker and all DREAMDDP_ variables of the environment. */
static const char *remote_command(char **own, char **argv)
{
    char folder[PATH_MAX], *words = NULL;

    if (!getcwd(folder, sizeof folder))
        exit(complain(1, "cannot find the current folder: %s", strerror(errno)));
    words = quoted(words, remote);
    words = quoted(quoted(quoted(words, "ddprun"), folder), "env");
    for (char **e = environ; *e; e++)
        if (!strncmp(*e, "DREAMDDP_", 9)) words = quoted(words, *e);
    for (; *own; own++) words = quoted(words, *own);
    if (strchr(argv[0], '=')) /* env would treat the program as a variable */
        words = quoted(quoted(quoted(words, "sh"), "-c"), "exec \"$0\" \"$@\"");
    for (; *argv; argv++) words = quoted(words, *argv);
    return format("exec sh -c%s", words);
}

/* Counts the ranks below `end` on the same machine as `rank`. */
static int neighbours(int rank, int end)
{
    const host *at = workers[rank].at;
    int found = 0;

    for (int r = 0; r < end; r++) found += at ? !strcmp(workers[r].at->address, at->address) : 1;
    return found;
}

/* The log level of a rank. Ranks other than 0 also log at level info if the summary needs their last line,
 * which put_line does not print. */
static const char *log_level(int rank) { return rank && quiet ? "warn" : "info"; }

static void become(int rank, const host *at, char **argv)
{
    const int local = neighbours(rank, rank), locals = neighbours(rank, n);
    char *own[SETS + 24];
    int count = 0;

    for (int i = 0; i < set_count; i++) own[count++] = (char *)(size_t)sets[i];
    own[count++] = format("DREAMDDP_RANK=%d", rank);
    own[count++] = format("DREAMDDP_WORLD_SIZE=%d", n);
    own[count++] = format("RANK=%d", rank);
    own[count++] = format("WORLD_SIZE=%d", n);
    if (!given("DREAMDDP_LOCAL_RANK")) own[count++] = format("DREAMDDP_LOCAL_RANK=%d", local);
    if (!given("LOCAL_RANK")) own[count++] = format("LOCAL_RANK=%d", local);
    if (!given("LOCAL_WORLD_SIZE")) own[count++] = format("LOCAL_WORLD_SIZE=%d", locals);
    if (!value_of("DREAMDDP_LOG")) own[count++] = format("DREAMDDP_LOG=%s", log_level(rank));
    own[count] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no process of this machine outlives ddprun */
    if (at) {
        static const char *const options[] = {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"};
        for (int i = 0; i < 5; i++) ssh[ssh_words++] = (char *)(size_t)options[i];
        ssh[ssh_words++] = at->target;
        ssh[ssh_words++] = (char *)(size_t)remote_command(own, argv);
        argv = ssh;
    } else {
        for (int i = 0; i < count; i++)
            if (putenv(own[i])) _exit(126);
    }
    execvp(argv[0], argv);
    complain(0, "%s: %s", argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static int start(int rank, char **argv)
{
    const host *at = workers[rank].at;
    /* A local worker is not in the foreground process group of the terminal, so ddprun reads the terminal for
     * it. */
    const int relay = at || (rank == 0 && isatty(0));
    worker *w = &workers[rank];
    int pipes[3][2];

    for (int s = relay ? 0 : 1; s < 3; s++)
        if (pipe2(pipes[s], O_CLOEXEC)) return complain(1, "worker %d: %s", rank, strerror(errno));
    w->input = -1;
    w->ready = w->started = !at;
    w->pid = fork();
    if (w->pid < 0) {
        w->pid = 0;
        return complain(1, "worker %d: %s", rank, strerror(errno));
    }
    if (w->pid == 0) {
        const int in = relay ? pipes[0][0] : rank ? open("/dev/null", O_RDONLY) : 0;
        setpgid(0, 0);
        dup2(in, 0);
        dup2(pipes[1][1], 1);
        dup2(pipes[2][1], 2);
        become(rank, at, argv);
    }
    setpgid(w->pid, w->pid);
    for (int s = 0; s < 2; s++) {
        close(pipes[s + 1][1]);
        fcntl(pipes[s + 1][0], F_SETFL, O_NONBLOCK);
        w->out[s].from = pipes[s + 1][0];
        w->out[s].to = s + 1;
    }
    if (relay) {
        close(pipes[0][0]);
        fcntl(pipes[0][1], F_SETFL, O_NONBLOCK);
        w->input = pipes[0][1];
    }
    left++;
    return 0;
}

/* ---- signals and input to the workers ---- */

static void close_input(worker *w)
{
    if (w->input >= 0) close(w->input);
    w->input = -1;
}

/* Sends one command to REMOTE. Returns 0 if the pipe is full. A line has fewer than PIPE_BUF bytes, so it is
 * written completely or not at all. */
static int command(worker *w, const char *line)
{
    char text[PIPE_BUF];
    const int length = snprintf(text, sizeof text, "%s\n", line);

    if (w->input >= 0 && write(w->input, text, (size_t)length) < 0) {
        if (errno == EAGAIN) return 0;
        close_input(w); /* ssh has ended */
    }
    return 1;
}

static void send_signal(worker *w, int sig)
{
    const int ends = sig != SIGUSR1 && sig != SIGUSR2;

    if (!w->pid) return;
    if (ends) w->ended_by = sig;
    if (!w->at) {
        kill(-w->pid, sig);
    } else if (!w->started) {
        if (ends)
            kill(-w->pid, SIGKILL); /* ssh is still connecting */
        else
            w->early = sig;
    } else {
        for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
            if (signals[i].number == sig) command(w, signals[i].name);
        if (sig == SIGKILL) close_input(w);
    }
}

static void signal_all(int sig)
{
    for (int r = 0; r < n; r++) send_signal(&workers[r], sig);
    if (sig == SIGKILL && hosts && cut_at <= 0) cut_at = now() + 3;
}

/* Kills ssh if a host does not answer. */
static void cut_connections(void)
{
    for (int r = 0; r < n; r++)
        if (workers[r].pid && workers[r].at) kill(-workers[r].pid, SIGKILL);
}

/* Handles RECEIVED from a host. */
static void received(worker *w)
{
    w->ready = 1;
    if (w->started) return;
    w->started = 1;
    if (w != workers) command(w, "."); /* only rank 0 has the standard input */
    if (w->early) send_signal(w, w->early);
}

/* Ends the input of rank 0. On a host the channel remains open for signals. */
static void end_input(worker *w)
{
    if (w->at)
        command(w, ".");
    else
        close_input(w);
    w->ready = -1;
}

/* Writes input[] to rank 0, as far as the pipe accepts it. */
static void write_input(worker *w)
{
    char line[5 * CHUNK + 2], *to = line;

    if (!w->at) {
        const ssize_t did = write(w->input, input, input_size);
        if (did < 0 && errno != EAGAIN && errno != EINTR) end_input(w);
        if (did <= 0) return;
        input_size -= (size_t)did;
        memmove(input, input + did, input_size);
        return;
    }
    *to++ = '=';
    for (size_t i = 0; i < input_size; i++) to += sprintf(to, "\\0%03o", (unsigned char)input[i]);
    if (!command(w, line)) return;
    input_size = 0;
    w->ready = 0;
}

/* Returns 1 if ddprun may read the standard input: rank 0 accepts input, and ddprun is in the foreground of
 * the terminal. A terminal stops background processes that read from it. */
static int wants_input(const worker *w)
{
    const pid_t foreground = tcgetpgrp(0);

    return w->input >= 0 && w->ready > 0 && !input_size && (foreground < 0 || foreground == getpgrp());
}

static void pass_input(worker *w, int readable)
{
    if (readable) {
        const ssize_t got = read(0, input, sizeof input);
        if (got > 0)
            input_size = (size_t)got;
        else if (got == 0 || (errno != EINTR && errno != EAGAIN))
            end_input(w);
    }
    if (input_size && w->input >= 0 && w->ready > 0) write_input(w);
}

/* ---- output of the workers ---- */

static void put(int to, const char *text, size_t length)
{
    while (length > 0) {
        const ssize_t did = write(to, text, length);
        if (did < 0 && errno == EINTR) continue;
        if (did <= 0) return; /* the reader has ended */
        text += did;
        length -= (size_t)did;
    }
}

/* Adds the megabytes that a context logs when it closes. Takes the summary from the line of the first
 * rank. */
static void note_closed(worker *w, const char *info)
{
    const char *sent = strstr(info, " MB sent"), *number = sent;

    if (!sent || (strncmp(info, "closed: ", 8) && !strstr(info, " closed: "))) return;
    while (number > info && number[-1] != ' ') number--;
    megabytes += strtod(number, NULL);
    w->reported = 1;
    if (!strncmp(info, "closed: ", 8))
        snprintf(summary, sizeof summary, "%.*s", (int)(number - info - 8), info + 8);
}

/* Reads a line of the library's log, and returns the number of bytes to print. Lines of level info from ranks
 * other than 0 are used only for the summary, unless DREAMDDP_LOG is given. */
static size_t printed(int rank, const stream *s, size_t length)
{
    static const char info[] = "dreamddp info: ";
    const char *at = s->to == 2 ? strstr(s->line, info) : NULL;

    if (!at) return length;
    note_closed(&workers[rank], at + sizeof info - 1);
    return rank && !value_of("DREAMDDP_LOG") ? (size_t)(at - s->line) : length;
}

static void put_line(int rank, const stream *s, size_t length)
{
    char text[LINE + 16];
    int at = prefix ? snprintf(text, sizeof text, "[%d] ", rank) : 0;
    const size_t all = length;

    length = printed(rank, s, length);
    if (!length && all) return;
    memcpy(text + at, s->line, length);
    text[at + (int)length] = '\n';
    put(s->to, text, (size_t)at + length + 1);
}

/* Removes RECEIVED from the output of a host. */
static void take_received(worker *w, stream *s)
{
    const size_t length = sizeof RECEIVED - 1;
    char *at;

    while ((at = (char *)memmem(s->line, s->held, RECEIVED, length)) != NULL) {
        memmove(at, at + length, s->held - (size_t)(at - s->line) - length + 1);
        s->held -= length;
        received(w);
    }
}

/* Reads a stream and prints its complete lines. Returns 0 when the stream is closed. A line longer than LINE
 * is printed in pieces. The last bytes of a piece stay in the buffer, because RECEIVED may start there. */
static int pass_on(int rank, stream *s)
{
    const ssize_t got = read(s->from, s->line + s->held, LINE - 1 - s->held);
    char *end;

    if (got < 0) return errno == EAGAIN || errno == EINTR;
    s->held += (size_t)got;
    s->line[s->held] = 0;
    if (workers[rank].at && s->to == 2) take_received(&workers[rank], s);
    while ((end = (char *)memchr(s->line, '\n', s->held)) != NULL || s->held == LINE - 1 ||
           (got == 0 && s->held)) {
        const size_t length = end ? (size_t)(end - s->line) : got ? s->held - sizeof RECEIVED : s->held;
        const size_t used = length + (end != NULL);
        const char after = s->line[length];
        s->line[length] = 0;
        put_line(rank, s, length);
        s->line[length] = after;
        memmove(s->line, s->line + used, s->held - used);
        s->held -= used;
        s->line[s->held] = 0;
    }
    if (got > 0) return 1;
    close(s->from);
    s->from = -1;
    return 0;
}

/* ---- supervision ---- */

static void on_signal(int sig)
{
    for (int i = 0; i < FORWARDED; i++)
        if (signals[i].number == sig) caught[i] = 1;
    if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) interrupts++;
}

/* Forwards signals. The third signal that ends a run is sent as SIGKILL. */
static void forward_signals(void)
{
    for (int i = 0; i < FORWARDED; i++) {
        if (!caught[i]) continue;
        caught[i] = 0;
        signal_all(interrupts > 2 ? SIGKILL : signals[i].number);
    }
}

/* Returns the exit code of a worker as a shell would: 128 + the signal that killed it. ssh returns 255 if the
 * connection ends. */
static int exit_code(const worker *w, int status)
{
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);

    if (w->at && w->ended_by && (code == 255 || (!w->started && WIFSIGNALED(status))))
        code = 128 + w->ended_by;
    return code;
}

static void note_end(int r, int status, int *first, double *deadline)
{
    worker *w = &workers[r];
    const int code = exit_code(w, status), sig = code > 128 && code < 128 + NSIG ? code - 128 : 0;
    const char *then;

    w->pid = 0;
    left--;
    then = left ? "; stopping the others" : "";
    close_input(w);
    if (!code || *deadline > 0) return;
    if (min_world && left >= min_world) {
        lost++;
        then = "; the others continue";
    } else {
        *first = code;
        *deadline = now() + 1; /* gives the others time to print their errors */
    }
    if (w->at && code == 255 && !w->started)
        complain(0, "worker %d: cannot connect to %s with %s", r, w->at->target, ssh[0]);
    else if (w->at && code == 255)
        complain(0, "worker %d: the connection to %s ended, or its worker ended with 255", r, w->at->target);
    else if (sig && (w->at || WIFSIGNALED(status)))
        complain(0, "worker %d was killed by signal %d (%s)%s", r, sig, strsignal(sig), then);
    else
        complain(0, "worker %d ended with %d%s", r, code, then);
}

static int supervise(void)
{
    const size_t streams = 2 * (size_t)n;
    struct pollfd *fds = (struct pollfd *)calloc(streams + 1, sizeof *fds);
    int first = 0, open_streams = 2 * n, told = 0;
    double deadline = 0;

    if (!fds) return complain(1, "out of memory");
    fds[streams].events = POLLIN;
    while (left || open_streams) {
        pid_t pid;
        int status;
        for (int i = 0; i < 2 * n; i++) {
            fds[i].fd = workers[i / 2].out[i % 2].from;
            fds[i].events = POLLIN;
        }
        fds[streams].fd = wants_input(&workers[0]) ? 0 : -1;
        poll(fds, (nfds_t)streams + 1, 100);
        for (int i = 0; i < 2 * n; i++)
            if (fds[i].fd >= 0 && fds[i].revents && !pass_on(i / 2, &workers[i / 2].out[i % 2]))
                open_streams--;
        pass_input(&workers[0], fds[streams].fd == 0 && fds[streams].revents);
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            for (int r = 0; r < n; r++)
                if (workers[r].pid == pid) note_end(r, status, &first, &deadline);
        forward_signals();
        if (deadline > 0 && left && now() > deadline + 5 * told) signal_all(told++ ? SIGKILL : SIGTERM);
        if (cut_at > 0 && now() > cut_at) cut_connections();
        /* a process that a worker started may keep the streams open */
        if (!left && deadline > 0 && now() > deadline + 1) break;
    }
    free(fds);
    return first;
}

/* ---- rendezvous ---- */

/* Returns the port of HOST:PORT, or the default port. */
static int port_of(const char *address)
{
    const char *colon = strrchr(address, ':');
    const long v = colon ? strtol(colon + 1, NULL, 10) : 0;

    return v > 0 && v <= LAST_PORT ? (int)v : PORT;
}

/* Returns 0 if a program could listen on the port on all addresses of this machine, else errno. */
static int taken(int family, int at)
{
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    const int fd = socket(family, SOCK_STREAM, 0), off = 0;
    int bound, why;

    if (fd < 0) return errno;
    memset(&six, 0, sizeof six);
    memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons((uint16_t)at);
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    bound = family == AF_INET6 ? bind(fd, (struct sockaddr *)&six, sizeof six)
                               : bind(fd, (struct sockaddr *)&four, sizeof four);
    why = bound ? errno : 0;
    close(fd);
    return why;
}

/* Returns a port that no program uses, other than `used`, or 0. It is below the range of ephemeral ports, so
 * that the system does not assign it before torch.distributed listens on it. */
static int unused_port(int used)
{
    enum { FIRST = 20000, COUNT = 12000 };
    const unsigned begin = (unsigned)getpid() * 7919u + (unsigned)(long)(1e6 * now());

    for (unsigned i = 0; i < COUNT; i++) {
        const int at = FIRST + (int)((begin + i) % COUNT), why = taken(AF_INET6, at);
        if (at == used || why == EADDRINUSE) continue;
        if (!why || !taken(AF_INET, at)) return at;
    }
    return 0;
}

/* Returns the HOST of HOST:PORT or [HOST]:PORT, without brackets. */
static char *host_of(const char *address)
{
    const int six = *address == '[';

    return format("%.*s", (int)strcspn(address + six, six ? "]" : ":"), address + six);
}

static void set_own(const char *name, char *value)
{
    const char *environment = getenv(name);

    if (given(name)) return;
    sets[set_count++] = format("%s=%s", name, environment && *environment ? environment : value);
}

/* Sets MASTER_ADDR and MASTER_PORT for the rendezvous of torch.distributed, which uses a different port than
 * this library. */
static void set_master(void)
{
    const char *address = value_of("DREAMDDP_ADDR"), *user = hosts ? strrchr(host_list[0].target, '@') : NULL;
    int library, master;
    char *name;

    if (address && !strncmp(address, "tcp://", 6)) address += 6;
    if (address && strstr(address, "://")) address = NULL; /* the address is a file */
    library = address ? port_of(address) : hosts ? port : 0;
    if (!hosts)
        master = unused_port(library);
    else
        master = library < LAST_PORT ? library + 1 : library - 1;
    if (!hosts)
        name = format("127.0.0.1");
    else
        name = address ? host_of(address) : format("%s", user ? user + 1 : host_list[0].target);
    if (master) {
        set_own("MASTER_ADDR", name);
        set_own("MASTER_PORT", format("%d", master));
    }
    free(name);
}

/* Creates a folder for the file in which rank 0 publishes its address. The modification time of the folder is
 * 0 until rank 0 writes the file. Returns NULL after printing an error. */
static char *temporary_folder(void)
{
    static const struct timespec zero[2] = {{0, 0}, {0, 0}};
    const char *given = getenv("TMPDIR");
    char *parent = realpath(given && *given ? given : "/tmp", NULL);
    char *folder = parent ? format("%s/ddprun-XXXXXX", parent) : NULL;

    if (!folder || !mkdtemp(folder)) {
        complain(0, "cannot create a folder in %s: %s; set TMPDIR to a folder that you can write to",
                 given && *given ? given : "/tmp", strerror(errno));
        folder = NULL;
    }
    if (folder) utimensat(AT_FDCWD, folder, zero, 0);
    free(parent);
    return folder;
}

/* Returns 1 if no worker has published an address. The library removes the file later, but the folder then
 * has a new modification time. */
static int is_untouched(const char *folder)
{
    struct stat info;

    return stat(folder, &info) == 0 && info.st_mtim.tv_sec == 0;
}

/* Installs the signal handlers. If SIGHUP is ignored at the start, as under nohup, ddprun and its workers
 * ignore it. */
static void catch_signals(void)
{
    struct sigaction action, before;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (int i = 0; i < FORWARDED; i++) {
        sigaction(signals[i].number, NULL, &before);
        if (signals[i].number != SIGHUP || before.sa_handler != SIG_IGN)
            sigaction(signals[i].number, &action, NULL);
    }
    sigaction(SIGPIPE, &action, NULL); /* a handler, because the workers would inherit an ignored signal */
}

static void summarise(const char *program, double seconds, int code)
{
    int reports = 0;

    for (int r = 0; r < n; r++) reports += workers[r].reported;
    fprintf(stderr, "ddprun: %d worker%s of %s, %.1f s, %s", n, n == 1 ? "" : "s", program, seconds,
            code   ? format("exit code %d", code)
            : lost ? format("%d succeeded, %d lost", n - lost, lost)
                   : "all succeeded");
    if (reports) fprintf(stderr, "; %s%.3g MB sent", summary, megabytes);
    if (reports && n > 1) fprintf(stderr, " by %d worker%s", reports, reports == 1 ? "" : "s");
    fprintf(stderr, "\n");
}

int main(int argc, char **argv)
{
    const double begun = now();
    char *folder = NULL;
    int at, code = 0;

    while ((at = open("/dev/null", O_RDWR)) >= 0 && at < 3) {
    } /* a closed standard stream must not become a pipe */
    close(at);
    at = parse(argc, argv);
    if (at < 0) return -1 - at;
    for (int h = 0, slots = 0; h < hosts; h++) {
        slots += host_list[h].slots;
        if (h + 1 < hosts) continue;
        if (!n) n = slots;
        if (n > slots) return complain(2, "-n %d: the hosts have only %d slots", n, slots);
    }
    if (!n || n > MOST)
        return complain(2, "the number of workers must be from 1 to 1024, as in ddprun -n 4 PROGRAM; --help "
                           "lists the options");
    if (at == argc) return complain(2, "PROGRAM is missing, as in ddprun -n %d ./program", n);
    if (min_world > n) return complain(2, "--min-world %d is more than the %d workers", min_world, n);
    code = program_is_there(hosts ? ssh[0] : argv[at]);
    if (code) return code;
    workers = (worker *)calloc((size_t)n, sizeof *workers);
    if (!workers) return complain(1, "out of memory for %d workers", n);
    if (!value_of("DREAMDDP_ADDR")) {
        /* rank 0 chooses a free port and publishes it in a file, which is not visible on other machines */
        if (!hosts && !(folder = temporary_folder())) return 1;
        sets[set_count++] = hosts ? format("DREAMDDP_ADDR=%s:%d", host_list[0].address, port)
                                  : format("DREAMDDP_ADDR=file://%s/addr", folder);
    }
    if (!value_of("DREAMDDP_RUN_ID"))
        sets[set_count++] = format("DREAMDDP_RUN_ID=ddprun-%ld-%lx", (long)getpid(), (long)time(NULL));
    set_master();
    catch_signals();
    for (int r = 0, h = 0, used = 0; hosts && r < n; r++) {
        if (used == host_list[h].slots) {
            h++;
            used = 0;
        }
        used++;
        workers[r].at = &host_list[h];
    }
    for (int r = 0; r < n && !code; r++) code = start(r, argv + at);
    if (code)
        signal_all(SIGKILL);
    else
        code = supervise();
    if (folder) {
        if (!code && !quiet && n > 1 && !summary[0] && is_untouched(folder))
            complain(0,
                     "warning: no worker used the library, so %s ran as %d independent programs; call "
                     "dreamddp.init() or ddp_open in it",
                     argv[at], n);
        unlink(format("%s/addr", folder));
        rmdir(folder);
    }
    if (!quiet) summarise(argv[at], now() - begun, code);
    return code;
}
