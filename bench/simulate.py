#!/usr/bin/env python3
"""Compares real runs with their simulation by build/simulate.

    bench/simulate.py [--quick] [--only WORD] [--pages FOLDER] [--markdown FILE [--again]] [--rounds N] [--nominal]
    bench/simulate.py --scale | --growth FILE.svg

Every cell is a command of build/simulate. With --real the same loop runs on this machine: workers are threads (processes if one of them is
killed) that sleep for the layer times of a profile, and zeros of the layers' sizes travel over emulated links. Without --real the command
runs on the virtual clock, with inputs that a user can measure first: the layers of one worker (--write-profile) and the links of netcheck.
--nominal uses the requested profile and link; files of links, jitter and incidents always are as requested. Parameters and rates are divided
by one factor, so that all workers together send at most 16 MB/s. The step time is the mean of all counted steps. A real cell is the best of
N rounds, because other load only makes steps longer. Cells of one group differ in their strategy only. If two real cells of a group differ
by more than 3 %, the simulation must have the same order.

--pages: an HTML page for each cell, with its command, its figures and the lanes of both runs.
"""
import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

import published

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SIMULATE = os.path.join(ROOT, "build", "simulate")
TRAIN = os.path.join(ROOT, "build", "train_gpt")
NETCHECK = os.path.join(ROOT, "build", "netcheck")

GPT = ["--profile", "{profiles}/a6000_gpt2.csv", "--workers", "4", "--net", "34mbit,0.5ms", "--emulate-scale", "700", "--steps", "76"]
FAR = ["--profile", "{profiles}/a6000_llama2-175m.csv", "--workers", "4", "--net", "24mbit,20ms", "--emulate-scale", "500", "--steps", "56"]
EIGHT = ["--profile", "{profiles}/a6000_resnet50-cifar100.csv", "--workers", "8", "--net", "8mbit,1ms", "--emulate-scale", "250", "--steps", "36"]
TWO = ["--profile", "{profiles}/a6000_gpt2.csv", "--workers", "2", "--net", "50mbit,2ms", "--emulate-scale", "700", "--steps", "76"]
SERVED = ["--profile", "{profiles}/a6000_resnet18-cifar10.csv", "--workers", "3", "--servers", "1", "--net", "40mbit,1ms", "--emulate-scale", "400",
          "--steps", "76"]
STAGES = ["--profile", "{profiles}/a6000_gpt2.csv", "--workers", "4", "--microbatches", "8", "--emulate-bytes", "2000000", "--net", "34mbit,5ms",
          "--emulate-scale", "700", "--steps", "26"]
MAP = ["--profile", "{profiles}/a6000_gpt2.csv", "--workers", "4", "--net", "{folder}/map.json", "--emulate-scale", "700", "--steps", "46"]
TOPOLOGY = {"name": "two sites", "N": 4, "delay_ms": [[0, 1, 12, 12], [1, 0, 12, 12], [12, 12, 0, 1], [12, 12, 1, 0]],
            "bandwidth_gbps": [[0, .04, .012, .012], [.04, 0, .012, .012], [.012, .012, 0, .04], [.012, .012, .04, 0]]}
KILL = "t=3 kill 2\n"
STALL = "t=2 stall 1 for 0.6\nt=4 slow 0 to 17mbit\n"


def group(name, options, strategies):
    """Cells that differ in the strategy only."""
    return [(name, strategy, ["--strategy", strategy.split()[0]] + strategy.split()[1:] + options) for strategy in strategies]


