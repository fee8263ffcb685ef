"""Histograms and counters, read by Prometheus's own parser: they count requests, and stay few."""

import json
import random
import tracemalloc
from collections import defaultdict
from itertools import pairwise, product

import pytest
from fake_worker import JSON_OK, OK, FakeWorker, always, ask, hang_up, post, until
from operated import operated, reports_load
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from expediter.cluster.decisions import Decision
from expediter.config import HealthConfig
from expediter.gateway.gateway import Gateway
from expediter.gateway.observations import MAX_CLASSES, MAX_SERIES, Observations
from expediter.gateway.reports import EVENT_BLOCK_BYTES
from expediter.gateway.request import HttpRequest
from expediter.gateway.story import Story
from expediter.kvcache.events import BlockStored
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.view import RoutedRequest

HISTOGRAMS = (
    "expediter_time_to_first_token_seconds",
    "expediter_time_per_output_token_seconds",
    "expediter_request_seconds",
    "expediter_queueing_seconds",
    "expediter_routing_seconds",
)


def scrape(gateway: Gateway) -> dict[str, list[Sample]]:
    """Samples by name."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families(gateway.metrics.page().decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            samples[sample.name].append(sample)
    return samples


def total(samples: list[Sample], **labels: str) -> float:
    """The sum of those with these labels."""
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


def answer(*, prompt: int, cached: int, output: int) -> bytes:
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
    body = json.dumps({"usage": usage}).encode()
    return OK + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def ask_as(gateway: Gateway, slo_class: str, prompt: str = "x") -> None:
    headers = f"X-SLO-Class: {slo_class}\r\n" if slo_class else ""
    await ask(gateway, post(json.dumps({"prompt": prompt}).encode(), headers=headers))


async def test_histograms_count_the_requests_of_each_class() -> None:
    async with (
        FakeWorker(always(answer(prompt=10, cached=0, output=5)), name="a") as a,
        operated(a) as (gateway, _),
    ):
        for slo_class in ("fast", "fast", "slow", ""):
            await ask_as(gateway, slo_class)
        found = scrape(gateway)
        for name in HISTOGRAMS:
            counts, buckets = found[f"{name}_count"], found[f"{name}_bucket"]
            assert total(counts, **{"class": "fast"}) == 2, name
            assert total(counts, **{"class": "none"}) == 1, name
            assert total(counts, worker="a", model="none") == 4
            assert total(buckets, le="+Inf") == 4
            for slo_class in ("fast", "slow", "none"):
                row = [s.value for s in buckets if s.labels["class"] == slo_class]
                assert all(low <= high for low, high in pairwise(row))
        assert total(found["expediter_requests_total"], status="200") == 4
        assert total(found["expediter_time_to_first_token_seconds_sum"]) > 0


async def test_failures_count_as_requests_and_not_as_latencies() -> None:
    async with FakeWorker(hang_up(), name="a") as a, operated(a) as (gateway, _):
        await ask_as(gateway, "")
        await ask(gateway, post(b'{"kv_transfer_params": {}}'))
        found = scrape(gateway)
        assert total(found["expediter_requests_total"], status="502") == 1
        assert total(found["expediter_time_to_first_token_seconds_count"]) == 0
        assert total(found["expediter_worker_failures_total"], worker="a") == 1
        assert total(found["expediter_rejections_total"], kind="invalid_request_error") == 1


async def test_a_retry_and_one_there_is_no_budget_for_are_counted() -> None:
    async with (
        FakeWorker(hang_up(), name="a") as a,
        FakeWorker(hang_up(), name="b") as b,
        operated(a, b) as (gateway, admin),
    ):
        await ask_as(gateway, "")
        retries = {"per-second": 0, "fraction": 0, "burst": 1}
        changed = await admin.post("/policy", json={"retries": retries})
        assert changed.status_code == 200
        for _ in range(2):
            await until(lambda: len(gateway.membership.ready()) == 2)
            await ask_as(gateway, "")
        found = scrape(gateway)
        assert total(found["expediter_retries_total"]) == 2
        assert total(found["expediter_retries_refused_total"]) == 1


async def test_predicted_and_actual_hits_and_what_the_index_holds() -> None:
    async with (
        FakeWorker(always(answer(prompt=400, cached=320, output=1)), name="a") as a,
        operated(a) as (gateway, _),
    ):
        for _ in range(2):
            await ask_as(gateway, "", prompt="once upon a time " * 100)
        found = scrape(gateway)
        assert total(found["expediter_worker_actual_cached_tokens_total"], worker="a") == 640
        predicted = found["expediter_worker_predicted_cached_tokens_total"]
        assert 384 <= total(predicted, worker="a") <= 425
        blocks = total(found["expediter_index_blocks"], worker="a", source="assumed")
        assert blocks == gateway.index.num_assumed_blocks("a") > 0  # type: ignore[arg-type]
        [size] = found["expediter_index_bytes"]
        num_keys = gateway.index.num_assumed_keys(WorkerId("a"))  # of text, one for four blocks
        assert 4 * num_keys == blocks
        assert 100 * num_keys < size.value < 300 * num_keys
        assert total(found["expediter_views_relearnt_total"], worker="a") == 0


async def test_what_workers_say_of_themselves_is_passed_on() -> None:
    health = HealthConfig(load_interval_seconds=0.05)
    async with FakeWorker(reports_load, name="a") as a, operated(a, health=health) as (gateway, _):
        await until(lambda: gateway.membership.members["a"].load is not None)  # type: ignore[index]
        found = scrape(gateway)
        names = ("running", "waiting", "other_requests", "kv_usage")
        values = [total(found[f"expediter_worker_{name}"], worker="a") for name in names]
        assert values == [3, 2, 5, 0.25]


async def test_names_that_clients_choose_make_few_series() -> None:
    async with FakeWorker(always(JSON_OK), name="a") as a, operated(a) as (gateway, _):
        for number in range(MAX_CLASSES + 20):
            headers = f"X-SLO-Class: class-{number}\r\n"
            body = json.dumps({"prompt": "x", "model": f"model-{number}"}).encode()
            await ask(gateway, post(body, headers=headers))
        counts = scrape(gateway)["expediter_request_seconds_count"]
        classes = {sample.labels["class"] for sample in counts}
        assert len(counts) == len(classes) == MAX_CLASSES + 1
        assert {sample.labels["model"] for sample in counts} == {"other"}
        assert total(counts, **{"class": "other"}) == 20
        assert total(counts) == MAX_CLASSES + 20


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\xe4\n".strip(), "{x='1'}"])
async def test_odd_names_break_no_scrape(name: str) -> None:
    async with FakeWorker(always(JSON_OK), name="a") as a, operated(a) as (gateway, _):
        await ask(
            gateway,
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-SLO-Class: "
            + name.encode("latin-1")
            + b"\r\nContent-Length: 2\r\n\r\n{}",
        )
        [count] = scrape(gateway)["expediter_request_seconds_count"]
        assert count.labels["class"] == name


async def test_a_worker_that_is_gone_takes_its_series_with_it() -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        operated(a, b) as (gateway, admin),
    ):
        await admin.post("/policy", json={"policy": "round-robin"})
        for _ in range(2):
            await ask_as(gateway, "")
        await admin.delete("/workers/a")
        await until(lambda: list(gateway.membership.members) == ["b"])
        labelled = [s for samples in scrape(gateway).values() for s in samples]
        workers = {s.labels["worker"] for s in labelled if "worker" in s.labels}
        assert workers == {"b"}


def test_classes_are_told_apart_only_while_series_are_few() -> None:
    observations = Observations(is_served=lambda _: True)
    models, workers = [f"m{n}" for n in range(4)], [f"w{n}" for n in range(50)]
    for number in range(MAX_CLASSES):
        for model, worker in product(models, workers):
            observations.add(_story(model=model, worker=worker, slo_class=f"c{number}"))
    found = list(observations.series(workers))
    assert MAX_SERIES < len(found) <= MAX_SERIES + 4 * 50
    assert sum(series.total.counts[0] for _, series in found) == MAX_CLASSES * 4 * 50


def _story(*, model: str, worker: str, slo_class: str) -> Story:
    decision = Decision(
        request_id="r",
        worker_id=WorkerId(worker),
        reason="",
        num_tokens=1,
        matched_tokens=0,
        scores={},
        placed_at=0.0,
        num_tries=1,
        ttft=0.0,
        is_answered=True,
    )
    return Story(
        request=HttpRequest(),
        client=b"",
        arrived_at=0.0,
        routed=RoutedRequest(request_id="r", model=model),
        slo_class=slo_class,
        decision=decision,
        status=200,
    )


def test_what_a_block_takes_is_about_what_is_said() -> None:
    """Measured as memory that Python allocates for blocks with engine hashes of 32 bytes."""
    rng, worker_id = random.Random(1), WorkerId("a")
    index = PrefixIndex(clock=lambda: 0.0, block_size=16, assumed_capacity=1)
    index.add_worker(worker_id)
    tokens = [[rng.randrange(50_000) for _ in range(16_000)] for _ in range(4)]
    tracemalloc.start()
    try:
        for each in tokens:
            hashes = [rng.randbytes(32) for _ in range(1000)]
            index.apply(
                worker_id,
                BlockStored(
                    block_hashes=hashes, parent_block_hash=None, token_ids=each, block_size=16
                ),
            )
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    each_block = taken / index.num_blocks(worker_id)
    assert 0.5 * EVENT_BLOCK_BYTES < each_block < 1.5 * EVENT_BLOCK_BYTES
