#!/usr/bin/env python3
"""[test-all: runs the commands of the claims with build/plan] bench/claims.py: all 92 claims exist with distinct ids;
unknown ids, rerunning one case, failing commands, the rule for verdicts, outdated figures of changed cases, additional
figures; docs/results/claims/index.md matches the stored results.

    tests/programs/test_claims.py [WORD ..]     needs build/plan
"""
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "bench")]
from cases import case, expect, run_cases  # noqa: E402
import claims  # noqa: E402
import claims_cases  # noqa: E402
from claims_cases import claim, figure  # noqa: E402

NUMBERS = {letter + str(n) for letter, last in (("D", 22), ("F", 22), ("O", 14), ("T", 16), ("U", 18)) for n in range(1, last + 1)}


def program(folder, *options):
    env = dict(os.environ, CLAIMS_RESULTS=os.path.join(folder, "results.json"), CLAIMS_PAGES=folder)
    return subprocess.run([sys.executable, os.path.join(ROOT, "bench", "claims.py"), *options], capture_output=True, text=True, env=env)


def page(folder, name):
    with open(os.path.join(folder, name + ".md")) as f:
        return f.read()


def made(what="a claim", **more):
    """Makes a case for this test only; it is not added to the list of claims."""
    claim("D1", "dreamddp-made", "here", what, more.pop("kind", "arithmetic"), **more)
    return claims_cases.CASES.pop()


@case
def every_claim_of_the_papers_is_listed_once(folder):
    numbers = [c.spec.rstrip("+") for c in claims_cases.CASES]
    expect(set(numbers) == NUMBERS, "missing %s, unknown %s" % (NUMBERS - set(numbers), set(numbers) - NUMBERS))
    specs, ids = [c.spec for c in claims_cases.CASES], [c.id for c in claims_cases.CASES]
    expect(len(set(ids)) == len(ids) and len(set(specs)) == len(specs), "used twice: %s" % [x for x in ids + specs if (ids + specs).count(x) > 1])
    for c in claims_cases.CASES:
        expect(c.paper in claims.PAPERS and c.kind in claims_cases.KINDS, c.id)
        expect(re.fullmatch(r"[a-z0-9-]+", c.id), c.id)
        expect(c.why if c.kind == "not here" else c.runs and c.figures, "%s has nothing to run" % c.id)
        expect(c.kind != "simulator" or c.why, c.id)
        expect("|" not in c.claim + c.note + c.over + "".join(f.label for f in c.figures), "%s would break its table" % c.id)
    expect(all("/work" not in command for c in claims.parts(claims_cases.CASES) for command in c.runs.values()), "a path of one machine")
    expect(sum(c.kind == "real" for c in claims_cases.CASES) >= 0.7 * len(claims_cases.CASES), "too few real runs")
    for c in claims_cases.CASES:
        for p in c.beside:
            expect(p.id == c.id + "/" + p.kind and p.kind != c.kind and p.kind in claims.BESIDE and p.runs and p.figures, p.id)
            expect(not any("|" in f.label + f.said for f in p.figures), "%s would break its table" % p.id)


@case
def unknown_id_fails_and_suggests_the_nearest_id(folder):
    r = program(folder, "--only", "deft-fig10-vgg18")
    expect(r.returncode == 1 and r.stdout == "" and r.stderr.count("\n") == 1, r)
    expect("no claim 'deft-fig10-vgg18'" in r.stderr and "deft-fig10-vgg19" in r.stderr, r.stderr)


@case
def running_one_claim_adds_its_figure_to_the_page(folder):
    r = program(folder, "--only", "deft-table5")
    expect(r.returncode == 0, r.stderr)
    with open(os.path.join(folder, "results.json")) as f:
        stored = json.load(f)
    expect(list(stored) == ["deft-table5"] and abs(stored["deft-table5"]["ours"][0] - 0.988) < 1e-3, stored)
    text = page(folder, "deft")
    expect(re.search(r"\|ratio\|0.993\|0.988\|[01]\.\d\d\|model\|within 10 %\|", text), "no figure of deft-table5")
    expect("## F4: deft-fig10-vgg19" in text and "not run yet" in text, "the figures of other claims")
    expect("|[DeFT](deft.md)|22|0|0" not in page(folder, "index"), "the summary does not count deft-table5")
    again = program(folder, "--only", "deft-feedback")
    with open(os.path.join(folder, "results.json")) as f:
        expect(again.returncode == 0 and list(json.load(f)) == ["deft-table5", "deft-feedback"], "the second result replaced the first")


