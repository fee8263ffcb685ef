"""Plans from files and arguments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expediter.assemble.policies import build_policy
from expediter.settings import load_section


def run_size_plan(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Print the sizes that a file and `flags` lead to."""
    # Only here, because a gateway has no use for numpy.
    from expediter.planner.command import run_size
    from expediter.planner.settings import SizeConfig

    run_size(load_section(SizeConfig, path, flags=flags))


def run_goodput_plan(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Print the highest rate at which a deployment meets its service level."""
    from expediter.planner.search_command import run_goodput
    from expediter.planner.settings import GoodputConfig

    run_goodput(load_section(GoodputConfig, path, flags=flags), build_policy=build_policy)


def run_search_plan(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Print the deployments that serve the most."""
    from expediter.planner.search_command import run_search
    from expediter.planner.settings import SearchConfig

    run_search(load_section(SearchConfig, path, flags=flags), build_policy=build_policy)


def run_watch_plan(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Print what another fleet would have made of a live gateway's traffic."""
    from expediter.planner.settings import WatchConfig
    from expediter.planner.watch_command import run_watch

    run_watch(load_section(WatchConfig, path, flags=flags), build_policy=build_policy)


def show_facts() -> None:
    """Print the GPUs, links and models that plans know by name."""
    from expediter.planner.facts_command import run_facts

    run_facts()
