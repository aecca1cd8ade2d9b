#!/bin/sh
# [strict] The emulated link takes what htb of the same rate takes, roughly: a shared machine disturbs both. The strict
# comparison is bench/emulation.py --within 5. Needs root, ip and tc; skipped otherwise (77).
cd "$(dirname "$0")/../.." || exit 1
make -s build/bench_allreduce || exit 1
for attempt in 1 2 3; do
    bench/emulation.py --quick --within 15
    code=$?
    [ $code = 1 ] || exit $code
    echo "attempt $attempt: further apart than 15 %"
done
exit 1
