"""Measurements of live endpoints, from files and arguments."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expediter.config import environment
from expediter.settings import load_section

API_KEY = "OPENAI_API_KEY"


def run_bench(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Send what a file and `flags` describe to an endpoint, and print how it did."""
    # Only here, because a gateway has no use for numpy.
    from expediter.bench import command
    from expediter.bench.settings import BenchConfig

    config = load_section(BenchConfig, path, flags=with_key(flags))
    command.run(config, run_loop=run_in_loop)


def with_key(flags: Mapping[str, Any]) -> dict[str, Any]:
    """With the key of the environment, unless one is given."""
    key = environment().get(API_KEY)
    return ({"api-key": key} if key else {}) | dict(flags)


def run_in_loop(main: Any) -> Any:
    """uvloop where there is one: the generator should not be the slower end."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(main)
    return uvloop.run(main)
