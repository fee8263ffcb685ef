"""The command line: arguments in, one config out, and the exit status.

0 is success, 1 a failure, 2 something the person at the keyboard has to fix; that one is a
single line. Nothing here imports the engine, so a gateway runs where torch is not installed.
"""

import logging
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from expediter.cli import bench, calibrate, configuration, keys, lab, plan, serving, simulate, sweep
from expediter.errors import ConfigError, ExpediterError, ModelLoadError, WorkloadError
from expediter.fleet.process import exit_with_parent

FAILED, FIX_IT = 1, 2
QUIET = {"simulate", "sweep", "bench", "calibrate", "plan"}  # simulated failures are no news
LEAVE_SECONDS = 15.0  # what a process may take to leave once its supervisor is gone

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(serving.app)
app.add_typer(simulate.app)
app.add_typer(sweep.app)
app.add_typer(bench.app)
app.add_typer(calibrate.app)
app.add_typer(lab.app)
app.add_typer(plan.app, name="plan")
app.add_typer(configuration.app, name="config")
app.add_typer(keys.app, name="keys")


@app.callback()
def common(
    context: typer.Context,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Serve LLMs from a fleet of engines, each request where its prefix is cached."""
    if log_level is None:
        log_level = "error" if context.invoked_subcommand in QUIET else "info"
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise ConfigError(f"--log-level {log_level}: use debug, info, warning or error")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if with_parent:
        exit_with_parent(LEAVE_SECONDS)


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
