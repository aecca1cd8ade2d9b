#!/usr/bin/env python3
"""Measures overlapped communication and compares it with the plan's prediction.

    bench/overlap.py [--quick] [--only WORD] [--json FILE]

Workers of build/train_gpt --emulate-compute sleep for the layer times of a published profile, and the bytes of its layers travel over
emulated links. For each cell (profile, workers, H) the rate of the link is chosen so that the communication of a period,
C = 2(P-1)/P x 4 x params / rate, is 0.5, 1 and 2 times the backward time of the period, H x T_b. The profiles have no forward times:
forward = backward / 2. Parameters and rate are divided by one factor, printed with the cell, so that all workers together send at most
16 MB/s. Times are not divided. A * marks workers that are pinned to one core each (taskset). The cell `real` trains a small GPT.

An idle core that sleeps wakes up late, on virtual machines by tens of milliseconds. The script therefore asks the kernel to keep idle
cores awake (/dev/cpu_dma_latency); --let-sleep does not.

The measured step time is the clock of rank 0 over whole periods, without the first period after planning. The predicted one is the
library's plan, from the profile and the link that the run measured.
"""
import argparse
import csv
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

import published

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "..", "build", "train_gpt")
DATA = os.environ.get("DDP_DATA", "data")
MACHINE_BYTES_PER_S = 16e6
DELAY = "0.5ms"
PROFILE_STEPS = 6

RATIOS = (0.5, 1, 2)
# profile, workers, H, pinned, ratios
CELLS = [
    ("a6000_gpt2", 4, 5, False, RATIOS),
    ("a6000_llama2-175m", 4, 5, False, RATIOS),
    ("a6000_resnet18-cifar10", 4, 5, False, RATIOS),
    ("a6000_resnet50-cifar100", 4, 5, False, (1,)),
    ("h100_gpt2", 4, 5, False, RATIOS),
    ("a6000_resnet18-cifar10", 8, 5, False, RATIOS),
    ("a6000_gpt2", 8, 5, False, (1,)),
    ("a6000_llama2-175m", 4, 10, False, (1,)),
    ("a6000_llama2-175m", 2, 5, True, (1,)),
    ("real", 2, 5, True, RATIOS),
]
STRATEGIES = ("ssgd", "wfbp", "localsgd", "enp", "paper", "dreamddp")

# DreamDDP's Table 1, seconds per iteration: S-SGD, ASC-WFBP, FLSGD, ENP, DreamDDP
PAPER = {
    ("ResNet-18", 8): (1.31, 0.99, 0.66, 0.58, 0.57), ("ResNet-18", 32): (2.40, 1.75, 0.57, 0.46, 0.38),
    ("ResNet-50", 8): (3.08, 2.33, 1.59, 1.37, 1.33), ("ResNet-50", 32): (4.52, 3.39, 0.94, 0.69, 0.65),
    ("GPT-2", 8): (2.63, 1.72, 0.80, 0.70, 0.66), ("GPT-2", 32): (8.67, 5.38, 2.08, 1.99, 1.60),
    ("Llama-2", 8): (2.80, 1.83, 0.86, 0.77, 0.72), ("Llama-2", 32): (8.75, 5.36, 1.96, 1.89, 1.55),
}


