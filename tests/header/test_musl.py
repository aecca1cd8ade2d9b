#!/usr/bin/env python3
"""[test-all: needs musl-gcc] The header compiles with musl without warnings; the types of its struct msghdr differ
from glibc's."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STB = glob.glob(os.path.join(ROOT, "build", "include", "stb_ds.h")) + glob.glob("/usr/include/stb*/stb_ds.h") + \
    glob.glob("/usr/include/stb_ds.h")

if not shutil.which("musl-gcc"):
    print("skipped: musl-gcc is not installed (Debian: musl-tools)")
    sys.exit(77)
if not STB:
    print("skipped: stb_ds.h is not installed (Debian: libstb-dev)")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(STB[0], folder)
    r = subprocess.run(["musl-gcc", "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror",
                        "-isystem", folder, "-DDREAMDDP_IMPLEMENTATION", "-x", "c", os.path.join(ROOT, "dreamddp.h")],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print("%s no warnings with musl" % ("FAILED" if r.returncode else "ok"))
if r.returncode:
    print(r.stdout[-2000:])
sys.exit(r.returncode != 0)
