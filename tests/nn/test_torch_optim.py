#!/usr/bin/env python3
"""[test-all: needs PyTorch] The built-in update rules compared with torch.optim: 20 steps, relative difference below 1e-6.

Exit 77 if PyTorch or a C compiler is missing. CC chooses the compiler."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch

STEPS, COUNT = 20, 103
# name, lr, momentum or beta1, beta2, eps, weight decay
CASES = [
    ("sgd", 0.1, 0.0, 0.0, 0.0, 0.0),
    ("sgd", 0.1, 0.0, 0.0, 0.0, 0.01),
    ("sgd", 0.05, 0.9, 0.0, 0.0, 0.0),
    ("sgd", 0.05, 0.9, 0.0, 0.0, 5e-4),
    ("nesterov", 0.05, 0.9, 0.0, 0.0, 0.0),
    ("nesterov", 0.05, 0.95, 0.0, 0.0, 5e-4),
    ("adam", 1e-3, 0.9, 0.999, 1e-8, 0.0),
    ("adam", 1e-2, 0.9, 0.95, 1e-8, 0.1),
    ("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.01),
    ("adamw", 6e-4, 0.9, 0.95, 1e-6, 0.1),
]


def torch_rule(case, w):
    name, lr, a, b, eps, decay = case
    if name in ("sgd", "nesterov"):
        return torch.optim.SGD([w], lr=lr, momentum=a, weight_decay=decay, nesterov=name == "nesterov")
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind([w], lr=lr, betas=(a, b), eps=eps, weight_decay=decay)


MUON = [(17, 59, 0.02, 0.95, 0.01), (59, 17, 0.02, 0.95, 0.0), (24, 24, 0.01, 0.9, 0.1)]  # rows, columns, lr, momentum, decay


def newton_schulz(u):
    """The direction of torch.optim.Muon, in float32 instead of bfloat16."""
    x = u.T if u.size(0) > u.size(1) else u
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if u.size(0) > u.size(1) else x


def run_muon(program, case):
    """Returns the largest difference relative to the root mean square, from the formula above and, if PyTorch has
    Muon, from torch.optim.Muon."""
    rows, columns, lr, momentum, decay = case
    args = ["muon"] + [repr(x) for x in (lr, momentum, 0.0, 0.0, decay)] + [str(STEPS), str(rows * columns), str(rows)]
    worst, w, v, whole, opt, worst_whole = 0.0, None, None, None, None, 0.0
    for line in companion.output(program, *args).splitlines():
        what, *numbers = line.split()
        values = torch.tensor([float(x) for x in numbers], dtype=torch.float32).reshape(rows, columns)
        if what == "start":
            w, v = values.clone(), torch.zeros_like(values)
            whole = values.clone().requires_grad_()
            if hasattr(torch.optim, "Muon"):
                opt = torch.optim.Muon([whole], lr=lr, momentum=momentum, weight_decay=decay)
        elif what == "grads":
            v.lerp_(values, 1 - momentum)
            w.mul_(1 - lr * decay).sub_(newton_schulz(values.lerp(v, momentum)), alpha=lr * max(1, rows / columns) ** 0.5)
            whole.grad = values
            if opt:
                opt.step()
        elif what == "params":
            worst = max(worst, difference(values, w, True))
            worst_whole = max(worst_whole, difference(values, whole.detach(), True)) if opt else 0.0
        else:
            worst = max(worst, difference(values, v, True))
    return worst, worst_whole


def difference(ours, theirs, cancels):
    """Returns the largest relative difference. If terms of both signs are added, a value near zero keeps their
    rounding error, so it is compared with the root mean square of the array."""
    size = theirs.abs()
    if cancels:
        size = torch.maximum(size, theirs.pow(2).mean().sqrt())
    return float(((ours - theirs).abs() / size).max())


def run(program, case):
    args = [case[0]] + [repr(x) for x in case[1:]] + [str(STEPS), str(COUNT)]
    out = companion.output(program, *args)
    w = opt = None
    worst = 0.0
    l2 = case[0] == "adam" and case[5] > 0  # gradient + decay x parameter may cancel
    for line in out.splitlines():
        what, *numbers = line.split()
        values = torch.tensor([float(x) for x in numbers], dtype=torch.float32)
        if what == "start":
            w = values.clone().requires_grad_()
            opt = torch_rule(case, w)
        elif what == "grads":
            w.grad = values
            opt.step()
        elif what == "params":
            worst = max(worst, difference(values, w.detach(), True))
        else:
            s = opt.state[w]
            key = "momentum_buffer" if case[0] in ("sgd", "nesterov") else ("exp_avg", "exp_avg_sq")[int(what[-1])]
            worst = max(worst, difference(values, s[key], key != "exp_avg_sq" or l2))
    return worst


def main():
    program = companion.build("nn/torch_optim")
    for case in CASES:
        name = " ".join(map(str, case))
        if companion.chosen(name):
            worst = run(program, case)
            companion.result(name, worst < 1e-6, "largest relative difference %.2e" % worst)
    for case in MUON:
        name = "muon " + " ".join(map(str, case))
        if companion.chosen(name):
            worst, whole = run_muon(program, case)
            ok = worst < 1e-5 and whole < 0.005  # torch.optim.Muon multiplies in bfloat16
            companion.result(name, ok, "largest relative difference %.2e, %.2e from torch.optim.Muon" % (worst, whole))
    return companion.end()


sys.exit(main())
