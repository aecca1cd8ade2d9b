#!/usr/bin/env python3
"""Runs all checks that need a GPU in under 8 minutes: `make gpu-check`.

    tools/gpu_check.py [--small] [--sanitize] [--no-bench] [--seconds 480]

0. finds the headers and libraries of STB, cmocka, NCCL and cuBLAS: in the compiler's folders, in
   build/include and build/lib, or in pip's packages of NCCL and cuBLAS;
1. builds with nvcc for this machine's GPU: tests/cuda/test_cuda_*.cu, the trainers, bench_gpu;
2. runs the tests: every operator compared with the CPU, the backend, NCCL with all GPUs;
3. trains 50 steps at sequence length 256 on the CPU and on the GPU from the same seed: the losses must stay
   close;
4. trains with two processes that share the GPU, over TCP, with every strategy: no failure, equal
   replicas, a loss near the CPU's;
5. runs bench/gpu.py, which appends to build/gpu.jsonl.

Checks that do not start within --seconds are counted as skipped, so that there is always a report.

--small: short runs and `bench/gpu.py --quick`. --sanitize: the tests of step 2 under
compute-sanitizer's memcheck, racecheck and synccheck, if it is installed. The last line counts
passed, failed and skipped checks. Exit 0, 1, or 77 without a GPU.
"""
import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# seq covers four tiles of 64 keys, because an error in attention may appear only from the second tile on
MODEL = dict(model="gpt2", layers=2, heads=4, dim=64, seq=256, batch=8, data="dreamddp.h", lr=1e-3, seed=1)
WAYS = {"bsp": dict(servers=1), "asp": dict(servers="colocated"), "ssp": dict(servers=1), "r2sp": dict(servers=1),
        "osp": dict(servers="colocated", defer=0.5), "diloco": dict(period=4, wire="int4", outer_lr=1),
        "sparseloco": dict(period=4), "localsgd": dict(wire="int8")}  # settings of a strategy
STB = ("stb/stb_ds.h", "stb_ds.h")  # possible paths of the header
GAP = {"f32": 2e-3, "tf32": 1e-2, "bf16": 4e-2}  # largest relative difference between two losses of a step


class Score:
    def __init__(self, seconds):
        self.passed = self.failed = self.skipped = 0
        self.until = time.monotonic() + seconds

    def left(self, most):
        """The seconds that remain for a command, at most `most`."""
        return min(most, self.until - time.monotonic())

    def late(self, name):
        """Returns True if the time is over, and then counts name as skipped."""
        if self.left(10) < 10:
            self.add(name, "the time is over", time.monotonic(), True)
        return self.left(10) < 10

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
    """Returns (name, driver, architecture) of the first GPU. Ends the program if there is none."""
    os.environ["PATH"] += ":/usr/local/cuda/bin:/usr/local/nvidia/bin"
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32") # for ranks that are threads on one GPU; see docs/tutorials/gpu.md
    if not shutil.which("nvidia-smi"):
        say(77, "gpu-check: skipped: no NVIDIA GPU was found (nvidia-smi is not installed)")
    _, out, _ = run(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"], 30)
    found = re.match(r"(.*), ([\d.]+), (\d+)\.(\d+)$", (out.splitlines() or [""])[0])
    if not found:
        say(77, "gpu-check: skipped: no NVIDIA GPU was found (nvidia-smi lists none)")
    if not shutil.which("nvcc"):
        say(77, "gpu-check: skipped: there is a GPU (%s), but nvcc is not installed" % found[1])
    arch = "sm_%s%s" % (found[3], found[4])
    return found[1], found[2], "sm_90a" if arch == "sm_90" else arch # enables the instructions of Hopper


def compiles(headers, libraries):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "t.cu"), "w", encoding="ascii") as f:
            f.write("".join("#include <%s>\n" % h for h in ["setjmp.h", "stdarg.h", "stdint.h", *headers]) +
                    "int main(void) { return 0; }\n")
        return run(["nvcc", "-isystem", "build/include", d + "/t.cu", "-o", d + "/t"] + ["-l" + n for n in libraries],
                   60)[0] == 0


