#!/usr/bin/env python3
"""[test-all: needs root and OpenSSL] Workers on machines of their own (network namespaces): pairs that cannot reach each other go
through rank 0 and learn the same bits; interfaces; IPv6. Root only, exit 77 otherwise.

Needs build/train_gpt (`make all`)."""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import Wrong, case as plain_case, expect, inside, run_cases, skip_script  # noqa: E402
from netns import Net, ip  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
GPT = [os.path.join(BUILD, "train_gpt"), *"--layers 2 --heads 2 --dim 32 --seq 32 --batch 2 --steps 12 "
       "--data text --deterministic --period 3 --quiet".split()]


def case(function):
    """A case that runs in a new folder that contains a text."""
    def with_text(_):
        with open("text", "w") as f:
            f.write("".join(chr(97 + (i * i + i // 7) % 26) for i in range(6000)))
        function()
    return plain_case(function.__name__.replace("_", " "))(inside(with_text))


def begin(net, addr, extra=(), env=(), late=None, hosts=None, where=None):
    """Runs all ranks, each on its host or as `where` says; `hosts` may replace /etc/hosts there."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
    clean.update({"DREAMDDP_LOG": "info", "DREAMDDP_CONNECT_TIMEOUT": "60", **dict(env)})
    procs = []
    for r in range(net.n):
        if r == late:
            time.sleep(1)
        command = [*GPT, "--workers", net.n, "--rank", r, "--addr", addr, *extra]
        if hosts:
            command = ["sh", "-c", 'mount --bind "$1" /etc/hosts && shift && exec "$@"', "sh",
                       hosts(r), *command]
        procs.append(net.start((where or net.hosts)[r], command, env=clean, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE))
    return procs


def finish(procs):
    """[(exit code, last line's object or None, stderr)]"""
    done = []
    for p in procs:
        try:
            out, err = p.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            for q in procs:
                q.kill()
            raise Wrong("hangs: " + p.communicate()[1][-600:])
        last = out.splitlines()[-1:] or [""]
        done.append((p.returncode, json.loads(last[0]) if last[0].startswith("{") else None, err))
    return done


def train(*what, **how):
    return finish(begin(*what, **how))


def expect_trained(done, hash_=None):
    for r, (code, last, err) in enumerate(done):
        expect(code == 0, "rank %d: exit %d: %s" % (r, code, err[-600:]))
    got = done[0][1]["param_hash"]
    expect(hash_ in (None, got), "%s instead of %s" % (got, hash_))
    return got


@case
def blocked_pairs_are_relayed_bit_for_bit():
    with Net(4, "rvns%da" % (os.getpid() % 1000)) as net:
        base = train(net, "10.77.0.1:29500", ["--insecure"])
        right = expect_trained(base)
        expect(not any("relay" in err for _, _, err in base), "relayed without reason: " + base[0][2])
        expect("rank 2 listens on 10.77.2.1:" in base[2][2], base[2][2])
        net.block(1, 2, "blackhole")
        net.block(2, 3, "unreachable")
        begin = time.time()
        done = train(net, "10.77.0.1:29501", ["--insecure"])
        expect_trained(done, right)
        expect(time.time() - begin > 2.9, "rank 2 did not try")
        for low, high in ((1, 2), (2, 3)):
            line = "ranks %d and %d cannot connect directly: rank 0 relays between them" % (low, high)
            expect(line in done[0][2], "no '%s' in %s" % (line, done[0][2]))
            line = "rank %d cannot connect to rank %d at 10.77.%d.1:" % (high, low, low)
            expect(line in done[high][2], "no '%s' in %s" % (line, done[high][2]))
        expect("unreachable)" in done[3][2] or "(No route to host)" in done[3][2], done[3][2])
        expect(done[0][2].count("relays between") == 2, done[0][2])
        done = train(net, "[fd77:0::1]:29502", ["--insecure"])  # the same over IPv6
        expect_trained(done, right)
        expect(done[0][2].count("relays between") == 2, done[0][2])
        expect("rank 1 listens on [fd77:1::1]:" in done[1][2], done[1][2])
        with open("key", "w") as f:
            f.write("0123456789abcdef" * 3)
        os.chmod("key", 0o600)
        done = train(net, "10.77.0.1:29503", ["--tls-psk", "key"])  # encrypted: rank 0 cannot read the bytes
        if not any("DDP_USE_OPENSSL" in err for _, _, err in done):  # built without TLS
            expect_trained(done, right)
            expect(done[0][2].count("relays between") == 2, done[0][2])


@case
def a_relayed_rank_that_dies_is_noticed():
    with Net(3, "rvns%dc" % (os.getpid() % 1000)) as net:
        net.block(1, 2, "prohibit")
        for victim in (2, 0):
            procs = begin(net, "10.77.0.1:%d" % (29500 + victim),
                          ["--insecure", "--steps", "100000000"], {"DREAMDDP_PEER_TIMEOUT": "600"})
            time.sleep(2)  # they are connected, and train
            expect(all(p.poll() is None for p in procs), "it ended by itself")
            procs[victim].kill()
            done = finish(procs)  # long before the peer time-out
            for r in {0, 1, 2} - {victim}:
                expect(done[r][0] == 3 and "rank %d" % victim in done[r][2],
                       "rank %d: exit %d: %s" % (r, done[r][0], done[r][2][-400:]))


@case
def names_and_links():
    with Net(3, "rvns%dd" % (os.getpid() % 1000)) as net:
        def hosts(r):  # the address of a machine's own name on Debian
            path = os.path.join(os.getcwd(), "hosts%d" % r)
            with open(path, "w") as f:
                f.write("127.0.0.1 localhost\n%s alpha\n" % ("127.0.1.1" if r == 0 else "10.77.0.1"))
            return path
        done = train(net, "alpha:29500", ["--insecure"], hosts=hosts)
        right = expect_trained(done)
        expect("rank 0 listens on 10.77.0.1:29500" in done[0][2], done[0][2])
        # two machines on one cable with link-local addresses, which exist on every cable
        a, b = net.hosts[:2]
        ip("link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b)
        for host, last in ((a, 1), (b, 2)):
            ip("-n", host, "addr", "add", "fe80::77:%d/64" % last, "dev", "cable", "nodad")
            ip("-n", host, "link", "set", "cable", "up")
        done = finish(begin(net, "[fe80::77:1%cable]:29501", ["--insecure"], where=[a, b, a]))
        expect_trained(done, right)
        expect("relay" not in done[0][2], done[0][2])
        expect("rank 1 listens on [fe80::77:2%cable]:" in done[1][2], done[1][2])


@case
def interfaces_are_chosen():
    with Net(3, "rvns%db" % (os.getpid() % 1000)) as net:
        for i, host in enumerate(net.hosts):  # a second network, which is not the route to rank 0
            ip("-n", host, "link", "add", "dark0", "type", "veth", "peer", "name", "end0")
            ip("-n", host, "addr", "add", "10.78.0.%d/24" % (i + 1), "dev", "dark0")
            ip("-n", host, "link", "set", "dark0", "up")
            ip("-n", host, "link", "set", "end0", "up")
        path = os.path.join(os.getcwd(), "run")
        done = train(net, "file://" + path, ["--insecure"], late=0)
        right = expect_trained(done)
        expect("rank 0 listens on 10.77.0.1:" in done[0][2], done[0][2])
        expect("rank 1 listens on 10.77.1.1:" in done[1][2], done[1][2])
        expect(not os.path.exists(path), "the file was not removed")
        # ranks cannot reach each other on the second network: all pairs without rank 0 are relayed
        done = train(net, "10.77.0.1:29500", ["--insecure"], {"DREAMDDP_SOCKET_IFNAME": "=dark0"})
        expect_trained(done, right)
        expect("rank 1 listens on 10.78.0.2:" in done[1][2] and "(dark0)" in done[1][2], done[1][2])
        expect("ranks 1 and 2 cannot connect directly" in done[0][2], done[0][2])
        name = net.hosts[1][:-1]
        done = train(net, "file://" + path, ["--insecure"],
                     {"DREAMDDP_SOCKET_IFNAME": "^dark,lo"}, late=2)
        expect_trained(done, right)
        expect("rank 0 listens on 10.77.0.1:" in done[0][2], done[0][2])
        done = train(net, "10.77.0.1:29500", ["--insecure"],
                     {"DREAMDDP_SOCKET_IFNAME": "=eno7", "DREAMDDP_CONNECT_TIMEOUT": "3"})
        expect(done[1][0] == 2 and "matches no interface that is up; available: " in done[1][2]
               and "dark0 (10.78.0.2)" in done[1][2] and name in done[1][2], done[1][2])
        # a worker on another machine, and the network is not declared trusted
        done = train(net, "10.77.0.1:29500", env={"DREAMDDP_CONNECT_TIMEOUT": "3"})
        expect(all(d[0] == 2 and "is not a loopback address" in d[2] for d in done), str(done))


@case
def workers_of_one_command_need_no_ipv4():
    name = "rvns%dv6" % (os.getpid() % 1000)
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
        for more in ([], ["--min-world", "2"]):
            done = subprocess.run(["ip", "netns", "exec", name, *GPT, "--workers", "2", *more], env=clean,
                                  capture_output=True, text=True, timeout=300)
            expect(done.returncode == 0, "exit %d: %s" % (done.returncode, done.stderr[-600:]))
    finally:
        ip("netns", "del", name)


def main():
    why = Net.possible()
    if why:
        skip_script(why)
    return run_cases()


if __name__ == "__main__":
    sys.exit(main())
