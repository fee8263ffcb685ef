"""The plan: who listens where, told what; no process runs here."""

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from expediter.config import Config, EngineConfig, FleetConfig, GatewayConfig, WorkerConfig
from expediter.errors import ConfigError
from expediter.fleet.plan import (
    local_url,
    plan_fleet,
    plan_workers,
    require_free_port,
    some_free_port,
)
from expediter.settings import load_config


def fleet(num_workers: int = 3) -> Config:
    return Config(
        fleet=FleetConfig(num_workers=num_workers),
        gateway=GatewayConfig(port=some_free_port("127.0.0.1")),
        worker=WorkerConfig(engine=EngineConfig(model="/models/m"), served_model_name="m"),
    )


def test_every_worker_has_its_own_name_port_and_sockets(tmp_path: Path) -> None:
    config = fleet()
    workers = plan_workers(config, folder=tmp_path)
    assert [worker.worker_id for worker in workers] == ["worker-0", "worker-1", "worker-2"]
    assert len({config.gateway.port, *(worker.port for worker in workers)}) == 4
    assert len({(worker.kv_events, worker.kv_replay) for worker in workers}) == 3
    assert {worker.engine.model for worker in workers} == {"/models/m"}


def test_a_worker_port_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        config = Config(worker=WorkerConfig(port=port))
        assert plan_workers(config, folder=tmp_path)[0].port > port


def test_the_gateway_and_each_worker_read_their_settings_from_a_file(tmp_path: Path) -> None:
    config = fleet(2)
    workers = plan_workers(config, folder=tmp_path)
    gateway, *others = plan_fleet(config, workers, folder=tmp_path)
    told = load_config(Path(gateway.command[-1]), environ={}).gateway
    assert [worker.url for worker in told.workers] == [
        f"http://127.0.0.1:{worker.port}" for worker in workers
    ]
    assert told.tokenizer == "/models/m"
    for spec, worker in zip(others, workers, strict=True):
        assert load_config(Path(spec.command[-1]), environ={}).worker == worker
        assert spec.ready_url == f"http://127.0.0.1:{worker.port}/health"


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use; choose"):
            require_free_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("fd00::1", "http://[fd00::1]:1"),
        ("localhost", "http://localhost:1"),
    ],
)
def test_a_server_is_reached_where_it_listens(host: str, url: str) -> None:
    assert local_url(host, 1) == url


def test_a_fleet_with_roles_has_those_workers_and_tells_everybody(tmp_path: Path) -> None:
    config = fleet()
    config = replace(config, fleet=FleetConfig(num_prefill=1, num_decode=2))
    workers = plan_workers(config, folder=tmp_path)
    roles = {"prefill-0": "prefill", "decode-0": "decode", "decode-1": "decode"}
    assert {worker.worker_id: worker.role for worker in workers} == roles
    gateway = plan_fleet(config, workers, folder=tmp_path)[0]
    told = load_config(Path(gateway.command[-1]), environ={}).gateway
    assert {worker.worker_id: worker.role for worker in told.workers} == roles


def test_each_role_may_be_split_its_own_way(tmp_path: Path) -> None:
    roles = FleetConfig(num_prefill=1, num_decode=1, prefill_tensor_parallel=3)
    config = replace(fleet(), fleet=roles)
    sizes = [worker.engine.tensor_parallel for worker in plan_workers(config, folder=tmp_path)]
    assert sizes == [3, 1]
    alike = replace(config, fleet=FleetConfig(prefill_tensor_parallel=3))
    with pytest.raises(ConfigError, match="there is --tensor-parallel"):
        plan_workers(alike, folder=tmp_path)


def test_one_role_without_the_other_is_an_error(tmp_path: Path) -> None:
    config = replace(fleet(), fleet=FleetConfig(num_prefill=1))
    with pytest.raises(ConfigError, match="need each other"):
        plan_workers(config, folder=tmp_path)
