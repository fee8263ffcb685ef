"""`expediter plan`: how many of what, and will it meet the SLO."""

from pathlib import Path
from typing import Annotated, Any

import typer

from expediter import assemble
from expediter.errors import ConfigError
from expediter.settings import as_settings

app = typer.Typer(no_args_is_help=True)


@app.callback()
def plan() -> None:
    """Size a fleet: how many of what, and will it meet the SLO."""


@app.command()
def size(
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file with the same keys; arguments win.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A name, or a folder with config.json.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="float16, bfloat16, fp8 or float32.")] = None,
    weight_dtype: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    gpu: Annotated[str | None, typer.Option(help="a100, h100, h200, ...")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of a replica, tensor parallel.")] = None,
    memory_share: Annotated[float | None, typer.Option(help="Of it, for weights and KV.")] = None,
    replicas: Annotated[int | None, typer.Option(help="How many there are now.")] = None,
    cost: Annotated[str | None, typer.Option(help="Of steps, as in simulate.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    shared: Annotated[int | None, typer.Option(help="Prompt tokens that all share.")] = None,
    history: Annotated[int | None, typer.Option(help="... of the same conversation.")] = None,
    new: Annotated[int | None, typer.Option(help="... that are new.")] = None,
    output: Annotated[int | None, typer.Option(help="Output tokens.")] = None,
    hit_rate: Annotated[float | None, typer.Option(help="Instead of the expected one.")] = None,
    cache_tokens: Annotated[int | None, typer.Option(help="Of a replica, if not all.")] = None,
    ttft: Annotated[float | None, typer.Option(help="Target, seconds.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Target, seconds.")] = None,
    link: Annotated[
        list[str] | None, typer.Option(help="nvlink4, nic400, 25GB/s, ...; may be repeated.")
    ] = None,
    links: Annotated[int | None, typer.Option(help="In parallel; by default one a GPU.")] = None,
    offload: Annotated[str | None, typer.Option(help="The link to a slower tier.")] = None,
    uplink: Annotated[str | None, typer.Option(help="A robot's link to the cloud.")] = None,
    prompt_bytes: Annotated[float | None, typer.Option(help="Of the prompt, on it.")] = None,
    pools: Annotated[str | None, typer.Option(help="GPUs for prefill and decode: 2:1.")] = None,
    pool_rates: Annotated[
        str | None, typer.Option(help="Requests/s that one GPU of each serves: 5.6:10.")
    ] = None,
    colocated_rate: Annotated[float | None, typer.Option(help="And one that does both.")] = None,
    json: Annotated[str | None, typer.Option(help="Where to write all figures.")] = None,
) -> None:
    """Memory, hits, replicas and transfers in closed form; seconds, no simulation."""
    path, flags = _flags(
        locals() | {"pools": _pair(pools, int), "pool_rates": _pair(pool_rates, float)}
    )
    assemble.run_size_plan(path, flags=flags)


Workload = Annotated[str | None, typer.Option(help="What is generated: chat, sharegpt, ...")]
Trace = Annotated[str | None, typer.Option(help="What is replayed instead: a file.")]
Format = Annotated[str | None, typer.Option(help="Of the trace: mooncake, azure, ...")]
Ttft = Annotated[float | None, typer.Option(help="Target, seconds.")]
Tpot = Annotated[float | None, typer.Option(help="Target, seconds.")]
Share = Annotated[float | None, typer.Option(help="Of the requests that must be in time.")]
Requests = Annotated[int | None, typer.Option(help="Of one sample.")]
Policy = Annotated[str | None, typer.Option(help="How requests are placed.")]
Caching = Annotated[bool | None, typer.Option(help="Whether prefixes are cached.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting.")
]


@app.command()
def goodput(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; arguments win.")] = None,
    workload: Workload = None,
    trace: Trace = None,
    format: Format = None,  # noqa: A002 - the name of the option and of the key
    ttft: Ttft = None,
    tpot: Tpot = None,
    share: Share = None,
    requests: Requests = None,
    policy: Policy = None,
    prefix_caching: Caching = None,
    cost: Annotated[str | None, typer.Option(help="Model, GPUs and engine of a replica.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Of a replica.")] = None,
    replicas: Annotated[int | None, typer.Option(help="That do both, or only prefill.")] = None,
    decode: Annotated[int | None, typer.Option(help="Replicas that only decode.")] = None,
    decode_cost: Annotated[str | None, typer.Option(help="Of those, if another.")] = None,
    decode_gpus: Annotated[int | None, typer.Option(help="Of one of those.")] = None,
    cache_tokens: Annotated[int | None, typer.Option(help="KV memory of a replica.")] = None,
    budget: Annotated[int | None, typer.Option(help="Tokens a step.")] = None,
    json: Annotated[str | None, typer.Option(help="Where to write all figures.")] = None,
    settings: Set = None,
) -> None:
    """The highest rate at which a deployment meets its service level, by simulation."""
    path, flags = _flags(locals())
    assemble.run_goodput_plan(path, flags=flags)


@app.command()
def search(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; arguments win.")] = None,
    model: Annotated[str | None, typer.Option(help="A name, or a folder with config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="a100, h100, h200, ...")] = None,
    gpus: Annotated[int | None, typer.Option(help="How many there are.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="Of a node.")] = None,
    cost: Annotated[
        str | None, typer.Option(help="Measured step times, {tp} for the size; else a roofline.")
    ] = None,
    workload: Workload = None,
    trace: Trace = None,
    format: Format = None,  # noqa: A002 - the name of the option and of the key
    ttft: Ttft = None,
    tpot: Tpot = None,
    share: Share = None,
    requests: Requests = None,
    policy: Policy = None,
    prefix_caching: Caching = None,
    price: Annotated[float | None, typer.Option(help="Dollars of a GPU and hour.")] = None,
    processes: Annotated[int | None, typer.Option(help="By default one a core.")] = None,
    ray: Annotated[bool | None, typer.Option(help="On a Ray cluster.")] = None,
    json: Annotated[str | None, typer.Option(help="Where to write all figures.")] = None,
    plot: Annotated[str | None, typer.Option(help="Where to write a page with a plot.")] = None,
    config: Annotated[str | None, typer.Option(help="Where to write the gateway's file.")] = None,
    commands: Annotated[str | None, typer.Option(help="Where to write engines' commands.")] = None,
    settings: Set = None,
) -> None:
    """The deployment with the most requests a GPU within the service level."""
    path, flags = _flags(locals())
    assemble.run_search_plan(path, flags=flags)


@app.command()
def watch(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; arguments win.")] = None,
    gateway: Annotated[str | None, typer.Option(help="URL of its admin port.")] = None,
    token: Annotated[str | None, typer.Option(help="Of the admin port.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How far to look back.")] = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    share: Share = None,
    cost: Annotated[str | None, typer.Option(help="Of a worker, as calibrate writes it.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Of a worker.")] = None,
    cache_tokens: Annotated[int | None, typer.Option(help="KV memory of a worker.")] = None,
    max_workers: Annotated[int | None, typer.Option(help="To try.")] = None,
    json: Annotated[str | None, typer.Option(help="Where to write all figures.")] = None,
    settings: Set = None,
) -> None:
    """What other policies, pools and sizes would make of a live gateway's last minutes."""
    path, flags = _flags(locals())
    assemble.run_watch_plan(path, flags=flags)


@app.command()
def facts() -> None:
    """The GPUs, links and models known by name, each with its source."""
    assemble.show_facts()


def _flags(arguments: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """A command's file, and what was given besides, by the names of settings."""
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    path, others = named.pop("file"), named.pop("settings", None)
    return path, {k: v for k, v in named.items() if v is not None} | as_settings(others or ())


def _pair(text: str | None, kind: type[int] | type[float]) -> list[float] | None:
    """`2:1` as two numbers."""
    if text is None:
        return None
    try:
        first, second = (kind(part) for part in text.split(":"))
    except ValueError:
        raise ConfigError(f"{text}: write prefill and decode as {kind(2)}:{kind(1)}") from None
    return [first, second]
