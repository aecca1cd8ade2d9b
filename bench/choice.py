#!/usr/bin/env python3
"""Compares strategy auto with the best of its candidates, by the measured time to a loss.

    bench/choice.py [--cases 20] [--seed SEED] [--most 8] [--out FOLDER] [--hours H] [--quick] [--markdown FILE]

A case is drawn from the seed: 2 to 4 workers, 400 or 800 steps of ssgd, a rate of 2 to 200 Mbit/s, a delay of 0.5 to 40 ms. The model is
that of bench/loss_cost.py, a GPT of 0.21 million parameters. Measured in each case:

* the choice: `train_gpt --strategy auto` over the emulated link
* candidates: wfbp, the choice, and those within the loss budget with the least predicted seconds, `--most` in all
* the step time of each candidate over the emulated link, as a mean over whole periods
* the steps that each candidate needs until it has the loss that ssgd has after its steps: runs of 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5 and 3
  times as many steps, each with its own learning-rate schedule, at the learning rate of its strategy (docs/results/accuracy.md), and a
  straight line between the two runs around the loss. The search begins at the predicted steps, and ends where a candidate would need 1.5 times
  as long as the best one so far. These runs use no emulated link, because the link does not change the loss

The time to the loss is the product of the two. auto is right if the choice needs at most 5 % more time than the best candidate, and it must
never be slower than wfbp. Every measurement is a line in FOLDER/choice.jsonl (build/choice), so that an interrupted command resumes. The
times of all cases come first and need an idle machine. The losses do not. --hours ends it after the measurement in which that time is over.
Exit 0 if auto is right in at least nine of ten cases and never slower than wfbp.
"""
import argparse
import collections
import csv
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time

import loss_cost

ROOT = loss_cost.ROOT
BUILD = os.path.join(ROOT, "build")
FACTORS = (1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3)
NEAR = 1.05          # a time that counts as equal to the best
SECONDS = 6          # of a run that measures a step
FAR = 1.5            # a candidate that takes so many times as long as the best is not followed further
SEEDS = (1, 2)       # of the runs that measure a loss
PROFILE_STEPS = 6

Candidate = collections.namedtuple("Candidate", "strategy period wire")  # strategy: as in loss_cost.STRATEGIES, and wfbp
WFBP = Candidate("wfbp", 0, "f32")


class Results:
    """Measured values by name, one JSON line each."""

    def __init__(self, folder, hours):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "choice.jsonl")
        self.folder, self.hours, self.begun, self.found = folder, hours, time.monotonic(), {}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                for line in f:
                    entry = json.loads(line)
                    self.found[entry["name"]] = entry["value"]

    def of(self, name, measure):
        if name not in self.found:
            if self.hours and time.monotonic() - self.begun > 3600 * self.hours:
                raise TimeoutError("the time of --hours is over")
            at = time.monotonic()
            self.found[name] = measure()
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps({"name": name, "value": self.found[name]}) + "\n")
            print("%s: %s in %.0f s" % (name, str(self.found[name])[:100], time.monotonic() - at), file=sys.stderr, flush=True)
        return self.found[name]


def rates():
    """{(strategy, period): learning rate} of the settings in bench/loss_table.csv with 4 workers, f32 and 400 steps."""
    found = {}
    with open(os.path.join(ROOT, "bench", "loss_table.csv"), newline="", encoding="ascii") as f:
        for r in csv.DictReader(f):
            if (r["workers"], r["wire"], r["steps"]) == ("4", "f32", "400"):
                strategy = "stream" if r["overlap"] == "stream" else r["strategy"]
                found[strategy, int(r["period"])] = float(re.search(r"rate ([\d.e-]+)", r["source"]).group(1))
    return found


def rate_of(c):
    """The learning rate of the measured setting with the nearest period."""
    strategy = "ssgd" if c.strategy == "wfbp" else c.strategy
    near = {h: rate for (s, h), rate in rates().items() if s == strategy}
    return near[min(near, key=lambda h: abs(math.log(max(1, h) / max(1, c.period))))]


def draw(number, seed, quick):
    r = random.Random("%s %d" % (seed, number))
    case = {"number": number, "workers": r.choice((2, 3, 4)), "steps": r.choice((400, 800)),
            "rate": round(10 ** r.uniform(math.log10(2), math.log10(200)), 1), "delay": r.choice((0.5, 2, 10, 40))}
    return dict(case, steps=60) if quick else case


