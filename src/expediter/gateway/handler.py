"""What happens to one request: answered here, or read for routing and sent to a worker."""

import uuid
from dataclasses import replace

from expediter.cluster.client import ForwardedRequest, Header, Usage
from expediter.cluster.dispatcher import Dispatcher
from expediter.errors import ClusterError, RequestError, WorkerRefused, WorkerUnavailable
from expediter.gateway.endpoints import Endpoints
from expediter.gateway.headers import hop_by_hop
from expediter.gateway.limits import Lease
from expediter.gateway.openai import read_fields
from expediter.gateway.prompts import PromptReader
from expediter.gateway.replies import Reply, error_reply, failure_reply, render_reply
from expediter.gateway.request import HttpRequest
from expediter.gateway.server import ClientConnection
from expediter.gateway.session import session_of
from expediter.gateway.sink import ClientSink
from expediter.gateway.tenants import Tenancy, refusal_reply
from expediter.gateway.transfer import require_no_transfer
from expediter.routing.prompt import BYTES_PER_TOKEN
from expediter.routing.view import RoutedRequest

FORWARDED_PATHS = frozenset({b"/tokenize", b"/detokenize"})
MAX_REQUEST_ID_BYTES = 256
_REPLACED_HEADERS = frozenset(
    {
        b"content-length",
        b"expect",
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-request-id",
    }
)


class RequestHandler:
    """Called with each request; returns when its answer is written."""

    def __init__(
        self,
        *,
        endpoints: Endpoints,
        dispatcher: Dispatcher,
        prompts: PromptReader | None,
        tenancy: Tenancy | None = None,
    ) -> None:
        """`prompts` is None where placement does not look at them."""
        self._tenancy = tenancy
        self._endpoints = endpoints
        self._dispatcher = dispatcher
        self._prompts = prompts
        self._id_prefix = uuid.uuid4().hex[:20].encode()
        self._num_named = 0

    async def __call__(self, request: HttpRequest, connection: ClientConnection) -> None:
        """Serve one request; a cancelled call has given up at the worker too."""
        path = request.path
        reply = self._endpoints.reply(request)
        try:
            if reply is not None:
                if self._tenancy is not None and path.startswith(b"/v1/"):
                    self._tenancy.check(request)
                _write(reply, request, connection)
            elif path.startswith(b"/v1/") or path in FORWARDED_PATHS:
                if self._tenancy is None:
                    await self._forward(request, connection)
                else:
                    with self._tenancy.admit(request) as lease:
                        await self._forward(request, connection, lease)
            else:
                _write(error_reply(404, "there is nothing at this path"), request, connection)
        except RequestError as error:
            _write(refusal_reply(error), request, connection)

    async def _forward(
        self, request: HttpRequest, connection: ClientConnection, lease: Lease | None = None
    ) -> None:
        """Send it to a worker; raises RequestError before anything is sent."""
        request_id = self._request_id(request)
        routed = await self._routed(request, request_id.decode("latin-1"))
        if lease is not None:
            lease.reserve(routed.num_tokens, routed.max_output_tokens)
        forwarded = ForwardedRequest(
            method=request.method,
            target=request.target,
            headers=_forwarded_headers(request, connection.peer, request_id),
            body=request.body,
        )
        sink = ClientSink(connection, request, request_id=request_id)
        try:
            await self._dispatcher.dispatch(routed, forwarded, sink)
        except ClusterError as error:
            if sink.has_started:
                sink.fail(error)
                return
            if lease is not None and isinstance(error, WorkerUnavailable | WorkerRefused):
                lease.settle(0)
            reply = failure_reply(error)
            headers = (*reply.headers, (b"x-request-id", request_id))
            _write(replace(reply, headers=headers), request, connection)
            return
        if lease is not None:
            lease.settle(_num_tokens(sink.usage()))

    async def _routed(self, request: HttpRequest, request_id: str) -> RoutedRequest:
        """The facts that placement uses; a request without a body has none."""
        fields = read_fields(request.body) if request.body else None
        if request.body:
            require_no_transfer(request.body, fields)
            if fields is None and self._tenancy is not None:
                raise RequestError("the body is not JSON whose fields have the right types")
        if fields is None:
            return RoutedRequest(request_id=request_id)
        prompt = None
        if self._prompts is not None:
            lora_name = self._dispatcher.adapter(fields.model)
            prompt = await self._prompts.read(request.path, fields, lora_name=lora_name)
        return RoutedRequest(
            request_id=request_id,
            model=fields.model,
            prompt=prompt,
            body_tokens=len(request.body) // BYTES_PER_TOKEN,
            max_output_tokens=fields.max_output_tokens,
            session=session_of(request, fields, header=self._dispatcher.session_header),
        )

    def _request_id(self, request: HttpRequest) -> bytes:
        """The client's name for the request, or a new one: 32 hexadecimal digits."""
        given = request.header(b"x-request-id")
        if given and len(given) <= MAX_REQUEST_ID_BYTES:
            return given
        self._num_named += 1
        return b"%b%012x" % (self._id_prefix, self._num_named)


def _write(reply: Reply, request: HttpRequest, connection: ClientConnection) -> None:
    connection.write(
        render_reply(reply, keeps_alive=request.keeps_alive, with_body=request.method != b"HEAD")
    )


def _forwarded_headers(request: HttpRequest, peer: bytes, request_id: bytes) -> list[Header]:
    """The client's end-to-end headers, and who it is."""
    headers, came_through, host, proto = [], [], None, b"http"
    dropped = hop_by_hop(request.headers)
    for header in request.headers:
        name, value = header
        if name in dropped:
            continue
        if name not in _REPLACED_HEADERS:
            headers.append(header)
        elif name == b"x-forwarded-for":
            came_through.append(value)
        elif name == b"x-forwarded-proto":
            proto = value
        elif name == b"x-forwarded-host" or (name == b"host" and host is None):
            host = value
    headers += [
        (b"x-request-id", request_id),
        (b"x-forwarded-for", b", ".join([*came_through, peer])),
        (b"x-forwarded-proto", proto),
    ]
    if host:
        headers.append((b"x-forwarded-host", host))
    return headers


def _num_tokens(usage: Usage | None) -> int | None:
    return None if usage is None else usage.prompt_tokens + (usage.output_tokens or 0)
