#!/usr/bin/env python3
"""The Python package over its own connections and over a process group of gloo, compared with gloo itself, in alternation.

    bench/torch_transport.py [--ranks 2] [--bytes 40000000] [--iters 5] [--rounds 5]

Ranks are processes on 127.0.0.1. Rank 0 measures an all_reduce of --bytes (the mean of --iters) and a barrier (the mean of 200). The fastest
of all rounds counts. Exit 77 without PyTorch.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BARRIERS = 200


def repeated(call, times):
    """Returns the mean time of a call in ms, after one call that is not measured."""
    call()
    begin = time.monotonic()
    for _ in range(times):
        call()
    return 1e3 * (time.monotonic() - begin) / times


def child(way, rank, args):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + args.store, rank=rank, world_size=args.ranks)
    x = torch.zeros(args.bytes // 4)
    if way == "gloo":
        result = {"all_reduce": repeated(lambda: dist.all_reduce(x), args.iters), "barrier": repeated(dist.barrier, BARRIERS)}
    else:
        sys.path.insert(0, os.path.join(ROOT, "python"))
        import dreamddp
        dreamddp.init(transport=way)
        result = {"all_reduce": repeated(lambda: dreamddp.all_reduce(x), args.iters),
                  "barrier": repeated(dreamddp.barrier, BARRIERS)}
        dreamddp.close()
    if rank == 0:
        print(json.dumps(dict(result, torch=torch.__version__)))


def measured(way, args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    env.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__), "--store", os.path.join(folder, "store"), "--child", way]
        for name in ("ranks", "bytes", "iters"):
            command += ["--" + name, str(getattr(args, name))]
        ps = [subprocess.Popen(command + ["--rank", str(r)], env=env, stdout=subprocess.PIPE, text=True)
              for r in range(args.ranks)]
        lines = [p.communicate(timeout=600)[0] for p in ps]
    if any(p.returncode for p in ps):
        raise SystemExit("torch_transport: a rank of %s failed" % way)
    return json.loads(lines[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("ranks", 2), ("bytes", 40000000), ("iters", 5), ("rounds", 5), ("rank", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--child", choices=("tcp", "torch", "gloo"), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.rank, args)
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        print("skipped: no PyTorch")
        return 77
    ways = {"tcp": 'dreamddp, transport="tcp"', "torch": 'dreamddp, transport="torch"', "gloo": "torch.distributed, gloo"}
    rows = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way in ways:
            rows[way].append(measured(way, args))
    print("PyTorch %s, %d ranks, %d bytes\n|calls|all_reduce, ms|barrier, ms|\n|---|---|---|" % (
        rows["gloo"][0]["torch"], args.ranks, args.bytes))
    for way, name in ways.items():
        print("|%s|%.0f|%.2f|" % (name, min(r["all_reduce"] for r in rows[way]), min(r["barrier"] for r in rows[way])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
