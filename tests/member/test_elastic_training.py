#!/usr/bin/env python3
"""[long, test-all: slow] build/train_gpt in an elastic world, as a user runs it: workers die, others join, and the run continues.

The trainer itself compares the parameters of all workers after the last averaging.
"""
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Skipped, Wrong, case, run_cases, unused_address  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN = os.path.join(ROOT, os.environ.get("BUILD", "build"), "train_gpt")
DEVICE = os.path.join(ROOT, "build/cuda/train_gpt")  # on the stand-in of tests/cuda_on_cpu
SHAPE = "--layers 2 --heads 2 --dim 32 --seq 32 --batch 4 --lr 0.003".split()
SMALL = "--layers 1 --heads 2 --dim 8 --seq 8 --batch 2 --lr 0.003 --device cuda".split()
OWN = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|MASTER_|TORCHELASTIC_")


STARTED = []


class Run:
    """Workers of one run, each in a process."""

    def __init__(self, folder, workers, strategy, steps, program=TRAIN, shape=SHAPE, least=2, env=()):
        self.addr = unused_address()
        self.folder = folder
        self.program = program
        self.env = dict(env, DREAMDDP_LOG="info")
        self.options = [*shape, *"--period 4 --data".split(), os.path.join(ROOT, "dreamddp.h"), "--min-world", str(least), "--workers", str(workers),
                        "--strategy", strategy, "--steps", str(steps)]
        self.worker = [self.start("--rank", str(r), "--addr", self.addr) for r in range(workers)]

    def join(self, addr):
        """Starts a joining worker with the command of docs/howto/wan-elastic.md: the run determines the number of workers."""
        at = self.options.index("--workers")
        whole, self.options = self.options, self.options[:at] + self.options[at + 2:]
        p = self.start("--join", "--addr", addr)
        self.options = whole
        return p

    def start(self, *how):
        name = os.path.join(self.folder, "%s-%f" % ("".join(how).replace("/", ""), time.time()))
        clean = {k: v for k, v in os.environ.items() if not OWN.search(k)}
        p = subprocess.Popen([self.program, *self.options, *how], stdout=open(name + ".out", "w"), stderr=open(name + ".err", "w"),
                             env=dict(clean, **self.env))
        p.name = name
        STARTED.append(p)
        return p

    def says(self, p, pattern, seconds=120):
        """Waits until a worker prints the text. Returns None if it never does."""
        until = time.time() + seconds
        while time.time() < until:
            found = re.search(pattern, open(p.name + ".err").read())
            if found:
                return found
            if p.poll() is not None:
                break
            time.sleep(0.05)
        return re.search(pattern, open(p.name + ".err").read())

    def begins(self):
        """All workers are connected and train; progress lines would come too late."""
        for p in self.worker:
            expect(self.says(p, r"workers can join"), "training does not begin", self)
        time.sleep(1)

    def end(self, seconds=300):
        codes = [p.wait(timeout=seconds) for p in self.worker]
        out = [open(p.name + ".out").read().strip() for p in self.worker]
        return codes, [json.loads(o.splitlines()[-1]) for o in out if o]

    def kill(self, i):
        self.worker[i].kill()
        self.worker.pop(i).wait()


def expect(holds, what, run=None):
    if not holds:
        for p in run.worker if run else []:
            print("   ", p.name, open(p.name + ".err").read()[-300:])
        raise Wrong(what)


def goes_on(folder, strategy, victim, steps=6000, loss=3.2, **what):
    """A worker dies, another joins in its place, and the run ends as if nothing had happened."""
    run = Run(folder, 3, strategy, steps, **what)
    run.begins()
    address = run.says(run.worker[1], r"workers can join[^\n]*?(127\.0\.0\.1:\d+)")
    expect(address, "no address for joining workers in the log", run)
    run.kill(victim)
    expect(run.says(run.worker[1], r"epoch \d+ with 2 workers"), "no epoch without the victim", run)
    run.worker.append(run.start("--join", "--addr", address.group(1) if victim == 0 else run.addr))
    expect(run.says(run.worker[1], r"worker %d joined" % victim), "the worker did not join", run)
    codes, results = run.end()
    expect(codes == [0, 0, 0], "exit codes %s" % codes, run)
    expect(len(results) == 1, "%d workers printed results" % len(results), run)
    expect(results[0]["final_loss"] < loss, "final_loss %.3f" % results[0]["final_loss"], run)


