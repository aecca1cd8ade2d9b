#!/usr/bin/env python3
"""[test-all: needs PyTorch] GPT-2 and Llama-2 compared with PyTorch from the same parameters: logits to 1e-4, and the loss of every
one of 50 steps of AdamW on the same batches to 1e-3.

Exit 77 if PyTorch or a C compiler is missing. CC chooses the compiler."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch
import torch.nn.functional as F

from torch_models import MODELS


class Run:
    """The output of one training run of the library."""

    def __init__(self, name, heads, kv_heads, tied):
        self.name, self.heads, self.kv_heads = name, int(heads), int(kv_heads)
        self.tied = tied == "1"
        self.arrays = {"param": [], "tokens": [], "labels": [], "logits": [], "loss": []}

    def title(self):
        return "%s, %d heads, %d of keys%s" % (self.name, self.heads, self.kv_heads,
                                               ", tied" if self.tied else "")


def parse(text):
    runs = []
    for line in text.splitlines():
        head, values = line.split("|")
        name, *dims = head.split()
        if name == "model":
            runs.append(Run(*dims))
            continue
        kind = torch.long if name in ("tokens", "labels") else torch.float32
        array = torch.tensor([float(v) for v in values.split()], dtype=torch.float64).to(kind)
        runs[-1].arrays[name].append(array.reshape([int(d) for d in dims]))
    return runs


def check(run):
    a = run.arrays
    params = [p.clone().requires_grad_() for p in a["param"]]
    optimizer = torch.optim.AdamW(params, lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    worst_logit, worst_loss, losses = 0.0, 0.0, []
    for step, (tokens, labels, loss) in enumerate(zip(a["tokens"], a["labels"], a["loss"])):
        logits = MODELS[run.name](params, tokens, heads=run.heads, kv_heads=run.kv_heads,
                                  tied=run.tied)
        if step == 0:
            worst_logit = float((logits - a["logits"][0]).abs().max())
        theirs = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        theirs.backward()
        optimizer.step()
        losses.append(float(theirs))
        worst_loss = max(worst_loss, abs(float(theirs) - float(loss)))
    learned = losses[-1] < losses[0] - 0.5
    ok = len(losses) == 50 and learned and worst_logit < 1e-4 and worst_loss < 1e-3
    companion.result(run.title(), ok, "%d arrays, loss %.3f to %.3f in %d steps; largest difference of a logit %.1e, of a loss %.1e"
                     % (len(params), losses[0], losses[-1], len(losses), worst_logit, worst_loss))


def main():
    text = companion.output(companion.build("nn/torch_models"),
                            os.path.join(companion.ROOT, "dreamddp.h"))
    runs = parse(text)
    for run in runs:
        if companion.chosen(run.title()):
            check(run)
    return companion.end() or len(runs) != 4


sys.exit(main())
