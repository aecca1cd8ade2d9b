#!/usr/bin/env python3
"""Results of a run whose rank 0 is killed during the last average: rank 1 reports the means over the whole run."""
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trainer import PATIENCE, case, expect, start, wait_until  # noqa: E402
from cases import run_cases, unused_address  # noqa: E402

STEPS = 4
SHAPE = "--layers 2 --dim 32 --heads 2 --seq 16 --batch 1 --val-batches 2 --lr 0.003".split()


@case("the lowest surviving rank reports the means of the whole run")
def check(folder):
    addr = unused_address()
    ranks, errors = [], []
    for r in range(3):  # the only average is at the end of the run. Rank 0 waits 6 s for rank 2 in it.
        errors.append(os.path.join(folder, "err%d" % r))
        ranks.append(start(folder, "--data", "text", *SHAPE, "--steps", STEPS, "--period", 2 * STEPS, "--strategy", "localsgd",
                           "--min-world", 2, "--sleep", "0,0,1.5", "--addr", addr, "--rank", r, "--workers", 3,
                           "--json", "r%d.jsonl" % r, stderr=open(errors[r], "w")))

    def over():
        with open(errors[0]) as f:
            return "step %d/%d" % (STEPS, STEPS) in " ".join(f.read().split())
    wait_until(lambda: over() or ranks[0].poll() is not None, "rank 0 does not end its last step")
    time.sleep(0.2)  # rank 0 is in the average
    os.kill(ranks[0].pid, signal.SIGKILL)
    out = [p.communicate(timeout=PATIENCE)[0] for p in ranks]
    expect([p.returncode for p in ranks] == [-signal.SIGKILL, 0, 0], [p.returncode for p in ranks])
    expect(not out[0] and out[1] and not out[2], "a rank other than 1 reports: %s" % out)
    r = json.loads(out[1].splitlines()[-1])
    expect(r["workers"] == 2 and r["steps"] == STEPS and r["step_ms"] > 0, r)
    for key in ("first_loss", "final_loss", "val_loss"):
        expect(r[key] is not None and 1 < r[key] < 10, "%s: %s" % (key, r))
    with open(os.path.join(folder, "r1.jsonl")) as f:
        steps = [e for e in map(json.loads, f) if e["event"] == "step"]
    expect([e["step"] for e in steps] == list(range(STEPS)), steps)
    expect(all(e["loss"] > 1 and e["step_ms"] > 0 for e in steps), steps)


if __name__ == "__main__":
    sys.exit(run_cases())
