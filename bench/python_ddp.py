#!/usr/bin/env python3
"""A PyTorch loop over slow links: DistributedDataParallel with gloo and dreamddp.wrap, in alternation.

    bench/python_ddp.py [--quick] [--rate MBIT] [--delay MS] [--workers 4] [--dim 128] [--batch 2] [--rounds 3]
                        [--steps 40] [--period 5] [--kinds gloo,wfbp,dreamddp] [--json FILE]

A kind is gloo, or a strategy of the library. With ":torch" added, its messages go through gloo (transport="torch").

Both use the same network of real TCP connections. Each worker runs in a separate network namespace, whose one interface is a TUN device. The
kernel (tc, tbf) limits outgoing packets to --rate. One process forwards the packets after --delay, and limits incoming packets of each
worker to --rate. At either end 100 ms of packets may queue. The library's own emulation is not used. A small GPT, AdamW, one thread per
worker. The figure is the step of rank 0: the mean of a run after the first 10 steps, then the best and the median of all rounds. Needs root,
/dev/net/tun and ip; exit 77 without them or without PyTorch.
"""
import argparse
import ctypes
import fcntl
import heapq
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
MTU, QUEUE_S, FIRST = 9000, 0.1, 10
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CLONE_NEWNET = 0x40000000


def name_of(rank):
    return "ddpbench%d" % rank


def address_of(rank):
    return "10.77.0.%d" % (rank + 1)


# ---- the network ----

