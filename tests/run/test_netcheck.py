#!/usr/bin/env python3
"""[strict] build/netcheck against links that are known, and the trainers' post-mortem as a user asks for it.

    tests/run/test_netcheck.py [WORD...]     only the cases whose names contain one of the words
"""
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case, expect, run_cases, Wrong  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
NETCHECK, TRAIN, PLAN, BENCH = (os.path.join(BUILD, p) for p in ("netcheck", "train_gpt", "plan", "bench_allreduce"))
SMALL = "--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --data text --quiet --steps 100000000".split()


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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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


@case("the network that is written is what place, fence and the trainers read")
def written(folder):
    small = [TRAIN, "--layers", 1, "--heads", 2, "--dim", 16, "--seq", 16, "--batch", 2, "--data", __file__, "--quiet",
             "--steps", 2]
    run(folder, NETCHECK, "--workers", 3, "--net", "200mbit,2ms", "--write-network", "net.json", "--dp-bytes", 3e6,
        "--pp-bytes", 4096, "--tflops", "0.5,2")
    with open(os.path.join(folder, "net.json")) as f:
        net = json.load(f)
    expect((net["N"], net["c_dp_bytes"], net["c_pp_bytes"], net["tflops"]) == (3, 3e6, 4096, [0.5, 2, 2]), net)
    run(folder, PLAN, "place", "--network", "net.json", "--pipelines", 1, "--stages", 3, "--candidates", 20,
        "--json", "place.json")
    run(folder, *small, "--write-graph", "model.json")
    run(folder, PLAN, "fence", "--graph", "model.json", "--network", "net.json", "--json", "cut.json")
    for plan in ("--placement", "place.json"), ("--cut", "cut.json"):
        out, _ = run(folder, *small, "--workers", 3, *plan, "--net", "net.json")
        expect(json.loads(out.splitlines()[-1])["stages"] == 3, out)


@case("what is required of every pair is met, or the pair that is too slow or too far is named")
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


@case("ranks that are started one by one, and by a launcher's variables")
def apart(folder):
    address = "127.0.0.1:%d" % free_port()
    other = start(folder, NETCHECK, "--workers", 2, "--rank", 1, "--addr", address)
    out, _ = run(folder, NETCHECK, "--workers", 2, "--rank", 0, "--addr", address)
    expect("2 workers" in out, out)
    expect(other.wait(timeout=20) == 0, "rank 1 failed")
    expect(other.communicate()[0] == "", "the table is rank 0's")
    port = str(free_port())
    launched = [start(folder, NETCHECK, RANK=str(r), WORLD_SIZE="3", LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=port) for r in range(3)]
    outs = [p.communicate(timeout=40) for p in launched]
    expect([p.returncode for p in launched] == [0, 0, 0], outs)
    expect("3 workers" in outs[0][0], outs)


@case("mistakes are told in one sentence")
def mistakes(folder):
    for args, code, word in ((["--workers", 1], 1, "no links"), (["--workers", 2, "--net", "fast"], 2, "100mbit,20ms"),
                             (["--workers", 2, "--rank", 2], 2, "ranks from 0"), (["--merge"], 2, "dump"),
                             (["--merge", "nowhere"], 1, "nowhere"),
                             (["--workers", 2, "--write-network", "no/such/file"], 1, "no/such/file"),
                             (["--workers", 2, "--tflops", "1"], 2, "--write-network"),
                             (["--workers", 2, "--write-network", "n", "--tflops", "1,-2"], 2, "1,-2"),
                             (["--workers", 2, "--write-network", "n", "--dp-bytes", "-1"], 2, "-1"),
                             (["--workers", 2, "--require", "fast"], 2, "--require"),
                             (["--transport", "pigeon"], 2, "pigeon")):
        _, err = run(folder, NETCHECK, *args, code=code)
        expect(word in err and err.count("\n") == 1, "%s: %s" % (args, err))
    _, err = run(folder, NETCHECK, "--workers", 2, "--rank", 0, "--addr", "127.0.0.1:%d" % free_port(),
                 "--join-timeout", 0.5, code=3)
    expect("DREAMDDP_JOIN_TIMEOUT" in err, err)


