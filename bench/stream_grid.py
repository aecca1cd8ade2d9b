#!/usr/bin/env python3
"""The plan of streaming DiLoCo compared with fixed pairs of fragments and landing.

    bench/stream_grid.py [--quick] [--simulate] [--only WORD] [--faster F] [--repeats N] [--jobs N] [--json FILE]

Four workers of build/train_gpt --emulate-compute sleep for the layer times of a GPT with 4.9 million parameters (20 MB) and a step of 0.3 s,
as a GPU would compute it. They average over emulated links with H = 20; one link becomes slower after planning. The script runs the planner and each pair --fragments F --landing T
of the grid, and prints the mean step of each, the stall per step, and the ratio planner / best pair. A ratio above 1 means that a fixed pair
is faster.

The mean covers three whole periods after the first eight. Until then a link that limits the step time fills its queue, during which steps
that need averages late are faster than in the steady state, and landings of the planner are moved if averages arrive late. With --repeats N
the runs are interleaved, and each figure is the median of N runs. --faster F divides compute times and parameters by F, so a run takes 1/F
of the time with the same ratio of compute to communication. The exit status is 1 if a pair is more than 1 % faster than the planner.
--simulate runs build/simulate on its virtual clock instead, with 3 % noise in the compute times. --json FILE stores each run as a JSON
line. A second call with the same file runs only what is missing.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile

import overlap

SIMULATE = os.path.join(overlap.HERE, "..", os.environ.get("BUILD", "build"), "simulate")
WIDTH, BLOCKS, VOCAB, SEQ, STEP = 256, 6, 256, 64, 0.3
WORKERS, H, PROFILE_STEPS, WARM, PERIODS = 4, 20, 10, 7, 3
LINKS = ["100mbit,5ms", "20mbit,5ms", "50mbit,5ms then 42mbit"]  # the last one changes after planning, by less than makes a new plan
CHANGE_S = 22
GRID = [(f, t) for f in (2, 4, 8, 16) for t in (1, 2, 5, 9, 15)]
QUICK_GRID = [(2, 5), (4, 5)]


def profile(folder, faster):
    """Writes the layer times: in proportion to the parameters of a layer, forward half of backward."""
    rows = [("tokens", VOCAB * WIDTH), ("positions", SEQ * WIDTH)]
    for b in range(BLOCKS):
        rows += [(f"{b}.{name}", k * WIDTH * WIDTH) for name, k in (("qkv", 3), ("out", 1), ("fc", 4), ("proj", 4))]
    rows += [("head", VOCAB * WIDTH)]
    total = sum(n for _, n in rows)
    path = os.path.join(folder, "stream.csv")
    with open(path, "w") as f:
        print("layer,params,forward_s,backward_s,comm_s", file=f)
        for name, n in rows:
            s = STEP / faster * n / total
            print(f"{name},{n // faster},{s / 3},{s * 2 / 3},0", file=f)
    return path


def simulate(options):
    """Runs the same training on the virtual clock. Returns what overlap.run returns."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as f:
        r = subprocess.run([SIMULATE, "--workers", str(WORKERS), "--noise", "0.03", "--json", f.name, *options], capture_output=True,
                           text=True)
        if r.returncode:
            sys.exit(f"stream_grid.py: {r.stderr.strip()[-400:]}")
        events = [json.loads(line) for line in open(f.name)]
    result = next(e for e in events if e["event"] == "result")
    result["steps_ms"] = [e["step_ms"] for e in events if e["event"] == "step"]
    return result


def changes(folder, rate, faster):
    """Writes a script that changes the rate of all links."""
    path = os.path.join(folder, f"to_{rate}.txt")
    with open(path, "w") as f:
        f.writelines(f"t={CHANGE_S / faster} slow {r} to {rate}\n" for r in range(WORKERS))
    return path


