#!/usr/bin/env python3
"""Checks the names in the text of the generated header and in its object file.

    tools/check_names.py [dreamddp.h]      one-line errors, exit 1; without an argument also checks the
                                           text of dreamddp_cuda.cuh

Text: every function, type, tag, enumerator, macro and variable at file scope begins with ddp_,
DDP_ or DREAMDDP_ (static functions too, because they are part of the user's translation unit).
Object: no mutable file-scope or static local data, and no exported private name.
stb_ds, which the implementation instantiates, is exempt.
"""
import os
import re
import subprocess
import sys
import tempfile

OURS = re.compile(r"(ddp_|DDP_|DREAMDDP_)")
# Macros for system headers, whose names the project cannot choose.
FOREIGN = {"_GNU_SOURCE", "STB_DS_IMPLEMENTATION", "STBDS_NO_SHORT_NAMES", "OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX",
           "environ", "ppoll"}  # libc does not always declare these
KEYWORDS = set("""const volatile static extern inline void char short int long float double signed
    unsigned struct union enum typedef template __global__ __device__ __host__ __forceinline__ __constant__ __attribute__ __declspec __extension__ sizeof""".split())
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\S")


def strip(text):
    """Replaces comments and the contents of literals by blanks, and keeps line numbers."""
    def blank(m):
        s = m.group(0)
        # keep the line continuations of a macro with a comment
        return s[0] + s[-1] if s[0] in "\"'" else " " + "".join(re.findall(r"\\?\n", s))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def macros_and_tokens(text):
    """Returns ([(macro, line)], [(token, line)]) of a header, with all #if branches taken."""
    macros, tokens, lines = [], [], strip(text).split("\n")
    i = 0
    while i < len(lines):
        line, number = lines[i], i + 1
        if line.lstrip().startswith("#"):
            m = re.match(r"\s*#\s*define\s+(\w+)", line)
            if m:
                macros.append((m.group(1), number))
            while lines[i].endswith("\\"):
                i += 1
        else:
            tokens += [(t, number) for t in TOKEN.findall(line)]
        i += 1
    return macros, tokens


