#!/usr/bin/env python3
"""[test-all: needs PyTorch] State of a Python program: a joining worker and a checkpoint receive the optimizer, its schedule and user objects.

    tests/python/test_state.py [WORD...]     only the cases whose names contain one of the words
"""
import functools
import json
import os
import re
import subprocess
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from cases import Skipped, case, expect, run_cases, skip_script, unused_address  # noqa: E402
from ddprun import built, clean, run, started  # noqa: E402

# Trains with AdamW, a schedule and an object of the program, all registered; prints the state of a rank at the end.
PROGRAM = """
import hashlib, json, sys, time, torch, dreamddp
from dreamddp._state import ProgramState

def say(word, **values):
    print(word + " " + json.dumps(values), flush=True)

def digest(tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]

class Passes:  # an object of the program's own
    def __init__(self):
        self.count = 0
    def state_dict(self):
        return {"count": self.count}
    def load_state_dict(self, state):
        self.count = state["count"]

def make(settings, extra=None):
    context = dreamddp.init(connect_timeout_s=60, op_timeout_s=60, peer_timeout_s=60, **settings)
    torch.manual_seed(1 + context.rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule, passes = torch.optim.lr_scheduler.StepLR(opt, 3, 0.9), Passes()
    objects = dict({"schedule": schedule, "passes": passes}, **(extra or {}))
    model, opt = dreamddp.wrap(model, opt, extra_state=objects)
    return context, model, opt, schedule, passes

def step(context, model, opt, schedule, passes):
    g = torch.Generator().manual_seed(1000 * context.rank + context.step)
    x = torch.randn(4, 6, generator=g)
    opt.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
    opt.step()
    schedule.step()
    passes.count += 1

def ends(context, model, opt, schedule, passes):
    say("ends", step=context.step, params=digest(model.parameters()), rate=opt.param_groups[0]["lr"],
        momentum=digest(opt.state[p][k] for p in model.parameters() for k in ("exp_avg", "exp_avg_sq")),
        updates={float(opt.state[p]["step"]) for p in model.parameters()}.pop(),
        epoch=schedule.last_epoch, passes=passes.count)
"""

# Trains until a third worker has joined, and 12 more steps.
JOINS = PROGRAM + """
strategy, role = sys.argv[1:]
settings = {"strategy": strategy, "period": 2, "min_world": 1}
settings.update({"join": 1} if role == "joins" else {"max_world": 3})
t = make(settings)
context = t[0]
if role == "joins":
    state = [t[2].state[p] for p in t[1].parameters()]
    say("entered", step=context.step, epoch=t[3].last_epoch, passes=t[4].count, rate=t[2].param_groups[0]["lr"],
        updates={float(s["step"]) for s in state}.pop(), moved=all(bool(s["exp_avg"].any()) for s in state))
left, end = 12, time.time() + 60
while left and time.time() < end:
    step(*t)
    left -= context.lib.ddp_workers(context.ptr) == 3
    if context.step == 5:
        say("steps")
    time.sleep(0.002)
if strategy != "wfbp":
    dreamddp.sync_all()
ends(*t)
dreamddp.barrier()
"""


