#!/usr/bin/env python3
"""Runs every example and writes docs/gallery.md with its command, its output and a picture.

    tools/gallery.py [NAME..]     all entries, or the named ones (make gallery ONLY=NAME)
    tools/gallery.py --text       runs nothing; writes the descriptions of the entries again
    tools/gallery.py --list       names of the entries

A picture is extracted from the page that a trainer writes with --report, drawn from a --trace, or it is the curve of the printed
losses. A line in the output marks omitted lines. Paths of this machine are replaced by names.
"""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE, PICTURES = os.path.join(ROOT, "docs", "gallery.md"), os.path.join(ROOT, "docs", "gallery")
DATA = os.environ.get("DDP_DATA", "data")
WIDEST, LONGEST = 130, 18  # limits of the shown output: characters per line, lines
PATIENCE = int(os.environ.get("PATIENCE", 300))  # time-out of a command, in seconds
KINDS = {"forward": "#8cc9ee", "backward": "#2f7fb8", "update": "#009e73", "wait": "#f3d3c0", "comm": "#e69f00", "fill": "#f0e442", "peer wait": "#c9ced2"}
KEY = (("forward", "forward"), ("backward", "backward"), ("wait", "compute waits"), ("comm", "transfer"), ("fill", "small message"),
       ("peer wait", "transfer waits for a peer"))

# name: title, sources, description, what to build, command lines, picture, its alt text (None: made from the losses).
# picture: "lanes" or "stages" of report.html, "curve" of the printed losses, "kill" or "quickstart" from a trace
ENTRIES = {
    "quickstart": ("Quickstart", ["examples/quickstart/quickstart.c"],
                   "Five strategies train a small GPT with 4 workers over links of 100 Mbit/s and 1 ms. The picture compares rank 0 under S-SGD and "
                   "DreamDDP: the same time scale for the lanes, and the loss over seconds.",
                   ["quickstart"], ["build/quickstart --out quickstart"], "quickstart",
                   "S-SGD computes for a small part of each step and waits for its transfers. DreamDDP overlaps transfers with computing and reaches the "
                   "same loss in half of the time"),
    "own_loop": ("Own loop", ["examples/own_loop.c"],
                 "A network written by hand, with its own arrays. The library updates and averages the parameters.",
                 ["own_loop"], ["build/own_loop"], "curve", None),
    "own_update": ("Own loop with its own optimizer", ["examples/own_update.c"],
                   "The program applies an update rule that the library does not have. The library averages the parameters (`ddp_own_update`).",
                   ["own_update", "ddprun"], ["build/ddprun -n 3 --net 20mbit,2ms --strategy dreamddp build/own_update"], "curve", None),
    "own_strategy": ("Own strategy", ["examples/own_strategy.c"],
                     "A strategy that is not built in: workers are drawn at random and average in pairs. The program prints a hash of each "
                     "worker's parameters before and after `ddp_sync_all`.",
                     ["own_strategy"], ["build/own_strategy"], "curve", None),
    "vectors": ("C++ vectors", ["examples/vectors.cpp"],
                "A C++ program: the model is in `std::vector`s, the update is the program's own, and errors are exceptions.",
                ["vectors", "ddprun"], ["build/ddprun -n 2 build/vectors"], "curve", None),
    "interleaved": ("Memory layout of llm.c", ["examples/interleaved.c"],
                    "All parameters are in one array, tensor by tensor. Each tensor contains the values of all layers. AdamW is the program's own.",
                    ["interleaved", "ddprun"],
                    ["build/ddprun -n 4 --net 50mbit,5ms --strategy dreamddp build/interleaved"], "curve", None),
    "pytorch": ("PyTorch", ["examples/python/train.py"], "A PyTorch loop with PyTorch's optimizer and three added calls (`pip install python/`).",
                ["ddprun", "lib"], ["OMP_NUM_THREADS=1 build/ddprun -n 2 --net 100mbit,5ms python3 examples/python/train.py 40"], "curve", None),
    "gpu": ("GPU", ["examples/own_loop_cuda.cu"], "A loop with its own kernels and its own stream. The library exchanges layers at the same time.", [],
            ["nvcc -O3 -arch=sm_90a -I. examples/own_loop_cuda.cu -o build/own_loop_cuda -lcublas -lcublasLt -lnccl",
             "build/ddprun -n 2 build/own_loop_cuda"], "curve", None),
    "elastic": ("A lost worker", ["examples/train/train_gpt.c"],
                "Four workers, of which two are enough (`--min-world 2`). A script kills rank 3 with SIGKILL after 2.1 s. The survivors agree on a "
                "new epoch and continue ([elastic-protocol](explanation/elastic-protocol.md)).",
                ["train_gpt"],
                ["cat docs/gallery/kill.txt",
                 "DREAMDDP_LOG=info build/train_gpt --workers 4 --min-world 2 --layers 2 --steps 100 --data README.md --net 100mbit,1ms "
                 "--net-script docs/gallery/kill.txt --json run.jsonl --trace trace.json --quiet"], "kill",
                "Lanes of four ranks. At 2.1 s rank 3 is killed and the others wait; some tenths of a second later epoch 1 begins with three workers and "
                "training continues"),
    "sites": ("Two sites", ["examples/train/train_gpt.c"],
              "Two workers in each of two sites, with slow links between the sites. Averages are hierarchical all-reduces ([sites](howto/sites.md)). "
              "The picture has the lanes of rank 0.",
              ["train_gpt", "ddprun"],
              ["cat docs/gallery/sites.json",
               "build/ddprun -n 4 --net docs/gallery/sites.json bash -c 'export DREAMDDP_SITE=$((DREAMDDP_RANK / 2 + 1)); exec build/train_gpt --layers 2 "
               "--steps 60 --data README.md --report report.html --quiet'"], "lanes",
              "Lanes of rank 0 over five steps: the transfers of one step overlap with its backward pass, and the worker then waits for the slow link; the other "
              "steps only compute"),
    "server": ("A server", ["examples/train/train_gpt.c"],
               "Strategy osp: workers wait for the important layers, and exchange the others with the server during the next step "
               "([servers](howto/servers.md)).",
               ["train_gpt"],
               ["build/train_gpt --workers 3 --servers 1 --strategy osp --defer 0.5 --layers 2 --steps 40 --data README.md --net 100mbit,1ms "
                "--report report.html --quiet"], "lanes",
               "Lanes of three workers over four steps: a worker computes for a small part of a step and waits for the server during the rest"),
    "pipeline": ("A pipeline", ["examples/pipeline.c", "examples/train/train_gpt.c"],
                 "A model in three stages with an operator of the program's own. Then two pipelines of two stages in the trainer; the picture has one step.",
                 ["pipeline", "train_gpt"],
                 ["build/pipeline 1f1b", "build/train_gpt --workers 4 --stages 2 --pipeline 1f1b --microbatches 4 --steps 20 --data README.md --net 50mbit,2ms "
                  "--report report.html --quiet"], "stages",
                 "One step of two stages under 1f1b with four micro-batches: stage 1 starts after the first activation arrives, and both idle at the ends"),
}


