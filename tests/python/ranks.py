"""Cases of tests/python/test_python.py, run by three ranks: PyTorch loops compared with plain PyTorch, and user mistakes.

Every rank trains, and can compute the data of the others. Cases run one after another, each in a separate context.
"""
import contextlib
import copy
import os
import sys
import tempfile
import warnings

import dreamddp
import torch

RANKS = 3
CASES = []


def worker(function):
    CASES.append(function)
    return function


class Wrong(Exception):
    pass


def expect(holds, message):
    if not holds:
        raise Wrong(message)


STEPS = 7


def model_of(seed=5, kind="plain"):
    torch.manual_seed(seed)
    if kind == "norm":
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5), torch.nn.Tanh(),
                               torch.nn.Linear(5, 1))


def batch(rank, step):
    g = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(4, 6, generator=g)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    return torch.nn.functional.mse_loss(model(x), y)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@contextlib.contextmanager
def world(**settings):
    dreamddp.init(connect_timeout_s=60, **settings)
    try:
        yield dreamddp.rank()
    finally:
        dreamddp.close()


def near(a, b, what, most=2e-6):
    far = (a - b).abs().max().item()
    expect(far <= most, "%s: %g apart" % (what, far))


def all_equal(model, what):
    """Checks that all ranks have bit-identical parameters, in a separate context."""
    mine = flat(model)
    with world():
        theirs = dreamddp.broadcast(mine.clone())
        expect(torch.equal(mine, theirs), "%s: ranks differ" % what)


def trained(settings, make=adamw, steps=STEPS, loop=None, kind="plain", prepare=None):
    """Trains a model with wrap. Ranks start from different parameters, so wrap must use rank 0's."""
    with world(**settings) as rank:
        model = model_of(5 + rank, kind)
        opt = make(model)
        if prepare:
            prepare(model)
        model, opt = dreamddp.wrap(model, opt)
        for s in range(steps):
            if loop:
                loop(model, opt, rank, s)
            else:
                opt.zero_grad()
                loss_of(model, rank, s).backward()
                opt.step()
        dreamddp.sync_all()
        return model


def average_parameters(models, outer):
    """Sets the parameters of all models to their mean, or to the result of the outer optimizer. It keeps the
    parameters of the last call."""
    anchors = outer.param_groups[0]["params"] if outer else [None] * len(list(models[0].parameters()))
    for anchor, same in zip(anchors, zip(*[m.parameters() for m in models])):
        mean = sum(list(same)[1:], same[0]) / RANKS
        if outer:
            anchor.grad = anchor - mean
        else:
            for p in same:
                p.copy_(mean)
    if outer:
        outer.step()
        for m in models:
            for p, anchor in zip(m.parameters(), anchors):
                p.copy_(anchor)


def alone(make=adamw, steps=STEPS, average=None, loss=loss_of, clip=None, first=False, outer=None):
    """Trains the models of all ranks in this process without the library. average: "gradients", or a number of
    steps. first: parameters are averaged before the update of the step. outer: makes an outer optimizer."""
    models = [model_of() for _ in range(RANKS)]
    opts = [make(m) for m in models]
    outer = outer and outer([p.detach().clone() for p in models[0].parameters()])
    for s in range(steps):
        for r in range(RANKS):
            opts[r].zero_grad()
            loss(models[r], r, s).backward()
        with torch.no_grad():
            for same in zip(*[m.parameters() for m in models]):
                if average == "gradients":
                    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
                    mean = sum(grads[1:], grads[0]) / RANKS
                    for p in same:
                        p.grad = mean.clone()
            if first and (s + 1) % average == 0:
                average_parameters(models, outer)
        for m, o in zip(models, opts):
            if clip:
                torch.nn.utils.clip_grad_norm_(m.parameters(), clip)
            o.step()
        with torch.no_grad():
            if average != "gradients" and not first and (s + 1) % average == 0:
                average_parameters(models, outer)
    with torch.no_grad():  # sync_all
        return sum([flat(m) for m in models[1:]], flat(models[0])) / RANKS


@worker
def averaged_gradients_match_plain_pytorch():
    right = alone(average="gradients")
    first = None
    for strategy in ("ssgd", "wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte"):
        model = trained({"strategy": strategy, "bucket_bytes": 200})
        near(flat(model), right, strategy)
        first = flat(model) if first is None else first
        expect(torch.equal(first, flat(model)), "%s: not bit-identical to ssgd" % strategy)
    all_equal(model, "usbyte")


