"""Leases, pins that follow what their sequence adopts, and whom the source refuses."""

import math

import pytest

from expediter.config import KVCacheConfig
from expediter.errors import LeaseExpired
from expediter.kvcache.hashing import CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.pin import Pin
from expediter.kvcache.sequence import KVSequence
from expediter.request import Request, RequestId, SampledToken
from expediter.transfer.handover import Stage
from expediter.transfer.lease import LeaseTable
from expediter.transfer.messages import Attach, EngineId, Gone, Offer, Queued, Release, TransferId
from expediter.transfer.source import MAX_REMEMBERED, HandoverSource

SIZE = 2
ENGINE = EngineId("source")
ONE, OTHER = TransferId("one"), TransferId("other")


class Worker:
    """A pool of six blocks, its leases, and a clock to set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kv_cache = KVCacheManager(
            KVCacheConfig(block_size=SIZE), num_blocks=6, namespace=CacheNamespace(model="m")
        )
        self.let_go: list[Pin] = []
        self.leases = LeaseTable(let_go=self.unpin, clock=self.clock, seconds=30.0)
        self.source = HandoverSource(
            ENGINE, leases=self.leases, num_layers=1, clock=self.clock, expect_seconds=10.0
        )

    def clock(self) -> float:
        return self.now

    def unpin(self, pin: Pin) -> None:
        self.let_go.append(pin)
        self.kv_cache.unpin(pin)

    def opened(self, tokens: list[int]) -> KVSequence:
        request = Request(request_id=RequestId("r"), prompt_token_ids=tokens)
        sequence = self.kv_cache.open(request)
        assert self.kv_cache.admit(sequence) is not None
        return sequence

    def attach(self, transfer_id: TransferId = ONE, **fields: object) -> list[object]:
        """What the source answers to an Attach."""
        message = {"serial": 1, "engine_id": ENGINE, "num_tokens": 4, **fields}
        self.source.receive("target", Attach(transfer_id=transfer_id, **message))
        return [answer for _, answer in self.source.take_messages()]


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_lease_lasts_while_its_blocks_are_computed_and_from_then_on_its_time(
    worker: Worker,
) -> None:
    pin = worker.kv_cache.pin(worker.opened([1, 2, 3, 4]))
    assert worker.leases.grant(ONE, pin).deadline == math.inf
    worker.now = 1e6
    assert worker.leases.expire() == []
    assert worker.leases.extend(ONE) == worker.now + 30
    worker.now += 29
    assert worker.leases.extend(ONE) == worker.now + 30
    worker.now += 30
    with pytest.raises(LeaseExpired, match="one"):
        worker.leases.extend(ONE)  # it is over from its last moment on, though nobody ended it yet
    assert ONE in worker.leases
    assert not worker.let_go
    assert worker.leases.expire() == [ONE]
    assert worker.let_go == [pin]


def test_a_lease_ends_once_and_alone(worker: Worker) -> None:
    pins = [worker.kv_cache.pin(worker.opened([token] * 4)) for token in (1, 2)]
    for transfer_id, pin in zip((ONE, OTHER), pins, strict=True):
        worker.leases.grant(transfer_id, pin)
    assert (len(worker.leases), worker.leases.num_blocks) == (2, 4)
    assert [worker.leases.release(ONE) for _ in range(2)] == [True, False]
    assert worker.let_go == pins[:1]
    assert worker.leases.is_over(ONE)
    assert not worker.leases.is_over(OTHER)
    with pytest.raises(LeaseExpired):
        worker.leases.get(ONE)
    with pytest.raises(AssertionError, match="has a lease"):
        worker.leases.grant(OTHER, pins[1])


def test_a_pin_holds_blocks_whose_sequence_is_gone(worker: Worker) -> None:
    sequence = worker.opened([1, 2, 3, 4])
    pin = worker.kv_cache.pin(sequence)
    worker.kv_cache.free(sequence)
    assert worker.kv_cache.num_free_blocks == 4
    for _ in range(2):  # the second time nothing happens
        worker.kv_cache.unpin(pin)
        assert worker.kv_cache.num_free_blocks == 6
    assert not pin.is_held


def test_a_pin_follows_its_sequence_and_keeps_what_the_peer_was_told(worker: Worker) -> None:
    """Two compute the same prompt; the second adopts the first's block and gives up its own."""
    first, second = worker.opened([1, 2, 3]), worker.opened([1, 2, 4])
    pin = worker.kv_cache.pin(second)
    own = second.block_ids[:]
    worker.kv_cache.publish(first, 2)
    worker.kv_cache.publish(second, 2)
    assert second.block_ids == [first.block_ids[0], own[1]]
    assert pin.block_ids == own
    assert (pin.run, pin.nameless, pin.displaced) == (first.run, own[1:], own[:1])
    worker.kv_cache.free(first)
    worker.kv_cache.free(second)
    assert worker.kv_cache.num_free_blocks == 3
    worker.kv_cache.unpin(pin)
    assert worker.kv_cache.num_free_blocks == 6


