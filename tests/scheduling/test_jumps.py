"""Several decode steps at once leave what single steps leave, but for which slots are whose.

Nobody looks in between, so requests that decode side by side may take their slots one after the
other instead of in turns, and tell of several blocks at once.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import BLOCK_SIZE, Listener, cached_names, make_scheduler
from msgspec.structs import replace

from expediter.kvcache.events import BlockRemoved, BlockStored, KVCacheEvent
from expediter.request import Request, RequestId, SampledToken, SamplingParams
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.scheduling.scheduler import Scheduler


@dataclass
class Simulation:
    """Runs up to `longest` steps at a time; time is counted in steps."""

    scheduler: Scheduler
    longest: int
    now: int = 0
    num_calls: int = 0
    events: list[KVCacheEvent] = field(default_factory=list)
    outputs: dict[str, list[object]] = field(default_factory=dict)
    works: list[object] = field(default_factory=list)

    def run_until(self, end: int) -> None:
        """Arrivals cut jumps short, so no jump passes `end`."""
        while self.now < end:
            output = self.scheduler.schedule()
            if output is None:
                self.now = end
                return
            num_steps = min(output.max_steps, self.longest, end - self.now)
            self.now += num_steps
            self.num_calls += 1
            self.apply(output, num_steps)

    def apply(self, output: SchedulerOutput, num_steps: int) -> None:
        self.works.append((output.work, output.num_new_tokens))
        if output.chunks:
            check_work(output)
        tokens = defaultdict(lambda: [SampledToken(token_id=0)] * num_steps)
        result = ModelOutput(tokens=tokens, num_steps=num_steps)
        for gained in self.scheduler.update(output, result):
            seen = self.outputs.setdefault(gained.request_id, [])
            seen += gained.tokens
            if gained.finish_reason is not None:
                seen.append((self.now, gained.finish_reason, gained.num_cached_tokens))
        self.events += self.scheduler.kv_cache.take_events()

    def state(self) -> object:
        """Everything that can be seen of scheduler and cache, but for the numbers of blocks."""
        scheduler = self.scheduler
        pool = scheduler.kv_cache._pool
        name_of = cached_names(pool.cache)
        names = (name_of.get(block_id) for block_id in pool.free_block_ids())
        return (
            [
                (s.request_id, s.num_computed_tokens, s.num_tokens, len(s.sequence.block_ids))
                for s in scheduler._running
            ],
            [s.request_id for s in scheduler._waiting.candidates()],
            sorted(name_of.values()),
            [name for name in names if name is not None],
            pool.num_free_blocks,
            scheduler.num_preemptions,
            scheduler.load(),
        )

    def told(self) -> Counter[tuple[str, bytes | None, bytes]]:
        """Every name that was stored, with its parent, and every one removed."""
        found: Counter[tuple[str, bytes | None, bytes]] = Counter()
        listener = Listener()
        for event in self.events:
            listener.apply([event])
            match event:
                case BlockStored(block_hashes=names, parent_block_hash=parent):
                    for name in names:
                        found["stored", parent, name] += 1
                        parent = name
                case BlockRemoved(block_hashes=names):
                    found.update(("removed", None, name) for name in names)
        return found


def check_work(output: SchedulerOutput) -> None:
    """The totals of a step are those of its chunks."""
    decodes = [chunk for chunk in output.chunks if chunk.num_new_tokens == 1]
    prompts = [chunk for chunk in output.chunks if chunk.num_new_tokens > 1]
    assert output.work.num_decodes == len(decodes)
    assert output.work.num_context_tokens == sum(c.num_computed_tokens for c in decodes)
    assert [tuple(chunk) for chunk in output.work.chunks] == [
        (chunk.num_new_tokens, chunk.num_computed_tokens) for chunk in prompts
    ]
    assert output.num_new_tokens == sum(chunk.num_new_tokens for chunk in output.chunks)


def simulated(
    name: str, text: str, num_prompt_tokens: int, max_tokens: int, *, reports: bool = True
) -> Request:
    """Blocks of the prompt are named by the beginnings of `text`, those after it by `name` too."""
    num_blocks = (num_prompt_tokens + max_tokens) // BLOCK_SIZE
    own = [name if end >= num_prompt_tokens // BLOCK_SIZE else "" for end in range(num_blocks)]
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=(),
        sampling=SamplingParams(max_tokens=max_tokens),
        block_hashes=[f"{text[: end + 1]}{own[end]}".encode() for end in range(num_blocks)],
        num_prompt_tokens=num_prompt_tokens,
        reports_progress=reports,
    )


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # steps since the one before
        st.sampled_from(["aaaaaaaaaaaaaaaa", "aaabbbbbbbbbbbbb", "cccccccccccccccc"]),
        st.integers(1, 12),
        st.integers(1, 16),
    ),
    min_size=1,
    max_size=8,
)


@given(
    arrivals,
    st.integers(14, 24),
    st.integers(1, 4),
    st.sampled_from(["fcfs", "longest-prefix", "prefix-quotas", "priority"]),
    st.sampled_from(["hash", "radix"]),
)
@settings(max_examples=150, deadline=None)
def test_jumps_and_single_steps_are_the_same(
    arrivals: list[tuple[int, str, int, int]],
    num_blocks: int,
    max_running: int,
    policy: str,
    prefix_cache: str,
) -> None:
    runs = []
    for longest in (1, 1000):
        scheduler = make_scheduler(
            num_blocks=num_blocks,
            max_running=max_running,
            max_batched_tokens=8,
            policy=policy,
            prefix_cache=prefix_cache,
        )
        runs.append(Simulation(scheduler, longest))
    single, jumps = runs
    due = 0
    for index, (delay, text, num_prompt_tokens, max_tokens) in enumerate(arrivals):
        due += delay
        for run in runs:
            run.run_until(due)
            run.scheduler.add(simulated(str(index), text, num_prompt_tokens, max_tokens))
        assert single.state() == jumps.state()
    for run in runs:
        run.run_until(due + 1000)
        assert not run.scheduler.has_work
    assert single.state() == jumps.state()
    assert single.told() == jumps.told()
    assert single.outputs == jumps.outputs


@given(st.lists(st.integers(1, 16), min_size=2, max_size=4), st.integers(14, 24))
@settings(deadline=None)
def test_requests_that_say_the_same_end_with_one_block_a_name(
    max_tokens: list[int], num_blocks: int
) -> None:
    """Side by side in one jump; whoever fills a block second adopts the first one's."""
    scheduler = make_scheduler(num_blocks=num_blocks, max_batched_tokens=8)
    run = Simulation(scheduler, longest=1000)
    for index, length in enumerate(max_tokens):
        request = simulated("same", "abcdefghijklmnopqrst", 2, length)
        scheduler.add(replace(request, request_id=RequestId(str(index))))
    run.run_until(1000)
    assert not scheduler.has_work
    assert {name: len(said) - 1 for name, said in run.outputs.items()} == {
        str(index): length for index, length in enumerate(max_tokens)
    }
    stored = run.told()
    assert scheduler.kv_cache.num_used_blocks == 0
    held = sum(count if kind == "stored" else -count for (kind, _, _), count in stored.items())
    assert held == scheduler.kv_cache.num_cached_blocks


