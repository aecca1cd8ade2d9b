"""The layers of a model: the parameters, and the memory in which the library reads values and gradients.

A module that owns parameters or buffers is a layer. The library uses dense float32 parameters in place, with any order of
dimensions. Every other parameter (bfloat16, float16, a view with gaps, memory that two parameters share) has a float32
master copy, which the library averages.
"""
import bisect
import operator
import zlib

import torch
from torch.nn.parameter import is_lazy

from ._context import KEPT, address_of
from ._library import InvalidArgument, Unsupported, UsageError

TYPES = (torch.float32, torch.bfloat16, torch.float16)
_data_ptr, _requires_grad = torch.Tensor.data_ptr, operator.attrgetter("requires_grad")


def is_dense(tensor):
    """True if the elements fill one block of memory without gaps and overlaps, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def flat_view(tensor):
    """The elements of a dense tensor in memory order."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


class Spans:
    """Address ranges that are in use."""

    def __init__(self):
        self.starts, self.ends = [], []

    def add(self, start, end):
        """Adds the range start..end-1. Returns False if a part of it is already in use."""
        i = bisect.bisect_left(self.starts, start)
        if (i > 0 and self.ends[i - 1] > start) or (i < len(self.starts) and self.starts[i] < end):
            return False
        self.starts.insert(i, start)
        self.ends.insert(i, end)
        return True


class Param:
    """A trained parameter.

    flat, grad_flat: the arrays of the library, float32 without gaps. grad: grad_flat in the parameter's shape. Both are None
    if the library does not read gradients (reads).
    has_master: flat is a copy; pull and push exchange values with the tensor.
    """

    def __init__(self, name, tensor, spans, reads):
        self.name, self.tensor = name, tensor
        size = tensor.numel() * tensor.element_size()
        in_place = tensor.dtype == torch.float32 and is_dense(tensor) and \
            spans.add(tensor.data_ptr(), tensor.data_ptr() + size)
        self.has_master = not in_place
        self.grad_flat = torch.zeros(tensor.numel(), dtype=torch.float32, device=tensor.device) if reads else None
        self.grad = None
        if in_place:
            self.flat = flat_view(tensor)  # keeps the memory alive even if the program replaces tensor.data
            self.pointer = tensor.data_ptr()
        else:
            self.flat = tensor.detach().reshape(-1).to(torch.float32, copy=True)
            self.pointer = None
        if reads:
            self.grad = self.grad_flat.as_strided(tensor.shape, tensor.stride()) if in_place else \
                self.grad_flat.view(tensor.shape)
        self.seen = -1       # number of the last backward pass with a gradient
        self.identity = None  # id of the gradient tensor, if the library does not read it
        self.given = None    # the program's gradient tensor while the library has its values
        self.empty = False   # the program had no gradient
        self.hidden = False  # tensor.grad is None until the average is complete
        self.version = 0     # version of the program's gradient tensor when the library got, returned or noted it
        self.local, self.local_version = None, 0  # a gradient that is not averaged yet, and its version after the pass

    def note(self):
        """Records the gradient tensor, without keeping its memory alive."""
        g = self.tensor.grad
        self.identity = id(g)  # stays the same as long as it is the parameter's gradient
        self.version = 0 if g is None else g._version

    def added(self):
        """True if the gradient is the one that was noted, put or taken, plus one more: it was neither replaced nor zeroed."""
        g = self.tensor.grad
        same = id(g) == self.identity if self.grad is None else g is self.given
        return same and g is not None and g._version == self.version + 1

    def take(self):
        """Copies the gradient to the library's array."""
        g = self.given = self.tensor.grad
        self.empty = g is None
        if g is self.grad:
            return
        if g is None:
            self.grad_flat.fill_(-0.0)  # a negative zero means that there is no gradient (ddp_no_gradient)
            return
        if g.layout is not torch.strided or g.shape != self.grad.shape:
            raise Unsupported("the gradient of %s is %s of shape %s: a dense one of shape %s is needed (Embedding: "
                              "sparse=False)" % (self.name, g.layout, tuple(g.shape), tuple(self.grad.shape)))
        with torch.no_grad():
            self.grad.copy_(g)
        if g.dtype == torch.float32:
            self.given = self.tensor.grad = self.grad

    def hide(self):
        """Hides the gradient while the library sums into it, so that a second gradient of this step gets another
        tensor."""
        self.tensor.grad = None
        self.hidden = True

    def put(self):
        """Sets the tensor's gradient to the averaged one."""
        if self.tensor.dtype == torch.float32:
            self.given = self.grad
        else:
            if self.given is None:
                self.given = torch.empty_like(self.tensor)
            with torch.no_grad():
                self.given.copy_(self.grad)
        self.tensor.grad = self.given
        self.version = self.given._version

    def pull(self):
        """Applies the tensor's changes to the master, which keeps the precision that the tensor's type lacks."""
        with torch.no_grad():
            now = self.tensor.detach().reshape(-1)
            if now.dtype == torch.float32:
                self.flat.copy_(now)
            else:
                rounded = self.flat.to(now.dtype)
                self.flat.add_(now.to(torch.float32) - rounded.to(torch.float32))

    def push(self):
        """Copies the master's values to the tensor."""
        with torch.no_grad():
            self.tensor.copy_(self.flat.view(self.tensor.shape))