def test_a_pin_follows_no_further_than_it_reaches(worker: Worker) -> None:
    """It holds two blocks; of the run that is published as a whole only the part with these."""
    sequence = worker.opened([1, 2, 3, 4])
    pin = worker.kv_cache.pin(sequence)
    sequence.append([SampledToken(token_id=token) for token in (5, 6)])
    assert worker.kv_cache.allocate_slots(sequence, 6)
    worker.kv_cache.publish(sequence, 6)
    assert pin.run is not None
    assert (pin.run.path_ids(), pin.nameless) == (sequence.block_ids[:2], [])
    worker.kv_cache.free(sequence)
    assert worker.kv_cache.num_free_blocks == 4
    again = worker.opened([1, 2, 3, 4, 5, 6, 7])
    assert again.num_cached_blocks == 3
    worker.kv_cache.free(again)
    worker.kv_cache.unpin(pin)
    assert worker.kv_cache.num_free_blocks == 6


def test_a_pin_keeps_adopted_blocks_and_those_that_stay_nameless(worker: Worker) -> None:
    """The second adopts a block of the first's longer run, and is gone before its next is full."""
    first, second = worker.opened([1, 2, 3, 4, 5]), worker.opened([1, 2, 9])
    pins = [worker.kv_cache.pin(second) for _ in range(2)]
    worker.kv_cache.publish(first, 4)
    worker.kv_cache.publish(second, 2)
    worker.kv_cache.free(second)
    worker.kv_cache.free(first)
    assert worker.kv_cache.num_free_blocks == 3
    assert worker.kv_cache.num_cached_blocks == 2
    for pin, num_free in zip(pins, (3, 6), strict=True):
        worker.kv_cache.unpin(pin)
        assert worker.kv_cache.num_free_blocks == num_free


def test_an_attach_is_refused_by_another_engine(worker: Worker) -> None:
    (gone,) = worker.attach(engine_id=EngineId("its-predecessor"))
    assert gone == Gone(transfer_id=ONE, reason="this is engine source, not its-predecessor")
    assert worker.source.stage(ONE) is None


def test_an_attach_for_another_prompt_is_refused(worker: Worker) -> None:
    """Either side may not say; the same digest on both, or none on one, is let in."""
    worker.source.announce(ONE, prompt=b"p")
    (gone,) = worker.attach(prompt=b"q")
    assert isinstance(gone, Gone)
    assert "different prompts" in gone.reason
    for prompt in (b"p", b""):
        assert worker.attach(prompt=prompt) == [Queued(transfer_id=ONE)]


def test_an_attach_to_a_transfer_that_ended_hears_how(worker: Worker) -> None:
    worker.source.receive("target", Release(transfer_id=ONE))
    worker.source.take_messages()
    assert worker.attach() == [Gone(transfer_id=ONE, reason="released")]


def test_an_attach_after_the_lease_is_refused_though_nobody_ended_it_yet(worker: Worker) -> None:
    worker.source.announce(ONE)
    pin = worker.kv_cache.pin(worker.opened([1, 2, 3, 4]))
    worker.source.begin(ONE, pin, num_tokens=4)
    offer, _ = worker.attach()
    assert isinstance(offer, Offer)
    assert offer.block_ids == tuple(pin.block_ids)
    worker.source.done(ONE, [])
    worker.source.take_messages()
    worker.now = 30.0
    assert worker.attach() == [Gone(transfer_id=ONE, reason="the lease is over")]
    worker.source.tick()
    assert worker.source.stage(ONE) is Stage.EXPIRED


def test_an_attach_whose_request_never_comes_ends_by_time(worker: Worker) -> None:
    assert worker.attach() == []
    worker.now = 9.0
    worker.source.tick()
    assert worker.source.stage(ONE) is Stage.RESERVED
    worker.now = 10.0
    worker.source.tick()
    assert [answer for _, answer in worker.source.take_messages()] == [
        Gone(transfer_id=ONE, reason="no request came to compute it")
    ]


def test_only_so_many_ends_are_remembered(worker: Worker) -> None:
    for number in range(MAX_REMEMBERED + 1):
        worker.source.receive("target", Release(transfer_id=TransferId(str(number))))
    assert worker.source.stage(TransferId("0")) is None
    assert worker.source.stage(TransferId("1")) is Stage.RELEASED
