#!/usr/bin/env python3
"""[long] Results of training runs: the JSON object, JSON lines, the trace, profiles, options, and the comparison that quickstart prints.

    tests/programs/test_figures.py [WORD...]     only the cases whose names contain one of the words
"""
import csv as csv_module
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (BUILD, LAYERS, PERIOD, SMALL, STRATEGIES, case, csv, expect, finish, result, run, run_script,
                     sentence, start, train, unused_address, write)  # noqa: E402


KEYS = {"final_loss", "first_loss", "val_loss", "steps", "step_ms", "tokens_per_s", "hidden_pct", "bytes_sent",
        "bytes_by_coding", "planned_mb", "peak_rss_mb", "param_hash", "comm_cpu_s"}


@case("a run writes the JSON object, the JSON lines and the trace")
def check(folder):
    out, err = run(folder, *SMALL, *PERIOD, "--steps", 24, "--workers", 2, "--json", "x.jsonl", "--trace", "x.json")
    expect(not err, "--quiet, but on stderr: " + err)
    r = result(out)
    expect(KEYS <= set(r), "missing: %s" % (KEYS - set(r)))
    expect(r["steps"] == 24 and 0 <= r["hidden_pct"] <= 100 and r["bytes_sent"] > 0 and r["step_ms"] > 0, str(r))
    expect(0 < r["comm_cpu_s"] < 60, str(r))
    as_floats = r["bytes_by_coding"]
    expect(set(as_floats) == {"own", "f32"} and 0 < sum(as_floats.values()) < r["bytes_sent"], str(r))
    with open(os.path.join(folder, "x.jsonl")) as f:
        events = [json.loads(line) for line in f]
    kinds = [e["event"] for e in events if e["event"] != "note"]  # a busy machine may log a straggler
    expect(kinds == ["run", "profile", "plan"] + ["step"] * 24 + ["result"], "events: %s" % kinds)
    expect({"command", "version", "seed", "host"} <= {k for k, v in events[0].items() if v is not None},
           str(events[0]))
    steps = [e for e in events if e["event"] == "step"]
    expect(all({"step", "loss", "step_ms", "wait_ms", "bytes"} <= set(e) for e in steps), "keys of " + str(steps[0]))
    expect([e["step"] for e in steps] == list(range(24)), "step numbers")
    expect(sum(e["wait_ms"] is None for e in steps) <= 2, "wait_ms is unknown")
    expect({"strategy", "workers", "step_ms", "hidden_pct", "bytes_sent", "final_loss", "time_to_loss_s",
            "param_hash"}
           <= set(events[-1]), "keys of " + str(events[-1]))
    expect(sorted(sum(events[2]["sets"], [])) == list(range(LAYERS)), "the plan is " + str(events[2]["sets"]))
    with open(os.path.join(folder, "x.json")) as f:
        trace = json.load(f)
    expect({e["pid"] for e in trace if e["ph"] == "X"} == {1, 2}, "lanes of two workers")


@case("training options keep the loss falling")
def check(folder):
    base = [*SMALL, "--workers", 2, "--steps", 12, *PERIOD, "--deterministic"]
    for args in ["--accumulate 3", "--clip 0.5", "--clip 0.5 --strategy dreamddp", "--average-state", "--paper",
                 "--schedule cosine --warmup 4", "--schedule step", "--optimizer sgd --lr 0.1", "--optimizer adam",
                 "--optimizer nesterov --lr 0.05", "--optimizer muon", "--state-period 2,3",
                 "--vocab 300", "--dropout 0.1", "--held-out 0", "--threads 2", "--fill exact", "--check-writes",
                 "--solver optimal --cost timeline", "--accumulate 2 --clip 1 --strategy wfbp"]:
        r = train(folder, *base, *args.split())
        expect(r["final_loss"] < r["first_loss"], "%s does not learn: %s" % (args, r))
        expect((r["val_loss"] is None) == ("held-out" in args), "val_loss with %s: %s" % (args, r["val_loss"]))


@case("--epochs counts passes over the data")
def check(folder):
    write(folder, "text", "abcdefgh" * 100)  # 800 tokens, of which 720 are training data: 44 windows
    r = train(folder, *SMALL, "--workers", 2, "--epochs", 2)
    expect(r["steps"] == 22, "%d steps, not 2 x 44 / (2 x 2)" % r["steps"])
    addr = unused_address()
    ranks = [start(folder, *SMALL, "--epochs", 3, env={"DREAMDDP_RANK": str(r), "DREAMDDP_WORLD_SIZE": "3",
                                                       "DREAMDDP_ADDR": addr}) for r in range(3)]
    ended = [finish(p, folder) for p in ranks]
    expect([e[0] for e in ended] == [0, 0, 0], "exit codes: %s" % ended)
    expect(result(ended[0][1])["steps"] == 22, "with three workers of a launcher: " + ended[0][1])


@case("a measured profile is written, and a later run plans with it")
def check(folder):
    run(folder, *SMALL, *PERIOD, "--steps", 12, "--workers", 2, "--net", "100mbit,1ms", "--write-profile", "p.csv")
    with open(os.path.join(folder, "p.csv")) as f:
        rows = list(csv_module.DictReader(f))
    expect(len(rows) == LAYERS and all(float(r["backward_s"]) > 0 for r in rows), str(rows))
    for r in rows:  # two workers exchange all their values
        sent = 4 * int(r["params"]) / 12.5e6
        expect(0.8 * sent < float(r["comm_s"]), str(r))
    run(folder, *SMALL, *PERIOD, "--steps", 12, "--workers", 2, "--profile", "p.csv")
    out, err = run(folder, *SMALL, "--steps", 2, "--workers", 2, "--write-profile", "q.csv", code=2)
    sentence(err, "q.csv", "profile")
    expect(not os.path.exists(os.path.join(folder, "q.csv")), "an empty profile was written")