@case("the programs that connect have the trainers' options for it, by name and value")
def agree(folder):
    def options(program):
        out, _ = run(folder, os.path.join(BUILD, program), "--help")
        return set(re.findall(r"^  (--[a-z-]+(?: [A-Z][A-Z:,.]*)?) ", out, re.M))
    wanted = {"--transport NAME", "--net RATE,DELAY", "--net-script FILE", "--rank R", "--addr HOST:PORT", "--insecure",
              "--connect-timeout S", "--join-timeout S", "--peer-timeout S", "--op-timeout S", "--tls-psk FILE",
              "--tls-ca FILE", "--tls-cert FILE", "--tls-key FILE", "--workers N"}
    for program in ("train_gpt", "netcheck", "bench_allreduce"):
        expect(wanted <= options(program), "%s lacks %s" % (program, wanted - options(program)))


@case("connections with certificates, through a file, and options that part")
def certified(folder):
    for program in (NETCHECK, BENCH):
        for args, word in ((["--tls-ca", "ca.pem"], "tls"), (["--addr", "1.2.3.4:5"], "--rank"), (["--peer-timeout", -1], "0 s"),
                           (["--rank", 0, "--transport", "threads"], "tcp")):
            _, err = run(folder, program, "--workers", 2, *args, code=None)
            expect(word in err.lower() and err.count("\n") == 1, "%s %s: %s" % (program, args, err))
    for program, more, word in ((NETCHECK, [], "2 workers, every one"), (BENCH, ["--bytes", 4096, "--iters", 2], '"ranks":2')):
        tls = [[]] if not shutil.which("openssl") else [[], certificates(folder)]
        for names in tls:
            ends = [start(folder, program, "--workers", 2, "--rank", r, "--addr", "file://%s/meet" % folder, *more,
                          *[o % r if "%d" in o else o for o in names]) for r in (0, 1)]
            outs = [p.communicate(timeout=40) for p in ends]
            if names and "built without TLS" in outs[0][1]:
                continue  # built without TLS
            expect([p.returncode for p in ends] == [0, 0], outs)
            expect(word in outs[0][0], outs[0])


