#!/usr/bin/env python3
"""Writes the tables of docs/results/gpu.md from the file that `make gpu-check` writes.

    tools/gpu_table.py [build/gpu_check.json] [--page docs/results/gpu.md]

The text between the two comments in the page is replaced. Exit 1 if the file is not from gpu-check, or if the page has no such
comments.
"""
import argparse
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- tools/gpu_table.py: begin -->\n", "<!-- end -->\n"


def number(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return "%.0f" % value if abs(value) >= 1000 else "%.3g" % value


def figures(check):
    """The figures of a check in one cell."""
    words = ["%s %s" % (k.replace("_", " "), number(v)) for k, v in check["figures"].items() if not isinstance(v, list)]
    words += ["self-check %s ms" % number(c["ms"]) for c in check["figures"].get("self_check", [])]
    if check["result"] != "passed":
        words.append(check.get("why", "").splitlines()[0][:120] if check.get("why") else "")
    return ", ".join(filter(None, words)).replace("|", "/")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def page_of(run):
    stages = {}
    for check in run["checks"]:
        stages.setdefault(check["stage"], []).append(check)
    hopper = "the kernels that the self-check chose"
    if run["hopper"] == "0":
        hopper = "no Hopper kernels, because %s failed" % run["hopper_why"]
    waits = "waits of the stream"
    if run["waits"] == "0":
        waits = "waits of the calling thread (DREAMDDP_CUDA_WAITS=0), because %s failed" % run["waits_why"]
    text = "%s, driver %s, CUDA %s, %s, %s: %d passed, %d failed, %d skipped in %.0f s, with %s and %s.\n\n" % (
        run["gpu"], run["driver"], run["cuda"] or "unknown", run["arch"], run["date"], run["passed"], run["failed"],
        run["skipped"], run["seconds"], hopper, waits)
    text += table(["stage", "passed", "failed", "skipped"], [
        [name] + [str(sum(c["result"] == r for c in checks)) for r in ("passed", "failed", "skipped")]
        for name, checks in stages.items()])
    shown = [c for c in run["checks"] if figures(c)]
    text += "\n" + table(["check", "result", "figures"], [[c["name"].replace("|", "/"), c["result"], figures(c)] for c in shown])
    measured = [r for c in run["checks"] for r in c["figures"].get("rows", []) if "cell" in r or "what" in r]
    if measured:
        text += "\n" + table(["measurement", "figures"], [
            [r.get("cell") or r["what"], ", ".join("%s %s" % (k.replace("_", " "), number(v)) for k, v in r.items()
                                                   if k not in ("cell", "what", "event") and isinstance(v, (int, float)))]
            for r in measured])
    return text


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", default=os.path.join(ROOT, "build", "gpu_check.json"), help="the file [build/gpu_check.json]")
    parser.add_argument("--page", default=os.path.join(ROOT, "docs", "results", "gpu.md"), help="the page [docs/results/gpu.md]")
    args = parser.parse_args(argv)
    try:
        with open(args.run, encoding="utf-8") as f:
            run = json.load(f)
        with open(args.page, encoding="utf-8") as f:
            page = f.read()
    except (OSError, ValueError) as e:
        print("gpu_table: %s" % e, file=sys.stderr)
        return 1
    if run.get("event") != "gpu_check":
        print("gpu_table: %s is not from tools/gpu_check.py" % args.run, file=sys.stderr)
        return 1
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        print("gpu_table: %s lacks the lines %s and %s" % (args.page, BEGIN.strip(), END.strip()), file=sys.stderr)
        return 1
    with open(args.page, "w", encoding="utf-8") as f:
        f.write(before + BEGIN + page_of(run) + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
