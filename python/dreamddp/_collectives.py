"""Collectives over all ranks: reductions, broadcasts and gathers of arrays, and of Python objects."""
import ctypes
import numbers
import pickle
import struct
import sys

from . import _binding as c
from ._library import InvalidArgument

TYPES = {  # the function that reduces values of a type, and their type in C
    "float32": ("ddp_all_reduce_float", ctypes.c_float),
    "float64": ("ddp_all_reduce_double", ctypes.c_double),
    "int64": ("ddp_all_reduce_int64", ctypes.c_int64),
}
FORMATS = {"f": "float32", "d": "float64", "q": "int64", "l": "int64"}  # of a buffer, whose itemsize is checked
REDUCTIONS = {"sum": c.DDP_SUM, "mean": c.DDP_MEAN, "max": c.DDP_MAX, "min": c.DDP_MIN}
TAKES = "it takes float32, float64 and int64"


class _Values:
    """The values of an array in host memory: address, count, type ("float32", ...), and size in bytes."""

    def __init__(self, array, call):
        self.array, self.host = array, array
        if hasattr(array, "data_ptr"):
            self._tensor(call)
        else:
            self._buffer(call)
        self.size = self.count * ctypes.sizeof(TYPES[self.type][1])

    def _tensor(self, call):
        array = self.array
        self.type = str(array.dtype).replace("torch.", "")
        if self.type not in TYPES:
            to = ".to(torch.float32)" if array.dtype.is_floating_point else ".to(torch.int64)"
            if array.dtype.is_complex:
                to = "torch.view_as_real"
            raise InvalidArgument("%s: the tensor is %s; %s: convert it with %s" % (call, array.dtype, TAKES, to))
        if str(array.layout) != "torch.strided":
            raise InvalidArgument("%s: the tensor is sparse (%s): convert it with .to_dense()" % (call, array.layout))
        if array.device.type == "meta":
            raise InvalidArgument("%s: the tensor is on device meta and has no values" % call)
        if not array.is_contiguous():
            raise InvalidArgument("%s: the %s tensor is not contiguous (shape %s, strides %s): pass a copy made by "
                                  ".contiguous()" % (call, array.dtype, tuple(array.shape), array.stride()))
        self.host = array if array.device.type == "cpu" else array.detach().cpu()
        self.address, self.count = self.host.data_ptr(), array.numel()

    def _buffer(self, call):
        array = self.array
        name = getattr(array, "dtype", None)  # numpy arrays have one
        try:
            view = memoryview(array)
        except (TypeError, ValueError, BufferError):
            raise InvalidArgument("%s: %s is not an array; %s, in a torch tensor, a numpy array or a writable buffer" % (
                call, "a value of type %s" % (name or type(array).__name__), TAKES)) from None
        self.type = FORMATS.get((view.format or "").lstrip("@=" + ("<" if sys.byteorder == "little" else ">")))
        if self.type is None or view.itemsize != ctypes.sizeof(TYPES[self.type][1]):
            raise InvalidArgument("%s: the array contains %s; %s: convert it, in numpy with .astype" % (
                call, name or "values of format '%s'" % view.format, TAKES))
        if not view.c_contiguous:
            raise InvalidArgument("%s: the %s array is not contiguous (shape %s, strides %s): pass a copy, in numpy made by "
                                  "numpy.ascontiguousarray" % (call, self.type, view.shape, view.strides))
        if view.readonly:
            raise InvalidArgument("%s: the %s array is read-only: pass a writable copy" % (call, self.type))
        self.count = view.nbytes // view.itemsize
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(array)) if view.nbytes else 0

    def scale(self, factor):
        if hasattr(self.host, "data_ptr"):
            self.host.detach().mul_(factor)
        elif hasattr(self.host, "astype"):
            self.host *= factor
        else:
            values = (TYPES[self.type][1] * self.count).from_address(self.address)
            for i in range(self.count):
                values[i] *= factor

    def done(self):
        """Returns the array with the new values."""
        if self.host is not self.array:
            self.array.detach().copy_(self.host)
        return self.array


# ---- objects as bytes ----

HEAD = struct.Struct("<qqq")  # 1 + the rank, or 1 if the bytes are an error; number of bytes
MARK = struct.Struct("<q")    # 1 + the rank, after the last byte
FIRST = 1 << 16               # bytes of each object in the first gather. A broadcast sends the rest of a larger object.


def _packed(obj):
    """Returns (0, the bytes of obj, None), or (1, the reason of the failure, the exception)."""
    try:
        return 0, pickle.dumps(obj, protocol=4), None
    except Exception as e:  # the other ranks wait for this object, so send them the reason
        return 1, ("%s: %s" % (type(e).__name__, e)).encode()[:1000], e


def _unpacked(call, rank, error, data):
    if error:
        text = bytes(data).decode("utf-8", "replace")
        raise InvalidArgument("%s: rank %d cannot pickle its object: %s" % (call, rank, text))
    return pickle.loads(data)


def _marked(data, rank):
    """Appends the rank of the sender. Without it, the receiver detects that the sender was lost."""
    return bytearray(data) + MARK.pack(1 + rank)


