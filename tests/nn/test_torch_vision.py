#!/usr/bin/env python3
"""[test-all: needs PyTorch] ResNet-18 and VGG-16 compared with PyTorch from the same parameters: losses of five training steps, the
running statistics after them, evaluation with these statistics, and the logits of VGG.

An activation within a rounding error of 0 may pass a ReLU in only one of the libraries. A large learning rate
would amplify this: at 0.02, PyTorch's float32 and float64 differ by 6e-5 after five steps.

Exit 77 if PyTorch or a C compiler is missing. CC chooses the compiler."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch
from torch import nn
import torch.nn.functional as F

from torch_models import resnet18

def vgg16():
    layers, before = [], 3
    for convs, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convs):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 4096), nn.ReLU(),
                         nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


def buffers(model):
    return [b for n, b in model.named_buffers() if "running" in n]


class Reader:
    """Reads the arrays that the C program wrote, in order."""

    def __init__(self, data):
        self.all, self.at = torch.frombuffer(bytearray(data), dtype=torch.float32), 0

    def take(self, *shape):
        n = torch.Size(shape).numel()
        self.at += n
        return self.all[self.at - n:self.at].reshape(shape).clone()

    def load(self, arrays):
        with torch.no_grad():
            for a in arrays:
                a.copy_(self.take(*a.shape))


def difference(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.abs().max())


def check(what, value, limit):
    companion.result(what, value < limit, "difference %.1e, limit %.1e" % (value, limit))


def check_vgg(r):
    model = vgg16()
    x, _ = r.take(4, 3, 32, 32), r.take(4)
    r.load(model.parameters())
    with torch.no_grad():
        logits = model(x)
    check("VGG-16, logits", difference(r.take(4, 10), logits), 1e-4)


def check_resnet(r):
    model = resnet18()
    x, labels = r.take(4, 3, 32, 32), r.take(4).long()
    r.load(model.parameters())
    sgd = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(model(x), labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(float(loss))
    ours = r.take(5)
    print("losses", " ".join("%.6f" % v for v in losses))
    worst = float((ours - torch.tensor(losses)).abs().max())
    check("ResNet-18, losses of five steps", worst, 1e-4)
    for p in model.parameters():
        r.take(*p.shape)
    worst = max(difference(r.take(*b.shape), b) for b in buffers(model))
    check("ResNet-18, running statistics after them", worst, 1e-3)

    # evaluation starts from the C program's parameters and statistics, because the two trainings differ a little
    r.at -= sum(a.numel() for a in list(model.parameters()) + buffers(model))
    r.load(model.parameters())
    r.load(buffers(model))
    model.eval()
    with torch.no_grad():
        logits = model(x)
    check("ResNet-18, logits of ddp_evaluate", difference(r.take(4, 10), logits), 1e-5)
    same = all(torch.equal(r.take(*b.shape), b) for b in buffers(model))
    check("ResNet-18, statistics changed by ddp_evaluate", float(not same), 0.5)


def main():
    torch.set_num_threads(1)
    program = companion.build("nn/torch_vision")
    for model, rule in (("resnet", check_resnet), ("vgg", check_vgg)):
        done = subprocess.run([program, model], check=True, stdout=subprocess.PIPE)
        rule(Reader(done.stdout))
    return companion.end()


sys.exit(main())
