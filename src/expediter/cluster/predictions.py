"""Whether workers have cached what the router takes them to have.

A view can go wrong for good: a worker drops its cache and does not say so, an engine hashes what
the router cannot see. So answers that tell their cached tokens are held against what was
predicted, as shares of the prompt, because a prompt known as text has no exact length:

    disagrees = sum(cached share) < SHARE * sum(predicted share), over a number of answers in a row

After that the view is learnt anew, and only requests placed since then count. If they disagree
again, the cause is another one, and learning more often would not help: the number of answers
doubles each time, and is the first again after one good row.
"""

from dataclasses import dataclass

from expediter.clock import Clock
from expediter.cluster.decisions import Decision
from expediter.load import WorkerId

SHARE = 0.5
MAX_ANSWERS = 2**16


@dataclass(slots=True)
class _Row:
    """Answers of one worker since its view was judged last."""

    num_wanted: int
    num_answers: int = 0
    predicted: float = 0.0
    cached: float = 0.0
    relearnt_at: float = float("-inf")

    def begin(self, num_wanted: int) -> None:
        self.num_wanted = num_wanted
        self.num_answers = 0
        self.predicted = self.cached = 0.0


class Predictions:
    """All workers'. Call `disagrees` for each answer that tells its cached tokens."""

    def __init__(self, *, num_answers: int, clock: Clock) -> None:
        self._num_answers = num_answers
        self._clock = clock
        self._rows: dict[WorkerId, _Row] = {}
        self.num_relearnt: dict[WorkerId, int] = {}

    def disagrees(self, decision: Decision, *, prompt_tokens: int, cached_tokens: int) -> bool:
        """Whether this answer ends a row that says: what is known of the worker is wrong."""
        if not decision.matched_tokens or not decision.num_tokens or prompt_tokens <= 0:
            return False
        row = self._rows.get(decision.worker_id)
        if row is None:
            row = self._rows[decision.worker_id] = _Row(self._num_answers)
        if decision.placed_at < row.relearnt_at:
            return False
        row.num_answers += 1
        row.predicted += decision.matched_tokens / decision.num_tokens
        row.cached += cached_tokens / prompt_tokens
        if row.num_answers < row.num_wanted:
            return False
        return self._judge(row, decision.worker_id)

    def forget(self, worker_id: WorkerId) -> None:
        """The worker is gone."""
        self._rows.pop(worker_id, None)

    def _judge(self, row: _Row, worker_id: WorkerId) -> bool:
        if row.cached >= SHARE * row.predicted:
            row.begin(self._num_answers)
            return False
        row.begin(min(2 * row.num_wanted, MAX_ANSWERS))
        row.relearnt_at = self._clock()
        self.num_relearnt[worker_id] = self.num_relearnt.get(worker_id, 0) + 1
        return True
