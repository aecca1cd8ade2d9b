#!/usr/bin/env python3
"""A training run whose link breaks: the link is back within half a second.

    bench/timing/time_launchers.py      build/train_gpt is built

Run it alone on an idle machine.
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "run"))
from training import case, expect, finish, start, trained  # noqa: E402
from cases import run_cases  # noqa: E402


@case
def a_broken_link_comes_back():
    """With default settings. With DREAMDDP_RESUME=0 the peer is lost."""
    with open("drops", "w") as f:
        f.write("".join("t=%g drop 0-1\n" % (0.1 * i) for i in range(1, 5)))
    args = ["--workers", 2, "--steps", 3000, "--net-script", "drops"]
    right = trained(finish([start(["--workers", 2, "--steps", 3000])]), 2)
    for attempt in range(3): # retries on a busy machine
        done = finish([start(args)])
        expect(trained(done, 2) == right, "other parameters than over a link that holds")
        back = [float(t) for t in re.findall(r"link to rank \d .* reconnected after ([\d.]+) s", done[0][2])]
        expect(back, "no link broke: " + done[0][2][-600:])
        if max(back) < 0.5:
            break
    expect(max(back) < 0.5, "links were away for %s s" % back)
    code, _, err = finish([start(args, {"DREAMDDP_RESUME": 0})])[0]
    expect(code == 3 and "was lost" in err, "exit %d: %s" % (code, err[-300:]))


if __name__ == "__main__":
    sys.exit(run_cases())
