"""Heads that were seen before are not parsed again; whatever follows is read as if they were.

Also more requests that another server could read in another way.
"""

import pytest
from fake_worker import JSON_OK, FakeWorker, always, client_of, gateway_before, post
from hypothesis import given
from hypothesis import strategies as st
from test_hostile_clients import HEAD, SMUGGLING, Transcript, cut, mutate, pieces

from expediter.gateway.request import BadRequest, KnownHeads
from expediter.gateway.request_reader import RequestReader

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"

MORE_SMUGGLING = {
    "two transfer codings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "a coding behind a tab": HEAD + b"Transfer-Encoding:\tchunked\r\nContent-Length: 1\r\n\r\n0",
    "a coding in capitals": HEAD + b"TRANSFER-ENCODING: CHUNKED\r\nContent-Length: 1\r\n\r\n0",
    "a coding behind a folded line": HEAD + b"X: y\r\n\tTransfer-Encoding: chunked\r\n\r\n",
    "an empty length": HEAD + b"Content-Length: \r\n\r\nabc",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\nabc",
    "a length in hexadecimal": HEAD + b"Content-Length: 0x3\r\n\r\nabc",
    "a length of two words": HEAD + b"Content-Length: 3 4\r\n\r\nabc",
    "a length with a fraction": HEAD + b"Content-Length: 3.0\r\n\r\nabc",
    "a length beyond 64 bits": HEAD + b"Content-Length: 18446744073709551619\r\n\r\nabc",
    "a length in other digits": HEAD + "Content-Length: ٣\r\n\r\nabc".encode(),
    "a carriage return alone": HEAD + b"X: y\rContent-Length: 3\r\n\r\nabc",
    "a space before the first header": b"POST /v1/x HTTP/1.1\r\n Host: t\r\n\r\n",
    "a name with a space": HEAD + b"Content Length: 3\r\n\r\nabc",
    "a name with a control character": HEAD + b"Content-Length\x0b: 3\r\n\r\nabc",
    "an empty name": HEAD + b": 3\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"\r\n10000000000000001\r\na\r\n0\r\n\r\n",
    "a chunk size behind a space": CHUNKED + b"\r\n 1\r\na\r\n0\r\n\r\n",
    "a chunk size with 0x": CHUNKED + b"\r\n0x1\r\na\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"\r\n-1\r\na\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"\r\n1\r\nabc\r\n0\r\n\r\n",
    "a line feed in a chunk's extension": CHUNKED + b"\r\n1;x\ny\r\na\r\n0\r\n\r\n",
    "no version": b"POST /v1/completions\r\nHost: t\r\n\r\n",
    "a space in the target": b"POST /v1/x y HTTP/1.1\r\nHost: t\r\n\r\n",
    "a dot segment": b"GET /v1/./health HTTP/1.1\r\nHost: t\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", MORE_SMUGGLING.values(), ids=MORE_SMUGGLING.keys())
@pytest.mark.parametrize("is_second", [False, True], ids=["first", "second"])
async def test_it_is_refused_and_closed_and_nothing_behind_it_is_served(
    request_bytes: bytes, is_second: bool
) -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        async with client_of(gateway) as client:
            if is_second:
                client.send(post())
                assert (await client.answer()).status == 200
            client.send(request_bytes + post(path="/v1/smuggled"))
            answer = await client.answer()
            assert answer.status in (400, 413, 501, 505)
            assert await client.is_closed()
        assert [r.target for r in worker.received] == ["/v1/completions"] * is_second


@given(
    seen=st.lists(pieces, max_size=4),
    parts=st.lists(
        st.builds(
            mutate,
            pieces | st.sampled_from(list(MORE_SMUGGLING.values())),
            st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=4)), max_size=2),
        ),
        max_size=4,
    ),
    places=st.lists(st.integers(0, 10**6), max_size=8),
)
def test_what_was_seen_before_changes_nothing(
    seen: list[bytes], parts: list[bytes], places: list[int]
) -> None:
    """Heads remembered from the same bytes too, so that the whole of them is known."""
    heads = KnownHeads()
    data = b"".join(parts)
    read([b"".join(seen)], heads)
    read([data], heads)
    for part in (*parts, *SMUGGLING.values()):
        read([part], heads)
    assert read(cut(data, places), heads) == read([data], KnownHeads())


def read(pieces: list[bytes], heads: KnownHeads) -> list[tuple[object, ...]]:
    """What the reader tells of requests; of a head alone only if its request never came."""
    transcript = Transcript()
    reader = RequestReader(transcript, max_header_bytes=300, max_body_bytes=50, heads=heads)
    for piece in filter(None, pieces):
        try:
            reader.feed(piece)
        except BadRequest as error:
            transcript.told.append(("refused", error.status))
            break
    return [told for told in transcript.told if told[0] != "head"]
