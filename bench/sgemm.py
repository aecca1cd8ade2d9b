#!/usr/bin/env python3
"""build/bench_sgemm compared with OpenBLAS over the shapes of GPT-2: ratio of rates per shape, geometric mean.

    bench/sgemm.py [--quick] [--threads 1,2] [--rounds 3]

Width C 384 and 768, M = 256 and 1024 rows; the four linear layers and the head over 50,304 tokens, forward (nt), gradient of the input (nn)
and of the weight (tn). With one thread both run in one process, in alternation. With several threads each runs in a separate process,
because OpenBLAS keeps its threads spinning. Exit 77: bench_sgemm was built without a BLAS.
"""
import argparse
import json
import math
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SGEMM = os.path.join(HERE, "..", "build", "bench_sgemm")
REACH = {1: (0.95, 0.85), 2: (1.0, 0.0)}  # geometric mean, each shape


def shapes(quick):
    for C in (384,) if quick else (384, 768):
        for M in (1024,) if quick else (256, 1024):
            for n, k in ((3 * C, C), (C, C), (4 * C, C), (C, 4 * C), (50304, C)):
                if n == 50304 and quick:
                    continue
                yield "nt", M, n, k
                yield "nn", M, k, n
                yield "tn", n, k, M


def run(shape, threads, rounds, only=None):
    trans, m, n, k = shape
    words = [SGEMM, "--trans", trans, "--m", m, "--n", n, "--k", k, "--threads", threads, "--rounds", rounds]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    out = subprocess.run([str(w) for w in words + (["--only", only] if only else [])], env=env, capture_output=True, text=True)
    if out.returncode:
        sys.exit("sgemm.py: " + out.stderr.strip())
    return json.loads(out.stdout.splitlines()[-1])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quick", action="store_true")
    a.add_argument("--threads", default="1,2")
    a.add_argument("--rounds", type=int, default=3)
    a = a.parse_args()
    if not os.path.exists(SGEMM):
        sys.exit("sgemm.py: build/bench_sgemm is missing; run make first")
    if "gflops_cblas" not in run(("nt", 8, 8, 8), 1, 1):
        print("skipped: bench_sgemm was built without a BLAS")
        return 77
    for threads in map(int, a.threads.split(",")):
        ratios = []
        for shape in shapes(a.quick):
            if threads == 1:
                r = run(shape, 1, a.rounds)
            else:
                best = {"ours": 0.0, "cblas": 0.0}
                for _ in range(a.rounds):
                    for only, key in (("ours", "gflops"), ("cblas", "gflops_cblas")):
                        best[only] = max(best[only], run(shape, threads, 4, only)[key])
                r = {"gflops": best["ours"], "gflops_cblas": best["cblas"]}
            ratios.append(r["gflops"] / r["gflops_cblas"])
            print(f"{threads} thread{'s' if threads > 1 else ' '} {shape[0]} {shape[1]:>6} x {shape[2]:>6} x {shape[3]:>6} "
                  f"{r['gflops']:>8.1f} {r['gflops_cblas']:>8.1f} GFLOP/s {ratios[-1]:>7.3f}", flush=True)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        want = REACH.get(threads)
        print(f"{threads} thread{'s' if threads > 1 else ' '}: geometric mean {mean:.3f}, least {min(ratios):.3f}"
              + (f"   (reach: {want[0]}, least {want[1]})" if want else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
