#!/usr/bin/env python3
"""[test-all: needs PyTorch] ddp_topk against PyTorch: the set of a stable sort by magnitude, and the values of torch.topk.

Exit 77 if PyTorch or a C compiler is missing. CC chooses the compiler."""
import ctypes
import glob
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import companion

companion.need("torch", "PyTorch")
import torch

DATA = {
    "normal": lambda n: torch.randn(n),
    "heavy-tailed": lambda n: torch.randn(n) ** 5,
    "few levels": lambda n: torch.randint(-3, 4, (n,)).float(),
    "all equal": lambda n: torch.full((n,), -2.5),
    "all zero": lambda n: torch.zeros(n) * torch.randn(n),
    "mostly zero": lambda n: torch.randn(n) * (torch.rand(n) < 0.003),
    "infinite": lambda n: torch.where(torch.rand(n) < 0.02, torch.tensor(float("-inf")), torch.randn(n)),
    "denormal": lambda n: torch.randn(n) * 1e-39,
    "rising": lambda n: torch.arange(n, dtype=torch.float32),
}


def library(folder):
    path, src = os.path.join(folder, "topk.so"), os.path.join(companion.ROOT, "src")
    units = [file for room in ("compress", "base") for file in glob.glob(os.path.join(src, room, "*.c"))]
    subprocess.run([*companion.CC, "-std=c11", "-O1", "-shared", "-fPIC", "-DDDP_SEPARATE",
                    *os.environ.get("CPPFLAGS", "").split(), "-I" + src,
                    "-isystem", os.path.join(companion.ROOT, "build", "include"),
                    *units, "-o", path, "-lm", "-lpthread"], check=True)
    lib = ctypes.CDLL(path)
    size, p = ctypes.c_size_t, ctypes.c_void_p
    lib.ddp_topk_scratch.restype = size
    lib.ddp_topk_scratch.argtypes = [size, size]
    lib.ddp_topk.argtypes = [p, size, size, p, size, p, p, p]
    return lib


def check(lib, name, x, k):
    n = x.numel()
    bytes_ = lib.ddp_topk_scratch(n, k)
    scratch = torch.empty(bytes_ // 8 + 1, dtype=torch.int64)
    index, value = torch.empty(k, dtype=torch.int64), torch.empty(k)
    status = lib.ddp_topk(x.data_ptr(), n, k, scratch.data_ptr(), bytes_, index.data_ptr(),
                          value.data_ptr(), None)
    order = torch.sort(x.abs(), descending=True, stable=True).indices[:k].sort().values
    largest = torch.topk(x.abs(), k).values
    ok = (status == 0 and torch.equal(index, order) and torch.equal(value, x[order]) and
          torch.equal(value.abs().sort(descending=True).values, largest))
    if not ok:
        print("  %s, n = %d, k = %d, status %d" % (name, n, k, status))
    return ok


def main():
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        lib = library(folder)
        for name, data in [d for d in DATA.items() if companion.chosen(d[0])]:
            ok = True
            for n in (1, 1000, 50021, 500009):
                x = data(n)
                for k in sorted({1, n // 1000, n // 100, n // 3, n}):
                    ok = (k < 1 or check(lib, name, x, k)) and ok
            companion.result(name, ok, "" if ok else "the set or the values differ")
    return companion.end()


sys.exit(main())
