"""Runs the trainers with their presets."""
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Checks  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXT = ["--data", "dreamddp.h"]
QUICK = ["--net", "10gbit,0.1ms"]
SMALL_IMAGE = ["--model", "mlp", "--hidden", 8]
SMALL_TEXT = ["--layers", 1, "--heads", 1, "--dim", 8, "--seq", 16]
check = Checks()


def run(program, *options):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    try:
        r = subprocess.run([os.path.join(ROOT, os.environ.get("BUILD", "build"), program), *map(str, options)], capture_output=True, text=True, timeout=300,
                           cwd=ROOT, env=env)
    except subprocess.TimeoutExpired:
        return None, "", "hangs"
    result = json.loads(r.stdout.splitlines()[-1]) if r.returncode == 0 and r.stdout.endswith("}\n") else None
    return r.returncode, result or r.stdout, r.stderr


def images(folder):
    """Writes two files in CIFAR-10's format, with 80 and 16 images of noise."""
    r = random.Random(3)
    for name, count in (("data_batch_1.bin", 80), ("test_batch.bin", 16)):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(b"".join(bytes([i % 10]) + r.randbytes(3072) for i in range(count)))
    return ["--data", folder]


def trains(preset, program, strategy, workers, what, *options):
    code, result, err = run(program, "--quiet", "--preset", preset, "--steps", 2, *options)
    check("%s: %s" % (preset, what),
          code == 0 and result["strategy"] == strategy and result["workers"] == workers and result["steps"] == 2
          and result["final_loss"] > 0, (code, result, err))
    return result or {}
