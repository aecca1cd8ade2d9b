#!/usr/bin/env python3
"""Trains while a worker is killed and another one joins at a fixed interval.

    bench/churn.py [--quick] [--minutes 10] [--every 20] [--workers 4] [--strategy dreamddp] [--seed 0]

Every worker is a process of build/train_gpt with --min-world. Any worker may be killed, including the coordinator; the joining worker
takes its place with --join. The run must end by itself, with a loss far below the first one and with equal parameters on all ranks (the
trainer compares them). Exit 1 otherwise.
"""
import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "..", "build", "train_gpt")
DATA = os.path.join(HERE, "..", "dreamddp.h")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Run:
    def __init__(self, args, steps, folder):
        self.folder, self.number, self.rank_of = folder, 0, {}
        self.workers, self.port = args.workers, free_port()
        self.options = ["--model", "gpt2", "--layers", "2", "--heads", "2", "--dim", "64", "--seq", "64", "--batch", "4",
                        "--data", DATA, "--period", "5", "--lr", "0.001", "--strategy", args.strategy, "--workers", str(args.workers),
                        "--steps", str(steps), "--min-world", "2", "--peer-timeout", "5"]
        self.live = [self.start(["--rank", str(r)], f"127.0.0.1:{self.port}") for r in range(args.workers)]

    def start(self, how, addr):
        name = os.path.join(self.folder, str(self.number))
        self.number += 1
        p = subprocess.Popen([TRAIN, *self.options, *how, "--addr", addr], stdout=open(name + ".out", "w"), stderr=open(name + ".err", "w"),
                             env=dict(os.environ, DREAMDDP_LOG="info"))
        p.file = name
        return p

    def addresses(self):
        """The addresses at which live workers accept joining workers."""
        found = []
        for p in self.live:
            found += re.findall(r"workers can join at [^\n]*?(\d+\.\d+\.\d+\.\d+:\d+)", open(p.file + ".err").read())[:1]
        return ",".join(found[:4]) or f"127.0.0.1:{self.port}"

    def progress(self):
        """The last step that a worker reported, and its loss."""
        seen = [(0, 0.0)]
        for p in self.live:
            seen += [(int(a), float(b)) for a, b in re.findall(r"step\s+(\d+)/\d+\s+loss ([\d.]+)", open(p.file + ".err").read())[-1:]]
        return max(seen)


def speed(args, folder):
    """Steps per second without lost workers."""
    steps = 300
    run = Run(args, steps, folder)
    codes = [p.wait() for p in run.live]
    if any(codes):
        sys.exit("churn.py: the run without lost workers failed: " + open(run.live[0].file + ".err").read()[-400:])
    out = json.loads(open(run.live[0].file + ".out").read().splitlines()[-1])
    return 1e3 / out["step_ms"]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quick", action="store_true", help="one minute, every 10 s")
    a.add_argument("--minutes", type=float, default=10)
    a.add_argument("--every", type=float, default=20)
    a.add_argument("--workers", type=int, default=4)
    a.add_argument("--strategy", default="dreamddp")
    a.add_argument("--seed", type=int, default=0)
    args = a.parse_args()
    if args.quick:
        args.minutes, args.every = 1, 10
    if not os.path.exists(TRAIN):
        sys.exit("churn.py: build/train_gpt is missing; run make first")
    random.seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "a"))
        os.mkdir(os.path.join(folder, "b"))
        steps = int(60 * args.minutes * speed(args, os.path.join(folder, "a")))
        run = Run(args, steps, os.path.join(folder, "b"))
        begin, kills, joins = time.time(), 0, 0
        while any(p.poll() is None for p in run.live):
            time.sleep(args.every / 2)
            if all(p.poll() is not None for p in run.live) or time.time() - begin > 60 * (args.minutes * 3 + 1):
                break
            step, loss = run.progress()
            print(f"{time.time() - begin:6.0f} s  step {step}/{steps}  loss {loss:.4f}  killed {kills}, joined {joins}", flush=True)
            if step > 0.97 * steps:
                continue
            if len(run.live) == args.workers:
                victim = random.choice(run.live)
                run.live.remove(victim)
                victim.kill()
                victim.wait()
                kills += 1
            else:
                run.live.append(run.start(["--join"], run.addresses()))
                joins += 1
        codes = []
        for p in run.live:
            try:
                codes.append(p.wait(timeout=60))
            except subprocess.TimeoutExpired:
                p.kill()
                codes.append("hangs")
        results = [open(p.file + ".out").read().strip() for p in run.live]
        results = [json.loads(r.splitlines()[-1]) for r in results if r]
        seconds = time.time() - begin
        ok = all(c == 0 for c in codes) and len(results) == 1
        if ok:
            ok = results[0]["final_loss"] < 0.6 * 5.5
        else:
            for p in run.live:
                print(p.file, open(p.file + ".err").read()[-300:], file=sys.stderr)
        print(json.dumps({"ok": ok, "seconds": round(seconds), "steps": steps, "killed": kills, "came": joins, "codes": codes, "final_loss": results[0]["final_loss"] if results else None,
                          "param_hash": results[0]["param_hash"] if results else None}))
        return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
