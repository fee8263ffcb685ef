"""Ports that are chosen beforehand, and what `up` says once the fleet is ready."""

import socket
from io import StringIO
from pathlib import Path

from rich.console import Console

from expediter.config import AdminConfig, Config, GatewayConfig
from expediter.fleet.plan import with_ports
from expediter.fleet.welcome import Welcome


def test_ports_are_numbers_before_anything_starts() -> None:
    config = with_ports(Config(gateway=GatewayConfig(port=0)))
    gateway = config.gateway
    assert gateway.port > 0
    assert gateway.admin.port not in (None, 0, gateway.port)
    assert with_ports(config) == config


def test_an_admin_port_that_is_taken_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        config = with_ports(Config(gateway=GatewayConfig(port=taken - 1000)))
    assert config.gateway.admin.port not in (None, taken)


def test_a_gateway_on_a_high_port_gets_an_admin_port_too() -> None:
    admin = with_ports(Config(gateway=GatewayConfig(port=65000))).gateway.admin
    assert admin.port is not None
    assert 1024 <= admin.port <= 65535


def test_no_admin_port_is_chosen_where_it_is_off() -> None:
    config = Config(gateway=GatewayConfig(port=8000, admin=AdminConfig(enabled=False)))
    assert with_ports(config) == config


def test_what_up_says_has_the_pages_address_whole() -> None:
    console = Console(file=StringIO(), width=40)
    told = {"api": "http://127.0.0.1:8000/v1", "model": "m", "logs": Path("/run/fleet")}
    Welcome(page="http://127.0.0.1:9000", **told).show(console)  # type: ignore[arg-type]
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "talk to it: http://127.0.0.1:9000\n" in said
    assert "http://127.0.0.1:8000/v1/chat/completions" in said
    Welcome(page=None, **told).show(console)  # type: ignore[arg-type]
    assert console.file.getvalue().count("talk to it") == 1  # type: ignore[attr-defined]
