#!/usr/bin/env python3
"""[long, test-all: needs PyTorch] Typical PyTorch programs on three ranks, compared with one process on the whole batch.

    tests/python/test_programs.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import run_cases, skip_script, told  # noqa: E402
from ddprun import HERE, built, together  # noqa: E402


def main():
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun build/plan")
    found = together(os.path.join(HERE, "programs.py"))
    return run_cases(kinds=[told(name.replace("_", " "), why) for name, why in found.items()])


if __name__ == "__main__":
    sys.exit(main())
