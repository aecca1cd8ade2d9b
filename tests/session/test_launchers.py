#!/usr/bin/env python3
"""One training run, started in every supported way: as one command, from two terminals, with a file as address,
and with the environment variables of each launcher. All end with bit-identical parameters.

Needs build/train_gpt (`make all`). test_torchrun.py runs the real torchrun."""
import json
import glob
import os
import re
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from training import BUILD, GPT, OWN, alone, case, expect, finish, start, trained  # noqa: E402
from cases import Skipped, run_cases, unused_port  # noqa: E402


@case
def ranks_train_from_two_terminals():
    right = alone(2)
    for host in ("127.0.0.1", "tcp://127.0.0.1", "[::1]"):
        if "::1" in host and not os.path.exists("/proc/net/if_inet6"):
            continue
        where = ["--workers", 2, "--addr", "%s:%d" % (host, unused_port())]
        second = start([*where, "--rank", 1])
        time.sleep(0.2)  # as a user who switches terminals
        done = finish([start([*where, "--rank", 0]), second])
        expect(trained(done, 2) == right, "other parameters with address " + host)
        expect("rank 1 listens on %s:" % host.replace("tcp://", "") in done[1][2], done[1][2])


@case
def ranks_connect_through_a_file():
    right, path = alone(3), os.path.join(os.getcwd(), "run")
    for given in ({}, {"DREAMDDP_RUN_ID": "monday"}):
        with open(path, "w") as f:  # a stale file
            f.write("127.0.0.1:%d %d\n" % (unused_port(), 5))
        ranks = [start(["--workers", 3, "--addr", "file://" + path, "--rank", r], given) for r in (2, 1)]
        time.sleep(0.3)
        ranks.append(start(["--workers", 3, "--addr", "file://" + path, "--rank", 0], given))
        expect(trained(finish(ranks[::-1]), 3) == right, "other parameters with a file as address")
        expect(not os.path.exists(path), "the file was not removed")


@case
def every_launcher_is_recognised():
    right = alone(2)
    port = unused_port(2)
    torch_server = socket.socket()  # init_process_group or torchrun's agent listens at MASTER_PORT
    torch_server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    torch_server.bind(("", port))
    torch_server.listen(8)
    torch = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    launchers = {
        "DREAMDDP_RANK": lambda r: {"DREAMDDP_RANK": r, "DREAMDDP_WORLD_SIZE": 2, "RANK": 7,
                                    "WORLD_SIZE": 9},
        "torchrun": lambda r: {**torch, "RANK": r, "MASTER_PORT": port, "SLURM_NTASKS": 9},
        "Open MPI": lambda r: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 2, "PMIX_RANK": r},
        "MPICH": lambda r: {"PMI_RANK": r, "PMI_SIZE": 2, "MPI_LOCALNRANKS": 2},
        "PMIx": lambda r: {"PMIX_RANK": r, "SLURM_NTASKS": 2, "SLURM_STEP_ID": 0, "SLURM_JOB_ID": 3},
        "Slurm": lambda r: {"SLURM_PROCID": r, "SLURM_NTASKS": 2, "SLURM_STEP_ID": 0,
                            "SLURM_STEP_NUM_NODES": 1, "SLURM_JOB_ID": 3},
    }
    for name, env in launchers.items():
        extra = {} if name == "torchrun" else {"DREAMDDP_ADDR": "127.0.0.1:%d" % unused_port()}
        done = finish([start(env={**env(r), **extra}) for r in range(2)])
        expect(trained(done, 2) == right, "other parameters with %s" % name)
        line = "rank 1 of 2, as %s says" % name
        expect(line in done[1][2], "no '%s' in %s" % (line, done[1][2]))
        if name == "torchrun":
            expect("rank 0 listens at MASTER_PORT + 1" in done[1][2], done[1][2])
            expect("rank 0 listens on 127.0.0.1:%d" % (port + 1) in done[0][2], done[0][2])
    torch_server.close()


ONLY_SIX = """ip link set lo up && mount --bind "$1" /etc/hosts || exit 99
ip addr del 127.0.0.1/8 dev lo
case $(ip addr show lo) in *127.0.0.1*) exit 99 ;; *::1*) ;; *) exit 99 ;; esac
shift
exec "$@"
"""
AS_LAUNCHED = """export RANK=$DREAMDDP_RANK WORLD_SIZE=$DREAMDDP_WORLD_SIZE OMPI_COMM_WORLD_RANK=$DREAMDDP_RANK
export MASTER_PORT=29511 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2
unset DREAMDDP_ADDR DREAMDDP_RUN_ID "$@"
shift $#
exec """