def no_majority(folder):
    """Two of three workers die at once: the last one fails with exit code 3 and an error."""
    run = Run(folder, 3, "localsgd", 1000000)
    run.begins()
    run.kill(2)
    run.kill(1)
    expect(run.worker[0].wait(timeout=120) == 3, "exit code %s" % run.worker[0].returncode, run)
    expect(run.says(run.worker[0], r"quorum|continue without"), "no error about the quorum", run)


def alone_of_two(folder):
    """Rank 0 of two is killed: the other may not continue, and fails as soon as the connection ends."""
    run = Run(folder, 2, "localsgd", 1000000, least=1, env={"DREAMDDP_PEER_TIMEOUT": "600"})
    run.begins()
    run.kill(0)
    expect(run.worker[0].wait(timeout=120) == 3, "exit code %s" % run.worker[0].returncode, run)
    expect(run.says(run.worker[0], r"rank 0 was lost.*(during|after) \S+ of .*only rank 0 may continue alone"),
           "no error about the quorum", run)


def leaves(folder):
    """SIGTERM makes one worker leave, and another may join in its place."""
    run = Run(folder, 3, "localsgd", 6000)
    run.begins()
    run.worker[1].terminate()
    expect(run.worker[1].wait(timeout=120) == 130, "exit code %s" % run.worker[1].returncode, run)
    expect(run.says(run.worker[1], r"interrupted: this worker has left the run"), "no line says that it left", run)
    run.worker.pop(1)
    expect(run.says(run.worker[0], r"epoch \d+ with 2 workers[^\n]*worker 1 was lost: it closed"), "the others did not continue without it", run)
    run.worker.append(run.join(run.addr))
    expect(run.says(run.worker[0], r"worker 1 joined"), "the worker did not join", run)
    codes, results = run.end()
    expect(codes == [0, 0, 0] and len(results) == 1, "exit codes %s, %d results" % (codes, len(results)), run)


def on_a_device(folder):
    if not os.path.exists(DEVICE):
        raise Skipped("no build/cuda/train_gpt")
    goes_on(folder, "enp", 2, 240, 4.2, program=DEVICE, shape=SMALL)


def crowd(folder):
    """Far more workers than processors: no worker is declared lost with the default time-outs."""
    run = Run(folder, 64, "wfbp", 12)
    codes, results = run.end()
    expect(codes == 64 * [0] and len(results) == 1, "exit codes %s, %d results" % (codes, len(results)), run)
    expect(results[0]["workers"] == 64, "%d workers at the end" % results[0]["workers"], run)


def then_kill_all(function, folder):
    try:
        function(folder)
    finally:
        for p in STARTED:
            p.kill()
            p.wait()
        STARTED.clear()


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(c) for c in f.read().split()]


def leaves_its_family(folder):
    """The same for workers that one command started; SIGTERM to the command ends the run."""
    for whole in (False, True):
        run = Run(folder, 0, "ssgd", 1500)
        run.options[run.options.index("--workers") + 1] = "3"
        p = run.start()
        run.worker.append(p)
        expect(run.says(p, r"rank 2: workers can join"), "training does not begin", run)
        time.sleep(0.5)
        os.kill(p.pid if whole else children(p.pid)[2], signal.SIGTERM)
        code = p.wait(timeout=120)
        expect(code == (130 if whole else 0), "exit code %d" % code, run)
        expect(whole or run.says(p, r"epoch \d+ with 2 workers"), "no worker left", run)


for _name, _function in (("dreamddp, a worker dies", lambda f: goes_on(f, "dreamddp", 2)),
                         ("localsgd, the coordinator dies", lambda f: goes_on(f, "localsgd", 0)),
                         ("ssgd, a worker dies", lambda f: goes_on(f, "ssgd", 1, 4000)), ("two of three die", no_majority),
                         ("the lower of two dies", alone_of_two), ("a worker gets SIGTERM", leaves),
                         ("one of a command's workers gets SIGTERM", leaves_its_family), ("64 workers", crowd), ("enp on a device, a worker dies", on_a_device)):
    case(_name)(functools.partial(then_kill_all, _function))


if __name__ == "__main__":
    if not os.path.exists(TRAIN):
        sys.exit("build/train_gpt is missing: run make first")
    sys.exit(run_cases())
