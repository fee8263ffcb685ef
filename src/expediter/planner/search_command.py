"""What `expediter plan goodput` and `expediter plan search` show and write."""

import os
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from expediter.config import RoutingConfig, SchedulerConfig
from expediter.planner import launch
from expediter.planner.command import TABLE_WIDTH
from expediter.planner.deployment import Deployment, Instance, Pool
from expediter.planner.goodput import Goodput
from expediter.planner.links import named_link
from expediter.planner.search import Found, PlacementSearch, pareto
from expediter.planner.settings import GoodputConfig, SearchConfig
from expediter.planner.trial import Policy, Stage, Trial, run_trial, traffic_of
from expediter.results import figures
from expediter.results.cells import empty, percent
from expediter.results.files import require_folders, save
from expediter.results.page import Page
from expediter.simulation.catalog import named_cost
from expediter.simulation.runners import Runner, in_processes, on_ray
from expediter.simulation.study import BuildPolicy


def run_goodput(config: GoodputConfig, *, build_policy: BuildPolicy) -> None:
    """One row to standard output, and all to the file that the settings name."""
    require_folders([config.json])
    deployment = goodput_deployment(config)
    routing = RoutingConfig(policy=config.policy, block_size=config.block_size)
    found = run_trial(
        Trial(
            deployment=deployment,
            stage=Stage.WHOLE,
            traffic=traffic_of(config),
            policy=Policy(build=build_policy, config=routing),
            start=1.0,
        )
    )
    table = _table("Goodput")
    table.add_row(deployment.name, "", *_cells(deployment, found))
    _console().print(table)
    if config.json:
        save(config.json, _json([_row(deployment, found)]))


def goodput_deployment(config: GoodputConfig) -> Deployment:
    """What the settings describe; raises ConfigError for unknown names."""
    # A pool of its own takes whole prompts: chunks are for decodes that would wait.
    both = SchedulerConfig(
        max_batched_tokens=config.budget,
        max_running=config.max_running,
        chunked_prefill=config.decode is None,
    )
    first = Instance(tp=config.gpus, cost=named_cost(config.cost), kv_tokens=config.cache_tokens)
    pool = Pool(
        instance=first,
        num_instances=config.replicas,
        scheduler=both,
        prefix_caching=config.prefix_caching,
    )
    if config.decode is None:
        return Deployment(prefill=pool, block_size=config.block_size)
    second = Instance(
        tp=config.decode_gpus or config.gpus,
        cost=named_cost(config.decode_cost or config.cost),
        kv_tokens=config.decode_tokens or config.cache_tokens,
    )
    links = config.links or min(first.num_gpus, second.num_gpus)
    return Deployment(
        prefill=pool,
        decode=Pool(instance=second, num_instances=config.decode, scheduler=both),
        transfer_seconds=config.kv_bytes / (links * named_link(config.transfer).bytes_per_second),
        block_size=config.block_size,
    )


def run_search(config: SearchConfig, *, build_policy: BuildPolicy) -> None:
    """The best deployments as a table, and what the settings ask for as files."""
    require_folders([config.json, config.plot, config.config, config.commands])
    if config.plot:
        figures.require_plots()
    found = _search(PlacementSearch(config, build_policy=build_policy), _runner(config))
    front = pareto(found)
    table = _table("Deployments that meet the service level, best first", price=config.price)
    for each in found:
        mark = " *" if each in front else ""
        cells = _cells(each.deployment, each.goodput, price=config.price)
        table.add_row(each.deployment.name + mark, each.candidate.kind, *cells)
    console = _console()
    console.print(table)
    console.print("* nobody has more goodput with as few GPUs")
    _write(config, found, front)


def _search(search: PlacementSearch, runner: Runner) -> list[Found]:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("goodputs found", total=None)
        return search.run(
            runner=runner,
            on_trial=lambda done, of: progress.update(task, completed=done, total=of),
        )


def _runner(config: SearchConfig) -> Runner:
    return on_ray if config.ray else in_processes(config.processes or os.cpu_count() or 1)


def _write(config: SearchConfig, found: Sequence[Found], front: Sequence[Found]) -> None:
    best = launch.processes(found[0].deployment, gpus_per_node=config.gpus_per_node)
    if config.json:
        rows = [
            _row(each.deployment, each.goodput)
            | {"kind": each.candidate.kind, "predicted": each.candidate.predicted}
            | {"is_on_front": each in front}
            for each in found
        ]
        save(config.json, _json(rows))
    if config.plot:
        save(config.plot, _page(config, found, front))
    if config.config:
        save(config.config, launch.gateway_settings(best, policy=config.policy))
    if config.commands:
        save(config.commands, launch.commands(best, model=config.model))


def _page(config: SearchConfig, found: Sequence[Found], front: Sequence[Found]) -> str:
    """Each kind of deployment as a line through what it serves; the front as one more."""
    kinds = dict.fromkeys(each.candidate.kind for each in found)
    groups = {kind: [each for each in found if each.candidate.kind == kind] for kind in kinds}
    drawn = {name: _points(group) for name, group in ({"front": list(front)} | groups).items()}
    page = Page(f"Placement: {config.model} on up to {config.gpus} x {config.gpu}")
    panel = {"Goodput": drawn}
    page.figure(figures.lines(panel, x="GPUs", y="requests/s"), "Within the service level.")
    return page.html()


def _points(group: Sequence[Found]) -> tuple[list[float], list[float]]:
    ordered = sorted(group, key=lambda each: each.deployment.num_gpus)
    return (
        [float(each.deployment.num_gpus) for each in ordered],
        [each.goodput.rate for each in ordered],
    )


def _table(title: str, *, price: float | None = None) -> Table:
    dollar = () if price is None else ("a dollar",)
    numbers = ("GPUs", "requests/s", "a GPU", "TTFT in time", "TPOT in time", *dollar)
    return empty(title, words=("deployment", "kind"), figures=numbers)


def _cells(deployment: Deployment, found: Goodput, *, price: float | None = None) -> list[str]:
    attained = found.attainment
    cells = [
        str(deployment.num_gpus),
        f"{found.rate:.2f} to {found.failed_rate:.2f}",
        f"{found.rate / deployment.num_gpus:.2f}",
        percent(attained.ttft if attained else None),
        percent(attained.tpot if attained else None),
    ]
    if price is not None:
        cells.append(f"{3600 * found.rate / (price * deployment.num_gpus):,.0f}")
    return cells


def _row(deployment: Deployment, found: Goodput) -> dict[str, object]:
    return {
        "deployment": deployment.name,
        "num_gpus": deployment.num_gpus,
        "goodput_per_gpu": found.rate / deployment.num_gpus,
        "goodput": found,
    }


def _json(rows: Sequence[dict[str, object]]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    return console
