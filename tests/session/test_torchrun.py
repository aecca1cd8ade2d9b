#!/usr/bin/env python3
"""[test-all: needs PyTorch] The trainer with the real torchrun is bit-identical to a run without it. Exit 77 if
torchrun is not installed, or if torchrun --help takes more than 120 s.

Needs build/train_gpt (`make all`)."""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from training import GPT, OWN, alone, case, expect  # noqa: E402
from cases import Wrong, run_cases, skip_script, unused_port  # noqa: E402

ABOUT = ""  # output of torchrun --help


class PortTaken(Wrong):
    """A rank cannot listen, because another process has the port."""


def torchrun(words):
    """Runs torchrun. Returns the JSON object that the run printed, and stderr."""
    env = {k: v for k, v in os.environ.items() if not OWN.search(k)}
    env.update(DREAMDDP_LOG="info", DREAMDDP_CONNECT_TIMEOUT="60", OMP_NUM_THREADS="1")
    # torchrun 1.13 with Python 3.11 fails on its own defaults of these two options
    for more in ([], "-r 0:1 -t 0:1".split()):
        p = subprocess.Popen(["torchrun", *more, *words, *GPT], env=env, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = p.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)
            raise Wrong("torchrun %s hangs" % " ".join(words))
        if "'NoneType' object has no attribute 'get'" not in err:
            break
    if "Address already in use" in err:
        raise PortTaken(err[-800:])
    expect(p.returncode == 0, "torchrun %s: exit %d: %s" % (words, p.returncode, err[-800:]))
    found = re.findall(r"^(?:\[.*?\]:)?(\{.*\})$", out, re.M)
    expect(len(found) == 1, "%d results of rank 0: %s" % (len(found), out))
    return json.loads(found[0]), err


def option(name):
    """The name of a torchrun option; older versions only accept underscores."""
    return "--" + name.replace("-", "-" if "--no-python" in ABOUT else "_")


def trains(*words):
    right = alone(4)
    result, err = torchrun([*words, option("no-python"), option("nproc-per-node"), "4"])
    expect(result["workers"] == 4 and result["param_hash"] == right, str(result))
    expect(len(re.findall("rank . of 4, as torchrun says", err)) == 4, err[-800:])


@case
def torchrun_trains():
    trains(option("master-port"), str(unused_port(2)))


@case
def torchrun_standalone_trains():
    try:
        trains("--standalone")
    except PortTaken:  # torchrun chooses MASTER_PORT, and an outgoing connection may have the port after it
        trains("--standalone")


def main():
    global ABOUT
    if not shutil.which("torchrun"):
        skip_script("no torchrun")
    try:
        about = subprocess.run(["torchrun", "--help"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        skip_script("torchrun --help takes longer than 120 s")
    if about.returncode:
        skip_script("torchrun --help fails")
    ABOUT = about.stdout
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
