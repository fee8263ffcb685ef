"""`expediter up`: plan, start, say so, look after it, stop it, leave nothing behind."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from expediter.config import Config, child_environment
from expediter.errors import ExpediterError
from expediter.fleet.folder import runtime_folder
from expediter.fleet.plan import (
    THREAD_DEFAULTS,
    local_url,
    plan_fleet,
    plan_workers,
    require_free_port,
    with_ports,
    worker_roles,
)
from expediter.fleet.probe import is_healthy
from expediter.fleet.process import FleetProcess
from expediter.fleet.supervisor import Supervisor
from expediter.fleet.welcome import Welcome


async def up(config: Config, *, environ: Mapping[str, str], console: Console) -> None:
    """Run the fleet until SIGINT or SIGTERM; raises ExpediterError if it cannot start."""
    config = with_ports(config)
    require_free_port(config.gateway.host, config.gateway.port)
    with runtime_folder() as folder:
        specs = plan_fleet(config, plan_workers(config, folder=folder), folder=folder)
        environment = child_environment(environ, **THREAD_DEFAULTS)
        supervisor = Supervisor(
            config.fleet,
            processes=[FleetProcess(spec, environment=environment) for spec in specs],
            probe=is_healthy,
            clock=time.monotonic,
            report=lambda line: console.print(f"  {escape(line)}", highlight=False, soft_wrap=True),
        )
        await _run_until_signal(supervisor, config, folder=folder, console=console)


async def _run_until_signal(
    supervisor: Supervisor, config: Config, *, folder: Path, console: Console
) -> None:
    running = asyncio.create_task(_start_and_run(supervisor, config, folder, console))
    with _signals(lambda: running.cancel() if not running.cancelling() else supervisor.kill()):
        try:
            await running
        except* ExpediterError as errors:
            raise _first(errors) from None
        except* asyncio.CancelledError:
            console.print("Stopping")
        finally:
            await supervisor.stop()


async def _start_and_run(
    supervisor: Supervisor, config: Config, folder: Path, console: Console
) -> None:
    num_workers = len(worker_roles(config))
    noun = "worker" if num_workers == 1 else "workers"
    console.print(f"Starting {num_workers} {noun} and the gateway", highlight=False)
    with console.status("Loading the model"):
        await supervisor.start()
    gateway = config.gateway
    welcome = Welcome(
        api=f"{local_url(gateway.host, gateway.port)}/v1",
        page=local_url(gateway.admin.host, gateway.admin.port) if gateway.admin.port else None,
        model=config.worker.served_model_name or "",
        logs=folder,
    )
    welcome.show(console)
    await supervisor.run()


@contextmanager
def _signals(handle: Callable[[], object]) -> Iterator[None]:
    """SIGINT and SIGTERM call `handle`, the second one too, until the block ends."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _first(errors: BaseExceptionGroup[ExpediterError]) -> ExpediterError:
    """The first failure; the others stopped because of it."""
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
