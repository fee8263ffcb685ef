"""The load generator on a clock that jumps: what is sent when, and what is made of it."""

import asyncio
import itertools
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from expediter.bench.load import Load, LoadGenerator
from expediter.bench.reply import Ask, Reply
from expediter.bench.report import bench_report
from expediter.bench.settings import BenchConfig
from expediter.bench.stream import Details, Usage
from expediter.bench.tables import warning
from expediter.bench.texts import Writer, scaled
from expediter.results.objective import Objective
from expediter.simulation.loop import run_virtual
from expediter.workload.catalog import named_workload
from expediter.workload.transcript import EMPTY, Transcript
from expediter.workload.turn import Turn

CONFIG = BenchConfig(url="http://127.0.0.1:1")


class Slow:
    """Answers take `seconds`, the first half until the first token."""

    def __init__(self, seconds: float, *, fails: bool = False) -> None:
        self.bodies: list[dict[str, object]] = []
        self._seconds = seconds
        self._fails = fails

    async def send(self, ask: Ask) -> Reply:
        loop = asyncio.get_running_loop()
        self.bodies.append(msgspec.json.decode(ask.body))
        number = len(self.bodies)
        reply = Reply(sent_at=loop.time(), status=503 if self._fails else 200)
        reply.worker = f"worker-{number % 2}"
        for _ in range(2):
            await asyncio.sleep(self._seconds / 2)
            reply.token_times.append(loop.time())
        reply.parts.append(f"said {number}")
        reply.usage = Usage(100, 11, Details(cached_tokens=25))
        reply.is_finished = True
        return reply.end(now=loop.time())


def turn(at: float, prompt: Transcript | None = None, *, label: str = "all") -> Turn:
    transcript = (prompt or EMPTY.then(f"question at {at}", 20)).then(f"answer at {at}", 11)
    return Turn(arrival_time=at, transcript=transcript, label=label)


def load(
    client: Slow, turns: Sequence[Turn], *, max_concurrency: int | None = None, **config: object
) -> Load:
    settings = replace(CONFIG, **config)
    writer = Writer(settings, model="m", words_per_token=1.0)
    writer.prepare(turns)

    async def main() -> Load:
        generator = LoadGenerator(client, writer, max_concurrency=max_concurrency)
        return await generator.run(turns)

    return run_virtual(main())


def test_requests_leave_when_they_are_due_however_slow_the_answers() -> None:
    found = load(Slow(100.0), [turn(at) for at in (0.0, 1.0, 2.5, 2.5)])
    assert [each.sent_at for each in found.answered] == [0.0, 1.0, 2.5, 2.5]
    assert found.most_open == 4
    report = bench_report(found, model="m", objectives={})
    assert report.max_lag == 0.0
    assert warning(report) is None


def test_held_back_requests_show_in_the_lag_and_not_in_the_latency() -> None:
    found = load(Slow(10.0), [turn(at) for at in (0.0, 1.0, 2.0)], max_concurrency=1)
    assert [each.lag for each in found.answered] == [0.0, 9.0, 18.0]
    report = bench_report(found, model="m", objectives={})
    assert report.classes[0].e2e is not None
    assert report.classes[0].e2e.p99.value == pytest.approx(10.0)
    said = warning(report)
    assert said is not None
    assert "requests left late" in said


def test_the_next_turn_waits_for_the_answer_and_holds_it() -> None:
    first = replace(turn(0.0), session="s")
    prompt = first.transcript.then("and then", 5)
    second = replace(turn(0.0, prompt), session="s", think_time=3.0)
    client = Slow(10.0)
    found = load(client, [first, second])
    assert [each.sent_at for each in found.answered] == [0.0, 13.0]
    assert found.answered[1].lag == 0.0
    assert "said 1" in str(client.bodies[1]["messages"])
    made_up = Slow(10.0)
    load(made_up, [first, second], answers="made-up")
    assert "said 1" not in str(made_up.bodies[1]["messages"])


def test_a_next_prompt_begins_as_the_one_before() -> None:
    """Else no cache could hit: every message of the first prompt is in the second, unchanged."""
    turns = list(named_workload("chat", rate=5.0, num_requests=60, seed=1))
    client = Slow(0.5)
    found = load(client, turns)
    bodies = {id(a.turn): b for a, b in zip(found.answered, client.bodies, strict=True)}
    pairs = [(a, b) for a, b in itertools.pairwise(turns) if b.think_time is not None]
    assert pairs
    for before, after in pairs:
        earlier, later = bodies[id(before)]["messages"], bodies[id(after)]["messages"]
        assert isinstance(earlier, list)
        assert isinstance(later, list)
        assert later[: len(earlier)] == earlier
        assert later[len(earlier)]["role"] == "assistant"


def test_a_report_counts_tokens_workers_and_service_levels_by_class() -> None:
    turns = [turn(0.0, label="a"), turn(1.0, label="b"), turn(2.0, label="b")]
    wanted = {"all": Objective(ttft=5.0), "b": Objective(ttft=4.9)}
    found = bench_report(load(Slow(10.0), turns), model="m", objectives=wanted)
    everything, a, b = found.classes
    assert [each.label for each in found.classes] == ["all", "a", "b"]
    assert (everything.prompt_tokens, everything.output_tokens) == (300, 33)
    assert everything.token_hit_rate == pytest.approx(0.25)
    assert a.ttft is not None
    assert a.ttft.p50.value == pytest.approx(5.0)
    assert a.tpot is not None
    assert a.tpot.p50.value == pytest.approx(0.5)  # 5 s for ten more tokens
    assert a.attainment is not None
    assert b.attainment is not None
    assert (a.attainment.value, b.attainment.value) == (1.0, 0.0)
    assert [(w.worker, w.num_requests) for w in found.workers] == [("worker-0", 1), ("worker-1", 2)]
    assert found.seconds == pytest.approx(12.0)


def test_failures_are_counted_by_kind_and_miss_their_service_level() -> None:
    found = bench_report(load(Slow(1.0, fails=True), [turn(0.0)]), model="m", objectives={})
    assert found.classes[0].errors == {"503": 1}
    assert found.classes[0].attainment is not None
    assert found.classes[0].attainment.value == 0.0
    assert found.classes[0].ttft is None


def test_a_smaller_scale_keeps_what_is_shared() -> None:
    turns = list(named_workload("documents", rate=5.0, num_requests=30, seed=1))
    small = list(scaled(turns, 0.1))
    assert [t.arrival_time for t in small] == [t.arrival_time for t in turns]
    for before, after in zip(turns, small, strict=True):
        assert after.num_prompt_tokens == pytest.approx(before.num_prompt_tokens / 10, abs=5)
        assert after.transcript.segment.name == before.transcript.segment.name
