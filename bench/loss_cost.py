#!/usr/bin/env python3
"""The loss that each strategy costs after equal numbers of samples: curves of many small runs, and a table of their ends.

    bench/loss_cost.py [--out FOLDER] [--hours H] [--stages STAGE,...] [--quick]
    bench/loss_cost.py --report [--out FOLDER] [--csv FILE] [--svg FILE]

Workers are threads of one process without an emulated link, because only losses matter. The first stage trains a GPT with every strategy at
each learning rate. The other stages vary one axis: the period, the model and the number of steps with a search for the best rate each, the
number of workers and the wire format at the best rate of the first stage. Every finished run is a file in FOLDER (build/loss_cost), so an
interrupted command continues with the missing runs. --hours ends it after the run in which that time is over. A file has the columns step,
loss (training loss of the step, mean over the workers) and val_loss. Evaluations during the training use the workers' own parameters. The
last row is the result: held-out loss of the average of all workers. A run whose loss overflows has the result nan.

Plans come from a profile that is computed from the sizes of the layers, so that no result depends on the speed of the machine: the average
of all layers takes 2.5 times as long as a backward pass. Strategies that are bit-identical to ssgd have its row. asp, ssp and r2sp are
left out, because their loss depends on the times of the workers.

--report prints the tables in Markdown. --csv writes all evaluations of all runs to one file, --svg the picture.
"""
import argparse
import collections
import csv
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from simulate import panel

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DATA = os.environ.get("DDP_DATA", os.path.join(ROOT, "data"))
if not os.path.isdir(os.path.join(DATA, "tinyshakespeare")):
    DATA = os.path.join(ROOT, "..", "shared", "data")

Run = collections.namedtuple("Run", "model workers steps strategy period wire rate seed")

TEXT = ["--data", os.path.join(DATA, "tinyshakespeare", "input.txt"), "--layers", "4", "--heads", "4", "--dim", "64", "--seq", "64",
        "--batch", "4", "--val-batches", "40"]
MODELS = {  # the program, its options, the first learning rates
    "gpt": ("train_gpt", TEXT, (0.002, 0.004, 0.008)),
    "llama": ("train_gpt", ["--model", "llama2"] + TEXT, (0.002, 0.004, 0.008)),
    "mlp": ("train_image", ["--data", os.path.join(DATA, "mnist"), "--hidden", "64,32", "--batch", "32", "--held-out", "0.1"],
            (0.001, 0.002, 0.004)),
}
STRATEGIES = {
    "ssgd": "--strategy ssgd",
    "osp": "--strategy osp --servers colocated --defer 0.5",
    "deft": "--strategy deft",
    "localsgd": "--strategy localsgd",
    "enp": "--strategy enp",
    "dreamddp": "--strategy dreamddp",
    "diloco": "--strategy diloco",
    "stream": "--strategy diloco --overlap stream",
    "eager": "--strategy diloco --overlap eager",
    "sparseloco": "--strategy sparseloco",
}
PERIODIC = ("localsgd", "enp", "dreamddp", "diloco", "stream", "eager", "sparseloco")
# Options that may lower the loss without more averages: the strategy, and its further options.
VARIANTS = {
    "localsgd_state": ("localsgd", "--average-state"),
    "dreamddp_state": ("dreamddp", "--average-state"),
    "localsgd_slow": ("localsgd", "--average-state --state-period 3,6"),
    "dreamddp_slow": ("dreamddp", "--average-state --state-period 3,6"),
    "diloco_mu3": ("diloco", "--outer-momentum 0.3"),
    "diloco_mu5": ("diloco", "--outer-momentum 0.5"),
    "diloco_mu8": ("diloco", "--outer-momentum 0.8"),
    "diloco_mu9": ("diloco", "--outer-momentum 0.9"),
    "stream_mu0": ("stream", "--outer-momentum 0 --outer-lr 1"),
    "stream_mu3": ("stream", "--outer-momentum 0.3"),
    "stream_mu5": ("stream", "--outer-momentum 0.5"),
    "stream_mu8": ("stream", "--outer-momentum 0.8"),
    "stream_mu9": ("stream", "--outer-momentum 0.9"),
}
VARIANT_PERIODS = (5, 20, 50)
CODINGS = {"bf16": ("localsgd", "dreamddp", "diloco", "stream"), "int8": ("localsgd", "dreamddp", "diloco", "stream"), "int4": ("diloco", "stream")}
WORKERS, STEPS, LONG, PERIOD, SEEDS = 4, 400, 2000, 5, (1, 2)
PERIODS = (2, 5, 10, 20, 50)
MOST_RATES = 7
NAME = re.compile(r"(\w+)-w(\d+)-n(\d+)-(\w+?)(?:-H(\d+))?-(\w+)-lr([\d.e-]+)-s(\d+)\.csv")
LINK = 2.5  # time of the average of all layers, in backward passes