def link_of(case):
    return "%gmbit,%gms" % (case["rate"], case["delay"])


def last_line(options, limit=900):
    command = [os.path.join(BUILD, "train_gpt")] + loss_cost.TEXT + options + ["--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit)
    if done.returncode:
        raise RuntimeError("%s\nexit %d: %s" % (" ".join(command), done.returncode, done.stderr.strip()[-400:]))
    return json.loads(done.stdout.strip().split("\n")[-1])


def options_of(c):
    words = ["--strategy", "wfbp"] if c.strategy == "wfbp" else loss_cost.STRATEGIES[c.strategy].split()
    words += ["--period", str(c.period)] if c.period else []
    return words + (["--wire", c.wire] if c.wire != "f32" else [])


def candidate_of(words):
    """The candidate that an option string describes, as "diloco --overlap stream --wire int4 --period 50"."""
    strategy, *rest = words.split()
    options = dict(zip(rest[::2], rest[1::2]))
    stream = options.get("--overlap") == "stream"
    return Candidate("stream" if stream else strategy, int(options.get("--period", 0)), options.get("--wire", "f32"))


def profile_path(results, case):
    return os.path.join(results.folder, "profile-%(workers)d-%(rate)g-%(delay)g.csv" % case)


def choice(results, case):
    """What auto chooses, and its figures."""
    row = last_line(["--workers", str(case["workers"]), "--net", link_of(case), "--strategy", "auto", "--steps", str(PROFILE_STEPS + 2),
                     "--choice-steps", str(case["steps"]), "--lr", "%g" % rate_of(WFBP), "--write-profile", profile_path(results, case)])
    return {k: row[k] for k in ("chosen", "chosen_s", "ssgd_s", "reason")}


def ranked(results, case):
    """[(options, predicted seconds, predicted step in ms)] of the candidates within the budget, from the profile of the choice."""
    out = os.path.join(results.folder, "choose.json")
    subprocess.run([os.path.join(BUILD, "plan"), "choose", "--profile", profile_path(results, case), "--net", link_of(case), "--workers",
                    str(case["workers"]), "--steps", str(case["steps"]), "--json", out], check=True, stdout=subprocess.DEVNULL)
    with open(out, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            if "candidates" in row.get("auto", {}):
                return [(" ".join([c["strategy"], c["options"]]).strip(), c["seconds"], c["step_ms"]) for c in row["auto"]["candidates"]
                        if c["within_budget"]]
    raise RuntimeError("plan choose wrote no candidates")


def step_s(results, case, c, expected_ms):
    """The seconds of a step over the link, over whole periods."""
    whole = max(1, c.period)
    periods = max(2, min(40, round(SECONDS / (expected_ms / 1e3 * whole))))
    return last_line(["--workers", str(case["workers"]), "--net", link_of(case), "--profile", profile_path(results, case)] + options_of(c) +
                     ["--steps", str((periods + 1) * whole)])["step_ms"] / 1e3


def loss(results, case, c, steps):
    """The mean over the seeds."""
    strategy = "ssgd" if c.strategy == "wfbp" else c.strategy
    runs = [loss_cost.Run("gpt", case["workers"], steps, strategy, c.period, c.wire, rate_of(c), seed) for seed in SEEDS]
    return statistics.mean(results.of("loss " + loss_cost.name_of(r), lambda r=r: loss_cost.train(r, results.folder)) for r in runs)


def steps_to(results, case, c, goal, most, expected):
    """The steps until the loss is at most goal. The search begins near `expected` steps. None if they are more than `most`, or than all that
    are tried."""
    if c.strategy == "wfbp":
        return case["steps"]
    tried = [math.ceil(case["steps"] * factor) for factor in FACTORS]
    k = min(range(len(tried)), key=lambda i: abs(tried[i] - expected))
    while loss(results, case, c, tried[k]) > goal:
        k += 1
        if k == len(tried) or tried[k - 1] > most:
            return None
    while k > 0 and loss(results, case, c, tried[k - 1]) <= goal:
        k -= 1
    if k == 0:
        return tried[0]
    before, own = loss(results, case, c, tried[k - 1]), loss(results, case, c, tried[k])
    return tried[k - 1] + (tried[k] - tried[k - 1]) * (before - goal) / (before - own)


def key_of(case):
    return "%(workers)d workers, %(steps)d steps, %(rate)g Mbit/s, %(delay)g ms" % case


def timed(results, case, most):
    """The choice, and [(candidate, seconds of a step, predicted steps to the loss)]."""
    key = key_of(case)
    chosen = results.of("auto: " + key, lambda: choice(results, case))
    ranking = results.of("ranking: " + key, lambda: ranked(results, case))
    own = candidate_of(chosen["chosen"])
    expected = {candidate_of(words): (ms, 1e3 * seconds / ms) for words, seconds, ms in ranking if seconds is not None}
    tried = [WFBP, own]
    for words, _, _ in sorted((r for r in ranking if r[1] is not None), key=lambda r: r[1]):
        c = candidate_of(words)
        if c not in tried and len(tried) < most:
            tried.append(c)
    return chosen, [(c, results.of("step: %s; %s" % (key, " ".join(options_of(c))), lambda c=c: step_s(results, case, c, expected[c][0])),
                     expected[c][1]) for c in dict.fromkeys(tried)]


def compare(results, case, most):
    chosen, steps_of = timed(results, case, most)
    goal = loss(results, case, WFBP, case["steps"])
    best, rows = math.inf, []
    for c, each, expected in steps_of:
        steps = steps_to(results, case, c, goal, FAR * best / each, expected)
        seconds = each * steps if steps else math.inf
        rows.append((c, each, steps, seconds))
        best = min(best, seconds)
    return {"case": key_of(case), "chosen": candidate_of(chosen["chosen"]), "reason": chosen["reason"], "goal": goal, "rows": rows}


def judged(one):
    times = {c: seconds for c, _, _, seconds in one["rows"]}
    best = min(times.values())
    return times[one["chosen"]] / best, times[one["chosen"]] / times[WFBP]


def name_of(c):
    return " ".join(options_of(c)[1:])


def table(every):
    lines = ["|case|auto chose|time / best|time / wfbp|best candidate|", "|---|---|---|---|---|"]
    for one in every:
        ratio, to_wfbp = judged(one)
        best = min(one["rows"], key=lambda r: r[3])
        lines.append("|%s|%s|%.3f|%.3f|%s, %.1f s|" % (one["case"], name_of(one["chosen"]), ratio, to_wfbp, name_of(best[0]), best[3]))
    lines += ["", "|case|candidate|step, ms|steps to the loss of ssgd|seconds|", "|---|---|---|---|---|"]
    for one in every:
        for c, each, steps, seconds in sorted(one["rows"], key=lambda r: r[3]):
            lines.append("|%s|%s|%.1f|%s|%s|" % (one["case"], name_of(c), 1e3 * each, "%.0f" % steps if steps else "not reached",
                                                 "%.1f" % seconds if seconds < math.inf else "-"))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", default="1", help="seed of the cases [1]")
    parser.add_argument("--most", type=int, default=8, help="candidates measured in a case [8]")
    parser.add_argument("--out", default=os.path.join(BUILD, "choice"))
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="one case of 60 steps, three candidates")
    arguments = parser.parse_args()
    if not os.path.exists(loss_cost.TEXT[1]) or not os.path.exists(os.path.join(BUILD, "train_gpt")):
        print("skipped: needs %s and build/train_gpt" % loss_cost.TEXT[1])
        return 77
    results = Results(arguments.out + ("-quick" if arguments.quick else ""), arguments.hours)
    every, most = [], 3 if arguments.quick else arguments.most
    cases = [draw(number, arguments.seed, arguments.quick) for number in range(1 if arguments.quick else arguments.cases)]
    try:
        for case in cases:
            timed(results, case, most)
        for case in cases:
            every.append(compare(results, case, most))
    except TimeoutError as e:
        print("%s after %d cases" % (e, len(every)), file=sys.stderr)
    text = table(every)
    right = sum(judged(one)[0] <= NEAR for one in every)
    slower = sum(judged(one)[1] > 1.0 + 1e-9 for one in every)
    text += "\n\nauto is within 5 %% of the best candidate in %d of %d cases, and slower than wfbp in %d\n" % (right, len(every), slower)
    print(text)
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="ascii") as f:
            f.write(text)
    return 0 if arguments.quick or (every and right >= 0.9 * len(every) and not slower) else 1


if __name__ == "__main__":
    sys.exit(main())
