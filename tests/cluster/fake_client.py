"""Workers without sockets, scripted by the test."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from expediter.cluster.client import (
    BodyKind,
    ForwardedRequest,
    Inflow,
    ResponseHead,
    ResponseSink,
    Usage,
)
from expediter.cluster.decisions import Decision
from expediter.errors import ClusterError


class _Inflow:
    is_between_chunks = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@dataclass
class FakeExchange:
    status: int
    failure: ClusterError | None = None
    gate: asyncio.Event | None = None
    is_empty: bool = False
    is_complete: bool = False

    async def ended(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure


@dataclass
class FakeClient:
    """`refusal` is raised before anything is sent back, `failure` in the middle of the answer."""

    name: str = ""
    status: int = 200
    refusal: ClusterError | None = None
    failure: ClusterError | None = None
    gate: asyncio.Event | None = None
    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    health: Callable[[], int] = lambda: 200
    num_requests: int = 0
    num_probes: int = 0

    async def send(self, request: ForwardedRequest, sink: ResponseSink) -> FakeExchange:  # noqa: ARG002
        self.num_requests += 1
        if self.refusal is not None:
            raise self.refusal
        head = ResponseHead(status=self.status, reason=b"", headers=(), body=BodyKind.UNTIL_CLOSE)
        sink.start(head, _Inflow())
        sink.write(self.name.encode())
        return FakeExchange(self.status, self.failure, self.gate)

    async def fetch(self, path: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ARG002, ASYNC109
        if path == "/health":
            self.num_probes += 1
            return self.health(), b""
        return self.pages.get(path, (404, b""))

    def close(self) -> None: ...


class FakeSink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.placements: list[Decision] = []
        self.body = b""
        self.has_started = False
        self.used: Usage | None = None

    def placed(self, decision: Decision) -> None:
        self.placements.append(decision)

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:  # noqa: ARG002
        self.has_started = True
        return True

    def write(self, data: bytes) -> None:
        self.body += data

    def end(self) -> None: ...

    def usage(self) -> Usage | None:
        return self.used
