#!/bin/bash
# examples/compress.c: with error feedback, sending 2 % of the gradient reaches the same loss as dense gradients,
# with a thirtieth of the bytes. Without error feedback it does not.
cd "$(dirname "$0")/../.." || exit 1
. tests/cases.sh
name="compress reaches the loss of dense gradients only with error feedback"
chosen "$name" || { close; exit; }
out=$("${BUILD:-build}/compress") # build/compress
code=$?
echo "$out"
echo "$out" | awk '
    /^dense/ { dense = $(NF - 1); all = $NF }
    /, feedback/ { feedback = $(NF - 1); some = $NF }
    /no feedback/ { forget = $(NF - 1) }
    END {
        ok = dense > 0 && dense < 0.01 && feedback < 1.5 * dense && forget > 20 * feedback && 30 * some < all
        exit !ok
    }' && [ $code -eq 0 ]
result $? "$name" "exit code $code"
close
