"""How KV gets from a prefill worker to a decode worker, as far as a router has to know.

Workers speak one of three dialects:

    vllm        the prefill worker answers with what the decode worker must be sent (serial)
    expediter   both are sent a name for the transfer and meet by it (at once)
    sglang      both are sent the prefill worker's address and a room in it (at once)

Which one, the worker itself says, unless it is configured.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from expediter.cluster.client import ForwardedRequest, Usage, WorkerClient
from expediter.cluster.discovery import WILDCARD_HOSTS
from expediter.config import WorkerEndpoint
from expediter.routing.disaggregated import Disaggregated

logger = logging.getLogger(__name__)

SGLANG_BOOTSTRAP_PORT = 8998

Merge = Callable[[bytes], Callable[[bytes], bytes]]
"""Given all of the prefill worker's answer: what makes of the decode worker's whole answer, or of
an event of its stream, what the client gets."""


class Dialect(StrEnum):
    """What a worker speaks; see above."""

    VLLM = "vllm"
    EXPEDITER = "expediter"
    SGLANG = "sglang"

    @property
    def serves_alone(self) -> bool:
        """Whether a prefill or decode worker can serve a request without the other."""
        return self is not Dialect.SGLANG


class KVPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's KV is fetched from. vLLM says it with each answer."""

    dialect: Dialect = Dialect.VLLM
    engine_id: str = ""
    host: str = ""
    port: int = 0


class LegBodies(Protocol):
    """Makes the two requests of a pair from a client's. Params are JSON, passed as they came."""

    def may_split(self, request: ForwardedRequest) -> bool:
        """Whether the request is one that generates, in a form that can be split."""
        ...

    def has_one_prompt(self, request: ForwardedRequest) -> bool:
        """Whether it has one prompt: a prefill worker's answer names the KV of one only."""
        ...

    def is_streamed(self, request: ForwardedRequest) -> bool:
        """Whether the first byte of the answer comes with its first token."""
        ...

    def prefill_leg(
        self, request: ForwardedRequest, params: bytes, *, is_first_token: bool
    ) -> ForwardedRequest:
        """Computes the prompt and one token: the answer's first, or one that nobody reads."""
        ...

    def decode_leg(self, request: ForwardedRequest, params: bytes) -> ForwardedRequest:
        """The request itself, and where its KV comes from."""
        ...

    def params_of(self, answer: bytes) -> bytes | None:
        """What a prefill leg's answer says of its KV; None if there is nothing to fetch."""
        ...

    def usage_of(self, answer: bytes) -> Usage | None:
        """What a prefill leg's answer says it used."""
        ...

    def bootstrap_leg(self, request: ForwardedRequest, peer: KVPeer) -> ForwardedRequest:
        """SGLang's: the same for both workers, with rooms that no other request has."""
        ...

    def merge_of(self, request: ForwardedRequest) -> Merge | None:
        """What makes SGLang's two answers one, where the decode worker's is not all of it."""
        ...


class Splitting(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to serve a request with two workers."""

    bodies: LegBodies
    policy: Disaggregated
    lease_seconds: float = 30.0


class _ExpediterSource(msgspec.Struct):
    """The answer to our workers' `GET /kv_transfer_source`."""

    engine_id: str
    port: int
    host: str = ""


class _SGLangInfo(msgspec.Struct):
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None


async def find_peer(
    client: WorkerClient, endpoint: WorkerEndpoint, *, dialect: Dialect | None, seconds: float
) -> KVPeer:
    """What the worker says of itself; vLLM, if it says nothing. Raises ClusterError."""
    if dialect is Dialect.VLLM:
        return KVPeer()
    if dialect is not Dialect.SGLANG:
        status, body = await client.fetch("/kv_transfer_source", timeout=seconds)
        if status == 200 and (peer := _from_expediter(body, endpoint)) is not None:
            return peer
    status, body = await client.fetch("/server_info", timeout=seconds)
    if status == 200 and (peer := _from_sglang(body, endpoint)) is not None:
        return peer
    if dialect is Dialect.SGLANG:
        return KVPeer(dialect=dialect, host=_host(endpoint), port=SGLANG_BOOTSTRAP_PORT)
    return KVPeer()


def _from_expediter(body: bytes, endpoint: WorkerEndpoint) -> KVPeer | None:
    try:
        source = msgspec.json.decode(body, type=_ExpediterSource)
    except msgspec.DecodeError:
        logger.warning("%s: its source of KV cannot be read", endpoint.url)
        return None
    host = _host(endpoint) if source.host in ("", *WILDCARD_HOSTS) else source.host
    return KVPeer(
        dialect=Dialect.EXPEDITER, engine_id=source.engine_id, host=host, port=source.port
    )


def _from_sglang(body: bytes, endpoint: WorkerEndpoint) -> KVPeer | None:
    try:
        info = msgspec.json.decode(body, type=_SGLangInfo)
    except msgspec.DecodeError:
        return None
    if info.disaggregation_mode not in ("prefill", "decode"):
        return None
    port = info.disaggregation_bootstrap_port or SGLANG_BOOTSTRAP_PORT
    return KVPeer(dialect=Dialect.SGLANG, host=_host(endpoint), port=port)


def _host(endpoint: WorkerEndpoint) -> str:
    return urlsplit(endpoint.url).hostname or "127.0.0.1"
