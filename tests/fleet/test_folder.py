"""The fleet's folder: private, removed with it, and with the next one if it was killed."""

import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from expediter.fleet.folder import remove_leftovers, runtime_folder

KILLED = """
import os, signal
from expediter.fleet.folder import runtime_folder
with runtime_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_it_is_private_and_gone_afterwards() -> None:
    with runtime_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "worker-0.log").write_text("x")
    assert not folder.exists()


def test_what_a_killed_fleet_left_is_removed_and_what_lives_is_not(base: Path) -> None:
    with runtime_folder() as living:
        killed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, check=False)
        left = Path(killed.stdout.decode().strip())
        assert left.parent == base
        assert left.exists()
        remove_leftovers(base)
        assert not left.exists()
        assert living.exists()
