"""The manager: hits, duplicates, events, by hand."""

import pytest

from expediter.config import KVCacheConfig
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
from expediter.kvcache.hashing import CacheNamespace, KVContext, hash_blocks
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.sequence import KVSequence
from expediter.request import MultiModalItem, Request, RequestId, SampledToken

NAMESPACE = CacheNamespace(model="m")


@pytest.fixture(params=["hash", "radix"])
def kv_cache(request: pytest.FixtureRequest) -> KVCacheManager:
    return manager(prefix_cache=request.param)


def manager(*, num_blocks: int = 10, **settings: object) -> KVCacheManager:
    config = KVCacheConfig(block_size=2, **settings)  # type: ignore[arg-type]
    return KVCacheManager(config, num_blocks=num_blocks, namespace=NAMESPACE)


def prompt(*token_ids: int, **fields: object) -> Request:
    return Request(request_id=RequestId("r"), prompt_token_ids=token_ids, **fields)  # type: ignore[arg-type]


def computed(kv_cache: KVCacheManager, request: Request) -> KVSequence:
    """The request admitted and its whole prompt computed."""
    sequence = kv_cache.open(request)
    assert kv_cache.admit(sequence) is not None
    kv_cache.publish(sequence, sequence.num_tokens)
    return sequence


def test_a_full_hit_still_computes_the_last_token(kv_cache: KVCacheManager) -> None:
    """4 tokens are two blocks; 3 of them may be hit, which is one block."""
    kv_cache.free(computed(kv_cache, prompt(1, 2, 3, 4)))
    again, longer = kv_cache.open(prompt(1, 2, 3, 4)), kv_cache.open(prompt(1, 2, 3, 4, 5))
    assert kv_cache.num_cached_tokens(again) == kv_cache.admit(again) == 2
    assert kv_cache.num_cached_tokens(longer) == kv_cache.admit(longer) == 4


def test_a_block_is_found_only_once_it_is_computed(kv_cache: KVCacheManager) -> None:
    first = kv_cache.open(prompt(1, 2, 3, 4, 5))
    kv_cache.admit(first)
    second = kv_cache.open(prompt(1, 2, 3, 4, 5))
    hits = []
    for num_computed_tokens in range(6):
        kv_cache.publish(first, num_computed_tokens)
        hits.append(kv_cache.num_cached_tokens(second))
    assert hits == [0, 0, 2, 2, 4, 4]


def test_a_block_that_another_published_first_is_adopted(kv_cache: KVCacheManager) -> None:
    first, second = kv_cache.open(prompt(1, 2, 3)), kv_cache.open(prompt(1, 2, 4))
    kv_cache.admit(first)
    kv_cache.admit(second)
    assert (first.block_ids, second.block_ids) == ([0, 1], [2, 3])
    kv_cache.publish(first, 3)
    kv_cache.publish(second, 3)
    assert second.block_ids == [0, 3]
    assert kv_cache.num_used_blocks == 3
    assert len(kv_cache.take_events()) == 1


def test_adoption_pins_a_block_that_nobody_held(kv_cache: KVCacheManager) -> None:
    """A full hit computes its last block again, finds it cached and free, and takes it."""
    kv_cache.free(computed(kv_cache, prompt(1, 2, 3, 4)))
    again = computed(kv_cache, prompt(1, 2, 3, 4))
    assert again.block_ids == [0, 1]
    assert kv_cache.num_used_blocks == 2
    kv_cache.free(again)
    assert kv_cache.num_used_blocks == 0


def test_admission_takes_nothing_unless_all_fits(kv_cache: KVCacheManager) -> None:
    held = computed(kv_cache, prompt(*range(14)))  # 7 of 10 blocks
    big = kv_cache.open(prompt(*range(100, 108)))
    assert kv_cache.admit(big) is None
    assert kv_cache.num_used_blocks == 7
    assert not big.block_ids
    kv_cache.free(held)
    assert kv_cache.admit(big) == 0


def test_hits_that_nobody_holds_count_against_free_memory(kv_cache: KVCacheManager) -> None:
    """8 cached free blocks and 2 others: 16 hit tokens and 5 blocks more do not fit in 10."""
    kv_cache.free(computed(kv_cache, prompt(*range(16))))
    assert kv_cache.num_free_blocks == 10
    assert kv_cache.admit(kv_cache.open(prompt(*range(26)))) is None
    assert kv_cache.admit(kv_cache.open(prompt(*range(20)))) == 16
    assert not kv_cache.take_events()[1:]


def test_headroom_stays_free(kv_cache: KVCacheManager) -> None:
    assert kv_cache.admit(kv_cache.open(prompt(*range(16))), headroom=3) is None
    assert kv_cache.admit(kv_cache.open(prompt(*range(16))), headroom=2) == 0


def test_slots_are_taken_only_when_a_block_is_full(kv_cache: KVCacheManager) -> None:
    sequence = computed(kv_cache, prompt(1, 2, 3))
    held = []
    for num_tokens in (4, 5, 6, 7):
        assert kv_cache.allocate_slots(sequence, num_tokens)
        held.append(len(sequence.block_ids))
    assert held == [2, 3, 3, 4]