def tun_in(namespace):
    """Makes a TUN device in a namespace. This process keeps its file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, open("/var/run/netns/" + namespace) as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"slow0", IFF_TUN | IFF_NO_PI))
        libc.setns(home.fileno(), CLONE_NEWNET)
    return fd


def network_up(workers, rate):
    files = []
    for r in range(workers):
        subprocess.run(["ip", "netns", "add", name_of(r)], check=True)
        files.append(tun_in(name_of(r)))
        for words in ("addr add %s/24 dev slow0" % address_of(r), "link set slow0 mtu %d up txqueuelen 50" % MTU, "link set lo up"):
            subprocess.run(["ip", "-n", name_of(r)] + words.split(), check=True)
        subprocess.run(["tc", "-n", name_of(r), "qdisc", "add", "dev", "slow0", "root", "tbf", "rate", "%dbit" % (8 * rate),
                        "burst", "32k", "latency", "%dms" % (1e3 * QUEUE_S)], check=True)
    return files


def network_down(workers):
    for r in range(workers):
        subprocess.run(["ip", "netns", "del", name_of(r)], stderr=subprocess.DEVNULL)


def pass_packets(files, rate, delay):
    """Forwards packets forever: after the delay, through the downlink of the receiver."""
    down, waiting, number = [0.0] * len(files), [], 0
    rank_of = {socket.inet_aton(address_of(r)): r for r in range(len(files))}
    poll = select.epoll()
    for fd in files:
        poll.register(fd, select.EPOLLIN)
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for fd, _ in poll.poll(wait):
            for _ in range(8):
                try:
                    packet = os.read(fd, 65536)
                except BlockingIOError:
                    break
                to = rank_of.get(packet[16:20])
                if to is not None:
                    number += 1
                    heapq.heappush(waiting, (time.monotonic() + delay, number, 0, to, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            at, n, done, to, packet = heapq.heappop(waiting)
            if done:
                try:
                    os.write(files[to], packet)
                except BlockingIOError:
                    pass
            elif down[to] - at <= QUEUE_S:
                down[to] = max(down[to], at) + len(packet) / rate
                heapq.heappush(waiting, (down[to], n, 1, to, packet))


# ---- a worker ----

def gpt(torch, dim, seq, layers=4, heads=4):
    nn = torch.nn

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, dim), nn.Embedding(seq, dim)
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True,
                                                                   norm_first=True) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 256)

        def forward(self, x):
            h = self.tokens(x) + self.places(torch.arange(seq))
            mask = torch.full((seq, seq), -1e9).triu(1)
            for b in self.blocks:
                h = b(h, mask)
            return self.head(self.norm(h))

    return GPT()


def train(kind, rank, args):
    """Prints one JSON object on rank 0."""
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    seq = 64
    model = gpt(torch, args.dim, seq)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    strategy, _, transport = kind.partition(":")
    if kind == "gloo" or transport:
        torch.distributed.init_process_group("gloo", init_method="tcp://%s:29600" % address_of(0), rank=rank,
                                             world_size=args.workers)
    if kind == "gloo":
        module = torch.nn.parallel.DistributedDataParallel(model)
    else:
        sys.path.insert(0, os.path.join(ROOT, "python"))
        import dreamddp
        dreamddp.init(strategy=strategy, period=args.period, transport=transport or None)
        module, opt = dreamddp.wrap(model, opt)
    x = torch.randint(256, (args.batch, seq + 1))
    begin = time.monotonic()
    for s in range(args.steps):
        if s == FIRST:
            begin = time.monotonic()
        loss = torch.nn.functional.cross_entropy(module(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    out = {"step_ms": 1e3 * (time.monotonic() - begin) / (args.steps - FIRST), "cpu_s": time.process_time(),
           "parameters": sum(p.numel() for p in model.parameters()), "loss": loss.item(), "torch": torch.__version__}
    if kind != "gloo":
        st = dreamddp.stats()
        out.update(predicted_ms=1e3 * (st["predicted_step_s"] or float("nan")), hidden_pct=st["hidden_pct"], library_step_ms=1e3 * st["step_s"])
        dreamddp.sync_all()
        dreamddp.close()
    if rank == 0:
        print(json.dumps(out), flush=True)


def measured(kind, args):
    """Runs the workers in their namespaces."""
    own = [a for n in ("workers", "dim", "batch", "steps", "period") for a in ("--" + n, str(getattr(args, n)))]
    ps = []
    for r in range(args.workers):
        env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
        env.update(GLOO_SOCKET_IFNAME="slow0", OMP_NUM_THREADS="1")
        if kind != "gloo":
            env.update(DREAMDDP_RANK=str(r), DREAMDDP_WORLD_SIZE=str(args.workers), DREAMDDP_ADDR=address_of(0) + ":29500",
                       DREAMDDP_INSECURE="1")
        ps.append(subprocess.Popen(["ip", "netns", "exec", name_of(r), sys.executable, os.path.abspath(__file__), "--child",
                                    kind, "--rank", str(r)] + own, env=env, stdout=subprocess.PIPE, text=True))
    lines = [p.communicate(timeout=900)[0] for p in ps]
    if any(p.returncode for p in ps):
        raise SystemExit("python_ddp: a worker of %s failed" % kind)
    return json.loads(lines[0].strip().splitlines()[-1])


def table(args):
    kinds = args.kinds.split(",")
    rows = {k: [] for k in kinds}
    for i in range(args.rounds):
        for k in kinds:
            rows[k].append(measured(k, args))
            print("round %d: %s %.1f ms" % (i + 1, k, rows[k][-1]["step_ms"]), file=sys.stderr, flush=True)
            if args.json:
                with open(args.json, "a", encoding="ascii") as f:
                    f.write(json.dumps(dict(rows[k][-1], event="run", kind=k, rate_mbit=args.rate, delay_ms=args.delay)) + "\n")
    first = rows[kinds[0]][0]
    print("%d parameters, %d workers, %g Mbit/s, %g ms, H = %d, PyTorch %s" % (
        first["parameters"], args.workers, args.rate, args.delay, args.period, first["torch"]))
    print("|what|step, ms: best|median|predicted|DDP over it|\n|---|---|---|---|---|")
    best = min((r["step_ms"] for r in rows.get("gloo", ())), default=float("nan"))
    for k in kinds:
        steps = [r["step_ms"] for r in rows[k]]
        told = [r["predicted_ms"] for r in rows[k] if r.get("predicted_ms")]
        print("|%s|%.1f|%.1f|%s|%.2f|" % ("DDP, gloo" if k == "gloo" else k, min(steps), statistics.median(steps),
                                        "%.1f" % statistics.median(told) if told else "", best / min(steps)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    for name, value in (("rate", 100.0), ("delay", 5.0)):
        parser.add_argument("--" + name, type=float, default=value)
    for name, value in (("workers", 4), ("dim", 128), ("batch", 2), ("rounds", 3), ("steps", 40), ("period", 5), ("rank", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--kinds", default="gloo,wfbp,dreamddp")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.child:
        return train(args.child, args.rank, args)
    if args.quick:
        args.rounds, args.steps = 1, 25
    try:
        import torch  # noqa: F401
    except ImportError:
        if sys.executable != "/usr/bin/python3" and os.path.exists("/usr/bin/python3"):
            os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)
        print("skipped: no PyTorch")
        return 77
    if os.geteuid() or not os.path.exists("/dev/net/tun"):
        print("skipped: needs root and /dev/net/tun")
        return 77
    network_down(args.workers)
    carrier = 0
    try:
        files = network_up(args.workers, 1e6 / 8 * args.rate)
        carrier = os.fork()
        if carrier == 0:
            pass_packets(files, 1e6 / 8 * args.rate, 1e-3 * args.delay)
        table(args)
    finally:
        if carrier:
            os.kill(carrier, 9)
            os.waitpid(carrier, 0)
        network_down(args.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
