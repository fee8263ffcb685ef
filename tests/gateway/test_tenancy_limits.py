"""Buckets allow what they say in any window; slots come back however a request ends."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.config import TenantConfig
from expediter.errors import RequestError, RequestRejected
from expediter.gateway.limits import TenantLimits, TokenBucket


def limits(now: list[float], **settings: int) -> TenantLimits:
    config = TenantConfig(tenant_id="a", keys=(), **settings)
    return TenantLimits(config, assumed_output_tokens=10, clock=lambda: now[0])


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 200)), min_size=1, max_size=30),
)
def test_bucket_never_allows_more_than_its_capacity_and_rate_in_any_window(
    per_minute: int, tries: list[tuple[float, int]]
) -> None:
    now, taken = [0.0], []
    bucket = TokenBucket(per_minute, clock=lambda: now[0])
    for pause, amount in tries:
        now[0] += pause
        if bucket.wait_seconds(amount) == 0:
            bucket.take(amount)
            taken.append((now[0], amount))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            window = taken[last][0] - taken[first][0]
            total = sum(amount for _, amount in taken[first : last + 1])
            assert total <= per_minute * (1 + window / 60) + 1e-6


@given(st.integers(1, 10**6), st.data())
def test_whoever_waits_as_long_as_told_is_served(per_minute: int, data: st.DataObject) -> None:
    now = [0.0]
    bucket = TokenBucket(per_minute, clock=lambda: now[0])
    bucket.take(data.draw(st.integers(0, per_minute)))
    amount = data.draw(st.integers(0, per_minute))
    now[0] += bucket.wait_seconds(amount) + 1e-6
    assert bucket.wait_seconds(amount) == 0


def test_tokens_reserved_and_not_used_are_given_back() -> None:
    now = [0.0]
    tenant = limits(now, tokens_per_minute=100)
    with tenant.slot() as lease:
        lease.reserve(40, 60)
        with tenant.slot() as other, pytest.raises(RequestRejected):
            other.reserve(1, 0)
        lease.settle(50)
    with tenant.slot() as lease:
        lease.reserve(40, None)  # an answer without a limit counts as 10 tokens
    with tenant.slot() as lease, pytest.raises(RequestRejected) as refusal:
        lease.reserve(5, 0)
    assert refusal.value.retry_after == pytest.approx(3.0)


def test_request_that_no_wait_could_serve_is_told_so() -> None:
    with limits([0.0], tokens_per_minute=100).slot() as lease:
        with pytest.raises(RequestError, match="101 tokens") as refusal:
            lease.reserve(1, 100)
        assert not isinstance(refusal.value, RequestRejected)
        lease.reserve(100, -1000)  # a negative limit earns nothing
        with pytest.raises(RequestRejected):
            lease.reserve(1, 0)


@given(st.integers(0, 2**32))
async def test_slots_come_back_under_random_cancellations(seed: int) -> None:
    rng = random.Random(seed)
    tenant = limits([0.0], max_concurrent=3)
    most = 0

    async def request() -> None:
        nonlocal most
        with tenant.slot():
            most = max(most, tenant.num_running)
            await asyncio.sleep(0)
            if rng.random() < 0.3:
                raise ValueError
            await asyncio.sleep(0)

    tasks = []
    for _ in range(30):
        tasks.append(asyncio.ensure_future(request()))
        if rng.random() < 0.5:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most <= 3
    assert tenant.num_running == 0
