"""`expediter config`: look at configuration files."""

import sys
from pathlib import Path

import typer

from expediter.cli.options import Set, load
from expediter.settings import to_toml

app = typer.Typer(no_args_is_help=True)


@app.callback()
def configuration() -> None:
    """Look at configuration files."""


@app.command("check")
def check_config(file: Path, settings: Set = None) -> None:
    """Print the whole configuration that FILE and the environment give, or what is wrong."""
    sys.stdout.write(to_toml(load(file, settings, {})))
