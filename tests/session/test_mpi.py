#!/usr/bin/env python3
"""[long, test-all: needs Open MPI] The mpi transport with mpirun: results bit-identical to tcp and threads, thread levels, ranks
that die or stop, and user mistakes.

Needs mpicc, mpirun, build/train_gpt and build/bench_allreduce (`make all`); skipped without MPI."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Wrong, case, expect, run_cases, skip_script  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "OMPI_", "SLURM_", "PMI"))}
# Open MPI needs these to run as root, and with more ranks than cores
ENV.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
           OMPI_MCA_mpi_yield_when_idle="1", DREAMDDP_PEER_TIMEOUT="120")  # so that no rank is declared lost on a busy machine
GPT = "train_gpt --layers 2 --heads 2 --dim 16 --seq 20 --batch 2 --steps 8 --data text --quiet --deterministic".split()

PROGRAM = r"""
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *what = argv[1];
    float x[3] = {1, 2, 3};
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;
    int level = -1, bad;

    if (!strcmp(what, "plain")) MPI_Init(&argc, &argv);
    if (!strcmp(what, "serialized")) MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    memset(&cfg, 0, sizeof cfg);
    cfg.transport = DDP_MPI;
    cfg.timeout.peer_s = !strcmp(what, "still") || !strcmp(what, "idle") ? 2 : 60;
    if (!strcmp(what, "literal")) cfg.world = 3;
    d = ddp_open(&cfg, &err);
    if (!d) {
        printf("refused %d: %s\n", (int)err.code, err.msg);
        fflush(stdout);
        if (!strcmp(what, "plain")) MPI_Finalize();
        return strcmp(what, "plain") != 0;
    }
    bad = ddp_all_reduce(d, x, 3, 1);
    if (!strcmp(what, "idle")) {
        sleep(6);
        x[0] = 1, x[1] = 2, x[2] = 3;
        bad = bad || ddp_all_reduce(d, x, 3, 1);
    }
    printf("rank %d of %d: %g %g %g, level %d\n", ddp_rank(d), ddp_world(d), x[0], x[1], x[2], level);
    fflush(stdout);
    if (!strcmp(what, "still") && ddp_rank(d) == 1) raise(SIGSTOP);
    if (!strcmp(what, "killed") && ddp_rank(d) == 1) raise(SIGKILL);
    if (!strcmp(what, "still") || !strcmp(what, "killed")) bad = ddp_all_reduce(d, x, 3, 1);
    ddp_close(d);
    if (!strcmp(what, "twice")) {
        d = ddp_open(&cfg, &err);
        printf("again %d: %s\n", (int)err.code, d ? "open" : err.msg);
        ddp_close(d);
    }
    if (level >= 0) {
        MPI_Allreduce(MPI_IN_PLACE, x, 3, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        printf("after %g\n", x[0]);
        MPI_Finalize();
    }
    return bad;
}
"""


def run(command, ranks=0, code=0, env=()):
    """Runs a command. Returns stdout, and stdout plus stderr. code None: any exit code except 0."""
    words = [*(["mpirun", "-n", str(ranks)] if ranks else []),
             os.path.abspath("program") if command[0] == "program" else os.path.join(BUILD, command[0]),
             *map(str, command[1:])]
    p = subprocess.Popen(words, text=True, env=dict(ENV, **dict(env)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         start_new_session=True)
    try:
        out, err = p.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        raise Wrong("hangs: %s" % " ".join(words))
    ok = p.returncode != 0 if code is None else p.returncode == code
    expect(ok, "exit %d of %s: %s" % (p.returncode, words, (out + err)[-600:]))
    return out, out + err


def last(out):
    return json.loads(out.strip().splitlines()[-1])


@case
def all_reduce_is_bit_identical_on_all_transports(_):
    for ranks in (2, 3, 4):
        for size in (4, 4 * 1023, 3 << 20):
            base = ["bench_allreduce", "--ranks", ranks, "--bytes", size, "--iters", 2, "--deterministic"]
            seen = [last(run([*base, "--transport", "mpi"], ranks)[0])]
            seen += [last(run([*base, "--transport", t])[0]) for t in ("tcp", "threads")]
            expect(len({r["result_hash"] for r in seen}) == 1, "%d ranks, %d bytes: %s" % (ranks, size, seen))
            expect(seen[0]["ranks"] == ranks, "mpirun -n %d gave %d ranks" % (ranks, seen[0]["ranks"]))


@case
def training_is_bit_identical_over_mpi_and_tcp(_):
    for ranks, strategy in ((2, "ssgd"), (3, "localsgd"), (4, "dreamddp"), (2, "wfbp"), (3, "enp"), (3, "usbyte"), (3, "deft")):
        base = [*GPT, "--strategy", strategy, "--period", 3]
        mpi = last(run([*base, "--transport", "mpi"], ranks)[0])
        tcp = last(run([*base, "--transport", "tcp", "--workers", ranks])[0])
        for key in ("param_hash", "final_loss"):
            expect(mpi[key] == tcp[key], "%s of %s, %d ranks: %s over mpi, %s over tcp" % (
                key, strategy, ranks, mpi[key], tcp[key]))


@case
def servers_are_bit_identical_over_mpi_and_tcp(_):
    for workers, servers, strategy in ((2, 1, "bsp"), (2, 1, "r2sp"), (3, "colocated", "osp"), (2, 1, "osp")):
        base = [*GPT, "--strategy", strategy, "--servers", servers, *(["--defer", 0.6] if strategy == "osp" else [])]
        ranks = workers + (servers if servers == 1 else 0)
        mpi = last(run([*base, "--transport", "mpi"], ranks)[0])
        tcp = last(run([*base, "--transport", "tcp", "--workers", workers])[0])
        for key in ("param_hash", "final_loss", "workers", "deferred_pct"):
            expect(mpi[key] == tcp[key], "%s of %s, servers %s: %s over mpi, %s over tcp" % (
                key, strategy, servers, mpi[key], tcp[key]))


@case
def the_program_may_have_initialised_mpi(_):
    out = run(["program", "serialized"], 3)[0]
    for rank in range(3):
        expect("rank %d of 3: 3 6 9, level 2" % rank in out or "rank %d of 3: 3 6 9, level 3" % rank in out,
               "no sum of rank %d in: %s" % (rank, out))
    expect(out.count("after 9") == 3, "the program could not use MPI after ddp_close: " + out)


@case
def too_low_thread_level_is_named(_):
    both = run(["program", "plain"], 2)[1]
    expect(both.count("refused") == 2, "not refused on both ranks: " + both)
    for word in ("MPI_THREAD_SINGLE", "MPI_Init_thread", "MPI_THREAD_SERIALIZED"):
        expect(word in both, "no %s in: %s" % (word, both))


@case
def reopening_after_mpi_finalize_fails(_):
    both = run(["program", "twice"], 2)[1]
    expect(both.count("again 2:") == 2 and both.count("was finalised in this process") == 2, both)


@case
def ranks_that_differ_from_mpi_fail(_):
    both = run(["program", "literal"], 2, None)[1]
    expect("differs from MPI's rank" in both and "of 2" in both, both)


@case
def killed_rank_ends_the_job(_):
    both = run(["program", "killed"], 3, None)[1]
    expect("rank 1" in both and ("signal 9" in both or "lost" in both or "closed" in both), both)


@case
def stopped_rank_ends_the_job(_):
    both = run(["program", "still"], 3, None)[1]
    expect("dreamddp: rank" in both and "rank 1" in both, "no error of the library: " + both)


@case
def all_ranks_may_be_idle_for_three_time_outs(_):
    out = run(["program", "idle"], 2)[0]
    expect(out.count(": 2 4 6") == 2, out)


@case
def user_mistakes_fail_with_an_error(_):
    mistakes = [
        (["bench_allreduce", "--transport", "mpi", "--ranks", 3], "mpirun -n 3"),
        (["bench_allreduce", "--transport", "mpy"], "tcp, threads or mpi"),
        ([*GPT, "--transport", "mpi", "--workers", 2], "mpirun -n 2"),
        ([*GPT, "--transport", "mpi", "--workers", 2, "--rank", 0, "--addr", "127.0.0.1:29888"], "--transport tcp"),
    ]
    for command, sentence in mistakes:
        both = run(command, code=None)[1]
        expect(sentence in both and both.count("\n") <= 2, "%s: %s" % (command, both))


def main():
    if not shutil.which("mpirun") or not shutil.which("mpicc"):
        skip_script("no mpirun or mpicc")
    with open(os.path.join(BUILD, "mpi.flags")) as f:
        if "DDP_USE_MPI" not in f.read():
            skip_script("the programs were built without MPI")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("text", "w") as f:
            f.write("the quick brown fox jumps over the lazy dog\n" * 60)
        with open("program.c", "w") as f:
            f.write(PROGRAM)
        subprocess.run(["mpicc", "-O0", "-DDDP_USE_MPI", "-DDDP_NO_PLANNERS", "-DDDP_NO_MODELS", "-DDDP_NO_REPORTS", "-isystem",
                        os.path.join(ROOT, "build", "include"), "-I", ROOT, "program.c", "-o", "program", "-lm", "-lpthread"], check=True)
        return run_cases()


if __name__ == "__main__":
    sys.exit(main())
