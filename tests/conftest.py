"""What tests of several packages share."""

from pathlib import Path

import pytest

from expediter.config import environment


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of recorded traces named by EXPEDITER_TRACES; skips where there is none."""
    folder = environment().get("EXPEDITER_TRACES")
    if not folder or not Path(folder).is_dir():
        pytest.skip("EXPEDITER_TRACES names no folder of traces")
    return Path(folder)
