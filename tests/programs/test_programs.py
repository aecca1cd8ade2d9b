#!/usr/bin/env python3
"""[long] The programs as a user starts them: mistakes, files, ranks started one at a time, and the results that they print.

Each case runs in its own folder; trainer.py checks that no process and no temporary file remains.

    tests/programs/test_programs.py [WORD...]     only the cases whose names contain one of the words
"""
import glob
import json
import os
import re
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (BUILD, PERIOD, PLACE, ROOT, SMALL, TRAIN, case, csv, cut, expect, finish, pair, result, run,
                     run_script, sentence, start, train, unused_address, wait_until, write)  # noqa: E402
from cases import preloaded_comma_locale  # noqa: E402


SIMULATE = os.path.join(BUILD, "simulate")


# ---- mistakes: a one-line error that names the value and the remedy ----


def mistake(name, code, words, args, env=None, files=None):
    @case(name)
    def check(folder):
        for f, text in (files or {}).items():
            write(folder, f, text)
        out, err = run(folder, *SMALL, "--steps", "4", *args.split(" "), code=code, env=env)
        expect(not out, "unexpected output on stdout: " + out[:100])
        sentence(err, *words)

mistake("stages that do not divide the workers", 2, ["--stages 3", "--workers 4"], "--stages 3 --workers 4")
mistake("a schedule without stages", 2, ["--pipeline zb", "--stages"], "--pipeline zb")
mistake("micro-batches ahead without stages", 2, ["--ahead 2", "--stages"], "--ahead 2")
mistake("a placement that may lose a rank", 2, ["--min-replicas 1", "--placement place.json"],
        "--workers 4 --microbatches 2 --min-replicas 1 --placement place.json", files={"place.json": PLACE})
mistake("a placement for another number of workers", 2, ["place.json", "4 devices", "2 workers"],
        "--workers 2 --placement place.json", files={"place.json": PLACE})
mistake("a placement with another number of stages", 2, ["--stages 4", "place.json has 2"],
        "--workers 4 --stages 4 --placement place.json", files={"place.json": PLACE})
mistake("a device placed twice", 2, ["place.json", "invalid or duplicate device", "0..3"], "--workers 4 --placement place.json",
        files={"place.json": PLACE.replace("3", "2")})
mistake("a placement that is a cut", 1, ["cut.json", "plan place"], "--workers 4 --placement cut.json",
        files={"cut.json": cut((0, 0, 15))})
mistake("a missing placement file", 1, ["no.json", "No such file"], "--workers 4 --placement no.json")
mistake("a cut that omits an operator", 2, ["cut.json", "operator 6", "h.0", "once"], "--workers 2 --cut cut.json",
        files={"cut.json": cut((0, 0, 6), (1, 7, 15))})
