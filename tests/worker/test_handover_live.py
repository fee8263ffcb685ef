"""A prompt computed by one worker and answered by another, over loopback and shared memory."""

import asyncio
from typing import Any

import pytest
from handover_pair import Pair, pair
from hash_engine import BLOCK_SIZE, until
from live_server import HELLO, RENDERED, events_of, live_server

PROMPT = "abc def gh" * 8
BOTH_WAYS = pytest.mark.parametrize("way", ["serial", "concurrent"])


async def answered(both: Pair, way: str, prompt: object, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await getattr(both, way)(prompt, **fields)
    assert answer["kv_transfer"]["failure"] is None
    return answer


def text(answer: dict[str, Any]) -> str:
    found: str = answer["choices"][0]["text"]
    return found


def expected(both: Pair, prompt: str, num_tokens: int) -> str:
    return both.decode.model.expected(prompt.encode(), num_tokens).decode()


@BOTH_WAYS
async def test_the_answer_is_that_of_one_worker_and_only_the_decode_worker_decodes(
    way: str,
) -> None:
    async with pair() as both:
        answer = await answered(both, way, PROMPT, max_tokens=12)
        assert text(answer) == expected(both, PROMPT, 12)
        report = answer["kv_transfer"]
        assert (report["tokens"], report["first_token"]) == (len(PROMPT), "prefill")
        assert report["bytes"] == len(PROMPT) // BLOCK_SIZE * both.decode.model.layout.block_bytes
        assert report["source"] == (await both.source())["engine_id"]
        assert both.prefill.model.num_computed_tokens == len(PROMPT)
        assert both.decode.model.num_computed_tokens == 11
        await both.both_idle()


@BOTH_WAYS
@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17])
async def test_any_length_of_prompt(way: str, length: int) -> None:
    """A prompt shorter than a block is not handed over by vLLM's way."""
    async with pair() as both:
        answer = await getattr(both, way)(PROMPT[:length], max_tokens=6)
        assert text(answer) == expected(both, PROMPT[:length], 6)
        assert ("kv_transfer" in answer) == (way == "concurrent" or length >= BLOCK_SIZE)
        await both.both_idle()


@BOTH_WAYS
async def test_chunks_of_a_prompt_and_small_steps_change_nothing(way: str) -> None:
    small = {"max_batched_tokens": 7}
    async with pair(prefill=small, decode=small) as both:
        assert text(await answered(both, way, PROMPT, max_tokens=9)) == expected(both, PROMPT, 9)
        await both.both_idle()


async def test_layers_are_copied_while_later_ones_are_computed() -> None:
    async with pair() as both:
        both.prefill.model.may_write.clear()
        answer = asyncio.create_task(both.concurrent(PROMPT, max_tokens=3))
        block_bytes = both.decode.model.layout.block_bytes
        first_layer = 64 // BLOCK_SIZE * block_bytes // 3  # of the first chunk
        await until(lambda: both.decode.transport.num_bytes > 0)
        assert both.decode.transport.num_bytes == first_layer
        both.prefill.model.may_write.set()
        report = (await answer)["kv_transfer"]
        assert report["hidden_bytes"] >= first_layer
        await both.both_idle()


async def test_the_first_token_comes_before_the_kv() -> None:
    async with pair() as both:
        both.decode.transport.may_pull.clear()
        body = both.body(PROMPT, max_tokens=5, stream=True, stream_options={"include_usage": True})
        params = await both.params("t")
        prefill = asyncio.create_task(both.prefill_leg(PROMPT, name="t"))
        async with both.decode.live.http.stream(
            "POST", both.path, json=body | {"kv_transfer_params": params}
        ) as response:
            pieces = response.aiter_text()
            first = events_of(await anext(pieces))
            assert first[0]["choices"][0]["text"] == expected(both, PROMPT, 1)
            assert both.decode.model.steps == []
            both.decode.transport.may_pull.set()
            rest = events_of("".join([piece async for piece in pieces]))
        events = [*first, *rest]
        said = "".join(event["choices"][0]["text"] for event in events[:-2])
        assert said == expected(both, PROMPT, 5)
        assert events[-2]["kv_transfer"]["exposed_seconds"] > 0
        assert events[-1] == "[DONE]"
        await prefill
        await both.both_idle()


