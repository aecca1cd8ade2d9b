#!/usr/bin/env python3
"""Everything that needs a GPU, in one run of under 8 minutes: `make gpu-check`.

    tools/gpu_check.py [--small] [--sanitize] [--no-bench]

1. builds with nvcc for the GPU that is here: tests/test_cuda_*.cu, the trainers, bench_gpu;
2. runs the tests: every operator against the CPU, the backend, NCCL with the GPUs there are;
3. trains 50 steps on the CPU and on the GPU from the same seed: the curves must stay together;
4. trains with two processes that share the GPU over TCP under every strategy: no failure, equal
   replicas, a loss like the CPU's;
5. runs bench/gpu.py.

--small: short runs and `bench/gpu.py --quick`. --sanitize: the tests of step 2 under
compute-sanitizer's memcheck, racecheck and synccheck, where it is installed. The last line counts
what passed, failed and was skipped. Exit 0, 1, or 77 without a GPU.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = dict(model="gpt2", layers=2, heads=4, dim=64, seq=64, batch=8, data="dreamddp.h", lr=1e-3, seed=1)
GAP = {"f32": 2e-3, "tf32": 1e-2, "bf16": 4e-2}  # largest relative distance of two losses of one step


class Score:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, name, fault, begin, skipped=False):
        word = "skipped" if skipped else "FAILED" if fault else "ok"
        self.skipped += skipped
        self.failed += bool(fault) and not skipped
        self.passed += not fault and not skipped
        print("%-44s %-7s %6.1f s%s" % (name, word, time.monotonic() - begin, "  " + fault if fault else ""),
              flush=True)


def say(code, text):
    print(text)
    sys.exit(code)


def find_gpu():
    """(name, driver, architecture) of the first GPU; ends the program where there is none."""
    if not shutil.which("nvidia-smi"):
        say(77, "gpu-check: skipped, no NVIDIA GPU was found here (there is no nvidia-smi)")
    out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    if out.count(",") < 2:
        say(77, "gpu-check: skipped, no NVIDIA GPU was found here (nvidia-smi lists none)")
    name, driver, capability = [w.strip() for w in out.splitlines()[0].split(",")]
    if not shutil.which("nvcc"):
        say(77, "gpu-check: skipped, there is a GPU (%s) but no nvcc to compile with" % name)
    return name, driver, capability.replace(".", "")


def build(arch, names):
    """What make said; every core compiles."""
    words = ["make", "--no-print-directory", "-s", "-k", "-j%d" % (os.cpu_count() or 2),
             "NVCC_DIR=build/gpu"] + [
                 "%s=-O3 -gencode arch=compute_%s,code=sm_%s" % (n, arch, arch) for n in ("NVCC_ARCHS", "NVCC_TEST")] + [
                     "build/train_gpt"]
    done = subprocess.run(words + ["build/gpu/" + n for n in names], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.stdout


def run(command, seconds=300, **more):
    """(exit code or None, stdout, the end of stderr)"""
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=seconds, **more)
        return done.returncode, done.stdout, (done.stdout + done.stderr).strip()[-1500:]
    except subprocess.TimeoutExpired:
        return None, "", "timed out after %d s" % seconds


def check_tests(tests, score, tools):
    for test in tests:
        for tool in tools:
            begin = time.monotonic()
            words = ["build/gpu/" + test]
            if tool:
                words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"] + words
            code, _, end = run(words, 300)
            fault = "" if code in (0, 77) else "exit code %s: %s" % (code, end)
            score.add(test + (" under " + tool if tool else ""), fault, begin, code == 77)


def losses(path):
    with open(path, encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    return [e["loss"] for e in events if e.get("event") == "step"]


def words_of(options):
    return [w for k, v in options.items() for w in ("--" + k.replace("_", "-"), str(v))]


def check_curves(score, folder, steps):
    curve = {}
    for where, program, more in [("cpu", "build/train_gpt", [])] + [
            (n, "build/gpu/train_gpt", ["--device", "cuda", "--numbers", n]) for n in GAP]:
        begin = time.monotonic()
        path = os.path.join(folder, where + ".jsonl")
        code, _, end = run([program, *words_of(MODEL), "--steps", str(steps), "--json", path, "--quiet", *more])
        fault = "" if code == 0 else "exit code %s: %s" % (code, end)
        if not fault:
            curve[where] = losses(path)
            if len(curve[where]) < steps:
                fault = "%d of %d steps in %s" % (len(curve[where]), steps, path)
        if not fault and where != "cpu" and "cpu" in curve:
            gap = max(abs(a - b) / b for a, b in zip(curve[where], curve["cpu"]))
            if not gap <= GAP[where]:
                fault = "losses differ from the CPU's by up to %g of them; at most %g is fine" % (gap, GAP[where])
        score.add("%d steps, %s" % (steps, where), fault, begin)
    return curve


def strategies():
    """Those that the trainer names when it refuses one."""
    _, _, end = run(["build/train_gpt", "--data", "dreamddp.h", "--strategy", "none-of-them"])
    return re.findall(r"[a-z]+", end.partition("choose ")[2].replace(" or ", ", "))


def check_strategies(score, steps):
    names = strategies()
    if not names:
        score.add("two processes, tcp", "the trainer names no strategies", time.monotonic())
    for strategy in names:
        begin = time.monotonic()
        options = dict(MODEL, batch=4, steps=steps, workers=2, transport="tcp", strategy=strategy, net="1gbit,1ms")
        ends = []
        fault = ""
        for program, more in (("build/train_gpt", []), ("build/gpu/train_gpt", ["--device", "cuda"])):
            code, out, end = run([program, *words_of(options), "--quiet", *more], 120)
            if code != 0:
                fault = "%s: exit code %s: %s" % (program, code, end)
                break
            ends.append(json.loads(out.strip().splitlines()[-1])["final_loss"])
        if not fault and not abs(ends[0] - ends[1]) <= 0.1 * ends[0]:
            fault = "ends at a loss of %g, on the CPU at %g" % (ends[1], ends[0])
        score.add("two processes, tcp, " + strategy, fault, begin)


def main(argv):
    if any(a not in ("--small", "--sanitize", "--no-bench") for a in argv):
        sys.stderr.write(__doc__)
        return 2
    small, begin, score = "--small" in argv, time.monotonic(), Score()
    name, driver, arch = find_gpu()
    print("%s, driver %s, sm_%s, %s" % (name, driver, arch, time.strftime("%Y-%m-%d")), flush=True)
    tests = sorted(f[:-3] for f in os.listdir(os.path.join(ROOT, "tests"))
                   if f.startswith("test_cuda_") and f.endswith(".cu"))
    names = tests + ["train_gpt", "train_image", "bench_gpu"]
    output = build(arch, names)
    missing = [n for n in names if not os.path.exists(os.path.join(ROOT, "build", "gpu", n))]
    score.add("build", "not built: %s: %s" % (" ".join(missing), output[-2000:]) if missing else "", begin)
    tools = [""]
    if "--sanitize" in argv:
        if shutil.which("compute-sanitizer"):
            tools = ["memcheck", "racecheck", "synccheck"]
        else:
            score.add("compute-sanitizer is not installed", "", time.monotonic(), True)
    check_tests([t for t in tests if t not in missing], score, tools)
    if "train_gpt" not in missing and "--sanitize" not in argv:
        with tempfile.TemporaryDirectory() as folder:
            check_curves(score, folder, 10 if small else 50)
        check_strategies(score, 8 if small else 20)
    if not missing and "--no-bench" not in argv and "--sanitize" not in argv:
        at = time.monotonic()
        code, out, end = run([sys.executable, "bench/gpu.py", "--json", "build/gpu.jsonl"] + ["--quick"] * small, 420)
        print(out, flush=True)
        score.add("bench/gpu.py", "" if code == 0 else "exit code %s: %s" % (code, end), at)
    print("in %.0f s" % (time.monotonic() - begin))
    print("%d passed, %d failed, %d skipped" % (score.passed, score.failed, score.skipped))
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
