"""Requests that two workers serve: what each of them is sent, and what the client gets."""

import asyncio
import json

import pytest
from fake_worker import Received, ask, post
from pair_workers import (
    BODY,
    OFFERED,
    PROMPT,
    STREAMED,
    DecodeWorker,
    PrefillWorker,
    answer,
    expediter_source,
    fields_of,
    pools,
    sglang,
    stream,
    vllm_prefill,
)

from expediter.cluster.membership import Model
from expediter.cluster.worker_metrics import ReportedLoad
from expediter.config import DisaggregationConfig


async def test_vllm_s_prefill_worker_comes_first_and_the_decode_worker_gets_its_answer() -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, post(BODY, headers="X-Request-Id: r1\r\n"))
        assert (got.status, got.body) == (200, STREAMED)
        assert got.headers["x-expediter-worker"] == "d"
        assert got.headers["x-expediter-prefill-worker"] == "p"
        assert got.headers["x-expediter-reason"] == "split"
        [first], [second] = p.received, d.received
        assert first.values("x-request-id") == second.values("x-request-id") == ["r1"]
        asked = fields_of(first)
        assert asked.pop("kv_transfer_params") == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
        assert asked == {"prompt": PROMPT, "max_tokens": 1, "stream": False}
        params = json.dumps(OFFERED).encode()
        assert second.body == BODY[:-1] + b',"kv_transfer_params":' + params + b"}"


async def test_a_decode_worker_is_told_nothing_where_there_is_nothing_to_fetch() -> None:
    async with (
        PrefillWorker(vllm_prefill(None), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, post(BODY))
        assert got.body == STREAMED
        assert got.headers["x-expediter-fallback"] == "nothing-to-fetch"
        assert d.received[0].body == BODY


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["one", "two"], "max_tokens": 4},
        {"prompt": [[1, 2], [3]], "max_tokens": 4},
        {"prompt": PROMPT, "use_beam_search": True},
    ],
)
async def test_what_has_several_prompts_is_not_split_by_vllm(body: dict[str, object]) -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        raw = json.dumps(body).encode()
        assert (await ask(gateway, post(raw))).body == STREAMED
        assert (p.received, [r.body for r in d.received]) == ([], [raw])


