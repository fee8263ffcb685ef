"""How large, how many: a model's KV, what fits, what hits, and the replicas that takes."""

import math
from collections.abc import Iterator

from expediter.errors import ConfigError
from expediter.model_spec import DTYPE_BYTES
from expediter.planner import sizing
from expediter.planner.facts import Facts, Figure
from expediter.planner.units import big, milliseconds, percent, size


def model(facts: Facts) -> Iterator[Figure]:
    """KV bytes of a token, and of the prompt and its parts."""
    spec, config = facts.spec, facts.config
    elements = (
        f"{spec.latent_size} latent"
        if spec.latent_size
        else f"2 x {spec.num_kv_heads} heads x {spec.head_size}"
    )
    per_token = spec.kv_bytes_per_token
    yield Figure(
        name="kv_bytes_per_token",
        value=per_token,
        shown=size(per_token),
        how=f"{spec.num_layers} layers x {elements} x {DTYPE_BYTES[config.kv_dtype]} B",
    )
    for part in ("shared", "history"):
        if num_tokens := getattr(config, part):
            yield _kv(facts, f"kv_bytes_{part}", num_tokens)
    yield _kv(facts, "kv_bytes_prompt", facts.traffic.num_prompt_tokens)


def _kv(facts: Facts, name: str, num_tokens: int) -> Figure:
    num_bytes = facts.spec.kv_bytes(num_tokens)
    how = f"{big(num_tokens)} tokens x {facts.spec.kv_bytes_per_token:,} B"
    return Figure(name=name, value=num_bytes, shown=size(num_bytes), how=how)


