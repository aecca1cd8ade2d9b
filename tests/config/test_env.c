/* [pure] Launchers and variables: which launcher is recognised, and which settings are rejected. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "config/env.c"

#include <sys/socket.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* Unsets the variables of a launcher that runs the tests themselves. */
static int forget(void **state)
{
    static const char *const own[] = {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "PMIX_RANK",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_NUM_NODES",
        "SLURM_STEP_NODELIST",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_JOB_ID",
        "PMI_FD",
        "PMI_PORT",
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
        "DREAMDDP_RANKS",
        "DREAMDDP_",
        "DREAMDDP_NEET",
        "DREAMDDP_CUDA_STREAM",
        "DREAMDDP_JOINT",
    };
    ddp_setting known;
    size_t i;
    (void)state;
    for (i = 0; i < sizeof own / sizeof own[0]; i++) unsetenv(own[i]);
    for (i = 0; ddp_config_describe(NULL, (int)i, &known); i++)
        if (known.variable) unsetenv(known.variable);
    return 0;
}

/* Sets "NAME=value" for each entry, then reads the environment. */
static ddp_status read_with(const char *const *vars, ddp__env *env, ddp_error *err)
{
    memset(err, 0, sizeof *err);
    memset(env, 0xee, sizeof *env);
    forget(NULL);
    for (; *vars; vars++) {
        char name[64];
        const char *eq = strchr(*vars, '=');
        snprintf(name, sizeof name, "%.*s", (int)(eq - *vars), *vars);
        setenv(name, eq + 1, 1);
    }
    return ddp__env_read(env, err);
}

static void launchers_are_recognised_in_order(void **state)
{
    static const struct {
        const char *vars[9], *launcher;
        int rank, world, local;
        const char *addr;
    } cases[] = {
        {{NULL}, NULL, 0, 1, 0, ""},
        {{"DREAMDDP_RANK=2", "DREAMDDP_WORLD_SIZE=4", "RANK=1", "WORLD_SIZE=9"},
         "DREAMDDP_RANK",
         2,
         4,
         2,
         "127.0.0.1:29500"},
        {{"DREAMDDP_RANK=2", "DREAMDDP_WORLD_SIZE=4", "DREAMDDP_LOCAL_RANK=0", "DREAMDDP_ADDR=h:1"},
         "DREAMDDP_RANK",
         2,
         4,
         0,
         "h:1"},
        {{"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500",
          "SLURM_PROCID=0", "SLURM_STEP_ID=1", "SLURM_NTASKS=2"},
         "torchrun",
         3,
         8,
         1,
         "10.0.0.1:29501"},
        {{"RANK=3", "WORLD_SIZE=8", "MASTER_ADDR=fe::1", "MASTER_PORT=29500",
          "TORCHELASTIC_USE_AGENT_STORE=True"},
         "torchrun",
         3,
         8,
         3,
         "[fe::1]:29501"},
        {{"RANK=0", "WORLD_SIZE=1"}, "torchrun", 0, 1, 0, ""},
        {{"RANK=1", "WORLD_SIZE=2", "DREAMDDP_ADDR=a:5"}, "torchrun", 1, 2, 1, "a:5"},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
          "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
         "Open MPI",
         1,
         2,
         1,
         "127.0.0.1:29500"},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
         "Open MPI",
         1,
         4,
         1,
         ""},
        {{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0"}, "MPICH", 1, 2, 0, ""},
        {{"SLURM_PROCID=5", "SLURM_NTASKS=9", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_STEP_ID=0",
          "SLURM_STEP_NODELIST=node[01-03,07],gpu5"},
         "Slurm",
         5,
         8,
         1,
         "node01:29500"},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_LAUNCH_NODE_IPADDR=10.1.1.1"},
         "Slurm",
         0,
         2,
         0,
         "10.1.1.1:29500"},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=1"},
         "Slurm",
         0,
         2,
         0,
         "127.0.0.1:29500"},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=2"}, NULL, 0, 1, 0, ""},
        {{"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node7",
          "MASTER_PORT=41000", "TORCHELASTIC_USE_AGENT_STORE=True"},
         "torchrun",
         3,
         4,
         3,
         "127.0.0.1:41001"},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMIX_RANK=1", "SLURM_NTASKS=9"},
         "Open MPI",
         1,
         2,
         1,
         ""},
        {{"PMIX_RANK=3", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_STEP_ID=0", "SLURM_PROCID=3",
          "SLURM_STEP_NODELIST=rack[1-2]n[08-09]"},
         "PMIx",
         3,
         4,
         1,
         "rack1n08:29500"},
        {{"PMI_RANK=1", "PMI_SIZE=2", "SLURM_STEP_ID=0", "SLURM_LOCALID=0",
          "SLURM_STEP_NODELIST=node[007,009]"},
         "MPICH",
         1,
         2,
         0,
         "node007:29500"},
        {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=a[x],b",
          "SLURM_LAUNCH_NODE_IPADDR=fd00::1"},
         "Slurm",
         1,
         2,
         1,
         "[fd00::1]:29500"},
        {{"RANK=", "WORLD_SIZE="}, NULL, 0, 1, 0, ""},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddp__env env;
        ddp_error err;
        if (read_with(cases[i].vars, &env, &err) != DDP_OK) fail_msg("case %zu: %s", i, err.msg);
        if (cases[i].launcher)
            assert_string_equal(env.launcher, cases[i].launcher);
        else
            assert_null(env.launcher);
        assert_int_equal(env.rank, cases[i].rank);
        assert_int_equal(env.world, cases[i].world);
        assert_int_equal(env.local_rank, cases[i].local);
        assert_string_equal(env.addr, cases[i].addr);
    }
}

