#!/usr/bin/env python3
"""[test-all: slow] Stopped workers, and pipelines that lose ranks: the other pipelines continue or save a checkpoint.

    tests/programs/test_lost_pipelines.py [WORD...]     only the cases whose names contain one of the words
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import (PIPES, case, expect, lost, result, run_script, sentence, stage_lost, train)  # noqa: E402


lost("a stopped worker ends the run with an error", signal.SIGSTOP, 2, {"DREAMDDP_PEER_TIMEOUT": "3"})
lost("a stopped rank 0 ends the run with an error", signal.SIGSTOP, 0, {"DREAMDDP_PEER_TIMEOUT": "3"})


@case("pipelines continue without those that lost a rank")
def check(folder):
    whole = train(folder, *PIPES)
    for which, left in ([2], 4), ([5, 0], 2):
        code, out, err = stage_lost(folder, which, "--min-replicas", 1, "--save", "ck%d" % left)
        expect(code == 0, "exit %d: %s" % (code, err))
        r = result(out)
        expect(r["workers"] == left and r["steps"] == whole["steps"], "results of another run: %s" % r)
        expect(abs(r["final_loss"] / whole["final_loss"] - 1) < 1e-3, "%r, without a lost rank: %r" % (r, whole))
        expect("step-%012d" % whole["steps"] in os.listdir(os.path.join(folder, "ck%d" % left)), "no checkpoint")


@case("too few surviving pipelines save a checkpoint and fail")
def check(folder):
    whole = train(folder, *PIPES)
    code, out, err = stage_lost(folder, [1], "--min-replicas", 3, "--save", "ck")
    expect(code == 3, "exit %d: %s" % (code, err))
    sentence(err, r"stage 1 of pipeline 0 \(rank 1\)", "2 of 3 pipelines are left, min_replicas is 3")
    r = train(folder, *PIPES, "--resume", "ck")
    expect(abs(r["final_loss"] / whole["final_loss"] - 1) < 1e-3, "%r, not %r" % (r, whole))


if __name__ == "__main__":
    sys.exit(run_script(3, "train_gpt"))
