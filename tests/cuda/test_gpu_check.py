#!/usr/bin/env python3
"""[test-all: takes half a minute] tools/gpu_check.py with a false compiler and false programs: the order of the
checks, the time of each stage, a check that fails or does not end, the choice of Hopper's kernels, the JSON
file, and the table that tools/gpu_table.py makes from it. Needs no GPU."""
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
failures = []


def check(what, ok, why=""):
    print("%s %s%s" % ("ok    " if ok else "FAILED", what, "" if ok else ": %s" % (why,)))
    if not ok:
        failures.append(what)


def program(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


# Every false program appends its name, its arguments and the variable to $CALLS.
NOTE = 'echo "%s $* hopper=$DREAMDDP_CUDA_HOPPER waits=$DREAMDDP_CUDA_WAITS blocking=$CUDA_LAUNCH_BLOCKING" >>"$CALLS"\n'
PROBE = NOTE % "probe" + r"""
case "$1" in
products) echo '{"what": "wgmma bf16", "ok": true, "wrong_scores": 0}'; echo '{"what": "mma tf32", "ok": true}';;
attention) if [ "$BAD" = wgmma ]; then
               echo '{"what": "attention wgmma, 65 tokens", "ok": false, "worst": 0.7, "array": "dk"}'; exit 1
           fi
           echo '{"what": "attention wgmma, 65 tokens", "ok": true, "worst": 0.004, "array": "dk"}';;
wait) if [ "$2" = graph ] && [ "$BAD" = graph ]; then sleep 100; fi
      if [ "$2" != hold ] && [ -z "$3" ] && [ "$BAD" = driver ]; then sleep 100; fi
      echo "{\"what\": \"$2${3:+ $3}\", \"ok\": true, \"seconds\": 0.2}";;
matmul) echo '{"what": "cuBLASLt bf16", "ok": true, "tflops": 600.0}';;
esac
"""
TRAINER = NOTE % "train" + r"""
case "$*" in
*none-of-them*) echo 'unknown strategy; choose ssgd, localsgd, dreamddp or diloco' >&2; exit 2;;
*--workers*) echo '{"final_loss": 2.5}';;
*) while [ $# -gt 0 ]; do [ "$1" = --json ] && file=$2; shift; done
   for i in 1 2 3 4 5 6 7 8 9 10; do echo '{"event": "step", "loss": 4.0}'; done >"$file";;
esac
"""
BENCH = '''import json, os, sys
open(os.environ["CALLS"], "a").write("bench %s\\n" % sys.argv[2])
open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps({"cell": sys.argv[2], "ms": 1.5}) + "\\n")
'''


def false_tree(folder, bad_test):
    """Writes a tree in which make builds the false programs at once."""
    for tool in ("gpu_check.py", "gpu_table.py"):
        os.makedirs(folder + "/tools", exist_ok=True)
        shutil.copy(os.path.join(ROOT, "tools", tool), folder + "/tools/" + tool)
    os.makedirs(folder + "/tests/cuda")
    for name in ("attention", "text", "check"):
        open(folder + "/tests/cuda/test_cuda_%s.cu" % name, "w", encoding="ascii").close()
    program(folder, "stock/gpu_probe", PROBE)
    program(folder, "stock/train", TRAINER)
    program(folder, "stock/test", 'echo "test $(basename $0)" >>"$CALLS"\n'
            'echo "GPU 0: self-check: 3.5 ms; largest differences: attention 0.004"\n'
            '[ "$(basename $0)" = %s ] && { echo broken; exit 1; }\nexit 0\n' % bad_test)
    os.makedirs(folder + "/bench")
    with open(folder + "/bench/gpu.py", "w", encoding="ascii") as f:
        f.write(BENCH)
    program(folder, "bin/nvidia-smi", 'if [ "$1 $2" = "-i 1" ]; then echo "Second GPU, 570.1, 8.0"; exit; fi\n'
            'echo "False GPU, 570.1, 9.0"; echo "Second GPU, 570.1, 8.0"\n')
    program(folder, "bin/nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"\n')
    program(folder, "bin/make", r"""
[ "$BAD" = build ] && sleep 100
for goal in "$@"; do
    case "$goal" in
    build/*/cuda/gpu_probe) from=gpu_probe;;
    build/*/cuda/test_*) from=test;;
    build/train_gpt|build/gpu/train_*|build/gpu/bench_gpu) from=train;;
    *) continue;;
    esac
    echo "build $goal" >>"$CALLS"
    mkdir -p "$(dirname "$goal")"
    cp stock/$from "$goal"
done
""")


def run(folder, seconds, bad="", bad_test="none", words=(), visible=None):
    """Returns (exit code, output, calls, the JSON file, seconds)."""
    false_tree(folder, bad_test)
    calls = folder + "/calls"
    open(calls, "w", encoding="utf-8").close()
    env = dict(os.environ, CALLS=calls, BAD=bad, PATH=folder + "/bin:" + os.environ["PATH"])
    env.pop("DREAMDDP_CUDA_HOPPER", None)
    env.pop("DREAMDDP_CUDA_WAITS", None)
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    begin = time.monotonic()
    r = subprocess.run([sys.executable, folder + "/tools/gpu_check.py", "--seconds", str(seconds), *words], env=env,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds + 120)
    took = time.monotonic() - begin
    with open(calls, encoding="utf-8") as f:
        lines = f.read().splitlines()
    with open(folder + "/build/gpu_check.json", encoding="utf-8") as f:
        return r.returncode, r.stdout, lines, json.load(f), took


def results(facts):
    return {c["name"]: c["result"] for c in facts["checks"]}


def all_good():
    with tempfile.TemporaryDirectory() as folder:
        code, out, calls, facts, _ = run(folder, 480)
        check("a run without a fault exits with 0", code == 0, out)
        ran = [c.split(" hopper")[0] for c in calls if not c.startswith("build ")]
        order = ["probe products", "probe attention", "test test_cuda_attention", "probe wait hold", "probe wait launches",
                 "probe wait launches protected", "probe wait first-launch", "probe wait first-launch protected",
                 "probe wait graph", "probe wait graph protected", "probe wait blocking", "probe matmul",
                 "test test_cuda_check", "test test_cuda_text"]
        check("the checks run in the order of their risk", [c for c in ran if c in order] == order, ran)
        check("the probe is compiled first", calls[0] == "build build/gpu/cuda/gpu_probe" or calls[1].endswith("gpu_probe"), calls[:3])
        stages = []
        for c in facts["checks"]:
            if c["stage"] not in stages:
                stages.append(c["stage"])
        check("the stages follow in order", stages == ["probe", "waits", "products", "tests", "curves", "bench", "two", "rest"], stages)
        check("launches block only in one check of waits",
              [c.split()[:3] for c in calls if c.endswith("blocking=1")] == [["probe", "wait", "blocking"]], calls)
        figures = {c["name"]: c["figures"] for c in facts["checks"]}
        check("the file has the figures of the probe", figures["attention wgmma, 65 tokens"]["worst"] == 0.004, facts)
        check("the file has the time of the self-check",
              figures["cuda/test_cuda_check"]["self_check"][0]["ms"] == 3.5, figures["cuda/test_cuda_check"])
        check("the file has the losses", figures["10 steps, bf16"]["gap"] == 0 and len(figures["10 steps, cpu"]["losses"]) == 10)
        check("the file has the rows of bench/gpu.py", figures["bench ResNet-50"]["rows"][0]["ms"] == 1.5)
        check("three strategies run first", [c["name"].split(", ")[-1] for c in facts["checks"] if c["name"].startswith("two proc")] ==
              ["localsgd", "dreamddp", "diloco", "ssgd"], facts["checks"])
        check("the file counts the results", facts["passed"] == len(facts["checks"]) and facts["failed"] == 0, facts)
        check("the file names the device", (facts["gpu"], facts["driver"], facts["arch"], facts["hopper"]) ==
              ("False GPU", "570.1", "sm_90a", "auto"), facts)
        table(folder)


def table(folder):
    page = folder + "/page.md"
    tool = [sys.executable, folder + "/tools/gpu_table.py", folder + "/build/gpu_check.json", "--page", page]
    with open(page, "w", encoding="utf-8") as f:
        f.write("before\n<!-- tools/gpu_table.py: begin -->\nprevious\n<!-- end -->\nafter\n")
    r = subprocess.run(tool, capture_output=True, text=True)
    with open(page, encoding="utf-8") as f:
        text = f.read()
    check("the table replaces the old one", r.returncode == 0 and "previous" not in text and text.startswith("before\n") and
          text.endswith("<!-- end -->\nafter\n"), r.stderr + text)
    check("the table names the device", "False GPU, driver 570.1, CUDA 13.0, sm_90a" in text, text)
    check("the table states the waits", "the self-check chose and waits of the stream." in text, text)
    check("the table has figures", "| attention wgmma, 65 tokens | passed | worst 0.004, array dk |" in text and
          "| ResNet-50 | ms 1.5 |" in text and "self-check 3.5 ms" in text, text)
    with open(page, "w", encoding="utf-8") as f:
        f.write("no place\n")
    r = subprocess.run(tool, capture_output=True, text=True)
    check("a page without the comments is an error", r.returncode == 1 and "lacks the lines" in r.stderr, r.stderr)


def faults():
    """A wait that does not end and a test that fails do not stop the rest."""
    with tempfile.TemporaryDirectory() as folder:
        code, out, calls, facts, took = run(folder, 144, "graph", "test_cuda_text", ["--no-bench"])
        got = results(facts)
        check("a failed check exits with 1", code == 1, out)
        check("a check that does not end is stopped after its time", got.get("gpu_probe wait graph protected") == "failed" and
              "timed out after 3 s" in out and took < 60, out)
        check("the next check of waits runs", got.get("blocking") == "passed", got)
        check("a failed test is printed with its output", got["cuda/test_cuda_text"] == "failed" and "broken" in out, out)
        check("the later stages run", got["10 steps, bf16"] == got["two processes, tcp, diloco"] == "passed", got)
        check("the file counts the failures", facts["failed"] == 2, facts["failed"])
        later = [c for c in calls if c.startswith(("probe matmul", "train"))]
        check("everything after a failed wait waits on the host", later and all("waits=0" in c for c in later) and
              facts["waits"] == "0" and facts["waits_why"] == "gpu_probe wait graph protected", later)
        check("the same wait without protection is a figure", got["graph"] == "passed" and
              [c["figures"] for c in facts["checks"] if c["name"] == "graph"] == [{"driver": "does not continue"}], facts)
        sys.path.insert(0, os.path.join(ROOT, "tools"))
        import gpu_table
        check("the table states why the calling thread waits", "DREAMDDP_CUDA_WAITS=0), because gpu_probe wait graph "
              "protected failed." in gpu_table.page_of(facts), gpu_table.page_of(facts)[:400])
        check("Hopper's kernels stay", facts["hopper"] == "auto" and not any("hopper=0" in c for c in calls), facts)


def driver_that_needs_protection():
    """Only the waits without protection do not end: no failure, and the rest runs with waits of the stream."""
    with tempfile.TemporaryDirectory() as folder:
        code, out, calls, facts, _ = run(folder, 144, "driver", "none", ["--no-bench"])
        check("a driver that the library handles is no failure", code == 0 and facts["waits"] == "auto" and
              not any("waits=0" in c for c in calls), out)
        check("the figures name it", [c["name"] for c in facts["checks"] if c["figures"].get("driver") == "does not continue"] ==
              ["launches", "first-launch", "graph", "blocking"], facts)


def visible_gpu():
    with tempfile.TemporaryDirectory() as folder:
        _, out, _, facts, _ = run(folder, 480, words=["--no-bench"], visible="1,0")
        check("the first visible GPU is checked", (facts["gpu"], facts["arch"]) == ("Second GPU", "sm_80"), out)


def wrong_wgmma():
    with tempfile.TemporaryDirectory() as folder:
        code, out, calls, facts, _ = run(folder, 480, "wgmma", "none", ["--no-bench"])
        check("wrong attention with wgmma is a failure", code == 1 and results(facts)["attention wgmma, 65 tokens"] == "failed", out)
        later = [c for c in calls if c.startswith(("probe wait", "probe matmul", "train"))]
        check("everything after it runs without Hopper's kernels", later and all("hopper=0" in c for c in later) and
              facts["hopper"] == "0" and facts["hopper_why"] == "attention wgmma, 65 tokens", later)
        check("the probe itself runs with them", all("hopper= " in c for c in calls if c.startswith("probe products")), calls)


def no_time():
    """A compiler that does not end: the check ends in its time, and no program of the build is left."""
    with tempfile.TemporaryDirectory() as folder:
        code, out, _, facts, took = run(folder, 4, "build")
        check("a build that does not end leaves a complete file", code == 1 and took < 60 and facts["passed"] == 0 and
              facts["skipped"] + facts["failed"] == len(facts["checks"]) > 9, (code, took, out))
        check("a program that is not built is named", "build/gpu/cuda/gpu_probe" in out and "not built in time" in out, out)


def probe_on_the_emulation():
    """The probe itself, which make compiles with the CUDA emulation, too."""
    probe = os.path.join(ROOT, "build/cuda/cuda/gpu_probe")
    if not os.access(probe, os.X_OK):
        print("skipped the probe: make tests-cuda builds it")
        return
    # Not the waits "launches", "first-launch" and "graph" without protection: on the emulation, as on a driver that holds a
    # lock, they block the thread that would end the wait.
    for words in (["products"], ["attention", "1"], ["wait", "hold"], ["wait", "launches", "protected"],
                  ["wait", "first-launch", "protected"], ["wait", "graph", "protected"], ["wait", "blocking"],
                  ["matmul", "8", "16"]):
        r = subprocess.run([probe, *words], capture_output=True, text=True, timeout=300)
        rows = [json.loads(line) for line in r.stdout.splitlines()]
        check("gpu_probe %s on the emulation" % " ".join(words), rows and r.returncode == 0 and
              all(row["ok"] and row["what"] for row in rows), (r.returncode, r.stdout, r.stderr))
    names = subprocess.run([probe, "waits"], capture_output=True, text=True).stdout.splitlines()
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import gpu_check
    check("gpu_check runs all waits of the probe", names == gpu_check.WAITS, names)


all_good()
faults()
driver_that_needs_protection()
visible_gpu()
wrong_wgmma()
no_time()
probe_on_the_emulation()
sys.exit(bool(failures))
