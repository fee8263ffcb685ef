"""Cache salts: one tenant's blocks have names that no other tenant's can have.

The salt is put into the body's bytes, which are otherwise left as they are. A client's own
`cache_salt` still parts its prompts from each other, but only below its tenant's salt: the two
are combined by HMAC, so no choice of the client's gives what another tenant has.
"""

import hashlib
import hmac
import re

import msgspec

from expediter.errors import RequestError

FIELD = "cache_salt"
_WHITESPACE = b" \t\r\n"
# A list of numbers is one token, so that token-id prompts are skipped at once.
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|\[[^\[\]{}"]*\]|[{}\[\],:]', re.DOTALL)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


def tenant_salt(secret: str, tenant_id: str) -> str:
    """A tenant's salt, from what only the server knows."""
    return _hmac(secret, f"tenant:{tenant_id}")


def combined_salt(salt: str, client_salt: str | None) -> str:
    """The salt of a request: the tenant's, or one that also depends on the client's."""
    return salt if client_salt is None else _hmac(salt, f"client:{client_salt}")


def salted(body: bytes, salt: str) -> bytes:
    """`body` with its request's salt; every other byte stays.

    Raises RequestError if it is not a JSON object, or has `cache_salt` twice or as no string.
    """
    try:
        fields = _objects.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RequestError("the body must be a JSON object") from None
    if FIELD in fields:
        return _replaced(body, salt)
    return with_field(body, FIELD, b'"%b"' % salt.encode())


def with_field(body: bytes, name: str, value: bytes) -> bytes:
    """A JSON object's bytes with one more field at the end; it must not have it yet."""
    body = body.rstrip(_WHITESPACE) if body[-1:] != b"}" else body
    is_empty = body[:-1].rstrip(_WHITESPACE)[-1:] == b"{"
    return b'%b%b"%b":%b}' % (body[:-1], b"" if is_empty else b",", name.encode(), value)


def value_spans(body: bytes, field: str) -> list[tuple[int, int]]:
    """The spans of the values that a field of a valid JSON object has, all of them."""
    spans: list[tuple[int, int]] = []
    depth, is_key, is_wanted, start = 0, False, False, 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"{[" and token.end() - token.start() == 1:
            depth += 1
            is_key = depth == 1
        elif depth == 1 and is_key and first == ord('"'):
            is_wanted = msgspec.json.decode(token[0], type=str) == field
            is_key = False
        elif depth == 1 and first == ord(":"):
            start = token.end()
        elif first in b"}]," and (depth == 1 or first != ord(",")):
            if depth == 1 and is_wanted:
                spans.append(_stripped(body, start, token.start()))
            is_wanted, is_key = is_wanted and depth != 1, depth == 1
            depth -= first != ord(",")
    return spans


def _replaced(body: bytes, salt: str) -> bytes:
    """The body with the combined salt in place of the client's."""
    spans = value_spans(body, FIELD)
    if len(spans) != 1:
        raise RequestError(f"{FIELD} is there more than once", param=FIELD)
    start, end = spans[0]
    try:
        given = msgspec.json.decode(body[start:end], type=str | None)
    except msgspec.MsgspecError:
        raise RequestError(f"{FIELD} must be a string", param=FIELD) from None
    return b'%b"%b"%b' % (body[:start], combined_salt(salt, given).encode(), body[end:])


def _stripped(body: bytes, start: int, end: int) -> tuple[int, int]:
    value = body[start:end]
    return end - len(value.lstrip(_WHITESPACE)), start + len(value.rstrip(_WHITESPACE))


def _hmac(key: str, message: str) -> str:
    # A lone surrogate is a legal JSON escape.
    data = message.encode("utf-8", "surrogatepass")
    return hmac.new(key.encode(), data, hashlib.sha256).hexdigest()
