#!/usr/bin/env python3
"""Weights of a GPT-2 in PyTorch, written as the transformers library writes them, give the same
logits here (to 1e-4), and come back bit for bit.

The reader and the writer of the files are this script's own (struct and json), so that both sides
of the format are checked. Exit 77 where PyTorch or a C compiler is missing."""
import json
import math
import os
import struct
import sys
import tempfile

import companion

companion.need("torch", "PyTorch")
import torch
import torch.nn.functional as F

VOCABULARY, CONTEXT, BATCH, LAYERS, HEADS, DIM = 41, 13, 2, 3, 3, 24
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


def write(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in tensors.items():
        raw = (x.contiguous().view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().tobytes()
        header[name] = {"dtype": TYPES[x.dtype], "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    with open(path, "rb") as f:
        raw = f.read()
    n, = struct.unpack("<Q", raw[:8])
    header, data, at = json.loads(raw[8:8 + n]), raw[8 + n:], 0
    assert n % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    out = {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        assert t["dtype"] == "F32" and begin == at, name
        out[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(t["shape"])
        at = end
    assert at == len(data)
    return out


def weights():
    g = torch.Generator().manual_seed(3)
    out = {"wte.weight": (VOCABULARY, DIM), "wpe.weight": (CONTEXT, DIM)}
    for n in range(LAYERS):
        h = "h.%d." % n
        for norm in ("ln_1", "ln_2"):
            out[h + norm + ".weight"] = out[h + norm + ".bias"] = (DIM,)
        for name, rows, columns in (("attn.c_attn", DIM, 3 * DIM), ("attn.c_proj", DIM, DIM),
                                    ("mlp.c_fc", DIM, 4 * DIM), ("mlp.c_proj", 4 * DIM, DIM)):
            out[h + name + ".weight"] = (rows, columns)  # Conv1D: in, out
            out[h + name + ".bias"] = (columns,)
    out["ln_f.weight"] = out["ln_f.bias"] = (DIM,)
    return {name: torch.randn(shape, generator=g) * 0.3 for name, shape in out.items()}


def logits(w):
    tokens = ((7 * torch.arange(BATCH * CONTEXT) + 3) % VOCABULARY).reshape(BATCH, CONTEXT)
    w = {name: x.double() for name, x in w.items()}

    def norm(x, name):
        return F.layer_norm(x, (DIM,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:CONTEXT]
    mask = torch.ones(CONTEXT, CONTEXT).triu(1).bool()
    for n in range(LAYERS):
        h = "h.%d." % n
        q, k, v = (y.view(BATCH, CONTEXT, HEADS, -1).transpose(1, 2)
                   for y in conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(DIM, dim=2))
        score = (q @ k.transpose(2, 3) / math.sqrt(DIM // HEADS)).masked_fill(mask, -math.inf)
        y = (score.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, CONTEXT, DIM)
        x = x + conv1d(y, h + "attn.c_proj")
        y = conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
        x = x + conv1d(y, h + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def variants(w):
    """(name, what the file holds, the weights it means)"""
    yield "plain", w, w
    whole = {"transformer." + name: x for name, x in w.items()}
    for n in range(LAYERS):
        whole["transformer.h.%d.attn.bias" % n] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
        whole["transformer.h.%d.attn.masked_bias" % n] = torch.tensor(-1e4)
    whole["lm_head.weight"] = w["wte.weight"]
    yield "with prefix, masks and head", dict(sorted(whole.items())), w
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        short = {name: x.to(kind) for name, x in w.items()}
        yield TYPES[kind], short, {name: x.float() for name, x in short.items()}


def main():
    failed = passed = 0
    program = companion.build("torch_weights")
    with tempfile.TemporaryDirectory() as folder:
        file, back = (os.path.join(folder, n) for n in ("in.safetensors", "out.safetensors"))
        for name, held, meant in variants(weights()):
            write(file, held)
            text = companion.output(program, file, back)
            ours = torch.tensor([float(v) for v in text.split()], dtype=torch.float64)
            theirs = logits(meant).reshape(-1)
            worst = float((ours - theirs).abs().max())
            saved = read(back)
            same = set(saved) == set(meant) and all(torch.equal(saved[n], meant[n]) for n in meant)
            ok = worst < 1e-4 and same and float(theirs.abs().max()) > 1
            print("%-28s logits differ by %.1e, saved %s%s" % (
                name, worst, "alike" if same else "unlike", "" if ok else "  FAILED"))
            passed, failed = passed + ok, failed + (not ok)
    return companion.close(passed, failed)


if __name__ == "__main__":
    sys.exit(main())
