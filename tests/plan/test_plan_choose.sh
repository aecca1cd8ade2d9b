#!/bin/sh
# build/plan choose and bandwidth: compares predictions with sums by hand; checks the choice, errors and exit codes.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=choose
. "$root/tests/plan/plan_cli.sh"

# four layers of 40, 20, 20, 20 KB that compute in 1 + 2 s; two workers send all of it once in an all-reduce
printf 'layer,params,forward_s,backward_s,comm_s\na,10000,0.25,0.5,9\nb,5000,0.25,0.5,9\nc,5000,0.25,0.5,\nd,5000,0.25,0.5,\n' >p.csv
base="--profile p.csv --net 400kbit --workers 2"

# predicts STEP_MS STRATEGY ARGS...
predicts() {
    ms=$1 strategy=$2
    shift 2
    "$plan" choose "$@" >out 2>err
    grep "\"strategy\": \"$strategy\", \"options\": " out | head -1 | grep -qF "\"step_ms\": $ms,"
    result $? "plan $(of choose "$@"): $strategy takes $ms ms" "$(grep "\"$strategy\"" out | head -1) $(cat err)"
}

# shellcheck disable=SC2086
{
    predicts 5000 ssgd $base             # 3 s and 2 s on the link
    predicts 5000 bsp $base
    predicts 5000 wfbp $base             # one bucket holds all
    predicts 3800 mgwfbp $base           # d .5-.9, c 1-1.4, b 1.5-1.9, a 2-2.8, forward 1
    predicts 3400 osp $base              # a fifth of 2 s is sent at once
    predicts 3500 localsgd $base --period 4
    predicts 3200 dreamddp $base --period 4 # a is whole .8 s after its backward, b to d in time
    predicts 3000 deft $base             # it overlaps completely with a step
    predicts 3500 diloco $base --period 4
    predicts 5020 ssgd --profile p.csv --net 400kbit,10ms --workers 2  # two delays
    predicts 6000 ssgd --profile p.csv --net 400kbit --workers 4       # 1.5 times the bytes
    has '"strategy": "ssgd", "options": "", "step_ms": 5000, "utilisation_pct": 60, "bytes_per_step": 100000,' $base
    has '"options": "--overlap stream --period 2", "step_ms": 3000, "utilisation_pct": 100,' $base
    # half of the time computing: 100 KB in 3 s; never 99 % where two delays take a second
    has '"50": 0.26' $base
    has '"99": null' --profile p.csv --net 400kbit,500ms --workers 2
    # the strategy closest to S-SGD that is fast enough: mgwfbp has a utilisation of 79 %, averages 95 %
    has '"choose": "mgwfbp", "options": ""' $base --utilisation 75
    has '"choose": "enp", "options": "--period 5"' $base --utilisation 90
    has '"choose": "ssgd"' --profile p.csv --net 1gbit --workers 2
    # 200 bit/s: not even sparse changes in every step are few enough
    has 'no strategy reaches a utilisation of 99 %' --profile p.csv --net 200bit --workers 2 --utilisation 99 --period 1
    has '"choose": ' --model resnet18 --speed 5 --net 1gbit,1ms --workers 4
    "$plan" choose $base --json p.json --svg p.svg >out 2>err
    [ "$(grep -c '<path fill="none"' p.svg)" -eq 19 ]
    result $? "plan choose: --svg draws 19 curves" "$(cat err)"
    "$plan" choose $base --svg d.svg --draw 'ssgd,dreamddp,diloco --overlap stream' >out 2>err
    [ "$(grep -c '<path fill="none"' d.svg)" -eq 3 ]
    result $? "plan choose: --draw draws the named strategies" "$(cat err)"
    [ "$(grep -c '"event": "prediction"' p.json)" -eq 19 ] && grep -q '"event": "choice"' p.json
    result $? "plan choose: --json writes 19 predictions and the choice"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,xml.dom.minidom as x
[json.loads(l) for f in ("p.json", "out") for l in open(f)]; x.parse("p.svg")'
        result $? "plan choose: JSON and SVG are well-formed"
        python3 -c 'import json
a = [json.loads(l) for l in open("out")][:-1]; a.sort(key=lambda r: r["rank"])
assert [r["rank"] for r in a] == list(range(1, 20)) and all(p["step_ms"] <= q["step_ms"] for p, q in zip(a, a[1:]))'
        result $? "plan choose: ranks are in the order of step times"
        python3 -c 'import json
a, b = [json.loads(list(open(f))[-1])["auto"] for f in ("p.json", "out")]
n = [c["seconds"] for c in a["candidates"] if c["within_budget"]]
assert len(a["candidates"]) > 10 and n == sorted(n) and a["strategy"] == b["strategy"] and "candidates" not in b
assert a["runner_up"]["strategy"] != a["strategy"] and a["ssgd_seconds"] == 5000'
        result $? "plan choose: --json writes the candidates of auto, the fastest first"
    fi
    # computing 3 s for 80 % leaves 0.75 s for 100 KB: 1.07 Mbit/s, and 0.33 s for 90 %: 2.4, found to 1 %
    has '"80": 1.07, "90": 2.4' $base
    has 'choose --strategy mgwfbp' $base --utilisation 75 --text
    "$plan" choose $base --text | awk 'NR == 2 { ok = $1 == "strategy" } NR > 2 && NR < 22 { ok = ok && $(NF - 7) >= last; last = $(NF - 7) }
        END { exit !ok || NR < 22 }'
    result $? "plan choose: --text prints rows in the order of step times"

    says 2 'either --profile or --model is needed' --net 1mbit --workers 2
    says 2 'either --profile or --model is needed' $base --model gpt2 --speed 1
    says 2 '--draw sgd names no strategy' $base --draw sgd
    says 2 '--model needs --speed TFLOPS' --model gpt2 --net 1mbit --workers 2
    says 2 '--speed is 0, but must be above 0' --model gpt2 --speed 0 --net 1mbit --workers 2
    says 2 '--profile and --speed cannot be combined' $base --speed 1
    says 2 '--net RATE,DELAY is needed' --profile p.csv --workers 2
    says 2 '--net needs a rate above 0' --profile p.csv --workers 2 --net 0
    says 2 '--workers is 1, but must be from 2' --profile p.csv --net 1mbit --workers 1
    says 2 '--utilisation is 100, but must be above 0 and below 100' $base --utilisation 100
    says 2 '--period is 0, but must be at least 1; leave it out' $base --period 0
    says 2 '--batch is 0, but must be at least 1; leave it out' --model mlp --speed 1 --net 1mbit --workers 2 --batch 0
    says 2 "model 'gpt9' is unknown" --model gpt9 --speed 1 --net 1mbit --workers 2
    says 1 'cannot read absent.csv' --profile absent.csv --net 1mbit --workers 2
    printf 'layer,forward_s,backward_s,comm_s\na,1,1,1\n' >bare.csv
    says 1 'column params is missing' --profile bare.csv --net 1mbit --workers 2
    # strategy auto: wfbp takes 5 s, dreamddp with H = 2 in int8 3.1 s for 1 / 1.026^(1 / 0.148) of the progress of a step
    says 2 '--loss-budget is -0.01, but must be from 0 to 1' $base --loss-budget -0.01
    says 2 '--loss-budget is 1.5, but must be from 0 to 1' $base --loss-budget 1.5
    says 2 '--steps is 0, but must be from 1' $base --steps 0
    says 1 'cannot read absent.csv' $base --loss-table absent.csv
    printf 'strategy,workers,steps,loss\nssgd,2,400,no\n' >l.csv
    says 1 "l.csv, line 2: loss is 'no'; a number from 1e-09 to 1e9 is needed" $base --loss-table l.csv
    has '"auto": {"strategy": "wfbp", "options": "", "step_ms": 5000, ' $base --loss-budget 0
    has '"loss_pct": 0, "steps": 400, "seconds": 2000, "within_budget": 1, "ssgd_seconds": 2000, ' $base --loss-budget 0 --steps 400
    has 'of the strategies that are bit-identical to ssgd' $base --loss-budget 0
    has '"auto": {"strategy": "dreamddp", "options": "--wire int8 --period 2", ' $base --steps 400
    has '"loss_pct": 2.611' $base --steps 400
    has 'auto --strategy dreamddp --wire int8 --period 2' $base --steps 400 --text
    # a table in which dreamddp costs nothing, and one in which it costs all
    printf 'strategy,workers,steps,loss,period\nssgd,2,400,2\nssgd,2,800,1\ndreamddp,2,400,2,20\n' >l.csv
    says 1 'l.csv, line 2: column period is missing; the line has only 4 fields' $base --loss-table l.csv
    printf 'strategy,workers,steps,loss,period\nssgd,2,400,2,\nssgd,2,800,1,\ndreamddp,2,400,2,20\n' >l.csv
    has '"auto": {"strategy": "dreamddp", "options": "--period 50", ' $base --loss-table l.csv --steps 400
    printf 'strategy,workers,steps,loss,period\nssgd,2,400,2,\nssgd,2,800,1,\ndreamddp,2,400,9,20\n' >l.csv
    has '"auto": {"strategy": "wfbp", ' $base --loss-table l.csv --steps 400 --loss-budget 1
    "$plan" choose $base >built 2>err && "$plan" choose $base --loss-table "$root/bench/loss_table.csv" >own 2>>err && cmp -s built own
    result $? "plan choose: bench/loss_table.csv is the built-in table" "$(cat err)"
    if command -v python3 >/dev/null; then
        "$root/tools/loss_table.py" --check >out
        result $? "tools/loss_table.py --check: src/plan/loss_table.h is current" "$(cat out)"
        printf 'model,workers,steps,strategy,period,wire,rate,seed,step,val_loss\n' >r.csv
        printf 'gpt,4,400,ssgd,0,f32,0.1,%d,400,%s\n' 1 2.0 2 2.2 >>r.csv
        printf 'gpt,4,400,ssgd,0,f32,0.2,%d,400,%s\n' 1 1.5 2 nan >>r.csv
        printf 'gpt,4,400,stream,5,int8,0.1,1,%d,%s\n' 200 9 400 2.5 >>r.csv
        printf 'gpt,8,400,stream,5,int8,0.1,1,400,2.5\nmlp,4,400,ssgd,0,f32,0.1,1,400,1\ngpt,4,400,eager,5,f32,0.1,1,400,3\n' >>r.csv
        "$root/tools/loss_table.py" --runs r.csv --out t.csv && [ "$(cut -d, -f1-7 t.csv | tail -n +2)" = \
            "$(printf 'diloco,stream,5,4,int8,400,2.5000\nssgd,none,0,4,f32,400,2.1000')" ]
        result $? "tools/loss_table.py --runs: means of the seeds at the best rate" "$(cat t.csv)"
        printf 'model,workers,steps,strategy,period,wire,rate,seed,step,val_loss\n' >h.csv
        printf 'gpt,4,%d,ssgd,0,f32,0.1,%d,%d,%s\n' 400 1 400 2 400 2 400 2 800 1 800 1.8 800 2 800 1.8 >>h.csv
        printf 'gpt,4,400,dreamddp,5,f32,0.1,%d,400,%s\n' 1 2.1 2 2.16 >>h.csv
        PLAN="$plan" "$root/tools/loss_table.py" --held-out h.csv >out 2>err && grep -qF '|2|dreamddp|none|5|4|f32|400|5.00 %|8.00 %|' out &&
            grep -q 'error of 2 predictions: 3.00 points on average, at most 3.00' out
        result $? "tools/loss_table.py --held-out: a seed is predicted from the others" "$(cat out err)"
    fi
    sub=bandwidth
    link="--profile p.csv --workers 2"
    # of ssgd as above; averages of every second step need half of that; streams need the whole period for theirs
    has '{"strategy": "ssgd", "options": "", "rank": ' $link
    has '"mbit_for_pct": {"50": 0.267, "80": 1.07, "90": 2.41' $link
    has '"strategy": "localsgd", "options": "--period 2", "rank": ' $link --period 2
    has '"mbit_for_pct": {"50": 0.134, "80": 0.535, "90": 1.2' $link --period 2
    has '"99": null' $link --delay 500ms
    "$plan" bandwidth $link --text >out 2>err && [ "$(wc -l <out)" -eq 21 ] && sed -n 3p out | grep -q '^sparseloco  *50  *3.9e-05'
    result $? "plan bandwidth: --text prints a table" "$(cat out)"
    "$plan" bandwidth $link --svg b.svg >out 2>err && [ "$(grep -c '<path fill="none"' b.svg)" -eq 19 ] && ! grep -q 'red: the link' b.svg
    result $? "plan bandwidth: --svg draws 19 curves and no link" "$(cat err)"
    says 2 'either --profile or --model is needed' --workers 2
    says 2 '--workers N is needed, from 2' --profile p.csv
    says 2 '--delay soon is not a time such as 20ms' $link --delay soon
    says 2 '--delay -1ms is not a time such as 20ms' $link --delay -1ms
    says 2 '--net' $link --net 1gbit
    sub=choose
    "$plan" choose $base --json absent/p.json >out 2>err
    [ $? -eq 1 ] && [ ! -s out ] && grep -q 'cannot write absent/p.json' err
    result $? "plan choose: an unwritable --json fails with 1" "$(cat err)"
}

close
