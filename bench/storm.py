#!/usr/bin/env python3
"""Injects faults into one elastic run, and measures its goodput and the time until the next average.

    bench/storm.py [--minutes 30] [--workers 32] [--faults 62] [--seed 1] [--quick] [--json FILE] [--out FILE]

Workers are ranks of tests/member/storm.c. A quarter of the processes has two ranks, each a thread. They train over TCP on this machine; a
step sleeps --step-ms. The faults are drawn from the seed before the run, and printed:

    kill         kill -9 of a process with one rank; as after every death, a replacement joins some seconds later
    pair         kill -9 of a process with two ranks
    two          kill -9 of two processes at once
    coordinator  kill -9 of the process of the lowest live rank
    stop         SIGSTOP, and SIGCONT before the peer time-out: no rank is lost
    freeze       a longer SIGSTOP: the process is declared failed, and reports it when it resumes
    cut          one connection between two workers is closed in the middle of its traffic
    cut all      all connections of a process are closed
    newcomer     an additional worker is killed while it joins
    slow         a rank computes nothing for a second; its process answers

Goodput is the number of steps during the faults, divided by the number that the minutes without faults before them give in the same time.
Other load on the machine makes this figure unreliable. goodput_local compares with the steps around each fault instead: the steps that
take less than 1.5 times their median. It is divided by the same figure for the minutes without faults before and after (quiet_pct).

Exit 1: a worker crashed or hung, a rank was blamed wrongly, the parameters of the live ranks differ in a bit, or the loss did not fall.
"""
import argparse
import bisect
import collections
import json
import os
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OWN = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|MASTER_|TORCHELASTIC_")
MIX = {"kill": 18, "pair": 5, "two": 5, "coordinator": 4, "stop": 8, "freeze": 2, "cut": 8, "cut all": 4, "newcomer": 5,
       "slow": 3}
DEATHS = ("kill", "pair", "two", "coordinator")
COMES_AFTER = 2.0  # seconds from a death to the start of a new worker


def draw(args):
    """Makes the script: kinds in the proportions of MIX, at least one of each if possible, at separate times."""
    rng = random.Random(args.seed)
    kinds = list(MIX)[:args.faults]
    share = {k: args.faults * n / sum(MIX.values()) for k, n in MIX.items()}
    while len(kinds) < args.faults:
        kinds.append(max(share, key=lambda k: share[k] - kinds.count(k)))
    rng.shuffle(kinds)
    apart = (60 * args.minutes - args.warm - args.tail) / args.faults
    script = []
    for i, kind in enumerate(kinds):
        at = args.warm + (i + 0.1 + 0.4 * rng.random()) * apart
        fault = {"kind": kind, "at": round(at, 2), "who": rng.random(), "other": rng.random()}
        if kind == "stop":
            fault["seconds"] = round(rng.uniform(0.5, 2.5), 2)
        if kind == "newcomer":
            fault["seconds"] = round(rng.uniform(0.02, 1.0), 2)
        if kind == "slow":
            fault["seconds"] = 1.0
        script.append(fault)
    return script, apart


class Worker:
    """A process, its output and its faults."""

    def __init__(self, number, process, wanted, log):
        self.number, self.process, self.wanted, self.log = number, process, wanted, log
        self.streams = 2   # open output streams
        self.ranks, self.ids = set(), set()  # ids: includes a rank that is still joining
        self.ends, self.errors, self.said = {}, [], collections.deque(maxlen=200)
        self.lines = {}    # rank: steps done, when, whether averaged, live workers
        self.kib = []      # when, KiB resident
        self.door = None
        self.gone_at = None  # killed, or declared failed
        self.frozen = False

    def well(self):
        return self.gone_at is None and self.process.poll() is None and bool(self.ranks)


