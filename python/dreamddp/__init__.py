"""dreamddp: train PyTorch models over slow links.

    import dreamddp
    dreamddp.init(strategy="dreamddp", period=10)   # rank and world from ddprun, torchrun, mpirun, srun
    model, opt = dreamddp.wrap(model, opt)          # the training loop does not change
    ...
    dreamddp.sync_all()                             # every rank has equal parameters

The settings of init have the names of ddp_config's fields. DREAMDDP_ environment variables set the others. See
docs/tutorials/pytorch.md.
"""
import atexit
import contextlib

from . import _plan
from ._binding import DDP_VERSION_STRING as __version__
from ._context import Context
from ._library import (Aborted, Error, FileError, FormatError, InvalidArgument, Mismatch, NetworkError, NotFinite,
                       OutOfMemory, PeerLost, PeerTimeout, Unsupported, UsageError)
from ._plan import Plan, Profile

_context = None  # the context of init
_wrapped = None  # the model of the first wrap
_more = []       # contexts of models that were wrapped later


def init(**settings):
    """Connects to the other ranks and waits until all have called it. Returns the Context. Collective.

    settings: see docs/reference/settings.md. device="cuda": the layers are CUDA tensors."""
    global _context
    if _context is not None:
        raise UsageError("init was called before: call close() first")
    _context = Context(**settings)
    return _context


def context():
    """The Context of init. The functions of this module call its methods."""
    if _context is None:
        raise UsageError("call dreamddp.init() first")
    return _context


def close():
    """Closes the connections to the other ranks. Runs automatically when the program ends."""
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
    """Averages the model's gradients or parameters from now on. Returns model and optimizer. All ranks start with rank
    0's parameters. Collective.

    optimizer: one torch.optim.Optimizer, or a list of all that update the model.
    extra_state: {name: object with state_dict and load_state_dict, or pair of functions (get, set)}, for example
        schedulers, scalers and samplers. Checkpoints and joining workers get this state and the optimizers' state.

    To train several models, wrap each. Each further model has a separate context and averages when its own optimizers
    step."""
    global _wrapped
    d = context()
    try:
        from . import _torch
    except ImportError as e:
        raise Unsupported("wrap needs PyTorch (%s): install torch, or pass numpy arrays to add_layer" % e) from None
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
    """Context manager: backward passes inside only accumulate gradients, in all wrapped models, and do not average."""
    if _wrapped is None:
        raise UsageError("no_sync: call dreamddp.wrap(model, opt) first")
    stack = contextlib.ExitStack()
    for c in _contexts():
        for w in c.models:
            stack.enter_context(w.no_sync())
    return stack


def is_initialized():
    """True between init and close."""
    return _context is not None and _context.ptr is not None


def rank():
    """The rank of this process, 0 to world() - 1."""
    return context().rank


def world():
    """The number of ranks. In an elastic world (min_world) lost ranks are included."""
    return context().world


def get_rank():
    """The same as rank(); the name of torch.distributed."""
    return context().rank


def get_world_size():
    """The same as world(); the name of torch.distributed."""
    return context().world


def get_local_rank():
    """The number of this rank among the ranks of its machine, from 0. The launcher sets it (ddprun, torchrun, mpirun,
    srun); without a launcher it is rank(). Use it to select a GPU: torch.cuda.set_device(dreamddp.get_local_rank())."""
    return context().local_rank


def step():
    """The number of completed steps, including those before a checkpoint was loaded."""
    return context().step


def stats():
    """A dict of the statistics of this rank: the fields of ddp_stats. "link" is (alpha in seconds, seconds per byte). The
    predictions are None if there is none."""
    return context().stats()


def wait():
    """Completes all messages in flight without further averages, so that parameters can be read."""
    for c in _contexts():
        c.wait()


def sync_all():
    """Completes all messages in flight and averages, so that all ranks have equal parameters. Collective."""
    for c in _contexts():
        c.sync_all()


def report(loss=0.0, samples=0, epoch=0.0, lr=0.0):
    """Reports the loss and the number of samples of this rank's current step, before step_end or opt.step(). lr, if above
    0: the learning rate of the library's updates from this step on."""
    context().report(loss, samples, epoch, lr)


def abort(why):
    """Fails all waiting calls on all ranks, with the message `why`."""
    context().abort(why)


def add_layer(name, params, grads=None, buffers=()):
    """Registers the next layer, in forward order, for programs that do not call wrap.

    params: a contiguous float32 array, or a list of them. grads: the gradients, in the same form; None: not trained.
    buffers: arrays that are averaged but not trained. The library reads and writes the arrays in place."""
    context().add_layer(name, params, grads, buffers)


def add_state(name, save, load, early=False):
    """Registers state of the program for checkpoints and joining workers. Call it before wrap or set_optimizer.

    save(): returns bytes. load(view): receives them as a memoryview, which is valid during the call. early: a joining
    worker may receive bytes that are some steps old. Under strategies that average parameters or deltas the members then
    do not wait for them."""
    context().add_state(name, save, load, early)


def set_optimizer(rule="own", **hyper):
    """Starts the training of the registered layers. Collective.

    rule: "sgd", "nesterov", "adam" or "adamw": the library updates the parameters. "own": the program updates them
    after step_end. "own_first": it updates a layer before its backward_end. hyper: lr, momentum, beta1, ... of the rule."""
    context().set_optimizer(rule, **hyper)


