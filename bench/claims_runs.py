#!/usr/bin/env python3
"""Runs for claims of docs/results/claims/ that no other script makes. Each prints one JSON object.

    bench/claims_runs.py table1 gpt2 8          DreamDDP's Table 1: one column, five strategies
    bench/claims_runs.py deft resnet101 ...     DeFT and three baselines, with the totals of Table I or with VGG-19's Table II
    bench/claims_runs.py osp resnet18 ...       servers: each strategy over the same link
    bench/claims_runs.py solvers                DreamDDP's search and all partitions: 4 profiles x lengths x bandwidths
    bench/claims_runs.py dtfm 5 ...             a GPT over 16 devices of one of DT-FM's networks
    bench/claims_runs.py repeat N COMMAND ...   the same trainer N times

Workers sleep for the layer times and bytes travel over emulated links, as in bench/overlap.py. Parameters and rates are divided by
one factor, so that all workers together send at most 16 MB/s. With --quick, before NAME, a run has one strategy, few steps and short
times, as a smoke test. With --simulated (table1, deft) nothing is divided: build/simulate uses the
paper's times, bytes and number of workers on its virtual clock. NAME --help has the options.
"""
import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile

import overlap
import placement
import published

ROOT = os.path.dirname(overlap.HERE)
PLAN = os.path.join(ROOT, "build", "plan")
SIMULATE = os.path.join(ROOT, "build", "simulate")


LAN = "0.05ms"  # delay of the papers' clusters, which they do not print


def tell(text):
    print("claims_runs.py: " + text, file=sys.stderr, flush=True)


def profile_rows(name):
    path = os.path.join(published.folder("profiles"), name + ".csv")
    if not os.path.exists(path):
        sys.exit("claims_runs.py: no profile %s; %s" % (name, published.HINT))
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def write_profile(path, rows):
    """Writes a profile. rows: (name, params, forward_s, backward_s, comm_s), from the input side."""
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["layer", "params", "forward_s", "backward_s", "comm_s"])
        out.writerows(rows)
    return path


