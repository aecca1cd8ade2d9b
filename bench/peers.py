#!/usr/bin/env python3
"""Compares dreamddp.wrap with torchft, hivemind and DistributedDataParallel over slow links.

    bench/peers.py [--runs 5] [--only ROW,...] [--list] [--fresh] [--quick]

Installs PyTorch, torchft and hivemind from PyPI into build/peers/venv. A row whose package cannot be installed is skipped by name. Every
worker trains the same GPT of 4.9 million parameters in its own network namespace, whose link the kernel (tc, tbf) limits in both
directions. A row runs the library and the peer in alternation. Its figure is the median over the runs of the peer's time divided by
the library's time: above 1 the library is faster. Rows with a goal in seconds run only the library. Results are appended to
build/peers/results.jsonl, so that an interrupted command continues where it stopped (--fresh starts again). Run it on an idle machine:
the workers share its cores. Needs root, ip and tc; exit 77 without them.

Convolutions and language models on one CPU are compared by bench/torch_vision.py and bench/torch_gpt.py.
"""
import argparse
import collections
import json
import os
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
FOLDER = os.path.join(ROOT, "build", "peers")
PYTHON = os.path.join(FOLDER, "venv", "bin", "python")
RESULTS = os.path.join(FOLDER, "results.jsonl")
PACKAGES = {"torch": ["torch", "numpy"], "torchft": ["torchft==0.2.0"], "hivemind": ["hivemind==1.1.12"]}
PREFIX, HUB = "ddppeers", 99
DIM, LAYERS, HEADS, SEQ, BATCH = 256, 6, 4, 64, 4
LIBRARY_PORT, STORE_PORT, GLOO_PORT, LIGHT_PORT = 29500, 29700, 29600, 29510

# A program that trains: its kind, its settings, and the package that it needs.
Program = collections.namedtuple("Program", "kind settings package")


def ours(strategy, **settings):
    return Program("ours", dict(settings, strategy=strategy), "torch")


ALONE = Program("alone", {}, "torch")
DDP = Program("ddp", {}, "torch")
LOCAL = Program("torchft-local", {}, "torchft")
DILOCO = Program("torchft-diloco", {"fragments": 1, "delay": 0}, "torchft")
STREAM = Program("torchft-diloco", {"fragments": 2, "delay": 5}, "torchft")
HIVEMIND = Program("hivemind", {}, "hivemind")

# measure: "step" is the mean over whole periods, "plain" the median step, "first" the time from the start to the end of the first step.
# "kill" is the time from the death of a worker to the end of the survivors' period, and of their next average where steps wait for it.
# "rejoin" is their longest step after its return.
Row = collections.namedtuple("Row", "name what ours peer measure goal world rate period steps warm gpu")


def row(name, what, own, peer, measure="step", goal=1.0, world=4, rate="100mbit", period=20, steps=60, warm=20, gpu=0.0):
    return Row(name, what, own, peer, measure, goal, world, rate, period, steps, warm, gpu)


def all_rows():
    stream, local, diloco = ours("diloco", overlap="stream"), ours("localsgd"), ours("diloco")
    wfbp = ours("wfbp", profile_steps=2)
    elastic = dict(min_world=2, max_world=4)
    return [
        row("stream", "diloco, stream; torchft DiLoCo, 2 fragments, delay 5", stream, STREAM, goal=1.05),
        row("stream-2", "the same, 2 workers", stream, STREAM, goal=1.05, world=2),
        row("stream-gpu", "the same, compute of 0.25 s emulated by sleeping", stream, STREAM, goal=1.05, gpu=0.25),
        row("stream-long", "stream, for six periods in place of two", stream, STREAM, goal=1.05, steps=140),
        row("stream-2-long", "stream-2, for six periods", stream, STREAM, goal=1.05, world=2, steps=140),
        row("stream-gpu-long", "stream-gpu, for six periods", stream, STREAM, goal=1.05, steps=140, gpu=0.25),
        row("local", "localsgd; torchft LocalSGD", local, LOCAL),
        row("diloco", "diloco; torchft DiLoCo", diloco, DILOCO),
        row("diloco-2", "the same, 2 workers", diloco, DILOCO, world=2),
        row("plain", "step without an average, localsgd; torchft LocalSGD", local, LOCAL, "plain", 0.99),
        row("plain-gpu", "the same, compute of 0.25 s emulated by sleeping", local, LOCAL, "plain", 0.99, gpu=0.25),
        row("plain-alone", "step without an average, localsgd; no library", local, ALONE, "plain", 0.99),
        row("plain-alone-gpu", "the same, compute of 0.25 s emulated by sleeping", local, ALONE, "plain", 0.99, gpu=0.25),
        row("plain-alone-2", "step without an average, localsgd; no library, 2 workers", local, ALONE, "plain", 0.99, world=2),
        row("wfbp", "wfbp; DistributedDataParallel, gloo", wfbp, DDP, goal=1.03, period=1, steps=14, warm=4),
        row("wfbp-unshaped", "the same, no limit", wfbp, DDP, period=1, steps=40, warm=5, rate=None),
        row("first-100", "time to the first step, localsgd; torchft LocalSGD", local, LOCAL, "first", steps=3, warm=1),
        row("first-20", "the same, 20 Mbit/s", local, LOCAL, "first", steps=3, warm=1, rate="20mbit"),
        row("int4-20", "diloco, stream, int4; torchft DiLoCo, 2 fragments, delay 5; 20 Mbit/s", ours("diloco", overlap="stream", wire="int4"),
            STREAM, goal=2.5, rate="20mbit"),
        row("hivemind", "localsgd; hivemind Optimizer with local updates, float16", local, HIVEMIND),
        row("kill", "a worker of four is killed: next average, localsgd", ours("localsgd", **elastic), None, "kill", 3.0, period=10,
            steps=400, warm=30),
        row("kill-stream", "the same: end of the period, diloco, stream", ours("diloco", overlap="stream", **elastic), None, "kill", 3.0,
            period=10, steps=400, warm=30),
        row("rejoin", "it joins again: longest step of the others, diloco, stream", ours("diloco", overlap="stream", **elastic), None, "rejoin",
            2.0, period=10, steps=400, warm=30),
    ]


