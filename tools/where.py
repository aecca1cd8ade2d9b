#!/usr/bin/env python3
"""Prints the line of src/ from which a line of a generated header came.

    tools/where.py dreamddp.h:1234    prints src/session/session.c:57
"""
import os
import sys

import amalgamate


def main(argv):
    name, _, number = argv[0].rpartition(":") if len(argv) == 1 else ("", "", "")
    if not number.isdigit():
        sys.stderr.write(__doc__)
        return 2
    try:
        made = dict(amalgamate.generate())
    except amalgamate.Fault as e:
        sys.stderr.write("where: %s\n" % e)
        return 1
    a = made.get(os.path.basename(name))
    if a is None or not 1 <= int(number) <= len(a.lines):
        sys.stderr.write("where: line %s does not exist in %s as generated from src/\n" % (number, name))
        return 1
    with open(os.path.join(amalgamate.ROOT, os.path.basename(name)), encoding="ascii") as f:
        if f.read() != a.text():
            sys.stderr.write("where: %s is stale: run `make header` first\n" % name)
            return 1
    origin = a.origin[int(number) - 1]
    if origin:
        print("src/%s:%d" % origin)
    else:
        print("%s:%s is a line of tools/amalgamate.py: %s" % (name, number, a.lines[int(number) - 1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
