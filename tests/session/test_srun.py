#!/usr/bin/env python3
"""[test-all: needs Slurm] srun: runs over tcp and mpi are bit-identical to a run without a launcher. This test starts a Slurm
cluster of one node in a temporary folder, on free ports.

Needs slurmctld, slurmd, srun and sinfo (Debian: slurm-wlm, which tools/deps.sh does not install) and build/train_gpt;
skipped if one of them is missing or Slurm does not start."""
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Checks, Skipped, Wrong, expect, skip_script, unused_address, unused_port  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = [os.path.join(BUILD, "train_gpt"), *"--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --steps 6 "
       "--data text --deterministic --period 3 --quiet".split()]
OWN = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|MASTER_|TORCHELASTIC_")
CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CryptoType=crypto/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def environment(**extra):
    # Open MPI needs these to run as root
    return dict({k: v for k, v in os.environ.items() if not OWN.search(k)}, OMPI_ALLOW_RUN_AS_ROOT="1",
                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", DREAMDDP_LOG="info", DREAMDDP_CONNECT_TIMEOUT="20", **extra)


def run(folder, *args, **extra):
    p = subprocess.Popen(args, cwd=folder, env=environment(**extra), text=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = p.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        p.kill()
        raise Wrong("%s did not end" % " ".join(args)) from None
    return p.returncode, out, err


def trained(folder, *args, **extra):
    code, out, err = run(folder, *args, **extra)
    expect(code == 0, "%s: exit code %d: %s" % (" ".join(args), code, err[-800:]))
    objects = [line for line in out.splitlines() if line.startswith("{")]
    expect(len(objects) == 1, "not exactly one result: %s" % out)
    return json.loads(objects[0]), err


def one_node(folder):
    """Starts Slurm's two daemons. Returns them, and the variables with which srun finds them; None if Slurm does
    not start."""
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        os.mkdir(os.path.join(folder, name))
    conf = os.path.join(folder, "slurm.conf")
    with open(conf, "w") as f:
        f.write(CONF.format(host=host, user=getpass.getuser(), folder=folder, ports=(unused_port(), unused_port())))
    env = environment(SLURM_CONF=conf)
    daemons = [subprocess.Popen([name, "-D", *more], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL) for name, more in (("slurmctld", []), ("slurmd", ["-N", host]))]
    until = time.time() + 60
    while time.time() < until:
        told = subprocess.run(["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True, timeout=20)
        if told.stdout.strip() == "idle":
            return daemons, {"SLURM_CONF": conf}
        time.sleep(0.2)
    return daemons, None


def compare(folder, slurm):
    check = Checks()

    def attempt(name, function):
        try:
            function()
            check(name, True)
        except (Wrong, Skipped) as e:
            check(name, e if isinstance(e, Skipped) else False, e)

    alone, _ = trained(folder, *GPT, "--workers", "4")
    port = unused_address()
    flavours = subprocess.run(["srun", "--mpi=list"], env=environment(**slurm), capture_output=True, text=True, timeout=60)
    pmix = "pmix" in flavours.stdout + flavours.stderr

    def over_tcp(flags, says):
        if flags == "--mpi=pmix" and not pmix:
            raise Skipped("this Slurm has no PMIx")
        result, err = trained(folder, "srun", flags, "-n", "4", *GPT, **slurm, DREAMDDP_ADDR=port)
        expect(result["workers"] == 4 and result["param_hash"] == alone["param_hash"], "%s: %s" % (flags, result))
        expect("of 4, as %s says" % says in err, "%s: %s" % (flags, err))

    def without_address():
        # without variables of this library: Slurm's variables name the host, and the port follows from job and step
        result, _ = trained(folder, "srun", "-n", "3", *GPT, **slurm)
        expect(result["workers"] == 3, result)

    def without_pmix():
        code, _, err = run(folder, "srun", "-n", "2", *GPT, "--transport", "mpi", **slurm)
        expect(code != 0, "MPI started without PMIx")
        if "DDP_USE_MPI" in err:
            raise Skipped("built without MPI")
        expect("srun --mpi=pmix" in err, err)

    def over_mpi():
        if not pmix:
            raise Skipped("this Slurm has no PMIx")
        result, _ = trained(folder, "srun", "--mpi=pmix", "-n", "4", *GPT, "--transport", "mpi", **slurm)
        expect(result["workers"] == 4 and result["param_hash"] == alone["param_hash"], "mpi: %s" % result)

    for flags, says in (("--mpi=none", "Slurm"), ("--mpi=pmi2", "MPICH"), ("--mpi=pmix", "PMIx")):
        attempt("srun %s trains over tcp" % flags, lambda: over_tcp(flags, says))
    attempt("srun trains without an address", without_address)
    attempt("the mpi transport without PMIx fails with the option to add", without_pmix)
    attempt("srun --mpi=pmix trains over mpi", over_mpi)
    return check.close()


def main():
    if not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "sinfo"))):
        skip_script("Slurm is not installed (Debian: slurm-wlm)")
    with tempfile.TemporaryDirectory(prefix="srun.") as folder:
        with open(os.path.join(folder, "text"), "w") as f:
            f.write("the quick brown fox jumps over the lazy dog\n" * 40)
        daemons, slurm = one_node(folder)
        try:
            if slurm is None:
                skip_script("Slurm does not start here")
            return compare(folder, slurm)
        except Wrong as why:
            print("FAILED: %s" % why)
            return 1
        finally:
            for p in daemons:
                p.send_signal(signal.SIGTERM)
            for p in daemons:
                try:
                    p.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    p.kill()


if __name__ == "__main__":
    sys.exit(main())
