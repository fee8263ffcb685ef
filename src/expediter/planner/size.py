"""`expediter plan size`: every figure that the settings decide, each with its arithmetic."""

from collections.abc import Iterator

from expediter.planner import moves, sizes
from expediter.planner.facts import Facts, Figure, Topic
from expediter.planner.settings import SizeConfig


def size_plan(config: SizeConfig) -> list[Topic]:
    """What can be said with what is given, in the order in which one decides.

    Raises ConfigError for unknown names, and for what cannot be: it says by how much.
    """
    facts = Facts(config)
    return [Topic(title=title, figures=list(figures)) for title, figures in _topics(facts)]


def _topics(facts: Facts) -> Iterator[tuple[str, Iterator[Figure]]]:
    config = facts.config
    yield "Model", sizes.model(facts)
    yield "Memory", sizes.capacity(facts)
    if config.rate is not None:
        yield "Hits, at random and aware of the cache", sizes.hits(facts)
        yield "Replicas", sizes.replicas(facts)
    if config.pools is not None and config.pool_rates is not None:
        yield "Goodput of two pools", sizes.pools(facts, config.pools, config.pool_rates)
    if config.link:
        yield "Transfer of one prompt's KV", moves.transfers(facts)
    if config.offload is not None:
        yield "A slower tier of the cache", moves.offload(facts, config.offload)
    if config.uplink is not None:
        yield "From the edge to the cloud", moves.edge(facts, config.uplink)
