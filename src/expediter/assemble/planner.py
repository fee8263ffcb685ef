"""Plans from files and arguments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expediter.settings import load_section


def run_size_plan(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Print the sizes that a file and `flags` lead to."""
    # Only here, because a gateway has no use for numpy.
    from expediter.planner.command import run_size
    from expediter.planner.settings import SizeConfig

    run_size(load_section(SizeConfig, path, flags=flags))
