"""Starts Python programs with build/ddprun and the package in python/."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Skipped, chosen  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DDPRUN = os.path.join(ROOT, "build", "ddprun")
SOURCE = os.path.join(ROOT, "python")
HERE = os.path.join(ROOT, "tests", "python")
RANKS = 3


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "PYTHONPATH"))}
    return dict(env, PYTHONPATH=SOURCE, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **more)


def run(*command, env=None, limit=400):
    return subprocess.run([str(c) for c in command], env=env or clean(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=limit)


def started(folder, text, ranks=2, python=sys.executable, env=None, arguments=()):
    """Runs a program, given as text, with ddprun."""
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    return run(DDPRUN, "-n", ranks, "--quiet", python, path, *arguments, env=env)


def built():
    return os.path.exists(DDPRUN) and os.path.exists(os.path.join(ROOT, "build", "lib", "libdreamddp.so"))


def has(module, python=sys.executable):
    return run(python, "-c", "import " + module).returncode == 0


def together(script, limit=600):
    """Runs the functions after @worker of a script on three ranks. Returns {name: the error, "" for success, or
    Skipped}."""
    with open(script, encoding="ascii") as f:
        names = re.findall(r"^@worker\ndef (\w+)", f.read(), re.M)
    names = [n for n in names if chosen(n.replace("_", " "))]
    if not names:
        return {}
    if not has("torch"):
        return {n: Skipped("no PyTorch") for n in names}
    r = run(DDPRUN, "-n", RANKS, "--quiet", sys.executable, script, *names, limit=limit)
    out = {}
    for n in names:
        wrong = re.findall(r"^(\[\d\] )FAIL %s: (.*)$" % n, r.stdout, re.M)
        fine = len(re.findall(r"^\[\d\] done %s$" % n, r.stdout, re.M))
        skipped = re.findall(r"^\[0\] SKIP %s: (.*)$" % n, r.stdout, re.M)
        out[n] = "; ".join(a + b for a, b in wrong) or (Skipped(skipped[0]) if skipped else "" if fine == RANKS else
                                                        "%d of %d ranks ended it: %s" % (fine, RANKS, r.stderr[-600:]))
    return out
