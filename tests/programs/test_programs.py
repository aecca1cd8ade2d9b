#!/usr/bin/env python3
"""[timed] The programs as a user meets them: mistakes, signals, lost workers, and the figures they print.

    tests/programs/test_programs.py [WORD...]     only the cases whose names contain one of the words

Needs build/train_gpt, build/train_image, build/own_loop, build/own_strategy, build/pipeline, build/quickstart and build/plan
(`make all`). Every case runs in its own folder; beyond what it checks itself, no program may leave a process of its
group, a temporary file, or more than one line of complaint behind.
"""
import csv as csv_module
import functools
import glob
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import CASES, Wrong, case as plain_case, chosen, expect, run_cases  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
TRAIN = os.path.join(BUILD, "train_gpt")
GRADIENTS = ["ssgd", "wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte"]
PARAMETERS = ["localsgd", "enp", "dreamddp"]
OUTER = ["diloco", "sparseloco"]
STRATEGIES = GRADIENTS + PARAMETERS + ["deft"] + OUTER
MEAN = ["--outer-lr", 1, "--outer-momentum", 0]
SMALL = "--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --data text --quiet".split()
TEXT_MODEL = "--layers 2 --heads 2 --dim 16 --seq 16 --batch 2 --data text --quiet".split()
LAYERS = 4  # embed, h.0.attn, h.0.mlp, head
PERIOD = ["--period", "4"]
LONG = SMALL + ["--steps", "100000000"]


def case(name):
    """Its folder has a text."""
    def with_text(function, folder):
        with open(os.path.join(ROOT, "dreamddp.h")) as f:
            write(folder, "text", f.read(30000))
        function(folder)
    return lambda function: plain_case(name)(functools.partial(with_text, function))


# ---- running ----

def environment(extra):
    """Without what a launcher or a user of dreamddp may have set around this test."""
    own = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|SLURM_|MASTER_")
    return dict({k: v for k, v in os.environ.items() if not own.match(k)}, **extra)


def start(folder, *args, program=TRAIN, env=None, limit=None):
    def shrink():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen([program, *map(str, args)], cwd=folder, env=environment(env or {}), text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True, preexec_fn=shrink if limit else None)


def members(group):
    """Processes of a group that still run (one that has ended and only waits for init does not)."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                state, _, of = f.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state not in "ZX":
            found.append(int(pid))
    return found


def ranks_of(p):
    """The workers of a launcher in the order in which it started them; the system's numbers begin anew at some time."""
    with open("/proc/sys/kernel/pid_max") as f:
        most = int(f.read())
    return sorted(set(members(p.pid)) - {p.pid}, key=lambda pid: (pid - p.pid) % most)


def finish(p, folder, seconds=40, patience=3.0):
    """(exit code, stdout, stderr) of a program that has left nothing behind."""
    try:
        out, err = p.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, err = p.communicate()
        raise Wrong("still running after %g s; said: %s" % (seconds, err[-300:])) from None
    gone = time.time() + patience
    while members(p.pid) and time.time() < gone:
        time.sleep(0.05)
    left = members(p.pid)
    if left:
        os.killpg(p.pid, signal.SIGKILL)
    expect(not left, "%d processes were left running" % len(left))
    partial = [f for f in os.listdir(folder) if ".tmp." in f]
    expect(not partial, "left " + " ".join(partial))
    return p.returncode, out, err


def run(folder, *args, code=0, **how):
    got, out, err = finish(start(folder, *args, **how), folder)
    expect(got == code, "exit %d, expected %d; stderr: %s" % (got, code, err[-300:]))
    return out, err


def sentence(err, *words, program="train_gpt"):
    lines = [s for s in err.splitlines() if s.strip()]
    expect(len(lines) == 1, "%d lines on stderr, expected one: %s" % (len(lines), err[-400:]))
    expect(lines[0].startswith(program + ": "), "not from %s: %s" % (program, lines[0]))
    for w in words:
        expect(re.search(w, lines[0]), "no /%s/ in: %s" % (w, lines[0]))


def result(out):
    lines = out.splitlines()
    expect(lines, "nothing on stdout")
    return json.loads(lines[-1])


def train(folder, *args, **how):
    return result(run(folder, *args, **how)[0])


def write(folder, name, text):
    with open(os.path.join(folder, name), "w") as f:
        f.write(text)
    return name


def wait_until(holds, seconds, what):
    end = time.time() + seconds
    while not holds():
        expect(time.time() < end, what)
        time.sleep(0.05)


# ---- mistakes: one sentence that names the value and the remedy ----

def mistake(name, code, words, args, env=None, files=None):
    @case(name)
    def check(folder):
        for f, text in (files or {}).items():
            write(folder, f, text)
        out, err = run(folder, *SMALL, "--steps", "4", *args.split(" "), code=code, env=env)
        expect(not out, "something on stdout: " + out[:100])
        sentence(err, *words)


def csv(*rows, header="layer,params,forward_s,backward_s,comm_s"):
    return "\n".join([header, *rows]) + "\n"


mistake("stages that do not divide the workers", 2, ["--stages 3", "--workers 4"], "--stages 3 --workers 4")
mistake("a schedule without stages", 2, ["--pipeline zb", "--stages"], "--pipeline zb")
mistake("micro-batches ahead without stages", 2, ["--ahead 2", "--stages"], "--ahead 2")
PLACE = '{"cost_s": 1, "assign": [[0, 3], [2, 1]]}\n'
CUT = '{"pipeline_s": 1, "operators": 15, "segments": [%s]}'
SEGMENT = '{"device": %d, "first": %d, "end": %d}'


def cut(*segments):
    return CUT % ", ".join(SEGMENT % s for s in segments)


mistake("a placement that may lose a rank", 2, ["--min-replicas 1", "--placement place.json"],
        "--workers 4 --microbatches 2 --min-replicas 1 --placement place.json", files={"place.json": PLACE})
mistake("a placement for another number of workers", 2, ["place.json", "4 devices", "2 workers"],
        "--workers 2 --placement place.json", files={"place.json": PLACE})
mistake("a placement of other stages", 2, ["--stages 4", "place.json has 2"],
        "--workers 4 --stages 4 --placement place.json", files={"place.json": PLACE})
mistake("a device placed twice", 2, ["place.json", "of its own", "0..3"], "--workers 4 --placement place.json",
        files={"place.json": PLACE.replace("3", "2")})
mistake("a placement that is a cut", 1, ["cut.json", "plan place"], "--workers 4 --placement cut.json",
        files={"cut.json": cut((0, 0, 15))})
mistake("a placement that is not there", 1, ["no.json", "No such file"], "--workers 4 --placement no.json")
mistake("a cut that misses an operator", 2, ["cut.json", "operator 6", "h.0", "once"], "--workers 2 --cut cut.json",
        files={"cut.json": cut((0, 0, 6), (1, 7, 15))})
mistake("a cut that doubles an operator", 2, ["cut.json", "operator 6", "device 0", "device 1"],
        "--workers 2 --cut cut.json", files={"cut.json": cut((0, 0, 7), (1, 6, 15))})
mistake("a cut with a cycle", 2, ["cut.json", "device 0 to device 1 and back", "cycle"], "--workers 2 --cut cut.json",
        files={"cut.json": cut((0, 0, 3), (1, 3, 6), (0, 6, 15))})
mistake("a cut of another model", 2, ["cut.json", "15 operators", "25"], "--layers 2 --workers 2 --cut cut.json",
        files={"cut.json": cut((0, 0, 6), (1, 6, 15))})
mistake("a cut of more stages than workers", 2, ["cut.json", "3 stages", "2 workers"], "--workers 2 --cut cut.json",
        files={"cut.json": cut((0, 0, 6), (4, 6, 9), (1, 9, 15))})
mistake("a cut and a placement that disagree", 2, ["cut.json", "3 stages", "placement has 2"],
        "--workers 4 --placement place.json --cut cut.json",
        files={"place.json": PLACE, "cut.json": cut((0, 0, 6), (4, 6, 9), (1, 9, 15))})
