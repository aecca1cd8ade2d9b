#!/usr/bin/env python3
"""The parameter hash of runs that must be bit-identical: strategies, transports, servers, threads and --recompute.

    tests/programs/test_param_hash.py [WORD...]     only the cases whose names contain one of the words
"""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (GRADIENTS, LAYERS, MEAN, PARAMETERS, PERIOD, SMALL, STRATEGIES, case, expect,
                     run, run_script, sentence, train, write)  # noqa: E402


HASHES = SMALL + ["--steps", "30", "--workers", "3", "--deterministic", "--seed", "7"]


@case("param_hash: equivalent strategies and all transports are bit-identical")
def check(folder):
    h = {}
    for s in STRATEGIES:
        for t in ("tcp", "threads"):
            r = train(folder, *HASHES, *PERIOD, "--strategy", s, "--transport", t)
            expect(re.fullmatch("[0-9a-f]{16}", r["param_hash"]), "hash " + r["param_hash"])
            expect(r["final_loss"] < r["first_loss"], "%s does not learn: %s" % (s, r))
            h[s, t] = r["param_hash"]
        expect(h[s, "tcp"] == h[s, "threads"], s + " differs between transports")
    for s in GRADIENTS:
        expect(h["ssgd", "tcp"] == h[s, "tcp"], s + " is not ssgd")
    distinct = {h[s, "tcp"] for s in STRATEGIES}
    expect(len(distinct) >= 3, "different strategies give the same hash: %s" % h)
    expect(h["localsgd", "tcp"] not in (h["ssgd", "tcp"], h["dreamddp", "tcp"]), "localsgd gives the hash of another strategy")
    outer = [*HASHES, *PERIOD, "--strategy", "diloco"]
    expect(train(folder, *outer, *MEAN)["param_hash"] == h["localsgd", "tcp"], "diloco(1, 0) is not localsgd")
    one = train(folder, *outer, "--overlap", "stream", "--fragments", 1, "--mixture", 0)
    expect(one["param_hash"] == h["diloco", "tcp"], "streaming in one fragment at once is not diloco")
    late = {train(folder, *outer, "--overlap", o, "--wire", w)["param_hash"]
            for o in ("stream", "eager") for w in ("f32", "bf16", "int8", "int4", "e3m0", "topk:0.1")}
    expect(len(late) == 12, "different overlaps or wires give the same hash")
    write(folder, "last.json", json.dumps({"sets": [[], [], [], list(range(LAYERS))]}))
    one_set = train(folder, *HASHES, *PERIOD, "--strategy", "dreamddp", "--plan", "last.json")
    expect(one_set["param_hash"] == h["localsgd", "tcp"], "dreamddp with all layers in one set is not localsgd")


SERVED = {"bsp": [], "asp": [], "ssp": ["--staleness", 2], "r2sp": [], "osp": ["--defer", 0.6]}


@case("param_hash: the number and place of servers do not change the result")
def planned_layouts(folder):
    reference = train(folder, *HASHES, "--strategy", "ssgd")["param_hash"]
    for s, more in SERVED.items():
        seen = {}
        for servers, transport in (("colocated", "tcp"), (1, "threads"), (2, "tcp")):
            r = train(folder, *HASHES, "--strategy", s, *more, "--servers", servers, "--transport", transport)
            expect(r["workers"] == 3 and r["servers"] == (3 if servers == "colocated" else servers), str(r))
            expect(r["final_loss"] < r["first_loss"], "%s does not learn: %s" % (s, r))
            expect(r["staleness_most"] == (2 if s in ("asp", "ssp", "r2sp") else 0), "%s: %s" % (s, r))
            expect((r["deferred_pct"] > 20) == (s == "osp"), "%s: %s" % (s, r))
            seen[r["param_hash"]] = servers
        expect(len(seen) == 1, "%s: %s" % (s, seen))
        expect((reference in seen) == (s == "bsp"), "%s against ssgd: %s" % (s, seen))
    for s, more in (("ssp", ["--staleness", 0]), ("osp", ["--defer", 0])):
        h = train(folder, *HASHES, "--strategy", s, *more, "--servers", 1)["param_hash"]
        expect(h == reference, s + " is not bsp")
    sentence(run(folder, *SMALL, "--workers", 2, "--strategy", "bsp", code=2)[1], "needs servers", "--servers")
    sentence(run(folder, *SMALL, "--workers", 2, "--strategy", "wfbp", "--servers", 1, code=2)[1], "servers 1", "wfbp")
    sentence(run(folder, *SMALL, "--workers", 2, "--servers", "many", code=2)[1], "--servers many", "colocated")
    sentence(run(folder, *SMALL, "--strategy", "osp", "--servers", 1, "--defer", 2, code=2)[1], "--defer 2", "0 to 1")


@case("param_hash: with period 1 localsgd, enp and dreamddp are bit-identical")
def check(folder):
    h = {s: train(folder, *HASHES, "--period", 1, "--strategy", s)["param_hash"] for s in PARAMETERS}
    expect(len(set(h.values())) == 1, "localsgd, enp and dreamddp differ: %s" % h)


@case("param_hash: one worker is bit-identical with every strategy")
def check(folder):
    h = {s: train(folder, *HASHES, "--workers", 1, *PERIOD, *MEAN, "--strategy", s)["param_hash"] for s in STRATEGIES}
    expect(len(set(h.values())) == 1, "they differ: %s" % h)


@case("param_hash: depends on the seed but not on threads or the link")
def check(folder):
    more = [*HASHES, *PERIOD, "--strategy", "ssgd"]
    first = train(folder, *more)["param_hash"]
    for args, same in [([], True), (["--threads", "2"], True), (["--net", "200mbit,1ms"], True),
                       (["--seed", "8"], False)]:
        h = train(folder, *more, *args)["param_hash"]
        expect((h == first) == same, "%s: %s against %s" % (args, h, first))


@case("--recompute: same hash with less memory; a model too large for the machine fails")
def check(folder):
    sizes = [*SMALL, "--steps", 5, "--workers", 1, "--strategy", "ssgd", "--layers", 3, "--dropout", 0.1]
    for model in ("gpt2", "llama2"):
        args = [a for a in sizes if model == "gpt2" or a not in ("--dropout", 0.1)]
        plain, less = (train(folder, *args, "--model", model, *more) for more in ([], ["--recompute"]))
        expect(plain["param_hash"] == less["param_hash"], "%s: %s, %s" % (model, plain, less))
        expect(less["planned_mb"] < plain["planned_mb"], "%s: %s, %s" % (model, plain, less))
    for more, remedy in ([], "--recompute"), (["--recompute"], "use a smaller batch"):
        _, err = run(folder, *sizes, "--batch", 2000000000, *more, code=1)
        sentence(err, "the graph needs", "activations", remedy)


if __name__ == "__main__":
    sys.exit(run_script(2, "train_gpt"))
