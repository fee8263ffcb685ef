"""Made-up words: as many tokens as asked for, shared where transcripts are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.workload.prose import Prose
from expediter.workload.transcript import EMPTY, Segment


def num_pieces(text: str) -> int:
    """A small tokenizer: words in pieces of at most six letters, and marks."""
    return len(re.findall(r"\w{1,6}|[^\w\s]", text))


PROSE = Prose(num_pieces)


@pytest.mark.parametrize("num_tokens", [50, 200, 1000, 6000])
def test_texts_have_about_the_tokens_asked_for(num_tokens: int) -> None:
    found = [num_pieces(PROSE.words(Segment(f"text {i}", num_tokens))) for i in range(10)]
    assert sum(found) / 10 == pytest.approx(num_tokens, rel=0.05)
    assert all(count == pytest.approx(num_tokens, rel=0.2) for count in found)


@given(st.text(), st.integers(1, 300), st.integers(1, 300))
def test_a_shorter_text_of_a_name_is_the_beginning_of_a_longer_one(
    name: str, one: int, other: int
) -> None:
    short, long = (Prose(num_pieces).words(Segment(name, n)) for n in sorted((one, other)))
    assert long.startswith(short)


def test_names_and_seeds_make_texts_that_differ_from_the_start() -> None:
    texts = [PROSE.words(Segment(name, 500)) for name in ("chat/1", "chat/2", "chat/11")]
    texts.append(Prose(num_pieces, seed=2).words(Segment("chat/1", 500)))
    pairs = [(a, b) for a in texts for b in texts if a is not b]
    assert all(a[:60] != b[:60] for a, b in pairs)


def test_prompts_share_text_up_to_where_they_part() -> None:
    system = EMPTY.then("system", 50, role="system")
    one, two = system.then("a", 20), system.then("b", 20)
    texts = [PROSE.text(each) for each in (system, one, two)]
    assert all(text.startswith(texts[0]) for text in texts)
    assert texts[1] != texts[2]
    assert PROSE.text(one.then("answer", 5, role="assistant")).startswith(texts[1])


def test_messages_go_by_role() -> None:
    chat = EMPTY.then("s", 9, role="system").then("doc", 9).then("q", 9)
    chat = chat.then("a", 9, role="assistant").then("q2", 9)
    messages = PROSE.messages(chat)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    document, question = messages[1]["content"].split("\n\n")
    assert document == PROSE.words(Segment("doc", 9))
    assert question == PROSE.words(Segment("q", 9))


def test_words_that_are_known_are_kept() -> None:
    assert PROSE.text(EMPTY.then("x", 100, text="as it was said")) == "as it was said"


def test_texts_do_not_change_between_runs() -> None:
    assert (
        PROSE.words(Segment("golden", 12))
        == "Rule hard sugar through dark could describe hundred dream warm"
    )
