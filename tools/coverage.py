#!/usr/bin/env python3
"""Lists the lines and branches of src/ that the tests reach, by module, from the counts of a coverage build (gcov).

    tools/coverage.py [--folder build/cov] [--missing MODULE | --calls] [--json FILE]

`make coverage` builds the tests with --coverage into build/cov and runs them. This script reads all their counts.
A branch is one outcome of one condition. A line or branch counts as reached if any test reached it. --missing lists the
unreached lines and branches of a module (for example plan) or file (plan/timeline/deft.c). --calls prints how many public
functions were called, and lists the others.
"""
import argparse
import collections
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def files_of(data):
    """gcov's data about each file of src/, from one .gcda file."""
    out = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", data], cwd=ROOT,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    files = [f for part in out.splitlines() if part.startswith(b"{") for f in json.loads(part)["files"]]
    for f in files:
        f["file"] = os.path.relpath(os.path.join(ROOT, f["file"]), ROOT)
    return [f for f in files if f["file"].startswith("src/")]


def of_all(folder, rows_of):
    """Yields rows_of(gcov's data about a file) for all .gcda files."""
    data = glob.glob(os.path.join(folder, "**", "*.gcda"), recursive=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for files in pool.map(files_of, data):
            for f in files:
                yield from rows_of(f)


def calls(folder):
    """Returns (public functions, public functions that were not called)."""
    with open(os.path.join(ROOT, "dreamddp.h")) as f:
        declared = f.read().split("#ifdef DREAMDDP_IMPLEMENTATION")[0]
    names = set(re.findall(r"^DDP_API [^;{(]*?\b(ddp_\w+)\(", declared, re.M))
    called = {name for name in of_all(folder, lambda f: [x["name"] for x in f["functions"] if x["execution_count"]])}
    return sorted(names), sorted(names - called)


def merged(folder):
    """Returns {file: {line: [count, {number of branches: [count of each]}]}}. A line of a header, or of a file
    that a test includes, is compiled several times, sometimes into different branches. branches_of uses the
    compilation in which most were reached."""
    files = collections.defaultdict(dict)
    for name, l in of_all(folder, lambda f: [(f["file"], l) for l in f["lines"]]):
        at = files[name].setdefault(l["line_number"], [0, {}])
        at[0] += l["count"]
        if l["branches"]:
            sums = at[1].setdefault(len(l["branches"]), [0] * len(l["branches"]))
            for i, b in enumerate(l["branches"]):
                sums[i] += b["count"]
    return files


def branches_of(at):
    return at[1][max(at[1], key=lambda n: (sum(c > 0 for c in at[1][n]), n))] if at[1] else []


def module_of(name):
    return name.split("/")[1] if name.count("/") > 1 else "src"


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--folder", default="build/cov")
    a.add_argument("--missing", metavar="MODULE")
    a.add_argument("--calls", action="store_true")
    a.add_argument("--json", metavar="FILE")
    a.add_argument("--without", default="", metavar="FILE,..", help="files to exclude, for example wire/tls.c")
    a.add_argument("--title", default="", metavar="TEXT", help="first line of the table")
    a = a.parse_args()
    if a.calls:
        names, others = calls(os.path.join(ROOT, a.folder))
        print("%d of %d public functions were called; not called: %s" % (len(names) - len(others), len(names), " ".join(others)))
        return
    files = merged(os.path.join(ROOT, a.folder))
    if not files:
        sys.exit("coverage.py: %s contains no counts: run `make coverage`" % a.folder)
    for name in a.without.split(","):
        files.pop("src/" + name, None)
    modules = collections.defaultdict(lambda: [0, 0, 0, 0])
    for name, lines in files.items():
        sums = modules[module_of(name)]
        for at in lines.values():
            b = branches_of(at)
            sums[0] += 1
            sums[1] += at[0] > 0
            sums[2] += len(b)
            sums[3] += sum(n > 0 for n in b)
    if a.missing:
        for name in sorted(files):
            if a.missing not in (module_of(name), name[4:]):
                continue
            with open(os.path.join(ROOT, name)) as f:
                text = f.read().split("\n")
            for line in sorted(files[name]):
                at, b = files[name][line], branches_of(files[name][line])
                if not at[0] or any(n == 0 for n in b):
                    print("%s:%d: %s %s" % (name, line, "line  " if not at[0] else "%d of %d" % (sum(n == 0 for n in b), len(b)),
                                            text[line - 1].strip()[:110]))
        return
    total = [sum(r[i] for r in modules.values()) for i in range(4)]
    pct = lambda got, of: 100.0 * got / of if of else 100.0
    if a.title:
        print(a.title)
    print("%-10s %7s %8s %9s %8s" % ("module", "lines", "reached", "branches", "reached"))
    for module in sorted(modules) + ["all"]:
        r = total if module == "all" else modules[module]
        print("%-10s %7d %7.1f%% %9d %7.1f%%" % (module, r[0], pct(r[1], r[0]), r[2], pct(r[3], r[2])))
    if a.json:
        with open(a.json + ".new", "w") as f:
            json.dump({"modules": {k: modules[k] for k in sorted(modules)}, "all": total}, f, indent=1)
        os.rename(a.json + ".new", a.json)


if __name__ == "__main__":
    main()
