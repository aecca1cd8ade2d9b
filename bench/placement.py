#!/usr/bin/env python3
"""DT-FM's five networks scaled down: iterations of a real pipeline compared with Eq. 1 of the placement.

    bench/placement.py [--quick] [--case N] [--per-pair] [--json FILE]

Each case has 16 of its devices (TAKE), as 4 pipelines of 4 stages. All bytes are divided by one factor; delays and transfer times are
divided by another, so that the best placement takes about 1.2 s. The same network file goes to `build/plan place` and to `--net`. The model
is an MLP of equal layers, trained by build/train_image --placement --cut over threads; its computing is short compared with the network.
The figure is the median of the steps after the first two. random is the best of 5,000 shuffles, shuffle the first of them: no scheduler.

Eq. 1 = Eq. 2 (averaging) + Eq. 4 (hops, one micro-batch). It assumes barriers: no pipeline continues before the slowest one has made the
same hop, and averaging begins after the last hop. A run has no such barriers. `played` is the time of the run's own order on the same links:
pipelines are independent, a stage averages when all of its replicas are done (in a run the first ones start earlier), and the forward pass
of the next step overlaps with the rest. --per-pair: without "one_at_a_time" a device sends to all peers at once, and the sum of Eq. 2 does
not hold.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

import published

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TAKE = {1: [4] * 4, 2: [2] * 4 + [0] * 4 + [8], 3: [8] * 2, 4: [4] * 4, 5: [2] * 8}  # devices of each group
SOLVERS = ("shuffle", "random", "kl", "genetic-code", "anneal")
PIPELINES = STAGES = 4
WIDTH, LAYERS, BATCH = 128, 8, 212
DP_BYTES = 4 * (2 * (WIDTH * WIDTH + WIDTH) + 10 * WIDTH + 10)  # of the last stage, which has the head
PP_BYTES = 4 * WIDTH * BATCH
BEST_S, STEPS, SKIP = 1.2, 8, 2


def network(case, variant, one_at_a_time):
    """The 16 devices of a case, with the bytes of the MLP. Rates are divided by the same factor, so the case's seconds stay."""
    with open(os.path.join(published.folder("networks"), "case%d.json" % case)) as f:
        net = json.load(f)
    net.update(net.get(variant, {}))
    own = [g for g, n in enumerate(TAKE[case]) for _ in range(n)]
    scale = DP_BYTES / net["c_dp_bytes"]
    return {"N": len(own), "D_dp": PIPELINES, "D_pp": STAGES, "c_pp_bytes": PP_BYTES, "c_dp_bytes": DP_BYTES,
            "one_at_a_time": one_at_a_time,
            "delay_ms": [[net["delay_ms"][a][b] for b in own] for a in own],
            "bandwidth_gbps": [[net["bandwidth_gbps"][a][b] * scale for b in own] for a in own]}


def faster(net, factor):
    return dict(net, delay_ms=[[x / factor for x in row] for row in net["delay_ms"]],
                bandwidth_gbps=[[x * factor for x in row] for row in net["bandwidth_gbps"]])


def plan(folder, net, solver):
    """Returns the placement and its file."""
    path, out = os.path.join(folder, "net.json"), os.path.join(folder, solver + ".json")
    with open(path, "w") as f:
        json.dump(net, f)
    limit = {"anneal": ["--seconds", "1"], "shuffle": ["--candidates", "1"]}.get(solver, [])
    subprocess.run([os.path.join(ROOT, "build", "plan"), "place", "--network", path, "--solver", solver.replace("shuffle", "random"), *limit, "--json", out],
                   check=True, stdout=subprocess.DEVNULL)
    with open(out) as f:
        return json.loads(f.readlines()[-1]), out


def played(net, assign):
    """Seconds of a step of gpipe with one micro-batch over these links: the difference of two steps in the steady state."""
    def one_way(a, b, size):
        return net["delay_ms"][a][b] / 1e3 + size * 8 / (net["bandwidth_gbps"][a][b] * 1e9)

    def averaging(j):
        column = [row[j] for row in assign]
        sums = [[one_way(a, b, net["c_dp_bytes"] / PIPELINES) - net["delay_ms"][a][b] / 1e3 for b in column if b != a]
                for a in column]
        late = max(net["delay_ms"][a][b] for a in column for b in column if a != b) / 1e3
        return 2 * max(map(sum if net["one_at_a_time"] else max, sums)) + 2 * late

    whole, ends = [0.0] * STAGES, []
    for _ in range(8):
        ready = [0.0] * STAGES
        for row in assign:
            t = whole[0]
            for j in range(1, STAGES):
                t = max(whole[j], t + one_way(row[j - 1], row[j], net["c_pp_bytes"]))
            for j in reversed(range(STAGES)):
                ready[j] = max(ready[j], t)
                if j:
                    t += one_way(row[j], row[j - 1], net["c_pp_bytes"])
        whole = [ready[j] + averaging(j) for j in range(STAGES)]
        ends.append(whole[0])
    return ends[-1] - ends[-2]


