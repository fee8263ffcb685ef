"""Public traces' formats, on small files; wrong rows are named by file and line."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from expediter.errors import WorkloadError
from expediter.workload.traces import read_azure, read_burstgpt, read_mooncake
from expediter.workload.turn import Turn

MOONCAKE = """\
{"timestamp": 27000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}

{"timestamp": 30000, "input_length": 1400, "output_length": 7, "hash_ids": [0, 1, 9]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:04.0319600,3180,8\r
"""
BURSTGPT = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,8f,0.9,ChatGPT,472,18,490,Conversation log
45,,2.1,GPT-4,1087,0,1087,API log
118,8f,1.5,GPT-4,417.0,276,693,API log
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_mooncake_rows_share_the_blocks_with_equal_ids(tmp_path: Path) -> None:
    one, two = read_mooncake(write(tmp_path, MOONCAKE), label="m")
    assert (one.arrival_time, two.arrival_time) == (0.0, 3.0)
    assert (one.num_prompt_tokens, one.num_output_tokens) == (1100, 5)
    assert [segment.num_tokens for segment in two.prompt.segments] == [512, 512, 376]
    assert one.prompt.block_hashes(512) == two.prompt.block_hashes(512)
    # 1,024 tokens are shared; the third block is not, nor is any part of it.
    for size in (16, 128, 256):
        shared = set(one.prompt.block_hashes(size)) & set(two.prompt.block_hashes(size))
        assert len(shared) == 1024 // size


def test_azure_rows_share_nothing_and_begin_at_zero(tmp_path: Path) -> None:
    one, two = read_azure(write(tmp_path, AZURE))
    assert one.arrival_time == 0.0
    assert two.arrival_time == pytest.approx(0.052, abs=1e-6)
    assert (two.num_prompt_tokens, two.num_output_tokens) == (3180, 8)
    assert not set(one.prompt.block_hashes(16)) & set(two.prompt.block_hashes(16))


def test_a_time_with_a_zone_is_read_as_well(tmp_path: Path) -> None:
    rows = AZURE.replace("9799600", "979960+00:00").replace("0319600", "031960+00:00")
    assert [turn.arrival_time for turn in read_azure(write(tmp_path, rows))] == pytest.approx(
        [0.0, 0.052], abs=1e-6
    )


def test_burstgpt_leaves_out_failures_and_labels_by_log_type(tmp_path: Path) -> None:
    one, two = read_burstgpt(write(tmp_path, BURSTGPT))
    assert (one.arrival_time, two.arrival_time) == (0.0, 113.0)
    assert (one.label, two.label) == ("Conversation log", "API log")
    assert one.session == two.session == "8f"
    assert (two.num_prompt_tokens, two.num_output_tokens) == (417, 276)
    [named, _] = read_burstgpt(write(tmp_path, BURSTGPT), label="burst")
    assert named.label == "burst"


def test_burstgpt_without_sessions_is_read_too(tmp_path: Path) -> None:
    rows = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,a,3,4,7,API log"
    [turn] = read_burstgpt(write(tmp_path, rows))
    assert turn.session is None


WRONG: list[tuple[Callable[[Path], Iterator[Turn]], str, str, str, int, str]] = [
    (read_mooncake, MOONCAKE, "[0, 1, 9]}", "[0, 1]}", 3, "2 hash_ids for 1400 tokens"),
    (read_mooncake, MOONCAKE, "30000", "3000", 3, "arrives 24 s before"),
    (read_mooncake, MOONCAKE, "1400", "0", 3, ">= 1 - at `$.input_length`"),
    (read_mooncake, MOONCAKE, '"output_length": 7, ', "", 3, "missing required field"),
    (read_mooncake, MOONCAKE, "[0, 1, 9]}", "[0, 1, 9]", 3, "truncated"),
    (read_azure, AZURE, "GeneratedTokens", "Generated", 1, "no column GeneratedTokens"),
    (read_azure, AZURE, "3180,8", "3180", 3, "not 3 columns"),
    (read_azure, AZURE, "3180,8", "3180,8,1", 3, "not 3 columns"),
    (read_azure, AZURE, "3180", "many", 3, "many"),
    (read_azure, AZURE, "3180", "0", 3, "ContextTokens is 0, not a whole number from 1"),
    (read_azure, AZURE, "3180", "nan", 3, "ContextTokens is nan"),
    (read_azure, AZURE, "3180", "inf", 3, "ContextTokens is inf"),
    (read_azure, AZURE, "17:04", "16:04", 3, "before the row above it"),
    (read_azure, AZURE, "2023-11-16 18:17:04", "yesterday", 3, "Invalid isoformat"),
    (read_burstgpt, BURSTGPT, "417.0", "417.5", 4, "Request tokens is 417.5"),
    (read_burstgpt, BURSTGPT, "118", "nan", 4, "nan"),
]


@pytest.mark.parametrize(("read", "text", "old", "new", "line", "problem"), WRONG)
def test_a_wrong_row_is_named_by_file_and_line(
    read: Callable[[Path], Iterator[Turn]],
    text: str,
    old: str,
    new: str,
    line: int,
    problem: str,
    tmp_path: Path,
) -> None:
    assert old in text
    path = write(tmp_path, text.replace(old, new))
    with pytest.raises(WorkloadError) as error:
        list(read(path))
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert problem in str(error.value)


def test_rows_before_a_wrong_one_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE + "nonsense\n")
    assert len(list(islice(read_mooncake(path), 2))) == 2