# commands that tests/docs/test_commands.py runs instead of those of an entry
SMALL = {"quickstart": "build/quickstart --out quickstart --workers 2 --layers 1 --dim 16 --steps 30",
         "interleaved": "build/ddprun -n 2 --net 50mbit,5ms --strategy dreamddp build/interleaved",
         "pytorch": "OMP_NUM_THREADS=1 build/ddprun -n 2 --net 100mbit,5ms python3 examples/python/train.py 2"}


class Missing(Exception):
    """The reason why an entry cannot run on this machine."""


def python_with_torch():
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        if os.path.exists(python) and not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            return python
    raise Missing("PyTorch is not installed")


def gpu():
    if not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        raise Missing("no GPU")


def run(command, folder):
    """Runs a command line as the page shows it, in the repository's root, with its files in folder. Returns its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    env.update(NO_COLOR="1", PYTHONPATH=os.path.join(ROOT, "python"))
    if "python3" in command:
        command = command.replace("python3", python_with_torch())
    for option in ("--report report.html", "--json run.jsonl", "--trace trace.json", "--out quickstart"):
        command = command.replace(option, option.replace(" ", " " + folder + "/"))
    p = subprocess.Popen(["bash", "-c", command], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         start_new_session=True)
    try:
        text = p.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGTERM)
        p.communicate()
        raise Missing("the command took more than %d s" % PATIENCE)
    if p.returncode:
        sys.exit("gallery.py: %s: exit code %d\n%s" % (command, p.returncode, text[-2000:]))
    for path, name in ((folder + "/", ""), (folder, "."), (ROOT + "/", ""), (ROOT, "."), (os.path.abspath(DATA), "$DDP_DATA"), (os.path.expanduser("~") + "/", "~/")):
        text = text.replace(path, name)
    return re.sub(r"bash: line \d+: +\d+ Killed .*", "Killed", text)


def broken(line, mark=""):
    """Splits a long line after blanks and commas."""
    lines = []
    while len(line) > WIDEST:
        at = max(line.rfind(" ", 0, WIDEST), line.rfind(",", 0, WIDEST)) + 1
        if at < 20:
            break
        lines.append(line[:at].rstrip() + mark)
        line = "    " + line[at:].lstrip()
    return lines + [line]


def shown(text):
    """Formats an output for the page: splits long lines and shortens long outputs."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > LONGEST + 2:
        head = LONGEST // 2
        lines[head:-head] = ["... (%d lines omitted)" % (len(lines) - 2 * head)]
    return "\n".join(part for line in lines for part in broken(line))


