"""Endpoints to measure: a hash-model worker as a process, and one on a clock that jumps."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from expediter.bench.reply import Ask, Reply
from expediter.bench.stream import Details, Usage
from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.errors import ClusterError
from expediter.load import WorkerId
from expediter.request import Request, RequestId, RequestOutput, SamplingParams
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.simulation.costs import CostModel
from expediter.simulation.executor import SimulatedExecutor
from expediter.simulation.worker import SimulatedWorker, WorkerModel
from expediter.workload.transcript import EMPTY

WORKER = Path(__file__).parents[1] / "worker" / "serve_hash_model.py"
BLOCK = 16


@contextmanager
def hash_worker() -> Iterator[str]:
    """A real worker's address; a token is a byte, and a step takes 5 ms."""
    command = [sys.executable, str(WORKER), "1", "tcp://127.0.0.1:*"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


class _Body(msgspec.Struct):
    prompt: str
    max_tokens: int


class StepByStep(SimulatedExecutor):
    """Never jumps, so every token has a time of its own."""

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        return await super().execute(replace(output, max_steps=1))


class SimulatedEndpoint:
    """A `Client`: one simulated worker, on which a word is a token."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self._serial = 0

    async def send(self, ask: Ask) -> Reply:
        loop = asyncio.get_running_loop()
        body = msgspec.json.decode(ask.body, type=_Body)
        reply = Reply(sent_at=loop.time(), status=200)
        ended: asyncio.Future[None] = loop.create_future()
        words = body.prompt.split()

        def receive(output: RequestOutput | ClusterError) -> None:
            assert isinstance(output, RequestOutput)
            reply.token_times.append(loop.time())
            reply.usage = Usage(
                prompt_tokens=len(words),
                completion_tokens=output.num_output_tokens,
                prompt_tokens_details=Details(cached_tokens=output.num_cached_tokens),
            )
            if output.finish_reason is not None:
                ended.set_result(None)

        self._worker.submit(self._request(words, body.max_tokens), receive)
        await ended
        reply.is_finished = True
        return reply.end(now=loop.time())

    def _request(self, words: list[str], max_tokens: int) -> Request:
        self._serial += 1
        transcript = EMPTY
        for start in range(0, len(words), BLOCK):
            block = words[start : start + BLOCK]
            transcript = transcript.then(" ".join(block), len(block))
        transcript = transcript.then(f"answer {self._serial}", max_tokens, role="assistant")
        return Request(
            request_id=RequestId(f"{self._serial}"),
            prompt_token_ids=(),
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            block_hashes=transcript.block_hashes(BLOCK),
            num_prompt_tokens=len(words),
        )


@asynccontextmanager
async def simulated(
    cost: CostModel, *, executor: Callable[[CostModel], SimulatedExecutor] = StepByStep
) -> AsyncIterator[SimulatedEndpoint]:
    """An endpoint on the running loop's clock."""
    model = WorkerModel(
        cost=cost,
        kv_tokens=1_000_000,
        kv_cache=KVCacheConfig(block_size=BLOCK),
        scheduler=SchedulerConfig(max_batched_tokens=100_000, max_running=256),
    )
    async with asyncio.TaskGroup() as tasks:
        worker = SimulatedWorker(WorkerId("worker"), model)
        worker.executor = executor(cost)
        worker.start(tasks)
        try:
            yield SimulatedEndpoint(worker)
        finally:
            await worker.stop()