def plan(*options):
    done = subprocess.run([PLAN, *map(str, options)], capture_output=True, text=True)
    if done.returncode:
        sys.exit("claims_runs.py: " + done.stderr.strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def scaled_net(bytes_per_s, workers, delay, simulated=False):
    """Returns (--net, factor): a rate that this machine can emulate for that number of workers, and its divisor."""
    if simulated:
        return f"{bytes_per_s * 8 / 1000:.3f}kbit,{delay}", 1
    scale = max(1, round(bytes_per_s * workers / overlap.MACHINE_BYTES_PER_S))
    return f"{bytes_per_s / scale * 8 / 1000:.3f}kbit,{delay}", scale


def train(a, options, workers):
    """The result of a run on this machine, or of build/simulate."""
    return overlap.run(options, workers, False, SIMULATE if a.simulated else overlap.TRAIN)


# ---- DreamDDP, Table 1 ----

TABLE1 = {"resnet18": ("ResNet-18", "a6000_resnet18-cifar10"), "resnet50": ("ResNet-50", "a6000_resnet50-cifar100"),
          "gpt2": ("GPT-2", "a6000_gpt2"), "llama2": ("Llama-2", "a6000_llama2-175m")}


def table1(a):
    """The computing T and communication C of a column follow from two of its five times: S-SGD = T + C and FLSGD = T + C/5
    (Eq. 3 and 4, H = 5). T and C are divided over the layers as in the authors' profile. The runs then measure the other
    three times. Both halves of the table run with 8 workers, and times are the paper's divided by SHRINK. Simulated runs
    have the column's workers and times."""
    if a.simulated:
        a.shrink = 1
    name, profile = TABLE1[a.model]
    paper = dict(zip(("ssgd", "ascwfbp", "localsgd", "enp", "dreamddp"), overlap.PAPER[name, a.workers]))
    comm = (paper["ssgd"] - paper["localsgd"]) * 5 / 4
    compute = paper["ssgd"] - comm
    rows = profile_rows(profile)
    params, backward = (sum(float(r[k]) for r in rows) for k in ("params", "backward_s"))
    faster = compute / 1.5 / backward / a.shrink
    workers = a.workers if a.simulated else 8
    net, scale = scaled_net(2 * (workers - 1) / workers * 4 * params / (comm / a.shrink), workers, LAN if a.simulated else "0.2ms", a.simulated)
    out = {"model": name, "workers": a.workers, "ct": comm / compute, "net": net, "scale": scale}
    with tempfile.TemporaryDirectory() as folder:
        path = write_profile(os.path.join(folder, "p.csv"), [
            (r["layer"], r["params"], float(r["backward_s"]) * faster / 2, float(r["backward_s"]) * faster, 0) for r in rows])
        ways = (("ssgd", ""), ("ascwfbp", ""), ("localsgd", ""), ("enp", "--paper"), ("dreamddp", "--paper"))
        for strategy, more in ways[:1] if a.quick else ways:
            each = strategy in ("ssgd", "ascwfbp")
            profile_steps, skip, count = (3, 1, 2) if each else (5, 5, 10)
            r = train(a, ["--emulate-compute", path, "--emulate-scale", str(scale), "--net", net, "--period", "5", "--strategy", strategy,
                          *more.split(), "--steps", str(profile_steps + skip + count), "--profile-steps", str(profile_steps)], workers)
            out[strategy] = sum(r["steps_ms"][-count:]) / count
            out[strategy + "_said"] = r["predicted_step_ms"]
            tell(f"{name} {a.workers} {strategy}: {out[strategy]:.1f} ms, predicted {r['predicted_step_ms']:.1f}")
        out["alone"] = 1e3 * compute / a.shrink
    return out


def simulated_option(p):
    p.add_argument("--simulated", action="store_true", help="simulate the run, without dividing anything")


def table1_options(p):
    simulated_option(p)
    p.add_argument("model", choices=TABLE1)
    p.add_argument("workers", type=int, choices=(8, 32), help="workers of the column")
    p.add_argument("--shrink", type=float, default=6, help="divisor of the paper's times [6]")


# ---- DeFT ----

# Table I: parameters, forward, backward and communication of an iteration; number of equal buckets
TOTALS = {"resnet101": (8, 44654504, 0.059, 0.118, 0.242), "gpt2": (13, 81894144, 0.169, 0.381, 0.5464)}


def deft(a):
    """wfbp is PyTorch DDP's schedule. VGG-19 has the buckets of Table II; the others have equal buckets with the totals of Table I."""
    if a.model == "vgg19":
        with open(os.path.join(ROOT, "tests", "data", "vgg19_table2.csv"), newline="") as f:
            rows = [(r["layer"], int(r["params"]), float(r["forward_s"]), float(r["backward_s"]), float(r["comm_s"])) for r in csv.DictReader(f)]
    else:
        n, params, forward, backward, comm = TOTALS[a.model]
        rows = [("bucket%d" % k, params // n, forward / n, backward / n, comm / n) for k in range(n)]
    rows = [(r[0], r[1], r[2] / a.shrink, r[3] / a.shrink, r[4] / a.shrink) for r in rows]
    params, comm = sum(r[1] for r in rows), sum(r[4] for r in rows)
    of_ring = 2 * (a.workers - 1) / a.workers
    rate = (15 / 8 if a.ring else of_ring) * 4 * params / comm * a.faster
    delay = LAN if a.simulated else "0.5ms"
    net, scale = scaled_net(rate, a.workers, delay, a.simulated)
    slow = f"{float(net.split('kbit')[0]) / 1.65:.3f}kbit,{delay}"
    part = int(4 * a.partition / scale)
    out = {"model": a.model, "workers": a.workers, "net": net, "scale": scale,
           "alone": 1e3 * sum(r[2] + r[3] for r in rows), "comm": 1e3 * 4 * params * of_ring / rate}
    with tempfile.TemporaryDirectory() as folder:
        path = write_profile(os.path.join(folder, "p.csv"), rows)
        for name in a.strategies.split(",")[:1 if a.quick else None]:
            strategy, _, more = name.partition("+")
            options = ["--strategy", strategy]
            if strategy in ("bytescheduler", "usbyte", "deft"):
                options += ["--partition-bytes", str(part)]
            if strategy == "wfbp" or more == "buckets":
                options += ["--bucket-bytes", str(int(26214400 / 6.5e6 * a.partition / scale))]
            if strategy == "deft" and "one" not in more or "two" in more:
                options += ["--net2", slow]
            if "all" in more:
                options += ["--update-frequency", "1"]
            if "half" in more:
                options += ["--update-frequency", "0.5"]
            skip, count = (14, 20) if strategy == "deft" else (6, 1) if a.quick else (6, 10)
            r = train(a, ["--emulate-compute", path, "--emulate-scale", str(scale), "--net", net, *options, "--steps", str(skip + count)], a.workers)
            key = re.sub(r"\W", "_", name)
            out[key] = sum(r["steps_ms"][-count:]) / count
            out[key + "_frequency"] = r.get("update_frequency", 1)
            out[key + "_hidden"] = r["hidden_pct"]
            tell(f"{a.model} {name}: {out[key]:.1f} ms, predicted {r['predicted_step_ms']:.1f}, updates {out[key + '_frequency']:.2f}")
    return out


def deft_options(p):
    simulated_option(p)
    p.add_argument("model", choices=("vgg19", *TOTALS))
    p.add_argument("--strategies", default="wfbp,bytescheduler,usbyte,deft", help="deft+one: one link, +all: an update in every step, +half: in "
    "every second, wfbp+two: two links")
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--faster", type=float, default=1, help="factor of the paper's rate")
    p.add_argument("--ring", action="store_true", help="scale the rate from 16 workers, which send more bytes, to the number of workers")
    p.add_argument("--partition", type=float, default=6.5e6, help="parameters of a part [6.5e6]")
    p.add_argument("--shrink", type=float, default=1, help="divisor of the tables' times [1]")


# ---- OSP ----

def osp(a):
    """A worker computes for T_c. The link of the server takes X = W M / b for all pushes. T_c / X is --ratio."""
    rows = profile_rows(TABLE1[a.model][1])
    params, backward = (sum(float(r[k]) for r in rows) for k in ("params", "backward_s"))
    compute = a.compute or 1.5 * backward
    rate = a.per * 4 * params * a.ratio / compute
    net, scale = scaled_net(rate, a.workers, "0.2ms")
    out = {"model": a.model, "workers": a.workers, "net": net, "scale": scale, "alone": 1e3 * compute}
    with tempfile.TemporaryDirectory() as folder:
        path = write_profile(os.path.join(folder, "p.csv"), [
            (r["layer"], r["params"], *(float(r["backward_s"]) * k * compute / 1.5 / backward for k in (0.5, 1)), 0) for r in rows])
        more = []
        if a.script:
            more = ["--net-script", os.path.join(folder, "script")]
            with open(more[1], "w") as f:
                f.write(a.script.replace("/", "\n").replace("RATE", net.split(",")[0]) + "\n")
        for name in a.strategies.split(",")[:1 if a.quick else None]:
            strategy, _, defer = name.partition("+")
            servers = a.servers
            if "@" in defer:
                defer, servers = defer.split("@")
            r = overlap.run(["--emulate-compute", path, "--emulate-scale", str(scale), "--net", net, "--strategy", strategy, "--servers",
                             servers, *(["--defer", defer] if defer else []), *more,
                             "--steps", str(a.steps)], a.workers, False)
            key = re.sub(r"\W", "_", name)
            last = r["steps_ms"][-(a.steps - 4):]
            out[key] = sum(last) / len(last)
            out[key + "_late"] = r.get("deferred_pct", 0)
            tell(f"{a.model} {name}: {out[key]:.1f} ms, predicted {r['predicted_step_ms']:.1f}, late {out[key + '_late']:.0f} %")
    return out


def osp_options(p):
    p.add_argument("model", choices=TABLE1)
    p.add_argument("--strategies", default="bsp,asp,r2sp,osp+0.4", help="osp+F: F of the model may be deferred; +F@N: N servers")
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--per", type=float, default=8, help="number of workers for X, if not --workers [8]")
    p.add_argument("--servers", default="1")
    p.add_argument("--ratio", type=float, default=0.8, help="T_c / X")
    p.add_argument("--compute", type=float, help="T_c in seconds [the profile's]")
    p.add_argument("--script", help="lines of a --net-script, separated by /; RATE is the rate of the link")
    p.add_argument("--steps", type=int, default=14)


# ---- DreamDDP's search ----

def solvers(a):
    """The last LAYERS rows of each profile, comm_s divided by FACTOR, H = 5: DFS and all contiguous partitions."""
    out, ratios = {"instances": 0, "equal": 0, "worst": 1.0}, []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a6000_gpt2", "a6000_llama2-175m", "a6000_resnet18-cifar10", "h100_gpt2"):
            rows = profile_rows(name)
            for layers in (30,) if a.quick else (5, 10, 15, 20, 25, 30):
                for factor in (1,) if a.quick else (0.5, 1, 2, 4, 8):
                    path = write_profile(os.path.join(folder, "p.csv"), [
                        (r["layer"], r["params"], 0, r["backward_s"], float(r["comm_s"]) / factor) for r in rows[-layers:]])
                    dfs, brute = (plan("partial", "--profile", path, "--period", 5, "--cost", "timeline", "--solver", s)[0] for s in ("dfs", "brute"))
                    over = dfs["objective_s"] / brute["objective_s"]
                    out["instances"] += 1
                    out["equal"] += over <= 1 + 1e-9
                    out["worst"] = max(out["worst"], over)
                    if layers == 30:
                        ratios.append((brute["solve_ms"] / dfs["solve_ms"], dfs["solve_ms"], brute["solve_ms"]))
    ratios.sort()
    out["faster"], out["dfs_ms"], out["brute_ms"] = ratios[len(ratios) // 2]
    return out


# ---- DT-FM ----

def dtfm(a):
    """Layers of a GPT3-1.3B (2048 wide, 24 are 1.3 billion parameters) over 16 devices as 4 pipelines of 4 stages, or, for
    `data`, 16 replicas. Computing: 6 FLOPs for each parameter and token of the batch, at an assumed 45 TFLOPS per device. A
    quarter of the paper's 64 devices compute a quarter of its batch. All times and all bytes are then divided, so that a
    step of the best placement takes about --step seconds. `ours` is the best placement found in a second. `random` is the
    first shuffle (no scheduler). `data` is a replica on every device, averaged during backward, with 1.5 times the bytes:
    ZeRO-S3 sends all parameters three times, an all-reduce sends them twice."""
    stages = pipelines = 4
    net = placement.network(a.case, "", True)
    layer_params = 12 * 2048 ** 2
    tokens = a.batch * 2048 / 4 / pipelines                    # of a pipeline: a quarter of the devices, a quarter of the batch
    compute = 6 * layer_params * a.layers / stages * tokens / 45e12  # seconds of a stage in an iteration
    stage_bytes = 2 * layer_params * a.layers / stages         # float16 gradients
    boundary = 2 * 2048 * tokens                               # float16 activations
    for key, size in (("c_dp_bytes", stage_bytes), ("c_pp_bytes", boundary)):
        net[key] = size
    # placement.network divided rates by the case's own bytes: undo
    with open(os.path.join(published.folder("networks"), "case%d.json" % a.case)) as f:
        undo = placement.DP_BYTES / json.load(f)["c_dp_bytes"]
    net["bandwidth_gbps"] = [[x / undo for x in row] for row in net["bandwidth_gbps"]]
    out = {"case": a.case, "layers": a.layers, "batch": a.batch, "compute_s": compute}
    with tempfile.TemporaryDirectory() as folder:
        best = placement.plan(folder, net, "anneal")[0]["cost_s"]
        out["cost_s"] = best
        divide = (best + compute) / a.step                      # seconds
        shrink = max(1.0, stage_bytes * stages * 16 / 40e6)     # bytes: the parameters of all devices fit into memory
        small = dict(net, c_dp_bytes=stage_bytes / shrink, c_pp_bytes=boundary / shrink,
                     delay_ms=[[x / divide for x in row] for row in net["delay_ms"]],
                     bandwidth_gbps=[[min(x * divide / shrink, 50) for x in row] for row in net["bandwidth_gbps"]])
        per_layer = a.layers // stages
        micro = a.micro
        path = write_profile(os.path.join(folder, "p.csv"), [
            ("h%d" % i, int(layer_params / 2 / shrink), *(compute / per_layer / divide / micro * k for k in (1 / 3, 2 / 3)), 0)
            for i in range(a.layers)])                         # float32: half of the values have the same bytes
        for way in a.ways.split(",")[:1 if a.quick else None]:
            options = ["--emulate-compute", path, "--net", os.path.join(folder, "net.json"), "--transport", "threads", "--strategy", "ssgd",
                       "--deterministic", "--steps", str(a.steps)]
            if way == "data":
                got = None
                with open(os.path.join(folder, "net.json"), "w") as f:
                    json.dump(small, f)
                # a replica computes 1/16 of the batch through all layers, which takes as long as a stage's part
                whole = write_profile(os.path.join(folder, "w.csv"), [
                    ("h%d" % i, int(1.5 * layer_params / 2 / shrink), *(compute / a.layers / divide * k for k in (1 / 3, 2 / 3)),
                    0) for i in range(a.layers)])
                options[1], options[7] = whole, "wfbp"
            else:
                got, file = placement.plan(folder, small, {"ours": "anneal", "random": "shuffle"}.get(way, way))
                options += ["--stages", str(stages), "--placement", file, "--pipeline", "gpipe", "--microbatches", str(micro),
                            "--emulate-bytes", str(int(boundary / shrink / micro))]
            r = overlap.run(options, 16, False)
            steps = sorted(r["steps_ms"][-(a.steps - 2):])
            out[way] = steps[len(steps) // 2] / 1e3 * divide
            out[way + "_cost"] = got["cost_s"] * divide if got else None
            tell(f"case {a.case}, {a.layers} layers, batch {a.batch}, {way}: {out[way]:.2f} s of the paper's time, measured over {divide:.3g}")
    out["flops"] = 6 * layer_params * a.layers * a.batch * 2048 / 4
    return out


def dtfm_options(p):
    p.add_argument("case", type=int, choices=range(1, 6))
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--batch", type=int, default=1024, help="sequences for the paper's 64 devices [1024]")
    p.add_argument("--ways", default="ours,random,data")
    p.add_argument("--micro", type=int, default=8, help="micro-batches [8]")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--step", type=float, default=1.0)


def repeat(a):
    """Returns the results of all runs, and their step_ms separately."""
    rows = []
    for _ in range(1 if a.quick else a.n):
        done = subprocess.run(a.command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            sys.exit("claims_runs.py: " + done.stderr.strip())
        rows.append(json.loads(done.stdout.splitlines()[-1])["step_ms"])
        tell("%.1f ms" % rows[-1])
    return {"step_ms": rows, "mean": sum(rows) / len(rows), "most": max(abs(x / (sum(rows) / len(rows)) - 1) for x in rows)}


def repeat_options(p):
    p.add_argument("n", type=int)
    p.add_argument("command", nargs=argparse.REMAINDER)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one strategy, few steps, short times: a smoke test")
    ways = parser.add_subparsers(dest="what", required=True, metavar="NAME")
    for run, options in ((table1, table1_options), (deft, deft_options), (osp, osp_options), (solvers, lambda p: None),
                         (dtfm, dtfm_options), (repeat, repeat_options)):
        p = ways.add_parser(run.__name__, description=run.__doc__)
        options(p)
        p.set_defaults(run=run)
    args = parser.parse_args()
    if args.quick:
        for name, value in (("shrink", 60), ("compute", 0.005), ("step", 0.05)):
            if hasattr(args, name):
                setattr(args, name, value)
    if not getattr(args, "simulated", False):
        overlap.keep_cores_awake()
    print(json.dumps(args.run(args)))


if __name__ == "__main__":
    main()
