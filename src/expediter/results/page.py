"""One HTML file that needs nothing else: text, tables, SVG; light or dark as its reader has it."""

from collections.abc import Iterable
from html import escape

from rich.table import Table
from rich.text import Text

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --soft: #60646c; --line: #d9d9e0;
  --grid: #e4e4ea; --stripe: #f6f6f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --paper: #14161a; --soft: #a0a6b0;
  --line: #3a3f47; --grid: #2b2f36; --stripe: #1b1e23; } }
body { margin: 0 auto; max-width: 84rem; padding: 1.5rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p, figcaption, caption { color: var(--soft); }
caption { text-align: left; padding-bottom: .3rem; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
.table { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { text-align: left; } tr:nth-child(even) td { background: var(--stripe); }
.figure { text-align: right; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


class Page:
    """Filled from top to bottom."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """A section begins."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Names and values."""
        items = (f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
        self._parts.append(f"<dl>{''.join(items)}</dl>")

    def figure(self, svg: str, caption: str) -> None:
        """A picture that `figures` made."""
        self._parts.append(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>")

    def table(self, table: Table) -> None:
        """The table that a terminal shows."""
        sides = ["figure" if c.justify == "right" else "word" for c in table.columns]
        head = _row("th", zip(sides, (c.header for c in table.columns), strict=True))
        cells = zip(*(column.cells for column in table.columns), strict=True)
        body = "".join(_row("td", zip(sides, row, strict=True)) for row in cells)
        caption = f"<caption>{escape(str(table.title))}</caption>" if table.title else ""
        self._parts.append(
            f"<div class=table><table>{caption}<thead>{head}</thead><tbody>{body}</tbody>"
            "</table></div>"
        )

    def html(self) -> str:
        """The file."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )


def _row(tag: str, cells: Iterable[tuple[str, object]]) -> str:
    made = (f"<{tag} class={side}>{escape(_plain(cell))}</{tag}>" for side, cell in cells)
    return f"<tr>{''.join(made)}</tr>"


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