class Storm:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.workers, self.findings, self.losses = [], [], []
        self.selector = selectors.DefaultSelector()
        self.rng = random.Random(args.seed + 1)
        self.gone = {}     # rank: [from, to, kind of fault] of its absences, newest last
        self.said = collections.Counter()  # kind of fault, and the reported reason of a loss
        self.front = [0]   # time at which the first rank completed that many steps
        self.last = None
        own = "127.%d.%d.%d" % tuple(random.SystemRandom().randrange(1, 255) for _ in range(3))
        with socket.socket() as s:
            s.bind((own, 0))
            self.addr = "%s:%d" % s.getsockname()
        self.common = ["strategy=" + args.strategy, "period=%d" % args.period, "step_ms=%d" % args.step_ms, "lr=%g" % args.lr,
                       "peer_timeout_s=%g" % args.peer_timeout, "op_timeout_s=90", "connect_timeout_s=120"]
        twos = args.workers // 4
        rank = 0
        while rank < args.workers:
            n = 2 if rank >= args.workers - 2 * twos else 1
            self.start(n, "rank=%d" % rank, "world=%d" % args.workers, "min_world=%d" % args.min_world,
                       "max_world=%d" % (args.workers + 4), "addr=" + self.addr)
            rank += n
        self.begin = time.monotonic()

    # ---- workers ----

    def start(self, ranks, *how):
        clean = {k: v for k, v in os.environ.items() if not OWN.search(k)}
        p = subprocess.Popen([self.args.worker, "ranks=%d" % ranks, *self.common, *how], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(clean, DREAMDDP_LOG="info"),
                             start_new_session=True)
        number = len(self.workers)
        w = Worker(number, p, ranks, open(os.path.join(self.folder, "worker%d.log" % number), "w"))
        self.workers.append(w)
        for stream in (p.stdout, p.stderr):
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ, [w, stream is p.stdout, b""])
        if self.last:
            self.order(w, "last %d" % self.last)
        return w

    def join(self, ranks):
        doors = [w.door for w in self.living() if w.door]
        self.rng.shuffle(doors)
        return self.start(ranks, "join=1", "min_world=%d" % self.args.min_world, "addr=" + ",".join(doors[:4]))

    def order(self, w, line):
        try:
            w.process.stdin.write((line + "\n").encode())
            w.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the output thread notices

    def living(self):
        return [w for w in self.workers if w.well()]

    def settled(self, ranks=None):
        """The processes whose ranks have all joined and made steps since."""
        return [w for w in self.living() if len(w.ranks) == w.wanted and all(len(w.lines[r]) > 5 for r in w.ranks) and
                (ranks is None or w.wanted == ranks)]

    def finding(self, text):
        self.findings.append("%.1f s: %s" % (time.monotonic() - self.begin, text))
        print("finding: " + self.findings[-1], flush=True)

    # ---- output of the workers ----

    def pump(self, until):
        """Reads the output of all workers until a time, and handles processes that ended."""
        while True:
            for key, _ in self.selector.select(max(0, min(0.1, until - time.monotonic()))):
                w, out, rest = key.data
                data = key.fileobj.read()
                if data is None:
                    continue
                if not data:
                    self.selector.unregister(key.fileobj)
                    w.streams -= 1
                *lines, key.data[2] = (rest + data).split(b"\n")
                for line in lines:
                    (self.hear if out else self.overhear)(w, line.decode(errors="replace"))
            for w in self.workers:
                if w.streams == 0 and w.process.poll() is not None and w.gone_at is None and not w.ends:
                    self.depart(w, "unasked")
                    self.finding("worker %d (ranks %s) ended with %d: %s" % (
                        w.number, sorted(w.ranks), w.process.returncode, "; ".join(w.errors) or " | ".join(list(w.said)[-3:])))
            if time.monotonic() >= until:
                return

    def hear(self, w, line):
        w.log.write(line + "\n")
        kind, rank, steps, when, *rest = line.split(" ", 4)
        rank, steps, when = int(rank), int(steps), float(when)
        if kind == "step":
            workers, loss, averaged, kib = rest[0].split()
            w.lines[rank].append((steps, when, int(averaged), int(workers)))
            w.kib.append((when, int(kib)))
            while len(self.front) <= steps:
                self.front.append(when)
            self.front[steps] = min(self.front[steps], when)
        elif kind == "in":
            w.ranks.add(rank)
            w.lines[rank] = []
            self.losses.append(float(rest[0]))
            if rank in self.gone:
                self.gone[rank][-1][1] = when
        elif kind == "lost":
            self.blame(w, int(rest[0]), line)
        elif kind == "end":
            w.ends[rank] = rest[0].split()
        elif kind == "error":
            w.errors.append(rest[0])

    def overhear(self, w, line):
        w.said.append(line)
        w.log.write("%.3f %s\n" % (time.monotonic(), line))
        door = re.search(r"workers can join to (\S+)", line)
        if door:
            w.door = door.group(1)
        came = re.search(r"joins as rank (\d+) of", line)
        if came:
            w.ids.add(int(came.group(1)))
            if w.gone_at:  # its id was unknown when it was killed
                self.gone.setdefault(int(came.group(1)), []).append([w.gone_at, None, "newcomer"])
        for who, why in re.findall(r"worker (\d+) was lost: ([^;]*)", line):
            self.blame(w, int(who), line, why)

    def blame(self, w, who, line, why=""):
        """Whether a rank may be reported lost: from its death until some seconds after its replacement joined."""
        now = time.monotonic()
        kinds = [kind for a, b, kind in self.gone.get(who, []) if a <= now and (b is None or now < b + 10)]
        if kinds and why:
            self.said["%s: %s" % (kinds[-1], re.sub(r"\d+(\.\d+)*", "N", why))] += 1
        if not kinds and not w.frozen:
            self.finding("worker %d blames rank %d, which lives: %s" % (w.number, who, line))

    def depart(self, w, kind):
        w.gone_at = time.monotonic()
        for r in w.ranks | w.ids:
            self.gone.setdefault(r, []).append([w.gone_at, None, kind])

    # ---- faults ----

    def kill(self, w, kind):
        self.depart(w, kind)
        w.process.kill()
        w.process.wait()

    def choose(self, u, ranks=None, but=None):
        found = sorted((w for w in self.settled(ranks) if w is not but), key=lambda w: w.number) or self.settled()
        return found[int(u * len(found))]

    def strike(self, f):
        """Injects a fault and starts the replacement. f receives the time and the ranks."""
        kind, hit, after = f["kind"], [], []
        if kind in ("kill", "pair"):
            hit = [self.choose(f["who"], 1 if kind == "kill" else 2)]
        elif kind == "two":
            hit = [self.choose(f["who"])]
            hit.append(self.choose(f["other"], but=hit[0]))
        elif kind == "coordinator":
            hit = [min(self.settled(), key=lambda w: min(w.ranks))]
        elif kind == "newcomer":
            comes = self.join(1)
            self.pump(time.monotonic() + f["seconds"])
            hit = [comes]
        else:
            hit = [self.choose(f["who"], 2 if kind == "slow" else None)]
        f["t"], f["ranks"], f["live"] = time.monotonic(), sorted(r for w in hit for r in w.ranks), self.ranks()
        if kind in DEATHS:
            for w in hit:
                self.kill(w, kind)
            after = [w.wanted for w in hit]
        elif kind == "newcomer":
            self.kill(hit[0], kind)
        elif kind == "stop":
            os.kill(hit[0].process.pid, signal.SIGSTOP)
            self.pump(f["t"] + f["seconds"])
            os.kill(hit[0].process.pid, signal.SIGCONT)
        elif kind == "freeze":
            hit[0].frozen = True
            self.depart(hit[0], kind)
            os.kill(hit[0].process.pid, signal.SIGSTOP)
            self.pump(f["t"] + self.args.peer_timeout + 3)
            os.kill(hit[0].process.pid, signal.SIGCONT)
            after = [hit[0].wanted]
        elif kind == "cut":
            self.order(hit[0], "cut 1 %d" % int(1e6 * f["other"]))
        elif kind == "cut all":
            self.order(hit[0], "cut 0 0")
        elif kind == "slow":
            self.order(hit[0], "slow %d %d" % (max(hit[0].ranks), 1000 * f["seconds"]))
        if after:
            self.pump(time.monotonic() + COMES_AFTER)
            for n in after:
                self.join(n)
        if kind == "freeze":
            self.pump_while(lambda: hit[0].streams > 0, 20)
            self.thawed(hit[0])

    def thawed(self, w):
        code, text = w.process.poll(), " ".join(w.errors)
        if code != 3 or "without this" not in text:
            self.finding("worker %d was declared failed, resumed, and ended with %s: %s" % (w.number, code, text))
            w.process.kill()

    def ranks(self):
        return sorted(r for w in self.living() for r in w.ranks)

    def pump_while(self, condition, seconds):
        end = time.monotonic() + seconds
        while condition() and time.monotonic() < end:
            self.pump(time.monotonic() + 0.2)
        return not condition()

    # ---- the run ----

    def meet(self):
        if not self.pump_while(lambda: len(self.front) < 20 and not self.findings, 120):
            self.finding("training did not begin in 120 s")
        if self.findings:
            raise SystemExit(self.stop())

    def steps_at(self, when):
        """Steps that the first rank had completed at a time, interpolated."""
        k = bisect.bisect_right(self.front, when)
        if k >= len(self.front):
            return len(self.front) - 1
        a, b = self.front[k - 1], self.front[k]
        return k - 1 + (when - a) / (b - a) if b > a else k

    def still(self):
        """Whether no rank has made a step for a long time."""
        return time.monotonic() > self.front[-1] + 60

    def end(self):
        """Stops all ranks at one step that no rank has reached."""
        if not self.pump_while(lambda: any(len(w.ranks) < w.wanted for w in self.workers if w.gone_at is None), 120):
            self.finding("a joining worker is not admitted after 120 s")
        self.last = len(self.front) + int(8000 / self.args.step_ms)
        for w in self.living():
            self.order(w, "last %d" % self.last)
        living = self.living()
        if not self.pump_while(lambda: any(w.streams for w in living), 150):
            self.finding("workers %s did not end" % [w.number for w in living if w.streams])
        ends = [w.ends.get(r) for w in living for r in w.ranks]
        codes = [w.process.poll() for w in living]
        if any(codes) or not all(ends):
            self.finding("exit codes %s, %d of %d ranks have ended well" % (codes, len(ends) - ends.count(None), len(ends)))
        if len({e[1] for e in ends if e}) != 1:
            self.finding("parameters are not equal: %s" % collections.Counter(e[1] for e in ends if e))
        return [e for e in ends if e]

    def stop(self):
        for w in self.workers:
            if w.process.poll() is None:
                w.process.kill()
                w.process.wait()
            w.log.close()
        return 1