@case
def failing_command_gives_a_one_line_error(folder):
    good = made("good", figures=[figure("a.x", 2)], runs={"a": "echo '{\"x\": 2.1}'"})
    bad = {"says why": made(figures=[figure("a.x", 2)], runs={"a": "echo first >&2; echo no network >&2; exit 3"}),
           "'y'": made(figures=[figure("a.y", 2)], runs={"a": "echo '{\"x\": 1}'"}), "nan": made(figures=[figure("a.x", 2)],
           runs={"a": "echo '{\"x\": NaN}'"})}
    expect(claims.figures(good, {}) == [2.1])
    for word, c in bad.items():
        try:
            claims.figures(c, {})
        except claims.Failed as e:
            word = "ended with 3: no network" if word == "says why" else word
            expect(word in str(e) and "\n" not in str(e), e)
        else:
            expect(False, "%s returned a figure" % word)


@case
def verdicts_follow_the_documented_rule(folder):
    table = [(figure("", 2.0), 2.1, "within 10 %"), (figure("", 2.0), 1.5, "direction only"), (figure("", 2.0), 0.9, "fails"),
             (figure("", 90, neutral=0), 50, "direction only"), (figure("", 90, neutral=None), 50, "fails"),
             (figure("", (1.9, 2.15)), 2.0, "in range"), (figure("", (1.9, 2.15)), 2.3, "within 10 %"), (figure("", (1.9, 2.15)), 3.0,
             "direction only"),
             (figure("", (1.0, None)), 1.3, "in range"), (figure("", (1.0, None)), 0.99, "fails"), (figure("", (100, None)), 40, "direction only"),
             (figure("", (None, 10)), 3, "in range"), (figure("", (None, 10), neutral=None), 10.5, "fails")]
    for f, ours, wanted in table:
        expect(claims.judge(f, ours)[1] == wanted, "%s of %s: %s" % (ours, f.paper, claims.judge(f, ours)))
    c = made(figures=[figure("a.x", 2.0), figure("a.y", (1.0, None))], runs={"a": "true"})
    stored = {c.id: {"case": claims.fingerprint(c), "ours": [2.0, 0.5]}}
    expect(claims.verdict(c, stored) == "fails", "the worst figure must decide")
    stored[c.id]["case"] = "of another case"
    expect(claims.verdict(c, stored) == "not run yet", "a case that was changed keeps its old figures")
    expect(claims.verdict(made(kind="not here", why="no GPU"), {}) == "cannot be tested here")


@case
def additional_figures_are_shown_but_do_not_change_the_verdict(folder):
    claim("D1", "dreamddp-made", "here", "a claim", "real", [figure("a.x", 2.0, "own")], {"a": "true"})
    claims_cases.beside("simulator", [figure("a.x", 2.0, "simulated")], {"a": "echo"})
    c = claims_cases.CASES.pop()
    stored = {p.id: {"case": claims.fingerprint(p), "ours": [x]} for p, x in zip(claims.parts([c]), (2.0, 0.5))}
    expect(list(stored) == ["dreamddp-made", "dreamddp-made/simulator"], stored)
    expect(claims.verdict(c, stored) == "within 10 %", "an additional figure changed the verdict")
    rows = claims.claim_section(c, stored, {})
    expect("|simulated|2|0.5|0.25|simulator|fails|" in rows, rows)
    expect(claims.shown_beside([c], stored, "simulator") == 1 and claims.judged_by([c], stored, "simulator") == 0)
    claims_cases.CASES.append(c)
    try:
        expect([p.id for p in claims.chosen("dreamddp-made/simulator", None)] == ["dreamddp-made/simulator"])
        expect([p.id for p in claims.chosen("D5/simulator", None)] == ["dreamddp-table1-gpt2-32/simulator"])
        expect([p.id for p in claims.chosen("dreamddp-made", None)] == list(stored))
        expect([p.id for p in claims.chosen("dreamddp-made", "real")] == ["dreamddp-made"])
    finally:
        claims_cases.CASES.pop()


@case
def page_matches_the_stored_results(folder):
    r = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "claims.py"), "--check"], capture_output=True, text=True)
    expect(r.returncode == 0, r.stdout + r.stderr)


if __name__ == "__main__":
    sys.exit(run_cases())