# ---- the grid ----

def name_of(run):
    period = "-H%d" % run.period if run.period else ""
    return "%s-w%d-n%d-%s%s-%s-lr%g-s%d" % (run.model, run.workers, run.steps, run.strategy, period, run.wire, run.rate, run.seed)


def options_of(strategy):
    """The command-line options of a strategy or a variant."""
    return STRATEGIES[strategy] if strategy in STRATEGIES else "%s %s" % (STRATEGIES[VARIANTS[strategy][0]], VARIANTS[strategy][1])


def run_of(strategy, rate, seed, **changes):
    base = Run("gpt", WORKERS, STEPS, strategy, PERIOD if strategy in PERIODIC or strategy in VARIANTS else 0, "f32", rate, seed)
    return base._replace(**changes)


def mean_of(found, run):
    """The mean result over the seeds, or None if no seed was run."""
    ends = [found[r] for r in (run._replace(seed=s) for s in SEEDS) if r in found]
    return statistics.mean(ends) if ends else None


def search(found, run):
    """Looks for the best learning rate with the first seed. Returns the rates to run, and the best one or None while some are missing.

    Rates are doubled or halved until the best one has a worse one on both sides."""
    rates = list(MODELS[run.model][2])
    while True:
        ends = [found.get(run._replace(rate=r, seed=SEEDS[0])) for r in rates]
        if None in ends:
            return rates, None
        best = min(range(len(rates)), key=lambda i: math.inf if math.isnan(ends[i]) else ends[i])
        if 0 < best < len(rates) - 1 or len(rates) == MOST_RATES:
            return rates, rates[best]
        rates = rates + [2 * rates[-1]] if best else [rates[0] / 2] + rates


def tuned(found, strategy, **changes):
    """The run at its best learning rate, or None if that rate is not known yet."""
    run = run_of(strategy, 0, SEEDS[0], **changes)
    _, rate = search(found, run)
    return rate and run._replace(rate=rate)


def searched(found, runs):
    """The search with the first seed, then the other seeds at the best rate."""
    cells = [(run, search(found, run)) for run in runs]
    return [run._replace(rate=r) for run, (rates, _) in cells for r in rates] + \
        [run._replace(rate=best, seed=seed) for seed in SEEDS[1:] for run, (_, best) in cells if best]


def stage_rates(found, **changes):
    """All strategies at their best rate."""
    return searched(found, [run_of(s, 0, SEEDS[0], **changes) for s in STRATEGIES])


def stage_options(found):
    """The variants and their strategies, each with the best rate of each period."""
    names = sorted({s for s, _ in VARIANTS.values()}) + list(VARIANTS)
    return searched(found, [run_of(s, 0, SEEDS[0], period=h) for h in VARIANT_PERIODS for s in names])


def at_best(found, strategies, steps=STEPS, **changes):
    """Runs at the best rate for the base point and this number of steps."""
    base = [tuned(found, s, steps=steps) for s in strategies]
    return [run._replace(seed=seed, **changes) for seed in SEEDS for run in base if run]


def stage_period(found, steps=STEPS):
    """Each period at its own best rate."""
    return searched(found, [run_of(s, 0, SEEDS[0], period=h, steps=steps) for h in PERIODS if h != PERIOD for s in PERIODIC])


def stage_workers(found):
    return [r for w in (2, 8) for r in at_best(found, STRATEGIES, workers=w)]


