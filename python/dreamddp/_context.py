"""A context of the library: the calls of a training loop, for float32 arrays."""
import ctypes
import os
import shutil
import sys
import tempfile

from . import _binding as c
from . import _interrupt, _transport
from ._beside import Beside
from ._collectives import Collectives
from ._library import InvalidArgument, UsageError, config_of, failure, load
from ._state import State

RULES = {  # arguments of the C function, with their defaults
    "sgd": ("ddp_sgd_decay", {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}),
    "nesterov": ("ddp_nesterov", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}),
    "adam": ("ddp_adam", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}),
    "adamw": ("ddp_adamw", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}),
    "own": ("ddp_own_update", {}),
    "own_first": ("ddp_own_update_first", {}),
}

KEPT = object()  # instead of a gradient in add_layer: the program trains the array, and the library does not read its gradient


def address_of(array, what, device="cpu"):
    """Returns (address, number of values) of a contiguous float32 array of numpy or torch, or a writable buffer."""
    if hasattr(array, "data_ptr"):
        if str(array.dtype) != "torch.float32":
            raise InvalidArgument("%s is %s: dreamddp takes torch.float32" % (what, array.dtype))
        if array.device.type != device:
            raise InvalidArgument("%s is on %s, the context on %s: init(device=%r)" % (
                what, array.device, device, array.device.type))
        if not array.is_contiguous():
            raise InvalidArgument("%s is not contiguous (shape %s, strides %s): call .contiguous() before it "
                                  "is given" % (what, tuple(array.shape), array.stride()))
        return array.data_ptr(), array.numel()
    try:
        view = memoryview(array)
    except TypeError:
        raise InvalidArgument("%s is a %s, not an array of float32" % (what, type(array).__name__)) from None
    if view.format not in ("f", "<f"):
        raise InvalidArgument("%s contains values of format '%s': dreamddp takes float32" % (what, view.format))
    if not view.c_contiguous:
        raise InvalidArgument("%s is not contiguous (shape %s, strides %s): copy it into a contiguous array" % (
            what, view.shape, view.strides))
    if view.readonly:
        raise InvalidArgument("%s is not writable" % what)
    if view.nbytes == 0:
        return 0, 0
    return ctypes.addressof(ctypes.c_char.from_buffer(array)), view.nbytes // 4


def _torch_cuda():
    """Returns PyTorch's current device and stream; (-1, 0) without PyTorch or CUDA."""
    try:
        import torch
    except ImportError:
        return -1, 0
    if not torch.cuda.is_available():
        return -1, 0
    return torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream


def _cuda(lib, config, stream):
    """Fills in the backend, which must outlive the context."""
    lib.ddp_cuda.restype, lib.ddp_cuda.argtypes = c.ddp_backend, [ctypes.c_int, ctypes.c_int]
    device, current = _torch_cuda()
    backend = lib.ddp_cuda(0, device)
    config.backend = ctypes.pointer(backend)
    # 0 would mean a separate stream of the library. 1 is CUDA's default stream.
    config.device.cuda_stream = (current if stream is None else stream) or 1
    return backend


