#!/usr/bin/env python3
"""The default search of `build/plan place` compared with the best of long searches, where no two links are equal.

    bench/place.py [--quick] [--seeds 20] [--seconds 60] [--networks case1,..] [--noise 1,..] [--table] [--json FILE]

Every network of DT-FM and FluidStack's has noise on each link (`--noise SEED`: lognormal, sigma 0.25 for rates, 0.1 for delays). Per network
and noise seed: the default search, the same seed after 1 s and 10 s, and the reference, the best of --seeds searches of --seconds each. The
limits of the table: the default is at most 1 % above the best of the row and takes at most 10 s of one core, 10 s are not worse than 1 s, and
two searches with the same seed and count (a million moves) give the same placement. Time limits are limits of elapsed time: on a busy machine
such a search makes fewer moves.

Searches run one after the other. Every result is stored in build/place.json, so a run that was interrupted continues. Results of another
version of the solver are measured again. --table prints the table of the stored results and measures nothing. `make build/plan` first.
"""
import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import time

import published

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLAN, STATE = os.path.join(ROOT, "build", "plan"), os.path.join(ROOT, "build", "place.json")
NETWORKS = ("case1", "case2", "case3", "case4", "case5", "fluidstack")
SHORT_S, LONG_S, COUNT = 1, 10, 1000000
NEAR, LIMIT_S = 1.01, 10  # the goals: default over best, seconds of the default


def solver_version():
    """A hash of the sources that decide the result of a search."""
    folder, digest = os.path.join(ROOT, "src", "plan"), hashlib.sha256()
    for path in sorted(os.path.join(folder, "place", f) for f in os.listdir(os.path.join(folder, "place"))) + [os.path.join(folder, "tour.c")]:
        with open(path, "rb") as f:
            digest.update(f.read())
    return digest.hexdigest()[:12]


def machine():
    model = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), model)
    return "%d cores of %s" % (os.cpu_count(), model)


class Results:
    """The stored results: {version: {search: result}}."""

    def __init__(self, measure):
        self.measure, self.all = measure, {}
        if os.path.exists(STATE):
            with open(STATE) as f:
                self.all = json.load(f)
        self.own = self.all.setdefault(solver_version(), {})

    def get(self, network, noise, seed, *limit, again=0):
        """The result of a search, measured if it is not stored. None with --table if it is not stored."""
        key = " ".join(map(str, (network, "noise", noise, "seed", seed, *limit) + (("again",) if again else ())))
        if key not in self.own and self.measure:
            path = os.path.join(published.folder("networks"), network + ".json")
            before = os.times()
            done = subprocess.run([PLAN, "place", "--network", path, "--noise", str(noise), "--seed", str(seed), *map(str, limit)],
                                  capture_output=True, text=True)
            if done.returncode:
                sys.exit("place.py: " + done.stderr.strip())
            after = os.times()
            r = json.loads(done.stdout)
            self.own[key] = {"cost_s": r["cost_s"], "solve_s": r["solve_s"], "assign": r["assign"], "candidates": r["candidates"],
                             "cpu_s": round(after.children_user - before.children_user, 3), "load": round(os.getloadavg()[0], 1),
                             "machine": machine(), "date": datetime.date.today().isoformat()}
            with open(STATE + ".new", "w") as f:
                json.dump(self.all, f)
            os.replace(STATE + ".new", STATE)
            print("%s: %.4f, %.1f s" % (key, r["cost_s"], r["solve_s"]), file=sys.stderr, flush=True)
        return self.own.get(key)


def row(results, network, noise, seeds, seconds):
    """A row of the table as a dict, or None if a result is missing."""
    default = results.get(network, noise, 0)
    one, again = (results.get(network, noise, 0, "--candidates", COUNT, again=k) for k in (0, 1))
    short, long = (results.get(network, noise, 0, "--seconds", s) for s in (SHORT_S, LONG_S))
    reference = [results.get(network, noise, seed, "--seconds", seconds) for seed in range(seeds)]
    if not all([default, one, again, short, long, *reference]):
        return None
    best = min(r["cost_s"] for r in reference)
    return {"network": network, "noise": noise, "default_s": default["cost_s"], "short_s": short["cost_s"], "long_s": long["cost_s"],
            "best_s": best, "over_best": default["cost_s"] / best, "cpu_s": default["cpu_s"], "candidates": default["candidates"],
            "near": default["cost_s"] <= NEAR * min(best, long["cost_s"]), "quick": default["cpu_s"] <= LIMIT_S,
            "never_worse": long["cost_s"] <= short["cost_s"], "same": one["assign"] == again["assign"]}


def table(rows, args, results):
    used = list(results.own.values())
    dates, machines = sorted({r["date"] for r in used}), sorted({r["machine"] for r in used})
    print("\n|network|noise|default|over the best|CPU s|after %d s|after %d s|best of %d x %g s|" % (SHORT_S, LONG_S, args.seeds, args.seconds))
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        print("|%s|%d|%.3f|%.4f|%.1f|%.3f|%.3f|%.3f|" % (r["network"], r["noise"], r["default_s"], r["over_best"], r["cpu_s"], r["short_s"],
                                                         r["long_s"], r["best_s"]))
    print("\nSeconds of communication per iteration. %s, load %.1f to %.1f, %s." % (
        ", ".join(machines), min(r["load"] for r in used), max(r["load"] for r in used), " to ".join([dates[0], dates[-1]][:len(dates)])))
    for key, goal in (("near", "the default is at most 1 % above the best"), ("quick", "the default takes at most %d s of one core" % LIMIT_S),
                      ("never_worse", "%d s are not worse than %d s" % (LONG_S, SHORT_S)), ("same", "the same seed and count give the same placement")):
        print("%s: %d of %d" % (goal, sum(r[key] for r in rows), len(rows)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="case 5 with noise 1 and 2, reference of 1 seed x 10 s")
    p.add_argument("--seeds", type=int, default=20, help="searches of the reference (default: 20)")
    p.add_argument("--seconds", type=float, default=60, help="duration of a search of the reference, in seconds (default: 60)")
    p.add_argument("--networks", default=",".join(NETWORKS), metavar="NAME,..",
                   help="networks: files of the folder networks of the data, without .json (default: all, %s)" % ",".join(NETWORKS))
    p.add_argument("--noise", default="1,2,3,4,5", help="noise seeds (default: 1,2,3,4,5)")
    p.add_argument("--table", action="store_true", help="print the table of the stored results only")
    p.add_argument("--json", help="file for the rows as JSON lines")
    args = p.parse_args()
    if args.quick:
        args.networks, args.noise, args.seeds, args.seconds = "case5", "1,2", 1, LONG_S
    if not os.path.exists(os.path.join(published.folder("networks"), "case1.json")):
        print("place.py: no networks; " + published.HINT)
        return 77
    begin, results, rows = time.monotonic(), Results(not args.table), []
    for network in args.networks.split(","):
        for noise in map(int, args.noise.split(",")):
            r = row(results, network, noise, args.seeds, args.seconds)
            rows += [r] if r else []
    if not rows:
        print("place.py: no stored results; run without --table")
        return 1
    table(rows, args, results)
    print("%.0f s" % (time.monotonic() - begin), file=sys.stderr)
    if args.json:
        with open(args.json, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    return 0 if all(r["near"] and r["quick"] and r["never_worse"] and r["same"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
