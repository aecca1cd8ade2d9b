"""State of the program for checkpoints and joining workers: functions that return and receive bytes, and the state_dict of
PyTorch's optimizers, schedules and samplers."""
import ctypes
import io
import json
import pickle
import struct

from . import _binding as c
from ._library import FormatError, InvalidArgument, Unsupported

_FIELDS = dict(c.ddp_program_state._fields_)
_REASON = 300  # maximum length of an error message, in bytes


class State:
    """A ddp_program_state. save() returns bytes or another buffer, which is kept until the library releases it.
    load(view) receives a memoryview that is valid during the call. fail(exception) is called if one of them
    raises. early: as in ddp_program_state."""

    def __init__(self, name, save, load, fail, early=False):
        self.save, self.load, self.fail = save, load, fail
        self.held = None
        # the callbacks keep this object alive, and the context keeps it until it closes
        self.struct = c.ddp_program_state(name.encode("utf-8"), _FIELDS["save"](self._save), _FIELDS["load"](self._load),
                                          _FIELDS["release"](self._release), None, early)

    def _save(self, _, to, size, err):
        return self._guarded(err, self._give, to, size)

    def _load(self, _, at, size, err):
        return self._guarded(err, self._take, at, size)

    def _release(self, _, at):
        self.held = None

    def _guarded(self, err, function, *arguments):
        # ctypes would print and drop an exception of a callback
        try:
            function(*arguments)
            return 0
        except BaseException as e:
            err.contents.msg = ("%s: %s" % (type(e).__name__, e)).encode("utf-8", "replace")[:_REASON]
            self.fail(e)
            return 1

    def _give(self, to, size):
        data = self.save()
        view = memoryview(data).cast("B")
        if not view.nbytes:
            address = None
        elif view.readonly:
            data = bytes(data)  # bytes() of bytes does not copy, and gives an address
            address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        else:
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        self.held = data, view
        to[0], size[0] = address, view.nbytes

    def _take(self, at, size):
        self.load(memoryview((ctypes.c_char * size).from_address(at)).cast("B") if size else memoryview(b""))


# ---- PyTorch ----

def _calls(name, of):
    """Returns (get, set) for an object with state_dict and load_state_dict, or for such a pair."""
    if isinstance(of, (tuple, list)) and len(of) == 2 and all(map(callable, of)):
        return tuple(of)
    if callable(getattr(of, "state_dict", None)) and callable(getattr(of, "load_state_dict", None)):
        return of.state_dict, of.load_state_dict
    raise InvalidArgument("extra_state: '%s' is a %s: give an object with state_dict and load_state_dict, or a pair of functions "
                          "(get, set)" % (name, type(of).__name__))


def _plain(x):
    """Converts NumPy numbers to Python numbers, which PyTorch loads without unpickling classes."""
    if type(x) is dict:
        return {key: _plain(value) for key, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(_plain, x))
    return x.item() if type(x).__module__ == "numpy" and getattr(x, "ndim", 1) == 0 else x


def _load_optimizer(optimizer, saved):
    """Calls load_state_dict. It casts state to the type of its parameter, so float32 momentum of a bfloat16
    parameter would lose precision. State whose type changed is therefore set again."""
    import torch
    optimizer.load_state_dict(saved)
    if not _is_divided(saved):
        return  # an optimizer with its own format
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [i for group in saved["param_groups"] for i in group["params"]]
    for number, p in zip(numbers, params):
        now = optimizer.state.get(p, {})
        for key, value in saved["state"].get(number, {}).items():
            if torch.is_tensor(value) and torch.is_tensor(now.get(key)) and now[key].dtype != value.dtype:
                now[key] = value.to(now[key].device)


