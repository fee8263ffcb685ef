"""What two workers say to each other about KV that moves from one to the other.

The source computed a prompt and holds its KV; the target wants it. All messages may be repeated,
and (but for Hello) come in any order: each says how things stand, not what changed.

    Hello      both ways, first of all: who I am, and how my pools can be read
    Attach     target: this transfer is mine, keep its blocks for me; repeated to keep them longer
    Queued     source: I know of it, and hold nothing for it yet
    Offer      source: these blocks are where it is, or will be
    Progress   source: so many tokens are computed in so many layers
    Done       source: all of it is, and this is what was sampled
    Gone       source: I hold nothing under this name (any more)
    Release    target: I need nothing more of it

A frame is four bytes of length, big-endian, then MessagePack.
"""

from typing import NewType

import msgspec

from expediter.errors import TransferError
from expediter.request import SampledToken
from expediter.transfer.transport import KVHandle

TransferId = NewType("TransferId", str)
EngineId = NewType("EngineId", str)

PROTOCOL = 1
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 8 * 1024 * 1024  # an Offer of a million tokens has 300 KB


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """`pools` has, for each process that holds a part of the heads, its handles, best first."""

    engine_id: EngineId
    pools: tuple[tuple[KVHandle, ...], ...]
    protocol: int = PROTOCOL


class Attach(_Message, frozen=True, kw_only=True, tag="attach"):
    """`serial` counts up with each repetition; answers carry the newest one that came.

    `engine_id` is who the target thinks it talks to. `prompt` digests all that the KV depends on
    besides the model, as the target knows it; empty if it does not say.
    """

    transfer_id: TransferId
    serial: int
    engine_id: EngineId
    num_tokens: int
    prompt: bytes = b""


class Queued(_Message, frozen=True, kw_only=True, tag="queued"):
    """The request has come and waits for memory."""

    transfer_id: TransferId


class Offer(_Message, frozen=True, kw_only=True, tag="offer"):
    """The first `num_tokens` tokens' KV is, or will be, in these blocks of the source's pools.

    `num_cached_tokens` of them were there before. Held for `lease_seconds` from when the source
    got the Attach of that `serial`.
    """

    transfer_id: TransferId
    serial: int
    block_ids: tuple[int, ...]
    num_tokens: int
    lease_seconds: float
    num_cached_tokens: int = 0


class Progress(_Message, frozen=True, kw_only=True, tag="progress"):
    """The first `num_tokens` tokens' KV is there in the first `num_layers` layers."""

    transfer_id: TransferId
    num_tokens: int
    num_layers: int


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """Everything offered is there; the first token of each sequence that goes on from it."""

    transfer_id: TransferId
    tokens: tuple[SampledToken, ...]
    num_cached_tokens: int = 0


class Gone(_Message, frozen=True, kw_only=True, tag="gone"):
    """Nothing is held under this name; `reason` says why, for people."""

    transfer_id: TransferId
    reason: str = ""


class Release(_Message, frozen=True, kw_only=True, tag="release"):
    """The target has what it wanted, or wants it no more. Answered by Gone."""

    transfer_id: TransferId


FromTarget = Attach | Release
FromSource = Queued | Offer | Progress | Done | Gone
Message = Hello | Attach | Release | Queued | Offer | Progress | Done | Gone

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A whole frame; TransferError if it would be longer than a peer takes."""
    payload = _ENCODER.encode(message)
    check_length(len(payload))
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def decode(payload: bytes) -> Message:
    """The message in a frame, without its length; TransferError if it is none of ours."""
    try:
        return _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise TransferError(f"a message from another worker makes no sense: {error}") from error


def check_length(num_bytes: int) -> None:
    """Raises TransferError for a frame that is too long."""
    if num_bytes > MAX_FRAME_BYTES:
        raise TransferError(f"a message of {num_bytes} bytes; {MAX_FRAME_BYTES} are allowed")
