#!/usr/bin/env python3
"""Random kills, stalls, drops and joins for several minutes, in several worlds at a time; or the steps of a day.

    tests/member/soak.py build/plain --minutes 10 [--events 10000] [--jobs 6] [--seed N] [--state FILE]
    tests/member/soak.py build/plain --day [--strategy dreamddp|all] [--steps 86400]

The first form ends after the minutes, or as soon as the events have happened; with --events alone it has no time limit.
It runs every strategy that supports elastic worlds. All randomness follows from the seed and the number of a call, so a
million events are one long soak, which can be interrupted and resumed:

    tests/member/soak.py build/plain --events 1000000 --state soak.json         hours; Ctrl-C, or a crash
    tests/member/soak.py build/plain --events 1000000 --state soak.json         resumes with the same seed

The state is written when a call of a test begins and when it ends. It counts events by kind, case and strategy; calls
that were interrupted are repeated. From 100,000 events on, a call has four times as many runs. The script checks
memory in two ways. Within a call, it compares the process after each run of a world: the median of the second half may
exceed the median of the first half by --growth-kib. Over the calls of a case, it compares the peak of the largest process, workers
included: the peak may exceed that of the soak's first tenth by as much. More is a failure, except under sanitizers, which
retain freed memory.

--day runs as many steps as a day has seconds, as fast as possible, in one run of two processes with two ranks each (and a
server if the strategy needs one), with a checkpoint every tenth of the steps. After the first tenth, the memory of a
process may not grow by more than --growth-kib. The script reports its slope.

The last line is a JSON object. Exit code 1: a run failed or hung, or memory grew. The script prints its output and the
command that repeats it. Exit code 130: interrupted.
"""
import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib

# test, case, runs per call, time-out in seconds
MIX = [
    ("member/test_elastic", "survivors_agree_after_a_death_over_threads", 50, 300),
    ("wire/test_resume", "operations_are_bit_identical_after_breaks", 1, 300),
    ("member/test_elastic", "survivors_agree_after_a_death_in_a_ring", 50, 300),
    ("member/test_admit", "deaths_during_an_admission_leave_equal_results", 50, 300),
    ("member/test_every_strategy", "survivors_agree_after_deaths_in_every_strategy", 17, 300),
    ("member/test_elastic", "stalled_worker_continues_or_is_declared_lost", 20, 300),
    ("member/test_elastic", "survivors_agree_after_a_death_over_tcp", 50, 300),
    ("member/test_admit", "deaths_during_an_admission_leave_equal_results", 50, 300),
    ("member/test_elastic", "survivors_agree_after_processes_are_killed", 40, 300),
    ("member/test_elastic", "survivors_agree_after_two_deaths", 20, 300),
    ("member/test_join", "dead_joining_workers_free_their_ids", 1, 300),
    ("member/test_entry", "worker_enters_after_the_collectives_between_two_steps", 1, 300),
    ("member/test_admit", "deaths_during_an_admission_leave_equal_results", 50, 300),
    ("member/test_join", "killed_worker_rejoins", 1, 300),
    ("member/test_elastic", "survivors_agree_after_deaths_in_int8_all_reduces", 20, 300),
    ("member/test_join", "killed_worker_rejoins_with_outer_steps", 1, 300),
    ("member/test_join", "joining_worker_survives_its_donor", 1, 300),
]
MIX_NUMBER = zlib.crc32(repr(MIX).encode())  # a state file of another list does not fit
KINDS = ("kills", "stalls", "drops", "joins")
SYNCHRONOUS = ("ssgd wfbp localsgd enp dreamddp mgwfbp ascwfbp bytescheduler usbyte deft diloco sparseloco").split()
SERVED = ("bsp asp ssp r2sp osp").split()
OWN = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|MASTER_|TORCHELASTIC_")


def kib_of(pid):
    """Resident memory of a process that may have ended."""
    try:
        with open("/proc/%d/statm" % pid) as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024
    except (OSError, IndexError):
        return 0


def growth(kib, part, of=max):
    """Maximum after the first part, relative to the maximum within it."""
    first = int(part * len(kib))
    return int(of(kib[first:]) - of(kib[:first])) if len(kib) >= 10 else 0


