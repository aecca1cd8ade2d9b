#!/bin/sh
# [test-all: needs spin] Model checking of the transfer of the engine between callers and the comm thread
# (tests/comm/model/park.pml) with spin, in every order of steps, and with seeded faults, which spin must find.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/cases.sh
model=$PWD/tests/comm/model/park.pml
. tests/spin.sh

check 0 "one caller" -DCALLERS=1 -DCALLS=4
check 0 "two callers" -DCALLERS=2 -DCALLS=2
check 1 "a missing signal to the comm thread is found" -DFORGET
check 1 "a comm thread that ignores the driving caller is found" -DBARGE
check 1 "a caller that drives while the comm thread is awake is found" -DHASTY
close
