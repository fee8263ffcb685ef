"""The cost of a placement in numbers small enough to do by hand.

PT(n) is n ms and a step's part is 1 ms a request. The regression is right about the workers, so
nothing is learnt that changes it, and the first request of a window pays no toll.
"""

from collections.abc import Mapping

import pytest
from policy_cases import MS, ONE_MS, A, B, C, request, view

from expediter.load import WorkerId
from expediter.routing.feedback import Failed, Finished, FirstToken, WorkerRemoved
from expediter.routing.prefill_speed import PrefillSpeed
from expediter.routing.prompt import Prompt, pack_tokens, packed_prompt, text_prompt
from expediter.routing.slo import PredictedCost
from expediter.routing.view import Choice, RoutedRequest

BLOCK_SIZE = 10


class Router:
    """The policy with a clock set by hand; requests are numbered from 1."""

    def __init__(self, *, decode_weight: float = 0.0, congestion_weight: float = 0.0) -> None:
        self.now = 0.0
        self.num_requests = 0
        self.policy = PredictedCost(
            clock=lambda: self.now,
            cost=ONE_MS,
            block_size=BLOCK_SIZE,
            decode_weight=decode_weight,
            congestion_weight=congestion_weight,
        )

    def send(
        self,
        *parts: tuple[str, int],
        to: tuple[WorkerId, ...] = (A, B),
        matched: Mapping[WorkerId, int] | None = None,
        num_requests: Mapping[WorkerId, int] | None = None,
    ) -> Choice:
        self.num_requests += 1
        seen = view(*to, matched=matched, num_requests=num_requests)
        return self.policy.choose(request(str(self.num_requests), *parts), seen)

    def first_token(self, number: int, *, at: float) -> None:
        self.now = at
        self.policy.observe(FirstToken(request_id=str(number)))


def test_an_idle_worker_costs_what_it_must_compute() -> None:
    choice = Router().send(("p", 1000), matched={B: 600})
    assert (choice.worker_id, choice.matched_tokens, choice.reason) == (B, 600, "longest-match")
    assert choice.scores == pytest.approx({A: -1000 * MS, B: -400 * MS})


def test_a_queue_ahead_counts_as_long_as_it_takes() -> None:
    """Behind 500 ms, the 400 that B must compute are later than A's 800."""
    router = Router()
    router.send(("other", 500), to=(B,))
    choice = router.send(("p", 1000), matched={A: 200, B: 600})
    assert (choice.worker_id, choice.reason) == (A, "overloaded")
    assert choice.scores == pytest.approx({A: -800 * MS, B: -900 * MS})


def test_what_has_been_computed_since_does_not_count_but_only_of_the_first_request() -> None:
    router = Router()
    router.send(("x", 300), to=(B,))
    router.send(("y", 300), to=(B,))
    router.now = 0.2
    assert router.send(("p", 100)).scores[B] == pytest.approx(-(400 + 100) * MS)
    router.now = 5.0  # a worker that hangs does not look free
    assert router.send(("p", 100), to=(B,)).scores[B] <= -(300 + 100) * MS


def test_a_first_token_takes_its_request_off_the_queue() -> None:
    router = Router()
    router.send(("x", 300), to=(B,))
    router.send(("y", 200), to=(B,))
    router.first_token(1, at=0.3)
    assert router.send(("p", 100)).scores[B] == pytest.approx(-300 * MS)


@pytest.mark.parametrize(
    "end", [Failed(request_id="1"), Finished(request_id="1"), WorkerRemoved(worker_id=B)]
)
def test_nothing_is_left_of_a_request_that_ended(end: Failed | Finished | WorkerRemoved) -> None:
    router = Router()
    router.send(("x", 500), to=(B,))
    router.policy.observe(end)
    choice = router.send(("x", 500))
    assert choice.scores == pytest.approx({A: -500 * MS, B: -500 * MS})
    assert choice.reason == "no-match"


def test_a_prompt_still_queued_counts_as_cached_there() -> None:
    """Half of it is still to come, and one token is computed whatever is cached: 500 + 1."""
    router = Router()
    router.send(("p", 1000), to=(B,))
    router.now = 0.5
    choice = router.send(("p", 1000))
    assert choice.worker_id == B
    assert choice.matched_tokens == 0  # the index knows of none yet
    assert choice.scores == pytest.approx({A: -1000 * MS, B: -501 * MS})


def test_decodes_beside_it_count_by_their_weight() -> None:
    """Ten answers wait 100 ms each, and 2 x 128 tokens take 1 ms more: 0.1 x 10 x 356 = 356 ms."""
    router = Router(decode_weight=0.1)
    choice = router.send(("p", 100), num_requests={A: 10, B: 0})
    assert choice.scores == pytest.approx({A: -(100 + 356) * MS, B: -100 * MS})


