#!/usr/bin/env python3
"""Measures src/ by room: lines, files, functions, what is used upwards, circles.

    tools/house.py            a table, then each use of a later room and each circle of files
    tools/house.py --check    one sentence per fault, exit 1: a use of a later room, a circle of more
                              than 3 files, a file of more than 700 lines or one that does not open
                              with a sentence, a number read or written in the program's locale, a
                              comparison that -ffast-math removes, a page of docs/ that names what does
                              not exist

A room is a folder of src/, in the order of tools/amalgamate.py; it may use those before it. A file is a
.c with its .h. One uses another if it includes it, or names a function that only the other defines.
"""
import glob
import os
import re
import sys

from amalgamate import FOLDERS, ROOT
from check_names import strip

SRC = os.path.join(ROOT, "src")
DEFINITION = re.compile(r"^(?!typedef\b|#|extern\b)[A-Za-z_][^;{}=#\n]*?\b(ddp_\w+)\s*\((?:[^;{}]|\n)*?\)\s*\n?\{", re.M)
WORD = re.compile(r"\bddp_\w+(?=\s*[(,;)}\]])")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
OPENING = re.compile(r"/\*\s*\w(?:[^*]|\*(?!/))*?[.:;](?:\s|\*/)")  # a comment that begins with a sentence
PAGES = ("README.md", "CHANGELOG.md")
NAMED = re.compile(r"\b(?:ddp_|DDP_)[a-zA-Z0-9_]+|\b(?:src|tests|bench|tools|examples|docs|packaging)/[\w./-]*\w")
NUMBERS = "base/number.c"  # the only file that reads or writes numbers with libc, whose locale may have a comma
IN_A_LOCALE = re.compile(r"\b(strto(?:d|f|ld)|atof|v\w*printf|\w*scanf|localeconv|setlocale)\s*\(")
PRINTS = re.compile(r'\b\w*printf\((?:[^;"]|"(?:\\.|[^"\\])*")*;')
A_REAL = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[aefgAEFG]")
NOT_FINITE = re.compile(r"\b(isnan|isinf|isfinite|NAN|INFINITY|HUGE_VALF?)\b")
MOST_LINES, MOST_FILES = 700, 3  # of a file, of a circle


def stem(path):
    return path.rsplit(".", 1)[0]


class House:
    """stems: "room/name"; uses[stem] = {other stem: [names]}"""

    def __init__(self):
        self.lines, self.text, self.functions = {}, {}, {}
        for room in FOLDERS:
            paths = [os.path.relpath(os.path.join(at, name), SRC) for at, _, names in os.walk(os.path.join(SRC, room))
                     for name in names]
            for path in sorted(paths):
                with open(os.path.join(SRC, path), encoding="ascii") as f:
                    raw = f.read()
                self.lines[path] = raw.count("\n")
                self.text[path] = raw
        self.bare = {p: strip(t) for p, t in self.text.items()}
        self.home = {}
        for path, bare in self.bare.items():
            self.functions[path] = self.definitions(bare)
            for name, _ in self.functions[path]:
                self.home.setdefault(name, set()).add(stem(path))
        self.uses = {}
        for path in self.text:
            self.find_uses(path)

    @staticmethod
    def definitions(bare):
        """[(function, its lines)]"""
        found = []
        for m in DEFINITION.finditer(bare):
            end = re.compile(r"^\}", re.M).search(bare, m.end())
            one_line = bare.find("}", m.end(), bare.find("\n", m.end()) if "\n" in bare[m.end():] else None)
            stop = one_line if one_line >= 0 and bare[one_line + 1:one_line + 2] == "\n" and (
                not end or one_line < end.start()) else end.start() if end else m.end()
            found.append((m.group(1), bare.count("\n", m.start(), stop) + 1))
        return found

    def find_uses(self, path):
        mine, bare = self.uses.setdefault(stem(path), {}), self.bare[path]
        for target in INCLUDE.findall(self.text[path]):
            if stem(target) != stem(path) and target in self.text:
                mine.setdefault(stem(target), set())
        if path.endswith((".h",)):
            return
        own = {n for n, _ in self.functions[path]}
        for name in set(WORD.findall(bare)) - own:
            homes = self.home.get(name, ())
            if len(homes) == 1:
                other = next(iter(homes))
                if other != stem(path):
                    mine.setdefault(other, set()).add(name)

    def upward(self):
        """[(file, later file, names)]"""
        order = {room: i for i, room in enumerate(FOLDERS)}
        return sorted((a, b, sorted(names)) for a, to in self.uses.items() for b, names in to.items()
                      if order[b.split("/")[0]] > order[a.split("/")[0]])

    def in_a_locale(self):
        """[(file, line, function)] that may read or write a number with the decimal point of the program's locale"""
        for path, raw in self.text.items():
            if path == NUMBERS:
                continue
            for m in IN_A_LOCALE.finditer(self.bare[path]):
                yield path, self.bare[path].count("\n", 0, m.start()) + 1, m.group(1)
            for m in PRINTS.finditer(raw):
                if A_REAL.search(m.group(0).replace("%%", "")):
                    yield path, raw.count("\n", 0, m.start()) + 1, m.group(0).split("(")[0]

    def circles(self):
        """Lists of files of one room that use each other; calls alone, since a header may serve many."""
        index, low, stack, found, count = {}, {}, [], [], [0]

        def visit(v):
            index[v] = low[v] = count[0]
            count[0] += 1
            stack.append(v)
            for w, names in self.uses[v].items():
                if not names or w.split("/")[0] != v.split("/")[0]:
                    continue
                if w not in index:
                    visit(w)
                    low[v] = min(low[v], low[w])
                elif w in stack:
                    low[v] = min(low[v], index[w])
            if low[v] == index[v]:
                group = []
                while not group or group[-1] != v:
                    group.append(stack.pop())
                if len(group) > 1:
                    found.append(sorted(group))
        for v in sorted(self.uses):
            if v not in index:
                visit(v)
        return found


