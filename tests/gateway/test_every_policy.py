"""Every policy that can be named serves requests through a whole gateway."""

import random
import time
from typing import get_args

import pytest
from fake_worker import JSON_OK, FakeWorker, always, ask, gateway_before, post

from expediter.assemble import build_policy
from expediter.config import PolicyName, RoutingConfig


@pytest.mark.parametrize("name", get_args(PolicyName))
async def test_requests_are_answered_and_none_is_left_in_flight(name: PolicyName) -> None:
    config = RoutingConfig(policy=name)
    policy = build_policy(config, clock=time.monotonic, rng=random.Random(1))
    async with (
        FakeWorker(always(JSON_OK), name="a") as one,
        FakeWorker(always(JSON_OK), name="b") as two,
        gateway_before(one, two, policy=policy) as gateway,
    ):
        for number in range(12):
            words = f"conversation {number % 3} " * 40
            answer = await ask(gateway, post(b'{"prompt": "%s"}' % words.encode()))
            assert answer.status == 200
            assert answer.headers["x-expediter-reason"]
        work = gateway.dispatcher.work
        assert all(work.num_requests(w) == 0 for w in gateway.membership.members)
        assert len(gateway.dispatcher.log.recent) == 12
