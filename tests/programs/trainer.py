"""Runs the trainers and other programs for tests/programs, each in its own process group, in the folder of the case.

A program must leave no process of its group and no temporary file, and print at most one line on stderr if it fails.
"""
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import CASES, Wrong, case as plain_case, chosen, expect, run_cases, ticks, unused_address  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
TRAIN = os.path.join(BUILD, "train_gpt")
GRADIENTS = ["ssgd", "wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte"]
PARAMETERS = ["localsgd", "enp", "dreamddp"]
OUTER = ["diloco", "sparseloco"]
STRATEGIES = GRADIENTS + PARAMETERS + ["deft"] + OUTER
MEAN = ["--outer-lr", 1, "--outer-momentum", 0]
SMALL = "--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --data text --quiet".split()
TEXT_MODEL = "--layers 2 --heads 2 --dim 16 --seq 16 --batch 2 --data text --quiet".split()
LAYERS = 4  # embed, h.0.attn, h.0.mlp, head
PERIOD = ["--period", "4"]
PATIENCE = 180  # time-out in seconds that only a hang exceeds, even on a busy machine
STARTED = {}  # folder of a case: its processes
LONG = SMALL + ["--steps", "100000000"]


def case(name):
    """Registers a case whose folder contains a text. Its remaining processes are killed if it fails."""
    def with_text(function, folder):
        with open(os.path.join(ROOT, "dreamddp.h")) as f:
            write(folder, "text", f.read(30000))
        try:
            function(folder)
        finally:
            for p in STARTED.pop(folder, []):
                if p.poll() is None:
                    os.killpg(p.pid, signal.SIGKILL)
                    p.communicate()
    return lambda function: plain_case(name)(functools.partial(with_text, function))


def environment(extra):
    """The environment without variables of launchers and of this library, plus the extra ones."""
    own = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|SLURM_|MASTER_")
    return dict({k: v for k, v in os.environ.items() if not own.match(k)}, **extra)


def start(folder, *args, program=TRAIN, env=None, limit=None, stderr=subprocess.PIPE):
    def shrink():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    p = subprocess.Popen([program, *map(str, args)], cwd=folder, env=environment(env or {}), text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                         start_new_session=True, preexec_fn=shrink if limit else None)
    STARTED.setdefault(folder, []).append(p)
    return p


