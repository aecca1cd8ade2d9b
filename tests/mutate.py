#!/usr/bin/env python3
"""Mutation testing of the pure modules: each branch is negated, one at a time, and at least one test must fail.

    tests/mutate.py [--modules plan,compress,io,pipe] [--sample N] [--seed S] [--again FILE] [--jobs 2] [--json FILE] [--check]

Branches are the conditions of if, while, for and ?:, and each operand of && and ||. They are compiled only once,
into copies of the modules' files in build/mutants/, as MUT(number, condition). An environment variable selects the
negated one. A first run without mutants records which test programs evaluate which conditions. Only these programs run
for a mutant, the fastest first, until one fails, crashes or exceeds 5 times its CPU time plus 2 s (CPU time, so that a
busy machine does not change the result). A mutant that no test evaluates is not detected.

Needs build/plain/dreamddp.a and build/headers/dreamddp.h from `make`. --sample N tries N random mutants, which depend on
the seed. --again tries those that an earlier run's --json FILE lists as not detected. tests/mutants_equivalent.txt lists
equivalent mutants, which do not change the behaviour, with the reason. --check: exit code 1 if less than 90 % of a
module's mutants are detected.
"""
import argparse
import glob
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = "build/mutants"
WANTED = 90.0  # percent
MODULES = {
    "plan": ["src/plan/*.c", "src/plan/*/*.c"],
    "compress": ["src/compress/*.c"],
    "io": ["src/io/*.c"],
    "pipe": ["src/pipe/schedule.c", "src/pipe/layout.c", "src/pipe/play.c", "src/comm/frame.c"],
}
TESTS = ["tests/plan/test_*.c", "tests/compress/test_*.c", "tests/io/test_*.c", "tests/pipe/test_schedule.c",
         "tests/pipe/test_layout.c", "tests/pipe/test_edges.c", "tests/comm/test_messages.c", "tests/comm/test_engine.c"]
SCRIPTS = "tests/plan/test_plan_*.sh"  # the scripts run the program that $PLAN names
SLOW = ("test_plan_baselines.sh", "test_plan_choose.sh")  # these run whole planners, which takes longest

HEADER = """\
/* Written by tests/mutate.py. The mutants whose conditions were evaluated, and the negated one; 0: none. */
extern unsigned char *mutants_seen;
extern int mutant_now;
static inline int mutant_is(int k)
{
    mutants_seen[k] = 1;
    return mutant_now == k;
}
#define MUT(k, ...) (mutant_is(k) != !!(__VA_ARGS__))
"""
# A shared mapping, so that the file also records the conditions that forked and crashed processes evaluated.
OBJECT = """\
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static unsigned char nowhere[%d];
unsigned char *mutants_seen = nowhere;
int mutant_now;
__attribute__((constructor(101))) static void mutants_open(void)
{
    const char *now = getenv("MUTANT"), *seen = getenv("MUTANTS_SEEN");
    int file = seen ? open(seen, O_RDWR) : -1;
    void *map = file >= 0 ? mmap(0, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (map != MAP_FAILED) mutants_seen = map;
    if (now) mutant_now = atoi(now);
}
"""

# ---- finding the branches ----

TOKEN = re.compile(r"""
    (?P<space>\s+ | //[^\n]* | /\*.*?\*/)
  | (?P<text>"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*')
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]])
""", re.X | re.S)
DIRECTIVE = re.compile(r"[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*", re.S)
ASSIGNS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
CLOSES = {"(": ")", "[": "]", "{": "}"}


class Node:
    """A token, or a pair of brackets with its contents. begin, end: byte offsets in the file."""
    def __init__(self, text, begin, end, items=None):
        self.text, self.begin, self.end, self.items = text, begin, end, items

    def opens(self, bracket):
        return self.items is not None and self.text == bracket


