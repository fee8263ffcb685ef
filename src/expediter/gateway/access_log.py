"""The access log: one JSON line a request, never a prompt and never a key.

Lines are collected and written about once a second, or when there are many. Whole lines go into
one write to a file that is only appended to, so several processes may share it. Rotation: move
the file away, then SIGUSR1 (or SIGHUP) opens a new one under the old name.
"""

import logging
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from expediter.errors import ConfigError
from expediter.gateway.story import Story

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = "-"
MAX_WAITING_BYTES = 256 * 1024
PIPE_BYTES = 4096  # that reach a pipe in one piece
_FILE_MODE = 0o640


class Line(msgspec.Struct, kw_only=True):
    """One request. Seconds are from its arrival; None is what nobody knows."""

    time: str
    request_id: str
    client: str
    tenant: str | None
    method: str
    path: str
    slo_class: str | None
    model: str | None
    worker: str | None
    reason: str | None
    tries: int
    status: int
    error: str | None
    prompt_tokens: int | None
    matched_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    ttft_seconds: float | None
    total_seconds: float
    bytes: int | None


class AccessLog:
    """Takes stories of requests; call `flush` now and then."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if the file cannot be opened for appending."""
        self.path = path
        self._fd = _open(path)
        self._encoder = msgspec.json.Encoder()
        self._waiting = bytearray()
        self._says_failure = True
        # One clock for instants and spans, so that a step of the system's changes no line.
        self._epoch = time.time() - time.monotonic()
        self._second = -1
        self._second_text = ""

    def add(self, story: Story) -> None:
        """A request has ended."""
        self._waiting += self._encoder.encode(self._line(story))
        self._waiting += b"\n"
        if len(self._waiting) >= MAX_WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting; lines that cannot be written are dropped, and the log says so."""
        data, self._waiting = self._waiting, bytearray()
        try:
            for piece in _pieces(data) if self.path == STANDARD_OUTPUT else [data]:
                while piece:
                    del piece[: os.write(self._fd, piece)]
            self._says_failure = True
        except OSError as error:
            if self._says_failure:
                logger.warning("access log %s: lines are lost: %s", self.path, error)
            self._says_failure = False

    def reopen(self) -> None:
        """Write to the file that has the name now; keeps the old one if that cannot be opened."""
        self.flush()
        try:
            fd = _open(self.path)
        except ConfigError as error:
            logger.error("%s; the old file stays in use", error)
            return
        self._close_file()
        self._fd = fd

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        if self.path != STANDARD_OUTPUT:
            with suppress(OSError):
                os.close(self._fd)

    def _time(self, instant: float) -> str:
        """In UTC, to the millisecond; most requests come in the same second as the one before."""
        second = int(instant)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{int((instant - second) * 1000):03d}+00:00"

    def _line(self, story: Story) -> Line:
        decision, request = story.decision, story.request
        total = story.ended_at - story.arrived_at
        ttft = None
        if decision is not None and decision.ttft is not None:
            ttft = round(decision.placed_at - story.arrived_at + decision.ttft, 6)
        return Line(
            time=self._time(self._epoch + story.arrived_at),
            request_id=story.request_id.decode("latin-1"),
            client=story.client.decode("latin-1"),
            tenant=story.tenant_id,
            method=request.method.decode("latin-1"),
            path=request.path.decode("latin-1"),
            slo_class=story.slo_class,
            model=story.routed.model,
            worker=decision.worker_id if decision is not None else None,
            reason=decision.reason if decision is not None else None,
            tries=decision.num_tries if decision is not None else 0,
            status=story.status,
            error=story.error,
            prompt_tokens=_num_prompt_tokens(story),
            matched_tokens=decision.matched_tokens if decision is not None else None,
            cached_tokens=decision.cached_tokens if decision is not None else None,
            output_tokens=decision.output_tokens if decision is not None else None,
            ttft_seconds=ttft,
            total_seconds=round(total, 6),
            bytes=story.num_bytes,
        )


def _num_prompt_tokens(story: Story) -> int | None:
    """As the worker counted, or else as the gateway did."""
    decision = story.decision
    if decision is not None and decision.prompt_tokens is not None:
        return decision.prompt_tokens
    return story.routed.num_tokens or None


def _pieces(data: bytearray) -> list[bytearray]:
    """Whole lines, as many in a piece as reach a pipe together."""
    pieces = [bytearray()]
    for line in data.splitlines(keepends=True):
        if pieces[-1] and len(pieces[-1]) + len(line) > PIPE_BYTES:
            pieces.append(bytearray())
        pieces[-1] += line
    return pieces


def _open(path: str) -> int:
    if path == STANDARD_OUTPUT:
        return sys.stdout.fileno()
    try:
        return os.open(Path(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, _FILE_MODE)
    except OSError as error:
        raise ConfigError(
            f"gateway.access-log: {path} cannot be opened: {error.strerror or error}"
        ) from None
