"""What a reader and an owner of a pool say to each other over TCP.

    owner   a nonce
    reader  HMAC-SHA256 of it under the secret in the owner's handle
    owner   WELCOME
    reader  a request: four bytes of length, big-endian, then MessagePack: slices, source side only
    owner   eight bytes: how many follow; then those bytes, slice by slice
    ...     the next request

The owner hangs up on whoever does not know the secret. It answers a request that it refuses with
REFUSED, then four bytes of length and a message for people. Bytes are not encrypted.
"""

import hashlib
import hmac
import socket
from collections.abc import Iterator, Sequence

import msgspec

from expediter.errors import LayoutMismatch, TransferError
from expediter.transfer.copy_plan import Slice, check_within
from expediter.transfer.strided import portions

NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
WELCOME = b"\x01"
LENGTH_BYTES = 4
TOTAL_BYTES = 8
REFUSED = 2 ** (8 * TOTAL_BYTES) - 1
MAX_REQUEST_BYTES = 64 * 1024 * 1024  # a scattered prompt of a million tokens has 2 MB
MAX_AXES = 8
STAGE_BYTES = 1024 * 1024  # short runs go through a buffer of so much
DIRECT_BYTES = 32 * 1024  # longer ones from and to where they lie

_DECODER = msgspec.msgpack.Decoder(list[Slice])


def proof(secret: bytes, nonce: bytes) -> bytes:
    """What only those who know the secret can answer to a nonce."""
    return hmac.digest(secret, nonce, "sha256")


def encode_request(slices: Sequence[Slice]) -> bytes:
    """A whole frame; TransferError if it would be longer than an owner takes."""
    theirs = [
        piece._replace(
            target_offset=0, axes=tuple(axis._replace(target_stride=0) for axis in piece.axes)
        )
        for piece in slices
    ]
    payload = msgspec.msgpack.encode(theirs)
    check_request_length(len(payload))
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def decode_request(payload: bytes, *, num_bytes: int) -> list[Slice]:
    """The slices of a pool of so many bytes; TransferError unless they are, and lie within it."""
    try:
        slices = _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise TransferError(f"a request makes no sense: {error}") from error
    for piece in slices:
        lengths = [piece.num_bytes, *(axis.length for axis in piece.axes)]
        if min(lengths) < 1 or len(lengths) > MAX_AXES:
            raise LayoutMismatch(f"a slice of {lengths} parts")
    check_within(slices, source=num_bytes, target=num_bytes)
    if sum(piece.total_bytes for piece in slices) > num_bytes:
        raise LayoutMismatch(f"a request for more than the {num_bytes} bytes of the pool")
    return slices


def parts(slices: Sequence[Slice]) -> Iterator[Slice]:
    """What is sent, or received, at once: a long run by itself, short ones together."""
    for piece in slices:
        yield from portions(piece, STAGE_BYTES if piece.num_bytes < DIRECT_BYTES else 1)


def check_request_length(num_bytes: int) -> None:
    """Raises TransferError for a request that is too long."""
    if num_bytes > MAX_REQUEST_BYTES:
        raise TransferError(f"a request of {num_bytes} bytes; {MAX_REQUEST_BYTES} are allowed")


def send(sock: socket.socket, view: memoryview) -> None:
    """Send it all; the socket's time-out is for each part that its buffer takes, not for all."""
    while view:
        view = view[sock.send(view) :]


def receive_exactly(sock: socket.socket, view: memoryview) -> None:
    """Fill a view; ConnectionError if the other side hangs up first."""
    while view:
        num_received = sock.recv_into(view)
        if not num_received:
            raise ConnectionResetError("the connection was closed")
        view = view[num_received:]


def receive(sock: socket.socket, num_bytes: int) -> bytes:
    """So many bytes; ConnectionError if the other side hangs up first."""
    buffer = bytearray(num_bytes)
    receive_exactly(sock, memoryview(buffer))
    return bytes(buffer)
