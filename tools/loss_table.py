#!/usr/bin/env python3
"""Makes the built-in table of measured losses, src/plan/loss_table.h, and tables for --loss-table of `plan choose`.

    tools/loss_table.py                         writes src/plan/loss_table.h from bench/loss_table.csv
    tools/loss_table.py --check                 exit 1 if src/plan/loss_table.h does not match bench/loss_table.csv
    tools/loss_table.py --runs RUNS.csv [--model NAME] [--out FILE]
                                                writes a table (default: bench/loss_table.csv) from the evaluations of all runs, as
                                                written by bench/loss_cost.py --report --csv RUNS.csv
    tools/loss_table.py --held-out RUNS.csv [--model NAME]
                                                prints the error of the predicted loss increase on each seed, for a table of the other
                                                seeds; needs build/plan

A row of the table is the mean over the seeds, at the learning rate with the lowest mean. Of a run only the end counts. A setting in which a
run has diverged is left out, and so is one without a run of ssgd with the same workers and steps.
"""
import argparse
import collections
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "bench", "loss_table.csv")
HEADER = os.path.join(ROOT, "src", "plan", "loss_table.h")
COLUMNS = ("strategy", "overlap", "period", "workers", "wire", "steps", "loss", "source")
CODINGS = {"f32": "DDP_AS_FLOAT", "bf16": "DDP_AS_BFLOAT", "int8": "DDP_AS_INT8", "int4": "DDP_AS_INT4", "e3m0": "DDP_AS_E3M0"}
NAMES = {"stream": ("diloco", "stream")}  # the names of bench/loss_cost.py that stand for a strategy with an option
LEFT_OUT = {"eager"}  # no candidate, and no column for it


def reduced(path, model, seeds=None):
    """The rows of a table from all evaluations of all runs. seeds: a set, or None for all."""
    ends = collections.defaultdict(lambda: collections.defaultdict(dict))  # {setting: {rate: {seed: loss}}}
    with open(path, newline="", encoding="ascii") as f:
        for r in csv.DictReader(f):
            if r["model"] != model or r["strategy"] in LEFT_OUT or "_" in r["strategy"] or int(r["step"]) != int(r["steps"]):
                continue  # names with _ are a strategy with further options
            if seeds is not None and int(r["seed"]) not in seeds:
                continue
            strategy, overlap = NAMES.get(r["strategy"], (r["strategy"], "none"))
            setting = (strategy, overlap, int(r["period"]), int(r["workers"]), r["wire"], int(r["steps"]))
            ends[setting][float(r["rate"])][int(r["seed"])] = float(r["val_loss"])
    rows = []
    for setting, rates in ends.items():
        means = {rate: statistics.mean(losses.values()) for rate, losses in rates.items()}
        means = {rate: loss for rate, loss in means.items() if not math.isnan(loss)}
        if means:
            rate = min(means, key=means.get)
            rows.append(setting + ("%.4f" % means[rate], "%s, rate %g, %d seeds" % (model, rate, len(rates[rate]))))
    bases = {(r[3], r[5]) for r in rows if r[0] == "ssgd"}
    return sorted(r for r in rows if (r[3], r[5]) in bases)


def write(path, rows):
    with open(path, "w", newline="", encoding="ascii") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows(rows)


def predicted(table, folder, workers, steps, period):
    """{(strategy, overlap, period, wire): loss increase in percent} of the candidates, as plan choose predicts it from a table."""
    profile, lines = os.path.join(folder, "profile.csv"), os.path.join(folder, "choice.jsonl")
    with open(profile, "w", encoding="ascii") as f:  # any profile: step times do not change the loss
        f.write("layer,params,forward_s,backward_s,comm_s\na,1000,1,1,\n")
    plan = os.environ.get("PLAN", os.path.join(ROOT, "build", "plan"))
    subprocess.run([plan, "choose", "--profile", profile, "--net", "1gbit", "--workers", str(workers), "--steps", str(steps), "--period",
                    str(period), "--loss-table", table, "--json", lines], check=True, stdout=subprocess.DEVNULL)
    with open(lines, encoding="ascii") as f:
        candidates = json.loads(f.readlines()[-1])["auto"]["candidates"]
    found = {}
    for c in candidates:
        words = c["options"].split()
        options = dict(zip(words[::2], words[1::2]))
        key = (c["strategy"], options.get("--overlap", "none"), int(options.get("--period", 0)), options.get("--wire", "f32"))
        found[key] = c["loss_pct"]
    return found