class Layer:
    """A module that owns parameters or buffers."""

    def __init__(self, index, name, module):
        self.index, self.name, self.module = index, name, module
        self.params = []     # trained parameters
        self.frozen = []     # (name, tensor)
        self.buffers = []    # (key, tensor) of averaged buffers
        self.masters = []    # params with a master copy
        self.expected = 0    # gradients expected in this backward pass, if the layer is due
        self.fired = 0       # gradients that are complete
        self.told = 0        # calls of ddp_backward_end or ddp_skip in this step
        self.given = False   # the library has the gradients of this step
        self.used = False    # it had a gradient in some step
        self.regular = False  # it had one in the last complete step (_hooks)


class Layers:
    """All layers in the order in which modules are registered, which is usually the order of the forward pass."""

    def __init__(self, context, model, trained, buffers, reads):
        """trained: ids of the parameters that an optimizer updates. buffers: Buffers, which stores the other
        tensors. reads: the library reads gradients."""
        self.context, self.model, self.trained, self.buffers, self.reads = context, model, trained, buffers, reads
        self.build()

    def build(self):
        """Finds the layers and registers them. Also called for a context that was reopened."""
        model, trained = self.model, self.trained
        self.list = []
        self.spans, self.seen = Spans(), set()
        self.buffers.clear()
        for name, module in model.named_modules():
            self.add(name, module, trained)
        self.params = [p for layer in self.list for p in layer.params]
        self.masters = [p for p in self.params if p.has_master]
        self.copied = [layer for layer in self.list if layer.masters or layer.buffers]
        self.frozen = [tensor for layer in self.list for _, tensor in layer.frozen]
        self.pointers = [p.pointer for p in self.params if p.pointer is not None]
        self.in_place = [p.tensor for p in self.params if p.pointer is not None]
        if not self.params:
            raise InvalidArgument("wrap: no parameter of the model requires a gradient")
        places = [(m._modules, key, child) for m in model.modules() for key, child in m._modules.items()]
        places += [(layer.module._parameters, key, p.tensor) for layer in self.list for p in layer.params
                   for key in (p.name.rpartition(".")[2].rpartition(" ")[2],)]
        self.places = tuple(zip(*places))  # owners, keys, values: where the model stores modules and trained parameters
        plain = all(isinstance(owner, dict) for owner in self.places[0])
        self.get = dict.get if plain else lambda owner, key: owner.get(key)  # owners of a ScriptModule are no dicts
        for layer in self.list:
            self.register(layer)

    def add(self, name, module, trained):
        layer = Layer(len(self.list), name or type(module).__name__, module)
        for key, tensor in module.named_parameters(recurse=False):
            full = "parameter " + (name + "." if name else "") + key
            if id(tensor) in self.seen:
                continue
            self.seen.add(id(tensor))
            self.check(full, tensor)
            if tensor.numel():
                self.add_param(layer, full, tensor, trained)
        layer.buffers = self.buffers.of_module(name, module, self.seen, self.spans)
        layer.masters = [p for p in layer.params if p.has_master]
        if layer.params or layer.frozen or layer.buffers:
            self.list.append(layer)

    def check(self, name, tensor):
        device = self.context.device
        if is_lazy(tensor):
            raise InvalidArgument("%s has no shape yet: run the model once before wrap" % name)
        if tensor.device.type == "meta":
            raise InvalidArgument("%s has no values (device meta): call model.to_empty(device=%r) and load values before "
                                  "wrap" % (name, device))
        if tensor.device.type != device:
            raise InvalidArgument("%s is on %s, the context on %s: init(device=%r), or move the whole model there before "
                                  "wrap" % (name, tensor.device, device, tensor.device.type))
        if tensor.requires_grad and tensor.dtype not in TYPES:
            raise InvalidArgument("%s is %s: dreamddp trains float32, bfloat16 and float16: call model.float() before wrap"
                                  % (name, tensor.dtype))

    def add_param(self, layer, name, tensor, trained):
        if tensor.requires_grad and id(tensor) not in trained:
            raise InvalidArgument("%s requires a gradient, but no optimizer that was passed to wrap updates it: pass all of "
                                  "them as a list, wrap(model, [opt1, opt2]), or freeze it (requires_grad_(False))" % name)
        if tensor.requires_grad:
            layer.params.append(Param(name, tensor, self.spans, self.reads))
            return
        layer.frozen.append((name, tensor))
        size = tensor.numel() * tensor.element_size()
        if tensor.dtype != torch.float32 or not is_dense(tensor) or \
                not self.spans.add(tensor.data_ptr(), tensor.data_ptr() + size):
            self.buffers.add_frozen(name, tensor)

    def register(self, layer):
        """Registers a layer with the library. Unusual strides are part of its name, so that ranks compare them."""
        shared = {id(t) for _, t in self.buffers.frozen}
        name = layer.name
        params = [p.flat for p in layer.params]
        grads = [p.grad_flat if self.reads else KEPT for p in layer.params]
        for p in layer.params:
            if not p.has_master and not p.tensor.is_contiguous():
                name += " (strides %s)" % ",".join(map(str, p.tensor.stride()))
        for _, tensor in layer.frozen:
            if id(tensor) not in shared:
                params.append(flat_view(tensor))
                grads.append(None)
        for tensor in params:
            address_of(tensor, "a parameter of layer %s" % name, self.context.device)
        self.context.add_layer(name, params, grads, [b.detach() for _, b in layer.buffers])

    def signature(self):
        """A name that depends on the names, shapes and types of trained parameters, so that all ranks compare
        them."""
        text = repr([(p.name, tuple(p.tensor.shape), str(p.tensor.dtype)) for p in self.params])
        return "parameter shapes %08x" % zlib.crc32(text.encode())

    def pull(self):
        for p in self.masters:
            p.pull()

    def push(self):
        for p in self.masters:
            p.push()

    def check_memory(self):
        """Raises an error if parameters or their memory were replaced since wrap."""
        owners, keys, values = self.places
        if all(map(operator.is_, map(self.get, owners, keys), values)) and \
                list(map(_data_ptr, self.in_place)) == self.pointers:
            return  # map runs no Python code for a parameter
        for owner, key, value in zip(owners, keys, values):
            if owner.get(key) is not value:
                raise UsageError("the %s '%s' of the model was replaced since wrap (by assignment, or load_state_dict(assign=True)): "
                                 "replace it before wrap, or copy values into its parameters (p.data.copy_(...))" % (
                                     "parameter" if isinstance(value, torch.nn.Parameter) else "module", key))
        for p in self.params:
            if p.pointer is not None and p.tensor.data_ptr() != p.pointer:
                raise UsageError("%s was moved to other memory since wrap (.data = ..., model.to(...)): copy values into it "
                                 "(p.data.copy_(...)), or move the model before wrap" % p.name)

    def thawed(self):
        """True if a parameter that was frozen when layers were registered requires a gradient now."""
        return any(map(_requires_grad, self.frozen))
