"""Cases of tests/python/test_programs.py, run by three ranks: typical PyTorch programs, 20 steps each.

A program is written once, with wrap and batch as arguments. With a strategy that averages gradients, its parameters match
one process that trains on the whole batch. With every strategy they are equal on all ranks after sync_all.
"""
import contextlib
import copy
import os
import re
import sys
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dreamddp  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
from ranks import RANKS, Wrong, expect, near, world  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402

ROWS = 4
STEPS = 20
NEW = not torch.__version__.startswith("1.")
CASES = []


class Missing(Exception):
    """This version of PyTorch lacks a feature that the program needs."""


def worker(function):
    CASES.append(function)
    return function


def rows_of(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(ROWS, 6, generator=g)
    return x, x.sum(1, keepdim=True).sin()


class Distributed:
    """wrap and batch for a program that runs on one of three ranks."""

    def __init__(self, rank):
        self.rank = rank
        self.wrap = dreamddp.wrap

    def batch(self, step):
        return rows_of(self.rank, step)


class Alone:
    """wrap and batch for one process that trains on all rows."""
    rank = 0

    def wrap(self, model, optimizer):
        return model, optimizer

    def batch(self, step):
        parts = [rows_of(r, step) for r in range(RANKS)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def mlp(seed=5, out=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, out))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def flat(model):
    return torch.cat([p.detach().float().reshape(-1) for p in model.parameters()])


def one_step(model, opt, rank, step):
    x, y = rows_of(rank, step)
    opt.zero_grad()
    mse_loss(model(x), y).backward()
    opt.step()


def equal(values, what):
    """Checks that all ranks have bit-identical values, in a separate context."""
    with world():
        expect(torch.equal(values, dreamddp.broadcast(values.clone())), "%s: ranks differ" % what)


def run(program, settings, exact=True, most=2e-6):
    """Runs program(Distributed or Alone), which returns the trained model, and compares the results."""
    what = "%s under %s" % (program.__name__, settings["strategy"])
    with world(**settings) as rank:
        model = program(Distributed(rank))
        dreamddp.sync_all()
        values = flat(model)
    equal(values, what)
    if exact:
        near(values, flat(program(Alone())), what, most)


def runs(program, exact=("wfbp",), others=("dreamddp", "diloco"), most=2e-6, **more):
    for strategy in exact:
        run(program, {"strategy": strategy, "bucket_bytes": 100, **more}, True, most)
    for strategy in others:
        run(program, {"strategy": strategy, "period": 3, **more}, False)


@worker
def accumulation():
    def program(how):
        def accumulate(s):
            model = mlp(5 + s.rank)
            opt = sgd(model)
            model, opt = s.wrap(model, opt)
            for step in range(STEPS):
                x, y = s.batch(step)
                opt.zero_grad()
                for k, part in enumerate(((0, 2), (2, 4))):
                    rows = torch.cat([torch.arange(len(x)).reshape(-1, ROWS)[:, part[0]:part[1]].reshape(-1)])
                    loss = mse_loss(model(x[rows]), y[rows]) / 2
                    with how(model, k < 1, s):
                        loss.backward()
                opt.step()
            if isinstance(s, Distributed):
                expect(dreamddp.step() == STEPS, "the library counted %d steps" % dreamddp.step())
            return model
        return accumulate

    def by_module(model, more, s):
        return model.no_sync() if more and isinstance(s, Distributed) else contextlib.nullcontext()

    def by_package(model, more, s):
        return dreamddp.no_sync() if more and isinstance(s, Distributed) else contextlib.nullcontext()

    def by_flag(model, more, s):
        model.require_backward_grad_sync = not more
        return contextlib.nullcontext()

    def by_nothing(model, more, s):
        return contextlib.nullcontext()

    for how in (by_module, by_package, by_flag, by_nothing):
        runs(program(how))


class Unused(nn.Module):
    """A model with a layer that its forward does not use, registered first or last."""

    def __init__(self, seed, first):
        super().__init__()
        torch.manual_seed(seed)
        if first:
            self.never = nn.Linear(5, 5)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 1)
        if not first:
            self.never = nn.Linear(5, 5)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


