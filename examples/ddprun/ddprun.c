/* Starts the workers of any program that uses the library, here or on other machines, and ends them together.
 *
 *   cc -O2 examples/ddprun/ddprun.c -o ddprun
 *   ./ddprun -n 4 --net 100mbit,20ms --strategy dreamddp ./program its arguments
 *
 * Needs no header: what it says to the workers are the DREAMDDP_ variables of docs/own-loop.md. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, LINE = 8192, HOSTS = 256, SETS = 64, PORT = 29500 };

static const char *const help =
    "usage: ddprun -n N [options] PROGRAM [ARGUMENTS]\n"
    "Starts N workers of PROGRAM, tells them who they are, puts [rank] before their lines, forwards signals, and ends\n"
    "all of them when one fails. Rank 0 has the standard input.\n\n"
    "  -n N               workers; with --hosts all its slots unless it is given\n"
    "  --net SPEC         shapes each worker's link: 100mbit,20ms, or a topology FILE.json (DREAMDDP_NET)\n"
    "  --strategy NAME    ssgd, wfbp, localsgd, enp, dreamddp, diloco.. (DREAMDDP_STRATEGY)\n"
    "  --period H         steps in which each layer is averaged once (DREAMDDP_PERIOD)\n"
    "  --set NAME=VALUE   any other variable of the workers, such as DREAMDDP_WIRE=int8; may be repeated\n"
    "  --min-world N      goes on while so many workers are left (DREAMDDP_MIN_WORLD)\n"
    "  --hosts FILE       lines of HOST [slots=N]: starts workers there by ssh, in this folder, rank 0 on the first\n"
    "  --port P           rank 0's port with --hosts; 29500\n"
    "  --ssh COMMAND      in place of ssh\n"
    "  --no-prefix        lines as the workers write them\n"
    "  --quiet            no summary line\n"
    "  --help             this text\n\n"
    "exit codes: that of the first worker that fails (128 + its signal), 0 if none does, 2 usage,\n"
    "126 and 127 as of a shell: not a program, not found\n";

typedef struct host {
    char name[256];
    int  slots;
} host;

typedef struct stream { /* of a worker: its lines are passed on whole */
    int    from, to; /* from -1: it is closed */
    size_t held;
    char   line[LINE];
} stream;

typedef struct worker {
    pid_t       pid; /* 0: it has ended */
    const char *host; /* NULL: here */
    stream      out[2];
} worker;

static worker     *workers;
static int         n, prefix = 1, quiet, left, min_world, hosts, port = PORT;
static const char *sets[SETS + 8], *ssh = "ssh";
static int         set_count;
static host        host_list[HOSTS];
static char        summary[LINE];
static volatile sig_atomic_t caught, times;

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

static const char *format(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) exit(complain(1, "out of memory"));
    va_end(ap);
    return text;
}

/* ---- what the command line says ---- */

static int number(const char *option, const char *s, long least, long most, int *out)
{
    char *end;
    const long v = s ? strtol(s, &end, 10) : 0;

    if (!s || !*s || *end || v < least || v > most)
        return complain(0, "%s %s: a whole number from %ld to %ld is needed", option, s ? s : "", least, most);
    *out = (int)v;
    return 1;
}

static int set(const char *text)
{
    const char *eq = strchr(text, '=');

    if (!eq || eq == text) return complain(0, "--set %s: NAME=VALUE is needed", text);
    if (set_count == SETS) return complain(0, "--set %s: at most %d variables", text, SETS);
    sets[set_count++] = text;
    return 1;
}

static int read_hosts(const char *path)
{
    char line[512], rest[256];
    FILE *f = fopen(path, "r");

    if (!f) return complain(0, "--hosts %s: %s", path, strerror(errno));
    for (int at = 1; fgets(line, sizeof line, f); at++) {
        host *h = &host_list[hosts];
        char *hash = strchr(line, '#');
        if (hash) *hash = 0;
        rest[0] = 0;
        h->slots = 1;
        if (sscanf(line, "%255s %255[^\n]", h->name, rest) < 1) continue;
        if (h->name[0] == '-' || (rest[0] && (sscanf(rest, "slots=%d", &h->slots) != 1 || h->slots < 1)) || hosts == HOSTS - 1) {
            fclose(f);
            return complain(0, "--hosts %s: line %d: HOST or HOST slots=N is needed, of at most %d hosts", path, at, HOSTS - 1);
        }
        hosts++;
    }
    fclose(f);
    return hosts || complain(0, "--hosts %s names no host", path);
}

