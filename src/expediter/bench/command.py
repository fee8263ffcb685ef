"""What `expediter bench` does: sends a workload to an endpoint, shows what came, and keeps it."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from rich.console import Console

from expediter.bench.endpoint import open_endpoint, require_aiohttp
from expediter.bench.load import LoadGenerator
from expediter.bench.report import BenchReport, bench_report
from expediter.bench.settings import DEFAULT_RATE, DEFAULT_REQUESTS, BenchConfig
from expediter.bench.tables import html_page, tables, to_rows, warning
from expediter.bench.texts import Writer, scaled, words_per_token
from expediter.errors import EndpointError
from expediter.results.figures import require_plots
from expediter.results.files import require_folders, save
from expediter.results.progress import progress
from expediter.results.rows import require_parquet, to_csv, write_parquet
from expediter.workload.catalog import DEFAULT_WORKLOAD, named_workload, read_trace
from expediter.workload.turn import Turn

TABLE_WIDTH = 170
"""Columns where no terminal says how many there are."""

Found = TypeVar("Found")
RunLoop = Callable[[Coroutine[Any, Any, Found]], Found]
"""`asyncio.run`, or one on a faster loop."""


def run(config: BenchConfig, *, run_loop: RunLoop[BenchReport]) -> None:
    """Tables to standard output, files where the settings say, progress to a terminal.

    Raises ConfigError, WorkloadError, or EndpointError if not a single request was answered.
    """
    _check(config)
    turns = workload(config)
    found = run_loop(measure(config, turns))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    for table in tables(found):
        console.print(table)
    _write(config, found)
    if (said := warning(found)) is not None:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"warning: {said}")
    if all(row.error is not None for row in found.requests):
        kinds = ", ".join(found.classes[0].errors)
        raise EndpointError(f"none of {len(found.requests)} requests was answered: {kinds}")


async def measure(config: BenchConfig, turns: list[Turn]) -> BenchReport:
    """One run against the live endpoint."""
    async with open_endpoint(config) as endpoint:
        model = await endpoint.model()
        words = config.words_per_token
        if words is None:
            words = await words_per_token(endpoint, model, api=config.api)
        writer = Writer(config, model=model.id, words_per_token=words)
        writer.prepare(turns)
        with progress("requests answered", total=len(turns)) as on_answer:
            generator = LoadGenerator(
                endpoint, writer, max_concurrency=config.max_concurrency, on_answer=on_answer
            )
            load = await generator.run(turns)
    return bench_report(load, model=model.id, objectives=config.objectives, warmup=config.warmup)


def workload(config: BenchConfig) -> list[Turn]:
    """The requests, as many and as fast as the settings say."""
    if config.trace is not None:
        assert config.format is not None
        path = Path(config.trace).expanduser()
        turns = read_trace(path, form=config.format, num_requests=config.requests, rate=config.rate)
    else:
        turns = list(
            named_workload(
                config.workload or DEFAULT_WORKLOAD,
                rate=config.rate or DEFAULT_RATE,
                num_requests=config.requests or DEFAULT_REQUESTS,
                seed=config.seed,
            )
        )
    return turns if config.scale == 1 else list(scaled(turns, config.scale))


def to_json(config: BenchConfig, report: BenchReport) -> bytes:
    """The report with each request, and the settings without the key."""
    settings = replace(config, api_key=None, json=None, csv=None, parquet=None, html=None)
    return msgspec.json.format(msgspec.json.encode({"bench": settings, "report": report}), indent=2)


def _check(config: BenchConfig) -> None:
    require_aiohttp()
    require_folders([config.json, config.csv, config.parquet, config.html])
    if config.parquet:
        require_parquet()
    if config.html:
        require_plots()


def _write(config: BenchConfig, found: BenchReport) -> None:
    if config.json:
        save(config.json, to_json(config, found) + b"\n")
    if config.csv:
        save(config.csv, to_csv(to_rows(found)))
    if config.parquet:
        write_parquet(Path(config.parquet).expanduser(), to_rows(found))
    if config.html:
        save(config.html, html_page(found, title=f"Benchmark: {found.model} at {config.url}"))
