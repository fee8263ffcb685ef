"""What happens to one request: answered here, or read for routing and sent to a worker."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from expediter.clock import Clock
from expediter.cluster.client import ForwardedRequest
from expediter.cluster.decisions import Decision
from expediter.cluster.dispatcher import Dispatcher
from expediter.errors import (
    ClusterError,
    RequestError,
    WorkerDeclined,
    WorkerRefused,
    WorkerUnavailable,
)
from expediter.gateway.access_log import AccessLog
from expediter.gateway.endpoints import Endpoints
from expediter.gateway.forwarded import forwarded_lines
from expediter.gateway.limits import Lease
from expediter.gateway.observations import Observations
from expediter.gateway.openai import GENERATE, Facts, Fields, read_facts, read_fields
from expediter.gateway.prompts import PromptReader
from expediter.gateway.replies import Reply, error_reply, failure_reply, render_reply
from expediter.gateway.request import HttpRequest
from expediter.gateway.server import ClientConnection
from expediter.gateway.session import session_of
from expediter.gateway.sink import ClientSink
from expediter.gateway.story import ABORTED, Story
from expediter.gateway.talkative import TalkativeSink
from expediter.gateway.tenants import Tenancy, refusal_reply
from expediter.gateway.transfer import require_no_transfer
from expediter.routing.prompt import BYTES_PER_TOKEN, Prompt
from expediter.routing.view import RoutedRequest

logger = logging.getLogger(__name__)

NOT_EXECUTED = (WorkerUnavailable, WorkerRefused, WorkerDeclined)
FORWARDED_PATHS = frozenset({b"/tokenize", b"/detokenize"})
MAX_REQUEST_ID_BYTES = 256
SLO_CLASS = b"x-slo-class"
MAX_CLASS_BYTES = 64


class RequestHandler:
    """Called with each request; returns when its answer is written.

    `tenancy` may be replaced while it runs, and the access log by `log_to`.
    """

    tenancy: Tenancy | None = None
    access_log: AccessLog | None = None
    _sink: Callable[[ClientConnection, HttpRequest, bytes], ClientSink] = ClientSink

    def __init__(
        self,
        *,
        endpoints: Endpoints,
        dispatcher: Dispatcher,
        prompts: PromptReader,
        observations: Observations,
        clock: Clock,
    ) -> None:
        self._endpoints = endpoints
        self._dispatcher = dispatcher
        self._prompts = prompts
        self._observations = observations
        self._clock = clock
        self._new_ids = _new_ids()

    def log_to(self, log: AccessLog | None) -> None:
        """Tell this log of every request from now on; None tells nobody."""
        self.access_log = log
        is_plain = log is None and not logger.isEnabledFor(logging.DEBUG)
        self._sink = ClientSink if is_plain else TalkativeSink

    def __call__(
        self, request: HttpRequest, connection: ClientConnection
    ) -> Coroutine[Any, Any, None]:
        """Serve one request; a cancelled call has given up at the worker too."""
        path = request.path
        if not self._endpoints.has(path) and (path.startswith(b"/v1/") or self._is_forwarded(path)):
            return self._serve(request, connection)
        return self._reply(request, connection)

    async def _reply(self, request: HttpRequest, connection: ClientConnection) -> None:
        """Answer it here."""
        reply = self._endpoints.reply(request)
        if reply is None:
            reply = error_reply(404, "there is nothing at this path")
        elif self.tenancy is not None and request.path.startswith(b"/v1/"):
            try:
                self.tenancy.check(request)
            except RequestError as error:
                self._observations.refusals[error.kind] += 1
                reply = refusal_reply(error)
        _write(reply, request, connection)

    def _is_forwarded(self, path: bytes) -> bool:
        """Of paths that are not OpenAI's. SGLang's own has no salts to keep tenants apart by."""
        return path in FORWARDED_PATHS or (path == GENERATE and self.tenancy is None)

    async def _serve(self, request: HttpRequest, connection: ClientConnection) -> None:
        """Forward it, and take down how it went."""
        story = Story(
            request=request,
            client=connection.peer,
            arrived_at=self._clock(),
            request_id=self._request_id(request),
        )
        lease = sink = None
        try:
            if self.tenancy is not None:
                lease = self.tenancy.admit(request)
                story.tenant_id = story.slo_class = lease.tenant_id
            facts = self._facts(request)
            prompt = None
            if type(facts) is Fields:  # to look for a base class, too, would take longer
                lora_name = self._dispatcher.adapter(facts.model)
                prompt = await self._prompts.read(request.path, facts, lora_name=lora_name)
            story.routed = self._routed(story, facts, prompt)
            if lease is not None:
                lease.reserve(story.routed.num_tokens, story.routed.max_output_tokens)
            sink = self._sink(connection, request, story.request_id)
            forwarded = ForwardedRequest(
                method=request.method,
                target=request.target,
                lines=forwarded_lines(request, connection, story.request_id),
                body=request.body,
            )
            story.sent_at = self._clock()
            await self._dispatcher.dispatch(story.routed, forwarded, sink)
            if lease is not None:
                lease.settle(_num_tokens(sink.decision))
        except (RequestError, ClusterError) as error:
            self._fail(story, error, connection, sink, lease)
        except asyncio.CancelledError:
            story.error = ABORTED
            raise
        finally:
            self._end(story, lease, sink)

    def _fail(
        self,
        story: Story,
        error: RequestError | ClusterError,
        connection: ClientConnection,
        sink: ClientSink | None,
        lease: Lease | None,
    ) -> None:
        """Say so, or break off."""
        story.error = error.kind
        if isinstance(error, RequestError):
            self._observations.refusals[error.kind] += 1
            reply = refusal_reply(error)
        elif sink is not None and sink.has_started:
            sink.fail(error)
            return
        else:
            if lease is not None and isinstance(error, NOT_EXECUTED):
                lease.settle(0)
            reply = failure_reply(error)
        story.status = error.status
        headers = (*reply.headers, (b"x-request-id", story.request_id))
        _write(replace(reply, headers=headers), story.request, connection)

    def _end(self, story: Story, lease: Lease | None, sink: ClientSink | None) -> None:
        """It is over, one way or another."""
        if lease is not None:
            lease.end()
        if sink is not None:
            sink.tell(story)
        story.ended_at = self._clock()
        self._observations.add(story)
        if self.access_log is not None:
            self.access_log.add(story)

    def _facts(self, request: HttpRequest) -> Facts | None:
        """What the body says; None where there is none, or nothing that can be read.

        What makes the prompt is read only where prompts are compared.
        """
        body = request.body
        if not body:
            return None
        facts = read_fields(body) if self._dispatcher.uses_prefixes else read_facts(body)
        require_no_transfer(body, facts)
        if facts is None and self.tenancy is not None:
            raise RequestError("the body is not JSON whose fields have the right types")
        return facts

    def _routed(self, story: Story, facts: Facts | None, prompt: Prompt | None) -> RoutedRequest:
        """The facts that placement uses; a request without a body has none."""
        request, request_id = story.request, story.request_id.decode("latin-1")
        given = request.first_values.get(SLO_CLASS)
        if given:
            story.slo_class = given[:MAX_CLASS_BYTES].decode("latin-1")
        if facts is None:
            return RoutedRequest(request_id=request_id)
        return RoutedRequest(
            request_id=request_id,
            model=facts.model,
            prompt=prompt,
            body_tokens=len(request.body) // BYTES_PER_TOKEN,
            max_output_tokens=facts.max_output_tokens,
            session=session_of(request, facts, header=self._dispatcher.session_header),
        )

    def _request_id(self, request: HttpRequest) -> bytes:
        """The client's name for the request, or a new one: 32 hexadecimal digits."""
        given = request.first_values.get(b"x-request-id")
        if given and len(given) <= MAX_REQUEST_ID_BYTES:
            return given
        return next(self._new_ids)


def _new_ids() -> Iterator[bytes]:
    """Names of 32 hexadecimal digits that nobody else gives; the last three are made once."""
    ends = [b"%03x" % number for number in range(16**3)]
    start = uuid.uuid4().hex[:20].encode()
    for number in count():
        middle = b"%b%09x" % (start, number)
        for end in ends:
            yield middle + end


def _write(reply: Reply, request: HttpRequest, connection: ClientConnection) -> None:
    connection.write(
        render_reply(reply, keeps_alive=request.keeps_alive, with_body=request.method != b"HEAD")
    )


def _num_tokens(decision: Decision | None) -> int | None:
    """What the answer says it used, all in all; None if it does not say."""
    if decision is None or decision.prompt_tokens is None:
        return None
    return decision.prompt_tokens + (decision.output_tokens or 0)
