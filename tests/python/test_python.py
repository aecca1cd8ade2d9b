#!/usr/bin/env python3
"""[calm] The Python package: its binding against the header, numpy, PyTorch's loops against PyTorch alone, mistakes.

    tests/python/test_python.py [WORD...]     only the cases whose names contain one of the words

The cases of ranks.py run one after the other in three processes of build/ddprun; the others start programs. Without
PyTorch, pycparser, pip or torchrun the cases that need them are skipped by name; exit 77 where no library is built.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Skipped, case, chosen, expect, run_cases, told  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DDPRUN = os.path.join(ROOT, "build", "ddprun")
SOURCE = os.path.join(ROOT, "python")
RANKS_PY = os.path.join(ROOT, "tests", "python", "ranks.py")
RANKS = 3


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "PYTHONPATH"))}
    return dict(env, PYTHONPATH=SOURCE, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **more)


def run(*command, env=None, limit=200):
    return subprocess.run([str(c) for c in command], env=env or clean(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=limit)


def started(folder, text, ranks=2, python=sys.executable, env=None):
    """A program of some lines under ddprun."""
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    return run(DDPRUN, "-n", ranks, "--quiet", python, path, env=env)


def has(module, python=sys.executable):
    return run(python, "-c", "import " + module).returncode == 0


@case
def the_binding_is_what_the_header_says(_):
    if not has("pycparser") and not (os.path.exists("/usr/bin/python3") and has("pycparser", "/usr/bin/python3")):
        raise Skipped("no pycparser")
    r = run(sys.executable, os.path.join(ROOT, "tools", "python_binding.py"), "--check")
    expect(r.returncode == 0, r.stderr)


@case
def structs_lie_as_c_lays_them_out(folder):
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import python_binding
    source, program = os.path.join(folder, "layouts.c"), os.path.join(folder, "layouts")
    with open(source, "w", encoding="ascii") as f:
        f.write(python_binding.layout_program())
    r = run(*os.environ.get("CC", "cc").split(), "-I", ROOT, source, "-o", program)
    expect(r.returncode == 0, r.stderr[-400:])
    have, lines = python_binding.layouts()[0], run(program).stdout.splitlines()
    expect(len(lines) == len(have) > 90, "%d structs" % len(lines))
    for line in lines:
        name, *numbers = line.split()
        expect(have[name] == [int(n) for n in numbers], "%s: C has %s, ctypes %s" % (name, numbers, have[name]))


WITHOUT = """
import sys
sys.modules["torch"] = None
import array, dreamddp
dreamddp.init(strategy="ssgd")
r = dreamddp.rank()
try:
    import numpy
    w, g = numpy.full((2, 3), 1.0 + r, "f"), numpy.zeros((2, 3), "f")
except ImportError:
    w, g = array.array("f", [1.0 + r] * 6), array.array("f", [0.0] * 6)
b, h = array.array("f", [1.0 + r] * 4), array.array("f", [0.0] * 4)
dreamddp.add_layer("a", w, g)
dreamddp.add_layer("b", [b], [h])
dreamddp.set_optimizer("sgd", lr=0.5)
assert list(b) == [1.0] * 4, "rank 0's parameters"
for s in range(3):
    memoryview(h)[:] = array.array("f", [1.0 + 2 * r] * 4)
    memoryview(g).cast("B").cast("f")[:] = array.array("f", [float(r)] * 6)
    dreamddp.backward_end(1)
    dreamddp.backward_end(0)
    dreamddp.step_end()
dreamddp.sync_all()
assert list(b) == [-2.0] * 4, list(b)
assert list(memoryview(w).cast("B").cast("f")) == [0.25] * 6, w
for wrong in ([1.0], array.array("d", [1.0]), memoryview(b)[::2], b"12345678"):
    try:
        dreamddp.all_mean(wrong)
        raise SystemExit("not refused: %r" % wrong)
    except dreamddp.InvalidArgument as e:
        print(e)
try:
    dreamddp.wrap(None, None)
except dreamddp.Unsupported as e:
    print(e)
p = dreamddp.Profile([0.010] * 6, [0.020, 0.010, 0.020, 0.015, 0.010, 0.010])
q = dreamddp.plan(p, period=2, cost="timeline")
print(q.step_of, round(q.exposed_s, 6), q.solver, q.cost)
"""


@case
def arrays_train_without_pytorch(folder):
    r = started(folder, WITHOUT)
    expect(r.returncode == 0, r.stdout + r.stderr)
    for words in ("not an array of float32", "format 'd'", "is not contiguous", "wrap needs PyTorch",
                  "[1, 1, 0, 1, 0, 0] 0.02 scatter timeline"):
        expect(words in r.stdout, "'%s' is not in: %s" % (words, r.stdout))


@case
def a_rank_that_ends_tells_the_others_why(folder):
    r = started(folder, """
import array, dreamddp
dreamddp.init()
if dreamddp.rank() == 1:
    raise ValueError("no such file of data")
try:
    dreamddp.all_mean(array.array("f", [1.0]))
