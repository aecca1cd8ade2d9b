#!/usr/bin/env python3
"""[long] Pipelines: every schedule, transport, placement and cut is bit-identical to one worker; checkpoints, edge wires, figures.

    tests/programs/test_pipelines.py [WORD...]     only the cases whose names contain one of the words
"""
import glob
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (BUILD, TEXT_MODEL, case, csv, cut, expect, finish, run, run_script, sentence, start, train,
                     unused_address, write)  # noqa: E402


@case("param_hash: a pipeline is bit-identical to workers without stages, with every schedule")
def pipelines(folder):
    model = [*TEXT_MODEL, "--strategy", "ssgd", "--deterministic", "--steps", 6]
    for replicas in 1, 2:
        one = train(folder, *model, "--workers", replicas, "--accumulate", 4)
        for schedule, stages in ("gpipe", 3), ("1f1b", 2), ("zb", 4):
            for transport in "threads", "tcp":
                r = train(folder, *model, "--workers", replicas * stages, "--stages", stages, "--pipeline", schedule,
                          "--microbatches", 4, "--transport", transport)
                expect(r["param_hash"] == one["param_hash"], "%s, %d stages, %d replicas, %s: %s, not %s" % (
                    schedule, stages, replicas, transport, r["param_hash"], one["param_hash"]))
                expect(abs(r["val_loss"] - one["val_loss"]) < 1e-5, "val_loss differs")
    plain, less = (train(folder, *model, "--layers", 3, "--workers", 2, "--stages", 2, "--microbatches", 4, *more)
                   for more in ([], ["--recompute"]))
    expect(plain["param_hash"] == less["param_hash"] and less["planned_mb"] < plain["planned_mb"],
           "--recompute in stages: %s, %s" % (plain, less))
    r = train(folder, *TEXT_MODEL, "--workers", 4, "--stages", 2, "--microbatches", 2, "--strategy", "dreamddp", "--period", 2,
              "--steps", 40, "--lr", 0.01)
    expect(r["final_loss"] < 0.95 * r["first_loss"], "2 x 2 with dreamddp does not learn: %s" % r)
    steps = [train(folder, *model[:-2], "--epochs", 1, "--workers", n, "--stages", n)["steps"] for n in (1, 2)]
    expect(steps[0] == steps[1] > 0, "steps of an epoch: %s" % steps)


@case("param_hash: stages follow one plan of the whole model, from a file, a profile or --deterministic")
def whole_plans(folder):
    model = [*TEXT_MODEL, "--layers", 3, "--period", 3, "--steps", 8, "--net", "50mbit,1ms"]
    rows = [(0.002, 0.03), (0.003, 0.001), (0.009, 0.002), (0.001, 0.004), (0.002, 0.001), (0.006, 0.001), (0.002, 0.02), (0.004, 0.01)]
    write(folder, "p.csv", csv(*["l%d,1,0.001,%g,%g" % (i, back, comm) for i, (back, comm) in enumerate(rows)]))
    write(folder, "plan.json", '{"sets": [[6, 3], [0, 5, 1], [2, 4, 7]], "fill": [[4], [], [0]]}')
    for strategy in "enp", "dreamddp":
        for plan in ["--deterministic"], ["--plan", "plan.json"], ["--profile", "p.csv"]:
            one = train(folder, *model, "--strategy", strategy, *plan, "--workers", 2, "--accumulate", 2)["param_hash"]
            for schedule, stages, transport in ("1f1b", 2, "tcp"), ("zb", 4, "threads"):
                r = train(folder, *model, "--strategy", strategy, *plan, "--workers", 2 * stages, "--stages", stages,
                          "--microbatches", 2, "--pipeline", schedule, "--transport", transport)
                expect(r["param_hash"] == one, "%s, %s, %d stages: another hash" % (strategy, plan, stages))
    one = train(folder, *model, "--profile", "p.csv", "--workers", 2, "--json", "run.json")["param_hash"]
    with open(os.path.join(folder, "run.json")) as f:
        write(folder, "logged.json", [line for line in f if '"plan"' in line][0])
    logged = train(folder, *model, "--plan", "logged.json", "--workers", 4, "--stages", 2)["param_hash"]
    expect(logged == one, "stages with the plan that a run logged: another hash")
    model += ["--strategy", "dreamddp", "--deterministic"]
    whole = train(folder, *model, "--workers", 2, "--accumulate", 2)["param_hash"]
    train(folder, *model, "--workers", 4, "--stages", 2, "--microbatches", 2, "--steps", 5, "--save", "run")
    for stages in 1, 3:
        more = ["--stages", stages, "--microbatches", 2] if stages > 1 else ["--accumulate", 2]
        r = train(folder, *model, "--workers", 2 * stages, *more, "--resume", "run")
        expect(r["param_hash"] == whole, "2 stages resumed as %d within a period: another hash" % stages)


