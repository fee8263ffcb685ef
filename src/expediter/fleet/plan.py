"""From one config to the processes of a fleet: who listens where, told what.

Everything a process is told goes into its own TOML file in the fleet's runtime folder, next
to its log and its ZeroMQ sockets. The folder is private to the user and goes with the fleet.
"""

import socket
import sys
from collections.abc import Container, Sequence
from pathlib import Path

from msgspec.structs import replace

from expediter.config import Config, WorkerConfig, WorkerEndpoint
from expediter.errors import ConfigError
from expediter.fleet.process import ProcessSpec
from expediter.load import WorkerRole
from expediter.settings import to_toml

# Workers share the cores: one that waits for work must not spin on a core that another needs.
# Measured on two cores that others used too (docs/benchmarks.md), tokens a second of one worker
# and of three together: 196 and 371 without spinning, 147 and 135 with GOMP_SPINCOUNT=1000.
# gguf and tokenizers would start a thread pool a process that nothing here uses.
THREAD_DEFAULTS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}

ADMIN_DISTANCE = 1000
FIRST_PORT, LAST_PORT = 1024, 65535


def with_ports(config: Config) -> Config:
    """The gateway's port and its admin port as numbers, so that they can be told beforehand."""
    gateway = config.gateway
    if gateway.port == 0:
        gateway = replace(gateway, port=some_free_port(gateway.host))
    admin = gateway.admin
    if admin.enabled and not admin.port:
        first = gateway.port + ADMIN_DISTANCE
        if first > LAST_PORT:
            first = FIRST_PORT
        admin = replace(admin, port=_free_port(admin.host, first, {gateway.port}))
    return replace(config, gateway=replace(gateway, admin=admin))


def plan_workers(config: Config, *, folder: Path) -> list[WorkerConfig]:
    """`config.worker` once for each worker, with its own name, port and sockets."""
    first = config.worker.port or config.gateway.port + 1
    taken = {config.gateway.port, config.gateway.admin.port}
    workers = []
    for name, role in worker_roles(config):
        port = _free_port(config.worker.host, first, taken)
        taken.add(port)
        sockets = {"kv_events": f"{name}.events", "kv_replay": f"{name}.replay"}
        endpoints = {key: f"ipc://{folder / file}" for key, file in sockets.items()}
        engine = replace(config.worker.engine, tensor_parallel=_tensor_parallel(config, role))
        worker = replace(config.worker, worker_id=name, role=role, port=port, engine=engine)
        workers.append(replace(worker, **endpoints))
    return workers


def _tensor_parallel(config: Config, role: str) -> int:
    """How many processes a worker with that role is split over."""
    fleet = config.fleet
    by_role = {"prefill": fleet.prefill_tensor_parallel, "decode": fleet.decode_tensor_parallel}
    return by_role.get(role) or config.worker.engine.tensor_parallel


def worker_roles(config: Config) -> list[tuple[str, str]]:
    """Name and role of each worker; raises ConfigError for settings of roles without both."""
    fleet = config.fleet
    if bool(fleet.num_prefill) != bool(fleet.num_decode):
        raise ConfigError(
            "fleet.num-prefill and fleet.num-decode (--prefill, --decode) need each other: "
            "a fleet with one of them has to have both"
        )
    if not fleet.num_prefill:
        if fleet.prefill_tensor_parallel or fleet.decode_tensor_parallel:
            raise ConfigError(
                "fleet.prefill-tensor-parallel and fleet.decode-tensor-parallel need --prefill and "
                "--decode; for all workers there is --tensor-parallel"
            )
        return [(f"worker-{n}", config.worker.role) for n in range(fleet.num_workers)]
    counts = {"prefill": fleet.num_prefill, "decode": fleet.num_decode}
    return [(f"{role}-{n}", role) for role, count in counts.items() for n in range(count)]


def plan_fleet(
    config: Config, workers: Sequence[WorkerConfig], *, folder: Path
) -> list[ProcessSpec]:
    """The gateway and its workers as commands; writes each one's file into `folder`."""
    urls = {worker.worker_id: local_url(worker.host, worker.port) for worker in workers}
    endpoints = (
        WorkerEndpoint(url=urls[w.worker_id], worker_id=w.worker_id, role=WorkerRole(w.role))
        for w in workers
    )
    gateway = replace(
        config.gateway,
        workers=tuple(endpoints),
        tokenizer=config.gateway.tokenizer or config.worker.engine.model,
    )
    front = local_url(gateway.host, gateway.port)
    # A gateway is ready once it has a worker.
    commands = [("gateway", "serve", Config(gateway=gateway), f"{front}/ready")]
    for worker in workers:
        name = worker.worker_id
        commands.append((name, "worker", Config(worker=worker), f"{urls[name]}/health"))
    return [
        _spec(name, told, command=command, ready_url=ready_url, folder=folder)
        for name, command, told, ready_url in commands
    ]


def _spec(name: str, told: Config, *, command: str, ready_url: str, folder: Path) -> ProcessSpec:
    """A process that runs one of `expediter`'s commands, with its settings in a file."""
    file = folder / f"{name}.toml"
    file.write_text(to_toml(told), "utf-8")
    expediter = (sys.executable, "-m", "expediter", "--with-parent")
    return ProcessSpec(
        name=name,
        command=(*expediter, command, "--config", str(file)),
        ready_url=ready_url,
        log=folder / f"{name}.log",
    )


def require_free_port(host: str, port: int) -> None:
    """Raise ConfigError if nobody can listen there."""
    problem = _why_not(host, port)
    if problem is not None:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {problem}; choose another port with --port"
        )


def some_free_port(host: str) -> int:
    """A port the system says is free."""
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _free_port(host: str, first: int, taken: Container[int | None]) -> int:
    """The first free port from `first` on: outside the range that outgoing calls draw from."""
    for port in range(first, LAST_PORT + 1):
        if port not in taken and _why_not(host, port) is None:
            return port
    raise ConfigError(f"no free port on {host} from {first} on")


def _why_not(host: str, port: int) -> str | None:
    with _socket(host) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _socket(host: str) -> socket.socket:
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # As servers do: a port in TIME_WAIT is free.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return opened


def local_url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"
