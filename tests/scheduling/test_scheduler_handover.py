"""Requests whose prompt's KV goes to another worker or comes from one, by hand and at random."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_oracle import KVOracle, make_request, make_scheduler
from msgspec.structs import replace

from expediter.request import FinishReason, KVFlow, Request, RequestId, SampledToken
from expediter.scheduling.handover import Admission
from expediter.scheduling.scheduler import Scheduler

A, B = RequestId("a"), RequestId("b")


def receiving(name: str, length: int, *, max_tokens: int = 4) -> Request:
    return replace(
        make_request(name, list(range(length)), max_tokens=max_tokens), kv_flow=KVFlow.RECEIVES
    )


def admit(scheduler: Scheduler, request: Request) -> Admission:
    """It gets its slots, and there is nothing to compute."""
    scheduler.add(request)
    assert scheduler.schedule() is None
    (admission,) = scheduler.take_admissions()
    return admission


def let_go(scheduler: Scheduler, admission: Admission) -> None:
    scheduler.let_go(admission.pin)


def finish(scheduler: Scheduler, oracle: KVOracle, num_tokens: int) -> list[int]:
    """Steps until somebody has so many output tokens: the tokens that came in them."""
    found: list[int] = []
    while len(found) < num_tokens:
        output = scheduler.schedule()
        assert output is not None
        for result in scheduler.update(output, oracle.execute(output)):
            found += [token.token_id for token in result.tokens]
    return found


def pull(oracle: KVOracle, admission: Admission, request: Request, num_tokens: int) -> None:
    """What a transfer does: the first tokens' KV, written into the pinned blocks."""
    text = oracle.texts[request.request_id]
    for position in range(num_tokens):
        oracle.slots[oracle.slot(admission.pin.block_ids, position)] = text[: position + 2]


def test_a_receiving_request_holds_slots_and_costs_no_step() -> None:
    scheduler = make_scheduler()
    admission = admit(scheduler, receiving("a", 7))
    assert (admission.num_tokens, admission.num_cached_tokens) == (7, 0)
    assert len(admission.pin.block_ids) == scheduler.kv_cache.num_used_blocks == 4
    assert scheduler.load().num_waiting == 1
    assert scheduler.take_admissions() == []


def test_the_first_token_comes_before_the_kv_and_decoding_goes_on_after_it() -> None:
    scheduler, oracle = make_scheduler(), KVOracle()
    request = receiving("a", 6)
    oracle.add(request)
    admission = admit(scheduler, request)
    first = SampledToken(token_id=9)
    output = scheduler.receive_token(A, first, num_cached_tokens=3)
    assert output is not None
    assert (output.tokens, output.num_cached_tokens, output.num_output_tokens) == ([first], 3, 1)
    assert scheduler.schedule() is None
    oracle.texts[A] = (*oracle.texts[A], 9)
    pull(oracle, admission, request, 6)
    scheduler.resume(A, num_tokens=6)
    let_go(scheduler, admission)
    step = scheduler.schedule()
    assert step is not None
    assert step.num_new_tokens == 1
    assert scheduler.kv_cache.num_cached_blocks == 3


def test_a_request_that_ends_with_its_first_token_needs_no_kv() -> None:
    scheduler = make_scheduler()
    admission = admit(scheduler, receiving("a", 6, max_tokens=1))
    output = scheduler.receive_token(A, SampledToken(token_id=9), num_cached_tokens=0)
    assert output is not None
    assert output.finish_reason is FinishReason.LENGTH
    assert not scheduler.has_work
    assert scheduler.kv_cache.num_used_blocks == 3, "a transfer may still be writing to them"
    let_go(scheduler, admission)
    assert scheduler.kv_cache.num_used_blocks == 0


