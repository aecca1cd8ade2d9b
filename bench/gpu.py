#!/usr/bin/env python3
"""Training on a GPU compared with PyTorch on the same device, and kernels compared with a copy.

    bench/gpu.py [--quick] [--steps 30] [--rounds 2] [--only WORD] [--json FILE] [--seconds N]

Prints the tables of docs/results/gpu.md: device, driver and date; tokens/s, MFU and device memory of GPT-2 124M (32 x 1024) in bfloat16,
TF32 and float32, of a Llama of 176 M parameters, and of ResNet-50 on images of 32 x 32. Each alternates with PyTorch eager and
torch.compile (autocast for bfloat16, SDPA attention, fused AdamW). Then: the kernels of bench/bench_gpu.cu; Top-K against torch.topk; two
workers on one GPU over an emulated 1 Gbit/s, whose step time and overlapped share are compared with the prediction, and the device memory
of dreamddp beyond training alone. A missed goal is marked and counted. Parts are independent: a part that fails or does not fit into
--seconds prints one error, and the others continue. FILE grows as parts end. --quick: small sizes. Exit 77: no GPU; 1: a part failed.

MFU counts 6 N + 6 L C T operations per token (N parameters, L blocks of width C, T tokens), relative to the dense bfloat16 peak of the
device for every number format. Needs build/gpu/train_gpt, train_image and bench_gpu (`make gpu-check` builds them).
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILT = os.path.join(ROOT, "build", "gpu")
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16 operations per second, SXM

GPT2 = dict(model="gpt2", layers=12, heads=12, dim=768, seq=1024, batch=32, vocab=50304)
LLAMA = dict(model="llama2", layers=12, heads=12, dim=768, hidden=3072, seq=1024, batch=32, vocab=32000)
CELLS = {  # name: sizes, numbers, least ratio to torch.compile
    "GPT-2 124M bf16": (GPT2, "bf16", 0.85),
    "Llama 176M bf16": (LLAMA, "bf16", 0.85),
    "GPT-2 124M tf32": (GPT2, "tf32", None),
    "GPT-2 124M f32": (dict(GPT2, batch=8), "f32", None),
}


class Failed(Exception):
    pass


class Clock:
    until = float("inf")

    def left(self):
        return self.until - time.monotonic()


CLOCK = Clock()


def gpu():
    """Returns (name, driver) of GPU 0. Ends the program if there is none."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except OSError:
        out = ""
    if "," not in out:
        print("skipped: no NVIDIA GPU was found here (nvidia-smi lists none)")
        sys.exit(77)
    name, driver = out.splitlines()[0].split(", ")
    return name, driver


class Memory:
    """The largest number of megabytes that the block adds on GPU 0."""

    def used(self):
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        try:
            return float(out.split()[0])
        except (IndexError, ValueError): # a driver without this value
            return float("nan")

    def watch(self):
        while not self.over.wait(0.1):
            self.top = max(self.top, self.used())

    def __enter__(self):
        self.before = self.top = self.used()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.mb = self.top - self.before


def output(command, most=300, **more):
    """Runs a command under a time-out and kills its remaining processes. Returns (exit code, stdout)."""
    most = min(most, CLOCK.left())
    if most < 1:
        raise Failed("no time is left")
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                         start_new_session=True, **more)
    try:
        out, err = p.communicate(timeout=most)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        raise Failed("%s: timed out after %.0f s" % (os.path.basename(command[0]), most)) from None
    if p.returncode not in (0, 77):
        raise Failed("%s: %s" % (" ".join(command)[:300], err.strip()[-800:]))
    return p.returncode, out


def last_object(command):
    code, out = output(command)
    return None if code == 77 else json.loads(out.strip().splitlines()[-1])


def trainer(program, options, numbers, steps):
    words = [x for k, v in options.items() for x in ("--" + k.replace("_", "-"), str(v))]
    return [os.path.join(BUILT, program), *words, "--device", "cuda", "--numbers", numbers, "--steps", str(steps),
            "--quiet"]


def ours(sizes, numbers, steps, **more):
    with Memory() as memory:
        r = last_object(trainer("train_gpt", dict(sizes, data="dreamddp.h", val_batches=1, lr=3e-4, **more), numbers,
                                steps))
    r["memory_mb"] = memory.mb
    return r


# ---- the same in PyTorch ----