def forward_begin(layer):
    """Waits until the parameters of the layer are complete. Call it before the layer's forward pass, in every step or in
    none. layer: index in the order of add_layer."""
    context().forward_begin(layer)


def backward_begin(layer):
    """Optional: call it before the layer's backward pass, for better time measurements."""
    context().backward_begin(layer)


def backward_end(layer):
    """Marks the gradient of the layer as complete, so that it can be sent. The library returns it zeroed."""
    context().backward_end(layer)


def skip(layer):
    """Replaces backward_end for a layer that had no gradient."""
    context().skip(layer)


def step_end():
    """Ends the step. Every layer must have had its backward_end or skip."""
    context().step_end()


def set_lr(lr):
    """Sets the learning rate of all further updates by the library."""
    context().set_lr(lr)


# ---- collectives ----
#
# All ranks must make the same calls in the same order, between two steps: not between the first hook of a step (the first
# layer's forward pass) and its end (opt.step(), step_end).


def all_reduce(array, op="sum", scale=1.0):
    """Replaces each value of array by its sum, mean, max or min over all ranks, and returns array. Collective.

    array: a torch tensor, a numpy array or a writable buffer; contiguous, float32, float64 or int64, with the same shape
        on all ranks. Only sums and means of float32 are efficient for large arrays; the others send the values of each
        rank to all ranks.
    op: "sum", "mean", "max" or "min". A mean of int64 is an error.
    scale: factor of a sum of float32 or float64."""
    return context().all_reduce(array, op, scale)


def all_mean(array):
    """Replaces each float32 or float64 value of array by its mean over all ranks, and returns array. Collective."""
    return context().all_mean(array)


def broadcast(array, root=0):
    """Replaces the values of array by rank root's values, and returns array. Collective. array: as in all_reduce."""
    return context().broadcast(array, root)


def all_gather(array):
    """Gathers one block of n values from each rank into array, which has world() * n values. Returns array. Collective.

    Before the call each rank writes its own block, array[rank() * n:(rank() + 1) * n] of a flat array. array: as in
    all_reduce."""
    return context().all_gather(array)


def broadcast_object(obj=None, root=0):
    """Returns a copy of rank root's obj, any object that can be pickled. Collective.

    If root cannot pickle it, all ranks raise an error. Unpickling can run code of the sender: use it only among workers
    that you trust."""
    return context().broadcast_object(obj, root)


def all_gather_object(obj):
    """Returns the objects of all ranks in a list, in rank order. Objects must be picklable. Collective.

    If a rank cannot pickle its object, all ranks raise an error. Unpickling can run code of the sender: use it only
    among workers that you trust."""
    return context().all_gather_object(obj)


def barrier():
    """Blocks until all ranks have called it. Collective."""
    context().barrier()


# ---- checkpoints ----


def state_dict():
    """Returns the state of this rank: parameters, strategy, plan, step, and the states of add_state. Collective."""
    return context().state_dict()


def load_state_dict(state):
    """Loads the result of state_dict, from the same rank of a run with the same world size. Call it after wrap and before
    the first step. Collective."""
    context().load_state_dict(state)


def save(folder, keep=0):
    """Writes a checkpoint into folder. keep: number of newest checkpoints to keep, or 0 for all. Collective."""
    context().save(folder, keep)


def load(folder):
    """Loads the newest checkpoint in folder, after wrap and before the first step. Returns its world size. Collective."""
    return context().load(folder)


def profile(path=None, net=None, workers=None):
    """Returns the Profile that this run measured, or None before it is measured. path: reads a Profile from a CSV file.

    net, workers: compute transfer times that the file lacks from a link "RATE,DELAY" and a number of workers."""
    if path is not None:
        return _plan.read_profile(path, net, workers)
    found = context().lib.ddp_profile_get(context().ptr)
    return Profile.of_c(found.contents) if found else None


def plan(profile=None, **options):
    """Returns the current Plan of this run, or None if there is none. profile: computes a Plan for it.

    options with a profile: period (default: 5), solver ("scatter"), cost ("window"), fill ("none")."""
    if profile is not None:
        return _plan.make_plan(profile, **options)
    if options:
        raise InvalidArgument("plan: %s requires a profile" % ", ".join(options))
    found = context().lib.ddp_plan_get(context().ptr)
    return Plan(found.contents, context().lib) if found else None


def choose(profile=None, net=None, workers=None, utilisation=90, period=None, steps=1000, loss_budget=0.05, loss_table=None):
    """Predicts the step time of every strategy. Returns (the chosen strategy, the predictions of all), as dicts.

    profile, net ("RATE,DELAY"), workers: default to the measurements of this run. utilisation: the required part of the
    time in which workers compute, in percent. period: steps of the averaging period; None: the planner's choice.

    The member "auto" of the choice is the strategy that reaches the loss of ssgd after `steps` steps soonest. loss_budget: its
    largest predicted loss increase after `steps` steps, 0.05 = 5 %; 0: bit-identical to ssgd. loss_table: CSV file of your own
    measured losses, with the columns of bench/loss_table.csv; None: the built-in table."""
    if profile is None:
        profile = globals()["profile"]()
        if profile is None:
            raise UsageError("choose: nothing was measured yet: pass a profile, or call it after the first steps")
    if workers is None:
        workers = world()
    if net is None:
        net = _plan.net_of(stats(), workers)
    return _plan.choose(profile, net, workers, utilisation, period, steps, loss_budget, loss_table)