def images(folder):
    """Writes files in the format of MNIST, with WIDTH pixels."""
    count = 1024
    with open(os.path.join(folder, "train-images-idx3-ubyte"), "wb") as f:
        f.write(struct.pack(">IIII", 0x803, count, 8, WIDTH // 8) + bytes(i * 7 % 251 for i in range(count * WIDTH)))
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as f:
        f.write(struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count)))


def cut(folder):
    """Writes the cut: two linear layers with their relus per stage; the last stage also has the head and the loss."""
    operators, path = 2 * LAYERS + 2, os.path.join(folder, "cut.json")
    with open(path, "w") as f:
        json.dump({"pipeline_s": 0, "operators": operators, "segments": [
            {"device": j, "first": 4 * j, "end": 4 * j + 4 if j + 1 < STAGES else operators} for j in range(STAGES)]}, f)
    return path


def measure(folder, placement, cut_file, micro_batches, steps):
    log = os.path.join(folder, "log.jsonl")
    subprocess.run([os.path.join(ROOT, "build", "train_image"), "--model", "mlp", "--hidden", ",".join([str(WIDTH)] * LAYERS),
                    "--data", folder, "--batch", str(BATCH // micro_batches), "--microbatches", str(micro_batches),
                    "--workers", str(PIPELINES * STAGES), "--transport", "threads", "--strategy", "ssgd", "--deterministic",
                    "--pipeline", "gpipe", "--placement", placement, "--cut", cut_file, "--steps", str(steps), "--quiet",
                    "--net", os.path.join(folder, "net.json"), "--json", log], check=True, stdout=subprocess.DEVNULL)
    with open(log) as f:
        ms = [r["step_ms"] for r in map(json.loads, f) if r["event"] == "step"]
    return statistics.median(ms[SKIP:]) / 1e3


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="case 5 alone, fewer steps")
    p.add_argument("--case", type=int, help="1 to 5")
    p.add_argument("--variant", default="", help="as_in_code")
    p.add_argument("--per-pair", action="store_true")
    p.add_argument("--json")
    a = p.parse_args()
    if not os.path.exists(os.path.join(published.folder("networks"), "case1.json")):
        print("placement.py: no networks; " + published.HINT)
        return 77
    rows, wrong = [], 0
    print("|case|placement|planned, Eq. 1|played|measured|over Eq. 1|over played|4 micro-batches|\n|---|---|---|---|---|---|---|---|")
    for case in [a.case] if a.case else [5] if a.quick else range(1, 6):
        with tempfile.TemporaryDirectory() as folder:
            images(folder)
            net = network(case, a.variant, not a.per_pair)
            factor = plan(folder, net, "anneal")[0]["cost_s"] / BEST_S
            net, cost, took = faster(net, factor), {}, {}
            for s in SOLVERS:
                got, path = plan(folder, net, s)
                own = played(net, got["assign"])
                one = measure(folder, path, cut(folder), 1, 5 if a.quick else STEPS)
                four = measure(folder, path, cut(folder), 4, 5 if a.quick else STEPS)
                cost[s], took[s] = got["cost_s"], one
                print("|%d|%s|%.3f|%.3f|%.3f|%.3f|%.3f|%.3f|" % (case, s, got["cost_s"], own, one, one / got["cost_s"], one / own, four),
                      flush=True)
                rows.append({"case": case, "solver": s, "planned_s": got["cost_s"], "datap_s": got["datap_s"], "played_s": own,
                             "measured_s": one, "measured_4_s": four, "factor": factor, "one_at_a_time": not a.per_pair})
            order = all(took[x] >= 0.98 * took[y] for x in SOLVERS for y in SOLVERS if cost[x] > 1.02 * cost[y])
            wrong += not order
            for s in SOLVERS[:2]:
                gain = [x[s] / x["anneal"] for x in (cost, took)]
                wrong += abs(gain[1] / gain[0] - 1) > 0.1
                print("case %d: %s over anneal is %.2f as planned, %.2f measured (%+.0f %%)" % (
                    case, s, *gain, 100 * (gain[1] / gain[0] - 1)))
            print("case %d: the order is %s" % (case, "that planned" if order else "another"), flush=True)
    if a.json:
        with open(a.json, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