@worker
def parameters_are_averaged_after_the_update():
    for period in (1, 3):
        near(flat(trained({"strategy": "localsgd", "period": period})), alone(average=period), "localsgd with H = %d" % period)
    for overlap in ("none", "eager"):
        near(flat(trained({"strategy": "diloco", "overlap": overlap, "period": STEPS, "outer_lr": 1.0, "outer_momentum": 0})),
             alone(average=STEPS), "diloco, overlap %s, with plain averaging" % overlap)
    for strategy in ("enp", "dreamddp", "diloco", "sparseloco"):
        all_equal(trained({"strategy": strategy, "period": 3}, steps=12), strategy)


@worker
def auto_trains_as_the_strategy_that_it_chooses():
    exact = {"strategy": "auto", "loss_budget": 0, "deterministic": 1}
    expect(torch.equal(flat(trained(exact)), flat(trained({"strategy": "wfbp", "deterministic": 1}))), "an exact budget differs from wfbp")
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as f:
        f.write("strategy,overlap,period,workers,wire,steps,loss,source\nssgd,none,0,2,f32,100,2.5,x\nssgd,none,0,2,f32,1000,2,x\n"
                "dreamddp,none,5,2,f32,1000,2.001,x\ndreamddp,none,50,2,f32,1000,3,x\n")
        f.flush()
        settings = {"strategy": "auto", "loss_table": f.name, "loss_budget": 0.01, "net": "1mbit,2ms"}
        chosen = []

        def loop(model, opt, rank, s):
            opt.zero_grad()
            loss_of(model, rank, s).backward()
            opt.step()
            chosen.append(dreamddp.stats()["chosen"])

        early = trained(dict(settings, deterministic=1), loop=loop)
        expect(chosen[0]["name"].startswith("dreamddp --period ") and chosen[0]["seconds"] < chosen[0]["ssgd_s"], chosen[0])
        direct = trained({"strategy": "dreamddp", "period": chosen[0]["period"], "deterministic": 1, "net": "1mbit,2ms"})
        expect(torch.equal(flat(early), flat(direct)), "auto differs from %s" % chosen[0]["name"])
        del chosen[:]
        all_equal(trained(dict(settings, profile_steps=3), steps=14, loop=loop), "auto")
        expect(chosen[1] is None and chosen[3]["name"].startswith("dreamddp"), chosen[:4])


@worker
def diloco_is_pytorchs_sgd_with_nesterov_momentum():
    def outer(anchors):
        return torch.optim.SGD(anchors, lr=0.7, momentum=0.9, nesterov=True)

    def inner(model):
        return torch.optim.SGD(model.parameters(), lr=0.02)

    settings = {"strategy": "diloco", "outer_momentum": 0.9}
    for period in (1, 4):
        near(flat(trained(dict(settings, period=period), inner, 12)), alone(inner, 12, period, outer=outer), "diloco with H = %d" % period)
    near(flat(trained(dict(settings, period=6), steps=12)), alone(average=6, steps=12, outer=outer), "diloco with AdamW", 1e-4)


@worker
def overlapped_averages_and_several_optimizers_average_before_the_update():
    def two(model):
        return [torch.optim.AdamW(model[0].parameters(), lr=0.05),
                torch.optim.AdamW(list(model[2].parameters()) + list(model[4].parameters()), lr=0.05)]

    def loop(model, opts, rank, s):
        for o in opts:
            o.zero_grad()
        loss_of(model, rank, s).backward()
        for o in opts:
            o.step()

    near(flat(trained({"strategy": "dreamddp", "period": 1})), alone(average=1, first=True), "dreamddp with H = 1")
    near(flat(trained({"strategy": "localsgd", "period": 3}, make=two, loop=loop)), alone(average=3, first=True), "two optimizers")


@worker
def a_call_between_backward_and_step_averages_before_the_update():
    def loop(model, opt, rank, s):
        opt.zero_grad()
        loss_of(model, rank, s).backward()
        expect(dreamddp.step() == s + 1, "%d steps after the backward pass of step %d" % (dreamddp.step(), s))
        dreamddp.all_mean(torch.ones(1))
        opt.step()
        expect(dreamddp.step() == s + 1, "%d steps after step %d" % (dreamddp.step(), s))

    near(flat(trained({"strategy": "localsgd", "period": 3}, loop=loop)), alone(average=3, first=True), "localsgd")


