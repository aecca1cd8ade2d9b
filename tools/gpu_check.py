#!/usr/bin/env python3
"""Runs all checks that need a GPU in under 8 minutes, the riskiest first: `make gpu-check`.

    tools/gpu_check.py [--small] [--sanitize] [--no-bench] [--seconds 480] [--json build/gpu_check.json]

stage     ends at  what
start     0:45     the libraries; the probe and test_cuda_attention are compiled, then everything else in the
                   background
probe     1:15     tensor-core instructions on integers, attention with wgmma and mma against the portable
                   kernels, test_cuda_attention
waits     2:15     waits of streams, as the driver runs them (a figure) and as the library protects them (a
                   check), each in its own process with 10 s
products  2:45     cuBLASLt at GPT-2's shapes: found, right, fused and not fused
tests     4:15     tests/cuda/test_cuda_*.cu; test_cuda_check runs the self-check
curves    5:00     ten steps at sequence length 256, on the CPU and on the GPU in each number format
bench     7:00     bench/gpu.py: kernels, GPT-2 124M in bfloat16, ResNet-50
two       8:00     two processes on the GPU over TCP: localsgd, dreamddp, diloco, then bench/gpu.py's link
rest               what time is left for: the other strategies and the other rows of bench/gpu.py

A check that fails, or that does not end in time, is printed, and the others still run. A stage whose time is
over skips its remaining checks. If attention with wgmma fails in the probe, everything after it runs with
DREAMDDP_CUDA_HOPPER=0. If the wait "hold" or a protected wait fails, everything after the waits runs with
DREAMDDP_CUDA_WAITS=0.

The headers and libraries of STB, cmocka, NCCL and cuBLAS are found in the compiler's folders, in build/include
and build/lib, or in pip's packages of NCCL and cuBLAS. The JSON file has every figure and is written after
each check. tools/gpu_table.py makes the table of docs/results/gpu.md from it.

--small: fewer steps with two processes, and `bench/gpu.py --quick`. --sanitize: only test_cuda_*, under
compute-sanitizer's memcheck, racecheck and synccheck. The last line counts passed, failed and skipped checks. Exit 0, 1, or 77 without a
GPU.
"""
import argparse
import glob
import json
import os
import re
import shlex
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
FIRST = ["localsgd", "dreamddp", "diloco"]  # strategies of the stage two. The others are in rest
STB = ("stb/stb_ds.h", "stb_ds.h")  # possible paths of the header
GAP = {"f32": 2e-3, "tf32": 1e-2, "bf16": 4e-2}  # largest relative difference between two losses of a step
STAGES = {"start": 45, "probe": 75, "waits": 135, "products": 165, "tests": 255, "curves": 300, "bench": 420,
          "two": 480, "rest": 480}  # when each ends, in seconds of 480
PROBE = "build/gpu/cuda/gpu_probe"
WAITS = ["hold", "launches", "launches protected", "first-launch", "first-launch protected", "graph", "graph protected",
         "blocking"]  # of tests/cuda/gpu_probe.cu
WAIT_S = 10
BENCH = ["kernels", "GPT-2 124M bf16", "ResNet-50"]
LATER = ["Llama 176M bf16", "GPT-2 124M tf32", "GPT-2 124M f32"]


