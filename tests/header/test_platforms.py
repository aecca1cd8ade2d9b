#!/usr/bin/env python3
"""[pure] The header fails to compile for big-endian processors and for 32-bit pointers, with an error that names
the reason."""
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SAYS = "dreamddp: this platform is not supported"
FAKES = {
    "big-endian": ["-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"],
    "32-bit pointers": ["-U__SIZEOF_POINTER__", "-D__SIZEOF_POINTER__=4"],
    "this platform": [],
}
failed = 0
for language, standard in (("c", "-std=gnu11"), ("c++", "-std=c++17")):
    for name, options in FAKES.items():
        compiler = os.environ.get("CC" if language == "c" else "CXX", "cc" if language == "c" else "c++").split()
        # without DREAMDDP_IMPLEMENTATION, as most files of a program include it
        r = subprocess.run(compiler + ["-x", language, standard, "-w", "-fsyntax-only", "-I" + os.path.join(ROOT, "src"), *options, "-"],
                           input='#include "dreamddp.h"\n', stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        well = (r.returncode != 0 and SAYS in r.stdout) if options else r.returncode == 0
        print("%s %s, %s" % ("ok" if well else "FAILED", name, language))
        if not well:
            print(r.stdout[-500:])
            failed += 1
sys.exit(failed > 0)
