"""Figures of the last minutes, checked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.cluster.decisions import Decision
from expediter.dashboard.series import NUM_BUCKETS, by_time, percentile, summary
from expediter.gateway.activity import ACTIVITY_SECONDS, Answer, answers_of, stages_of
from expediter.load import WorkerId

NO_ANSWERS: list[Answer] = []
ANSWERS: list[Answer] = [
    (1.0, 0.1, 0.01, 100, 50, 40, 80),
    (2.0, 0.3, None, 100, 100, 80, 80),
    (15.0, 0.2, 0.03, 200, None, 150, 160),
]


def decision(**fields: object) -> Decision:
    told = {"placed_at": 10.0, "status": 200, "ttft": 0.5, "is_answered": True, **fields}
    return Decision(
        request_id="r",
        worker_id=WorkerId("w"),
        reason="longest-match",
        num_tokens=80,
        matched_tokens=40,
        scores={},
        num_tries=1,
        **told,  # type: ignore[arg-type]
    )


def test_hit_rates_are_of_answers_that_told_what_was_cached() -> None:
    found = summary(ANSWERS)
    assert found["actual"] == pytest.approx(150 / 200)
    assert found["predicted"] == pytest.approx(120 / 160)
    assert (found["num_answers"], found["ttft_p50"], found["ttft_p95"]) == (3, 0.2, 0.3)
    assert (found["tpot_p50"], found["tpot_p99"]) == (0.01, 0.03)


def test_of_no_answers_nothing_is_known() -> None:
    found = summary(NO_ANSWERS)
    assert found.pop("num_answers") == 0
    assert set(found.values()) == {None}


def test_answers_are_put_by_their_ten_seconds_the_oldest_first() -> None:
    columns = by_time(ANSWERS)
    assert columns["ages"][-2:] == [15.0, 5.0]
    assert columns["num_answers"][-3:] == [0, 1, 2]
    assert columns["ttft_p50"][-2:] == [0.2, 0.1]
    assert columns["actual"][-2:] == [None, 0.75]
    assert {len(column) for column in columns.values()} == {NUM_BUCKETS}


@given(st.lists(st.floats(0, 10), min_size=1), st.sampled_from((50, 95, 99)))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[float], p: int) -> None:
    found = percentile(values, p)
    assert found in values
    assert found is not None
    assert sum(value <= found for value in values) >= len(values) * p / 100


def test_stages_add_up_to_the_whole_time() -> None:
    whole = decision(arrived_at=9.0, read_at=9.75, ended_at=12.5)
    assert stages_of(whole) == {"read": 0.75, "place": 0.25, "first_token": 0.5, "answer": 2.0}
    assert sum(stages_of(whole).values()) == 3.5


def test_a_request_under_way_has_the_stages_that_are_over() -> None:
    assert stages_of(decision(ttft=None, status=None, is_answered=False)) == {}
    assert stages_of(decision(is_answered=False)) == {"first_token": 0.5}


def test_activity_is_of_answers_of_the_last_minutes() -> None:
    answered = decision(
        arrived_at=9.0, read_at=9.5, ended_at=12.5, output_tokens=5, prompt_tokens=90
    )
    failed = decision(is_answered=False, error="worker_lost")
    old = decision(placed_at=-ACTIVITY_SECONDS)
    [found] = answers_of([old, failed, answered], now=20.0)
    assert found == (10.0, 1.5, 0.5, 90, None, 40, 80)