def literal(svg):
    """A drawing with its CSS variables replaced by colours: viewers other than browsers draw variables as black."""
    for _ in range(3):
        values = dict(re.findall(r"(--\w+):([^;}]*)", re.search(r":root\{([^}]*)\}", svg).group(1))) if ":root{" in svg else {}
        svg = re.sub(r"var\((--\w+)\)", lambda m: values.get(m.group(1), m.group(0)), svg)
    own = dict(re.findall(r"\.([ks]\d)\{--c:([^;}]*)\}", svg))  # the colour of each class
    svg = re.sub(r"\.[ks]\d\{--c:[^}]*\}\n?", "", re.sub(r":root\{[^}]*\}\n?", "", svg))
    svg = re.sub(r"\.lanes rect\{fill:var\(--c\);?", ".lanes rect{", svg)
    svg = re.sub(r"svg \.name\{[^}]*\}\n?", "", svg)
    return re.sub(r'<rect class="([ks]\d)"', lambda m: '<rect fill="%s"' % own.get(m.group(1), "#888"), svg)


def report_picture(folder, kind):
    """Returns a drawing of report.html as a separate file, with the page's style but without tooltips."""
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as f:
        page = f.read()
    style = re.search(r"<style>\n?(.*?)\n?</style>", page, re.S).group(1)
    drawing = re.search(r'<svg class="%s".*?</svg>' % kind, page, re.S).group(0)
    drawing = re.sub(r"<title>.*?</title>", "", drawing, flags=re.S)
    drawing = re.sub(r'<rect class="k\d" x="[\d.]+" y="[\d.]+" width="0\.[0-4]\d*" height="[\d.]+"></rect>', "", drawing)  # thinner than a line
    drawing = re.sub(r"></rect>", "/>", drawing)
    key = re.search(r'<p class="key">(.*?)</p>', page, re.S)
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing).groups())
    words = re.findall(r'<i class="(k\d)"></i>([^<]+)', key.group(1)) if key and kind == "lanes" else []
    legend = "".join('<rect class="%s" x="%d" y="%g" width="12" height="10"/><text x="%d" y="%g">%s</text>' % (
        k, 56 + 150 * i, height + 6, 73 + 150 * i, height + 15, word.strip()) for i, (k, word) in enumerate(words))
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" class="%s" viewBox="0 0 %g %g" width="%g">' % (kind, width, height + (24 if legend else 0), width)
    plain = re.sub(r"@media[^{]*\{[^}]*\}\s*\}", "", style)
    wanted = re.compile(r"\s*(:root|svg|\.mid|\.end|\.grid|\.axis|\.k\d|\.s\d|\.lanes)")
    rules = "".join(r for r in re.findall(r"[^{}]*\{[^{}]*\}", plain) if wanted.match(r)) if kind == "lanes" else ""
    return literal(head + "<style>" + rules + "svg{background:#fff}</style>" + drawing[drawing.index(">") + 1:-len("</svg>")] + legend + "</svg>\n")


# ---- pictures from a trace ----

