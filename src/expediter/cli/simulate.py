"""`expediter simulate`: an experiment from a file and arguments."""

from pathlib import Path
from typing import Annotated

import typer

from expediter import assemble

app = typer.Typer()

File = Annotated[Path | None, typer.Argument(help="A TOML file with the same keys; arguments win.")]
Near = Annotated[float | None, typer.Option(help="Gb/s of a GPU's links within a node.")]
Far = Annotated[float | None, typer.Option(help="Gb/s of a GPU's links to other nodes.")]

_LINKS = {"intra_node_gbps", "inter_node_gbps", "latency_us", "workers_per_node"}


@app.command()
def simulate(
    file: File = None,
    workload: Annotated[
        str | None, typer.Option(help="What is generated: chat, agents, demo, ...")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="What is replayed instead: a file.")] = None,
    format: Annotated[  # noqa: A002 - the name of the option and of the key
        str | None, typer.Option(help="Of the trace: mooncake, azure, burstgpt or workload.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many; of a trace, the first.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal results.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many workers.")] = None,
    prefill: Annotated[int | None, typer.Option(help="How many for prefill.")] = None,
    decode: Annotated[int | None, typer.Option(help="How many for decode.")] = None,
    both: Annotated[int | None, typer.Option(help="How many for either, beside those.")] = None,
    intra_node_gbps: Near = None,
    inter_node_gbps: Far = None,
    latency_us: Annotated[float | None, typer.Option(help="Of a link, in microseconds.")] = None,
    workers_per_node: Annotated[int | None, typer.Option(help="How many share a node.")] = None,
    cost: Annotated[str | None, typer.Option(help="Model, GPUs and engine of a worker.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens in a block.")] = None,
    cache_tokens: Annotated[int | None, typer.Option(help="KV memory of a worker.")] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Share of the requests that is not counted.")
    ] = None,
    ttft: Annotated[float | None, typer.Option(help="Service level, seconds.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Service level, seconds.")] = None,
    e2e: Annotated[float | None, typer.Option(help="Service level, seconds.")] = None,
    json: Annotated[str | None, typer.Option(help="Where to write all figures.")] = None,
    csv: Annotated[str | None, typer.Option(help="Where to write a row a policy.")] = None,
    parquet: Annotated[str | None, typer.Option(help="The same rows as Parquet.")] = None,
    html: Annotated[str | None, typer.Option(help="Where to write a page with plots.")] = None,
) -> None:
    """Simulate a fleet of workers under each of several routing policies."""
    arguments = {_key(name): value for name, value in locals().items()}
    path = arguments.pop("file")
    given = {key: value for key, value in arguments.items() if value is not None}
    assemble.run_experiment(path, flags=given)


def _key(name: str) -> str:
    """The setting that an option is of."""
    key = name.replace("_", "-")
    return f"links.{key}" if name in _LINKS else key
