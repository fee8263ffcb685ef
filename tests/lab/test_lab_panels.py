"""Disaggregation and the hot prefix: worked numbers, and frames that add up."""

import pytest

from expediter.assemble.policies import build_policy
from expediter.lab.burst import CLASSES, NUM_FRAMES, Arm, Burst, Film, film
from expediter.lab.disaggregation import Answer, answer
from expediter.lab.questions import BurstQuestion, TransferQuestion, parse


def of(**query: str) -> Answer:
    return answer(parse(TransferQuestion, query).case)


def test_the_panel_opens_with_the_worked_example() -> None:
    """8,000 tokens of a 70B model: 2.62 GB, 328 MB a GPU, 6.6 ms, about 1 % of 0.8 s."""
    found = of()
    assert found.kv_bytes == 8000 * 327_680
    assert found.kv_bytes_per_link == pytest.approx(328e6, rel=0.01)
    assert found.chosen.seconds == pytest.approx(6.6e-3, rel=0.01)
    assert found.prefill_seconds == pytest.approx(0.8)
    assert found.chosen.share_of_prefill == pytest.approx(0.008, abs=5e-4)
    assert (found.prefill.replicas, found.decode and found.decode.replicas) == (6, 3)
    assert found.prefill_with_hits.busy == pytest.approx(1.02)
    assert (found.decode_concurrency, found.max_batch) == (240, 100)


@pytest.mark.parametrize(
    ("query", "milliseconds"),
    [
        ({"link": "nvlink4"}, 0.73),
        ({"cards": "one"}, 52.4),
        ({"dtype": "fp8"}, 3.28),
        ({"prompt": "16000"}, 13.1),
        ({"prompt": "100000"}, 81.9),
        ({"model": "llama2-7b", "tp": "1", "prompt": "4096", "link": "nvlink3"}, 7.16),
    ],
)
def test_transfers_take_bytes_over_bandwidth(query: dict[str, str], milliseconds: float) -> None:
    assert of(**query).chosen.seconds * 1e3 == pytest.approx(milliseconds, rel=0.01)


def test_a_target_that_no_replica_meets_has_no_decode_pool() -> None:
    assert of(tpot="20").decode is None


def test_a_roofline_follows_the_gpu() -> None:
    fast, slow = of(cost="roofline", gpu="h100"), of(cost="roofline", gpu="a100")
    assert fast.prefill_seconds < slow.prefill_seconds
    assert fast.kv_bytes == slow.kv_bytes


@pytest.fixture(scope="module")
def films() -> dict[Arm, Film]:
    arms: tuple[Arm, ...] = ("longest-match", "cache-aware", "preble")
    return {
        arm: film(parse(BurstQuestion, {"policy": arm, "seconds": "6"}).burst, build_policy)
        for arm in arms
    }


def test_the_longest_match_alone_makes_everybody_wait_at_one_worker(
    films: dict[Arm, Film],
) -> None:
    alone = films["longest-match"]
    busy = [sum(map(max, worker)) for worker in alone.running]
    assert sum(1 for most in busy if most) == 1
    for other in (films["cache-aware"], films["preble"]):
        for theirs, ours in zip(alone.classes, other.classes, strict=True):
            assert theirs.label == ours.label
            assert theirs.ttft_p99 > 5 * ours.ttft_p99
        assert other.imbalance < alone.imbalance


def test_a_film_has_every_worker_class_and_frame_and_ends_empty(films: dict[Arm, Film]) -> None:
    for found in films.values():
        assert [each.label for each in found.classes] == list(CLASSES)
        assert found.times[0] == 0
        assert found.times == sorted(found.times)
        for counts in (found.waiting, found.running):
            assert {len(row) for worker in counts for row in worker} == {NUM_FRAMES}
            assert len(counts) == 8
            assert all(number >= 0 for worker in counts for row in worker for number in row)
            assert {row[-1] for worker in counts for row in worker} == {0}


def test_all_that_wait_at_once_are_at_most_all_there_are(films: dict[Arm, Film]) -> None:
    for found in films.values():
        for kind, each in enumerate(found.classes):
            most = max(
                sum(worker[kind][frame] for worker in found.waiting) for frame in range(NUM_FRAMES)
            )
            assert most <= each.num_requests


def test_the_same_burst_gives_the_same_film(films: dict[Arm, Film]) -> None:
    again = Burst(policy="cache-aware", queue="fcfs", rate=125.0, seconds=6.0, seed=1)
    assert film(again, build_policy) == films["cache-aware"]
