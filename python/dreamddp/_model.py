"""Additions to a wrapped model: .module, .no_sync(), .join() and require_backward_grad_sync, and
the detection of loaded values. Copies of the model and unpickled models have them too, without effect."""
import contextlib
import ctypes
import hashlib

import torch


class Call:
    """A method added to the wrapped model."""

    def __init__(self, wrapped, name):
        self.wrapped, self.name = wrapped, name

    def __call__(self, *arguments, **more):
        if self.wrapped is None:
            return contextlib.nullcontext()
        return getattr(self.wrapped, self.name)(*arguments, **more)

    def __deepcopy__(self, memo):
        return Call(None, self.name)

    def __reduce__(self):
        return Call, (None, self.name)


class Loading:
    """A hook that runs before load_state_dict changes the model or a part of it."""

    def __init__(self, loads):
        self.loads = loads

    def __call__(self, state_dict, prefix, *_):
        if self.loads is not None and not prefix:  # a nonempty prefix: a submodule of the module whose load_state_dict was called
            self.loads.begin()

    def __deepcopy__(self, memo):
        return Loading(None)

    def __reduce__(self):
        return Loading, (None,)


class Loads:
    """Detects whether the program loaded values into the model or a part of it (load_state_dict) since the last
    step.

    All ranks must load, but the values may change on some ranks only, so every load counts. The exception is a
    rank that loaded other values and then restored its own."""

    def __init__(self, model):
        self.model, self.hooks = model, []
        self.before, self.others = None, False

    def hook(self):
        hook = Loading(self)
        for module in self.model.modules():
            self.hooks.append(module._register_load_state_dict_pre_hook(hook))

    def unhook(self):
        for h in self.hooks:
            h.remove()
        self.hooks.clear()

    def begin(self):
        now = self.fingerprint()
        if self.before is None:
            self.before = now
        elif now != self.before:
            self.others = True

    def changed(self):
        """True if values were loaded since the last call and the earlier ones were not restored."""
        before, others = self.before, self.others
        self.before, self.others = None, False
        return before is not None and not (others and self.fingerprint() == before)

    def fingerprint(self):
        """A hash of the parameters only, because a forward pass may change buffers between a load and the next
        step."""
        total = hashlib.blake2b(digest_size=16)
        for tensor in self.model.parameters():
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            if data.numel():
                total.update((ctypes.c_char * data.numel()).from_address(data.data_ptr()))
        return total.digest()


class Attributes:
    """Attributes that are added to the model, unless it has them."""

    def __init__(self, wrapped, model):
        values = {"module": model, "require_backward_grad_sync": True}
        values.update((name, Call(wrapped, name)) for name in ("no_sync", "join"))
        self.model = model
        old = {name for name, value in model.__dict__.items() if isinstance(value, Call)}  # attributes of a copy of a wrapped model
        self.names = [name for name in values if name in old or not hasattr(model, name)]
        for name in self.names:
            object.__setattr__(model, name, values[name])  # __setattr__ of the module would register it as a submodule

    def undo(self):
        for name in self.names:
            self.model.__dict__.pop(name, None)
