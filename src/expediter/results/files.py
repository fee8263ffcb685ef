"""Where results go: known to be writable before anything runs, and written whole."""

from collections.abc import Iterable
from pathlib import Path

from expediter.errors import ConfigError


def require_folders(names: Iterable[str | None]) -> None:
    """A run may take long: what cannot be written is better known before."""
    for path in (Path(name).expanduser() for name in names if name):
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}")
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder")


def save(name: str, content: bytes | str) -> None:
    """Write a file; ConfigError says why it cannot be."""
    data = content.encode() if isinstance(content, str) else content
    try:
        Path(name).expanduser().write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None