@worker
def rank_that_leaves_out_the_optimizers_step_averages_with_the_others():
    def loop(model, opt, rank, s):
        opt.zero_grad()
        loss_of(model, rank, s).backward()
        if rank != 1 or s not in (2, 5):
            opt.step()

    for strategy in ("localsgd", "diloco"):
        all_equal(trained({"strategy": strategy, "period": 3}, loop=loop, steps=6), strategy)


@worker
def any_optimizer_works_unchanged():
    def groups(m):
        return [{"params": m[0].parameters(), "lr": 0.1}, {"params": list(m[2].parameters()) + list(m[4].parameters())}]

    for make in (lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
                 lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
                 lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01),
                 lambda m: torch.optim.Adamax(groups(m), lr=0.02)):
        near(flat(trained({"strategy": "wfbp"}, make)), alone(make, average="gradients"), str(make))


@worker
def schedules_made_before_and_after_wrap_work():
    def rates(early):
        seen = []
        with world(strategy="wfbp") as rank:
            model = model_of()
            opt = torch.optim.SGD(model.parameters(), lr=1.0)
            schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5) if early else None
            model, opt = dreamddp.wrap(model, opt)
            schedule = schedule or torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
            for s in range(3):
                opt.zero_grad()
                loss_of(model, rank, s).backward()
                opt.step()
                schedule.step()
                seen.append(opt.param_groups[0]["lr"])
            expect(dreamddp.step() == 3, "the library counted %d steps" % dreamddp.step())
        expect(seen == [0.5, 0.25, 0.125], "rates %s" % seen)
    rates(True)
    rates(False)


@worker
def gradients_may_be_zeroed_in_any_way():
    def with_none(model, opt, rank, s):
        opt.zero_grad(set_to_none=True)
        loss_of(model, rank, s).backward()
        opt.step()

    def with_zeros(model, opt, rank, s):
        model.zero_grad(set_to_none=False)
        loss_of(model, rank, s).backward()
        opt.step()

    def by_hand(model, opt, rank, s):
        for p in model.parameters():
            p.grad = None if s % 2 else torch.zeros_like(p)
        opt.step(lambda: loss_of(model, rank, s).backward())

    right = alone(average="gradients")
    for loop in (with_none, with_zeros, by_hand):
        near(flat(trained({"strategy": "wfbp"}, loop=loop)), right, loop.__name__)


@worker
def gradients_are_averaged_when_backward_returns():
    def clipped(model, opt, rank, s):
        opt.zero_grad()
        loss_of(model, rank, s).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()

    right = alone(average="gradients", clip=0.1)
    near(flat(trained({"strategy": "wfbp", "bucket_bytes": 100}, loop=clipped)), right, "clip_grad_norm_")
    near(flat(trained({"strategy": "wfbp", "clip_norm": 0.1})), right, "clip_norm")


@worker
def gradients_accumulate():
    def two(model, rank, s):
        return (loss_of(model, rank, 2 * s) + loss_of(model, rank, 2 * s + 1)) / 2

    def no_sync(model, opt, rank, s):
        opt.zero_grad()
        with dreamddp.no_sync():
            (loss_of(model, rank, 2 * s) / 2).backward()
        (loss_of(model, rank, 2 * s + 1) / 2).backward()
        opt.step()
        expect(dreamddp.step() == s + 1, "the library counted %d steps in %d" % (dreamddp.step(), s + 1))

    def all_local(model, opt, rank, s):
        opt.zero_grad()
        with dreamddp.no_sync():
            two(model, rank, s).backward()
        opt.step()

    def twice(model, opt, rank, s):
        opt.zero_grad()
        loss_of(model, rank, 2 * s).backward()
        loss_of(model, rank, 2 * s + 1).backward()
        opt.step()

    right = alone(average="gradients", loss=two)
    near(flat(trained({"strategy": "wfbp"}, loop=no_sync)), right, "no_sync")
    near(flat(trained({"strategy": "wfbp"}, loop=all_local)), right, "no_sync around all")
    near(flat(trained({"strategy": "wfbp", "micro_batches": 2}, loop=twice)), right, "micro_batches")
    near(flat(trained({"strategy": "localsgd", "period": 2, "micro_batches": 2}, loop=twice)),
         alone(average=2, loss=two, first=True), "micro_batches of localsgd")
    os.environ["DREAMDDP_MICRO_BATCHES"] = "2"
    try:
        near(flat(trained({"strategy": "wfbp"}, loop=twice)), right, "DREAMDDP_MICRO_BATCHES")
    finally:
        del os.environ["DREAMDDP_MICRO_BATCHES"]


