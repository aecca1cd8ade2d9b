#!/usr/bin/env python3
"""[test-all: needs root and iptables] Workers behind routers that translate addresses (NAT), in network namespaces: they train, others
join, and the run continues when rank 0 dies. Root only, exit 77 otherwise.

Needs build/train_gpt (`make all`)."""
import os
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case as plain_case, expect, inside, run_cases, skip_script  # noqa: E402
from netns import Net, ip  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = [os.path.join(BUILD, "train_gpt"), *"--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --data text --insecure --min-world 1 "
       "--max-world 4 --connect-timeout 20 --sleep 0.01".split()]
PORT = 29500


class Nat(Net):
    """Hosts of one public network, 198.51.100.0/24: host i has the address .i+1. In place of a host in `behind` there is a
    router with that address, and the host has 192.168.1.2 behind it, the same address for all. A router of `forwards`
    forwards PORT to its host."""

    def __init__(self, n, name, behind, forwards=()):
        super().__init__(n, name)
        self.behind, self.forwards = behind, forwards
        self.routers = {i: "%sg%d" % (name, i) for i in behind}

    def make(self):
        for where in (self.router, *self.routers.values(), *self.hosts):
            ip("netns", "add", where)
            ip("-n", where, "link", "set", "lo", "up")
        ip("-n", self.router, "link", "add", "br0", "type", "bridge")
        ip("-n", self.router, "link", "set", "br0", "up")
        for i, host in enumerate(self.hosts):
            self.attach(self.routers.get(i, host), i)
            if i in self.behind:
                self.hide(self.routers[i], host, i)

    def attach(self, where, i):
        port = "p%d" % i
        ip("link", "add", "wan", "netns", where, "type", "veth", "peer", "name", port, "netns", self.router)
        ip("-n", self.router, "link", "set", port, "master", "br0", "up")
        ip("-n", where, "addr", "add", "%s/24" % self.address(i), "dev", "wan")
        ip("-n", where, "link", "set", "wan", "up")

    def hide(self, router, host, i):
        ip("link", "add", "lan", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", host)
        for where, device, address in ((router, "lan", "192.168.1.1"), (host, "eth0", "192.168.1.2")):
            ip("-n", where, "addr", "add", address + "/24", "dev", device)
            ip("-n", where, "link", "set", device, "up")
        ip("-n", host, "route", "add", "default", "via", "192.168.1.1")
        self.run(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.run(router, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE")
        if i in self.forwards:
            self.run(router, "iptables", "-t", "nat", "-A", "PREROUTING", "-i", "wan", "-p", "tcp", "--dport", PORT, "-j", "DNAT",
                     "--to-destination", "192.168.1.2:%d" % PORT)
            self.run(router, "iptables", "-A", "FORWARD", "-i", "wan", "-p", "tcp", "--dport", PORT, "-j", "ACCEPT")
        self.run(router, "iptables", "-A", "FORWARD", "-i", "wan", "-m", "state", "--state", "NEW", "-j", "DROP")

    @staticmethod
    def address(i):
        return "198.51.100.%d" % (i + 1)

    def __exit__(self, *_):
        super().__exit__()
        for where in self.routers.values():
            subprocess.run(["ip", "netns", "del", where], capture_output=True)


def case(function):
    """A case that runs in a new folder that contains a text."""
    def with_text(_):
        with open("text", "w") as f:
            f.write("".join(chr(97 + (i * i + i // 7) % 26) for i in range(6000)))
        function()
    return plain_case(function.__name__.replace("_", " "))(inside(with_text))


class Worker:
    """Runs a worker on a host; its output is in a file."""

    def __init__(self, net, host, *words):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
        clean.update(DREAMDDP_LOG="info", DREAMDDP_RUN_ID="nat", OMP_NUM_THREADS="1")
        self.path = "out%d.%d" % (host, len(os.listdir(".")))
        with open(self.path, "w") as out:
            self.process = net.start(net.hosts[host], [*GPT, *words], env=clean, stdout=out, stderr=subprocess.STDOUT)

    def text(self):
        with open(self.path, errors="replace") as f:
            return f.read()

    def until(self, what, limit=60):
        end = time.monotonic() + limit
        while what not in self.text():
            expect(self.process.poll() is None, "ended before '%s': %s" % (what, self.text()[-600:]))
            expect(time.monotonic() < end, "no '%s' in %d s: %s" % (what, limit, self.text()[-600:]))
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()


def end(*workers):
    for w in workers:
        code = w.process.wait(timeout=300)
        expect(code == 0, "exit %d: %s" % (code, w.text()[-800:]))


def rank(r, address, workers, steps):
    return "--workers", workers, "--rank", r, "--addr", "%s:%d" % (address, PORT), "--steps", steps


@case
def workers_behind_nat_join_members_behind_nat():
    with Nat(4, "ddpn%da" % (os.getpid() % 10000), {1, 3}) as net:
        root = net.address(0)
        first = [Worker(net, r, *rank(r, root, 2, 1000)) for r in range(2)]
        first[0].until("step ")
        joining = []
        for host in (2, 3):
            joining.append(Worker(net, host, "--join", "--addr", "%s:%d" % (root, PORT), "--steps", 1000))
            joining[-1].until("relays between them")
            first[0].until("worker %d has joined" % host)
        end(*first, *joining)


@case
def members_behind_nat_continue_by_way_of_a_public_one_when_rank_0_dies():
    with Nat(4, "ddpn%db" % (os.getpid() % 10000), {1, 3}) as net:
        workers = [Worker(net, r, *rank(r, net.address(0), 4, 500)) for r in range(4)]
        workers[0].until("step ")
        workers[0].kill()
        end(*workers[1:])
        expect("rank 2 relays between them" in workers[2].text(), "rank 2 does not relay: %s" % workers[2].text()[-600:])


@case
def rank_0_may_be_behind_a_router_that_forwards_its_port():
    with Nat(3, "ddpn%dc" % (os.getpid() % 10000), {0, 2}, {0}) as net:
        first = [Worker(net, r, *rank(r, net.address(0) if r else "0.0.0.0", 2, 500)) for r in range(2)]
        first[0].until("step ")
        joining = Worker(net, 2, "--join", "--addr", "%s:%d" % (net.address(0), PORT), "--steps", 500)
        first[0].until("worker 2 has joined")
        end(*first, joining)


def main():
    why = Net.possible()
    if not why and not shutil.which("iptables"):
        why = "no iptables command"
    if why:
        skip_script(why)
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
