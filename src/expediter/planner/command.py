"""What `expediter plan size` shows and writes."""

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from expediter.errors import ConfigError
from expediter.planner.facts import Topic
from expediter.planner.settings import SizeConfig
from expediter.planner.size import size_plan

TABLE_WIDTH = 120
"""Columns where no terminal says how many there are."""


def run_size(config: SizeConfig) -> None:
    """A table a topic to standard output, and all figures to the file that the settings name."""
    topics = size_plan(config)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    for topic in topics:
        console.print(_table(topic))
    if config.json:
        _write(Path(config.json).expanduser(), topics)


def _table(topic: Topic) -> Table:
    table = Table(title=topic.title, title_justify="left", show_header=False, min_width=80)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in topic.figures:
        table.add_row(figure.name.replace("_", " "), figure.shown, figure.how)
    return table


def _write(path: Path, topics: list[Topic]) -> None:
    """`{"kv_bytes_per_token": 327680, ...}`, in SI units."""
    figures = {figure.name: figure.value for topic in topics for figure in topic.figures}
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
