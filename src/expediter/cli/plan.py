"""`expediter plan`: how many of what, and will it meet the SLO."""

from pathlib import Path
from typing import Annotated

import typer

from expediter import assemble
from expediter.errors import ConfigError

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
    arguments = {name.replace("_", "-"): value for name, value in locals().items()}
    path = arguments.pop("file")
    arguments |= {"pools": _pair(pools, int), "pool-rates": _pair(pool_rates, float)}
    assemble.run_size_plan(path, flags={k: v for k, v in arguments.items() if v is not None})


def _pair(text: str | None, kind: type[int] | type[float]) -> list[float] | None:
    """`2:1` as two numbers."""
    if text is None:
        return None
    try:
        first, second = (kind(part) for part in text.split(":"))
    except ValueError:
        raise ConfigError(f"{text}: write prefill and decode as {kind(2)}:{kind(1)}") from None
    return [first, second]
