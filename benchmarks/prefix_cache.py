"""What a prefix hit saves: time to first token cold, warm, and with the hit spoilt.

    python benchmarks/prefix_cache.py MODEL [--prompt-length 1500]

Warm is the same prompt again: all full blocks but the last token's are there, so it costs at
most one block's prefill, which is measured beside it. Spoilt has a timestamp at its front:
one token that differs, and nothing behind it can be reused.
"""

import argparse
import asyncio
import random
import statistics
import time
from pathlib import Path

from expediter.config import EngineConfig, KVCacheConfig, SchedulerConfig
from expediter.engine.executor import load_executor
from expediter.kvcache.manager import KVCacheManager
from expediter.request import Request, RequestId, SamplingParams
from expediter.scheduling.scheduler import Scheduler

VOCABULARY = range(100, 40_000)


class Bench:
    """A scheduler over a real executor, one request at a time."""

    def __init__(self, model: Path) -> None:
        kv = KVCacheConfig()
        self.block_size = kv.block_size
        self.executor = load_executor(EngineConfig(model=str(model)), kv)
        self._scheduler = Scheduler(
            SchedulerConfig(),
            kv_cache=KVCacheManager(
                kv, num_blocks=self.executor.num_blocks, namespace=self.executor.namespace
            ),
            clock=time.monotonic,
            max_model_len=self.executor.spec.max_model_len,
        )
        self._count = 0

    async def first_token(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds to the first token, and how many prompt tokens were cached."""
        self._count += 1
        request = Request(
            request_id=RequestId(str(self._count)),
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0, max_tokens=1),
        )
        start = time.perf_counter()
        self._scheduler.add(request)
        num_cached = 0
        while output := self._scheduler.schedule():
            result = await self.executor.execute(output)
            for finished in self._scheduler.update(output, result):
                num_cached = finished.num_cached_tokens
        return time.perf_counter() - start, num_cached


async def measure(bench: Bench, *, length: int, rounds: int) -> None:
    rng = random.Random(0)
    found: dict[str, list[tuple[float, int]]] = {}
    await bench.first_token(rng.choices(VOCABULARY, k=length))
    for _ in range(rounds):
        prompt = rng.choices(VOCABULARY, k=length)
        kinds = {
            "cold": prompt,
            "warm": prompt,
            "timestamp in front": [rng.choice(VOCABULARY), *prompt],
            "one block alone": rng.choices(VOCABULARY, k=bench.block_size),
        }
        for kind, tokens in kinds.items():
            found.setdefault(kind, []).append(await bench.first_token(tokens))
    await bench.executor.close()
    print(f"{length} prompt tokens, medians of {rounds}")
    for kind, trials in found.items():
        seconds = statistics.median(trial[0] for trial in trials)
        print(f"{kind:>20}  TTFT {seconds * 1000:8.1f} ms   cached {trials[0][1]:5d} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt-length", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(
        measure(Bench(arguments.model), length=arguments.prompt_length, rounds=arguments.rounds)
    )


if __name__ == "__main__":
    main()
