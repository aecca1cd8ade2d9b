#!/usr/bin/env python3
"""[test-all: needs OpenSSL] A broker and its nodes under TLS: a key or certificates decide which processes take part.

Exit 77 if build/broker has no TLS (OpenSSL was missing when it was built).
"""
import os
import secrets
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from broker_job import BUILD, MLP, Job, case, images, quick, same, trainer, word  # noqa: E402
from cases import Skipped, expect, run_cases, skip_script, unused_port  # noqa: E402

STEPS = ["--steps", 6, "--lr", "0.001"]


def key_of(folder, name="job.key"):
    """Writes a new pre-shared key. Returns its path."""
    key = os.path.join(folder, name)
    with open(key, "w") as f:
        f.write(secrets.token_hex(32) + "\n")
    os.chmod(key, 0o600)
    return key


def job_args(folder, nodes=2):
    images(os.path.join(folder, "data"))
    return ["--nodes", nodes, *MLP, "--data", "data", *STEPS, *quick(folder, nodes)]


def refused(job, says, *args):
    """Starts a node that must end with exit code 1 and a one-line error."""
    node = job.start("compnode", "--broker", job.addr, *args)
    err = node.communicate(timeout=60)[1].strip()
    expect(node.returncode == 1 and says in err and "\n" not in err, "exit %d: %s" % (node.returncode, err))


@case
def tls_key_does_not_change_the_result(job, folder):
    args = job_args(folder)
    one = trainer(folder, "train_image", *MLP, "--data", "data", "--steps", 6)
    key = key_of(folder)
    job.listen(*args, "--tls-psk", key)
    job.node("--tls-psk", key)
    job.node("--tls-psk", key)
    same(job.end()[0], one, "with a key")
    measured = Job(folder)  # the link measurement and the checkpoints are encrypted too
    measured.env = {"DREAMDDP_TLS_PSK": key}
    measured.listen("--nodes", 2, *MLP, "--data", "data", *STEPS, "--save-every", 2, "--export", "w.safetensors")
    measured.node()
    measured.node()
    same(measured.end()[0], one, "with a key in the environment")


@case
def process_without_the_key_receives_nothing(job, folder):
    key, other = key_of(folder), key_of(folder, "other.key")
    job.listen(*job_args(folder), "--tls-psk", key)
    with job.connect() as s:
        s.sendall(word(1, b"1 -"))
        told = b"".join(iter(lambda: s.recv(1000), b""))
    expect(told[4:8] == b"\2\0\0\0" and b"requires TLS" in told and len(told) < 200, "a plain node receives %s" % told)
    for text in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x05hello"):
        with job.connect() as s:
            s.sendall(text)
            try:
                while s.recv(1000):
                    pass
            except ConnectionResetError:
                pass
    refused(job, "requires TLS")
    refused(job, "has a different pre-shared key", "--tls-psk", other)
    job.node("--tls-psk", key)
    job.node("--tls-psk", key)
    err = job.end()[1]
    for part in ("does not use TLS", "does not speak TLS", "has a different pre-shared key"):
        expect("broker: refused: 127." in err and part in err, "no '%s' in: %s" % (part, err))


@case
def node_with_a_key_rejects_a_broker_without_one(job, folder):
    key = key_of(folder)
    job.listen(*job_args(folder))
    refused(job, "does not support TLS 1.3", "--tls-psk", key)
    job.node()
    job.node()
    err = job.end()[1]
    expect("uses TLS, and the broker has no keys" in err, err)


@case
def stalled_handshakes_do_not_delay_nodes(job, folder):
    key = key_of(folder)
    job.listen(*job_args(folder), "--tls-psk", key)
    sockets = [job.connect() for _ in range(200)]
    for i, s in enumerate(sockets):
        try:
            s.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[:1 + i % 11])
        except OSError:
            pass  # the broker closed this connection to accept another
    try:
        job.node("--tls-psk", key)
        job.node("--tls-psk", key)
        job.end(timeout=50)
    finally:
        for s in sockets:
            s.close()


