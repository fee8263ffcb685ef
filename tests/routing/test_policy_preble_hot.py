"""What E2 does about hot workers and hot prefixes; the numbers are those of `policy_cases`."""

import pytest
from policy_cases import MS, A, B, C, D, Fleet

from expediter.routing.feedback import FirstToken


@pytest.mark.parametrize(
    ("load_of_b", "waiting_at_a", "reason"),
    [
        (60, 150, "rebalance"),  # L: 110 > 1.5 * 70; 150 ms of waiting against 80 - 20 anew
        (64, 150, "exploit"),  # L: 110 < 1.5 * 74
        (60, 50, "exploit"),  # 50 ms of waiting: less than 80 ms to compute anew
    ],
)
def test_a_hot_worker_is_relieved_when_it_is_heavy_and_moving_pays(
    load_of_b: int, waiting_at_a: int, reason: str
) -> None:
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)
    fleet.serve(("t", load_of_b), on=B)
    choice = fleet.send(("s", 80), ("u", 20), matched={A: 80}, load_tokens={A: waiting_at_a, B: 0})
    assert (choice.worker_id, choice.reason) == (B if reason == "rebalance" else A, reason)


def test_redirecting_ends_when_the_difference_is_gone() -> None:
    fleet = Fleet()
    fleet.serve(("s", 400), on=A)
    held = {A: 80, B: 0}
    reasons = []
    for i in range(8):
        choice = fleet.send(("s", 80), (f"u{i}", 20), matched=held, load_tokens={A: 500})
        held[choice.worker_id] = 80
        reasons.append(choice.reason)
        fleet.policy.observe(FirstToken(request_id=str(fleet.num_requests)))
    # L(A) = 410. B: 110 after the first, then 30 each, to 290 after seven: 410 <= 1.5 * 290.
    # Once B holds the prefix too it is the cheaper owner, so it needs no redirection.
    assert reasons == ["rebalance", *["exploit"] * 7]
    assert fleet.history.window.load(B) * 1.5 >= fleet.history.window.load(A)


def test_a_lone_conversation_is_left_where_it_is() -> None:
    """Its worker has all the load of the window, but nobody waits."""
    fleet = Fleet()
    first = fleet.send(("h", 300)).worker_id
    for num_tokens in range(400, 1300, 100):
        choice = fleet.send(("h", num_tokens), matched={first: num_tokens - 100})
        assert (choice.worker_id, choice.reason) == (first, "exploit")


def heat(fleet: Fleet, *, before: float, after: float) -> None:
    """Eight requests for s on A: four wait `before` seconds in one half window, four `after`."""
    for i, wait in enumerate([before] * 4 + [after] * 4):
        fleet.now = 100.0 if i == 4 else fleet.now
        cached = 100 if i else 0
        num_tokens = 10 * (i + 1)
        fleet.send(("s", 100), (f"u{i}", num_tokens), to=(A,), matched={A: cached})
        fleet.now += wait + (100 - cached + num_tokens) * MS
        fleet.policy.observe(FirstToken(request_id=str(fleet.num_requests)))


@pytest.mark.parametrize(
    ("before", "after", "is_hot"),
    [(1.0, 2.1, True), (1.0, 1.9, False), (0.0, 0.05, False)],
)
def test_a_prefix_is_hot_when_its_waiting_doubles(
    before: float, after: float, *, is_hot: bool
) -> None:
    """In the last case it doubles, but a copy costs 100 ms of prefill, more than the wait."""
    fleet = Fleet()
    heat(fleet, before=before, after=after)
    assert any(node.is_hot for node in fleet.history.forest) == is_hot


def test_a_hot_prefix_is_copied_and_its_subtrees_are_split_by_load() -> None:
    """Below s lie u0 to u7. Each weighs 10 ms of decoding and 10 to 80 of prefill; u0's request
    computed s as well. So u0 120, u7 90, u6 80, u5 70, u4 60, u3 50, u2 40, u1 30, each to the
    lighter side: A u0, B u7, B u6, A u5, B u4, A u3, B u2, A u1, which is 270 ms a side."""
    fleet = Fleet()
    heat(fleet, before=1.0, after=2.1)
    (s,) = [node for node in fleet.history.forest if node.start == 0]
    copied = fleet.send(("s", 100), ("w", 10), matched={A: 100})
    assert (copied.worker_id, copied.reason) == (B, "split")
    homes = {len(c.keys): c.home for c in s.children.values() if c.home is not None}
    assert homes == {1: A, 8: B, 7: B, 6: A, 5: B, 4: A, 3: B, 2: A}
    for i, home in ((5, A), (6, B)):
        choice = fleet.send(("s", 100), (f"u{i}", 10 * (i + 1)), ("x", 5), matched={A: 100, B: 100})
        assert (choice.worker_id, choice.reason) == (home, "split")
    # What continues s in a new way has two owners now, and goes to the one with less load.
    new = fleet.send(("s", 100), ("y", 10), matched={A: 100, B: 100})
    assert (new.worker_id, new.reason) == (B, "exploit")


def test_a_home_is_given_up_with_its_worker_and_with_the_window() -> None:
    fleet = Fleet()
    heat(fleet, before=1.0, after=2.1)
    fleet.send(("s", 100), ("w", 10), to=(A, B), matched={A: 100})
    away = fleet.send(("s", 100), ("u6", 70), to=(A, C), matched={A: 170})
    assert (away.worker_id, away.reason) == (A, "exploit")
    fleet.now += 181.0
    fleet.history.expire(fleet.now)
    assert all(node.home is None for node in fleet.history.forest)


def test_a_prefix_that_everybody_uses_ends_up_everywhere() -> None:
    """Requests pile up: each takes 60 tokens of work, a copy costs 100."""
    fleet = Fleet()
    workers = (A, B, C, D)
    work, held = dict.fromkeys(workers, 0.0), dict.fromkeys(workers, 0)
    reasons = []
    for i in range(40):
        choice = fleet.send(
            ("s", 100), (f"u{i}", 60), to=workers, matched=held, load_tokens=dict(work)
        )
        work[choice.worker_id] += 60
        held[choice.worker_id] = 100
        reasons.append(choice.reason)
        fleet.policy.observe(FirstToken(request_id=str(fleet.num_requests)))
    assert all(held.values())
    assert max(work.values()) <= 1.5 * min(work.values())
    assert set(reasons) >= {"explore", "exploit"}


def test_a_wanted_copy_is_made_by_a_request_that_ends_there() -> None:
    """s has 5 of 10 requests: wanted on 2 of 4 workers. L is even, so nothing is rebalanced."""
    fleet = Fleet()
    for i in range(5):
        fleet.serve(("s", 100), (f"u{i}", 10), on=A, cached=100 if i else 0)
    for worker_id in (B, C, D):
        fleet.serve(("t" + worker_id, 150), on=worker_id)
    fleet.serve(("v", 10), on=B)
    fleet.serve(("w", 10), on=C)
    send = ("s", 100), ("x", 10)
    waiting = {A: 200.0}
    copy = fleet.send(*send, to=(A, B, C, D), matched={A: 100}, load_tokens=waiting)
    assert (copy.worker_id, copy.reason) == (D, "replicate")
    fleet.policy.observe(FirstToken(request_id=str(fleet.num_requests)))
    again = fleet.send(*send, to=(A, B, C, D), matched={A: 100, D: 100}, load_tokens=waiting)
    assert again.reason == "exploit"  # on two already
