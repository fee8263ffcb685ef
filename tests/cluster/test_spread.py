"""At default settings, what comes at once is spread over the fleet: by the real dispatcher."""

import asyncio
from collections import Counter

from fake_client import FakeClient, FakeSink
from hypothesis import given, settings
from hypothesis.strategies import integers
from test_dispatcher import REQUEST

from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Membership, WorkerStatus
from expediter.config import RoutingConfig, WorkerEndpoint
from expediter.routing.cache_aware import CacheAware
from expediter.routing.outstanding import OTHERS_TOKENS
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt
from expediter.routing.view import RoutedRequest


class Fleet:
    """Workers whose answers begin at once and end when the test says so."""

    def __init__(self, num_workers: int) -> None:
        self.gate = asyncio.Event()
        config = RoutingConfig()
        index = PrefixIndex(
            clock=lambda: 0.0,
            block_size=config.block_size,
            assumed_capacity=config.assumed_blocks,
        )
        membership = Membership(
            connect=lambda e: FakeClient(e.url, gate=self.gate), index=index, interval_seconds=1.0
        )
        for number in range(num_workers):
            url = f"http://{number}"
            membership.add(WorkerEndpoint(url=url)).health = WorkerStatus.UP
        policy = CacheAware(
            load_weight=config.load_weight,
            max_imbalance=config.max_imbalance,
            slack_tokens=config.slack_tokens,
        )
        self.dispatcher = Dispatcher(
            membership=membership, index=index, policy=policy, config=config, clock=lambda: 0.0
        )

    async def at_once(self, prompts: list[list[int]]) -> Counter[str]:
        """How many requests each worker got, while none had ended."""
        running = []
        for number, tokens in enumerate(prompts):
            request = RoutedRequest(request_id=str(number), prompt=token_prompt(tokens))
            task = asyncio.create_task(self.dispatcher.dispatch(request, REQUEST, FakeSink()))
            running.append(task)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self.gate.set()
        return Counter([(await task).worker_id for task in running])


@settings(max_examples=8, deadline=None)
@given(num_workers=integers(2, 8), num_shared=integers(100, 4000))
def test_many_requests_with_one_prefix_are_spread(num_workers: int, num_shared: int) -> None:
    """No worker has more than the guard of the policy allows."""

    async def scene() -> Counter[str]:
        fleet = Fleet(num_workers)
        shared = list(range(num_shared))
        prompts = [[*shared, *range(10**6 * (n + 1), 10**6 * (n + 1) + 50)] for n in range(200)]
        return await fleet.at_once(prompts)

    counts = asyncio.run(scene())
    config = RoutingConfig()
    allowance = max(config.slack_tokens, num_shared) / OTHERS_TOKENS  # in requests
    mean = 200 / num_workers
    assert max(counts.values()) <= (1 + config.max_imbalance) * mean + allowance + 1


@settings(max_examples=8, deadline=None)
@given(num_workers=integers(2, 8), length=integers(1, 2000))
def test_many_different_cold_prompts_are_spread_evenly(num_workers: int, length: int) -> None:
    async def scene() -> Counter[str]:
        fleet = Fleet(num_workers)
        prompts = [list(range(10**6 * n, 10**6 * n + length)) for n in range(10 * num_workers)]
        return await fleet.at_once(prompts)

    counts = asyncio.run(scene())
    assert set(counts.values()) == {10}