class Odd(torch.nn.Module):
    """A model with a tied weight, a frozen layer, one that some steps do not use or only partly use, and an unused
    one."""

    def __init__(self, seed=5):
        super().__init__()
        torch.manual_seed(seed)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.first = torch.nn.Linear(6, 6)
        self.frozen = torch.nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.branch = torch.nn.Linear(6, 6)
        self.partly = torch.nn.Linear(6, 6)
        self.never = torch.nn.Linear(6, 2)
        self.again = torch.nn.Linear(6, 6)
        self.again.weight = self.first.weight

    def forward(self, x, branch):
        x = self.frozen(torch.tanh(self.first(x)))
        x = torch.nn.functional.linear(x, self.partly.weight, None if branch else self.partly.bias)
        return self.scale * self.again(torch.tanh(self.branch(x) if branch else x)).sum(1, keepdim=True)


def odd_loss(model, rank, s):
    x, y = batch(rank, s)
    return torch.nn.functional.mse_loss(model(x, (rank + s) % 3 > 0), y)


@worker
def tied_frozen_and_unused_parameters_train():
    def sgd(model):
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)

    models = [Odd() for _ in range(RANKS)]
    opts = [sgd(m) for m in models]
    for s in range(STEPS):
        for r in range(RANKS):
            opts[r].zero_grad()
            odd_loss(models[r], r, s).backward()
        for same in zip(*[[p for p in m.parameters() if p.requires_grad] for m in models]):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
            for p in same:
                p.grad = (sum(grads[1:], grads[0]) / RANKS).clone()
        for o in opts:
            o.step()
    for strategy in ("wfbp", "usbyte", "localsgd", "dreamddp", "diloco"):
        with world(strategy=strategy, period=2, bucket_bytes=100) as rank:
            model = Odd(5 + rank)
            model, opt = dreamddp.wrap(model, sgd(model))
            for s in range(STEPS):
                opt.zero_grad(set_to_none=True)
                odd_loss(model, rank, s).backward()
                opt.step()
                model.train(s % 2 == 0)
                with torch.no_grad():  # an evaluation
                    odd_loss(model, rank, s)
                model.train()
            dreamddp.sync_all()
            expect(model.again.weight is model.first.weight, "the weights are no longer tied")
        if strategy in ("wfbp", "usbyte"):
            near(flat(model), flat(models[0]), strategy)
        all_equal(model, strategy)


@worker
def layer_frozen_later_keeps_its_parameters():
    for strategy in ("ssgd", "wfbp", "usbyte"):
        with world(strategy=strategy, bucket_bytes=100) as rank:
            model = model_of()
            model, opt = dreamddp.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
            for s in range(STEPS):
                if s == 3:
                    model[0].requires_grad_(False)
                    before = model[0].weight.detach().clone(), model[2].weight.detach().clone()
                x, y = batch(rank, s)
                opt.zero_grad(set_to_none=True)
                torch.nn.functional.mse_loss(model(x), y).backward()
                opt.step()
            dreamddp.sync_all()
            expect(torch.equal(model[0].weight, before[0]), "%s: the frozen layer changed" % strategy)
            expect(not torch.equal(model[2].weight, before[1]), "%s: another layer did not change" % strategy)
        all_equal(model, strategy)


@worker
def running_statistics_are_averaged_by_sync_all():
    for strategy in ("wfbp", "localsgd"):
        model = trained({"strategy": strategy, "period": 3}, kind="norm")
        all_equal(model, strategy)
        mean = model[1].running_mean
        with world():
            expect(torch.equal(mean, dreamddp.broadcast(mean.clone())), "%s: running means differ" % strategy)


NOT_SHARED = ("out.sparse", "out.wide")  # sparse; several elements share memory