def measure(folder, faster, link, pair, periods, simulated):
    begin = (1 + (1 if periods == 1 else WARM)) * H
    emulated, (net, _, then) = os.path.join(folder, "stream.csv"), link.partition(" then ")
    options = ["--strategy", "diloco", "--overlap", "stream", "--period", str(H), "--net", net, "--profile-steps", str(PROFILE_STEPS),
               "--steps", str(begin + periods * H)]
    if pair:
        options += ["--fragments", str(pair[0]), "--landing", str(pair[1])]
    if then:
        options += ["--faults" if simulated else "--net-script", changes(folder, then, faster)]
    r = simulate(["--profile", emulated, *options]) if simulated else overlap.run(["--emulate-compute", emulated, *options], WORKERS, False)
    counted = r["steps_ms"][begin:]
    return {"step_ms": sum(counted) / len(counted), "longest_ms": max(counted), "hidden_pct": r["hidden_pct"],
            "predicted_step_ms": r["predicted_step_ms"], "steps_ms": counted}


def name_of(pair):
    return f"fragments {pair[0]}, landing {pair[1]}" if pair else "planner"


def known(path):
    runs = {}
    if path and os.path.exists(path):
        with open(path) as f:
            for line in f:
                r = json.loads(line)
                runs[r["cell"], r["plan"], r["repeat"]] = r
    return runs


def report(cell, runs, plans, repeats):
    rows = {p: [runs[cell, p, i] for i in range(repeats) if (cell, p, i) in runs] for p in plans}
    mid = {p: {k: statistics.median(x[k] for x in r) for k in ("step_ms", "longest_ms", "hidden_pct")} for p, r in rows.items() if r}
    fixed = {p: m["step_ms"] for p, m in mid.items() if p != "planner"}
    print(f"\n{cell}\n{'plan':>26}{'step ms':>10}{'longest':>10}{'hidden %':>10}{'/ planner':>11}")
    for p, m in mid.items():
        ratio = m["step_ms"] / mid["planner"]["step_ms"] if "planner" in mid else float("nan")
        print(f"{p:>26}{m['step_ms']:>10.1f}{m['longest_ms']:>10.1f}{m['hidden_pct']:>10.1f}{ratio:>11.3f}")
    if not fixed or "planner" not in mid:
        return True
    best = min(fixed, key=fixed.get)
    ratio = mid["planner"]["step_ms"] / fixed[best]
    print(f"planner / best pair ({best}): {ratio:.3f}")
    return ratio <= 1.01


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one link, two pairs, one period, ten times faster")
    parser.add_argument("--simulate", action="store_true", help="virtual clock of build/simulate")
    parser.add_argument("--only", metavar="WORD", help="links and plans whose name contains WORD")
    parser.add_argument("--faster", type=float, default=1, metavar="F", help="divisor of compute times and parameters [1]")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of each plan [1]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time [1]")
    parser.add_argument("--json", metavar="FILE", help="file with a JSON line for each run; runs in it are not repeated")
    args = parser.parse_args()
    faster, periods = (10, 1) if args.quick else (args.faster, PERIODS)
    plans = {name_of(p): p for p in [None, *(QUICK_GRID if args.quick else GRID)]}
    runs, cells = known(args.json), [f"{net} / {faster:g}" + " simulated" * args.simulate for net in (LINKS[:1] if args.quick else LINKS)]
    awake, good = overlap.keep_cores_awake(), True

    print("idle cores " + ("stay awake" if awake else "may sleep, and wake up late"))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        profile(folder, faster)
        todo = {}
        for i in range(args.repeats):
            for cell in cells:
                for p, pair in plans.items():
                    if (cell, p, i) not in runs and (not args.only or args.only in f"{cell} {p}"):
                        todo[pool.submit(measure, folder, faster, cell.split(" / ")[0], pair, periods, args.simulate)] = (cell, p, i)
        for done in concurrent.futures.as_completed(todo):
            cell, p, i = todo[done]
            runs[cell, p, i] = {"cell": cell, "plan": p, "repeat": i, "load": os.getloadavg()[0], **done.result()}
            print(f"{cell}, {p}: {runs[cell, p, i]['step_ms']:.1f} ms", file=sys.stderr)
            if args.json:
                with open(args.json, "a") as f:
                    f.write(json.dumps(runs[cell, p, i]) + "\n")
    for cell in cells:
        good &= report(cell, runs, plans, args.repeats)
    sys.exit(0 if good or (args.quick and not args.simulate) else 1)


if __name__ == "__main__":
    main()
