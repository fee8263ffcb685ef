"""Transfers that share links: by hand, as published, and for any set of them."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.errors import TransferError
from expediter.load import WorkerId
from expediter.model_spec import ModelSpec
from expediter.simulation.flows import Flow, Flows, Link, max_min_shares
from expediter.simulation.links import GB, Interconnect, SimulatedLinks
from expediter.simulation.loop import run_virtual

A, B, C, D = (WorkerId(name) for name in "abcd")
LLAMA = ModelSpec(name="70b", num_layers=80, num_kv_heads=8, head_size=128)
ONE_NIC = Interconnect(num_nics=1, nic_bandwidth=100.0)


async def seconds(links: SimulatedLinks, *transfers: tuple[WorkerId, WorkerId, int]) -> list[float]:
    """How long each takes if all start at once."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(source: WorkerId, target: WorkerId, num_bytes: int) -> float:
        await links.transfer(source, target, num_bytes)
        return loop.time() - start

    return await asyncio.gather(*(one(*transfer) for transfer in transfers))


def apart(interconnect: Interconnect = ONE_NIC) -> SimulatedLinks:
    return SimulatedLinks({w: f"node {w}" for w in (A, B, C, D)}, interconnect)


@pytest.mark.parametrize(
    ("num_tokens", "near", "num_nics", "milliseconds"),
    [(8000, True, 8, 0.7), (8000, False, 8, 6.6), (8000, False, 1, 52), (100_000, False, 8, 82)],
)
def test_a_70b_prompts_kv_takes_the_published_times(
    num_tokens: int, near: bool, num_nics: int, milliseconds: float
) -> None:
    """8,000 tokens are 2.62 GB, 328 MB a GPU at TP 8; 100,000 are 32.8 GB."""
    links = SimulatedLinks({A: "x", B: "x" if near else "y"}, Interconnect(num_nics=num_nics))
    (taken,) = run_virtual(seconds(links, (A, B, LLAMA.kv_bytes(num_tokens))))
    assert taken * 1e3 == pytest.approx(milliseconds, rel=0.05)


def test_two_equal_transfers_over_one_link_take_twice_as_long() -> None:
    assert run_virtual(seconds(apart(), (A, B, 1000))) == [pytest.approx(10)]
    assert run_virtual(seconds(apart(), (A, B, 1000), (A, C, 1000))) == [pytest.approx(20)] * 2


def test_transfers_in_opposite_directions_do_not_disturb_each_other() -> None:
    assert run_virtual(seconds(apart(), (A, B, 1000), (B, A, 1000))) == [pytest.approx(10)] * 2


def test_a_short_transfer_slows_a_long_one_only_while_it_lasts() -> None:
    """Both at 50 until the short one's 200 are through at 4 s; 800 are left of the long one."""
    assert run_virtual(seconds(apart(), (A, B, 1000), (A, C, 200))) == [
        pytest.approx(12),
        pytest.approx(4),
    ]


def test_what_a_slow_path_cannot_use_goes_to_the_others() -> None:
    """Two share y at 50 each, so the third has what is left of x."""
    capacity: dict[Link, float] = {"x": 150.0, "y": 100.0}
    both, other, alone = Flow(["x", "y"], 1), Flow(["y"], 1), Flow(["x"], 1)
    assert max_min_shares([both, other, alone], capacity) == {both: 50, other: 50, alone: 100}


def test_latency_comes_before_the_bytes() -> None:
    links = apart(replace(ONE_NIC, nic_latency=0.5))
    assert run_virtual(seconds(links, (A, B, 1000))) == [pytest.approx(10.5)]


def test_workers_of_a_node_do_not_use_their_nics() -> None:
    links = SimulatedLinks({A: "x", B: "x", C: "y"}, replace(ONE_NIC, nvlink_bandwidth=1000 / 8))
    assert run_virtual(seconds(links, (A, B, 1000), (A, C, 1000))) == [
        pytest.approx(1),
        pytest.approx(10),
    ]


def test_a_lost_worker_breaks_its_transfers_and_frees_the_links_for_others() -> None:
    async def run() -> list[object]:
        links, loop = apart(), asyncio.get_running_loop()
        lost = asyncio.create_task(links.transfer(A, B, 1000))
        other = asyncio.create_task(links.transfer(A, C, 1000))
        await asyncio.sleep(10)  # 500 each
        links.cut(B)
        with pytest.raises(TransferError, match="b was lost"):
            await lost
        with pytest.raises(TransferError, match="b cannot be reached"):
            await links.transfer(C, B, 1)
        await other
        ended = loop.time()
        links.mend(B)
        await links.transfer(C, B, 100)
        return [ended, loop.time(), links.num_failures, links.num_transfers, links.num_bytes]

    assert run_virtual(run()) == [pytest.approx(15), pytest.approx(16), 2, 2, 1100]


def test_a_cancelled_transfer_gives_up_its_share() -> None:
    async def run() -> float:
        links, loop = apart(), asyncio.get_running_loop()
        given_up = asyncio.create_task(links.transfer(A, B, 1000))
        other = asyncio.create_task(links.transfer(A, C, 1000))
        await asyncio.sleep(10)
        given_up.cancel()
        await other
        return loop.time()

    assert run_virtual(run()) == pytest.approx(15)


def test_a_share_of_transfers_breaks_and_takes_time_until_then() -> None:
    async def run() -> tuple[int, int, float]:
        links = SimulatedLinks({A: "x", B: "y"}, ONE_NIC, failure_share=0.3, rng=random.Random(1))
        for _ in range(200):
            with suppress(TransferError):
                await links.transfer(A, B, 100)
        return links.num_failures, links.num_transfers, asyncio.get_running_loop().time()

    failures, arrived, taken = run_virtual(run())
    assert failures + arrived == 200
    assert 40 < failures < 80
    assert arrived < taken < arrived + failures


sizes = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 10_000)), min_size=1, max_size=12)


@given(sizes)
def test_a_link_delivers_its_bandwidth_for_as_long_as_it_is_busy(
    transfers: list[tuple[float, int]],
) -> None:
    """Starts at any times: bytes = bandwidth x busy time, however they overlap."""
    flows, busy, ended = Flows({"x": 100.0}), 0.0, 0
    todo, now = sorted(transfers), 0.0
    while todo or len(flows):
        end = flows.next_end()
        start = todo[0][0] if todo else float("inf")
        then = min(start, end if end is not None else float("inf"))
        busy += then - now if len(flows) else 0.0
        now = then
        ended += len(flows.take_ended(now=now))
        while todo and todo[0][0] <= now:
            flows.start(["x"], todo.pop(0)[1], now=now)
    assert ended == len(transfers)
    assert busy * 100 == pytest.approx(sum(size for _, size in transfers), rel=1e-6)


paths = st.lists(
    st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=3, unique=True), max_size=9
)
capacities = st.fixed_dictionaries({link: st.floats(1, 1000) for link in "uvwxyz"})


@given(paths, capacities)
def test_shares_are_max_min_fair(links: list[list[str]], capacity: dict[Link, float]) -> None:
    """No link carries too much, and each flow has a full link on which nobody gets more."""
    flows = [Flow(path, 1.0) for path in links]
    rates = max_min_shares(flows, capacity)
    load = {link: sum(rates[f] for f in flows if link in f.links) for link in capacity}
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for flow in flows:
        assert rates[flow] > 0
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(rates[f] <= rates[flow] * (1 + 1e-9) for f in flows if link in f.links)
            for link in flow.links
        )


def test_gigabytes_are_decimal() -> None:
    assert LLAMA.kv_bytes(8000) / GB == pytest.approx(2.62, abs=0.01)