def quantile(sizes, q):
    return sorted(sizes)[min(len(sizes) - 1, int(q * len(sizes)))] if sizes else 0


def table(house):
    circles, upward = house.circles(), house.upward()
    print("%-10s %7s %6s %10s %7s %5s %8s %7s %8s" % ("room", "lines", "files", "functions", "median", "90 %",
                                                       "longest", "upward", "circles"))
    for room in FOLDERS + ["all"]:
        paths = [p for p in house.text if room == "all" or p.startswith(room + "/")]
        if not paths:
            continue
        sizes = [n for p in paths for _, n in house.functions[p]]
        print("%-10s %7d %6d %10d %7d %5d %8d %7d %8d" % (
            room, sum(house.lines[p] for p in paths), len(paths), len(sizes), quantile(sizes, 0.5),
            quantile(sizes, 0.9), max(sizes or [0]),
            sum(room == "all" or a.startswith(room + "/") for a, _, _ in upward),
            max([len(c) for c in circles if room == "all" or c[0].startswith(room + "/")] or [0])))


def faults(house):
    for a, b, names in house.upward():
        yield "src/%s uses src/%s, a later room: %s" % (a, b, ", ".join(names) or "its header")
    for c in house.circles():
        if len(c) > MOST_FILES:
            yield "a circle of %d files: %s" % (len(c), " ".join(c))
    for path, lines in house.lines.items():
        if lines > MOST_LINES:
            yield "src/%s has %d lines; %d at most" % (path, lines, MOST_LINES)
    for path, text in house.text.items():
        if not opens_with_a_sentence(text):
            yield "src/%s does not open with a comment that says what it is for" % path
    for path, line, call in house.in_a_locale():
        yield "src/%s:%d calls %s, which depends on the locale; use ddp__format or ddp__number" % (path, line, call)
    for path, bare in house.bare.items():
        for m in [] if path.startswith("cuda/") else NOT_FINITE.finditer(bare):  # nvcc assumes nothing about kernels
            yield "src/%s:%d names %s; -ffast-math removes what depends on it: use ddp__finite, ddp__is_nan, DBL_MAX" % (
                path, bare.count("\n", 0, m.start()) + 1, m.group(1))
    for page, line, name in pages():
        yield "%s:%d names %s, which does not exist" % (page, line, name)


def opens_with_a_sentence(text):
    return bool(OPENING.match(text))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def pages():
    """[(page, number of the line, name)] of calls, constants and files that are not there. What a table under
    **Removed** names is left out."""
    folder = os.path.join(ROOT, "docs")
    public = re.compile(r"\b(?:ddp_|DDP_)[a-zA-Z0-9_]+")
    names = set(public.findall(read(os.path.join(ROOT, "CMakeLists.txt"))))
    for top in ("src", "examples", "tests", "tools"):
        for at, _, files in os.walk(os.path.join(ROOT, top)):
            for f in files:
                if f.endswith((".h", ".c", ".cuh", ".cu", ".py", ".sh", ".mk")):
                    names |= set(public.findall(read(os.path.join(at, f))))
    for path in [os.path.join(ROOT, p) for p in PAGES] + sorted(
            os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".md")):
        removed = False
        for number, line in enumerate(read(path).splitlines(), 1):
            removed = line.startswith("**Removed**") or (removed and not line.startswith(("#", "**")))
            for name in [] if removed else NAMED.findall(line):
                there = name in names or (name.endswith("_") and any(n.startswith(name) for n in names)) \
                    if name[:4] in ("ddp_", "DDP_") else bool(glob.glob(os.path.join(ROOT, name) + "*"))
                if not there:
                    yield os.path.relpath(path, ROOT), number, name


def main(argv):
    if argv not in ([], ["--check"]):
        sys.stderr.write(__doc__)
        return 2
    house = House()
    found = list(faults(house))
    if not argv:
        table(house)
        for c in house.circles():
            if len(c) <= MOST_FILES:
                print("a circle: " + " ".join(c))
    for f in found:
        print("house: " + f, file=sys.stderr if argv else sys.stdout)
    return 1 if argv and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
