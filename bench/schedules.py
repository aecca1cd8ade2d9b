#!/usr/bin/env python3
"""Strategies that average gradients: step time compared with the plan's prediction.

    bench/schedules.py [--quick] [--only WORD] [--json FILE]

As in bench/overlap.py, workers of build/train_gpt --emulate-compute sleep for the layer times of a published profile, and the bytes of its
layers travel over emulated links. Bytes and rate are divided by one factor. For each of 24 cells (profile, 4 or 8 workers) the rate is
chosen so that the communication of a step, C = 2(P-1)/P x 4 x params / rate, is 0.5, 1 and 2 times T_f + T_b; forward = backward / 2. Bound:
max(T_f + T_b, C), the least time of any schedule with one link. `deft 2`, with 4 workers: a second link that takes 1.65 times as long. Its
step must be at most 1.03 x (T_f + T_b) if its plan exposes nothing.
"""
import argparse
import os
import sys
import tempfile
import time

import overlap
import published

PROFILES = ("a6000_gpt2", "a6000_llama2-175m", "a6000_resnet18-cifar10", "h100_gpt2")
STRATEGIES = ("wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte", "deft")
TWO_LINKS, MU = "deft 2", 1.65
PROFILE_STEPS, SKIP, COUNT = 4, 2, 6


def measure(model, strategy, workers, kbit, scale):
    options = [*model.options, "--steps", str(PROFILE_STEPS + SKIP + COUNT), "--profile-steps", str(PROFILE_STEPS),
               "--strategy", strategy.split()[0], "--net", f"{kbit:.3f}kbit,{overlap.DELAY}", "--emulate-scale", str(scale)]
    if strategy == TWO_LINKS:
        options += ["--net2", f"{kbit / MU:.3f}kbit,{overlap.DELAY}"]
    r = overlap.run(options, workers, False)
    r["ms"] = sum(r["steps_ms"][-COUNT:]) / COUNT
    return r


def cell(name, workers, ratio, folder, check, out):
    model = overlap.Model(name, folder)
    compute = 1.5 * model.backward
    volume = 2 * (workers - 1) / workers * 4 * model.params
    rate = volume / (ratio * compute)
    scale = max(1, round(rate * workers / overlap.MACHINE_BYTES_PER_S))
    kbit = rate / scale * 8 / 1000
    where = f"{name} P={workers} C/T={ratio:g}"
    rows = {s: measure(model, s, workers, kbit, scale) for s in (*STRATEGIES, *((TWO_LINKS,) if workers == 4 else ()))}
    line = f"|{name}|{workers}|{ratio:g}|1/{scale}|{1e3 * compute * max(1, ratio):.1f}"
    for s, r in rows.items():
        off = r["ms"] / r["predicted_step_ms"]
        line += f"|{r['ms']:.1f}:{off:.3f}"
        check(f"{s} within 5 % of the prediction", abs(off - 1) <= 0.05, f"{where}: {off:.3f}")
        out.append({"profile": name, "workers": workers, "ratio": ratio, "kbit": kbit, "scale": scale, "strategy": s,
                    "step_ms": r["ms"], "predicted_step_ms": r["predicted_step_ms"]})
    for a, b in (("usbyte", "bytescheduler"), ("bytescheduler", "wfbp")):
        check(f"{a} at most 1 % behind {b}", rows[a]["ms"] <= 1.01 * rows[b]["ms"],
              f"{where}: {rows[a]['ms'] / rows[b]['ms']:.3f}")
    if TWO_LINKS in rows and rows[TWO_LINKS]["predicted_hidden_pct"] > 99.9:
        above = rows[TWO_LINKS]["ms"] / (1e3 * compute)
        check("deft on two links at most 1.03 x (T_f + T_b) where the plan says 1.00", above <= 1.03, f"{where}: {above:.3f}")
    print(line + ("|" if TWO_LINKS in rows else "||"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cell")
    parser.add_argument("--only", metavar="WORD", help="cells whose description contains WORD, e.g. 'gpt2 4'")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    if not os.path.isdir(published.folder("profiles")):
        print("schedules.py: no profiles; " + published.HINT)
        sys.exit(77)
    overlap.keep_cores_awake()
    check, out, begin = overlap.Checks(), [], time.monotonic()
    cells = [(n, w, r) for n in PROFILES for w in (4, 8) for r in overlap.RATIOS
             if not args.only or args.only in f"{n} {w}"]
    print("step ms:over the prediction\n\n|profile|P|C/T|1/scale|bound|" + "|".join((*STRATEGIES, TWO_LINKS)) + "|")
    print("|---" * (6 + len(STRATEGIES)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name, workers, ratio in cells[1:2] if args.quick else cells:
            cell(name, workers, ratio, folder, check, out)
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
