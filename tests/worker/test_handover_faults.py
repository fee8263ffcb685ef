"""A hand-over that breaks costs time and never an answer, and no block stays behind."""

import asyncio
import logging
from typing import Any

import httpx
import pytest
from handover_pair import Hand, Pair, pair, side
from hash_engine import BLOCK_SIZE, until

PROMPT = "abc def gh" * 8
NUM_BLOCKS = len(PROMPT) // BLOCK_SIZE


def text(answer: dict[str, Any]) -> str:
    found: str = answer["choices"][0]["text"]
    return found


def expected(both: Pair, num_tokens: int) -> str:
    return both.decode.model.expected(PROMPT.encode(), num_tokens).decode()


async def test_a_source_that_cannot_be_reached() -> None:
    async with pair() as both:
        params = await both.params("t") | {"remote_port": 9}
        answer = await both.decode_leg(PROMPT, params, max_tokens=6)
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] == "unreachable"
        assert both.decode.failures == {"unreachable": 1}
        await both.both_idle()


async def test_another_engine_at_the_same_address() -> None:
    async with pair() as both:
        params = await both.params("t") | {"remote_engine_id": "gone"}
        answer = await both.decode_leg(PROMPT, params, max_tokens=6)
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] == "unreachable"
        await both.both_idle()


async def test_a_name_that_the_source_never_hears_of() -> None:
    clock = Hand()
    async with pair(prefill={"clock": clock, "lease_seconds": 1}) as both:
        leg = asyncio.create_task(both.decode_leg(PROMPT, await both.params("t"), max_tokens=6))
        await until(lambda: both.prefill.handover.num_outgoing == 1)
        clock.now = 100
        assert text(await leg) == expected(both, 6)
        assert both.decode.failures == {"given_up": 1}
        await both.both_idle()


async def test_another_model_at_the_source() -> None:
    async with pair(prefill={"identity": "other"}) as both:
        for way in (both.serial, both.concurrent):
            answer = await way(PROMPT, max_tokens=6)
            assert text(answer) == expected(both, 6)
            assert answer["kv_transfer"]["failure"] == "layout_mismatch"
            assert answer["kv_transfer"]["bytes"] == 0
        await both.decode.until_idle()


async def test_two_legs_with_different_prompts_never_mix() -> None:
    async with pair() as both:
        params = await both.params("t")
        other = asyncio.create_task(both.prefill_leg(PROMPT[::-1], name="t"))
        answer = await both.decode_leg(PROMPT, params, max_tokens=6)
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] == "given_up"
        await other


async def test_a_prefill_that_throws() -> None:
    async with pair() as both:
        both.prefill.model.failures = [RuntimeError("no memory")]
        params = await both.params("t")
        leg = asyncio.create_task(both.decode_leg(PROMPT, params, max_tokens=6))
        await until(lambda: both.prefill.handover.num_outgoing == 1)
        sends = {"do_remote_decode": True, "transfer_id": "t"}
        body = both.body(PROMPT, max_tokens=1, kv_transfer_params=sends)
        assert (await both.prefill.live.http.post(both.path, json=body)).status_code == 500
        assert text(await leg) == expected(both, 6)
        assert both.decode.failures == {"given_up": 1}
        await both.both_idle()


async def test_a_copy_that_fails_is_computed_from_where_it_broke() -> None:
    async with pair() as both:
        both.prefill.model.may_write.clear()
        leg = asyncio.create_task(both.concurrent(PROMPT, max_tokens=6))
        await until(lambda: both.decode.transport.num_bytes > 0)
        both.decode.transport.num_good_pulls = 0
        both.prefill.model.may_write.set()
        answer = await leg
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] == "copy_failed"
        assert both.decode.failures == {"copy_failed": 1}
        await both.both_idle()