@BOTH_WAYS
async def test_what_the_decode_worker_holds_is_not_sent(way: str) -> None:
    async with pair() as both:
        await both.decode.live.complete(PROMPT[:40], max_tokens=1)
        answer = await answered(both, way, PROMPT, max_tokens=7)
        assert answer["kv_transfer"]["tokens"] == len(PROMPT) - 40
        assert text(answer) == expected(both, PROMPT, 7)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await both.both_idle()


@BOTH_WAYS
async def test_what_the_prefill_worker_holds_is_sent_and_told_as_cached(way: str) -> None:
    async with pair() as both:
        await both.prefill.live.complete(PROMPT[:40], max_tokens=1)
        answer = await answered(both, way, PROMPT, max_tokens=7)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
        assert answer["kv_transfer"]["tokens"] == len(PROMPT)
        assert text(answer) == expected(both, PROMPT, 7)
        await both.both_idle()


async def test_afterwards_both_hold_the_prefix_and_say_so() -> None:
    async with pair() as both:
        await both.concurrent(PROMPT, max_tokens=2)
        for side in (both.prefill, both.decode):
            answer = await side.live.complete(PROMPT, max_tokens=2)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == len(PROMPT) - BLOCK_SIZE
            assert sum(len(batch) for batch in side.live.rig.batches) > 0


@BOTH_WAYS
async def test_several_choices_come_from_one_prefill(way: str) -> None:
    async with pair() as both:
        wanted = {"n": 3, "temperature": 1, "seed": 5, "max_tokens": 6}
        alone = await both.prefill.live.complete(PROMPT, cache_salt="s", **wanted)
        num_computed = both.prefill.model.num_computed_tokens
        answer = await answered(both, way, PROMPT, **wanted)
        assert [c["text"] for c in answer["choices"]] == [c["text"] for c in alone["choices"]]
        assert answer["kv_transfer"]["first_token"] == "decode"
        assert both.prefill.model.num_computed_tokens - num_computed == len(PROMPT)
        # The first computes the last token of the prompt, the others their last block.
        assert both.decode.model.num_computed_tokens == 1 + 2 * BLOCK_SIZE + 3 * 5
        await both.both_idle()


@BOTH_WAYS
async def test_log_probabilities_come_along(way: str) -> None:
    async with pair() as both:
        wanted = {"logprobs": 2, "max_tokens": 4}
        alone = await both.decode.live.complete(PROMPT, cache_salt="s", **wanted)
        answer = await answered(both, way, PROMPT, **wanted)
        assert answer["choices"] == alone["choices"]
        assert answer["kv_transfer"]["first_token"] == "prefill"


async def test_a_first_token_without_the_wanted_log_probabilities_is_sampled_here() -> None:
    async with pair() as both:
        alone = await both.decode.live.complete(PROMPT, cache_salt="s", logprobs=2, max_tokens=4)
        first = await both.prefill_leg(PROMPT)
        params = first["kv_transfer_params"]
        answer = await both.decode_leg(PROMPT, params, logprobs=2, max_tokens=4)
        assert answer["choices"] == alone["choices"]
        assert answer["kv_transfer"]["first_token"] == "decode"
        assert answer["kv_transfer"]["tokens"] == len(PROMPT)


@BOTH_WAYS
async def test_one_token_needs_no_decode(way: str) -> None:
    async with pair() as both:
        answer = await getattr(both, way)(PROMPT, max_tokens=1)
        assert text(answer) == expected(both, PROMPT, 1)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert both.decode.model.steps == []
        await both.both_idle()


@pytest.mark.parametrize("ends_by", ["stop_token_ids", "stop"])
async def test_an_answer_that_stops_at_its_first_token(ends_by: str) -> None:
    async with pair() as both:
        word = expected(both, PROMPT, 1)
        stop: Any = [ord(word)] if ends_by == "stop_token_ids" else word
        answer = await both.concurrent(PROMPT, max_tokens=5, **{ends_by: stop})
        assert (text(answer), answer["choices"][0]["finish_reason"]) == ("", "stop")
        assert both.decode.model.steps == []
        await both.both_idle()