# ---- the environment ----

def install():
    """Returns {package: why it is missing}, "" for those that are installed."""
    if not os.path.exists(PYTHON):
        r = subprocess.run([sys.executable, "-m", "venv", os.path.dirname(os.path.dirname(PYTHON))], stderr=subprocess.PIPE, text=True)
        if r.returncode:
            return dict.fromkeys(PACKAGES, "no virtual environment: " + r.stderr.strip()[-200:])
    missing = {}
    for module, names in PACKAGES.items():
        missing[module] = ""
        if subprocess.run([PYTHON, "-c", "import " + module], stderr=subprocess.DEVNULL).returncode == 0:
            continue
        print("installing %s" % " ".join(names), file=sys.stderr, flush=True)
        r = subprocess.run([PYTHON, "-m", "pip", "install", "-q"] + names, stderr=subprocess.PIPE, text=True)
        if r.returncode:
            missing[module] = (r.stderr.strip().splitlines() or ["pip failed"])[-1]
    return missing


# ---- the network ----

def name_of(number):
    return "%s%d" % (PREFIX, number)


def address_of(number):
    return "10.79.0.%d" % (number + 1)


def sh(line):
    subprocess.run(line, shell=True, check=True)


def kill_in(namespace):
    found = subprocess.run(["ip", "netns", "pids", namespace], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    for pid in map(int, found.split()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def network_down():
    folder = "/var/run/netns"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith(PREFIX):
            kill_in(name)
            subprocess.run(["ip", "netns", "del", name])


def network_up(world, rate):
    """One namespace per worker, one for the lighthouse of torchft, and a bridge between them."""
    network_down()
    middle = PREFIX + "mid"
    sh("ip netns add {0} && ip -n {0} link add bridge0 type bridge && ip -n {0} link set bridge0 up".format(middle))
    for n in list(range(world)) + [HUB]:
        sh("ip netns add {0} && ip -n {0} link set lo up && ip -n {1} link add port{2} type veth peer name eth0 netns {0} && "
           "ip -n {1} link set port{2} master bridge0 up && ip -n {0} addr add {3}/24 dev eth0 && ip -n {0} link set eth0 up".format(
               name_of(n), middle, n, address_of(n)))
        for where, device in ((name_of(n), "eth0"), (middle, "port%d" % n)):
            if rate and n != HUB:
                sh("tc -n %s qdisc add dev %s root tbf rate %s burst 64kb latency 100ms" % (where, device, rate))


# ---- a worker: python bench/peers.py --child JSON ----

class Log:
    def __init__(self, path):
        self.file = open(path, "w", encoding="ascii")

    def put(self, **values):
        self.file.write(json.dumps(dict(values, at=time.time())) + "\n")
        self.file.flush()


def emulate_compute(blocks, seconds):
    """Each block sleeps, a third of the time in the forward pass and the rest in the backward pass."""
    def forward(_module, _inputs, output):
        time.sleep(seconds / len(blocks) / 3)
        output.register_hook(lambda _: time.sleep(seconds / len(blocks) * 2 / 3))

    for block in blocks:
        block.register_forward_hook(forward)


def fragments_of(torch, model, number):
    """Modules of about equal size, in order."""
    size = -(-LAYERS // number)
    parts = [torch.nn.ModuleList(model.blocks[i:i + size]) for i in range(0, LAYERS, size)]
    parts[0].extend([model.tokens, model.places])
    parts[-1].extend([model.norm, model.head])
    return parts


def with_torchft(torch, job, model, optimizer):
    from datetime import timedelta
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo, LocalSGD
    wait = timedelta(seconds=60)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    host = address_of(job["rank"])
    job["store"] = torch.distributed.TCPStore(host, STORE_PORT, is_master=True, wait_for_workers=False)
    manager = Manager(pg=ProcessGroupGloo(timeout=wait), min_replica_size=2, load_state_dict=load, state_dict=save,
                      use_async_quorum=False, replica_id="worker_%d" % job["rank"], store_addr=host, store_port=STORE_PORT, rank=0,
                      world_size=1, hostname=host, lighthouse_addr="http://%s:%d" % (address_of(HUB), LIGHT_PORT), timeout=wait,
                      quorum_timeout=wait, init_sync=False)
    if job["kind"] == "torchft-local":
        wrapper = LocalSGD(manager, model, optimizer, sync_every=job["period"])
    else:
        number = job["settings"]["fragments"]
        parts = [model] if number == 1 else fragments_of(torch, model, number)
        outer = [torch.optim.SGD(f.parameters(), lr=0.7, momentum=0.9, nesterov=True) for f in parts]
        wrapper = DiLoCo(manager, parts, optimizer, outer, sync_every=job["period"], backup_device=torch.device("cpu"),
                         fragment_sync_delay=job["settings"]["delay"])
    wrapper.__enter__()
    return model, optimizer


def with_hivemind(torch, job, model, make):
    import hivemind
    from hivemind.compression import Float16Compression
    host, first = address_of(job["rank"]), job["log"].replace(".%d.log" % job["rank"], ".0.address")
    while job["rank"] and not os.path.exists(first):
        time.sleep(0.1)
    peers = [open(first, encoding="ascii").read()] if job["rank"] else []
    place = ["/ip4/%s/tcp/%d" % (host, 31000 + job["rank"])]
    dht = hivemind.DHT(initial_peers=peers, host_maddrs=place, announce_maddrs=place, start=True)
    if not job["rank"]:
        with open(first + ".new", "w", encoding="ascii") as f:
            f.write(str(dht.get_visible_maddrs()[0]))
        os.rename(first + ".new", first)
    half = Float16Compression()
    return model, hivemind.Optimizer(
        dht=dht, run_id="bench", batch_size_per_step=BATCH, target_batch_size=BATCH * job["world"] * job["period"],
        params=model.parameters(), optimizer=make, use_local_updates=True, matchmaking_time=3.0, averaging_timeout=30.0,
        state_averaging_compression=half, grad_compression=half,
        averager_opts={"min_vector_size": 0, "request_timeout": 2.7}, tracker_opts={"min_refresh_period": 0.5, "max_refresh_period": 5})


def with_library(job, model, optimizer):
    sys.path.insert(0, os.path.join(ROOT, "python"))
    import dreamddp
    settings = dict(job["settings"], period=job["period"])
    os.environ.update(DREAMDDP_ADDR="%s:%d" % (address_of(0), LIBRARY_PORT), DREAMDDP_INSECURE="1")
    if job["joins"]:
        settings["join"] = 1
        settings.pop("max_world", None)
    else:
        os.environ.update(DREAMDDP_RANK=str(job["rank"]), DREAMDDP_WORLD_SIZE=str(job["world"]))
    dreamddp.init(**settings)
    return dreamddp.wrap(model, optimizer)


def prepared(torch, job, model):
    """Returns the model and the optimizer of a program, as its documentation describes."""
    def adamw(params):
        return torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    if job["kind"] == "hivemind":
        return with_hivemind(torch, job, model, adamw)
    optimizer = adamw(model.parameters())
    if job["kind"].startswith("torchft"):
        return with_torchft(torch, job, model, optimizer)
    if job["kind"] == "ours":
        return with_library(job, model, optimizer)
    if job["kind"] == "ddp":
        torch.distributed.init_process_group("gloo", init_method="tcp://%s:%d" % (address_of(0), GLOO_PORT), rank=job["rank"],
                                             world_size=job["world"])
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model, optimizer


def child(job):
    log = Log(job["log"])
    log.put(event="start")
    import torch
    from python_ddp import gpt
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = gpt(torch, DIM, SEQ, LAYERS, HEADS)
    if job["gpu"]:
        emulate_compute(model.blocks, job["gpu"])
    with open(os.path.join(ROOT, "dreamddp.h"), "rb") as f:
        text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).long()
    module, optimizer = prepared(torch, job, model)
    draw = torch.Generator().manual_seed(job["rank"])
    for step in range(job["steps"]):
        at = torch.randint(len(text) - SEQ - 1, (BATCH,), generator=draw)
        x = torch.stack([text[i:i + SEQ + 1] for i in at])
        loss = torch.nn.functional.cross_entropy(module(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.put(step=step + 1, loss=loss.item())
    log.put(event="end")
    os._exit(0)  # without the peers' own shutdown, which may wait for workers that have left


# ---- a run ----

class Run:
    """The processes of one program."""

    def __init__(self, r, program):
        self.row, self.program, self.base = r, program, os.path.join(FOLDER, "out", "%s-%s" % (r.name, program.kind))
        os.makedirs(os.path.dirname(self.base), exist_ok=True)
        for name in os.listdir(os.path.dirname(self.base)):
            if name.startswith(os.path.basename(self.base) + "."):
                os.remove(os.path.join(os.path.dirname(self.base), name))
        network_up(r.world, r.rate)
        self.others = []
        if program.kind.startswith("torchft"):
            self.others.append(self.process(HUB, [os.path.join(os.path.dirname(PYTHON), "torchft_lighthouse"), "--bind", "[::]:%d" % LIGHT_PORT,
                                                  "--min_replicas", str(r.world), "--quorum_tick_ms", "100", "--join_timeout_ms", "10000",
                                                  "--heartbeat_timeout_ms", "5000"]))
            time.sleep(1)
        self.workers = [self.worker(rank) for rank in range(r.world)]

    def process(self, number, command):
        env = {k: v for k, v in os.environ.items() if not k.startswith("DREAMDDP_")}
        env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0", PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
        # the address as the host name: the peers send it to each other
        inside = ["ip", "netns", "exec", name_of(number), "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', address_of(number)]
        with open("%s.%d.out" % (self.base, number), "a", encoding="utf-8") as out:
            return subprocess.Popen(inside + command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def worker(self, rank, joins=False):
        r = self.row
        job = {"rank": rank, "world": r.world, "period": r.period, "steps": r.steps, "gpu": r.gpu, "kind": self.program.kind, "joins": joins,
               "settings": self.program.settings, "log": "%s.%s%d.log" % (self.base, "again" if joins else "", rank)}
        return self.process(rank, [PYTHON, os.path.abspath(__file__), "--child", json.dumps(job)])

    def log(self, rank):
        try:
            with open("%s.%d.log" % (self.base, rank), encoding="ascii") as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def ends(self, rank):
        """The times at which the steps ended."""
        return [line["at"] for line in self.log(rank) if "step" in line]

    def wait(self, condition, seconds):
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError("%s: no result after %d s, see %s.*.out" % (self.row.name, seconds, self.base))
            if any(p.poll() not in (None, 0, -signal.SIGKILL) for p in self.workers):
                raise ChildProcessError("%s: a worker failed, see %s.*.out" % (self.row.name, self.base))
            time.sleep(0.1)

    def stop(self):
        network_down()  # kills the processes
        for p in self.workers + self.others:
            p.wait()


def of_steps(run):
    r = run.row
    run.wait(lambda: all(p.poll() is not None for p in run.workers), 900)
    found = []
    for rank in range(r.world):
        ends = run.ends(rank)
        if r.measure == "first":
            found.append(ends[0] - run.log(rank)[0]["at"])
            continue
        periods = (len(ends) - r.warm) // r.period
        timed = ends[r.warm - 1:r.warm + periods * r.period]
        lengths = [b - a for a, b in zip(timed, timed[1:])]
        found.append(statistics.median(lengths) if r.measure == "plain" else statistics.mean(lengths))
    return statistics.mean(found)


def of_a_loss(run):
    """Kills the last worker in the middle of a period."""
    r, victim = run.row, run.row.world - 1
    middle = r.warm + r.period // 2
    run.wait(lambda: len(run.ends(0)) >= middle, 300)
    kill_in(name_of(victim))
    killed = time.time()
    run.wait(lambda: all(len(run.ends(rank)) >= r.warm + 2 * r.period for rank in range(victim)), 300)
    if r.measure == "kill":
        return max(run.ends(rank)[r.warm + r.period - 1] - killed for rank in range(victim))
    begun = time.time()
    again = "%s.again%d.log" % (run.base, victim)
    run.workers[victim] = run.worker(victim, joins=True)

    def trains():
        return os.path.exists(again) and '"step": 5,' in open(again, encoding="ascii").read()

    run.wait(trains, 300)
    return max(b - a for rank in range(victim) for a, b in zip(run.ends(rank), run.ends(rank)[1:]) if b > begun)


def measured(r, program):
    run = Run(r, program)
    try:
        return (of_a_loss if r.measure in ("kill", "rejoin") else of_steps)(run)
    finally:
        run.stop()


# ---- results ----

def recorded():
    """Returns {(row, side): the seconds of its runs}."""
    found = collections.defaultdict(list)
    if os.path.exists(RESULTS):
        with open(RESULTS, encoding="ascii") as f:
            for line in map(json.loads, f):
                found[line["row"], line["side"]].append(line["seconds"])
    return found


def verdict(r, own, peer):
    """Returns the cells of a row: library, peer, figure, goal, met."""
    if not own or (r.peer and not peer):
        return "", "", "", "%g" % r.goal, "not measured"
    mine = statistics.median(own)
    if not r.peer:
        return "%.2f s" % mine, "", "%.2f s" % mine, "at most %g s" % r.goal, "yes" if mine <= r.goal else "no"
    pairs = min(len(own), len(peer))
    ratio = statistics.median(b / a for a, b in zip(own[:pairs], peer[:pairs]))
    return "%.3f s" % mine, "%.3f s" % statistics.median(peer), "%.2f" % ratio, "%g" % r.goal, "yes" if ratio >= r.goal else "no"


def print_table(rows, skipped):
    found = recorded()
    print("|row|library; peer|workers|link|library|peer|peer / library|goal|met|runs|\n|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        own = found[r.name, "ours"]
        cells = verdict(r, own, found[r.name, "peer"])
        print("|%s|%s|%d|%s|%s|%s|%d|" % (r.name, r.what, r.world, r.rate or "no limit", "|".join(cells[:4]),
                                          skipped.get(r.name) or cells[4], len(own)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="paired runs of each row [5]")
    parser.add_argument("--only", default="", metavar="ROW,...", help="only these rows")
    parser.add_argument("--list", action="store_true", help="prints the rows and their goals")
    parser.add_argument("--fresh", action="store_true", help="removes earlier results")
    parser.add_argument("--quick", action="store_true", help="one run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(json.loads(args.child))
    rows = all_rows()
    unknown = set(filter(None, args.only.split(","))) - {r.name for r in rows}
    if unknown:
        parser.error("unknown rows: %s; --list prints all" % ", ".join(sorted(unknown)))
    if args.only:
        rows = [r for r in rows if r.name in args.only.split(",")]
    if args.list:
        for r in rows:
            print("%-16s %s; goal %g%s" % (r.name, r.what, r.goal, "" if r.peer else " s"))
        return 0
    if os.geteuid() or subprocess.run("ip netns && tc qdisc", shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        print("skipped: needs root, ip and tc")
        return 77
    if not os.path.exists(os.path.join(ROOT, "build", "lib", "libdreamddp.so")):
        subprocess.run(["make", "-s", "-C", ROOT, "lib"], check=True)
    missing = install()
    if missing["torch"]:
        print("skipped: PyTorch: %s" % missing["torch"])
        return 77
    if args.fresh and os.path.exists(RESULTS):
        os.remove(RESULTS)
    skipped = {}
    for turn in range(1 if args.quick else args.runs):
        for r in rows:
            for side, program in (("ours", r.ours), ("peer", r.peer)):
                if r.name in skipped or not program or len(recorded()[r.name, side]) > turn:
                    continue
                if missing[r.peer.package if r.peer else "torch"]:
                    skipped[r.name] = "skipped: no %s" % r.peer.package
                    print("%s: %s (%s)" % (r.name, skipped[r.name], missing[r.peer.package]), file=sys.stderr)
                    continue
                try:
                    seconds = measured(r, program)
                except (TimeoutError, ChildProcessError) as e:
                    skipped[r.name] = "failed"
                    print(e, file=sys.stderr)
                    continue
                print("run %d, %s, %s: %.3f s" % (turn + 1, r.name, program.kind, seconds), file=sys.stderr, flush=True)
                with open(RESULTS, "a", encoding="ascii") as f:
                    f.write(json.dumps({"row": r.name, "side": side, "seconds": seconds, "kind": program.kind,
                                        "time": time.strftime("%Y-%m-%d %H:%M:%S")}) + "\n")
    print_table(rows, skipped)
    return 1 if "failed" in skipped.values() else 0


if __name__ == "__main__":
    sys.exit(main())