def spans_of(path):
    """The spans of a trace, by the name of the process: (begin, end, kind, step), times in milliseconds."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    spans = {name: [] for name in names.values()}
    for e in events:
        if e["ph"] == "X":
            spans[names[e["pid"]]].append((e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e["cat"], e["args"]["step"]))
    return {name: sorted(own) for name, own in spans.items()}


def lane(spans, begin, end, x, y, per_ms):
    """Two rows of a worker, from begin to end: computing above, transfers below."""
    out = []
    for a, b, kind, _ in sorted(spans, key=lambda s: s[2] in ("forward", "backward", "comm")):  # these are on top
        a, b = max(a, begin), min(b, end)
        if (b - a) * per_ms < 0.15:
            continue
        row, high = (0, 20) if kind in ("forward", "backward", "update", "wait") else (21, 12)
        out.append('<rect fill="%s" x="%.1f" y="%d" width="%.1f" height="%d"/>' % (KINDS[kind], x + (a - begin) * per_ms, y + row, (b - a) * per_ms, high))
    return "".join(out)


def time_axis(begin, end, x, top, bottom, per_ms, unit):
    """Ticks each `unit` milliseconds, as milliseconds from begin."""
    out = []
    for i in range(int((end - begin) / unit + 1e-9) + 1):
        at = x + i * unit * per_ms
        out.append('<path stroke="#dfe3e6" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%d%s</text>' % (
            at, top, bottom, at, bottom + 15, i * unit, " ms" if i == 0 else ""))
    return "".join(out)


def key(x, y, kinds=KEY):
    out = []
    for kind, word in kinds:
        out.append('<rect fill="%s" x="%d" y="%d" width="13" height="11"/><text x="%d" y="%d">%s</text>' % (KINDS[kind], x, y, x + 18, y + 10, word))
        x += 36 + 7 * len(word)
    return "".join(out)


def svg_page(width, height, parts):
    return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" font-family="sans-serif" font-size="12" fill="#3c434a">\n'
            '<rect width="%d" height="%d" fill="#fff"/>\n' % (width, height, width, width, height)) + "\n".join(parts) + "\n</svg>\n"


def mark(x, top, bottom, colour, text, y, anchor="start"):
    return '<path stroke="%s" stroke-width="2" stroke-dasharray="5 3" d="M%.1f %dV%d"/><text x="%.1f" y="%d" fill="%s" font-weight="bold" text-anchor="%s">%s</text>' % (
        colour, x, top, bottom, x + (5 if anchor == "start" else -5), y, colour, anchor, text)


def kill_picture(folder):
    """Lanes around the moment of the script's kill, with the begin of the next epoch."""
    with open(os.path.join(PICTURES, "kill.txt"), encoding="ascii") as f:
        seconds, victim = re.search(r"t=([\d.]+) kill (\d+)", f.read()).groups()
    killed = 1e3 * float(seconds)
    spans = spans_of(os.path.join(folder, "trace.json"))
    ranks = {int(re.search(r"rank (\d+)", name).group(1)): own for name, own in spans.items() if own}
    epoch = max(b for own in ranks.values() for a, b, kind, _ in own if kind == "wait" and a < killed + 100 and b > killed)
    begin, end = killed - 300, epoch + 300
    per_ms = 860 / (end - begin)
    unit = 50 if end - begin < 800 else 100 if end - begin < 1600 else 500
    bottom = 52 + 48 * (len(ranks) + 1)
    parts = ['<text x="12" y="18" font-size="14" font-weight="bold">Rank %s is killed; three workers continue in epoch 1</text>' % victim,
             time_axis(begin, end, 70, 48, bottom, per_ms, unit)]
    for rank in sorted([*ranks, int(victim)]):
        y = 56 + 48 * rank
        parts.append('<text x="62" y="%d" text-anchor="end">rank %d</text>' % (y + 20, rank))
        if rank in ranks:
            parts.append(lane(ranks[rank], begin, end, 70, y, per_ms))
        else:
            parts.append('<rect fill="#e9ecef" stroke="#c3c9ce" x="70" y="%d" width="%.1f" height="33"/><text x="78" y="%d">computes (its record is lost)</text>' % (
                y, (killed - begin) * per_ms, y + 21))
    parts += [mark(70 + (killed - begin) * per_ms, 40, bottom, "#c62828", "rank %s killed" % victim, 40, "end"),
              mark(70 + (epoch - begin) * per_ms, 40, bottom, "#00695c", "epoch 1: training continues", 40),
              '<text x="%.1f" y="%d" text-anchor="middle">survivors: %.0f ms without progress</text>' % (
                  70 + ((killed + epoch) / 2 - begin) * per_ms, bottom - 16, epoch - killed), key(70, bottom + 26)]
    return svg_page(950, bottom + 48, parts)


