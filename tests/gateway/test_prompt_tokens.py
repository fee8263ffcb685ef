"""The router's tokens are the worker's, whatever is remembered of them."""

import asyncio
import json
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from expediter.gateway.openai import Fields, longest_prompt, prompt_text, read_fields
from expediter.gateway.prompts import PromptReader
from expediter.gateway.tokenizer import MAX_CHARS_INLINE, PromptTokenizer, find_borders
from expediter.routing.prompt import Prompt, token_prompt
from expediter.tokenizer import Tokenizer
from expediter.tokenizer.chat_template import ChatTemplate

SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<|im_end|><|im_end|>"]
TEMPLATE = (
    "{% for t in tools or [] %}<|im_start|>tool {{ t | tojson }}<|im_end|>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<t>{% endif %}{% endif %}"
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "user assistant system 0123456789"] * 9
COMPLETIONS, CHAT = b"/v1/completions", b"/v1/chat/completions"


@cache
def byte_level(*, bos: bool = False, special: tuple[str, ...] = (*SPECIAL,)) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    template = ChatTemplate(TEMPLATE, now=lambda: datetime(2026, 1, 1))
    return Tokenizer(backend, eos_token_ids=frozenset({2}), chat_template=template)


def sentencepiece_like() -> Tokenizer:
    """It puts a mark before the first word only, so segments are not encoded as they stand."""
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, eos_token_ids=frozenset())


def tokens_of(data: bytes) -> list[int]:
    return list(array("I", data))


def packs(
    tokenizer: Tokenizer, texts: list[str], *, add: bool, memo: int = 10**6
) -> list[list[int]]:
    async def pack() -> list[list[int]]:
        with ThreadPoolExecutor(1) as threads:
            exact = PromptTokenizer(tokenizer, executor=threads, max_memo_bytes=memo)
            return [tokens_of(await exact.pack(text, add_special_tokens=add)) for text in texts]

    return asyncio.run(pack())


texts = st.lists(
    st.one_of(st.sampled_from([*SPECIAL, "the fox", " ", "\n", "user\n"]), st.text(max_size=12)),
    max_size=10,
).map("".join)


@settings(deadline=None)
@given(
    texts=st.lists(texts, max_size=6),
    add=st.booleans(),
    bos=st.booleans(),
    special=st.sampled_from([(*SPECIAL,), (*SPECIAL[:3],)]),  # with the last, no turn end is alone
)
def test_tokens_are_those_of_the_whole_text(
    texts: list[str], add: bool, bos: bool, special: tuple[str, ...]
) -> None:
    tokenizer = byte_level(bos=bos, special=special)
    whole = [tokenizer.encode(text, add_special_tokens=add) for text in texts]
    # Each twice, so that the second comes from memory.
    assert packs(tokenizer, texts * 2, add=add) == whole * 2


@settings(deadline=None, max_examples=30)
@given(texts=st.lists(texts, max_size=6), memo=st.integers(0, 3000))
def test_a_full_memo_forgets_and_stays_right(texts: list[str], memo: int) -> None:
    tokenizer = byte_level()
    whole = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert packs(tokenizer, texts, add=False, memo=memo) == whole


