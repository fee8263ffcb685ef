"""Whatever bytes a client sends, in whatever pieces, it gets one clear answer."""

import asyncio
import itertools

import pytest
from fake_worker import JSON_OK, Client, FakeWorker, always, ask, client_of, gateway_before, post
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.config import GatewayConfig
from expediter.gateway.request import BadRequest, HttpRequest
from expediter.gateway.request_reader import RequestReader

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"

SMUGGLING = {
    "both framings": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, reversed": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "bare line feeds": b"POST /v1/completions HTTP/1.1\nHost: t\nContent-Length: 0\n\n",
    "one bare line feed": HEAD + b"X: y\nContent-Length: 0\r\n\r\n",
    "a folded header": HEAD + b"X: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": HEAD + b"Content-Length : 0\r\n\r\n",
    "a header without a colon": HEAD + b"nonsense\r\n\r\n",
    "another transfer coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown transfer coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": HEAD.replace(b"1.1", b"1.0")
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk that ends in a line feed": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
    "a NUL in a header": HEAD + b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "dot segments": b"GET /v1/../health HTTP/1.1\r\nHost: t\r\n\r\n",
    "a tunnel": b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("request_bytes", SMUGGLING.values(), ids=SMUGGLING.keys())
async def test_what_could_be_read_in_two_ways_is_refused_and_closed(request_bytes: bytes) -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        async with client_of(gateway) as client:
            client.send(request_bytes)
            answer = await client.answer()
            assert answer.status in (400, 501)
            assert b'"error"' in answer.body
            assert await client.is_closed()
        assert worker.received == []


async def test_limits_have_their_own_answers() -> None:
    async with FakeWorker(always(JSON_OK)) as worker:
        async with gateway_before(worker, max_body_bytes=100, max_header_bytes=1000) as gateway:
            chunked = (
                HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"40\r\n" + b"x" * 64 + b"\r\n") * 2
            )
            for request, status in (
                (post(b"x" * 101), 413),
                (chunked, 413),
                (HEAD + b"X: " + b"y" * 1000 + b"\r\n\r\n", 431),
                (HEAD + b"X: y\r\n" * 200 + b"\r\n", 431),
                (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n", 431),
                (post(headers="Expect: miracles\r\n"), 417),
                (b"BREW / HTTP/1.1\r\n\r\n", 400),
                (b"PROPFIND /v1/x HTTP/1.1\r\nHost: t\r\n\r\n", 501),
                (b"GET / HTTP/2.5\r\n\r\n", 400),
            ):
                assert (await ask(gateway, request)).status == status
            assert (await ask(gateway, post(b"x" * 100))).status == 200
        assert len(worker.received) == 1


async def test_a_header_that_never_ends_is_refused_before_it_fills_memory() -> None:
    async with gateway_before(max_header_bytes=4096) as gateway, client_of(gateway) as client:
        client.send(HEAD + b"X: ")
        for _ in range(100):
            client.send(b"y" * 1000)
            await asyncio.sleep(0)
        assert (await client.answer()).status == 431


async def test_a_body_refused_by_its_length_need_not_be_sent() -> None:
    async with gateway_before(max_body_bytes=10) as gateway, client_of(gateway) as client:
        client.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 11\r\n\r\n")
        assert (await client.answer()).status == 413


async def test_a_client_that_sends_on_after_its_refusal_still_reads_it() -> None:
    async with gateway_before(max_body_bytes=1000) as gateway, client_of(gateway) as client:
        client.send(HEAD + b"Content-Length: 8000000\r\n\r\n")
        client.send(b"x" * 8_000_000)
        assert (await client.answer()).status == 413


@pytest.mark.parametrize("sent", [b"GE", HEAD, HEAD + b"Content-Length: 9\r\n\r\nhalf"])
async def test_a_request_that_stops_coming_times_out(sent: bytes) -> None:
    limits = {"header_seconds": 0.2, "idle_seconds": 0.2, "keep_alive_seconds": 9.0}
    async with gateway_before(**limits) as gateway, client_of(gateway) as client:
        client.send(sent)
        assert (await client.answer()).status == 408
        assert await client.is_closed()


async def test_a_head_that_drips_in_is_cut_off_however_steadily_it_drips() -> None:
    async with gateway_before(header_seconds=0.2) as gateway, client_of(gateway) as client:

        async def drip() -> None:
            while True:
                client.send(b"x")
                await asyncio.sleep(0.01)

        client.send(HEAD)
        dripping = asyncio.create_task(drip())
        assert (await client.answer()).status == 408
        dripping.cancel()


async def test_heads_that_take_a_while_each_have_their_own_time() -> None:
    """One after the other on one connection, longer than is allowed for one."""
    half = len(HEAD) // 2
    async with FakeWorker(always(JSON_OK)) as worker:
        gateway = gateway_before(worker, header_seconds=1.0)
        async with gateway as running, client_of(running) as client:
            for _ in range(4):
                client.send(HEAD[:half])
                await asyncio.sleep(0.3)
                client.send(HEAD[half:] + b"Content-Length: 0\r\n\r\n" + HEAD[:3])
                assert (await client.answer()).status == 200
                await asyncio.sleep(0.1)
                client.send(HEAD[3:] + b"Content-Length: 0\r\n\r\n")
                assert (await client.answer()).status == 200


async def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    async with gateway_before(keep_alive_seconds=0.2) as gateway, client_of(gateway) as client:
        assert await client.is_closed()


async def test_a_thousand_idle_connections_keep_nobody_waiting() -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        connect = asyncio.open_connection
        idle = [await connect("127.0.0.1", gateway.port) for _ in range(1000)]
        assert (await ask(gateway, post())).status == 200
        for _, writer in idle:
            writer.transport.abort()


class Transcript:
    """What a reader told its listener, to compare by."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def head_received(self, request: HttpRequest) -> None:
        self.told.append(("head", request.method, request.target, tuple(request.headers)))

    def request_received(self, request: HttpRequest) -> None:
        self.told.append(("request", request.body, request.keeps_alive))


def read(pieces: list[bytes]) -> list[tuple[object, ...]]:
    transcript = Transcript()
    reader = RequestReader(transcript, max_header_bytes=300, max_body_bytes=50)
    for piece in pieces:
        try:
            reader.feed(piece)
        except BadRequest as error:
            transcript.told.append(("refused", error.status))
            break
    return transcript.told


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[i:j] for i, j in itertools.pairwise(ends)]


good = st.builds(
    post, st.binary(max_size=60), headers=st.sampled_from(["", "X: y\r\n", "Connection: close\r\n"])
)
chunked_good = st.lists(st.binary(min_size=1, max_size=20), max_size=4).map(
    lambda chunks: (
        HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks)
        + b"0\r\n\r\n"
    )
)
pieces = st.one_of(
    good, chunked_good, st.sampled_from(list(SMUGGLING.values())), st.binary(max_size=30)
)


@given(parts=st.lists(pieces, max_size=4), places=st.lists(st.integers(0, 10**6), max_size=12))
def test_any_split_of_the_bytes_is_read_the_same(parts: list[bytes], places: list[int]) -> None:
    data = b"".join(parts)
    assert read(cut(data, places)) == read([data] if data else [])


def mutate(data: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    for place, insert in edits:
        place %= len(data) + 1
        data = data[:place] + insert + data[place + len(insert) :]
    return data


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.builds(
                mutate,
                pieces,
                st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=4)), max_size=3),
            ),
            st.lists(st.integers(0, 10**6), max_size=4),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_no_bytes_make_the_server_hang_or_fall(visits: list[tuple[bytes, list[int]]]) -> None:
    """Each client sends its bytes in pieces and then ends; the server then ends too, and lives."""

    async def scene() -> None:
        async with gateway_before() as gateway:
            for data, places in visits:
                async with client_of(gateway) as client:
                    await _send_all(client, cut(data, places))
            assert (await ask(gateway, b"GET /health HTTP/1.1\r\n\r\n")).status == 200

    asyncio.run(scene())


async def _send_all(client: Client, parts: list[bytes]) -> None:
    try:
        for part in parts:
            client.send(part)
            await client.writer.drain()
            await asyncio.sleep(0)
        client.writer.write_eof()
    except ConnectionError:
        pass
    assert await client.is_closed() or True


def test_the_defaults_are_what_the_documentation_says() -> None:
    config = GatewayConfig()
    assert (config.max_body_bytes, config.max_header_bytes) == (32 * 2**20, 64 * 2**10)
