#!/usr/bin/env python3
"""Programs with their own training loop, strategy or operator: examples/own_loop.c, own_strategy.c and pipeline.c.

    tests/programs/test_own_programs.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (BUILD, ROOT, case, expect, run, run_script)  # noqa: E402


@case("own_loop ends with equal parameters over TCP and threads")
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


@case("own_strategy: pairs that averaged are equal, all ranks are equal at the end, over TCP and threads")
def check(folder):
    program, seen = os.path.join(BUILD, "own_strategy"), set()
    for args in ([], ["threads"]):
        out, err = run(folder, *args, program=program)
        ranks = dict(re.findall(r"rank (\d)  parameters ([0-9a-f]{16}  synced [0-9a-f]{16})", out))
        expect(sorted(ranks) == list("01234"), "ranks: " + out)
        expect(len({h.split()[2] for h in ranks.values()}) == 1, "parameters differ: " + out)
        expect(len({h.split()[0] for h in ranks.values()}) == 3, "not two pairs and a single rank: " + out)
        loss = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
        expect(loss[-1] < loss[0] / 2, "the loss does not fall: %s" % loss)
        expect(not err, "stderr: " + err)
        seen.add(tuple(sorted(ranks.items())))
    expect(len(seen) == 1, "TCP and threads differ: %s" % seen)
    expect("usage" in run(folder, "nonsense", program=program, code=2)[0], "no usage")
    with open(os.path.join(ROOT, "examples", "own_strategy.c")) as f:
        lines = f.read().splitlines()
    expect([s for s in lines if s.startswith("#include")] == ['#include "dreamddp.h"'], "includes")


@case("pipeline: a user-defined operator in stages is bit-identical with every schedule")
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
    expect([s for s in lines if s.startswith("#include")] == ['#include "dreamddp.h"'], "includes")


if __name__ == "__main__":
    sys.exit(run_script(2, "own_loop", "own_strategy", "pipeline"))