@case
def workers_connect_on_a_machine_without_ipv4():
    right = alone(2)
    ddprun = [os.path.join(BUILD, "ddprun"), "-n", "2", "--no-prefix", "--quiet"]
    train = AS_LAUNCHED + " ".join("'%s'" % word for word in GPT)
    not_own = ["DREAMDDP_RANK", "DREAMDDP_WORLD_SIZE"]
    ways = {"ddprun": [*ddprun, *GPT], "ddprun --set DREAMDDP_INSECURE=1": [*ddprun, "--set", "DREAMDDP_INSECURE=1", *GPT],
            "localhost": [*ddprun, "--set", "MASTER_ADDR=localhost", "sh", "-c", train, "sh", *not_own,
                          "LOCAL_WORLD_SIZE"],
            "localhost on one machine": [*ddprun, "--set", "MASTER_ADDR=localhost", "sh", "-c", train, "sh", *not_own],
            "the default of Open MPI": [*ddprun, "sh", "-c", train, "sh", *not_own, "RANK", "WORLD_SIZE"],
            "the default of DREAMDDP_RANK": [*ddprun, "sh", "-c", train, "sh"],
            "--workers": [*GPT, "--workers", "2"]}
    clean = {k: v for k, v in os.environ.items() if not OWN.search(k)}
    for hosts in ("::1 localhost\n", "127.0.0.1 localhost\n::1 localhost\n"):
        with open("names", "w") as f:
            f.write(hosts)
        for way, command in ways.items():
            there = ["unshare", "-nm" if os.geteuid() == 0 else "-rnm", "sh", "-c", ONLY_SIX, "sh", os.path.abspath("names")]
            try:
                r = subprocess.run([*there, *command], env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   timeout=180)
            except FileNotFoundError:
                raise Skipped("there is no unshare command")
            if r.returncode == 99 or "unshare" in r.stderr:
                raise Skipped("this system refuses namespaces: " + " ".join(r.stderr.split())[-200:])
            line = [x for x in r.stdout.splitlines() if x.startswith("{")]
            expect(r.returncode == 0 and line and json.loads(line[-1])["param_hash"] == right,
                   "%s, with %r: exit %d: %s%s" % (way, hosts, r.returncode, r.stdout[-200:], r.stderr[-400:]))


@case
def invalid_variables_are_named():
    for env, words in (({"RANK": 0}, "WORLD_SIZE is not"),
                       ({"DREAMDDP_WORLD_SIZE": 2}, "DREAMDDP_RANK is not"),
                       ({"OMPI_COMM_WORLD_SIZE": 2}, "OMPI_COMM_WORLD_RANK is not"),
                       ({"PMI_RANK": 1}, "PMI_SIZE is not"),
                       ({"PMIX_RANK": 1}, "SLURM_NTASKS is not"),
                       ({"SLURM_PROCID": 1, "SLURM_STEP_ID": 0}, "SLURM_NTASKS is not"),
                       ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT is not"),
                       ({"DREAMDDP_SOCKET_IFNAM": "lo"}, "did you mean DREAMDDP_SOCKET_IFNAME?"),
                       ({"DREAMDDP_RANK": 0, "DREAMDDP_WORLD_SIZE": 2, "DREAMDDP_ADDR": "file://"},
                        "names no file")):
        code, _, err = finish([start(env=env)])[0]
        expect(code == 2 and words in err, "exit %d, no '%s' in: %s" % (code, words, err))
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen(1)
    addr = "127.0.0.1:%d" % held.getsockname()[1]
    code, _, err = finish([start(["--workers", 2, "--rank", 0, "--addr", addr])])[0]
    held.close()
    expect(code and addr + ": Address already in use" in err and "--addr or DREAMDDP_ADDR" in err, err)


