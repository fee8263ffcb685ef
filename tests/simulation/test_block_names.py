"""Whole numbers name blocks as the digests do: equal where those are, in every pair."""

from hypothesis import given
from hypothesis import strategies as st

from expediter.simulation.names import BlockNames
from expediter.workload.transcript import EMPTY, Transcript

BLOCK_SIZE = 4
paths = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


def transcript(path: list[tuple[str, int]]) -> Transcript:
    made = EMPTY
    for name, num_tokens in path:
        made = made.then(name, num_tokens)
    return made


@given(paths)
def test_blocks_have_equal_numbers_where_they_have_equal_digests(
    paths: list[list[tuple[str, int]]],
) -> None:
    names = BlockNames(BLOCK_SIZE)
    made = [transcript(path) for path in paths]
    digests = [each.block_hashes(BLOCK_SIZE) for each in made]
    numbers = [names.of(each) for each in made]
    assert [len(each) for each in numbers] == [len(each) for each in digests]
    pairs = {
        pair
        for own, theirs in zip(numbers, digests, strict=True)
        for pair in zip(own, theirs, strict=True)
    }
    assert (
        len({number for number, _ in pairs}) == len({digest for _, digest in pairs}) == len(pairs)
    )
    assert all(number for number, _ in pairs), "no name is false"


def test_a_list_of_names_is_the_callers_own() -> None:
    names, made = BlockNames(BLOCK_SIZE), transcript([("a", 9)])
    names.of(made).clear()
    assert len(names.of(made)) == 2
