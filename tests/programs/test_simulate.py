#!/usr/bin/env python3
"""build/simulate: all strategies, the keys of its result, step times that can be computed by hand, sweeps with table and chart,
reports, incidents, pipelines, stragglers, and errors.

    tests/programs/test_simulate.py [WORD ..]     needs build/simulate
"""
import csv
import json
import os
import subprocess
import sys
import xml.dom.minidom

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIMULATE = os.path.join(ROOT, os.environ.get("BUILD", "build"), "simulate")
sys.path.insert(0, os.path.join(ROOT, "tests"))
from cases import case, expect, run_cases  # noqa: E402

STRATEGIES = 18


def profile(folder, forward="0.002"):
    path = os.path.join(folder, "p.csv")
    with open(path, "w") as f:
        f.write("layer,params,forward_s,backward_s,comm_s\n" + "".join("l%d,%d,%s,0.004,\n" % (i, 20000 + 1000 * i, forward) for i in range(6)))
    return path


def program(folder, *options, rc=0, forward="0.002"):
    command = [SIMULATE, "--profile", profile(folder, forward)] + [str(o) for o in options]
    r = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    expect(r.returncode == rc, "%s: exit %d, %s" % (" ".join(command[3:]), r.returncode, r.stderr[-300:]))
    return r


def objects(folder, *options, **more):
    return [json.loads(line) for line in program(folder, *options, **more).stdout.splitlines()]


def one(folder, *options, **more):
    return objects(folder, *options, **more)[0]


def refused(folder, words, *options, rc=2):
    r = program(folder, *options, rc=rc)
    expect(r.stdout == "" and r.stderr.count("\n") == 1 and all(w in r.stderr for w in words), "%s: %s" % (" ".join(map(str, options)), r.stderr))


@case
def every_strategy_is_simulated(folder):
    out = objects(folder, "--strategy", "all", "--workers", 6, "--net", "50mbit,5ms", "--steps", 30)
    expect(len(out) == STRATEGIES == len({o["strategy"] for o in out}), [o["strategy"] for o in out])
    step = {o["strategy"]: o["step_ms"] for o in out}
    for o in out:
        expect(0 < o["utilisation_pct"] <= 100.01 and o["goodput_pct"] == 100 and o["on"] == "a virtual clock", o)
        expect(o["step_ms"] > 35.9 and o["bytes_sent"] > 0 and o["steps"] == 30, o)
    expect(step["dreamddp"] < step["localsgd"] < step["usbyte"] < step["ssgd"] < step["bsp"], step)


@case
def step_time_matches_the_formula(folder):
    """S-SGD: compute time, plus 2 (P - 1) / P of the bytes, plus two delays that partly overlap with sending."""
    o = one(folder, "--strategy", "ssgd", "--workers", 4, "--net", "8mbit,1ms", "--steps", 20)
    want = 36 + 1e3 * 2 * 3 / 4 * 4 * sum(20000 + 1000 * i for i in range(6)) / 1e6 + 2
    expect(abs(o["step_ms"] / want - 1) < 0.02, (o["step_ms"], want))
    o = one(folder, "--strategy", "dreamddp", "--workers", 4, "--steps", 20)
    expect(abs(o["step_ms"] - 36) < 0.01 and o["utilisation_pct"] > 99.9, o)
    o = one(folder, "--workers", 4, "--steps", 20, forward="")
    expect(abs(o["step_ms"] - 36) < 0.01, "forward times are not half of the backward times: %s" % o["step_ms"])


@case
def no_fixed_landing_is_faster_than_the_plan_of_streaming_diloco(folder):
    """Also if the link becomes slower after planning, by less than makes a new plan."""
    r = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "stream_grid.py"), "--simulate"], capture_output=True, text=True,
                       timeout=300, cwd=folder)
    expect(r.returncode == 0 and r.stdout.count("planner / best pair") == 3, r.stdout[-2000:] + r.stderr[-300:])


@case
def target_gives_time_and_cost(folder):
    o = one(folder, "--workers", 4, "--steps", 20, "--tokens", 1000, "--target", 1e9, "--price", 2)
    hours = 1e9 / 4000 * o["step_ms"] / 1e3 / 3600
    expect(abs(o["hours"] / hours - 1) < 1e-9 and abs(o["cost"] / (hours * 8) - 1) < 1e-9, o)


