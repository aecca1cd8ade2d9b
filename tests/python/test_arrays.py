#!/usr/bin/env python3
"""[test-all: needs PyTorch] The Python package without PyTorch: training with arrays, and ranks that end, are killed or interrupted.

    tests/python/test_arrays.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import signal
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped, Wrong, case, comma_locale, expect, run_cases, skip_script, unused_address  # noqa: E402
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
for wrong in ([1.0], array.array("i", [1]), memoryview(b)[::2], b"12345678"):
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


EARLY = """
import array, sys, dreamddp
dreamddp.init(strategy="dreamddp", period=3)
r = dreamddp.rank()
w, g = array.array("f", [1.0 + r] * 6), array.array("f", [0.0] * 6)
dreamddp.add_layer("w", w, g)
dreamddp.set_optimizer("sgd", lr=0.01)
best, worse = float("inf"), 0
for step in range(400):
    memoryview(g)[:] = array.array("f", [x - r for x in w])
    dreamddp.backward_end(0)
    dreamddp.step_end()
    if sys.argv[1:] == ["rank0"]:
        if dreamddp.broadcast(array.array("f", [float(r == 0 and step == 57)]))[0]:
            break
    elif (step + 1) % 10 == 0:
        at = step + 1  # the mean of both losses is lowest at 40
        loss = dreamddp.all_mean(array.array("f", [-at if at < 50 else 3.0 * at if r else -50.0 - at]))[0]
        best, worse = (loss, 0) if loss < best else (best, worse + 1)
        if worse == 3:
            break
dreamddp.sync_all()
print("stopped after step %d with %.9g" % (step, w[0]), flush=True)
"""


@case
def all_ranks_stop_early_after_the_same_step(folder):
    for arguments, step in ((), 69), (("rank0",), 57):
        r = started(folder, EARLY, arguments=arguments)
        ends = sorted(line.split(" ", 1)[1] for line in r.stdout.splitlines() if "stopped" in line)
        expect(r.returncode == 0 and len(ends) == 2 and ends[0] == ends[1] and "after step %d " % step in ends[0], r.stdout + r.stderr)


@case
def arrays_train_without_pytorch(folder):
    r = started(folder, WITHOUT)
    expect(r.returncode == 0, r.stdout + r.stderr)
    for words in ("type list is not an array", "format 'i'", "is not contiguous", "wrap needs PyTorch",
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
def decimal_comma_locale_does_not_change_numbers(folder):
    path = os.path.join(folder, "comma.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(COMMA.replace('"comma.csv"', repr(os.path.join(folder, "comma.csv"))))
    r = run(sys.executable, path, env=clean(**comma_locale(folder)))
    if r.returncode == 77:
        raise Skipped("this system does not take the locale")
    expect(r.returncode == 0, r.stdout + r.stderr)


@case
def exception_of_a_rank_is_reported_by_the_others(folder):
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
def killed_rank_is_a_lost_peer(folder):
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


INTERRUPTED = """
import array, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with SIGINT ignored
import dreamddp
where, rank = sys.argv[1], int(sys.argv[2])
def say(*words):
    print(*words, flush=True)
try:
    if where == "init":
        say("calls")
    dreamddp.init(connect_timeout_s=300, join_timeout_s=300, op_timeout_s=300)
    w, g = array.array("f", [1.0] * 8), array.array("f", [0.5] * 8)
    dreamddp.add_layer("w", w, g)
    dreamddp.set_optimizer("sgd", lr=0.5)
    if rank == 1:
        say("computes")
        sys.stdin.readline()
    say("calls")
    if where == "step":
        dreamddp.backward_end(0)
        dreamddp.step_end()
        dreamddp.forward_begin(0)
    dreamddp.sync_all()
except (KeyboardInterrupt, dreamddp.Error) as e:
    say("ended by %s: %s" % (type(e).__name__, e))
    raise
