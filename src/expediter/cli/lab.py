"""`expediter lab`: the page to learn in, on this machine alone."""

from typing import Annotated

import typer
from rich.console import Console

from expediter import assemble

app = typer.Typer()
DEFAULT_PORT = 8090


@app.command()
def lab(
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = DEFAULT_PORT,
) -> None:
    """Serve a page to learn in: routing, transfers and bursts, as sliders move."""
    console = Console(highlight=False, soft_wrap=True)
    assemble.run_lab(
        host=host, port=port, announce=lambda address: console.print(f"The lab is at {address}")
    )
