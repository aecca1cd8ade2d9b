#!/usr/bin/env python3
"""[timed] One training run, started in every way there is: by itself, from two terminals, by way of a file,
and with what each launcher puts into the environment. All end with the same parameters, bit for bit.

Needs build/train_gpt (`make all`). test_torchrun.py has the real torchrun."""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = [os.path.join(BUILD, "train_gpt"), *"--layers 1 --heads 2 --dim 16 --seq 16 --batch 2 --steps 6 "
       "--data text --deterministic --period 3 --quiet".split()]
OWN = re.compile("DREAMDDP_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|MASTER_|TORCHELASTIC_")


class Wrong(Exception):
    pass


def expect(holds, message):
    if not holds:
        raise Wrong(message)


def free_port(count=1):
    """A port that is free, and the next ones too."""
    for _ in range(100):
        held = []
        try:
            for i in range(count):
                s = socket.socket()
                s.bind(("127.0.0.1", held[0].getsockname()[1] + i if held else 0))
                held.append(s)
            return held[0].getsockname()[1]
        except (OSError, OverflowError):
            continue
        finally:
            for s in held:
                s.close()
    raise Wrong("no free port")


def start(args=(), env=()):
    clean = {k: v for k, v in os.environ.items() if not OWN.search(k)}
    clean.update({"DREAMDDP_LOG": "info", "DREAMDDP_CONNECT_TIMEOUT": "20", **dict(env)})
    return subprocess.Popen([*GPT, *map(str, args)], env={k: str(v) for k, v in clean.items()},
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(procs):
    """[(exit code, the object on the last line or None, stderr)]"""
    done = []
    for p in procs:
        try:
            out, err = p.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for q in procs:
                q.kill()
            raise Wrong("hangs: " + p.communicate()[1][-600:])
        last = (out.splitlines() or [""])[-1]
        done.append((p.returncode, json.loads(last) if last.startswith("{") else None, err))
    return done


def trained(done, world):
    """The hash of all parameters; every rank of the world ended well."""
    for rank, (code, _, err) in enumerate(done):
        expect(code == 0, "rank %d: exit %d: %s" % (rank, code, err[-600:]))
    result = done[0][1]
    expect(result and result["workers"] == world, str(result))
    return result["param_hash"]


def alone(world):
    return trained(finish([start(["--workers", world])]), world)


def two_terminals():
    right = alone(2)
    for host in ("127.0.0.1", "tcp://127.0.0.1", "[::1]"):
        if "::1" in host and not os.path.exists("/proc/net/if_inet6"):
            continue
        where = ["--workers", 2, "--addr", "%s:%d" % (host, free_port())]
        second = start([*where, "--rank", 1])
        time.sleep(0.2)  # as a user would, who has to change the terminal
        done = finish([start([*where, "--rank", 0]), second])
        expect(trained(done, 2) == right, "other parameters by way of " + host)
        expect("rank 1 listens on %s:" % host.replace("tcp://", "") in done[1][2], done[1][2])


def a_file_instead_of_an_address():
    right, path = alone(3), os.path.join(os.getcwd(), "run")
    for given in ({}, {"DREAMDDP_RUN_ID": "monday"}):
        with open(path, "w") as f:  # left over
            f.write("127.0.0.1:%d %d\n" % (free_port(), 5))
        ranks = [start(["--workers", 3, "--addr", "file://" + path, "--rank", r], given) for r in (2, 1)]
        time.sleep(0.3)
        ranks.append(start(["--workers", 3, "--addr", "file://" + path, "--rank", 0], given))
        expect(trained(finish(ranks[::-1]), 3) == right, "other parameters by way of a file")
        expect(not os.path.exists(path), "the file is still there")


def every_launcher_is_recognised():
    right = alone(2)
    port = free_port(2)
    agent = socket.socket()  # torchrun's, which holds MASTER_PORT
    agent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    agent.bind(("", port))
    agent.listen(8)
    torch = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    launchers = {
        "DREAMDDP_RANK": lambda r: {"DREAMDDP_RANK": r, "DREAMDDP_WORLD_SIZE": 2, "RANK": 7,
                                    "WORLD_SIZE": 9},
        "torchrun": lambda r: {**torch, "RANK": r, "MASTER_PORT": port, "SLURM_NTASKS": 9,
                               "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"},
        "Open MPI": lambda r: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 2, "PMIX_RANK": r},
        "MPICH": lambda r: {"PMI_RANK": r, "PMI_SIZE": 2, "MPI_LOCALNRANKS": 2},
        "PMIx": lambda r: {"PMIX_RANK": r, "SLURM_NTASKS": 2, "SLURM_STEP_ID": 0, "SLURM_JOB_ID": 3},
        "Slurm": lambda r: {"SLURM_PROCID": r, "SLURM_NTASKS": 2, "SLURM_STEP_ID": 0,
                            "SLURM_STEP_NUM_NODES": 1, "SLURM_JOB_ID": 3},
    }
    for name, env in launchers.items():
        extra = {} if name == "torchrun" else {"DREAMDDP_ADDR": "127.0.0.1:%d" % free_port()}
        done = finish([start(env={**env(r), **extra}) for r in range(2)])
        expect(trained(done, 2) == right, "other parameters as %s says" % name)
        line = "rank 1 of 2, as %s says" % name
        expect(line in done[1][2], "no '%s' in %s" % (line, done[1][2]))
        if name == "torchrun":
            expect("the ranks meet at MASTER_PORT + 1" in done[1][2], done[1][2])
            expect("rank 0 listens on 127.0.0.1:%d" % (port + 1) in done[0][2], done[0][2])
    agent.close()


