"""Which of the ready workers may take a request: those that serve its model.

An adapter (LoRA) that is in use at a worker is in its GPU's memory; elsewhere it has to be loaded,
maybe in place of another. So workers that say they have it go first, as long as they do not have
much more work than the least loaded that could load it.
"""

from collections.abc import Callable, Sequence

from expediter.cluster.member import Member

LoadOf = Callable[[Member], float]


def eligible(
    ready: Sequence[Member], model: str | None, *, load: LoadOf, slack_tokens: float
) -> Sequence[Member]:
    """Workers for a request; all of them, if none says it serves the model: theirs to refuse.

    `slack_tokens` is how much more work a worker with the adapter may have.
    """
    if model is None:
        return ready
    serving = [member for member in ready if model in member.models]
    if not serving:
        return ready
    if serving[0].models[model].parent is None:
        return serving
    having = [m for m in serving if m.load is not None and model in m.load.adapters]
    if not having or len(having) == len(serving):
        return serving
    limit = min(map(load, serving)) + slack_tokens
    return [member for member in having if load(member) <= limit] or serving
