"""The fleet's own folder: settings, sockets and logs. Private to the user, gone with the fleet.

A lock in it says that its fleet lives. The kernel drops the lock when the supervisor dies,
however it dies, so the next fleet can tell what a killed one left behind, and removes it.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "expediter-"
# A ZeroMQ ipc endpoint is a path of at most 107 bytes on Linux, 103 on macOS.
MAX_BASE_LENGTH = 60


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A new folder that only this user can read, for as long as the block runs."""
    base = tempfile.gettempdir()
    base = base if len(base) <= MAX_BASE_LENGTH else "/tmp"
    remove_leftovers(Path(base))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(base: Path) -> None:
    """Remove the folders of fleets that were killed; others' are not ours to touch."""
    for path in base.glob(f"{PREFIX}*/lock"):
        with suppress(OSError), path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held: its fleet lives
            shutil.rmtree(path.parent, ignore_errors=True)
