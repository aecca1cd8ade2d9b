"""Runs examples/interleaved.c under a strategy."""
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
SOURCE = os.path.join(ROOT, "examples", "interleaved.c")


def run(*command, **env):
    r = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=dict(os.environ, **env))
    return r.returncode, r.stdout, r.stderr


def losses(text, rank=""):
    return [float(x) for x in re.findall(r"^%sstep +\d+  loss ([0-9.]+)" % re.escape(rank), text, re.M)]


def learns_under(check, strategy):
    """Checks that three workers of examples/interleaved.c reduce the loss and end with equal parameters."""
    code, out, err = run(BUILD + "/ddprun", "-n", "3", "--net", "200mbit,1ms", "--strategy", strategy, BUILD + "/interleaved", SOURCE,
                         DREAMDDP_PERIOD="4")
    each = [losses(out, "[%d] " % r) for r in range(3)]
    check("three workers learn with %s" % strategy,
          code == 0 and all(len(e) == 3 and e[-1] < 4.2 for e in each) and each[0] != each[1], err + out)
