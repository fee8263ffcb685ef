"""What the scheduler says a step is, against the step itself."""

import random

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.kvcache.hashing import CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.request import Request, RequestId, RequestOutput, SampledToken, SamplingParams
from expediter.scheduling.output import ModelOutput, PromptChunk, SchedulerOutput, StepWork
from expediter.scheduling.scheduler import Scheduler


def scheduler(*, num_blocks: int = 60, has_chunks: bool = True) -> Scheduler:
    kv_cache = KVCacheManager(
        KVCacheConfig(block_size=4), num_blocks=num_blocks, namespace=CacheNamespace(model="m")
    )
    return Scheduler(
        SchedulerConfig(max_batched_tokens=32, max_running=8),
        kv_cache=kv_cache,
        clock=lambda: 0.0,
        max_model_len=1000,
        has_chunks=has_chunks,
    )


def request(name: str, num_prompt: int, max_tokens: int, *, reports: bool = True) -> Request:
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=(),
        sampling=SamplingParams(max_tokens=max_tokens),
        block_hashes=[f"{name} {n}".encode() for n in range((num_prompt + max_tokens) // 4)],
        num_prompt_tokens=num_prompt,
        reports_progress=reports,
    )


def run(one: Scheduler, requests: list[Request]) -> list[tuple[SchedulerOutput, RequestOutput]]:
    """Single steps until nothing is left; every output with its step."""
    for each in requests:
        one.add(each)
    gained = []
    while output := one.schedule():
        tokens = {each.request_id: [SampledToken(token_id=0)] for each in requests}
        outputs = one.update(output, ModelOutput(tokens=tokens))
        gained += [(output, each) for each in outputs]
    return gained


def requests(*, reports: bool) -> list[Request]:
    rng = random.Random(3)
    return [
        request(f"r{n}", rng.randrange(1, 60), rng.randrange(1, 30), reports=reports)
        for n in range(30)
    ]


def test_the_totals_of_a_step_are_those_of_its_chunks() -> None:
    steps = [output for output, _ in run(scheduler(), requests(reports=True))]
    assert any(output.work.num_decodes and output.work.chunks for output in steps)
    for output in steps:
        single = [c for c in output.chunks if c.num_new_tokens == 1]
        chunks = [c for c in output.chunks if c.num_new_tokens > 1]
        assert output.work == StepWork(
            [PromptChunk(c.num_new_tokens, c.num_computed_tokens) for c in chunks],
            len(single),
            sum(c.num_computed_tokens for c in single),
        )
        assert output.num_new_tokens == output.work.num_prompt_tokens + len(single)


def test_a_step_without_chunks_is_the_same_work() -> None:
    whole = run(scheduler(), requests(reports=True))
    bare = run(scheduler(has_chunks=False), requests(reports=True))
    assert [output.work for output, _ in whole] == [output.work for output, _ in bare]
    assert [gained for _, gained in whole] == [gained for _, gained in bare]
    assert not any(output.chunks for output, _ in bare)


def test_without_progress_the_first_and_the_last_output_are_told() -> None:
    """And, of what lies between, only what a preempted request computes when it comes back."""
    everything = [gained for _, gained in run(scheduler(), requests(reports=True))]
    told = [gained for _, gained in run(scheduler(), requests(reports=False))]
    ends = [g for g in everything if g.num_output_tokens == 1 or g.finish_reason is not None]
    assert {*map(repr, ends)} <= {*map(repr, told)} <= {*map(repr, everything)}
    assert len(told) < len(everything) / 2


def test_work_some_steps_later_has_grown_by_a_token_a_request_and_step() -> None:
    assert StepWork((), 3, 340).later(10) == StepWork((), 3, 370)


def test_the_last_token_of_a_prompt_is_never_part_of_a_jump() -> None:
    """33 tokens in steps of 32: the second step gives the first token, at a time of its own."""
    one = scheduler()
    one.add(request("a", 33, 9, reports=False))
    first, second = one.schedule(), None
    assert first is not None
    assert one.update(first, ModelOutput(tokens={})) == []
    second = one.schedule()
    assert second is not None
    assert (second.work, second.max_steps) == (StepWork([], 1, 32), 1)
    tokens = {RequestId("a"): [SampledToken(token_id=0)]}
    (told,) = one.update(second, ModelOutput(tokens=tokens))
    assert told.num_output_tokens == 1
    third = one.schedule()
    assert third is not None
    assert third.max_steps == 8
