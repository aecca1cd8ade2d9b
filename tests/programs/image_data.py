"""Runs both trainers on generated data: a text, images in the formats of CIFAR and MNIST, and damaged files."""
import json
import os
import random
import resource
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Wrong, case as plain_case, expect, inside  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = "train_gpt --layers 1 --heads 2 --dim 16 --seq 20 --batch 3 --steps 12 --data text".split()
IMAGE = "train_image --hidden 8 --batch 4 --steps 12 --data cifar10 --held-out 0.25".split()
TWO = "--workers 2 --transport threads --deterministic --period 3".split()


def records(count, head):
    """Writes CIFAR records: the label bytes of head, then an image that depends on the label."""
    r = random.Random(3)
    out = b""
    for _ in range(count):
        labels = head(r)
        shade = 25 * (labels[-1] % 10)
        out += bytes(labels) + bytes(min(255, shade + r.randrange(30)) for _ in range(3072))
    return out


def make_files():
    def put(name, data):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as f:
            f.write(data)

    ten = records(40, lambda r: [r.randrange(10)])
    put("text", "".join("abcde"[i * i % 5] for i in range(9000)).encode())
    put("same", b"a" * 500)
    put("empty", b"")
    put("one", b"x")
    put("odd.bin", b"abc")
    put("cifar10/data_batch_1.bin", ten)
    put("few/data_batch_1.bin", ten[:8 * 3073])
    put("odd/data_batch_1.bin", ten[:-5])
    put("label/data_batch_1.bin", bytes([200]) + ten[1:])
    put("cifar100/train.bin", records(8, lambda r: [r.randrange(20), r.randrange(100)]))
    put("small/train-images-idx3-ubyte", bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(3136))
    put("small/train-labels-idx1-ubyte", bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]))
    os.mkdir("folder")


def case(function):
    """A case that runs in its own folder, which contains the generated data."""
    def with_files(_):
        make_files()
        function()
    return plain_case(function.__name__.replace("_", " "))(inside(with_files))


def start(command, limit=None, env=()):
    """Starts a trainer. limit: the maximum size of a file that it writes, in bytes."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "OMPI_", "SLURM_"))}
    return subprocess.Popen([os.path.join(BUILD, command[0]), *map(str, command[1:])], text=True,
                            env=dict(clean, **dict(env)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                                                             (limit, limit))))


def run(command, code=0, **how):
    """Runs a trainer. Returns the JSON object on its last line, and stderr."""
    p = start(command, **how)
    try:
        out, err = p.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        p.kill()
        raise Wrong("hangs: %s" % " ".join(map(str, command)))
    expect(p.returncode == code, "exit %d of %s: %s" % (p.returncode, command, err[-300:]))
    return json.loads(out.splitlines()[-1]) if code == 0 else None, err