def next_average(storm, f, window_end):
    """Seconds until the last survivor has finished a step that began after the fault and averaged."""
    times = []
    for w in storm.workers:
        for r, lines in w.lines.items():
            gone = w.gone_at is not None and w.gone_at < window_end
            if r not in f["live"] or r in f["ranks"] or gone or not lines or lines[0][1] > f["t"]:
                continue
            k = bisect.bisect_left(lines, f["t"], key=lambda x: x[1]) + 1
            while k < len(lines) and not lines[k][2]:
                k += 1
            times.append(lines[k][1] - f["t"] if k < len(lines) else None)
    return None if None in times or not times else max(times)


def possible_steps(storm, a, b):
    """Steps between two times, if all took as long as the undisturbed ones."""
    front = storm.front
    steps = [y - x for x, y in zip(front, front[1:]) if a <= x and y <= b]
    if not steps:
        return (b - a) * storm.rate
    usual = 1.5 * statistics.median(steps)
    return (b - a) / statistics.mean(s for s in steps if s <= usual)


def memory(storm, settled, first, last):
    """Memory of the processes that survived everything: KiB before the faults, and the increase after them."""
    old = [w.kib for w in storm.workers if w.kib and w.kib[0][0] < settled and w.kib[-1][0] > last]
    if not old:
        return {"survivors": 0}
    before = [statistics.median(k for t, k in kib if settled < t < first) for kib in old]
    growth = [statistics.median(k for t, k in kib if t > last) - b for kib, b in zip(old, before)]
    return {"survivors": len(old), "kib_before": round(statistics.median(before)),
            "kib_growth": {"median": round(statistics.median(growth)), "most": round(max(growth))}}


