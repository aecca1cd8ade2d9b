"""Starts a broker and its nodes, for the tests of both."""
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Wrong, case as plain_case, expect, unused_address  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = "--layers 2 --heads 2 --dim 16 --seq 16 --batch 2 --microbatches 3 --seed 7".split()
MLP = "--model mlp --hidden 16,12,10,8 --batch 4 --microbatches 3 --seed 5".split()


def images(folder):
    """Writes 48 images of 6 x 5 pixels in ten classes, in MNIST's file format."""
    os.makedirs(folder, exist_ok=True)
    r = random.Random(3)
    with open(os.path.join(folder, "train-images-idx3-ubyte"), "wb") as f:
        f.write(struct.pack(">iiii", 2051, 48, 6, 5) + bytes(r.randrange(256) for _ in range(48 * 30)))
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as f:
        f.write(struct.pack(">ii", 2049, 48) + bytes(i % 10 for i in range(48)))


class Job:
    """A broker and its nodes, with a separate address."""

    def __init__(self, folder):
        self.addr = unused_address()
        self.folder, self.nodes, self.broker, self.env = folder, [], None, {}

    def start(self, program, *args):
        env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
        env.update(self.env)
        return subprocess.Popen([os.path.join(BUILD, program), *map(str, args)], cwd=self.folder, env=env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def listen(self, *args):
        self.broker = self.start("broker", "--listen", self.addr, *args)
        host, port = self.addr.split(":")
        row = ": %s:%04X 00000000:0000 0A" % (socket.inet_aton(host)[::-1].hex().upper(), int(port))
        end = time.time() + 60
        while time.time() < end and self.broker.poll() is None:
            with open("/proc/net/tcp") as f:
                if row in f.read():
                    return
            time.sleep(0.02)

    def connect(self):
        """Connects to the broker as a node does."""
        host, port = self.addr.split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def node(self, *args):
        n = self.start("compnode", "--broker", self.addr, *args)
        self.nodes.append(n)
        return n

    def line(self, word):
        """Reads the broker's stderr up to the first line that contains the word."""
        for text in self.broker.stderr:
            if word in text:
                return text
        raise Wrong("the broker did not print %s" % word)

    def end(self, code=0, timeout=180):
        """Waits for all processes. Returns the broker's output (the last JSON object if it succeeds), its stderr,
        and the stderr of each node."""
        out, err = self.broker.communicate(timeout=timeout)
        said = [n.communicate(timeout=60)[1].strip() for n in self.nodes]
        expect(self.broker.returncode == code, "broker: exit %d, not %d: %s" % (self.broker.returncode, code, err.strip()))
        if code == 0:
            for n, text in zip(self.nodes, said):
                expect(n.returncode in (0, -signal.SIGKILL) and not text, "a node: exit %d: %s" % (n.returncode, text))
            return json.loads(out.strip().splitlines()[-1]), err, said
        return out, err, said

    def run(self, nodes, *args, code=0):
        self.listen("--nodes", nodes, "--quiet", *args)
        for _ in range(nodes):
            self.node()
        return self.end(code)[0] if code == 0 else self.end(code)

    def close(self):
        for p in [self.broker] + self.nodes:
            if p and p.poll() is None:
                p.kill()
                p.wait()


def case(function):
    """Registers a case whose function also takes a job. Its folder contains a text file."""
    def with_job(folder):
        with open(os.path.join(folder, "text"), "w") as f:
            f.write("the quick brown fox jumps over the lazy dog\n" * 40)
        job = Job(folder)
        try:
            function(job, folder)
        finally:
            job.close()
    return plain_case(function.__name__.replace("_", " "))(with_job)


def trainer(folder, program, *args, pipeline=False):
    if not pipeline:
        args = ["--accumulate" if a == "--microbatches" else a for a in args]
    r = subprocess.run([os.path.join(BUILD, program), *map(str, args), "--held-out", "0", "--schedule", "constant",
                        "--deterministic", "--quiet"],
                       cwd=folder, capture_output=True, text=True, timeout=180)
    expect(r.returncode == 0, "%s: %s" % (program, r.stderr))
    return json.loads(r.stdout.strip().splitlines()[-1])


def same(a, b, what):
    for key in ("param_hash", "first_loss"):
        expect(a[key] == b[key], "%s: %s is %s, one worker's %s" % (what, key, a[key], b[key]))


def network(folder, n, delay_ms=0.1, gbps=1.0):
    path = os.path.join(folder, "net.json")
    rows = [[0 if i == j else delay_ms for j in range(n)] for i in range(n)]
    with open(path, "w") as f:
        json.dump({"N": n, "delay_ms": rows, "bandwidth_gbps": [[gbps] * n for _ in range(n)], "tflops": [0.001 * (1 + i) for i in range(n)]}, f)
    return path


def quick(folder, n):
    return ["--network", network(folder, n), "--speed", "network"]


def word(kind, data=b"", length=None):
    """One message of the protocol; see examples/common/channel.h."""
    return struct.pack("<IIQ", 0x6a706464, kind, len(data) if length is None else length) + data
