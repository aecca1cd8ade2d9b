#!/usr/bin/env python3
"""Compares every claim of the five papers with measurements of this machine, in docs/results/claims/.

    bench/claims.py [--only ID,..] [--kind KIND] [--missing] [--page] [--list]

bench/claims_cases.py has the cases and describes how to add one. The figures of a case go into bench/claims_results.json when its
commands have ended. The pages contain all stored figures: index.md, and a page for each paper. A stored figure has the
fingerprint of its case; after a change of the case the figure is not shown until the case has run again. If a command fails, an
error is printed, nothing is stored, and the other cases continue (exit code 1).
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
PAGES = os.environ.get("CLAIMS_PAGES", os.path.join(ROOT, "docs", "results", "claims"))
NEAR, LIMIT_S = 0.10, 400
WITHIN, RANGE, DIRECTION, FAILS, CANNOT, NOT_RUN = VERDICTS = (
    "within 10 %", "in range", "direction only", "fails", "cannot be tested here", "not run yet")
RANK = {RANGE: 0, WITHIN: 1, DIRECTION: 2, FAILS: 3}
PAPERS = {"dreamddp": "DreamDDP", "deft": "DeFT", "osp": "OSP", "dtfm": "DT-FM", "fusionllm": "FusionLLM"}


class Row(dict):
    """A JSON object with its members as attributes, for expressions."""
    def __getattr__(self, name):
        if name not in self:
            raise KeyError("the result has no '%s'" % name)
        return self[name]


class Failed(Exception):
    """The reason why a case has no figures."""


# ---- running ----

def objects(text):
    """All JSON objects in lines of text, or in a JSON list."""
    if text.startswith("[\n"):
        return [Row(r) for r in json.loads(text)]
    return [Row(json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def execute(command):
    """Runs a command. Returns its last JSON object, all of them, and its output. {json} is a file that it writes."""
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
            last = (err.strip() or out.strip() or "no output").splitlines()[-1]
            raise Failed("`%s` ended with %d: %s" % (command, job.returncode, last[-300:]))
        rows = objects(out)
        return rows[-1] if rows else Row(), objects(written) if written else rows, out + err


def figures(case, done):
    """Runs a case. Returns a number for each of its figures. done: results of commands that ran before."""
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
            ours.append(float(eval(f.ours, names)))  # an expression of claims_cases.py
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
    """Returns ours divided by the paper's figure (by the nearest end of a range), and the verdict."""
    low, high = bounds(figure.paper)
    nearest = min(max(ours, low), high)
    ratio = 1.0 if ours == nearest else ours / nearest if nearest else math.inf
    if isinstance(figure.paper, tuple) and low <= ours <= high:
        return ratio, RANGE
    if abs(ratio - 1) <= NEAR and math.isfinite(high - low):  # "at least" and "at most" hold or fail
        return ratio, WITHIN
    n = figure.neutral
    same_side = n is not None and not low <= n <= high and (ours - n) * (nearest - n) > 0
    return ratio, DIRECTION if same_side else FAILS


def fingerprint(case):
    said = json.dumps([case.runs, [f.ours for f in case.figures]])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def verdict(case, stored):
    """The worst verdict of its figures."""
    if case.kind == "not here":
        return CANNOT
    kept = stored.get(case.id)
    if not kept or kept["case"] != fingerprint(case):
        return NOT_RUN
    return max((judge(f, o)[1] for f, o in zip(case.figures, kept["ours"])), key=RANK.get)


# ---- stored figures ----

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
    """Claims, each followed by its figures of other kinds: all that is run and stored."""
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


# ---- the pages ----

def number(x):
    return "%.0f" % x if 100 <= abs(x) < 1e6 else "%.3g" % x


def paper_number(figure):
    low, high = bounds(figure.paper)
    text = "%g" % low if low == high else "at most %g" % high if low == -math.inf else \
        "at least %g" % low if high == math.inf else "%g to %g" % (low, high)
    return figure.said or text + figure.unit


def sentence(text):
    """The text with a capital letter and a full stop."""
    text = text[:1].upper() + text[1:] if text[:2].islower() else text
    return text if not text or text[-1] in ".:!?" else text + "."