def tree(path, source):
    """The nodes of a file, without preprocessor lines."""
    stack, at, line_begins = [("", 0, [])], 0, True
    while at < len(source):
        if line_begins:
            directive = DIRECTIVE.match(source, at)
            if directive:
                at, line_begins = directive.end(), False
                continue
        m = TOKEN.match(source, at)
        if not m:
            sys.exit("%s: cannot read '%s'" % (path, source[at:at + 20]))
        text = m.group()
        if m.lastgroup == "space":
            line_begins = "\n" in text and not text.startswith("/")
        else:
            line_begins = False
            if text in CLOSES:
                stack.append((text, at, []))
            elif text in CLOSES.values():
                bracket, begin, items = stack.pop()
                if CLOSES.get(bracket) != text:
                    sys.exit("%s: unmatched '%s' at byte %d" % (path, text, at))
                stack[-1][2].append(Node(bracket, begin, m.end(), items))
            else:
                stack[-1][2].append(Node(text, at, m.end()))
        at = m.end()
    if len(stack) != 1:
        sys.exit("%s: '%s' is not closed" % (path, stack[-1][0]))
    return stack[0][2]


def split(items, sign):
    parts = [[]]
    for n in items:
        if n.items is None and n.text == sign:
            parts.append([])
        else:
            parts[-1].append(n)
    return parts


class Finder:
    """Collects (function, begin, end) of the branches of one file."""
    def __init__(self, path, source):
        self.path, self.found, self.function = path, [], ""
        nodes = tree(path, source)
        for i, n in enumerate(nodes):
            if n.opens("{") and i > 1 and nodes[i - 1].opens("("):
                self.function = nodes[i - 2].text
                self.walk(n.items)

    def mark(self, items):
        if items:
            self.found.append((self.function, items[0].begin, items[-1].end))

    def walk(self, items):
        """Statements, or expressions with commas. Static initialisers, enums and structs are not evaluated at run
        time."""
        part, constant = [], False
        for n in items:
            if n.text == "static" and n.items is None:
                constant = True
            ends = n.items is None and n.text in (";", ",")
            block = n.opens("{") and self.is_block(part)
            if not ends:
                part.append(n)
            if ends or block:
                if not constant:
                    self.statement(part)
                part = []
            if n.items is None and n.text == ";":
                constant = False
        if not constant:
            self.statement(part)

    @staticmethod
    def is_block(part):
        """True if braces after these nodes are a block, and not an initialiser or a literal."""
        if not part or part[-1].text in ("else", "do", ":"):
            return True
        return len(part) > 1 and part[-1].opens("(") and part[-2].text in ("if", "while", "for", "switch")

    def statement(self, part):
        while part:
            head, group = part[0].text, part[1] if len(part) > 1 else None
            if part[0].items is not None:
                break
            if head in ("else", "do", "return"):
                part = part[1:]
            elif head in ("if", "while", "switch") and group and group.opens("("):
                if head != "switch":
                    self.mark(group.items)
                self.walk(group.items)
                part = part[2:]
            elif head == "for" and group and group.opens("("):
                three = split(group.items, ";")
                if len(three) == 3:
                    self.mark(three[1])
                self.walk(group.items)
                part = part[2:]
            elif head == "case":
                part = part[[n.text for n in part].index(":") + 1:]
            elif group and group.text == ":" and re.match(r"[A-Za-z_]\w*$", head):
                part = part[2:]
            else:
                break
        if len(part) == 1 and part[0].opens("{"):
            self.walk(part[0].items)
        elif part:
            self.expression(part)

    def expression(self, part):
        signs = [n.text if n.items is None else "" for n in part]
        question = signs.index("?") if "?" in signs else len(part)
        begin = max([i + 1 for i in range(question) if signs[i] in ASSIGNS], default=0)
        self.groups(part[:begin])
        if question == len(part):
            self.logic(part[begin:], "||")
            return
        depth = 0
        for colon in range(question, len(part)):
            depth += (signs[colon] == "?") - (signs[colon] == ":")
            if depth == 0:
                break
        else:
            sys.exit("%s: a '?' without its ':' in %s" % (self.path, self.function))
        self.mark(part[begin:question])
        self.logic(part[begin:question], "||")
        self.expression(part[question + 1:colon])
        self.expression(part[colon + 1:])

    def logic(self, part, sign):
        operands = split(part, sign)
        for o in operands:
            if len(operands) > 1:
                self.mark(o)
            if sign == "||":
                self.logic(o, "&&")
            else:
                self.groups(o)

    def groups(self, part):
        for i, n in enumerate(part):
            around = [p.text for p in part[max(0, i - 2):i]]
            if n.items is not None and not (n.text == "{" and {"enum", "struct", "union"} & set(around)):
                self.walk(n.items)


