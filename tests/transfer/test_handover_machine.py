"""A source and a target over a network that loses, repeats and reorders, step by arbitrary step.

Both sides have real block pools. Bytes are modelled by what each block of the target's slots was
copied from, and when: a copy counts as good only if the source still held that block for it.
"""

import random
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from expediter.config import KVCacheConfig
from expediter.errors import TransferError
from expediter.kvcache.hashing import CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.sequence import KVSequence
from expediter.request import Request, RequestId, SampledToken
from expediter.transfer.handover import Stage
from expediter.transfer.incoming import PullOrder, Reservation
from expediter.transfer.lease import LeaseTable
from expediter.transfer.messages import EngineId, FromSource, FromTarget, TransferId
from expediter.transfer.source import HandoverSource
from expediter.transfer.target import Failed, FirstToken, HandoverTarget, Taken

SIZE, LAYERS, BLOCKS = 2, 2, 12
ENGINE = EngineId("source")
PEER = "the only one"


def pool() -> KVCacheManager:
    return KVCacheManager(
        KVCacheConfig(block_size=SIZE), num_blocks=BLOCKS, namespace=CacheNamespace(model="m")
    )


def opened(kv_cache: KVCacheManager, tokens: Sequence[int]) -> KVSequence | None:
    request = Request(request_id=RequestId("r"), prompt_token_ids=tokens)
    sequence = kv_cache.open(request)
    return sequence if kv_cache.admit(sequence) is not None else None