def torch_model(sizes):
    import torch
    import torch.nn.functional as F
    from torch import nn
    gpt2, c, heads = sizes["model"] == "gpt2", sizes["dim"], sizes["heads"]
    hidden = sizes.get("hidden") or 4 * c

    class RMSNorm(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(n))

        def forward(self, x):
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.LayerNorm if gpt2 else RMSNorm
            self.n1, self.n2 = norm(c), norm(c)
            self.qkv, self.out = nn.Linear(c, 3 * c, bias=gpt2), nn.Linear(c, c, bias=gpt2)
            self.up = nn.Linear(c, hidden if gpt2 else 2 * hidden, bias=gpt2)
            self.down = nn.Linear(hidden, c, bias=gpt2)

        def forward(self, x, turn):
            b, t, _ = x.shape
            q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(c, 2))
            if turn is not None:
                cos, sin = turn
                half = q.shape[-1] // 2
                q, k = (y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin for y in (q, k))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            u = self.up(self.n2(x))
            if gpt2:
                return x + self.down(F.gelu(u, approximate="tanh"))
            a, g = u.chunk(2, -1)
            return x + self.down(F.silu(a) * g)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(sizes["vocab"], c)
            self.position = nn.Embedding(sizes["seq"], c) if gpt2 else None
            self.blocks = nn.ModuleList(Block() for _ in range(sizes["layers"]))
            self.norm = nn.LayerNorm(c) if gpt2 else RMSNorm(c)
            self.head = nn.Linear(c, sizes["vocab"], bias=False)
            if gpt2:
                self.head.weight = self.table.weight
            d = c // heads
            angle = torch.outer(torch.arange(sizes["seq"]).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
            angle = torch.cat((angle, angle), 1)
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, tokens, labels):
            x, turn = self.table(tokens), None
            if self.position is not None:
                x = x + self.position.weight[:tokens.shape[1]]
            else:
                turn = self.cos.to(x.dtype), self.sin.to(x.dtype)
            for block in self.blocks:
                x = block(x, turn)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())

    return Model()


def torch_resnet50():
    """The library's ResNet for images of 32 x 32: the stem is one 3 x 3 convolution."""
    import torch.nn.functional as F
    from torch import nn

    def conv(before, after, kernel, stride=1):
        return nn.Sequential(nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after))

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            self.one, self.two = conv(before, width, 1), conv(width, width, 3, stride)
            self.three = conv(width, 4 * width, 1)
            self.short = conv(before, 4 * width, 1, stride) if before != 4 * width or stride > 1 else nn.Identity()

        def forward(self, x):
            return F.relu(self.three(F.relu(self.two(F.relu(self.one(x))))) + self.short(x))

    parts, before = [conv(3, 64, 3), nn.ReLU()], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for k in range(blocks):
            parts.append(Block(before, 64 << stage, 2 if stage and not k else 1))
            before = 256 << stage
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


