# Sourced by tests/test_plan_*.sh: build/plan run in an empty folder, and what it says.
# Set before: root, and sub, the subcommand that says and has put before their arguments, or empty.
# Counts in passed and failed.
plan=${PLAN:-$root/build/plan}
[ -x "$plan" ] || { echo "FAILED: $plan was not built"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }

# says CODE TEXT ARGS...: exit code, and TEXT in what is printed to stderr, nothing on stdout
says() {
    code=$1 text=$2
    shift 2
    "$plan" $sub "$@" >out 2>err
    got=$?
    if [ $got -ne "$code" ]; then bad "plan $sub $*: exit $got, not $code: $(cat err)"
    elif ! grep -qF -- "$text" err; then bad "plan $sub $*: '$(cat err)' does not say '$text'"
    elif [ -s out ]; then bad "plan $sub $*: a failure printed a result"
    else ok; fi
}

# has TEXT ARGS...: success, and TEXT on stdout
has() {
    text=$1
    shift
    if ! "$plan" $sub "$@" >out 2>err; then bad "plan $sub $*: $(cat err)"
    elif ! grep -qF -- "$text" out; then bad "plan $sub $*: no '$text' in '$(cat out)'"
    else ok; fi
}