def quickstart_picture(folder):
    """Rank 0 under S-SGD and DreamDDP with one time scale, and the loss of both over seconds."""
    with open(os.path.join(folder, "quickstart.jsonl"), encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    spans = spans_of(os.path.join(folder, "quickstart_trace.json"))
    both = (("ssgd", "S-SGD", "#c0504d"), ("dreamddp", "DreamDDP", "#0072b2"))
    step = {e["strategy"]: e["step_ms"] for e in events if e["event"] == "result"}
    span_ms = 4 * step["ssgd"]
    per_ms = 800 / span_ms
    unit = next(u for u in (20, 50, 100, 200, 500, 1000) if span_ms / u <= 10)
    parts = ['<text x="12" y="20" font-size="15" font-weight="bold">Rank 0 of 4 workers, 100 Mbit/s links: the time of 4 steps of S-SGD</text>',
             time_axis(0, span_ms, 120, 36, 170, per_ms, unit)]
    for i, (name, title, colour) in enumerate(both):
        own, y = spans["%s rank 0" % name], 60 + 62 * i
        first = min(s for a, _, kind, s in own if kind == "forward" and s > 31)
        begin = min(a for a, _, kind, s in own if kind == "forward" and s == first)
        parts.append('<text x="12" y="%d" font-weight="bold" fill="%s">%s</text><text x="112" y="%d" text-anchor="end">compute</text>'
                     '<text x="112" y="%d" text-anchor="end">transfer</text>' % (y - 6, colour, title, y + 15, y + 31))
        parts.append(lane(own, begin, begin + span_ms, 120, y, per_ms))
        starts = sorted({min(a for a, _, kind, s in own if kind == "forward" and s == n) for n in {s for _, _, kind, s in own if kind == "forward" and s >= first}})
        inside = [a for a in starts if a < begin + span_ms]
        parts += ['<path stroke="#3c434a" d="M%.1f %dv6"/>' % (120 + (a - begin) * per_ms, y - 7) for a in inside]
        parts.append('<text x="120" y="%d">%s</text>' % (y - 10, "" if i else "each tick marks the start of a step"))
    parts.append('<text x="930" y="80" fill="#c0504d">waits for</text><text x="930" y="95" fill="#c0504d">its transfers</text>'
                 '<text x="930" y="142" fill="#0072b2">overlaps</text><text x="930" y="157" fill="#0072b2">them</text>')
    parts.append(key(120, 200, KEY[:4]))
    left, top, wide, high = 120, 250, 800, 190
    curves, target = {}, {}
    for name, _, _ in both:
        seconds, losses, curve = 0.0, [], []
        for e in events:
            if e["event"] == "step" and e["strategy"] == name:
                seconds += e["step_ms"] / 1e3
                losses.append(e["loss"])
                curve.append((seconds, sum(losses[-8:]) / len(losses[-8:])))
        curves[name] = curve
        target[name] = next(e["time_to_loss_s"] for e in events if e["event"] == "result" and e["strategy"] == name)
    most = max(c[-1][0] for c in curves.values())
    low, last = math.floor(min(v for c in curves.values() for _, v in c) * 2) / 2 - 0.5, math.ceil(max(v for c in curves.values() for _, v in c))
    x, y = lambda s: left + wide * s / most, lambda v: top + high * (last - v) / (last - low)
    parts.append('<text x="12" y="%d" font-size="15" font-weight="bold">Training loss over time (mean of 8 steps)</text>' % (top - 12))
    v = low
    while v <= last + 1e-9:
        parts.append('<path stroke="#dfe3e6" d="M%d %.1fh%d"/><text x="%d" y="%.1f" text-anchor="end">%g</text>' % (left, y(v), wide, left - 8, y(v) + 4, v))
        v += 0.5
    for s in range(0, int(most) + 1, 2):
        parts.append('<text x="%.1f" y="%d" text-anchor="middle">%d s</text>' % (x(s), top + high + 18, s))
    for name, title, colour in both:
        at = next(i for i, (s, _) in enumerate(curves[name]) if s >= target[name] - 1e-6)
        s, v = curves[name][at]
        parts.append('<polyline fill="none" stroke="%s" stroke-width="2.5" points="%s"/>' % (colour, " ".join("%.1f,%.1f" % (x(a), y(b)) for a, b in curves[name])))
        parts.append('<circle fill="%s" cx="%.1f" cy="%.1f" r="5"/><text x="%.1f" y="%.1f" fill="%s" font-weight="bold" text-anchor="%s">%s: common loss after %.1f s</text>' % (
            colour, x(s), y(v), x(s) + 6, y(v) + (22 if name == "dreamddp" else -10), colour, "start", title, target[name]))
    return svg_page(1020, top + high + 32, parts)


def curve_picture(text):
    """The losses that a program printed over its steps, with one curve per worker."""
    curves = {}
    for rank, step, loss in re.findall(r"^(?:\[(\d+)\] )?step +(\d+) +(?:loss|squared miss) +([\d.]+)", text, re.M):
        curves.setdefault(rank, []).append((int(step), float(loss)))
    if not curves:
        raise SystemExit("gallery.py: no losses in\n" + text)
    most = max(s for c in curves.values() for s, _ in c)
    values = [v for c in curves.values() for _, v in c]
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = 0.08 * (high - low) or 0.1
    low, high = low - pad, high + pad
    x, y = lambda s: 60 + 460 * s / most, lambda v: 20 + 190 * (high - math.log10(v)) / (high - low)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 540 250" width="540" font-family="sans-serif" font-size="11" fill="#667079">',
           '<rect width="540" height="250" fill="#fff"/>']
    for i in range(4):
        v = 10 ** (low + (high - low) * (i + 0.5) / 4)
        out.append('<path d="M60 %.1fH520" stroke="#dfe3e6"/><text x="54" y="%.1f" text-anchor="end">%.3g</text>' % (y(v), y(v) + 4, v))
    for i in range(1, 5):
        out.append('<text x="%.1f" y="228" text-anchor="middle">%d</text>' % (x(most * i / 4), most * i // 4))
    out.append('<text x="290" y="244" text-anchor="middle">step</text><text x="60" y="13">loss (logarithmic)</text>')
    for color, (rank, c) in zip(("#0072b2", "#d98f00", "#009e73", "#cc79a7"), sorted(curves.items())):
        out.append('<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>' % (color, " ".join("%.1f,%.1f" % (x(s), y(v)) for s, v in c)))
        if len(curves) > 1:
            out.append('<text x="%d" y="13" fill="%s">rank %s</text>' % (300 + 55 * int(rank or 0), color, rank))
    return "\n".join(out) + "\n</svg>\n"


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = re.search(r"model name\s*: (.*)", f.read())
    return "%d cores%s" % (len(os.sched_getaffinity(0)), " of " + re.sub(r"\s+", " ", model.group(1)) if model else "")


def alt_text(name, output):
    """The alt text of a picture. That of a curve has the first and the last loss of the output."""
    if ENTRIES[name][6]:
        return ENTRIES[name][6]
    found = re.findall(r"^(?:\[0\] )?step +(\d+) +(?:loss|squared miss) +([\d.]+)", output, re.M)
    return "Training loss over steps: %s at step %s, %s at step %s" % (found[0][1], found[0][0], found[-1][1], found[-1][0]) if found else ENTRIES[name][0]


def head(name):
    title, sources, about = ENTRIES[name][:3]
    return "<!-- %s -->\n## %s\n\n%s %s\n\n" % (name, title, about, ", ".join("[%s](../%s)" % (s, s) for s in sources))


def test_mark(name):
    """The comment for tests/docs/test_commands.py."""
    return "<!-- no test: needs a GPU -->\n" if name == "gpu" else "<!-- test: %s -->\n" % SMALL[name] if name in SMALL else ""


def entry(name):
    """Runs an entry. Returns its section of the page and writes its picture."""
    commands = ENTRIES[name][4]
    path = os.path.join(PICTURES, name + ".svg")
    try:
        body = tried(name, path)
    except Missing as why:
        if os.path.exists(path):
            os.remove(path)
        body = "```console\n%s```\n\nNot run on this machine (%s, %s): %s.\n" % (
            "".join("$ %s\n" % "\n".join(broken(c, " \\")) for c in commands), machine(), time.strftime("%Y-%m-%d"), why)
    return head(name) + test_mark(name) + body


DRAWN = {"curve": "The curve has the losses above.", "kill": "The picture is drawn from `trace.json`.", "quickstart": "The picture is drawn from `quickstart_trace.json` and `quickstart.jsonl`.",
         "lanes": "The picture is the drawing of the `--report` page, without tooltips.", "stages": "The picture is the drawing of the `--report` page, without tooltips."}


def tried(name, path):
    """Runs the commands of an entry. Returns the body of its section and writes its picture to path."""
    build, commands, picture = ENTRIES[name][3:6]
    text = ""
    if name == "gpu":
        gpu()
    if "python3" in " ".join(commands):
        python_with_torch()
    if build:
        subprocess.run(["make", "-s", *["lib" if b == "lib" else "build/" + b for b in build]], cwd=ROOT, check=True)
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        text += "```console\n"
        for command in commands:
            out = run(command, folder)
            printed += out
            text += "$ %s\n%s\n" % ("\n".join(broken(command, " \\")), shown(out))
        seconds = time.monotonic() - begin
        drawing = {"curve": lambda: curve_picture(printed), "kill": lambda: kill_picture(folder), "quickstart": lambda: quickstart_picture(folder)}.get(
            picture, lambda: report_picture(folder, picture))()
    with open(path, "w", encoding="ascii", errors="xmlcharrefreplace") as f:
        f.write(drawing)
    return text + "```\n\n![%s](gallery/%s.svg)\n\n%s Measured on %s, %s, in %.0f s.\n" % (
        alt_text(name, printed), name, DRAWN[picture], machine(), time.strftime("%Y-%m-%d"), seconds)


def refreshed(name, section):
    """A section of the page with today's description, alt text and closing line, and the output and figures that it has."""
    body = section[section.index("```"):]
    body = re.sub(r"!\[[^\]]*\]\((gallery/\w+\.svg)\)", lambda m: "![%s](%s)" % (alt_text(name, body), m.group(1)), body)
    measured = re.search(r"\n[^\n]*?(\d+ cores[^,\n]*), (\d{4}-\d\d-\d\d), (?:in )?(\d+) s[^\n]*\.\n*$", body)
    if measured and "gallery/" in body:
        body = body[:measured.start()] + "\n%s Measured on %s, %s, in %s s.\n" % ((DRAWN[ENTRIES[name][5]],) + measured.groups())
    body = re.sub(r"Not run here \((.*?)\): (?:it has )?", r"Not run on this machine (\1): ", body)
    return head(name) + test_mark(name) + re.sub(r"^```\w*", "```console", body.replace(" lines left out)", " lines omitted)"))


INTRO = """# Gallery

Use this page to see what each example does: its command, its output and a picture of it. `make gallery` runs the commands and writes the
page; `make gallery ONLY=name` runs one entry. Long lines are broken, omitted lines are counted, and paths of the machine become names.
Times differ from run to run, and so does the order of lines of different workers. Each entry names its machine and date.

"""


def main():
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")] or ([] if "--text" in sys.argv else list(ENTRIES))
    if "--list" in sys.argv:
        return print("\n".join(ENTRIES))
    for name in wanted:
        if name not in ENTRIES:
            sys.exit("gallery.py: unknown entry %s; choose %s" % (name, ", ".join(ENTRIES)))
    os.makedirs(PICTURES, exist_ok=True)
    sections = {}
    if os.path.exists(PAGE):
        with open(PAGE, encoding="ascii") as f:
            parts = re.split(r"\n(?=<!-- \w+ -->\n## )", f.read())[1:]
        sections = {re.match(r"<!-- (\w+)", part).group(1): part.strip() + "\n" for part in parts}
        sections = {name: refreshed(name, section) for name, section in sections.items() if name in ENTRIES}
    for name in wanted:
        print("gallery.py: " + name, file=sys.stderr, flush=True)
        sections[name] = entry(name)
        with open(PAGE, "w", encoding="ascii", errors="xmlcharrefreplace") as f:
            f.write(INTRO + "\n".join(sections[n] for n in ENTRIES if n in sections))
    if not wanted:
        with open(PAGE, "w", encoding="ascii", errors="xmlcharrefreplace") as f:
            f.write(INTRO + "\n".join(sections[n] for n in ENTRIES if n in sections))
    size = sum(os.path.getsize(os.path.join(PICTURES, f)) for f in os.listdir(PICTURES))
    print("gallery.py: docs/gallery.md, pictures of %d KB" % (size / 1000), file=sys.stderr)


if __name__ == "__main__":
    main()
