"""The control channel over real sockets."""

import asyncio

import pytest

from expediter.errors import TransferError
from expediter.transfer.messages import (
    EngineId,
    Gone,
    Hello,
    Message,
    Release,
    TransferId,
    decode,
    encode,
)
from expediter.transfer.peer import PeerConnection, connect_peer, serve_peers

HOST = "127.0.0.1"


def hello(name: str, **fields: int) -> Hello:
    return Hello(engine_id=EngineId(name), pools=(), **fields)


async def test_both_sides_say_who_they_are_and_then_speak_freely() -> None:
    accepted: asyncio.Queue[PeerConnection] = asyncio.Queue()
    server = await serve_peers(HOST, 0, hello("source"), accepted.put_nowait)
    target = await connect_peer(HOST, server.sockets[0].getsockname()[1], hello("target"))
    source = await accepted.get()
    assert (target.hello.engine_id, source.hello.engine_id) == ("source", "target")
    name = TransferId("t")
    target.send(Release(transfer_id=name))
    source.send(Gone(transfer_id=name, reason="released"))
    assert await anext(source.messages()) == Release(transfer_id=name)
    assert await anext(target.messages()) == Gone(transfer_id=name, reason="released")
    target.close()
    assert [message async for message in source.messages()] == []
    source.close()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.05)  # sockets close on the loop's next turns


async def test_another_protocol_or_silence_or_nobody_is_an_error_at_once() -> None:
    accepted: list[PeerConnection] = []
    server = await serve_peers(HOST, 0, hello("source", protocol=99), accepted.append)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransferError, match="version 1"):
        await connect_peer(HOST, port, hello("target"))
    await asyncio.sleep(0.05)  # the server may still be greeting us
    server.close()
    for connection in accepted:
        connection.close()
    await server.wait_closed()
    with pytest.raises(TransferError, match="cannot be reached"):
        await connect_peer(HOST, port, hello("target"))

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, HOST, 0)
    with pytest.raises(TransferError, match="said nothing"):
        await connect_peer(HOST, silent.sockets[0].getsockname()[1], hello("target"), seconds=0.01)
    silent.close()
    await silent.wait_closed()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x81\xa4type\xa4none"])
def test_nonsense_is_no_message(payload: bytes) -> None:
    with pytest.raises(TransferError, match="makes no sense"):
        decode(payload)


def test_a_message_type_survives_the_wire() -> None:
    message: Message = Gone(transfer_id=TransferId("t"), reason="r")
    assert decode(encode(message)[4:]) == message