@given(arrivals)
@settings(deadline=None)
def test_an_executor_that_needs_no_chunks_changes_nothing(
    arrivals: list[tuple[int, str, int, int]],
) -> None:
    runs = [
        Simulation(make_scheduler(max_batched_tokens=8, has_chunks=has_chunks), longest=1000)
        for has_chunks in (True, False)
    ]
    for run in runs:
        for index, (delay, text, num_prompt_tokens, max_tokens) in enumerate(arrivals):
            run.run_until(run.now + delay)
            run.scheduler.add(simulated(str(index), text, num_prompt_tokens, max_tokens))
        run.run_until(1000)
        assert not run.scheduler.has_work
    told, totals = runs
    assert told.state() == totals.state()
    assert told.events == totals.events
    assert told.outputs == totals.outputs
    assert told.works == totals.works


def test_who_wants_no_progress_hears_of_the_first_and_the_last_token_only() -> None:
    told = []
    for reports in (True, False):
        run = Simulation(make_scheduler(), longest=1)
        run.scheduler.add(simulated("r", "abcdefgh", 2, 5, reports=reports))
        run.run_until(100)
        told.append([entry for entry in run.outputs["r"] if isinstance(entry, SampledToken)])
    assert [len(tokens) for tokens in told] == [5, 2]


def test_a_lone_request_needs_two_calls() -> None:
    run = Simulation(make_scheduler(), longest=1000)
    run.scheduler.add(simulated("r", "abcdefghijklmnop", 2, 20))
    run.run_until(100)
    assert run.num_calls == 2  # its prompt, then 19 decodes


def test_a_jump_ends_when_the_first_request_does() -> None:
    run = Simulation(make_scheduler(), longest=1000)
    run.scheduler.add(simulated("a", "aaaaaaaa", 2, 5))
    run.scheduler.add(simulated("b", "bbbbbbbb", 2, 9))
    assert run.scheduler.schedule().max_steps == 1  # type: ignore[union-attr]


def max_steps(run: Simulation) -> int:
    """Of the step after the prompts."""
    run.run_until(1)
    output = run.scheduler.schedule()
    assert output is not None
    return output.max_steps


def test_steps_are_counted_to_the_first_end_or_the_last_free_block() -> None:
    """Each prompt of 2 tokens and the first token said; a block lasts for two steps."""
    for num_blocks, expected in ((16, 4), (8, 4), (5, 2), (6, 4)):
        run = Simulation(make_scheduler(num_blocks=num_blocks, prefix_caching=False), longest=1)
        run.scheduler.add(simulated("a", "aaaaaaaa", 2, 5))
        run.scheduler.add(simulated("b", "bbbbbbbb", 2, 8))
        assert max_steps(run) == expected


def test_a_token_that_may_stop_a_request_allows_no_jump() -> None:
    scheduler = make_scheduler(eos_token_ids=frozenset({5}))
    request = Request(
        request_id=RequestId("a"), prompt_token_ids=[1], sampling=SamplingParams(max_tokens=9)
    )
    scheduler.add(request)
    assert max_steps(Simulation(scheduler, longest=1)) == 1
