#!/usr/bin/env python3
"""[test-all: needs sshd] ddprun --hosts with the real ssh and an sshd that this test starts at an address of 127.0.0.0/8.

Needs ssh, ssh-keygen and sshd (Debian: openssh-client, openssh-server; tools/deps.sh installs sshd only if no service
manager would start it). Exit 77 if one is missing or rejects this user. test_ddprun_hosts.py needs no ssh.
"""
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from launcher import BUILD, begin, hosts_file, run, script, wait_until_gone
from cases import case, expect, run_cases, skip_script, unused_address

SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
SERVER = """ListenAddress %s
HostKey %s/host
AuthorizedKeysFile %s/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
MaxStartups 100
"""
CLIENT = """Host *
    Port %s
    IdentityFile "%s/key"
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


class Server:
    """A running sshd, and the path of the ssh configuration that connects to it."""

    def __init__(self, folder):
        self.host, port = unused_address().split(":")
        self.config = os.path.join(folder, "client config")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # sshd requires this folder if it runs as root
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", os.path.join(folder, name)], check=True)
        with open(os.path.join(folder, "server"), "w") as f:
            f.write(SERVER % (self.host, folder, folder) + "Port %s\n" % port)
        with open(self.config, "w") as f:
            f.write(CLIENT % (port, folder))
        self.log = open(os.path.join(folder, "log"), "w+")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", os.path.join(folder, "server")], stderr=self.log)
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            with socket.socket() as s:
                if not s.connect_ex((self.host, int(port))):
                    break
            time.sleep(0.05)
        r = subprocess.run(["ssh", "-F", self.config, "-o", "BatchMode=yes", self.host, "true"], stdin=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
        self.log.seek(0)
        self.error = "%s %s" % (r.stderr, self.log.read()) if r.returncode else ""

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def options(self, folder, slots=2):
        """Options of ddprun for workers on this host."""
        return ["--quiet", "--ssh", "ssh -F '%s'" % self.config, "--hosts",
                hosts_file(folder, "%s@%s slots=%d\n" % (getpass.getuser(), self.host, slots))]


server = None


@case
def ranks_connect_and_train(folder):
    r = run(*server.options(folder), "--strategy", "wfbp", "--port", "29500", os.path.join(BUILD, "own_loop"), cwd=folder)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-600:]))
    expect("rank 0 listens on %s:29500" % server.host in r.stderr, r.stderr[-600:])


@case
def signal_to_ddprun_ends_the_workers(folder):
    for sig, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        seconds = "98761.%d%d" % (os.getpid(), sig)
        p = begin(*server.options(folder), "sh", "-c", "echo ready; exec sleep " + seconds)
        for _ in range(2):
            p.stdout.readline()
        p.send_signal(sig)
        _, err = p.communicate(timeout=180)
        expect(p.returncode == code, "%s: exit %d, not %d: %s" % (sig, p.returncode, code, err))
        wait_until_gone("sleep " + seconds)


@case
def failure_of_a_worker_ends_the_others(folder):
    program = script(folder, 'if [ "$DREAMDDP_RANK" = 1 ]; then exit 7; fi\nexec sleep 98760.%d\n' % os.getpid())
    r = run(*server.options(folder), program)
    expect(r.returncode == 7 and "worker 1 ended with 7" in r.stderr, "exit %d: %s" % (r.returncode, r.stderr))
    wait_until_gone("sleep 98760.%d" % os.getpid())


@case
def worker_that_ignores_signals_is_killed(folder):
    mark = "98759.%d" % os.getpid()
    text = 'trap "" INT; trap "echo got" USR1; echo ready; while :; do sleep 0.1; done; : ' + mark
    p = begin(*server.options(folder, 1), "sh", "-c", text)
    p.stdout.readline()
    for sig in (signal.SIGINT, signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1, signal.SIGINT):
        p.send_signal(sig)
        if sig == signal.SIGUSR1:
            p.stdout.readline()
    _, err = p.communicate(timeout=180)
    expect(p.returncode == 137, "exit %d: %s" % (p.returncode, err))
    wait_until_gone(mark)


@case
def lost_ssh_connection_ends_the_worker_and_the_run(folder):
    seconds = "98758.%d" % os.getpid()
    p = begin(*server.options(folder), script(folder, "echo ready $$; exec sleep %s\n" % seconds))
    pid = [int(p.stdout.readline().split()[2]) for _ in range(2)][0]
    name = ""
    while not name.startswith("sshd"):  # the sshd process of this connection is an ancestor of the worker
        with open("/proc/%d/stat" % pid) as f:
            pid = int(f.read().rpartition(")")[2].split()[1])
        with open("/proc/%d/comm" % pid) as f:
            name = f.read()
    os.kill(pid, signal.SIGKILL)
    _, err = p.communicate(timeout=180)
    expect(p.returncode == 255 and "the connection to" in err, "exit %d: %s" % (p.returncode, err))
    wait_until_gone("sleep " + seconds)


@case
def rank_0_reads_stdin(folder):
    data = "".join(map(chr, range(1, 128))) * 8
    r = run(*server.options(folder), script(folder, 'cat >"$DREAMDDP_RANK"; echo end\n'), text_in=data, cwd=folder)
    expect(r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr))
    with open(os.path.join(folder, "0"), newline="") as f:
        expect(f.read() == data, "rank 0 read other bytes")


def main():
    global server
    missing = [name for name in ("ssh", "ssh-keygen") if not shutil.which(name)] + ([] if SSHD else ["sshd"])
    if missing:
        skip_script("%s: not found; install openssh-client and openssh-server" % ", ".join(missing))
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        try:
            if server.error:
                skip_script("sshd rejects this user:  " + " ".join(server.error.split())[-400:])
            return run_cases()
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