def part_rows(case, stored):
    """The rows of the table of a claim: its own figures, or those of another kind."""
    kept = stored.get(case.id)
    fresh = kept and kept["case"] == fingerprint(case)
    rows = []
    for n, f in enumerate(case.figures):
        ratio, said = judge(f, kept["ours"][n]) if fresh else (None, NOT_RUN)
        rows.append("|%s|%s|%s|%s|%s|%s|" % (f.label or "", paper_number(f), number(kept["ours"][n]) + f.unit if fresh else "",
                                             "%.2f" % ratio if fresh else "", case.kind, said))
    return rows


def claim_section(case, stored, seen):
    """A claim with its figures and commands. seen: the claim that has shown a command, by command."""
    out = ["", "## %s: %s" % (case.spec, case.id), "", "Claim (%s): %s" % (case.place, case.claim + ("" if case.claim[-1] in ".:" else "."))]
    if case.over:
        out += ["Figures are ratios to: %s." % case.over]
    if case.kind == "not here":
        out += ["", "The paper has: %s. Verdict: **%s**: %s." % (case.said, CANNOT, case.why)]
    if case.erratum:
        out += ["", "Erratum: " + sentence(case.erratum)]
    if case.note:
        out += ["", "Conditions: " + sentence(case.note)] if len(case.note.split()) <= 60 else ["", "Conditions:", ""] + [
            "- " + part for part in re.split(r"(?<=\.) (?=[A-Z4])", sentence(case.note))]
    if case.figures:
        out += ["", "|figure|paper|measured|measured / paper|kind|verdict|", "|---" * 6 + "|"]
        for part in [case] + case.beside:
            out += part_rows(part, stored)
    commands = list(dict.fromkeys(c for part in [case] + case.beside for c in part.runs.values()))
    fresh = [c for c in commands if c not in seen]
    earlier = {seen[c].id: seen[c] for c in commands if c in seen}.values()
    if fresh:
        out += ["", "```sh"] + [c.replace("{tmp}/", "").replace("{json}", "rows.json") for c in fresh] + ["```"]
    if earlier:
        out += ["", "%s of %s." % ("Also the commands" if fresh else "Commands: those", ", ".join("[%s](#%s)" % (c.id, anchor(c)) for c in earlier))]
    seen.update((c, case) for c in fresh)
    return out


def anchor(case):
    """The anchor that Markdown makes of a claim's heading."""
    return re.sub(r"[^a-z0-9 -]", "", ("%s: %s" % (case.spec, case.id)).lower()).replace(" ", "-")


def judged_by(cases, stored, kind):
    return sum(c.kind == kind and verdict(c, stored) != NOT_RUN for c in cases)


def shown_beside(cases, stored, kind):
    """The number of figures of a kind that do not count for a verdict."""
    return sum(len(p.figures) for c in cases for p in c.beside if p.kind == kind and verdict(p, stored) != NOT_RUN)


BESIDE = ("simulator", "model", "real")


def count_table(cases, stored):
    lines = ["|paper|claims|%s|judged by real runs|by a model|by arithmetic|%s|" % ("|".join(VERDICTS), "|".join("other figures: " + k for k in BESIDE)),
             "|---" * (len(VERDICTS) + 8) + "|"]
    for name, own in [("[%s](%s.md)" % (PAPERS[k], k), [c for c in cases if c.paper == k]) for k in PAPERS] + [("all", cases)]:
        said = [verdict(c, stored) for c in own]
        counts = [len(own)] + [said.count(v) for v in VERDICTS] + [judged_by(own, stored, k) for k in ("real", "model", "arithmetic")]
        lines.append("|%s|%s|" % (name, "|".join(map(str, counts + [shown_beside(own, stored, k) for k in BESIDE]))))
    return lines


def measured(stored):
    dates = sorted(k["date"] for k in stored.values())
    machines = sorted({k["machine"] for k in stored.values()})
    return ["", "Measured %s%s on %s." % (dates[0], " to " + dates[-1] if dates[0] != dates[-1] else "", ", ".join(machines))] if dates else []