@worker
def clipping_works_for_any_order_of_modules():
    for first in (True, False):
        def clip(s):
            model = Unused(5 + s.rank, first)
            never = model.never.weight.detach().clone()
            opt = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
            model, opt = s.wrap(model, opt)
            if isinstance(s, Distributed) and s.rank == 0:
                expect(torch.equal(never, model.never.weight), "wrap changed the parameters of rank 0")
            for step in range(STEPS):
                x, y = s.batch(step)
                opt.zero_grad(set_to_none=True)
                mse_loss(model(x), y).backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                expect(norm > 0.05, "nothing to clip: %g" % norm)
                opt.step()
            expect(model.never.weight.grad is None, "an unused layer has a gradient")
            return model
        runs(clip, exact=("ssgd", "wfbp", "usbyte"))


@worker
def several_backward_passes_in_a_step_train():
    def penalty(s):
        model = mlp(5 + s.rank)
        model, opt = s.wrap(model, sgd(model))
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            out = model(x)
            mse_loss(out, y).backward(retain_graph=True)
            (0.1 * out.pow(2).mean()).backward()
            (1e-2 * sum(p.pow(2).sum() for p in model[0].parameters())).backward()
            opt.step()
        if isinstance(s, Distributed):
            expect(dreamddp.step() == STEPS, "the library counted %d steps" % dreamddp.step())
        return model
    runs(penalty, exact=("ssgd", "wfbp"))


@worker
def gradient_penalty():
    def critic(s):
        model = mlp(5 + s.rank)
        model, opt = s.wrap(model, sgd(model))
        for step in range(STEPS):
            x, _ = s.batch(step)
            x.requires_grad_(True)
            out = model(x)
            g, = torch.autograd.grad(out.sum(), x, create_graph=True)
            opt.zero_grad()
            (out.mean() + 0.1 * (g.norm(dim=1) - 1).pow(2).mean()).backward()
            opt.step()
        return model
    runs(critic)


class Checkpointed(nn.Module):
    def __init__(self, seed, reentrant, shared):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.unused = nn.Linear(3, 3)
        self.reentrant, self.shared = reentrant, shared

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        for layer in (self.a, self.b, self.a if self.shared else self.b):
            x = checkpoint(lambda y, f=layer: torch.tanh(f(y)), x, use_reentrant=self.reentrant)
        return self.head(x)


@worker
def gradient_checkpointing():
    for reentrant in (True, False):
        for shared in (True, False):
            def checkpointed(s):
                model = Checkpointed(5 + s.rank, reentrant, shared)
                model, opt = s.wrap(model, sgd(model))
                for step in range(STEPS):
                    x, y = s.batch(step)
                    opt.zero_grad()
                    mse_loss(model(x.requires_grad_(True)), y).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    opt.step()
                return model
            runs(checkpointed, exact=("ssgd", "wfbp"))


class Whole(nn.Module):
    """The whole forward pass is one checkpointed segment."""

    def __init__(self, seed, unused):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 1)
        if unused:
            self.unused = nn.Linear(3, 3)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        return checkpoint(lambda y: self.b(torch.tanh(self.a(y))), x, use_reentrant=True)


@worker
def whole_model_can_be_checkpointed():
    def whole(unused, clip):
        def program(s):
            model = Whole(5 + s.rank, unused)
            model, opt = s.wrap(model, sgd(model))
            for step in range(STEPS):
                x, y = s.batch(step)
                opt.zero_grad()
                mse_loss(model(x.requires_grad_(True)), y).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                opt.step()
            return model
        return program
    runs(whole(False, True))
    runs(whole(True, False))
    for strategy in ("ssgd", "wfbp"):
        refused(dreamddp.UsageError, "was changed between backward.. and step.., when it was not averaged: clip by init",
                lambda: whole(True, True)(Distributed(dreamddp.rank())), {"strategy": strategy})


