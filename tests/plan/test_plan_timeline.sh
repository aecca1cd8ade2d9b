#!/bin/sh
# build/plan timeline: its JSON, its files, its errors and exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
vgg=$root/tests/data/vgg19_table2.csv
sub=timeline
. "$root/tests/plan/plan_cli.sh"

# takes SCHEME MS ARGS...: the iteration in milliseconds with one decimal
takes() {
    scheme=$1 want=$2
    shift 2
    "$plan" timeline --scheme "$scheme" "$@" >out 2>err
    got=$(sed 's/.*"iteration_s": \([^,]*\),.*/\1/' out | awk '{ printf "%.1f", $1 * 1000 }')
    [ "$got" = "$want" ]
    result $? "plan $(of timeline --scheme "$scheme" "$@") takes $want ms" "it takes $got ms $(cat err)"
}

# backward of both rows 10 s; row 1 (output side) is sent in 4 s, row 0 in 6 s: 10..14 and 20..26
printf 'layer,params,forward_s,backward_s,comm_s\nin,6,1,10,6\nout,4,2,10,4\n' >p.csv
printf 'layer,params,backward_s\nin,1000000,1\nout,1000000,1\n' >net.csv
has '{"scheme": "ssgd", "iteration_s": 33, "lower_bound_s": 23, "buckets": 2, "operations": 2, "solve_ms": ' \
    --profile p.csv --scheme ssgd
has '"scheme": "wfbp", "iteration_s": 29,' --profile p.csv --scheme wfbp
has '"scheme": "mgwfbp", "iteration_s": 29,' --profile p.csv --scheme mgwfbp --alpha 3
has '"scheme": "ascwfbp", "iteration_s": 29,' --profile p.csv --scheme ascwfbp --operations 2
has '"scheme": "bytescheduler", "iteration_s": 29, "lower_bound_s": 23, "buckets": 2, "operations": 5,' \
    --profile p.csv --scheme bytescheduler --partition 2
has '"scheme": "bytescheduler", "iteration_s": 29,' --profile p.csv --scheme bytescheduler --partition-s 2 --credit 4
has '"operations": 2,' --profile p.csv --scheme usbyte
# both rows are one bucket of 40 bytes, ready at 20: 20..30
has '"scheme": "wfbp", "iteration_s": 33, "lower_bound_s": 23, "buckets": 2, "operations": 1,' \
    --profile p.csv --scheme wfbp --bucket-mib 25
# 2 (4-1)/4 x 4 MB over 12.5 MB/s = 0.48 s to send each, two delays of 20 ms: 1..1.52, 2..2.52
has '"scheme": "wfbp", "iteration_s": 2.52,' --profile net.csv --scheme wfbp --net 100mbit,20ms --workers 4
has 'usage: plan timeline' --help

# DeFT (arXiv:2503.03310), Table II; the bucket sizes are 6.5e6 parameters per 11.3 ms
takes ssgd 378.0 --profile "$vgg"
takes wfbp 285.1 --profile "$vgg"
takes mgwfbp 285.1 --profile "$vgg"
takes ascwfbp 285.1 --profile "$vgg"
takes bytescheduler 248.3 --profile "$vgg"
takes usbyte 248.3 --profile "$vgg"
takes bytescheduler 248.3 --profile "$vgg" --partition-s 0.0113
awk -F, 'NR == 1 { print; next } { printf "%s,%s,%s,%s,%.7f\n", $1, $2, $3, $4, $5 / 2 }' "$vgg" >half.csv
takes ssgd 254.1 --profile half.csv
takes wfbp 161.2 --profile half.csv
takes bytescheduler 139.4 --profile half.csv
takes usbyte 133.3 --profile half.csv
takes usbyte 134.1 --profile half.csv --partition-s 0.0113
if "$plan" timeline --profile "$vgg" --scheme all --mu 1.65 --svg all.svg --json all.json >out 2>err; then
    schemes=$(sed 's/.*"scheme": "\([a-z]*\)".*/\1/' out | tr '\n' ' ')
    [ "$schemes" = "ssgd wfbp mgwfbp ascwfbp bytescheduler usbyte deft " ]
    result $? "plan timeline: --scheme all prints seven schemes" "$schemes"
    [ "$(grep -c '"event": "plan"' all.json)" -eq 7 ]
    result $? "plan timeline: --json writes seven events"
    { grep -q '^<svg xmlns' all.svg && grep -q '</svg>$' all.svg; }
    result $? "plan timeline: --svg writes a whole picture"
    [ "$(grep -c '<title>forward of' all.svg)" -eq 42 ]
    result $? "plan timeline: --svg draws 7 forwards of 6 buckets"
    grep -q 'class="end">130 ms, 0.8 updates per iteration<' all.svg
    result $? "plan timeline: --svg draws lanes of deft"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,xml.dom.minidom as x
[json.loads(l) for l in open("all.json")]; [json.loads(l) for l in open("out")]; x.parse("all.svg")'
        result $? "plan timeline: JSON and SVG are well-formed"
    fi
