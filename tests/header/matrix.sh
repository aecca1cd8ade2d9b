# shellcheck shell=bash disable=SC2034
# Sourced by the scripts in this folder: the compilers, the warnings, and cases that run in parallel and are counted.
set -u
warn='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wframe-larger-than=16384 -Werror'
flags="${CPPFLAGS-} -isystem build/include"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
: >"$work/cases"
skipped=0

# languages: "compiler|flags" for each installed C11 and C++17 compiler
languages() {
    for cc in gcc clang; do command -v $cc >/dev/null && echo "$cc|-std=c11"; done
    for cc in g++ clang++; do command -v $cc >/dev/null && echo "$cc|-x c++ -std=c++17"; done
}

# skip NAME REASON: counts one skipped check and prints why
skip() {
    echo "skipped: $1: $2"
    skipped=$((skipped + 1))
}

# check NAME COMMAND: adds a case. The shell command must succeed and print nothing. @ is a temporary folder of this case.
check() {
    printf '%s\t%s\n' "$1" "$2" >>"$work/cases"
}

# Runs the cases, JOBS at a time, and prints each failure, then the counts. Cases that optimise start first, then
# those that generate code, so that no core is idle at the end. CASE_TIMES=FILE appends "user system name" of each case.
finish() {
    export work
    awk '{ print (/-O[12f]|nvcc/ ? 0 : / -o @/ ? 1 : 2) "\t" $0 }' "$work/cases" | sort -s -n -k1,1 | cut -f2- >"$work/sorted"
    # shellcheck disable=SC2016  # expanded by the inner shell
    xargs -r -d '\n' -P "${JOBS:-2}" -n 1 bash -c '
        name=${1%%$'\''\t'\''*} own=$(mktemp -d "$work/XXXXXX")
        command=${1#*$'\''\t'\''} quoted='\''"$own"/'\''
        command=${command//@\//$quoted} TIMEFORMAT="%U %S $name"
        { time eval "$command" >"$own/output" 2>&1; } 2>"$own/times"
        if [ $? = 0 ] && [ ! -s "$own/output" ]; then echo ok >"$own/ok"
        else { printf "failed: %s\n  %s\n" "$name" "$command"; cat "$own/output"; } | head -12; fi
        [ -z "${CASE_TIMES-}" ] || cat "$own/times" >>"$CASE_TIMES"
    ' bash <"$work/sorted"
    all=$(wc -l <"$work/cases")
    passed=$(find "$work" -name ok | wc -l)
    echo "$passed passed, $((all - passed)) failed, $skipped skipped"
    [ "$passed" = "$all" ]
}