class Handovers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.rng = random.Random(0)
        self.theirs, self.ours = pool(), pool()
        self.leases = LeaseTable(let_go=self.theirs.unpin, clock=self.clock)
        self.source = HandoverSource(
            ENGINE, leases=self.leases, num_layers=LAYERS, clock=self.clock
        )
        self.target = HandoverTarget(
            let_go=self.ours.unpin, clock=self.clock, block_size=SIZE, num_layers=LAYERS
        )
        self.to_source: list[FromTarget] = []
        self.to_target: list[FromSource] = []
        self.prefills: dict[TransferId, KVSequence] = {}
        self.decodes: dict[TransferId, KVSequence] = {}
        self.prompts: dict[TransferId, list[int]] = {}
        self.orders: dict[TransferId, PullOrder] = {}
        self.told: dict[TransferId, list[object]] = {}
        self.cancelled: set[TransferId] = set()

    def clock(self) -> float:
        return self.now

    def settle(self) -> None:
        """Hand what both sides said to the network, and to the schedulers what they must do."""
        self.to_source += [message for _, message in self.target.take_messages()]
        self.to_target += [message for _, message in self.source.take_messages()]
        for transfer_id in self.source.take_abandoned():
            if sequence := self.prefills.pop(transfer_id, None):
                self.theirs.free(sequence)
        for event in self.target.take_events():
            self.told[event.transfer_id].append(event)
            if isinstance(event, Taken | Failed):
                assert event.transfer_id not in self.orders, "told while bytes arrive"

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def ask(self, tokens: list[int]) -> None:
        transfer_id = TransferId(str(len(self.prompts)))
        sequence = opened(self.ours, tokens)
        if sequence is None:
            return
        self.prompts[transfer_id] = tokens
        self.decodes[transfer_id] = sequence
        self.told[transfer_id] = []
        reservation = Reservation(
            transfer_id=transfer_id,
            engine_id=ENGINE,
            pin=self.ours.pin(sequence),
            num_tokens=len(tokens),
            num_cached_tokens=sequence.num_cached_blocks * SIZE,
        )
        self.target.reserve(reservation, PEER)
        self.settle()

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        waiting = [name for name in self.prompts if name not in self.prefills]
        if not waiting:
            return
        transfer_id = data.draw(st.sampled_from(waiting))
        if transfer_id in self.leases:
            return
        self.source.announce(transfer_id)
        self.settle()
        sequence = opened(self.theirs, self.prompts[transfer_id])
        if sequence is None:
            self.source.fail(transfer_id, "no room")
        else:
            self.prefills[transfer_id] = sequence
            self.source.begin(
                transfer_id,
                self.theirs.pin(sequence),
                num_tokens=sequence.num_tokens,
                num_cached_tokens=sequence.num_cached_blocks * SIZE,
            )
        self.settle()

    @rule(data=st.data(), ends=st.sampled_from(["layer", "chunk", "done", "crash"]))
    def step(self, data: st.DataObject, ends: str) -> None:
        if not self.prefills:
            return
        transfer_id = data.draw(st.sampled_from(sorted(self.prefills)))
        sequence = self.prefills[transfer_id]
        num_tokens = data.draw(st.integers(1, sequence.num_tokens))
        if ends == "layer":
            self.source.progress(transfer_id, num_tokens=num_tokens, num_layers=1)
        elif ends == "chunk":
            self.source.progress(transfer_id, num_tokens=num_tokens, num_layers=LAYERS)
            self.theirs.publish(sequence, num_tokens)
        else:
            if ends == "done":
                self.theirs.publish(sequence, sequence.num_tokens)
                self.source.done(transfer_id, [SampledToken(token_id=7)])
            else:
                self.source.fail(transfer_id, "the step failed")
            self.theirs.free(self.prefills.pop(transfer_id))
        self.settle()

    @rule(data=st.data(), fate=st.sampled_from(["arrive", "arrive", "lose", "repeat"]))
    def deliver(self, data: st.DataObject, fate: str) -> None:
        queue = data.draw(st.sampled_from([self.to_source, self.to_target]))
        if not queue:
            return
        index = data.draw(st.integers(0, len(queue) - 1))
        message = queue[index] if fate == "repeat" else queue.pop(index)
        if fate != "lose":
            self.arrive(message)
        self.settle()

    def arrive(self, message: FromSource | FromTarget) -> None:
        if isinstance(message, FromTarget):
            self.source.receive(PEER, message)
        else:
            self.target.receive(PEER, message)

    @rule(data=st.data(), outcome=st.sampled_from(["start", "good", "good", "broken"]))
    def pull(self, data: st.DataObject, outcome: str) -> None:
        if not self.decodes:
            return
        transfer_id = data.draw(st.sampled_from(sorted(self.decodes)))
        if transfer_id in self.orders and outcome != "start":
            order = self.orders.pop(transfer_id)
            if outcome == "good":
                was_live = self.target.stage(transfer_id) in (Stage.COMPUTING, Stage.PULLING)
                self.target.pulled(transfer_id)
                if was_live and self.target.stage(transfer_id) is not Stage.EXPIRED:
                    held = self.leases.get(transfer_id).pin.block_ids
                    assert set(order.source_blocks) <= set(held), "copied what nobody held"
            else:
                self.target.pull_failed(transfer_id, TransferError("broken"))
        elif transfer_id not in self.orders and (order_ := self.target.next_pull(transfer_id)):
            self.orders[transfer_id] = order_
        self.settle()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.decodes:
            transfer_id = data.draw(st.sampled_from(sorted(self.decodes)))
            self.ours.free(self.decodes.pop(transfer_id))
            self.cancelled.add(transfer_id)
            self.target.cancel(transfer_id)
            self.settle()

    @rule(seconds=st.sampled_from([1.0, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.source.tick()
        self.target.tick()
        self.settle()

    @rule(who=st.sampled_from(["source", "target"]))
    def connection_breaks(self, who: str) -> None:
        self.to_source.clear()
        self.to_target.clear()
        self.source.peer_lost(PEER)
        if who == "source":
            self.target.peer_lost(PEER, TransferError("it died"))
        self.settle()

    @invariant()
    def one_end_each(self) -> None:
        for events in self.told.values():
            assert sum(isinstance(event, FirstToken) for event in events) <= 1
            assert sum(isinstance(event, Taken | Failed) for event in events) <= 1

    def teardown(self) -> None:
        """However far it came: both sides' time passes, and nothing is held or unanswered."""
        for transfer_id in list(self.orders):
            self.orders.pop(transfer_id)
            self.target.pulled(transfer_id)
        for sequence in self.prefills.values():
            self.theirs.free(sequence)
        for transfer_id in list(self.prefills):
            self.source.fail(transfer_id, "shutting down")
        self.prefills.clear()
        for _ in range(20):
            self.wait(10.0)
        for transfer_id, events in self.told.items():
            ended = any(isinstance(event, Taken | Failed) for event in events)
            assert ended or transfer_id in self.cancelled
        for sequence in self.decodes.values():
            self.ours.free(sequence)
        assert (self.theirs.num_used_blocks, self.ours.num_used_blocks) == (0, 0)
        assert (len(self.leases), len(self.target)) == (0, 0)


TestHandovers = Handovers.TestCase
TestHandovers.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