class Context(Collectives, Beside):
    """One rank of a world.

    device: "cpu" or "cuda". "cuda" uses the library built with nvcc, and torch's current device and stream.
    stream: another cudaStream_t, as an integer."""

    def __init__(self, device="cpu", stream=None, **settings):
        err = c.ddp_error()
        self.device = device
        if device not in ("cpu", "cuda"):
            raise InvalidArgument("init: device=%r is neither 'cpu' nor 'cuda'" % (device,))
        self.lib = load("libdreamddp_cuda.so" if device == "cuda" else "libdreamddp.so")
        network = _transport.Network(settings)
        config, texts = config_of(self.lib, network.settings)
        self._kept = [texts]  # borrowed by the library until close
        if device == "cuda":
            self._kept.append(_cuda(self.lib, config, stream))
        network.connect(config)
        self.network = network
        self._cancel = ctypes.c_int(0)
        config.cancel = ctypes.pointer(self._cancel)
        self.started = False
        self.on_close = []
        self.models = []  # models passed to wrap
        self.besides = 0  # number of further contexts that this one opened
        self.held = None  # a Backward whose step ends after the optimizer's step, or before the next call of the library
        self.steps_before = 0  # steps of the context that this one replaced
        self.settings = dict(settings, device=device, stream=stream)
        self._raised = None  # exception of a function of add_state in the current call
        self.ptr, self.call = None, object()
        opened = []
        _interrupt.watch(self)
        try:
            # map() instead of an assignment: a KeyboardInterrupt after ddp_open cannot lose the context
            opened.extend(map(self.lib.ddp_open, [config], [err]))
            self.ptr = opened[0]
            network.opened()
            if not self.ptr:
                raise failure(err)
            self.call = None
            # the effective settings: DREAMDDP_MICRO_BATCHES may set them
            used = self.lib.ddp_settings(self.ptr).contents
            self.micro_batches, self.deterministic = used.micro_batches, bool(used.deterministic)
            self.clips = used.clip_norm > 0
            self.averages_first = used.average.first > 0
            self.streams = used.outer.overlap == c.DDP_OVERLAP_STREAM
        except BaseException:
            _interrupt.unwatch(self)
            if opened and opened[0]:
                self.lib.ddp_close(opened[0])
            network.opened()
            network.close()
            raise

    def _alive(self):
        if not self.ptr:
            raise UsageError("this context was closed")
        return self.ptr

    def check(self, status):
        """Raises the context's error if a call returned a status. An exception of a function of add_state becomes its cause.
        A KeyboardInterrupt or SystemExit of such a function is raised instead."""
        raised, self._raised = self._raised, None
        if not status:
            return
        error = failure(self.lib.ddp_last_error(self.ptr).contents)
        if raised is None:
            raise error
        if isinstance(raised, Exception):
            raise error from raised
        raise raised from error

    def _call(self, function, *arguments):
        if self.held is not None:
            self.held.end_held()
        ptr = self._alive()
        self.call = object()  # a unique object for each call
        try:
            status = getattr(self.lib, function)(ptr, *arguments)
        finally:
            self.call = None
        self.check(status)

    def interrupt(self):
        """Fails the call in progress. Runs on the thread of _interrupt."""
        self._cancel.value = 1
        if self.ptr:
            why = "rank %d was interrupted (SIGINT, Ctrl-C) while it waited" % self.lib.ddp_rank(self.ptr)
            self.lib.ddp_abort(self.ptr, why.encode())

    def close(self):
        if not self.ptr:
            return
        for undo in self.on_close:
            undo()
        _interrupt.unwatch(self)
        ptr, self.ptr = self.ptr, None
        if getattr(sys, "last_type", None) and sys.last_type is not SystemExit:  # the program ends with an exception
            why = "rank %d ended by %s: %s" % (self.lib.ddp_rank(ptr), sys.last_type.__name__, sys.last_value)
            self.lib.ddp_abort(ptr, why.encode()[:300])
        self.lib.ddp_close(ptr)
        self.network.close()
        self._kept = []

    # ---- rank and world ----

    @property
    def rank(self):
        return self.lib.ddp_rank(self._alive())

    @property
    def world(self):
        return self.lib.ddp_world(self._alive())

    @property
    def local_rank(self):
        """The number of this rank among the ranks of its machine, as set by the launcher; without a launcher, rank."""
        return self.lib.ddp_local_rank(self._alive())

    @property
    def step(self):
        return self.steps_before + self.lib.ddp_step(self._alive()) + (self.held is not None)

    def __repr__(self):
        if not self.ptr:
            return "<dreamddp.Context, closed>"
        return "<dreamddp.Context of rank %d of %d, strategy %s, step %d>" % (
            self.rank, self.world, self.strategy(), self.step)

    def strategy(self):
        return self.stats()["strategy"]

    def stats(self):
        """Returns ddp_stats as a dict. "link" is (alpha in seconds, seconds per byte). The predictions are None if
        there is none. "chosen" is a dict of the choice of strategy auto, or None."""
        s = c.ddp_stats()
        self.lib.ddp_get_stats(self._alive(), s)
        out = {name: getattr(s, name) for name, _ in s._fields_}
        out.update(strategy=s.strategy.decode(), bytes_as=list(s.bytes_as), link=(s.link.alpha_s, s.link.beta_s))
        if s.chosen:
            made = s.chosen.contents
            out["chosen"] = {name: value.decode() if isinstance(value, bytes) else value
                             for name, value in ((name, getattr(made, name)) for name, _ in made._fields_)}
        else:
            out["chosen"] = None
        if not s.predicted_step_s > 0:
            out.update(predicted_step_s=None, predicted_hidden_pct=None)
        return out

    # ---- layers ----

    def add_layer(self, name, params, grads=None, buffers=()):
        """Registers the next layer, in forward order. params, grads, buffers: arrays or lists of arrays. An array whose
        gradient is None is not trained."""
        params = params if isinstance(params, (list, tuple)) else [params]
        grads = grads if isinstance(grads, (list, tuple)) else [grads] * len(params)
        if len(grads) != len(params):
            raise InvalidArgument("layer %s: %d arrays, %d gradients" % (name, len(params), len(grads)))
        blocks = []
        for i, (p, g) in enumerate(zip(params, grads)):
            at, count = address_of(p, "array %d of layer %s" % (i, name), self.device)
            to, same, kind = None, count, c.DDP_PARAMS
            if g is KEPT:
                kind = c.DDP_OWN_PARAMS
            elif g is not None:
                to, same = address_of(g, "gradient %d of layer %s" % (i, name), self.device)
            if same != count:
                raise InvalidArgument("layer %s: array %d has %d values, its gradient %d" % (name, i, count, same))
            blocks.append(c.ddp_block(at, to, count, kind))
        for i, b in enumerate(buffers):
            at, count = address_of(b, "buffer %d of layer %s" % (i, name), self.device)
            blocks.append(c.ddp_block(at, None, count, c.DDP_BUFFERS))
        self._kept += [params, grads, buffers]
        array = (c.ddp_block * len(blocks))(*blocks)
        self._call("ddp_add_layer", c.ddp_layer(name=name.encode(), blocks=array, block_count=len(blocks)))

    def add_state(self, name, save, load, early=False):
        """Registers state of the program for checkpoints and joining workers. Call it before set_optimizer.

        save(): returns bytes. load(view): receives them as a memoryview. An exception in one of them ends the run and
        becomes the cause of the error that the current call raises. early: a joining worker may receive bytes that are
        some steps old. Under strategies that average parameters or deltas the members then do not wait for them."""
        def fail(exception):
            self._raised = exception

        state = State(name, save, load, fail, early)
        self._call("ddp_add_state", state.struct)
        self._kept.append(state)

    def set_optimizer(self, rule="own", **hyper):
        """Starts the training. rule: "sgd", "nesterov", "adam" or "adamw": the library updates the parameters; "own": the
        program updates them after step_end; "own_first": it updates a layer before its backward_end. hyper: lr, momentum, ...
        of the rule. Collective."""
        if rule not in RULES:
            raise InvalidArgument("set_optimizer: rule '%s' is unknown: choose %s" % (rule, ", ".join(RULES)))
        maker, values = RULES[rule]
        for name in hyper:
            if name not in values:
                raise InvalidArgument("set_optimizer: %s has no argument '%s'; it has %s" % (
                    rule, name, ", ".join(values) or "nothing"))
        self._call("ddp_set_optimizer", getattr(self.lib, maker)(*dict(values, **hyper).values()))
        self.started = True

    # ---- hooks ----

    def forward_begin(self, layer):
        self._call("ddp_forward_begin", layer)

    def backward_begin(self, layer):
        self._call("ddp_backward_begin", layer)

    def backward_end(self, layer):
        self._call("ddp_backward_end", layer)

    def skip(self, layer):
        self._call("ddp_skip", layer)

    def report(self, loss=0.0, samples=0, epoch=0.0, lr=0.0):
        self._call("ddp_report", c.ddp_step_info(loss, samples, epoch, lr))

    def step_end(self):
        self._call("ddp_step_end")

    def wait(self):
        self._call("ddp_wait")

    def sync_all(self):
        self._pull()
        self._call("ddp_sync_all")
        self._push()

    def _pull(self):
        """Before a call that reads parameters: updates the library's float32 copies."""
        for model in self.models:
            model.pull()

    def _push(self):
        """After a call that may have changed parameters: updates the model from the library's copies."""
        for model in self.models:
            model.push()

    def abort(self, why):
        self.lib.ddp_abort(self._alive(), why.encode()[:300])

    def set_lr(self, lr):
        self.lib.ddp_set_lr(self._alive(), lr)

    # ---- checkpoints ----

    def save(self, folder, keep=0):
        self._pull()
        self._call("ddp_checkpoint_save", os.fspath(folder).encode(), keep)

    def load(self, folder):
        """Loads the newest checkpoint in folder, after wrap or set_optimizer and before the first step. Returns its world size."""
        world = ctypes.c_int()
        self._call("ddp_checkpoint_load", os.fspath(folder).encode(), world)
        self._push()
        return world.value

    def _same_folder(self):
        """Creates a folder on rank 0 and returns its name on all ranks."""
        return self.broadcast_object(tempfile.mkdtemp(prefix="dreamddp-") if self.rank == 0 else None)

    def state_dict(self):
        """Returns this rank's file of a checkpoint and the manifest as bytes, in a dict. Collective."""
        folder = self._same_folder()
        out = {"rank": self.rank, "world": self.world, "files": {}}
        try:
            self.save(folder)
            step = os.path.join(folder, sorted(os.listdir(folder))[-1])
            for name in ("manifest.json", "rank-%04d.safetensors" % self.rank):
                with open(os.path.join(step, name), "rb") as f:
                    out["files"][os.path.basename(step) + "/" + name] = f.read()
            self.barrier()  # another rank may still read the files
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return out

    def load_state_dict(self, state):
        """Loads the result of this rank's state_dict, before the first step. Collective."""
        if not isinstance(state, dict) or state.get("rank") != self.rank or state.get("world") != self.world:
            raise InvalidArgument("load_state_dict: rank %d of %d needs the state that rank %d of %d saved" % (
                self.rank, self.world, self.rank, self.world))
        folder = self._same_folder()
        try:
            for name, content in state["files"].items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                own = path + ".%d" % self.rank  # every rank has the manifest
                with open(own, "wb") as f:
                    f.write(content)
                os.replace(own, path)
            self.barrier()
            self.load(folder)
            self.barrier()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
