#!/usr/bin/env python3
"""Prints registers, spills and shared memory of every kernel, from the output of `nvcc -Xptxas -v`.

    tools/ptxas.py build/nvcc/kernels.txt      one line per kernel, one column group per architecture

Lists kernels that spill on stderr. Exit 1 if the file names no kernel.
"""
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def demangled(names):
    try:
        out = subprocess.run(["c++filt", "-p"], input="\n".join(names), stdout=subprocess.PIPE, text=True).stdout
        return dict(zip(names, out.splitlines()))
    except OSError:
        return dict(zip(names, names))


def read(lines):
    """Returns {(kernel, architecture): (registers, bytes spilled, bytes of static shared memory)}."""
    found, at, spill = {}, None, 0
    for line in lines:
        m = ENTRY.search(line)
        if m:
            at, spill = m.groups(), 0
            continue
        m = SPILL.search(line)
        if m:
            spill = int(m.group(2)) + int(m.group(3))
            continue
        m = USED.search(line)
        if m and at:
            shared = SHARED.search(line)
            found[at] = (int(m.group(1)), spill, int(shared.group(1)) if shared else 0)
            at = None
    return found


def main(argv):
    if len(argv) != 1:
        sys.stderr.write(__doc__)
        return 2
    with open(argv[0], encoding="utf-8", errors="replace") as f:
        found = read(f)
    if not found:
        sys.stderr.write("ptxas: %s names no kernel; was it written with -Xptxas -v?\n" % argv[0])
        return 1
    kernels, archs = sorted({k for k, _ in found}), sorted({a for _, a in found})
    plain = demangled(kernels)
    print("%-60s %s" % ("kernel", " ".join("%22s" % a for a in archs)))
    print("%-60s %s" % ("", " ".join("%22s" % "regs spill shared" for _ in archs)))
    for k in sorted(kernels, key=lambda k: plain[k]):
        cells = ["%6d %6d %8d" % found[k, a] if (k, a) in found else "-" for a in archs]
        print("%-60s %s" % (plain[k][:60], " ".join("%22s" % c for c in cells)))
    spilling = sorted({"%s (%s, %d bytes)" % (plain[k], a, v[1]) for (k, a), v in found.items() if v[1]})
    for s in spilling:
        sys.stderr.write("spills: %s\n" % s)
    print("%d kernels, %d spill" % (len(kernels), len({s.split(" (")[0] for s in spilling})))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
