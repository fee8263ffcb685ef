"""What cache and scheduler cost a step, without a model.

First the pool and both prefix caches, in microseconds a block. Then a scheduler of 64 decodes
on a simulated model that answers at once: microseconds a step and a request when every step
is scheduled, and when the steps that may run together do.

    python benchmarks/block_pool.py
"""

import time
from collections.abc import Callable
from functools import partial

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.hashing import BlockHash, CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.prefix_cache import HashPrefixCache, PrefixCache
from expediter.kvcache.radix_cache import RadixPrefixCache
from expediter.request import Request, RequestId, SampledToken, SamplingParams
from expediter.scheduling.output import ModelOutput
from expediter.scheduling.scheduler import Scheduler

NUM_BLOCKS = 6_250  # a prompt of 100,000 tokens at 16 a block
NUM_RUNS = 10
NAMESPACE = CacheNamespace(model="benchmark")


def names(prompt: int, num_blocks: int = NUM_BLOCKS) -> list[BlockHash]:
    return [BlockHash(prompt.to_bytes(4) + index.to_bytes(28)) for index in range(num_blocks)]


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def pool_costs(cache: PrefixCache) -> dict[str, float]:
    """Seconds for `NUM_BLOCKS` blocks; each prompt evicts the one before."""
    pool = BlockPool(NUM_BLOCKS, cache=cache)
    best: dict[str, float] = {}

    def measure(name: str, action: Callable[[], object]) -> None:
        best[name] = min(best.get(name, float("inf")), seconds(action))

    root = cache.root
    for number in range(NUM_RUNS):
        chain = names(number)
        found: list[list[int] | None] = []
        name = "allocate, evicting" if number else "allocate"
        measure(name, lambda found=found: found.append(pool.allocate(NUM_BLOCKS)))
        (blocks,) = found
        assert blocks is not None
        pool.hold(root)
        measure("publish", partial(cache.insert, root, chain, blocks))
        measure("match", partial(cache.match, chain, limit=NUM_BLOCKS))
        run = cache.match(chain, limit=NUM_BLOCKS).run
        measure("block table", run.path_ids)
        measure("release", partial(pool.release, run))
        measure("hold", partial(pool.hold, run))
        pool.release(run)
    return best


def decode_costs(*, can_jump: bool) -> tuple[float, int]:
    """Seconds for 64 requests to generate 256 tokens each, and how many calls it took."""
    kv_cache = KVCacheManager(KVCacheConfig(), num_blocks=4096, namespace=NAMESPACE)
    scheduler = Scheduler(
        SchedulerConfig(), kv_cache=kv_cache, clock=lambda: 0.0, max_model_len=4096
    )
    for index in range(64):
        request = Request(
            request_id=RequestId(str(index)),
            prompt_token_ids=(),
            sampling=SamplingParams(max_tokens=257),
            block_hashes=names(index, 64),
            num_prompt_tokens=500,
        )
        scheduler.add(request)
    token = SampledToken(token_id=0)
    num_calls, start = 0, 0.0
    while output := scheduler.schedule():
        if not start and all(chunk.num_new_tokens == 1 for chunk in output.chunks):
            start = time.perf_counter()
        num_steps = output.max_steps if can_jump else 1
        tokens = {c.request_id: [token] * num_steps for c in output.chunks if c.samples}
        scheduler.update(output, ModelOutput(tokens=tokens, num_steps=num_steps))
        kv_cache.take_events()
        num_calls += bool(start)
    return time.perf_counter() - start, num_calls


def main() -> None:
    costs = {"hash": pool_costs(HashPrefixCache()), "radix": pool_costs(RadixPrefixCache())}
    print(f"{NUM_BLOCKS} blocks, best of {NUM_RUNS}: microseconds a block")
    for name in costs["hash"]:
        row = " ".join(
            f"{kind} {cost[name] / NUM_BLOCKS * 1e6:8.4f}" for kind, cost in costs.items()
        )
        print(f"  {name:20} {row}")
    for can_jump in (False, True):
        elapsed, num_calls = min(decode_costs(can_jump=can_jump) for _ in range(NUM_RUNS))
        per_token = elapsed / (64 * 256) * 1e6
        kind = "jumps" if can_jump else "single steps"
        print(f"64 decodes of 256 tokens, {kind}: {num_calls} calls, {per_token:.3f} us a token")


if __name__ == "__main__":
    main()
