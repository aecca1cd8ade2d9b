#!/usr/bin/env python3
"""Training steps of GPT-2 and Llama-2: build/bench_step compared with PyTorch, in alternation.

    bench/torch_gpt.py [--quick] [--only WORD] [--threads 1,2] [--rounds 2] [--steps 3] [--json FILE]
                       [--python PROGRAM] [--ways eager,compile]

Both sides have the same model, sizes, precision (float32), optimizer (AdamW) and threads. Each run is a separate process, its first step
does not count, and the fastest of all rounds counts. PyTorch is tuned: glibc keeps memory instead of returning it after every operator, and
OpenBLAS is the OpenMP build if it is installed. `untuned` is PyTorch's peak memory without this. --python names the interpreter with the
PyTorch to compare with; from 2.0 on it uses its fused attention and AdamW. The faster one of several --ways counts. CPU: processor seconds
of a step, which other load changes less than the clock. Exit 77: no PyTorch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..")
OURS = os.path.join(ROOT, "build", "bench_step")
TUNED = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "17179869184",
         "MALLOC_TOP_PAD_": "268435456"}
OPENMP_BLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"

SMALL = dict(layers=6, heads=6, dim=384, seq=256, batch=4, vocab=50304)
CELLS = {  # name: sizes, least ratio of tokens/s at 1 and 2 threads, most of peak memory
    "GPT-2 small": (dict(SMALL, model="gpt2"), (1.15, 1.10), 0.65),
    "Llama small": (dict(SMALL, model="llama2", hidden=1024), (1.0, 1.0), None),
    "GPT-2 124M": (dict(model="gpt2", layers=12, heads=12, dim=768, seq=64, batch=4, vocab=50304),
                   (1.0, 1.05), 0.85),
}


def shapes(model, layers, heads, dim, seq, vocab, hidden=0, **_):
    """The parameters, in the library's order."""
    if model == "gpt2":
        norm = [(dim,), (dim,)]
        block = norm + [(3 * dim, dim), (3 * dim,), (dim, dim), (dim,)]
        block += norm + [(4 * dim, dim), (4 * dim,), (dim, 4 * dim), (dim,)]
        return [(vocab, dim), (seq, dim)] + layers * block + norm
    block = [(dim,), (3 * dim, dim), (dim, dim), (dim,), (2 * hidden, dim), (dim, hidden)]
    return [(vocab, dim)] + layers * block + [(dim,), (vocab, dim)]


