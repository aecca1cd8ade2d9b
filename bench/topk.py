#!/usr/bin/env python3
"""build/bench_topk compared with torch.topk on the same floats, in alternation.

    bench/topk.py [--quick] [--n 25000000] [--rounds 3]

One thread on both sides; the best of all rounds counts. The values are cubes of normal values, as heavy-tailed as gradients. torch runs
abs() and topk(sorted=False) and gathers the values, which is the result of ddp_topk. Both must keep the same magnitudes. Exit 77: no
PyTorch.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.join(HERE, "..", "build", "bench_topk")
REACH = {0.01: 20}  # times faster than torch

try:
    import torch
except ImportError:
    if os.environ.get("TOPK_PYTHON") or not os.path.exists("/usr/bin/python3"):
        print("skipped: PyTorch is not installed")
        sys.exit(77)
    os.environ["TOPK_PYTHON"] = "1"  # the system's interpreter may have PyTorch
    os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)


def theirs(x, k):
    begin = time.monotonic()
    index = torch.topk(x.abs(), k, sorted=False).indices
    value = x[index]
    return time.monotonic() - begin, value


def ours(path, k, indexes):
    done = subprocess.run([OURS, "--file", path, "--k", str(k), "--indexes", indexes, "--rounds", "3"],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"topk.py: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round on 4 million floats")
    parser.add_argument("--n", type=int, default=25000000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    n, rounds = (4000000, 1) if args.quick else (args.n, args.rounds)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(n) ** 3
    same, rows = True, []
    print(f"{n} floats, best of {rounds} rounds, load {os.getloadavg()[0]:.1f} before")
    print(f"{'k':>7} {'read ms':>9} {'ddp ms':>9} {'reads':>6} {'torch ms':>9} {'torch/ddp':>9}")
    with tempfile.TemporaryDirectory() as tmp:
        path, indexes = os.path.join(tmp, "x.f32"), os.path.join(tmp, "kept.u64")
        x.numpy().tofile(path)
        for part in (0.001, 0.01, 0.1):
            k = max(1, int(part * n))
            read = a = b = float("inf")
            for _ in range(rounds):
                row = ours(path, k, indexes)
                read, a = min(read, row["read_s"]), min(a, row["topk_s"])
                seconds, value = theirs(x, k)
                b = min(b, seconds)
            with open(indexes, "rb") as f:
                kept = torch.frombuffer(bytearray(f.read()), dtype=torch.int64)
            same = same and torch.equal(x[kept].abs().sort().values, value.abs().sort().values)
            reach = f"   (reach: {REACH[part]})" if part in REACH else ""
            print(f"{100 * part:>5g} % {1e3 * read:>9.2f} {1e3 * a:>9.2f} {a / read:>6.2f} {1e3 * b:>9.1f} "
                  f"{b / a:>9.1f}{reach}", flush=True)
            rows.append({"k": k, "read_s": read, "topk_s": a, "torch_s": b})
    print(json.dumps({"n": n, "same": same, "rows": rows}))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
