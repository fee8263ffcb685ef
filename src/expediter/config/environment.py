"""The process's environment: read here and nowhere else."""

import os
from collections.abc import Mapping
from pathlib import Path

ENV_PREFIX = "EXPEDITER_"


def environment() -> Mapping[str, str]:
    """This process's environment; only the command line asks for it."""
    return os.environ


def child_environment(environ: Mapping[str, str], **defaults: str) -> dict[str, str]:
    """`environ` for a process that gets its settings in a file: ours dropped, `defaults` added."""
    inherited = {k: v for k, v in environ.items() if not k.startswith(ENV_PREFIX)}
    return defaults | inherited


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where fetched models are kept: EXPEDITER_CACHE, else `expediter` in the user's cache."""
    if chosen := environ.get("EXPEDITER_CACHE"):
        return Path(chosen)
    home = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "expediter"
