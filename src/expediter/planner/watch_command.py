"""What `expediter plan watch` asks a gateway, shows and writes."""

import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial

import msgspec
from rich.console import Console

from expediter.config import PolicyName
from expediter.errors import ConfigError
from expediter.planner.command import TABLE_WIDTH
from expediter.planner.settings import WatchConfig
from expediter.planner.units import milliseconds
from expediter.planner.watch import Fetch, Replayed, advice, options, read_traffic, replay_all
from expediter.results.cells import empty, percent
from expediter.results.files import require_folders, save
from expediter.simulation.runners import in_processes
from expediter.simulation.study import BuildPolicy

FETCH_SECONDS = 30.0


class _Stats(msgspec.Struct):
    """The part of the gateway's own report that matters here."""

    policy: PolicyName
    workers: list[msgspec.Raw]


def run_watch(config: WatchConfig, *, build_policy: BuildPolicy) -> None:
    """A table of what was tried, and in one line what to do."""
    require_folders([config.json])
    fetch = partial(_fetch, config)
    stats = _stats(fetch)
    turns = read_traffic(fetch, config)
    tried = options(config, policy=stats.policy, num_workers=max(1, len(stats.workers)))
    runner = in_processes(config.processes or os.cpu_count() or 1)
    found = replay_all(config, turns, tried, build_policy=build_policy, runner=runner)
    best = advice(found, config)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    table = empty(
        f"{len(turns)} requests of the last {config.seconds:g} s, replayed",
        words=("policy", "workers"),
        figures=("GPUs", "TTFT in time", "TPOT in time", "TTFT mean", "p99", "TPOT mean"),
    )
    for each in found:
        table.add_row(*_cells(each, is_best=each is best))
    console.print(table)
    console.print(_sentence(found[0], best, config))
    if config.json:
        save(config.json, msgspec.json.encode([_row(each, best) for each in found]))


def _cells(found: Replayed, *, is_best: bool) -> Sequence[str]:
    option = found.option
    marks = (" (now)" if option.is_current else "") + (" *" if is_best else "")
    return (
        option.policy + marks,
        option.deployment.name,
        str(found.num_gpus),
        percent(found.attainment.ttft),
        percent(found.attainment.tpot),
        milliseconds(found.ttft),
        milliseconds(found.ttft_p99),
        milliseconds(found.tpot),
    )


def _sentence(now: Replayed, best: Replayed, config: WatchConfig) -> str:
    level = f"{percent(config.share)} within {milliseconds(config.ttft)} and a token each "
    level += milliseconds(config.tpot)
    if best is now:
        return f"Keep what there is: nothing tried meets {level} with less."
    meets = best.attainment.lowest >= config.share
    change = f"{best.option.policy} on {best.option.deployment.name}"
    return (
        f"{'Meets' if meets else 'Comes nearest to'} {level}: {change}, {best.num_gpus} GPUs "
        f"instead of {now.num_gpus}; in time {percent(best.attainment.lowest)} instead of "
        f"{percent(now.attainment.lowest)}, TTFT {milliseconds(best.ttft)} instead of "
        f"{milliseconds(now.ttft)} in the mean."
    )


def _row(found: Replayed, best: Replayed) -> dict[str, object]:
    return {
        "policy": found.option.policy,
        "deployment": found.option.deployment.name,
        "is_current": found.option.is_current,
        "is_best": found is best,
        "num_gpus": found.num_gpus,
        "attainment": found.attainment,
        "ttft_mean": found.ttft,
        "ttft_p99": found.ttft_p99,
        "tpot_mean": found.tpot,
    }


def _stats(fetch: Fetch) -> _Stats:
    try:
        return msgspec.json.decode(fetch("/stats"), type=_Stats)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"gateway: /stats is not what an admin port says: {error}") from None


def _fetch(config: WatchConfig, path: str) -> bytes:
    url = config.gateway.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"gateway: {config.gateway!r} is no URL; write http://HOST:PORT")
    request = urllib.request.Request(url)
    if config.token is not None:
        request.add_header("Authorization", f"Bearer {config.token}")
    try:
        with urllib.request.urlopen(request, timeout=FETCH_SECONDS) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        hint = "; it wants its token" if error.code in (401, 403) else ""
        raise ConfigError(f"{url} answered {error.code}{hint}; is that its admin port?") from None
    except OSError as error:
        raise ConfigError(f"{url} cannot be reached: {error}") from None
