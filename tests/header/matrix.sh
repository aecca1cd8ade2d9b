# shellcheck shell=bash disable=SC2034
# Sourced: the compilers, the warnings, and cases that run in parallel and are counted.
set -u
warn='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror'
flags="${CPPFLAGS-} -isystem build/include"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
: >"$work/cases"

# languages: "compiler|flags" for each C11 and C++17 compiler that is here
languages() {
    for cc in gcc clang; do command -v $cc >/dev/null && echo "$cc|-std=c11"; done
    for cc in g++ clang++; do command -v $cc >/dev/null && echo "$cc|-x c++ -std=c++17"; done
}

# A case: its name, and the shell command that must succeed silently. @ is a folder of its own.
check() {
    printf '%s\t%s\n' "$1" "$2" >>"$work/cases"
}

# Runs all cases, prints what failed, then the counts.
finish() {
    export work
    # shellcheck disable=SC2016  # expanded by the inner shell
    xargs -d '\n' -P "${JOBS:-2}" -n 1 sh -c '
        name=${1%%"$(printf "\t")"*}; own=$(mktemp -d "$work/XXXXXX")
        command=$(printf "%s" "${1#*"$(printf "\t")"}" | sed "s|@|$own|g")
        if out=$(sh -c "$command" 2>&1) && [ -z "$out" ]; then echo ok >"$own/ok"
        else printf "failed: %s\n  %s\n%s\n" "$name" "$command" "$out" | head -12; fi
    ' sh <"$work/cases"
    all=$(wc -l <"$work/cases")
    passed=$(find "$work" -name ok | wc -l)
    echo "$passed passed, $((all - passed)) failed, ${skipped:-0} skipped"
    [ "$passed" = "$all" ]
}