def capacity(facts: Facts) -> Iterator[Figure]:
    """Tokens and conversations that the caches hold."""
    config, memory, tokens = facts.config, facts.memory, facts.kv_tokens
    yield Figure(name="weight_bytes", value=memory.weight_bytes, shown=size(memory.weight_bytes))
    yield Figure(
        name="kv_tokens_per_replica",
        value=tokens,
        shown=big(tokens),
        how="as given"
        if config.cache_tokens
        else f"({size(memory.usable_bytes)} - {size(memory.weight_bytes)}) / "
        f"{size(facts.spec.kv_bytes_per_token)}",
    )
    fleet = config.replicas * tokens
    yield Figure(
        name="kv_tokens_of_fleet",
        value=fleet,
        shown=big(fleet),
        how=f"{config.replicas} replicas, each conversation on one of them",
    )
    if config.history:
        yield Figure(
            name="conversations_of_fleet",
            value=fleet // config.history,
            shown=big(fleet // config.history),
            how=f"of {big(config.history)} tokens, routed by what is cached",
        )


def hits(facts: Facts) -> Iterator[Figure]:
    """Expected hits and the prefill work they leave, routed at random and by what is cached."""
    config, traffic = facts.config, facts.traffic
    capacity = config.replicas / sizing.prefill_seconds(facts.cost, new=10_000) * 10_000
    for name, spread in (("random", config.replicas), ("cache_aware", 1)):
        cached = traffic.cached_tokens(num_replicas=spread)
        found = sizing.prefill_work(traffic, facts.cost, cached=cached)
        yield Figure(
            name=f"{name}_cached_tokens",
            value=found.cached_tokens,
            shown=f"{big(found.cached_tokens)} ({percent(found.hit_rate)})",
            how=f"{big(traffic.shared)} + {big(traffic.history)} / {spread}",
        )
        yield Figure(
            name=f"{name}_prefill_tokens_per_second",
            value=found.tokens_per_second,
            shown=f"{big(found.tokens_per_second)}/s",
            how=f"{percent(found.tokens_per_second / capacity)} of the fleet's {big(capacity)}",
        )
        yield Figure(
            name=f"{name}_prefill_seconds",
            value=found.mean_seconds,
            shown=milliseconds(found.mean_seconds),
            how="of one request, alone",
        )


def replicas(facts: Facts) -> Iterator[Figure]:
    """Replicas that each stage keeps busy, by Little's law, without hits and with."""
    traffic = facts.traffic
    hit_rate = facts.config.hit_rate
    if hit_rate is None:
        hit_rate = traffic.cached_tokens(num_replicas=1) / traffic.num_prompt_tokens
    yield from _prefill_replicas(facts, "prefill_replicas", 0.0)
    if hit_rate:
        yield from _prefill_replicas(facts, "prefill_replicas_with_hits", hit_rate)
    if facts.config.tpot is not None:
        yield from _decode_replicas(facts, facts.config.tpot)


def _prefill_replicas(facts: Facts, name: str, hit_rate: float) -> Iterator[Figure]:
    traffic = facts.traffic
    cached = hit_rate * traffic.num_prompt_tokens
    found = sizing.prefill_work(traffic, facts.cost, cached=cached)
    if facts.config.ttft is not None and found.mean_seconds > facts.config.ttft:
        raise ConfigError(
            f"ttft: {milliseconds(facts.config.ttft)} is below the floor of one request "
            f"alone, {milliseconds(found.mean_seconds)} at {percent(hit_rate)} hits, by "
            f"{milliseconds(found.mean_seconds - facts.config.ttft)}"
        )
    yield Figure(
        name=name,
        value=found.num_replicas,
        shown=f"{math.ceil(found.num_replicas - 1e-9)} ({found.num_replicas:.2f})",
        how=f"{big(found.tokens_per_second)} tokens/s, "
        f"{milliseconds(found.mean_seconds)} a request, {percent(hit_rate)} hits",
    )


def _decode_replicas(facts: Facts, tpot: float) -> Iterator[Figure]:
    found = sizing.decode_work(facts.traffic, facts.cost, tpot=tpot, kv_tokens=facts.kv_tokens)
    if not found.max_batch:
        raise ConfigError(_no_decode(facts, tpot, found))
    yield Figure(
        name="decode_concurrency",
        value=found.concurrency,
        shown=f"{found.concurrency:.0f}",
        how=f"{facts.traffic.rate:g}/s x {facts.traffic.output} tokens x {milliseconds(tpot)}",
    )
    yield Figure(
        name="max_batch",
        value=found.max_batch,
        shown=big(found.max_batch),
        how=f"steps within {milliseconds(tpot)}, and fits in the KV cache",
    )
    yield Figure(
        name="decode_replicas",
        value=found.num_replicas,
        shown=f"{math.ceil(found.num_replicas - 1e-9)} ({found.num_replicas:.2f})",
        how=f"{found.concurrency:.0f} / {big(found.max_batch)}",
    )


def _no_decode(facts: Facts, tpot: float, found: sizing.Decode) -> str:
    if found.floor_seconds > tpot:
        return (
            f"tpot: {milliseconds(tpot)} is below the floor of one token, "
            f"{milliseconds(found.floor_seconds)} for a request that decodes alone, by "
            f"{milliseconds(found.floor_seconds - tpot)}"
        )
    return (
        f"the KV cache of a replica holds {big(facts.kv_tokens)} tokens, less than one request "
        f"of {big(facts.traffic.num_prompt_tokens)}"
    )


def pools(facts: Facts, gpus: tuple[int, int], rates: tuple[float, float]) -> Iterator[Figure]:
    """What DistServe's introduction works out from the rates of single GPUs."""
    goodput = sizing.pools_goodput(gpus, rates)
    per_gpu = goodput / sum(gpus)
    yield Figure(
        name="goodput",
        value=goodput,
        shown=f"{goodput:.3g}/s",
        how=f"min({gpus[0]} x {rates[0]:g}, {gpus[1]} x {rates[1]:g})",
    )
    colocated = facts.config.colocated_rate
    yield Figure(
        name="goodput_per_gpu",
        value=per_gpu,
        shown=f"{per_gpu:.2g}/s",
        how="" if colocated is None else f"{per_gpu / colocated:.2g} times {colocated:g}",
    )
