"""When the router's view of a worker is given up, and when it is not."""

from expediter.cluster.decisions import Decision
from expediter.cluster.predictions import Predictions
from expediter.load import WorkerId


class Answers:
    """Answers of one worker, a second apart; every prompt is 100 tokens long."""

    def __init__(self) -> None:
        self.now = 0.0
        self.predictions = Predictions(num_answers=4, clock=lambda: self.now)

    def take(self, count: int, *, matched: int, cached: int, placed_at: float | None = None) -> int:
        """How often the view was given up."""
        times = 0
        for _ in range(count):
            self.now += 1
            decision = Decision(
                request_id="r",
                worker_id=WorkerId("w"),
                reason="",
                num_tokens=100,
                matched_tokens=matched,
                scores={},
                placed_at=self.now if placed_at is None else placed_at,
                num_tries=1,
            )
            times += self.predictions.disagrees(decision, prompt_tokens=100, cached_tokens=cached)
        return times


def test_a_row_of_answers_with_less_than_half_of_what_was_predicted_is_too_much() -> None:
    assert Answers().take(4, matched=80, cached=39) == 1
    assert Answers().take(4, matched=80, cached=40) == 0
    assert Answers().take(3, matched=80, cached=0) == 0


def test_one_bad_answer_among_good_ones_changes_nothing() -> None:
    answers = Answers()
    for _ in range(20):
        assert answers.take(1, matched=80, cached=0) == 0
        assert answers.take(3, matched=80, cached=80) == 0


def test_answers_where_nothing_was_predicted_say_nothing() -> None:
    assert Answers().take(100, matched=0, cached=0) == 0


def test_a_cause_that_learning_does_not_cure_is_learnt_about_ever_more_rarely() -> None:
    """After 4, 8, 16, ... answers: 1000 answers are 7 rows, not 250."""
    assert Answers().take(1000, matched=80, cached=0) == 7


def test_a_good_row_makes_the_next_one_short_again() -> None:
    answers = Answers()
    answers.take(4 + 8, matched=80, cached=0)
    assert answers.take(16, matched=80, cached=80) == 0
    assert answers.take(4, matched=80, cached=0) == 1


def test_requests_placed_by_the_old_view_do_not_count_against_the_new_one() -> None:
    answers = Answers()
    answers.take(4, matched=80, cached=0)
    assert answers.take(100, matched=80, cached=0, placed_at=1.0) == 0
