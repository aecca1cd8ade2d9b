#!/bin/bash
# The generated header, with its implementation, compiles as one file in C11 and in C++17 without a warning.
# compile.sh runs the other compilers and configurations.
cd "$(dirname "$0")/../.." || exit 1
warn='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror'
passed=0 failed=0 skipped=0

reads() { # reads NAME COMPILER FLAGS: compiles the header and counts the result
    # -Wmisleading-indentation takes gcc ten times as long as parsing the header.
    command="$2 $warn -Wno-misleading-indentation ${CPPFLAGS-} -isystem build/include -I. -fsyntax-only tests/header/impl.c"
    if ! command -v "${2%% *}" >/dev/null; then
        echo "skipped: $1: ${2%% *} is not installed"
        skipped=$((skipped + 1))
    elif out=$($command 2>&1) && [ -z "$out" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'failed: %s\n  %s\n%s\n' "$1" "$command" "$out" | head -12
    fi
}

reads "one file as C11" "${CC:-cc} -std=c11"
reads "one file as C++17" "${CXX:-c++} -x c++ -std=c++17"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
