"""What a user sees: answers, cached tokens, and the worker that had them."""

import random
from itertools import takewhile

import openai
from e2e_fleet import MODEL, Fleet

from expediter.tokenizer.tokenizer import Tokenizer

BLOCK_SIZE = 16
WORDS = [
    "river",
    "stone",
    "lamp",
    "paper",
    "winter",
    "garden",
    "seven",
    "quiet",
    "copper",
    "window",
]


def long_text(seed: int, num_words: int) -> str:
    """Text nobody has sent before, a token a word."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def cached_tokens(usage: dict[str, dict[str, int]]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def num_shared(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_a_question_gets_a_sensible_answer_streamed_to_the_openai_client(fleet: Fleet) -> None:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = list(stream)
    text = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert "Paris" in "".join(text)
    assert len(text) > 3
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens >= len(text)


def test_the_second_question_about_a_long_text_finds_it_cached_at_the_same_worker(
    fleet: Fleet,
) -> None:
    text = long_text(1, 400)
    first = fleet.chat([user(f"{text}\nHow many words are there?")], max_tokens=8)
    second = fleet.chat([user(f"{text}\nWhich word is the first?")], max_tokens=8)
    assert cached_tokens(first.json()["usage"]) < 3 * BLOCK_SIZE  # the template's own words
    usage = second.json()["usage"]
    assert usage["prompt_tokens"] - cached_tokens(usage) < 3 * BLOCK_SIZE
    assert second.headers["x-expediter-worker"] == first.headers["x-expediter-worker"]
    assert second.headers["x-expediter-reason"] == "longest-match"
    assert int(second.headers["x-expediter-matched-tokens"]) == cached_tokens(usage)


def test_a_conversation_stays_where_its_history_is_and_hits_every_full_block_of_it(
    fleet: Fleet, tokenizer: Tokenizer
) -> None:
    """Ten turns over a 1,500-token system prompt; the numbers of hits are exact.

    A worker holds the KV of a turn's prompt and of all its output but the last token, which
    was sampled and never run. What it can find of the next prompt is the full blocks of what
    the two have in common, the prompt's last token excepted.
    """
    system = long_text(2, 1500)
    messages = [{"role": "system", "content": system}]
    held: list[int] = []
    workers = []
    for turn in range(10):
        messages.append(user(f"Question {turn}: {long_text(turn + 100, 12)}?"))
        prompt = tokenizer.encode_chat(messages)
        assert len(prompt) > 1500
        answer = fleet.chat(messages, max_tokens=12, return_token_ids=True)
        choice = answer.json()["choices"][0]
        expected = min(num_shared(held, prompt), len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        if turn > 0:
            assert cached_tokens(answer.json()["usage"]) == expected
        workers.append(answer.headers["x-expediter-worker"])
        held = prompt + choice["token_ids"][:-1]
        messages.append({"role": "assistant", "content": choice["message"]["content"]})
    assert len(set(workers)) == 1


def test_a_greedy_answer_is_the_same_cached_and_not_cached(fleet: Fleet) -> None:
    """A salt of its own makes a prompt new; the same salt again finds it."""
    messages = [user(f"{long_text(3, 300)}\nTell a story about these words.")]
    answers = []
    for salt in ("one", "one", "two"):
        body = fleet.chat(messages, max_tokens=48, cache_salt=salt).json()
        answers.append((body["choices"][0]["message"]["content"], cached_tokens(body["usage"])))
    texts, cached = zip(*answers, strict=True)
    assert texts[0] == texts[1] == texts[2]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 300
