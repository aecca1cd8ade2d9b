#!/bin/sh
# [test-all: needs spin] The hand-over of the engine between callers and the comm thread (tests/comm/model/park.pml) through
# spin, in every order of steps; and its seeded mistakes, which the search must find.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/cases.sh
model=$PWD/tests/comm/model/park.pml
. tests/spin.sh

check 0 "one caller" -DCALLERS=1 -DCALLS=4
check 0 "two callers" -DCALLERS=2 -DCALLS=2
check 1 "a comm thread that is not signalled is noticed" -DFORGET
check 1 "a comm thread that ignores the driving caller is noticed" -DBARGE
check 1 "a caller that drives beside an awake comm thread is noticed" -DHASTY
close