static void invalid_variables_fail_and_are_named(void **state)
{
    static const struct {
        const char *vars[6], *part;
    } cases[] = {
        {{"RANK=1"}, "RANK is set but WORLD_SIZE is not"},
        {{"WORLD_SIZE=2"}, "WORLD_SIZE is set but RANK is not"},
        {{"DREAMDDP_RANK=1"}, "DREAMDDP_RANK is set but DREAMDDP_WORLD_SIZE is not"},
        {{"DREAMDDP_WORLD_SIZE=2", "RANK=0", "WORLD_SIZE=1"}, "but DREAMDDP_RANK is not"},
        {{"OMPI_COMM_WORLD_RANK=0"}, "OMPI_COMM_WORLD_SIZE is not"},
        {{"PMI_SIZE=2"}, "PMI_RANK is not"},
        {{"SLURM_PROCID=1", "SLURM_STEP_ID=0"}, "SLURM_NTASKS is not"},
        {{"PMIX_RANK=0"}, "PMIX_RANK is set but SLURM_NTASKS is not"},
        {{"RANK=0", "WORLD_SIZE=2"}, "MASTER_ADDR is not"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x"}, "MASTER_PORT is not"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=y"}, "MASTER_PORT='y'"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=65536"}, "MASTER_PORT='65536'"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=65535"},
         "MASTER_PORT + 1, which is not a valid port; set DREAMDDP_ADDR=HOST:PORT"},
        {{"RANK=two", "WORLD_SIZE=2"}, "RANK='two' is not a whole number from 0 to 1"},
        {{"RANK=2", "WORLD_SIZE=2"}, "RANK='2' is not a whole number from 0 to 1"},
        {{"RANK=-1", "WORLD_SIZE=2"}, "RANK='-1'"},
        {{"RANK=0", "WORLD_SIZE=0"}, "WORLD_SIZE='0' is not a whole number from 1"},
        {{"RANK=0", "WORLD_SIZE=2x"}, "WORLD_SIZE='2x'"},
        {{"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=q"}, "LOCAL_RANK='q'"},
        {{"DREAMDDP_RANKS=1"}, "unknown environment variable DREAMDDP_RANKS: did you mean DREAMDDP_RANK?"},
        {{"DREAMDDP_JOINT=1"}, "did you mean DREAMDDP_JOIN?"},
        {{"DREAMDDP_NEET=1gbit"}, "did you mean DREAMDDP_NET?"},
        {{"DREAMDDP_CUDA_STREAM=1"}, "set fields without a variable in the program"},
        {{"DREAMDDP_=1"}, "unknown environment variable DREAMDDP_:"},
        {{"DREAMDDP_LOG=xyz"}, "DREAMDDP_LOG=xyz: off, error, warn, info or debug"},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddp__env env;
        ddp_error err;
        if (read_with(cases[i].vars, &env, &err) != DDP_ARG || !strstr(err.msg, cases[i].part))
            fail_msg("case %zu: '%s', expected '%s'", i, err.msg, cases[i].part);
    }
}

