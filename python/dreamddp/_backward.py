"""The backward pass: passes gradients to the library layer by layer, and ends the library's step.

Layers are passed from the last to the first, because all ranks need the same order. A layer that is ready early waits for
its turn. When a pass ends, layers without a gradient are skipped, and the library's step ends. The averages are then
complete when loss.backward() returns, so that a program may clip or inspect gradients, in any order of modules.

Strategies that average parameters do not read gradients, and send only some layers during a backward pass: those that are
due. The others are passed together when the pass ends (_hooks). A strategy that sends nothing during a backward pass averages
after the update, as in the papers: the library's step then ends after the optimizer's step (holds).
"""
import ctypes
import sys

import torch

from ._hooks import Hooks
from ._library import UsageError

_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__
_task_id = getattr(torch._C, "_current_graph_task_id", lambda: 0)  # PyTorch 2.0 or later


def _is_nested():
    """True inside the backward of a Python function, for example in reentrant checkpointing. The end of such a
    pass is not the end of the program's backward pass."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is _APPLY:
            return True
        frame = frame.f_back
    return False


class Backward:
    """The state of one step.

    done: the library's step is over, or held until the optimizer's step ends. stepped: optimizers that have used its
    gradients. A later gradient begins the next step. touched: some gradients were not passed to the library, because of no_sync.
    """

    def __init__(self, wrapped, layers):
        self.wrapped, self.layers, self.context = wrapped, layers, wrapped.context
        self.call, self.lib = self.context._call, self.context.lib
        self.micro = self.context.micro_batches
        self.reads, self.averages_gradients = wrapped.reads_gradients, wrapped.averages_gradients
        self.exchanges = self.averages_gradients and self.context.world > 1  # gradients come back from other ranks
        self.thins = not self.reads and self.micro == 1  # some steps need only some hooks
        self.holds = wrapped.averages_after_update
        self.done, self.stepped, self.touched = False, [], False
        self.regular = True   # the last pass used the layers that it was expected to use (Hooks.next_step)
        self.number = 0       # number of this backward pass
        self.running = False  # this pass has begun
        self.queued = False   # finish() will run at its end
        self.task = 0         # autograd's id of this pass
        self.again = False    # this pass adds to gradients that were averaged in this step
        self.passes = 0       # completed passes of this step
        # From the second step on, layers that were never used do not delay the others. If gradients are averaged they still
        # do, because a late gradient could no longer be averaged.
        self.skips_early = False
        self.hook()
        self.reset()

    # ---- hooks ----

    def hook(self):
        self.hooks = Hooks(self.layers, self.fired)
        self.marks = (ctypes.c_ubyte * len(self.layers.list))()  # for each layer: it is due, or has no gradient

    def hook_again(self):
        self.unhook()
        self.hook()
        self.at = 0

    def unhook(self):
        self.hooks.remove_all()

    def hook_next(self, regular):
        """Chooses the hooks of the next step."""
        due = self.lib.ddp_due(self.context.ptr, self.marks)
        layers = [layer for layer in reversed(self.layers.list) if self.marks[layer.index]] if due else []
        self.hooks.next_step(layers, self.number, regular)

    # ---- one step ----

    def reset(self):
        """Begins a new step with the next gradient."""
        self.done, self.started, self.passes = False, False, 0
        self.at = 0  # index in hooks.due of the layer that is passed next
        for layer in self.layers.list:
            layer.told, layer.given, layer.fired = 0, False, 0

    def fired(self, p, layer, *_):
        """Called when the gradient of p is complete in this backward pass."""
        self.touched = layer.used = True
        if not self.wrapped.synchronises():
            self.mark(p)
            return
        if not self.running or (self.queued and _task_id() != self.task and not _is_nested()):
            p, layer = self.begin(p, layer)
        elif not self.queued:
            self.queue()
        if not self.queued:
            self.mark(p)
        if not self.reads:
            p.note()
        if self.again:
            return
        if p.seen == self.number:  # a second time, in another nested pass
            if layer.given and not p.hidden and self.exchanges:
                raise UsageError("%s had a second gradient while the first one was being averaged: use "
                                 "checkpoint(use_reentrant=False)" % p.name)
            return
        p.seen = self.number
        layer.fired += 1
        if layer.fired == layer.expected:
            self.ready(layer)

    def mark(self, p):
        """Records the gradient of p, which may stay local to this rank until opt.step()."""
        if self.exchanges:
            p.local = p.tensor.grad
            p.local_version = p.local._version

    def begin(self, p, layer):
        """Begins a backward pass with the gradient of p. Returns p and its layer, which may be new objects."""
        if self.running and any(layer.given for layer in self.layers.list):
            raise UsageError("an earlier backward pass of this step ended with an exception after gradients had been sent: it "
                             "cannot be repeated; restart from a checkpoint")
        if self.done:
            self.again = not self.stepped and p.added()
            if self.again and self.micro > 1:
                raise UsageError("%s had more than micro_batches=%d gradients in one step: call opt.step() after them, or put "
                                 "passes that only accumulate into `with dreamddp.no_sync():`" % (p.name, self.micro))
            if not self.again:
                self.reset()
        if not self.again and self.start():
            p, layer = next((q, l) for l in self.layers.list for q in l.params if q.tensor is p.tensor)
        self.number += 1
        self.running, self.queued = True, False
        for each in self.layers.list:
            each.fired = 0
        for each in self.hooks.due:
            each.expected = sum(q.tensor.requires_grad for q in each.params)
        self.queue()
        return p, layer

    def start(self):
        """Runs before the library's first call of a step. Returns True if layers were registered again."""
        if self.started:
            return False
        self.started = True
        return self.wrapped.step_begins()

    def queue(self):
        if not _is_nested():
            self.queued, self.task = True, _task_id()
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def ready(self, layer):
        if self.passes + 1 < self.micro:
            layer.told += 1
            self.call("ddp_backward_end", layer.index)
            return
        if self.held() and self.queued:
            return  # the optimizer left out the last step. Its average must not change parameters during this pass
        self.end_held()
        while self.at < len(self.hooks.due):
            layer = self.hooks.due[self.at]
            complete = layer.expected > 0 and layer.fired >= layer.expected
            if layer.params and not complete and not (self.skips_early and not layer.used):
                return
            self.give(layer, complete or not layer.params)
        if not self.queued and self.hooks.complete:  # there is no callback when the outermost pass ends
            self.finish()

    def give(self, layer, has_gradient):
        self.at += 1
        layer.given = True
        layer.used = layer.used or has_gradient
        self.copy_in(layer)
        if has_gradient and self.reads:
            hides = self.queued and self.exchanges
            for p in layer.params:
                p.take()
                p.hidden = False
                if hides:
                    p.hide()
                elif p.given is not None:
                    p.version = p.given._version
        for _ in range(layer.told, self.micro):
            self.call("ddp_backward_end" if has_gradient else "ddp_skip", layer.index)

    def give_late(self):
        """Passes the layers that were not due. Returns False if one that has a lasting hook was not used."""
        regular = True
        ctypes.memset(self.marks, 0, len(self.marks))
        for layer in self.hooks.late:
            if not layer.fired:
                regular = regular and not layer.regular
                self.marks[layer.index] = not self.has_gradient(layer)
        for layer in self.layers.copied:
            if not layer.given:
                self.copy_in(layer)
        self.call("ddp_backward_rest", self.marks)
        return regular

    def copy_in(self, layer):
        """Copies values that the program keeps elsewhere to the memory of the library."""
        self.layers.buffers.gather(layer)
        if not self.averages_gradients:
            for p in layer.masters:
                p.pull()

    @staticmethod
    def has_gradient(layer):
        return any(p.tensor.requires_grad and p.tensor.grad is not None for p in layer.params)

    def finish(self):
        """Ends a backward pass."""
        self.running = False
        if self.again:
            self.again = self.touched = False
            if self.exchanges:
                self.average_again()
            return
        self.passes += 1
        if self.passes >= self.micro:
            self.close()

    def close(self):
        """Ends the library's step, and skips layers without a gradient. A held step ends after the optimizer's step."""
        self.end_held()
        self.start()
        if self.exchanges and not self.queued:
            self.check_unchanged()
        while self.at < len(self.hooks.due):
            layer = self.hooks.due[self.at]
            self.give(layer, self.has_gradient(layer))
        self.regular = (self.hooks.complete or self.give_late()) and self.queued
        if self.holds:
            self.context.held = self
        else:
            self.end()
        self.done, self.running, self.touched, self.queued = True, False, False, False
        self.stepped.clear()

    def held(self):
        return self.context.held is self

    def end_held(self):
        """Ends a held step."""
        if self.held():
            self.context.held = None
            for layer in self.layers.copied:
                self.copy_in(layer)  # the values after the update
            self.end()

    def end(self):
        self.call("ddp_step_end")
        if self.wrapped.chooses:
            self.wrapped.take_choice()
        self.skips_early = not self.averages_gradients and not self.context.deterministic
        if self.exchanges:
            self.put_back()
        if not self.averages_gradients:
            self.layers.push()
        if not self.exchanges:
            self.finish_local()
        # gradients of this step may have been hidden for an exchange, so a choice counts from the next step on
        self.exchanges = self.averages_gradients and self.context.world > 1
        if self.thins:
            self.hook_next(self.regular)

    def check_unchanged(self):
        """Raises an error if the program changed gradients that were not averaged when its backward pass ended."""
        for layer in self.layers.list:
            for p in layer.params:
                before, version = (p.given, p.version) if layer.given else (p.local, p.local_version)
                if before is not None and before._version != version:
                    raise UsageError("the gradient of %s was changed between backward() and step(), when it was not averaged: "
                                     "clip by init(clip_norm=...), use checkpoint(use_reentrant=False), or let the last "
                                     "backward pass run outside no_sync" % p.name)

    def finish_local(self):
        """Divides gradients that only this rank uses by the number of micro-batches, as the library does."""
        if not self.reads and self.micro == 1:
            return
        for p in self.layers.params:
            grad = p.tensor.grad
            if self.reads:
                if p.given is not None and grad is p.given and grad is not p.grad:
                    p.put()
            elif grad is not None:
                with torch.no_grad():
                    grad.div_(self.micro)
                p.note()

    # ---- averaged gradients ----

    def put_back(self):
        """Makes the averaged gradients the parameters' gradients. A gradient that no rank had becomes None, so
        that the optimizer skips it."""
        more = []
        for p in self.layers.params:
            p.local = None
        for layer in self.layers.list:
            left_out = self.lib.ddp_left_out(self.context.ptr, layer.index)
            for p in layer.params:
                if not p.tensor.requires_grad:
                    continue
                if p.hidden and p.tensor.grad is not None:
                    more.append((p, p.tensor.grad))
                p.hidden = False
                if left_out or (p.empty and self.lib.ddp_no_gradient(p.grad_flat.data_ptr(), p.grad_flat.numel())):
                    p.tensor.grad = p.given = None
                else:
                    p.put()
        for p, grad in more:  # gradients of nested passes
            with torch.no_grad():
                p.tensor.grad = grad if p.tensor.grad is None else p.tensor.grad.add_(grad)
        if more:
            self.average_again()

    def average_again(self):
        """Averages gradients that were averaged before, except for the values added since, over all ranks. The
        ranks also exchange which parameters have a gradient."""
        params = self.layers.params
        for p in params:
            p.take()
        has = torch.tensor([0.0 if p.empty else 1.0 for p in params], device=params[0].flat.device)
        every = torch.cat([has] + [p.grad_flat for p in params])
        self.context.all_mean(every)
        parts = every.split([len(params)] + [p.grad_flat.numel() for p in params])
        for p, had, part in zip(params, parts[0].tolist(), parts[1:]):
            if not p.tensor.requires_grad:
                continue
            if had == 0:
                p.tensor.grad = p.given = None
                continue
            p.grad_flat.copy_(part)
            p.put()