class Report:
    """The results, and the time. A JSON file with all of them is written after each check."""

    def __init__(self, seconds, path):
        self.begin = time.monotonic()
        self.scale = seconds / STAGES["rest"]
        self.path = path
        self.stage = "start"
        self.facts = {"event": "gpu_check", "hopper": "auto", "waits": "auto", "checks": []}

    def now(self):
        return time.monotonic() - self.begin

    def left(self, most):
        """The seconds that remain in this stage for a command, at most `most` of a run of 480 s."""
        return min(most * self.scale, STAGES[self.stage] * self.scale - self.now())

    def count(self, result):
        return sum(c["result"] == result for c in self.facts["checks"])

    def add(self, name, fault, begin, skipped=False, figures=None):
        result = "skipped" if skipped else "failed" if fault else "passed"
        check = dict(stage=self.stage, name=name, result=result, seconds=round(self.now() - begin, 3))
        check["figures"] = figures or {}
        if fault:
            check["why"] = fault
        self.facts["checks"].append(check)
        self.write()
        word = {"skipped": "skipped", "failed": "FAILED", "passed": "ok"}[result]
        print("%-52s %-7s %6.1f s%s" % (name, word, check["seconds"], "  " + fault if fault else ""), flush=True)

    def write(self):
        self.facts.update(seconds=round(self.now(), 3), passed=self.count("passed"), failed=self.count("failed"),
                          skipped=self.count("skipped"))
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".part", "w", encoding="utf-8") as f:
            json.dump(self.facts, f, indent=1)
            f.write("\n")
        os.replace(self.path + ".part", self.path)

    def late(self, name, least=3):
        """Returns True if the stage's time is over, and then counts name as skipped."""
        if self.left(least) >= least * self.scale:
            return False
        self.add(name, "the time of this stage is over", self.now(), True)
        return True


def say(code, text):
    print(text)
    sys.exit(code)


def find_gpu():
    """Returns (name, driver, architecture) of the first GPU that CUDA shows. Ends the program if there is none."""
    os.environ["PATH"] += ":/usr/local/cuda/bin:/usr/local/nvidia/bin"
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32") # for ranks that are threads on one GPU; see docs/tutorials/gpu.md
    if not shutil.which("nvidia-smi"):
        say(77, "gpu-check: skipped: no NVIDIA GPU was found (nvidia-smi is not installed)")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = ["-i", visible.split(",")[0].strip()] if visible else []  # a number or a UUID
    if visible == "":
        say(77, "gpu-check: skipped: no NVIDIA GPU was found (CUDA_VISIBLE_DEVICES is empty)")
    _, out, _ = run(["nvidia-smi", *first, "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"], 30)
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


def find_libraries(report):
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
    report.add("cmocka", "cmocka is missing; install libcmocka-dev, or copy it to build/include and build/lib",
               report.now(), True)
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


# ---- compiling ----

class Build:
    """Compiles in the background: first some goals, then the others."""

    def __init__(self, report, arch, first, later):
        self.report = report
        self.words = ["make", "--no-print-directory", "-s", "-k", "-j%d" % (os.cpu_count() or 2), "NVCC_DIR=build/gpu",
                      "NVCC_ARCHS=-arch=" + arch, "NVCC_TEST=-O3 -arch=" + arch, "NVCC_WARN="]
        self.log = os.path.join(ROOT, "build", "gpu_check.log")
        self.current = set()
        self.began = time.time()
        commands = "; ".join(shlex.join(self.words + goals) for goals in (first, later) if goals)
        with open(self.log, "w", encoding="utf-8") as log:
            self.make = subprocess.Popen(["sh", "-c", commands], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                                         stderr=log, start_new_session=True)

    def is_there(self, path):
        """Returns True if a program is built. The linker makes it executable when it is complete. A program of an
        earlier run counts if make would not build it again."""
        full = os.path.join(ROOT, path)
        if path in self.current:
            return True
        if not os.access(full, os.X_OK):
            return False
        if self.make.poll() is not None or os.path.getmtime(full) >= self.began or run(
                self.words + ["-q", path], 20)[0] == 0:
            self.current.add(path)
        return path in self.current

    def missing(self, path):
        """Waits for a program until the build or the stage's time is over. Counts it as failed if it is not built
        then. Returns True if so."""
        begin = self.report.now()
        while self.make.poll() is None and not self.is_there(path) and self.report.left(1e9) > 1:
            time.sleep(0.2)
        if self.is_there(path):
            return False
        with open(self.log, encoding="utf-8", errors="replace") as f:
            end = f.read().strip()[-600:]
        self.report.add(path, "not built in time" if self.make.poll() is None else "not built: " + end, begin)
        return True

    def stop(self):
        if self.make.poll() is None:
            os.killpg(self.make.pid, signal.SIGKILL)
            self.make.wait()