@worker
def clipping_inside_no_sync_fails():
    def program():
        model = mlp()
        model, opt = dreamddp.wrap(model, sgd(model))
        with dreamddp.no_sync():
            mse_loss(model(rows_of(0, 0)[0]), rows_of(0, 0)[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        opt.step()
    refused(dreamddp.UsageError, "let the last backward pass run outside no_sync", program, {"strategy": "wfbp"})


@worker
def layers_can_be_frozen_and_unfrozen():
    def gradual(s):
        model = mlp(5 + s.rank)
        model[0].requires_grad_(False)
        model, opt = s.wrap(model, sgd(model))
        for step in range(STEPS):
            if step == 5:
                model[0].requires_grad_(True)
                model[2].requires_grad_(False)
            if step == 10:
                model[2].requires_grad_(True)
            x, y = s.batch(step)
            opt.zero_grad(set_to_none=True)
            mse_loss(model(x), y).backward()
            opt.step()
        return model
    runs(gradual)


@worker
def rank_may_skip_a_step():
    def skips(s):
        model = mlp(5 + s.rank)
        model, opt = s.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            mse_loss(model(x), y).backward()
            if not (step % 5 == 2 and s.rank == 1):
                opt.step()
        if isinstance(s, Distributed):
            expect(dreamddp.step() == STEPS, "the library counted %d steps" % dreamddp.step())
        return model
    runs(skips, exact=(), others=("ssgd", "wfbp", "dreamddp", "diloco"))


@worker
def loss_scaling():
    def scaled(s):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if hasattr(torch.amp, "GradScaler") else \
            torch.cuda.amp.GradScaler(enabled=False)
        model = mlp(5 + s.rank)
        model, opt = s.wrap(model, sgd(model))
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            loss = mse_loss(model(x), y)
            if step == 7 and scaler.is_enabled() and (s.rank == 1 or isinstance(s, Alone)):
                loss = loss * float("inf")  # one rank overflows: all ranks must skip the step
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(opt)
            scaler.update()
        return model
    runs(scaled)


@worker
def averaged_models_can_be_trained():
    def ema(s):
        model = mlp(5 + s.rank)
        model, opt = s.wrap(model, sgd(model))
        mean = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, b, n: 0.9 * a + 0.1 * b)
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            mse_loss(model(x), y).backward()
            opt.step()
            mean.update_parameters(model)
        mean.eval()
        with torch.no_grad():
            mean(x)
        return mean if isinstance(s, Alone) or dreamddp.stats()["strategy"] == "wfbp" else model
    runs(ema)


@worker
def two_models_with_separate_optimizers_train():
    def gan(wraps):
        def adversaries(s):
            torch.manual_seed(s.rank)
            g, d = mlp(5 + s.rank, 6), mlp(15 + s.rank)
            both = nn.ModuleList([g, d])
            og, od = sgd(g), sgd(d)
            if wraps == 1:
                s.wrap(both, [og, od])
            else:
                s.wrap(g, og)
                s.wrap(d, od)
            for step in range(STEPS):
                x, _ = s.batch(step)
                od.zero_grad()
                (nn.functional.softplus(d(g(x).detach())).mean() + nn.functional.softplus(-d(x)).mean()).backward()
                od.step()
                og.zero_grad()
                nn.functional.softplus(-d(g(x))).mean().backward()
                og.step()
            return both
        return adversaries
    for wraps in (1, 2):
        runs(gan(wraps), exact=("ssgd", "wfbp"))


@worker
def two_optimizers_of_one_model_train():
    def muon(s):
        model = mlp(5 + s.rank)
        matrices = [p for p in model.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if p.dim() != 2]
        first = torch.optim.Muon(matrices, lr=0.02) if hasattr(torch.optim, "Muon") else torch.optim.SGD(matrices, lr=0.02)
        opts = [first, torch.optim.AdamW(rest, lr=1e-3)]
        s.wrap(model, opts)
        for step in range(STEPS):
            x, y = s.batch(step)
            mse_loss(model(x), y).backward()
            for o in opts:
                o.step()
            for o in opts:
                o.zero_grad()
        if isinstance(s, Distributed):
            expect(dreamddp.step() == STEPS, "the library counted %d steps" % dreamddp.step())
        return model
    runs(muon, most=2e-5 if hasattr(torch.optim, "Muon") else 2e-6)


@worker
def sixteen_bit_parameters_train():
    def half(s):
        model = mlp(5 + s.rank).to(torch.bfloat16)
        model, opt = s.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            mse_loss(model(x.to(torch.bfloat16)).float(), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
        expect(all(p.grad.dtype == p.dtype == torch.bfloat16 for p in model.parameters()), "types changed")
        return model
    runs(half, most=0.03)  # bfloat16 has 8 bits of mantissa, and gradients of parts are rounded before they are summed
    for wire in ("bf16", "int8"):
        runs(half, exact=(), others=("wfbp", "dreamddp", "diloco"), wire=wire)


@worker
def float32_masters_keep_small_changes():
    """The averages change parameters by less than the precision of bfloat16. Without float32 masters the ranks
    would not converge."""
    with world(strategy="localsgd", period=1) as rank:
        model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
        model, opt = dreamddp.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
        master = dreamddp._wrapped.registered.masters[0]
        with torch.no_grad():
            model.weight.fill_(1.0 + (0.0078125 if rank == 0 else 0.0))
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        opt.step()
        far = abs(master.flat.item() - (1 + 0.0078125 / 3))
        expect(far < 1e-6, "the master is %.9g" % master.flat.item())
        expect(model.weight.item() == 1.0, "the parameter is %.9g" % model.weight.item())


class Images(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 3)))).flatten(1))


