"""dreamddp: train PyTorch models over slow links.

    import dreamddp
    dreamddp.init(strategy="dreamddp", period=10)   # rank and world from ddprun, torchrun, mpirun, srun
    model, opt = dreamddp.wrap(model, opt)          # and the training loop stays as it is

Settings are those of ddp_config by name; what init is not given, DREAMDDP_ variables say. docs/tutorials/pytorch.md.
"""
import atexit
import contextlib

from . import _plan
from ._binding import DDP_VERSION_STRING as __version__
from ._context import Context
from ._library import (Aborted, Error, FileError, FormatError, InvalidArgument, Mismatch, NetworkError, NotFinite,
                       OutOfMemory, PeerLost, PeerTimeout, Unsupported, UsageError)
from ._plan import Plan, Profile

_context = None  # of init
_wrapped = None  # the model of the first wrap
_more = []       # contexts of further ones


def init(**settings):
    """Joins the world and waits until all ranks are there. device="cuda" where layers are CUDA tensors."""
    global _context
    if _context is not None:
        raise UsageError("init was called before: close() first")
    _context = Context(**settings)
    return _context


def context():
    """The context of init, whose calls these functions are."""
    if _context is None:
        raise UsageError("call dreamddp.init() first")
    return _context


def close():
    """Leaves the world; also done when the program ends."""
    global _context, _wrapped
    left, _context, _wrapped = _context, None, None
    for other in _more:
        other.close()
    _more.clear()
    if left is not None:
        left.close()


atexit.register(close)


def _contexts():
    return [context()] + _more


def wrap(model, optimizer, extra_state=None):
    """Gives the model's parameters and the optimizer's step to the library; returns both. Every rank starts from rank
    0's parameters. Collective.

    optimizer: one, or a list of all that update the model. Their state, and extra_state, reach checkpoints of the library
    and joining workers: a dict of names and objects with state_dict and load_state_dict (schedulers, scalers, samplers),
    or pairs of functions (get, set). A further wrap, of another model, opens a context of its own,
    which averages at the steps of its own optimizers."""
    global _wrapped
    d = context()
    try:
        from . import _torch
    except ImportError as e:
        raise Unsupported("wrap needs PyTorch (%s): install torch, or give numpy arrays to add_layer" % e) from None
    if _wrapped is None:
        _wrapped = _torch.Wrapped(d, model, optimizer, extra_state)
        return model, optimizer
    _torch.check_other(model, [w for c in _contexts() for w in c.models])
    other = d.beside()
    try:
        _torch.Wrapped(other, model, optimizer, extra_state)
    except BaseException:
        other.close()
        raise
    _more.append(other)
    return model, optimizer


def no_sync():
    """Backward passes inside `with dreamddp.no_sync():` only accumulate gradients, of all models."""
    if _wrapped is None:
        raise UsageError("no_sync: call dreamddp.wrap(model, opt) first")
    stack = contextlib.ExitStack()
    for c in _contexts():
        for w in c.models:
            stack.enter_context(w.no_sync())
    return stack


def is_initialized():
    """True between init and close. Not collective."""
    return _context is not None and _context.ptr is not None


def rank():
    """The number of this process, from 0 to world() - 1."""
    return context().rank


def world():
    """The number of ranks; in an elastic world (min_world) lost ones are included."""
    return context().world


def get_rank():
    """rank(), by the name of torch.distributed."""
    return context().rank


def get_world_size():
    """world(), by the name of torch.distributed."""
    return context().world


def get_local_rank():
    """The number of this rank among the ranks of its machine, as the launcher says (ddprun, torchrun, mpirun, srun);
    without a launcher rank(). Chooses a GPU: torch.cuda.set_device(dreamddp.get_local_rank())."""
    return context().local_rank


def step():
    return context().step


def stats():
    return context().stats()


def wait():
    """Finishes what is in flight and averages nothing more."""
    for c in _contexts():
        c.wait()


def sync_all():
    """Finishes and averages: every rank leaves with equal parameters. Collective."""
    for c in _contexts():
        c.sync_all()


def report(loss=0.0, samples=0, epoch=0.0, lr=0.0):
    context().report(loss, samples, epoch, lr)


def abort(why):
    context().abort(why)