async def test_a_lease_that_ends_while_blocks_are_copied() -> None:
    """What arrives afterwards is not believed, and the slots are not reused before it did."""
    clock = Hand()
    async with pair(decode={"clock": clock, "lease_seconds": 1}) as both:
        both.decode.transport.may_pull.clear()
        leg = asyncio.create_task(both.serial(PROMPT, max_tokens=6))
        await until(lambda: both.decode.transport.num_waiting == 1)
        clock.now = 100
        await until(lambda: both.prefill.handover.num_leased_blocks == 0)
        assert both.decode.model.steps == [], "resumes only once nothing is written any more"
        both.decode.transport.may_pull.set()
        answer = await leg
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] == "lease_expired"
        assert answer["kv_transfer"]["first_token"] == "prefill"
        await both.both_idle()


async def test_an_offer_that_nobody_takes_ends_with_its_lease() -> None:
    clock = Hand()
    async with pair(prefill={"clock": clock, "lease_seconds": 1}) as both:
        first = await both.prefill_leg(PROMPT)
        assert both.prefill.handover.num_leased_blocks == NUM_BLOCKS
        clock.now = 2
        await both.prefill.until_idle()
        assert both.prefill.handover.num_expired_leases == 1
        answer = await both.decode_leg(PROMPT, first["kv_transfer_params"], max_tokens=6)
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] == "given_up"
        await both.both_idle()


async def test_a_full_decode_worker_lets_the_transfer_wait() -> None:
    async with pair(decode={"num_blocks": NUM_BLOCKS + 10}) as both:
        both.decode.model.may_run.clear()
        busy = asyncio.create_task(both.decode.live.complete("x" * 60, max_tokens=8))
        await both.decode.live.until_steps(1)
        leg = asyncio.create_task(both.concurrent(PROMPT, max_tokens=6))
        await both.prefill.live.until_steps(1)
        await until(lambda: both.decode.live.rig.worker.load().num_waiting == 1)
        assert both.decode.transport.num_bytes == 0
        both.decode.model.may_run.set()
        await busy
        answer = await leg
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["tokens"] == len(PROMPT)
        await both.both_idle()


async def test_a_prefill_worker_full_of_offers_goes_on_when_their_leases_end() -> None:
    clock = Hand()
    full = {"num_blocks": 2 * NUM_BLOCKS + 1, "clock": clock, "lease_seconds": 1}
    async with pair(prefill=full) as both:
        for letter in "xy":
            await both.prefill_leg(letter * len(PROMPT))
        leg = asyncio.create_task(both.serial(PROMPT, max_tokens=6))
        await until(lambda: both.prefill.live.rig.worker.load().num_waiting == 1)
        assert both.prefill.num_used_blocks == 2 * NUM_BLOCKS
        clock.now = 2
        answer = await leg
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] is None
        await both.both_idle()


async def test_a_sender_that_loses_its_blocks_hands_over_what_it_can() -> None:
    """Preempted by an older request's decode, it computes into other blocks than it offered."""
    async with pair(prefill={"num_blocks": 24, "max_batched_tokens": 8}) as both:
        prefill, may_run = both.prefill.live, both.prefill.model.may_run
        older = asyncio.create_task(prefill.complete("x" * 12, max_tokens=40))

        def is_at_its_20th_step() -> bool:  # it holds 8 blocks then, and needs 13 in the end
            may_run.set()  # lets one step run, if one waits
            may_run.clear()
            return len(prefill.model.steps) == 20

        await until(is_at_its_20th_step)
        leg = asyncio.create_task(both.concurrent(PROMPT[:60], max_tokens=6))
        await until(lambda: prefill.rig.worker.load().num_waiting == 1)
        may_run.set()
        answer = await leg
        assert text(answer) == both.decode.model.expected(PROMPT[:60].encode(), 6).decode()
        assert prefill.rig.worker.scheduler.num_preemptions > 0
        assert answer["kv_transfer"]["failure"] == "given_up"
        await older
        await both.both_idle()