def look_in(variable, folder):
    os.environ[variable] = ":".join(filter(None, [os.environ.get(variable), folder]))


def find_libraries(score):
    """Ends the program if a library is missing. cmocka may be missing, because only the tests need it. Returns
    True if cmocka is found."""
    lib = os.path.join(ROOT, "build", "lib")
    os.makedirs(lib, exist_ok=True)
    look_in("LIBRARY_PATH", lib)
    look_in("LD_LIBRARY_PATH", lib)
    need = {"nccl.h": "nccl", "cublas_v2.h": "cublas", "cublasLt.h": "cublasLt"}
    for stb in STB:
        if compiles([stb, "cmocka.h", *need], ["cmocka", *need.values()]):
            return True
    for header, library in need.items():
        if compiles([header], [library]):
            continue
        for folder in sys.path: # pip's libraries have a version after .so, and no link without one
            headers = glob.glob(folder + "/nvidia/*/include/" + header)
            files = glob.glob(folder + "/nvidia/*/lib/lib" + library + ".so*")
            link = lib + "/lib" + library + ".so"
            if headers and files and (not os.path.exists(link) or os.path.realpath(files[0]) == os.path.realpath(link)):
                look_in("CPATH", os.path.dirname(headers[0]))
                look_in("LD_LIBRARY_PATH", os.path.dirname(files[0]))
                if os.path.islink(link): # from an earlier run
                    os.remove(link)
                os.symlink(files[0], link)
        if not compiles([header], [library]):
            say(1, "gpu-check: %s or lib%s is missing; install it, or copy it to build/include and build/lib" %
                (header, library))
    if not any(compiles([h, "cmocka.h"], ["cmocka"]) for h in STB):
        run(["tools/deps.sh", "test"], 90)
    if not any(compiles([h], []) for h in STB):
        say(1, "gpu-check: stb_ds.h is missing; install libstb-dev, or copy it to build/include")
    if compiles(["cmocka.h"], ["cmocka"]):
        return True
    score.add("tests", "cmocka is missing; install libcmocka-dev, or copy it to build/include and build/lib",
              time.monotonic(), True)
    return False


def run(command, seconds=300, **more):
    """Runs a command. Returns (exit code or None, stdout, the end of its output). Kills it after the time limit."""
    more = dict(dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE), **more)
    try:
        p = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **more)
    except OSError as e:
        return None, "", str(e)
    try:
        out, err = p.communicate(timeout=max(seconds, 1))
        code = p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, err = p.communicate()
        code, err = None, "%s\ntimed out after %.0f s" % (err or "", seconds)
    return code, out or "", ((out or "") + (err or "")).strip()[-1500:]


def build(arch, names, seconds):
    """Builds the programs with all cores. Returns make's output if it fails."""
    words = ["make", "--no-print-directory", "-s", "-k", "-j%d" % (os.cpu_count() or 2), "NVCC_DIR=build/gpu",
             "NVCC_ARCHS=-arch=" + arch, "NVCC_TEST=-O3 -arch=" + arch, "NVCC_WARN="]
    print("compiling %d programs for %s" % (len(names) + 1, arch), flush=True)
    code, _, end = run(words + ["build/train_gpt"] + ["build/gpu/" + n for n in names], seconds,
                       stderr=subprocess.STDOUT)
    return "" if code == 0 else end


def check_tests(tests, score, tools):
    for test in tests:
        for tool in tools:
            begin = time.monotonic()
            name = test + (" under " + tool if tool else "")
            if score.late(name):
                continue
            words = ["build/gpu/" + test]
            if tool:
                words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"] + words
            code, _, end = run(words, score.left(300 if tool else 60))
            fault = "" if code in (0, 77) else "exit code %s: %s" % (code, end)
            score.add(name, fault, begin, code == 77)


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
        if score.late("%d steps, %s" % (steps, where)):
            continue
        code, _, end = run([program, *words_of(MODEL), "--steps", str(steps), "--json", path, "--quiet", *more],
                           score.left(60))
        fault = "" if code == 0 else "exit code %s: %s" % (code, end)
        if not fault:
            curve[where] = losses(path)
            if len(curve[where]) < steps:
                fault = "%d of %d steps in %s" % (len(curve[where]), steps, path)
        if not fault and where != "cpu" and "cpu" in curve:
            gap = max(abs(a - b) / b for a, b in zip(curve[where], curve["cpu"]))
            if not gap <= GAP[where]:
                fault = "the relative difference from the CPU's losses is up to %g; the limit is %g" % (gap, GAP[where])
        score.add("%d steps, %s" % (steps, where), fault, begin)