def certificates(folder):
    """A CA and two workers' certificates, as docs/security.md makes them; the options, %d = rank."""
    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)
    if not os.path.exists(os.path.join(folder, "ca.pem")):
        openssl("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
        for r in (0, 1):
            name = "rank-%d" % r
            openssl("req", "-newkey", "ed25519", "-nodes", "-keyout", name + ".key", "-out", name + ".csr", "-subj", "/CN=" + name)
            with open(os.path.join(folder, "names"), "w") as f:
                f.write("subjectAltName=DNS:%s" % name)
            openssl("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                    "-extfile", "names", "-out", name + ".pem")
    return ["--tls-ca", "ca.pem", "--tls-cert", "rank-%d.pem", "--tls-key", "rank-%d.key"]


def workers_of(process):
    with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as f:
        return sorted(map(int, f.read().split()))


def stuck_training(folder, *args, **extra):
    """A training of three workers the last of which is stopped. Its parent, and that worker."""
    with open(os.path.join(folder, "text"), "w") as f:
        f.write("the quick brown fox jumps over the lazy dog\n" * 40)
    p = start(folder, TRAIN, *SMALL, "--workers", 3, *args, **extra)
    until = time.time() + 10
    while len(workers_of(p)) < 3:
        expect(time.time() < until and p.poll() is None, "three workers did not start")
        time.sleep(0.05)
    time.sleep(1.5)
    last = workers_of(p)[-1]
    os.kill(last, signal.SIGSTOP)
    return p, last


@case("SIGUSR1 to any process of a stuck run dumps its ranks, and Ctrl-C ends it")
def stuck(folder):
    p, last = stuck_training(folder, "--peer-timeout", 60, "--dump", "d.%r.jsonl")
    time.sleep(2.5)  # the others wait by now, and have heard that it is silent
    os.kill(p.pid, signal.SIGUSR1)
    until = time.time() + 5
    while len(glob.glob(os.path.join(folder, "d.*.jsonl"))) < 2:
        expect(time.time() < until, "no dumps came")
        time.sleep(0.05)
    dumps = sorted(glob.glob(os.path.join(folder, "d.*.jsonl")))
    expect([os.path.basename(d) for d in dumps] == ["d.0.jsonl", "d.1.jsonl"], dumps)
    out, _ = run(folder, NETCHECK, "--merge", *dumps)
    expect("rank 2 of 3 left no dump" in out and "in it" in out or "did not finish" in out, out)
    begin = time.time()
    os.kill(p.pid, signal.SIGINT)
    time.sleep(2)
    alive = [w for w in workers_of(p) if w != last]
    expect(not alive, "workers still wait %.1f s after Ctrl-C" % (time.time() - begin))
    os.kill(last, signal.SIGCONT)
    _, err = p.communicate(timeout=20)
    expect(p.returncode == 130, "exit code %s: %s" % (p.returncode, err))


@case("an operation that times out leaves dumps, and the sentence names them")
def timed_out(folder):
    p, last = stuck_training(folder, DREAMDDP_OP_TIMEOUT="2", DREAMDDP_DUMP="post", DREAMDDP_PEER_TIMEOUT="60")
    begin = time.time()
    time.sleep(4)
    os.kill(last, signal.SIGCONT)
    _, err = p.communicate(timeout=20)
    expect(p.returncode == 3, "exit code %s: %s" % (p.returncode, err))
    expect(time.time() - begin < 12, "it took %.1f s" % (time.time() - begin))
    expect("DREAMDDP_OP_TIMEOUT (now 2 s)" in err and "; the last operations are in post." in err, err)
    with open(os.path.join(folder, "post.0")) as f:
        head = json.loads(f.readline())
        waits = [r for r in map(json.loads, f) if r["state"] in ("active", "queued")]
    expect(head["rank"] == 0 and head["world"] == 3 and "timed out" in head["error"]["text"], head)
    # not always the last line: the first layer's average overtakes those before it
    expect(waits and waits[-1]["layer"], waits)


@case("a slow rank is named by what it computes, not by what it waits")
def slow(folder):
    for name, seconds in (("fast", 0.005), ("slow", 0.010)):
        with open(os.path.join(folder, name), "w") as f:
            f.write("layer,params,forward_s,backward_s,comm_s\n")
            f.writelines("l%d,500,%g,%g,0.001\n" % (i, seconds, seconds) for i in range(3))
    for strategy in ("dreamddp", "ssgd"):
        address = "127.0.0.1:%d" % free_port()
        page = ["--report", "r.html"] if strategy == "dreamddp" else []
        ranks = [start(folder, TRAIN, "--emulate-compute", "slow" if r == 1 else "fast", "--workers", 3, "--rank", r,
                       "--addr", address, "--steps", 40, "--period", 4, "--strategy", strategy, "--json", "r%d" % r,
                       *(page if r == 0 else []), DREAMDDP_LOG="warn") for r in range(3)]
        outs = [p.communicate(timeout=40) for p in ranks]
        expect([p.returncode for p in ranks] == [0, 0, 0], outs)
        result = json.loads(outs[0][0].splitlines()[-1])
        # twice as slow by what it sleeps; what a busy machine adds to both brings them closer
        expect(result["slowest_rank"] == 1 and 1.25 < result["slow_ratio"] < 2.3, result)
        named = re.findall(r"rank 1 computes (\S+) x slower than the median \((\S+) ms against (\S+) ms\)", outs[0][1])
        ratios = [float(slow) / float(median) for _, slow, median in named]
        # again only where it changed by a fifth
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


@case("a worker that is lost, rank 0 too, is in the JSON lines and on the page")
def lost(folder):
    with open(os.path.join(folder, "profile"), "w") as f:
        f.write("layer,params,forward_s,backward_s,comm_s\n")
        f.writelines("l%d,500,0.01,0.01,0.001\n" % i for i in range(3))
    for gone in (2, 0):
        with open(os.path.join(folder, "script"), "w") as f:
            f.write("t=1.5 kill %d\n" % gone)
        out, _ = run(folder, TRAIN, "--emulate-compute", "profile", "--workers", 3, "--min-world", 2, "--steps", 50,
                     "--period", 4, "--net-script", "script", "--quiet", "--json", "j", "--report", "r.html")
        result = json.loads(out.splitlines()[-1])
        expect(result["workers"] == 2 and result["wait_ms"] is not None and result["step_ms"] > 50, result)
        with open(os.path.join(folder, "j")) as f:
            notes = [n for n in map(json.loads, f) if n["event"] == "note" and n["kind"] == "lost"]
        expect([n["text"] for n in notes] == ["rank %d was lost, 2 workers" % gone], notes)
        expect(1 < notes[0]["time_s"] < 20 and 0 < notes[0]["step"] <= 50, notes)
        with open(os.path.join(folder, "r.html")) as f:
            expect(notes[0]["text"] in f.read(), "the page says nothing of it")


if __name__ == "__main__":
    sys.exit(run_cases(2))
