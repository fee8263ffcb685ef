import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hash_engine import BLOCK_SIZE, EOS, HashModel, Rig, build, until
from hypothesis import given
from hypothesis import strategies as st

from expediter.errors import PromptTooLong, WorkerUnavailable
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
from expediter.request import FinishReason, Request, RequestId, RequestOutput, SamplingParams
from expediter.worker.worker import MAX_FAILED_STEPS


class Answer:
    """A sink that keeps what it got."""

    def __init__(self) -> None:
        self.tokens = bytearray()
        self.reason: FinishReason | None = None
        self.num_cached_tokens = 0
        self.has_token = asyncio.Event()
        self.is_over = asyncio.Event()

    def __call__(self, output: RequestOutput) -> None:
        assert self.reason is None, "called after the end"
        self.tokens += bytes(token.token_id for token in output.tokens)
        self.reason = output.finish_reason
        self.num_cached_tokens = output.num_cached_tokens
        self.has_token.set()
        if self.reason is not None:
            self.is_over.set()


def request(name: str, prompt: bytes, *, num_tokens: int = 8) -> Request:
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(max_tokens=num_tokens, temperature=0.0),
    )


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.worker.run())
        yield rig
        rig.model.may_run.set()
        await rig.worker.drain(5.0)


async def ask(rig: Rig, name: str, prompt: bytes, *, num_tokens: int = 8) -> Answer:
    answer = Answer()
    rig.worker.submit(request(name, prompt, num_tokens=num_tokens), answer)
    await answer.is_over.wait()
    return answer


async def test_an_answer_is_what_the_model_says_after_the_prompt() -> None:
    async with running(build()) as rig:
        answer = await ask(rig, "a", b"once upon a time")
        assert answer.tokens == rig.model.expected(b"once upon a time", 8)
        assert answer.reason is FinishReason.LENGTH


@given(seed=st.integers(0, 2**32))
async def test_answers_do_not_depend_on_batches_cache_or_preemption(seed: int) -> None:
    """Prompts that share beginnings, in little memory, in small chunks."""
    rng = random.Random(seed)
    stems = [bytes(rng.choices(b"xyz", k=rng.randint(1, 20))) for _ in range(3)]
    rig = build(num_blocks=24, max_model_len=64, max_batched_tokens=rng.choice([5, 16, 64]))
    async with running(rig):
        prompts = [rng.choice(stems) + bytes(rng.choices(b"uvw", k=3)) for _ in range(12)]
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(ask(rig, str(i), p)) for i, p in enumerate(prompts)]
        for prompt, task in zip(prompts, asked, strict=True):
            assert task.result().tokens == rig.model.expected(prompt, 8)
        assert rig.num_used_blocks == 0


async def test_a_request_submitted_during_a_step_joins_the_next() -> None:
    async with running(build()) as rig:
        rig.model.may_run.clear()
        first, second = Answer(), Answer()
        rig.worker.submit(request("first", b"first"), first)
        await _steps(rig, 1)
        rig.worker.submit(request("second", b"second"), second)
        rig.model.may_run.set()
        await second.is_over.wait()
        assert [c.request_id for c in rig.model.steps[0].chunks] == ["first"]
        assert {c.request_id for c in rig.model.steps[1].chunks} == {"first", "second"}


async def test_an_abort_during_a_step_frees_the_blocks_and_silences_the_sink() -> None:
    async with running(build()) as rig:
        rig.model.may_run.clear()
        dropped, kept = Answer(), Answer()
        rig.worker.submit(request("dropped", b"some prompt"), dropped)
        rig.worker.submit(request("kept", b"another one"), kept)
        await _steps(rig, 1)
        rig.worker.abort(RequestId("dropped"))
        rig.model.may_run.set()
        await kept.is_over.wait()
        assert dropped.tokens == b""
        assert dropped.reason is None
        assert kept.tokens == rig.model.expected(b"another one", 8)
        assert [len(step.chunks) for step in rig.model.steps[:2]] == [2, 1]
        assert rig.num_used_blocks == 0


async def test_a_sink_may_abort_others_and_submit_more() -> None:
    async with running(build()) as rig:
        answers = [Answer() for _ in range(3)]
        late = Answer()

        def first(_: RequestOutput) -> None:
            rig.worker.abort(RequestId("1"))
            rig.worker.submit(request("late", b"late"), late)
            rig.worker.abort(RequestId("0"))

        rig.worker.submit(request("0", b"zero"), first)
        for i in (1, 2):
            rig.worker.submit(request(str(i), b"prompt %d" % i), answers[i])
        await answers[2].is_over.wait()
        await late.is_over.wait()
        assert answers[1].tokens == b""
        assert late.tokens == rig.model.expected(b"late", 8)


async def test_a_sink_that_throws_costs_only_its_own_request() -> None:
    async with running(build()) as rig:

        def broken(_: RequestOutput) -> None:
            raise KeyError("bug")

        rig.worker.submit(request("broken", b"broken"), broken)
        answer = await ask(rig, "fine", b"fine")
        assert answer.tokens == rig.model.expected(b"fine", 8)
        assert rig.num_used_blocks == 0


