"""`up`, `worker`, `serve` and `fetch`: processes that serve, and the model they need."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from expediter import assemble
from expediter.cli.options import (
    File,
    Model,
    Port,
    Set,
    TensorParallel,
    absolute,
    load,
    this_command,
)
from expediter.config import environment

app = typer.Typer()


@app.command()
def up(
    config: File = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers.")] = None,
    prefill: Annotated[int | None, typer.Option(min=1, help="How many for prefill.")] = None,
    decode: Annotated[int | None, typer.Option(min=1, help="How many for decode.")] = None,
    model: Model = None,
    tensor_parallel: TensorParallel = None,
    prefill_tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Of prefill workers, if another.")
    ] = None,
    decode_tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Of decode workers, if another.")
    ] = None,
    port: Port = None,
    settings: Set = None,
) -> None:
    """Start a gateway and its workers on this machine, and keep them running."""
    flags = {
        "fleet.num-workers": workers,
        "fleet.num-prefill": prefill,
        "fleet.num-decode": decode,
        "fleet.prefill-tensor-parallel": prefill_tensor_parallel,
        "fleet.decode-tensor-parallel": decode_tensor_parallel,
        "worker.engine.model": absolute(model),
        "worker.engine.tensor-parallel": tensor_parallel,
        "gateway.port": port,
    }
    assemble.run_fleet(
        load(config, settings, flags), environ=environment(), console=Console(highlight=False)
    )


@app.command()
def worker(
    config: File = None,
    model: Model = None,
    name: Annotated[str | None, typer.Option("--id", help="The worker's name.")] = None,
    tensor_parallel: TensorParallel = None,
    port: Port = None,
    settings: Set = None,
) -> None:
    """Start one worker: a model behind the OpenAI API."""
    flags = {
        "worker.engine.model": absolute(model),
        "worker.engine.tensor-parallel": tensor_parallel,
        "worker.worker-id": name,
        "worker.port": port,
    }
    assemble.run_worker(load(config, settings, flags).worker, environ=environment())


@app.command()
def serve(
    config: File = None,
    workers: Annotated[
        list[str] | None, typer.Option("--worker", metavar="URL", help="May be repeated.")
    ] = None,
    prefill: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A prefill worker; may be repeated.")
    ] = None,
    decode: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A decode worker; may be repeated.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="How requests are placed.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="The workers' model folder or GGUF.")
    ] = None,
    port: Port = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Gateway processes that share the port.")
    ] = None,
    settings: Set = None,
    share: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start the gateway in front of workers that run already."""
    flags = {
        "gateway.workers": _endpoints(both=workers, prefill=prefill, decode=decode) or None,
        "gateway.routing.policy": policy,
        "gateway.tokenizer": absolute(tokenizer),
        "gateway.port": port,
        "gateway.processes": processes,
    }
    assemble.run_gateway(
        lambda: load(config, settings, flags).gateway, command=this_command(), share=share
    )


def _endpoints(**urls: list[str] | None) -> list[dict[str, str]]:
    """Workers by role, as the file would name them."""
    return [{"url": url, "role": role} for role, named in urls.items() for url in named or ()]


@app.command()
def fetch() -> None:
    """Fetch the default model unless the cache has it, and print its path."""
    sys.stdout.write(f"{assemble.fetch_model(environ=environment())}\n")
