#!/usr/bin/env python3
"""Loss and speed of compressed edges: a small GPT over four stages, dense and compressed.

    bench/edges.py [--model NAME] [--steps N] [--seeds N] [--net RATE,DELAY] [--data FILE] [--only WORD,..] [--json FILE]

Loss: N steps without an emulated network, which does not change results. Each row has the validation loss at the end and means of 20 steps
at each quarter, as means over seeds. Time: a few steps over emulated links. Bytes: all bytes between stages in a step, in both directions.
--model resnet18: CIFAR-10 (in $DDP_DATA) over three stages, with the wire formats of FusionLLM. --data: another text. It must be short enough
for samples to repeat, which aq needs; the timed steps belong to the first pass.
"""
import argparse
import json
import os
import subprocess
import sys
import time

import overlap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMON = ["--strategy", "ssgd", "--deterministic", "--quiet", "--schedule", "cosine", "--warmup", "20"]
MODELS = {
    "gpt": ["train_gpt", "--data", os.path.join(ROOT, "dreamddp.h"), "--layers", "4", "--heads", "4", "--dim", "200", "--seq", "64",
            "--batch", "4", "--microbatches", "4", "--stages", "4", "--workers", "4"],
    "resnet18": ["train_image", "--data", os.path.join(overlap.DATA, "cifar10"), "--model", "resnet18", "--batch", "4",
                 "--microbatches", "2", "--stages", "3", "--workers", "3", "--held-out", "0.05", "--val-batches", "20"],
}
WIRES = ["f32", "bf16", "int8", "topk:100", "topk:100 --edge-feedback", "adatopk:100", "adatopk:100:2", "topk:1000", "adatopk:1000",
         "bottleneck:100", "bottleneck:25", "bottleneck:8", "aq:4", "aq:2"]
PAPER = ["f32", "topk:100", "adatopk:100", "topk:1000", "adatopk:1000"]


def train(model, *options):
    trainer, *fixed = MODELS[model]
    r = subprocess.run([os.path.join(ROOT, "build", trainer), *fixed, *COMMON, *options], capture_output=True, text=True)
    if r.returncode:
        sys.exit(r.stderr.strip())
    return json.loads(r.stdout.strip().splitlines()[-1])


def cell(wire, args):
    options = ["--edge-wire", *wire.split()]
    losses, curve = [], {}
    for seed in range(args.seeds):
        path = os.path.join(ROOT, "build/edges_%s.jsonl" % args.model)
        r = train(args.model, *options, "--steps", str(args.steps), "--seed", str(seed), "--transport", "threads", "--json", path)
        losses.append(r["val_loss"])
        with open(path) as lines:
            loss = [e["loss"] for e in map(json.loads, lines) if e["event"] == "step"]
        for q in range(1, 5):
            at = args.steps * q // 4
            curve.setdefault(at, []).append(sum(loss[max(0, at - 20):at]) / min(20, at))
    timed = train(args.model, *options, "--steps", "8", "--net", args.net)
    return {"wire": wire, "val_loss": sum(losses) / len(losses), "boundary_bytes": timed["boundary_bytes"],
            "step_ms": timed["step_ms"], "curve": {s: sum(v) / len(v) for s, v in curve.items()}}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", choices=MODELS, default="gpt")
    a.add_argument("--steps", type=int, default=300)
    a.add_argument("--seeds", type=int, default=1)
    a.add_argument("--net", default="20mbit,10ms")
    a.add_argument("--data")
    a.add_argument("--only", default="")
    a.add_argument("--json")
    args = a.parse_args()
    rows, begin = [], time.time()
    if args.data:
        MODELS[args.model] += ["--data", args.data]
    for wire in WIRES if args.model == "gpt" else PAPER:
        if not any(word in wire for word in args.only.split(",")) and wire != "f32":
            continue
        rows.append(cell(wire, args))
        r, dense = rows[-1], rows[0]
        steps = "  ".join("%.3f" % r["curve"][s] for s in sorted(r["curve"]))
        print("%-26s val_loss %.3f (%+.1f %%)  bytes %9d (1/%.0f)  step %6.0f ms (%.1f x)  loss at quarters %s" %
              (wire, r["val_loss"], 100 * (r["val_loss"] / dense["val_loss"] - 1), r["boundary_bytes"],
               dense["boundary_bytes"] / r["boundary_bytes"], r["step_ms"], dense["step_ms"] / r["step_ms"], steps), flush=True)
    print("%.0f s" % (time.time() - begin))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)


main()
