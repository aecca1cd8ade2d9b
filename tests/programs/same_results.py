#!/usr/bin/env python3
"""The parameters of deterministic runs stay bit-identical when a change only moves or renames code.

    tests/programs/same_results.py            compares each run with tests/programs/same_results.json
    tests/programs/same_results.py --write    writes that file

Each strategy trains a small GPT on the text of $DDP_DATA with three combinations of transport and coding. The hash of the
parameters depends on the kernels, so all runs use the base kernels. Without the text the test is skipped.
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIST = os.path.join(ROOT, "tests", "programs", "same_results.json")
PROGRAM = os.path.join(ROOT, "build", "train_gpt")
COMMON = ["--workers", "3", "--steps", "24", "--layers", "2", "--dim", "32", "--heads", "2", "--seq", "32", "--batch", "2",
          "--period", "4", "--deterministic", "--kernels", "base", "--seed", "7", "--val-batches", "2", "--bucket-bytes",
          "20000", "--partition-bytes", "8000", "--net", "1gbit,1ms"]
PLAIN = [["--transport", "threads"], ["--transport", "tcp"], ["--transport", "tcp", "--wire", "bf16"]]
SERVED = [["--servers", servers, "--transport", how] for servers, how in (("1", "threads"), ("1", "tcp"), ("colocated", "tcp"))]
LINKS = [["--net2", "1gbit,2ms"] + how for how in PLAIN]
OUTER = [["--transport", "threads"], ["--transport", "tcp", "--wire", "int4", "--overlap", "stream"],
         ["--transport", "tcp", "--overlap", "eager"]]
SPARSE = [["--transport", "threads"], ["--transport", "tcp"], ["--transport", "tcp", "--overlap", "stream"]]
RUNS = {
    "ssgd": PLAIN, "wfbp": PLAIN, "mgwfbp": PLAIN, "ascwfbp": PLAIN, "bytescheduler": PLAIN, "usbyte": PLAIN,
    "localsgd": PLAIN, "enp": PLAIN, "dreamddp": PLAIN, "deft": LINKS,
    "bsp": SERVED, "asp": SERVED, "ssp": SERVED, "r2sp": SERVED, "osp": SERVED,
    "diloco": OUTER, "sparseloco": SPARSE,
}


def text():
    folder = os.environ.get("DDP_DATA", os.path.join(ROOT, "data"))
    path = os.path.join(folder, "tinyshakespeare", "input.txt")
    return path if os.path.exists(path) else None


def hash_of(strategy, options, data):
    command = [PROGRAM, "--data", data, "--strategy", strategy] + COMMON + options
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=120,
                       env=dict({k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}, OMP_NUM_THREADS="1"))
    if r.returncode:
        return "exit %d: %s" % (r.returncode, r.stderr.strip().split("\n")[-1][-200:])
    return json.loads(r.stdout.strip().split("\n")[-1])["param_hash"]


def main():
    data = text()
    if not data or not os.path.exists(PROGRAM):
        print("skipped: %s" % ("no text in $DDP_DATA" if not data else "make build/train_gpt"))
        return 77
    found = {" ".join([s] + options): hash_of(s, options, data) for s, runs in RUNS.items() for options in runs}
    if sys.argv[1:] == ["--write"]:
        with open(LIST, "w", encoding="ascii") as f:
            json.dump(found, f, indent=1, sort_keys=True)
            f.write("\n")
        print("%d runs" % len(found))
        return 0
    with open(LIST, encoding="ascii") as f:
        expected = json.load(f)
    wrong = [name for name in expected if found.get(name) != expected[name]]
    for name in wrong:
        print("%s: %s, expected %s" % (name, found.get(name, "no such run"), expected[name]))
    print("%d passed, %d failed, 0 skipped" % (len(expected) - len(wrong), len(wrong)))
    return 1 if wrong or len(expected) != len(found) else 0


if __name__ == "__main__":
    sys.exit(main())
