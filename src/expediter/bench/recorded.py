"""Points for a fit from a benchmark's file, instead of from measurements made for it.

A prompt is taken if its worker had nothing else to do until its first token. An answer's steps
are taken in the mean, with the batch and the context that its worker had meanwhile; the prompts
that were computed in between are subtracted, by the line that was fitted to the others. So a
benchmark at a moderate rate is best: prompts alone, and answers together.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from expediter.bench.fit import DecodePoint, Fit, Line, PrefillPoint, fit, line
from expediter.bench.report import BenchRow
from expediter.errors import ConfigError


class _Report(msgspec.Struct):
    requests: list[BenchRow]


class _File(msgspec.Struct):
    report: _Report


class _Span(msgspec.Struct, frozen=True):
    """A complete answer, with its times known."""

    row: BenchRow
    first: float
    last: float

    @property
    def prompt(self) -> PrefillPoint:
        cached = self.row.cached_tokens or 0
        return PrefillPoint(
            new_tokens=max(1, self.row.prompt_tokens - cached),
            cached_tokens=cached,
            seconds=self.first - self.row.sent_at,
        )

    @property
    def mean_context(self) -> float:
        return self.row.prompt_tokens + self.row.output_tokens / 2


def read_rows(path: Path) -> list[BenchRow]:
    """The requests in a file that `bench --json` wrote; ConfigError if it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).report.requests
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a file of expediter bench: {error}") from None


def fit_rows(rows: Sequence[BenchRow]) -> Fit:
    """See the module; EndpointError if too few requests can be used."""
    prefills: list[PrefillPoint] = []
    groups: list[list[_Span]] = []
    for worker in sorted({row.worker or "" for row in rows}):
        spans = [_span(row) for row in rows if (row.worker or "") == worker]
        groups.append([span for span in spans if span is not None])
        prefills += [span.prompt for span in groups[-1] if _is_alone(span, groups[-1])]
    prefill = line(prefills, what="prefill")
    decodes = [
        point
        for group in groups
        for span in group
        if (point := _decode(span, group, prefill)) is not None
    ]
    return fit(prefills, decodes)


def _span(row: BenchRow) -> _Span | None:
    if row.error is not None or row.first_at is None or row.last_at is None:
        return None
    return _Span(row, row.first_at, row.last_at)


def _is_alone(span: _Span, group: Sequence[_Span]) -> bool:
    """Whether no other request was open at the worker until its first token."""
    begin, end = span.row.sent_at, span.first
    return not any(
        other is not span and other.row.sent_at < end and other.last > begin for other in group
    )


def _decode(span: _Span, group: Sequence[_Span], prefill: Line) -> DecodePoint | None:
    seconds, steps = span.last - span.first, span.row.output_tokens - 1
    if steps < 1 or seconds <= 0:
        return None
    batch = context = 0.0
    for other in group:
        share = max(0.0, min(span.last, other.last) - max(span.first, other.first)) / seconds
        batch += share
        context += share * other.mean_context
    between = (o.prompt for o in group if o is not span and span.first < o.first < span.last)
    own = seconds - sum(prefill.ms(point) - prefill.coefficients[0] for point in between) / 1e3
    if own <= 0:
        return None
    return DecodePoint(batch=batch, context_tokens=context, seconds=own / steps)