def child(sizes, numbers, compiled, steps):
    """Measures PyTorch in this process and prints one JSON object."""
    try:
        import torch
    except ImportError:
        sys.exit(77)
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = numbers != "f32"
    image = "images" in sizes
    if image:
        model = torch_resnet50().cuda().to(memory_format=torch.channels_last)
        data = torch.randn(sizes["images"], 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(10, (sizes["images"],), device="cuda")
        loss_of = lambda: torch.nn.functional.cross_entropy(model(data).float(), labels)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        model = torch_model(sizes).cuda()
        data, labels = (torch.randint(sizes["vocab"], (sizes["batch"], sizes["seq"]), device="cuda") for _ in "ab")
        loss_of = lambda: model(data, labels)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    params = sum(p.numel() for p in model.parameters())
    if compiled:
        model = torch.compile(model)
    took = []
    for step in range(-5, steps):
        torch.cuda.synchronize()
        begin = time.monotonic()
        with torch.autocast("cuda", torch.bfloat16, enabled=numbers == "bf16"):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= 0:
            took.append(time.monotonic() - begin)
    print(json.dumps({"params": params, "step_ms": 1e3 * statistics.median(took),
                      "memory_mb": torch.cuda.max_memory_reserved() / 2**20, "torch": torch.__version__}))


def theirs(sizes, numbers, compiled, steps):
    """Returns None, after a message, if PyTorch is missing or fails."""
    try:
        return last_object([sys.executable, os.path.abspath(__file__), "--child", json.dumps(sizes), numbers,
                            str(int(compiled)), str(steps)])
    except Failed as e:
        print("PyTorch %s: %s" % ("compiled" if compiled else "eager", e), file=sys.stderr, flush=True)
        return None


# ---- tables ----

class Reach:
    def __init__(self):
        self.missed = 0

    def mark(self, value, least, most=False):
        ok = value <= least if most else value >= least
        self.missed += not ok
        return "%.2f (%s %.2f%s)" % (value, "<=" if most else ">=", least, "" if ok else ", MISSED")


def model_row(name, args, peak, reach, rows):
    sizes, numbers, least = CELLS[name]
    if args.quick:
        sizes = dict(sizes, batch=2, seq=256)
    a, eager, fast = [], [], []
    begin = time.monotonic()
    for i in range(args.rounds):
        if i and CLOCK.left() < (time.monotonic() - begin) / i:
            break
        a.append(ours(sizes, numbers, args.steps))
        eager.append(theirs(sizes, numbers, False, args.steps))
        fast.append(theirs(sizes, numbers, True, args.steps))
    tokens = sizes["batch"] * sizes["seq"]
    best, e, c = (min(filter(None, r), key=lambda x: x["step_ms"], default=None) for r in (a, eager, fast))
    rate = 1e3 * tokens / best["step_ms"]
    row = {"cell": name, "rounds": len(a), "tokens_per_s": rate, "memory_mb": best["memory_mb"]}
    words = ["-"] * 4
    if e:
        row.update(eager=1e3 * tokens / e["step_ms"], torch=e["torch"])
        words[0] = "%.0f" % row["eager"]
    if c:
        row.update(compiled=1e3 * tokens / c["step_ms"], ratio=c["step_ms"] / best["step_ms"], torch=c["torch"])
        words[1] = "%.0f" % row["compiled"]
        words[2] = reach.mark(row["ratio"], least) if least and not args.quick else "%.2f" % row["ratio"]
    if peak and (e or c):
        row["mfu"] = rate * (6 * (e or c)["params"] + 6 * sizes["layers"] * sizes["dim"] * sizes["seq"]) / peak
        words[3] = "%.1f %%" % (100 * row["mfu"])
    print("| %s | %.0f | %s | %.0f |" % (name, rate, " | ".join(words), best["memory_mb"]), flush=True)
    rows.append(row)


def noise(folder, name, images):
    """Random images in the format of CIFAR-10: a label, then a plane per colour."""
    with open(os.path.join(folder, name), "wb") as f:
        for i in range(images):
            f.write(bytes([i % 10]) + os.urandom(3 * 32 * 32))


def image_row(args, reach, rows):
    images = 8 if args.quick else 256
    with tempfile.TemporaryDirectory() as data:
        noise(data, "data_batch_1.bin", 4 * images)
        noise(data, "test_batch.bin", images)
        r = last_object(trainer("train_image", dict(model="resnet50", batch=images, optimizer="sgd", data=data), "bf16",
                                args.steps))
    t = theirs({"images": images}, "bf16", True, args.steps)
    row = {"cell": "ResNet-50 bf16", "images_per_s": r["images_per_s"]}
    if t:
        row["ratio"] = r["images_per_s"] * t["step_ms"] / 1e3 / images
    print("| ResNet-50 bf16 (images/s) | %.0f | - | - | %s | - | - |" % (
        r["images_per_s"], "-" if not t else "%.2f" % row["ratio"] if args.quick else reach.mark(row["ratio"], 0.6)),
          flush=True)
    rows.append(row)


def kernels(args, reach, rows):
    least = {"adamw": 0.85, "cross_entropy forward": 0.8, "cross_entropy backward": 0.8}
    _, out = output([os.path.join(BUILT, "bench_gpu")] + ["--small"] * args.quick, 120)
    print("| kernel | ms | GB/s | of a copy | TFLOP/s |\n|---|---|---|---|---|")
    for line in out.splitlines():
        r = json.loads(line)
        rows.append(r)
        if r["event"] == "gpu_kernel":
            share = "%.2f" % r["share"]
            if r["what"] in least and not args.quick:
                share = reach.mark(r["share"], least[r["what"]])
            print("| %s | %.3f | %.0f | %s | %.0f |" % (r["what"], r["ms"], r["gb_per_s"], share, r["tflops"]))
        if r["event"] == "gpu_graphs":
            print("\nA step of a small GPT-2 with CUDA graphs: %.3f ms, without %.3f ms" % (r["ms"], r["plain_ms"]))
        if r["event"] == "gpu_topk":
            try:
                t = last_object([sys.executable, "-c", TOPK % (r["n"], r["k"])])
            except Failed as e:
                print("torch.topk: %s" % e, file=sys.stderr)
                t = None
            words = "reads of the array: " + (reach.mark(r["reads"], 4, True) if not args.quick else "%.2f" % r["reads"])
            if t:
                r["torch_ms"] = t["ms"]
                words += "; torch.topk takes %.3f ms: " % t["ms"] + (
                    reach.mark(t["ms"] / r["ms"], 5) if not args.quick else "%.1f" % (t["ms"] / r["ms"]))
            print("\nTop-K of %d, k = %d: %s" % (r["n"], r["k"], words))


TOPK = """
import json, sys, time
try:
    import torch
except ImportError:
    sys.exit(77)
x, took = torch.randn(%d, device="cuda") ** 3, []
for i in range(23):
    torch.cuda.synchronize(); begin = time.monotonic()
    at = torch.topk(x.abs(), %d, sorted=False).indices; value = x[at]
    torch.cuda.synchronize(); took.append(time.monotonic() - begin)
print(json.dumps({"ms": 1e3 * sorted(took[3:])[10]}))
"""


def slow_link(args, reach, rows):
    """Two workers on this GPU over an emulated 1 Gbit/s, H = 10."""
    sizes = dict(GPT2, batch=4, **(dict(seq=128) if args.quick else {}))
    steps = 40 if args.quick else 120
    alone = ours(sizes, "bf16", 20)
    r = ours(sizes, "bf16", steps, workers=2, transport="tcp", strategy="dreamddp", period=10, net="1gbit,1ms")
    off = abs(r["step_ms"] - r["predicted_step_ms"]) / r["predicted_step_ms"]
    hidden = abs(r["hidden_pct"] - r["predicted_hidden_pct"]) / 100
    more = r["memory_mb"] / 2 - alone["memory_mb"]
    marks = [(lambda v, m: reach.mark(v, m, True)), (lambda v, m: "%.2f" % v)][args.quick]
    print("\nTwo workers on one GPU over 1 Gbit/s, GPT-2 124M, H = 10: step %.1f ms, predicted %.1f ms, off by %s; "
          "hidden %.1f %%, predicted %.1f %%, off by %s; device memory of a worker beyond training alone: %s MiB" %
          (r["step_ms"], r["predicted_step_ms"], marks(off, 0.05), r["hidden_pct"], r["predicted_hidden_pct"],
           marks(hidden, 0.05), marks(more, 64)))
    rows.append(dict(r, cell="two workers, 1 Gbit/s", more_memory_mb=more))


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--child":
        return child(json.loads(sys.argv[2]), sys.argv[3], sys.argv[4] == "1", int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, no goals")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--json", help="file for the rows")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit; the remaining parts are skipped")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.rounds = 6, 1
    CLOCK.until = time.monotonic() + args.seconds
    name, driver = gpu()
    peak = next((v for k, v in PEAK.items() if k in name), None)
    reach, rows = Reach(), [{"event": "gpu", "name": name, "driver": driver, "date": time.strftime("%Y-%m-%d")}]
    print("%s, driver %s, %s\n" % (name, driver, time.strftime("%Y-%m-%d")), flush=True)
    parts = [("kernels", lambda: kernels(args, reach, rows)), ("link", lambda: slow_link(args, reach, rows))]
    parts += [(cell, lambda cell=cell: model_row(cell, args, peak, reach, rows)) for cell in CELLS]
    parts.insert(4, ("ResNet-50", lambda: image_row(args, reach, rows)))
    failed = 0
    for number, (part, run) in enumerate(parts):
        if number == 2:
            print("\n| training | tokens/s | PyTorch eager | torch.compile | ratio to it | MFU | device MB |\n" +
                  "|---" * 7 + "|", flush=True)
        if args.only not in part:
            continue
        try:
            run()
        except (Failed, ArithmeticError, IndexError, KeyError, OSError, TypeError, ValueError) as e:
            print("%s: FAILED: %s" % (part, e if isinstance(e, Failed) else repr(e)), flush=True)
            failed += 1
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                f.writelines(json.dumps(r) + "\n" for r in rows)
    print("\n%d of the reaches were missed, %d of the parts failed" % (reach.missed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
