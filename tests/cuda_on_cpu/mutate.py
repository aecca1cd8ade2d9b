#!/usr/bin/env python3
"""Shows that the tests of kernels can fail: each mutation of mutations.txt must make its test fail.

    tests/cuda_on_cpu/mutate.py              every mutation
    tests/cuda_on_cpu/mutate.py --sample N   N of them, others each day (SEED=... picks the day)
    tests/cuda_on_cpu/mutate.py --only WORD  those whose file or test contains WORD

A line of mutations.txt:   file | old text | new text | test [function]
The file is in src/cuda and contains the old text exactly once (\\n: a line break; several spaces count as one). The
test, tests/cuda/TEST.cu, runs with a copy of src/cuda that has this one change. It must fail, by an assertion or by
a fault of the stand-in, within 60 seconds of processor time. A mutation that does not compile is an error.

The function, where there is one, runs first. If it passes, the whole test runs: the function only saves time.

For a test that is linked with tests/cuda/companion.cu, the script compiles only the families of operators that the
test needs, and links them with the object of `make`. A test that itself includes the changed file is compiled too.
"""
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SECONDS = 60       # of processor time
WAIT = 10 * SECONDS # of wall time, for a busy machine
# The families of companion.cu that a linked test needs. Tests without an entry need the whole companion.
FAMILIES = {"test_cuda_elementwise": ["ELEMENTWISE"], "test_cuda_images": ["ELEMENTWISE", "IMAGES"],
            "test_cuda_conv": ["CONV"], "test_cuda_text": ["TEXT"],
            "test_cuda_text_edges": ["ELEMENTWISE", "TEXT"]}


def read(path):
    """[(line number, file, old, new, test, function or None)]"""
    found = []
    with open(path, encoding="ascii") as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = [p.strip() for p in re.split(r"(?<= )\|(?= )", line.rstrip("\n"))]
            if len(parts) != 4:
                sys.exit("mutations.txt:%d: %d fields between ' | ' where 4 are needed" % (number, len(parts)))
            test, *function = parts.pop().split()
            if len(function) > 1:
                sys.exit("mutations.txt:%d: more than one function after the test" % number)
            found.append((number, *parts, test, function[0] if function else None))
    return found


def pattern(old):
    """The old text as a regular expression that accepts any white space."""
    words = [re.escape(w) for w in old.replace("\\n", " ").split()]
    return re.compile(r"\s+".join(words))


def tls_libs():
    """Returns the TLS libraries if the archive was compiled with TLS."""
    with open(os.path.join(ROOT, "build/plain/src/wire/tls.o"), "rb") as f:
        return ["-lssl", "-lcrypto"] if b"SSL_new" in f.read() else []