def by_kind(script):
    kinds = {}
    for k in MIX:
        of = [f for f in script if f["kind"] == k]
        times = [f["next_average_s"] for f in of if f["next_average_s"] is not None]
        if of:
            kinds[k] = {"faults": len(of), "mean_s": round(statistics.mean(times), 2) if times else None,
                        "most_s": round(max(times), 2) if times else None, "none": len(of) - len(times),
                        "lost_steps": round(statistics.mean(f["lost_steps"] for f in of), 2)}
    return kinds


def account(storm, script, apart, begin):
    """Figures per fault and in all. Times of the script count from begin."""
    warm, tail = storm.args.warm, storm.args.tail
    first, last = begin + warm, begin + warm + len(script) * apart
    settled = begin + warm / 3  # the first steps measure and plan without pacing
    rate = storm.rate = (storm.steps_at(first) - storm.steps_at(settled)) / (first - settled)
    calm = [(settled + i * (first - settled) / 4, settled + (i + 1) * (first - settled) / 4) for i in range(4)]
    calm += [(last + i * tail / 3, last + (i + 1) * tail / 3) for i in range(3)]
    calm_part = sum(storm.steps_at(b) - storm.steps_at(a) for a, b in calm)
    calm_part /= sum(possible_steps(storm, a, b) for a, b in calm)
    ends = [f["t"] for f in script[1:]] + [last]
    possible = calm_part * possible_steps(storm, first, script[0]["t"])
    for f, end in zip(script, ends):
        steps = calm_part * possible_steps(storm, f["t"], end)
        f["lost_steps"] = round(steps - (storm.steps_at(end) - storm.steps_at(f["t"])), 2)
        possible += steps
        f["next_average_s"] = next_average(storm, f, end)
        f["next_average_s"] = None if f["next_average_s"] is None else round(f["next_average_s"], 3)
        f["at"] = round(f["t"] - begin, 2)
    quiet = [first - warm / 3 + i * warm / 30 for i in range(8)]
    base = [next_average(storm, {"t": t, "ranks": [], "live": storm.ranks_at_first}, t) for t in quiet]
    done = storm.steps_at(last) - storm.steps_at(first)
    worked = sum(first <= t < last for w in storm.workers for lines in w.lines.values() for _, t, _, _ in lines)
    stopped = sum(f.get("seconds", 0) for f in script if f["kind"] in ("stop", "slow"))
    stopped += storm.args.peer_timeout * sum(f["kind"] == "freeze" for f in script)
    result = {
        "seconds": round(last - first, 1), "steps": round(done), "steps_per_s_before": round(rate, 4),
        "steps_per_s_after": round((storm.steps_at(last + tail) - storm.steps_at(last)) / tail, 4),
        "goodput_pct": round(100 * done / (rate * (last - first)), 2), "quiet_pct": round(100 * calm_part, 2),
        "goodput_local_pct": round(100 * done / possible, 2),
        "goodput_local_without_stops_pct": round(100 * done / (possible * (1 - stopped / (last - first))), 2),
        "stopped_s": round(stopped, 2),
        "worker_goodput_pct": round(100 * worked / (rate * (last - first) * storm.args.workers), 2),
        "quiet_average_s": round(statistics.mean(base), 3) if base and None not in base else None}
    for f in script:
        f["live"] = len(f["live"])
    return {**result, **memory(storm, settled, first, last), "kinds": by_kind(script), "said": dict(storm.said)}