CELLS = (
    group("gpt2, 4 workers", GPT, ["ssgd", "wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte", "deft", "localsgd", "enp", "dreamddp", "dreamddp --paper",
                                   "diloco", "sparseloco"]) +
    group("llama2, 4 workers, far", FAR, ["ssgd", "wfbp", "localsgd", "enp", "dreamddp", "diloco --overlap stream", "diloco --overlap eager"]) +
    group("resnet50, 8 workers", EIGHT, ["ssgd", "wfbp", "localsgd", "enp", "dreamddp", "deft"]) +
    group("gpt2, 2 workers", TWO, ["wfbp", "enp", "dreamddp"]) +
    group("resnet18, 3 workers and a server", SERVED, ["bsp", "asp", "ssp --staleness 2", "r2sp", "osp"]) +
    group("gpt2, 4 stages", STAGES + ["--stages", "4"], ["ssgd --pipeline gpipe", "ssgd --pipeline 1f1b", "ssgd --pipeline 1f1b --ahead 3", "ssgd --pipeline zb"]) +
    group("gpt2, 2 x 2 stages", STAGES + ["--stages", "2"], ["ssgd", "localsgd", "dreamddp"]) +
    group("gpt2, two sites", MAP, ["wfbp", "localsgd", "dreamddp"]) +
    group("gpt2, jitter", [o if o != "34mbit,0.5ms" else "34mbit,0.5ms,4ms" for o in GPT], ["wfbp", "dreamddp"]) +
    group("gpt2, a slow worker", GPT + ["--slow", "1:1.7"], ["ssgd", "dreamddp"]) +
    group("gpt2, bfloat16 and int8", GPT, ["wfbp --wire bf16", "dreamddp --wire bf16", "dreamddp --wire int8"]) +
    group("gpt2, a stall and a slow link", GPT + ["--faults", "{folder}/stall.txt"], ["ssgd", "dreamddp"]) +
    group("gpt2, a worker is killed", GPT + ["--min-world", "3", "--faults", "{folder}/kill.txt", "--transport", "tcp"], ["ssgd", "dreamddp"]))

REAL = ["--data", os.path.join(ROOT, "dreamddp.h"), "--layers", "4", "--dim", "128", "--seq", "64", "--batch", "4", "--optimizer", "sgd", "--quiet"]


def fill(options, folder):
    return [o.format(profiles=published.folder("profiles"), folder=folder) for o in options]


