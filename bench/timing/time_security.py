#!/usr/bin/env python3
"""Training under TLS while strangers connect: each stranger is dropped within 6 s, and the run ends within a minute.

    bench/timing/time_security.py      build/train_gpt is built with OpenSSL

Run it alone on an idle machine. Skipped without TLS.
"""
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from cases import Wrong, case, expect, run_cases, skip_script, unused_port  # noqa: E402

GPT = os.path.join(ROOT, os.environ.get("BUILD", "build"), "train_gpt")
ARGS = ["--layers", "1", "--heads", "2", "--dim", "32", "--seq", "32", "--batch", "2", "--steps", "300",
        "--deterministic", "--quiet", "--data", os.path.join(ROOT, "README.md")]


def key_of(folder):
    """The path of a new pre-shared key."""
    key = os.path.join(folder, "run.key")
    with open(key, "w") as f:
        f.write(secrets.token_hex(32) + "\n")
    os.chmod(key, 0o600)
    return key


def start(port, rank, *extra, **env):
    own = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|SLURM_|MASTER_")
    clean = dict({k: v for k, v in os.environ.items() if not own.match(k)}, DREAMDDP_LOG="info", **env)
    return subprocess.Popen([GPT, *ARGS, "--workers", "2", "--rank", str(rank), "--addr", "127.0.0.1:%d" % port,
                             *extra], env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(p, seconds=90):
    try:
        out, err = p.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        p.kill()
        raise Wrong("hangs: " + p.communicate()[1][-600:]) from None
    return p.returncode, out, err


def param_hash(worker, root):
    """Returns the output of rank 0 after both ranks have ended without an error."""
    for code, _, err in (worker, root):
        expect(code == 0, "exit %d: %s" % (code, err[-600:]))
    return json.loads(root[1].splitlines()[-1])["param_hash"]


class Strangers:
    """Sends scans, random bytes and slow handshakes to one port until stopped."""

    def __init__(self, port):
        self.port, self.stop, self.met, self.longest = port, threading.Event(), 0, 0.0
        self.threads = [threading.Thread(target=f) for f in (self.scan, self.shout, self.trickle, self.trickle)]
        for t in self.threads:
            t.start()

    def visit(self, talk):
        while not self.stop.wait(0.02):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=7) as s:
                    begin, self.met = time.monotonic(), self.met + 1
                    talk(s)
                    self.longest = max(self.longest, time.monotonic() - begin)
            except OSError:
                pass

    def scan(self):
        self.visit(lambda s: None)

    def shout(self):
        def talk(s):
            s.sendall(secrets.token_bytes(200))
            while s.recv(100):
                pass
        self.visit(talk)

    def trickle(self):
        def talk(s):
            s.settimeout(1)
            for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03":
                s.sendall(bytes([byte]))
                try:
                    if not s.recv(100):
                        return
                except socket.timeout:
                    pass
        self.visit(talk)

    def leave(self):
        self.stop.set()
        for t in self.threads:
            t.join()


@case
def strangers_change_no_bit(folder):
    key = key_of(folder)
    want = None
    for knocking in (False, True):
        port = unused_port()
        root = start(port, 0, "--tls-psk", key)
        time.sleep(0.3)
        guests = Strangers(port) if knocking else None
        time.sleep(2 if knocking else 0)
        begin = time.monotonic()
        worker = start(port, 1, "--tls-psk", key)
        try:
            done = [finish(worker), finish(root)]
        finally:
            if guests:
                guests.leave()
        got = param_hash(*done)
        want = want or got
        expect(got == want, "%s instead of %s" % (got, want))
        if guests:
            expect(guests.met > 20, "only %d strangers came" % guests.met)
            expect(guests.longest < 6, "one stayed %.1f s" % guests.longest)
            expect(time.monotonic() - begin < 60, "the run took too long")
            for part in ("refused: 127.0.0.1:", "does not speak TLS", "came and went"):
                expect(part in done[1][2], "no '%s' in: %s" % (part, done[1][2][-2000:]))
        with open(key) as f:
            secret = f.read().strip()
        expect(not any(secret[:16] in d[1] + d[2] for d in done), "the key was printed")
    plain_port = unused_port()
    root, worker = start(plain_port, 0), start(plain_port, 1)
    got = param_hash(finish(worker), finish(root))
    expect(got == want, "TLS has other bits than plain: %s, %s" % (got, want))


def main():
    with tempfile.TemporaryDirectory(prefix="dreamddp_security_") as folder:
        code, _, err = finish(start(unused_port(), 0, "--tls-psk", key_of(folder), DREAMDDP_CONNECT_TIMEOUT="0.2"))
    if code == 2 and "built without TLS" in err:
        skip_script("build/train_gpt has no TLS")
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