class Soak:
    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.running = {}  # number: process
        self.interrupted = False
        self.judged = "san" not in os.path.basename(os.path.normpath(args.folder))
        self.s = {"build": os.path.basename(os.path.normpath(args.folder)), "seed": args.seed, "mix": MIX_NUMBER, "next": 0,
                  "times": 4 if 10**5 <= args.events < 10**9 else 1, "again": [], "calls": 0, "seconds": 0.0,
                  "events": dict.fromkeys(KINDS, 0), "cases": {}, "strategies": {}, "sessions": 0, "failed": None}
        if args.state and os.path.exists(args.state):
            with open(args.state) as f:
                old = json.load(f)
            for key in ("build", "seed", "mix"):
                if old[key] != self.s[key] and not (key == "seed" and args.seed is None):
                    sys.exit("soak.py: %s is of another %s: %s, not %s" % (args.state, key, old[key], self.s[key]))
            self.s = old
            self.s["failed"] = None
        self.s["seed"] = self.s["seed"] or 0
        self.s["sessions"] += 1
        self.again, self.s["again"] = self.s["again"], []
        self.before, self.begin = self.s["seconds"], time.monotonic()

    def seconds(self):
        return self.before + time.monotonic() - self.begin

    def total(self):
        return sum(self.s["events"].values())

    def over(self):
        return (self.s["failed"] or self.interrupted or time.monotonic() > self.begin + 60 * self.args.minutes or
                self.total() >= self.args.events)

    def early(self):
        """Whether the soak is in its first tenth."""
        return (self.total() < 0.1 * self.args.events if self.args.events < 10**9 else self.seconds() < 6 * self.args.minutes)

    def save(self):
        """The caller holds the lock."""
        if not self.args.state:
            return
        self.s["again"] = sorted(self.running) + self.again
        self.s["seconds"] = round(self.seconds(), 1)
        with open(self.args.state + ".new", "w") as f:
            json.dump(self.s, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        os.replace(self.args.state + ".new", self.args.state)

    def one(self, number):
        test, case, runs, limit = MIX[number % len(MIX)]
        runs, limit = runs * self.s["times"], limit * self.s["times"]
        setting = {"TEST_ONLY": case, "ELASTIC": str(runs), "SOAK": "1",
                   "SEED_BASE": str(self.s["seed"] + 100000 + 1000 * number)}
        program = os.path.join(self.args.folder, test)
        p = subprocess.Popen([program], env={**os.environ, **setting}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, errors="replace", start_new_session=True)
        with self.lock:
            self.running[number] = p
            self.save()
        hangs = threading.Event()
        timer = threading.Timer(limit, lambda: (hangs.set(), self.end(p)))
        timer.start()
        text, kib = [], []
        for line in p.stdout:
            text.append(line)
            if line.startswith("events "):
                kib.append(kib_of(p.pid))
        p.stdout.close()
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        timer.cancel()
        grown = growth(kib, 0.5, statistics.median)  # the maximum is at the moment in which a world ends
        why = "it hangs after %d s" % limit if hangs.is_set() else "exit code %d" % p.returncode if p.returncode else None
        with self.lock:
            del self.running[number]
            if self.interrupted and why:
                self.again.append(number)
            else:
                self.count(case, text, grown, used.ru_maxrss)
                if self.judged and not why:
                    why = self.grown(case, grown)
                if why and not self.s["failed"]:
                    repeat = " ".join(f"{k}={v}" for k, v in setting.items()) + " " + program
                    self.s["failed"] = f"{''.join(text)}\nsoak: {why}; again: {repeat}"
            self.save()

    @staticmethod
    def end(p):
        """Runs a test and the workers that it starts."""
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def count(self, case, text, grown, peak):
        s = self.s
        c = s["cases"].setdefault(case, dict.fromkeys(("calls", "events", "kib_growth", "kib_early", "kib_later"), 0))
        s["calls"] += 1
        c["calls"] += 1
        c["kib_growth"] = max(c["kib_growth"], grown)
        when = "kib_early" if self.early() or not c["kib_early"] else "kib_later"
        c[when] = max(c[when], peak)
        for line in text:
            words = line.split()
            if line.startswith("events "):
                for kind, n in zip(KINDS, map(int, words[1:5])):
                    s["events"][kind] += n
                    c["events"] += n
                for name in words[5:]:
                    s["strategies"][name] = s["strategies"].get(name, 0) + int(words[1])
            elif ": entered at step" in line:  # test_join: one worker was killed, and another joined
                s["strategies"][words[0][:-1]] = s["strategies"].get(words[0][:-1], 0) + 2

    def grown(self, case, within):
        c, most = self.s["cases"][case], self.args.growth_kib
        if within > most:
            return "memory grew by %d KiB in the second half of the runs" % within
        if c["kib_later"] > c["kib_early"] + most:
            return "a process used %d KiB, but at most %d in the first tenth of the soak" % (c["kib_later"], c["kib_early"])
        return None

    def work(self):
        while True:
            with self.lock:
                if self.over():
                    return
                if self.again:
                    number = self.again.pop(0)
                else:
                    number, self.s["next"] = self.s["next"], self.s["next"] + 1
            self.one(number)

    def interrupt(self, *_):
        self.interrupted = True

    def note(self):
        events = ", ".join(f"{n} {kind}" for kind, n in self.s["events"].items())
        print(f"soak: {self.seconds():.0f} s, {self.total()} events: {events}", flush=True)

    def run(self):
        threads = [threading.Thread(target=self.work) for _ in range(self.args.jobs)]
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self.interrupt)
        for t in threads:
            t.start()
        last = time.monotonic()
        while any(t.is_alive() for t in threads):
            time.sleep(0.2)
            if self.interrupted:
                with self.lock:
                    for p in self.running.values():
                        self.end(p)
            if time.monotonic() > last + 30:
                last = time.monotonic()
                self.note()
        if self.s["failed"]:
            print(self.s["failed"])
        self.note()
        for case, c in sorted(self.s["cases"].items()):
            print("  %-45s %6d calls %8d events; KiB: peak %d, later %d, growth in a call %d" % (
                case, c["calls"], c["events"], c["kib_early"], c["kib_later"], c["kib_growth"]))
        print("  strategies: " + ", ".join("%s %d" % x for x in sorted(self.s["strategies"].items())))
        print(json.dumps({"build": self.s["build"], "seed": self.s["seed"], "seconds": round(self.seconds(), 1),
                          "events": self.total(), **self.s["events"], "calls": self.s["calls"], "sessions": self.s["sessions"],
                          "kib_growth": max([c["kib_growth"] for c in self.s["cases"].values()] or [0]),
                          "strategies": self.s["strategies"], "failed": bool(self.s["failed"])}))
        return 1 if self.s["failed"] else 130 if self.interrupted else 0


