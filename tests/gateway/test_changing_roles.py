"""Roles that change while a gateway serves."""

import asyncio

import pytest
from fake_worker import Received, ask, client_of, post, until
from msgspec.structs import replace
from pair_workers import ALWAYS, BODY, DecodeWorker, PrefillWorker, pools, stream, vllm_prefill

from expediter.config import GatewayConfig, RebalanceConfig
from expediter.errors import ConfigError
from expediter.gateway.gateway import Gateway
from expediter.load import WorkerRole
from expediter.routing.policy import RoundRobin

REBALANCE = RebalanceConfig(
    enabled=True,
    interval_seconds=0.005,
    hold_seconds=0.01,
    prefill_slack_tokens=10,
)


async def test_a_queue_at_the_prefill_worker_makes_a_decode_worker_help() -> None:
    async def prefill(request: Received, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        await vllm_prefill()(request, writer)

    async def either(request: Received, writer: asyncio.StreamWriter) -> None:
        await (vllm_prefill() if b"remote_decode" in request.body else stream())(request, writer)

    released = asyncio.Event()
    async with (
        PrefillWorker(prefill, name="p") as p,
        DecodeWorker(either, name="d") as d,
        DecodeWorker(either, name="e") as e,
        pools(p, d, e, disaggregation=replace(ALWAYS, rebalance=REBALANCE)) as gateway,
        client_of(gateway) as first,
    ):
        first.send(post(BODY))
        members = gateway.membership.members
        await until(lambda: sum(m.role is WorkerRole.PREFILL for m in members.values()) == 2)
        roles = {str(worker["worker_id"]): worker["role"] for worker in gateway.reports.workers()}
        helper = next(name for name in ("d", "e") if roles[name] == "prefill")
        second = await ask(gateway, post(BODY.replace(b"word1", b"another")))
        assert second.headers["x-expediter-prefill-worker"] == helper
        released.set()
        assert (await first.answer()).status == 200


def test_several_processes_would_each_change_roles_and_may_not() -> None:
    config = GatewayConfig(processes=2, disaggregation=replace(ALWAYS, rebalance=REBALANCE))
    with pytest.raises(ConfigError, match="processes = 1"):
        Gateway(config, policy=RoundRobin())


def test_a_regression_that_does_not_exist_is_an_error_that_names_those_that_do() -> None:
    config = GatewayConfig(disaggregation=replace(ALWAYS, gpu_cost="abacus"))
    with pytest.raises(ConfigError, match="worked-example"):
        Gateway(config, policy=RoundRobin())
