"""Waiting orders: who is next, in the papers' own numbers, and that nobody waits for ever."""

from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import Rig, make_request, make_scheduler

from expediter.config import KVCacheConfig
from expediter.kvcache.hashing import CacheNamespace, KVContext
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.sequence import KVSequence
from expediter.request import Request, RequestId
from expediter.scheduling.quotas import PrefixQuotas
from expediter.scheduling.state import RequestState
from expediter.scheduling.waiting import Fcfs, LongestPrefix, Priority, WaitingQueue

serials = count(1)


class Cached(KVCacheManager):
    """A cache that holds, of each prompt of 100 tokens, as many as the test says."""

    def __init__(self) -> None:
        namespace = CacheNamespace(model="m")
        super().__init__(KVCacheConfig(block_size=1), num_blocks=1, namespace=namespace)
        self.num_tokens: dict[int, int] = {}

    def num_cached_tokens(self, sequence: KVSequence) -> int:
        return self.num_tokens[id(sequence)]


def state(kv_cache: Cached | None = None, *, cached: int = 0, priority: int = 0) -> RequestState:
    serial = next(serials)
    names = [serial.to_bytes(8) + index.to_bytes(8) for index in range(100)]
    request = Request(
        request_id=RequestId(str(serial)),
        prompt_token_ids=(),
        block_hashes=names,
        num_prompt_tokens=100,
    )
    sequence = KVSequence(
        (),
        num_tokens=100,
        context=KVContext(),
        hasher=None,
        block_hashes=names,  # type: ignore[arg-type]
    )
    if kv_cache is not None:
        kv_cache.num_tokens[id(sequence)] = cached
    return RequestState(
        request,
        sequence=sequence,
        serial=serial,
        rank=(priority, serial),
        eos_token_ids=frozenset(),
    )


def take(queue: WaitingQueue, num_slots: int) -> list[RequestState]:
    """One batch: the first `num_slots` candidates."""
    taken: list[RequestState] = []
    for candidate in queue.candidates():
        if len(taken) == num_slots:
            break
        queue.take(candidate)
        taken.append(candidate)
    return taken


def filled(queue: WaitingQueue, states: Sequence[RequestState]) -> WaitingQueue:
    for waiting in states:
        queue.add(waiting)
    return queue


def preempted(waiting: RequestState) -> RequestState:
    waiting.was_admitted = True
    return waiting


def test_first_come_is_first_served() -> None:
    states = [state() for _ in range(4)]
    queue = filled(Fcfs(), states)
    queue.remove(states[1])
    assert take(queue, 2) == [states[0], states[2]]
    assert take(queue, 2) == [states[3]]
    assert len(queue) == 0


def test_preempted_requests_come_first_and_the_oldest_of_them_before_the_others() -> None:
    old, older = [preempted(state()) for _ in range(2)][::-1]
    new = state()
    queue = filled(Fcfs(), [new, old, older])
    assert list(queue.candidates()) == [older, old, new]


def test_a_candidate_that_is_passed_over_keeps_its_place() -> None:
    states = [state() for _ in range(3)]
    queue = filled(Fcfs(), states)
    for candidate in queue.candidates():
        if candidate is not states[0]:
            queue.take(candidate)
    assert list(queue.candidates()) == [states[0]]


def test_the_longest_prefix_is_first_and_ties_come_first_served() -> None:
    kv_cache = Cached()
    states = [state(kv_cache, cached=cached) for cached in (0, 32, 64, 32)]
    queue = filled(LongestPrefix(kv_cache=kv_cache, max_waiting=4), states)
    assert list(queue.candidates()) == [states[2], states[1], states[3], states[0]]


def test_a_long_queue_is_first_come_first_served() -> None:
    kv_cache = Cached()
    states = [state(kv_cache, cached=cached) for cached in range(5)]
    queue = filled(LongestPrefix(kv_cache=kv_cache, max_waiting=4), states)
    assert list(queue.candidates()) == states


def test_the_longest_prefix_order_passes_the_oldest_only_so_often() -> None:
    """A cold request among ever new hot ones is taken after three of them, not never."""
    kv_cache = Cached()
    cold = state(kv_cache, cached=0)
    queue = filled(LongestPrefix(kv_cache=kv_cache, max_waiting=3), [cold])
    taken = []
    for _ in range(8):
        queue.add(state(kv_cache, cached=90))
        taken += take(queue, 1)
    assert taken.index(cold) == 3


def test_priority_classes_run_in_order_and_first_come_first_served_inside() -> None:
    states = [state(priority=priority) for priority in (1, 0, 1, -1)]
    queue = filled(Priority(), states)
    assert take(queue, 1) == [states[3]]
    queue.remove(states[0])
    queue.add(preempted(states[3]))
    assert list(queue.candidates()) == [states[3], states[1], states[2]]


@pytest.mark.parametrize(
    ("cached", "group"),
    [(0, 1), (9, 1), (10, 1), (19, 1), (20, 2), (63, 6), (98, 9), (99, 10)],
)
def test_the_group_is_the_cached_share_in_tenths(cached: int, group: int) -> None:
    """Preble's example: 63 % is group 6. Of 100 tokens 99 can be cached; that is everything."""
    kv_cache = Cached()
    queue = PrefixQuotas(kv_cache=kv_cache, num_groups=10)
    assert queue.group(state(kv_cache, cached=cached)) == group


def in_group(kv_cache: Cached, group: int) -> RequestState:
    return state(kv_cache, cached=99 if group == 10 else 10 * group)


