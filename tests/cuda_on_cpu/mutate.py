#!/usr/bin/env python3
"""Shows that the tests of kernels can fail: each mutation of mutations.txt must make its test fail.

    tests/cuda_on_cpu/mutate.py              every mutation
    tests/cuda_on_cpu/mutate.py --sample N   N of them, others each day (SEED=... picks the day)
    tests/cuda_on_cpu/mutate.py --only WORD  those whose file or test contains WORD

A line of mutations.txt:   file | old text | new text | test
file lies in src/cuda and holds the old text exactly once (\\n: a line break; several spaces count as
one). The test, tests/TEST.cu, is compiled against a copy of src/cuda with that one change, and run:
it must fail, by an assertion or by a fault of the stand-in, within 60 seconds of its processor. A mutation that does
not compile proves nothing and is an error.
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
SECONDS = 60       # of the processor
WAIT = 10 * SECONDS # of a machine that is busy with other things


def read(path):
    """[(line number, file, old, new, test)]"""
    found = []
    with open(path, encoding="ascii") as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = [p.strip() for p in re.split(r"(?<= )\|(?= )", line.rstrip("\n"))]
            if len(parts) != 4:
                sys.exit("mutations.txt:%d: %d fields between ' | ' where 4 are needed" % (number, len(parts)))
            found.append((number, *parts))
    return found


def pattern(old):
    """The old text as an expression in which any white space is like any other."""
    words = [re.escape(w) for w in old.replace("\\n", " ").split()]
    return re.compile(r"\s+".join(words))


def tls_libs():
    """What the archive was compiled against."""
    with open(os.path.join(ROOT, "build/plain/src/wire/tls.o"), "rb") as f:
        return ["-lssl", "-lcrypto"] if b"SSL_new" in f.read() else []


def compile_words(include, test, out):
    named, clang = os.environ.get("CXX"), shutil.which("clang++")
    cxx = (named + " -O1" if named else "clang++ -O0" if clang else "g++ -O1").split()
    flags = os.environ.get("CPPFLAGS", "").split()
    return cxx + ["-std=c++17", "-ffp-contract=off", "-w", "-isystem", "build/include"] + flags + [
        "-DDDP_CUDA_ON_CPU", "-DDDP_SEPARATE", "-include", "tests/heap.h", "-isystem", "tests/cuda_on_cpu",
        "-Ibuild/headers", "-I" + include, "-Isrc", "-Itests", "-x", "c++", "tests/cuda/%s.cu" % test, "-x", "none",
        "build/plain/dreamddp.a", "-o", out, "-lm", "-lpthread", "-lcmocka"] + tls_libs()


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))


def run(test):
    """Its exit code; 1 as soon as it says that something failed. Time of the machine ends it like the processor's."""
    ran = subprocess.Popen([test], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           stdin=subprocess.DEVNULL, preexec_fn=limit)
    clock = threading.Timer(WAIT, ran.send_signal, [signal.SIGXCPU])
    clock.start()
    failed = any(b"[  FAILED  ]" in line for line in ran.stdout)
    if failed:
        ran.kill()
    code = ran.wait()
    clock.cancel()
    return 1 if failed else code


def stale(mutation):
    """None where it has its one place, else a sentence."""
    number, name, old, _, test = mutation
    at = "mutations.txt:%d (%s)" % (number, name)
    path = os.path.join(ROOT, "src", "cuda", name)
    if not os.path.isfile(path):
        return "%s: src/cuda has no such file" % at
    if not os.path.isfile(os.path.join(ROOT, "tests/cuda", test + ".cu")):
        return "%s: there is no tests/cuda/%s.cu" % (at, test)
    with open(path, encoding="ascii") as f:
        places = len(pattern(old).findall(f.read()))
    return None if places == 1 else "%s: '%s' stands %d times in the file; it must stand there once" % (at, old, places)


def attempt(mutation):
    """None where the test caught it, else a sentence."""
    number, name, old, new, test = mutation
    at = "mutations.txt:%d (%s)" % (number, name)
    with open(os.path.join(ROOT, "src", "cuda", name), encoding="ascii") as f:
        text = f.read()
    changed = pattern(old).sub(lambda m: new.replace("\\n", "\n"), text)
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree(os.path.join(ROOT, "src", "cuda"), os.path.join(d, "cuda"))
        with open(os.path.join(d, "cuda", name), "w", encoding="ascii") as f:
            f.write(changed)
        out = os.path.join(d, "test")
        built = subprocess.run(compile_words(d, test, out), cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        if built.returncode:
            return "%s: does not compile with '%s': %s" % (at, new, built.stdout.strip()[:400])
        code = run(out)
    if code == -signal.SIGXCPU:
        return "%s: %s does not end with '%s'; a test must end" % (at, test, new)
    if code == 0:
        return "%s: %s passes with '%s' in the place of '%s'" % (at, test, new, old)
    return None


def main(argv):
    found = read(os.path.join(HERE, "mutations.txt"))
    faults = [fault for fault in map(stale, found) if fault]
    if faults:  # of all, also where only some are tried
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
    caught = missed = 0
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
        for m, fault in zip(found, pool.map(attempt, found)):
            print("%-22s %-40s %s" % (m[1], m[3][:40], fault or "caught"), flush=True)
            caught, missed = caught + (fault is None), missed + (fault is not None)
    print("%d passed, %d failed, 0 skipped" % (caught, missed))
    return 1 if missed or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
