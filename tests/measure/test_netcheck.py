#!/usr/bin/env python3
"""[long] build/netcheck on links with known properties, and the dumps of stuck trainers.

    tests/measure/test_netcheck.py [WORD...]     only the cases whose names contain one of the words

Needs build/netcheck, build/train_gpt, build/plan and build/bench_allreduce."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Wrong, case, expect, run_cases, ticks, unused_port  # noqa: E402

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
        out, err = p.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        raise Wrong("%s did not end" % (args,))
    expect(code is None or p.returncode == code, "%s: exit code %s, not %s: %s" % (args, p.returncode, code, err[-500:]))
    return out, err


@case("plan place, plan fence and the trainers read the written network")
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


@case("a requirement far below the link rates is met, one far above is not")
def required(folder):
    for require, code, words in (("1mbit,5000ms", 0, ("required 1mbit,5000ms: met",)), ("5gbit,5000ms", 1, ("not met", "too slow")),
                                 ("1mbit,1ms", 1, ("not met", " ms  too far")), ("none", 0, ("none: met",))):
        out, err = run(folder, NETCHECK, "--workers", 2, "--net", "200mbit,2ms", "--require", require, "--json", "n.json", code=code)
        expect(all(w in out for w in words) and not err.strip(), "%s: %s%s" % (require, out[-300:], err))
        with open(os.path.join(folder, "n.json")) as f:
            said = json.loads(f.read())
        expect((said["required"], said["met"]) == (require, 1 - code), said)


@case("ranks started by hand or with a launcher's variables measure their links")
def apart(folder):
    address = "127.0.0.1:%d" % unused_port()
    other = start(folder, NETCHECK, "--workers", 2, "--rank", 1, "--addr", address)
    out, _ = run(folder, NETCHECK, "--workers", 2, "--rank", 0, "--addr", address)
    expect("2 workers" in out, out)
    expect(other.wait(timeout=60) == 0, "rank 1 failed")
    expect(other.communicate()[0] == "", "a rank other than 0 printed the table")
    port = str(unused_port(2))  # rank 0 listens at MASTER_PORT + 1
    launched = [start(folder, NETCHECK, RANK=str(r), WORLD_SIZE="3", LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=port) for r in range(3)]
    outs = [p.communicate(timeout=120) for p in launched]
    expect([p.returncode for p in launched] == [0, 0, 0], outs)
    expect("3 workers" in outs[0][0], outs)


@case("user mistakes fail with a one-line error")
def mistakes(folder):
    for args, code, word in (([], 2, "no links"), (["--workers", 0], 2, "--workers 0: choose a number from 2 to 256"),
                             (["--workers", 1], 2, "--workers 1: "), (["--workers", 257], 2, "--workers 257: "),
                             (["--rank", 0], 2, "--rank 0 needs --workers N"),
                             (["--workers", 2, "--transport", "mpi"], None, "MPI"),  # 2 if it was built without MPI, else 1
                             (["--workers", 2, "--net", "fast"], 2, "100mbit,20ms"),
                             (["--workers", 2, "--rank", 2], 2, "ranks count from 0"), (["--merge"], 2, "dump"),
                             (["--merge", "nowhere"], 1, "nowhere"),
                             (["--workers", 2, "--write-network", "no/such/file"], 1, "no/such/file"),
                             (["--workers", 2, "--tflops", "1"], 2, "--write-network"),
                             (["--workers", 2, "--write-network", "n", "--tflops", "1,-2"], 2, "1,-2"),
                             (["--workers", 2, "--write-network", "n", "--dp-bytes", "-1"], 2, "-1"),
                             (["--workers", 2, "--require", "fast"], 2, "--require"),
                             (["--transport", "pigeon"], 2, "pigeon")):
        _, err = run(folder, NETCHECK, *args, code=code)
        expect(word in err and err.count("\n") == 1, "%s: %s" % (args, err))
    _, err = run(folder, NETCHECK, "--workers", 2, "--rank", 0, "--addr", "127.0.0.1:%d" % unused_port(),
                 "--join-timeout", 0.5, code=3)
    expect("DREAMDDP_JOIN_TIMEOUT" in err, err)


@case("netcheck and bench_allreduce have the trainers' connection options")
def agree(folder):
    def options(program):
        out, _ = run(folder, os.path.join(BUILD, program), "--help")
        return set(re.findall(r"^  (--[a-z-]+(?: [A-Z][A-Z:,.]*)?) ", out, re.M))
    wanted = {"--transport NAME", "--net RATE,DELAY", "--net-script FILE", "--rank R", "--addr HOST:PORT", "--insecure",
              "--connect-timeout S", "--join-timeout S", "--peer-timeout S", "--op-timeout S", "--tls-psk FILE",
              "--tls-ca FILE", "--tls-cert FILE", "--tls-key FILE", "--workers N"}
    for program in ("train_gpt", "netcheck", "bench_allreduce"):
        expect(wanted <= options(program), "%s lacks %s" % (program, wanted - options(program)))


@case("ranks connect with certificates and through a file; contradictory options fail")
def certified(folder):
    for program in (NETCHECK, BENCH):
        for args, word in ((["--tls-ca", "ca.pem"], "tls"), (["--addr", "1.2.3.4:5"], "--rank"), (["--peer-timeout", -1], "--peer-timeout -1"),
                           (["--rank", 0, "--transport", "threads"], "tcp")):
            _, err = run(folder, program, "--workers", 2, *args, code=None)
            expect(word in err.lower() and err.count("\n") == 1, "%s %s: %s" % (program, args, err))
    for program, more, word in ((NETCHECK, [], "2 workers, every one"), (BENCH, ["--bytes", 4096, "--iters", 2], '"ranks":2')):
        tls = [[]] if not shutil.which("openssl") else [[], certificates(folder)]
        for names in tls:
            ends = [start(folder, program, "--workers", 2, "--rank", r, "--addr", "file://%s/meet" % folder, *more,
                          *[o % r if "%d" in o else o for o in names]) for r in (0, 1)]
            outs = [p.communicate(timeout=120) for p in ends]
            if names and "built without TLS" in outs[0][1]:
                continue  # built without TLS
            expect([p.returncode for p in ends] == [0, 0], outs)
            expect(word in outs[0][0], outs[0])


def certificates(folder):
    """Creates a CA and the certificates of two workers, as in docs/howto/tls.md. Returns the options; %d stands
    for the rank."""
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


def wait_until(holds, what):
    end = time.time() + 120  # only a hang takes longer
    while not holds():
        expect(time.time() < end, what)
        time.sleep(0.02)


def dumps_of(folder, pattern):
    return sorted(glob.glob(os.path.join(folder, pattern)))


def stuck_training(folder, *args, **extra):
    """Starts a training of three workers and stops the last one. Returns the parent process and the pid of that
    worker."""
    with open(os.path.join(folder, "text"), "w") as f:
        f.write("the quick brown fox jumps over the lazy dog\n" * 40)
    p = start(folder, TRAIN, *SMALL, "--workers", 3, *args, **extra)
    wait_until(lambda: p.poll() is not None or len(workers_of(p)) == 3 and all(ticks(w) >= 20 for w in workers_of(p)),
               "three workers did not train")
    expect(p.poll() is None, "the training ended early")
    last = workers_of(p)[-1]
    os.kill(last, signal.SIGSTOP)
    return p, last


@case("SIGUSR1 to any process of a stuck run dumps its ranks, and Ctrl-C ends it")
def stuck(folder):
    p, last = stuck_training(folder, "--peer-timeout", 60, "--dump", "d.%r.jsonl")
    time.sleep(2.5)  # the other workers wait by now and have detected the silent worker
    os.kill(p.pid, signal.SIGUSR1)
    wait_until(lambda: len(dumps_of(folder, "d.*.jsonl")) >= 2, "no dumps were written")
    dumps = dumps_of(folder, "d.*.jsonl")
    expect([os.path.basename(d) for d in dumps] == ["d.0.jsonl", "d.1.jsonl"], dumps)
    out, _ = run(folder, NETCHECK, "--merge", *dumps)
    expect("rank 2 of 3 left no dump" in out and "in it" in out or "did not finish" in out, out)
    os.kill(p.pid, signal.SIGINT)
    wait_until(lambda: workers_of(p) in ([last], []), "workers still wait after Ctrl-C")
    os.kill(last, signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    expect(p.returncode == 130, "exit code %s: %s" % (p.returncode, err))


@case("an operation that times out writes dumps, and the error names them")
def timed_out(folder):
    p, last = stuck_training(folder, DREAMDDP_OP_TIMEOUT="4", DREAMDDP_DUMP="post", DREAMDDP_PEER_TIMEOUT="60")
    wait_until(lambda: len(dumps_of(folder, "post.[01]")) == 2, "the operation does not time out")
    os.kill(last, signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    expect(p.returncode == 3, "exit code %s: %s" % (p.returncode, err))
    expect("DREAMDDP_OP_TIMEOUT (now 4 s)" in err and "; the last operations are in post." in err, err)
    with open(os.path.join(folder, "post.0")) as f:
        head = json.loads(f.readline())
        waits = [r for r in map(json.loads, f) if r["state"] in ("active", "queued")]
    expect(head["rank"] == 0 and head["world"] == 3 and "timed out" in head["error"]["text"], head)
    # not always the last line, because the first layer's average has priority over earlier ones
    expect(waits and waits[-1]["layer"], waits)


@case("a lost worker is reported in the JSON lines and on the page, even rank 0")
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
        expect(1 < notes[0]["time_s"] and 0 < notes[0]["step"] <= 50, notes)
        with open(os.path.join(folder, "r.html")) as f:
            expect(notes[0]["text"] in f.read(), "the page does not contain it")


if __name__ == "__main__":
    sys.exit(run_cases(2))
