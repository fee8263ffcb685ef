"""A whole fleet on this machine, until a signal."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from expediter.assemble.worker import with_model
from expediter.config import Config
from expediter.engine.architecture import config_from_hf
from expediter.fleet.up import up


def run_fleet(config: Config, *, environ: Mapping[str, str], console: Console) -> None:
    """Run a gateway and its workers until a signal."""
    worker = with_model(config.worker, environ=environ)
    if Path(worker.engine.model).is_dir():
        config_from_hf(Path(worker.engine.model))  # said once, before each worker would say it
    asyncio.run(up(replace(config, worker=worker), environ=environ, console=console))
