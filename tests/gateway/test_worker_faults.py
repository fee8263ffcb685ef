"""Workers as processes that are killed, stopped, restarted or slow, behind a gateway of its own."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fake_worker import ask, get
from process_fleet import (
    ProcessOnPort,
    cached_tokens,
    complete,
    eventually,
    gateway_process,
    matched_tokens,
    stream,
    tokens,
    worker_process,
)

LONG = {"max_tokens": 5000}


async def worker_of(gateway: ProcessOnPort, number: int) -> str:
    """Who answers a prompt that nobody has seen."""
    answer = await complete(gateway, [number % 250, number // 250, 1, 2, 3, 4] * 8, max_tokens=1)
    return answer.headers["x-expediter-worker"] if answer.status == 200 else f"{answer.status}"


async def test_a_worker_killed_within_a_stream_costs_that_stream_and_no_other(
    tmp_path: Path,
) -> None:
    async with (
        worker_process() as a,
        worker_process() as b,
        gateway_process(tmp_path, a, b) as gateway,
        stream(gateway, tokens("a"), **LONG) as lost,
        stream(gateway, tokens("b"), max_tokens=300) as kept,
    ):
        assert lost.worker != kept.worker
        await lost.event(), await kept.event()
        dead, alive = (a, b) if lost.worker == a.name else (b, a)
        dead.kill()
        last = await lost.last()
        assert last["error"]["type"] == "worker_lost"
        assert {await worker_of(gateway, number) for number in range(6)} == {alive.name}
        assert await kept.last() == "[DONE]"
        await eventually(lambda: is_idle(gateway))


async def is_idle(gateway: ProcessOnPort) -> bool:
    return await gateway.metric("expediter_requests_in_flight") == 0


async def test_an_answer_that_is_no_stream_is_cut_short_when_its_worker_is_killed(
    tmp_path: Path,
) -> None:
    """Here by a 502, as nothing of it had come."""
    async with worker_process() as worker, gateway_process(tmp_path, worker) as gateway:
        asking = asyncio.create_task(complete(gateway, tokens("a"), **LONG))
        await eventually(lambda: is_busy(worker))
        worker.kill()
        answer = await asking
        assert answer.status == 502
        assert json.loads(answer.body)["error"]["type"] == "worker_lost"


async def is_busy(worker: ProcessOnPort) -> bool:
    return await worker.metric("vllm:num_requests_running") > 0


async def test_a_worker_that_hangs_before_and_within_answers_is_silent_and_recovers(
    tmp_path: Path,
) -> None:
    silence = {"first_byte_seconds": 1.0, "idle_seconds": 1.0}
    async with (
        worker_process() as worker,
        gateway_process(tmp_path, worker, **silence) as gateway,
    ):
        async with stream(gateway, tokens("a"), **LONG) as cut:
            await cut.event()
            worker.kill(signal.SIGSTOP)
            hanging = asyncio.create_task(complete(gateway, tokens("b")))
            assert (await ask(gateway, get("/health"))).status == 200
            assert (await cut.last())["error"]["type"] == "timeout_error"
        answer = await hanging
        assert (answer.status, json.loads(answer.body)["error"]["type"]) == (504, "timeout_error")
        worker.kill(signal.SIGCONT)
        await eventually(lambda: is_served_by(gateway, worker))
        # What the gateway gave up ended at the worker, too.
        await eventually(lambda: has_nothing_to_do(worker))


async def has_nothing_to_do(worker: ProcessOnPort) -> bool:
    running = await worker.metric("vllm:num_requests_running")
    return running + await worker.metric("vllm:num_requests_waiting") == 0


async def is_served_by(gateway: ProcessOnPort, worker: ProcessOnPort) -> bool:
    return (await complete(gateway, [9] * 40)).headers.get("x-expediter-worker") == worker.name


async def test_the_rest_of_a_fleet_serves_on_while_one_worker_hangs(tmp_path: Path) -> None:
    """Requests that met it time out, until it is avoided; nothing else happens to anybody."""
    async with (
        worker_process() as a,
        worker_process() as b,
        gateway_process(tmp_path, a, b, first_byte_seconds=0.5) as gateway,
    ):
        a.kill(signal.SIGSTOP)
        seen = await asyncio.gather(*(worker_of(gateway, number) for number in range(24)))
        assert set(seen) <= {b.name, "504"}
        assert b.name in seen

        async def avoids() -> bool:
            return await gateway.metric("expediter_worker_breaker", worker=a.name) == 2

        numbers = iter(range(100, 1000))
        while not await avoids():
            await worker_of(gateway, next(numbers))
        a.kill(signal.SIGCONT)

        async def uses() -> bool:
            return await worker_of(gateway, next(numbers)) == a.name

        await eventually(uses)


async def test_a_restarted_worker_is_known_to_have_nothing_and_learnt_again(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker_process())
        gateway = await stack.enter_async_context(gateway_process(tmp_path, first))
        prompt = tokens("p")
        assert [await hits(gateway, prompt) for _ in range(2)] == [(0, 0), (396, 396)]
        first.kill()
        await eventually(lambda: has_workers(gateway, 0))
        await stack.enter_async_context(worker_process(port=first.port))
        await eventually(lambda: has_workers(gateway, 1))
        assert [await hits(gateway, prompt) for _ in range(2)] == [(0, 0), (396, 396)]


async def hits(gateway: ProcessOnPort, prompt: object) -> tuple[int, int]:
    """Predicted and actual, once the events of what came before are in."""
    answer = await complete(gateway, prompt)
    assert answer.status == 200, answer
    found = matched_tokens(answer), cached_tokens(answer)
    await eventually(lambda: knows_its_blocks(gateway))
    return found


async def knows_its_blocks(gateway: ProcessOnPort) -> bool:
    return await gateway.metric("expediter_index_blocks", source="events") > 0


async def has_workers(gateway: ProcessOnPort, number: int) -> bool:
    answer = await ask(gateway, get("/ready"))
    return bool(json.loads(answer.body)["num_ready_workers"] == number)


@pytest.mark.parametrize("options", [("--lose", "1:4"), ("--lose", "1:4", "--replay", "")])
async def test_lost_events_are_replayed_or_else_the_worker_is_learnt_anew(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Batch 0 is of the first prompt, and some later ones are lost."""
    async with worker_process(*options) as worker, gateway_process(tmp_path, worker) as gateway:
        replays = "--replay" not in options
        for letter in "abcde":
            await complete(gateway, tokens(letter, 40), max_tokens=1)

        async def is_told() -> bool:
            return await num_known(gateway) == (50 if replays else 10)

        await eventually(is_told)
        assert (await gateway.metric("expediter_kv_events_lost_total") > 0) == (not replays)
        assert await hits(gateway, tokens("e", 40)) == (36, 36)


