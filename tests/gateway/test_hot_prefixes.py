"""Which beginnings prompts share, counted by hand, and which workers hold them."""

from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.activity import merged_activity, prefixes_of
from expediter.gateway.hot_prefixes import (
    CAPACITY,
    FINE_TOKENS,
    MAX_PREFIXES,
    HotPrefixes,
    name_of,
)
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import Prompt, token_prompt

BLOCK_SIZE = 16
A, B = WorkerId("a"), WorkerId("b")


def prompt(*parts: tuple[int, int]) -> Prompt:
    """Each part is a token and how often it comes."""
    made = token_prompt([token for token, number in parts for _ in range(number)])
    made.keys(BLOCK_SIZE)
    return made


def test_what_two_prompts_share_is_a_prefix_and_what_one_has_alone_is_none() -> None:
    prefixes = HotPrefixes()
    prefixes.add(prompt((1, 256), (2, 128)), at=1.0)
    prefixes.add(prompt((1, 256), (3, 128)), at=2.0)
    prefixes.add(prompt((4, 256)), at=3.0)
    (found,) = prefixes.tree()
    assert (found.num_tokens, found.num_requests, found.last_used_at) == (256, 2, 2.0)
    assert found.parent is None


def test_a_longer_shared_part_is_the_child_of_the_shorter_one() -> None:
    prefixes = HotPrefixes()
    for history in (2, 2, 2, 3, 3):
        prefixes.add(prompt((1, 512), (history, 256)), at=0.0)
    system, long, short = prefixes.tree()
    assert (system.num_tokens, system.num_requests) == (512, 5)
    assert (long.num_tokens, long.num_requests, long.parent) == (768, 3, system.key)
    assert (short.num_tokens, short.num_requests, short.parent) == (768, 2, system.key)


def test_long_prefixes_are_measured_in_steps_of_512_tokens() -> None:
    prefixes = HotPrefixes()
    for last in (2, 3):
        prefixes.add(prompt((1, 5000), (last, 600)), at=0.0)
    (found,) = prefixes.tree()
    assert found.num_tokens == 4608


def test_blocks_longer_than_64_tokens_are_counted_by_512() -> None:
    prefixes = HotPrefixes()
    for last in (2, 3):
        made = token_prompt([1] * 1100 + [last] * 500)
        made.keys(256)
        prefixes.add(made, at=0.0)
    (found,) = prefixes.tree()
    assert found.num_tokens == 1024


@given(st.lists(st.lists(st.integers(1, 3), max_size=6), max_size=300))
def test_a_prefix_has_at_least_the_requests_of_its_children(prompts: list[list[int]]) -> None:
    prefixes = HotPrefixes()
    for letters in prompts:
        prefixes.add(prompt(*((letter, FINE_TOKENS) for letter in letters)), at=0.0)
    tree = prefixes.tree()
    by_key = {found.key: found for found in tree}
    assert len(tree) <= MAX_PREFIXES
    for found in tree:
        assert 2 <= found.num_requests <= CAPACITY
        if found.parent is not None:
            assert by_key[found.parent].num_tokens < found.num_tokens
    for parent in [None, *by_key]:
        children = sum(found.num_requests for found in tree if found.parent == parent)
        assert children <= (by_key[parent].num_requests if parent else CAPACITY)


def test_a_prefix_tells_who_holds_it() -> None:
    index = PrefixIndex(clock=lambda: 0.0, block_size=BLOCK_SIZE, assumed_capacity=1000)
    index.add_worker(A)
    index.add_worker(B)
    prefixes, shared = HotPrefixes(), prompt((1, 256))
    for last in (2, 3):
        prefixes.add(prompt((1, 256), (last, 64)), at=0.0)
    index.assume(A, shared, seconds=60)
    index.assume(B, prompt((1, 128)), seconds=60)
    (found,) = prefixes_of(prefixes.tree(), index, now=5.0)
    assert found["workers"] == [A]
    assert found["prefix"] == name_of(shared.keys(BLOCK_SIZE)[-1])
    assert found["age_seconds"] == 5.0


def test_prefixes_of_several_processes_are_one_tree() -> None:
    one = {"prefix": "x", "parent": None, "num_requests": 2, "age_seconds": 3, "workers": ["b"]}
    two = {**one, "num_requests": 5, "age_seconds": 1, "workers": ["a"]}
    merged = merged_activity(
        [{"answers": [1], "prefixes": [one]}, {"answers": [2], "prefixes": [two]}]
    )
    assert merged == {
        "answers": [1, 2],
        "prefixes": [{**one, "num_requests": 7, "age_seconds": 1, "workers": ["a", "b"]}],
    }
