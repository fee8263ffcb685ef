"""Workers listed in a file, TOML or JSON, which may be rewritten at any time.

    [[workers]]                                    ["http://10.0.0.1:8000",
    url = "http://10.0.0.1:8000"                    {"url": "http://10.0.0.2:8000",
    worker-id = "a"                                  "worker-id": "b"}]

The file's name says which of the two it is. It is looked at every so often: polling also sees
changes on network file systems and in Kubernetes' config maps, where notifications do not come.
A file that cannot be read, or not yet to its end, changes nothing, and is read again.
"""

import asyncio
import logging
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from expediter.config import WorkerEndpoint
from expediter.config.discovery import FileDiscovery

logger = logging.getLogger(__name__)


class FileSource:
    """See `WorkerSource`."""

    def __init__(self, config: FileDiscovery) -> None:
        self._path = Path(config.path).expanduser()
        self._poll_seconds = config.poll_seconds

    async def watch(self) -> AsyncGenerator[list[WorkerEndpoint]]:
        """The list at first and whenever it says something else."""
        content, problem = None, ""
        while True:
            try:
                now = await asyncio.to_thread(self._path.read_bytes)
                if now != content:
                    yield parse_workers(now, is_json=self._path.suffix == ".json")
                    content, problem = now, ""
            except (OSError, ValueError) as error:
                if str(error) != problem:  # say it once
                    problem = str(error)
                    logger.warning("%s: the workers stay as they are: %s", self._path, problem)
            await asyncio.sleep(self._poll_seconds)


def parse_workers(content: bytes, *, is_json: bool) -> list[WorkerEndpoint]:
    """The file's workers; ValueError says what is wrong. An empty file is one half written."""
    if not content.strip():
        raise ValueError("the file is empty")
    try:
        tree: Any = (
            msgspec.json.decode(content) if is_json else tomllib.loads(content.decode("utf-8"))
        )
    except (msgspec.DecodeError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"not {'JSON' if is_json else 'TOML'}: {error}") from None
    if isinstance(tree, dict):
        if "workers" not in tree:
            raise ValueError("there is no list called workers")
        tree = tree["workers"]
    if isinstance(tree, list):
        tree = [{"url": item} if isinstance(item, str) else item for item in tree]
    try:
        return msgspec.convert(tree, list[WorkerEndpoint])
    except msgspec.ValidationError as error:
        raise ValueError(f"workers: {error}") from None
