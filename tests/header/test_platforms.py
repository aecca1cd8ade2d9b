#!/usr/bin/env python3
"""[pure] The header does not compile for a big-endian processor, nor for one with 32-bit pointers, and says why."""
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
        # the declarations alone, as every file of a program that uses the library sees them
        r = subprocess.run(compiler + ["-x", language, standard, "-w", "-fsyntax-only", "-I" + os.path.join(ROOT, "src"), *options, "-"],
                           input='#include "dreamddp.h"\n', stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        well = (r.returncode != 0 and SAYS in r.stdout) if options else r.returncode == 0
        print("%s %s, %s" % ("ok" if well else "FAILED", name, language))
        if not well:
            print(r.stdout[-500:])
            failed += 1
sys.exit(failed > 0)
