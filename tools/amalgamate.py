#!/usr/bin/env python3
"""Expands src/dreamddp.h, the spine, into the single header that users include.

    tools/amalgamate.py            writes dreamddp.h (only if it changed)
    tools/amalgamate.py --check    regenerates in memory and compares; one-line errors
    tools/amalgamate.py --split DIR    writes DIR/dreamddp.h (declarations) and DIR/dreamddp.c

The output depends only on src/. Each project file is expanded once, where it is first included,
after the files that it includes itself. Later #includes of it are dropped. System includes stay.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPINES = (("dreamddp.h", "dreamddp.h"), ("dreamddp_cuda.cuh", "dreamddp_cuda.cuh"))
# A folder may use the folders before it, but not those after it.
FOLDERS = ("base graph ops nn data io compress wire emulate comm member profile plan config context exchange device measure session strategy pipe sim report cuda").split()

INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
OPEN, CLOSE = re.compile(r"\s*#\s*if"), re.compile(r"\s*#\s*endif")
OPTION = re.compile(r"\bDDP_NO_\w+")  # in the spine: #if around implementations that a user may exclude
LEADING = re.compile(r'(?:/\*.*?\*/|[ \n]|#include [^\n]*\n)*', re.S)  # comments and includes before the first code


class Fault(Exception):
    """A one-line error about a fault in src/."""


def read(path, name):
    """Returns the lines of a source file, after the checks that apply to every file."""
    with open(path, "rb") as f:
        data = f.read()
    for number, line in enumerate(data.split(b"\n"), 1):
        at = "src/%s:%d" % (name, number)
        if any(c > 126 or c < 32 and c not in b"\t\r" for c in line):
            raise Fault("%s: the line contains a byte that is not printable ASCII" % at)
        if b"\t" in line:
            raise Fault("%s: the line contains a tab; indent with spaces" % at)
        if line.rstrip() != line:
            raise Fault("%s: the line ends with a blank" % at)
    if not data.endswith(b"\n"):
        raise Fault("src/%s: the last line has no newline" % name)
    return data.decode("ascii").split("\n")[:-1]


def folder(name):
    return name.split("/")[0] if "/" in name else None


class Amalgamation:
    """lines: the output; origin[i]: (file in src/, line) from which line i came, or None."""

    def __init__(self, src, spine, done=(), strict=False):
        self.src, self.spine, self.strict = src, spine, strict
        self.done = dict.fromkeys(done, ())  # file: the options around it in the spine
        self.done[spine] = ()
        self.outputs = [output for other, output in SPINES if other != spine]
        self.lines, self.origin, self.options = [], [], []
        for number, line in enumerate(read(os.path.join(src, spine), spine), 1):
            if OPEN.match(line):
                self.options.append(line.strip() if OPTION.search(line) else "")
            elif CLOSE.match(line):
                self.options.pop()
            self.line(spine, number, line, 0)

    def text(self):
        return "\n".join(self.lines) + "\n"

    def put(self, line, origin):
        if line or (self.lines and self.lines[-1]):  # a dropped #include leaves no double blank line
            self.lines.append(line)
            self.origin.append(origin)

    def around(self):
        return tuple(filter(None, self.options))

    def expand(self, name):
        """Expands the files that this file includes first, then its text without #pragma once. Each file is
        expanded once."""
        self.done[name] = self.around()
        lines = [(i, line) for i, line in enumerate(read(os.path.join(self.src, name), name), 1) if line != "#pragma once"]
        top = len(lines) - len(LEADING.sub("", "\n".join(line for _, line in lines) + "\n").split("\n")) + 1
        for number, line in lines[:top]:
            if INCLUDE.match(line):
                self.line(name, number, line, 0)
        self.put("", None)
        self.put("/* ==== %s ==== [%s] */" % (name, folder(name)), None)
        depth = 0
        for number, line in lines:
            depth += bool(OPEN.match(line)) - bool(CLOSE.match(line))
            self.line(name, number, line, depth)
        self.put("", None)

    def line(self, name, number, line, depth):
        m = INCLUDE.match(line)
        if not m:
            self.put(line, (name, number))
            return
        target = m.group(1)
        self.check_include(name, number, target, depth)
        if target in self.outputs:
            self.put(line, (name, number))  # the GPU companion includes dreamddp.h
        elif target not in self.done:
            self.expand(target)

    def check_include(self, name, number, target, depth):
        at = "src/%s:%d" % (name, number)
        if not os.path.isfile(os.path.join(self.src, target)):
            raise Fault('%s: #include "%s": src/ has no such file' % (at, target))
        for option in self.done.get(target, ()):
            if option not in self.around():
                raise Fault('%s: #include "%s", which %s of src/%s excludes; include it in the spine '
                            "before that" % (at, target, option, self.spine))
        if name == self.spine:
            return
        if depth > 0:
            raise Fault('%s: #include "%s" is inside #if; each file is expanded once, '
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
    """Returns [(output name, Amalgamation)]; raises Fault. strict adds rules that may be broken during
    development: every file is included, and no file uses a later folder."""
    src = os.path.join(root, "src")
    result, reached = [], set()
    for spine, output in SPINES:
        if os.path.isfile(os.path.join(src, spine)):
            done = reached if output.endswith(".cuh") else ()  # the GPU companion includes dreamddp.h
            a = Amalgamation(src, spine, done, strict)
            reached |= set(a.done)
            result.append((output, a))
    for name in sorted(all_files(src)):
        if strict and name not in reached:
            raise Fault("src/%s is not included: add it to src/dreamddp.h" % name)
    return result


def split(text):
    """Splits the text of dreamddp.h into (header, source)."""
    begin, inside = "#ifdef DREAMDDP_IMPLEMENTATION\n", "#define DDP__IMPLEMENTED\n"
    end, after = "#endif /* DDP__IMPLEMENTED */\n", "#endif /* DREAMDDP_IMPLEMENTATION */\n"
    return ("/* The declarations of dreamddp.h, split from it by `make split`. DREAMDDP_IMPLEMENTATION has no effect\n"
            " * here: compile dreamddp.c, or link the library of `make lib`. */\n" +
            text[:text.index(begin)] + text[text.index(after) + len(after):].lstrip("\n"),
            "/* The implementation of dreamddp.h, split from it by `make split`. MIT licence: see dreamddp.h. */\n"
            "#define DREAMDDP_IMPLEMENTATION\n" + inside + '#include "dreamddp.h"\n' +
            text[text.index(inside) + len(inside):text.index(end)].rstrip("\n") + "\n")


def write(path, text):
    with open(path + ".tmp", "w", encoding="ascii") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def main(argv):
    check = argv == ["--check"]
    if argv and not check and not (len(argv) == 2 and argv[0] == "--split"):
        sys.stderr.write(__doc__)
        return 2
    try:
        outputs = generate(strict=check)
        if argv and not check:
            for name, text in zip(("dreamddp.h", "dreamddp.c"), split(dict(outputs)["dreamddp.h"].text())):
                write(os.path.join(argv[1], name), text)
            return 0
        for name, a in outputs:
            path = os.path.join(ROOT, name)
            if os.path.isfile(path):
                with open(path, encoding="latin-1") as f:
                    if f.read() == a.text():
                        continue
            if check:
                raise Fault("%s is stale: run `make header` and commit the result" % name)
            write(path, a.text())
            print("%s: %d lines from src/" % (name, len(a.lines)))
    except Fault as e:
        sys.stderr.write("amalgamate: %s\n" % e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
