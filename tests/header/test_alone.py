#!/usr/bin/env python3
"""Each file of src/ compiles alone, as C11 and without a warning, so that its #includes are complete. `make` compiles each
into build/plain/dreamddp.a with the warnings of the project, and stores the compiler's output. This test reads it.
separate.sh compiles the files with clang.
"""
import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case, expect, run_cases  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def compiler():
    """Returns gcc or clang, whichever CC is."""
    version = subprocess.run([*os.environ.get("CC", "cc").split(), "--version"], capture_output=True, text=True).stdout
    return "clang" if "clang" in version else "gcc"


def compiles_alone(source):
    def compiled(folder):
        made = os.path.join(ROOT, "build", "plain", source[:-2] + ".o")
        expect(os.path.exists(made), "%s is missing: it did not compile" % made)
        expect(os.path.exists(made + ".warnings"), "%s.warnings is missing: remove build/plain and run make test" % made)
        with open(made + ".warnings") as f:
            said = f.read()
        expect(not said, said)
    return compiled


name = compiler()
for path in sorted(glob.glob(os.path.join(ROOT, "src", "*", "**", "*.c"), recursive=True)):
    relative = os.path.relpath(path, ROOT)
    case("%s -std=c11 %s" % (name, relative))(compiles_alone(relative))
sys.exit(run_cases())
