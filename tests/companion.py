"""What tests/test_*.py share that compare a C program beside them, their companion, with a library
of Python."""
import importlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CC = os.environ.get("CC", "cc").split()


def need(module, title):
    """Ends with 77 where the module or a C compiler is missing."""
    try:
        importlib.import_module(module)
    except ImportError:
        if os.environ.get("COMPANION_PYTHON") or not os.path.exists("/usr/bin/python3"):
            print("skipped: %s is not installed" % title)
            sys.exit(77)
        os.environ["COMPANION_PYTHON"] = "1"  # the system's interpreter may have it
        os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)
    if not shutil.which(CC[0]):
        print("skipped: no C compiler", CC[0])
        sys.exit(77)


def build(name):
    """The path of tests/NAME.c, compiled; NAME with its folder. `make test` has done so already."""
    program = os.path.join("build", "plain", name)
    subprocess.run(["make", "-s", program], cwd=ROOT, check=True)
    return os.path.join(ROOT, program)


def output(program, *args, **options):
    """What the program prints; `input` is its text on standard input."""
    return subprocess.run([program, *args], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def close(passed, failed):
    """The line that tools/run_tests.py reads, and the exit code."""
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return 1 if failed else 0
