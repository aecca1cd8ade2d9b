"""The shared library: found and loaded, its failures as exceptions, ddp_config from keywords."""
import ctypes
import os

from . import _binding as c


class Error(RuntimeError):
    """A failure of the library. status: its ddp_status by name, such as "peer_lost"."""
    status = "failed"


def _kind(name, status, text, *also):
    return type(name, (Error,) + also, {"status": status, "__doc__": text, "__module__": "dreamddp"})


InvalidArgument = _kind("InvalidArgument", "arg", "An argument or setting that cannot be.", ValueError)
UsageError = _kind("UsageError", "usage", "A call out of order.")
OutOfMemory = _kind("OutOfMemory", "memory", "Memory was short.", MemoryError)
FileError = _kind("FileError", "io", "A file could not be read or written.", OSError)
FormatError = _kind("FormatError", "format", "A file or text that is malformed.", ValueError)
NetworkError = _kind("NetworkError", "net", "The network failed.", ConnectionError)
PeerLost = _kind("PeerLost", "peer_lost", "A peer was lost.", ConnectionError)
PeerTimeout = _kind("PeerTimeout", "timeout", "A peer did not answer in time.", TimeoutError)
Mismatch = _kind("Mismatch", "mismatch", "The ranks disagree: other models, settings or versions.")
Unsupported = _kind("Unsupported", "unsupported", "Not supported in this combination.")
Aborted = _kind("Aborted", "aborted", "Another rank, or abort(), ended the run.")
NotFinite = _kind("NotFinite", "numeric", "A number that is not finite.", ArithmeticError)

BY_STATUS = {
    c.DDP_ARG: InvalidArgument, c.DDP_USAGE: UsageError, c.DDP_MEMORY: OutOfMemory, c.DDP_IO: FileError,
    c.DDP_FORMAT: FormatError, c.DDP_NET: NetworkError, c.DDP_PEER_LOST: PeerLost, c.DDP_TIMEOUT: PeerTimeout,
    c.DDP_MISMATCH: Mismatch, c.DDP_UNSUPPORTED: Unsupported, c.DDP_ABORTED: Aborted, c.DDP_NUMERIC: NotFinite,
}


def failure(err):
    """The exception of a ddp_error."""
    return BY_STATUS.get(err.code, Error)(err.msg.decode("utf-8", "replace"))


def check(status, err):
    if status:
        raise failure(err)


# ---- the file ----

HERE = os.path.dirname(os.path.abspath(__file__))
PLACES = (HERE, os.path.join(HERE, "..", "..", "build", "lib"))  # in a wheel; in the source tree
_loaded = {}


def load(name="libdreamddp.so"):
    """The library with its functions declared; once per process."""
    if name in _loaded:
        return _loaded[name]
    path = next((os.path.join(p, name) for p in PLACES if os.path.exists(os.path.join(p, name))), None)
    if path is None:
        how = "run `make lib-cuda`, then `pip install ./python`" if "cuda" in name else "run `pip install ./python`"
        raise ImportError("dreamddp: there is no %s in %s; %s in the source tree" % (name, HERE, how))
    lib = ctypes.CDLL(path)
    try:
        for function, (result, arguments) in c.FUNCTIONS.items():
            f = getattr(lib, function)
            f.restype = result
            f.argtypes = arguments
    except AttributeError as e:
        raise ImportError("dreamddp: %s is of another version than this package (%s); run `pip install ./python` in the "
                          "source tree" % (path, e)) from None
    _loaded[name] = lib
    return lib


# ---- ddp_config ----

def _text(value):
    """As ddp_config_set reads it: numbers, names, paths; True and False; pairs."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    return str(int(value) if isinstance(value, bool) else os.fspath(value) if isinstance(value, os.PathLike) else value)


def config_of(lib, settings):
    """(ddp_config, the texts that it borrows until ddp_open) of keywords named like its fields; None leaves one at its default."""
    config, texts, err = c.ddp_config(), [], c.ddp_error()
    for field, value in settings.items():
        if value is not None:
            texts.append(_text(value).encode())
            try:
                check(lib.ddp_config_set(config, field.encode(), texts[-1], err), err)
            except InvalidArgument as e:
                raise InvalidArgument("init: %s" % e) from None
    return config, texts
