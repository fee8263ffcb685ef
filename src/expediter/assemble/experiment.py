"""Simulations from files and arguments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expediter.assemble.policies import build_policy
from expediter.settings import load_section


def run_experiment(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Simulate what a file and `flags` describe, and print how the policies compare."""
    # Only here, because a gateway has no use for numpy.
    from expediter.simulation import command
    from expediter.simulation.settings import ExperimentConfig

    command.run(load_section(ExperimentConfig, path, flags=flags), build_policy=build_policy)
