"""Finds the installed programs next to the library: plan, netcheck, ddprun."""
import os

from ._library import HERE, FileError

PLACES = (HERE, os.path.join(HERE, "..", "..", "build"))  # in a wheel; in the source tree


def find(name):
    """The path of a program."""
    for folder in PLACES:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return os.path.normpath(path)
    raise FileError("program %s is not in %s: install the package again (pip install ./python), or run `make "
                    "build/%s` in the source tree" % (name, HERE, name))
