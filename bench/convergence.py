#!/usr/bin/env python3
"""Validation loss of each strategy after equal numbers of samples: a GPT of a million parameters on tiny Shakespeare.

    bench/convergence.py [--quick] [--only STRATEGY] [--seeds N] [--steps N] [--json FILE]

Four workers train the same model on the same number of samples with the same optimizer and schedule, under each strategy and several
seeds. They are threads of one process without an emulated link, because only losses matter. A row has the mean validation loss over the
seeds, and its ratio to the row that the project's goal names. The script fails if a goal does not hold.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "..", "build", "train_gpt")
DATA = os.environ.get("DDP_DATA", "data")
if not os.path.isdir(os.path.join(DATA, "tinyshakespeare")):
    DATA = os.path.join(HERE, "..", "..", "shared", "data")
TEXT = os.path.join(DATA, "tinyshakespeare", "input.txt")

MODEL = "--layers 4 --heads 4 --dim 144 --seq 64 --batch 4 --optimizer adamw --lr 0.002 --schedule cosine --warmup 40"

OUTER = "--strategy diloco --outer-momentum 0.9"  # the value of the papers, not the default with these periods

# row: options, the row to compare with, the largest ratio
ROWS = {
    "ssgd": ("--strategy ssgd", None, None),
    "dreamddp H=5": ("--strategy dreamddp --period 5 --deterministic", "ssgd", 1.02),
    "localsgd H=5": ("--strategy localsgd --period 5", "ssgd", None),
    "diloco H=5": (OUTER + " --period 5", "ssgd", None),
    "diloco H=5 stream": (OUTER + " --period 5 --overlap stream", "diloco H=5", None),
    "diloco H=5 stream int4": (OUTER + " --period 5 --overlap stream --wire int4", "diloco H=5", None),
    "deft": ("--strategy deft", "ssgd", 1.02),
    "bsp": ("--strategy bsp --servers colocated", None, None),
    "osp": ("--strategy osp --servers colocated --defer 0.5", "bsp", 1.01),
    "diloco H=25": (OUTER + " --period 25", "ssgd", 1.02),
    "diloco H=25 int8": (OUTER + " --period 25 --wire int8", "diloco H=25", 1.005),
    "diloco H=25 int4": (OUTER + " --period 25 --wire int4", "diloco H=25", 1.005),
    "diloco H=25 stream": (OUTER + " --period 25 --overlap stream", "diloco H=25", None),
    "diloco H=25 eager": (OUTER + " --period 25 --overlap eager", "diloco H=25", None),
    "sparseloco H=25": ("--strategy sparseloco --period 25", "diloco H=25", 1.015),
}


def train(options, seed, steps):
    command = [TRAIN, *MODEL.split(), *options.split(), "--data", TEXT, "--workers", "4", "--transport", "threads",
               "--steps", str(steps), "--seed", str(seed), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s\nexit %d: %s" % (" ".join(command), done.returncode, done.stderr.strip()))
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 60 steps, as a smoke test")
    parser.add_argument("--only", metavar="STRATEGY", help="rows whose name begins with STRATEGY, and the rows that they are compared with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--json", metavar="FILE", help="every run as a JSON line")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.steps = 1, 60
    wanted = [n for n in ROWS if not args.only or n.startswith(args.only)]
    for n in list(wanted):  # the row to compare with comes first
        while ROWS[n][1] and ROWS[n][1] not in wanted:
            wanted.insert(0, n := ROWS[n][1])
    out = open(args.json, "w") if args.json else None
    mean, missed = {}, []
    print("|strategy|validation loss|deviation|compared with|ratio|goal|MB sent by rank 0|", flush=True)
    print("|-|-|-|-|-|-|-|", flush=True)
    for name in (n for n in ROWS if n in wanted):
        options, peer, goal = ROWS[name]
        runs = [train(options, seed, args.steps) for seed in range(1, args.seeds + 1)]
        losses = [r["val_loss"] for r in runs]
        mean[name] = statistics.mean(losses)
        spread = statistics.stdev(losses) if len(losses) > 1 else 0
        ratio = mean[name] / mean[peer] if peer else 1
        print("|%s|%.4f|%.4f|%s|%.4f|%s|%.1f|" % (name, mean[name], spread, peer or "-", ratio, goal or "-",
                                                   runs[0]["bytes_sent"] / 1e6), flush=True)
        if goal and ratio > goal and not args.quick:
            missed.append("%s: %.4f of %s, not %g" % (name, ratio, peer, goal))
        for seed, r in enumerate(runs, 1):
            if out:
                out.write(json.dumps({"row": name, "seed": seed, **r}) + "\n")
    if out:
        out.close()
    print("%d seeds, %d steps of 4 x 4 x 64 tokens; %s" % (args.seeds, args.steps,
                                                          "; ".join(missed) or "all goals hold"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
