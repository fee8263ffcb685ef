"""How figures look in a table."""

from rich.table import Table

from expediter.results.statistics import Distribution, Estimate

MISSING = "-"


def estimate(distribution: Distribution | None, part: str) -> Estimate | None:
    """One of a distribution's figures, by name."""
    return getattr(distribution, part) if distribution is not None else None


def ms(distribution: Distribution | None, part: str) -> str:
    """Milliseconds, with the confidence interval where there is one."""
    found = estimate(distribution, part)
    if found is None:
        return MISSING
    if found.plus_minus is None:
        return f"{found.value * 1e3:,.1f}"
    return f"{found.value * 1e3:,.1f} ±{found.plus_minus * 1e3:,.1f}"


def seconds(distribution: Distribution | None, part: str) -> str:
    """Seconds."""
    found = estimate(distribution, part)
    return MISSING if found is None else f"{found.value:,.2f}"


def percent(share: float | None) -> str:
    """A share of one."""
    return MISSING if share is None else f"{share:.1%}"


def empty(title: str, *, words: tuple[str, ...], figures: tuple[str, ...]) -> Table:
    """A table without rows: `words` to the left, `figures` to the right."""
    table = Table(title=title)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right")
    return table
