#!/usr/bin/env python3
"""Command lines of the programs: --option=VALUE, misspelt options, invalid values, variables, and the groups of --help.

    tests/programs/test_options.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import BUILD, SMALL, case, csv, expect, run, run_script, sentence, train, write  # noqa: E402

PROGRAMS = ["train_gpt", "train_image", "simulate", "netcheck", "broker", "compnode", "quickstart", "plan partial",
            "plan timeline", "plan knapsack", "plan preserve", "plan osp", "plan place", "plan fence", "plan baselines",
            "plan pipeline", "plan choose", "plan bandwidth", "plan speed", "ddprun", "bench_allreduce"]
CHAPTERS = {
    "Average": "average-state state-period split-params",
    "Plan": "paper solver cost fill",
    "Gradient": "bucket-bytes partition-bytes credit",
    "DeFT": "merge-sum no-barrier update-frequency preserve",
    "Server": "servers staleness push-scale",
    "OSP": "defer lgp correct split",
    "Outer": "outer-lr outer-momentum overlap mixture fragments landing compensation",
    "Timeout": "connect-timeout join-timeout peer-timeout op-timeout",
    "Elastic": "min-world max-world join",
    "Security": "insecure tls-psk tls-ca tls-cert tls-key",
    "Network": "net-script net2",
    "Device": "nccl",
    "Debug": "dump check-writes overwrite"}


def of(command):
    name, *words = command.split()
    return os.path.join(BUILD, name), words


def fails(folder, command, args, *words, code=2, env=None):
    program, before = of(command)
    out, err = run(folder, *before, *args, program=program, code=code, env=env)
    expect(not out, "unexpected output on stdout: " + out[:100])
    sentence(err, *words, program=command)


def groups(folder, command):
    """The titles of --help in their order, each with its options."""
    program, before = of(command)
    out, err = run(folder, *before, "--help", program=program)
    expect(not err, err)
    found, title = {}, None
    for line in out.splitlines():
        if re.match(r"[A-Z][A-Za-z ]*:$", line):
            title = line[:-1]
            expect(title not in found, "%s has the heading %s twice" % (command, title))
            found[title] = []
        elif title and re.match(r"  --?[a-z]", line):
            found[title].append(line.split()[0].lstrip("-"))
    return found


# ---- the two forms of an option with a value ----


@case("--option=VALUE and --option VALUE are the same")
def check(folder):
    joined = SMALL + ["--steps=3", "--lr=0.01", "--strategy=localsgd", "--period=2", "--workers=2", "--outer-lr=0.5"]
    parted = [word for s in joined for word in s.split("=")]
    expect(train(folder, *joined)["param_hash"] == train(folder, *parted)["param_hash"])
    write(folder, "p.csv", csv("a,1000,0.1,0.2,0.3"))
    for words in (["--profile=p.csv", "--period=2"], ["--profile", "p.csv", "--period=2"]):
        out, _ = run(folder, "partial", *words, program=of("plan")[0])
        expect(out.startswith("{"), out[:100])
    out, _ = run(folder, "-n=1", "--set=A=b=c", "--quiet", "--no-prefix", "sh", "-c", "echo $A", program=of("ddprun")[0])
    expect(out == "b=c\n", out)


@case("a missing, empty or surplus option value fails with a one-line error")
def check(folder):
    fails(folder, "train_gpt", ["--lr"], "--lr needs a value: write --lr X$")
    fails(folder, "train_gpt", ["--lr="], "--lr needs a value, but it is empty: write --lr X$")
    fails(folder, "train_gpt", ["--json", ""], "--json needs a value, but it is empty: write --json FILE$")
    fails(folder, "train_gpt", ["--outer-lr="], "--outer-lr needs a value, but it is empty")
    fails(folder, "train_gpt", ["--json", "--quiet"], "--json needs a value, but the option --quiet follows")
    fails(folder, "train_gpt", ["--quiet=1"], "--quiet takes no value; write --quiet without =1$")
    fails(folder, "train_gpt", ["--paper=0"], "--paper takes no value; write --paper without =0$")
    fails(folder, "train_gpt", ["--help=all"], "--help takes no value")
    fails(folder, "plan fence", ["--no-memory=1"], "--no-memory takes no value")
    fails(folder, "ddprun", ["--quiet=1", "true"], "--quiet takes no value; write --quiet without =1$")
    fails(folder, "ddprun", ["--net=", "true"], "--net needs a value, but it is empty: write --net SPEC$")
    fails(folder, "ddprun", ["-n"], "-n needs a value: write -n N$")


# ---- misspelt names ----


@case("a misspelt option fails and suggests the nearest option")
def check(folder):
    for command, given, nearest in [
            ("train_gpt", "--peroid", "--period"), ("train_gpt", "--stalenes=1", "--staleness"),
            ("train_gpt", "--outer_lr", "--outer-lr"), ("train_gpt", "-steps", "--steps"),
            ("train_gpt", "--connect", "--connect-timeout"), ("train_gpt", "--hlep", "--help"),
            ("train_image", "--modle=mlp", "--model"), ("simulate", "--sweeep", "--sweep"),
            ("netcheck", "--reqiure", "--require"), ("broker", "--node", "--nodes"), ("compnode", "--borker", "--broker"),
            ("quickstart", "--strategy", "--strategies"), ("plan partial", "--peroid", "--period"),
            ("plan place", "--candidate=3", "--candidates"), ("ddprun", "--peroid=3", "--period"),
            ("ddprun", "--no-prefx", "--no-prefix"), ("bench_allreduce", "--iter", "--iters")]:
        fails(folder, command, [given, "3"],
              "unknown option %s; did you mean %s\\? --help lists all$" % (given.split("=")[0], nearest))
    fails(folder, "train_gpt", ["--zzzzzz", "3"], "unknown option --zzzzzz; --help lists all$")
    fails(folder, "train_gpt", ["steps", "3"], "unexpected argument steps; did you mean --steps\\?")
    fails(folder, "plan", ["partail"], "unknown subcommand partail; did you mean partial\\?")


# ---- values ----


@case("an invalid value fails with the option, the value and a remedy")
def check(folder):
    for command, given, remedy in [
            ("train_gpt", "--lr fast", "is not a number; --lr X: learning rate"),
            ("train_gpt", "--lr 0,01", "is not a number; write --lr 0.01$"),
            ("train_gpt", "--lr 0.01x", "is not a number: remove \"x\""),
            ("train_gpt", "--lr nan", "is not a number"), ("train_gpt", "--lr 0x10", "is not a number"),
            ("train_gpt", "--lr 1e999", "is not a number"), ("train_gpt", "--lr -1", "above 0"),
            ("train_gpt", "--clip -1", "0 for no limit"), ("train_gpt", "--dropout 1", "below 1"),
            ("train_gpt", "--heads 0", "at least 1"), ("train_gpt", "--steps 5.0", "write --steps 5$"),
            ("train_gpt", "--steps 1e3", "write --steps 1000$"), ("train_gpt", "--steps 5x", "remove \"x\""),
            ("train_gpt", "--steps -5", "whole number from 0"), ("train_gpt", "--batch 2000000001", "from 0 to 2000000000"),
            ("train_gpt", "--period 5.0", "is not a whole number; write --period 5$"),
            ("train_gpt", "--period 0", "1 to 1000000 steps"), ("train_gpt", "--period 2000000", "1 to 1000000 steps"),
            ("train_gpt", "--period 5x", "1 to 1000000 steps"), ("train_gpt", "--staleness many", "0 or more steps"),
            ("train_gpt", "--outer-lr 0,7", "is not a number; write --outer-lr 0.7$"),
            ("train_gpt", "--outer-lr 0.7x", "above 0"), ("train_gpt", "--state-period 0,5", "1 to 1000000 periods"),
            ("train_gpt", "--peer-timeout 5s", "above 0, in seconds"), ("train_gpt", "--threads 5000", "1 to 1024"),
            ("netcheck", "--peer-timeout -1", "above 0, in seconds"), ("netcheck", "--workers 500", "from 2 to 256"),
            ("netcheck", "--op-timeout 1,5", "write --op-timeout 1.5$"),
            ("broker", "--nodes 0", "from 1 to 256"), ("broker", "--momentum 1", "below 1"),
            ("broker", "--peer-timeout 0", "above 0"), ("compnode", "--threads 0", "from 1 to 1024"),
            ("compnode", "--connect-timeout -1", "at least 0"), ("quickstart", "--lr 0", "above 0"),
            ("quickstart", "--workers 65", "from 1 to 64"), ("bench_allreduce", "--bytes 3", "multiple of 4"),
            ("ddprun", "-n 2.0", "whole number from 1 to 1024"), ("ddprun", "--period 0", "from 1 to 1000000"),
            ("plan pipeline", "--stages 1025", "from 1 to 1024"), ("plan speed", "--peak-tflops 1,5", "write .* 1.5$")]:
        words = given.split()
        before = SMALL if command == "train_gpt" else []
        fails(folder, command, [*before, *words], re.escape(given) + "\\b|%s is %s\\b" % tuple(words), remedy)
    write(folder, "p.csv", csv("a,1000,0.1,0.2,0.3"))
    fails(folder, "simulate", ["--profile", "p.csv", "--tokens", "0"], "--tokens 0", "above 0")
    fails(folder, "plan partial", ["--profile", "p.csv", "--period", "0"], "--period is 0", "from 1 to 1000000")


@case("an option overrides the variable of its setting, even with 0")
def check(folder):
    for variable, option in [("STALENESS", "--staleness"), ("SEED", "--seed"), ("MIN_WORLD", "--min-world"),
                             ("CLIP_NORM", "--clip"), ("LANDING", "--landing"), ("PERIOD", "--period=2"),
                             ("STRATEGY", "--strategy=ssgd"), ("NET", "--net=1gbit,0ms"), ("PAPER", "--paper")]:
        args = [option] if "=" in option or option == "--paper" else [option, 0]
        env = {"DREAMDDP_" + variable: "soon"}
        fails(folder, "train_gpt", [*SMALL, "--steps", 2, "--workers", 2], "soon", env=env)
        train(folder, *SMALL, "--steps", 2, "--workers", 2, *args, env=env)
    fails(folder, "netcheck", ["--workers", 2], "soon", env={"DREAMDDP_PEER_TIMEOUT": "soon"})
    run(folder, "--workers", 2, "--transport", "threads", "--peer-timeout", 20, program=of("netcheck")[0],
        env={"DREAMDDP_PEER_TIMEOUT": "soon"})


# ---- --help ----


@case("--help of the trainers lists model, data and strategy first, then the other groups")
def check(folder):
    for program in ("train_gpt", "train_image"):
        found = groups(folder, program)
        titles = list(found)
        expect(titles[:3] == ["Model", "Data", "Strategy"], str(titles))
        expect([t for t in titles if t in CHAPTERS] == list(CHAPTERS), str(titles))
        for title, options in CHAPTERS.items():
            missing = set(options.split()) - set(found[title])
            expect(not missing, "%s --help: %s lacks %s" % (program, title, missing))
        for option in "strategy period transport rank addr net wire threads deterministic profile-steps".split():
            expect(option in found["Strategy"], "%s is not in Strategy" % option)
        for option in "steps batch optimizer schedule clip seed preset".split():
            expect(option in found["Training"], "%s is not in Training" % option)


@case("--help of every program lists each option once, in groups if there are many")
def check(folder):
    for command in PROGRAMS:
        found = groups(folder, command)
        options = [o for group in found.values() for o in group]
        expect(len(options) == len(set(options)), "%s --help has an option twice: %s" % (command, sorted(options)))
        expect("help" in options and all(found.values()), "%s --help: %s" % (command, found))
        expect((len(options) < 14) or len(found) > 3, "%s --help has %d options in %d groups" % (command, len(options), len(found)))


if __name__ == "__main__":
    sys.exit(run_script(2, "train_gpt", "train_image", "simulate", "netcheck", "broker", "compnode", "quickstart", "plan",
                        "ddprun", "bench_allreduce"))
