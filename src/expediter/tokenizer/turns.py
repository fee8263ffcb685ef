"""Chat templates that write a conversation turn by turn.

Jinja takes longer to render a long conversation than everything else about it. Most templates
write each turn by itself: what they make of a conversation is what they make of its beginning,
then something for each later turn that depends on that turn alone, then the opening of the
answer. Whether one does is tried out on probe conversations when it is loaded; one that fails
any of them is always rendered whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from expediter.errors import RequestError
from expediter.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]

_MARK = "sEnTiNeL"
_USER = {"role": "user", "content": "question"}
_ASSISTANT = {"role": "assistant", "content": "answer"}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
ROLES = ("system", "user", "assistant")
_CONTENTS = (
    "one",
    "  two \n",
    "",
    "<think>\nthought\n</think>\n\nsaid",
    "</think>",
    "<tool_response>\nz\n</tool_response>",
    "a\n\n[INST] b [/INST] \u4e2d\u6587 {{ c }}",
)
_SHAPES = ("u", "su", "ua", "uau", "suau", "uauauau", "suaua", "uu", "uaa", "ssu", "usu", "suuau")
_SHAPES_WITH_CALLS = ("uctau", "ucttau", "suctctau", "uauct", "sucTau", "nuRu", "suRu", "auau")
_EXTRAS: Mapping[str, Message] = {
    "s": {"role": "system"},
    "u": {"role": "user"},
    "a": {"role": "assistant"},
    "c": {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    "t": {"role": "tool", "tool_call_id": "c"},
    "T": {"role": "tool", "tool_call_id": "c", "name": "f"},
    "n": {"role": "user", "name": "bob"},
    "R": {"role": "assistant", "reasoning_content": "because"},
}


class TurnTemplate:
    """Texts that add up to what `Tokenizer.render_chat` makes of a conversation without tools.

    A turn is a message with the tool results that follow it. The first `num_head_turns` are the
    head, which is rendered as a conversation of its own.
    """

    def __init__(self, tokenizer: Tokenizer, *, num_head_turns: int) -> None:
        """Raises RequestError if the template cannot write the plainest conversation."""
        self._tokenizer = tokenizer
        self.num_head_turns = num_head_turns
        self.tells_time = "strftime_now" in (tokenizer.chat_template or "")
        self.opening = self._render([_USER], opens=True).removeprefix(self._render([_USER]))
        self._around = {role: self._plain(role) for role in ROLES}

    def head(self, turns: Sequence[Sequence[Message]]) -> str:
        """The text of a conversation's first turns; depends on the time if it `tells_time`."""
        return self._render([message for turn in turns for message in turn])

    def turn(self, turn: Sequence[Message]) -> str:
        """What a later turn adds; raises RequestError if that cannot be told."""
        message = turn[0]
        content = message.get("content")
        if len(turn) == 1 and len(message) == 2 and isinstance(content, str):
            around = self._around.get(str(message.get("role")))
            if around is not None:
                before, after, strips = around
                return before + (content.strip() if strips else content) + after
        return self._added(turn)

    def beginning(self, role: str) -> str | None:
        """What comes before the content of a plain message, as a later turn; None if unknown."""
        around = self._around.get(role)
        return None if around is None else around[0]

    def whole(self, messages: Sequence[Message], *, opens: bool) -> str:
        """The whole conversation, put together."""
        turns = split_turns(messages)
        head, later = turns[: self.num_head_turns], turns[self.num_head_turns :]
        return self.head(head) + "".join(map(self.turn, later)) + (self.opening if opens else "")

    def agrees(self, messages: Sequence[Message], *, opens: bool) -> bool | None:
        """Whether the whole is what the template makes of it; None if it refuses."""
        try:
            expected = self._render(messages, opens=opens)
        except RequestError:
            return None
        try:
            return self.whole(messages, opens=opens) == expected
        except RequestError:
            return False

    def _plain(self, role: str) -> tuple[str, str, bool] | None:
        """What comes before and after a plain message's content, and whether that is stripped."""
        try:
            before, mark, after = self._added([{"role": role, "content": _MARK}]).partition(_MARK)
            spaced = [self._added([{"role": role, "content": c}]) for c in _CONTENTS]
        except RequestError:
            return None
        for strips in (False, True):
            made = [before + (c.strip() if strips else c) + after for c in _CONTENTS]
            if mark and made == spaced:
                return before, after, strips
        return None

    def _added(self, turn: Sequence[Message]) -> str:
        base = [_USER] if turn[0].get("role") == "assistant" else [_USER, _ASSISTANT]
        start, whole = self._render(base), self._render([*base, *turn])
        if not whole.startswith(start):
            raise RequestError("the template rewrites earlier turns", param="messages")
        return whole[len(start) :]

    def _render(self, messages: Sequence[Message], *, opens: bool = False) -> str:
        return self._tokenizer.render_chat(messages, add_generation_prompt=opens)


def split_turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages by turns."""
    turns: list[list[Message]] = []
    for message in messages:
        if turns and message.get("role") == "tool":
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


def find_turns(tokenizer: Tokenizer) -> TurnTemplate | None:
    """The template by turns, or None if it does not write one turn after another."""
    if tokenizer.chat_template is None:
        return None
    for num_head_turns in (1, 2):  # a system message may go into the turn after it
        try:
            template = TurnTemplate(tokenizer, num_head_turns=num_head_turns)
        except RequestError:
            return None
        found = [
            template.agrees(probe, opens=opens) for probe in _probes() for opens in (False, True)
        ]
        if False not in found and found.count(True) >= len(_CONTENTS):
            return template
    return None


def _probes() -> list[list[Message]]:
    probes: list[list[Message]] = []
    for shift in range(len(_CONTENTS)):
        shapes = _SHAPES + _SHAPES_WITH_CALLS if shift < 2 else _SHAPES[:7]
        for shape in shapes:
            contents = [_CONTENTS[(shift + i) % len(_CONTENTS)] for i in range(len(shape))]
            probes.append(
                [{"content": c, **_EXTRAS[s]} for s, c in zip(shape, contents, strict=True)]
            )
    return probes
