"""Workers in this process that hand prompts over to each other."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from driving import BLOCK_SIZE

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.engine.executor import TorchExecutor
from expediter.kvcache.manager import KVCacheManager
from expediter.request import KVFlow, Request, RequestId, RequestOutput, SamplingParams
from expediter.scheduling.scheduler import Scheduler
from expediter.transfer.messages import EngineId, TransferId
from expediter.transfer.transports import transports
from expediter.worker.handover.legs import DecodeLeg, Leg, PrefillLeg
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.opening import open_handover
from expediter.worker.handover.pools import Pools
from expediter.worker.handover.terms import Terms
from expediter.worker.worker import Worker

NUM_OUTPUT_TOKENS = 8
SERIALS = itertools.count()


@dataclass
class Running:
    worker: Worker
    handover: LiveHandover

    async def tokens(
        self, prompt: list[int], *, leg: Leg | None = None, salt: str | None = None
    ) -> list[int]:
        flow = KVFlow.LOCAL
        if leg is not None:
            flow = KVFlow.SENDS if isinstance(leg, PrefillLeg) else KVFlow.RECEIVES
        num_tokens = 1 if flow is KVFlow.SENDS else NUM_OUTPUT_TOKENS
        request = Request(
            request_id=RequestId(f"r{next(SERIALS)}"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True),
            cache_salt=salt,
            kv_flow=flow,
        )
        found: list[int] = []
        is_over = asyncio.Event()

        def sink(output: RequestOutput) -> None:
            found.extend(token.token_id for token in output.tokens)
            if output.finish_reason is not None:
                is_over.set()

        self.worker.submit(request, sink, leg=leg)
        await is_over.wait()
        return found

    async def until_idle(self) -> None:
        async with asyncio.timeout(20):
            await self.handover.drained()
        assert self.worker.load().num_used_blocks == 0


@asynccontextmanager
async def running(
    name: str, executor: TorchExecutor, budget: int, *, transport: str = "shared-memory"
) -> AsyncIterator[Running]:
    """A worker on `executor`, with `budget` tokens a step, until the block ends."""
    terms = Terms(engine_id=EngineId(name), host="127.0.0.1")
    pools = Pools(
        [transports(memory, layout, kinds=[transport]) for memory, layout in executor.pools]
    )
    async with open_handover(
        terms,
        pools=pools,
        clock=time.monotonic,
        wall_clock=time.time,
        watch_layers=executor.watch_layers,
    ) as handover:
        scheduler = Scheduler(
            SchedulerConfig(max_batched_tokens=budget),
            kv_cache=KVCacheManager(
                KVCacheConfig(block_size=BLOCK_SIZE),
                num_blocks=executor.num_blocks,
                namespace=executor.namespace,
            ),
            clock=time.monotonic,
            max_model_len=executor.spec.max_model_len,
        )
        worker = Worker(scheduler=scheduler, executor=executor, handover=handover)
        await handover.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            yield Running(worker, handover)
            await worker.drain(1.0)
    await pools.close()


async def handed_over(prefill: Running, decode: Running, prompt: list[int]) -> DecodeLeg:
    """Both legs at once; the tokens must be those of the decode worker alone."""
    alone = await decode.tokens(prompt, salt=f"s{next(SERIALS)}")
    name = TransferId(f"t{next(SERIALS)}")
    address = prefill.handover.address
    leg = DecodeLeg(
        transfer_id=name, engine_id=address.engine_id, host=address.host, port=address.port
    )
    first, tokens = await asyncio.gather(
        prefill.tokens(prompt, leg=PrefillLeg(transfer_id=name, was_named=True)),
        decode.tokens(prompt, leg=leg),
    )
    assert first == alone[:1]
    assert tokens == alone
    assert leg.report.failure is None
    return leg
