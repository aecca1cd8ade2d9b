#!/usr/bin/env python3
"""build/bench_allreduce against torch.distributed's gloo, A B A B in one run.

    bench/allreduce.py [--quick] [--ranks 4] [--bytes 16777216] [--rounds 5] [--iters 20]

Loopback, unshaped, one thread per rank on both sides. A round's ratio is that of its two medians;
the figure that counts is the median of the rounds' ratios. Exit 77: there is no PyTorch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.join(HERE, "..", "build", "bench_allreduce")


def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True).returncode == 0:
            return python
    return None


def measure(command):
    env = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"allreduce.py: {' '.join(command)}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of 5 iterations")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=16777216)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iters", type=int, default=20)
    args = parser.parse_args()
    rounds, iters = (1, 5) if args.quick else (args.rounds, args.iters)
    size = ["--ranks", str(args.ranks), "--bytes", str(args.bytes), "--iters", str(iters)]
    rows = [("tcp", [OURS, "--transport", "tcp", *size]), ("threads", [OURS, "--transport", "threads", *size])]
    python = python_with_torch()
    if python:
        rows.append(("gloo", [python, os.path.join(HERE, "gloo.py"), *size]))

    seen = {name: [] for name, _ in rows}
    print(f"all-reduce of {args.bytes} bytes over {args.ranks} ranks, {rounds} rounds x {iters} iterations, "
          f"load {os.getloadavg()[0]:.1f} before")
    print("round " + "".join(f"{name:>12} ms" for name, _ in rows))
    for i in range(rounds):
        for name, command in rows:
            seen[name].append(measure(command))
        print(f"{i + 1:>5} " + "".join(f"{seen[name][-1]['median_ms']:>15.2f}" for name, _ in rows), flush=True)

    result = {"bytes": args.bytes, "ranks": args.ranks, "algorithm": seen["tcp"][0]["algorithm"],
              "same_result": seen["tcp"][0]["result_hash"] == seen["threads"][0]["result_hash"]}
    for name, _ in rows:
        result[f"{name}_median_ms"] = statistics.median(x["median_ms"] for x in seen[name])
        result[f"{name}_min_ms"] = min(x["min_ms"] for x in seen[name])
    if python:
        for name in ("tcp", "threads"):
            ratios = [a["median_ms"] / b["median_ms"] for a, b in zip(seen[name], seen["gloo"])]
            result[f"{name}_over_gloo"] = statistics.median(ratios)
        print(f"time over gloo's: tcp {result['tcp_over_gloo']:.2f}, threads {result['threads_over_gloo']:.2f} "
              "(reach: tcp <= 1.5)")
    print(json.dumps(result))
    sys.exit(0 if python else 77)


if __name__ == "__main__":
    main()
