"""PyTorch: makes the training steps of a model and its optimizers steps of the library.

Hooks on the parameters collect gradients (_backward), and the library's step ends with the backward pass. The
optimizers' own step methods then use the averages (_optimizers).
"""
import contextlib
import gc
import warnings

import torch

from . import _optimizers
from ._backward import Backward
from ._buffers import Buffers
from ._layers import Layers
from ._library import InvalidArgument, Unsupported, UsageError
from ._model import Attributes, Loads
from ._state import ProgramState

UPDATES_ITSELF = ("deft", "bsp", "asp", "ssp", "r2sp", "osp")
AVERAGES_PARAMETERS = ("localsgd", "enp", "dreamddp", "diloco", "sparseloco")
CHOOSES = "auto"  # averages gradients until it has chosen
AVERAGES_AT_STEP_END = ("localsgd", "diloco", "sparseloco")  # unless they stream


def check_other(model, wrapped):
    """Raises an error if a further model has parameters of a wrapped model."""
    if not isinstance(model, torch.nn.Module):
        return  # Wrapped raises an error with the types
    names = {id(p): n for n, p in model.named_parameters()}
    for w in wrapped:
        for p in w.model.parameters():
            if id(p) in names:
                raise UsageError("parameter %s was given to an earlier wrap: wrap each model once, with all its optimizers as a "
                                 "list, wrap(model, [opt1, opt2])" % names[id(p)])


