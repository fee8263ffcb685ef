"""Several gateway processes on one port, and the parent that keeps them running.

The kernel spreads connections over the processes (SO_REUSEPORT). Each has an index of its own, fed
by the same events; what is in flight they share in memory. A process that dies is started again,
and what it had in flight is forgotten. The parent serves the admin port for all of them.
"""

import asyncio
import logging
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette

from expediter.clock import Clock
from expediter.config import GatewayConfig
from expediter.errors import ConfigError, GatewayFailed
from expediter.gateway.admin import AdminServer
from expediter.gateway.operator import Operator
from expediter.gateway.processes_operator import ProcessesOperator
from expediter.gateway.reconfigure import settled
from expediter.gateway.restarts import RestartPause
from expediter.gateway.shared_load import LoadTable, SharedWork, create_memory
from expediter.gateway.standing_orders import StandingOrders

logger = logging.getLogger(__name__)

CONFIG_ERROR_STATUS = 2
KILL_SECONDS = 5.0  # beyond what requests may take to finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process of several is given: its number, and descriptors of its parent's."""

    number: int
    num_processes: int
    load_fd: int
    admin_fd: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """What `render` gave."""
        number, num_processes, load_fd, admin_fd = map(int, text.split(","))
        return cls(number=number, num_processes=num_processes, load_fd=load_fd, admin_fd=admin_fd)

    def render(self) -> str:
        """As an argument of the process."""
        return f"{self.number},{self.num_processes},{self.load_fd},{self.admin_fd}"

    def work(self, clock: Clock) -> SharedWork:
        """What is in flight, in this process's row."""
        return SharedWork(LoadTable(self.load_fd, self.num_processes), self.number, clock=clock)

    def admin_socket(self) -> socket.socket:
        """Where the parent asks this process."""
        return socket.socket(fileno=self.admin_fd)


CreateAdmin = Callable[[Operator, GatewayConfig, Callable[[], int]], Starlette]
"""The admin port's application, of what it operates and the gateway's port."""


async def serve_processes(
    read: Callable[[], GatewayConfig], *, command: list[str], create_admin: CreateAdmin
) -> None:
    """Serve until SIGINT or SIGTERM; `command` and a share run one process.

    Raises ConfigError or GatewayFailed if the processes cannot serve.
    """
    config = read()
    folder = Path(tempfile.mkdtemp(prefix="expediter-"))
    try:
        with _ReservedPort(config) as port:
            parent = _Parent(config, [*command, "--port", str(port)], folder)
            admin = create_admin(parent.operator, config, lambda: port)
            await parent.run(read, port, admin)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Parent:
    def __init__(self, config: GatewayConfig, command: list[str], folder: Path) -> None:
        self._config = self._read_config = config
        self._command = command
        self._load_fd = create_memory(config.processes)
        self._table = LoadTable(self._load_fd, config.processes)
        self._paths = [folder / f"{number}.sock" for number in range(config.processes)]
        self._listeners = [_unix_listener(path) for path in self._paths]
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._orders = StandingOrders()
        self.operator = ProcessesOperator(self._paths, running=self._running, orders=self._orders)

    async def run(self, read: Callable[[], GatewayConfig], port: int, app: Starlette) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload, read)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        admin = self._admin(port, app)
        if admin is not None:
            await admin.start()
        keepers = [asyncio.create_task(self._keep(n)) for n in range(self._config.processes)]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((stopped, *keepers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            await self._stop()
            outcomes = await asyncio.gather(*keepers, return_exceptions=True)
            if admin is not None:
                await admin.stop()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _admin(self, port: int, app: Starlette) -> AdminServer | None:
        config = self._config.admin
        if not config.enabled:
            return None
        return AdminServer(app, config, gateway_port=port)

    async def _keep(self, number: int) -> None:
        """Run one process until the end, again and again if need be."""
        loop, pause = asyncio.get_running_loop(), RestartPause()
        while not self._stopping.is_set():
            began = loop.time()
            status = await self._run_one(number)
            self._table.wipe(number)
            if self._stopping.is_set():
                return
            if status == CONFIG_ERROR_STATUS:
                raise GatewayFailed(f"gateway process {number} cannot start: it said why above")
            seconds = pause.after(loop.time() - began)
            logger.error(
                "gateway process %d ended with status %d; starting it again in %g s",
                *(number, status, seconds),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _run_one(self, number: int) -> int:
        share = Share(
            number=number,
            num_processes=self._config.processes,
            load_fd=self._load_fd,
            admin_fd=self._listeners[number].fileno(),
        )
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "--share",
            share.render(),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(share.load_fd, share.admin_fd),
            start_new_session=True,
        )
        self._running[number] = process
        if self._stopping.is_set():
            process.terminate()
        restoring = asyncio.create_task(self.operator.restore(number))
        try:
            return await process.wait()
        finally:
            restoring.cancel()
            del self._running[number]

    async def _stop(self) -> None:
        self._stopping.set()
        self._pass_on(signal.SIGTERM)
        waits = [asyncio.create_task(p.wait()) for p in self._running.values()]
        if waits:
            await asyncio.wait(waits, timeout=self._config.shutdown_seconds + KILL_SECONDS)
            self._pass_on(signal.SIGKILL)
            await asyncio.wait(waits)

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)

    def _reload(self, read: Callable[[], GatewayConfig]) -> None:
        """Let every process read the settings again, unless they cannot be used."""
        try:
            new = read()
            self._orders.overrule(self._read_config, new)
        except ConfigError as error:
            logger.error("the settings stay as they were: %s", error)
            self._pass_on(signal.SIGUSR1)
            return
        self._read_config = new
        self._config = settled(self._config, new)[0]
        self._pass_on(signal.SIGHUP)


class _ReservedPort:
    """The port is held, not listened on, so that it stays ours while no process is up."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        self._socket = socket.socket(family)

    def __enter__(self) -> int:
        config = self._config
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((config.host, config.port))
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from None
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _unix_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener
