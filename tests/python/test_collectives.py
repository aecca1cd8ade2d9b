#!/usr/bin/env python3
"""[test-all: needs PyTorch] The collectives of the Python package: arrays of each type, objects, lost workers, user mistakes.

    tests/python/test_collectives.py [WORD...]     only the cases whose names contain one of the words
"""
import importlib.util
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped, case, expect, run_cases, skip_script  # noqa: E402
from ddprun import DDPRUN, built, clean, run, started  # noqa: E402

BEGIN = """
import array, os, signal, sys
import dreamddp as ddp
ddp.init()
R, W = ddp.rank(), ddp.world()
def same(got, wanted, what):
    if got != wanted:
        raise SystemExit("rank %d: %s: %r, not %r" % (R, what, got, wanted))
def refused(words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except ddp.InvalidArgument as e:
        if all(word in str(e) for word in words):
            return
        raise SystemExit("%s is not in: %s" % (words, e))
    raise SystemExit("rank %d: no error with %s" % (R, words))
"""
END = 'print("rank", R, "has done all", flush=True)\n'

BUFFERS = """
sys.modules["torch"] = None
for code, thirds in (("f", None), ("d", 2.0 / 3), ("q", None)):
    sums = {"sum": 3, "max": 2, "min": 0}
    for op, right in sums.items():
        x = array.array(code, [R, 10 * R, -R])
        same(ddp.all_reduce(x, op) is x and list(x), [right, 10 * right, {"sum": -3, "max": 0, "min": -2}[op]], code + op)
    same(list(ddp.broadcast(array.array(code, [R, 7 + R]), 2)), [2, 9], "broadcast " + code)
    blocks = array.array(code, [0] * 6)
    blocks[2 * R:2 * R + 2] = array.array(code, [R, R + 5])
    same(list(ddp.all_gather(blocks)), [0, 5, 1, 6, 2, 7], "gather " + code)
same(list(ddp.all_reduce(array.array("d", [R, 1]), "sum", 0.5)), [1.5, 1.5], "scale of float64")
same(list(ddp.all_reduce(array.array("f", [R, 1]), scale=0.5)), [1.5, 1.5], "scale of float32")
same(list(ddp.all_reduce(array.array("f", [R, 1]), 0.5)), [1.5, 1.5], "scale as the second argument")
same(list(ddp.all_mean(array.array("d", [R, 0.1]))), [1.0, (0.1 + 0.1 + 0.1) / 3], "mean of float64")
same(list(ddp.all_reduce(array.array("q", [2 ** 60 + R]))), [3 * 2 ** 60 + 3 - 2 ** 64 * (3 * 2 ** 60 + 3 >= 2 ** 63)], "exact")
same(list(ddp.all_reduce(array.array("d"))), [], "no values")
refused(["all_reduce", "format 'i'", "float32, float64 and int64"], ddp.all_reduce, array.array("i", [1]))
refused(["broadcast", "format 'B'"], ddp.broadcast, bytearray(8))
refused(["type list is not an array"], ddp.all_mean, [1.0])
refused(["type float is not an array"], ddp.all_mean, 1.0)
refused(["read-only"], ddp.broadcast, memoryview(array.array("d", [1])).toreadonly())
refused(["not contiguous"], ddp.all_mean, memoryview(array.array("d", [1, 2, 3]))[::2])
refused(["'avg' is unknown: choose sum, mean, max, min"], ddp.all_reduce, array.array("f", [1]), "avg")
refused(["mean of int64", "float64"], ddp.all_mean, array.array("q", [1]))
refused(["scale=2", "int64"], ddp.all_reduce, array.array("q", [1]), scale=2)
refused(["scale=2", "max"], ddp.all_reduce, array.array("f", [1]), "max", 2)
refused(["7 values cannot be divided into equal blocks for 3 ranks"], ddp.all_gather, array.array("d", [0] * 7))
"""

TENSORS = """
import numpy, torch
for dtype in (torch.float32, torch.float64, torch.int64):
    x = torch.arange(6).reshape(2, 3).to(dtype) * (R + 1)
    same(ddp.all_reduce(x) is x and x.tolist(), [[0, 6, 12], [18, 24, 30]], "sum")
    point = torch.tensor(R + 1, dtype=dtype)
    same(ddp.all_reduce(point, "max").item(), 3, "a tensor without dimensions")
    same(ddp.broadcast(torch.tensor(R, dtype=dtype), 1).item(), 1, "broadcast")
    blocks = torch.zeros(3, 2, dtype=dtype)
    blocks[R] = R + 1
    same(ddp.all_gather(blocks).tolist(), [[1, 1], [2, 2], [3, 3]], "gather")
    x = numpy.full((2, 2), R, str(dtype)[6:])
    same(ddp.all_reduce(x).tolist(), [[3, 3], [3, 3]], "numpy")
    same(ddp.all_reduce(numpy.array(R, str(dtype)[6:]), "min").tolist(), 0, "numpy without dimensions")
same(ddp.all_mean(torch.tensor([0.1 * R], dtype=torch.float64)).item(), (0.1 * 0 + 0.1 * 1 + 0.1 * 2) / 3, "mean")
same(ddp.all_reduce(torch.tensor([2.0 * R]).double(), "sum", 0.5).item(), 3.0, "scale of a tensor")
same(ddp.all_reduce(numpy.array([2.0 * R]), "sum", 0.5).tolist(), [3.0], "scale of a numpy array")
weight = torch.nn.Parameter(torch.tensor([float(R)]).double())
same(ddp.all_reduce(weight, scale=2.0).item(), 6.0, "a parameter")
class Elsewhere:
    # like a tensor on a GPU, whose values no address of the host reaches
    dtype, layout, device = torch.float64, torch.strided, torch.device("cuda", 0)
    def __init__(self, values):
        self.values = values
    def data_ptr(self):
        raise SystemExit("the address of a GPU was used")
    def is_contiguous(self):
        return True
    def numel(self):
        return self.values.numel()
    def detach(self):
        return self
    def cpu(self):
        return self.values.clone()
    def copy_(self, other):
        self.values.copy_(other)
there = Elsewhere(torch.tensor([1.0 + R, 2.0]).double())
same(ddp.all_reduce(there, "sum", 0.5) is there and there.values.tolist(), [3.0, 3.0], "a tensor on a GPU")
big = torch.full((400000,), 1.0 + R).double()
same(ddp.all_reduce(big).sum().item(), 6.0 * 400000, "several pieces")
for dtype, to in ((torch.bfloat16, ".to(torch.float32)"), (torch.float16, ".to(torch.float32)"), (torch.int32, ".to(torch.int64)"),
                  (torch.bool, ".to(torch.int64)"), (torch.complex64, "view_as_real")):
    for call in (ddp.all_reduce, ddp.all_mean, ddp.broadcast, ddp.all_gather):
        refused([call.__name__, str(dtype), to], call, torch.zeros(3, dtype=dtype))
refused(["float64", "not contiguous", ".contiguous()"], ddp.all_mean, torch.zeros(4, 6).double().t())
refused(["sparse", ".to_dense()"], ddp.all_mean, torch.zeros(4).to_sparse())
refused(["meta"], ddp.all_mean, torch.zeros(4, device="meta"))
refused(["int32", ".astype"], ddp.all_reduce, numpy.zeros(3, "i4"))
refused(["float64", "ascontiguousarray"], ddp.all_reduce, numpy.zeros((3, 4)).T[1:])
refused([">f8"], ddp.all_reduce, numpy.zeros(3, ">f8"))
refused(["datetime64"], ddp.all_reduce, numpy.zeros(3, "datetime64[s]"))
refused(["read-only"], ddp.all_reduce, numpy.float64(1))
"""

OBJECTS = """
class Odd:
    def __reduce__(self):
        raise ValueError("this object cannot be sent")
same(ddp.broadcast_object({"from": R, "x": [1, "two"]}), {"from": 0, "x": [1, "two"]}, "broadcast")
same(ddp.broadcast_object(("b", R) if R == 2 else Odd(), root=2), ("b", 2), "of rank 2")
same(ddp.broadcast_object("x" * 300000 if R == 1 else None, 1), "x" * 300000, "a large object")
same(ddp.all_gather_object(R), [0, 1, 2], "gather")
same(ddp.all_gather_object(None), [None] * 3, "None")
for size in (0, 1, 65000, 65536, 70000, 200001):
    mine = bytes([R]) * (size * (R + 1) // 3)
    same(ddp.all_gather_object(mine), [bytes([r]) * (size * (r + 1) // 3) for r in range(W)], "bytes of %d" % size)
def fails(call, *arguments):
    try:
        call(*arguments)
    except Exception as e:
        return "%s %s" % (type(e).__name__, e)
    return ""
why = fails(ddp.broadcast_object, Odd(), 1)
same("this object cannot be sent" in why and ("ValueError" if R == 1 else "rank 1 cannot pickle its object") in why, True, why)
why = fails(ddp.all_gather_object, Odd() if R == 2 else R)
same("this object cannot be sent" in why and ("ValueError" if R == 2 else "rank 2 cannot pickle its object") in why, True, why)
same(ddp.all_gather_object("after"), ["after"] * 3, "after the errors")
"""

