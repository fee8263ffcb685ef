"""Keys of tenants in a file of their own, so that a key is added without touching the settings.

A line is a tenant's id and the hash of one of its keys, with white space between; what follows a
`#` is a comment. The file is read again when it has changed.
"""

import re
from pathlib import Path

from expediter.errors import ConfigError

HASH_PREFIX = "sha256:"
_LINE = re.compile(r"(?P<tenant>.*\S)\s+(?P<key>sha256:[0-9a-f]{64})")


def key_line(tenant_id: str, key_hash: str) -> str:
    """A key as the file has it; raises ConfigError if the file could not say this tenant."""
    if not tenant_id.strip() or "#" in tenant_id or tenant_id != " ".join(tenant_id.split()):
        raise ConfigError(f"a tenant-id in a key file has no # and no odd spaces: {tenant_id!r}")
    return f"{tenant_id} {key_hash}"


class KeyFile:
    """One file; it remembers which version of it was read last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, ...] | None = None

    def read(self) -> list[tuple[str, str]]:
        """Tenants and hashes, in order; raises ConfigError that names the line."""
        self._version = self._current()
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self._path}: not UTF-8") from None
        found = []
        for number, line in enumerate(lines, 1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            match = _LINE.fullmatch(content)
            if match is None:
                raise ConfigError(
                    f"{self._path}:{number}: write it as TENANT-ID sha256:HASH, "
                    "as `expediter keys new` prints it"
                )
            found.append((match["tenant"], match["key"]))
        return found

    def has_changed(self) -> bool:
        """Whether it is another than the one read or asked about last; one that is gone is not."""
        current = self._current()
        if current is None or current == self._version:
            return False
        self._version = current
        return True

    def _current(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size, status.st_ino)
