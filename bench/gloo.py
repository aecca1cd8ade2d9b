#!/usr/bin/env python3
"""The reference of bench/transport.py: the same all-reduce with torch.distributed over gloo.

    bench/gloo.py --ranks 4 --bytes 16777216 --iters 20
    GLOO_SOCKET_IFNAME=eth0 bench/gloo.py --ranks 4 --rank 0 --addr 10.0.0.1:29500

Ranks are processes on 127.0.0.1; with --rank this process is one rank. As in bench_allreduce, a barrier precedes every iteration, an
iteration takes as long as its slowest rank, and the last line of stdout is one JSON object.
"""
import argparse
import json
import os
import socket
import statistics
import sys
import time

WARMUP = 2


def rank_main(rank, args, addr, torch, dist):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{addr}", rank=rank,
                            world_size=args.ranks)
    torch.manual_seed(rank)
    value = torch.rand(args.bytes // 4) * 2 - 1
    x = torch.empty_like(value)
    times = []
    for i in range(-WARMUP, args.iters):
        x.copy_(value)
        dist.barrier()
        begin = time.monotonic()
        dist.all_reduce(x)
        if i >= 0:
            times.append(1e3 * (time.monotonic() - begin))
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        times = slowest.tolist()
        print(json.dumps({"median_ms": statistics.median(times), "min_ms": min(times),
                          "algorithm": "gloo", "bytes": args.bytes, "ranks": args.ranks,
                          "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=16777216)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--addr", help="HOST:PORT of rank 0; with --rank")
    args = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    if args.rank is not None:
        return rank_main(args.rank, args, args.addr, torch, dist)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children = []
    for rank in range(args.ranks):
        pid = os.fork()
        if pid == 0:
            rank_main(rank, args, f"127.0.0.1:{port}", torch, dist)
            sys.stdout.flush()
            os._exit(0)
        children.append(pid)
    failed = [os.waitpid(pid, 0)[1] for pid in children]
    sys.exit(1 if any(failed) else 0)


if __name__ == "__main__":
    main()
