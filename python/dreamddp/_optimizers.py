"""The program's optimizers. The first step() of an optimizer ends the library's step, if no backward pass has, or if the strategy
averages after the update."""
import functools
import types

import torch

from ._library import InvalidArgument, Unsupported, UsageError


def listed(optimizer):
    """Returns the optimizers that were passed to wrap, as a list."""
    if isinstance(optimizer, (list, tuple)):
        return list(optimizer)
    return [optimizer]


def check(model, optimizers):
    """Raises an error if these cannot be the optimizers of model. Returns the ids of the parameters that they
    update."""
    known, updated = {id(p) for p in model.parameters()}, {}
    if not optimizers:
        raise InvalidArgument("wrap got an empty list of optimizers")
    for number, optimizer in enumerate(optimizers):
        if isinstance(optimizer, torch.optim.LBFGS):
            raise Unsupported("wrap: LBFGS computes several gradients per step, but dreamddp averages only one")
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if id(p) not in known:
                raise InvalidArgument("the optimizer updates a parameter of shape %s that is not the model's: create it from "
                                      "model.parameters()" % (tuple(p.shape),))
            if updated.setdefault(id(p), number) != number:
                raise InvalidArgument("two of the optimizers update the same parameter of shape %s: pass each parameter to "
                                      "one of them" % (tuple(p.shape),))
    return set(updated)


class Optimizers:
    def __init__(self, wrapped, optimizers):
        self.wrapped, self.list = wrapped, optimizers
        self.inner = [o.step for o in optimizers]
        self.counts = [self.count(o) for o in optimizers]

    @staticmethod
    def count(optimizer):
        return sum(len(g["params"]) for g in optimizer.param_groups)

    def take(self):
        for optimizer, inner in zip(self.list, self.inner):
            optimizer.step = types.MethodType(self.step_of(optimizer, inner), optimizer)  # a bound method, as schedulers require

    def undo(self):
        for optimizer, inner in zip(self.list, self.inner):
            optimizer.step = inner

    def step_of(self, optimizer, inner):
        @functools.wraps(inner)
        def step(_, closure=None, **more):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.before(optimizer)
            result = inner(**more)
            self.wrapped.backward.end_held()
            return result if closure is None else loss
        return step

    def before(self, optimizer):
        """Ends the library's step if gradients were only accumulated, or if this step has none."""
        backward = self.wrapped.backward
        self.wrapped.warn_if_averaged_twice()
        self.wrapped.registered.check_memory()
        if [self.count(o) for o in self.list] != self.counts:
            raise UsageError("parameters were added to the optimizer after wrap: add them before")
        if backward.touched or not backward.done or optimizer in backward.stepped:
            if backward.done:
                backward.reset()
            backward.close()
        backward.stepped.append(optimizer)