# ---- checks ----

def rows_of(text):
    """The JSON objects among the lines of a program's output."""
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def ended(code, end):
    return "" if code in (0, 77) else "exit code %s: %s" % (code, end)


def probe(report, words, most, **more):
    """Runs a part of the probe. Each object that it prints is a check. Returns them."""
    name = "gpu_probe " + " ".join(words)
    begin = report.now()
    if report.late(name):
        return []
    code, out, end = run([PROBE, *words], report.left(most), **more)
    rows = rows_of(out)
    for row in rows:
        figures = {k: v for k, v in row.items() if k not in ("what", "ok", "error", "skipped")}
        fault = row.get("skipped") or row.get("error") or ("" if row.get("ok") else "wrong: %s" % json.dumps(figures))
        report.add(row["what"], fault, begin, "skipped" in row, figures)
    if code == 77 and not rows:
        report.add(name, "no GPU", begin, True)
    elif code is None or not rows or (code != 0 and all(row.get("ok") for row in rows)):
        report.add(name, ended(code, end) or "no output", begin)
    return rows


def check_probe(report, built):
    """Sets report.facts["hopper"] to 0 if wgmma is wrong, or if the probe does not end."""
    if built.missing(PROBE):
        return
    before = len(report.facts["checks"])
    probe(report, ["products"], 10)
    probe(report, ["attention"], 20)
    bad = [c["name"] for c in report.facts["checks"][before:]
           if c["result"] == "failed" and ("wgmma" in c["name"] or c["name"].startswith("gpu_probe"))]
    if bad:
        report.facts["hopper"] = "0"
        report.facts["hopper_why"] = bad[0]
        os.environ["DREAMDDP_CUDA_HOPPER"] = "0"
        print("%s failed: everything below runs with DREAMDDP_CUDA_HOPPER=0" % bad[0], flush=True)


def plain_wait(report, name):
    """A wait without the library's protection. The library handles a driver that fails here, so it is a figure only."""
    begin = report.now()
    if report.late(name):
        return
    blocking = dict(CUDA_LAUNCH_BLOCKING="1") if name == "blocking" else {}
    code, out, end = run([PROBE, "wait", name], report.left(WAIT_S), env=dict(os.environ, **blocking))
    row = (rows_of(out) or [{}])[0]
    if code == 77 or row.get("skipped"):
        report.add(name, row.get("skipped") or "no GPU", begin, True)
    elif code == 0 and row.get("ok"):
        report.add(name, "", begin, figures=dict(driver="continues", seconds=row.get("seconds", 0)))
    else:
        print("%s: %s" % (name, row.get("error") or ended(code, end) or "no output"), flush=True)
        report.add(name, "", begin, figures=dict(driver="does not continue" if code is None else "fails"))


def check_waits(report, built):
    """Sets report.facts["waits"] to 0 and disables stream waits if the wait hold or a protected wait failed."""
    if built.missing(PROBE):
        return
    before = len(report.facts["checks"])
    for name in WAITS:
        if name == "hold" or name.endswith(" protected"):
            probe(report, ["wait", *name.split()], WAIT_S)
        else:
            plain_wait(report, name)
    bad = [c["name"] for c in report.facts["checks"][before:] if c["result"] == "failed"]
    if bad:
        report.facts["waits"] = "0"
        report.facts["waits_why"] = bad[0]
        os.environ["DREAMDDP_CUDA_WAITS"] = "0"
        print("%s failed: everything below runs with DREAMDDP_CUDA_WAITS=0" % bad[0], flush=True)


def check_products(report, built):
    if not built.missing(PROBE):
        probe(report, ["matmul"], 30)


