"""What is known of the public traces, from the readers and the one-pass analysis."""

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from expediter.workload.analysis import HitCurve, hit_curve
from expediter.workload.traces import MOONCAKE_BLOCK, read_azure, read_mooncake
from expediter.workload.turn import Turn


def mooncake(traces: Path, name: str) -> list[Turn]:
    return list(read_mooncake(traces / "mooncake" / f"{name}_trace.jsonl"))


def curve(turns: Sequence[Turn]) -> HitCurve:
    """Of the trace's own blocks: those of prompts, the last one of each too."""
    return hit_curve(turns, block_size=MOONCAKE_BLOCK, with_answers=False, with_partial_blocks=True)


def shares_of_most(found: HitCurve, *million_tokens: int) -> list[float]:
    """Hits of caches that hold so many million tokens, as shares of what any can hit."""
    sizes = [million * 1_000_000 // MOONCAKE_BLOCK for million in million_tokens]
    return [found.at(size).blocks / found.at().blocks for size in sizes]


def test_mooncakes_conversations_are_as_published(traces: Path) -> None:
    turns = mooncake(traces, "conversation")
    lengths = [turn.num_prompt_tokens for turn in turns]
    assert len(turns) == 12_031
    assert statistics.fmean(lengths) == pytest.approx(12_035, abs=0.5)
    assert statistics.fmean(t.num_output_tokens for t in turns) == pytest.approx(343, abs=0.5)
    assert turns[-1].arrival_time == pytest.approx(3537, abs=0.5)
    assert len(turns) / turns[-1].arrival_time == pytest.approx(3.40, abs=0.005)
    assert statistics.median(lengths) == 6909
    assert sorted(lengths)[len(lengths) * 9 // 10] == pytest.approx(27_367, rel=0.002)
    assert max(lengths) == 126_195
    assert len({turn.prompt.segments[0].name for turn in turns}) == 1
    uses = Counter(segment.name for turn in turns for segment in turn.prompt.segments)
    assert sum(times == 1 for times in uses.values()) / len(uses) == pytest.approx(
        0.758, abs=0.0005
    )
    assert max(Counter(turn.arrival_time for turn in turns).values()) == 28


def test_mooncakes_conversations_hit_as_measured(traces: Path) -> None:
    found = curve(mooncake(traces, "conversation"))
    assert found.num_blocks == 288_500
    assert found.num_distinct_blocks == 182_790
    assert found.at().blocks == pytest.approx(0.366, abs=0.0005)
    assert found.at(3_000_000 // MOONCAKE_BLOCK).blocks == pytest.approx(0.136, abs=0.0005)
    assert shares_of_most(found, 3, 10, 50) == pytest.approx([0.37, 0.78, 0.99], abs=0.006)


def test_mooncakes_synthetic_trace_hits_as_measured(traces: Path) -> None:
    turns = mooncake(traces, "synthetic")
    assert len(turns) == 3993
    assert len(turns) / turns[-1].arrival_time == pytest.approx(3.91, abs=0.005)
    found = curve(turns)
    assert found.at().blocks == pytest.approx(0.640, abs=0.0005)
    assert found.at().tokens == pytest.approx(0.651, abs=0.0005)
    assert found.at(3_000_000 // MOONCAKE_BLOCK).blocks == pytest.approx(0.309, abs=0.0005)
    assert shares_of_most(found, 3, 10, 50) == pytest.approx([0.48, 0.89, 1.0], abs=0.006)


def test_smaller_blocks_find_the_same_sharing(traces: Path) -> None:
    """Full blocks of 128 tokens find what the trace says is shared, and no more."""
    turns = mooncake(traces, "synthetic")[:500]
    shared = []
    for size in (128, MOONCAKE_BLOCK):
        found = hit_curve(turns, block_size=size, with_answers=False).at()
        shared.append(found.num_hit_tokens)
    whole = hit_curve(
        turns, block_size=MOONCAKE_BLOCK, with_answers=False, with_partial_blocks=True
    ).at()
    assert shared[1] <= shared[0] <= whole.num_hit_tokens


@pytest.mark.parametrize(
    ("name", "rate", "prompt", "output", "cv"),
    [
        ("code", 2.57, (2048, 1469), (27.9, 13), 13.2),
        ("conv", 5.53, (1155, 1020), (211, 129), 1.09),
    ],
)
def test_azures_traces_are_as_measured(
    traces: Path,
    name: str,
    rate: float,
    prompt: tuple[float, float],
    output: tuple[float, float],
    cv: float,
) -> None:
    turns = list(read_azure(traces / "azure" / f"AzureLLMInferenceTrace_{name}.csv"))
    prompts = [turn.num_prompt_tokens for turn in turns]
    outputs = [turn.num_output_tokens for turn in turns]
    gaps = [late.arrival_time - early.arrival_time for early, late in pairwise(turns)]
    assert len(turns) / turns[-1].arrival_time == pytest.approx(rate, abs=0.005)
    assert (statistics.fmean(prompts), statistics.median(prompts)) == pytest.approx(prompt, abs=0.5)
    assert (statistics.fmean(outputs), statistics.median(outputs)) == pytest.approx(output, abs=0.5)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, abs=0.05)