@case
def two_simulated_workers_give_the_result_of_all(folder):
    few, all_ = (one(folder, "--workers", 40, "--net", "100mbit,3ms", "--steps", 20, *more) for more in ([], ["--each"]))
    expect(few["simulated_workers"] == 2 and all_["simulated_workers"] == 40, (few, all_))
    for key in ("step_ms", "hidden_pct", "bytes_sent", "predicted_step_ms", "wait_ms"):
        expect(few[key] == all_[key], "%s: %r, %r" % (key, few[key], all_[key]))
    again = one(folder, "--workers", 40, "--net", "100mbit,3ms,2ms", "--steps", 20, "--noise", "0.2")
    once = one(folder, "--workers", 40, "--net", "100mbit,3ms,2ms", "--steps", 20, "--noise", "0.2")
    other = one(folder, "--workers", 40, "--net", "100mbit,3ms,2ms", "--steps", 20, "--noise", "0.2", "--seed", 7)
    expect(again["step_ms"] == once["step_ms"] != other["step_ms"] and once["simulated_workers"] == 40, (again, once, other))


@case
def straggler_delays_every_step(folder):
    o = one(folder, "--workers", 4, "--strategy", "ssgd", "--steps", 20, "--slow", "2:3")
    expect(abs(o["step_ms"] - 108) < 1 and o["slowest_rank"] == 2 and abs(o["slow_ratio"] - 3) < 0.1, o)


@case
def workers_that_share_cores_compute_longer(folder):
    options = ("--strategy", "localsgd", "--steps", 21, "--workers", 4)
    alone, shared = one(folder, *options), one(folder, *options, "--cores", 2)
    expect(alone["compute_slowdown"] == 1 and shared["compute_slowdown"] == 2, shared)
    expect(abs(shared["step_ms"] - alone["step_ms"] - 36) < 0.01, (alone["step_ms"], shared["step_ms"]))
    expect(one(folder, *options, "--cores", 6, "--threads", 3)["compute_slowdown"] == 2, "threads")
    expect(one(folder, *options, "--cores", 8)["step_ms"] == alone["step_ms"], "more cores than workers")
    refused(folder, ["--cores"], *options, "--cores", -1)


@case
def figures_cover_whole_periods(folder):
    options = ("--strategy", "localsgd", "--workers", 4, "--net", "50mbit,5ms", "--period", 5)
    short, one_period, two = (program(folder, *options, "--steps", n) for n in (14, 15, 22))
    a, b, c = (json.loads(r.stdout) for r in (short, one_period, two))
    expect((a["counted_steps"], a["counted_periods"]) == (8, 0) and "covers 8 steps, less than a period of 5: run at least 15 steps" in short.stderr, short)
    expect((b["counted_steps"], b["counted_periods"]) == (5, 1) and (c["counted_steps"], c["counted_periods"]) == (10, 2), (b, c))
    expect(abs(c["step_ms"] / b["step_ms"] - 1) < 0.02 and abs(c["bytes_per_step"] / b["bytes_per_step"] - 1) < 0.02, (b, c))
    expect(one_period.stderr == "", one_period.stderr)


@case
def incidents(folder):
    with open(os.path.join(folder, "f.txt"), "w") as f:
        f.write("t=5 stall 1 for 0.5\n")  # after the profiled steps
    o = one(folder, "--workers", 4, "--strategy", "ssgd", "--net", "20mbit,1ms", "--steps", 30, "--faults", "f.txt")
    expect(50 < o["goodput_pct"] < 95, o)
    with open(os.path.join(folder, "f.txt"), "w") as f:
        f.write("t=1 kill 3\n")
    refused(folder, ["rank 3 was lost", "min_world"], "--workers", 4, "--net", "20mbit,1ms", "--faults", "f.txt", rc=3)
    o = one(folder, "--workers", 4, "--min-world", 2, "--net", "20mbit,1ms", "--steps", 30, "--faults", "f.txt")
    expect(o["workers"] == 3, o)


@case
def pipelines(folder):
    for schedule in ("gpipe", "1f1b", "zb"):
        o = one(folder, "--workers", 4, "--stages", 2, "--pipeline", schedule, "--microbatches", 4, "--emulate-bytes", 10000, "--net", "50mbit,2ms",
                "--strategy", "localsgd", "--steps", 12)
        expect(o["stages"] == 2 and 0 < o["bubble_pct"] < 100 and abs(o["step_ms"] / o["predicted_step_ms"] - 1) < 0.15, o)