static void run_ids_and_settings_are_read_from_the_launcher(void **state)
{
    static const char *const a[] = {
        "DREAMDDP_RUN_ID=42", "DREAMDDP_NET=1gbit", "DREAMDDP_LOG=",          "DREAMDDP_SOCKET_IFNAME=^lo",
        "DREAMDDP_JOIN=1",    "DREAMDDP_RESUME=1",  "DREAMDDP_NO_CHECKSUM=1", NULL};
    static const char *const b[] = {"RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_RUN_ID=blue", NULL};
    static const char *const c[] = {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_JOB_ID=7", "SLURM_STEP_ID=3",
                                    NULL};
    static const char *const d[] = {
        "RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_RUN_ID=blue", "DREAMDDP_RUN_ID=red", "SLURM_JOB_ID=7", NULL};
    static const char *const e[] = {"SLURM_JOB_ID=7", NULL};
    static const char *const f[] = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1",
                                    "PMIX_NAMESPACE=758185985", NULL};
    ddp_config cfg;
    ddp__env env;
    ddp_error err;
    (void)state;
    assert_int_equal(read_with(a, &env, &err), DDP_OK);
    assert_string_equal(env.run_id, "42");
    memset(&cfg, 0, sizeof cfg);
    assert_int_equal(ddp__env_settings(ddp__built_in(), &cfg, &err), DDP_OK);
    assert_string_equal(cfg.net, "1gbit");
    assert_string_equal(cfg.network.socket_ifname, "^lo");
    assert_int_equal(cfg.elastic.join, 1);
    assert_int_equal(cfg.security.no_checksum, 1);
    assert_null(cfg.network.net2);
    assert_null(ddp__env_get("DREAMDDP_LOG"));
    assert_null(ddp__env_get("DREAMDDP_STRATEGY"));
    assert_int_equal(read_with(b, &env, &err), DDP_OK);
    assert_string_equal(env.run_id, "blue");
    assert_int_equal(read_with(c, &env, &err), DDP_OK);
    assert_string_equal(env.run_id, "7.3");
    assert_int_equal(read_with(d, &env, &err), DDP_OK);
    assert_string_equal(env.run_id, "red");
    assert_int_equal(read_with(e, &env, &err), DDP_OK);
    assert_string_equal(env.run_id, "");
    assert_int_equal(read_with(f, &env, &err), DDP_OK);
    assert_string_equal(env.run_id, "758185985");
}

/* The port in env.addr, which is in the range for runs. */
static int port_of(const ddp__env *env)
{
    const char *colon = strrchr(env->addr, ':');
    int port;

    assert_non_null(colon);
    port = atoi(colon + 1);
    assert_in_range(port, 20000, 31999);
    return port;
}

static void runs_on_one_machine_use_different_ports(void **state)
{
    static const char *const step0[] = {"SLURM_PROCID=1",
                                        "SLURM_NTASKS=2",
                                        "SLURM_JOB_ID=7",
                                        "SLURM_STEP_ID=0",
                                        "SLURM_STEP_NODELIST=n[1-2]",
                                        NULL};
    static const char *const step1[] = {"SLURM_PROCID=1",
                                        "SLURM_NTASKS=2",
                                        "SLURM_JOB_ID=7",
                                        "SLURM_STEP_ID=1",
                                        "SLURM_STEP_NODELIST=n[1-2]",
                                        NULL};
    static const char *const mpirun[] = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=758185985", NULL};
    static const char *const other[] = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=758185986", NULL};
    static const char *const named[] = {"SLURM_PROCID=0",
                                        "SLURM_NTASKS=2",
                                        "SLURM_JOB_ID=7",
                                        "SLURM_STEP_ID=0",
                                        "SLURM_STEP_NODELIST=n[1-2]",
                                        "DREAMDDP_RUN_ID=red",
                                        NULL};
    ddp__env env;
    ddp_error err;
    int port;

    (void)state;
    assert_int_equal(read_with(step0, &env, &err), DDP_OK);
    assert_true(!strncmp(env.addr, "n1:", 3));
    port = port_of(&env);
    assert_int_equal(read_with(step1, &env, &err), DDP_OK);
    assert_int_not_equal(port_of(&env), port);
    assert_int_equal(read_with(named, &env, &err), DDP_OK); /* even if only some ranks have the variable, they
                                                             * connect */
    assert_int_equal(port_of(&env), port);
    assert_string_equal(env.run_id, "red");
    assert_int_equal(read_with(mpirun, &env, &err), DDP_OK);
    port = port_of(&env);
    assert_int_equal(read_with(other, &env, &err), DDP_OK);
    assert_int_not_equal(port_of(&env), port);
}

