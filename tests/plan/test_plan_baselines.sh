#!/bin/sh
# build/plan baselines: compares steps with sums by hand and its search with a brute-force one; checks errors and exit codes.
root=$(cd "$(dirname "$0")/../.." && pwd)
sub=baselines
. "$root/tests/plan/plan_cli.sh"

# links of 200 bytes a second and half a second, which is a sequence of 10 tokens x 10 values; a layer's forward is 1 s
# for it, a backward with the forward again 3 s; 2 layers and the positions are 2 x 1330 + 100 parameters
gpt="--layers 2 --dim 10 --heads 2 --seq 10 --vocab 0 --peak 2.8e-8 --share 1"
echo '{"N": 2, "c_dp_bytes": 0, "c_pp_bytes": 0, "D_dp": 1, "D_pp": 2, "delay_ms": [[0, 500], [500, 0]], "bandwidth_gbps": [[0, 1.6e-6], [1.6e-6, 0]]}' >two.json
echo '{"N": 4, "c_dp_bytes": 0, "c_pp_bytes": 0, "D_dp": 2, "D_pp": 2, "groups": ["all"], "devices_per_group": [4], "delay_ms": [[500]], "bandwidth_gbps": [[1.6e-6]]}' >four.json
# two machines of two devices, twice as fast inside
echo '{"N": 4, "c_dp_bytes": 0, "c_pp_bytes": 0, "D_dp": 2, "D_pp": 2, "groups": ["a", "b"], "devices_per_group": [2, 2], "delay_ms": [[0, 0], [0, 0]],
 "bandwidth_gbps": [[3.2e-6, 1.6e-6], [1.6e-6, 3.2e-6]]}' >pairs.json

echo '{"N": 4, "c_dp_bytes": 0, "c_pp_bytes": 0, "D_dp": 2, "D_pp": 2, "groups": ["a", "b", "c"], "devices_per_group": [1, 2, 1],
 "delay_ms": [[0, 0, 0], [0, 0, 0], [0, 0, 0]], "bandwidth_gbps": [[3.2e-6, 1.6e-6, 1.6e-6], [1.6e-6, 3.2e-6, 1.6e-6], [1.6e-6, 1.6e-6, 3.2e-6]]}' >trio.json

# takes SCHEME GRID STEP_S ARGS...: T P D; the rest of the line is in $line
takes() {
    scheme=$1 grid=$2 step=$3
    shift 3
    name="plan $(of baselines "$@"): $scheme $grid takes $step s"
    "$plan" baselines "$@" >out 2>err
    # shellcheck disable=SC2086
    set -- $grid
    line=$(grep "\"scheme\": \"$scheme\", \"grid\": {\"tensor\": $1, \"pipeline\": $2, \"data\": $3}, " out)
    echo "$line" | awk -F '"step_s": ' -v want="$step" '{ d = $2 + 0 - want; bad = !(d < 1e-9 * want && -d < 1e-9 * want) } END { exit NR != 1 || bad }'
    result $? "$name" "$line $(cat err)"
}
# shows TEXT: the line of the last takes has it
shows() {
    echo "$line" | grep -qF -- "$1"
    result $? "$name, with $1" "$line"
}

command -v python3 >/dev/null || skip_script "no python3"

