"""The command line: arguments in, one config out, and the exit status.

0 is success, 1 a failure, 2 something the person at the keyboard has to fix; that one is a
single line. Nothing here imports the engine, so a gateway runs where torch is not installed.
"""

import logging
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from expediter import assemble, cli_simulate
from expediter.config import Config, environment
from expediter.errors import ConfigError, ExpediterError, ModelLoadError, WorkloadError
from expediter.fleet.process import exit_with_parent
from expediter.settings import load_config, to_toml

FAILED, FIX_IT = 1, 2
LEAVE_SECONDS = 15.0  # what a process may take to leave once its supervisor is gone

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
config_app = typer.Typer(no_args_is_help=True)
app.add_typer(cli_simulate.app)
app.add_typer(config_app, name="config", help="Look at configuration files.")

File = Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file.")]
Model = Annotated[
    str | None,
    typer.Option(help="A Llama-architecture folder or GGUF file. Default: SmolLM2-135M-Instruct."),
]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated."),
]


@app.callback()
def common(
    context: typer.Context,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info (simulate: not by default), warning or error.")
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Serve LLMs from a fleet of engines, each request where its prefix is cached."""
    if log_level is None:  # what simulated workers do is no news
        log_level = "warning" if context.invoked_subcommand == "simulate" else "info"
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise ConfigError(f"--log-level {log_level}: use debug, info, warning or error")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if with_parent:
        exit_with_parent(LEAVE_SECONDS)


@app.command()
def up(
    config: File = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers.")] = None,
    model: Model = None,
    port: Port = None,
    settings: Set = None,
) -> None:
    """Start a gateway and its workers on this machine, and keep them running."""
    flags = {
        "fleet.num-workers": workers,
        "worker.engine.model": _absolute(model),
        "gateway.port": port,
    }
    assemble.run_fleet(
        _load(config, settings, flags), environ=environment(), console=Console(highlight=False)
    )


@app.command()
def worker(
    config: File = None,
    model: Model = None,
    name: Annotated[str | None, typer.Option("--id", help="The worker's name.")] = None,
    port: Port = None,
    settings: Set = None,
) -> None:
    """Start one worker: a model behind the OpenAI API."""
    flags = {
        "worker.engine.model": _absolute(model),
        "worker.worker-id": name,
        "worker.port": port,
    }
    assemble.run_worker(_load(config, settings, flags).worker, environ=environment())


@app.command()
def serve(
    config: File = None,
    workers: Annotated[
        list[str] | None, typer.Option("--worker", metavar="URL", help="May be repeated.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="How requests are placed.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="The workers' model folder or GGUF.")
    ] = None,
    port: Port = None,
    settings: Set = None,
) -> None:
    """Start the gateway in front of workers that run already."""
    flags = {
        "gateway.workers": [{"url": url} for url in workers] if workers else None,
        "gateway.routing.policy": policy,
        "gateway.tokenizer": _absolute(tokenizer),
        "gateway.port": port,
    }
    assemble.run_gateway(_load(config, settings, flags).gateway)


@app.command()
def fetch() -> None:
    """Fetch the default model unless the cache has it, and print its path."""
    sys.stdout.write(f"{assemble.fetch_model(environ=environment())}\n")


@config_app.command("check")
def check_config(file: Path, settings: Set = None) -> None:
    """Print the whole configuration that FILE and the environment give, or what is wrong."""
    sys.stdout.write(to_toml(_load(file, settings, {})))


@app.command()
def version() -> None:
    """Print the installed version."""
    sys.stdout.write(f"{installed_version('expediter')}\n")


def main() -> None:
    """Run the command line; a known failure is one line, not a traceback."""
    try:
        app(prog_name="expediter")
    except (ConfigError, ModelLoadError, WorkloadError) as error:
        _leave(error, FIX_IT)
    except ExpediterError as error:
        _leave(error, FAILED)


def _leave(error: ExpediterError, status: int) -> None:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(status)


def _load(file: Path | None, settings: list[str] | None, flags: dict[str, Any]) -> Config:
    given = {name: value for name, value in flags.items() if value is not None}
    return load_config(file, environ=environment(), overrides=settings or (), flags=given)


def _absolute(path: str | None) -> str | None:
    """`path` as the processes of the fleet can use it, wherever they run."""
    return str(Path(path).expanduser().absolute()) if path else path
