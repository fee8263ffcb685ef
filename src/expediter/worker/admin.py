"""Everything that generates nothing: what is served, how it goes, tokens, the cache."""

import time
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from expediter.worker.body import decode_body, read_body
from expediter.worker.handover.live import LiveHandover
from expediter.worker.prompts import LONG_BYTES, PromptReader, ServedModel, off_loop
from expediter.worker.protocol import DetokenizeRequest, TokenizeRequest
from expediter.worker.publisher import RANK, KVEventPublisher
from expediter.worker.replies import json_response
from expediter.worker.worker import Worker


class AdminEndpoints:
    """vLLM's endpoints besides generation, with its answers' shapes."""

    def __init__(
        self,
        worker: Worker,
        *,
        model: ServedModel,
        registry: CollectorRegistry,
        publisher: KVEventPublisher | None,
        handover: LiveHandover | None,
        max_body_bytes: int,
    ) -> None:
        self._worker = worker
        self._model = model
        self._reader = PromptReader(model)
        self._registry = registry
        self._publisher = publisher
        self._handover = handover
        self._max_body_bytes = max_body_bytes
        self._start_time = int(time.time())

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        card = {
            "id": self._model.name,
            "object": "model",
            "created": self._start_time,
            "owned_by": "expediter",
            "root": self._model.name,
            "parent": None,
            "max_model_len": self._model.max_model_len,
        }
        return json_response({"object": "list", "data": [card]})

    async def health(self, _: Request) -> Response:
        """GET /health: 503 while steps fail or the worker shuts down."""
        return Response(status_code=200 if self._worker.is_healthy else 503)

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(
            generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    async def load(self, _: Request) -> Response:
        """GET /load: requests that run or wait."""
        load = self._worker.load()
        return json_response({"server_load": load.num_running + load.num_waiting})

    async def version(self, _: Request) -> Response:
        """GET /version."""
        return json_response({"version": version("expediter")})

    async def kv_event_sources(self, _: Request) -> Response:
        """GET /kv_event_sources: the publisher of each rank; empty without one."""
        publisher = self._publisher
        return json_response({} if publisher is None else {str(RANK): publisher.description()})

    async def kv_transfer_source(self, _: Request) -> Response:
        """GET /kv_transfer_source: where other workers get KV from here; 404 if nowhere."""
        if self._handover is None:
            raise HTTPException(404, "this worker moves no KV")
        return json_response(self._handover.description())

    async def reset_prefix_cache(self, _: Request) -> Response:
        """POST /reset_prefix_cache: no success while requests hold blocks."""
        return json_response({"success": self._worker.reset_prefix_cache()})

    async def tokenize(self, http: Request) -> Response:
        """POST /tokenize."""
        body = await read_body(http, max_bytes=self._max_body_bytes)
        request = decode_body(body, TokenizeRequest)
        self._model.require(request.model)
        if request.prompt is not None:
            special = request.add_special_tokens is not False
            tokens = await self._reader.text(request.prompt, special=special)
        else:
            tokens = (await self._reader.chat(request, num_bytes=len(body))).token_ids
        texts = map(self._model.tokenizer.token_text, tokens)
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._model.max_model_len,
                "tokens": tokens,
                "token_strs": list(texts) if request.return_token_strs else None,
            }
        )

    async def detokenize(self, http: Request) -> Response:
        """POST /detokenize; special tokens are written out."""
        body = await read_body(http, max_bytes=self._max_body_bytes)
        request = decode_body(body, DetokenizeRequest)
        self._model.require(request.model)

        def decode() -> str:
            return self._model.tokenizer.decode(request.tokens, skip_special_tokens=False)

        text = await off_loop(decode, is_long=len(body) > LONG_BYTES)
        return json_response({"prompt": text})