class Model:
    """The model of a cell: options of train_gpt, parameters, backward seconds of a step."""

    def __init__(self, name, folder):
        self.name = name
        if name == "real":
            text = os.path.join(HERE, "..", "dreamddp.h")
            self.options = ["--data", text, "--layers", "4", "--dim", "128", "--seq", "64", "--batch", "4"]
            return
        path = os.path.join(published.folder("profiles"), name + ".csv")
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
        self.params = sum(float(r["params"]) for r in rows)
        self.backward = sum(float(r["backward_s"]) for r in rows)
        emulated = os.path.join(folder, name + ".csv")
        with open(emulated, "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["layer", "params", "forward_s", "backward_s", "comm_s"])
            for r in rows:
                out.writerow([r["layer"], r["params"], float(r["backward_s"]) / 2, r["backward_s"], 0])
        self.options = ["--emulate-compute", emulated]

    def measure(self, folder, pinned):
        """Reads the sizes of a real model from its run."""
        lines = os.path.join(folder, "real.jsonl")
        run(self.options + ["--steps", "20", "--json", lines, "--quiet"], 1, pinned)
        with open(lines) as f:
            layers = next(e for e in map(json.loads, f) if e["event"] == "profile")["layers"]
        self.params = sum(x["params"] for x in layers)
        self.backward = sum(x["backward_s"] for x in layers)


def keep_cores_awake():
    """Keeps idle cores awake until this process ends. Returns whether the kernel allows it."""
    try:
        fd = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
        os.write(fd, struct.pack("i", 0))
        return True
    except OSError:
        return False


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(options, workers, pinned, program=TRAIN):
    """Runs one training. Returns its result, the step times of rank 0 in ms, all events and the log."""
    lines = tempfile.mktemp(suffix=".jsonl")
    base = [program, "--quiet", "--workers", str(workers), "--optimizer", "sgd", "--lr", "1e-3", *options]
    if "--json" not in options:
        base += ["--json", lines]
    else:
        lines = None
    if pinned:
        rank = ["--addr", f"127.0.0.1:{free_port()}"] if workers > 1 else []
        commands = [["taskset", "-c", str(r % os.cpu_count()), *base, *rank, *(["--rank", str(r)] if rank else [])]
                    for r in range(workers)]
    else:
        commands = [base]
    jobs = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    outputs = [j.communicate() for j in jobs]
    for job, (_, err) in zip(jobs, outputs):
        if job.returncode:
            sys.exit(f"overlap.py: {' '.join(job.args)}: {err.strip()[-400:]}")
    result = json.loads(outputs[0][0].strip().splitlines()[-1])
    result["log"] = outputs[0][1]
    if lines:
        with open(lines) as f:
            result["events"] = [json.loads(line) for line in f]
        result["steps_ms"] = [e["step_ms"] for e in result["events"] if e["event"] == "step"]
        os.unlink(lines)
    return result


def measure(model, strategy, workers, period, pinned, net, scale, periods):
    """The mean step over whole periods, without the first period after planning."""
    per_step = strategy in ("ssgd", "wfbp")
    profile = 3 if per_step else PROFILE_STEPS
    skip = 1 if per_step else period
    count = 4 if per_step else periods * period
    options = [*model.options, "--steps", str(profile + skip + count), "--period", str(period),
               "--profile-steps", str(profile)]
    if workers > 1:
        options += ["--net", net]
    if strategy == "paper":
        options += ["--strategy", "dreamddp", "--paper"]
    else:
        options += ["--strategy", strategy]
    if model.name != "real":
        options += ["--emulate-scale", str(scale)]
    r = run(options, workers, pinned)
    r["ms"] = sum(r["steps_ms"][-count:]) / count
    return r


class Checks:
    """Counts the goals that hold, and keeps the figures of the others."""

    def __init__(self):
        self.seen, self.missed = {}, []

    def __call__(self, name, ok, where):
        good, all_ = self.seen.get(name, (0, 0))
        self.seen[name] = (good + bool(ok), all_ + 1)
        if not ok:
            self.missed.append(f"{name}: {where}")

    def report(self, seconds):
        print(f"\nchecks, {seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
        for name, (good, all_) in self.seen.items():
            print(f"  {good:>3} of {all_:<3} {name}")
        for line in self.missed:
            print("  missed " + line)


def write_rows(path, rows):
    if path:
        with open(path, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)


def judge(check, where, rows, alone):
    d, e = rows["dreamddp"], rows["enp"]
    for name, r in rows.items():
        where_ = f"{where} {name}"
        check("step within 5 % of the prediction", abs(r["ms"] / r["predicted_step_ms"] - 1) <= 0.05,
              f"{where_}: {r['ms']:.1f} ms, predicted {r['predicted_step_ms']:.1f}")
        check("hidden >= predicted - 5 points", r["hidden_pct"] >= r["predicted_hidden_pct"] - 5,
              f"{where_}: {r['hidden_pct']:.1f} %, predicted {r['predicted_hidden_pct']:.1f}")
        if name in ("dreamddp", "paper", "enp") and r["predicted_hidden_pct"] >= 95:
            check("step <= 1.05 x without network where >= 95 % is predicted hidden", r["ms"] <= 1.05 * alone,
                  f"{where_}: {r['ms'] / alone:.3f} x")
    for name in ("ssgd", "wfbp", "localsgd"):
        check(f"dreamddp faster than {name}", d["ms"] < rows[name]["ms"], f"{where}: {rows[name]['ms'] / d['ms']:.3f} x")
    check("dreamddp at most 2 % behind enp", d["ms"] <= 1.02 * e["ms"], f"{where}: {d['ms'] / e['ms']:.3f} x")
    if e["predicted_step_ms"] >= 1.05 * d["predicted_step_ms"]:
        check("dreamddp ahead of enp where the plan says 5 %", d["ms"] < e["ms"], f"{where}: {e['ms'] / d['ms']:.3f} x")


def cell(spec, folder, ratios, periods, check, out):
    name, workers, period, pinned, own_ratios = spec
    model = Model(name, folder)
    if name == "real":
        model.measure(folder, pinned)
    for ratio in ratios or own_ratios:
        volume = 2 * (workers - 1) / workers * 4 * model.params
        rate = volume / (ratio * period * model.backward)
        scale = 1 if name == "real" else max(1, round(rate * workers / MACHINE_BYTES_PER_S))
        net = f"{rate / scale * 8 / 1000:.3f}kbit,{DELAY}"
        alone = measure(model, "localsgd", 1, period, pinned, None, scale, 1)["ms"]
        where = f"{name} P={workers}{'*' if pinned else ''} H={period} C/HT={ratio:g}"
        print(f"\n{where}: net {net}, bytes and rate / {scale}; step without network {alone:.1f} ms; "
              f"load {os.getloadavg()[0]:.1f}")
        print(f"{'strategy':>10}{'step ms':>10}{'predicted':>11}{'hidden %':>10}{'predicted':>11}"
              f"{'/ alone':>9}{'x dreamddp':>12}")
        rows = {s: measure(model, s, workers, period, pinned, net, scale, periods) for s in STRATEGIES}
        for s, r in rows.items():
            print(f"{s:>10}{r['ms']:>10.1f}{r['predicted_step_ms']:>11.1f}{r['hidden_pct']:>10.1f}"
                  f"{r['predicted_hidden_pct']:>11.1f}{r['ms'] / alone:>9.3f}{r['ms'] / rows['dreamddp']['ms']:>12.3f}")
            out.append({"profile": name, "workers": workers, "period": period, "pinned": pinned, "ratio": ratio,
                        "net": net, "scale": scale, "alone_ms": alone, "strategy": s, "step_ms": r["ms"],
                        "predicted_step_ms": r["predicted_step_ms"], "hidden_pct": r["hidden_pct"],
                        "predicted_hidden_pct": r["predicted_hidden_pct"], "bytes_sent": r["bytes_sent"]})
        sys.stdout.flush()
        judge(check, where, rows, alone)


def print_paper():
    print("\nDreamDDP's Table 1 for comparison, step time over DreamDDP's (printed ASC-WFBP: not a true WFBP)")
    print(f"{'':>16}{'S-SGD':>9}{'ASC-WFBP':>10}{'FLSGD':>8}{'ENP':>7}")
    for (model, workers), t in PAPER.items():
        print(f"{model + ' ' + str(workers):>16}" + "".join(f"{x / t[-1]:>{w}.2f}" for x, w in zip(t, (9, 10, 8, 7))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cell, one ratio")
    parser.add_argument("--only", metavar="WORD", help="cells whose description contains WORD, e.g. 'gpt2 4 5'")
    parser.add_argument("--ratios", metavar="R,..", help="ratios C / (H T_b) [0.5,1,2]")
    parser.add_argument("--periods", type=int, default=3, help="whole periods measured [3]")
    parser.add_argument("--let-sleep", action="store_true", help="let idle cores sleep")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    ratios = [float(r) for r in args.ratios.split(",")] if args.ratios else ([1] if args.quick else None)
    cells = [c for c in CELLS if not args.only or args.only in f"{c[0]} {c[1]} {c[2]}"]
    check, out, begin = Checks(), [], time.monotonic()

    if not os.path.isdir(published.folder("profiles")):
        print("overlap.py: no profiles; " + published.HINT)
        sys.exit(77)
    awake = not args.let_sleep and keep_cores_awake()
    print("idle cores " + ("stay awake" if awake else "may sleep, and wake up late"))
    with tempfile.TemporaryDirectory() as folder:
        for spec in cells[:1] if args.quick else cells:
            cell(spec, folder, ratios, args.periods, check, out)
    print_paper()
    check.report(time.monotonic() - begin)
    write_rows(args.json, out)


if __name__ == "__main__":
    main()
