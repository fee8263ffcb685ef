"""Workers on real sockets that do exactly what a test tells them, and a gateway before them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from expediter.config import GatewayConfig, WorkerEndpoint
from expediter.gateway.gateway import Gateway
from expediter.load import WorkerRole
from expediter.routing.cache_aware import CacheAware
from expediter.routing.policy import RoutingPolicy
from expediter.tokenizer import Tokenizer

OK = b"HTTP/1.1 200 OK\r\n"
JSON_OK = OK + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
PROBED = ("/v1/models", "/kv_event_sources", "/server_info", "/kv_transfer_source")
SSE_HEAD = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Received:
    """A request as it arrived at the worker."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


Script = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def always(answer: bytes) -> Script:
    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return script


def hang_up(answer: bytes = b"") -> Script:
    """Write some of an answer and close."""

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return script


class FakeWorker:
    """Answers requests by its script; `/health` is always fine while it listens.

    What else a gateway asks of a worker is in `pages`, or is not there.
    """

    role = WorkerRole.BOTH

    def __init__(self, script: Script, *, name: str = "w", port: int = 0) -> None:
        self.pages: dict[str, bytes] = {}
        self.script = script
        self.name = name
        self.port = port
        self.received: list[Received] = []
        self.num_connections = 0
        self.num_hung_up = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "FakeWorker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    @property
    def request_ids(self) -> list[str]:
        """Which requests came; one that was sent again on a new connection counts once."""
        return list(dict.fromkeys(r.values("x-request-id")[0] for r in self.received))

    @property
    def endpoint(self) -> WorkerEndpoint:
        url = f"http://127.0.0.1:{self.port}"
        return WorkerEndpoint(url=url, worker_id=self.name, role=self.role)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.num_connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                if request.target == "/health":
                    writer.write(JSON_OK)
                elif request.target in self.pages:
                    page = self.pages[request.target]
                    writer.write(OK + b"content-length: %d\r\n\r\n%b" % (len(page), page))
                elif request.target in PROBED:
                    writer.write(OK.replace(b"200 OK", b"404 No") + b"content-length: 0\r\n\r\n")
                else:
                    self.received.append(request)
                    await self._run(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    async def _run(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Run the script until it ends or the gateway hangs up."""
        script = asyncio.ensure_future(self.script(request, writer))
        gone = asyncio.ensure_future(_until_gone(reader))
        await asyncio.wait([script, gone], return_when=asyncio.FIRST_COMPLETED)
        self.num_hung_up += not script.done() or isinstance(script.exception(), ConnectionError)
        for task in (script, gone):
            task.cancel()
        await asyncio.gather(script, gone, return_exceptions=True)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)]
    length = next((int(v) for n, v in headers if n.lower() == "content-length"), 0)
    return Received(method, target, headers, await reader.readexactly(length))


def cache_aware() -> CacheAware:
    return CacheAware(load_weight=0.0, max_imbalance=0.2, slack_tokens=1024)


@asynccontextmanager
async def gateway_before(
    *workers: FakeWorker,
    policy: RoutingPolicy | None = None,
    tokenizer: Tokenizer | None = None,
    waits: bool = True,
    **settings: object,
) -> AsyncIterator[Gateway]:
    """A running gateway; unless told otherwise it has seen every worker up."""
    config = GatewayConfig(
        port=0,
        workers=tuple(worker.endpoint for worker in workers),
        **{"shutdown_seconds": 1.0, "health_interval_seconds": 0.05, **settings},  # type: ignore[arg-type]
    )
    gateway = Gateway(config, policy=policy or cache_aware(), tokenizer=tokenizer)
    await gateway.start()
    try:
        if waits:
            async with asyncio.timeout(10):
                while len(gateway.membership.ready()) < len(workers):  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        yield gateway
    finally:
        await gateway.stop()


@dataclass
class Answer:
    """An answer read off the wire; `is_complete` says whether its framing ended as it should."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool


class Client:
    """One connection to the gateway, bytes in and out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, to_head: bool = False) -> Answer:
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].decode("latin-1").split("\r\n")
            fields = (line.partition(": ") for line in lines)
            headers = {name.lower(): value for name, _, value in fields}
            status = int(first.split(" ")[1])
            try:
                body = b"" if to_head or status in (100, 204) else await self._body(headers)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                partial = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
                return Answer(status, headers, partial, False)
            return Answer(status, headers, body, True)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.read()
        body = b""
        while True:
            try:
                size = int((await self.reader.readuntil(b"\r\n"))[:-2].partition(b";")[0], 16)
                body += (await self.reader.readexactly(size + 2))[:-2]
            except asyncio.IncompleteReadError as error:
                raise asyncio.IncompleteReadError(body + error.partial, None) from None
            if size == 0:
                return body

    async def is_closed(self) -> bool:
        async with asyncio.timeout(20):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def client_of(gateway: Gateway) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**20)
    client = Client(reader, writer)
    try:
        yield client
    finally:
        client.close()


def post(
    body: bytes = b"{}", *, path: str = "/v1/completions", headers: str = "", version: str = "1.1"
) -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: test\r\n{headers}Content-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def get(path: str, *, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()


async def ask(gateway: Gateway, request: bytes) -> Answer:
    async with client_of(gateway) as client:
        client.send(request)
        return await client.answer()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
