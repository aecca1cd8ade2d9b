"""Rank, world size and transport of a program that has initialised torch.distributed.

init() takes rank and world size from torch.distributed, and rank 0 sends its address through it. With transport="torch" the
library opens no connections: it writes to one socket pair per peer (its transport "sockets"), and two threads per peer
transfer the bytes over a separate process group.
"""
import collections
import ctypes
import datetime
import os
import platform
import socket
import struct
import sys
import threading
import time

from ._library import InvalidArgument, NetworkError, PeerTimeout, UsageError

CHUNK = 128 << 10  # largest message; larger ones would delay high-priority frames
DEPTH = 8  # messages in flight per direction; with one message per round trip a long link would idle
HEAD = struct.Struct("<I")  # in front of each message: number of bytes. 0 means that the sender has closed.
IDLE = datetime.timedelta(days=7)  # the library has its own time-outs
CLOSE_S = 3  # seconds that close() waits for the last messages


def _initialised():
    """Returns torch.distributed if the program has initialised it, else None. Imports nothing."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _given(settings, name, variable):
    """Returns a setting, or the environment variable that sets it, or None."""
    value = settings.get(name)
    return os.environ.get(variable) or None if value is None else value


def _join_s(config):
    """The effective join time-out, in seconds."""
    for field, variable in (("join_s", "DREAMDDP_JOIN_TIMEOUT"), ("connect_s", "DREAMDDP_CONNECT_TIMEOUT")):
        try:
            seconds = getattr(config.timeout, field) or float(os.environ.get(variable) or 0)
        except ValueError:
            break  # ddp_open raises an error with the value
        if seconds > 0:
            return seconds
    return 30.0


class Network:
    """Finds the address or the sockets of a context's ranks, if torch.distributed is initialised.

    1. Network(settings) decides; .settings are the settings for the library.
    2. connect(config) completes the configuration. Collective.
    3. opened() runs after ddp_open, even if it failed.
    4. close() runs after ddp_close.
    """

    def __init__(self, settings):
        self.settings = dict(settings)
        self.addr = _given(settings, "addr", "DREAMDDP_ADDR")
        self.bridge, self.held, self.kept = None, None, None
        transport = _given(settings, "transport", "DREAMDDP_TRANSPORT") or "tcp"
        self.dist = _initialised()
        self.bridged = transport == "torch"
        if self.bridged:
            self._check()
            self.settings["transport"] = "tcp" if self.dist.get_world_size() == 1 else "sockets"
        elif transport != "tcp" or settings.get("join") or any(
                _given(settings, name, variable) is not None
                for name, variable in (("rank", "DREAMDDP_RANK"), ("world", "DREAMDDP_WORLD_SIZE"))):
            self.dist = None

    def _check(self):
        if self.dist is None:
            raise UsageError("init(transport='torch'): torch.distributed is not initialised: call "
                             "torch.distributed.init_process_group first, or choose transport='tcp'")
        for name, right in (("rank", self.dist.get_rank()), ("world", self.dist.get_world_size())):
            if self.settings.get(name) not in (None, right):
                raise InvalidArgument("init(transport='torch'): %s=%s, but torch.distributed has %d: leave it out" % (
                    name, self.settings[name], right))

    def connect(self, config):
        if self.dist is None:
            return
        config.rank, config.world = self.dist.get_rank(), self.dist.get_world_size()
        if config.world == 1:
            return
        if self.bridged:
            self.bridge = Bridge(self.dist, _new_group(self.dist, _join_s(config)))
            self.kept = (ctypes.c_int * config.world)(*self.bridge.descriptors())
            config.sockets = self.kept
            return
        if self.addr is None:
            self.addr = self._rendezvous_address(_join_s(config))
        self.kept = str(self.addr).encode()
        config.addr = self.kept

    def _rendezvous_address(self, join_s):
        """Returns a free port of rank 0, on 127.0.0.1 if all ranks are on one machine. Uses a separate group,
        which has the join time-out and needs no CUDA device."""
        group = _new_group(self.dist, join_s)
        machines, told = [None] * self.dist.get_world_size(), [None, None]  # the address, or the reason of the failure
        self.dist.all_gather_object(machines, _machine(), group=group)
        if self.dist.get_rank() == 0:
            try:
                self.held = _hold_port("127.0.0.1" if len(set(machines)) == 1 else None)
                host, port = self.held.getsockname()[:2]
                told[0] = ("[%s]:%d" if ":" in host else "%s:%d") % (host, port)
            except NetworkError as e:
                told[1] = str(e)
        self.dist.broadcast_object_list(told, src=0, group=group)
        self.dist.destroy_process_group(group)
        if told[1]:
            raise NetworkError(told[1])
        return told[0]

    def opened(self):
        if self.held is not None:
            self.held.close()
        if self.bridge is not None:
            self.bridge.opened()

    def close(self):
        if self.bridge is not None:
            self.bridge.close()


def _new_group(dist, join_s):
    """A process group of all ranks for messages in host memory, which NCCL cannot send. Collective."""
    name = str(dist.get_backend())
    backend = "gloo" if name == "undefined" or "gloo" in name or "nccl" in name else name
    try:
        return dist.new_group(backend=backend, timeout=datetime.timedelta(seconds=join_s))
    except RuntimeError as e:
        raise PeerTimeout("init: torch.distributed created no process group of all %d ranks within %g s (%s): call init on every "
                          "rank, or raise join_timeout_s" % (dist.get_world_size(), join_s, str(e).splitlines()[0])) from None


def _machine():
    """A text that is equal for processes that can connect through 127.0.0.1."""
    parts = [platform.node()]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            parts.append(f.read().strip())
        parts.append(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        pass
    return tuple(parts)


def _hold_port(host):
    """Returns a socket bound to a free port. Meanwhile no other program can use the port, except sockets with
    SO_REUSEADDR like the library's. host None: MASTER_ADDR if it is this machine, else the address of the default
    route."""
    hosts = [host] if host else [os.environ.get("MASTER_ADDR") or "localhost", _route()]
    for place in hosts:
        try:
            family, kind, _, _, address = socket.getaddrinfo(place, 0, type=socket.SOCK_STREAM)[0]
            held = socket.socket(family, kind)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
        except OSError:
            continue
        if host or not address[0].startswith("127.") and address[0] != "::1":
            return held
        held.close()
    raise NetworkError("init: found no address at which other machines reach rank 0 (tried %s): set addr, or "
                       "DREAMDDP_ADDR, to HOST:PORT" % ", ".join(hosts))


def _route():
    """The address from which this machine would send to the internet. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
        except OSError:
            return "localhost"
        return s.getsockname()[0]