async def test_a_failed_step_fails_its_requests_and_the_worker_goes_on() -> None:
    async with running(build()) as rig:
        rig.model.failures = [RuntimeError("out of memory")]
        failed = await ask(rig, "failed", b"the prompt")
        assert failed.reason is FinishReason.ERROR
        assert rig.num_used_blocks == 0
        assert rig.worker.is_healthy
        again = await ask(rig, "again", b"the prompt")
        assert again.num_cached_tokens == 0  # nothing of a failed step is believed
        assert again.tokens == rig.model.expected(b"the prompt", 8)


async def test_a_failed_step_that_does_not_say_whose_it_was_fails_everybody() -> None:
    """As with an executor that is told only how much a step is."""
    async with running(build(has_chunks=False)) as rig:
        rig.model.failures = [RuntimeError("out of memory")]
        answers = await asyncio.gather(*(ask(rig, str(i), b"a prompt") for i in range(3)))
        assert [answer.reason for answer in answers] == [FinishReason.ERROR] * 3
        assert rig.num_used_blocks == 0


async def test_steps_that_keep_failing_make_it_unhealthy_until_one_succeeds() -> None:
    async with running(build()) as rig:
        rig.model.failures = [RuntimeError("broken")] * MAX_FAILED_STEPS
        for i in range(MAX_FAILED_STEPS):
            assert rig.worker.is_healthy
            await ask(rig, f"failed {i}", b"a prompt")
        assert not rig.worker.is_healthy
        await ask(rig, "again", b"a prompt")
        assert rig.worker.is_healthy


async def test_a_bug_in_the_scheduler_is_not_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that lost count of its blocks must not go on; its process ends, and is replaced."""
    rig = build()

    def broken() -> None:
        raise AssertionError("bug")

    monkeypatch.setattr(rig.worker.scheduler, "schedule", broken)
    with pytest.raises(AssertionError, match="bug"):
        await rig.worker.run()


async def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    rig = build()
    answer = Answer()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.worker.run())
        rig.worker.submit(request("a", b"prompt", num_tokens=50), answer)
        await answer.has_token.wait()
        drained = tasks.create_task(rig.worker.drain(60.0))
        await asyncio.sleep(0)
        with pytest.raises(WorkerUnavailable):
            rig.worker.submit(request("b", b"prompt"), Answer())
        await drained
    assert answer.tokens == rig.model.expected(b"prompt", 50)


async def test_draining_aborts_what_does_not_finish_in_time() -> None:
    rig = build()
    answer = Answer()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.worker.run())
        rig.model.may_run.clear()
        rig.worker.submit(request("a", b"prompt"), answer)
        await _steps(rig, 1)
        await rig.worker.drain(0.01)
        rig.model.may_run.set()
    assert answer.reason is FinishReason.ABORT
    assert rig.num_used_blocks == 0


async def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    rig = build(max_model_len=32)
    with pytest.raises(PromptTooLong, match=r"40 tokens.*32"):
        rig.worker.submit(request("long", b"x" * 40), Answer())
    assert rig.worker.load().num_waiting == 0


async def test_events_tell_what_the_cache_holds() -> None:
    rig = build(num_blocks=8, max_model_len=32)
    async with running(rig):
        for i in range(10):
            await ask(rig, str(i), b"%d is a prompt of its own" % i, num_tokens=4)
        held: set[bytes] = set()
        for event in (event for batch in rig.batches for event in batch):
            match event:
                case BlockStored():
                    assert len(event.token_ids) == len(event.block_hashes) * BLOCK_SIZE
                    held |= set(event.block_hashes)
                case BlockRemoved():
                    held -= set(event.block_hashes)
        assert len(held) == rig.worker.scheduler.kv_cache.num_cached_blocks
        assert rig.worker.reset_prefix_cache()
        assert rig.batches[-1] == [AllBlocksCleared()]


async def test_an_idle_worker_does_nothing() -> None:
    async with running(build()) as rig:
        await ask(rig, "a", b"prompt")
        num_steps = len(rig.model.steps)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(rig.model.steps) == num_steps
        assert rig.batches
        assert all(rig.batches)


async def test_the_end_token_ends_an_answer() -> None:
    async with running(build(HashModel(script=b"hi"))) as rig:
        answer = Answer()
        rig.worker.submit(request("a", b"prompt"), lambda o: answer(_without_eos(o)))
        await answer.is_over.wait()
        assert (answer.tokens, answer.reason) == (b"hi", FinishReason.STOP)


def _without_eos(output: RequestOutput) -> RequestOutput:
    tokens = [token for token in output.tokens if token.token_id != EOS]
    return RequestOutput(
        request_id=output.request_id,
        tokens=tokens,
        num_cached_tokens=output.num_cached_tokens,
        finish_reason=output.finish_reason,
    )


async def _steps(rig: Rig, number: int) -> None:
    await until(lambda: len(rig.model.steps) >= number)
