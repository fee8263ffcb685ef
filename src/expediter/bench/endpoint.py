"""A live endpoint over HTTP.

The client is aiohttp: its parser is in C and streams come in as the socket gives them, which a
load generator needs that must not be the slower end. Every request may have a connection of its
own, so none waits here for another.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from expediter.bench.reply import Ask, Reply
from expediter.bench.settings import EndpointConfig
from expediter.bench.stream import DONE, EventStream, decode, error_kind
from expediter.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MODELS = "/v1/models"
SETUP_SECONDS = 10.0
MAX_SHOWN = 300  # characters of an error's text


class Client(Protocol):
    """Sends requests; the peer of `Endpoint` in tests runs on a clock that jumps."""

    async def send(self, ask: Ask) -> Reply:
        """The reply, when it has ended, however it did."""
        ...


class Model(msgspec.Struct):
    """What the endpoint says of a model; `max_model_len` is an extension of vLLM's."""

    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[Model]


class Endpoint:
    """See `Client`; made by `open_endpoint`."""

    def __init__(self, session: "ClientSession", config: EndpointConfig) -> None:
        self.url = base_url(config.url)
        self._session = session
        self._config = config
        self._timeout = config.timeout

    async def send(self, ask: Ask) -> Reply:
        """See `Client`."""
        import aiohttp

        loop = asyncio.get_running_loop()
        reply = Reply(sent_at=loop.time())
        error = None
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(self.url + ask.path, data=ask.body, headers=ask.headers) as got,
            ):
                await _read(got, reply)
        except TimeoutError:
            error = "timeout"
        except aiohttp.ClientConnectorError:
            error = "refused"
        except (aiohttp.ClientError, OSError):
            error = "disconnected"
        except msgspec.DecodeError:
            error = "not OpenAI's API"
        return reply.end(now=loop.time(), error=error)

    async def model(self) -> Model:
        """The model to ask for; EndpointError if nobody answers or none is served."""
        status, body = await self._get(MODELS)
        wanted = self._config.model
        if status in (401, 403):
            raise ConfigError(f"{self.url} wants an API key: say --api-key or set OPENAI_API_KEY")
        try:
            models = msgspec.json.decode(body, type=_Models).data if status == 200 else []
        except msgspec.DecodeError:
            models = []
        found = next((model for model in models if wanted in (None, model.id)), None)
        if found is not None:
            return found
        if wanted is not None:
            return Model(wanted)  # an endpoint may serve what it does not list
        raise EndpointError(
            f"{self.url}{MODELS} lists no models (status {status}); is it an OpenAI endpoint?"
        )

    async def round_trip(self) -> float:
        """Seconds of a request that needs no model."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        await self._get(MODELS)
        return loop.time() - started

    async def _get(self, path: str) -> tuple[int, bytes]:
        import aiohttp

        try:
            async with (
                asyncio.timeout(SETUP_SECONDS),
                self._session.get(self.url + path) as response,
            ):
                return response.status, await response.read()
        except TimeoutError:
            raise EndpointError(f"{self.url} does not answer for {SETUP_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EndpointError(f"nothing answers at {self.url}: {error}") from None


@asynccontextmanager
async def open_endpoint(config: EndpointConfig) -> AsyncIterator[Endpoint]:
    """An endpoint, reachable or not; ConfigError where aiohttp is not installed."""
    aiohttp = require_aiohttp()
    headers = {"content-type": "application/json"} | config.headers
    if config.api_key:
        headers["authorization"] = f"Bearer {config.api_key}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=["User-Agent"],
    ) as session:
        yield Endpoint(session, config)


def require_aiohttp() -> Any:
    """ConfigError if no requests can be sent from here."""
    try:
        import aiohttp
    except ImportError:
        raise ConfigError(
            "a live endpoint needs aiohttp; install it with pip install 'expediter[bench]'"
        ) from None
    return aiohttp


def base_url(url: str) -> str:
    """Without the path that every request has."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def refusal(reply: Reply) -> str:
    """Why a reply is none, for a message."""
    said = reply.text.strip()[:MAX_SHOWN]
    return f"{reply.error or reply.status}{': ' + said if said else ''}"


async def _read(response: "ClientResponse", reply: Reply) -> None:
    loop = asyncio.get_running_loop()
    reply.status = response.status
    reply.worker = response.headers.get("x-expediter-worker")
    if response.status != 200:
        await _read_error(response, reply)
    elif response.content_type != "text/event-stream":
        event = decode(await response.read())
        reply.take(event, now=loop.time())
    else:
        stream = EventStream()
        async for data in response.content.iter_any():
            now = loop.time()
            for event_data in stream.feed(data):
                if event_data == DONE:
                    reply.is_finished = True
                else:
                    reply.take(decode(event_data), now=now)


async def _read_error(response: "ClientResponse", reply: Reply) -> None:
    body = await response.read()
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = None
    error = said.get("error", said) if isinstance(said, dict) else None
    reply.error = error_kind(error, response.status)
    message = error.get("message") if isinstance(error, dict) else None
    reply.parts.append(str(message or body[:MAX_SHOWN].decode("utf-8", "replace")))