def mistakes_are_named():
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


def runs_do_not_mix():
    """A worker of another run comes first: it leaves at once, the right one trains."""
    right, addr = alone(2), "127.0.0.1:%d" % free_port()
    where = ["--workers", 2, "--addr", addr, "--rank"]
    root = start([*where, 0], {"DREAMDDP_RUN_ID": "new"})
    begin = time.time()
    code, _, err = finish([start([*where, 1], {"DREAMDDP_RUN_ID": "old"})])[0]
    expect(code and time.time() - begin < 5, "it stayed %.1f s" % (time.time() - begin))
    expect("belongs to run" in err and "('old')" in err, err)
    done = finish([root, start([*where, 1], {"DREAMDDP_RUN_ID": "new"})])
    expect(trained(done, 2) == right and "('new')" in done[0][2], done[0][2])


def a_broken_link_comes_back():
    """Without any setting; DREAMDDP_RESUME=0 makes it a lost peer."""
    with open("drops", "w") as f:
        f.write("".join("t=%g drop 0-1\n" % (0.1 * i) for i in range(1, 5)))
    args = ["--workers", 2, "--steps", 3000, "--net-script", "drops"]
    right = trained(finish([start(["--workers", 2, "--steps", 3000])]), 2)
    for attempt in range(3): # on a busy machine again
        done = finish([start(args)])
        expect(trained(done, 2) == right, "other parameters than over a link that holds")
        back = [float(t) for t in re.findall(r"link to rank \d .* is back after ([\d.]+) s", done[0][2])]
        expect(back, "no link broke: " + done[0][2][-600:])
        if max(back) < 0.5:
            break
    expect(max(back) < 0.5, "links were away for %s s" % back)
    code, _, err = finish([start(args, {"DREAMDDP_RESUME": 0})])[0]
    expect(code == 3 and "was lost" in err, "exit %d: %s" % (code, err[-300:]))


def two_mpiruns_do_not_mix():
    """Two runs of three on one port, all at the same time: one trains, whole, the other says why not."""
    right = alone(3)
    for attempt in range(4):
        port = free_port()
        runs = [[{"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 3, "OMPI_COMM_WORLD_LOCAL_SIZE": 3,
                  "OMPI_COMM_WORLD_LOCAL_RANK": r, "PMIX_NAMESPACE": name,
                  "DREAMDDP_ADDR": "127.0.0.1:%d" % port, "DREAMDDP_CONNECT_TIMEOUT": 5}
                 for r in range(3)] for name in (758185985, 758185986)]
        # rank 0 of the one, then workers of the other, which find it
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
        expect(trained(whole[0], 3) == right, "other parameters than alone")
        expect(all(d[0] for d in other[0]), "one of the other run trained: %s" % [d[0] for d in other[0]])
        expect(all("another run" in d[2] for d in other[0]), [d[2][-300:] for d in other[0]])


def main():
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("text", "w") as f:
            f.write("".join(chr(97 + (i * i + i // 7) % 26) for i in range(4000)))
        for test in (two_terminals, a_file_instead_of_an_address, every_launcher_is_recognised,
                     mistakes_are_named, runs_do_not_mix, a_broken_link_comes_back, two_mpiruns_do_not_mix):
            try:
                test()
                passed += 1
                print("ok   " + test.__name__)
            except Wrong as e:
                failed += 1
                print("FAIL %s: %s" % (test.__name__, e))
        os.chdir(ROOT)
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
