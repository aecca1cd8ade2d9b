#!/bin/bash
# [calm] examples/compress.c: with feedback, 2 % of the gradient find the weights as dense gradients do; without
# it they do not; in a thirtieth of the bytes.
cd "$(dirname "$0")/../.." || exit 1
out=$("${BUILD:-build}/compress") || { echo "FAILED: compress ended with $?"; exit 1; }
echo "$out"
echo "$out" | awk '
    /^dense/ { dense = $(NF - 1); all = $NF }
    /, feedback/ { feedback = $(NF - 1); some = $NF }
    /no feedback/ { forget = $(NF - 1) }
    END {
        ok = dense > 0 && dense < 0.01 && feedback < 1.5 * dense && forget > 20 * feedback && 30 * some < all
        print ok ? "1 passed, 0 failed, 0 skipped" : "0 passed, 1 failed, 0 skipped"
        exit !ok
    }'
