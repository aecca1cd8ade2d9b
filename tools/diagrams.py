#!/usr/bin/env python3
"""Writes the diagrams of the documentation: step_diagram, epoch_change, hierarchical, parameter_server, streaming_diloco.

    tools/diagrams.py [FOLDER]     the .svg files into FOLDER [docs/gallery]

Colours are literal and text is plain, so that every SVG viewer draws them.
"""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INK, DIM, RULE = "#24292e", "#667079", "#dfe3e6"
FORWARD, BACKWARD, UPDATE, TRANSFER, WAIT = "#8cc9ee", "#2f7fb8", "#009e73", "#e69f00", "#f3d3c0"
RED, GREEN, BLUE, PURPLE = "#c62828", "#00695c", "#0b5394", "#6a3d9a"


class Drawing:
    def __init__(self, width, height, title):
        self.width, self.height = width, height
        self.parts = ['<text x="14" y="24" font-size="15" font-weight="bold">%s</text>' % title]

    def box(self, x, y, width, height, text="", fill="#fff", stroke="none", colour=INK, size=12, bold=False):
        self.parts.append('<rect x="%g" y="%g" width="%g" height="%g" fill="%s" stroke="%s" rx="2"/>' % (x, y, width, height, fill, stroke))
        lines = text.split("\n") if text else []
        for i, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4 + 15 * (i - (len(lines) - 1) / 2), line, "middle", colour, size, bold)

    def text(self, x, y, text, anchor="start", colour=INK, size=12, bold=False):
        self.parts.append('<text x="%g" y="%g" text-anchor="%s" fill="%s" font-size="%g"%s>%s</text>' % (
            x, y, anchor, colour, size, ' font-weight="bold"' if bold else "", text))

    def line(self, points, colour=DIM, width=1.5, dash="", arrow=False):
        self.parts.append('<path fill="none" stroke="%s" stroke-width="%g"%s d="M%s"/>' % (
            colour, width, ' stroke-dasharray="%s"' % dash if dash else "", "L".join("%g %g" % p for p in points)))
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            long = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            u, v = (x - x0) / long, (y - y0) / long
            self.parts.append('<path fill="%s" d="M%.1f %.1fL%.1f %.1fL%.1f %.1fZ"/>' % (
                colour, x, y, x - 9 * u - 4 * v, y - 9 * v + 4 * u, x - 9 * u + 4 * v, y - 9 * v - 4 * u))

    def arrow(self, x0, y0, x, y, colour=DIM, width=1.5, dash=""):
        self.line([(x0, y0), (x, y)], colour, width, dash, True)

    def axis(self, x, y, end, unit, ticks, name):
        """A time axis from x to end, with a tick each `unit` pixels."""
        self.line([(x, y), (end, y)], DIM, 1)
        for i, tick in enumerate(ticks):
            self.line([(x + i * unit, y), (x + i * unit, y + 5)], DIM, 1)
            self.text(x + i * unit, y + 18, tick, "middle", DIM)
        self.text(end, y + 34, name, "end", DIM)

    def svg(self):
        return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" fill="%s">\n'
                '<rect width="%d" height="%d" fill="#fff"/>\n%s\n</svg>\n' % (self.width, self.height, self.width, self.height, INK, self.width,
                                                                          self.height, "\n".join(self.parts)))