class _Buffers:
    """DEPTH messages that are used in turn, as bytes and as tensors with the same memory."""

    def __init__(self):
        import torch
        self.bytes = [memoryview(bytearray(HEAD.size + CHUNK)) for _ in range(DEPTH)]
        self.tensors = [torch.frombuffer(b, dtype=torch.uint8) for b in self.bytes]


class Bridge:
    """Transfers the bytes between the library's sockets and a process group."""

    def __init__(self, dist, group):
        self.dist, self.group, self.process = dist, group, os.getpid()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.threads, self.ours, self.theirs = [], {}, {}
        for peer in range(self.world):
            if peer != self.rank:
                self.ours[peer], self.theirs[peer] = socket.socketpair()
        for peer in self.ours:
            for run in (self._send, self._receive):
                thread = threading.Thread(target=run, args=(peer, self.ours[peer]), daemon=True,
                                          name="dreamddp%s-%d" % (run.__name__, peer))
                thread.start()
                self.threads.append((peer, thread))

    def descriptors(self):
        return [self.theirs[peer].fileno() if peer in self.theirs else -1 for peer in range(self.world)]

    def opened(self):
        """Called when ddp_open has duplicated the descriptors."""
        for end in self.theirs.values():
            end.close()

    def close(self):
        """Called when the library has closed its ends. Each direction ends with an empty message."""
        if os.getpid() != self.process:
            return  # a forked child: the connections belong to its parent
        if self._join():
            self._break()  # otherwise the interpreter aborts at exit, because a thread still waits in C++
            if self._join():
                return
        for end in self.ours.values():
            end.close()
        group, self.group = self.group, None
        if self.dist.is_initialized():
            try:
                self.dist.destroy_process_group(group)
            except (AssertionError, RuntimeError, ValueError):
                pass  # the program destroyed all groups and created others

    def _join(self):
        """Waits for the threads. Returns the peers whose threads have not ended."""
        until = time.monotonic() + CLOSE_S
        for _, thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        return {peer for peer, thread in self.threads if thread.is_alive()}

    def _break(self):
        """Called if a peer is stopped or its machine is unreachable. In gloo, a receive that times out fails all
        receives of the group."""
        for peer in {peer for peer, thread in self.threads if thread.is_alive()}:
            try:
                self.group.recv([_Buffers().tensors[0]], peer, 1).wait(datetime.timedelta(milliseconds=1))
            except RuntimeError:
                pass

    # ---- threads ----

    def _send(self, peer, end):
        buffers, sent = _Buffers(), collections.deque()

        def post(i, n):
            HEAD.pack_into(buffers.bytes[i], 0, n)
            sent.append(self.group.send([buffers.tensors[i][:HEAD.size + n]], peer, 0))

        try:
            turn, n = 0, 1
            while n:
                if len(sent) == DEPTH:
                    sent.popleft().wait(IDLE)
                n = end.recv_into(buffers.bytes[turn][HEAD.size:])
                if n:
                    post(turn, n)
                    turn = (turn + 1) % DEPTH
            for _ in range(DEPTH):  # one for each receive that the peer has posted
                if len(sent) == DEPTH:
                    sent.popleft().wait(IDLE)
                post(turn, 0)
                turn = (turn + 1) % DEPTH
            while sent:
                sent.popleft().wait(IDLE)
        except Exception:  # the peer is gone; the library detects it through its socket
            _end(end)

    def _receive(self, peer, end):
        buffers, posted = _Buffers(), collections.deque()

        def post(i):
            posted.append((i, self.group.recv([buffers.tensors[i]], peer, 0)))

        try:
            for i in range(DEPTH):
                post(i)
            heard = True
            while posted:
                i, work = posted.popleft()
                work.wait(IDLE)
                n = HEAD.unpack_from(buffers.bytes[i])[0]
                if n and heard:
                    try:
                        end.sendall(buffers.bytes[i][HEAD.size:HEAD.size + n])
                    except OSError:
                        heard = False  # the library has closed. The peer's last message is still to come.
                if n:
                    post(i)
                else:
                    _end(end)
        except Exception:
            _end(end)


def _end(end):
    """Shuts down the library's connection and ends the thread that reads from it. The peer sends and reads nothing
    more."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
