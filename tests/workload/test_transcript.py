"""Names of blocks against hashes of tokens that are really there."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.kvcache.hashing import CacheNamespace, hash_blocks
from expediter.workload.transcript import EMPTY, NAME_BYTES, Segment, Transcript, TranscriptTree

NAMESPACE = CacheNamespace(model="any")

# Few names and short lengths, so that transcripts agree for a while and then part anywhere.
SEGMENTS = st.lists(
    st.builds(Segment, st.sampled_from("abc"), st.integers(1, 40)), min_size=1, max_size=6
)
BLOCK_SIZES = st.sampled_from([1, 2, 3, 8, 16])


def token(name: str, place: int) -> int:
    return random.Random(f"{name} {place}").getrandbits(32)


def materialised(segments: list[Segment]) -> list[int]:
    return [token(s.name, place) for s in segments for place in range(s.num_tokens)]


def transcript(segments: list[Segment]) -> Transcript:
    return TranscriptTree().grow(segments)


@given(SEGMENTS, SEGMENTS, BLOCK_SIZES)
def test_names_agree_exactly_where_hashes_of_the_tokens_do(
    one: list[Segment], other: list[Segment], block_size: int
) -> None:
    names = [transcript(each).block_hashes(block_size) for each in (one, other)]
    hashes = [
        hash_blocks(materialised(each), block_size=block_size, namespace=NAMESPACE)
        for each in (one, other)
    ]
    assert list(map(len, names)) == list(map(len, hashes))
    same_names = [a == b for a, b in zip(*names, strict=False)]
    same_hashes = [a == b for a, b in zip(*hashes, strict=False)]
    assert same_names == same_hashes
    assert len(set(names[0]) & set(names[1])) == sum(same_names)
    assert len(set(names[0])) == len(names[0])


@given(SEGMENTS, SEGMENTS)
def test_whole_transcripts_have_one_name_exactly_when_their_tokens_are_the_same(
    one: list[Segment], other: list[Segment]
) -> None:
    same = materialised(one) == materialised(other)
    assert (transcript(one).name == transcript(other).name) == same


@given(SEGMENTS, st.integers(1, 8), st.integers(1, 8))
def test_large_blocks_have_the_names_of_small_ones(
    segments: list[Segment], small: int, factor: int
) -> None:
    fine = transcript(segments).block_hashes(small)
    assert transcript(segments).block_hashes(small * factor) == fine[factor - 1 :: factor]


@given(SEGMENTS, SEGMENTS, BLOCK_SIZES)
def test_a_tree_that_forgets_gives_the_same_names(
    one: list[Segment], other: list[Segment], block_size: int
) -> None:
    forgetful = TranscriptTree(max_segments=1)
    for segments in (one, other, one):
        names = forgetful.grow(segments).block_hashes(block_size)
        assert names == transcript(segments).block_hashes(block_size)


@given(SEGMENTS, BLOCK_SIZES, BLOCK_SIZES)
def test_block_sizes_may_alternate(segments: list[Segment], one: int, other: int) -> None:
    node = transcript(segments)
    for size in (one, other, one):
        assert node.block_hashes(size) == transcript(segments).block_hashes(size)


def test_a_tree_makes_one_object_of_equal_beginnings() -> None:
    tree = TranscriptTree()
    shared, a, b = Segment("s", 5), Segment("a", 5), Segment("b", 5)
    assert tree.grow([shared, a]).before is tree.grow([shared, b]).before


def test_names_do_not_change_between_runs() -> None:
    node = EMPTY.then("system", 20, role="system").then("question", 30)
    names = node.block_hashes(16)
    assert [len(name) for name in names] == [NAME_BYTES] * 3
    assert names[0].hex() == "760f821c308a660f6ea0c2592f30f54b5fc3c908d63cf4d02b3178c800000010"
    assert names[2].hex() == "0306ae8992f0810fda59df6a4eed93905489b605ea0521e5200cb4ab00000030"


def test_the_callers_list_is_its_own() -> None:
    node = EMPTY.then("a", 64)
    node.block_hashes(16).clear()
    assert len(node.block_hashes(16)) == 4


def test_an_empty_segment_is_none_and_a_negative_one_is_refused() -> None:
    assert EMPTY.then("a", 0) is EMPTY
    with pytest.raises(ValueError, match="'a' has -1 tokens"):
        EMPTY.then("a", -1)


def test_a_conversation_may_have_any_number_of_segments() -> None:
    node = EMPTY
    for number in range(20_000):
        node = node.then(str(number), 7)
    assert len(node.block_hashes(16)) == 140_000 // 16
    assert [segment.name for segment in node.segments[:2]] == ["0", "1"]