def step_diagram():
    d = Drawing(960, 372, "One step of dreamddp: layers 1 and 3 are averaged in this step of the period")
    x, ms = 130, 7.6  # origin, pixels of a millisecond
    at = lambda t: x + ms * t
    rows = {"program": 62, "comm": 152}
    d.text(116, 84, "your thread", "end", INK, 12, True)
    d.text(116, 171, "comm thread", "end", INK, 12, True)
    d.text(116, 226, "network link", "end", INK, 12, True)
    for t0, t1, text, fill in ((0, 6, "1", FORWARD), (6, 12, "2", FORWARD), (12, 18, "3", FORWARD), (18, 30, "3", BACKWARD), (30, 33, "u", UPDATE),
                               (33, 45, "2", BACKWARD), (45, 48, "u", UPDATE), (48, 60, "1", BACKWARD), (60, 63, "u", UPDATE)):
        d.box(at(t0), rows["program"], ms * (t1 - t0), 34, text, fill, "#fff", "#fff" if fill != FORWARD else INK, 13, True)
    for t0, t1, text, fill in ((74, 80, "1", FORWARD), (80, 86, "2", FORWARD), (86, 92, "3", FORWARD), (92, 104, "3", BACKWARD)):
        d.box(at(t0), rows["program"], ms * (t1 - t0), 34, text, fill, "#fff", "#fff" if fill != FORWARD else INK, 13, True)
    d.box(at(63), rows["program"], ms * 11, 34, "waits", WAIT)
    d.box(at(33.5), rows["comm"], ms * 22, 28, "all-reduce of layer 3", "#fdf1d7", TRANSFER)
    d.box(at(63.5), rows["comm"], ms * 10.5, 28, "layer 1", "#fdf1d7", TRANSFER)
    d.box(at(33.5), 212, ms * 22, 20, "frames", TRANSFER, "none", "#fff", 12, True)
    d.box(at(63.5), 212, ms * 10.5, 20, "frames", TRANSFER, "none", "#fff", 12, True)
    d.arrow(at(33), 97, at(33.5) + 4, 150, BLUE, 2)
    d.text(at(33) + 10, 118, "ddp_backward_end(3)", "start", BLUE)
    d.arrow(at(63), 97, at(63.5) + 4, 150, BLUE, 2)
    d.text(at(62) + 2, 140, "ddp_backward_end(1)", "end", BLUE)
    d.arrow(at(74), 150, at(74), 98, GREEN, 2)
    d.text(at(74) + 8, 124, "ddp_forward_begin(1) returns", "start", GREEN)
    d.line([(at(18), 50), (at(18), 62)], RULE)
    d.text(at(9), 54, "forward", "middle", DIM)
    d.text(at(40), 54, "backward, and the update of each layer (u)", "middle", DIM)
    d.text(at(83), 54, "forward of the next step", "middle", DIM)
    d.line([(at(33.5), 245), (at(55.5), 245)], GREEN, 3)
    d.text(at(44.5), 262, "overlapped: costs no step time", "middle", GREEN, 12, True)
    d.line([(at(63.5), 245), (at(74), 245)], RED, 3)
    d.text(at(69), 262, "exposed", "middle", RED, 12, True)
    d.axis(x, 286, at(105), 20 * ms, ["0", "20", "40", "60", "80", "100"], "time, ms")
    d.text(130, 350, "Layer 2 is averaged in another step of the period. A layer blocks only its own next forward pass.", "start", DIM)
    return d.svg()


def epoch_change():
    d = Drawing(960, 430, "Epoch change after the loss of rank 3: the survivors agree, then finish the interrupted operation")
    x = 130
    for r in range(4):
        y = 78 + 62 * r
        d.text(116, y + 18, "rank %d" % r, "end", INK, 13, True)
        d.line([(x, y + 13), (930 if r < 3 else 300, y + 13)], RULE, 2)
        d.box(x, y, 150, 26, "training, epoch 0", FORWARD)
        if r < 3:
            d.box(x + 150, y, 86, 26, "all-reduce A", "#fdf1d7", TRANSFER, INK, 11)
    d.box(x + 150, 264, 20, 26, "A", "#fdf1d7", TRANSFER)
    d.text(324, 282, "killed", "start", RED, 13, True)
    d.line([(300, 258), (314, 272)], RED, 3)
    d.line([(314, 258), (300, 272)], RED, 3)
    phases = ((366, 110, "1  search", "#e8eaf6"), (476, 90, "2  vote", "#e8eaf6"), (566, 92, "3  decision", "#d9ead3"), (658, 116, "4  recover A", "#fdf1d7"),
              (774, 156, "training, epoch 1", FORWARD))
    for x0, width, text, fill in phases:
        for r in range(3):
            d.box(x0, 78 + 62 * r, width, 26, text if r == 0 else "", fill, "#fff")
    for a, b in ((0, 1), (1, 2), (2, 0), (1, 0)):
        d.arrow(380 + 24 * a, 104 + 62 * a - (26 if b < a else 0), 404 + 24 * a, 78 + 62 * b + (26 if b < a else 0), PURPLE, 1.3)
    d.arrow(490, 140, 540, 106, PURPLE, 1.3)
    d.arrow(490, 202, 548, 106, PURPLE, 1.3)
    d.arrow(580, 104, 622, 138, GREEN, 1.6)
    d.arrow(588, 104, 636, 200, GREEN, 1.6)
    d.arrow(672, 166, 748, 200, TRANSFER, 2)
    d.arrow(672, 140, 748, 106, TRANSFER, 2)
    d.line([(366, 56), (366, 318)], RED, 1.5, "5 3")
    d.text(366, 52, "connection to rank 3 closes", "middle", RED)
    d.line([(774, 56), (774, 318)], GREEN, 1.5, "5 3")
    d.text(774, 52, "epoch 1: ranks 0, 1, 2", "middle", GREEN)
    notes = ("1  Each survivor stops all collectives and broadcasts the failed pairs and its completed operations.",
             "2  Each survivor votes for the same member set, which holds a quorum (more than half) of epoch 0.",
             "3  The lowest rank of the set decides when the votes of the whole set have arrived, and broadcasts the decision.",
             "4  If one survivor completed A, it forwards the result. Otherwise A restarts from the saved inputs of ranks 0 to 2.")
    for i, note in enumerate(notes):
        d.text(30, 348 + 20 * i, note)
    d.text(930, 320, "time, not to scale", "end", DIM)
    return d.svg()