mistake("unknown pipeline schedule", 2, ["2f2b", "gpipe, 1f1b or zb"], "--stages 2 --workers 2 --pipeline 2f2b")
mistake("unknown edge wire", 2, ["foo", "bf16", "adatopk:R"], "--stages 2 --workers 2 --edge-wire foo")
mistake("an edge that keeps more than there is", 2, ["topk:0.5", "from 1"], "--stages 2 --workers 2 --edge-wire topk:0.5")
mistake("an edge without stages", 2, ["--edge-wire int8", "--stages"], "--edge-wire int8")
mistake("feedback of an edge that rounds nothing", 2, ["--edge-feedback", "topk:R"], "--stages 2 --workers 2 --edge-feedback")
mistake("a bottleneck of nothing", 2, ["bottleneck:1000", "take at most"], "--stages 2 --workers 2 --edge-wire bottleneck:1000")
mistake("more stages than layers", 2, ["5 stages", "4 layers", "fewer"], "--stages 5 --workers 5")
mistake("servers in a pipeline", 2, ["servers", "pipeline"], "--stages 2 --workers 2 --strategy bsp --servers 1")
mistake("replicas without stages", 2, ["--min-replicas 1", "--stages"], "--min-replicas 1 --workers 2")
mistake("more replicas than there are", 2, ["--min-replicas 3", "2 pipelines"], "--min-replicas 3 --workers 4 --stages 2")
mistake("micro-batches that fewer pipelines cannot share", 2, ["3 micro-batches", "multiple of 2"],
        "--min-replicas 1 --workers 6 --stages 2 --microbatches 3")
mistake("changes that each replica has a share of", 2, ["diloco", "choose dreamddp"],
        "--min-replicas 1 --workers 4 --stages 2 --microbatches 2 --strategy diloco")
mistake("unknown strategy", 2, ["bogus", "dreamddp"], "--strategy bogus")
mistake("unknown model", 2, ["vgg99", "gpt2"], "--model vgg99")
mistake("unknown optimizer", 2, ["lion", "adamw", "muon"], "--optimizer lion")
mistake("state period 0", 2, ["--state-period 0,3", "3,6"], "--state-period 0,3")
mistake("rate of matrices 0", 2, ["--muon-lr 0"], "--optimizer muon --muon-lr 0")
mistake("unknown schedule", 2, ["zigzag", "cosine"], "--schedule zigzag")
mistake("unknown transport", 2, ["pigeon", "tcp"], "--transport pigeon")
mistake("unknown solver", 2, ["magic", "scatter"], "--solver magic")
mistake("unknown flag", 2, ["--perod", "--period"], "--perod 3")
mistake("flag of a later version", 2, ["--compress", "--help"], "--compress topk")
mistake("flag without its value", 2, ["--lr"], "--lr")
mistake("unknown variable", 2, ["DREAMDDP_PERIODE", "DREAMDDP_PERIOD"], "--workers 2", env={"DREAMDDP_PERIODE": "3"})
mistake("bad variable", 2, ["DREAMDDP_PEER_TIMEOUT", "soon"], "--workers 2", env={"DREAMDDP_PEER_TIMEOUT": "soon"})
mistake("unknown strategy in a variable", 2, ["bogus"], "--workers 2", env={"DREAMDDP_STRATEGY": "bogus"})
mistake("period 0", 2, ["--period 0", "1"], "--period 0")
mistake("negative period", 2, ["-3"], "--period -3")
mistake("outer rate 0", 2, ["--outer-lr 0", "above 0"], "--strategy diloco --outer-lr 0")
mistake("outer rate that is no number", 2, ["--outer-lr nan"], "--strategy diloco --outer-lr nan")
mistake("outer momentum 1", 2, ["--outer-momentum 1", "below 1"], "--strategy diloco --outer-momentum 1")
mistake("outer rate 0 in a variable", 2, ["DREAMDDP_OUTER_LR=0", "above 0"], "--strategy diloco", env={"DREAMDDP_OUTER_LR": "0"})
mistake("unknown overlap", 2, ["never", "eager"], "--strategy diloco --overlap never")
mistake("landing without fragments", 2, ["landing 2", "plan"], "--strategy diloco --overlap stream --landing 2")
mistake("more fragments than steps", 2, ["fragments 9", "period of 4"],
        "--strategy diloco --overlap stream --fragments 9 --period 4")
mistake("fragments without streaming", 2, ["fragments", "stream"], "--strategy diloco --fragments 2")
mistake("a fraction of more than all", 2, ["topk:2", "topk:FRACTION"], "--strategy diloco --wire topk:2")
mistake("four bits of parameters", 2, ["dreamddp", "int4", "choose"], "--workers 2 --strategy dreamddp --wire int4")
mistake("the largest of gradients", 2, ["ssgd", "topk", "choose"], "--workers 2 --strategy ssgd --wire topk:0.1")
mistake("no workers", 2, ["--workers 0", "1"], "--workers 0")
mistake("too many workers", 2, ["5000", "256"], "--workers 5000")
mistake("no steps", 2, ["--steps 0", "1"], "--steps 0")
mistake("steps that are no number", 2, ["--steps", "many"], "--steps many")
mistake("learning rate 0", 2, ["--lr 0", "above 0"], "--lr 0")
mistake("learning rate that is no number", 2, ["--lr", "fast"], "--lr fast")
mistake("learning rate nan", 2, ["--lr", "nan"], "--lr nan")
mistake("learning rate that explodes", 1, ["nan|inf", "learning rate"], "--lr 1e20 --workers 2")
mistake("vocabulary below the data's", 2, ["--vocab 5", "0 takes"], "--vocab 5")
mistake("heads that do not divide", 2, ["16", "3 heads", "divide"], "--heads 3")
mistake("no layers", 2, ["layers 0"], "--layers 0")
mistake("data that is not there", 1, ["nofile", "No such file"], "--data nofile")
mistake("data that is empty", 1, ["empty", "seq"], "--data empty", files={"empty": ""})
mistake("data of one byte", 1, ["one", "1 byte"], "--data one", files={"one": "x"})
mistake("data that is a directory", 1, ["directory"], "--data .")
mistake("data shorter than a window", 2, ["short|windows", "seq"], "--data few", files={"few": "a few letters"})
for spec in ["100", "abc", "-1mbit,5ms", "0mbit,1ms", "nan,1ms", "100mbit,5", "100mbit,-5ms", "100mbit,5ms,3",
             ",", ""]:
    mistake("net '%s'" % spec, 2, [re.escape(spec), "100mbit,20ms"], "--workers 2 --net " + spec)
for flag in ["--profile", "--emulate-compute"]:
    for what, words, text in [
            ("a missing column", ["bad.csv", "line 1", "backward_s"],
             csv("a,1,1,2", header="layer,params,forward_s,comm_s")),
            ("a missing value", ["bad.csv", "line 2", "backward_s"], csv("a,1,1,,2")),
            ("a time that is nan", ["bad.csv", "line 2", "nan"], csv("a,1,1,nan,2")),
            ("a negative time", ["bad.csv", "line 3", "-1"], csv("a,1,1,1,1", "b,1,1,-1,2")),
            ("no line", ["bad.csv", "empty"], "")]:
        mistake("%s with %s" % (flag, what), 1, words, "--workers 2 %s bad.csv" % flag, files={"bad.csv": text})
    mistake("%s that is not there" % flag, 1, ["no.csv", "No such file"], "--workers 2 %s no.csv" % flag)
mistake("--profile for another model", 1, ["two.csv", "2 rows", "4 layers"], "--workers 2 --profile two.csv",
        files={"two.csv": csv("a,1,1,1,1", "b,1,1,1,1")})
mistake("--plan for another period", 1, ["plan.json", "period 2", "period 4"],
        "--workers 2 --period 4 --plan plan.json",
        files={"plan.json": '{"sets": [[0, 1], [2, 3]]}'})
mistake("--plan for fewer layers", 1, ["plan.json", "layer 3"], "--workers 2 --period 2 --plan plan.json",
        files={"plan.json": '{"sets": [[0], [1, 2]]}'})
mistake("--plan for more layers", 1, ["plan.json", "0 to 3"], "--workers 2 --period 2 --plan plan.json",
        files={"plan.json": '{"sets": [[0, 1], [2, 3, 4]]}'})
