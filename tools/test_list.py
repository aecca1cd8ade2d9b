#!/usr/bin/env python3
"""Finds the tests of an earlier run in later runs.

    make test-all NAMES=before.tsv        on the old commit
    make test NAMES=test.tsv; make test-all NAMES=all.tsv; make timing NAMES=timing.tsv
    tools/test_list.py before.tsv make-test=test.tsv make-test-all=all.tsv make-timing=timing.tsv

A file has a line for each test: program, name, result. The output has a line for each test of the first file: its program
and name, then the program and the suite that run it now. A test that moved to another file is found by its name. The exit
code is 1 if a test runs nowhere. A name #N, of a program that only printed counts, means the N-th test of that program.
RENAMED lists tests whose names changed.
"""
import collections
import os
import re
import sys


RENAMED = {
    "a_worker_needs_1_MiB_and_4_chunks_per_peer_beyond_training_alone": "worker_needs_1_mib_and_4_chunks_per_peer",
    "a_flipped_bit_is_found_unless_nobody_looks": "corrupt_frame_ends_the_link_unless_checksums_are_off",
}


def read(path):
    with open(path) as f:
        return [line.rstrip("\n").split("\t")[:2] for line in f if line.count("\t") == 2]


def plain(program):
    """The name of a program without folders and extensions of the suites: wire/test_x for tests/wire/test_x.py and
    build/plain/wire/test_x."""
    return os.path.splitext(re.sub(r"^(build/(plain|tls|cuda-part|cuda|asan|tsan|cov)|tests|bench)/", "", program))[0]


def main(argv):
    if len(argv) < 2 or not all("=" in a for a in argv[1:]):
        sys.stderr.write(__doc__)
        return 2
    now = collections.defaultdict(list)  # name: [(program, suite)]
    for suite, path in (a.split("=", 1) for a in argv[1:]):
        counts = collections.Counter()
        for program, name in read(path):
            now[name].append((plain(program), suite))
            counts[plain(program)] += 1
            now[plain(program) + "#%d" % counts[plain(program)]].append((plain(program), suite))
    lost, moved = [], 0
    before = read(argv[0])
    for program, name in before:
        old = plain(program)
        # With equal names: first the same file, then the same folder. Then the suite that is named first.
        key = old + name if name.startswith("#") else RENAMED.get(name, name)
        places = sorted(now[key], key=lambda at: (at[0] != old, os.path.dirname(at[0]) != os.path.dirname(old)))
        if places:
            moved += places[0][0] != old
            print("%s\t%s\t%s\t%s" % (old, name, *places[0]))
        else:
            lost.append((old, name))
            print("%s\t%s\t-\tnowhere" % (old, name))
    print("%d tests: %d in their old file, %d in another, %d nowhere" %
          (len(before), len(before) - moved - len(lost), moved, len(lost)), file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
