#!/usr/bin/env python3
"""[long, test-all: needs PyTorch] Weights of PyTorch models give the same logits in this library (to 1e-4), and are saved bit-identical.
The models are a GPT-2 as the transformers library writes it, and ResNet and VGG with torchvision's names and the running
statistics of a trained model.

This script reads and writes the files with its own code (struct and json), so that both directions
are checked. Its ResNet and VGG are plain modules; if torchvision is installed,
its models must have the same state_dict. Exit 77 if PyTorch or a C compiler is
missing."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, BATCH, LAYERS, HEADS, DIM, CLASSES = 41, 13, 2, 3, 3, 24, 7
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
         torch.int64: "I64"}


# every weight is drawn or loaded below: skip the default initialisation, which only takes time
for name in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_"):
    setattr(nn.init, name, lambda x, *args, **kwargs: x)


def write(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, x in tensors.items():
        raw = (x.contiguous().view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().tobytes()
        header[name] = {"dtype": TYPES[x.dtype], "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.write(data)


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
            out[h + name + ".weight"] = (rows, columns)  # Conv1D has shape (in, out)
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
    """Yields (name, tensors of the file, weights that the model must load)."""
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


# ---- ResNet and VGG under torchvision's names ----

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
CONVS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class Block(nn.Module):
    def __init__(self, before, width, stride, wide):
        super().__init__()
        kernels = (1, 3, 1) if wide else (3, 3)
        out = 4 * width if wide else width
        self.parts = len(kernels)
        for i, kernel in enumerate(kernels):
            last, strided = i == len(kernels) - 1, i == (1 if wide else 0)
            to = out if last else width
            self.add_module("conv%d" % (i + 1), nn.Conv2d(before if i == 0 else width, to, kernel,
                            stride if strided else 1, kernel // 2, bias=False))
            self.add_module("bn%d" % (i + 1), nn.BatchNorm2d(to))
        self.downsample = None
        if stride > 1 or before != out:
            self.downsample = nn.Sequential(nn.Conv2d(before, out, 1, stride, bias=False),
                                            nn.BatchNorm2d(out))

    def forward(self, x):
        y = x
        for i in range(1, self.parts + 1):
            y = getattr(self, "bn%d" % i)(getattr(self, "conv%d" % i)(y))
            y = F.relu(y) if i < self.parts else y
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    def __init__(self, depth, cifar):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, *((3, 1, 1) if cifar else (7, 2, 3)), bias=False)
        self.bn1, self.cifar, before, wide = nn.BatchNorm2d(64), cifar, 64, depth >= 50
        for stage, blocks in enumerate(BLOCKS[depth]):
            width, list_ = 64 << stage, []
            for k in range(blocks):
                list_.append(Block(before, width, 2 if stage and k == 0 else 1, wide))
                before = 4 * width if wide else width
            self.add_module("layer%d" % (stage + 1), nn.Sequential(*list_))
        self.fc = nn.Linear(before, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = x if self.cifar else F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class VGG(nn.Module):
    def __init__(self, depth, size):
        super().__init__()
        layers, before = [], 3
        for stage, convs in enumerate(CONVS[depth]):
            for _ in range(convs):
                layers += [nn.Conv2d(before, min(64 << stage, 512), 3, padding=1), nn.ReLU()]
                before = min(64 << stage, 512)
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(512 * (size // 32) ** 2, 4096), nn.ReLU(), nn.Dropout(),
                                        nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
                                        nn.Linear(4096, CLASSES))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def model_of(kind, depth, cifar, size):
    return VGG(depth, size) if kind == "vgg" else ResNet(depth, cifar)


def trained(model):
    """A state_dict as of a trained model: no statistic and no scale has its initial value."""
    g, state = torch.Generator().manual_seed(5), model.state_dict()
    for name, x in state.items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(1234)
        elif name.endswith("running_var") or x.dim() == 1 and name.endswith("weight"):
            state[name] = 0.5 + torch.rand(x.shape, generator=g)
        elif x.dim() == 1:
            state[name] = 0.2 * torch.randn(x.shape, generator=g)
        else:
            state[name] = torch.randn(x.shape, generator=g) * math.sqrt(2 / x[0].numel())
    return state


def vision_files(program, folder):
    """Yields (name, largest relative difference of logits, True if the saved tensors are equal)."""
    file, back, images = (os.path.join(folder, n) for n in ("in.safetensors", "out.safetensors", "x"))
    for kind, depth, cifar, size, tracked in (("resnet", 18, 1, 32, True), ("resnet", 18, 0, 64, False),
                                              ("resnet", 50, 1, 32, False), ("resnet", 50, 0, 64, True),
                                              ("vgg", 16, 1, 64, False)):
        model = model_of(kind, depth, cifar, size).eval()
        state = trained(model)
        model.load_state_dict(state)
        x = torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(6))
        with open(images, "wb") as f:
            f.write(x.numpy().tobytes())
        untracked = {n: v for n, v in state.items() if not n.endswith("num_batches_tracked")}
        write(file, state if tracked else untracked)
        text = subprocess.run([program, kind, str(depth), str(cifar), str(size), file, back, images],
                              check=True, stdout=subprocess.PIPE, text=True).stdout
        ours = torch.tensor([float(v) for v in text.split()]).reshape(BATCH, CLASSES)
        saved = read(back)
        with torch.no_grad():
            theirs = model(x)
            for p in model.state_dict().values():  # so that old values cannot hide a missing tensor
                p.zero_()
            model.load_state_dict(saved, strict=True)
            again = model(x)
        same = set(saved) == set(untracked) and all(torch.equal(saved[n], untracked[n]) for n in saved)
        worst = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))
        different = float((theirs[0] - theirs[1]).abs().max()) > 0.1  # the logits depend on the image
        name = "%s-%d, %s, %d x %d" % (kind, depth, "CIFAR" if cifar else "ImageNet", size, size)
        yield name, worst, same and different and torch.equal(again, theirs)


def vision_refusals(program, folder):
    """Yields (name, True if the file is rejected with the tensor's name and nothing is saved, stderr)."""
    file, back = os.path.join(folder, "in.safetensors"), os.path.join(folder, "none.safetensors")
    state = trained(ResNet(18, 1))
    stray = dict(state, **{"layer9.0.bn1.num_batches_tracked": torch.tensor(1)})
    short = {n: x for n, x in state.items() if n != "layer2.0.downsample.1.running_var"}
    whole = dict(state, **{"bn1.running_mean": torch.ones(64, dtype=torch.int64)})
    for name, held, words in (
            ("a statistic of no layer", stray, '"layer9.0.bn1.num_batches_tracked" is not one of the'),
            ("a statistic is missing", short, '"layer2.0.downsample.1.running_var" of the model is missing'),
            ("a statistic of integers", whole, '"bn1.running_mean" has dtype I64')):
        write(file, held)
        p = subprocess.run([program, "resnet", "18", "1", "32", file, back, "none"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        yield name, p.returncode == 1 and words in p.stderr and not os.path.exists(back), p.stderr


def vision_names(program):
    """Yields (name, number of different names or shapes)."""
    for kind, depth, cifar, size in (("resnet", 101, 0, 224), ("resnet", 101, 1, 32), ("vgg", 19, 0, 224),
                                     ("vgg", 16, 0, 224)):
        text = subprocess.run([program, kind, str(depth), str(cifar), str(size)],
                              check=True, stdout=subprocess.PIPE, text=True).stdout
        ours = {w[0]: tuple(map(int, w[1:])) for w in map(str.split, text.splitlines())}
        theirs = {n: tuple(x.shape) for n, x in model_of(kind, depth, cifar, size).state_dict().items()
                  if not n.endswith("num_batches_tracked")}
        yield "names of %s-%d at %d" % (kind, depth, size), len(set(ours.items()) ^ set(theirs.items()))


def torchvision_has_the_same_names():
    """Yields (name, number of different names or shapes); nothing without torchvision."""
    try:
        from torchvision import models
    except ImportError:
        return
    for kind, depth in (("resnet", 18), ("resnet", 50), ("resnet", 101), ("vgg", 16), ("vgg", 19)):
        theirs = getattr(models, kind + str(depth))(num_classes=CLASSES).state_dict()
        ours = model_of(kind, depth, 0, 224).state_dict()
        yield "torchvision's %s-%d" % (kind, depth), len(
            {(n, x.shape) for n, x in theirs.items()} ^ {(n, x.shape) for n, x in ours.items()})


def main():
    torch.set_num_threads(1)
    program = companion.build("io/torch_weights")
    with tempfile.TemporaryDirectory() as folder:
        file, back = (os.path.join(folder, n) for n in ("in.safetensors", "out.safetensors"))
        for name, held, meant in variants(weights()):
            write(file, held)
            text = companion.output(program, "gpt2", file, back)
            ours = torch.tensor([float(v) for v in text.split()], dtype=torch.float64)
            theirs = logits(meant).reshape(-1)
            worst = float((ours - theirs).abs().max())
            saved = read(back)
            same = set(saved) == set(meant) and all(torch.equal(saved[n], meant[n]) for n in meant)
            ok = worst < 1e-4 and same and float(theirs.abs().max()) > 1
            companion.result("GPT-2, " + name, ok, "logits differ by %.1e, saved %s" % (worst, "equal" if same else "different"))
        for name, worst, same in vision_files(program, folder):
            companion.result(name, worst < 1e-4 and same, "logits differ by %.1e, saved %s" % (worst, "equal" if same else "different"))
        for name, ok, said in vision_refusals(program, folder):
            companion.result(name + " is rejected", ok, "" if ok else said)
        for name, unlike in (*vision_names(program), *torchvision_has_the_same_names()):
            companion.result(name, not unlike, "%d different" % unlike)
    return companion.end()


if __name__ == "__main__":
    sys.exit(main())
