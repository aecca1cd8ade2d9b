#!/bin/sh
# build/plan pipeline: its JSON, its files, its errors and exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=pipeline
. "$root/tests/plan/plan_cli.sh"

# Forward 1 s, backward 2 s: 8 micro-batches and 3 stages more of 3 s; ZB-H1's bubble is a third of it.
base="--stages 4 --microbatches 8"
# shellcheck disable=SC2086
{
    has '{"schedule": "gpipe", "stages": 4, "microbatches": 8, "step_s": 33, "bubble_pct": 27.2727, "held": [8, 8, 8, 8]}' $base
    has '"schedule": "1f1b", "stages": 4, "microbatches": 8, "step_s": 33, "bubble_pct": 27.2727, "held": [4, 3, 2, 1]' $base
    has '"schedule": "zb", "stages": 4, "microbatches": 8, "step_s": 27, "bubble_pct": 11.1111, "held": [4, 4, 4, 4]' $base
    # 1e6 bytes at 8 Mbit/s: 1 s at the sender; the same second at the receiver, 0.5 s later
    has '"step_s": 9' --stages 2 --microbatches 1 --bytes 1e6 --net 8mbit,500ms --schedule gpipe
    has '"step_s": 15,' --stages 2 --microbatches 2 --forward-s 1,2 --backward-s 2,4 --schedule gpipe --weights 0
    # three more in flight, and held
    has '"step_s": 2.430000000000001, "bubble_pct": 50.6173, "held": [8, 8, 8, 7], "ahead": 6}' $base --schedule 1f1b --forward-s 0.05 --bytes 1e6 --net 100mbit,20ms --ahead 6
    has 'usage: plan pipeline' --help
    has '"schedule": "zb"' $base --svg p.svg --json p.json
    [ "$(grep -c '"event": "plan"' p.json)" -eq 3 ]
    result $? "plan pipeline: --json writes three events"
    { grep -q '^<svg xmlns' p.svg && grep -q '</svg>$' p.svg && ! grep -q nan p.svg; }
    result $? "plan pipeline: --svg writes a whole picture"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,xml.dom.minidom as x
[json.loads(l) for l in open("p.json")]; x.parse("p.svg")'
        result $? "plan pipeline: JSON and SVG are well-formed"
    fi
    says 2 '--stages N is needed, from 1 to 1024' --microbatches 2
    says 2 '--microbatches M is needed, from 1 to 65536' --stages 2
    says 2 "unknown pipeline schedule '2f2b'; use gpipe, 1f1b or zb" $base --schedule 2f2b
    says 2 'needs one number, or one for each of the 4 stages' $base --forward-s 1,2
    says 2 'needs one number, or one for each of the 4 stages' $base --backward-s 1,2,3,4,5
    says 2 'needs one number, or one for each of the 4 stages' $base --forward-s -1
    says 2 '--weights is 1.5, but must be 0 to 1' $base --weights 1.5
    says 2 '--bytes needs --net RATE,DELAY' $base --bytes 5
    says 2 'for example 100mbit,20ms' $base --net slow
    "$plan" pipeline $base --svg absent/p.svg >out 2>err
    [ $? -eq 1 ] && grep -q 'cannot write absent/p.svg' err
    result $? "plan pipeline: an unwritable --svg fails with 1" "$(cat err)"
}

close
