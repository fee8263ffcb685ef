"""The two halves of a request that two workers serve, and what their answers say about it.

The `kv_transfer_params` of a body are vLLM's, with one addition: with a `transfer_id` of the
caller's both halves can be sent at the same time, because each knows what the other calls it.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from expediter.errors import RequestError
from expediter.request import KVFlow
from expediter.transfer.messages import EngineId, TransferId

FIELD = "kv_transfer_params"

Name = Annotated[str, msgspec.Meta(pattern="^[!-~]{1,256}$")]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
PeerPort = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class KVTransferParams(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that matter here. Block ids are asked of the other worker, never believed."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    transfer_id: Name | None = None
    remote_request_id: Name | None = None
    remote_engine_id: Name | None = None
    remote_host: Host | None = None
    remote_port: PeerPort | None = None

    @property
    def flow(self) -> KVFlow:
        """Where the prompt's KV goes."""
        if self.do_remote_decode:
            return KVFlow.SENDS
        return KVFlow.RECEIVES if self.do_remote_prefill else KVFlow.LOCAL

    def check(self) -> None:
        """Raises RequestError for what is missing or contradicts itself."""
        if self.do_remote_decode and self.do_remote_prefill:
            raise RequestError(
                "do_remote_decode and do_remote_prefill cannot both be true", param=FIELD
            )
        if self.do_remote_prefill and not self._is_complete:
            raise RequestError(
                "do_remote_prefill needs remote_engine_id, remote_host, remote_port, and "
                "transfer_id or remote_request_id",
                param=FIELD,
            )

    @property
    def _is_complete(self) -> bool:
        name = self.transfer_id or self.remote_request_id
        return None not in (name, self.remote_engine_id, self.remote_host, self.remote_port)


@dataclass(slots=True, kw_only=True, eq=False)
class PrefillLeg:
    """Computes a prompt for another worker. `was_named`: its target may be waiting already."""

    transfer_id: TransferId
    was_named: bool = False
    offer: dict[str, Any] | None = None  # for the target, once all is computed

    @property
    def answer_fields(self) -> dict[str, Any]:
        """What the answer has besides the usual; null where nothing is handed over."""
        return {FIELD: self.offer}


@dataclass(slots=True, kw_only=True)
class TransferReport:
    """How a transfer went. `hidden_bytes` came before the prompt was computed to its end.

    `seconds` were spent copying; `exposed_seconds` passed from the end of the prefill, as this
    worker heard of it, until all was here.
    """

    num_tokens: int = 0
    num_bytes: int = 0
    hidden_bytes: int = 0
    num_descriptors: int = 0
    seconds: float = 0.0
    exposed_seconds: float | None = None
    gave_first_token: bool = False
    failure: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class DecodeLeg:
    """Goes on from a prompt computed elsewhere.

    `takes_first_token`: the other worker samples the first token, and this one need not.
    """

    transfer_id: TransferId
    engine_id: EngineId
    host: str
    port: int
    takes_first_token: bool = True
    report: TransferReport = field(default_factory=TransferReport)

    @property
    def answer_fields(self) -> dict[str, Any]:
        """What the answer has besides the usual."""
        report = self.report
        told = {
            "source": self.engine_id,
            "tokens": report.num_tokens,
            "bytes": report.num_bytes,
            "hidden_bytes": report.hidden_bytes,
            "seconds": report.seconds,
            "exposed_seconds": report.exposed_seconds,
            "first_token": "prefill" if report.gave_first_token else "decode",
            "failure": report.failure,
        }
        return {"kv_transfer": told}


Leg = PrefillLeg | DecodeLeg


def leg_of(params: KVTransferParams, *, new_name: str, num_choices: int) -> Leg | None:
    """The half that checked `params` ask for; `new_name` is for a transfer that has none."""
    match params.flow:
        case KVFlow.SENDS:
            name = params.transfer_id or new_name
            return PrefillLeg(
                transfer_id=TransferId(name), was_named=params.transfer_id is not None
            )
        case KVFlow.RECEIVES:
            name = params.transfer_id or params.remote_request_id or ""
            return DecodeLeg(
                transfer_id=TransferId(name),
                engine_id=EngineId(params.remote_engine_id or ""),
                host=params.remote_host or "",
                port=params.remote_port or 0,
                takes_first_token=num_choices == 1,
            )
        case _:
            return None
