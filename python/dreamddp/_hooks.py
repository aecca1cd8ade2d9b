"""Hooks on parameters, which run when a gradient is complete.

At first every parameter has one. Strategies that average parameters need less: they do not read gradients, and send only some
layers in a step. In their steady state each layer has one hook, on a parameter that had a gradient in the last complete step.
Only layers that are due, and layers that had no gradient, have hooks on all parameters. If a backward pass leaves out a layer,
the next steps are complete again.
"""
import functools

import torch

LONGEST_PAUSE = 1024  # complete steps after an irregular one, which starts at 1 and doubles each time


class Hooks:
    """complete: every parameter has a hook.
    due: layers that are passed to the library one by one, in this order.
    late: the other layers with parameters, which are passed together at the end of a step."""

    def __init__(self, layers, fired):
        self.layers, self.fired = layers, fired
        self.handles, self.nodes = {}, {}  # by Param
        self.lasting = set()  # Params with a hook in every step, if not complete
        self.pause, self.waits = 1, 0
        self.add_all()

    def add(self, p, layer):
        if p in self.handles:
            return
        p.note()
        call = functools.partial(self.fired, p, layer)
        if hasattr(p.tensor, "register_post_accumulate_grad_hook"):  # PyTorch 2.1 or later
            self.handles[p] = p.tensor.register_post_accumulate_grad_hook(call)
            return
        with torch.enable_grad():
            node = p.tensor.expand_as(p.tensor).grad_fn.next_functions[0][0]
        self.nodes[p] = node  # the hook exists as long as the node
        self.handles[p] = node.register_hook(call)

    def remove(self, p):
        self.handles.pop(p).remove()
        self.nodes.pop(p, None)

    def add_all(self):
        self.complete = True
        self.due, self.late = self.layers.list[::-1], []
        for layer in self.layers.list:
            for p in layer.params:
                self.add(p, layer)

    def remove_all(self):
        for p in list(self.handles):
            self.remove(p)

    def next_step(self, due, number, regular):
        """Chooses the hooks of the next step.

        due: the layers that have to be passed one by one. number: of the pass that ended. regular: a callback ended it, and
        it used every layer that has a lasting hook."""
        if not regular and not self.complete:
            self.waits, self.pause = self.pause, min(2 * self.pause, LONGEST_PAUSE)
        if not regular or len(due) == len(self.layers.list):
            if not self.complete:
                self.add_all()
            return
        if self.complete:
            if self.waits:
                self.waits -= 1
                return
            self.choose_lasting(number)
        if self.complete or due or self.due:
            self.keep(due)

    def choose_lasting(self, number):
        self.lasting.clear()
        for layer in self.layers.list:
            used = next((p for p in layer.params if p.seen == number), None)
            layer.regular = used is not None
            self.lasting.update([used] if used else layer.params)

    def keep(self, due):
        """Removes all hooks except the lasting ones and those of the layers that are due."""
        needed = self.lasting.union(*[layer.params for layer in due])
        for p in [p for p in self.handles if p not in needed]:
            self.remove(p)
        for layer in due:
            for p in layer.params:
                self.add(p, layer)
        self.complete, self.due = False, due
        self.late = [layer for layer in self.layers.list if layer.params and layer not in due]
