"""A gateway that no longer watches its workers must not go on as if it did."""

import asyncio

import pytest
from operated import policy_of

from expediter.assemble.gateway import _until
from expediter.config import GatewayConfig
from expediter.errors import GatewayFailed
from expediter.gateway.gateway import Gateway


async def test_a_failed_background_ends_the_process_with_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = GatewayConfig(port=0)
    gateway = Gateway(config, policy=policy_of(config.routing))

    def broken(_: float) -> None:
        raise OSError("broken")

    monkeypatch.setattr(gateway._server, "sweep", broken)
    await gateway.start()
    try:
        with pytest.raises(GatewayFailed, match=r"background work failed: OSError\('broken'\)"):
            await _until(asyncio.Event(), gateway)
        assert "background work failed" in caplog.text
    finally:
        await gateway.stop()


async def test_the_signal_ends_it_without_an_error() -> None:
    config = GatewayConfig(port=0)
    gateway = Gateway(config, policy=policy_of(config.routing))
    await gateway.start()
    stop = asyncio.Event()
    stop.set()
    try:
        await _until(stop, gateway)
    finally:
        await gateway.stop()