mistake("--plan that is no plan", 1, ["text", "line 1"], "--workers 2 --plan text")
mistake("--rank outside the world", 2, ["--rank 2", "--workers 2"], "--rank 2 --workers 2")
mistake("--addr without --rank", 2, ["--addr", "--rank"], "--addr 127.0.0.1:29500 --workers 2")
mistake("--addr beyond this machine", 2, ["insecure|encrypt"], "--rank 0 --workers 2 --addr 192.0.2.1:29500")
mistake("--addr nonsense", 2, ["127.0.0.1:port"], "--rank 0 --workers 2 --addr 127.0.0.1:port")
for flag in ["--json", "--trace"]:
    mistake(flag + " in a folder that is not there", 1, ["no/where", "No such file"], flag + " no/where")
    mistake(flag + " onto a folder", 1, ["directory"], flag + " .")

for flag, name in [("--json", "out.jsonl"), ("--trace", "out.json")]:
    @case(flag + " when the disk is full")
    def check(folder, flag=flag, name=name):
        out, err = run(folder, *SMALL, "--steps", 200, "--workers", 2, flag, name, code=1, limit=4096)
        sentence(err, name, "large|space")
        expect(not os.path.exists(os.path.join(folder, name)), "a partial %s was left" % name)


@case("--json to a full device")
def check(folder):
    sentence(run(folder, *SMALL, "--steps", 4, "--json", "/dev/full", code=1)[1], "/dev/full", "space")


@case("stdout that is full, and stdout that is closed")
def check(folder):
    for command in ["exec %s %s >/dev/full", "(sleep 0.5; exec %s %s) | :; exit ${PIPESTATUS[0]}"]:
        out, err = run(folder, "-c", command % (TRAIN, " ".join(SMALL + ["--steps", "4"])),
                       program="/bin/bash", code=1)
        sentence(err, "space|pipe")


# ---- stopping and going on ----

@case("a killed run that goes on ends with the same parameters")
def check(folder):
    args = SMALL + ["--workers", 2, "--deterministic", "--dropout", "0.1", "--steps", 4000, "--strategy", "localsgd"]
    p = start(folder, *args, "--save", "ck", "--save-every", 1, "--keep", 3)
    wait_until(lambda: len(glob.glob(os.path.join(folder, "ck", "*", "manifest.json"))) > 1, 30, "no checkpoint")
    os.killpg(p.pid, signal.SIGKILL)
    p.communicate()
    for f in glob.glob(os.path.join(folder, "ck", "*", "*.tmp.*")):
        os.remove(f)  # of the write that was cut off
    last = max(int(f.split("step-")[1][:12]) for f in glob.glob(os.path.join(folder, "ck", "*", "manifest.json")))
    args[args.index(4000)] = last + 7
    whole, rest = train(folder, *args), train(folder, *args, "--resume", "ck")
    expect(whole["param_hash"] == rest["param_hash"], "%s after resuming at %d, %s without" % (
        rest["param_hash"], last, whole["param_hash"]))
    sentence(run(folder, *args, "--resume", "ck", "--workers", 1, code=1)[1], "2 workers", "not synchronised")
    sentence(run(folder, *args, "--resume", "none", code=1)[1], "none", "No such file")


@case("weights that leave one run begin the next")
def check(folder):
    first = train(folder, *SMALL, "--steps", 4, "--export", "w.safetensors")
    second = train(folder, *SMALL, "--steps", 1, "--lr", "1e-30", "--weight-decay", 0, "--load", "w.safetensors")
    expect(first["param_hash"] == second["param_hash"], "other weights")
    sentence(run(folder, *SMALL, "--steps", 1, "--layers", 2, "--load", "w.safetensors", code=1)[1], "w.safetensors",
             "h.1.* is missing")
    sentence(run(folder, *SMALL, "--steps", 1, "--load", "text", code=1)[1], "text", "safetensors")


@case("train_image: a folder of images, and what it refuses")
def check(folder):
    image = os.path.join(BUILD, "train_image")
    record = bytes([3]) + bytes(range(256)) * 12
    for name in ("data_batch_1.bin", "test_batch.bin"):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(record * 8)
    args = ["--data", ".", "--steps", 3, "--batch", 2, "--hidden", "4", "--quiet"]
    got = result(run(folder, *args, "--workers", 2, program=image)[0])
    expect(0 <= got["test_accuracy"] <= 1 and got["images_per_s"] > 0 and got["steps"] == 3, str(got))
    for words, more in ((["lenet", "resnet18"], ["--model", "lenet"]), (["4,x", "512,256"], ["--hidden", "4,x"]),
                        (["--batch 0", "image"], ["--batch", 0])):
        sentence(run(folder, *args, *more, code=2, program=image)[1], *words, program="train_image")
    with open(os.path.join(folder, "data_batch_1.bin"), "ab") as f:
        f.write(b"x")
    sentence(run(folder, *args, code=1, program=image)[1], "data_batch_1.bin", "record 8 has only 1",
             program="train_image")


# ---- ranks that are started one by one ----

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pair(folder, first, second, env=None):
    """Two ranks with their own arguments; a list of (exit code, stdout, stderr)."""
    addr = "127.0.0.1:%d" % free_port()
    ranks = [start(folder, *SMALL, "--steps", 6, "--workers", 2, "--rank", r, "--addr", addr, *more, env=env)
             for r, more in enumerate([first, second])]
    return [finish(p, folder) for p in ranks]


@case("two ranks started by hand train; rank 0 has the results")
def check(folder):
    (a, out, err), (b, nothing, err1) = pair(folder, ["--deterministic"], ["--deterministic", "--json", "x.jsonl"])
    expect(a == b == 0, "exit %d and %d: %s%s" % (a, b, err, err1))
    expect(not nothing, "rank 1 printed " + nothing)
    expect(not os.path.exists(os.path.join(folder, "x.jsonl")), "rank 1 wrote results")
    together = train(folder, *SMALL, "--steps", 6, "--workers", 2, "--deterministic")
    expect(result(out)["param_hash"] == together["param_hash"], "other bits than two workers of one command")


@case("ranks made by a launcher's environment")
def check(folder):
    addr = "127.0.0.1:%d" % free_port()
    ranks = [start(folder, *SMALL, "--steps", 6, "--json", "r%d" % r,
                   env={"DREAMDDP_RANK": str(r), "DREAMDDP_WORLD_SIZE": "3",
                        "DREAMDDP_ADDR": addr}) for r in range(3)]
    ended = [finish(p, folder) for p in ranks]
    expect([e[0] for e in ended] == [0, 0, 0], "exit codes: %s" % ended)
    expect(result(ended[0][1])["workers"] == 3, "not three workers: " + ended[0][1])
    expect([os.path.exists(os.path.join(folder, "r%d" % r)) for r in range(3)] == [True, False, False],
           "who wrote results?")


def disagree(name, first, second, *words):
    @case(name)
    def check(folder):
        for code, out, err in pair(folder, first, second):
            expect(code == 1, "exit %d, expected 1: %s" % (code, err))
            sentence(err, *words)


disagree("a peer with another period", PERIOD, ["--period", "7"], "period", "4", "7")
disagree("a peer with another layer list", [], ["--layers", "2"], "rank", "4", "6")
disagree("a peer with another strategy", ["--strategy", "ssgd"], ["--strategy", "wfbp"], "strategy|ssgd|wfbp")