class ProgramState:
    """The state_dict of optimizers and further objects, as two states of the context. Register it before the
    context starts (set_optimizer), on every rank with the same number of optimizers and the same names.

    The state NAME:state has state_dict()["state"] of each optimizer, its tensors. A joining worker may receive them
    before it enters (early). The state NAME has the rest, of the step in which it enters. An optimizer with a format of
    its own is in NAME only. So are all optimizers in a checkpoint of version 0.2.

    extra: {name: object with state_dict and load_state_dict, or (get, set)}, for example schedulers, a GradScaler,
    a sampler. The optimizers' state is loaded with weights_only=True (PyTorch 2.4 or later). The state of a
    further object may need classes that PyTorch does not load this way. It is then unpickled, which can run code
    of the sender.

    Format of both: the output of torch.save for each object; then their lengths and names as JSON; then the length of
    the JSON."""

    def __init__(self, context, optimizers, extra=None, name="pytorch"):
        self.optimizers = list(optimizers)
        self.extra = {key: _calls(key, of) for key, of in (extra or {}).items()}
        self.tensors = None  # of each optimizer, from load_tensors until load
        for key in self.extra:
            if not isinstance(key, str):
                raise InvalidArgument("extra_state: the name %r is a %s, not a string" % (key, type(key).__name__))
        context.add_state(name + ":state", self.save_tensors, self.load_tensors, early=True)
        context.add_state(name, self.save, self.load)

    def save_tensors(self):
        states = [o.state_dict() for o in self.optimizers]
        return _packed([s["state"] if _is_divided(s) else {} for s in states], optimizers=len(states), extra=[])

    def save(self):
        states = [o.state_dict() for o in self.optimizers]
        divided = [i for i, s in enumerate(states) if _is_divided(s)]
        rest = [{key: value for key, value in s.items() if key != "state" or i not in divided} for i, s in enumerate(states)]
        return _packed(rest + [get() for get, _ in self.extra.values()], optimizers=len(states), extra=list(self.extra),
                       divided=divided)

    def load_tensors(self, view):
        head, parts = _parts(view)
        self.check(head, [])
        self.tensors = [_tensors(part, "optimizer %d" % i, unpickle=False) for i, part in enumerate(parts)]

    def load(self, view):
        head, parts = _parts(view)
        self.check(head, self.extra)
        tensors, self.tensors = self.tensors, None
        for i, (optimizer, part) in enumerate(zip(self.optimizers, parts)):
            saved = _tensors(part, "optimizer %d" % i, unpickle=False)
            if i in head.get("divided", ()):
                if tensors is None:
                    raise FormatError("the tensors of optimizer %d are in another state, which is missing: load a checkpoint with "
                                      "both" % i)
                saved["state"] = tensors[i]
            _load_optimizer(optimizer, saved)
        for key, part in zip(head["extra"], parts[len(self.optimizers):]):
            self.extra[key][1](_tensors(part, key, unpickle=True))

    def check(self, head, extra):
        if head["optimizers"] != len(self.optimizers) or sorted(head["extra"]) != sorted(extra):
            raise InvalidArgument("the state has %d optimizers and the extra_state %s, this program has %d and %s: use the same "
                                  "on every rank" % (head["optimizers"], sorted(head["extra"]) or "{}", len(self.optimizers),
                                                     sorted(extra) or "{}"))


# ---- the format of a state ----

def _is_divided(state):
    """True if a state_dict of an optimizer has PyTorch's format, whose "state" is apart from the rest."""
    return {"state", "param_groups"} <= set(state)


def _packed(states, **head):
    import torch
    buffer, lengths = io.BytesIO(), []
    for state in states:
        begin = buffer.tell()
        torch.save(_plain(state), buffer)
        lengths.append(buffer.tell() - begin)
    head = json.dumps(dict(head, lengths=lengths)).encode("ascii")
    buffer.write(head + struct.pack("<Q", len(head)))
    return buffer.getbuffer()


def _parts(view):
    """Returns the header, and the bytes of each part that it lists."""
    try:
        length, = struct.unpack("<Q", view[-8:])
        end = view.nbytes - 8 - length
        head = json.loads(bytes(view[end:-8])) if end >= 0 else None
        lengths = head["lengths"]
        if sum(lengths) != end or len(lengths) != head["optimizers"] + len(head["extra"]) or min(lengths + [0]) < 0:
            raise ValueError("lengths %s of %d bytes" % (lengths, end))
    except (struct.error, ValueError, TypeError, KeyError) as e:
        raise FormatError("a state of %d bytes is malformed (%s): start every rank with the same version of dreamddp" % (
            view.nbytes, e)) from None
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return head, [view[at:at + n] for at, n in zip(starts, lengths)]


def _tensors(part, what, unpickle):
    import torch
    try:
        return torch.load(io.BytesIO(part), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as e:
        # before 2.4 PyTorch could not load floats this way, or could not allow classes
        if not unpickle and hasattr(torch.serialization, "add_safe_globals"):
            raise Unsupported("the state of %s holds classes that PyTorch does not load by default: allow them with "
                              "torch.serialization.add_safe_globals on every rank (%s)" % (what, e)) from e
        return torch.load(io.BytesIO(part), map_location="cpu", weights_only=False)
