#!/bin/sh
# build/plan partial: its JSON, its files, its errors and exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=
. "$root/tests/plan/plan_cli.sh"

# two layers of 10 s; row 1 (output side) is sent in 4 s, row 0 in 6 s: 10..14 and 20..26
printf 'layer,params,forward_s,backward_s,comm_s\nin,6,,10,6\nout,4,,10,4\n' >p.csv
printf 'layer,params,backward_s\nin,1000000,1\nout,1000000,1\n' >net.csv
base="partial --profile p.csv --period 3"
# shellcheck disable=SC2086
{
    for solver in optimal dfs brute scatter; do
        has "\"solver\": \"$solver\", \"cost\": \"timeline\", \"layers\": 2, \"period\": 3, \"objective_s\": 66, \"exposed_s\": 6," \
            $base --solver $solver --cost timeline
    done
    has '"sets": [[0, 1], [], []], "fill": [[], [1], [1]], "solve_ms": ' $base --solver optimal --cost timeline --fill exact
    has '"fill": [[], [], []]' $base --solver optimal --cost timeline --fill eq12
    has '"sets": [[1], [0], []]' $base --solver enp
    has '"solver": "scatter", "cost": "window"' $base
    # one lump of 10 s after row 1 at 10 just fits
    has '"objective_s": 60, "exposed_s": 0, "lower_bound_s": 60,' $base --solver all --cost sum
    [ "$(wc -l <out)" -eq 5 ]
    result $? "plan partial: --solver all prints five lines"
    # 2 (4-1)/4 x 4 MB over 12.5 MB/s = 0.48 s to send each, two delays of 20 ms
    has '"objective_s": 6.52' partial --profile net.csv --period 3 --solver optimal --net 100mbit,20ms --workers 4
    has 'usage: plan partial' partial --help
    has 'usage: plan SUBCOMMAND' --help

    has '"solver"' $base --solver all --svg p.svg --json p.json
    [ "$(grep -c '"event": "plan"' p.json)" -eq 5 ]
    result $? "plan partial: --json writes five events"
    [ "$(grep -c '"names": \["' p.json)" -eq 5 ] && ! grep -q names out
    result $? "plan partial: --json names the layers"
    { grep -q '^<svg xmlns' p.svg && grep -q '</svg>$' p.svg; }
    result $? "plan partial: --svg writes a whole picture"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,sys,xml.dom.minidom as x
[json.loads(l) for l in open("p.json")]; [json.loads(l) for l in open("out")]; x.parse("p.svg")'
        result $? "plan partial: JSON and SVG are well-formed"
    fi

    says 2 'a subcommand is needed'
    says 2 'unknown subcommand nonsense; choose partial' nonsense
    says 2 '--profile FILE is needed' partial --period 3
    says 2 '--period H is needed' partial --profile p.csv
    says 2 '--period is 0, but must be from 1 to 1000000' partial --profile p.csv --period 0
    says 2 '--period -1 is not a whole number' partial --profile p.csv --period -1
    says 2 "solver 'greedy' is unknown; use optimal, dfs" $base --solver greedy
    says 2 "cost 'cheap' is unknown; use timeline" $base --cost cheap
    says 2 "filling 'full' is unknown; use none" $base --fill full
    says 2 'unknown option --perod' $base --perod 3
    says 2 '--json needs a value' $base --json
    says 2 '--net needs --workers' $base --net 1mbit
    says 2 '--workers is 0, but must be at least 2' $base --net 1mbit --workers 0
    says 2 '--workers needs --net' $base --workers 0
    says 2 'plan partial' $base --net nonsense --workers 2
    says 1 'cannot read absent.csv' partial --profile absent.csv --period 3
    says 1 'line 2: comm_s is empty' partial --profile net.csv --period 3
    printf 'layer,params,backward_s,comm_s\na,1,-2,3\n' >neg.csv
    says 1 'neg.csv, line 2: backward_s is -2' partial --profile neg.csv --period 3
    : >empty.csv
    says 1 'empty.csv is empty' partial --profile empty.csv --period 3
    table=$root/tests/data/vgg19_table2.csv
    two=$("$plan" partial --profile "$table" --period 2 --solver optimal | sed 's/.*"exposed_s": \([0-9.e-]*\).*/\1/' | cut -c1-6)
    has ", $two" partial --profile "$table" --period 3 --curve
    says 2 '--curve and --svg cannot be combined' $base --curve --svg p.svg
    # 10 parameters of 4 s after a backward of 1 s: alone in its step 3 s late; in two parts each 1 s
    printf 'layer,params,forward_s,backward_s,comm_s\nin,0,,2,0\nhead,10,,1,4\n' >split.csv
    has '"exposed_s": 2,' partial --profile split.csv --period 2
    has '"exposed_s": 0,' partial --profile split.csv --period 2 --split-params 5
    has '"layer_of": [0, 1, 1], ' partial --profile split.csv --period 2 --split-params 5
    has '"exposed_s": 1,' partial --profile split.csv --period 2 --split-params 5 --alpha 1
    # and a gap of 0.25 s: in the step of both parts 0.5 s more, of which none is late; whole, 4.25 - 1 - 2 s
    has '"exposed_s": 2.25,' partial --profile split.csv --period 2 --gap 0.25
    says 2 'gap_s is -1' $base --gap -1
    says 2 '--alpha needs --split-params N' $base --alpha 1
    says 2 'a part of 0 parameters is impossible' $base --split-params 0
    says 2 'the startup is 9 s' partial --profile split.csv --period 2 --split-params 5 --alpha 9
    has 'plan of dreamddp ' --version
    has 'plan partial of dreamddp ' partial --version
    "$plan" $base --svg absent/p.svg >out 2>err
    [ $? -eq 1 ] && [ ! -s out ] && grep -q 'cannot write absent/p.svg' err
    result $? "plan partial: an unwritable --svg fails with 1" "$(cat err)"
    if [ -w /dev/full ]; then
        "$plan" $base >/dev/full 2>err
        [ $? -eq 1 ] && grep -q 'cannot write the result' err
        result $? "plan partial: a full disk fails with 1" "$(cat err)"
    fi
}
awk 'BEGIN { print "layer,params,backward_s,comm_s"; for (i = 0; i < 200; i++) print "l" i ",1,1,1" }' >wide.csv
says 2 'use solver optimal' partial --profile wide.csv --period 10 --solver brute

close