async def num_known(gateway: ProcessOnPort) -> float:
    """Blocks told by events."""
    return await gateway.metric("expediter_index_blocks", source="events")


async def test_a_broken_connection_of_events_is_made_again_and_nothing_is_missed(
    tmp_path: Path,
) -> None:
    async with worker_process() as worker, gateway_process(tmp_path, worker) as gateway:
        for letter in "abc":
            await complete(gateway, tokens(letter, 40), max_tokens=1)
            worker.kill(signal.SIGUSR1)

        async def knows_all() -> bool:
            return await num_known(gateway) == 30

        await eventually(knows_all)
        for letter in "abc":
            assert await hits(gateway, tokens(letter, 40)) == (36, 36)


async def test_requests_flow_around_a_slow_worker(tmp_path: Path) -> None:
    """A step there takes forty times as long; it still answers all it was given."""
    async with (
        worker_process("--step-seconds", "0.2") as slow,
        worker_process() as fast,
        gateway_process(tmp_path, slow, fast) as gateway,
    ):
        numbers = iter(range(1000))
        seen: list[str] = []

        async def visit() -> None:
            while len(seen) < 60:
                seen.append(await worker_of(gateway, next(numbers)))

        await asyncio.gather(*(visit() for _ in range(4)))
        assert set(seen) == {slow.name, fast.name}
        assert seen.count(fast.name) > 2 * seen.count(slow.name)
