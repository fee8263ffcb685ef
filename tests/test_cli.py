"""The command line as a person meets it: in a process of its own."""

import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from expediter.config import Config
from expediter.settings import check


def expediter(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "expediter", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_version_prints_the_installed_version() -> None:
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    run = expediter("version")
    assert (run.returncode, run.stdout.strip()) == (0, project["project"]["version"])


def test_config_check_prints_the_whole_configuration(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[fleet]\nnum-workers = 5\n")
    run = expediter("config", "check", str(file), "--set", "gateway.port=9000")
    assert run.returncode == 0
    config = check(tomllib.loads(run.stdout))
    assert (config.fleet.num_workers, config.gateway.port) == (5, 9000)
    assert config.worker == Config().worker


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("config", "check", "none.toml"), "error: none.toml: No such file or directory"),
        (
            ("up", "--set", "gateway.prot=1"),
            "error: gateway.prot: unknown key; did you mean port?",
        ),
        (
            ("serve", "--worker", "http://a", "--policy", "best"),
            "error: gateway.routing.policy: Invalid enum value 'best'; allowed are cache-aware, "
            "dynamo, least-loaded, power-of-two, preble, random, round-robin, sglang, "
            "slo, sticky",
        ),
        (
            ("--log-level", "loud", "version"),
            "error: --log-level loud: use debug, info, warning or error",
        ),
        (
            ("serve",),
            "error: no workers: name them with --worker URL or in [[gateway.workers]], "
            "or say in [gateway.discovery] where to find them",
        ),
    ],
)
def test_what_the_operator_has_to_fix_is_one_line_and_status_2(
    arguments: tuple[str, ...], message: str
) -> None:
    run = expediter(*arguments)
    assert (run.returncode, run.stderr.strip(), run.stdout) == (2, message, "")


@pytest.mark.parametrize("command", ["up", "worker"])
def test_a_model_that_is_not_there_is_one_line_and_status_2(command: str, tmp_path: Path) -> None:
    run = expediter(command, "--model", str(tmp_path / "none"), "--port", "0")
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode == 2
    assert last.startswith("error: ")
    assert str(tmp_path / "none") in last
    assert "Traceback" not in run.stderr


def test_a_folder_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    config = dict.fromkeys((*sizes, "num_attention_heads"), 8) | {"model_type": "mamba"}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    run = expediter("up", "--workers", "1", "--model", str(tmp_path), "--port", "0")
    assert run.returncode == 2
    assert "mamba" in run.stderr.strip().splitlines()[-1].lower()


def test_up_says_at_once_that_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        run = expediter("up", "--model", __file__, "--port", str(port))
    assert run.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in run.stderr


def test_neither_the_command_line_nor_the_gateway_imports_torch() -> None:
    code = (
        "import sys, expediter.cli, expediter.gateway.server\n"
        "sys.exit(' '.join(sorted({'torch', 'safetensors', 'gguf'} & set(sys.modules))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stderr.strip() == ""
