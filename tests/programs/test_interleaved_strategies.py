#!/usr/bin/env python3
"""[test-all: slow] examples/interleaved.c learns with every strategy that averages.

    tests/programs/test_interleaved_strategies.py      needs build/interleaved and build/ddprun
"""
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Checks, chosen  # noqa: E402
from interleaved import learns_under  # noqa: E402


def main():
    check = Checks()
    for strategy in ("ssgd", "wfbp", "localsgd", "enp", "diloco", "sparseloco"):
        if chosen("three workers learn under " + strategy):
            learns_under(check, strategy)
    return check.close()


if __name__ == "__main__":
    sys.exit(main())
