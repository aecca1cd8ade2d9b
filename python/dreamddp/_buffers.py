"""Buffers of a model: dense float32 buffers are averaged with the parameters, all others get rank 0's values at
wrap."""
import warnings

import torch
from torch.nn.parameter import is_lazy

from ._library import InvalidArgument, UsageError


def _warn(names, what):
    if names:
        more = " and %d more" % (len(names) - 8) if len(names) > 8 else ""
        warnings.warn("dreamddp: the tensors %s%s %s" % (", ".join(names[:8]), more, what), stacklevel=6)


class Buffers:
    def __init__(self, context):
        self.context = context
        self.clear()

    def clear(self):
        self.others = []  # (name, tensor) of buffers that are not averaged
        self.frozen = []  # the same for frozen parameters that the library does not take

    def of_module(self, name, module, seen, spans):
        """Returns (key, tensor) of the module's own buffers that the library averages, and stores the others."""
        averaged = []
        for key, b in module.named_buffers(recurse=False):
            full = (name + "." if name else "") + key
            if is_lazy(b):
                raise InvalidArgument("buffer %s has no shape yet: run the model once before wrap" % full)
            if id(b) in seen or not b.numel():
                continue
            seen.add(id(b))
            usual = b.layout is torch.strided and b.is_contiguous() and b.dtype == torch.float32
            if usual and b.device.type == self.context.device and \
                    spans.add(b.data_ptr(), b.data_ptr() + 4 * b.numel()):
                averaged.append((key, b))
            else:
                self.others.append((full, b))
        return averaged

    def add_frozen(self, name, tensor):
        self.frozen.append((name, tensor))

    def share(self):
        """Copies rank 0's values of the tensors that are not averaged to all ranks. Warns about buffers that may
        differ later. Collective."""
        context = self.context
        if context.world == 1 or not (self.others or self.frozen):
            return
        if context.step:  # this worker has joined: the other ranks are past this collective, and have sent the buffers (values)
            _warn([n for n, _ in self.frozen], "have the values of this worker, which joined at step %d: load them from the "
                  "file that the others have loaded" % context.step)
            return
        unknown = [n for n, b in self.others + self.frozen if not self.send(b)]
        _warn(unknown, "cannot be shared and have the values of each rank: store them as dense tensors")
        floats = [n for n, b in self.others if b.is_floating_point() or b.is_complex()]
        _warn([n for n in floats if n not in unknown], "were set to rank 0's values and are not averaged later: make them "
              "contiguous float32 tensors on %s, or keep them equal on all ranks" % context.device)

    def values(self):
        """Returns the buffers that are not averaged, for checkpoints and joining workers."""
        return {name: b.detach() for name, b in self.others}

    def set_values(self, values):
        for name, b in self.others:
            if name in values:
                try:
                    b.detach().copy_(values[name])
                except RuntimeError:  # several elements share memory (expand)
                    continue

    def send(self, tensor):
        """Copies rank 0's values of a tensor to all ranks. Returns False if they cannot be sent."""
        try:
            own = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        except (RuntimeError, NotImplementedError):  # sparse, quantised, without memory
            return False
        data = own.clone()
        self.context._call("ddp_broadcast_bytes", data.data_ptr(), data.numel(), 0)
        if torch.equal(own, data):
            return True
        try:
            tensor.detach().copy_(data.view(tensor.dtype).reshape(tensor.shape))
        except RuntimeError:  # several elements share memory (expand)
            return False
        return True

    @staticmethod
    def gather(layer):
        """Copies the values of buffers that the program replaced (self.mean = ...) to the memory that the library
        reads."""
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