# shellcheck disable=SC2086
{
    two="--network two.json --batch 2 $gpt"
    # gpipe: forwards reach stage 1 at 2.5 and 3.5, its backwards end at 7.5 and 10.5, stage 0's at 12 and 15
    takes dtfm "1 2 1" 15 $two
    shows '"compute_s": 8, "bubble_s": 4, "comm_s": 3,'
    shows '"utilisation_pct": 53.3333, "over_dtfm": 1,'
    takes gpipe "1 2 1" 15 $two
    takes dtfm_random "1 2 1" 15 $two --seeds 2
    shows '"best_s": 15,'
    # 1f1b, stages that send do not compute: forwards of 2.5 and 1, backwards of 3 and 4.5
    takes megatron "1 2 1" 16.5 $two
    shows 'best of 3 grids, 0 of them too large'
    takes zero1_pipe "1 2 1" 16.5 $two
    # at the same time as computing: stage 1 ends backwards at 6.5 and 10.5, stage 0 the last one at 12 + 3
    takes megatron "1 2 1" 15 $two --overlap
    # alone 8 s, then twice 2760 x 2 bytes / 2 at 200 B/s and a delay
    takes megatron_grid "1 1 2" 36.6 $two --all
    # halves of layers, all-reduces of 2 (0.5 + 0.5) s: forward 2 (0.5 + 4), backward 2 (1.5 + 8), two sequences
    takes megatron_grid "2 1 1" 56 $two --all
    takes megatron_grid "2 1 1" 38 $two --all --keep-activations # 2 (4.5 + 1 + 4) x 2
    takes zero1 "1 1 2" 36.6 $two
    # a layer's 1380 x 2 bytes: 7.4 s a pass, three passes of two layers
    takes zero3 "1 1 2" 52.4 $two
    shows '1 micro-steps of 1; one pass over the ring'
    takes fsdp "1 1 2" 48.4 $two # 7.4 + 7.4 + 1 forward, 14.8 + 14.8 + 3 backward
    # two sequences each in one micro-step or, where memory is for one, in two with all traffic twice
    takes zero3 "1 1 2" 60.4 $two --batch 4
    takes zero3 "1 1 2" 104.8 $two --batch 4 --memory 0.000035
    shows '2 micro-steps of 1; one pass over the ring'
    takes zero1 "1 1 2" 44.6 $two --batch 4 --memory 0.000035
    # memory: 1380 x 16 + 4400 of a layer's work + 200 for each of the micro-batches held
    takes dtfm "1 2 1" 15 $two --memory 0.00002688
    shows '"memory_gb": 2.688e-05, "fits": true'
    takes dtfm "1 2 1" 22 $two --memory 0.00002687
    shows 'gpipe 2 x 1 micro-batches of 1'
    takes dtfm "1 2 1" 22 $two --memory 1e-6
    shows '"fits": false'
    has '"scheme": "megatron", "grid": {"tensor": 0, "pipeline": 0, "data": 0}, "step_s": null, "compute_s": null' $two --memory 1e-6
    has 'best of 3 grids, 3 of them too large for 1e-06 GB' $two --memory 1e-6

    # Eq. 2 for two replicas: 2 (0.5 + 2760 / 2 / 200)
    takes dtfm "1 2 2" 29.8 --network four.json --batch 4 $gpt
    # rings: 2 (0.5 + 6.9); 1380 parameters of 4 + 12 / 2 bytes, two micro-batches and a layer's work
    takes zero1_pipe "1 2 2" 31.3 --network four.json --batch 4 $gpt
    shows '"memory_gb": 1.86e-05'
    takes dtfm "1 2 2" 43.6 --network four.json --batch 4 $gpt --gradient-bytes 4
    has '"scheme": "zero1", "grid": {"tensor": 1, "pipeline": 1, "data": 4}, "step_s": null' --network four.json --batch 2 $gpt
    has 'a batch of 2 is not a multiple of 4 devices' --network four.json --batch 2 $gpt

    # replicas inside a machine, 6.9 s; hops of 1 s, and of 2 s where two devices share the way out
    pairs="--network pairs.json --batch 4 $gpt --all"
    takes megatron_grid "1 2 2" 21.9 $pairs
    takes megatron_grid "1 2 2" 24.9 $pairs --machines
    # two rings leave a machine; parts next to each other: 2 x 2 (1.5 + 3.5) s, then 2760 B at 100 B/s
    takes megatron_grid "2 1 2" 47.6 $pairs --machines
    takes megatron_grid "2 1 2" 33.8 $pairs
    # one machine of two between two of one: both tensor rings leave it, reduces take 2 s: 2 (14 + 14), then 27.6
    takes megatron_grid "2 1 2" 83.6 --network trio.json --batch 4 $gpt --all --machines
    takes megatron_grid "2 1 2" 45.8 --network trio.json --batch 4 $gpt --all # 2 (2 (0.5 + 2) + 2 (1.5 + 4)) + 13.8
    # one ring through all four leaves each machine once
    takes zero1 "1 1 4" 49.4 $pairs --machines
    "$plan" baselines $pairs --degrees 2 >out && [ "$(grep -c megatron_grid out)" -eq 3 ]
    result $? "plan baselines: --degrees 2 limits tensor parallelism to three grids" "$(cat out)"

    "$plan" baselines $two --text >out 2>err && [ "$(wc -l <out)" -eq 12 ] && sed -n 3p out | grep -q '^dtfm  *1 x  2 x  1  *15 '
    result $? "plan baselines: --text prints a table" "$(cat out err)"
    "$plan" baselines $two --json p.json >out 2>err && [ "$(grep -c '"event": "plan"' p.json)" -eq 10 ]
    result $? "plan baselines: --json writes ten events" "$(cat err)"

    says 2 '--network FILE is needed' $gpt
    says 1 'absent.json' --network absent.json
    says 2 'a batch of 3 is not a multiple of 2 pipelines' --network four.json --batch 3 $gpt
    says 2 'a batch of 4 is not a multiple of 2 pipelines x 4 sequences' --network four.json --batch 4 --micro-batch 4 $gpt
    says 2 '2 layers are not a multiple of 4 stages' --network four.json --stages 4 --batch 4 $gpt
    says 2 '3 pipelines of 2 stages do not match the 4 devices' --network four.json --pipelines 3 $gpt
    says 2 '--heads is 3, but must be a divisor of --dim' $two --heads 3
    says 2 '--peak is 0, but must be more than 0' $two --peak 0
    says 2 '--share is 1.5, but must be more than 0 and at most 1' $two --share 1.5
    says 2 '--memory is 0, but must be more than 0' $two --memory 0
    says 2 '--layers is 0' $two --layers 0
    says 2 '--batch is 0, but must be 1 to 1000000' $two --batch 0
    says 2 '--micro-batch is 0' $two --micro-batch 0
    says 2 '--seeds is 0, but must be 1 to 1000' $two --seeds 0
    says 2 '--candidates is 0' $two --candidates 0
    says 2 '--pipelines is 0' $two --pipelines 0
    says 2 '--degrees is 0' $two --degrees 0
    sed 's/1.6e-6/0/' two.json >zero.json
    says 2 'carries 0 bytes/s' --network zero.json $gpt
    sed 's/"D_dp": 1, "D_pp": 2, //' two.json >shapeless.json
    says 2 'has no D_dp and D_pp; give --pipelines and --stages' --network shapeless.json $gpt
    has '"scheme": "gpipe", "grid": {"tensor": 1, "pipeline": 2, "data": 1}' --network shapeless.json --batch 2 --stages 2 $gpt
    "$plan" baselines $two --json absent/p.json >out 2>err
    [ $? -eq 1 ] && [ ! -s out ] && grep -q 'cannot write absent/p.json' err
    result $? "plan baselines: an unwritable --json fails with 1" "$(cat err)"
}

