"""Figures as Markdown."""

Figures = dict[str, float]


def table(figures: dict[str, Figures], columns: dict[str, str]) -> str:
    """A Markdown table; a dash where nothing was measured."""
    used = [column for column in columns if any(column in row for row in figures.values())]
    lines = [
        "| | " + " | ".join(columns[column] for column in used) + " |",
        "|---|" + "---:|" * len(used),
    ]
    for name, row in figures.items():
        cells = [_number(row[column]) if column in row else "-" for column in used]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