def held_out(path, model):
    """Prints predicted and measured loss increases of each seed."""
    with open(path, newline="", encoding="ascii") as f:
        seeds = sorted({int(r["seed"]) for r in csv.DictReader(f) if r["model"] == model})
    if len(seeds) < 2:
        sys.exit("%s has runs of %d seed with model %s; at least 2 are needed" % (path, len(seeds), model))
    errors = []
    print("|seed|strategy|overlap|H|workers|wire|steps|predicted|measured|\n|%s" % ("---|" * 9))
    for seed in seeds:
        rows = reduced(path, model, {seed})
        base = {(r[3], r[5]): float(r[6]) for r in rows if r[0] == "ssgd"}
        with tempfile.TemporaryDirectory() as folder:
            table = os.path.join(folder, "table.csv")
            write(table, reduced(path, model, set(seeds) - {seed}))
            for strategy, overlap, period, workers, wire, steps, loss, _ in rows:
                if workers < 2 or not period:
                    continue
                guess = predicted(table, folder, workers, steps, period).get((strategy, overlap, period, wire))
                if guess is None:
                    continue
                measured = 100 * (float(loss) / base[workers, steps] - 1)
                errors.append(abs(guess - measured))
                print("|%d|%s|%s|%d|%d|%s|%d|%.2f %%|%.2f %%|" % (seed, strategy, overlap, period, workers, wire, steps, guess, measured))
    if errors:
        print("\nerror of %d predictions: %.2f points on average, at most %.2f" % (len(errors), statistics.mean(errors), max(errors)))


def header(path):
    """The C text of a table."""
    lines = ["/* Measured losses, generated from bench/loss_table.csv by tools/loss_table.py; do not edit. */", "#pragma once", "",
             '#include "profile/losses.h"', "", "/* strategy, stream, period, workers, format, steps, loss */",
             "static const ddp_loss_point ddp__loss_points[] = {"]
    source = None
    with open(path, newline="", encoding="ascii") as f:
        for r in csv.DictReader(f):
            if r["source"] != source:
                source = r["source"]
                lines.append("    /* %s */" % source)
            lines.append('    {"%s", %d, %s, %s, %s, %s, %s},' % (
                r["strategy"], r["overlap"] == "stream", r["period"], r["workers"], CODINGS[r["wire"]], r["steps"], r["loss"]))
    return "\n".join(lines + ["};", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the C table is out of date")
    parser.add_argument("--runs", metavar="FILE", help="CSV of all evaluations, from bench/loss_cost.py")
    parser.add_argument("--held-out", metavar="FILE", help="CSV of all evaluations: the error of the predictions on each seed")
    parser.add_argument("--model", default="gpt", metavar="NAME", help="with --runs and --held-out: the model [gpt]")
    parser.add_argument("--out", default=TABLE, metavar="FILE", help="with --runs: the table to write [bench/loss_table.csv]")
    args = parser.parse_args()
    if args.runs:
        rows = reduced(args.runs, args.model)
        if not rows:
            sys.exit("%s has no finished run of ssgd with model %s" % (args.runs, args.model))
        write(args.out, rows)
        return 0
    if args.held_out:
        held_out(args.held_out, args.model)
        return 0
    text = header(TABLE)
    if args.check:
        with open(HEADER, encoding="ascii") as f:
            if f.read() != text:
                print("src/plan/loss_table.h is not generated from bench/loss_table.csv: run tools/loss_table.py")
                return 1
        return 0
    with open(HEADER, "w", encoding="ascii") as f:
        f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