@case
def sweep_writes_a_table_and_a_chart(folder):
    out = objects(folder, "--strategy", "all", "--workers", 3, "--steps", 8, "--sweep", "net=10mbit,1ms;1gbit,1ms", "--csv", "s.csv", "--svg", "s.svg")
    expect(len(out) == 2 * STRATEGIES and out[0]["sweep"] == "net=10mbit,1ms" and out[-1]["sweep"] == "net=1gbit,1ms", out[0])
    with open(os.path.join(folder, "s.csv"), newline="") as f:
        rows = list(csv.DictReader(f))
    expect(len(rows) == 2 * STRATEGIES and all(float(r["step_ms"]) > 0 for r in rows), rows[:1])
    picture = xml.dom.minidom.parse(os.path.join(folder, "s.svg"))
    expect(len(picture.getElementsByTagName("path")) == STRATEGIES, "not one curve per strategy")
    out = objects(folder, "--steps", 8, "--sweep", "workers=2,5,9")
    expect([o["workers"] for o in out] == [2, 5, 9], out)


@case
def reports(folder):
    program(folder, "--workers", 3, "--net", "50mbit,1ms", "--steps", 20, "--report", "r.html", "--trace", "t.json", "--json", "l.jsonl")
    with open(os.path.join(folder, "t.json")) as f:
        events = json.load(f)
    expect(sum(e.get("ph") == "X" for e in events) > 100, "a trace")
    with open(os.path.join(folder, "r.html")) as f:
        expect("<svg" in f.read(), "a page")
    with open(os.path.join(folder, "l.jsonl")) as f:
        kinds = [json.loads(line)["event"] for line in f]
    expect(kinds[0] == "run" and kinds.count("step") == 20 and kinds[-1] == "result", kinds)


@case
def real_option_runs_on_this_machine(folder):
    o = one(folder, "--real", "--workers", 2, "--strategy", "ssgd", "--net", "50mbit,1ms", "--steps", 12)
    expect(o["on"] == "this machine" and o["step_ms"] > 36, o)


@case
def invalid_options_fail_with_an_error(folder):
    with open(os.path.join(folder, "n.json"), "w") as f:
        json.dump({"N": 2, "delay_ms": [[0, -1], [1, 0]], "bandwidth_gbps": [[0, 1], [1, 0]]}, f)
    with open(os.path.join(folder, "z.json"), "w") as f:
        json.dump({"N": 2, "delay_ms": [[0, 1], [1, 0]], "bandwidth_gbps": [[0, 0], [1, 0]]}, f)
    refused(folder, ["delay from device 0 to device 1 is -0.001"], "--workers", 2, "--net", "n.json", rc=2)
    refused(folder, ["carries 0 bytes/s"], "--workers", 2, "--net", "z.json", rc=2)
    refused(folder, ["-5mbit"], "--workers", 2, "--net", "-5mbit,1ms")
    refused(folder, ["--stages 4", "--workers 2"], "--workers", 2, "--stages", 4)
    refused(folder, ["--workers 70000"], "--workers", 70000)
    refused(folder, ["--noise 2"], "--workers", 2, "--noise", 2)
    refused(folder, ["--price"], "--workers", 2, "--price", 2)
    refused(folder, ["50000 values"], "--workers", 2, "--sweep", "seed=1" + ",1" * 49999)
    refused(folder, ["KEY=A,B"], "--workers", 2, "--sweep", "workers")
    refused(folder, ["unknown option --nonsense"], "--workers", 2, "--sweep", "nonsense=1,2")
    refused(folder, ["servers on the ranks of workers"], "--workers", 3, "--strategy", "bsp", "--servers", "colocated")
    refused(folder, ["none.csv"], "--profile", "none.csv", rc=1)
    r = subprocess.run([SIMULATE, "--workers", "2"], capture_output=True, text=True)
    expect(r.returncode == 2 and "--profile P.csv is missing" in r.stderr, r.stderr)
    r = subprocess.run([SIMULATE, "--help"], capture_output=True, text=True)
    expect(r.returncode == 0 and "--sweep" in r.stdout and "(null)" not in r.stdout, r.stdout[:300])


if __name__ == "__main__":
    sys.exit(run_cases())
