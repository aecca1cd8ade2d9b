"""Starts build/ddprun, for the scripts that test it."""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import expect, processes_with  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
DDPRUN = os.path.join(BUILD, "ddprun")

# A replacement for ssh and sshd: it runs the command in a new session. When this process ends, the session continues
# and reads the end of its input. The host `away` never answers.
SSH = """#!/usr/bin/env python3
import os, subprocess, sys, threading
host, command = sys.argv[-2:]
if host == "away":
    sys.exit(255)
there = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True)

def copy():
    try:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            os.write(there.stdin.fileno(), data)
    except OSError:
        pass
    there.stdin.close()

threading.Thread(target=copy, daemon=True).start()
code = there.wait()
os._exit(code if code >= 0 else 255)
"""


def without_own(env=()):
    """The environment without DREAMDDP_ variables, plus the given variables."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DREAMDDP_")}
    own.update(env)
    return own


def run(*args, cwd=None, env=(), text_in=None, limit=180):
    return subprocess.run([DDPRUN, *args], cwd=cwd, env=without_own(env), input=text_in, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=limit)


def begin(*args, ignored=signal.SIGINT):
    """Starts ddprun in the background with pipes. It ignores SIGINT, as a background job of a shell does."""
    def signals():
        for sig in (signal.SIGINT, signal.SIGHUP):
            signal.signal(sig, signal.SIG_IGN if sig == ignored else signal.SIG_DFL)
    return subprocess.Popen([DDPRUN, *args], env=without_own(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, preexec_fn=signals)


def script(folder, text, name="program"):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text if text.startswith("#!") else "#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def hosts_file(folder, text):
    path = os.path.join(folder, "hosts")
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


def wait_until_gone(text):
    """Fails if a process whose command line contains the text still runs after a minute."""
    until = time.monotonic() + 60
    while processes_with(text) and time.monotonic() < until:
        time.sleep(0.02)
    expect(not processes_with(text), "a process with %s still runs" % text)
