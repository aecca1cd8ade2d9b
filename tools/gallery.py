#!/usr/bin/env python3
"""Runs every example and writes docs/gallery.md: its command, what it printed, the picture it drew.

    tools/gallery.py [NAME..]     all entries, or those alone (make gallery ONLY=NAME); --list: their names

Pictures are cut out of the page that a trainer's --report writes, or are the curve of the losses that a program printed, drawn
here. What is left out of the output is said where it stood. Paths of this machine become names.
"""
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
WIDEST, LONGEST = 130, 18  # of what is shown: characters of a line, lines of an output
PATIENCE = int(os.environ.get("PATIENCE", 300))  # seconds a command may take

# name: title, sources, what it shows, what to build, command lines, picture.
# picture: "lanes" or "stages" of report.html, "curve" of the losses printed, or None
ENTRIES = {
    "own_loop": ("Own loop", ["examples/own_loop.c"], "A network written by hand, with its own arrays; the library updates and averages.",
                 ["own_loop"], ["build/own_loop"], "curve"),
    "own_update": ("Own loop with own optimizer", ["examples/own_update.c"],
                   "The program keeps its update rule, which the library does not have; the library averages (`ddp_own_update`).",
                   ["own_update", "ddprun"], ["build/ddprun -n 3 --net 20mbit,2ms --strategy dreamddp build/own_update"], "curve"),
    "own_strategy": ("Own strategy", ["examples/own_strategy.c"],
                     "A strategy that is not built in: workers drawn by lot average in pairs. Hashes before and after `ddp_sync_all`.",
                     ["own_strategy"], ["build/own_strategy"], "curve"),
    "vectors": ("C++ vectors", ["examples/vectors.cpp"], "A model in `std::vector`s, its own update, errors as exceptions.",
                ["vectors", "ddprun"], ["build/ddprun -n 2 build/vectors"], "curve"),
    "interleaved": ("The layout of llm.c", ["examples/interleaved.c"],
                    "All parameters in one array, tensor by tensor, each with all layers in it, and the program's own AdamW.",
                    ["interleaved", "ddprun"],
                    ["build/ddprun -n 4 --net 50mbit,5ms --strategy dreamddp build/interleaved"], "curve"),
    "pytorch": ("PyTorch", ["examples/python/train.py"], "PyTorch's own loop and optimizer, and three calls (`pip install python/`).",
                ["ddprun", "lib"], ["OMP_NUM_THREADS=1 build/ddprun -n 2 --net 100mbit,5ms python3 examples/python/train.py 40"], "curve"),
    "gpu": ("GPU", ["examples/own_loop_cuda.cu"], "A loop with its own kernels and stream, beside which layers travel.", [],
            ["nvcc -O3 -arch=sm_90a -I. examples/own_loop_cuda.cu -o build/own_loop_cuda -lcublas -lcublasLt -lnccl",
             "build/ddprun -n 2 build/own_loop_cuda"], "curve"),
    "elastic": ("An elastic run with a kill", ["examples/train/train_gpt.c"],
                "Four workers, any two of which are enough. After six seconds one is killed with -9; the others agree on a new epoch and go on "
                "([elastic-protocol](explanation/elastic-protocol.md)).",
                ["train_gpt"],
                ["DREAMDDP_LOG=info build/train_gpt --workers 4 --min-world 2 --layers 2 --steps 150 --data README.md --net 100mbit,1ms "
                 "--report report.html --quiet & sleep 6; kill -9 $(pgrep -P $! | tail -1); wait"], "lanes"),
    "sites": ("Two sites", ["examples/train/train_gpt.c"],
              "Two workers in each of two sites: averages in two levels, and between the sites slow links ([sites](howto/sites.md)). Rank 0's lanes.",
              ["train_gpt", "ddprun"],
              ["cat docs/gallery/sites.json",
               "build/ddprun -n 4 --net docs/gallery/sites.json bash -c 'export DREAMDDP_SITE=$((DREAMDDP_RANK / 2 + 1)); exec build/train_gpt --layers 2 "
               "--steps 60 --data README.md --report report.html --quiet'"], "lanes"),
    "server": ("A server", ["examples/train/train_gpt.c"],
               "osp: the layers that matter go to the server and back at once, the others during the next step ([servers](howto/servers.md)).",
               ["train_gpt"],
               ["build/train_gpt --workers 3 --servers 1 --strategy osp --defer 0.5 --layers 2 --steps 40 --data README.md --net 100mbit,1ms "
                "--report report.html --quiet"], "lanes"),
    "pipeline": ("A pipeline", ["examples/pipeline.c", "examples/train/train_gpt.c"],
                 "A model in three stages with an operator of one's own; and a trainer's two pipelines of two stages, whose step is drawn.",
                 ["pipeline", "train_gpt"],
                 ["build/pipeline 1f1b", "build/train_gpt --workers 4 --stages 2 --pipeline 1f1b --microbatches 4 --steps 20 --data README.md --net 50mbit,2ms "
                  "--report report.html --quiet"], "stages"),
}


class Missing(Exception):
    """Why an entry cannot run here."""


def python_with_torch():
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        if os.path.exists(python) and not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            return python
    raise Missing("PyTorch is not installed on it")


def gpu():
    if not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        raise Missing("it has no GPU")


