"""Runs the cases of a test script, each in an empty folder, and prints a line for each result.

    script.py [WORD...]     only the cases whose names contain one of the words
    TEST_NAME=TEXT script.py     only the cases whose names contain the text

An underscore in a word or a text equals a space. Lines: `ok       1.2 s  NAME`, `FAILED   1.2 s  NAME: WHY`,
`skipped: NAME: REASON`. The last line is `N passed, N failed, N skipped`.
"""
import concurrent.futures
import functools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

CASES = []  # (name, function) of the running script
OWNED_PORTS = []  # the sockets of unused_port()


class Wrong(Exception):
    """A failed check, with a message of one line."""


class Skipped(Exception):
    """The reason why a case cannot run on this machine."""


def expect(holds, message="wrong"):
    if not holds:
        raise Wrong(message)


def case(name):
    """@case or @case("name"): registers a function that takes the path of an empty folder."""
    if not callable(name):
        return lambda function: CASES.append((name, function)) or function
    CASES.append((name.__name__.replace("_", " "), name))
    return name


def comma_locale(folder):
    """Environment variables for a locale with a decimal comma, which glibc finds in the folder; see
    tests/comma_locale.h."""
    os.mkdir(os.path.join(folder, "comma"))
    with open(os.path.join(folder, "comma", "LC_NUMERIC"), "wb") as f:
        f.write(struct.pack("=11I", 0x20031114, 6, 0x20, 0x22, 0x23, 0x24, 0x28, 0x2c, ord(","), ord(","), 0) + b"UTF-8\0")
    return {"LOCPATH": folder, "LC_NUMERIC": "comma"}


CHOOSES_ITS_LOCALE = """#include <locale.h>
#include <unistd.h>
__attribute__((constructor)) static void choose(void)
{
    if (!setlocale(LC_NUMERIC, "") || *localeconv()->decimal_point != ',') _exit(97);
}
"""


def preloaded_comma_locale(folder):
    """Environment variables with which every program starts in that locale. Otherwise a C program would have to
    call setlocale."""
    source, library = os.path.join(folder, "choose.c"), os.path.join(folder, "choose.so")
    with open(source, "w") as f:
        f.write(CHOOSES_ITS_LOCALE)
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", source, "-o", library], check=True)
    env = dict(comma_locale(folder), LC_ALL="", LD_PRELOAD=library)
    if subprocess.run(["/bin/sh", "-c", ":"], env=dict(os.environ, **env)).returncode:
        raise Skipped("no locale has a decimal comma")
    return env


def unused_port(count=1):
    """Returns a TCP port at which no process listens, followed by count - 1 more.

    A port that bind() chooses is from the ephemeral range (Linux: 32768 and above), and an outgoing connection may take
    it before the test uses it. These ports are below that range, and below the ports that the library computes for a
    run (20000 to 31999). Until this process ends it holds the UDP ports of the same numbers, so that no other test
    chooses them."""
    first, span = 10000, 10000
    for i in range(span):
        port, owned = first + (os.getpid() * 20 + i * count) % (span - count), []
        try:
            for one in range(port, port + count):
                owned.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                owned[-1].bind(("127.0.0.1", one))
                with socket.socket() as s:
                    s.bind(("", one))
        except OSError:
            for s in owned:
                s.close()
            continue
        OWNED_PORTS.extend(owned)
        return port
    raise Wrong("no free port")


def unused_address():
    """Returns HOST:PORT where no process listens. The host address is unique to this process, so that no program at
    127.0.0.1 disturbs the test."""
    own = os.getpid()
    return "127.%d.%d.%d:%d" % (1 + own // 64516 % 254, 1 + own // 254 % 254, 1 + own % 254, unused_port())


def same(text):
    """Normalises a name: ignores case, underscores and hyphens."""
    return text.lower().replace("_", " ").replace("-", " ")


def chosen(name):
    """True if the command line and the variable TEST_NAME select this case."""
    name, words = same(name), [same(w) for w in sys.argv[1:]]
    return same(os.environ.get("TEST_NAME", "")) in name and (not words or any(w in name for w in words))


def told(name, why, seconds=None):
    """Prints one result. why: '' after success, the message of a failure, or a Skipped. Returns 0, 1 or 2."""
    if isinstance(why, Skipped):
        print("skipped: %s: %s" % (name, why), flush=True)
        return 2
    print("%-7s %s%s%s" % ("FAILED" if why else "ok", "" if seconds is None else "%5.1f s  " % seconds, name,
                           ": %s" % why if why else ""), flush=True)
    return 1 if why else 0


def attempt(item):
    """Runs one case. Returns (name, why, seconds)."""
    name, function = item
    began, why = time.time(), ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            function(folder)
        except Skipped as e:
            why = e
        except Wrong as e:
            why = str(e) or "wrong"
        except Exception as e:  # a hanging program or an error in the test itself fails only this case
            why = "%s: %s" % (type(e).__name__, e)
    return name, why, time.time() - began


def inside(function):
    """Runs a case with its folder as the working directory. Not for scripts that run cases in parallel."""
    @functools.wraps(function)
    def wrapped(folder):
        before = os.getcwd()
        os.chdir(folder)
        try:
            function(folder)
        finally:
            os.chdir(before)
    return wrapped


def ticks(pid):
    """The CPU time that a process has used, in hundredths of a second, or 0 if it has ended."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
    except OSError:
        return 0


def processes_with(text):
    """The ids of other processes whose command lines contain the text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                if text.encode() in f.read().replace(b"\0", b" ") and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Checks:
    """The results of a script that runs checks in sequence instead of registering cases."""

    def __init__(self):
        self.kinds = []

    def __call__(self, name, good, said=""):
        """Counts and prints one check. good: a truth value, or a Skipped."""
        if chosen(name):
            self.kinds.append(told(name, good if isinstance(good, Skipped) else "" if good else str(said) or "wrong"))

    def close(self):
        return close(self.kinds)


def close(kinds):
    """Prints the counts of results that told() returned. Returns the exit code."""
    print("%d passed, %d failed, %d skipped" % tuple(kinds.count(k) for k in range(3)))
    return int(1 in kinds)


def skip_script(reason):
    """Ends a script that cannot run on this machine, with exit code 77."""
    print("skipped: %s: %s" % (os.path.basename(sys.argv[0]), reason), flush=True)
    sys.exit(77)


def run_cases(jobs=1, kinds=()):
    """Runs the chosen cases. With jobs > 1 the last cases start first, because they take longest. kinds: earlier
    results of told(). Returns the exit code."""
    kinds, own = list(kinds), [c for c in CASES if chosen(c[0])]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for ended in pool.map(attempt, own if jobs == 1 else own[::-1]):
            kinds.append(told(*ended))
    return close(kinds)
