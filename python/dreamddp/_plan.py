"""Planners: profiles, plans (the step in which each layer is averaged), and the choice of a strategy."""
import ctypes
import json
import os
import subprocess
import tempfile

from . import _binding as c, _programs
from ._library import InvalidArgument, check, failure, load


class Profile:
    """The times of a model's layers in seconds, in forward order.

    backward_s, forward_s: compute times. comm_s: times to average each layer over all ranks. params: numbers of
    parameters. alpha_s, gap_s: delay and per-message overhead of the link. between_s: compute time between forward and
    backward, of the other micro-batches of a step."""

    def __init__(self, backward_s, comm_s, forward_s=None, params=None, names=None, alpha_s=0.0, gap_s=0.0,
                 between_s=0.0):
        self.backward_s, self.comm_s = list(backward_s), list(comm_s)
        self.forward_s = list(forward_s) if forward_s is not None else [0.0] * len(self.backward_s)
        self.params = list(params) if params is not None else [0.0] * len(self.backward_s)
        self.names = list(names) if names is not None else ["layer %d" % i for i in range(len(self.backward_s))]
        self.alpha_s, self.gap_s, self.between_s = alpha_s, gap_s, between_s
        for part in ("comm_s", "forward_s", "params", "names"):
            if len(getattr(self, part)) != len(self.backward_s):
                raise InvalidArgument("profile: %d layers in backward_s, %d in %s" % (
                    len(self.backward_s), len(getattr(self, part)), part))

    def __len__(self):
        return len(self.backward_s)

    def __repr__(self):
        return "<dreamddp.Profile of %d layers, backward %.4g s, comm %.4g s>" % (
            len(self), sum(self.backward_s), sum(self.comm_s))

    def write(self, path):
        """Writes the profile as CSV, which all programs of the library read."""
        err = c.ddp_error()
        check(load().ddp_profile_write(self.as_c(), os.fspath(path).encode(), err), err)

    def as_c(self):
        array = ctypes.c_double * len(self)
        names = (ctypes.c_char_p * len(self))(*[n.encode() for n in self.names])
        return c.ddp_profile(len(self), names, array(*self.params), array(*self.forward_s), array(*self.backward_s),
                             array(*self.comm_s), self.alpha_s, self.gap_s, self.between_s)

    @classmethod
    def of_c(cls, p):
        n = p.layers
        return cls(p.backward_s[:n], p.comm_s[:n] if p.comm_s else [0.0] * n, p.forward_s[:n] if p.forward_s else None,
                   p.params[:n] if p.params else None,
                   [(p.name[i] or b"layer %d" % i).decode() for i in range(n)] if p.name else None,
                   p.alpha_s, p.gap_s, p.between_s)


class Plan:
    """A plan. step_of[l]: the step of the period in which layer l is averaged. sets: the layers of each step."""

    def __init__(self, p, lib):
        self.period, self.step_of = p.period, p.step_of[:p.layers]
        self.sets = [[l for l, s in enumerate(self.step_of) if s == h] for h in range(p.period)]
        self.objective_s, self.exposed_s, self.lower_bound_s = p.objective_s, p.exposed_s, p.lower_bound_s
        self.solver, self.cost = lib.ddp_solver_name(p.solver).decode(), lib.ddp_cost_name(p.cost).decode()

    def __repr__(self):
        return "<dreamddp.Plan of %d layers, period %d, exposed %.4g s: %s>" % (
            len(self.step_of), self.period, self.exposed_s, self.sets)


def read_profile(path, net=None, workers=None):
    """Reads a profile from CSV. If the file lacks comm_s, it is computed for a direct all-reduce of `workers` ranks over
    links of net, "RATE,DELAY"."""
    lib, err, p, link = load(), c.ddp_error(), c.ddp_profile(), None
    if net is not None:
        rate, delay = ctypes.c_double(), ctypes.c_double()
        check(lib.ddp_net_parse(net.encode(), rate, delay, err), err)
        if not workers or workers < 2 or not rate.value > 0:
            raise InvalidArgument("profile: net=%r needs a rate above 0 and workers=N of at least 2" % net)
        link = c.ddp_link(2 * delay.value, 2 * (workers - 1) / workers / rate.value)
    check(lib.ddp_profile_read(os.fspath(path).encode(), link, p, err), err)
    try:
        return Profile.of_c(p)
    finally:
        lib.ddp_profile_free(p)


def make_plan(profile, period=5, solver="scatter", cost="window", fill="none"):
    lib, err, o, out = load(), c.ddp_error(), c.ddp_plan_options(period=period), c.ddp_plan()
    for field, name in (("solver", solver), ("cost", cost), ("fill", fill)):
        value = ctypes.c_int()
        check(getattr(lib, "ddp_%s_named" % field)(name.encode(), value, err), err)
        setattr(o, field, value.value)
    check(lib.ddp_plan_partial(profile.as_c(), o, out, err), err)
    try:
        out.solver, out.cost = o.solver, o.cost
        return Plan(out, lib)
    finally:
        lib.ddp_plan_free(out)


def choose(profile, net, workers, utilisation=90, period=None, steps=1000, loss_budget=0.05, loss_table=None):
    """Runs `plan choose`. Returns (the choice, a dict for each strategy, in order of distance from S-SGD)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "profile.csv")
        profile.write(path)
        command = [_programs.find("plan"), "choose", "--profile", path, "--net", net, "--workers", str(workers),
                   "--utilisation", str(utilisation), "--steps", str(steps), "--loss-budget", str(loss_budget)]
        command += ["--period", str(period)] if period else []
        command += ["--loss-table", os.fspath(loss_table)] if loss_table is not None else []
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if p.returncode:
        err = c.ddp_error(c.DDP_ARG if p.returncode == 2 else c.DDP_FAILED, p.stderr.strip().encode()[:399])
        raise failure(err)
    rows = [json.loads(line) for line in p.stdout.splitlines()]
    return rows[-1], rows[:-1]


def net_of(stats, world):
    """The measured link as RATE,DELAY, for choose."""
    alpha, beta = stats["link"]
    if world < 2 or not beta > 0:
        raise InvalidArgument("choose: no link was measured yet: pass net=\"100mbit,20ms\" and workers=N")
    return "%.0fbit,%.6gs" % (8 * 2 * (world - 1) / world / beta, alpha / 2)
