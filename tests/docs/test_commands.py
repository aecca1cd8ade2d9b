#!/usr/bin/env python3
"""[test-all, long: runs programs of every page] Runs the commands of README and docs as a reader would, with small settings.

A block ```sh contains commands; a block ```console contains commands after `$ ` and what they print, which is not compared.
The blocks of a page run in order in one shell, in a copy of the checkout after `make`, with a virtual environment of Python that has the package. `--steps 400` becomes
`--steps 3`, and so on (SMALLER). data/ has tiny files in the formats of the public data sets, so nothing is downloaded. A comment directly above a block changes this:
    <!-- test: COMMANDS -->     run COMMANDS instead: the same with the smallest settings that still run
    <!-- no test: REASON -->    do not run it; at most MOST_UNTESTED blocks
    <!-- file: NAME -->         the block is the content of a file: it exists in the checkout before the page's first command
Other blocks have the language of their text, as in ```c or ```text.

    tests/docs/test_commands.py [--list] [--show] [PAGE...]
"""
import argparse
import concurrent.futures
import fcntl
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, "build", "docs-python")
MOST_UNTESTED = 15
SECONDS = 240  # of a page
SMALLER = [(re.compile(pattern), small) for pattern, small in [
    (r"--steps[ =]\d+(?=.*--write-profile)", "--steps 8"),  # a profile needs six
    (r"--steps[ =]\d+(?!.*--write-profile)", "--steps 3"),
    (r"--epochs[ =]\d+", "--epochs 1"),
    (r"--seconds[ =]\d+", "--seconds 1"),
    (r"--rounds[ =]\d+", "--rounds 1"),
    (r"--iters[ =]\d+", "--iters 1"),
    (r"(\bbuild/quickstart\b)([^\n#;&|>]*)", r"\1\2 --layers 1 --heads 2 --seq 16 --steps 30 "),  # the first 21 are measured
    (r"(\bbuild/bench_allreduce\b(?![^\n]*--iters)[^\n#;&|>]*)", r"\1 --iters 1 "),
    (r"(\bbuild/plan baselines [^\n#;&|>]*)", r"\1 --batch 64 "),
    (r"--candidates[ =]\d+", "--candidates 50"),
    (r"bench/claims_runs\.py (\w+)[^\n]*", r"bench/claims_runs.py \1"),
    (r"make -s build/plain/(\S+) >&2 && build/plain/\1 2>&1", r"ls tests/\1.c"),
    # Benchmarks and long targets take minutes: only their options and names are checked.
    (r"(\bbench/\w+\.py|(?<!make )\bbuild/bench_(?!plan|allreduce)\w+)\b([^\n#;&|>]*)", r"\1\2 --help >/dev/null "),
    (r"\bmake (test|test-all|sanitize|timing|testing|soak|storm|fuzz|bench|claims|gallery|docs|gpu-check)\b([^\n#;&|>]*)", r"make -n \1\2 >/dev/null "),
    (r"\bchrt -r 1 ", ""),
    (r"\bbuild/profiles/[\w-]+\.csv", "docs/gallery/example.csv"),  # tools/make_profiles.py downloads these
    (r"(?:python3 )?tools/make_profiles\.py[^\n;&]*", "true"),
    (r"\bcc -O2 -I\. (\S+\.c) -o (\S+) -lm -lpthread", r"cc $LINKED -I. \1 build/dreamddp.o -o \2 $(cat build/mpi.flags) -lm -lpthread $TLS"),
    (r"\bcc -O2 ", "cc -O0 "),
    (r"pip install \./python", "true"),  # PYTHONPATH has the package; tests/packaging installs it
    (r"tools/get_data\.sh[^\n;&]*", "true"),
    (r"git clone REPOSITORY_URL \S+ && cd \S+", "true"),
]]
BLOCK = re.compile(r"(?:^ *<!-- (no test|test|file):\s+((?:(?!-->).)*?)\s*-->\n+)?^( *)```(\w*)\n(.*?)^ *```$", re.M | re.S)
# Pages run at the same time, and their `make` shares build/. Programs are linked with the compiled library, as by the Makefile: to
# compile the header with each of them takes too long.
PRELUDE = """set -e -o pipefail
LINKED='-D_GNU_SOURCE -DDDP__IMPLEMENTED -include stdio.h -include stdlib.h -include string.h -include math.h -include time.h -include inttypes.h'
TLS=$(sed -n 's/.*OPENSSL.*/-lssl -lcrypto/p' build/tls.flags)
make() { flock build/.docs_lock make "$@"; }
"""


