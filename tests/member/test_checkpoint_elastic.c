/* [asan] Checkpoints of a run that loses workers, including rank 0: the lowest live worker completes them,
 * and a new run of the original size resumes. Written files survive a crash of the machine. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* ---- flushed files: text.c itself, with an fsync that counts ---- */

static int flushed_files, flushed_folders, flush_fails;

static int noting_fsync(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    if (S_ISDIR(st.st_mode))
        flushed_folders++;
    else
        flushed_files++;
    if (S_ISDIR(st.st_mode) && flush_fails) {
        errno = EIO;
        return -1;
    }
    return 0;
}

#include "base/platform.h"
#define fsync noting_fsync
#include "base/text.c"
#undef fsync

static void file_and_its_folder_are_flushed(void **state)
{
    char folder[] = "/tmp/dreamddp-flush-XXXXXX", path[100], back[100];
    ddp_error err;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a", folder);
    flushed_files = flushed_folders = 0;
    assert_int_equal(ddp__file_write(path, "x", 1, &err), DDP_OK);
    assert_int_equal(flushed_files, 1);
    assert_int_equal(flushed_folders, 1);
    flush_fails = 1;
    assert_int_equal(ddp__file_write(path, "xy", 2, &err), DDP_IO);
    flush_fails = 0;
    assert_non_null(strstr(err.msg, "its folder could not be flushed: Input/output error"));
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(ddp__file_write("b", "x", 1, &err), DDP_OK); /* a name without a folder */
    assert_int_equal(ddp__folder_flush("b//", &err), DDP_OK);
    assert_int_equal(ddp__folder_flush("/", &err), DDP_OK);
    assert_int_equal(chdir(back), 0);
    assert_int_equal(flushed_folders, 5);
    snprintf(path, sizeof path, "rm -rf %s", folder);
    assert_int_equal(system(path), 0);
}

/* ---- runs ---- */

enum { RANKS = 3, FLOATS = 5000 };

typedef struct board { /* shared memory */
    char folder[64];
    int load, victim;
    long dies_at, last; /* steps */
    double dies_after;  /* seconds after the step dies_at; < 0: never */
    long first[RANKS];
    uint64_t before[RANKS], after[RANKS]; /* hashes: after the load, after the last step */
} board;

static void *die_later(void *arg)
{
    board *b = (board *)arg;

    ddp__sleep_until(ddp_now() + b->dies_after);
    kill(getpid(), SIGKILL);
    return NULL;
}

static int train(ddp_ctx *d, void *user)
{
    static float params[FLOATS], grads[FLOATS];
    board *b = (board *)user;
    ddp_optimizer o = ddp_sgd(0.05f, 0.9f);
    int rank = ddp_rank(d), bad;
    ddp_layer layer;
    pthread_t thread;

    memset(&layer, 0, sizeof layer);
    layer.name = "one";
    layer.params = params;
    layer.grads = grads;
    layer.count = FLOATS;
    bad = ddp_add_layer(d, &layer) || ddp_set_optimizer(d, &o);
    if (!bad && b->load) bad = ddp_checkpoint_load(d, b->folder, NULL);
    b->first[rank] = ddp_step(d);
    b->before[rank] = ddp_hash_floats(0, params, FLOATS);
    while (!bad && ddp_step(d) < b->last) {
        bad = ddp_forward_begin(d, 0);
        for (int i = 0; i < FLOATS; i++)
            grads[i] += 0.1f * params[i] + (float)((rank * 7 + ddp_step(d) + i) % 11 - 5);
        if (!bad) bad = ddp_backward_end(d, 0);
        if (!bad) bad = ddp_step_end(d);
        if (rank == b->victim && ddp_step(d) == b->dies_at)
            assert_int_equal(pthread_create(&thread, NULL, die_later, b), 0);
        if (!bad) bad = ddp_checkpoint_save(d, b->folder, 2);
    }
    b->after[rank] = ddp_hash_floats(0, params, FLOATS);
    if (rank == b->victim) ddp__sleep_until(ddp_now() + 5); /* it is about to be killed */
    return bad;
}

static board *board_new(void)
{
    board *b = (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    strcpy(b->folder, "/tmp/dreamddp-elastic-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    return b;
}

static void run(board *b)
{
    ddp_config c;
    ddp_error err;

    memset(&c, 0, sizeof c);
    c.world = RANKS;
    c.strategy = DDP_LOCALSGD;
    c.period = 3;
    c.transport = DDP_TCP;
    c.deterministic = 1;
    c.elastic.min_world = 1;
    c.no_env = 1;
    c.seed = 5;
    c.timeout.peer_s = 60;
    fflush(NULL);
    if (ddp_launch(&c, train, b, &err) != DDP_OK) fail_msg("%s", err.msg);
}

/* The victim dies at some moment of a step or of a save; the others continue to the last step. Then all three
 * resume, the lost one from the file of another rank. */
static void die_and_go_on(int victim, double after, int step_of_death)
{
    board *b = board_new();
    char path[160];
    int own;

    b->victim = victim;
    b->dies_at = step_of_death;
    b->dies_after = after;
    b->last = 8;
    run(b);
    snprintf(path, sizeof path, "%s/step-%012d/manifest.json", b->folder, 8);
    if (access(path, R_OK)) fail_msg("killed after %g s: no %s", after, path);
    snprintf(path, sizeof path, "%s/step-%012d/rank-%04d.safetensors", b->folder, 8, victim);
    own = access(path, R_OK) == 0; /* it died after its last save had started */
    b->load = 1;
    b->victim = -1;
    b->last = 10;
    for (int r = 0; r < RANKS; r++)
        if (r != victim) b->before[r] = 0;
    {
        uint64_t was[RANKS];
        memcpy(was, b->after, sizeof was);
        run(b);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(b->first[r], 8);
            if (r != victim) assert_true(b->before[r] == was[r]);
        }
        if (!own) assert_true(b->before[victim] == was[(victim + 1) % RANKS]);
    }
    snprintf(path, sizeof path, "rm -rf %s", b->folder);
    assert_int_equal(system(path), 0);
    munmap(b, sizeof *b);
}

static void lowest_live_worker_completes_the_checkpoint(void **state)
{
    (void)state;
    die_and_go_on(0, 0, 2);
    die_and_go_on(2, 0, 2);
    die_and_go_on(1, 0, 3);
}

static void checkpoint_completes_whenever_rank_0_dies(void **state)
{
    ddp_rng rng = ddp_rng_seed(31, 0);
    (void)state;
    for (int i = 0; i < 4; i++) die_and_go_on(0, 0.012 * ddp_rng_uniform(&rng), 2 + i % 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_and_its_folder_are_flushed),
        cmocka_unit_test(lowest_live_worker_completes_the_checkpoint),
        cmocka_unit_test(checkpoint_completes_whenever_rank_0_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