class Mutant:
    def __init__(self, number, module, path, function, line, text):
        self.number, self.module, self.path, self.function, self.line, self.text = number, module, path, function, line, text
        self.which = 0  # index among equal conditions in the function
        self.equivalent = False
        self.tests = []
        self.verdict = self.by = None  # verdict: failed, crashed, timed out; survived, not reached. by: the test

    def __str__(self):
        return "%s:%d: %s" % (self.path, self.line, self.text)

    def key(self):
        """Identifies the mutant when the rest of the file changes."""
        return self.path, self.function, self.text, self.which


def write_copies():
    """Finds all mutants and writes copies of the files with them. The copies have the same paths under OUT as
    under src."""
    mutants = []
    for module, patterns in MODULES.items():
        for path in sorted(p for pattern in patterns for p in glob.glob(pattern)):
            with open(path, encoding="ascii") as f:
                source = f.read()
            puts = []  # (byte, order, text)
            for function, begin, end in Finder(path, source).found:
                text = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", source[begin:end], flags=re.S)).strip()
                m = Mutant(len(mutants) + 1, module, path, function, source.count("\n", 0, begin) + 1, text)
                m.which = sum(o.key()[:3] == m.key()[:3] for o in mutants[-300:])
                mutants.append(m)
                # outer conditions begin first and end last
                puts += [(begin, 1, -end, "MUT(%d, " % m.number), (end, 0, -begin, ")")]
            out, at = [], 0
            for byte, _, _, text in sorted(puts):
                out += [source[at:byte], text]
                at = byte
            copy = os.path.join(OUT, path[len("src/"):])
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            with open(copy, "w", encoding="ascii") as f:
                f.write("".join(out) + source[at:])
    return mutants


def mark_equivalent(mutants, path):
    """Marks the equivalent mutants. A line is `file: condition: reason`. If the file contains the condition more
    than once, it is `file(function): condition: reason`, or `file(function#2): ..` for the second one in that
    function."""
    with open(path, encoding="ascii") as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            head = re.match(r"([\w/.]+)(?:\((\w+)(?:#(\d+))?\))?: (.*\S)", line)
            name, function, which, rest = head.groups() if head else ("", None, None, line)
            fit = [m for m in mutants if m.path == "src/" + name and function in (None, m.function)
                   and rest.startswith(m.text + ": ")]
            longest = max((len(m.text) for m in fit), default=0)
            fit = [m for m in fit if len(m.text) == longest]
            if which:
                fit = fit[int(which) - 1:int(which)]
            if len(fit) != 1:
                sys.exit("%s:%d: the line matches %d branches; it must match one" % (path, number, len(fit)))
            fit[0].equivalent = True


# ---- programs ----

def has_tls():
    with open("build/plain/src/wire/tls.o", "rb") as f:
        return b"SSL_new" in f.read()


def compile_flags():
    """The flags of `plain` in tools/tests.mk, with the copies before src. Warnings are off, because a mutant may
    leave values unused."""
    return ["-std=c11"] + shlex.split(os.environ.get("CPPFLAGS", "")) + [
        "-isystem", "build/include", "-O1", "-w", "-DDDP_SEPARATE", "-include", "tests/heap.h",
        "-include", OUT + "/mutant.h", "-Ibuild/headers", "-I" + OUT, "-Isrc"] + ["-DDDP_USE_OPENSSL"] * has_tls()