@case("deft reports its update frequency")
def check(folder):
    write(folder, "p.csv", csv(*["l%d,20000,0.004,0.008," % i for i in range(5)]))
    # A step computes for 60 ms. The network sends its gradients in 60 ms, then in four times as long.
    for net, least, most in (("160mbit,1ms", 0.9, 1.2), ("10mbit,1ms", 0.1, 0.8)):
        r = train(folder, "--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--steps", 30, "--strategy", "deft",
                  "--deterministic", "--profile", "p.csv", "--net", net)
        expect(least <= r["update_frequency"] <= most, "%s: %s" % (net, r["update_frequency"]))
    r = train(folder, *SMALL, "--steps", 4, "--workers", 2, "--strategy", "wfbp")
    expect("update_frequency" not in r, "of wfbp: %s" % r)


@case("clipping fails with strategies that cannot clip in time")
def check(folder):
    for s in STRATEGIES:
        code, out, err = finish(start(folder, *SMALL, "--steps", 8, "--workers", 2, "--clip", 0.1,
                                      "--strategy", s), folder)
        expect(code in (0, 2), "%s: exit %d: %s" % (s, code, err))
        if code:
            sentence(err, "clip")
            expect(s in ("enp", "deft"), s + " must clip")


@case("--emulate-compute paces the layers, and dreamddp sends fewer bytes than ssgd")
def check(folder):
    rows = ["l%d,20000,0.004,0.008," % i for i in range(5)]
    write(folder, "p.csv", csv(*rows))
    args = ["--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--steps", 40, "--net", "50mbit,1ms"]
    # a layer catches up with at most 10 ms of the delay that a busy machine causes before the timing starts
    alone = train(folder, *args[:3], "--steps", 40)
    expect(alone["step_ms"] >= 59, "60 ms of layers in %.1f ms" % alone["step_ms"])
    r = train(folder, *args, "--strategy", "dreamddp")
    expect(r["step_ms"] >= 59, "60 ms of layers in %.1f ms" % r["step_ms"])
    expect(0 <= r["hidden_pct"] <= 100 and r["final_loss"] is None, str(r))
    s = train(folder, *args, "--strategy", "ssgd")
    expect(r["bytes_sent"] < s["bytes_sent"], "%d bytes against %d of ssgd" % (r["bytes_sent"], s["bytes_sent"]))


@case("a profile without forward times takes the same time in train_gpt and in simulate")
def check(folder):
    write(folder, "p.csv", csv(*["l%d,20000,,0.020," % i for i in range(5)]))
    for options, compute_ms, most_ms in (([], 150, 199), (["--forward", 0], 100, 149), (["--forward", 1], 200, 1e6)):
        args = ["--quiet", *options, "--workers", 2, "--steps", 8, "--net", "1gbit,0ms", "--strategy", "ssgd"]
        for _ in range(5):  # a busy machine may take longer, but no run is faster than its layers
            really = train(folder, "--emulate-compute", "p.csv", *args)
            if really["step_ms"] < most_ms:
                break
        expect(compute_ms - 1 <= really["step_ms"] < most_ms,
               "%s: %.1f ms of layers in %.1f ms" % (options, compute_ms, really["step_ms"]))
        out, _ = run(folder, "--profile", "p.csv", *args, program=os.path.join(BUILD, "simulate"))
        simulated = json.loads(out.splitlines()[-1])
        # five layers of 4 x 20000 bytes each are sent in 3.2 ms
        expect(compute_ms <= simulated["step_ms"] < compute_ms + 8, "%s: simulate says %.1f ms" % (options, simulated["step_ms"]))
    _, err = run(folder, "--emulate-compute", "p.csv", "--forward", -1, code=2)
    sentence(err, "--forward -1")


@case("quickstart compares the given strategies and draws each")
def check(folder):
    program, names = os.path.join(BUILD, "quickstart"), ["usbyte", "ssgd", "dreamddp", "auto"]
    small = ["--data", "text", "--workers", 2, "--steps", 30, "--layers", 1, "--dim", 16, "--seq", 16,
             "--net", "100mbit,1ms"]
    out, err = run(folder, *small, "--strategies", ",".join(names), program=program)
    rows = re.findall(r"^(\w+) +[0-9.]+ +([0-9.]+|-) +[0-9.]+x", out, re.M)
    expect([r[0] for r in rows] == names and rows[2][1] != "-", "table rows without a prediction: %s" % rows)
    expect(re.search(r"^auto chose (wfbp|dreamddp|diloco).*: .* steps.* ssgd: [0-9.]+ s$", out, re.M), "no choice: %s" % out[-400:])
    with open(os.path.join(folder, "quickstart.jsonl")) as f:
        results = [json.loads(line) for line in f]
    results = [r for r in results if r["event"] == "result"]
    expect([r["strategy"] for r in results] == names, "results: %s" % results)
    expect(results[0]["param_hash"] == results[1]["param_hash"] != results[2]["param_hash"], "hashes: %s" % results)
    with open(os.path.join(folder, "quickstart.html")) as f:
        page = f.read()
    expect(all("step of 4" in page and n in page for n in names), "quickstart.html lacks a strategy or the plan")
    for bad in ("ssgd,wish", "ssgd,"):
        out, err = run(folder, *small, "--strategies", bad, program=program, code=2)
        sentence(err, "no strategy", program="quickstart")


if __name__ == "__main__":
    sys.exit(run_script(2, "train_gpt", "quickstart"))
