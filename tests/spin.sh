# shellcheck shell=bash
# Sourced after tests/cases.sh by the tests of Promela models. $model is the path of the model.
command -v spin >/dev/null 2>&1 || skip_script "spin is not installed (apt package spin)"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
level=-O0 # optimising takes longer than a search of one second
[ -z "${ALL-}" ] || level=-O2

# check WANTED-ERRORS NAME OPTIONS...
check() {
    expected=$1 name=$2
    shift 2
    chosen "$name" || return 0
    if ! spin -a "$@" "$model" >spin.txt 2>&1 ||
        ! ${CC:-cc} $level -DSAFETY -DVECTORSZ=2048 -o pan pan.c >cc.txt 2>&1; then
        bad "$name" "$(cat spin.txt cc.txt)"
        return
    fi
    timeout 100 ./pan -m2000000 -w24 >out.txt 2>&1
    states=$(awk '/states, stored/ { print $1 }' out.txt)
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' out.txt)
    whole=$(grep -c 'max search depth too small' out.txt)
    echo "  ${states:-?} states, ${errors:-no end}"
    if [ "${errors:-x}" = "$expected" ] && [ "$whole" = 0 ]; then
        ok "$name"
    else
        bad "$name" "$(cat out.txt)"
    fi
}
