"""A small training run, for scripts that start its ranks in different ways."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Wrong, case as plain_case, expect, inside  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = [os.path.join(BUILD, "train_gpt"), *"--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --steps 6 "
       "--data text --deterministic --period 3 --quiet".split()]
OWN = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|MASTER_|TORCHELASTIC_")


def write_text():
    with open("text", "w") as f:
        f.write("".join(chr(97 + (i * i + i // 7) % 26) for i in range(4000)))


def case(function):
    """Registers a case that runs in its own folder, which contains a text."""
    def with_text(_):
        write_text()
        function()
    return plain_case(function.__name__.replace("_", " "))(inside(with_text))


def start(args=(), env=(), launcher=()):
    clean = {k: v for k, v in os.environ.items() if not OWN.search(k)}
    clean.update({"DREAMDDP_LOG": "info", "DREAMDDP_CONNECT_TIMEOUT": "60", **dict(env)})
    return subprocess.Popen([*launcher, *GPT, *map(str, args)], env={k: str(v) for k, v in clean.items()},
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(procs):
    """Waits for the processes. Returns [(exit code, the object on the last line or None, stderr)]."""
    done = []
    for p in procs:
        try:
            out, err = p.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            for q in procs:
                q.kill()
            raise Wrong("hangs: " + p.communicate()[1][-600:])
        last = (out.splitlines() or [""])[-1]
        done.append((p.returncode, json.loads(last) if last.startswith("{") else None, err))
    return done


def trained(done, world):
    """Checks that every rank of the world succeeded. Returns the hash of all parameters."""
    for rank, (code, _, err) in enumerate(done):
        expect(code == 0, "rank %d: exit %d: %s" % (rank, code, err[-600:]))
    result = done[0][1]
    expect(result and result["workers"] == world, str(result))
    return result["param_hash"]


def alone(world):
    return trained(finish([start(["--workers", world])]), world)
