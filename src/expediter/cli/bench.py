"""`expediter bench`: a workload against a live endpoint."""

from pathlib import Path
from typing import Annotated

import typer

from expediter import assemble

app = typer.Typer()
File = Annotated[Path | None, typer.Argument(help="A TOML file with the same keys; arguments win.")]
Workload = Annotated[str | None, typer.Option(help="What is generated: chat, agents, demo, ...")]
Scale = Annotated[float | None, typer.Option(help="Texts so many times as long.")]
MaxConcurrency = Annotated[
    int | None, typer.Option(help="Hold requests back beyond so many open ones.")
]
IgnoreEos = Annotated[
    bool | None, typer.Option(help="Ask for answers of just the length that the workload has.")
]
WordsPerToken = Annotated[
    float | None, typer.Option(help="Measured with two short requests if not given.")
]
Warmup = Annotated[float | None, typer.Option(help="Share of the requests that is not counted.")]


@app.command()
def bench(
    file: File = None,
    url: Annotated[str | None, typer.Option(help="An OpenAI endpoint: http://host:port.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the first that is listed.")] = None,
    api: Annotated[str | None, typer.Option(help="chat or completions.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Default: OPENAI_API_KEY.")] = None,
    workload: Workload = None,
    trace: Annotated[str | None, typer.Option(help="What is replayed instead: a file.")] = None,
    format: Annotated[  # noqa: A002 - the name of the option and of the key
        str | None, typer.Option(help="Of the trace: mooncake, azure, burstgpt or workload.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many; of a trace, the first.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal requests.")] = None,
    scale: Scale = None,
    max_concurrency: MaxConcurrency = None,
    timeout: Annotated[float | None, typer.Option(help="Of an answer, seconds.")] = None,
    ignore_eos: IgnoreEos = None,
    words_per_token: WordsPerToken = None,
    warmup: Warmup = None,
    ttft: Annotated[float | None, typer.Option(help="Service level, seconds.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Service level, seconds.")] = None,
    e2e: Annotated[float | None, typer.Option(help="Service level, seconds.")] = None,
    json: Annotated[str | None, typer.Option(help="Where to write all figures.")] = None,
    csv: Annotated[str | None, typer.Option(help="Where to write a row a class.")] = None,
    parquet: Annotated[str | None, typer.Option(help="The same rows as Parquet.")] = None,
    html: Annotated[str | None, typer.Option(help="Where to write a page with plots.")] = None,
) -> None:
    """Send a workload to a live endpoint, each request when it is due, and measure the answers."""
    arguments = {name.replace("_", "-"): value for name, value in locals().items()}
    path = arguments.pop("file")
    given = {key: value for key, value in arguments.items() if value is not None}
    assemble.run_bench(path, flags=given)
