"""Who changes between prefill and decode, when, and that it comes to rest."""

import asyncio
from itertools import pairwise

import pytest
from fake_client import FakeClient
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from expediter.cluster.membership import Membership, WorkerStatus
from expediter.cluster.rebalancer import Rebalancer
from expediter.cluster.roles import Change, RoleBalance, RolePlayer
from expediter.config import RebalanceConfig, WorkerEndpoint
from expediter.load import WorkerId, WorkerRole
from expediter.routing.outstanding import OutstandingWork
from expediter.routing.prefix_index import PrefixIndex

BOTH, PREFILL, DECODE = WorkerRole.BOTH, WorkerRole.PREFILL, WorkerRole.DECODE
CONFIG = RebalanceConfig(
    hold_seconds=10, pause_seconds=60, prefill_slack_tokens=1000, decode_slack_requests=10
)
MIXED = replace(CONFIG, mixed_pool=True)


def player(name: str, role: WorkerRole, home: WorkerRole | None = None, **load) -> RolePlayer:
    return RolePlayer(worker_id=WorkerId(name), role=role, home=home or role, **load)


def fleet(prefill: int, decode: int, *, tokens: float, requests: int) -> list[RolePlayer]:
    """Workers with the whole fleet's work spread over those that may have it."""
    return spread(
        {f"p{i}": PREFILL for i in range(prefill)} | {f"d{i}": DECODE for i in range(decode)},
        tokens=tokens,
        requests=requests,
    )


