#!/usr/bin/env python3
"""Measures the tests and writes docs/results/testing.md, with the command of each figure.

    tests/testing.py [--only STAGE,..] [--page] [--list]

A stage runs its command and stores its counts in tests/testing.json. The page contains all stored counts. A
stage that fails prints a one-line error and stores nothing. All stages take about two hours. --only coverage,sweeps
runs two stages. --page only writes the page from the stored counts.
"""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
STORED = os.path.join(HERE, "testing.json")
PAGE = os.path.join(ROOT, "docs", "results", "testing.md")


class Failed(Exception):
    """The reason why a stage has no result, in one line."""


def ran(command, may_fail=False, **env):
    """Runs a command and returns its output. If it fails, its last lines are also printed."""
    print("+ %s" % command, flush=True)
    p = subprocess.run(command, shell=True, cwd=ROOT, env=dict(os.environ, **env), stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out = p.stdout.decode("utf-8", "replace")
    if p.returncode and not may_fail:
        print("\n".join(out.splitlines()[-15:]), file=sys.stderr)
        raise Failed("`%s` ended with %d" % (command, p.returncode))
    return out


def last_counts(out):
    found = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", out, re.M)
    if not found:
        raise Failed("no closing line 'N passed, N failed, N skipped'")
    return [int(n) for n in found[-1]]


# ---- stages: each returns the data to store ----

def coverage():
    out = ran("make coverage")
    counts = [[int(n) for n in found] for found in re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", out, re.M)]
    if len(counts) != 2:
        raise Failed("`make coverage` printed %d closing lines, not 2" % len(counts))
    with open(os.path.join(ROOT, "build", "coverage_test.json")) as f:
        test = json.load(f)
    with open(os.path.join(ROOT, "build", "coverage.json")) as f:
        return dict(json.load(f), test=test, tests=[sum(n) for n in zip(*counts)], tests_of_test=counts[0])


def sweeps():
    rows = []
    for flavour in ("plain", "asan", "cov"):
        programs = ["build/%s/sweep/%s" % (flavour, name) for name in ("test_sweep", "test_sweep_calls")]
        ran("make -s " + " ".join(programs))
        if flavour == "cov":
            ran("find build/cov -name '*.gcda' -delete")
        for out in [ran(program, SWEEP="whole" if flavour == "plain" else "") for program in programs]:
            begun = re.split(r"\[ RUN +\] (\w+)\n", out)[1:]
            for test, text in zip(begun[::2], begun[1::2]) if flavour != "cov" else ():
                for name, runs, most in re.findall(r"^(.+): (\d+) runs, up to number (\d+)", text, re.M):
                    rows.append([flavour, test.replace("_", " "), name, int(runs), int(most)])
    return {"rows": rows, "calls": [int(n) for n in re.match(r"(\d+) of (\d+)", ran("tools/coverage.py --calls")).groups()]}


def mutations():
    path, modules = os.path.join(ROOT, "build", "mutations.json"), {}
    for options in ("--modules compress,io,pipe", "--modules plan --sample 230 --seed 5"):
        ran("tests/mutate.py %s --json %s" % (options, path))
        with open(path) as f:
            for mutant in json.load(f):
                row = modules.setdefault(mutant["module"], {"module": mutant["module"], "tried": 0, "noticed": 0})
                row["tried"] += 1
                row["noticed"] += mutant["verdict"] in ("failed", "crashed", "timed out")
    return {"modules": [modules[r] for r in sorted(modules)]}


def fuzzing():
    out = ran("make fuzz FUZZ=60")
    names = re.findall(r"^== (fuzz_\w+)$", out, re.M)
    runs = [int(n) for n in re.findall(r"^stat::number_of_executed_units: *(\d+)$", out, re.M)]
    if len(names) != len(runs):
        raise Failed("%d fuzzers ran, but %d of them printed their number of inputs" % (len(names), len(runs)))
    return {"runs": dict(zip(names, runs)), "seconds": 60}


def same_output():
    """Compares the output of the tests without times at -O0 with coverage counters and at -O2."""
    names = ran("make -s same-output-list").split()
    ran("make -s -j2 " + " ".join("build/%s/%s" % (f, n) for f in ("cov", "o2") for n in names))
    unlike = []
    for n in names:
        a, b = (re.sub(r"\d+\.?\d* ?(s|ms|us)\b", "T", ran("build/%s/%s" % (f, n), may_fail=True)) for f in ("cov", "o2"))
        if a != b:
            unlike.append(n)
    return {"programs": len(names), "unlike": unlike}


def storm():
    path = os.path.join(ROOT, "build", "storm.json")
    ran("bench/storm.py --json " + path)
    with open(path) as f:
        return json.load(f)


STAGES = {"coverage": coverage, "sweeps": sweeps, "mutations": mutations, "fuzzing": fuzzing, "same-output": same_output,
          "storm": storm}
COMMANDS = {"coverage": "make coverage", "sweeps": "SWEEP=whole build/plain/sweep/test_sweep; ..._calls", "mutations": "tests/mutate.py",
            "fuzzing": "make fuzz FUZZ=60", "same-output": "make testing ONLY=same-output", "storm": "bench/storm.py"}


# ---- the page ----

def when(stage, at):
    return "`%s`, %s, %s%s" % (COMMANDS[stage], at["machine"], at["date"], ": " + at["note"] if "note" in at else "")


def pct(got, of):
    return "%.1f %%" % (100.0 * got / of) if of else "-"


def of_coverage(at):
    yield "%s: %d tests passed, %d failed, of which `make test` runs %d." % (
        when("coverage", at), at["tests"][0], at["tests"][1], at["tests_of_test"][0])
    yield ""
    yield "| module | lines | reached by `make test` | by `make test-all` | branches | reached by `make test` | by `make test-all` |"
    yield "|---|---|---|---|---|---|---|"
    for module, r in list(at["modules"].items()) + [("**all**", at["all"])]:
        t = at["test"]["all"] if module == "**all**" else at["test"]["modules"].get(module, [0] * 4)
        yield "| %s | %d | %s | %s | %d | %s | %s |" % (
            module, r[0], pct(t[1], t[0]), pct(r[1], r[0]), r[2], pct(t[3], t[2]), pct(r[3], r[2]))
    if "modules_since" in at:
        yield ""
        yield at["modules_since"]


def of_sweeps(at):
    yield when("sweeps", at) + "."
    if "calls" in at:
        yield "%d of the %d public functions run in these scenarios (`tools/coverage.py --calls` of a coverage build). Most of the others" % tuple(at["calls"])
        yield "only return names and numbers. The exceptions are aborts, and pipelines that lose a rank."
    yield ""
    yield "| failure | scenario | runs | highest number tried | build |"
    yield "|---|---|---|---|---|"
    for flavour, test, name, runs, most in at["rows"]:
        if most:
            yield "| %s | %s | %d | %d | %s |" % (test, name, runs, most, {"plain": "plain", "asan": "ASan, UBSan"}[flavour])


def of_mutations(at):
    yield when("mutations", at) + "."
    yield ""
    yield "| module | mutants tried | detected | share |"
    yield "|---|---|---|---|"
    for r in at["modules"]:
        yield "| %s | %d | %d | %s |" % (r["module"], r["tried"], r["noticed"], pct(r["noticed"], r["tried"]))


def of_fuzzing(at):
    yield "%s: %s inputs in %d s each, none of which crashed, hung or leaked." % (
        when("fuzzing", at), ", ".join("{} {:,}".format(name, n) for name, n in at["runs"].items()), at["seconds"])


def of_same_output(at):
    yield "%s: %d test programs that print no times, at -O0 with coverage counters and at -O2; %s." % (
        when("same-output", at), at["programs"],
        "all outputs are equal" if not at["unlike"] else "outputs differ: " + ", ".join(at["unlike"]))


def of_storm(at):
    kills = [at["kinds"][k] for k in ("kill", "pair", "two", "coordinator")]
    yield "%s: %d workers, %d faults in %d s. The goodput is %.1f %% of the fault-free steps around each fault," % (
        when("storm", at), at["workers"], at["faults"], at["seconds"], at["goodput_local_pct"])
    yield "%.1f %% without the time during which the script itself stops workers. After %d kills the next average was" % (
        at["goodput_local_without_stops_pct"], sum(k["faults"] for k in kills))
    yield "complete within %.2f s (mean) and %.2f s (maximum). [elastic-protocol](../explanation/elastic-protocol.md#how-it-is-tested) lists each kind of fault." % (
        sum(k["faults"] * k["mean_s"] for k in kills) / sum(k["faults"] for k in kills), max(k["most_s"] for k in kills))


ABOUT = {
    "coverage": ("Lines and branches", """\
A branch is one outcome of one condition. `tools/coverage.py --missing plan` lists the lines and branches of a module that no test
in C reaches. The figures exclude killed workers and test scripts. The figures of `make test` leave out
`wire/tls.c` and `wire/mpi.c`, which need OpenSSL and MPI."""),
    "sweeps": ("Failing allocations and system calls", """\
The n-th allocation fails, or the n-th call of read, write, fsync, rename, socket, connect, pthread_create ..., once or with all later
ones. n is 1, 2, ... up to the number of calls; in runs of several processes only every k-th n is tried. Every run must end with a
one-line error, or with the right result if a link reconnects. It must leak no memory and no file. Every file must be complete, old or
new, and a run must be able to resume from the checkpoint. A call that a signal interrupts must have no effect."""),
    "mutations": ("Mutation testing", """\
Each condition in the pure-compute modules is negated in turn. At least one test must fail."""),
    "fuzzing": ("Fuzzing", """\
The fuzz targets also use the parsed input: they plan with it, train with it, and resume from it. `packaging/oss-fuzz` builds the same
targets."""),
    "same-output": ("Equal output with and without optimisation", "Compiler optimisation must not change the output of a test."),
    "storm": ("A storm of faults", "A script kills, stalls and disconnects workers, and starts joining workers."),
}


def page(stored):
    lines = ["# How this is tested", "",
             "Use this page to see how much of the code the tests reach. `make test` takes at most five minutes on a clean checkout. `make test-all`",
             "runs every test. `make sanitize` runs the tests in C under ASan, UBSan and TSan. `make testing` measures the figures below and writes",
             "this page.",
             "`tests/testing.json` stores each figure with the day it was measured.", "",
             "`make test MODULE=wire` runs the tests of `tests/wire`, `make test NAME=corrupt_frame` those whose name contains the text. The first",
             "line of a test file selects its suite: a test marked `[test-all: reason]` runs only in `make test-all`. Tests that assert a duration",
             "are in `bench/timing`; `make timing` runs them one at a time.", ""]
    for stage, (title, text) in ABOUT.items():
        lines += ["## " + title, "", text, ""]
        if stage in stored:
            lines += list(globals()["of_" + stage.replace("-", "_")](stored[stage]))
        else:
            lines += ["Not measured yet: `make testing ONLY=%s`." % stage]
        lines.append("")
    with open(PAGE + ".new", "w") as f:
        f.write("\n".join(lines).rstrip() + "\n")
    os.rename(PAGE + ".new", PAGE)


def machine():
    try:
        with open("/proc/cpuinfo") as f:
            model = re.search(r"model name\s*: (.*)", f.read()).group(1)
    except (OSError, AttributeError):
        model = platform.machine()
    return "%s, %d cores" % (model, os.cpu_count())


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--only", help="stages, separated by commas")
    a.add_argument("--page", action="store_true", help="only write the page from the stored counts")
    a.add_argument("--list", action="store_true", help="list the stages")
    a = a.parse_args()
    if a.list:
        print("\n".join("%-12s %s" % (s, COMMANDS[s]) for s in STAGES))
        return 0
    chosen = [] if a.page else a.only.split(",") if a.only else list(STAGES)
    for stage in chosen:
        if stage not in STAGES:
            sys.exit("testing.py: no stage '%s': %s" % (stage, ", ".join(STAGES)))
    stored = {}
    if os.path.exists(STORED):
        with open(STORED) as f:
            stored = json.load(f)
    bad = 0
    for stage in chosen:
        begin = time.time()
        try:
            stored[stage] = dict(STAGES[stage](), machine=machine(), date=datetime.date.today().isoformat())
        except (Failed, OSError, ValueError) as why:
            print("testing.py: %s: %s" % (stage, why), file=sys.stderr)
            bad = 1
            continue
        with open(STORED + ".new", "w") as f:
            json.dump(stored, f, indent=1, sort_keys=True)
            f.write("\n")
        os.rename(STORED + ".new", STORED)
        print("%s: %.0f s" % (stage, time.time() - begin), flush=True)
    page(stored)
    return bad


if __name__ == "__main__":
    sys.exit(main())
