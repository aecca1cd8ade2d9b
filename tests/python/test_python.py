#!/usr/bin/env python3
"""[long, test-all: needs PyTorch] The Python package: its binding matches the header, PyTorch loops match plain PyTorch, user mistakes give an error.

    tests/python/test_python.py [WORD...]     only the cases whose names contain one of the words

The cases of ranks.py run one after another in three processes of build/ddprun; the others start programs. Without
PyTorch, pycparser, pip or torchrun, the cases that need them are skipped by name. Exit 77 if no library is built.
"""
import os
import re
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped, case, expect, run_cases, skip_script, told, unused_port  # noqa: E402
from ddprun import DDPRUN, HERE, ROOT, SOURCE, built, clean, has, run, started, together  # noqa: E402


@case
def binding_matches_the_header(_):
    if not has("pycparser") and not (os.path.exists("/usr/bin/python3") and has("pycparser", "/usr/bin/python3")):
        raise Skipped("no pycparser")
    r = run(sys.executable, os.path.join(ROOT, "tools", "python_binding.py"), "--check")
    expect(r.returncode == 0, r.stderr)


@case
def struct_layouts_match_c(folder):
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
    errors = re.findall(r"^.*\bdreamddp\.\w+: .*$", r.stderr, re.M)  # torchrun prints many lines of its own after them
    expect(r.returncode == 0, "\n".join(errors + [r.stdout, r.stderr[-1500:]]))
    found = re.findall(r"rank (\d) of %d has (-?\d[\d.e-]*) from (\S+?\.py)" % ranks, r.stdout)
    expect(len(found) == ranks and len({f[1] for f in found}) == 1, r.stdout)
    expect(all(where in f[2] for f in found), "imported from %s" % found[0][2])


@case
def wheel_works_in_a_new_environment(folder):
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
def torchrun_starts_an_unchanged_program(folder):
    if not has("torch.distributed.run"):
        raise Skipped("no torchrun")
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(TRAINING)
    for more in ((), ("-r", "0:1", "-t", "0:1")):  # torchrun 1.13 with Python 3.11 fails on its own defaults
        r = run(sys.executable, "-m", "torch.distributed.run", *more, "--master_port", unused_port(2), "--nproc_per_node",
                "2", path)
        if "'NoneType' object has no attribute 'get'" not in r.stderr:
            break
    trains(r, 2, SOURCE)


@case
def example_learns(folder):
    if not has("torch"):
        raise Skipped("no PyTorch")
    program = os.path.join(ROOT, "examples", "python", "train.py")
    r = run(DDPRUN, "-n", 2, "--quiet", sys.executable, program, "20")
    expect(r.returncode == 0, r.stdout + r.stderr)
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", r.stdout)]
    expect(len(losses) >= 2 and losses[-1] < losses[0], r.stdout)


def main():
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun build/plan")
    return run_cases(kinds=[told(name.replace("_", " "), why) for name, why in
                            together(os.path.join(HERE, "ranks.py")).items()])


if __name__ == "__main__":
    sys.exit(main())
