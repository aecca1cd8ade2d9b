#!/usr/bin/env python3
"""Time to a common accuracy on MNIST and CIFAR-10 with one straggler.

    bench/accuracy.py [--quick] [--only WORD] [--json FILE]

Four workers and a server train a small MLP (build/train_image) under each strategy with servers. Workers sleep 60 ms per step, the last one
120 ms, which is most of their time. Gradients travel for about 16 ms in all. Every fifth step worker 0, a fast one, evaluates its own
parameters on 1,000 images; its clock does not count the evaluation. The common accuracy is the largest one that all strategies reach, as the
mean over three evaluations.

Every worker makes the same number of steps. Under bsp and osp all workers have the pace of the straggler. Under asp each has its own pace,
so the server gets more gradients of the fast workers at first.
"""
import argparse
import os
import sys
import time

import overlap

TRAIN = os.path.join(overlap.HERE, "..", "build", "train_image")
# data, options. The rate makes W M / b 16 ms.
TASKS = [
    ("mnist", "--hidden 32 --net 205mbit,1ms --held-out 0.0167 --lr 0.02"),
    ("cifar10", "--hidden 32 --net 790mbit,1ms --held-out 0.25 --lr 0.01"),
]
STRATEGIES = [
    ("bsp", "--strategy bsp"),
    ("asp", "--strategy asp"),
    ("ssp 3", "--strategy ssp --staleness 3"),
    ("r2sp", "--strategy r2sp"),
    ("osp 0.5", "--strategy osp --defer 0.5"),
]
STEPS, EVERY, SMOOTH = 240, 5, 3


def curve(data, options, steps):
    """Returns steps, seconds on worker 0's clock and accuracy, as the mean over the last evaluations."""
    r = overlap.run(["--data", os.path.join(overlap.DATA, data), "--model", "mlp", "--batch", "16", "--schedule", "constant",
                     *options.split(), "--servers", "1", "--sleep", "0.06,0.06,0.06,0.12", "--steps", str(steps), "--eval-every",
                     str(EVERY)], 4, False, TRAIN)
    points, seconds, last = [], 0, []
    for e in r["events"]:
        if e["event"] == "step":
            seconds += e["step_ms"] / 1e3
        elif e["event"] == "eval":
            last = [*last, e["val_accuracy"]][-SMOOTH:]
            points.append((e["step"], seconds, sum(last) / len(last)))
    return points, r


def task(data, options, steps, check, out):
    runs = {name: curve(data, options + " " + own, steps) for name, own in STRATEGIES}
    common = min(max(a for _, _, a in points) for points, _ in runs.values())
    reached = {name: next((step, s) for step, s, a in points if a >= common) for name, (points, _) in runs.items()}
    for name, (points, r) in runs.items():
        step, seconds = reached[name]
        print(f"|{data}|{name}|{100 * common:.1f} %|{step}|{seconds:.1f}|{reached['bsp'][1] / seconds:.2f}|"
              f"{1e3 * points[-1][1] / steps:.1f}|{r['staleness']:.2f}|{100 * max(a for _, _, a in points):.1f} %|"
              f"{100 * r['test_accuracy']:.1f} %|", flush=True)
        if name != "bsp":
            check("at least as soon as bsp", seconds <= reached["bsp"][1], f"{data} {name}: {seconds:.1f} s, bsp {reached['bsp'][1]:.1f}")
        out.append({"data": data, "strategy": name, "common": common, "step": step, "seconds": seconds, "curve": points,
                    "test_accuracy": r["test_accuracy"]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="MNIST, 40 steps")
    parser.add_argument("--only", metavar="WORD", help="mnist or cifar10")
    parser.add_argument("--json", metavar="FILE", help="every curve as a JSON line")
    args = parser.parse_args()
    tasks = [t for t in TASKS if not args.only or args.only in t[0]]
    if not all(os.path.isdir(os.path.join(overlap.DATA, t[0])) for t in tasks):
        print("accuracy.py: no mnist and cifar10 in %s; run tools/get_data.sh, or set DDP_DATA" % overlap.DATA)
        sys.exit(77)
    overlap.keep_cores_awake()
    check, out, begin = overlap.Checks(), [], time.monotonic()
    print("|data|strategy|accuracy|steps of worker 0|seconds|times as fast as bsp|ms a step|staleness|best|test, at the end|")
    print("|---" * 10 + "|", flush=True)
    for data, options in tasks[:1] if args.quick else tasks:
        task(data, options, 40 if args.quick else STEPS, check, out)
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
