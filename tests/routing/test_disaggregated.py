"""When a request is split over two workers, and which two: costs small enough to do by hand."""

from collections.abc import Mapping

import pytest

from expediter.routing.disaggregated import Disaggregated, PairChoice
from expediter.routing.gpu_cost import WORKED_EXAMPLE
from expediter.routing.prompt import token_prompt
from expediter.routing.view import ClusterView, RoutedRequest, WorkerView


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def policy(clock: Clock | None = None, **settings) -> Disaggregated:
    """0.1 ms a prompt token; a pause counts half; a token takes 0.02 ms to transfer."""
    return Disaggregated(
        clock=clock or Clock(),
        cost=WORKED_EXAMPLE,
        **{
            "min_uncached_tokens": 100,
            "decode_weight": 0.5,
            "transfer_seconds_per_token": 20e-6,
            **settings,
        },
    )


def view(*workers: WorkerView, matched: Mapping[str, int] | None = None) -> ClusterView:
    return ClusterView(workers=workers, matched=matched or {})


def at(name: str, *, running: int = 0, queued: float = 0.0) -> WorkerView:
    load = queued + running * 256
    return WorkerView(worker_id=name, load_tokens=load, num_requests=running, prefill_tokens=queued)


def choose(
    disaggregated: Disaggregated,
    prefill: ClusterView,
    decode: ClusterView,
    *,
    waits: bool = True,
    must_split: bool = False,
    num_tokens: int = 1000,
) -> PairChoice:
    request = RoutedRequest(request_id="r", prompt=token_prompt(range(num_tokens)))
    return disaggregated.choose(
        request, prefill=prefill, decode=decode, waits_for_transfer=waits, must_split=must_split
    )


def test_the_costs_are_those_of_the_formula() -> None:
    """1,000 tokens: 0.1 s. Together 0.1 + 0.5 * 3 * 0.1; split 0.05 waiting + 0.1 + 0.02."""
    choice = choose(policy(), view(at("p", queued=500)), view(at("d", running=2)))
    assert choice.costs == {"split": pytest.approx(0.17), "together": pytest.approx(0.25)}
    assert (choice.prefill.worker_id, choice.decode.worker_id) == ("p", "d")
    assert choice.decode.reason == "split"


def test_a_prefill_worker_with_a_long_queue_is_passed_by() -> None:
    choice = choose(policy(), view(at("p", queued=5000)), view(at("d", running=2)))
    assert (choice.prefill, choice.decode.reason) == (None, "together")


def test_a_first_token_that_is_passed_on_does_not_wait_for_the_transfer() -> None:
    slow = {"transfer_seconds_per_token": 1e-3}
    prefill, decode = view(at("p")), view(at("d", running=2))
    assert choose(policy(**slow), prefill, decode, waits=True).prefill is None
    assert choose(policy(**slow), prefill, decode, waits=False).prefill is not None


def test_what_little_is_not_cached_stays_with_the_decode_worker_that_has_the_rest() -> None:
    decode = view(at("d"), at("e", running=1), matched={"e": 910})
    choice = choose(policy(), view(at("p")), decode)
    assert (choice.decode.worker_id, choice.decode.reason) == ("e", "short-prompt")
    assert choose(policy(min_uncached_tokens=90), view(at("p")), decode).prefill is None


def test_the_decode_worker_is_the_one_with_the_least_to_do() -> None:
    decode = view(at("d", running=9), at("e", running=3), at("f", running=8))
    assert choose(policy(), view(at("p")), decode).decode.worker_id == "e"


def test_among_equals_it_is_the_one_that_has_least_to_fetch() -> None:
    decode = view(at("d", running=3), at("e", running=3), matched={"e": 512})
    assert choose(policy(), view(at("p")), decode).decode.worker_id == "e"


def test_the_prefill_worker_is_the_one_that_is_done_first() -> None:
    """q holds 500 tokens, which are 0.05 s; p has 300 fewer tokens queued, then 700."""
    decode = view(at("d", running=9))
    held = {"q": 500}
    first = choose(policy(), view(at("p"), at("q", queued=300), matched=held), decode)
    second = choose(policy(), view(at("p"), at("q", queued=700), matched=held), decode)
    assert (first.prefill.worker_id, second.prefill.worker_id) == ("q", "p")
    assert first.prefill.matched_tokens == 500


def test_a_worker_of_both_pools_is_no_pair_with_itself() -> None:
    choice = choose(policy(), view(at("b")), view(at("b", running=2)))
    assert (choice.prefill, choice.decode.reason) == (None, "no-other-worker")


def test_what_cannot_be_served_alone_is_split_whatever_it_costs() -> None:
    choice = choose(
        policy(), view(at("p", queued=9000)), view(at("d")), must_split=True, num_tokens=10
    )
    assert choice.prefill is not None


def test_a_prefill_worker_that_is_slower_than_thought_gets_fewer_prompts() -> None:
    """A hundred prompts of 0.1 s that took 1 s each."""
    clock = Clock()
    disaggregated = policy(clock)
    prefill, decode = view(at("p", queued=200)), view(at("d", running=2))
    assert choose(disaggregated, prefill, decode).costs["split"] == pytest.approx(0.14)
    request = RoutedRequest(request_id="r", prompt=token_prompt(range(1000)))
    for _ in range(100):
        disaggregated.begin(request, worker_id="p", num_held=0)
        clock.now += 1.0
        disaggregated.end("r", is_computed=True)
    learnt = choose(disaggregated, prefill, decode).costs["split"]
    assert learnt == pytest.approx(10 * 0.12 + 0.02, rel=0.2)


def test_equal_workers_take_turns() -> None:
    disaggregated = policy()
    prefill, decode = view(at("p"), at("q")), view(at("d", running=1), at("e", running=1))
    pairs = [choose(disaggregated, prefill, decode) for _ in range(4)]
    assert [p.prefill.worker_id for p in pairs] == ["p", "q", "p", "q"]
    assert [p.decode.worker_id for p in pairs] == ["d", "e", "d", "e"]