def hierarchical():
    d = Drawing(960, 420, "Hierarchical all-reduce: two sites of two ranks, a layer in two segments (a, b)")
    names = ("1  reduce in the site", "2  average between sites", "3  gather in the site")
    for k, name in enumerate(names):
        d.text(180 + 310 * k, 58, name, "middle", INK, 13, True)
    sums = (("a0 b0", "a1 b1", "a2 b2", "a3 b3"), ("a0+a1", "b0+b1", "a2+a3", "b2+b3"), ("A", "B", "A", "B"))
    for k in range(3):
        for site in range(2):
            left = 50 + 310 * k
            top = 76 + 150 * site
            d.box(left, top, 260, 106, "", "#f6f8fa", "#c3c9ce")
            d.text(left + 8, top + 100, "site %d" % (site + 1), "start", DIM)
            for r in range(2):
                d.box(left + 22 + 128 * r, top + 14, 88, 56, "rank %d\n%s" % (2 * site + r, sums[k][2 * site + r]), "#fff", BACKWARD, INK, 13)
            y = top + 42
            if k == 0:
                d.arrow(left + 112, y - 8, left + 148, y - 8, GREEN, 2)
                d.arrow(left + 148, y + 10, left + 112, y + 10, GREEN, 2)
                d.text(left + 130, top + 88, "each sends one segment", "middle", GREEN)
            if k == 2:
                d.arrow(left + 112, y - 8, left + 148, y - 8, GREEN, 2)
                d.arrow(left + 148, y + 10, left + 112, y + 10, GREEN, 2)
                d.text(left + 130, top + 88, "both ranks have A and B", "middle", GREEN)
    for r in range(2):
        x = 50 + 310 + 66 + 128 * r
        d.line([(x, 148), (x, 238)], RED, 2.5)
        d.arrow(x, 180, x, 148, RED, 2.5)
        d.arrow(x, 210, x, 240, RED, 2.5)
        d.text(x + 8, 202, "slow link", "start", RED)
    d.text(50, 356, "Only step 2 crosses the slow links: each rank sends 2 (S - 1) / S x n / k values there (S sites of k ranks, n values in the layer).")
    d.text(50, 378, "Here that is n / 2 values. A flat all-reduce over all four ranks sends 1.5 n values per rank.")
    d.text(50, 400, "Green: fast links in a site. Red: links between sites. With --wire int8, only the red transfers are quantised.", "start", DIM)
    return d.svg()


