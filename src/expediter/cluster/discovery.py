"""Where a worker publishes its KV events: as configured, else as the worker itself says."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from expediter.cluster.client import WorkerClient
from expediter.config import WorkerEndpoint

WILDCARD_HOSTS = ("*", "0.0.0.0", "[::]", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventSource:
    """The ZeroMQ endpoints of one publisher, to connect to. Without `replay` gaps are losses."""

    events: str
    replay: str | None = None
    topic: str = ""


class _VllmSource(msgspec.Struct):
    """One rank's entry in the answer to vLLM's `GET /kv_event_sources`."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"


class _SGLangEvents(msgspec.Struct):
    """`kv_events` in the answer to SGLang's `GET /server_info`; ports count up with the rank."""

    endpoint_port_base: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    endpoint_host: str = "*"
    publisher: str = "zmq"
    topic: str = ""
    dp_size: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    replay_endpoint_port_base: int | None = None


class _SGLangInfo(msgspec.Struct):
    kv_events: _SGLangEvents | None = None


async def find_kv_events(
    client: WorkerClient, endpoint: WorkerEndpoint, *, seconds: float
) -> list[KVEventSource]:
    """One source for each data-parallel rank; none if the worker publishes no events.

    Raises ClusterError if the worker cannot be asked.
    """
    host = urlsplit(endpoint.url).hostname or "127.0.0.1"
    if endpoint.kv_events is not None:
        return [
            KVEventSource(
                events=_reachable(endpoint.kv_events, host),
                replay=_reachable(endpoint.kv_replay, host) if endpoint.kv_replay else None,
            )
        ]
    status, body = await client.fetch("/kv_event_sources", timeout=seconds)
    if status == 200:
        return _from_vllm(body, host)
    status, body = await client.fetch("/server_info", timeout=seconds)
    return _from_sglang(body, host) if status == 200 else []


def _from_vllm(body: bytes, host: str) -> list[KVEventSource]:
    try:
        sources = msgspec.json.decode(body, type=dict[str, _VllmSource])
    except msgspec.DecodeError:
        return []
    return [
        KVEventSource(
            events=_reachable(source.endpoint, host),
            replay=_reachable(source.replay_endpoint, host) if source.replay_endpoint else None,
            topic=source.topic,
        )
        for source in sources.values()
        if source.enable_kv_cache_events and source.publisher == "zmq"
    ]


def _from_sglang(body: bytes, host: str) -> list[KVEventSource]:
    try:
        events = msgspec.json.decode(body, type=_SGLangInfo).kv_events
    except msgspec.DecodeError:
        return []
    if events is None or events.publisher != "zmq":
        return []
    base = _reachable(f"tcp://{events.endpoint_host}:", host)
    replay = events.replay_endpoint_port_base
    return [
        KVEventSource(
            events=f"{base}{events.endpoint_port_base + rank}",
            replay=f"{base}{replay + rank}" if replay else None,
            topic=events.topic,
        )
        for rank in range(events.dp_size)
    ]


def _reachable(endpoint: str, host: str) -> str:
    """A publisher that binds to every address is reached at its worker's host."""
    scheme, _, address = endpoint.partition("://")
    bound, _, port = address.rpartition(":")
    if scheme != "tcp" or bound not in WILDCARD_HOSTS:
        return endpoint
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