class Ranks:
    """Processes of a program that the test starts itself."""

    def __init__(self, folder, text):
        self.path, self.address, self.processes = os.path.join(folder, "program.py"), unused_address(), []
        with open(self.path, "w", encoding="ascii") as f:
            f.write(text)

    def start(self, *arguments, **more):
        p = subprocess.Popen([sys.executable, self.path, *arguments], env=clean(DREAMDDP_ADDR=self.address, **more),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.processes.append(p)
        return p

    def member(self, rank, *arguments):
        return self.start(*arguments, DREAMDDP_RANK=str(rank), DREAMDDP_WORLD_SIZE="2")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
            p.communicate()


@functools.lru_cache(None)
def has_torch():
    return run(sys.executable, "-c", "import torch").returncode == 0


def with_torch(function):
    @functools.wraps(function)
    def guarded(folder):
        if not has_torch():
            raise Skipped("no PyTorch")
        function(folder)
    return case(guarded)


def values(out, word):
    """The JSON object of the line that begins with the word."""
    found = re.search(r"^%s (\{.*\})$" % word, out, re.M)
    expect(found, "no line '%s' in: %s" % (word, out))
    return json.loads(found.group(1))


def reads(p, word):
    for text in iter(p.stdout.readline, ""):
        if text.startswith(word + " "):
            return
    expect(False, "the program ended before '%s': %s" % (word, p.stderr.read()[-900:]))


def joined(folder, strategy):
    """Returns the final state of the two members and of the joining worker, and the joining worker's state after
    it joined."""
    with Ranks(folder, JOINS) as ranks:
        first = [ranks.member(r, strategy, "stays") for r in range(2)]
        reads(first[0], "steps")
        everyone = first + [ranks.start(strategy, "joins")]
        said = []
        for p in everyone:
            out, err = p.communicate(timeout=150)
            expect(p.returncode == 0, "exit %d: %s" % (p.returncode, out + err[-900:]))
            said.append(out)
        return [values(out, "ends") for out in said], values(said[2], "entered")


@with_torch
def a_joining_worker_has_the_parameters_the_momentum_and_the_rate(folder):
    ends, entered = joined(folder, "wfbp")
    expect(ends[0] == ends[1] == ends[2], "%s" % ends)
    expect(entered["step"] > 0 and entered["epoch"] == entered["passes"] == entered["updates"] == entered["step"], "%s" % entered)
    expect(abs(entered["rate"] - 0.05 * 0.9 ** (entered["step"] // 3)) < 1e-12, "%s" % entered)


@with_torch
def a_joining_worker_has_an_earlier_momentum_under_localsgd_and_diloco(folder):
    for strategy in ("localsgd", "diloco"):
        ends, entered = joined(folder, strategy)
        expect(ends[0]["params"] == ends[1]["params"] == ends[2]["params"], "%s" % ends)  # after sync_all
        expect(ends[0]["rate"] == ends[2]["rate"], "%s" % ends)
        expect(0 < entered["updates"] < entered["step"] and entered["updates"] % 2 == 0 and entered["moved"], "%s" % entered)
        expect(entered["epoch"] == entered["passes"] == entered["step"], "%s" % entered)
        expect(ends[0]["updates"] - ends[2]["updates"] == entered["step"] - entered["updates"], "%s" % ends)


DOES_NOT_FIT = PROGRAM + """
import os
role, stop = sys.argv[1:]
settings = {"strategy": "wfbp", "min_world": 1}
settings.update({"join": 1} if role == "joins" else {"max_world": 3})
try:
    t = make(settings, {} if role == "stays" else {"sampler": Passes()})
except dreamddp.Error as e:
    say("failed", text=str(e), cause=type(e.__cause__).__name__, why=str(e.__cause__))
    sys.exit(0)
seen = torch.zeros(1)
while not seen:  # the same on both members
    step(*t)
    if t[0].step == 5:
        say("steps")
    seen[0] = os.path.exists(stop)
    dreamddp.all_mean(seen)
    time.sleep(0.002)
ends(*t)
dreamddp.barrier()
"""


@with_torch
def a_state_that_does_not_fit_ends_the_joining_worker_alone(folder):
    stop = os.path.join(folder, "stop")
    with Ranks(folder, DOES_NOT_FIT) as ranks:
        members = [ranks.member(r, "stays", stop) for r in range(2)]
        reads(members[0], "steps")
        out, err = ranks.start("joins", stop).communicate(timeout=150)
        failed = values(out, "failed")
        expect("the load function of the state 'parameter shapes " in failed["text"] and
               " (ddp_add_state) returned 1: InvalidArgument: " in failed["text"], out)
        expect(failed["cause"] == "InvalidArgument" and "'sampler'" in failed["why"], out)
        with open(stop, "w", encoding="ascii"):
            pass
        said = []
        for p in members:
            out, err = p.communicate(timeout=150)
            expect(p.returncode == 0, out + err[-900:])
            said.append(values(out, "ends"))
        expect(said[0] == said[1], "%s" % said)


RESUMES = PROGRAM + """
import os
folder = os.path.join(os.path.dirname(sys.argv[0]), "saved")

def begin():
    return make({"strategy": "wfbp"})

whole = begin()
for _ in range(8):
    step(*whole)
ends(*whole)
dreamddp.close()

first = begin()
for _ in range(4):
    step(*first)
dreamddp.save(folder)
own, state = first[2].state_dict(), dreamddp.state_dict()  # a program may save its optimizer itself
dreamddp.close()

for load in (lambda t: dreamddp.load(folder),
             lambda t: dreamddp.load_state_dict(state),
             lambda t: (dreamddp.load_state_dict(state), t[2].load_state_dict(own))):
    t = begin()
    load(t)
    for _ in range(4):
        step(*t)
    ends(*t)
    dreamddp.close()
"""


@with_torch
def a_resumed_run_is_bit_identical(folder):
    r = started(folder, RESUMES)
    expect(r.returncode == 0, r.stdout + r.stderr[-1500:])
    ends = re.findall(r"ends (.*)$", r.stdout, re.M)
    expect(len(ends) == 2 * 4 and len(set(ends)) == 1, r.stdout)


# A checkpoint of version 0.2, which has one state of the optimizer.
RESUMES_OLDER = PROGRAM + """
import os
folder = os.path.join(os.path.dirname(sys.argv[0]), "saved")
divided = ProgramState.__init__

def undivided(self, context, optimizers, extra, name):
    def save():
        states = [o.state_dict() for o in optimizers] + [of.state_dict() for of in extra.values()]
        return dreamddp._state._packed(states, optimizers=len(optimizers), extra=list(extra))
    context.add_state(name, save, None)

whole = make({"strategy": "wfbp"})
for _ in range(8):
    step(*whole)
ends(*whole)
dreamddp.close()

ProgramState.__init__ = undivided
first = make({"strategy": "wfbp"})
for _ in range(4):
    step(*first)
dreamddp.save(folder)
dreamddp.close()

ProgramState.__init__ = divided
t = make({"strategy": "wfbp"})
dreamddp.load(folder)
for _ in range(4):
    step(*t)
ends(*t)
"""


@with_torch
def an_older_checkpoint_resumes_without_a_warning(folder):
    r = started(folder, RESUMES_OLDER)
    expect(r.returncode == 0, r.stdout + r.stderr[-1500:])
    ends = re.findall(r"ends (.*)$", r.stdout, re.M)
    expect(len(ends) == 2 * 2 and len(set(ends)) == 1, r.stdout)
    expect("has no state" not in r.stdout + r.stderr, r.stdout + r.stderr[-1500:])


WITHOUT_PROCESSES = """
import collections, io, sys, torch, dreamddp
from dreamddp._state import ProgramState, _packed

class Fake:  # a context that only registers
    def __init__(self):
        self.states = []
    def add_state(self, name, save, load, early=False):
        self.states.append((name, early, save, load))
    def save(self):
        return [bytes(save()) for _, _, save, _ in self.states]
    def load(self, saved):
        assert len(saved) == len(self.states)
        for (_, _, _, load), data in zip(self.states, saved):
            load(memoryview(data))
    def load_last(self, data):  # not the tensors
        self.states[-1][3](memoryview(data))

def refused(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise SystemExit("not refused: " + words)

class Momentum(torch.optim.Optimizer):  # keeps float32 of any parameter, and a mask of bytes
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
    def step(self):
        for p in self.param_groups[0]["params"]:
            s = self.state[p]
            s["m"] = s.get("m", torch.zeros(p.shape)) * 0.9 + p.grad.float()
            s["mask"] = torch.arange(p.numel(), dtype=torch.uint8)
            s["half"] = s["m"].bfloat16()
            p.data.add_(s["m"].to(p.dtype), alpha=-0.1)

def optimizer(steps):
    p = torch.nn.Parameter(torch.linspace(0, 1, 5).bfloat16())
    o = Momentum([p])
    for s in range(steps):
        p.grad = torch.full((5,), 1 / 3 + s).bfloat16()
        o.step()
    return o, p

def both(extra=None, other=None):
    a, b = Fake(), Fake()
    (o, p), (q, r) = optimizer(3), optimizer(0)
    ProgramState(a, [o], extra)
    ProgramState(b, [q], other)
    return a, b, o, p, q, r

def equal(o, p, q, r):
    for key in ("m", "mask", "half"):
        assert o.state[p][key].dtype == q.state[r][key].dtype and torch.equal(o.state[p][key], q.state[r][key]), key

a, b, o, p, q, r = both()
assert [s[:2] for s in a.states] == [("pytorch:state", True), ("pytorch", False)], a.states
b.load(a.save())
equal(o, p, q, r)

# a checkpoint of version 0.2, whose only state has the whole state_dict
a, b, o, p, q, r = both()
b.load_last(_packed([o.state_dict()], optimizers=1, extra=[]))
equal(o, p, q, r)
refused(dreamddp.FormatError, "the tensors of optimizer 0 are in another state, which is missing", lambda: b.load_last(a.save()[-1]))

class Own(torch.optim.SGD):  # a format of its own
    def state_dict(self):
        return {"mine": torch.ones(1000)}
    def load_state_dict(self, state):
        self.got = state

a, b = Fake(), Fake()
own, other = (Own([torch.nn.Parameter(torch.ones(1))], lr=1) for _ in range(2))
ProgramState(a, [own])
ProgramState(b, [other])
assert [len(s) > 4000 for s in a.save()] == [False, True]
b.load(a.save())
assert list(other.got) == ["mine"] and torch.equal(other.got["mine"], torch.ones(1000))
a, b, o, p, q, r = both()

try:
    import numpy
    o.param_groups[0]["lr"] = numpy.float64(0.3)
    b.load(a.save())
    assert type(q.param_groups[0]["lr"]) is float and q.param_groups[0]["lr"] == 0.3
except ImportError:
    print("no NumPy")

# a pair of functions; a tensor; a class that PyTorch unpickles only on demand
kept = {}
a, b, o, p, q, r = both({"random": (torch.get_rng_state, torch.set_rng_state), "queue": (lambda: collections.deque([1, 2]), print)},
                        {"queue": (list, lambda x: kept.update(queue=x)), "random": (torch.get_rng_state, torch.set_rng_state)})
torch.manual_seed(7)
state = a.save()
numbers = torch.rand(4)
torch.manual_seed(8)
b.load(state)
assert torch.equal(torch.rand(4), numbers) and kept["queue"] == collections.deque([1, 2])

o.state[p]["object"] = collections.deque([1])
if hasattr(torch.serialization, "add_safe_globals"):
    refused(dreamddp.Unsupported, "the state of optimizer 0 holds classes", lambda: b.load(a.save()))
refused(dreamddp.InvalidArgument, "has 1 optimizers and the extra_state ['queue', 'random'], this program has 1 and {}",
        lambda: both()[1].load(state))
fresh, state = both()[1], state[-1]
for wrong in (b"", b"1234567", state[:-1], state[1:], state[:40] + b"x" + state[41:-8] + b"\\xff" * 8, b"{}" + b"\\2" + bytes(7)):
    refused(dreamddp.FormatError, "is malformed", lambda: fresh.load_last(wrong))
refused(dreamddp.InvalidArgument, "'sampler' is a list", lambda: ProgramState(Fake(), [], {"sampler": [1, 2, 3]}))
refused(dreamddp.InvalidArgument, "the name 3 is a int", lambda: ProgramState(Fake(), [], {3: (list, list)}))
print("fine")
"""


@with_torch
def types_survive_and_malformed_bytes_are_refused(folder):
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(WITHOUT_PROCESSES)
    r = run(sys.executable, path)
    expect(r.returncode == 0 and r.stdout.endswith("fine\n"), r.stdout + r.stderr[-900:])


BUFFERS = """
import array, os, sys, dreamddp
folder = os.path.join(os.path.dirname(sys.argv[0]), "saved")

def begin(give, take):
    dreamddp.init(strategy="wfbp", overwrite=1)
    w, g = array.array("f", [1.0] * 4), array.array("f", [0.5] * 4)
    dreamddp.add_layer("w", w, g)
    dreamddp.add_state("counts", give, take)
    dreamddp.set_optimizer("own")
"""

ARRAYS = BUFFERS + """
rank = int(os.environ["DREAMDDP_RANK"])
for sent in (b"", b"bytes of %d" % rank, bytearray(b"\\0" * 3), memoryview(b"a view"), array.array("d", [rank, 2.5])):
    got = []
    begin(lambda: sent, lambda view: got.append(bytes(view)))
    dreamddp.backward_end(0)
    dreamddp.step_end()
    dreamddp.save(folder, keep=1)
    dreamddp.close()
    begin(lambda: sent, lambda view: got.append(bytes(view)))
    dreamddp.load(folder)
    dreamddp.barrier()
    dreamddp.close()
    assert got == [bytes(sent)], (sent, got)
print("fine", flush=True)
"""


@case
def any_buffer_can_be_a_state(folder):
    r = started(folder, ARRAYS)
    expect(r.returncode == 0 and r.stdout.count("fine") == 2, r.stdout + r.stderr[-1500:])


EXCEPTIONS = BUFFERS + """
def raises(kind):
    def function(*_):
        raise kind("no state")
    return function

begin(lambda: b"some", list)
dreamddp.save(folder)
dreamddp.close()
for kind in (KeyError, KeyboardInterrupt):
    for give, take, call in ((raises(kind), list, dreamddp.save), (list, raises(kind), dreamddp.load)):
        begin(give, take)
        try:
            call(folder)
            raise SystemExit("nothing was raised")
        except KeyboardInterrupt as e:
            assert kind is KeyboardInterrupt, kind
            error = e.__cause__
        except dreamddp.Error as e:
            assert type(e.__cause__) is kind, repr(e.__cause__)
            error = e
        assert "function of the state 'counts' (ddp_add_state) returned 1: %s: " % kind.__name__ in str(error), error
        dreamddp.close()
begin(lambda: 7, list)
try:
    dreamddp.save(folder)
    raise SystemExit("an integer is accepted as state")
except dreamddp.Error as e:
    assert isinstance(e.__cause__, TypeError), repr(e.__cause__)
dreamddp.close()
begin(lambda: b"", list)
try:
    dreamddp.add_state("late", list, list)
    raise SystemExit("not refused")
except dreamddp.UsageError as e:
    assert "is too late" in str(e), e
print("fine", flush=True)
"""


@case
def exceptions_of_state_functions_are_raised(folder):
    path = os.path.join(folder, "program.py")
    with open(path, "w", encoding="ascii") as f:
        f.write(EXCEPTIONS)
    r = run(sys.executable, path)
    expect(r.returncode == 0 and r.stdout.endswith("fine\n"), r.stdout + r.stderr[-900:])


def main():
    if not built():
        skip_script("build/ddprun or build/lib/libdreamddp.so is missing: make lib build/ddprun")
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
