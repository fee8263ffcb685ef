"""Requests that compute a prompt here for another worker to go on from.

Their blocks are offered once they have slots, layer by layer as the model writes them. A sender
that loses its slots computes into others, so its transfer ends: the other worker computes what
it has not read yet.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from expediter.clock import Clock
from expediter.errors import RequestError
from expediter.request import FinishReason, Request, RequestId, RequestOutput
from expediter.scheduling.handover import Admission
from expediter.scheduling.output import SchedulerOutput
from expediter.transfer.messages import EngineId, TransferId
from expediter.transfer.source import HandoverSource
from expediter.worker.handover.legs import FIELD, PrefillLeg


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How other workers find this one; `num_ranks` processes share its heads."""

    engine_id: EngineId
    host: str
    port: int
    num_ranks: int
    block_size: int


@dataclass(slots=True, kw_only=True)
class _Sending:
    request: Request
    leg: PrefillLeg
    block_ids: tuple[int, ...] = ()


class Sender:
    """Tells `source` what becomes of them; `wall_clock` is for deadlines that others are told."""

    def __init__(
        self,
        source: HandoverSource,
        *,
        num_layers: int,
        give_up: Callable[[RequestId], None],
        wall_clock: Clock,
    ) -> None:
        self._source = source
        self._num_layers = num_layers
        self._give_up = give_up
        self._wall_clock = wall_clock
        self._sending: dict[RequestId, _Sending] = {}
        self._names: dict[TransferId, RequestId] = {}  # of these
        self._step: list[tuple[TransferId, int]] = []  # who computes, and how far

    def add(self, request: Request, leg: PrefillLeg) -> None:
        """It waits; RequestError if its transfer's name is another's."""
        if leg.transfer_id in self._names or leg.transfer_id in self._source.leases:
            raise RequestError(f"transfer {leg.transfer_id} is under way already", param=FIELD)
        self._sending[request.request_id] = _Sending(request=request, leg=leg)
        self._names[leg.transfer_id] = request.request_id
        self._source.announce(leg.transfer_id, prompt=prompt_digest(request))

    def drop(self, request_id: RequestId, *, reason: str = "its request ended") -> None:
        """Not all of it will be computed where it was to be; or it is none of these."""
        if entry := self._take(request_id):
            self._source.fail(entry.leg.transfer_id, reason)

    def admitted(self, admission: Admission) -> bool:
        """It has slots; False if it is none of these."""
        entry = self._sending.get(admission.request_id)
        if entry is None:
            return False
        entry.block_ids = tuple(admission.pin.block_ids)
        self._source.begin(
            entry.leg.transfer_id,
            admission.pin,
            num_tokens=admission.num_tokens,
            num_cached_tokens=admission.num_cached_tokens,
        )
        return True

    def step_begins(self, output: SchedulerOutput) -> bool:
        """Whether the step computes for others."""
        self._step = [
            (entry.leg.transfer_id, chunk.num_computed_tokens + chunk.num_new_tokens)
            for chunk in (output.chunks if self._sending else ())
            if (entry := self._sending.get(chunk.request_id)) is not None
        ]
        return bool(self._step)

    def layers_written(self, num_layers: int) -> None:
        """The step has written so many layers' KV."""
        for transfer_id, num_tokens in self._step:
            self._source.progress(transfer_id, num_tokens=num_tokens, num_layers=num_layers)

    def step_ended(self, results: Sequence[RequestOutput], *, address: Address) -> None:
        """What the step computed is there, and some requests have their token."""
        done = [r for r in results if r.tokens and r.request_id in self._sending]
        finished = {self._sending[result.request_id].leg.transfer_id for result in done}
        self._step = [each for each in self._step if each[0] not in finished]
        self.layers_written(self._num_layers)
        self._step = []
        for result in done:
            if entry := self._take(result.request_id):
                self._done(entry, result, address=address)

    def give_up_abandoned(self) -> None:
        """End requests whose target went away."""
        for transfer_id in self._source.take_abandoned():
            if request_id := self._names.get(transfer_id):
                self._give_up(request_id)

    def _take(self, request_id: RequestId) -> _Sending | None:
        entry = self._sending.pop(request_id, None)
        if entry is not None:
            del self._names[entry.leg.transfer_id]
        return entry

    def _done(self, entry: _Sending, result: RequestOutput, *, address: Address) -> None:
        leg, num_tokens = entry.leg, entry.request.num_prompt_tokens
        is_over = result.finish_reason is FinishReason.STOP or num_tokens < address.block_size
        if is_over and not leg.was_named:
            self._source.fail(leg.transfer_id, "there is nothing to go on from")
            return
        self._source.done(
            leg.transfer_id, result.tokens[:1], num_cached_tokens=result.num_cached_tokens
        )
        if not is_over:
            leg.offer = self._offer(entry, result, address=address)

    def _offer(self, entry: _Sending, result: RequestOutput, *, address: Address) -> dict[str, Any]:
        """What vLLM's router hands to the other worker as it is."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": entry.leg.transfer_id,
            "remote_block_ids": [entry.block_ids],
            "remote_engine_id": address.engine_id,
            "remote_request_id": entry.leg.transfer_id,
            "remote_host": address.host,
            "remote_port": address.port,
            "tp_size": address.num_ranks,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": entry.request.num_prompt_tokens,
            "remote_blocks_expiry_time": self._wall_clock() + self._source.leases.seconds,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": result.num_cached_tokens,
        }


def prompt_digest(request: Request) -> bytes:
    """Equal for equal prompts; both workers compute it, so that they do not mix up requests."""
    token_ids = request.prompt_token_ids
    digest = sha256(struct.pack(f"<{len(token_ids)}q", *token_ids))
    for part in (request.cache_salt, request.lora_name):
        digest.update(repr(part).encode())
    return digest.digest()
