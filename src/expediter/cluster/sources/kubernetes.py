"""Workers behind a Kubernetes service: the ready endpoints of its EndpointSlices.

The official client knows how to reach and to be let into a cluster; it blocks, so it has a thread
to itself. That lists the slices and then watches them from that version on; when the watch ends,
because its time is up or its version is too old (410), it lists anew. What cannot be asked changes
nothing.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from expediter.config import WorkerEndpoint
from expediter.config.discovery import KubernetesDiscovery
from expediter.errors import ConfigError

logger = logging.getLogger(__name__)

WATCH_SECONDS = 300
REQUEST_SECONDS = 10
RETRY_SECONDS = 2.0
LEAVE_SECONDS = 5.0
GONE = 410


class _Conditions(msgspec.Struct):
    ready: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Slice(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[_Slice]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class KubernetesSource:
    """See `WorkerSource`."""

    def __init__(self, config: KubernetesDiscovery) -> None:
        """Raises ConfigError if the official client is not installed."""
        if find_spec("kubernetes") is None:
            raise ConfigError("discovery in Kubernetes needs its client: expediter[kubernetes]")
        self._config = config
        self._stop = threading.Event()
        self._response: Any = None  # of the watch: shut down from outside to end it

    async def watch(self) -> AsyncGenerator[list[WorkerEndpoint]]:
        """The service's ready endpoints, and after each change again."""
        loop = asyncio.get_running_loop()
        found: asyncio.Queue[list[WorkerEndpoint]] = asyncio.Queue()

        def tell(slices: Iterable[_Slice]) -> None:
            loop.call_soon_threadsafe(found.put_nowait, self._endpoints(slices))

        thread = threading.Thread(target=self._run, args=(tell,), name="kubernetes", daemon=True)
        thread.start()
        told = None
        try:
            while True:
                endpoints = await found.get()
                if endpoints != told:
                    yield endpoints
                    told = endpoints
        finally:
            self._stop.set()
            self._end_watch()
            await asyncio.to_thread(thread.join, LEAVE_SECONDS)

    def _endpoints(self, slices: Iterable[_Slice]) -> list[WorkerEndpoint]:
        authorities = set()
        for part in slices:
            port = self._port(part.ports or [])
            for endpoint in part.endpoints or () if port else ():
                if endpoint.conditions.ready is not False:
                    authorities |= {
                        f"[{a}]:{port}" if ":" in a else f"{a}:{port}" for a in endpoint.addresses
                    }
        scheme = self._config.scheme
        return [WorkerEndpoint(url=f"{scheme}://{authority}") for authority in sorted(authorities)]

    def _port(self, ports: list[_Port]) -> int | None:
        name = self._config.port_name
        return next((port.port for port in ports if name is None or port.name == name), None)

    def _run(self, tell: Callable[[Iterable[_Slice]], None]) -> None:
        """The thread: list, watch, and again, until told to stop."""
        while not self._stop.is_set():
            try:
                api = self._connect()
                while not self._stop.is_set():
                    self._list_and_watch(api, tell)
            except Exception as error:
                # Whatever the client raises, of which there is much: HTTP, TLS, files, its own.
                if not self._stop.is_set():
                    logger.warning("Kubernetes: workers stay as they are: %s", _short(error))
                self._stop.wait(RETRY_SECONDS)

    def _connect(self) -> Any:
        client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
        if self._config.kubeconfig is not None:
            return client.DiscoveryV1Api(config.new_client_from_config(self._config.kubeconfig))
        settings = client.Configuration()
        config.load_incluster_config(client_configuration=settings)
        return client.DiscoveryV1Api(client.ApiClient(settings))

    def _list_and_watch(self, api: Any, tell: Callable[[Iterable[_Slice]], None]) -> None:
        listing = msgspec.json.decode(self._ask(api, REQUEST_SECONDS).data, type=_List)
        slices = {part.metadata.name: part for part in listing.items}
        tell(slices.values())
        version = listing.metadata.resource_version
        response = self._response = self._ask(
            api,
            WATCH_SECONDS + REQUEST_SECONDS,
            watch=True,
            resource_version=version,
            timeout_seconds=WATCH_SECONDS,
        )
        try:
            for line in _lines(response):
                event = msgspec.json.decode(line, type=_Event)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=_Status)
                    if status.code != GONE:
                        raise OSError(f"{status.code} {status.message}")
                    return
                part = msgspec.json.decode(event.object, type=_Slice)
                if event.type == "DELETED":
                    slices.pop(part.metadata.name, None)
                else:
                    slices[part.metadata.name] = part
                tell(slices.values())
        finally:
            self._response = None
            response.close()

    def _ask(self, api: Any, seconds: float, **parameters: object) -> Any:
        """The answer's bytes, not the client's objects: of a slice little is needed."""
        return api.list_namespaced_endpoint_slice(
            self._config.namespace,
            label_selector=f"kubernetes.io/service-name={self._config.service}",
            _preload_content=False,
            _request_timeout=seconds,
            **parameters,
        )

    def _end_watch(self) -> None:
        response = self._response
        if response is not None:
            with suppress(Exception):  # it may end at this moment by itself
                response.shutdown()


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)


def _short(error: Exception) -> str:
    """The client puts whole answers into its messages."""
    return f"{type(error).__name__}: {str(error)[:200]}"
