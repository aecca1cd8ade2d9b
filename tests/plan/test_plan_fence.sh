#!/bin/sh
# build/plan fence: its JSON, its files, its errors and exit codes. Ends with the counts of tests.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=fence
. "$root/tests/plan/plan_cli.sh"

# four operators of 10 TFLOP, results of 1 GB, 2 GB, 1 GB, 1 GB; two devices of 10 and 30 TFLOP/s
# that are 1 s and 1 GB/s apart
cat >g.json <<'END'
[{"name": "a", "args": [], "flops": 1e13, "output_bytes": 1e9, "param_bytes": 1e9},
 {"name": "b", "args": ["a"], "flops": 1e13, "output_bytes": 2e9, "param_bytes": 1e9},
 {"name": "c", "args": ["b"], "flops": 1e13, "output_bytes": 1e9, "param_bytes": 1e9},
 {"name": "d <&>", "args": ["c"], "flops": 1e13, "output_bytes": 1e9}]
END
cat >net.json <<'END'
{"N": 2, "groups": ["slow", "fast"], "devices_per_group": [1, 1], "tflops": [10, 30],
 "memory_gb": [100, 100], "delay_ms": [[0, 1000], [1000, 0]], "bandwidth_gbps": [[0, 8], [8, 0]]}
END
base="--graph g.json --network net.json"
# shellcheck disable=SC2086
{
    # equal_ops cuts at b: C = 6, 2 and R = 3, 3; fence gives the slow device d alone: C = 3, 3, R = 2, 2
    has '"solver": "equal_ops", "allow_idle": false, "operators": 4, "devices": 2, "devices_used": 2' $base --solver equal_ops
    has '"latency_s": 14, "pipeline_s": 14, "throughput": 0.07142857142857142' $base --solver equal_ops
    has '"latency_s": 14, "pipeline_s": 32, "throughput": 0.125' $base --solver equal_ops --microbatches 4
    has '"latency_s": 10, "pipeline_s": 19, "throughput": 0.21052631578947367, "proven": true' $base --microbatches 4
    has '"segments": [{"device": 1, "first": 0, "end": 3, "compute_s": 3, "receive_s": 2, "memory_gb": 28}, {"device": 0, "first": 3, "end": 4,' $base --microbatches 4
    has '"throughput": 1.6842105263157894' $base --microbatches 4 --batch 8
    has '"allow_idle": true, "operators": 4, "devices": 2, "devices_used": 1, "clusters": 1, "latency_s": 4' $base --allow-idle
    has '"param_bytes": 3000000000, "solve_ms"' $base
    has '"latency_s": 4, "pipeline_s": 4' $base --forward-only # C = 1, 1 and R = 0, 2
    has 'usage: plan fence' --help

    has '"solver"' $base --solver all --svg p.svg --json p.json
    [ "$(wc -l <out)" -eq 4 ]
    result $? "plan fence: --solver all prints four lines"
    [ "$(grep -c '"event": "plan"' p.json)" -eq 4 ]
    result $? "plan fence: --json writes four events"
    { grep -q '^<svg xmlns' p.svg && grep -q '</svg>$' p.svg; }
    result $? "plan fence: --svg writes a whole picture"
    grep -q 'd &lt;&amp;>' p.svg
    result $? "plan fence: --svg escapes names"
    if command -v python3 >/dev/null; then
        python3 -c 'import json,sys,xml.dom.minidom as x
[json.loads(l) for l in open("p.json")]; [json.loads(l) for l in open("out")]; x.parse("p.svg")'
        result $? "plan fence: JSON and SVG are well-formed"
    fi

    # a graph's modules: c and d are one, so that equal_ops cuts before it
    sed '3,4s/"args"/"module": "m", "args"/' g.json >modules.json
    has '{"device": 0, "first": 0, "end": 2,' --graph modules.json --network net.json --solver equal_flops
    sed '2,4s/"args"/"module": "m", "args"/' g.json >modules.json
    has '{"device": 0, "first": 0, "end": 1,' --graph modules.json --network net.json --solver equal_ops
    sed 's/"args"/"module": "m", "args"/' g.json >modules.json
    says 1 'equal_ops: 1 modules cannot give each of 2 devices one' --graph modules.json --network net.json --solver equal_ops
    sed 's/"args"/"module": 3, "args"/' g.json >modules.json
    says 1 'module' --graph modules.json --network net.json

    # the order of the paper's figure 10 on the stand-in testbed, every line exact
    data=$root/tests/data
    has '"proven": true, "connected": true' --model gpt2-xl --network "$data/testbed24.json" --microbatches 2
    has '"solver": "equal_flops"' --model gpt2-xl --network "$data/testbed24.json" --microbatches 2 --solver all
    awk -F'"pipeline_s": ' '{ split($2, p, ","); t[NR] = p[1] }
        END { exit !(NR == 4 && t[2] <= t[1] && t[3] < 0.97 * t[2] && t[4] < t[3] / 2) }' out
    result $? "plan fence: fence is faster than the baselines on the testbed" "$(cut -c1-200 out)"
    has '"solver": "fence"' --model resnet18 --network "$data/testbed24.json" --microbatches 5 --solver all
    [ "$(wc -l <out)" -eq 2 ] && grep -q 'equal_flops: 21 modules cannot give each of 24 devices one.*skipped' err
    result $? "plan fence: equal_flops is left out where 21 modules are too few for 24 devices" "$(cut -c1-200 out err)"

    # a model's file gives the same plan
    "$plan" fence --model resnet18 --batch 4 --write-graph model.json >out 2>err && [ ! -s out ]
    result $? "plan fence: --write-graph writes the graph and prints nothing" "$(cat out err)"
    "$plan" fence --model resnet18 --batch 4 --network net.json --solver equal_ops >one 2>err
    "$plan" fence --graph model.json --batch 4 --network net.json --solver equal_ops >two 2>err
    sed 's/"solve_ms": .*//' one >one.cut
    sed 's/"solve_ms": .*//' two | cmp -s - one.cut && [ -s one.cut ]
    result $? "plan fence: a written graph gives the same plan" "$(cat one two err)"
    says 2 '--write-graph needs --model NAME' --graph g.json --write-graph again.json
    says 1 'absent/g.json' --model mlp --write-graph absent/g.json

    says 2 'one of --model NAME and --graph FILE is needed' --network net.json
    says 2 'one of --model NAME and --graph FILE is needed' --model gpt2 $base
    says 2 '--network FILE is needed' --graph g.json
    says 2 '--microbatches is 0, but must be from 1 to 1000000' $base --microbatches 0
    # the same plan with shorter messages; the dense figures stay
    has '"compressed": {"latency_s": ' $base --compress 100
    "$plan" fence $base >out 2>err && "$plan" fence $base --compress 1 --factor 1 >again 2>err
    sed 's/"compressed": {[^}]*}, //; s/"solve_ms": .*//' again >plain
    sed 's/"solve_ms": .*//' out | cmp -s - plain
    result $? "plan fence: --compress 1 keeps the plan"
    [ "$(sed 's/.*"latency_s": \([0-9.]*\), "pipeline_s": .*"compressed".*/\1/' again)" = \
      "$(sed 's/.*"compressed": {"latency_s": \([0-9.]*\).*/\1/' again)" ]
    result $? "plan fence: --compress 1 has the dense latency" "$(cat again)"
    says 2 '--compress is 0.5, but must be at least 1' $base --compress 0.5
    says 2 '--compress is 0, but must be at least 1; leave it out' $base --compress 0
    says 2 '--factor is 0, but must be more than 0' $base --compress 10 --factor 0
    says 2 '--factor and --uniform need --compress R' $base --factor 0
    says 2 '--factor and --uniform need --compress R' $base --uniform
    says 2 '--factor is -1, but must be more than 0' $base --compress 10 --factor -1
    says 2 "solver 'fast' is unknown; use fence, equal_ops or equal_flops" $base --solver fast
    says 2 'unknown option --microbatch' $base --microbatch 3
    says 2 "model 'gpt9' is unknown" --model gpt9 --network net.json
    says 1 'cannot read absent.json' --graph absent.json --network net.json
    says 1 'cannot read absent.json' --graph g.json --network absent.json
    printf '[{"name": "a", "args": ["b"], "flops": 1, "output_bytes": 1}]' >loop.json
    says 1 "argument 'b' names no operator" --graph loop.json --network net.json
    printf '[{"name": "a", "args": [], "flops": 1, "output_bytes": 1}]' >one.json
    says 2 '1 operators cannot give each of 2 devices one' --graph one.json --network net.json
    sed 's/, "tflops": \[10, 30\]//' net.json >blind.json
    says 2 '"tflops"' --graph g.json --network blind.json
    says 2 '--batch is 0, but must be at least 1' $base --batch 0
    sed 's/\[100, 100\]/[1, 2]/' net.json >small.json
    says 1 'no cut fits into memory' --graph g.json --network small.json
    says 1 'equal_ops: device 0 needs' --graph g.json --network small.json --solver equal_ops
    has '"solver": "fence"' --graph g.json --network small.json --no-memory
    "$plan" fence $base --svg absent/p.svg >out 2>err
    [ $? -eq 1 ] && grep -q 'cannot write absent/p.svg' err
    result $? "plan fence: an unwritable --svg fails with 1" "$(cat err)"
    if [ -w /dev/full ]; then
        "$plan" fence $base >/dev/full 2>err
        [ $? -eq 1 ] && grep -q 'cannot write the result' err
        result $? "plan fence: a full disk fails with 1" "$(cat err)"
    fi
}

close
