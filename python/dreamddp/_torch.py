"""PyTorch: hooks on modules and gradients, and the optimizer's step.

A module that owns parameters, or buffers of float32, is a layer. Its gradients are collected in arrays that stay where
they are; when all of them are there, the layer's backward is over. Layers are told to the library from the last to the
first, as all ranks have to agree on one order; one that is ready early waits for its turn.
"""
import contextlib
import functools
import types
import warnings

import torch
from torch.nn.parameter import is_lazy

from ._context import address_of
from ._library import InvalidArgument, Unsupported, UsageError

AVERAGES_PARAMETERS = ("localsgd", "enp", "dreamddp", "diloco", "sparseloco")


class _Param:
    """A parameter that is trained, and where its gradient lies for the library."""

    def __init__(self, name, tensor, layer):
        self.name, self.tensor, self.layer = name, tensor, layer
        self.memory = tensor.detach()  # keeps it alive whatever becomes of tensor.data
        self.grad = torch.zeros_like(self.memory, memory_format=torch.contiguous_format)
        self.fires = 0        # gradients of this step
        self.touched = False  # there is one, perhaps of no_sync
        self.version = 0      # of grad, when the layer was given away

    def take(self):
        """Brings the gradient to where the library finds it."""
        g = self.tensor.grad
        if g is self.grad:
            return
        if g is None:
            self.grad.zero_()
            return
        if g.layout is not torch.strided or g.shape != self.grad.shape or g.dtype != torch.float32:
            raise Unsupported("the gradient of %s is %s %s: dense float32 is needed (Embedding: sparse=False)" % (
                self.name, g.layout, g.dtype))
        with torch.no_grad():
            self.grad.copy_(g)
        self.tensor.grad = self.grad


class _Layer:
    def __init__(self, index, name):
        self.index, self.name = index, name
        self.params = []  # those that are trained
        self.buffers = []  # (key, tensor) of those that are averaged
        self.passes = 0   # backward passes of this step that are complete
        self.given = False


class _Begin:
    """A forward pre-hook. A copy of the model, or one read from a file, has none that does anything."""

    def __init__(self, wrapped, index):
        self.wrapped, self.index = wrapped, index

    def __call__(self, module, args):
        if self.wrapped is not None:
            self.wrapped.forward(self.index)

    def __deepcopy__(self, memo):
        return _Begin(None, 0)

    def __reduce__(self):
        return _Begin, (None, 0)


