#!/usr/bin/env python3
"""[test-all: needs root] Rates of links behind Linux's token buckets (tc tbf): the burst does not count. Root only, exit 77 otherwise.

Needs build/netcheck and build/train_gpt (`make all`)."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "wire"))
from cases import case, expect, run_cases, skip_script  # noqa: E402
from netns import Net  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
NETCHECK, TRAIN = os.path.join(BUILD, "netcheck"), os.path.join(BUILD, "train_gpt")


def limit(net, mbit):
    """Limits what each host sends and receives, with a burst of 64 kB."""
    for host in net.hosts:
        for where, device in ((host, host + "a"), (net.router, host + "b")):
            net.run(where, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "%dmbit" % mbit, "burst", "64kb",
                    "latency", "100ms")


def controls():
    """The congestion controls of this system. Those that wait for losses send more than the link takes."""
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as f:
        return f.read().split()


def default_control():
    """The congestion control of a connection that sets none."""
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control") as f:
            return "%s (the system's default)" % f.read().strip()
    except OSError:
        return "unknown"


def run(net, folder, *command, control=""):
    """Returns the JSON file of rank 0 and the last line of its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    env["DREAMDDP_TCP_CONGESTION"] = control
    path = os.path.join(folder, "out.json")
    jobs = [net.start(host, [*map(str, command), "--workers", net.n, "--rank", r, "--addr", "10.77.0.1:29500", "--insecure",
                             *(["--json", path] if r == 0 else [])], env=env, text=True, stdin=subprocess.DEVNULL,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for r, host in enumerate(net.hosts)]
    done = [j.communicate(timeout=200) for j in jobs]
    for job, (_, err) in zip(jobs, done):
        expect(job.returncode == 0, err[-500:])
    with open(path) as f:
        return f.read(), done[0][0].splitlines()[-1]


@case("netcheck measures the rate of a token bucket")
def rates(folder):
    for mbit, control in [(5, ""), (20, ""), (100, "")] + [(20, c) for c in controls()]:
        with Net(2, "tbf%dn" % (os.getpid() % 1000)) as net:
            limit(net, mbit)
            text, _ = run(net, folder, NETCHECK, control=control)
        for row in json.loads(text)["bandwidth_mbit"]:
            for rate in row:
                expect(rate is None or 0.7 * mbit < rate < 1.4 * mbit,
                       "%s Mbit/s instead of %d, congestion control %s" % (rate, mbit, control or default_control()))


@case("a plan predicts steps over links with a token bucket")
def steps(folder):
    with open(os.path.join(folder, "text"), "w") as f:
        f.write("".join(chr(97 + (i * i + i // 7) % 26) for i in range(6000)))
    with Net(3, "tbf%ds" % (os.getpid() % 1000)) as net:
        limit(net, 20)
        text, last = run(net, folder, TRAIN, "--layers", 2, "--heads", 2, "--dim", 64, "--seq", 32, "--batch", 2, "--steps", 20,
                         "--data", os.path.join(folder, "text"), "--quiet", "--strategy", "ssgd")
    times = sorted(e["step_ms"] for e in map(json.loads, text.splitlines()) if e.get("event") == "step" and e["step"] >= 10)
    ratio = json.loads(last)["predicted_step_ms"] / times[len(times) // 2]
    expect(0.6 < ratio < 1.5, "predicted / measured: %.2f" % ratio)  # the burst alone gives 0.3


if __name__ == "__main__":
    why = Net.possible() or ("" if os.access(NETCHECK, os.X_OK) else "build/netcheck is missing")
    if why:
        skip_script(why)
    sys.exit(run_cases())
