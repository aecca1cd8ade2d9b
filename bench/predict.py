#!/usr/bin/env python3
"""Predicted step times against measured ones, over whole periods.

    bench/predict.py [--quick] [--only WORD] [--write]

Four workers train a small GPT under five strategies over three emulated links and, as root, behind Linux's token buckets (tc tbf) with a
burst of 64 kB. `predicted` is predicted_step_ms, which was made when the plan was adopted; `measured` is the mean step after the profile,
over whole periods. `corrected` is corrected_step_ms. `simulated` is the step that build/simulate computes from a profile of one worker alone,
with --cores. `link measured in` is the step in which the link is measured, minus the longest later step. --write replaces the
table of docs/results/benchmarks.md between two comments, and no other line. Exit code 1: a ratio of `predicted` is not within 5 %.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, "tests", "wire"))
from netns import Net  # noqa: E402

TRAIN = os.path.join(ROOT, "build", "train_gpt")
SIMULATE = os.path.join(ROOT, "build", "simulate")
PAGE = os.path.join(ROOT, "docs", "results", "benchmarks.md")
BEGIN, END = "<!-- bench/predict.py: begin -->\n", "<!-- end -->\n"
WORKERS = 4
LINKS = ["2mbit,100ms", "10mbit,50ms", "100mbit,5ms"]
BUCKET = "20mbit"
BUCKET_DELAY = "0.1ms"  # delay between the namespaces
STRATEGIES = [("ssgd", 1), ("wfbp", 1), ("dreamddp", 5), ("diloco", 5), ("sparseloco", 5)]
FIRST = 10  # the first step that counts: a period after the plan of step 6
ENV = {k: v for k, v in os.environ.items() if not re.match("DREAMDDP_|RANK$|WORLD_SIZE$", k)}


def command(strategy, period, steps, log):
    data = os.path.join(os.environ.get("DDP_DATA", os.path.join(ROOT, "data")), "tinyshakespeare", "input.txt")
    return [TRAIN, "--data", data, "--layers", 2, "--dim", 64, "--heads", 2, "--seq", 32, "--batch", 2, "--strategy", strategy,
            *(["--period", period] if period > 1 else []), "--steps", steps, "--quiet", "--json", log, "--workers", WORKERS]


def result_of(run):
    """Runs a program and returns its JSON result."""
    done = subprocess.run([str(w) for w in run], env=ENV, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def alone(folder):
    """Returns the path of a measured profile of one worker."""
    path = os.path.join(folder, "alone.csv")
    run = command("localsgd", 1, 60, os.path.join(folder, "alone.jsonl"))
    result_of(run + ["--workers", 1, "--profile-steps", 40, "--write-profile", path])
    return path


def simulated(profile, link, strategy, period, steps):
    """Returns the simulated step in milliseconds."""
    return result_of([SIMULATE, "--profile", profile, "--workers", WORKERS, "--cores", os.cpu_count(), "--strategy", strategy, "--steps", steps,
                      "--net", "%s,%s" % (link, BUCKET_DELAY) if link == BUCKET else link, *(["--period", period] if period > 1 else [])])["step_ms"]


def emulated(link, run):
    done = subprocess.run([str(w) for w in run + ["--net", link]], env=ENV, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def behind_buckets(run, log):
    with Net(WORKERS, "pred%d" % (os.getpid() % 1000)) as net:
        for host in net.hosts:
            for where, device in ((host, host + "a"), (net.router, host + "b")):
                net.run(where, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", BUCKET, "burst", "64kb",
                        "latency", "100ms")
        jobs = []
        for r, host in enumerate(net.hosts):
            words = [w if r == 0 or w != log else os.devnull for w in map(str, run)]
            jobs.append(net.start(host, words + ["--rank", str(r), "--addr", "10.77.0.1:29500", "--insecure"], env=ENV,
                                  text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        outputs = [j.communicate() for j in jobs]
    return max(j.returncode for j in jobs), outputs[0][0], "".join(err for _, err in outputs)


def cell(link, strategy, period, profile, quick):
    """Returns the row of a link and a strategy."""
    slow = link.startswith("2mbit") and period == 1
    steps = FIRST + (5 if slow else 10 if quick else 25)
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "run.jsonl")
        run = command(strategy, period, steps, log)
        code, out, err = behind_buckets(run, log) if link == BUCKET else emulated(link, run)
        if code:
            sys.exit("predict.py: %s: %s" % (" ".join(map(str, run)), err.strip()[-300:]))
        with open(log) as f:
            times = {e["step"]: e["step_ms"] for e in map(json.loads, f) if e.get("event") == "step"}
    last = json.loads(out.splitlines()[-1])
    counted = [times[s] for s in sorted(times) if s >= FIRST]
    counted = counted[:len(counted) // period * period]
    mean = sum(counted) / len(counted)
    usual = max(times[s] for s in times if s >= FIRST)  # the plan's step may also average
    return {"link": link, "strategy": strategy, "predicted": last["predicted_step_ms"], "measured": mean,
            "ratio": last["predicted_step_ms"] / mean, "corrected": last["corrected_step_ms"] / mean,
            "simulated": simulated(profile, link, strategy, period, steps) / mean,
            "longer": max(0, max(times[s] for s in (5, 6) if s in times) - usual), "replans": last["replans"]}


def markdown(rows):
    machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    lines = ["|link|strategy|predicted ms|measured ms|predicted / measured|corrected / measured|simulated / measured|link measured in ms|new plans|",
             "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        name = "%s, burst 64 kB (tbf)" % BUCKET if r["link"] == BUCKET else r["link"]
        lines.append("|%s|%s|%.1f|%.1f|%.3f|%.3f|%.3f|%.0f|%d|" % (name, r["strategy"], r["predicted"], r["measured"], r["ratio"],
                                                               r["corrected"], r["simulated"], r["longer"], r["replans"]))
    lines += ["", "Measured on %d processors (%s), %s, with a load of %.1f at the end." %
              (os.cpu_count(), machine, datetime.date.today(), os.getloadavg()[0]), ""]
    return "\n".join(lines)


def page_parts():
    """The text of the page before and after the table."""
    with open(PAGE, encoding="utf-8") as f:
        before, found, rest = f.read().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        sys.exit("predict.py: %s lacks the lines %s and %s" % (PAGE, BEGIN.strip(), END.strip()))
    return before, after


def write(table):
    before, after = page_parts()
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(before + BEGIN + table + END + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--only", metavar="WORD", help="rows whose link or strategy contains WORD")
    parser.add_argument("--write", action="store_true", help="replace the table of docs/results/benchmarks.md")
    args = parser.parse_args()
    if args.write and (args.only or args.quick):
        parser.error("--write needs all rows; omit --only and --quick")
    if args.write:
        page_parts()  # a page without the comments fails before the measurement
    if args.only and not any(args.only in "%s %s" % (link, s) for link in LINKS + [BUCKET] for s, _ in STRATEGIES):
        parser.error("no row contains %s; links are %s, strategies %s"
                     % (args.only, ", ".join(LINKS + [BUCKET]), ", ".join(s for s, _ in STRATEGIES)))
    why = Net.possible()
    rows = []
    if why:
        print("predict.py: no token bucket: %s" % why, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        profile = alone(folder)
        for link in LINKS + ([] if why else [BUCKET]):
            for strategy, period in STRATEGIES:
                if args.only and args.only not in link + " " + strategy:
                    continue
                rows.append(cell(link, strategy, period, profile, args.quick))
                print("%(link)s %(strategy)s: predicted %(predicted).1f ms, measured %(measured).1f ms, ratio %(ratio).3f, simulated %(simulated).3f"
                      % rows[-1], file=sys.stderr, flush=True)
    table = markdown(rows)
    print(table)
    if args.write:
        write(table)
    return any(not 0.95 <= r["ratio"] <= 1.05 for r in rows)


if __name__ == "__main__":
    sys.exit(main())
