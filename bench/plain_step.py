#!/usr/bin/env python3
"""The cost of dreamddp.wrap in a step without an average: the same loop without the library, in alternation in one process.

    bench/plain_step.py [--strategy localsgd] [--steps 80] [--gpu 0] [--package python]
    build/ddprun -n 2 bench/plain_step.py --period 20

Prints, per step, the processor time of the process (with the comm thread) for both loops, and the calls of Python functions and of
the library that wrap adds. The ratio compares the sums of the faster half of the steps, because other programs on the machine only
slow steps down. --package: the folder of another version of the package. --gpu: seconds of computing to emulate by sleeping; then the
ratio is of the elapsed time. Exit 77 without PyTorch.
"""
import argparse
import collections
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
WARM, COUNTED, SEQ, BATCH = 12, 10, 64, 4


class Loop:
    def __init__(self, torch, model):
        self.torch, self.model, self.seconds = torch, model, []
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.x = torch.randint(256, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(1))

    def step(self):
        x = self.x
        loss = self.torch.nn.functional.cross_entropy(self.model(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def timed(self, clock):
        begin = clock()
        self.step()
        self.seconds.append(clock() - begin)

    def fast_half(self):
        fast = sorted(self.seconds)[:len(self.seconds) // 2]
        return 1e3 * sum(fast) / len(fast)


class Library:
    """Counts the calls of the library by name."""

    def __init__(self, lib, calls):
        self.lib, self.calls = lib, calls

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self.lib, name)


def python_calls(loop, package):
    """Returns the calls of the package's functions in some steps, by file and name."""
    calls = collections.Counter()

    def count(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(package):
            calls["%s:%s" % (os.path.basename(name), frame.f_code.co_name)] += 1

    sys.setprofile(count)
    for _ in range(COUNTED):
        loop.step()
    sys.setprofile(None)
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="localsgd", help="[localsgd]")
    parser.add_argument("--period", type=int, default=100000, help="steps between averages [100000]")
    parser.add_argument("--steps", type=int, default=80, help="steps of each loop [80]")
    parser.add_argument("--gpu", type=float, default=0, help="seconds of computing to emulate [0]")
    parser.add_argument("--package", default=os.path.join(ROOT, "python"), help="folder that contains dreamddp [python]")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return 77
    sys.path[:0] = [os.path.abspath(args.package), HERE]
    import dreamddp
    from peers import emulate_compute
    from python_ddp import gpt
    torch.set_num_threads(1)
    loops = []
    for _ in range(2):
        torch.manual_seed(1)
        loops.append(Loop(torch, gpt(torch, 256, SEQ, 6)))
        if args.gpu:
            emulate_compute(loops[-1].model.blocks, args.gpu)
    plain, wrapped = loops
    dreamddp.init(strategy=args.strategy, period=args.period)
    dreamddp.wrap(wrapped.model, wrapped.optimizer)
    for _ in range(WARM):
        plain.step()
        wrapped.step()
    clock = time.monotonic if args.gpu else time.process_time
    for i in range(args.steps):
        for loop in loops if i % 2 else loops[::-1]:
            loop.timed(clock)
    calls = python_calls(wrapped, os.path.dirname(dreamddp.__file__))
    context, listed = dreamddp.context(), collections.Counter()
    context.lib = context.models[0].backward.lib = Library(context.lib, listed)
    for _ in range(COUNTED):
        wrapped.step()
    context.lib = context.lib.lib
    print("%s, rank %d of %d, PyTorch %s: plain %.2f ms, wrapped %.2f ms, ratio %.4f" % (
        args.strategy, dreamddp.rank(), dreamddp.world(), torch.__version__, plain.fast_half(), wrapped.fast_half(),
        wrapped.fast_half() / plain.fast_half()))
    print("calls of Python functions per step: %.1f; of the library: %.1f" % (sum(calls.values()) / COUNTED, sum(listed.values()) / COUNTED))
    for name, n in (calls + listed).most_common(12):
        print("  %6.1f %s" % (n / COUNTED, name))
    dreamddp.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
