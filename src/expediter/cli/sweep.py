"""`expediter sweep`: an experiment over a grid of settings."""

from pathlib import Path
from typing import Annotated

import typer

from expediter import assemble

app = typer.Typer()


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment, as `simulate` takes it.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="A setting and its values; may be repeated."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Where rows are kept (JSON lines); what is there is not run.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; one a core if not given.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster instead.")] = False,
    csv: Annotated[str | None, typer.Option(help="Where to write a row a cell.")] = None,
    parquet: Annotated[str | None, typer.Option(help="The same rows as Parquet.")] = None,
    html: Annotated[str | None, typer.Option(help="Where to write a page with maps.")] = None,
) -> None:
    """Simulate every combination of some settings' values."""
    files = {"csv": csv, "parquet": parquet, "html": html}
    assemble.run_sweep(
        file,
        vary=vary or [],
        flags={name: value for name, value in files.items() if value is not None},
        out=out,
        jobs=jobs,
        on_ray=ray,
    )
