#!/bin/sh
# build/plan knapsack, build/plan preserve and build/plan speed: JSON, errors, exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=
. "$root/tests/plan/plan_cli.sh"

# 5 + 4 fill 9; greedy begins with 6
has '"value": 9, "assign": [-1, 0, 0, -1]' knapsack --items 6,5,4,1 --capacity 9
has '"value": 7, "assign": [0, -1, -1, 0]' knapsack --items 6,5,4,1 --capacity 9 --solver greedy
# 5 + 3 on the fast link, 4 on the one that holds 4.5; greedy: 6 | 4
has '"value": 12, "assign": [-1, 0, 1, 0]' knapsack --items 6,5,4,3 --capacity 8,4.5 --solver exact
has '"value": 10, "assign": [0, -1, 1, -1]' knapsack --items 6,5,4,3 --capacity 8,4.5 --solver greedy
has '"assign": [0, 0]' knapsack --items 0.1,0.2 --capacity 0.3
# item 1 at 0..7, item 0 at 8..10; the slow link takes twice as long: item 2 at 4..12 is too late
has '"value": 9, "assign": [0, 0, -1]' knapsack --items 2,7,4 --ready 8,0,4 --deadline 10
has '"value": 9, "assign": [0, 0, -1]' knapsack --items 2,7,4 --ready 8,0,4 --deadline 10 --mu 2 --links 2
has '"value": 13, "assign": [0, 0, 1]' knapsack --items 2,7,4 --ready 8,0,4 --deadline 10 --mu 1.5 --links 2
has '"value": 13, "assign": [0, 0, 1]' knapsack --items 2,7,4 --ready 8,0,4 --deadline 10 --mu 1.5
has '"value": 9, "assign": [0, 0, -1]' knapsack --items 2,7,4 --ready 8,0,4 --deadline 10 --mu 1.5 --links 1
has '"value": 3, "assign": [0]' knapsack --items 3 --deadline 3
has '"solver": "exact"' knapsack --items 3 --capacity 1 --json k.json
grep -q '"event": "plan"' k.json
result $? "plan knapsack: --json writes the event to k.json"
has 'usage: plan knapsack' knapsack --help

says 2 '--items c1,c2,.. is needed' knapsack --capacity 3
says 2 '--capacity A[,B] or --deadline D is needed' knapsack --items 3
says 2 '--capacity cannot be combined with' knapsack --items 3 --capacity 3 --deadline 2
says 2 '--capacity cannot be combined with' knapsack --items 3 --capacity 3 --mu 2
says 2 '--items needs a value, but it is empty' knapsack --items '' --capacity 3
says 2 "--items: 'x' is not a number" knapsack --items 1,x --capacity 3
says 2 "--items: 'inf' is not a number" knapsack --items 1,inf --capacity 3
says 2 'item 1 takes 0; it must be finite and above 0' knapsack --items 1,0 --capacity 3
says 2 'item 0 takes -1' knapsack --items -1 --capacity 3
says 2 'the capacity of link 0 is 0' knapsack --items 1 --capacity 0
says 2 'the capacity of link 1 is -2' knapsack --items 1 --capacity 1,-2
says 2 '--capacity takes one number per link' knapsack --items 1 --capacity 1,2,3
says 2 '--ready needs one number per item' knapsack --items 1,2 --ready 1 --deadline 3
says 2 'item 0 is ready at -1' knapsack --items 1 --ready -1 --deadline 3
says 2 'the capacity of link 0 is 0' knapsack --items 1 --deadline 0
says 2 '--links 2 needs --mu X' knapsack --items 1 --deadline 3 --links 2
says 2 '--mu is 0.5, but must be at least 1' knapsack --items 1 --deadline 3 --links 2 --mu 0.5
says 2 '--links is 3, but must be 1 or 2' knapsack --items 1 --deadline 3 --links 3 --mu 1
says 2 "solver 'brute' is unknown; use exact or greedy" knapsack --items 1 --capacity 1 --solver brute
says 2 'unknown option --item' knapsack --item 1
many=$(awk 'BEGIN { srand(1); for (i = 0; i < 60; i++) printf "%s%.6f", i ? "," : "", 0.1 + rand() }')
says 2 'use solver greedy' knapsack --items "$many" --capacity 8,8
has '"solver": "greedy"' knapsack --items "$many" --capacity 8,8 --solver greedy