# all grids of eight devices with different links, compared with another program; and the best grid
cat >brute.py <<'END'
import json, random, subprocess, sys
N, L, heads, batch, d, s = 8, 4, 4, 16, 12, 10
random.seed(int(sys.argv[2]))
delay = [[0] * N for _ in range(N)]
gbps = [[0] * N for _ in range(N)]
for x in range(N):
    for y in range(N):
        if x != y: delay[x][y], gbps[x][y] = random.uniform(0, 900), random.uniform(2e-7, 4e-6)
json.dump({"N": N, "c_dp_bytes": 0, "c_pp_bytes": 0, "D_dp": 4, "D_pp": 2, "delay_ms": delay, "bandwidth_gbps": gbps}, open("net.json", "w"))
a = lambda x, y: (delay[x][y] + delay[y][x]) / 2000
b = lambda x, y: (gbps[x][y] + gbps[y][x]) / 2 * 1e9 / 8
params = L * (12 * d * d + 13 * d) + s * d

def ring(g, n):
    links = [(g[i], g[(i + 1) % len(g)]) for i in range(len(g))]
    if len(g) == 1: return 0
    return sum(a(*l) for l in links) - min(a(*l) for l in links) + (len(g) - 1) * n / len(g) / min(b(*l) for l in links)

def one_f_one_b(F, B, M):
    P = len(F)
    order = []
    for p in range(P):
        w = min(M, P - 1 - p)
        o = [("F", i) for i in range(w)]
        for i in range(M - w): o += [("F", w + i), ("B", i)]
        order.append(o + [("B", i) for i in range(M - w, M)])
    end, free, at = {}, [0] * P, [0] * P
    while any(at[p] < len(order[p]) for p in range(P)):
        for p in range(P):
            while at[p] < len(order[p]):
                k, i = order[p][at[p]]
                need = None if (k == "F" and p == 0) or (k == "B" and p == P - 1) else (k, i, p - 1 if k == "F" else p + 1)
                if need and need not in end: break
                free[p] = max(free[p], end[need] if need else 0) + (F[p] if k == "F" else B[p])
                end[k, i, p] = free[p]
                at[p] += 1
    return max(free)

