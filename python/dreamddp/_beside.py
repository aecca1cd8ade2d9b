"""Further contexts of the same ranks: for another model, or for layers that were not trained before."""
import socket

from . import _interrupt
from ._library import Unsupported


def _free_port(host):
    """Returns a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for place in (host, ""):  # the name may resolve to a router
        with socket.socket(family) as probe:
            try:
                probe.bind((place, 0))
            except OSError:
                continue
            return probe.getsockname()[1]
    return 0


class Beside:
    """The methods of Context that open further contexts."""

    def beside(self):
        """Returns another context of the same ranks and settings, with separate connections. Collective."""
        if self.lib.ddp_settings(self._alive()).contents.elastic.min_world > 0:
            raise Unsupported("an elastic world (min_world) has only one context, because a joining worker cannot join two: put "
                              "all models into one torch.nn.ModuleList, wrap that with a list of optimizers, and let all "
                              "parameters that are trained later require a gradient before wrap")
        more = dict(self.settings, rank=self.rank, world=self.world)
        self.besides += 1
        if self.world > 1 and not self.network.bridged:
            more["addr"] = self._address_beside(self.lib.ddp_settings(self.ptr).contents.addr.decode())
        return type(self)(**more)

    def reopen(self):
        """Replaces the context by one with the same ranks and settings, but without layers. Collective."""
        self.sync_all()
        before = self.step
        other = self.beside()
        _interrupt.unwatch(other)
        self.lib.ddp_close(self.ptr)
        self.network.close()
        self.ptr, self.network, other.ptr = other.ptr, other.network, None
        self._kept, self._cancel = other._kept, other._cancel
        self.started, self.steps_before = False, before

    def _address_beside(self, addr):
        """The address of another context: another file, or another port of rank 0."""
        if addr.startswith("file://"):
            return "%s.%d" % (addr, self.besides)
        host = addr.rpartition(":")[0] or addr
        port = self.broadcast_object(_free_port(host.strip("[]")) if self.rank == 0 else None)
        return "%s:%d" % (host, port)
