#!/usr/bin/env python3
"""[test-all: needs PyTorch] The Python package without PyTorch: arrays train, and ranks that end or are killed.

    tests/python/test_arrays.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped, case, comma_locale, expect, run_cases, skip_script  # noqa: E402
from ddprun import built, clean, run, started  # noqa: E402

WITHOUT = """
import sys
sys.modules["torch"] = None
import array, dreamddp
dreamddp.init(strategy="ssgd")
r = dreamddp.rank()
try:
    import numpy
    w, g = numpy.full((2, 3), 1.0 + r, "f"), numpy.zeros((2, 3), "f")
except ImportError:
    w, g = array.array("f", [1.0 + r] * 6), array.array("f", [0.0] * 6)
b, h = array.array("f", [1.0 + r] * 4), array.array("f", [0.0] * 4)
dreamddp.add_layer("a", w, g)
dreamddp.add_layer("b", [b], [h])
dreamddp.set_optimizer("sgd", lr=0.5)
assert list(b) == [1.0] * 4, "rank 0's parameters"
for s in range(3):
    memoryview(h)[:] = array.array("f", [1.0 + 2 * r] * 4)
    memoryview(g).cast("B").cast("f")[:] = array.array("f", [float(r)] * 6)
    dreamddp.backward_end(1)
    dreamddp.backward_end(0)
    dreamddp.step_end()
dreamddp.sync_all()
assert list(b) == [-2.0] * 4, list(b)
assert list(memoryview(w).cast("B").cast("f")) == [0.25] * 6, w
for wrong in ([1.0], array.array("d", [1.0]), memoryview(b)[::2], b"12345678"):
    try:
        dreamddp.all_mean(wrong)
        raise SystemExit("not refused: %r" % wrong)
    except dreamddp.InvalidArgument as e:
        print(e)
try:
    dreamddp.wrap(None, None)
except dreamddp.Unsupported as e:
    print(e)
p = dreamddp.Profile([0.010] * 6, [0.020, 0.010, 0.020, 0.015, 0.010, 0.010])
q = dreamddp.plan(p, period=2, cost="timeline")
print(q.step_of, round(q.exposed_s, 6), q.solver, q.cost)
"""


@case
def arrays_train_without_pytorch(folder):
    r = started(folder, WITHOUT)
    expect(r.returncode == 0, r.stdout + r.stderr)
    for words in ("not an array of float32", "format 'd'", "is not contiguous", "wrap needs PyTorch",
                  "[1, 1, 0, 1, 0, 0] 0.02 scatter timeline"):
        expect(words in r.stdout, "'%s' is not in: %s" % (words, r.stdout))


COMMA = """
import locale, sys
try:
    locale.setlocale(locale.LC_NUMERIC, "")
except locale.Error:
    sys.exit(77)
assert locale.localeconv()["decimal_point"] == ","
import dreamddp
dreamddp.init(strategy="diloco", outer_lr=0.7, clip_norm=0.5)
dreamddp.close()
dreamddp.Profile([0.010, 0.0125], [0.020, 0.001], params=[5, 7]).write("comma.csv")
p = dreamddp.profile("comma.csv")
assert list(p.backward_s) == [0.010, 0.0125] and list(p.comm_s) == [0.020, 0.001], (p.backward_s, p.comm_s)
"""


@case
def a_locale_with_a_decimal_comma_changes_no_number(folder):
    path = os.path.join(folder, "comma.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(COMMA.replace('"comma.csv"', repr(os.path.join(folder, "comma.csv"))))
    r = run(sys.executable, path, env=clean(**comma_locale(folder)))
    if r.returncode == 77:
        raise Skipped("this system does not take the locale")
    expect(r.returncode == 0, r.stdout + r.stderr)


@case
def a_rank_that_ends_tells_the_others_why(folder):
    r = started(folder, """
import array, dreamddp
dreamddp.init()
if dreamddp.rank() == 1:
    raise ValueError("no such file of data")
try:
    dreamddp.all_mean(array.array("f", [1.0]))
except dreamddp.Error as e:
    print(type(e).__name__, e.status, e, flush=True)
    import time; time.sleep(1)
""")
    expect(r.returncode == 1, "exit %d" % r.returncode)
    expect("rank 1 ended by ValueError: no such file of data" in r.stdout, r.stdout + r.stderr)


@case
def a_killed_rank_is_a_lost_peer(folder):
    r = started(folder, """
import array, dreamddp, os, sys
dreamddp.init(peer_timeout_s=3)
if dreamddp.rank() == 1:
    os.kill(os.getpid(), 9)
try:
    dreamddp.all_mean(array.array("f", [1.0]))
except dreamddp.PeerLost as e:
    print("lost:", e, flush=True)
except dreamddp.PeerTimeout as e:
    print("lost:", e, flush=True)
""")
    expect(r.returncode != 0, "exit %d" % r.returncode)
    expect("lost: " in r.stdout or "SIGTERM" in r.stderr or "killed by signal 9" in r.stderr, r.stdout + r.stderr)


if __name__ == "__main__":
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun")
    sys.exit(run_cases())