def certificate(folder, authority, name, *names):
    """Creates a certificate with these names. Returns its options."""
    def openssl(*args):
        done = subprocess.run(["openssl", *args], cwd=folder, capture_output=True, text=True)
        expect(done.returncode == 0, done.stderr)
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    if not os.path.exists(os.path.join(folder, authority + ".pem")):
        openssl("req", "-x509", *new, "-keyout", authority + ".key", "-out", authority + ".pem", "-subj", "/CN=" + authority)
    with open(os.path.join(folder, name + ".ext"), "w") as f:
        f.write("subjectAltName=" + ",".join("DNS:" + n for n in names or (name,)))
    openssl("req", *new, "-keyout", name + ".key", "-out", name + ".csr", "-subj", "/CN=" + name)
    openssl("x509", "-req", "-in", name + ".csr", "-CA", authority + ".pem", "-CAkey", authority + ".key", "-CAcreateserial",
            "-days", "2", "-extfile", name + ".ext", "-out", name + ".pem")
    return ["--tls-ca", authority + ".pem", "--tls-cert", name + ".pem", "--tls-key", name + ".key"]


@case
def certificates_must_name_the_broker_or_a_rank(job, folder):
    if not shutil.which("openssl"):
        raise Skipped("no openssl")
    broker = certificate(folder, "ca", "broker")
    nodes = [certificate(folder, "ca", name, "rank-0", "rank-1") for name in ("first", "second")]
    stranger = certificate(folder, "ca", "someone")
    foreign = certificate(folder, "other", "foreign", "rank-0", "rank-1")
    args = job_args(folder)
    job.listen(*args, *broker)
    refused(job, "does not name a rank-R", *stranger)
    node = job.start("compnode", "--broker", job.addr, *foreign)  # the node rejects the broker's certificate authority
    err = node.communicate(timeout=60)[1]
    expect(node.returncode == 1 and "has an invalid certificate" in err, "exit %d: %s" % (node.returncode, err))
    for own in nodes:
        job.node(*own)
    err = job.end()[1]
    expect("has a certificate of 'someone' that does not name a rank-R or join-NAME" in err, err)
    false = Job(folder)  # a node's certificate on the broker's side
    false.listen(*args, *nodes[0])
    refused(false, "has a certificate of 'first' that does not name broker", *nodes[1])
    false.close()


@case
def non_loopback_address_requires_keys(job, folder):
    addresses = subprocess.run(["sh", "-c", "hostname -I"], capture_output=True, text=True).stdout.split()
    addresses = [a for a in addresses if "." in a and not a.startswith("127.")]
    if not addresses:
        raise Skipped("this machine has no address but loopback")
    key, args = key_of(folder), job_args(folder)
    job.addr = "%s:%d" % (addresses[0], unused_port())
    for program, option in (("broker", "--listen"), ("compnode", "--broker")):
        p = job.start(program, *(args if program == "broker" else ()), option, job.addr)
        err = p.communicate(timeout=60)[1]
        expect(p.returncode == 2 and "is beyond this machine" in err and "--tls-psk" in err and "--insecure" in err,
               "%s: exit %d: %s" % (program, p.returncode, err))
    job.listen(*args, "--tls-psk", key)
    job.node("--tls-psk", key)
    job.node("--tls-psk", key)
    job.end()


@case
def mismatched_key_files_fail(job, folder):
    key = key_of(folder)
    args = job_args(folder)
    for own, says in ((["--tls-psk", "missing"], "missing: No such file"), (["--tls-psk", key, "--tls-ca", "x"], "cannot be used together"),
                      (["--tls-cert", "x", "--tls-key", "y"], "--tls-ca is missing")):
        for program, more in (("broker", args), ("compnode", [])):
            p = job.start(program, *more, *own)
            err = p.communicate(timeout=60)[1]
            expect(p.returncode in (1, 2) and says in err and err.count("\n") == 1, "%s: exit %d: %s" % (program, p.returncode, err))


def main():
    done = subprocess.run([os.path.join(BUILD, "compnode"), "--tls-psk", "missing"], capture_output=True, text=True)
    if "built without TLS" in done.stderr:
        skip_script("build/compnode has no TLS: OpenSSL was not found when it was built")
    sys.exit(run_cases())


if __name__ == "__main__":
    main()
