"""A worker's HTTP server on a hash model, in this process, on a port of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from hash_engine import BLOCK_SIZE, VOCAB_SIZE, HashModel, Rig, build, byte_tokenizer, until
from openai.types.chat import ChatCompletionMessageParam
from starlette.applications import Starlette

from expediter.config import KVCacheConfig, WorkerConfig
from expediter.worker.handover.live import LiveHandover
from expediter.worker.prompts import ServedModel
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.server import create_app, listen, serve

MODEL = "hash"
HELLO: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]
RENDERED = b"[system]Be brief.\n[user]Hello\n[assistant]"


@dataclass
class Live:
    """The server and its clients; `http` speaks plainly, `openai` as users do."""

    rig: Rig
    port: int
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    stop: asyncio.Event

    @property
    def model(self) -> HashModel:
        return self.rig.model

    async def complete(self, prompt: object, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}
        response = await self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def error(self, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
        """The error object of a request that is refused with the status it names."""
        response = await self.http.post(path, json=body)
        error: dict[str, Any] = response.json()["error"]
        assert error["code"] == response.status_code >= 400
        assert set(error) == {"message", "type", "param", "code"}
        return error

    async def until_idle(self) -> None:
        """Until no request is left and every block is free."""
        await until(lambda: not self.rig.worker.scheduler.has_work)
        assert self.rig.num_used_blocks == 0

    async def until_steps(self, number: int) -> None:
        await until(lambda: len(self.model.steps) >= number)


@asynccontextmanager
async def live_server(
    model: HashModel | None = None,
    *,
    config: WorkerConfig | None = None,
    publisher: KVEventPublisher | None = None,
    handover: LiveHandover | None = None,
    **options: Any,
) -> AsyncIterator[Live]:
    """Runs until the block ends; the requests that are left then are aborted."""
    publish = publisher.publish if publisher else None
    rig = build(model, publish=publish, handover=handover, **options)
    if handover is not None:
        await handover.start()
    config = config or WorkerConfig(port=0, kv_cache=KVCacheConfig(block_size=BLOCK_SIZE))
    served = served_model(options.get("max_model_len", 512))
    app = create_app(
        rig.worker,
        config=config,
        model=served,
        publisher=publisher,
        handover=handover,
        clock=lambda: 0.0,
    )
    async with served_app(app, rig, config=config, publisher=publisher) as live:
        yield live


@asynccontextmanager
async def served_app(
    app: Starlette, rig: Rig, *, config: WorkerConfig, publisher: KVEventPublisher | None
) -> AsyncIterator[Live]:
    """The rig's app on a socket, and clients to it."""
    listener = listen(config)
    port = listener.getsockname()[1]
    stop = asyncio.Event()
    url = f"http://127.0.0.1:{port}"
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            serve(
                app,
                listener=listener,
                worker=rig.worker,
                publisher=publisher,
                shutdown_seconds=config.shutdown_seconds,
                stop=stop,
            )
        )
        async with (
            httpx.AsyncClient(base_url=url, timeout=20) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
        ):
            try:
                yield Live(rig, port, http, client, stop)
            finally:
                rig.model.may_run.set()
                stop.set()


def served_model(max_model_len: int) -> ServedModel:
    return ServedModel(
        name=MODEL,
        tokenizer=byte_tokenizer(),
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
    )


def events_of(body: str) -> list[Any]:
    """The `data:` lines of a stream, decoded; `[DONE]` as it is."""
    events: list[Any] = []
    for block in body.strip().split("\n\n"):
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events
