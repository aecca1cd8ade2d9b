#!/usr/bin/env python3
"""[test-all: needs OpenSSL] Training with TLS while unknown clients connect: they are refused with an error, and the result is bit-identical.

Exit code 77 if build/train_gpt has no TLS (it was built without OpenSSL).
"""
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Skipped, Wrong, case, expect, run_cases, skip_script, unused_port  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GPT = os.path.join(ROOT, os.environ.get("BUILD", "build"), "train_gpt")
ARGS = ["--layers", "1", "--heads", "2", "--dim", "32", "--seq", "32", "--batch", "2", "--steps", "300",
        "--deterministic", "--quiet", "--data", os.path.join(ROOT, "README.md")]


def key_of(folder):
    """Returns the path of a new pre-shared key."""
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


def finish(p, seconds=300):
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
    """Scanners, random bytes, and slow handshakes, on one port until stopped."""

    def __init__(self, port):
        self.port, self.stop, self.met, self.stayed = port, threading.Event(), 0, 0
        self.threads = [threading.Thread(target=f) for f in (self.scan, self.shout, self.trickle, self.trickle)]
        for t in self.threads:
            t.start()

    def visit(self, talk):
        while not self.stop.wait(0.02):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=60) as s:
                    self.met += 1
                    talk(s)
            except socket.timeout:
                self.stayed += 1  # rank 0 did not disconnect
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
            s.settimeout(60)
            while s.recv(100):
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
    for connecting in (False, True):
        port = unused_port()
        root = start(port, 0, "--tls-psk", key)
        time.sleep(0.3)
        guests = Strangers(port) if connecting else None
        time.sleep(2 if connecting else 0)
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
            expect(guests.met > 20, "only %d unknown clients connected" % guests.met)
            expect(guests.stayed == 0, "rank 0 did not disconnect %d unknown clients" % guests.stayed)
            for part in ("refused: 127.0.0.1:", "does not speak TLS", "disconnected before identifying itself"):
                expect(part in done[1][2], "no '%s' in: %s" % (part, done[1][2][-2000:]))
        with open(key) as f:
            secret = f.read().strip()
        expect(not any(secret[:16] in d[1] + d[2] for d in done), "the key was printed")
    plain_port = unused_port()
    root, worker = start(plain_port, 0), start(plain_port, 1)
    got = param_hash(finish(worker), finish(root))
    expect(got == want, "TLS is not bit-identical to plain: %s, %s" % (got, want))


@case
def the_wrong_key_is_told_to_both(folder):
    key = key_of(folder)
    other = os.path.join(folder, "other.key")
    with open(other, "w") as f:
        f.write(secrets.token_hex(32))
    os.chmod(other, 0o600)
    port = unused_port()
    root = start(port, 0, "--tls-psk", key)
    code, _, err = finish(start(port, 1, "--tls-psk", other))
    expect(code == 1 and "has a different pre-shared key" in err, err)
    code, _, err = finish(start(port, 1, DREAMDDP_TLS_PSK=key, DREAMDDP_RUN_ID="another"))
    expect(code == 1 and "belongs to another run" in err, err)
    code, _, err = finish(start(port, 1))
    expect(code == 1 and "uses TLS, but this rank does not: give it the same --tls-psk" in err, err)
    worker = start(port, 1, DREAMDDP_TLS_PSK=key)
    expect(param_hash(finish(worker), finish(root)), "the rank with the right key did not train")


def openssl_commands_of_the_manual():
    """The shell blocks of docs/howto/tls.md that call openssl."""
    with open(os.path.join(ROOT, "docs", "howto", "tls.md")) as f:
        blocks = re.findall(r"```sh\n(.*?)```", f.read(), re.S)
    blocks = [block for block in blocks if "openssl" in block]
    expect(len(blocks) >= 2, "docs/howto/tls.md has %d blocks that call openssl" % len(blocks))
    return blocks


@case
def certificates_as_the_manual_makes_them(folder):
    if not shutil.which("openssl"):
        raise Skipped("no openssl")
    commands = "".join(openssl_commands_of_the_manual())
    done = subprocess.run(["sh", "-euc", commands], cwd=folder, capture_output=True, text=True)
    expect(done.returncode == 0, commands + done.stderr)
    port = unused_port()
    how = [["--tls-ca", "ca.pem", "--tls-cert", "rank-%d.pem" % r, "--tls-key", "rank-%d.key" % r] for r in (0, 1)]
    how = [[os.path.join(folder, w) if "." in w else w for w in h] for h in how]
    root, worker = start(port, 0, *how[0]), start(port, 1, *how[1])
    expect(param_hash(finish(worker), finish(root)), "certificates: no parameters")
    port = unused_port()
    root = start(port, 0, *how[0], DREAMDDP_CONNECT_TIMEOUT="4")
    code, _, err = finish(start(port, 1, *how[0]))  # rank 0's certificate
    expect(code == 1 and "it has no name rank-1" in err, err)
    code, _, err = finish(root)
    expect(code == 3 and "does not name rank-1" in err, err)


def main():
    with tempfile.TemporaryDirectory(prefix="dreamddp_security_") as folder:
        code, _, err = finish(start(unused_port(), 0, "--tls-psk", key_of(folder), DREAMDDP_CONNECT_TIMEOUT="0.2"))
    if code == 2 and "built without TLS" in err:
        skip_script("build/train_gpt has no TLS")
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