class Block:
    """Commands of a page: its line, the commands to run, and the reason why they are not run, or None."""

    def __init__(self, page, line, commands, reason):
        self.page, self.line, self.commands, self.reason = page, line, commands, reason

    def name(self):
        return "%s:%d" % (self.page, self.line)


def commands_of(language, text):
    """The commands of a block."""
    if language == "sh":
        return text
    lines, more = [], False
    for line in text.splitlines():
        if line.startswith("$ ") or more:
            lines.append(line if more else line[2:])
            more = line.endswith("\\")
    return "\n".join(lines) + "\n"


def blocks_of(page):
    """The blocks of a page that contain commands, its files (name and text), and what is wrong with its other blocks."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = f.read()
    found, files, faults = [], {}, []
    for match in BLOCK.finditer(text):
        mark, marked, indent, language, body = match.groups()
        line = text.count("\n", 0, match.start(4)) + 1
        if not language:
            faults.append("%s:%d: a block without a language: write ```sh, ```console or ```text" % (page, line))
        body = "".join(l[len(indent):] if l.strip() else l for l in body.splitlines(True))
        if mark == "file":
            files[marked] = body
        if language not in ("sh", "console"):
            continue
        commands = marked + "\n" if mark == "test" else commands_of(language, body)
        if mark != "test":
            for pattern, small in SMALLER:
                commands = pattern.sub(small, commands)
        found.append(Block(page, line, commands, marked if mark == "no test" else None))
    plain = re.sub(r"^ *```.*?^ *```$", lambda m: "\n" * m.group().count("\n"), text, flags=re.M | re.S)
    for match in re.finditer(r"(?<=\n\n)    \S(?<![-*])[^\n]*", plain):
        before = plain[:match.start()].rstrip().rsplit("\n", 1)[-1]
        if not re.match(r" *([-*]|\d+\.) |  ", before):
            faults.append("%s:%d: indented code: use a block with a language" % (page, plain.count("\n", 0, match.start()) + 1))
    return found, files, faults


def copy_of_the_checkout(folder):
    """A copy of the tracked files, with the real build/."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    for path in filter(None, files):
        if os.path.isfile(os.path.join(ROOT, path)):
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, path), os.path.join(folder, path))
    os.symlink(os.path.join(ROOT, "build"), os.path.join(folder, "build"))


def write_data(folder):
    """Tiny data sets in the places where tools/get_data.sh puts the real ones."""
    def put(name, data):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)

    for kind, count in (("train", 256), ("t10k", 64)):
        size = count.to_bytes(4, "big")
        put("mnist/%s-images-idx3-ubyte" % kind, bytes([0, 0, 8, 3]) + size + bytes([0, 0, 0, 28] * 2) + bytes(28 * 28 * count))
        put("mnist/%s-labels-idx1-ubyte" % kind, bytes([0, 0, 8, 1]) + size + bytes(i % 10 for i in range(count)))
    for name in ["data_batch_%d" % i for i in range(1, 6)] + ["test_batch"]:
        put("cifar10/%s.bin" % name, b"".join(bytes([i % 10]) + bytes([25 * (i % 10)]) * 3072 for i in range(64)))
    with open(os.path.join(ROOT, "README.md"), "rb") as f:
        text = f.read()
    for name in ("tinyshakespeare/input.txt", "wikitext-2/train.txt", "wikitext-2/valid.txt"):
        put(name, text)


