"""Public traces of production traffic: lengths and times, and for one of them who shares what."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from expediter.config import NotNegative, Positive
from expediter.workload.rows import InOrder, count_in, csv_rows, json_lines
from expediter.workload.transcript import EMPTY, Segment, Transcript, TranscriptTree
from expediter.workload.turn import Turn

MOONCAKE_BLOCK = 512  # tokens


class _MooncakeRow(msgspec.Struct):
    timestamp: NotNegative  # milliseconds
    input_length: Positive
    output_length: Positive
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]


def read_mooncake(
    path: Path, *, label: str = "mooncake", block_size: int = MOONCAKE_BLOCK
) -> Iterator[Turn]:
    """Mooncake's traces: JSON lines whose `hash_ids` name the prompt's blocks, the last partial.

    Equal ids mean an equal prefix, so each is a segment; smaller blocks follow from that. Answers
    are not named in these traces and are shared with nothing.
    """
    tree = TranscriptTree()
    order = InOrder()
    for number, (place, row) in enumerate(json_lines(path, _MooncakeRow)):
        with place.blamed():
            segments = _mooncake_segments(row, label=label, block_size=block_size)
            seconds = order.seconds(row.timestamp / 1000)
        yield Turn(
            arrival_time=seconds,
            transcript=tree.grow(segments).then(
                f"{label}/answer/{number}", row.output_length, role="assistant"
            ),
            label=label,
        )


def read_azure(path: Path, *, label: str = "azure") -> Iterator[Turn]:
    """Azure's LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens. Nothing is shared."""
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    order = InOrder()
    for number, (place, row) in enumerate(csv_rows(path, columns=columns)):
        with place.blamed():
            seconds = order.seconds(_timestamp(row["TIMESTAMP"]))
            num_prompt_tokens = count_in(row, "ContextTokens", at_least=1)
            num_output_tokens = count_in(row, "GeneratedTokens", at_least=1)
        yield Turn(
            arrival_time=seconds,
            transcript=_unshared(f"{label}/{number}", num_prompt_tokens, num_output_tokens),
            label=label,
        )


def read_burstgpt(path: Path, *, label: str | None = None) -> Iterator[Turn]:
    """BurstGPT: Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type.

    The class is the log type unless `label` is given. Failed requests, which have no response
    tokens, are left out. A `Session ID` becomes the session; what its requests share is not
    in the data, so they share nothing.
    """
    columns = ("Timestamp", "Request tokens", "Response tokens", "Log Type")
    order = InOrder()
    for number, (place, row) in enumerate(csv_rows(path, columns=columns)):
        with place.blamed():
            seconds = order.seconds(float(row["Timestamp"]))
            num_output_tokens = count_in(row, "Response tokens")
            num_prompt_tokens = count_in(row, "Request tokens", at_least=1)
        if num_output_tokens:
            name = f"{label or 'burstgpt'}/{number}"
            yield Turn(
                arrival_time=seconds,
                transcript=_unshared(name, num_prompt_tokens, num_output_tokens),
                label=label or row["Log Type"],
                session=row.get("Session ID") or None,
            )


def _timestamp(text: str) -> float:
    """Seconds; a time without a zone is UTC, because a local clock would jump twice a year."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _mooncake_segments(row: _MooncakeRow, *, label: str, block_size: int) -> list[Segment]:
    num_blocks = -(-row.input_length // block_size)
    if len(row.hash_ids) != num_blocks:
        raise ValueError(
            f"{len(row.hash_ids)} hash_ids for {row.input_length} tokens in blocks of {block_size}"
        )
    last = row.input_length - (num_blocks - 1) * block_size
    sizes = [block_size] * (num_blocks - 1) + [last]
    return [
        Segment(f"{label}/{name}", size) for name, size in zip(row.hash_ids, sizes, strict=True)
    ]


def _unshared(name: str, num_prompt_tokens: int, num_output_tokens: int) -> Transcript:
    prompt = EMPTY.then(f"{name}/prompt", num_prompt_tokens)
    return prompt.then(f"{name}/answer", num_output_tokens, role="assistant")
