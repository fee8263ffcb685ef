"""Which of the ready workers may take a request: those that serve its model.

An adapter (LoRA) that is in use at a worker is in its GPU's memory; elsewhere it has to be loaded,
maybe in place of another. So workers that say they have it go first, as long as they do not have
much more work than the least loaded that could load it.
"""

from collections.abc import Callable, Sequence

from expediter.cluster.member import Member

LoadOf = Callable[[Member], float]


def eligible(
    serving: Sequence[Member], model: str, *, load: LoadOf, slack_tokens: float
) -> Sequence[Member]:
    """Of workers that serve a model those that may get a request for it.

    If none says that it serves the model, all of them: theirs to refuse. `slack_tokens` is how
    much more work a worker with the adapter may have.
    """
    if not serving:
        return serving
    card = serving[0].models.get(model)
    if card is None or card.parent is None:
        return serving
    having = [m for m in serving if m.load is not None and model in m.load.adapters]
    if not having or len(having) == len(serving):
        return serving
    limit = min(map(load, serving)) + slack_tokens
    return [member for member in having if load(member) <= limit] or serving
