"""Another worker that says what is not so: the prompt is computed here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from handover_pair import Side, pair
from hash_engine import BLOCK_SIZE, until

from expediter.transfer.messages import Attach, EngineId, Hello, Offer
from expediter.transfer.peer import PeerConnection, serve_peers

PROMPT = "abc def gh" * 8
NUM_BLOCKS = len(PROMPT) // BLOCK_SIZE


@pytest.mark.parametrize("block", [2**40, 2**64 - 1])
async def test_an_offer_of_blocks_that_there_are_not(block: int) -> None:
    async with pair() as both, lying_source(both.prefill, block) as params:
        answer = await both.decode_leg(PROMPT, params, max_tokens=6)
        assert (
            answer["choices"][0]["text"] == both.decode.model.expected(PROMPT.encode(), 6).decode()
        )
        assert answer["kv_transfer"]["failure"] == "copy_failed"
        await until(lambda: both.decode.num_used_blocks == 0)


@asynccontextmanager
async def lying_source(like: Side, block: int) -> AsyncIterator[dict[str, Any]]:
    """Somebody who offers one block of a real pool, which is outside, for all of a prompt's."""
    connections: list[PeerConnection] = []

    async def answer(connection: PeerConnection) -> None:
        async with aclosing(connection.messages()) as messages:
            async for message in messages:
                if isinstance(message, Attach):
                    offer = Offer(
                        transfer_id=message.transfer_id,
                        serial=message.serial,
                        block_ids=(block,) * NUM_BLOCKS,
                        num_tokens=message.num_tokens,
                        num_cached_tokens=message.num_tokens,
                        lease_seconds=30,
                    )
                    connection.send(offer)

    async with asyncio.TaskGroup() as tasks:

        def accept(connection: PeerConnection) -> None:
            connections.append(connection)
            tasks.create_task(answer(connection))

        hello = Hello(engine_id=EngineId("liar"), pools=((like.transport.describe(),),))
        server = await serve_peers("127.0.0.1", 0, hello, accept)
        yield {
            "do_remote_prefill": True,
            "transfer_id": "t",
            "remote_engine_id": "liar",
            "remote_host": "127.0.0.1",
            "remote_port": server.sockets[0].getsockname()[1],
        }
        server.close()
        for connection in connections:
            connection.close()