def fragment(args, r):
    """Writes a table for the documentation."""
    lines = ["| fault | times | next average, mean s | most s | steps lost, mean |", "|---|---|---|---|---|"]
    for k, v in r["kinds"].items():
        lines.append("| %s | %d | %s | %s | %s |" % (k, v["faults"], v["mean_s"], v["most_s"], v["lost_steps"]))
    lines += ["", "%d workers, %s, %d faults in %.0f s (seed %d): goodput %.1f %% of the steps before the faults, %.1f %% of "
              "those around each; %.1f %% without the %.0f s for which the script stopped workers. Without faults a step takes "
              "%.0f ms, and the next average, as counted here, %.2f s." % (
                  args.workers, args.strategy, r["faults"], r["seconds"], args.seed, r["goodput_pct"], r["goodput_local_pct"],
                  r["goodput_local_without_stops_pct"], r["stopped_s"], 1e3 / r["steps_per_s_before"],
                  r["quiet_average_s"] or 0)]
    return "\n".join(lines) + "\n"


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--minutes", type=float, default=30, help="duration, with the minutes without faults")
    a.add_argument("--workers", type=int, default=32, help="number of ranks; a quarter of the processes has two")
    a.add_argument("--faults", type=int, default=62)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--quick", action="store_true", help="2 minutes, 12 workers, 10 faults: one of each kind")
    a.add_argument("--json", metavar="FILE", help="script, faults and result as JSON lines")
    a.add_argument("--out", metavar="FILE", help="a table for the documentation")
    a.add_argument("--strategy", default="dreamddp")
    a.add_argument("--period", type=int, default=4)
    a.add_argument("--step-ms", type=int, default=250, help="emulated computing of a step, in ms")
    a.add_argument("--lr", type=float, default=0.02)
    a.add_argument("--peer-timeout", type=float, default=5)
    a.add_argument("--min-world", type=int, default=4)
    a.add_argument("--warm", type=float, help="seconds without faults at the start (default: 1/15 of all, at least 20)")
    a.add_argument("--tail", type=float, help="seconds without faults at the end (default: half of --warm)")
    a.add_argument("--worker", default=os.path.join(ROOT, "build/plain/member/storm"), help="worker program, such as the asan or tsan build")
    a.add_argument("--logs", metavar="FOLDER", help="folder for the output of each worker")
    args = a.parse_args()
    if args.quick:
        args.minutes, args.workers, args.faults = 2, 12, 10
    args.warm = args.warm or max(20, 4 * args.minutes)
    args.tail = args.tail or args.warm / 2
    if not os.access(args.worker, os.X_OK):
        a.error("%s is not there: make %s" % (args.worker, os.path.relpath(args.worker, ROOT)))
    if 60 * args.minutes - args.warm - args.tail < 4 * args.faults:
        a.error("%d faults in %g minutes are less than 4 s apart" % (args.faults, args.minutes))
    return args


