#!/usr/bin/env python3
"""build/netcheck and the trainers with links and ranks of known speeds: the measured values are within about 10 %.

    bench/timing/time_netcheck.py [WORD...]     only the cases whose names contain one of the words

Run it alone on an idle machine. Needs build/netcheck, build/train_gpt and build/plan.
"""
import json
import os
import re
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from cases import Wrong, case, expect, run_cases, unused_port  # noqa: E402

BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
NETCHECK, TRAIN, PLAN = (os.path.join(BUILD, p) for p in ("netcheck", "train_gpt", "plan"))


def environment(**extra):
    own = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|SLURM_|MASTER_")
    return dict({k: v for k, v in os.environ.items() if not own.match(k)}, **extra)


def start(folder, *args, **extra):
    return subprocess.Popen(list(map(str, args)), cwd=folder, env=environment(**extra), text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True)


def run(folder, *args, code=0, **extra):
    p = start(folder, *args, **extra)
    try:
        out, err = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        raise Wrong("%s did not end" % (args,))
    expect(code is None or p.returncode == code, "%s: exit code %s, not %s: %s" % (args, p.returncode, code, err[-500:]))
    return out, err


def pairs(matrix):
    return [(i, k, matrix[i][k]) for i in range(len(matrix)) for k in range(len(matrix)) if i != k]


def check_figures(figures, workers, mbit, ms):
    expect(figures["workers"] == workers and len(figures["hosts"]) == workers, "workers: %s" % figures)
    for key, value in (("bandwidth_mbit", mbit), ("latency_ms", ms), ("alpha_ms", ms)):
        for i, k, got in pairs(figures[key]):
            expect(abs(got - value) <= 0.1 * value, "%s from %d to %d is %g, not %g" % (key, i, k, got, value))
        expect(all(figures[key][i][i] is None for i in range(workers)), "the diagonal of " + key)
    for i, k, got in pairs(figures["latency_median_ms"]):
        expect(got >= figures["latency_ms"][i][k], "a median below the smallest")
    for i, k, got in pairs(figures["clock_offset_ms"]):
        expect(abs(got) <= ms, "one clock, but %g ms between %d and %d" % (got, i, k))
        expect(got == -figures["clock_offset_ms"][k][i], "clocks differ by the same both ways")
    for host in figures["hosts"]:
        expect(abs(8e3 / host["beta_ns_per_byte"] - mbit) <= 0.1 * mbit, "host: %s" % host)


@case("links of 100mbit,20ms are found to within a tenth, 2 to 5 workers")
def shaped(folder):
    for workers, mbit, ms, transport in ((2, 100, 20, "tcp"), (3, 100, 20, "threads"), (4, 50, 5, "tcp"),
                                         (5, 20, 10, "tcp")):
        out, _ = run(folder, NETCHECK, "--workers", workers, "--net", "%dmbit,%dms" % (mbit, ms),
                     "--transport", transport, "--json", "n.json", "--write-network", "net.json")
        with open(os.path.join(folder, "n.json")) as f:
            check_figures(json.loads(f.read()), workers, mbit, ms)
        expect("%d workers, every one reaches every other" % workers in out, out)
        with open(os.path.join(folder, "net.json")) as f:
            net = json.load(f)
        expect(net["N"] == workers, "N is %s" % net["N"])
        for i, k, got in pairs(net["bandwidth_gbps"]):
            expect(abs(1000 * got - mbit) <= 0.1 * mbit, "%g Gbit/s in the file" % got)
        with open(os.path.join(folder, "n.json")) as f:
            hosts = json.loads(f.read())["hosts"]
        expect(all(abs(1000 * t / h["cpu_gflops"] - 1) < 1e-6 and t > 0 for t, h in zip(net["tflops"], hosts)) and
               len(net["tflops"]) == workers, "speeds: %s, %s" % (net["tflops"], hosts))
    run(folder, PLAN, "place", "--network", "net.json", "--pipelines", "1", "--stages", "5", "--seconds", "0.2",
        "--dp-bytes", "1e8", "--pp-bytes", "1e6")


@case("each pair meets the required rate and delay, or the failing pair is named")
def required(folder):
    with open(os.path.join(folder, "three.json"), "w") as f:
        json.dump({"delay_ms": [[0, 2, 2], [2, 0, 30], [2, 30, 0]],
                   "bandwidth_gbps": [[1, 0.05, 0.01], [0.05, 1, 0.05], [0.05, 0.05, 1]]}, f)
    for require, code, words in (("5mbit,60ms", 0, ("required 5mbit,60ms: met", "pair   0 to 2")),
                                 ("20mbit,60ms", 1, ("not met", "pair   0 to 2  9.", "too slow")),
                                 ("5mbit,20ms", 1, ("not met", " ms  too far")), ("none", 0, ("none: met",))):
        out, err = run(folder, NETCHECK, "--workers", 3, "--net", "three.json", "--require", require, "--json", "n.json",
                       code=code)
        expect(all(w in out for w in words) and not err.strip(), "%s: %s%s" % (require, out[-300:], err))
        with open(os.path.join(folder, "n.json")) as f:
            said = json.loads(f.read())
        expect((said["required"], said["met"]) == (require, 1 - code), said)


@case("a straggler is named by its computing, not by its waiting")
def slow(folder):
    for name, seconds in (("fast", 0.005), ("slow", 0.010)):
        with open(os.path.join(folder, name), "w") as f:
            f.write("layer,params,forward_s,backward_s,comm_s\n")
            f.writelines("l%d,500,%g,%g,0.001\n" % (i, seconds, seconds) for i in range(3))
    for strategy in ("dreamddp", "ssgd"):
        address = "127.0.0.1:%d" % unused_port()
        page = ["--report", "r.html"] if strategy == "dreamddp" else []
        ranks = [start(folder, TRAIN, "--emulate-compute", "slow" if r == 1 else "fast", "--workers", 3, "--rank", r,
                       "--addr", address, "--steps", 40, "--period", 4, "--strategy", strategy, "--json", "r%d" % r,
                       *(page if r == 0 else []), DREAMDDP_LOG="warn") for r in range(3)]
        outs = [p.communicate(timeout=40) for p in ranks]
        expect([p.returncode for p in ranks] == [0, 0, 0], outs)
        result = json.loads(outs[0][0].splitlines()[-1])
        # the sleep makes it twice as slow; other load on the machine brings both closer
        expect(result["slowest_rank"] == 1 and 1.25 < result["slow_ratio"] < 2.3, result)
        named = re.findall(r"rank 1 computes (\S+) x slower than the median \((\S+) ms against (\S+) ms\)", outs[0][1])
        ratios = [float(slow) / float(median) for _, slow, median in named]
        # a new plan only after a change by a fifth
        expect(ratios and all(abs(b / a - 1) > 0.19 for a, b in zip(ratios, ratios[1:])), outs[0][1])
        expect("slowest: rank 1 computes" in outs[0][1], outs[0][1])
        expect("slower" not in outs[2][1], outs[2][1])
        with open(os.path.join(folder, "r0")) as f:
            lines = [json.loads(line) for line in f]
        expect(lines[-1]["slowest_rank"] == 1, lines[-1])
        notes = [line for line in lines if line["event"] == "note" and line["kind"] == "slow"]
        expect(notes and all("rank 1 computes" in n["text"] and 0 < n["step"] < 40 for n in notes), notes)
        if page:
            with open(os.path.join(folder, "r.html")) as f:
                text = f.read()
            expect(notes[0]["text"] + "</td>" in text and "What changed" in text, "the page lacks " + notes[0]["text"])


if __name__ == "__main__":
    sys.exit(run_cases())
