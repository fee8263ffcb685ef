"""One fleet for the whole session: starting it is most of the time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_fleet import Fleet, running_fleet

from expediter.config import cache_dir, environment
from expediter.engine.default_model import default_model
from expediter.tokenizer.loading import load_tokenizer
from expediter.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def model() -> Path:
    return default_model(cache_dir(environment()))


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return load_tokenizer(model)


@pytest.fixture(scope="session")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    assert model.is_file()
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running