def test_stored_events_carry_the_chain(kv_cache: KVCacheManager) -> None:
    names = hash_blocks([1, 2, 3, 4, 5, 6], block_size=2, namespace=NAMESPACE)
    sequence = kv_cache.open(prompt(1, 2, 3, 4, 5, 6))
    kv_cache.admit(sequence)
    kv_cache.publish(sequence, 5)
    kv_cache.publish(sequence, 6)
    assert kv_cache.take_events() == [
        BlockStored(
            block_hashes=names[:2], parent_block_hash=None, token_ids=[1, 2, 3, 4], block_size=2
        ),
        BlockStored(
            block_hashes=names[2:], parent_block_hash=names[1], token_ids=[5, 6], block_size=2
        ),
    ]
    assert kv_cache.take_events() == []


def test_events_say_what_besides_tokens_names_a_block(kv_cache: KVCacheManager) -> None:
    image = MultiModalItem(content_hash="cat", offset=1, num_tokens=2)
    request = prompt(1, 9, 9, 4, 5, 6, lora_name="l", cache_salt="s", multimodal=(image,))
    computed(kv_cache, request)
    (event,) = kv_cache.take_events()
    assert isinstance(event, BlockStored)
    assert event.lora_name == "l"
    assert event.extra_keys == [("l", ("cat", 1), "s"), ("l", ("cat", -1)), ("l",)]
    context = KVContext(lora_name="l", cache_salt="s", multimodal=(image,))
    assert event.block_hashes == hash_blocks(
        request.prompt_token_ids, block_size=2, namespace=NAMESPACE, context=context
    )


def test_tenants_with_different_salts_share_nothing(kv_cache: KVCacheManager) -> None:
    computed(kv_cache, prompt(1, 2, 3, cache_salt="a"))
    assert kv_cache.num_cached_tokens(kv_cache.open(prompt(1, 2, 3, cache_salt="b"))) == 0
    assert kv_cache.num_cached_tokens(kv_cache.open(prompt(1, 2, 3))) == 0
    assert kv_cache.num_cached_tokens(kv_cache.open(prompt(1, 2, 3, cache_salt="a"))) == 2


def test_an_empty_salt_or_adapter_is_none(kv_cache: KVCacheManager) -> None:
    computed(kv_cache, prompt(1, 2, 3, lora_name="l"))
    for fields, cached in (({"lora_name": "l", "cache_salt": ""}, 2), ({"lora_name": ""}, 0)):
        assert kv_cache.num_cached_tokens(kv_cache.open(prompt(1, 2, 3, **fields))) == cached


def test_evictions_are_told_children_first() -> None:
    kv_cache = manager(num_blocks=3)
    kv_cache.free(computed(kv_cache, prompt(1, 2, 3, 4, 5, 6)))
    names = hash_blocks([1, 2, 3, 4, 5, 6], block_size=2, namespace=NAMESPACE)
    kv_cache.take_events()
    kv_cache.admit(kv_cache.open(prompt(7, 8, 9, 10)))
    assert kv_cache.take_events() == [BlockRemoved(block_hashes=[names[2], names[1]])]


def test_a_reset_waits_until_nothing_is_held(kv_cache: KVCacheManager) -> None:
    sequence = computed(kv_cache, prompt(1, 2, 3))
    assert not kv_cache.reset_prefix_cache()
    kv_cache.free(sequence)
    kv_cache.take_events()
    assert kv_cache.reset_prefix_cache()
    assert kv_cache.take_events() == [AllBlocksCleared()]
    assert kv_cache.num_cached_tokens(kv_cache.open(prompt(1, 2, 3))) == 0


def test_without_prefix_caching_nothing_is_named_found_or_told() -> None:
    kv_cache = manager(prefix_caching=False)
    sequence = computed(kv_cache, prompt(1, 2, 3, 4))
    assert not sequence.block_hashes
    kv_cache.free(sequence)
    assert kv_cache.admit(kv_cache.open(prompt(1, 2, 3, 4))) == 0
    assert kv_cache.take_events() == []


def test_a_simulated_request_brings_its_names_and_no_tokens(kv_cache: KVCacheManager) -> None:
    """A prompt of 3 tokens and two more generated: two full blocks of the three names given."""
    names = [b"a", b"ab", b"abc"]
    request = prompt(block_hashes=names, num_prompt_tokens=3)
    sequence = computed(kv_cache, request)
    sequence.append([SampledToken(token_id=0)] * 2)
    assert kv_cache.allocate_slots(sequence, 5)
    kv_cache.publish(sequence, 4)
    assert [(e.block_hashes, e.token_ids) for e in kv_cache.take_events()] == [  # type: ignore[union-attr]
        ([b"a"], []),
        ([b"ab"], []),
    ]
    longer = kv_cache.open(prompt(block_hashes=names, num_prompt_tokens=5))
    assert kv_cache.num_cached_tokens(longer) == 4


def test_a_simulated_request_may_outgrow_its_names(kv_cache: KVCacheManager) -> None:
    sequence = computed(kv_cache, prompt(block_hashes=[b"a"], num_prompt_tokens=5))
    assert sequence.num_cached_blocks == 1
    kv_cache.publish(sequence, 5)
    assert len(kv_cache.take_events()) == 1
