"""Records as rows of a table, and rows as files.

A record within a record gives a column for each of its parts, called `outer.inner`.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from expediter.errors import ConfigError

Row = dict[str, Any]


def flat(record: object, *, prefix: str = "") -> Row:
    """A record's parts by name; lists are left out, because they are not one value."""
    found: Row = {}
    for name, part in msgspec.to_builtins(record).items():
        if isinstance(part, dict):
            found |= flat(part, prefix=f"{prefix}{name}.")
        elif not isinstance(part, list):
            found[f"{prefix}{name}"] = part
    return found


def columns(rows: Sequence[Row]) -> list[str]:
    """The names of all columns, in the order in which they are met."""
    return list(dict.fromkeys(name for row in rows for name in row))


def to_csv(rows: Sequence[Row]) -> str:
    """A line a row, with a heading; what a row lacks is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """The same as a Parquet file; ConfigError where pyarrow is not installed."""
    parquet = _parquet()
    import pyarrow

    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns(rows)})
    parquet.write_table(table, path)


def require_parquet() -> None:
    """ConfigError if Parquet files cannot be written here."""
    _parquet()


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "Parquet files need pyarrow; install it with pip install 'expediter[parquet]'"
        ) from None
    return parquet