def run(program, options, folder):
    """Returns the object that a run prints."""
    done = subprocess.run([program] + fill(options, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError("%s %s: %s" % (os.path.basename(program), " ".join(options), done.stderr.strip()[-300:]))
    return json.loads(done.stdout.strip().splitlines()[-1])


def value(options, key):
    return options[options.index(key) + 1]


def replaced(options, key, by):
    at = options.index(key) + 1
    return options[:at] + [by] + options[at + 1:]


def measured(options, folder, known):
    """The options with the layers that one worker measures and the link that netcheck measures. Each is measured once."""
    profile, scale, link, workers = (value(options, key) for key in ("--profile", "--emulate-scale", "--net", "--workers"))
    if (profile, scale) not in known:
        path = os.path.join(folder, "layers%d.csv" % len(known))
        run(SIMULATE, ["--real", "--workers", "1", "--steps", "60", "--strategy", "ssgd", "--profile", profile, "--emulate-scale", scale, "--write-profile", path], folder)
        with open(path) as took, open(fill([profile], folder)[0]) as asked:  # its parameter counts are those after scaling
            rows = [dict(t, params=a["params"]) for t, a in zip(csv.DictReader(took), csv.DictReader(asked))]
        with open(path, "w") as f:
            writer = csv.DictWriter(f, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        known[profile, scale] = path
    options = replaced(options, "--profile", known[profile, scale])
    if link.endswith(".json") or link.count(",") == 2:  # a measured delay includes the mean jitter
        return options
    if (link, workers) not in known:
        path = os.path.join(folder, "links.json")
        subprocess.run([NETCHECK, "--workers", workers, "--net", link, "--json", path], stdout=subprocess.DEVNULL, check=True, timeout=120)
        with open(path) as f:
            found = json.load(f)
        pairs = [(i, k) for i in range(int(workers)) for k in range(int(workers)) if i != k]
        rate, alpha = (statistics.median(found[key][i][k] for i, k in pairs) for key in ("bandwidth_mbit", "alpha_ms"))
        known[link, workers] = "%.2fmbit,%.3fms" % (rate, alpha)
    return replaced(options, "--net", known[link, workers])


def shown(options):
    return " ".join(o.replace("{profiles}", "build/profiles").replace("{folder}/", "") for o in options)


def page(folder, number, name, what, options, real, simulated):
    base = "%02d" % number
    text = ("<!doctype html><meta charset=utf-8><title>%s: %s</title><body style='font-family:sans-serif'><h1>%s: %s</h1><pre>build/simulate %s\n"
            "build/simulate %s --real</pre><table border=1 cellpadding=6><tr><th><th>step ms<th>hidden %%<th>utilisation %%<tr><td>real<td>%.2f<td>%.1f<td>%.1f"
            "<tr><td>simulated<td>%.2f<td>%.1f<td>%.1f</table><h2>Real</h2><iframe src=%s.real.html width=100%% height=700></iframe><h2>Simulated</h2>"
            "<iframe src=%s.simulated.html width=100%% height=700></iframe>"
            % (name, what, name, what, shown(options), shown(options), real["step_ms"], real["hidden_pct"], real["utilisation_pct"], simulated["step_ms"],
               simulated["hidden_pct"], simulated["utilisation_pct"], base, base))
    with open(os.path.join(folder, base + ".html"), "w") as f:
        f.write(text)


def measure(cells, folder, args):
    rows, known = [], {}
    for number, (name, what, options) in enumerate(cells):
        pages = ["--report", os.path.join(args.pages, "%02d.simulated.html" % number)] if args.pages else []
        simulated = run(SIMULATE, (options if args.nominal else measured(options, folder, known)) + pages, folder)
        best = None
        for _ in range(args.rounds):
            pages = ["--report", os.path.join(args.pages, "%02d.real.html" % number)] if args.pages else []
            real = run(SIMULATE, options + ["--real"] + pages, folder)
            if best is None or real["step_ms"] < best["step_ms"]:
                best = real
        error = 100 * (simulated["step_ms"] / best["step_ms"] - 1)
        rows.append((name, what, options, best["step_ms"], simulated["step_ms"], error, best["hidden_pct"], simulated["hidden_pct"]))
        print("%-32s %-28s real %8.1f ms  simulated %8.1f ms  %+5.1f %%  hidden %5.1f / %5.1f %%" % (name, what, *rows[-1][3:]), flush=True)
        if args.pages:
            page(args.pages, number, name, what, options, best, simulated)
    return rows


def kept(path):
    """Reads the rows of a table of --markdown, to replace some of them or add to them."""
    rows = {}
    if path and os.path.exists(path):
        with open(path) as f:
            for line in f:
                cells = [c.strip() for c in line.strip("|\n ").split("|")]
                if len(cells) == 6 and cells[2][:1].isdigit():
                    own, hidden = (float(x) for x in cells[5].split(" / "))
                    rows[cells[0], cells[1]] = (cells[0], cells[1], None, float(cells[2]), float(cells[3]), float(cells[4].rstrip(" %")), own, hidden)
    return rows


def orders(rows):
    """Pairs of a group that differ by more than 3 %, and the pairs that the simulation has in the other order."""
    pairs, wrong = 0, []
    for i, a in enumerate(rows):
        for b in rows[:i]:
            if a[0] == b[0] and abs(a[3] / b[3] - 1) > 0.03:
                pairs += 1
                if (a[3] < b[3]) != (a[4] < b[4]):
                    wrong.append("%s: %s and %s" % (a[0], a[1], b[1]))
    return pairs, wrong


def computing(folder, args):
    """A real model: one worker measures its profile, then a run of two workers (for two cores) is simulated."""
    rows = []
    profile = os.path.join(folder, "measured.csv")
    run(TRAIN, REAL + ["--steps", "40", "--write-profile", profile], folder)
    for strategy in ("ssgd", "wfbp", "localsgd", "enp", "dreamddp"):
        net = ["--workers", "2", "--net", "60mbit,2ms", "--strategy", strategy, "--steps", "76"]
        real = min((run(TRAIN, REAL + ["--transport", "threads"] + net, folder) for _ in range(args.rounds)), key=lambda r: r["step_ms"])
        simulated = run(SIMULATE, ["--profile", profile] + net, folder)
        rows.append((strategy, real["step_ms"], simulated["step_ms"], 100 * (simulated["step_ms"] / real["step_ms"] - 1)))
        print("a GPT really computed, 2 workers  %-28s real %8.1f ms  simulated %8.1f ms  %+5.1f %%" % rows[-1], flush=True)
    return rows


SCALE = (("dreamddp, two simulated", ["--strategy", "dreamddp", "--steps", "100"], (100, 1000, 10000)), ("wfbp, two simulated", ["--strategy", "wfbp", "--steps", "100"], (10000,)),
         ("deft, two simulated", ["--strategy", "deft", "--steps", "100"], (10000,)), ("sparseloco, two simulated", ["--strategy", "sparseloco", "--steps", "100"], (10000,)),
         ("dreamddp, all simulated", ["--strategy", "dreamddp", "--each", "--steps", "20"], (64, 256, 1000)), ("asp, all simulated, a server", ["--strategy", "asp", "--servers", "1", "--steps", "10"],
                                                                                  (64, 256, 1000)))


def consumed(options):
    """Processor seconds and MB of a run."""
    process = subprocess.Popen([SIMULATE] + options, stdout=subprocess.DEVNULL)
    _, status, use = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        raise RuntimeError("simulate %s: exit code %d" % (" ".join(options), process.returncode))
    return use.ru_utime + use.ru_stime, use.ru_maxrss / 1024


def scale():
    """Prints the cost of the simulator itself."""
    for name, options, sizes in SCALE:
        for workers in sizes:
            used = consumed(["--profile", os.path.join(published.folder("profiles"), "a6000_gpt2.csv"), "--net", "100mbit,20ms", "--workers", str(workers)] + options)
            print("| %s | %d | %s | %.1f | %.0f |" % ((name, workers, options[-1]) + used), flush=True)
    return 0


def sweep(folder, key, values, options):
    """Runs a sweep. Returns {strategy: [(value, step ms)]}."""
    path = os.path.join(folder, "sweep.csv")
    subprocess.run([SIMULATE, "--sweep", "%s=%s" % (key, ",".join(values)), "--csv", path] + fill(options, folder), stdout=subprocess.DEVNULL, check=True)
    curves = {}
    with open(path) as f:
        for row in csv.DictReader(f):
            curves.setdefault(row["strategy"], []).append((row[key], float(row["step_ms"])))
    return curves


def split(folder, layers):
    """Writes a profile of N equal layers, with the parameters and the time of GPT-2 in all."""
    with open(os.path.join(published.folder("profiles"), "a6000_gpt2.csv")) as f:
        rows = [(int(r["params"]), float(r["backward_s"])) for r in csv.DictReader(f)]
    path = os.path.join(folder, "%d" % layers)
    params, seconds = (sum(r[i] for r in rows) for i in (0, 1))
    with open(path, "w") as f:
        f.write("layer,params,backward_s,comm_s\n")
        for l in range(layers):
            f.write("l%d,%d,%.9g,0\n" % (l, params // layers, seconds / layers))
    return path


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#7f3fbf", "#b08a00", "#56b4e9")
WIDE, HIGH, LEFT, TOP = 330, 230, 70, 44  # of a panel's axes, and the space before them


def ticks(low, most):
    """Powers of ten between low and most, or 1, 2 and 5 times them where these are few."""
    decades = [10.0 ** k for k in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(most)) + 1)]
    found = [d for d in decades if low * 0.999 <= d <= most * 1.001]
    return found if len(found) > 2 else [m * d for d in decades for m in (1, 2, 5) if low * 0.999 <= m * d <= most * 1.001]


def figure_text(value):
    return "{:,.0f}".format(value) if value >= 1 else "%g" % value


def panel(x, y, title, axis, unit, curves):
    """A picture with the origin of its space at (x, y). Both axes are logarithmic."""
    points = [p for c in curves.values() for p in c]
    low, most = (f(p[0] for p in points) for f in (min, max))
    least, last = (f(p[1] for p in points) for f in (min, max))
    least, last = least / 1.15, last * 1.15
    x, y = x + LEFT, y + TOP

    def at(p):
        return (x + WIDE * math.log(p[0] / low) / math.log(most / low), y + HIGH - HIGH * math.log(p[1] / least) / math.log(last / least))

    text = '<text x="%d" y="%d" font-weight="bold" font-size="13">%s</text>\n' % (x - LEFT + 8, y - 24, title)
    text += '<text x="%d" y="%d">%s</text>\n' % (x - LEFT + 8, y - 8, unit)
    text += '<text x="%d" y="%d" text-anchor="middle">%s</text>\n' % (x + WIDE / 2, y + HIGH + 38, axis)
    text += '<path fill="none" stroke="#888" d="M%d %dv%dh%d"/>\n' % (x, y, HIGH, WIDE)
    for value in ticks(least, last):
        level = at((low, value))[1]
        text += '<path stroke="#ddd" d="M%d %.1fh%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>\n' % (x, level, WIDE, x - 6, level + 4, figure_text(value))
    for value in ticks(low, most):
        place = at((value, least))[0]
        text += '<path stroke="#888" d="M%.1f %dv5"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>\n' % (place, y + HIGH, place, y + HIGH + 19, figure_text(value))
    free = None
    for i, (name, curve) in sorted(enumerate(curves.items()), key=lambda c: c[1][1][-1][1]):
        path = " ".join("%.1f,%.1f" % at(p) for p in curve)
        end, level = at(curve[-1])
        free = level + 4 if free is None else min(level + 4, free - 13)
        text += '<polyline fill="none" stroke-width="2" stroke="%s" points="%s"/>' % (COLOURS[i % 6], path)
        text += '<path stroke="%s" stroke-dasharray="1 2" d="M%.1f %.1fL%d %.1f"/><text x="%d" y="%.0f" fill="%s">%s</text>\n' % (
            COLOURS[i % 6], end, level, x + WIDE + 14, free - 4, x + WIDE + 17, free, COLOURS[i % 6], name)
    return text


def growth(path):
    """Draws the step time over workers, layers and bytes, and the cost of the simulation over workers."""
    base = ["--strategy", "ssgd,wfbp,localsgd,enp,dreamddp,sparseloco", "--period", "10", "--steps", "30", "--net", "1gbit,5ms"]
    gpt = ["--profile", "{profiles}/a6000_gpt2.csv"]
    panels = []
    with tempfile.TemporaryDirectory() as folder:
        curves = sweep(folder, "workers", ["2", "8", "32", "128", "512", "2048", "10000"], base + gpt)
        panels.append(("Step time by workers", "workers (GPT-2, 653 MB of parameters)", "step, ms", {n: [(float(v), ms) for v, ms in c] for n, c in curves.items()}))
        curves = sweep(folder, "profile", [split(folder, n) for n in (1, 4, 16, 64, 256, 1024)], base + ["--workers", "16"])
        panels.append(("Step time by layers", "layers (653 MB in all, 16 workers)", "step, ms",
                       {n: [(float(os.path.basename(v)), ms) for v, ms in c] for n, c in curves.items()}))
        curves = sweep(folder, "emulate-scale", ["1000", "300", "100", "30", "10", "3", "1"], base + gpt + ["--workers", "16"])
        panels.append(("Step time by bytes", "MB of parameters (125 layers, 16 workers)", "step, ms",
                       {n: [(653 / float(v), ms) for v, ms in c] for n, c in curves.items()}))
        own = {"processor s": [], "memory, MB": [], "processor s, --each": [], "memory, MB, --each": []}
        for each, sizes in (([], (2, 10, 100, 1000, 10000)), (["--each"], (2, 10, 100, 1000))):
            for workers in sizes:
                used = consumed(["--strategy", "dreamddp", "--workers", str(workers), "--steps", "30", "--net", "1gbit,5ms"] + each + fill(gpt, folder))
                for what, figure in zip(("processor s", "memory, MB"), used):
                    own[what + (", --each" if each else "")].append((workers, max(figure, 0.01)))
        panels.append(("Cost of the simulation itself, 30 steps of dreamddp", "workers", "processor seconds, or MB of memory", own))
    with open(path + ".tmp", "w") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" width="1080" height="680" viewBox="0 0 1080 680" font-family="sans-serif" font-size="12" fill="#222">\n'
                '<rect width="100%" height="100%" fill="#fff"/>\n' +
                "".join(panel(540 * (i % 2), 340 * (i // 2), *p) for i, p in enumerate(panels)) + "</svg>\n")
    os.rename(path + ".tmp", path)
    return 0


def summary(rows):
    errors = sorted(abs(r[5]) for r in rows)
    pairs, wrong = orders(rows)
    text = "%d cells: mean error of the step time %.1f %%, median %.1f %%, worst %.1f %%; order right in %d of %d pairs" % (
        len(rows), sum(errors) / len(errors), errors[len(errors) // 2], errors[-1], pairs - len(wrong), pairs)
    return text + "".join("; wrong: " + w for w in wrong)


def markdown(rows, computed, path):
    with open(path + ".tmp", "w") as f:
        f.write("| cell | strategy | real ms | simulated ms | error | hidden %, real / simulated |\n|---|---|---|---|---|---|\n")
        for name, what, _, real, simulated, error, own, hidden in rows:
            f.write("| %s | %s | %.1f | %.1f | %+.1f %% | %.1f / %.1f |\n" % (name, what, real, simulated, error, own, hidden))
        f.write("\n%s.\n" % summary(rows))
        if computed:
            f.write("\n| computing, 2 workers | real ms | simulated ms | error |\n|---|---|---|---|\n")
            for row in computed:
                f.write("| %s | %.1f | %.1f | %+.1f %% |\n" % row)
    os.rename(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one cell of each group")
    parser.add_argument("--only", help="cells with this word, or one of A|B, in their group or strategy")
    parser.add_argument("--pages", metavar="FOLDER", help="a page for each cell")
    parser.add_argument("--markdown", metavar="FILE", help="the tables of docs/howto/simulate.md")
    parser.add_argument("--again", action="store_true", help="with --only and --markdown: keep the other rows of the table")
    parser.add_argument("--rounds", type=int, default=1, help="real runs of each cell; the best counts [1]")
    parser.add_argument("--scale", action="store_true", help="only print the processor seconds and the memory of the simulator")
    parser.add_argument("--growth", metavar="FILE.svg", help="only draw the step time over workers, layers and bytes, and the cost of the simulation")
    parser.add_argument("--nominal", action="store_true", help="simulate the requested profile and link, not the measured ones")
    args = parser.parse_args()
    if args.scale:
        return scale()
    if args.growth:
        return growth(args.growth)
    cells = [c for c in CELLS if not args.only or any(word in c[0] + " " + c[1] for word in args.only.split("|"))]
    if args.quick:
        cells = [c for i, c in enumerate(cells) if i == 0 or cells[i - 1][0] != c[0]]
    if not os.path.isdir(published.folder("profiles")):
        print("simulate.py: no profiles; " + published.HINT, file=sys.stderr)
        return 77
    if not cells:
        print("simulate.py: no cell has '%s' in its name" % args.only, file=sys.stderr)
        return 2
    if args.pages:
        os.makedirs(args.pages, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("map.json", json.dumps(TOPOLOGY)), ("kill.txt", KILL), ("stall.txt", STALL)):
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
        rows = measure(cells, folder, args)
        computed = [] if args.only or args.quick else computing(folder, args)
    if args.again:
        before = kept(args.markdown)
        before.update({(r[0], r[1]): r for r in rows})
        rows = [before[c[0], c[1]] for c in CELLS if (c[0], c[1]) in before]
    print(summary(rows))
    if args.markdown:
        markdown(rows, computed, args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