@pytest.mark.parametrize("num_slots", [55, 11, 5, 1])
def test_55_slots_are_10_from_group_10_and_1_from_group_1(num_slots: int) -> None:
    """Preble's other example, whether one batch has the 55 slots or 55 batches have one each."""
    kv_cache = Cached()
    queue = PrefixQuotas(kv_cache=kv_cache, num_groups=10)
    filled(queue, [in_group(kv_cache, group) for group in range(1, 11) for _ in range(20)])
    taken = [s for _ in range(55 // num_slots) for s in take(queue, num_slots)]
    counts = Counter(queue_group(kv_cache, s) for s in taken)
    assert counts == {group: group for group in range(1, 11)}
    for group in counts:
        of_group = [s.serial for s in taken if queue_group(kv_cache, s) == group]
        assert of_group == sorted(of_group)


def queue_group(kv_cache: Cached, waiting: RequestState) -> int:
    return PrefixQuotas(kv_cache=kv_cache, num_groups=10).group(waiting)


def test_empty_groups_leave_their_slots_to_the_others() -> None:
    """Groups 6 and 3 alone share 9 slots as 6 and 3."""
    kv_cache = Cached()
    queue = PrefixQuotas(kv_cache=kv_cache, num_groups=10)
    filled(queue, [in_group(kv_cache, group) for group in (3, 6) for _ in range(9)])
    counts = Counter(queue_group(kv_cache, s) for s in take(queue, 9))
    assert counts == {6: 6, 3: 3}


def test_a_group_that_was_empty_has_saved_nothing_up() -> None:
    kv_cache = Cached()
    queue = PrefixQuotas(kv_cache=kv_cache, num_groups=10)
    filled(queue, [in_group(kv_cache, 5) for _ in range(200)])
    take(queue, 100)
    filled(queue, [in_group(kv_cache, 10) for _ in range(200)])
    counts = Counter(queue_group(kv_cache, s) for s in take(queue, 60))
    assert counts[5] == pytest.approx(20, abs=1)


@given(st.integers(1, 6), st.integers(0, 8), st.data())
@settings(max_examples=60, deadline=None)
def test_no_request_waits_longer_than_the_quota_order_promises(
    num_groups: int, num_older: int, data: st.DataObject
) -> None:
    """Ever new requests of any group, and what is cached of the waiting ones comes and goes."""
    kv_cache = Cached()
    queue = PrefixQuotas(kv_cache=kv_cache, num_groups=num_groups)
    shares = st.integers(0, 99)
    older = [state(kv_cache, cached=data.draw(shares)) for _ in range(num_older)]
    patient = state(kv_cache, cached=0)
    filled(queue, [*older, patient])
    bound = (num_older + num_groups) * (num_groups * (num_groups + 1) // 2 + num_groups - 1)
    rival = data.draw(shares)
    for _ in range(bound - 1):
        queue.add(state(kv_cache, cached=data.draw(shares) if rival < 50 else 99))
        if num_older and rival % 2:
            kv_cache.num_tokens[id(older[-1].sequence)] = rival
        (taken,) = take(queue, 1)
        if taken is patient:
            return
    assert take(queue, 1) == [patient]


def test_a_cache_that_flaps_cannot_starve_a_request() -> None:
    """Before every turn the adversary moves the request to the group whose turn is farthest off."""
    kv_cache, num_groups = Cached(), 5
    queue = PrefixQuotas(kv_cache=kv_cache, num_groups=num_groups)
    patient = state(kv_cache)
    queue.add(patient)
    bound = num_groups * (num_groups * (num_groups + 1) // 2 + num_groups - 1)
    for _ in range(bound):
        for group in range(1, num_groups + 1):
            queue.add(state(kv_cache, cached=min(99, 20 * group)))
        farthest = max(range(1, num_groups + 1), key=queue._pass.__getitem__)
        kv_cache.num_tokens[id(patient.sequence)] = min(99, 20 * farthest)
        if take(queue, 1) == [patient]:
            return
    pytest.fail("it was never taken")


def test_a_cold_request_is_served_among_hot_ones() -> None:
    """Sixty requests that are wholly cached arrive before and while a cold one waits."""
    r = Rig(make_scheduler(policy="prefix-quotas", max_running=1, num_blocks=32))
    r.add(make_request("warm-up", [1] * 9, max_tokens=1))
    r.run()
    r.add(make_request("cold", [2] * 9, max_tokens=1))
    for index in range(60):
        r.add(make_request(f"hot-{index}", [1] * 9, max_tokens=1))
        r.step()
    assert 0 < r.finished.index("cold") <= 12


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2)), max_size=12), st.data())
def test_every_order_yields_everybody_once(
    waiting: list[tuple[int, int]], data: st.DataObject
) -> None:
    kv_cache = Cached()
    queues: list[WaitingQueue] = [
        Fcfs(),
        LongestPrefix(kv_cache=kv_cache, max_waiting=6),
        PrefixQuotas(kv_cache=kv_cache, num_groups=4),
        Priority(),
    ]
    states = [state(kv_cache, cached=c, priority=priority) for c, priority in waiting]
    gone = data.draw(st.sets(st.sampled_from(states), max_size=4)) if states else set()
    for queue in queues:
        filled(queue, states)
        for waiting_state in gone:
            queue.remove(waiting_state)
        assert len(queue) == len(states) - len(gone)
        assert set(queue.candidates()) == set(states) - gone
        assert len(list(queue.candidates())) == len(queue)