class Buffers(torch.nn.Module):
    """Buffers of many types in modules with and without parameters. Their values differ between ranks."""

    def __init__(self, rank):
        super().__init__()
        g = torch.Generator().manual_seed(rank)
        self.inner = torch.nn.Module()  # has no parameters
        self.inner.register_buffer("features", torch.randn(6, 6, generator=g))
        self.inner.register_buffer("mask", torch.rand(6, generator=g) > 0.5)
        self.inner.register_buffer("far", torch.full((3,), float("-inf")), persistent=False)
        self.out = torch.nn.Linear(6, 1)
        self.out.register_buffer("codebook", torch.randn(4, 6, generator=g))
        self.out.register_buffer("mean", torch.randn(6, generator=g))
        self.out.register_buffer("none", None)
        self.out.register_buffer("empty", torch.zeros(0))
        for name, kind in (("bytes", torch.uint8), ("longs", torch.int64)):
            self.out.register_buffer(name, torch.randint(0, 200, (5,), generator=g, dtype=kind))
        self.out.register_buffer("scalar", torch.tensor(2 ** 40 + rank))
        for name, kind in (("f64", torch.float64), ("f16", torch.float16), ("c64", torch.complex64)):
            self.out.register_buffer(name, torch.randn(3, generator=g, dtype=torch.float64).to(kind))
        self.out.register_buffer("sparse", (torch.eye(3) * (rank + 1)).to_sparse())
        self.out.register_buffer("wide", torch.tensor([[rank, 3]]).expand(4, 2))
        self.out.register_buffer("turned", torch.randn(2, 3, generator=g).t())

    def forward(self, x):
        x = (x @ self.inner.features) * self.inner.mask
        with torch.no_grad():
            self.out.codebook.mul_(0.9).add_(0.1 * x.mean(0))
            self.out.mean = 0.9 * self.out.mean + x.mean(0)  # assigns a new tensor
        return self.out(x + self.out.codebook.mean(0) - self.out.mean)


def equal_buffers(model, what):
    """Checks that the buffers are bit-identical to rank 0's, in a separate context."""
    with world():
        for name, b in model.named_buffers():
            if name in NOT_SHARED:
                continue
            parts = (b.real, b.imag) if b.is_complex() else (b,)
            mine = torch.cat([p.double().reshape(-1) for p in parts] + [torch.zeros(1, dtype=torch.float64)])
            high = mine.to(torch.float32)
            for part in (high, (mine - high.double()).nan_to_num().to(torch.float32)):
                theirs = dreamddp.broadcast(part.clone())
                expect(torch.equal(part, theirs), "%s: %s differs" % (what, name))