def test_an_aborted_receiver_gives_nothing_back_before_the_transfer_lets_go() -> None:
    scheduler = make_scheduler(num_blocks=5)
    admission = admit(scheduler, receiving("a", 8, max_tokens=1))
    assert scheduler.abort(A)
    scheduler.add(make_request("b", [5, 6, 7], max_tokens=1))
    assert scheduler.schedule() is None
    let_go(scheduler, admission)
    assert scheduler.schedule() is not None
    assert scheduler.receive_token(A, SampledToken(token_id=1), num_cached_tokens=0) is None
    scheduler.resume(A, num_tokens=8)


def test_a_receiver_without_room_waits_and_lets_nobody_pass() -> None:
    scheduler = make_scheduler(num_blocks=5)
    admission = admit(scheduler, receiving("a", 6))
    scheduler.add(receiving("b", 5))
    scheduler.add(make_request("c", [1], max_tokens=1))
    assert scheduler.schedule() is None
    assert scheduler.take_admissions() == []
    scheduler.abort(A)
    let_go(scheduler, admission)
    assert scheduler.schedule() is not None
    assert [admission.request_id for admission in scheduler.take_admissions()] == [B]


def test_a_cached_prefix_is_announced_so_that_it_need_not_be_sent() -> None:
    scheduler, oracle = make_scheduler(), KVOracle()
    cached = make_request("c", [0, 1, 2, 3, 7], max_tokens=1)
    oracle.add(cached)
    scheduler.add(cached)
    finish(scheduler, oracle, 1)
    admission = admit(scheduler, receiving("a", 7))
    assert admission.num_cached_tokens == 4


def test_a_sender_runs_as_usual_and_its_blocks_outlast_it() -> None:
    scheduler, oracle = make_scheduler(), KVOracle()
    request = replace(make_request("a", [1, 2, 3, 4, 5], max_tokens=1), kv_flow=KVFlow.SENDS)
    oracle.add(request)
    scheduler.add(request)
    finish(scheduler, oracle, 1)
    (admission,) = scheduler.take_admissions()
    assert not scheduler.has_work
    assert scheduler.kv_cache.num_used_blocks == 3
    let_go(scheduler, admission)
    assert scheduler.kv_cache.num_used_blocks == 0


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
@given(length=st.integers(1, 12), data=st.data())
def test_however_far_a_transfer_came_the_answer_is_the_same(
    prefix_cache: str, length: int, data: st.DataObject
) -> None:
    """With the first token known or not, with memory short or not, beside another request."""
    num_received = data.draw(st.integers(0, length), label="received")
    knows_first = data.draw(st.booleans(), label="first token came")
    if not knows_first:
        num_received = min(num_received, length - 1)  # the last token's logits are to compute
    beside = make_request("b", [7] * data.draw(st.integers(1, 6), label="beside"), max_tokens=8)
    request = receiving("a", length, max_tokens=5)
    alone = KVOracle()
    alone.add(replace(request, kv_flow=KVFlow.LOCAL))
    expected = make_scheduler()
    expected.add(replace(request, kv_flow=KVFlow.LOCAL))
    tokens = finish(expected, alone, 5)

    num_blocks = data.draw(st.integers(9, 14), label="blocks")
    scheduler = make_scheduler(prefix_cache=prefix_cache, num_blocks=num_blocks)
    oracle = KVOracle()
    for each in (request, beside):
        oracle.add(each)
    admission = admit(scheduler, request)
    scheduler.add(beside)
    found = []
    if knows_first:
        output = scheduler.receive_token(A, SampledToken(token_id=tokens[0]), num_cached_tokens=0)
        assert output is not None
        oracle.texts[A] = (*oracle.texts[A], tokens[0])
        found.append(tokens[0])
    pull(oracle, admission, request, num_received)
    scheduler.resume(A, num_tokens=num_received)
    let_go(scheduler, admission)
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step is not None
        for result in scheduler.update(step, oracle.execute(step)):
            if result.request_id == A:
                found += [token.token_id for token in result.tokens]
    assert found == tokens
    assert scheduler.kv_cache.num_used_blocks == 0
