#!/usr/bin/env python3
"""Checks that every public function of the generated headers has its own comment.

    tools/check_docs.py [HEADER...]     one sentence per fault, exit 1; without a name dreamddp.h and dreamddp_cuda.cuh

The comment is directly above the declaration and begins with "NAME - ". It describes this function only, says more than
the name, and does not only refer to another function. If the function returns a status or fills a ddp_error, the
comment has a sentence "Errors: DDP_ARG for ..." that lists the codes. A function without a status may have its comment
after the declaration, on the same line.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = ("dreamddp.h", "dreamddp_cuda.cuh")
CODES = re.compile(r"\bDDP_(?:ARG|USAGE|MEMORY|IO|FORMAT|NET|PEER_LOST|TIMEOUT|MISMATCH|UNSUPPORTED|ABORTED|NUMERIC|"
                   r"FAILED)\b")
DECLARATION = re.compile(r"DDP_API\s+(.*?)\b(ddp_\w+)\((.*)\)", re.S)
REFERENCE = re.compile(r"(?:see|as|like|(?:the )?same (?:as|for|with)|ditto)\b", re.I)
OF_STATUS = re.compile(r"\b0 or (?:a|the) ddp_status|first error", re.I)
BOILERPLATE = re.compile(r"\b(?:Returns 0 or (?:a ddp_status|the context's first error)|Local|Collective|(?:Pure; )?safe from any thread|"
                         r"NULL is allowed)\b[.;]?", re.I)
# Words that say nothing about a function beyond its name.
EMPTY = set("ddp a an the of in to for is it its this that with returns return gets get sets set".split())


def declarations(lines):
    """(first line, last line, result, name, arguments) of each public function, lines from 0."""
    i = 0
    while i < len(lines):
        if lines[i].startswith("DDP_API "):
            first, text = i, lines[i]
            while ";" not in lines[i]:
                i += 1
                text += " " + lines[i].strip()
            m = DECLARATION.match(text[:text.index(";")])
            if m:
                yield first, i, m.group(1).strip(), m.group(2), m.group(3)
        i += 1


def plain(comment):
    """The text of a comment in one line."""
    inside = comment.strip()[2:].rsplit("*/", 1)[0]
    return " ".join(re.sub(r"^\s*\*(?: |$)", "", line).strip() for line in inside.split("\n")).strip()


def comment_above(lines, first):
    """The comment that ends in the line before a declaration, or None."""
    last = i = first - 1
    if i < 0 or not lines[i].rstrip().endswith("*/"):
        return None
    while i > 0 and "/*" not in lines[i]:
        i -= 1
    return plain("\n".join(lines[i:last + 1])) if lines[i].startswith("/*") else None


def comment_behind(lines, last):
    """The comment that begins after the semicolon of a declaration, or None."""
    rest = lines[last].split(";", 1)[1].strip()
    if not rest.startswith("/*"):
        return None
    while "*/" not in rest:
        last += 1
        rest += "\n" + lines[last]
    return plain(rest)


def words(text):
    return set(re.findall(r"[a-z0-9]+", text.lower().replace("_", " ")))


def text_fault(name, text):
    """The fault of a description as a sentence, or None."""
    if REFERENCE.match(text):
        return "its comment only refers to another one: state the purpose"
    text = BOILERPLATE.sub("", re.sub(r"\bErrors:.*", "", text))
    if len(words(text) - EMPTY - words(name) - {w + "s" for w in words(name)}) < 2:
        return "its comment only repeats the name: state the purpose"
    return None


def fault(lines, first, last, result, name, arguments):
    """The fault of a comment as a sentence, or None."""
    text = comment_above(lines, first)
    status = result == "ddp_status" or "ddp_error *" in arguments
    if text is None:
        text = comment_behind(lines, last)
        if text is None:
            return "no comment directly above it"
        if status or result == "int" and OF_STATUS.search(text):
            return "it returns a status: put its comment, with the list of errors, above it"
    else:
        if not text.startswith(name + " - "):
            return "its comment does not begin with '%s - '" % name
        text = text[len(name) + 3:]
        other = re.search(r"(?:^|[.;:]\s+)(ddp_\w+)(?:, ddp_\w+)* - ", text)
        if other:
            return "its comment describes %s, too: each function has its own" % other.group(1)
    bad = text_fault(name, text)
    if bad:
        return bad
    if status or result == "int" and OF_STATUS.search(text):
        listed = re.search(r"\bErrors:(.*)", text, re.S)
        if not listed or not CODES.search(listed.group(1)):
            return "it returns a status: list its errors ('Errors: DDP_ARG for ...')"
    elif result == "int" and not re.search(r"\breturns\b", text, re.I):
        return "its comment does not say what it returns"
    return None


def faults(path):
    with open(path, encoding="ascii") as f:
        lines = f.read().split("\n")
    for first, last, result, name, arguments in declarations(lines):
        bad = fault(lines, first, last, result, name, arguments)
        if bad:
            yield "%s:%d: %s: %s" % (os.path.basename(path), first + 1, name, bad)


def main(argv):
    paths = argv or [p for p in (os.path.join(ROOT, name) for name in HEADERS) if os.path.exists(p)]
    found = [f for path in paths for f in faults(path)]
    for f in found:
        sys.stderr.write("check-header: %s\n" % f)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
