#!/bin/sh
# [test-all: needs spin] The protocol of elastic worlds (tests/member/model/epoch.pml) through spin, every order of events; and its
# seeded mistakes, which have to be found. ALL=1: also what takes minutes. Skipped where there is no spin.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/cases.sh
model=$PWD/tests/member/model/epoch.pml
. tests/spin.sh

check 0 "3 workers, a crash" -DN=3
check 0 "3 workers, two crashes" -DN=3 -DCRASHES=2
check 0 "3 workers, a cut link" -DN=3 -DCRASHES=0 -DCUTS=1
check 0 "3 workers, a crash and a cut link" -DN=3 -DCUTS=1
check 0 "3 workers, a crash and a cut link, broadcast" -DN=3 -DCUTS=1 -DBROADCAST
check 0 "3 workers, a crash while somebody comes" -DN=3 -DCOMES=1
[ -z "${ALL-}" ] || check 0 "4 workers, the coordinator crashes" -DN=4 -DDIES=0 # a minute
check 0 "3 workers, a crash while somebody leaves" -DN=3 -DLEAVES=1
check 0 "3 workers, a crash and a cut link while somebody leaves" -DN=3 -DLEAVES=1 -DCUTS=1
check 1 "waiting for one that has left is noticed" -DN=3 -DLEAVES=1 -DDEAF
check 1 "a vote for one that may be dead is noticed" -DN=3 -DCOMES=1 -DHASTY
check 1 "voting twice in a round is noticed" -DN=4 -DISOLATE -DCUTS=2 -DCRASHES=0 -DTWICE
check 1 "results that are not handed over are noticed" -DN=3 -DANEW
close