def stage_wire(found):
    return [r for wire, strategies in CODINGS.items() for r in at_best(found, strategies, wire=wire)]


STAGES = {
    "base": stage_rates,
    "period": stage_period,
    "wire": stage_wire,
    "workers": stage_workers,
    "options": stage_options,
    "mlp": lambda found: stage_rates(found, model="mlp"),
    "llama": lambda found: stage_rates(found, model="llama"),
    "long": lambda found: stage_rates(found, steps=LONG),
    "long-period": lambda found: stage_period(found, LONG),
}


# ---- runs ----

def profile_of(model, folder):
    """A profile for the planners: times in proportion to the parameters of a layer. Its unit of time has no effect."""
    path = os.path.join(folder, "profile-%s.csv" % model)
    if os.path.exists(path):
        return path
    program, options, _ = MODELS[model]
    with tempfile.TemporaryDirectory() as temporary:
        measured = os.path.join(temporary, "profile.csv")
        call(program, options + ["--workers", "2", "--transport", "threads", "--strategy", "localsgd", "--steps", "8",
                                 "--write-profile", measured])
        with open(measured, newline="", encoding="utf-8") as f:
            rows = [(r["layer"], float(r["params"])) for r in csv.DictReader(f)]
    total = sum(params for _, params in rows)
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write("layer,params,forward_s,backward_s,comm_s\n")
        for layer, params in rows:
            share = params / total
            f.write("%s,%d,%.9g,%.9g,%.9g\n" % (layer, params, 0.01 * share, 0.02 * share, LINK * 0.02 * share))
    os.rename(path + ".new", path)
    return path


