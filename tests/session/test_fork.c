/* A process that is forked from a worker: its calls fail, its ddp_close only closes descriptors, and the
 * run continues. */
#include "dreamddp.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { STEPS = 12, FORK_AT = 5, VALUES = 40, HANGS_S = 300 };

/* Number of open sockets, without the standard streams. */
static int sockets(void)
{
    struct stat s;
    int n = 0;

    for (int fd = 3; fd < 1024; fd++) n += fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode);
    return n;
}

static int wrong(const char *what)
{
    fprintf(stderr, "in the child: %s\n", what);
    return 1;
}

#define SEE(condition) \
    if (!(condition)) bad |= wrong(#condition)

/* Each of these calls would wait for a thread that the child does not have. */
static int calls_fail(ddp_ctx *d, ddp_graph *g)
{
    ddp_link_stats link;
    ddp_error err;
    ddp_stats stats;
    ddp_span span[8];
    float x[VALUES] = {0};
    int bad = 0, group = 0;

    SEE(ddp_forward_begin(d, 0) == (int)DDP_USAGE);
    SEE(ddp_backward_end(d, 0) == (int)DDP_USAGE);
    SEE(ddp_skip(d, 0) == (int)DDP_USAGE);
    SEE(ddp_step_end(d) == (int)DDP_USAGE);
    SEE(ddp_wait(d) == (int)DDP_USAGE);
    SEE(ddp_sync_all(d) == (int)DDP_USAGE);
    SEE(ddp_barrier(d) == (int)DDP_USAGE);
    SEE(ddp_all_mean(d, x, VALUES) == (int)DDP_USAGE);
    SEE(ddp_group(d, &group, 1, &group) == (int)DDP_USAGE);
    SEE(ddp_checkpoint_save(d, "/nowhere", 1) == (int)DDP_USAGE);
    SEE(ddp_measure_links(d) == (int)DDP_USAGE);
    SEE(ddp_get_link_stats(d, 0, &link) == (int)DDP_USAGE);
    SEE(ddp_dump(d, "/nowhere/dump", &err) == DDP_USAGE);
    SEE(ddp_forward(g) == (int)DDP_USAGE);
    SEE(ddp_evaluate(g) == (int)DDP_USAGE);
    SEE(strstr(ddp_last_error(d)->msg, "was forked"));
    SEE(ddp_trace_copy(d, span, 8) == 0);
    SEE(ddp_workers(d) == 1 && ddp_live(d) == 1 && ddp_epoch(d) == 0);
    SEE(ddp_rank(d) == 0 && ddp_step(d) == FORK_AT);
    SEE(!strcmp(ddp_last_algorithm(d), "none"));
    ddp_get_stats(d, &stats);
    SEE(stats.steps == FORK_AT);
    ddp_abort(d, "a child may not");
    return bad;
}

/* tcp: the child must close all sockets of the run. */
static int child(ddp_ctx *d, ddp_graph *g, int tcp)
{
    const int before = sockets();
    int bad = calls_fail(d, g);

    ddp_close(d);
    SEE(sockets() == (tcp ? 0 : before));
    SEE(!tcp || before > 0);
    return bad;
}

/* Forks a child that only calls ddp_close, as an exit handler does, and one that tries every call. Returns
 * how many failed. */
static int fork_children(ddp_ctx *d, ddp_graph *g, int tcp)
{
    int bad = 0;

    for (int tries = 0; tries < 2; tries++) {
        int status = -1;
        pid_t pid = fork();

        if (pid == 0) {
            signal(SIGALRM, SIG_DFL);
            alarm(HANGS_S);
            if (tries) _exit(child(d, g, tcp));
            ddp_close(d);
            _exit(0);
        }
        bad += pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status);
    }
    return bad;
}

/* A graph that is computed with two threads. */
static ddp_graph *small_graph(ddp_ctx *d, ddp_node **loss)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 256, 32), *y = ddp_input(g, "y", DDP_I32, 256, 1);

    ddp_layer_begin(g, "head");
    *loss = ddp_cross_entropy(g, ddp_linear(g, ddp_relu(g, ddp_linear(g, x, 64)), 4), y);
    ddp_layer_end(g);
    (void)ddp_graph_build(g);
    return g;
}

static int train(ddp_ctx *d, void *user)
{
    const int tcp = *(const int *)user;
    float mean = (float)ddp_rank(d);
    ddp_node *loss;
    ddp_graph *g = small_graph(d, &loss);

    for (int step = 0; step < STEPS; step++) {
        if (step == FORK_AT && ddp_rank(d) == 0 && fork_children(d, g, tcp)) return (int)DDP_FAILED;
        if (ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d)) break;
    }
    if (ddp_sync_all(d) || ddp_all_mean(d, &mean, 1)) return (int)ddp_last_error(d)->code;
    return ddp_step(d) == STEPS && mean > 0.49f && mean < 0.51f ? 0 : (int)DDP_FAILED;
}

static void run(ddp_transport transport)
{
    ddp_config cfg;
    ddp_error err;
    int tcp = transport == DDP_TCP;

    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = DDP_WFBP;
    cfg.transport = transport;
    cfg.world = 2;
    cfg.threads = 2;
    cfg.no_env = 1;
    if (ddp_launch(&cfg, train, &tcp, &err)) fail_msg("%s", err.msg);
}

static void forked_child_closes_its_descriptors_and_the_run_over_tcp_continues(void **state)
{
    (void)state;
    run(DDP_TCP);
}

static void forked_child_of_threads_returns_errors(void **state)
{
    (void)state;
    run(DDP_THREADS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forked_child_closes_its_descriptors_and_the_run_over_tcp_continues),
        cmocka_unit_test(forked_child_of_threads_returns_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