# ---- a day of steps ----

def slope(points):
    """KiB per 10,000 steps: least squares."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    below = sum((p[0] - x) ** 2 for p in points)
    return 1e4 * sum((p[0] - x) * (p[1] - y) for p in points) / below if below else 0.0


def day_of(args, strategy, folder):
    """The measurements of a run; "failed" contains the errors."""
    served = strategy in SERVED
    groups = [2, 2, 1] if served else [2, 2]
    addr = "127.%d.%d.%d:29500" % tuple(random.SystemRandom().randrange(1, 255) for _ in range(3))
    common = ["strategy=" + strategy, "world=%d" % sum(groups), "min_world=2", "addr=" + addr, "period=4", "lr=0.02",
              "last=%d" % args.steps, "note=%d" % max(1, args.steps // 1000), "folder=" + folder,
              "save=%d" % max(1, args.steps // 10), "peer_timeout_s=30"]
    common += ["servers=1"] * served + ["update_frequency=0.5"] * (strategy == "deft")
    clean = {k: v for k, v in os.environ.items() if not OWN.search(k)}
    begin, rank, ps = time.monotonic(), 0, []
    for n in groups:
        out = open(os.path.join(folder, "out%d" % rank), "w+")
        ps.append(subprocess.Popen([os.path.join(args.folder, "member/storm"), "ranks=%d" % n, "rank=%d" % rank, *common],
                                   env=clean, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT))
        ps[-1].out = out
        rank += n
    try:
        codes = [p.wait(timeout=max(1, begin + 60 * args.minutes - time.monotonic())) for p in ps]
    except subprocess.TimeoutExpired:
        codes = ["it has not ended after %g minutes" % args.minutes]
    finally:
        for p in ps:
            if p.poll() is None:
                p.kill()
                p.wait()
    text, ends, losses, grown, slopes, tenth, saved = "", [], [], [], [], [], 0
    for p in ps:
        p.out.seek(0)
        points = []
        for line in p.out:
            words = line.split()
            if line.startswith("step "):
                points.append((int(words[2]), int(words[7])))
            elif line.startswith("in "):
                losses.append(float(words[4]))
            elif line.startswith("end "):
                ends.append(words[4:])
            elif line.startswith("saved "):
                saved += 1
            else:
                text += line
        points.sort()
        if len(points) >= 20:  # two ranks report the same process
            tenth.append(points[len(points) // 10][1])
            grown.append(growth([k for _, k in points], 0.1))
            slopes.append(round(slope(points[len(points) // 10:]), 2))
    seconds = time.monotonic() - begin
    r = {"strategy": strategy, "steps": args.steps, "seconds": round(seconds, 1), "steps_per_s": round(args.steps / seconds, 1),
         "kib_at_a_tenth": tenth, "kib_growth": grown, "kib_per_10000_steps": slopes, "checkpoints": saved // 4,
         "first_loss": losses[0] if losses else None, "final_loss": float(ends[0][0]) if ends else None, "failed": None}
    if any(codes):
        r["failed"] = "exit codes %s: %s" % (codes, text[-600:])
    elif len(ends) != 4 or len({e[1] for e in ends}) != 1:
        r["failed"] = "parameters are not equal: %s" % ends
    elif args.steps >= 1000 and not r["final_loss"] < 0.5 * r["first_loss"]:
        r["failed"] = "the loss changed from %g to %g" % (r["first_loss"], r["final_loss"])
    elif max(grown, default=0) > args.growth_kib and "san" not in args.folder:
        r["failed"] = "memory grew by %d KiB after the first tenth of the steps" % max(grown)
    return r


def day(args):
    bad = 0
    for strategy in SYNCHRONOUS + SERVED if args.strategy == "all" else args.strategy.split(","):
        with tempfile.TemporaryDirectory() as folder:
            r = day_of(args, strategy, folder)
        print(json.dumps(r), flush=True)
        bad |= r["failed"] is not None
    return int(bad)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("folder", help="directory of the tests: build/plain, build/asan or build/tsan")
    parse.add_argument("--minutes", type=float, help="duration of this call [10; with --events or --day: until they are done]")
    parse.add_argument("--events", type=int, default=10**9, help="total number of events, including those before an interruption; up to 1000000")
    parse.add_argument("--jobs", type=int, default=6, help="worlds at a time [6]")
    parse.add_argument("--seed", type=int, help="random seed [0, or the seed of the state file]")
    parse.add_argument("--state", metavar="FILE", help="file with the state of the soak, updated all the time, and read if it exists")
    parse.add_argument("--growth-kib", type=int, help="allowed growth of memory [32768; with --day 8192]")
    parse.add_argument("--day", action="store_true", help="run the steps of a day instead of faults")
    parse.add_argument("--strategy", default="dreamddp", help="strategies of --day: names separated by commas, or all")
    parse.add_argument("--steps", type=int, default=86400, help="number of steps of --day")
    args = parse.parse_args()
    if args.growth_kib is None:
        args.growth_kib = 8192 if args.day else 32768
    if args.minutes is None:
        args.minutes = 10 if args.events == 10**9 and not args.day else 60 * 24 * 7
    for test in ["member/storm"] if args.day else sorted({test for test, _, _, _ in MIX}):
        program = os.path.join(args.folder, test)
        if not os.access(program, os.X_OK):
            parse.error(f"{program} is not there: build it, or say `make soak`")
    return day(args) if args.day else Soak(args).run()


if __name__ == "__main__":
    sys.exit(main())
