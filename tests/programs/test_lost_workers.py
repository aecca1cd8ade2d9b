#!/usr/bin/env python3
"""[long] Signals and lost workers: every process of the run ends with the right exit code and one line on stderr.

    tests/programs/test_lost_workers.py [WORD...]     only the cases whose names contain one of the words
"""
import glob
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (LONG, SMALL, Watched, case, expect, finish, lost, result, run_script, sentence, stage_lost,
                     start, train, training, unused_address, wait_until, wait_until_computing)  # noqa: E402


def stopped(name, number, everyone):
    @case(name)
    def check(folder):
        p, ranks = training(folder, "--json", "x.jsonl", "--trace", "x.json")
        if everyone:
            os.killpg(p.pid, number)
        else:
            p.send_signal(number)
        code, out, err = finish(p, folder)
        expect(code == 130, "exit %d: %s" % (code, err))
        expect(not out, "results on stdout: " + out[:100])
        sentence(err, "interrupted")
        expect(os.listdir(folder) == ["text"], "left %s" % os.listdir(folder))


stopped("Ctrl-C sent to all processes ends the run", signal.SIGINT, True)
stopped("SIGINT sent to the parent ends the run", signal.SIGINT, False)
stopped("SIGTERM sent to all processes ends the run", signal.SIGTERM, True)
stopped("SIGTERM sent to the parent ends the run", signal.SIGTERM, False)

for where in ["--transport threads --workers 3", "--workers 1"]:
    @case("Ctrl-C ends a run with " + where)
    def check(folder, where=where):
        p = start(folder, *LONG, *where.split())
        wait_until_computing(p, [p.pid])
        p.send_signal(signal.SIGINT)
        code, out, err = finish(p, folder)
        expect(code == 130, "exit %d: %s" % (code, err))
        sentence(err, "interrupted")


lost("a killed rank 0 ends the run with an error", signal.SIGKILL, 0)
lost("a killed last rank ends the run with an error", signal.SIGKILL, -1)


@case("a killed rank that was started by hand is named by the others")
def check(folder):
    addr = unused_address()
    ranks = [start(folder, *LONG, "--workers", 3, "--rank", r, "--addr", addr, "--net",
                   "100mbit,1ms") for r in range(3)]
    wait_until_computing(ranks[0], [p.pid for p in ranks])
    ranks[1].kill()
    for r in (0, 2):
        code, out, err = finish(ranks[r], folder)
        expect(code == 3, "exit %d, expected 3: %s" % (code, err))
        sentence(err, "rank 1")
    ranks[1].communicate()


@case("a lost stage is named")
def check(folder):
    code, out, err = stage_lost(folder, [3], "--pipeline", "zb")
    expect(code == 3, "exit %d: %s" % (code, err))
    sentence(err, r"stage 1 of pipeline 1 \(rank 3\) .*was lost")


@case("pipelines started by hand continue after rank 0 is killed")
def check(folder):
    addr = unused_address()
    ranks = [Watched(folder, "--min-replicas", 1, "--rank", r, "--addr", addr) for r in range(6)]
    ranks[0].wait_for_evaluations(1)
    ranks[0].process.kill()
    ranks[0].process.communicate()
    ends = [r.finish() for r in ranks[1:]]
    expect([e[0] for e in ends] == [0] * 5, "exits and errors: %s" % [(e[0], e[2]) for e in ends])
    expect([bool(e[1]) for e in ends] == [False, True, False, False, False], "ranks that print results: %s" % [e[1][:20] for e in ends])
    expect(result(ends[1][1])["workers"] == 4, "results of another run: " + ends[1][1])


@case("workers end when their parent is killed")
def check(folder):
    p, ranks = training(folder)
    p.kill()
    p.wait()
    finish(p, folder)

SERVED = {"bsp": [], "asp": [], "ssp": ["--staleness", 2], "r2sp": [], "osp": ["--defer", 0.6]}


@case("servers: a resumed run ends bit-identical, and a killed server is reported as a lost peer")
def check(folder):
    for s, more in SERVED.items():
        args = SMALL + ["--workers", 2, "--deterministic", "--steps", 4000, "--strategy", s, *more, "--servers",
                        "colocated" if s == "ssp" else 1]
        p = start(folder, *args, "--save", s, "--save-every", 3, "--keep", 3)
        wait_until(lambda: len(glob.glob(os.path.join(folder, s, "*", "manifest.json"))) > 1, "no checkpoint")
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        last = max(int(f.split("step-")[1][:12]) for f in glob.glob(os.path.join(folder, s, "*", "manifest.json")))
        args[args.index(4000)] = last + 7
        whole, rest = train(folder, *args), train(folder, *args, "--resume", s, "--transport", "threads")
        expect(whole["param_hash"] == rest["param_hash"], "%s after resuming at %d" % (s, last))
    addr = unused_address()
    ranks = [start(folder, *LONG, "--workers", 2, "--servers", 1, "--strategy", "asp", "--rank", r, "--addr", addr)
             for r in range(3)]
    wait_until_computing(ranks[0], [p.pid for p in ranks])
    ranks[2].kill()
    for r in (0, 1):
        code, out, err = finish(ranks[r], folder)
        expect(code == 3, "exit %d, expected 3: %s" % (code, err))
        sentence(err, "rank 2", "it served 4 layers: ")
    ranks[2].communicate()


if __name__ == "__main__":
    sys.exit(run_script(2, "train_gpt"))
