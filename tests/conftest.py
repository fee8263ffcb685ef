"""What tests of several packages share."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from expediter.config import environment

# A busy machine is no failure, so nothing here depends on how long it takes.
settings.register_profile(
    "timeless",
    parent=settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("timeless")


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of recorded traces named by EXPEDITER_TRACES; skips where there is none."""
    folder = environment().get("EXPEDITER_TRACES")
    if not folder or not Path(folder).is_dir():
        pytest.skip("EXPEDITER_TRACES names no folder of traces")
    return Path(folder)


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway is tested on uvloop, which it runs on; the rest on asyncio's own loop."""
    if "gateway" in item.path.parent.name:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
