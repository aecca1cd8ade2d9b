"""Starts Python programs under build/ddprun with the package of python/."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DDPRUN = os.path.join(ROOT, "build", "ddprun")
SOURCE = os.path.join(ROOT, "python")
RANKS_PY = os.path.join(ROOT, "tests", "python", "ranks.py")
RANKS = 3


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "PYTHONPATH"))}
    return dict(env, PYTHONPATH=SOURCE, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **more)


def run(*command, env=None, limit=400):
    return subprocess.run([str(c) for c in command], env=env or clean(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=limit)


def started(folder, text, ranks=2, python=sys.executable, env=None):
    """A program of some lines under ddprun."""
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    return run(DDPRUN, "-n", ranks, "--quiet", python, path, env=env)


def built():
    return os.path.exists(DDPRUN) and os.path.exists(os.path.join(ROOT, "build", "lib", "libdreamddp.so"))
