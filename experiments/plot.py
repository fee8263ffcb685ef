"""Bars as a small SVG, in the colours of the page they stand on."""

from collections.abc import Mapping
from html import escape
from math import log10

from experiments.running import ROOT

ROW, LABEL, WIDTH = 18, 210, 360
LEAST, MOST = 1.0, 5.0  # powers of ten of a millisecond


def log_bars(name: str, title: str, milliseconds: Mapping[str, float]) -> None:
    """Write docs/plots/NAME.svg: one bar a label, from 10 ms to 100 s on a logarithmic axis."""
    height = ROW * (len(milliseconds) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + 80}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="currentColor">',
        f'<text x="4" y="14" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(milliseconds.items(), 1):
        y = ROW * number + 8
        length = WIDTH * max(0.0, min(1.0, (log10(value) - LEAST) / (MOST - LEAST)))
        lines += [
            f'<text x="4" y="{y + 10}">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{length:.0f}" height="12" opacity="0.6"/>',
            f'<text x="{LABEL + length + 4:.0f}" y="{y + 10}">{value:,.0f} ms</text>',
        ]
    folder = ROOT / "docs" / "plots"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.svg").write_text("\n".join([*lines, "</svg>\n"]), "utf-8")
