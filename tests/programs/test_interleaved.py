#!/usr/bin/env python3
"""examples/interleaved.c, vectors.cpp and own_update.c. Without the lines that call the library, the first is the
same program. It trains with strategy dreamddp; test_interleaved_strategies.py runs the other strategies.

    tests/programs/test_interleaved.py      needs build/interleaved, build/vectors, build/own_update and build/ddprun
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Checks  # noqa: E402
from interleaved import BUILD, SOURCE, learns_under, losses, run  # noqa: E402

check = Checks()


def main():
    with open(SOURCE, encoding="ascii") as f:
        comment, program = f.read().split("*/\n", 1)
    lines = program.splitlines(True)
    ours = [l for l in lines if "ddp" in l.lower()]
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "plain")
        with open(plain + ".c", "w", encoding="ascii") as f:
            f.writelines(l for l in lines if l not in ours)
        r = subprocess.run((os.environ.get("CC") or "cc").split() + ["-std=c11", "-O2", plain + ".c", "-o", plain, "-lm"],
                           capture_output=True, text=True)
        check("without the library's lines the program compiles alone", r.returncode == 0, r.stderr)
        without, alone = run(plain, SOURCE), run(BUILD + "/interleaved", SOURCE)
        check("it prints the same as one worker with the library", without == alone and len(losses(alone[1])) == 3, repr((without, alone)))
    learns_under(check, "dreamddp")
    code, out, err = run(BUILD + "/ddprun", "-n", "2", "--strategy", "deft", BUILD + "/interleaved", SOURCE)
    check("a strategy with its own update fails", code == 2 and "own update" in err, repr((code, err)))
    code, out, err = run(BUILD + "/interleaved", "/no/such/file")
    check("a missing text fails with a one-line error", code == 2 and "1000 bytes" in err, repr((code, err)))
    code, out, err = run(BUILD + "/ddprun", "-n", "2", BUILD + "/vectors")
    miss = [float(x) for x in re.findall(r"squared miss ([0-9.]+)$", out, re.M)]
    told = re.findall(r"first weight ([0-9.]+)$", out, re.M)
    check("a model in C++ vectors learns, and its workers end with equal parameters",
          code == 0 and len(told) == 2 and len(set(told)) == 1 and miss[2] < miss[0], repr((code, out, err)))
    code, out, err = run(BUILD + "/ddprun", "-n", "3", "--strategy", "dreamddp", BUILD + "/own_update")
    loss, told = losses(out, "[0] "), re.findall(r"^\[\d\] parameters ([0-9a-f]{16})$", out, re.M)
    check("a program with its own update rule learns, and its workers end with equal parameters",
          code == 0 and len(loss) == 6 and loss[-1] < loss[0] / 2 and len(told) == 3 and len(set(told)) == 1, repr((code, out, err)))
    return check.close()


if __name__ == "__main__":
    sys.exit(main())
