"""From a request's bytes to its fields.

A field of a body is one of three kinds: those of `protocol.py` do something; those below are
known, not implemented, and refused unless their value asks for nothing; all others are
ignored, as vLLM ignores them.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from expediter.errors import BodyTooLarge, RequestError, UnsupportedParameter
from expediter.worker.protocol import AnyBody, GenerationRequest

logger = logging.getLogger(__name__)

# Field to the values that ask for nothing; null and absence always do.
ONLY_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "suffix": ("",),
    "logit_bias": ({},),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "use_beam_search": (False,),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logprob_token_ids": ([],),
    "prompt_embeds": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "return_tokens_as_token_ids": (False,),
    "chat_template": (),
    "modalities": (["text"],),
    "audio": (),
}


_NotImplemented = msgspec.defstruct(
    "_NotImplemented", [(name, Any, None) for name in ONLY_NEUTRAL], frozen=True
)


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body; BodyTooLarge as soon as it is known to be longer than `max_bytes`."""
    promised = request.headers.get("content-length", "0")
    parts, num_bytes = [], int(promised) if promised.isdecimal() else 0
    if num_bytes <= max_bytes:
        num_bytes = 0
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes > max_bytes:
                break
            parts.append(part)
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"the body is longer than {max_bytes} bytes")
    return b"".join(parts)


def decode_body(body: bytes, kind: type[AnyBody]) -> AnyBody:
    """The body's fields, checked; RequestError names the one that is wrong."""
    try:
        decoded = msgspec.json.decode(body, type=kind)
        if issubclass(kind, GenerationRequest):
            _refuse_what_is_missing(msgspec.json.decode(body, type=_NotImplemented))
    except msgspec.ValidationError as error:
        message, param = _translate(str(error))
        raise RequestError(message, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    decoded.check()
    if logger.isEnabledFor(logging.DEBUG):
        _log_ignored(body, kind)
    return decoded


def _refuse_what_is_missing(fields: msgspec.Struct) -> None:
    for name, allowed in ONLY_NEUTRAL.items():
        value = getattr(fields, name)
        if value is not None and value not in allowed:
            words = " or ".join(msgspec.json.encode(v).decode() for v in (*allowed, None))
            raise UnsupportedParameter(
                f"{name} is not implemented here; it may only be {words}", param=name
            )


def _translate(message: str) -> tuple[str, str | None]:
    """msgspec's message in words of the request, and the field it is about."""
    what, _, path = message.partition(" - at `$")
    param = path.strip("`.") or None
    if what.startswith("Object missing required field"):
        param = what.split("`")[1]
    what = what.replace("Expected", "expected", 1).replace("Object", "the body is", 1)
    return f"{param}: {what}" if param else what, param


def _log_ignored(body: bytes, kind: type[msgspec.Struct]) -> None:
    known = {*kind.__struct_fields__, *ONLY_NEUTRAL}
    ignored = [name for name in msgspec.json.decode(body, type=dict[str, Any]) if name not in known]
    if ignored:
        logger.debug("ignored fields: %s", ", ".join(ignored))