except dreamddp.Error as e:
    print(type(e).__name__, e.status, e, flush=True)
    import time; time.sleep(1)
""")
    expect(r.returncode == 1, "exit %d" % r.returncode)
    expect("rank 1 ended by ValueError: no such file of data" in r.stdout, r.stdout + r.stderr)


@case
def a_killed_rank_is_a_lost_peer(folder):
    r = started(folder, """
import array, dreamddp, os, sys
dreamddp.init(peer_timeout_s=3)
if dreamddp.rank() == 1:
    os.kill(os.getpid(), 9)
try:
    dreamddp.all_mean(array.array("f", [1.0]))
except dreamddp.PeerLost as e:
    print("lost:", e, flush=True)
except dreamddp.PeerTimeout as e:
    print("lost:", e, flush=True)
""")
    expect(r.returncode != 0, "exit %d" % r.returncode)
    expect("lost: " in r.stdout or "SIGTERM" in r.stderr or "killed by signal 9" in r.stderr, r.stdout + r.stderr)


TRAINING = """
import torch, dreamddp
dreamddp.init(strategy="dreamddp", period=2)
m = torch.nn.Linear(4, 1)
m, o = dreamddp.wrap(m, torch.optim.Adam(m.parameters()))
for s in range(10):
    o.zero_grad()
    m(torch.randn(3, 4)).sum().backward()
    o.step()
dreamddp.sync_all()
total = m.weight.double().sum().item()
print("rank %d of %d has %.9g from %s" % (dreamddp.rank(), dreamddp.world(), total, dreamddp.__file__), flush=True)
"""


def trains(r, ranks, where):
    expect(r.returncode == 0, r.stdout + r.stderr[-1500:])
    found = re.findall(r"rank (\d) of %d has (-?\d[\d.e-]*) from (\S+?\.py)" % ranks, r.stdout)
    expect(len(found) == ranks and len({f[1] for f in found}) == 1, r.stdout)
    expect(all(where in f[2] for f in found), "imported from %s" % found[0][2])


@case
def a_wheel_works_in_a_fresh_environment(folder):
    home = os.path.join(folder, "env")
    r = run(sys.executable, "-m", "venv", "--system-site-packages", home)
    pip = os.path.join(home, "bin", "pip")
    python = os.path.join(home, "bin", "python")
    if r.returncode or not os.path.exists(pip) or not has("setuptools, wheel, torch", python):
        raise Skipped("no venv, pip, wheel or PyTorch in one")
    r = run(pip, "install", "-q", "--no-build-isolation", "--no-deps", SOURCE, env={**clean(), "PYTHONPATH": ""})
    expect(r.returncode == 0, r.stderr[-800:])
    trains(started(folder, TRAINING, 4, python, {**clean(), "PYTHONPATH": ""}), 4, home)


@case
def torchrun_starts_it_unchanged(folder):
    if not has("torch.distributed.run"):
        raise Skipped("no torchrun")
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(TRAINING)
    for more in ((), ("-r", "0:1", "-t", "0:1")):  # 1.13 under Python 3.11 stumbles over its own defaults
        r = run(sys.executable, "-m", "torch.distributed.run", *more, "--standalone", "--nproc_per_node", "2", path)
        if "'NoneType' object has no attribute 'get'" not in r.stderr:
            break
    trains(r, 2, SOURCE)


@case
def the_example_learns(folder):
    if not has("torch"):
        raise Skipped("no PyTorch")
    program = os.path.join(ROOT, "examples", "python", "train.py")
    r = run(DDPRUN, "-n", 2, "--quiet", sys.executable, program, "20")
    expect(r.returncode == 0, r.stdout + r.stderr)
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", r.stdout)]
    expect(len(losses) >= 2 and losses[-1] < losses[0], r.stdout)


def together():
    """The cases of the workers: {name: what went wrong, "" if nothing}."""
    with open(RANKS_PY, encoding="ascii") as f:
        names = re.findall(r"^@worker\ndef (\w+)", f.read(), re.M)
    names = [n for n in names if chosen(n.replace("_", " "))]
    if not names:
        return {}
    if not has("torch"):
        return {n: Skipped("no PyTorch") for n in names}
    r = run(DDPRUN, "-n", RANKS, "--quiet", sys.executable, RANKS_PY, *names, limit=280)
    out = {}
    for n in names:
        wrong = re.findall(r"^(\[\d\] )FAIL %s: (.*)$" % n, r.stdout, re.M)
        fine = len(re.findall(r"^\[\d\] done %s$" % n, r.stdout, re.M))
        out[n] = "; ".join(a + b for a, b in wrong) or ("" if fine == RANKS else "%d of %d ranks ended it: %s" % (
            fine, RANKS, r.stderr[-600:]))
    return out


def main():
    if not os.path.exists(DDPRUN) or not os.path.exists(os.path.join(ROOT, "build", "lib", "libdreamddp.so")):
        print("skipped: build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun build/plan")
        return 77
    return run_cases(kinds=[told(name.replace("_", " "), why) for name, why in together().items()])


if __name__ == "__main__":
    sys.exit(main())
