#!/usr/bin/env python3
"""OP-Fence and its baselines: trained pipelines compared with the plan, on FusionLLM's two testbeds scaled to 12 and 16 workers.

    bench/fence.py [--quick] [--only WORD] [--scale N] [--json FILE]

Testbeds: a machine with 4 and four with 2 workers (8 and 4 GPUs in the paper), two with 4 and four with 2. Devices are listed as in the
paper, machine after machine, cluster A first. Links are stand-ins (tests/data/testbed24.json): 10 Gbit/s and 0.1 ms in a machine,
1 Gbit/s and 1 ms in a cluster, 8 Mbit/s and 30 ms between clusters, with rates divided by N (default: 4). All workers are threads of this
machine, so the plan assumes equal devices: the FLOPs of the operator list divided by the time of one worker. Cells: ResNet-18 on CIFAR-10
(5 micro-batches of 1) and a GPT of 8 blocks (2 of 2), dense and four compressed wire formats, gpipe. Planned: Eq. 3 of `build/plan fence`
with indexes of 64 bits; the trainers' indexes have 32. Simulated: the run's own simulation with its measured tasks and links. Needs
$DDP_DATA/cifar10 for ResNet-18.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

import overlap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEDS = {12: [4, 2, 2, 2, 2], 16: [4, 4, 2, 2, 2, 2]}  # devices of a machine
IN_A = {12: 1, 16: 2}                                 # machines of cluster A, the first
SOLVERS = ("equal_ops", "equal_flops", "fence")
WIRES = ("f32", "topk:100", "adatopk:100", "topk:1000", "adatopk:1000")
CIFAR = os.path.join(overlap.DATA, "cifar10")
MODELS = {
    "resnet18": ("train_image", 5, ["--model", "resnet18", "--batch", 1]),
    "gpt": ("train_gpt", 2, ["--data", os.path.join(ROOT, "dreamddp.h"), "--layers", 8, "--heads", 4, "--dim", 64, "--seq", 128,
                             "--batch", 2]),
}


def program(name, *options):
    command = [os.path.join(ROOT, "build", name), *map(str, options)]
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    if r.returncode:
        raise SystemExit("fence.py: %s: %s" % (" ".join(command), r.stderr.strip()))
    last = r.stdout.strip().split("\n")[-1]
    return json.loads(last) if last.startswith("{") else None


def training_images(folder):
    """CIFAR-10 without its test images, because every run would evaluate them through the slow links."""
    path = os.path.join(folder, "cifar10")
    os.mkdir(path)
    for name in os.listdir(CIFAR):
        if name.startswith("data_batch"):
            os.symlink(os.path.abspath(os.path.join(CIFAR, name)), os.path.join(path, name))
    return path


def network(folder, workers, scale, tflops):
    """Writes the testbed's file for `plan fence --network` and --net."""
    machines, in_a = BEDS[workers], IN_A[workers]
    kind = [[0 if a == b else 1 if (a < in_a) == (b < in_a) else 2 for b in range(len(machines))] for a in range(len(machines))]
    path = os.path.join(folder, "net%d.json" % workers)
    with open(path, "w") as f:
        json.dump({"N": workers, "groups": ["AB"[m >= in_a] + str(m - in_a * (m >= in_a)) for m in range(len(machines))],
                   "devices_per_group": machines, "delay_ms": [[(0.1, 1, 30)[k] for k in row] for row in kind],
                   "bandwidth_gbps": [[(10, 1, 0.008)[k] / scale for k in row] for row in kind],
                   "tflops": [tflops] * len(machines), "memory_gb": [64] * len(machines)}, f)
    return path


def speed(trainer, micro, options, graph):
    """TFLOPS of one worker in forward and backward, for the operators that the graph counts."""
    r = program(trainer, *options, "--workers", 1, "--accumulate", micro, "--steps", 4, "--strategy", "ssgd", "--quiet")
    with open(graph) as f:
        return 3 * micro * sum(op["flops"] for op in json.load(f)) / (r["step_ms"] / 1e3) / 1e12


def planned(folder, graph, net, solver, micro, wire):
    """Returns the file of the cut and the seconds of Eq. 3."""
    name, _, ratio = wire.partition(":")
    path = os.path.join(folder, "cut.json")
    more = ["--compress", ratio, *(["--uniform"] if name == "topk" else [])] if ratio else []
    r = program("plan", "fence", "--graph", graph, "--network", net, "--microbatches", micro, "--solver", solver, "--json", path, *more)
    return path, (r["compressed"] if ratio else r)["pipeline_s"]


def cell(folder, images, model, workers, scale, wires, check, out):
    trainer, micro, options = MODELS[model]
    if model == "resnet18":
        options = ["--data", images, *options]
    graph = os.path.join(folder, model + ".json")
    program(trainer, *options, "--write-graph", graph)
    net = network(folder, workers, scale, speed(trainer, micro, options, graph))
    for wire in wires:
        rows = {}
        for solver in SOLVERS:
            cut, seconds = planned(folder, graph, net, solver, micro, wire)
            r = program(trainer, *options, "--workers", workers, "--cut", cut, "--net", net, "--microbatches", micro, "--pipeline",
                        "gpipe", "--edge-wire", wire, "--steps", 3, "--transport", "threads", "--strategy", "ssgd", "--quiet")
            rows[solver] = {"model": model, "workers": workers, "wire": wire, "solver": solver, "planned_s": seconds,
                            "simulated_s": r["predicted_step_s"], "step_s": r["step_ms"] / 1e3}
        out += rows.values()
        base = rows["fence"]
        print("|%s|%d|%s|" % (model, workers, wire) +
              "|".join("%.2f, %.2f, %.2f" % (r["step_s"], r["simulated_s"], r["planned_s"]) for r in rows.values()) + "|" +
              "%.2f, %.2f|" % tuple(min(rows[s][k] for s in SOLVERS[:2]) / base[k] for k in ("step_s", "planned_s")), flush=True)
        if wire == "f32":
            check("dense: fence at most 1.1 x the better baseline", base["step_s"] <= 1.1 * min(r["step_s"] for r in rows.values()),
                  "%s %d: %s" % (model, workers, [round(r["step_s"], 3) for r in rows.values()]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, 12 workers, dense and adatopk:100")
    parser.add_argument("--only", metavar="WORD", help="a model: resnet18 or gpt")
    parser.add_argument("--scale", type=float, default=4, help="divisor of the rates of links")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    overlap.keep_cores_awake()
    check, out, begin = overlap.Checks(), [], time.monotonic()
    print("|model|workers|wire|equal_ops: measured, simulated, planned s|equal_flops|fence|better baseline over fence: measured, planned|")
    print("|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as folder:
        images = os.path.isdir(CIFAR) and training_images(folder)
        for model in ("gpt",) if args.quick else MODELS:
            if model == "resnet18" and not images:
                print("resnet18 skipped: no %s; run tools/get_data.sh" % CIFAR)
            elif args.only in (None, model):
                for workers in (12,) if args.quick else BEDS:
                    cell(folder, images, model, workers, args.scale, WIRES[:3:2] if args.quick else WIRES, check, out)
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