def run(args, folder):
    script, apart = draw(args)
    for f in script:
        print("at %7.1f s: %s%s" % (f["at"], f["kind"], ", %.2f s" % f["seconds"] if "seconds" in f else ""))
    storm = Storm(args, folder)
    storm.meet()
    begin = time.monotonic()
    storm.pump(begin + args.warm)
    storm.ranks_at_first = storm.ranks()
    load = [os.getloadavg()[0]]
    for i, f in enumerate(script):
        storm.pump(max(begin + f["at"], time.monotonic()))
        if storm.still():
            storm.finding("no step for 60 s; live ranks %s" % storm.ranks())
            script = script[:i]
            if not script:
                raise SystemExit(storm.stop())
            break
        storm.strike(f)
        print("%7.1f s  %-11s ranks %-10s of %2d  steps %d" % (f["t"] - begin, f["kind"], ",".join(map(str, f["ranks"])) or "-",
                                                             len(f["live"]), len(storm.front) - 1), flush=True)
    storm.pump(begin + args.warm + args.faults * apart + args.tail)
    load.append(os.getloadavg()[0])
    ends = storm.end()
    storm.stop()
    result = {"event": "result", "strategy": args.strategy, "workers": args.workers, "faults": len(script), "seed": args.seed,
              **account(storm, script, apart, begin), "first_loss": storm.losses[0],
              "final_loss": float(ends[0][0]) if ends else None, "param_hash": ends[0][1] if ends else None,
              "living": len(ends), "load": [round(x, 1) for x in load]}
    if not ends or not result["final_loss"] < 0.5 * result["first_loss"]:
        storm.finding("the loss went from %g to %s" % (result["first_loss"], result["final_loss"]))
    result["findings"] = storm.findings
    return script, result


def main():
    args = options()
    with tempfile.TemporaryDirectory() as own:
        folder = args.logs or own
        os.makedirs(folder, exist_ok=True)
        script, result = run(args, folder)
    if args.json:
        with open(args.json, "w") as f:
            said = {k: v for k, v in vars(args).items() if k not in ("json", "out", "logs", "worker")}
            f.write(json.dumps({"event": "run", **said}) + "\n")
            for x in script:
                f.write(json.dumps({"event": "fault", **x}) + "\n")
            f.write(json.dumps(result) + "\n")
    if args.out:
        with open(args.out, "w") as f:
            f.write(fragment(args, result))
    print(fragment(args, result))
    print(json.dumps(result))
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