@case("checkpoints, weights and samples of a pipeline match one worker, and resume with another number of stages")
def staged_files(folder):
    model = [*TEXT_MODEL, "--strategy", "ssgd", "--deterministic", "--microbatches", 2, "--dropout", 0.1]

    def stages(n, transport="tcp"):
        return ["--workers", n, "--stages", n, "--pipeline", "zb", "--transport", transport] if n > 1 else []

    def lasts(folder, *args):
        out = run(folder, *model, *args, "--export", "trained", "--sample", 20)[0]
        return out, open(os.path.join(folder, "trained"), "rb").read()
    whole = lasts(folder, "--steps", 8)
    for transport in "threads", "tcp":
        cut = lasts(folder, "--steps", 8, *stages(3, transport))
        expect(cut[1] == whole[1], "3 stages export different weights")
        expect(cut[0].split("{")[0] == whole[0].split("{")[0] != "", "3 stages draw %r, not %r" % (cut[0], whole[0]))
    for at, (n, rest) in enumerate(((3, 3), (2, 3), (4, 1), (1, 2))):
        save = "ck%d" % at
        train(folder, *model, "--steps", 3 + at, *stages(n), "--save", save)
        r = lasts(folder, "--steps", 8, *stages(rest), "--resume", save)
        expect(r[1] == whole[1], "%d stages resumed as %d with different weights" % (n, rest))
    begun = train(folder, *model, "--steps", 2, "--load", "trained")["param_hash"]
    expect(train(folder, *model, "--steps", 2, "--load", "trained", *stages(2))["param_hash"] == begun, "--load on 2 stages: another hash")
    sentence(run(folder, *model, *stages(2), "--layers", 3, "--load", "trained", code=1)[1], "trained", "is missing")
    sentence(run(folder, *model, *stages(2), "--layers", 3, "--resume", "ck0", code=1)[1], "ck0", "belongs to a model with 6 layers")
    rank = glob.glob(os.path.join(folder, "ck0", "*", "rank-0001.safetensors"))[0]
    os.remove(rank)
    sentence(run(folder, *model, "--steps", 8, *stages(2), "--resume", "ck0", code=1)[1], "layer", "rank-0001")


@case("param_hash: placements and cuts of the planners do not change the result")
def planned_layouts(folder):
    model = [*TEXT_MODEL, "--strategy", "wfbp", "--deterministic", "--steps", 6]
    one = {n: train(folder, *model, "--workers", n, "--accumulate", 2)["param_hash"] for n in (1, 2, 3)}
    links = ("delay_ms", 3, 10), ("bandwidth_gbps", 2, 1)
    write(folder, "net.json", json.dumps(dict(
        {"N": 6, "D_dp": 2, "D_pp": 3, "c_pp_bytes": 4096, "c_dp_bytes": 9000, "tflops": [1] * 6, "variant": {"c_pp_bytes": 1}},
        **{k: [[near if a % 2 == b % 2 else far for b in range(6)] for a in range(6)] for k, near, far in links})))
    plan = os.path.join(BUILD, "plan")
    run(folder, "place", "--network", "net.json", "--solver", "all", "--candidates", 50, "--json", "place.json", program=plan)
    out, _ = run(folder, *model, "--accumulate", 2, "--write-graph", "model.json")
    expect(out.startswith("model.json: 25 operators of GPT-2, 2 layers"), out)
    run(folder, "fence", "--graph", "model.json", "--network", "net.json", "--json", "cut.json", program=plan)
    write(folder, "three.json", '{"cost_s": 1, "assign": [[4, 0], [5, 1], [3, 2]]}')
    for replicas, more in ((2, ["--placement", "place.json"]), (1, ["--cut", "cut.json"]),
                           (1, ["--cut", "cut.json", "--net", "net.json:variant@5,4,3,2,1,0"]),
                           (2, ["--placement", "place.json", "--stages", 3, "--net", "net.json"])):
        for transport in "threads", "tcp":
            r = train(folder, *model, "--workers", 6, "--microbatches", 2, "--transport", transport, *more)
            expect(r["param_hash"] == one[replicas], "%s: %s" % (more, r["param_hash"]))
    tied = [*model, "--model", "llama2", "--tied", "--accumulate", 2, "--dim", 32]
    run(folder, *tied, "--write-graph", "tied.json")
    run(folder, "fence", "--graph", "tied.json", "--network", "net.json", "--json", "tied.cut", program=plan)
    expect(train(folder, *tied, "--workers", 6, "--cut", "tied.cut")["param_hash"] == train(folder, *tied)["param_hash"],
           "a cut of a tied model: another hash")
    sentence(run(folder, "--write-graph", "no/g.json", *model, code=1)[1], "no/g.json")
    pipelined = [train(folder, *model, "--workers", 6, "--microbatches", 2, *more) for more in
                 (["--stages", 2], ["--placement", "three.json"])]
    expect(pipelined[0]["param_hash"] == one[3], "three replicas in order: %s" % pipelined[0])
    expect(abs(pipelined[1]["val_loss"] - pipelined[0]["val_loss"]) < 1e-3, "three replicas in another order: %s" % pipelined)
    addr = unused_address()
    for name, first in ("a.json", 10), ("b.json", 12):
        write(folder, name, cut((0, 0, first), (1, first, 25)).replace("15", "25"))
    ranks = [start(folder, *model, "--workers", 2, "--rank", r, "--addr", addr, "--cut", name)
             for r, name in enumerate(("a.json", "b.json"))]
    for p in ranks:
        code, out, err = finish(p, folder)
        expect(code == 1 and not out, "exit %d: %s" % (code, err))
        sentence(err, "hash of the pipeline stages", "every rank with the same")