def run_page(page):
    """Runs the blocks of a page, a pair of blocks and files. Returns (name of the block, fault or None) for each, the output of the
    page, and the seconds."""
    blocks, files = page
    folder, start = tempfile.mkdtemp(prefix="dreamddp_docs_"), time.time()
    tested = [b for b in blocks if b.reason is None]
    results = []
    try:
        copy_of_the_checkout(folder)
        write_data(os.path.join(folder, "data"))
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        with open(os.path.join(folder, ".log"), "w+", encoding="utf-8", errors="replace") as log:
            script = PRELUDE + "".join("echo '== block %d'\n%s\n[ $? = 0 ]\n" % (i, b.commands) for i, b in enumerate(tested))
            environment = dict(os.environ, CDPATH="", DDP_DATA="data", PAGER="cat", MANPAGER="cat", VIRTUAL_ENV=VENV,
                               PYTHONPATH=os.path.join(folder, "python"),
                               PATH=os.path.join(VENV, "bin") + os.pathsep + os.environ["PATH"])
            process = subprocess.Popen(["bash", "-c", script], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env=environment, start_new_session=True)
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                code = "longer than %d s" % SECONDS
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            log.seek(0)
            text = log.read()
        reached = text.count("== block ")
        for i, b in enumerate(tested):
            if code == 0 or i + 1 < reached:
                results.append((b.name(), None))
            elif i + 1 == reached:
                said = text.split("== block %d\n" % i)[-1][-1500:]
                results.append((b.name(), "exit %s: %s\n%s" % (code, said.strip().rpartition("\n")[2], said)))
            else:
                results.append((b.name(), "not reached"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results, text, time.time() - start


def main(results=False):
    """results: the pages of docs/results and the gallery, which tests/docs/test_commands_results.py runs; else the others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="pages, as docs/howto/launch.md [all but those of docs/results and docs/gallery.md]")
    parser.add_argument("--list", action="store_true", help="print the blocks and run nothing")
    parser.add_argument("--show", action="store_true", help="print what the commands print")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    every = ["README.md", "CONTRIBUTING.md"] + sorted(glob.glob("docs/**/*.md", recursive=True))
    failed, pages, untested = 0, {}, []
    for page in every:
        found, files, faults = blocks_of(page)
        untested += [b for b in found if b.reason is not None]
        if page not in arguments.pages if arguments.pages else results != page.startswith(("docs/results/", "docs/gallery")):
            continue
        for fault in faults:
            print("FAILED %s" % fault)
            failed += 1
        if found:
            pages[page] = found, files
    if arguments.list:
        for blocks, _ in pages.values():
            for b in blocks:
                print("%s%s\n%s" % (b.name(), " (not run: %s)" % b.reason if b.reason is not None else "", b.commands))
        return 0
    os.makedirs("build", exist_ok=True)
    subprocess.run(["flock", "build/.docs_lock", "make", "-s", "all", "lib"], check=True)
    with open("build/.docs_lock", "w") as lock:  # test_commands_results.py may run at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(VENV, "bin", "pip")):  # the last file of a complete environment
            subprocess.run(["/usr/bin/python3", "-m", "venv", "--system-site-packages", VENV], check=True)
    passed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for results, text, seconds in pool.map(run_page, pages.values()):
            print(text if arguments.show else "", end="")
            for name, fault in results:
                passed += fault is None
                failed += fault is not None
                print("%s %s%s" % ("ok" if fault is None else "FAILED", name, "" if fault is None else ": " + fault), flush=True)
            if seconds > 60:
                print("# the last page took %.0f s" % seconds)
    if len(untested) > MOST_UNTESTED:
        print("FAILED %d blocks are not run; at most %d" % (len(untested), MOST_UNTESTED))
        failed += 1
    skipped = [b for b in untested if b.page in pages]
    for b in skipped:
        print("skipped: %s: %s" % (b.name(), b.reason))
    print("%d passed, %d failed, %d skipped" % (passed, failed, len(skipped)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
