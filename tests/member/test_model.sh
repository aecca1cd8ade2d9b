#!/bin/sh
# [calm] The protocol of elastic worlds (tests/member/model/epoch.pml) through spin, every order of events; and its
# seeded mistakes, which have to be found. ALL=1: also what takes minutes. Skipped where there is no spin.
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v spin >/dev/null 2>&1 || { echo "spin is not installed (apt package spin)"; exit 77; }
model=$PWD/tests/member/model/epoch.pml
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0
level=-O0 # twelve searches of a second each take less than it takes to optimise them
[ -z "${ALL-}" ] || level=-O2

# check WANTED-ERRORS NAME OPTIONS...
check() {
    wanted=$1 name=$2
    shift 2
    if ! spin -a "$@" "$model" >spin.txt 2>&1 ||
        ! ${CC:-cc} $level -DSAFETY -DVECTORSZ=2048 -o pan pan.c >cc.txt 2>&1; then
        cat spin.txt cc.txt
        failed=$((failed + 1))
        return
    fi
    timeout 100 ./pan -m2000000 -w24 >out.txt 2>&1
    states=$(awk '/states, stored/ { print $1 }' out.txt)
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' out.txt)
    whole=$(grep -c 'max search depth too small' out.txt)
    echo "$name: ${states:-?} states, ${errors:-no end}"
    if [ "${errors:-x}" = "$wanted" ] && [ "$whole" = 0 ]; then
        passed=$((passed + 1))
    else
        cat out.txt
        failed=$((failed + 1))
    fi
}

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
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