/* Sets what MPICH's mpirun puts into a rank's environment: the rank's end of a socket pair. */
static void mpich_rank(int world, ddp__env *env)
{
    const char *const port[] = {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=2", "PMI_PORT=host:4000", NULL};
    char size[20], fd[20];
    const char *vars[] = {"PMI_RANK=1", size, "MPI_LOCALNRANKS=2", fd, NULL};
    ddp_error err;
    int pair[2];

    if (!world) {
        assert_int_equal(read_with(port, env, &err), DDP_OK);
        return;
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    snprintf(size, sizeof size, "PMI_SIZE=%d", world);
    snprintf(fd, sizeof fd, "PMI_FD=%d", pair[0]);
    assert_int_equal(read_with(vars, env, &err), DDP_OK);
    close(pair[0]);
    close(pair[1]);
}

static void two_mpich_runs_have_different_ids(void **state)
{
    ddp__env env, again;
    char name[DDP__JOB_TEXT];
    int pipe_fd[2], code;
    pid_t child;

    (void)state;
    mpich_rank(0, &env);
    assert_string_equal(env.run_id, "host:4000");
    (void)port_of(&env);
    mpich_rank(4, &env); /* two of four ranks are here: each machine has a separate mpirun */
    assert_string_equal(env.run_id, "");
    assert_string_equal(env.addr, "");
#ifdef SO_PEERCRED
    mpich_rank(2, &env);
    mpich_rank(2, &again);
    assert_string_not_equal(env.run_id, "");
    assert_string_equal(env.run_id, again.run_id);
    assert_int_equal(port_of(&env), port_of(&again));
    assert_int_equal(pipe(pipe_fd), 0);
    child = fork(); /* another mpirun */
    if (!child) {
        mpich_rank(2, &again);
        _exit(write(pipe_fd[1], again.run_id, sizeof again.run_id) != (ssize_t)sizeof again.run_id);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_int_equal(read(pipe_fd[0], name, sizeof name), sizeof name);
    assert_string_not_equal(name, env.run_id);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
#else
    (void)again, (void)name, (void)pipe_fd, (void)code, (void)child;
#endif
}

static void launcher_of_this_process_is_reported(void **state)
{
    static const char *const torch[] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=5", NULL};
    static const char *const half[] = {"RANK=1", NULL};
    static const char *const none[] = {NULL};
    const char *launcher;
    ddp__env env;
    ddp_error err;
    int rank, world;

    (void)state;
    assert_int_equal(read_with(torch, &env, &err), DDP_OK);
    assert_int_equal(ddp_launched(&launcher, &rank, &world, &err), DDP_OK);
    assert_string_equal(launcher, "torchrun");
    assert_true(rank == 1 && world == 2);
    assert_int_equal(read_with(none, &env, &err), DDP_OK);
    assert_int_equal(ddp_launched(&launcher, &rank, &world, &err), DDP_OK);
    assert_null(launcher);
    assert_true(rank == 0 && world == 0);
    assert_int_equal(read_with(half, &env, &err), DDP_ARG);
    assert_int_equal(ddp_launched(&launcher, &rank, &world, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "WORLD_SIZE"));
    assert_null(launcher);
    forget(NULL);
}

static void run_id_is_a_number_or_a_hashed_name(void **state)
{
    (void)state;
    assert_true(ddp__run_id(NULL) == 0 && ddp__run_id("") == 0);
    assert_true(ddp__run_id("42") == 42);
    assert_true(ddp__run_id("blue") != 0 && ddp__run_id("blue") != ddp__run_id("bluf"));
    assert_true(ddp__run_id("7.3") != 7);
    assert_true(ddp__run_id("99999999999999999999999") != UINT64_MAX); /* a name, not a number */
}

static void torchrun_ranks_use_the_port_after_master_port(void **state)
{
    static const char *const cases[][6] = {
        {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=5", "TORCHELASTIC_USE_AGENT_STORE=True",
         NULL},
        {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=5", "TORCHELASTIC_USE_AGENT_STORE=False",
         NULL},
        {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=5", NULL},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddp__env env;
        ddp_error err;
        assert_int_equal(read_with(cases[i], &env, &err), DDP_OK);
        assert_string_equal(env.addr, "x:6");
        assert_non_null(strstr(env.note, "MASTER_PORT + 1"));
    }
}

static void batch_script_without_srun_gets_a_note(void **state)
{
    static const char *const script[] = {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=4", NULL};
    static const char *const alone[] = {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=1", NULL};
    static const char *const step[] = {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=4",
                                       "SLURM_STEP_ID=0", NULL};
    ddp__env env;
    ddp_error err;
    (void)state;
    assert_int_equal(read_with(script, &env, &err), DDP_OK);
    assert_null(env.launcher);
    assert_int_equal(env.world, 1);
    assert_non_null(strstr(env.note, "start it with srun"));
    assert_int_equal(read_with(alone, &env, &err), DDP_OK);
    assert_null(env.note);
    assert_int_equal(read_with(step, &env, &err), DDP_OK);
    assert_null(env.note);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_recognised_in_order),
        cmocka_unit_test(invalid_variables_fail_and_are_named),
        cmocka_unit_test(run_ids_and_settings_are_read_from_the_launcher),
        cmocka_unit_test(runs_on_one_machine_use_different_ports),
        cmocka_unit_test(two_mpich_runs_have_different_ids),
        cmocka_unit_test(launcher_of_this_process_is_reported),
        cmocka_unit_test(run_id_is_a_number_or_a_hashed_name),
        cmocka_unit_test(torchrun_ranks_use_the_port_after_master_port),
        cmocka_unit_test(batch_script_without_srun_gets_a_note),
    };
    return cmocka_run_group_tests(tests, forget, NULL);
}