def peak_mb():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def child(sizes, threads, steps, way):
    """Measures PyTorch in this process and prints one JSON object."""
    try:
        import torch
        import torch.nn.functional as F
    except ImportError:
        sys.exit(77)
    sys.path.insert(0, os.path.join(ROOT, "tests/nn"))
    import torch_models
    torch_models.SDPA = modern = int(torch.__version__.split(".")[0]) >= 2
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    params = [torch.ones(s) if len(s) == 1 else 0.02 * torch.randn(s)
              for s in shapes(**sizes)]
    params = [p.requires_grad_() for p in params]
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
                                  **({"fused": True} if modern else {}))
    model = torch_models.MODELS[sizes["model"]]

    def loss_of(tokens, labels):
        logits = model(params, tokens, heads=sizes["heads"], kv_heads=sizes["heads"])
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    if way == "compile":
        loss_of = torch.compile(loss_of)
    took, cpu = [], 0.0
    for step in range(-1, steps):
        if step == 0:
            cpu = time.process_time()
        begin = time.monotonic()
        tokens, labels = (torch.randint(sizes["vocab"], (sizes["batch"], sizes["seq"]))
                          for _ in range(2))
        loss = loss_of(tokens, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.append(time.monotonic() - begin)
    took = sorted(took[1:])
    print(json.dumps({"version": torch.__version__, "way": way, "params": sum(p.numel() for p in params), "step_s": took[0],
                      "median_s": statistics.median(took), "peak_rss_mb": peak_mb(),
                      "cpu_s": (time.process_time() - cpu) / steps, "loss": float(loss)}))


def run(command, env=None):
    done = subprocess.run(command, env=dict(os.environ, **(env or {})), capture_output=True, text=True)
    if done.returncode == 77:
        print("skipped: PyTorch is not installed")
        sys.exit(77)
    if done.returncode:
        sys.exit("torch_gpt.py: %s: %s" % (command[0], done.stderr.strip()[-500:]))
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(sizes, threads, steps):
    options = [x for k, v in sizes.items() for x in ("--" + k, str(v))]
    return run([OURS, *options, "--threads", str(threads), "--steps", str(steps)])


def theirs(python, way, sizes, threads, steps, tuned=True):
    env = {"OMP_NUM_THREADS": str(threads), **(TUNED if tuned else {})}
    if os.path.isdir(OPENMP_BLAS):
        env["LD_LIBRARY_PATH"] = OPENMP_BLAS
    return run([python, os.path.abspath(__file__), "--child", json.dumps(sizes), str(threads),
                str(steps), way], env)


def measure(name, threads, args):
    sizes, least, most = CELLS[name]
    results = {"ours": [], "theirs": []}
    for _ in range(args.rounds):
        results["ours"].append(ours(sizes, threads, args.steps))
        results["theirs"] += [theirs(args.python, w, sizes, threads, args.steps) for w in args.ways.split(",")]
    a, b = (min(results[k], key=lambda r: r["step_s"]) for k in ("ours", "theirs"))
    if a["params"] != b["params"]:
        sys.exit("torch_gpt.py: %d parameters here, %d there" % (a["params"], b["params"]))
    cpu = [min(r["cpu_s"] for r in results[k]) for k in ("ours", "theirs")]
    tokens = sizes["seq"] * sizes["batch"]
    untuned = theirs(args.python, b["way"], sizes, threads, 1, tuned=False)["peak_rss_mb"] if threads == 1 else None
    row = {"cell": name, "torch": b["version"], "way": b["way"], "threads": threads, "params": a["params"],
           "tokens_per_s": tokens / a["step_s"], "torch_tokens_per_s": tokens / b["step_s"],
           "ratio": b["step_s"] / a["step_s"], "least": least[min(threads, 2) - 1],
           "cpu_s": cpu[0], "torch_cpu_s": cpu[1], "cpu_ratio": cpu[1] / cpu[0],
           "peak_rss_mb": a["peak_rss_mb"], "torch_peak_rss_mb": b["peak_rss_mb"],
           "untuned_peak_rss_mb": untuned}
    print("| %s | %.1fM | %d | %.0f | %.0f (%s) | **%.2f** (>= %.2f) | %.2f | %.2f | %.2f | %.0f | %.0f | %s |"
          % (name, a["params"] / 1e6, threads, row["tokens_per_s"], row["torch_tokens_per_s"],
             b["way"], row["ratio"], row["least"], *cpu, row["cpu_ratio"], row["peak_rss_mb"],
             row["torch_peak_rss_mb"], "" if untuned is None else "%.0f: %.2f%s" % (
                 untuned, a["peak_rss_mb"] / untuned, " (<= %.2f)" % most if most else "")), flush=True)
    return row


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--child":
        return child(json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, one step, the small models")
    parser.add_argument("--only", default="", help="models whose name has this word")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", help="file for a JSON line per row")
    parser.add_argument("--python", help="the interpreter that has PyTorch",
                        default="/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable)
    parser.add_argument("--ways", default="eager", help="eager, compile (PyTorch 2) or both")
    args = parser.parse_args()
    if args.quick:
        args.rounds = args.steps = 1
        args.only = args.only or "small"
    if not os.path.exists(OURS):
        sys.exit("torch_gpt.py: build/bench_step is missing; run make")
    print("| model | parameters | threads | tokens/s | PyTorch | ratio | CPU s | PyTorch | ratio "
          "| peak MB | PyTorch | untuned, ratio |\n" + "|---" * 12 + "|", flush=True)
    rows = [measure(name, int(t), args) for name in CELLS if args.only in name
            for t in args.threads.split(",")]
    if args.json:
        with open(args.json, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
