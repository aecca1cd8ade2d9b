#!/usr/bin/env python3
"""Builds the tests of a suite and runs them.

    tools/run_tests.py --suite test|test-all|sanitize [--module DIR] [--name TEXT] [--jobs N]
    tools/run_tests.py --suite coverage [--part test|rest]
    tools/run_tests.py [--jobs N] PROGRAM... [NAME=COMMAND...]

A suite consists of files tests/*/test_*. The words in brackets on the first line of a test select where it runs:
    pure       it starts no threads, so ThreadSanitizer skips it
    asan       ThreadSanitizer skips it: shorter tests start the same threads
    long       it is slow, so it starts first
    test-all   it is not in the suite `test`. The reason follows, as in [test-all: needs OpenSSL]
--module selects the tests of one folder of tests/, --name those whose name contains TEXT.

Each program runs in its own process group under a time-out, N at a time (default: three per processor). Its output is
printed if it fails. The counts are those of cmocka's test functions, else of a script's lines `ok`, `FAILED` and `skipped`, else
of its closing line `N passed, N failed, N skipped`, else its exit code (0 passed, 77 skipped). A crash, a time-out and a
program that did not build count as failures. The last line is `N passed, N failed, N skipped`.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
CASE = re.compile(r"^(ok|FAILED|skipped) +(?:\d+\.\d s +)?(\S.*)$")
DISK_MB = 300  # free space that `make test` needs in build/; measured: 126
CHECKS = [  # (name, command, words as on the first line of a test)
    ("check-header", "make -s check-header", ()),
    ("house", "tools/house.py --check", ()),
    ("format", "tools/format.py --check", ()),
    ("check-prose", "tools/check_prose.py", ()),
    ("cuda-programs", "make -s cuda-programs-checked", ("long", "test-all")),
    ("header/compile", "JOBS=${JOBS:-4} tests/header/compile.sh", ("long", "test-all")),
    ("header/separate", "tests/header/separate.sh", ("long", "test-all")),
    ("check-abi", "make -s check-abi", ("test-all",)),
]


# ---- finding the tests ----

class Test:
    """A test program: its name, its make targets, its command, and the words of its first line."""

    def __init__(self, name, command, targets=(), source=None, words=()):
        self.name, self.command, self.targets, self.source = name, command, list(targets), source
        self.words, self.reason = words_of(source) if source else (set(words), "")

    def matches(self, text):
        if not text or same(text) in same(self.name):
            return True
        return bool(self.source) and any(same(text) in same(name) for name in names_in(self.source))


def names_in(source):
    """The possible names of tests in a file: for C, the test functions, including those of included files of
    tests/; for a script, its functions and strings."""
    with open(source, encoding="utf-8", errors="replace") as f:
        text = f.read()
    if source.endswith((".py", ".sh")):
        return [a or b for a, b in re.findall(r"^def (\w+)|\"([^\"\n]{4,90})\"", text, re.M)]
    names = re.findall(r"^static void (\w+)\(void \*\*|\bcmocka_unit_test\w*\(\s*(\w+)", text, re.M)
    names = [a or b for a, b in names]
    for included in re.findall(r'^#include "([\w/]+\.[ch])"', text, re.M):
        for path in (os.path.join(os.path.dirname(source), included), os.path.join("tests", included)):
            if os.path.exists(path):
                names += names_in(path)
                break
    return names


def same(text):
    """Normalises a name: test functions have underscores, script cases have spaces."""
    return text.lower().replace("_", " ").replace("-", " ")


def words_of(source):
    """The words in brackets on the first line, and the reason after test-all."""
    with open(source, encoding="utf-8", errors="replace") as f:
        head = f.readline()
        if head.startswith("#!"):
            head = f.readline()
    found = re.match(r"\W*\[([^]]*)\]", head)
    if not found:
        return set(), ""
    words, _, reason = found.group(1).partition(":")
    return {w.strip() for w in words.split(",")}, reason.strip()


def programs_of(source, folder):
    """The programs in a folder that a script starts: those that the script or a module next to it names as
    build/NAME or "NAME", and the C programs that it compares with a Python library."""
    known = {os.path.splitext(os.path.basename(p))[0] for pattern in ("examples/*.c*", "examples/*/*.c", "bench/bench_*.c")
             for p in glob.glob(pattern)}
    with open(source, encoding="utf-8") as f:
        text = f.read()
    for module in re.findall(r"^(?:from|import) (\w+)", text, re.M):
        path = os.path.join(os.path.dirname(source), module + ".py")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                text += f.read()
    named = set(re.findall(r"\bbuild/(\w+)|\"(\w+)\"", text))
    if source.startswith("tests/docs/test_commands"):  # the pages use all programs
        named |= {(name, "") for name in known if not name.endswith("_cuda")}
    others = set(re.findall(r"\bbuild/(?:cuda/\w+(?:/\w+)?(?![\w.])|lib/libdreamddp\.so|plain/dreamddp\.a)", text))
    companions = sorted("build/plain/" + n for n in re.findall(r"\bcompanion\.build\(\"([\w/]+)\"", text))
    return [folder + "/" + n for n in sorted({a or b for a, b in named} & known)] + sorted(others) + companions


def discover(flavour, programs="build"):
    """All tests. C tests are from build/FLAVOUR; scripts start programs of a folder."""
    found = []
    for source in sorted(glob.glob("tests/*/test_*")):
        stem, kind = os.path.splitext(source[len("tests/"):])
        if kind == ".c":
            # The tests of `make test` have no OpenSSL, so that they are the same on every machine.
            tls = flavour == "plain" and "test-all" in words_of(source)[0]
            program = "build/%s/%s" % ("tls" if tls else flavour, stem)
            found.append(Test(program, [os.path.abspath(program)], [program], source))
        elif kind == ".cu" and flavour == "plain":
            # The .cu test of `make test` links a smaller companion.
            program = "build/%s/%s" % ("cuda" if "test-all" in words_of(source)[0] else "cuda-part", stem)
            found.append(Test(program, [os.path.abspath(program)], [program], source))
        elif kind in (".sh", ".py") and flavour == "plain":
            words = [os.path.abspath(source)]
            found.append(Test(source, ([None] if kind == ".py" else []) + words, programs_of(source, programs), source))
    return found


def suite(name, module, text, part=None):
    """The tests of a suite, in the order in which they start."""
    if name == "sanitize":
        tests = [t for t in discover("tsan") if not t.words & {"pure", "asan"}] + discover("asan")
    elif name == "coverage":
        tests = discover("cov")
    else:
        checks = [Test(n, ["/bin/sh", "-c", command], words=words) for n, command, words in CHECKS]
        tests = checks + discover("plain", "build/test" if name == "test" else "build")
    if name == "test" or part == "test":
        tests = [t for t in tests if "test-all" not in t.words]
    if part == "rest":
        tests = [t for t in tests if "test-all" in t.words]
    if module:
        tests = [t for t in tests if os.path.basename(os.path.dirname(t.source or t.name)) == module]
    tests = [t for t in tests if t.matches(text)]
    return sorted(tests, key=lambda t: "long" not in t.words)


# ---- building ----

def build(tests, jobs):
    targets = sorted({t for test in tests for t in test.targets})
    if not targets:
        return
    began = time.time()
    print("building %d programs in build/" % len(targets), flush=True)
    # The longest compilation starts first: the generated header with its implementation.
    first = ["build/dreamddp.o"] if any(t.count("/") == 1 for t in targets) else []
    make = ["make", "--no-print-directory", "-s", "-k"]
    if subprocess.run(make + ["-j%d" % jobs] + first + targets, stdin=subprocess.DEVNULL).returncode:
        # Remove the programs of an earlier build, so that they are not tested if they no longer compile.
        for target in targets:
            if os.path.exists(target) and subprocess.run(make + ["-q", target], stdout=subprocess.DEVNULL).returncode:
                os.remove(target)
    print("built in %.0f s" % (time.time() - began), flush=True)


def check_disk(folder, megabytes):
    """Ends the run if the disk is almost full."""
    os.makedirs(folder, exist_ok=True)
    free = shutil.disk_usage(folder).free >> 20
    if free < megabytes:
        sys.exit("run_tests: the disk of %s has %d MB left and the tests need %d MB: free some space, clone to another disk, or set TMPDIR"
                 % (folder, free, megabytes))


# ---- running ----

def python():
    """The Python interpreter for test scripts: the first one with PyTorch, which some scripts need."""
    find = "import sys, importlib.util as u; sys.exit(u.find_spec('torch') is None)"
    for p in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(p) and subprocess.run([p, "-c", find]).returncode == 0:
            return p
    return sys.executable


# All programs stay in one session, because Linux may divide CPU time between sessions regardless of priorities.
GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


RUNNING = set()  # process groups


def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command, env, seconds):
    """Returns (exit code or None after a time-out, output)."""
    p = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, **GROUP)
    RUNNING.add(p.pid)
    try:
        out, _ = p.communicate(timeout=seconds)
        code = p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGABRT)  # a sanitizer then prints where the program hangs
        try:
            out, _ = p.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            out = b""
        code = None
    kill(p.pid)  # kill all processes that the test started
    RUNNING.discard(p.pid)
    if code is None and not out:
        out, _ = p.communicate()
    return code, out.decode("utf-8", "replace")


def results(out):
    """Returns {test: ok, FAILED or skipped} from the lines of cmocka or a script, and the tests that started."""
    lines = out.splitlines()
    words = {"OK": "ok", "FAILED": "FAILED", "ERROR": "FAILED", "SKIPPED": "skipped"}
    named, begun = {}, []
    for line in lines:
        found = re.match(r"\[ *(RUN|OK|FAILED|ERROR|SKIPPED) *\] ([A-Za-z_]\w*)$", line)
        if found and found.group(1) == "RUN":
            begun.append(found.group(2))
        elif found and named.get(found.group(2)) != "ok":  # a teardown's line repeats the name of its test
            named[found.group(2)] = words[found.group(1)]
    if not begun:
        named = {m.group(2): m.group(1) for m in map(CASE.match, lines) if m}
    return named, begun


def count(code, out):
    """Returns [passed, failed, skipped], another problem ('' if none), and {test: result}."""
    lines = out.splitlines()
    named, begun = results(out)
    closing = COUNTS.match(lines[-1]) if lines else None
    why = ""
    if begun:
        done = [list(named.values()).count(k) for k in ("ok", "FAILED", "skipped")]
        lost = [n for n in begun if n not in named]
        why = "in " + lost[-1] if lost else ""
    elif re.search(r"^\[=+\] Running 0 test", out, re.M):  # no test of the program has the requested name
        done = [0, 0, 0]
    elif closing:
        done = [int(n) for n in closing.groups()]
    else:
        done = [int(code == 0), 0, int(code == 77)]
    if code is None:
        why = ("timed out " + why).strip()
    elif code < 0:
        why = ("killed by %s " % signal.Signals(-code).name + why).strip()
    elif code not in (0, 77) and not done[1]:
        why = ("exit code %d " % code + why).strip()
    elif code == 0 and not sum(done) and not os.environ.get("TEST_NAME"):
        why = "ran no test"
    if why:
        done[1] += 1
    return done, why, named


def reasons(why, out):
    """The failure in one line: how the program ended, and the first lines that contain an error."""
    said = [s.strip() for s in out.splitlines() if re.search(r"FAILED|ERROR|Error|error:|Sanitizer", s)]
    return "; ".join(([why] if why else []) + [s[:240] for s in said[:3]])


class Totals:
    """Prints a line for each finished program, and the summary."""

    def __init__(self, names):
        self.lock = threading.Lock()
        self.total, self.failing, self.skips, self.seconds, self.programs = [0, 0, 0], [], [], [], 0
        self.names = open(names, "w") if names else None

    def add(self, test, done, why, named, out, seconds):
        with self.lock:
            self.total = [a + b for a, b in zip(self.total, done)]
            self.seconds.append((seconds, test.name))
            if sum(done):
                print("%-44s %3d passed %3d failed %3d skipped %7.1f s%s" %
                      (test.name, *done, seconds, "  " + why if why else ""), flush=True)
            if done[1]:
                self.failing.append((test.name, reasons(why, out)))
                print("".join("    | %s\n" % s for s in out.splitlines()), end="", flush=True)
            if done[2]:
                said = [s for s in out.splitlines() if s.startswith("skipped")]
                self.skips += ["%s: %s" % (test.name, re.sub(r"^skipped:? *", "", s)) for s in said] or [
                    "%s: no reason given" % test.name]
            if self.names:
                for name, result in named.items() or [(test.name, ("ok", "FAILED", "skipped")[done.index(max(done))])]:
                    self.names.write("%s\t%s\t%s\n" % (test.name, name, result))
                self.names.flush()

    def close(self, began):
        for reason in self.skips:
            print("skipped: %s" % reason)
        for name, said in self.failing:
            print("failed: %s: %s" % (name, said))
        if len(self.seconds) > 1:
            print("slowest: " + ", ".join("%s %.1f s" % (n, s) for s, n in sorted(self.seconds, reverse=True)[:10]))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print("in %.0f s; %.0f s of CPU time" % (time.time() - began, used.ru_utime + used.ru_stime))
        print("%d passed, %d failed, %d skipped" % tuple(self.total), flush=True)


def attempt(test, env, timeout):
    """Runs a test. Returns the arguments of Totals.add."""
    program = test.command[-1]
    start = time.time()
    if len(test.command) < 3 and not os.access(program, os.X_OK):
        why = "is not executable" if os.path.exists(program) else "was not built"
        return test, [0, 1, 0], why, {}, "", 0.0
    if same(env.get("TEST_NAME", "")) in same(test.name):
        env = {k: v for k, v in env.items() if k != "TEST_NAME"}  # the name matches the whole program
    code, out = run([w or env["PYTHON"] for w in test.command], env, timeout)
    return (test, *count(code, out), out, time.time() - start)


def arguments():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--suite", choices=["test", "test-all", "sanitize", "coverage"])
    a.add_argument("--module", default="", metavar="DIR")
    a.add_argument("--name", default="", metavar="TEXT")
    a.add_argument("--part", choices=["test", "rest"], help="run only the tests of `make test`, or only the others")
    a.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1), metavar="N")
    a.add_argument("--timeout", type=float, default=1800, metavar="SECONDS")
    a.add_argument("--names", metavar="FILE", help="write a line for each test: program, name, result")
    a.add_argument("--list", action="store_true", help="only list the programs of the suite")
    a.add_argument("programs", nargs="*", metavar="PROGRAM")
    return a.parse_args()


def main():
    a = arguments()
    began = time.time()
    if a.suite:
        os.chdir(ROOT)
        a.module = a.module.rstrip("/")
        if a.module and not os.path.isdir("tests/" + a.module):
            sys.exit("run_tests: MODULE=%s: folder tests/%s does not exist; the folders are: %s" %
                     (a.module, a.module, " ".join(sorted(os.path.basename(d) for d in glob.glob("tests/*") if os.path.isdir(d)))))
        tests = suite(a.suite, a.module, a.name, a.part)
        if not tests:
            sys.exit("run_tests: `make %s` has no test%s%s%s" % (
                a.suite, " in tests/" + a.module if a.module else "", " with %r in its name" % a.name if a.name else "",
                "; `make test-all` has more tests" if a.suite == "test" else ""))
    else:
        tests = [Test(p.partition("=")[0], ["/bin/sh", "-c", p.partition("=")[2]] if "=" in p else
                      ([None] if p.endswith(".py") else []) + [os.path.abspath(p)]) for p in a.programs]
    if a.list:
        print("\n".join(t.name for t in tests))
        return 0
    # Tests that run make must not inherit the options and job slots of this make.
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "TEST_NAME", "TEST_ONLY", "BUILD")}
    os.environ.pop("TEST_NAME", None)
    if a.name:
        env["TEST_NAME"] = os.environ["TEST_NAME"] = a.name
    os.environ.pop("MAKEFLAGS", None)
    if a.suite:
        check_disk("build", DISK_MB if a.suite == "test" else 1000)
        check_disk(tempfile.gettempdir(), 100)
        build(tests, min(a.jobs, os.cpu_count() or 1))
    env.setdefault("PYTHON", sys.executable if a.suite == "test" else python())
    if a.suite == "test":
        env["BUILD"] = "build/test"
    totals = Totals(a.names)
    pool = concurrent.futures.ThreadPoolExecutor(a.jobs)
    try:
        for ended in concurrent.futures.as_completed([pool.submit(attempt, t, env, a.timeout) for t in tests]):
            totals.add(*ended.result())
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        print("interrupted: running programs are killed, the others do not start", flush=True)
        for group in list(RUNNING):
            kill(group)
        totals.close(began)
        os._exit(130)
    totals.close(began)
    if not sum(totals.total):
        print("run_tests: no test of these programs has %r in its name" % a.name)
    return 1 if totals.total[1] or not sum(totals.total) else 0


if __name__ == "__main__":
    sys.exit(main())
