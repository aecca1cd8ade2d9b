#!/usr/bin/env python3
"""Writes python/dreamddp/_binding.py: the structs, enums and functions of dreamddp.h for ctypes.

    tools/python_binding.py            writes the file; without pycparser prints a message and leaves the file unchanged
    tools/python_binding.py --check    exit 1 if the file does not match dreamddp.h
    tools/python_binding.py --layouts  prints a C program that prints every struct's size and offsets, as layouts() does

Needs a C compiler and pycparser (Debian: python3-pycparser). float * and void * are addresses
(c_void_p), so that arrays of any library fit. Other pointers are typed.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "dreamddp.h")
OUTPUT = os.path.join(ROOT, "python", "dreamddp", "_binding.py")
TYPES = {
    "char": "c_char", "signed char": "c_byte", "unsigned char": "c_ubyte", "int": "c_int", "unsigned": "c_uint",
    "unsigned int": "c_uint", "short": "c_short", "unsigned short": "c_ushort", "long": "c_long",
    "unsigned long": "c_ulong", "float": "c_float", "double": "c_double", "size_t": "c_size_t", "int64_t": "c_int64",
    "uint64_t": "c_uint64", "int32_t": "c_int32", "uint32_t": "c_uint32", "uint16_t": "c_uint16", "uint8_t": "c_uint8",
}
# libc types of the declarations; tests/python checks the struct layouts with the real types
FAKE = """typedef unsigned long size_t; typedef long int64_t; typedef unsigned long uint64_t; typedef int int32_t;
typedef unsigned int uint32_t; typedef unsigned short uint16_t; typedef unsigned char uint8_t;
typedef unsigned long uintptr_t; typedef struct FILE FILE;
"""
TOP = '''"""ctypes declarations of dreamddp.h, written by tools/python_binding.py; do not edit."""
from ctypes import %s

'''


def preprocessed():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("stddef.h", "stdint.h", "stdio.h"):
            with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                f.write("#ifndef FAKE\n#define FAKE\n%s\n#endif\n" % FAKE)
        command = shlex.split(os.environ.get("CC", "cc")) + ["-E", "-P", "-nostdinc", "-I", folder, "-DDDP_API=extern",
                                                             "-D__attribute__(x)=", "-x", "c", HEADER]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def constants():
    """The numbers and strings of #define, from the declarations only."""
    with open(HEADER, encoding="ascii") as f:
        text = f.read().split("#ifdef DREAMDDP_IMPLEMENTATION\n#ifndef DDP__IMPLEMENTED", 1)[0]
    found = re.findall(r'^#define (DDP_[A-Z0-9_]+)\s+(\(?-?[0-9][0-9.xa-fA-F]*\)?|"[^"\n]*")\s*(?:/\*.*)?$', text, re.M)
    return [(name, value.strip("()")) for name, value in found]


