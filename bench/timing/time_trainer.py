#!/usr/bin/env python3
"""build/train_gpt with emulated computing and links: the times that it measures are close to the times asked for.

    bench/timing/time_trainer.py [WORD...]     only the cases whose names contain one of the words

Run it alone on an idle machine.
"""
import csv as csv_module
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "programs"))
from trainer import LAYERS, PERIOD, SMALL, case, csv, expect, run, run_script, sentence, train, write  # noqa: E402


@case("the measured profile is written, read back and planned with")
def check(folder):
    run(folder, *SMALL, *PERIOD, "--steps", 12, "--workers", 2, "--net", "100mbit,1ms", "--write-profile", "p.csv")
    with open(os.path.join(folder, "p.csv")) as f:
        rows = list(csv_module.DictReader(f))
    expect(len(rows) == LAYERS and all(float(r["backward_s"]) > 0 for r in rows), str(rows))
    for r in rows:  # two workers send each other what they have
        sent = 4 * int(r["params"]) / 12.5e6
        expect(0.8 * sent < float(r["comm_s"]) < 1.5 * sent + 0.02, str(r))
    run(folder, *SMALL, *PERIOD, "--steps", 12, "--workers", 2, "--profile", "p.csv")
    out, err = run(folder, *SMALL, "--steps", 2, "--workers", 2, "--write-profile", "q.csv", code=2)
    sentence(err, "q.csv", "profile")
    expect(not os.path.exists(os.path.join(folder, "q.csv")), "a profile of nothing was written")


@case("--emulate-compute paces the layers, and dreamddp overlaps transfers")
def check(folder):
    rows = ["l%d,20000,0.004,0.008," % i for i in range(5)]
    write(folder, "p.csv", csv(*rows))
    args = ["--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--steps", 40, "--net", "50mbit,1ms"]
    # a layer makes up for at most 10 ms of the delay of a busy machine before the count
    alone = train(folder, *args[:3], "--steps", 40)
    expect(alone["step_ms"] >= 59, "60 ms of layers in %.1f ms" % alone["step_ms"])
    r = train(folder, *args, "--strategy", "dreamddp")
    expect(r["step_ms"] >= 59, "60 ms of layers in %.1f ms" % r["step_ms"])
    expect(r["step_ms"] < 240, "60 ms of layers in %.1f ms" % r["step_ms"])
    expect(0 <= r["hidden_pct"] <= 100 and r["final_loss"] is None, str(r))
    s = train(folder, *args, "--strategy", "ssgd")
    expect(r["bytes_sent"] < s["bytes_sent"], "%d bytes against %d of ssgd" % (r["bytes_sent"], s["bytes_sent"]))


@case("--emulate-compute in stages: the figures of a step match the requested times")
def check(folder):
    write(folder, "p.csv", csv(*["l%d,1000,0.01,0.02," % i for i in range(4)]))
    args = ["--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--stages", 2, "--microbatches", 4, "--steps", 4,
            "--profile-steps", 1, "--emulate-bytes", 50000, "--net", "100mbit,1ms"]
    for schedule in ("gpipe", "1f1b", "zb"):
        r = train(folder, *args, "--pipeline", schedule, "--report", "r.html", "--trace", "t.json")
        # 4 micro-batches of 60 ms; activations forward and gradients backward
        expect((r["stages"], r["schedule"], r["microbatches"]) == (2, schedule, 4), str(r))
        expect(r["boundary_bytes"] == 2 * 4 * 50000, "bytes: %s" % r["boundary_bytes"])
        expect(0.24 <= r["predicted_step_s"] < 1 and r["step_ms"] >= 239, str(r))
        expect(0 < r["bubble_pct"] < 75 and r["final_loss"] is None, str(r))
        with open(os.path.join(folder, "r.html")) as f:
            expect("%s, 2 stages, pipeline 0 of 1" % schedule in f.read(), "no picture of " + schedule)
        with open(os.path.join(folder, "t.json")) as f:
            names = {e["args"].get("name") for e in json.load(f)}
        expect("stage" in names and any("stage 1" in (n or "") for n in names), "no lanes: %s" % names)
    err = run(folder, *args[:3], "--emulate-bytes", 100, code=2)[1]
    sentence(err, "--emulate-bytes 100", "--stages")
    err = run(folder, *args[:3], "--accumulate", 2, code=2)[1]
    sentence(err, "--accumulate", "--stages")


if __name__ == "__main__":
    sys.exit(run_script(1, "train_gpt"))