@pytest.mark.parametrize("change", ["metaspace", "prepend", "lstrip", "suffix", "no borders"])
def test_a_tokenizer_that_sees_across_borders_is_not_cut(change: str) -> None:
    tokenizer = sentencepiece_like() if change == "metaspace" else byte_level.__wrapped__()
    backend = tokenizer.backend
    if change == "prepend":
        backend.normalizer = normalizers.Prepend("the ")
        for special in SPECIAL:  # tokens that are looked for in the normalised text
            backend.add_tokens([tokenizers.AddedToken(special, normalized=True)])
    elif change == "lstrip":
        stripping = [tokenizers.AddedToken(s, lstrip=True) for s in ("<s>", "|>", "<|")]
        backend.add_special_tokens(stripping)
    elif change == "suffix":
        backend.post_processor = processors.TemplateProcessing(
            single="$A <s>", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    elif change == "no borders":
        backend = tokenizers.Tokenizer(models.BPE())
        backend.decoder = decoders.ByteLevel()
        tokenizer = Tokenizer(backend, eos_token_ids=frozenset())
    assert find_borders(tokenizer) is None
    text = "the fox <s> the dog<|im_end|>  user"
    for add in (True, False):
        whole = tokenizer.encode(text, add_special_tokens=add)
        assert packs(tokenizer, [text] * 2, add=add) == [whole] * 2


async def test_long_new_text_is_encoded_off_the_event_loop() -> None:
    tokenizer = byte_level()
    long = "<|im_start|>" + "the lazy dog " * MAX_CHARS_INLINE + "<|im_end|>tail"
    with ThreadPoolExecutor(1) as threads:
        exact = PromptTokenizer(tokenizer, executor=threads)
        packing = asyncio.create_task(exact.pack(long, add_special_tokens=False))
        await asyncio.sleep(0)
        assert not packing.done()
        expected = tokenizer.encode(long, add_special_tokens=False)
        assert tokens_of(await packing) == expected
        again = exact.pack(long, add_special_tokens=False)
        with pytest.raises(StopIteration):  # now it is remembered, and nothing is waited for
            again.send(None)


async def test_long_new_prompts_are_named_off_the_event_loop_and_known_ones_are_not() -> None:
    named: list[str] = []

    def name(prompt: Prompt) -> None:
        prompt.keys(16)
        named.append(threading.current_thread().name)

    words = "the quick brown fox " * 1000
    bodies = [{"messages": [{"role": "user", "content": words}]}, {"prompt": words * 2}]
    with ThreadPoolExecutor(1, thread_name_prefix="tokens") as threads:
        reader = PromptReader(PromptTokenizer(byte_level(), executor=threads), name=name)
        for path, body in zip((CHAT, COMPLETIONS), bodies, strict=True):
            fields = read_fields(json.dumps(body).encode())
            assert fields is not None
            for _ in range(2):
                assert await reader.read(path, fields, lora_name=None) is not None
    assert named == ["tokens_0", "tokens_0"]


async def read(path: bytes, body: dict[str, object]) -> Prompt | None:
    with ThreadPoolExecutor(1) as threads:
        reader = PromptReader(PromptTokenizer(byte_level(bos=True), executor=threads))
        fields = read_fields(json.dumps(body).encode())
        assert fields is not None
        return await reader.read(path, fields, lora_name=None)


MESSAGES = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "jumps"}]


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"add_generation_prompt": False},
        {"tools": None, "add_generation_prompt": None, "chat_template": None},
        {"chat_template_kwargs": {"think": True}},
    ],
)
async def test_a_chats_tokens_are_those_of_its_template(extra: dict[str, object]) -> None:
    prompt = await read(CHAT, {"model": "m", "messages": MESSAGES, "stream": True, **extra})
    kwargs = {k: v for k, v in extra.items() if v is not None}
    names = kwargs.pop("chat_template_kwargs", {})
    expected = byte_level(bos=True).encode_chat(MESSAGES, **kwargs, **names)  # type: ignore[arg-type]
    assert prompt is not None
    assert tokens_of(prompt.whole) == expected
    assert not prompt.is_text


async def test_a_message_to_be_continued_ends_where_it_ends() -> None:
    body = {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": False}
    prompt = await read(CHAT, body)
    assert prompt is not None
    assert byte_level().decode(tokens_of(prompt.whole)).endswith("jumps")


async def test_a_completions_prompt_is_text_or_tokens_or_the_longest_of_many() -> None:
    encode = byte_level(bos=True).encode
    for given_prompt, tokens in (
        ("the fox", encode("the fox")),
        ([1, 2, 3], [1, 2, 3]),
        (["a", "the quick fox", "b"], encode("the quick fox")),
        ([[1], [4, 5, 6], [2, 3]], [4, 5, 6]),
    ):
        prompt = await read(COMPLETIONS, {"prompt": given_prompt})
        assert prompt is not None
        assert tokens_of(prompt.whole) == tokens


@pytest.mark.parametrize("prompt", [None, [], 5, {"a": 1}, [None], [[1], "a"], [-1], [2**40], True])
async def test_a_prompt_that_makes_no_sense_is_no_prompt(prompt: object) -> None:
    assert await read(COMPLETIONS, {"prompt": prompt}) is None


async def test_what_the_template_cannot_render_is_compared_as_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with_image = [{"role": "user", "content": [image, {"type": "text", "text": "what?"}]}]
    prompt = await read(CHAT, {"messages": with_image})
    other = await read(
        CHAT, {"messages": json.loads(json.dumps(with_image).replace("AAAA", "BBBB"))}
    )
    assert prompt is not None
    assert other is not None
    assert prompt.is_text
    assert prompt.whole != other.data
    own_template = await read(CHAT, {"messages": MESSAGES, "chat_template": "{{ messages }}"})
    assert own_template is not None
    assert own_template.is_text


async def test_token_ids_need_no_tokenizer() -> None:
    prompt = await PromptReader(None).read(
        COMPLETIONS,
        Fields(prompt=read_fields(b'{"prompt": [5, 6, 7]}').prompt),
        lora_name=None,  # type: ignore[union-attr]
    )
    assert prompt is not None
    assert prompt.whole == token_prompt([5, 6, 7]).data


def test_the_next_turns_text_begins_with_this_ones() -> None:
    turns = [b'{"messages": [{"a": 1}]}', b'{"messages": [{"a": 1}, {"b": 2}]}']
    this, following = (prompt_text(CHAT, read_fields(turn)) for turn in turns)  # type: ignore[arg-type]
    assert this is not None
    assert following is not None
    assert following.startswith(this)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=4), st.lists, max_leaves=8))
def test_any_prompt_is_read_or_refused(value: object) -> None:
    fields = read_fields(json.dumps({"prompt": value}).encode())
    if fields is not None:
        longest_prompt(fields.prompt)
