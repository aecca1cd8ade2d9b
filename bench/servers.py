#!/usr/bin/env python3
"""OSP and BSP with one server: the gain, compared with the model of the paper.

    bench/servers.py [--quick] [--only WORD] [--json FILE]

Workers sleep for the layer times of a published profile (T_c = forward + backward, forward = backward / 2). Gradients travel to one server
and back. Parameters and rate are divided by one factor, as in bench/overlap.py. With M bytes of model, W workers and b bytes per second in
each direction, X = W M / b. Cells have T_c / X of 0.5, 0.8 and 1.4. f is the deferred share of M. The paper's model assumes that pushes and
answers overlap:

    bsp = T_c + X        osp = max(T_c, f X) + (1 - f) X        gain = bsp / osp - 1

A server has one link for all of its workers. It answers one push after another, after the push has arrived from all workers. `predicted`
(ddp_served_step) follows these messages. A cell has two rows: the deferred share is U_max = b T_c / W, at most 0.8 M, and half of that.
"""
import argparse
import os
import sys
import tempfile
import time

import overlap
import published

PROFILES = ("a6000_gpt2", "a6000_resnet18-cifar10")
RATIOS = (0.5, 0.8, 1.4)
SKIP, COUNT = 4, 12


def measure(model, options, workers, net, scale):
    r = overlap.run([*model.options, *options, "--servers", "1", "--steps", str(SKIP + COUNT), "--net", net,
                     "--emulate-scale", str(scale)], workers, False)
    r["ms"] = sum(r["steps_ms"][-COUNT:]) / COUNT
    return r


def paper(t_c, x, late):
    return t_c + x if not late else max(t_c, late * x) + (1 - late) * x


def row(name, workers, ratio, share, t_c, scale, bsp, osp, check, out):
    x = t_c / ratio
    late = osp["deferred_pct"] / 100 * (SKIP + COUNT) / (SKIP + COUNT - 1)  # the first step defers nothing
    gain, bound = bsp["ms"] / osp["ms"] - 1, 1e3 * paper(t_c, x, late)
    model_gain = paper(t_c, x, 0) / paper(t_c, x, late) - 1
    said_gain = bsp["predicted_step_ms"] / osp["predicted_step_ms"] - 1
    where = f"{name} W={workers} T_c/X={ratio:g} f={late:.2f}"
    print(f"|{name}|{workers}|{ratio:g}|{share:.2f}|{late:.2f}|1/{scale}|{1e3 * t_c:.1f}|{bsp['ms']:.1f}|"
          f"{1e3 * paper(t_c, x, 0):.1f}|{bsp['predicted_step_ms']:.1f}|{osp['ms']:.1f}|{bound:.1f}|"
          f"{osp['predicted_step_ms']:.1f}|{100 * gain:.0f} %|{100 * model_gain:.0f} %|{100 * said_gain:.0f} %|"
          f"{osp['ms'] / bound:.3f}|", flush=True)
    check("gain within 5 points of the model", abs(gain - model_gain) <= 0.05,
          f"{where}: {100 * gain:.1f} %, model {100 * model_gain:.1f} %")
    check("gain within 5 points of the predicted one", abs(gain - said_gain) <= 0.05,
          f"{where}: {100 * gain:.1f} %, predicted {100 * said_gain:.1f} %")
    check("osp at most 1.05 x (max(T_c, T_ICS) + T_RS)", osp["ms"] <= 1.05 * bound, f"{where}: {osp['ms'] / bound:.3f}")
    check("osp not slower than bsp", osp["ms"] <= bsp["ms"], f"{where}: {osp['ms']:.1f} / {bsp['ms']:.1f} ms")
    out.append({"profile": name, "workers": workers, "ratio": ratio, "scale": scale, "share": share, "late": late,
                "bsp_ms": bsp["ms"], "osp_ms": osp["ms"], "gain": gain, "model_gain": model_gain, "predicted_gain": said_gain})


def cell(name, workers, ratio, defer, folder, check, out):
    model = overlap.Model(name, folder)
    t_c = 1.5 * model.backward
    rate = workers * 4 * model.params * ratio / t_c
    scale = max(1, round(rate / overlap.MACHINE_BYTES_PER_S))
    net = f"{rate / scale * 8 / 1000:.3f}kbit,{overlap.DELAY}"
    bsp = measure(model, ["--strategy", "bsp"], workers, net, scale)
    for share in (min(0.8, ratio), min(0.8, ratio) / 2) if defer is None else (defer,):
        osp = measure(model, ["--strategy", "osp", "--defer", f"{share:g}"], workers, net, scale)
        row(name, workers, ratio, share, t_c, scale, bsp, osp, check, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cell")
    parser.add_argument("--only", metavar="WORD", help="cells whose description contains WORD, e.g. 'gpt2 8'")
    parser.add_argument("--defer", type=float, metavar="F", help="share that may be deferred [two rows]")
    parser.add_argument("--json", metavar="FILE", help="every row as a JSON line")
    args = parser.parse_args()
    if not os.path.isdir(published.folder("profiles")):
        print("servers.py: no profiles; " + published.HINT)
        sys.exit(77)
    overlap.keep_cores_awake()
    check, out, begin = overlap.Checks(), [], time.monotonic()
    cells = [(n, w, r) for n in PROFILES for w in (4, 8) for r in RATIOS if not args.only or args.only in f"{n} {w}"]
    print("ms a step: measured, the paper's model, predicted\n\n|profile|W|T_c/X|may|f|1/scale|T_c|bsp|model|predicted|osp|model|predicted|gain|model|"
          "predicted|osp / model|")
    print("|---" * 17 + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, workers, ratio in cells[:1] if args.quick else cells:
            cell(name, workers, ratio, args.defer, folder, check, out)
    check.report(time.monotonic() - begin)
    overlap.write_rows(args.json, out)


if __name__ == "__main__":
    main()