@worker
def buffers_of_any_type_start_from_rank_0_and_floats_are_averaged():
    for settings in ({"strategy": "wfbp"}, {"strategy": "localsgd", "period": 2}, {"strategy": "dreamddp", "period": 3},
                     {"strategy": "diloco", "period": 2, "wire": "int8"}):
        what = settings["strategy"]
        with world(**settings) as rank:
            model, first = Buffers(rank), Buffers(0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model, opt = dreamddp.wrap(model, adamw(model))
            said = " ".join(str(w.message) for w in caught)
            for name in ("out.f64", "out.f16", "out.c64", "out.turned", "out.sparse"):
                expect(name in said, "%s: %s is not in: %s" % (what, name, said))
            for name in ("mask", "longs", "codebook", "features"):
                expect(name not in said, "%s: %s is in: %s" % (what, name, said))
            for (name, b), other in zip(model.named_buffers(), first.buffers()):
                if name in NOT_SHARED:
                    continue
                expect(torch.equal(b, other), "%s: %s is not rank 0's after wrap" % (what, name))
            mean = dict(model.out.named_buffers())["mean"]
            for s in range(4):
                opt.zero_grad()
                loss_of(model, rank, s).backward()
                opt.step()
            expect(model.out.mean is mean, "%s: the values of the new tensor were not copied to the buffer" % what)
            dreamddp.sync_all()
        equal_buffers(model, what)
        far = [model.inner.far.tolist(), (model.out.mean != first.out.mean).any().item(), model.out.mean.isfinite().all().item()]
        expect(far == [[float("-inf")] * 3, True, True], "%s: %s" % (what, far))


@worker
def replaced_buffer_of_another_shape_gives_a_one_line_error():
    with world(strategy="wfbp") as rank:
        model = model_of(kind="norm")
        model, opt = dreamddp.wrap(model, adamw(model))
        try:
            model[1].running_mean = torch.zeros(3)
            model[2](torch.ones(2, 8)).sum().backward()
            opt.step()
            raise Wrong("no error")
        except dreamddp.UsageError as e:
            expect("running_mean" in str(e) and "another shape" in str(e), str(e))


@worker
def training_resumes_bit_identical_from_state_dict():
    for settings in ({"strategy": "dreamddp", "period": 3}, {"strategy": "diloco", "period": 4}):
        settings["deterministic"] = 1

        def part(first, last, before):
            with world(**settings) as rank:
                model = model_of(5 + rank)
                model, opt = dreamddp.wrap(model, adamw(model))
                if before:
                    dreamddp.load_state_dict(before[0])
                    opt.load_state_dict(before[1])
                expect(dreamddp.step() == first, "step %d" % dreamddp.step())
                for s in range(first, last):
                    opt.zero_grad()
                    loss_of(model, rank, s).backward()
                    opt.step()
                if last == 12:
                    dreamddp.sync_all()
                return (dreamddp.state_dict(), copy.deepcopy(opt.state_dict())), flat(model)

        whole = part(0, 12, None)[1]
        half = part(0, 6, None)[0]
        expect(torch.equal(whole, part(6, 12, half)[1]), "%s: not bit-identical to an uninterrupted run" % settings["strategy"])


@worker
def profile_plan_and_stats_can_be_read():
    with world(strategy="dreamddp", period=3, net="50mbit,1ms") as rank:
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
        model, opt = dreamddp.wrap(model, adamw(model))
        expect(dreamddp.profile() is None, "a profile before the first step")
        expect(dreamddp.stats()["predicted_step_s"] is None and dreamddp.stats()["predicted_hidden_pct"] is None, "a prediction before the first step")
        for s in range(12):
            opt.zero_grad()
            model(torch.ones(4, 64)).sum().backward()
            opt.step()
        p, q = dreamddp.profile(), dreamddp.plan()
        expect(p.names == ["0", "1", "2", "3", "4", "5"] and p.params == [4160.0] * 6, "%s %s" % (p.names, p.params))
        expect(q.period == 3 and sorted(sum(q.sets, [])) == list(range(6)), str(q))
        st = dreamddp.stats()
        expect(st["strategy"] == "dreamddp" and st["steps"] == 12 and st["bytes_sent"] > 0, str(st))
        expect(st["counted_from"] + st["counted_steps"] == 12 and st["period"] == 3 and st["predicted_step_s"] > 0, str(st))
        if not st["replans"]:  # a new plan restarts the counted steps
            expect((st["counted_from"], st["counted_steps"], st["counted_periods"]) == (9, 3, 1), str(st))
        best, rows = dreamddp.choose()
        expect(len(rows) > 10 and best["choose"] in [r["strategy"] for r in rows], str(best))
        best, _ = dreamddp.choose(steps=400, loss_budget=0)
        expect(best["auto"]["strategy"] == "wfbp" and best["auto"]["steps"] == 400, str(best))
        dreamddp.report(loss=1.5)
        expect(dreamddp.all_mean(torch.full((5,), float(rank))).tolist() == [1.0] * 5, "all_mean")
        expect(dreamddp.all_reduce(torch.full((2,), 2.0), 0.5).tolist() == [3.0] * 2, "all_reduce")
        expect(dreamddp.all_gather(torch.full((3,), float(rank))).tolist() == [0.0, 1.0, 2.0], "all_gather")


class Listed:
    """A library that records the names of its calls."""

    def __init__(self, lib):
        self.lib, self.calls = lib, []

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.lib, name)


@worker
def evaluation_does_not_call_the_library():
    with world(strategy="localsgd", period=1) as rank:
        model = model_of()
        model, opt = dreamddp.wrap(model, adamw(model))
        context = dreamddp.context()
        context.lib = listed = Listed(context.lib)
        for step in range(2):
            model.eval()
            with torch.no_grad():
                loss_of(model, rank, 0)
            expect(not listed.calls, "an evaluation: %s" % listed.calls)
            model.train()
            loss_of(model, rank, step).backward()
            opt.step()
            expect("ddp_step_end" in listed.calls, "a step: %s" % listed.calls)
            listed.calls.clear()