def compile_all(mutants, jobs):
    """Compiles all programs. Returns {name of the test: (command, environment variables)}."""
    link = shlex.split(os.environ.get("CC", "cc"))
    flags, libs = link + compile_flags(), ["-lm", "-lpthread"] + (["-lssl", "-lcrypto"] if has_tls() else [])
    archive = OUT + "/dreamddp.a"

    def call(words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit("%s\n%s" % (" ".join(words), done.stdout[:4000]))

    def unit(path):
        out = os.path.splitext(path)[0] + ".o"
        call(flags + ["-c", path, "-o", out])
        return out

    def program(path):
        out = os.path.join(OUT, "bin", os.path.basename(path)[:-2])
        compiled = out + ".o"  # a separate object file, which a compiler cache can store
        call(flags + ["-Itests", "-c", path, "-o", compiled])
        call(link + [compiled, OUT + "/mutant.o", archive, "-o", out] + libs + ["-lcmocka"])
        return out

    with open(OUT + "/mutant.h", "w", encoding="ascii") as f:
        f.write(HEADER)
    with open(OUT + "/mutant.c", "w", encoding="ascii") as f:
        f.write(OBJECT % (len(mutants) + 1))
    os.makedirs(OUT + "/bin", exist_ok=True)
    shutil.copy("build/plain/dreamddp.a", archive)
    found, tests = {}, sorted(p for pattern in TESTS for p in glob.glob(pattern))
    with ThreadPoolExecutor(jobs) as pool:
        files = sorted({os.path.join(OUT, m.path[len("src/"):]) for m in mutants})
        objects = list(pool.map(unit, files + [OUT + "/mutant.c"]))
        held = subprocess.run(["ar", "t", archive], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        for o in objects[:-1]:
            if held.count(os.path.basename(o)) != 1:
                sys.exit("%s contains %d files named %s" % (archive, held.count(os.path.basename(o)), os.path.basename(o)))
        call(["ar", "rs", archive] + objects[:-1])
        for path, out in zip(tests, pool.map(program, tests)):
            found[path[len("tests/"):-2]] = ([os.path.abspath(out)], {})
        plan = os.path.abspath(program("examples/plan/plan.c"))
    for path in sorted(p for p in glob.glob(SCRIPTS) if os.path.basename(p) not in SLOW):
        found[path[len("tests/"):]] = (["/bin/sh", path], {"PLAN": plan})
    return found


LIVE = set()  # process groups of tests


def end(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def stop(number, _):
    for group in list(LIVE):
        end(group)
    os._exit(128 + number)


class Run:
    """One run of a test. code: its exit code, or None if it exceeded a limit. cpu, wall: seconds of CPU and elapsed time."""
    def __init__(self, words, env, cpu, wall):
        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        def late():
            nonlocal over
            over = True
            end(p.pid)

        over = said = False
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            p = subprocess.Popen(words, env=dict(os.environ, TMPDIR=folder, **env), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                 preexec_fn=limits)
            LIVE.add(p.pid)
            clock = threading.Timer(wall, late)
            clock.start()
            for line in p.stdout:  # stop at the first failure
                if b"[  FAILED  ]" in line or line.startswith(b"FAILED"):
                    said = True
                    break
            if said:
                end(p.pid)
            _, status, used = os.wait4(p.pid, 0)
            clock.cancel()
            end(p.pid)  # kill all processes that the test forked
            LIVE.discard(p.pid)
            p.returncode = code = os.waitstatus_to_exitcode(status)
            p.stdout.close()
            self.wall, self.cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
        self.code = 1 if said else None if over or code in (-signal.SIGXCPU, -signal.SIGKILL) else code


class Test:
    def __init__(self, name, words, env):
        self.name, self.words, self.env = name, words, env
        self.cpu, self.wall, self.seen = 3600, 600, b""

    def baseline(self, mutants):
        """Runs the test without a mutant. Returns False if it fails or is skipped."""
        with tempfile.NamedTemporaryFile() as seen:
            seen.truncate(mutants + 1)
            r = Run(self.words, dict(self.env, MUTANTS_SEEN=seen.name), self.cpu, self.wall)
            self.seen = seen.read()
        if r.code not in (0, 77):
            print("%s fails without a mutant (exit code %s) and is excluded" % (self.name, r.code), flush=True)
        self.cpu, self.wall = r.cpu, r.wall
        return r.code == 0

    def run(self, mutant):
        cpu = 5 * self.cpu + 2
        return Run(self.words, dict(self.env, MUTANT=str(mutant)), int(cpu), 4 * max(cpu, 5 * self.wall + 2)).code


def attempt(mutant):
    if not mutant.tests:
        mutant.verdict = "not reached"
        return
    for t in mutant.tests:
        code = t.run(mutant.number)
        if code not in (0, 77):
            mutant.verdict = "timed out" if code is None else "crashed" if code < 0 else "failed"
            mutant.by = t.name
            return
    mutant.verdict = "survived"


NOTICED = ("failed", "crashed", "timed out")


def earlier(path):
    """The keys of the mutants that an earlier run did not detect."""
    with open(path, encoding="ascii") as f:
        return {(m["path"], m["function"], m["text"], m["which"]) for m in json.load(f) if m["verdict"] not in NOTICED}


def report(mutants, tried, modules):
    """Prints the table. Returns the lowest percentage."""
    least = 100.0
    print("%-10s %8s %10s %6s %8s %11s %8s" % ("module", "branches", "equivalent", "tried", "detected", "not reached", "percent"))
    for module in modules:
        all_of, ours = [m for m in mutants if m.module == module], [m for m in tried if m.module == module]
        noticed = sum(m.verdict in NOTICED for m in ours)
        percent = 100.0 * noticed / len(ours) if ours else 100.0
        least = min(least, percent)
        print("%-10s %8d %10d %6d %8d %11d %7.1f%%" % (module, len(all_of), sum(m.equivalent for m in all_of), len(ours), noticed,
                                                     sum(m.verdict == "not reached" for m in ours), percent))
    print("detected as: " + ", ".join("%d %s" % (sum(m.verdict == v for m in tried), v) for v in NOTICED))
    return least


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--modules", default=",".join(MODULES))
    parse.add_argument("--sample", type=int)
    parse.add_argument("--seed", default=time.strftime("%Y-%m-%d", time.gmtime()))
    parse.add_argument("--again", metavar="FILE")
    parse.add_argument("--jobs", type=int, default=2)
    parse.add_argument("--json", metavar="FILE")
    parse.add_argument("--check", action="store_true")
    a = parse.parse_args()
    modules = a.modules.split(",")
    unknown = [r for r in modules if r not in MODULES]
    if unknown:
        parse.error("module %s is unknown; known are %s" % (unknown[0], ", ".join(MODULES)))
    again, json_file = a.again and earlier(a.again), a.json and os.path.abspath(a.json)
    os.chdir(ROOT)
    for needed in ("build/plain/dreamddp.a", "build/headers/dreamddp.h"):
        if not os.path.exists(needed):
            sys.exit("%s is missing: make %s" % (needed, needed))
    shutil.rmtree(OUT, ignore_errors=True)
    mutants = write_copies()
    mark_equivalent(mutants, "tests/mutants_equivalent.txt")
    chosen = [m for m in mutants if m.module in modules and not m.equivalent and (not again or m.key() in again)]
    tried = chosen
    if a.sample and a.sample < len(chosen):
        print("seed %s" % a.seed)
        tried = sorted(random.Random(a.seed).sample(chosen, a.sample), key=lambda m: m.number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    began = time.monotonic()
    tests = [Test(name, *how) for name, how in compile_all(mutants, a.jobs).items()]
    compiled = time.monotonic()
    with ThreadPoolExecutor(a.jobs) as pool:
        here = list(pool.map(lambda t: t.baseline(len(mutants)), tests))
    tests = sorted((t for t, ran in zip(tests, here) if ran), key=lambda t: t.wall)
    for m in tried:
        m.tests = [t for t in tests if t.seen[m.number]]
    measured = time.monotonic()
    print("%d tests compiled in %.0f s and run in %.0f s, the longest in %.1f s" %
          (len(tests), compiled - began, measured - compiled, tests[-1].wall), flush=True)
    noticed = 0
    with ThreadPoolExecutor(a.jobs) as pool:
        for i, m in enumerate(pool.map(lambda m: attempt(m) or m, tried), 1):
            noticed += m.verdict in NOTICED
            if m.verdict not in NOTICED:
                print("%-11s  %s" % (m.verdict, m), flush=True)
            if sys.stdout.isatty() or i % 100 == 0 or i == len(tried):
                print("%d of %d tried, %d detected, %.0f s" % (i, len(tried), noticed, time.monotonic() - measured),
                      end="\r" if sys.stdout.isatty() and i < len(tried) else "\n", flush=True)
    least = report(mutants, tried, modules)
    if json_file:
        keys = ("module", "path", "function", "line", "text", "which", "verdict", "by")
        with open(json_file, "w", encoding="ascii") as f:
            json.dump([{k: getattr(m, k) for k in keys} for m in tried], f, indent=1)
    return 1 if a.check and least < WANTED else 0


if __name__ == "__main__":
    sys.exit(main())
