# Sourced by tests/plan/test_plan_*.sh: runs build/plan in an empty folder and checks its output.
# Set these before: root; sub, a subcommand that `says` and `has` put before their arguments, or empty.
plan=${PLAN:-$root/${BUILD:-build}/plan}
[ -x "$plan" ] || { echo "FAILED: $plan was not built"; exit 1; }
. "$root/tests/cases.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# of ARGS...: prints the arguments for the name of a case, without the path of the checkout
of() {
    case "$*" in
        *"$root/"*) printf '%s' "$*" | sed "s|$root/||g" ;;
        *) printf '%s' "$*" ;;
    esac
}

# says CODE TEXT ARGS...: expects the exit code, TEXT on stderr, and nothing on stdout
says() {
    code=$1 text=$2
    shift 2
    name="plan $(of $sub "$@") fails with $code: $text"
    "$plan" $sub "$@" >out 2>err
    got=$?
    if [ $got -ne "$code" ]; then bad "$name" "exit $got: $(cat err)"
    elif ! grep -qF -- "$text" err; then bad "$name" "stderr is '$(cat err)'"
    elif [ -s out ]; then bad "$name" "a failure printed a result"
    else ok "$name"; fi
}

# has TEXT ARGS...: expects success, and TEXT on stdout
has() {
    text=$1
    shift
    name="plan $(of $sub "$@") prints $text"
    if ! "$plan" $sub "$@" >out 2>err; then bad "$name" "$(cat err)"
    elif ! grep -qF -- "$text" out; then bad "$name" "stdout is '$(cat out)'"
    else ok "$name"; fi
}