/* Options up to the program; its place in argv, or -1 - the exit code. */
static int parse(int argc, char **argv)
{
    static const struct { const char *option, *variable; } fields[] = {
        {"--net", "DREAMDDP_NET"}, {"--strategy", "DREAMDDP_STRATEGY"}, {"--period", "DREAMDDP_PERIOD"}};
    int i = 1, ok = 1;

    for (; i < argc && argv[i][0] == '-' && ok; i++) {
        const char *o = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        size_t k = 0;
        if (!strcmp(o, "--help") || !strcmp(o, "-h")) return printf("%s", help), -1;
        if (!strcmp(o, "--no-prefix") || !strcmp(o, "--quiet")) {
            if (o[2] == 'n') prefix = 0;
            else quiet = 1;
            continue;
        }
        if (!value) return complain(-3, "%s needs a value, or is unknown; --help lists all options", o);
        i++;
        while (k < 3 && strcmp(o, fields[k].option)) k++;
        if (k < 3) ok = set(format("%s=%s", fields[k].variable, value));
        else if (!strcmp(o, "-n")) ok = number(o, value, 1, MOST, &n);
        else if (!strcmp(o, "--set")) ok = set(value);
        else if (!strcmp(o, "--min-world")) ok = number(o, value, 1, MOST, &min_world) && set(format("DREAMDDP_MIN_WORLD=%s", value));
        else if (!strcmp(o, "--hosts")) ok = read_hosts(value);
        else if (!strcmp(o, "--port")) ok = number(o, value, 1, 65535, &port);
        else if (!strcmp(o, "--ssh")) ssh = value;
        else return complain(-3, "unknown option %s; --help lists all", o);
    }
    return ok ? i : -3;
}

/* ---- one worker ---- */

/* Whether the program can be started here, before any worker is. */
static int program_is_there(const char *program)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];

    if (strchr(program, '/'))
        return !access(program, X_OK) ? 0 : complain(errno == EACCES ? 126 : 127, "%s: %s", program, strerror(errno));
    for (path = path ? path : "/usr/bin:/bin"; *path; path += *path == ':') {
        const size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        if (!access(file, X_OK)) return 0;
        path += length;
    }
    return complain(127, "%s: not found in PATH; of a program in this folder say ./%s", program, program);
}

/* text as a word for a shell, behind what is there. */
static char *quoted(char *all, const char *text)
{
    size_t at = all ? strlen(all) : 0;

    all = (char *)realloc(all, at + 4 * strlen(text) + 8);
    if (!all) exit(complain(1, "out of memory"));
    all[at++] = ' ';
    all[at++] = '\'';
    for (; *text; text++) {
        if (*text == '\'') memcpy(all + at, "'\\'", 3), at += 3;
        all[at++] = *text;
    }
    strcpy(all + at, "'");
    return all;
}

extern char **environ;

/* cd here && exec env NAME=VALUE.. PROGRAM ARGUMENTS: what ssh runs there, with all DREAMDDP_ variables of here. */
static const char *remote_command(char **argv)
{
    char folder[PATH_MAX], *words = NULL;

    if (!getcwd(folder, sizeof folder)) exit(complain(1, "this folder: %s", strerror(errno)));
    words = quoted(words, folder);
    words = strcat((char *)realloc(words, strlen(words) + 32), " && exec env");
    for (char **e = environ; *e; e++)
        if (!strncmp(*e, "DREAMDDP_", 9)) words = quoted(words, *e);
    for (; *argv; argv++) words = quoted(words, *argv);
    return format("cd%s", words);
}

