"""Prefixes that a worker fetches from another one's cache before it computes a prompt.

A router that decides so (Mooncake's Conductor) says for each request from whom and how much. The
request waits at its worker's door until the copy is there; if the source has evicted it, or the
way breaks, or there is no room, the prompt is computed as it would have been.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from expediter.errors import TransferError
from expediter.kvcache.sequence import KVSequence
from expediter.load import WorkerId
from expediter.request import Request, RequestId
from expediter.simulation.links import SimulatedLinks
from expediter.simulation.worker import SimulatedWorker
from expediter.worker.worker import Worker


class Fetch(NamedTuple):
    """The first tokens of a prompt, and who has their KV."""

    source: WorkerId
    num_tokens: int


@runtime_checkable
class Fetcher(Protocol):
    """A policy that has prefixes fetched."""

    def take_fetch(self, request_id: str) -> Fetch | None:
        """What the worker that got this request is to fetch for it, said once."""
        ...


class PrefixCopies:
    """Carries out what a `Fetcher` decides."""

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        workers: Mapping[WorkerId, SimulatedWorker],
        links: SimulatedLinks,
        bytes_per_token: int,
    ) -> None:
        self._fetcher = fetcher
        self._workers = workers
        self._links = links
        self._bytes_per_token = bytes_per_token

    async def prepare(self, worker_id: WorkerId, request: Request) -> None:
        """Returns when the request may be submitted."""
        fetch = self._fetcher.take_fetch(request.request_id)
        if fetch is None:
            return
        source = _Held.cached(self._workers[fetch.source], request, fetch.num_tokens)
        if source is None:
            return
        try:
            await self._copy(source, self._workers[worker_id], request)
        finally:
            source.let_go()

    async def _copy(self, source: "_Held", worker: SimulatedWorker, request: Request) -> None:
        target = _Held.slots(worker, request, source.num_tokens)
        if target is None:
            return
        missing = target.num_tokens - target.num_cached_tokens
        try:
            await self._links.transfer(
                source.worker_id, worker.worker_id, missing * self._bytes_per_token
            )
            target.publish()
        except TransferError:
            pass  # it is computed
        finally:
            target.let_go()


class _Held:
    """The first `num_tokens` of a prompt at one worker, held until `let_go`."""

    def __init__(
        self, worker: SimulatedWorker, live: Worker, sequence: KVSequence, *, num_tokens: int
    ) -> None:
        """Of a sequence that holds its slots."""
        self.worker_id = worker.worker_id
        self.num_tokens = num_tokens
        self.num_cached_tokens = sequence.num_cached_blocks * live.scheduler.kv_cache.block_size
        self._worker = worker
        self._live = live
        self._sequence = sequence
        self._pin = live.scheduler.kv_cache.pin(sequence)

    @classmethod
    def cached(cls, worker: SimulatedWorker, request: Request, num_tokens: int) -> "_Held | None":
        """As much of it as is cached there; None if nothing is, or there is not a block free."""
        live = worker.live
        if live is None:
            return None
        kv = live.scheduler.kv_cache
        found = kv.num_cached_tokens(kv.open(_prefix(request, num_tokens + 1)))
        # The last token of a sequence is never cached.
        sequence = kv.open(_prefix(request, found + 1))
        if not found or kv.admit(sequence) is None:
            return None
        return cls(worker, live, sequence, num_tokens=found)

    @classmethod
    def slots(cls, worker: SimulatedWorker, request: Request, num_tokens: int) -> "_Held | None":
        """Room for all of it; None if there is none, or it is there already."""
        live = worker.live
        if live is None:
            return None
        kv = live.scheduler.kv_cache
        if kv.num_cached_tokens(kv.open(_prefix(request, num_tokens + 1))) >= num_tokens:
            return None
        sequence = kv.open(_prefix(request, num_tokens))
        if kv.admit(sequence) is None:
            return None
        return cls(worker, live, sequence, num_tokens=num_tokens)

    def publish(self) -> None:
        """All of it is there now."""
        if self._worker.live is self._live:
            self._live.scheduler.kv_cache.publish(self._sequence, self.num_tokens)

    def let_go(self) -> None:
        """What is cached stays cached until its slots are needed."""
        self._live.scheduler.kv_cache.free(self._sequence)
        self._live.let_go(self._pin)


def _prefix(request: Request, num_tokens: int) -> Request:
    """As a request of its own."""
    return Request(
        request_id=RequestId(f"prefix of {request.request_id}"),
        prompt_token_ids=(),
        block_hashes=request.block_hashes,
        num_prompt_tokens=num_tokens,
    )