def test_the_longer_answers_are_the_more_a_decode_counts() -> None:
    router = Router(decode_weight=0.1)
    before = router.send(("p", 100), num_requests={A: 10}).scores[A]
    router.policy.observe(Finished(request_id="1", output_tokens=1128))  # mean 128 -> 138
    after = router.send(("p", 100), num_requests={A: 10}, to=(A,)).scores[A]
    assert before - after == pytest.approx(0.1 * 10 * 2 * 10 * MS)


def test_a_busy_fleet_keeps_to_its_caches() -> None:
    """Ten requests, 10 s of work in 20 s on two workers: rho 1/4, lambda 1/4, so the toll is 1/3.

    A: 0 + 1 + 1/3 x 1 x 0.5 = 1.167; B, behind 0.9 s: 0.9 + 0.2 + 1/3 x 0.2 x 1 = 1.167.
    """
    router = Router(congestion_weight=1.0)
    for number in range(10):
        router.send((f"x{number}", 1000), to=(A,))
        router.policy.observe(Failed(request_id=str(number + 1)))
    router.policy._num_recent = router.policy._recent_seconds = 9.1
    router.send(("y", 900), to=(B,))
    router.policy._num_recent = router.policy._recent_seconds = 10.0
    scores = router.send(("p", 1000), matched={B: 800}).scores
    assert scores == pytest.approx({A: -(1 + 1 / 6), B: -(1.1 + 0.2 / 3)})


def test_the_toll_is_bounded_so_that_a_hot_prefix_is_copied() -> None:
    """1 s of work costs others 2 s at most, half of it as one more waits for the same prompt."""
    router = Router(congestion_weight=1000.0)
    router.send(("hot", 1000), to=(B,))
    for number in range(3):
        router.send((f"{number}", 1000), to=(B,))
    choice = router.send(("hot", 1000), matched={B: 1000})
    assert choice.scores[A] == pytest.approx(-2.0)
    assert (choice.worker_id, choice.reason) == (A, "overloaded")


def test_cold_prompts_on_an_idle_fleet_take_turns() -> None:
    router = Router()
    chosen = []
    for number in range(6):
        chosen.append(router.send((f"p{number}", 100), to=(A, B, C)).worker_id)
        router.now += 0.1
        router.first_token(number + 1, at=router.now)
    assert sorted(chosen[:3]) == sorted(chosen[3:]) == [A, B, C]


def test_the_scale_of_the_regression_is_learnt() -> None:
    """All prompts take twice as long as predicted."""
    router = Router()
    for number in range(1, 400):
        router.send(("p", 100), to=(A,))
        router.first_token(number, at=router.now + 0.2)
    assert router.send(("p", 100), to=(A,)).scores[A] == pytest.approx(-0.2, rel=0.05)


def test_only_a_worker_far_from_the_others_is_slower() -> None:
    speed = PrefillSpeed()
    for _ in range(300):
        for worker_id, seconds in ((A, 1.0), (B, 1.1), (C, 4.0)):
            speed.learn(worker_id, predicted=1.0, observed=seconds)
    assert speed.scale(A) != speed.scale(B)  # 1.0 is far from 2.03, the mean of all
    assert speed.scale(C) == pytest.approx(4.0)
    speed.forget(C)
    assert speed.scale(C) == speed.fleet_scale


def test_what_waits_at_a_worker_is_found_in_text_and_in_tokens_of_which_the_last_are_put_off() -> (
    None
):
    router = Router()

    def send(prompt: Prompt, to: tuple[WorkerId, ...]) -> Choice:
        router.num_requests += 1
        routed = RoutedRequest(request_id=str(router.num_requests), prompt=prompt)
        return router.policy.choose(routed, view(*to))

    def never() -> bytes:
        pytest.fail("what nobody was ever sent is not needed to place a request")

    def tokens() -> Prompt:
        return packed_prompt(pack_tokens(range(1000)), more=never, num_more=100)

    def text() -> Prompt:
        return text_prompt("four " * 1000)

    for prompt, found in ((tokens, 1000), (text, 1024)):
        send(prompt(), (B,))
        scores = send(prompt(), (A, B)).scores
        num_tokens, ahead = prompt().num_tokens, -scores[A] - prompt().num_tokens * MS
        assert ahead == pytest.approx(0.0), "nothing waits at A, and nothing is known there"
        assert -scores[B] == pytest.approx((num_tokens + num_tokens - found) * MS)
        for number in (router.num_requests - 1, router.num_requests):
            router.policy.observe(Failed(request_id=str(number)))
