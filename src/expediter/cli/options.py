"""Options that several commands share, and the config they give."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from expediter.config import Config, environment
from expediter.settings import load_config

File = Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file.")]
Model = Annotated[
    str | None,
    typer.Option(help="A Llama-architecture folder or GGUF file. Default: SmolLM2-135M-Instruct."),
]
TensorParallel = Annotated[
    int | None, typer.Option(min=1, help="Processes that a worker's model is split over.")
]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated."),
]


def load(file: Path | None, settings: list[str] | None, flags: dict[str, Any]) -> Config:
    """The file, the environment, `--set` and a command's own options, the last winning."""
    given = {name: value for name, value in flags.items() if value is not None}
    return load_config(file, environ=environment(), overrides=settings or (), flags=given)


def absolute(path: str | None) -> str | None:
    """`path` as the processes of the fleet can use it, wherever they run."""
    return str(Path(path).expanduser().absolute()) if path else path


def this_command() -> list[str]:
    """What starts another process like this one, which ends when this one does."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--with-parent"]
    return [sys.executable, "-m", "expediter", "--with-parent", *arguments]
