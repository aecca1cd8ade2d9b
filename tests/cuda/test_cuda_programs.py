#!/usr/bin/env python3
"""[test-all: compiles the GPU companion] Complete programs with --device cuda on the stand-in, compared with
--device cpu: trainers with every strategy and two processes over TCP, and own_loop_cuda."""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GPT = ["build/cuda/train_gpt", "--data", "README.md", "--layers", "1", "--heads", "2", "--dim", "8",
       "--seq", "8", "--batch", "2", "--steps", "12", "--deterministic", "--quiet", "--val-batches", "1",
       "--workers", "2", "--period", "3"]
failures = []


def check(what, ok, why=""):
    print("%s %s%s" % ("ok    " if ok else "FAILED", what, "" if ok else ": %s" % why))
    if not ok:
        failures.append(what)


def run(command, **more):
    env = dict(os.environ, **more)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def losses(options, folder):
    """Returns the loss of every step, and the last line of stdout."""
    path = os.path.join(folder, "run.jsonl")
    r = run(GPT + options + ["--json", path])
    if r.returncode:
        sys.exit("%s: %s" % (" ".join(options), r.stderr))
    with open(path, encoding="utf-8") as f:
        steps = [e["loss"] for e in map(json.loads, f) if e["event"] == "step"]
    return steps, json.loads(r.stdout.splitlines()[-1])


def strategies(folder):
    more = {"bsp": ["--servers", "1"], "osp": ["--servers", "colocated", "--defer", "0.5"]}
    for strategy in ("ssgd", "wfbp", "localsgd", "bsp", "osp", "enp", "dreamddp"):
        words = ["--strategy", strategy, *more.get(strategy, [])]
        cpu, a = losses(words, folder)
        gpu, b = losses([*words, "--device", "cuda"], folder)
        worst = max(abs(x - y) for x, y in zip(cpu, gpu))
        check("%s: 12 steps within 1e-4 of the CPU" % strategy,
              len(cpu) == len(gpu) == 12 and worst < 1e-4 and abs(a["val_loss"] - b["val_loss"]) < 1e-4,
              "%d and %d steps, %g" % (len(cpu), len(gpu), worst))
    half, b = losses(["--device", "cuda", "--numbers", "bf16"], folder)
    worst = max(abs(x - y) for x, y in zip(cpu, half))
    check("dreamddp in bf16: near the CPU, not bit-identical", 0 < worst < 0.05, worst)


def checkpoints(folder):
    """A run that stops and resumes equals a run without a stop."""
    save = os.path.join(folder, "saved")
    _, whole = losses(["--device", "cuda"], folder)
    _, _ = losses(["--device", "cuda", "--save", save, "--steps", "9"], folder)
    _, on = losses(["--device", "cuda", "--resume", save], folder)
    check("a resumed run has the same parameters", whole["param_hash"] == on["param_hash"],
          "%s and %s" % (whole["param_hash"], on["param_hash"]))
    staged = ["--device", "cuda", "--strategy", "ssgd", "--microbatches", "2"]
    _, whole = losses([*staged, "--workers", "1"], folder)
    for before, after in (2, 2), (4, 2):
        save = os.path.join(folder, "%d stages" % before)
        losses([*staged, "--workers", str(before), "--stages", str(before), "--save", save, "--steps", "9"], folder)
        _, on = losses([*staged, "--workers", str(after), "--stages", str(after), "--resume", save], folder)
        check("%d stages resumed as %d have the parameters of one worker" % (before, after),
              whole["param_hash"] == on["param_hash"], "%s and %s" % (whole["param_hash"], on["param_hash"]))


def stages(folder):
    """A pipeline on GPUs is bit-identical to one worker on a GPU."""
    _, one = losses(["--device", "cuda", "--strategy", "ssgd", "--accumulate", "2", "--workers", "1", "--clip", "0.5"], folder)
    for schedule, more in (("1f1b", []), ("zb", ["--recompute"])):
        _, r = losses(["--device", "cuda", "--strategy", "ssgd", "--stages", "2", "--pipeline", schedule, "--microbatches", "2",
                       "--clip", "0.5", *more], folder)
        check("2 stages, %s: the parameters of one worker" % schedule, r["param_hash"] == one["param_hash"],
              "%s and %s" % (r["param_hash"], one["param_hash"]))
    r = run(GPT + ["--device", "cuda", "--numbers", "bf16", "--strategy", "ssgd", "--stages", "2"])
    check("2 stages in bf16: a clear error", r.returncode == 2 and "2 bytes per element" in r.stderr, r.stderr)


def waits(folder):
    """Synchronous launches, and a driver without stream memory operations: both runs end with the same parameters."""
    words = ["--device", "cuda", "--strategy", "dreamddp"]
    _, plain = losses(words, folder)
    for name, value in (("CUDA_LAUNCH_BLOCKING", "1"), ("CUDA_ON_CPU_WAITS", "0")):
        os.environ[name] = value
        _, own = losses(words, folder)
        del os.environ[name]
        check("%s=%s: the same parameters" % (name, value), own["param_hash"] == plain["param_hash"], "%s and %s" % (own["param_hash"], plain["param_hash"]))
    r = run(["build/cuda/cuda/test_cuda_backend"], CUDA_LAUNCH_BLOCKING="1")
    check("CUDA_LAUNCH_BLOCKING=1: the tests of the backend", r.returncode == 0, r.stderr[-300:])