@pytest.mark.parametrize("moment", ["queued", "prefill", "transfer", "decode"])
async def test_a_client_that_leaves_frees_both_workers(moment: str) -> None:
    async with pair() as both:
        gates = {
            "queued": both.prefill.model.may_run,
            "prefill": both.prefill.model.may_write,
            "transfer": both.decode.transport.may_pull,
            "decode": both.decode.model.may_run,
        }
        gates[moment].clear()
        params = await both.params("t")
        leg = asyncio.create_task(both.decode_leg(PROMPT, params, max_tokens=9))
        await until(lambda: both.prefill.handover.num_outgoing == 1)
        prefill = asyncio.create_task(both.prefill_leg_status(PROMPT, name="t"))
        reached = {
            "queued": lambda: bool(both.prefill.model.steps),
            "prefill": lambda: both.decode.transport.num_bytes > 0,
            "transfer": lambda: both.decode.transport.num_waiting == 1,
            "decode": lambda: bool(both.decode.model.steps),
        }
        await until(reached[moment])
        leg.cancel()
        await asyncio.wait([leg])
        is_early = moment in ("queued", "prefill")
        if is_early:
            assert await prefill == 502, "nobody waits for the prompt any more"
        gates[moment].set()
        assert is_early or await prefill == 200
        await both.both_idle()
        assert text(await both.concurrent(PROMPT, max_tokens=3)) == expected(both, 3)


@pytest.mark.parametrize("moment", ["queued", "prefill"])
async def test_a_prefill_leg_whose_client_leaves_is_computed_by_the_other(moment: str) -> None:
    async with pair() as both:
        model = both.prefill.model
        gate = model.may_run if moment == "queued" else model.may_write
        gate.clear()
        params = await both.params("t")
        leg = asyncio.create_task(both.decode_leg(PROMPT, params, max_tokens=6))
        prefill = asyncio.create_task(both.prefill_leg(PROMPT, name="t"))
        await both.prefill.live.until_steps(1)
        prefill.cancel()
        assert text(await leg) == expected(both, 6)
        gate.set()
        await both.both_idle()


async def test_a_prefill_that_comes_after_its_target_left_is_given_up_at_once() -> None:
    async with pair() as both:
        leg = asyncio.create_task(both.decode_leg(PROMPT, await both.params("t"), max_tokens=6))
        await until(lambda: both.prefill.handover.num_outgoing == 1)
        leg.cancel()
        await until(lambda: both.prefill.handover.num_outgoing == 0)
        assert await both.prefill_leg_status(PROMPT, name="t") == 502
        assert both.prefill.model.steps == []
        await both.both_idle()


async def test_the_name_of_an_offer_cannot_be_taken_again() -> None:
    async with pair() as both:
        await both.prefill_leg(PROMPT, name="t")
        assert await both.prefill_leg_status(PROMPT, name="t") == 400
        answer = await both.decode_leg(PROMPT, await both.params("t"), max_tokens=6)
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] is None
        await both.both_idle()


async def test_a_prefill_worker_that_shuts_down_waits_for_its_readers() -> None:
    async with side("decode") as decode, side("prefill") as prefill:
        both = Pair(prefill, decode)
        decode.transport.may_pull.clear()
        leg = asyncio.create_task(both.serial(PROMPT, max_tokens=6))
        await until(lambda: decode.transport.num_waiting == 1)
        draining = asyncio.create_task(prefill.live.rig.worker.drain(10))
        await until(lambda: prefill.live.rig.worker.is_draining)
        decode.transport.may_pull.set()
        answer = await leg
        assert text(answer) == expected(both, 6)
        assert answer["kv_transfer"]["failure"] is None
        await draining


async def test_a_stranger_at_the_port_is_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with pair() as both:
        source = await both.source()
        reader, writer = await asyncio.open_connection(source["host"], source["port"])
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        while await reader.read(1000):
            pass
        writer.close()
        assert "refused" in caplog.text
        assert text(await both.concurrent(PROMPT, max_tokens=3)) == expected(both, 3)


async def test_a_prompt_that_does_not_fit_is_refused_on_either_side() -> None:
    async with pair() as both:
        async with httpx.AsyncClient() as client:
            for port, params in (
                (both.prefill.live.port, {"do_remote_decode": True}),
                (both.decode.live.port, await both.params("t")),
            ):
                body = both.body("x" * 600, max_tokens=1, kv_transfer_params=params)
                response = await client.post(f"http://127.0.0.1:{port}{both.path}", json=body)
                assert response.status_code == 400
        await both.both_idle()
