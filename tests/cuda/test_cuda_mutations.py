#!/usr/bin/env python3
"""[long, test-all: compiles the GPU companion] Mutation testing of the kernels:
the tests must fail for three seeded mutations, different ones each day.
ALL=1 runs all mutations."""
import os
import shutil
import subprocess
import sys

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if not os.path.isfile(os.path.join(root, "build/plain/dreamddp.a")):
    print("build/plain/dreamddp.a is missing; run make test")
    sys.exit(1)
if not shutil.which(os.environ.get("CXX", "g++").split()[0]):
    print("no C++ compiler")
    sys.exit(77)
script = os.path.join(root, "tests/cuda_on_cpu/mutate.py")
sys.exit(subprocess.run([sys.executable, script] + ([] if os.environ.get("ALL") else ["--sample", "3"])).returncode)