def spread(
    roles: dict[str, WorkerRole], *, tokens: float, requests: int, homes=None
) -> list[RolePlayer]:
    homes = homes or roles
    num_prefill = sum(role is not DECODE for role in roles.values())
    num_decode = sum(role is not PREFILL for role in roles.values())
    return [
        player(
            name,
            role,
            homes[name],
            prefill_tokens=tokens / num_prefill if role is not DECODE else 0.0,
            num_decoding=-(-requests // num_decode) if role is not PREFILL else 0,
        )
        for name, role in roles.items()
    ]


def test_a_long_queue_for_prefill_gets_a_decode_worker_that_has_little_to_do() -> None:
    balance, workers = RoleBalance(CONFIG), fleet(1, 2, tokens=3000, requests=2)
    assert balance.next_change(workers, now=0.0) is None
    assert balance.next_change(workers, now=9.9) is None
    assert balance.next_change(workers, now=10.0) == Change(worker_id="d0", role=PREFILL)


def test_many_streams_get_a_prefill_worker() -> None:
    balance, workers = RoleBalance(CONFIG), fleet(2, 1, tokens=100, requests=30)
    balance.next_change(workers, now=0.0)
    assert balance.next_change(workers, now=10.0) == Change(worker_id="p0", role=DECODE)


def test_a_moment_of_ease_starts_the_wait_anew() -> None:
    balance, busy = RoleBalance(CONFIG), fleet(1, 2, tokens=3000, requests=2)
    balance.next_change(busy, now=0.0)
    balance.next_change(fleet(1, 2, tokens=0, requests=2), now=9.0)
    assert balance.next_change(busy, now=10.0) is None
    assert balance.next_change(busy, now=20.0) is not None


def test_after_a_change_there_is_a_pause() -> None:
    balance, busy = RoleBalance(CONFIG), fleet(1, 3, tokens=9000, requests=2)
    balance.next_change(busy, now=0.0)
    assert balance.next_change(busy, now=10.0) is not None
    assert balance.next_change(busy, now=20.0) is None
    assert balance.next_change(busy, now=69.0) is None
    assert balance.next_change(busy, now=70.0) is not None


@pytest.mark.parametrize(
    "workers",
    [
        fleet(1, 1, tokens=9000, requests=0),  # the last decode worker stays
        fleet(1, 2, tokens=900, requests=0),  # nobody waits
        fleet(1, 2, tokens=3000, requests=40),  # both are short, neither much more
    ],
)
def test_nobody_changes_where_it_would_not_help(workers: list[RolePlayer]) -> None:
    balance = RoleBalance(CONFIG)
    assert {balance.next_change(workers, now=float(now)) for now in range(100)} == {None}


def test_nobody_changes_where_the_other_role_would_be_short_then() -> None:
    """Pressures of 2 and 1 now, 1 and 2 with one worker more and one fewer."""
    workers = fleet(1, 2, tokens=2000, requests=20)
    config = replace(CONFIG, ratio=1.25)
    balance = RoleBalance(config)
    assert {balance.next_change(workers, now=float(now)) for now in range(100)} == {None}


def test_in_a_mixed_pool_a_worker_takes_both_and_goes_back() -> None:
    balance = RoleBalance(MIXED)
    busy = fleet(1, 2, tokens=3000, requests=2)
    balance.next_change(busy, now=0.0)
    assert balance.next_change(busy, now=10.0) == Change(worker_id="d0", role=BOTH)
    calm = [player("p0", PREFILL), player("d0", BOTH, DECODE), player("d1", DECODE)]
    balance.next_change(calm, now=60.0)
    assert balance.next_change(calm, now=70.0) == Change(worker_id="d0", role=DECODE)


@given(
    prefill=st.integers(1, 6),
    decode=st.integers(1, 6),
    tokens=st.integers(0, 50_000),
    requests=st.integers(0, 300),
    config=st.sampled_from([CONFIG, MIXED]),
)
def test_a_load_that_stays_as_it_is_comes_to_rest(
    prefill: int, decode: int, tokens: int, requests: int, config: RebalanceConfig
) -> None:
    """At most one change a worker, never there and back, and both roles keep somebody."""
    homes = {f"p{i}": PREFILL for i in range(prefill)} | {f"d{i}": DECODE for i in range(decode)}
    roles, balance = dict(homes), RoleBalance(config)
    changes: list[tuple[int, Change]] = []
    for now in range(0, 3000, 5):
        workers = spread(roles, tokens=tokens, requests=requests, homes=homes)
        change = balance.next_change(workers, now=float(now))
        if change is not None:
            changes.append((now, change))
            roles[change.worker_id] = change.role
            assert {PREFILL, DECODE} <= set(roles.values()) or BOTH in roles.values()
    assert len(changes) <= prefill + decode
    assert len({change.worker_id for _, change in changes}) == len(changes)
    assert not changes or changes[-1][0] < 2000
    gaps = [later - now for (now, _), (later, _) in pairwise(changes)]
    assert all(gap >= config.pause_seconds for gap in gaps)


@given(
    loads=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 100)), min_size=1, max_size=60)
)
def test_whatever_the_load_does_changes_keep_their_distance(loads: list[tuple[int, int]]) -> None:
    roles = {"p0": PREFILL, "p1": PREFILL, "d0": DECODE, "d1": DECODE}
    balance, changed_at = RoleBalance(CONFIG), []
    for step, (tokens, requests) in enumerate(loads):
        now = 5.0 * step
        change = balance.next_change(spread(roles, tokens=tokens, requests=requests), now=now)
        if change is not None:
            roles[change.worker_id] = change.role
            changed_at.append(now)
        assert {PREFILL, DECODE} == set(roles.values())
    assert all(b - a >= 60 for a, b in pairwise(changed_at))


async def test_a_worker_changes_once_its_requests_are_done() -> None:
    index = PrefixIndex(clock=lambda: 0.0, block_size=4, assumed_capacity=100)
    membership = Membership(connect=lambda _: FakeClient(), index=index, interval_seconds=1.0)
    work = OutstandingWork()
    for name, role in {"p": PREFILL, "d": DECODE, "e": DECODE}.items():
        endpoint = WorkerEndpoint(url=f"http://{name}", role=role)
        membership.add(endpoint).health = WorkerStatus.UP
    work.start(WorkerId("p"), prefill_tokens=9000, max_output_tokens=1)
    config = RebalanceConfig(
        interval_seconds=0.001, hold_seconds=0.002, pause_seconds=60, prefill_slack_tokens=1000
    )
    loop = asyncio.get_running_loop()
    rebalancer = Rebalancer(config, membership=membership, work=work, clock=loop.time)
    running = asyncio.create_task(rebalancer.run())
    member = membership.members[WorkerId("d")]
    member.begin()
    async with asyncio.timeout(10):
        while not member.is_draining:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert member.role is DECODE
        assert member not in membership.ready()
        member.end()
        while member.role is not PREFILL:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not member.is_draining
    assert rebalancer.num_changes == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
