#!/usr/bin/env python3
"""Runs test programs, each in its own process group under a time-out.

    tools/run_tests.py [--timeout S] [--jobs N | --idle N] PROGRAM... [NAME=COMMAND...]

Those after --jobs N run N at a time, for programs that measure no time; at first, and after
--jobs 1, each is alone. Those after --idle N run N at a time on what is left of the processors
beside all that follows, up to --jobs 1, which waits for them.
One line per program as it ends: its counts and seconds; the whole output of those that fail, and at the end
what each of them says is wrong. Counted are cmocka's test functions; else the closing line `N passed, N failed, N skipped`; else the program
is one test by its exit code (0 passed, 77 skipped). A crash, a time-out and a program that was
not built count as failed, by name. The last line is `N passed, N failed, N skipped`.
"""
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")


def python():
    """The interpreter for test scripts: the first that has PyTorch, an optional oracle."""
    find = "import sys, importlib.util as u; sys.exit(u.find_spec('torch') is None)"
    for p in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(p) and subprocess.run([p, "-c", find]).returncode == 0:
            return p
    return sys.executable


# Linux may share processors fairly between sessions, whatever their priorities are, so that all are in one.
GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def run(command, env, seconds):
    """(exit code or None after a time-out, output)"""
    p = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, **GROUP)
    try:
        out, _ = p.communicate(timeout=seconds)
        code = p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGABRT)  # a chance for a sanitizer to print where it hangs
        try:
            out, _ = p.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            out = b""
        code = None
    try:
        os.killpg(p.pid, signal.SIGKILL)  # nothing that a test forked outlives it
    except ProcessLookupError:
        pass
    if code is None and not out:
        out, _ = p.communicate()
    return code, out.decode("utf-8", "replace")


def count(code, out):
    """[passed, failed, skipped] and what else is wrong, '' if nothing."""
    lines = out.splitlines()
    ok, bad, skipped = (set(re.findall(r"^\[ *%s *\] ([A-Za-z_]\w*)$" % w, out, re.M))
                        for w in ("OK", "(?:FAILED|ERROR)", "SKIPPED"))
    begun = re.findall(r"^\[ *RUN *\] (\w+)", out, re.M)
    closing = COUNTS.match(lines[-1]) if lines else None
    if begun:
        bad -= ok  # a teardown's line repeats a name
        done = [len(ok - bad - skipped), len(bad), len(skipped)]
        lost = [n for n in begun if n not in ok | bad | skipped]
        why = "in " + lost[-1] if lost else ""
    elif re.search(r"^\[=+\] Running 0 test", out, re.M):  # a filter that fits none of them
        done, why = [0, 0, 0], ""
    elif closing:
        done, why = [int(n) for n in closing.groups()], ""
    else:
        done, why = [int(code == 0), 0, int(code == 77)], ""
    if code is None:
        why = ("timed out " + why).strip()
    elif code < 0:
        why = ("killed by %s " % signal.Signals(-code).name + why).strip()
    elif code not in (0, 77) and not done[1]:
        why = ("exit code %d " % code + why).strip()
    elif code == 0 and not sum(done):
        why = "ran no test"
    if why:
        done[1] += 1
    return done, why


def reasons(why, out):
    """What is wrong, in a line: how it ended, and the first lines that name an error."""
    said = [s.strip() for s in out.splitlines() if re.search(r"FAILED|ERROR|Error|error:|Sanitizer", s)]
    return "; ".join(([why] if why else []) + [s[:240] for s in said[:3]])


def attempt(program, idle, env, timeout):
    """(name, counts, what else is wrong, output, seconds)"""
    name, equals, command = program.partition("=")
    start = time.time()
    if not equals and not os.access(program, os.X_OK):
        why = "is not executable" if os.path.exists(program) else "was not built"
        return name, [0, 1, 0], why, "", 0.0
    words = ["/bin/sh", "-c", command] if equals else [os.path.abspath(program)]
    if not equals and program.endswith(".py"):
        words.insert(0, env["PYTHON"])
    if idle:
        words = ["nice", "-n", "19", *words]
    code, out = run(words, env, timeout * (10 if equals else 1))
    done, why = count(code, out)
    return name, done, why, out, time.time() - start


class Sum:
    def __init__(self):
        self.lock = threading.Lock()
        self.total, self.failing = [0, 0, 0], []

    def add(self, name, done, why, out, seconds):
        with self.lock:
            self.total = [a + b for a, b in zip(self.total, done)]
            print("%-32s %3d passed %3d failed %3d skipped %7.1f s%s" %
                  (name, *done, seconds, "  " + why if why else ""), flush=True)
            if done[1]:
                self.failing.append((name, reasons(why, out)))
                print("".join("    | %s\n" % s for s in out.splitlines()), end="", flush=True)


def main(argv):
    timeout, jobs, idle, programs = 120.0, 1, False, []
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env.setdefault("PYTHON", python())  # for tests that compare with PyTorch
    args = iter(argv)
    for a in args:
        if a == "--timeout":
            timeout = float(next(args))
        elif a in ("--jobs", "--idle"):
            jobs, idle = int(next(args)), a == "--idle"
        else:
            programs.append((jobs, idle, a))
    told, beside, began = Sum(), [], time.time()

    def one(program, idle):
        told.add(*attempt(program, idle, env, timeout))

    def end(running):
        while running:
            running.pop().result()

    for (jobs, idle), group in groupby(programs, lambda p: p[:2]):
        if jobs == 1 and not idle:
            end(beside)
        pool = ThreadPoolExecutor(jobs)
        running = [pool.submit(one, program, idle) for _, _, program in group]
        if idle:
            beside += running
        else:
            end(running)
    end(beside)
    for name, said in told.failing:
        print("failed: %s: %s" % (name, said))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("in %.0f s, %.0f s of processors" % (time.time() - began, used.ru_utime + used.ru_stime))
    print("%d passed, %d failed, %d skipped" % tuple(told.total))
    return 1 if told.total[1] or not sum(told.total) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
