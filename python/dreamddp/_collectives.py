"""Collectives over all ranks: reductions, broadcasts and gathers of arrays, and of any Python objects."""
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
    """The values of an array in host memory: address, count, type ("float32", ...), size in bytes."""

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
            raise InvalidArgument("%s: the tensor is on the device meta and has no values" % call)
        if not array.is_contiguous():
            raise InvalidArgument("%s: the %s tensor is not contiguous (shape %s, strides %s): give a copy made by "
                                  ".contiguous()" % (call, array.dtype, tuple(array.shape), array.stride()))
        self.host = array if array.device.type == "cpu" else array.detach().cpu()
        self.address, self.count = self.host.data_ptr(), array.numel()

    def _buffer(self, call):
        array = self.array
        name = getattr(array, "dtype", None)  # of numpy
        try:
            view = memoryview(array)
        except (TypeError, ValueError, BufferError):
            raise InvalidArgument("%s: %s is no array; %s, in a torch tensor, a numpy array or a writable buffer" % (
                call, "a value of type %s" % (name or type(array).__name__), TAKES)) from None
        self.type = FORMATS.get((view.format or "").lstrip("@=" + ("<" if sys.byteorder == "little" else ">")))
        if self.type is None or view.itemsize != ctypes.sizeof(TYPES[self.type][1]):
            raise InvalidArgument("%s: the array holds %s; %s: convert it, in numpy with .astype" % (
                call, name or "values of format '%s'" % view.format, TAKES))
        if not view.c_contiguous:
            raise InvalidArgument("%s: the %s array is not contiguous (shape %s, strides %s): give a copy, in numpy by "
                                  "numpy.ascontiguousarray" % (call, self.type, view.shape, view.strides))
        if view.readonly:
            raise InvalidArgument("%s: the %s array is read-only: give a copy that can be written" % (call, self.type))
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
        """The array, with the new values."""
        if self.host is not self.array:
            self.array.detach().copy_(self.host)
        return self.array


# ---- objects as bytes ----

HEAD = struct.Struct("<qqq")  # 1 + the rank, 1 if the bytes are an error, how many bytes follow
MARK = struct.Struct("<q")    # 1 + the rank, after the last byte
FIRST = 1 << 16               # bytes of each object that one gather sends; a broadcast sends the rest of a larger one


def _packed(obj):
    """(0, the bytes of obj, None) or (1, why there are none, the exception)."""
    try:
        return 0, pickle.dumps(obj, protocol=4), None
    except Exception as e:  # the other ranks wait for this object, so they receive the reason
        return 1, ("%s: %s" % (type(e).__name__, e)).encode()[:1000], e


def _unpacked(call, rank, error, data):
    if error:
        text = bytes(data).decode("utf-8", "replace")
        raise InvalidArgument("%s: rank %d cannot pickle its object: %s" % (call, rank, text))
    return pickle.loads(data)


def _marked(data, rank):
    """The bytes, and the rank that sends them: a receiver sees a lost one in it."""
    return bytearray(data) + MARK.pack(1 + rank)


class Collectives:
    """The collectives of a Context.

    All ranks make the same calls in the same order, between two steps: never after the first hook of a step (the first
    layer's forward pass) and before its end (opt.step(), step_end). Arrays are contiguous, of any shape, of float32,
    float64 or int64, the same on all ranks: torch tensors of any device, numpy arrays or writable buffers. The result
    replaces their values, bit-identical on all ranks, and the array is returned.
    """

    @property
    def _ranks(self):
        """Ranks that compute: servers take no part."""
        return self.lib.ddp_world(self._alive()) - self.lib.ddp_servers(self._alive())

    def all_reduce(self, array, op="sum", scale=1.0):
        """Replaces each value by its sum, mean, max or min over the ranks. scale: multiplied into a sum of floats."""
        if isinstance(op, numbers.Number):
            op, scale = "sum", op  # the second argument of version 0.2
        return self._reduce("all_reduce", array, op, scale)

    def all_mean(self, array):
        """all_reduce(array, "mean"): lost workers (min_world) are left out."""
        return self._reduce("all_mean", array, "mean", 1.0)

    def _reduce(self, call, array, op, scale):
        if op not in REDUCTIONS:
            raise InvalidArgument("%s: op=%r is none of %s" % (call, op, ", ".join(REDUCTIONS)))
        x = _Values(array, call)
        if op == "mean" and x.type == "int64":
            raise InvalidArgument("%s: a mean of int64 values is no integer: convert them to float64" % call)
        if scale != 1 and (op != "sum" or x.type == "int64"):
            raise InvalidArgument("%s: scale=%r is for sums of float32 and float64, not for the %s of %s" % (
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
        """Replaces the values by those of rank root; of the lowest live rank if root is lost (min_world)."""
        x = _Values(array, "broadcast")
        if x.type == "float32":
            self._call("ddp_broadcast", x.address, x.count, root)
        else:
            self._call("ddp_broadcast_bytes", x.address, x.size, root)
        return x.done()

    def all_gather(self, array):
        """array is one block for each rank: world x n values. Each rank fills in its own block, the rank-th, and
        receives the others. Blocks of lost workers (min_world) become 0."""
        x, ranks = _Values(array, "all_gather"), self._ranks
        if x.count % ranks:
            raise InvalidArgument("all_gather: %d values are no equal blocks for %d ranks" % (x.count, ranks))
        if x.type == "float32":
            self._call("ddp_all_gather", x.address, x.count // ranks)
        else:
            self._call("ddp_all_gather_bytes", x.address, x.size // ranks)
        return x.done()

    def barrier(self):
        """Returns when all ranks have called it."""
        self._call("ddp_barrier")

    def _share(self, data, root):
        self._call("ddp_broadcast_bytes", ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data), root)

    def _gather(self, own):
        """The blocks of all ranks, from blocks of one length."""
        length, ranks = len(own), self._ranks
        data = bytearray(length * ranks)
        data[self.rank * length:(self.rank + 1) * length] = own
        self._call("ddp_all_gather_bytes", ctypes.addressof(ctypes.c_char.from_buffer(data)), length)
        return [data[r * length:(r + 1) * length] for r in range(ranks)]

    def broadcast_object(self, obj=None, root=0):
        """Returns a copy of obj of rank root, or of the lowest live rank if root is lost (min_world); obj of the other
        ranks is ignored. Any object that pickle takes, of any size. If root cannot pickle it, all ranks raise.
        Unpickling runs code of the sender: use it only among workers that you trust."""
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
            root = sender - 1  # the rank that took the place of the lost root, the same on all ranks

    def all_gather_object(self, obj):
        """Returns the objects of all ranks in a list, by rank; None for a lost worker (min_world). Any objects that
        pickle takes, of any sizes. If a rank cannot pickle its object, all ranks raise. Unpickling runs code of the
        sender: use it only among workers that you trust."""
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