static void become(int rank, const char *where, char **argv)
{
    for (int i = 0; i < set_count; i++)
        if (putenv((char *)(size_t)sets[i])) _exit(126);
    putenv((char *)(size_t)format("DREAMDDP_RANK=%d", rank));
    putenv((char *)(size_t)format("DREAMDDP_WORLD_SIZE=%d", n));
    setenv("DREAMDDP_LOG", rank ? "warn" : "info", 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives this program */
    if (where) execlp(ssh, ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", where, remote_command(argv), (char *)NULL);
    else execvp(argv[0], argv);
    complain(0, "%s: %s", where ? ssh : argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static int start(int rank, const char *where, char **argv)
{
    worker *w = &workers[rank];
    int pipes[2][2];

    for (int s = 0; s < 2; s++)
        if (pipe2(pipes[s], O_CLOEXEC)) return complain(1, "worker %d: %s", rank, strerror(errno));
    w->host = where;
    w->pid = fork();
    if (w->pid < 0) return complain(1, "worker %d: %s", rank, strerror(errno));
    if (w->pid == 0) {
        const int nothing = rank ? open("/dev/null", O_RDONLY) : -1;
        setpgid(0, 0);
        if (nothing >= 0) dup2(nothing, 0);
        dup2(pipes[0][1], 1);
        dup2(pipes[1][1], 2);
        become(rank, where, argv);
    }
    setpgid(w->pid, w->pid);
    for (int s = 0; s < 2; s++) {
        close(pipes[s][1]);
        fcntl(pipes[s][0], F_SETFL, O_NONBLOCK);
        w->out[s].from = pipes[s][0];
        w->out[s].to = s + 1;
    }
    left++;
    return 0;
}

/* ---- their lines ---- */

static void put(int to, const char *text, size_t length)
{
    while (length > 0) {
        const ssize_t did = write(to, text, length);
        if (did < 0 && errno == EINTR) continue;
        if (did <= 0) return; /* nobody reads any more */
        text += did;
        length -= (size_t)did;
    }
}

static void put_line(int rank, const stream *s, size_t length)
{
    char text[LINE + 16];
    int at = prefix ? snprintf(text, sizeof text, "[%d] ", rank) : 0;
    static const char closed[] = "dreamddp info: closed: ";
    const char *told = rank == 0 && s->to == 2 ? strstr(s->line, closed) : NULL;

    if (told) snprintf(summary, sizeof summary, "%.*s", (int)(s->line + length - told), told + sizeof closed - 1);
    memcpy(text + at, s->line, length);
    text[at + (int)length] = '\n';
    put(s->to, text, (size_t)at + length + 1);
}

/* Passes on what is there; 0 where it is closed. A line that is too long goes in pieces. */
static int pass_on(int rank, stream *s)
{
    const ssize_t got = read(s->from, s->line + s->held, LINE - 1 - s->held);
    char *end;

    if (got < 0) return errno == EAGAIN || errno == EINTR;
    s->held += (size_t)got;
    s->line[s->held] = 0;
    while ((end = (char *)memchr(s->line, '\n', s->held)) != NULL || s->held == LINE - 1 || (got == 0 && s->held)) {
        const size_t length = end ? (size_t)(end - s->line) : s->held, used = length + (end != NULL);
        s->line[length] = 0;
        put_line(rank, s, length);
        memmove(s->line, s->line + used, s->held - used);
        s->held -= used;
        s->line[s->held] = 0;
    }
    if (got > 0) return 1;
    close(s->from);
    s->from = -1;
    return 0;
}

/* ---- until all have ended ---- */

static void on_signal(int sig)
{
    caught = sig;
    times++;
}

static void tell_all(int sig)
{
    for (int r = 0; r < n; r++)
        if (workers[r].pid) kill(-workers[r].pid, sig);
}

static void note_end(int r, int status, int *first, double *deadline)
{
    worker *w = &workers[r];
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);

    w->pid = 0;
    left--;
    if (!code || *deadline > 0 || (min_world && left >= min_world)) return;
    *first = code;
    *deadline = now() + 1; /* the others may say what they saw */
    if (w->host && code == 255) complain(0, "worker %d: %s does not answer by %s, or its worker ended with 255", r, w->host, ssh);
    else if (WIFSIGNALED(status)) complain(0, "worker %d was killed by signal %d (%s); the others are ended", r, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (left) complain(0, "worker %d ended with %d; the others are ended", r, code);
    else complain(0, "worker %d ended with %d", r, code);
}

static int supervise(void)
{
    struct pollfd *fds = (struct pollfd *)calloc(2 * (size_t)n, sizeof *fds);
    int first = 0, open_streams = 2 * n, told = 0;
    double deadline = 0;

    if (!fds) return complain(1, "out of memory");
    while (left || open_streams) {
        pid_t pid;
        int status, forwarded = caught;
        for (int i = 0; i < 2 * n; i++) fds[i].fd = workers[i / 2].out[i % 2].from, fds[i].events = POLLIN;
        poll(fds, (nfds_t)(2 * n), 100);
        for (int i = 0; i < 2 * n; i++)
            if (fds[i].fd >= 0 && fds[i].revents && !pass_on(i / 2, &workers[i / 2].out[i % 2])) open_streams--;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            for (int r = 0; r < n; r++)
                if (workers[r].pid == pid) note_end(r, status, &first, &deadline);
        if (forwarded) {
            caught = 0;
            tell_all(times > 2 ? SIGKILL : forwarded);
        }
        if (deadline > 0 && left && now() > deadline + 5 * told) tell_all(told++ ? SIGKILL : SIGTERM);
        /* what a worker left running keeps its streams open */
        if (!left && deadline > 0 && now() > deadline + 1) break;
    }
    free(fds);
    return first;
}

int main(int argc, char **argv)
{
    static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    char folder[] = "/tmp/ddprun-XXXXXX";
    const double begun = now();
    struct sigaction action;
    int at = parse(argc, argv), code = 0;

    if (at < 0) return -1 - at;
    for (int h = 0, slots = 0; h < hosts; h++) {
        slots += host_list[h].slots;
        if (h + 1 < hosts) continue;
        if (!n) n = slots;
        if (n > slots) return complain(2, "-n %d: the hosts have %d slots", n, slots);
    }
    if (!n || n > MOST) return complain(2, "how many workers? ddprun -n 4 PROGRAM; --help says more");
    if (at == argc) return complain(2, "which program? ddprun -n %d ./program", n);
    if (min_world > n) return complain(2, "--min-world %d is more than the %d workers", min_world, n);
    if (!hosts && (code = program_is_there(argv[at])) != 0) return code;
    workers = (worker *)calloc((size_t)n, sizeof *workers);
    if (!workers) return complain(1, "out of memory for %d workers", n);
    /* rank 0 takes a free port and tells it in a file; other machines see no such file */
    if (!hosts && !mkdtemp(folder)) return complain(1, "%s: %s", folder, strerror(errno));
    sets[set_count++] = hosts ? format("DREAMDDP_ADDR=%s:%d", host_list[0].name, port) : format("DREAMDDP_ADDR=file://%s/addr", folder);
    sets[set_count++] = format("DREAMDDP_RUN_ID=%s-%ld", hosts ? "ddprun" : folder + 5, (long)getpid());
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (int i = 0; i < 5; i++) sigaction(forwarded[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    for (int r = 0, h = 0, used = 0; r < n && !code; r++) {
        if (hosts && used == host_list[h].slots) h++, used = 0;
        used++;
        code = start(r, hosts ? host_list[h].name : NULL, argv + at);
    }
    if (code) tell_all(SIGKILL);
    else code = supervise();
    if (!hosts) {
        unlink(format("%s/addr", folder));
        rmdir(folder);
    }
    if (!quiet)
        fprintf(stderr, "ddprun: %d worker%s of %s, %.1f s, %s%s%s\n", n, n == 1 ? "" : "s", argv[at], now() - begun,
                code ? format("exit code %d", code) : "all well", summary[0] ? "; " : "", summary);
    return code;
}