want = {}
for T in range(1, N + 1):
    for P in range(1, N + 1):
        if N % (T * P) or heads % T or L % P: continue
        D = N // T // P
        if batch % D: continue
        rank = lambda t, q, p: (p * D + q) * T + t
        pipe = 0
        for q in range(D):
            F, B = [], []
            for p in range(P):
                reduce = 2 * ring([rank(t, q, p) for t in range(T)], 2 * s * d)
                hop = lambda o: max(a(rank(t, q, p), rank(t, q, o)) + 2 * s * d / b(rank(t, q, p), rank(t, q, o)) for t in range(T))
                F.append(L / P * (1 / T + 2 * reduce) + (hop(p + 1) if p + 1 < P else 0))
                B.append(L / P * (3 / T + 4 * reduce) + (hop(p - 1) if p else 0))
            pipe = max(pipe, one_f_one_b(F, B, batch // D))
        want[T, P, D] = pipe + max(2 * ring([rank(t, q, p) for q in range(D)], params / P / T * 2) for t in range(T) for p in range(P))

gpt = "--layers 4 --dim 12 --heads 4 --seq 10 --vocab 0 --peak 3.936e-8 --share 1 --batch 16".split()
out = subprocess.run([sys.argv[1], "baselines", "--network", "net.json", "--all", *gpt], stdout=subprocess.PIPE, check=True)
rows = [json.loads(l) for l in out.stdout.splitlines()]
grids = [r for r in rows if r["scheme"] == "megatron_grid"]
key = lambda r: tuple(r["grid"][k] for k in ("tensor", "pipeline", "data"))
assert sorted(map(key, grids)) == sorted(want), (sorted(map(key, grids)), sorted(want))
for r in grids: assert abs(r["step_s"] - want[key(r)]) < 1e-9 * want[key(r)], (r, want[key(r)])
best = [r for r in rows if r["scheme"] == "megatron"][0]
assert want[key(best)] == min(want.values()) and abs(best["step_s"] - min(want.values())) < 1e-9 * best["step_s"], best
END
for seed in 1 2 3; do
    python3 brute.py "$plan" $seed 2>err
    result $? "plan baselines: all grids of eight devices equal a brute-force search, seed $seed" "$(tail -1 err)"
done

close