def make(*targets):
    """Runs make and prints its output if it fails."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    ran = subprocess.run(["make", "-s", *targets], cwd=ROOT, env=env, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    return ran.stdout if ran.returncode else None


def linked():
    """The tests that link with the companion."""
    with open(os.path.join(ROOT, "tools/cuda.mk"), encoding="ascii") as f:
        names = re.search(r"^CUDA_LINKED +:= \$\(addprefix cuda/test_cuda_,(.*)\)$", f.read(), re.M)
    return ["test_cuda_" + name for name in names[1].split()]


def reads(test, name):
    """Returns whether the object of a test depends on src/cuda/NAME."""
    with open(os.path.join(ROOT, "build/cuda/cuda/%s.o.d" % test), encoding="utf-8") as f:
        return "src/cuda/" + name in f.read().split()


def compile_words(include, name, test, out):
    named, clang = os.environ.get("CXX"), shutil.which("clang++")
    cxx = (named + " -O1" if named else "clang++ -O0" if clang else "g++ -O1").split()
    flags = os.environ.get("CPPFLAGS", "").split()
    whole, families = "tests/cuda/%s.cu" % test, []
    sources = ["-x", "c++", whole]
    if test in LINKED:
        sources = ["-x", "c++", "tests/cuda/companion.cu"]
        if reads(test, name):
            sources += [whole, "-x", "none"]
        else:
            sources += ["-x", "none", "build/cuda/cuda/%s.o" % test]
        families = ["-DDDP__CUDA_IMPLEMENTED"] + ["-DCUDA_PART"] * (test in FAMILIES)
        families += ["-DCUDA_" + family for family in FAMILIES.get(test, [])]
    return cxx + ["-std=c++17", "-ffp-contract=off", "-w", "-isystem", "build/include"] + flags + families + [
        "-DDDP_CUDA_ON_CPU", "-DDDP_SEPARATE", '-DDDP__CUDA_HOPPER="1"', "-include", "tests/heap.h", "-isystem", "tests/cuda_on_cpu",
        "-Ibuild/headers", "-I" + include, "-Isrc", "-Itests"] + sources + [
        "-x", "none", "build/plain/src/select.o", "build/plain/dreamddp.a", "-o", out, "-lm", "-lpthread", "-lcmocka"] + tls_libs()


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))


def run(test, function):
    """Returns the exit code, or 1 as soon as the output reports a failed test. Ends the test at either time limit."""
    env = {k: v for k, v in os.environ.items() if k not in ("TEST_NAME", "TEST_ONLY")}
    env.update({"TEST_ONLY": function} if function else {})
    ran = subprocess.Popen([test], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           stdin=subprocess.DEVNULL, preexec_fn=limit, env=env)
    clock = threading.Timer(WAIT, ran.send_signal, [signal.SIGXCPU])
    clock.start()
    failed = any(b"[  FAILED  ]" in line for line in ran.stdout)
    if failed:
        ran.kill()
    code = ran.wait()
    clock.cancel()
    return 1 if failed else code


def stale(mutation):
    """Returns None if the old text occurs exactly once, else an error message."""
    number, name, old, _, test, function = mutation
    at = "mutations.txt:%d (%s)" % (number, name)
    path = os.path.join(ROOT, "src", "cuda", name)
    if not os.path.isfile(path):
        return "%s: src/cuda has no such file" % at
    if not os.path.isfile(os.path.join(ROOT, "tests/cuda", test + ".cu")):
        return "%s: there is no tests/cuda/%s.cu" % (at, test)
    if function:
        with open(os.path.join(ROOT, "tests/cuda", test + ".cu"), encoding="ascii") as f:
            if not re.search(r"\(%s[,)]" % function, f.read()):
                return "%s: %s has no function %s" % (at, test, function)
    with open(path, encoding="ascii") as f:
        places = len(pattern(old).findall(f.read()))
    return None if places == 1 else "%s: '%s' occurs %d times in the file; it must occur once" % (at, old, places)


def attempt(mutation):
    """Returns None if the test failed as it must, else an error message."""
    number, name, old, new, test, function = mutation
    at = "mutations.txt:%d (%s)" % (number, name)
    with open(os.path.join(ROOT, "src", "cuda", name), encoding="ascii") as f:
        text = f.read()
    changed = pattern(old).sub(lambda m: new.replace("\\n", "\n"), text)
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree(os.path.join(ROOT, "src", "cuda"), os.path.join(d, "cuda"))
        with open(os.path.join(d, "cuda", name), "w", encoding="ascii") as f:
            f.write(changed)
        out = os.path.join(d, "test")
        built = subprocess.run(compile_words(d, name, test, out), cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        if built.returncode:
            return "%s: does not compile with '%s': %s" % (at, new, built.stdout.strip()[:400])
        code = run(out, function)
        if code == 0 and function:
            code = run(out, None)
    if code == -signal.SIGXCPU:
        return "%s: %s does not end with '%s'; a test must end" % (at, test, new)
    if code == 0:
        return "%s: %s passes with '%s' in the place of '%s'" % (at, test, new, old)
    return None


LINKED = linked()


def main(argv):
    found = read(os.path.join(HERE, "mutations.txt"))
    faults = [fault for fault in map(stale, found) if fault]
    if faults:  # checks all mutations, even if only a sample runs
        print("\n".join(faults))
        return 1
    if len(argv) == 2 and argv[0] == "--only":
        found = [m for m in found if argv[1] in m[1] or argv[1] in m[4]]
    elif len(argv) == 2 and argv[0] == "--sample":
        seed = os.environ.get("SEED") or time.strftime("%Y-%m-%d", time.gmtime())
        print("seed %s" % seed)
        found = random.Random(seed).sample(found, min(int(argv[1]), len(found)))
    elif argv:
        sys.stderr.write(__doc__)
        return 2
    objects = sorted({"build/cuda/cuda/%s.o" % m[4] for m in found if m[4] in LINKED})
    fault = make("build/plain/dreamddp.a", *objects)
    if fault:
        print(fault)
        return 1
    caught = missed = 0
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
        for m, fault in zip(found, pool.map(attempt, found)):
            print("%-22s %-40s %s" % (m[1], m[3][:40], fault or "caught"), flush=True)
            caught, missed = caught + (fault is None), missed + (fault is not None)
    print("%d passed, %d failed, 0 skipped" % (caught, missed))
    return 1 if missed or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