class Wrapped:
    def __init__(self, context, model, optimizer):
        self.context, self.lib, self.ptr, self.call = context, context.lib, context.ptr, context._call
        self.micro = context.micro_batches
        self.alone = context.world == 1
        self.strategy = context.strategy()
        self.gradients = self.strategy not in AVERAGES_PARAMETERS
        self.local = 0  # > 0: inside no_sync
        self.layers, self.hooks, self.nodes = [], [], []
        self.others = []  # (name, buffer) of those that are not averaged
        self.check_arguments(model, optimizer)
        self.register(model)
        self.optimizer, self.count = optimizer, self.optimizer_params(optimizer)
        context.set_optimizer("own")
        self.share()
        self.hook(model)
        self.reset()
        self.take_step(optimizer)
        context.on_close.append(self.undo)

    # ---- what is trained ----

    @staticmethod
    def optimizer_params(optimizer):
        return sum(len(g["params"]) for g in optimizer.param_groups)

    def check_arguments(self, model, optimizer):
        if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument("wrap(model, optimizer) takes a torch.nn.Module and a torch.optim.Optimizer, not "
                                  "%s and %s" % (type(model).__name__, type(optimizer).__name__))
        if isinstance(optimizer, torch.optim.LBFGS):
            raise Unsupported("wrap: LBFGS computes several gradients in a step, and dreamddp averages one")
        if self.context.started:
            raise UsageError("wrap comes too late: layers were registered by hand")
        known = {id(p) for p in model.parameters()}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in known:
                    raise InvalidArgument("the optimizer updates a parameter of shape %s that is not the model's: make "
                                          "it from model.parameters()" % (tuple(p.shape),))

    def register(self, model):
        seen = set()
        for name, module in model.named_modules():
            own = [(n, p) for n, p in module.named_parameters(recurse=False) if id(p) not in seen]
            seen.update(id(p) for _, p in own)
            for n, p in own:
                if is_lazy(p):
                    raise InvalidArgument("parameter %s.%s has no shape yet: run the model once before" % (name, n))
            own = [(n, p) for n, p in own if p.numel()]
            buffers = self.buffers_of(name, module, seen)
            if own or buffers:
                self.add(name, module, own, buffers)
        if not any(l.params for l in self.layers):
            raise InvalidArgument("wrap: no parameter of the model requires a gradient")

    def buffers_of(self, name, module, seen):
        """(key, tensor) of the module's own buffers that the library averages; notes the others."""
        averaged = []
        for key, b in module.named_buffers(recurse=False):
            full = (name + "." if name else "") + key
            if is_lazy(b):
                raise InvalidArgument("buffer %s has no shape yet: run the model once before" % full)
            if id(b) in seen or not b.numel():
                continue
            seen.add(id(b))
            dense = b.layout is torch.strided and b.is_contiguous()
            if dense and b.dtype == torch.float32 and b.device.type == self.context.device:
                averaged.append((key, b))
            else:
                self.others.append((full, b))
        return averaged

    def share(self):
        """Rank 0's values of the buffers that are not averaged, in one message; names those that differ afterwards."""
        floats = [n for n, b in self.others if b.is_floating_point() or b.is_complex()]
        if self.alone or not self.others:
            return
        if self.context.step:  # the other workers are past this collective
            self.warn([n for n, _ in self.others], "have the values of this worker, which joined at step %d: load them "
                      "from a checkpoint of the program" % self.context.step)
            return
        known, unknown = [], []
        for n, b in self.others:
            try:
                known.append((n, b, b.detach().cpu().contiguous().reshape(-1).view(torch.uint8)))
            except (RuntimeError, NotImplementedError):  # sparse, quantised, without memory
                unknown.append(n)
        if known:
            # one byte in a float32, so that no bit pattern is read as a number
            every = torch.cat([data for _, _, data in known]).to(torch.float32).to(self.context.device)
            self.context.broadcast(every)
            parts = every.cpu().to(torch.uint8).split([data.numel() for _, _, data in known])
            for (n, b, own), data in zip(known, parts):
                try:
                    if not torch.equal(own, data):
                        # a clone begins where its type can be read
                        b.detach().copy_(data.clone().view(b.dtype).reshape(b.shape))
                except RuntimeError:  # several elements share memory (expand)
                    unknown.append(n)
        self.warn(unknown, "cannot be shared and have the values of each rank: store them as dense tensors")
        self.warn([n for n in floats if n not in unknown], "were set to rank 0's values and are not averaged later: make "
                  "them contiguous float32 tensors on %s, or keep them equal on all ranks" % self.context.device)

    @staticmethod
    def warn(names, what):
        if names:
            more = " and %d more" % (len(names) - 8) if len(names) > 8 else ""
            warnings.warn("dreamddp: the buffers %s%s %s" % (", ".join(names[:8]), more, what), stacklevel=5)

    def gather(self, layer):
        """Brings the values of buffers that the program has replaced (self.mean = ...) to where the library reads them."""
        for key, b in layer.buffers:
            now = layer.module._buffers.get(key)
            if now is b:
                continue
            if now is None or now.shape != b.shape:
                raise UsageError("buffer %s of layer %s was removed, or replaced by another shape, after wrap" % (
                    key, layer.name))
            with torch.no_grad():
                b.copy_(now)
            layer.module._buffers[key] = b

    def add(self, name, module, own, buffers):
        layer = _Layer(len(self.layers), name or type(module).__name__)
        grads = []
        for n, p in own:
            full = "parameter " + (name + "." if name else "") + n
            address_of(p, full, self.context.device)
            grads.append(None)
            if p.requires_grad:
                layer.params.append(_Param(full, p, layer))
                grads[-1] = layer.params[-1].grad
        layer.module, layer.buffers = module, buffers
        layer.frozen = [(n, p) for n, p in own if not p.requires_grad]
        self.layers.append(layer)
        self.context.add_layer(layer.name, [p.detach() for _, p in own], grads,
                               [b.detach() for _, b in buffers])

    def hook(self, model):
        for layer in self.layers:
            self.hooks.append(layer.module.register_forward_pre_hook(_Begin(self, layer.index)))
            for p in layer.params:
                if p.tensor.grad is not None:
                    p.take()
                fired = functools.partial(self.fired, p)
                if hasattr(p.tensor, "register_post_accumulate_grad_hook"):  # from 2.1 on
                    self.hooks.append(p.tensor.register_post_accumulate_grad_hook(fired))
                else:
                    with torch.enable_grad():
                        node = p.tensor.expand_as(p.tensor).grad_fn.next_functions[0][0]
                    self.nodes.append(node)  # its hooks live as long as it
                    self.hooks.append(node.register_hook(fired))

    def undo(self):
        for h in self.hooks:
            h.remove()
        self.nodes.clear()
        self.optimizer.step = self.inner

    # ---- a step ----

    def reset(self):
        self.done = False  # the library's step is over, the optimizer's to come
        self.next = len(self.layers) - 1
        for layer in self.layers:
            layer.passes, layer.given = 0, False
            for p in layer.params:
                p.fires, p.touched = 0, False

    def forward(self, index):
        if self.done:
            return  # an evaluation between backward and step
        if not torch.is_grad_enabled() and not self.layers[index].module.training:
            self.call("ddp_wait")  # an evaluation: the first hook of a step lets joining workers in
            return
        self.call("ddp_forward_begin", index)

    def fired(self, p, *_):
        """The gradient of p is complete, in this backward pass."""
        p.touched = True
        if self.local:
            return
        if self.done:
            self.reset()
            p.touched = True
        layer = p.layer
        if layer.given:
            raise UsageError("%s had a second gradient in one step while that of others is missing: put backward "
                             "passes that only accumulate into `with dreamddp.no_sync():`, or init(micro_batches=...)"
                             % p.name)
        p.take()
        p.fires += 1
        if p.fires > layer.passes and all(q.fires > layer.passes or not q.tensor.requires_grad for q in layer.params):
            layer.passes += 1
            if layer.passes < self.micro:
                self.call("ddp_backward_end", layer.index)
            else:
                self.advance()

    def advance(self):
        """Tells the library of layers whose backward is over, in the order of all ranks."""
        while self.next >= 0:
            layer = self.layers[self.next]
            if layer.params and layer.passes < self.micro:
                return
            self.give(layer)
        self.end()

    def give(self, layer):
        self.next -= 1
        layer.given = True
        self.gather(layer)
        for p in layer.params:
            p.version = p.grad._version
        if not layer.passes:
            for _ in range(self.micro):
                self.call("ddp_skip", layer.index)
            return
        self.call("ddp_backward_end", layer.index)

    def end(self):
        self.call("ddp_step_end")
        self.done = True

    def rest(self):
        """The layers that had no gradient in this step, or only some of theirs."""
        given = [p for layer in self.layers if layer.given for p in layer.params]
        if self.gradients and not self.alone:
            for p in given:
                if p.grad._version != p.version:
                    raise UsageError("the gradient of %s was changed between backward() and step() while it was being "
                                     "averaged, as other layers had no gradient: clip by init(clip_norm=...)" % p.name)
        while self.next >= 0:
            layer = self.layers[self.next]
            if any(p.touched or (p.tensor.grad is not None and p.tensor.grad is not p.grad) for p in layer.params):
                for p in layer.params:
                    p.take()
                for _ in range(layer.passes, self.micro - 1):
                    self.call("ddp_backward_end", layer.index)
                layer.passes = self.micro
            self.give(layer)
        self.end()
        if self.gradients and not self.alone:
            for layer in self.layers:
                left_out = self.lib.ddp_left_out(self.ptr, layer.index)  # no rank had a gradient: the optimizer leaves it
                for p in layer.params:
                    p.tensor.grad = None if left_out else p.grad

    def check_memory(self):
        for layer in self.layers:
            for p in layer.params:
                if p.tensor.data_ptr() != p.memory.data_ptr():
                    raise UsageError("%s was moved to other memory since wrap (.data = ..., model.to(...)): copy "
                                     "values into it (p.data.copy_(...)), or move the model before wrap" % p.name)
            for n, p in layer.frozen:
                if p.requires_grad:
                    raise UsageError("parameter %s of layer %s was frozen when wrap was called and is trained now: let "
                                     "it require a gradient before wrap" % (n, layer.name))
        if self.optimizer_params(self.optimizer) != self.count:
            raise UsageError("the optimizer was given parameters after wrap: give them before")

    def take_step(self, optimizer):
        self.inner = optimizer.step

        @functools.wraps(self.inner)
        def step(opt, closure=None, **more):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.check_memory()
            if not self.done:
                self.rest()
            self.reset()
            result = self.inner(**more)
            return result if closure is None else loss

        optimizer.step = types.MethodType(step, optimizer)  # a bound method, as schedulers expect

    @contextlib.contextmanager
    def no_sync(self):
        self.local += 1
        try:
            yield
        finally:
            self.local -= 1