@worker
def tensors_in_any_layout_train():
    def channels_last(s):
        model = Images(5 + s.rank).to(memory_format=torch.channels_last)
        model, opt = s.wrap(model, sgd(model))
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            mse_loss(model(x), y).backward()
            opt.step()
        return model

    def odd(s):
        model = mlp(5 + s.rank)
        wide = torch.zeros(8, 20)
        wide[:, 3:9] = model[0].weight.detach()
        model[0].weight = nn.Parameter(wide[:, 3:9])              # has gaps in memory
        model[2].weight = nn.Parameter(model[2].weight.detach().t().clone().t())  # column-major
        tied = nn.Linear(5, 1)
        tied.weight = nn.Parameter(model[4].weight.detach())      # another parameter with the same memory
        model.add_module("tied", tied)
        opt = torch.optim.SGD(model.parameters(), lr=0.02)
        model, opt = s.wrap(model, opt)
        for step in range(STEPS):
            x, y = s.batch(step)
            opt.zero_grad()
            h = torch.tanh(model[2](torch.tanh(model[0](x))))
            mse_loss(model[4](h) + 0.1 * tied(h), y).backward()
            opt.step()
        expect(tied.weight.data_ptr() == model[4].weight.data_ptr(), "the parameters no longer share memory")
        return model
    runs(channels_last)
    runs(odd)


@worker
def values_loaded_after_wrap_are_used():
    for strategy in ("wfbp", "localsgd", "dreamddp", "diloco"):
        for overlap in ("none", "stream", "eager") if strategy == "diloco" else (None,):
            with world(strategy=strategy, period=3, overlap=overlap) as rank:
                model = mlp(5 + rank)
                model, opt = dreamddp.wrap(model, sgd(model))
                for step in range(8):
                    one_step(model, opt, rank, step)
                loaded = mlp(70)
                for g in opt.param_groups:
                    g["lr"] = 0.0
                model.load_state_dict(mlp(70 + rank).state_dict())  # rank 0's values must be used
                for step in range(STEPS):
                    one_step(model, opt, rank, step)
                dreamddp.sync_all()
                near(flat(model), flat(loaded), "%s: the loaded values changed at learning rate 0" % strategy, 2e-7)
            equal(flat(model), strategy)


