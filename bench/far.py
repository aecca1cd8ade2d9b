#!/usr/bin/env python3
"""Emulates network namespaces with a long delay between them.

    bench/far.py 4 --rate 1000 --delay 50        as root, until it is stopped; prints "ready"

Namespace ddpfar0, ddpfar1, ... has one interface with address 10.78.0.1, 10.78.0.2, ... and a link of --rate Mbit/s in each direction. This
program forwards the packets. A packet is serialised at the link of its sender, delayed by --delay milliseconds, then serialised at the link
of its receiver, as Linux's netem and token buckets do. Packets have up to 9,000 bytes. The queue of a link has --queue bytes; further
packets are dropped.
"""
import argparse
import collections
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time

SPACE = "ddpfar"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def shell(command):
    return subprocess.run(command, shell=True, capture_output=True, text=True).returncode == 0


def down(count):
    for i in range(count):
        shell(f"ip netns del {SPACE}{i}")


def up(count):
    fds = []
    down(count)
    for i in range(count):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", f"{SPACE}{i}".encode(), IFF_TUN | IFF_NO_PI))
        name = f"{SPACE}{i}"
        if not shell(f"ip netns add {name} && ip link set {name} netns {name} && ip -n {name} link set lo up && "
                     f"ip -n {name} link set {name} mtu 9000 up && ip -n {name} addr add 10.78.0.{i + 1}/24 dev {name}"):
            sys.exit(f"far.py: no namespace {name}")
        fds.append(fd)
    return fds


def carry(fds, rate, delay, queue):
    """Packets in the order of their arrival at the link of the receiver, which serialises them."""
    way = [[collections.deque() for _ in fds] for _ in fds]  # by sender and receiver: (arrival time, bytes)
    sent, taken, rank = [0.0] * len(fds), [0.0] * len(fds), {fd: i for i, fd in enumerate(fds)}
    while True:
        now, due = time.monotonic(), time.monotonic() + 1
        for to, fd in enumerate(fds):
            while True:
                first = min((w[to] for w in way if w[to]), key=lambda q: q[0][0], default=None)
                if not first:
                    break
                when = max(first[0][0], taken[to])
                if when > now:
                    due = min(due, when)
                    break
                packet = first.popleft()[1]
                taken[to] = when + len(packet) / rate
                try:
                    os.write(fd, packet)
                except OSError:
                    pass  # a full or closed interface drops the packet
        for fd in select.select(fds, [], [], max(0, due - time.monotonic()))[0]:
            frm = rank[fd]
            for _ in range(32):
                try:
                    packet = os.read(fd, 9100)
                except BlockingIOError:
                    break
                to = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                now = time.monotonic()
                begin = max(sent[frm], now)
                if not 0 <= to < len(fds) or to == frm or (begin - now) * rate > queue:
                    continue
                sent[frm] = begin + len(packet) / rate
                way[frm][to].append((sent[frm] + delay, packet))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="namespaces, 2 to 16")
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each link, in each direction [1000]")
    parser.add_argument("--delay", type=float, default=50, help="delay between two namespaces, in milliseconds [50]")
    parser.add_argument("--queue", type=float, default=4e6, help="bytes of the queue of a link [4e6]")
    args = parser.parse_args()
    if not 2 <= args.count <= 16 or args.rate <= 0 or args.delay < 0:
        parser.error("2 to 16 namespaces, a rate above 0, a delay of 0 or more")
    if os.geteuid():
        sys.exit("far.py: namespaces need root")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the shell ignores it
    try:
        fds = up(args.count)
        print("ready", flush=True)
        carry(fds, args.rate * 1e6 / 8, args.delay / 1e3, args.queue)
    except KeyboardInterrupt:
        pass
    finally:
        down(args.count)


if __name__ == "__main__":
    main()
