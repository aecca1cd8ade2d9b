#!/bin/sh
# build/plan osp: its JSON, its files, its errors and exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=osp
. "$root/tests/plan/plan_cli.sh"

# four layers of 40, 20, 20, 20 bytes that compute in 3 s; a server of 25 bytes/s
printf 'layer,params,forward_s,backward_s,comm_s\na & b,10,0.25,0.5,\nb,5,0.25,0.5,\nc,5,0.25,0.5,\nd,5,0.25,0.5,\n' >p.csv
printf '8 1\n2 3\n' >i.txt
base="--profile p.csv --net 200bit --workers 1 --importance i.txt"
# shellcheck disable=SC2086
{
    # U_max = 25 x 3 / 1 = 75 bytes: b, c, d are deferred; 60 bytes overlap with 3 s of computing, 40 take 1.6 s
    has '"u_max_bytes": 75, "budget_bytes": 75, "deferred_bytes": 60' $base
    has '"bsp_s": 7, "osp_s": 4.6' $base
    has '"deferred": [1, 2, 3]' $base
    # two workers: half of it; the walk takes b, and c does not fit
    has '"u_max_bytes": 37.5, "budget_bytes": 37.5, "deferred_bytes": 20' $base --workers 2
    has '"bsp_s": 11, "osp_s": 9.4' $base --workers 2
    # 8 + 1 + 2 + 3: the knapsack may take a for its 40 bytes only if that is less important
    has '"deferred": [1, 2]' $base --budget 41 --rule knapsack
    has '"budget_bytes": 37.5' $base --share 0.5
    has '"u_max_bytes": 50,' $base --loss-rate 0.5
    has '"u_max_bytes": 80,' $base --loss-rate 0.5 --literal
    # without a file parameters count the same
    has '"deferred_importance": 0.6' --profile p.csv --net 200bit --workers 1
    "$plan" osp $base --rule all --svg p.svg --json p.json >out 2>err
    [ "$(grep -c '"event": "plan"' p.json)" -eq 4 ]
    result $? "plan osp: --json writes four events" "$(cat err)"
    [ "$(grep -c '<title>' p.svg)" -eq 16 ] && grep -q 'a &amp; b' p.svg
    result $? "plan osp: --svg draws 16 layers and escapes names"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,xml.dom.minidom as x
[json.loads(l) for l in open("p.json")]; [json.loads(l) for l in open("out")]; x.parse("p.svg")'
        result $? "plan osp: JSON and SVG are well-formed"
    fi

    says 2 '--profile FILE is needed'
    says 2 '--net RATE is needed' --profile p.csv
    says 2 '--workers N is needed' --profile p.csv --net 200bit
    says 2 '--share is 1.5, but must be 0 to 1' $base --share 1.5
    says 2 '--budget is -1, but must be at least 0' $base --budget -1
    says 2 '--share and --budget cannot be combined' $base --share 0.5 --budget 10
    has '"budget_bytes": 1e+300' $base --budget 1e300
    u_max=$("$plan" osp $base --share 0.25 | sed 's/.*"budget_bytes": \([0-9.e+]*\).*/\1/;q')
    has "\"budget_bytes\": $u_max," $base --loss 1.5 --first-loss 2
    has '"budget_bytes": 0,' $base --loss 3 --first-loss 2
    says 2 '--loss and --first-loss need each other' $base --loss 2
    says 2 '--loss and --share cannot be combined' $base --loss 2 --first-loss 3 --share 0.5
    says 2 "rule 'best' is unknown; use walk, stop, density, knapsack or all" $base --rule best
    says 2 'loss' $base --loss-rate 2
    says 1 'cannot read absent.csv' --profile absent.csv --net 1mbit --workers 2
    says 1 'cannot read absent.txt' $base --importance absent.txt
    echo '1 2 3' >few.txt
    says 1 'few.txt: too few numbers, or not a number; 4 numbers are needed' $base --importance few.txt
    echo '1 2 3 4 5' >many.txt
    says 1 'many.txt: too many numbers; 4 numbers are needed' $base --importance many.txt
    echo '1 2 -3 4' >negative.txt
    says 2 '-3' $base --importance negative.txt
    "$plan" osp $base --svg absent/p.svg >out 2>err
    [ $? -eq 1 ] && grep -q 'cannot write absent/p.svg' err
    result $? "plan osp: an unwritable --svg fails with 1" "$(cat err)"
}

close
