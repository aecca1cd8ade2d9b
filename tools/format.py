#!/usr/bin/env python3
"""Formats the C files of src/, examples/, tests/ and bench/ with .clang-format.

    tools/format.py              formats in place
    tools/format.py --check      one-line errors, exit 1: a file that is formatted differently, a line of more than
                                 110 columns, statements joined by a comma. Exit 77: clang-format is missing
    tools/format.py --install    installs the pinned clang-format from PyPI into build/format, if it is missing

One version of clang-format is pinned, because versions format differently. It is searched in build/format and on PATH.
"""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION, COLUMNS = "14.0.6", 110
FOLDERS, ENDINGS = ("src", "examples", "tests", "bench"), (".c", ".h", ".cu", ".cuh")
PRIVATE = os.path.join(ROOT, "build", "format")
TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|[A-Za-z_]\w*|"
                   r"\d[\w.]*|\s+|<<<|>>>|->|\+\+|--|[-+*/%&|^<>=!]=|&&|\|\||<<|>>|.", re.S | re.M)
WORD = re.compile(r"[A-Za-z_]\w*$")
NO_EXPRESSION = set("return goto break continue if for while do switch case default else struct enum union const static "
                    "unsigned signed volatile extern typedef sizeof int char float double long short void size_t template "
                    "namespace using operator".split())


def sources():
    for top in FOLDERS:
        for at, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if name.endswith(ENDINGS):
                    yield os.path.join(at, name)


def clang_format():
    """The path of the pinned version, or None."""
    for path in (os.path.join(PRIVATE, "bin", "clang-format"), "clang-format", "clang-format-14"):
        there = shutil.which(path)
        if there and " " + VERSION in subprocess.run([there, "--version"], capture_output=True, text=True).stdout:
            return there
    return None


def install():
    if clang_format():
        return 0
    made = subprocess.run([sys.executable, "-m", "venv", PRIVATE]).returncode
    return made or subprocess.run([os.path.join(PRIVATE, "bin", "pip"), "install", "-q", "clang-format==" + VERSION]).returncode


def closing(tokens, i):
    """The index of the bracket that closes the one at i."""
    depth = 0
    for j in range(i, len(tokens)):
        depth += (tokens[j][0] in "([{") - (tokens[j][0] in ")]}")
        if depth == 0:
            return j
    return len(tokens)


def starts(tokens):
    """Returns {index of the first token of each statement: 1 if it is the body of an if, else or loop}."""
    found, i = {0: 0}, 0
    while i < len(tokens):
        word = tokens[i][0]
        if word in ("if", "while", "for", "switch") and i + 1 < len(tokens) and tokens[i + 1][0] == "(":
            i = closing(tokens, i + 1)
            found[i + 1] = 1
        elif word in ("else", "do"):
            found[i + 1] = 1
        elif word in (";", "{", "}"):
            found.setdefault(i + 1, 0)
        elif word == ":" and label(tokens, found, i):
            found[i + 1] = 0
        i += 1
    return found


def label(tokens, found, i):
    """True if the colon at i ends a label or a case."""
    begin = max((s for s in range(max(0, i - 12), i) if s in found), default=None)
    return begin is not None and (tokens[begin][0] in ("case", "default") or begin == i - 1)


def joined(text):
    """Yields (offset of a statement, offsets of the commas that join statements in it, offset of its semicolon, 1
    if it is a body)."""
    tokens = [(m.group(0), m.start()) for m in TOKEN.finditer(text)]
    tokens = [t for t in tokens if not (t[0].isspace() or t[0].startswith(("/*", "//")))]
    for begin, body in sorted(starts(tokens).items()):
        if begin + 1 >= len(tokens):
            continue
        first, second = tokens[begin][0], tokens[begin + 1][0]
        if first in NO_EXPRESSION or not (WORD.match(first) or first in ("*", "(", "++", "--")):
            continue
        if WORD.match(first) and (WORD.match(second) or second in ("*", "<", ":")):  # a declaration
            continue
        depth, commas = 0, []
        for word, at in tokens[begin:]:
            depth += (word in "([{" or word == "<<<") - (word in ")]}" or word == ">>>")
            if depth < 0 or word == "template" or word.lstrip().startswith("#") or (word == ";" and depth == 0):
                break
            if word == "," and depth == 0:
                commas.append(at)
        if commas and depth == 0 and word == ";":
            yield tokens[begin][1], commas, at, body


def faults(tool):
    for path in sources():
        name = os.path.relpath(path, ROOT)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for begin, _, _, _ in joined(text):
            yield "%s:%d: statements joined by a comma; write one per line" % (name, text.count("\n", 0, begin) + 1)
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > COLUMNS:
                yield "%s:%d: %d columns; %d at most" % (name, number, len(line), COLUMNS)
    if not tool:
        return
    said = subprocess.run([tool, "--style=file", "--dry-run", *sources()], capture_output=True, text=True)
    named = [line.split(":")[0] for line in said.stderr.splitlines() if "-Wclang-format-violations" in line]
    for path in sorted(set(named)):
        yield "%s is not formatted: run tools/format.py" % os.path.relpath(path, ROOT)
    if said.returncode:
        yield "clang-format failed: " + said.stderr.strip()[-300:]


def main(argv):
    if argv == ["--install"]:
        return install()
    if argv not in ([], ["--check"]):
        sys.stderr.write(__doc__)
        return 2
    tool = clang_format()
    if not tool and not argv:
        sys.stderr.write("format: clang-format %s was not found; run tools/format.py --install\n" % VERSION)
        return 1
    if not argv:
        return subprocess.run([tool, "--style=file", "-i", *sources()]).returncode
    found = list(faults(tool))
    for f in found:
        print("format: " + f, file=sys.stderr)
    if not found and not tool:
        print("skipped: the format of files; clang-format %s was not found (tools/format.py --install)" % VERSION)
    return 1 if found else 0 if tool else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
