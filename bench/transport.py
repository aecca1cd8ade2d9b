#!/usr/bin/env python3
"""All-reduce: every transport of this library, gloo and Open MPI's MPI_Allreduce, in one run.

    bench/transport.py [--quick] [--only loopback|htb|far|emulated|overlap] [--rounds 3] [--ranks 2,4]

loopback  4 KiB to 64 MiB between processes (or threads) of this machine, without emulated links
htb       four network namespaces behind Linux's token buckets, 100 Mbit/s and 1 Gbit/s, under each congestion control that this machine
          allows, the same for all (needs root)
far       two and four namespaces with a delay of 10 or 50 ms (bench/far.py; needs root)
emulated  the library's emulated link at the rate that TCP/IP leaves for the program, and htb
overlap   16 MiB at 100 Mbit/s with 4 s of computing: the exposed time

In each cell the programs alternate. A figure is the median of the rounds; a ratio is the median of the rounds' ratios to gloo. Exit code
77: neither gloo nor MPI is installed.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "build")
OURS = os.path.join(BUILD, "bench_allreduce")
TRAIN = os.path.join(BUILD, "train_gpt")
RIVAL = os.path.join(BUILD, "mpi_allreduce")
ENV = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
           OMPI_MCA_rmaps_base_oversubscribe="1")
SIZES = [(4096, 300), (65536, 100), (1 << 20, 30), (16 << 20, 10), (64 << 20, 5)]
PAYLOAD = 1448 / 1514 # the program's share of a full Ethernet frame, which htb counts
SPACE = "ddpbench"
PORT = 29640


def name_of(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True).returncode == 0:
            return python
    return None


def last_object(command, text):
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        sys.exit(f"transport.py: {' '.join(map(str, command))} printed no result")


def measure(commands, env=None):
    """Returns the result of rank 0, or of all ranks if one command starts them, with the slowest median."""
    jobs = [subprocess.Popen([str(w) for w in c], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=dict(ENV, **(env or {}))) for c in commands]
    outputs = [j.communicate() for j in jobs]
    for job, (_, err) in zip(jobs, outputs):
        if job.returncode:
            sys.exit(f"transport.py: {' '.join(job.args)}: {err.strip()[-300:]}")
    results = ["\n".join(line for line in out.splitlines() if line.startswith("{")) for out, _ in outputs]  # gloo prints more lines
    seen = [last_object(c, out) for c, out in zip(commands, results) if out]
    if not seen:
        sys.exit(f"transport.py: {' '.join(map(str, commands[0]))} printed nothing")
    return max(seen, key=lambda r: r.get("median_ms", 0))


def rounds_of(rows, rounds):
    """Returns {name: [median_ms of each round]} and the algorithms. rows: name, function."""
    seen, how = {name: [] for name, _ in rows}, {}
    for _ in range(rounds):
        for name, run in rows:
            r = run()
            seen[name].append(r["median_ms"])
            how[name] = r.get("algorithm", "")
    return seen, how


def row_of(seen, how, **cell):
    row = dict(cell, median_ms={n: statistics.median(t) for n, t in seen.items()}, algorithm=how, over_gloo={})
    for name in seen:
        if "gloo" in seen and name != "gloo":
            row["over_gloo"][name] = statistics.median(a / b for a, b in zip(seen[name], seen["gloo"]))
    return row


def text_of(row, name):
    if name not in row["median_ms"]:
        return "-"
    ms = row["median_ms"][name]
    ratio = f" ({row['over_gloo'][name]:.2f})" if name in row["over_gloo"] else ""
    return f"{ms:.3f}{ratio}" if ms < 1 else f"{ms:.2f}{ratio}" if ms < 100 else f"{ms:.0f}{ratio}"


def table(title, rows, names, cell):
    print(f"\n{title}\n\n| {cell[0]} | " + " | ".join(names) + " | algorithm |\n" + "|---" * (len(names) + 2) + "|")
    for row in rows:
        how = row["algorithm"].get("tcp", "")
        print(f"| {cell[1](row)} | " + " | ".join(text_of(row, n) for n in names) + f" | {how} |", flush=True)


def loopback(args, python, mpi):
    rows = []
    for ranks in args.ranks:
        for size, iters in SIZES:
            if args.quick:
                iters = max(3, iters // 3)
            own = ["--ranks", ranks, "--bytes", size, "--iters", iters]
            cell = [("tcp", lambda o=own: measure([[OURS, "--transport", "tcp", *o]])),
                    ("threads", lambda o=own: measure([[OURS, "--transport", "threads", *o]]))]
            if mpi:
                cell.append(("mpi", lambda o=own, n=ranks: measure(
                    [["mpirun", "-n", n, OURS, "--transport", "mpi", *o]])))
                cell.append(("MPI_Allreduce", lambda n=ranks, s=size, i=iters: measure(
                    [["mpirun", "-n", n, RIVAL, s, i]])))
            if python:
                cell.append(("gloo", lambda o=own: measure([[python, os.path.join(HERE, "gloo.py"), *o]])))
            rows.append(row_of(*rounds_of(cell, args.rounds), part="loopback", bytes=size, ranks=ranks))
    names = [n for n in ("tcp", "threads", "mpi", "MPI_Allreduce", "gloo") if n in rows[0]["median_ms"]]
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as f:
        control = f.read().strip()
    table(f"Loopback, {control}, ms (time over gloo's)", rows, names,
          ("array, ranks", lambda r: f"{name_of(r['bytes'])}, {r['ranks']}"))
    return rows


# ---- four machines: namespaces, a bridge, a token bucket at both ends of each cable ----

def shell(command):
    return subprocess.run(command, shell=True, capture_output=True, text=True).returncode == 0


def spaces_down():
    for i in range(4):
        shell(f"ip netns del {SPACE}{i}")
    shell(f"ip link del {SPACE}")


def spaces_up(rate, control):
    spaces_down()
    ok = shell(f"ip link add {SPACE} type bridge && ip link set {SPACE} up")
    for i in range(4):
        inside = f"ip netns exec {SPACE}{i}"
        ok = ok and shell(
            f"ip netns add {SPACE}{i} && ip link add {SPACE}v{i} type veth peer name {SPACE}w{i} && "
            f"ip link set {SPACE}w{i} netns {SPACE}{i} && ip link set {SPACE}v{i} master {SPACE} up && "
            f"ip -n {SPACE}{i} addr add 10.79.0.{i + 1}/24 dev {SPACE}w{i} && ip -n {SPACE}{i} link set {SPACE}w{i} up && "
            f"ip -n {SPACE}{i} link set lo up && {inside} sysctl -qw net.ipv4.tcp_congestion_control={control}")
        for tc, device in ((f"{inside} tc", f"{SPACE}w{i}"), ("tc", f"{SPACE}v{i}")):
            ok = ok and shell(
                f"{tc} qdisc add dev {device} root handle 1: htb default 1 && {tc} class add dev {device} parent 1: "
                f"classid 1:1 htb rate {rate}mbit burst 64k quantum 20000")
    return ok


def inside(command, count=4, space=SPACE, device=SPACE + "w", net="10.79.0"):
    """Runs one command per namespace, with its rank."""
    return [["ip", "netns", "exec", f"{space}{i}", "env", f"GLOO_SOCKET_IFNAME={device}{i}", *command, "--ranks", count,
             "--rank", i, "--addr", f"{net}.1:{PORT}"] for i in range(count)]


def htb(args, python, _):
    rows = []
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        print("\nhtb: left out, namespaces need root, ip and tc")
        return rows
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as f:
        controls = [c for c in f.read().split() if c in ("reno", "bbr")]
    try:
        for control in controls[:1] if args.quick else controls:
            for rate in (100, 1000):
                if not spaces_up(rate, control):
                    print(f"\nhtb: left out, no namespaces with {control} and htb here")
                    return rows
                for size, iters in ((1 << 20, 10), (16 << 20, 3 if rate == 100 else 7)):
                    own = ["--bytes", size, "--iters", iters]
                    cell = [("tcp", lambda o=own: measure(inside([OURS, "--transport", "tcp", "--insecure", *o])))]
                    if python:
                        cell.append(("gloo", lambda o=own: measure(inside([python, os.path.join(HERE, "gloo.py"), *o]))))
                    rows.append(row_of(*rounds_of(cell, max(1, args.rounds - 1)), part="htb", bytes=size, ranks=4,
                                       mbit=rate, control=control))
    finally:
        spaces_down()
    table("Four namespaces, htb, ms (time over gloo's); bound: the ring's bytes at the link's rate", rows,
          [n for n in ("tcp", "gloo") if n in rows[0]["median_ms"]],
          ("array, rate, congestion control, bound", lambda r: f"{name_of(r['bytes'])}, {r['mbit']} Mbit/s, "
           f"{r['control']}, {1.5 * r['bytes'] * 8 / r['mbit'] / 1e3:.0f}"))
    return rows


# ---- machines with a long delay: bench/far.py forwards their packets ----

def far(args, python, _):
    rows = []
    if os.geteuid() or not os.path.exists("/dev/net/tun"):
        print("\nfar: left out, it needs root and /dev/net/tun")
        return rows
    for ranks, rate, delay in ((2, 100, 50), (2, 1000, 10), (2, 1000, 50), (4, 1000, 10), (4, 1000, 50)):
        carrier = subprocess.Popen([os.path.join(HERE, "far.py"), str(ranks), "--rate", str(rate), "--delay", str(delay)],
                                   stdout=subprocess.PIPE, text=True)
        try:
            if carrier.stdout.readline().strip() != "ready":
                print("\nfar: left out, no tun interfaces or namespaces here")
                return rows
            own, where = ["--bytes", 16 << 20, "--iters", 5], (ranks, "ddpfar", "ddpfar", "10.78.0")
            cell = [("tcp", lambda: measure(inside([OURS, "--transport", "tcp", "--insecure", *own], *where)))]
            if python:
                cell.append(("gloo", lambda: measure(inside([python, os.path.join(HERE, "gloo.py"), *own], *where))))
            rows.append(row_of(*rounds_of(cell, max(1, args.rounds - 1)), part="far", bytes=16 << 20, ranks=ranks, mbit=rate,
                               delay_ms=delay))
        finally:
            carrier.send_signal(signal.SIGINT)
            carrier.wait()
    table("16 MiB between namespaces that are far apart, ms (time over gloo's); bound: its bytes at the link's rate, and two delays",
          rows, [n for n in ("tcp", "gloo") if n in rows[0]["median_ms"]],
          ("ranks, rate, delay, bound", lambda r: f"{r['ranks']}, {r['mbit']} Mbit/s, {r['delay_ms']} ms, "
           f"{2 * (r['ranks'] - 1) / r['ranks'] * r['bytes'] * 8 / r['mbit'] / 1e3 + 2 * r['delay_ms']:.0f}"))
    return rows


def emulated(args, shaped):
    rows = []
    for rate, size in ((100, 1 << 20), (100, 16 << 20), (1000, 16 << 20)):
        command = [OURS, "--ranks", 4, "--bytes", size, "--iters", 3 if rate == 100 else 7, "--net", f"{rate * PAYLOAD:.3f}mbit,0ms"]
        seen, how = rounds_of([("tcp", lambda c=command: measure([c]))], max(1, args.rounds - 1))
        row = row_of(seen, how, part="emulated", bytes=size, ranks=4, mbit=rate)
        for other in shaped:
            if other["bytes"] == size and other["mbit"] == rate:
                ratio = row["median_ms"]["tcp"] / other["median_ms"]["tcp"]
                row["median_ms"][f"over htb, {other['control']}"] = ratio
        rows.append(row)
    names = sorted({n for r in rows for n in r["median_ms"]}, key=lambda n: n != "tcp")
    table("Emulated link (--net), ms", rows, names,
          ("array, rate", lambda r: f"{name_of(r['bytes'])}, {r['mbit']} Mbit/s"))
    return rows


def overlap(_args, mpi):
    """Eight layers of 2 MiB with 0.5 s of backward each, averaged in every step. The first layer is small, because no
    computing is left to overlap with its transfer."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        layers = os.path.join(folder, "layers.csv")
        with open(layers, "w") as f:
            f.write("layer,params,forward_s,backward_s,comm_s\n")
            f.write("first,256,0.1,0.5,0\n")
            f.writelines(f"layer{i},{1 << 19},0.1,0.5,0\n" for i in range(8))
        base = [TRAIN, "--quiet", "--emulate-compute", layers, "--steps", 6, "--period", 1, "--profile-steps", 2,
                "--optimizer", "sgd", "--lr", "1e-3", "--strategy", "dreamddp"]
        alone = measure([[*base, "--workers", 1]])["step_ms"]
        kinds = [("tcp", [], ["--transport", "tcp", "--workers", 4])]
        if mpi:
            kinds.append(("mpi", ["mpirun", "-n", 4], ["--transport", "mpi"]))
        for name, launcher, options in kinds:
            r = measure([[*launcher, *base, *options, "--net", "100mbit,0ms"]])
            # of the comm thread of rank 0, for the bytes of one step; measuring the link also sends bytes
            cpu_ms = 1e3 * r["comm_cpu_s"] * 1.5 * (16 << 20) / r["bytes_sent"]
            rows.append({"part": "overlap", "transport": name, "step_ms": r["step_ms"], "alone_ms": alone,
                         "hidden_pct": r["hidden_pct"], "comm_cpu_pct": 100 * cpu_ms / r["step_ms"]})
    print("\nOverlap: 16 MiB at 100 Mbit/s, four workers, 4 s of backward per step\n\n"
          "| transport | step ms | alone | longer by | hidden % | comm thread, % of a core |\n|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['transport']} | {r['step_ms']:.0f} | {r['alone_ms']:.0f} | {r['step_ms'] - r['alone_ms']:.0f} ms | "
              f"{r['hidden_pct']:.1f} | {r['comm_cpu_pct']:.1f} |")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer iterations, one congestion control")
    parser.add_argument("--only", choices=("loopback", "htb", "far", "emulated", "overlap"), help="one part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="2,4", help="of the loopback part [2,4]")
    args = parser.parse_args()
    args.ranks = [int(r) for r in args.ranks.split(",")]
    if args.quick:
        args.rounds = 1
    python = python_with_torch()
    mpi = bool(shutil.which("mpirun")) and os.path.exists(RIVAL)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, Linux {os.uname().release}; "
          f"gloo: {'yes' if python else 'no PyTorch here'}; MPI: {'yes' if mpi else 'no mpirun or build/mpi_allreduce'}")
    result, parts = [], [args.only] if args.only else ["loopback", "htb", "far", "emulated", "overlap"]
    if "loopback" in parts:
        result += loopback(args, python, mpi)
    if "htb" in parts:
        result += htb(args, python, mpi)
    if "far" in parts:
        result += far(args, python, mpi)
    if "emulated" in parts:
        result += emulated(args, [r for r in result if r["part"] == "htb"])
    if "overlap" in parts:
        result += overlap(args, mpi)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(json.dumps(result))
    sys.exit(0 if python or mpi else 77)


if __name__ == "__main__":
    main()