class Binding:
    def __init__(self, tree, c_ast):
        self.c = c_ast
        self.numbers, self.alias, self.structs, self.functions = {}, {}, {}, []
        for node in tree.ext:
            self.take(node)

    def take(self, node):
        c = self.c
        if isinstance(node, c.Typedef):
            inner = node.type.type if isinstance(node.type, c.TypeDecl) else None
            if isinstance(inner, c.Enum):
                self.take_enum(inner)
                self.alias[node.name] = "c_int"
            elif isinstance(inner, (c.Struct, c.Union)):
                self.take_struct(inner, node.name)
            else:
                self.alias[node.name] = node.type
        elif isinstance(node, c.Decl):
            if isinstance(node.type, c.Enum):
                self.take_enum(node.type)
            elif isinstance(node.type, (c.Struct, c.Union)):
                self.take_struct(node.type, node.type.name)
            elif isinstance(node.type, c.FuncDecl):
                self.functions.append((node.name, node.type))

    def take_enum(self, node):
        value = -1
        for e in node.values.enumerators if node.values else ():
            value = self.number(e.value) if e.value else value + 1
            self.numbers[e.name] = value

    def take_struct(self, node, name):
        if node.decls:
            self.structs[name] = node

    def number(self, node):
        c = self.c
        if isinstance(node, c.Constant):
            return int(node.value.rstrip("uUlL"), 0)
        if isinstance(node, c.UnaryOp) and node.op == "-":
            return -self.number(node.expr)
        if isinstance(node, c.BinaryOp):
            a, b = self.number(node.left), self.number(node.right)
            return {"+": a + b, "-": a - b, "*": a * b, "<<": a << b, "|": a | b}[node.op]
        if isinstance(node, c.ID):
            return self.numbers[node.name]
        raise ValueError("unsupported constant: %r" % node)

    # ---- types ----

    def named(self, words):
        name = " ".join(w for w in words if w not in ("const", "volatile"))
        if name in TYPES:
            return TYPES[name]
        if name in self.structs:
            return name
        alias = self.alias.get(name)
        return alias if isinstance(alias, str) or alias is None else self.type(alias)

    def type(self, node):
        """The ctypes expression of a C type; None for void and opaque types."""
        c = self.c
        if isinstance(node, c.TypeDecl):
            return self.type(node.type)
        if isinstance(node, c.IdentifierType):
            return self.named(node.names)
        if isinstance(node, c.Enum):
            return "c_int"
        if isinstance(node, (c.Struct, c.Union)):
            return node.name if node.name in self.structs else None
        if isinstance(node, c.ArrayDecl):
            return "%s * %d" % (self.type(node.type), self.number(node.dim))
        if isinstance(node, c.FuncDecl):
            return self.function(node)
        if isinstance(node, c.PtrDecl):
            return self.pointer(node.type)
        raise ValueError("unsupported type: %r" % node)

    def pointer(self, node):
        inner = self.type(node)
        if inner is None or inner == "c_float":
            return "c_void_p"
        if inner == "c_char":
            return "c_char_p"
        return inner if inner.startswith("CFUNCTYPE(") else "POINTER(%s)" % inner

    def arguments(self, node):
        c = self.c
        out = []
        for p in node.args.params if node.args else ():
            if isinstance(p, c.EllipsisParam):
                return None
            t = p.type
            if isinstance(t, c.ArrayDecl):
                out.append(self.pointer(t.type))
            elif isinstance(t, c.FuncDecl):
                out.append(self.function(t))
            elif not (isinstance(t, c.TypeDecl) and isinstance(t.type, c.IdentifierType) and t.type.names == ["void"]):
                out.append(self.type(t))
        return out

    def function(self, node):
        arguments = self.arguments(node)
        if arguments is None:
            return "c_void_p"
        return "CFUNCTYPE(%s)" % ", ".join([str(self.type(node.type))] + arguments)

    # ---- text ----

    def fields(self, name, node, helpers):
        """Returns [(name, type)] of the members and the names of the unnamed ones. Structs within structs become
        separate types, in helpers."""
        c = self.c
        out, anonymous = [], []
        for d in node.decls:
            kind = d.type.type if isinstance(d.type, c.TypeDecl) else d.type
            if isinstance(kind, (c.Union, c.Struct)) and kind.decls:
                field = d.name or "_%d" % len(helpers)
                own = "%s_%s" % (name, field.lstrip("_"))
                inner, _ = self.fields(own, kind, helpers)
                helpers.append("class %s(%s):\n    _fields_ = [%s]\n" % (
                    own, "Union" if isinstance(kind, c.Union) else "Structure", self.rows(inner)))
                out.append((field, own))
                if d.name is None:
                    anonymous.append(field)
            else:
                out.append((d.name, self.type(d.type)))
        return out, anonymous

    @staticmethod
    def rows(fields):
        lines, line = [], ""
        for name, kind in fields:
            item = '("%s", %s), ' % (name, kind)
            if len(line) + len(item) > 100:
                lines.append(line.rstrip())
                line = ""
            line += item
        return "\n    ".join(lines + [line.rstrip(", ")])

    def text(self):
        out = []
        for name, value in constants():
            out.append("%s = %s\n" % (name, value))
        for name, value in self.numbers.items():
            if "__" not in name:
                out.append("%s = %d\n" % (name, value))
        for name in self.structs:
            kind = "Union" if isinstance(self.structs[name], self.c.Union) else "Structure"
            out.append("\n\nclass %s(%s):\n    pass\n" % (name, kind))
        out.append("\n")
        for name, node in self.structs.items():
            helpers = []
            fields, anonymous = self.fields(name, node, helpers)
            out.extend("\n\n" + h for h in helpers)
            if anonymous:
                out.append("%s._anonymous_ = %r\n" % (name, anonymous))
            out.append("%s._fields_ = [\n    %s]\n" % (name, self.rows(fields)))
        out.append("\nSTRUCTS = [%s]\n" % ", ".join(n for n in self.structs))
        out.append("\n# name: (result type, argument types)\nFUNCTIONS = {\n")
        for name, node in self.functions:
            arguments = self.arguments(node)
            if arguments is not None and "__" not in name:
                out.append('    "%s": (%s, [%s]),\n' % (name, self.type(node.type), ", ".join(arguments)))
        out.append("}\n")
        text = "".join(out)
        used = sorted(set(re.findall(r"\b(?:c_\w+|CFUNCTYPE|POINTER|Structure|Union)\b", text)))
        return wrapped(TOP % ", ".join(used) + text)