LOST = """
same(ddp.all_reduce(array.array("q", [1 << R]))[0], 7, "three")
if R == 1:
    os.kill(os.getpid(), signal.SIGKILL)
same(ddp.broadcast_object("of %d" % R, root=1), "of 0", "the lowest live rank's")
same(ddp.all_gather_object("x%d" % R * 50000), ["x0" * 50000, None, "x2" * 50000], "gather")
same(ddp.all_reduce(array.array("q", [1 << R]))[0], 5, "two")
same(list(ddp.all_mean(array.array("d", [R]))), [1.0], "mean of two")
same(list(ddp.all_gather(array.array("d", [1 + R] * 3))), [1.0, 0.0, 3.0], "blocks")
same(ddp.world(), 3, "the world")
"""

PROCESS_GROUP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
same((dist.get_rank(), dist.get_world_size()), (R, W), "the process group")
x = torch.tensor([R + 1.0])
dist.all_reduce(x)
same(x.item(), 6.0, "its sum")
same(ddp.all_reduce(torch.tensor([R + 1.0])).item(), 6.0, "the library's sum")
dist.destroy_process_group()
"""

NAMES = """
same((ddp.get_rank(), ddp.get_world_size(), ddp.get_local_rank()), (R, W, int(os.environ["DREAMDDP_LOCAL_RANK"])), "names")
same(ddp.is_initialized(), True, "after init")
ddp.close()
same(ddp.is_initialized(), False, "after close")
"""
BEFORE = """
import dreamddp as ddp
assert ddp.is_initialized() is False
for call in (ddp.get_rank, ddp.get_world_size, ddp.get_local_rank, ddp.rank, ddp.barrier, lambda: ddp.all_gather_object(1)):
    try:
        call()
        raise SystemExit("%s before init" % call)
    except ddp.UsageError as e:
        assert "call dreamddp.init() first" in str(e), e
ddp.init()
assert (ddp.get_rank(), ddp.get_world_size(), ddp.get_local_rank()) == (0, 1, 0)
assert ddp.broadcast_object([1]) == [1] and ddp.all_gather_object("a") == ["a"]
import array
assert list(ddp.all_reduce(array.array("d", [3]), "max")) == [3]
"""


def has(module):
    return importlib.util.find_spec(module) is not None


def done(folder, text, ranks=3):
    r = started(folder, BEGIN + text + END, ranks)
    expect(r.returncode == 0 and r.stdout.count("has done all") == ranks, r.stdout[-500:] + r.stderr[-1500:])


@case
def buffers_of_each_type_work_without_pytorch(folder):
    done(folder, BUFFERS)


@case
def tensors_and_numpy_arrays_of_each_type_work(folder):
    if not has("torch") or not has("numpy"):
        raise Skipped("PyTorch or NumPy is missing")
    done(folder, TENSORS)


@case
def objects_of_any_size_are_exchanged(folder):
    done(folder, OBJECTS)


@case
def lost_workers_are_left_out(folder):
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(BEGIN + LOST + END)
    r = run(DDPRUN, "-n", 3, "--min-world", 2, "--quiet", sys.executable, path)
    expect(r.returncode == 0 and r.stdout.count("has done all") == 2, r.stdout[-500:] + r.stderr[-1500:])


@case
def torch_distributed_works_next_to_the_library(folder):
    if not has("torch"):
        raise Skipped("no PyTorch")
    done(folder, PROCESS_GROUP)


@case
def names_of_torch_distributed_exist(folder):
    path = os.path.join(folder, "alone.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(BEFORE)
    r = run(sys.executable, path)
    expect(r.returncode == 0, r.stderr[-800:])
    program = os.path.join(folder, "ranks.py")
    with open(program, "w", encoding="ascii") as f:
        f.write(BEGIN + NAMES + END)
    r = run(DDPRUN, "-n", 2, "--quiet", "sh", "-c", 'DREAMDDP_LOCAL_RANK=$((5 + DREAMDDP_RANK)) exec "$@"', "sh", sys.executable,
            program, env=clean())
    expect(r.returncode == 0 and r.stdout.count("has done all") == 2, r.stdout + r.stderr[-800:])


if __name__ == "__main__":
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun")
    sys.exit(run_cases())