async def test_a_prompt_whose_answer_is_over_is_not_handed_over() -> None:
    async with pair() as both:
        both.prefill.model.script = b""
        first = await both.prefill_leg(PROMPT)
        assert first["choices"][0]["finish_reason"] == "stop"
        assert first["kv_transfer_params"] is None
        await both.prefill.until_idle()


@BOTH_WAYS
async def test_chats_are_handed_over_too(way: str) -> None:
    async with pair() as both:
        both.path = "/v1/chat/completions"
        answer = await answered(both, way, None, messages=HELLO, max_tokens=6)
        said = both.decode.model.expected(RENDERED, 6).decode()
        assert answer["choices"][0]["message"]["content"] == said


async def test_the_offer_is_what_vllms_routers_pass_on() -> None:
    async with pair() as both:
        source = await both.source()
        assert source | {"engine_id": "", "port": 0} == {
            "engine_id": "",
            "host": "127.0.0.1",
            "port": 0,
            "block_size": BLOCK_SIZE,
            "tp_size": 1,
            "role": "both",
        }
        offer = (await both.prefill_leg(PROMPT))["kv_transfer_params"]
        assert (offer["do_remote_prefill"], offer["do_remote_decode"]) == (True, False)
        assert len(offer["remote_block_ids"][0]) == len(PROMPT) // BLOCK_SIZE
        assert offer["remote_engine_id"] == source["engine_id"]
        assert (offer["remote_host"], offer["remote_port"]) == (source["host"], source["port"])
        assert (offer["remote_num_tokens"], offer["tp_size"]) == (len(PROMPT), 1)
        assert (offer["transfer_mode"], offer["remote_prefill_cached_tokens"]) == ("pull", 0)


async def test_many_at_once_with_shared_prefixes() -> None:
    async with pair(prefill={"num_blocks": 400}, decode={"num_blocks": 400}) as both:
        prompts = [PROMPT[: 20 + 4 * (number % 5)] + f"{number:03}" for number in range(24)]
        ways = [both.serial, both.concurrent]
        answers = await asyncio.gather(
            *(ways[number % 2](prompt, max_tokens=8) for number, prompt in enumerate(prompts))
        )
        assert [text(a) for a in answers] == [expected(both, p, 8) for p in prompts]
        await both.both_idle()


async def test_transfers_are_counted() -> None:
    async with pair() as both:
        await both.concurrent(PROMPT, max_tokens=2)
        await both.both_idle()
        page = (await both.decode.live.http.get("/metrics")).text
        num_bytes = len(PROMPT) // BLOCK_SIZE * both.decode.model.layout.block_bytes
        labels = 'engine="0",model_name="hash"'
        for line in (
            f"vllm:nixl_bytes_transferred_sum{{{labels}}} {float(num_bytes)}",
            f"vllm:nixl_xfer_time_seconds_count{{{labels}}} 1.0",
            f"vllm:nixl_num_failed_transfers_total{{{labels}}} 0.0",
            f"expediter:kv_transfer_exposed_seconds_count{{{labels}}} 1.0",
            f"expediter:kv_leased_blocks{{{labels}}} 0.0",
            f'vllm:prompt_tokens_by_source_total{{{labels},source="external_kv_transfer"}} 80.0',
            f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} 0.0',
        ):
            assert line in page


async def test_a_worker_without_transfers_says_so() -> None:
    async with live_server() as live:
        assert (await live.http.get("/kv_transfer_source")).status_code == 404


async def test_several_prompts_or_a_name_in_use_are_refused() -> None:
    async with pair() as both:
        source = await both.params("t")
        several = both.body(["ab", "cd"], kv_transfer_params=source)
        assert "one prompt" in (await both.decode.live.error(**several))["message"]
        both.prefill.model.may_run.clear()
        leg = asyncio.create_task(both.prefill_leg(PROMPT, name="t"))
        await both.prefill.live.until_steps(1)
        params = {"do_remote_decode": True, "transfer_id": "t"}
        again = both.body("ab", max_tokens=1, kv_transfer_params=params)
        assert "under way" in (await both.prefill.live.error(**again))["message"]
        both.prefill.model.may_run.set()
        await leg
