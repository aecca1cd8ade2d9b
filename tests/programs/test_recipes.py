#!/usr/bin/env python3
"""The recipes of docs/contributing: their steps, applied to a copy of src/, compile, and their programs print what is shown.

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
STEP = re.compile(r"^(?:In `(?P<old>[^`]+)`, (?P<side>before|after) the line that contains `(?P<anchor>[^`]+)`"
                  r"|New file `(?P<new>[^`]+)`):\n\n```c\n(?P<text>.*?)^```$", re.M | re.S)
OUTPUT = re.compile(r"^It prints:\n\n```text\n(.*?)^```$", re.M | re.S)


def apply(page, folder):
    """Applies the steps of a page. Returns the C programs that it adds outside src/."""
    programs = []
    blocks = page.count("\n```c\n")
    steps = list(STEP.finditer(page))
    if not steps or len(steps) != blocks:
        raise ValueError("%d blocks of C, of which %d say where they go" % (blocks, len(steps)))
    for step in steps:
        path = os.path.join(folder, step["new"] or step["old"])
        if step["new"]:
            if os.path.exists(path):
                raise ValueError("%s exists" % step["new"])
            with open(path, "w") as f:
                f.write(step["text"])
            if "/" not in step["new"]:
                programs.append(path)
            continue
        with open(path) as f:
            lines = f.readlines()
        found = [i for i, line in enumerate(lines) if step["anchor"] in line]
        if len(found) != 1:
            raise ValueError("%s: %d lines contain %s" % (step["old"], len(found), step["anchor"]))
        lines.insert(found[0] + (step["side"] == "after"), step["text"])
        with open(path, "w") as f:
            f.writelines(lines)
    return programs


def run(*command, **options):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300, **options)
    if r.returncode:
        raise ValueError("%s: exit code %d: %s" % (command[0], r.returncode, r.stdout[-2000:]))
    return r.stdout


def check(folder):
    """Yields a name, and the reason why it failed or an empty text."""
    pages = {}
    for name in sorted(os.listdir(RECIPES)):
        if name != "README.md":
            with open(os.path.join(RECIPES, name)) as f:
                pages[name] = f.read()
    for name in ("src", "tools", "packaging"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(folder, name))
    os.makedirs(os.path.join(folder, "tests", "config"))
    shutil.copy(os.path.join(ROOT, "tests", "config", "test_settings.c"), os.path.join(folder, "tests", "config"))
    programs = {name: apply(page, folder) for name, page in pages.items()}
    run(sys.executable, "tools/amalgamate.py", cwd=folder)
    with open(os.path.join(folder, "library.c"), "w") as f:
        f.write('#define DREAMDDP_IMPLEMENTATION\n#include "dreamddp.h"\n')
    flags = ["-std=c11", "-O0", "-Wall", "-Wextra", "-Werror", "-I.", "-isystem", os.path.join(ROOT, "build", "include")]
    compiler = (os.environ.get("CC") or "cc").split()
    run(*compiler, *flags, "-c", "library.c", "-o", "library.o", cwd=folder)
    yield "the_steps_of_all_recipes_compile", ""
    for name, page in pages.items():
        shown = OUTPUT.search(page)
        for program in programs[name]:
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
