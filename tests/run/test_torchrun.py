#!/usr/bin/env python3
"""[timed] The trainer under the real torchrun: the same bits as without it. Exit 77 where
torchrun is not installed, or takes more than 40 s to say what it can do.

Needs build/train_gpt (`make all`)."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_launchers import GPT, OWN, Wrong, alone, expect, free_port  # noqa: E402


def torchrun(words):
    """The object that the run printed, and everything else it said."""
    env = {k: v for k, v in os.environ.items() if not OWN.search(k)}
    env.update(DREAMDDP_LOG="info", DREAMDDP_CONNECT_TIMEOUT="20", OMP_NUM_THREADS="1")
    # 1.13 under Python 3.11 stumbles over its own defaults of these two
    for more in ([], "-r 0:1 -t 0:1".split()):
        p = subprocess.Popen(["torchrun", *more, *words, *GPT], env=env, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = p.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)
            raise Wrong("torchrun %s hangs" % " ".join(words))
        if "'NoneType' object has no attribute 'get'" not in err:
            break
    expect(p.returncode == 0, "torchrun %s: exit %d: %s" % (words, p.returncode, err[-800:]))
    found = re.findall(r"^(?:\[.*?\]:)?(\{.*\})$", out, re.M)
    expect(len(found) == 1, "%d results of rank 0: %s" % (len(found), out))
    return json.loads(found[0]), err


def main():
    if not shutil.which("torchrun"):
        print("skipped: there is no torchrun")
        return 77
    try:
        about = subprocess.run(["torchrun", "--help"], capture_output=True, text=True, timeout=40)
    except subprocess.TimeoutExpired:
        print("skipped: torchrun takes too long to start")
        return 77
    if about.returncode:
        print("skipped: torchrun does not work here")
        return 77
    # older ones know the options with underscores only
    dash = "-" if "--no-python" in about.stdout else "_"
    plain = ["--no%spython" % dash, "--nproc%sper%snode" % (dash, dash), "4"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("text", "w") as f:
            f.write("".join(chr(97 + (i * i + i // 7) % 26) for i in range(4000)))
        passed, failed, right = 0, 0, alone(4)
        for name, words in (("by itself", ["--master%sport" % dash, str(free_port(2)), *plain]),
                            ("standalone", ["--standalone", *plain])):
            try:
                result, err = torchrun(words)
                expect(result["workers"] == 4 and result["param_hash"] == right, str(result))
                expect(len(re.findall("rank . of 4, as torchrun says", err)) == 4, err[-800:])
                passed += 1
                print("ok   torchrun " + name)
            except Wrong as e:
                failed += 1
                print("FAIL torchrun %s: %s" % (name, e))
        os.chdir("/")
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