def refusals():
    r = run(GPT + ["--device", "cuda"], CUDA_ON_CPU_DEVICES="0")
    check("without a GPU: a clear error", r.returncode == 1 and "no CUDA device" in r.stderr and
          len(r.stderr.splitlines()) == 1, (r.returncode, r.stderr))
    r = run(GPT + ["--device", "cuda"], CUDA_VISIBLE_DEVICES="")
    check("with an empty CUDA_VISIBLE_DEVICES: an error that says so", r.returncode == 1 and
          "CUDA_VISIBLE_DEVICES is empty" in r.stderr, (r.returncode, r.stderr))
    r = run(GPT + ["--device", "cuda"], DREAMDDP_CUDA_WAITS="yes")
    check("an unknown DREAMDDP_CUDA_WAITS", r.returncode != 0 and "choose auto, 1 or 0" in r.stderr, r.stderr)
    r = run(GPT + ["--device", "gpu"])
    check("an unknown device", r.returncode == 2 and "choose cpu or cuda" in r.stderr, r.stderr)
    r = run(GPT + ["--numbers", "bf16"])
    check("--numbers without a GPU", r.returncode == 2 and "--device cuda" in r.stderr, r.stderr)
    r = run(GPT + ["--device", "cuda", "--numbers", "fp8"])
    check("unknown numbers", r.returncode == 2 and "bf16" in r.stderr, r.stderr)
    for name in ("train_gpt", "train_image"):
        r = run(["build/" + name, "--data", "README.md", "--device", "cuda"])
        check("%s without CUDA names the command" % name, r.returncode == 1 and
              "nvcc -O3 -arch=sm_90a -x cu -I. examples/train/%s.c" % name in r.stderr, (r.returncode, r.stderr))
        with open(os.path.join(ROOT, "examples/train", name + ".c"), encoding="ascii") as f:
            command = re.search(r"nvcc [^*]*", f.read()).group(0)
        check("%s: the command is in its first comment" % name, "-x cu -I. examples/train/%s.c" % name in command
              and "-lnccl" in command, command)


def images():
    data = os.path.join(os.environ.get("DDP_DATA", "data"), "mnist")
    if not os.path.isdir(data):
        print("skipped train_image: %s is missing" % data)
        return
    base = ["build/cuda/train_image", "--model", "mlp", "--data", data, "--steps", "4", "--batch", "4",
            "--held-out", "0", "--quiet", "--deterministic", "--hidden", "16"]
    out = []
    for device in ("cpu", "cuda"):
        r = run(base + ["--device", device])
        if r.returncode:
            check("train_image --device " + device, False, r.stderr)
            return
        out.append(json.loads(r.stdout.splitlines()[-1]))
    check("train_image: the CPU's losses", abs(out[0]["final_loss"] - out[1]["final_loss"]) < 1e-4, out)


def own_loop(folder):
    """Returns the text with its kernel launches in the syntax of the stand-in."""
    with open(os.path.join(ROOT, "examples/own_loop_cuda.cu"), encoding="ascii") as f:
        text = f.read()
    text, n = re.subn(r"(\w+)<<<(.*?), (.*?), 0, s>>>\(", r'cuda_on_cpu::launch("\1", dim3((unsigned)(\2)), '
                      r"dim3((unsigned)(\3)), 0, s, \1, ", text)
    text = text.replace("STEPS = 400", "STEPS = 8").replace("step % 50 != 49", "step % 4 != 3")
    source, program = os.path.join(folder, "own.cc"), os.path.join(folder, "own")
    with open(source, "w", encoding="ascii") as f:
        f.write(text)
    build = (os.environ.get("CXX", "g++").split() +
             "-std=c++17 -O1 -isystem build/include -DDDP_CUDA_ON_CPU -DDDP_SEPARATE -DDDP__CUDA_IMPLEMENTED "
             "-include tests/heap.h -include tests/cuda_on_cpu/cuda_runtime.h -isystem tests/cuda_on_cpu "
             "-Ibuild/headers -Isrc".split() +
             [source, "build/cuda/companion.o", "build/plain/dreamddp.a", "-o", program, "-lm", "-lpthread"])
    tls = subprocess.run("nm build/plain/dreamddp.a 2>/dev/null | grep -q ' U SSL_new'", shell=True, cwd=ROOT)
    r = run(build + (["-lssl", "-lcrypto"] if tls.returncode == 0 else []))
    if r.returncode or n < 5:
        check("own_loop_cuda compiles", False, r.stderr[:2000])
        return
    env = dict(os.environ, DREAMDDP_WORLD_SIZE="2", DREAMDDP_ADDR="file://" + os.path.join(folder, "meet"))
    ranks = [subprocess.Popen([program], env=dict(env, DREAMDDP_RANK=str(r)), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for r in range(2)]
    out = [p.communicate(timeout=100) for p in ranks]
    hashes = re.findall(r"parameters (\w+)", out[0][0] + out[1][0])
    loss = [float(x) for x in re.findall(r"loss ([\d.]+)", out[0][0])]
    check("own_loop_cuda: two workers end with equal parameters, and learn",
          len(hashes) == 2 and hashes[0] == hashes[1] and len(loss) == 2 and loss[1] < loss[0], out)
    r = run([program], CUDA_ON_CPU_DEVICES="0")
    check("own_loop_cuda without a GPU", r.returncode == 1 and "cannot use a GPU: no CUDA-capable device" in r.stderr, r.stderr)


def main():
    if not os.path.exists(os.path.join(ROOT, "build/cuda/train_gpt")):
        sys.exit("build/cuda/train_gpt is missing: make build/cuda/train_gpt")
    with tempfile.TemporaryDirectory() as folder:
        strategies(folder)
        checkpoints(folder)
        stages(folder)
        waits(folder)
        refusals()
        images()
        own_loop(folder)
    sys.exit(1 if failures else 0)


main()
