#!/usr/bin/env python3
"""Compares the ABI of build/lib/libdreamddp.so (functions, structs, constants) with packaging/abi.txt.

    tools/abi.py           compares with the list of the last git tag, or without a tag with the tree's own list. Exit 1 if
                           something that compiled programs use was removed or changed, 77 if this machine is not
                           64-bit Linux, which the list is for
    tools/abi.py --write   writes packaging/abi.txt

docs/reference/stability.md describes the guarantees. Sizes and offsets come from the compiler, types have the names of
python/dreamddp/_binding.py. Needs `make lib`, a C compiler and nm.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile

import python_binding
from python_binding import ROOT

LIST = os.path.join(ROOT, "packaging", "abi.txt")
LIBRARY = os.path.join(ROOT, "build", "lib", "libdreamddp.so")
TOP = "# The ABI of libdreamddp.so %s on 64-bit Linux, written by tools/abi.py --write: kind, name, offset or value\n"


def signature(result, arguments):
    return "%s(%s)" % (spelled(result), ", ".join(map(spelled, arguments)))


def spelled(kind):
    """The text of a ctypes type."""
    if hasattr(kind, "_argtypes_"):  # a pointer to a function
        return signature(kind._restype_, kind._argtypes_)
    return "void" if kind is None else kind.__name__


def compiled_layouts():
    """Returns ["struct size offset..."] as the compiler lays them out."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layouts.c"), os.path.join(folder, "layouts")
        with open(source, "w", encoding="ascii") as f:
            f.write(python_binding.layout_program())
        compiler = shlex.split(os.environ.get("CC", "cc"))
        subprocess.run(compiler + ["-I", ROOT, source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def exported():
    out = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
    return [line.split()[2] for line in out.splitlines()]


def record():
    """Returns {"function ddp_rank": "c_int(c_void_p)", "struct ddp_error": "264", "field ddp_error.code": "0
    c_int", ...}."""
    structs = {s.__name__: s for s in python_binding.layouts()[1]}
    import _binding  # python_binding.layouts() added its folder to the path
    found = {}
    for name in exported():
        found["function " + name] = signature(*_binding.FUNCTIONS[name]) if name in _binding.FUNCTIONS else "variadic"
    for line in compiled_layouts():
        name, size, *offsets = line.split()
        found["struct " + name] = size
        direct = [(field, kind) for field, _, kind in python_binding.members(structs[name])]
        inner = [f for union, kind in structs[name]._fields_ if union.startswith("_") for f in kind._fields_]
        # ctypes makes members of an unnamed union accessible
        offsets += [getattr(structs[name], field).offset for field, _ in inner]
        for (field, kind), offset in zip(direct + inner, offsets):
            found["field %s.%s" % (name, field)] = "%s %s" % (offset, spelled(kind))
    for name, value in vars(_binding).items():
        if re.match("DDP_(?!VERSION_)", name) and isinstance(value, int):
            found["constant " + name] = str(value)
    return found


def text_of(found):
    return TOP % version() + "".join("%s %s\n" % item for item in sorted(found.items()))


def parsed(text):
    """Returns (version, record) of a list."""
    first, *lines = text.splitlines()
    words = [line.split(" ", 2) for line in lines]
    return re.search(r"[.]so (\S+)", first).group(1), {kind + " " + name: what for kind, name, what in words}


def version():
    import _binding
    return _binding.DDP_VERSION_STRING


def last_list():
    """Returns (origin, text) of the last tag's list, or else of the tree's; (None, None) if there is none."""
    git = ["git", "-C", ROOT]
    try:
        tag = subprocess.run(git + ["describe", "--tags", "--abbrev=0"], capture_output=True, text=True).stdout.strip()
        if tag:
            shown = subprocess.run(git + ["show", tag + ":packaging/abi.txt"], capture_output=True, text=True)
            if shown.returncode == 0:
                return "the tag " + tag, shown.stdout
    except FileNotFoundError:  # without git: an unpacked release
        pass
    if os.path.exists(LIST):
        with open(LIST, encoding="ascii") as f:
            return "packaging/abi.txt (no tag contains one)", f.read()
    return None, None


def breaks(old_version, old, new_version, new):
    """Returns one-line errors about what a program compiled with old would miss in new. None if the minor version,
    and so the soname, differs."""
    if old_version.split(".")[:2] != new_version.split(".")[:2]:
        return []
    return ["%s was removed (it was %s)" % (k, v) for k, v in old.items() if k not in new] + [
        "%s was %s and is %s" % (k, v, new[k]) for k, v in old.items() if new.get(k, v) != v]


def main(argv):
    if argv not in ([], ["--write"]):
        sys.stderr.write(__doc__)
        return 2
    if sys.maxsize < 2**32 or not sys.platform.startswith("linux"):
        print("skipped: packaging/abi.txt is for 64-bit Linux")
        return 77
    if not os.path.exists(LIBRARY):
        print("abi: build/lib/libdreamddp.so is missing: run `make lib`", file=sys.stderr)
        return 1
    new = record()
    if argv:
        with open(LIST, "w", encoding="ascii") as f:
            f.write(text_of(new))
        return 0
    where, text = last_list()
    if text is None:
        print("abi: packaging/abi.txt is missing: run `tools/abi.py --write`", file=sys.stderr)
        return 1
    old_version, old = parsed(text)
    faults = breaks(old_version, old, version(), new)
    kept = sum(new.get(k) == v for k, v in old.items())
    print("ABI of %s compared with %s of %s: %d entries unchanged, %d added, %d removed or changed" % (
        version(), old_version, where, kept, len(new.keys() - old.keys()), len(old) - kept))
    for fault in faults:
        print("abi: " + fault, file=sys.stderr)
    if faults:
        print("abi: programs compiled with %s would break with the same soname, libdreamddp.so.%s: keep these "
              "entries, or raise DDP_VERSION_MINOR (docs/reference/stability.md)" % (old_version, old_version.rsplit(".", 1)[0]),
              file=sys.stderr)
        if not where.startswith("the tag "):
            print("abi: while there is no tag, `tools/abi.py --write` adds the change to the list", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
