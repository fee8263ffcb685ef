"""`expediter calibrate`: a cost model of a live worker."""

from pathlib import Path
from typing import Annotated

import typer

from expediter import assemble

app = typer.Typer()
Several = Annotated[list[int] | None, typer.Option(help="Tokens; may be repeated.")]


@app.command()
def calibrate(
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file with the same keys; arguments win.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="One idle worker: http://host:port.")] = None,
    out: Annotated[
        str, typer.Option(help="Where to write what simulate --cost takes.")
    ] = "cost.json",
    from_bench: Annotated[
        Path | None, typer.Option(help="Measure nothing; use what bench --json wrote.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the first that is listed.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Default: OPENAI_API_KEY.")] = None,
    lengths: Several = None,
    cached: Several = None,
    batches: Annotated[list[int] | None, typer.Option(help="Requests; may be repeated.")] = None,
    contexts: Several = None,
    output_tokens: Annotated[int | None, typer.Option(help="Of each answer in a batch.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Of every shape; the median counts.")] = None,
) -> None:
    """Time a worker's prefills and decodes, fit a cost model, and write it for the simulator."""
    given = {
        "url": url,
        "model": model,
        "api-key": api_key,
        "lengths": lengths,
        "cached": cached,
        "batches": batches,
        "contexts": contexts,
        "output-tokens": output_tokens,
        "repeats": repeats,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    assemble.run_calibration(file, flags=flags, from_bench=from_bench, out=out)
