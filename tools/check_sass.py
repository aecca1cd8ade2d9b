#!/usr/bin/env python3
"""Checks the machine code of the GPU companion for errors of the compiler that no test on a CPU can find.

    tools/check_sass.py [--install] [--log FILE] FILE...     a cubin, or the output of `nvdisasm -c` (.sass)
    --install       installs nvdisasm from PyPI into build/nvdisasm if it is missing
    --log FILE      also checks the messages of ptxas, from `nvcc -Xptxas -v`

Three checks:

1. wgmma reads the left factor (A) of a product from registers. In each loop around the product, each of these registers
   is written without a predicate before the product in every iteration, or no instruction of the loop writes it.
   Otherwise an iteration can read what another instruction left in the register.
2. The loops of the attention kernels that multiply spill no register: they store nothing to local memory. Loads from it,
   of values that were spilled before the loop, are counted and are not an error.
3. ptxas reports no wgmma that it had to serialise (messages C7500 to C7599).

Prints each violation. Exit 1 if there is one, if an architecture with wgmma has no wgmma, or if there is no attention
kernel. Exit 77 if nvdisasm is missing.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys

from ptxas import demangled

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRIVATE = os.path.join(ROOT, "build", "nvdisasm")

SECTION = re.compile(r"//-+ \.text\.(\S+)")
LABEL = re.compile(r"\s*(\.L_\w+):")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*(?:\(\*.*\*\))?;")
TARGET = re.compile(r"`\((\.L_\w+)\)")
# wgmma in bfloat16, TF32 and float16 (HGMMA), int8 (IGMMA), float8 (QGMMA) and single bits (BGMMA)
WGMMA = re.compile(r"[HIQB]GMMA\.\d+x(\d+)x\d+\.(\w+)")
A_REGISTERS = 4 # per thread, for every type
PRODUCT = re.compile(r"[HIQB]GMMA|[HI]MMA|FFMA")
ATTENTION = re.compile(r"ddp__k_(?:flash|attend)")
# The first register operand of these instructions is a source.
WRITES_NO_REGISTER = re.compile(r"\w*SETP2?\b|FCHK|BRX|JMX|CALL|RET|BAR|WARPSYNC|NANOSLEEP|R2P\b")
DESTINATION = re.compile(r"(?:!?U?P(?:\d+|T),\s*)*R(\d+)\b")
SERIALISED = re.compile(r"\bC75\d\d\b")


class Instruction:
    def __init__(self, at, predicate, opcode, operands):
        self.at, self.predicate, self.opcode, self.operands = at, predicate, opcode, operands

    def __str__(self):
        return "%s: %s" % (self.at, " ".join(filter(None, (self.predicate, self.opcode, self.operands))))

    def writes(self):
        """The numbers of the general registers that it writes."""
        m = None if WRITES_NO_REGISTER.match(self.opcode) else DESTINATION.match(self.operands)
        return range(int(m.group(1)), int(m.group(1)) + self.width()) if m else range(0)

    def width(self):
        """The number of consecutive registers of the result."""
        words = self.opcode.split(".")
        wgmma = WGMMA.match(self.opcode)
        if wgmma: # a thread of a group has N / 2 sums, of which a register holds one float or two float16
            return int(wgmma.group(1)) // (4 if wgmma.group(2) == "F16" else 2)
        if "128" in words or words[0] == "IMMA" or (words[0] == "LDSM" and words[-1] == "4"):
            return 4
        if words[0] == "HMMA":
            return 2 if words[2] == "F16" else 4
        if ("64" in words or "WIDE" in words or (words[0] == "LDSM" and words[-1] == "2") or
                (words[0] == "CS2R" and "32" not in words) or words[0] in ("DADD", "DMUL", "DFMA") or
                (words[0] in ("F2F", "I2F", "F2I") and words[1] in ("F64", "S64", "U64"))):
            return 2
        return 1

    def left_factor(self):
        """The registers of the left factor, if this is a wgmma that reads it from registers."""
        m = WGMMA.match(self.opcode) and re.match(r"R\d+, R(\d+),", self.operands)
        return range(int(m.group(1)), int(m.group(1)) + A_REGISTERS) if m else range(0)

    def ends(self):
        """Returns True if the next instruction in memory never follows this one."""
        jumps = self.opcode == "BRA" and self.operands.startswith("`")
        return not self.predicate and (jumps or self.opcode.startswith(("EXIT", "RET", "BRX", "JMX")))


class Function:
    """The instructions of one kernel and the possible successors of each."""
    def __init__(self, name):
        self.name, self.body, self.labels = name, [], {}

    def next_of(self):
        """For each instruction, the indices of those that may follow it. A call is followed by the next instruction."""
        follow = []
        for i, one in enumerate(self.body):
            follow.append([] if one.ends() or i + 1 == len(self.body) else [i + 1])
            target = TARGET.search(one.operands) if one.opcode.startswith("BRA") else None
            if target and target.group(1) in self.labels:
                follow[i].append(self.labels[target.group(1)])
        return follow

    def loops(self):
        """Returns the natural loops as (index of the first instruction, set of the indices of all)."""
        follow, found = self.next_of(), {}
        before = [[] for _ in self.body]
        for i, those in enumerate(follow):
            for j in those:
                before[j].append(i)
        place, above = dominators(follow, before)
        for i in place:
            for head in follow[i]:
                if dominates(head, i, place, above):
                    found.setdefault(head, {head}).update(reaching(i, head, before, place))
        return sorted(found.items())


def dominators(follow, before):
    """Returns the place of each reachable instruction in a reverse postorder, and its immediate dominator (Cooper,
    Harvey and Kennedy, "A Simple, Fast Dominance Algorithm")."""
    order, seen, stack = [], {0}, [(0, iter(follow[0]))]
    while stack:
        i, rest = stack[-1]
        j = next((j for j in rest if j not in seen), None)
        if j is None:
            order.append(i)
            stack.pop()
        else:
            seen.add(j)
            stack.append((j, iter(follow[j])))
    place = {i: p for p, i in enumerate(reversed(order))}
    above, changed = {0: 0}, True
    while changed:
        changed = False
        for i in list(place)[1:]:
            new = None
            for j in before[i]:
                if j in above:
                    new = j if new is None else common(j, new, place, above)
            if above.get(i) != new:
                above[i] = new
                changed = True
    return place, above


def common(a, b, place, above):
    while a != b:
        while place[a] > place[b]:
            a = above[a]
        while place[b] > place[a]:
            b = above[b]
    return a


def dominates(a, b, place, above):
    while place[b] > place[a]:
        b = above[b]
    return a == b


def reaching(i, head, before, place):
    """The reachable instructions from which i can be reached without passing head."""
    found, stack = set(), [i]
    while stack:
        j = stack.pop()
        if j not in found and j != head and j in place:
            found.add(j)
            stack += before[j]
    return found


def read(lines):
    """Returns the functions of a listing and the architecture that it is for."""
    functions, arch = [], ""
    for line in lines:
        m = SECTION.match(line)
        if m:
            functions.append(Function(m.group(1)))
        m = re.match(r"\s*\.target\s+(\w+)", line)
        if m:
            arch = m.group(1)
        if not functions:
            continue
        m = LABEL.match(line)
        if m:
            functions[-1].labels[m.group(1)] = len(functions[-1].body)
        m = INSTRUCTION.search(line)
        if m:
            functions[-1].body.append(Instruction(*m.groups()))
    return functions, arch


def always_written(function, follow, head, loop, at, register):
    """Returns True if every path from the head of the loop to the instruction `at` writes the register."""
    seen, stack = set(), [head]
    while stack:
        i = stack.pop()
        if i == at:
            return False
        if i in seen or i not in loop or (not function.body[i].predicate and register in function.body[i].writes()):
            continue
        seen.add(i)
        stack += [j for j in follow[i] if j != head]
    return True


def factors_lost(function, loops):
    """Yields a message for each wgmma whose left factor an iteration may not have written."""
    follow = function.next_of()
    for at, product in enumerate(function.body):
        for head, loop in loops if product.left_factor() else []:
            if at not in loop:
                continue
            for register in product.left_factor():
                writers = [i for i in sorted(loop) if register in function.body[i].writes()]
                if writers and not always_written(function, follow, head, loop, at, register):
                    yield ("R%d, an operand of \"%s\", is written in the loop from %s on, by \"%s\", but not in each iteration "
                           "before the product" % (register, product, function.body[head].at, function.body[writers[-1]]))
                    break


def spills(function, loops):
    """Returns the stores to local memory, and the loads from it, in the loops that multiply."""
    main = {i for _, loop in loops for i in loop if any(PRODUCT.match(function.body[j].opcode) for j in loop)}
    used = [function.body[i] for i in sorted(main)]
    return [[one for one in used if one.opcode.startswith(opcode)] for opcode in ("STL", "LDL")]


def check(lines, name):
    """Returns ({name: count}, [(kernel, message)]) of a listing."""
    functions, arch = read(lines)
    products = attention = reloads = 0
    faults = []
    for f in functions:
        groups = sum(bool(WGMMA.match(one.opcode)) for one in f.body)
        attends = bool(ATTENTION.search(f.name))
        products += groups
        attention += attends
        if not f.body or not (groups or attends):
            continue
        loops = f.loops()
        faults += [(f.name, m) for m in factors_lost(f, loops)]
        if attends:
            stores, loads = spills(f, loops)
            faults += [(f.name, "spill in a loop that multiplies: \"%s\"" % one) for one in stores]
            reloads += len(loads)
    if arch.endswith("a") and not products:
        faults.append((name, "no wgmma in code for %s" % arch))
    if not attention:
        faults.append((name, "no attention kernel"))
    return {"wgmma": products, "attention kernels": attention, "reloads in their loops": reloads}, faults


def nvdisasm(install):
    """The path of nvdisasm: from the directory of nvcc, from PATH, or from PyPI. None if it is missing."""
    def find():
        nvcc = shutil.which("nvcc")
        there = [os.path.join(os.path.dirname(os.path.realpath(nvcc)), "nvdisasm") if nvcc else None, shutil.which("nvdisasm")]
        there += glob.glob(PRIVATE + "/lib/python3*/site-packages/nvidia/*/bin/nvdisasm")
        return next((path for path in there if path and os.access(path, os.X_OK)), None)

    if not find() and install:
        subprocess.run([sys.executable, "-m", "venv", PRIVATE])
        subprocess.run([os.path.join(PRIVATE, "bin", "pip"), "install", "-q", "nvidia-cuda-nvdisasm"])
    return find()


def listing(path, tool):
    if path.endswith(".sass"):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().splitlines()
    ran = subprocess.run([tool, "-c", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        sys.exit("check_sass: %s cannot read %s: %s" % (tool, path, ran.stdout.strip()))
    return ran.stdout.splitlines()


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--log")
    parser.add_argument("files", nargs="+", metavar="FILE")
    given = parser.parse_args(argv)
    bad = 0
    if given.log:
        with open(given.log, encoding="utf-8", errors="replace") as f:
            for line in filter(SERIALISED.search, f):
                bad += 1
                print("%s: %s" % (given.log, line.strip()))
    tool = None if all(path.endswith(".sass") for path in given.files) else nvdisasm(given.install)
    for path in given.files:
        if not tool and not path.endswith(".sass"):
            print("check_sass: skipped: nvdisasm is not installed; install it with the CUDA toolkit, or use --install")
            return 1 if bad else 77
        counts, faults = check(listing(path, tool), path)
        plain = demangled(sorted({name for name, _ in faults}))
        for name, message in faults:
            print("%s: %s" % (plain[name], message))
        bad += len(faults)
        counts["faults"] = len(faults)
        print("%s: %s" % (path, ", ".join("%d %s" % (n, what) for what, n in counts.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
