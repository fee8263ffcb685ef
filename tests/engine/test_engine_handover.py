"""Greedy tokens of the real engine do not depend on which of two workers computed the prompt."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from driving import BLOCK_SIZE, Driven, load, step
from tiny_models import Tiny, write_folder

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.engine.executor import TorchExecutor
from expediter.kvcache.manager import KVCacheManager
from expediter.request import KVFlow, Request, RequestId, RequestOutput, SamplingParams
from expediter.scheduling.scheduler import Scheduler
from expediter.transfer.messages import EngineId, TransferId
from expediter.transfer.shared_memory import SharedMemoryTransport
from expediter.worker.handover.legs import DecodeLeg, Leg, PrefillLeg
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.opening import open_handover
from expediter.worker.handover.pools import Pools
from expediter.worker.handover.terms import Terms
from expediter.worker.worker import Worker

TINY = Tiny(num_layers=3)
NUM_OUTPUT_TOKENS = 8
SERIALS = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), TINY, TINY.tensors(seed=7))


@pytest.fixture(scope="module")
def executors(folder: Path) -> Iterator[tuple[TorchExecutor, TorchExecutor]]:
    loaded = (load(folder), load(folder))
    yield loaded
    for executor in loaded:
        asyncio.run(executor.close())


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
async def running(name: str, executor: TorchExecutor, budget: int) -> AsyncIterator[Running]:
    ((memory, layout),) = executor.pools
    transport = SharedMemoryTransport(memory, layout)
    terms = Terms(engine_id=EngineId(name), host="127.0.0.1")
    async with open_handover(
        terms,
        pools=Pools([[transport]]),
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
    await transport.close()


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


async def test_the_model_tells_of_each_layer_while_somebody_listens(folder: Path) -> None:
    executor = load(folder)
    heard: list[int] = []
    executor.watch_layers(heard.append)
    sequence = Driven(name="a", token_ids=[1, 2, 3], block_ids=[0, 1], num_output_tokens=2)
    await step(executor, [sequence])
    assert heard == [1, 2, 3]
    executor.watch_layers(None)
    await step(executor, [sequence])
    assert heard == [1, 2, 3]
    await executor.close()


@pytest.mark.parametrize("budget", [16, 512])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 33, 150])
async def test_the_tokens_are_those_of_one_worker(
    executors: tuple[TorchExecutor, TorchExecutor], budget: int, num_tokens: int
) -> None:
    prompt = random.Random(num_tokens).choices(range(TINY.vocab_size), k=num_tokens)
    first, second = executors
    async with running("p", first, budget) as prefill, running("d", second, budget) as decode:
        leg = await handed_over(prefill, decode, prompt)
        assert leg.report.num_tokens == num_tokens
        await prefill.until_idle()
        await decode.until_idle()


async def test_hits_on_either_side_change_no_token(
    executors: tuple[TorchExecutor, TorchExecutor],
) -> None:
    rng = random.Random(3)
    prompt = rng.choices(range(TINY.vocab_size), k=90)
    first, second = executors
    async with running("p", first, 32) as prefill, running("d", second, 32) as decode:
        await prefill.tokens(prompt[:50])
        await decode.tokens(prompt[:21])
        leg = await handed_over(prefill, decode, prompt)
        assert leg.report.num_tokens == 90 - 20
        again = [*prompt, *rng.choices(range(TINY.vocab_size), k=30)]
        leg = await handed_over(prefill, decode, again)
        assert leg.report.num_tokens == 120 - 88
        await prefill.until_idle()
        await decode.until_idle()


async def test_several_transfers_beside_running_requests(
    executors: tuple[TorchExecutor, TorchExecutor],
) -> None:
    rng = random.Random(4)
    first, second = executors
    prompts = [rng.choices(range(TINY.vocab_size), k=rng.randrange(10, 60)) for _ in range(6)]
    async with running("p", first, 64) as prefill, running("d", second, 64) as decode:
        await asyncio.gather(*(handed_over(prefill, decode, prompt) for prompt in prompts))
        await prefill.until_idle()
        await decode.until_idle()