class Collectives:
    """The collectives of a Context.

    All ranks must make the same calls in the same order, between two steps: not between the first hook of a step (the
    first layer's forward pass) and its end (opt.step(), step_end). Arrays are torch tensors on any device, numpy arrays
    or writable buffers; contiguous, float32, float64 or int64, with the same shape on all ranks. The result replaces the
    values of the array, bit-identical on all ranks, and the array is returned.
    """

    @property
    def _ranks(self):
        """The number of ranks that compute. Servers take no part in collectives."""
        return self.lib.ddp_world(self._alive()) - self.lib.ddp_servers(self._alive())

    def all_reduce(self, array, op="sum", scale=1.0):
        """Replaces each value by its sum, mean, max or min over the ranks. scale: factor of a sum of floats."""
        if isinstance(op, numbers.Number):
            op, scale = "sum", op  # the second argument was the scale in version 0.2
        return self._reduce("all_reduce", array, op, scale)

    def all_mean(self, array):
        """Replaces each value by its mean over the ranks, without lost workers (min_world)."""
        return self._reduce("all_mean", array, "mean", 1.0)

    def _reduce(self, call, array, op, scale):
        if op not in REDUCTIONS:
            raise InvalidArgument("%s: op=%r is unknown: choose %s" % (call, op, ", ".join(REDUCTIONS)))
        x = _Values(array, call)
        if op == "mean" and x.type == "int64":
            raise InvalidArgument("%s: a mean of int64 values is not an integer: convert them to float64" % call)
        if scale != 1 and (op != "sum" or x.type == "int64"):
            raise InvalidArgument("%s: scale=%r is only valid for sums of float32 and float64, not for the %s of %s" % (
                call, scale, op, x.type))
        if op == "sum" and x.type == "float32":
            self._call("ddp_all_reduce", x.address, x.count, scale)
            return x.done()
        function, kind = TYPES[x.type]
        at = x.address if x.type == "float32" else ctypes.cast(x.address, ctypes.POINTER(kind))
        self._call(function, at, x.count, REDUCTIONS[op])
        if scale != 1:
            x.scale(scale)
        return x.done()

    def broadcast(self, array, root=0):
        """Replaces the values by rank root's values, or the lowest live rank's if root is lost (min_world)."""
        x = _Values(array, "broadcast")
        if x.type == "float32":
            self._call("ddp_broadcast", x.address, x.count, root)
        else:
            self._call("ddp_broadcast_bytes", x.address, x.size, root)
        return x.done()

    def all_gather(self, array):
        """Gathers one block of n values per rank into array, which has world x n values. Before the call each rank fills
        in its own block. Blocks of lost workers (min_world) become 0."""
        x, ranks = _Values(array, "all_gather"), self._ranks
        if x.count % ranks:
            raise InvalidArgument("all_gather: %d values cannot be divided into equal blocks for %d ranks" % (x.count, ranks))
        if x.type == "float32":
            self._call("ddp_all_gather", x.address, x.count // ranks)
        else:
            self._call("ddp_all_gather_bytes", x.address, x.size // ranks)
        return x.done()

    def barrier(self):
        """Blocks until all ranks have called it."""
        self._call("ddp_barrier")

    def _share(self, data, root):
        self._call("ddp_broadcast_bytes", ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data), root)

    def _gather(self, own):
        """Returns the blocks of all ranks, which have equal lengths."""
        length, ranks = len(own), self._ranks
        data = bytearray(length * ranks)
        data[self.rank * length:(self.rank + 1) * length] = own
        self._call("ddp_all_gather_bytes", ctypes.addressof(ctypes.c_char.from_buffer(data)), length)
        return [data[r * length:(r + 1) * length] for r in range(ranks)]

    def broadcast_object(self, obj=None, root=0):
        """Returns a copy of rank root's obj, or of the lowest live rank's if root is lost (min_world). The obj of the
        other ranks is ignored. obj must be picklable; if it is not, all ranks raise an error. Unpickling can run code of
        the sender: use it only among workers that you trust."""
        own = None
        while True:
            if self.rank == root and own is None:
                own = _packed(obj)
            error, data, why = own or (0, b"", None)
            head = bytearray(HEAD.pack(1 + self.rank, error, len(data)))
            self._share(head, root)
            sender, error, length = HEAD.unpack(head)
            data = _marked(data if self.rank == root else bytes(length), self.rank)
            if sender == 1 + root:
                self._share(data, root)
                sender, = MARK.unpack_from(data, length)
            if sender == 1 + root:
                if why:
                    raise why
                return _unpacked("broadcast_object", root, error, data[:length])
            root = sender - 1  # the rank that replaced the lost root, the same on all ranks

    def all_gather_object(self, obj):
        """Returns the objects of all ranks in a list, in rank order; None for a lost worker (min_world). Objects must be
        picklable; if one is not, all ranks raise an error. Unpickling can run code of the sender: use it only among
        workers that you trust."""
        error, data, why = _packed(obj)
        heads = [HEAD.unpack(h) for h in self._gather(HEAD.pack(1 + self.rank, error, len(data)))]
        first = min(FIRST, max(h[2] for h in heads))
        blocks = self._gather(_marked(data[:first].ljust(first, b"\0"), self.rank))
        found = {}
        for r, (sender, error, length) in enumerate(heads):
            whole, mark = blocks[r][:min(first, length)], MARK.unpack_from(blocks[r], first)[0]
            if length > first:
                rest = _marked(data[first:] if self.rank == r else bytes(length - first), self.rank)
                self._share(rest, r)
                whole += rest[:length - first]
                mark = mark and MARK.unpack_from(rest, length - first)[0]
            if sender == mark == 1 + r:
                found[r] = error, whole
        if why:
            raise why
        for r in sorted(found, key=lambda r: not found[r][0]):  # errors first
            found[r] = _unpacked("all_gather_object", r, *found[r])
        return [found.get(r) for r in range(len(heads))]