class Wrapped:
    """A model in a context of the library."""

    def __init__(self, context, model, optimizer, extra_state=None):
        self.context, self.model, self.extra_state = context, model, dict(extra_state or {})
        self.local = 0        # > 0: inside no_sync
        self.joining = False  # inside join
        self.chooses = context.strategy() == CHOOSES
        self.averages_gradients = context.strategy() not in AVERAGES_PARAMETERS
        # strategies that average parameters do not read gradients. On a device the library's copy replaces the program's
        self.reads_gradients = self.averages_gradients or context.device != "cpu" or context.clips
        optimizers = _optimizers.listed(optimizer)
        trained = self.check_arguments(model, optimizers)
        if context.strategy() in UPDATES_ITSELF:
            raise Unsupported("wrap does not support strategy %s, which updates parameters itself, late or on a server: choose "
                              "wfbp, dreamddp, localsgd or diloco" % context.strategy())
        self.buffers = Buffers(context)
        self.registered = Layers(context, model, trained, self.buffers, self.reads_gradients)
        self.optimizers = _optimizers.Optimizers(self, optimizers)
        # a strategy that sends nothing during the backward pass can wait for the update. With several optimizers the last update of a
        # step is not known
        self.averages_after_update = context.strategy() in AVERAGES_AT_STEP_END and not context.streams and len(optimizers) == 1 and \
            not self.reads_gradients and context.micro_batches == 1 and not context.averages_first
        self.start()
        self.backward = Backward(self, self.registered)
        self.optimizers.take()
        self.loads = Loads(model)
        self.loads.hook()
        self.attributes = Attributes(self, model)
        self.checked = context.world == 1  # False: still check whether DistributedDataParallel averages too
        context.models.append(self)
        context.on_close.append(self.undo)

    def start(self):
        """Starts the training of the registered layers. Collective; a joining worker receives all state here."""
        extra = dict(self.extra_state)
        if self.buffers.others:
            extra["dreamddp.buffers"] = (self.buffers.values, self.buffers.set_values)
        ProgramState(self.context, self.optimizers.list, extra, self.registered.signature())
        self.context.set_optimizer("own_first" if self.averages_after_update else "own")
        self.registered.push()
        self.buffers.share()

    def take_choice(self):
        """Follows a strategy that was chosen since the last call."""
        strategy = self.context.strategy()
        if strategy == CHOOSES:
            return
        self.chooses = False
        self.averages_gradients = strategy not in AVERAGES_PARAMETERS
        self.backward.averages_gradients = self.averages_gradients

    def check_arguments(self, model, optimizers):
        if not isinstance(model, torch.nn.Module) or not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
            raise InvalidArgument("wrap(model, optimizer) takes a torch.nn.Module and a torch.optim.Optimizer, or a list of "
                                  "them, not %s and %s" % (type(model).__name__, ", ".join(
                                      type(o).__name__ for o in optimizers)))
        if self.context.started:
            raise UsageError("wrap comes too late: layers were registered with add_layer and set_optimizer")
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            warnings.warn("dreamddp: wrap got a DistributedDataParallel, which also averages gradients: pass "
                          "model.module instead", stacklevel=4)
        return _optimizers.check(model, optimizers)

    @property
    def layers(self):
        """All layers in the library's order."""
        return self.registered.list

    def undo(self):
        self.backward.unhook()
        self.optimizers.undo()
        self.loads.unhook()
        self.attributes.undo()

    # ---- around the library's calls ----

    def synchronises(self):
        """True if this backward pass averages."""
        return not self.local and getattr(self.model, "require_backward_grad_sync", True)

    def step_begins(self):
        """Runs before the library's first call of a step. Returns True if layers were registered again. Collective
        if it sends anything."""
        if self.joining:
            self.sum_of(1.0)
        self.settle()
        if not self.registered.thawed():
            return False
        self.register_again()
        return True

    def register_again(self):
        """Parameters that were frozen are trained from now on: registers them as layers in a reopened context."""
        self.context.reopen()
        self.registered.build()
        self.start()
        self.backward.hook_again()

    def settle(self):
        """After load_state_dict: all ranks get rank 0's values, and the strategy continues from them."""
        if self.loads.changed():
            for p in self.registered.masters:
                p.flat.copy_(p.tensor.detach().reshape(-1))
            self.context._call("ddp_share")
            self.registered.push()
            self.buffers.share()

    def pull(self):
        self.registered.check_memory()
        self.settle()
        self.registered.pull()
        for layer in self.layers:
            self.buffers.gather(layer)

    def push(self):
        self.registered.push()

    def warn_if_averaged_twice(self):
        if self.checked:
            return
        self.checked = True
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        own = {id(p.tensor) for p in self.registered.params}
        for other in gc.get_objects():
            if type(other) is torch.nn.parallel.DistributedDataParallel and \
                    any(id(p) in own for p in other.parameters()):
                warnings.warn("dreamddp: the wrapped model is trained inside a DistributedDataParallel: both average its "
                              "gradients. Train the model that wrap returned, or see docs/reference/python.md for Trainer and "
                              "Accelerate")
                return

    # ---- methods added to the model ----

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes inside this block only accumulate gradients."""
        self.local += 1
        try:
            yield
        finally:
            self.local -= 1

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """Ranks may leave the block after different numbers of steps. A rank that leaves takes part in the
        averages of the others until all have left. With strategies that average gradients it contributes zeros,
        and at the end all ranks get the parameters of the last rank. Collective."""
        if not divide_by_initial_world_size:
            raise Unsupported("join(divide_by_initial_world_size=False) is not supported: averages are always over all ranks")
        if not enable or self.context.world == 1:
            yield
            return
        self.joining, first = True, self.context.step
        try:
            yield
        finally:
            self.joining = False
        taken = self.context.step - first
        while self.sum_of(0.0) > 0:  # ranks that still train
            if throw_on_early_termination:
                raise RuntimeError("join: this rank has no more inputs after %d steps, but other ranks have" % taken)
            self.backward.reset()
            self.backward.close()
        if self.averages_gradients:
            self.take_from_last(taken)

    def sum_of(self, number):
        every = torch.tensor([number], device=self.context.device)
        return self.context.all_reduce(every).item()

    def take_from_last(self, taken):
        """Copies the parameters of the rank that took most steps to all ranks."""
        steps = torch.zeros(self.context.world, device=self.context.device)
        steps[self.context.rank] = taken
        self.context.all_reduce(steps)
        root = int(steps.argmax())
        for p in self.registered.params:
            self.context.broadcast(p.flat if not p.has_master else self.pulled(p), root)
        self.registered.push()

    @staticmethod
    def pulled(p):
        p.pull()
        return p.flat