# 0.0305 down in every update: four plain ones, or two merged ones
model="--eta 0.01 --mu 3.05 --sigma 0 --batch 256 --start 2.5"
# shellcheck disable=SC2086
{
    has '"expected_base": 2.378, "expected_plan": 2.439, "ratio": 0.97' preserve $model --target 0 --k 2,2
    has '"accepted": false' preserve $model --k 2,2
    has '"accepted": true' preserve $model --k 2,2 --tolerance 0.03
    has '"ratio": 1, "accepted": true' preserve $model --k 2,2 --sum
    has '"accepted": true' preserve $model --k 1,1,2 --tolerance 0.02
    has '"accepted": false' preserve --eta 1e-5 --mu 3.05 --sigma 0 --batch 256 --start 2.5 --k 2 --tolerance 0
    has '"accepted": true' preserve --eta 1e-5 --mu 3.05 --sigma 0 --batch 256 --start 2.5 --k 2
    has '"ratio": 1, "accepted": true' preserve $model --k 1,1,1
    # Table V of the paper: its first step
    has '"expected_plan": 0.20119' preserve --eta 0.01 --mu 0.962 --sigma 192.2 --batch 256 --start 0.2103 --target 0 --k 2
    has '"accepted": false' preserve --eta 0.01 --mu 0.962 --sigma 192.2 --batch 256 --start 0.2103 --k 1,1,1,2
    has '"accepted": true' preserve --eta 0.01 --mu 0.962 --sigma 192.2 --batch 256 --start 0.2103 --k 1,1,1,2 --one-sided
    has '"accepted": false' preserve --eta 0.01 --mu 0.962 --sigma 192.2 --batch 256 --start 0.2103 --k 2,1,1,1 --rotations
    has '"accepted"' preserve $model --k 1,2 --json p.json
    grep -q '"event": "plan"' p.json
    result $? "plan knapsack: --json writes the event to p.json"
    says 2 'either --k 1,1,2 or --profile P.csv is needed' preserve $model
    says 2 '--eta X is needed' preserve --mu 1 --sigma 1 --batch 1 --start 1 --k 1
    says 2 "--k: '0,1' does not begin with a whole number" preserve $model --k 1,0,1
    says 2 "--k: '' does not begin" preserve $model --k 1,
    says 2 'batch is 0' preserve --eta 1 --mu 1 --sigma 1 --batch 0 --start 1 --k 1
    says 2 'start is 1; it must be finite and at least the target, 2' preserve --eta 1 --mu 1 --sigma 1 --batch 1 --start 1 --target 2 --k 1
    says 2 'sigma is -1' preserve --eta 1 --mu 1 --sigma -1 --batch 1 --start 1 --k 1
    says 1 'their ratio says nothing' preserve --eta 1 --mu 1 --sigma 0 --batch 1 --start 1 --k 1

    # the plan for a profile; knapsacks grow by 1.1 until the test accepts
    vgg="--eta 0.01 --mu 0.962 --sigma 192.2 --batch 256 --start 0.2103 --profile $root/tests/data/vgg19_table2.csv"
    has '"accepted": true, "ratio": 0.998' preserve $vgg
    has '"retries": 0, "capacity": 1, "iteration_s": 0.130285, "update_frequency": 0.5, "k": [2]' preserve $vgg
    has '"ratio": 1, "retries": 2, "capacity": 1.21' preserve $vgg --link-mu 1.65
    has '"retries": 0,' preserve $vgg --link-mu 1.65 --one-sided
    has '"accepted"' preserve $vgg --partition-s 0.02 --no-barrier --json q.json
    grep -q '"event": "plan"' q.json
    result $? "plan knapsack: --json writes the event to q.json"
    says 2 'either --k 1,1,2 or --profile P.csv is needed' preserve $vgg --k 1
    says 2 'needs --profile P.csv' preserve $model --k 1 --link-mu 2
    says 2 '--link-mu is 0.3, but must be at least 1' preserve $vgg --link-mu 0.3
    says 2 '--link-mu is 0, but must be at least 1' preserve $vgg --link-mu 0
    says 2 '--partition is 0, but must be more than 0' preserve $vgg --partition 0
    says 2 '--partition-s is 0, but must be more than 0' preserve $vgg --partition-s 0
    says 2 'needs --profile P.csv' preserve $model --k 1 --link-mu 0
    says 1 'cannot read none.csv' preserve $model --profile none.csv
}

printf 'flops,seconds\n1e9,0.001\n3e9,0.003\n' >s.csv
has '"lambda": 0.5, "tflops": 1, "samples": 2' speed --samples s.csv --peak-tflops 2 --json s.json
grep -q '"event": "plan"' s.json
result $? "plan knapsack: --json writes the event to s.json"
printf '\357\273\2771e9,0.001\r3e9,0.003\r' >s.csv # a byte order mark, and lines that end in CR
has '"lambda": 0.5, "tflops": 1, "samples": 2' speed --samples s.csv --peak-tflops 2
printf '1e9,0.001\n3e9;0.003\n' >s.csv
says 1 "s.csv, line 2: '3e9;0.003' is not flops,seconds" speed --samples s.csv --peak-tflops 2
: >s.csv
says 2 's.csv: 0 measured operators are too few' speed --samples s.csv --peak-tflops 2
says 1 'cannot open none.csv' speed --samples none.csv --peak-tflops 2
says 2 '--samples S.csv is needed' speed --peak-tflops 2
says 2 '--peak-tflops X is needed' speed --samples s.csv
if command -v python3 >/dev/null; then
    python3 -c 'import json; [json.loads(l) for f in ("k.json", "p.json", "q.json", "s.json") for l in open(f)]'
    result $? "plan knapsack: JSON is well-formed"
fi
if [ -w /dev/full ]; then
    "$plan" knapsack --items 1 --capacity 1 >/dev/full 2>err
    [ $? -eq 1 ] && grep -q 'cannot write the result' err
    result $? "plan knapsack: a full disk fails with 1" "$(cat err)"
fi

close
