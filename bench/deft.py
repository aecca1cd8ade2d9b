#!/usr/bin/env python3
"""DeFT on VGG-19, and without each of its parts, compared with the plan and with the paper.

    bench/deft.py [--quick] [--only WORD] [--json FILE]

Four workers sleep for the layer times of the paper's Table II (130.3 ms per step) and send 1/100 of its bytes over links with 1/100 of
its rate. The second link is slower by mu = 1.65 (Fig. 6). `plan` is the step of build/plan from the table alone, `predicted` the step that
the run predicted from the links it measured. Goals: deft is at least 1.9 times as fast as wfbp and 1.6 times as fast as usbyte. The paper
has 90 to 115 % over the three others (Fig. 10b). It calls the speed with one link "similar", with fewer updates, which cost VGG-19 five
points of accuracy (section V-B4). It has no row without merging or delay.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import overlap

TABLE = os.path.join(overlap.HERE, "..", "tests", "data", "vgg19_table2.csv")
PLAN = os.path.join(overlap.HERE, "..", "build", "plan")
TWO = "--net2 168mbit,1ms"
PLANNED = "--mu 1.65 --partition-s 0.0113"
SKIP, COUNT = 14, 36

# row, options of the trainer, options of `plan timeline` (None: it has no such scheme), value of the paper
ROWS = [
    ("wfbp", "--strategy wfbp", "--scheme wfbp", "deft is 115 % faster"),
    ("usbyte", "--strategy usbyte", "--scheme usbyte", "deft is 90 % faster"),
    ("deft", "--strategy deft " + TWO, "--scheme deft", "90 to 115 %"),
    ("one link", "--strategy deft", "--scheme deft --links 1", "similar"),
    ("no merging", "--strategy deft --update-frequency 1 " + TWO, "--scheme deft --target-frequency 1", ""),
    ("no merging, one link", "--strategy deft --update-frequency 1", "--scheme deft --links 1 --target-frequency 1", ""),
    ("no delay: wfbp on two links", "--strategy wfbp " + TWO, None, ""),
]


def planned(options):
    if options is None:
        return None
    done = subprocess.run([PLAN, "timeline", "--profile", TABLE, *PLANNED.split(), *options.split()], capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit("deft.py: " + done.stderr.strip())
    return 1e3 * json.loads(done.stdout.splitlines()[0])["iteration_s"]


def measure(options):
    r = overlap.run(["--emulate-compute", TABLE, "--emulate-scale", "100", "--net", "278mbit,1ms", *options.split(),
                     "--steps", str(SKIP + COUNT)], 4, False)
    r["ms"] = sum(r["steps_ms"][-COUNT:]) / COUNT
    return r


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="wfbp and deft alone")
    parser.add_argument("--only", metavar="WORD", help="rows whose name contains WORD, and wfbp, usbyte")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    if not os.path.exists(PLAN):
        sys.exit("deft.py: build/plan is missing; run make first")
    overlap.keep_cores_awake()
    check, out, begin, rows = overlap.Checks(), [], time.monotonic(), {}
    print("|VGG-19, mu 1.65|step, ms|plan|over it|predicted|over it|updates a step|over wfbp|over usbyte|the paper|")
    print("|---" * 10 + "|", flush=True)
    for name, options, plan_options, claim in ROWS:
        if args.quick and name not in ("wfbp", "deft") or args.only and args.only not in name and name not in ("wfbp", "usbyte"):
            continue
        plan, r = planned(plan_options), measure(options)
        rows[name] = r
        over = [f"{100 * (rows[b]['ms'] / r['ms'] - 1):.0f} %" if b in rows and b != name else "" for b in ("wfbp", "usbyte")]
        beside = f"{plan:.1f}|{r['ms'] / plan:.3f}" if plan else "|"
        print(f"|{name}|{r['ms']:.1f}|{beside}|{r['predicted_step_ms']:.1f}|"
              f"{r['ms'] / r['predicted_step_ms']:.3f}|{r.get('update_frequency', 1):.2f}|{'|'.join(over)}|{claim}|", flush=True)
        check("step within 5 % of the prediction", abs(r["ms"] / r["predicted_step_ms"] - 1) <= 0.05,
              f"{name}: {r['ms']:.1f} ms, predicted {r['predicted_step_ms']:.1f}")
        if plan:
            check("step within 5 % of the plan of Table II", abs(r["ms"] / plan - 1) <= 0.05, f"{name}: {r['ms'] / plan:.3f}")
        out.append({"row": name, "step_ms": r["ms"], "plan_ms": plan, "predicted_step_ms": r["predicted_step_ms"],
                    "update_frequency": r.get("update_frequency", 1)})
    for base, goal in (("wfbp", 1.9), ("usbyte", 1.6)):
        if base in rows and "deft" in rows:
            ratio = rows[base]["ms"] / rows["deft"]["ms"]
            check(f"deft at least {goal} x {base}", ratio >= goal, f"{ratio:.2f}")
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