async def test_an_answer_of_one_token_needs_no_decode_worker() -> None:
    async with (
        PrefillWorker(stream(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        await ask(gateway, post(b'{"prompt": "a b", "max_tokens": 1}'))
        assert (len(p.received), d.received) == (1, [])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses"])
async def test_other_paths_are_served_by_one_worker(path: str) -> None:
    async with (
        PrefillWorker(stream(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        await ask(gateway, post(b'{"input": "x"}', path=path))
        assert (p.received, len(d.received)) == ([], 1)


TOLD = (
    b'data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":2},"kv_transfer":'
    b'{"source":"engine-p","tokens":63,"bytes":4096,"hidden_bytes":4000,"seconds":0.25,'
    b'"exposed_seconds":0.01,"first_token":"prefill","failure":null}}\n\n'
)


async def test_our_workers_are_asked_at_the_same_time_and_meet_by_a_name() -> None:
    prefilled = asyncio.Event()

    async def prefill(_: Received, writer: asyncio.StreamWriter) -> None:
        prefilled.set()
        writer.write(answer({"choices": [], "kv_transfer_params": None}))

    async def decode(request: Received, writer: asyncio.StreamWriter) -> None:
        await prefilled.wait()
        await stream()(request, writer)

    async with (
        expediter_source(PrefillWorker(prefill, name="p")) as p,
        expediter_source(DecodeWorker(decode, name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, post(BODY))
        assert got.headers["x-expediter-prefill-worker"] == "p"
        source = fields_of(p.received[0])["kv_transfer_params"]
        name = {"transfer_id": source["transfer_id"]}
        assert source == {"do_remote_decode": True, "do_remote_prefill": False, **name}
        assert fields_of(d.received[0])["kv_transfer_params"] == {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "engine-p",
            "remote_host": "127.0.0.1",
            "remote_port": 7001,
            **name,
        }


async def test_what_a_worker_says_of_its_transfer_is_in_the_decision_and_counted() -> None:
    async with (
        expediter_source(PrefillWorker(vllm_prefill(None), name="p")) as p,
        expediter_source(DecodeWorker(stream(TOLD), name="d")) as d,
        pools(p, d) as gateway,
    ):
        await ask(gateway, post(BODY))
        [decision] = gateway.reports.decisions()
        transfer = decision["transfer"]
        assert (transfer["bytes"], transfer["hidden_bytes"]) == (4096, 4000)
        assert transfer["first_token"] == "prefill"
        assert (decision["worker"], decision["prefill_worker"]) == ("d", "p")
        page = gateway.metrics.page().decode()
        assert "expediter_transfers_total 1.0" in page
        assert "expediter_transfer_bytes_total 4096.0" in page


async def test_sglang_s_workers_get_the_same_body_with_a_room() -> None:
    async with (
        sglang(PrefillWorker(stream(), name="p")) as p,
        sglang(DecodeWorker(stream(), name="d")) as d,
        pools(p, d) as gateway,
    ):
        for _ in range(2):
            assert (await ask(gateway, post(BODY))).body == STREAMED
        assert [r.body for r in p.received] == [r.body for r in d.received]
        fields = [fields_of(r) for r in d.received]
        assert {f["bootstrap_host"] for f in fields} == {"127.0.0.1"}
        assert {f["bootstrap_port"] for f in fields} == {9001}
        rooms = {f["bootstrap_room"] for f in fields}
        assert len(rooms) == 2
        assert all(0 <= room < 2**63 for room in rooms)


async def test_a_batch_at_sglang_has_a_room_for_each_sequence() -> None:
    async with (
        sglang(PrefillWorker(stream(), name="p")) as p,
        sglang(DecodeWorker(stream(), name="d")) as d,
        pools(p, d) as gateway,
    ):
        await ask(gateway, post(b'{"prompt": ["a", "b"], "n": 2}'))
        fields = fields_of(d.received[0])
        assert fields["bootstrap_host"] == ["127.0.0.1"] * 4
        assert fields["bootstrap_port"] == [9001] * 4
        assert len(set(fields["bootstrap_room"])) == 4


async def test_a_short_prompt_stays_with_the_decode_worker() -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d, disaggregation=DisaggregationConfig(min_uncached_tokens=10_000)) as gateway,
    ):
        got = await ask(gateway, post(BODY))
        assert got.headers["x-expediter-reason"] == "short-prompt"
        assert "x-expediter-prefill-worker" not in got.headers
        assert (p.received, d.received[0].body) == ([], BODY)


async def test_after_a_transfer_both_workers_count_as_holding_the_prompt() -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        await ask(gateway, post(BODY))
        assert gateway.index.num_assumed_blocks("p") == gateway.index.num_assumed_blocks("d") > 0
        await ask(gateway, post(BODY))
        [decision, _] = gateway.reports.decisions()
        assert decision["matched_tokens"] == decision["prefill_matched_tokens"] > 0
        assert (decision["prefill_cached_tokens"], decision["cached_tokens"]) == (32, None)
        tally = gateway.dispatcher.log.workers["p"]
        assert tally.actual_cached_tokens == 64
        assert tally.predicted_cached_tokens == decision["prefill_matched_tokens"]


@pytest.mark.parametrize("field", ["kv_transfer_params", "bootstrap_host", "bootstrap_room"])
async def test_a_client_may_not_say_where_kv_comes_from(field: str) -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, post(b'{"prompt": "a", "%b": "1"}' % field.encode()))
        assert got.status == 400
        assert json.loads(got.body)["error"]["param"] == field
        assert not p.received + d.received


async def test_an_adapter_that_one_pool_has_loaded_does_not_leave_the_other_out() -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(stream(), name="d") as d,
        DecodeWorker(stream(), name="e") as e,
        pools(p, d, e) as gateway,
    ):
        members = gateway.membership.members
        for member in members.values():
            member.models = {"base": Model(id="base"), "lora": Model(id="lora", parent="base")}
        load = ReportedLoad(num_running=0, num_waiting=0, adapters=frozenset({"lora"}))
        members["e"].load = load
        got = await ask(gateway, post(BODY[:-1] + b', "model": "lora"}'))
        assert got.headers["x-expediter-prefill-worker"] == "p"
        assert got.headers["x-expediter-worker"] == "e"