"""


class Ranks:
    """Processes of a program that the test starts itself, because ddprun would end the other processes."""

    def __init__(self, folder, text, world, *arguments):
        self.path, self.address = os.path.join(folder, "program.py"), unused_address()
        self.world, self.arguments, self.processes = world, arguments, []
        with open(self.path, "w", encoding="ascii") as f:
            f.write(text)

    def start(self, rank):
        env = clean(DREAMDDP_RANK=str(rank), DREAMDDP_WORLD_SIZE=str(self.world), DREAMDDP_ADDR=self.address)
        p = subprocess.Popen([sys.executable, self.path, *self.arguments, str(rank)], env=env, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.processes.append(p)
        return p

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
            p.communicate()


def reached(p, line):
    """Reads the output up to this line."""
    for text in iter(p.stdout.readline, ""):
        if text.strip() == line:
            return
    raise Wrong("the program ended before '%s': %s" % (line, p.stderr.read()[-600:]))


def interrupted(p):
    """Sends SIGINT when the process has made its call and sleeps in it."""
    reached(p, "calls")
    while True:
        with open("/proc/%d/stat" % p.pid) as f:
            if f.read().rpartition(")")[2].split()[0] == "S":
                break
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)


def ended(p, word):
    """Checks that the process ends long before a time-out, although no rank arrives that would let its call
    return."""
    out, err = p.communicate(timeout=100)
    expect("ended by " + word in out, "'%s' is not in: %s" % (word, out + err[-600:]))


@case
def ctrl_c_ends_init_while_ranks_are_missing(folder):
    with Ranks(folder, INTERRUPTED, 3, "init") as ranks:
        first, second = ranks.start(0), ranks.start(1)
        interrupted(second)
        ended(second, "KeyboardInterrupt")
        interrupted(first)
        ended(first, "KeyboardInterrupt")


def ctrl_c_in(folder, where):
    """Rank 0 waits in a call for rank 1, which computes until rank 0 has ended."""
    with Ranks(folder, INTERRUPTED, 3, where) as ranks:
        first, late, third = [ranks.start(r) for r in range(3)]
        reached(late, "computes")
        reached(third, "calls")
        interrupted(first)
        ended(first, "KeyboardInterrupt")
        ended(third, "Aborted: rank 0 was interrupted (SIGINT, Ctrl-C)")
        late.stdin.write("\n")
        late.stdin.flush()
        ended(late, "Aborted: rank 0 was interrupted (SIGINT, Ctrl-C)")


@case
def ctrl_c_ends_sync_all_on_every_rank(folder):
    ctrl_c_in(folder, "sync_all")


@case
def ctrl_c_ends_a_step_on_every_rank(folder):
    ctrl_c_in(folder, "step")


@case
def signal_handlers_of_the_program_stay_active(folder):
    text = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import dreamddp
rank = int(sys.argv[1])
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
dreamddp.init(connect_timeout_s=60)
if rank == 0:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)
        raise SystemExit("no KeyboardInterrupt outside of the library")
    except KeyboardInterrupt:
        pass
    assert os.read(reader, 8) == bytes([signal.SIGINT]), "the program's own wakeup descriptor"
    dreamddp.barrier()  # the interrupt outside of a call has not ended the run
    signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
    print("calls", flush=True)
else:
    dreamddp.barrier()
    print("computes", flush=True)
    sys.stdin.readline()
dreamddp.barrier()
child = os.fork()
if not child:
    os._exit(0 if signal.set_wakeup_fd(-1) == -1 else 1)
assert os.waitpid(child, 0)[1] == 0, "a forked process writes its signals to its parent's descriptor"
dreamddp.close()
assert signal.set_wakeup_fd(-1) == writer, "close has not restored the descriptor"
print("done", flush=True)
"""
    with Ranks(folder, text, 2) as ranks:
        first, late = ranks.start(0), ranks.start(1)
        reached(late, "computes")
        interrupted(first)
        time.sleep(1)  # longer than the time after which the library ends a call in a program without a handler
        late.stdin.write("\n")
        late.stdin.flush()
        for p in (first, late):
            out, err = p.communicate(timeout=100)
            expect(p.returncode == 0 and "done" in out, out + err[-600:])
            expect(("handled" in out) == (p is first), out)


@case
def context_in_another_thread_does_not_change_signals(folder):
    r = started(folder, """
import signal, threading, dreamddp
def work():
    dreamddp.init()
    dreamddp.barrier()
    dreamddp.close()
    print("closed", flush=True)
t = threading.Thread(target=work)
t.start()
t.join()
assert signal.set_wakeup_fd(-1) == -1
""")
    expect(r.returncode == 0 and r.stdout.count("closed") == 2, r.stdout + r.stderr)


if __name__ == "__main__":
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun")
    sys.exit(run_cases())
