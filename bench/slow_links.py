#!/usr/bin/env python3
"""Training over links of a few Mbit/s, compared with training without a network.

    bench/slow_links.py [--quick] [--only WORD] [--json FILE]

The model has 50 million parameters. Steps sleep for 0.25 s and update all parameters, which takes extra time. Links have 20 ms, H = 100.
Cells: diloco, streamed, as int4 over 10 Mbit/s between two workers; sparseloco, streamed, over 2 Mbit/s between four. The figure is the mean
step over a whole period, one period after the plan. Without a network: the same number of workers that never send. Nothing is scaled down.

The first exchange of all parameters (200 MB) would take minutes at these rates. Links are therefore fast until START seconds after the
connections are open; then a script (docs/howto/emulate-network.md) makes them slow, and the run measures the link and plans. Links are fast
again at the end, when all parameters are averaged. A row has the rate that the run measured. If that rate is wrong, the row is not valid:
on a busy machine, use a larger --start.
"""
import argparse
import os
import sys
import tempfile
import time

import overlap

LAYERS, PARAMS, STEP, H = 20, 50e6, 0.25, 100

# name, workers, rate in Mbit/s, options, bytes that a rank sends of each parameter in a period
CELLS = [
    ("diloco int4 stream", 2, 10, "--strategy diloco --overlap stream --wire int4", lambda w: 2 * (w - 1) / w * 4.5 / 8),
    ("sparseloco stream", 4, 2, "--strategy sparseloco --overlap stream", lambda w: (w - 1) * 116 / 4096),
]


def profile(folder):
    path = os.path.join(folder, "slow.csv")
    with open(path, "w") as f:
        print("layer,params,forward_s,backward_s,comm_s", file=f)
        for layer in range(LAYERS):
            print(f"{layer},{PARAMS / LAYERS:.0f},{STEP / 3 / LAYERS},{STEP * 2 / 3 / LAYERS},0", file=f)
    return path


def alone(emulated, workers):
    steps, skip = 40, 10
    r = overlap.run(["--emulate-compute", emulated, "--strategy", "localsgd", "--period", "100000", "--profile-steps", "3",
                     "--steps", str(steps)], workers, False)
    return sum(r["steps_ms"][skip:]) / (steps - skip)


def cell(spec, emulated, folder, start, period, faster, check, out):
    name, workers, mbit, options, bytes_each = spec
    mbit *= faster
    profile_steps = round(1.1 * start / STEP)
    steps = profile_steps + 2 * period
    script = os.path.join(folder, "script.txt")
    with open(script, "w") as f:
        for at, rate in ((start, f"{mbit}mbit"), (start + 1.3 * steps * STEP, "none")):
            f.writelines(f"t={at:.1f} slow {r} to {rate}\n" for r in range(workers))
    without = alone(emulated, workers)
    r = overlap.run(["--emulate-compute", emulated, *options.split(), "--period", str(period), "--net", "none,20ms",
                     "--net-script", script, "--profile-steps", str(profile_steps), "--steps", str(steps)], workers, False)
    step = sum(r["steps_ms"][-period:]) / period
    layers = next(e["layers"] for e in r["events"] if e["event"] == "profile")
    measured = sum(x["comm_s"] for x in layers)  # in a period
    wanted = PARAMS * bytes_each(workers) * 8e-6 / mbit
    waits = [x for x in r["log"].splitlines() if "has waited" in x or "silent" in x or "lost" in x]
    where = f"{name}, {workers} workers, {mbit} Mbit/s"
    print(f"|{name}|{workers}|{mbit} Mbit/s|{period}|{wanted:.1f} / {period * STEP:.0f}|{measured / wanted:.2f}|{without:.1f}|"
          f"{step:.1f}|{r['predicted_step_ms']:.1f}|{step / r['predicted_step_ms']:.3f}|{without / step:.3f}|{len(waits)}|",
          flush=True)
    check("the link was measured when it was slow", 0.8 < measured / wanted < 1.25, f"{where}: {measured / wanted:.2f}")
    check("speed at least 95 % of that without a network", without >= 0.95 * step, f"{where}: {without / step:.3f}")
    check("step within 5 % of the prediction", abs(step / r["predicted_step_ms"] - 1) <= 0.05,
          f"{where}: {step / r['predicted_step_ms']:.3f}")
    check("no heartbeat was lost", not waits, f"{where}: {waits[:1]}")
    out.append({"row": name, "workers": workers, "mbit": mbit, "period": period, "without_ms": without, "step_ms": step,
                "predicted_step_ms": r["predicted_step_ms"], "wait_ms": r["wait_ms"], "bytes_sent": r["bytes_sent"]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cell, H = 20 and five times the rate")
    parser.add_argument("--only", metavar="WORD", help="cells whose name contains WORD")
    parser.add_argument("--start", type=float, default=25, metavar="S", help="seconds until links are slow [25]")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    os.environ["DREAMDDP_LOG"] = "info"
    overlap.keep_cores_awake()
    check, out, begin = overlap.Checks(), [], time.monotonic()
    cells = [c for c in CELLS if not args.only or args.only in c[0]]
    print("|strategy|workers|link|H|s to send / of computing|measured|without network, ms|step|predicted|over it|speed kept|"
          "silences|")
    print("|---" * 12 + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        emulated = profile(folder)
        for spec in cells[:1] if args.quick else cells:
            if args.quick:
                cell(spec, emulated, folder, min(args.start, 12), H // 5, 5, check, out)
            else:
                cell(spec, emulated, folder, args.start, H, 1, check, out)
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
