#!/bin/sh
# build/plan place: its JSON, its files, its errors and exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=place
. "$root/tests/plan/plan_cli.sh"

# Two machines of two devices: 8 Gbit/s and no delay inside, 0.8 Gbit/s and 1 s between. 1e8 bytes:
# a stage per machine averages in 2 x 0.05 s and hops in 2 x (1 + 1); a pipeline per machine
# averages in 2 x (1 + 0.5) and hops in 2 x 0.1 s: 3.2 s. "fast": no delay, 1.2 s.
cat >net.json <<'JSON'
{"N": 4, "D_dp": 2, "D_pp": 2, "c_pp_bytes": 1e8, "c_dp_bytes": 1e8, "groups": ["a & b", "c"],
 "devices_per_group": [2, 2], "delay_ms": [[0, 1000], [1000, 0]],
 "bandwidth_gbps": [[8, 0.8], [0.8, 8]], "fast": {"delay_ms": [[0, 0], [0, 0]]}}
JSON
base="--network net.json"
# shellcheck disable=SC2086
{
    for solver in anneal genetic genetic-code kl exact; do
        has "\"solver\": \"$solver\", \"cost_s\": 3.2" $base --solver $solver --candidates 200
    done
    has '"datap_s": 3, "pipelinep_s": 0.2, "assign": [[' $base
    has '"proven": true, "solve_s": ' $base
    has '"cost_s": 1.2' $base --variant fast
    has '"solver": "random"' $base --solver random --candidates 10
    has '"pipelinep_s": 0,' $base --pipelines 4
    has '"datap_s": 0,' $base --stages 4
    has 'usage: plan place' --help
    "$plan" place $base --solver kl --candidates 150 --seed 5 | sed 's/"solve_s.*//' >one
    "$plan" place $base --solver kl --candidates 150 --seed 5 | sed 's/"solve_s.*//' >two
    { [ -s one ] && cmp -s one two; }
    result $? "plan place: the same seed gives the same placement"

    has '"solver": "exact"' $base --solver all --candidates 150 --svg p.svg --json p.json
    [ "$(wc -l <out)" -eq 6 ]
    result $? "plan place: --solver all prints six lines"
    [ "$(grep -c '"event": "plan"' p.json)" -eq 6 ]
    result $? "plan place: --json writes six events"
    { grep -q '^<svg xmlns' p.svg && grep -q '</svg>$' p.svg; }
    result $? "plan place: --svg writes a whole picture"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,sys,xml.dom.minidom as x
[json.loads(l) for l in open("p.json")]; x.parse("p.svg")
for l in open("out"):
    r = json.loads(l); assert sorted(sum(r["assign"], [])) == [0, 1, 2, 3], r
    assert len(r["assign"]) == 2 and abs(r["cost_s"] - r["datap_s"] - r["pipelinep_s"]) < 1e-9'
        result $? "plan place: JSON and SVG are well-formed, and placements are complete"
    fi

    # noise: other links, so another cost, the same one every time; every solver has its curve
    "$plan" place $base --noise 1 --svg p.svg --solver all >out 2>err
    "$plan" place $base --noise 1 >again 2>>err
    cost() { sed -n '1s/.*"cost_s": \([0-9.]*\).*/\1/p' "$1"; }
    [ "$(cost out)" = "$(cost again)" ] && [ "$(cost out)" != 3.2 ]
    result $? "plan place: --noise 1 gives another cost, the same one each time" "$(cost out), then $(cost again) $(cat err)"
    [ "$(grep -c '<path' p.svg)" -eq 6 ]
    result $? "plan place: --solver all --svg draws six curves"
    ! grep -q nan p.svg
    result $? "plan place: --svg has no nan"
    echo '{"N": 1, "D_dp": 1, "D_pp": 1, "c_pp_bytes": 1, "c_dp_bytes": 1, "delay_ms": [[0]], "bandwidth_gbps": [[0]]}' >one.json
    "$plan" place --network one.json --svg one.svg >out 2>err && ! grep -q nan one.svg
    result $? "plan place: one device has a picture without nan" "$(cat err)"

    says 2 '--network FILE is needed'
    says 1 'cannot read absent.json' --network absent.json
    says 2 "solver 'best' is unknown; use anneal, genetic, genetic-code, kl, random or exact" $base --solver best
    says 2 "net.json has no variant 'slow'; it has: fast" $base --variant slow
    says 2 '4 devices are not D_dp x D_pp = 3 x 1' $base --pipelines 3
    says 2 '4 devices are not D_dp x D_pp = 2 x 3' $base --pipelines 2 --stages 3
    says 2 '--seconds is -1, but must be more than 0' $base --seconds -1
    says 2 '--seconds is 0, but must be more than 0; leave it out' $base --seconds 0
    says 2 '--candidates is 0, but must be at least 1' $base --candidates 0
    says 2 '--pipelines is 0, but must be at least 1' $base --pipelines 0
    says 2 '--stages is 0, but must be at least 1' $base --stages 0
    says 2 '--dp-bytes is -1, but must be at least 0' $base --dp-bytes -1
    says 2 '--pp-bytes is -1, but must be at least 0' $base --pp-bytes -1
    says 2 '--seconds long is not a number' $base --seconds long
    says 2 'unknown option --sead' $base --sead 3
    sed 's/"N": 4/"N": 5/' net.json >five.json
    says 2 'five.json: N is 5, but the groups have 4 devices' --network five.json
    sed 's/"D_dp": 2/"D_dp": 3/' net.json >three.json
    says 2 '4 devices are not D_dp x D_pp = 3 x 2 = 6' --network three.json
    sed 's/\[8, 0.8\]/[8]/' net.json >ragged.json
    says 1 '"bandwidth_gbps" is not square: row 0 has 1 numbers, not 2' --network ragged.json
    sed 's/\[8, 0.8\]/[8, 0]/' net.json >cut.json
    says 2 'device 0 to device 2 carries 0 bytes/s; every pair must be connected' --network cut.json
    sed 's/"c_pp_bytes": 1e8, //' net.json >forgot.json
    says 1 '"c_pp_bytes" is missing' --network forgot.json
    echo '{"delay_ms": [[0, 1], [1, 0]], "bandwidth_gbps": [[0, 1], [1, 0]]}' >bare.json
    says 1 'has neither c_dp_bytes nor c_pp_bytes' --network bare.json --stages 2
    echo '{"N": 4' >torn.json
    says 1 'torn.json, line' --network torn.json
    "$plan" place $base --svg absent/p.svg >out 2>err
    [ $? -eq 1 ] && grep -q 'cannot write absent/p.svg' err
    result $? "plan place: an unwritable --svg fails with 1" "$(cat err)"
    if [ -w /dev/full ]; then
        "$plan" place $base >/dev/full 2>err
        [ $? -eq 1 ] && grep -q 'cannot write the result' err
        result $? "plan place: a full disk fails with 1" "$(cat err)"
    fi
}

close