@worker
def step_without_an_average_has_one_hook_per_module():
    for strategy, period in (("localsgd", 100), ("diloco", 100), ("dreamddp", 100)):
        with world(strategy=strategy, period=period, deterministic=True) as rank:
            context = dreamddp.context()
            model = model_of()
            model, opt = dreamddp.wrap(model, adamw(model))
            hooks = context.models[0].backward.hooks
            expect(len(hooks.handles) == 6, "%d hooks" % len(hooks.handles))
            for step in range(4):
                opt.zero_grad()
                loss_of(model, rank, step).backward()
                opt.step()
            expect(not hooks.due and len(hooks.handles) == 3, "%s: %d hooks in step 4" % (strategy, len(hooks.handles)))
            listed = context.lib = context.models[0].backward.lib = Listed(context.lib)
            opt.zero_grad()
            loss_of(model, rank, 4).backward()
            opt.step()
            expect(listed.calls == ["ddp_backward_rest", "ddp_step_end", "ddp_due"], "a step: %s" % listed.calls)


@worker
def any_pattern_of_gradients_trains_as_with_all_hooks():
    def run(settings, every):
        with world(deterministic=True, period=3, **settings) as rank:
            model = Odd(5 + rank)
            model, opt = dreamddp.wrap(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05))
            hooks = dreamddp.context().models[0].backward.hooks
            if every:
                hooks.next_step = lambda *_: None
            for s in range(24):
                opt.zero_grad(set_to_none=s % 5 > 0)
                x, y = batch(rank, s)
                # steps of equal gradients, then other layers, an unused layer, a second pass, a step without a pass
                loss = torch.nn.functional.mse_loss(model(x, s < 8 or (rank + s) % 3 > 0), y)
                if s == 20:
                    loss = loss + model.never(x).pow(2).sum()
                if s != 22:
                    loss.backward(retain_graph=s % 4 == 3)
                if s % 4 == 3:
                    loss.backward()
                opt.step()
            expect(dreamddp.step() == 24, "the library counted %d steps" % dreamddp.step())
            dreamddp.sync_all()
            return flat(model)

    for settings in ({"strategy": "localsgd"}, {"strategy": "dreamddp"}, {"strategy": "diloco"},
                     {"strategy": "diloco", "overlap": "stream", "fragments": 3}):
        expect(torch.equal(run(settings, False), run(settings, True)), "%s: other parameters" % settings)


@worker
def copy_of_the_model_trains_without_the_library():
    with world(strategy="wfbp") as rank:
        model = model_of()
        model, opt = dreamddp.wrap(model, adamw(model))
        copied = copy.deepcopy(model)
        loss_of(copied, rank, 0).backward()
        expect(dreamddp.step() == 0, "the copy trains")
        with tempfile.TemporaryFile() as f:
            torch.save(model, f)
        loss_of(model, rank, 0).backward()
        opt.step()
        expect(dreamddp.step() == 1, "%d steps" % dreamddp.step())


def mistake(kind, words, make, settings=None):
    """Checks that make(model) fails with a one-line error that contains these words."""
    with world(**(settings or {})):
        try:
            make(model_of())
        except kind as e:
            expect(words in str(e) and "\n" not in str(e), "'%s' is not in: %s" % (words, e))
        else:
            raise Wrong("no error with '%s'" % words)


@worker
def unsupported_models_give_a_one_line_error():
    def twice(m):
        dreamddp.wrap(m, adamw(m))
        dreamddp.wrap(m, adamw(m))

    def lazy(_):
        m = torch.nn.Sequential(torch.nn.LazyLinear(3))
        dreamddp.wrap(m, torch.optim.SGD(m.parameters(), lr=1))

    def another(m):
        dreamddp.wrap(m, adamw(model_of()))

    def turned():
        m = model_of()
        m[0].weight = torch.nn.Parameter(m[0].weight.detach().t().contiguous())
        return m, adamw(m)

    def nothing(m):
        dreamddp.wrap(m.requires_grad_(False), adamw(m))

    d = dreamddp
    mistake(d.InvalidArgument, "parameter 0.weight is torch.float64: dreamddp trains float32, bfloat16 and float16",
            lambda m: d.wrap(m.double(), adamw(m)))
    mistake(d.InvalidArgument, "parameter 0.weight has no values (device meta)", lambda m: d.wrap(m.to("meta"), adamw(m)))
    mistake(d.UsageError, "parameter 0.weight was given to an earlier wrap", twice)
    mistake(d.InvalidArgument, "has no shape yet", lazy)
    mistake(d.InvalidArgument, "that is not the model's", another)
    mistake(d.InvalidArgument, "no parameter of the model requires a gradient", nothing)
    mistake(d.InvalidArgument, "takes a torch.nn.Module", lambda m: d.wrap(adamw(m), m))
    mistake(d.Unsupported, "LBFGS", lambda m: d.wrap(m, torch.optim.LBFGS(m.parameters())))
    mistake(d.Error, "updates parameters itself", lambda m: d.wrap(m, adamw(m)), {"strategy": "deft"})
    mistake(d.Mismatch, "parameter shapes", lambda m: d.wrap(*((m, adamw(m)) if d.rank() else turned())))
    mistake(d.Mismatch, "rank", lambda m: d.wrap(*((m, adamw(m)) if d.rank() else (m[:2], adamw(m[:2])))))