def wrapped(text):
    """Splits long lines after a comma, so that differences are readable."""
    out = []
    for line in text.split("\n"):
        while len(line) > 118:
            at = line.rfind(", ", 0, 116)
            if at < 20:
                break
            more = " \\" if line.startswith("from ") else ""
            out.append(line[:at + 1] + more)
            line = "        " + line[at + 2:]
        out.append(line)
    return "\n".join(out)


def made():
    from pycparser import c_ast, c_parser
    return Binding(c_parser.CParser().parse(preprocessed()), c_ast).text()


def members(struct, name="", at=0):
    """Returns [(member, offset, type)]. Members of a struct within the struct are "outer.lr"; members of unnamed
    unions are omitted."""
    found = []
    for field, kind in struct._fields_:
        if field.startswith("_"):
            continue
        here = (name + field, at + getattr(struct, field).offset, kind)
        within = kind.__name__ == "%s_%s" % (struct.__name__, field)
        found += members(kind, here[0] + ".", here[1]) if within else [here]
    return found


def layouts():
    """Returns {struct: [size, offset of each member...]}, as ctypes computes them."""
    sys.path.insert(0, os.path.join(ROOT, "python", "dreamddp"))
    import _binding
    import ctypes
    return {s.__name__: [ctypes.sizeof(s)] + [at for _, at, _ in members(s)] for s in _binding.STRUCTS}, _binding.STRUCTS


def layout_program():
    lines = ["#include <stdio.h>", '#include "dreamddp.h"', "int main(void) {"]
    for s in layouts()[1]:
        lines.append('printf("%s %%zu", sizeof(struct %s));' % (s.__name__, s.__name__))
        lines += ['printf(" %%zu", offsetof(struct %s, %s));' % (s.__name__, name) for name, _, _ in members(s)]
        lines.append('puts("");')
    return "\n".join(lines + ["return 0;", "}", ""])


def main():
    if sys.argv[1:] == ["--layouts"]:
        print(layout_program(), end="")
        return 0
    try:
        text = made()
    except ImportError:
        if sys.executable != "/usr/bin/python3" and os.path.exists("/usr/bin/python3"):
            os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)  # Debian's packages belong to the system's Python
        print("python_binding: pycparser is not installed (apt-get install python3-pycparser): "
              "python/dreamddp/_binding.py was not updated or checked", file=sys.stderr)
        return 0
    try:
        with open(OUTPUT, encoding="ascii") as f:
            old = f.read()
    except OSError:
        old = ""
    if sys.argv[1:] == ["--check"]:
        if old == text:
            return 0
        print("python/dreamddp/_binding.py does not match dreamddp.h: run `make header`", file=sys.stderr)
        return 1
    if old != text:
        with open(OUTPUT, "w", encoding="ascii") as f:
            f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
