"""What is written is what is read."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from promises import GENERATORS, Make, told

from expediter.errors import WorkloadError
from expediter.workload.storage import read_workload, write_workload
from expediter.workload.streams import relabelled
from expediter.workload.transcript import EMPTY
from expediter.workload.turn import Turn


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS.keys())
def test_a_workload_is_read_as_it_was_written(make: Make, tmp_path: Path) -> None:
    def turns() -> Iterator[Turn]:
        return relabelled(islice(make(random.Random(1)), 100), tenant="t", priority=-3)

    path = tmp_path / "workload.jsonl"
    assert write_workload(path, turns()) == 100
    for written, read in zip(turns(), read_workload(path), strict=True):
        assert told(read) == told(written)
        assert read.transcript.block_hashes(64) == written.transcript.block_hashes(64)


def test_words_are_kept(tmp_path: Path) -> None:
    prompt = EMPTY.then("greeting", 2, text="größe \U0001f642\n")
    turn = Turn(arrival_time=0.1 + 0.2, transcript=prompt.then("answer", 1, role="assistant"))
    write_workload(tmp_path / "w", [turn])
    [read] = read_workload(tmp_path / "w")
    assert told(read) == told(turn)


FIRST = '{"at":1,"prompt":[{"name":"p","tokens":3}],"answer":{"name":"a","tokens":1},"session":"s"}'


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('"at":1', '"at":0.5'), "arrives before the row above it"),
        (('"at":1', '"at":-1'), ">= 0"),
        (('"tokens":3', '"tokens":0'), ">= 1 - at `$.prompt[0].tokens`"),
        (('[{"name":"p","tokens":3}]', "[]"), "length >= 1"),
        (('"session"', '"sesion"'), "unknown field `sesion`"),
        (
            ('"session":"s"', '"session":"t","think_time":1'),
            "does not follow a turn of its session",
        ),
        (('"at":1', '"at":2,"think_time":1'), "not the time of the turn it follows"),
    ],
)
def test_a_wrong_row_is_named(change: tuple[str, str], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_text(FIRST + "\n" + FIRST.replace(*change))
    with pytest.raises(WorkloadError) as error:
        list(read_workload(path))
    assert str(error.value).startswith(f"{path}:2: ")
    assert problem in str(error.value)


def test_a_closed_loop_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_text(FIRST + "\n" + FIRST.replace('"at":1', '"at":1,"think_time":2.5'))
    assert [turn.think_time for turn in read_workload(path)] == [None, 2.5]
