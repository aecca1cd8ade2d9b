# Sourced by test scripts: counts the cases and prints a line for each, `ok      NAME` or `FAILED  NAME: WHY`.
# TEST_NAME=TEXT counts only the cases whose names contain the text; an underscore equals a space.
passed=0 failed=0 skipped=0
wanted=$(printf '%s' "${TEST_NAME-}" | tr 'A-Z_-' 'a-z  ')

# chosen NAME: succeeds if the variable TEST_NAME selects this case
chosen() {
    [ -n "$wanted" ] || return 0
    case $(printf '%s' "$1" | tr 'A-Z_-' 'a-z  ') in
        *"$wanted"*) return 0 ;;
        *) return 1 ;;
    esac
}

# ok NAME
ok() {
    chosen "$1" || return 0
    passed=$((passed + 1))
    echo "ok      $1"
}

# bad NAME WHY
bad() {
    chosen "$1" || return 0
    failed=$((failed + 1))
    echo "FAILED  $1: ${2-}"
}

# skip NAME REASON
skip() {
    chosen "$1" || return 0
    skipped=$((skipped + 1))
    echo "skipped: $1: $2"
}

# skip_script REASON: nothing of this script can run on this machine
skip_script() {
    echo "skipped: ${0##*/}: $1"
    exit 77
}

# close: prints the counts and returns the exit status of the script
close() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

# result STATUS NAME WHY: ok if the status is 0, else bad
result() {
    if [ "$1" -eq 0 ]; then ok "$2"; else bad "$2" "${3-}"; fi
}
