"""The scheduler by hand: what runs in which step, what is preempted, how requests end."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import Rig, make_request, make_scheduler

from expediter.errors import PromptTooLong, RequestError
from expediter.request import FinishReason, Request, RequestId, SampledToken, SamplingParams
from expediter.scheduling.output import ModelOutput
from expediter.scheduling.scheduler import Scheduler


def rig(**settings: object) -> Rig:
    return Rig(make_scheduler(**settings))  # type: ignore[arg-type]


def say(scheduler: Scheduler, *token_ids: int) -> list[object]:
    """Run a step of one request for each token, with the model saying it; how each ended."""
    reasons: list[object] = []
    for token_id in token_ids:
        output = scheduler.schedule()
        assert output is not None
        tokens = {chunk.request_id: (SampledToken(token_id=token_id),) for chunk in output.chunks}
        results = scheduler.update(output, ModelOutput(tokens=tokens))
        reasons += [result.finish_reason for result in results]
    return reasons


def test_decodes_run_first_then_begun_prompts_then_waiting_ones() -> None:
    """Budget 6: a decodes (1), b goes on (3 of its 8 are left), c begins with the last 2."""
    r = rig(max_batched_tokens=6)
    r.add(make_request("a", [1], max_tokens=9))
    r.add(make_request("b", [2] * 8, max_tokens=9))
    assert r.step() == {"a": 1, "b": 5}
    r.add(make_request("c", [0] * 8, max_tokens=9))
    assert r.step() == {"a": 1, "b": 3, "c": 2}
    assert r.step() == {"a": 1, "b": 1, "c": 4}
    assert r.step() == {"a": 1, "b": 1, "c": 2}


def test_without_chunks_a_prompt_waits_until_the_budget_holds_it_whole() -> None:
    r = rig(max_batched_tokens=6, chunked_prefill=False)
    for name, length in (("a", 4), ("b", 3), ("c", 2)):
        r.add(make_request(name, [ord(name)] * length, max_tokens=3))
    assert r.step() == {"a": 4}
    assert r.step() == {"a": 1, "b": 3, "c": 2}


def test_without_chunks_a_prompt_over_the_budget_is_the_only_one_of_its_step() -> None:
    r = rig(max_batched_tokens=4, chunked_prefill=False)
    r.add(make_request("a", [1], max_tokens=3))
    assert r.step() == {"a": 1}
    r.add(make_request("b", [2] * 9, max_tokens=3))
    r.add(make_request("c", [0], max_tokens=3))
    assert r.step() == {"a": 1, "b": 9}
    assert r.step() == {"a": 1, "b": 1, "c": 1}


def test_no_more_than_max_running_run() -> None:
    r = rig(max_running=2)
    for name in "abc":
        r.add(make_request(name, [ord(name)], max_tokens=2))
    assert r.step() == {"a": 1, "b": 1}
    assert r.step() == {"a": 1, "b": 1}
    assert r.step() == {"c": 1}


def test_every_running_request_decodes_in_every_step() -> None:
    """A budget of 2 cannot run 3 decodes, so it does not admit 3."""
    r = rig(max_batched_tokens=2, max_running=3)
    for name in "abc":
        r.add(make_request(name, [ord(name)], max_tokens=3))
    assert [sorted(step) for step in r.run()] == [["a", "b"]] * 3 + [["c"]] * 3


def test_a_request_waits_a_step_for_a_block_that_another_computes() -> None:
    """Both prompts begin with the same 4 tokens; the second one hits them a step later."""
    r = rig()
    r.add(make_request("a", [1, 1, 1, 1, 5], max_tokens=2))
    r.add(make_request("b", [1, 1, 1, 1, 6], max_tokens=2))
    r.add(make_request("c", [2, 2], max_tokens=2))
    assert r.step() == {"a": 5, "c": 2}
    assert r.step() == {"a": 1, "c": 1, "b": 1}
    r.run()
    assert r.outputs["b"][0].num_cached_tokens == 4
    assert r.oracle.num_computed_tokens == 6 + 2 + 3


def test_the_newest_request_gives_up_its_blocks_when_memory_is_full() -> None:
    """5 blocks of 2: with 5 tokens to hold each, both want a third block and there is one."""
    r = rig(num_blocks=5, prefix_caching=False)
    r.add(make_request("a", [1, 1], max_tokens=7))
    r.add(make_request("b", [2, 2], max_tokens=5))
    steps = r.run()
    assert r.scheduler.num_preemptions == 1
    assert steps[:4] == [{"a": 2, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1}]
    resumed = next(step["b"] for step in steps[4:] if "b" in step)
    assert resumed == 5  # its prompt and the three tokens it had said
    assert len(r.generated("a")) == 7
    assert len(r.generated("b")) == 5


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_least_urgent_request_is_preempted_first(policy: str) -> None:
    r = rig(num_blocks=5, prefix_caching=False, policy=policy)
    r.add(make_request("a", [1, 1], max_tokens=7, priority=5))
    r.add(make_request("b", [2, 2], max_tokens=7, priority=0))
    r.run()
    assert r.finished == (["a", "b"] if policy == "fcfs" else ["b", "a"])


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    r = rig(num_blocks=5)
    r.add(make_request("a", [1, 1], max_tokens=7))
    r.add(make_request("b", [2, 2], max_tokens=7))
    r.run()
    assert r.scheduler.num_preemptions > 0
    assert r.oracle.num_computed_tokens < 2 * (2 + 6) + 4
    assert r.outputs["b"][-1].num_cached_tokens == 0  # what was cached when it first ran


def test_admission_leaves_a_block_for_every_running_request() -> None:
    """a holds 2 of 6 blocks; b needs 4 and would leave none for a to grow into."""
    r = rig(num_blocks=6)
    r.add(make_request("a", [1, 1, 1, 1], max_tokens=4))
    r.add(make_request("b", [2] * 8, max_tokens=2))
    assert [sorted(step) for step in r.run()] == [["a"]] * 4 + [["b"]] * 2
    assert r.scheduler.num_preemptions == 0


def test_a_prompt_and_output_beyond_the_context_are_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(max_model_len=8)
    with pytest.raises(PromptTooLong, match=r"5 tokens and max_tokens is 4.*length of 8"):
        scheduler.add(make_request("a", [1] * 5, max_tokens=4))
    scheduler.add(make_request("a", [1] * 5, max_tokens=3))
    assert scheduler.load().num_waiting == 1


def test_what_never_fits_the_memory_is_refused_with_the_numbers() -> None:
    """The last token is never computed, so 6 + 3 tokens take 8 slots: 4 blocks of 2."""
    scheduler = make_scheduler(num_blocks=4)
    with pytest.raises(PromptTooLong, match=r"takes 5 blocks of KV cache and there are 4"):
        scheduler.add(make_request("a", [1] * 6, max_tokens=4))
    r = Rig(scheduler)
    r.add(make_request("a", [1] * 6, max_tokens=3))
    r.run()
    assert r.finished == ["a"]


def test_an_empty_prompt_and_no_output_are_refused() -> None:
    scheduler = make_scheduler()
    for token_ids, max_tokens in (([], 1), ([1], 0)):
        with pytest.raises(RequestError):
            scheduler.add(make_request("a", token_ids, max_tokens=max_tokens))


def test_a_known_id_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1]))
    with pytest.raises(ValueError, match="a is already here"):
        scheduler.add(make_request("a", [1]))


@pytest.mark.parametrize(
    ("sampling", "said", "reasons"),
    [
        ({"max_tokens": 2}, [5, 5], [None, FinishReason.LENGTH]),
        ({"max_tokens": 3}, [5, 9], [None, FinishReason.STOP]),
        ({"max_tokens": 1}, [9], [FinishReason.STOP]),
        ({"max_tokens": 2, "ignore_eos": True}, [9, 9], [None, FinishReason.LENGTH]),
        ({"max_tokens": 3, "min_tokens": 2}, [9, 9], [None, FinishReason.STOP]),
        ({"max_tokens": 3, "stop_token_ids": frozenset({5})}, [5], [FinishReason.STOP]),
        (
            {"max_tokens": 3, "ignore_eos": True, "stop_token_ids": frozenset({5})},
            [9, 5],
            [None, FinishReason.STOP],
        ),
    ],
)
def test_a_request_ends_for_the_right_reason(
    sampling: dict[str, object], said: Sequence[int], reasons: list[object]
) -> None:
    scheduler = make_scheduler(eos_token_ids=frozenset({9}))
    scheduler.add(make_request("a", [1, 2], **sampling))
    assert say(scheduler, *said) == reasons
    assert not scheduler.has_work
    assert scheduler.schedule() is None


def test_a_request_that_reaches_the_context_limit_ends_there() -> None:
    r = rig(max_model_len=8)
    r.add(make_request("a", [1] * 5, max_tokens=3))
    r.run()
    assert len(r.generated("a")) == 3
    assert r.outputs["a"][-1].finish_reason is FinishReason.LENGTH


def test_the_output_names_the_token_that_stopped_it() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1], stop_token_ids=frozenset({7})))
    output = scheduler.schedule()
    assert output is not None
    tokens = {RequestId("a"): (SampledToken(token_id=7),)}
    (result,) = scheduler.update(output, ModelOutput(tokens=tokens))
    assert result.stop_token_id == 7


def test_an_abort_frees_at_once_at_any_point() -> None:
    r = rig(max_batched_tokens=3)
    for name, length in (("a", 2), ("b", 4), ("c", 2)):
        r.add(make_request(name, [ord(name)] * length, max_tokens=5))
    r.step()  # a ran, b began, c waits
    load = r.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_used_blocks) == (2, 1, 3)
    assert load.num_waiting_prefill_tokens == 3 + 2
    for name in "abc":
        assert r.scheduler.abort(RequestId(name))
        assert not r.scheduler.abort(RequestId(name))
    assert not r.scheduler.has_work
    assert r.scheduler.load().num_used_blocks == 0


def test_an_id_may_be_used_again_while_its_last_step_still_runs() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1]))
    output = scheduler.schedule()
    assert output is not None
    scheduler.abort(RequestId("a"))
    scheduler.add(make_request("a", [2]))
    tokens = {RequestId("a"): (SampledToken(token_id=7),)}
    assert scheduler.update(output, ModelOutput(tokens=tokens)) == []
    assert scheduler.load().num_waiting == 1


def test_the_time_of_first_admission_is_told() -> None:
    r = rig(max_running=1)
    r.add(make_request("a", [1], max_tokens=1))
    r.add(make_request("b", [2], max_tokens=2))
    for _ in range(3):
        r.step()
        r.scheduler._clock.now += 1.0  # type: ignore[attr-defined]
    times = [output.scheduled_time for name in "ab" for output in r.outputs[name]]
    assert times == [0.0, 1.0, 1.0]


def test_hits_are_counted_once_a_request() -> None:
    r = rig()
    for name in "ab":
        r.add(make_request(name, [1, 2, 3, 4, 5], max_tokens=1))
        r.run()
    kv_cache = r.scheduler.kv_cache
    assert (kv_cache.num_queried_tokens, kv_cache.num_hit_tokens) == (10, 4)
    assert [r.outputs[name][0].num_cached_tokens for name in "ab"] == [0, 4]


prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6)


@given(prompts, st.integers(1, 12), st.integers(8, 20), st.booleans())
@settings(deadline=None)
def test_answers_do_not_depend_on_how_they_are_scheduled(
    prompts: list[list[int]], budget: int, num_blocks: int, chunked: bool
) -> None:
    """The oracle's next token depends on the whole text, so a wrong context changes the answer."""
    tight = rig(max_batched_tokens=budget, num_blocks=num_blocks, chunked_prefill=chunked)
    alone = rig(max_running=1, prefix_caching=False)
    for index, token_ids in enumerate(prompts):
        for r in (tight, alone):
            r.add(make_request(str(index), token_ids, max_tokens=4))
    tight.run()
    alone.run()
    for name in alone.outputs:
        assert tight.generated(name) == alone.generated(name)


def test_a_simulated_request_runs_without_token_ids() -> None:
    scheduler = make_scheduler(eos_token_ids=frozenset({0}))
    names = [b"a", b"ab", b"abc"]
    for name, cached in (("a", 0), ("b", 2)):
        request = Request(
            request_id=RequestId(name),
            prompt_token_ids=(),
            sampling=SamplingParams(max_tokens=3),
            block_hashes=names,
            num_prompt_tokens=4,
        )
        scheduler.add(request)
        output = scheduler.schedule()
        assert output is not None
        assert [(c.token_ids, c.num_new_tokens) for c in output.chunks] == [([], 4 - cached)]
        tokens = {RequestId(name): (SampledToken(token_id=0),)}
        (result,) = scheduler.update(output, ModelOutput(tokens=tokens))
        assert result.num_cached_tokens == cached
        assert say(scheduler, 0, 0) == [None, FinishReason.LENGTH]
