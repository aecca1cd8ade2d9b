#!/bin/sh
# [test-all: needs spin] Model checking of the elastic protocol (tests/member/model/epoch.pml) with spin, in every order of events,
# and with seeded faults, which spin must find. ALL=1 adds checks that take minutes. Skipped without spin.
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
check 0 "3 workers, a crash during a join" -DN=3 -DCOMES=1
[ -z "${ALL-}" ] || check 0 "4 workers, the coordinator crashes" -DN=4 -DDIES=0 # a minute
check 0 "3 workers, a crash while a worker leaves" -DN=3 -DLEAVES=1
check 0 "3 workers, a crash and a cut link while a worker leaves" -DN=3 -DLEAVES=1 -DCUTS=1
check 1 "a wait for a worker that has left is found" -DN=3 -DLEAVES=1 -DDEAF
check 1 "a vote for a worker that may be dead is found" -DN=3 -DCOMES=1 -DHASTY
check 1 "two votes in one round are found" -DN=4 -DISOLATE -DCUTS=2 -DCRASHES=0 -DTWICE
check 1 "a missing forward of results is found" -DN=3 -DANEW
close