def members(group):
    """The running processes of a group, without zombies."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                state, _, of = f.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state not in "ZX":
            found.append(int(pid))
    return found


def ranks_of(p):
    """The workers of a launcher in start order. Process ids wrap around at pid_max."""
    with open("/proc/sys/kernel/pid_max") as f:
        most = int(f.read())
    return sorted(set(members(p.pid)) - {p.pid}, key=lambda pid: (pid - p.pid) % most)


def finish(p, folder):
    """Waits for a program. Returns (exit code, stdout, stderr). Fails if the program left a process or a temporary
    file."""
    try:
        out, err = p.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, err = p.communicate()
        raise Wrong("still running after %g s; stderr: %s" % (PATIENCE, err[-300:])) from None
    gone = time.time() + 20
    while members(p.pid) and time.time() < gone:
        time.sleep(0.02)
    left = members(p.pid)
    if left:
        os.killpg(p.pid, signal.SIGKILL)
    expect(not left, "%d processes still run" % len(left))
    partial = [f for f in os.listdir(folder) if ".tmp." in f]
    expect(not partial, "left " + " ".join(partial))
    return p.returncode, out, err


def run(folder, *args, code=0, **how):
    got, out, err = finish(start(folder, *args, **how), folder)
    expect(got == code, "exit %d, expected %d; stderr: %s" % (got, code, err[-300:]))
    return out, err


def sentence(err, *words, program="train_gpt"):
    # a line about the data may come first
    lines = [s for s in err.splitlines() if s.strip() and not s.startswith("data: ")]
    expect(len(lines) == 1, "%d lines on stderr, expected one: %s" % (len(lines), err[-400:]))
    expect(lines[0].startswith(program + ": "), "not from %s: %s" % (program, lines[0]))
    for w in words:
        expect(re.search(w, lines[0]), "no /%s/ in: %s" % (w, lines[0]))


def result(out):
    lines = out.splitlines()
    expect(lines, "nothing on stdout")
    return json.loads(lines[-1])


def train(folder, *args, **how):
    return result(run(folder, *args, **how)[0])


def write(folder, name, text):
    with open(os.path.join(folder, name), "w") as f:
        f.write(text)
    return name


def wait_until(holds, what):
    end = time.time() + PATIENCE
    while not holds():
        expect(time.time() < end, what)
        time.sleep(0.02)


def wait_until_computing(p, pids):
    """Waits until each of these processes has used a tenth of a second of CPU time, which only training takes."""
    wait_until(lambda: p.poll() is not None or all(ticks(k) >= 10 for k in pids), "the training did not begin")
    expect(p.poll() is None, "the training ended early")


def csv(*rows, header="layer,params,forward_s,backward_s,comm_s"):
    return "\n".join([header, *rows]) + "\n"


PLACE = '{"cost_s": 1, "assign": [[0, 3], [2, 1]]}\n'
CUT = '{"pipeline_s": 1, "operators": 15, "segments": [%s]}'
SEGMENT = '{"device": %d, "first": %d, "end": %d}'


def cut(*segments):
    return CUT % ", ".join(SEGMENT % s for s in segments)


def pair(folder, first, second, env=None):
    """Starts two ranks with their own arguments. Returns a list of (exit code, stdout, stderr)."""
    addr = unused_address()
    ranks = [start(folder, *SMALL, "--steps", 6, "--workers", 2, "--rank", r, "--addr", addr, *more, env=env)
             for r, more in enumerate([first, second])]
    return [finish(p, folder) for p in ranks]


def training(folder, *more, env=None, workers=4):
    """Starts a long run over TCP and waits until it trains. Returns the process and its workers in rank order."""
    p = start(folder, *LONG, *PERIOD, "--workers", workers, "--net", "100mbit,1ms", *more, env=env)
    wait_until(lambda: len(members(p.pid)) == workers + 1, "%d workers did not start" % workers)
    ranks = ranks_of(p)
    wait_until_computing(p, ranks)
    return p, ranks


def lost(name, number, which, env=None):
    @case(name)
    def check(folder):
        p, ranks = training(folder, "--strategy", "dreamddp", "--json", "x.jsonl", env=env)
        os.kill(ranks[which], number)
        code, out, err = finish(p, folder)
        expect(code == 3, "exit %d, expected 3: %s" % (code, err))
        sentence(err, "rank %d" % (which % 4), "(during|after) .*(layer|step)")
        with open(os.path.join(folder, "x.jsonl")) as f:
            events = [json.loads(line) for line in f]
        expect([e["event"] for e in events] == ["run", "error"], "JSON lines: %s" % events)
        expect(events[1]["exit_code"] == 3, "JSON lines: %s" % events[1])


# Three pipelines of two stages, on links so slow that a step takes tenths of a second.
PIPES = TEXT_MODEL + "--workers 6 --stages 2 --microbatches 2 --strategy ssgd --net 100mbit,10ms --steps 40".split()


class Watched:
    """A run of PIPES whose evaluations show its progress."""

    def __init__(self, folder, *more):
        self.folder, self.name = folder, os.path.join(folder, "err%d" % len(STARTED.get(folder, [])))
        args = [a for a in PIPES if a != "--quiet"]
        with open(self.name, "w") as err:
            self.process = start(folder, *args, "--eval-every", 5, "--val-batches", 1, *more, stderr=err)

    def said(self):
        with open(self.name) as f:
            return f.read()

    def wait_for_evaluations(self, count):
        wait_until(lambda: self.process.poll() is not None or self.said().count("val_loss") >= count, "no evaluation")
        expect(self.process.poll() is None, "the training ended early: " + self.said()[-300:])

    def finish(self):
        """(exit code, stdout, stderr without progress lines)"""
        code, out, _ = finish(self.process, self.folder)
        err = re.sub(r"^(ssgd +step|memory:|slowest:) .*\n", "", self.said(), flags=re.M)
        os.remove(self.name)
        return code, out, err


def stage_lost(folder, which, *more):
    """Runs PIPES and kills the ranks one at a time, each after one more evaluation. Returns (exit code, stdout,
    stderr)."""
    run_of_pipes = Watched(folder, *more)
    wait_until(lambda: len(members(run_of_pipes.process.pid)) == 7, "6 workers did not start")
    ranks = ranks_of(run_of_pipes.process)
    for i, w in enumerate(which):
        run_of_pipes.wait_for_evaluations(i + 1)
        os.kill(ranks[w], signal.SIGKILL)
    return run_of_pipes.finish()


def run_script(jobs, *programs):
    """Runs the chosen cases. programs: the programs in build/ that the cases need."""
    missing = [n for n in programs if not os.path.exists(os.path.join(BUILD, n))]
    if missing:
        print("FAILED: not built: %s; run make all first" % " ".join(missing))
        print("0 passed, %d failed, 0 skipped" % sum(chosen(name) for name, _ in CASES))
        return 1
    return run_cases(jobs)