def check_tests(report, built, tests, tools):
    for test in tests:
        for tool in tools:
            name = test + (" under " + tool if tool else "")
            if report.late(name) or built.missing("build/gpu/" + test):
                continue
            begin = report.now()
            words = ["build/gpu/" + test]
            if tool:
                words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"] + words
            code, out, end = run(words, report.left(300 if tool else 60))
            checked = re.findall(r"self-check: ([\d.]+) ms; largest differences: ([^\n]*)", out)
            figures = dict(self_check=[dict(ms=float(ms), differences=text) for ms, text in checked]) if checked else {}
            report.add(name, ended(code, end), begin, code == 77, figures)


def losses(path):
    with open(path, encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    return [e["loss"] for e in events if e.get("event") == "step"]


def words_of(options):
    return [w for k, v in options.items() for w in ("--" + k.replace("_", "-"), str(v))]



def check_curves(report, built, folder, steps):
    curve = {}
    for where, program, more in [("cpu", "build/train_gpt", [])] + [
            (n, "build/gpu/train_gpt", ["--device", "cuda", "--numbers", n]) for n in GAP]:
        name = "%d steps, %s" % (steps, where)
        if report.late(name) or built.missing(program):
            continue
        begin = report.now()
        path = os.path.join(folder, where + ".jsonl")
        code, _, end = run([program, *words_of(MODEL), "--steps", str(steps), "--json", path, "--quiet", *more],
                           report.left(60))
        figures = {}
        fault = "" if code == 0 else "exit code %s: %s" % (code, end)
        if not fault:
            curve[where] = figures["losses"] = losses(path)
            if len(curve[where]) < steps:
                fault = "%d of %d steps in %s" % (len(curve[where]), steps, path)
        if not fault and where != "cpu" and "cpu" in curve:
            gap = figures["gap"] = max(abs(a - b) / b for a, b in zip(curve[where], curve["cpu"]))
            if not gap <= GAP[where]:
                fault = "the relative difference from the CPU's losses is up to %g; the limit is %g" % (gap, GAP[where])
        report.add(name, fault, begin, figures=figures)


def check_bench(report, built, parts, small):
    for part in parts:
        program = "bench_gpu" if part == "kernels" else "train_image" if part == "ResNet-50" else "train_gpt"
        if report.late("bench " + part, 10) or built.missing("build/gpu/" + program):
            continue
        begin = report.now()
        path = os.path.join(ROOT, "build", "gpu.jsonl")
        if os.path.exists(path):
            os.remove(path)
        code, out, end = run([sys.executable, "bench/gpu.py", "--only", part, "--rounds", "1", "--json", path, "--seconds",
                              "%.0f" % report.left(90)] + ["--quick"] * small, report.left(95))
        print(out, end="", flush=True)
        rows = []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                rows = rows_of(f.read())
        report.add("bench " + part, ended(code, end), begin, code == 77, dict(rows=rows))


def strategies():
    """The strategies that the trainer lists in its error about an unknown one."""
    _, _, end = run(["build/train_gpt", "--data", "dreamddp.h", "--strategy", "none-of-them"], 20)
    return re.findall(r"[a-z]+", end.partition("choose ")[2].replace(" or ", ", "))


def check_strategies(report, built, names, steps):
    for strategy in names:
        name = "two processes, tcp, " + strategy
        if report.late(name) or built.missing("build/gpu/train_gpt") or built.missing("build/train_gpt"):
            continue
        begin = report.now()
        options = dict(MODEL, batch=4, steps=steps, workers=2, transport="tcp", strategy=strategy, net="1gbit,1ms")
        options.update(WAYS.get(strategy, {}))
        ends = []
        fault = ""
        for program, more in (("build/train_gpt", []), ("build/gpu/train_gpt", ["--device", "cuda"])):
            code, out, end = run([program, *words_of(options), "--quiet", *more], report.left(30))
            if code != 0:
                fault = "%s: exit code %s: %s" % (program, code, end)
                break
            ends.append(json.loads(out.strip().splitlines()[-1])["final_loss"])
        if not fault and not abs(ends[0] - ends[1]) <= 0.1 * ends[0]:
            fault = "the final loss is %g, on the CPU %g" % (ends[1], ends[0])
        report.add(name, fault, begin, figures=dict(final_losses=ends))


def stage(report, name, check, *args):
    """Runs the checks of a stage. A fault in this script does not stop the other stages."""
    report.stage = name
    begin = report.now()
    try:
        check(report, *args)
    except Exception as e: # pylint: disable=broad-except
        report.add("stage " + name, repr(e), begin)


def all_stages(report, built, tests, args, folder):
    steps, shared_steps = 10, 8 if args.small else 20
    if args.sanitize:
        tools = ["memcheck", "racecheck", "synccheck"]
        if not shutil.which("compute-sanitizer"):
            report.add("compute-sanitizer", "compute-sanitizer is not installed", report.now(), True)
            return
        report.stage = "rest"
        check_tests(report, built, tests, tools)
        return
    stage(report, "probe", check_probe, built)
    stage(report, "probe", check_tests, built, ["cuda/test_cuda_attention"] if tests else [], [""])
    stage(report, "waits", check_waits, built)
    stage(report, "products", check_products, built)
    stage(report, "tests", check_tests, built, [t for t in tests if t != "cuda/test_cuda_attention"], [""])
    stage(report, "curves", check_curves, built, folder, steps)
    if not args.no_bench:
        stage(report, "bench", check_bench, built, BENCH, args.small)
    stage(report, "two", check_strategies, built, FIRST, shared_steps)
    if not args.no_bench:
        stage(report, "two", check_bench, built, ["link"], args.small)
    report.stage = "rest"
    if report.left(10) < 10 * report.scale or built.missing("build/train_gpt"):
        return
    stage(report, "rest", check_strategies, built, [s for s in strategies() if s not in FIRST], shared_steps)
    if not args.no_bench:
        stage(report, "rest", check_bench, built, LATER, args.small)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="short runs and bench/gpu.py --quick")
    parser.add_argument("--sanitize", action="store_true", help="only the tests, under compute-sanitizer")
    parser.add_argument("--no-bench", action="store_true", help="skip bench/gpu.py")
    parser.add_argument("--seconds", type=float, default=480,
                        help="time limit in seconds, of which each stage has its share [480]")
    parser.add_argument("--json", default=os.path.join("build", "gpu_check.json"),
                        help="file for every figure [build/gpu_check.json]")
    args = parser.parse_args(argv)
    name, driver, arch = find_gpu()
    report = Report(args.seconds, os.path.join(ROOT, args.json))
    toolkit = re.search(r"release ([\d.]+)", run(["nvcc", "--version"], 20)[1])
    report.facts.update(gpu=name, driver=driver, arch=arch, cuda=toolkit[1] if toolkit else "",
                        date=time.strftime("%Y-%m-%d"))
    print("%s, driver %s, %s, %s" % (name, driver, arch, report.facts["date"]), flush=True)
    tests = sorted("cuda/" + f[:-3] for f in os.listdir(os.path.join(ROOT, "tests/cuda"))
                   if f.startswith("test_cuda_") and f.endswith(".cu"))
    if not find_libraries(report):
        tests = []
    first = [PROBE] + ["build/gpu/cuda/test_cuda_attention"] * bool(tests)
    names = ["train_gpt", "train_image", "bench_gpu"] + tests
    built = Build(report, arch, [] if args.sanitize else first, ["build/train_gpt"] + ["build/gpu/" + n for n in names])
    try:
        with tempfile.TemporaryDirectory() as folder:
            all_stages(report, built, tests, args, folder)
    finally:
        built.stop()
        report.write()
    print("in %.0f s; every figure is in %s" % (report.now(), args.json))
    print("%d passed, %d failed, %d skipped" % tuple(report.count(r) for r in ("passed", "failed", "skipped")))
    return 1 if report.count("failed") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
