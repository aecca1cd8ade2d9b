"""Loads the shared library, converts its errors to exceptions, and makes ddp_config from keywords."""
import ctypes
import os

from . import _binding as c


class Error(RuntimeError):
    """An error of the library. status: the name of its ddp_status, for example "peer_lost"."""
    status = "failed"


def _kind(name, status, text, *also):
    return type(name, (Error,) + also, {"status": status, "__doc__": text, "__module__": "dreamddp"})


InvalidArgument = _kind("InvalidArgument", "arg", "An argument or setting is invalid.", ValueError)
UsageError = _kind("UsageError", "usage", "A function was called at the wrong time.")
OutOfMemory = _kind("OutOfMemory", "memory", "Out of memory.", MemoryError)
FileError = _kind("FileError", "io", "A file could not be read or written.", OSError)
FormatError = _kind("FormatError", "format", "A file or text is malformed.", ValueError)
NetworkError = _kind("NetworkError", "net", "The network failed.", ConnectionError)
PeerLost = _kind("PeerLost", "peer_lost", "A peer was lost.", ConnectionError)
PeerTimeout = _kind("PeerTimeout", "timeout", "A peer did not answer in time.", TimeoutError)
Mismatch = _kind("Mismatch", "mismatch", "The ranks have different models, settings or versions.")
Unsupported = _kind("Unsupported", "unsupported", "The combination is not supported.")
Aborted = _kind("Aborted", "aborted", "Another rank, or abort(), ended the run.")
NotFinite = _kind("NotFinite", "numeric", "A number is not finite.", ArithmeticError)

BY_STATUS = {
    c.DDP_ARG: InvalidArgument, c.DDP_USAGE: UsageError, c.DDP_MEMORY: OutOfMemory, c.DDP_IO: FileError,
    c.DDP_FORMAT: FormatError, c.DDP_NET: NetworkError, c.DDP_PEER_LOST: PeerLost, c.DDP_TIMEOUT: PeerTimeout,
    c.DDP_MISMATCH: Mismatch, c.DDP_UNSUPPORTED: Unsupported, c.DDP_ABORTED: Aborted, c.DDP_NUMERIC: NotFinite,
}


def failure(err):
    """Returns the exception of a ddp_error."""
    return BY_STATUS.get(err.code, Error)(err.msg.decode("utf-8", "replace"))


def check(status, err):
    if status:
        raise failure(err)


# ---- the file ----

HERE = os.path.dirname(os.path.abspath(__file__))
PLACES = (HERE, os.path.join(HERE, "..", "..", "build", "lib"))  # in a wheel; in the source tree
_loaded = {}


def load(name="libdreamddp.so"):
    """Loads the library and declares its functions, once per process."""
    if name in _loaded:
        return _loaded[name]
    path = next((os.path.join(p, name) for p in PLACES if os.path.exists(os.path.join(p, name))), None)
    if path is None:
        how = "run `make lib-cuda`, then `pip install ./python`" if "cuda" in name else "run `pip install ./python`"
        raise ImportError("dreamddp: %s is not in %s; %s in the source tree" % (name, HERE, how))
    lib = ctypes.CDLL(path)
    try:
        for function, (result, arguments) in c.FUNCTIONS.items():
            f = getattr(lib, function)
            f.restype = result
            f.argtypes = arguments
    except AttributeError as e:
        raise ImportError("dreamddp: %s has another version than this package (%s); run `pip install ./python` in the "
                          "source tree" % (path, e)) from None
    _loaded[name] = lib
    return lib


# ---- ddp_config ----

def _text(value):
    """Formats a value for ddp_config_set: numbers, names, paths, True and False, pairs."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    return str(int(value) if isinstance(value, bool) else os.fspath(value) if isinstance(value, os.PathLike) else value)


def config_of(lib, settings):
    """Returns (ddp_config, texts that it borrows until ddp_open). The keywords have the names of its fields. None: the default."""
    config, texts, err = c.ddp_config(), [], c.ddp_error()
    for field, value in settings.items():
        if value is not None:
            texts.append(_text(value).encode())
            try:
                check(lib.ddp_config_set(config, field.encode(), texts[-1], err), err)
            except InvalidArgument as e:
                raise InvalidArgument("init: %s" % e) from None
    return config, texts
