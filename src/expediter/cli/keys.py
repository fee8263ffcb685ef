"""`expediter keys`: API keys of the gateway's tenants."""

import sys
from typing import Annotated

import typer

from expediter import assemble

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """API keys of the gateway's tenants."""


@app.command("new")
def new_key(
    tenant: Annotated[str, typer.Argument(help="The tenant-id the key is for.")],
) -> None:
    """Print a new key, which is kept nowhere, and the line to store in the key file."""
    key, line = assemble.new_key(tenant)
    sys.stdout.write(f"{key}\n")
    sys.stdout.write(f"{line}\n")