def launched(world, args=(), env=()):
    """Starts ranks 0 to world - 1 as Open MPI does, and waits for them."""
    addr = "127.0.0.1:%d" % unused_port()
    return finish([start(args, {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": world, "DREAMDDP_ADDR": addr, **dict(env)})
                   for r in range(world)])


@case
def world_size_comes_from_the_launcher():
    """Options that depend on the number of workers need no --workers. A wrong --workers is an error."""
    right = alone(3)
    expect(trained(launched(3, ["--min-world", 2]), 3) == right, "other parameters with --min-world")
    pipelined = trained(finish([start(["--workers", 2, "--stages", 2])]), 2)
    expect(trained(launched(2, ["--stages", 2]), 2) == pipelined, "other parameters with --stages")
    expect(trained(launched(3, ["--workers", 3]), 3) == right, "other parameters with the right --workers")
    for args, words in ((["--workers", 2], "--workers 2, but Open MPI started 4 ranks; leave --workers out, or start 2"),
                        (["--stages", 3], "--workers 4 must be a multiple"),
                        (["--min-world", 5], "--min-world 5 is more than --workers 4")):
        env = {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 4, "DREAMDDP_ADDR": "127.0.0.1:1"}
        code, _, err = finish([start(args, env)])[0]
        expect(code == 2 and words in err, "%s: exit %d: %s" % (args, code, err[-300:]))
    code, _, err = finish([start(["--rank", 0, "--workers", 2],
                                 {"DREAMDDP_RANK": 1, "DREAMDDP_WORLD_SIZE": 2, "DREAMDDP_ADDR": "127.0.0.1:1"})])[0]
    expect(code == 2 and "--rank 0, but this process is rank 1 according to DREAMDDP_RANK; leave --rank out" in err, "exit %d: %s" % (code, err[-300:]))


@case
def worker_of_another_run_is_rejected():
    """A worker of another run connects first. It fails at once, and the right worker trains."""
    right, addr = alone(2), "127.0.0.1:%d" % unused_port()
    where = ["--workers", 2, "--addr", addr, "--rank"]
    root = start([*where, 0], {"DREAMDDP_RUN_ID": "new"})
    # finish() fails before this time-out ends
    code, _, err = finish([start([*where, 1], {"DREAMDDP_RUN_ID": "old", "DREAMDDP_CONNECT_TIMEOUT": 900})])[0]
    expect(code, "it trained")
    expect("belongs to run" in err and "('old')" in err, err)
    done = finish([root, start([*where, 1], {"DREAMDDP_RUN_ID": "new"})])
    expect(trained(done, 2) == right and "('new')" in done[0][2], done[0][2])


@case
def broken_link_reconnects():
    """Broken links reconnect by default. With DREAMDDP_RESUME=0 a broken link is a lost peer."""
    with open("drops", "w") as f:
        f.write("".join("t=%g drop 0-1\n" % (0.1 * i) for i in range(1, 5)))
    args = ["--workers", 2, "--steps", 3000, "--net-script", "drops"]
    right = trained(finish([start(["--workers", 2, "--steps", 3000])]), 2)
    done = finish([start(args)])
    expect(trained(done, 2) == right, "other parameters than over a link that holds")
    expect(re.search(r"link to rank \d .* reconnected after [\d.]+ s", done[0][2]), "no link broke: " + done[0][2][-600:])
    code, _, err = finish([start(args, {"DREAMDDP_RESUME": 0})])[0]
    expect(code == 3 and "was lost" in err, "exit %d: %s" % (code, err[-300:]))


@case
def second_process_of_a_rank_fails_after_the_start():
    for more in ([], ["--max-world", 4]):
        folder = os.path.join(os.getcwd(), "saved%d" % len(more))
        where = ["--workers", 2, "--min-world", 1, *more, "--addr", "127.0.0.1:%d" % unused_port(), "--steps", 3000]
        run = [start([*where, "--sleep", 0.02, "--save", folder, "--save-every", 1, "--rank", r], {"DREAMDDP_RUN_ID": 7})
               for r in range(2)]
        while not glob.glob(os.path.join(folder, "step-*")) and all(p.poll() is None for p in run):
            time.sleep(0.02)
        code, _, err = finish([start([*where, "--rank", 1], {"DREAMDDP_RUN_ID": 7})])[0]
        for p in run:
            p.kill()
        finish(run)
        expect(code and "has started without this process" in err, err[-600:])


@case
def two_mpiruns_on_one_port_do_not_mix():
    """Two runs of three ranks start on one port at the same time. One trains with all its ranks, the other fails
    with the reason."""
    right = alone(3)
    for attempt in range(4):
        port = unused_port()
        runs = [[{"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 3, "OMPI_COMM_WORLD_LOCAL_SIZE": 3,
                  "OMPI_COMM_WORLD_LOCAL_RANK": r, "PMIX_NAMESPACE": name,
                  "DREAMDDP_ADDR": "127.0.0.1:%d" % port, "DREAMDDP_CONNECT_TIMEOUT": 30}
                 for r in range(3)] for name in (758185985, 758185986)]
        # rank 0 of one run, then workers of the other run that connect to it
        order = [runs[0][0], runs[1][1], runs[1][2], runs[1][0], runs[0][1], runs[0][2]]
        if attempt % 2:
            order = [runs[0][0], runs[0][1], runs[1][2], runs[1][0], runs[1][1], runs[0][2]]
        procs = []
        for env in order:
            procs.append(start(env=env))
            time.sleep(0.02 * attempt)
        done = dict(zip(("%s %s" % (e["PMIX_NAMESPACE"], e["OMPI_COMM_WORLD_RANK"]) for e in order), finish(procs)))
        sides = [[done["%d %d" % (name, r)] for r in range(3)] for name in (758185985, 758185986)]
        whole = [s for s in sides if all(d[0] == 0 for d in s)]
        other = [s for s in sides if s not in whole]
        expect(len(whole) == 1, "exit codes %s" % [[d[0] for d in s] for s in sides])
        expect(trained(whole[0], 3) == right, "other parameters than a run that one command starts")
        expect(all(d[0] for d in other[0]), "a rank of the other run trained: %s" % [d[0] for d in other[0]])
        expect(all("another run" in d[2] for d in other[0]), [d[2][-300:] for d in other[0]])


@case
def two_mpiruns_without_an_address_use_different_ports():
    """Without an address, both runs train at the same time."""
    right = alone(2)
    runs = [[start(env={"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
                        "OMPI_COMM_WORLD_LOCAL_RANK": r, "PMIX_NAMESPACE": "%d.%d" % (os.getpid(), run)})
             for r in range(2)] for run in range(2)]
    for ranks in runs:
        expect(trained(finish(ranks), 2) == right, "other parameters than a run that one command starts")


if __name__ == "__main__":
    sys.exit(run_cases())