@case("edge wires: fewer bytes, bit-identical on every transport, and the loss falls")
def edge_wires(folder):
    model = [*TEXT_MODEL, "--strategy", "ssgd", "--deterministic", "--steps", 30, "--lr", 0.01, "--workers", 2, "--stages", 2,
             "--microbatches", 4, "--batch", 2]
    dense = train(folder, *model, "--transport", "threads")
    f32 = train(folder, *model, "--edge-wire", "f32", "--transport", "threads")
    expect(f32["param_hash"] == dense["param_hash"], "--edge-wire f32: another hash")
    for wire, share in ("bf16", 0.5), ("int8", 0.28), ("topk:8", 0.27), ("adatopk:8:1", 0.27), ("bottleneck:8", 0.126), ("aq:4", 0.22):
        r = train(folder, *model, "--edge-wire", wire, "--transport", "threads")
        other = train(folder, *model, "--edge-wire", wire, "--transport", "tcp", "--pipeline", "zb")
        expect(r["param_hash"] == other["param_hash"], "%s: another hash over tcp with zb" % wire)
        expect(r["boundary_bytes"] <= share * dense["boundary_bytes"], "%s: %d bytes of %d" % (
            wire, r["boundary_bytes"], dense["boundary_bytes"]))
        expect(r["final_loss"] < 0.95 * r["first_loss"], "%s does not learn: %s" % (wire, r))


@case("--emulate-compute in stages: the figures of a step match the given times")
def check(folder):
    write(folder, "p.csv", csv(*["l%d,1000,0.01,0.02," % i for i in range(4)]))
    args = ["--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--stages", 2, "--microbatches", 4, "--steps", 4,
            "--profile-steps", 1, "--emulate-bytes", 50000, "--net", "100mbit,1ms"]
    for schedule in ("gpipe", "1f1b", "zb"):
        r = train(folder, *args, "--pipeline", schedule, "--report", "r.html", "--trace", "t.json")
        # 4 micro-batches of 60 ms. Activations are sent forward and gradients back.
        expect((r["stages"], r["schedule"], r["microbatches"]) == (2, schedule, 4), str(r))
        expect(r["boundary_bytes"] == 2 * 4 * 50000, "bytes: %s" % r["boundary_bytes"])
        expect(0.24 <= r["predicted_step_s"] and r["step_ms"] >= 239, str(r))
        expect(0 < r["bubble_pct"] < 100 and r["final_loss"] is None, str(r))
        with open(os.path.join(folder, "r.html")) as f:
            expect("%s, 2 stages, pipeline 0 of 1" % schedule in f.read(), "no diagram of " + schedule)
        with open(os.path.join(folder, "t.json")) as f:
            names = {e["args"].get("name") for e in json.load(f)}
        expect("stage" in names and any("stage 1" in (n or "") for n in names), "no lanes: %s" % names)
    err = run(folder, *args[:3], "--emulate-bytes", 100, code=2)[1]
    sentence(err, "--emulate-bytes 100", "--stages")
    err = run(folder, *args[:3], "--accumulate", 2, code=2)[1]
    sentence(err, "--accumulate", "--stages")


if __name__ == "__main__":
    sys.exit(run_script(2, "train_gpt", "plan"))
