#!/usr/bin/env python3
"""[test-all: needs PyTorch] Output shapes, parameters, buffers and FLOPs of image operators compared with PyTorch's modules.

Exit 77 if PyTorch or a C compiler is missing. CC chooses the compiler."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch
from torch import nn


def conv2d(shape, channels, kernel, stride, padding, groups, bias):
    m = nn.Conv2d(shape[1], channels, kernel, stride, padding, groups=groups, bias=bool(bias))
    return m, lambda out: 2 * out.numel() * m.weight[0].numel()


def pool(kind):
    def make(shape, kernel, stride, padding, *_):
        return kind(kernel, stride, padding), lambda out: out.numel() * kernel * kernel
    return make


def batch_norm2d(shape, *_):
    return nn.BatchNorm2d(shape[1]), lambda out: 8 * out.numel()


def global_avg_pool2d(shape, *_):
    m = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return m, lambda out: out.numel() * shape[2] * shape[3]


def linear(shape, width, *_):
    return nn.Linear(shape[-1], width), lambda out: 2 * out.numel() * shape[-1]


RULES = {
    "conv2d": conv2d,
    "max_pool2d": pool(nn.MaxPool2d),
    "avg_pool2d": pool(nn.AvgPool2d),
    "batch_norm2d": batch_norm2d,
    "global_avg_pool2d": global_avg_pool2d,
    "flatten": lambda shape, *_: (nn.Flatten(), lambda out: 0),
    "linear": linear,
}


def theirs(op, args, shape):
    """Returns [dimensions], [parameters, buffers, FLOPs]; both empty if PyTorch rejects the shape."""
    module, flops = RULES[op](shape, *args)
    try:
        with torch.no_grad():
            out = module(torch.zeros(*shape))
    except RuntimeError:
        return [], []
    params = sum(p.numel() for p in module.parameters())
    buffers = sum(b.numel() for n, b in module.named_buffers() if n.startswith("running"))
    return list(out.shape), [params, buffers, flops(out)]


def main():
    torch.set_num_threads(1)
    right, refused = {op: 0 for op in RULES}, 0
    for line in companion.output(companion.build("ops/torch_shapes")).splitlines():
        head, shape, *ours = line.split("|")
        op, *args = head.split()
        if op not in RULES:
            continue
        expected = theirs(op, [int(a) for a in args], [int(d) for d in shape.split()])
        if tuple([int(v) for v in part.split()] for part in ours) == expected:
            right[op] += 1
            companion.result("%s of %s" % (head, shape), True)
        else:
            companion.result("%s of %s" % (head, shape), False, "%s; PyTorch: %s" % (line, expected))
        refused += not expected[0]
    print(", ".join("%s %d" % (op, n) for op, n in right.items()),
          "equal; %d of them rejected by both" % refused)
    for op in [op for op, n in right.items() if not n]:
        companion.result(op, False, "no case was compared")
    return companion.end()


sys.exit(main())