def closing(tokens, i):
    """The index of the bracket that closes the one at i."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    stack = []
    for j in range(i, len(tokens)):
        t = tokens[j][0]
        if t in pairs:
            stack.append(pairs[t])
        elif t in ")}]":
            if not stack or stack.pop() != t:
                break
            if not stack:
                return j
    raise SystemExit("check_names: line %d: unbalanced %s" % (tokens[i][1], tokens[i][0]))


def enumerators(tokens, first, last):
    names, i, fresh = [], first, True
    while i < last:
        t = tokens[i][0]
        if t == "(":
            i = closing(tokens, i)
        elif fresh and re.match(r"[A-Za-z_]", t):
            names.append(tokens[i])
            fresh = False
        elif t == ",":
            fresh = True
        i += 1
    return names


def declared(tokens):
    """Yields every name that the tokens declare at file scope."""
    names, i, n = [], 0, len(tokens)
    word = lambda k: k < n and re.match(r"[A-Za-z_]", tokens[k][0]) and tokens[k][0] not in KEYWORDS
    tok = lambda k: tokens[k][0] if k < n else ""
    called = False  # the parameter list of the current declaration was read
    while i < n:
        t = tok(i)
        if t == "extern" and tok(i + 1) == '"' and tok(i + 3) == "{":
            i += 4                                            # extern "C" {: its contents are at file scope
            continue
        if t in ("__attribute__", "__declspec", "__launch_bounds__", "__align__"):
            i = closing(tokens, i + 1)
        elif t == "<":                                        # parameters and arguments of templates
            depth, i = 1, i + 1
            while depth and i < n:
                depth += {"<": 1, ">": -1}.get(tok(i), 0)
                i += 1
            i -= 1
        elif t in ("struct", "union", "enum"):
            k = i + 1
            if word(k):
                if tok(k + 1) in ("{", ";"):
                    names.append(tokens[k])
                k += 1
            if tok(k) == "{":
                end = closing(tokens, k)
                if t == "enum":
                    names += enumerators(tokens, k + 1, end)
                k = end + 1
            i = k - 1
        elif t == "(" and tok(i + 1) == "*" and word(i + 2):  # pointer to function
            names.append(tokens[i + 2])
            called, i = True, closing(tokens, i)
        elif t == "(":
            i = closing(tokens, i)
        elif t == "{":                                        # a function's body
            called, i = False, closing(tokens, i)
        elif t == "=":                                        # an initialiser
            while tok(i + 1) not in (";", ","):
                i = closing(tokens, i + 1) if tok(i + 1) in ("(", "{", "[") else i + 1
        elif t == ";":
            called = False
        elif word(i) and not called:
            if tok(i + 1) == "(" and tok(i + 2) != "*":
                names.append(tokens[i])
                called = True
            elif tok(i + 1) in (";", ",", "=", "["):
                names.append(tokens[i])
        i += 1
    return names


def text_faults(path):
    with open(path, encoding="ascii") as f:
        text = f.read()
    macros, tokens = macros_and_tokens(text)
    for kind, found in (("macro", macros), ("name", declared(tokens))):
        for name, line in found:
            if not OURS.match(name) and name not in FOREIGN:
                yield "%s:%d: %s %s at file scope lacks the prefix ddp_, ddp__, DDP_ or DREAMDDP_" % (
                    os.path.basename(path), line, kind, name)


def twice(path, other):
    """Yields names that both headers declare: the GPU companion is in the same translation unit as dreamddp.h."""
    def names_of(p):
        with open(p, encoding="ascii") as f:
            macros, tokens = macros_and_tokens(f.read())
        return dict(macros), dict(declared(tokens))
    (their_macros, their_names), (macros, names) = names_of(other), names_of(path)
    for name in sorted(set(macros) | set(names)):
        if name in their_macros or name in macros and name in their_names:
            yield "%s:%d: %s is already a name of %s" % (
                os.path.basename(path), macros.get(name) or names[name], name, os.path.basename(other))


def object_faults(path):
    """Compiles without position independence, so that constant tables are not in .data."""
    cc = os.environ.get("CC", "cc").split()
    flags = os.environ.get("CPPFLAGS", "").split() + ["-isystem", "build/include"]
    with tempfile.TemporaryDirectory() as d:
        c, o = os.path.join(d, "all.c"), os.path.join(d, "all.o")
        with open(c, "w", encoding="ascii") as f:
            f.write('#define DREAMDDP_IMPLEMENTATION\n#include "%s"\n' % os.path.abspath(path))
        done = subprocess.run(cc + ["-std=c11", "-O0", "-fno-pic", "-fno-pie"] + flags + ["-c", c, "-o", o],
                              stderr=subprocess.PIPE, text=True)
        if done.returncode:
            yield "%s does not compile: %s" % (os.path.basename(path), done.stderr.strip())
            return
        listing = subprocess.run(["nm", o], stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind in "Uw" or name.startswith("stbds_"):
            continue
        if name == "ddp__own_time":  # thread-local: the simulated clock of a thread
            continue
        if kind in "bBdDCsSgG":
            yield "%s is mutable file-scope or static data; state belongs in ddp_ctx" % name
        elif kind == "T" and not re.match(r"ddp_[a-z]", name):
            yield "%s is exported; private functions are static or DDP_LIB" % name
        elif kind in "tW" and not OURS.match(name):
            yield "function %s lacks the prefix ddp__" % name


def main(argv):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = argv[0] if argv else os.path.join(root, "dreamddp.h")
    faults = list(text_faults(path)) + list(object_faults(path))
    companion = os.path.join(root, "dreamddp_cuda.cuh")
    if not argv and os.path.exists(companion):
        faults += list(text_faults(companion)) + list(twice(companion, path))
    for f in faults:
        sys.stderr.write("check-header: %s\n" % f)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
