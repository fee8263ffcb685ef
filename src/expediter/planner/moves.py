"""What moves: a prompt's KV between replicas, from a slower tier, from a robot."""

from collections.abc import Iterator

from expediter.errors import ConfigError
from expediter.planner import sizing
from expediter.planner.facts import Facts, Figure
from expediter.planner.units import big, milliseconds, percent, size, speed


def transfers(facts: Facts) -> Iterator[Figure]:
    """Bytes, and the time over each link; what the fleet's links must carry."""
    num_bytes = facts.spec.kv_bytes(facts.traffic.num_prompt_tokens)
    prefill = sizing.prefill_seconds(facts.cost, new=facts.traffic.num_prompt_tokens)
    links = facts.num_links
    per_link = num_bytes / links
    yield Figure(name="transfer_bytes", value=num_bytes, shown=size(num_bytes))
    yield Figure(
        name="transfer_bytes_per_link",
        value=per_link,
        shown=size(per_link),
        how=f"{links} in parallel",
    )
    for name in facts.config.link:
        link = facts.config.own.link(name)
        found = sizing.transfer(num_bytes, link, num_links=links)
        yield Figure(
            name=f"transfer_seconds_{name}",
            value=found.seconds,
            shown=milliseconds(found.seconds),
            how=f"{links} x {speed(link.bytes_per_second)} one way ({link.source}); "
            f"{percent(found.seconds / prefill)} of its prefill",
        )
    if facts.traffic.rate:
        needed = facts.traffic.rate * num_bytes
        yield Figure(
            name="transfer_bytes_per_second",
            value=needed,
            shown=f"{speed(needed)} = {needed * 8 / 1e9:.0f} Gb/s",
            how=f"{facts.traffic.rate:g}/s x {size(num_bytes)}",
        )


def offload(facts: Facts, tier: str) -> Iterator[Figure]:
    """Loading a prefix from a slower tier against computing it again."""
    num_tokens = facts.traffic.shared + facts.traffic.history
    if not num_tokens:
        raise ConfigError("offload: give shared or history, the tokens that would be loaded")
    found = sizing.reuse(
        facts.cost,
        facts.config.own.link(tier),
        num_tokens=num_tokens,
        num_bytes=facts.spec.kv_bytes(num_tokens),
        num_links=facts.num_links,
    )
    yield Figure(
        name="load_seconds",
        value=found.load_seconds,
        shown=milliseconds(found.load_seconds),
        how=f"{big(num_tokens)} tokens over {facts.num_links} x {tier}",
    )
    yield Figure(
        name="recompute_seconds",
        value=found.recompute_seconds,
        shown=milliseconds(found.recompute_seconds),
        how="loading pays" if found.pays else "computing again is faster",
    )
    yield Figure(
        name="break_even_bytes_per_second",
        value=found.break_even_bytes_per_second,
        shown=speed(found.break_even_bytes_per_second),
        how="over all links; a faster tier pays, a slower one does not",
    )


def edge(facts: Facts, uplink: str) -> Iterator[Figure]:
    """A robot may prefill itself and ship the KV, or send the prompt."""
    link, traffic = facts.config.own.link(uplink), facts.traffic
    kv = sizing.transfer(facts.spec.kv_bytes(traffic.num_prompt_tokens), link, num_links=1)
    if facts.config.prompt_bytes is None:
        raise ConfigError("uplink: give prompt-bytes, what the prompt is as text and images")
    prompt = sizing.transfer(round(facts.config.prompt_bytes), link, num_links=1)
    prefill = sizing.prefill_seconds(facts.cost, new=traffic.num_prompt_tokens)
    ships = kv.seconds < prompt.seconds + prefill
    yield Figure(
        name="ship_kv_seconds",
        value=kv.seconds,
        shown=milliseconds(kv.seconds),
        how=f"{size(kv.num_bytes)} at {speed(link.bytes_per_second)}, after its prefill there",
    )
    yield Figure(
        name="send_prompt_seconds",
        value=prompt.seconds + prefill,
        shown=milliseconds(prompt.seconds + prefill),
        how=f"{size(prompt.num_bytes)}, and {milliseconds(prefill)} of prefill in the cloud: "
        + ("ship the KV" if ships else "send the prompt"),
    )
