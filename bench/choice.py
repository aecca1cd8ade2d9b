#!/usr/bin/env python3
"""Checks whether `plan choose` names the strategy that measures fastest.

    bench/choice.py [--cases N] [--seed N] [--markdown FILE]

Cases are drawn from a seed: a published profile, 2 to 6 workers, a period, a delay, and a link on which the averages of a period take 0.2
to 4 times as long as its backward passes. `plan choose` ranks all strategies. The first three of the ranking, localsgd and dreamddp are
then measured (build/simulate --real: workers sleep for the profile's times and bytes travel over emulated links). The choice is right if
the first strategy is the fastest measured one, or at most 5 % slower.
"""
import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile

import published

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(os.path.dirname(HERE), "build")
PROFILES = ("a6000_gpt2", "a6000_llama2-175m", "a6000_resnet18-cifar10", "a6000_resnet50-cifar100", "h100_gpt2")
ALWAYS = ("localsgd", "dreamddp")
MACHINE_BYTES_PER_S = 10e6
SECONDS = 2.0


def draw(number, seed, folder):
    """Draws a case. Its profile has few enough parameters for this machine to send them in time."""
    r = random.Random("%d %d" % (seed, number))
    name, workers, period, delay = r.choice(PROFILES), r.choice((2, 3, 4, 6)), r.choice((5, 10)), r.choice((0.5, 2, 5, 20))
    with open(os.path.join(published.folder("profiles"), name + ".csv"), newline="") as f:
        rows = list(csv.DictReader(f))
    params = sum(float(x["params"]) for x in rows)
    backward = sum(float(x["backward_s"]) for x in rows)
    ratio = 0.2 * 20 ** r.random()
    rate = 2 * (workers - 1) / workers * 4 * params / (ratio * period * backward)
    factor = max(1, rate * workers / MACHINE_BYTES_PER_S)
    path = os.path.join(folder, "%d.csv" % number)
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(("layer", "params", "forward_s", "backward_s", "comm_s"))
        for x in rows:
            out.writerow((x["layer"], max(1, round(float(x["params"]) / factor)), float(x["backward_s"]) / 2, x["backward_s"], ""))
    return {"profile": name, "workers": workers, "period": period, "net": "%.0fkbit,%gms" % (rate / factor * 8e-3, delay), "path": path,
            "ratio": ratio, "step_s": 1.5 * backward}


def run(program, options, limit=300):
    done = subprocess.run([os.path.join(BUILD, program)] + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit)
    if done.returncode:
        raise RuntimeError("%s %s: %s" % (program, " ".join(options), done.stderr.strip()[-300:]))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measured(case, entry):
    """Returns the ms of a step, over whole periods."""
    steps = 2 * case["period"] * max(2, round(SECONDS / (entry["step_ms"] / 1e3) / 2 / case["period"]))
    options = ["--real", "--profile", case["path"], "--workers", str(case["workers"]), "--net", case["net"], "--profile-steps", str(case["period"]),
               "--steps", str(steps + case["period"]), "--strategy", entry["strategy"]] + entry["options"].split()
    return run("simulate", options)[-1]["step_ms"]


def judge(case):
    ranked = run("plan", ["choose", "--profile", case["path"], "--workers", str(case["workers"]), "--net", case["net"], "--period", str(case["period"])])
    ranked = sorted((x for x in ranked if "rank" in x), key=lambda x: x["rank"])
    chosen = ranked[:3] + [x for x in ranked[3:] if x["strategy"] in ALWAYS and "--overlap" not in x["options"]]
    figures = [(measured(case, x), x) for x in chosen]
    best = min(figures, key=lambda x: x[0])
    return figures[0], best


def say(entry):
    return (entry["strategy"] + " " + entry["options"].split("--period")[0]).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two cases")
    parser.add_argument("--markdown", metavar="FILE", help="the table of docs/results/choice.md")
    args = parser.parse_args()
    if not os.path.isdir(published.folder("profiles")):
        print("choice.py: no profiles; " + published.HINT, file=sys.stderr)
        return 77
    lines, right = [], 0
    cases = 2 if args.quick else args.cases
    with tempfile.TemporaryDirectory() as folder:
        for number in range(cases):
            case = draw(number, args.seed, folder)
            (own, first), (least, best) = judge(case)
            good = own <= 1.05 * least
            right += good
            lines.append("| %s | %d | %d | %s | %.2f | %s | %.1f | %s | %.1f | %s |" % (case["profile"], case["workers"], case["period"], case["net"], case["ratio"],
                                                                                  say(first), own, say(best), least, "yes" if good else "no, %+.0f %%" % (100 * (own / least - 1))))
            print(lines[-1], flush=True)
    print("%d of %d" % (right, cases))
    if args.markdown:
        with open(args.markdown + ".tmp", "w") as f:
            f.write("| profile | workers | H | link | C/(H T_b) | recommended | ms | fastest | ms | right |\n|-|-|-|-|-|-|-|-|-|-|\n%s\n" % "\n".join(lines))
        os.rename(args.markdown + ".tmp", args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