def run(command, folder):
    """Runs a command line as the page shows it, in the repository's root; report.html lies in folder. Returns what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    env.update(NO_COLOR="1", PYTHONPATH=os.path.join(ROOT, "python"))
    if "python3" in command:
        command = command.replace("python3", python_with_torch())
    command = command.replace("--report report.html", "--report " + os.path.join(folder, "report.html"))
    p = subprocess.Popen(["bash", "-c", command], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         start_new_session=True)
    try:
        text = p.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGTERM)
        p.communicate()
        raise Missing("it did not end within %d s beside what else runs there" % PATIENCE)
    if p.returncode:
        sys.exit("gallery.py: %s: exit code %d\n%s" % (command, p.returncode, text[-2000:]))
    for path, name in ((folder, "."), (ROOT + "/", ""), (ROOT, "."), (os.path.abspath(DATA), "$DDP_DATA"), (os.path.expanduser("~") + "/", "~/")):
        text = text.replace(path, name)
    return re.sub(r"bash: line \d+: +\d+ Killed .*", "Killed", text)


def broken(line, mark=""):
    """A long line in several, after blanks and commas."""
    lines = []
    while len(line) > WIDEST:
        at = max(line.rfind(" ", 0, WIDEST), line.rfind(",", 0, WIDEST)) + 1
        if at < 20:
            break
        lines.append(line[:at].rstrip() + mark)
        line = "    " + line[at:].lstrip()
    return lines + [line]


def shown(text):
    """An output as the page has it: long lines are broken, long outputs are cut where it is said."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > LONGEST + 2:
        head = LONGEST // 2
        lines[head:-head] = ["... (%d lines left out)" % (len(lines) - 2 * head)]
    return "\n".join(part for line in lines for part in broken(line))


def report_picture(folder, kind):
    """A drawing of report.html as a file of its own: with the page's style, without the tooltips."""
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
    head = '<svg xmlns="http://www.w3.org/2000/svg" class="%s" viewBox="0 0 %g %g" width="%g">' % (kind, width, height + (24 if legend else 0), width)
    rules = "".join(r for r in re.findall(r"[^{}]*\{[^{}]*\}", re.sub(r"@media[^{]*\{[^}]*\}\s*\}", "", style)) if re.match(r"\s*(:root|svg|\.mid|\.end|\.grid|\.axis|\.k\d|\.s\d|\.lanes)", r)) if kind == "lanes" else ""
    rules += "svg{background:#fff}:root{color-scheme:light}"  # a picture in a page cannot follow its colours
    return head + "<style>" + rules + "</style>" + drawing[drawing.index(">") + 1:-len("</svg>")] + legend + "</svg>\n"


def curve_picture(text):
    """The losses that a program printed, over its steps; a line for each worker that printed some."""
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


def entry(name):
    """The section of the page; the picture is written."""
    title, sources, about, _, commands, _ = ENTRIES[name]
    text = "<!-- %s -->\n## %s\n\n%s %s\n\n" % (name, title, about, ", ".join("[%s](../%s)" % (s, s) for s in sources))
    path = os.path.join(PICTURES, name + ".svg")
    try:
        body = tried(name, path)
    except Missing as why:
        if os.path.exists(path):
            os.remove(path)
        body = "```\n%s```\n\nNot run here (%s, %s): %s.\n" % ("".join("$ %s\n" % "\n".join(broken(c, " \\")) for c in commands), machine(),
                                                              time.strftime("%Y-%m-%d"), why)
    return text + body


def tried(name, path):
    """What stands under an entry's description; its picture is written to path."""
    title, _, _, build, commands, picture = ENTRIES[name]
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
        text += "```\n"
        for command in commands:
            out = run(command, folder)
            printed += out
            text += "$ %s\n%s\n" % ("\n".join(broken(command, " \\")), shown(out))
        seconds = time.monotonic() - begin
        drawing = curve_picture(printed) if picture == "curve" else report_picture(folder, picture)
    with open(path, "w", encoding="ascii", errors="xmlcharrefreplace") as f:
        f.write(drawing)
    return text + "```\n\n![%s](gallery/%s.svg)\n\n%s%s, %s, %.0f s.\n" % (
        title, name, "The curve is drawn from the lines above. " if picture == "curve" else
        "From the page that `--report` writes, without its tooltips. ", machine(), time.strftime("%Y-%m-%d"), seconds)


def main():
    wanted = [a for a in sys.argv[1:] if a != "--list"] or list(ENTRIES)
    if "--list" in sys.argv:
        return print("\n".join(ENTRIES))
    for name in wanted:
        if name not in ENTRIES:
            sys.exit("gallery.py: unknown entry %s; choose %s" % (name, ", ".join(ENTRIES)))
    os.makedirs(PICTURES, exist_ok=True)
    sections = {}
    if os.path.exists(PAGE):
        with open(PAGE, encoding="ascii") as f:
            sections = {part.split(" -->", 1)[0]: "<!-- " + part.strip() + "\n" for part in f.read().split("\n<!-- ")[1:]}
    for name in wanted:
        print("gallery.py: " + name, file=sys.stderr, flush=True)
        sections[name] = entry(name)
        with open(PAGE, "w", encoding="ascii", errors="xmlcharrefreplace") as f:
            f.write("# Gallery\n\nEvery example with its command, what it printed and a picture. Made by `make gallery`, one entry by `make gallery ONLY=name`, which run "
                    "the\ncommands: long lines are broken, what is left out is said, paths are names. Each entry has its machine and its date; times, and\n"
                    "where workers race the order of lines, differ from run to run.\n\n" + "\n".join(sections[n] for n in ENTRIES if n in sections))
    size = sum(os.path.getsize(os.path.join(PICTURES, f)) for f in os.listdir(PICTURES))
    print("gallery.py: docs/gallery.md, pictures of %d KB" % (size / 1000), file=sys.stderr)


if __name__ == "__main__":
    main()