def strategies():
    """The strategies that the trainer lists in its error about an unknown one."""
    _, _, end = run(["build/train_gpt", "--data", "dreamddp.h", "--strategy", "none-of-them"])
    return re.findall(r"[a-z]+", end.partition("choose ")[2].replace(" or ", ", "))


def check_strategies(score, steps):
    names = strategies()
    if not names:
        score.add("two processes, tcp", "the trainer lists no strategies", time.monotonic())
    for strategy in names:
        begin = time.monotonic()
        if score.late("two processes, tcp, " + strategy):
            continue
        options = dict(MODEL, batch=4, steps=steps, workers=2, transport="tcp", strategy=strategy, net="1gbit,1ms")
        options.update(WAYS.get(strategy, {}))
        ends = []
        fault = ""
        for program, more in (("build/train_gpt", []), ("build/gpu/train_gpt", ["--device", "cuda"])):
            code, out, end = run([program, *words_of(options), "--quiet", *more], score.left(30))
            if code != 0:
                fault = "%s: exit code %s: %s" % (program, code, end)
                break
            ends.append(json.loads(out.strip().splitlines()[-1])["final_loss"])
        if not fault and not abs(ends[0] - ends[1]) <= 0.1 * ends[0]:
            fault = "the final loss is %g, on the CPU %g" % (ends[1], ends[0])
        score.add("two processes, tcp, " + strategy, fault, begin)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="short runs and bench/gpu.py --quick")
    parser.add_argument("--sanitize", action="store_true", help="only the tests, under compute-sanitizer")
    parser.add_argument("--no-bench", action="store_true", help="skip bench/gpu.py")
    parser.add_argument("--seconds", type=float, default=480, help="time limit in seconds; later checks are skipped [480]")
    args = parser.parse_args(argv)
    name, driver, arch = find_gpu()
    begin, score = time.monotonic(), Score(args.seconds)
    print("%s, driver %s, %s, %s" % (name, driver, arch, time.strftime("%Y-%m-%d")), flush=True)
    tests = sorted("cuda/" + f[:-3] for f in os.listdir(os.path.join(ROOT, "tests/cuda"))
                   if f.startswith("test_cuda_") and f.endswith(".cu"))
    if not find_libraries(score):
        tests = []
    names = ["train_gpt", "train_image", "bench_gpu"] + tests
    output = build(arch, names, score.left(300))
    missing = [n for n in names if not os.path.exists(os.path.join(ROOT, "build", "gpu", n))]
    score.add("build", "not built: %s: %s" % (" ".join(missing), output) if missing else "", begin)
    tools = [""]
    if args.sanitize:
        if shutil.which("compute-sanitizer"):
            tools = ["memcheck", "racecheck", "synccheck"]
        else:
            score.add("compute-sanitizer", "compute-sanitizer is not installed", time.monotonic(), True)
    check_tests([t for t in tests if t not in missing], score, tools)
    if "train_gpt" not in missing and not args.sanitize:
        with tempfile.TemporaryDirectory() as folder:
            check_curves(score, folder, 10 if args.small else 50)
        check_strategies(score, 8 if args.small else 20)
    if not (args.no_bench or args.sanitize or score.late("bench/gpu.py")):
        at = time.monotonic()
        code, _, _ = run([sys.executable, "bench/gpu.py", "--json", "build/gpu.jsonl", "--seconds",
                          "%.0f" % score.left(1e9)] + ["--quick"] * args.small, score.left(1e9) + 20,
                         stdout=None, stderr=None)
        score.add("bench/gpu.py", "" if code == 0 else "exit code %s" % code, at)
    print("in %.0f s" % (time.monotonic() - begin))
    print("%d passed, %d failed, %d skipped" % (score.passed, score.failed, score.skipped))
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
