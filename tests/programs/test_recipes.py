#!/usr/bin/env python3
"""The recipes of docs/contributing: after their steps, a copy of src/ compiles, and their programs print the documented output.

    tests/programs/test_recipes.py
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECIPES = os.path.join(ROOT, "docs", "contributing")
TESTS = ("tests/config/test_settings.c", "tests/ops/test_ops.c", "tests/ops/reference.h",  # files that recipes change
         "tests/cuda/test_cuda_elementwise.cu")
STEP = re.compile(r"^(?:In `(?P<old>[^`]+)`, (?:(?P<side>before|after|replace) the line that contains `(?P<anchor>[^`]+)`"
                  r"|replace the lines from `(?P<first>[^`]+)` to `(?P<last>[^`]+)`)"
                  r"|New file `(?P<new>[^`]+)`):\n\n```c(?:pp)?\n(?P<text>.*?)^```$", re.M | re.S)
OUTPUT = re.compile(r"^It prints:\n\n```text\n(.*?)^```$", re.M | re.S)


def line_of(path, lines, text):
    """The index of the only line that contains the text."""
    found = [i for i, line in enumerate(lines) if text in line]
    if len(found) != 1:
        raise ValueError("%s: %d lines contain %s" % (path, len(found), text))
    return found[0]


def apply(page, folder):
    """Applies the steps of a page. Returns the C programs that it adds outside src/, and the files that it adds to
    src/."""
    programs, sources = [], []
    blocks = page.count("\n```c\n") + page.count("\n```cpp\n")
    steps = list(STEP.finditer(page))
    if not steps or len(steps) != blocks:
        raise ValueError("%d blocks of C, of which %d have a place" % (blocks, len(steps)))
    for step in steps:
        path = os.path.join(folder, step["new"] or step["old"])
        if step["new"]:
            if os.path.exists(path):
                raise ValueError("%s exists" % step["new"])
            with open(path, "w") as f:
                f.write(step["text"])
            (sources if "/" in step["new"] else programs).append(path)
            continue
        with open(path) as f:
            lines = f.readlines()
        first = line_of(step["old"], lines, step["anchor"] or step["first"])
        last = line_of(step["old"], lines, step["last"]) if step["last"] else first
        if step["side"] in ("before", "after"):
            first += step["side"] == "after"
            last = first - 1
        lines[first:last + 1] = [step["text"]]
        with open(path, "w") as f:
            f.writelines(lines)
    return programs, sources


def run(*command, **options):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300, **options)
    if r.returncode:
        raise ValueError("%s: exit code %d: %s" % (command[0], r.returncode, r.stdout[-2000:]))
    return r.stdout


def check(folder):
    """Yields the name of each check, and the reason of its failure or an empty text."""
    pages = {}
    for name in sorted(os.listdir(RECIPES)):
        if name != "README.md":
            with open(os.path.join(RECIPES, name)) as f:
                pages[name] = f.read()
    for name in ("src", "tools", "packaging"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(folder, name))
    for path in TESTS:
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, path), os.path.join(folder, path))
    added = {name: apply(page, folder) for name, page in pages.items()}
    run(sys.executable, "tools/amalgamate.py", cwd=folder)
    with open(os.path.join(folder, "library.c"), "w") as f:
        f.write('#define DREAMDDP_IMPLEMENTATION\n#include "dreamddp.h"\n')
    flags = ["-std=c11", "-O0", "-Wall", "-Wextra", "-Werror", "-I.", "-isystem", os.path.join(ROOT, "build", "include")]
    compiler = (os.environ.get("CC") or "cc").split()
    run(*compiler, *flags, "-c", "library.c", "-o", "library.o", cwd=folder)
    for source in [path for _, sources in added.values() for path in sources]:
        run(*compiler, *flags, "-D_GNU_SOURCE", "-DDDP_SEPARATE", "-Isrc", "-fsyntax-only", source, cwd=folder)
    yield "the_steps_of_all_recipes_compile", ""
    for name, page in pages.items():
        shown = OUTPUT.search(page)
        for program in added[name][0]:
            binary = program[:-2]
            run(*compiler, *flags, program, "library.o", "-o", binary, "-lm", "-lpthread", cwd=folder)
            printed = run(binary, cwd=folder)
            yield ("%s_prints_what_the_page_shows" % os.path.basename(binary),
                   "" if shown and printed == shown[1] else "it printed %r" % printed)


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, why in check(folder):
                print("ok %s" % name if not why else "FAILED %s: %s" % (name, why))
                failed += bool(why)
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            print("FAILED recipes: %s" % e)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
