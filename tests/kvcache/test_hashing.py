"""Names for KV blocks: what they tell apart, and that growing a chain changes nothing."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.kvcache import hashing
from expediter.kvcache.hashing import (
    BlockHash,
    BlockHasher,
    CacheNamespace,
    KVContext,
    hash_blocks,
)
from expediter.request import MultiModalItem

NAMESPACE = CacheNamespace(model="m")

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=20)
few_tokens = st.lists(st.integers(0, 2), max_size=8)
texts = st.text(max_size=3) | st.just("\ud800")
items = st.builds(
    MultiModalItem,
    content_hash=st.sampled_from(["", "a", "ab", "b"]),
    offset=st.integers(0, 7),
    num_tokens=st.integers(1, 5),
)
contexts = st.builds(
    KVContext,
    lora_name=st.none() | texts,
    cache_salt=st.none() | texts,
    multimodal=st.lists(items, max_size=2).map(tuple),
)
namespaces = st.builds(
    CacheNamespace, model=texts, revision=texts, tokenizer=texts, dtype=texts, layout=texts
)


class Recorder:
    """SHA-256 that remembers which message gave which digest."""

    def __init__(self) -> None:
        self.messages: dict[bytes, bytes] = {}

    def __call__(self, message: bytes) -> "hashlib._Hash":
        digest = hashlib.sha256(message)
        assert self.messages.setdefault(digest.digest(), message) == message
        return digest


@given(tokens, st.integers(1, 5))
def test_only_full_blocks_have_names(token_ids: list[int], block_size: int) -> None:
    hashes = hash_blocks(token_ids, block_size=block_size, namespace=NAMESPACE)
    assert len(hashes) == len(token_ids) // block_size
    assert all(len(name) == 32 for name in hashes)
    assert len(set(hashes)) == len(hashes)


@given(few_tokens, few_tokens, st.integers(1, 3))
def test_two_prompts_share_names_exactly_as_far_as_they_share_blocks(
    left: list[int], right: list[int], block_size: int
) -> None:
    ours = hash_blocks(left, block_size=block_size, namespace=NAMESPACE)
    theirs = hash_blocks(right, block_size=block_size, namespace=NAMESPACE)
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        end = (index + 1) * block_size
        assert (a == b) == (left[:end] == right[:end])


@given(tokens, st.integers(1, 4), contexts, st.data())
def test_a_chain_extended_in_steps_is_the_chain_made_at_once(
    token_ids: list[int], block_size: int, context: KVContext, data: st.DataObject
) -> None:
    hasher = BlockHasher(block_size=block_size, seed=NAMESPACE.seed, context=context)
    grown: list[BlockHash] = []
    end = 0
    while end < len(token_ids):
        end = data.draw(st.integers(end + 1, len(token_ids)))
        hasher.extend(grown, token_ids[:end])
    assert grown == hash_blocks(
        token_ids, block_size=block_size, namespace=NAMESPACE, context=context
    )


@given(tokens, st.integers(1, 4), st.integers(0, 4))
def test_a_chain_continues_from_a_parent(token_ids: list[int], size: int, at: int) -> None:
    whole = hash_blocks(token_ids, block_size=size, namespace=NAMESPACE)
    at = min(at, len(whole))
    parent = whole[at - 1] if at else None
    rest = hash_blocks(token_ids[at * size :], block_size=size, namespace=NAMESPACE, parent=parent)
    assert whole[:at] + rest == whole


def visible(token_ids: list[int], context: KVContext, block_size: int) -> object:
    """All that the first block's KV depends on, in plain sight."""
    reaching = [i for i in context.multimodal if i.offset < block_size]
    return (token_ids[:block_size], context.lora_name, context.cache_salt, reaching, block_size)


@given(
    st.tuples(few_tokens, contexts, namespaces, st.integers(1, 3)),
    st.tuples(few_tokens, contexts, namespaces, st.integers(1, 3)),
)
def test_different_inputs_never_give_the_same_bytes_to_hash(
    left: tuple[list[int], KVContext, CacheNamespace, int],
    right: tuple[list[int], KVContext, CacheNamespace, int],
) -> None:
    """If the digests are equal so are the messages, and then so is all that went into them."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "sha256", recorder)
        names = [
            hash_blocks(token_ids, block_size=size, namespace=namespace, context=context)
            for token_ids, context, namespace, size in (left, right)
        ]
    if not (names[0] and names[1]):
        return
    same_inputs = left[2] == right[2] and visible(left[0], left[1], left[3]) == visible(
        right[0], right[1], right[3]
    )
    assert (names[0][0] == names[1][0]) == same_inputs


@pytest.mark.parametrize("field", ["model", "revision", "tokenizer", "dtype", "layout"])
def test_every_field_of_the_namespace_counts(field: str) -> None:
    other = replace(NAMESPACE, **{field: "other"})
    assert hash_blocks([1, 2], block_size=2, namespace=NAMESPACE) != hash_blocks(
        [1, 2], block_size=2, namespace=other
    )


def test_text_moved_from_one_field_to_the_next_is_a_different_namespace() -> None:
    assert (
        CacheNamespace(model="ab", revision="c").seed
        != CacheNamespace(model="a", revision="bc").seed
    )


def test_the_salt_of_one_tenant_changes_every_block() -> None:
    plain = hash_blocks([1, 2, 3, 4], block_size=2, namespace=NAMESPACE)
    salted = hash_blocks(
        [1, 2, 3, 4], block_size=2, namespace=NAMESPACE, context=KVContext(cache_salt="s")
    )
    assert not set(plain) & set(salted)


def test_an_image_changes_the_blocks_from_its_first_token_on() -> None:
    """Tokens 3 to 5 stand for an image: block 0 (0, 1) is text, blocks 1 and 2 are not."""
    token_ids = [1, 2, 3, 9, 9, 9, 7, 8]

    def names(content: str) -> list[BlockHash]:
        image = MultiModalItem(content_hash=content, offset=3, num_tokens=3)
        context = KVContext(multimodal=(image,))
        return hash_blocks(token_ids, block_size=2, namespace=NAMESPACE, context=context)

    shared = [a == b for a, b in zip(names("cat"), names("dog"), strict=True)]
    assert shared == [True, False, False, False]


def test_a_token_that_is_no_id_is_an_error() -> None:
    for token_id in (-1, 2**32):
        with pytest.raises(OverflowError):
            hash_blocks([token_id], block_size=1, namespace=NAMESPACE)
