"""Chunks are told apart however the network cuts them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.framing import ChunkedBody

CONTENTS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
CUTS = st.lists(st.integers(0, 400), max_size=8)
EXTENSIONS = st.sampled_from([b"", b";a=b", b' ; x="y"'])
SIZES = st.sampled_from([b"%x", b"%X", b"%04x"])


@given(contents=CONTENTS, extension=EXTENSIONS, size=SIZES, cuts=CUTS, excess=st.binary(max_size=3))
def test_any_cut_is_read_as_bytes_one_by_one_are(
    contents: list[bytes], extension: bytes, size: bytes, cuts: list[int], excess: bytes
) -> None:
    chunks = [b"%b%b\r\n%b\r\n" % (size % len(c), extension, c) for c in contents]
    body = b"".join([*chunks, b"0\r\n", b"trailer: x\r\n", b"\r\n"])
    ends = {sum(map(len, chunks[:n])) for n in range(len(chunks) + 1)}
    data = body + excess
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts), *sorted(ends)[1::2]})
    whole, single = ChunkedBody(unwraps=False), ChunkedBody(unwraps=False)
    bare = ChunkedBody(unwraps=True)
    passed, unwrapped, position = b"", b"", 0
    for start, end in pairwise(places):
        passed += whole.feed(data[start:end])
        unwrapped += bare.feed(data[start:end])
        for at in range(start, end):
            single.feed(data[at : at + 1])
        position = min(end, len(body))
        for other in (single, bare):
            assert whole.is_complete == other.is_complete == (position == len(body))
            assert whole.is_empty == other.is_empty
            if not whole.is_complete:
                assert whole.is_between_chunks == other.is_between_chunks == (position in ends)
    assert passed == body
    assert unwrapped == b"".join(contents)
    assert whole.has_excess == bare.has_excess == bool(excess)