mistake("a cut with an operator on two devices", 2, ["cut.json", "operator 6", "device 0", "device 1"],
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
mistake("an edge wire that keeps more than all values", 2, ["topk:0.5", "from 1"], "--stages 2 --workers 2 --edge-wire topk:0.5")
mistake("an edge wire without stages", 2, ["--edge-wire int8", "--stages"], "--edge-wire int8")
mistake("error feedback of an edge wire without rounding", 2, ["--edge-feedback", "topk:R"], "--stages 2 --workers 2 --edge-feedback")
mistake("a bottleneck of no values", 2, ["bottleneck:1000", "use at most bottleneck:16"], "--stages 2 --workers 2 --edge-wire bottleneck:1000")
mistake("more stages than layers", 2, ["5 stages", "4 layers", "fewer"], "--stages 5 --workers 5")
mistake("servers in a pipeline", 2, ["servers", "pipeline"], "--stages 2 --workers 2 --strategy bsp --servers 1")
mistake("replicas without stages", 2, ["--min-replicas 1", "--stages"], "--min-replicas 1 --workers 2")
mistake("more min-replicas than pipelines", 2, ["--min-replicas 3", "2 pipelines"], "--min-replicas 3 --workers 4 --stages 2")
mistake("micro-batches that fewer pipelines cannot divide", 2, ["3 micro-batches", "multiple of 2"],
        "--min-replicas 1 --workers 6 --stages 2 --microbatches 3")
mistake("sharded parameter deltas with min-replicas", 2, ["diloco", "choose dreamddp"],
        "--min-replicas 1 --workers 4 --stages 2 --microbatches 2 --strategy diloco")
mistake("unknown strategy", 2, ["bogus", "dreamddp"], "--strategy bogus")
mistake("unknown model", 2, ["vgg99", "gpt2"], "--model vgg99")
mistake("unknown optimizer", 2, ["lion", "adamw", "muon"], "--optimizer lion")
mistake("state period 0", 2, ["--state-period 0,3", "1 to 1000000"], "--state-period 0,3")
mistake("matrix learning rate 0", 2, ["--muon-lr 0"], "--optimizer muon --muon-lr 0")
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
mistake("outer learning rate 0", 2, ["--outer-lr 0", "above 0"], "--strategy diloco --outer-lr 0")
mistake("outer learning rate that is not a number", 2, ["--outer-lr nan"], "--strategy diloco --outer-lr nan")
mistake("outer momentum 1", 2, ["--outer-momentum 1", "below 1"], "--strategy diloco --outer-momentum 1")
mistake("outer learning rate 0 in a variable", 2, ["DREAMDDP_OUTER_LR=0", "above 0"], "--strategy diloco", env={"DREAMDDP_OUTER_LR": "0"})
mistake("unknown overlap", 2, ["never", "eager"], "--strategy diloco --overlap never")
mistake("landing without fragments", 2, ["landing 2", "plan"], "--strategy diloco --overlap stream --landing 2")
mistake("more fragments than steps", 2, ["fragments 9", "period of 4"],
        "--strategy diloco --overlap stream --fragments 9 --period 4")
mistake("fragments without streaming", 2, ["fragments", "stream"], "--strategy diloco --fragments 2")
mistake("a top-k fraction above 1", 2, ["topk:2", "topk:FRACTION"], "--strategy diloco --wire topk:2")
mistake("int4 wire for parameters", 2, ["dreamddp", "int4", "choose"], "--workers 2 --strategy dreamddp --wire int4")
mistake("top-k wire for gradients", 2, ["ssgd", "topk", "choose"], "--workers 2 --strategy ssgd --wire topk:0.1")
mistake("no workers", 2, ["--workers 0", "1"], "--workers 0")
mistake("too many workers", 2, ["5000", "256"], "--workers 5000")
mistake("no steps", 2, ["--steps 0", "1"], "--steps 0")
mistake("steps that are not a number", 2, ["--steps", "many"], "--steps many")
mistake("learning rate 0", 2, ["--lr 0", "above 0"], "--lr 0")
mistake("learning rate that is not a number", 2, ["--lr", "fast"], "--lr fast")
mistake("learning rate nan", 2, ["--lr", "nan"], "--lr nan")
mistake("learning rate that makes the loss infinite", 1, ["nan|inf", "learning rate"], "--lr 1e20 --workers 2")
mistake("vocabulary smaller than the data's", 2, ["--vocab 5", "0 takes"], "--vocab 5")
mistake("heads that do not divide the width", 2, ["16", "3 heads", "divide"], "--heads 3")
mistake("no layers", 2, ["layers 0"], "--layers 0")
mistake("missing data file", 1, ["nofile", "No such file"], "--data nofile")
mistake("empty data file", 1, ["empty", "seq"], "--data empty", files={"empty": ""})
mistake("data file of one byte", 1, ["one", "1 byte"], "--data one", files={"one": "x"})
mistake("data file that is a directory", 1, ["directory"], "--data .")
mistake("data shorter than a window", 2, ["short|windows", "seq"], "--data few", files={"few": "a few letters"})
for spec in ["100", "abc", "-1mbit,5ms", "0mbit,1ms", "nan,1ms", "100mbit,5", "100mbit,-5ms", "100mbit,5ms,3",
             ","]:
    mistake("net '%s'" % spec, 2, [re.escape(spec), "100mbit,20ms"], "--workers 2 --net " + spec)
mistake("net without a value", 2, ["--net needs a value, but it is empty", "RATE,DELAY"], "--workers 2 --net ")
for flag in ["--profile", "--emulate-compute"]:
    for what, words, text in [
            ("a missing column", ["bad.csv", "line 1", "backward_s"],
             csv("a,1,1,2", header="layer,params,forward_s,comm_s")),
            ("a missing value", ["bad.csv", "line 2", "backward_s"], csv("a,1,1,,2")),
            ("a time that is nan", ["bad.csv", "line 2", "nan"], csv("a,1,1,nan,2")),
            ("a negative time", ["bad.csv", "line 3", "-1"], csv("a,1,1,1,1", "b,1,1,-1,2")),
            ("an empty file", ["bad.csv", "empty"], "")]:
        mistake("%s with %s" % (flag, what), 1, words, "--workers 2 %s bad.csv" % flag, files={"bad.csv": text})
    mistake("%s with a missing file" % flag, 1, ["no.csv", "No such file"], "--workers 2 %s no.csv" % flag)
mistake("--profile for another model", 1, ["two.csv", "2 rows", "4 layers"], "--workers 2 --profile two.csv",
        files={"two.csv": csv("a,1,1,1,1", "b,1,1,1,1")})
mistake("--plan for another period", 1, ["plan.json", "period 2", "period 4"],
        "--workers 2 --period 4 --plan plan.json",
        files={"plan.json": '{"sets": [[0, 1], [2, 3]]}'})
mistake("--plan for fewer layers", 1, ["plan.json", "3 layers, the model has 4", "profile of this model"],
        "--workers 2 --period 2 --plan plan.json",
        files={"plan.json": '{"sets": [[0], [1, 2]]}'})
mistake("--plan for more layers", 1, ["plan.json", "5 layers, the model has 4", "profile of this model"],
        "--workers 2 --period 2 --plan plan.json",
        files={"plan.json": '{"sets": [[0, 1], [2, 3, 4]]}'})
mistake("--plan for layers with other names", 1, ["plan.json", "layer 1", '"body"', '"h.0.attn"', "profile of this model"],
        "--workers 2 --period 2 --plan plan.json",
        files={"plan.json": '{"sets": [[0, 1], [2, 3]], "names": ["embed", "body"]}'})
mistake("--plan for one stage alone", 1, ["plan.json", "2 layers, the model has 4", "stage [01] has [0-9]", "all its layers"],
        "--workers 2 --stages 2 --period 2 --plan plan.json",
        files={"plan.json": '{"sets": [[0], [1]]}'})
mistake("--plan for another period, with stages", 1, ["plan.json", "period 2", "period 4"],
        "--workers 2 --stages 2 --period 4 --plan plan.json",
        files={"plan.json": '{"sets": [[0, 1], [2, 3]]}'})
mistake("--profile for one stage alone", 1, ["two.csv", "2 rows", "4 layers"], "--workers 2 --stages 2 --profile two.csv",
        files={"two.csv": csv("a,1,1,1,1", "b,1,1,1,1")})
mistake("--plan with a file that is not a plan", 1, ["text", "line 1"], "--workers 2 --plan text")
mistake("--rank outside the world", 2, ["--rank 2", "--workers 2"], "--rank 2 --workers 2")
mistake("--addr without --rank", 2, ["--addr", "--rank"], "--addr 127.0.0.1:29500 --workers 2")
mistake("--addr beyond this machine", 2, ["insecure|encrypt"], "--rank 0 --workers 2 --addr 192.0.2.1:29500")
mistake("--addr with an invalid address", 2, ["127.0.0.1:port"], "--rank 0 --workers 2 --addr 127.0.0.1:port")
for flag in ["--json", "--trace"]:
    mistake(flag + " in a missing folder", 1, ["no/where", "No such file"], flag + " no/where")
    mistake(flag + " with a path of a folder", 1, ["directory"], flag + " .")

for flag, name in [("--json", "out.jsonl"), ("--trace", "out.json")]:
    @case(flag + " when the disk is full")
    def check(folder, flag=flag, name=name):
        out, err = run(folder, *SMALL, "--steps", 200, "--workers", 2, flag, name, code=1, limit=4096)
        sentence(err, name, "large|space")
        expect(not os.path.exists(os.path.join(folder, name)), "a partial %s remains" % name)


# The library reads and writes these numbers. Options such as --lr are read by the programs, which use the C locale.
@case("a locale with a decimal comma does not change numbers")
def check(folder):
    write(folder, "p.csv", csv("a,20000,0.004,0.008,0.01", "b,30000,0.004,0.0125,0.01"))
    args = ["--workers", 2, "--net", "2.5gbit,0.1ms", "--json", "x.jsonl"]
    runs, simulations = [], []
    for env in ({}, preloaded_comma_locale(folder)):
        runs.append(train(folder, *SMALL, *args, "--steps", 4, env=env))
        with open(os.path.join(folder, "x.jsonl")) as f:
            runs[-1]["events"] = [json.loads(line)["event"] for line in f]
        simulations.append(train(folder, *args, "--quiet", "--profile", "p.csv", "--steps", 8, program=SIMULATE, env=env))
    expect(all(runs[0][k] == runs[1][k] for k in ("final_loss", "param_hash", "events")), str(runs))
    expect(simulations[0]["step_ms"] == simulations[1]["step_ms"] > 24, str(simulations))


@case("--json to a full device fails")
def check(folder):
    sentence(run(folder, *SMALL, "--steps", 4, "--json", "/dev/full", code=1)[1], "/dev/full", "space")


@case("a full or closed stdout fails")
def check(folder):
    for command in ["exec %s %s >/dev/full", "(sleep 0.5; exec %s %s) | :; exit ${PIPESTATUS[0]}"]:
        out, err = run(folder, "-c", command % (TRAIN, " ".join(SMALL + ["--steps", "4"])),
                       program="/bin/bash", code=1)
        sentence(err, "space|pipe")


# ---- stopping and resuming ----


@case("a killed run ends bit-identical after it resumes")
def check(folder):
    args = SMALL + ["--workers", 2, "--deterministic", "--dropout", "0.1", "--steps", 4000, "--strategy", "localsgd"]
    p = start(folder, *args, "--save", "ck", "--save-every", 1, "--keep", 3)
    wait_until(lambda: len(glob.glob(os.path.join(folder, "ck", "*", "manifest.json"))) > 1, "no checkpoint")
    os.killpg(p.pid, signal.SIGKILL)
    p.communicate()
    for f in glob.glob(os.path.join(folder, "ck", "*", "*.tmp.*")):
        os.remove(f)  # of the interrupted write
    last = max(int(f.split("step-")[1][:12]) for f in glob.glob(os.path.join(folder, "ck", "*", "manifest.json")))
    args[args.index(4000)] = last + 7
    whole, rest = train(folder, *args), train(folder, *args, "--resume", "ck")
    expect(whole["param_hash"] == rest["param_hash"], "%s after resuming at %d, %s without" % (
        rest["param_hash"], last, whole["param_hash"]))
    sentence(run(folder, *args, "--resume", "ck", "--workers", 1, code=1)[1], "2 workers", "without synchronisation")
    sentence(run(folder, *args, "--resume", "none", code=1)[1], "none", "No such file")


@case("exported weights are loaded by the next run")
def check(folder):
    first = train(folder, *SMALL, "--steps", 4, "--export", "w.safetensors")
    second = train(folder, *SMALL, "--steps", 1, "--lr", "1e-30", "--weight-decay", 0, "--load", "w.safetensors")
    expect(first["param_hash"] == second["param_hash"], "the hashes differ")
    sentence(run(folder, *SMALL, "--steps", 1, "--layers", 2, "--load", "w.safetensors", code=1)[1], "w.safetensors",
             "h.1.* is missing")
    sentence(run(folder, *SMALL, "--steps", 1, "--load", "text", code=1)[1], "text", "safetensors")


@case("train_image: a folder of images trains, and invalid images fail")
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


# ---- ranks started one at a time ----


@case("two ranks started by hand train, and rank 0 writes the results")
def check(folder):
    (a, out, err), (b, nothing, err1) = pair(folder, ["--deterministic"], ["--deterministic", "--json", "x.jsonl"])
    expect(a == b == 0, "exit %d and %d: %s%s" % (a, b, err, err1))
    expect(not nothing, "rank 1 printed " + nothing)
    expect(not os.path.exists(os.path.join(folder, "x.jsonl")), "rank 1 wrote results")
    together = train(folder, *SMALL, "--steps", 6, "--workers", 2, "--deterministic")
    expect(result(out)["param_hash"] == together["param_hash"], "another hash than two workers of one command")


@case("ranks started by a launcher's environment train")
def check(folder):
    addr = unused_address()
    ranks = [start(folder, *SMALL, "--steps", 6, "--json", "r%d" % r,
                   env={"DREAMDDP_RANK": str(r), "DREAMDDP_WORLD_SIZE": "3",
                        "DREAMDDP_ADDR": addr}) for r in range(3)]
    ended = [finish(p, folder) for p in ranks]
    expect([e[0] for e in ended] == [0, 0, 0], "exit codes: %s" % ended)
    expect(result(ended[0][1])["workers"] == 3, "not three workers: " + ended[0][1])
    expect([os.path.exists(os.path.join(folder, "r%d" % r)) for r in range(3)] == [True, False, False],
           "a rank other than 0 wrote results")


def disagree(name, first, second, *words):
    @case(name)
    def check(folder):
        for code, out, err in pair(folder, first, second):
            expect(code == 1, "exit %d, expected 1: %s" % (code, err))
            sentence(err, *words)


disagree("ranks with different periods fail", PERIOD, ["--period", "7"], "period", "4", "7")
disagree("ranks with different layers fail", [], ["--layers", "2"], "rank", "4", "6")
disagree("ranks with different strategies fail", ["--strategy", "ssgd"], ["--strategy", "wfbp"], "strategy|ssgd|wfbp")


@case("a port in use by another program fails")
def check(folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        out, err = run(folder, *SMALL, "--steps", 4, "--workers", 2, "--rank", 0, "--addr",
                       "127.0.0.1:%d" % port, code=1)
        sentence(err, str(port), "in use")


@case("a port in use by another rank 0 fails")
def check(folder):
    addr = unused_address()
    args = [*SMALL, "--steps", 4, "--workers", 2, "--rank", 0, "--addr", addr]
    both = [start(folder, *args, env={"DREAMDDP_CONNECT_TIMEOUT": "6"}) for _ in range(2)]
    codes = []
    for code, out, err in [finish(p, folder) for p in both]:
        codes.append(code)
        sentence(err, "in use" if code == 1 else "rank 1")
    expect(1 in codes and set(codes) <= {1, 3}, "exit codes %s" % codes)


@case("a missing peer fails after the time-out")
def check(folder):
    ranks = [start(folder, *SMALL, "--steps", 4, "--workers", 2, "--rank", rank, "--addr", unused_address(),
                   env={"DREAMDDP_CONNECT_TIMEOUT": "2"}) for rank in range(2)]
    for rank, p in enumerate(ranks):
        code, out, err = finish(p, folder)
        expect(code in (1, 3), "exit %d: %s" % (code, err))
        sentence(err, "rank %d" % (1 - rank))


# ---- output ----

@case("progress is on stderr, results are on stdout")
def check(folder):
    loud = [a for a in SMALL if a != "--quiet"]
    for env in ({}, {"NO_COLOR": "1"}):
        out, err = run(folder, *loud, "--dim", 128, "--steps", 5, "--workers", 2, env=env)
        expect(len(out.splitlines()) == 1 and result(out)["steps"] == 5, "stdout: " + out)
        expect("step" in err and "loss" in err and "\x1b" not in err, "stderr: %r" % err)
        expect(re.match(r"data: \S+, read as bytes: \d+ tokens, vocabulary \d+\n", err), "no line about the data: %r" % err)
        said = re.search(r"memory: ([\d.]+) MiB planned \(parameters ([\d.]+), gradients ([\d.]+), optimizer "
                         r"state ([\d.]+), activations ([\d.]+)\), peak ([\d.]+) MiB\n", err)
        expect(said, "no line about memory on stderr: %r" % err)
        planned, params, gradients, state, activations, peak = map(float, said.groups())
        expect(params == gradients > 0 and abs(state - 2 * params) < 0.11 and activations > 0, said.group())
        expect(abs(planned - params - gradients - state - activations) < 0.3 and peak > planned, said.group())


@case("a batch script without srun trains with one worker and warns")
def check(folder):
    code, out, err = finish(start(folder, *SMALL, "--steps", 2, env={
        "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "DREAMDDP_LOG": "warn"}), folder)
    expect(code == 0 and result(out)["workers"] == 1, "exit %d: %s" % (code, err))
    expect(err.count("start it with srun") == 1, "stderr: " + err)


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


if __name__ == "__main__":
    sys.exit(run_script(2, "train_gpt", "train_image", "own_loop", "own_strategy", "pipeline", "quickstart", "plan", "simulate"))