@worker
def unsupported_training_gives_a_one_line_error():
    def loop(model, before):
        model, opt = dreamddp.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model, dreamddp.rank(), 0).backward()
        before(model, opt)
        opt.step()

    def moved(m, _):
        m[2].weight.data = m[2].weight.data.clone()

    def more(_, o):
        o.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})

    def sparse(_):
        m = torch.nn.Embedding(5, 3, sparse=True)
        m, _o = dreamddp.wrap(m, torch.optim.SGD(m.parameters(), lr=0.1))
        m(torch.tensor([1, 2])).sum().backward()

    def third(m):
        m, _o = dreamddp.wrap(m, torch.optim.SGD(m.parameters(), lr=0.1))
        for s in range(3):
            loss_of(m, 0, s).backward()

    mistake(dreamddp.UsageError, "parameter 2.weight was moved to other memory", lambda m: loop(m, moved))
    mistake(dreamddp.UsageError, "were added to the optimizer after wrap", lambda m: loop(m, more))
    mistake(dreamddp.Unsupported, "a dense one of shape (5, 3) is needed", sparse, {"strategy": "wfbp"})
    mistake(dreamddp.UsageError, "had more than micro_batches=2 gradients in one step", third, {"micro_batches": 2})


@worker
def invalid_settings_are_named_like_the_fields():
    for words, settings in (("init: unknown setting perid=3: did you mean period?", {"perid": 3}),
                            ("strategy=dreamdp is unknown: choose", {"strategy": "dreamdp"}),
                            ("period=2.5 is not a whole number: choose 1 to 1000000 steps (default: 5)", {"period": 2.5}),
                            ("period=0 is out of range: choose 1 to 1000000 steps", {"period": 0}),
                            ("peer_timeout_s=soon is not a number: choose", {"peer_timeout_s": "soon"}),
                            ("clip_norm=0,5 has a decimal comma: write 0.5", {"clip_norm": "0,5"}),
                            ("unknown setting outer.lr=0.5: did you mean outer_lr?", {"outer.lr": 0.5}),
                            ("state_period=2,x is invalid: choose 1 to 1000000 periods", {"state_period": (2, "x")}),
                            ("device='tpu'", {"device": "tpu"}),
                            ("fast", {"net": "fast"}),
                            ("wire=int3 is unknown: choose", {"wire": "int3"})):
        try:
            dreamddp.init(**settings)
        except dreamddp.InvalidArgument as e:
            expect(words in str(e), "'%s' is not in: %s" % (words, e))
        else:
            raise Wrong("no error with %s" % settings)
    with world(strategy="diloco", wire="topk:0.1", overlap="stream", state_period=(2, 3), min_world=None,
               check_writes=True, profile_steps=2):
        expect(dreamddp.stats()["strategy"] == "diloco", str(dreamddp.stats()))
    try:
        dreamddp.rank()
        raise Wrong("rank() works without init")
    except dreamddp.UsageError as e:
        expect("init() first" in str(e), str(e))


def work(names, missing=()):
    """Runs the cases on this rank, one after another. missing: an exception of cases that cannot run here."""
    failed = 0
    for function in CASES:
        if names and function.__name__ not in names:
            continue
        try:
            function()
            print("done %s" % function.__name__, flush=True)
        except missing as e:
            print("SKIP %s: %s" % (function.__name__, e), flush=True)
        except Exception as e:  # the parent reads this line
            failed = 1
            print("FAIL %s: %s: %s" % (function.__name__, type(e).__name__, e), flush=True)
            dreamddp.close()
    return failed


if __name__ == "__main__":
    sys.exit(work(sys.argv[1:]))
