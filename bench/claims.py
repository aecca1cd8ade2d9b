#!/usr/bin/env python3
"""Every claim of the five papers beside what this machine measures: docs/results/claims/index.md.

    bench/claims.py [--only ID,..] [--kind KIND] [--missing] [--page] [--list]

Cases are those of bench/claims_cases.py, which says how to read and add one. A case's figures go into
bench/claims_results.json as soon as its commands have ended, and the page is made from all that is stored. A figure is stored
with the fingerprint of its case: one whose case has been changed since is not shown until it has been run again. A
command that fails is told in a sentence, nothing is stored, and the other cases go on (exit code 1).
"""
import argparse
import datetime
import difflib
import hashlib
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import claims_cases

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RESULTS = os.environ.get("CLAIMS_RESULTS", os.path.join(HERE, "claims_results.json"))
PAGE = os.environ.get("CLAIMS_PAGE", os.path.join(ROOT, "docs", "results", "claims", "index.md"))
NEAR, LIMIT_S = 0.10, 400
WITHIN, RANGE, DIRECTION, FAILS, CANNOT, NOT_RUN = VERDICTS = (
    "within 10 %", "in range", "direction only", "fails", "cannot be tested here", "not run yet")
RANK = {RANGE: 0, WITHIN: 1, DIRECTION: 2, FAILS: 3}
PAPERS = {"dreamddp": "DreamDDP", "deft": "DeFT", "osp": "OSP", "dtfm": "DT-FM", "fusionllm": "FusionLLM"}


class Row(dict):
    """A JSON object whose members expressions name with a point."""
    def __getattr__(self, name):
        if name not in self:
            raise KeyError("the result has no '%s'" % name)
        return self[name]


class Failed(Exception):
    """Why a case has no figures, in a sentence."""


# ---- running ----

