#!/usr/bin/env python3
"""Compares the emulated link with the kernel's htb.

    bench/emulation.py [--quick] [--rate 100mbit] [--ranks 4] [--bytes 16777216] [--rounds 3] [--iters 3]
                       [--within PERCENT]

The ranks run in network namespaces behind htb, and with build/bench_allreduce --net, in alternation (A B A B). Needs root, ip and tc with
htb; exit 77 without. htb counts Ethernet, IP and TCP headers: of each 1514 bytes 1448 belong to the program. --net is a rate of the
program's bytes, so the emulated link gets 1448/1514 of htb's rate. The fastest iteration of each round counts, because other load only
makes iterations longer. With --within, exit 1 if the median of the rounds' ratios differs more from 1.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

PAYLOAD = 1448 / 1514
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.join(HERE, "..", "build", "bench_allreduce")


def run(command, check=True):
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")


class Namespaces:
    """Ranks on one bridge, htb on both ends of each veth pair, Reno."""

    def __init__(self, ranks, rate):
        self.ranks, self.rate, self.tag = ranks, rate, f"de{os.getpid() % 10000}"

    def __enter__(self):
        t = self.tag
        try:
            run(f"ip link add {t}b type bridge")
            run(f"ip link set {t}b up")
            for i in range(self.ranks):
                run(f"ip netns add {t}n{i}")
                run(f"ip link add {t}v{i} type veth peer name {t}w{i}")
                run(f"ip link set {t}w{i} netns {t}n{i}")
                run(f"ip link set {t}v{i} master {t}b up")
                run(f"ip -n {t}n{i} addr add 10.79.0.{i + 1}/24 dev {t}w{i}")
                run(f"ip -n {t}n{i} link set {t}w{i} up")
                run(f"ip -n {t}n{i} link set lo up")
                run(f"ip netns exec {t}n{i} sysctl -qw net.ipv4.tcp_congestion_control=reno", check=False)
                for tc, dev in ((f"ip netns exec {t}n{i} tc", f"{t}w{i}"), ("tc", f"{t}v{i}")):
                    run(f"{tc} qdisc add dev {dev} root handle 1: htb default 1")
                    run(f"{tc} class add dev {dev} parent 1: classid 1:1 htb rate {self.rate} burst 64k quantum 20000")
        except (RuntimeError, OSError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for i in range(self.ranks):
            run(f"ip netns del {self.tag}n{i}", check=False)
            run(f"ip link del {self.tag}v{i}", check=False)
        run(f"ip link del {self.tag}b", check=False)

    def measure(self, size):
        procs = [subprocess.Popen(["ip", "netns", "exec", f"{self.tag}n{i}", OURS, "--rank", str(i), "--insecure",
                                   "--addr", "10.79.0.1:29541", *size], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for i in range(self.ranks)]
        results = []
        for p in procs:
            out, err = p.communicate(timeout=300)
            if p.returncode:
                raise RuntimeError(err.strip())
            results.append(json.loads(out.strip().splitlines()[-1]))
        if len({r["result_hash"] for r in results}) != 1:
            raise RuntimeError("the results of the ranks differ")
        return max(r["min_ms"] for r in results), max(r["median_ms"] for r in results)


def payload_rate(rate):
    """The rate of a link without its headers, as text for --net."""
    for unit, factor in UNITS.items():
        if rate.endswith(unit):
            return f"{float(rate[:-len(unit)]) * factor * PAYLOAD / 1e3:.3f}kbit"
    raise ValueError(f"rate '{rate}' is not a number with kbit, mbit or gbit")


def emulated(size, rate):
    done = subprocess.run([OURS, "--net", payload_rate(rate), *size], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return result["min_ms"], result["median_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of 4 MiB")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=16777216)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iters", type=int, default=3)
    parser.add_argument("--within", type=float, help="greatest difference in per cent")
    args = parser.parse_args()
    rounds, size = (1, 4 << 20) if args.quick else (args.rounds, args.bytes)
    options = ["--ranks", str(args.ranks), "--bytes", str(size), "--iters", str(args.iters)]
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("emulation.py: skipped: namespaces and htb need root, ip and tc")
        return 77
    try:
        spaces = Namespaces(args.ranks, args.rate).__enter__()
    except (RuntimeError, OSError) as e:
        print(f"emulation.py: skipped: {e}")
        return 77
    pairs = []
    try:
        for i in range(rounds):
            pairs.append((emulated(options, args.rate), spaces.measure(options)))
            (a, a_median), (b, b_median) = pairs[-1]
            print(f"round {i + 1}: emulated {a:.1f} ms (median {a_median:.1f}), htb {b:.1f} ms (median {b_median:.1f})",
                  flush=True)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        print(f"emulation.py: {e}", file=sys.stderr)
        return 1
    finally:
        spaces.__exit__()
    ratio = statistics.median(a[0] / b[0] for a, b in pairs)
    print(json.dumps({"rate": args.rate, "ranks": args.ranks, "bytes": size, "congestion": "reno",
                      "emulated_ms": statistics.median(a[0] for a, _ in pairs),
                      "htb_ms": statistics.median(b[0] for _, b in pairs), "emulated_over_htb": ratio}))
    return 1 if args.within is not None and abs(ratio - 1) * 100 > args.within else 0


if __name__ == "__main__":
    sys.exit(main())
