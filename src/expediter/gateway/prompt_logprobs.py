"""What SGLang's two workers say of a prompt's tokens, put together.

In a `/generate` answer with `return_logprob` only the prefill worker knows the log probabilities of
the prompt; they go in front of what the decode worker lists (as in sglang-router's
`merge_logprobs`). All else stays as the decode worker wrote it, field by field.
"""

from collections.abc import Callable
from functools import partial

import msgspec

Raw = msgspec.Raw
_FIELDS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
_DATA = b"data:"
_Lists = dict[str, list[Raw]]

_objects = msgspec.json.Decoder(dict[str, Raw])
_answers = msgspec.json.Decoder(dict[str, Raw] | list[dict[str, Raw]])
_lists = msgspec.json.Decoder(list[Raw] | None)


def merged(prefill: bytes) -> Callable[[bytes], bytes]:
    """For a prefill worker's whole answer: what adds it to an answer, or to an event of a stream.

    What is not of the right form stays as it came: it is the worker's to answer for.
    """
    try:
        found = _prompts(prefill)
    except (msgspec.MsgspecError, RecursionError):
        return bytes  # the same object
    return partial(_merged_answer, found=found)


def _merged_answer(answer: bytes, found: dict[int, _Lists]) -> bytes:
    try:
        if answer.startswith(_DATA):
            return _merged_event(answer, found)
        fields = _answers.decode(answer)
        if isinstance(fields, dict):
            return msgspec.json.encode(_merged(fields, found.get(0, {})))
        every = [_merged(each, found.get(place, {})) for place, each in enumerate(fields)]
        return msgspec.json.encode(every)
    except (msgspec.MsgspecError, RecursionError):
        return answer


def _merged_event(event: bytes, found: dict[int, _Lists]) -> bytes:
    fields = _objects.decode(event.removeprefix(_DATA).strip())
    lists = found.get(_index(fields), {})
    return b"data: " + msgspec.json.encode(_merged(fields, lists))


def _merged(fields: dict[str, Raw], lists: _Lists) -> dict[str, Raw]:
    """One sequence's answer, with the prompt's lists in front of its own."""
    info = _objects.decode(fields["meta_info"]) if lists and "meta_info" in fields else {}
    for name, items in lists.items():
        own = _lists.decode(info[name]) if name in info else None
        info[name] = Raw(msgspec.json.encode([*items, *(own or [])]))
    return fields | {"meta_info": Raw(msgspec.json.encode(info))} if info else fields


def _prompts(prefill: bytes) -> dict[int, _Lists]:
    """The lists by sequence, from a whole answer or a stream."""
    if not prefill.lstrip().startswith(_DATA):
        if not prefill:
            return {}
        fields = _answers.decode(prefill)
        every = [fields] if isinstance(fields, dict) else fields
        return {place: _lists_of(each) for place, each in enumerate(every)}
    found: dict[int, _Lists] = {}
    for line in prefill.splitlines():
        data = line.removeprefix(_DATA).strip()
        if line.startswith(_DATA) and data != b"[DONE]":
            event = _objects.decode(data)
            found.setdefault(_index(event), {}).update(_lists_of(event))
    return found


def _lists_of(fields: dict[str, Raw]) -> _Lists:
    info = _objects.decode(fields["meta_info"]) if "meta_info" in fields else {}
    lists = {name: _lists.decode(info[name]) for name in _FIELDS if name in info}
    return {name: items for name, items in lists.items() if items}


def _index(fields: dict[str, Raw]) -> int:
    return msgspec.json.decode(fields["index"], type=int) if "index" in fields else 0