def objects(text):
    """All JSON objects in lines of text, or in a JSON list."""
    if text.startswith("[\n"):
        return [Row(r) for r in json.loads(text)]
    return [Row(json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def execute(command):
    """Its last JSON object, all of them, and what it printed. {json}: a file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "out.json")
        job = subprocess.Popen(["bash", "-c", command.replace("{json}", file).replace("{tmp}", folder)], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = job.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            raise Failed("`%s` took more than %d s" % (command, LIMIT_S)) from None
        if job.returncode == 77:
            raise Failed("`%s` cannot run here: %s" % (command, (out + err).strip()[-200:]))
        written = os.path.exists(file) and open(file).read()
        if job.returncode and not written:
            last = (err.strip() or out.strip() or "nothing was said").splitlines()[-1]
            raise Failed("`%s` ended with %d: %s" % (command, job.returncode, last[-300:]))
        rows = objects(out)
        return rows[-1] if rows else Row(), objects(written) if written else rows, out + err


def figures(case, done):
    """What this machine says of a case: a number for each of its figures. done: results of commands of other cases."""
    names = {"math": math, "re": re, "mean": statistics.fmean, "median": statistics.median,
             "found": lambda pattern, text: float(re.search(pattern, text).group(1)),
             "pick": lambda rows, **want: next(r for r in rows if all(r.get(k) == v for k, v in want.items()))}
    for name, command in case.runs.items():
        if command not in done:
            print("    " + command, file=sys.stderr, flush=True)
            try:
                done[command] = execute(command)
            except Failed as e:
                done[command] = e
        if isinstance(done[command], Failed):
            raise done[command]
        names[name], names[name + "_rows"], names[name + "_text"] = done[command]
    ours = []
    for f in case.figures:
        try:
            ours.append(float(eval(f.ours, names)))  # of claims_cases.py, which is ours
        except Exception as e:
            raise Failed("`%s` gives no figure: %s: %s" % (f.ours, type(e).__name__, e)) from None
        if not math.isfinite(ours[-1]):
            raise Failed("`%s` is %s" % (f.ours, ours[-1]))
    return ours


# ---- judging ----

def bounds(paper):
    low, high = paper if isinstance(paper, tuple) else (paper, paper)
    return -math.inf if low is None else low, math.inf if high is None else high


def judge(figure, ours):
    """(ours over the paper's figure or the nearest end of its range, verdict)"""
    low, high = bounds(figure.paper)
    nearest = min(max(ours, low), high)
    ratio = 1.0 if ours == nearest else ours / nearest if nearest else math.inf
    if isinstance(figure.paper, tuple) and low <= ours <= high:
        return ratio, RANGE
    if abs(ratio - 1) <= NEAR and math.isfinite(high - low):  # "at least", "at most" say an order: it holds or not
        return ratio, WITHIN
    n = figure.neutral
    same_side = n is not None and not low <= n <= high and (ours - n) * (nearest - n) > 0
    return ratio, DIRECTION if same_side else FAILS


def fingerprint(case):
    said = json.dumps([case.runs, [f.ours for f in case.figures]])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def verdict(case, stored):
    """The worst of its figures."""
    if case.kind == "not here":
        return CANNOT
    kept = stored.get(case.id)
    if not kept or kept["case"] != fingerprint(case):
        return NOT_RUN
    return max((judge(f, o)[1] for f, o in zip(case.figures, kept["ours"])), key=RANK.get)


# ---- what is stored ----

def load():
    if not os.path.exists(RESULTS):
        return {}
    with open(RESULTS) as f:
        return json.load(f)


def write(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.replace(path + ".new", path)


def parts(cases):
    """Claims, each followed by what stands beside it: all that is run and stored."""
    return [part for c in cases for part in [c] + c.beside]


def keep(case, ours, seconds):
    stored = load()
    stored[case.id] = {"case": fingerprint(case), "date": datetime.date.today().isoformat(), "ours": [float("%.6g" % x) for x in ours],
                       "seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1), "machine": machine()}
    order = {c.id: n for n, c in enumerate(parts(claims_cases.CASES))}
    lines = ["%s: %s" % (json.dumps(k), json.dumps(stored[k])) for k in sorted(stored, key=lambda k: order.get(k, 1e9)) if k in order]
    write(RESULTS, "{\n" + ",\n".join(lines) + "\n}\n")


def machine():
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            model = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), model)
    except OSError:
        pass
    return "%d x %s" % (os.cpu_count(), model)


# ---- the page ----

def number(x):
    return "%.0f" % x if 100 <= abs(x) < 1e6 else "%.3g" % x


def paper_number(figure):
    low, high = bounds(figure.paper)
    text = "%g" % low if low == high else "at most %g" % high if low == -math.inf else \
        "at least %g" % low if high == math.inf else "%g to %g" % (low, high)
    return figure.said or text + figure.unit


def claim_rows(case, stored):
    """Of a claim, then of what stands beside it."""
    what = "**%s** %s" % (case.place, case.claim)
    if case.over:
        what += "; over: " + case.over
    if case.erratum:
        what += " **Erratum:** " + case.erratum
    rows = part_rows("|%s<br>%s|%s|" % (case.spec, case.id, what), case, stored)
    for part in case.beside:
        rows += part_rows("|||", part, stored)
    return rows


def part_rows(head, case, stored):
    kept = stored.get(case.id)
    fresh = kept and kept["case"] == fingerprint(case) and case.kind != "not here"
    if case.kind == "not here":
        return [head + "|%s||%s|%s: %s|" % (case.said, case.kind, CANNOT, case.why)]
    rows = []
    for n, f in enumerate(case.figures):
        ratio, said = judge(f, kept["ours"][n]) if fresh else (None, "%s: %s" % (NOT_RUN, case.why) if case.why else NOT_RUN)
        rows.append("%s%s|%s|%s|%s|%s|%s|" % (head if n == 0 else "|||", f.label, paper_number(f), number(kept["ours"][n]) + f.unit if fresh else "",
                                           "%.2f" % ratio if fresh else "", case.kind if n == 0 else "", said))
    return rows


def judged_by(cases, stored, kind):
    return sum(c.kind == kind and verdict(c, stored) != NOT_RUN for c in cases)


def shown_beside(cases, stored, kind):
    """Figures that are not judged by."""
    return sum(len(p.figures) for c in cases for p in c.beside if p.kind == kind and verdict(p, stored) != NOT_RUN)


BESIDE = ("simulator", "model", "real")


def count_table(cases, stored):
    lines = ["|paper|claims|%s|real runs|model|arithmetic|%s|" % ("|".join(VERDICTS), "|".join("beside: " + k for k in BESIDE)),
             "|---" * (len(VERDICTS) + 8) + "|"]
    for key, own in [(PAPERS[k], [c for c in cases if c.paper == k]) for k in PAPERS] + [("all", cases)]:
        said = [verdict(c, stored) for c in own]
        counts = [len(own)] + [said.count(v) for v in VERDICTS] + [judged_by(own, stored, k) for k in ("real", "model", "arithmetic")]
        lines.append("|%s|%s|" % (key, "|".join(map(str, counts + [shown_beside(own, stored, k) for k in BESIDE]))))
    return lines


def page(stored):
    cases = claims_cases.CASES
    out = ["# Claims of the five papers, and what this library measures", ""]
    out += claims_cases.INTRO.strip().splitlines() + [""]
    said = [verdict(c, stored) for c in cases]
    held, real = said.count(WITHIN) + said.count(RANGE), judged_by(cases, stored, "real")
    out += ["**%d of %d claims hold here, %d have the direction only, %d fail**; %d (%.0f %%) are judged by real runs, %d by a model, "
            "%d by arithmetic." % (held, len(cases), said.count(DIRECTION), said.count(FAILS), real, 100 * real / len(cases),
                                   judged_by(cases, stored, "model"), judged_by(cases, stored, "arithmetic")),
        "Beside them stand figures that do not judge: %s." % ", ".join("%d of kind %s" % (shown_beside(cases, stored, k), k) for k in BESIDE), ""]
    out += count_table(cases, stored)
    failing = [c for c, v in zip(cases, said) if v == FAILS]
    if failing:
        out += ["", "What fails, with the figure that does:", ""]
    for c in failing:
        f, x = next((f, x) for f, x in zip(c.figures, stored[c.id]["ours"]) if judge(f, x)[1] == FAILS)
        out += ["- %s, %s, %s: %s%s%s here, %s in the paper" % (PAPERS[c.paper], c.place, c.claim, f.label + " " if f.label else "", number(x),
        f.unit,
                                                             paper_number(f))]
    dates = sorted(k["date"] for k in stored.values())
    machines = sorted({k["machine"] for k in stored.values()})
    if dates:
        out += ["", "Measured %s%s on %s." % (dates[0], " to " + dates[-1] if dates[0] != dates[-1] else "", ", ".join(machines))]
    for key, name in PAPERS.items():
        own = [c for c in cases if c.paper == key]
        out += ["", "## " + name, "", "|id|claim|figure|paper|ours|ours / paper|kind|verdict|", "|---" * 8 + "|"]
        for c in own:
            out += claim_rows(c, stored)
        notes = [c for c in own if c.note]
        if notes:
            out += [""] + ["- %s: %s" % (c.id, c.note) for c in notes]
        out += ["", "Commands; `make claims ONLY=id` runs those of one id:", "", "```"]
        seen = {}
        for c in parts(own):
            out += ["# " + c.id] if c.runs else []
            for command in c.runs.values():
                out += ["#   as in " + seen[command] if command in seen else command]
                seen.setdefault(command, c.id)
        out += ["```"]
    return "\n".join(out) + "\n"


def chosen(only, kind):
    """Parts of claims: those of a claim that is named, or the one that is (ID/KIND)."""
    cases = claims_cases.CASES
    known = {p.id: p for p in parts(cases)} | {c.spec: c for c in cases}
    wanted = []
    for word in (w for w in (only or "").split(",") if w):
        own = [c for c in cases if c.id == word or c.spec == word] or [c for c in cases if c.id.startswith(word)]
        own = parts(own) or [p for p in parts(cases) if p.id == word]
        if not own:
            near = difflib.get_close_matches(word, known, 5, 0.3)
            sys.exit("claims.py: no claim '%s'%s; --list names all" % (word, ", nearest are " + ", ".join(near) if near else ""))
        wanted += [p for p in own if p not in wanted]
    return [p for p in (wanted if only else parts(cases)) if not kind or p.kind == kind]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="ID,..", help="these claims: ids, the beginning of ids (deft-), or the numbers (F4); "
                        "ID/KIND: what stands beside")
    parser.add_argument("--kind", choices=claims_cases.KINDS, help="those of one kind")
    parser.add_argument("--missing", action="store_true", help="those whose figures are not stored, or are of an older case")
    parser.add_argument("--page", action="store_true", help="run nothing, make the page of what is stored")
    parser.add_argument("--check", action="store_true", help="run nothing, is the page what it would be made to be?")
    parser.add_argument("--list", action="store_true", help="ids, kinds and verdicts")
    args = parser.parse_args()
    own, done, failed = chosen(args.only, args.kind), {}, 0
    if args.list:
        for c in own:
            print("%-34s %-4s %-11s %s" % (c.id, c.spec, c.kind, verdict(c, load())))
        return 0
    if args.check:
        same = os.path.exists(PAGE) and open(PAGE).read() == page(load())
        print("claims.py: %s is %s" % (os.path.relpath(PAGE, ROOT), "fresh" if same else "not what is stored; run bench/claims.py --page"))
        return 0 if same else 1
    if not args.page:
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_networks.py")], stdout=subprocess.DEVNULL, check=True)
        runs = [c for c in own if c.runs and (not args.missing or verdict(c, load()) == NOT_RUN)]
        for n, c in enumerate(runs, 1):
            print("[%d of %d] %s" % (n, len(runs), c.id), file=sys.stderr, flush=True)
            missing = [w for w in c.needs if not os.path.exists(os.path.join(ROOT, w))]
            begin = time.monotonic()
            try:
                if missing:
                    print("    not run yet: needs %s" % ", ".join(missing), file=sys.stderr)
                    continue
                ours = figures(c, done)
            except Failed as e:
                print("claims.py: %s: %s" % (c.id, e), file=sys.stderr, flush=True)
                failed += 1
                continue
            keep(c, ours, time.monotonic() - begin)
            for f, x in zip(c.figures, ours):
                print("    %s: paper %s, ours %s: %s" % (f.label or c.claim, paper_number(f), number(x) + f.unit, judge(f, x)[1]), file=sys.stderr)
    write(PAGE, page(load()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