def parameter_server():
    d = Drawing(960, 400, "Parameter server: a push carries gradients, a pull returns parameters")
    ms = 6.2
    for half, (name, note) in enumerate((("bsp", "one update when all workers have pushed: bit-identical to ssgd"),
                                         ("asp", "an update for each push: a straggler delays no other worker"))):
        x = 66 + 470 * half
        d.text(x, 56, name, "start", INK, 14, True)
        d.text(x + 38, 56, note, "start", DIM, 11.5)
        server = 236
        d.text(x - 10, server + 17, "server", "end", INK, 12, True)
        d.line([(x, server + 13), (x + 400, server + 13)], RULE, 2)
        for w, compute in enumerate((12, 14, 30)):
            y = 76 + 48 * w
            d.text(x - 10, y + 17, "worker %d" % w, "end", INK, 11)
            t = 0
            if half == 0:
                d.box(x, y, ms * compute, 26, "computes", BACKWARD, "none", "#fff", 11 if w == 2 else 10)
                d.arrow(x + ms * compute, y + 26, x + ms * (compute + 3), server, TRANSFER, 2)
                d.box(x + ms * (compute + 3), y, ms * (39 - compute - 3), 26, "waits" if w < 2 else "", WAIT, "none", INK, 11)
                d.arrow(x + ms * 36, server, x + ms * 39, y + 26, GREEN, 2)
                d.box(x + ms * 39, y, ms * min(compute, 24), 26, "computes" if w < 2 else "computes", BACKWARD, "none", "#fff", 10)
            else:
                while t + compute + 6 < 66:
                    d.box(x + ms * t, y, ms * compute, 26, "computes", BACKWARD, "none", "#fff", 10)
                    d.arrow(x + ms * (t + compute), y + 26, x + ms * (t + compute + 2.4), server, TRANSFER, 2)
                    d.arrow(x + ms * (t + compute + 4), server, x + ms * (t + compute + 6), y + 26, GREEN, 2)
                    d.box(x + ms * (t + compute + 2.2), server, ms * 2, 26, "", UPDATE)
                    t += compute + 6
        if half == 0:
            d.box(x + ms * 33, server, ms * 3, 26, "u", UPDATE, "none", "#fff", 12, True)
        d.axis(x, 290, x + 406, 10 * ms, ["0", "10", "20", "30", "40", "50", "60"], "time, ms")
    d.box(66, 352, 14, 12, "", TRANSFER)
    d.text(86, 362, "push of gradients")
    d.box(220, 352, 14, 12, "", GREEN)
    d.text(240, 362, "pull of parameters")
    d.box(380, 352, 14, 12, "", UPDATE)
    d.text(400, 362, "update on the server")
    d.text(66, 388, "ssp limits how far a worker may be ahead of the slowest one. r2sp takes the workers in turn. osp lets the unimportant layers arrive one step late.",
           "start", DIM, 11.5)
    return d.svg()


def streaming_diloco():
    d = Drawing(960, 400, "Streaming DiLoCo: each layer's delta is sent in its own step and applied two steps later")
    x, step = 130, 66
    d.text(116, 84, "worker", "end", INK, 12, True)
    for s in range(12):
        d.box(x + step * s, 66, step - 2, 30, "step %d" % s, FORWARD if s % 6 else "#5fa8d8", "none", INK, 11)
    d.text(x + 3 * step, 58, "period of H = 6 steps", "middle", DIM)
    d.text(x + 9 * step, 58, "next period", "middle", DIM)
    d.line([(x, 50), (x, 300)], RULE, 1.5, "4 3")
    d.line([(x + 6 * step, 50), (x + 6 * step, 300)], RULE, 1.5, "4 3")
    for layer, first in ((1, 0), (2, 2), (3, 4)):
        y = 124 + 58 * (layer - 1)
        d.text(116, y + 18, "layer %d" % layer, "end", INK, 12, True)
        for period in range(2):
            send = first + 6 * period + 1
            apply = send + 2
            if apply > 12:
                continue
            d.box(x + step * send, y, step * 2 - 2, 26, "all-reduce of delta", TRANSFER, "none", "#fff", 11, True)
            d.arrow(x + step * send + 7, 98, x + step * send + 7, y, BLUE, 2)
            d.arrow(x + step * apply - 9, y, x + step * apply - 9, 98, GREEN, 2)
    d.box(130, 306, 14, 12, "", BLUE)
    d.text(150, 316, "send: the delta of the layer (anchor - parameters) since its last send")
    d.box(130, 326, 14, 12, "", GREEN)
    d.text(150, 336, "apply: outer optimizer step on the anchor, then parameters = a x parameters + (1 - a) x anchor (--mixture a)")
    d.box(130, 346, 14, 12, "", TRANSFER)
    d.text(150, 356, "transfer overlaps with two steps of computing (--landing 2), so workers do not wait")
    d.text(130, 388, "The link carries one layer at a time, and each transfer has two steps to complete.", "start", DIM)
    d.text(940, 296, "time in steps", "end", DIM)
    return d.svg()


DIAGRAMS = (step_diagram, epoch_change, hierarchical, parameter_server, streaming_diloco)


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] and sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "docs", "gallery")
    for draw in DIAGRAMS:
        with open(os.path.join(folder, draw.__name__ + ".svg"), "w", encoding="ascii") as f:
            f.write(draw())


if __name__ == "__main__":
    main()
