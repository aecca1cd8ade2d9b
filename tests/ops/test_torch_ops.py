#!/usr/bin/env python3
"""[test-all: needs PyTorch] Values and gradients of the operators compared with PyTorch in double, to 1e-5 of the largest value.

Exit 77 if PyTorch or a C compiler is missing. CC chooses the compiler."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch
import torch.nn.functional as F


def attention(qkv, heads=4, kv_heads=4):
    b, t, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (heads + 2 * kv_heads)
    q, k, v = (x.view(b, t, -1, d).transpose(1, 2)
               for x in qkv.split([heads * d, kv_heads * d, kv_heads * d], dim=2))
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    score = q @ k.transpose(2, 3) / math.sqrt(d)
    score = score.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
    return (score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, heads * d)


def rope(qkv, heads=8, kv_heads=2, theta=10000):
    b, t, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (heads + 2 * kv_heads)
    x, v = qkv.split([(heads + kv_heads) * d, kv_heads * d], dim=2)
    x = x.view(b, t, heads + kv_heads, d)
    angle = torch.outer(torch.arange(t).double(), theta ** (-torch.arange(0, d, 2).double() / d))
    angle = torch.cat((angle, angle), dim=1)[:, None, :]
    half = torch.cat((-x[..., d // 2:], x[..., :d // 2]), dim=-1)
    return torch.cat(((x * angle.cos() + half * angle.sin()).reshape(b, t, -1), v), dim=2)


def swiglu(x):
    a, b = x.chunk(2, dim=-1)
    return F.silu(a) * b


def gelu(x):  # not every PyTorch version has the tanh form
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


RULES = {
    "linear": F.linear,
    "embedding": F.embedding,
    "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5),
    "gelu": gelu,
    "relu": F.relu,
    "attention": attention,
    "attention_grouped": lambda x: attention(x, 8, 2),
    "rms_norm": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w,
    "rope": rope,
    "swiglu": swiglu,
    "cross_entropy": lambda x, y: F.cross_entropy(x, y, ignore_index=-1),
    "linear_cross_entropy": lambda x, y, w: F.cross_entropy(F.linear(x, w), y, ignore_index=-1),
}


def parse(text):
    cases = {}
    for line in text.splitlines():
        head, values = line.split("|")
        op, name, *dims = head.split()
        whole = (op, name) in (("embedding", "in0"), ("cross_entropy", "in1"), ("linear_cross_entropy", "in1"))
        array = torch.tensor([int(v) if whole else float(v) for v in values.split()],
                             dtype=torch.long if whole else torch.float64)
        cases.setdefault(op, {})[name] = array.reshape([int(d) for d in dims])
    return cases


def check(op, a):
    args = [a[n] for n in ("in0", "in1", "param0", "param1") if n in a]
    names = [n for n in ("in0", "in1", "param0", "param1") if n in a]
    for x in args:
        x.requires_grad_(x.is_floating_point())
    out = RULES[op](*args)
    out.backward(a["grad_out0"])
    pairs = [("out0", out.detach())]
    pairs += [("grad_" + n, x.grad) for n, x in zip(names, args) if x.grad is not None]
    worst = 0.0
    for name, theirs in pairs:
        ours = a["out0"] if name == "out0" else a[name]
        worst = max(worst, float((ours.detach() - theirs).abs().max() / theirs.abs().max()))
    return worst < 1e-5, "%d arrays, largest difference %.1e" % (len(pairs), worst)


def main():
    cases = parse(companion.output(companion.build("ops/torch_ops")))
    for op in RULES:
        if companion.chosen(op):
            companion.result(op, *(check(op, cases[op]) if op in cases else (False, "the companion printed no such case")))
    return companion.end()


sys.exit(main())
