"""Network namespaces connected by a router, for tests that run as root. Nothing is sent outside the machine."""
import os
import shutil
import subprocess


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Net:
    """n hosts of one machine each: host i has 10.77.i.1 and fd77:i::1, the router in the middle
    10.77.i.254 and fd77:i::fe."""

    def __init__(self, n, name):
        self.n, self.router = n, name + "r"
        self.hosts = ["%s%d" % (name, i) for i in range(n)]

    @staticmethod
    def possible():
        """Returns '' or the reason why the test cannot run."""
        if os.name != "posix" or os.geteuid() != 0:
            return "namespaces need root"
        if not shutil.which("ip"):
            return "no ip command"
        done = subprocess.run(["ip", "netns", "add", "ddpprobe%d" % os.getpid()], capture_output=True)
        subprocess.run(["ip", "netns", "del", "ddpprobe%d" % os.getpid()], capture_output=True)
        return "" if done.returncode == 0 else "this system does not permit namespaces"

    def __enter__(self):
        try:
            self.make()
        except Exception:
            self.__exit__()
            raise
        return self

    def make(self):
        ip("netns", "add", self.router)
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.run(self.router, "sysctl", "-qw", key + "=1")
        for i, host in enumerate(self.hosts):
            ip("netns", "add", host)
            ip("link", "add", host + "a", "netns", host, "type", "veth", "peer", "name", host + "b",
               "netns", self.router)
            for where, device, last, last6 in ((host, host + "a", 1, "1"),
                                               (self.router, host + "b", 254, "fe")):
                ip("-n", where, "addr", "add", "10.77.%d.%d/24" % (i, last), "dev", device)
                ip("-n", where, "addr", "add", "fd77:%d::%s/64" % (i, last6), "dev", device, "nodad")
                ip("-n", where, "link", "set", device, "up")
                ip("-n", where, "link", "set", "lo", "up")
            ip("-n", host, "route", "add", "default", "via", "10.77.%d.254" % i)
            ip("-n", host, "-6", "route", "add", "default", "via", "fd77:%d::fe" % i)

    def block(self, a, b, how):
        """blackhole: packets are dropped; unreachable: the router replies."""
        for x, y in ((a, b), (b, a)):
            ip("-n", self.router, "rule", "add", "from", "10.77.%d.0/24" % x, "to", "10.77.%d.0/24" % y,
               how)
            ip("-n", self.router, "-6", "rule", "add", "from", "fd77:%d::/64" % x, "to",
               "fd77:%d::/64" % y, how)

    @staticmethod
    def run(where, *command):
        subprocess.run(["ip", "netns", "exec", where, *map(str, command)], check=True,
                       capture_output=True)

    @staticmethod
    def start(where, command, **how):
        return subprocess.Popen(["ip", "netns", "exec", where, *map(str, command)], **how)

    def __exit__(self, *_):
        for where in [self.router, *self.hosts]:
            subprocess.run(["ip", "netns", "del", where], capture_output=True)
