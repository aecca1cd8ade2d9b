#!/usr/bin/env python3
"""Expands src/dreamddp.h, the spine, into the one header that users include.

    tools/amalgamate.py            writes dreamddp.h (only if it changed)
    tools/amalgamate.py --check    regenerates to memory and compares; one sentence per fault

The output is a pure function of src/: each project file is expanded once, where it is first
included; a later #include of it is dropped; system includes stay.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPINES = (("dreamddp.h", "dreamddp.h"), ("dreamddp_cuda.cuh", "dreamddp_cuda.cuh"))
# A folder may use those before it, never those after it.
FOLDERS = ("base graph ops nn data io net profile plan compress sync pipe report cuda").split()

INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
OPEN, CLOSE = re.compile(r"\s*#\s*if"), re.compile(r"\s*#\s*endif")


class Fault(Exception):
    """One clear sentence about what is wrong in src/."""


def read(path, name):
    """The lines of a source file, after the checks that every file must pass."""
    with open(path, "rb") as f:
        data = f.read()
    for number, line in enumerate(data.split(b"\n"), 1):
        at = "src/%s:%d" % (name, number)
        if any(c > 126 or c < 32 and c not in b"\t\r" for c in line):
            raise Fault("%s: a byte that is not printable ASCII" % at)
        if b"\t" in line:
            raise Fault("%s: a tab; indent with spaces" % at)
        if line.rstrip() != line:
            raise Fault("%s: a trailing blank" % at)
    if not data.endswith(b"\n"):
        raise Fault("src/%s: the last line has no newline" % name)
    return data.decode("ascii").split("\n")[:-1]


def folder(name):
    return name.split("/")[0] if "/" in name else None


class Amalgamation:
    """lines: the output; origin[i]: (file under src/, line) that line i came from, or None."""

    def __init__(self, src, spine, done=(), strict=False):
        self.src, self.spine, self.strict = src, spine, strict
        self.done = set(done) | {spine}
        self.outputs = [output for other, output in SPINES if other != spine]
        self.lines, self.origin = [], []
        self.expand(spine)

    def text(self):
        return "\n".join(self.lines) + "\n"

    def put(self, line, origin):
        if line or (self.lines and self.lines[-1]):  # a dropped #include leaves no double gap
            self.lines.append(line)
            self.origin.append(origin)

    def expand(self, name):
        depth, guard = 0, name.endswith((".h", ".cuh"))
        for number, line in enumerate(read(os.path.join(self.src, name), name), 1):
            m = INCLUDE.match(line)
            if OPEN.match(line):
                depth += 1
            elif CLOSE.match(line):
                depth -= 1
            if not m:
                self.put(line, (name, number))
                continue
            self.check_include(name, number, m.group(1), depth - guard)
            if m.group(1) in self.outputs:
                self.put(line, (name, number))  # the companion includes the other header
                continue
            if m.group(1) in self.done:
                continue
            self.done.add(m.group(1))
            self.put("", None)
            self.put("/* ==== begin %s ==== [%s] */" % (m.group(1), folder(m.group(1))), None)
            self.expand(m.group(1))
            self.put("/* ==== end %s ==== */" % m.group(1), None)

    def check_include(self, name, number, target, depth):
        at = "src/%s:%d" % (name, number)
        if not os.path.isfile(os.path.join(self.src, target)):
            raise Fault('%s: #include "%s" names no file of src/' % (at, target))
        if name == self.spine:
            return
        if depth > 0:
            raise Fault('%s: #include "%s" stands inside #if; each file is expanded once, '
                        "so include it unconditionally" % (at, target))
        mine, theirs = folder(name), folder(target)
        for f in (mine, theirs):
            if f not in FOLDERS:
                raise Fault("%s: folder src/%s is not in the list of tools/amalgamate.py" % (at, f))
        if self.strict and FOLDERS.index(theirs) > FOLDERS.index(mine):
            raise Fault("%s: src/%s may not use src/%s, a later folder" % (at, mine, theirs))


def all_files(src):
    for base, _, names in os.walk(src):
        for n in names:
            if n.endswith((".h", ".c", ".cu", ".cuh")):
                yield os.path.relpath(os.path.join(base, n), src)


def generate(strict=False, root=ROOT):
    """[(output name, Amalgamation)]; raises Fault. strict adds the rules that a tree at work may
    break for an hour: no file that no spine reaches, no use of a later folder."""
    src = os.path.join(root, "src")
    result, reached = [], set()
    for spine, output in SPINES:
        if os.path.isfile(os.path.join(src, spine)):
            done = reached if output.endswith(".cuh") else ()  # the companion includes dreamddp.h
            a = Amalgamation(src, spine, done, strict)
            reached |= a.done
            result.append((output, a))
    for name in sorted(all_files(src)):
        if strict and name not in reached:
            raise Fault("src/%s is an orphan: no spine reaches it; add it to src/dreamddp.h" % name)
    return result


def main(argv):
    check = argv == ["--check"]
    if argv and not check:
        sys.stderr.write(__doc__)
        return 2
    try:
        outputs = generate(strict=check)
        for name, a in outputs:
            path = os.path.join(ROOT, name)
            old = None
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    old = f.read()
            new = a.text().encode("ascii")
            if new == old:
                continue
            if check:
                raise Fault("%s is stale: run `make header` and commit the result" % name)
            with open(path + ".tmp", "wb") as f:
                f.write(new)
            os.replace(path + ".tmp", path)
            print("%s: %d lines from src/" % (name, len(a.lines)))
    except Fault as e:
        sys.stderr.write("amalgamate: %s\n" % e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
