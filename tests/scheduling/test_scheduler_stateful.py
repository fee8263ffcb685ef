"""Random lives of a scheduler: pool, cache and queue stay consistent, and nothing is mixed up.

Two schedulers, one with each prefix cache, are driven side by side and must do the same.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kv_oracle import Rig, check_consistency, make_request, make_scheduler

from expediter.errors import PromptTooLong

# Most prompts are the beginning of one of two texts, so that they share and repeat.
beginnings = st.builds(
    lambda text, end: text[:end], st.sampled_from([[0] * 14, [0, 0, 1, 0] * 4]), st.integers(1, 14)
)
prompts = beginnings | beginnings | st.lists(st.integers(0, 1), min_size=1, max_size=14)
arrivals = st.fixed_dictionaries(
    {
        "token_ids": prompts,
        "max_tokens": st.integers(1, 12),
        "priority": st.integers(0, 2),
        "cache_salt": st.sampled_from([None, None, None, "a"]),
        "ignore_eos": st.booleans(),
    }
)
configurations = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(4, 14),
        "max_batched_tokens": st.integers(1, 16),
        "max_running": st.integers(1, 5),
        "chunked_prefill": st.booleans(),
        "prefix_caching": st.sampled_from([True, True, True, False]),
        "lpm_fallback_threshold": st.integers(1, 4),
        "num_priority_groups": st.integers(1, 5),
    }
)


class SchedulerLife(RuleBasedStateMachine):
    """Adds, steps, aborts and resets in any order; small memory makes preemptions and evictions."""

    policy = "fcfs"

    @initialize(config=configurations)
    def start(self, config: dict[str, object]) -> None:
        self.rigs = [
            Rig(
                make_scheduler(
                    policy=self.policy,
                    prefix_cache=prefix_cache,
                    eos_token_ids=frozenset({2}),
                    max_model_len=24,
                    **config,  # type: ignore[arg-type]
                )
            )
            for prefix_cache in ("hash", "radix")
        ]
        self.num_added = 0
        self.aborted: set[str] = set()

    @rule(arrivals=st.lists(arrivals, min_size=1, max_size=4))
    def add(self, arrivals: list[dict[str, Any]]) -> None:
        for arrival in arrivals:
            request = make_request(str(self.num_added), **arrival)
            num_slots = self.rigs[0].scheduler.kv_cache.num_total_blocks * 2
            num_tokens = request.num_prompt_tokens + request.sampling.max_tokens
            fits = num_tokens <= 24 and num_tokens - 1 <= num_slots
            for rig in self.rigs:
                if fits:
                    rig.add(request)
                else:
                    with pytest.raises(PromptTooLong):
                        rig.add(request)
            self.num_added += fits

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            had_work = self.rigs[0].scheduler.has_work
            steps = [rig.step() for rig in self.rigs]
            assert list(steps[0].items()) == list(steps[1].items())
            assert bool(steps[0]) == had_work, "work, and nothing runs"
            self.within_budget(steps[0])

    def within_budget(self, step: dict[str, int]) -> None:
        config = self.rigs[0].scheduler._config
        assert len(step) <= config.max_running
        if config.chunked_prefill:
            assert sum(step.values()) <= config.max_batched_tokens

    @precondition(lambda self: self.rigs[0].scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = str(data.draw(st.integers(0, self.num_added - 1)))
        is_here = name not in self.rigs[0].finished and name not in self.aborted
        assert [rig.scheduler.abort(name) for rig in self.rigs] == [is_here] * 2  # type: ignore[arg-type]
        if is_here:
            self.aborted.add(name)

    @precondition(lambda self: self.rigs[0].scheduler.has_work)
    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        name = str(data.draw(st.integers(0, self.num_added - 1)))
        is_here = name not in self.rigs[0].finished and name not in self.aborted
        for rig in self.rigs:
            output = rig.scheduler.schedule()
            assert rig.scheduler.abort(name) == is_here  # type: ignore[arg-type]
            if output is None:
                continue
            for result in rig.scheduler.update(output, rig.oracle.execute(output)):
                assert not (is_here and result.request_id == name)
                rig.outputs[result.request_id].append(result)
                if result.finish_reason is not None:
                    rig.finished.append(result.request_id)
        if is_here:
            self.aborted.add(name)

    @precondition(lambda self: self.rigs[0].listener.parent_of)
    @rule()
    def reset(self) -> None:
        answers = [rig.scheduler.kv_cache.reset_prefix_cache() for rig in self.rigs]
        idle = not self.rigs[0].scheduler.load().num_running
        assert answers == [idle, idle]

    @invariant()
    def everything_adds_up(self) -> None:
        for rig in getattr(self, "rigs", []):
            rig.listener.apply(rig.scheduler.kv_cache.take_events())
            check_consistency(rig.scheduler, rig.listener)

    @invariant()
    def both_caches_did_the_same(self) -> None:
        if rigs := getattr(self, "rigs", []):
            ours, theirs = rigs
            assert ours.listener.parent_of == theirs.listener.parent_of
            assert ours.outputs == theirs.outputs
            free = [list(rig.scheduler.kv_cache._pool.free_block_ids()) for rig in rigs]
            assert free[0] == free[1]

    def teardown(self) -> None:
        """Nothing starves: without new arrivals all that is left ends, and nothing is kept."""
        for rig in getattr(self, "rigs", []):
            rig.run()
            assert len(rig.finished) + len(self.aborted) == self.num_added
            assert rig.scheduler.kv_cache.num_used_blocks == 0
            check_consistency(rig.scheduler, rig.listener)


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix", "prefix-quotas", "priority"])
def test_a_scheduler_survives_anything(policy: str) -> None:
    machine = type(f"SchedulerLife{policy}", (SchedulerLife,), {"policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
