"""What ranks do together.

A rank learns from a sum that every other rank has come as far as its own part of that sum, and
of nothing later. All ranks run the same steps in the same order, so that each collective finds
its counterparts.
"""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

from expediter.engine.shard import Shard

LOOPBACK = "127.0.0.1"
# Up to here gloo's all-reduce, which passes parts around in a ring, waits longer than it sends.
# Measured with three ranks on two busy cores: all-to-all took 0.6 of its time for 18 KiB, 0.7 for
# 288 KiB, and twice as long for 1.1 MiB.
FEW_BYTES = 256 * 1024


class Collectives(Protocol):
    """Of one rank. Without the others they raise RuntimeError, at the latest after a while."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, the same at each; may be `part` itself."""
        ...

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """At rank 0 all parts side by side, in the order of ranks; elsewhere the own one."""
        ...

    def meet(self) -> None:
        """Return when every rank has come here."""
        ...

    def when_all_are_here(self, call: Callable[[], None]) -> None:
        """Call it once every rank has come this far: in the next sum, if not at once."""
        ...


class Alone:
    """One rank."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """See `Collectives`."""
        return part

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """See `Collectives`."""
        return part

    def meet(self) -> None:
        """See `Collectives`."""

    def when_all_are_here(self, call: Callable[[], None]) -> None:
        """See `Collectives`."""
        call()


class Group:
    """Ranks in processes of one machine, connected by gloo, or by NCCL on GPUs.

    The process group is used directly, not as torch's global one: a process may have several.
    """

    def __init__(
        self,
        store: TCPStore,
        *,
        shard: Shard,
        device: torch.device,
        timeout_seconds: float,
    ) -> None:
        """Connects; returns when all ranks have. RuntimeError if one does not."""
        self._shard = shard
        self._store = store  # it must last as long as the group
        self._mark = torch.zeros(1, device=device)
        self._waiting: Callable[[], None] | None = None
        self._ranks = _process_group(store, shard, device, timedelta(seconds=timeout_seconds))
        self.meet()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """See `Collectives`."""
        if part.nbytes <= FEW_BYTES and part.device.type == "cpu":
            part = self._sum_of_few(part)
        else:
            self._ranks.allreduce([part]).wait()
        if self._waiting is not None:
            call, self._waiting = self._waiting, None
            call()
        return part

    def _sum_of_few(self, part: torch.Tensor) -> torch.Tensor:
        """Everybody gets all parts at once, and adds them up."""
        sent = part.expand(self._shard.size, *part.shape).contiguous()
        received = torch.empty_like(sent)
        self._ranks.alltoall_base(received, sent, [], []).wait()
        return received.sum(0)

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """See `Collectives`."""
        if self._shard.rank:
            self._ranks.gather([], [part]).wait()
            return part
        parts = [torch.empty_like(part) for _ in range(self._shard.size)]
        self._ranks.gather([parts], [part]).wait()
        return torch.cat(parts, -1)

    def meet(self) -> None:
        """See `Collectives`."""
        self.sum(self._mark)

    def when_all_are_here(self, call: Callable[[], None]) -> None:
        """See `Collectives`."""
        assert self._waiting is None, "a call still waits for the sum before"
        self._waiting = call

    def close(self) -> None:
        """Disconnect; a collective under way, here or elsewhere, fails."""
        self._ranks.abort()


def listen() -> tuple[TCPStore, int]:
    """A place for ranks to find each other, and its port; only this machine reaches it."""
    listener = socket.create_server((LOOPBACK, 0))
    port: int = listener.getsockname()[1]
    store = TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def find(port: int) -> TCPStore:
    """The place where another process listens."""
    return TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False)


def _process_group(store: TCPStore, shard: Shard, device: torch.device, timeout: timedelta) -> Any:
    """A backend of torch's, of whose interface its own stubs know only a part."""
    if device.type == "cuda":
        from torch._C._distributed_c10d import ProcessGroupNCCL  # only where torch has CUDA

        nccl = ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return ProcessGroupNCCL(store, shard.rank, shard.size, nccl)
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = timeout
    return gloo(store, shard.rank, shard.size, options)
