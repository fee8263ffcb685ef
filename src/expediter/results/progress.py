"""A bar on a terminal; nothing where standard error is a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(what: str, *, total: int) -> Iterator[Callable[[], None] | None]:
    """Gives what to call for each of `total` things done; None if nobody would see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