def summary_page(stored):
    cases = claims_cases.CASES
    said = [verdict(c, stored) for c in cases]
    held, real = said.count(WITHIN) + said.count(RANGE), judged_by(cases, stored, "real")
    out = ["# Claims of five papers, compared with measurements", ""] + claims_cases.INTRO.strip().splitlines()
    out += ["", "## Summary", "",
            "**%d of %d claims hold here, %d hold in direction only, %d fail.** Real runs judge %d (%.0f %%), a model %d, arithmetic %d." % (
                held, len(cases), said.count(DIRECTION), said.count(FAILS), real, 100 * real / len(cases),
                judged_by(cases, stored, "model"), judged_by(cases, stored, "arithmetic")), ""]
    out += count_table(cases, stored) + measured(stored)
    failing = [c for c, v in zip(cases, said) if v == FAILS]
    if failing:
        out += ["", "## Claims that fail", "", "Each row has the first figure that fails.", "",
                "|claim|place|claim of the paper|figure|paper|measured|", "|---" * 6 + "|"]
    for c in failing:
        f, x = next((f, x) for f, x in zip(c.figures, stored[c.id]["ours"]) if judge(f, x)[1] == FAILS)
        out += ["|[%s](%s.md#%s)|%s, %s|%s|%s|%s|%s|" % (c.spec, c.paper, anchor(c), PAPERS[c.paper], c.place, c.claim, f.label, paper_number(f),
                                                         number(x) + f.unit)]
    return "\n".join(out) + "\n"


def paper_page(key, stored):
    own = [c for c in claims_cases.CASES if c.paper == key]
    out = ["# Claims of %s" % PAPERS[key], "", "Use this page to look up a claim of the %s paper, its measurement with this library, and the command." % PAPERS[key],
           "Kinds and verdicts are explained in the [summary](index.md). `make claims ONLY=id` runs the commands of one claim.",
           "Before you run a command yourself, run `make`, the scripts of the [summary](index.md#run-it) and `export DDP_DATA=data`.", ""]
    out += ["|claim|place|claim of the paper|kind|verdict|", "|---" * 5 + "|"]
    out += ["|[%s](#%s)|%s|%s|%s|%s|" % (c.spec, anchor(c), c.place, c.claim, c.kind, verdict(c, stored)) for c in own]
    out += measured({k: v for k, v in stored.items() if k.startswith(key + "-")})
    seen = {}
    for c in own:
        out += claim_section(c, stored, seen)
    return "\n".join(out) + "\n"


def pages(stored):
    """The text of each page, by file name."""
    return {"index.md": summary_page(stored), **{key + ".md": paper_page(key, stored) for key in PAPERS}}


def chosen(only, kind):
    """The parts that a user named: all parts of a claim, or one of them (ID/KIND)."""
    cases = claims_cases.CASES
    known = {p.id: p for p in parts(cases)} | {c.spec: c for c in cases}
    wanted = []
    for word in (w for w in (only or "").split(",") if w):
        own = [c for c in cases if c.id == word or c.spec == word] or [c for c in cases if c.id.startswith(word)]
        own = parts(own) or [p for p in parts(cases) if word in (p.id, p.spec + "/" + p.kind)]
        if not own:
            near = difflib.get_close_matches(word, known, 5, 0.3)
            sys.exit("claims.py: no claim '%s'%s; --list prints all" % (word, "; the nearest are " + ", ".join(near) if near else ""))
        wanted += [p for p in own if p not in wanted]
    return [p for p in (wanted if only else parts(cases)) if not kind or p.kind == kind]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="ID,..", help="claims to run: ids, beginnings of ids (deft-) or numbers (F4); "
                        "ID/KIND (D5/simulator) runs the figures of one kind alone")
    parser.add_argument("--kind", choices=claims_cases.KINDS, help="run the figures of one kind")
    parser.add_argument("--missing", action="store_true", help="run the cases without stored figures, and changed cases")
    parser.add_argument("--page", action="store_true", help="run nothing; write the pages from the stored figures")
    parser.add_argument("--check", action="store_true", help="run nothing; exit 1 if a page differs from the stored figures")
    parser.add_argument("--list", action="store_true", help="print ids, kinds and verdicts")
    args = parser.parse_args()
    own, done, failed = chosen(args.only, args.kind), {}, 0
    if args.list:
        for c in own:
            print("%-34s %-4s %-11s %s" % (c.id, c.spec, c.kind, verdict(c, load())))
        return 0
    if args.check:
        stale = [n for n, text in pages(load()).items() if not os.path.exists(os.path.join(PAGES, n)) or open(os.path.join(PAGES, n)).read() != text]
        print("claims.py: %s" % ("differs from the stored figures: %s; run bench/claims.py --page" % ", ".join(stale) if stale else "all pages are current"))
        return 1 if stale else 0
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
    for name, text in pages(load()).items():
        write(os.path.join(PAGES, name), text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