def call(program, options):
    command = [os.path.join(ROOT, "build", program)] + options + ["--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode and "lower the learning rate" not in done.stderr:  # a run that diverges ends with this advice
        raise RuntimeError("%s\nexit %d: %s" % (" ".join(command), done.returncode, done.stderr.strip()[-400:]))
    return done.returncode == 0


def evaluations(run):
    """Steps between evaluations: about 20 of them, at ends of periods."""
    every = max(1, run.steps // 20)
    return max(1, round(every / run.period)) * run.period if run.period else every


def train(run, folder):
    """Trains, and writes the curve to the run's file."""
    program, options, _ = MODELS[run.model]
    path = os.path.join(folder, name_of(run) + ".csv")
    with tempfile.TemporaryDirectory() as temporary:
        lines = os.path.join(temporary, "run.jsonl")
        more = ["--workers", str(run.workers), "--transport", "threads", "--deterministic", "--profile", profile_of(run.model, folder),
                "--steps", str(run.steps), "--schedule", "cosine", "--warmup", str(run.steps // 10), "--optimizer", "adamw",
                "--lr", "%g" % run.rate, "--seed", str(run.seed), "--eval-every", str(evaluations(run)), "--json", lines]
        more += options_of(run.strategy).split() + (["--period", str(run.period)] if run.period else [])
        more += ["--wire", run.wire] if run.wire != "f32" else []
        complete = call(program, options + more)
        events = []
        if complete:
            with open(lines, encoding="utf-8") as f:
                events = [json.loads(line) for line in f]
    loss = {e["step"] + 1: e["loss"] for e in events if e["event"] == "step"}
    val = {e["step"]: e["val_loss"] for e in events if e["event"] == "eval"}
    val[run.steps] = next((e["val_loss"] for e in events if e["event"] == "result"), math.nan)
    if val[run.steps] is None:
        val[run.steps] = math.nan
    with open(path + ".new", "w", encoding="ascii") as f:
        f.write("step,loss,val_loss\n")
        for step in range(1, run.steps + 1) if complete else (run.steps,):
            f.write("%d,%s,%s\n" % (step, "%.6f" % loss[step] if step in loss else "", "%.6f" % val[step] if step in val else ""))
    os.rename(path + ".new", path)
    return val[run.steps]


def curve_of(run, folder):
    """Returns [(step, val_loss)] of a finished run."""
    with open(os.path.join(folder, name_of(run) + ".csv"), newline="", encoding="ascii") as f:
        return [(int(r["step"]), float(r["val_loss"])) for r in csv.DictReader(f) if r["val_loss"]]


def results(folder):
    """Returns {run: result} of all finished runs."""
    found = {}
    for name in sorted(os.listdir(folder)):
        match = NAME.fullmatch(name)
        if match:
            model, workers, steps, strategy, period, wire, rate, seed = match.groups()
            run = Run(model, int(workers), int(steps), strategy, int(period or 0), wire, float(rate), int(seed))
            found[run] = curve_of(run, folder)[-1][1]
    return found


def missing(found, name):
    """The runs of a stage that are not done, as far as they are known: rates depend on results."""
    return [run for run in STAGES[name](found) if run not in found]


def measure(folder, names, hours):
    begun = time.monotonic()
    found = results(folder)
    for name in names:
        while missing(found, name):
            if hours and time.monotonic() - begun > 3600 * hours:
                return
            run, at = missing(found, name)[0], time.monotonic()
            found[run] = train(run, folder)
            print("%s %s: %.4f in %.0f s" % (name, name_of(run), found[run], time.monotonic() - at), file=sys.stderr, flush=True)


# ---- the report ----

def cell(value):
    return "-" if value is None else "diverged" if math.isnan(value) else "%.4f" % value


def cost(found, run, base):
    """The loss above that of base, in percent."""
    own, least = mean_of(found, run), mean_of(found, base)
    return "-" if own is None or least is None else "diverged" if math.isnan(own) else "%+.1f %%" % (100 * (own / least - 1))


def table(head, rows):
    print("|%s|\n|%s" % ("|".join(head), "---|" * len(head)))
    for row in rows:
        print("|%s|" % "|".join(row))
    print()


def spread_of(found, run):
    ends = [found[r] for r in (run._replace(seed=s) for s in SEEDS) if r in found]
    return "%.4f" % (max(ends) - min(ends)) if len(ends) > 1 else "-"


def label(strategy, period=PERIOD):
    return "%s, H = %d" % (strategy, period) if strategy in PERIODIC else strategy


def report(folder):
    found = results(folder)
    rows = []
    for s in STRATEGIES:
        cells = [label(s)]
        for changes in ({}, {"steps": LONG}, {"model": "llama"}, {"model": "mlp"}):
            run, base = tuned(found, s, **changes), tuned(found, "ssgd", **changes)
            if not run or not base:
                cells += ["-"] * (4 if not changes else 3)
                continue
            cells += [cell(mean_of(found, run))] + ([spread_of(found, run)] if not changes else []) + ["%g" % run.rate, cost(found, run, base)]
        rows.append(cells)
    head = ["strategy", "GPT, %d steps" % STEPS, "difference of the seeds", "rate", "cost", "GPT, %d steps" % LONG, "rate", "cost",
            "Llama, %d steps" % STEPS, "rate", "cost", "MLP, %d steps" % STEPS, "rate", "cost"]
    table(head, rows)

    def against(s, **changes):
        base = {k: v for k, v in changes.items() if k in ("steps", "workers")}
        run, other = tuned(found, s), tuned(found, "ssgd")
        return cost(found, run._replace(**changes), other._replace(**base)) if run and other else "-"

    for steps in (STEPS, LONG):
        base = tuned(found, "ssgd", steps=steps)
        lines = []
        for s in PERIODIC:
            runs = [tuned(found, s, period=h, steps=steps) for h in PERIODS]
            lines.append([s] + ["%s (%g)" % (cost(found, run, base), run.rate) if run and base else "-" for run in runs])
        table(["cost after %d steps" % steps] + ["H = %d (rate)" % h for h in PERIODS], lines)
    table(["cost, %d steps" % STEPS] + ["%d workers" % w for w in (2, 4, 8)],
          [[label(s)] + [against(s, workers=w) for w in (2, 4, 8)] for s in STRATEGIES if s != "ssgd"])
    table(["cost, %d steps, H = %d" % (STEPS, PERIOD), "f32"] + list(CODINGS),
          [[s] + [against(s, wire=w) if w == "f32" or s in CODINGS[w] else "" for w in ["f32"] + list(CODINGS)] for s in CODINGS["bf16"]])
    rows = []
    for name, (s, options) in [(s, (s, "")) for s in sorted({s for s, _ in VARIANTS.values()})] + list(VARIANTS.items()):
        cells = [s, options]
        for h in VARIANT_PERIODS:
            run, base = tuned(found, name, period=h), tuned(found, "ssgd")
            cells += ["%s (%g)" % (cost(found, run, base), run.rate) if run and base else "-"]
        rows.append(cells)
    table(["strategy", "options"] + ["cost, H = %d (rate)" % h for h in VARIANT_PERIODS], rows)
    left = [run for name in STAGES for run in missing(found, name)]
    print("%d runs; %s; no value is interpolated" % (len(found), "at least %d are missing" % len(set(left)) if left else "all are done"))
    return found


def write_csv(path, found, folder):
    with open(path, "w", newline="", encoding="ascii") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(Run._fields + ("step", "val_loss"))
        for run in sorted(found):
            for step, loss in curve_of(run, folder):
                out.writerow(run + (step, "%.5f" % loss))


def mean_curve(found, run, folder):
    curves = [curve_of(r, folder) for r in (run._replace(seed=s) for s in SEEDS) if r in found]
    return [(points[0][0], statistics.mean(p[1] for p in points)) for points in zip(*curves)]


def picture(path, found, folder):
    """Curves of the first stage, and the cost of the periods. Strategies whose runs are missing are left out."""
    shown = [s for s in ("ssgd", "dreamddp", "localsgd", "stream", "diloco", "deft") if tuned(found, s)]
    panels = [("Loss while training", "step", "validation loss", {label(s): mean_curve(found, tuned(found, s), folder) for s in shown})]
    base, costs = tuned(found, "ssgd"), {}
    for s in (s for s in PERIODIC if s != "enp" and tuned(found, s)):
        runs = [(h, tuned(found, s, period=h)) for h in PERIODS]
        points = [(h, mean_of(found, run)) for h, run in runs if run]
        points = [(h, max(0.1, 100 * (loss / mean_of(found, base) - 1))) for h, loss in points if loss and not math.isnan(loss)]
        if len(points) > 1:
            costs[s] = points
    panels.append(("Cost of the period", "H, steps between averages", "loss above ssgd after %d steps, %%" % STEPS, costs))
    panels = [p for p in panels if p[3]]
    with open(path, "w", encoding="ascii") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="340" viewBox="0 0 {0} 340" font-family="sans-serif" font-size="12" '
                'fill="#222">\n<rect width="{0}" height="340" fill="#fff"/>\n{1}</svg>\n'.format(
                    540 * len(panels), "".join(panel(540 * i, 0, *p) for i, p in enumerate(panels))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "loss_cost"), metavar="FOLDER", help="one file per run [build/loss_cost]")
    parser.add_argument("--hours", type=float, default=24, help="time after which no run starts; 0 = no limit [24]")
    parser.add_argument("--stages", default=",".join(STAGES), help="stages to run [%(default)s]")
    parser.add_argument("--report", action="store_true", help="run nothing; print the tables")
    parser.add_argument("--csv", metavar="FILE", help="with --report: file for all evaluations")
    parser.add_argument("--svg", metavar="FILE", help="with --report: file for the picture")
    parser.add_argument("--quick", action="store_true", help="two runs of 20 steps")
    args = parser.parse_args()
    names = args.stages.split(",")
    if not set(names) <= set(STAGES):
        parser.error("unknown stage in %s; the stages are %s" % (args.stages, ", ".join(STAGES)))
    if not args.report and not os.path.isdir(os.path.join(DATA, "tinyshakespeare")):
        print("skipped: no data in %s; run tools/get_data.sh" % DATA)
        return 77
    if args.quick:
        with tempfile.TemporaryDirectory() as folder:
            for s in ("ssgd", "dreamddp"):
                print("%s: %.4f" % (label(s), train(run_of(s, 0.004, 1, steps=20), folder)))
        return 0
    os.makedirs(args.out, exist_ok=True)
    if not args.report:
        measure(args.out, names, args.hours)
    found = report(args.out)
    if args.csv:
        write_csv(args.csv, found, args.out)
    if args.svg:
        picture(args.svg, found, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
