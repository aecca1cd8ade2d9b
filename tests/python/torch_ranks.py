"""Cases of tests/python/test_transport.py, with an initialised torch.distributed: RANK WORLD STORE CASE...

STORE is the address of PyTorch's own rendezvous, HOST:PORT. Cases run one after another, each in a separate context.
"""
import os
import signal
import sys
import threading
import time

import dreamddp
import torch
import torch.distributed as dist
from dreamddp import _transport
from ranks import expect, flat, loss_of, model_of, near  # noqa: E402: next to this file

CASES = {}


def worker(function):
    CASES[function.__name__] = function
    return function


def trained(settings, steps=7, between=None):
    dreamddp.init(deterministic=True, period=3, **settings)
    model = model_of(5 + dreamddp.rank())
    model, opt = dreamddp.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    for s in range(steps):
        opt.zero_grad()
        loss_of(model, dreamddp.rank(), s).backward()
        if between:
            between(s)
        opt.step()
    dreamddp.sync_all()
    dreamddp.close()
    return flat(model)


def programs_own(step):
    """Collectives of the program on its default group, within a step."""
    x = torch.full((1000,), float(step + dist.get_rank()))
    dist.all_reduce(x)
    world = dist.get_world_size()
    near(x, torch.full((1000,), float(world * step + world * (world - 1) // 2)), "all_reduce of the program")
    dist.barrier()


@worker
def training_is_bit_identical_to_tcp():
    for strategy in ("wfbp", "dreamddp"):
        over_tcp = trained({"strategy": strategy, "transport": "tcp"})
        over_torch = trained({"strategy": strategy, "transport": "torch"}, between=programs_own)
        expect(torch.equal(over_tcp, over_torch), "%s: not bit-identical to tcp" % strategy)
    os.environ["DREAMDDP_TRANSPORT"] = "torch"
    expect(torch.equal(trained({"strategy": "wfbp"}), trained({"strategy": "wfbp"})), "two runs differ")
    del os.environ["DREAMDDP_TRANSPORT"]


class Counted:
    """A process group that counts the bytes that it sends."""

    def __init__(self, group):
        self.group, self.bytes, self.lock = group, 0, threading.Lock()

    def send(self, tensors, peer, tag):
        with self.lock:
            self.bytes += sum(t.numel() for t in tensors)
        return self.group.send(tensors, peer, tag)

    def recv(self, tensors, peer, tag):
        return self.group.recv(tensors, peer, tag)


def tcp_sockets():
    """The number of TCP sockets of this process."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        with open("/proc/self/net/" + name, encoding="ascii") as f:
            inodes.update(line.split()[9] for line in f.readlines()[1:])
    have = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            have += os.readlink("/proc/self/fd/" + fd)[8:-1] in inodes
        except OSError:
            pass
    return have


@worker
def gloo_sends_every_byte():
    before = tcp_sockets()
    group = dist.new_group()
    dist.barrier()
    of_a_group = tcp_sockets() - before
    dist.destroy_process_group(group)
    before = tcp_sockets()
    dreamddp.init(transport="torch")
    dreamddp.barrier()
    expect(tcp_sockets() - before == of_a_group > 0, "%d TCP sockets more, a group has %d" % (
        tcp_sockets() - before, of_a_group))
    bridge = dreamddp.context().network.bridge
    counted = bridge.group = Counted(bridge.group)
    sent = dreamddp.stats()["bytes_sent"]
    for _ in range(10):
        dreamddp.all_mean(torch.full((200000,), float(dreamddp.rank())))
    sent = dreamddp.stats()["bytes_sent"] - sent
    until = time.time() + 30
    while counted.bytes < sent and time.time() < until:  # the last bytes may still be in the library's socket
        time.sleep(0.01)
    expect(sent > 10 * 200000 * 4 and sent <= counted.bytes < 1.05 * sent + 100000,
           "the library sent %d bytes, gloo %d" % (sent, counted.bytes))
    bridge.group = counted.group
    dreamddp.close()


@worker
def rank_and_world_come_from_torch_distributed():
    dreamddp.init()
    expect((dreamddp.rank(), dreamddp.world()) == (dist.get_rank(), dist.get_world_size()), "rank %d of %d" % (
        dreamddp.rank(), dreamddp.world()))
    near(dreamddp.all_mean(torch.full((5,), float(dreamddp.rank()))), torch.ones(5), "all_mean")
    dreamddp.close()
    dreamddp.init(rank=0, world=1)  # settings take precedence
    expect(dreamddp.world() == 1, "world %d" % dreamddp.world())
    dreamddp.close()
    os.environ.update(DREAMDDP_RANK="0", DREAMDDP_WORLD_SIZE="1")  # and so do variables of the library
    dreamddp.init()
    expect(dreamddp.world() == 1, "world %d" % dreamddp.world())
    dreamddp.close()
    del os.environ["DREAMDDP_RANK"], os.environ["DREAMDDP_WORLD_SIZE"]


@worker
def rank_0_sends_a_reachable_address():
    place = os.environ["DREAMDDP_ADDR"] = sys.argv[3].rpartition(":")[0] + ":29533"
    dreamddp.init()
    dreamddp.barrier()
    expect(dreamddp.context().network.addr == place, dreamddp.context().network.addr)
    dreamddp.close()
    del os.environ["DREAMDDP_ADDR"]
    machine, route = _transport._machine, _transport._route
    _transport._machine, _transport._route = dist.get_rank, lambda: "localhost"  # two machines without a network
    fails(dreamddp.NetworkError, "no address at which other machines reach rank 0")
    _transport._machine, _transport._route = machine, route


def fails(kind, words, **settings):
    try:
        dreamddp.init(**settings)
    except kind as e:
        expect(words in str(e) and "\n" not in str(e), "'%s' is not in: %s" % (words, e))
    else:
        expect(False, "no error: '%s'" % words)


@worker
def user_mistakes_fail_with_a_one_line_error():
    fails(dreamddp.InvalidArgument, "but torch.distributed has %d: leave it out" % dist.get_rank(), transport="torch",
          rank=dist.get_rank() + 1)
    fails(dreamddp.InvalidArgument, "transport sockets with tls_psk", transport="torch", tls_psk="key")
    fails(dreamddp.InvalidArgument, "join_timeout_s=x", transport="torch", join_timeout_s="x")
    fails(dreamddp.InvalidArgument, "transport=torhc is unknown", transport="torhc")
    fails(dreamddp.Mismatch, "belongs to run", transport="torch", run_id="run %d" % dist.get_rank())
    if dist.get_rank() == 0:
        for transport in ("torch", "tcp"):
            fails(dreamddp.PeerTimeout, "call init on every rank, or raise join_timeout_s", transport=transport,
                  join_timeout_s=0.5)
    dist.barrier()


def steps(settings, at_3=None):
    """Trains for 40 steps. Returns the error, or None."""
    try:
        trained(dict(settings, transport="torch"), 40, lambda s: s == 3 and dist.get_rank() == 1 and at_3())
    except dreamddp.Error as e:
        return e


@worker
def killed_rank_is_lost_for_the_others():
    why = steps({"strategy": "wfbp", "peer_timeout_s": 300, "op_timeout_s": 300},
                lambda: os.kill(os.getpid(), signal.SIGKILL))
    expect(isinstance(why, dreamddp.PeerLost) and "rank 1 (descriptor" in str(why), "%s: %s" % (type(why), why))


@worker
def stopped_rank_is_lost_for_the_others():
    why = steps({"strategy": "wfbp", "peer_timeout_s": 6}, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    expect(isinstance(why, dreamddp.PeerLost), "%s: %s" % (type(why), why))


@worker
def elastic_world_continues_without_the_killed_rank():
    why = steps({"strategy": "localsgd", "min_world": 2}, lambda: os.kill(os.getpid(), signal.SIGKILL))
    expect(why is None, "%s: %s" % (type(why), why))


@worker
def exception_of_a_rank_reaches_the_others():
    def fail():
        raise ValueError("odd batch")

    why = steps({"strategy": "wfbp"}, fail)
    expect(isinstance(why, dreamddp.Aborted) and "ended by ValueError: odd batch" in str(why), "%s: %s" % (type(why), why))


@worker
def interrupt_ends_a_blocking_call():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background commands ignore it
    dreamddp.init(transport="torch")
    rank = dreamddp.rank()
    try:
        if rank == 1:  # a second, so that a busy machine does not interrupt it before the call
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        if rank == 0:
            dist.barrier()  # the other ranks have raised their exceptions
        dreamddp.barrier()
        expect(False, "the barrier ended")
    except KeyboardInterrupt:
        expect(rank == 1, "KeyboardInterrupt on rank %d" % rank)
    except dreamddp.Error as e:
        expect(rank != 1 and "rank 1 was interrupted" in str(e), "rank %d: %s" % (rank, e))
    if rank != 0:
        dist.barrier()
    dreamddp.close()


@worker
def destroying_groups_first_ends_in_order():
    dreamddp.init(transport="torch")
    dreamddp.barrier()
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        time.sleep(1)  # until the other ranks have closed
    dreamddp.close()


if __name__ == "__main__":
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method="tcp://" + store, rank=rank, world_size=world)
    for name in sys.argv[4:]:
        CASES[name]()
        print("done %s" % name, flush=True)
