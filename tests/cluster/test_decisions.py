"""The record of decisions: the last ones, and totals of all."""

from expediter.cluster.decisions import KEPT_SECONDS, MAX_KEPT, Decision, DecisionLog
from expediter.load import WorkerId


def decision(number: int, *, at: float) -> Decision:
    return Decision(
        request_id=str(number),
        worker_id=WorkerId("a"),
        reason="longest-match",
        num_tokens=100,
        matched_tokens=0,
        scores={},
        placed_at=at,
        num_tries=1,
    )


def test_the_last_ones_are_kept() -> None:
    log = DecisionLog(capacity=3)
    for number in range(5):
        log.add(decision(number, at=float(number)))
    assert [kept.request_id for kept in log.recent] == ["2", "3", "4"]


def test_of_a_busy_time_a_sample_is_kept_and_all_are_counted() -> None:
    log = DecisionLog()
    for tick in range(3):
        for number in range(2 * MAX_KEPT):
            log.add(decision(number, at=tick * KEPT_SECONDS * 1.5))
    assert [kept.request_id for kept in log.recent] == 3 * [str(n) for n in range(MAX_KEPT)]
    assert log.num_by_reason["longest-match"] == log.workers[WorkerId("a")].num_requests
    assert log.num_by_reason["longest-match"] == 6 * MAX_KEPT


def test_those_that_fail_are_kept_however_busy_it_is() -> None:
    log = DecisionLog()
    made = [decision(number, at=0.0) for number in range(2 * MAX_KEPT)]
    for each in made:
        log.add(each)
    log.failed(made[0], "worker_lost")
    log.failed(made[-1], "worker_lost")
    kept = [each.request_id for each in log.recent]
    assert kept == [*map(str, range(MAX_KEPT)), str(2 * MAX_KEPT - 1)]