@case("a port that another program holds")
def check(folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        out, err = run(folder, *SMALL, "--steps", 4, "--workers", 2, "--rank", 0, "--addr",
                       "127.0.0.1:%d" % port, code=1)
        sentence(err, str(port), "in use")


@case("a port that another rank 0 holds")
def check(folder):
    addr = "127.0.0.1:%d" % free_port()
    args = [*SMALL, "--steps", 4, "--workers", 2, "--rank", 0, "--addr", addr]
    both = [start(folder, *args, env={"DREAMDDP_CONNECT_TIMEOUT": "4"}) for _ in range(2)]
    codes = []
    for code, out, err in [finish(p, folder) for p in both]:
        codes.append(code)
        sentence(err, "in use" if code == 1 else "rank 1")
    expect(1 in codes and set(codes) <= {1, 3}, "exit codes %s" % codes)


@case("a peer that never comes")
def check(folder):
    addr = "127.0.0.1:%d" % free_port()
    for rank in range(2):
        p = start(folder, *SMALL, "--steps", 4, "--workers", 2, "--rank", rank, "--addr", addr,
                  env={"DREAMDDP_CONNECT_TIMEOUT": "2"})
        code, out, err = finish(p, folder)
        expect(code in (1, 3), "exit %d: %s" % (code, err))
        sentence(err, "rank %d" % (1 - rank))


# ---- signals and lost workers ----

def training(folder, *more, env=None, workers=4):
    """A long run over TCP that is in the middle of its steps, and its workers in rank order."""
    p = start(folder, *LONG, *PERIOD, "--workers", workers, "--net", "100mbit,1ms", *more, env=env)
    wait_until(lambda: len(members(p.pid)) == workers + 1, 20, "%d workers did not start" % workers)
    used = lambda pid: sum(map(int, open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[11:13]))
    ranks = ranks_of(p)
    wait_until(lambda: p.poll() is not None or all(used(k) >= 10 for k in ranks), 20, "the training did not begin")
    expect(p.poll() is None, "the training ended early")
    return p, ranks


def stopped(name, number, everyone):
    @case(name)
    def check(folder):
        p, ranks = training(folder, "--json", "x.jsonl", "--trace", "x.json")
        began = time.time()
        if everyone:
            os.killpg(p.pid, number)
        else:
            p.send_signal(number)
        code, out, err = finish(p, folder)
        expect(code == 130, "exit %d: %s" % (code, err))
        expect(time.time() - began < 10, "took %.1f s" % (time.time() - began))
        expect(not out, "results on stdout: " + out[:100])
        sentence(err, "interrupted")
        expect(os.listdir(folder) == ["text"], "left %s" % os.listdir(folder))


stopped("Ctrl-C reaches everyone", signal.SIGINT, True)
stopped("SIGINT reaches the parent only", signal.SIGINT, False)
stopped("SIGTERM reaches everyone", signal.SIGTERM, True)
stopped("SIGTERM reaches the parent only", signal.SIGTERM, False)

for where in ["--transport threads --workers 3", "--workers 1"]:
    @case("Ctrl-C with " + where)
    def check(folder, where=where):
        p = start(folder, *LONG, *where.split())
        time.sleep(1)
        p.send_signal(signal.SIGINT)
        code, out, err = finish(p, folder)
        expect(code == 130, "exit %d: %s" % (code, err))
        sentence(err, "interrupted")


def lost(name, number, which, seconds, env=None):
    @case(name)
    def check(folder):
        p, ranks = training(folder, "--strategy", "dreamddp", "--json", "x.jsonl", env=env)
        os.kill(ranks[which], number)
        code, out, err = finish(p, folder, seconds=seconds)
        expect(code == 3, "exit %d, expected 3: %s" % (code, err))
        sentence(err, "rank %d" % (which % 4), "(during|after) .*(layer|step)")
        with open(os.path.join(folder, "x.jsonl")) as f:
            events = [json.loads(line) for line in f]
        expect([e["event"] for e in events] == ["run", "error"], "the JSON lines say %s" % events)
        expect(events[1]["exit_code"] == 3, "the JSON lines say %s" % events[1])


lost("the first worker is killed", signal.SIGKILL, 0, 30)
lost("the last worker is killed", signal.SIGKILL, -1, 30)
lost("a worker is stopped", signal.SIGSTOP, 2, 30, {"DREAMDDP_PEER_TIMEOUT": "3"})
lost("the first worker is stopped", signal.SIGSTOP, 0, 30, {"DREAMDDP_PEER_TIMEOUT": "3"})


@case("a killed rank among ranks started by hand")
def check(folder):
    addr = "127.0.0.1:%d" % free_port()
    ranks = [start(folder, *LONG, "--workers", 3, "--rank", r, "--addr", addr, "--net",
                   "100mbit,1ms") for r in range(3)]
    time.sleep(2)
    expect(all(p.poll() is None for p in ranks), "ended early")
    ranks[1].kill()
    for r in (0, 2):
        code, out, err = finish(ranks[r], folder, seconds=30)
        expect(code == 3, "exit %d, expected 3: %s" % (code, err))
        sentence(err, "rank 1")
    ranks[1].communicate()


PIPES = TEXT_MODEL + "--workers 6 --stages 2 --microbatches 2 --strategy ssgd --net 100mbit,1ms --steps 150".split()


def stage_lost(folder, which, *more):
    """(exit code, stdout, stderr) of a run whose ranks are killed, one of them a second."""
    p = start(folder, *PIPES, *more)
    wait_until(lambda: len(members(p.pid)) == 7, 20, "6 workers did not start")
    ranks = ranks_of(p)
    for w in which:
        time.sleep(1.2)
        expect(p.poll() is None, "the training ended early")
        os.kill(ranks[w], signal.SIGKILL)
    return finish(p, folder, seconds=90)


@case("a lost stage is named")
def check(folder):
    code, out, err = stage_lost(folder, [3], "--pipeline", "zb")
    expect(code == 3, "exit %d: %s" % (code, err))
    sentence(err, r"stage 1 of pipeline 1 \(rank 3\) .*was lost")


@case("pipelines go on without those that have lost a rank")
def check(folder):
    whole = train(folder, *PIPES)
    for which, left in ([2], 4), ([5, 0], 2):
        code, out, err = stage_lost(folder, which, "--min-replicas", 1, "--save", "ck%d" % left)
        expect(code == 0, "exit %d: %s" % (code, err))
        r = result(out)
        expect(r["workers"] == left and r["steps"] == whole["steps"], "results of another run: %s" % r)
        expect(abs(r["final_loss"] / whole["final_loss"] - 1) < 1e-3, "%r, not as without a loss: %r" % (r, whole))
        expect("step-%012d" % whole["steps"] in os.listdir(os.path.join(folder, "ck%d" % left)), "no checkpoint")


@case("too few pipelines save what they have")
def check(folder):
    whole = train(folder, *PIPES)
    code, out, err = stage_lost(folder, [1], "--min-replicas", 3, "--save", "ck")
    expect(code == 3, "exit %d: %s" % (code, err))
    sentence(err, r"stage 1 of pipeline 0 \(rank 1\)", "2 of 3 pipelines are left, min_replicas is 3")
    r = train(folder, *PIPES, "--resume", "ck")
    expect(abs(r["final_loss"] / whole["final_loss"] - 1) < 1e-3, "%r, not %r" % (r, whole))


@case("the first rank of stages started by hand is killed")
def check(folder):
    addr = "127.0.0.1:%d" % free_port()
    ranks = [start(folder, *PIPES, "--min-replicas", 1, "--rank", r, "--addr", addr) for r in range(6)]
    time.sleep(2)
    expect(all(p.poll() is None for p in ranks), "ended early")
    ranks[0].kill()
    ranks[0].communicate()
    ends = [finish(ranks[r], folder, seconds=60) for r in range(1, 6)]
    expect([e[0] for e in ends] == [0] * 5, "exits and errors: %s" % [(e[0], e[2]) for e in ends])
    expect([bool(e[1]) for e in ends] == [False, True, False, False, False], "who prints: %s" % [e[1][:20] for e in ends])
    expect(result(ends[1][1])["workers"] == 4, "results of another run: " + ends[1][1])


@case("the workers end with their parent")
def check(folder):
    p, ranks = training(folder)
    p.kill()
    p.wait()
    finish(p, folder, patience=10)


# ---- figures ----

HASHES = SMALL + ["--steps", "30", "--workers", "3", "--deterministic", "--seed", "7"]


@case("param_hash: strategies and transports agree where they must")
def check(folder):
    h = {}
    for s in STRATEGIES:
        for t in ("tcp", "threads"):
            r = train(folder, *HASHES, *PERIOD, "--strategy", s, "--transport", t)
            expect(re.fullmatch("[0-9a-f]{16}", r["param_hash"]), "hash " + r["param_hash"])
            expect(r["final_loss"] < r["first_loss"], "%s does not learn: %s" % (s, r))
            h[s, t] = r["param_hash"]
        expect(h[s, "tcp"] == h[s, "threads"], s + " differs between transports")
    for s in GRADIENTS:
        expect(h["ssgd", "tcp"] == h[s, "tcp"], s + " is not ssgd")
    distinct = {h[s, "tcp"] for s in STRATEGIES}
    expect(len(distinct) >= 3, "strategies that differ have equal bits: %s" % h)
    expect(h["localsgd", "tcp"] not in (h["ssgd", "tcp"], h["dreamddp", "tcp"]), "localsgd is another strategy")
    outer = [*HASHES, *PERIOD, "--strategy", "diloco"]
    expect(train(folder, *outer, *MEAN)["param_hash"] == h["localsgd", "tcp"], "diloco(1, 0) is not localsgd")
    one = train(folder, *outer, "--overlap", "stream", "--fragments", 1, "--mixture", 0)
    expect(one["param_hash"] == h["diloco", "tcp"], "streaming in one fragment at once is not diloco")
    late = {train(folder, *outer, "--overlap", o, "--wire", w)["param_hash"]
            for o in ("stream", "eager") for w in ("f32", "bf16", "int8", "int4", "e3m0", "topk:0.1")}
    expect(len(late) == 12, "ways and codings that differ have equal bits")
    write(folder, "last.json", json.dumps({"sets": [[], [], [], list(range(LAYERS))]}))
    one_set = train(folder, *HASHES, *PERIOD, "--strategy", "dreamddp", "--plan", "last.json")
    expect(one_set["param_hash"] == h["localsgd", "tcp"], "dreamddp with all layers in one set is not localsgd")


SERVED = {"bsp": [], "asp": [], "ssp": ["--staleness", 2], "r2sp": [], "osp": ["--defer", 0.6]}


@case("param_hash: servers, wherever they are, change no bit")
def planned_layouts(folder):
    reference = train(folder, *HASHES, "--strategy", "ssgd")["param_hash"]
    for s, more in SERVED.items():
        seen = {}
        for servers, transport in (("colocated", "tcp"), (1, "threads"), (2, "tcp")):
            r = train(folder, *HASHES, "--strategy", s, *more, "--servers", servers, "--transport", transport)
            expect(r["workers"] == 3 and r["servers"] == (3 if servers == "colocated" else servers), str(r))
            expect(r["final_loss"] < r["first_loss"], "%s does not learn: %s" % (s, r))
            expect(r["staleness_most"] == (2 if s in ("asp", "ssp", "r2sp") else 0), "%s: %s" % (s, r))
            expect((r["deferred_pct"] > 20) == (s == "osp"), "%s: %s" % (s, r))
            seen[r["param_hash"]] = servers
        expect(len(seen) == 1, "%s: %s" % (s, seen))
        expect((reference in seen) == (s == "bsp"), "%s against ssgd: %s" % (s, seen))
    for s, more in (("ssp", ["--staleness", 0]), ("osp", ["--defer", 0])):
        h = train(folder, *HASHES, "--strategy", s, *more, "--servers", 1)["param_hash"]
        expect(h == reference, s + " is not bsp")
    sentence(run(folder, *SMALL, "--workers", 2, "--strategy", "bsp", code=2)[1], "needs servers", "--servers")
    sentence(run(folder, *SMALL, "--workers", 2, "--strategy", "wfbp", "--servers", 1, code=2)[1], "servers 1", "wfbp")
    sentence(run(folder, *SMALL, "--workers", 2, "--servers", "many", code=2)[1], "--servers many", "colocated")
    sentence(run(folder, *SMALL, "--strategy", "osp", "--servers", 1, "--defer", 2, code=2)[1], "--defer 2", "0 to 1")


@case("param_hash: a pipeline has the bits of unpipelined workers, under every schedule")
def pipelines(folder):
    model = [*TEXT_MODEL, "--strategy", "ssgd", "--deterministic", "--steps", 6]
    for replicas in 1, 2:
        one = train(folder, *model, "--workers", replicas, "--accumulate", 4)
        for schedule, stages in ("gpipe", 3), ("1f1b", 2), ("zb", 4):
            for transport in "threads", "tcp":
                r = train(folder, *model, "--workers", replicas * stages, "--stages", stages, "--pipeline", schedule,
                          "--microbatches", 4, "--transport", transport)
                expect(r["param_hash"] == one["param_hash"], "%s, %d stages, %d replicas, %s: %s, not %s" % (
                    schedule, stages, replicas, transport, r["param_hash"], one["param_hash"]))
                expect(abs(r["val_loss"] - one["val_loss"]) < 1e-5, "another val_loss")
    plain, less = (train(folder, *model, "--layers", 3, "--workers", 2, "--stages", 2, "--microbatches", 4, *more)
                   for more in ([], ["--recompute"]))
    expect(plain["param_hash"] == less["param_hash"] and less["planned_mb"] < plain["planned_mb"],
           "--recompute in stages: %s, %s" % (plain, less))
    r = train(folder, *TEXT_MODEL, "--workers", 4, "--stages", 2, "--microbatches", 2, "--strategy", "dreamddp", "--period", 2,
              "--steps", 40, "--lr", 0.01)
    expect(r["final_loss"] < 0.95 * r["first_loss"], "2 x 2 under dreamddp learns nothing: %s" % r)
    steps = [train(folder, *model[:-2], "--epochs", 1, "--workers", n, "--stages", n)["steps"] for n in (1, 2)]
    expect(steps[0] == steps[1] > 0, "steps of a pass: %s" % steps)


@case("checkpoints, weights and samples of a pipeline: those of one worker, gone on with on other stages")
def staged_files(folder):
    model = [*TEXT_MODEL, "--strategy", "ssgd", "--deterministic", "--microbatches", 2, "--dropout", 0.1]

    def stages(n, transport="tcp"):
        return ["--workers", n, "--stages", n, "--pipeline", "zb", "--transport", transport] if n > 1 else []

    def lasts(folder, *args):
        out = run(folder, *model, *args, "--export", "trained", "--sample", 20)[0]
        return out, open(os.path.join(folder, "trained"), "rb").read()
    whole = lasts(folder, "--steps", 8)
    for transport in "threads", "tcp":
        cut = lasts(folder, "--steps", 8, *stages(3, transport))
        expect(cut[1] == whole[1], "3 stages export other bytes")
        expect(cut[0].split("{")[0] == whole[0].split("{")[0] != "", "3 stages draw %r, not %r" % (cut[0], whole[0]))
    for at, (n, rest) in enumerate(((3, 3), (2, 3), (4, 1), (1, 2))):
        save = "ck%d" % at
        train(folder, *model, "--steps", 3 + at, *stages(n), "--save", save)
        r = lasts(folder, "--steps", 8, *stages(rest), "--resume", save)
        expect(r[1] == whole[1], "%d stages went on as %d with other bytes" % (n, rest))
    begun = train(folder, *model, "--steps", 2, "--load", "trained")["param_hash"]
    expect(train(folder, *model, "--steps", 2, "--load", "trained", *stages(2))["param_hash"] == begun, "--load on 2 stages")
    sentence(run(folder, *model, *stages(2), "--layers", 3, "--load", "trained", code=1)[1], "trained", "is missing")
    sentence(run(folder, *model, *stages(2), "--layers", 3, "--resume", "ck0", code=1)[1], "ck0", "of a model of")
    rank = glob.glob(os.path.join(folder, "ck0", "*", "rank-0001.safetensors"))[0]
    os.remove(rank)
    sentence(run(folder, *model, "--steps", 8, *stages(2), "--resume", "ck0", code=1)[1], "layer", "rank-0001")


@case("param_hash: a placement and a cut of the planners change no bit")
def planned_layouts(folder):
    model = [*TEXT_MODEL, "--strategy", "wfbp", "--deterministic", "--steps", 6]
    one = {n: train(folder, *model, "--workers", n, "--accumulate", 2)["param_hash"] for n in (1, 2, 3)}
    links = ("delay_ms", 3, 10), ("bandwidth_gbps", 2, 1)
    write(folder, "net.json", json.dumps(dict(
        {"N": 6, "D_dp": 2, "D_pp": 3, "c_pp_bytes": 4096, "c_dp_bytes": 9000, "tflops": [1] * 6, "variant": {"c_pp_bytes": 1}},
        **{k: [[near if a % 2 == b % 2 else far for b in range(6)] for a in range(6)] for k, near, far in links})))
    plan = os.path.join(BUILD, "plan")
    run(folder, "place", "--network", "net.json", "--solver", "all", "--candidates", 50, "--json", "place.json", program=plan)
    out, _ = run(folder, *model, "--accumulate", 2, "--write-graph", "model.json")
    expect(out.startswith("model.json: 25 operators of GPT-2, 2 layers"), out)
    run(folder, "fence", "--graph", "model.json", "--network", "net.json", "--json", "cut.json", program=plan)
    write(folder, "three.json", '{"cost_s": 1, "assign": [[4, 0], [5, 1], [3, 2]]}')
    for replicas, more in ((2, ["--placement", "place.json"]), (1, ["--cut", "cut.json"]),
                           (1, ["--cut", "cut.json", "--net", "net.json:variant@5,4,3,2,1,0"]),
                           (2, ["--placement", "place.json", "--stages", 3, "--net", "net.json"])):
        for transport in "threads", "tcp":
            r = train(folder, *model, "--workers", 6, "--microbatches", 2, "--transport", transport, *more)
            expect(r["param_hash"] == one[replicas], "%s: %s" % (more, r["param_hash"]))
    tied = [*model, "--model", "llama2", "--tied", "--accumulate", 2, "--dim", 32]
    run(folder, *tied, "--write-graph", "tied.json")
    run(folder, "fence", "--graph", "tied.json", "--network", "net.json", "--json", "tied.cut", program=plan)
    expect(train(folder, *tied, "--workers", 6, "--cut", "tied.cut")["param_hash"] == train(folder, *tied)["param_hash"],
           "a cut of a tied model")
    sentence(run(folder, "--write-graph", "no/g.json", *model, code=1)[1], "no/g.json")
    pipelined = [train(folder, *model, "--workers", 6, "--microbatches", 2, *more) for more in
                 (["--stages", 2], ["--placement", "three.json"])]
    expect(pipelined[0]["param_hash"] == one[3], "three replicas in order: %s" % pipelined[0])
    expect(abs(pipelined[1]["val_loss"] - pipelined[0]["val_loss"]) < 1e-3, "three replicas in another: %s" % pipelined)
    addr = "127.0.0.1:%d" % free_port()
    for name, first in ("a.json", 10), ("b.json", 12):
        write(folder, name, cut((0, 0, first), (1, first, 25)).replace("15", "25"))
    ranks = [start(folder, *model, "--workers", 2, "--rank", r, "--addr", addr, "--cut", name)
             for r, name in enumerate(("a.json", "b.json"))]
    for p in ranks:
        code, out, err = finish(p, folder)
        expect(code == 1 and not out, "exit %d: %s" % (code, err))
        sentence(err, "pipeline layout", "every rank with the same")


@case("edge wires: fewer bytes, the same bits on every transport, and it learns")
def edge_wires(folder):
    model = [*TEXT_MODEL, "--strategy", "ssgd", "--deterministic", "--steps", 30, "--lr", 0.01, "--workers", 2, "--stages", 2,
             "--microbatches", 4, "--batch", 2]
    dense = train(folder, *model, "--transport", "threads")
    f32 = train(folder, *model, "--edge-wire", "f32", "--transport", "threads")
    expect(f32["param_hash"] == dense["param_hash"], "--edge-wire f32 changes bits")
    for wire, share in ("bf16", 0.5), ("int8", 0.28), ("topk:8", 0.27), ("adatopk:8:1", 0.27), ("bottleneck:8", 0.126), ("aq:4", 0.22):
        r = train(folder, *model, "--edge-wire", wire, "--transport", "threads")
        other = train(folder, *model, "--edge-wire", wire, "--transport", "tcp", "--pipeline", "zb")
        expect(r["param_hash"] == other["param_hash"], "%s: other bits over tcp under zb" % wire)
        expect(r["boundary_bytes"] <= share * dense["boundary_bytes"], "%s: %d bytes of %d" % (
            wire, r["boundary_bytes"], dense["boundary_bytes"]))
        expect(r["final_loss"] < 0.95 * r["first_loss"], "%s learns nothing: %s" % (wire, r))


@case("servers: a killed run goes on with the same parameters, a killed server is a lost peer")
def check(folder):
    for s, more in SERVED.items():
        args = SMALL + ["--workers", 2, "--deterministic", "--steps", 4000, "--strategy", s, *more, "--servers",
                        "colocated" if s == "ssp" else 1]
        p = start(folder, *args, "--save", s, "--save-every", 3, "--keep", 3)
        wait_until(lambda: len(glob.glob(os.path.join(folder, s, "*", "manifest.json"))) > 1, 30, "no checkpoint")
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        last = max(int(f.split("step-")[1][:12]) for f in glob.glob(os.path.join(folder, s, "*", "manifest.json")))
        args[args.index(4000)] = last + 7
        whole, rest = train(folder, *args), train(folder, *args, "--resume", s, "--transport", "threads")
        expect(whole["param_hash"] == rest["param_hash"], "%s after resuming at %d" % (s, last))
    addr = "127.0.0.1:%d" % free_port()
    ranks = [start(folder, *LONG, "--workers", 2, "--servers", 1, "--strategy", "asp", "--rank", r, "--addr", addr)
             for r in range(3)]
    time.sleep(2)
    expect(all(p.poll() is None for p in ranks), "ended early")
    ranks[2].kill()
    for r in (0, 1):
        code, out, err = finish(ranks[r], folder, seconds=30)
        expect(code == 3, "exit %d, expected 3: %s" % (code, err))
        sentence(err, "rank 2", "it served 4 layers: ")
    ranks[2].communicate()


@case("param_hash: with period 1 all layers are averaged in each step")
def check(folder):
    h = {s: train(folder, *HASHES, "--period", 1, "--strategy", s)["param_hash"] for s in PARAMETERS}
    expect(len(set(h.values())) == 1, "localsgd, enp and dreamddp differ: %s" % h)


@case("param_hash: one worker is plain training under any strategy")
def check(folder):
    h = {s: train(folder, *HASHES, "--workers", 1, *PERIOD, *MEAN, "--strategy", s)["param_hash"] for s in STRATEGIES}
    expect(len(set(h.values())) == 1, "they differ: %s" % h)


@case("param_hash: repeats, follows the seed, ignores threads and the link")
def check(folder):
    more = [*HASHES, *PERIOD, "--strategy", "ssgd"]
    first = train(folder, *more)["param_hash"]
    for args, same in [([], True), (["--threads", "2"], True), (["--net", "200mbit,1ms"], True),
                       (["--seed", "8"], False)]:
        h = train(folder, *more, *args)["param_hash"]
        expect((h == first) == same, "%s: %s against %s" % (args, h, first))


@case("--recompute: the same hash from less memory; a model too large for the machine is refused")
def check(folder):
    sizes = [*SMALL, "--steps", 5, "--workers", 1, "--strategy", "ssgd", "--layers", 3, "--dropout", 0.1]
    for model in ("gpt2", "llama2"):
        args = [a for a in sizes if model == "gpt2" or a not in ("--dropout", 0.1)]
        plain, less = (train(folder, *args, "--model", model, *more) for more in ([], ["--recompute"]))
        expect(plain["param_hash"] == less["param_hash"], "%s: %s, %s" % (model, plain, less))
        expect(less["planned_mb"] < plain["planned_mb"], "%s: %s, %s" % (model, plain, less))
    for more, remedy in ([], "--recompute"), (["--recompute"], "use a smaller batch"):
        _, err = run(folder, *sizes, "--batch", 2000000000, *more, code=1)
        sentence(err, "the graph needs", "activations", remedy)


KEYS = {"final_loss", "first_loss", "val_loss", "steps", "step_ms", "tokens_per_s", "hidden_pct", "bytes_sent",
        "bytes_by_coding", "planned_mb", "peak_rss_mb", "param_hash", "comm_cpu_s"}


@case("the JSON object, the JSON lines and the trace")
def check(folder):
    out, err = run(folder, *SMALL, *PERIOD, "--steps", 24, "--workers", 2, "--json", "x.jsonl", "--trace", "x.json")
    expect(not err, "--quiet, but on stderr: " + err)
    r = result(out)
    expect(KEYS <= set(r), "missing: %s" % (KEYS - set(r)))
    expect(r["steps"] == 24 and 0 <= r["hidden_pct"] <= 100 and r["bytes_sent"] > 0 and r["step_ms"] > 0, str(r))
    expect(0 < r["comm_cpu_s"] < 60, str(r))
    as_floats = r["bytes_by_coding"]
    expect(set(as_floats) == {"own", "f32"} and 0 < sum(as_floats.values()) < r["bytes_sent"], str(r))
    with open(os.path.join(folder, "x.jsonl")) as f:
        events = [json.loads(line) for line in f]
    kinds = [e["event"] for e in events if e["event"] != "note"]  # a busy machine may have a slow rank
    expect(kinds == ["run", "profile", "plan"] + ["step"] * 24 + ["result"], "events: %s" % kinds)
    expect({"command", "version", "seed", "host"} <= {k for k, v in events[0].items() if v is not None},
           str(events[0]))
    steps = [e for e in events if e["event"] == "step"]
    expect(all({"step", "loss", "step_ms", "wait_ms", "bytes"} <= set(e) for e in steps), "keys of " + str(steps[0]))
    expect([e["step"] for e in steps] == list(range(24)), "step numbers")
    expect(sum(e["wait_ms"] is None for e in steps) <= 2, "wait_ms is unknown")
    expect({"strategy", "workers", "step_ms", "hidden_pct", "bytes_sent", "final_loss", "time_to_loss_s",
            "param_hash"}
           <= set(events[-1]), "keys of " + str(events[-1]))
    expect(sorted(sum(events[2]["sets"], [])) == list(range(LAYERS)), "the plan is " + str(events[2]["sets"]))
    with open(os.path.join(folder, "x.json")) as f:
        trace = json.load(f)
    expect({e["pid"] for e in trace if e["ph"] == "X"} == {1, 2}, "lanes of two workers")


@case("progress is on stderr, results are on stdout")
def check(folder):
    loud = [a for a in SMALL if a != "--quiet"]
    for env in ({}, {"NO_COLOR": "1"}):
        out, err = run(folder, *loud, "--dim", 128, "--steps", 5, "--workers", 2, env=env)
        expect(len(out.splitlines()) == 1 and result(out)["steps"] == 5, "stdout: " + out)
        expect("step" in err and "loss" in err and "\x1b" not in err, "stderr: %r" % err)
        said = re.search(r"memory: ([\d.]+) MiB planned \(parameters ([\d.]+), gradients ([\d.]+), optimizer "
                         r"state ([\d.]+), activations ([\d.]+)\), peak ([\d.]+) MiB\n", err)
        expect(said, "no line about memory on stderr: %r" % err)
        planned, params, gradients, state, activations, peak = map(float, said.groups())
        expect(params == gradients > 0 and abs(state - 2 * params) < 0.11 and activations > 0, said.group())
        expect(abs(planned - params - gradients - state - activations) < 0.3 and peak > planned, said.group())


@case("the options of a training run")
def check(folder):
    base = [*SMALL, "--workers", 2, "--steps", 12, *PERIOD, "--deterministic"]
    for args in ["--accumulate 3", "--clip 0.5", "--clip 0.5 --strategy dreamddp", "--average-state", "--paper",
                 "--schedule cosine --warmup 4", "--schedule step", "--optimizer sgd --lr 0.1", "--optimizer adam",
                 "--optimizer nesterov --lr 0.05", "--optimizer muon", "--state-period 2,3",
                 "--vocab 300", "--dropout 0.1", "--held-out 0", "--threads 2", "--fill exact", "--check-writes",
                 "--solver optimal --cost timeline", "--accumulate 2 --clip 1 --strategy wfbp"]:
        r = train(folder, *base, *args.split())
        expect(r["final_loss"] < r["first_loss"], "%s does not learn: %s" % (args, r))
        expect((r["val_loss"] is None) == ("held-out" in args), "val_loss with %s: %s" % (args, r["val_loss"]))


@case("--epochs counts passes over the data")
def check(folder):
    write(folder, "text", "abcdefgh" * 100)  # 800 tokens, 720 of them to learn from: 44 windows
    r = train(folder, *SMALL, "--workers", 2, "--epochs", 2)
    expect(r["steps"] == 22, "%d steps, not 2 x 44 / (2 x 2)" % r["steps"])
    addr = "127.0.0.1:%d" % free_port()
    ranks = [start(folder, *SMALL, "--epochs", 3, env={"DREAMDDP_RANK": str(r), "DREAMDDP_WORLD_SIZE": "3",
                                                       "DREAMDDP_ADDR": addr}) for r in range(3)]
    ended = [finish(p, folder) for p in ranks]
    expect([e[0] for e in ended] == [0, 0, 0], "exit codes: %s" % ended)
    expect(result(ended[0][1])["steps"] == 22, "of a launcher's three workers: " + ended[0][1])


@case("a batch script without srun trains alone and warns")
def check(folder):
    code, out, err = finish(start(folder, *SMALL, "--steps", 2, env={
        "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "DREAMDDP_LOG": "warn"}), folder)
    expect(code == 0 and result(out)["workers"] == 1, "exit %d: %s" % (code, err))
    expect(err.count("start it with srun") == 1, "stderr: " + err)


@case("the measured profile is written, read back and planned with")
def check(folder):
    run(folder, *SMALL, *PERIOD, "--steps", 12, "--workers", 2, "--net", "100mbit,1ms", "--write-profile", "p.csv")
    with open(os.path.join(folder, "p.csv")) as f:
        rows = list(csv_module.DictReader(f))
    expect(len(rows) == LAYERS and all(float(r["backward_s"]) > 0 for r in rows), str(rows))
    for r in rows:  # two workers send each other what they have
        sent = 4 * int(r["params"]) / 12.5e6
        expect(0.8 * sent < float(r["comm_s"]) < 1.5 * sent + 0.02, str(r))
    run(folder, *SMALL, *PERIOD, "--steps", 12, "--workers", 2, "--profile", "p.csv")
    out, err = run(folder, *SMALL, "--steps", 2, "--workers", 2, "--write-profile", "q.csv", code=2)
    sentence(err, "q.csv", "profile")
    expect(not os.path.exists(os.path.join(folder, "q.csv")), "a profile of nothing was written")


@case("deft says how many updates it makes")
def check(folder):
    write(folder, "p.csv", csv(*["l%d,20000,0.004,0.008," % i for i in range(5)]))
    # 60 ms of layers and 60 ms of gradients for the computing of a step, then four times that
    for net, least, most in (("160mbit,1ms", 0.9, 1.2), ("10mbit,1ms", 0.1, 0.8)):
        r = train(folder, "--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--steps", 30, "--strategy", "deft",
                  "--deterministic", "--profile", "p.csv", "--net", net)
        expect(least <= r["update_frequency"] <= most, "%s: %s" % (net, r["update_frequency"]))
    r = train(folder, *SMALL, "--steps", 4, "--workers", 2, "--strategy", "wfbp")
    expect("update_frequency" not in r, "of wfbp: %s" % r)


@case("clipping is refused where gradients are not known in time")
def check(folder):
    for s in STRATEGIES:
        code, out, err = finish(start(folder, *SMALL, "--steps", 8, "--workers", 2, "--clip", 0.1,
                                      "--strategy", s), folder)
        expect(code in (0, 2), "%s: exit %d: %s" % (s, code, err))
        if code:
            sentence(err, "clip")
            expect(s in ("enp", "deft"), s + " must clip")


@case("--emulate-compute paces the layers, and dreamddp hides what it can")
def check(folder):
    rows = ["l%d,20000,0.004,0.008," % i for i in range(5)]
    write(folder, "p.csv", csv(*rows))
    args = ["--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--steps", 40, "--net", "50mbit,1ms"]
    # of what a busy machine delays before the count begins, a layer makes up for 10 ms at most
    alone = train(folder, *args[:3], "--steps", 40)
    expect(alone["step_ms"] >= 59, "60 ms of layers in %.1f ms" % alone["step_ms"])
    r = train(folder, *args, "--strategy", "dreamddp")
    expect(r["step_ms"] >= 59, "60 ms of layers in %.1f ms" % r["step_ms"])
    expect(r["step_ms"] < 240, "60 ms of layers in %.1f ms" % r["step_ms"])
    expect(0 <= r["hidden_pct"] <= 100 and r["final_loss"] is None, str(r))
    s = train(folder, *args, "--strategy", "ssgd")
    expect(r["bytes_sent"] < s["bytes_sent"], "%d bytes against %d of ssgd" % (r["bytes_sent"], s["bytes_sent"]))


@case("--emulate-compute in stages: the figures of a step are those of the times asked for")
def check(folder):
    write(folder, "p.csv", csv(*["l%d,1000,0.01,0.02," % i for i in range(4)]))
    args = ["--quiet", "--emulate-compute", "p.csv", "--workers", 2, "--stages", 2, "--microbatches", 4, "--steps", 4,
            "--profile-steps", 1, "--emulate-bytes", 50000, "--net", "100mbit,1ms"]
    for schedule in ("gpipe", "1f1b", "zb"):
        r = train(folder, *args, "--pipeline", schedule, "--report", "r.html", "--trace", "t.json")
        # 4 micro-batches of 60 ms; activations there and gradients back
        expect((r["stages"], r["schedule"], r["microbatches"]) == (2, schedule, 4), str(r))
        expect(r["boundary_bytes"] == 2 * 4 * 50000, "bytes: %s" % r["boundary_bytes"])
        expect(0.24 <= r["predicted_step_s"] < 1 and r["step_ms"] >= 239, str(r))
        expect(0 < r["bubble_pct"] < 75 and r["final_loss"] is None, str(r))
        with open(os.path.join(folder, "r.html")) as f:
            expect("%s, 2 stages, pipeline 0 of 1" % schedule in f.read(), "no picture of " + schedule)
        with open(os.path.join(folder, "t.json")) as f:
            names = {e["args"].get("name") for e in json.load(f)}
        expect("stage" in names and any("stage 1" in (n or "") for n in names), "no lanes: %s" % names)
    err = run(folder, *args[:3], "--emulate-bytes", 100, code=2)[1]
    sentence(err, "--emulate-bytes 100", "--stages")
    err = run(folder, *args[:3], "--accumulate", 2, code=2)[1]
    sentence(err, "--accumulate", "--stages")


@case("own_loop ends with equal parameters, the same over TCP and threads")
def check(folder):
    seen = set()
    for args in ([], ["threads"]):
        out, err = run(folder, *args, program=os.path.join(BUILD, "own_loop"))
        ranks = re.findall(r"rank (\d)  parameters ([0-9a-f]{16})", out)
        expect(sorted(r for r, _ in ranks) == list("0123"), "ranks: " + out)
        expect(len({h for _, h in ranks}) == 1, "parameters differ: " + out)
        loss = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
        expect(loss[-1] < loss[0] / 2, "the loss does not fall: %s" % loss)
        expect(not err, "stderr: " + err)
    sentence_of = run(folder, "nonsense", program=os.path.join(BUILD, "own_loop"), code=2)
    expect("usage" in sentence_of[0], "no usage: %s" % (sentence_of,))


@case("own_strategy: those who met are equal, all are at the end, the same over TCP and threads")
def check(folder):
    program, seen = os.path.join(BUILD, "own_strategy"), set()
    for args in ([], ["threads"]):
        out, err = run(folder, *args, program=program)
        ranks = dict(re.findall(r"rank (\d)  parameters ([0-9a-f]{16}  synced [0-9a-f]{16})", out))
        expect(sorted(ranks) == list("01234"), "ranks: " + out)
        expect(len({h.split()[2] for h in ranks.values()}) == 1, "parameters differ: " + out)
        expect(len({h.split()[0] for h in ranks.values()}) == 3, "two pairs, one alone: " + out)
        loss = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
        expect(loss[-1] < loss[0] / 2, "the loss does not fall: %s" % loss)
        expect(not err, "stderr: " + err)
        seen.add(tuple(sorted(ranks.items())))
    expect(len(seen) == 1, "TCP and threads differ: %s" % seen)
    expect("usage" in run(folder, "nonsense", program=program, code=2)[0], "no usage")
    with open(os.path.join(ROOT, "examples", "own_strategy.c")) as f:
        lines = f.read().splitlines()
    expect(len(lines) < 120 and max(map(len, lines)) <= 120, "%d lines" % len(lines))
    expect([s for s in lines if s.startswith("#include")] == ['#include "dreamddp.h"'], "includes")


@case("pipeline: an operator of one's own in stages, the same under every schedule")
def check(folder):
    program, seen = os.path.join(BUILD, "pipeline"), set()
    for args in ([], ["gpipe"], ["zb"]):
        out, err = run(folder, *args, program=program)
        seen |= set(re.findall(r"pipeline [01]  parameters ([0-9a-f]{16})  36864 bytes", out))
        expect(len(re.findall(r"^pipeline", out, re.M)) == 2, "pipelines: " + out)
        loss = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
        expect(len(loss) == 4 and loss[-1] < loss[0] / 2, "the loss does not fall: %s" % loss)
        expect(not err, "stderr: " + err)
    expect(len(seen) == 1, "hashes: %s" % seen)
    expect("usage" in run(folder, "nonsense", program=program, code=2)[0], "no usage")
    with open(os.path.join(ROOT, "examples", "pipeline.c")) as f:
        lines = f.read().splitlines()
    expect(len(lines) < 150 and max(map(len, lines)) <= 120, "%d lines" % len(lines))
    expect([s for s in lines if s.startswith("#include")] == ['#include "dreamddp.h"'], "includes")


@case("quickstart compares the strategies it is given, and draws each")
def check(folder):
    program, names = os.path.join(BUILD, "quickstart"), ["usbyte", "ssgd", "dreamddp"]
    small = ["--data", "text", "--workers", 2, "--steps", 30, "--layers", 1, "--dim", 16, "--seq", 16,
             "--net", "100mbit,1ms"]
    out, err = run(folder, *small, "--strategies", ",".join(names), program=program)
    rows = re.findall(r"^(\w+) +[0-9.]+ +([0-9.]+|-) +[0-9.]+x", out, re.M)
    expect([r[0] for r in rows] == names and rows[2][1] != "-", "rows of the table, each with its prediction: %s" % rows)
    with open(os.path.join(folder, "quickstart.jsonl")) as f:
        results = [json.loads(line) for line in f]
    results = [r for r in results if r["event"] == "result"]
    expect([r["strategy"] for r in results] == names, "results: %s" % results)
    expect(results[0]["param_hash"] == results[1]["param_hash"] != results[2]["param_hash"], "hashes: %s" % results)
    with open(os.path.join(folder, "quickstart.html")) as f:
        page = f.read()
    expect(all("step of 4" in page and n in page for n in names), "quickstart.html lacks a strategy or the plan")
    for bad in ("ssgd,wish", "ssgd,"):
        out, err = run(folder, *small, "--strategies", bad, program=program, code=2)
        sentence(err, "no strategy", program="quickstart")


@case("--help names every option")
def check(folder):
    for command in ["train_gpt", "quickstart", "plan", "plan partial", "own_loop", "own_strategy", "pipeline"]:
        name, *words = command.split()
        out, err = run(folder, *words, "--help", program=os.path.join(BUILD, name))
        expect("usage: " + command in out and not err, "%s --help: %s%s" % (name, out[:100], err))
        with open(glob.glob(os.path.join(ROOT, "examples", "**", name + ".c"), recursive=True)[0]) as f:
            options = re.findall(r'\{"(--[a-z-]+)", CLI_', f.read())
        for o in options if command != "plan" else []:
            expect(re.search(r"%s\b" % o, out), "%s --help does not name %s" % (name, o))
        expect(max(map(len, out.splitlines())) < 120, name + " --help has a long line")


# ---- all cases ----

def main():
    programs = ("train_gpt", "own_loop", "own_strategy", "pipeline", "quickstart", "plan")
    missing = [n for n in programs if not os.path.exists(os.path.join(BUILD, n))]
    if missing:
        print("not built: %s; run make all first" % " ".join(missing))
        print("0 passed, %d failed, 0 skipped" % sum(chosen(name) for name, _ in CASES))
        return 1
    return run_cases(6)


if __name__ == "__main__":
    sys.exit(main())