@worker
def one_rank_may_load_and_restore():
    """Rank 0 alone loads other values and restores its own, as when it evaluates averaged models. Forward passes
    change the buffers."""
    with world(strategy="dreamddp", period=2) as rank:
        model = nn.Sequential(mlp(5 + rank, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        other = copy.deepcopy(model)
        model, opt = dreamddp.wrap(model, sgd(model))
        for step in range(6):
            one_step(model, opt, rank, step)
            if rank == 0:
                kept = copy.deepcopy(model.state_dict())
                model.load_state_dict(other.state_dict())
                model.load_state_dict(kept)
        dreamddp.sync_all()
    equal(flat(model), "restored")


@worker
def clip_norm_works_with_every_strategy():
    for strategy in ("wfbp", "localsgd", "dreamddp", "diloco"):
        with world(strategy=strategy, period=3, clip_norm=1e-3) as rank:
            model = mlp(5 + rank)
            model, opt = dreamddp.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
            for step in range(5):
                opt.zero_grad()
                mse_loss(model(rows_of(rank, step)[0]), rows_of(rank, step)[1]).backward()
                norm = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm().item()
                expect(abs(norm - 1e-3) < 1e-6, "%s: the norm is %g after init(clip_norm=1e-3)" % (strategy, norm))
                opt.step()
            dreamddp.sync_all()
        equal(flat(model), strategy)


@worker
def all_ranks_may_load_the_values_of_rank_0():
    """As in a program that loads its last checkpoint: nothing changes on rank 0."""
    for strategy in ("dreamddp", "wfbp"):
        with world(strategy=strategy, period=3) as rank:
            model = mlp(5 + rank)
            model, opt = dreamddp.wrap(model, sgd(model))
            for step in range(8):
                one_step(model, opt, rank, step)
                if step == 4:
                    kept = dreamddp.broadcast_object(model.state_dict())
                    model.load_state_dict(kept)
            model.load_state_dict(dreamddp.broadcast_object(model.state_dict()))
            dreamddp.sync_all()
        equal(flat(model), strategy)


@worker
def uneven_inputs():
    for strategy in ("wfbp", "dreamddp", "diloco"):
        with world(strategy=strategy, period=2) as rank:
            model = mlp(5 + rank)
            model, opt = dreamddp.wrap(model, sgd(model))
            with model.join():
                for step in range(6 + 2 * rank):
                    one_step(model, opt, rank, step)
            expect(dreamddp.step() == 6 + 2 * (RANKS - 1), "%s: %d steps" % (strategy, dreamddp.step()))
            with model.join(enable=False):
                opt.zero_grad()
                mse_loss(model(rows_of(rank, 3)[0]), rows_of(rank, 3)[1]).backward()
                opt.step()
            dreamddp.sync_all()
        equal(flat(model), strategy)


@worker
def compiled_models():
    if not hasattr(torch, "compile"):
        raise Missing("no torch.compile")
    from torch import _dynamo
    from torch._dynamo.utils import counters

    def compiled(how):
        def program(s):
            _dynamo.reset()
            counters.clear()
            model = mlp(5 + s.rank)
            opt = sgd(model)
            if how == "before":
                model = torch.compile(model, backend="aot_eager")
            model, opt = s.wrap(model, opt)
            run_by = model
            if how != "before":
                run_by = torch.compile(model, backend="aot_eager", fullgraph=how == "fullgraph")
            for step in range(STEPS):
                x, y = s.batch(step)
                opt.zero_grad()
                mse_loss(run_by(x), y).backward()
                opt.step()
            expect(not counters["graph_break"], "graph breaks: %s" % dict(counters["graph_break"]))
            return model
        return program
    for how in ("before", "after", "fullgraph"):
        runs(compiled(how))


@worker
def wrap_adds_attributes_but_no_state():
    with world(strategy="wfbp") as rank:
        model = mlp()
        keys = list(model.state_dict())
        wrapped, opt = dreamddp.wrap(model, sgd(model))
        expect(wrapped is model and model.module is model and model.require_backward_grad_sync is True, "attributes")
        expect(list(model.state_dict()) == keys and len(list(model.modules())) == 6, "state_dict or modules changed")
        expect(not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules()), "forward hooks")
        other = copy.deepcopy(model)
        expect(other.module is other, "the copy's module")
        with other.no_sync(), other.join():
            mse_loss(other(rows_of(rank, 0)[0]), rows_of(rank, 0)[1]).backward()
        other.load_state_dict(model.state_dict())
        expect(dreamddp.step() == 0, "the copy trains")
    with world(strategy="wfbp") as rank:
        other, opt = dreamddp.wrap(other, sgd(other))  # wrap accepts a copy of a wrapped model
        with other.no_sync():
            mse_loss(other(rows_of(rank, 0)[0]), rows_of(rank, 0)[1]).backward()
        expect(dreamddp.step() == 0, "no_sync of the copy averages")
        opt.step()
    expect("no_sync" not in model.__dict__ and "module" not in model.__dict__, "the attributes remain after close")


def refused(kind, words, make, settings=None):
    with world(**(settings or {})):
        try:
            make()
        except kind as e:
            expect(re.search(words, str(e)) and "\n" not in str(e), "'%s' is not in: %s" % (words, e))
        else:
            raise Wrong("no error with '%s'" % words)


@worker
def parts_replaced_after_wrap_give_a_one_line_error():
    def train(change):
        model = mlp()
        model, opt = dreamddp.wrap(model, sgd(model))
        for step in range(3):
            opt.zero_grad()
            mse_loss(model(rows_of(0, step)[0]), rows_of(0, step)[1]).backward()
            opt.step()
            change(model)
        dreamddp.sync_all()

    def by_hand(model):
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad

    def head(model):
        model[4] = nn.Linear(5, 1)

    def parameter(model):
        model[2].weight = nn.Parameter(model[2].weight.detach().clone())

    refused(dreamddp.UsageError, "parameter 0.weight was moved to other memory since wrap", lambda: train(by_hand))
    refused(dreamddp.UsageError, "the module '4' of the model was replaced since wrap", lambda: train(head))
    refused(dreamddp.UsageError, "the parameter 'weight' of the model was replaced since wrap", lambda: train(parameter))


@worker
def parameters_without_an_optimizer_give_a_one_line_error():
    d = dreamddp

    def first_only():
        m = mlp()
        d.wrap(m, sgd(m[0]))

    def shared():
        m = mlp()
        d.wrap(m, [sgd(m), sgd(m[0])])

    def again():
        m = mlp()
        d.wrap(m, sgd(m))
        d.wrap(m[0], sgd(m[0]))

    def elastic():
        m, n = mlp(), mlp()
        d.wrap(m, sgd(m))
        d.wrap(n, sgd(n))

    refused(d.InvalidArgument, "parameter 2.weight requires a gradient, but no optimizer that was passed to wrap updates it: .*a list",
            first_only)
    refused(d.InvalidArgument, "two of the optimizers update the same parameter", shared)
    refused(d.InvalidArgument, "empty list", lambda: d.wrap(mlp(), []))
    refused(d.UsageError, "parameter weight was given to an earlier wrap", again)
    refused(d.Unsupported, "elastic world .*ModuleList", elastic, {"min_world": 2})
    refused(d.InvalidArgument, "no parameter of the model requires a gradient",
            lambda: d.wrap(nn.Tanh(), torch.optim.SGD([{"params": []}], lr=1)))


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    ranks.CASES[:] = CASES
    sys.exit(ranks.work(sys.argv[1:], Missing))
