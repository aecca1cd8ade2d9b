#!/usr/bin/env python3
"""build/bench_vision compared with PyTorch: a training step of ResNet-18 on 32 x 32 images, in alternation.

    bench/torch_vision.py [--quick] [--batch 32] [--rounds 2] [--steps 5] [--ways eager,eager-last]

SGD with momentum on both sides; the best of all steps counts. PyTorch is tuned: glibc keeps its memory, which saves a tenth of the time in
page faults, and SGD is fused where PyTorch has it. The fastest one of several --ways counts: eager or compile (PyTorch 2), and with -last
images in the order channels-last. The interpreter that runs this script provides PyTorch. On a busy machine the processor time of a step is
more reliable than the clock. Exit 77: no PyTorch.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.join(HERE, "..", "build", "bench_vision")
TUNED = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "17179869184",
         "MALLOC_TOP_PAD_": "268435456"}
WAYS = ("eager", "eager-last", "compile", "compile-last")

sys.path.insert(0, os.path.join(HERE, "..", "tests", "nn"))
try:
    import torch
    import torch.nn.functional as F
    from torch_models import resnet18
except ImportError:
    if os.environ.get("VISION_PYTHON") or not os.path.exists("/usr/bin/python3"):
        print("skipped: PyTorch is not installed")
        sys.exit(77)
    os.environ["VISION_PYTHON"] = "1"  # the system's interpreter may have PyTorch
    os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)


def theirs(batch, threads, steps, way):
    """Runs PyTorch in a separate process with a tuned environment. Prints the object of bench_vision."""
    torch.set_num_threads(threads)
    kind, _, order = way.partition("-")
    layout = torch.channels_last if order == "last" else torch.contiguous_format
    model = resnet18().to(memory_format=layout)
    forward = torch.compile(model) if kind == "compile" else model
    try:
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
    except (TypeError, RuntimeError):  # fused SGD on the CPU is newer than PyTorch 2.3
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.randn(batch, 3, 32, 32).to(memory_format=layout)
    labels = torch.randint(0, 10, (batch,))
    best = least = float("inf")
    for step in range(steps + 1):
        clock, cpu = time.monotonic(), time.process_time()
        sgd.zero_grad()
        F.cross_entropy(forward(x), labels).backward()
        sgd.step()
        if step:  # the first step allocates its memory
            best = min(best, time.monotonic() - clock)
            least = min(least, time.process_time() - cpu)
    print(json.dumps({"step_s": best, "cpu_s": least}))


def measure(command):
    done = subprocess.run(command, env={**os.environ, **TUNED}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"torch_vision.py: {command[0]} failed")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of two steps")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ways", default="eager,eager-last", help="some of " + ", ".join(WAYS))
    parser.add_argument("--theirs", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for way in args.ways.split(","):
        if way not in WAYS:
            parser.error("--ways: %s is none of %s" % (way, ", ".join(WAYS)))
    if args.quick:
        args.rounds, args.steps = 1, 2
    if args.theirs:
        return theirs(args.batch, args.theirs, args.steps, args.ways)
    print(f"ResNet-18, 32 x 32, batch {args.batch}, best of {args.rounds} x {args.steps} steps, "
          f"load {os.getloadavg()[0]:.1f} before, PyTorch {torch.__version__} ({args.ways})")
    print(f"{'threads':>7} {'ddp s':>7} {'torch s':>8} {'torch/ddp':>9} "
          f"{'ddp cpu s':>10} {'torch cpu s':>12} {'torch/ddp':>9}")
    shared = ["--batch", str(args.batch), "--steps", str(args.steps)]
    for threads in (1, 2):
        ours, torchs = [], []
        for _ in range(args.rounds):
            ours.append(measure([OURS, "--threads", str(threads)] + shared))
            torchs += [measure([sys.executable, __file__, "--theirs", str(threads), "--ways", w] + shared)
                       for w in args.ways.split(",")]
        row = [min(r[k] for r in runs) for k in ("step_s", "cpu_s") for runs in (ours, torchs)]
        print(f"{threads:>7} {row[0]:>7.3f} {row[1]:>8.3f} {row[1] / row[0]:>9.2f} "
              f"{row[2]:>10.3f} {row[3]:>12.3f} {row[3] / row[2]:>9.2f}", flush=True)
    return 0


sys.exit(main())
