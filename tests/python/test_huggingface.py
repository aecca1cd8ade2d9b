#!/usr/bin/env python3
"""[long, test-all: needs transformers, accelerate and peft] Trainer with the callback, Accelerate with the plugin, LoRA.

    tests/python/test_huggingface.py [WORD...]     only the cases whose names contain one of the words

Each program trains on two ranks and in one process on the same data. With wfbp the parameters are equal.
"""
import os
import re
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped, case, expect, run_cases, skip_script  # noqa: E402
from ddprun import DDPRUN, HERE, built, clean, has, run  # noqa: E402

PROGRAM = os.path.join(HERE, "hf_program.py")
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def programs(folder, kind, strategy):
    """Runs a program. Returns the lines of both ranks."""
    if not has("transformers, accelerate" + (", peft" if kind == "lora" else "")):
        raise Skipped("no transformers, accelerate or peft for %s" % sys.executable)
    there = os.path.join(folder, "alone.pt")
    if kind != "ddp":
        r = run(sys.executable, PROGRAM, kind, "alone", there, env=clean(**QUIET))
        expect(r.returncode == 0, r.stderr[-800:])
    r = run(DDPRUN, "-n", 2, "--quiet", "--strategy", strategy, sys.executable, PROGRAM, kind, there, env=clean(**QUIET))
    expect(r.returncode == 0, r.stderr[-1500:])
    return r.stdout


def same(folder, kind, most, steps):
    said = programs(folder, kind, "wfbp")
    found = re.findall(r"equal (\d) far (\S+) steps (\d+)", said)
    expect(len(found) == 2 and all(e == "1" and float(f) < most and int(n) == steps for e, f, n in found), said[-400:])
    said = programs(folder, kind, "dreamddp")
    expect(len(re.findall(r"equal 1 far \S+ steps %d" % steps, said)) == 2, said[-400:])


@case
def trainer_with_the_callback_trains(folder):
    same(folder, "trainer", 1e-6, 20)


@case
def accelerate_with_the_plugin_trains(folder):
    same(folder, "accelerate", 1e-5, 13)


@case
def lora_trains(folder):
    same(folder, "lora", 1e-6, 20)


@case
def averaging_twice_gives_a_warning(folder):
    said = programs(folder, "ddp", "wfbp")
    expect(said.count("warnings 1") == 2, said[-400:])


if __name__ == "__main__":
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun")
    sys.exit(run_cases())
