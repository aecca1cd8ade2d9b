#!/usr/bin/env python3
"""The emulated link takes as long as htb of the same rate, within 15 %: other load on the machine disturbs both.

The strict comparison is `bench/emulation.py --within 5`. Needs root, ip and tc; exit 77 without.
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    subprocess.run(["make", "-s", "build/bench_allreduce"], cwd=ROOT, check=True)
    for attempt in range(1, 4):
        command = [sys.executable, "bench/emulation.py", "--quick", "--within", "15"]
        code = subprocess.run(command, cwd=ROOT).returncode
        if code != 1:
            return code
        print("attempt %d: more than 15 %% apart" % attempt, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