def add_layer(name, params, grads=None, buffers=()):
    context().add_layer(name, params, grads, buffers)


def add_state(name, save, load):
    """A state of the program for checkpoints and joining workers, before wrap or set_optimizer."""
    context().add_state(name, save, load)


def set_optimizer(rule="own", **hyper):
    context().set_optimizer(rule, **hyper)


def forward_begin(layer):
    context().forward_begin(layer)


def backward_begin(layer):
    context().backward_begin(layer)


def backward_end(layer):
    context().backward_end(layer)


def skip(layer):
    context().skip(layer)


def step_end():
    context().step_end()


def set_lr(lr):
    context().set_lr(lr)


# ---- collectives ----
#
# All ranks make the same calls in the same order, between two steps: never after the first hook of a step (the first
# layer's forward pass) and before its end (opt.step(), step_end).


def all_reduce(array, op="sum", scale=1.0):
    """Replaces each value of array by its "sum", "mean", "max" or "min" over all ranks, and returns array. Collective.

    array: float32, float64 or int64, contiguous, of any shape, the same on all ranks: a torch tensor, a numpy array or
    a writable buffer. Sums and means of float32 are for large arrays; all others send each rank's values to all ranks.
    A mean of int64 is an error. scale: multiplied into a sum of float32 or float64."""
    return context().all_reduce(array, op, scale)


def all_mean(array):
    """all_reduce(array, "mean"): the mean of float32 or float64 values over all ranks, in place. Collective."""
    return context().all_mean(array)


def broadcast(array, root=0):
    """Replaces the values of array by those of rank root, and returns array. Collective. Arrays as in all_reduce."""
    return context().broadcast(array, root)


def all_gather(array):
    """Fills array, world() equal blocks, with the blocks of all ranks, and returns it. Collective.

    Each rank writes its own block, array[rank() * n:(rank() + 1) * n] of a flat array, before the call. Arrays as in
    all_reduce."""
    return context().all_gather(array)


def broadcast_object(obj=None, root=0):
    """Returns a copy of obj of rank root: any object that pickle takes, of any size. Collective.

    If root cannot pickle it, all ranks raise. Unpickling runs code of the sender: use it only among workers that you
    trust."""
    return context().broadcast_object(obj, root)


def all_gather_object(obj):
    """Returns a list of the objects of all ranks, by rank: any that pickle takes, of any sizes. Collective.

    If a rank cannot pickle its object, all ranks raise. Unpickling runs code of the sender: use it only among
    workers that you trust."""
    return context().all_gather_object(obj)


def barrier():
    """Returns when all ranks have called it. Collective."""
    context().barrier()


# ---- checkpoints ----


def state_dict():
    """The state of this rank: parameters, the state of the strategy, the plan, the step, the states of add_state.
    Collective."""
    return context().state_dict()


def load_state_dict(state):
    """Between wrap and the first step. Collective."""
    context().load_state_dict(state)


def save(folder, keep=0):
    context().save(folder, keep)


def load(folder):
    return context().load(folder)


def profile(path=None, net=None, workers=None):
    """The measurements of this run (None before); or a profile from a CSV file."""
    if path is not None:
        return _plan.read_profile(path, net, workers)
    found = context().lib.ddp_profile_get(context().ptr)
    return Profile.of_c(found.contents) if found else None


def plan(profile=None, **options):
    """The plan in force (None where there is none); or one for a profile: period, solver, cost, fill."""
    if profile is not None:
        return _plan.make_plan(profile, **options)
    if options:
        raise InvalidArgument("plan: %s need a profile" % ", ".join(options))
    found = context().lib.ddp_plan_get(context().ptr)
    return Plan(found.contents, context().lib) if found else None


def choose(profile=None, net=None, workers=None, utilisation=90, period=None):
    """Which strategy, by the planners: (the choice, all predictions). Without arguments for this run as measured."""
    if profile is None:
        profile = globals()["profile"]()
        if profile is None:
            raise UsageError("choose: nothing was measured yet: give a profile, or ask after the first steps")
    if workers is None:
        workers = world()
    if net is None:
        net = _plan.net_of(stats(), workers)
    return _plan.choose(profile, net, workers, utilisation, period)
