"""For tests/*/test_*.py that compare a C program in the same folder, the companion, with a Python library."""
import importlib
import os
import shutil
import subprocess
import sys

from cases import chosen, close, skip_script, told  # noqa: F401

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CC = os.environ.get("CC", "cc").split()
RESULTS = []


def need(module, title):
    """Exits with 77 if the module or a C compiler is missing."""
    try:
        importlib.import_module(module)
    except ImportError:
        if os.environ.get("COMPANION_PYTHON") or not os.path.exists("/usr/bin/python3"):
            skip_script("%s is not installed" % title)
        os.environ["COMPANION_PYTHON"] = "1"  # the system's Python may have the module
        os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)
    if not shutil.which(CC[0]):
        skip_script("no C compiler %s" % CC[0])


def build(name):
    """Compiles tests/NAME.c, if make has not built it yet, and returns the program's path. NAME includes the
    folder."""
    program = os.path.join("build", "plain", name)
    subprocess.run(["make", "-s", program], cwd=ROOT, check=True)
    return os.path.join(ROOT, program)


def output(program, *args, **options):
    """Runs the program and returns its stdout. `input`: the text of its stdin."""
    return subprocess.run([program, *args], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def result(name, good, figures=""):
    """Prints and counts one comparison. figures: printed on a line before it."""
    if chosen(name):
        if figures:
            print("  " + figures)
        RESULTS.append(told(name, "" if good else figures or "wrong"))
    return good


def end():
    """Prints the counts. Returns the exit code."""
    return close(RESULTS)