else bad "plan timeline: --scheme all prints seven schemes" "$(cat err)"; fi
takes deft 130.3 --profile "$vgg" --mu 1.65
grep -q '"links": 2, .* "update_frequency": 0.8, "k": \[1, 1, 1, 2\]' out
result $? "plan timeline: deft on two links updates 0.8 times per iteration" "$(cat out)"
# the schedule: each of 24 parts once for each of the 4 updates of the period
"$plan" timeline --scheme deft --profile "$vgg" --mu 1.65 --schedule >out 2>err
python3 -c 'import json; d = json.loads(open("out").read()); s = d["schedule"]
steady = s[d["warmup"]:]; sends = [x for t in steady for x in t["sends"]]
assert len(s) == d["warmup"] + d["period"] and sum(d["parts_of"]) == d["parts"] == 24 and len(sends) == 24 * len(d["k"])
assert sorted(k for t in steady for k in (t["applied"], t["applied_now"]) if k) == sorted(d["k"])' 2>>err
result $? "plan timeline: --schedule sends each part once for each update" "$(cat err)"
takes deft 130.3 --profile "$vgg" --links 1
grep -q '"update_frequency": 0.5, "k": \[2\], .* "parts": 24,' out
result $? "plan timeline: deft on one link updates every second iteration" "$(cat out)"
takes deft 131.9 --profile "$vgg" --mu 1.65 --select paper
takes deft 154.6 --profile "$vgg" --mu 1.65 --target-frequency 1
takes deft 154.3 --profile "$vgg" --mu 1.65 --target-frequency 1 --no-barrier
# printed, backward lasts until 24 although it computes until 20; the next forward begins there
printf 'layer,params,forward_s,backward_s,comm_s\na,1,5,10,4\nb,1,5,10,4\n' >late.csv
"$plan" timeline --profile late.csv --links 1 --select paper --svg late.svg >out 2>err
grep -q 'forward of a, 5 s from 24 s' late.svg
result $? "plan timeline: deft's next forward waits for the end of the stage" "$(cat err)"
# one scheme that cannot be planned does not keep the others back
"$plan" timeline --profile p.csv --alpha 2 --partition-s 1 --svg some.svg >out 2>err
[ $? -eq 0 ] && [ "$(wc -l <out)" -eq 4 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q 'bytescheduler, usbyte, deft: a partition of 1 s' err &&
    grep -q '>ascwfbp<' some.svg
    result $? "plan timeline: schemes that cannot be planned do not stop the others" "$(cat out err)"
printf 'layer,params,forward_s,backward_s,comm_s\nin,0,1,10,6\n' >zero.csv
"$plan" timeline --profile zero.csv >out 2>err
grep -q 'usbyte: no bucket.*give the partition in seconds (--partition-s)' err
result $? "plan timeline: the error names the option --partition-s" "$(cat err)"
says 2 'shorter than the startup --alpha of 7 s' --profile p.csv --alpha 7
says 2 'not longer than the startup' --profile p.csv --scheme deft --alpha 2 --partition-s 1
says 2 'shorter than the startup' --profile p.csv --scheme deft --alpha 5

says 2 '--profile FILE is needed'
says 2 "scheme 'gpipe' is unknown; use ssgd, wfbp" --profile p.csv --scheme gpipe
says 2 '--workers is 1, but must be at least 2' --profile p.csv --net 1mbit --workers 1
says 2 '--mu is 0.5, but must be at least 1' --profile p.csv --mu 0.5
says 2 '--mu nan is not a number' --profile p.csv --mu nan
says 2 '--links is 3, but must be 1 or 2' --profile p.csv --links 3
says 2 '--links is 0, but must be 1 or 2' --profile p.csv --links 0
says 2 '--links 2 needs --mu X' --profile p.csv --links 2
says 2 '--alpha is -1, but must be at least 0' --profile p.csv --alpha -1
says 2 '--partition is 0, but must be above 0' --profile p.csv --partition 0
says 2 '--partition-s is -3, but must be above 0' --profile p.csv --partition-s -3
says 2 'cannot be combined' --profile p.csv --partition-s 3 --partition 3
says 2 '--credit is 0, but must be above 0' --profile p.csv --credit 0
says 2 '--operations is 0, but must be at least 1' --profile p.csv --operations 0
says 2 "selection 'fast' is unknown" --profile p.csv --select fast
says 2 'unknown option --parition' --profile p.csv --parition 3
says 2 'shorter than the startup --alpha of 5 s' --profile p.csv --scheme wfbp --alpha 5
says 2 'not longer than the startup' --profile p.csv --scheme usbyte --alpha 2 --partition-s 1
says 2 'cannot be planned, raise it' --profile p.csv --scheme usbyte --partition-s 1e-9
says 2 '--net needs --workers' --profile p.csv --net 1mbit
says 2 '--workers needs --net' --profile p.csv --workers 0
says 1 'cannot read absent.csv' --profile absent.csv
says 1 'line 2: comm_s is empty' --profile net.csv
printf 'layer,params,backward_s,comm_s\na,1,-2,3\n' >neg.csv
says 1 'neg.csv, line 2: backward_s is -2' --profile neg.csv
printf 'layer,params,backward_s,comm_s\na,0,2,3\n' >bare.csv
says 2 'no bucket that sends has params' --profile bare.csv --scheme usbyte
: >empty.csv
says 1 'empty.csv is empty' --profile empty.csv
"$plan" timeline --profile p.csv --alpha 7 >out 2>err
[ $? -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q 'ssgd, wfbp, mgwfbp.*deft: ' err
result $? "plan timeline: an error that all schemes share is one line" "$(cat err)"
"$plan" timeline --profile p.csv --scheme wfbp --svg absent/p.svg >out 2>err
[ $? -eq 1 ] && [ ! -s out ] && grep -q 'cannot write absent/p.svg' err
result $? "plan timeline: an unwritable --svg fails with 1" "$(cat err)"
if [ -w /dev/full ]; then
    "$plan" timeline --profile p.csv --scheme wfbp >/dev/full 2>err
    [ $? -eq 1 ] && grep -q 'cannot write the result' err
    result $? "plan timeline: a full disk fails with 1" "$(cat err)"
fi

close
